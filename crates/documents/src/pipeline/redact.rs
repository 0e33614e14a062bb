//! `$redact`: each document and each document inside it is kept, pruned or descended into.

use super::parse::Parser;
use super::{Docs, Environment, Map, Stage, run_map, with_names};
use crate::expr::{Context, Expr};
use crate::{Doc, DocBuilder, Error, Owned, RawDoc, Result, Value};
use std::sync::Arc;

#[derive(Debug)]
struct Redact(Expr);

/// The variables that an expression decides with, in the order of their values.
const DECISIONS: [&str; 3] = ["DESCEND", "PRUNE", "KEEP"];

/// The values of [`DECISIONS`]: symbols, which no expression computes.
fn decisions() -> [Owned; 3] {
    DECISIONS.map(|name| Owned::Symbol(name.to_string()))
}

pub(super) fn parse(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let options = with_names(parser.options, DECISIONS.map(String::from));
    Ok(Arc::new(Redact(Expr::parse(spec, &options.variables)?)))
}

impl Stage for Redact {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        Ok(run_map(self, input, environment))
    }

    fn as_map(&self) -> Option<&dyn Map> {
        Some(self)
    }
}

impl Map for Redact {
    fn map(&self, doc: Doc, environment: &Environment) -> Result<Option<Doc>> {
        let environment = environment.with_values(decisions());
        let context = environment.context(doc.raw());
        Ok(self.document(doc.raw(), &context)?.map(|redacted| redacted.unwrap_or_else(|| doc.clone())))
    }
}

impl Redact {
    /// What is left of a document: nothing, all of it (`Some(None)`), or parts.
    fn document(&self, doc: RawDoc<'_>, context: &Context<'_>) -> Result<Option<Option<Doc>>> {
        let inner = context.with_current(Value::Document(doc));
        let value = self.0.eval(&inner)?;
        match value.value() {
            Value::Symbol("KEEP") => Ok(Some(None)),
            Value::Symbol("PRUNE") => Ok(None),
            Value::Symbol("DESCEND") => self.descend(doc, context).map(|doc| Some(Some(doc))),
            other => Err(Error::location(
                17053,
                format!(
                    "$redact's expression should not return anything aside from the variables $$KEEP, $$DESCEND, and \
                     $$PRUNE, but returned {}",
                    crate::show::show(other)
                ),
            )),
        }
    }

    fn descend(&self, doc: RawDoc<'_>, context: &Context<'_>) -> Result<Doc> {
        let mut left = DocBuilder::with_capacity(doc.bytes().len());
        for element in doc {
            match element.value() {
                Value::Document(nested) => match self.document(nested, context)? {
                    Some(Some(redacted)) => left.append(element.key(), redacted),
                    Some(None) => left.append_element(element),
                    None => &mut left,
                },
                Value::Array(array) => left.append(element.key(), self.array(array, context)?),
                _ => left.append_element(element),
            };
        }
        Ok(left.finish())
    }

    fn array(&self, array: RawDoc<'_>, context: &Context<'_>) -> Result<Owned> {
        let mut left = DocBuilder::with_capacity(array.bytes().len());
        for element in array {
            match element.value() {
                Value::Document(nested) => match self.document(nested, context)? {
                    Some(Some(redacted)) => left.push(redacted),
                    Some(None) => left.push_element(element),
                    None => &mut left,
                },
                Value::Array(nested) => left.push(self.array(nested, context)?),
                _ => left.push_element(element),
            };
        }
        Ok(Owned::Array(left.finish()))
    }
}
