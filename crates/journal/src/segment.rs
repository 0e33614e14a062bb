//! The two head pages of a segment file, its name, and what the process knows of it while it runs.
//! Format: `docs/format/segment.md`.
//!
//! The header is written and synced before the file gets its name and never changes. The seal is written after
//! every frame of a completed segment is on disk: a valid seal proves that damage before it is damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::checksum::Crc32c;
use crate::frame::{put, u32_at, u64_at};
use crate::map::Window;
use crate::options::INDEX_MAX;
use crate::retention::Candidate;
use crate::seek::Marks;

/// Size of each of the two head pages.
const PAGE: u64 = 4096;
/// Where the seal lies.
pub(crate) const SEAL_AT: u64 = PAGE;
/// Where the first frame begins.
pub(crate) const FRAMES_AT: u64 = 2 * PAGE;

const MAGIC: &[u8; 8] = b"RDOVESEG";
const VERSION: u32 = 2;
/// Version 1 had no marks, levels, labels and shortened files; what it wrote is read as ever.
const VERSION_OLDEST: u32 = 1;

const H_VERSION: usize = MAGIC.len();
const H_FLAGS: usize = H_VERSION + 4;
const H_LOG_ID: usize = H_FLAGS + 4;
const H_SALT: usize = H_LOG_ID + 16;
const H_SIZE: usize = H_SALT + 8;
const H_CRC: usize = H_SIZE + 8;
/// Length of the header.
pub(crate) const HEADER_BYTES: usize = H_CRC + 4;
const _: () = assert!(HEADER_BYTES == 52);

const SEAL_MAGIC: &[u8; 8] = b"RDSEALED";
const S_LAST: usize = SEAL_MAGIC.len();
const S_END: usize = S_LAST + 8;
const S_TERM: usize = S_END + 8;
const S_TIME: usize = S_TERM + 8;
const S_LINK: usize = S_TIME + 8;
const S_CRC: usize = S_LINK + 4;
/// Length of the seal.
pub(crate) const SEAL_BYTES: usize = S_CRC + 4;
const _: () = assert!(SEAL_BYTES == 48);

/// What a segment file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The log it belongs to.
    pub log_id: [u8; 16],
    /// Random, this file's only: mixed into each frame's link.
    pub salt: u64,
    /// Length of the file in bytes.
    pub size: u64,
}

/// Why a header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    Damaged(&'static str),
    Version(u32),
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, H_VERSION, &VERSION.to_le_bytes());
        put(&mut bytes, H_LOG_ID, &self.log_id);
        put(&mut bytes, H_SALT, &self.salt.to_le_bytes());
        put(&mut bytes, H_SIZE, &self.size.to_le_bytes());
        let crc = Crc32c::new().add(&bytes[..H_CRC]).value();
        put(&mut bytes, H_CRC, &crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderFault> {
        if !bytes.starts_with(MAGIC) {
            return Err(HeaderFault::Damaged("this is not a segment file"));
        }
        let version = u32_at(bytes, H_VERSION);
        if Crc32c::new().add(&bytes[..H_CRC]).value() != u32_at(bytes, H_CRC) {
            // A newer version may keep its checksum elsewhere.
            return Err(if version > VERSION && u32_at(bytes, H_FLAGS) == 0 {
                HeaderFault::Version(version)
            } else {
                HeaderFault::Damaged("the segment header's checksum does not match")
            });
        }
        if !(VERSION_OLDEST..=VERSION).contains(&version) || u32_at(bytes, H_FLAGS) != 0 {
            return Err(HeaderFault::Version(version));
        }
        Ok(Header {
            log_id: bytes[H_LOG_ID..H_SALT].try_into().expect("sixteen bytes"),
            salt: u64_at(bytes, H_SALT),
            size: u64_at(bytes, H_SIZE),
        })
    }
}

/// Proof that all frames of a completed segment are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    /// The last frame's index.
    pub last: u64,
    /// Where the last frame ends.
    pub end: u64,
    /// The last frame's term.
    pub term: u64,
    /// The last frame's time.
    pub time_ns: u64,
    /// The last frame's link.
    pub link: u32,
}

impl Seal {
    pub(crate) fn encode(&self, salt: u64) -> [u8; SEAL_BYTES] {
        let mut bytes = [0; SEAL_BYTES];
        put(&mut bytes, 0, SEAL_MAGIC);
        put(&mut bytes, S_LAST, &self.last.to_le_bytes());
        put(&mut bytes, S_END, &self.end.to_le_bytes());
        put(&mut bytes, S_TERM, &self.term.to_le_bytes());
        put(&mut bytes, S_TIME, &self.time_ns.to_le_bytes());
        put(&mut bytes, S_LINK, &self.link.to_le_bytes());
        let crc = seal_crc(&bytes, salt);
        put(&mut bytes, S_CRC, &crc.to_le_bytes());
        bytes
    }

    /// The seal, or `None` where there is none that is whole: the frames must be walked then.
    pub(crate) fn decode(bytes: &[u8; SEAL_BYTES], salt: u64) -> Option<Self> {
        let whole = bytes.starts_with(SEAL_MAGIC) && seal_crc(bytes, salt) == u32_at(bytes, S_CRC);
        whole.then(|| Seal {
            last: u64_at(bytes, S_LAST),
            end: u64_at(bytes, S_END),
            term: u64_at(bytes, S_TERM),
            time_ns: u64_at(bytes, S_TIME),
            link: u32_at(bytes, S_LINK),
        })
    }
}

fn seal_crc(bytes: &[u8; SEAL_BYTES], salt: u64) -> u32 {
    Crc32c::new().add(&salt.to_le_bytes()).add(&bytes[..S_CRC]).value()
}

const NAME_DIGITS: usize = 20;
const NAME_ENDING: &str = ".seg";
/// Longest label of a cycle in a name: a date and a time of day.
const LABEL_BYTES_MAX: usize = 16;
/// Ending of files under construction; removed when the log is opened.
pub(crate) const TEMP_ENDING: &str = ".tmp";

/// The name of the segment that begins with this index, in a log without roll cycles.
#[cfg(test)]
pub(crate) fn name(base: u64) -> String {
    labelled_name(None, base)
}

/// The name of the segment that begins with this index and this cycle.
pub(crate) fn labelled_name(label: Option<&str>, base: u64) -> String {
    match label {
        Some(label) => format!("{label}_{base:0NAME_DIGITS$}{NAME_ENDING}"),
        None => format!("{base:0NAME_DIGITS$}{NAME_ENDING}"),
    }
}

/// The first index of the segment with this name.
pub(crate) fn base_of(name: &str) -> Option<u64> {
    let stem = name.strip_suffix(NAME_ENDING)?;
    let (label, digits) = stem.rsplit_once('_').unwrap_or(("", stem));
    let is_label = label.len() <= LABEL_BYTES_MAX && label.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    let plain = digits.len() == NAME_DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|base| is_label && plain && (1..=INDEX_MAX).contains(base))
}

/// A segment of the running log. Only the writer moves `end`, `last` and the times.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Changes only while there is no frame; who reads from outside learns of it later.
    name: Mutex<String>,
    /// Index of its first frame, present or to come.
    pub base: u64,
    pub salt: u64,
    /// Length of the file in bytes.
    pub size: u64,
    /// Where the published frames end. Stored before the log's `written`.
    end: AtomicU64,
    /// Index of the last published frame, `base - 1` while there is none.
    last: AtomicU64,
    /// Times of the first and the last published frame; without meaning while there is none.
    first_time: AtomicU64,
    last_time: AtomicU64,
    /// Bytes it takes on disk.
    disk_bytes: AtomicU64,
    sealed: AtomicBool,
    /// Where frames lie, as far as somebody has searched for one.
    pub marks: Mutex<Marks>,
    /// The file in memory, from when it is written there until it is sealed.
    window: Mutex<Option<Arc<Window>>>,
}

/// What is known of a segment when it is made or found.
pub(crate) struct Contents {
    /// Where the published frames end.
    pub end: u64,
    /// Index of the last frame, `base - 1` if there is none.
    pub last: u64,
    pub first_time: u64,
    pub last_time: u64,
    pub sealed: bool,
}

impl Segment {
    /// A segment that was found.
    pub(crate) fn new(name: String, base: u64, header: &Header, disk_bytes: u64, contents: Contents) -> Self {
        Segment {
            name: name.into(),
            base,
            salt: header.salt,
            size: header.size,
            end: contents.end.into(),
            last: contents.last.into(),
            first_time: contents.first_time.into(),
            last_time: contents.last_time.into(),
            disk_bytes: disk_bytes.into(),
            sealed: contents.sealed.into(),
            marks: Mutex::default(),
            window: Mutex::default(),
        }
    }

    /// A segment without frames.
    pub(crate) fn empty(name: String, base: u64, header: &Header) -> Self {
        let contents =
            Contents { end: FRAMES_AT, last: base - 1, first_time: 0, last_time: 0, sealed: false };
        Segment::new(name, base, header, header.size, contents)
    }

    pub(crate) fn name(&self) -> String {
        self.name.lock().clone()
    }

    pub(crate) fn set_name(&self, name: &str) {
        name.clone_into(&mut self.name.lock());
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last() < self.base
    }

    /// Bytes that frames still have.
    pub(crate) fn room(&self) -> u64 {
        self.size - self.end()
    }

    pub(crate) fn is_half_full(&self) -> bool {
        (self.end() - FRAMES_AT) * 2 > self.size - FRAMES_AT
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Times of the first and last frame.
    pub(crate) fn times(&self) -> (u64, u64) {
        (self.first_time.load(Ordering::Acquire), self.last_time.load(Ordering::Acquire))
    }

    pub(crate) fn candidate(&self) -> Candidate {
        Candidate { last: self.last(), last_time: self.times().1, bytes: self.disk_bytes() }
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_disk_bytes(&self, bytes: u64) {
        self.disk_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Makes frames visible, the last of which is `last`, all of this time.
    pub(crate) fn publish(&self, end: u64, last: u64, time_ns: u64) {
        if self.is_empty() {
            self.first_time.store(time_ns, Ordering::Release);
        }
        self.last_time.store(time_ns, Ordering::Release);
        self.end.store(end, Ordering::Release);
        self.last.store(last, Ordering::Release);
    }

    /// The file in memory, for readers in this process.
    pub(crate) fn window(&self) -> Option<Arc<Window>> {
        self.window.lock().clone()
    }

    /// Gives readers the file in memory, or takes it from those that are still to come.
    pub(crate) fn set_window(&self, window: Option<Arc<Window>>) {
        // The one before is dropped when the lock is free again: giving a mapping back takes time.
        let _before = std::mem::replace(&mut *self.window.lock(), window);
    }

    pub(crate) fn set_sealed(&self) {
        self.sealed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_seals_read_back() {
        let header = Header { log_id: [3; 16], salt: 5, size: 1 << 20 };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        let seal = Seal { last: 9, end: 9000, term: 1, time_ns: 8, link: 77 };
        assert_eq!(Seal::decode(&seal.encode(5), 5), Some(seal));
        assert_eq!(Seal::decode(&seal.encode(5), 6), None);
        assert_eq!(Seal::decode(&[0; SEAL_BYTES], 0), None);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let header = Header { log_id: [3; 16], salt: 5, size: 1 << 20 }.encode();
        let seal = Seal { last: 9, end: 9000, term: 1, time_ns: 8, link: 77 }.encode(5);
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = header;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes).is_err(), "bit {bit}");
        }
        for bit in 0..SEAL_BYTES * 8 {
            let mut bytes = seal;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Seal::decode(&bytes, 5), None, "bit {bit}");
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = Header { log_id: [3; 16], salt: 5, size: 1 << 20 }.encode();
        bytes[H_VERSION] = 3;
        assert_eq!(Header::decode(&bytes), Err(HeaderFault::Version(3)));
    }

    #[test]
    fn names() {
        assert_eq!(name(1), "00000000000000000001.seg");
        assert_eq!(labelled_name(Some("20261130-19"), 7), "20261130-19_00000000000000000007.seg");
        for base in [1, 77, INDEX_MAX] {
            assert_eq!(base_of(&name(base)), Some(base));
            assert_eq!(base_of(&labelled_name(Some("20261130"), base)), Some(base));
        }
        for other in [
            "1.seg",
            "18446744073709551615.seg",
            "00000000000000000000.seg",
            "0000000000000000000x.seg",
            "x_00000000000000000007.seg",
            "20261130-195959-0000000_00000000000000000007.seg",
            "lock",
            ".seg",
        ] {
            assert_eq!(base_of(other), None, "{other}");
        }
    }
}
