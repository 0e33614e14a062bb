//! Collections and databases: make, change, rename, drop, list.

use super::cursor::{self, Opening, Source};
use super::indexes::INVALID_OPTION;
use super::query::{self, Parsing};
use super::{Flow, Spec};
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use rockdove_documents::collation::Collation;
use rockdove_documents::{Doc, DocBuilder, Error, RawDoc, Value, code, show};
use rockdove_engine::{Collection, Definition, DefinitionReply, Namespace};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::later("create", Spec::WRITE | Spec::API_V1, |call, reply| Box::pin(create(call, reply))),
    Spec::later("collMod", Spec::WRITE | Spec::API_V1, |call, reply| Box::pin(modify(call, reply))),
    Spec::later("drop", Spec::WRITE | Spec::API_V1, |call, reply| Box::pin(drop_collection(call, reply))),
    Spec::later("dropDatabase", Spec::WRITE | Spec::API_V1, |call, reply| {
        Box::pin(drop_database(call, reply))
    }),
    Spec::later("renameCollection", Spec::WRITE | Spec::ADMIN, |call, reply| Box::pin(rename(call, reply))),
    Spec::now("listCollections", Spec::READ | Spec::API_V1, list_collections),
    Spec::now("listDatabases", Spec::READ | Spec::ADMIN | Spec::API_V1, list_databases),
];

/// Options of `create` that are kept.
const KEPT: [&str; 9] = [
    "capped",
    "size",
    "max",
    "validator",
    "validationLevel",
    "validationAction",
    "viewOn",
    "pipeline",
    "changeStreamPreAndPostImages",
];
/// Options of `create` that ask for what is not there: refused, for a plain collection would be a wrong answer.
const UNSUPPORTED: [&str; 3] = ["timeseries", "encryptedFields", "expireAfterSeconds"];

/// Changes what collections or indexes there are.
pub async fn define(call: &Call<'_>, definition: Definition) -> Result<DefinitionReply> {
    let reply = call.shared.engine.define(definition, call.ack()).await?;
    call.settle(&reply.receipt).await?;
    Ok(reply)
}

async fn create(call: &Call<'_>, _: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("create", call.command())?;
    let others = [
        "autoIndexId",
        "indexOptionDefaults",
        "storageEngine",
        "temp",
        "flags", // of storage that is long gone; old clients send it
        "collation",
        "clusteredIndex",
        "idIndex",
    ];
    fields.only(&[&KEPT[..], &UNSUPPORTED[..], &others[..]].concat())?;
    let ns = query::namespace(call, &fields, "create")?;
    if let Some(option) = UNSUPPORTED.iter().find(|option| fields.get(option).is_some()) {
        let message = format!("create: the option '{option}' is not supported");
        return Err(Failure::new(code::COMMAND_NOT_SUPPORTED, message));
    }
    if let Some(index) = fields.document("idIndex")? {
        check_id_index(&fields, index)?;
    }
    define(call, Definition::Create { ns, options: options(&fields)? }).await?;
    Ok(Flow::Done)
}

fn options(fields: &Fields<'_>) -> Result<Doc> {
    let mut options = DocBuilder::new();
    for name in KEPT {
        let Some(value) = fields.get(name) else { continue };
        match name {
            "capped" if fields.flag("capped")? => options.append(name, true),
            "capped" => &mut options,
            "size" | "max" if !fields.flag("capped")? => &mut options,
            "size" | "max" => options.append(name, fields.integer(name)?.unwrap_or(0)),
            _ => options.append_value(name, value),
        };
    }
    if let Some(collation) = query::collation_document(fields)? {
        options.append("collation", collation);
    }
    if let Some(index) = fields.document("clusteredIndex")? {
        options.append("clusteredIndex", clustered_index(index)?);
    }
    Ok(options.finish())
}

/// A clustered index as it is kept. All collections are ordered by insertion and found by `_id` here, so it
/// only shows where indexes are listed.
fn clustered_index(spec: RawDoc<'_>) -> Result<Doc> {
    let fields = Fields::new("create.clusteredIndex", spec)?;
    let key = fields.required_document("key")?;
    if !is_by_id(key) || !fields.flag("unique")? {
        let message = "The clusteredIndex option is only supported for { key: { _id: 1 }, unique: true }";
        return Err(Failure::new(code::INVALID_OPTIONS, message));
    }
    let mut index = DocBuilder::new();
    index.append("v", 2).start_document("key").append("_id", 1).end();
    index.append("name", fields.string("name")?.unwrap_or("_id_")).append("unique", true);
    Ok(index.finish())
}

/// Checks a specification of the index on `_id`, which is there in any case and has no choices: tools that restore
/// collections send what `listCollections` showed them.
fn check_id_index(create: &Fields<'_>, spec: RawDoc<'_>) -> Result<()> {
    if create.get("viewOn").is_some() {
        return Err(Failure::new(code::INVALID_OPTIONS, "'idIndex' is not allowed with 'viewOn'"));
    }
    let fields = Fields::new("create.idIndex", spec)?;
    const KNOWN: [&str; 5] = ["key", "name", "v", "ns", "collation"];
    if let Some(unknown) = spec.iter().find(|element| !KNOWN.contains(&element.key())) {
        let message = format!("The field '{}' is not valid for an _id index specification", unknown.key());
        return Err(Failure::new(INVALID_OPTION, message));
    }
    let Some(key) = fields.document("key")? else {
        return Err(Error::failed_to_parse(
            "The 'key' field is a required property of an index specification",
        )
        .into());
    };
    if !is_by_id(key) {
        let key = show(Value::Document(key));
        let message = format!("The field 'key' for an _id index must be {{_id: 1}}, but got {key}");
        return Err(Error::bad_value(message).into());
    }
    // With all options, for one of the two may leave out what is so anyway.
    let collation = |fields: &Fields<'_>| -> Result<Option<Doc>> {
        let Some(spec) = query::collation_document(fields)? else { return Ok(None) };
        Ok(Collation::parse(spec)?.map(|collation| collation.to_doc()))
    };
    if fields.get("collation").is_some() && collation(&fields)? != collation(create)? {
        return Err(Error::bad_value("'idIndex' must have the same collation as the collection.").into());
    }
    Ok(())
}

/// Whether an index's keys are `{_id: 1}`.
fn is_by_id(key: RawDoc<'_>) -> bool {
    key.len() == 1 && key.get("_id").and_then(|order| order.as_integer()) == Some(1)
}

async fn modify(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("collMod", call.command())?;
    const UNSUPPORTED: [&str; 4] = ["cappedSize", "cappedMax", "timeseries", "expireAfterSeconds"];
    let known = ["validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages"];
    let others = ["index", "viewOn", "pipeline", "dryRun", "collectionUUID"];
    fields.only(&[&UNSUPPORTED[..], &known[..], &others[..]].concat())?;
    let ns = query::namespace(call, &fields, "collMod")?;
    for option in UNSUPPORTED {
        if fields.get(option).is_some() {
            let message = format!("collMod: the option '{option}' is not supported");
            return Err(Failure::new(code::COMMAND_NOT_SUPPORTED, message));
        }
    }
    let done = define(call, Definition::Modify { ns, changes: call.body.command.clone() }).await?;
    reply.append_all(done.details.raw());
    Ok(Flow::Done)
}

async fn drop_collection(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("drop", call.command())?;
    fields.only(&["collectionUUID"])?;
    let ns = query::namespace(call, &fields, "drop")?;
    let done = define(call, Definition::Drop { ns: ns.clone() }).await?;
    if done.changed {
        reply.append("nIndexesWas", done.indexes_before).append("ns", ns.full());
    }
    Ok(Flow::Done)
}

async fn drop_database(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    if matches!(call.database, "admin" | "config" | "local") {
        let message = format!("Cannot drop '{}' database", call.database);
        return Err(Failure::new(code::ILLEGAL_OPERATION, message));
    }
    let done = define(call, Definition::DropDatabase { database: call.database.to_string() }).await?;
    if done.changed {
        reply.append("dropped", call.database);
    }
    Ok(Flow::Done)
}

async fn rename(call: &Call<'_>, _: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("renameCollection", call.command())?;
    fields.only(&["to", "dropTarget", "stayTemp", "collectionUUID"])?;
    let from = Namespace::parse(fields.required_string("renameCollection")?)?;
    let to = Namespace::parse(fields.required_string("to")?)?;
    query::refuse_other_collection(call, &fields, &from)?;
    let drop_target = match fields.get("dropTarget") {
        Some(uuid @ Value::Binary { .. }) => query::check_uuid(call, &to, uuid).map(|()| true)?,
        _ => fields.flag("dropTarget")?,
    };
    define(call, Definition::Rename { from, to, drop_target }).await?;
    Ok(Flow::Done)
}

fn list_collections(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let fields = Fields::new("listCollections", call.command())?;
    fields.only(&["filter", "nameOnly", "cursor", "authorizedCollections", "includePendingDrops"])?;
    let filter =
        Parsing::new(call, &fields)?.filter(fields.document("filter")?.unwrap_or(RawDoc::empty()))?;
    let names_only = fields.flag("nameOnly")?;
    let state = call.shared.engine.snapshot();
    let mut found = Vec::new();
    for collection in state.in_database(call.database) {
        let described = describe(collection, false);
        if filter.matches(described.raw())? {
            found.push(if names_only { describe(collection, true) } else { described });
        }
    }
    let batch_size = cursor::batch_size(&fields)?;
    let opening = Opening::new(call, format!("{}.$cmd.listCollections", call.database)).batch(batch_size);
    cursor::open(opening, Source::ready(found), reply)
}

/// A collection as `listCollections` shows it.
fn describe(collection: &Arc<Collection>, name_only: bool) -> Doc {
    let (info, mut doc) = (&collection.info, DocBuilder::new());
    doc.append("name", info.ns.collection());
    doc.append("type", if info.view.is_some() { "view" } else { "collection" });
    if name_only {
        return doc.finish();
    }
    doc.append("options", &info.options);
    doc.start_document("info").append("readOnly", info.view.is_some());
    if info.view.is_none() {
        doc.append_value("uuid", Value::Binary { subtype: 4, bytes: &info.uuid });
    }
    doc.end();
    let clustered = info.options.get("clusteredIndex").is_some();
    if let Some(index) = collection.indexes().first().filter(|_| !clustered) {
        doc.append("idIndex", &index.spec.doc);
    }
    doc.finish()
}

fn list_databases(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let fields = Fields::new("listDatabases", call.command())?;
    fields.only(&["filter", "nameOnly", "authorizedDatabases"])?;
    let filter =
        Parsing::new(call, &fields)?.filter(fields.document("filter")?.unwrap_or(RawDoc::empty()))?;
    let names_only = fields.flag("nameOnly")?;
    let state = call.shared.engine.snapshot();
    let mut total = 0;
    reply.start_array("databases");
    let own = ["admin", "config", "local"].map(String::from); // always there, as clients expect
    let names: BTreeSet<String> = state.databases().into_iter().chain(own).collect();
    for name in names {
        let bytes: u64 = state.in_database(&name).map(|collection| collection.bytes()).sum();
        let empty = state.in_database(&name).all(|collection| collection.is_empty());
        let mut database = DocBuilder::new();
        database.append("name", &name);
        if !names_only {
            database.append("sizeOnDisk", bytes as i64).append("empty", empty);
        }
        let database = database.finish();
        if filter.matches(database.raw())? {
            total += bytes;
            reply.push(&database);
        }
    }
    reply.end();
    if !names_only {
        reply.append("totalSize", total as i64).append("totalSizeMb", (total >> 20) as i64);
    }
    Ok(())
}

/// The collection of a command that needs one; 26 if it is not there.
pub fn existing(call: &Call<'_>, ns: &Namespace) -> Result<Arc<Collection>> {
    let state = call.shared.engine.snapshot();
    let found = state.collection(ns).cloned();
    Ok(found.ok_or_else(|| Error::new(code::NAMESPACE_NOT_FOUND, format!("ns does not exist: {ns}")))?)
}
