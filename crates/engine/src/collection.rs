//! One collection: its records and indexes, changed by effects.
//!
//! Invariants
//! * Every record has its entries in every index that covers it, and no others.
//! * Record numbers only grow; the order of records is the order of insertion.
//! * A change that would break a unique index changes nothing.
//! * A clone is a snapshot: it shares all nodes and never changes.

use crate::effects::{CollectionNumber, RecordNumber};
use crate::event::Uuid;
use crate::index::{ID_INDEX, Index, IndexSpec};
use crate::namespace::Namespace;
use crate::trie::Trie;
use rockdove_documents::filter::Filter;
use rockdove_documents::key::{Fields, KeyBuf, encode_key};
use rockdove_documents::{Doc, DocBuilder, Error, RawDoc, Result, Value, code};
use std::sync::Arc;

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
    next_record: RecordNumber,
    bytes: u64,
}

/// Buffers that index maintenance uses again and again.
#[derive(Default)]
pub struct Scratch {
    old: KeyBuf,
    /// The new keys, index by index.
    new: Vec<Keys>,
    entry: Vec<u8>,
}

/// A document's keys in one index.
#[derive(Default)]
struct Keys {
    keys: KeyBuf,
    multikey: bool,
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
        let validator = match options.get("validator") {
            Some(Value::Document(filter)) if !warn_only && !filter.is_empty() => {
                Some(Arc::new(Filter::parse(filter, &Default::default())?))
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
        let indexes = if info.view.is_some() { vec![] } else { vec![Index::new(Arc::new(IndexSpec::id()))] };
        Collection { info: Arc::new(info), records: Trie::default(), indexes, next_record: 1, bytes: 0 }
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

    /// All records in insertion order.
    pub fn records(&self) -> impl Iterator<Item = (RecordNumber, &Doc)> {
        self.records.iter()
    }

    /// The record whose `_id` equals `id`.
    pub fn find_id(&self, id: Value<'_>, scratch: &mut Scratch) -> Option<RecordNumber> {
        scratch.entry.clear();
        encode_key(id, &mut scratch.entry);
        self.indexes.first()?.find(&scratch.entry)
    }

    /// Inserts a document under `record`, which must be new.
    pub fn insert(&mut self, record: RecordNumber, doc: Doc, scratch: &mut Scratch) -> Result<()> {
        self.make_keys(record, doc.raw(), scratch)?;
        for (index, keys) in self.indexes.iter_mut().zip(&scratch.new) {
            index.multikey |= keys.multikey;
            index.add(&keys.keys, record, &mut scratch.entry);
        }
        self.bytes += doc.bytes().len() as u64;
        self.records.insert(record, doc);
        self.next_record = self.next_record.max(record + 1);
        Ok(())
    }

    /// Puts another document in a record's place.
    pub fn replace(&mut self, record: RecordNumber, doc: Doc, scratch: &mut Scratch) -> Result<()> {
        let Some(old) = self.records.get(record).cloned() else { return Err(missing(record)) };
        self.make_keys(record, doc.raw(), scratch)?;
        let before = Fields::new(old.raw());
        for (index, keys) in self.indexes.iter_mut().zip(&scratch.new) {
            scratch.old.clear();
            if index.spec.covers(old.raw()) {
                index.spec.key.keys_of(&before, &mut scratch.old)?;
            }
            index.multikey |= keys.multikey;
            if !scratch.old.iter().eq(keys.keys.iter()) {
                index.take_away(&scratch.old, record, &mut scratch.entry);
                index.add(&keys.keys, record, &mut scratch.entry);
            }
        }
        self.bytes = self.bytes + doc.bytes().len() as u64 - old.bytes().len() as u64;
        drop(before);
        self.records.insert(record, doc);
        Ok(())
    }

    /// Removes a record and returns its document.
    pub fn remove(&mut self, record: RecordNumber, scratch: &mut Scratch) -> Option<Doc> {
        let doc = self.records.remove(record)?;
        for index in &mut self.indexes {
            if index.spec.covers(doc.raw()) && index.spec.key.keys(doc.raw(), &mut scratch.old).is_ok() {
                index.take_away(&scratch.old, record, &mut scratch.entry);
            }
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
    pub fn create_index(&mut self, spec: Arc<IndexSpec>, scratch: &mut Scratch) -> Result<()> {
        let mut index = Index::new(spec);
        for (record, doc) in self.records.iter() {
            if index.spec.covers(doc.raw()) {
                index.multikey |= index.spec.key.keys(doc.raw(), &mut scratch.old)?;
                if index.spec.unique && index.conflict(&scratch.old, record).is_some() {
                    return Err(duplicate_key(&self.info.ns, &index.spec, doc.raw()));
                }
                index.add(&scratch.old, record, &mut scratch.entry);
            }
        }
        self.indexes.retain(|other| other.spec.name != index.spec.name);
        self.indexes.push(index);
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
    }

    /// Makes the document's keys for all indexes, before anything changes. Fails with `DuplicateKey` if another
    /// record has one of them in a unique index, or if the document cannot be indexed.
    fn make_keys(&self, record: RecordNumber, doc: RawDoc<'_>, scratch: &mut Scratch) -> Result<()> {
        scratch.new.resize_with(self.indexes.len(), Keys::default);
        let fields = Fields::new(doc);
        for (index, keys) in self.indexes.iter().zip(&mut scratch.new) {
            keys.keys.clear();
            keys.multikey = false;
            if index.spec.covers(doc) {
                keys.multikey = index.spec.key.keys_of(&fields, &mut keys.keys)?;
                if index.spec.unique && index.conflict(&keys.keys, record).is_some() {
                    return Err(duplicate_key(&self.info.ns, &index.spec, doc));
                }
            }
        }
        Ok(())
    }
}

fn missing(record: RecordNumber) -> Error {
    Error::new(code::INTERNAL_ERROR, format!("record {record} is not there"))
}

/// `E11000` with the index and the values concerned, as drivers show it.
fn duplicate_key(ns: &Namespace, spec: &IndexSpec, doc: RawDoc<'_>) -> Error {
    let message = format!(
        "E11000 duplicate key error collection: {ns} index: {} dup key: {}",
        spec.name,
        rockdove_documents::show(Value::Document(key_value(spec, doc).raw()))
    );
    Error::new(code::DUPLICATE_KEY, message)
}

/// The values that a document has in an index's fields: `keyValue` of a duplicate key error.
pub fn key_value(spec: &IndexSpec, doc: RawDoc<'_>) -> Doc {
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
