//! Indexes: what they are asked to be, and their entries.
//!
//! An entry is the encoded key followed by the record's number (eight bytes, big-endian). Encoded keys end
//! themselves, so two entries with equal keys stand side by side and a key is found by its prefix.

use crate::effects::RecordNumber;
use crate::tree::Tree;
use rockdove_documents::collation::Collation;
use rockdove_documents::filter::{Filter, FilterOptions};
use rockdove_documents::key::{KeyPattern, Row};
use rockdove_documents::{Doc, DocBuilder, Element, Error, RawDoc, Result, Value, code};
use std::sync::Arc;

/// Bytes of the record number at an entry's end.
pub const RECORD_BYTES: usize = 8;
/// Name of the index that every collection has.
pub const ID_INDEX: &str = "_id_";

/// What an index is.
#[derive(Debug)]
pub struct IndexSpec {
    /// Its name, unique in its collection.
    pub name: String,
    /// Its fields and their directions.
    pub key: KeyPattern,
    /// No two documents may have an equal key.
    pub unique: bool,
    /// Documents without any of the fields are left out.
    pub sparse: bool,
    /// Only documents that match are in it.
    pub partial: Option<Filter>,
    /// A date in its field makes the document go this many seconds later.
    pub expire_after_seconds: Option<i64>,
    /// The planner does not use it.
    pub hidden: bool,
    /// The specification as `listIndexes` shows it.
    pub doc: Doc,
}

/// An index and its entries.
#[derive(Clone)]
pub struct Index {
    /// What it is.
    pub spec: Arc<IndexSpec>,
    /// Its entries.
    pub tree: Tree,
    /// Whether some document has several keys in it.
    pub multikey: bool,
}

impl IndexSpec {
    /// The `_id` index of a collection with these options: it compares as the collection does.
    pub fn id(options: RawDoc<'_>) -> Result<IndexSpec> {
        let doc = rockdove_documents::doc! { "v": 2, "key": { "_id": 1 }, "name": ID_INDEX };
        Ok(IndexSpec { unique: true, ..IndexSpec::parse(inheriting(&doc, options).raw())? })
    }

    /// Reads one entry of `createIndexes.indexes` (MongoDB manual, createIndexes).
    pub fn parse(spec: RawDoc<'_>) -> Result<IndexSpec> {
        let key_doc = match spec.get("key") {
            Some(Value::Document(key)) => key,
            Some(_) => return Err(Error::type_mismatch("The field 'key' of an index must be an object")),
            None => {
                return Err(Error::failed_to_parse(
                    "The 'key' field is a required property of an index specification",
                ));
            }
        };
        let collation = match spec.get("collation") {
            Some(Value::Document(collation)) => Collation::parse(collation)?,
            Some(_) => {
                return Err(Error::type_mismatch("The field 'collation' of an index must be an object"));
            }
            None => None,
        };
        let key = KeyPattern::parse(key_doc)?.collated(collation).sparse(flag(spec, "sparse")?);
        let name = match spec.get("name") {
            Some(Value::String(name)) if !name.is_empty() && name != "*" => name.to_string(),
            Some(Value::String(name)) => {
                return Err(Error::new(
                    code::CANNOT_CREATE_INDEX,
                    format!("The index name '{name}' is not valid"),
                ));
            }
            Some(_) => return Err(Error::type_mismatch("The field 'name' of an index must be a string")),
            None => default_name(key_doc),
        };
        let flag = |field: &str| flag(spec, field);
        let partial = match spec.get("partialFilterExpression") {
            Some(Value::Document(filter)) => Some(Filter::parse(filter, &FilterOptions::default())?),
            Some(_) => return Err(Error::type_mismatch("partialFilterExpression must be an object")),
            None => None,
        };
        let (unique, sparse, hidden) = (flag("unique")?, flag("sparse")?, flag("hidden")?);
        if sparse && partial.is_some() {
            let message = "cannot mix \"partialFilterExpression\" and \"sparse\" options";
            return Err(Error::new(code::CANNOT_CREATE_INDEX, message));
        }
        let expire_after_seconds = expiry(spec, key_doc)?;
        let doc = listed(spec, key_doc, &name);
        Ok(IndexSpec { name, key, unique, sparse, partial, expire_after_seconds, hidden, doc })
    }

    /// The fields and directions as the user wrote them.
    pub fn key_doc(&self) -> RawDoc<'_> {
        self.doc.get("key").and_then(|key| key.as_document()).unwrap_or(RawDoc::empty())
    }

    /// Whether both have the same keys and the options that make an index another one.
    pub fn same_signature(&self, other: &IndexSpec) -> bool {
        let part = |spec: &IndexSpec, field: &str| spec.doc.get(field).map(|value| value.to_owned());
        same_keys(self.key_doc(), other.key_doc())
            && (self.unique, self.sparse) == (other.unique, other.sparse)
            && part(self, "partialFilterExpression") == part(other, "partialFilterExpression")
            && part(self, "collation") == part(other, "collation")
    }

    /// Whether its fields and directions are these.
    pub fn has_keys(&self, keys: RawDoc<'_>) -> bool {
        same_keys(self.key_doc(), keys)
    }

    /// Whether a document belongs into the index, unless it is sparse and the document has none of its fields.
    pub fn covers(&self, doc: RawDoc<'_>) -> bool {
        self.partial.as_ref().is_none_or(|filter| filter.matches(doc).unwrap_or(false))
    }
}

/// Whether two key documents name the same fields in the same directions, whatever their number types.
fn same_keys(a: RawDoc<'_>, b: RawDoc<'_>) -> bool {
    let plain = |doc: RawDoc<'_>| {
        let fields = doc.iter().map(|element| (element.key().to_string(), direction(element.value())));
        fields.collect::<Vec<_>>()
    };
    plain(a) == plain(b)
}

/// `field_1_other_-1`.
fn default_name(key: RawDoc<'_>) -> String {
    let parts = key.iter().map(|element| format!("{}_{}", element.key(), direction(element.value())));
    parts.collect::<Vec<_>>().join("_")
}

fn direction(value: Value<'_>) -> String {
    match value {
        Value::String(kind) => kind.to_string(),
        value => value.as_f64().map_or_else(String::new, |number| number.to_string()),
    }
}

fn flag(spec: RawDoc<'_>, field: &str) -> Result<bool> {
    match spec.get(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(value),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(number != 0.0),
            None => Err(Error::type_mismatch(format!("The field '{field}' of an index must be a boolean"))),
        },
    }
}

fn expiry(spec: RawDoc<'_>, key: RawDoc<'_>) -> Result<Option<i64>> {
    let seconds = match spec.get("expireAfterSeconds") {
        None => return Ok(None),
        Some(value) => value.as_f64().filter(|seconds| (0.0..=f64::from(i32::MAX)).contains(seconds)),
    };
    let fault = |message: &str| Err(Error::new(code::CANNOT_CREATE_INDEX, message));
    match seconds {
        None => fault("TTL index 'expireAfterSeconds' must be a number of at least 0 and at most 2147483647"),
        Some(_) if key.len() != 1 => {
            fault("TTL indexes are single-field indexes, compound indexes do not support TTL")
        }
        Some(_) if key.get("_id").is_some() => {
            fault("The field 'expireAfterSeconds' is not valid for an _id index")
        }
        Some(seconds) => Ok(Some(seconds as i64)),
    }
}

/// A specification of a collection with these options: one that names no collation takes the collection's (MongoDB
/// manual, collation).
pub fn inheriting(spec: &Doc, options: RawDoc<'_>) -> Doc {
    match (spec.get("collation"), options.get("collation")) {
        (None, Some(Value::Document(collation))) => {
            let mut out = DocBuilder::new();
            out.append_all(spec.raw()).append("collation", collation);
            out.finish()
        }
        _ => spec.clone(),
    }
}

/// Whether an option of an index says what is so without it.
fn says_nothing(element: &Element<'_>) -> bool {
    let locale = || element.value().as_document().and_then(|collation| collation.get("locale"));
    element.key() == "collation" && locale() == Some(Value::String("simple"))
}

/// The specification as `listIndexes` shows it: `v`, `key`, `name`, then the options as given.
fn listed(spec: RawDoc<'_>, key: RawDoc<'_>, name: &str) -> Doc {
    let mut out = DocBuilder::new();
    out.append("v", 2).append("key", key).append("name", name);
    for element in spec {
        if !matches!(element.key(), "v" | "key" | "name" | "ns") && !says_nothing(&element) {
            out.append_element(element);
        }
    }
    out.finish()
}

impl Index {
    /// An index without entries.
    pub fn new(spec: Arc<IndexSpec>) -> Index {
        Index { spec, tree: Tree::default(), multikey: false }
    }

    /// The record that has exactly this key, if any (the first one by record number).
    pub fn find(&self, key: &[u8]) -> Option<RecordNumber> {
        let entry = self.tree.first_at_or_after(key)?;
        let found = entry.len() == key.len() + RECORD_BYTES && entry.starts_with(key);
        entry.last_bytes().filter(|_| found).map(RecordNumber::from_be_bytes)
    }

    /// Whether a record other than `own` has one of these keys.
    pub fn has_conflict(&self, row: Row<'_>, own: RecordNumber) -> bool {
        row.keys().any(|key| self.find(key).is_some_and(|record| record != own))
    }

    /// Adds a record's entries.
    pub fn add(&mut self, row: Row<'_>) {
        self.multikey |= row.multikey;
        for entry in row.entries() {
            self.tree.insert(entry);
        }
    }

    /// Takes a record's entries away.
    pub fn take_away(&mut self, row: Row<'_>) {
        for entry in row.entries() {
            self.tree.remove(entry);
        }
    }
}

/// The record an entry points to.
pub fn record_of(entry: &[u8]) -> RecordNumber {
    let at = entry.len().saturating_sub(RECORD_BYTES);
    entry[at..].try_into().map_or(0, RecordNumber::from_be_bytes)
}
