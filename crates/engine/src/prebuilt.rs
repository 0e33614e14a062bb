//! Indexes that are built beside the sequencer, so that nobody waits for a large one.
//!
//! ```text
//! snapshot ─► entries of all documents ─► newer snapshot ─► entries of what changed ─► … ─► sequencer: the rest
//! ```
//!
//! Invariants
//! * What the sequencer takes over has the entries of the documents that are there then, as if it had built it itself.
//! * Whatever goes wrong here is left to the sequencer, which then builds the index itself and says what is wrong.

use crate::collection::{Collection, duplicate_key};
use crate::command::WriteError;
use crate::effects::{CollectionNumber, RecordNumber};
use crate::engine::Engine;
use crate::index::{Index, IndexSpec, inheriting};
use crate::namespace::Namespace;
use crate::trie::Trie;
use rockdove_documents::key::{KeySet, RowBuf};
use rockdove_documents::{Doc, Error, Result, code};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A smaller collection is little work.
const FEW_DOCUMENTS: usize = 1000;
/// So few changed documents are left to the sequencer.
const REST_MAX: usize = 500;
/// How often what has changed meanwhile is caught up with, if others write that much.
const ROUNDS_MAX: usize = 10;

/// An index and the documents that it has the entries of.
pub struct Prebuilt {
    collection: CollectionNumber,
    records: Trie<Doc>,
    index: Index,
    keys: KeySet,
}

impl Prebuilt {
    /// Builds an index over all documents; fails if they break it.
    pub fn build(
        collection: &Collection,
        spec: Arc<IndexSpec>,
        rows: &mut RowBuf,
    ) -> Result<Prebuilt, WriteError> {
        let (keys, index) = (KeySet::new([&spec.key]), Index::new(spec));
        let mut built =
            Prebuilt { collection: collection.info.number, records: Trie::default(), index, keys };
        for (record, doc) in collection.trie().iter() {
            built.add(&collection.info.ns, record, doc, rows)?;
        }
        built.records = collection.trie().clone();
        Ok(built)
    }

    /// Whether it is this index of this collection.
    pub fn is(&self, collection: CollectionNumber, spec: &IndexSpec) -> bool {
        self.collection == collection
            && self.index.spec.name == spec.name
            && self.index.spec.same_signature(spec)
    }

    /// Takes in what has changed; how many documents did. Of no more use if that breaks the index.
    pub fn catch_up(&mut self, collection: &Collection, rows: &mut RowBuf) -> Result<usize, WriteError> {
        let (mut gone, mut new) = (Vec::new(), Vec::new());
        collection.trie().changes(&self.records, &mut |record, before, after| {
            if before.map(Doc::bytes) != after.map(Doc::bytes) {
                gone.extend(before.cloned().map(|doc| (record, doc)));
                new.extend(after.cloned().map(|doc| (record, doc)));
            }
        });
        // All of them before: what one document gives up another may have taken.
        for (record, doc) in &gone {
            self.keys_of(*record, doc, rows)?;
            self.index.take_away(rows.row(0));
        }
        for (record, doc) in &new {
            self.add(&collection.info.ns, *record, doc, rows)?;
        }
        self.records = collection.trie().clone();
        Ok(gone.len().max(new.len()))
    }

    /// The index, under this specification.
    pub fn into_index(self, spec: Arc<IndexSpec>) -> Index {
        Index { spec, ..self.index }
    }

    fn add(
        &mut self,
        ns: &Namespace,
        record: RecordNumber,
        doc: &Doc,
        rows: &mut RowBuf,
    ) -> Result<(), WriteError> {
        self.keys_of(record, doc, rows)?;
        if self.index.spec.unique && self.index.has_conflict(rows.row(0), record) {
            return Err(duplicate_key(ns, &self.index.spec, doc.raw()));
        }
        self.index.add(rows.row(0));
        Ok(())
    }

    fn keys_of(&self, record: RecordNumber, doc: &Doc, rows: &mut RowBuf) -> Result<()> {
        let (spec, record) = (&self.index.spec, record.to_be_bytes());
        self.keys.keys(doc.raw(), &record, |_| spec.covers(doc.raw()), rows)
    }
}

/// Builds those of the indexes that are not there, if the collection is large.
pub async fn indexes(
    engine: &Engine,
    turns: &Arc<Semaphore>,
    ns: &Namespace,
    specs: &[Doc],
) -> Result<Vec<Prebuilt>> {
    let state = engine.snapshot();
    let memory = engine.memory();
    let large = state.collection(ns).filter(|there| there.len() >= FEW_DOCUMENTS).cloned();
    let Some(collection) = large.filter(|_| memory.takes_all(memory.used_bytes())) else {
        return Ok(Vec::new());
    };
    let missing = |spec: &IndexSpec| {
        let mut there = collection.indexes().iter().map(|index| &index.spec);
        there.all(|there| there.name != spec.name && !there.same_signature(spec))
    };
    let options = collection.info.options.raw();
    let parsed = specs.iter().filter_map(|spec| IndexSpec::parse(inheriting(spec, options).raw()).ok());
    let wanted: Vec<Arc<IndexSpec>> = parsed.filter(missing).map(Arc::new).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let turn = turns.clone().acquire_owned().await.map_err(|error| internal(&error))?;
    let engine = engine.clone();
    let work = move || {
        let _turn = turn;
        build_all(&engine, &collection, wanted)
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| internal(&error))
}

fn build_all(engine: &Engine, collection: &Arc<Collection>, wanted: Vec<Arc<IndexSpec>>) -> Vec<Prebuilt> {
    let mut rows = RowBuf::default();
    let build = |spec| Prebuilt::build(collection, spec, &mut rows).ok();
    let mut built: Vec<Prebuilt> = wanted.into_iter().filter_map(build).collect();
    for _ in 0..ROUNDS_MAX {
        let state = engine.snapshot();
        let Some(collection) = state.by_number(collection.info.number) else { return Vec::new() };
        let mut changed = 0;
        built.retain_mut(|built| match built.catch_up(collection, &mut rows) {
            Ok(count) => {
                changed = changed.max(count);
                true
            }
            Err(_) => false,
        });
        if changed <= REST_MAX {
            break;
        }
    }
    built
}

fn internal(error: &dyn std::error::Error) -> Error {
    Error::new(code::INTERNAL_ERROR, format!("indexes could not be built: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::{CollectionInfo, Scratch};
    use proptest::prelude::*;
    use rockdove_documents::doc;

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
            let build = |collection: &Collection, spec: &Arc<IndexSpec>, rows: &mut RowBuf| {
                Prebuilt::build(collection, spec.clone(), rows).ok().unwrap()
            };
            let mut built: Vec<_> = specs.iter().map(|spec| build(&collection, spec, &mut rows)).collect();
            for round in rounds {
                round.into_iter().for_each(|one| change(&mut collection, one));
                for (built, spec) in built.iter_mut().zip(&specs) {
                    built.catch_up(&collection, &mut rows).unwrap();
                    let fresh = build(&collection, spec, &mut rows);
                    prop_assert_eq!(entries(&built.index), entries(&fresh.index));
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
        let mut built = Prebuilt::build(&collection, unique, &mut rows).ok().unwrap();
        for (record, value) in [(1, Some(9)), (2, Some(1)), (3, None), (4, Some(2))] {
            change(&mut collection, (record, value));
        }
        assert_eq!(built.catch_up(&collection, &mut rows), Ok(3));
        assert_eq!(built.catch_up(&collection, &mut rows), Ok(0));
        change(&mut collection, (5, Some(9)));
        assert_eq!(built.catch_up(&collection, &mut rows).unwrap_err().error.code, code::DUPLICATE_KEY);
    }
}
