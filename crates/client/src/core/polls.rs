//! When to poll, and when a stream looks dead.

use std::time::{Duration, Instant};

/// Shortest time between two polls that something asked for at once.
const URGENT_GAP: Duration = Duration::from_millis(5);

/// The periods of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Housekeeping tick; the poll period when there is no stream.
    pub pause: Duration,
    /// Safety poll behind a stream.
    pub fallback: Duration,
    /// Whether a stream announces messages.
    pub streams: bool,
}

/// What the queue could take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// Less than a window is queued.
    Plenty,
    /// There is enough to do, and room for more.
    Some,
    /// It is full.
    None,
}

/// The poll schedule of one lane.
pub(super) struct Polls {
    timing: Timing,
    last: Instant,
    /// A poll is wanted on the next tick.
    requested: bool,
    /// A poll is wanted at once.
    urgent: bool,
    /// The last poll was full or an event found the queue full: poll as soon as there is room.
    more: bool,
    /// Announced messages were dropped for want of room; polls still find them.
    overflowed: bool,
    last_event: Instant,
    last_restart: Instant,
    missed: bool,
}

impl Polls {
    /// The first poll is due at once: it catches up.
    pub(super) fn new(timing: Timing, now: Instant) -> Self {
        Self {
            timing,
            last: now,
            requested: false,
            urgent: true,
            more: false,
            overflowed: false,
            last_event: now,
            last_restart: now,
            missed: false,
        }
    }

    pub(super) fn fallback(&self) -> Duration {
        self.timing.fallback
    }

    /// Whether nothing but polls finds messages.
    pub(super) fn are_all(&self) -> bool {
        !self.timing.streams
    }

    pub(super) fn last(&self) -> Instant {
        self.last
    }

    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    pub(super) fn urge(&mut self) {
        self.urgent = true;
    }

    /// An announced message found no room.
    pub(super) fn overflow(&mut self) {
        self.more = true;
        self.overflowed = true;
    }

    /// Whether announced messages were dropped that polls have not all found yet.
    pub(super) fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    pub(super) fn event_arrived(&mut self, now: Instant) {
        self.last_event = now;
        self.missed = false;
    }

    /// Time until the next poll. As long as there is enough to do the next look is one tick away; only the safety
    /// poll goes on, because what no stream announced must not wait until the queue is empty.
    pub(super) fn wait(&self, now: Instant, room: Room, due: Option<Instant>) -> Duration {
        let pause = self.timing.pause;
        let after = |gap: Duration| (self.last + gap).saturating_duration_since(now);
        match room {
            Room::Plenty => {}
            Room::Some if after(self.timing.fallback).is_zero() => return Duration::ZERO,
            Room::Some | Room::None => return pause,
        }
        if self.urgent || self.more {
            return after(URGENT_GAP.min(pause));
        }
        let period = if self.timing.streams { self.timing.fallback } else { pause };
        let regular = after(if self.requested { pause.min(period) } else { period });
        due.map_or(regular, |due| regular.min(due.saturating_duration_since(now)))
    }

    /// A poll starts: what was asked for until now is served by it.
    pub(super) fn begin(&mut self, now: Instant) {
        self.last = now;
        (self.requested, self.urgent, self.more) = (false, false, false);
    }

    /// A poll ended: it may have left something behind, and it may have found what no event announced.
    pub(super) fn end(&mut self, full: bool, missed: bool) {
        self.missed |= missed && !self.overflowed;
        self.overflowed &= full || self.more;
        self.more |= full;
    }

    pub(super) fn is_stalled(&mut self, now: Instant) -> bool {
        let limit = self.timing.fallback * 2;
        let silent = now.saturating_duration_since(self.last_event) >= limit;
        let rested = now.saturating_duration_since(self.last_restart) >= limit;
        let stalled = self.timing.streams && self.missed && silent && rested;
        if stalled {
            self.last_restart = now;
            self.missed = false;
        }
        stalled
    }
}
