//! Indexes: build, list, drop.

use super::collections::{define, existing};
use super::cursor::{self, Opening, Source};
use super::{Flow, Spec, query};
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use rockdove_documents::{Code, Doc, DocBuilder, Element, Error, Value, code};
use rockdove_engine::{Definition, IndexChoice};

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::later("createIndexes", Spec::WRITE | Spec::API_V1, |call, reply| Box::pin(create(call, reply))),
    Spec::later("dropIndexes", Spec::WRITE | Spec::API_V1, |call, reply| Box::pin(drop_indexes(call, reply)))
        .also(&["deleteIndexes"]),
    Spec::now("listIndexes", Spec::READ | Spec::API_V1, list),
];

/// Options of an index (MongoDB manual: createIndexes), those of kinds that are refused by name included.
const OPTIONS: [&str; 25] = [
    "key",
    "name",
    "v",
    "ns",
    "unique",
    "sparse",
    "hidden",
    "background",
    "expireAfterSeconds",
    "partialFilterExpression",
    "collation",
    "storageEngine",
    "prepareUnique",
    "clustered",
    "dropDups",
    "weights",
    "default_language",
    "language_override",
    "textIndexVersion",
    "2dsphereIndexVersion",
    "bits",
    "min",
    "max",
    "bucketSize",
    "wildcardProjection",
];
/// An option that such an index does not have.
pub const INVALID_OPTION: Code = Code { number: 197, name: "InvalidIndexSpecificationOption" };

async fn create(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("createIndexes", call.command())?;
    let others = ["commitQuorum", "ignoreUnknownIndexOptions", "returnOnStart", "collectionUUID"];
    fields.only(&[&["indexes"], &others[..]].concat())?;
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
    let ignores = fields.flag("ignoreUnknownIndexOptions")?;
    specs.into_iter().map(|spec| known_options(spec, ignores)).collect()
}

/// The specification with options that are known only; others are left out, or refused.
fn known_options(spec: Doc, ignores: bool) -> Result<Doc> {
    let unknown = |element: &Element<'_>| !OPTIONS.contains(&element.key());
    let Some(first) = spec.raw().iter().find(unknown).map(|element| element.key().to_string()) else {
        return Ok(spec);
    };
    if !ignores {
        let message = format!("The field '{first}' is not valid for an index specification.");
        return Err(Failure::new(INVALID_OPTION, message));
    }
    let mut known = DocBuilder::new();
    for element in spec.raw().iter().filter(|element| !unknown(element)) {
        known.append_element(element);
    }
    Ok(known.finish())
}

async fn drop_indexes(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("dropIndexes", call.command())?;
    fields.only(&["index", "collectionUUID"])?;
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
    fields.only(&["cursor", "includeBuildUUIDs", "includeIndexBuildInfo", "collectionUUID"])?;
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
