//! Opening: finding the end of what was written, telling a torn tail from damage, making the rest durable.
//!
//! ```text
//! state ─► segments ─► walk the unsealed ones ─► first bad frame n ─► evidence beyond it ─► verdict
//!                                                                                             │
//!      n <= D: damage, error, nothing touched ◄───────────────────────────────────────────────┤
//!      n >  D: cut (a copy is kept) ─► rewrite and sync what is past D ─► state: open, durable ◄┘
//! ```
//!
//! D is the highest index that is proven to have been on disk: from the state file, from seals, and from the mark
//! that each whole frame carries, also from those beyond the bad one. Position alone never decides.
//!
//! What was read here may be in the kernel's cache only, and after a failed sync the kernel takes such pages for
//! clean. So everything past D is written again before the sync.
//!
//! Interrupted at any point and run again, the outcome is the same log.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use crate::cycle::Cycle;
use crate::error::{Damage, OpenError};
use crate::file::{Folder, LogFile};
use crate::frame::{ALIGN, Fault, HEADER_BYTES as FRAME_HEADER_BYTES, stride};
use crate::options::{CycleChoice, INDEX_MAX, PAYLOAD_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::repair;
use crate::scan::{Scanner, Slot};
use crate::segment::{
    self, Contents, FRAMES_AT, HEADER_BYTES, Header, HeaderFault, SEAL_AT, SEAL_BYTES, Seal, Segment,
};
use crate::state::{self, State, StateFile};
use crate::tail::check_next;
use crate::writer::Last;

/// What opening found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// True if there was no log and an empty one was made.
    pub created: bool,
    /// True if the log had been closed cleanly.
    pub clean: bool,
    /// True if the machine has not been restarted since the log was last opened: what was written without a sync
    /// is still there.
    pub same_boot: bool,
    /// The first entry, or the next to be written if there is none.
    pub first_index: u64,
    /// The last entry, 0 if there is none. It is durable, as are all before it.
    pub last_index: u64,
    /// What was cut from the end.
    pub cut: Option<Cut>,
}

impl Recovery {
    /// True if entries that were written but not synced may be missing without a trace.
    pub fn power_lost(&self) -> bool {
        !self.created && !self.clean && !self.same_boot
    }
}

/// A tail that was cut because it could not be read and had never been reported as synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The first index that is no more.
    pub index: u64,
    /// Where it would have been.
    pub file: PathBuf,
    /// Offset in that file.
    pub offset: u64,
    /// The check that failed there.
    pub what: &'static str,
    /// Bytes that were cut, up to the last one that is not zero.
    pub bytes: u64,
    /// Whole entries among them, from the lowest to the highest index: they were written after the entry at
    /// `index` but survived where that one did not. They were readable, and may have been acknowledged as written.
    pub lost: Option<RangeInclusive<u64>>,
    /// Files with the bytes that were cut. Nothing here ever removes them.
    pub kept_in: Vec<PathBuf>,
}

/// An opened, walked and settled log.
pub(crate) struct Recovered {
    pub state_file: StateFile,
    pub segments: Vec<Arc<Segment>>,
    /// The last segment, unless it is sealed or there is none.
    pub active: Option<(Arc<Segment>, LogFile)>,
    pub last: Last,
    pub recovery: Recovery,
}

/// A segment file as it was found.
pub(crate) struct Found {
    pub base: u64,
    pub name: String,
    pub file: LogFile,
    pub disk_bytes: u64,
    pub header: Header,
    pub seal: Option<Seal>,
    /// Where its good frames end, and the last of them; set by the walk.
    pub end: u64,
    pub last: Last,
    /// Time of the first good frame.
    pub first_time: u64,
}

/// Where the walk ended.
pub(crate) struct Stop {
    /// Position in the list of segments.
    pub segment: usize,
    /// Where the next frame would begin.
    pub offset: u64,
    pub what: &'static str,
    /// False if the segment itself does not belong where it is.
    pub keep: bool,
}

/// What the walk established.
struct Walk {
    last: Last,
    /// Highest index that is proven to be on disk.
    durable: u64,
    /// `None` if there is nothing after the last frame in which anything could lie.
    stop: Option<Stop>,
}

/// What lies beyond the stop, in one segment.
pub(crate) struct Evidence {
    /// Where it was looked for.
    pub start: u64,
    /// After the last byte that is not zero; `start` if all are.
    pub end: u64,
    /// Lowest and highest index of whole frames.
    pub whole: Option<(u64, u64)>,
    /// Highest durable mark in them.
    durable: u64,
}

/// What to do about damage to what was durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// It is an error, and nothing changes.
    KeepDurable,
    /// The log ends before it. An operator has said so.
    AcceptLoss,
}

/// Recovers the log in a locked folder. After an error other than one of the disk nothing was changed, except
/// that stray temporary files and already dropped segments are gone.
pub(crate) fn recover(
    folder: &Folder,
    choice: &CycleChoice,
    strictness: Strictness,
) -> Result<Recovered, OpenError> {
    let names = folder.names()?;
    remove_temps(folder, &names)?;
    let mut segments = segment_names(&names);
    let boot_id = folder.disk().boot_id();
    let created = !names.iter().any(|n| n == state::NAME);
    let mut state_file = match created {
        true => create(folder, &segments, boot_id, choice)?,
        false => StateFile::open(folder)?,
    };
    let cycle = chosen_cycle(state_file.state(), choice)?;
    let state = state_file.state().clone();
    finish_drop(folder, &mut segments, state.first)?;

    let mut found = load_all(folder, &segments, &state)?;
    let Walk { last, durable, stop } = walk(&mut found, &state)?;
    let evidence = gather(&found, stop.as_ref(), last.index + 1, state.log_id)?;
    let durable = evidence.iter().map(|e| e.durable).fold(durable, u64::max);
    if last.index < durable && strictness == Strictness::KeepDurable {
        return Err(missing(folder, &found, stop.as_ref(), &evidence, last.index + 1).into());
    }
    let cut = match &stop {
        Some(stop) => repair::cut(folder, &mut found, stop, &evidence, last.index + 1)?,
        None => None,
    };
    repair::settle(&mut found, if state.clean { last.index } else { durable.min(last.index) }, state.log_id)?;
    folder.sync_names()?;
    state_file.update(|s| {
        (s.boot_id, s.clean, s.durable_upto) = (boot_id, false, last.index);
        s.cycle = cycle;
    })?;

    let segments: Vec<_> = found.iter().map(|f| Arc::new(f.to_segment())).collect();
    let open_file = found.pop().filter(|f| f.seal.is_none()).map(|f| f.file);
    let recovery = Recovery {
        created,
        clean: state.clean,
        same_boot: state.boot_id == boot_id,
        first_index: state.first,
        last_index: last.index,
        cut,
    };
    Ok(Recovered { state_file, active: segments.last().cloned().zip(open_file), segments, last, recovery })
}

/// Bases and names of the segments, in order.
pub(crate) fn segment_names(names: &[String]) -> Vec<(u64, String)> {
    let with_base = |name: &String| segment::base_of(name).map(|base| (base, name.clone()));
    let mut segments: Vec<_> = names.iter().filter_map(with_base).collect();
    segments.sort_unstable();
    segments
}

/// The cycle with which the log goes on.
fn chosen_cycle(state: &State, choice: &CycleChoice) -> Result<Option<Cycle>, OpenError> {
    let text = |cycle: &Option<Cycle>| cycle.as_ref().map_or("by size only".into(), Cycle::to_string);
    match choice {
        CycleChoice::Stored => Ok(state.cycle.clone()),
        CycleChoice::Exactly(asked) if *asked != state.cycle => {
            Err(OpenError::Cycle { stored: text(&state.cycle), asked: text(asked) })
        }
        CycleChoice::Exactly(asked) | CycleChoice::ChangeTo(asked) => Ok(asked.clone()),
    }
}

fn create(
    folder: &Folder,
    segments: &[(u64, String)],
    boot_id: [u8; 16],
    choice: &CycleChoice,
) -> Result<StateFile, OpenError> {
    if !segments.is_empty() {
        let what = "it is missing although there are segments";
        return Err(Damage { file: folder.path(state::NAME), offset: 0, index: 0, what }.into());
    }
    let mut log_id = [0; 16];
    log_id[..8].copy_from_slice(&folder.disk().entropy().to_le_bytes());
    log_id[8..].copy_from_slice(&folder.disk().entropy().to_le_bytes());
    let cycle = match choice {
        CycleChoice::Stored => None,
        CycleChoice::Exactly(cycle) | CycleChoice::ChangeTo(cycle) => cycle.clone(),
    };
    Ok(StateFile::create(folder, log_id, boot_id, cycle)?)
}

fn remove_temps(folder: &Folder, names: &[String]) -> Result<(), OpenError> {
    for name in names.iter().filter(|n| n.ends_with(segment::TEMP_ENDING)) {
        folder.remove(name)?;
    }
    Ok(())
}

/// Removes the segments that retention had already given up when it was interrupted.
fn finish_drop(folder: &Folder, segments: &mut Vec<(u64, String)>, first: u64) -> Result<(), OpenError> {
    let gone = segments.partition_point(|(base, _)| *base < first);
    for (_, name) in segments.drain(..gone) {
        folder.remove(&name)?;
        folder.sync_names()?;
    }
    Ok(())
}

fn load_all(folder: &Folder, segments: &[(u64, String)], state: &State) -> Result<Vec<Found>, OpenError> {
    let mut found = Vec::with_capacity(segments.len());
    for (base, name) in segments {
        let mut segment = load(folder.open(name)?, *base, name, state)?;
        if segment.seal.is_some() {
            // The handle goes: there may be more sealed segments than handles.
            segment.file = folder.reopened(name);
        }
        found.push(segment);
    }
    Ok(found)
}

/// Checks a segment's head pages.
pub(crate) fn load(file: LogFile, base: u64, name: &str, state: &State) -> Result<Found, OpenError> {
    let len = file.len()?;
    let mut bytes = [0; HEADER_BYTES];
    file.read(&mut bytes, 0)?;
    let damaged = |what| Damage { file: file.path(), offset: 0, index: base, what };
    let header = Header::decode(&bytes).map_err(|fault| match fault {
        HeaderFault::Damaged(what) => OpenError::Damaged(damaged(what)),
        HeaderFault::Version(v) => {
            OpenError::Unsupported { file: file.path(), what: format!("segment version {v}") }
        }
    })?;
    if header.log_id != state.log_id {
        return Err(damaged("the segment belongs to another log").into());
    }
    let mut bytes = [0; SEAL_BYTES];
    file.read(&mut bytes, SEAL_AT)?;
    let seal = Seal::decode(&bytes, header.salt);
    // The whole file is on disk before it gets its name, and only what a durable seal leaves over is taken away, so
    // no crash leaves a shorter one.
    let whole = match &seal {
        Some(seal) => (seal.end.next_multiple_of(4096)..=header.size).contains(&len),
        None => len == header.size,
    };
    if !whole || !(SEGMENT_BYTES_MIN..=SIZE_MAX).contains(&header.size) {
        return Err(damaged("the segment's size is not the one in its header").into());
    }
    if seal.is_some_and(|s| s.last < base || s.last > INDEX_MAX || s.end < FRAMES_AT) {
        return Err(damaged("the segment's seal is not one for this file").into());
    }
    let name = name.to_owned();
    let (last, first_time) = (Last::default(), 0);
    Ok(Found { base, name, file, disk_bytes: len, header, seal, end: FRAMES_AT, last, first_time })
}

/// Largest file of a segment: the usual kind, or one made for the largest entry.
const SIZE_MAX: u64 = {
    let large = (FRAMES_AT + stride(PAYLOAD_BYTES_MAX)).next_multiple_of(4096);
    if large > SEGMENT_BYTES_MAX { large } else { SEGMENT_BYTES_MAX }
};

/// Follows the frames from the first kept one. Sealed segments are trusted as far as they fit together; reading
/// them checks every frame.
fn walk(found: &mut [Found], state: &State) -> Result<Walk, OpenError> {
    let mut last = Last { index: state.first - 1, ..Last::default() };
    // The link before the first entry of all is 0; the one before a dropped entry is not known.
    let mut link = (state.first == 1).then_some(0);
    let mut durable = state.durable_upto;
    for i in 0..found.len() {
        let next_base = found.get(i + 1).map(|f| f.base);
        let segment = &mut found[i];
        if segment.base != last.index + 1 {
            let what = "the segment does not begin where the one before it ends";
            let stop = Some(Stop { segment: i, offset: FRAMES_AT, what, keep: false });
            return Ok(Walk { last, durable, stop });
        }
        let fault = match segment.seal {
            Some(seal) => {
                durable = durable.max(seal.last);
                segment.trust_seal(&seal, link, state.log_id)?;
                None
            }
            None => segment.walk(&mut last, &mut link, &mut durable, state.log_id)?,
        };
        if !segment.is_empty() {
            (last, link) = (segment.last, Some(segment.last.link));
        }
        // A segment that the next one continues is complete, whatever lies after its last frame.
        let complete = segment.seal.is_some() || next_base == Some(last.index + 1);
        if !complete {
            let what = fault.unwrap_or("there are bytes after the last entry");
            let stop = Some(Stop { segment: i, offset: segment.end, what, keep: true });
            return Ok(Walk { last, durable, stop });
        }
    }
    Ok(Walk { last, durable, stop: None })
}

impl Found {
    pub(crate) fn scanner(&self, log_id: [u8; 16]) -> Scanner {
        Scanner::new(self.file.clone(), log_id, self.header.salt)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last.index < self.base
    }

    pub(crate) fn to_segment(&self) -> Segment {
        let contents = Contents {
            end: self.end,
            last: if self.is_empty() { self.base - 1 } else { self.last.index },
            first_time: self.first_time,
            last_time: self.last.time_ns,
            sealed: self.seal.is_some(),
        };
        Segment::new(self.name.clone(), self.base, &self.header, self.disk_bytes, contents)
    }

    /// Takes the end from the seal; the first frame must continue the chain.
    pub(crate) fn trust_seal(
        &mut self,
        seal: &Seal,
        link: Option<u32>,
        log_id: [u8; 16],
    ) -> Result<(), OpenError> {
        let what = match self.scanner(log_id).slot(FRAMES_AT, seal.end)? {
            Slot::Frame(frame, _) => {
                self.first_time = frame.time_ns;
                check_next(&frame, self.base, link)
            }
            Slot::Empty | Slot::Fault(_) => Some("the first frame of a sealed segment is not readable"),
        };
        if let Some(what) = what {
            return Err(Damage { file: self.file.path(), offset: FRAMES_AT, index: self.base, what }.into());
        }
        self.end = seal.end;
        self.last = Last { index: seal.last, term: seal.term, time_ns: seal.time_ns, link: seal.link };
        Ok(())
    }

    /// Follows the frames to the first that is not good; says why if there is anything.
    fn walk(
        &mut self,
        last: &mut Last,
        link: &mut Option<u32>,
        durable: &mut u64,
        log_id: [u8; 16],
    ) -> Result<Option<&'static str>, OpenError> {
        let (mut scanner, size) = (self.scanner(log_id), self.header.size);
        loop {
            let (frame, own_link) = match scanner.slot(self.end, size)? {
                Slot::Empty => return Ok(None),
                Slot::Fault(fault) => return fault_text(fault, &self.file).map(Some),
                Slot::Frame(frame, own_link) => (frame, own_link),
            };
            if let Some(what) = check_next(&frame, last.index + 1, *link) {
                return Ok(Some(what));
            }
            if !scanner.body_matches(self.end, &frame, size)? {
                return Ok(Some("the payload's checksum does not match"));
            }
            if self.end == FRAMES_AT {
                self.first_time = frame.time_ns;
            }
            self.end += stride(frame.payload_len.into());
            *durable = frame.durable_upto.max(*durable);
            *link = Some(own_link);
            *last = Last { index: frame.index, term: frame.term, time_ns: frame.time_ns, link: own_link };
            self.last = *last;
        }
    }

    /// Whether anything lies from an offset on.
    pub(crate) fn has_bytes_from(&self, start: u64) -> Result<bool, OpenError> {
        let (mut scanner, size) = (Scanner::new(self.file.clone(), [0; 16], 0), self.header.size);
        let mut at = start;
        while at < size {
            let piece = scanner.piece(at, size)?;
            if first_nonzero(piece).is_some() {
                return Ok(true);
            }
            at += piece.len() as u64;
        }
        Ok(false)
    }

    /// Looks for bytes and whole frames from `start` on. A frame's header checks itself with the file's secret
    /// salt before its payload is read, so no payload can pose as frames.
    fn evidence(&self, start: u64, next: u64, log_id: [u8; 16]) -> Result<Evidence, OpenError> {
        if let Some(seal) = self.seal {
            let whole = Some((self.base, seal.last));
            return Ok(Evidence { start, end: seal.end, whole, durable: seal.last });
        }
        let mut evidence = Evidence { start, end: start, whole: None, durable: 0 };
        let (mut scanner, size) = (self.scanner(log_id), self.header.size);
        let mut at = start;
        while at < size {
            let piece = scanner.piece(at, size)?;
            let Some(skip) = first_nonzero(piece) else {
                at += piece.len() as u64;
                continue;
            };
            at += skip as u64 / ALIGN * ALIGN;
            at += self.look(&mut scanner, at, next, &mut evidence)?;
        }
        Ok(evidence)
    }

    /// Adds what lies at `at`, where bytes were found, to the evidence; how many bytes that is.
    fn look(
        &self,
        scanner: &mut Scanner,
        at: u64,
        next: u64,
        evidence: &mut Evidence,
    ) -> Result<u64, OpenError> {
        let size = self.header.size;
        match scanner.slot(at, size)? {
            Slot::Frame(frame, _) if frame.index >= next && scanner.body_matches(at, &frame, size)? => {
                let (low, high) = evidence.whole.unwrap_or((frame.index, frame.index));
                evidence.whole = Some((low.min(frame.index), high.max(frame.index)));
                evidence.durable = evidence.durable.max(frame.durable_upto);
                evidence.end = at + FRAME_HEADER_BYTES + u64::from(frame.payload_len);
                return Ok(stride(frame.payload_len.into()));
            }
            Slot::Fault(fault @ Fault::Unsupported(_)) => drop(fault_text(fault, &self.file)?),
            Slot::Frame(..) | Slot::Fault(_) | Slot::Empty => {}
        }
        let piece = scanner.piece(at, size)?;
        let unit = &piece[..piece.len().min(ALIGN as usize)];
        if let Some(last) = unit.iter().rposition(|b| *b != 0) {
            evidence.end = at + last as u64 + 1;
        }
        Ok(ALIGN)
    }
}

/// Position of the first byte that is not zero. Compares blocks, as most of what is looked at is zeros.
fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    const ZEROS: [u8; 1024] = [0; 1024];
    let block = bytes.chunks(ZEROS.len()).position(|b| *b != ZEROS[..b.len()])?;
    let start = block * ZEROS.len();
    bytes[start..].iter().position(|b| *b != 0).map(|at| start + at)
}

/// The text of damage; what a newer version wrote is an error at once and never cut.
fn fault_text(fault: Fault, file: &LogFile) -> Result<&'static str, OpenError> {
    match fault {
        Fault::Damaged(what) => Ok(what),
        Fault::Unsupported(what) => Err(OpenError::Unsupported { file: file.path(), what: what.into() }),
    }
}

/// The evidence in the segment where the walk stopped, from there on, and in all later ones.
fn gather(
    found: &[Found],
    stop: Option<&Stop>,
    next: u64,
    log_id: [u8; 16],
) -> Result<Vec<Evidence>, OpenError> {
    let Some(stop) = stop else { return Ok(Vec::new()) };
    let start = |i| if i == stop.segment { stop.offset } else { FRAMES_AT };
    let rest = found.iter().enumerate().skip(stop.segment);
    rest.map(|(i, segment)| segment.evidence(start(i), next, log_id)).collect()
}

/// The error for a durable entry that is not there.
fn missing(
    folder: &Folder,
    found: &[Found],
    stop: Option<&Stop>,
    evidence: &[Evidence],
    index: u64,
) -> Damage {
    let at = stop.map(|s| (&found[s.segment], s.offset)).or(found.last().map(|f| (f, f.end)));
    let (file, offset) = at.map_or((folder.path(""), 0), |(f, offset)| (f.file.path(), offset));
    let bytes_there = evidence.first().is_some_and(|e| e.end > e.start);
    let what = stop.filter(|_| bytes_there).map_or("an entry that was on disk is missing", |s| s.what);
    Damage { file, offset, index, what }
}

#[cfg(test)]
mod tests {
    use super::first_nonzero;

    #[test]
    fn finds_the_first_byte_that_is_not_zero() {
        for len in [0, 1, 1023, 1024, 1025, 5000] {
            let mut bytes = vec![0; len];
            assert_eq!(first_nonzero(&bytes), None);
            for at in (0..len).rev() {
                bytes[at] = 1;
                assert_eq!(first_nonzero(&bytes), Some(at), "{len} bytes");
            }
        }
    }
}
