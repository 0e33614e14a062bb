//! The distinct pipelines that change streams follow, and which of them an event may concern.
//!
//! ```text
//! scope (namespace) ─► view (what of the documents is shown) ─► groups, found by what they need of an event
//! ```
//!
//! Streams of one scope, view and pipeline are one group. An event is put together and scanned once for each
//! view. Most pipelines need some field to have one of a few values ([`EventPipeline::needs`]): these are found
//! by the event's own values, so that what cannot match costs nothing. Only the others are asked one by one.
//! A pipeline that may take long is not asked here at all: its streams are woken, and ask it themselves.
//!
//! Invariants
//! * A group that an event's values do not lead to would have left the event out.
//! * Events are remembered in the log's order, within limits; only a few of them longer than the ring has them.

use crate::event::{Change, Event, View, invalidate};
use crate::namespace::Namespace;
use parking_lot::Mutex;
use rockdove_documents::filter::Alternatives;
use rockdove_documents::key::encode_key;
use rockdove_documents::path::{Found as At, Leaves, Path};
use rockdove_documents::{Doc, Error, Result, Scanned, Timestamp, Value};
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How many events a group remembers for its streams; what is older they read from the ring.
const GROUP_EVENTS_MAX: usize = 4096;
/// How many bytes of them, unless the newest alone is larger.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// How many bytes of those that the ring has dropped: a slow stream of a quiet pipeline gets its events however busy
/// the others are.
const GROUP_BYTES_KEPT: usize = 64 << 10;
/// `complete_after` of a group that is never given an event.
const NOTHING_KNOWN: Timestamp = Timestamp { time: u32::MAX, increment: u32::MAX };
/// Most events that a group tells at once.
pub const CHUNK: usize = 512;

/// What part of the server a stream follows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// One collection.
    Collection(Namespace),
    /// All collections of a database.
    Database(String),
    /// Everything.
    Cluster,
}

/// What a stream does with an event: the stages after `$changeStream`.
pub trait EventPipeline: Send + Sync {
    /// The event as the stages leave it; `None` if they leave it out.
    fn apply(&self, event: &Scanned<'_>) -> Result<Option<Doc>>;

    /// Whether [`EventPipeline::apply`] takes little time for sure. What may take long is not evaluated where others
    /// wait for it, but by each stream for itself.
    fn is_cheap(&self) -> bool;

    /// Lists of equalities: an event that the stages let through has at least one of each list. Events without
    /// are not even offered.
    fn needs(&self) -> Vec<Alternatives<'_>> {
        Vec::new()
    }
}

/// Which events two streams share: equal keys are evaluated once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct GroupKey {
    pub scope: Scope,
    pub view: View,
    pub stages: bytes::Bytes,
}

/// All groups.
#[derive(Default)]
pub struct Groups {
    scopes: HashMap<Scope, HashMap<View, Bucket>>,
}

/// The groups of one scope and view.
#[derive(Default)]
struct Bucket {
    groups: Vec<Arc<Group>>,
    by_stages: HashMap<bytes::Bytes, usize>,
    /// Those that any event may concern.
    unbound: Vec<usize>,
    /// Those whose streams look at every event themselves.
    dear: Vec<usize>,
    /// Paths where the others need a value.
    paths: Vec<Path>,
    /// The others by what they need: number of the path, encoded value.
    bound: HashMap<Vec<u8>, Vec<usize>, foldhash::fast::RandomState>,
    /// Length of the longest key of `bound`.
    longest: usize,
}

/// One distinct pipeline and the events it let through lately.
pub struct Group {
    key: GroupKey,
    pipeline: Arc<dyn EventPipeline>,
    is_cheap: bool,
    /// How many streams follow it.
    streams: AtomicUsize,
    pub matched: Mutex<Matched>,
    pub news: Notify,
}

pub struct Matched {
    events: VecDeque<Found>,
    /// Bytes of `events`.
    bytes: usize,
    /// Everything later than this that matched is in `events`.
    pub complete_after: Timestamp,
}

/// An event that concerns a stream: what to deliver, and whether the stream ends with it.
#[derive(Clone)]
pub struct Found {
    pub at: Timestamp,
    pub doc: Result<Option<Doc>>,
    pub invalidate: Option<Doc>,
}

impl Groups {
    /// The group for `key` with one stream more; one that is made starts behind `complete_after`.
    pub fn join(
        &mut self,
        key: GroupKey,
        pipeline: Arc<dyn EventPipeline>,
        complete_after: Timestamp,
    ) -> Arc<Group> {
        let bucket = self.scopes.entry(key.scope.clone()).or_default().entry(key.view).or_default();
        let group = match bucket.by_stages.get(&key.stages) {
            Some(known) => bucket.groups[*known].clone(),
            None => {
                let is_cheap = pipeline.is_cheap();
                let complete_after = if is_cheap { complete_after } else { NOTHING_KNOWN };
                let matched = Mutex::new(Matched { events: VecDeque::new(), bytes: 0, complete_after });
                let (streams, news) = (AtomicUsize::new(0), Notify::new());
                let group = Arc::new(Group { key, pipeline, is_cheap, streams, matched, news });
                bucket.add(group.clone());
                group
            }
        };
        group.streams.fetch_add(1, Ordering::Relaxed);
        group
    }

    /// Lets go of the groups that no stream follows any more.
    pub fn sweep(&mut self) {
        self.scopes.retain(|_, views| {
            views.retain(|_, bucket| {
                bucket.sweep();
                !bucket.groups.is_empty()
            });
            !views.is_empty()
        });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// All groups.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.scopes.values().flat_map(HashMap::values).flat_map(|bucket| &bucket.groups)
    }

    /// Gives an event to all groups that it concerns and adds these to `news`.
    pub fn deliver(&self, event: &Event, epoch: u32, news: &mut Vec<Arc<Group>>) {
        let mut scopes = vec![
            Scope::Collection(event.ns.clone()),
            Scope::Database(event.ns.database().to_string()),
            Scope::Cluster,
        ];
        if let Change::Rename { to, .. } = &event.change
            && *to != event.ns
        {
            scopes.push(Scope::Collection(to.clone()));
        }
        for scope in &scopes {
            let Some(views) = self.scopes.get(scope).filter(|_| scope.contains(event)) else { continue };
            for (view, bucket) in views.iter().filter(|(view, _)| event.is_visible(view)) {
                bucket.deliver(&Prepared::new(event, scope, view, epoch), news);
            }
        }
    }
}

/// An event for the streams of one scope and view.
struct Prepared {
    at: Timestamp,
    doc: Result<Doc>,
    invalidate: Option<Doc>,
}

impl Prepared {
    fn new(event: &Event, scope: &Scope, view: &View, epoch: u32) -> Prepared {
        let invalidate = scope.end_after(event, epoch);
        Prepared { at: event.at, doc: event.document(view, epoch), invalidate }
    }

    fn scan(&self) -> Result<Scanned<'_>> {
        self.doc.as_ref().map(Scanned::new).map_err(Clone::clone)
    }
}

impl Bucket {
    fn add(&mut self, group: Arc<Group>) {
        let number = self.groups.len();
        if !group.is_cheap() {
            self.dear.push(number);
            self.by_stages.insert(group.key.stages.clone(), number);
            self.groups.push(group);
            return;
        }
        // The list that few events meet: types of operation and names are common, and so is what is missing.
        let common = |path: &Path| matches!(path.parts()[0].name(), "operationType" | "ns");
        let rating = |list: &Alternatives<'_>| {
            let vague = list.iter().any(|(path, value)| common(path) || *value == Value::Null);
            (vague, list.len())
        };
        let needs =
            group.pipeline.needs().into_iter().filter(|list| list.iter().all(|need| is_simple(need.1)));
        match needs.min_by_key(rating) {
            None => self.unbound.push(number),
            Some(list) => {
                for (path, value) in list {
                    let known = self.paths.iter().position(|known| known == path);
                    let path = known.unwrap_or_else(|| {
                        self.paths.push(path.clone());
                        self.paths.len() - 1
                    });
                    let mut key = Vec::new();
                    need(path, value, &mut key);
                    self.longest = self.longest.max(key.len());
                    let places = self.bound.entry(key).or_default();
                    if places.last() != Some(&number) {
                        places.push(number);
                    }
                }
            }
        }
        self.by_stages.insert(group.key.stages.clone(), number);
        self.groups.push(group);
    }

    fn sweep(&mut self) {
        if self.groups.iter().all(|group| group.is_followed()) {
            return;
        }
        let groups = std::mem::take(self).groups;
        groups.into_iter().filter(|group| group.is_followed()).for_each(|group| self.add(group));
    }

    fn deliver(&self, event: &Prepared, news: &mut Vec<Arc<Group>>) {
        let (Ok(doc), None) = (&event.doc, &event.invalidate) else {
            // What ends a stream or fails is for all.
            let scanned = event.scan();
            return (0..self.groups.len())
                .for_each(|number| self.offer(number, event, scanned.as_ref(), news));
        };
        let scanned = Scanned::new(doc);
        let mut numbers = self.unbound.clone();
        self.find_bound(&scanned, &mut numbers);
        news.extend(self.dear.iter().map(|number| self.groups[*number].clone()));
        for number in numbers {
            self.offer(number, event, Ok(&scanned), news);
        }
    }

    /// Adds the groups that need a value which the event has, each once.
    fn find_bound(&self, event: &Scanned<'_>, numbers: &mut Vec<usize>) {
        let unbound = numbers.len();
        let mut key = Vec::new();
        for (number, path) in self.paths.iter().enumerate() {
            let visit = &mut |at: At<'_>| {
                let value = at.value.unwrap_or(Value::Null);
                if is_simple(value) && bytes_at_least(value) <= self.longest {
                    key.clear();
                    need(number, value, &mut key);
                    numbers.extend(self.bound.get(&key).into_iter().flatten());
                }
                ControlFlow::<()>::Continue(())
            };
            let _ = event.for_each_value(path, Leaves::Elements, visit); // nothing breaks it
        }
        numbers[unbound..].sort_unstable();
        numbers.dedup(); // no number is in both parts
    }

    fn offer(
        &self,
        number: usize,
        event: &Prepared,
        scanned: Result<&Scanned<'_>, &Error>,
        news: &mut Vec<Arc<Group>>,
    ) {
        let group = &self.groups[number];
        if !group.is_cheap() {
            return news.push(group.clone());
        }
        if let Some(found) = group.judge(event, scanned) {
            group.remember(found);
            news.push(group.clone());
        }
    }
}

/// Whether a value is looked up: documents and arrays as a whole would cost what they are long.
fn is_simple(value: Value<'_>) -> bool {
    !matches!(value, Value::Document(_) | Value::Array(_) | Value::CodeWithScope { .. })
}

/// A length that an encoded value has at least.
fn bytes_at_least(value: Value<'_>) -> usize {
    match value {
        Value::String(text) | Value::Symbol(text) | Value::Code(text) => text.len(),
        Value::Binary { bytes, .. } => bytes.len(),
        _ => 0,
    }
}

/// Writes what a value at a path is looked up by: equal values have equal bytes.
fn need(path: usize, value: Value<'_>, key: &mut Vec<u8>) {
    key.extend_from_slice(&(path as u32).to_le_bytes());
    let value = if value == Value::Undefined { Value::Null } else { value };
    encode_key(value, key);
}

impl Group {
    /// One of its streams is gone; says whether it was the last.
    pub fn leave(&self) -> bool {
        self.streams.fetch_sub(1, Ordering::Relaxed) == 1
    }

    fn is_followed(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    /// Whether it is given events; otherwise its streams evaluate each event themselves.
    pub fn is_cheap(&self) -> bool {
        self.is_cheap
    }

    /// What of `event` concerns the group's streams.
    pub fn evaluate(&self, event: &Event, epoch: u32) -> Option<Found> {
        if !self.key.scope.contains(event) || !event.is_visible(&self.key.view) {
            return None;
        }
        let event = Prepared::new(event, &self.key.scope, &self.key.view, epoch);
        let scanned = event.scan();
        self.judge(&event, scanned.as_ref())
    }

    /// Evaluates events, one at least, until they or the time is over: what of them concerns the group's streams, and
    /// up to where it got.
    pub fn evaluate_for(&self, time: Duration, events: &[Arc<Event>], epoch: u32) -> (Vec<Found>, Timestamp) {
        let (begin, mut found, mut upto) = (Instant::now(), Vec::new(), Timestamp::default());
        for event in events {
            found.extend(self.evaluate(event, epoch));
            upto = event.at;
            if begin.elapsed() >= time {
                break;
            }
        }
        (found, upto)
    }

    fn judge(&self, event: &Prepared, scanned: Result<&Scanned<'_>, &Error>) -> Option<Found> {
        let doc = scanned.map_err(Clone::clone).and_then(|scanned| self.pipeline.apply(scanned));
        match (&doc, &event.invalidate) {
            (Ok(None), None) => None,
            _ => Some(Found { at: event.at, doc, invalidate: event.invalidate.clone() }),
        }
    }

    fn remember(&self, found: Found) {
        let mut matched = self.matched.lock();
        matched.bytes += found.bytes();
        matched.events.push_back(found);
        while matched.events.len() > GROUP_EVENTS_MAX
            || (matched.bytes > GROUP_BYTES_MAX && matched.events.len() > 1)
        {
            matched.drop_oldest();
        }
    }

    /// Lets go of what happened up to `upto`, but for a little.
    pub fn forget(&self, upto: Timestamp) {
        let mut matched = self.matched.lock();
        while matched.bytes > GROUP_BYTES_KEPT && matched.events.front().is_some_and(|found| found.at <= upto)
        {
            matched.drop_oldest();
        }
    }

    /// How many events it remembers and their bytes, counted anew.
    #[cfg(test)]
    pub fn remembered(&self) -> (usize, usize) {
        let matched = self.matched.lock();
        let bytes = matched.events.iter().map(Found::bytes).sum();
        assert_eq!(matched.bytes, bytes);
        (matched.events.len(), bytes)
    }

    /// What the group remembers after `after`; `None` if it no longer knows all of it.
    pub fn recall(&self, after: Timestamp) -> Option<Vec<Found>> {
        let matched = self.matched.lock();
        if after < matched.complete_after {
            return None;
        }
        let start = matched.events.partition_point(|found| found.at <= after);
        Some(matched.events.range(start..).take(CHUNK).cloned().collect())
    }
}

impl Matched {
    fn drop_oldest(&mut self) {
        if let Some(dropped) = self.events.pop_front() {
            self.bytes -= dropped.bytes();
            self.complete_after = self.complete_after.max(dropped.at);
        }
    }
}

impl Found {
    /// Bytes it keeps in memory, although it may share them with the event.
    fn bytes(&self) -> usize {
        let size = |doc: &Option<Doc>| doc.as_ref().map_or(0, |doc| doc.bytes().len());
        size_of::<Found>() + self.doc.as_ref().map_or(0, size) + size(&self.invalidate)
    }
}

impl Scope {
    fn contains(&self, event: &Event) -> bool {
        match self {
            Scope::Collection(ns) => match &event.change {
                Change::DropDatabase => false,
                Change::Rename { to, .. } => event.ns == *ns || to == ns,
                _ => event.ns == *ns,
            },
            Scope::Database(name) => {
                event.ns.database() == name && !event.ns.collection().starts_with("system.")
            }
            Scope::Cluster => !event.ns.is_internal(),
        }
    }

    /// The last event of a stream of this scope, if `event` is what ends it.
    pub fn end_after(&self, event: &Event, epoch: u32) -> Option<Doc> {
        let ends = self.contains(event) && self.ends_with(event);
        ends.then(|| invalidate(event.at, event.wall_ms, epoch))
    }

    /// Whether what the stream follows is gone after `event` (MongoDB manual, "invalidate Event").
    fn ends_with(&self, event: &Event) -> bool {
        matches!(
            (self, &event.change),
            (Scope::Collection(_), Change::Drop | Change::Rename { .. })
                | (Scope::Database(_), Change::DropDatabase)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rockdove_documents::doc;
    use rockdove_documents::filter::{Filter, FilterOptions};

    struct Match(Filter);

    impl EventPipeline for Match {
        fn apply(&self, event: &Scanned<'_>) -> Result<Option<Doc>> {
            Ok(self.0.matches_scanned(event)?.then(|| event.doc().clone()))
        }

        fn is_cheap(&self) -> bool {
            true
        }

        fn needs(&self) -> Vec<Alternatives<'_>> {
            self.0.needs()
        }
    }

    fn queries() -> Vec<Doc> {
        let mut queries = vec![
            doc! {},
            doc! { "operationType": "insert" },
            doc! { "operationType": "drop" },
            doc! { "fullDocument.b": { "$gt": 3 } },
            doc! { "fullDocument.c": { "$ne": null } },
            doc! { "fullDocument.c": { "d": 1 } },
            doc! { "fullDocument.a": { "$in": [["t1"], [2, 3]] } },
            doc! { "fullDocument.a": "a much longer text than any other" },
        ];
        for n in 0..6 {
            let (text, same) = (format!("t{n}"), f64::from(n));
            queries.push(doc! { "operationType": "insert", "fullDocument.a": n });
            queries.push(doc! { "fullDocument.a": { "$in": [&text, null] }, "fullDocument.b": { "$ne": n } });
            queries.push(doc! { "$or": [{ "fullDocument.a": &text }, { "fullDocument.b": same }] });
            queries.push(
                doc! { "$or": [{ "fullDocument.a": n, "fullDocument.c": null }, { "fullDocument.c.d": n }] },
            );
        }
        queries
    }

    fn value() -> impl Strategy<Value = rockdove_documents::Owned> {
        use rockdove_documents::Owned;
        let simple = prop_oneof![
            (0i32..7).prop_map(Owned::Int32),
            (0i64..7).prop_map(Owned::Int64),
            "t[0-6]".prop_map(Owned::String),
            Just(Owned::Null),
            Just(Owned::Undefined),
            (0i32..7).prop_map(|n| Owned::Document(doc! { "d": n })),
        ];
        let array = prop::collection::vec(simple.clone(), 0..3).prop_map(|values| {
            let mut array = rockdove_documents::DocBuilder::new();
            values.iter().for_each(|value| {
                array.push(value);
            });
            Owned::Array(array.finish())
        });
        prop_oneof![4 => simple, 1 => array]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_same_groups_as_one_by_one(
            docs in prop::collection::vec(prop::collection::btree_map("[abc]", value(), 0..4), 1..20),
            dropped in any::<bool>(),
            gone in 0usize..20,
        ) {
            let ns = Namespace::parse("a.b").unwrap();
            let mut groups = Groups::default();
            let mut joined = Vec::new();
            for query in queries() {
                let filter = Filter::parse(query.raw(), &FilterOptions::default()).unwrap();
                let (scope, stages) = (Scope::Collection(ns.clone()), query.into_bytes());
                let key = GroupKey { scope, view: View::default(), stages };
                joined.push(groups.join(key, Arc::new(Match(filter)), Timestamp::default()));
            }
            prop_assert!(joined.remove(gone).leave());
            groups.sweep();
            prop_assert_eq!(groups.len(), joined.len());
            let mut events: Vec<_> = docs.iter().zip(1..).map(|(fields, n)| {
                let mut doc = rockdove_documents::DocBuilder::new();
                doc.append("_id", n as i64);
                fields.iter().for_each(|(name, value)| {
                    doc.append(name, value);
                });
                Event::new(Timestamp::from_bits(n), 0, ns.clone(), [0; 16], Change::Insert { doc: doc.finish() })
            }).collect();
            if dropped {
                events.push(Event::new(Timestamp::from_bits(100), 0, ns.clone(), [0; 16], Change::Drop));
            }
            let mut news = Vec::new();
            events.iter().for_each(|event| groups.deliver(event, 1, &mut news));
            for group in &joined {
                let expected: Vec<_> = events.iter().filter_map(|event| group.evaluate(event, 1)).collect();
                let found = group.recall(Timestamp::default()).unwrap();
                let shown = |found: &Found| (found.at, found.doc.clone(), found.invalidate.clone());
                prop_assert!(found.iter().map(shown).eq(expected.iter().map(shown)));
                let told = news.iter().filter(|other| Arc::ptr_eq(group, other)).count();
                prop_assert_eq!(told, expected.len());
            }
        }
    }
}
