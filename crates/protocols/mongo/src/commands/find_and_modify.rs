//! `findAndModify`: change or remove one document and return it.

use super::query::{self, Parsing};
use super::write::{before_retryable, retried, single_retry};
use super::{Flow, Spec};
use crate::dispatch::Call;
use crate::errors::Result;
use crate::options::Fields;
use rockdove_documents::{DocBuilder, Error};
use rockdove_engine::{FindAndModify, FindAndModifyReply, Modify};

/// The commands of this family.
pub const COMMANDS: &[Spec] =
    &[Spec::later("findAndModify", Spec::WRITE | Spec::RETRYABLE | Spec::API_V1, |call, reply| {
        Box::pin(find_and_modify(call, reply))
    })
    .also(&["findandmodify"])];

/// What the command knows (MongoDB manual: findAndModify).
const FIELDS: [&str; 15] = [
    "query",
    "sort",
    "remove",
    "update",
    "new",
    "upsert",
    "fields",
    "collation",
    "arrayFilters",
    "hint",
    "let",
    "bypassDocumentValidation",
    "collectionUUID",
    "runtimeConstants",
    "sampleId",
];

async fn find_and_modify(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("findAndModify", call.command())?;
    fields.only(&FIELDS)?;
    let command = parse(call, &fields)?;
    let removes = matches!(command.action, Modify::Remove);
    if command.retry.is_some() {
        before_retryable(call, 1)?;
    }
    let done = call.shared.engine.find_and_modify(command).await?;
    call.settle(&done.receipt).await?;
    let done = retried(call, done, |done| done.retried)?;
    append(reply, &done, removes);
    Ok(Flow::Done)
}

fn parse(call: &Call<'_>, fields: &Fields<'_>) -> Result<FindAndModify> {
    let ns = query::namespace(call, fields, call.name)?;
    let parsing = Parsing::on(call, fields, &ns)?;
    let filter = parsing.filter(fields.document("query")?.unwrap_or(rockdove_documents::RawDoc::empty()))?;
    Ok(FindAndModify {
        ns,
        sort: parsing.sort(fields.document("sort")?)?,
        action: action(fields, &parsing)?,
        projection: parsing.projection(fields.document("fields")?)?,
        filter,
        hint: query::hint(fields)?,
        retry: single_retry(call)?,
        ack: call.ack(),
        interrupt: Some(call.interrupt()),
        bypass_validation: fields.flag("bypassDocumentValidation")?,
    })
}

fn action(fields: &Fields<'_>, parsing: &Parsing) -> Result<Modify> {
    let (remove, upsert, return_new) = (fields.flag("remove")?, fields.flag("upsert")?, fields.flag("new")?);
    let wrong = |message: &str| Err(Error::failed_to_parse(message).into());
    match fields.get("update") {
        Some(_) if remove => wrong("Cannot specify both an update and remove=true"),
        None if remove && upsert => wrong("Cannot specify both upsert=true and remove=true"),
        None if remove && return_new => wrong(
            "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document",
        ),
        None if remove => Ok(Modify::Remove),
        None => wrong("Either an update or remove=true must be specified"),
        Some(update) => {
            let update = parsing.update(update, fields.array("arrayFilters")?, None)?;
            Ok(Modify::Update { update: Box::new(update), upsert, return_new })
        }
    }
}

fn append(reply: &mut DocBuilder, done: &FindAndModifyReply, removes: bool) {
    reply.start_document("lastErrorObject");
    reply.append("n", i32::from(done.found || done.upserted.is_some()));
    if !removes {
        reply.append("updatedExisting", done.found);
    }
    if let Some(id) = &done.upserted {
        reply.append("upserted", id);
    }
    reply.end();
    reply.append("value", done.value.as_ref());
    if done.retried {
        reply.append("retriedStmtId", 0);
    }
}
