//! The keeper: two threads that do what nobody asks for. One deletes expired documents on time and watches the disk: its
//! space, and whether it answers. The other writes checkpoints, which may take as long as the disk takes.
//!
//! They read snapshots and ask the sequencer like anybody else; they hold nothing that the engine waits for.

use crate::checkpoint::{self, Lineage};
use crate::effects::CollectionNumber;
use crate::engine::{Options, save_checkpoint};
use crate::limits::{Disk, Memory};
use crate::open::SinceCheckpoint;
use crate::sequencer::Request;
use crate::state::State;
use crate::statement::has_expired;
use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rockdove_journal::Journal;
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
#[derive(Clone)]
pub struct Limits {
    pub memory: Arc<Memory>,
    pub disk: Arc<Disk>,
}

/// The running threads; dropping it stops and joins them.
pub struct Keeper {
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

/// How the threads reach the engine.
#[derive(Clone)]
struct EngineAccess {
    state: Weak<ArcSwap<State>>,
    requests: mpsc::WeakSender<Request>,
    limits: Limits,
    options: Options,
}

/// Expired documents, and the disk.
struct Tending {
    stop: Arc<Stop>,
    engine: EngineAccess,
    journal: Option<Journal>,
    /// It was told that the disk hangs.
    hangs: bool,
}

struct Checkpoints {
    engine: EngineAccess,
    journal: Journal,
    dir: PathBuf,
    lineage: Lineage,
    /// The log's size on disk when the last checkpoint was written; at opening, as if what the checkpoint does not
    /// contain had come after it.
    log_bytes_then: u64,
    /// The last checkpoint's size.
    checkpoint_bytes: u64,
    /// When a checkpoint was last tried because the disk is short.
    tried: Option<Instant>,
}

impl Keeper {
    /// Starts the threads.
    pub fn start(
        state: Weak<ArcSwap<State>>,
        limits: Limits,
        requests: mpsc::WeakSender<Request>,
        options: &Options,
        journal: Option<Journal>,
        since: SinceCheckpoint,
        lineage: Lineage,
    ) -> std::io::Result<Keeper> {
        let engine = EngineAccess { state, requests, limits, options: options.clone() };
        let mut keeper = Keeper { stop: Arc::default(), threads: Vec::new() };
        if let Some((journal, dir)) = journal.clone().zip(options.dir.clone()) {
            let mut checkpoints = Checkpoints {
                engine: engine.clone(),
                log_bytes_then: journal.disk_bytes().saturating_sub(since.log_bytes),
                checkpoint_bytes: since.checkpoint_bytes,
                tried: None,
                journal,
                dir,
                lineage,
            };
            keeper.start_thread("checkpoints", move || checkpoints.look())?;
        }
        let mut tending = Tending { stop: keeper.stop.clone(), engine, journal, hangs: false };
        keeper.start_thread("keeper", move || tending.look())?;
        Ok(keeper)
    }

    fn start_thread(&mut self, name: &str, mut look: impl FnMut() + Send + 'static) -> std::io::Result<()> {
        let stop = self.stop.clone();
        let run = move || {
            let mut asked = stop.asked.lock();
            while !*asked {
                stop.changed.wait_for(&mut asked, EVERY);
                if !*asked {
                    MutexGuard::unlocked(&mut asked, &mut look);
                }
            }
        };
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(run)?);
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.stop.asked.lock() = true;
        self.stop.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic there was reported by the panic hook
        }
    }
}

impl EngineAccess {
    fn ask<R>(&self, request: Request, answer: oneshot::Receiver<R>) -> Option<R> {
        self.requests.upgrade()?.blocking_send(request).ok()?;
        answer.blocking_recv().ok()
    }

    /// Looks how much of the disk is free, and notes whether that is too little.
    fn look_at_disk(&self) -> u64 {
        self.limits.disk.look(self.limits.memory.used_bytes())
    }
}

impl Tending {
    fn look(&mut self) {
        self.watch_syncs();
        self.engine.look_at_disk();
        self.expire();
    }

    /// Tells when the disk hangs, and when it answers again.
    fn watch_syncs(&mut self) {
        let Some(journal) = &self.journal else { return };
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

    /// Has everything deleted whose time is over, until the end is asked for.
    fn expire(&self) {
        let Some(state) = self.engine.state.upgrade() else { return };
        let state = state.load_full();
        let now = self.engine.options.clock.now_ms();
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
            let deleted = self.engine.ask(request, answer);
            if deleted.is_none_or(|deleted| deleted == 0) || *self.stop.asked.lock() {
                return;
            }
        }
    }
}

impl Checkpoints {
    /// Writes a checkpoint when the log has grown enough since the last, or when the disk is short and the log would
    /// shrink by it.
    fn look(&mut self) {
        let (engine, journal) = (&self.engine, &self.journal);
        let free = engine.look_at_disk();
        let is_short = engine.limits.disk.is_short() || journal.is_short_of_space();
        let grown = journal.disk_bytes().saturating_sub(self.log_bytes_then);
        let is_due = grown >= engine.options.checkpoint_bytes.max(self.checkpoint_bytes);
        if is_short {
            // One that cannot fit is not begun: it would take the last space from the deletions.
            let Some(state) = engine.state.upgrade() else { return };
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
        let Some(mut data) = engine.ask(Request::Checkpoint(reply), answer) else { return };
        if is_short {
            data.wanted_from = data.index + 1; // space goes before history: change streams still have it in memory
        }
        match save_checkpoint(&self.dir, &data, self.lineage, journal) {
            Ok(bytes) => self.checkpoint_bytes = bytes,
            Err(reason) => tracing::error!(reason, "no checkpoint was written; the log keeps growing"),
        }
        self.log_bytes_then = self.journal.disk_bytes();
        self.retry_space();
    }

    /// Has the log's next segment made ready once more if there was no space for it, but a checkpoint's comes first.
    fn retry_space(&self) {
        let wanted = self.engine.limits.memory.used_bytes();
        if self.engine.look_at_disk() >= wanted.saturating_add(self.engine.options.segment_bytes) {
            self.journal.retry_space();
        }
    }
}
