//! Opening: from what is on disk to a state, a log and the recent history.

use crate::checkpoint::{self, CheckpointError, Lineage};
use crate::clock::Clock;
use crate::collection::{Collection, CollectionInfo, Scratch};
use crate::effects::{BatchDecoder, CollectionNumber, DecodeError, Effect, RecordNumber};
use crate::engine::Options;
use crate::event::{Change, Event, Uuid};
use crate::index::record_of;
use crate::log::{CommitLog, JournalLog, MemoryLog};
use crate::namespace::Namespace;
use crate::sequencer::{CheckpointData, Waiters};
use crate::sessions::Sessions;
use crate::state::{State, drop_target, uuid_of};
use crate::term;
use rockdove_documents::diff::{self, UpdateDescription};
use rockdove_documents::key::encode_key;
use rockdove_documents::{Doc, Error, RawDoc, Result, Timestamp, code};
use rockdove_journal::disk::RealDisk;
use rockdove_journal::{Journal, Recovery};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Folder of the log below the data folder.
const LOG_FOLDER: &str = "log";

/// Why an engine could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The disk or the system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The log refused.
    #[error(transparent)]
    Journal(#[from] rockdove_journal::OpenError),
    /// The log could not be read.
    #[error(transparent)]
    Read(#[from] rockdove_journal::ReadError),
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(CheckpointError),
    /// A batch of the log could not be decoded.
    #[error("entry {index} of the log: {error}")]
    Decode {
        /// Its position.
        index: u64,
        /// What is wrong.
        error: DecodeError,
    },
    /// A batch of the log does not fit the state before it.
    #[error("entry {index} of the log cannot be applied: {error}")]
    Apply {
        /// Its position.
        index: u64,
        /// What is wrong.
        error: Error,
    },
    /// The options do not fit together.
    #[error("{0}")]
    Options(&'static str),
    /// The log begins after the checkpoint ends.
    #[error(
        "the log begins at entry {first}, but the checkpoint ends at entry {checkpoint}: files are missing from the data folder"
    )]
    Gap {
        /// First entry of the log.
        first: u64,
        /// Last entry that the checkpoint contains.
        checkpoint: u64,
    },
}

/// What opening found and did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What the journal says; `None` in memory-only mode.
    pub journal: Option<Recovery>,
    /// Batches of the log that were applied.
    pub batches: u64,
    /// How long it took.
    pub took: Duration,
}

/// Everything an engine starts from.
pub struct Opened {
    pub state: State,
    pub sessions: Sessions,
    pub log: Box<dyn CommitLog>,
    pub journal: Option<Journal>,
    pub index: u64,
    pub marks: VecDeque<(Timestamp, u64)>,
    pub waiters: Arc<Waiters>,
    pub epoch: u32,
    /// Change streams cannot go back further.
    pub history_after: Timestamp,
    /// First election term of this run.
    pub term: u64,
    pub history: Vec<Event>,
    pub complete_after: Timestamp,
    pub since: SinceCheckpoint,
    pub report: Report,
}

/// What decides when the next checkpoint is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct SinceCheckpoint {
    /// Size of the last checkpoint in bytes.
    pub checkpoint_bytes: u64,
    /// Bytes of the log that it does not contain.
    pub log_bytes: u64,
}

/// Opens what `options` name.
pub fn open(options: &Options) -> Result<Opened, OpenError> {
    let started = Instant::now();
    if options.risk.is_some() && options.dir.is_none() {
        return Err(OpenError::Options("a risk policy needs a disk: in memory nothing is ever safe"));
    }
    if options.risk.is_none() && !options.risk_fields.is_empty() {
        return Err(OpenError::Options("fields with a value at risk need a risk policy"));
    }
    let mut opened = match &options.dir {
        None => in_memory(&options.clock),
        Some(dir) => stored(dir, options)?,
    };
    opened.report.took = started.elapsed();
    Ok(opened)
}

fn in_memory(clock: &Clock) -> Opened {
    Opened {
        state: State::default(),
        sessions: Sessions::default(),
        log: Box::new(MemoryLog::default()),
        journal: None,
        index: 0,
        marks: VecDeque::new(),
        waiters: Arc::default(),
        epoch: rand::random(),
        history_after: Timestamp::default(),
        term: term::of_clock(clock.now_ms()),
        history: vec![],
        complete_after: Timestamp::default(),
        since: SinceCheckpoint::default(),
        report: Report::default(),
    }
}

fn stored(dir: &Path, options: &Options) -> Result<Opened, OpenError> {
    // Its name is on disk before anything in it is.
    drop(RealDisk::new(dir)?);
    let journal_options = rockdove_journal::Options {
        segment_bytes: options.segment_bytes,
        sync: options.sync,
        risk: options.risk.clone(),
        ..rockdove_journal::Options::default()
    };
    // The journal locks its folder: from here on nobody else is in the data folder.
    let log_dir = dir.join(LOG_FOLDER);
    let (journal, writer, recovery) = Journal::open(&log_dir, journal_options)?;
    checkpoint::remove_temporary(dir)?;
    let loaded = match checkpoint::load(dir)? {
        Some(loaded) => loaded,
        None if journal.first_index() > 1 => {
            return Err(OpenError::Gap { first: journal.first_index(), checkpoint: 0 });
        }
        None => first_checkpoint(dir)?,
    };
    if journal.first_index() > loaded.index + 1 || (recovery.created && loaded.index > 0) {
        return Err(OpenError::Gap { first: journal.first_index(), checkpoint: loaded.index });
    }
    let loaded = match journal.written() < loaded.index {
        true => shortened(dir, loaded, journal.written())?,
        false => loaded,
    };
    let lineage = loaded.lineage;
    let mut replay = Replay::new(loaded, options.history_bytes);
    for entry in journal.read_from(journal.first_index())? {
        let entry = entry?;
        replay.batch(entry.index, entry.payload)?;
    }
    replay.finish();
    let term = term::begin(dir, replay.state.at(), options.clock.now_ms())?;
    let waiters = Arc::new(Waiters::default());
    let released = waiters.clone();
    journal.on_synced(move |result| match result {
        Ok(_) => released.release(),
        Err(error) => released.fail(&error.to_string()),
    });
    let report = Report { journal: Some(recovery), batches: replay.applied, took: Duration::ZERO };
    let index = journal.written();
    Ok(Opened {
        state: replay.state,
        sessions: replay.sessions,
        log: Box::new(JournalLog { journal: journal.clone(), writer }),
        journal: Some(journal),
        index,
        marks: replay.marks,
        waiters,
        epoch: lineage.epoch,
        history_after: lineage.history_after,
        term,
        history: replay.history.into(),
        complete_after: replay.complete_after,
        since: SinceCheckpoint { checkpoint_bytes: replay.checkpoint_bytes, log_bytes: replay.applied_bytes },
        report,
    })
}

/// Gives a new data folder its first checkpoint, which fixes the epoch.
fn first_checkpoint(dir: &Path) -> Result<checkpoint::Loaded, OpenError> {
    let lineage = Lineage { epoch: rand::random(), history_after: Timestamp::default() };
    let data = CheckpointData { state: State::default(), sessions: vec![], index: 0, wanted_from: 0 };
    let bytes = checkpoint::save(dir, &data, lineage)?;
    Ok(checkpoint::Loaded {
        state: State::default(),
        sessions: Sessions::default(),
        index: 0,
        lineage,
        bytes,
    })
}

/// Goes on from a checkpoint that contains more than the log, which ends at `written`: a power cut took the log's end,
/// and the checkpoint is the truth. What happened in between is in no log, so change streams begin after it.
fn shortened(dir: &Path, loaded: checkpoint::Loaded, written: u64) -> Result<checkpoint::Loaded, OpenError> {
    let history_after = loaded.state.at();
    tracing::warn!(
        checkpoint = loaded.index,
        log = written,
        "the log ends before the checkpoint: nothing of the data is missing, but change streams cannot resume from \
         before this start"
    );
    let lineage = Lineage { history_after, ..loaded.lineage };
    let sessions = loaded.sessions.records().collect();
    let data = CheckpointData { state: loaded.state, sessions, index: written, wanted_from: written };
    let bytes = checkpoint::save(dir, &data, lineage)?;
    Ok(checkpoint::Loaded { state: data.state, sessions: loaded.sessions, index: written, lineage, bytes })
}

/// Reads the log: batches after the checkpoint change the state, all of them are history for change streams.
struct Replay {
    state: State,
    sessions: Sessions,
    scratch: Scratch,
    /// Last entry that the checkpoint contains.
    checkpoint: u64,
    /// Its size.
    checkpoint_bytes: u64,
    applied: u64,
    /// Bytes of the batches that were applied.
    applied_bytes: u64,
    /// Collections as they were named at this point of the log's past. Those that are older than the log have
    /// their last name until they are renamed (`finish`).
    past: HashMap<CollectionNumber, Arc<CollectionInfo>>,
    /// Documents at this point of the log's past, as far as the log holds them. No more than the log's own bytes and
    /// one version of each that it patches.
    documents: HashMap<(CollectionNumber, RecordNumber), Doc>,
    has_renames: bool,
    history: VecDeque<Event>,
    history_bytes: usize,
    history_bytes_max: usize,
    /// Up to here the log may lack something.
    history_after: Timestamp,
    complete_after: Timestamp,
    marks: VecDeque<(Timestamp, u64)>,
}

impl Replay {
    fn new(loaded: checkpoint::Loaded, history_bytes_max: usize) -> Replay {
        let checkpoint::Loaded { state, sessions, index: checkpoint, lineage, bytes: checkpoint_bytes } =
            loaded;
        let mut past: HashMap<_, _> = state.collections().map(|c| (c.info.number, c.info.clone())).collect();
        for dropped in state.dropped() {
            let info = CollectionInfo::new(dropped.number, dropped.ns.clone(), dropped.uuid, Doc::empty());
            past.extend(info.ok().map(|info| (dropped.number, Arc::new(info))));
        }
        Replay {
            state,
            sessions,
            scratch: Scratch::default(),
            checkpoint,
            checkpoint_bytes,
            applied: 0,
            applied_bytes: 0,
            past,
            documents: HashMap::new(),
            has_renames: false,
            history: VecDeque::new(),
            history_bytes: 0,
            history_bytes_max,
            history_after: lineage.history_after,
            complete_after: lineage.history_after,
            marks: VecDeque::new(),
        }
    }

    fn batch(&mut self, index: u64, payload: bytes::Bytes) -> Result<(), OpenError> {
        // Documents of one batch may live much longer than the others: each gets memory of its own below.
        let bytes = payload.len() as u64;
        let decoder = BatchDecoder::new(payload).map_err(|error| OpenError::Decode { index, error })?;
        let wall_ms = decoder.wall_ms;
        if index > self.checkpoint {
            self.applied += 1;
            self.applied_bytes += bytes;
        }
        let mut first = true;
        for effect in decoder {
            let (at, effect) = effect.map_err(|error| OpenError::Decode { index, error })?;
            if std::mem::take(&mut first) {
                self.marks.push_back((at, index));
                if self.marks.len() == 1 && index > 1 {
                    // The log has lost its beginning.
                    let before = Timestamp::from_bits(at.bits().saturating_sub(1));
                    self.complete_after = self.complete_after.max(before);
                }
            }
            let event = match index > self.checkpoint {
                true => self.apply(index, at, wall_ms, effect)?,
                false if at <= self.history_after => None,
                false => {
                    let failed = |error| OpenError::Apply { index, error };
                    self.recall(at, wall_ms, effect).map_err(failed)?
                }
            };
            self.remember(event);
        }
        Ok(())
    }

    fn apply(
        &mut self,
        index: u64,
        at: Timestamp,
        wall_ms: i64,
        effect: Effect,
    ) -> Result<Option<Event>, OpenError> {
        let effect = detached(effect);
        let failed = |error: Error| OpenError::Apply { index, error };
        if let Effect::Retryable { statement } = &effect {
            self.sessions.apply(statement.raw()).map_err(failed)?;
        }
        let event = self.state.apply(at, wall_ms, &effect, None, &mut self.scratch);
        event.map_err(|refused| failed(refused.error))
    }

    /// The event of an effect that the checkpoint contains already. `None` if change streams hear nothing of it, or
    /// if nobody knows any more which collection it was in: then the history begins after it.
    fn recall(&mut self, at: Timestamp, wall_ms: i64, effect: Effect) -> Result<Option<Event>> {
        let effect = detached(effect);
        let info = match self.place(&effect)? {
            Place::Known(info) => info,
            Place::Nowhere => return Ok(None),
            Place::Forgotten => {
                self.forget(at);
                return Ok(None);
            }
        };
        let (change, before) = match effect {
            Effect::Insert { collection, record, doc } => {
                self.documents.insert((collection, record), doc.clone());
                (Change::Insert { doc }, None)
            }
            Effect::Replace { collection, record, doc, before } => {
                self.documents.insert((collection, record), doc.clone());
                (Change::Replace { doc }, before)
            }
            Effect::Patch { collection, record, key, description, before } => {
                let after = self.after_patch((collection, record), &key, &description, before.as_ref())?;
                (Change::Update { key, description, after }, before)
            }
            Effect::Remove { collection, record, key, before } => {
                self.documents.remove(&(collection, record));
                (Change::Delete { key }, before)
            }
            Effect::Drop { .. } => (Change::Drop, None),
            Effect::Create { .. } => (Change::Create { options: info.options.clone() }, None),
            Effect::Rename { names, .. } => {
                self.has_renames = true;
                let to = Namespace::parse(names.get("to").and_then(|to| to.as_str()).unwrap_or_default())?;
                (Change::Rename { to, dropped: drop_target(&names) }, None)
            }
            Effect::Modify { options, .. } => (Change::Modify { options }, None),
            Effect::CreateIndex { spec, .. } => (Change::CreateIndex { spec }, None),
            Effect::DropIndex { name, .. } => (Change::DropIndex { spec: name }, None),
            Effect::DropDatabase { .. } => (Change::DropDatabase, None),
            Effect::Retryable { .. } => return Ok(None),
        };
        let mut event = Event::new(at, wall_ms, info.ns.clone(), info.uuid, change);
        // Whether a collection keeps images may have changed since; whether it did shows in the effect.
        (event.keeps_images, event.before) = (before.is_some(), before);
        Ok(Some(event))
    }

    /// The collection that an effect concerns, as it was named then as far as the log has told. What the effect does
    /// to names is noted.
    fn place(&mut self, effect: &Effect) -> Result<Place> {
        let number = match effect {
            Effect::Retryable { .. } => return Ok(Place::Nowhere),
            Effect::DropDatabase { name } => {
                let database = name.get("db").and_then(|name| name.as_str()).unwrap_or_default();
                let ns = Namespace::new(database, "$cmd")?;
                return Ok(Place::Known(Arc::new(CollectionInfo::new(0, ns, [0; 16], Doc::empty())?)));
            }
            Effect::Create { collection, info } => {
                self.past.insert(*collection, Arc::new(created(*collection, info.raw())?));
                collection
            }
            Effect::Drop { collection }
            | Effect::Rename { collection, .. }
            | Effect::Modify { collection, .. }
            | Effect::CreateIndex { collection, .. }
            | Effect::DropIndex { collection, .. }
            | Effect::Insert { collection, .. }
            | Effect::Replace { collection, .. }
            | Effect::Patch { collection, .. }
            | Effect::Remove { collection, .. } => collection,
        };
        let Some(info) = self.past.get_mut(number) else { return Ok(Place::Forgotten) };
        let Effect::Rename { names, .. } = effect else { return Ok(Place::Known(info.clone())) };
        let name = |field| Namespace::parse(names.get(field).and_then(|ns| ns.as_str()).unwrap_or_default());
        let before = Arc::new(CollectionInfo { ns: name("from")?, ..(**info).clone() });
        *info = Arc::new(CollectionInfo { ns: name("to")?, ..(**info).clone() });
        Ok(Place::Known(before))
    }

    /// The document after a patch: exactly, if the log holds what it was before; otherwise a later version, the one
    /// of the checkpoint. `None` if there is none.
    fn after_patch(
        &mut self,
        at: (CollectionNumber, RecordNumber),
        key: &Doc,
        description: &Doc,
        before: Option<&Doc>,
    ) -> Result<Option<Doc>> {
        if let Some(before) = before.or(self.documents.get(&at)) {
            let after = diff::apply(before.raw(), &UpdateDescription::from_doc(description.raw())?)?;
            self.documents.insert(at, after.clone());
            return Ok(Some(after));
        }
        let Some(collection) = self.state.by_number(at.0) else { return Ok(None) };
        Ok(collection.get(at.1).cloned().or_else(|| with_id(collection, key)))
    }

    /// The history begins after `at`: what was before cannot be told.
    fn forget(&mut self, at: Timestamp) {
        self.history.clear();
        (self.history_bytes, self.complete_after) = (0, at);
    }

    /// Ends the reading: events of collections that were there when the log begins get the names that these had. The
    /// checkpoint knows only the names they have come to, and each renaming says what came before it.
    fn finish(&mut self) {
        self.documents = HashMap::new();
        if !self.has_renames {
            return;
        }
        let mut names: HashMap<Uuid, Namespace> = HashMap::new();
        for event in self.history.iter_mut().rev() {
            if let Change::Rename { .. } = event.change {
                names.insert(event.uuid, event.ns.clone());
            } else if let Some(ns) = names.get(&event.uuid) {
                event.ns = ns.clone();
            }
        }
    }

    /// Keeps the newest events up to the limit.
    fn remember(&mut self, event: Option<Event>) {
        let Some(event) = event else { return };
        self.history_bytes += event.bytes();
        self.history.push_back(event);
        while self.history_bytes > self.history_bytes_max && self.history.len() > 1 {
            if let Some(dropped) = self.history.pop_front() {
                self.history_bytes -= dropped.bytes();
                self.complete_after = dropped.at;
            }
        }
    }
}

/// Where an effect of the past happened.
enum Place {
    Known(Arc<CollectionInfo>),
    /// In no collection.
    Nowhere,
    /// In one that is gone and forgotten.
    Forgotten,
}

/// A collection as the log says that it was made.
fn created(number: CollectionNumber, info: RawDoc<'_>) -> Result<CollectionInfo> {
    let malformed = || Error::new(code::INTERNAL_ERROR, format!("collection {number} has no description"));
    let ns = Namespace::parse(info.get("ns").and_then(|ns| ns.as_str()).ok_or_else(malformed)?)?;
    let options = info.get("options").and_then(|options| options.as_document());
    let options = options.unwrap_or(RawDoc::empty()).to_doc();
    CollectionInfo::new(number, ns, uuid_of(info).ok_or_else(malformed)?, options)
}

/// The document of a collection with the `_id` of `key`.
fn with_id(collection: &Collection, key: &Doc) -> Option<Doc> {
    let mut wanted = Vec::new();
    encode_key(key.get("_id")?, &mut wanted);
    let cursor = collection.indexes().first()?.tree.seek(&wanted);
    let entry = cursor.key().filter(|entry| entry.starts_with(&wanted))?;
    collection.get(record_of(entry)).cloned()
}

/// The effect with a stored document in memory of its own, so that it does not keep its whole batch alive.
fn detached(effect: Effect) -> Effect {
    match effect {
        Effect::Insert { collection, record, doc } => {
            Effect::Insert { collection, record, doc: doc.detached() }
        }
        Effect::Replace { collection, record, doc, before } => Effect::Replace {
            collection,
            record,
            doc: doc.detached(),
            before: before.map(|doc| doc.detached()),
        },
        Effect::Patch { collection, record, key, description, before } => Effect::Patch {
            collection,
            record,
            key: key.detached(),
            description: description.detached(),
            before: before.map(|doc| doc.detached()),
        },
        Effect::Remove { collection, record, key, before } => Effect::Remove {
            collection,
            record,
            key: key.detached(),
            before: before.map(|doc| doc.detached()),
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::BatchEncoder;
    use crate::state::describe;
    use rockdove_documents::doc;

    #[test]
    fn what_cannot_be_named_ends_the_history() {
        let lineage = Lineage { epoch: 1, history_after: Timestamp::default() };
        let (state, sessions) = (State::default(), Sessions::default());
        let mut replay =
            Replay::new(checkpoint::Loaded { state, sessions, index: 9, lineage, bytes: 0 }, 1 << 20);
        let insert = |collection| Effect::Insert { collection, record: 1, doc: doc! { "_id": 1 } };
        let ns = Namespace::parse("a.known").unwrap();
        let known = Effect::Create { collection: 1, info: describe(&ns, [1; 16], RawDoc::empty()) };
        let mut batch = BatchEncoder::new(Timestamp { time: 5, increment: 1 }, 0);
        let times = [known, insert(1), insert(7), insert(1), insert(1)].map(|effect| batch.push(&effect));
        replay.batch(9, batch.parts().concat().into()).unwrap();
        replay.finish();
        assert_eq!(replay.complete_after, times[2]);
        assert_eq!(replay.history.iter().map(|event| event.at).collect::<Vec<_>>(), times[3..]);
        assert_eq!(replay.history_bytes, replay.history.iter().map(Event::bytes).sum::<usize>());
    }
}
