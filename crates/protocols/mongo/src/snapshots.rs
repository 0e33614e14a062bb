//! Snapshots that were read: kept for a while, so that a session can go on reading the same moment
//! (MongoDB manual: read concern "snapshot").
//!
//! Only moments that some reader was told of can be asked for again, so only those are kept. A snapshot shares
//! all that has not changed since with the state of now; what has changed stays in memory as long as it is kept.
//! Never reads a clock: callers pass `now`.

use parking_lot::Mutex;
use rockdove_documents::Timestamp;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a snapshot is kept after it was last read (MongoDB's `minSnapshotHistoryWindowInSeconds`).
pub const KEPT: Duration = Duration::from_secs(300);
/// Most snapshots kept; the one that was not read for the longest time goes.
pub const SNAPSHOTS_MAX: usize = 64;

/// Snapshots by their time, the last read one at the end.
#[derive(Debug)]
pub struct Snapshots<S> {
    kept: Mutex<VecDeque<(Timestamp, Arc<S>, Instant)>>,
}

impl<S> Default for Snapshots<S> {
    fn default() -> Snapshots<S> {
        Snapshots { kept: Mutex::default() }
    }
}

impl<S> Snapshots<S> {
    /// Keeps the state of a time.
    pub fn keep(&self, time: Timestamp, state: &Arc<S>, now: Instant) {
        let mut kept = self.kept.lock();
        kept.retain(|(other, _, _)| *other != time);
        if kept.len() >= SNAPSHOTS_MAX {
            kept.pop_front();
        }
        kept.push_back((time, state.clone(), now));
    }

    /// The state of a time, if it is kept.
    pub fn get(&self, time: Timestamp, now: Instant) -> Option<Arc<S>> {
        let state =
            self.kept.lock().iter().find(|(other, _, _)| *other == time).map(|(_, state, _)| state.clone());
        if let Some(state) = &state {
            self.keep(time, state, now);
        }
        state
    }

    /// Lets the snapshots go that were not read for [`KEPT`].
    pub fn expire(&self, now: Instant) {
        self.kept.lock().retain(|(_, _, read)| now.saturating_duration_since(*read) < KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(increment: u32) -> Timestamp {
        Timestamp { time: 1, increment }
    }

    #[test]
    fn snapshots_are_kept_while_they_are_read() {
        let (snapshots, start) = (Snapshots::default(), Instant::now());
        snapshots.keep(at(1), &Arc::new("one"), start);
        snapshots.keep(at(2), &Arc::new("two"), start);
        assert_eq!(snapshots.get(at(1), start + KEPT / 2).as_deref(), Some(&"one"));
        snapshots.expire(start + KEPT);
        assert_eq!(snapshots.get(at(2), start + KEPT), None);
        assert!(snapshots.get(at(1), start + KEPT).is_some());
    }

    #[test]
    fn the_longest_unread_goes_first() {
        let (snapshots, now) = (Snapshots::default(), Instant::now());
        for n in 0..SNAPSHOTS_MAX as u32 {
            snapshots.keep(at(n), &Arc::new(n), now);
        }
        assert!(snapshots.get(at(0), now).is_some());
        snapshots.keep(at(1000), &Arc::new(1000), now);
        assert!(snapshots.get(at(0), now).is_some());
        assert!(snapshots.get(at(1), now).is_none());
    }
}
