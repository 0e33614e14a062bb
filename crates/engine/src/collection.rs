//! One collection: its records and indexes, changed by effects.
//!
//! Invariants
//! * Every record has its entries in every index that covers it, and no others.
//! * Record numbers only grow; the order of records is the order of insertion.
//! * A change that would break a unique index changes nothing.
//! * A clone is a snapshot: it shares all nodes and never changes.

use crate::command::WriteError;
use crate::effects::{CollectionNumber, RecordNumber};
use crate::event::Uuid;
use crate::index::{ID_INDEX, Index, IndexSpec};
use crate::namespace::Namespace;
use crate::prebuilt::{ALWAYS, Prebuilt};
use crate::trie::Trie;
use rockdove_documents::collation::Collation;
use rockdove_documents::expr::Surroundings;
use rockdove_documents::filter::Filter;
use rockdove_documents::key::{KeySet, RowBuf};
use rockdove_documents::{Doc, DocBuilder, Error, RawDoc, Result, Value, code, doc};
use std::sync::Arc;

/// What a collection and each of its indexes are taken to need for their descriptions, besides the documents in them.
const DESCRIPTION_BYTES: u64 = 512;

/// What a collection is, apart from its documents.
#[derive(Clone, Debug)]
pub struct CollectionInfo {
    /// Its number in the log.
    pub number: CollectionNumber,
    /// Its name.
    pub ns: Namespace,
    /// Its lasting name.
    pub uuid: Uuid,
    /// Options as `create` and `collMod` gave them.
    pub options: Doc,
    /// Limits of a capped collection.
    pub capped: Option<Capped>,
    /// Whether change streams may ask for documents before and after changes.
    pub keeps_images: bool,
    /// What documents must match, if `validationAction` is `error`.
    pub validator: Option<Arc<Filter>>,
    /// For a view: the collection it reads and the stages it applies.
    pub view: Option<View>,
}

/// A view's definition.
#[derive(Clone, Debug)]
pub struct View {
    /// The collection or view it reads.
    pub on: Namespace,
    /// Its stages, an array.
    pub pipeline: Doc,
}

/// Limits of a capped collection; the oldest documents go when one is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capped {
    /// Bytes of documents.
    pub bytes_max: u64,
    /// Documents, if limited.
    pub count_max: Option<u64>,
}

/// A collection at one moment.
#[derive(Clone)]
pub struct Collection {
    /// What it is.
    pub info: Arc<CollectionInfo>,
    records: Trie<Doc>,
    indexes: Vec<Index>,
    /// The keys of `indexes`, in their order.
    keys: Arc<KeySet>,
    next_record: RecordNumber,
    bytes: u64,
}

/// What index maintenance uses: buffers, again and again.
#[derive(Default)]
pub struct Scratch {
    old: RowBuf,
    new: RowBuf,
    /// Indexes that were built beside the sequencer, for those that are created next.
    pub(crate) prebuilt: Option<Box<Prebuilt>>,
}

impl CollectionInfo {
    /// Reads the options of `create` (MongoDB manual, create).
    pub fn new(number: CollectionNumber, ns: Namespace, uuid: Uuid, options: Doc) -> Result<CollectionInfo> {
        let capped = match options.get("capped") {
            Some(Value::Bool(true)) => Some(Capped::parse(options.raw())?),
            _ => None,
        };
        let images = options.get("changeStreamPreAndPostImages").and_then(|images| images.as_document());
        let keeps_images = images.and_then(|images| images.get("enabled")) == Some(Value::Bool(true));
        let warn_only = matches!(options.get("validationAction"), Some(Value::String("warn")))
            || matches!(options.get("validationLevel"), Some(Value::String("off")));
        let collation = match options.get("collation") {
            Some(Value::Document(collation)) => Collation::parse(collation)?,
            _ => None,
        };
        let validator = match options.get("validator") {
            Some(Value::Document(filter)) if !warn_only && !filter.is_empty() => {
                Some(Arc::new(Surroundings { collation, ..Default::default() }.parse_filter(filter)?))
            }
            _ => None,
        };
        let view = match options.get("viewOn") {
            Some(Value::String(on)) => Some(View {
                on: Namespace::new(ns.database(), on)?,
                pipeline: options
                    .get("pipeline")
                    .and_then(|p| p.as_array())
                    .unwrap_or(RawDoc::empty())
                    .to_doc(),
            }),
            _ => None,
        };
        Ok(CollectionInfo { number, ns, uuid, options, capped, keeps_images, validator, view })
    }

    /// Whether a document that the validator refuses already may be changed (`validationLevel` `moderate`).
    pub fn spares_invalid(&self) -> bool {
        self.options.get("validationLevel") == Some(Value::String("moderate"))
    }

    /// The error of what only a collection can do, if this is a view.
    pub fn refuse_view(&self) -> Result<()> {
        match self.view {
            None => Ok(()),
            Some(_) => Err(Error::new(
                code::COMMAND_NOT_SUPPORTED_ON_VIEW,
                format!("Namespace {} is a view, not a collection", self.ns),
            )),
        }
    }
}

impl Capped {
    fn parse(options: RawDoc<'_>) -> Result<Capped> {
        let number = |field: &str| options.get(field).and_then(|value| value.as_integer());
        let bytes_max = number("size").filter(|size| *size > 0).ok_or_else(|| {
            Error::new(
                code::INVALID_OPTIONS,
                "the 'size' field is required when 'capped' is true and must be positive",
            )
        })?;
        let count_max = number("max").and_then(|max| u64::try_from(max).ok()).filter(|max| *max > 0);
        Ok(Capped { bytes_max: bytes_max as u64, count_max })
    }
}

impl Collection {
    /// An empty collection with its `_id` index (a view has none).
    pub fn new(info: CollectionInfo) -> Collection {
        let id = || IndexSpec::id(info.options.raw()).expect("the collation was read with the other options");
        let indexes = if info.view.is_some() { vec![] } else { vec![Index::new(Arc::new(id()))] };
        let (info, keys) = (Arc::new(info), key_set(&indexes));
        Collection { info, records: Trie::default(), indexes, keys, next_record: 1, bytes: 0 }
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no document.
    pub fn is_empty(&self) -> bool {
        self.records.len() == 0
    }

    /// Bytes of all documents together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of all index entries together.
    pub fn index_bytes(&self) -> u64 {
        self.indexes.iter().map(|index| index.tree.key_bytes() as u64).sum()
    }

    /// Bytes of what describes it, its indexes included: options, specifications and what goes with them.
    pub fn description_bytes(&self) -> u64 {
        let specs = self.indexes.iter().map(|index| index.spec.doc.bytes().len() as u64);
        let parts = 1 + self.indexes.len() as u64;
        parts * DESCRIPTION_BYTES + self.info.options.bytes().len() as u64 + specs.sum::<u64>()
    }

    /// The indexes, `_id_` first.
    pub fn indexes(&self) -> &[Index] {
        &self.indexes
    }

    /// The index of this name.
    pub fn index(&self, name: &str) -> Option<&Index> {
        self.indexes.iter().find(|index| index.spec.name == name)
    }

    /// The number the next inserted record gets.
    pub fn next_record(&self) -> RecordNumber {
        self.next_record
    }

    /// Makes the next record's number at least this (when a checkpoint is loaded).
    pub fn raise_next_record(&mut self, at_least: RecordNumber) {
        self.next_record = self.next_record.max(at_least);
    }

    /// A document by its record number.
    pub fn get(&self, record: RecordNumber) -> Option<&Doc> {
        self.records.get(record)
    }

    /// The first record at or after `from`.
    pub fn at_or_after(&self, from: RecordNumber) -> Option<(RecordNumber, &Doc)> {
        self.records.at_or_after(from)
    }

    /// The last record at or before `upto`.
    pub fn at_or_before(&self, upto: RecordNumber) -> Option<(RecordNumber, &Doc)> {
        self.records.at_or_before(upto)
    }

    pub(crate) fn trie(&self) -> &Trie<Doc> {
        &self.records
    }

    /// All records in insertion order.
    pub fn records(&self) -> impl Iterator<Item = (RecordNumber, &Doc)> {
        self.records.iter()
    }

    /// Inserts a document under `record`, which must be new.
    pub fn insert(
        &mut self,
        record: RecordNumber,
        doc: Doc,
        scratch: &mut Scratch,
    ) -> Result<(), WriteError> {
        self.make_keys(record, doc.raw(), scratch)?;
        for (number, index) in self.indexes.iter_mut().enumerate() {
            index.add(scratch.new.row(number));
        }
        self.bytes += doc.bytes().len() as u64;
        self.records.insert(record, doc);
        self.next_record = self.next_record.max(record + 1);
        Ok(())
    }

    /// Puts another document in a record's place.
    pub fn replace(
        &mut self,
        record: RecordNumber,
        doc: Doc,
        scratch: &mut Scratch,
    ) -> Result<(), WriteError> {
        let Some(old) = self.records.get(record).cloned() else { return Err(missing(record).into()) };
        self.make_keys(record, doc.raw(), scratch)?;
        self.keys_of(record, old.raw(), &mut scratch.old)?;
        for (number, index) in self.indexes.iter_mut().enumerate() {
            let (before, after) = (scratch.old.row(number), scratch.new.row(number));
            index.multikey |= after.multikey;
            if !before.entries().eq(after.entries()) {
                index.take_away(before);
                index.add(after);
            }
        }
        self.bytes = self.bytes + doc.bytes().len() as u64 - old.bytes().len() as u64;
        self.records.insert(record, doc);
        Ok(())
    }

    /// Removes a record and returns its document.
    pub fn remove(&mut self, record: RecordNumber, scratch: &mut Scratch) -> Option<Doc> {
        let doc = self.records.remove(record)?;
        // A document that is in the collection has keys.
        let made = self.keys_of(record, doc.raw(), &mut scratch.old);
        debug_assert_eq!(made, Ok(()));
        for (number, index) in self.indexes.iter_mut().enumerate() {
            index.take_away(scratch.old.row(number));
        }
        self.bytes -= doc.bytes().len() as u64;
        Some(doc)
    }

    /// The oldest record that a capped collection has to let go.
    pub fn evictable(&self) -> Option<RecordNumber> {
        let capped = self.info.capped?;
        let over =
            self.bytes > capped.bytes_max || capped.count_max.is_some_and(|max| self.len() as u64 > max);
        (over && self.len() > 1).then(|| self.at_or_after(0).map(|(record, _)| record))?
    }

    /// Builds an index over all documents; fails without a change if they break it.
    pub fn create_index(&mut self, spec: Arc<IndexSpec>, scratch: &mut Scratch) -> Result<(), WriteError> {
        let rows = &mut scratch.new;
        let prebuilt = scratch.prebuilt.as_mut();
        let built = match prebuilt.and_then(|built| Some((built.find(self.info.number, &spec)?, built))) {
            Some((at, built)) => {
                built.catch_up(self, rows, ALWAYS)?;
                built.index(at)
            }
            None => Prebuilt::build(self, std::slice::from_ref(&spec), rows, ALWAYS)?.index(0),
        };
        let index = Index { spec, ..built };
        self.indexes.retain(|other| other.spec.name != index.spec.name);
        self.indexes.push(index);
        self.keys = key_set(&self.indexes);
        Ok(())
    }

    /// Changes an index's specification without touching its entries.
    pub fn respecify_index(&mut self, spec: Arc<IndexSpec>) {
        if let Some(index) = self.indexes.iter_mut().find(|index| index.spec.name == spec.name) {
            index.spec = spec;
        }
    }

    /// Drops an index; the `_id` index stays.
    pub fn drop_index(&mut self, name: &str) {
        self.indexes.retain(|index| index.spec.name == ID_INDEX || index.spec.name != name);
        self.keys = key_set(&self.indexes);
    }

    /// Makes the document's keys for all indexes, before anything changes. Fails with `DuplicateKey` if another
    /// record has one of them in a unique index, or if the document cannot be indexed.
    fn make_keys(
        &self,
        record: RecordNumber,
        doc: RawDoc<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), WriteError> {
        let made = self.keys_of(record, doc, &mut scratch.new);
        // After an error the rows before it are there: what is wrong with the first index counts.
        for (number, index) in self.indexes.iter().enumerate() {
            if index.spec.unique && index.has_conflict(scratch.new.row(number), record) {
                return Err(duplicate_key(&self.info.ns, &index.spec, doc));
            }
        }
        Ok(made?)
    }

    /// A document's entries in all indexes.
    fn keys_of(&self, record: RecordNumber, doc: RawDoc<'_>, rows: &mut RowBuf) -> Result<()> {
        self.keys.keys(doc, &record.to_be_bytes(), |number| self.indexes[number].spec.covers(doc), rows)
    }
}

fn key_set(indexes: &[Index]) -> Arc<KeySet> {
    Arc::new(KeySet::new(indexes.iter().map(|index| &index.spec.key)))
}

fn missing(record: RecordNumber) -> Error {
    Error::new(code::INTERNAL_ERROR, format!("record {record} is not there"))
}

/// `E11000` with the index and the values concerned, in words and as drivers expect them in `writeErrors`.
pub(crate) fn duplicate_key(ns: &Namespace, spec: &IndexSpec, doc: RawDoc<'_>) -> WriteError {
    let value = key_value(spec, doc);
    let message = format!(
        "E11000 duplicate key error collection: {ns} index: {} dup key: {}",
        spec.name,
        rockdove_documents::show(Value::Document(value.raw()))
    );
    let details = doc! { "keyPattern": spec.key_doc(), "keyValue": value };
    WriteError { error: Error::new(code::DUPLICATE_KEY, message), details: Some(details) }
}

/// The values that a document has in an index's fields: `keyValue` of a duplicate key error.
fn key_value(spec: &IndexSpec, doc: RawDoc<'_>) -> Doc {
    let mut out = DocBuilder::new();
    for field in spec.key_doc() {
        let value = field.key().split('.').try_fold(Value::Document(doc), |value, name| match value {
            Value::Document(doc) => doc.get(name),
            _ => None,
        });
        out.append_value(field.key(), value.unwrap_or(Value::Null));
    }
    out.finish()
}
