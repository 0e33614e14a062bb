//! Reading pipelines: the stages by name, and where each may stand.

use super::merge::Sink;
use super::{Options, Pipeline, Planned, Stage};
use super::{bucket, collect, facet, graph, group, lookup, redact, shape, stages, union, unwind};
use crate::{Error, MAX_DEPTH, RawDoc, Result, Value, code};
use std::sync::Arc;

/// Most stages of one pipeline (MongoDB manual, "Aggregation Pipeline Limits").
const STAGES_MAX: usize = 1000;

/// What a stage is parsed with.
pub(super) struct Parser<'p> {
    pub options: &'p Options,
    /// How many pipelines are around this one.
    pub depth: usize,
    /// The stage that comes next.
    pub following: Option<(&'p str, Value<'p>)>,
}

impl Parser<'_> {
    /// A pipeline inside a stage.
    pub(super) fn nested(&self, stages: RawDoc<'_>, options: &Options, place: Place) -> Result<Pipeline> {
        at_depth(stages, options, place, self.depth + 1)
    }
}

type Parse = fn(Value<'_>, &Parser<'_>) -> Result<Arc<dyn Stage>>;

const STAGES: &[(&str, Parse)] = &[
    ("$match", stages::parse_match),
    ("$project", shape::parse_project),
    ("$addFields", shape::parse_add_fields),
    ("$set", shape::parse_add_fields),
    ("$unset", shape::parse_unset),
    ("$replaceRoot", shape::parse_replace_root),
    ("$replaceWith", shape::parse_replace_with),
    ("$redact", redact::parse),
    ("$skip", stages::parse_skip),
    ("$limit", stages::parse_limit),
    ("$count", stages::parse_count),
    ("$sort", collect::parse_sort),
    ("$sample", collect::parse_sample),
    ("$unwind", unwind::parse),
    ("$group", group::parse),
    ("$sortByCount", group::parse_sort_by_count),
    ("$bucket", bucket::parse),
    ("$bucketAuto", bucket::parse_auto),
    ("$lookup", lookup::parse),
    ("$graphLookup", graph::parse),
    ("$unionWith", union::parse),
    ("$facet", facet::parse),
    ("$documents", union::parse_documents),
];

/// Stages that the server carries out in place of a collection.
const SOURCES: &[&str] = &[
    "$changeStream",
    "$collStats",
    "$indexStats",
    "$currentOp",
    "$listLocalSessions",
    "$listSessions",
    "$planCacheStats",
];

/// Stages of MongoDB that this crate knows and does not carry out.
const UNSUPPORTED: &[&str] = &[
    "$densify",
    "$fill",
    "$geoNear",
    "$setWindowFields",
    "$search",
    "$searchMeta",
    "$vectorSearch",
    "$changeStreamSplitLargeEvent",
    "$listSampledQueries",
    "$listSearchIndexes",
    "$querySettings",
    "$queryStats",
    "$shardedDataDistribution",
];

/// Where a pipeline stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Top,
    Facet,
    /// Inside `$lookup` or `$unionWith`.
    Nested,
}

pub(super) fn pipeline(stages: RawDoc<'_>, options: &Options, place: Place) -> Result<Pipeline> {
    at_depth(stages, options, place, 0)
}

fn at_depth(stages: RawDoc<'_>, options: &Options, place: Place, depth: usize) -> Result<Pipeline> {
    // Pipelines nest as deep as documents at most, several levels of documents each.
    if depth > MAX_DEPTH / 4 {
        return Err(Error::new(code::OVERFLOW, "pipelines are nested too deeply"));
    }
    let count = stages.len();
    if count > STAGES_MAX {
        let text = format!("Pipeline length must be no longer than {STAGES_MAX} stages");
        return Err(Error::location(7_749_501, text));
    }
    let mut parsed = Pipeline::default();
    for (index, stage) in stages.values().enumerate() {
        let (name, spec) = stage_of(stage)?;
        if SOURCES.contains(&name) || name == "$documents" {
            if index > 0 {
                let text = format!("{name} is only valid as the first stage in a pipeline.");
                return Err(Error::location(40602, text));
            }
            if place == Place::Facet {
                return Err(not_in_facet(name));
            }
        }
        if SOURCES.contains(&name) {
            parsed.source = Some((name.to_string(), spec.to_owned()));
        } else if name == "$out" || name == "$merge" {
            match place {
                Place::Facet => return Err(not_in_facet(name)),
                Place::Nested => {
                    let text = format!("{name} is not allowed within a sub-pipeline");
                    return Err(Error::location(51047, text));
                }
                Place::Top if index + 1 < count => {
                    let text = format!("{name} can only be the final stage in the pipeline");
                    return Err(Error::location(40601, text));
                }
                Place::Top => parsed.sink = Some(Arc::new(Sink::parse(name, spec, options)?)),
            }
        } else {
            let following = stages.values().nth(index + 1).and_then(|stage| stage_of(stage).ok());
            parsed.stages.push(planned(name, spec, &Parser { options, depth, following })?);
        }
    }
    Ok(parsed)
}

fn not_in_facet(name: &str) -> Error {
    Error::location(40600, format!("{name} is not allowed to be used within a $facet stage"))
}

fn planned(name: &str, spec: Value<'_>, parser: &Parser<'_>) -> Result<Planned> {
    match STAGES.iter().find(|(known, _)| *known == name) {
        Some((name, parse)) => Ok(Planned { name, spec: spec.to_owned(), stage: parse(spec, parser)? }),
        None if UNSUPPORTED.contains(&name) => Err(Error::new(
            code::COMMAND_NOT_SUPPORTED,
            format!("The pipeline stage '{name}' is not supported by this server"),
        )),
        None => Err(Error::location(40324, format!("Unrecognized pipeline stage name: '{name}'"))),
    }
}

/// Name and specification of a stage.
fn stage_of(stage: Value<'_>) -> Result<(&str, Value<'_>)> {
    let Value::Document(doc) = stage else {
        return Err(Error::type_mismatch("Each element of the 'pipeline' array must be an object"));
    };
    let mut fields = doc.iter();
    match (fields.next(), fields.next()) {
        (Some(field), None) => Ok((field.key(), field.value())),
        _ => Err(Error::location(
            40323,
            "A pipeline stage specification object must contain exactly one field.",
        )),
    }
}

/// Refuses stages that are not among the allowed ones; unknown stages are left to the parser.
pub(super) fn restrict(stages: RawDoc<'_>, allowed: &[&str], refusal: impl Fn(&str) -> Error) -> Result<()> {
    for stage in stages.values() {
        let (name, _) = stage_of(stage)?;
        let other = STAGES.iter().map(|(known, _)| known).chain(SOURCES).chain(UNSUPPORTED);
        let known = other.chain(&["$out", "$merge"]).any(|known| *known == name);
        if known && !allowed.contains(&name) {
            return Err(refusal(name));
        }
    }
    Ok(())
}

/// Adds the collections that a stage and its sub-pipelines read.
pub(super) fn collections(name: &str, spec: Value<'_>, reads: &mut Vec<(Option<String>, String)>) {
    let nested = |pipeline: Option<Value<'_>>, reads: &mut Vec<(Option<String>, String)>| {
        if let Some(Value::Array(stages)) = pipeline {
            for (name, spec) in stages.values().filter_map(|stage| stage_of(stage).ok()) {
                collections(name, spec, reads);
            }
        }
    };
    match (name, spec) {
        ("$lookup" | "$graphLookup", Value::Document(spec)) => {
            reads.extend(spec.get("from").and_then(|from| namespace(from).ok()));
            nested(spec.get("pipeline"), reads);
        }
        ("$unionWith", Value::Document(spec)) => {
            if let Some(Value::String(collection)) = spec.get("coll") {
                reads.push((spec.get("db").and_then(|db| db.as_str()).map(String::from), collection.into()));
            }
            nested(spec.get("pipeline"), reads);
        }
        ("$unionWith", Value::String(collection)) => reads.push((None, collection.to_string())),
        ("$facet", Value::Document(facets)) => {
            facets.values().for_each(|pipeline| nested(Some(pipeline), reads));
        }
        _ => {}
    }
}

/// A collection's name: a string, or a document with `db` and `coll`.
pub(super) fn namespace(value: Value<'_>) -> Result<(Option<String>, String)> {
    match value {
        Value::String(collection) => Ok((None, collection.to_string())),
        Value::Document(doc) => match (doc.get("db"), doc.get("coll")) {
            (Some(Value::String(db)), Some(Value::String(collection))) => {
                Ok((Some(db.to_string()), collection.to_string()))
            }
            _ => {
                Err(Error::failed_to_parse("a collection must be given as { db: <string>, coll: <string> }"))
            }
        },
        other => Err(Error::failed_to_parse(format!(
            "a collection must be given as a string or an object, not as {}",
            other.kind().alias()
        ))),
    }
}

/// The document that a stage's specification must be.
pub(super) fn document<'s>(spec: Value<'s>, stage: &str, number: i32) -> Result<RawDoc<'s>> {
    spec.as_document().ok_or_else(|| {
        let kind = spec.kind().alias();
        Error::location(
            number,
            format!("the {stage} stage specification must be an object, but found {kind}"),
        )
    })
}

/// The string that an argument of a stage must be.
pub(super) fn text<'s>(value: Option<Value<'s>>, stage: &str, name: &str) -> Result<&'s str> {
    match value {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(Error::failed_to_parse(format!(
            "{stage} argument '{name}' must be a string, found {}",
            other.kind().alias()
        ))),
        None => {
            Err(Error::failed_to_parse(format!("missing '{name}' option to {stage} stage specification")))
        }
    }
}

/// Refuses arguments that a stage does not have.
pub(super) fn only(spec: RawDoc<'_>, stage: &str, names: &[&str]) -> Result<()> {
    match spec.iter().find(|element| !names.contains(&element.key())) {
        Some(unknown) => {
            Err(Error::failed_to_parse(format!("unknown argument to {stage}: {}", unknown.key())))
        }
        None => Ok(()),
    }
}
