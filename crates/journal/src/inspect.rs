//! Looking at a log without changing it, and repairing one that cannot be opened.
//!
//! [`inspect`] reads every byte that counts and says of each kind of damage what it means and what can be done. It
//! goes on behind damage, so that its whole extent is known. [`repair`] makes a log openable again; what was
//! acknowledged as durable it gives up only when it is told to, and never without keeping the bytes in a file.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use crate::cursor::{self, CursorPosition};
use crate::disk::Disk;
use crate::error::{Damage, OpenError};
use crate::file::{Folder, LogFile};
use crate::frame::{ALIGN, Kind, stride};
use crate::journal::LOCK;
use crate::options::{CycleChoice, INDEX_MAX};
use crate::recover::{self, Cut, Found, Strictness, load, segment_names};
use crate::scan::{Scanner, Slot};
use crate::secrecy;
use crate::segment::{FRAMES_AT, Header, SEAL_AT, SEAL_BYTES, TEMP_ENDING};
use crate::state::{self, KeyCheck, State, StateFile};
use crate::tail::check_next;

/// What [`inspect`] found.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The log's random name.
    pub log_id: [u8; 16],
    /// The roll cycle, as `hourly@UTC`.
    pub cycle: Option<String>,
    /// True if a writer has the log open: its end may move while one looks.
    pub in_use: bool,
    /// True if it was closed cleanly and not opened since.
    pub clean: bool,
    /// The first entry that is kept.
    pub first_index: u64,
    /// The last entry that can be read without a break; 0 if there is none.
    pub last_index: u64,
    /// Everything up to here is proven to have been on disk.
    pub durable_upto: u64,
    /// All segments, oldest first.
    pub segments: Vec<SegmentReport>,
    /// The named positions.
    pub cursors: Vec<CursorPosition>,
    /// What is not as it should be, worst kinds first.
    pub findings: Vec<Finding>,
}

impl Inspection {
    /// The worst finding's severity.
    pub fn severity(&self) -> Option<Severity> {
        self.findings.iter().map(|f| f.severity).max()
    }
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SegmentReport {
    /// Its file's name.
    pub name: String,
    /// Its first index, present or to come.
    pub base: u64,
    /// Its last good one, `base - 1` if there is none.
    pub last: u64,
    /// Good entries, without marks of the log itself.
    pub entries: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Sum of their values.
    pub value: u128,
    /// Times of the first and the last good frame in nanoseconds since 1970.
    pub times: Option<(u64, u64)>,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// True if it is sealed.
    pub sealed: bool,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing to do.
    Note,
    /// Opening the log deals with it; nothing that was acknowledged as synced is concerned.
    Unclean,
    /// What was durable is damaged or missing.
    Damaged,
}

impl Severity {
    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Unclean => "unclean",
            Severity::Damaged => "damaged",
        }
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Which of the kinds it is, a word with dashes that does not change.
    pub kind: &'static str,
    /// The file.
    pub file: PathBuf,
    /// Where in the file.
    pub offset: u64,
    /// The entries concerned, as far as that is known.
    pub entries: Option<RangeInclusive<u64>>,
    /// The check that failed.
    pub what: String,
    /// What it means.
    pub meaning: &'static str,
    /// What can be done.
    pub remedy: &'static str,
}

/// The kinds of findings: name, severity, meaning, remedy.
struct Sort(&'static str, Severity, &'static str, &'static str);

const STATE_LOST: Sort = Sort(
    "state-lost",
    Severity::Damaged,
    "the log does not know its name and beginning any more; the segments do",
    "repair makes it anew from the segments, without loss",
);
const STATE_COPY: Sort = Sort(
    "state-copy",
    Severity::Note,
    "one of two copies is not whole, as after a crash while it was written; the other one counts",
    "nothing: the next writer overwrites it",
);
const HEADER: Sort = Sort(
    "segment-header",
    Severity::Damaged,
    "nothing in this segment can be checked, so all of its entries are lost to readers",
    "restore the file from a copy; or repair --accept-loss, which ends the log before it and puts the rest aside",
);
const VERSION: Sort = Sort(
    "version",
    Severity::Damaged,
    "a newer version wrote this segment, or its header is damaged",
    "use the newer version; if there is none, restore the file from a copy",
);
const MISSING: Sort = Sort(
    "segment-missing",
    Severity::Damaged,
    "entries between two segments are not there",
    "restore the file; or repair --accept-loss, which ends the log before the gap and puts the rest aside",
);
const FRAME: Sort = Sort(
    "frame",
    Severity::Damaged,
    "an entry that was on disk is not what was written; readers get an error there",
    "restore the segment from a copy; or repair --accept-loss, which ends the log before it and puts the rest aside",
);
const SEAL: Sort = Sort(
    "seal",
    Severity::Damaged,
    "the segment's end is not where its seal says",
    "restore the segment from a copy; or repair --accept-loss",
);
const TAIL: Sort = Sort(
    "torn-tail",
    Severity::Unclean,
    "the writer ended while it wrote, or the machine lost power: these bytes were never reported as synced",
    "nothing: opening cuts them, keeps a copy and says so; export first if they matter",
);
const IN_FLIGHT: Sort = Sort(
    "in-flight",
    Severity::Note,
    "a writer has the log open and is writing here",
    "nothing: look again when it is closed",
);
const TEMP: Sort =
    Sort("leftover", Severity::Note, "a file that was under construction", "nothing: opening removes it");
const KEPT: Sort = Sort(
    "kept-bytes",
    Severity::Note,
    "bytes that an earlier opening or repair cut",
    "remove it when nobody needs it",
);
const CURSOR: Sort = Sort(
    "named-position",
    Severity::Damaged,
    "a named reader does not know where it was",
    "remove the position (its reader begins anew), or restore the file",
);

impl Sort {
    fn found(&self, file: PathBuf, offset: u64, what: impl Into<String>) -> Finding {
        let Sort(kind, severity, meaning, remedy) = *self;
        Finding { severity, kind, file, offset, entries: None, what: what.into(), meaning, remedy }
    }

    fn for_entries(
        &self,
        file: PathBuf,
        offset: u64,
        what: impl Into<String>,
        entries: RangeInclusive<u64>,
    ) -> Finding {
        Finding { entries: Some(entries), ..self.found(file, offset, what) }
    }
}

/// Reads the whole log and says what is there and what is wrong. `progress` gets the bytes that were read so far
/// and those of all segments.
pub fn inspect(disk: Arc<dyn Disk>, mut progress: impl FnMut(u64, u64)) -> Result<Inspection, OpenError> {
    let folder = Folder::new(disk);
    let names = folder.names()?;
    let segments = segment_names(&names);
    let mut findings = loose_files(&folder, &names);
    let state = match StateFile::open_read(&folder) {
        Ok(file) => {
            let copies = file.unreadable_copies()?;
            findings
                .extend(copies.map(|at| STATE_COPY.found(folder.path(state::NAME), at, "it is not whole")));
            Some(file.state().clone())
        }
        Err(OpenError::Damaged(damage)) => {
            findings.push(STATE_LOST.found(damage.file, 0, damage.what));
            None
        }
        Err(OpenError::Disk(error)) if error.is_not_found() && !segments.is_empty() => {
            findings.push(STATE_LOST.found(folder.path(state::NAME), 0, "it is missing"));
            None
        }
        Err(other) => return Err(other),
    };
    let in_use = names.iter().any(|n| n == LOCK) && folder.lock(LOCK)?.is_none();
    let state = match state {
        Some(state) => state,
        None => state_of_segments(&folder, &segments)?,
    };
    let cursors = match cursor::list(&folder, state.log_id) {
        Ok(cursors) => cursors,
        Err(error) => {
            findings.push(CURSOR.found(folder.path(""), 0, error.to_string()));
            Vec::new()
        }
    };
    let mut look = Look {
        folder: &folder,
        state: &state,
        in_use,
        first: state.first,
        next: state.first,
        link: (state.first == 1).then_some(0),
        durable: state.durable_upto,
        broken: false,
        last_good: state.first - 1,
        segments: Vec::new(),
        findings,
        pending: None,
    };
    let kept: Vec<_> = segments.into_iter().filter(|(base, _)| *base >= state.first).collect();
    let total: u64 = kept.iter().filter_map(|(_, name)| folder.open_read(name).ok()?.len().ok()).sum();
    let mut done = 0;
    for (base, name) in &kept {
        done += look.segment(*base, name, &mut |read| progress(done + read, total))?;
        progress(done, total);
    }
    Ok(look.finish(cursors))
}

fn loose_files(folder: &Folder, names: &[String]) -> Vec<Finding> {
    let mut names: Vec<_> = names.to_vec();
    names.sort_unstable();
    let found = |name: &String| match name {
        n if n.ends_with(TEMP_ENDING) => Some(TEMP.found(folder.path(n), 0, "it has a temporary name")),
        n if n.ends_with(".lost") => Some(KEPT.found(folder.path(n), 0, "it was put aside")),
        _ => None,
    };
    names.iter().filter_map(found).collect()
}

/// What the segments know of the log, where the state is lost.
fn state_of_segments(folder: &Folder, segments: &[(u64, String)]) -> Result<State, OpenError> {
    for (base, name) in segments {
        let file = folder.open_read(name)?;
        if let Some(header) = header_of(&file)? {
            let boot_id = folder.disk().boot_id();
            let first = segments.first().map_or(*base, |(first, _)| *first);
            return Ok(State::rebuilt(header.log_id, boot_id, first));
        }
    }
    let what = "neither the state nor any segment is readable";
    Err(Damage { file: folder.path(state::NAME), offset: 0, index: 0, what }.into())
}

fn header_of(file: &LogFile) -> Result<Option<Header>, OpenError> {
    let mut bytes = [0; crate::segment::HEADER_BYTES];
    file.read(&mut bytes, 0)?;
    Ok(Header::decode(&bytes).ok())
}

/// The walk through all segments.
struct Look<'a> {
    folder: &'a Folder,
    state: &'a State,
    in_use: bool,
    /// The first entry that is kept.
    first: u64,
    /// The index that comes next, and the link before it where it is known.
    next: u64,
    link: Option<u32>,
    durable: u64,
    /// True once something is missing: what follows is read, but no reader comes so far.
    broken: bool,
    last_good: u64,
    segments: Vec<SegmentReport>,
    findings: Vec<Finding>,
    pending: Option<Pending>,
}

/// Bad up to the end of its segment: the next segment's base tells how many entries that are.
struct Pending {
    finding: Finding,
    /// [`Look::broken`] as it was before, if none of what is bad need be an entry: the segment has no seal that says where
    /// its entries end.
    before: Option<bool>,
}

impl From<Finding> for Pending {
    fn from(finding: Finding) -> Pending {
        Pending { finding, before: None }
    }
}

impl Look<'_> {
    /// Looks at one segment; how many bytes that was.
    fn segment(&mut self, base: u64, name: &str, progress: &mut dyn FnMut(u64)) -> Result<u64, OpenError> {
        let file = match self.folder.open_read(name) {
            Err(error) if error.is_not_found() && self.in_use => {
                self.pass_removed()?;
                return Ok(0);
            }
            file => file?,
        };
        self.settle_pending(Some(base));
        if base > self.next {
            let what = "the segment does not begin where the one before it ends";
            self.findings.push(MISSING.for_entries(file.path(), 0, what, self.next..=base - 1));
            (self.broken, self.next, self.link) = (true, base, None);
        }
        let len = file.len()?;
        match load(file, base, name, self.state) {
            Ok(found) => self.frames(&found, progress)?,
            Err(OpenError::Damaged(damage)) => {
                let (name, last) = (name.into(), base - 1);
                self.segments.push(SegmentReport {
                    name,
                    base,
                    last,
                    disk_bytes: len,
                    ..SegmentReport::default()
                });
                let finding = HEADER.for_entries(damage.file, damage.offset, damage.what, base..=base);
                self.pending = Some(finding.into());
                (self.broken, self.link) = (true, None);
            }
            Err(OpenError::Unsupported { file, what }) => {
                let (name, last) = (name.into(), base - 1);
                self.segments.push(SegmentReport {
                    name,
                    base,
                    last,
                    disk_bytes: len,
                    ..SegmentReport::default()
                });
                self.pending = Some(VERSION.for_entries(file, 0, what, base..=base).into());
                (self.broken, self.link) = (true, None);
            }
            Err(other) => return Err(other),
        }
        Ok(len)
    }

    /// Goes on where the log begins now, if retention has removed segments while we looked.
    fn pass_removed(&mut self) -> Result<(), OpenError> {
        self.first = StateFile::open_read(self.folder)?.state().first;
        if self.first > self.next {
            (self.next, self.link) = (self.first, None);
            if !self.broken {
                self.last_good = self.last_good.max(self.first - 1);
            }
        }
        Ok(())
    }

    fn settle_pending(&mut self, next_base: Option<u64>) {
        let Some(Pending { mut finding, before }) = self.pending.take() else { return };
        let first = finding.entries.as_ref().map(|entries| *entries.start());
        if let Some(before) = before.filter(|_| first == next_base) {
            // The next segment continues it: it is complete, whatever lies after its last entry.
            self.broken = before;
            return;
        }
        if let (Some(entries), Some(base)) = (&mut finding.entries, next_base) {
            *entries = *entries.start()..=(base - 1).max(*entries.start());
            (self.next, self.link) = (base, None);
        }
        self.findings.push(finding);
    }

    fn frames(&mut self, found: &Found, progress: &mut dyn FnMut(u64)) -> Result<(), OpenError> {
        let mut report = SegmentReport {
            name: found.name.clone(),
            base: found.base,
            last: found.base - 1,
            disk_bytes: found.disk_bytes,
            sealed: found.seal.is_some(),
            ..SegmentReport::default()
        };
        if let Some(seal) = found.seal {
            self.durable = self.durable.max(seal.last);
        }
        let mut scanner = found.scanner(self.state.log_id);
        let end = found.seal.map_or(found.header.size, |seal| seal.end);
        let mut at = FRAMES_AT;
        let mut before = self.broken;
        // Where the first bad bytes lie, what is wrong, and which entry should be there.
        let mut bad: Option<(u64, &'static str, u64)> = None;
        while at < end {
            let expected = self.next;
            at += match self.frame(&mut scanner, at, end, &mut report, bad.is_some())? {
                Step::Good(bytes) => {
                    if let Some((bad_at, what, first)) = bad.take() {
                        before = true;
                        let entries = first..=(report.last - 1).max(first);
                        self.findings.push(FRAME.for_entries(found.file.path(), bad_at, what, entries));
                    }
                    bytes
                }
                Step::End if bad.is_none() && found.seal.is_none() && !found.has_bytes_from(at)? => break,
                Step::End => {
                    bad.get_or_insert((at, "there are zeros where a frame was", expected));
                    ALIGN
                }
                Step::Bad(what) => {
                    bad.get_or_insert((at, what, expected));
                    ALIGN
                }
            };
            self.broken |= bad.is_some();
            progress(at);
        }
        if let Some((bad_at, what, first)) = bad {
            let finding = FRAME.for_entries(found.file.path(), bad_at, what, first..=first);
            self.pending = Some(Pending { finding, before: found.seal.is_none().then_some(before) });
        } else if found.seal.is_some_and(|seal| seal.last != report.last) {
            let what = "the last frame is not the one that the seal names";
            self.findings.push(SEAL.found(found.file.path(), SEAL_AT, what));
            self.broken = true;
        }
        self.segments.push(report);
        Ok(())
    }

    fn frame(
        &mut self,
        scanner: &mut Scanner,
        at: u64,
        end: u64,
        report: &mut SegmentReport,
        resyncing: bool,
    ) -> Result<Step, OpenError> {
        let (frame, link) = match scanner.slot(at, end)? {
            Slot::Empty => return Ok(Step::End),
            Slot::Fault(fault) => return Ok(Step::Bad(fault.what())),
            Slot::Frame(frame, link) => (frame, link),
        };
        let is_later = (self.next..=INDEX_MAX).contains(&frame.index);
        let fault = match resyncing {
            // Behind damage any whole frame of a later entry will do.
            true => (!is_later).then_some("the frame is not one of a later entry"),
            false => check_next(&frame, self.next, self.link),
        };
        if let Some(what) = fault {
            return Ok(Step::Bad(what));
        }
        if !scanner.body_matches(at, &frame, end)? {
            return Ok(Step::Bad("the payload's checksum does not match"));
        }
        self.durable = self.durable.max(frame.durable_upto);
        (self.next, self.link) = (frame.index + 1, Some(link));
        if !self.broken {
            self.last_good = frame.index;
        }
        report.last = frame.index;
        report.times = Some((report.times.map_or(frame.time_ns, |t| t.0), frame.time_ns));
        if frame.kind == Kind::Data {
            report.entries += 1;
            report.payload_bytes += u64::from(frame.payload_len);
            report.value += u128::from(frame.value);
        }
        Ok(Step::Good(stride(frame.payload_len.into())))
    }

    fn finish(mut self, cursors: Vec<CursorPosition>) -> Inspection {
        self.settle_pending(None);
        for finding in &mut self.findings {
            let first = finding.entries.as_ref().map_or(0, |e| *e.start());
            if finding.kind == FRAME.0 && first > self.durable {
                let Sort(kind, severity, meaning, remedy) = if self.in_use { IN_FLIGHT } else { TAIL };
                (finding.kind, finding.severity) = (kind, severity);
                (finding.meaning, finding.remedy) = (meaning, remedy);
            }
        }
        if self.last_good < self.durable && !self.findings.iter().any(|f| f.severity == Severity::Damaged) {
            let (name, end) =
                self.segments.last().map_or((String::new(), 0), |s| (s.name.clone(), s.disk_bytes));
            let entries = self.last_good + 1..=self.durable;
            let what = "entries that were on disk are missing at the end";
            self.findings.push(MISSING.for_entries(self.folder.path(&name), end, what, entries));
        }
        self.findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
        Inspection {
            log_id: self.state.log_id,
            cycle: self.state.cycle.as_ref().map(|c| c.to_string()),
            in_use: self.in_use,
            clean: self.state.clean,
            first_index: self.first,
            last_index: if self.last_good < self.first { 0 } else { self.last_good },
            durable_upto: self.durable,
            segments: self.segments,
            cursors,
            findings: self.findings,
        }
    }
}

enum Step {
    Good(u64),
    End,
    Bad(&'static str),
}

/// What [`repair`] may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RepairOptions {
    /// Give up entries that were durable, from the first damaged one on. Their bytes are kept in files.
    pub accept_loss: bool,
}

/// What [`repair`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairReport {
    /// True if the state was made anew from the segments.
    pub state_rebuilt: bool,
    /// The last entry that is left; 0 if there is none.
    pub last_index: u64,
    /// Durable entries that are no more.
    pub lost: Option<RangeInclusive<u64>>,
    /// What was cut from the end.
    pub cut: Option<Cut>,
    /// Files with everything that was taken out of the log.
    pub kept_in: Vec<PathBuf>,
    /// Named positions that were past the end of what is left. They go on there, with the next entry to be written.
    pub moved: Vec<CursorPosition>,
}

/// Makes a log openable again. Refused while a writer has it open.
///
/// Without [`RepairOptions::accept_loss`] it does what opening does, and makes a lost state anew; damage to what was
/// durable is an error and changes nothing. Named positions never stay past the end. Run again after an interruption it
/// goes on. It needs no key: a log whose state was lost and in which entries are encrypted takes the key that opens the
/// newest of them.
pub fn repair(disk: Arc<dyn Disk>, options: RepairOptions) -> Result<RepairReport, OpenError> {
    let folder = Folder::new(disk);
    let _lock = folder.lock(LOCK)?.ok_or_else(|| OpenError::Locked(folder.path("")))?;
    let names = folder.names()?;
    let segments = segment_names(&names);
    let state_rebuilt = rebuild_state(&folder, &names, &segments)?;
    let mut kept_in = Vec::new();
    let mut strictness = Strictness::KeepDurable;
    let mut durable = 0;
    if options.accept_loss {
        let before = inspect_locked(&folder)?;
        durable = before.durable_upto;
        kept_in = give_up(&folder, &segments)?;
        strictness = Strictness::AcceptLoss;
    }
    let found = recover::recover(&folder, &CycleChoice::Stored, strictness)?;
    let last_index = found.recovery.last_index;
    kept_in.extend(found.recovery.cut.iter().flat_map(|cut| cut.kept_in.clone()));
    let moved = cursor::move_back(&folder, found.state_file.state().log_id, last_index)?;
    Ok(RepairReport {
        state_rebuilt,
        last_index: if last_index < found.recovery.first_index { 0 } else { last_index },
        lost: (last_index < durable).then(|| last_index + 1..=durable),
        cut: found.recovery.cut,
        kept_in,
        moved,
    })
}

fn inspect_locked(folder: &Folder) -> Result<Inspection, OpenError> {
    inspect(folder.disk_handle(), |_, _| {})
}

fn rebuild_state(folder: &Folder, names: &[String], segments: &[(u64, String)]) -> Result<bool, OpenError> {
    if names.iter().any(|n| n == state::NAME) {
        match StateFile::open(folder) {
            Ok(_) => return Ok(false),
            Err(OpenError::Damaged(_)) if !segments.is_empty() => {}
            Err(error) => return Err(error),
        }
    } else if segments.is_empty() {
        let what = "there is no log";
        return Err(Damage { file: folder.path(""), offset: 0, index: 0, what }.into());
    }
    let mut state = state_of_segments(folder, segments)?;
    if secrecy::has_encrypted(folder, &state)? {
        state.key_check = Some(KeyCheck::Lost);
    }
    StateFile::replace(folder, state)?;
    Ok(true)
}

/// Takes the seals off segments whose frames are not what the seals say, and puts aside those that cannot be read
/// at all, with all that follow them. Where they were put.
fn give_up(folder: &Folder, segments: &[(u64, String)]) -> Result<Vec<PathBuf>, OpenError> {
    let state = StateFile::open(folder)?.state().clone();
    let mut kept_in = Vec::new();
    let mut link = (state.first == 1).then_some(0);
    for (i, (base, name)) in segments.iter().enumerate() {
        if *base < state.first {
            continue;
        }
        let found = match load(folder.open(name)?, *base, name, &state) {
            Ok(found) => found,
            Err(OpenError::Damaged(_)) => {
                for (base, name) in segments[i..].iter().rev() {
                    let aside = crate::repair::free_name(folder, *base)?;
                    folder.rename(name, &aside)?;
                    folder.sync_names()?;
                    kept_in.push(folder.path(&aside));
                }
                break;
            }
            Err(other) => return Err(other),
        };
        let Some(seal) = found.seal else {
            // Its frames are walked when the log is opened.
            link = None;
            continue;
        };
        if !seal_is_right(&found, link, state.log_id)? {
            unseal(&found)?;
            break;
        }
        link = Some(seal.link);
    }
    Ok(kept_in)
}

fn seal_is_right(found: &Found, mut link: Option<u32>, log_id: [u8; 16]) -> Result<bool, OpenError> {
    let Some(seal) = found.seal else { return Ok(false) };
    let mut scanner = found.scanner(log_id);
    let (mut at, mut index) = (FRAMES_AT, found.base);
    while at < seal.end {
        let Slot::Frame(frame, own_link) = scanner.slot(at, seal.end)? else { return Ok(false) };
        let is_next = check_next(&frame, index, link).is_none();
        if !is_next || !scanner.body_matches(at, &frame, seal.end)? {
            return Ok(false);
        }
        (at, index, link) = (at + stride(frame.payload_len.into()), index + 1, Some(own_link));
    }
    Ok(index == seal.last + 1)
}

/// Makes a sealed segment one that is not, as long as its header says.
fn unseal(found: &Found) -> Result<(), OpenError> {
    found.file.allocate(found.header.size)?;
    found.file.write_bytes(&[0; SEAL_BYTES], SEAL_AT)?;
    Ok(found.file.sync()?)
}
