//! Marks, locks and removals: every change a node makes to a message after it was sent.
//!
//! An exclusive message is claimed in two steps, which are one call where the server can do that. Inserting its lock keeps
//! other nodes away; marking it *only if nobody marked it* decides. The mark precedes the listener, so that exactly-once
//! does not depend on the lock:
//!
//! ```text
//!  lock inserted ─► marked, if unmarked ─► listener ─► lock deleted; or, if it is to be removed, see `kept`
//!       │                  │                  │ failed, rejected, interrupted
//!       ▼ held by another  ▼ taken, gone      ▼
//!      lost            lock deleted      un-marked ─► lock deleted ─► tried again
//! ```
//!
//! A lane without locks (a node's own directed messages) goes by the mark alone.
//!
//! A node that dies before the mark leaves a lock that expires; after the mark, the message is not tried again.

use super::Lane;
use super::process::{Heard, Read};
use crate::backend::{self, BackendErrorKind, BackendResult, Claimed, Durability, Find, Updated};
use crate::clock;
use crate::core::Outcome;
use crate::listen::Resolution;
use crate::node::{CALL_RETRIES, WHILE_RUNNING};
use bson::Document;
use rockdove_messages::{Lock, Message, MessageId, filter, lock_expiry};
use std::sync::Arc;

/// The result of trying to lock or claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    Ours,
    /// Another node holds it.
    Lost,
    /// It was processed or removed.
    Over,
    /// The server cannot be asked now.
    Failed,
}

impl Lane {
    /// A message exactly one node may process.
    pub(super) async fn deliver_exclusive(self: &Arc<Self>, message: Arc<Message>) -> Outcome {
        let Some(id) = &message.id else { return Outcome::Poison };
        if self.core.lock().was_processed(id, clock::now()) {
            // What was read or announced may be old. Its mark must not be taken for one that is made now.
            match self.read(id, CALL_RETRIES).await {
                Read::Found(message) if message.processed_by.is_empty() => {}
                Read::Found(_) | Read::Gone | Read::Poison => return Outcome::Taken,
                Read::Failed => return Outcome::Retry,
            }
        }
        let claim = match &self.locks {
            None => self.mark_unmarked(id).await,
            Some(locks) => match self.lock_and_mark(locks, id, &message).await {
                Ok(claim) => claim,
                Err(outcome) => return outcome,
            },
        };
        let outcome = match claim {
            Claim::Ours => self.run_claimed(&message).await,
            Claim::Over | Claim::Lost => Outcome::Taken,
            Claim::Failed => Outcome::Retry,
        };
        if outcome == Outcome::Processed && message.delete_after_processing {
            self.remove_exclusive(id, &message).await;
        } else if let Some(locks) = &self.locks {
            self.unlock(locks, id).await;
        }
        outcome
    }

    /// Marked and locked: calls the listeners. The mark stays only if they accept.
    async fn run_claimed(&self, message: &Arc<Message>) -> Outcome {
        let listeners = self.node.listeners.on(&message.topic);
        let heard = if listeners.is_empty() {
            Heard::Interrupted // the last one was removed meanwhile: give the message back
        } else {
            self.call_all(message, &listeners).await
        };
        let outcome = match heard {
            Heard::Accepted => return Outcome::Processed,
            Heard::Rejected(reject) => match self.resolve(message, reject).await {
                Resolution::Done => return Outcome::Processed,
                Resolution::GiveBack => Outcome::Retry,
            },
            Heard::Failed | Heard::Interrupted => Outcome::Retry,
        };
        self.unmark(message).await;
        outcome
    }

    /// Locks, and marks if nobody did. An error without the lock.
    async fn lock_and_mark(&self, locks: &str, id: &MessageId, message: &Message) -> Result<Claim, Outcome> {
        let now = self.node.now_ms();
        let delete_at = Some(lock_expiry(self.node.names.layout(), message, now));
        let lock = Lock { id: id.clone(), delete_at, lock_id: self.node.me.clone(), processed: None };
        let lock = lock.to_document();
        let claim = backend::Claim {
            locks,
            lock: lock.clone(),
            collection: &self.collection,
            filter: filter::unmarked(id),
            update: filter::mark(&self.node.me),
        };
        let at_once = self.node.backend.claim(claim).await;
        let locked = match at_once {
            Ok(Claimed::Locked { marked: true }) => return Ok(Claim::Ours),
            Ok(Claimed::Locked { marked: false }) => Claim::Ours,
            Ok(Claimed::Held) => self.held(locks, id, message, false).await,
            Err(error) => {
                let some_failed = error.kind() != BackendErrorKind::Unsupported;
                self.lock(locks, id, message, lock, some_failed).await
            }
        };
        match locked {
            Claim::Ours => Ok(self.mark_unmarked(id).await),
            Claim::Lost => Err(Outcome::Lost),
            Claim::Over => Err(Outcome::Taken),
            Claim::Failed => Err(Outcome::Retry),
        }
    }

    /// Inserts the lock. `some_failed`: something failed before that may have taken effect.
    async fn lock(
        &self,
        locks: &str,
        id: &MessageId,
        message: &Message,
        document: Document,
        some_failed: bool,
    ) -> Claim {
        let mut tries = 0;
        let insert = || {
            tries += 1;
            self.node.backend.insert(locks, std::slice::from_ref(&document), Durability::ServerDefault)
        };
        let failure = match self.node.retry(CALL_RETRIES, insert).await {
            Ok(failures) => match failures.into_iter().next() {
                None => return Claim::Ours,
                Some(failure) => failure.error,
            },
            Err(error) => error,
        };
        if failure.kind() == BackendErrorKind::NotAcknowledged {
            return self.read_lock(locks, id, message).await; // it is there, unless another node's was
        }
        if failure.kind() == BackendErrorKind::DuplicateKey {
            return self.held(locks, id, message, some_failed || tries > 1).await;
        }
        tracing::warn!(%id, error = %failure, "a message cannot be locked");
        Claim::Failed
    }

    /// There is a lock. One that carries our id is ours: an earlier insert of this task took effect although it reported
    /// an error, or an earlier life of this node left it. No other task of this node can hold it, because a message is in
    /// progress once. Whose it is is not asked at the first attempt, unless one failed: then it is almost always another
    /// node's, which was a little faster.
    async fn held(&self, locks: &str, id: &MessageId, message: &Message, some_failed: bool) -> Claim {
        if !some_failed && !self.core.lock().was_lost(id) {
            return Claim::Lost;
        }
        self.read_lock(locks, id, message).await
    }

    async fn read_lock(&self, locks: &str, id: &MessageId, message: &Message) -> Claim {
        let find = || Find { filter: filter::by_id(id), limit: 1, ..Find::default() };
        let found = self.node.retry(CALL_RETRIES, || self.node.backend.find(locks, find())).await;
        let lock = match found {
            Ok(found) => found.first().and_then(Lock::from_document),
            Err(_) => return Claim::Failed,
        };
        match lock {
            Some(Lock { processed: Some(timestamp), .. }) if timestamp == message.timestamp => {
                self.remove_repeated(id, timestamp).await;
                Claim::Over
            }
            Some(Lock { processed: None, lock_id, .. }) if lock_id == self.node.me => Claim::Ours,
            _ => Claim::Lost,
        }
    }

    /// Deletes our lock. Should that fail it expires by itself.
    pub(super) async fn unlock(&self, locks: &str, id: &MessageId) {
        let filter = filter::own_lock(id, &self.node.me);
        let delete = || self.node.backend.delete(locks, filter.clone());
        if let Err(error) = self.node.retry(CALL_RETRIES, delete).await {
            tracing::warn!(%id, %error, "a lock was not released; it expires by itself");
        }
    }

    /// Marks an exclusive message if nobody has: one atomic step. It is tried until its result is known: a mark that was
    /// given up, and had taken effect, would keep the message from everybody.
    async fn mark_unmarked(&self, id: &MessageId) -> Claim {
        let update = || self.update(filter::unmarked(id), filter::mark(&self.node.me));
        match self.node.retry(WHILE_RUNNING, update).await {
            Ok(updated) if updated.matched > 0 => Claim::Ours,
            Ok(_) => self.was_it_us(id).await,
            Err(error) if error.is_transient() => Claim::Failed,
            Err(error) if error.kind() == BackendErrorKind::NotAcknowledged => self.was_it_us(id).await,
            Err(_) => {
                if self.repair(id).await {
                    Claim::Ours
                } else {
                    Claim::Over
                }
            }
        }
    }

    /// Nothing is unmarked any more. A mark of ours is from this claim: a try of it took effect although it reported an
    /// error, and the driver may have made one without telling. One from a run that is over was seen before.
    async fn was_it_us(&self, id: &MessageId) -> Claim {
        match self.read(id, WHILE_RUNNING).await {
            Read::Found(message) if message.processed_by == [self.node.me.as_str()] => Claim::Ours,
            Read::Found(_) | Read::Gone | Read::Poison => Claim::Over,
            Read::Failed => Claim::Failed,
        }
    }

    /// Marks a message: this node is done with it. True when it carries the mark or is gone.
    pub(super) async fn mark(&self, message: &Message) -> bool {
        let Some(id) = &message.id else { return false };
        let update = || self.update(filter::by_id(id), filter::mark(&self.node.me));
        let marked = match self.node.retry(CALL_RETRIES, update).await {
            Ok(_) => true,
            Err(error) if error.kind() == BackendErrorKind::NotAcknowledged => true,
            Err(error) if error.is_transient() => false,
            Err(_) => self.repair(id).await,
        };
        if !marked {
            tracing::warn!(%id, message.topic, "a message was not marked");
        }
        marked
    }

    /// Takes our mark back, so that the message is tried again, here or elsewhere. However long the server cannot be
    /// reached: nobody else would.
    pub(super) async fn unmark(&self, message: &Message) {
        let Some(id) = &message.id else { return };
        let update = || self.update(filter::by_id(id), filter::unmark(&self.node.me));
        match self.node.retry(WHILE_RUNNING, update).await {
            Err(error) if error.kind() != BackendErrorKind::NotAcknowledged => {
                tracing::error!(%id, message.topic, %error, "a mark was not taken back; the message is lost");
            }
            _ => {}
        }
    }

    /// A null mark list refuses additions; the guarded replacement is safe against races.
    async fn repair(&self, id: &MessageId) -> bool {
        let update = || self.update(filter::null_marks(id), filter::repair_marks(&self.node.me));
        self.node.retry(CALL_RETRIES, update).await.is_ok_and(|updated| updated.matched > 0)
    }

    pub(super) async fn update(&self, filter: Document, update: Document) -> BackendResult<Updated> {
        self.node.backend.update_one(&self.collection, filter, update, false).await
    }

    /// Removes a processed message that asks for it, now or later. Later is the server's expiry. Not for exclusive ones.
    pub(super) async fn remove_processed(&self, message: &Message) {
        let (true, Some(id)) = (message.delete_after_processing, &message.id) else { return };
        let delay = i64::from(message.delete_after_processing_time);
        let done = if delay <= 0 {
            let delete = || self.node.backend.delete(&self.collection, filter::by_id(id));
            self.node.retry(CALL_RETRIES, delete).await.map(drop)
        } else {
            let update = || {
                self.update(filter::by_id(id), filter::expire_at(self.node.now_ms().saturating_add(delay)))
            };
            self.node.retry(CALL_RETRIES, update).await.map(drop)
        };
        if let Err(error) = done {
            tracing::warn!(%id, message.topic, %error, "a processed message was not removed");
        }
    }
}
