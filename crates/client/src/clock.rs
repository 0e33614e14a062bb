//! The two clocks: the monotonic one, which is the runtime's, and the wall clock, which a node can be given.
//!
//! Nothing else in this crate asks what time it is. A paused runtime therefore stands still as a whole, and nodes of
//! one process can disagree about the date. Chance is kept out as well (`select!` is `biased`, what is iterated is
//! ordered), so that a simulation is the same run again, given the same events.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Tells the wall clock, ms since the epoch.
pub(crate) type WallClock = dyn Fn() -> i64 + Send + Sync;

/// The monotonic clock.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The monotonic time since `earlier`.
pub(crate) fn since(earlier: Instant) -> Duration {
    now().saturating_duration_since(earlier)
}

/// The system's wall clock, ms since the epoch.
pub(crate) fn system_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
