//! The simple streaming stages: `$match`, `$skip`, `$limit`, `$count`.

use super::parse::{Parser, document};
use super::{Docs, Environment, Map, Options, Stage, run_map};
use crate::filter::Filter;
use crate::show::show;
use crate::{Doc, Error, RawDoc, Result, Value};
use std::sync::Arc;

#[derive(Debug)]
struct Match {
    query: Doc,
    filter: Filter,
    options: Options,
    /// Whether the query has expressions, which may depend on variables.
    has_expressions: bool,
}

pub(super) fn parse_match(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let Value::Document(query) = spec else {
        return Err(Error::location(15959, "the match filter must be an expression in an object"));
    };
    Ok(Arc::new(Match {
        query: query.to_doc(),
        filter: parser.options.parse_filter(query)?,
        options: parser.options.clone(),
        has_expressions: has_expressions(query),
    }))
}

/// Whether a query has `$expr`.
pub(super) fn has_expressions(query: RawDoc<'_>) -> bool {
    query.iter().any(|element| {
        let inner = match element.value() {
            Value::Document(inner) | Value::Array(inner) => inner,
            _ => RawDoc::empty(),
        };
        element.key() == "$expr" || has_expressions(inner)
    })
}

impl Stage for Match {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        if self.has_expressions {
            // The variables have other values than when the query was parsed.
            let options = environment.bind(&self.options);
            let filter = options.parse_filter(self.query.raw())?;
            let bound = Match { query: self.query.clone(), filter, options, has_expressions: true };
            return Ok(run_map(Arc::new(bound), input, environment));
        }
        Ok(run_map(self, input, environment))
    }

    fn as_map(&self) -> Option<&dyn Map> {
        Some(self)
    }

    fn as_filter(&self) -> Option<&Filter> {
        Some(&self.filter)
    }
}

impl Map for Match {
    fn map(&self, doc: Doc, _: &Environment) -> Result<Option<Doc>> {
        Ok(self.filter.matches(doc.raw())?.then_some(doc))
    }
}

#[derive(Debug)]
struct Skip(usize);

#[derive(Debug)]
struct Limit(usize);

/// A count of documents that is not negative.
fn count(spec: Value<'_>, stage: &str, number: i32) -> Result<usize> {
    let wrong = |what: &str| {
        Error::location(
            number,
            format!("invalid argument to {stage} stage: Expected {what}, but found: {}", show(spec)),
        )
    };
    if !spec.is_number() {
        return Err(wrong("a number"));
    }
    let count = crate::number::to_integral(spec).ok_or_else(|| wrong("an integer"))?;
    usize::try_from(count).map_err(|_| wrong("a non-negative number"))
}

pub(super) fn parse_skip(spec: Value<'_>, _: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    Ok(Arc::new(Skip(count(spec, "$skip", 5_107_200)?)))
}

pub(super) fn parse_limit(spec: Value<'_>, _: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    match count(spec, "$limit", 5_107_201)? {
        0 => Err(Error::location(15958, "the limit must be positive")),
        limit => Ok(Arc::new(Limit(limit))),
    }
}

impl Stage for Skip {
    fn run(self: Arc<Self>, input: Docs, _: &Arc<Environment>) -> Result<Docs> {
        let mut left = self.0;
        // Errors are not skipped.
        Ok(Box::new(input.filter(move |doc| {
            let skipped = left > 0 && doc.is_ok();
            left -= usize::from(skipped);
            !skipped
        })))
    }
}

impl Stage for Limit {
    fn run(self: Arc<Self>, input: Docs, _: &Arc<Environment>) -> Result<Docs> {
        Ok(Box::new(input.take(self.0)))
    }
}

/// `$count`: how many documents there are, unless there is none.
#[derive(Debug)]
struct Count(String);

pub(super) fn parse_count(spec: Value<'_>, _: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let Value::String(name) = spec else {
        return Err(Error::location(40156, "the count field must be a non-empty string"));
    };
    match name {
        "" => Err(Error::location(40156, "the count field must be a non-empty string")),
        name if name.starts_with('$') => {
            Err(Error::location(40158, "the count field cannot be a $-prefixed path"))
        }
        name if name.contains('.') => Err(Error::location(40160, "the count field cannot contain '.'")),
        name if name.contains('\0') => {
            Err(Error::location(40159, "the count field cannot contain the null byte"))
        }
        name => Ok(Arc::new(Count(name.to_string()))),
    }
}

impl Stage for Count {
    fn run(self: Arc<Self>, input: Docs, _: &Arc<Environment>) -> Result<Docs> {
        let mut input = Some(input);
        Ok(Box::new(std::iter::from_fn(move || {
            let counted = input.take()?.try_fold(0i64, |count, doc| doc.map(|_| count + 1));
            match counted {
                Ok(0) => None,
                Ok(count) => Some(Ok(counted_doc(&self.0, count))),
                Err(error) => Some(Err(error)),
            }
        })))
    }
}

fn counted_doc(name: &str, count: i64) -> Doc {
    let mut counted = crate::DocBuilder::new();
    match i32::try_from(count) {
        Ok(int) => counted.append(name, int),
        Err(_) => counted.append(name, count),
    };
    counted.finish()
}

/// The one argument of a stage that is a document with one field.
pub(super) fn single_argument<'s>(
    spec: Value<'s>,
    stage: &str,
    name: &str,
    number: i32,
) -> Result<Value<'s>> {
    let doc = document(spec, stage, number)?;
    super::parse::only(doc, stage, &[name])?;
    doc.get(name).ok_or_else(|| Error::location(number, format!("no '{name}' specified for {stage}")))
}
