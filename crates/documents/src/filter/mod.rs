//! Query filters: which documents match (MongoDB manual, "Query Predicates").
//!
//! A [`Filter`] is parsed once into a tree of [`Node`]s, which the planner reads too, and then asked about
//! many documents. Asking allocates nothing unless an expression or a regular expression needs to.
//!
//! Invariants
//! * Fields combine existentially: a [`Node::Field`] holds if any value that its path leads to passes its
//!   [`Test`]; negation is a node of its own, so `$ne` and `$nin` are exactly "not any".
//! * Comparisons stay within one type, numbers being one; null stands for missing and undefined too.
//! * What is not supported is an error that names it, never a filter that matches something else.
//!
//! Expressions (`$expr`) are evaluated by whoever supplies [`FilterOptions::expr`].

mod bits;
mod bounds;
mod cost;
mod equality;
mod matching;
mod needs;
mod parse;
mod regex;
mod schema;
mod types;

#[cfg(test)]
mod tests;

pub use bits::{BitMask, BitTest};
pub use bounds::{Bounds, Interval};
pub use matching::ValueFilter;
pub use needs::Alternatives;
pub use regex::Pattern;
pub use schema::Schema;
pub use types::TypeSet;

use crate::collation::Collation;
use crate::doc::RawDoc;
use crate::error::Result;
use crate::path::Path;
use crate::scanned::Scanned;
use crate::value::{Owned, Value};
use std::fmt::Debug;
use std::sync::Arc;

/// A predicate over whole documents that another module evaluates.
pub trait ExprPredicate: Send + Sync + Debug {
    /// Whether it holds for a document; an expression can fail on some documents.
    fn holds(&self, doc: RawDoc<'_>) -> Result<bool>;
}

/// Makes a predicate of the argument of `$expr`.
pub type ParseExpr<'a> = &'a dyn Fn(Value<'_>) -> Result<Box<dyn ExprPredicate>>;

/// What a filter is parsed with.
#[derive(Clone, Default)]
pub struct FilterOptions<'a> {
    /// How text compares; `None` by its bytes.
    pub collation: Option<Arc<Collation>>,
    /// Parses `$expr`; without it `$expr` is refused.
    pub expr: Option<ParseExpr<'a>>,
}

/// A parsed filter.
#[derive(Clone, Debug)]
pub struct Filter {
    root: Node,
    collation: Option<Arc<Collation>>,
}

/// A part of a filter.
#[derive(Clone, Debug)]
pub enum Node {
    /// Matches everything.
    True,
    /// Matches nothing.
    False,
    /// All of them.
    And(Vec<Node>),
    /// At least one of them.
    Or(Vec<Node>),
    /// None of them.
    Nor(Vec<Node>),
    /// Not this one.
    Not(Box<Node>),
    /// Any value at the path (or its absence) passes the test.
    Field {
        /// Where to look.
        path: Path,
        /// What to look for.
        test: Test,
    },
    /// `$expr`.
    Expr(Arc<dyn ExprPredicate>),
    /// `$jsonSchema`.
    JsonSchema(Box<Schema>),
    /// `$sampleRate`: a random choice with this probability.
    SampleRate(f64),
}

/// What is asked of one value.
#[derive(Clone, Debug)]
pub enum Test {
    /// `$eq`, `$lt`, `$lte`, `$gt`, `$gte`.
    Compare {
        /// Which comparison.
        op: Op,
        /// With what.
        value: Owned,
    },
    /// `$in`.
    In(InList),
    /// `$exists: true`.
    Exists,
    /// `$type`.
    Type(TypeSet),
    /// `$regex`.
    Regex(Pattern),
    /// `$size`: an array of so many elements.
    Size(u64),
    /// `$mod`: the remainder of the division by the (nonzero) divisor.
    Mod {
        /// By what to divide.
        divisor: i64,
        /// What is left.
        remainder: i64,
    },
    /// `$bitsAllSet` and its relatives.
    Bits(BitTest, BitMask),
    /// `$elemMatch` with a query: an array with a document that matches.
    ElemMatch(Box<Node>),
    /// `$elemMatch` with operators: an array with an element that passes all.
    ElemMatchValue(Vec<Clause>),
}

/// A test of a value or the negation of several.
#[derive(Clone, Debug)]
pub enum Clause {
    /// Passes the test.
    Is(Test),
    /// Does not pass all of them.
    Not(Vec<Clause>),
}

/// A comparison operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `$eq`
    Eq,
    /// `$lt`
    Lt,
    /// `$lte`
    Lte,
    /// `$gt`
    Gt,
    /// `$gte`
    Gte,
}

/// The alternatives of `$in`.
#[derive(Clone, Debug)]
pub struct InList {
    /// Distinct values in ascending order.
    values: Vec<Owned>,
    patterns: Vec<Pattern>,
    has_null: bool,
}

impl InList {
    /// The values, distinct and in ascending order.
    pub fn values(&self) -> &[Owned] {
        &self.values
    }

    /// The regular expressions.
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }

    /// Whether null is among the values, so that missing fields match.
    pub fn has_null(&self) -> bool {
        self.has_null
    }
}

impl Filter {
    /// The filter that matches everything.
    pub fn all() -> Filter {
        Filter { root: Node::True, collation: None }
    }

    /// Reads a query document. Errors have MongoDB's codes and name the operator.
    pub fn parse(query: RawDoc<'_>, options: &FilterOptions<'_>) -> Result<Filter> {
        let root = parse::Parser::new(options).query(query)?;
        Ok(Filter { root, collation: options.collation.clone() })
    }

    /// The tree.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// How text compares.
    pub fn collation(&self) -> Option<&Arc<Collation>> {
        self.collation.as_ref()
    }

    /// Whether every document matches.
    pub fn is_all(&self) -> bool {
        matches!(self.root, Node::True)
    }

    /// Whether a document matches. Only expressions and runaway regular expressions fail.
    pub fn matches(&self, doc: RawDoc<'_>) -> Result<bool> {
        matching::matches(&self.root, self.collation.as_deref(), doc, None, &mut None)
    }

    /// Like [`Filter::matches`], for a document whose fields were found before.
    pub fn matches_scanned(&self, scanned: &Scanned<'_>) -> Result<bool> {
        let (collation, doc) = (self.collation.as_deref(), scanned.doc().raw());
        matching::matches(&self.root, collation, doc, Some(scanned), &mut None)
    }

    /// Like [`Filter::matches`]; `position` becomes the position of the array element that matched, which
    /// the `$` of updates and projections stands for, or `None` if no array was involved.
    pub fn matches_positional(&self, doc: RawDoc<'_>, position: &mut Option<usize>) -> Result<bool> {
        *position = None;
        matching::matches(&self.root, self.collation.as_deref(), doc, None, position)
    }

    /// The fields that every matching document has with exactly this value, as far as the filter's form
    /// tells: what an upsert puts into the new document. Paths are as written, in order of appearance.
    pub fn equalities(&self) -> Vec<(&str, Value<'_>)> {
        equality::equalities(&self.root)
    }

    /// Lists of equalities: a document that matches has at least one of each list. There may be no list.
    pub fn needs(&self) -> Vec<Alternatives<'_>> {
        needs::needs(self)
    }

    /// Whether at most one document can match, because its `_id` has to equal one value.
    pub fn names_one_id(&self) -> bool {
        self.equalities().iter().any(|(path, _)| *path == "_id")
    }
}
