//! A database in memory for tests: small, honest, and able to fail on demand.

use crate::matching::{apply, matches};
use bson::{Bson, Document, doc};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use rockdove::backend::*;
use rockdove::{Bus, BusBuilder, Layout, Message, MessageId, Settings};
use rockdove_messages::Names;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// No test waits longer than this.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A call that is to fail.
#[derive(Clone)]
pub struct Fault {
    pub call: &'static str,
    pub collection: String,
    pub kind: BackendErrorKind,
    /// Whether the call takes effect although it reports an error.
    pub applied: bool,
}

/// What an open stream follows (`None` = the database), its stages, and where its events go.
type OpenFeed = (Option<String>, Vec<Document>, mpsc::UnboundedSender<BackendResult<Document>>);

/// The documents of one collection, in the order of their insertion, and where each id is.
#[derive(Default)]
struct Stored {
    documents: BTreeMap<u64, Document>,
    places: HashMap<String, u64>,
    next: u64,
}

impl Stored {
    fn key(id: Option<&Bson>) -> String {
        id.map(Bson::to_string).unwrap_or_default()
    }

    fn has(&self, id: Option<&Bson>) -> bool {
        self.places.contains_key(&Self::key(id))
    }

    fn push(&mut self, document: Document) {
        self.places.insert(Self::key(document.get("_id")), self.next);
        self.documents.insert(self.next, document);
        self.next += 1;
    }

    /// Where what matches is. An id leads there without a look at the others: simulations live on that.
    fn places(&self, filter: &Document) -> Vec<u64> {
        if let Some(id) = filter.get("_id").filter(|id| id.as_document().is_none()) {
            let place = self.places.get(&Self::key(Some(id))).copied();
            return place.into_iter().filter(|place| matches(filter, &self.documents[place])).collect();
        }
        let all = self.documents.iter();
        all.filter(|(_, document)| matches(filter, document)).map(|(place, _)| *place).collect()
    }

    fn find(&self, filter: &Document) -> Vec<Document> {
        self.places(filter).iter().map(|place| self.documents[place].clone()).collect()
    }

    fn take(&mut self, place: u64) -> Document {
        let document = self.documents.remove(&place).expect("a place in use");
        self.places.remove(&Self::key(document.get("_id")));
        document
    }

    fn all(&self) -> Vec<Document> {
        self.documents.values().cloned().collect()
    }
}

#[derive(Default)]
struct State {
    collections: BTreeMap<String, Stored>,
    feeds: Vec<OpenFeed>,
    faults: VecDeque<Fault>,
    /// Calls whose replies are late.
    slow: HashMap<String, Duration>,
    calls: HashMap<String, usize>,
    /// Of each call the number of the last one, among all.
    last: HashMap<String, usize>,
    /// Whether a lock and a mark can be one call.
    claims: bool,
    /// What is stored just before the next drop, and whether it is there when the collection is dropped.
    before_drop: Option<(Document, bool)>,
    specs: HashMap<String, Vec<Document>>,
    /// Events that streams are not shown yet, with their collections.
    held: Option<Vec<(String, Document)>>,
    /// The next such call is on its way, and takes effect late, whether or not its caller still waits for it.
    late_call: Option<(&'static str, String, Arc<Notify>)>,
    /// The next find that finds this document brings it late.
    late_find: Option<(Bson, Arc<Notify>)>,
    /// The latest events with their numbers, once somebody wants streams that can be resumed.
    history: Option<VecDeque<Document>>,
    last_event: i64,
    /// How every resumption fails, once it is to.
    resuming: Option<BackendErrorKind>,
    /// What it says of its connection.
    description: Option<Document>,
}

/// Events kept for streams that resume.
const HISTORY_MAX: usize = 10_000;

#[derive(Clone, Default)]
pub struct Fake {
    pub layout: Layout,
    state: Arc<Mutex<State>>,
}

/// Defines each test once for every layout; its argument is an empty database.
macro_rules! in_every_layout {
    ($(async fn $name:ident($fake:ident) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn run($fake: Fake) $body

            #[tokio::test]
            async fn standard() {
                run(Fake::of(Layout::Standard)).await;
            }

            #[tokio::test]
            async fn multi_collection() {
                run(Fake::of(Layout::MultiCollection)).await;
            }

            #[tokio::test]
            async fn dual_channel() {
                run(Fake::of(Layout::DualChannel)).await;
            }
        }
    )*};
}
pub(crate) use in_every_layout;

impl Fake {
    /// A database whose buses use this layout.
    pub fn of(layout: Layout) -> Self {
        Self { layout, ..Self::default() }
    }

    /// An empty one of the same layout.
    pub fn another(&self) -> Self {
        Self::of(self.layout)
    }

    /// The collections of the default queue.
    pub fn names(&self) -> Names {
        Names::new(self.layout, "").unwrap()
    }

    /// Where broadcasts on `t` are.
    pub fn topic(&self) -> String {
        self.names().broadcast("t")
    }

    /// Where their locks are.
    pub fn lock(&self) -> String {
        self.names().locks("t")
    }

    /// What the stream over them is opened on; empty = the database.
    pub fn stream(&self) -> String {
        if self.layout == Layout::MultiCollection { String::new() } else { self.topic() }
    }

    /// A layout that this one does not hear.
    pub fn foreign(&self) -> Layout {
        if self.layout == Layout::Standard { Layout::MultiCollection } else { Layout::Standard }
    }

    /// Every message stored anywhere.
    pub fn messages(&self) -> Vec<Document> {
        let is_message = |name: &str| !name.contains("_lck") && !name.ends_with("_participants");
        let state = self.state.lock();
        state
            .collections
            .iter()
            .filter(|(name, _)| is_message(name))
            .flat_map(|(_, stored)| stored.all())
            .collect()
    }

    /// Every lock stored anywhere.
    pub fn locks(&self) -> Vec<Document> {
        let state = self.state.lock();
        state
            .collections
            .iter()
            .filter(|(name, _)| name.contains("_lck"))
            .flat_map(|(_, stored)| stored.all())
            .collect()
    }

    /// A stored message, as it is stored.
    pub fn raw(&self, id: &MessageId) -> Option<Document> {
        self.messages().into_iter().find(|document| document.get("_id") == Some(&id.to_bson()))
    }

    /// A bus on this database, with short periods.
    pub fn bus(&self, id: &str) -> BusBuilder {
        let settings = Settings {
            poll_pause: Duration::from_millis(20),
            fallback_poll_interval: Duration::from_millis(200),
            shutdown_grace: Duration::from_millis(500),
            sender_id: Some(id.to_owned()),
            layout: self.layout,
            ..Settings::default()
        };
        self.bus_with(settings)
    }

    pub fn bus_with(&self, settings: Settings) -> BusBuilder {
        Bus::with_backend(Arc::new(self.clone())).settings(settings)
    }

    pub async fn connect(&self, id: &str) -> Bus {
        self.bus(id).connect().await.unwrap()
    }

    /// The next calls that match fail, in this order.
    pub fn fail(&self, fault: Fault) {
        self.state.lock().faults.push_back(fault);
    }

    pub fn faults_left(&self) -> usize {
        self.state.lock().faults.len()
    }

    /// From now on the reply to such a call takes so long.
    pub fn slow(&self, call: &str, collection: &str, time: Duration) {
        self.state.lock().slow.insert(format!("{call} {collection}"), time);
    }

    /// Streams bring nothing until [`release_events`](Self::release_events).
    pub fn hold_events(&self) {
        self.state.lock().held = Some(Vec::new());
    }

    /// Streams bring what they did not so far.
    pub fn release_events(&self) {
        let mut state = self.state.lock();
        for (collection, event) in state.held.take().unwrap_or_default() {
            state.emit(&collection, event);
        }
    }

    /// What the next find of a document found is told only when the caller says so.
    pub fn delay_find_of(&self, id: &MessageId) -> Arc<Notify> {
        let told = Arc::new(Notify::new());
        self.state.lock().late_find = Some((id.to_bson(), told.clone()));
        told
    }

    /// The next such call takes effect when the caller says so, also if nobody waits for its reply any more.
    pub fn delay(&self, call: &'static str, collection: &str) -> Arc<Notify> {
        let arrives = Arc::new(Notify::new());
        self.state.lock().late_call = Some((call, collection.to_owned(), arrives.clone()));
        arrives
    }

    /// Whether that call has been made.
    pub fn has_delayed(&self) -> bool {
        self.state.lock().late_call.is_none()
    }

    /// When the next such call is to take effect, if it is to be late.
    fn delayed(&self, call: &'static str, collection: &str) -> Option<Arc<Notify>> {
        let due = |(name, of, _): &mut (&str, String, _)| *name == call && of == collection;
        self.state.lock().late_call.take_if(due).map(|(_, _, arrives)| arrives)
    }

    /// Whether that find has been made.
    pub fn has_found(&self) -> bool {
        self.state.lock().late_find.is_none()
    }

    /// Ends every open stream with an error.
    pub fn break_streams(&self, kind: BackendErrorKind) {
        for (_, _, feed) in self.state.lock().feeds.drain(..) {
            let _ = feed.send(Err(BackendError::new(kind, "broken")));
        }
    }

    /// Streams stay open but bring nothing any more.
    pub fn silence_streams(&self) {
        for (_, pipeline, _) in &mut self.state.lock().feeds {
            *pipeline = vec![doc! {"$match": {"operationType": "never"}}];
        }
    }

    /// From now on streams can be resumed.
    pub fn keep_history(&self) {
        self.state.lock().history = Some(VecDeque::new());
    }

    /// Streams that missed an event so far cannot be resumed.
    pub fn lose_history(&self) {
        self.state.lock().history = Some(VecDeque::new());
    }

    /// From now on no stream can be resumed: the server does not take the tokens it once gave.
    pub fn refuse_tokens(&self, kind: BackendErrorKind) {
        self.state.lock().resuming = Some(kind);
    }

    /// Says of its connection what another back end says of its own.
    pub fn describe_as(&self, other: &impl Backend) {
        self.state.lock().description = Some(other.describe());
    }

    /// Removes what is past its life, as the server does once a minute.
    pub fn expire(&self, now_ms: i64) {
        let mut state = self.state.lock();
        let names: Vec<_> = state.collections.keys().cloned().collect();
        let past = doc! {"delete_at": {"$lt": bson::DateTime::from_millis(now_ms)}};
        for name in names {
            state.delete(&name, &past);
        }
    }

    pub fn all(&self, collection: &str) -> Vec<Document> {
        self.state.lock().collections.get(collection).map(Stored::all).unwrap_or_default()
    }

    pub fn message(&self, id: &MessageId) -> Message {
        Message::from_document(self.raw(id).expect("stored")).unwrap()
    }

    /// How often a call was made, on any collection.
    pub fn all_calls(&self, call: &str) -> usize {
        let state = self.state.lock();
        state
            .calls
            .iter()
            .filter(|(name, _)| name.split(' ').next() == Some(call))
            .map(|(_, count)| count)
            .sum()
    }

    pub fn calls(&self, call: &str, collection: &str) -> usize {
        self.state.lock().calls.get(&format!("{call} {collection}")).copied().unwrap_or(0)
    }

    /// When it was called last, as a number that grows with each call.
    pub fn last(&self, call: &str, collection: &str) -> Option<usize> {
        self.state.lock().last.get(&format!("{call} {collection}")).copied()
    }

    pub fn has_index(&self, collection: &str, name: &str) -> bool {
        let state = self.state.lock();
        let specs = state.specs.get(collection).into_iter().flatten();
        specs.into_iter().any(|spec| spec.get_str("name").unwrap() == name)
    }

    pub fn specs(&self, collection: &str) -> Vec<Document> {
        self.state.lock().specs.get(collection).cloned().unwrap_or_default()
    }

    pub fn drop_index(&self, collection: &str, name: &str) {
        let mut state = self.state.lock();
        let specs = state.specs.get_mut(collection).expect("it has indexes");
        specs.retain(|spec| spec.get_str("name").unwrap() != name);
    }

    /// Gives a collection an index, as another program would.
    pub fn store_index(&self, collection: &str, spec: Document) {
        self.state.lock().specs.entry(collection.to_owned()).or_default().push(spec);
    }

    /// Locks and marks in one call, from now on.
    pub fn claim_at_once(&self) {
        self.state.lock().claims = true;
    }

    /// Stores a document at the last moment before the next drop of a collection.
    pub fn store_before_drop(&self, document: Document) {
        self.state.lock().before_drop = Some((document, true));
    }

    /// The same; and it is removed again before the drop.
    pub fn remove_before_drop(&self, document: Document) {
        self.state.lock().before_drop = Some((document, false));
    }

    pub fn has_collection(&self, collection: &str) -> bool {
        self.state.lock().collections.contains_key(collection)
    }

    /// Stores a document as another program would.
    pub fn store(&self, collection: &str, document: Document) {
        self.state.lock().insert(collection, document).unwrap();
    }

    /// Makes a collection without documents.
    pub fn store_empty(&self, collection: &str) {
        self.state.lock().collections.insert(collection.to_owned(), Stored::default());
    }

    pub fn open_streams(&self) -> usize {
        let mut state = self.state.lock();
        state.feeds.retain(|(_, _, feed)| !feed.is_closed());
        state.feeds.len()
    }

    pub fn change(&self, collection: &str, filter: Document, update: Document) -> u64 {
        self.state.lock().update(collection, &filter, &update).unwrap().modified
    }

    /// Runs a call, or fails it as ordered.
    fn call<T: Send + 'static>(
        &self,
        call: &'static str,
        collection: &str,
        run: impl FnOnce(&mut State) -> BackendResult<T>,
    ) -> BoxFuture<'static, BackendResult<T>> {
        let mut state = self.state.lock();
        *state.calls.entry(format!("{call} {collection}")).or_default() += 1;
        let number = state.calls.values().sum();
        state.last.insert(format!("{call} {collection}"), number);
        let due = |fault: &Fault| fault.call == call && fault.collection == collection;
        let fault = state.faults.iter().position(due).and_then(|place| state.faults.remove(place));
        let result = match fault {
            None => run(&mut state),
            Some(fault) => {
                if fault.applied {
                    run(&mut state).ok();
                }
                Err(BackendError::new(fault.kind, "ordered to fail"))
            }
        };
        match state.slow.get(&format!("{call} {collection}")).copied() {
            None => ready(result).boxed(),
            Some(time) => async move {
                tokio::time::sleep(time).await;
                result
            }
            .boxed(),
        }
    }
}

impl State {
    fn insert(&mut self, collection: &str, document: Document) -> BackendResult<()> {
        let stored = self.collections.entry(collection.to_owned()).or_default();
        if stored.has(document.get("_id")) {
            return Err(BackendError::new(BackendErrorKind::DuplicateKey, "E11000"));
        }
        stored.push(document.clone());
        let key = doc! {"_id": document.get("_id").cloned()};
        self.emit(collection, doc! {"operationType": "insert", "documentKey": key, "fullDocument": document});
        Ok(())
    }

    fn update(&mut self, collection: &str, filter: &Document, update: &Document) -> BackendResult<Updated> {
        let Some(stored) = self.collections.get_mut(collection) else { return Ok(Updated::default()) };
        let Some(place) = stored.places(filter).first().copied() else { return Ok(Updated::default()) };
        let document = stored.documents.get_mut(&place).expect("a place in use");
        let fields =
            apply(update, document).map_err(|text| BackendError::new(BackendErrorKind::Other, text))?;
        let key = doc! {"_id": document.get("_id").cloned()};
        let modified = u64::from(!fields.is_empty());
        if modified > 0 {
            let description = doc! {"updatedFields": fields};
            let event =
                doc! {"operationType": "update", "documentKey": key, "updateDescription": description};
            self.emit(collection, event);
        }
        Ok(Updated { matched: 1, modified })
    }

    fn delete(&mut self, collection: &str, filter: &Document) -> u64 {
        let Some(stored) = self.collections.get_mut(collection) else { return 0 };
        let gone: Vec<_> = stored.places(filter).into_iter().map(|place| stored.take(place)).collect();
        for document in &gone {
            let key = doc! {"_id": document.get("_id").cloned()};
            self.emit(collection, doc! {"operationType": "delete", "documentKey": key});
        }
        gone.len() as u64
    }

    fn emit(&mut self, collection: &str, mut event: Document) {
        if let Some(held) = &mut self.held {
            return held.push((collection.to_owned(), event));
        }
        event.insert("ns", doc! {"db": "fake", "coll": collection});
        if let Some(history) = &mut self.history {
            self.last_event += 1;
            event.insert("_id", self.last_event);
            history.push_back(event.clone());
            if history.len() > HISTORY_MAX {
                history.pop_front();
            }
        }
        self.feeds.retain(|(watched, pipeline, feed)| {
            if passes(watched.as_deref(), pipeline, &event) {
                return feed.send(Ok(event.clone())).is_ok();
            }
            !feed.is_closed()
        });
    }
}

/// A request that has been sent: dropping its future does not take it back.
fn underway<T: Send + 'static>(
    arrives: Arc<Notify>,
    call: impl Future<Output = BackendResult<T>> + Send + 'static,
) -> BoxFuture<'static, BackendResult<T>> {
    let request = tokio::spawn(async move {
        arrives.notified().await;
        call.await
    });
    async { request.await.expect("it does not panic") }.boxed()
}

/// Whether a stream shows an event.
fn passes(watched: Option<&str>, pipeline: &[Document], event: &Document) -> bool {
    let in_scope = |name| event.get_document("ns").unwrap().get_str("coll").unwrap() == name;
    watched.is_none_or(in_scope)
        // What is left out of events does not matter here.
        && pipeline.iter().all(|stage| stage.get_document("$match").map_or(true, |filter| matches(filter, event)))
}

impl Backend for Fake {
    fn insert<'a>(
        &'a self,
        collection: &'a str,
        documents: &'a [Document],
        _: Durability,
    ) -> BoxFuture<'a, BackendResult<Vec<InsertFailure>>> {
        self.call("insert", collection, |state| {
            let results = documents.iter().map(|document| state.insert(collection, document.clone()));
            let failed = results
                .enumerate()
                .filter_map(|(index, result)| result.err().map(|error| InsertFailure { index, error }));
            Ok(failed.collect())
        })
    }

    fn find<'a>(&'a self, collection: &'a str, find: Find) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        let mut late = None;
        let found = self.call("find", collection, |state| {
            let stored = state.collections.get(collection);
            let mut found = stored.map(|stored| stored.find(&find.filter)).unwrap_or_default();
            if let Some(sort) = &find.sort {
                let number = |document: &Document, key| document.get(key).and_then(crate::matching::number);
                let order =
                    |document: &Document| (number(document, "priority"), number(document, "timestamp"));
                found.sort_by(|a, b| order(a).partial_cmp(&order(b)).unwrap());
                if sort.values().all(|way| crate::matching::number(way) < Some(0.0)) {
                    found.reverse();
                }
            }
            found.truncate(if find.limit == 0 { usize::MAX } else { find.limit });
            late = state.late_find.take_if(|(id, _)| found.iter().any(|one| one.get("_id") == Some(&*id)));
            Ok(found)
        });
        async move {
            if let Some((_, told)) = late {
                told.notified().await;
            }
            found.await
        }
        .boxed()
    }

    fn count<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        let count = |stored: &Stored| stored.places(&filter).len();
        self.call("count", collection, |state| Ok(state.collections.get(collection).map_or(0, count) as u64))
    }

    fn update_one<'a>(
        &'a self,
        collection: &'a str,
        filter: Document,
        update: Document,
        upsert: bool,
    ) -> BoxFuture<'a, BackendResult<Updated>> {
        if let Some(arrives) = self.delayed("update", collection) {
            let (fake, collection) = (self.clone(), collection.to_owned());
            return underway(
                arrives,
                async move { fake.update_one(&collection, filter, update, upsert).await },
            );
        }
        self.call("update", collection, |state| {
            let updated = state.update(collection, &filter, &update)?;
            if upsert && updated.matched == 0 {
                let mut document = filter.clone(); // equalities only
                apply(&update, &mut document).unwrap();
                state.insert(collection, document)?;
            }
            Ok(updated)
        })
    }

    fn insert_acked<'a>(
        &'a self,
        collection: &'a str,
        document: Document,
        wish: Wish,
    ) -> BoxFuture<'a, BackendResult<Inserted>> {
        self.call("insert", collection, |state| {
            let refused = state.insert(collection, document).err();
            Ok(Inserted { refused, level: wish.level, degraded: false })
        })
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, BackendResult<Claimed>> {
        if !self.state.lock().claims {
            return ready(Err(BackendError::new(BackendErrorKind::Unsupported, "step by step"))).boxed();
        }
        let Claim { locks, lock, collection, filter, update } = claim;
        self.call("claim", collection, |state| match state.insert(locks, lock) {
            Err(error) if error.kind() == BackendErrorKind::DuplicateKey => Ok(Claimed::Held),
            Err(error) => Err(error),
            Ok(()) => {
                let marked = state.update(collection, &filter, &update);
                Ok(Claimed::Locked { marked: marked.is_ok_and(|updated| updated.matched > 0) })
            }
        })
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        self.call("delete", collection, |state| Ok(state.delete(collection, &filter)))
    }

    fn create_index<'a>(
        &'a self,
        collection: &'a str,
        index: &'a rockdove::backend::IndexDefinition,
    ) -> BoxFuture<'a, BackendResult<()>> {
        if let Some(arrives) = self.delayed("index", collection) {
            let (fake, collection, index) = (self.clone(), collection.to_owned(), index.clone());
            return underway(arrives, async move { fake.create_index(&collection, &index).await });
        }
        self.call("index", collection, |state| {
            state.collections.entry(collection.to_owned()).or_default();
            let specs = state.specs.entry(collection.to_owned()).or_default();
            let same_key = |spec: &&Document| spec.get_document("key").ok() == Some(&index.keys);
            if specs.iter().find(same_key).is_some_and(|spec| spec.get_str("name").unwrap() != index.name) {
                return Err(BackendError::new(BackendErrorKind::IndexConflict, "another name"));
            }
            if !specs.iter().any(|spec| spec.get_str("name").unwrap() == index.name) {
                specs.push(index.to_document());
            }
            Ok(())
        })
    }

    fn indexes<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        self.call("indexes", collection, |state| Ok(state.specs.get(collection).cloned().unwrap_or_default()))
    }

    fn watch<'a>(&'a self, scope: Scope<'a>, watch: Watch) -> BoxFuture<'a, BackendResult<Box<dyn Feed>>> {
        let collection = match scope {
            Scope::Collection(name) => Some(name.to_owned()),
            Scope::Database => None,
        };
        self.call("watch", &collection.clone().unwrap_or_default(), |state| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let mut token = state.history.as_ref().map(|_| state.last_event);
            if let (Some(kind), Some(_)) = (state.resuming, &watch.resume_after) {
                return Err(BackendError::new(kind, "no token of this server"));
            }
            if let (Some(history), Some(after)) = (&state.history, watch.resume_after) {
                let after = after.as_i64().expect("a token of ours");
                if history.len() < usize::try_from(state.last_event - after).unwrap() {
                    return Err(BackendError::new(BackendErrorKind::HistoryLost, "forgotten"));
                }
                let missed = history.iter().filter(|event| event.get_i64("_id").unwrap() > after);
                for event in missed.filter(|event| passes(collection.as_deref(), &watch.pipeline, event)) {
                    sender.send(Ok(event.clone())).unwrap();
                }
                token = Some(after);
            }
            state.feeds.push((collection, watch.pipeline, sender));
            Ok(Box::new(FakeFeed(receiver, token)) as Box<dyn Feed>)
        })
    }

    fn collections<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, BackendResult<Vec<String>>> {
        self.call("collections", prefix, |state| {
            Ok(state.collections.keys().filter(|name| name.starts_with(prefix)).cloned().collect())
        })
    }

    fn drop_collection<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<()>> {
        self.call("drop", collection, |state| {
            if let Some((late, stays)) = state.before_drop.take() {
                let id = doc! {"_id": late.get("_id")};
                state.insert(collection, late)?;
                if !stays {
                    state.delete(collection, &id);
                }
            }
            state.specs.remove(collection);
            if state.collections.remove(collection).is_some() {
                state.emit(collection, doc! {"operationType": "drop"});
            }
            Ok(())
        })
    }

    fn describe(&self) -> Document {
        self.state.lock().description.clone().unwrap_or_else(|| doc! {"backend": "fake"})
    }
}

/// The events, and the number of the last one.
struct FakeFeed(mpsc::UnboundedReceiver<BackendResult<Document>>, Option<i64>);

impl Feed for FakeFeed {
    fn next(&mut self) -> BoxFuture<'_, BackendResult<Option<ChangeEvent>>> {
        async {
            let closed = || BackendError::new(BackendErrorKind::Transient, "closed");
            let event = self.0.recv().await.ok_or_else(closed)??;
            self.1 = event.get_i64("_id").ok().or(self.1);
            let change = match event.get_str("operationType").unwrap() {
                "insert" => Change::Insert,
                "update" => Change::Update,
                "drop" => Change::Dropped,
                _ => Change::Delete,
            };
            let key = event.get_document("documentKey").ok();
            let id = key.and_then(|key| key.get("_id")).and_then(MessageId::from_bson);
            let collection = event.get_document("ns").unwrap().get_str("coll").unwrap().to_owned();
            let document = event.get_document("fullDocument").ok().cloned();
            Ok(Some(ChangeEvent { change, collection, id, document }))
        }
        .boxed()
    }

    fn resume_token(&self) -> Option<Bson> {
        self.1.map(Bson::Int64)
    }
}

thread_local! {
    /// What is warned of on this thread, while somebody listens.
    static WARNED: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// What is warned of on this thread, as long as this lives. The subscriber is that of all threads: one of this thread only
/// may miss what another thread came to first.
pub struct Warnings(());

impl Warnings {
    pub fn listen() -> Self {
        static SUBSCRIBED: Once = Once::new();
        SUBSCRIBED.call_once(|| {
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::WARN)
                .with_ansi(false)
                .with_writer(|| Written)
                .finish();
            tracing::subscriber::set_global_default(subscriber).expect("it is the only one");
        });
        WARNED.set(Some(Vec::new()));
        Self(())
    }

    /// How many contain `what`.
    pub fn of(&self, what: &str) -> usize {
        WARNED.with_borrow(|warned| {
            let text = String::from_utf8_lossy(warned.as_ref().expect("it is listened"));
            text.lines().filter(|line| line.contains(what)).count()
        })
    }
}

impl Drop for Warnings {
    fn drop(&mut self) {
        WARNED.set(None);
    }
}

struct Written;

impl std::io::Write for Written {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        WARNED.with_borrow_mut(|warned| warned.as_mut().map(|warned| warned.extend_from_slice(text)));
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Runs a future that must end in time.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("too late: {what}"))
}
