//! How the sequencer carries out changes to collections and indexes.

use crate::collection::{Collection, CollectionInfo};
use crate::command::{Definition, DefinitionReply, IndexChoice};
use crate::effects::Effect;
use crate::index::{ID_INDEX, IndexSpec, inheriting};
use crate::namespace::Namespace;
use crate::sequencer::{Batch, Sequencer};
use rockdove_documents::{Code, Doc, DocBuilder, Error, RawDoc, Result, Value, code, doc, show};
use std::sync::Arc;

/// Most indexes of a collection (MongoDB manual, limits).
const INDEXES_MAX: usize = 64;
const OPTION_NOT_SUPPORTED_ON_VIEW: Code = Code { number: 167, name: "OptionNotSupportedOnView" };
const GRAPH_CONTAINS_CYCLE: Code = Code { number: 5, name: "GraphContainsCycle" };
/// Options of `collMod` that go into a collection's own options.
const MODIFIABLE: [&str; 4] =
    ["validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages"];

/// Carries out a definition command.
pub fn carry_out(seq: &mut Sequencer, definition: Definition, batch: &mut Batch) -> Result<DefinitionReply> {
    let mut reply = match definition {
        Definition::Create { ns, options } => create(seq, &ns, options, batch),
        Definition::Modify { ns, changes } => modify(seq, &ns, changes.raw(), batch),
        Definition::Drop { ns } => drop_collection(seq, &ns, batch),
        Definition::DropDatabase { database } => drop_database(seq, &database, batch),
        Definition::Rename { from, to, drop_target } => rename(seq, &from, &to, drop_target, batch),
        Definition::CreateIndexes { ns, specs } => create_indexes(seq, &ns, &specs, batch),
        Definition::DropIndexes { ns, which } => drop_indexes(seq, &ns, &which, batch),
    }?;
    reply.at = seq.state.at();
    Ok(reply)
}

fn shown(doc: &Doc) -> String {
    show(Value::Document(doc.raw()))
}

fn changed() -> DefinitionReply {
    DefinitionReply { changed: true, ..DefinitionReply::default() }
}

fn existing(seq: &Sequencer, ns: &Namespace) -> Result<Arc<Collection>> {
    let found = seq.state.collection(ns).cloned();
    found.ok_or_else(|| Error::new(code::NAMESPACE_NOT_FOUND, format!("ns does not exist: {ns}")))
}

fn create(seq: &mut Sequencer, ns: &Namespace, options: Doc, batch: &mut Batch) -> Result<DefinitionReply> {
    if let Some(there) = seq.state.collection(ns) {
        if there.info.options == options {
            return Ok(DefinitionReply::default());
        }
        let options = shown(&there.info.options);
        let message = format!("namespace {ns} already exists, but with different options: {options}");
        return Err(Error::new(code::NAMESPACE_EXISTS, message));
    }
    check_options(seq, ns, &options)?;
    seq.create_collection(ns, options, batch)?;
    Ok(changed())
}

/// Refuses options that a collection cannot have.
fn check_options(seq: &Sequencer, ns: &Namespace, options: &Doc) -> Result<()> {
    check_view(seq, &CollectionInfo::new(0, ns.clone(), [0; 16], options.clone())?)?;
    match options.get("validator") {
        Some(validator) => refuse_time(validator, false),
        None => Ok(()),
    }
}

/// Fails if a validator's expressions ask for the time: it is parsed once, for documents to come.
fn refuse_time(value: Value<'_>, in_expr: bool) -> Result<()> {
    match value {
        Value::Document(inner) | Value::Array(inner) => inner
            .iter()
            .try_for_each(|element| refuse_time(element.value(), in_expr || element.key() == "$expr")),
        Value::String(text @ ("$$NOW" | "$$CLUSTER_TIME")) if in_expr => {
            Err(Error::new(code::COMMAND_NOT_SUPPORTED, format!("{text} is not supported in a validator")))
        }
        _ => Ok(()),
    }
}

/// Refuses a view that writes, or that reads itself, by way of other views too.
fn check_view(seq: &Sequencer, info: &CollectionInfo) -> Result<()> {
    let mut view = info.view.clone();
    for stage in view.iter().flat_map(|view| view.pipeline.raw()) {
        let name = stage.value().as_document().and_then(|stage| stage.iter().next()).map(|first| first.key());
        if let Some(name @ ("$out" | "$merge")) = name {
            let message = format!("the pipeline of the view {} cannot have the stage {name}", info.ns);
            return Err(Error::new(OPTION_NOT_SUPPORTED_ON_VIEW, message));
        }
    }
    // A log of before this check may hold a cycle of others: reading these fails, and this ends.
    for _ in 0..=seq.state.collections().count() {
        let Some(read) = view else { break };
        if read.on == info.ns {
            let message = format!("View cycle detected: {} reads itself", info.ns);
            return Err(Error::new(GRAPH_CONTAINS_CYCLE, message));
        }
        view = seq.state.collection(&read.on).and_then(|collection| collection.info.view.clone());
    }
    Ok(())
}

fn modify(
    seq: &mut Sequencer,
    ns: &Namespace,
    changes: RawDoc<'_>,
    batch: &mut Batch,
) -> Result<DefinitionReply> {
    let collection = existing(seq, ns)?;
    let mut reply = changed();
    let index = match changes.get("index") {
        Some(Value::Document(index)) => Some(index),
        _ => None,
    };
    let is_view = collection.info.view.is_some();
    let allowed =
        |name: &str| MODIFIABLE.contains(&name) || (is_view && matches!(name, "viewOn" | "pipeline"));
    // A collMod that changes nothing is an event too.
    let mut options = None;
    if index.is_none() || changes.iter().any(|element| allowed(element.key())) {
        let mut new = DocBuilder::new();
        for element in collection.info.options.raw() {
            if !allowed(element.key()) || changes.get(element.key()).is_none() {
                new.append_element(element);
            }
        }
        for element in changes.iter().filter(|element| allowed(element.key())) {
            new.append_element(element);
        }
        let new = new.finish();
        check_options(seq, ns, &new)?;
        let (before, after) = (collection.info.options.bytes().len(), new.bytes().len());
        seq.check_change(before, after, after)?;
        options = Some(new);
    }
    if let Some(index) = index {
        reply.details = modify_index(seq, &collection, index, batch)?;
    }
    if let Some(options) = options {
        seq.effect(batch, Effect::Modify { collection: collection.info.number, options }, None)?;
    }
    Ok(reply)
}

/// Changes `expireAfterSeconds` or `hidden` of an index; returns old and new values as `collMod` reports them.
fn modify_index(
    seq: &mut Sequencer,
    collection: &Arc<Collection>,
    change: RawDoc<'_>,
    batch: &mut Batch,
) -> Result<Doc> {
    let spec = match (change.get("name"), change.get("keyPattern")) {
        (Some(Value::String(name)), _) => collection.index(name).map(|index| index.spec.clone()),
        (None, Some(Value::Document(keys))) => by_keys(collection, keys)?.pop(),
        _ => return Err(Error::new(code::INVALID_OPTIONS, "'index' needs either 'name' or 'keyPattern'")),
    };
    let spec = spec.ok_or_else(|| {
        Error::new(code::INDEX_NOT_FOUND, format!("cannot find index for ns {}", collection.info.ns))
    })?;
    let (mut details, mut new) = (DocBuilder::new(), DocBuilder::new());
    let fields = ["expireAfterSeconds", "hidden"];
    for element in spec.doc.raw() {
        if !fields.contains(&element.key()) || change.get(element.key()).is_none() {
            new.append_element(element);
        }
    }
    for field in fields {
        if let Some(value) = change.get(field) {
            let old = spec.doc.get(field);
            details.append(
                &format!("{field}_old"),
                old.unwrap_or(if field == "hidden" { Value::Bool(false) } else { Value::Null }),
            );
            details.append(&format!("{field}_new"), value);
            new.append_value(field, value);
        }
    }
    let new = new.finish();
    IndexSpec::parse(new.raw())?;
    seq.effect(batch, Effect::CreateIndex { collection: collection.info.number, spec: new }, None)?;
    Ok(details.finish())
}

fn drop_collection(seq: &mut Sequencer, ns: &Namespace, batch: &mut Batch) -> Result<DefinitionReply> {
    let Some(collection) = seq.state.collection(ns).cloned() else { return Ok(DefinitionReply::default()) };
    seq.effect(batch, Effect::Drop { collection: collection.info.number }, None)?;
    Ok(DefinitionReply { indexes_before: collection.indexes().len() as i32, ..changed() })
}

fn drop_database(seq: &mut Sequencer, database: &str, batch: &mut Batch) -> Result<DefinitionReply> {
    let all: Vec<_> = seq.state.in_database(database).map(|collection| collection.info.number).collect();
    if all.is_empty() {
        return Ok(DefinitionReply::default());
    }
    for collection in all {
        seq.effect(batch, Effect::Drop { collection }, None)?;
    }
    seq.effect(batch, Effect::DropDatabase { name: doc! { "db": database } }, None)?;
    Ok(changed())
}

fn rename(
    seq: &mut Sequencer,
    from: &Namespace,
    to: &Namespace,
    drop_target: bool,
    batch: &mut Batch,
) -> Result<DefinitionReply> {
    if from == to {
        return Err(Error::new(code::ILLEGAL_OPERATION, "Can't rename a collection to itself"));
    }
    let source = seq.state.collection(from).cloned();
    let source = source.ok_or_else(|| {
        Error::new(code::NAMESPACE_NOT_FOUND, format!("Source collection {from} does not exist"))
    })?;
    to.refuse_special()?;
    let mut names = DocBuilder::new();
    names.append("from", from.full()).append("to", to.full());
    if let Some(target) = seq.state.collection(to).cloned() {
        if !drop_target {
            return Err(Error::new(code::NAMESPACE_EXISTS, "target namespace exists"));
        }
        names.append_value("dropTarget", Value::Binary { subtype: 4, bytes: &target.info.uuid });
        seq.effect(batch, Effect::Drop { collection: target.info.number }, None)?;
    }
    let names = names.finish();
    seq.effect(batch, Effect::Rename { collection: source.info.number, names }, None)?;
    if seq.valuation.covers(to) {
        batch.note_repetition(); // its documents were not counted under their former name
    }
    Ok(changed())
}

fn create_indexes(
    seq: &mut Sequencer,
    ns: &Namespace,
    specs: &[Doc],
    batch: &mut Batch,
) -> Result<DefinitionReply> {
    if let Some(prebuilt) = &seq.scratch.prebuilt {
        prebuilt.there(ns, &seq.state)?;
    }
    let options = seq.state.collection(ns).map(|collection| collection.info.options.clone());
    let parsed = parse_indexes(specs, options.unwrap_or_default().raw())?;
    let created_collection = seq.state.collection(ns).is_none();
    let info = seq.ensure_collection(ns, batch)?;
    info.refuse_view()?;
    let collection = existing(seq, ns)?;
    let missing = missing_indexes(&collection, parsed)?;
    let indexes_before = collection.indexes().len() as i32;
    for (made, spec) in missing.iter().enumerate() {
        if let Err(error) = create_index(seq, &info, spec, batch) {
            // All or nothing: those of this command that were built go again.
            for spec in &missing[..made] {
                let name = doc! { "name": &spec.name };
                seq.effect(batch, Effect::DropIndex { collection: info.number, name }, None)?;
            }
            return Err(error);
        }
    }
    Ok(DefinitionReply {
        changed: !missing.is_empty(),
        indexes_before,
        indexes_after: indexes_before + missing.len() as i32,
        created_collection,
        ..Default::default()
    })
}

/// Reads the specifications of `createIndexes` for a collection with these options.
pub fn parse_indexes(specs: &[Doc], options: RawDoc<'_>) -> Result<Vec<IndexSpec>> {
    specs.iter().map(|spec| IndexSpec::parse(inheriting(spec, options).raw())).collect()
}

/// Those of the indexes that are to be built, each once. Fails if one of them cannot be beside those that are there or
/// come before it, or if they are too many.
pub fn missing_indexes(collection: &Collection, specs: Vec<IndexSpec>) -> Result<Vec<Arc<IndexSpec>>> {
    let mut all: Vec<Arc<IndexSpec>> = collection.indexes().iter().map(|index| index.spec.clone()).collect();
    for spec in specs {
        if is_there(&all, &spec)? {
            continue;
        }
        if all.len() >= INDEXES_MAX {
            let ns = &collection.info.ns;
            let message = format!("too many indexes: {ns} can have {INDEXES_MAX}, and these are more");
            return Err(Error::new(code::CANNOT_CREATE_INDEX, message));
        }
        all.push(Arc::new(spec));
    }
    Ok(all.split_off(collection.indexes().len()))
}

/// Whether one of `all` is this index. Fails if it is another one of the same name, or has another name.
fn is_there(all: &[Arc<IndexSpec>], spec: &IndexSpec) -> Result<bool> {
    for there in all {
        let same_options = there.doc.get("expireAfterSeconds").map(|v| v.to_owned())
            == spec.doc.get("expireAfterSeconds").map(|v| v.to_owned());
        let is_id = there.name == ID_INDEX;
        match (there.name == spec.name, there.same_signature(spec) || (is_id && same_id_keys(spec))) {
            (true, true) if same_options => return Ok(true),
            (_, true) if is_id => return Ok(true),
            (true, true) => {
                let message = format!(
                    "An equivalent index already exists with the same name but different options. Requested index: {}, existing index: {}",
                    shown(&spec.doc),
                    shown(&there.doc)
                );
                return Err(Error::new(code::INDEX_OPTIONS_CONFLICT, message));
            }
            (false, true) => {
                let message = format!("Index already exists with a different name: {}", there.name);
                return Err(Error::new(code::INDEX_OPTIONS_CONFLICT, message));
            }
            (true, false) => {
                let message = format!(
                    "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Please refer to our documentation. Requested index: {}, existing index: {}",
                    shown(&spec.doc),
                    shown(&there.doc)
                );
                return Err(Error::new(code::INDEX_KEY_SPECS_CONFLICT, message));
            }
            (false, false) => {}
        }
    }
    Ok(false)
}

fn create_index(
    seq: &mut Sequencer,
    info: &CollectionInfo,
    spec: &IndexSpec,
    batch: &mut Batch,
) -> Result<()> {
    let (collection, spec) = (info.number, spec.doc.clone());
    seq.check_room(&info.ns, spec.bytes().len(), batch)?;
    Ok(seq.effect(batch, Effect::CreateIndex { collection, spec }, None)?)
}

fn same_id_keys(spec: &IndexSpec) -> bool {
    let mut keys = spec.key_doc().iter();
    let first = keys.next().map(|element| (element.key().to_string(), element.value().as_integer()));
    first == Some(("_id".into(), Some(1))) && keys.next().is_none()
}

fn drop_indexes(
    seq: &mut Sequencer,
    ns: &Namespace,
    which: &IndexChoice,
    batch: &mut Batch,
) -> Result<DefinitionReply> {
    let collection = existing(seq, ns)?;
    let indexes_before = collection.indexes().len() as i32;
    let names: Vec<String> = match which {
        IndexChoice::All => {
            let specs = collection.indexes().iter().map(|index| index.spec.name.clone());
            specs.filter(|name| name != ID_INDEX).collect()
        }
        IndexChoice::Names(names) => names.clone(),
        IndexChoice::Keys(keys) => match by_keys(&collection, keys.raw())?.pop() {
            Some(spec) => vec![spec.name.clone()],
            None => {
                let message = format!("can't find index with key: {}", shown(keys));
                return Err(Error::new(code::INDEX_NOT_FOUND, message));
            }
        },
    };
    for name in &names {
        if name == ID_INDEX {
            return Err(Error::new(code::INVALID_OPTIONS, "cannot drop _id index"));
        }
        if collection.index(name).is_none() {
            return Err(Error::new(code::INDEX_NOT_FOUND, format!("index not found with name [{name}]")));
        }
    }
    for name in names {
        seq.effect(
            batch,
            Effect::DropIndex { collection: collection.info.number, name: doc! { "name": name } },
            None,
        )?;
    }
    Ok(DefinitionReply { indexes_before, ..changed() })
}

fn by_keys(collection: &Collection, keys: RawDoc<'_>) -> Result<Vec<Arc<IndexSpec>>> {
    let same = |spec: &&Arc<IndexSpec>| spec.has_keys(keys);
    Ok(collection.indexes().iter().map(|index| &index.spec).filter(same).cloned().collect())
}
