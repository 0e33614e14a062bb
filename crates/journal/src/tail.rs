//! Reading a log beside its writer, in both directions.
//!
//! ```text
//!            to_start                 position                        limit
//!               │      previous ◄────────┼────────► next                │
//!   [first ......................................................... written]
//! ```
//!
//! A tailer stands between two entries. It sees an entry only after it was published (or synced, if it was told
//! so), and never touches what lies past the published end: the writer is never slowed and a half-written frame is
//! never seen. It reads in memory while the segment is written there, else through a file handle of its own. A
//! position that is not there is an answer, not a jump.
//!
//! Marks of the log itself take an index each, so indexes of entries grow but need not be consecutive.

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use crate::ack::{Level, Watermarks};
use crate::codec::Unreadable;
use crate::control::Synced;
use crate::cursor::{Cursor, CursorError};
use crate::error::{Damage, DiskError, ReadError};
use crate::file::Folder;
use crate::frame::{Frame, Kind, stride};
use crate::scan::{Scanner, Slot};
use crate::seek::offsets_upto;
use crate::segment::{FRAMES_AT, Segment};

/// Where a tailer reads from: an open log, or one that another process writes.
pub(crate) trait Source: Send + Sync {
    /// Looks for what was appended meanwhile, where nobody tells.
    fn refresh(&self) -> Result<(), ReadError>;
    fn watermarks(&self) -> Watermarks;
    /// Ordered by base.
    fn segments(&self) -> &RwLock<Vec<Arc<Segment>>>;
    /// Looks again which files there are: one was not found under the name it had.
    fn relist(&self) -> Result<(), ReadError> {
        Ok(())
    }
    /// Opens a segment for reading.
    fn scanner(&self, segment: &Segment) -> Result<Scanner, DiskError>;
    /// Sleeps until an entry after `index` may be visible; false if it certainly is not.
    fn wait(&self, index: u64, visibility: Visibility, deadline: Instant) -> bool;
    /// True if nothing more will be seen: the log was closed, or has failed and only what is on disk is seen.
    fn is_ended(&self, visibility: Visibility) -> bool;

    /// The first entry, or the next to be written if there is none.
    fn first_index(&self) -> u64 {
        self.segments().read().first().map_or(1, |s| s.base)
    }

    /// The segment in which this entry lies, unless it was dropped.
    fn segment_with(&self, index: u64) -> Option<Arc<Segment>> {
        let segments = self.segments().read();
        let after = segments.partition_point(|s| s.base <= index);
        segments.get(after.checked_sub(1)?).cloned()
    }
}

/// How far an entry must have come for a tailer to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Visibility {
    /// Written: it may be lost in a power loss after it was read.
    #[default]
    Written,
    /// On disk.
    Synced,
}

/// What a tailer does while there is nothing to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WaitStrategy {
    /// Gives the processor away until it is woken.
    #[default]
    Park,
    /// Looks again and again for this long, which costs a processor, and then parks.
    SpinThenPark(Duration),
}

/// How often a tailer that spins looks before it asks for the time, which takes longer than a look.
const LOOKS_PER_TIME: usize = 32;

/// Where a position was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Seek {
    /// The tailer stands before this entry.
    At(u64),
    /// It is gone; the log begins with `first`. The tailer did not move.
    BeforeStart {
        /// The first entry there is.
        first: u64,
    },
    /// It is not there yet. The tailer did not move.
    AfterEnd {
        /// The next entry to be written.
        next: u64,
    },
}

/// An entry whose payload lies in the tailer's buffer, or in the file in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// Its position, from 1.
    pub index: u64,
    /// Election term of the leader that appended it; 0 without replication.
    pub term: u64,
    /// Nanoseconds since 1970 as the appender gave it, raised to the time of the entry before if it was less.
    pub time_ns: u64,
    /// Business value in risk units.
    pub value: u64,
    /// The level at which it was to be acknowledged, if the appender named one.
    pub level: Option<Level>,
    /// What was appended.
    ///
    /// With one exception: if somebody shortens the file of an open log, or the disk cannot read it any more, what is
    /// borrowed from the file in memory may become zeros. An [`Entry`](crate::Entry) of a [`Reader`](crate::Reader), and
    /// what [`Tailer::read`] answers, are checked once more after they were copied, and so are always what was appended.
    pub payload: &'a [u8],
}

/// Reads a log; cheap to make, one for each thread.
pub struct Tailer {
    source: Arc<dyn Source>,
    /// Index of what lies after the position.
    next: u64,
    forward: Option<Place>,
    backward: Option<Block>,
    visibility: Visibility,
    strategy: WaitStrategy,
    /// Entries outside of it are not shown.
    times: Range<u64>,
    mark: Option<Synced>,
}

/// Where the frame after the position lies.
struct Place {
    segment: Arc<Segment>,
    scanner: Scanner,
    offset: u64,
    /// Link of the frame before, unknown at the beginning of a segment.
    link: Option<u32>,
}

/// Where the frames before the position lie.
struct Block {
    segment: Arc<Segment>,
    scanner: Scanner,
    /// Index of the first of them.
    first: u64,
    offsets: Vec<u64>,
}

/// A frame that was found and checked, with the place of its payload in the file.
struct Peeked {
    frame: Frame,
    link: u32,
    body: Range<u64>,
}

/// What lies after the position.
enum Look {
    Entry(Peeked),
    /// Nothing that can be seen yet.
    Nothing,
    /// An entry past the end of the range.
    PastRange,
}

impl Peeked {
    fn entry<'a>(&self, scanner: &'a Scanner) -> EntryRef<'a> {
        let Frame { index, term, time_ns, value, level, .. } = self.frame;
        EntryRef { index, term, time_ns, value, level, payload: scanner.payload(&self.body, &self.frame) }
    }
}

impl Tailer {
    pub(crate) fn new(source: Arc<dyn Source>) -> Tailer {
        let next = source.first_index();
        Tailer {
            source,
            next,
            forward: None,
            backward: None,
            visibility: Visibility::default(),
            strategy: WaitStrategy::default(),
            times: 0..u64::MAX,
            mark: None,
        }
    }

    /// The same tailer with another visibility.
    pub fn with_visibility(mut self, visibility: Visibility) -> Tailer {
        self.visibility = visibility;
        self
    }

    /// The same tailer with another wait strategy.
    pub fn with_wait(mut self, strategy: WaitStrategy) -> Tailer {
        self.strategy = strategy;
        self
    }

    /// Shows only entries whose times, in nanoseconds since 1970, lie in a range; past its end the tailer finds
    /// nothing more. Does not move: [`Tailer::move_to_time`] finds the beginning.
    pub fn with_times(mut self, range: impl RangeBounds<u64>) -> Tailer {
        let start = match range.start_bound() {
            Bound::Included(at) => *at,
            Bound::Excluded(at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(at) => at.saturating_add(1),
            Bound::Excluded(at) => *at,
            Bound::Unbounded => u64::MAX,
        };
        self.times = start..end;
        self
    }

    /// Index of what comes next: an entry, a mark of the log itself, or nothing yet.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The last entry that can be seen at present.
    pub fn limit(&self) -> u64 {
        let marks = self.source.watermarks();
        match self.visibility {
            Visibility::Written => marks.written,
            Visibility::Synced => marks.synced,
        }
    }

    /// The newest SYNCED mark that the tailer has passed, reading forward. It is proof for a reader elsewhere that
    /// everything up to [`Synced::upto`] is on disk.
    pub fn last_mark(&self) -> Option<Synced> {
        self.mark
    }

    /// Moves before the first entry there is.
    pub fn to_start(&mut self) {
        self.jump(self.source.first_index());
    }

    /// Moves after the last entry that can be seen.
    pub fn to_end(&mut self) -> Result<(), ReadError> {
        self.source.refresh()?;
        self.jump(self.limit() + 1);
        Ok(())
    }

    /// Moves before an entry, which may be the next to be written.
    pub fn move_to_index(&mut self, index: u64) -> Result<Seek, ReadError> {
        self.source.refresh()?;
        let (first, next) = (self.source.first_index(), self.limit() + 1);
        if index < first {
            return Ok(Seek::BeforeStart { first });
        }
        if index > next {
            return Ok(Seek::AfterEnd { next });
        }
        self.jump(index);
        Ok(Seek::At(index))
    }

    /// Moves before the first entry whose time is `time_ns` or later, in nanoseconds since 1970.
    pub fn move_to_time(&mut self, time_ns: u64) -> Result<Seek, ReadError> {
        self.source.refresh()?;
        let limit = self.limit();
        let segments = self.source.segments().read().clone();
        // Only the last one may be empty; it has no times.
        let filled = match segments.split_last() {
            Some((last, before)) if last.is_empty() => before,
            _ => &segments,
        };
        // Times never decrease: all segments before the first that ends late enough end too early.
        let from = filled.partition_point(|s| s.times().1 < time_ns);
        for segment in &filled[from..] {
            let (segment, mut scanner) = match self.open_segment(segment.base) {
                // Removed meanwhile: the log begins with one of the next.
                Err(ReadError::BeforeStart { .. }) => continue,
                opened => opened?,
            };
            let found = segment.marks.lock().first_at_time(&segment, &mut scanner, time_ns)?;
            if let Some(index) = found.filter(|index| *index <= limit) {
                self.jump(index);
                return Ok(Seek::At(index));
            }
        }
        Ok(Seek::AfterEnd { next: limit + 1 })
    }

    fn jump(&mut self, index: u64) {
        if index != self.next {
            (self.forward, self.backward) = (None, None);
        }
        self.next = index;
    }

    /// The entry after the position, which moves past it; `None` if there is none yet, or none in the range.
    pub fn next_entry(&mut self) -> Result<Option<EntryRef<'_>>, ReadError> {
        let Some(peeked) = self.peek()? else { return Ok(None) };
        let place = self.pass(&peeked.frame, peeked.link);
        Ok(Some(peeked.entry(&place.scanner)))
    }

    /// Shows the entry after the position to `read` and moves past it only if that succeeds. `Ok(None)` if there is
    /// no entry. If the payload was lost meanwhile (see [`EntryRef::payload`]) the answer is dropped, and a
    /// [`ReadError::Disk`] says so: nothing comes from here that is not what was appended.
    pub fn read<T, E: From<ReadError>>(
        &mut self,
        read: impl FnOnce(EntryRef<'_>) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let Some(peeked) = self.peek()? else { return Ok(None) };
        let Some(place) = &self.forward else { return Ok(None) };
        let answer = read(peeked.entry(&place.scanner))?;
        place.scanner.check_shown().map_err(ReadError::from)?;
        self.pass(&peeked.frame, peeked.link);
        Ok(Some(answer))
    }

    /// As [`Tailer::next_entry`], waiting for one. `None` after the timeout, at the end of the range, as soon as
    /// the log was closed, and with [`Visibility::Synced`] as soon as it has failed.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<EntryRef<'_>>, ReadError> {
        // The clock is not asked while there is something to read.
        let mut deadline = None;
        let peeked = loop {
            match self.look()? {
                Look::Entry(peeked) => break peeked,
                Look::PastRange => return Ok(None),
                Look::Nothing => {}
            }
            let deadline = *deadline.get_or_insert_with(|| deadline_after(timeout));
            if !self.wait_until(deadline)? {
                return Ok(None);
            }
        };
        let place = self.pass(&peeked.frame, peeked.link);
        Ok(Some(peeked.entry(&place.scanner)))
    }

    /// Waits until there is something after the position; false after the timeout, if the log was closed, and with
    /// [`Visibility::Synced`] if it has failed.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, ReadError> {
        self.wait_until(deadline_after(timeout))
    }

    fn wait_until(&mut self, deadline: Instant) -> Result<bool, ReadError> {
        if let WaitStrategy::SpinThenPark(time) = self.strategy {
            let end = deadline.min(deadline_after(time));
            while Instant::now() < end {
                for _ in 0..LOOKS_PER_TIME {
                    self.source.refresh()?;
                    if self.is_next_shown().unwrap_or_else(|| self.limit() >= self.next) {
                        return Ok(true);
                    }
                    std::hint::spin_loop();
                }
            }
        }
        loop {
            // Before the look: the last entry may come with the end.
            let is_ended = self.source.is_ended(self.visibility);
            self.source.refresh()?;
            if self.limit() >= self.next {
                return Ok(true);
            }
            if is_ended || Instant::now() >= deadline {
                return Ok(false);
            }
            self.source.wait(self.next - 1, self.visibility, deadline);
        }
    }

    /// The entry before the position, which moves before it; `None` at the start of the log or of the range.
    pub fn previous_entry(&mut self) -> Result<Option<EntryRef<'_>>, ReadError> {
        let peeked = loop {
            if self.next <= self.source.first_index() {
                return Ok(None);
            }
            let index = self.next - 1;
            let mut block = match self.backward.take() {
                Some(block) if block.holds(index) => block,
                _ => self.block_before(index)?,
            };
            let found = block.frame(index);
            let block = self.backward.insert(block);
            let (frame, link) = found?;
            if frame.time_ns < self.times.start {
                return Ok(None);
            }
            let is_shown = frame.kind == Kind::Data && frame.time_ns < self.times.end;
            let peeked = is_shown.then(|| block.peek(frame, link)).transpose()?;
            (self.next, self.forward) = (index, None);
            if let Some(peeked) = peeked {
                break peeked;
            }
        };
        Ok(self.backward.as_ref().map(|block| peeked.entry(&block.scanner)))
    }

    fn block_before(&self, index: u64) -> Result<Block, ReadError> {
        let (segment, mut scanner) = self.open_segment(index)?;
        let start = segment.marks.lock().before_index(&segment, &mut scanner, index)?;
        let offsets = offsets_upto(&mut scanner, start, index, segment.end())?;
        Ok(Block { segment, scanner, first: start.index, offsets })
    }

    /// Whether the frame after the position is shown in memory, where its segment is written there. Who looks all the time
    /// looks only at this, and leaves the marks of the log, which come a moment earlier, to the writer.
    fn is_next_shown(&self) -> Option<bool> {
        let place = self.forward.as_ref().filter(|_| self.visibility == Visibility::Written)?;
        Some(place.offset < place.scanner.shown_end()?)
    }

    fn has_next(&self) -> bool {
        self.is_next_shown() == Some(true) || self.next <= self.limit()
    }

    fn peek(&mut self) -> Result<Option<Peeked>, ReadError> {
        Ok(match self.look()? {
            Look::Entry(peeked) => Some(peeked),
            Look::Nothing | Look::PastRange => None,
        })
    }

    /// Finds and checks the entry after the position, moving past what is not shown. Of what is outside of the times only
    /// the header is looked at.
    fn look(&mut self) -> Result<Look, ReadError> {
        if !self.has_next() {
            self.source.refresh()?;
        }
        while self.has_next() {
            let mut place = match self.forward.take() {
                Some(place) if place.offset < place.end() => place,
                Some(place) => self.enter(place.link)?,
                None => self.enter(None)?,
            };
            let found = place.frame(self.next);
            let place = self.forward.insert(place);
            let (frame, link) = found?;
            if frame.kind == Kind::Data {
                if frame.time_ns >= self.times.end {
                    return Ok(Look::PastRange);
                }
                if frame.time_ns < self.times.start {
                    self.pass(&frame, link);
                    continue;
                }
                return Ok(Look::Entry(place.peek(frame, link)?));
            }
            let body = place.peek(frame, link)?.body;
            let mark = Synced::decode(place.scanner.shown(&body));
            place.scanner.check_shown()?;
            self.mark = mark.or(self.mark);
            self.pass(&frame, link);
        }
        Ok(Look::Nothing)
    }

    fn pass(&mut self, frame: &Frame, link: u32) -> &Place {
        (self.next, self.backward) = (self.next + 1, None);
        let place = self.forward.as_mut().expect("what was looked at has a place");
        place.offset += frame.stride();
        place.link = Some(link);
        place
    }

    /// Opens the segment that has the next frame and finds it there.
    fn enter(&self, link: Option<u32>) -> Result<Place, ReadError> {
        let (segment, mut scanner) = self.open_segment(self.next)?;
        if self.next == segment.base {
            return Ok(Place { segment, scanner, offset: FRAMES_AT, link });
        }
        let start = segment.marks.lock().before_index(&segment, &mut scanner, self.next)?;
        let mut place = Place { segment, scanner, offset: start.offset, link: None };
        for index in start.index..self.next {
            let (frame, link) = place.frame(index)?;
            place.offset += stride(frame.payload_len.into());
            place.link = Some(link);
        }
        Ok(place)
    }

    fn open_segment(&self, index: u64) -> Result<(Arc<Segment>, Scanner), ReadError> {
        let gone = || ReadError::BeforeStart { index, first: self.source.first_index() };
        let segment = self.source.segment_with(index).ok_or_else(gone)?;
        match self.source.scanner(&segment) {
            Ok(scanner) => return Ok((segment, scanner)),
            // Removed, or renamed when its first frame came.
            Err(error) if error.is_not_found() => self.source.relist()?,
            Err(error) => return Err(error.into()),
        }
        let segment = self.source.segment_with(index).ok_or_else(gone)?;
        let scanner = match self.source.scanner(&segment) {
            Err(error) if error.is_not_found() && self.source.first_index() > index => return Err(gone()),
            scanner => scanner?,
        };
        Ok((segment, scanner))
    }
}

fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    // A time that no clock reaches is a year here.
    now.checked_add(timeout).unwrap_or(now + Duration::from_secs(365 * 86_400))
}

impl Place {
    /// Finds and checks the payload of the frame at the place.
    fn peek(&mut self, frame: Frame, link: u32) -> Result<Peeked, ReadError> {
        let end = self.end();
        peek_body(&mut self.scanner, self.offset, frame, link, end)
    }

    /// Where the frames end that can be read. What is written in memory is shown there last, so who has heard of a frame
    /// elsewhere asks the segment.
    fn end(&self) -> u64 {
        match self.scanner.shown_end() {
            Some(end) if self.offset < end => end,
            _ => self.segment.end(),
        }
    }

    /// The frame at the place, which must be the one with this index.
    fn frame(&mut self, index: u64) -> Result<(Frame, u32), ReadError> {
        let end = self.end();
        frame_at(&mut self.scanner, self.offset, index, self.link, end)
    }
}

impl Block {
    fn holds(&self, index: u64) -> bool {
        index >= self.first && index - self.first < self.offsets.len() as u64
    }

    fn offset(&self, index: u64) -> u64 {
        self.offsets[(index - self.first) as usize]
    }

    /// The frame with this index, which the block holds.
    fn frame(&mut self, index: u64) -> Result<(Frame, u32), ReadError> {
        let (offset, end) = (self.offset(index), self.segment.end());
        frame_at(&mut self.scanner, offset, index, None, end)
    }

    /// Finds and checks its payload.
    fn peek(&mut self, frame: Frame, link: u32) -> Result<Peeked, ReadError> {
        let (offset, end) = (self.offset(frame.index), self.segment.end());
        peek_body(&mut self.scanner, offset, frame, link, end)
    }
}

fn frame_at(
    scanner: &mut Scanner,
    offset: u64,
    index: u64,
    link: Option<u32>,
    end: u64,
) -> Result<(Frame, u32), ReadError> {
    let what = match scanner.slot(offset, end)? {
        Slot::Frame(frame, own_link) => match check_next(&frame, index, link) {
            None => return Ok((frame, own_link)),
            Some(what) => what,
        },
        Slot::Empty => "there are zeros where a frame was",
        Slot::Fault(fault) => fault.what(),
    };
    Err(Damage { file: scanner.file().path(), offset, index, what }.into())
}

fn peek_body(
    scanner: &mut Scanner,
    offset: u64,
    frame: Frame,
    link: u32,
    end: u64,
) -> Result<Peeked, ReadError> {
    let index = frame.index;
    let damage = |scanner: &Scanner, what| Damage { file: scanner.file().path(), offset, index, what };
    let Some(body) = scanner.body(offset, &frame, end)? else {
        return Err(damage(scanner, "the payload's checksum does not match").into());
    };
    if !frame.encoding.is_plain() {
        scanner.decode(&body, &frame).map_err(|why| match why {
            Unreadable::NoKey => ReadError::Key { index, what: "it is encrypted, and no key was given" },
            Unreadable::OtherKey => {
                ReadError::Key { index, what: "the key does not open it, or somebody has changed it" }
            }
            Unreadable::Damaged(what) => damage(scanner, what).into(),
        })?;
    }
    Ok(Peeked { frame, link, body })
}

/// Why a frame is not the one that belongs after `link`, if it is not.
pub(crate) fn check_next(frame: &Frame, index: u64, link: Option<u32>) -> Option<&'static str> {
    if frame.index != index {
        return Some("the frame has another index than the one that follows");
    }
    if link.is_some_and(|link| link != frame.prev_link) {
        return Some("the frame does not continue the chain");
    }
    None
}

/// A tailer whose position is kept in the log's folder under a name. There is one of a name at a time, over all
/// processes.
///
/// Delivery is at least once: after a crash it goes on from the last committed position, so what was read but not
/// committed is read again.
pub struct NamedTailer {
    tailer: Tailer,
    cursor: Cursor,
}

impl NamedTailer {
    pub(crate) fn open(
        mut tailer: Tailer,
        folder: Folder,
        log_id: [u8; 16],
        name: &str,
    ) -> Result<NamedTailer, CursorError> {
        let mut cursor = Cursor::open(folder, log_id, name)?;
        let next = match cursor.next() {
            Some(next) => next,
            None => {
                // Retention holds back what a position has not passed, so there must be one.
                let first = tailer.source.first_index();
                cursor.store(first, tailer.source.watermarks().synced)?;
                cursor.sync()?;
                first
            }
        };
        // After a power loss the log may end before the position: those entries will be others.
        tailer.jump(next.min(tailer.source.watermarks().written + 1));
        Ok(NamedTailer { tailer, cursor })
    }

    /// Keeps the present position: everything before it is done. Survives the end of the process.
    pub fn commit(&mut self) -> Result<(), CursorError> {
        let synced = self.tailer.source.watermarks().synced;
        Ok(self.cursor.store(self.tailer.next, synced)?)
    }

    /// As [`NamedTailer::commit`]; when it returns the position also survives a power loss, as far as what was read
    /// does.
    pub fn commit_synced(&mut self) -> Result<(), CursorError> {
        self.commit()?;
        Ok(self.cursor.sync()?)
    }

    /// The committed position: the first index that was not done. A name that is new begins with the log's first entry.
    pub fn committed(&self) -> Option<u64> {
        self.cursor.next()
    }
}

impl std::ops::Deref for NamedTailer {
    type Target = Tailer;

    fn deref(&self) -> &Tailer {
        &self.tailer
    }
}

impl std::ops::DerefMut for NamedTailer {
    fn deref_mut(&mut self) -> &mut Tailer {
        &mut self.tailer
    }
}
