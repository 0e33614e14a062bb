//! The sequencer: carries out all commands, one batch after the other.
//!
//! ```text
//! requests ─► evaluate against the newest state ─► effects ─► log ─► publish state ─► events, replies
//! ```
//!
//! While one batch is under way the next gathers; a lone command waits for no timer.
//!
//! Invariants
//! * Everything a batch did becomes visible at once, after it is in the log, and never if the log refused it.
//! * A reply is sent only when its acknowledgement level is reached.
//! * One batch at a time: whoever holds the [`Desk`] is the sequencer. Its own thread does all work but that on a few
//!   single documents.
//! * A request's interrupt is asked while documents are looked for and computed, never while effects are applied.
//! * Ids, times and random values are fixed here; applying the effects again gives the same state.
//!
//! This module never touches a socket and never waits for a reader.

use crate::clock::Clock;
use crate::collection::{CollectionInfo, Scratch};
use crate::command::{
    Ack, Definition, DefinitionReply, FindAndModify, FindAndModifyReply, Outcome, Retry, Statement, Write,
    WriteError, WriteReply,
};
use crate::definition;
use crate::effects::{BatchEncoder, CollectionNumber, Effect, RecordNumber};
use crate::event::{Event, Uuid, key_of};
use crate::feed::Feed;
use crate::limits::{self, Disk, Memory};
use crate::log::{CommitError, CommitLog};
use crate::multi::Portion;
use crate::namespace::Namespace;
use crate::sessions::{self, Done, STATEMENTS_MAX, Sessions, Stored};
use crate::state::{State, describe};
use crate::statement;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::{Doc, Error, Result, Timestamp, code};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Most requests in one batch.
const BATCH_REQUESTS_MAX: usize = 512;
/// A batch is committed when its effects reach this size, also in the middle of a write: only its single effects
/// are atomic. One effect is at most a few documents, so that no batch comes near the log's limit for an entry.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// One position of the log is remembered for so many bytes of it.
const MARK_BYTES: usize = 1 << 20;
/// How often silent sessions are looked for.
const SESSIONS_EVERY_MS: i64 = 60_000;

/// What the sequencer is asked.
pub enum Request {
    /// Carry out statements.
    Write(Box<Write>, oneshot::Sender<Result<WriteReply>>),
    /// Change one document and return it.
    FindAndModify(Box<FindAndModify>, oneshot::Sender<Found>),
    /// Carry out a part of a statement.
    Portion(Box<Portion>, oneshot::Sender<PortionDone>),
    /// Change collections or indexes.
    Define(Box<Definition>, Ack, oneshot::Sender<Result<DefinitionReply>>),
    /// Delete documents that a TTL index says are over; answers how many went.
    Expire {
        /// The collection.
        collection: CollectionNumber,
        /// The index.
        index: String,
        /// Dates up to here are over, in milliseconds since 1970.
        upto_ms: i64,
        /// Gets the number of deleted documents.
        reply: oneshot::Sender<usize>,
    },
    /// Hand out everything a checkpoint needs.
    Checkpoint(oneshot::Sender<CheckpointData>),
    /// Write nothing, but reply once everything before is durable.
    Sync(oneshot::Sender<Result<()>>),
    /// Close the log and end.
    Stop(oneshot::Sender<Result<(), String>>),
}

/// A consistent picture of everything that the log leads to.
pub struct CheckpointData {
    /// The collections.
    pub state: State,
    /// Retry records.
    pub sessions: Vec<Doc>,
    /// Position of the last batch it contains.
    pub index: u64,
    /// Position from which on the log's events are still wanted.
    pub wanted_from: u64,
}

/// The sequencer's parts.
pub struct Sequencer {
    pub(crate) state: State,
    pub(crate) scratch: Scratch,
    memory: Arc<Memory>,
    disk: Arc<Disk>,
    published: Arc<ArcSwap<State>>,
    log: Box<dyn CommitLog>,
    sessions: Sessions,
    feed: Arc<Feed>,
    clock: Clock,
    waiters: Arc<SyncWaiters>,
    /// Position of the last batch.
    index: u64,
    /// Where in the log some moments are, oldest first.
    marks: VecDeque<(Timestamp, u64)>,
    unmarked_bytes: usize,
    sessions_expired_ms: i64,
}

/// One batch being put together.
pub struct Batch {
    encoder: BatchEncoder,
    events: Vec<Arc<Event>>,
    replies: Vec<(Ack, Reply)>,
    /// Retry records of this batch; they join the others once it is in the log.
    pending: Sessions,
    /// Milliseconds since 1970 for everything in the batch.
    pub wall_ms: i64,
    upto: Timestamp,
    /// Why the log refused the batch before, in which the request under way began.
    refused: Option<Error>,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.encoder.size() >= BATCH_BYTES_MAX
    }

    /// The time of the next effect: no other has it.
    pub fn next_at(&self) -> Timestamp {
        self.encoder.next_at()
    }
}

/// What a `findAndModify` comes to.
type Found = Result<FindAndModifyReply, WriteError>;

/// What a part of a statement comes to, and the log's time after it.
type PortionDone = Result<(Outcome, Timestamp), WriteError>;

/// An answer that waits for its acknowledgement level.
pub enum Reply {
    Write(oneshot::Sender<Result<WriteReply>>, Result<WriteReply>),
    FindAndModify(oneshot::Sender<Found>, Found),
    Portion(oneshot::Sender<PortionDone>, PortionDone),
    Define(oneshot::Sender<Result<DefinitionReply>>, Result<DefinitionReply>),
    Sync(oneshot::Sender<Result<()>>),
    Expired(oneshot::Sender<usize>, usize),
}

/// Replies that wait for the disk, until the log fails: then they and all later ones get the failure.
#[derive(Default)]
pub struct SyncWaiters(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Each with the position that has to be durable, in order.
    replies: VecDeque<(u64, Reply)>,
    failure: Option<Error>,
}

impl Reply {
    /// Sends the answer, or the error that came instead. Nobody may be listening any more: that is fine.
    fn send(self, failure: Option<&Error>) {
        match (self, failure) {
            (Reply::Write(to, reply), None) => drop(to.send(reply)),
            (Reply::Write(to, _), Some(error)) => drop(to.send(Err(error.clone()))),
            (Reply::FindAndModify(to, reply), None) => drop(to.send(reply)),
            (Reply::FindAndModify(to, _), Some(error)) => drop(to.send(Err(error.clone().into()))),
            (Reply::Portion(to, reply), None) => drop(to.send(reply)),
            (Reply::Portion(to, _), Some(error)) => drop(to.send(Err(error.clone().into()))),
            (Reply::Define(to, reply), None) => drop(to.send(reply)),
            (Reply::Define(to, _), Some(error)) => drop(to.send(Err(error.clone()))),
            (Reply::Sync(to), failure) => drop(to.send(failure.cloned().map_or(Ok(()), Err))),
            (Reply::Expired(to, count), failure) => drop(to.send(if failure.is_some() { 0 } else { count })),
        }
    }
}

impl SyncWaiters {
    /// Sends the replies of everything up to `synced`.
    pub fn release(&self, synced: u64) {
        let mut waiting = self.0.lock();
        let ready = waiting.replies.partition_point(|(index, _)| *index <= synced);
        let ready: Vec<_> = waiting.replies.drain(..ready).collect();
        drop(waiting);
        ready.into_iter().for_each(|(_, reply)| reply.send(None));
    }

    /// Fails all that wait and all that come later: the disk takes nothing any more.
    pub fn fail(&self, reason: &str) {
        let message = format!("the log could not be made durable: {reason}");
        let error = Error::new(code::WRITE_CONCERN_FAILED, message);
        let mut waiting = self.0.lock();
        waiting.failure.get_or_insert_with(|| error.clone());
        let failed = std::mem::take(&mut waiting.replies);
        drop(waiting);
        failed.into_iter().for_each(|(_, reply)| reply.send(Some(&error)));
    }

    fn push(&self, index: u64, reply: Reply) {
        let mut waiting = self.0.lock();
        match waiting.failure.clone() {
            None => waiting.replies.push_back((index, reply)),
            Some(error) => {
                drop(waiting);
                reply.send(Some(&error));
            }
        }
    }
}

/// What a sequencer starts from.
pub struct Start {
    pub state: State,
    pub sessions: Sessions,
    pub log: Box<dyn CommitLog>,
    pub index: u64,
    pub marks: VecDeque<(Timestamp, u64)>,
    pub published: Arc<ArcSwap<State>>,
    pub feed: Arc<Feed>,
    pub clock: Clock,
    pub waiters: Arc<SyncWaiters>,
    pub memory: Arc<Memory>,
    pub disk: Arc<Disk>,
}

/// The place of the one sequencer. Its thread works there; a small request that finds it idle is carried out on
/// the spot, by the thread that asks, which saves two changes of threads. Whoever holds the lock is the sequencer.
///
/// The place is empty once the sequencer has closed the log, or has panicked: what it had half done is in no log
/// and must not be seen, so it ends, whichever thread it was, and every later request is refused.
pub struct Desk(Mutex<Option<Sequencer>>);

/// The sequencer at work. If it panics, it is gone.
struct AtWork<'a> {
    place: &'a mut Option<Sequencer>,
    is_done: bool,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if let Some(sequencer) = self.place.take() {
            tracing::error!("the sequencer panicked: no request is carried out any more");
            let waiters = sequencer.waiters.clone();
            drop(sequencer); // stops the journal: after that nothing is synced
            waiters.fail("the sequencer panicked");
        }
    }
}

impl Desk {
    /// A desk with its sequencer.
    pub fn new(sequencer: Sequencer) -> Desk {
        Desk(Mutex::new(Some(sequencer)))
    }

    /// Carries a request out now if nothing else is being carried out; gives it back otherwise.
    pub fn try_now(&self, request: Request) -> Option<Request> {
        match self.0.try_lock() {
            Some(mut place) if place.is_some() => {
                Desk::carry_out(&mut place, [request]);
                None
            }
            _ => Some(request),
        }
    }

    /// Carries out requests until told to stop, until nobody can ask any more, or until the sequencer is gone.
    pub fn run(&self, mut requests: mpsc::Receiver<Request>) {
        let mut waiting = Vec::with_capacity(BATCH_REQUESTS_MAX);
        while requests.blocking_recv_many(&mut waiting, BATCH_REQUESTS_MAX) > 0 {
            let stop = waiting.iter().position(|request| matches!(request, Request::Stop(_)));
            let after = stop.map(|at| waiting.split_off(at));
            let is_there = Desk::carry_out(&mut self.0.lock(), waiting.drain(..));
            if let Some(Request::Stop(reply)) = after.and_then(|after| after.into_iter().next()) {
                let _ = reply.send(self.close()); // whoever asked may have gone
                return;
            }
            if !is_there {
                return; // whoever asked is told by the end of the queue
            }
        }
        if let Err(reason) = self.close() {
            tracing::error!(reason, "the log was not closed cleanly");
        }
    }

    /// Carries out requests, if the sequencer is there.
    fn carry_out(place: &mut Option<Sequencer>, requests: impl IntoIterator<Item = Request>) -> bool {
        let mut work = AtWork { place, is_done: false };
        if let Some(sequencer) = work.place.as_mut() {
            sequencer.carry_out(requests);
        }
        work.is_done = true;
        work.place.is_some()
    }

    fn close(&self) -> Result<(), String> {
        self.0.lock().take().map_or_else(|| Err("the sequencer panicked".into()), Sequencer::close)
    }
}

impl Sequencer {
    /// A sequencer that goes on from there.
    pub fn new(start: Start) -> Sequencer {
        Sequencer {
            state: start.state,
            scratch: Scratch::default(),
            memory: start.memory,
            disk: start.disk,
            published: start.published,
            log: start.log,
            sessions: start.sessions,
            feed: start.feed,
            clock: start.clock,
            waiters: start.waiters,
            index: start.index,
            marks: start.marks,
            unmarked_bytes: MARK_BYTES,
            sessions_expired_ms: 0,
        }
    }

    /// Carries out waiting requests in as few batches as the limits allow. Where the log refuses one, the replies
    /// in it say so.
    fn carry_out(&mut self, requests: impl IntoIterator<Item = Request>) {
        let mut batch = self.start_batch();
        for request in requests {
            self.evaluate(request, &mut batch);
            if batch.is_full() {
                self.renew(&mut batch);
            }
        }
        self.commit(batch);
    }

    /// Commits what there is of a batch and begins the next.
    fn renew(&mut self, batch: &mut Batch) {
        let next = self.start_batch();
        batch.refused = self.commit(std::mem::replace(batch, next));
    }

    /// Lets the request under way go on in another batch if this one is full. Fails if the log refused it: the
    /// whole request has failed then, however much of it is in the log already. A retryable statement must not be
    /// parted from its record.
    pub(crate) fn make_room(&mut self, batch: &mut Batch) -> Result<()> {
        if batch.is_full() {
            self.renew(batch);
        }
        batch.refused.clone().map_or(Ok(()), Err)
    }

    /// Ends: closes the log and answers what waits for the disk.
    fn close(self) -> Result<(), String> {
        let closed = self.log.close();
        match &closed {
            Ok(()) => self.waiters.release(u64::MAX),
            Err(reason) => self.waiters.fail(reason),
        }
        closed
    }

    /// Fails if nothing new is to be stored, for lack of memory or disk.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.memory.check(self.stored_bytes())?;
        if self.disk.is_short() || self.log.is_short() {
            return Err(limits::disk_is_short());
        }
        Ok(())
    }

    /// Bytes of all that is kept: documents, index entries, retry records.
    fn stored_bytes(&self) -> u64 {
        self.state.bytes() + self.sessions.bytes()
    }

    fn start_batch(&self) -> Batch {
        let wall_ms = self.clock.now_ms();
        let seconds = u64::try_from(wall_ms / 1000).unwrap_or_default().min(u64::from(u32::MAX));
        // The log's time never goes back, even if the clock does.
        let first = (self.state.at().bits() + 1).max((seconds << 32) | 1);
        let first = Timestamp::from_bits(first);
        Batch {
            encoder: BatchEncoder::new(first, wall_ms),
            events: vec![],
            replies: vec![],
            pending: Sessions::default(),
            wall_ms,
            upto: self.state.at(),
            refused: None,
        }
    }

    fn evaluate(&mut self, request: Request, batch: &mut Batch) {
        batch.refused = None; // what it was is no matter of this request
        match request {
            Request::Write(write, to) => {
                let ack = write.ack;
                let reply = self.write(*write, batch);
                batch.replies.push((ack, Reply::Write(to, reply)));
            }
            Request::FindAndModify(command, to) => {
                let ack = command.ack;
                let reply = self.find_and_modify(*command, batch);
                batch.replies.push((ack, Reply::FindAndModify(to, reply)));
            }
            Request::Portion(portion, to) => {
                let done = statement::portion(self, &portion, batch).map(|done| (done, self.state.at()));
                batch.replies.push((portion.ack, Reply::Portion(to, done)));
            }
            Request::Define(definition, ack, to) => {
                let reply = definition::carry_out(self, *definition, batch);
                batch.replies.push((ack, Reply::Define(to, reply)));
            }
            Request::Expire { collection, index, upto_ms, reply } => {
                let count = statement::expire(self, collection, &index, upto_ms, batch);
                batch.replies.push((Ack::Written, Reply::Expired(reply, count)));
            }
            Request::Sync(to) => batch.replies.push((Ack::Synced, Reply::Sync(to))),
            Request::Checkpoint(to) => self.checkpoint(to, batch),
            Request::Stop(to) => drop(to), // the desk takes it before it comes here
        }
    }

    fn checkpoint(&mut self, to: oneshot::Sender<CheckpointData>, batch: &mut Batch) {
        // What this batch did so far has to be in the log before it can be in a checkpoint.
        self.renew(batch);
        let wanted = self.feed.stats().complete_after;
        while self.marks.len() > 1 && self.marks[1].0 <= wanted {
            self.marks.pop_front();
        }
        let wanted_from = self.marks.front().map_or(self.index, |(_, index)| *index);
        self.state.forget_dropped(wanted);
        let sessions = self.sessions.records().collect();
        let _ =
            to.send(CheckpointData { state: self.state.clone(), sessions, index: self.index, wanted_from }); // the keeper may have gone
    }

    fn write(&mut self, write: Write, batch: &mut Batch) -> Result<WriteReply> {
        if let Some(interrupt) = &write.interrupt {
            interrupt.check()?; // it may have waited for long
        }
        if let Some(retry) = &write.retry {
            self.check_numbers(retry, write.statements.len(), batch)?;
        }
        let mut results = Vec::with_capacity(write.statements.len());
        let (mut retried, mut done) = (Vec::new(), Vec::new());
        for (position, one) in write.statements.into_iter().enumerate() {
            let number = write.retry.as_ref().map(|retry| statement_number(retry, position));
            if let (Some(retry), Some(number)) = (&write.retry, number)
                && let Some(stored) = self.recall(retry, number, batch)?
            {
                let Stored::Outcome(outcome) = stored else { return Err(other_command(retry)) };
                results.push(Ok(outcome));
                retried.push(number);
                continue;
            }
            if one.is_multi() {
                // It may take several batches, and what is in the log shall be known there as done.
                self.remember(&write.retry, &mut done, batch)?;
            }
            let result = self.statement(one, write.bypass_validation, write.interrupt.as_ref(), batch);
            if let (Err(failed), Some(_)) = (&result, &write.interrupt)
                && is_interruption(&failed.error)
            {
                self.remember(&write.retry, &mut done, batch)?;
                return Err(failed.error.clone());
            }
            if let (Ok(outcome), Some(number)) = (&result, number) {
                sessions::push(&mut done, number, Stored::Outcome(outcome.clone()));
            }
            let failed = result.is_err();
            results.push(result);
            if batch.is_full() {
                self.remember(&write.retry, &mut done, batch)?;
            }
            self.make_room(batch)?;
            if failed && write.ordered {
                break;
            }
        }
        self.remember(&write.retry, &mut done, batch)?;
        Ok(WriteReply { results, retried, at: self.state.at() })
    }

    fn statement(
        &mut self,
        one: Statement,
        bypass: bool,
        interrupt: Option<&Interrupt>,
        batch: &mut Batch,
    ) -> Result<Outcome, WriteError> {
        match one {
            Statement::Insert { ns, doc } => statement::insert(self, &ns, doc, bypass, batch),
            Statement::Update(update) => statement::update(self, &update, bypass, interrupt, batch),
            Statement::Delete(delete) => statement::delete(self, &delete, interrupt, batch),
            Statement::Refused(error) => Err(error.into()),
        }
    }

    fn find_and_modify(&mut self, command: FindAndModify, batch: &mut Batch) -> Found {
        if let Some(interrupt) = &command.interrupt {
            interrupt.check()?;
        }
        if let Some(retry) = &command.retry {
            self.check_numbers(retry, 1, batch)?;
            match self.recall(retry, statement_number(retry, 0), batch)? {
                None => {}
                Some(Stored::Found { value, found, upserted }) => {
                    let at = self.state.at();
                    return Ok(FindAndModifyReply { value, found, upserted, retried: true, at });
                }
                Some(Stored::Outcome(_)) => return Err(other_command(retry).into()),
            }
        }
        let mut reply = statement::find_and_modify(self, &command, batch)?;
        if let Some(retry) = &command.retry {
            let (value, found, upserted) = (reply.value.clone(), reply.found, reply.upserted.clone());
            let mut done = Vec::new();
            sessions::push(&mut done, statement_number(retry, 0), Stored::Found { value, found, upserted });
            self.remember(&command.retry, &mut done, batch)?;
        }
        reply.at = self.state.at();
        Ok(reply)
    }

    fn recall(&self, retry: &Retry, statement: i32, batch: &Batch) -> Result<Option<Stored>> {
        match batch.pending.recall(retry, statement)? {
            None => self.sessions.recall(retry, statement),
            found => Ok(found),
        }
    }

    /// Refuses statement numbers that could not be told apart, or would be too many to remember.
    fn check_numbers(&self, retry: &Retry, count: usize, batch: &Batch) -> Result<()> {
        if !retry.statements.is_sorted_by(|a, b| a < b) {
            let mut numbers = retry.statements.clone();
            numbers.sort_unstable();
            if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(Error::bad_value("two statements of a retryable write have the same number"));
            }
        }
        let known = self.sessions.count(retry) + batch.pending.count(retry);
        if known + count > STATEMENTS_MAX {
            let message = format!("a retryable write cannot have more than {STATEMENTS_MAX} statements");
            return Err(Error::bad_value(message));
        }
        Ok(())
    }

    /// Notes what a retryable write has done, in the log and for the rest of the batch.
    fn remember(&mut self, retry: &Option<Retry>, done: &mut Vec<Done>, batch: &mut Batch) -> Result<()> {
        let (Some(retry), false) = (retry, done.is_empty()) else { return Ok(()) };
        let done = std::mem::take(done);
        let statement = sessions::describe(&retry.session, retry.number, batch.wall_ms, &done);
        batch.pending.note(retry, batch.wall_ms, done, statement.bytes().len());
        Ok(self.effect(batch, Effect::Retryable { statement }, None)?)
    }

    /// Applies an effect and adds it to the batch; a refused effect changes nothing.
    pub(crate) fn effect(
        &mut self,
        batch: &mut Batch,
        effect: Effect,
        after: Option<Doc>,
    ) -> Result<(), WriteError> {
        let at = batch.encoder.next_at();
        let event = self.state.apply(at, batch.wall_ms, &effect, after, &mut self.scratch)?;
        batch.encoder.push(&effect);
        batch.events.extend(event.map(Arc::new));
        batch.upto = at;
        Ok(())
    }

    /// The collection of this name, made if it is not there.
    pub(crate) fn ensure_collection(
        &mut self,
        ns: &Namespace,
        batch: &mut Batch,
    ) -> Result<Arc<CollectionInfo>> {
        if self.state.collection(ns).is_none() {
            self.create_collection(ns, Doc::empty(), batch)?;
        }
        let collection = self.state.collection(ns).map(|collection| collection.info.clone());
        collection.ok_or_else(|| Error::new(code::INTERNAL_ERROR, format!("collection {ns} was not made")))
    }

    pub(crate) fn create_collection(
        &mut self,
        ns: &Namespace,
        options: Doc,
        batch: &mut Batch,
    ) -> Result<()> {
        let uuid: Uuid = *uuid::Uuid::new_v4().as_bytes();
        let collection = self.state.next_collection();
        let create = Effect::Create { collection, info: describe(ns, uuid, options.raw()) };
        Ok(self.effect(batch, create, None)?)
    }

    /// Removes a record of a collection.
    pub(crate) fn remove(
        &mut self,
        info: &CollectionInfo,
        record: RecordNumber,
        doc: &Doc,
        batch: &mut Batch,
    ) -> Result<()> {
        let before = info.keeps_images.then(|| doc.clone());
        let remove = Effect::Remove { collection: info.number, record, key: key_of(doc), before };
        Ok(self.effect(batch, remove, None)?)
    }

    /// Makes a batch lasting and visible, then lets its events and replies out. Returns why the log refused it,
    /// if it did.
    fn commit(&mut self, batch: Batch) -> Option<Error> {
        let mut failure = None;
        if batch.encoder.len() > 0 {
            let size = batch.encoder.size();
            match self
                .log
                .append(&batch.encoder.parts(), u64::try_from(batch.wall_ms).unwrap_or_default() * 1_000_000)
            {
                Ok(index) => {
                    self.sessions.absorb(batch.pending);
                    self.sessions.shed(self.memory.records_max());
                    self.publish(index, size, batch.upto, batch.events);
                }
                Err(error) => failure = Some(self.take_back(error)),
            }
        }
        let needs_sync =
            batch.replies.iter().any(|(ack, _)| *ack == Ack::Synced) && self.log.synced() < self.index;
        for (ack, reply) in batch.replies {
            match (ack, &failure) {
                (Ack::Synced, None) if needs_sync => self.waiters.push(self.index, reply),
                (_, failure) => reply.send(failure.as_ref()),
            }
        }
        if needs_sync {
            self.log.request_sync();
            self.waiters.release(self.log.synced());
        }
        self.expire_sessions(batch.wall_ms);
        failure
    }

    fn publish(&mut self, index: u64, size: usize, upto: Timestamp, events: Vec<Arc<Event>>) {
        self.index = index;
        self.unmarked_bytes += size;
        if self.unmarked_bytes >= MARK_BYTES {
            self.unmarked_bytes = 0;
            self.marks.push_back((upto, index));
            self.disk.look(self.stored_bytes());
        }
        self.memory.used(self.stored_bytes());
        self.published.store(Arc::new(self.state.clone()));
        self.feed.publish(events, upto);
    }

    /// Drops what a refused batch did.
    fn take_back(&mut self, error: CommitError) -> Error {
        self.state = State::clone(&self.published.load());
        tracing::error!(%error, "a batch of writes was refused");
        match error {
            CommitError::NoSpace(reason) => Error::new(code::OUT_OF_DISK_SPACE, reason),
            CommitError::TooLarge(reason) => Error::new(code::BSON_OBJECT_TOO_LARGE, reason),
            CommitError::Refused(reason) => Error::new(code::OPERATION_FAILED, reason),
            CommitError::Failed(reason) => Error::new(code::INTERNAL_ERROR, reason),
        }
    }

    fn expire_sessions(&mut self, now_ms: i64) {
        if (now_ms - self.sessions_expired_ms).abs() > SESSIONS_EVERY_MS {
            self.sessions_expired_ms = now_ms;
            self.sessions.expire(now_ms);
        }
    }
}

/// Whether an error is an interrupt's answer, which concerns the whole command.
pub(crate) fn is_interruption(error: &Error) -> bool {
    [code::MAX_TIME_MS_EXPIRED, code::INTERRUPTED].contains(&error.code)
}

fn other_command(retry: &Retry) -> Error {
    let message = format!("txnNumber {} of this session was used for another command", retry.number);
    Error::bad_value(message)
}

/// The number of the statement at `position` of a retryable write.
fn statement_number(retry: &Retry, position: usize) -> i32 {
    let counted = || i32::try_from(position).unwrap_or(i32::MAX);
    retry.statements.get(position).copied().unwrap_or_else(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{DeleteStatement, UpdateStatement};
    use crate::effects::BatchDecoder;
    use rockdove_documents::filter::Filter;
    use rockdove_documents::update::Update;
    use rockdove_documents::{Value, doc};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    /// A log on a disk that can be full, or worse.
    #[derive(Clone)]
    struct SmallDisk {
        /// How many batches fit.
        room: Arc<AtomicUsize>,
        panics: Arc<AtomicBool>,
        appended: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl SmallDisk {
        fn new() -> SmallDisk {
            let room = Arc::new(AtomicUsize::new(usize::MAX));
            SmallDisk { room, panics: Arc::default(), appended: Arc::default() }
        }

        /// The state that the batches lead to.
        fn replayed(&self) -> State {
            let (mut state, mut scratch) = (State::default(), Scratch::default());
            for batch in self.appended.lock().iter() {
                let decoder = BatchDecoder::new(batch.clone().into()).unwrap();
                let wall_ms = decoder.wall_ms;
                for effect in decoder {
                    let (at, effect) = effect.unwrap();
                    state.apply(at, wall_ms, &effect, None, &mut scratch).unwrap();
                }
            }
            state
        }

        /// Sizes of the batches from this one on.
        fn sizes(&self, from: usize) -> Vec<usize> {
            self.appended.lock()[from..].iter().map(Vec::len).collect()
        }
    }

    impl CommitLog for SmallDisk {
        fn append(&mut self, parts: &[&[u8]], _time_ns: u64) -> Result<u64, CommitError> {
            let mut appended = self.appended.lock();
            if appended.len() >= self.room.load(Ordering::Relaxed) {
                return Err(CommitError::NoSpace("no room".into()));
            }
            assert!(!self.panics.load(Ordering::Relaxed), "a panic in the middle of a batch");
            appended.push(parts.concat());
            Ok(appended.len() as u64)
        }

        fn request_sync(&self) {}

        fn synced(&self) -> u64 {
            self.appended.lock().len() as u64
        }

        fn close(self: Box<Self>) -> Result<(), String> {
            Ok(())
        }
    }

    struct Running {
        requests: mpsc::Sender<Request>,
        desk: Arc<Desk>,
        waiters: Arc<SyncWaiters>,
        published: Arc<ArcSwap<State>>,
        feed: Arc<Feed>,
    }

    /// A sequencer without a thread.
    fn sequencer(log: SmallDisk) -> Sequencer {
        Sequencer::new(Start {
            state: State::default(),
            sessions: Sessions::default(),
            log: Box::new(log),
            index: 0,
            marks: VecDeque::new(),
            published: Arc::default(),
            feed: Arc::new(Feed::start(1, Timestamp::default(), 1 << 20).unwrap()),
            clock: Clock::system(),
            waiters: Arc::default(),
            memory: Arc::new(Memory::new(1 << 30, 75, 90)),
            disk: Arc::default(),
        })
    }

    fn start(log: SmallDisk) -> Running {
        let sequencer = sequencer(log);
        let (published, feed) = (sequencer.published.clone(), sequencer.feed.clone());
        let waiters = sequencer.waiters.clone();
        let (requests, inbox) = mpsc::channel(16);
        let desk = Arc::new(Desk::new(sequencer));
        let works = desk.clone();
        std::thread::spawn(move || works.run(inbox));
        Running { requests, desk, waiters, published, feed }
    }

    fn ns() -> Namespace {
        Namespace::new("db", "c").unwrap()
    }

    type WriteAnswer = oneshot::Receiver<Result<WriteReply>>;

    fn request(statement: Statement, retry: Option<Retry>, ack: Ack) -> (Request, WriteAnswer) {
        let (to, reply) = oneshot::channel();
        let statements = vec![statement];
        let write =
            Write { statements, ordered: true, retry, ack, bypass_validation: false, interrupt: None };
        (Request::Write(Box::new(write), to), reply)
    }

    /// The answer; none if the request was dropped.
    async fn answer(reply: WriteAnswer) -> Option<Result<WriteReply>> {
        tokio::time::timeout(Duration::from_secs(10), reply).await.expect("an answer in time").ok()
    }

    async fn write(running: &Running, statement: Statement, retry: Option<Retry>) -> Result<WriteReply> {
        let (request, reply) = request(statement, retry, Ack::Written);
        running.requests.send(request).await.expect("the sequencer runs");
        answer(reply).await.expect("the sequencer answers")
    }

    fn insert(id: i32) -> Statement {
        Statement::Insert { ns: ns(), doc: doc! { "_id": id } }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_full_disk_refuses_writes_and_forgets_them_until_there_is_room() {
        let disk = SmallDisk::new();
        let running = start(disk.clone());
        write(&running, insert(1), None).await.unwrap();
        let (before, at) = (running.published.load_full(), running.feed.stats().last);
        disk.room.store(0, Ordering::Relaxed);
        let retry = Retry { session: bytes::Bytes::from_static(b"s"), number: 1, statements: vec![] };
        for refused in
            [write(&running, insert(2), Some(retry.clone())).await, write(&running, insert(3), None).await]
        {
            assert_eq!(refused.unwrap_err().code, code::OUT_OF_DISK_SPACE);
        }
        assert_eq!(running.published.load().at(), before.at());
        assert_eq!(running.published.load().collection(&ns()).unwrap().len(), 1);
        assert_eq!(running.feed.stats().last, at);
        disk.room.store(usize::MAX, Ordering::Relaxed);
        let again = write(&running, insert(2), Some(retry)).await.unwrap();
        assert_eq!((again.retried.len(), again.results), (0, vec![Ok(Outcome::Inserted)]));
        let delete = DeleteStatement { ns: ns(), filter: Filter::all(), multi: true, hint: None };
        let deleted = write(&running, Statement::Delete(Box::new(delete)), None).await.unwrap();
        assert_eq!(deleted.results, [Ok(Outcome::Deleted { count: 2 })]);
        assert_eq!(disk.appended.lock().len(), 3);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_large_document_goes_into_the_log_as_it_is() {
        let disk = SmallDisk::new();
        let running = start(disk.clone());
        let doc = doc! { "_id": 1, "text": "x".repeat(5000) };
        write(&running, Statement::Insert { ns: ns(), doc: doc.clone() }, None).await.unwrap();
        let stored = running.published.load().collection(&ns()).unwrap().get(1).unwrap().clone();
        // The very same bytes, not a copy of them.
        assert_eq!(stored.bytes().as_ptr(), doc.bytes().as_ptr());
        let logged = disk.appended.lock()[0].clone();
        assert!(logged.windows(doc.bytes().len()).any(|window| window == &doc.bytes()[..]));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_panic_ends_the_sequencer_on_whatever_thread_it_was() {
        for on_its_thread in [true, false] {
            let disk = SmallDisk::new();
            let running = start(disk.clone());
            write(&running, insert(1), None).await.unwrap();
            let before = running.published.load_full();
            disk.panics.store(true, Ordering::Relaxed);
            let (panics, reply) = request(insert(2), None, Ack::Written);
            if on_its_thread {
                running.requests.send(panics).await.expect("the sequencer runs");
            } else {
                let desk = running.desk.clone();
                let here = move || {
                    let mut left = Some(panics);
                    while let Some(request) = left {
                        left = desk.try_now(request); // its thread may still be on its way from the desk
                    }
                };
                assert!(std::thread::spawn(here).join().is_err());
            }
            assert!(answer(reply).await.is_none());
            // What was half done is not seen, also when the log would take it again.
            disk.panics.store(false, Ordering::Relaxed);
            let (now, _) = request(insert(3), None, Ack::Written);
            let refused = running.desk.try_now(now).expect("nobody is at the desk");
            let (queued, reply) = request(insert(4), None, Ack::Written);
            if running.requests.send(queued).await.is_ok() {
                assert!(answer(reply).await.is_none());
            }
            drop(refused);
            running.requests.closed().await;
            assert!(running.desk.close().is_err());
            assert_eq!(disk.appended.lock().len(), 1);
            assert_eq!(running.published.load().at(), before.at());
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_waits_for_a_failed_disk_is_told_whenever_it_comes() {
        let running = start(SmallDisk::new());
        let wait = |index| {
            let (to, reply) = oneshot::channel();
            running.waiters.push(index, Reply::Sync(to));
            reply
        };
        let (early, beyond) = (wait(1), wait(2));
        running.waiters.release(1);
        assert_eq!(early.await, Ok(Ok(())));
        running.waiters.fail("broken");
        for reply in [beyond, wait(2), wait(3)] {
            let told = tokio::time::timeout(Duration::from_secs(10), reply).await.expect("told in time");
            assert_eq!(told.unwrap().unwrap_err().code, code::WRITE_CONCERN_FAILED);
        }
    }

    const LARGE: usize = 1 << 20;
    const COUNT: i32 = 12;

    /// A collection that keeps images, with large documents.
    fn large_documents(sequencer: &mut Sequencer) {
        let options = doc! { "changeStreamPreAndPostImages": { "enabled": true } };
        let (to, _) = oneshot::channel();
        let create = Definition::Create { ns: ns(), options };
        sequencer.carry_out([Request::Define(Box::new(create), Ack::Written, to)]);
        let index = doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": 0 };
        let (to, _) = oneshot::channel();
        let indexes = Definition::CreateIndexes { ns: ns(), specs: vec![index] };
        sequencer.carry_out([Request::Define(Box::new(indexes), Ack::Written, to)]);
        for id in 0..COUNT {
            let doc = doc! { "_id": id, "n": 0, "at": Value::DateTime(1), "text": "x".repeat(LARGE) };
            assert!(
                carried_out(sequencer, request(Statement::Insert { ns: ns(), doc }, None, Ack::Written))
                    .is_ok()
            );
        }
    }

    fn carried_out(
        sequencer: &mut Sequencer,
        (request, mut reply): (Request, WriteAnswer),
    ) -> Result<WriteReply> {
        sequencer.carry_out([request]);
        reply.try_recv().expect("a request that is carried out is answered")
    }

    fn increment(query: Doc, multi: bool) -> Statement {
        let update = doc! { "$inc": { "n": 1 } };
        let update = Update::parse(Value::Document(update.raw()), None, &Default::default()).unwrap();
        let filter = Filter::parse(query.raw(), &Default::default()).unwrap();
        let (sort, hint) = (None, None);
        let ns = ns();
        Statement::Update(Box::new(UpdateStatement { ns, filter, update, multi, upsert: false, sort, hint }))
    }

    fn one_by_one() -> Vec<Statement> {
        (0..COUNT).map(|id| increment(doc! { "_id": id }, false)).collect()
    }

    /// `n` of each document, in order.
    fn counts(state: &State) -> Vec<i64> {
        let collection = state.collection(&ns()).unwrap();
        collection.records().map(|(_, doc)| doc.get("n").unwrap().as_integer().unwrap()).collect()
    }

    fn write_request(statements: Vec<Statement>, retry: Option<Retry>) -> (Request, WriteAnswer) {
        let (to, reply) = oneshot::channel();
        let write = Write {
            statements,
            ordered: false,
            retry,
            ack: Ack::Written,
            bypass_validation: false,
            interrupt: None,
        };
        (Request::Write(Box::new(write), to), reply)
    }

    #[test]
    fn a_large_write_goes_into_the_log_in_parts() {
        let delete = || {
            let delete = DeleteStatement { ns: ns(), filter: Filter::all(), multi: true, hint: None };
            vec![Statement::Delete(Box::new(delete))]
        };
        for statements in [vec![increment(doc! {}, true)], one_by_one(), delete(), vec![]] {
            let disk = SmallDisk::new();
            let mut sequencer = sequencer(disk.clone());
            large_documents(&mut sequencer);
            let before = disk.appended.lock().len();
            if statements.is_empty() {
                let (reply, mut count) = oneshot::channel();
                let collection = sequencer.state.collection(&ns()).unwrap().info.number;
                sequencer.carry_out([Request::Expire {
                    collection,
                    index: "at_1".into(),
                    upto_ms: 2,
                    reply,
                }]);
                assert_eq!(count.try_recv(), Ok(COUNT as usize));
            } else {
                let reply = carried_out(&mut sequencer, write_request(statements, None)).unwrap();
                assert!(reply.results.iter().all(|result| result.is_ok()));
            }
            let sizes = disk.sizes(before);
            assert!(
                sizes.len() >= 3 && sizes.iter().all(|size| *size < BATCH_BYTES_MAX + 2 * LARGE),
                "{sizes:?}"
            );
            let counts_now = counts(&disk.replayed());
            assert_eq!(counts_now, counts(&sequencer.published.load()));
            assert!(counts_now.is_empty() || counts_now == [1; COUNT as usize]);
        }
    }

    #[test]
    fn a_large_write_that_is_refused_midway_fails_alone_and_is_not_done_twice() {
        let retry = Retry { session: bytes::Bytes::from_static(b"s"), number: 1, statements: vec![] };
        for (statements, retry) in [(vec![increment(doc! {}, true)], None), (one_by_one(), Some(retry))] {
            let disk = SmallDisk::new();
            let mut sequencer = sequencer(disk.clone());
            large_documents(&mut sequencer);
            disk.room.store(disk.appended.lock().len() + 1, Ordering::Relaxed);
            let (before, mut first) = request(insert(100), None, Ack::Written);
            let (large, mut refused) = write_request(statements, retry.clone());
            let (after, mut last) = request(insert(101), None, Ack::Written);
            sequencer.carry_out([before, large, after]);
            assert!(first.try_recv().unwrap().is_ok());
            assert_eq!(refused.try_recv().unwrap().unwrap_err().code, code::OUT_OF_DISK_SPACE);
            assert_eq!(last.try_recv().unwrap().unwrap_err().code, code::OUT_OF_DISK_SPACE);
            let (published, replayed) = (sequencer.published.load_full(), disk.replayed());
            let done = |state: &State| {
                let collection = state.collection(&ns()).unwrap();
                collection
                    .records()
                    .map(|(_, doc)| doc.get("n").and_then(|n| n.as_integer()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(done(&published), done(&replayed));
            let some = done(&published).iter().filter(|n| **n == Some(1)).count();
            assert!(some > 0 && some < COUNT as usize, "{some}");
            disk.room.store(usize::MAX, Ordering::Relaxed);
            if retry.is_some() {
                let again = carried_out(&mut sequencer, write_request(one_by_one(), retry)).unwrap();
                assert_eq!(again.retried.len(), some);
                let all = done(&sequencer.published.load());
                assert_eq!(all.iter().filter(|n| **n == Some(1)).count(), COUNT as usize);
            }
        }
    }

    #[test]
    fn statements_of_one_transaction_number_are_limited() {
        let mut sequencer = sequencer(SmallDisk::new());
        let retry = |first| Retry { session: b"s"[..].into(), number: 1, statements: vec![first] };
        let done = |first| Done { first, count: 1, result: Stored::Outcome(Outcome::Inserted) };
        let known = (1..STATEMENTS_MAX as i32).map(done).collect();
        sequencer.sessions.note(&retry(0), sequencer.clock.now_ms(), known, 0);
        let last = carried_out(&mut sequencer, request(insert(1), Some(retry(0)), Ack::Written));
        assert_eq!(last.unwrap().results, [Ok(Outcome::Inserted)]);
        let beyond = carried_out(&mut sequencer, request(insert(2), Some(retry(-1)), Ack::Written));
        assert_eq!(beyond.unwrap_err().code, code::BAD_VALUE);
        assert_eq!(sequencer.state.collection(&ns()).unwrap().len(), 1);
    }

    #[test]
    fn an_expiry_that_is_refused_midway_is_taken_up_again() {
        let disk = SmallDisk::new();
        let mut sequencer = sequencer(disk.clone());
        large_documents(&mut sequencer);
        let collection = sequencer.state.collection(&ns()).unwrap().info.number;
        let expire = |sequencer: &mut Sequencer| {
            let (reply, mut count) = oneshot::channel();
            sequencer.carry_out([Request::Expire { collection, index: "at_1".into(), upto_ms: 2, reply }]);
            count.try_recv().unwrap()
        };
        disk.room.store(disk.appended.lock().len() + 1, Ordering::Relaxed);
        assert_eq!(expire(&mut sequencer), 0);
        let left = counts(&sequencer.published.load()).len();
        assert_eq!(left, counts(&disk.replayed()).len());
        assert!(left > 0 && left < COUNT as usize);
        disk.room.store(usize::MAX, Ordering::Relaxed);
        assert_eq!(expire(&mut sequencer), left);
        assert!(counts(&disk.replayed()).is_empty());
    }
}
