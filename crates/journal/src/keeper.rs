//! The thread that removes what the log's [`Retention`] lets go, after each completed segment and once a minute.
//!
//! It is a thread of its own because removing a large file takes the file system time, and because listeners may
//! copy the file first: neither may delay an append or a sync.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};

use crate::journal::{Journal, Shared};
use crate::retention::Retention;

/// How often it looks without being called: entries become old also while nothing is appended.
const EVERY: Duration = Duration::from_secs(60);

/// How the thread is called.
#[derive(Default)]
pub(crate) struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Default)]
struct BellState {
    called: bool,
    stop: bool,
}

impl Bell {
    /// Has the thread look soon. Never waits.
    pub(crate) fn ring(&self) {
        self.state.lock().called = true;
        self.rung.notify_one();
    }

    /// False if the thread has to end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.called && !state.stop {
            self.rung.wait_for(&mut state, EVERY);
        }
        state.called = false;
        !state.stop
    }
}

/// The running thread; dropping it ends and joins it.
pub(crate) struct Keeper {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(shared: &Arc<Shared>, policy: Retention) -> std::io::Result<Keeper> {
        let bell = Arc::new(Bell::default());
        *shared.keeper.lock() = Some(bell.clone());
        let (own, weak) = (bell.clone(), Arc::downgrade(shared));
        let run = move || {
            while own.wait() {
                // What a listener has not let go stays, and is told once more.
                if catch_unwind(AssertUnwindSafe(|| look(&weak, &policy))).is_err() {
                    tracing::error!(
                        "a listener panicked when it was told of an old segment, which stays for now"
                    );
                }
            }
        };
        let thread = std::thread::Builder::new().name("journal-keeper".into()).spawn(run)?;
        Ok(Keeper { bell, thread: Some(thread) })
    }
}

fn look(shared: &Weak<Shared>, policy: &Retention) {
    let Some(shared) = shared.upgrade() else { return };
    let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    if let Err(error) = Journal(shared).retain(policy, u64::try_from(now_ns).unwrap_or(u64::MAX)) {
        tracing::warn!(%error, "old segments stay for now");
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.bell.state.lock().stop = true;
        self.bell.rung.notify_one();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the journal's keeper panicked");
        }
    }
}
