//! What could be logged thousands of times a second is told once a minute, with how often it was left out.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(60);

/// One kind of event that is told rarely.
#[derive(Debug, Default)]
pub struct Rarely(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    left_out: u64,
}

impl Rarely {
    /// If it is time to tell the event: how many of its kind were left out since the last that was told.
    pub fn tell(&self) -> Option<u64> {
        self.tell_at(Instant::now())
    }

    fn tell_at(&self, now: Instant) -> Option<u64> {
        let mut told = self.0.lock();
        if told.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            told.left_out += 1;
            return None;
        }
        told.last = Some(now);
        Some(std::mem::take(&mut told.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_minute_with_how_many_were_left_out() {
        let (events, start) = (Rarely::default(), Instant::now());
        let at = |seconds| events.tell_at(start + Duration::from_secs(seconds));
        assert_eq!(
            [at(0), at(1), at(59), at(60), at(119), at(500)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }
}
