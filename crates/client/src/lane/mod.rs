//! One lane at work: the tasks around [`LaneCore`](crate::core::LaneCore), which decides.
//!
//! ```text
//!  message stream ─► on_event ─┐            ┌─► pump ─► process (one task per message)
//!  lock stream ────► on_event ─┼─► the core ┤
//!  poll loop ──────► poll ─────┘            └─► awaited answers go straight to their callers
//! ```
//!
//! A lane is the same whatever the layout: what differs is its collection, whether there are locks, and which topics
//! it serves. The core's mutex is held for a decision only, never across an await.

mod claim;
mod kept;
mod poll;
mod process;

use crate::backend::{Change, ChangeEvent};
use crate::clock;
use crate::core::{Depth, Element, LaneCore, Limits, Offer, Outcome, Timing};
use crate::node::Node;
use crate::phase::Phase;
use crate::streams::Source;
use crate::waiters::Offered;
use parking_lot::Mutex;
use rockdove_messages::{Message, MessageId};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

/// The topics a lane serves.
pub(crate) enum Reach {
    /// Every listened topic.
    AllTopics,
    /// These, sorted: topics whose collection is the lane's. Different topics can share one.
    Topics(Mutex<Arc<Vec<String>>>),
}

/// One collection of messages, and the work on it.
pub(crate) struct Lane {
    pub(crate) node: Arc<Node>,
    /// Where the messages are.
    collection: String,
    /// Where the locks of its exclusive messages are. `None` where this node is the only reader: a mark decides.
    locks: Option<String>,
    reach: Reach,
    core: Mutex<LaneCore>,
    /// The poll loop looks again.
    wake: Notify,
    /// Something ended.
    ended: Notify,
    /// The topics the last poll asked for.
    polled: watch::Sender<Option<Arc<Vec<String>>>>,
    /// When the message stream was last established, wall clock.
    established_ms: AtomicI64,
    /// Exclusive messages that were to be removed, of which something stays for a while.
    kept: Mutex<kept::Kept>,
    /// The poll loop.
    looping: Mutex<Option<AbortHandle>>,
}

impl Lane {
    pub(crate) fn new(node: Arc<Node>, collection: String, locks: Option<String>, reach: Reach) -> Arc<Self> {
        let settings = &node.settings;
        let (window, queue) = (settings.window_size, settings.queue_max.max(settings.window_size));
        let limits = Limits { window, queue, workers: settings.workers() };
        let timing = Timing {
            pause: settings.poll_pause,
            fallback: settings.fallback_poll_interval,
            streams: settings.use_change_stream,
        };
        Arc::new(Self {
            collection,
            locks,
            reach,
            core: Mutex::new(LaneCore::new(limits, timing, clock::now())),
            wake: Notify::new(),
            ended: Notify::new(),
            polled: watch::Sender::default(),
            established_ms: AtomicI64::new(i64::MAX),
            kept: Mutex::default(),
            looping: Mutex::default(),
            node,
        })
    }

    pub(crate) fn collection(&self) -> &str {
        &self.collection
    }

    pub(crate) fn locks(&self) -> Option<&str> {
        self.locks.as_deref()
    }

    /// Starts the poll loop. Indexes first: polls and expiry need them.
    pub(crate) fn start(self: &Arc<Self>) {
        self.urge_poll();
        let lane = self.clone();
        let run = move || {
            let lane = lane.clone();
            async move {
                lane.node.index_messages(&lane.collection).await;
                if let Some(locks) = &lane.locks {
                    lane.node.index_locks(locks).await;
                }
                lane.poll_loop().await;
            }
        };
        *self.looping.lock() = Some(self.node.spawn_loop("poll", run));
    }

    /// Takes no new work; what runs goes on.
    pub(crate) fn stop(&self) {
        if let Some(looping) = self.looping.lock().take() {
            looping.abort();
        }
        self.core.lock().clear_queue();
    }

    /// The topics served now.
    fn topics(&self) -> Arc<Vec<String>> {
        match &self.reach {
            Reach::AllTopics => self.node.listeners.topics(),
            Reach::Topics(topics) => topics.lock().clone(),
        }
    }

    fn serves(&self, topic: &str) -> bool {
        match &self.reach {
            Reach::AllTopics => self.node.listeners.has(topic),
            Reach::Topics(topics) => topics.lock().iter().any(|known| known == topic),
        }
    }

    /// Serves one more topic, if the lane's are counted out.
    pub(crate) fn reach_also(&self, topic: &str) {
        let Reach::Topics(topics) = &self.reach else { return };
        let mut topics = topics.lock();
        if let Err(place) = topics.binary_search_by(|known| known.as_str().cmp(topic)) {
            Arc::make_mut(&mut topics).insert(place, topic.to_owned());
        }
    }

    /// Drops topics nobody listens to; false when none is left.
    pub(crate) fn keep_topics(&self, listened: impl Fn(&str) -> bool) -> bool {
        let Reach::Topics(topics) = &self.reach else { return true };
        let mut topics = topics.lock();
        if !topics.iter().all(|topic| listened(topic)) {
            Arc::make_mut(&mut topics).retain(|topic| listened(topic));
        }
        !topics.is_empty()
    }

    /// Returns once a poll has asked for every topic registered so far.
    pub(crate) async fn polled(&self) {
        let mut polled = self.polled.subscribe();
        let complete = |topics: &Option<Arc<Vec<String>>>| topics.as_ref() == Some(&self.topics());
        // The sender lives in `self`, so waiting cannot fail.
        let _ = polled.wait_for(complete).await;
    }

    /// A stream that concerns this lane was opened: catch up with what it did not announce.
    pub(crate) fn stream_established(&self, source: Source) {
        let mut core = self.core.lock();
        if source != Source::Locks {
            self.established_ms.store(self.node.now_ms(), Ordering::Relaxed);
            core.stream_established(clock::now());
        }
        if matches!(source, Source::Locks | Source::Topics) {
            core.lock_released(None);
        }
        self.wake.notify_one();
    }

    /// An event of the message stream.
    pub(crate) fn on_event(self: &Arc<Self>, event: ChangeEvent) {
        let now = clock::now();
        self.core.lock().event_arrived(now);
        match event.change {
            Change::Insert => return self.on_insert(event),
            Change::Update => self.core.lock().requeued(event.id.as_ref(), now),
            Change::LockReleased => self.core.lock().lock_released(None),
            Change::Delete | Change::Dropped | Change::Other => return,
        }
        self.wake.notify_one();
    }

    /// An event of the lock stream.
    pub(crate) fn on_lock_event(&self, event: &ChangeEvent) {
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
        let (priority, timestamp, exclusive) = (message.priority, message.timestamp, message.exclusive);
        let since = clock::now();
        let element =
            Element { id, priority, timestamp, exclusive, snapshot: Some(Box::new(message)), since };
        let offer = self.core.lock().offer(element, since);
        if offer == Offer::Queued {
            self.pump();
        }
    }

    /// Hands an answer to its caller at once; the mark is written afterwards, and the message stays in progress
    /// until it is.
    fn take_answer(self: &Arc<Self>, answer: Message) {
        let Some(id) = answer.id.clone() else { return };
        if answer.is_processed_by(&self.node.me) || !self.core.lock().begin_answer(&id, clock::now()) {
            return;
        }
        let ticket = Ticket { lane: self.clone(), id, outcome: Outcome::Retry, worker: false };
        self.settle_answer(answer, ticket);
    }

    fn settle_answer(self: &Arc<Self>, answer: Message, ticket: Ticket) {
        match self.node.waiters.offer(&answer) {
            offered @ (Offered::Taken | Offered::Repeated) => {
                if offered == Offered::Taken && answer.topic == self.node.settings.status_info_topic {
                    self.node.registry.note(&answer);
                }
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
        while self.node.life.is_running() && self.core.lock().has_next() {
            if !self.node.workers.take(self) {
                return; // called again when one is free
            }
            let Some(element) = self.core.lock().next() else {
                return self.node.give_worker_back();
            };
            let id = element.id.clone();
            let ticket = Ticket { lane: self.clone(), id, outcome: Outcome::Retry, worker: true };
            self.node.runtime.spawn(self.clone().process(element, ticket));
        }
    }

    /// A worker is free, and it is this lane's turn.
    pub(crate) fn resume(self: &Arc<Self>) {
        self.pump();
    }

    /// Polls at once: topics or pauses changed.
    pub(crate) fn urge_poll(&self) {
        self.core.lock().urge_poll();
        self.wake.notify_one();
    }

    pub(crate) fn depth(&self) -> Depth {
        self.core.lock().depth()
    }

    /// Whether nothing is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.core.lock().is_idle()
    }

    /// Drops what is queued, and waits for what is in progress.
    pub(crate) async fn drain(&self) {
        self.core.lock().clear_queue();
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.is_idle() {
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
    /// Whether it occupies a worker.
    worker: bool,
}

impl Ticket {
    fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let now = clock::now();
        let wait = {
            let mut core = self.lane.core.lock();
            core.finish(&self.id, self.outcome, now);
            core.poll_wait(now)
        };
        if wait < self.lane.node.settings.poll_pause {
            self.lane.wake.notify_one(); // the poll loop sleeps for a whole tick at most
        }
        self.lane.ended.notify_waiters();
        if self.worker {
            self.lane.node.give_worker_back();
        }
        self.lane.pump();
    }
}
