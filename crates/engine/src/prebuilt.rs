//! Indexes that are built beside the sequencer, so that nobody waits for a large one.
//!
//! ```text
//! snapshot ─► entries of all documents ─► newer snapshot ─► entries of what changed ─► … ─► sequencer: the rest
//! ```
//!
//! Invariants
//! * What the sequencer takes over has the entries of the documents that are there then, as if it had built it itself.
//! * One build at a time, so that nothing is built twice and what it takes of the memory is known.
//! * A build ends when its caller goes, when the engine closes and when memory gets short. Nothing is built of a command
//!   that the sequencer would refuse for what it says.

use crate::collection::{Collection, duplicate_key};
use crate::command::WriteError;
use crate::definition;
use crate::effects::{CollectionNumber, RecordNumber};
use crate::engine::{Engine, shutting_down};
use crate::index::{Index, IndexSpec};
use crate::limits::New;
use crate::namespace::Namespace;
use crate::state::{self, State};
use crate::trie::Trie;
use rockdove_documents::key::{KeySet, RowBuf};
use rockdove_documents::{Code, Doc, Error, Result, code};
use std::sync::{Arc, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const INDEX_BUILD_ABORTED: Code = Code { number: 276, name: "IndexBuildAborted" };
/// Documents of so much work are few: building their indexes is left to the sequencer.
const FEW_MAX: usize = 512 << 10;
/// Changed documents of so much work are left to it.
const REST_MAX: usize = 256 << 10;
/// How often what has changed meanwhile is caught up with, if others write that much.
const ROUNDS_MAX: usize = 10;
/// After so much work a build asks whether it may go on.
const ASK_EVERY: usize = 512 << 10;

/// How much work it is to find the keys of so many documents of so many bytes together.
fn work(documents: usize, bytes: usize) -> usize {
    documents * 512 + bytes
}

/// Whether a build may go on that has made so many bytes of entries.
type MayGoOn<'a> = &'a dyn Fn(u64) -> Result<()>;

/// What nobody may end.
pub const ALWAYS: MayGoOn<'static> = &|_| Ok(());

/// Indexes and the documents that they have the entries of.
pub struct Prebuilt {
    collection: CollectionNumber,
    records: Trie<Doc>,
    indexes: Vec<Index>,
    /// The keys of `indexes`, in their order.
    keys: KeySet,
}

impl Prebuilt {
    /// Builds indexes over all documents, which are walked once; fails if they break one.
    pub fn build(
        collection: &Collection,
        specs: &[Arc<IndexSpec>],
        rows: &mut RowBuf,
        may_go_on: MayGoOn<'_>,
    ) -> Result<Prebuilt, WriteError> {
        let keys = KeySet::new(specs.iter().map(|spec| &spec.key));
        let indexes = specs.iter().cloned().map(Index::new).collect();
        let mut built =
            Prebuilt { collection: collection.info.number, records: Trie::default(), indexes, keys };
        let mut asks = Asks(may_go_on, 0);
        for (record, doc) in collection.trie().iter() {
            asks.before(doc, &built)?;
            built.add(&collection.info.ns, record, doc, rows)?;
        }
        built.records = collection.trie().clone();
        Ok(built)
    }

    /// The collection of this name; fails if it is not the one whose documents these indexes have.
    pub fn there<'s>(&self, ns: &Namespace, state: &'s State) -> Result<&'s Arc<Collection>> {
        let there = state.collection(ns).filter(|there| there.info.number == self.collection);
        there.ok_or_else(|| {
            let message = format!("index build on {ns} aborted: collection was dropped or renamed meanwhile");
            Error::new(INDEX_BUILD_ABORTED, message)
        })
    }

    /// Where the index of this specification is, if it was built for this collection.
    pub fn find(&self, collection: CollectionNumber, spec: &IndexSpec) -> Option<usize> {
        let is_it = |index: &Index| index.spec.name == spec.name && index.spec.same_signature(spec);
        self.indexes.iter().position(is_it).filter(|_| self.collection == collection)
    }

    /// Takes in what has changed; how much work that was. Of no more use if that breaks an index.
    pub fn catch_up(
        &mut self,
        collection: &Collection,
        rows: &mut RowBuf,
        may_go_on: MayGoOn<'_>,
    ) -> Result<usize, WriteError> {
        let (mut gone, mut new) = (Vec::new(), Vec::new());
        collection.trie().changes(&self.records, &mut |record, before, after| {
            if before != after {
                gone.extend(before.cloned().map(|doc| (record, doc)));
                new.extend(after.cloned().map(|doc| (record, doc)));
            }
        });
        // All of them before: what one document gives up another may have taken.
        let mut asks = Asks(may_go_on, 0);
        for (record, doc) in &gone {
            asks.before(doc, self)?;
            self.take_away(*record, doc, rows)?;
        }
        for (record, doc) in &new {
            asks.before(doc, self)?;
            self.add(&collection.info.ns, *record, doc, rows)?;
        }
        self.records = collection.trie().clone();
        let bytes = gone.iter().chain(&new).map(|(_, doc)| doc.bytes().len()).sum();
        Ok(work(gone.len() + new.len(), bytes))
    }

    /// The index that is there; it shares its entries.
    pub fn index(&self, at: usize) -> Index {
        self.indexes[at].clone()
    }

    /// Bytes of all entries together.
    fn bytes(&self) -> u64 {
        self.indexes.iter().map(|index| index.tree.key_bytes() as u64).sum()
    }

    fn add(
        &mut self,
        ns: &Namespace,
        record: RecordNumber,
        doc: &Doc,
        rows: &mut RowBuf,
    ) -> Result<(), WriteError> {
        self.keys_of(record, doc, rows)?;
        for (number, index) in self.indexes.iter_mut().enumerate() {
            if index.spec.unique && index.has_conflict(rows.row(number), record) {
                return Err(duplicate_key(ns, &index.spec, doc.raw()));
            }
            index.add(rows.row(number));
        }
        Ok(())
    }

    fn take_away(&mut self, record: RecordNumber, doc: &Doc, rows: &mut RowBuf) -> Result<()> {
        self.keys_of(record, doc, rows)?;
        for (number, index) in self.indexes.iter_mut().enumerate() {
            index.take_away(rows.row(number));
        }
        Ok(())
    }

    fn keys_of(&self, record: RecordNumber, doc: &Doc, rows: &mut RowBuf) -> Result<()> {
        let covers = |number: usize| self.indexes[number].spec.covers(doc.raw());
        self.keys.keys(doc.raw(), &record.to_be_bytes(), covers, rows)
    }
}

/// Asks from time to time whether a build may go on, and before the first document.
struct Asks<'a>(MayGoOn<'a>, usize);

impl Asks<'_> {
    /// Before the work on a document.
    fn before(&mut self, doc: &Doc, built: &Prebuilt) -> Result<()> {
        let Asks(may_go_on, left) = self;
        if *left == 0 {
            may_go_on(built.bytes())?;
            *left = ASK_EVERY;
        }
        *left = left.saturating_sub(work(1, doc.bytes().len()));
        Ok(())
    }
}

/// Builds those of the indexes that are not there, if the collection is large. The turn is to be held until the sequencer
/// has them: whoever waits for it with the same command then finds them there.
///
/// # Errors
/// What a document breaks, such as 11000; 146 if memory gets short; 276 if the collection goes; 91 if the engine closes.
pub async fn indexes(
    engine: &Engine,
    turns: &Arc<Semaphore>,
    ns: &Namespace,
    specs: &[Doc],
) -> Result<Option<(Box<Prebuilt>, OwnedSemaphorePermit)>> {
    if wanted(&engine.snapshot(), ns, specs).is_none() {
        return Ok(None);
    }
    let turn = turns.clone().acquire_owned().await.map_err(|error| internal(&error))?;
    // Goes with whoever waits here.
    let caller = Arc::new(());
    let (engine, asks, ns, specs) = (engine.clone(), Arc::downgrade(&caller), ns.clone(), specs.to_vec());
    let work = move || {
        let built = build(&engine, &asks, &ns, &specs)?;
        Ok(built.map(|built| (Box::new(built), turn)))
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| internal(&error))?
}

/// The collection and the indexes that it lacks, if it is large. What is wrong with them is left to the sequencer to say.
fn wanted(state: &State, ns: &Namespace, specs: &[Doc]) -> Option<(Arc<Collection>, Vec<Arc<IndexSpec>>)> {
    let collection = state.collection(ns)?;
    if work(collection.len(), collection.bytes() as usize) < FEW_MAX {
        return None;
    }
    let specs = definition::parse_indexes(specs, collection.info.options.raw()).ok()?;
    let missing = definition::missing_indexes(collection, specs).ok()?;
    (!missing.is_empty()).then(|| (collection.clone(), missing))
}

fn build(engine: &Engine, caller: &Weak<()>, ns: &Namespace, specs: &[Doc]) -> Result<Option<Prebuilt>> {
    let Some((collection, specs)) = wanted(&engine.snapshot(), ns, specs) else { return Ok(None) };
    let held = state::weight(&collection);
    let spec_bytes = specs.iter().map(|spec| spec.doc.bytes().len() as u64).max().unwrap_or_default();
    let may_go_on = |bytes: u64| {
        check_wanted(engine, caller)?;
        let memory = engine.memory();
        let tiny = engine.snapshot().tiny_bytes();
        memory.check(memory.used_bytes() + bytes, New { bytes: spec_bytes, held: held + bytes, tiny })
    };
    let mut rows = RowBuf::default();
    let mut built = Prebuilt::build(&collection, &specs, &mut rows, &may_go_on)?;
    for _ in 0..ROUNDS_MAX {
        let state = engine.snapshot();
        if built.catch_up(built.there(ns, &state)?, &mut rows, &may_go_on)? <= REST_MAX {
            break;
        }
    }
    Ok(Some(built))
}

/// Fails if nobody waits for a build any more.
fn check_wanted(engine: &Engine, caller: &Weak<()>) -> Result<()> {
    if caller.strong_count() == 0 {
        return Err(Error::new(code::INTERRUPTED, "operation was interrupted"));
    }
    if engine.is_closing() { Err(shutting_down()) } else { Ok(()) }
}

fn internal(error: &dyn std::error::Error) -> Error {
    Error::new(code::INTERNAL_ERROR, format!("indexes could not be built: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::{CollectionInfo, Scratch};
    use crate::command::{Ack, Definition, Statement, Write};
    use crate::engine::Options;
    use crate::sequencer::Request;
    use proptest::prelude::*;
    use rockdove_documents::{DocBuilder, doc};
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::task::Poll;

    fn collection() -> Collection {
        let ns = Namespace::new("db", "c").unwrap();
        Collection::new(CollectionInfo::new(1, ns, [0; 16], Doc::empty()).unwrap())
    }

    fn spec(doc: Doc) -> Arc<IndexSpec> {
        Arc::new(IndexSpec::parse(doc.raw()).unwrap())
    }

    fn entries(index: &Index) -> Vec<Vec<u8>> {
        let (mut cursor, mut all) = (index.tree.seek(&[]), Vec::new());
        while let Some(entry) = cursor.key() {
            all.push(entry.to_vec());
            cursor.advance();
        }
        all
    }

    /// A change of one document: inserted, replaced or removed.
    fn change(collection: &mut Collection, (record, value): (u64, Option<i32>)) {
        let scratch = &mut Scratch::default();
        let doc = |n: i32| doc! { "_id": record as i32, "a": [n, n % 5], "b": n };
        match (value, collection.get(record).is_some()) {
            (Some(n), true) => collection.replace(record, doc(n), scratch).unwrap(),
            (Some(n), false) => collection.insert(record, doc(n), scratch).unwrap(),
            (None, _) => drop(collection.remove(record, scratch)),
        }
    }

    fn changes() -> impl Strategy<Value = Vec<(u64, Option<i32>)>> {
        prop::collection::vec((1u64..3000, prop::option::of(0..100)), 0..100)
    }

    proptest! {
        #[test]
        fn what_is_caught_up_with_is_what_would_be_built(rounds in prop::collection::vec(changes(), 1..4)) {
            let (mut collection, mut rows) = (collection(), RowBuf::default());
            let specs = [
                spec(doc! { "key": { "a": 1, "b": -1 } }),
                spec(doc! { "key": { "b": 1 }, "partialFilterExpression": { "b": { "$gt": 50 } } }),
            ];
            let mut built = Prebuilt::build(&collection, &specs, &mut rows, ALWAYS).ok().unwrap();
            for round in rounds {
                round.into_iter().for_each(|one| change(&mut collection, one));
                built.catch_up(&collection, &mut rows, ALWAYS).unwrap();
                for (at, spec) in specs.iter().enumerate() {
                    prop_assert_eq!(built.find(1, spec), Some(at));
                    let fresh = Prebuilt::build(&collection, std::slice::from_ref(spec), &mut rows, ALWAYS);
                    prop_assert_eq!(entries(&built.index(at)), entries(&fresh.ok().unwrap().index(0)));
                }
            }
        }
    }

    #[test]
    fn a_unique_key_may_go_from_one_document_to_another() {
        let (mut collection, mut rows) = (collection(), RowBuf::default());
        for record in 1..=3 {
            change(&mut collection, (record, Some(record as i32)));
        }
        let unique = spec(doc! { "key": { "b": 1 }, "unique": true });
        let mut built = Prebuilt::build(&collection, &[unique], &mut rows, ALWAYS).ok().unwrap();
        for (record, value) in [(1, Some(9)), (2, Some(1)), (3, None), (4, Some(2))] {
            change(&mut collection, (record, value));
        }
        assert!(built.catch_up(&collection, &mut rows, ALWAYS).unwrap() > 0);
        assert_eq!(built.catch_up(&collection, &mut rows, ALWAYS), Ok(0));
        change(&mut collection, (5, Some(9)));
        assert_eq!(
            built.catch_up(&collection, &mut rows, ALWAYS).unwrap_err().error.code,
            code::DUPLICATE_KEY
        );
    }

    #[test]
    fn a_build_ends_within_half_a_mebibyte_of_work() {
        let (mut large, mut rows) = (collection(), RowBuf::default());
        for record in 1..=5000 {
            change(&mut large, (record, Some(1)));
        }
        let specs = [spec(doc! { "key": { "a": 1 } }), spec(doc! { "key": { "b": 1 } })];
        let asked = Cell::new(0);
        let enough = |bytes: u64| {
            asked.set(asked.get() + 1);
            assert_eq!(bytes > 0, asked.get() > 1);
            if asked.get() < 3 { Ok(()) } else { Err(Error::new(code::INTERRUPTED, "enough")) }
        };
        let ended = Prebuilt::build(&large, &specs, &mut rows, &enough).err().unwrap();
        assert_eq!((ended.error.code, asked.take()), (code::INTERRUPTED, 3));
        let mut built = Prebuilt::build(&collection(), &specs, &mut rows, ALWAYS).ok().unwrap();
        let ended = built.catch_up(&large, &mut rows, &enough).unwrap_err();
        assert_eq!((ended.error.code, asked.take()), (code::INTERRUPTED, 3));
    }

    fn ns() -> Namespace {
        Namespace::new("db", "c").unwrap()
    }

    /// An engine with a collection that is large; the documents have `b` twice.
    async fn filled(memory_limit_bytes: u64) -> Engine {
        let engine = Engine::open(Options { memory_limit_bytes, ..Options::memory() }).unwrap();
        let docs = (0..2000).map(|n| doc! { "_id": n, "a": n, "b": n / 2 }).collect();
        assert!(engine.write(insertion(docs)).await.unwrap().results.iter().all(Result::is_ok));
        engine
    }

    fn insertion(docs: Vec<Doc>) -> Write {
        let statements = docs.into_iter().map(|doc| Statement::Insert { ns: ns(), doc }).collect();
        let (retry, ack) = (None, Ack::WRITTEN);
        Write { statements, ordered: true, retry, ack, bypass_validation: false, interrupt: None }
    }

    fn on_field(name: &str) -> Doc {
        let mut key = DocBuilder::new();
        key.append(name, 1);
        doc! { "key": key.finish() }
    }

    fn turns() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(1))
    }

    #[tokio::test]
    async fn an_index_is_built_once_and_only_where_the_command_can_succeed() {
        let engine = filled(1 << 30).await;
        let wanted = |specs: &[Doc]| wanted(&engine.snapshot(), &ns(), specs).map(|(_, specs)| specs.len());
        let a = |name: String| doc! { "key": { "a": 1 }, "name": name };
        let many = |count: usize| -> Vec<Doc> { (0..count).map(|n| on_field(&format!("a.{n}"))).collect() };
        assert_eq!(wanted(&vec![a("x".into()); 5000]), Some(1), "the same again");
        assert_eq!(wanted(&[a("x".into()), a("y".into())]), None, "another name for it");
        assert_eq!(wanted(&[a("x".into()), doc! { "key": { "b": 1 }, "name": "x" }]), None);
        assert_eq!(wanted(&[a("x".into()), doc! { "key": { "b": "no" } }]), None);
        assert_eq!(wanted(&[doc! { "key": { "_id": 1 } }]), None, "it is there");
        assert_eq!((wanted(&many(63)), wanted(&many(64))), (Some(63), None));
        let before = engine.operation_time();
        let define = Definition::CreateIndexes { ns: ns(), specs: many(64) };
        let refused = engine.define(define, Ack::WRITTEN).await.unwrap_err();
        assert_eq!(refused.code, code::CANNOT_CREATE_INDEX);
        assert_eq!(engine.operation_time(), before, "none was built");
    }

    #[tokio::test]
    async fn what_another_has_built_meanwhile_is_not_built_again() {
        let (engine, turns, specs) = (filled(1 << 30).await, turns(), [doc! { "key": { "a": 1 } }]);
        let (built, turn) = indexes(&engine, &turns, &ns(), &specs).await.unwrap().unwrap();
        let same = ns();
        let mut second = std::pin::pin!(indexes(&engine, &turns, &same, &specs));
        let waits = poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending())).await;
        assert!(waits, "the first has the turn");
        let define = Box::new(Definition::CreateIndexes { ns: ns(), specs: specs.to_vec() });
        let defined = engine.ask(|to| Request::Define(define, Some(built), Ack::WRITTEN, to)).await.unwrap();
        assert_eq!(defined.unwrap().indexes_after, 2);
        drop(turn);
        assert!(second.await.unwrap().is_none());
    }

    #[tokio::test]
    async fn few_large_documents_are_work_too() {
        let engine = Engine::open(Options::memory()).unwrap();
        let specs = [doc! { "key": { "a": 1 } }];
        for (id, bytes, expected) in [(1, 100 << 10, false), (2, 500 << 10, true)] {
            let doc = doc! { "_id": id, "a": "a".repeat(bytes) };
            engine.write(insertion(vec![doc])).await.unwrap();
            assert_eq!(wanted(&engine.snapshot(), &ns(), &specs).is_some(), expected, "{id}");
        }
    }

    #[tokio::test]
    async fn a_collection_that_goes_meanwhile_takes_its_index_along() {
        for comes_back in [false, true] {
            let (engine, specs) = (filled(1 << 30).await, vec![doc! { "key": { "a": 1 } }]);
            let (built, _turn) = indexes(&engine, &turns(), &ns(), &specs).await.unwrap().unwrap();
            engine.define(Definition::Drop { ns: ns() }, Ack::WRITTEN).await.unwrap();
            if comes_back {
                let create = Definition::Create { ns: ns(), options: Doc::empty() };
                engine.define(create, Ack::WRITTEN).await.unwrap();
            }
            let define = Box::new(Definition::CreateIndexes { ns: ns(), specs });
            let defined =
                engine.ask(|to| Request::Define(define, Some(built), Ack::WRITTEN, to)).await.unwrap();
            assert_eq!(defined.unwrap_err().code, INDEX_BUILD_ABORTED);
            assert_eq!(engine.snapshot().collection(&ns()).is_some(), comes_back);
        }
    }

    #[tokio::test]
    async fn what_breaks_an_index_is_said_at_once() {
        let (engine, turns) = (filled(1 << 30).await, turns());
        let specs = [doc! { "key": { "a": 1 } }, doc! { "key": { "b": 1 }, "unique": true }];
        let refused = indexes(&engine, &turns, &ns(), &specs).await.err().unwrap();
        assert_eq!(refused.code, code::DUPLICATE_KEY);
        assert!(indexes(&engine, &turns, &ns(), &specs[..1]).await.unwrap().is_some(), "the turn is free");
    }

    #[tokio::test]
    async fn entries_that_memory_has_no_room_for_are_not_built() {
        let used = filled(1 << 30).await.memory().used_bytes();
        let engine = filled(used * 10 / 8).await;
        let before = engine.operation_time();
        let specs = ["a", "b", "c", "d"].map(on_field).to_vec();
        let define = Definition::CreateIndexes { ns: ns(), specs };
        let refused = engine.define(define, Ack::WRITTEN).await.unwrap_err();
        assert_eq!(refused.code, code::EXCEEDED_MEMORY_LIMIT);
        assert_eq!(engine.operation_time(), before, "none was built");
    }

    #[tokio::test]
    async fn nothing_is_built_for_who_has_gone_or_while_the_engine_closes() {
        let engine = filled(1 << 30).await;
        let (caller, specs) = (Arc::new(()), [doc! { "key": { "a": 1 } }]);
        let asks = Arc::downgrade(&caller);
        assert!(build(&engine, &asks, &ns(), &specs).unwrap().is_some());
        drop(caller);
        assert_eq!(build(&engine, &asks, &ns(), &specs).err().unwrap().code, code::INTERRUPTED);
        engine.close().await.unwrap();
        let refused = indexes(&engine, &turns(), &ns(), &specs).await.err().unwrap();
        assert_eq!(refused.code, code::SHUTDOWN_IN_PROGRESS);
    }
}
