//! Aggregation pipelines: parsed once, run over streams of documents.
//!
//! ```text
//! source ── $match ── $project ── $group ── … ──► results
//!           one document at a time  collects
//! ```
//!
//! Invariants
//! * A stage asks its input for a document only when its output is asked for one; `$sort`, `$group` and
//!   their like collect first, and fail with 292 rather than hold more than [`Environment::memory_max`] bytes.
//! * Stages never touch storage: other collections come from [`Tables`], `$out` and `$merge` are told to the
//!   caller by [`Pipeline::sink`], sources other than a collection by [`Pipeline::source`].
//!
//! To add a stage, add its line to the table in `parse.rs` and its file.

mod accumulate;
mod bucket;
mod collect;
mod facet;
mod graph;
mod group;
mod lookup;
mod merge;
mod parse;
mod redact;
mod shape;
mod stages;
#[cfg(test)]
mod tests;
mod union;
mod unwind;

pub use merge::{Merge, Sink, Target, WhenMatched, WhenNotMatched};

use crate::collation::Collation;
use crate::expr::{Context, Surroundings, Variables};
use crate::filter::{Alternatives, Filter};
use crate::interrupt::{BYTES_PER_STEP, tick};
use crate::update::UpdateOptions;
use crate::{Code, Doc, Error, Owned, RawDoc, Result, Scanned, Timestamp, Value, code};
use std::fmt::Debug;
use std::sync::Arc;

/// A stream of documents.
pub type Docs = Box<dyn Iterator<Item = Result<Doc>> + Send>;

/// The other collections that a pipeline may read.
pub trait Tables: Send + Sync {
    /// All documents of a collection, in natural order; none if there is no such collection. Without `db` it
    /// is the database of the command.
    fn scan(&self, db: Option<&str>, collection: &str) -> Result<Docs>;

    /// At least those documents that match the filter, which has no expressions and compares by the
    /// command's collation: an index may leave out others.
    fn scan_matching(&self, db: Option<&str>, collection: &str, filter: RawDoc<'_>) -> Result<Docs> {
        let _ = filter;
        self.scan(db, collection)
    }

    /// Whether [`Tables::scan_matching`] is fast for equality on this path.
    fn has_index(&self, db: Option<&str>, collection: &str, path: &str) -> bool {
        let _ = (db, collection, path);
        false
    }
}

/// No other collections at all.
struct NoTables;

impl Tables for NoTables {
    fn scan(&self, _: Option<&str>, collection: &str) -> Result<Docs> {
        Err(Error::new(code::ILLEGAL_OPERATION, format!("the collection '{collection}' cannot be read here")))
    }
}

/// Bytes that the blocking stages of a pipeline may hold, unless told otherwise (MongoDB manual, "Aggregation
/// Pipeline Limits").
pub const MEMORY_MAX: usize = 100 << 20;

/// A pipeline of more stages is not cheap, however simple they are.
const CHEAP_STAGES_MAX: usize = 16;

const MEMORY_EXCEEDED: Code = Code { number: 292, name: "QueryExceededMemoryLimitNoDiskUseAllowed" };

/// What a pipeline runs in.
#[derive(Clone)]
pub struct Environment {
    /// `$$NOW`, in milliseconds since 1970.
    pub now_ms: i64,
    /// `$$CLUSTER_TIME`.
    pub cluster_time: Timestamp,
    /// How strings compare in expressions.
    pub collation: Option<Arc<Collation>>,
    /// Values of the variables that the pipeline was parsed with.
    pub values: Arc<[Owned]>,
    /// Bytes that one blocking stage may hold.
    pub memory_max: usize,
    tables: Arc<dyn Tables>,
}

impl Surroundings {
    /// The environment of what was parsed with these surroundings, without other collections.
    pub fn environment(&self) -> Environment {
        Environment::new(self.now_ms, self.cluster_time, self.variables.values())
            .with_collation(self.collation.clone())
    }
}

impl Environment {
    /// An environment without other collections.
    pub fn new(now_ms: i64, cluster_time: Timestamp, values: &Arc<[Owned]>) -> Environment {
        let tables = Arc::new(NoTables);
        let values = values.clone();
        Environment { now_ms, cluster_time, collation: None, values, memory_max: MEMORY_MAX, tables }
    }

    /// The environment where strings compare by `collation`.
    pub fn with_collation(self, collation: Option<Arc<Collation>>) -> Environment {
        Environment { collation, ..self }
    }

    /// The environment with other collections to read.
    pub fn with_tables(self, tables: Arc<dyn Tables>) -> Environment {
        Environment { tables, ..self }
    }

    /// The environment with another limit for blocking stages.
    pub fn with_memory_max(self, memory_max: usize) -> Environment {
        Environment { memory_max, ..self }
    }

    pub(crate) fn context<'c>(&'c self, root: RawDoc<'c>) -> Context<'c> {
        Context::new(root, self.now_ms, self.cluster_time, &self.values)
            .with_collation(self.collation.as_ref())
    }

    /// What a filter that was parsed without the variables' values is parsed with again.
    fn bind(&self, options: &Options) -> Options {
        let names = options.variables.names().iter().cloned();
        Options {
            now_ms: self.now_ms,
            cluster_time: self.cluster_time,
            collation: options.collation.clone(),
            variables: Variables::new(names.zip(self.values.iter().cloned())),
        }
    }

    /// The environment of a sub-pipeline that has more variables.
    fn with_values(&self, more: impl IntoIterator<Item = Owned>) -> Arc<Environment> {
        let values = self.values.iter().cloned().chain(more).collect();
        Arc::new(Environment { values, ..self.clone() })
    }
}

/// Counts what a blocking stage holds.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    used: usize,
    max: usize,
    stage: &'static str,
}

impl Memory {
    fn new(stage: &'static str, environment: &Environment) -> Memory {
        Memory { used: 0, max: environment.memory_max, stage }
    }

    /// Counts so many more bytes; an error once there are too many.
    fn add(&mut self, bytes: usize) -> Result<()> {
        self.used = self.used.saturating_add(bytes);
        match self.used > self.max {
            false => Ok(()),
            true => Err(Error::new(
                MEMORY_EXCEEDED,
                format!(
                    "{} exceeded the memory limit of {} bytes; disk use is not supported",
                    self.stage, self.max
                ),
            )),
        }
    }

    fn remove(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }
}

/// Bytes that holding a document takes besides its own.
const DOCUMENT_OVERHEAD: usize = 64;

/// All documents of a stream, within the stage's memory.
fn collect(input: Docs, stage: &'static str, environment: &Environment) -> Result<Vec<Doc>> {
    let mut memory = Memory::new(stage, environment);
    let mut docs = Vec::new();
    for doc in input {
        let doc = doc?;
        memory.add(doc.bytes().len() + DOCUMENT_OVERHEAD)?;
        docs.push(doc);
    }
    Ok(docs)
}

fn stream(docs: Vec<Doc>) -> Docs {
    Box::new(docs.into_iter().map(Ok))
}

/// A stage's output, whose documents count as steps: a stage may make many of few, or read many for none.
struct Counted(Docs);

impl Iterator for Counted {
    type Item = Result<Doc>;

    fn next(&mut self) -> Option<Result<Doc>> {
        let doc = self.0.next()?;
        Some(doc.and_then(|doc| tick(1 + doc.bytes().len() / BYTES_PER_STEP).map(|()| doc)))
    }
}

/// One stage.
trait Stage: Debug + Send + Sync {
    /// The stage's output for an input.
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs>;

    /// The stage as a function of one document, if it is one.
    fn as_map(&self) -> Option<&dyn Map> {
        None
    }

    /// The stage as a filter, if it is only that.
    fn as_filter(&self) -> Option<&Filter> {
        None
    }
}

/// A stage that makes at most one document of each.
trait Map {
    fn map(&self, doc: Doc, environment: &Environment) -> Result<Option<Doc>>;
}

/// The output of a [`Map`] stage.
fn run_map<S: Stage + Map + 'static>(stage: Arc<S>, input: Docs, environment: &Arc<Environment>) -> Docs {
    let environment = environment.clone();
    Box::new(input.filter_map(move |doc| doc.and_then(|doc| stage.map(doc, &environment)).transpose()))
}

/// What a pipeline is parsed with: time, collation, variables. For a sub-pipeline whose variables get their
/// values later, only the names count.
pub type Options = Surroundings;

/// A parsed pipeline.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    stages: Vec<Planned>,
    source: Option<(String, Owned)>,
    sink: Option<Arc<Sink>>,
}

#[derive(Clone, Debug)]
struct Planned {
    name: &'static str,
    spec: Owned,
    stage: Arc<dyn Stage>,
}

impl Planned {
    fn is_cheap_map(&self) -> bool {
        match self.stage.as_filter() {
            Some(filter) => filter.is_cheap(),
            None => self.stage.as_map().is_some() && !has_operator(self.spec.value()),
        }
    }
}

/// The start of a pipeline that a planner can take over.
#[derive(Clone, Debug, Default)]
pub struct Leading<'p> {
    /// The query of a leading `$match`.
    pub filter: Option<RawDoc<'p>>,
    /// The specification of a `$sort` that follows.
    pub sort: Option<RawDoc<'p>>,
    /// How many documents a `$skip` after it leaves out.
    pub skip: u64,
    /// How many documents at most a `$limit` after it takes.
    pub limit: Option<u64>,
    /// How many stages these are: where [`Pipeline::run_from`] goes on.
    pub stages: usize,
}

impl Pipeline {
    /// Parses an array of stages.
    ///
    /// # Errors
    /// 40323 if a stage has not exactly one field, 40324 for an unknown stage, those of the stages.
    pub fn parse(stages: RawDoc<'_>, options: &Options) -> Result<Pipeline> {
        parse::pipeline(stages, options, parse::Place::Top)
    }

    /// Parses a pipeline that is an update: only stages that compute one document from one.
    ///
    /// # Errors
    /// 72 (InvalidOptions) for other stages, and those of [`Pipeline::parse`].
    pub fn parse_update(stages: RawDoc<'_>, options: &UpdateOptions) -> Result<Pipeline> {
        const ALLOWED: [&str; 6] =
            ["$set", "$addFields", "$unset", "$project", "$replaceRoot", "$replaceWith"];
        parse::restrict(stages, &ALLOWED, |name| {
            Error::new(code::INVALID_OPTIONS, format!("{name} is not allowed to be used within an update"))
        })?;
        let options = Options {
            now_ms: options.now_ms,
            cluster_time: options.timestamp,
            collation: options.collation.clone(),
            variables: options.variables.clone(),
        };
        Pipeline::parse(stages, &options)
    }

    /// Parses the stages that follow `$changeStream`.
    ///
    /// # Errors
    /// 20 (IllegalOperation) for stages that are not allowed there, and those of [`Pipeline::parse`].
    pub fn parse_change_stream(stages: RawDoc<'_>, options: &Options) -> Result<Pipeline> {
        const ALLOWED: [&str; 8] =
            ["$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$redact"];
        parse::restrict(stages, &ALLOWED, |name| {
            Error::new(
                code::ILLEGAL_OPERATION,
                format!("{name} is not permitted in a $changeStream pipeline"),
            )
        })?;
        Pipeline::parse(stages, options)
    }

    /// The stage that takes the place of a collection as source, and its specification, if the pipeline
    /// starts with one that only the server can carry out: `$changeStream`, `$collStats`, `$indexStats`,
    /// `$currentOp`, `$listLocalSessions`, `$listSessions`, `$planCacheStats`.
    pub fn source(&self) -> Option<(&str, Value<'_>)> {
        self.source.as_ref().map(|(name, spec)| (&**name, spec.value()))
    }

    /// Where the results go, if they go to a collection.
    pub fn sink(&self) -> Option<&Sink> {
        self.sink.as_deref()
    }

    /// Whether there is no stage.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Whether the pipeline makes its documents itself (`$documents`) and reads no collection.
    pub fn is_self_sourced(&self) -> bool {
        self.stages.first().is_some_and(|first| first.name == "$documents")
    }

    /// The stages at the start that say which documents of the collection are read, and in which order.
    pub fn leading(&self) -> Leading<'_> {
        let mut leading = Leading::default();
        for planned in &self.stages {
            let fresh = leading.skip == 0 && leading.limit.is_none();
            match (planned.name, planned.spec.value()) {
                ("$match", Value::Document(filter)) if leading.stages == 0 => leading.filter = Some(filter),
                ("$sort", Value::Document(sort)) if fresh && leading.sort.is_none() => {
                    leading.sort = Some(sort)
                }
                ("$skip", count) if fresh => leading.skip = whole(count),
                ("$limit", count) if leading.limit.is_none() => leading.limit = Some(whole(count)),
                _ => break,
            }
            leading.stages += 1;
        }
        leading
    }

    /// Runs all stages over the documents of the collection.
    pub fn run(&self, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        self.run_from(0, input, environment)
    }

    /// Runs the stages from the given one on.
    pub fn run_from(&self, first: usize, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let mut docs = input;
        for planned in self.stages.iter().skip(first) {
            docs = Box::new(Counted(planned.stage.clone().run(docs, environment)?));
        }
        Ok(docs)
    }

    /// What the pipeline makes of one document, if it has only stages that make at most one of each: those
    /// that [`Pipeline::parse_change_stream`] and [`Pipeline::parse_update`] allow. A document that only
    /// filters see is returned as it is.
    pub fn apply_one(&self, doc: Doc, environment: &Environment) -> Result<Option<Doc>> {
        self.apply_from(0, doc, environment)
    }

    /// Like [`Pipeline::apply_one`], for a document that other pipelines look at too: filters at the beginning
    /// take its fields as they were found.
    pub fn apply(&self, scanned: &Scanned<'_>, environment: &Environment) -> Result<Option<Doc>> {
        let filters = self.stages.iter().map_while(|planned| planned.stage.as_filter());
        let mut passed = 0;
        for filter in filters {
            if !filter.matches_scanned(scanned)? {
                return Ok(None);
            }
            passed += 1;
        }
        self.apply_from(passed, scanned.doc().clone(), environment)
    }

    /// What [`Filter::needs`] tells of the filters at the beginning.
    pub fn needs(&self) -> Vec<Alternatives<'_>> {
        self.stages.iter().map_while(|planned| planned.stage.as_filter()).flat_map(Filter::needs).collect()
    }

    /// Whether what it makes of one document takes little time for sure: cheap filters ([`Filter::is_cheap`]), and
    /// stages that take, drop or rename fields without computing anything.
    pub fn is_cheap(&self) -> bool {
        self.stages.len() <= CHEAP_STAGES_MAX && self.stages.iter().all(Planned::is_cheap_map)
    }

    /// Whether the stages from the given one on take time in proportion to the documents they are given at most.
    pub fn is_cheap_from(&self, first: usize) -> bool {
        let is_cheap = |planned: &Planned| {
            matches!(planned.name, "$limit" | "$skip" | "$sort" | "$count") || planned.is_cheap_map()
        };
        let stages = self.stages.get(first..).unwrap_or_default();
        stages.len() <= CHEAP_STAGES_MAX && stages.iter().all(is_cheap)
    }

    fn apply_from(&self, first: usize, doc: Doc, environment: &Environment) -> Result<Option<Doc>> {
        let mut doc = doc;
        for planned in self.stages.iter().skip(first) {
            let Some(map) = planned.stage.as_map() else {
                let text = format!("{} does not make one document of one", planned.name);
                return Err(Error::new(code::ILLEGAL_OPERATION, text));
            };
            match map.map(doc, environment)? {
                Some(next) => doc = next,
                None => return Ok(None),
            }
        }
        Ok(Some(doc))
    }

    /// The collections, with their databases if named, that the pipeline reads besides its source.
    pub fn reads(&self) -> Vec<(Option<String>, String)> {
        let mut reads = Vec::new();
        self.stages
            .iter()
            .for_each(|planned| parse::collections(planned.name, planned.spec.value(), &mut reads));
        reads
    }
}

/// Whether a stage's specification has an operator anywhere.
fn has_operator(spec: Value<'_>) -> bool {
    match spec {
        Value::Document(inner) | Value::Array(inner) => {
            inner.iter().any(|element| element.key().starts_with('$') || has_operator(element.value()))
        }
        _ => false,
    }
}

/// A count that parsing checked.
fn whole(count: Value<'_>) -> u64 {
    crate::number::to_integral(count).and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
}

/// The surroundings of a sub-pipeline that has more variables, whose values are not known yet.
fn with_names(options: &Options, names: impl IntoIterator<Item = String>) -> Options {
    let known = options.variables.names().iter().cloned().chain(names);
    let variables = Variables::new(known.map(|name| (name, Owned::Null)));
    Options { variables, ..options.clone() }
}
