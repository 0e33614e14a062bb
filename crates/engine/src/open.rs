//! Opening: from what is on disk to a state, a log and the recent history.

use crate::checkpoint::{self, CheckpointError};
use crate::collection::{CollectionInfo, Scratch};
use crate::effects::{BatchDecoder, CollectionNumber, DecodeError, Effect};
use crate::engine::Options;
use crate::event::{Change, Event};
use crate::log::{CommitLog, JournalLog, MemoryLog};
use crate::namespace::Namespace;
use crate::sequencer::{CheckpointData, SyncWaiters};
use crate::sessions::Sessions;
use crate::state::{State, drop_target};
use rockdove_documents::{Doc, Error, Timestamp};
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
    pub waiters: Arc<SyncWaiters>,
    pub epoch: u32,
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
    let mut opened = match &options.dir {
        None => in_memory(),
        Some(dir) => stored(dir, options)?,
    };
    opened.report.took = started.elapsed();
    Ok(opened)
}

fn in_memory() -> Opened {
    Opened {
        state: State::default(),
        sessions: Sessions::default(),
        log: Box::new(MemoryLog::default()),
        journal: None,
        index: 0,
        marks: VecDeque::new(),
        waiters: Arc::default(),
        epoch: rand::random(),
        history: vec![],
        complete_after: Timestamp::default(),
        since: SinceCheckpoint::default(),
        report: Report::default(),
    }
}

fn stored(dir: &Path, options: &Options) -> Result<Opened, OpenError> {
    std::fs::create_dir_all(dir)?;
    let journal_options = rockdove_journal::Options {
        segment_bytes: options.segment_bytes,
        sync: options.sync,
        ..rockdove_journal::Options::default()
    };
    // The journal locks its folder: from here on nobody else is in the data folder.
    let log_dir = dir.join(LOG_FOLDER);
    std::fs::create_dir_all(&log_dir)?;
    let (journal, writer, recovery) = Journal::open(&log_dir, journal_options)?;
    let loaded = match checkpoint::load(dir)? {
        Some(loaded) => loaded,
        None if journal.first_index() > 1 => {
            return Err(OpenError::Gap { first: journal.first_index(), checkpoint: 0 });
        }
        None => first_checkpoint(dir)?,
    };
    if journal.first_index() > loaded.index + 1 || journal.written() < loaded.index {
        return Err(OpenError::Gap { first: journal.first_index(), checkpoint: loaded.index });
    }
    let mut replay = Replay::new(loaded.state, loaded.sessions, loaded.index, options.history_bytes);
    for entry in journal.read_from(journal.first_index())? {
        let entry = entry?;
        replay.batch(entry.index, entry.payload)?;
    }
    let waiters = Arc::new(SyncWaiters::default());
    let released = waiters.clone();
    journal.on_synced(move |result| match result {
        Ok(synced) => released.release(*synced),
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
        epoch: loaded.epoch,
        history: replay.history.into(),
        complete_after: replay.complete_after,
        since: SinceCheckpoint { checkpoint_bytes: loaded.bytes, log_bytes: replay.applied_bytes },
        report,
    })
}

/// Gives a new data folder its first checkpoint, which fixes the epoch.
fn first_checkpoint(dir: &Path) -> Result<checkpoint::Loaded, OpenError> {
    let epoch = rand::random();
    let data = CheckpointData { state: State::default(), sessions: vec![], index: 0, wanted_from: 0 };
    let bytes = checkpoint::save(dir, &data, epoch)?;
    Ok(checkpoint::Loaded { state: State::default(), sessions: Sessions::default(), index: 0, epoch, bytes })
}

/// Reads the log: batches after the checkpoint change the state, all of them are history for change streams.
struct Replay {
    state: State,
    sessions: Sessions,
    scratch: Scratch,
    /// Last entry that the checkpoint contains.
    checkpoint: u64,
    applied: u64,
    /// Bytes of the batches that were applied.
    applied_bytes: u64,
    /// Collections as they were named at this point of the log's past.
    past: HashMap<CollectionNumber, Arc<CollectionInfo>>,
    history: VecDeque<Event>,
    history_bytes: usize,
    history_bytes_max: usize,
    complete_after: Timestamp,
    marks: VecDeque<(Timestamp, u64)>,
}

impl Replay {
    fn new(state: State, sessions: Sessions, checkpoint: u64, history_bytes_max: usize) -> Replay {
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
            applied: 0,
            applied_bytes: 0,
            past,
            history: VecDeque::new(),
            history_bytes: 0,
            history_bytes_max,
            complete_after: Timestamp::default(),
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
                if self.history.is_empty() && self.complete_after == Timestamp::default() {
                    self.complete_after = Timestamp::from_bits(at.bits().saturating_sub(1));
                }
            }
            let event = match index > self.checkpoint {
                true => self.apply(index, at, wall_ms, effect)?,
                false => self.recall(at, wall_ms, effect),
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

    /// The event of an effect that the checkpoint contains already.
    fn recall(&mut self, at: Timestamp, wall_ms: i64, effect: Effect) -> Option<Event> {
        let info = |number: CollectionNumber| self.past.get(&number).cloned();
        let (info, change, before) = match detached(effect) {
            Effect::Insert { collection, doc, .. } => (info(collection)?, Change::Insert { doc }, None),
            Effect::Replace { collection, doc, before, .. } => {
                (info(collection)?, Change::Replace { doc }, before)
            }
            Effect::Patch { collection, key, description, before, .. } => {
                (info(collection)?, Change::Update { key, description, after: None }, before)
            }
            Effect::Remove { collection, key, before, .. } => {
                (info(collection)?, Change::Delete { key }, before)
            }
            Effect::Drop { collection } => (info(collection)?, Change::Drop, None),
            Effect::Create { collection, .. } => {
                let info = info(collection)?;
                let options = info.options.clone();
                (info, Change::Create { options }, None)
            }
            Effect::Rename { collection, names } => {
                let to = Namespace::parse(names.get("to")?.as_str()?).ok()?;
                let from = Namespace::parse(names.get("from")?.as_str()?).ok()?;
                (
                    Arc::new(CollectionInfo { ns: from, ..(*info(collection)?).clone() }),
                    Change::Rename { to, dropped: drop_target(&names) },
                    None,
                )
            }
            Effect::Modify { collection, options } => (info(collection)?, Change::Modify { options }, None),
            Effect::CreateIndex { collection, spec } => {
                (info(collection)?, Change::CreateIndex { spec }, None)
            }
            Effect::DropIndex { collection, name } => {
                (info(collection)?, Change::DropIndex { spec: name }, None)
            }
            Effect::DropDatabase { name } => {
                let ns = Namespace::new(name.get("db")?.as_str()?, "$cmd").ok()?;
                (
                    Arc::new(CollectionInfo::new(0, ns, [0; 16], Doc::empty()).ok()?),
                    Change::DropDatabase,
                    None,
                )
            }
            Effect::Retryable { .. } => return None,
        };
        let mut event = Event::new(at, wall_ms, info.ns.clone(), info.uuid, change);
        (event.before, event.keeps_images) = (before, info.keeps_images);
        Some(event)
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
