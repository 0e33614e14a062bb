//! What stays for a while of exclusive messages that are to be removed after processing.
//!
//! A sender that was not told whether its insert took effect repeats it. If the message were gone by then, the
//! repetition would be a new one and be processed again. So something stays until no sender repeats it any more:
//!
//! * its lock, where there are locks and the message is to be removed at once: whoever tries to claim the repetition
//!   meets the lock, and removes what was repeated. So does the lane before it deletes the lock.
//! * else the message, marked: the repetition is a duplicate, and the sender takes that for success.
//!
//! The times are those of the monotonic clock. A node that dies or stops leaves the end to the server's expiry, which
//! goes by the wall clock of the node; as that may be wrong, it comes an hour later.

use super::Lane;
use crate::backend::{BackendErrorKind, BackendResult, Find};
use crate::clock;
use crate::driver::CALL_LIMIT;
use crate::node::{CALL_RETRIES, WHILE_RUNNING, millis};
use crate::phase::Phase;
use crate::send::SEND_RETRIES;
use bson::doc;
use rockdove_messages::{Head, Message, MessageId, filter};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long something stays.
const KEPT: Duration = Duration::from_secs(90);
const _: () = assert!(KEPT.as_secs() > SEND_RETRIES.as_secs() + CALL_LIMIT.as_secs());
/// How wrong a clock may be.
const CLOCK_ERROR: Duration = Duration::from_secs(3600);
/// Most messages a lane keeps something of; the oldest make room. Twice as many while they cannot be let go of.
const KEPT_MAX: usize = 100_000;
/// How often to look for what has stayed long enough.
const TICK: Duration = Duration::from_secs(1);
/// Most ids of one call.
const BATCH: usize = 500;

/// What stays of one message.
struct Entry {
    id: MessageId,
    /// When it was sent.
    timestamp: i64,
    until: Instant,
    /// The message itself stays, and is to stay this much longer; `None` = the lock.
    message: Option<Duration>,
}

/// What stays of the messages of a lane, in the order of time.
#[derive(Default)]
pub(super) struct Kept {
    entries: VecDeque<Entry>,
    /// Whether a task waits for its end.
    watched: bool,
}

impl Kept {
    /// What has stayed long enough, and what is too much.
    fn due(&mut self, now: Instant) -> Vec<Entry> {
        let excess = self.entries.len().saturating_sub(KEPT_MAX);
        let over = self.entries.iter().take_while(|entry| entry.until <= now).count();
        self.entries.drain(..over.max(excess).min(BATCH)).collect()
    }
}

impl Lane {
    /// Removes an exclusive message that this node marked and processed, so that it cannot be repeated. Ends the claim.
    pub(super) async fn remove_exclusive(self: &Arc<Self>, id: &MessageId, message: &Message) {
        let delay = u64::try_from(message.delete_after_processing_time).unwrap_or(0);
        let delay = Duration::from_millis(delay);
        let at = self.node.now_ms().saturating_add(millis(delay + KEPT + CLOCK_ERROR));
        let locks = self.locks.as_deref();
        let by_lock = match locks {
            Some(locks) if delay.is_zero() => self.keep_lock(locks, id, message.timestamp, at).await,
            _ => false,
        };
        let done = if by_lock {
            let delete = || self.node.backend.delete(&self.collection, filter::by_id(id));
            self.node.retry(CALL_RETRIES, delete).await.map(drop)
        } else {
            let update = || self.update(filter::by_id(id), filter::expire_at(at));
            let kept = self.node.retry(CALL_RETRIES, update).await.map(drop);
            if let Some(locks) = locks {
                self.unlock(locks, id).await;
            }
            kept
        };
        if let Err(error) = done {
            tracing::warn!(%id, message.topic, %error, "a processed message was not removed");
        }
        let message_stays = (!by_lock).then(|| delay.saturating_sub(KEPT));
        self.keep(Entry {
            id: id.clone(),
            timestamp: message.timestamp,
            until: clock::now() + KEPT,
            message: message_stays,
        });
    }

    /// Makes our lock stay; one that was lost meanwhile is made again. False when it cannot be.
    async fn keep_lock(&self, locks: &str, id: &MessageId, timestamp: i64, at_ms: i64) -> bool {
        let (own, keep) = (filter::own_lock(id, &self.node.me), filter::keep_lock(timestamp, at_ms));
        let update = || self.node.backend.update_one(locks, own.clone(), keep.clone(), true);
        match self.node.retry(CALL_RETRIES, update).await {
            Ok(_) => true,
            Err(error) => {
                if error.kind() != BackendErrorKind::DuplicateKey {
                    tracing::warn!(%id, %error, "a lock cannot be kept; its message is");
                }
                false
            }
        }
    }

    fn keep(self: &Arc<Self>, entry: Entry) {
        let mut kept = self.kept.lock();
        if kept.entries.len() >= 2 * KEPT_MAX {
            kept.entries.pop_front(); // the server cannot be reached, or is too slow: left to expire
        }
        kept.entries.push_back(entry);
        if !std::mem::replace(&mut kept.watched, true) {
            self.node.runtime.spawn(self.clone().let_go_in_time());
        }
    }

    /// Waits until nothing stays any more, or the bus stops.
    async fn let_go_in_time(self: Arc<Self>) {
        while self.node.life.sleep_unless(Phase::Interrupting, TICK).await {
            let Some(_leave) = self.node.unfinished().await else { return };
            loop {
                let due = self.kept.lock().due(clock::now());
                if due.is_empty() {
                    break;
                }
                if let Err(error) = self.let_go(due).await {
                    tracing::warn!(self.collection, %error, "what stays of processed messages is left to expire");
                }
            }
            let mut kept = self.kept.lock();
            if kept.entries.is_empty() {
                kept.watched = false;
                return;
            }
        }
    }

    async fn let_go(&self, due: Vec<Entry>) -> BackendResult<()> {
        let (messages, locks): (Vec<_>, Vec<_>) = due.into_iter().partition(|entry| entry.message.is_some());
        if let (Some(collection), false) = (&self.locks, locks.is_empty()) {
            let sent: HashMap<_, _> = locks.iter().map(|entry| (&entry.id, entry.timestamp)).collect();
            let ids: Vec<_> = locks.iter().map(|entry| entry.id.clone()).collect();
            for repeated in self.find_unmarked(&ids).await? {
                if sent.get(&repeated.id) == Some(&repeated.timestamp) {
                    self.remove_repeated(&repeated.id, repeated.timestamp).await;
                }
            }
            // One whose removal failed at its time.
            let marked = filter::marked_of(&ids, &self.node.me);
            self.node
                .retry(WHILE_RUNNING, || self.node.backend.delete(&self.collection, marked.clone()))
                .await?;
            let own = filter::own_locks(&ids, &self.node.me);
            self.node.retry(WHILE_RUNNING, || self.node.backend.delete(collection, own.clone())).await?;
        }
        let (later, now): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|entry| entry.message.is_some_and(|rest| !rest.is_zero()));
        if !now.is_empty() {
            let ids: Vec<_> = now.into_iter().map(|entry| entry.id).collect();
            let marked = filter::marked_of(&ids, &self.node.me);
            let delete = || self.node.backend.delete(&self.collection, marked.clone());
            self.node.retry(WHILE_RUNNING, delete).await?;
        }
        for entry in later {
            let at = self.node.now_ms().saturating_add(millis(entry.message.unwrap_or_default()));
            let marked = filter::marked_of(&[entry.id], &self.node.me);
            let update = || self.update(marked.clone(), filter::expire_at(at));
            self.node.retry(WHILE_RUNNING, update).await?;
        }
        Ok(())
    }

    async fn find_unmarked(&self, ids: &[MessageId]) -> BackendResult<Vec<Head>> {
        let find = || Find {
            filter: filter::unmarked_of(ids),
            projection: Some(doc! { "timestamp": 1 }),
            ..Find::default()
        };
        let found =
            self.node.retry(WHILE_RUNNING, || self.node.backend.find(&self.collection, find())).await?;
        Ok(found.into_iter().filter_map(Head::from_document).collect())
    }

    /// Removes a message that was processed before, and that its sender inserted again.
    pub(super) async fn remove_repeated(&self, id: &MessageId, timestamp: i64) {
        let repeated = filter::unmarked_since(id, timestamp);
        let delete = || self.node.backend.delete(&self.collection, repeated.clone());
        match self.node.retry(CALL_RETRIES, delete).await {
            Ok(0) => {}
            Ok(_) => tracing::info!(%id, "a message that was processed had been sent again; removed"),
            Err(error) => tracing::warn!(%id, %error, "a message that was sent again was not removed"),
        }
    }
}
