//! `insert`, `update`, `delete`: statements in, one result each out.
//!
//! A statement that cannot be parsed is a failed statement, not a failed command: those before it are carried
//! out, and those after it if the command is not `ordered`. Only what is wrong with its form fails the command.

use super::query::{self, Parsing};
use super::{Flow, Spec};
use crate::dispatch::Call;
use crate::errors::{self, Failure, Result, wrong_type};
use crate::hello::WRITE_BATCH_MAX;
use crate::options::Fields;
use bytes::Bytes;
use rockdove_documents::{Doc, DocBuilder, Error, Value, code};
use rockdove_engine::{
    DeleteStatement, Namespace, Outcome, Retry, Statement, UpdateStatement, Write, WriteError,
};

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::later("insert", FLAGS, |call, reply| Box::pin(insert(call, reply))),
    Spec::later("update", FLAGS, |call, reply| Box::pin(update(call, reply))),
    Spec::later("delete", FLAGS, |call, reply| Box::pin(delete(call, reply))),
];

/// What a statement of `update` knows; `sort` is refused where it has to be by [`parse_update`].
const UPDATE_FIELDS: [&str; 11] = [
    "q",
    "u",
    "c",
    "multi",
    "upsert",
    "collation",
    "arrayFilters",
    "hint",
    "sort",
    "upsertSupplied",
    "sampleId",
];

const FLAGS: u32 = Spec::WRITE | Spec::RETRYABLE | Spec::API_V1;

async fn insert(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("insert", call.command())?;
    fields.only(&["documents", "ordered", "bypassDocumentValidation", "collectionUUID"])?;
    let ns = query::namespace(call, &fields, "insert")?;
    let documents = documents(call, &fields, "documents")?.into_iter();
    let statements = documents.map(|doc| Statement::Insert { ns: ns.clone(), doc }).collect();
    let done = perform(call, &fields, statements).await?;
    reply.append("n", done.count(|outcome| u64::from(matches!(outcome, Outcome::Inserted))));
    done.append_errors(reply);
    Ok(Flow::Done)
}

/// Refuses what `update` and `delete` do not know; `statements` is where theirs are.
fn only(fields: &Fields<'_>, statements: &str) -> Result<()> {
    let known = ["ordered", "let", "bypassDocumentValidation", "collectionUUID"];
    Ok(fields.only(&[&known[..], &["runtimeConstants", statements]].concat())?)
}

async fn update(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    const NAMES: UpdateNames = UpdateNames { filter: "q", update: "u", constants: "c" };
    let fields = Fields::new("update", call.command())?;
    only(&fields, "updates")?;
    let ns = query::namespace(call, &fields, "update")?;
    let parsing = Parsing::new(call, &fields)?;
    let statements = parse_each(call, &fields, "updates", |statement| {
        let fields = Fields::new("update.updates", statement.raw())?;
        fields.only_these(&UPDATE_FIELDS)?;
        Ok(Statement::Update(Box::new(parse_update(call, &parsing, ns.clone(), &fields, &NAMES)?)))
    })?;
    let done = perform(call, &fields, statements).await?;
    reply.append(
        "n",
        done.count(|outcome| match outcome {
            Outcome::Updated { matched, upserted, .. } => matched + u64::from(upserted.is_some()),
            _ => 0,
        }),
    );
    done.append_upserted(reply);
    reply.append(
        "nModified",
        done.count(|outcome| match outcome {
            Outcome::Updated { modified, .. } => *modified,
            _ => 0,
        }),
    );
    done.append_errors(reply);
    Ok(Flow::Done)
}

/// What the fields of an update statement are called: `update` and `bulkWrite` differ.
pub struct UpdateNames {
    /// Which documents.
    pub filter: &'static str,
    /// What to do with them.
    pub update: &'static str,
    /// Values for the variables of a pipeline.
    pub constants: &'static str,
}

/// Reads an update statement of any command.
pub fn parse_update(
    call: &Call<'_>,
    parsing: &Parsing,
    ns: Namespace,
    fields: &Fields<'_>,
    names: &UpdateNames,
) -> Result<UpdateStatement> {
    let multi = fields.flag("multi")?;
    refuse_retried_multi(call, multi)?;
    let parsing = parsing.with_collation(fields)?.or_default_of(call, &ns)?;
    let update = parsing.update(
        fields.required(names.update)?,
        fields.array("arrayFilters")?,
        fields.document(names.constants)?,
    )?;
    if multi && update.is_replacement() {
        return Err(
            Error::failed_to_parse("multi update is not supported for replacement-style update").into()
        );
    }
    if fields.get("sort").is_some() && call.shared.identity.version < [8, 0, 0] {
        return Err(Failure::from(fields.unknown("sort")).whole());
    }
    let sort = parsing.sort(fields.document("sort")?)?;
    if multi && sort.is_some() {
        return Err(Error::failed_to_parse("Cannot specify sort with multi=true").into());
    }
    Ok(UpdateStatement {
        ns,
        filter: parsing.filter(fields.required_document(names.filter)?)?,
        update,
        multi,
        upsert: fields.flag("upsert")?,
        sort,
        hint: query::hint(fields)?,
    })
}

async fn delete(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("delete", call.command())?;
    only(&fields, "deletes")?;
    let ns = query::namespace(call, &fields, "delete")?;
    let parsing = Parsing::new(call, &fields)?;
    let statements = parse_each(call, &fields, "deletes", |statement| {
        let fields = Fields::new("delete.deletes", statement.raw())?;
        fields.only_these(&["q", "limit", "collation", "hint", "sampleId"])?;
        let multi = deletes_all(&fields)?;
        Ok(Statement::Delete(Box::new(parse_delete(call, &parsing, ns.clone(), &fields, "q", multi)?)))
    })?;
    let done = perform(call, &fields, statements).await?;
    reply.append(
        "n",
        done.count(|outcome| match outcome {
            Outcome::Deleted { count } => *count,
            _ => 0,
        }),
    );
    done.append_errors(reply);
    Ok(Flow::Done)
}

/// Whether a statement of `delete` goes for all matching documents.
fn deletes_all(fields: &Fields<'_>) -> Result<bool> {
    match fields.integer("limit")? {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        Some(limit) => {
            let message = format!("The limit field in delete objects must be 0 or 1. Got {limit}");
            Err(Failure::from(Error::failed_to_parse(message)).whole())
        }
        None => Err(fields.missing("limit").into()),
    }
}

/// Reads a delete statement of any command; its filter is the field `filter`.
pub fn parse_delete(
    call: &Call<'_>,
    parsing: &Parsing,
    ns: Namespace,
    fields: &Fields<'_>,
    filter: &str,
    multi: bool,
) -> Result<DeleteStatement> {
    refuse_retried_multi(call, multi)?;
    let parsing = parsing.with_collation(fields)?.or_default_of(call, &ns)?;
    let filter = parsing.filter(fields.required_document(filter)?)?;
    Ok(DeleteStatement { ns, filter, multi, hint: query::hint(fields)? })
}

/// A write to many documents cannot be told apart when it comes twice.
fn refuse_retried_multi(call: &Call<'_>, multi: bool) -> Result<()> {
    if multi && call.session.transaction_number.is_some() {
        let message = "Cannot use (or request) retryable writes with multi=true";
        return Err(Failure::new(code::INVALID_OPTIONS, message).whole());
    }
    Ok(())
}

/// The documents of an array field, from the command or from a sequence sent beside it.
pub fn documents(call: &Call<'_>, fields: &Fields<'_>, name: &str) -> Result<Vec<Doc>> {
    let sequence = call.body.sequences.iter().find(|sequence| &*sequence.field == name);
    let documents = match sequence {
        Some(sequence) => sequence.documents.clone(),
        None => {
            let array = fields.required_array(name)?;
            let slice = |value: Value<'_>| match value {
                Value::Document(doc) => Ok(call.body.command.slice_of(doc)),
                other => Err(Error::type_mismatch(format!(
                    "BSON field '{name}' has an element of the wrong type '{}', expected type 'object'",
                    other.kind().alias()
                ))),
            };
            array.values().map(slice).collect::<rockdove_documents::Result<_>>()?
        }
    };
    check_batch_size(documents.len())?;
    Ok(documents)
}

/// Checks the number of statements of one command.
pub fn check_batch_size(count: usize) -> Result<()> {
    if (1..=WRITE_BATCH_MAX).contains(&count) {
        return Ok(());
    }
    let message =
        format!("Write batch sizes must be between 1 and {WRITE_BATCH_MAX}. Got {count} operations.");
    Err(Failure::new(code::INVALID_LENGTH, message))
}

/// Parses the elements of an array of statements. One that cannot be parsed is refused in its place; what comes after it
/// in an ordered command is not carried out, but its form still counts.
pub fn parse_each(
    call: &Call<'_>,
    fields: &Fields<'_>,
    name: &str,
    parse: impl Fn(&Doc) -> Result<Statement>,
) -> Result<Vec<Statement>> {
    let ordered = fields.boolean("ordered")?.unwrap_or(true);
    let (mut statements, mut at_end) = (Vec::new(), false);
    for statement in &documents(call, fields, name)? {
        match parse(statement) {
            Err(failure) if failure.is_whole => return Err(failure),
            _ if at_end => {}
            Ok(parsed) => statements.push(parsed),
            Err(failure) => {
                statements.push(Statement::Refused(failure.error));
                at_end = ordered;
            }
        }
    }
    Ok(statements)
}

/// What became of the statements that were tried, in their order.
pub struct Done {
    /// The result of each.
    pub results: Vec<Result<Outcome, WriteError>>,
    /// Numbers of the statements whose first result is repeated.
    pub retried: Vec<i32>,
}

/// Carries statements out.
pub async fn perform(call: &Call<'_>, fields: &Fields<'_>, statements: Vec<Statement>) -> Result<Done> {
    let retry = retry(call, statements.len())?;
    if retry.is_some() {
        before_retryable(call, statements.len())?;
    }
    let inserts_only = statements.iter().all(|one| matches!(one, Statement::Insert { .. }));
    let write = Write {
        interrupt: (!inserts_only).then(|| call.interrupt()),
        statements,
        ordered: fields.boolean("ordered")?.unwrap_or(true),
        retry,
        ack: call.ack(),
        bypass_validation: fields.flag("bypassDocumentValidation")?,
    };
    let reply = call.shared.engine.write(write).await?;
    call.settle(&reply.receipt).await?;
    let reply = retried(call, reply, |reply| !reply.retried.is_empty())?;
    Ok(Done { results: reply.results, retried: reply.retried })
}

/// A fail point may strike before a retryable write.
pub fn before_retryable(call: &Call<'_>, statements: usize) -> Result<()> {
    call.shared.fail_points.before_retryable_write(statements).map_or(Ok(()), Err)
}

/// A fail point may strike after a retryable write that was really carried out.
pub fn retried<T>(call: &Call<'_>, reply: T, was_retried: impl Fn(&T) -> bool) -> Result<T> {
    let retryable = call.session.transaction_number.is_some();
    if retryable && !was_retried(&reply) && call.shared.fail_points.after_retryable_write() {
        return Err(Failure::close());
    }
    Ok(reply)
}

/// The session, number and statement numbers of a retryable write of so many statements.
fn retry(call: &Call<'_>, count: usize) -> Result<Option<Retry>> {
    let (Some(session), Some(number)) = (call.session.session, call.session.transaction_number) else {
        return Ok(None);
    };
    let command = call.command();
    let number_of = |field, id: Value<'_>| {
        let number = id.as_integer().and_then(|id| i32::try_from(id).ok());
        number.ok_or_else(|| wrong_type(field, id, "int"))
    };
    let from = |first: i32| (0..count).map(|position| first.saturating_add(position as i32)).collect();
    let given = |name| command.get(name).filter(|value| !matches!(value, Value::Null | Value::Undefined));
    let statements: Vec<i32> = match (given("stmtIds"), given("stmtId")) {
        (Some(Value::Array(ids)), _) => {
            ids.values().map(|id| number_of("stmtIds", id)).collect::<Result<_>>()?
        }
        (Some(other), _) => return Err(wrong_type("stmtIds", other, "array")),
        (None, Some(first)) => from(number_of("stmtId", first)?),
        (None, None) => from(0),
    };
    if statements.len() != count {
        let message = "Number of statement ids must match the number of batch entries";
        return Err(Failure::new(code::INVALID_LENGTH, message));
    }
    Ok(Some(Retry { session: Bytes::copy_from_slice(&session.0), number, statements }))
}

/// The session and number of a retryable command of one statement.
pub fn single_retry(call: &Call<'_>) -> Result<Option<Retry>> {
    retry(call, 1)
}

impl Done {
    /// The sum of `of` over the statements that were carried out.
    pub fn count(&self, of: impl Fn(&Outcome) -> u64) -> i32 {
        let sum: u64 = self.results.iter().filter_map(|result| result.as_ref().ok()).map(of).sum();
        i32::try_from(sum).unwrap_or(i32::MAX)
    }

    fn append_upserted(&self, reply: &mut DocBuilder) {
        let upserted: Vec<_> = self
            .results
            .iter()
            .enumerate()
            .filter_map(|(position, result)| match result {
                Ok(Outcome::Updated { upserted: Some(id), .. }) => Some((position, id)),
                _ => None,
            })
            .collect();
        if upserted.is_empty() {
            return;
        }
        reply.start_array("upserted");
        for (position, id) in upserted {
            reply.push_document().append("index", position as i32).append("_id", id).end();
        }
        reply.end();
    }

    fn append_errors(&self, reply: &mut DocBuilder) {
        let results = self.results.iter().enumerate();
        let failed: Vec<_> =
            results.filter_map(|(position, result)| Some((position, result.as_ref().err()?))).collect();
        if !failed.is_empty() {
            reply.start_array("writeErrors");
            for (position, error) in failed {
                errors::push_write_error(reply, position, &error.error, error.details.as_ref());
            }
            reply.end();
        }
        append_retried(reply, &self.retried);
    }
}

/// Appends the numbers of statements whose first result is repeated.
pub fn append_retried(reply: &mut DocBuilder, retried: &[i32]) {
    if retried.is_empty() {
        return;
    }
    reply.start_array("retriedStmtIds");
    for number in retried {
        reply.push(*number);
    }
    reply.end();
}
