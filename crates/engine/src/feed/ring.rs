//! The feed's ring: recent events, the oldest of which go when there are too many.

use crate::event::Event;
use rockdove_documents::Timestamp;
use std::collections::VecDeque;
use std::sync::Arc;

/// So many of the newest events are looked at before the others are searched.
const NEAR: usize = 8;
/// Most events the ring keeps, whatever their size.
const RING_EVENTS_MAX: usize = 1_000_000;

/// Recent events.
pub struct Ring {
    pub events: VecDeque<Arc<Event>>,
    pub bytes: usize,
    pub bytes_max: usize,
    /// Bytes of all events that were dropped.
    pub dropped: u64,
    /// Everything later than this is in the ring.
    pub complete_after: Timestamp,
    pub last: Timestamp,
}

impl Ring {
    /// Drops the oldest events until the limits hold; the newest one always stays.
    pub fn trim(&mut self) {
        while self.events.len() > 1 && (self.bytes > self.bytes_max || self.events.len() > RING_EVENTS_MAX) {
            if let Some(event) = self.events.pop_front() {
                let bytes = event.bytes();
                self.bytes -= bytes;
                self.dropped += bytes as u64;
                self.complete_after = event.at;
            }
        }
    }

    /// Up to `count_max` events after `after`.
    pub fn after(&self, after: Timestamp, count_max: usize) -> Vec<Arc<Event>> {
        // Who asks is mostly almost up to date.
        let newer = self.events.iter().rev().take(NEAR).take_while(|event| event.at > after).count();
        let start = match newer {
            NEAR => self.events.partition_point(|event| event.at <= after),
            _ => self.events.len() - newer,
        };
        self.events.range(start..).take(count_max).cloned().collect()
    }
}
