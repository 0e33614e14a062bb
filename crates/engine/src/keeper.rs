//! The keeper: one thread that deletes expired documents on time, writes checkpoints and watches the disk: its space, and
//! whether it answers.
//!
//! It reads snapshots and asks the sequencer like anybody else; it holds nothing that the engine waits for.

use crate::checkpoint::{self, Lineage};
use crate::effects::CollectionNumber;
use crate::engine::{Options, save_checkpoint};
use crate::limits::{Disk, Memory};
use crate::open::SinceCheckpoint;
use crate::sequencer::Request;
use crate::state::State;
use crate::statement::has_expired;
use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex};
use rockdove_journal::{Health, Journal};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// How often it looks: expired documents go at most this late, and the time their deletion takes.
const EVERY: Duration = Duration::from_millis(250);

/// A sync that takes so long is told.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// While the disk is short a checkpoint is tried this often at most.
const SHORT_EVERY: Duration = Duration::from_secs(1);

/// What is watched.
pub struct Limits {
    pub memory: Arc<Memory>,
    pub disk: Arc<Disk>,
}

/// The running thread; dropping it stops and joins it.
pub struct Keeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

struct Work {
    state: Weak<ArcSwap<State>>,
    requests: mpsc::WeakSender<Request>,
    limits: Limits,
    options: Options,
    journal: Option<(Journal, PathBuf)>,
    lineage: Lineage,
    /// The log's size on disk when the last checkpoint was written; at opening, as if what the checkpoint does not
    /// contain had come after it.
    log_bytes_then: u64,
    /// The last checkpoint's size.
    checkpoint_bytes: u64,
    /// When a checkpoint was last tried because the disk is short.
    tried: Option<Instant>,
    /// It was told that the disk hangs.
    hangs: bool,
}

impl Keeper {
    /// Starts the thread.
    pub fn start(
        state: Weak<ArcSwap<State>>,
        limits: Limits,
        requests: mpsc::WeakSender<Request>,
        options: &Options,
        journal: Option<Journal>,
        since: SinceCheckpoint,
        lineage: Lineage,
    ) -> std::io::Result<Keeper> {
        let log_bytes = journal.as_ref().map_or(0, Journal::disk_bytes);
        let journal = journal.zip(options.dir.clone());
        let mut work = Work {
            state,
            requests,
            limits,
            options: options.clone(),
            log_bytes_then: log_bytes.saturating_sub(since.log_bytes),
            checkpoint_bytes: since.checkpoint_bytes,
            tried: None,
            hangs: false,
            journal,
            lineage,
        };
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = stop.clone();
        let run = move || {
            let mut guard = stopped.0.lock();
            while !*guard {
                stopped.1.wait_for(&mut guard, EVERY);
                if !*guard {
                    parking_lot::MutexGuard::unlocked(&mut guard, || work.look());
                }
            }
        };
        let thread = std::thread::Builder::new().name("keeper".into()).spawn(run)?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was reported by the panic hook
        }
    }
}

impl Work {
    fn look(&mut self) {
        self.watch_syncs();
        self.expire();
        self.checkpoint();
    }

    /// Tells when the disk hangs, and when it answers again.
    fn watch_syncs(&mut self) {
        let Some((journal, _)) = &self.journal else { return };
        let hangs = journal.syncing().is_some_and(|took| took >= HANGS_AFTER);
        match (std::mem::replace(&mut self.hangs, hangs), hangs) {
            (false, true) => tracing::warn!(
                "the disk has not answered a sync for {} s; what waits for the disk waits",
                HANGS_AFTER.as_secs()
            ),
            (true, false) => tracing::info!("the disk answers again"),
            _ => {}
        }
    }

    /// Has everything deleted whose time is over.
    fn expire(&self) {
        let Some(state) = self.state.upgrade() else { return };
        let state = state.load_full();
        let now = self.options.clock.now_ms();
        for collection in state.collections() {
            for spec in collection.indexes().iter().map(|index| &index.spec) {
                let Some(seconds) = spec.expire_after_seconds else { continue };
                let upto_ms = now.saturating_sub(seconds.saturating_mul(1000));
                if has_expired(collection, &spec.name, upto_ms) {
                    self.delete_expired(collection.info.number, &spec.name, upto_ms);
                }
            }
        }
    }

    /// Has documents deleted until there are none left, some at a time: other requests come in between.
    fn delete_expired(&self, collection: CollectionNumber, index: &str, upto_ms: i64) {
        loop {
            let (reply, answer) = oneshot::channel();
            let request = Request::Expire { collection, index: index.into(), upto_ms, reply };
            if self.ask(request, answer).is_none_or(|deleted| deleted == 0) {
                return;
            }
        }
    }

    /// Writes a checkpoint when the log has grown enough since the last, or when the disk is short and the log would
    /// shrink by it.
    fn checkpoint(&mut self) {
        let Some((journal, dir)) = &self.journal else { return };
        let free = self.limits.disk.look(self.limits.memory.used_bytes());
        let is_short = self.limits.disk.is_short() || journal.is_short_of_space();
        let grown = journal.disk_bytes().saturating_sub(self.log_bytes_then);
        let is_due = grown >= self.options.checkpoint_bytes.max(self.checkpoint_bytes);
        if is_short {
            // One that cannot fit is not begun: it would take the last space from the deletions.
            let Some(state) = self.state.upgrade() else { return };
            let fits = checkpoint::bytes_of(&state.load()) <= free;
            let shrinks = is_due || journal.bytes_before(journal.written() + 1) > 0;
            if !fits || !shrinks || self.tried.is_some_and(|tried| tried.elapsed() < SHORT_EVERY) {
                return self.retry_space();
            }
            self.tried = Some(Instant::now());
        } else if !is_due {
            return;
        }
        let (reply, answer) = oneshot::channel();
        let Some(mut data) = self.ask(Request::Checkpoint(reply), answer) else { return };
        if is_short {
            data.wanted_from = data.index + 1; // space goes before history: change streams still have it in memory
        }
        match save_checkpoint(dir, &data, self.lineage, journal) {
            Ok(bytes) => self.checkpoint_bytes = bytes,
            // The engine was closed meanwhile; what is written then needs none.
            Err(reason) if matches!(journal.health(), Health::Closed) => {
                tracing::debug!(reason, "no checkpoint was written");
            }
            Err(reason) => tracing::error!(reason, "no checkpoint was written; the log keeps growing"),
        }
        self.log_bytes_then = journal.disk_bytes();
        self.retry_space();
    }

    /// Has the log's next segment made ready once more if there was no space for it, but a checkpoint's comes first.
    fn retry_space(&self) {
        let Some((journal, _)) = &self.journal else { return };
        let wanted = self.limits.memory.used_bytes();
        if self.limits.disk.look(wanted) >= wanted.saturating_add(self.options.segment_bytes) {
            journal.retry_space();
        }
    }

    fn ask<R>(&self, request: Request, answer: oneshot::Receiver<R>) -> Option<R> {
        self.requests.upgrade()?.blocking_send(request).ok()?;
        answer.blocking_recv().ok()
    }
}
