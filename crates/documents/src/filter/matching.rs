//! Asking a filter about a document.

use super::{Clause, Filter, FilterOptions, InList, Node, Op, Test, parse};
use crate::collation::Collation;
use crate::compare::{compare_with, type_order};
use crate::doc::RawDoc;
use crate::error::{Error, Result};
use crate::interrupt::{BYTES_PER_STEP, steps_of, tick};
use crate::number::is_nan;
use crate::path::{Found, Leaves, Part, Path, walk_value};
use crate::scanned::Scanned;
use crate::value::{Kind, Owned, Value};
use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Steps that a search with a regular expression counts as, which may go back often.
const SEARCH_STEPS: usize = 128;

/// Whether a document passes a node; `position` is set where an array element decided.
pub(super) fn matches(
    node: &Node,
    collation: Option<&Collation>,
    doc: RawDoc<'_>,
    scanned: Option<&Scanned<'_>>,
    position: &mut Option<usize>,
) -> Result<bool> {
    tick(1 + doc.bytes().len() / BYTES_PER_STEP / 4)?;
    let context = Context { scanned, ..Context::new(collation) };
    let matched = context.node(node, doc, position);
    match context.failure.into_inner() {
        None => Ok(matched),
        Some(failure) => Err(failure),
    }
}

/// A condition on one value, as `$pull` has it: operators, a query on a document, or a value to equal.
#[derive(Clone, Debug)]
pub struct ValueFilter {
    condition: Condition,
    collation: Option<Arc<Collation>>,
}

#[derive(Clone, Debug)]
enum Condition {
    Operators(Vec<Clause>),
    Document(Filter),
    Equal(Owned),
}

impl ValueFilter {
    /// Reads a condition. A document whose first field is an operator holds operators, any other document
    /// is a query on documents; a regular expression is searched for; any other value is compared with.
    pub fn parse(condition: Value<'_>, options: &FilterOptions<'_>) -> Result<ValueFilter> {
        let parser = parse::Parser::new(options);
        let condition = match condition {
            Value::Document(doc) if parse::is_operators(doc) => Condition::Operators(parser.operators(doc)?),
            Value::Document(doc) => Condition::Document(Filter::parse(doc, options)?),
            Value::Regex { .. } => Condition::Operators(vec![Clause::Is(parser.equality(condition)?)]),
            value => Condition::Equal(value.to_owned()),
        };
        Ok(ValueFilter { condition, collation: options.collation.clone() })
    }

    /// Whether a value passes. Operators look into an array's elements, as they do in queries.
    pub fn matches(&self, value: Value<'_>) -> Result<bool> {
        tick(1 + steps_of(value))?;
        let collation = self.collation.as_deref();
        match &self.condition {
            Condition::Equal(wanted) => Ok(compare_with(value, wanted.value(), collation).is_eq()),
            Condition::Document(filter) => match value {
                Value::Document(doc) => filter.matches(doc),
                _ => Ok(false),
            },
            Condition::Operators(clauses) => {
                let context = Context::new(collation);
                let matched = clauses.iter().all(|clause| context.clause_spread(clause, value));
                context.failure.into_inner().map_or(Ok(matched), Err)
            }
        }
    }
}

/// What holds for one question.
struct Context<'f, 'd> {
    collation: Option<&'f Collation>,
    /// The fields of the document that the question is about, if they were found before.
    scanned: Option<&'f Scanned<'d>>,
    /// The last field that the longer paths started with: conditions on one nested document follow each other.
    start: Cell<Option<Start<'f, 'd>>>,
    /// The first failure of an expression. It decides the answer; what is computed after it does not count.
    failure: Cell<Option<Error>>,
    /// Whether there is one: then nothing more is looked at.
    has_failed: Cell<bool>,
}

#[derive(Clone, Copy)]
struct Start<'f, 'd> {
    doc: RawDoc<'d>,
    name: &'f str,
    value: Option<Value<'d>>,
}

impl<'f, 'd> Context<'f, 'd> {
    fn new(collation: Option<&'f Collation>) -> Context<'f, 'd> {
        let (start, failure, has_failed) = (Cell::new(None), Cell::new(None), Cell::new(false));
        Context { collation, scanned: None, start, failure, has_failed }
    }

    /// Where a path starts in a document.
    fn start(&self, path: &'f Path, doc: RawDoc<'d>) -> (Option<Value<'d>>, &'f [Part]) {
        if let Some(scanned) = self.scanned
            && std::ptr::eq(scanned.doc().raw().bytes(), doc.bytes())
        {
            return scanned.start(path);
        }
        let parts = path.parts();
        let Some((first, rest)) = parts.split_first() else { return (None, parts) };
        if rest.is_empty() {
            return (doc.get(first.name()), rest);
        }
        if let Some(start) = self.start.get()
            && std::ptr::eq(start.doc.bytes(), doc.bytes())
            && start.name == first.name()
        {
            return (start.value, rest);
        }
        let value = doc.get(first.name());
        self.start.set(Some(Start { doc, name: first.name(), value }));
        (value, rest)
    }

    fn node(&self, node: &'f Node, doc: RawDoc<'d>, position: &mut Option<usize>) -> bool {
        match node {
            Node::True => true,
            Node::False => false,
            Node::And(nodes) => nodes.iter().all(|node| self.node(node, doc, position)),
            Node::Or(nodes) => nodes.iter().any(|node| self.node(node, doc, position)),
            Node::Nor(nodes) => !nodes.iter().any(|node| self.node(node, doc, &mut None)),
            Node::Not(node) => !self.node(node, doc, &mut None),
            Node::Field { path, test } => {
                let leaves = match test {
                    Test::Size(_) | Test::ElemMatch(_) | Test::ElemMatchValue(_) => Leaves::Whole,
                    _ => Leaves::Elements,
                };
                let visit = &mut |found: Found<'d>| {
                    let mut inner = None;
                    if !self.test(test, found.value, &mut inner) && !self.has_failed.get() {
                        return ControlFlow::Continue(());
                    }
                    *position = found.position.or(inner).or(*position);
                    ControlFlow::Break(())
                };
                let (value, rest) = self.start(path, doc);
                walk_value(value, rest, leaves, None, visit).is_break()
            }
            Node::Expr(predicate) => self.check(predicate.holds(doc)),
            Node::JsonSchema(schema) => self.check(schema.matches(Value::Document(doc))),
            Node::SampleRate(rate) => rand::random::<f64>() < *rate,
        }
    }

    fn check(&self, result: Result<bool>) -> bool {
        result.unwrap_or_else(|failure| {
            let first = self.failure.take().unwrap_or(failure);
            self.failure.set(Some(first));
            self.has_failed.set(true);
            false
        })
    }

    /// Whether one value (or its absence) passes; `position` is set by `$elemMatch`.
    fn test(&self, test: &'f Test, value: Option<Value<'d>>, position: &mut Option<usize>) -> bool {
        if let Test::Compare { op, value: wanted } = test {
            return compares(*op, value, wanted.value(), self.collation);
        }
        if let (Test::In(list), value) = (test, value) {
            return self.is_in(list, value);
        }
        let Some(value) = value else { return false };
        match test {
            Test::Compare { .. } | Test::In(_) | Test::Exists => true,
            Test::Type(types) => types.contains(value.kind()),
            Test::Regex(pattern) => self.is_found(pattern, value),
            Test::Size(size) => value.as_array().is_some_and(|array| array.len() as u64 == *size),
            Test::Mod { divisor, remainder } => {
                let number = value.is_number().then(|| crate::number::to_i64(value)).flatten();
                number.is_some_and(|number| number.wrapping_rem(*divisor) == *remainder)
            }
            Test::Bits(test, mask) => test.holds(mask, value),
            Test::ElemMatch(node) => self.element(value, position, |element| match element {
                Value::Document(doc) | Value::Array(doc) => self.node(node, doc, &mut None),
                _ => false,
            }),
            Test::ElemMatchValue(clauses) => self.element(value, position, |element| {
                clauses.iter().all(|clause| self.clause(clause, element))
            }),
        }
    }

    /// Whether any element of an array passes; `position` becomes its position.
    fn element(
        &self,
        value: Value<'d>,
        position: &mut Option<usize>,
        mut passes: impl FnMut(Value<'d>) -> bool,
    ) -> bool {
        let decides = |element| passes(element) || self.has_failed.get();
        let found = value.as_array().and_then(|array| array.values().position(decides));
        *position = found;
        found.is_some()
    }

    /// Whether a value as a whole passes a clause.
    fn clause(&self, clause: &'f Clause, value: Value<'d>) -> bool {
        match clause {
            Clause::Is(test) => self.test(test, Some(value), &mut None),
            Clause::Not(clauses) => !clauses.iter().all(|clause| self.clause(clause, value)),
        }
    }

    /// Whether a value passes a clause as a field's value would: an array also by any of its elements.
    fn clause_spread(&self, clause: &'f Clause, value: Value<'d>) -> bool {
        match clause {
            Clause::Not(clauses) => !clauses.iter().all(|clause| self.clause_spread(clause, value)),
            Clause::Is(test) => {
                let whole = matches!(test, Test::Size(_) | Test::ElemMatch(_) | Test::ElemMatchValue(_));
                let elements = value.as_array().filter(|_| !whole);
                let mut elements = elements.into_iter().flat_map(RawDoc::values);
                elements.any(|value| self.test(test, Some(value), &mut None) || self.has_failed.get())
                    || self.test(test, Some(value), &mut None)
            }
        }
    }

    fn is_in(&self, list: &InList, value: Option<Value<'_>>) -> bool {
        let Some(value) = value else { return list.has_null };
        if list.has_null && value == Value::Undefined {
            return true;
        }
        let order = |wanted: &Owned| compare_with(wanted.value(), value, self.collation);
        let is_text = |wanted: &Owned, text: &str| match wanted {
            Owned::String(wanted) | Owned::Symbol(wanted) => wanted == text,
            _ => false,
        };
        // A short list is faster to walk.
        let found = match value {
            _ if list.values.len() > 4 => list.values.binary_search_by(order).is_ok(),
            Value::String(text) if self.collation.is_none() => {
                list.values.iter().any(|wanted| is_text(wanted, text))
            }
            _ => list.values.iter().any(|wanted| order(wanted).is_eq()),
        };
        found || list.patterns.iter().any(|pattern| self.is_found(pattern, value))
    }

    /// Whether text contains what a regular expression describes, or the value is that expression.
    fn is_found(&self, pattern: &super::Pattern, value: Value<'_>) -> bool {
        match value {
            Value::String(text) | Value::Symbol(text) => {
                let steps = SEARCH_STEPS + text.len() / BYTES_PER_STEP;
                self.check(tick(steps).and_then(|()| pattern.is_match(text)))
            }
            Value::Regex { pattern: text, options } => {
                text == pattern.pattern() && options == pattern.options()
            }
            _ => false,
        }
    }
}

/// Whether a comparison with `wanted` holds: within one type; null is also undefined and missing; anything
/// compares with MinKey and MaxKey; NaN only equals itself.
fn compares(op: Op, value: Option<Value<'_>>, wanted: Value<'_>, collation: Option<&Collation>) -> bool {
    let or_equal = matches!(op, Op::Eq | Op::Lte | Op::Gte);
    let other_type = |value_is_null: bool| match wanted.kind() {
        Kind::Null | Kind::Undefined if value_is_null => or_equal,
        Kind::MaxKey => matches!(op, Op::Lt | Op::Lte),
        Kind::MinKey => matches!(op, Op::Gt | Op::Gte),
        _ => false,
    };
    let Some(value) = value else { return other_type(true) };
    if let (Op::Eq, Value::String(a), Value::String(b), None) = (op, value, wanted, collation) {
        return a == b;
    }
    if type_order(value.kind()) != type_order(wanted.kind()) {
        return other_type(matches!(value, Value::Null | Value::Undefined));
    }
    if is_nan(value) || is_nan(wanted) {
        return or_equal && is_nan(value) && is_nan(wanted);
    }
    let order = compare_with(value, wanted, collation);
    match op {
        Op::Eq => order == Ordering::Equal,
        Op::Lt => order == Ordering::Less,
        Op::Lte => order != Ordering::Greater,
        Op::Gt => order == Ordering::Greater,
        Op::Gte => order != Ordering::Less,
    }
}
