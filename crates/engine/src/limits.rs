//! Memory watermarks: live bytes against a limit. Above the first mark the server warns, above the second it
//! refuses to store new documents; deletions, expiry and marks on messages go on, so that it can drain.
//!
//! The same for the disk, which is short when a checkpoint would find no space: without one the log never shrinks.

use rockdove_documents::{Error, Result, code};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far below the warning mark the use must fall before a new crossing warns again, in percent.
const REARM_PERCENT: u64 = 5;

/// Part of the limit that retry records may take.
const RECORDS_SHARE: u64 = 8;

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
        self.used_bytes().saturating_mul(100) / self.limit_bytes
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

    /// Fails if storing more is refused at `bytes` of use.
    pub fn check(&self, bytes: u64) -> Result<()> {
        let percent = bytes.saturating_mul(100) / self.limit_bytes;
        if percent < self.refuse_percent {
            return Ok(());
        }
        let message = format!(
            "memory use of {bytes} bytes ({percent} % of the limit) is above the refusal watermark ({} %): delete documents or let them expire, or raise the limit, then try again",
            self.refuse_percent
        );
        Err(Error::new(code::EXCEEDED_MEMORY_LIMIT, message))
    }
}

/// The disk under a data folder.
#[derive(Debug, Default)]
pub struct Disk {
    /// `None` in memory only: never short.
    dir: Option<PathBuf>,
    is_short: AtomicBool,
}

impl Disk {
    /// The disk that holds `dir`.
    pub fn new(dir: Option<PathBuf>) -> Disk {
        Disk { dir, is_short: AtomicBool::new(false) }
    }

    /// Looks how much is free and notes whether it is less than `wanted` bytes. Returns what is free.
    pub fn look(&self, wanted: u64) -> u64 {
        let Some(dir) = &self.dir else { return u64::MAX };
        let free = match rustix::fs::statvfs(dir) {
            Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
            Err(error) => {
                tracing::warn!(%error, dir = %dir.display(), "the disk does not say how much is free");
                return u64::MAX;
            }
        };
        let is_short = free < wanted;
        if is_short && !self.is_short.swap(is_short, Ordering::Relaxed) {
            tracing::warn!(
                free,
                wanted,
                "the disk is short: new documents are refused until a checkpoint fits"
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

/// What a new document gets while the disk is short.
pub fn disk_is_short() -> Error {
    let message = "the disk that holds the data folder is short: new documents are refused so that deletions and a \
                   checkpoint find room; delete documents or let them expire, or make space, then try again";
    Error::new(code::OUT_OF_DISK_SPACE, message)
}

#[cfg(test)]
mod tests {
    use super::Memory;

    #[test]
    fn new_documents_are_refused_above_the_second_mark_only() {
        let memory = Memory::new(1000, 75, 90);
        assert!(memory.check(899).is_ok());
        let refused = memory.check(900).unwrap_err();
        assert_eq!(refused.code.number, 146);
        assert!(refused.message.contains("90 %"), "{refused}");
    }
}
