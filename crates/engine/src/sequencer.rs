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
//! * A reply is sent when its own acknowledgement level is reached, whatever the others in its batch wait for. Nobody
//!   waits here for it: it is left with the [`Waiters`], which the log's syncer and the sequencer itself ask.
//! * What has a value in a log with a risk policy is acknowledged within the policy's cap, whatever was asked for; a
//!   repetition, whose value was counted or not, only when all is on disk.
//! * One batch at a time: whoever holds the [`Desk`] is the sequencer. Its own thread does all work but that on a few
//!   single documents.
//! * A request's interrupt is asked while documents are looked for and computed, never while effects are applied.
//! * Ids, times and random values are fixed here; applying the effects again gives the same state.
//!
//! This module never touches a socket and never waits for a reader.

mod desk;
mod reply;

pub use desk::Desk;
pub use reply::Waiters;

use crate::clock::Clock;
use crate::collection::{CollectionInfo, Scratch};
use crate::command::{
    Ack, Acked, Definition, DefinitionReply, FindAndModify, FindAndModifyReply, Outcome, Owed, Receipt,
    Retry, Statement, Write, WriteError, WriteReply,
};
use crate::definition;
use crate::effects::{BatchEncoder, CollectionNumber, Effect, RecordNumber};
use crate::event::{Event, Uuid, key_of};
use crate::feed::Feed;
use crate::limits::{self, Disk, Memory, New, Reserve};
use crate::log::{CommitError, CommitLog, Worth};
use crate::multi::Portion;
use crate::namespace::Namespace;
use crate::prebuilt::Prebuilt;
use crate::rarely::Rarely;
use crate::risk::Valuation;
use crate::sessions::{self, Done, STATEMENTS_MAX, Sessions, Stored};
use crate::sighting::Sighting;
use crate::state::{self, State, describe};
use crate::statement;
use arc_swap::ArcSwap;
use reply::{Found, Pending, PortionDone, Reply};
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::{Doc, Error, Result, Timestamp, code};
use rockdove_journal::Level;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Most requests in one batch.
const BATCH_REQUESTS_MAX: usize = 512;
/// A batch is committed when its effects reach this size, also in the middle of a write: only its single effects
/// are atomic. One effect is at most a few documents, so that no batch comes near the log's limit for an entry.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// So it is when its values reach this sum, which one more document cannot take over what a u64 holds.
const BATCH_VALUE_MAX: u64 = 1 << 62;
/// One position of the log is remembered for so many bytes of it.
const MARK_BYTES: usize = 1 << 20;
/// How often silent sessions are looked for.
const SESSIONS_EVERY_MS: i64 = 60_000;

/// What the sequencer is asked.
pub enum Request {
    /// Carry out statements; if it is one about one document, that may have been looked for.
    Write(Box<Write>, Option<Box<Sighting>>, oneshot::Sender<Result<WriteReply>>),
    /// Change one document, which may have been looked for, and return it.
    FindAndModify(Box<FindAndModify>, Option<Box<Sighting>>, oneshot::Sender<Found>),
    /// Whether the statement of this number has been carried out.
    IsDone(Box<Retry>, i32, oneshot::Sender<bool>),
    /// Carry out a part of a statement.
    Portion(Box<Portion>, oneshot::Sender<PortionDone>),
    /// Change collections or indexes; some of the indexes may be built already.
    Define(Box<Definition>, Option<Box<Prebuilt>>, Ack, oneshot::Sender<Result<DefinitionReply>>),
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
    /// Write nothing, but reply once what is owed is reached; without it, once everything before is durable.
    Settle(Option<Owed>, oneshot::Sender<Result<Acked>>),
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
    reserve: Reserve,
    published: Arc<ArcSwap<State>>,
    log: Box<dyn CommitLog>,
    refused: Rarely,
    sessions: Sessions,
    feed: Arc<Feed>,
    clock: Clock,
    waiters: Arc<Waiters>,
    pub(crate) valuation: Valuation,
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
    replies: Vec<(Share, Reply)>,
    /// What its requests ask for together.
    worth: Worth,
    /// The request that is being carried out.
    under_way: UnderWay,
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
        self.encoder.size() >= BATCH_BYTES_MAX || self.worth.value >= BATCH_VALUE_MAX
    }

    /// A document of this value was stored.
    pub(crate) fn charge(&mut self, value: u64) {
        self.worth.value += value;
        self.under_way.value = self.under_way.value.saturating_add(value);
    }

    /// Something was found to be there already that has a value, perhaps from an earlier try of the same request.
    pub(crate) fn note_repetition(&mut self) {
        self.under_way.repeats = true;
    }

    /// The time of the next effect: no other has it.
    pub fn next_at(&self) -> Timestamp {
        self.encoder.next_at()
    }
}

/// What is known of a request while it is carried out.
#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    ack: Ack,
    /// What its documents are worth so far.
    value: u64,
    /// It repeats something that has a value.
    repeats: bool,
}

/// A request's part in its batch.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// When it is acknowledged.
    level: Level,
    /// What it asked for.
    asked: Level,
    value: u64,
    deferred: bool,
    /// What is waited for, if not this batch.
    index: Option<u64>,
}

impl Share {
    /// Of a request that has nothing to wait for.
    const NONE: Share =
        Share { level: Level::Async, asked: Level::Async, value: 0, deferred: false, index: None };
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
    pub waiters: Arc<Waiters>,
    pub memory: Arc<Memory>,
    pub disk: Arc<Disk>,
    pub valuation: Valuation,
}

impl Sequencer {
    /// A sequencer that goes on from there.
    pub fn new(start: Start) -> Sequencer {
        let mut state = start.state;
        state.tell_tiny(start.memory.counts_as_tiny());
        start.published.store(Arc::new(state.clone()));
        Sequencer {
            state,
            scratch: Scratch::default(),
            memory: start.memory,
            disk: start.disk,
            reserve: Reserve::default(),
            published: start.published,
            log: start.log,
            refused: Rarely::default(),
            sessions: start.sessions,
            feed: start.feed,
            clock: start.clock,
            waiters: start.waiters,
            valuation: start.valuation,
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
        let mut next = self.start_batch();
        next.under_way = batch.under_way;
        // What the request under way has done in this batch.
        let value = batch.under_way.value;
        batch.worth.largest = batch.worth.largest.max(value);
        batch.worth.level = batch.worth.level.stricter(self.level_of(&batch.under_way, value));
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
            Ok(()) => {
                self.waiters.release();
                // Everything is on disk: nothing waits any more, unless for other nodes.
                self.waiters.fail("the log was closed");
            }
            Err(reason) => self.waiters.fail(reason),
        }
        closed
    }

    /// Fails if something new of so many bytes is not to be stored in the collection, for lack of memory or disk.
    pub(crate) fn check_room(&mut self, ns: &Namespace, bytes: usize, batch: &Batch) -> Result<()> {
        let is_short = self.is_disk_short();
        if !is_short {
            self.reserve.restore();
        }
        let stored = self.stored_bytes();
        if !is_short && self.memory.takes_all(stored) {
            return Ok(());
        }
        let held = self.state.collection(ns).map_or(0, |there| state::weight(there));
        let new = New { bytes: bytes as u64, held, tiny: self.state.tiny_bytes() };
        self.memory.check(stored, new)?;
        let in_log = batch.encoder.size() as u64 + new.bytes;
        if is_short && !(self.memory.is_small(new) && self.reserve.has(in_log, self.log.room())) {
            return Err(limits::disk_is_short());
        }
        Ok(())
    }

    /// Fails if a change is refused for lack of memory or disk: one that makes `before` bytes `after`, with so many in the
    /// log.
    pub(crate) fn check_change(&self, before: usize, after: usize, in_log: usize) -> Result<()> {
        self.memory.check_growth(self.stored_bytes(), after.saturating_sub(before) as u64)?;
        if self.is_disk_short() && !limits::is_small_change(in_log as u64) {
            return Err(limits::disk_is_short());
        }
        Ok(())
    }

    /// Whether the disk is short, for a checkpoint or for the log.
    fn is_disk_short(&self) -> bool {
        self.disk.is_short() || self.log.is_short()
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
            worth: Worth::NONE,
            under_way: UnderWay::default(),
            pending: Sessions::default(),
            wall_ms,
            upto: self.state.at(),
            refused: None,
        }
    }

    fn evaluate(&mut self, request: Request, batch: &mut Batch) {
        batch.refused = None; // what it was is no matter of this request
        batch.under_way = UnderWay::default();
        match request {
            Request::Write(write, sighting, to) => {
                let begun = self.begin(write.ack, batch);
                let done = begun.and_then(|()| self.write(*write, sighting, batch));
                let share = self.share(done.is_ok(), batch);
                batch.replies.push((share, Reply::Write(to, done)));
            }
            Request::FindAndModify(command, sighting, to) => {
                let begun = self.begin(command.ack, batch).map_err(WriteError::from);
                let done = begun.and_then(|()| self.find_and_modify(*command, sighting, batch));
                let share = self.share(done.is_ok(), batch);
                batch.replies.push((share, Reply::FindAndModify(to, done)));
            }
            Request::IsDone(retry, number, to) => {
                // Another command under this number is told so by the command itself.
                let is_done = self.recall(&retry, number, batch).is_ok_and(|stored| stored.is_some());
                let _ = to.send(is_done); // who asks may have gone
            }
            Request::Portion(portion, to) => {
                let begun = self.begin(portion.ack, batch);
                let done = begun.map(|()| {
                    let result = statement::portion(self, &portion, batch);
                    (result, self.state.at(), Receipt::default())
                });
                let share = self.share(done.is_ok(), batch);
                batch.replies.push((share, Reply::Portion(to, done)));
            }
            Request::Define(definition, prebuilt, ack, to) => {
                self.scratch.prebuilt = prebuilt;
                let done =
                    self.begin(ack, batch).and_then(|()| definition::carry_out(self, *definition, batch));
                self.scratch.prebuilt = None;
                let share = self.share(done.is_ok(), batch);
                batch.replies.push((share, Reply::Define(to, done)));
            }
            Request::Expire { collection, index, upto_ms, reply } => {
                let count = statement::expire(self, collection, &index, upto_ms, batch);
                batch.replies.push((Share::NONE, Reply::Expired(reply, count)));
            }
            Request::Settle(owed, to) => {
                let share = match owed {
                    None => Share { level: Level::Sync, asked: Level::Sync, ..Share::NONE },
                    Some(Owed { index, level, asked, value }) => {
                        Share { level, asked, value, deferred: false, index: Some(index) }
                    }
                };
                batch.replies.push((share, Reply::Settled(to)));
            }
            Request::Checkpoint(to) => self.checkpoint(to, batch),
            Request::Stop(to) => drop(to), // the desk takes it before it comes here
        }
    }

    /// Takes up what a request asks for, or refuses what cannot be.
    fn begin(&self, ack: Ack, batch: &mut Batch) -> Result<()> {
        self.valuation.check(ack)?;
        batch.under_way.ack = ack;
        Ok(())
    }

    /// The part that a request has in its batch, now that it is carried out. One that failed as a whole waits for
    /// nothing, unless what it met may be from an earlier try of its own.
    fn share(&self, is_done: bool, batch: &mut Batch) -> Share {
        let under_way = std::mem::take(&mut batch.under_way);
        if !is_done && !under_way.repeats {
            return Share::NONE;
        }
        let Ack { value: given, level: asked, deferred } = under_way.ack;
        let value = under_way.value.max(given);
        batch.worth.value += value - under_way.value; // the documents' is counted there already
        batch.worth.largest = batch.worth.largest.max(value);
        let level = self.level_of(&under_way, value);
        batch.worth.level = batch.worth.level.stricter(level);
        Share { level, asked, value, deferred, index: None }
    }

    /// The level that a request has to reach: what it asks for, or more where there is a cap on what is at risk.
    fn level_of(&self, request: &UnderWay, value: u64) -> Level {
        let level = request.ack.level;
        if self.valuation.policy.is_none() || level.stricter(Level::Sync) == level {
            return level;
        }
        match level {
            _ if request.repeats => Level::Sync,
            Level::ReplicatedOrSync if value > 0 => Level::Sync, // it can come without the cap being asked
            Level::Async | Level::Replicated if value > 0 => Level::Risk,
            level => level,
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

    fn write(
        &mut self,
        write: Write,
        mut sighting: Option<Box<Sighting>>,
        batch: &mut Batch,
    ) -> Result<WriteReply> {
        if let Some(interrupt) = &write.interrupt {
            interrupt.check()?; // it may have waited for long
        }
        if let Some(retry) = &write.retry {
            self.check_numbers(retry, write.statements.len(), batch)?;
        }
        let mut results = Vec::with_capacity(write.statements.len());
        let (mut retried, mut done) = (Vec::new(), Vec::new());
        for (position, one) in write.statements.into_iter().enumerate() {
            let number = write.retry.as_ref().map(|retry| retry.number_of(position));
            if let (Some(retry), Some(number)) = (&write.retry, number)
                && let Some(stored) = self.recall(retry, number, batch)?
            {
                let Stored::Outcome(outcome) = stored else { return Err(other_command(retry)) };
                results.push(Ok(outcome));
                retried.push(number);
                if write.ack.value > 0 || one.may_have_value(&self.valuation) {
                    batch.note_repetition();
                }
                continue;
            }
            if one.is_multi() {
                // It may take several batches, and what is in the log shall be known there as done.
                self.remember(&write.retry, &mut done, batch)?;
            }
            let interrupt = write.interrupt.as_ref();
            let result = self.statement(one, write.bypass_validation, sighting.take(), interrupt, batch);
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
        Ok(WriteReply { results, retried, at: self.state.at(), receipt: Receipt::default() })
    }

    fn statement(
        &mut self,
        one: Statement,
        bypass: bool,
        sighting: Option<Box<Sighting>>,
        interrupt: Option<&Interrupt>,
        batch: &mut Batch,
    ) -> Result<Outcome, WriteError> {
        match one {
            Statement::Insert { ns, doc } => statement::insert(self, &ns, doc, bypass, batch),
            Statement::Update(update) => statement::update(self, &update, bypass, sighting, interrupt, batch),
            Statement::Delete(delete) => statement::delete(self, &delete, sighting, interrupt, batch),
            Statement::Refused(error) => Err(error.into()),
        }
    }

    fn find_and_modify(
        &mut self,
        command: FindAndModify,
        sighting: Option<Box<Sighting>>,
        batch: &mut Batch,
    ) -> Found {
        if let Some(interrupt) = &command.interrupt {
            interrupt.check()?;
        }
        if let Some(retry) = &command.retry {
            self.check_numbers(retry, 1, batch)?;
            match self.recall(retry, retry.number_of(0), batch)? {
                None => {}
                Some(Stored::Found { value, found, upserted }) => {
                    if command.ack.value > 0 || self.valuation.covers(&command.ns) {
                        batch.note_repetition();
                    }
                    let (at, receipt) = (self.state.at(), Receipt::default());
                    return Ok(FindAndModifyReply { value, found, upserted, retried: true, at, receipt });
                }
                Some(Stored::Outcome(_)) => return Err(other_command(retry).into()),
            }
        }
        let mut reply = statement::find_and_modify(self, &command, sighting, batch)?;
        if let Some(retry) = &command.retry {
            let (value, found, upserted) = (reply.value.clone(), reply.found, reply.upserted.clone());
            let mut done = Vec::new();
            sessions::push(&mut done, retry.number_of(0), Stored::Found { value, found, upserted });
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
        retry.check_distinct()?;
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
        ns.refuse_special()?;
        self.check_room(ns, options.bytes().len(), batch)?;
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
            let time_ns = u64::try_from(batch.wall_ms).unwrap_or_default() * 1_000_000;
            match self.log.append(&batch.encoder.parts(), time_ns, batch.worth) {
                Ok(index) => {
                    self.sessions.absorb(batch.pending);
                    self.sessions.shed(self.memory.records_max());
                    self.publish(index, size, batch.upto, batch.events);
                }
                Err(error) => failure = Some(self.take_back(error)),
            }
        }
        let mut is_pending = false;
        for (share, reply) in batch.replies {
            match &failure {
                // What it waits for was written before, and is not in the batch that was refused.
                _ if reply.only_waits() => is_pending |= self.answer(share, reply),
                Some(error) => reply.refuse(error),
                None => is_pending |= self.answer(share, reply),
            }
        }
        if is_pending {
            self.log.request_sync();
            // Their syncs may have come between.
            self.waiters.release();
        }
        self.expire_sessions(batch.wall_ms);
        failure
    }

    /// Sends a reply if its level is reached, or leaves it with those that wait; whether it did that.
    fn answer(&self, share: Share, reply: Reply) -> bool {
        let Share { level, asked, value, deferred, index } = share;
        if level == Level::Async {
            reply.send(Receipt::default());
            return false;
        }
        let index = index.unwrap_or(self.index);
        if deferred {
            let owed = Some(Owed { index, level, asked, value });
            reply.send(Receipt { owed, ..Receipt::default() });
            return false;
        }
        let mut pending = Pending { claim: self.log.claim(index, level, value), asked, reply };
        match pending.poll() {
            Some(acked) => pending.reply.send(Receipt { acked, owed: None }),
            None => {
                self.waiters.push(pending);
                return true;
            }
        }
        false
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
        if let Some(left_out) = self.refused.tell() {
            tracing::error!(%error, left_out, "a batch of writes was refused; this is told once a minute");
        }
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

#[cfg(test)]
mod acks;

#[cfg(test)]
mod room;

#[cfg(test)]
mod tests;
