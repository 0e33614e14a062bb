//! The durable mark and who moves it.
//!
//! ```text
//!   append ──► written        round: W = written ─► sync files, oldest first ─► sync names ─► synced = W
//!                                         └── meanwhile appends gather; the next round takes them all
//! ```
//!
//! A thread of its own, the syncer, carries out the rounds that policies and requests ask for. Who appends and waits for the
//! disk in one call carries out the round itself, which saves two changes of threads, unless a round is under way: then
//! it sleeps, and those whom that round did not cover find one among them for the next. What a completed segment needs, and
//! the calling of callbacks, is left to the syncer.
//!
//! Invariants
//! * There is one round at a time.
//! * W is taken before the first sync call of a round begins, and the round's files are taken after W, so all
//!   frames up to W lie in them.
//! * A segment is sealed only after a sync that began when it was already complete.
//! * After the first failure no file is synced again and `synced` stays: the kernel may have dropped the pages
//!   and would report success the next time.
//!
//! * The account of what is at risk knows every entry up to W, and no other, when a round begins: both are read
//!   under its lock, under which entries are published.
//!
//! Under the interval policy the thread sleeps without a time limit while nothing is unsynced.
//! Lock order: the writer's core, `reader_lock`, `state`, then `ledger` or `cluster`; none is held during a call to
//! the disk or to a callback, except the core's. This thread never waits for the core: whoever holds it may be
//! waiting for this thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::ack::{Ack, Cluster, Level, Watermarks, acknowledge};
use crate::control::Synced;
use crate::error::{DiskError, WaitError};
use crate::file::{Folder, LogFile};
use crate::journal::Shared;
use crate::options::SyncPolicy;
use crate::risk::{Cause, Causes, Exposure, Ledger, RiskPolicy, Scope, Weight};
use crate::segment::{SEAL_AT, Seal, Segment};

/// How long a mark that could not be appended waits for the next try.
const ANNOUNCE_AGAIN: Duration = Duration::from_millis(1);

/// Before a round begins, those who were served by the last one are waited for, for at most this part of the time
/// which that took: else the first of them would have a round of its own and the others wait for the next.
const GATHER_SHARE: u32 = 4;
/// And for no longer than this, which costs a processor: they come at once or have something else to do.
const GATHER_MAX: Duration = Duration::from_millis(1);

/// The syncer, once it has served somebody, looks for so long whether there is more to do before it sleeps: waking a thread
/// can take as long as the disk. Who waits for the disk does sleep: the disk's interrupt may need its processor.
const LOOK_TIME: Duration = Duration::from_micros(200);

/// Most completed segments that may wait for their sync. Then appends that need a new segment wait: a disk that
/// is slower than the appends must slow them down at some point.
pub(crate) const UNSYNCED_SEGMENTS_MAX: usize = 16;

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

/// What an appender waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub level: Level,
    pub index: u64,
    pub value: u64,
}

/// What the syncer has to do next.
enum Work {
    Sync,
    Announce,
}

/// Alone in its cache lines: a tailer that looks at a mark all the time takes the line from whoever writes it, and would
/// take what else lies there with it. Processors fetch lines in pairs.
#[repr(align(128))]
struct Alone(AtomicU64);

impl std::ops::Deref for Alone {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}

/// Where appenders, waiters and the syncer meet.
pub(crate) struct Desk {
    policy: SyncPolicy,
    written: Alone,
    synced: Alone,
    ledger: Option<Mutex<Ledger>>,
    scope: Scope,
    announces: bool,
    /// Whether entries may become too old.
    ages: bool,
    cluster: RwLock<Cluster>,
    /// How many threads wait for an entry. Written and read beside `written` in sequential order, so either the
    /// appender sees them or they see the append.
    readers: AtomicUsize,
    reader_lock: Mutex<()>,
    /// Wakes those who wait for an entry.
    appended: Condvar,
    /// The syncer sleeps until something is written. Written and read beside `written` in sequential order, so
    /// either the appender sees it or the syncer sees the append.
    asleep: AtomicBool,
    failed: AtomicBool,
    state: Mutex<DeskState>,
    /// Wakes the syncer.
    work: Condvar,
    /// Wakes appenders that wait for their segments to be synced.
    moved: Condvar,
    /// A sync up to here was asked for. Changes with the state locked.
    requested: AtomicU64,
    /// How many threads wait for an acknowledgement. Changes with the state locked.
    sleeping: AtomicUsize,
    /// How often somebody asked for a sync since the last round began. Changes with the state locked.
    asking: AtomicUsize,
}

#[derive(Default)]
struct DeskState {
    /// Oldest first; the last one is the active segment. At most [`UNSYNCED_SEGMENTS_MAX`] and the active one.
    dirty: Vec<Dirty>,
    /// By whom, since the last round began.
    causes: Causes,
    /// How many rounds had each cause.
    rounds: [u64; Cause::ALL.len()],
    /// To be appended as soon as the writer's core is free.
    announce: Option<Synced>,
    /// When that is tried; never while the active segment has no room for it.
    announce_at: Option<Instant>,
    failure: Option<DiskError>,
    stop: bool,
    closed: bool,
    /// Those who wait for the mark, for a failure or for the end; each is woken by itself. A condition variable would have
    /// each of them wake the next, one after the other.
    sleepers: Vec<Thread>,
    /// How many the last round served: it woke them, or they had asked for it and look again when they are told.
    served: usize,
    /// How many had asked for it when it began.
    asked: usize,
    /// How long the last round took.
    last_round: Duration,
    /// Somebody carries out a round.
    in_round: bool,
    /// When it began to sync.
    syncing_since: Option<Instant>,
    /// The syncer waits for the end of a round that it does not carry out itself.
    syncer_waits: bool,
    /// Somebody is to be told of each round.
    has_callbacks: bool,
}

impl DeskState {
    fn has_complete(&self) -> bool {
        self.dirty.first().is_some_and(|d| d.seal.is_some())
    }

    /// Whether a round is nothing but a sync of the active segment, for who waits for it.
    fn can_be_led(&self) -> bool {
        matches!(&self.dirty[..], [Dirty { named: true, seal: None, .. }])
            && !self.has_callbacks
            && !self.stop
    }
}

impl Desk {
    /// A desk for a log whose entries up to `last` are all on disk.
    pub(crate) fn new(policy: SyncPolicy, risk: Option<RiskPolicy>, last: u64) -> Self {
        Desk {
            policy,
            scope: risk.as_ref().map_or(Scope::Local, |risk| risk.scope),
            announces: risk.as_ref().is_some_and(|risk| risk.announce),
            ages: risk.as_ref().is_some_and(|risk| risk.age.is_some()),
            ledger: risk.map(|risk| Mutex::new(Ledger::new(risk, last))),
            cluster: RwLock::default(),
            readers: 0.into(),
            reader_lock: Mutex::default(),
            appended: Condvar::new(),
            written: Alone(last.into()),
            synced: Alone(last.into()),
            asleep: false.into(),
            failed: false.into(),
            state: Mutex::default(),
            work: Condvar::new(),
            moved: Condvar::new(),
            requested: 0.into(),
            sleeping: 0.into(),
            asking: 0.into(),
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

    /// Makes the entries up to `index` visible, that weigh this, and sees to it that they get
    /// synced as the policies say. Marks of the log itself have no value and no bytes: they ask for nothing. `show` lets
    /// tailers have them that look only at the file in memory; they may go there once everybody else would find them.
    pub(crate) fn publish(&self, index: u64, entries: impl Iterator<Item = Weight>, show: impl FnOnce()) {
        let mut causes = Causes::default();
        match &self.ledger {
            None => {
                self.written.store(index, Ordering::SeqCst);
                show();
            }
            Some(ledger) => {
                let now = Instant::now();
                let mut ledger = ledger.lock();
                self.written.store(index, Ordering::SeqCst);
                show();
                for entry in entries {
                    ledger.appended(entry, now).into_iter().for_each(|cause| causes.add(cause));
                }
            }
        }
        if self.readers.load(Ordering::SeqCst) > 0 {
            let _lock = self.reader_lock.lock();
            self.appended.notify_all();
        }
        if causes != Causes::default() {
            self.request(causes);
        } else if self.asleep.load(Ordering::SeqCst) {
            let _state = self.state.lock();
            self.asleep.store(false, Ordering::SeqCst);
            self.work.notify_one();
        }
    }

    pub(crate) fn request(&self, causes: impl Into<Causes>) {
        self.request_locked(&mut self.state.lock(), causes);
    }

    fn request_locked(&self, state: &mut DeskState, causes: impl Into<Causes>) {
        let written = self.written();
        self.requested.store(written, Ordering::Relaxed);
        let causes = causes.into();
        if causes.iter().any(|cause| cause == Cause::Request) {
            self.asking.fetch_add(1, Ordering::Relaxed);
        }
        if written <= self.synced() {
            // A round that was under way has made it durable: there will be no other one for it.
            self.succeed(state, causes, 0);
        } else {
            state.causes.join(causes);
        }
        self.work.notify_one();
    }

    pub(crate) fn watermarks(&self) -> Watermarks {
        // In this order: `written` only grows, so `synced <= written` also in the answer.
        let synced = self.synced();
        Watermarks { written: self.written(), synced }
    }

    /// Whether another node that keeps a copy answers.
    pub(crate) fn reaches_followers(&self) -> bool {
        self.cluster.read().followers.iter().any(|follower| follower.reachable)
    }

    /// Takes the state of the other nodes; acknowledgements may follow from it.
    pub(crate) fn set_cluster(&self, cluster: Cluster) {
        let mut state = self.state.lock();
        *self.cluster.write() = cluster;
        self.release();
        self.wake(&mut state);
    }

    /// Takes what is safe by now out of the exposure; the value of it.
    fn release(&self) -> u128 {
        let Some(ledger) = &self.ledger else { return 0 };
        let marks = self.watermarks();
        let safe = match self.scope {
            Scope::Local => marks.synced,
            Scope::Quorum => self.cluster.read().quorum_synced(&marks),
        };
        ledger.lock().now_safe(safe)
    }

    pub(crate) fn exposure(&self) -> Exposure {
        self.ledger.as_ref().map_or_else(Exposure::default, |ledger| ledger.lock().exposure())
    }

    /// How long the disk has been syncing, if it is.
    pub(crate) fn syncing(&self) -> Option<Duration> {
        self.state.lock().syncing_since.map(|since| since.elapsed())
    }

    /// From now on somebody is to be told of each round.
    pub(crate) fn has_callbacks(&self) {
        self.state.lock().has_callbacks = true;
    }

    /// Whether a mark is about to be appended.
    #[cfg(test)]
    pub(crate) fn is_announcing(&self) -> bool {
        self.state.lock().announce_at.is_some()
    }

    /// How many sync rounds had each cause.
    pub(crate) fn rounds(&self) -> Vec<(Cause, u64)> {
        Cause::ALL.into_iter().zip(self.state.lock().rounds).collect()
    }

    /// Whether an entry can be acknowledged now. `held` is set when only the value at risk forbids it.
    pub(crate) fn acknowledge(&self, asked: &Asked, held: &mut bool) -> Result<Option<Ack>, WaitError> {
        self.answer(asked, held, &|| self.failure())
    }

    /// Waits until an entry can be acknowledged. With `lead`, which carries out a round, nobody was asked for a sync: the
    /// caller sees to it.
    pub(crate) fn wait_ack(
        &self,
        asked: &Asked,
        held: &mut bool,
        timeout: Duration,
        lead: Option<&dyn Fn()>,
    ) -> Result<Ack, WaitError> {
        self.wait_until(asked.index, timeout, lead, |failure| self.answer(asked, held, failure))
    }

    /// Waits until there is an answer. `look` is given the failure that ended the log, if one did.
    fn wait_until<T>(
        &self,
        index: u64,
        timeout: Duration,
        lead: Option<&dyn Fn()>,
        mut look: impl FnMut(&dyn Fn() -> Option<DiskError>) -> Result<Option<T>, WaitError>,
    ) -> Result<T, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        let me = std::thread::current();
        loop {
            // The usual case after waking: no lock is needed.
            if let Some(found) = look(&|| self.failure())? {
                return Ok(found);
            }
            let mut state = self.state.lock();
            // Again under the lock under which the marks move, so that no move is missed.
            let found = look(&|| state.failure.clone()).transpose();
            let late = deadline.is_some_and(|at| Instant::now() >= at);
            if found.is_some() || state.closed || late {
                if found.is_none() && lead.is_some() && index > self.synced() {
                    // Who gives up still wants its entry on disk.
                    self.request_locked(&mut state, Cause::Request);
                }
                state.sleepers.retain(|sleeper| sleeper.id() != me.id());
                self.sleeping.store(state.sleepers.len(), Ordering::Relaxed);
                let synced = self.synced();
                let ended =
                    if state.closed { WaitError::Closed } else { WaitError::Timeout { index, synced } };
                return found.unwrap_or(Err(ended));
            }
            if let Some(lead) = lead
                && index > self.synced()
                && !state.in_round
            {
                if state.can_be_led() {
                    state.in_round = true;
                    state.causes.join(Cause::Request.into());
                    drop(state);
                    lead();
                    continue;
                }
                self.request_locked(&mut state, Cause::Request);
            }
            if !state.sleepers.iter().any(|sleeper| sleeper.id() == me.id()) {
                state.sleepers.push(me.clone());
                self.sleeping.store(state.sleepers.len(), Ordering::Relaxed);
            }
            drop(state);
            match deadline {
                Some(at) => std::thread::park_timeout(at.saturating_duration_since(Instant::now())),
                None => std::thread::park(),
            }
        }
    }

    /// Wakes all who wait for something; how many for an acknowledgement.
    fn wake(&self, state: &mut DeskState) -> usize {
        self.moved.notify_all();
        let sleepers = std::mem::take(&mut state.sleepers);
        self.sleeping.store(0, Ordering::Relaxed);
        sleepers.iter().for_each(Thread::unpark);
        sleepers.len()
    }

    fn answer(
        &self,
        asked: &Asked,
        held: &mut bool,
        failure: &dyn Fn() -> Option<DiskError>,
    ) -> Result<Option<Ack>, WaitError> {
        let Asked { level, index, value } = *asked;
        let marks = self.watermarks();
        let (reached, quorum_synced, term) = {
            let cluster = self.cluster.read();
            let quorum = if self.scope == Scope::Quorum { cluster.quorum_synced(&marks) } else { 0 };
            (acknowledge(level, index, &marks, &cluster), quorum, cluster.term)
        };
        let capped = self.ledger.as_ref().filter(|_| level == Level::Risk);
        if capped.is_none() && reached.is_some() {
            return Ok(reached);
        }
        let (safe, as_level) = match self.scope {
            Scope::Local => (marks.synced, Level::Sync),
            Scope::Quorum => (quorum_synced, Level::QuorumSync),
        };
        if capped.is_some() && index <= safe {
            return Ok(Some(Ack { index, term, level: as_level, degraded: false }));
        }
        if let Some(failure) = failure() {
            return Err(WaitError::Failed(failure));
        }
        let (Some(ledger), Some(ack)) = (capped, reached) else { return Ok(None) };
        let mut ledger = ledger.lock();
        if ledger.admit(index, value) {
            return Ok(Some(ack));
        }
        if !std::mem::replace(held, true) {
            ledger.count_held();
        }
        Ok(None)
    }

    /// Waits until an entry after `index` is written; false if the time ran out or the log was closed.
    pub(crate) fn wait_written(&self, index: u64, deadline: Instant) -> bool {
        let mut lock = self.reader_lock.lock();
        self.readers.fetch_add(1, Ordering::SeqCst);
        let mut arrived = self.written() > index;
        while !arrived && !self.is_closed() && !self.appended.wait_until(&mut lock, deadline).timed_out() {
            arrived = self.written() > index;
        }
        self.readers.fetch_sub(1, Ordering::SeqCst);
        self.written() > index
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
        if state.announce.is_some() {
            state.announce_at = Some(Instant::now());
        }
        self.work.notify_one();
        while state.dirty.len() > UNSYNCED_SEGMENTS_MAX && state.failure.is_none() {
            self.moved.wait(&mut state);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    /// The active segment has got another name, which is not durable yet.
    pub(crate) fn renamed(&self, file: LogFile) {
        if let Some(active) = self.state.lock().dirty.last_mut() {
            (active.file, active.named) = (file, false);
        }
    }

    /// Ends the log. The first failure stays.
    pub(crate) fn fail(&self, error: DiskError) -> DiskError {
        let mut state = self.state.lock();
        let first = state.failure.get_or_insert(error).clone();
        self.failed.store(true, Ordering::Release);
        self.wake(&mut state);
        self.work.notify_one();
        (state.in_round, state.syncing_since) = (false, None);
        first
    }

    /// Ends every wait; the writer is gone.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.wake(&mut state);
        drop(state);
        let _lock = self.reader_lock.lock();
        self.appended.notify_all();
    }

    /// Waits until `synced` has reached `index`.
    pub(crate) fn wait(&self, index: u64, timeout: Duration) -> Result<(), WaitError> {
        self.wait_until(index, timeout, None, |failure| match self.synced() >= index {
            true => Ok(Some(())),
            false => failure().map_or(Ok(None), |failure| Err(WaitError::Failed(failure))),
        })
    }

    /// Gives those a moment whom the last round served, and who may be about to ask for the next.
    fn gather(&self) {
        let (served, last_round) = {
            let state = self.state.lock();
            (state.served, state.last_round)
        };
        stay_awake((last_round / GATHER_SHARE).min(GATHER_MAX), || {
            let here = self.sleeping.load(Ordering::Relaxed).max(self.asking.load(Ordering::Relaxed));
            here >= served
        });
    }

    /// Looks for a while whether another sync is asked for, if the last one served somebody.
    fn linger(&self) {
        if self.state.lock().served > 0 {
            stay_awake(LOOK_TIME, || self.is_asked_for());
        }
    }

    /// Whether a sync was asked for of something that is not on disk yet.
    fn is_asked_for(&self) -> bool {
        self.requested.load(Ordering::Relaxed) > self.synced()
    }

    /// Sleeps until something is due; `None` if nothing will be any more. `since`: when the last round began,
    /// which is the oldest that what is unsynced now can be.
    fn wait_for_work(&self, since: Instant) -> Option<Work> {
        let mut state = self.state.lock();
        let work = self.find_work(&mut state, since)?;
        state.in_round |= matches!(work, Work::Sync);
        Some(work)
    }

    fn find_work(&self, state: &mut MutexGuard<'_, DeskState>, since: Instant) -> Option<Work> {
        let mut unsynced_since = (self.written() > self.synced()).then_some(since);
        loop {
            if state.stop || state.failure.is_some() {
                return None;
            }
            if state.announce_at.is_some_and(|at| Instant::now() >= at) {
                return Some(Work::Announce);
            }
            if state.in_round {
                state.syncer_waits = true;
                self.work.wait(state);
                state.syncer_waits = false;
                continue;
            }
            let unsynced = self.written() > self.synced();
            if !unsynced {
                unsynced_since = None;
            }
            if state.has_complete() || (unsynced && self.is_asked_for()) {
                return Some(Work::Sync);
            }
            let by_policy = match self.policy {
                SyncPolicy::EachBatch if unsynced => {
                    state.causes.join(Cause::Policy.into());
                    return Some(Work::Sync);
                }
                SyncPolicy::Interval(time) if unsynced => {
                    let since = *unsynced_since.get_or_insert_with(Instant::now);
                    since.checked_add(time)
                }
                _ => None,
            };
            let by_age = self.ledger.as_ref().and_then(|ledger| ledger.lock().due());
            let now = Instant::now();
            let is_due = |at: &Option<Instant>| at.is_some_and(|at| now >= at);
            if is_due(&by_policy) || is_due(&by_age) {
                let cause = if is_due(&by_age) { Cause::Age } else { Cause::Policy };
                state.causes.join(cause.into());
                return Some(Work::Sync);
            }
            match [by_policy, by_age, state.announce_at].into_iter().flatten().min() {
                // What comes now is due later than what has an age already.
                Some(at) if by_age.is_some() || !self.ages => drop(self.work.wait_until(state, at)),
                until => self.sleep(state, until),
            }
        }
    }

    /// Sleeps until something is asked for or, where a policy cares, written. While something is due at a time already,
    /// only the age of what is written can make it earlier.
    fn sleep(&self, state: &mut MutexGuard<'_, DeskState>, until: Option<Instant>) {
        let by_policy = self.policy != SyncPolicy::Never && until.is_none();
        self.asleep.store(by_policy || self.ages, Ordering::SeqCst);
        let is_aging = self.ledger.as_ref().is_some_and(|ledger| ledger.lock().due().is_some());
        if !(by_policy && self.written() > self.synced() || is_aging) {
            match until {
                Some(at) => drop(self.work.wait_until(state, at)),
                None => self.work.wait(state),
            }
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Waits for the end of the round that is under way, and has the next one begin; false if the log has failed.
    fn enter_round(&self) -> bool {
        let mut state = self.state.lock();
        while state.in_round {
            self.moved.wait(&mut state);
        }
        state.in_round = state.failure.is_none();
        state.in_round
    }

    /// Begins a round: up to where, why, and in which files.
    fn begin_round(&self) -> (u64, Causes, Vec<Dirty>) {
        // First the causes: what they ask for is written, so the round covers it.
        let causes = {
            let mut state = self.state.lock();
            state.syncing_since = Some(Instant::now());
            state.asked = self.asking.swap(0, Ordering::Relaxed);
            std::mem::take(&mut state.causes)
        };
        let written = match &self.ledger {
            None => self.written(),
            Some(ledger) => {
                let mut ledger = ledger.lock();
                let written = self.written();
                ledger.sync_began(written);
                written
            }
        };
        (written, causes, self.state.lock().dirty.clone())
    }

    /// Moves the mark after a round has succeeded, which ends it.
    fn advance(&self, target: u64, mut causes: Causes, synced: &[Dirty]) {
        let mut state = self.state.lock();
        state.in_round = false;
        state.last_round = state.syncing_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        for dirty in &mut state.dirty {
            dirty.named |= synced.iter().any(|s| Arc::ptr_eq(&s.segment, &dirty.segment));
        }
        self.synced.fetch_max(target, Ordering::AcqRel);
        let released = self.release();
        if self.requested.load(Ordering::Relaxed) <= target {
            // Asked for when the round had begun, and covered by it: there will be no other round for them.
            causes.join(std::mem::take(&mut state.causes));
        }
        if synced.iter().any(|s| s.seal.is_some()) {
            causes.join(Cause::Seal.into());
        }
        self.succeed(&mut state, causes, released);
        if state.syncer_waits || state.announce_at.is_some() {
            self.work.notify_one();
        }
        state.served = self.wake(&mut state).max(state.asked);
    }

    /// What these causes asked for is durable.
    fn succeed(&self, state: &mut DeskState, causes: Causes, released: u128) {
        causes.iter().for_each(|cause| state.rounds[cause as usize] += 1);
        if self.announces && causes.are_announced() {
            let mark = Synced { upto: self.synced(), released, causes };
            state.announce = Some(mark.joined(state.announce));
            state.announce_at = Some(Instant::now());
        }
    }

    /// Keeps a mark for the next segment: this one has no room for it.
    fn keep_mark(&self, mark: &Synced) {
        let mut state = self.state.lock();
        state.announce = Some(mark.joined(state.announce));
    }

    fn forget_sealed(&self) {
        let mut state = self.state.lock();
        state.dirty.retain(|d| !d.segment.is_sealed());
        self.moved.notify_all();
    }
}

/// Waits for something without sleeping, for at most `limit`. Other threads that want the processor get it.
fn stay_awake(limit: Duration, has_come: impl Fn() -> bool) {
    let begun = Instant::now();
    while !has_come() && begun.elapsed() < limit {
        std::thread::yield_now();
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
            while let Some(work) = own.desk.wait_for_work(since) {
                match work {
                    Work::Sync => {
                        own.desk.gather();
                        since = Instant::now();
                        own.sync_round();
                        own.desk.linger();
                    }
                    Work::Announce => own.announce(),
                }
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
            self.0.fail_by_panic("a callback panicked");
        }
        if let Some(failure) = self.0.desk.failure() {
            self.0.tell_failure(failure);
        }
    }
}

/// Ends the log if the round of somebody who waits panics: nobody would know what is on disk.
struct LeaderGuard<'a>(&'a Shared);

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail_by_panic("a sync panicked");
        }
    }
}

impl Shared {
    /// Carries out a round for the caller, who waits for it. A segment that was completed meanwhile is synced, and left to
    /// the syncer otherwise.
    pub(crate) fn lead(&self) {
        let _guard = LeaderGuard(self);
        self.desk.gather();
        self.sync_written();
    }

    /// The last round, once the syncer has ended.
    pub(crate) fn last_round(&self) {
        if self.desk.enter_round() {
            self.sync_round();
        }
    }

    /// Syncs everything that is written, moves the mark, seals what is complete, and tells the callbacks. The caller has
    /// begun the round.
    fn sync_round(&self) {
        let Some((target, dirty)) = self.sync_written() else { return };
        self.tell(&Ok(target));
        if let Err(e) = self.seal_complete(&dirty) {
            return self.fail_sync(e);
        }
        if dirty.iter().any(|d| d.seal.is_some()) {
            self.desk.forget_sealed();
            self.sealed();
        }
    }

    /// Syncs everything that is written and moves the mark, which ends the round: up to where, and in which files. `None`
    /// if that failed, and with it the log.
    fn sync_written(&self) -> Option<(u64, Vec<Dirty>)> {
        let (target, causes, dirty) = self.desk.begin_round();
        if let Err(error) = sync_files(&self.folder, &dirty) {
            self.fail_sync(error);
            return None;
        }
        self.desk.advance(target, causes, &dirty);
        Some((target, dirty))
    }

    /// Appends the mark of what was synced, unless the core is in use: then it is tried again.
    fn announce(&self) {
        let Some(mut core) = self.core.try_lock() else {
            self.desk.state.lock().announce_at = Instant::now().checked_add(ANNOUNCE_AGAIN);
            return;
        };
        let mark = {
            let mut state = self.desk.state.lock();
            state.announce_at = None;
            state.announce.take()
        };
        let (Some(mark), Some(core)) = (mark, core.as_mut()) else { return };
        match core.append_mark(self, &mark) {
            Ok(true) => {}
            Ok(false) => self.desk.keep_mark(&mark),
            Err(error) => tracing::warn!(%error, "no mark of a sync could be appended"),
        }
    }

    fn seal_complete(&self, dirty: &[Dirty]) -> Result<(), DiskError> {
        for Dirty { segment, file, seal, .. } in dirty {
            let Some(seal) = seal else { continue };
            write_seal(file, seal, segment.salt)?;
            segment.set_sealed();
            // Here, and not where appends would wait for it: giving a mapping back takes time.
            segment.set_window(None);
            trim(segment, file, seal.end)?;
        }
        Ok(())
    }

    fn fail_by_panic(&self, what: &str) {
        let cause = Arc::new(std::io::Error::other(what));
        self.desk.fail(DiskError { action: "sync", file: self.folder.path(""), cause });
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
        segment.file.check(segment.segment.size)?;
    }
    if dirty.iter().any(|d| !d.named) {
        folder.sync_names()?;
    }
    Ok(())
}

/// Gives back what a segment that was completed early does not need. The seal is on disk, so either length of the
/// file will do after a crash. Readers may still have it in memory: what they are shown lies before `end`.
fn trim(segment: &Segment, file: &LogFile, end: u64) -> Result<(), DiskError> {
    let len = end.next_multiple_of(4096);
    if len < segment.size {
        file.shorten(len)?;
        segment.set_disk_bytes(len);
    }
    Ok(())
}

/// Writes a seal, durably. All frames of the file must be on disk.
pub(crate) fn write_seal(file: &LogFile, seal: &Seal, salt: u64) -> Result<(), DiskError> {
    file.write_bytes(&seal.encode(salt), SEAL_AT)?;
    file.sync()
}
