//! What is wrong with a queue, in words: the checks an operator would make by hand, over any back end.
//!
//! Nothing is changed. Of each collection at most [`Limits::documents`] are read, oldest first; where there are more,
//! a finding says so. Ages go by this machine's clock and the senders'.

use crate::backend::{Backend, BackendResult, Find, Scope, Watch};
use crate::clock;
use crate::error::LookError;
use crate::migrate::MIGRATION_ID;
use crate::node::millis;
use crate::queue::{Catalog, is_lock, list};
use crate::requests::Requests;
use bson::{Bson, Document, doc};
use rockdove_messages::{
    DecodeError, Implementation, IndexDefinition, Layout, Lock, Message, Names, Participant, lock_indexes,
    message_indexes,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// A server's expiry runs at least this often (MongoDB: once a minute).
const EXPIRY_MS: i64 = 2 * 60_000;
/// How long a change stream may hold back its first reply.
const STREAM_WAIT: Duration = Duration::from_millis(500);

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Not as it should be.
    Warning,
    /// Messages do not arrive, or will not.
    Problem,
}

/// Which check found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Check {
    /// Whether the database has anything of the queue.
    Existence,
    /// Whether change streams can be opened.
    ChangeStreams,
    /// Who takes part, and with which layout.
    Participants,
    /// Whether messages wait that nobody takes.
    PilingTopics,
    /// Whether recipients are there.
    Recipients,
    /// Whether answers were taken.
    Answers,
    /// Whether requests were answered.
    Requests,
    /// Whether locks are held in vain.
    Locks,
    /// Whether indexes are there, expiry above all.
    Indexes,
    /// Whether expired documents go.
    Expiry,
    /// Whether all documents are messages.
    Documents,
}

/// Something found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Which check found it.
    pub check: Check,
    /// What is the case.
    pub text: String,
    /// What to do about it.
    pub advice: &'static str,
}

/// How far to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// A message that waits longer counts as stuck. What does not live longer is never found.
    pub patience: Duration,
    /// A participant without sign of life for this long is gone.
    pub participant_timeout: Duration,
    /// Most documents read per collection.
    pub documents: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(10),
            participant_timeout: Duration::from_secs(65),
            documents: 10_000,
        }
    }
}

/// What an examination found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Examination {
    /// The layouts found in use.
    pub layouts: Vec<Layout>,
    /// The collections looked at.
    pub collections: Vec<String>,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
}

impl Examination {
    /// The worst found.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// Examines a queue. Without a layout the one that its participants announce, or that its collections show.
pub async fn examine(
    backend: &dyn Backend,
    queue: &str,
    layout: Option<Layout>,
    limits: Limits,
) -> Result<Examination, LookError> {
    let names = Names::new(Layout::Standard, queue)?;
    let catalog = Catalog::read(backend).await?;
    let is_there = catalog.has(queue)?;
    let mut doctor = Doctor {
        backend,
        limits,
        catalog,
        now: clock::system_ms(),
        alive: BTreeSet::new(),
        newest: Vec::new(),
        found: Examination::default(),
    };
    if !is_there {
        doctor.nothing(&names);
        return Ok(doctor.found);
    }
    let announced = doctor.participants(&names).await?;
    let layouts = match layout {
        Some(layout) => vec![layout],
        None if !announced.is_empty() => announced,
        None => doctor.catalog.layouts_in_use(backend, queue).await?,
    };
    for layout in &layouts {
        doctor.layout(&Names::new(*layout, queue)?).await?;
    }
    doctor.nobody();
    doctor.found.layouts = layouts;
    doctor.found.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(doctor.found)
}

struct Doctor<'a> {
    backend: &'a dyn Backend,
    limits: Limits,
    catalog: Catalog,
    now: i64,
    /// Ids of the participants that are there.
    alive: BTreeSet<String>,
    /// The newest messages of all collections of the layout, [`Limits::documents`] of them.
    newest: Vec<Message>,
    found: Examination,
}

impl Doctor<'_> {
    fn find(&mut self, severity: Severity, check: Check, text: impl Into<String>, advice: &'static str) {
        self.found.findings.push(Finding { severity, check, text: text.into(), advice });
    }

    /// The layouts announced by participants that are there.
    async fn participants(&mut self, names: &Names) -> BackendResult<Vec<Layout>> {
        let found = self.backend.find(&names.participants(), Find::default()).await?;
        let all: Vec<Participant> = found.iter().filter_map(Participant::from_document).collect();
        let timeout = millis(self.limits.participant_timeout);
        let (fresh, stale): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| one.is_fresh(self.now, timeout));
        let mut by_implementation: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for one in &fresh {
            by_implementation.entry(one.implementation.to_string()).or_default().push(&one.id);
        }
        if by_implementation.len() > 1 {
            let list = by_implementation.iter().map(|(name, ids)| format!("{name} ({})", list(ids.iter())));
            let text = format!(
                "nodes of different layouts share the queue: {}",
                list.collect::<Vec<_>>().join("; ")
            );
            let advice = "they do not hear each other; run one layout on all nodes of the queue";
            self.find(Severity::Problem, Check::Participants, text, advice);
        }
        if !stale.is_empty() {
            let ids = list(stale.iter().map(|one| one.id.as_str()));
            let text = format!("announced, but without sign of life: {ids}");
            let advice = "they died or lost the network; other nodes remove the announcement in time";
            self.find(Severity::Note, Check::Participants, text, advice);
        }
        let layout = |one: &Participant| match one.implementation {
            Implementation::Known(layout) => Some(layout),
            Implementation::Unknown(_) => None,
        };
        let mut layouts: Vec<Layout> = Vec::new();
        for found in fresh.iter().filter_map(layout) {
            if !layouts.contains(&found) {
                layouts.push(found);
            }
        }
        self.alive = fresh.into_iter().map(|one| one.id).collect();
        Ok(layouts)
    }

    /// A queue without collections was never used.
    fn nothing(&mut self, names: &Names) {
        let text = format!("there is no queue {:?} in this database: it has no collections", names.queue());
        let advice = "nothing was ever sent there, or the name of the queue or database is another";
        self.find(Severity::Warning, Check::Existence, text, advice);
    }

    /// A queue without nodes is in order as long as nothing waits there.
    fn nobody(&mut self) {
        if !self.alive.is_empty() {
            return;
        }
        let waits = |finding: &Finding| matches!(finding.check, Check::PilingTopics | Check::Recipients);
        let severity = if self.found.findings.iter().any(waits) { Severity::Warning } else { Severity::Note };
        let advice = "start the nodes; nodes older than Morphium 6.3.1, and those that ignore the \
                      implementation check, do not announce themselves";
        self.find(severity, Check::Participants, "no node announces itself on this queue", advice);
    }

    /// All queues of a database share the collections of directed messages: their nodes are recipients, too.
    async fn neighbours(&mut self) -> Result<(), LookError> {
        let timeout = millis(self.limits.participant_timeout);
        for queue in self.catalog.queues() {
            let participants = Names::new(Layout::Standard, queue)?.participants();
            let found = self.backend.find(&participants, Find::default()).await?;
            let all = found.iter().filter_map(Participant::from_document);
            self.alive.extend(all.filter(|one| one.is_fresh(self.now, timeout)).map(|one| one.id));
        }
        Ok(())
    }

    async fn layout(&mut self, names: &Names) -> Result<(), LookError> {
        if names.layout() == Layout::MultiCollection {
            self.neighbours().await?;
            if let Some(text) = self.catalog.alike(names.queue())? {
                let advice = "name queues and topics so that no topic begins like another queue";
                self.find(Severity::Note, Check::Participants, text, advice);
            }
        }
        self.change_streams(names).await;
        let (messages, locks) = (self.catalog.messages(names)?, self.catalog.locks(names)?);
        for collection in &messages {
            self.collection(collection, (true, locks.contains(collection)), names).await?;
        }
        for collection in locks.iter().filter(|collection| !messages.contains(collection)) {
            self.collection(collection, (false, true), names).await?;
        }
        self.requests();
        Ok(())
    }

    async fn change_streams(&mut self, names: &Names) {
        let base = names.base();
        let scope = match names.layout() {
            Layout::MultiCollection => Scope::Database,
            Layout::Standard | Layout::DualChannel => Scope::Collection(&base),
        };
        let watch = Watch { pipeline: Vec::new(), resume_after: None, max_await: STREAM_WAIT };
        if let Err(error) = self.backend.watch(scope, watch).await {
            let advice = "nodes must poll (useChangeStream false), or the server must be a replica set, and the \
                          user allowed to open change streams";
            self.find(Severity::Problem, Check::ChangeStreams, format!("no change stream: {error}"), advice);
        }
    }

    /// Layouts share collections: whether nobody looked at this one yet.
    fn begin(&mut self, collection: &str) -> bool {
        let new = !self.found.collections.iter().any(|known| known == collection);
        if new {
            self.found.collections.push(collection.to_owned());
        }
        new
    }

    /// Looks at a collection that holds messages of the queue, or locks, or both. What else is in it is of another queue.
    async fn collection(
        &mut self,
        collection: &str,
        (has_messages, has_locks): (bool, bool),
        names: &Names,
    ) -> BackendResult<()> {
        if !self.begin(collection) {
            return Ok(());
        }
        // Locks have no timestamp: read together, they would come first.
        let limit = self.limits.documents;
        let find = |are_locks: bool, order: i32| Find {
            filter: doc! { "lock_id": { "$exists": are_locks } },
            sort: Some(doc! { "timestamp": order }),
            projection: Some(doc! { "msg": 0, "value": 0, "map_value": 0, "additional": 0 }),
            limit,
        };
        let mut locks = self.backend.find(collection, find(true, 1)).await?;
        let mut messages = self.backend.find(collection, find(false, 1)).await?;
        self.cut(collection, locks.len().max(messages.len()));
        let are_locks = has_locks && messages.iter().all(|document| is_lock(document, has_locks));
        let is_empty = locks.is_empty() && messages.is_empty();
        if are_locks {
            locks.append(&mut messages);
        }
        let mut strange = 0;
        // Java nodes make no indexes for the locks of this layout.
        let java_makes_none = names.layout() == Layout::MultiCollection;
        let of_locks = are_locks || !has_messages;
        let sets = match () {
            () if !of_locks => vec![message_indexes()],
            // What nothing is in may be either.
            () if is_empty && has_messages => vec![message_indexes(), lock_indexes()],
            () => vec![lock_indexes()],
        };
        self.indexes(collection, &sets, of_locks && java_makes_none).await?;
        if has_messages {
            let mut heap = Heap::default();
            let is_cut = messages.len() >= limit;
            for document in messages {
                self.message(document, collection, names, &mut heap);
            }
            if is_cut {
                let newest = self.backend.find(collection, find(false, -1)).await?.into_iter();
                let newest = newest.filter_map(|document| Message::from_document(document).ok());
                heap.read = newest.filter(|message| !is_strange(message, collection, names)).collect();
            }
            self.newest.append(&mut heap.read);
            self.newest.sort_by_key(|message| std::cmp::Reverse(message.timestamp));
            self.newest.truncate(self.limits.documents);
            strange += heap.strange;
            heap.report(self, collection, names);
        } else {
            strange += messages.len() as u64;
        }
        if has_locks {
            self.locks(collection, &locks);
        } else {
            strange += locks.len() as u64;
        }
        if strange > 0 {
            let text =
                format!("{collection} holds {} of another queue or topic", counted(strange, "document"));
            let advice = "its collection has the same name; name queues and topics so that none has `lck` in it or begins \
                          like another";
            self.find(Severity::Note, Check::Documents, text, advice);
        }
        Ok(())
    }

    fn cut(&mut self, collection: &str, read: usize) {
        if read >= self.limits.documents {
            let text = format!(
                "{collection} holds {} or more; only so many were looked at",
                counted(read as u64, "document")
            );
            let advice = "a queue is short when its messages are taken or expire; look at the other findings";
            self.find(Severity::Warning, Check::PilingTopics, text, advice);
        }
    }

    fn message(&self, document: Document, collection: &str, names: &Names, heap: &mut Heap) {
        let id = document.get("_id").cloned().unwrap_or(Bson::Null);
        if !matches!(id, Bson::ObjectId(_)) {
            heap.odd_ids += 1;
        }
        let message = match Message::from_document(document) {
            Ok(message) => message,
            Err(error) => {
                heap.unreadable += 1;
                heap.unreadable_why.get_or_insert(error);
                return;
            }
        };
        if is_strange(&message, collection, names) {
            heap.strange += 1;
            return;
        }
        self.judge(&message, heap);
        heap.read.push(message);
    }

    fn judge(&self, message: &Message, heap: &mut Heap) {
        if message.delete_at.is_some_and(|at| at.saturating_add(EXPIRY_MS) < self.now) {
            heap.overdue += 1;
            return;
        }
        let age = self.now.saturating_sub(message.timestamp);
        let stuck = age > millis(self.limits.patience) && !message.is_expired(self.now);
        if !stuck || !message.processed_by.is_empty() {
            return;
        }
        if message.is_answer() {
            heap.answers += 1;
        } else if message.is_broadcast() {
            let pile = heap.piles.entry(message.topic.clone()).or_default();
            pile.count += 1;
            pile.oldest_ms = pile.oldest_ms.max(age);
            pile.exclusive += u64::from(message.exclusive);
        } else {
            let missing = message.recipients.iter().filter(|id| !self.alive.contains(*id));
            let present = message.recipients.iter().filter(|id| self.alive.contains(*id));
            for id in missing {
                *heap.missing.entry(id.clone()).or_default() += 1;
            }
            for _ in present {
                let pile = heap.piles.entry(message.topic.clone()).or_default();
                pile.count += 1;
                pile.oldest_ms = pile.oldest_ms.max(age);
            }
        }
    }

    /// Whether requests that were processed got an answer. Those sent before the oldest answer that is there may have had one
    /// that has expired.
    fn requests(&mut self) {
        let newest = std::mem::take(&mut self.newest);
        let answers = newest.iter().filter(|message| message.is_answer());
        let Some(oldest) = answers.map(|answer| answer.timestamp).min() else { return };
        let mut open: BTreeMap<&str, u64> = BTreeMap::new();
        for request in Requests::default().unanswered(&newest) {
            let is_late = self.now.saturating_sub(request.timestamp) > millis(self.limits.patience);
            let is_known = request.timestamp >= oldest && !request.is_expired(self.now);
            if is_late && is_known && !request.processed_by.is_empty() {
                *open.entry(&request.topic).or_default() += 1;
            }
        }
        for (topic, count) in open {
            let text = match count {
                1 => format!("topic {topic}: 1 message was processed and got no answer, as others did"),
                count => {
                    format!("topic {topic}: {count} messages were processed and got no answer, as others did")
                }
            };
            let advice = "a listener failed or its node died after the mark, or it does not answer all: who asked waits in \
                          vain; look at the logs of the nodes that listen to the topic";
            self.find(Severity::Warning, Check::Requests, text, advice);
        }
    }

    /// Looks for one of the sets of indexes; if none is whole, the first is the one that is missed.
    async fn indexes(
        &mut self,
        collection: &str,
        sets: &[Vec<IndexDefinition>],
        may_be_none: bool,
    ) -> BackendResult<()> {
        let existing = self.backend.indexes(collection).await?;
        if may_be_none && existing.is_empty() {
            return Ok(());
        }
        let is_missing = |index: &&IndexDefinition| !existing.iter().any(|one| index.is_served_by(one));
        let missing: Vec<Vec<_>> =
            sets.iter().map(|wanted| wanted.iter().filter(is_missing).collect()).collect();
        let Some(missing) = missing.first().filter(|_| !missing.iter().any(Vec::is_empty)) else {
            return Ok(());
        };
        let expires = missing.iter().any(|index| index.expire_after_seconds.is_some());
        let text = format!("{collection} lacks the indexes {}", list(missing.iter().map(|index| index.name)));
        if expires {
            let advice = "without delete_at_1 nothing expires; a node that listens there makes the indexes at its start";
            self.find(Severity::Problem, Check::Indexes, text, advice);
        } else {
            let advice =
                "polls read the whole collection; a node that listens there makes the indexes at its start";
            self.find(Severity::Warning, Check::Indexes, text, advice);
        }
        Ok(())
    }

    fn locks(&mut self, collection: &str, documents: &[Document]) {
        // A migration keeps others away by a lock of its own, and is no node.
        let is_guard = |lock: &&Document| lock.get_str("_id").is_ok_and(|id| id == MIGRATION_ID);
        let guard = documents.iter().find(is_guard);
        let guarded_until = guard.and_then(|guard| guard.get_datetime("delete_at").ok());
        let is_migrated = guarded_until.is_some_and(|until| until.timestamp_millis() > self.now);
        if is_migrated {
            let text = "a migration of the queue is under way, or was killed less than a minute ago";
            let advice = "let it end; if it was killed, run the same `rockdove migrate` again: it goes on";
            self.find(Severity::Note, Check::Locks, text, advice);
        }
        let locks = documents.iter().filter(|lock| !is_guard(lock));
        let (mut overdue, mut eternal, mut orphaned) = (0_u64, 0_u64, BTreeMap::<String, u64>::new());
        for lock in locks.filter_map(Lock::from_document) {
            match lock.delete_at {
                Some(at) if at.saturating_add(EXPIRY_MS) < self.now => overdue += 1,
                None => eternal += 1,
                Some(_) => {}
            }
            let is_held = self.alive.contains(&lock.lock_id) || is_migrated && lock.lock_id == MIGRATION_ID;
            if lock.processed.is_none() && !is_held {
                *orphaned.entry(lock.lock_id).or_default() += 1;
            }
        }
        if overdue > 0 {
            let text = format!("{collection} holds {} that should have expired", counted(overdue, "lock"));
            let advice =
                "the server's expiry does not run, or the index delete_at_1 is missing; delete the locks";
            self.find(Severity::Problem, Check::Locks, text, advice);
        }
        if eternal > 0 {
            let text = format!("{collection} holds {} without expiry", counted(eternal, "lock"));
            let advice = "if their messages are not being processed, delete the locks";
            self.find(Severity::Warning, Check::Locks, text, advice);
        }
        if let Some(count) = orphaned.remove(MIGRATION_ID) {
            let text =
                format!("{collection} holds {} of a migration that was broken off", counted(count, "lock"));
            let advice = "run the same `rockdove migrate` again: it goes on with their messages";
            self.find(Severity::Warning, Check::Locks, text, advice);
        }
        if !orphaned.is_empty() {
            let text =
                format!("{collection} holds locks of nodes that are not there: {}", Counted(&orphaned));
            let advice = "a node that died keeps its messages until its locks expire; delete them to have the \
                          messages processed now";
            self.find(Severity::Warning, Check::Locks, text, advice);
        }
    }
}

#[derive(Default)]
struct Pile {
    count: u64,
    exclusive: u64,
    oldest_ms: i64,
}

/// What one collection's documents add up to.
#[derive(Default)]
struct Heap {
    piles: BTreeMap<String, Pile>,
    missing: BTreeMap<String, u64>,
    answers: u64,
    overdue: u64,
    unreadable: u64,
    unreadable_why: Option<DecodeError>,
    odd_ids: u64,
    /// Of another queue or topic whose collection has the same name.
    strange: u64,
    /// The messages of the queue.
    read: Vec<Message>,
}

impl Heap {
    fn report(self, doctor: &mut Doctor<'_>, collection: &str, names: &Names) {
        for (topic, pile) in &self.piles {
            let (count, seconds) = (pile.count, pile.oldest_ms / 1000);
            let kind = if pile.exclusive > 0 {
                format!(", {} of them exclusive", pile.exclusive)
            } else {
                String::new()
            };
            let text = format!(
                "topic {topic}: {} in {collection}{kind}, the oldest for {seconds} s",
                if count == 1 { "1 message waits".to_owned() } else { format!("{count} messages wait") }
            );
            let advice = "no node listens to the topic, its listeners fail, or its nodes hang: ask them what they listen to \
                          and do, on the topic morphium.status_info";
            doctor.find(Severity::Problem, Check::PilingTopics, text, advice);
        }
        if !self.missing.is_empty() {
            let text = format!(
                "{collection} holds messages for nodes that are not there: {}",
                Counted(&self.missing)
            );
            let advice = "sender ids are matched exactly, and a random one changes with each start; such messages expire";
            doctor.find(Severity::Problem, Check::Recipients, text, advice);
        }
        if self.answers > 0 {
            let text = format!("{collection} holds {} that nobody took", counted(self.answers, "answer"));
            let advice = match names.layout() {
                Layout::Standard => "their requesters had given up, are gone, or use another layout",
                _ => "their requesters had given up, or are gone",
            };
            doctor.find(Severity::Warning, Check::Answers, text, advice);
        }
        if self.overdue > 0 {
            let text =
                format!("{collection} holds {} that should have expired", counted(self.overdue, "message"));
            let advice = "the index delete_at_1 is missing, or the server's expiry does not run";
            doctor.find(Severity::Problem, Check::Expiry, text, advice);
        }
        if let Some(why) = self.unreadable_why {
            let documents = counted(self.unreadable, "document");
            let are = if self.unreadable == 1 { "is no message" } else { "are no messages" };
            let text = format!("{collection} holds {documents} that {are}: {why}");
            doctor.find(
                Severity::Problem,
                Check::Documents,
                text,
                "find out who writes them, and delete them",
            );
        }
        if self.odd_ids > 0 {
            let text =
                format!("{collection} holds {} whose _id is no ObjectId", counted(self.odd_ids, "message"));
            let advice = "one of them makes every poll of a Java node fail; delete them";
            doctor.find(Severity::Problem, Check::Documents, text, advice);
        }
    }
}

/// Whether it belongs in another collection: of another queue or topic.
fn is_strange(message: &Message, collection: &str, names: &Names) -> bool {
    message.is_broadcast() && names.broadcast(&message.topic) != collection
}

/// A number of things, in words, as findings say it.
pub fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

struct Counted<'a>(&'a BTreeMap<String, u64>);

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list(self.0.iter().map(|(name, count)| format!("{name} ({count})"))))
    }
}
