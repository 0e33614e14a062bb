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
    /// The batch is larger than the log takes; others may succeed.
    #[error("the log does not take the batch: {0}")]
    TooLarge(String),
    /// The log could not take the batch this time; the same may succeed later.
    #[error("the log refused the batch: {0}")]
    Refused(String),
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

    /// Whether there is no space for much more: only what makes space should be appended.
    fn is_short(&self) -> bool {
        false
    }

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
            AppendError::NoSpace(_) => CommitError::NoSpace(error.to_string()),
            AppendError::TooLarge { .. } => CommitError::TooLarge(error.to_string()),
            AppendError::Segment(_) => CommitError::Refused(error.to_string()),
            error => CommitError::Failed(error.to_string()),
        })
    }

    fn request_sync(&self) {
        self.journal.request_sync();
    }

    fn synced(&self) -> u64 {
        self.journal.synced()
    }

    fn is_short(&self) -> bool {
        self.journal.is_short_of_space()
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        self.writer.close().map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_is_too_large_is_refused_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, writer, _) = Journal::open(dir.path(), Default::default()).unwrap();
        let mut log = JournalLog { journal, writer };
        let half = vec![0; (rockdove_journal::PAYLOAD_BYTES_MAX / 2) as usize];
        let refused = log.append(&[&half, &half, b"x"], 1).unwrap_err();
        assert!(matches!(refused, CommitError::TooLarge(_)), "{refused}");
        assert_eq!(log.append(&[b"x"], 1).unwrap(), 1);
    }
}
