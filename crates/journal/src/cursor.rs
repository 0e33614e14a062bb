//! Named positions, one file each, in two copies of which the older is overwritten.
//! Format: `docs/format/journal-cursor.md`.
//!
//! A position may be ahead of what is on disk. So two are stored: the one to go on from while the machine runs, and
//! the one to go on from after a power loss, which never passes what was on disk when it was stored. Otherwise a
//! reader could pass over entries that take the place of lost ones.

use crate::checksum::Crc32c;
use crate::disk::FolderLock;
use crate::error::{Damage, DiskError, OpenError};
use crate::file::{Folder, LogFile};
use crate::frame::{put, u32_at, u64_at};

const PAGE: u64 = 4096;
const PREFIX: &str = "cursor-";
const ENDING: &str = ".pos";
/// Longest name of a position.
pub const CURSOR_NAME_BYTES_MAX: usize = 64;

const MAGIC: &[u8; 8] = b"RDOVECUR";
const VERSION: u32 = 1;

const AT_VERSION: usize = MAGIC.len();
const AT_FLAGS: usize = AT_VERSION + 4;
const AT_SEQUENCE: usize = AT_FLAGS + 4;
const AT_LOG_ID: usize = AT_SEQUENCE + 8;
const AT_BOOT_ID: usize = AT_LOG_ID + 16;
const AT_NEXT: usize = AT_BOOT_ID + 16;
const AT_DURABLE: usize = AT_NEXT + 8;
const AT_CRC: usize = AT_DURABLE + 8;
const RECORD_BYTES: usize = AT_CRC + 4;
const _: () = assert!(RECORD_BYTES == 76);

/// Why a named position cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CursorError {
    /// Names have 1 to 64 letters, digits, dots, dashes or underscores of ASCII.
    #[error("{0:?} is no name for a position: use 1 to 64 letters, digits, dots, dashes or underscores")]
    Name(String),
    /// A tailer of this name is open, here or in another process.
    #[error("the position {0:?} is in use by another reader")]
    InUse(String),
    /// The file is not what was written.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The file was written by another version.
    #[error("{} needs another version", .0.display())]
    Unsupported(std::path::PathBuf),
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A named position as it was stored last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorPosition {
    /// Its name.
    pub name: String,
    /// The first index that was not done.
    pub next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    sequence: u64,
    log_id: [u8; 16],
    boot_id: [u8; 16],
    next: u64,
    /// As `next`, but not past what was on disk.
    durable_next: u64,
}

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, AT_VERSION, &VERSION.to_le_bytes());
        put(&mut bytes, AT_SEQUENCE, &self.sequence.to_le_bytes());
        put(&mut bytes, AT_LOG_ID, &self.log_id);
        put(&mut bytes, AT_BOOT_ID, &self.boot_id);
        put(&mut bytes, AT_NEXT, &self.next.to_le_bytes());
        put(&mut bytes, AT_DURABLE, &self.durable_next.to_le_bytes());
        let crc = Crc32c::new().add(&bytes[..AT_CRC]).value();
        put(&mut bytes, AT_CRC, &crc.to_le_bytes());
        bytes
    }

    /// `Ok(None)` if it is not whole.
    fn decode(bytes: &[u8; RECORD_BYTES], file: &LogFile) -> Result<Option<Record>, CursorError> {
        let whole = Crc32c::new().add(&bytes[..AT_CRC]).value() == u32_at(bytes, AT_CRC);
        if !bytes.starts_with(MAGIC) || !whole {
            return Ok(None);
        }
        if u32_at(bytes, AT_VERSION) != VERSION || u32_at(bytes, AT_FLAGS) != 0 {
            return Err(CursorError::Unsupported(file.path()));
        }
        Ok(Some(Record {
            sequence: u64_at(bytes, AT_SEQUENCE),
            log_id: bytes[AT_LOG_ID..AT_BOOT_ID].try_into().expect("sixteen bytes"),
            boot_id: bytes[AT_BOOT_ID..AT_NEXT].try_into().expect("sixteen bytes"),
            next: u64_at(bytes, AT_NEXT),
            durable_next: u64_at(bytes, AT_DURABLE),
        }))
    }

    fn position(&self, boot_id: [u8; 16]) -> u64 {
        if self.boot_id == boot_id { self.next } else { self.next.min(self.durable_next) }
    }
}

/// An open and locked position.
pub(crate) struct Cursor {
    file: LogFile,
    log_id: [u8; 16],
    boot_id: [u8; 16],
    /// `None` until something was stored.
    record: Option<Record>,
    _lock: FolderLock,
}

impl Cursor {
    pub(crate) fn open(folder: Folder, log_id: [u8; 16], name: &str) -> Result<Cursor, CursorError> {
        let file_name = file_name(name)?;
        let lock = folder.lock(&file_name)?.ok_or_else(|| CursorError::InUse(name.into()))?;
        // The lock may have made the file, empty.
        let (file, made) = match folder.open(&file_name) {
            Err(error) if error.is_not_found() => (folder.create(&file_name)?, true),
            opened => (opened?, false),
        };
        if made || file.len()? == 0 {
            file.allocate(2 * PAGE)?;
            folder.sync_names()?;
        }
        let boot_id = folder.disk().boot_id();
        let record = newest(&file, log_id)?;
        Ok(Cursor { file, log_id, boot_id, record, _lock: lock })
    }

    /// The position to go on from.
    pub(crate) fn next(&self) -> Option<u64> {
        self.record.map(|record| record.position(self.boot_id))
    }

    /// Stores a position, given what is on disk of the log.
    pub(crate) fn store(&mut self, next: u64, synced: u64) -> Result<(), DiskError> {
        let record = Record {
            sequence: self.record.map_or(0, |r| r.sequence + 1),
            log_id: self.log_id,
            boot_id: self.boot_id,
            next,
            durable_next: next.min(synced + 1),
        };
        self.file.write_bytes(&record.encode(), record.sequence % 2 * PAGE)?;
        self.record = Some(record);
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<(), DiskError> {
        self.file.sync()
    }
}

/// The newer whole copy; `None` if nothing was stored yet.
fn newest(file: &LogFile, log_id: [u8; 16]) -> Result<Option<Record>, CursorError> {
    let mut newest: Option<Record> = None;
    let mut has_bytes = false;
    for copy in 0..2 {
        let mut bytes = [0; RECORD_BYTES];
        file.read(&mut bytes, copy * PAGE)?;
        has_bytes |= bytes.iter().any(|b| *b != 0);
        let record = Record::decode(&bytes, file)?;
        newest = record.filter(|r| newest.is_none_or(|n| n.sequence < r.sequence)).or(newest);
    }
    let damage = |what| Damage { file: file.path(), offset: 0, index: 0, what };
    match newest {
        Some(record) if record.log_id != log_id => Err(damage("the position is one in another log").into()),
        None if has_bytes => Err(damage("neither copy of the position is readable").into()),
        newest => Ok(newest),
    }
}

fn file_name(name: &str) -> Result<String, CursorError> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    match (1..=CURSOR_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
        true => Ok(format!("{PREFIX}{name}{ENDING}")),
        false => Err(CursorError::Name(name.into())),
    }
}

fn name_of(file_name: &str) -> Option<&str> {
    file_name.strip_prefix(PREFIX)?.strip_suffix(ENDING)
}

/// All stored positions, in the order of their names.
pub(crate) fn list(folder: &Folder, log_id: [u8; 16]) -> Result<Vec<CursorPosition>, CursorError> {
    let mut names = folder.names()?;
    names.sort_unstable();
    let boot_id = folder.disk().boot_id();
    let mut positions = Vec::new();
    for (file_name, name) in names.iter().filter_map(|n| Some((n, name_of(n)?))) {
        let record = newest(&folder.open_read(file_name)?, log_id)?;
        let position = |r: Record| CursorPosition { name: name.into(), next: r.position(boot_id) };
        positions.extend(record.map(position));
    }
    Ok(positions)
}

/// Moves the positions that lie past the end of the log to it; those that were, as they were. Positions that cannot be read
/// stay as they are.
pub(crate) fn move_back(
    folder: &Folder,
    log_id: [u8; 16],
    last: u64,
) -> Result<Vec<CursorPosition>, OpenError> {
    let mut moved = Vec::new();
    let mut names = folder.names()?;
    names.sort_unstable();
    for (file_name, name) in names.iter().filter_map(|n| Some((n, name_of(n)?))) {
        let mut cursor = match Cursor::open(folder.clone(), log_id, name) {
            Ok(cursor) => cursor,
            Err(CursorError::InUse(_)) => return Err(OpenError::Locked(folder.path(file_name))),
            Err(CursorError::Disk(error)) => return Err(error.into()),
            Err(CursorError::Name(_) | CursorError::Damaged(_) | CursorError::Unsupported(_)) => continue,
        };
        let Some(next) = cursor.next().filter(|next| *next > last + 1) else { continue };
        cursor.store(last + 1, last)?;
        cursor.sync()?;
        moved.push(CursorPosition { name: name.into(), next });
    }
    Ok(moved)
}

/// Removes a position; false if there is none.
pub(crate) fn remove(folder: &Folder, name: &str) -> Result<bool, CursorError> {
    let file_name = file_name(name)?;
    if !folder.names()?.contains(&file_name) {
        return Ok(false);
    }
    let _lock = folder.lock(&file_name)?.ok_or_else(|| CursorError::InUse(name.into()))?;
    folder.remove(&file_name)?;
    folder.sync_names()?;
    Ok(true)
}
