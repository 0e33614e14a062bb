//! Updates: replacement documents, update operators and pipelines, applied to one document.
//!
//! Invariants
//! * Parsing finds every error that does not depend on the document.
//! * The old document is never changed; an error leaves nothing half done.
//! * Applying the same update to the same document gives the same bytes: times and ids are arguments.
//!
//! The size of the result is not limited here: the caller knows the limit of its store.

mod array;
mod op;
mod parse;
mod replace;
mod run;
#[cfg(test)]
mod tests;
mod tree;
mod upsert;

pub(crate) use op::Op;
pub use replace::check_id;
pub(crate) use run::{Scope, run};
pub(crate) use tree::{ChildOrder, Fields};
pub use upsert::upsert_document;

use crate::collation::Collation;
use crate::diff::{UpdateDescription, diff};
use crate::expr::Variables;
use crate::pipeline::{Environment, Pipeline};
use crate::show::show;
use crate::{Doc, Error, RawDoc, Result, Timestamp, Value, check_depth, code};
use run::ArrayFilter;
use std::sync::Arc;

/// What parsing an update depends on besides its text.
#[derive(Clone, Debug, Default)]
pub struct UpdateOptions {
    /// The time of the update in milliseconds since 1970, for `$currentDate` and `$$NOW`.
    pub now_ms: i64,
    /// The logical time of the update, for `$currentDate` and empty timestamps.
    pub timestamp: Timestamp,
    /// How strings compare in `$min`, `$max`, `$pull`, `$addToSet` and array filters.
    pub collation: Option<Arc<Collation>>,
    /// The variables of the command's `let`, for pipelines and `$expr`.
    pub variables: Variables,
}

/// A parsed update.
#[derive(Debug)]
pub struct Update {
    kind: Kind,
    filters: Vec<ArrayFilter>,
    /// Bytes of its text.
    bytes: usize,
    /// Whether its conditions on elements have expressions, schemas or regular expressions.
    asks_much: bool,
    collation: Option<Arc<Collation>>,
    now_ms: i64,
    timestamp: Timestamp,
    variables: Variables,
}

#[derive(Debug)]
enum Kind {
    Replacement(Doc),
    Operators(Operators),
    Pipeline(Pipeline),
}

/// Update operators by path.
#[derive(Debug, Default)]
struct Operators {
    fields: Fields,
    /// Source and destination of each `$rename`.
    renames: Vec<(String, String)>,
    /// Whether a result may nest deeper than the document and the arguments do.
    may_deepen: bool,
}

/// What an update made of a document.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The document after the update.
    pub doc: Doc,
    /// Whether it differs from the one before.
    pub changed: bool,
    /// What changed, if it changed and can be told by fields; `None` for replacements.
    pub description: Option<UpdateDescription>,
}

impl Update {
    /// Whether it replaces the whole document by a given one.
    pub fn is_replacement(&self) -> bool {
        matches!(self.kind, Kind::Replacement(_))
    }

    /// Bytes of its text: the replacement, the operators or the pipeline.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether applying it takes time in proportion to the document and its text at most.
    pub fn is_cheap(&self) -> bool {
        match &self.kind {
            Kind::Replacement(_) => true,
            Kind::Operators(_) => !self.asks_much,
            Kind::Pipeline(pipeline) => pipeline.is_cheap(),
        }
    }

    /// Applies the update. `positional` is the array position that the query matched, for `$`; with
    /// `is_insert`, `doc` is about to be inserted and `$setOnInsert` counts.
    ///
    /// Errors are those of the MongoDB manual for each operator; 66 (ImmutableField) if `_id` would change.
    pub fn apply(&self, doc: RawDoc<'_>, positional: Option<usize>, is_insert: bool) -> Result<Applied> {
        let applied = match &self.kind {
            Kind::Replacement(replacement) => self.replace(doc, replacement.raw())?,
            Kind::Operators(operators) => self.operate(operators, doc, positional, is_insert)?,
            Kind::Pipeline(pipeline) => self.transform(pipeline, doc)?,
        };
        keep_id(doc, applied.doc.raw(), matches!(self.kind, Kind::Operators(_)))?;
        Ok(applied)
    }

    fn replace(&self, doc: RawDoc<'_>, replacement: RawDoc<'_>) -> Result<Applied> {
        let new = replace::with_id_of(doc, replacement, self.timestamp);
        check_depth(new.raw())?;
        Ok(Applied { changed: new.bytes()[..] != *doc.bytes(), doc: new, description: None })
    }

    fn operate(
        &self,
        operators: &Operators,
        doc: RawDoc<'_>,
        positional: Option<usize>,
        is_insert: bool,
    ) -> Result<Applied> {
        let scope = Scope {
            source: doc,
            is_insert,
            positional,
            filters: &self.filters,
            collation: self.collation.as_deref(),
            order: ChildOrder::Sorted,
        };
        for (from, to) in &operators.renames {
            refuse_array(&scope, "source", from)?;
            refuse_array(&scope, "destination", to)?;
        }
        let outcome = run(&operators.fields, &scope)?;
        if operators.may_deepen && outcome.changed {
            check_depth(outcome.doc.raw())?;
        }
        let description = outcome.changed.then_some(outcome.description);
        Ok(Applied { doc: outcome.doc, changed: outcome.changed, description })
    }

    fn transform(&self, pipeline: &Pipeline, doc: RawDoc<'_>) -> Result<Applied> {
        let environment = Environment::new(self.now_ms, self.timestamp, self.variables.values())
            .with_collation(self.collation.clone());
        let new = pipeline.apply_one(doc.to_doc(), &environment)?.unwrap_or_default();
        if let Some(id) = new.get("_id") {
            check_id(id)?;
        }
        let new = replace::with_id_of(doc, new.raw(), Timestamp { time: u32::MAX, increment: u32::MAX });
        check_depth(new.raw())?;
        let changed = new.bytes()[..] != *doc.bytes();
        let description = if changed { diff(doc, new.raw()) } else { None };
        Ok(Applied { doc: new, changed, description })
    }
}

/// Refuses to rename what is an element of an array.
fn refuse_array(scope: &Scope<'_>, which: &str, path: &str) -> Result<()> {
    let mut doc = scope.source;
    for (part, _) in path.split('.').zip(path.split('.').skip(1)) {
        match doc.get(part) {
            Some(Value::Document(inner)) => doc = inner,
            Some(Value::Array(_)) => {
                return Err(Error::bad_value(format!(
                    "The {which} field cannot be an array element, '{path}' in doc with {} has an array field \
                     called '{part}'",
                    scope.id()
                )));
            }
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// A document must keep its `_id`; another type of the same number is the same.
fn keep_id(old: RawDoc<'_>, new: RawDoc<'_>, operators: bool) -> Result<()> {
    let Some(old) = old.get("_id") else { return Ok(()) };
    let new = new.get("_id");
    if new.is_some_and(|new| crate::compare::equal(old, new)) {
        return Ok(());
    }
    let text = match new {
        Some(new) if !operators => format!(
            "After applying the update, the (immutable) field '_id' was found to have been altered to _id: {}",
            show(new)
        ),
        _ => "Performing an update on the path '_id' would modify the immutable field '_id'".into(),
    };
    Err(Error::new(code::IMMUTABLE_FIELD, text))
}
