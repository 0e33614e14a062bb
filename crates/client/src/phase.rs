//! The life of a bus, as everything inside it sees it.
//!
//! ```text
//! running ──shutdown──► draining ──grace over──► interrupting ──► stopped
//!                          └────────────── all work ended ───────────▲
//! ```
//!
//! Draining: no new work is taken, running listeners go on, and may still send and receive answers.
//! Interrupting: running listeners are cancelled, their exclusive messages un-marked and released.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    Running,
    Draining,
    Interrupting,
    Stopped,
}

/// The current phase; it only ever advances. Who waits for it is woken in the order of waiting, so that simulations can
/// be repeated (a `watch` wakes in random order).
pub(crate) struct Life {
    phase: Mutex<Phase>,
    advanced: Notify,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self { phase: Mutex::new(Phase::Running), advanced: Notify::new() }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.lock()
    }

    /// Whether new work is taken.
    pub(crate) fn is_running(&self) -> bool {
        self.phase() == Phase::Running
    }

    /// Advances to `phase`; false when it was reached before.
    pub(crate) fn advance(&self, phase: Phase) -> bool {
        {
            let mut current = self.phase.lock();
            if *current >= phase {
                return false;
            }
            *current = phase;
        }
        self.advanced.notify_waiters();
        true
    }

    /// Returns once `phase` is reached.
    pub(crate) async fn reached(&self, phase: Phase) {
        loop {
            let advanced = self.advanced.notified();
            tokio::pin!(advanced);
            advanced.as_mut().enable();
            if self.phase() >= phase {
                return;
            }
            advanced.await;
        }
    }

    /// Sleeps, or returns false as soon as `phase` is reached.
    pub(crate) async fn sleep_unless(&self, phase: Phase, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.reached(phase)).await.is_err()
    }
}
