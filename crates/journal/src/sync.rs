//! The durable mark and the thread that moves it.
//!
//! ```text
//!   append ──► written        syncer: W = written ─► sync files, oldest first ─► sync names ─► synced = W
//!                                          └── meanwhile appends gather; the next round takes them all
//! ```
//!
//! Invariants
//! * W is taken before the first sync call of a round begins, and the round's files are taken after W, so all
//!   frames up to W lie in them.
//! * A segment is sealed only after a sync that began when it was already complete.
//! * After the first failure no file is synced again and `synced` stays: the kernel may have dropped the pages
//!   and would report success the next time.
//!
//! Under the interval policy the thread sleeps without a time limit while nothing is unsynced.
//! Lock order: `Desk::state` is taken last and never held during a call to the disk or to a callback.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{DiskError, WaitError};
use crate::file::{Folder, LogFile};
use crate::journal::Shared;
use crate::options::SyncPolicy;
use crate::segment::{SEAL_AT, Seal, Segment};

/// Most completed segments that may wait for their sync. Then appends that need a new segment wait: a disk that
/// is slower than the appends must slow them down at some point.
const UNSYNCED_SEGMENTS_MAX: usize = 16;

/// A segment that may hold unsynced frames, or is still to be sealed.
#[derive(Clone)]
pub(crate) struct Dirty {
    pub segment: Arc<Segment>,
    pub file: LogFile,
    /// True once the file's name is durable.
    pub named: bool,
    /// Set when the segment is complete.
    pub seal: Option<Seal>,
}

/// Where appenders, waiters and the syncer meet.
pub(crate) struct Desk {
    policy: SyncPolicy,
    written: AtomicU64,
    synced: AtomicU64,
    /// The syncer sleeps until something is written. Written and read beside `written` in sequential order, so
    /// either the appender sees it or the syncer sees the append.
    asleep: AtomicBool,
    failed: AtomicBool,
    state: Mutex<DeskState>,
    /// Wakes the syncer.
    work: Condvar,
    /// Wakes those who wait for the mark, for a failure or for the end.
    moved: Condvar,
}

#[derive(Default)]
struct DeskState {
    /// Oldest first; the last one is the active segment. At most [`UNSYNCED_SEGMENTS_MAX`] and the active one.
    dirty: Vec<Dirty>,
    /// A sync up to here was asked for.
    requested: u64,
    failure: Option<DiskError>,
    stop: bool,
    closed: bool,
}

impl DeskState {
    fn has_complete(&self) -> bool {
        self.dirty.first().is_some_and(|d| d.seal.is_some())
    }
}

impl Desk {
    /// A desk for a log whose entries up to `last` are all on disk.
    pub(crate) fn new(policy: SyncPolicy, last: u64) -> Self {
        Desk {
            policy,
            written: last.into(),
            synced: last.into(),
            asleep: false.into(),
            failed: false.into(),
            state: Mutex::default(),
            work: Condvar::new(),
            moved: Condvar::new(),
        }
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    pub(crate) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// The failure that ended the log, if one did.
    pub(crate) fn failure(&self) -> Option<DiskError> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.state.lock().failure.clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Makes an entry visible and sees to it that it gets synced as the policy says.
    pub(crate) fn publish(&self, index: u64) {
        self.written.store(index, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            let _state = self.state.lock();
            self.asleep.store(false, Ordering::SeqCst);
            self.work.notify_one();
        }
    }

    pub(crate) fn request(&self) {
        let mut state = self.state.lock();
        state.requested = self.written();
        self.work.notify_one();
    }

    /// Adds the new active segment. The one before gets its seal once it is synced, or is forgotten if it never
    /// had a frame (`seal` is `None`). Waits while too many are unsynced.
    pub(crate) fn roll(&self, seal: Option<Seal>, active: Dirty) -> Result<(), DiskError> {
        let mut state = self.state.lock();
        match (state.dirty.last_mut(), seal) {
            (Some(before), Some(seal)) => before.seal = Some(seal),
            (Some(_), None) => drop(state.dirty.pop()),
            (None, _) => {}
        }
        state.dirty.push(active);
        self.work.notify_one();
        while state.dirty.len() > UNSYNCED_SEGMENTS_MAX && state.failure.is_none() {
            self.moved.wait(&mut state);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    /// Ends the log. The first failure stays.
    pub(crate) fn fail(&self, error: DiskError) -> DiskError {
        let mut state = self.state.lock();
        let first = state.failure.get_or_insert(error).clone();
        self.failed.store(true, Ordering::Release);
        self.moved.notify_all();
        self.work.notify_one();
        first
    }

    /// Ends every wait; the writer is gone.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.moved.notify_all();
    }

    /// Waits until `synced` has reached `index`.
    pub(crate) fn wait(&self, index: u64, timeout: Duration) -> Result<(), WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.state.lock();
        loop {
            let synced = self.synced();
            if synced >= index {
                return Ok(());
            }
            if let Some(failure) = &state.failure {
                return Err(WaitError::Failed(failure.clone()));
            }
            if state.closed {
                return Err(WaitError::Closed);
            }
            match deadline {
                Some(at) if Instant::now() >= at => return Err(WaitError::Timeout { index, synced }),
                Some(at) => drop(self.moved.wait_until(&mut state, at)),
                None => self.moved.wait(&mut state),
            }
        }
    }

    /// Sleeps until a sync is due; false if there will be none any more. `since`: when the last round began,
    /// which is the oldest that what is unsynced now can be.
    fn wait_for_work(&self, since: Instant) -> bool {
        let mut unsynced_since = (self.written() > self.synced()).then_some(since);
        let mut state = self.state.lock();
        loop {
            if state.stop || state.failure.is_some() {
                return false;
            }
            let unsynced = self.written() > self.synced();
            if state.has_complete() || (unsynced && state.requested > self.synced()) {
                return true;
            }
            let due = match self.policy {
                SyncPolicy::EachBatch if unsynced => return true,
                SyncPolicy::Interval(time) if unsynced => {
                    let since = *unsynced_since.get_or_insert_with(Instant::now);
                    since.checked_add(time)
                }
                _ => None,
            };
            match due {
                Some(at) if Instant::now() >= at => return true,
                Some(at) => drop(self.work.wait_until(&mut state, at)),
                None => self.sleep(&mut state),
            }
        }
    }

    /// Sleeps until something is asked for or, where the policy cares, written.
    fn sleep(&self, state: &mut parking_lot::MutexGuard<'_, DeskState>) {
        self.asleep.store(self.policy != SyncPolicy::Never, Ordering::SeqCst);
        if self.policy == SyncPolicy::Never || self.written() <= self.synced() {
            self.work.wait(state);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn advance(&self, target: u64, synced: &[Dirty]) {
        let mut state = self.state.lock();
        for dirty in &mut state.dirty {
            dirty.named |= synced.iter().any(|s| Arc::ptr_eq(&s.segment, &dirty.segment));
        }
        self.synced.fetch_max(target, Ordering::AcqRel);
        self.moved.notify_all();
    }

    fn forget_sealed(&self) {
        let mut state = self.state.lock();
        state.dirty.retain(|d| !d.segment.is_sealed());
        self.moved.notify_all();
    }
}

/// The syncer thread.
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub(crate) fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("journal-sync".into()).spawn(move || {
            let guard = EndGuard(&own);
            let mut since = Instant::now();
            while own.desk.wait_for_work(since) {
                since = Instant::now();
                own.sync_round();
            }
            drop(guard);
        })?;
        Ok(Syncer { shared, thread: Some(thread) })
    }

    /// Ends the thread; a round under way is finished.
    pub(crate) fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.desk.state.lock().stop = true;
        self.shared.desk.work.notify_one();
        if thread.join().is_err() {
            tracing::error!("the journal's syncer panicked");
        }
    }
}

/// Tells the callbacks at the end of the thread what ended the log, whoever found it out. A callback that panics
/// ends the log too: nobody would sync any more.
struct EndGuard<'a>(&'a Shared);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let cause = Arc::new(std::io::Error::other("a callback panicked"));
            self.0.desk.fail(DiskError { action: "sync", file: self.0.folder.path(""), cause });
        }
        if let Some(failure) = self.0.desk.failure() {
            self.0.tell_failure(failure);
        }
    }
}

impl Shared {
    /// Syncs everything that is written, moves the mark, seals what is complete, and tells the callbacks.
    pub(crate) fn sync_round(&self) {
        let target = self.desk.written();
        let dirty = self.desk.state.lock().dirty.clone();
        if let Err(e) = sync_files(&self.folder, &dirty) {
            return self.fail_sync(e);
        }
        self.desk.advance(target, &dirty);
        self.tell(&Ok(target));
        if let Err(e) = seal_complete(&dirty) {
            return self.fail_sync(e);
        }
        self.desk.forget_sealed();
    }

    fn fail_sync(&self, error: DiskError) {
        tracing::error!(%error, "the journal stops: its data cannot be made durable");
        self.desk.fail(error);
    }

    /// Tells each callback, also when one before it panics.
    fn tell_failure(&self, failure: DiskError) {
        let callbacks = self.callbacks.lock().clone();
        let outcome = Err(failure);
        for callback in &callbacks {
            if catch_unwind(AssertUnwindSafe(|| callback(&outcome))).is_err() {
                tracing::error!("a callback panicked when it was told that the journal stops");
            }
        }
    }

    fn tell(&self, outcome: &Result<u64, DiskError>) {
        let callbacks = self.callbacks.lock().clone();
        for callback in &callbacks {
            callback(outcome);
        }
    }
}

fn sync_files(folder: &Folder, dirty: &[Dirty]) -> Result<(), DiskError> {
    for segment in dirty {
        segment.file.sync()?;
    }
    if dirty.iter().any(|d| !d.named) {
        folder.sync_names()?;
    }
    Ok(())
}

fn seal_complete(dirty: &[Dirty]) -> Result<(), DiskError> {
    for Dirty { segment, file, seal, .. } in dirty {
        if let Some(seal) = seal {
            write_seal(file, seal, segment.salt)?;
            segment.set_sealed();
        }
    }
    Ok(())
}

/// Writes a seal, durably. All frames of the file must be on disk.
pub(crate) fn write_seal(file: &LogFile, seal: &Seal, salt: u64) -> Result<(), DiskError> {
    file.write_bytes(&seal.encode(salt), SEAL_AT)?;
    file.sync()
}
