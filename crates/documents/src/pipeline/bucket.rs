//! `$bucket` and `$bucketAuto`: groups by ranges of a value.

use super::accumulate::Accumulators;
use super::collect::later;
use super::group::{Group, Key, output};
use super::parse::{Parser, document, only};
use super::{DOCUMENT_OVERHEAD, Docs, Environment, Memory, Stage};
use crate::compare::{compare, type_order};
use crate::expr::Expr;
use crate::show::show;
use crate::{Doc, DocBuilder, Error, Owned, RawDoc, Result, Value, code};
use std::cmp::Ordering;
use std::sync::Arc;

pub(super) fn parse(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let spec = document(spec, "$bucket", 40201)?;
    only(spec, "$bucket", &["groupBy", "boundaries", "default", "output"])
        .map_err(|error| Error::location(40197, error.message))?;
    let (Some(by), Some(boundaries)) = (spec.get("groupBy"), spec.get("boundaries")) else {
        return Err(Error::location(40198, "$bucket requires 'groupBy' and 'boundaries' to be specified."));
    };
    let boundaries = read_boundaries(boundaries)?;
    let default = spec.get("default").map(|default| constant(default, parser)).transpose()?;
    if let (Some(default), Some(first), Some(last)) = (&default, boundaries.first(), boundaries.last()) {
        let inside =
            compare(default.value(), first.value()).is_ge() && compare(default.value(), last.value()).is_lt();
        if inside {
            let text = "The $bucket 'default' field must be less than the lowest boundary or greater than or equal \
                        to the highest boundary.";
            return Err(Error::location(40199, text));
        }
    }
    let value = group_by(by, "$bucket", 40202, parser)?;
    Ok(Arc::new(Group {
        key: Key::Bucket { value, boundaries, default },
        accumulators: output(spec.get("output"), "$bucket", parser)?,
        collation: None,
        sorted: true,
        stage: "$bucket",
    }))
}

/// The expression to group by: a path or an operator.
fn group_by(by: Value<'_>, stage: &str, number: i32, parser: &Parser<'_>) -> Result<Expr> {
    match by {
        Value::Document(_) => Expr::parse_with(by, parser.options.variables.names()),
        Value::String(path) if path.starts_with('$') => {
            Expr::parse_with(by, parser.options.variables.names())
        }
        other => Err(Error::location(
            number,
            format!(
                "The {stage} 'groupBy' field must be defined as a $-prefixed path or an expression, but found: {}",
                show(other)
            ),
        )),
    }
}

fn constant(spec: Value<'_>, parser: &Parser<'_>) -> Result<Owned> {
    let expr = Expr::parse_with(spec, parser.options.variables.names())?;
    expr.as_constant()
        .cloned()
        .ok_or_else(|| Error::location(40195, "The $bucket 'default' field must be a constant expression"))
}

/// The boundaries: at least two, of one type, ascending.
fn read_boundaries(boundaries: Value<'_>) -> Result<Vec<Owned>> {
    let Value::Array(list) = boundaries else {
        let text = format!(
            "The $bucket 'boundaries' field must be an array, but found type: {}",
            boundaries.kind().alias()
        );
        return Err(Error::location(40200, text));
    };
    let list: Vec<Value<'_>> = list.values().collect();
    if list.len() < 2 {
        let text = format!(
            "The $bucket 'boundaries' field must have at least 2 values, but found {} value(s).",
            list.len()
        );
        return Err(Error::location(40192, text));
    }
    for pair in list.windows(2) {
        if type_order(pair[0].kind()) != type_order(pair[1].kind()) {
            let text = "All values in the the 'boundaries' option to $bucket must have the same type.";
            return Err(Error::location(40193, text));
        }
        if compare(pair[0], pair[1]).is_ge() {
            return Err(Error::location(
                40194,
                "The 'boundaries' option to $bucket must be sorted in ascending order.",
            ));
        }
    }
    Ok(list.into_iter().map(|value| value.to_owned()).collect())
}

#[derive(Debug)]
struct Auto {
    by: Expr,
    buckets: usize,
    accumulators: Accumulators,
}

pub(super) fn parse_auto(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let spec = document(spec, "$bucketAuto", 40240)?;
    only(spec, "$bucketAuto", &["groupBy", "buckets", "output", "granularity"])
        .map_err(|error| Error::location(40245, error.message))?;
    if spec.get("granularity").is_some() {
        return Err(Error::new(
            code::COMMAND_NOT_SUPPORTED,
            "$bucketAuto 'granularity' is not supported by this server",
        ));
    }
    let (Some(by), Some(buckets)) = (spec.get("groupBy"), spec.get("buckets")) else {
        return Err(Error::location(40246, "$bucketAuto requires 'groupBy' and 'buckets' to be specified"));
    };
    let count = crate::number::to_integral(buckets).and_then(|count| i32::try_from(count).ok());
    let Some(count @ 1..) = count else {
        let text = format!(
            "The $bucketAuto 'buckets' field must be a 32-bit integer greater than 0, but found: {}",
            show(buckets)
        );
        return Err(Error::location(40243, text));
    };
    Ok(Arc::new(Auto {
        by: group_by(by, "$bucketAuto", 40239, parser)?,
        buckets: count as usize,
        accumulators: output(spec.get("output"), "$bucketAuto", parser)?,
    }))
}

impl Stage for Auto {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let environment = environment.clone();
        Ok(later(move || self.distribute(input, &environment)))
    }
}

impl Auto {
    fn distribute(&self, input: Docs, environment: &Environment) -> Result<Vec<Doc>> {
        let mut memory = Memory::new("$bucketAuto", environment);
        let mut sorted: Vec<(Owned, Doc)> = Vec::new();
        for doc in input {
            let doc = doc?;
            memory.add(2 * doc.bytes().len() + DOCUMENT_OVERHEAD)?;
            let value = self.by.eval(&environment.context(doc.raw()))?.into_owned();
            sorted.push((value, doc));
        }
        sorted.sort_by(|(a, _), (b, _)| compare(a.value(), b.value()));
        let buckets = split(&sorted, self.buckets);
        let mut results = Vec::new();
        for (index, bucket) in buckets.iter().enumerate() {
            let (Some((least, _)), Some((most, _))) = (bucket.first(), bucket.last()) else { continue };
            // A bucket ends where the next one starts; the last one with its own last value.
            let end = buckets.get(index + 1).and_then(|next| next.first()).map_or(most, |(start, _)| start);
            let mut states = None;
            for (_, doc) in *bucket {
                let context = environment.context(doc.raw());
                if states.is_none() {
                    states = Some(self.accumulators.start(Value::Document(RawDoc::empty()), &context)?);
                }
                if let Some(states) = &mut states {
                    self.accumulators.add(states, &context, &mut memory)?;
                }
            }
            let mut out = DocBuilder::new();
            out.start_document("_id").append("min", least).append("max", end).end();
            self.accumulators.finish(states.unwrap_or_default(), &mut out);
            results.push(out.finish());
        }
        Ok(results)
    }
}

/// Cuts sorted values into about equal parts, never between equal values.
fn split(sorted: &[(Owned, Doc)], buckets: usize) -> Vec<&[(Owned, Doc)]> {
    let size = ((sorted.len() as f64 / buckets as f64).round() as usize).max(1);
    let mut parts = Vec::new();
    let mut rest = sorted;
    while !rest.is_empty() {
        let mut end = if parts.len() + 1 == buckets { rest.len() } else { size.min(rest.len()) };
        let last = &rest[end - 1].0;
        while rest.get(end).is_some_and(|(value, _)| compare(value.value(), last.value()) == Ordering::Equal)
        {
            end += 1;
        }
        let (part, after) = rest.split_at(end);
        parts.push(part);
        rest = after;
    }
    parts
}
