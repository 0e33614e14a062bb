//! Projections: which fields of a document are returned (MongoDB manual, "Project Fields to Return").
//!
//! A projection either includes or excludes; `_id` may be the exception. Fields keep the order that they have
//! in the document; computed fields and `$elemMatch` follow in the projection's order. The empty projection
//! returns the document itself, sharing its bytes.
//!
//! Expressions are evaluated by whoever supplies [`ProjectionOptions::expr`]. `$meta` is refused.

mod apply;
mod parse;

#[cfg(test)]
mod tests;

use crate::collation::Collation;
use crate::doc::RawDoc;
use crate::error::Result;
use crate::filter::Filter;
use crate::path::Path;
use crate::value::{Owned, Value};
use std::fmt::Debug;
use std::sync::Arc;

/// A value computed from a document by another module.
pub trait Compute: Send + Sync + Debug {
    /// The value; `None` if the field is to be left out.
    fn compute(&self, doc: RawDoc<'_>) -> Result<Option<Owned>>;
}

/// Makes a computation of an expression.
pub type ParseCompute<'a> = &'a dyn Fn(Value<'_>) -> Result<Box<dyn Compute>>;

/// What a projection is parsed with.
#[derive(Clone, Default)]
pub struct ProjectionOptions<'a> {
    /// How text compares in `$elemMatch`; `None` by its bytes.
    pub collation: Option<Arc<Collation>>,
    /// Parses expressions and literals; without it only literals that cannot be expressions are accepted.
    pub expr: Option<ParseCompute<'a>>,
    /// Whether it is the `$project` stage of a pipeline: there `$slice` and `$elemMatch` are expressions
    /// and there is no positional `$`.
    pub stage: bool,
}

/// A parsed projection.
#[derive(Clone, Debug)]
pub struct Projection {
    kind: Kind,
    root: Node,
    /// The path that the positional `$` stands behind.
    positional: Option<Path>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Identity,
    Inclusion,
    Exclusion,
}

/// The rules for the fields of one level.
#[derive(Clone, Debug, Default)]
struct Node {
    /// In the projection's order; few, so they are searched one by one.
    rules: Vec<(Box<str>, Rule)>,
}

#[derive(Clone, Debug)]
enum Rule {
    Include,
    Exclude,
    Nested(Node),
    Slice(Slice),
    Compute(Arc<dyn Compute>),
    /// The first element that matches; the filter is about the field by its name.
    ElemMatch(Box<Filter>),
}

/// A part of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slice {
    /// So many from the start.
    First(u64),
    /// So many from the end.
    Last(u64),
    /// After skipping some from the start.
    After(u64, u64),
    /// From so many before the end.
    Before(u64, u64),
}

impl Projection {
    /// Whether documents are returned as they are.
    pub fn is_identity(&self) -> bool {
        self.kind == Kind::Identity
    }

    /// Whether it computes nothing that may take long.
    pub fn is_cheap(&self) -> bool {
        self.root.is_cheap()
    }
}

impl Node {
    fn rule(&self, name: &[u8]) -> Option<&Rule> {
        self.rules.iter().find(|(field, _)| field.as_bytes() == name).map(|(_, rule)| rule)
    }

    fn is_cheap(&self) -> bool {
        self.rules.iter().all(|(_, rule)| match rule {
            Rule::Compute(_) => false,
            Rule::ElemMatch(filter) => filter.is_cheap(),
            Rule::Nested(node) => node.is_cheap(),
            Rule::Include | Rule::Exclude | Rule::Slice(_) => true,
        })
    }

    /// Whether anything below is added to documents that do not have it.
    fn computes(&self) -> bool {
        self.rules.iter().any(|(_, rule)| match rule {
            Rule::Compute(_) | Rule::ElemMatch(_) => true,
            Rule::Nested(node) => node.computes(),
            _ => false,
        })
    }
}
