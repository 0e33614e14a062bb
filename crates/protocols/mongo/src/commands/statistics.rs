//! Sizes and counts of collections, databases and the engine.

use super::collections::existing;
use super::{Spec, query};
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use crate::shared::now_ms;
use rockdove_documents::{Doc, DocBuilder, Error, RawDoc, Value, code};
use rockdove_engine::{Cap, Collection, Engine, Index, Namespace, RiskStatus, State};
use std::sync::Arc;

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::now("collStats", Spec::READ, collection_stats).also(&["collstats"]),
    Spec::now("dbStats", Spec::READ, database_stats).also(&["dbstats"]),
    Spec::now("validate", Spec::READ, validate),
];

fn scale(fields: &Fields<'_>) -> Result<i64> {
    match fields.integer("scale")? {
        None => Ok(1),
        Some(scale) if scale > 0 => Ok(scale),
        Some(_) => Err(Error::bad_value("scale has to be > 0").into()),
    }
}

fn collection_stats(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let fields = Fields::new("collStats", call.command())?;
    let ns = query::namespace(call, &fields, call.name)?;
    let state = call.shared.engine.snapshot();
    append_collection(reply, &ns, state.collection(&ns), scale(&fields)?);
    Ok(())
}

/// The statistics of one collection (also `$collStats`); zeros if it is not there.
pub fn append_collection(
    reply: &mut DocBuilder,
    ns: &Namespace,
    found: Option<&Arc<Collection>>,
    scale: i64,
) {
    let number = |read: fn(&Collection) -> u64| found.map_or(0, |collection| read(collection) as i64);
    let (bytes, count) = (number(Collection::bytes), number(|collection| collection.len() as u64));
    reply.append("ns", ns.full()).append("size", bytes / scale).append("count", as_i32_or_i64(count));
    if count > 0 {
        reply.append("avgObjSize", bytes / count);
    }
    reply.append("numOrphanDocs", 0).append("storageSize", bytes / scale);
    reply
        .append("freeStorageSize", 0)
        .append("capped", found.is_some_and(|found| found.info.capped.is_some()));
    if let Some(capped) = found.and_then(|found| found.info.capped) {
        reply.append("max", capped.count_max.unwrap_or(0) as i64);
        reply.append("maxSize", capped.bytes_max as i64 / scale);
    }
    let indexes = found.map_or(&[][..], |found| found.indexes());
    reply.append("nindexes", indexes.len() as i32).start_array("indexBuilds").end();
    reply.append("totalIndexSize", number(Collection::index_bytes) / scale);
    reply.append("totalSize", (bytes + number(Collection::index_bytes)) / scale);
    reply.start_document("indexSizes");
    for index in indexes {
        reply.append(&index.spec.name, index.tree.key_bytes() as i64 / scale);
    }
    reply.end().append("scaleFactor", as_i32_or_i64(scale));
}

fn as_i32_or_i64(number: i64) -> rockdove_documents::Owned {
    use rockdove_documents::Owned;
    i32::try_from(number).map_or(Owned::Int64(number), Owned::Int32)
}

fn database_stats(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let scale = scale(&Fields::new("dbStats", call.command())?)? as f64;
    let state = call.shared.engine.snapshot();
    let (mut collections, mut views, mut objects, mut indexes) = (0i64, 0i64, 0i64, 0i64);
    let (mut bytes, mut index_bytes) = (0, 0);
    for collection in state.in_database(call.database) {
        if collection.info.view.is_some() {
            views += 1;
            continue;
        }
        collections += 1;
        objects += collection.len() as i64;
        indexes += collection.indexes().len() as i64;
        bytes += collection.bytes();
        index_bytes += collection.index_bytes();
    }
    let (bytes, index_bytes) = (bytes as f64, index_bytes as f64);
    reply.append("db", call.database).append("collections", collections).append("views", views);
    reply.append("objects", objects);
    reply.append("avgObjSize", if objects > 0 { bytes / objects as f64 } else { 0.0 });
    reply.append("dataSize", bytes / scale).append("storageSize", bytes / scale);
    reply.append("indexes", indexes).append("indexSize", index_bytes / scale);
    reply.append("totalSize", (bytes + index_bytes) / scale).append("scaleFactor", scale);
    Ok(())
}

/// What is in memory was built from checked effects: the counts are compared, nothing is read from disk.
fn validate(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let fields = Fields::new("validate", call.command())?;
    let ns = query::namespace(call, &fields, "validate")?;
    if fields.flag("background")? && (fields.flag("full")? || fields.flag("repair")?) {
        let message = "Running the validate command with { background: true } and { full: true } or { repair: true } is not supported";
        return Err(Failure::new(code::INVALID_OPTIONS, message));
    }
    let collection = existing(call, &ns)?;
    let records = collection.records().count();
    let valid = records == collection.len();
    reply.append("ns", ns.full()).append("nInvalidDocuments", 0).append("nrecords", records as i64);
    reply.append("nIndexes", collection.indexes().len() as i32).start_document("keysPerIndex");
    for index in collection.indexes() {
        reply.append(&index.spec.name, index.tree.len() as i64);
    }
    reply.end().start_document("indexDetails");
    for index in collection.indexes() {
        reply.start_document(&index.spec.name).append("valid", true).end();
    }
    reply.end().append("valid", valid).append("repaired", false);
    for list in ["warnings", "errors", "extraIndexEntries", "missingIndexEntries"] {
        reply.start_array(list).end();
    }
    Ok(())
}

/// `$collStats`: one document with what was asked for.
pub fn collection_stage(call: &Call<'_>, state: &State, ns: &Namespace, spec: Value<'_>) -> Result<Vec<Doc>> {
    let spec = spec.as_document().unwrap_or(RawDoc::empty());
    let found = state.collection(ns);
    if found.is_none() {
        let message = format!("Collection [{ns}] not found.");
        return Err(Failure::new(code::NAMESPACE_NOT_FOUND, message));
    }
    let mut doc = DocBuilder::new();
    doc.append("ns", ns.full()).append("host", &call.shared.identity.advertised);
    doc.append_date("localTime", now_ms());
    if let Some(Value::Document(options)) = spec.get("storageStats") {
        doc.start_document("storageStats");
        append_collection(&mut doc, ns, found, scale(&Fields::new("storageStats", options)?)?);
        doc.end();
    }
    if spec.element("count").is_some() {
        doc.append("count", found.map_or(0, |found| found.len() as i64));
    }
    Ok(vec![doc.finish()])
}

/// `$indexStats`: a document an index. Uses are not counted.
pub fn index_stage(call: &Call<'_>, state: &State, ns: &Namespace) -> Vec<Doc> {
    let indexes = state.collection(ns).map_or(&[][..], |collection| collection.indexes());
    let describe = |index: &Index| {
        let mut doc = DocBuilder::new();
        doc.append("name", &index.spec.name).append("key", index.spec.doc.get("key"));
        doc.append("host", &call.shared.identity.advertised);
        doc.start_document("accesses").append("ops", 0i64).append_date("since", 0).end();
        doc.append("spec", &index.spec.doc);
        doc.finish()
    };
    indexes.iter().map(describe).collect()
}

/// The engine's part of `serverStatus`.
pub fn append_engine(reply: &mut DocBuilder, call: &Call<'_>) {
    let engine = &call.shared.engine;
    reply.start_document("storageEngine").append("name", "rockdove");
    reply
        .append("supportsCommittedReads", true)
        .append("persistent", engine.recovery().journal.is_some())
        .end();
    let feed = engine.feed_stats();
    reply.start_document("changeStreamReplayBuffer");
    reply.append("events", feed.events as i64).append("bytes", feed.bytes as i64);
    reply.append("budgetBytes", feed.bytes_max as i64).append("groups", feed.groups as i64);
    let window = feed.last.time.saturating_sub(feed.complete_after.time);
    reply.append("windowSeconds", i64::from(window)).end();
    let memory = engine.memory();
    let (limit, warn, refuse) = memory.limits();
    reply.start_document("memoryWatermark");
    reply.append("usedBytes", memory.used_bytes() as i64).append("limitBytes", limit as i64);
    reply.append("usedPercent", memory.percent() as i64).append("warnPercent", warn as i64);
    reply.append("rejectPercent", refuse as i64).append("warnActive", memory.percent() >= warn).end();
    append_log(reply, engine);
}

/// Syncs of the log by what caused them, and value at risk. Amounts beyond what an int64 holds are shown as its largest.
fn append_log(reply: &mut DocBuilder, engine: &Engine) {
    let wide = |amount: u128| i64::try_from(amount).unwrap_or(i64::MAX);
    let limit = |amount: Option<u64>| amount.map(|amount| wide(amount.into()));
    reply.start_document("rockdove").start_document("syncs");
    for (cause, count) in engine.syncs() {
        reply.append(cause.name(), wide(count.into()));
    }
    reply.end();
    if let Some(RiskStatus { policy, fields, exposure, .. }) = engine.risk() {
        reply.start_document("risk").start_document("policy");
        reply.append("cap", limit(policy.total)).append("soft", policy.cap == Cap::Soft);
        reply.append("single", limit(policy.single));
        reply.append("ageMS", policy.age.map(|age| wide(age.as_millis())));
        reply.append("bytes", limit(policy.bytes)).append("count", limit(policy.count)).end();
        reply.start_array("fields");
        for field in fields {
            reply.push(field.to_string());
        }
        reply.end().start_document("exposure");
        reply.append("value", wide(exposure.value)).append("acked", wide(exposure.acked));
        reply.append("ackedMax", wide(exposure.acked_max));
        reply.append("bytes", wide(exposure.bytes.into())).append("count", wide(exposure.count.into()));
        reply.append("oldestMS", exposure.oldest.map(|since| wide(since.elapsed().as_millis())));
        reply.end().append("held", wide(exposure.held.into())).end();
    }
    reply.end();
}
