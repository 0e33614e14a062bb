//! `explain`: how a command would be carried out, and what carrying it out looks at.

use super::cursor::off_thread;
use super::query::{self, Parsing};
use super::{Flow, Spec, aggregate, find};
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use rockdove_documents::{DocBuilder, Error, RawDoc, Value, code};
use rockdove_engine::{Explained, Find};
use std::time::Instant;

/// The commands of this family.
pub const COMMANDS: &[Spec] =
    &[Spec::later("explain", Spec::READ | Spec::API_V1, |call, reply| Box::pin(explain(call, reply)))];

async fn explain(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("explain", call.command())?;
    let explained = fields.required_document("explain")?;
    let executes = match fields.string("verbosity")? {
        None | Some("allPlansExecution" | "executionStats") => true,
        Some("queryPlanner") => false,
        Some(other) => {
            let message =
                format!("Enumeration value '{other}' for field 'explain.verbosity' is not a valid value.");
            return Err(Error::bad_value(message).into());
        }
    };
    append(call, explained, executes, reply).await?;
    Ok(Flow::Done)
}

/// Explains a command: its query, whatever is done with what the query finds.
pub async fn append(
    call: &Call<'_>,
    explained: RawDoc<'_>,
    executes: bool,
    reply: &mut DocBuilder,
) -> Result<()> {
    let name = explained.iter().next().map_or("", |first| first.key());
    let fields = Fields::new(name, explained)?;
    let find = match name {
        "find" => {
            let limit = fields.count("limit")?.unwrap_or(0);
            find::parse(call, &fields, query::namespace(call, &fields, name)?, limit)?
        }
        "count" | "distinct" | "findAndModify" | "findandmodify" => {
            let filter = fields.document("query")?;
            with_filter(call, &fields, name, filter)?
        }
        "delete" | "update" => {
            let list = fields.required_array(if name == "delete" { "deletes" } else { "updates" })?;
            let first = list.values().next().and_then(|statement| statement.as_document());
            let filter = first.and_then(|statement| statement.get("q")?.as_document());
            with_filter(call, &fields, name, filter)?
        }
        "aggregate" => aggregate::leading_find(call, &fields)?,
        other => {
            return Err(Failure::new(
                code::COMMAND_NOT_FOUND,
                format!("Explain failed due to unknown command: {other}"),
            ));
        }
    };
    append_plan(call, find, explained, executes, reply).await
}

fn with_filter(call: &Call<'_>, fields: &Fields<'_>, name: &str, filter: Option<RawDoc<'_>>) -> Result<Find> {
    let ns = query::namespace(call, fields, name)?;
    let parsing = Parsing::on(call, fields, &ns)?;
    let filter = parsing.filter(filter.unwrap_or(RawDoc::empty()))?;
    Ok(Find { hint: query::hint(fields)?, ..Find::new(ns, filter) })
}

async fn append_plan(
    call: &Call<'_>,
    find: Find,
    explained: RawDoc<'_>,
    executes: bool,
    reply: &mut DocBuilder,
) -> Result<()> {
    let begin = Instant::now();
    let (state, ns) = (call.shared.engine.snapshot(), find.ns.clone());
    let work = move || Ok(rockdove_engine::explain(&state, &find, executes)?);
    let result = if executes { off_thread(call.shared, &call.interrupt(), work).await? } else { work()? };
    reply.append("explainVersion", "1").start_document("queryPlanner");
    reply.append("namespace", ns.full()).append("indexFilterSet", false);
    let filter =
        explained.get("filter").or(explained.get("query")).unwrap_or(Value::Document(RawDoc::empty()));
    reply.append_value("parsedQuery", filter);
    append_stage(reply, "winningPlan", result.as_ref());
    reply.start_array("rejectedPlans").end().end();
    if executes {
        let (returned, keys, docs) = result
            .as_ref()
            .map_or((0, 0, 0), |result| (result.returned, result.keys_examined, result.docs_examined));
        reply.start_document("executionStats").append("executionSuccess", true);
        reply.append("nReturned", returned as i64);
        reply.append("executionTimeMillis", begin.elapsed().as_millis() as i64);
        reply.append("totalKeysExamined", keys as i64).append("totalDocsExamined", docs as i64);
        append_stage(reply, "executionStages", result.as_ref());
        reply.end();
    }
    reply.append("command", explained).start_document("serverInfo");
    reply
        .append("host", &call.shared.identity.advertised)
        .append("version", call.shared.identity.version_text());
    reply.end();
    Ok(())
}

/// The plan as nested stages: a sort over a fetch over an index scan, or a scan of the whole collection.
fn append_stage(reply: &mut DocBuilder, name: &str, explained: Option<&Explained>) {
    reply.start_document(name);
    let Some(plan) = explained.map(|explained| &explained.plan) else {
        reply.append("stage", "EOF").end();
        return;
    };
    if plan.sorts {
        reply.append("stage", "SORT").start_document("inputStage");
    }
    let direction = if plan.reverse { "backward" } else { "forward" };
    match &plan.index {
        None => {
            reply.append("stage", "COLLSCAN").append("direction", direction);
        }
        Some((index, keys, multikey)) => {
            reply.append("stage", "FETCH").start_document("inputStage").append("stage", "IXSCAN");
            reply.append("keyPattern", keys).append("indexName", index).append("isMultiKey", *multikey);
            reply.append("direction", direction).append("intervals", plan.intervals as i32).end();
        }
    }
    if plan.sorts {
        reply.end();
    }
    reply.end();
}
