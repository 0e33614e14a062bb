//! The log's state file: two copies of one record, the older overwritten. Format: `docs/format/journal-state.md`.
//!
//! Either copy is whole at any time, so a crash in the middle of a write leaves the other. A file whose copies
//! are both unreadable is damage, never a new log.

use crate::checksum::Crc32c;
use crate::cycle::{Cycle, CycleLength, ZONE_BYTES_MAX};
use crate::error::{Damage, DiskError, OpenError};
use crate::file::{Folder, LogFile};
use crate::frame::{put, u32_at, u64_at};
use crate::options::INDEX_MAX;
use crate::segment::TEMP_ENDING;

/// The file's name.
pub(crate) const NAME: &str = "state";
/// Each copy lies on a page of its own.
const PAGE: u64 = 4096;

const MAGIC: &[u8; 8] = b"RDOVESTA";
/// The newest version; what asks for nothing of it is written as the one before.
const VERSION: u32 = 3;
const FLAG_CLEAN: u32 = 1;

const AT_VERSION: usize = MAGIC.len();
const AT_FLAGS: usize = AT_VERSION + 4;
const AT_SEQUENCE: usize = AT_FLAGS + 4;
const AT_LOG_ID: usize = AT_SEQUENCE + 8;
const AT_BOOT_ID: usize = AT_LOG_ID + 16;
const AT_FIRST: usize = AT_BOOT_ID + 16;
const AT_DURABLE: usize = AT_FIRST + 8;
const AT_CYCLE: usize = AT_DURABLE + 8;
const AT_ZONE_LEN: usize = AT_CYCLE + 1;
const AT_ZONE: usize = AT_CYCLE + 8;
const AT_KEY_CHECK: usize = AT_ZONE + ZONE_BYTES_MAX;
const AT_CRC: usize = AT_KEY_CHECK + 16;
const RECORD_BYTES: usize = AT_CRC + 4;
const _: () = assert!(RECORD_BYTES == 164);
/// In version 1 the checksum followed the durable mark: it knew no cycles.
const AT_CRC_1: usize = AT_DURABLE + 8;
/// In version 2 it followed the zone: it knew no keys.
const AT_CRC_2: usize = AT_KEY_CHECK;

const fn crc_at(version: u32) -> usize {
    match version {
        1 => AT_CRC_1,
        2 => AT_CRC_2,
        _ => AT_CRC,
    }
}

/// The record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    /// Grows with each write.
    sequence: u64,
    /// Random, the same for the whole life of the log.
    pub log_id: [u8; 16],
    /// The boot of the machine on which the log was last opened.
    pub boot_id: [u8; 16],
    /// First index that is kept; segments below are on their way out.
    pub first: u64,
    /// Everything up to here was on disk when the record was written.
    pub durable_upto: u64,
    /// True from a clean close to the next open.
    pub clean: bool,
    /// When segments roll, besides when they are full.
    pub cycle: Option<Cycle>,
    /// What the key of the log's payloads is known by, if they are encrypted.
    pub key_check: Option<KeyCheck>,
}

/// What a key is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyCheck {
    /// What [`Key::check`](crate::Key) makes of it.
    Tag([u8; 16]),
    /// Not known, because the state was lost: stored as zeros, which no key makes but one in 2^128.
    Lost,
}

impl KeyCheck {
    fn encode(self) -> [u8; 16] {
        match self {
            KeyCheck::Tag(tag) => tag,
            KeyCheck::Lost => [0; 16],
        }
    }

    fn decode(bytes: [u8; 16]) -> KeyCheck {
        if bytes == [0; 16] { KeyCheck::Lost } else { KeyCheck::Tag(bytes) }
    }
}

enum Copy {
    Valid(State),
    Unreadable,
    Version(u32),
    /// Whole, but it asks for what this machine or version does not have.
    Unusable(String),
}

impl State {
    /// The record of a log whose own is lost, as if nothing in it were encrypted.
    pub(crate) fn rebuilt(log_id: [u8; 16], boot_id: [u8; 16], first: u64) -> State {
        let (durable_upto, clean) = (first - 1, false);
        State { sequence: 0, log_id, boot_id, first, durable_upto, clean, cycle: None, key_check: None }
    }

    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        put(&mut bytes, 0, MAGIC);
        let version = if self.key_check.is_some() { VERSION } else { 2 };
        put(&mut bytes, AT_VERSION, &version.to_le_bytes());
        put(&mut bytes, AT_FLAGS, &(if self.clean { FLAG_CLEAN } else { 0 }).to_le_bytes());
        put(&mut bytes, AT_SEQUENCE, &self.sequence.to_le_bytes());
        put(&mut bytes, AT_LOG_ID, &self.log_id);
        put(&mut bytes, AT_BOOT_ID, &self.boot_id);
        put(&mut bytes, AT_FIRST, &self.first.to_le_bytes());
        put(&mut bytes, AT_DURABLE, &self.durable_upto.to_le_bytes());
        if let Some(cycle) = &self.cycle {
            let zone = cycle.zone().as_bytes();
            bytes[AT_CYCLE] = cycle.length() as u8;
            bytes[AT_ZONE_LEN] = u8::try_from(zone.len()).expect("a zone's name is short");
            put(&mut bytes, AT_ZONE, zone);
        }
        if let Some(check) = &self.key_check {
            put(&mut bytes, AT_KEY_CHECK, &check.encode());
        }
        let at = crc_at(version);
        let crc = Crc32c::new().add(&bytes[..at]).value();
        put(&mut bytes, at, &crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Copy {
        let (version, flags) = (u32_at(bytes, AT_VERSION), u32_at(bytes, AT_FLAGS));
        let crc_at = crc_at(version);
        let whole = Crc32c::new().add(&bytes[..crc_at]).value() == u32_at(bytes, crc_at);
        if !bytes.starts_with(MAGIC) || !whole {
            return Copy::Unreadable;
        }
        if !(1..=VERSION).contains(&version) || flags & !FLAG_CLEAN != 0 {
            return Copy::Version(version);
        }
        let cycle = match version {
            1 => None,
            _ => match cycle_of(bytes) {
                Ok(cycle) => cycle,
                Err(what) => return Copy::Unusable(what),
            },
        };
        if !(1..=INDEX_MAX).contains(&u64_at(bytes, AT_FIRST)) {
            return Copy::Unreadable;
        }
        Copy::Valid(State {
            sequence: u64_at(bytes, AT_SEQUENCE),
            log_id: bytes[AT_LOG_ID..AT_BOOT_ID].try_into().expect("sixteen bytes"),
            boot_id: bytes[AT_BOOT_ID..AT_FIRST].try_into().expect("sixteen bytes"),
            first: u64_at(bytes, AT_FIRST),
            durable_upto: u64_at(bytes, AT_DURABLE),
            clean: flags & FLAG_CLEAN != 0,
            cycle,
            key_check: (version >= 3)
                .then(|| KeyCheck::decode(bytes[AT_KEY_CHECK..AT_CRC].try_into().expect("sixteen bytes"))),
        })
    }
}

fn cycle_of(bytes: &[u8; RECORD_BYTES]) -> Result<Option<Cycle>, String> {
    if bytes[AT_CYCLE] == 0 {
        return Ok(None);
    }
    let length = CycleLength::of_code(bytes[AT_CYCLE]).ok_or("a roll cycle that is not known")?;
    let zone =
        bytes.get(AT_ZONE..AT_ZONE + usize::from(bytes[AT_ZONE_LEN])).filter(|z| z.len() <= ZONE_BYTES_MAX);
    let zone = zone.and_then(|z| std::str::from_utf8(z).ok()).ok_or("a roll cycle without a time zone")?;
    Cycle::new(length, zone).map(Some).map_err(|e| e.to_string())
}

/// The open state file and the newest record in it.
pub(crate) struct StateFile {
    file: LogFile,
    state: State,
}

impl StateFile {
    /// Makes the file of a new log, durably.
    pub(crate) fn create(
        folder: &Folder,
        log_id: [u8; 16],
        boot_id: [u8; 16],
        cycle: Option<Cycle>,
    ) -> Result<Self, DiskError> {
        StateFile::replace(folder, State { cycle, ..State::rebuilt(log_id, boot_id, 1) })
    }

    /// Makes the file, durably, in the place of one that may be there.
    pub(crate) fn replace(folder: &Folder, state: State) -> Result<Self, DiskError> {
        let temp = format!("{NAME}{TEMP_ENDING}");
        let file = folder.create(&temp)?;
        file.allocate(2 * PAGE)?;
        file.write_bytes(&state.encode(), 0)?;
        file.sync()?;
        folder.rename(&temp, NAME)?;
        folder.sync_names()?;
        Ok(StateFile { file: file.renamed(folder.path(NAME)), state })
    }

    /// Opens the file and chooses the newer whole copy.
    pub(crate) fn open(folder: &Folder) -> Result<Self, OpenError> {
        StateFile::read(folder.open(NAME)?)
    }

    /// As [`StateFile::open`], for reading only.
    pub(crate) fn open_read(folder: &Folder) -> Result<Self, OpenError> {
        StateFile::read(folder.open_read(NAME)?)
    }

    fn read(file: LogFile) -> Result<Self, OpenError> {
        let mut newest: Option<State> = None;
        for copy in 0..2 {
            let mut bytes = [0; RECORD_BYTES];
            file.read(&mut bytes, copy * PAGE)?;
            match State::decode(&bytes) {
                Copy::Valid(state) if newest.as_ref().is_none_or(|n| n.sequence < state.sequence) => {
                    newest = Some(state)
                }
                Copy::Valid(_) | Copy::Unreadable => {}
                Copy::Version(version) => {
                    let what = format!("state version {version}");
                    return Err(OpenError::Unsupported { file: file.path(), what });
                }
                Copy::Unusable(what) => return Err(OpenError::Unsupported { file: file.path(), what }),
            }
        }
        let what = "neither copy of the state is readable";
        let state = newest.ok_or(Damage { file: file.path(), offset: 0, index: 0, what })?;
        Ok(StateFile { file, state })
    }

    /// Where the copies lie that are not whole although they were written.
    pub(crate) fn unreadable_copies(&self) -> Result<impl Iterator<Item = u64>, DiskError> {
        let mut bad = Vec::new();
        for at in [0, PAGE] {
            let mut bytes = [0; RECORD_BYTES];
            self.file.read(&mut bytes, at)?;
            if matches!(State::decode(&bytes), Copy::Unreadable) && bytes.iter().any(|b| *b != 0) {
                bad.push(at);
            }
        }
        Ok(bad.into_iter())
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Changes the record, durably. After an error the old record stands.
    pub(crate) fn update(&mut self, change: impl FnOnce(&mut State)) -> Result<(), DiskError> {
        let mut next = self.state.clone();
        change(&mut next);
        next.sequence = self.state.sequence + 1;
        self.file.write_bytes(&next.encode(), (next.sequence % 2) * PAGE)?;
        self.file.sync()?;
        self.state = next;
        Ok(())
    }
}
