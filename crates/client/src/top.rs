//! What goes on in the queues of a database, looked at again and again from outside: over any back end, without changing
//! anything.
//!
//! What is stored is read with each [`sample`](Monitor::sample): of each collection at most [`Limits::documents`] that
//! nobody marked, in the order of the index, and as many of the newest; of at most [`Limits::collections`]
//! collections of a queue. Where there is more, a note says so. Rates come from a change stream over the collections, so
//! they are exact, and are not there on a server without. Ages go by this machine's clock and the senders'.
//!
//! A database's queues are known by their collections of participants. One whose nodes never announced themselves is
//! seen only when it is named.

use crate::backend::{
    Backend, BackendError, BackendErrorKind, BackendResult, Change, ChangeEvent, Feed, Find, Scope, Watch,
};
use crate::clock;
use crate::error::LookError;
use crate::migrate::MIGRATION_ID;
use crate::node::millis;
use crate::queue::{Catalog, is_lock, list};
use crate::requests::Requests;
use bson::{Bson, Document, doc};
use parking_lot::Mutex;
use rockdove_messages::{Implementation, Layout, Lock, Message, MessageId, NameError, Names, Participant};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// How long a change stream may hold back a reply.
const STREAM_WAIT: Duration = Duration::from_secs(1);
/// Messages that wait for their mark, and those that got it since the last look began, remembered of a queue; of either so
/// many.
const REMEMBERED_MAX: usize = 100_000;
/// Topics shown of a queue.
const TOPICS_MAX: usize = 1000;

/// How far to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most documents of each kind read of a collection.
    pub documents: usize,
    /// Most collections of messages, and of locks, read of a queue.
    pub collections: usize,
    /// A participant without sign of life for this long is gone.
    pub participant_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { documents: 1000, collections: 100, participant_timeout: Duration::from_secs(65) }
    }
}

/// What goes on with a topic.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Messages that nobody marked and that are not past their life, answers apart.
    pub waiting: u64,
    /// Those of them that are exclusive.
    pub exclusive: u64,
    /// The age of the oldest of them, ms.
    pub oldest_ms: Option<i64>,
    /// Messages sent per second; `None` without a change stream.
    pub sent: Option<f64>,
    /// Messages per second that got their first mark, or were removed before they expired.
    pub done: Option<f64>,
    /// The time from the sending of a message to that, ms, the mean since the last sample.
    pub lag_ms: Option<i64>,
    /// Requests without an answer: messages on a topic on which others were answered.
    pub unanswered: u64,
    /// Answers that nobody took.
    pub untaken: u64,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// What it announces.
    pub announced: Participant,
    /// Whether it gave a sign of life lately.
    pub alive: bool,
    /// The locks it holds.
    pub locks: u64,
}

/// What goes on in a queue.
#[derive(Clone, PartialEq, Debug)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Whether the database has anything of it.
    pub is_there: bool,
    /// The layouts in use.
    pub layouts: Vec<Layout>,
    /// Its topics, by name.
    pub topics: Vec<Topic>,
    /// Its nodes, by id.
    pub nodes: Vec<Node>,
    /// Locks held on exclusive messages.
    pub locks: u64,
    /// What is not as exact as it looks.
    pub notes: Vec<String>,
}

/// What goes on at a moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// When, ms since the epoch by this machine's clock.
    pub at_ms: i64,
    /// The queues, by name.
    pub queues: Vec<Queue>,
}

/// Looks at queues.
pub struct Monitor {
    backend: Arc<dyn Backend>,
    /// `None` = all of the database.
    queue: Option<String>,
    layout: Option<Layout>,
    limits: Limits,
    followed: BTreeMap<String, Followed>,
}

impl Monitor {
    /// Looks at one queue, or at all of the database; without a layout at what nodes announce or collections show.
    pub fn new(
        backend: Arc<dyn Backend>,
        queue: Option<String>,
        layout: Option<Layout>,
        limits: Limits,
    ) -> Self {
        Self { backend, queue, layout, limits, followed: BTreeMap::new() }
    }

    /// Looks. Rates are those since the sample before; the first one begins to count. After an error that is
    /// [transient](LookError::is_transient) the next look may succeed; its rates may miss what a failed one had counted.
    pub async fn sample(&mut self) -> Result<Sample, LookError> {
        let catalog = Catalog::read(&*self.backend).await?;
        let names = self.queue.as_ref().map_or_else(|| catalog.queues().to_vec(), |name| vec![name.clone()]);
        self.followed.retain(|name, _| names.contains(name));
        let mut queues = Vec::new();
        for name in &names {
            queues.push(self.look(name, &catalog).await?);
        }
        Ok(Sample { at_ms: clock::system_ms(), queues })
    }

    /// Looks at a queue, among all that the database is known to have.
    async fn look(&mut self, name: &str, catalog: &Catalog) -> Result<Queue, LookError> {
        let shared = Names::new(Layout::Standard, name)?;
        let backend = self.backend.clone();
        let mut queue = Queue {
            name: shared.queue().to_owned(),
            is_there: catalog.has(name)?,
            layouts: Vec::new(),
            topics: Vec::new(),
            nodes: self.nodes(&shared).await?,
            locks: 0,
            notes: Vec::new(),
        };
        if !queue.is_there {
            self.followed.remove(name);
            queue.notes.push(
                "there is no such queue in this database; it is shown as soon as it is there".to_owned(),
            );
            return Ok(queue);
        }
        queue.layouts = match self.layout {
            Some(layout) => vec![layout],
            None => announced(&queue.nodes),
        };
        if queue.layouts.is_empty() {
            queue.layouts = catalog.layouts_in_use(&*backend, name).await?;
        }
        if queue.layouts.contains(&Layout::MultiCollection) {
            queue.notes.extend(strangers(&queue.name, catalog.queues())?);
            queue.notes.extend(catalog.alike(name)?);
        }
        // Layouts share collections.
        let (mut messages, mut locks) = (BTreeSet::new(), BTreeSet::new());
        for layout in &queue.layouts {
            let names = Names::new(*layout, name)?;
            messages.extend(catalog.messages(&names)?);
            locks.extend(catalog.locks(&names)?);
        }
        let messages = self.some_of(messages, "messages", &mut queue.notes);
        for collection in self.some_of(locks, "locks", &mut queue.notes) {
            self.locks(&collection, &mut queue).await?;
        }
        let followed = self.followed.entry(name.to_owned()).or_default();
        // Before the documents are read: what comes in between is counted, and known already.
        let counted = followed.counts(&backend, &messages, &mut queue.notes).await;
        let mut heap = Heap { now: clock::system_ms(), ..Heap::default() };
        for collection in &messages {
            let (waiting, newest) = read(&*backend, collection, self.limits.documents).await?;
            for (what, documents) in [("wait", &waiting), ("are stored", &newest)] {
                if documents.len() >= self.limits.documents {
                    let count = documents.len();
                    queue.notes.push(format!(
                        "{count} messages or more {what} in {collection}; the others are not read"
                    ));
                }
            }
            waiting.into_iter().for_each(|message| heap.waits(message));
            newest.into_iter().for_each(|message| heap.is_stored(message));
        }
        queue.topics = heap.topics(&mut followed.state.lock(), counted);
        Ok(queue)
    }

    /// As many collections as are to be read.
    fn some_of(&self, all: BTreeSet<String>, what: &str, notes: &mut Vec<String>) -> Vec<String> {
        let limit = self.limits.collections;
        if all.len() > limit {
            notes.push(format!("{limit} of {} collections of {what} are read", all.len()));
        }
        all.into_iter().take(limit).collect()
    }

    async fn nodes(&self, names: &Names) -> BackendResult<Vec<Node>> {
        let find = Find { limit: self.limits.documents, ..Find::default() };
        let found = self.backend.find(&names.participants(), find).await?;
        let (now, timeout) = (clock::system_ms(), millis(self.limits.participant_timeout));
        let all = found.iter().filter_map(Participant::from_document);
        let node =
            |announced: Participant| Node { alive: announced.is_fresh(now, timeout), announced, locks: 0 };
        let mut nodes: Vec<_> = all.map(node).collect();
        nodes.sort_by(|one, other| one.announced.id.cmp(&other.announced.id));
        Ok(nodes)
    }

    /// Locks of messages that are removed already do not count (see `lane/kept.rs`), nor does a migration's own.
    async fn locks(&self, collection: &str, queue: &mut Queue) -> BackendResult<()> {
        let filter = doc! { "processed": null, "_id": { "$ne": MIGRATION_ID } };
        let find = Find { filter, limit: self.limits.documents, ..Find::default() };
        let found = self.backend.find(collection, find).await?;
        if found.len() >= self.limits.documents {
            queue
                .notes
                .push(format!("{} locks or more in {collection}; the others are not read", found.len()));
        }
        let locks = found.iter().filter(|document| is_lock(document, true));
        for lock in locks.filter_map(Lock::from_document) {
            queue.locks += 1;
            if let Some(node) = queue.nodes.iter_mut().find(|node| node.announced.id == lock.lock_id) {
                node.locks += 1;
            }
        }
        Ok(())
    }
}

/// The layouts of the nodes that are there.
fn announced(nodes: &[Node]) -> Vec<Layout> {
    let mut layouts = Vec::new();
    for node in nodes.iter().filter(|node| node.alive) {
        if let Implementation::Known(layout) = node.announced.implementation
            && !layouts.contains(&layout)
        {
            layouts.push(layout);
        }
    }
    layouts
}

/// A note about the other queues, with which this one shares collections in the MultiCollection layout.
fn strangers(queue: &str, all: &[String]) -> Result<Option<String>, NameError> {
    let all = all.iter().map(|other| Ok(Names::new(Layout::MultiCollection, other)?.queue().to_owned()));
    let mut others = all.collect::<Result<Vec<_>, NameError>>()?;
    others.retain(|other| other != queue);
    let note = || format!("directed messages and answers may be of other queues: {}", list(others.iter()));
    Ok((!others.is_empty()).then(note))
}

/// What nobody marked, and the newest.
async fn read(
    backend: &dyn Backend,
    collection: &str,
    limit: usize,
) -> BackendResult<(Vec<Message>, Vec<Message>)> {
    let find = |filter, sort| Find {
        filter,
        sort,
        projection: Some(doc! { "msg": 0, "value": 0, "map_value": 0, "additional": 0 }),
        limit,
    };
    // By equality, which an index serves; its order is that of delivery, and asked for it would be read to its end.
    let unmarked = doc! { "processed_by": { "$in": [Bson::Array(vec![]), Bson::Null] } };
    let waiting = backend.find(collection, find(unmarked, None)).await?;
    let newest = backend.find(collection, find(Document::new(), Some(doc! { "timestamp": -1 }))).await?;
    let decode =
        |all: Vec<Document>| all.into_iter().filter_map(|one| Message::from_document(one).ok()).collect();
    Ok((decode(waiting), decode(newest)))
}

/// What a change stream counted of a topic.
#[derive(Clone, Copy, Default)]
struct Count {
    sent: u64,
    done: u64,
    lag_ms: i64,
}

/// A message that waits for its first mark.
struct Awaited {
    topic: String,
    timestamp: i64,
    delete_at: Option<i64>,
}

/// What is remembered of a queue.
#[derive(Default)]
struct State {
    counts: BTreeMap<String, Count>,
    awaited: HashMap<MessageId, Awaited>,
    /// What was marked or removed since the counts were taken, with its topic if that was known.
    gone: HashMap<MessageId, Option<String>>,
    /// There was no room for some.
    overflowed: bool,
    requests: Requests,
    /// Why the stream ended.
    error: Option<BackendError>,
    /// Where the stream is to go on.
    token: Option<Bson>,
    /// Counts the streams; events of earlier ones are too late.
    streams: u64,
}

impl State {
    fn await_mark(&mut self, message: &Message) {
        let Some(id) = &message.id else { return };
        if !message.processed_by.is_empty() {
            return;
        }
        if self.awaited.len() >= REMEMBERED_MAX && !self.awaited.contains_key(id) {
            self.overflowed = true;
            return;
        }
        let (timestamp, delete_at) = (message.timestamp, message.delete_at);
        self.awaited.insert(id.clone(), Awaited { topic: message.topic.clone(), timestamp, delete_at });
    }

    /// What is stored may have got its mark after it was read; then it would wait for ever.
    fn await_stored(&mut self, message: &Message) {
        if self.gone.len() >= REMEMBERED_MAX {
            // The next look comes back to it.
            self.overflowed = true;
        } else if message.id.as_ref().is_some_and(|id| !self.gone.contains_key(id)) {
            self.await_mark(message);
        }
    }

    fn note_gone(&mut self, id: MessageId, topic: Option<String>) {
        if self.gone.len() < REMEMBERED_MAX {
            self.gone.entry(id).or_insert(topic);
        }
    }

    fn note_answer(&mut self, answer: &Message) {
        let Some(request) = &answer.in_answer_to else { return };
        let waits = self.awaited.get(request).map(|awaited| &awaited.topic);
        if let Some(topic) = waits.or_else(|| self.gone.get(request)?.as_ref()) {
            self.requests.note_topic(topic);
        }
        self.requests.note_answer(request);
    }

    fn count(&mut self, topic: &str) -> Option<&mut Count> {
        if self.counts.len() >= TOPICS_MAX && !self.counts.contains_key(topic) {
            return None;
        }
        Some(self.counts.entry(topic.to_owned()).or_default())
    }

    fn event(&mut self, event: ChangeEvent, now: i64) {
        match (event.change, event.id) {
            (Change::Insert, _) => {
                let Some(Ok(message)) = event.document.map(Message::from_document) else { return };
                self.note_answer(&message);
                self.await_mark(&message);
                if let Some(count) = self.count(&message.topic) {
                    count.sent += 1;
                }
            }
            (Change::Update | Change::Delete, Some(id)) => {
                let awaited = self.awaited.remove(&id);
                self.note_gone(id, awaited.as_ref().map(|awaited| awaited.topic.clone()));
                let Some(awaited) = awaited else { return };
                let expired = awaited.delete_at.is_some_and(|at| at <= now);
                if event.change == Change::Delete && expired {
                    return;
                }
                if let Some(count) = self.count(&awaited.topic) {
                    count.done += 1;
                    count.lag_ms = count.lag_ms.saturating_add(now.saturating_sub(awaited.timestamp));
                }
            }
            _ => {}
        }
    }
}

/// A queue whose change stream is followed.
#[derive(Default)]
struct Followed {
    state: Arc<Mutex<State>>,
    /// The collections of the stream, the task that reads it, and since when it counts.
    stream: Option<(Vec<String>, Reading, Instant)>,
}

/// Ends its task when dropped.
struct Reading(AbortHandle);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Followed {
    /// What was counted since the last time, and in which time; `None` without a stream, which is then opened.
    async fn counts(
        &mut self,
        backend: &Arc<dyn Backend>,
        collections: &[String],
        notes: &mut Vec<String>,
    ) -> Option<(BTreeMap<String, Count>, f64)> {
        let now = clock::now();
        let (counts, error) = {
            let mut state = self.state.lock();
            if state.overflowed {
                notes.push(format!(
                    "more than {REMEMBERED_MAX} messages wait, or were done during a look; what is done is not all \
                     counted"
                ));
                state.overflowed = false;
            }
            // What is gone by now is not shown as waiting by what is read from now on.
            state.gone.clear();
            (std::mem::take(&mut state.counts), state.error.take())
        };
        let counted = self.stream.as_mut().map(|(_, _, since)| {
            let time = now.saturating_duration_since(std::mem::replace(since, now));
            (counts, time.as_secs_f64())
        });
        if let Some(error) = &error {
            notes.push(format!("the change stream broke: {error}"));
        }
        let stands = self.stream.as_ref().is_some_and(|(known, ..)| known == collections) && error.is_none();
        if !stands && !collections.is_empty() {
            self.stream = None;
            let (number, token) = {
                let mut state = self.state.lock();
                state.streams += 1;
                (state.streams, state.token.take())
            };
            let lost = |error: &BackendError| error.kind() == BackendErrorKind::HistoryLost;
            let mut feed = Err(BackendError::new(BackendErrorKind::HistoryLost, "begin now"));
            if token.is_some() {
                feed = open(&**backend, collections, token).await;
            }
            if feed.as_ref().err().is_some_and(lost) {
                self.state.lock().awaited.clear();
                feed = open(&**backend, collections, None).await;
            }
            match feed {
                Ok(feed) => {
                    let task = tokio::spawn(follow(feed, self.state.clone(), number));
                    self.stream = Some((collections.to_vec(), Reading(task.abort_handle()), now));
                }
                Err(error) => {
                    notes.push(format!("no rates, because there is no change stream: {error}"));
                }
            }
        }
        counted.filter(|_| error.is_none())
    }
}

async fn open(
    backend: &dyn Backend,
    collections: &[String],
    resume_after: Option<Bson>,
) -> BackendResult<Box<dyn Feed>> {
    let of_messages = doc! { "$match": {
        "ns.coll": { "$in": collections },
        "operationType": { "$in": ["insert", "update", "delete"] },
    } };
    let without_payload = doc! { "$project": {
        "fullDocument.msg": 0, "fullDocument.value": 0, "fullDocument.map_value": 0, "fullDocument.additional": 0,
    } };
    let pipeline = vec![of_messages, without_payload];
    backend.watch(Scope::Database, Watch { pipeline, resume_after, max_await: STREAM_WAIT }).await
}

async fn follow(mut feed: Box<dyn Feed>, state: Arc<Mutex<State>>, number: u64) {
    loop {
        let next = feed.next().await;
        let mut state = state.lock();
        if state.streams != number {
            return;
        }
        match next {
            Ok(Some(event)) => state.event(event, clock::system_ms()),
            Ok(None) => {}
            Err(error) => {
                state.error = Some(error);
                return;
            }
        }
        state.token = feed.resume_token();
    }
}

/// What the stored messages of a queue add up to.
#[derive(Default)]
struct Heap {
    now: i64,
    topics: BTreeMap<String, Topic>,
    waiting: Vec<Message>,
    stored: Vec<Message>,
}

impl Heap {
    fn topic(&mut self, name: &str) -> &mut Topic {
        let topic = || Topic { name: name.to_owned(), ..Topic::default() };
        self.topics.entry(name.to_owned()).or_insert_with(topic)
    }

    fn waits(&mut self, message: Message) {
        if message.is_expired(self.now) {
            return;
        }
        let age = self.now.saturating_sub(message.timestamp);
        let topic = self.topic(&message.topic);
        if message.is_answer() {
            topic.untaken += 1;
        } else {
            topic.waiting += 1;
            topic.exclusive += u64::from(message.exclusive);
            topic.oldest_ms = Some(topic.oldest_ms.unwrap_or(0).max(age));
        }
        self.waiting.push(message);
    }

    fn is_stored(&mut self, message: Message) {
        if !message.is_expired(self.now) {
            self.topic(&message.topic);
            self.stored.push(message);
        }
    }

    fn topics(mut self, state: &mut State, counted: Option<(BTreeMap<String, Count>, f64)>) -> Vec<Topic> {
        self.stored.iter().for_each(|message| state.note_answer(message));
        let topics: Vec<_> =
            state.requests.unanswered(&self.stored).iter().map(|message| message.topic.clone()).collect();
        topics.iter().for_each(|topic| self.topic(topic).unanswered += 1);
        std::mem::take(&mut self.waiting).iter().for_each(|message| state.await_stored(message));
        if let Some((counts, seconds)) = counted {
            for topic in counts.keys() {
                self.topic(topic);
            }
            for topic in self.topics.values_mut() {
                let count = counts.get(&topic.name).copied().unwrap_or_default();
                let rate = |number: u64| Some(if seconds > 0.0 { number as f64 / seconds } else { 0.0 });
                (topic.sent, topic.done) = (rate(count.sent), rate(count.done));
                topic.lag_ms = i64::try_from(count.done).ok().and_then(|done| count.lag_ms.checked_div(done));
            }
        }
        self.topics.into_values().take(TOPICS_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> Message {
        let mut message = Message::new("t");
        message.id = Some(MessageId::generate());
        message
    }

    fn event(change: Change, message: &Message) -> ChangeEvent {
        let document = (change == Change::Insert).then(|| message.to_document());
        ChangeEvent { change, collection: "msg".to_owned(), id: message.id.clone(), document }
    }

    /// What a look adds that read these as waiting.
    fn read(state: &mut State, messages: &[Message]) {
        let mut heap = Heap::default();
        messages.iter().for_each(|message| heap.waits(message.clone()));
        heap.topics(state, None);
    }

    #[test]
    fn what_was_read_before_its_mark_does_not_wait_for_another() {
        let (mut state, known, unknown) = (State::default(), waiting(), waiting());
        read(&mut state, std::slice::from_ref(&known));
        for message in [&known, &unknown] {
            state.event(event(Change::Update, message), 1);
        }
        read(&mut state, &[known.clone(), unknown]);
        assert!(state.awaited.is_empty());
        state.event(event(Change::Delete, &known), 2);
        assert_eq!(state.counts["t"].done, 1);
    }

    #[test]
    fn what_is_remembered_of_marks_is_bounded() {
        let (mut state, message) = (State::default(), waiting());
        for _ in 0..=REMEMBERED_MAX {
            state.note_gone(MessageId::generate(), None);
        }
        assert_eq!(state.gone.len(), REMEMBERED_MAX);
        read(&mut state, &[message]);
        assert!(
            state.awaited.is_empty() && state.overflowed,
            "it may be one of those that there was no room for"
        );
    }

    #[test]
    fn an_answer_tells_the_topic_of_its_request() {
        let (mut state, request) = (State::default(), waiting());
        let mut answer = waiting();
        (answer.topic, answer.in_answer_to) = ("other".to_owned(), request.id.clone());
        state.event(event(Change::Insert, &request), 1);
        state.event(event(Change::Delete, &request), 1);
        state.event(event(Change::Insert, &answer), 1);
        assert_eq!(*state.requests.topics(), BTreeSet::from(["t".to_owned()]));
    }
}
