//! How the sequencer carries out inserts, updates and deletions: find, evaluate, turn into effects.
//!
//! Semantics follow the MongoDB manual: an update counts what matched and what changed, a change that changes
//! nothing has no effect and no event, an upsert takes its fields from the filter's equalities.

use crate::collection::{Collection, CollectionInfo};
use crate::command::{
    DeleteStatement, FindAndModify, FindAndModifyReply, Modify, Outcome, Receipt, Statement, UpdateStatement,
    WriteError,
};
use crate::effects::{CollectionNumber, Effect, RecordNumber};
use crate::event::key_of;
use crate::index::record_of;
use crate::multi::Portion;
use crate::namespace::Namespace;
use crate::scan;
use crate::sequencer::{Batch, Sequencer};
use crate::sighting::{Hit, Selection, Sighting};
use rockdove_documents::filter::Filter;
use rockdove_documents::interrupt::{Interrupt, during};
use rockdove_documents::key::{Direction, encode_key};
use rockdove_documents::update::{Update, check_id, upsert_document};
use rockdove_documents::{
    Doc, DocBuilder, Element, Error, ObjectId, Owned, RawDoc, Result, Timestamp, Value, check_depth, code,
    doc,
};
use std::sync::Arc;

/// Largest document of a user, in bytes (MongoDB manual, limits).
pub const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest description of an update, in bytes: with an image beside it, it still fits an entry of the log.
const DESCRIPTION_BYTES_MAX: usize = 2 * DOCUMENT_BYTES_MAX;
/// From this size on a document stays in the buffer that it came in.
const SHARED_BYTES_MIN: usize = 64 << 10;
/// Most documents that one look at a TTL index deletes; the next look takes the rest.
const EXPIRE_MAX: usize = 1000;

/// Gives a document an `_id` in first place and checks its size and depth. Called before the sequencer sees it.
pub fn prepare_insert(doc: Doc, new_id: impl FnOnce() -> ObjectId) -> Result<Doc> {
    let doc = match doc.raw().iter().next() {
        Some(first) if first.key_bytes() == b"_id" => own_memory(doc),
        _ => with_id_first(doc.raw(), new_id),
    };
    check_id(doc.get("_id").unwrap_or(Value::Null))?;
    check_size(&doc)?;
    check_depth(doc.raw())?;
    Ok(doc)
}

/// A small document is a part of a buffer that received much else, and would keep all of it in memory: it gets a
/// copy, the only one. A large one is most of its buffer and stays where it is.
fn own_memory(doc: Doc) -> Doc {
    if doc.bytes().len() < SHARED_BYTES_MIN { doc.detached() } else { doc }
}

fn with_id_first(doc: RawDoc<'_>, new_id: impl FnOnce() -> ObjectId) -> Doc {
    let mut out = DocBuilder::with_capacity(doc.bytes().len() + 20);
    match doc.element("_id") {
        Some(id) => out.append_element(id),
        None => out.append("_id", new_id()),
    };
    let mut seen_id = false;
    for element in doc {
        // Only the first `_id` moves; a repeated one stays where it is.
        if element.key_bytes() == b"_id" && !std::mem::replace(&mut seen_id, true) {
            continue;
        }
        out.append_element(element);
    }
    out.finish()
}

fn check_size(doc: &Doc) -> Result<()> {
    let size = doc.bytes().len();
    if size <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    let message =
        format!("object to insert too large. size in bytes: {size}, max size: {DOCUMENT_BYTES_MAX}");
    Err(Error::new(code::BSON_OBJECT_TOO_LARGE, message))
}

fn check_updated_size(doc: &Doc) -> Result<()> {
    let size = doc.bytes().len();
    if size <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    let message =
        format!("Resulting document after update is larger than {DOCUMENT_BYTES_MAX} bytes ({size})");
    Err(Error::new(rockdove_documents::Code { number: 17419, name: "" }, message))
}

fn check_shown_size(doc: &Doc) -> Result<()> {
    let size = doc.bytes().len();
    if size <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    let message = format!("the projected document of {size} bytes is larger than {DOCUMENT_BYTES_MAX} bytes");
    Err(Error::new(code::BSON_OBJECT_TOO_LARGE, message))
}

/// Paths of changed fields are spelled out: a description may be larger than the document.
fn check_description_size(description: &Doc) -> Result<()> {
    let size = description.bytes().len();
    if size <= DESCRIPTION_BYTES_MAX {
        return Ok(());
    }
    let message =
        format!("The description of the update is larger than {DESCRIPTION_BYTES_MAX} bytes ({size})");
    Err(Error::new(code::BSON_OBJECT_TOO_LARGE, message))
}

fn validate(info: &CollectionInfo, doc: &Doc, bypass: bool) -> Result<(), WriteError> {
    match &info.validator {
        Some(filter) if !bypass && !filter.matches(doc.raw())? => {
            let error = Error::new(code::DOCUMENT_VALIDATION_FAILURE, "Document failed validation");
            let id = doc.get("_id").unwrap_or(Value::Null);
            let details =
                doc! { "errInfo": { "failingDocumentId": id, "details": { "operatorName": "validator" } } };
            Err(WriteError { error, details: Some(details) })
        }
        _ => Ok(()),
    }
}

fn refuse_view(info: &CollectionInfo) -> Result<()> {
    match info.view {
        None => Ok(()),
        Some(_) => {
            let message = format!("Namespace {} is a view, not a collection", info.ns);
            Err(Error::new(code::COMMAND_NOT_SUPPORTED_ON_VIEW, message))
        }
    }
}

/// The document with `at` in the place of empty timestamps at its top level, apart from `_id` (MongoDB manual, "BSON
/// Types", Timestamps).
fn stamped(doc: Doc, at: Timestamp) -> Doc {
    let is_empty = |element: &Element<'_>| {
        element.key_bytes() != b"_id" && element.value() == Value::Timestamp(Timestamp::default())
    };
    if !doc.raw().iter().any(|element| is_empty(&element)) {
        return doc;
    }
    let mut out = DocBuilder::with_capacity(doc.bytes().len());
    for element in doc.raw() {
        match is_empty(&element) {
            true => out.append(element.key(), at),
            false => out.append_element(element),
        };
    }
    out.finish()
}

/// Inserts a prepared document.
pub fn insert(
    seq: &mut Sequencer,
    ns: &Namespace,
    doc: Doc,
    bypass: bool,
    batch: &mut Batch,
) -> Result<Outcome, WriteError> {
    let doc = stamped(doc, batch.next_at());
    put(seq, ns, doc, bypass, batch)?;
    Ok(Outcome::Inserted)
}

/// Stores a new document under the next record number.
fn put_new(
    seq: &mut Sequencer,
    info: &CollectionInfo,
    doc: Doc,
    batch: &mut Batch,
) -> Result<(), WriteError> {
    let collection = seq.state.by_number(info.number);
    let record = collection
        .map(|collection| collection.next_record())
        .ok_or_else(|| Error::new(code::INTERNAL_ERROR, format!("collection {} is not there", info.ns)))?;
    let effect = Effect::Insert { collection: info.number, record, doc };
    seq.effect(batch, effect, None)
}

/// Carries out an update statement.
pub fn update(
    seq: &mut Sequencer,
    statement: &UpdateStatement,
    bypass: bool,
    sighting: Option<Box<Sighting>>,
    interrupt: Option<&Interrupt>,
    batch: &mut Batch,
) -> Result<Outcome, WriteError> {
    let one = !statement.multi;
    let (ns, filter, update) = (&statement.ns, &statement.filter, &statement.update);
    let (sort, hint) = (statement.sort.as_ref(), statement.hint.as_ref());
    let selection = Selection { ns, filter, sort, hint };
    let hits = during(interrupt, || select(seq, selection, one, sighting))?;
    if hits.is_empty() && statement.upsert {
        let (id, doc) = during(interrupt, || upserted(filter, update, batch))?;
        put(seq, ns, doc, bypass, batch)?;
        return Ok(Outcome::Updated { matched: 0, modified: 0, upserted: Some(id) });
    }
    let (matched, mut modified) = (hits.len() as u64, 0);
    for hit in hits {
        if let Some(change) = during(interrupt, || change(seq, ns, &hit, update, bypass))? {
            change.carry_out(seq, batch)?;
            modified += 1;
            if statement.multi {
                seq.make_room(batch)?;
            }
        }
    }
    Ok(Outcome::Updated { matched, modified, upserted: None })
}

/// A change of one document that is ready to be carried out.
struct Change {
    effect: Effect,
    after: Doc,
    /// What is at risk with it.
    value: u64,
}

/// What an update does to one document; `None` if nothing.
fn change(
    seq: &Sequencer,
    ns: &Namespace,
    hit: &Hit,
    update: &Update,
    bypass: bool,
) -> Result<Option<Change>, WriteError> {
    let applied = update.apply(hit.doc.raw(), hit.positional, false)?;
    if !applied.changed {
        return Ok(None);
    }
    let info = info_of(seq, ns)?;
    refuse_view(&info)?;
    check_updated_size(&applied.doc)?;
    let spared = !bypass && info.spares_invalid() && validate(&info, &hit.doc, false).is_err();
    validate(&info, &applied.doc, bypass || spared)?;
    let value = seq.valuation.of_changed(ns, hit.doc.raw(), applied.doc.raw())?;
    let before = info.keeps_images.then(|| hit.doc.clone());
    let (collection, record) = (info.number, hit.record);
    let after = applied.doc;
    let image_bytes = before.as_ref().map_or(0, |before| before.bytes().len());
    let (effect, in_log) = match applied.description {
        Some(description) => {
            let (key, description) = (key_of(&hit.doc), description.to_doc());
            check_description_size(&description)?;
            let in_log = description.bytes().len();
            (Effect::Patch { collection, record, key, description, before }, in_log)
        }
        None => (Effect::Replace { collection, record, doc: after.clone(), before }, after.bytes().len()),
    };
    seq.check_change(hit.doc.bytes().len(), after.bytes().len(), in_log + image_bytes)?;
    Ok(Some(Change { effect, after, value }))
}

impl Change {
    fn carry_out(self, seq: &mut Sequencer, batch: &mut Batch) -> Result<(), WriteError> {
        seq.effect(batch, self.effect, Some(self.after))?;
        batch.charge(self.value);
        Ok(())
    }
}

/// The collection in which a statement has found something.
fn info_of(seq: &Sequencer, ns: &Namespace) -> Result<Arc<CollectionInfo>> {
    let collection = seq.state.collection(ns).map(|collection| collection.info.clone());
    collection.ok_or_else(|| Error::new(code::INTERNAL_ERROR, format!("collection {ns} is not there")))
}

/// The document that an upsert makes of filter and update, with its `_id`.
fn upserted(filter: &Filter, update: &Update, batch: &Batch) -> Result<(Owned, Doc)> {
    let equalities =
        filter.equalities().into_iter().map(|(path, value)| (path.to_string(), value.to_owned()));
    let doc = upsert_document(&equalities.collect::<Vec<_>>(), update, new_object_id(batch.wall_ms))?;
    let id = doc.get("_id").unwrap_or(Value::Null).to_owned();
    check_id(id.value())?;
    check_size(&doc)?;
    Ok((id, doc))
}

/// Stores a document where there is room for it and it fits the collection, which is made if it is not there.
fn put(
    seq: &mut Sequencer,
    ns: &Namespace,
    doc: Doc,
    bypass: bool,
    batch: &mut Batch,
) -> Result<(), WriteError> {
    seq.check_room(ns, doc.bytes().len(), batch)?;
    let info = seq.ensure_collection(ns, batch)?;
    refuse_view(&info)?;
    validate(&info, &doc, bypass)?;
    let value = seq.valuation.of_new(ns, doc.raw())?;
    let stored = put_new(seq, &info, doc, batch);
    match &stored {
        Ok(()) => batch.charge(value),
        Err(failed) if failed.error.code == code::DUPLICATE_KEY && value > 0 => {
            batch.note_repetition();
        }
        Err(_) => {}
    }
    stored
}

/// Carries out a delete statement.
pub fn delete(
    seq: &mut Sequencer,
    statement: &DeleteStatement,
    sighting: Option<Box<Sighting>>,
    interrupt: Option<&Interrupt>,
    batch: &mut Batch,
) -> Result<Outcome, WriteError> {
    let DeleteStatement { ns, filter, multi, hint } = statement;
    let selection = Selection { ns, filter, sort: None, hint: hint.as_ref() };
    let hits = during(interrupt, || select(seq, selection, !multi, sighting))?;
    let count = hits.len() as u64;
    if let Some(info) = seq.state.collection(&statement.ns).map(|collection| collection.info.clone()) {
        refuse_view(&info)?;
        for hit in hits {
            seq.remove(&info, hit.record, &hit.doc, batch)?;
            if statement.multi {
                seq.make_room(batch)?;
            }
        }
    }
    Ok(Outcome::Deleted { count })
}

/// Carries out a part of a statement that concerns many documents: what of it is still there and still matches.
pub fn portion(seq: &mut Sequencer, portion: &Portion, batch: &mut Batch) -> Result<Outcome, WriteError> {
    let interrupt = portion.interrupt.as_ref();
    if let Some(interrupt) = interrupt {
        interrupt.check()?; // it may have waited for long
    }
    let (ns, filter) = match &*portion.statement {
        Statement::Update(update) => (&update.ns, &update.filter),
        Statement::Delete(delete) => (&delete.ns, &delete.filter),
        Statement::Insert { .. } | Statement::Refused(_) => {
            return Err(Error::new(code::INTERNAL_ERROR, "this statement has no parts").into());
        }
    };
    let (mut matched, mut modified) = (0, 0);
    for record in portion.records.iter().copied() {
        let there = seq.state.collection(ns).filter(|there| there.info.number == portion.collection);
        let Some((info, doc)) =
            there.and_then(|there| Some((there.info.clone(), there.get(record)?.clone())))
        else {
            continue; // somebody else has removed it
        };
        let mut positional = None;
        if !during(interrupt, || filter.matches_positional(doc.raw(), &mut positional))? {
            continue;
        }
        matched += 1;
        let hit = Hit { record, doc, positional };
        match &*portion.statement {
            Statement::Update(statement) => {
                let change = during(interrupt, || {
                    change(seq, ns, &hit, &statement.update, portion.bypass_validation)
                })?;
                if let Some(change) = change {
                    change.carry_out(seq, batch)?;
                    modified += 1;
                }
            }
            _ => seq.remove(&info, record, &hit.doc, batch)?,
        }
        seq.make_room(batch)?;
    }
    Ok(match &*portion.statement {
        Statement::Update(_) => Outcome::Updated { matched, modified, upserted: None },
        _ => Outcome::Deleted { count: matched },
    })
}

/// Changes or removes one document and returns it. The document to return is made before anything is changed: an
/// error in it is an error of a command that did nothing.
pub fn find_and_modify(
    seq: &mut Sequencer,
    command: &FindAndModify,
    sighting: Option<Box<Sighting>>,
    batch: &mut Batch,
) -> Result<FindAndModifyReply, WriteError> {
    let interrupt = command.interrupt.as_ref();
    let FindAndModify { ns, filter, sort, hint, .. } = command;
    let selection = Selection { ns, filter, sort: sort.as_ref(), hint: hint.as_ref() };
    let hits = during(interrupt, || select(seq, selection, true, sighting))?;
    let hit = hits.into_iter().next();
    let found = hit.is_some();
    let shown = |doc: &Doc, positional| match &command.projection {
        Some(projection) => {
            let shown = during(interrupt, || projection.apply(doc, positional))?;
            check_shown_size(&shown)?;
            check_depth(shown.raw()).map(|()| shown) // it may be kept, for a repetition
        }
        None => Ok(doc.clone()),
    };
    let bypass = command.bypass_validation;
    let mut id = None;
    let value = match (&command.action, hit) {
        (Modify::Remove, Some(hit)) => {
            let info = info_of(seq, &command.ns)?;
            refuse_view(&info)?;
            let value = shown(&hit.doc, hit.positional)?;
            seq.remove(&info, hit.record, &hit.doc, batch)?;
            Some(value)
        }
        (Modify::Update { update, return_new, .. }, Some(hit)) => {
            let change = during(interrupt, || change(seq, &command.ns, &hit, update, bypass))?;
            let after = change.as_ref().filter(|_| *return_new).map(|change| &change.after);
            let value = shown(after.unwrap_or(&hit.doc), hit.positional)?;
            change.map_or(Ok(()), |change| change.carry_out(seq, batch))?;
            Some(value)
        }
        (Modify::Update { update, upsert: true, return_new }, None) => {
            let (new_id, doc) = during(interrupt, || upserted(&command.filter, update, batch))?;
            let value = return_new.then(|| shown(&doc, None)).transpose()?;
            put(seq, &command.ns, doc, bypass, batch)?;
            id = Some(new_id);
            value
        }
        (Modify::Remove | Modify::Update { upsert: false, .. }, None) => None,
    };
    let (at, receipt) = (seq.state.at(), Receipt::default());
    Ok(FindAndModifyReply { value, found, upserted: id, retried: false, at, receipt })
}

/// Deletes documents whose date in a TTL index is at or before `upto_ms`; returns how many, or 0 if it failed.
pub fn expire(
    seq: &mut Sequencer,
    number: CollectionNumber,
    index: &str,
    upto_ms: i64,
    batch: &mut Batch,
) -> usize {
    let Some(collection) = seq.state.by_number(number).cloned() else { return 0 };
    let over = expired(&collection, index, upto_ms, EXPIRE_MAX);
    let mut count = 0;
    for record in over {
        let Some(doc) = collection.get(record) else { continue };
        let removed = seq.remove(&collection.info, record, doc, batch);
        if let Err(error) = removed.and_then(|()| seq.make_room(batch)) {
            tracing::error!(%error, ns = %collection.info.ns, "expired documents were not deleted");
            return 0;
        }
        count += 1;
    }
    count
}

/// The records of up to `entries_max` entries of a TTL index whose date is at or before `upto_ms`.
fn expired(collection: &Arc<Collection>, index: &str, upto_ms: i64, entries_max: usize) -> Vec<RecordNumber> {
    let Some(index) = collection.index(index) else { return vec![] };
    let (mut low, mut high) = (Vec::new(), Vec::new());
    encode_key(Value::DateTime(i64::MIN), &mut low);
    encode_key(Value::DateTime(upto_ms), &mut high);
    let descending =
        index.spec.key.fields().first().is_some_and(|field| field.direction == Direction::Descending);
    if descending {
        rockdove_documents::key::invert(&mut low);
        rockdove_documents::key::invert(&mut high);
        std::mem::swap(&mut low, &mut high);
    }
    let mut cursor = index.tree.seek(&low);
    let mut records = Vec::new();
    while let Some(entry) = cursor.key() {
        if records.len() >= entries_max || (entry > &high[..] && !entry.starts_with(&high)) {
            break;
        }
        records.push(record_of(entry));
        cursor.advance();
    }
    records.sort_unstable();
    records.dedup();
    records
}

/// Whether a TTL index has something at or before `upto_ms`.
pub fn has_expired(collection: &Arc<Collection>, index: &str, upto_ms: i64) -> bool {
    !expired(collection, index, upto_ms, 1).is_empty()
}

/// The documents that a statement is about, in the order in which it takes them.
fn select(
    seq: &Sequencer,
    selection: Selection<'_>,
    one: bool,
    sighting: Option<Box<Sighting>>,
) -> Result<Vec<Hit>> {
    let Selection { ns, filter, sort, hint } = selection;
    let Some(collection) = seq.state.collection(ns) else { return Ok(vec![]) };
    if let Some(sighting) = sighting
        && let Some(hits) = sighting.recall(collection, selection, one)?
    {
        return Ok(hits);
    }
    let scan = scan::start(collection, filter, sort, hint)?;
    let take_first = one && (sort.is_none() || scan.in_order());
    let mut hits = Vec::new();
    for (record, doc) in scan {
        let mut positional = None;
        if filter.matches_positional(doc.raw(), &mut positional)? {
            hits.push(Hit { record, doc, positional });
            if take_first {
                return Ok(hits);
            }
        }
    }
    if let (Some(sort), true) = (sort, one) {
        let keys: Vec<Vec<u8>> = hits.iter().map(|hit| sort.key(hit.doc.raw())).collect::<Result<_>>()?;
        let first = hits.into_iter().zip(keys).min_by(|a, b| a.1.cmp(&b.1));
        return Ok(first.map(|(hit, _)| hit).into_iter().collect());
    }
    Ok(hits)
}

/// A new ObjectId of this time.
pub fn new_object_id(wall_ms: i64) -> ObjectId {
    let seconds = u32::try_from(wall_ms / 1000).unwrap_or_default();
    ObjectId::from_parts(seconds, rand::random())
}
