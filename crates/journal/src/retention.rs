//! What may be forgotten, and who is told of it.
//!
//! Only whole, sealed and durable segments go, oldest first and one at a time, and never the last entry. A policy
//! says what may go; the position of the slowest named tailer holds back what it still has to read, if asked to.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// What to keep. Nothing is removed for a reason that is `None`; the strictest reason decides.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Retention {
    /// Segments whose last entry is older than this may go.
    pub age: Option<Duration>,
    /// The oldest segments may go until the rest takes no more than this many bytes on disk.
    pub bytes: Option<u64>,
    /// Keep what a named tailer has not passed yet, as far as `age` and `bytes` would let it go. A name that is
    /// no longer used must be removed ([`Journal::remove_cursor`](crate::Journal::remove_cursor)), or nothing is
    /// ever removed.
    pub keep_unread: bool,
}

impl Retention {
    /// Whether it ever removes anything.
    pub(crate) fn is_active(&self) -> bool {
        self.age.is_some() || self.bytes.is_some()
    }
}

/// A segment as retention sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub last: u64,
    pub last_time: u64,
    pub bytes: u64,
}

/// How many of the oldest segments may go. `all`: every segment, oldest first, the active one last.
pub(crate) fn count_to_drop(
    policy: &Retention,
    all: &[Candidate],
    slowest: Option<u64>,
    now_ns: u64,
) -> usize {
    let mut total: u64 = all.iter().map(|c| c.bytes).sum();
    let mut count = 0;
    for candidate in &all[..all.len().saturating_sub(1)] {
        let age_ns = u128::from(now_ns.saturating_sub(candidate.last_time));
        let is_old = policy.age.is_some_and(|age| age_ns > age.as_nanos());
        let is_too_much = policy.bytes.is_some_and(|bytes| total > bytes);
        let is_unread = policy.keep_unread && slowest.is_some_and(|next| candidate.last >= next);
        if !(is_old || is_too_much) || is_unread {
            break;
        }
        total -= candidate.bytes;
        count += 1;
    }
    count
}

/// A segment file that is about to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The file; it can still be copied or linked.
    pub file: PathBuf,
    /// Its entries.
    pub entries: RangeInclusive<u64>,
    /// Bytes it takes on disk.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Four segments of ten entries and 100 bytes, a second apart, and the active one.
    fn all() -> Vec<Candidate> {
        (1..=5).map(|i| Candidate { last: i * 10, last_time: i * SECOND, bytes: 100 }).collect()
    }

    fn count(policy: &Retention, slowest: Option<u64>) -> usize {
        count_to_drop(policy, &all(), slowest, 6 * SECOND)
    }

    #[test]
    fn each_reason_alone() {
        let keep_all = Retention::default();
        assert!(!keep_all.is_active());
        assert_eq!(count(&keep_all, None), 0);
        let age = |seconds| Retention { age: Some(Duration::from_secs(seconds)), ..Retention::default() };
        assert_eq!([0, 3, 4, 5].map(|s| count(&age(s), None)), [4, 2, 1, 0]);
        let bytes = |bytes| Retention { bytes: Some(bytes), ..Retention::default() };
        assert_eq!([0, 100, 250, 300, 499, 500].map(|b| count(&bytes(b), None)), [4, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn unread_segments_stay() {
        let policy = Retention { bytes: Some(0), keep_unread: true, ..Retention::default() };
        assert_eq!([1, 10, 11, 35, 51].map(|next| count(&policy, Some(next))), [0, 0, 1, 3, 4]);
        assert_eq!(count(&policy, None), 4);
        let careless = Retention { keep_unread: false, ..policy };
        assert_eq!(count(&careless, Some(1)), 4);
    }
}
