//! Reading a log that another process writes, or nobody.
//!
//! A view takes no lock and writes nothing. It learns of new entries by looking: at the place after the last frame
//! it knows, and, where nothing comes there, for a new segment. A frame counts once it is whole and continues the
//! chain. One that is not is still being written, unless the log goes on behind it: then it is damage.
//!
//! What is on disk a view knows only from what the frames and the state say, so it lags behind the writer's own mark: it
//! learns of the sync of the last entries with the next frame, or when the log is closed.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::ack::Watermarks;
use crate::codec::Key;
use crate::control::Synced;
use crate::cursor::{self, CursorError, CursorPosition};
use crate::disk::{Disk, RealDisk};
use crate::error::{Damage, DiskError, OpenError, ReadError};
use crate::file::Folder;
use crate::frame::{Frame, Kind, stride};
use crate::recover::{Found, load, segment_names};
use crate::scan::{Scanner, Slot};
use crate::secrecy;
use crate::segment::Segment;
use crate::state::{State, StateFile};
use crate::tail::{NamedTailer, Source, Tailer, Visibility, check_next};

/// How long a view that found nothing waits before it looks for a new segment.
const LIST_EVERY: Duration = Duration::from_millis(1);
/// How long it waits before it reads the state again.
const READ_STATE_EVERY: Duration = Duration::from_millis(50);
/// First and longest pause of a reader that waits.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// A log, for reading only. Clones share what they know of it.
///
/// With [`Visibility::Synced`] the last entries of a log that rests are seen when the next one is appended, when the log is
/// closed, or when a SYNCED mark follows ([`RiskPolicy::announce`](crate::RiskPolicy::announce)): nothing else that another
/// process writes tells of a sync.
#[derive(Clone)]
pub struct LogView(Arc<Inner>);

struct Inner {
    folder: Folder,
    state: State,
    /// What payloads are decrypted with.
    key: OnceLock<Key>,
    segments: RwLock<Vec<Arc<Segment>>>,
    written: AtomicU64,
    synced: AtomicU64,
    end: Mutex<End>,
}

/// Where the next frame is looked for.
struct End {
    segment: Arc<Segment>,
    scanner: Scanner,
    /// Link of the last frame; unknown if the log has none that is kept.
    link: Option<u32>,
    listed: Option<Instant>,
    /// When the state was last read.
    state_read: Option<Instant>,
}

impl LogView {
    /// Looks at the log in a folder.
    pub fn open(dir: impl AsRef<Path>) -> Result<LogView, OpenError> {
        let dir = dir.as_ref();
        let disk = RealDisk::existing(dir).map_err(|e| DiskError {
            action: "open the folder",
            file: dir.to_owned(),
            cause: Arc::new(e),
        })?;
        LogView::open_on(Arc::new(disk))
    }

    /// As [`LogView::open`], on any disk.
    pub fn open_on(disk: Arc<dyn Disk>) -> Result<LogView, OpenError> {
        let folder = Folder::new(disk);
        loop {
            let state = StateFile::open_read(&folder)?.state().clone();
            let first = state.first;
            match Inner::open(folder.clone(), state) {
                // Retention has removed segments meanwhile.
                Err(_) if StateFile::open_read(&folder)?.state().first > first => {}
                opened => return Ok(LogView(Arc::new(opened?))),
            }
        }
    }

    /// The same view, which can read what is encrypted with this key.
    ///
    /// # Errors
    /// [`OpenError::Key`] if it is not the log's.
    pub fn with_key(self, key: Key) -> Result<LogView, OpenError> {
        secrecy::check_key(&self.0.folder, &self.0.state, &key)?;
        self.0.key.get_or_init(|| key);
        Ok(self)
    }

    /// Whether it needs a key to be read.
    pub fn is_encrypted(&self) -> bool {
        self.0.state.key_check.is_some()
    }

    /// Reads from the beginning, in either direction.
    pub fn tailer(&self) -> Tailer {
        Tailer::new(self.0.clone())
    }

    /// As [`Journal::named_tailer`](crate::Journal::named_tailer).
    pub fn named_tailer(&self, name: &str) -> Result<NamedTailer, CursorError> {
        NamedTailer::open(self.tailer(), self.0.folder.clone(), self.0.state.log_id, name)
    }

    /// The named positions, in the order of their names.
    pub fn cursors(&self) -> Result<Vec<CursorPosition>, CursorError> {
        cursor::list(&self.0.folder, self.0.state.log_id)
    }

    /// How far the log has come, as far as can be seen from outside.
    pub fn watermarks(&self) -> Result<Watermarks, ReadError> {
        self.0.refresh()?;
        Ok(self.0.watermarks())
    }

    /// The first entry, or the next to be written if there is none.
    pub fn first_index(&self) -> u64 {
        self.0.first_index()
    }
}

/// The sealed segments at the beginning and the first that is not, without its frames; and the link before the next
/// frame, where it is known.
fn sealed_and_next(folder: &Folder, state: &State) -> Result<(Vec<Arc<Segment>>, Option<u32>), OpenError> {
    let mut segments = Vec::new();
    let mut link = (state.first == 1).then_some(0);
    let mut next = state.first;
    for (base, name) in segment_names(&folder.names()?) {
        let file = match folder.open_read(&name) {
            // Removed or renamed meanwhile. If it was the last it is looked for again.
            Err(error) if error.is_not_found() => continue,
            file => file?,
        };
        if base < state.first {
            continue;
        }
        if base != next {
            let what = "the segment does not begin where the one before it ends";
            return Err(Damage { file: file.path(), offset: 0, index: next, what }.into());
        }
        let mut found = load(file, base, &name, state)?;
        let seal = found.seal;
        if let Some(seal) = seal {
            found.trust_seal(&seal, link, state.log_id)?;
            (link, next) = (Some(seal.link), seal.last + 1);
        }
        segments.push(Arc::new(found.to_segment()));
        if seal.is_none() {
            break;
        }
    }
    Ok((segments, link))
}

fn scanner(folder: &Folder, state: &State, segment: &Segment) -> Result<Scanner, DiskError> {
    Ok(Scanner::new(folder.open_read(&segment.name())?, state.log_id, segment.salt))
}

impl Inner {
    fn open(folder: Folder, state: State) -> Result<Inner, OpenError> {
        let (segments, link) = sealed_and_next(&folder, &state)?;
        let Some(segment) = segments.last().cloned() else {
            let what = "there is no segment";
            return Err(Damage { file: folder.path(""), offset: 0, index: state.first, what }.into());
        };
        let written = segment.last();
        let sealed = segments.iter().filter(|s| s.is_sealed()).map(|s| s.last()).max().unwrap_or(0);
        let end = End {
            scanner: scanner(&folder, &state, &segment)?,
            segment,
            link,
            listed: None,
            state_read: None,
        };
        let inner = Inner {
            folder,
            written: written.into(),
            synced: sealed.into(),
            segments: RwLock::new(segments),
            end: Mutex::new(end),
            key: OnceLock::new(),
            state,
        };
        inner.look_to_the_end().map_err(|error| match error {
            ReadError::Disk(error) => OpenError::Disk(error),
            ReadError::Damaged(damage) => OpenError::Damaged(damage),
            ReadError::Key { what, .. } => OpenError::Key { folder: inner.folder.path(""), what },
            ReadError::BeforeStart { index, .. } | ReadError::AfterEnd { index, .. } => {
                let what = "the log changed while it was opened";
                OpenError::Damaged(Damage { file: inner.folder.path(""), offset: 0, index, what })
            }
        })?;
        inner.raise_synced(inner.state.durable_upto);
        Ok(inner)
    }

    /// Takes in the whole frames after the last known one.
    fn walk(&self, end: &mut End) -> Result<Option<&'static str>, ReadError> {
        if end.segment.is_sealed() {
            return Ok(None);
        }
        end.scanner.forget();
        let size = end.segment.size;
        loop {
            let offset = end.segment.end();
            let (frame, link) = match end.scanner.slot(offset, size)? {
                Slot::Empty => return Ok(None),
                Slot::Fault(fault) => return Ok(Some(fault.what())),
                Slot::Frame(frame, link) => (frame, link),
            };
            if let Some(what) = check_next(&frame, end.segment.last() + 1, end.link) {
                return Ok(Some(what));
            }
            let Some(body) = end.scanner.body(offset, &frame, size)? else {
                return Ok(Some("the payload's checksum does not match"));
            };
            if frame.kind == Kind::Synced {
                let mark = Synced::decode(end.scanner.shown(&body));
                mark.into_iter().for_each(|mark| self.raise_synced(mark.upto));
            }
            end.link = Some(link);
            self.take(&end.segment, &frame);
        }
    }

    fn take(&self, segment: &Segment, frame: &Frame) {
        segment.publish(segment.end() + stride(frame.payload_len.into()), frame.index, frame.time_ns);
        self.written.store(frame.index, Ordering::SeqCst);
        self.raise_synced(frame.durable_upto);
    }

    fn raise_synced(&self, upto: u64) {
        self.synced.fetch_max(upto.min(self.written.load(Ordering::SeqCst)), Ordering::AcqRel);
    }

    /// What the writer noted last to be on disk, which is everything once it has closed the log.
    fn look_at_state(&self) {
        let Watermarks { written, synced } = self.watermarks();
        if synced < written
            && let Ok(file) = StateFile::open_read(&self.folder)
            && file.state().log_id == self.state.log_id
        {
            self.raise_synced(file.state().durable_upto);
        }
    }

    /// Looks which segments there are now. True if the end has moved to another one.
    fn list(&self, end: &mut End) -> Result<bool, ReadError> {
        end.listed = Some(Instant::now());
        if end.state_read.is_none_or(|at| at.elapsed() >= READ_STATE_EVERY) {
            end.state_read = Some(Instant::now());
            self.look_at_state();
        }
        let names = segment_names(&self.folder.names()?);
        if let Some((first, _)) = names.first() {
            // The last one stays in any case: a name may be missing while it is changed.
            let mut segments = self.segments.write();
            let gone = segments.partition_point(|s| s.base < *first).min(segments.len() - 1);
            segments.drain(..gone);
        }
        if let Some((_, name)) = names.iter().find(|(base, _)| *base == end.segment.base) {
            end.segment.set_name(name);
        }
        let next = end.segment.last() + 1;
        let Some((base, name)) = names.iter().find(|(base, _)| *base >= next) else { return Ok(false) };
        let is_ahead = *base > next;
        if is_ahead {
            // What it lacked when it was walked may have come before the new segment did.
            let what = self.walk(end)?.unwrap_or("the segment does not begin where the one before it ends");
            if *base == end.segment.last() + 1 {
                return Ok(true);
            }
            // Unless retention has removed what lay between.
            let first = StateFile::open_read(&self.folder).map_or(0, |file| file.state().first);
            if first < *base {
                let (file, offset) = (self.folder.path(&end.segment.name()), end.segment.end());
                return Err(Damage { file, offset, index: end.segment.last() + 1, what }.into());
            }
        }
        let file = match self.folder.open_read(name) {
            Err(error) if error.is_not_found() => return Ok(false),
            file => file?,
        };
        let found = match load(file, *base, name, &self.state) {
            Ok(found) => found,
            Err(OpenError::Disk(error)) => return Err(error.into()),
            Err(OpenError::Damaged(damage)) => return Err(damage.into()),
            Err(other) => {
                tracing::warn!(error = %other, "a segment that cannot be read");
                return Ok(false);
            }
        };
        if end.segment.base == *base && found.header.salt == end.segment.salt {
            return Ok(false);
        }
        self.enter(end, &found)?;
        if is_ahead {
            // The log begins here now.
            end.link = None;
            self.segments.write().retain(|segment| segment.base >= *base);
        }
        Ok(true)
    }

    fn enter(&self, end: &mut End, found: &Found) -> Result<(), ReadError> {
        // Also one that was sealed meanwhile is walked, like any other: its first frame must continue the chain.
        let header = &found.header;
        let segment = Arc::new(Segment::empty(found.name.clone(), found.base, header));
        end.scanner = scanner(&self.folder, &self.state, &segment)?;
        let mut segments = self.segments.write();
        if segments.last().is_some_and(|s| s.is_empty()) {
            segments.pop();
        }
        segments.push(segment.clone());
        end.segment = segment;
        Ok(())
    }
}

impl Inner {
    fn look_to_the_end(&self) -> Result<(), ReadError> {
        let mut end = self.end.lock();
        loop {
            self.walk(&mut end)?;
            if !self.list(&mut end)? {
                return Ok(());
            }
        }
    }
}

impl Source for Inner {
    fn refresh(&self) -> Result<(), ReadError> {
        // Whoever holds it is looking already.
        let Some(mut end) = self.end.try_lock() else { return Ok(()) };
        loop {
            let before = end.segment.last();
            self.walk(&mut end)?;
            let is_due = end.listed.is_none_or(|at| at.elapsed() >= LIST_EVERY);
            if end.segment.last() > before || !is_due || !self.list(&mut end)? {
                return Ok(());
            }
        }
    }

    fn relist(&self) -> Result<(), ReadError> {
        let mut end = self.end.lock();
        self.list(&mut end).map(drop)
    }

    fn watermarks(&self) -> Watermarks {
        let synced = self.synced.load(Ordering::Acquire);
        Watermarks { written: self.written.load(Ordering::SeqCst), synced }
    }

    fn segments(&self) -> &RwLock<Vec<Arc<Segment>>> {
        &self.segments
    }

    fn scanner(&self, segment: &Segment) -> Result<Scanner, DiskError> {
        Ok(scanner(&self.folder, &self.state, segment)?.with_key(self.key.get().cloned()))
    }

    fn wait(&self, index: u64, visibility: Visibility, deadline: Instant) -> bool {
        let mut pause = PAUSE_MIN;
        loop {
            let marks = self.watermarks();
            let limit = if visibility == Visibility::Written { marks.written } else { marks.synced };
            let left = deadline.saturating_duration_since(Instant::now());
            // The caller deals with what goes wrong when it looks itself.
            if limit > index || left.is_zero() || self.refresh().is_err() {
                return limit > index;
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn is_ended(&self, _visibility: Visibility) -> bool {
        false
    }
}
