//! The change feed: recent events in order, and the streams that follow them.
//!
//! ```text
//! sequencer ─ publish ─► ring ─► dispatcher thread ─► one group a distinct pipeline ─► its streams
//! ```
//!
//! The dispatcher evaluates each distinct pipeline at most once per event, away from the sequencer, and wakes only
//! the streams of groups that matched (`groups.rs`). While few pipelines are followed, whoever publishes a few events
//! delivers them at once instead: that costs less than waking the dispatcher, and the streams hear of it sooner. A
//! stream that lags behind what its group remembers reads the ring itself, and so does the stream of a pipeline that
//! may take long: on a thread of its own, so that it holds up itself only.
//!
//! Invariants
//! * Every stream sees events in the log's order, each at most once; a position is a time in the log.
//! * A slow stream holds a position, not events. When its position falls out of the ring, it gets
//!   `ChangeStreamHistoryLost` and nobody else notices.
//! * Publishing never waits for a stream, nor does any stream for another one's pipeline.

mod ring;
mod stream;

pub use stream::{Batch, ChangeStream};

use crate::event::{Event, View};
use crate::groups::{EventPipeline, Group, GroupKey, Groups, Scope};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use ring::Ring;
use rockdove_documents::{Error, Result, Timestamp, code};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How many events are delivered in one go; streams open between two goes.
const DELIVERY_MAX: usize = 64;
/// Up to so many distinct pipelines, and so many undelivered events, are delivered by whoever publishes.
const DELIVER_AT_ONCE_MAX: usize = 4;
/// So many streams do so at one time; more wait for their turn.
const ASIDE_MAX: usize = 4;
/// The groups let go of what the ring has dropped once this part of its limit was dropped.
const FORGET_SHARE: usize = 16;

/// The feed.
pub struct Feed {
    shared: Arc<Shared>,
    dispatcher: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    ring: RwLock<Ring>,
    groups: Mutex<Groups>,
    /// Whether some group lost its last stream.
    abandoned: AtomicBool,
    /// Every group was given every event up to here.
    dispatched: AtomicU64,
    /// Bytes that the ring had dropped when the groups last let go of what it dropped. Moved like the mark.
    forgotten: AtomicU64,
    stopping: AtomicBool,
    /// Turns for streams that evaluate events themselves.
    aside: Arc<Semaphore>,
    wake: (Mutex<()>, Condvar),
    epoch: u32,
}

/// What the ring holds, for status pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct FeedStats {
    /// Events in the ring.
    pub events: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Bytes allowed.
    pub bytes_max: usize,
    /// Distinct pipelines being followed.
    pub groups: usize,
    /// Streams may resume after this time.
    pub complete_after: Timestamp,
    /// Time of the newest event.
    pub last: Timestamp,
}

impl Feed {
    /// Starts the feed of a log whose last effect happened at `last`.
    pub fn start(epoch: u32, last: Timestamp, bytes_max: usize) -> std::io::Result<Feed> {
        let ring =
            Ring { events: VecDeque::new(), bytes: 0, bytes_max, dropped: 0, complete_after: last, last };
        let shared = Arc::new(Shared {
            ring: RwLock::new(ring),
            groups: Mutex::default(),
            abandoned: AtomicBool::new(false),
            dispatched: AtomicU64::new(last.bits()),
            forgotten: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            aside: Arc::new(Semaphore::new(ASIDE_MAX)),
            wake: (Mutex::new(()), Condvar::new()),
            epoch,
        });
        let worker = shared.clone();
        let thread = std::thread::Builder::new().name("feed".into()).spawn(move || worker.dispatch())?;
        Ok(Feed { shared, dispatcher: Mutex::new(Some(thread)) })
    }

    /// Takes in the events of a batch, which are in order and newer than all before.
    pub fn publish(&self, events: Vec<Arc<Event>>, upto: Timestamp) {
        let mut ring = self.shared.ring.write();
        ring.bytes += events.iter().map(|event| event.bytes()).sum::<usize>();
        ring.events.extend(events);
        ring.last = upto;
        ring.trim();
        drop(ring);
        if !self.shared.deliver_at_once() {
            self.shared.wake();
        }
    }

    /// Puts events from before the start of the feed in front: the log's recent history.
    pub fn preload(&self, events: Vec<Event>, complete_after: Timestamp) {
        let mut ring = self.shared.ring.write();
        for event in events.into_iter().rev() {
            ring.bytes += event.bytes();
            ring.events.push_front(Arc::new(event));
        }
        ring.complete_after = complete_after;
        ring.trim();
    }

    /// Opens a stream of what happens after `after`.
    pub fn follow(
        &self,
        scope: Scope,
        view: View,
        stages: bytes::Bytes,
        pipeline: Arc<dyn EventPipeline>,
        after: Timestamp,
    ) -> Result<ChangeStream> {
        self.shared.check_history(after)?;
        let group = self.shared.join(GroupKey { scope, view, stages }, pipeline);
        Ok(ChangeStream { shared: self.shared.clone(), group, position: after, owed: None, ended: false })
    }

    /// As [`Feed::follow`], after an event that its client has seen. If that event ended the stream, `invalidate` is
    /// what comes next. It is not known of an event that the history no longer holds.
    pub fn follow_event(
        &self,
        scope: Scope,
        view: View,
        stages: bytes::Bytes,
        pipeline: Arc<dyn EventPipeline>,
        seen: Timestamp,
    ) -> Result<ChangeStream> {
        let before = Timestamp::from_bits(seen.bits().saturating_sub(1));
        let event = self.shared.ring.read().after(before, 1).pop().filter(|event| event.at == seen);
        let owed = event.and_then(|event| scope.end_after(&event, self.shared.epoch));
        let mut stream = self.follow(scope, view, stages, pipeline, seen)?;
        stream.owed = owed;
        Ok(stream)
    }

    /// What the ring holds.
    pub fn stats(&self) -> FeedStats {
        let ring = self.shared.ring.read();
        FeedStats {
            events: ring.events.len(),
            bytes: ring.bytes,
            bytes_max: ring.bytes_max,
            groups: self.shared.groups().len(),
            complete_after: ring.complete_after,
            last: ring.last,
        }
    }

    /// Stops the dispatcher; streams then end with `ShutdownInProgress`.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.dispatcher.lock().take() {
            let _ = thread.join(); // a panic there was reported by the panic hook
        }
        let groups: Vec<_> = self.shared.groups.lock().iter().cloned().collect();
        groups.iter().for_each(|group| group.news.notify_waiters());
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn wake(&self) {
        let _guard = self.wake.0.lock();
        self.wake.1.notify_one();
    }

    fn check_history(&self, after: Timestamp) -> Result<()> {
        let complete_after = self.ring.read().complete_after;
        if after < complete_after {
            let lost = "ChangeStreamHistoryLost: Resume of change stream was not possible, as the resume point may no longer be in the oplog.";
            return Err(Error::new(code::CHANGE_STREAM_HISTORY_LOST, lost));
        }
        Ok(())
    }

    /// The group for `key`, made if there is none.
    fn join(&self, key: GroupKey, pipeline: Arc<dyn EventPipeline>) -> Arc<Group> {
        let mut groups = self.groups();
        let complete_after = Timestamp::from_bits(self.dispatched.load(Ordering::Acquire));
        groups.join(key, pipeline, complete_after)
    }

    /// The groups that are followed.
    fn groups(&self) -> MutexGuard<'_, Groups> {
        let mut groups = self.groups.lock();
        if self.abandoned.swap(false, Ordering::AcqRel) {
            groups.sweep();
        }
        groups
    }

    /// The dispatcher's loop.
    fn dispatch(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            if self.deliver(&self.groups(), DELIVERY_MAX) {
                continue;
            }
            let mut guard = self.wake.0.lock();
            let dispatched = Timestamp::from_bits(self.dispatched.load(Ordering::Acquire));
            if self.ring.read().last <= dispatched && !self.stopping.load(Ordering::Acquire) {
                self.wake.1.wait_for(&mut guard, Duration::from_secs(1));
            }
        }
    }

    /// Delivers what was just published, if that is little work and nobody else is at it. Otherwise the dispatcher
    /// has to be woken.
    fn deliver_at_once(&self) -> bool {
        let Some(groups) = self.groups.try_lock() else { return false };
        if groups.len() > DELIVER_AT_ONCE_MAX {
            return false;
        }
        self.deliver(&groups, DELIVER_AT_ONCE_MAX);
        self.dispatched.load(Ordering::Acquire) >= self.ring.read().last.bits()
    }

    /// Gives the groups up to `count_max` events that they have not seen and moves the mark; whether there were any.
    /// Only who holds the groups moves the mark, so that no event is given twice.
    fn deliver(&self, groups: &Groups, count_max: usize) -> bool {
        let from = Timestamp::from_bits(self.dispatched.load(Ordering::Acquire));
        let forgotten = self.forgotten.load(Ordering::Relaxed);
        let (events, last, forget) = {
            let ring = self.ring.read();
            let is_much = ring.dropped - forgotten > (ring.bytes_max / FORGET_SHARE) as u64;
            (ring.after(from, count_max), ring.last, is_much.then_some((ring.complete_after, ring.dropped)))
        };
        if let Some((upto, dropped)) = forget {
            groups.iter().for_each(|group| group.forget(upto));
            self.forgotten.store(dropped, Ordering::Relaxed);
        }
        // Fewer than asked for are all there are: times without an event are behind us too.
        let upto = match events.last() {
            Some(newest) if events.len() == count_max => newest.at,
            _ => last,
        };
        if upto <= from {
            return false;
        }
        let mut news = Vec::new();
        events.iter().for_each(|event| groups.deliver(event, self.epoch, &mut news));
        self.dispatched.store(upto.bits(), Ordering::Release);
        news.sort_unstable_by_key(Arc::as_ptr);
        news.dedup_by(|a, b| Arc::ptr_eq(a, b));
        news.iter().for_each(|group| group.news.notify_waiters());
        true
    }
}

fn shutting_down() -> Error {
    Error::new(code::SHUTDOWN_IN_PROGRESS, "The server is shutting down")
}

#[cfg(test)]
mod tests;
