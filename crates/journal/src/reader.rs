//! Reading entries in order, beside the writer.
//!
//! A reader sees an entry only after it was published, reads through a file handle of its own and never touches
//! what lies past the published end, so the writer is never slowed and a half-written frame is never seen.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Damage, DiskError, ReadError};
use crate::frame::{Fault, Frame, stride};
use crate::journal::Journal;
use crate::scan::{Scanner, Slot};
use crate::segment::{FRAMES_AT, Segment};

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its position, from 1, without gaps.
    pub index: u64,
    /// Election term of the leader that appended it; 0 without replication.
    pub term: u64,
    /// Nanoseconds since 1970 as the appender gave it, raised to the time of the entry before if it was less.
    pub time_ns: u64,
    /// Business value in risk units.
    pub value: u64,
    /// What was appended. Owns its memory alone.
    pub payload: Bytes,
}

/// An iterator over the entries from an index on.
///
/// It yields `None` at the end of what is written and goes on when more was; after an error it yields the same
/// kind of error again.
pub struct Reader {
    journal: Journal,
    next: u64,
    place: Option<Place>,
}

/// Where the next frame is looked for.
struct Place {
    segment: Arc<Segment>,
    scanner: Scanner,
    offset: u64,
    /// Link of the frame before, unknown at the beginning of a segment.
    link: Option<u32>,
}

impl Reader {
    pub(crate) fn new(journal: Journal, index: u64) -> Self {
        Reader { journal, next: index, place: None }
    }

    /// Index of the entry that comes next.
    pub fn position(&self) -> u64 {
        self.next
    }

    fn read(&mut self) -> Result<Entry, ReadError> {
        let mut place = match self.place.take() {
            Some(place) if place.offset < place.segment.end() => place,
            Some(place) => self.enter(place.link)?,
            None => self.enter(None)?,
        };
        let (frame, link) = place.frame(self.next)?;
        let body = place.scanner.body(place.offset, &frame, place.segment.end())?;
        let payload = body.ok_or_else(|| place.damage(self.next, "the payload's checksum does not match"))?;
        place.pass(&frame, link);
        self.place = Some(place);
        self.next += 1;
        let Frame { index, term, time_ns, value, .. } = frame;
        Ok(Entry { index, term, time_ns, value, payload })
    }

    /// Opens the segment that has the next entry and skips what is before it.
    fn enter(&self, link: Option<u32>) -> Result<Place, ReadError> {
        let gone = || ReadError::BeforeStart { index: self.next, first: self.journal.first_index() };
        let segment = self.journal.segment_with(self.next).ok_or_else(gone)?;
        let scanner = match self.journal.scanner(&segment) {
            Err(e) if e.is_not_found() && self.journal.first_index() > self.next => return Err(gone()),
            other => other?,
        };
        let mut place = Place { segment, scanner, offset: FRAMES_AT, link };
        for index in place.segment.base..self.next {
            let (frame, link) = place.frame(index)?;
            place.pass(&frame, link);
        }
        Ok(place)
    }
}

impl Place {
    /// The frame at the place, which must be the one with this index.
    fn frame(&mut self, index: u64) -> Result<(Frame, u32), ReadError> {
        let what = match self.scanner.slot(self.offset, self.segment.end())? {
            Slot::Frame(frame, link) => match check_next(&frame, index, self.link) {
                None => return Ok((frame, link)),
                Some(what) => what,
            },
            Slot::Empty => "there are zeros where a frame was",
            Slot::Fault(Fault::Damaged(what) | Fault::Unsupported(what)) => what,
        };
        Err(self.damage(index, what).into())
    }

    fn pass(&mut self, frame: &Frame, link: u32) {
        self.offset += stride(frame.payload_len.into());
        self.link = Some(link);
    }

    fn damage(&self, index: u64, what: &'static str) -> Damage {
        Damage { file: self.scanner.file().path(), offset: self.offset, index, what }
    }
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

impl Iterator for Reader {
    type Item = Result<Entry, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        // `written` is read before the segment's end, which is stored before it: the frame is visible.
        (self.next <= self.journal.written()).then(|| self.read())
    }
}

impl Journal {
    /// Opens a segment for reading.
    fn scanner(&self, segment: &Segment) -> Result<Scanner, DiskError> {
        let file = self.folder().open_read(&segment.name())?;
        Ok(Scanner::new(file, self.log_id(), segment.salt))
    }
}
