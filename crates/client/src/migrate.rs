//! Taking a queue from the Standard layout to another one.
//!
//! Two ways. *Drain*: no node runs; everything that waits is moved, then the nodes start with the new layout.
//! *Bridge*: nodes change over one by one, and messages follow them:
//!
//! ```text
//!  Standard queue                                     MultiCollection queue
//!    broadcast ──────────── copied, marks too ───────► collection of its topic
//!    exclusive ──────────── moved, once listened to ─► collection of its topic
//!    directed, recipient changed over ── moved ──────► its own collection
//!    directed, recipient not ◄────────── moved ─────── its own collection
//! ```
//!
//! In the DualChannel layout broadcasts stay where they are and its nodes read what Standard nodes direct to them;
//! only the answers to Standard nodes are moved.
//!
//! Each step can be repeated, so a migration that was killed goes on where it was. An exclusive message is claimed as
//! by a node, copied parked (with a mark of the migration, which keeps consumers away), deleted at its origin, and
//! only then un-parked: at no moment can two nodes take it, and at no moment is it nowhere. Other messages are copied,
//! then settled at their origin. Should the migration be killed between those two, and the copy be processed and
//! removed at once, it is copied again when the migration goes on.
//!
//! A broadcast that a node marked in the old layout is marked in the new one, too, a moment later, so that the node does
//! not get it again when it changes over. Which copies are to be followed so, an interrupted bridge reads at the origin
//! when it goes on. Broadcasts of new nodes stay in the new layout.
//!
//! Not all nodes announce themselves: a drain asks before it begins, and a bridge all the time, who answers at the
//! origin.
//!
//! Order is kept per topic and priority. What is not safe to move stays and is counted: documents that are no
//! messages, exclusive messages for several recipients (one of them would process it before, each of them after), and
//! ids without collection.

use crate::backend::{Backend, BackendError, BackendErrorKind, BackendResult, Durability, Find, Updated};
use crate::bus::Bus;
use crate::clock;
use crate::error::ConnectError;
use crate::node::{CALL_RETRIES, Node, millis};
use crate::queue::Catalog;
use crate::registry;
use bson::{Bson, DateTime, Document, doc};
use rockdove_messages::status::DISCOVERY_TEXT;
use rockdove_messages::{
    ImplementationCheck, Layout, Lock, Message, MessageId, NameError, Names, Participant, Settings, filter,
    lock_expiry,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The node id of a migration, and the key of the lock that keeps a second one away.
pub const MIGRATION_ID: &str = "rockdove-migration";
/// That lock's life; it is prolonged so often, also within a pass.
const GUARD_MS: i64 = 60_000;
const GUARD_EVERY: Duration = Duration::from_secs(10);
/// Marks are followed and answers taken so often, also within a pass.
const KEEP_UP_EVERY: Duration = Duration::from_secs(1);
/// How long nodes of the old layout have for their answer.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// Asks for an answer that says only who is there.
const PING: &str = "PING";
/// Pause between two looks for it, before a drain.
const ANSWER_LOOK: Duration = Duration::from_millis(50);
/// A question's life, should it not be withdrawn; that of the answers is their senders' affair.
const QUESTION_LIFE: Duration = Duration::from_secs(30);
/// How long withdrawing what was asked may take, and then releasing it.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// Documents read at a time, and in one pass.
const PAGE: usize = 500;
const PASS_MAX: usize = 10_000;
/// A bridge is over after this many passes without Standard nodes and without anything to do.
const QUIET_PASSES: u32 = 20;

/// How to migrate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// All at once, while no node runs.
    Drain,
    /// Message by message, while nodes change over.
    Bridge,
}

/// Why a migration cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// There is no way to that layout.
    #[error("a queue can be migrated to multi-collection or dual-channel, not to standard")]
    Target,
    /// There is nothing to move all at once.
    #[error(
        "a drain is for multi-collection; for dual-channel nothing has to be moved at once: stop the nodes, and start them \
         with the new layout, or bridge"
    )]
    NothingToDrain,
    /// A drain while nodes run.
    #[error("nodes of the old layout are running: {0}; stop them, or use the bridge")]
    NodesRun(String),
    /// The database has nothing of the queue in the Standard layout.
    #[error("there is no queue {0:?} of the standard layout in this database; nothing was changed")]
    NoQueue(String),
    /// Another migration of this queue runs.
    #[error("another migration of this queue is running, or was killed less than a minute ago")]
    Running,
    /// The queue's name cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The bus to the new layout could not be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server refused, or could not be reached in time.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Where a migration stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Messages moved to the new layout so far.
    pub moved: u64,
    /// Broadcasts copied to it so far.
    pub copied: u64,
    /// Directed messages moved back to nodes that have not changed over.
    pub returned: u64,
    /// Messages that wait at their origin for somebody to take them, here or there.
    pub waiting: u64,
    /// Messages that are not safe to move, and documents that are no messages.
    pub left: u64,
    /// Running nodes of the old layout: those that announce themselves, and those that answered.
    pub old_nodes: Vec<String>,
    /// Running nodes of the new layout; to multi-collection also those that do not announce themselves.
    pub new_nodes: Vec<String>,
    /// Nothing remains to be done.
    pub done: bool,
}

/// A migration under way.
pub struct Migration {
    bus: Bus,
    from: Names,
    mode: Mode,
    /// Tells this run from others in the lock.
    run: String,
    progress: Progress,
    /// How many marks of each broadcast that is at the origin and was copied are copied, too.
    followed: HashMap<MessageId, usize>,
    kept_up_at: Option<Instant>,
    guard_at: Instant,
    question: Option<Question>,
    /// Who answered the last question that is over, without announcing itself; `None` before that.
    answered: Option<BTreeSet<String>>,
    quiet: u32,
}

/// A question to the nodes of the old layout that has not been withdrawn.
struct Question {
    id: MessageId,
    at: Instant,
    /// Who answered, and whether without announcing itself.
    answered: BTreeMap<String, bool>,
}

impl Question {
    /// What finds the answers, by an index.
    fn answers(&self, topic: &str) -> Document {
        doc! { "topic": topic, "in_answer_to": self.id.to_bson() }
    }
}

impl Migration {
    /// Checks that it is safe, and takes up what an earlier run left half done.
    pub async fn start(
        backend: Arc<dyn Backend>,
        queue: &str,
        to: Layout,
        mode: Mode,
    ) -> Result<Self, MigrateError> {
        match (to, mode) {
            (Layout::Standard, _) => return Err(MigrateError::Target),
            (Layout::DualChannel, Mode::Drain) => return Err(MigrateError::NothingToDrain),
            _ => {}
        }
        let from = Names::new(Layout::Standard, queue)?;
        if !Catalog::read(&*backend).await?.has_standard(queue)? {
            return Err(MigrateError::NoQueue(from.queue().to_owned()));
        }
        let settings = Settings {
            layout: to,
            queue: queue.to_owned(),
            sender_id: Some(MIGRATION_ID.to_owned()),
            implementation_check: ImplementationCheck::Ignore,
            status_info: false,
            registry: true,
            sweep_orphans: false,
            heartbeat_interval: Duration::from_secs(1),
            participant_timeout: Duration::from_secs(10),
            ..Settings::default()
        };
        let builder = Bus::with_backend(backend).settings(settings);
        let builder = if mode == Mode::Drain { builder.send_only() } else { builder };
        let bus = builder.connect().await?;
        let mut migration = Self {
            bus,
            from,
            mode,
            run: uuid::Uuid::new_v4().to_string(),
            progress: Progress::default(),
            followed: HashMap::new(),
            kept_up_at: None,
            guard_at: clock::now(),
            question: None,
            answered: None,
            quiet: 0,
        };
        match migration.prepare().await {
            Ok(()) => Ok(migration),
            Err(error) => {
                migration.stop().await;
                Err(error)
            }
        }
    }

    async fn prepare(&mut self) -> Result<(), MigrateError> {
        self.look_around().await?;
        self.refuse_nodes()?;
        self.guard().await?;
        // Writing the lock may have made the collection.
        self.node().index_locks(&self.from.locks("")).await;
        if self.mode == Mode::Drain {
            while self.answered.is_none() {
                self.ask().await?;
                self.refuse_nodes()?;
                tokio::time::sleep(ANSWER_LOOK).await;
            }
        }
        if self.bus.settings().layout == Layout::MultiCollection {
            self.resume().await?;
        }
        Ok(())
    }

    /// A drain is for queues whose nodes are stopped.
    fn refuse_nodes(&self) -> Result<(), MigrateError> {
        if self.mode == Mode::Drain && !self.progress.old_nodes.is_empty() {
            return Err(MigrateError::NodesRun(self.progress.old_nodes.join(", ")));
        }
        Ok(())
    }

    /// Where it stands.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Moves what can be moved now. Dropping the future in mid-work is safe.
    pub async fn pass(&mut self) -> Result<&Progress, MigrateError> {
        self.guard().await?;
        self.look_around().await?;
        self.refuse_nodes()?;
        if self.mode == Mode::Bridge {
            self.ask().await?;
        }
        let before = (self.progress.moved, self.progress.copied, self.progress.returned);
        (self.progress.waiting, self.progress.left) = (0, 0);
        if self.bus.settings().layout == Layout::MultiCollection {
            self.forward().await?;
        }
        self.keep_up().await?;
        if self.mode == Mode::Bridge {
            self.give_back().await?;
        }
        let busy = before != (self.progress.moved, self.progress.copied, self.progress.returned);
        self.progress.done = match self.mode {
            Mode::Drain => !busy && self.progress.waiting == 0,
            Mode::Bridge => {
                let over = !busy && self.progress.old_nodes.is_empty() && self.progress.waiting == 0;
                self.quiet = if over { self.quiet + 1 } else { 0 };
                self.quiet >= QUIET_PASSES && self.answered.is_some()
            }
        };
        if self.progress.done {
            self.follow_marks().await?;
        }
        Ok(&self.progress)
    }

    /// Ends it: another run may go on.
    pub async fn stop(self) {
        let (node, locks) = (self.node(), self.from.locks(""));
        if self.mode == Mode::Bridge {
            node.end_loops().await; // no further question is asked
            if let Err(error) = node.leaving(STOP_LIMIT, self.take_answers()).await {
                tracing::debug!(%error, "answers to the migration stay until they expire");
            }
        }
        if let Err(error) = node.leaving(STOP_LIMIT, self.withdraw()).await {
            tracing::debug!(%error, "the question to the nodes of the old layout stays until it expires");
        }
        self.bus.shutdown().await;
        // Last: who has the lock has the id, and what comes for it.
        let own = doc! { "_id": MIGRATION_ID, "lock_id": &self.run };
        if let Err(error) = node.leaving(STOP_LIMIT, node.backend.delete(&locks, own)).await {
            tracing::warn!(%error, "the migration's lock was not released; it expires within a minute");
        }
    }

    /// Withdraws what was asked, and removes the answers that came too late for it. Those to migrations of other queues may be
    /// in the same collection.
    async fn take_answers(&self) -> BackendResult<()> {
        let node = self.node();
        registry::withdraw(node, Duration::ZERO).await?;
        let answers = doc! { "recipients": MIGRATION_ID, "in_answer_to": { "$in": node.registry.asked() } };
        node.backend.delete(&node.mailbox, answers).await.map(drop)
    }

    fn node(&self) -> &Arc<Node> {
        self.bus.node()
    }

    /// Takes or prolongs the lock that keeps other migrations of the queue away.
    async fn guard(&mut self) -> Result<(), MigrateError> {
        self.guard_at = clock::now();
        let (node, locks) = (self.node(), self.from.locks(""));
        let until = DateTime::from_millis(node.now_ms() + GUARD_MS);
        let ours = doc! { "_id": MIGRATION_ID, "lock_id": &self.run };
        let set = doc! { "$set": { "lock_id": &self.run, "delete_at": until } };
        let stale =
            doc! { "_id": MIGRATION_ID, "delete_at": { "$lt": DateTime::from_millis(node.now_ms()) } };
        for filter in [ours.clone(), stale] {
            let update = || node.backend.update_one(&locks, filter.clone(), set.clone(), false);
            if node.retry(CALL_RETRIES, update).await?.matched > 0 {
                return Ok(());
            }
        }
        let mut lock = ours;
        lock.insert("delete_at", until);
        if self.insert(&locks, lock).await? { Ok(()) } else { Err(MigrateError::Running) }
    }

    /// Between two messages, because a pass may take long, and after them.
    async fn keep_up(&mut self) -> Result<(), MigrateError> {
        self.keep_guard().await?;
        if self.kept_up_at.is_some_and(|at| clock::since(at) < KEEP_UP_EVERY) {
            return Ok(());
        }
        if self.mode == Mode::Bridge {
            self.ask().await?;
        }
        self.follow_marks().await?;
        self.kept_up_at = Some(clock::now());
        Ok(())
    }

    async fn keep_guard(&mut self) -> Result<(), MigrateError> {
        if clock::since(self.guard_at) >= GUARD_EVERY { self.guard().await } else { Ok(()) }
    }

    /// Asks at the origin who is there, and takes the answers. Who answered a question counts until the next one is over.
    /// In the DualChannel layout nodes of the new one hear the question, too, and answer elsewhere.
    async fn ask(&mut self) -> Result<(), MigrateError> {
        let mut silent = BTreeSet::new();
        if let Some(question) = &mut self.question {
            let find = Find {
                filter: question.answers(&self.bus.settings().status_info_topic),
                projection: Some(doc! { "sender": 1 }),
                ..Find::default()
            };
            let answers = self.bus.node().backend.find(&self.from.base(), find).await?;
            for id in answers.iter().filter_map(|answer| answer.get_str("sender").ok()) {
                let was_silent = || self.answered.as_ref().is_some_and(|before| before.contains(id));
                let is_silent = || !self.progress.old_nodes.iter().any(|known| known == id) || was_silent();
                question.answered.entry(id.to_owned()).or_insert_with(is_silent);
            }
            let is_silent = question.answered.iter().filter(|(_, is_silent)| **is_silent);
            silent.extend(is_silent.map(|(id, _)| id.clone()));
        }
        let Progress { old_nodes, new_nodes, .. } = &mut self.progress;
        for id in self.answered.iter().flatten().chain(&silent) {
            if !old_nodes.contains(id) && !new_nodes.contains(id) {
                old_nodes.push(id.clone());
            }
        }
        match &self.question {
            None => self.question = Some(self.put_question().await?),
            Some(question) if clock::since(question.at) >= ANSWER_WAIT => {
                self.withdraw().await?;
                (self.question, self.answered) = (None, Some(silent));
            }
            Some(_) => {}
        }
        Ok(())
    }

    async fn put_question(&self) -> BackendResult<Question> {
        let node = self.node();
        let (id, now) = (MessageId::generate(), node.now_ms());
        let mut question = Message::new(node.settings.status_info_topic.clone())
            .with_id(id.clone())
            .msg(DISCOVERY_TEXT)
            .value(PING)
            .ttl(QUESTION_LIFE)
            .delete_at_ms(now.saturating_add(millis(QUESTION_LIFE)));
        (question.sender, question.timestamp) = (MIGRATION_ID.to_owned(), now);
        question.sender_host = Some(node.host.clone());
        self.copy(&self.from.base(), question.to_document()).await?;
        Ok(Question { id, at: clock::now(), answered: BTreeMap::new() })
    }

    /// Removes the question and the answers to it.
    async fn withdraw(&self) -> BackendResult<()> {
        let Some(question) = &self.question else { return Ok(()) };
        let (node, base) = (self.node(), self.from.base());
        self.delete(&base, &question.id).await?;
        for collection in BTreeSet::from([&base, &node.mailbox]) {
            let answers = question.answers(&node.settings.status_info_topic);
            node.backend.delete(collection, answers).await?;
        }
        Ok(())
    }

    /// Who runs.
    async fn look_around(&mut self) -> BackendResult<()> {
        let node = self.bus.node();
        let found = node.backend.find(&self.from.participants(), Find::default()).await?;
        let timeout = millis(Settings::default().participant_timeout);
        let fresh: Vec<_> = found
            .iter()
            .filter_map(Participant::from_document)
            .filter(|one| one.is_fresh(node.now_ms(), timeout))
            .collect();
        let of = |layout: Layout| -> Vec<String> {
            let same = fresh.iter().filter(|one| one.implementation.to_string() == layout.implementation());
            same.map(|one| one.id.clone()).collect()
        };
        let (old_nodes, mut new_nodes) = (of(Layout::Standard), of(node.names.layout()));
        // In the DualChannel layout nodes of either answer.
        if node.names.layout() == Layout::MultiCollection {
            let silent = node.registry.active().into_iter().filter(|id| !new_nodes.contains(id));
            new_nodes.extend(silent.collect::<Vec<_>>());
        }
        (self.progress.old_nodes, self.progress.new_nodes) = (old_nodes, new_nodes);
        Ok(())
    }

    /// Un-parks what an earlier run had deleted at its origin but not yet un-parked, and drops its locks: marks
    /// protect what it had begun. Collections of other queues may begin alike; what a migration of theirs has parked is
    /// known by its topic.
    async fn resume(&mut self) -> BackendResult<()> {
        let node = self.bus.node();
        node.backend.delete(&self.from.locks(""), doc! { "lock_id": MIGRATION_ID }).await?;
        let parked = doc! { "exclusive": true, "processed_by": MIGRATION_ID };
        let origin = self.from.base();
        // Whose marks were copied is not known.
        let copied = Find {
            filter: doc! { "processed_by": MIGRATION_ID, "exclusive": { "$ne": true } },
            projection: Some(doc! { "_id": 1 }),
            ..Find::default()
        };
        let copied = node.backend.find(&origin, copied).await?;
        let ids = copied.iter().filter_map(|document| document.get("_id").and_then(MessageId::from_bson));
        self.followed = ids.map(|id| (id, 0)).collect();
        for collection in node.backend.collections(&node.names.broadcast("")).await? {
            let find = Find {
                filter: parked.clone(),
                projection: Some(doc! { "topic": 1, "name": 1, "processed_by": 1 }),
                ..Find::default()
            };
            let found = node.backend.find(&collection, find).await?;
            for message in found.into_iter().filter_map(|document| Message::from_document(document).ok()) {
                let Some(id) = message.id.filter(|_| node.names.broadcast(&message.topic) == collection)
                else {
                    continue;
                };
                let still = Find { filter: filter::by_id(&id), limit: 1, ..Find::default() };
                if node.backend.find(&origin, still).await?.is_empty() {
                    self.unpark(&collection, &id).await?;
                }
            }
        }
        Ok(())
    }

    /// Moves and copies what is at the origin, in order.
    async fn forward(&mut self) -> Result<(), MigrateError> {
        let mut seen: Vec<Bson> = Vec::new();
        while seen.len() < PASS_MAX {
            let find = Find {
                filter: doc! { "$and": [
                    { "_id": { "$nin": &seen } },
                    { "$or": [ { "exclusive": true }, { "processed_by": { "$ne": MIGRATION_ID } } ] },
                ] },
                sort: Some(filter::poll_sort()),
                limit: PAGE,
                ..Find::default()
            };
            let page = self.node().backend.find(&self.from.base(), find).await?;
            let last = page.len() < PAGE;
            for document in page {
                seen.push(document.get("_id").cloned().unwrap_or(Bson::Null));
                self.keep_up().await?;
                self.forward_one(document).await?;
            }
            if last {
                break;
            }
        }
        Ok(())
    }

    async fn forward_one(&mut self, document: Document) -> Result<(), MigrateError> {
        let Ok(message) = Message::from_document(document.clone()) else {
            self.progress.left += 1;
            return Ok(());
        };
        let Some(id) = message.id.clone() else { return Ok(()) };
        // What has expired is left to the server, and so is what a migration asked that was killed, and what it was told.
        let is_told = !message.is_broadcast() && message.recipients.iter().all(|id| id == MIGRATION_ID);
        if message.is_expired(self.node().now_ms()) || message.sender == MIGRATION_ID || is_told {
            return Ok(());
        }
        match (message.is_broadcast(), message.exclusive) {
            (true, false) => self.forward_broadcast(&id, &message, document).await,
            (true, true) => self.forward_exclusive(&id, &message, document).await,
            (false, true) if message.recipients.len() > 1 => {
                self.progress.left += u64::from(message.processed_by.is_empty());
                Ok(())
            }
            (false, _) => self.forward_directed(&id, &message, document).await,
        }
    }

    async fn forward_broadcast(
        &mut self,
        id: &MessageId,
        message: &Message,
        document: Document,
    ) -> Result<(), MigrateError> {
        let target = self.node().names.broadcast(&message.topic);
        if self.copy(&target, document).await? {
            self.followed.insert(id.clone(), message.processed_by.len());
        } else {
            self.copy_marks(id, message).await?; // what an earlier run copied may lack them
        }
        if self.mode == Mode::Drain {
            self.delete(&self.from.base(), id).await?;
            self.progress.moved += 1;
        } else {
            self.update(&self.from.base(), filter::by_id(id), filter::mark(MIGRATION_ID)).await?;
            self.progress.copied += 1;
        }
        Ok(())
    }

    async fn forward_exclusive(
        &mut self,
        id: &MessageId,
        message: &Message,
        mut document: Document,
    ) -> Result<(), MigrateError> {
        let ours = message.processed_by == [MIGRATION_ID];
        if !message.processed_by.is_empty() && !ours {
            return Ok(()); // processed, or parked by others
        }
        let is_listened = || self.bus.known_nodes().iter().any(|node| node.topics.contains(&message.topic));
        if !ours && self.mode == Mode::Bridge && !is_listened() {
            self.progress.waiting += 1;
            return Ok(());
        }
        if !self.claim(id, message).await? {
            self.progress.waiting += 1;
            return Ok(());
        }
        let origin = self.from.base();
        let marked = self.update(&origin, filter::unmarked(id), filter::mark(MIGRATION_ID)).await?;
        if ours || marked.matched > 0 {
            let target = self.node().names.broadcast(&message.topic);
            document.insert("processed_by", vec![MIGRATION_ID]);
            self.copy(&target, document).await?;
            self.delete(&origin, id).await?;
            self.unpark(&target, id).await?;
            self.progress.moved += 1;
        }
        let own = filter::own_lock(id, MIGRATION_ID);
        let locks = self.from.locks("");
        self.node().retry(CALL_RETRIES, || self.node().backend.delete(&locks, own.clone())).await?;
        Ok(())
    }

    async fn forward_directed(
        &mut self,
        id: &MessageId,
        message: &Message,
        document: Document,
    ) -> Result<(), MigrateError> {
        let (mut open, mut unmappable) = (0, 0);
        for recipient in message.recipients.iter().filter(|id| !message.is_processed_by(id)) {
            let Ok(target) = self.node().names.directed(recipient) else {
                unmappable += 1;
                continue;
            };
            let is_in = |nodes: &[String]| nodes.contains(recipient);
            let changed = is_in(&self.progress.new_nodes) && !is_in(&self.progress.old_nodes);
            if self.mode == Mode::Bridge && !changed {
                open += 1;
                continue;
            }
            let mut copy = document.clone();
            copy.insert("recipients", vec![recipient]);
            copy.insert("processed_by", Bson::Array(Vec::new()));
            self.copy(&target, copy).await?;
            self.update(&self.from.base(), filter::by_id(id), filter::mark(recipient)).await?;
            self.progress.moved += 1;
        }
        if self.mode == Mode::Drain && unmappable == 0 {
            self.delete(&self.from.base(), id).await?;
        }
        self.progress.waiting += u64::from(open > 0);
        self.progress.left += u64::from(unmappable > 0);
        Ok(())
    }

    /// A node that changes over has marked broadcasts in the old layout: their copies are marked, too.
    async fn follow_marks(&mut self) -> Result<(), MigrateError> {
        let ids: Vec<_> = self.followed.keys().cloned().collect();
        for page in ids.chunks(PAGE) {
            self.keep_guard().await?;
            let find = Find {
                filter: doc! { "_id": { "$in": page.iter().map(MessageId::to_bson).collect::<Vec<_>>() } },
                projection: Some(doc! { "topic": 1, "name": 1, "processed_by": 1 }),
                ..Find::default()
            };
            let found = self.node().backend.find(&self.from.base(), find).await?;
            let mut found: HashMap<_, _> = found
                .into_iter()
                .filter_map(|document| Message::from_document(document).ok())
                .filter_map(|message| Some((message.id.clone()?, message)))
                .collect();
            for id in page {
                match found.remove(id) {
                    Some(message) => {
                        self.keep_guard().await?;
                        self.copy_marks(id, &message).await?;
                    }
                    None => drop(self.followed.remove(id)), // expired
                }
            }
        }
        Ok(())
    }

    async fn copy_marks(&mut self, id: &MessageId, message: &Message) -> BackendResult<()> {
        let marks: Vec<_> = message.processed_by.iter().filter(|node| *node != MIGRATION_ID).collect();
        let (count, known) = (marks.len(), self.followed.get(id).copied().unwrap_or(0));
        if known < count {
            let target = self.node().names.broadcast(&message.topic);
            let mark = doc! { "$addToSet": { "processed_by": { "$each": marks } } };
            self.update(&target, filter::by_id(id), mark).await?;
        }
        self.followed.insert(id.clone(), count);
        Ok(())
    }

    /// Moves what was directed to a node that has not changed over to where it reads.
    async fn give_back(&mut self) -> Result<(), MigrateError> {
        let names = self.node().names.clone();
        let remaining: BTreeSet<_> = self
            .progress
            .old_nodes
            .iter()
            .filter(|id| !self.progress.new_nodes.contains(id))
            .cloned()
            .collect();
        let mut mailboxes: BTreeMap<String, Vec<&String>> = BTreeMap::new();
        for id in &remaining {
            if let Ok(mailbox) = names.directed(id) {
                mailboxes.entry(mailbox).or_default().push(id);
            }
        }
        for (mailbox, ids) in mailboxes {
            let find = Find {
                filter: doc! { "recipients": { "$in": &ids }, "processed_by.0": { "$exists": false } },
                sort: Some(filter::poll_sort()),
                limit: PAGE,
                ..Find::default()
            };
            for document in self.node().backend.find(&mailbox, find).await? {
                self.keep_up().await?;
                let Some(id) = document.get("_id").and_then(MessageId::from_bson) else { continue };
                self.insert(&self.from.base(), document).await?;
                self.delete(&mailbox, &id).await?;
                self.progress.returned += 1;
            }
        }
        Ok(())
    }

    /// Locks an exclusive message at its origin. A lock of an earlier run is ours.
    async fn claim(&self, id: &MessageId, message: &Message) -> BackendResult<bool> {
        let delete_at = Some(lock_expiry(Layout::Standard, message, self.node().now_ms()));
        let lock = Lock { id: id.clone(), delete_at, lock_id: MIGRATION_ID.to_owned(), processed: None };
        let locks = self.from.locks("");
        if self.insert(&locks, lock.to_document()).await? {
            return Ok(true);
        }
        let find = Find { filter: filter::own_lock(id, MIGRATION_ID), limit: 1, ..Find::default() };
        Ok(!self.node().backend.find(&locks, find).await?.is_empty())
    }

    /// Inserts a copy, whose collection gets its indexes. False when an earlier run did.
    async fn copy(&self, target: &str, document: Document) -> BackendResult<bool> {
        let is_new = self.insert(target, document).await?;
        self.node().index_messages(target).await;
        Ok(is_new)
    }

    /// False when a document with this id exists.
    async fn insert(&self, target: &str, document: Document) -> BackendResult<bool> {
        let node = self.node();
        let insert = || node.backend.insert(target, std::slice::from_ref(&document), Durability::Majority);
        match node.retry(CALL_RETRIES, insert).await?.into_iter().next() {
            None => Ok(true),
            Some(failure) if failure.error.kind() == BackendErrorKind::DuplicateKey => Ok(false),
            Some(failure) => Err(failure.error),
        }
    }

    async fn unpark(&self, target: &str, id: &MessageId) -> BackendResult<()> {
        let parked = doc! { "_id": id.to_bson(), "processed_by": MIGRATION_ID };
        self.update(target, parked, filter::unmark(MIGRATION_ID)).await.map(drop)
    }

    async fn update(&self, target: &str, filter: Document, update: Document) -> BackendResult<Updated> {
        let node = self.node();
        let call = || node.backend.update_one(target, filter.clone(), update.clone(), false);
        node.retry(CALL_RETRIES, call).await
    }

    async fn delete(&self, target: &str, id: &MessageId) -> BackendResult<u64> {
        let node = self.node();
        node.retry(CALL_RETRIES, || node.backend.delete(target, filter::by_id(id))).await
    }
}
