//! Where the sequencer commits: one small trait, so that a local journal, memory or replication can stand
//! behind it.

use rockdove_journal::{AppendError, Journal, Writer};
use thiserror::Error;

/// Why a batch was not committed. Nothing of it was.
#[derive(Debug, Error, Clone)]
pub enum CommitError {
    /// The disk is full; later batches may succeed again.
    #[error("the disk that holds the log is full: {0}")]
    NoSpace(String),
    /// The log is broken until the server is started again.
    #[error("the log cannot be written: {0}")]
    Failed(String),
}

/// Takes batches in order.
pub trait CommitLog: Send {
    /// Appends one batch, given in parts, and returns its position.
    fn append(&mut self, parts: &[&[u8]], time_ns: u64) -> Result<u64, CommitError>;

    /// Asks for everything appended so far to be made durable soon.
    fn request_sync(&self);

    /// Everything up to this position is durable.
    fn synced(&self) -> u64;

    /// Ends the log cleanly.
    fn close(self: Box<Self>) -> Result<(), String>;
}

/// Keeps nothing: for servers without a disk.
#[derive(Debug, Default)]
pub struct MemoryLog {
    appended: u64,
}

impl CommitLog for MemoryLog {
    fn append(&mut self, _parts: &[&[u8]], _time_ns: u64) -> Result<u64, CommitError> {
        self.appended += 1;
        Ok(self.appended)
    }

    fn request_sync(&self) {}

    fn synced(&self) -> u64 {
        self.appended
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

/// The local journal.
pub struct JournalLog {
    /// Its handle.
    pub journal: Journal,
    /// Its only writer.
    pub writer: Writer,
}

impl CommitLog for JournalLog {
    fn append(&mut self, parts: &[&[u8]], time_ns: u64) -> Result<u64, CommitError> {
        self.writer.append(parts, time_ns).map_err(|error| match error {
            AppendError::NoSpace { .. } => CommitError::NoSpace(error.to_string()),
            error => CommitError::Failed(error.to_string()),
        })
    }

    fn request_sync(&self) {
        self.journal.request_sync();
    }

    fn synced(&self) -> u64 {
        self.journal.synced()
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        self.writer.close().map_err(|error| error.to_string())
    }
}
