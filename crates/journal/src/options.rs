//! What an opener chooses, and the limits of the log.

use std::time::Duration;

use crate::codec::{Codec, Compression};
use crate::cycle::Cycle;
use crate::retention::Retention;
use crate::risk::RiskPolicy;

/// Largest payload of one append, in bytes. Checked before anything is written.
pub const PAYLOAD_BYTES_MAX: u64 = 128 << 20;
/// Smallest accepted segment size: the two head pages and room for some frames.
pub const SEGMENT_BYTES_MIN: u64 = 16 << 10;
/// Largest accepted segment size. Opening reads the unsealed segments, so their size bounds the time it takes.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Highest index at which a segment may begin. Far beyond any log; keeps a damaged number from overflowing.
pub(crate) const INDEX_MAX: u64 = 1 << 62;
/// Size of a segment where nothing else was asked for.
const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;

/// When the log syncs without being asked.
///
/// Under every policy a completed segment is synced in the background, so that only the last few segments
/// have to be checked when the log is opened, and [`Journal::request_sync`](crate::Journal::request_sync)
/// syncs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Not for the sake of an append. Entries survive the end of the process, not a power loss.
    Never,
    /// At most this long after an entry was written. Nothing runs while nothing is unsynced.
    Interval(Duration),
    /// As soon as possible after each append: while one sync runs the next batch gathers.
    EachBatch,
}

impl Default for SyncPolicy {
    fn default() -> Self {
        SyncPolicy::Interval(Duration::from_millis(20))
    }
}

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of a new segment's file in bytes, preallocated, a multiple of 4096 between [`SEGMENT_BYTES_MIN`]
    /// and [`SEGMENT_BYTES_MAX`]. An entry that does not fit gets a segment of its own, as large as it needs.
    /// Segments that exist keep their size.
    pub segment_bytes: u64,
    /// When to sync.
    pub sync: SyncPolicy,
    /// What the value of unsafe entries leads to; nothing if `None`.
    pub risk: Option<RiskPolicy>,
    /// When to roll to a new segment, besides when the active one is full.
    pub cycle: CycleChoice,
    /// What is removed by itself, after a segment was completed; [`Journal::retain`](crate::Journal::retain) does
    /// it at any time.
    pub retention: Retention,
    /// How payloads are stored.
    pub codec: Codec,
}

/// The roll cycle of a log, which is stored in it when it is made.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum CycleChoice {
    /// The stored one. A new log rolls by size only.
    #[default]
    Stored,
    /// This one; an existing log with another is refused. `None`: by size only.
    Exactly(Option<Cycle>),
    /// This one from now on. Segments that exist keep their names.
    ChangeTo(Option<Cycle>),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            sync: SyncPolicy::default(),
            risk: None,
            cycle: CycleChoice::default(),
            retention: Retention::default(),
            codec: Codec::default(),
        }
    }
}

impl Options {
    /// What is wrong with these options, if anything.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if !self.segment_bytes.is_multiple_of(4096) {
            return Some("segment_bytes must be a multiple of 4096");
        }
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes) {
            return Some("segment_bytes must be between 16 KiB and 1 GiB");
        }
        // Other levels are not refused by Zstandard but taken for the nearest that there is.
        if let Some(Compression::Zstd { level }) = self.codec.compression
            && !zstd::compression_level_range().contains(&level)
        {
            return Some("the level of compression must be between -131072 and 22");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_compression() {
        assert_eq!(zstd::compression_level_range(), -131_072..=22, "as the text says");
        let fault = |level| {
            let codec = Codec { compression: Some(Compression::Zstd { level }), key: None };
            Options { codec, ..Options::default() }.fault()
        };
        assert!([-131_072, -5, 0, 1, 19, 22].iter().all(|level| fault(*level).is_none()));
        for level in [i32::MIN, -131_073, 23, 1000] {
            assert!(fault(level).is_some_and(|text| text.contains("level")), "{level}");
        }
    }
}
