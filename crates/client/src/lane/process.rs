//! Processing one message: judge it, call its listeners, settle what they said.

use super::{Lane, Ticket};
use crate::backend::{BackendErrorKind, Find};
use crate::bus::Bus;
use crate::clock;
use crate::core::{Drop, Element, Outcome, Verdict, View, judge};
use crate::listen::{Delivery, HandlerError, Listener, Reject, Reply, Resolution};
use crate::node::CALL_RETRIES;
use futures_util::FutureExt;
use rockdove_messages::{Message, MessageId, filter};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// What reading a message by id found.
pub(super) enum Read {
    Found(Box<Message>),
    Gone,
    /// It is there but no message.
    Poison,
    /// The server cannot be asked now.
    Failed,
}

/// What the listeners of a message made of it, taken together: one failure outweighs a refusal, a refusal
/// outweighs success.
pub(super) enum Heard {
    Accepted,
    Rejected(Reject),
    Failed,
    /// The bus is shutting down and would not wait any longer.
    Interrupted,
}

impl Lane {
    /// Processes one queued element. The ticket's outcome tells the core how it ended.
    pub(super) async fn process(self: Arc<Self>, element: Element, ticket: Ticket) {
        let doubtful = |message: &Message| {
            message.exclusive && self.core.lock().is_doubtful(element.since, clock::now())
        };
        let message = match element.snapshot.filter(|message| !doubtful(message)) {
            Some(message) => *message,
            None => match self.read(&element.id, CALL_RETRIES).await {
                Read::Found(message) => *message,
                Read::Gone => return ticket.end(Outcome::Done),
                Read::Poison => return ticket.end(Outcome::Poison),
                Read::Failed => return ticket.end(Outcome::Retry),
            },
        };
        let verdict = self.judge(&message);
        tracing::trace!(id = %element.id, message.topic, ?verdict, "judged");
        let outcome = match verdict {
            Verdict::Drop(Drop::Unlistened | Drop::Expired) => Outcome::Unlistened,
            Verdict::Drop(Drop::Paused) => Outcome::Paused,
            Verdict::Drop(Drop::Taken) => Outcome::Taken,
            Verdict::Drop(Drop::Own | Drop::Marked | Drop::NotForUs) => Outcome::Done,
            Verdict::Answer => return self.settle_answer(message, ticket),
            Verdict::Deliver => self.deliver(Arc::new(message)).await,
            Verdict::Claim => self.deliver_exclusive(Arc::new(message)).await,
        };
        ticket.end(outcome);
    }

    fn judge(&self, message: &Message) -> Verdict {
        let node = &self.node;
        let view = View {
            me: &node.me,
            listened: self.serves(&message.topic),
            awaited: node.waiters.awaits(message.in_answer_to.as_ref()),
            paused: node.is_paused(&message.topic),
            now_ms: node.now_ms(),
        };
        judge(message, view)
    }

    /// Reads a message by id from the primary; tries for at most `limit`.
    pub(super) async fn read(&self, id: &MessageId, limit: Duration) -> Read {
        let find = || Find { filter: filter::by_id(id), limit: 1, ..Find::default() };
        let found = self.node.retry(limit, || self.node.backend.find(&self.collection, find())).await;
        match found.map(|found| found.into_iter().next()) {
            Ok(None) => Read::Gone,
            Ok(Some(document)) => match Message::from_document(document) {
                Ok(message) => Read::Found(Box::new(message)),
                Err(error) => {
                    tracing::warn!(%id, %error, "a stored document is no message; ignored");
                    Read::Poison
                }
            },
            Err(error) if error.kind() == BackendErrorKind::Malformed => {
                tracing::warn!(%id, %error, "a stored document is not usable; ignored");
                Read::Poison
            }
            Err(error) => {
                tracing::warn!(%id, %error, "a message cannot be read");
                Read::Failed
            }
        }
    }

    /// A message that is for several nodes, or for us alone: call, then mark.
    async fn deliver(self: &Arc<Self>, message: Arc<Message>) -> Outcome {
        let listeners = self.node.listeners.on(&message.topic);
        let early = listeners.iter().any(|listener| listener.options.mark_before_execution);
        if early && !self.mark(&message).await {
            return Outcome::Retry;
        }
        match self.call_all(&message, &listeners).await {
            Heard::Accepted => {
                if !early {
                    self.mark(&message).await;
                }
                self.remove_processed(&message).await;
                Outcome::Delivered
            }
            Heard::Failed if early => Outcome::Delivered,
            Heard::Failed => Outcome::Failed,
            Heard::Rejected(reject) => {
                let resolution = self.resolve(&message, reject).await;
                match (resolution, early) {
                    (Resolution::Done, false) => drop(self.mark(&message).await),
                    (Resolution::GiveBack, true) => self.unmark(&message).await,
                    _ => {}
                }
                match resolution {
                    Resolution::Done => Outcome::Delivered,
                    Resolution::GiveBack => Outcome::Reoffer,
                }
            }
            Heard::Interrupted => {
                if early {
                    self.unmark(&message).await;
                }
                Outcome::Done
            }
        }
    }

    /// Calls every listener of the topic, in order of registration, and sends the answers they give.
    pub(super) async fn call_all(&self, message: &Arc<Message>, listeners: &[Arc<Listener>]) -> Heard {
        let mut heard = Heard::Accepted;
        for listener in listeners {
            let delivery = Delivery { message: message.clone(), bus: Bus::of(self.node.clone()) };
            let call = AssertUnwindSafe(listener.call(delivery)).catch_unwind();
            let result = tokio::select! {
                biased;
                result = call => result,
                () = self.interrupted() => return Heard::Interrupted,
            };
            match result {
                Ok(Ok(reply)) => self.send_reply(message, reply).await,
                Ok(Err(HandlerError::Rejected(reject))) => {
                    tracing::debug!(message.topic, reject.reason, "a listener rejected a message");
                    if matches!(heard, Heard::Accepted) {
                        heard = Heard::Rejected(reject);
                    }
                }
                Ok(Err(HandlerError::Failed(error))) => {
                    tracing::warn!(message.topic, id = ?message.id, %error, "a listener failed");
                    heard = Heard::Failed;
                }
                Err(_) => {
                    tracing::error!(message.topic, id = ?message.id, "a listener panicked");
                    heard = Heard::Failed;
                }
            }
        }
        heard
    }

    /// The message counts as processed even if an answer cannot be sent: its listener has run.
    async fn send_reply(&self, message: &Message, reply: Reply) {
        let mut answers = reply.answers;
        if answers.is_empty() && self.node.settings.auto_answer {
            answers.extend(message.derive_auto_answer());
        }
        for answer in answers {
            if let Err(error) = self.node.send_answer(message, answer).await {
                tracing::error!(message.topic, id = ?message.id, %error, "an answer was not sent");
            }
        }
    }

    /// Decides about a rejected message: as the application's handler says, else as the rejection itself does. An
    /// exclusive one is then always given back: that others continue with it is what that means.
    pub(super) async fn resolve(&self, message: &Arc<Message>, reject: Reject) -> Resolution {
        if let Some(handler) = &self.node.rejection {
            let delivery = Delivery { message: message.clone(), bus: Bus::of(self.node.clone()) };
            let decided = AssertUnwindSafe(async { handler(delivery, reject).await }).catch_unwind().await;
            return decided.unwrap_or_else(|_| {
                tracing::error!(message.topic, id = ?message.id, "the rejection handler panicked");
                Resolution::GiveBack
            });
        }
        if reject.send_answer {
            self.send_reply(message, message.derive_rejection(&reject.reason).into()).await;
        }
        if reject.continue_processing && !message.exclusive { Resolution::Done } else { Resolution::GiveBack }
    }

    /// The caller has the answer: mark it, and remove it if it asks for that.
    pub(super) async fn finish_answer(&self, answer: &Message) -> Outcome {
        self.mark(answer).await;
        self.remove_processed(answer).await;
        Outcome::Delivered
    }
}
