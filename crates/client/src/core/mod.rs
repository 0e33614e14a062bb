//! The decisions of one lane, without I/O and without a clock: callers pass `now`.
//!
//! A lane is one collection of messages. Its life of a message:
//!
//! ```text
//!   stream event ─┐                        ┌─► done (broadcasts: remembered)
//!                 ├─► queued ─► in progress┤
//!   poll result ──┘                        └─► waiting ─(due, released, requeued)─► found by a poll again
//! ```
//!
//! Invariants
//! * A message is in at most one of queued, in progress, waiting: event against poll, event against event, resume
//!   overlap and parallel polls never process one message twice at a time.
//! * At most `queue` messages are queued; what does not fit is dropped here and found by a poll later. A poll reads
//!   the whole collection in the worst case, so one after such a loss fills the queue again, not only a window.
//! * Documents are kept for the first [`SNAPSHOTS_MAX`] queued messages only; the others are read when their turn comes.
//! * At most `workers` elements are in progress through [`LaneCore::next`]; awaited answers do not count, so a full
//!   worker pool never delays a caller that waits for an answer.
//! * Every list a poll sends to the server is bounded: [`SKIP_MAX`].

mod judge;
mod memory;
mod polls;
mod waiting;

pub(crate) use judge::{Drop, Verdict, View, judge};
pub(crate) use polls::Timing;

use memory::{Recent, Seen};
use polls::{Polls, Room};
use rockdove_messages::{Message, MessageId};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use waiting::{Reason, Waiting};

/// How long a processed message is remembered. A broadcast that polls find unmarked meanwhile is remembered for longer, so
/// that this instance never delivers it twice.
const MEMORY: Duration = Duration::from_secs(30 * 60);
/// Most broadcasts, and most exclusive messages, remembered; about 100 bytes each.
const RECENT_MAX: usize = 100_000;
/// Stream events remembered against duplicates after a resume.
const SEEN_MAX: usize = 1000;
/// Most messages that wait for their next try; each is an id in every poll.
const WAITING_MAX: usize = 1000;
/// Most queued messages whose documents are kept.
const SNAPSHOTS_MAX: usize = 1000;
/// Most ids a poll names that it does not want. It asks for as many more messages as it could not name.
const SKIP_MAX: usize = 1000;
/// Claims lost one after the other, after which a lane without streams gives up what else it has found so far.
const LOSSES_MAX: u32 = 8;
/// First pause of a message that failed here, doubled with each failure.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest such pause.
const RETRY_LONGEST: Duration = Duration::from_secs(60);
/// First pause after a claim was lost to another node.
const LOST_FIRST: Duration = Duration::from_secs(1);

/// When other nodes compete, an exclusive message that was queued longer than this may be theirs by now.
const DOUBT_AFTER: Duration = Duration::from_millis(2);

/// The limits of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most elements one poll takes.
    pub window: usize,
    /// Most elements queued; at least a window.
    pub queue: usize,
    /// Most elements in progress at a time.
    pub workers: usize,
}

/// Where an element stands in the queue: priority, then age, then id.
type Order = (i32, i64, MessageId);

/// One message to process.
#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub id: MessageId,
    pub priority: i32,
    /// Send time, ms since the epoch, by the sender's clock.
    pub timestamp: i64,
    /// Whether one node is to process it.
    pub exclusive: bool,
    /// The document, when a stream event brought it; else it is read when its turn comes.
    pub snapshot: Option<Box<Message>>,
    /// When it was queued.
    pub since: Instant,
}

/// How the processing of an element ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Marked, gone, or nothing of ours.
    Done,
    /// An exclusive message that another node processed.
    Taken,
    /// A broadcast this instance has had.
    Delivered,
    /// An exclusive message this instance has processed; it may be requeued and come again.
    Processed,
    /// A broadcast whose listener failed: it has had its chance, but it carries no mark.
    Failed,
    /// Nobody listens to it here (any more), or it is past its life; looked at again later.
    Unlistened,
    /// Another node holds the claim.
    Lost,
    /// To be tried again here after a growing pause.
    Retry,
    /// To be offered again, no sooner than the fallback poll.
    Reoffer,
    /// Put back because its topic is paused.
    Paused,
    /// Unreadable.
    Poison,
}

/// What became of an offered stream element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    /// It is queued.
    Queued,
    /// Known already.
    Known,
    /// The queue is full; a poll will find it.
    Full,
}

/// Numbers for status answers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Depth {
    pub queued: usize,
    pub in_progress: usize,
    pub running: usize,
    pub completed: u64,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    /// Occupies a worker.
    running: bool,
    /// A lock release or a requeue arrived while it was in progress.
    woken: bool,
}

/// The state of one lane.
pub(crate) struct LaneCore {
    limits: Limits,
    queue: BTreeMap<Order, Element>,
    queued: HashMap<MessageId, Order>,
    in_progress: HashMap<MessageId, Progress>,
    running: usize,
    completed: u64,
    seen: Seen,
    broadcasts: Recent,
    exclusives: Recent,
    waiting: Waiting,
    polls: Polls,
    /// How many elements the running poll asked for.
    polling: usize,
    /// The last claim went to another node: they compete for what is queued here.
    contended: bool,
    /// Claims that went to other nodes since one of ours.
    losses: u32,
}

impl LaneCore {
    pub(crate) fn new(limits: Limits, timing: Timing, now: Instant) -> Self {
        Self {
            limits,
            queue: BTreeMap::new(),
            queued: HashMap::new(),
            in_progress: HashMap::new(),
            running: 0,
            completed: 0,
            seen: Seen::new(SEEN_MAX),
            broadcasts: Recent::new(RECENT_MAX, MEMORY),
            exclusives: Recent::new(RECENT_MAX, MEMORY),
            waiting: Waiting::new(WAITING_MAX),
            polls: Polls::new(timing, now),
            polling: limits.window,
            contended: false,
            losses: 0,
        }
    }

    /// The stream is alive: it brought an event.
    pub(crate) fn event_arrived(&mut self, now: Instant) {
        self.polls.event_arrived(now);
    }

    /// A stream announced a message.
    pub(crate) fn offer(&mut self, mut element: Element, now: Instant) -> Offer {
        // An insert is announced once: what was processed here, say after a poll found it, is announced late. Its
        // snapshot still looks unmarked.
        let had = self.seen.contains(&element.id) || self.exclusives.contains(&element.id, now);
        if had || self.is_known(&element.id, now) {
            return Offer::Known;
        }
        if self.queue.len() >= self.limits.queue {
            self.polls.overflow();
            return Offer::Full;
        }
        if self.queue.len() >= SNAPSHOTS_MAX {
            element.snapshot = None;
        }
        self.seen.insert(&element.id);
        self.enqueue(element);
        Offer::Queued
    }

    /// Takes an awaited answer past the queue. False when it is known already.
    pub(crate) fn begin_answer(&mut self, id: &MessageId, now: Instant) -> bool {
        if self.is_known(id, now) {
            return false;
        }
        self.in_progress.insert(id.clone(), Progress::default());
        true
    }

    /// Whether there is an element to process.
    pub(crate) fn has_next(&self) -> bool {
        self.running < self.limits.workers && !self.queue.is_empty()
    }

    /// The next element to process, if a worker is free.
    pub(crate) fn next(&mut self) -> Option<Element> {
        if self.running >= self.limits.workers {
            return None;
        }
        let (_, element) = self.queue.pop_first()?;
        self.queued.remove(&element.id);
        self.in_progress.insert(element.id.clone(), Progress { running: true, woken: false });
        self.running += 1;
        Some(element)
    }

    /// Processing of `id` ended.
    pub(crate) fn finish(&mut self, id: &MessageId, outcome: Outcome, now: Instant) {
        let Some(progress) = self.in_progress.remove(id) else { return };
        self.running -= usize::from(progress.running);
        self.completed += 1;
        let fallback = self.polls.fallback();
        match outcome {
            Outcome::Done => self.waiting.remove(id),
            Outcome::Taken => {
                self.waiting.remove(id);
                self.contended = true;
            }
            Outcome::Delivered => {
                self.waiting.remove(id);
                self.broadcasts.insert(id, now);
            }
            Outcome::Processed => {
                self.waiting.remove(id);
                self.exclusives.insert(id, now);
                self.contended = false;
            }
            Outcome::Failed => {
                self.broadcasts.insert(id, now);
                self.waiting.park(id, Reason::Had, now + MEMORY);
            }
            Outcome::Poison => self.waiting.park(id, Reason::Parked, now + MEMORY),
            Outcome::Unlistened => self.waiting.park(id, Reason::Unlistened, now + fallback),
            Outcome::Reoffer => self.waiting.back_off(id, Reason::Own, fallback, fallback * 8, now),
            Outcome::Retry => self.waiting.back_off(id, Reason::Own, RETRY_FIRST, RETRY_LONGEST, now),
            Outcome::Lost if progress.woken => {
                self.waiting.remove(id);
                self.polls.request();
                self.contended = true;
            }
            Outcome::Lost => {
                self.contended = true;
                self.waiting.back_off(id, Reason::Lost, LOST_FIRST, fallback.max(LOST_FIRST), now);
            }
            Outcome::Paused => self.waiting.remove(id),
        }
        match outcome {
            Outcome::Lost | Outcome::Taken => self.lose(now),
            Outcome::Processed => self.losses = 0,
            _ => {}
        }
        use Outcome::{Delivered, Done, Failed, Processed, Taken};
        if !matches!(outcome, Done | Taken | Delivered | Processed | Failed) {
            self.seen.forget(id); // it is to come again
        }
    }

    /// A claim went to another node. Nodes that poll find the same messages in the same order, and one with many workers
    /// claims all at once: who works on them one by one would be too late for each. After some losses what else was
    /// found is taken for lost, too, and the next poll looks for what the others have not found yet.
    fn lose(&mut self, now: Instant) {
        self.losses += 1;
        if self.losses < LOSSES_MAX || !self.polls.are_all() {
            return;
        }
        self.losses = 0;
        let longest = self.polls.fallback().max(LOST_FIRST);
        let lost = self.queue.extract_if(.., |_, element| element.exclusive);
        for (_, element) in lost {
            self.queued.remove(&element.id);
            self.waiting.back_off(&element.id, Reason::Lost, LOST_FIRST, longest, now);
        }
        self.polls.urge();
    }

    /// A lock was released: on `id`, or on an unknown message. Wakes only if a claim was lost here; releases are
    /// gathered into one poll per tick.
    ///
    /// What is queued here and was locked by another node is most likely processed. It leaves the queue: a node that
    /// is slower than the others would otherwise spend its time on claims that are lost before they are made. Should
    /// it have been given back, the poll finds it.
    pub(crate) fn lock_released(&mut self, id: Option<&MessageId>) {
        match id {
            Some(id) if self.queued.contains_key(id) => {
                if let Some(order) = self.queued.remove(id) {
                    self.queue.remove(&order);
                }
                self.contended = true;
                self.polls.request();
            }
            Some(id) if self.waiting.reason(id) == Some(Reason::Lost) => {
                self.waiting.remove(id);
                self.polls.request();
            }
            Some(id) => self.wake_in_progress(id),
            None if self.waiting.remove_all(Reason::Lost) => self.polls.request(),
            None => {}
        }
    }

    /// Somebody cleared the marks of `id`: poll at once, unless it was our own retry or a broadcast we have had.
    pub(crate) fn requeued(&mut self, id: Option<&MessageId>, now: Instant) {
        let Some(id) = id else { return self.polls.urge() };
        let parked = matches!(self.waiting.reason(id), Some(Reason::Own | Reason::Had));
        if parked || self.broadcasts.contains(id, now) {
            return;
        }
        self.wake_in_progress(id);
        self.waiting.remove(id);
        self.polls.urge();
    }

    /// Whether to look again at an exclusive message queued at `since` before claiming it.
    pub(crate) fn is_doubtful(&self, since: Instant, now: Instant) -> bool {
        self.contended && now.saturating_duration_since(since) > DOUBT_AFTER
    }

    /// Whether a claim on `id` was lost here before.
    pub(crate) fn was_lost(&self, id: &MessageId) -> bool {
        self.waiting.reason(id) == Some(Reason::Lost)
    }

    /// Whether this instance processed the exclusive message `id` a while ago.
    pub(crate) fn was_processed(&self, id: &MessageId, now: Instant) -> bool {
        self.exclusives.contains(id, now)
    }

    /// Asks for a poll at once: a cursor was established, a topic was added or unpaused.
    pub(crate) fn urge_poll(&mut self) {
        self.waiting.remove_all(Reason::Unlistened);
        self.polls.urge();
    }

    /// How long until the next poll is due; zero = now. A full queue is not polled for.
    pub(crate) fn poll_wait(&self, now: Instant) -> Duration {
        let room = match self.queue.len() {
            few if few < self.limits.window => Room::Plenty,
            many if many < self.limits.queue => Room::Some,
            _ => Room::None,
        };
        self.polls.wait(now, room, self.waiting.next_due(self.polls.last()))
    }

    /// A poll starts: the ids it must not return, and how many elements it may.
    pub(crate) fn begin_poll(&mut self, now: Instant) -> (Vec<MessageId>, usize) {
        self.polls.begin(now);
        self.waiting.purge(now);
        self.broadcasts.purge(now);
        self.exclusives.purge(now);
        let busy = self.in_progress.keys().chain(self.waiting.not_due(now));
        let queued = self.queue.values().map(|element| &element.id);
        let skip: Vec<_> = busy.chain(queued).take(SKIP_MAX).cloned().collect();
        let known = self.in_progress.len() + self.waiting.not_due(now).count() + self.queue.len();
        // Where nodes compete, what is queued far ahead would be gone when its turn comes.
        self.polling = match self.polls.has_overflowed() && !self.contended {
            true => self.limits.queue.saturating_sub(self.queue.len()).max(self.limits.window),
            false => self.limits.window,
        } + (known - skip.len());
        (skip, self.polling)
    }

    /// A poll came back. `announced` tells which elements a live stream should have brought.
    pub(crate) fn end_poll(
        &mut self,
        found: Vec<Element>,
        announced: impl Fn(&Element) -> bool,
        now: Instant,
    ) {
        let full = found.len() >= self.polling;
        let mut missed = false;
        for element in found {
            let parked = self.waiting.reason(&element.id) == Some(Reason::Had); // for longer than the memory lasts
            if parked || self.broadcasts.contains(&element.id, now) {
                self.waiting.park(&element.id, Reason::Had, now + MEMORY);
            } else if !self.is_known(&element.id, now) {
                missed |= announced(&element) && !self.waiting.is_listed(&element.id);
                match self.queue.len() < self.limits.queue {
                    true => self.enqueue(element),
                    false => self.polls.overflow(), // events filled the queue meanwhile
                }
            }
        }
        self.polls.end(full, missed);
    }

    /// A poll failed: try again on a later tick.
    pub(crate) fn poll_failed(&mut self) {
        self.polls.request();
    }

    /// Whether the stream looks dead: polls find what it should have announced, and it has been silent for two
    /// fallback intervals. True once per such span.
    pub(crate) fn is_stalled(&mut self, now: Instant) -> bool {
        self.polls.is_stalled(now)
    }

    /// The stream was established anew.
    pub(crate) fn stream_established(&mut self, now: Instant) {
        self.polls.event_arrived(now);
        self.polls.urge();
    }

    /// Whether a listener call may still be running.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_progress.is_empty()
    }

    /// Forgets what is queued: the lane takes no new work.
    pub(crate) fn clear_queue(&mut self) {
        self.queue.clear();
        self.queued.clear();
    }

    pub(crate) fn depth(&self) -> Depth {
        Depth {
            queued: self.queue.len(),
            in_progress: self.in_progress.len(),
            running: self.running,
            completed: self.completed,
        }
    }

    fn enqueue(&mut self, element: Element) {
        let order = (element.priority, element.timestamp, element.id.clone());
        self.queued.insert(element.id.clone(), order.clone());
        self.queue.insert(order, element);
    }

    fn is_known(&self, id: &MessageId, now: Instant) -> bool {
        self.queued.contains_key(id)
            || self.in_progress.contains_key(id)
            || self.broadcasts.contains(id, now)
            || self.waiting.is_waiting(id, now)
    }

    fn wake_in_progress(&mut self, id: &MessageId) {
        if let Some(progress) = self.in_progress.get_mut(id) {
            progress.woken = true;
        }
    }
}

#[cfg(test)]
mod tests;
