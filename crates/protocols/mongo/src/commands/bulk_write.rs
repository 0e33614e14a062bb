//! `bulkWrite`: inserts, updates and deletes of several collections in one command (MongoDB 8.0).

use super::cursor::{self, Opening, Source};
use super::query::{Parsing, refuse_other_collection};
use super::write::{self, Done, UpdateNames, documents, parse_each, perform};
use super::{Flow, Spec};
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use rockdove_documents::{Doc, DocBuilder, Error, code};
use rockdove_engine::{Namespace, Outcome, Statement, WriteError};

/// The commands of this family.
pub const COMMANDS: &[Spec] =
    &[Spec::later("bulkWrite", Spec::WRITE | Spec::RETRYABLE | Spec::ADMIN | Spec::API_V1, |call, reply| {
        Box::pin(bulk_write(call, reply))
    })];

const UPDATE_NAMES: UpdateNames =
    UpdateNames { filter: "filter", update: "updateMods", constants: "constants" };

const UPDATE_FIELDS: [&str; 12] = [
    "update",
    "filter",
    "updateMods",
    "constants",
    "multi",
    "upsert",
    "collation",
    "arrayFilters",
    "hint",
    "sort",
    "upsertSupplied",
    "sampleId",
];

async fn bulk_write(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("bulkWrite", call.command())?;
    fields.only(&["ops", "nsInfo", "ordered", "bypassDocumentValidation", "errorsOnly", "let", "cursor"])?;
    let namespaces = namespaces(call, &fields)?;
    let parsing = Parsing::new(call, &fields)?;
    let statements = parse_each(call, &fields, "ops", |op| parse(call, &parsing, &namespaces, op))?;
    let done = perform(call, &fields, statements).await?;
    let errors_only = fields.flag("errorsOnly")?;
    let results = done
        .results
        .iter()
        .enumerate()
        .filter(|(_, result)| !errors_only || result.is_err())
        .map(|(position, result)| describe(position, result))
        .collect();
    let opening = Opening::new(call, "admin.$cmd.bulkWrite".into()).batch(cursor::batch_size(&fields)?);
    cursor::open(opening, Source::ready(results), reply)?;
    append_counts(reply, &done);
    write::append_retried(reply, &done.retried);
    Ok(Flow::Done)
}

fn namespaces(call: &Call<'_>, fields: &Fields<'_>) -> Result<Vec<Namespace>> {
    let named = documents(call, fields, "nsInfo")?;
    let parse = |info: &Doc| {
        let fields = Fields::new("bulkWrite.nsInfo", info.raw())?;
        fields.only_these(&["ns", "collectionUUID"])?;
        let ns = Namespace::parse(fields.required_string("ns")?)?;
        refuse_other_collection(call, &fields, &ns)?;
        Ok(ns)
    };
    named.iter().map(parse).collect()
}

fn parse(call: &Call<'_>, parsing: &Parsing, namespaces: &[Namespace], op: &Doc) -> Result<Statement> {
    let name = op.raw().iter().next().map_or("", |first| first.key());
    if !["insert", "update", "delete"].contains(&name) {
        let message = format!("BulkWrite op '{name}' is not insert, update or delete");
        return Err(Failure::from(Error::failed_to_parse(message)).whole());
    }
    let fields = Fields::new("bulkWrite.ops", op.raw())?;
    let number = fields.count(name)?.and_then(|number| usize::try_from(number).ok());
    let ns = number.and_then(|number| namespaces.get(number)).cloned().ok_or_else(|| {
        let message = format!("BulkWrite ops entry {name} has an invalid nsInfo index.");
        Failure::new(code::BAD_VALUE, message).whole()
    })?;
    match name {
        "insert" => {
            fields.only_these(&["insert", "document"])?;
            Ok(Statement::Insert { ns, doc: op.slice_of(fields.required_document("document")?) })
        }
        "update" => {
            fields.only_these(&UPDATE_FIELDS)?;
            Ok(Statement::Update(Box::new(write::parse_update(call, parsing, ns, &fields, &UPDATE_NAMES)?)))
        }
        _ => {
            fields.only_these(&["delete", "filter", "multi", "collation", "hint", "sampleId"])?;
            let multi = fields.flag("multi")?;
            let delete = write::parse_delete(call, parsing, ns, &fields, "filter", multi)?;
            Ok(Statement::Delete(Box::new(delete)))
        }
    }
}

/// The result of one statement as the reply's cursor shows it.
fn describe(position: usize, result: &Result<Outcome, WriteError>) -> Doc {
    let mut doc = DocBuilder::new();
    doc.append("ok", if result.is_ok() { 1.0 } else { 0.0 }).append("idx", position as i32);
    match result {
        Ok(Outcome::Inserted) => {
            doc.append("n", 1);
        }
        Ok(Outcome::Deleted { count }) => {
            doc.append("n", *count as i32);
        }
        Ok(Outcome::Updated { matched, modified, upserted }) => {
            doc.append("n", (matched + u64::from(upserted.is_some())) as i32);
            doc.append("nModified", *modified as i32);
            if let Some(id) = upserted {
                doc.start_document("upserted").append("_id", id).end();
            }
        }
        Err(error) => {
            doc.append("n", 0).append("code", error.error.code.number);
            if let Some(details) = &error.details {
                doc.append_all(details.raw());
            }
            doc.append("errmsg", &error.error.message);
        }
    }
    doc.finish()
}

fn append_counts(reply: &mut DocBuilder, done: &Done) {
    let errors = done.results.iter().filter(|result| result.is_err()).count();
    reply.append("nErrors", errors as i32);
    let updated = |of: fn(u64, u64, u64) -> u64| {
        done.count(|outcome| match outcome {
            Outcome::Updated { matched, modified, upserted } => {
                of(*matched, *modified, u64::from(upserted.is_some()))
            }
            _ => 0,
        })
    };
    reply.append("nInserted", done.count(|outcome| u64::from(matches!(outcome, Outcome::Inserted))));
    reply.append("nMatched", updated(|matched, _, _| matched));
    reply.append("nModified", updated(|_, modified, _| modified));
    reply.append("nUpserted", updated(|_, _, upserted| upserted));
    let deleted = |outcome: &Outcome| match outcome {
        Outcome::Deleted { count } => *count,
        _ => 0,
    };
    reply.append("nDeleted", done.count(deleted));
}
