//! Entries as an iterator, each with memory of its own.

use bytes::Bytes;

use crate::ack::Level;
use crate::error::ReadError;
use crate::tail::{EntryRef, Tailer};

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
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
    /// What was appended. Owns its memory alone.
    pub payload: Bytes,
}

impl From<EntryRef<'_>> for Entry {
    fn from(entry: EntryRef<'_>) -> Entry {
        let EntryRef { index, term, time_ns, value, level, payload } = entry;
        Entry { index, term, time_ns, value, level, payload: Bytes::copy_from_slice(payload) }
    }
}

/// An iterator over the entries from an index on.
///
/// It yields `None` at the end of what is written and goes on when more was; after an error it yields the same
/// kind of error again.
pub struct Reader(pub(crate) Tailer);

impl Reader {
    /// Index of the entry that comes next.
    pub fn position(&self) -> u64 {
        self.0.position()
    }
}

impl Iterator for Reader {
    type Item = Result<Entry, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.read(|entry| Ok(Entry::from(entry))).transpose()
    }
}
