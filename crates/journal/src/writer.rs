//! The one who appends.
//!
//! An append is one vectored write of header and payload at the published end. It counts from the moment the
//! marks move, after the write returned; before that its bytes lie where no reader looks. A write that failed
//! for lack of space is wiped out, so that what lies past the end stays zero; any other failed write ends
//! the log, because nobody knows what it left.

use std::io::IoSlice;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::disk::FolderLock;
use crate::error::{AppendError, CloseError, DiskError, OpenError};
use crate::file::{Folder, LogFile};
use crate::frame::{Frame, stride};
use crate::journal::{Journal, Shared};
use crate::options::{Options, PAYLOAD_BYTES_MAX};
use crate::prepare::{Preparer, Spare};
use crate::recover::{self, Recovery};
use crate::segment::{FRAMES_AT, Seal, Segment};
use crate::sync::{Desk, Dirty, Syncer};

/// Zeros that fill a frame up to its alignment.
const PADDING: [u8; 16] = [0; 16];

/// Appends to a log. There is one for each open log; it holds the folder's lock.
///
/// Dropping it without [`Writer::close`] leaves the log as a crash of the process would.
pub struct Writer {
    shared: Arc<Shared>,
    active: Arc<Segment>,
    file: LogFile,
    last: Last,
    segment_bytes: u64,
    preparer: Preparer,
    syncer: Syncer,
    /// Given free only after both threads have ended.
    _lock: FolderLock,
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
    let lock = folder.lock()?.ok_or_else(|| OpenError::Locked(folder.path("")))?;
    let found = recover::recover(&folder)?;
    let log_id = found.state_file.state().log_id;
    let mut segments = found.segments;
    let (active, file, named) = match found.active {
        Some((segment, file)) => (segment, file, true),
        None => {
            let spare = Spare::make(&folder, "first", log_id, options.segment_bytes, false)?;
            let (segment, file) = activate(spare, &folder, found.last.index + 1)?;
            segments.push(segment.clone());
            (segment, file, false)
        }
    };
    let desk = Desk::new(options.sync, found.last.index);
    desk.roll(None, Dirty { segment: active.clone(), file: file.clone(), named, seal: None })?;
    let shared = Arc::new(Shared {
        folder: folder.clone(),
        log_id,
        desk,
        segments: RwLock::new(segments),
        state_file: Mutex::new(found.state_file),
        callbacks: Mutex::default(),
    });
    let thread =
        |cause| DiskError { action: "start a thread for", file: folder.path(""), cause: Arc::new(cause) };
    let writer = Writer {
        active,
        file,
        last: found.last,
        segment_bytes: options.segment_bytes,
        preparer: Preparer::start(folder.clone(), log_id, options.segment_bytes).map_err(thread)?,
        syncer: Syncer::start(shared.clone()).map_err(thread)?,
        shared: shared.clone(),
        _lock: lock,
    };
    Ok((Journal(shared), writer, found.recovery))
}

fn activate(spare: Spare, folder: &Folder, base: u64) -> Result<(Arc<Segment>, LogFile), DiskError> {
    let (header, file) = spare.activate(folder, base)?;
    let segment = Segment::new(base, header.salt, header.size, FRAMES_AT, base - 1, false);
    Ok((Arc::new(segment), file))
}

impl Writer {
    /// Appends one entry made of `parts` in order; returns its index. Readers see it from then on; when it
    /// becomes durable is the policy's matter ([`Journal::synced`](crate::Journal::synced) tells).
    ///
    /// `time_ns`: nanoseconds since 1970. If it is less than the entry's before it, that one's is stored.
    ///
    /// May wait for the disk: for the write, and at the end of a segment for the next one.
    pub fn append(&mut self, parts: &[&[u8]], time_ns: u64) -> Result<u64, AppendError> {
        if let Some(failure) = self.shared.desk.failure() {
            return Err(AppendError::Failed(failure));
        }
        let payload_len = payload_len(parts)?;
        if stride(payload_len.into()) > self.active.size - self.active.end() {
            self.roll(stride(payload_len.into()))?;
        }
        let (frame, next) = self.frame(parts, payload_len, time_ns);
        self.write(&frame, parts)?;
        self.active.publish(self.active.end() + stride(payload_len.into()), next.index);
        self.shared.desk.publish(next.index);
        self.last = next;
        if self.active.is_half_full() {
            self.preparer.want();
        }
        Ok(next.index)
    }

    /// The header of the next frame, and what `last` becomes with it.
    fn frame(&self, parts: &[&[u8]], payload_len: u32, time_ns: u64) -> ([u8; 64], Last) {
        let frame = Frame {
            index: self.last.index + 1,
            term: self.last.term,
            time_ns: time_ns.max(self.last.time_ns),
            payload_len,
            durable_upto: self.shared.desk.synced(),
            prev_link: self.last.link,
            ..Frame::default()
        }
        .with_payload(&self.shared.log_id, parts);
        let (header, link) = frame.encode(self.active.salt);
        (header, Last { index: frame.index, term: frame.term, time_ns: frame.time_ns, link })
    }

    fn write(&self, header: &[u8; 64], parts: &[&[u8]]) -> Result<(), AppendError> {
        let at = self.active.end();
        let payload_len: usize = parts.iter().map(|p| p.len()).sum();
        let padding = stride(payload_len as u64) as usize - header.len() - payload_len;
        let mut slices = Vec::with_capacity(parts.len() + 2);
        slices.push(IoSlice::new(header));
        slices.extend(parts.iter().map(|p| IoSlice::new(p)));
        slices.push(IoSlice::new(&PADDING[..padding]));
        let Err(error) = self.file.write(&mut slices, at) else { return Ok(()) };
        if error.is_no_space() {
            match self.file.write_zeros(at, at + stride(payload_len as u64)) {
                // Where even that finds no space the remains stay: they lie past the end and the next frame
                // overwrites their header, so they are never more than a torn tail.
                Ok(()) => return Err(AppendError::NoSpace(error)),
                Err(e) if e.is_no_space() => return Err(AppendError::NoSpace(error)),
                Err(e) => return Err(AppendError::Failed(self.shared.desk.fail(e))),
            }
        }
        Err(AppendError::Failed(self.shared.desk.fail(error)))
    }

    /// Goes on to a new segment that has room for a frame of `frame_bytes`.
    fn roll(&mut self, frame_bytes: u64) -> Result<(), AppendError> {
        let (segment, file) = self.next_segment(frame_bytes).map_err(|error| {
            if error.is_no_space() { AppendError::NoSpace(error) } else { AppendError::Segment(error) }
        })?;
        let seal = (!self.active.is_empty()).then(|| Seal {
            last: self.last.index,
            end: self.active.end(),
            term: self.last.term,
            time_ns: self.last.time_ns,
            link: self.last.link,
        });
        {
            let mut segments = self.shared.segments.write();
            if seal.is_none() {
                // The new file has taken the name of the active one, which was too small and has no frame.
                segments.pop();
            }
            segments.push(segment.clone());
        }
        let dirty = Dirty { segment: segment.clone(), file: file.clone(), named: false, seal: None };
        (self.active, self.file) = (segment, file);
        self.shared.desk.roll(seal, dirty).map_err(AppendError::Failed)
    }

    fn next_segment(&self, frame_bytes: u64) -> Result<(Arc<Segment>, LogFile), DiskError> {
        let folder = &self.shared.folder;
        let need = (FRAMES_AT + frame_bytes).next_multiple_of(4096);
        let spare = if need > self.segment_bytes {
            Spare::make(folder, "large", self.shared.log_id, need, false)?
        } else {
            self.preparer.take()?
        };
        activate(spare, folder, self.last.index + 1)
    }

    /// Syncs everything, marks the log as cleanly closed and gives the folder free.
    pub fn close(mut self) -> Result<(), CloseError> {
        self.syncer.stop();
        if self.shared.desk.failure().is_none() {
            self.shared.sync_round();
        }
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
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.syncer.stop();
        if let Err(error) = self.preparer.stop(&self.shared.folder) {
            tracing::warn!(%error, "an unused segment file stays until the next opening");
        }
        // Under the lock, so that no segment is dropped once the folder's lock is free.
        let _state_file = self.shared.state_file.lock();
        self.shared.desk.close();
    }
}

fn payload_len(parts: &[&[u8]]) -> Result<u32, AppendError> {
    let bytes = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.len() as u64));
    match u32::try_from(bytes) {
        Ok(len) if bytes <= PAYLOAD_BYTES_MAX => Ok(len),
        _ => Err(AppendError::TooLarge { bytes, bytes_max: PAYLOAD_BYTES_MAX }),
    }
}
