//! When messages are meant to be sent: a thread that keeps to the times of an open loop.

use std::time::{Duration, Instant};

/// Sleeping ends late by about this much; the rest is waited for awake.
const SLEEP_ERROR: Duration = Duration::from_micros(80);

/// Calls `due` for message 0, 1, 2, … at its time, `rate` a second, for as long as `duration` lasts. Late is caught up
/// with at once, and each call is told the time that was meant. How many there were.
pub fn keep(rate: f64, duration: Duration, mut due: impl FnMut(u64, Instant)) -> u64 {
    let count = (rate * duration.as_secs_f64()).round() as u64;
    let start = Instant::now();
    for n in 0..count {
        let at = start + Duration::from_secs_f64(n as f64 / rate);
        wait_until(at);
        due(n, at);
    }
    count
}

fn wait_until(at: Instant) {
    loop {
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match left.checked_sub(SLEEP_ERROR) {
            Some(asleep) if !asleep.is_zero() => std::thread::sleep(asleep),
            _ => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_messages_come_in_order_and_none_before_its_time() {
        let mut seen = Vec::new();
        let count = keep(2000.0, Duration::from_millis(50), |n, at| {
            assert!(Instant::now() >= at);
            seen.push((n, at));
        });
        assert_eq!(count, 100);
        assert!(seen.iter().map(|(n, _)| *n).eq(0..100));
        assert!(seen.is_sorted_by_key(|(_, at)| *at));
    }
}
