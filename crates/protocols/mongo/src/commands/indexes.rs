//! Indexes: build, list, drop.

use super::collections::{define, existing};
use super::cursor::{self, Opening, Source};
use super::{Flow, Spec, query};
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use rockdove_documents::{Doc, DocBuilder, Error, Value, code};
use rockdove_engine::{Definition, IndexChoice};

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::later("createIndexes", Spec::WRITE | Spec::API_V1, |call, reply| Box::pin(create(call, reply))),
    Spec::later("dropIndexes", Spec::WRITE | Spec::API_V1, |call, reply| Box::pin(drop_indexes(call, reply)))
        .also(&["deleteIndexes"]),
    Spec::now("listIndexes", Spec::READ | Spec::API_V1, list),
];

async fn create(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("createIndexes", call.command())?;
    let ns = query::namespace(call, &fields, "createIndexes")?;
    let specs = specs(call, &fields)?;
    let done = define(call, Definition::CreateIndexes { ns, specs }).await?;
    reply.append("numIndexesBefore", done.indexes_before).append("numIndexesAfter", done.indexes_after);
    reply.append("createdCollectionAutomatically", done.created_collection);
    if done.indexes_before == done.indexes_after {
        reply.append("note", "all indexes already exist");
    }
    Ok(Flow::Done)
}

fn specs(call: &Call<'_>, fields: &Fields<'_>) -> Result<Vec<Doc>> {
    let array = fields.required_array("indexes")?;
    let spec = |value: Value<'_>| match value {
        Value::Document(spec) => Ok(call.body.command.slice_of(spec)),
        other => Err(Error::type_mismatch(format!(
            "BSON field 'createIndexes.indexes' has an element of the wrong type '{}', expected type 'object'",
            other.kind().alias()
        ))),
    };
    let specs: Vec<Doc> = array.values().map(spec).collect::<rockdove_documents::Result<_>>()?;
    if specs.is_empty() {
        return Err(Failure::new(code::BAD_VALUE, "Must specify at least one index to create"));
    }
    Ok(specs)
}

async fn drop_indexes(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("dropIndexes", call.command())?;
    let ns = query::namespace(call, &fields, call.name)?;
    let which = match fields.required("index")? {
        Value::String("*") => IndexChoice::All,
        Value::String(name) => IndexChoice::Names(vec![name.to_string()]),
        Value::Document(keys) => IndexChoice::Keys(keys.to_doc()),
        Value::Array(names) => {
            let names = names.values().map(|name| name.as_str().map(str::to_string)).collect::<Option<_>>();
            IndexChoice::Names(names.ok_or_else(|| Error::type_mismatch("index names must be strings"))?)
        }
        other => {
            let actual = other.kind().alias();
            let message = format!(
                "BSON field 'dropIndexes.index' is the wrong type '{actual}', expected types '[string, object, array]'"
            );
            return Err(Error::type_mismatch(message).into());
        }
    };
    let done = define(call, Definition::DropIndexes { ns, which }).await?;
    reply.append("nIndexesWas", done.indexes_before);
    Ok(Flow::Done)
}

fn list(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let fields = Fields::new("listIndexes", call.command())?;
    let ns = query::namespace(call, &fields, "listIndexes")?;
    let collection = existing(call, &ns)?;
    collection.info.refuse_view()?;
    let mut specs: Vec<Doc> = collection.indexes().iter().map(|index| index.spec.doc.clone()).collect();
    if let (Some(Value::Document(clustered)), Some(first)) =
        (collection.info.options.get("clusteredIndex"), specs.first_mut())
    {
        let mut shown = DocBuilder::new();
        shown.append_all(clustered).append("clustered", true);
        *first = shown.finish();
    }
    let opening = Opening::new(call, ns.full().to_string()).batch(cursor::batch_size(&fields)?);
    cursor::open(opening, Source::ready(specs), reply)
}
