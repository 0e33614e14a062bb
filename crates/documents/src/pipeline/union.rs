//! `$unionWith` and `$documents`: documents of another collection, or given ones.

use super::collect::later;
use super::parse::{Parser, Place, only, text};
use super::stages::has_expressions;
use super::{Docs, Environment, Pipeline, Stage};
use crate::expr::Expr;
use crate::show::show;
use crate::{Error, RawDoc, Result, Value};
use std::sync::Arc;

#[derive(Debug)]
struct Union {
    db: Option<String>,
    /// Nothing if the pipeline makes its documents itself.
    collection: Option<String>,
    pipeline: Pipeline,
}

pub(super) fn parse(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    if let Value::String(collection) = spec {
        let pipeline = Pipeline::default();
        return Ok(Arc::new(Union { db: None, collection: Some(collection.to_string()), pipeline }));
    }
    let Value::Document(doc) = spec else {
        let kind = spec.kind().alias();
        let text =
            format!("the $unionWith stage specification must be an object or string, but found {kind}");
        return Err(Error::failed_to_parse(text));
    };
    only(doc, "$unionWith", &["coll", "db", "pipeline"])?;
    let pipeline = match doc.get("pipeline") {
        None => Pipeline::default(),
        Some(Value::Array(stages)) => parser.nested(stages, parser.options, Place::Nested)?,
        Some(_) => return Err(Error::type_mismatch("$unionWith argument 'pipeline' must be an array")),
    };
    let db = doc.get("db").map(|db| text(Some(db), "$unionWith", "db")).transpose()?;
    let collection = match doc.get("coll") {
        None if pipeline.is_self_sourced() => None,
        collection => Some(text(collection, "$unionWith", "coll")?.to_string()),
    };
    Ok(Arc::new(Union { db: db.map(String::from), collection, pipeline }))
}

impl Stage for Union {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let environment = environment.clone();
        let mut own = Some(input);
        let mut other: Option<Docs> = None;
        Ok(Box::new(std::iter::from_fn(move || {
            if let Some(input) = &mut own {
                match input.next() {
                    Some(doc) => return Some(doc),
                    None => own = None,
                }
            }
            if other.is_none() {
                match self.open(&environment) {
                    Ok(docs) => other = Some(docs),
                    Err(error) => {
                        other = Some(Box::new(std::iter::empty()));
                        return Some(Err(error));
                    }
                }
            }
            other.as_mut()?.next()
        })))
    }
}

impl Union {
    fn open(&self, environment: &Arc<Environment>) -> Result<Docs> {
        let docs: Docs = match &self.collection {
            None => Box::new(std::iter::empty()),
            Some(collection) => {
                let filter = self.pipeline.leading().filter.filter(|query| !has_expressions(*query));
                environment.tables.scan_matching(
                    self.db.as_deref(),
                    collection,
                    filter.unwrap_or(RawDoc::empty()),
                )?
            }
        };
        self.pipeline.run(docs, environment)
    }
}

/// `$documents`: the documents of an array that an expression makes.
#[derive(Debug)]
struct Documents(Expr);

pub(super) fn parse_documents(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    Ok(Arc::new(Documents(Expr::parse_with(spec, parser.options.variables.names())?)))
}

impl Stage for Documents {
    fn run(self: Arc<Self>, _: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let environment = environment.clone();
        Ok(later(move || {
            let value = self.0.eval(&environment.context(RawDoc::empty()))?;
            let Value::Array(items) = value.value() else {
                let text = "an array of documents was expected in $documents";
                return Err(Error::location(5_858_203, text));
            };
            let docs = items.values().map(|item| match item {
                Value::Document(doc) => Ok(doc.to_doc()),
                other => Err(Error::location(
                    40228,
                    format!("$documents must hold objects, found {}", show(other)),
                )),
            });
            docs.collect::<Result<Vec<_>>>()
        }))
    }
}
