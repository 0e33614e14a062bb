//! `find`, `count`, `distinct`: reading documents as they are stored.

use super::cursor::{self, Opening, Reader, off_thread};
use super::query::{self, Parsing};
use super::tail::Tail;
use super::{Flow, Spec, aggregate};
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use rockdove_documents::{Doc, DocBuilder, Error, RawDoc, code};
use rockdove_engine::{Find, Namespace, Query, State};

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::later("find", READ | Spec::SNAPSHOT, |call, reply| Box::pin(find(call, reply))),
    Spec::later("count", READ, |call, reply| Box::pin(count(call, reply))),
    Spec::later("distinct", Spec::READ | Spec::SNAPSHOT, |call, reply| Box::pin(distinct(call, reply))),
];

/// What `find` knows (MongoDB manual: find), those it refuses by name included.
const FIELDS: [&str; 26] = [
    "filter",
    "sort",
    "projection",
    "skip",
    "limit",
    "batchSize",
    "singleBatch",
    "hint",
    "collation",
    "let",
    "tailable",
    "awaitData",
    "noCursorTimeout",
    "allowDiskUse",
    "allowPartialResults",
    "min",
    "max",
    "returnKey",
    "showRecordId",
    "oplogReplay",
    "mirrored",
    "readOnce",
    "term",
    "collectionUUID",
    "runtimeConstants",
    "includeQueryStatsMetrics",
];

const READ: u32 = Spec::READ | Spec::API_V1;
/// A query that may look at more documents than this is carried out off the connection's thread.
const HEAVY_DOCUMENTS: usize = 5_000;
/// Most bytes of distinct values in one reply.
const DISTINCT_BYTES_MAX: usize = 16 * 1024 * 1024;

async fn find(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("find", call.command())?;
    fields.only(&FIELDS)?;
    let ns = query::namespace(call, &fields, "find")?;
    let state = query::snapshot(call)?;
    if is_view(&state, &ns) {
        return aggregate::find_in_view(call, &fields, state, &ns, reply).await;
    }
    let (limit, single) = limit(&fields)?;
    let find = parse(call, &fields, ns.clone(), limit)?;
    let mut opening = Opening::new(call, ns.full().to_string())
        .batch(fields.count("batchSize")?)
        .single(single)
        .no_timeout(fields.flag("noCursorTimeout")?);
    if call.read_concern.snapshot.is_some() {
        opening = opening.extra(query::at_cluster_time(&state));
    }
    if fields.flag("tailable")? {
        return tail(call, &fields, &find, opening, reply);
    }
    if fields.flag("awaitData")? {
        return Err(Error::failed_to_parse("Cannot set 'awaitData' without also setting 'tailable'").into());
    }
    let query = Query::plan(&state, find)?;
    let heavy = is_heavy(&query);
    let left = (limit > 0).then_some(limit);
    let make = move || Ok(Reader::new(Box::new(query.documents()?), left, heavy));
    cursor::open_with(opening, heavy, make, reply).await?;
    Ok(Flow::Done)
}

/// `limit` and whether one batch is all: a negative limit is refused, as the manual has it.
fn limit(fields: &Fields<'_>) -> Result<(u64, bool)> {
    Ok((fields.count("limit")?.unwrap_or(0), fields.flag("singleBatch")?))
}

/// Reads the query of a `find`.
pub fn parse(call: &Call<'_>, fields: &Fields<'_>, ns: Namespace, limit: u64) -> Result<Find> {
    let parsing = Parsing::on(call, fields, &ns)?;
    for option in ["min", "max", "returnKey", "showRecordId"] {
        if fields.get(option).is_some_and(|value| value.as_bool() != Some(false) && !is_empty(value)) {
            let message = format!("find: the option '{option}' is not supported");
            return Err(Failure::new(code::COMMAND_NOT_SUPPORTED, message));
        }
    }
    Ok(Find {
        ns,
        filter: parsing.filter(fields.document("filter")?.unwrap_or(RawDoc::empty()))?,
        sort: parsing.sort(fields.document("sort")?)?,
        projection: parsing.projection(fields.document("projection")?)?,
        skip: fields.count("skip")?.unwrap_or(0),
        limit,
        hint: query::hint(fields)?,
    })
}

fn is_view(state: &State, ns: &Namespace) -> bool {
    state.collection(ns).is_some_and(|collection| collection.info.view.is_some())
}

fn is_empty(value: rockdove_documents::Value<'_>) -> bool {
    value.as_document().is_some_and(|doc| doc.is_empty())
}

/// Whether carrying a query out may take long.
pub fn is_heavy(query: &Query) -> bool {
    !query.is_cheap() || query.looks_at_more_than(HEAVY_DOCUMENTS)
}

/// A collection that is not there has nothing to go on from: its cursor is closed at once.
fn tail(
    call: &Call<'_>,
    fields: &Fields<'_>,
    find: &Find,
    opening: Opening,
    reply: &mut DocBuilder,
) -> Result<Flow> {
    let state = call.shared.engine.snapshot();
    match state.collection(&find.ns) {
        Some(collection) => {
            cursor::open_tail(opening, Box::new(Tail::open(call, fields, &state, collection)?), reply)?;
        }
        None => cursor::open(opening, cursor::Source::ready(Vec::new()), reply)?,
    }
    Ok(Flow::Done)
}

async fn count(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("count", call.command())?;
    fields.only(&["query", "limit", "skip", "hint", "collation", "fields", "collectionUUID"])?;
    let ns = query::namespace(call, &fields, "count")?;
    let state = query::snapshot(call)?;
    let find = parse_count(call, &fields, ns)?;
    let counted = if is_view(&state, &find.ns) {
        aggregate::count_in_view(call, &fields, state, &find).await?
    } else {
        let query = Query::plan(&state, find)?;
        match is_heavy(&query) {
            true => off_thread(call.shared, &call.interrupt(), move || Ok(query.count()?)).await?,
            false => query.count()?,
        }
    };
    match i32::try_from(counted) {
        Ok(counted) => reply.append("n", counted),
        Err(_) => reply.append("n", counted as i64),
    };
    Ok(Flow::Done)
}

fn parse_count(call: &Call<'_>, fields: &Fields<'_>, ns: Namespace) -> Result<Find> {
    let parsing = Parsing::on(call, fields, &ns)?;
    let limit = fields.integer("limit")?.unwrap_or(0).unsigned_abs(); // a negative limit counts as its absolute value
    let filter = parsing.filter(fields.document("query")?.unwrap_or(RawDoc::empty()))?;
    Ok(Find {
        skip: fields.count("skip")?.unwrap_or(0),
        limit,
        hint: query::hint(fields)?,
        ..Find::new(ns, filter)
    })
}

async fn distinct(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("distinct", call.command())?;
    fields.only(&["key", "query", "hint", "collation", "collectionUUID"])?;
    let ns = query::namespace(call, &fields, "distinct")?;
    let key = fields.required_string("key")?.to_string();
    let parsing = Parsing::on(call, &fields, &ns)?;
    let filter = parsing.filter(fields.document("query")?.unwrap_or(RawDoc::empty()))?;
    let state = query::snapshot(call)?;
    let at = call.read_concern.snapshot.is_some().then(|| query::at_cluster_time(&state));
    let find = Find { hint: query::hint(&fields)?, ..Find::new(ns.clone(), filter) };
    let interrupt = call.interrupt();
    let values: Doc = if is_view(&state, &ns) {
        let read = aggregate::documents_of_view(call, &fields, &state, &ns)?;
        let work = move || query::distinct(read()?, &key, &parsing, DISTINCT_BYTES_MAX);
        off_thread(call.shared, &interrupt, work).await?
    } else {
        let query = Query::plan(&state, find)?;
        let heavy = is_heavy(&query);
        let work = move || query::distinct(Box::new(query.documents()?), &key, &parsing, DISTINCT_BYTES_MAX);
        if heavy { off_thread(call.shared, &interrupt, work).await? } else { work()? }
    };
    reply.append_value("values", rockdove_documents::Value::Array(values.raw()));
    if let Some(at) = at {
        reply.append_all(at.raw());
    }
    Ok(Flow::Done)
}
