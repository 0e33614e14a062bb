//! The engine as a whole: opening, the calls that protocols make, closing.

use crate::checkpoint::{self, CheckpointError, Lineage};
use crate::clock::Clock;
use crate::command::{
    Ack, Acked, Definition, DefinitionReply, FindAndModify, FindAndModifyReply, Hint, Modify, Owed,
    Statement, Write, WriteError, WriteReply,
};
use crate::event::{Token, TokenKind, View};
use crate::feed::{ChangeStream, Feed, FeedStats};
use crate::groups::{EventPipeline, Scope};
use crate::keeper::{Keeper, Limits};
use crate::limits::{Disk, Memory};
use crate::multi::LOOKING_MAX;
use crate::open::{self, OpenError};
use crate::parts;
use crate::prebuilt;
use crate::risk::{RiskField, RiskStatus, Valuation};
use crate::sequencer::{CheckpointData, Desk, Request, Sequencer, Start};
use crate::sighting::{self, Looked};
use crate::state::State;
use crate::statement;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rockdove_documents::filter::Filter;
use rockdove_documents::projection::Projection;
use rockdove_documents::sort::Sort;
use rockdove_documents::{Doc, Error, ObjectId, Result, Timestamp, code};
use rockdove_journal::{Cause, Journal, RiskPolicy, SyncPolicy};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Requests that may wait for the sequencer; more make their callers wait.
const REQUESTS_MAX: usize = 4096;

/// Longest wait for the log's disk before a checkpoint is given up.
const SYNC_WAIT: Duration = Duration::from_secs(60);

/// A write of more statements is left to the sequencer's thread.
const SMALL_STATEMENTS_MAX: usize = 8;
/// So is a larger document.
const SMALL_BYTES_MAX: usize = 16 << 10;

/// How an engine is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it stores; `None` keeps everything in memory only.
    pub dir: Option<PathBuf>,
    /// When the log goes to disk without being asked.
    pub sync: SyncPolicy,
    /// What the value of writes that are not on disk leads to; nothing if `None`. Not for memory only.
    pub risk: Option<RiskPolicy>,
    /// Where documents have their value; the first that covers a collection counts. Needs a risk policy.
    pub risk_fields: Vec<RiskField>,
    /// Size of the log's segments in bytes.
    pub segment_bytes: u64,
    /// Stored bytes (documents, index keys, retry records) that count as full.
    pub memory_limit_bytes: u64,
    /// Warn from this percentage of the limit on.
    pub memory_warn_percent: u64,
    /// Refuse new documents from this percentage of the limit on.
    pub memory_refuse_percent: u64,
    /// Bytes of events kept for change streams to resume from.
    pub history_bytes: usize,
    /// A checkpoint is written when the log has grown by so many bytes and by as much as the last checkpoint.
    pub checkpoint_bytes: u64,
    /// The clock.
    pub clock: Clock,
}

impl Options {
    /// In memory only.
    pub fn memory() -> Options {
        Options {
            dir: None,
            sync: SyncPolicy::default(),
            risk: None,
            risk_fields: Vec::new(),
            segment_bytes: 64 << 20,
            memory_limit_bytes: 8 << 30,
            memory_warn_percent: 75,
            memory_refuse_percent: 90,
            history_bytes: 64 << 20,
            checkpoint_bytes: 64 << 20,
            clock: Clock::system(),
        }
    }

    /// Stored in `dir`, which is made if it is not there.
    pub fn stored_in(dir: impl Into<PathBuf>) -> Options {
        Options { dir: Some(dir.into()), ..Options::memory() }
    }
}

/// The engine. Cloning gives another handle.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("epoch", &self.0.epoch).field("at", &self.operation_time()).finish()
    }
}

struct Inner {
    /// Dropped first: it is at work in the folder, which is free for others once the sequencer has ended.
    keeper: Mutex<Option<Keeper>>,
    requests: mpsc::Sender<Request>,
    desk: Arc<Desk>,
    published: Arc<ArcSwap<State>>,
    feed: Arc<Feed>,
    memory: Arc<Memory>,
    clock: Clock,
    epoch: u32,
    term: i64,
    /// Random part of the ObjectIds made here, and their counter.
    object_ids: (u64, AtomicU64),
    closing: AtomicBool,
    sequencer: Mutex<Option<JoinHandle<()>>>,
    /// Turns for statements that look for many documents.
    looking: Arc<Semaphore>,
    /// The turn to build indexes of a large collection.
    building: Arc<Semaphore>,
    recovery: open::Report,
    journal: Option<Journal>,
    valuation: Valuation,
}

impl Engine {
    /// Opens the engine: loads the newest checkpoint, applies the log after it, starts its threads.
    pub fn open(options: Options) -> Result<Engine, OpenError> {
        let opened = open::open(&options)?;
        let published = Arc::default();
        let feed = Arc::new(Feed::start(opened.epoch, opened.state.at(), options.history_bytes)?);
        feed.preload(opened.history, opened.complete_after);
        let (limit, warn, refuse) =
            (options.memory_limit_bytes, options.memory_warn_percent, options.memory_refuse_percent);
        let memory = Arc::new(Memory::new(limit, warn, refuse));
        let mut sessions = opened.sessions;
        sessions.shed(memory.records_max());
        memory.used(opened.state.bytes() + sessions.bytes());
        let disk = Arc::new(Disk::new(options.dir.clone()));
        disk.look(memory.used_bytes());
        let valuation = Valuation { policy: options.risk.clone(), fields: options.risk_fields.clone() };
        let (requests, inbox) = mpsc::channel(REQUESTS_MAX);
        let sequencer = Sequencer::new(Start {
            state: opened.state,
            sessions,
            log: opened.log,
            index: opened.index,
            marks: opened.marks,
            published: Arc::clone(&published),
            feed: feed.clone(),
            clock: options.clock.clone(),
            waiters: opened.waiters,
            memory: memory.clone(),
            disk: disk.clone(),
            valuation: valuation.clone(),
        });
        let desk = Arc::new(Desk::new(sequencer));
        let works = desk.clone();
        let thread = std::thread::Builder::new().name("sequencer".into()).spawn(move || works.run(inbox))?;
        let inner = Arc::new(Inner {
            requests,
            desk,
            published,
            feed,
            memory,
            clock: options.clock.clone(),
            epoch: opened.epoch,
            term: i64::try_from(opened.term).unwrap_or(i64::MAX),
            object_ids: (rand::random(), AtomicU64::new(rand::random())),
            closing: AtomicBool::new(false),
            sequencer: Mutex::new(Some(thread)),
            keeper: Mutex::new(None),
            looking: Arc::new(Semaphore::new(LOOKING_MAX)),
            building: Arc::new(Semaphore::new(1)),
            recovery: opened.report,
            journal: opened.journal.clone(),
            valuation,
        });
        let engine = Engine(inner);
        let keeper = Keeper::start(
            Arc::downgrade(&engine.0.published),
            Limits { memory: engine.0.memory.clone(), disk },
            engine.0.requests.downgrade(),
            &options,
            opened.journal,
            opened.since,
            Lineage { epoch: opened.epoch, history_after: opened.history_after },
        )?;
        *engine.0.keeper.lock() = Some(keeper);
        Ok(engine)
    }

    /// What opening found and did.
    pub fn recovery(&self) -> &open::Report {
        &self.0.recovery
    }

    /// The state as it is now; it stays as it is for as long as it is held.
    pub fn snapshot(&self) -> Arc<State> {
        self.0.published.load_full()
    }

    /// Time of the newest visible effect.
    pub fn operation_time(&self) -> Timestamp {
        self.0.published.load().at()
    }

    /// The clock in use, in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        self.0.clock.now_ms()
    }

    /// The memory watermarks.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// What the change feed holds.
    pub fn feed_stats(&self) -> FeedStats {
        self.0.feed.stats()
    }

    /// A new ObjectId.
    pub fn new_object_id(&self) -> ObjectId {
        let seconds = u32::try_from(self.now_ms() / 1000).unwrap_or_default();
        let (random, counter) = &self.0.object_ids;
        let count = counter.fetch_add(1, Ordering::Relaxed);
        ObjectId::from_parts(seconds, (random << 24) | (count & 0xff_ffff))
    }

    /// Carries out statements.
    pub async fn write(&self, mut write: Write) -> Result<WriteReply> {
        self.0.valuation.check(write.ack)?;
        for statement in &mut write.statements {
            if let Statement::Insert { doc, .. } = statement {
                match statement::prepare_insert(std::mem::take(doc), || self.new_object_id()) {
                    Ok(prepared) => *doc = prepared,
                    Err(error) => *statement = Statement::Refused(error),
                }
            }
        }
        if !is_small(&write) {
            return parts::write(self, &self.0.looking, write).await;
        }
        self.ask_soon(true, |reply| Request::Write(Box::new(write), None, reply)).await?
    }

    /// Changes or removes one document and returns it.
    pub async fn find_and_modify(&self, command: FindAndModify) -> Result<FindAndModifyReply, WriteError> {
        let is_small = match &command.action {
            Modify::Remove => true,
            Modify::Update { update, .. } => update.bytes() <= SMALL_BYTES_MAX && update.is_cheap(),
        };
        let is_small = is_small && command.projection.as_ref().is_none_or(Projection::is_cheap);
        let is_small = is_small && finds_by_id(&command.filter, command.sort.as_ref(), command.hint.as_ref());
        if is_small {
            return self
                .ask_soon(true, |reply| Request::FindAndModify(Box::new(command), None, reply))
                .await?;
        }
        let (retry, interrupt) = (command.retry.clone(), command.interrupt.clone());
        let number = retry.as_ref().map(|retry| (retry, retry.number_of(0)));
        let looked = sighting::look(self, &self.0.looking, command, number, interrupt).await;
        let Looked { subject: command, seen } = looked?;
        let sighting = match seen {
            Ok(sighting) => sighting,
            // An earlier try of it may have been carried out meanwhile.
            Err(_) if sighting::is_done(self, number).await? => None,
            Err(error) => return Err(error.into()),
        };
        self.ask(|reply| Request::FindAndModify(Box::new(command), sighting, reply)).await?
    }

    /// Changes what collections and indexes there are.
    pub async fn define(&self, definition: Definition, ack: Ack) -> Result<DefinitionReply> {
        let built = match &definition {
            Definition::CreateIndexes { ns, specs } => {
                prebuilt::indexes(self, &self.0.building, ns, specs).await?
            }
            _ => None,
        };
        let (prebuilt, _turn) = built.unzip();
        self.ask(|reply| Request::Define(Box::new(definition), prebuilt, ack, reply)).await?
    }

    /// Returns once everything written so far is durable.
    pub async fn sync(&self) -> Result<()> {
        self.ask(|reply| Request::Settle(None, reply)).await?.map(drop)
    }

    /// Returns once what a deferred write is owed is reached. Once for each: what has a value would count again.
    pub async fn settle(&self, owed: Owed) -> Result<Acked> {
        self.ask(|reply| Request::Settle(Some(owed), reply)).await?
    }

    /// How the log stands with value at risk; `None` without a risk policy.
    pub fn risk(&self) -> Option<RiskStatus> {
        let Valuation { policy, fields } = self.0.valuation.clone();
        let (journal, policy) = (self.0.journal.as_ref()?, policy?);
        Some(RiskStatus { policy, fields, exposure: journal.exposure(), syncs: journal.syncs() })
    }

    /// How many syncs of the log succeeded, for each cause; one may have several. None in memory only.
    pub fn syncs(&self) -> Vec<(Cause, u64)> {
        self.0.journal.as_ref().map(Journal::syncs).unwrap_or_default()
    }

    /// Everything a checkpoint needs.
    pub async fn checkpoint_data(&self) -> Result<CheckpointData> {
        self.ask(Request::Checkpoint).await
    }

    /// Opens a change stream: what happens after `start` as `pipeline` lets it through. `stages` are the
    /// pipeline's stages as the client wrote them: streams with equal stages share their evaluation.
    pub fn watch(
        &self,
        scope: Scope,
        view: View,
        stages: bytes::Bytes,
        pipeline: Arc<dyn EventPipeline>,
        start: StartAt,
    ) -> Result<ChangeStream> {
        let after = match start {
            StartAt::Now => self.operation_time(),
            StartAt::Time(at) => Timestamp::from_bits(at.bits().saturating_sub(1)),
            StartAt::After(token) => match (self.resume_point(token)?, token.kind) {
                (seen, TokenKind::Event) => {
                    return self.0.feed.follow_event(scope, view, stages, pipeline, seen);
                }
                (upto, TokenKind::HighWater | TokenKind::Invalidate) => upto,
            },
        };
        self.0.feed.follow(scope, view, stages, pipeline, after)
    }

    fn resume_point(&self, token: Token) -> Result<Timestamp> {
        if token.epoch != self.0.epoch || token.at > self.operation_time() {
            let message = "ChangeStreamHistoryLost: the resume token belongs to another history than this server's; the resume point may no longer be in the oplog";
            return Err(Error::new(code::CHANGE_STREAM_HISTORY_LOST, message));
        }
        Ok(token.at)
    }

    /// A token that stands for now.
    pub fn token_for_now(&self) -> Doc {
        Token { at: self.operation_time(), epoch: self.0.epoch, kind: TokenKind::HighWater }.to_doc()
    }

    /// The log's epoch, part of every resume token.
    pub fn epoch(&self) -> u32 {
        self.0.epoch
    }

    /// The first election term of this run. It and those that follow are above the terms of every run before it in
    /// the same data folder; in memory only, as long as the clock does not go back.
    pub fn first_term(&self) -> i64 {
        self.0.term
    }

    pub(crate) async fn ask<R>(&self, request: impl FnOnce(oneshot::Sender<R>) -> Request) -> Result<R> {
        self.ask_soon(false, request).await
    }

    /// Asks the sequencer; a small request is carried out here and now if the sequencer is idle.
    async fn ask_soon<R>(
        &self,
        is_small: bool,
        request: impl FnOnce(oneshot::Sender<R>) -> Request,
    ) -> Result<R> {
        let (reply, answer) = oneshot::channel();
        if self.is_closing() {
            return Err(shutting_down());
        }
        let left = if is_small { self.0.desk.try_now(request(reply)) } else { Some(request(reply)) };
        if let Some(request) = left {
            self.0.requests.send(request).await.map_err(|_| shutting_down())?;
        }
        answer.await.map_err(|_| shutting_down())
    }

    /// Whether it takes no more requests.
    pub(crate) fn is_closing(&self) -> bool {
        self.0.closing.load(Ordering::Acquire)
    }

    /// Stops taking requests, ends all change streams, closes the log cleanly. Later calls do nothing.
    pub async fn close(&self) -> Result<(), String> {
        if self.0.closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // First: a checkpoint that is being written belongs to the folder, which is free for others once the log is closed.
        let keeper = self.0.keeper.lock().take();
        let kept = tokio::task::spawn_blocking(move || drop(keeper)).await.map_err(|error| error.to_string());
        let (reply, answer) = oneshot::channel();
        let stopped = match self.0.requests.send(Request::Stop(reply)).await {
            Ok(()) => answer.await.unwrap_or_else(|_| Err("the sequencer ended unexpectedly".into())),
            Err(_) => Err("the sequencer had ended before".into()),
        };
        let (sequencer, feed) = (self.0.sequencer.lock().take(), self.0.feed.clone());
        let joined = tokio::task::spawn_blocking(move || {
            feed.stop();
            sequencer.map_or(Ok(()), |thread| thread.join().map_err(|_| "the sequencer panicked".to_string()))
        });
        kept.and(stopped).and(joined.await.map_err(|error| error.to_string())?)
    }
}

/// Where a change stream starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StartAt {
    /// With what happens from now on.
    Now,
    /// With what happened at this time or later.
    Time(Timestamp),
    /// After what this token stands for.
    After(Token),
}

/// Whether a write is done in so little time that its caller may do it: a few single documents, small or found by
/// `_id`. How large the found ones are is not known here, but that there is one each.
fn is_small(write: &Write) -> bool {
    let small = |statement: &Statement| match statement {
        Statement::Insert { doc, .. } => doc.bytes().len() <= SMALL_BYTES_MAX,
        Statement::Update(update) => {
            let small = update.update.bytes() <= SMALL_BYTES_MAX && update.update.is_cheap();
            small && finds_by_id(&update.filter, update.sort.as_ref(), update.hint.as_ref())
        }
        Statement::Delete(delete) => finds_by_id(&delete.filter, None, delete.hint.as_ref()),
        Statement::Refused(_) => true,
    };
    write.statements.len() <= SMALL_STATEMENTS_MAX && write.statements.iter().all(small)
}

/// Whether the planner finds a statement's documents, one at most, in the `_id` index, and asking about it is
/// little work. It would not with a hint or an order of another kind, or for another collation than the index has.
fn finds_by_id(filter: &Filter, sort: Option<&Sort>, hint: Option<&Hint>) -> bool {
    let is_plain = sort.is_none() && hint.is_none() && filter.collation().is_none();
    is_plain && filter.names_one_id() && filter.is_cheap()
}

pub(crate) fn shutting_down() -> Error {
    Error::new(code::SHUTDOWN_IN_PROGRESS, "The server is shutting down")
}

impl From<CheckpointError> for OpenError {
    fn from(error: CheckpointError) -> OpenError {
        OpenError::Checkpoint(error)
    }
}

/// Writes a checkpoint of `data` and lets the log forget what nobody needs any more.
pub(crate) fn save_checkpoint(
    dir: &std::path::Path,
    data: &CheckpointData,
    lineage: Lineage,
    journal: &rockdove_journal::Journal,
) -> Result<u64, String> {
    // What the checkpoint contains has to be in the log on disk first: after a power cut the log must not end before
    // the checkpoint.
    journal.request_sync();
    journal.wait_synced_blocking(data.index, SYNC_WAIT).map_err(|error| error.to_string())?;
    let bytes = checkpoint::save(dir, data, lineage).map_err(|error| error.to_string())?;
    journal.drop_before(data.wanted_from.min(data.index + 1)).map_err(|error| error.to_string())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::{Collection, CollectionInfo};
    use crate::command::{DeleteStatement, UpdateStatement};
    use crate::namespace::Namespace;
    use crate::plan::{self, Access};
    use rockdove_documents::collation::Collation;
    use rockdove_documents::filter::FilterOptions;
    use rockdove_documents::update::Update;
    use rockdove_documents::{Value, doc};

    fn write(statement: Statement) -> Write {
        let statements = vec![statement];
        Write {
            statements,
            ordered: true,
            retry: None,
            ack: Ack::WRITTEN,
            bypass_validation: false,
            interrupt: None,
        }
    }

    #[test]
    fn small_is_what_the_planner_finds_by_id() {
        let ns = Namespace::new("db", "c").unwrap();
        let collection = Collection::new(CollectionInfo::new(1, ns.clone(), [0; 16], Doc::empty()).unwrap());
        let strength = doc! { "locale": "en", "strength": 2 };
        let collation = Collation::parse(strength.raw()).unwrap();
        let sorts = [None, Some(doc! { "$natural": 1 }), Some(doc! { "n": 1 })];
        let hints = [None, Some(Hint::Natural { reverse: false }), Some(Hint::Name("_id_".into()))];
        let mut seen = [0, 0];
        for query in [doc! { "_id": 1, "n": 2 }, doc! { "n": 2 }, doc! { "_id": { "$gt": 1 } }] {
            for collation in [None, collation.clone()] {
                for sort in &sorts {
                    for hint in &hints {
                        let options = FilterOptions { collation: collation.clone(), ..Default::default() };
                        let filter = Filter::parse(query.raw(), &options).unwrap();
                        let sort = sort.as_ref().map(|sort| Sort::parse(sort.raw(), None).unwrap());
                        let small = finds_by_id(&filter, sort.as_ref(), hint.as_ref());
                        let plan = plan::choose(&collection, &filter, sort.as_ref(), hint.as_ref()).unwrap();
                        let by_id = matches!(plan.access, Access::Index { index: 0, .. });
                        assert!(by_id || !small, "{query:?} {sort:?} {hint:?}");
                        let delete =
                            DeleteStatement { ns: ns.clone(), filter, multi: true, hint: hint.clone() };
                        let deletes = write(Statement::Delete(Box::new(delete)));
                        assert!(sort.is_some() || is_small(&deletes) == small);
                        seen[usize::from(small)] += 1;
                    }
                }
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0);
    }

    #[test]
    fn the_log_is_on_disk_before_the_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("log");
        std::fs::create_dir(&folder).unwrap();
        let options = rockdove_journal::Options { sync: SyncPolicy::Never, ..Default::default() };
        let (journal, mut writer, _) = rockdove_journal::Journal::open(&folder, options).unwrap();
        for _ in 0..3 {
            writer.append(&[b"batch"], 1).unwrap();
        }
        let checkpoint = dir.path().join("00000000000000000003.checkpoint");
        let (looked, was_first) = (checkpoint.clone(), Arc::new(AtomicBool::new(false)));
        let seen = was_first.clone();
        journal.on_synced(move |synced| {
            if synced.as_ref().is_ok_and(|synced| *synced >= 3) {
                seen.fetch_or(!looked.exists(), Ordering::Relaxed);
            }
        });
        let data = CheckpointData { state: State::default(), sessions: vec![], index: 3, wanted_from: 1 };
        let lineage = Lineage { epoch: 1, history_after: Timestamp::default() };
        save_checkpoint(dir.path(), &data, lineage, &journal).unwrap();
        assert!(checkpoint.exists() && journal.synced() >= 3);
        assert!(was_first.load(Ordering::Relaxed));
    }

    #[test]
    fn a_large_text_is_not_small() {
        let (ns, text) = (Namespace::new("db", "c").unwrap(), "x".repeat(SMALL_BYTES_MAX));
        for (text, small) in [(&text[..], false), ("x", true)] {
            let insert = Statement::Insert { ns: ns.clone(), doc: doc! { "_id": 1, "text": text } };
            assert_eq!(is_small(&write(insert)), small);
            for update in [doc! { "text": text }, doc! { "$set": { "text": text } }] {
                let update = Update::parse(Value::Document(update.raw()), None, &Default::default()).unwrap();
                let filter = Filter::parse(doc! { "_id": 1 }.raw(), &Default::default()).unwrap();
                let (ns, multi, upsert, sort, hint) = (ns.clone(), false, false, None, None);
                let update = UpdateStatement { ns, filter, update, multi, upsert, sort, hint };
                assert_eq!(is_small(&write(Statement::Update(Box::new(update)))), small);
            }
        }
    }
}
