//! Finding a frame in a segment: by index, by time, or the one before another.
//!
//! There are no index files. Where frames lie is learnt by walking headers when somebody searches, once for each
//! segment, and kept in memory as one mark for every [`STEP_BYTES`]. So there is nothing on disk that could
//! disagree with the log, and a log that nobody searches pays nothing.

use crate::error::{Damage, ReadError};
use crate::frame::stride;
use crate::scan::{Scanner, Slot};
use crate::segment::{FRAMES_AT, Segment};

/// Bytes of frames between two marks: what a search walks at most, besides one frame.
const STEP_BYTES: u64 = 64 << 10;

/// Where a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub index: u64,
    pub offset: u64,
    pub time_ns: u64,
}

/// What was learnt of a segment so far.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// In order; the first is the segment's first frame.
    list: Vec<Mark>,
    /// The first frame that was not walked yet; unknown at the beginning.
    next: Option<Mark>,
}

impl Marks {
    /// Walks on until a frame fulfils `enough`, or to the end of what is published.
    fn learn(
        &mut self,
        segment: &Segment,
        scanner: &mut Scanner,
        enough: impl Fn(&Mark) -> bool,
    ) -> Result<(), ReadError> {
        let end = segment.end();
        let (mut index, mut offset) = self.next.map_or((segment.base, FRAMES_AT), |m| (m.index, m.offset));
        while offset < end {
            let mark = mark_at(scanner, index, offset, end)?;
            if self.list.last().is_none_or(|last| offset - last.offset >= STEP_BYTES) {
                self.list.push(mark.0);
            }
            (index, offset) = (index + 1, offset + mark.1);
            self.next = Some(Mark { index, offset, time_ns: mark.0.time_ns });
            if enough(&mark.0) {
                break;
            }
        }
        Ok(())
    }

    /// The last mark at or before an entry that is in the segment.
    pub(crate) fn before_index(
        &mut self,
        segment: &Segment,
        scanner: &mut Scanner,
        index: u64,
    ) -> Result<Mark, ReadError> {
        if self.next.is_none_or(|next| next.index <= index) {
            self.learn(segment, scanner, |m| m.index >= index)?;
        }
        let after = self.list.partition_point(|m| m.index <= index);
        let found = after.checked_sub(1).and_then(|i| self.list.get(i));
        Ok(found.copied().unwrap_or(Mark { index: segment.base, offset: FRAMES_AT, time_ns: 0 }))
    }

    /// The first entry of the segment whose time is at least `time_ns`, if there is one.
    pub(crate) fn first_at_time(
        &mut self,
        segment: &Segment,
        scanner: &mut Scanner,
        time_ns: u64,
    ) -> Result<Option<u64>, ReadError> {
        self.learn(segment, scanner, |m| m.time_ns >= time_ns)?;
        let after = self.list.partition_point(|m| m.time_ns < time_ns);
        let Some(start) = after.checked_sub(1).and_then(|i| self.list.get(i)) else {
            return Ok(self.list.first().map(|m| m.index));
        };
        let end = segment.end();
        let (mut index, mut offset) = (start.index, start.offset);
        while offset < end {
            let (mark, step) = mark_at(scanner, index, offset, end)?;
            if mark.time_ns >= time_ns {
                return Ok(Some(index));
            }
            (index, offset) = (index + 1, offset + step);
        }
        Ok(None)
    }
}

/// The frame at an offset, which must have this index, and how long it is.
fn mark_at(scanner: &mut Scanner, index: u64, offset: u64, end: u64) -> Result<(Mark, u64), ReadError> {
    let what = match scanner.slot(offset, end)? {
        Slot::Frame(frame, _) if frame.index == index => {
            let mark = Mark { index, offset, time_ns: frame.time_ns };
            return Ok((mark, stride(frame.payload_len.into())));
        }
        Slot::Frame(..) => "the frame has another index than the one that follows",
        Slot::Empty => "there are zeros where a frame was",
        Slot::Fault(fault) => fault.what(),
    };
    Err(Damage { file: scanner.file().path(), offset, index, what }.into())
}

/// Where the frames from a mark to an entry lie: for reading backward.
pub(crate) fn offsets_upto(
    scanner: &mut Scanner,
    from: Mark,
    index: u64,
    end: u64,
) -> Result<Vec<u64>, ReadError> {
    let mut offsets = Vec::new();
    let mut offset = from.offset;
    for index in from.index..=index {
        let (_, step) = mark_at(scanner, index, offset, end)?;
        offsets.push(offset);
        offset += step;
    }
    Ok(offsets)
}
