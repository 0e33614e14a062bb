//! The state: all collections at one moment, and how an effect changes it.
//!
//! Invariants
//! * Applying the same effects in the same order gives the same state; nothing else does anything to it.
//! * A clone is a snapshot and costs a few reference counts.
//! * An effect that fails changed nothing.

use crate::collection::{Collection, CollectionInfo, Scratch};
use crate::command::WriteError;
use crate::effects::{CollectionNumber, Effect};
use crate::event::{Change, Event, Uuid};
use crate::index::IndexSpec;
use crate::namespace::Namespace;
use crate::trie::Trie;
use rockdove_documents::diff::{self, UpdateDescription};
use rockdove_documents::{Doc, DocBuilder, Error, RawDoc, Result, Timestamp, Value, code};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All collections at one moment.
#[derive(Clone, Default)]
pub struct State {
    names: Arc<BTreeMap<Namespace, CollectionNumber>>,
    collections: Trie<Arc<Collection>>,
    next_collection: CollectionNumber,
    dropped: Arc<Vec<Dropped>>,
    /// Time of the last effect.
    at: Timestamp,
    /// Bytes of documents, index entries and descriptions.
    bytes: u64,
    /// A collection of fewer bytes counts as tiny.
    tiny: u64,
    /// Bytes of all tiny collections together.
    tiny_bytes: u64,
}

/// A collection that is gone but still has events in the feed's history.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// Its number in the log.
    pub number: CollectionNumber,
    /// Its last name.
    pub ns: Namespace,
    /// Its lasting name.
    pub uuid: Uuid,
    /// When it went.
    pub at: Timestamp,
}

impl State {
    /// Time of the last effect.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Bytes of documents, index entries and descriptions.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of all tiny collections together.
    pub fn tiny_bytes(&self) -> u64 {
        self.tiny_bytes
    }

    /// Counts collections of fewer bytes than this as tiny from now on.
    pub fn tell_tiny(&mut self, below: u64) {
        self.tiny = below;
        self.tiny_bytes =
            self.collections().map(|collection| weight(collection)).filter(|w| *w < below).sum();
    }

    /// Keeps the counts of bytes: a collection counted for `before` and now counts for `after`.
    fn count(&mut self, before: u64, after: u64) {
        let if_tiny = |bytes: u64| if bytes < self.tiny { bytes } else { 0 };
        self.tiny_bytes = self.tiny_bytes + if_tiny(after) - if_tiny(before);
        self.bytes = self.bytes + after - before;
    }

    /// The collection of this name.
    pub fn collection(&self, ns: &Namespace) -> Option<&Arc<Collection>> {
        self.names.get(ns).and_then(|number| self.by_number(*number))
    }

    /// The collection of this number.
    pub fn by_number(&self, number: CollectionNumber) -> Option<&Arc<Collection>> {
        self.collections.get(u64::from(number))
    }

    /// All collections in the order of their names.
    pub fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.names.values().filter_map(|number| self.by_number(*number))
    }

    /// The collections of a database in the order of their names.
    pub fn in_database<'s>(&'s self, database: &'s str) -> impl Iterator<Item = &'s Arc<Collection>> {
        self.collections().filter(move |collection| collection.info.ns.database() == database)
    }

    /// The databases that have a collection, in order.
    pub fn databases(&self) -> Vec<String> {
        let mut names: Vec<String> = self.names.keys().map(|ns| ns.database().to_string()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The number for the next collection.
    pub fn next_collection(&self) -> CollectionNumber {
        self.next_collection.max(1)
    }

    /// Collections that are gone but may still be named by history.
    pub fn dropped(&self) -> &[Dropped] {
        &self.dropped
    }

    /// Forgets collections dropped before `before`.
    pub fn forget_dropped(&mut self, before: Timestamp) {
        if self.dropped.iter().any(|dropped| dropped.at < before) {
            Arc::make_mut(&mut self.dropped).retain(|dropped| dropped.at >= before);
        }
    }

    /// Puts a collection in as a checkpoint has it.
    pub fn restore(&mut self, collection: Collection, at: Timestamp) {
        let number = collection.info.number;
        self.next_collection = self.next_collection.max(number + 1);
        self.count(0, weight(&collection));
        Arc::make_mut(&mut self.names).insert(collection.info.ns.clone(), number);
        self.collections.insert(u64::from(number), Arc::new(collection));
        self.at = self.at.max(at);
    }

    /// Puts in what a checkpoint knows besides collections.
    pub fn restore_rest(&mut self, next_collection: CollectionNumber, dropped: Vec<Dropped>, at: Timestamp) {
        self.next_collection = self.next_collection.max(next_collection);
        self.dropped = Arc::new(dropped);
        self.at = self.at.max(at);
    }

    /// Applies an effect. `after` is the document after a patch, if it is known already; otherwise it is made
    /// from the description. Returns the event that change streams see, if any.
    pub fn apply(
        &mut self,
        at: Timestamp,
        wall_ms: i64,
        effect: &Effect,
        after: Option<Doc>,
        scratch: &mut Scratch,
    ) -> Result<Option<Event>, WriteError> {
        let event = self.change(at, effect, after, scratch)?;
        self.at = at;
        Ok(event.map(|(info, change, before)| {
            let mut event = Event::new(at, wall_ms, info.ns.clone(), info.uuid, change);
            (event.before, event.keeps_images) = (before, info.keeps_images);
            event
        }))
    }

    #[allow(clippy::type_complexity, reason = "the parts of one event")]
    fn change(
        &mut self,
        at: Timestamp,
        effect: &Effect,
        after: Option<Doc>,
        scratch: &mut Scratch,
    ) -> Result<Option<(Arc<CollectionInfo>, Change, Option<Doc>)>, WriteError> {
        Ok(Some(match effect {
            Effect::Insert { collection, record, doc } => {
                let info = self.modify(*collection, |c| {
                    c.insert(*record, doc.clone(), scratch)?;
                    evict(c, scratch);
                    Ok(())
                })?;
                (info, Change::Insert { doc: doc.clone() }, None)
            }
            Effect::Replace { collection, record, doc, before } => {
                let info = self.modify(*collection, |c| c.replace(*record, doc.clone(), scratch))?;
                (info, Change::Replace { doc: doc.clone() }, before.clone())
            }
            Effect::Patch { collection, record, key, description, before } => {
                let after = match after {
                    Some(after) => after,
                    None => self.patched(*collection, *record, description)?,
                };
                let info = self.modify(*collection, |c| c.replace(*record, after.clone(), scratch))?;
                let change =
                    Change::Update { key: key.clone(), description: description.clone(), after: Some(after) };
                (info, change, before.clone())
            }
            Effect::Remove { collection, record, key, before } => {
                let info = self.modify(*collection, |c| {
                    c.remove(*record, scratch);
                    Ok(())
                })?;
                (info, Change::Delete { key: key.clone() }, before.clone())
            }
            Effect::Create { collection, info } => {
                let info = self.create(*collection, info)?;
                let options = info.options.clone();
                (info, Change::Create { options }, None)
            }
            Effect::Drop { collection } => (self.drop_collection(at, *collection)?, Change::Drop, None),
            Effect::Rename { collection, names } => self.rename(*collection, names)?,
            Effect::Modify { collection, options } => {
                let old = self.info(*collection)?;
                let info = CollectionInfo::new(*collection, old.ns.clone(), old.uuid, options.clone())?;
                let info = self.modify(*collection, |c| {
                    c.info = Arc::new(info);
                    Ok(())
                })?;
                (info, Change::Modify { options: options.clone() }, None)
            }
            Effect::CreateIndex { collection, spec } => {
                let parsed = Arc::new(IndexSpec::parse(spec.raw())?);
                let info = self.modify(*collection, |c| match c.index(&parsed.name) {
                    Some(old) if old.spec.same_signature(&parsed) => {
                        c.respecify_index(parsed.clone());
                        Ok(())
                    }
                    _ => c.create_index(parsed.clone(), scratch),
                })?;
                (info, Change::CreateIndex { spec: spec.clone() }, None)
            }
            Effect::DropIndex { collection, name } => {
                let text = name.get("name").and_then(|name| name.as_str()).unwrap_or_default().to_string();
                let info = self.modify(*collection, |c| {
                    c.drop_index(&text);
                    Ok(())
                })?;
                (info, Change::DropIndex { spec: name.clone() }, None)
            }
            Effect::DropDatabase { name } => {
                let database = name.get("db").and_then(|name| name.as_str()).unwrap_or_default();
                let ns = Namespace::new(database, "$cmd")?;
                let info = CollectionInfo::new(0, ns, [0; 16], Doc::empty())?;
                (Arc::new(info), Change::DropDatabase, None)
            }
            Effect::Retryable { .. } => return Ok(None),
        }))
    }

    fn info(&self, number: CollectionNumber) -> Result<Arc<CollectionInfo>> {
        self.by_number(number).map(|collection| collection.info.clone()).ok_or_else(|| unknown(number))
    }

    /// Changes a collection and keeps the count of bytes.
    fn modify(
        &mut self,
        number: CollectionNumber,
        change: impl FnOnce(&mut Collection) -> Result<(), WriteError>,
    ) -> Result<Arc<CollectionInfo>, WriteError> {
        let slot = self.collections.get_mut(u64::from(number)).ok_or_else(|| unknown(number))?;
        let collection = Arc::make_mut(slot);
        let before = weight(collection);
        let result = change(collection);
        let (after, info) = (weight(collection), collection.info.clone());
        self.count(before, after);
        result.map(|()| info)
    }

    /// A record's document with a patch applied.
    fn patched(&self, number: CollectionNumber, record: u64, description: &Doc) -> Result<Doc> {
        let old = self.by_number(number).and_then(|collection| collection.get(record));
        let old = old.ok_or_else(|| {
            Error::new(
                code::INTERNAL_ERROR,
                format!("the log patches record {record} of collection {number}, which is not there"),
            )
        })?;
        diff::apply(old.raw(), &UpdateDescription::from_doc(description.raw())?)
    }

    fn create(&mut self, number: CollectionNumber, info: &Doc) -> Result<Arc<CollectionInfo>> {
        let ns = Namespace::parse(info.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default())?;
        let uuid = uuid_of(info.raw()).ok_or_else(|| unknown(number))?;
        let options = info.get("options").and_then(|options| options.as_document());
        let info =
            CollectionInfo::new(number, ns.clone(), uuid, options.unwrap_or(RawDoc::empty()).to_doc())?;
        let collection = Arc::new(Collection::new(info));
        self.count(0, weight(&collection));
        let info = collection.info.clone();
        Arc::make_mut(&mut self.names).insert(ns, number);
        self.collections.insert(u64::from(number), collection);
        self.next_collection = self.next_collection.max(number + 1);
        Ok(info)
    }

    fn drop_collection(&mut self, at: Timestamp, number: CollectionNumber) -> Result<Arc<CollectionInfo>> {
        let gone = self.collections.remove(u64::from(number)).ok_or_else(|| unknown(number))?;
        self.count(weight(&gone), 0);
        Arc::make_mut(&mut self.names).remove(&gone.info.ns);
        let dropped = Dropped { number, ns: gone.info.ns.clone(), uuid: gone.info.uuid, at };
        Arc::make_mut(&mut self.dropped).push(dropped);
        Ok(gone.info.clone())
    }

    #[allow(clippy::type_complexity, reason = "the parts of one event")]
    fn rename(
        &mut self,
        number: CollectionNumber,
        names: &Doc,
    ) -> Result<(Arc<CollectionInfo>, Change, Option<Doc>)> {
        let to = Namespace::parse(names.get("to").and_then(|to| to.as_str()).unwrap_or_default())?;
        let old = self.info(number)?;
        let info = CollectionInfo { ns: to.clone(), ..(*old).clone() };
        self.modify(number, |c| {
            c.info = Arc::new(info);
            Ok(())
        })?;
        let all = Arc::make_mut(&mut self.names);
        all.remove(&old.ns);
        all.insert(to.clone(), number);
        Ok((old, Change::Rename { to, dropped: drop_target(names) }, None))
    }
}

/// Lets the oldest records of a capped collection go until its limits hold.
fn evict(collection: &mut Collection, scratch: &mut Scratch) {
    while let Some(record) = collection.evictable() {
        collection.remove(record, scratch);
    }
}

/// Bytes a collection counts for.
pub fn weight(collection: &Collection) -> u64 {
    collection.bytes() + collection.index_bytes() + collection.description_bytes()
}

fn unknown(number: CollectionNumber) -> Error {
    Error::new(code::INTERNAL_ERROR, format!("collection {number} of the log is not there"))
}

/// The collection that was dropped for a renamed one.
pub fn drop_target(names: &Doc) -> Option<Uuid> {
    match names.get("dropTarget") {
        Some(Value::Binary { bytes, .. }) => bytes.try_into().ok(),
        _ => None,
    }
}

/// The `uuid` field of a collection's description in the log.
pub fn uuid_of(info: RawDoc<'_>) -> Option<Uuid> {
    match info.get("uuid") {
        Some(Value::Binary { bytes, .. }) => bytes.try_into().ok(),
        _ => None,
    }
}

/// A collection's description for the log.
pub fn describe(ns: &Namespace, uuid: Uuid, options: RawDoc<'_>) -> Doc {
    let mut info = DocBuilder::new();
    info.append("ns", ns.full()).append_value("uuid", Value::Binary { subtype: 4, bytes: &uuid });
    info.append("options", options);
    info.finish()
}
