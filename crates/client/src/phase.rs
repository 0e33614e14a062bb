//! The life of a bus, as everything inside it sees it.
//!
//! ```text
//! running ──shutdown──► draining ──grace over──► interrupting ──► stopped
//!                          └────────────── all work ended ───────────▲
//! ```
//!
//! Draining: no new work is taken, running listeners go on, and may still send and receive answers.
//! Interrupting: running listeners are cancelled, their exclusive messages un-marked and released.

use std::time::Duration;
use tokio::sync::watch;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    Running,
    Draining,
    Interrupting,
    Stopped,
}

/// The current phase; it only ever advances.
pub(crate) struct Life {
    phase: watch::Sender<Phase>,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self { phase: watch::Sender::new(Phase::Running) }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Whether new work is taken.
    pub(crate) fn is_running(&self) -> bool {
        self.phase() == Phase::Running
    }

    /// Advances to `phase`; false when it was reached before.
    pub(crate) fn advance(&self, phase: Phase) -> bool {
        self.phase.send_if_modified(|current| {
            let advances = *current < phase;
            if advances {
                *current = phase;
            }
            advances
        })
    }

    /// Returns once `phase` is reached.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = phases.wait_for(|current| *current >= phase).await;
    }

    /// Sleeps, or returns false as soon as `phase` is reached.
    pub(crate) async fn sleep_unless(&self, phase: Phase, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.reached(phase)).await.is_err()
    }
}
