//! The election terms of a data folder: which one a run begins with. Format: `docs/format/term.md`.
//!
//! Clients follow a primary only as long as its term does not fall, so a run's terms are above those of all runs
//! before it, whatever the clock does. The clock counts too: a folder that was made anew under the same address
//! comes after the one it replaces.
//!
//! Invariants
//! * A term is stored, durably, before it is used.
//! * Of the two copies one is whole at any time, and the file never grows: a full disk is no obstacle.

use crc_fast::{CrcAlgorithm, Digest};
use rockdove_documents::Timestamp;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Terms that belong to one run: it may step up so many times.
pub const TERMS_PER_RUN: u64 = 1 << 20;

const NAME: &str = "term";
const MAGIC: &[u8; 8] = b"RDOVETRM";
/// Each copy lies on a page of its own.
const PAGE: u64 = 4096;
/// Magic, term, checksum.
const RECORD_BYTES: usize = 8 + 8 + 4;

/// The first term of a run that begins at `now_ms` (milliseconds since 1970) where nothing is stored.
pub fn of_clock(now_ms: i64) -> u64 {
    let seconds = u64::try_from(now_ms / 1000).unwrap_or_default();
    seconds.min(u64::from(u32::MAX)) * TERMS_PER_RUN
}

/// The first term of the run that begins now in `dir`, whose log's last effect happened at `at`. Nobody else may be
/// in the folder.
pub fn begin(dir: &Path, at: Timestamp, now_ms: i64) -> io::Result<u64> {
    let path = dir.join(NAME);
    let is_new = !path.try_exists()?;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
    let copies = [stored(&file, 0)?, stored(&file, PAGE)?];
    let newest = copies.iter().flatten().max().copied();
    if newest.is_none() && !is_new {
        tracing::warn!(path = %path.display(), "no stored term is readable: the clock gives the next");
    }
    let of_log = u64::from(at.time) * TERMS_PER_RUN;
    let after = newest.map_or(0, |newest| newest.saturating_add(TERMS_PER_RUN));
    let term = after.max(of_log).max(of_clock(now_ms));
    // The newest copy stays until this one is whole.
    let over = if newest.is_some() && copies[0] == newest { PAGE } else { 0 };
    if is_new {
        file.write_all_at(&[0; RECORD_BYTES], PAGE)?;
    }
    file.write_all_at(&record(term), over)?;
    file.sync_all()?;
    if is_new {
        File::open(dir)?.sync_all()?;
    }
    Ok(term)
}

/// The term in the copy at `offset`, if that is whole.
fn stored(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let mut bytes = [0; RECORD_BYTES];
    match file.read_exact_at(&mut bytes, offset) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut term = [0; 8];
    term.copy_from_slice(&bytes[8..16]);
    let term = u64::from_le_bytes(term);
    Ok((record(term) == bytes).then_some(term))
}

fn record(term: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&term.to_le_bytes());
    let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
    crc.update(&bytes[..16]);
    bytes[16..].copy_from_slice(&(crc.finalize() as u32).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    #[test]
    fn terms_rise_whatever_the_clock_does() {
        let dir = tempfile::tempdir().unwrap();
        let (mut now, mut last) = (20_000 * DAY_MS, 0);
        for step in [0, 0, DAY_MS, -DAY_MS, 1, -10_000 * DAY_MS, -30_000 * DAY_MS, 50_000 * DAY_MS] {
            now += step;
            let term = begin(dir.path(), Timestamp::default(), now).unwrap();
            assert!(last == 0 || term >= last + TERMS_PER_RUN, "{term} after {last}");
            last = term;
        }
        assert_eq!(std::fs::metadata(dir.path().join(NAME)).unwrap().len(), PAGE + RECORD_BYTES as u64);
    }

    #[test]
    fn a_folder_that_stored_none_goes_on_from_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let at = Timestamp { time: 1_900_000_000, increment: 1 };
        assert_eq!(begin(dir.path(), at, DAY_MS).unwrap(), 1_900_000_000 * TERMS_PER_RUN);
    }

    #[test]
    fn an_interrupted_write_leaves_the_term_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let mut last = begin(dir.path(), Timestamp::default(), DAY_MS).unwrap();
        for written_last in [PAGE, 0, PAGE, 0] {
            let term = begin(dir.path(), Timestamp::default(), DAY_MS).unwrap();
            assert_eq!(term, last + TERMS_PER_RUN);
            // The copy that was written last is damaged: the next run writes it once more.
            let whole = std::fs::read(&path).unwrap();
            let mut bytes = whole.clone();
            bytes[written_last as usize + 9] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(begin(dir.path(), Timestamp::default(), DAY_MS).unwrap(), term);
            assert_eq!(std::fs::read(&path).unwrap(), whole);
            last = term;
        }
    }
}
