//! `aggregate`: pipelines over collections, views, and what the server knows of itself.

use super::cursor::{self, Opening, Reader, off_thread};
use super::find::is_heavy;
use super::query::{self, Parsing};
use super::{Flow, Spec, change_stream, explain, server, sink, statistics};
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use crate::topology::Role;
use rockdove_documents::pipeline::{Docs, Environment, Pipeline, Tables};
use rockdove_documents::{Code, Doc, DocBuilder, Error, RawDoc, Value, code};
use rockdove_engine::{Find, Namespace, Query, State};
use std::sync::Arc;

/// The commands of this family.
pub const COMMANDS: &[Spec] =
    &[Spec::later("aggregate", Spec::READ | Spec::SNAPSHOT | Spec::API_V1, |call, reply| {
        Box::pin(aggregate(call, reply))
    })];

/// What the command knows (MongoDB manual: aggregate).
const FIELDS: [&str; 10] = [
    "pipeline",
    "cursor",
    "explain",
    "allowDiskUse",
    "hint",
    "collation",
    "let",
    "bypassDocumentValidation",
    "collectionUUID",
    "runtimeConstants",
];

/// Deepest nesting of views (MongoDB manual: views).
const VIEW_DEPTH_MAX: usize = 20;
const VIEW_TOO_DEEP: Code = Code { number: 165, name: "ViewDepthLimitExceeded" };

/// What a pipeline reads from.
enum Input {
    /// A collection, by a query that takes over the pipeline's first stages.
    Collection(Box<Query>),
    /// Documents made by the server, or none for a pipeline that makes its own.
    Made(Vec<Doc>),
}

/// A pipeline ready to be run.
struct Prepared {
    pipeline: Pipeline,
    /// How many stages the input has taken over.
    done: usize,
    input: Input,
    environment: Arc<Environment>,
    parsing: Parsing,
    heavy: bool,
}

async fn aggregate(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("aggregate", call.command())?;
    fields.only(&FIELDS)?;
    let stages = fields.required_array("pipeline")?;
    if fields.flag("explain")? {
        explain::append(call, call.command(), false, reply).await?;
        return Ok(Flow::Done);
    }
    if fields.document("cursor")?.is_none() {
        let message = "The 'cursor' option is required, except for aggregate with the explain argument";
        return Err(Error::failed_to_parse(message).into());
    }
    if change_stream::is_change_stream(call.command()) {
        change_stream::open(call, &fields, stages, reply).await?;
        return Ok(Flow::Done);
    }
    let state = query::snapshot(call)?;
    let ns = namespace(call, &fields)?;
    let prepared = prepare(call, &fields, state.clone(), ns.as_ref(), stages)?;
    let cursor_ns = ns.map_or(format!("{}.$cmd.aggregate", call.database), |ns| ns.full().to_string());
    let mut opening = Opening::new(call, cursor_ns).batch(cursor::batch_size(&fields)?);
    if call.read_concern.snapshot.is_some() {
        opening = opening.extra(query::at_cluster_time(&state));
    }
    if prepared.pipeline.sink().is_some() {
        write_out(call, prepared).await?;
        cursor::open(opening, cursor::Source::ready(Vec::new()), reply)?;
        return Ok(Flow::Done);
    }
    let heavy = prepared.heavy;
    cursor::open_with(opening, heavy, move || Ok(Reader::new(prepared.run()?, None, heavy)), reply).await?;
    Ok(Flow::Done)
}

/// Runs a pipeline that writes its results into a collection.
async fn write_out(call: &Call<'_>, prepared: Prepared) -> Result<()> {
    if call.shared.topology.state().role != Role::Primary {
        return Err(Failure::new(code::NOT_WRITABLE_PRIMARY, "not primary"));
    }
    let level = call.command().get("readConcern").and_then(|concern| concern.as_document()?.get("level"));
    if level == Some(Value::String("linearizable")) {
        let message = "$out and $merge cannot be used with a 'linearizable' read concern level";
        return Err(Failure::new(code::INVALID_OPTIONS, message));
    }
    let (pipeline, environment) = (prepared.pipeline.clone(), prepared.environment.clone());
    let Some(sink) = pipeline.sink() else { return Ok(()) };
    let (target, parsing) = (sink::target(call, sink)?, prepared.parsing.clone());
    let results = move || Ok(prepared.run()?.collect::<rockdove_documents::Result<Vec<Doc>>>()?);
    let results = off_thread(call.shared, &call.interrupt(), results).await?;
    sink::Writer::new(call, &parsing, &environment).write(sink, &target, results).await
}

/// The collection, if the command names one.
fn namespace(call: &Call<'_>, fields: &Fields<'_>) -> Result<Option<Namespace>> {
    match fields.get("aggregate") {
        Some(Value::String(_)) => Ok(Some(query::namespace(call, fields, "aggregate")?)),
        Some(value) if value.as_integer() == Some(1) => Ok(None),
        _ => Err(Error::failed_to_parse(
            "Invalid command format: the 'aggregate' field must specify a collection name or 1",
        )
        .into()),
    }
}

fn prepare(
    call: &Call<'_>,
    fields: &Fields<'_>,
    state: Arc<State>,
    ns: Option<&Namespace>,
    stages: RawDoc<'_>,
) -> Result<Prepared> {
    let parsing = match ns {
        Some(ns) => Parsing::on(call, fields, ns)?,
        None => Parsing::new(call, fields)?,
    };
    let hint = query::hint(fields)?;
    let environment = environment(call, &parsing, &state);
    let (ns, stages) = match ns {
        Some(ns) => resolve(&state, ns, stages)?,
        None => (Namespace::new(call.database, "$cmd.aggregate")?, stages.to_doc()),
    };
    let collectionless = ns.collection().starts_with("$cmd");
    let pipeline = Pipeline::parse(stages.raw(), parsing.surroundings())?;
    if let Some((name, _)) = pipeline.source()
        && call.command().get("apiStrict") == Some(Value::Bool(true))
    {
        let code = Code { number: 323, name: "APIStrictError" };
        return Err(Failure::new(
            code,
            format!("stage {name} is not allowed with 'apiStrict: true' in API Version 1"),
        ));
    }
    let made = match pipeline.source() {
        Some((name, spec)) => Some(made(call, &state, &ns, name, spec)?),
        None if pipeline.is_self_sourced() => Some(Vec::new()),
        None if collectionless => {
            let first = stages.raw().values().next().and_then(|stage| stage.as_document());
            let name =
                first.and_then(|stage| stage.iter().next()).map_or("an empty pipeline", |first| first.key());
            let message = format!("{{aggregate: 1}} is not valid for '{name}'; a collection is required.");
            return Err(Failure::new(code::INVALID_NAMESPACE, message));
        }
        None => None,
    };
    let (input, done, heavy) = match made {
        Some(made) => (Input::Made(made), 0, !pipeline.is_cheap_from(0)),
        None => {
            let (find, done) = leading(&parsing, ns, &pipeline, hint)?;
            let query = Query::plan(&state, find)?;
            let heavy = is_heavy(&query) || !pipeline.is_cheap_from(done);
            (Input::Collection(Box::new(query)), done, heavy)
        }
    };
    Ok(Prepared { pipeline, done, input, environment, parsing, heavy })
}

impl Prepared {
    fn run(self) -> Result<Docs> {
        let input: Docs = match self.input {
            Input::Collection(query) => Box::new(query.documents()?),
            Input::Made(documents) => Box::new(documents.into_iter().map(Ok)),
        };
        Ok(self.pipeline.run_from(self.done, input, &self.environment)?)
    }
}

/// The query that does what the first stages ask for, and how many these are.
fn leading(
    parsing: &Parsing,
    ns: Namespace,
    pipeline: &Pipeline,
    hint: Option<rockdove_engine::Hint>,
) -> Result<(Find, usize)> {
    let leading = pipeline.leading();
    let filter = parsing.filter(leading.filter.unwrap_or(RawDoc::empty()))?;
    let find = Find {
        sort: parsing.sort(leading.sort)?,
        skip: leading.skip,
        limit: leading.limit.unwrap_or(0),
        hint,
        ..Find::new(ns, filter)
    };
    Ok((find, leading.stages))
}

/// The query at the beginning of an `aggregate`, for `explain`.
pub fn leading_find(call: &Call<'_>, fields: &Fields<'_>) -> Result<Find> {
    let state = call.shared.engine.snapshot();
    let ns = query::namespace(call, fields, "aggregate")?;
    let parsing = Parsing::on(call, fields, &ns)?;
    let (ns, stages) = resolve(&state, &ns, fields.required_array("pipeline")?)?;
    let pipeline = Pipeline::parse(stages.raw(), parsing.surroundings())?;
    Ok(leading(&parsing, ns, &pipeline, query::hint(fields)?)?.0)
}

/// Follows views down to the collection they read: its name, and their stages before `stages`.
fn resolve(state: &State, ns: &Namespace, stages: RawDoc<'_>) -> Result<(Namespace, Doc)> {
    let (mut ns, mut stages) = (ns.clone(), stages.to_doc());
    for _ in 0..=VIEW_DEPTH_MAX {
        let Some(view) = state.collection(&ns).and_then(|collection| collection.info.view.clone()) else {
            return Ok((ns, stages));
        };
        let mut joined = DocBuilder::with_capacity(stages.bytes().len() + view.pipeline.bytes().len());
        view.pipeline.raw().values().chain(stages.raw().values()).for_each(|stage| {
            joined.push_value(stage);
        });
        (ns, stages) = (view.on, joined.finish());
    }
    Err(Failure::new(VIEW_TOO_DEEP, format!("View depth too deep or view cycle detected: {ns}")))
}

/// What the server itself supplies in place of a collection.
fn made(call: &Call<'_>, state: &State, ns: &Namespace, name: &str, spec: Value<'_>) -> Result<Vec<Doc>> {
    match name {
        "$currentOp" if call.database == "admin" => Ok(server::operations(call)),
        "$currentOp" => Err(Failure::new(
            code::INVALID_NAMESPACE,
            "$currentOp must be run against the 'admin' database with {aggregate: 1}",
        )),
        "$listLocalSessions" | "$listSessions" => {
            let describe = |session: crate::session::SessionId| {
                let mut doc = DocBuilder::new();
                session.append(&mut doc, "_id");
                doc.append_date("lastUse", crate::shared::now_ms());
                doc.finish()
            };
            Ok(call.shared.sessions.list().into_iter().map(describe).collect())
        }
        "$collStats" => statistics::collection_stage(call, state, ns, spec),
        "$indexStats" => Ok(statistics::index_stage(call, state, ns)),
        other => {
            Err(Failure::new(code::COMMAND_NOT_SUPPORTED, format!("the stage {other} is not supported")))
        }
    }
}

fn environment(call: &Call<'_>, parsing: &Parsing, state: &Arc<State>) -> Arc<Environment> {
    let tables =
        Snapshot { state: state.clone(), database: call.database.to_string(), parsing: parsing.clone() };
    Arc::new(parsing.surroundings().environment().with_tables(Arc::new(tables)))
}

/// The other collections of a pipeline, as they are in its snapshot.
struct Snapshot {
    state: Arc<State>,
    database: String,
    parsing: Parsing,
}

impl Snapshot {
    fn read(&self, db: Option<&str>, collection: &str, filter: RawDoc<'_>) -> Result<Docs> {
        let ns = Namespace::new(db.unwrap_or(&self.database), collection)?;
        let (base, stages) = resolve(&self.state, &ns, RawDoc::empty())?;
        let around = self.parsing.surroundings();
        if base == ns {
            let find = Find::new(ns, self.parsing.filter(filter)?);
            return Ok(Box::new(rockdove_engine::find_in(&self.state, find)?));
        }
        let all = Find::new(base, self.parsing.filter(RawDoc::empty())?);
        let input: Docs = Box::new(rockdove_engine::find_in(&self.state, all)?);
        let tables = Snapshot {
            state: self.state.clone(),
            database: ns.database().to_string(),
            parsing: self.parsing.clone(),
        };
        let environment = Arc::new(around.environment().with_tables(Arc::new(tables)));
        Ok(Pipeline::parse(stages.raw(), around)?.run(input, &environment)?)
    }
}

impl Tables for Snapshot {
    fn scan(&self, db: Option<&str>, collection: &str) -> rockdove_documents::Result<Docs> {
        self.read(db, collection, RawDoc::empty()).map_err(|failure| failure.error)
    }

    fn scan_matching(
        &self,
        db: Option<&str>,
        collection: &str,
        filter: RawDoc<'_>,
    ) -> rockdove_documents::Result<Docs> {
        self.read(db, collection, filter).map_err(|failure| failure.error)
    }

    fn has_index(&self, db: Option<&str>, collection: &str, path: &str) -> bool {
        let Ok(ns) = Namespace::new(db.unwrap_or(&self.database), collection) else { return false };
        let leads = |index: &rockdove_engine::Index| {
            let first = index.spec.doc.get("key").and_then(|key| key.as_document()?.iter().next());
            !index.spec.sparse
                && index.spec.partial.is_none()
                && first.is_some_and(|first| first.key() == path)
        };
        self.state.collection(&ns).is_some_and(|collection| collection.indexes().iter().any(leads))
    }
}

/// The stages that do what a `find`, `count` or `distinct` asks for.
fn stages_of(fields: &Fields<'_>, filter: &str) -> Result<Doc> {
    let mut stages = DocBuilder::new();
    let mut add = |name: &str, value: Option<Value<'_>>| {
        if let Some(value) = value {
            stages.push_document().append_value(name, value).end();
        }
    };
    add("$match", fields.document(filter)?.map(Value::Document));
    add("$sort", fields.document("sort")?.filter(|sort| !sort.is_empty()).map(Value::Document));
    let positive = |count: Option<i64>| count.filter(|count| *count > 0).map(Value::Int64);
    add("$skip", positive(fields.integer("skip")?));
    add("$limit", positive(fields.integer("limit")?.map(|limit| limit.saturating_abs())));
    let projection = fields.document("projection")?.filter(|projection| !projection.is_empty());
    add("$project", projection.map(Value::Document));
    Ok(stages.finish())
}

/// Carries out a `find` on a view.
pub async fn find_in_view(
    call: &Call<'_>,
    fields: &Fields<'_>,
    state: Arc<State>,
    ns: &Namespace,
    reply: &mut DocBuilder,
) -> Result<Flow> {
    let prepared = prepare(call, fields, state, Some(ns), stages_of(fields, "filter")?.raw())?;
    let opening = Opening::new(call, ns.full().to_string())
        .batch(fields.count("batchSize")?)
        .single(fields.flag("singleBatch")?)
        .no_timeout(fields.flag("noCursorTimeout")?);
    let heavy = prepared.heavy;
    cursor::open_with(opening, heavy, move || Ok(Reader::new(prepared.run()?, None, heavy)), reply).await?;
    Ok(Flow::Done)
}

/// Counts what a view yields.
pub async fn count_in_view(
    call: &Call<'_>,
    fields: &Fields<'_>,
    state: Arc<State>,
    find: &Find,
) -> Result<u64> {
    let prepared = prepare(call, fields, state, Some(&find.ns), stages_of(fields, "query")?.raw())?;
    let count = move || {
        let mut count = 0;
        for doc in prepared.run()? {
            doc?;
            count += 1;
        }
        Ok(count)
    };
    off_thread(call.shared, &call.interrupt(), count).await
}

/// Reads the documents of a view that match the command's `query`.
pub fn documents_of_view(
    call: &Call<'_>,
    fields: &Fields<'_>,
    state: &Arc<State>,
    ns: &Namespace,
) -> Result<impl FnOnce() -> Result<Docs> + Send + use<>> {
    let prepared = prepare(call, fields, state.clone(), Some(ns), stages_of(fields, "query")?.raw())?;
    Ok(move || prepared.run())
}
