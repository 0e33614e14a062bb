//! Polling: the way that always works, behind the streams or alone.

use super::{Lane, Reach};
use crate::backend::Find;
use crate::clock;
use crate::core::Element;
use crate::node::CALL_RETRIES;
use crate::phase::Phase;
use rockdove_messages::{Head, MessageId, filter};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A stream has this long to announce a message before a poll that finds it counts as the stream's failure, ms.
const ANNOUNCE_MS: i64 = 2000;

/// What the log calls it.
const POLLS: &str = "polling";

impl Lane {
    /// Polls whenever the core says so; looks at least once per tick.
    pub(super) async fn poll_loop(self: Arc<Self>) {
        let tick = self.node.settings.poll_pause;
        while self.node.life.phase() < Phase::Interrupting {
            let wait = self.core.lock().poll_wait(clock::now()).min(tick);
            if wait.is_zero() {
                if !self.node.settings.use_change_stream && self.collection == self.node.mailbox {
                    // Some nodes drop collections they take for orphans, and no stream tells.
                    self.node.index_messages(&self.collection).await;
                }
                self.poll().await;
                self.pump();
            } else {
                let _ = tokio::time::timeout(wait, self.wake.notified()).await;
            }
            if self.core.lock().is_stalled(clock::now()) {
                tracing::warn!(
                    self.collection,
                    "the stream is silent while messages arrive; opening it anew"
                );
                self.node.restart_stream(&self.collection);
            }
        }
    }

    async fn poll(self: &Arc<Self>) {
        let node = &self.node;
        let topics = if node.life.is_running() { self.topics() } else { Arc::default() };
        let paused: Vec<String> = node.paused.lock().keys().cloned().collect();
        let awaited = match self.reach {
            Reach::AllTopics => node.waiters.requests(),
            Reach::Topics(_) => Vec::new(), // answers have a recipient, so they are in the directed lane
        };
        let (skip, limit) = self.core.lock().begin_poll(clock::now());
        let found = if topics.is_empty() && awaited.is_empty() {
            Ok(Vec::new())
        } else {
            let poll = filter::Poll {
                me: &node.me,
                topics: &topics,
                paused: &paused,
                skip: &skip,
                awaited: &awaited,
            };
            let find = Find {
                filter: poll.shared(),
                sort: Some(filter::poll_sort()),
                projection: Some(filter::poll_projection()),
                limit,
            };
            node.backend.find(&self.collection, find).await
        };
        match found {
            Ok(found) => {
                node.troubles.end(&node.me, POLLS);
                self.on_found(found.into_iter().filter_map(Head::from_document).collect());
                self.polled.send_replace(Some(topics));
            }
            Err(error) => {
                node.troubles.begin(&node.me, POLLS, &error);
                self.core.lock().poll_failed();
            }
        }
    }

    /// Awaited answers go past the queue, everything else into it.
    fn on_found(self: &Arc<Self>, found: Vec<Head>) {
        let is_awaited = |head: &Head| self.node.waiters.awaits(head.in_answer_to.as_ref());
        let (awaited, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_awaited);
        for head in awaited {
            self.fetch_answer(head.id);
        }
        let now = clock::now();
        let element = |head: Head| Element {
            id: head.id,
            priority: head.priority,
            timestamp: head.timestamp,
            exclusive: head.exclusive,
            snapshot: None,
            since: now,
        };
        let (since, until) = (self.established_ms.load(Ordering::Relaxed), self.node.now_ms() - ANNOUNCE_MS);
        let announced = |element: &Element| (since..until).contains(&element.timestamp);
        let others = others.into_iter().map(element).collect();
        self.core.lock().end_poll(others, announced, now);
    }

    /// Reads an awaited answer and hands it over, in a task of its own: no listener delays it.
    fn fetch_answer(self: &Arc<Self>, id: MessageId) {
        let lane = self.clone();
        self.node.runtime.spawn(async move {
            if let super::process::Read::Found(answer) = lane.read(&id, CALL_RETRIES).await {
                lane.take_answer(*answer);
            }
        });
    }
}
