//! Checkpoints: the whole state in one file, so that opening reads live data instead of history.
//!
//! The format is described in `docs/format/checkpoint.md`.
//!
//! Invariants
//! * A checkpoint counts once it is whole under its final name; a half-written one is never looked at.
//! * What a checkpoint contains is what the log leads to at its position.
//! * The log keeps everything after the newest checkpoint, and what change streams may still ask for.

use crate::collection::{Collection, CollectionInfo, Scratch};
use crate::effects::LEVELS_MAX;
use crate::index::IndexSpec;
use crate::namespace::Namespace;
use crate::sequencer::CheckpointData;
use crate::sessions::Sessions;
use crate::state::{Dropped, State, describe, uuid_of};
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use rockdove_documents::{Doc, DocBuilder, RawDoc, Timestamp, Value, doc};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

const MAGIC: &[u8; 8] = b"RDOVECP1";
const SUFFIX: &str = ".checkpoint";
const TEMPORARY: &str = "checkpoint.tmp";
/// Longest record accepted: a document of the largest size and its frame.
const RECORD_BYTES_MAX: usize = 48 << 20;

/// Bytes of a record before its document.
const RECORD_HEAD_BYTES: usize = 1 + 8;
const CHECKSUM_BYTES: u64 = 4;
/// What the header is taken to need.
const HEADER_BYTES: u64 = 512;

const TAG_END: u8 = 0;
const TAG_COLLECTION: u8 = 1;
const TAG_DOCUMENT: u8 = 2;
const TAG_SESSION: u8 = 3;

/// Why a checkpoint could not be written or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The disk refused.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// The file is not a whole checkpoint.
    #[error("the checkpoint {0} is damaged: {1}")]
    Damaged(PathBuf, String),
}

/// What a data folder has come from; the same from one checkpoint to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lineage {
    /// The log's epoch, part of resume tokens.
    pub epoch: u32,
    /// What happened up to here may be missing from the log: change streams cannot go back further.
    pub history_after: Timestamp,
}

/// What a checkpoint holds.
pub struct Loaded {
    /// The collections.
    pub state: State,
    /// Retry records.
    pub sessions: Sessions,
    /// Position of the last batch of the log that it contains.
    pub index: u64,
    /// What its folder has come from.
    pub lineage: Lineage,
    /// Its size on disk in bytes.
    pub bytes: u64,
}

/// Writes a checkpoint into `dir` and removes older ones. Returns its size in bytes.
pub fn save(dir: &Path, data: &CheckpointData, lineage: Lineage) -> Result<u64, CheckpointError> {
    let temporary = dir.join(TEMPORARY);
    let name = dir.join(format!("{:020}{SUFFIX}", data.index));
    let failed = |error| CheckpointError::Io(temporary.clone(), error);
    let written = write_file(&temporary, data, lineage);
    let renamed = written.and_then(|bytes| std::fs::rename(&temporary, &name).map(|()| bytes));
    let bytes = match renamed {
        Ok(bytes) => bytes,
        Err(error) => {
            // What there is of it must not keep the space that it did not suffice for.
            remove_temporary(dir)?;
            return Err(failed(error));
        }
    };
    sync_dir(dir)?;
    for old in list(dir)? {
        if old != name {
            std::fs::remove_file(&old).map_err(|error| CheckpointError::Io(old, error))?;
        }
    }
    Ok(bytes)
}

/// Writes the file of a checkpoint, durably; its size in bytes.
fn write_file(path: &Path, data: &CheckpointData, lineage: Lineage) -> io::Result<u64> {
    let file = File::create(path)?;
    let sessions: usize = data.sessions.iter().map(|session| session.bytes().len() + RECORD_HEAD_BYTES).sum();
    // A disk that is too full says so before anything is written. Not every file system can tell.
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes_of(&data.state) + sessions as u64) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    let mut out = Sink { out: BufWriter::with_capacity(1 << 20, file), crc: digest(), bytes: 0 };
    write_all(&mut out, data, lineage)?;
    let bytes = out.bytes + CHECKSUM_BYTES;
    let file = out.out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.set_len(bytes)?;
    file.sync_all()?;
    Ok(bytes)
}

/// About how many bytes the checkpoint of a state takes, retry records apart: rather too many than too few.
pub fn bytes_of(state: &State) -> u64 {
    let of = |collection: &Collection| {
        let records = collection.bytes() + (RECORD_HEAD_BYTES * collection.len()) as u64;
        records + collection.description_bytes()
    };
    HEADER_BYTES + state.collections().map(|collection| of(collection)).sum::<u64>()
}

/// Removes what an interrupted or failed checkpoint has left.
pub fn remove_temporary(dir: &Path) -> Result<(), CheckpointError> {
    let temporary = dir.join(TEMPORARY);
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CheckpointError::Io(temporary, error)),
        _ => Ok(()),
    }
}

/// Reads the newest checkpoint of `dir`, if there is one.
pub fn load(dir: &Path) -> Result<Option<Loaded>, CheckpointError> {
    let Some(path) = list(dir)?.pop() else { return Ok(None) };
    let file = File::open(&path).map_err(|error| CheckpointError::Io(path.clone(), error))?;
    read(BufReader::with_capacity(1 << 20, file), &path).map(Some)
}

/// Reads a checkpoint; errors name it `path`. What damaged bytes say is used only as far as it is well formed, and
/// nothing of it is returned.
pub fn read(input: impl Read, path: &Path) -> Result<Loaded, CheckpointError> {
    read_all(Source { input, crc: digest(), bytes: 0, path: path.to_path_buf() })
}

/// The checkpoints of `dir`, oldest first.
fn list(dir: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let failed = |error| CheckpointError::Io(dir.to_path_buf(), error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.to_string_lossy().ends_with(SUFFIX) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn sync_dir(dir: &Path) -> Result<(), CheckpointError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| CheckpointError::Io(dir.to_path_buf(), error))
}

fn digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}

struct Sink {
    out: BufWriter<File>,
    crc: Digest,
    bytes: u64,
}

impl Sink {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.crc.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn record(&mut self, tag: u8, number: u64, doc: RawDoc<'_>) -> io::Result<()> {
        self.put(&[tag])?;
        self.put(&number.to_le_bytes())?;
        self.put(doc.bytes())
    }
}

fn write_all(out: &mut Sink, data: &CheckpointData, lineage: Lineage) -> io::Result<()> {
    out.put(MAGIC)?;
    out.put(header(data, lineage).bytes())?;
    for collection in data.state.collections() {
        out.record(TAG_COLLECTION, u64::from(collection.info.number), describe_collection(collection).raw())?;
        for (record, doc) in collection.records() {
            out.record(TAG_DOCUMENT, record, doc.raw())?;
        }
    }
    for session in &data.sessions {
        out.record(TAG_SESSION, 0, session.raw())?;
    }
    out.put(&[TAG_END])?;
    let crc = out.crc.finalize() as u32;
    out.out.write_all(&crc.to_le_bytes())
}

fn header(data: &CheckpointData, lineage: Lineage) -> Doc {
    let mut header = DocBuilder::new();
    header.append("index", data.index as i64).append("epoch", i64::from(lineage.epoch));
    header.append("at", data.state.at()).append("historyAfter", lineage.history_after);
    header.append("nextCollection", i64::from(data.state.next_collection())).start_array("dropped");
    for dropped in data.state.dropped() {
        let info = describe(&dropped.ns, dropped.uuid, RawDoc::empty());
        header.push(doc! { "number": i64::from(dropped.number), "info": info, "at": dropped.at });
    }
    header.finish()
}

fn describe_collection(collection: &Collection) -> Doc {
    let info = &collection.info;
    let mut out = DocBuilder::new();
    out.append("info", describe(&info.ns, info.uuid, info.options.raw()));
    out.append("nextRecord", collection.next_record() as i64);
    let indexes: Vec<_> = collection.indexes().iter().skip(1).map(|index| index.spec.doc.clone()).collect();
    out.append_docs("indexes", &indexes);
    out.finish()
}

struct Source<R> {
    input: R,
    crc: Digest,
    /// Bytes read so far.
    bytes: u64,
    path: PathBuf,
}

impl<R: Read> Source<R> {
    fn damaged(&self, reason: impl Into<String>) -> CheckpointError {
        CheckpointError::Damaged(self.path.clone(), reason.into())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), CheckpointError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged("it ends early"),
            _ => CheckpointError::Io(self.path.clone(), error),
        })?;
        self.crc.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, CheckpointError> {
        let mut byte = [0];
        self.fill(&mut byte)?;
        Ok(byte[0])
    }

    fn number(&mut self) -> Result<u64, CheckpointError> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn doc(&mut self) -> Result<Doc, CheckpointError> {
        let mut length = [0; 4];
        self.fill(&mut length)?;
        let size = u32::from_le_bytes(length) as usize;
        if !(5..=RECORD_BYTES_MAX).contains(&size) {
            return Err(self.damaged(format!("a record of {size} bytes")));
        }
        let mut bytes = vec![0; size];
        bytes[..4].copy_from_slice(&length);
        self.fill(&mut bytes[4..])?;
        // The checksum comes last: until then the bytes may be anything.
        Doc::new_within(Bytes::from(bytes), LEVELS_MAX).map_err(|error| self.damaged(error.to_string()))
    }
}

fn read_all<R: Read>(mut source: Source<R>) -> Result<Loaded, CheckpointError> {
    let mut magic = [0; 8];
    source.fill(&mut magic)?;
    if &magic != MAGIC {
        return Err(source.damaged("it does not begin like a checkpoint of this version"));
    }
    let header = source.doc()?;
    let number = |field: &str| {
        header.get(field).and_then(|value| value.as_integer()).and_then(|n| u64::try_from(n).ok())
    };
    let (Some(index), Some(epoch), Some(next), Some(Value::Timestamp(at))) =
        (number("index"), number("epoch"), number("nextCollection"), header.get("at"))
    else {
        return Err(source.damaged("its header lacks fields"));
    };
    let (Ok(epoch), Ok(next)) = (u32::try_from(epoch), u32::try_from(next)) else {
        return Err(source.damaged("its header has numbers that are too large"));
    };
    let history_after = match header.get("historyAfter") {
        Some(Value::Timestamp(after)) => after,
        None => Timestamp::default(),
        Some(_) => return Err(source.damaged("its header has a history that begins at no time")),
    };
    let lineage = Lineage { epoch, history_after };
    let mut loaded =
        Loaded { state: State::default(), sessions: Sessions::default(), index, lineage, bytes: 0 };
    let mut loading = Loading { collection: None, scratch: Scratch::default(), next, at };
    loop {
        match source.byte()? {
            TAG_END => break,
            tag => {
                let (number, doc) = (source.number()?, source.doc()?);
                loading.take(&mut loaded, tag, number, doc).map_err(|reason| source.damaged(reason))?;
            }
        }
    }
    loading.finish(&mut loaded);
    let expected = source.crc.finalize() as u32;
    let mut crc = [0; 4];
    source.fill(&mut crc)?;
    if u32::from_le_bytes(crc) != expected {
        return Err(source.damaged("its checksum is wrong"));
    }
    loaded.bytes = source.bytes;
    loaded.state.restore_rest(next, dropped(header.raw()), at);
    Ok(loaded)
}

fn dropped(header: RawDoc<'_>) -> Vec<Dropped> {
    let all = header.get("dropped").and_then(|all| all.as_array()).unwrap_or(RawDoc::empty());
    let one = |value: Value<'_>| {
        let entry = value.as_document()?;
        let info = entry.get("info")?.as_document()?;
        let Some(Value::Timestamp(at)) = entry.get("at") else { return None };
        let number = u32::try_from(entry.get("number")?.as_integer()?).ok()?;
        let ns = Namespace::parse(info.get("ns")?.as_str()?).ok()?;
        Some(Dropped { number, ns, uuid: uuid_of(info)?, at })
    };
    all.values().filter_map(one).collect()
}

/// The collection being filled.
struct Loading {
    collection: Option<Collection>,
    scratch: Scratch,
    /// The number of the next collection to be made.
    next: u32,
    at: Timestamp,
}

impl Loading {
    fn take(&mut self, loaded: &mut Loaded, tag: u8, number: u64, doc: Doc) -> Result<(), String> {
        match tag {
            TAG_COLLECTION => {
                self.finish(loaded);
                let number = u32::try_from(number).ok().filter(|number| *number < self.next);
                let number = number.ok_or("a collection's number that there cannot be")?;
                self.collection = Some(collection(number, doc.raw())?);
            }
            TAG_DOCUMENT => {
                let collection = self.collection.as_mut().ok_or("a document outside of a collection")?;
                if number >= collection.next_record() || collection.get(number).is_some() {
                    return Err(format!("a record {number} that there cannot be"));
                }
                collection
                    .insert(number, doc, &mut self.scratch)
                    .map_err(|failed| failed.error.to_string())?;
            }
            TAG_SESSION => loaded.sessions.apply(doc.raw()).map_err(|error| error.to_string())?,
            tag => return Err(format!("an unknown record kind {tag}")),
        }
        Ok(())
    }

    fn finish(&mut self, loaded: &mut Loaded) {
        if let Some(collection) = self.collection.take() {
            loaded.state.restore(collection, self.at);
        }
    }
}

fn collection(number: u32, doc: RawDoc<'_>) -> Result<Collection, String> {
    let missing = "a collection's description lacks fields";
    let info = doc.get("info").and_then(|info| info.as_document()).ok_or(missing)?;
    let ns = Namespace::parse(info.get("ns").and_then(|ns| ns.as_str()).ok_or(missing)?)
        .map_err(|e| e.to_string())?;
    let options = info.get("options").and_then(|options| options.as_document()).ok_or(missing)?.to_doc();
    let info =
        CollectionInfo::new(number, ns, uuid_of(info).ok_or(missing)?, options).map_err(|e| e.to_string())?;
    let mut collection = Collection::new(info);
    let next = doc.get("nextRecord").and_then(|next| next.as_integer()).and_then(|n| u64::try_from(n).ok());
    collection.raise_next_record(next.ok_or(missing)?);
    let indexes = doc.get("indexes").and_then(|indexes| indexes.as_array()).ok_or(missing)?;
    for spec in indexes.values().filter_map(|spec| spec.as_document()) {
        let spec = IndexSpec::parse(spec).map_err(|error| error.to_string())?;
        collection
            .create_index(Arc::new(spec), &mut Scratch::default())
            .map_err(|failed| failed.error.to_string())?;
    }
    Ok(collection)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Retry;
    use crate::sessions::{self, Done, Stored};
    use rockdove_documents::MAX_DEPTH;

    /// The bytes of a checkpoint with one collection, which has two indexes and three documents.
    fn whole() -> Vec<u8> {
        let options = doc! { "validator": { "a": { "$exists": true } } };
        let info = CollectionInfo::new(2, Namespace::parse("a.b").unwrap(), [7; 16], options).unwrap();
        let (mut collection, mut scratch) = (Collection::new(info), Scratch::default());
        collection.raise_next_record(9);
        let index = doc! { "key": { "a": 1 }, "name": "a_1", "unique": true };
        let index = Arc::new(IndexSpec::parse(index.raw()).unwrap());
        collection.create_index(index, &mut scratch).unwrap();
        for n in 1..4i32 {
            collection
                .insert(n as u64, doc! { "_id": n, "a": [n, "x".repeat(n as usize)] }, &mut scratch)
                .unwrap();
        }
        let mut state = State::default();
        state.restore(collection, Timestamp { time: 5, increment: 6 });
        let done = doc! { "s": 0, "c": 1, "k": "i" };
        let session = doc! { "lsid": rockdove_documents::Owned::Binary { subtype: 0, bytes: vec![1; 8].into() },
        "txn": 1i64, "ms": 5i64, "done": [done] };
        let dir = tempfile::tempdir().unwrap();
        let data = CheckpointData { state, sessions: vec![session], index: 3, wanted_from: 3 };
        let history_after = Timestamp { time: 4, increment: 1 };
        save(dir.path(), &data, Lineage { epoch: 8, history_after }).unwrap();
        std::fs::read(list(dir.path()).unwrap().pop().unwrap()).unwrap()
    }

    fn load_of(bytes: &[u8]) -> Result<Loaded, CheckpointError> {
        read(bytes, Path::new("test"))
    }

    #[test]
    fn damage_is_told_wherever_it_is() {
        let whole = whole();
        let loaded = load_of(&whole).expect("nothing is damaged");
        let lineage = Lineage { epoch: 8, history_after: Timestamp { time: 4, increment: 1 } };
        assert_eq!((loaded.index, loaded.lineage, loaded.state.collections().count()), (3, lineage, 1));
        for at in 0..whole.len() {
            assert!(load_of(&whole[..at]).is_err(), "cut at {at}");
            for flip in [1, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                assert!(load_of(&bytes).is_err(), "{flip:#x} at {at}");
            }
        }
    }

    #[test]
    fn what_is_as_deep_as_it_may_be_is_read_again() {
        let nested = |levels: usize| (1..levels).fold(doc! {}, |inner, _| doc! { "a": inner });
        // In a command of as many levels as the protocol lets through.
        let options = doc! { "validator": (nested(119)) };
        let info =
            CollectionInfo::new(2, Namespace::parse("a.b").unwrap(), [7; 16], options.clone()).unwrap();
        let mut collection = Collection::new(info);
        let deepest = nested(MAX_DEPTH);
        collection.insert(1, deepest.clone(), &mut Scratch::default()).unwrap();
        let mut state = State::default();
        state.restore(collection, Timestamp { time: 5, increment: 6 });
        let result = Stored::Found { value: Some(deepest.clone()), found: true, upserted: None };
        let done = Done { first: 0, count: 1, result: result.clone() };
        let retry = Retry { session: Bytes::from_static(b"s"), number: 1, statements: vec![] };
        let session = sessions::describe(&retry.session, retry.number, 5, &[done]);
        let dir = tempfile::tempdir().unwrap();
        let data = CheckpointData { state, sessions: vec![session], index: 3, wanted_from: 3 };
        save(dir.path(), &data, Lineage { epoch: 8, history_after: Timestamp::default() }).unwrap();
        let loaded = load(dir.path()).unwrap().expect("it was written");
        let collection = loaded.state.collections().next().unwrap();
        assert_eq!((collection.get(1), &collection.info.options), (Some(&deepest), &options));
        assert_eq!(loaded.sessions.recall(&retry, 0), Ok(Some(result)));
    }
}
