//! The one who appends.
//!
//! ```text
//!  Writer, Appender ──► Core (behind a lock) ──store or write──► active segment ──► marks ──► readers, syncer
//! ```
//!
//! An append puts header and payload at the published end: by a store in memory where the disk lets the segment be
//! mapped and the entry does not ask for a sync, else by one write. In the process it counts from the moment the marks
//! move, after that; before, its bytes lie where nobody in the process looks. Readers in other processes look at the file, and may find the whole frame a moment
//! earlier. A write that failed for lack of space is wiped out, so that what lies past the end stays zero. Any other failed
//! write, and a store that has met a page which is gone, end the log, because nobody knows what they left: the frame may be
//! in the file, and then other processes read it and the next opening takes it in.

use std::io::{IoSlice, Write};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::ack::{Ack, Level};
use crate::codec::{Coder, Encoding};
use crate::control::Synced;
use crate::cycle::{Cycle, Lap};
use crate::disk::{FolderLock, Mapping};
use crate::error::{AppendError, CloseError, DiskError, OpenError, WaitError};
use crate::file::{Folder, LogFile, PIECE_BYTES};
use crate::frame::{Frame, HeaderBytes, Kind, stride};
use crate::journal::{Journal, LOCK, Shared};
use crate::keeper::Keeper;
use crate::options::{Options, PAYLOAD_BYTES_MAX};
use crate::prepare::{Preparer, Ready, Role, Spare};
use crate::recover::{self, Recovery, Strictness};
use crate::risk::{Cause, Weight};
use crate::secrecy;
use crate::segment::{self, FRAMES_AT, Seal, Segment};
use crate::state::KeyCheck;
use crate::sync::{Asked, Desk, Dirty, Syncer};

/// Zeros that fill a frame up to its alignment.
const PADDING: [u8; 16] = [0; 16];
/// Payloads up to this length are copied beside their header, which is cheaper than a write in parts.
const COPY_BYTES_MAX: usize = 16 << 10;
/// Frames of one call of [`Writer::append_all`] are written in pieces of about this size.
const BATCH_BYTES: usize = 256 << 10;

/// Appends to a log. There is one for each open log; it holds the folder's lock.
///
/// Dropping it without [`Writer::close`] leaves the log as a crash of the process would.
pub struct Writer {
    shared: Arc<Shared>,
    syncer: Syncer,
    keeper: Option<Keeper>,
    /// Given free only after all threads have ended.
    _lock: FolderLock,
}

/// Appends to a log beside its [`Writer`], from any thread. Fails once that one was closed or dropped.
#[derive(Clone)]
pub struct Appender(Arc<Shared>);

/// What an entry is stored with besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Nanoseconds since 1970. If it is less than the entry's before it, that one's is stored.
    pub time_ns: u64,
    /// Business value, in the units of the log's [`RiskPolicy`](crate::RiskPolicy).
    pub value: u64,
    /// When it is acknowledged.
    pub level: Level,
}

/// The frame before the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    pub index: u64,
    pub term: u64,
    pub time_ns: u64,
    pub link: u32,
}

/// Opens a log: lock, recovery, threads.
pub(crate) fn open(folder: Folder, options: Options) -> Result<(Journal, Writer, Recovery), OpenError> {
    if let Some(fault) = options.fault() {
        return Err(OpenError::Options(fault));
    }
    let lock = folder.lock(LOCK)?.ok_or_else(|| OpenError::Locked(folder.path("")))?;
    let coder =
        Coder::new(&options.codec).map_err(|_| OpenError::Options("the compressor cannot be made"))?;
    // Before anything is changed.
    secrecy::check_before_opening(&folder, options.codec.key.as_ref())?;
    let mut found = recover::recover(&folder, &options.cycle, Strictness::KeepDurable)?;
    if let Some(key) = &options.codec.key {
        let check = Some(KeyCheck::Tag(key.check(&found.state_file.state().log_id)));
        if found.state_file.state().key_check != check {
            found.state_file.update(|state| state.key_check = check)?;
        }
    }
    let (log_id, cycle) = (found.state_file.state().log_id, found.state_file.state().cycle.clone());
    let mut segments = found.segments;
    let (active, named) = match found.active {
        Some((segment, file)) => {
            let mapping = file.map(FRAMES_AT, segment.end());
            (Active::new(segment, file, mapping), true)
        }
        None => {
            // Without a label: the cycle is that of the first entry, which is not there yet.
            let base = found.last.index + 1;
            let spare = Spare::make(&folder, Role::First, log_id, options.segment_bytes)?;
            let active = activate(spare, &folder, base, None)?;
            segments.push(active.segment.clone());
            (active, false)
        }
    };
    let desk = Desk::new(options.sync, options.risk.clone(), found.last.index);
    desk.roll(None, active.dirty(named))?;
    let thread =
        |cause| DiskError { action: "start a thread for", file: folder.path(""), cause: Arc::new(cause) };
    let preparer = Preparer::start(folder.clone(), log_id, options.segment_bytes).map_err(thread)?;
    let shared = Arc::new(Shared {
        folder: folder.clone(),
        log_id,
        desk,
        segments: RwLock::new(segments),
        state_file: Mutex::new(found.state_file),
        callbacks: Mutex::default(),
        release_listeners: Mutex::default(),
        core: Mutex::default(),
        keeper: Mutex::default(),
        key: options.codec.key,
        is_short: preparer.is_short(),
    });
    let mut core = Core {
        lap: cycle
            .as_ref()
            .filter(|_| !active.segment.is_empty())
            .map(|cycle| cycle.at(active.segment.times().0)),
        active,
        last: found.last,
        segment_bytes: options.segment_bytes,
        cycle,
        preparer,
        spare_wanted: false,
        added: 0,
        scratch: Vec::new(),
        entries: Vec::new(),
        built: Vec::new(),
        coder,
    };
    if core.cycle.is_some() {
        core.want_spare();
    }
    *shared.core.lock() = Some(core);
    let keeper = match options.retention.is_active() {
        true => Some(Keeper::start(&shared, options.retention).map_err(thread)?),
        false => None,
    };
    let syncer = Syncer::start(shared.clone()).map_err(thread)?;
    let writer = Writer { shared: shared.clone(), syncer, keeper, _lock: lock };
    Ok((Journal(shared), writer, found.recovery))
}

fn activate(spare: Spare, folder: &Folder, base: u64, lap: Option<&Lap>) -> Result<Active, DiskError> {
    let name = segment::labelled_name(lap.map(|lap| &*lap.label), base);
    let Ready { header, file, mapping } = spare.activate(folder, &name)?;
    Ok(Active::new(Arc::new(Segment::empty(name, base, &header)), file, mapping))
}

/// The segment that is written to.
struct Active {
    segment: Arc<Segment>,
    file: LogFile,
    /// Where frames are stored; they are written by calls if there is none.
    mapping: Option<Box<dyn Mapping>>,
}

impl Active {
    fn new(segment: Arc<Segment>, file: LogFile, mapping: Option<Box<dyn Mapping>>) -> Active {
        segment.set_window(mapping.as_ref().and_then(|mapping| mapping.window()));
        Active { segment, file, mapping }
    }

    fn dirty(&self, named: bool) -> Dirty {
        Dirty { segment: self.segment.clone(), file: self.file.clone(), named, seal: None }
    }

    fn room(&self) -> u64 {
        self.segment.room()
    }
}

impl Writer {
    /// Appends one entry made of `parts` in order; returns its index. Readers see it from then on; when it
    /// becomes durable is the policy's matter ([`Journal::synced`](crate::Journal::synced) tells).
    ///
    /// `time_ns`: nanoseconds since 1970. If it is less than the entry's before it, that one's is stored.
    ///
    /// May wait for the disk: for the write, and at the end of a segment for the next one.
    pub fn append(&mut self, parts: &[&[u8]], time_ns: u64) -> Result<u64, AppendError> {
        self.shared.with_core(|core, shared| core.append(shared, parts, &Stamp::plain(time_ns)))
    }

    /// As [`Writer::append`], on terms; the ticket tells when the entry is acknowledged.
    pub fn append_on(&mut self, parts: &[&[u8]], terms: Terms) -> Result<Ticket, AppendError> {
        append_on(&self.shared, parts, terms)
    }

    /// Appends one entry and blocks until it is acknowledged; after a timeout that may still happen. Where that needs the
    /// disk the caller carries out the sync itself, for all who wait meanwhile: quicker than
    /// [`Writer::append_on`] and [`Ticket::wait`], which leave it to the log's own thread. Such a sync is not interrupted:
    /// who must not wait longer than the timeout for a disk that hangs takes those.
    pub fn append_and_wait(
        &mut self,
        parts: &[&[u8]],
        terms: Terms,
        timeout: Duration,
    ) -> Result<Ack, CommitError> {
        append_and_wait(&self.shared, parts, terms, timeout)
    }

    /// Appends an entry that several writes share; returns its index. `terms` has the sum of their values and the
    /// strictest of their levels ([`Level::stricter`]), `largest` is the largest of the values, which is what
    /// [`RiskPolicy::single`](crate::RiskPolicy::single) is compared with. Each write gets a
    /// [`ticket`](Journal::ticket). No level asks for its sync here: [`Journal::request_sync`] does.
    pub fn append_shared(&mut self, parts: &[&[u8]], terms: Terms, largest: u64) -> Result<u64, AppendError> {
        let stamp = Stamp { largest, ..Stamp::on(terms) };
        self.shared.with_core(|core, shared| core.append(shared, parts, &stamp))
    }

    /// Appends an entry that `build` writes into a buffer that is kept for that. If it fails or panics nothing is
    /// appended.
    pub fn build<E: From<AppendError>>(
        &mut self,
        terms: Terms,
        build: impl FnOnce(&mut Payload<'_>) -> Result<(), E>,
    ) -> Result<Ticket, E> {
        build_on(&self.shared, terms, build)
    }

    /// Appends many entries, all on the same terms. Where payloads are stored as they are that takes far fewer writes than
    /// entries, unless the segment is in memory: then there are none.
    ///
    /// After an error some of them may have been appended: [`BatchError::appended`] says which.
    pub fn append_all(
        &mut self,
        payloads: &[&[u8]],
        terms: Terms,
    ) -> Result<RangeInclusive<u64>, BatchError> {
        append_all(&self.shared, payloads, terms)
    }

    /// A handle on the log.
    pub fn journal(&self) -> Journal {
        Journal(self.shared.clone())
    }

    /// A handle that other threads can append with.
    pub fn appender(&self) -> Appender {
        Appender(self.shared.clone())
    }

    /// Syncs everything, marks the log as cleanly closed and gives the folder free.
    pub fn close(mut self) -> Result<(), CloseError> {
        let core = self.stop();
        self.shared.last_round();
        self.end(core);
        if let Some(failure) = self.shared.desk.failure() {
            return Err(failure.into());
        }
        let mut state_file = self.shared.state_file.lock();
        let synced = self.shared.desk.synced();
        state_file
            .update(|s| (s.clean, s.durable_upto) = (true, synced))
            .map_err(|e| self.shared.desk.fail(e))?;
        // Still under the lock: nothing may be written after the clean mark.
        self.shared.desk.close();
        Ok(())
    }

    /// From here on nobody appends, and nothing is synced. First the core: who appends may hold it until the syncer has
    /// made room.
    fn stop(&mut self) -> Option<Core> {
        let core = self.shared.core.lock().take();
        self.syncer.stop();
        core
    }

    fn end(&mut self, core: Option<Core>) {
        self.keeper = None;
        let Some(mut core) = core else { return };
        // The next writer, perhaps of another process, may do with the file what it likes.
        core.active.segment.set_window(None);
        if let Err(error) = core.preparer.stop(&self.shared.folder) {
            tracing::warn!(%error, "an unused segment file stays until the next opening");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let core = self.stop();
        self.end(core);
        // Under the lock, so that no segment is dropped once the folder's lock is free.
        let _state_file = self.shared.state_file.lock();
        self.shared.desk.close();
    }
}

impl Appender {
    /// As [`Writer::append_on`].
    pub fn append_on(&self, parts: &[&[u8]], terms: Terms) -> Result<Ticket, AppendError> {
        append_on(&self.0, parts, terms)
    }

    /// As [`Writer::append_and_wait`].
    pub fn append_and_wait(
        &self,
        parts: &[&[u8]],
        terms: Terms,
        timeout: Duration,
    ) -> Result<Ack, CommitError> {
        append_and_wait(&self.0, parts, terms, timeout)
    }

    /// As [`Writer::build`].
    pub fn build<E: From<AppendError>>(
        &self,
        terms: Terms,
        build: impl FnOnce(&mut Payload<'_>) -> Result<(), E>,
    ) -> Result<Ticket, E> {
        build_on(&self.0, terms, build)
    }

    /// As [`Writer::append_all`].
    pub fn append_all(&self, payloads: &[&[u8]], terms: Terms) -> Result<RangeInclusive<u64>, BatchError> {
        append_all(&self.0, payloads, terms)
    }
}

/// Why not all entries of a batch were appended.
#[derive(Debug, thiserror::Error)]
#[error("{error} ({appended} entries before it were appended)")]
pub struct BatchError {
    /// How many of the entries, from the first on, were appended.
    pub appended: u64,
    /// Why the next one was not, as far as that is known: see [`AppendError::Failed`].
    pub error: AppendError,
}

/// Why an entry was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// It was not appended, as far as that is known: see [`AppendError::Failed`].
    #[error(transparent)]
    Append(#[from] AppendError),
    /// It was appended, and has this index.
    #[error("entry {index} was appended and is not acknowledged: {error}")]
    Wait {
        /// Its position in the log.
        index: u64,
        /// Why it is not acknowledged.
        error: WaitError,
    },
}

fn append_and_wait(
    shared: &Arc<Shared>,
    parts: &[&[u8]],
    terms: Terms,
    timeout: Duration,
) -> Result<Ack, CommitError> {
    let index = shared.with_core(|core, shared| core.append(shared, parts, &Stamp::on(terms)))?;
    let asked = Asked { level: terms.level, index, value: terms.value };
    let lead = || shared.lead();
    let lead = asks_for_sync(shared, terms.level).then_some(&lead as &dyn Fn());
    let answer = shared.desk.wait_ack(&asked, &mut false, timeout, lead);
    answer.map_err(|error| CommitError::Wait { index, error })
}

fn append_on(shared: &Arc<Shared>, parts: &[&[u8]], terms: Terms) -> Result<Ticket, AppendError> {
    let index = shared.with_core(|core, shared| core.append(shared, parts, &Stamp::on(terms)))?;
    Ok(Ticket::new(shared, index, terms))
}

fn build_on<E: From<AppendError>>(
    shared: &Arc<Shared>,
    terms: Terms,
    build: impl FnOnce(&mut Payload<'_>) -> Result<(), E>,
) -> Result<Ticket, E> {
    let mut core = shared.core.lock();
    let core = core.as_mut().ok_or(AppendError::Closed)?;
    core.check(shared)?;
    core.begin();
    // Taken out, so that it can be appended from; `begin` makes do without it if `build` panics.
    let mut built = std::mem::take(&mut core.built);
    built.clear();
    build(&mut Payload(&mut built))?;
    let appended = core.append(shared, &[&built], &Stamp::on(terms));
    if built.capacity() <= 2 * BATCH_BYTES {
        core.built = built;
    }
    Ok(Ticket::new(shared, appended?, terms))
}

fn append_all(
    shared: &Arc<Shared>,
    payloads: &[&[u8]],
    terms: Terms,
) -> Result<RangeInclusive<u64>, BatchError> {
    let mut core = shared.core.lock();
    let none = |error| BatchError { appended: 0, error };
    let core = core.as_mut().ok_or(none(AppendError::Closed))?;
    core.check(shared).map_err(none)?;
    let first = core.last.index + 1;
    let done = core.append_all(shared, payloads, &Stamp::on(terms));
    match done {
        Ok(()) => {
            request_for(shared, terms.level);
            Ok(first..=core.last.index)
        }
        Err(error) => Err(BatchError { appended: core.last.index + 1 - first, error }),
    }
}

fn request_for(shared: &Shared, level: Level) {
    if asks_for_sync(shared, level) {
        shared.desk.request(Cause::Request);
    }
}

/// Some levels do not come by themselves under every policy.
fn asks_for_sync(shared: &Shared, level: Level) -> bool {
    match level {
        Level::Sync | Level::QuorumSync => true,
        Level::ReplicatedOrSync => !shared.desk.reaches_followers(),
        Level::Async | Level::Replicated | Level::Risk => false,
    }
}

/// The bytes of an entry that is being built ([`Writer::build`]).
pub struct Payload<'a>(&'a mut Vec<u8>);

impl Payload<'_> {
    /// What was written so far.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.0
    }

    /// Adds bytes, which become an entry that is too large only when it is appended.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl Write for Payload<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An appended entry on its way to its acknowledgement.
///
/// Dropping it gives up the acknowledgement, not the entry.
pub struct Ticket {
    shared: Arc<Shared>,
    asked: Asked,
    held: bool,
    ack: Option<Ack>,
}

impl Ticket {
    fn new(shared: &Arc<Shared>, index: u64, terms: Terms) -> Ticket {
        request_for(shared, terms.level);
        Ticket::of_part(shared, Asked { level: terms.level, index, value: terms.value })
    }

    pub(crate) fn of_part(shared: &Arc<Shared>, asked: Asked) -> Ticket {
        Ticket { shared: shared.clone(), asked, held: false, ack: None }
    }

    /// The entry's index.
    pub fn index(&self) -> u64 {
        self.asked.index
    }

    /// True if the value at risk has stood in the way of the acknowledgement.
    pub fn was_held(&self) -> bool {
        self.held
    }

    /// The acknowledgement, if it can be given now. Asking does not change what it depends on, so ask again after
    /// [`Journal::on_synced`](crate::Journal::on_synced) or a change of the cluster.
    pub fn poll(&mut self) -> Result<Option<Ack>, WaitError> {
        if self.ack.is_none() {
            self.ack = self.shared.desk.acknowledge(&self.asked, &mut self.held)?;
        }
        Ok(self.ack)
    }

    /// Waits for the acknowledgement. After a timeout it may still come.
    pub fn wait(&mut self, timeout: Duration) -> Result<Ack, WaitError> {
        if let Some(ack) = self.poll()? {
            return Ok(ack);
        }
        let ack = self.shared.desk.wait_ack(&self.asked, &mut self.held, timeout, None)?;
        self.ack = Some(ack);
        Ok(ack)
    }
}

/// What the frame says besides the payload.
struct Stamp {
    time_ns: u64,
    value: u64,
    /// The largest of the values that make up `value`.
    largest: u64,
    level: Option<Level>,
    kind: Kind,
    encoding: Encoding,
}

impl Stamp {
    fn plain(time_ns: u64) -> Stamp {
        let encoding = Encoding::default();
        Stamp { time_ns, value: 0, largest: 0, level: None, kind: Kind::Data, encoding }
    }

    fn on(terms: Terms) -> Stamp {
        let Terms { time_ns, value, level } = terms;
        Stamp { value, largest: value, level: Some(level), ..Stamp::plain(time_ns) }
    }

    fn weight(&self, frame: &Frame) -> Weight {
        Weight { value: self.value, largest: self.largest, bytes: frame.stride() }
    }
}

impl Shared {
    fn with_core<T>(
        &self,
        act: impl FnOnce(&mut Core, &Shared) -> Result<T, AppendError>,
    ) -> Result<T, AppendError> {
        let mut core = self.core.lock();
        let core = core.as_mut().ok_or(AppendError::Closed)?;
        core.check(self)?;
        act(core, self)
    }
}

/// The end of the log, and all that is needed to move it.
pub(crate) struct Core {
    active: Active,
    last: Last,
    segment_bytes: u64,
    cycle: Option<Cycle>,
    /// The turn of the cycle in which the active segment's first frame lies, if there is both.
    lap: Option<Lap>,
    preparer: Preparer,
    /// True once the spare was asked for since the last roll.
    spare_wanted: bool,
    /// Bytes of the frames that are published next: they are in the file already where that is in memory, else in the
    /// scratch.
    added: u64,
    scratch: Vec<u8>,
    /// What these frames are for the account of what is at risk.
    entries: Vec<Weight>,
    /// Where payloads are built.
    built: Vec<u8>,
    /// Makes what is stored of payloads. It stays here whatever happens: what is to be encrypted is never stored as it is.
    coder: Coder,
}

impl Core {
    fn check(&self, shared: &Shared) -> Result<(), AppendError> {
        shared.desk.failure().map_or(Ok(()), |failure| Err(AppendError::Failed(failure)))
    }

    /// Forgets what an earlier append left, and the memory that a large one took.
    fn begin(&mut self) {
        if self.scratch.capacity() > 2 * BATCH_BYTES {
            self.scratch = Vec::new();
        }
        self.added = 0;
        self.scratch.clear();
        self.entries.clear();
    }

    fn append(&mut self, shared: &Shared, parts: &[&[u8]], stamp: &Stamp) -> Result<u64, AppendError> {
        if self.coder.is_plain() {
            return self.append_as_is(shared, parts, stamp);
        }
        payload_len(parts.iter().map(|p| p.len()))?;
        let packed = self.coder.pack(parts).map_err(|cause| {
            let (action, file, cause) = ("get random bytes for", shared.folder.path(""), Arc::new(cause));
            AppendError::Failed(shared.desk.fail(DiskError { action, file, cause }))
        })?;
        let payload_len = payload_len([packed])?;
        self.begin();
        let stamp = Stamp { encoding: self.coder.encoding(), ..*stamp };
        // Only when there is room is it known where the entry goes.
        let time_ns = self.make_room(shared, payload_len, &stamp)?;
        let frame = self.next_frame(shared, payload_len, self.last, time_ns, &stamp);
        let stored = self.coder.seal(&frame, &shared.log_id);
        let index = self.put(shared, &[&stored], &frame, &stamp);
        self.coder.reuse(stored);
        index
    }

    fn append_as_is(&mut self, shared: &Shared, parts: &[&[u8]], stamp: &Stamp) -> Result<u64, AppendError> {
        let payload_len = payload_len(parts.iter().map(|p| p.len()))?;
        self.begin();
        let time_ns = self.make_room(shared, payload_len, stamp)?;
        let frame = self.next_frame(shared, payload_len, self.last, time_ns, stamp);
        self.put(shared, parts, &frame, stamp)
    }

    /// Writes and publishes a frame that has been seen to have room.
    fn put(
        &mut self,
        shared: &Shared,
        parts: &[&[u8]],
        frame: &Frame,
        stamp: &Stamp,
    ) -> Result<u64, AppendError> {
        let is_small = frame.payload_len as usize <= COPY_BYTES_MAX;
        // A store makes a whole piece of the file's pages one that the next sync has to write; a call only its blocks.
        let is_synced_next = stamp.level.is_some_and(|level| asks_for_sync(shared, level));
        if is_small && (self.active.mapping.is_none() || is_synced_next) {
            let last = self.add_by_call(shared, parts, frame, stamp);
            self.publish_added(shared, last)?;
        } else if self.active.mapping.is_some() {
            let last = self.add(shared, parts, frame, stamp)?;
            self.publish_added(shared, last)?;
        } else {
            self.write(shared, parts, frame, stamp)?;
        }
        Ok(frame.index)
    }

    /// Writes a frame in parts and publishes it.
    fn write(
        &mut self,
        shared: &Shared,
        parts: &[&[u8]],
        frame: &Frame,
        stamp: &Stamp,
    ) -> Result<(), AppendError> {
        let (header, last) = header(shared, parts, frame, self.active.segment.salt);
        let padding = frame.stride() as usize - header.len() - frame.payload_len as usize;
        let mut slices = Vec::with_capacity(parts.len() + 2);
        slices.push(IoSlice::new(&header));
        slices.extend(parts.iter().map(|p| IoSlice::new(p)));
        slices.push(IoSlice::new(&PADDING[..padding]));
        let at = self.active.segment.end();
        let written = self.active.file.write(&mut slices, at);
        self.settle(shared, written, at, frame.stride())?;
        self.entries.push(stamp.weight(frame));
        self.publish(shared, frame.stride(), last);
        Ok(())
    }

    /// Adds a frame to those that are published next: puts it into the file where that is in memory, else into the
    /// scratch. It has been seen to have room.
    fn add(
        &mut self,
        shared: &Shared,
        parts: &[&[u8]],
        frame: &Frame,
        stamp: &Stamp,
    ) -> Result<Last, AppendError> {
        let Some(mapping) = &mut self.active.mapping else {
            return Ok(self.add_by_call(shared, parts, frame, stamp));
        };
        let at = self.active.segment.end() + self.added;
        let (header, last) = header(shared, parts, frame, self.active.segment.salt);
        mapping.store(at, &header, parts).map_err(|cause| {
            let error = self.active.file.error("write")(cause);
            AppendError::Failed(shared.desk.fail(error))
        })?;
        self.added(frame, stamp);
        Ok(last)
    }

    /// As [`Core::add`], into the scratch wherever the file is.
    fn add_by_call(&mut self, shared: &Shared, parts: &[&[u8]], frame: &Frame, stamp: &Stamp) -> Last {
        let (header, last) = header(shared, parts, frame, self.active.segment.salt);
        let end = self.scratch.len() + frame.stride() as usize;
        self.scratch.extend_from_slice(&header);
        parts.iter().for_each(|part| self.scratch.extend_from_slice(part));
        self.scratch.resize(end, 0);
        self.added(frame, stamp);
        last
    }

    fn added(&mut self, frame: &Frame, stamp: &Stamp) {
        self.added += frame.stride();
        if frame.kind == Kind::Data {
            self.entries.push(stamp.weight(frame));
        }
    }

    /// A batch has one time, so it cannot pass the end of a cycle in its middle.
    fn append_all(&mut self, shared: &Shared, payloads: &[&[u8]], stamp: &Stamp) -> Result<(), AppendError> {
        if !self.coder.is_plain() {
            return payloads.iter().try_for_each(|payload| self.append(shared, &[payload], stamp).map(drop));
        }
        self.begin();
        // The last of the frames that were added, which are not part of the log yet.
        let mut ahead: Option<Last> = None;
        for payload in payloads {
            let checked = payload_len([payload.len()]);
            let added = self.added + stride(payload.len() as u64);
            let fits = added <= self.active.room() && added <= BATCH_BYTES as u64;
            if checked.is_err() || !fits {
                self.publish_ahead(shared, &mut ahead)?;
            }
            let payload_len = checked?;
            if ahead.is_none() && payload.len() > COPY_BYTES_MAX {
                self.append(shared, &[payload], stamp)?;
                self.begin();
                continue;
            }
            let (prev, time_ns) = match ahead {
                Some(prev) => (prev, prev.time_ns),
                None => {
                    let time_ns = self.make_room(shared, payload_len, stamp)?;
                    (self.last, time_ns)
                }
            };
            let frame = self.next_frame(shared, payload_len, prev, time_ns, stamp);
            ahead = Some(self.add(shared, &[payload], &frame, stamp)?);
        }
        self.publish_ahead(shared, &mut ahead)
    }

    fn publish_ahead(&mut self, shared: &Shared, ahead: &mut Option<Last>) -> Result<(), AppendError> {
        let Some(last) = ahead.take() else { return Ok(()) };
        self.publish_added(shared, last)?;
        self.begin();
        Ok(())
    }

    /// Publishes the frames that were added, of which `last` is the last, writing them first if they are in the scratch.
    fn publish_added(&mut self, shared: &Shared, last: Last) -> Result<(), AppendError> {
        if !self.scratch.is_empty() {
            let at = self.active.segment.end();
            let written = self.active.file.write_bytes(&self.scratch, at);
            self.settle(shared, written, at, self.added)?;
        }
        self.publish(shared, self.added, last);
        Ok(())
    }

    /// Makes frames visible that have one time.
    fn publish(&mut self, shared: &Shared, bytes: u64, last: Last) {
        let segment = &self.active.segment;
        let end = segment.end() + bytes;
        segment.publish(end, last.index, last.time_ns);
        let mapping = &mut self.active.mapping;
        let show = || mapping.iter_mut().for_each(|mapping| mapping.publish(end));
        shared.desk.publish(last.index, self.entries.drain(..), show);
        self.last = last;
        if !self.spare_wanted && self.active.segment.is_half_full() {
            self.want_spare();
        }
    }

    pub(crate) fn want_spare(&mut self) {
        self.spare_wanted = true;
        self.preparer.want();
    }

    /// Appends a mark of the log itself; false if the segment has no room for it. Its time is that of the entry before.
    pub(crate) fn append_mark(&mut self, shared: &Shared, mark: &Synced) -> Result<bool, AppendError> {
        self.check(shared)?;
        let stamp = Stamp { kind: Kind::Synced, ..Stamp::plain(self.last.time_ns) };
        // The syncer is here: it must not wait for itself to make room.
        if stride(crate::control::BYTES as u64) > self.active.room() {
            return Ok(false);
        }
        self.append_as_is(shared, &[&mark.encode()], &stamp)?;
        Ok(true)
    }

    /// The frame after `prev`, before its payload is known.
    fn next_frame(
        &self,
        shared: &Shared,
        payload_len: u32,
        prev: Last,
        time_ns: u64,
        stamp: &Stamp,
    ) -> Frame {
        Frame {
            index: prev.index + 1,
            term: prev.term,
            time_ns,
            value: stamp.value,
            kind: stamp.kind,
            encoding: stamp.encoding,
            level: stamp.level,
            payload_len,
            durable_upto: shared.desk.synced(),
            prev_link: prev.link,
            ..Frame::default()
        }
    }

    /// What a write at `at` leads to.
    fn settle(
        &self,
        shared: &Shared,
        written: Result<(), DiskError>,
        at: u64,
        bytes: u64,
    ) -> Result<(), AppendError> {
        let Err(error) = written else { return Ok(()) };
        if error.is_no_space() {
            match self.active.file.write_zeros(at, at + bytes, PIECE_BYTES) {
                // Where even that finds no space the remains stay: they lie past the end and the next frame
                // overwrites their header, so they are never more than a torn tail.
                Ok(()) => return Err(AppendError::NoSpace(error)),
                Err(e) if e.is_no_space() => return Err(AppendError::NoSpace(error)),
                Err(e) => return Err(AppendError::Failed(shared.desk.fail(e))),
            }
        }
        Err(AppendError::Failed(shared.desk.fail(error)))
    }

    /// Sees to it that the next frame has room in the segment of its cycle; the time it gets.
    fn make_room(&mut self, shared: &Shared, payload_len: u32, stamp: &Stamp) -> Result<u64, AppendError> {
        let frame_bytes = stride(payload_len.into());
        let time_ns = stamp.time_ns.max(self.last.time_ns);
        if let Some(lap) = self.next_lap(time_ns) {
            if self.active.segment.is_empty() {
                self.relabel(shared, &lap)?;
            } else {
                self.roll(shared, frame_bytes, Some(&lap))?;
            }
            self.lap = Some(lap);
        }
        if frame_bytes > self.active.room() {
            let lap = self.lap.clone();
            self.roll(shared, frame_bytes, lap.as_ref())?;
        }
        Ok(time_ns)
    }

    /// The turn of the cycle that begins with an entry of this time, if one does.
    fn next_lap(&self, time_ns: u64) -> Option<Lap> {
        let cycle = self.cycle.as_ref()?;
        let lasts = |lap: &Lap| time_ns < lap.end_ns || lap.end_ns == u64::MAX;
        (!self.lap.as_ref().is_some_and(lasts)).then(|| cycle.at(time_ns))
    }

    /// Goes on to a new segment that has room for a frame of `frame_bytes`.
    pub(crate) fn roll(
        &mut self,
        shared: &Shared,
        frame_bytes: u64,
        lap: Option<&Lap>,
    ) -> Result<(), AppendError> {
        let next = self.next_segment(shared, frame_bytes, lap).map_err(segment_error)?;
        let segment = &self.active.segment;
        let seal = (!segment.is_empty()).then(|| Seal {
            last: self.last.index,
            end: segment.end(),
            term: self.last.term,
            time_ns: self.last.time_ns,
            link: self.last.link,
        });
        self.replace_active(shared, next, seal)
    }

    /// Gives the active segment, which has no frame yet, the name of the cycle that begins.
    fn relabel(&mut self, shared: &Shared, lap: &Lap) -> Result<(), AppendError> {
        let Active { segment, file, .. } = &mut self.active;
        let name = segment::labelled_name(Some(&lap.label), segment.base);
        let before = segment.name();
        if name == before {
            return Ok(());
        }
        shared.folder.rename(&before, &name).map_err(segment_error)?;
        segment.set_name(&name);
        *file = file.clone().renamed(shared.folder.path(&name));
        shared.desk.renamed(file.clone());
        Ok(())
    }

    fn replace_active(
        &mut self,
        shared: &Shared,
        next: Active,
        seal: Option<Seal>,
    ) -> Result<(), AppendError> {
        {
            let mut segments = shared.segments.write();
            if seal.is_none() {
                // The new one takes the place of one without a frame.
                segments.pop();
            }
            segments.push(next.segment.clone());
        }
        let dirty = next.dirty(false);
        (self.active, self.spare_wanted) = (next, false);
        if self.cycle.is_some() {
            // A cycle may end at any time.
            self.want_spare();
        }
        shared.desk.roll(seal, dirty).map_err(AppendError::Failed)
    }

    fn next_segment(
        &self,
        shared: &Shared,
        frame_bytes: u64,
        lap: Option<&Lap>,
    ) -> Result<Active, DiskError> {
        let folder = &shared.folder;
        let need = (FRAMES_AT + frame_bytes).next_multiple_of(4096);
        let spare = if need > self.segment_bytes {
            Spare::make(folder, Role::Large, shared.log_id, need)?
        } else {
            self.preparer.take()?
        };
        activate(spare, folder, self.last.index + 1, lap)
    }
}

/// A frame's header for its payload, and what the core's `last` becomes with it.
fn header(shared: &Shared, parts: &[&[u8]], frame: &Frame, salt: u64) -> (HeaderBytes, Last) {
    let (header, link) = frame.encode_with(&shared.log_id, parts, salt);
    (header, Last { index: frame.index, term: frame.term, time_ns: frame.time_ns, link })
}

fn segment_error(error: DiskError) -> AppendError {
    if error.is_no_space() { AppendError::NoSpace(error) } else { AppendError::Segment(error) }
}

fn payload_len(parts: impl IntoIterator<Item = usize>) -> Result<u32, AppendError> {
    let bytes = parts.into_iter().fold(0u64, |sum, part| sum.saturating_add(part as u64));
    match u32::try_from(bytes) {
        Ok(len) if bytes <= PAYLOAD_BYTES_MAX => Ok(len),
        _ => Err(AppendError::TooLarge { bytes, bytes_max: PAYLOAD_BYTES_MAX }),
    }
}
