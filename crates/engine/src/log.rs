//! Where the sequencer commits: one small trait, so that a local journal, memory or replication can stand
//! behind it.

use crate::command::Acked;
use rockdove_journal::{AppendError, Journal, Level, Terms, Ticket, WaitError, Writer};
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

/// What the requests of a batch ask for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worth {
    /// The strictest of their levels.
    pub level: Level,
    /// The sum of their values.
    pub value: u64,
    /// The largest of them.
    pub largest: u64,
}

impl Worth {
    /// Nothing that would have to be told apart from an entry without terms.
    pub const NONE: Worth = Worth { level: Level::Async, value: 0, largest: 0 };
}

/// The claim of one request on the acknowledgement of what was appended.
pub trait Claim: Send {
    /// The acknowledgement if it can be given now, or why it never can. Given once, it counts for the account of
    /// what is at risk.
    fn poll(&mut self) -> Result<Option<Acked>, String>;
}

/// Takes batches in order.
pub trait CommitLog: Send {
    /// Appends one batch, given in parts, and returns its position.
    fn append(&mut self, parts: &[&[u8]], time_ns: u64, worth: Worth) -> Result<u64, CommitError>;

    /// The claim of a request with this value that is part of what lies at `index`. Asks for no sync.
    fn claim(&self, index: u64, level: Level, value: u64) -> Box<dyn Claim>;

    /// Asks for everything appended so far to be made durable soon.
    fn request_sync(&self);

    /// Whether there is no space for much more: only what makes space should be appended.
    fn is_short(&self) -> bool {
        false
    }

    /// Bytes that it surely still takes.
    fn room(&self) -> u64 {
        u64::MAX
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
    fn append(&mut self, _parts: &[&[u8]], _time_ns: u64, _worth: Worth) -> Result<u64, CommitError> {
        self.appended += 1;
        Ok(self.appended)
    }

    fn claim(&self, _index: u64, level: Level, _value: u64) -> Box<dyn Claim> {
        Box::new(InMemory(level))
    }

    fn request_sync(&self) {}

    fn close(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

/// In memory nothing ever is more than written.
pub(crate) struct InMemory(pub Level);

impl Claim for InMemory {
    fn poll(&mut self) -> Result<Option<Acked>, String> {
        Ok(Some(Acked { level: Level::Async, degraded: self.0 != Level::Async }))
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
    fn append(&mut self, parts: &[&[u8]], time_ns: u64, worth: Worth) -> Result<u64, CommitError> {
        let appended = match worth {
            Worth::NONE => self.writer.append(parts, time_ns),
            Worth { level, value, largest } => {
                self.writer.append_shared(parts, Terms { time_ns, value, level }, largest)
            }
        };
        appended.map_err(|error| match error {
            AppendError::NoSpace(_) => CommitError::NoSpace(error.to_string()),
            AppendError::TooLarge { .. } => CommitError::TooLarge(error.to_string()),
            AppendError::Segment(_) => CommitError::Refused(error.to_string()),
            error => CommitError::Failed(error.to_string()),
        })
    }

    fn claim(&self, index: u64, level: Level, value: u64) -> Box<dyn Claim> {
        Box::new(self.journal.ticket(index, level, value))
    }

    fn request_sync(&self) {
        self.journal.request_sync();
    }

    fn is_short(&self) -> bool {
        self.journal.is_short_of_space()
    }

    fn room(&self) -> u64 {
        self.journal.room()
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        self.writer.close().map_err(|error| error.to_string())
    }
}

impl Claim for Ticket {
    fn poll(&mut self) -> Result<Option<Acked>, String> {
        let ack = Ticket::poll(self).map_err(|error| match error {
            WaitError::Failed(failure) => failure.to_string(),
            error => error.to_string(),
        })?;
        Ok(ack.map(|ack| Acked { level: ack.level, degraded: ack.degraded }))
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
        let refused = log.append(&[&half, &half, b"x"], 1, Worth::NONE).unwrap_err();
        assert!(matches!(refused, CommitError::TooLarge(_)), "{refused}");
        assert_eq!(log.append(&[b"x"], 1, Worth::NONE).unwrap(), 1);
    }
}
