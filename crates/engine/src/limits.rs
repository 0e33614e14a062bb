//! Memory watermarks: live bytes against a limit. Above the first mark the server warns, above the second it
//! refuses to store new documents and large changes; deletions, expiry and marks on messages go on, so that it can drain.
//!
//! Draining may need something new: a lock, a node's entry. So small documents still go into small collections, up to a
//! last mark halfway from the second to the limit, and beyond it while small collections together hold no more than that
//! distance: marks on a full queue may go past any mark, and the locks to come must not depend on it. A queue that grows is
//! soon no small collection any more. Past half as much again as the limit nothing grows.
//!
//! The same for the disk, which is short when a checkpoint would find no space: without one the log never shrinks. Then
//! small documents go on until half of what the log's segment had left is used; the rest stays for deletions and marks.

use rockdove_documents::{Error, Result, code};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far below the warning mark the use must fall before a new crossing warns again, in percent.
const REARM_PERCENT: u64 = 5;

/// Part of the limit that retry records may take.
const RECORDS_SHARE: u64 = 8;

/// Most bytes of a document, or of what a change adds to one, that are small.
const SMALL_BYTES_MAX: u64 = 4096;
/// Part of the limit that a collection takes, with its indexes, as long as it is small.
const SMALL_COLLECTION_SHARE: u64 = 256;
/// The same beyond the last mark: what holds locks and nodes, not what is a queue itself.
const TINY_COLLECTION_SHARE: u64 = 1024;
/// Where nothing grows any more, in percent of the limit.
const END_PERCENT: u64 = 150;

/// Something new, and where it is to be stored.
#[derive(Clone, Copy, Debug)]
pub struct New {
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of the collection that it goes into, its indexes included.
    pub held: u64,
    /// Bytes of all collections together that count as tiny.
    pub tiny: u64,
}

/// The watermarks and the use.
#[derive(Debug)]
pub struct Memory {
    limit_bytes: u64,
    warn_percent: u64,
    refuse_percent: u64,
    used: AtomicU64,
    warned: AtomicBool,
}

impl Memory {
    /// Marks at these percentages of `limit_bytes`.
    pub fn new(limit_bytes: u64, warn_percent: u64, refuse_percent: u64) -> Memory {
        let (used, warned) = (AtomicU64::new(0), AtomicBool::new(false));
        Memory { limit_bytes: limit_bytes.max(1), warn_percent, refuse_percent, used, warned }
    }

    /// Notes the live bytes; warns once per crossing of the first mark.
    pub fn used(&self, bytes: u64) {
        self.used.store(bytes, Ordering::Relaxed);
        let percent = self.percent();
        if percent >= self.warn_percent && !self.warned.swap(true, Ordering::Relaxed) {
            let (limit, refuse) = (self.limit_bytes, self.refuse_percent);
            tracing::warn!(
                bytes,
                limit,
                percent,
                "stored data is above the warning watermark; from {refuse} % on new documents are refused"
            );
        } else if percent + REARM_PERCENT < self.warn_percent {
            self.warned.store(false, Ordering::Relaxed);
        }
    }

    /// Live bytes in percent of the limit.
    pub fn percent(&self) -> u64 {
        self.percent_of(self.used_bytes())
    }

    fn percent_of(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(100) / self.limit_bytes
    }

    /// Live bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit in bytes, and the marks in percent of it.
    pub fn limits(&self) -> (u64, u64, u64) {
        (self.limit_bytes, self.warn_percent, self.refuse_percent)
    }

    /// Bytes that retry records may take, of the limit.
    pub fn records_max(&self) -> u64 {
        self.limit_bytes / RECORDS_SHARE
    }

    /// The mark up to which what is small is still stored, in percent of the limit.
    fn last_percent(&self) -> u64 {
        self.refuse_percent.midpoint(100.max(self.refuse_percent))
    }

    /// Whether it is a small document for a small collection.
    pub fn is_small(&self, new: New) -> bool {
        new.bytes <= SMALL_BYTES_MAX && new.held < self.limit_bytes / SMALL_COLLECTION_SHARE
    }

    /// Collections of fewer bytes count together as tiny ones: those too that were tiny until they were filled.
    pub fn counts_as_tiny(&self) -> u64 {
        2 * (self.limit_bytes / TINY_COLLECTION_SHARE)
    }

    /// Whether anything may be stored at `bytes` of use.
    pub fn takes_all(&self, bytes: u64) -> bool {
        self.percent_of(bytes) < self.refuse_percent
    }

    /// Fails if storing this is refused at `bytes` of use.
    pub fn check(&self, bytes: u64, new: New) -> Result<()> {
        let (percent, last) = (self.percent_of(bytes), self.last_percent());
        let reserve = last.saturating_sub(self.refuse_percent);
        let is_tiny = new.held + new.bytes < self.limit_bytes / TINY_COLLECTION_SHARE;
        let fits =
            percent < last || (is_tiny && self.percent_of(new.tiny) < reserve && percent < END_PERCENT);
        if self.takes_all(bytes) || (self.is_small(new) && fits) {
            return Ok(());
        }
        let refuse = self.refuse_percent;
        Err(self.refused(
            bytes,
            format_args!(
                "new documents are refused from {refuse} % on, those of up to {SMALL_BYTES_MAX} bytes in collections of less than 1/{SMALL_COLLECTION_SHARE} of the limit from {last} % on"
            ),
        ))
    }

    /// Fails if a change that adds so many bytes to a document is refused at `bytes` of use.
    pub fn check_growth(&self, bytes: u64, growth: u64) -> Result<()> {
        let is_small = growth <= SMALL_BYTES_MAX && self.percent_of(bytes) < END_PERCENT;
        if growth == 0 || self.takes_all(bytes) || is_small {
            return Ok(());
        }
        let refuse = self.refuse_percent;
        Err(self.refused(
            bytes,
            format_args!(
                "changes that add more than {SMALL_BYTES_MAX} bytes to a document are refused from {refuse} % on, those that add less from {END_PERCENT} % on"
            ),
        ))
    }

    fn refused(&self, bytes: u64, rule: std::fmt::Arguments<'_>) -> Error {
        let percent = self.percent_of(bytes);
        let message = format!(
            "memory use of {bytes} bytes is {percent} % of the limit: {rule}; delete documents or let them expire, or raise the limit, then try again"
        );
        Error::new(code::EXCEEDED_MEMORY_LIMIT, message)
    }
}

/// What the log's segment keeps for deletions and marks while the disk is short.
#[derive(Debug, Default)]
pub struct Reserve {
    /// Bytes that the segment had left when somebody asked first, since the disk was short or the segment began.
    at: Option<u64>,
}

impl Reserve {
    /// The disk is not short.
    pub fn restore(&mut self) {
        self.at = None;
    }

    /// Whether at least half of what was left stays after so many bytes. `room` is what the segment has left now: more
    /// than before in a new one.
    pub fn has(&mut self, bytes: u64, room: u64) -> bool {
        let at = self.at.get_or_insert(room);
        *at = room.max(*at);
        room.saturating_sub(bytes) >= *at / 2
    }
}

/// The disk under a data folder.
#[derive(Debug, Default)]
pub struct Disk {
    /// `None` in memory only: never short.
    dir: Option<PathBuf>,
    is_short: AtomicBool,
    /// It did not say how much is free when last asked.
    is_silent: AtomicBool,
}

impl Disk {
    /// The disk that holds `dir`.
    pub fn new(dir: Option<PathBuf>) -> Disk {
        Disk { dir, ..Disk::default() }
    }

    /// Looks how much is free and notes whether it is less than `wanted` bytes. Returns what is free; where that cannot be
    /// known, which is told once, no space is missed.
    pub fn look(&self, wanted: u64) -> u64 {
        let Some(dir) = &self.dir else { return u64::MAX };
        let free = match rustix::fs::statvfs(dir) {
            Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
            Err(error) => {
                if !self.is_silent.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, dir = %dir.display(), "the disk does not say how much is free");
                }
                self.is_short.store(false, Ordering::Relaxed);
                return u64::MAX;
            }
        };
        self.is_silent.store(false, Ordering::Relaxed);
        let is_short = free < wanted;
        if is_short && !self.is_short.swap(is_short, Ordering::Relaxed) {
            tracing::warn!(
                free,
                wanted,
                "the disk is short: new documents are refused until a checkpoint fits, but for some small ones"
            );
        }
        self.is_short.store(is_short, Ordering::Relaxed);
        free
    }

    /// Whether it was short when last looked at.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }
}

/// Whether a change that takes so many bytes in the log is carried out while the disk is short.
pub fn is_small_change(in_log: u64) -> bool {
    in_log <= SMALL_BYTES_MAX
}

/// What a new document or a large change gets while the disk is short.
pub fn disk_is_short() -> Error {
    let message = "the disk that holds the data folder is short: new documents are refused, but for some small ones in \
                   small collections, and so are large changes, so that deletions and a checkpoint find room; delete \
                   documents or let them expire, or make space, then try again";
    Error::new(code::OUT_OF_DISK_SPACE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 20;
    const SMALL: New = New { bytes: 4096, held: 4095, tiny: LIMIT };

    fn percent(percent: u64) -> u64 {
        (LIMIT * percent).div_ceil(100)
    }

    #[test]
    fn new_documents_are_refused_above_the_second_mark_and_small_ones_above_the_last() {
        let memory = Memory::new(LIMIT, 75, 90);
        let large = New { bytes: 4097, held: 0, tiny: 0 };
        let crowded = New { bytes: 1, held: 4096, tiny: 0 };
        for new in [large, crowded, SMALL] {
            assert!(memory.check(percent(90) - 1, new).is_ok(), "{new:?}");
        }
        for new in [large, crowded] {
            let refused = memory.check(percent(90), new).unwrap_err();
            assert_eq!(refused.code.number, 146);
            assert!(refused.message.contains("90 %"), "{refused}");
        }
        assert!(memory.check(percent(95) - 1, SMALL).is_ok());
        let refused = memory.check(percent(95), SMALL).unwrap_err();
        assert!(refused.message.contains("95 %") && refused.message.contains("4096 bytes"), "{refused}");
    }

    #[test]
    fn tiny_collections_have_what_is_between_the_marks_for_themselves() {
        let memory = Memory::new(LIMIT, 75, 90);
        let with = |tiny, held| New { bytes: 24, held, tiny: percent(tiny) };
        for used in [95, 130, 149] {
            assert!(memory.check(percent(used), with(4, 999)).is_ok(), "{used}");
            assert!(memory.check(percent(used), with(5, 999)).is_err(), "{used}");
            assert!(memory.check(percent(used), with(4, 1000)).is_err(), "{used}");
        }
        assert!(memory.check(percent(150), with(0, 0)).is_err());
    }

    #[test]
    fn small_growth_goes_on_and_large_growth_does_not() {
        let memory = Memory::new(LIMIT, 75, 90);
        assert!(memory.check_growth(percent(90) - 1, 1 << 30).is_ok());
        for used in [90, 149] {
            assert!(memory.check_growth(percent(used), 4096).is_ok(), "{used}");
            assert_eq!(memory.check_growth(percent(used), 4097).unwrap_err().code.number, 146, "{used}");
        }
        assert!(memory.check_growth(percent(150), 1).is_err());
        assert!(memory.check_growth(percent(200), 0).is_ok());
    }

    #[test]
    fn the_last_mark_is_never_below_the_second() {
        for (refuse, last) in [(1, 50), (99, 99), (100, 100), (120, 120)] {
            let memory = Memory::new(LIMIT, 75, refuse);
            assert!(memory.check(percent(last) - 1, SMALL).is_ok(), "{refuse}");
            assert!(memory.check(percent(last), SMALL).is_err(), "{refuse}");
        }
    }

    #[test]
    fn half_of_what_the_segment_had_left_is_the_reserve() {
        let mut reserve = Reserve::default();
        for _ in 0..2 {
            assert!(reserve.has(5000, 10_000) && !reserve.has(5001, 10_000));
            assert!(reserve.has(1000, 6000) && !reserve.has(1001, 6000));
            assert!(!reserve.has(0, 4999), "whatever has used it");
            assert!(reserve.has(10_000, 20_000) && !reserve.has(10_001, 20_000), "a new segment");
            assert!(!reserve.has(0, 9999));
            reserve.restore();
        }
    }
}
