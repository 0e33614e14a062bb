//! One lane at work: the tasks around [`LaneCore`](crate::core::LaneCore), which decides.
//!
//! ```text
//!  message stream ─► on_event ─┐            ┌─► pump ─► process (one task per message)
//!  lock stream ────► on_event ─┼─► the core ┤
//!  poll loop ──────► poll ─────┘            └─► awaited answers go straight to their callers
//! ```
//!
//! The core's mutex is held for a decision only, never across an await.

mod claim;
mod feed;
mod poll;
mod process;

use crate::backend::{Change, ChangeEvent};
use crate::core::{Depth, Element, LaneCore, Limits, Offer, Outcome, Timing};
use crate::node::Node;
use crate::phase::Phase;
use crate::waiters::Offered;
use parking_lot::Mutex;
use rockdove_messages::{Message, MessageId};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Instant;
use tokio::sync::{Notify, watch};

/// Which streams stand, and what the lane has caught up with.
#[derive(Clone, Default, Debug)]
pub(crate) struct Standing {
    /// The topics in the filter of the established message stream (or served by polls alone).
    pub topics: Option<Arc<Vec<String>>>,
    /// The lock stream stands (or there is none).
    pub locks: bool,
}

/// One collection of messages, and the work on it.
pub(crate) struct Lane {
    pub(crate) node: Arc<Node>,
    /// Where the messages are.
    collection: String,
    /// Where the locks of its exclusive messages are.
    locks: String,
    core: Mutex<LaneCore>,
    /// The poll loop looks again.
    wake: Notify,
    /// The message stream is to be opened anew.
    restart: Notify,
    /// Something ended.
    ended: Notify,
    standing: watch::Sender<Standing>,
    /// When the message stream was last established, wall clock.
    established_ms: AtomicI64,
}

impl Lane {
    /// The lane every node of a queue shares: broadcasts, and in the Standard layout everything else.
    pub(crate) fn shared(node: Arc<Node>) -> Self {
        let settings = &node.settings;
        let limits = Limits {
            window: settings.window_size,
            workers: if settings.multithreaded { settings.workers_max } else { 1 },
        };
        let timing = Timing {
            pause: settings.poll_pause,
            fallback: settings.fallback_poll_interval,
            streams: settings.use_change_stream,
        };
        Self {
            collection: node.names.base(),
            locks: node.names.locks(""),
            core: Mutex::new(LaneCore::new(limits, timing, Instant::now())),
            wake: Notify::new(),
            restart: Notify::new(),
            ended: Notify::new(),
            standing: watch::Sender::default(),
            established_ms: AtomicI64::new(i64::MAX),
            node,
        }
    }

    /// Starts the loops. Indexes first: the streams and polls profit from them.
    pub(crate) async fn start(self: &Arc<Self>) {
        self.node.index_messages(&self.collection).await;
        self.node.index_locks(&self.locks).await;
        let lane = self.clone();
        self.node.spawn_loop("poll", move || lane.clone().poll_loop());
        if self.node.settings.use_change_stream {
            let lane = self.clone();
            self.node.spawn_loop("message stream", move || lane.clone().supervise_messages());
            let lane = self.clone();
            self.node.spawn_loop("lock stream", move || lane.clone().follow_locks());
        } else {
            self.standing.send_modify(|standing| standing.locks = true);
        }
    }

    /// Returns once every stream stands and its filter knows every topic registered so far.
    pub(crate) async fn ready(&self) {
        let mut standing = self.standing.subscribe();
        let complete =
            |now: &Standing| now.locks && now.topics.as_ref() == Some(&self.node.listeners.topics());
        // The sender lives in `self`, so waiting cannot fail.
        let _ = standing.wait_for(complete).await;
    }

    /// An event of the message stream.
    fn on_event(self: &Arc<Self>, event: ChangeEvent) {
        let now = Instant::now();
        self.core.lock().event_arrived(now);
        match event.change {
            Change::Insert => return self.on_insert(event),
            Change::Update => self.core.lock().requeued(event.id.as_ref(), now),
            Change::LockReleased => self.core.lock().lock_released(None),
            Change::Delete | Change::Other => return,
        }
        self.wake.notify_one();
    }

    /// An event of the lock stream.
    fn on_lock_event(&self, event: &ChangeEvent) {
        if event.change == Change::Delete {
            self.core.lock().lock_released(event.id.as_ref());
            self.wake.notify_one();
        }
    }

    fn on_insert(self: &Arc<Self>, event: ChangeEvent) {
        let Some(document) = event.document else {
            tracing::warn!(id = ?event.id, "a stream event holds no usable document; ignored");
            return;
        };
        let message = match Message::from_document(document) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(id = ?event.id, %error, "a stream event holds no message; ignored");
                return;
            }
        };
        let parked = message.exclusive && !message.processed_by.is_empty();
        if parked || message.sender == self.node.me {
            return; // not remembered: a parked message may be requeued
        }
        if self.node.waiters.awaits(message.in_answer_to.as_ref()) && message.is_for(&self.node.me) {
            return self.take_answer(message);
        }
        if self.node.life.is_running() {
            self.enqueue(message);
        }
    }

    fn enqueue(self: &Arc<Self>, message: Message) {
        let Some(id) = message.id.clone() else { return };
        let (priority, timestamp) = (message.priority, message.timestamp);
        let element = Element { id, priority, timestamp, snapshot: Some(Box::new(message)) };
        let offer = self.core.lock().offer(element, Instant::now());
        if offer == Offer::Queued {
            self.pump();
        }
    }

    /// Hands an answer to its caller at once; the mark is written afterwards, and the message stays in progress
    /// until it is.
    fn take_answer(self: &Arc<Self>, answer: Message) {
        let Some(id) = answer.id.clone() else { return };
        if answer.is_processed_by(&self.node.me) || !self.core.lock().begin_answer(&id, Instant::now()) {
            return;
        }
        let ticket = Ticket { lane: self.clone(), id, outcome: Outcome::Retry };
        self.settle_answer(answer, ticket);
    }

    fn settle_answer(self: &Arc<Self>, answer: Message, ticket: Ticket) {
        match self.node.waiters.offer(&answer) {
            Offered::Taken | Offered::Repeated => {
                let lane = self.clone();
                self.node.runtime.spawn(async move {
                    let outcome = lane.finish_answer(&answer).await;
                    ticket.end(outcome);
                });
            }
            Offered::Full => ticket.end(Outcome::Retry),
            Offered::Nobody => {
                ticket.end(Outcome::Paused);
                self.enqueue(answer);
            }
        }
    }

    /// Starts as many queued messages as workers are free.
    fn pump(self: &Arc<Self>) {
        while self.node.life.is_running() {
            let Some(element) = self.core.lock().next() else { return };
            let ticket = Ticket { lane: self.clone(), id: element.id.clone(), outcome: Outcome::Retry };
            self.node.runtime.spawn(self.clone().process(element, ticket));
        }
    }

    /// Polls at once: topics or pauses changed.
    pub(crate) fn urge_poll(&self) {
        self.core.lock().urge_poll();
        self.wake.notify_one();
    }

    pub(crate) fn depth(&self) -> Depth {
        self.core.lock().depth()
    }

    /// Drops what is queued, and waits for what is in progress.
    pub(crate) async fn drain(&self) {
        self.core.lock().clear_queue();
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.core.lock().is_idle() {
                return;
            }
            ended.await;
        }
    }

    /// Returns once running listeners are to be interrupted.
    async fn interrupted(&self) {
        self.node.life.reached(Phase::Interrupting).await;
    }
}

/// Holds a message in progress; whatever happens to the task that holds it, the message leaves that state.
struct Ticket {
    lane: Arc<Lane>,
    id: MessageId,
    outcome: Outcome,
}

impl Ticket {
    fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let now = Instant::now();
        let wait = {
            let mut core = self.lane.core.lock();
            core.finish(&self.id, self.outcome, now);
            core.poll_wait(now)
        };
        if wait < self.lane.node.settings.poll_pause {
            self.lane.wake.notify_one(); // the poll loop sleeps for a whole tick at most
        }
        self.lane.ended.notify_waiters();
        self.lane.pump();
    }
}
