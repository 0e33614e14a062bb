//! The errors, one enum for each kind of call.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use crate::cursor::CursorError;

/// A call to the disk that failed. Cloned into every later answer when it ended the log.
#[derive(Clone, Debug, Error)]
#[error("cannot {action} {}: {cause}", file.display())]
pub struct DiskError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// The file or folder.
    pub file: PathBuf,
    /// What the operating system answered.
    pub cause: Arc<io::Error>,
}

impl DiskError {
    /// True if there was no room: the disk is full, a quota is used up, or the process may not make a file so large.
    pub fn is_no_space(&self) -> bool {
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
        kinds.contains(&self.cause.kind())
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.cause.kind() == io::ErrorKind::NotFound
    }
}

/// Bytes that are not what the log wrote.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{} is damaged at byte {offset}: {what} (entry {index})", file.display())]
pub struct Damage {
    /// The damaged file.
    pub file: PathBuf,
    /// Where in the file the first bad frame or record begins.
    pub offset: u64,
    /// The entry expected there; 0 where no entry is concerned.
    pub index: u64,
    /// The check that failed.
    pub what: &'static str,
}

/// Why a log could not be opened. Nothing was cut or repaired unless the error is [`OpenError::Disk`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options contradict a limit.
    #[error("bad journal options: {0}")]
    Options(&'static str),
    /// Another writer, in this process or another, holds the folder.
    #[error("the journal in {} is in use by another process or writer", .0.display())]
    Locked(PathBuf),
    /// Data that had been reported as durable is damaged or missing.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The file was written by a version that this one does not know, or asks for what this machine lacks.
    #[error("{} needs another version: {what}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// What is not known.
        what: String,
    },
    /// The log has another roll cycle than the one that was asked for.
    #[error("the log rolls {stored}, not {asked}")]
    Cycle {
        /// As the log was made.
        stored: String,
        /// As the options say.
        asked: String,
    },
    /// The log is encrypted, and not with the key that was given, if one was.
    #[error("the journal in {} cannot be opened: {what}", folder.display())]
    Key {
        /// The log's folder.
        folder: PathBuf,
        /// What is wrong with the key.
        what: &'static str,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why nothing was appended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The payload, or what is stored for it, is longer than [`PAYLOAD_BYTES_MAX`](crate::PAYLOAD_BYTES_MAX).
    #[error("an entry of {bytes} bytes is longer than {bytes_max} bytes")]
    TooLarge {
        /// Length of the payload.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The disk is full. Nothing was published, the log stays readable, and a later append succeeds once
    /// there is room again.
    #[error("no space for the entry: {0}")]
    NoSpace(#[source] DiskError),
    /// The next segment could not be made. Nothing was published; a later append tries again.
    #[error("no next segment: {0}")]
    Segment(#[source] DiskError),
    /// The log has ended, now or by an earlier failure, and must be opened anew. If it ended now it is not known whether
    /// the entry is there: the next opening may find it whole, and readers in other processes before that.
    #[error("the journal stopped: {0}")]
    Failed(#[source] DiskError),
    /// The writer was closed or dropped.
    #[error("the journal is closed")]
    Closed,
}

/// Why an entry could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The entry was dropped; the log begins at `first`.
    #[error("entry {index} is gone, the journal begins at {first}")]
    BeforeStart {
        /// The entry asked for.
        index: u64,
        /// The first entry there is.
        first: u64,
    },
    /// The entry is more than one past the last; `next` is the next one to be written.
    #[error("entry {index} does not exist yet, the next one is {next}")]
    AfterEnd {
        /// The entry asked for.
        index: u64,
        /// The next entry to be written.
        next: u64,
    },
    /// The entry is encrypted, and the reader does not have its key.
    #[error("entry {index} cannot be read: {what}")]
    Key {
        /// The entry.
        index: u64,
        /// What is wrong with the key.
        what: &'static str,
    },
    /// The stored bytes are not what was appended.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why a wait for the durable mark ended without it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The time ran out. The entry may still become durable.
    #[error("entry {index} was not synced in time, {synced} is")]
    Timeout {
        /// The entry waited for.
        index: u64,
        /// The durable mark at the end of the wait.
        synced: u64,
    },
    /// A sync failed; the entry will not become durable.
    #[error("the journal stopped: {0}")]
    Failed(#[source] DiskError),
    /// The writer was closed or dropped first.
    #[error("the journal is closed")]
    Closed,
}

/// Why segments were not dropped, or not all of them. Files that stayed behind are removed by a later call or at
/// the next opening.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DropError {
    /// The disk refused, or the log had already ended.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// What the named tailers still have to read is not known, and it was to be kept.
    #[error("the named positions are not known: {0}")]
    Cursors(#[from] CursorError),
    /// The writer was closed or dropped.
    #[error("the journal is closed")]
    Closed,
}

/// Why a log was closed without its clean mark. The next opening checks it as after a crash.
#[derive(Debug, Error)]
#[error("the journal was not closed cleanly: {0}")]
pub struct CloseError(#[from] pub DiskError);
