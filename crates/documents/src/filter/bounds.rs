//! Which keys of an index can belong to matching documents.
//!
//! Bounds are always a superset: every matching document has a key within them. They are exact if, besides,
//! every document with a key within them matches, so that the filter need not be asked again.
//!
//! In a multikey index a document has several keys, and two conditions on one path may be met by different
//! ones; bounds of different conditions are then not intersected, only the narrowest is used.

use super::{Clause, Filter, InList, Node, Op, Pattern, Test};
use crate::collation::Collation;
use crate::key::{Class, Direction, END, encode_key_with, invert};
use crate::number::is_nan;
use crate::value::{Kind, Owned, Value};
use std::cmp::Ordering;

/// A range of keys of one field, in their ascending encoding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interval {
    low: Vec<u8>,
    low_included: bool,
    high: Vec<u8>,
    high_included: bool,
}

/// The ranges of one field's keys that a filter allows: ascending, not overlapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    intervals: Vec<Interval>,
    exact: bool,
}

impl Interval {
    fn point(value: Value<'_>, collation: Option<&Collation>) -> Interval {
        let key = encoded(value, collation);
        Interval { low: key.clone(), low_included: true, high: key, high_included: true }
    }

    /// All values of a type, in numbers without NaN.
    fn class(kind: Kind) -> Interval {
        let class = Class::of(kind);
        Interval {
            low: vec![class.below],
            low_included: false,
            high: vec![class.above],
            high_included: false,
        }
    }

    /// Whether only one value is in it.
    pub fn is_point(&self) -> bool {
        self.low == self.high
    }

    /// The bytes from which (included) and to which (excluded) the keys of an index lie whose next field has
    /// this direction; what comes before that field has to be put in front of both. `None` for hashed
    /// fields, unless it is a point: hash the value then.
    pub fn range(&self, direction: Direction) -> Option<(Vec<u8>, Vec<u8>)> {
        let after = |key: &[u8], end: bool| {
            let mut key = key.to_vec();
            key.extend(end.then_some(END));
            key
        };
        match direction {
            Direction::Ascending => {
                Some((after(&self.low, !self.low_included), after(&self.high, self.high_included)))
            }
            Direction::Descending => {
                let (mut low, mut high) = (self.low.clone(), self.high.clone());
                invert(&mut low);
                invert(&mut high);
                Some((after(&high, !self.high_included), after(&low, self.low_included)))
            }
            Direction::Hashed => None,
        }
    }

    fn is_empty(&self) -> bool {
        match self.low.cmp(&self.high) {
            Ordering::Less => false,
            Ordering::Equal => !(self.low_included && self.high_included),
            Ordering::Greater => true,
        }
    }

    fn low_order(&self, other: &Interval) -> Ordering {
        self.low.cmp(&other.low).then(other.low_included.cmp(&self.low_included))
    }

    fn high_order(&self, other: &Interval) -> Ordering {
        self.high.cmp(&other.high).then(self.high_included.cmp(&other.high_included))
    }

    /// Whether there is nothing between the end of this interval and the start of a later one.
    fn reaches(&self, later: &Interval) -> bool {
        match later.low.cmp(&self.high) {
            Ordering::Less => true,
            Ordering::Equal => self.high_included || later.low_included,
            Ordering::Greater => false,
        }
    }

    fn intersection(&self, other: &Interval) -> Interval {
        let low = if self.low_order(other).is_ge() { self } else { other };
        let high = if self.high_order(other).is_le() { self } else { other };
        Interval {
            low: low.low.clone(),
            low_included: low.low_included,
            high: high.high.clone(),
            high_included: high.high_included,
        }
    }
}

impl Bounds {
    fn new(mut intervals: Vec<Interval>, exact: bool) -> Bounds {
        intervals.retain(|interval| !interval.is_empty());
        intervals.sort_by(Interval::low_order);
        let mut merged: Vec<Interval> = Vec::with_capacity(intervals.len());
        for interval in intervals {
            match merged.last_mut() {
                Some(last) if last.reaches(&interval) => {
                    if last.high_order(&interval).is_lt() {
                        last.high = interval.high;
                        last.high_included = interval.high_included;
                    }
                }
                _ => merged.push(interval),
            }
        }
        Bounds { intervals: merged, exact }
    }

    fn nothing() -> Bounds {
        Bounds { intervals: Vec::new(), exact: true }
    }

    /// The ranges, ascending and not overlapping; none if nothing matches.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Whether every document with a key in the ranges matches the filter.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether all ranges are single values.
    pub fn are_points(&self) -> bool {
        self.intervals.iter().all(Interval::is_point)
    }

    fn union(mut self, other: Bounds) -> Bounds {
        self.intervals.extend(other.intervals);
        Bounds::new(self.intervals, self.exact && other.exact)
    }

    fn intersection(self, other: Bounds) -> Bounds {
        let (mut a, mut b) = (self.intervals.iter().peekable(), other.intervals.iter().peekable());
        let mut common = Vec::new();
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            common.push(x.intersection(y));
            if x.high_order(y).is_lt() {
                a.next()
            } else {
                b.next()
            };
        }
        Bounds::new(common, self.exact && other.exact)
    }

    /// Fewer points before more points before ranges closed on both sides before others.
    fn width(&self) -> usize {
        let width = |interval: &Interval| match interval {
            point if point.is_point() => 1,
            open if open.low.len() == 1 || open.high.len() == 1 => 1 << 24,
            _ => 1 << 20,
        };
        self.intervals.iter().map(width).fold(0, usize::saturating_add)
    }
}

impl Filter {
    /// The keys at `path` that matching documents can have, `None` if the filter does not restrict them.
    /// `multikey` says that the index has expanded an array on this path.
    ///
    /// The keys are encoded with the filter's collation: use them only in an index with the same one.
    pub fn bounds(&self, path: &str, multikey: bool) -> Option<Bounds> {
        self.root().bounds(path, multikey, self.collation().map(|collation| &**collation))
    }
}

impl Node {
    /// Like [`Filter::bounds`], for a part of a filter; exact if this part is decided by the keys.
    pub fn bounds(&self, path: &str, multikey: bool, collation: Option<&Collation>) -> Option<Bounds> {
        let of = Of { multikey, collation };
        of.node(self, path)
    }
}

struct Of<'c> {
    multikey: bool,
    collation: Option<&'c Collation>,
}

impl Of<'_> {
    fn node(&self, node: &Node, path: &str) -> Option<Bounds> {
        match node {
            Node::False => Some(Bounds::nothing()),
            Node::And(nodes) => self.all(nodes.iter().map(|node| self.node(node, path)), !self.multikey),
            Node::Or(nodes) => {
                nodes.iter().map(|node| self.node(node, path)).reduce(|a, b| Some(a?.union(b?))).flatten()
            }
            Node::Field { path: own, test } if own.as_str() == path => self.test(test),
            Node::Field { path: own, test: Test::ElemMatch(node) } => {
                let rest = path.strip_prefix(own.as_str())?.strip_prefix('.')?;
                // Conditions inside may be met by different elements of an array further down.
                self.node(node, rest).map(inexact)
            }
            Node::Not(node) => match &**node {
                Node::Field { path: own, test: Test::Exists } if own.as_str() == path => {
                    Some(inexact(self.point(Value::Null)))
                }
                _ => None,
            },
            Node::True | Node::Nor(_) | Node::Field { .. } => None,
            Node::Expr(_) | Node::JsonSchema(_) | Node::SampleRate(_) => None,
        }
    }

    /// What several conditions leave; `same`: they are about the same key.
    fn all(&self, parts: impl Iterator<Item = Option<Bounds>>, same: bool) -> Option<Bounds> {
        let mut complete = true;
        let known = parts.inspect(|part| complete &= part.is_some()).flatten();
        let narrowest = |a: Bounds, b: Bounds| inexact(if b.width() < a.width() { b } else { a });
        let bounds = known.reduce(|a, b| if same { a.intersection(b) } else { narrowest(a, b) })?;
        Some(Bounds { exact: bounds.exact && complete, ..bounds })
    }

    fn test(&self, test: &Test) -> Option<Bounds> {
        match test {
            Test::Compare { op, value } => self.compare(*op, value.value()),
            Test::In(list) => self.choices(list),
            Test::Regex(pattern) => Some(self.pattern(pattern)),
            Test::ElemMatchValue(clauses) => {
                let parts = clauses.iter().map(|clause| match clause {
                    Clause::Is(test) => self.test(test),
                    Clause::Not(_) => None,
                });
                self.all(parts, true).map(inexact)
            }
            Test::Exists | Test::Type(_) | Test::Size(_) | Test::Mod { .. } => None,
            Test::Bits(..) | Test::ElemMatch(_) => None,
        }
    }

    fn point(&self, value: Value<'_>) -> Bounds {
        Bounds { intervals: vec![Interval::point(value, self.collation)], exact: true }
    }

    fn equal(&self, value: Value<'_>) -> Bounds {
        match value {
            // Elements that are no documents have null keys too, without matching.
            Value::Null => inexact(self.point(Value::Undefined).union(self.point(Value::Null))),
            // An array has its elements as keys, and itself only within another array.
            Value::Array(array) => {
                let first = array.values().next().unwrap_or(Value::Undefined);
                inexact(self.point(first).union(self.point(value)))
            }
            value => self.point(value),
        }
    }

    fn compare(&self, op: Op, value: Value<'_>) -> Option<Bounds> {
        match (op, value) {
            (Op::Eq, value) => return Some(self.equal(value)),
            (_, Value::MinKey | Value::MaxKey | Value::Array(_)) => return None,
            (Op::Lte | Op::Gte, Value::Null) => return Some(self.equal(value)),
            (Op::Lt | Op::Gt, Value::Null) => return Some(Bounds::nothing()),
            (Op::Lte | Op::Gte, value) if is_nan(value) => return Some(self.point(value)),
            (Op::Lt | Op::Gt, value) if is_nan(value) => return Some(Bounds::nothing()),
            _ => {}
        }
        let mut interval = Interval::class(value.kind());
        let key = encoded(value, self.collation);
        if matches!(op, Op::Lt | Op::Lte) {
            (interval.high, interval.high_included) = (key, op == Op::Lte);
        } else {
            (interval.low, interval.low_included) = (key, op == Op::Gte);
        }
        Some(Bounds::new(vec![interval], true))
    }

    fn choices(&self, list: &InList) -> Option<Bounds> {
        let mut bounds = Vec::with_capacity(list.values().len());
        let mut exact = true;
        let values = list.values().iter().map(|value: &Owned| self.equal(value.value()));
        for part in values.chain(list.patterns().iter().map(|pattern| self.pattern(pattern))) {
            exact &= part.exact;
            bounds.extend(part.intervals);
        }
        Some(Bounds::new(bounds, exact))
    }

    fn pattern(&self, pattern: &Pattern) -> Bounds {
        let (text, options) = (pattern.pattern(), pattern.options());
        let itself = self.point(Value::Regex { pattern: text, options });
        match pattern.prefix().filter(|_| self.collation.is_none()) {
            None => inexact(Bounds::new(vec![Interval::class(Kind::String)], true).union(itself)),
            Some((prefix, exact)) => {
                let low = encoded(Value::String(&prefix), None);
                let mut high = low.clone();
                // The last byte of the text stands before the two bytes of the end; UTF-8 has no FF.
                if let Some(last) = high.len().checked_sub(3) {
                    high[last] += 1;
                }
                let texts = Interval { low, low_included: true, high, high_included: false };
                Bounds::new(vec![texts], exact).union(itself)
            }
        }
    }
}

fn inexact(bounds: Bounds) -> Bounds {
    Bounds { exact: false, ..bounds }
}

fn encoded(value: Value<'_>, collation: Option<&Collation>) -> Vec<u8> {
    let mut key = Vec::with_capacity(16);
    encode_key_with(value, collation, &mut key);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FilterOptions;
    use crate::key::{KeyBuf, KeyPattern};
    use crate::{Doc, doc};

    fn filter(query: &Doc) -> Filter {
        Filter::parse(query.raw(), &FilterOptions::default()).unwrap()
    }

    /// Which of the values are in the bounds for `a`, and whether they are exact.
    #[track_caller]
    fn check(query: Doc, multikey: bool, inside: &[&Owned], outside: &[&Owned], exact: bool) {
        let bounds = filter(&query).bounds("a", multikey).unwrap();
        let holds = |value: &Owned| {
            let key = encoded(value.value(), None);
            let within = |interval: &Interval| {
                let (from, to) = interval.range(Direction::Ascending).unwrap();
                from <= key && key < to
            };
            bounds.intervals.iter().any(within)
        };
        inside.iter().for_each(|value| assert!(holds(value), "{query:?}: {value:?} in {bounds:?}"));
        outside.iter().for_each(|value| assert!(!holds(value), "{query:?}: {value:?} not in {bounds:?}"));
        assert_eq!(bounds.is_exact(), exact, "{query:?}");
    }

    #[test]
    fn bounds_of_conditions() {
        let (one, five, nine) = (Owned::Int32(1), Owned::Double(5.0), Owned::Int64(9));
        let text = |text: &str| Owned::String(text.into());
        check(doc! { "a": 5 }, false, &[&five], &[&one, &text("5")], true);
        check(doc! { "a": { "$gt": 1, "$lte": 5 } }, false, &[&five], &[&one, &nine], true);
        check(doc! { "a": { "$gt": 1, "$lte": 5 } }, true, &[&five, &nine], &[&one], false);
        check(doc! { "a": { "$lt": 5 } }, false, &[&one], &[&Owned::Double(f64::NAN), &Owned::Null], true);
        check(
            doc! { "a": { "$gte": "b" } },
            false,
            &[&text("b"), &text("bc")],
            &[&text("a"), &Owned::MaxKey],
            true,
        );
        check(doc! { "a": { "$in": [1, "x"] } }, false, &[&one, &text("x")], &[&five], true);
        check(doc! { "a": null }, false, &[&Owned::Null, &Owned::Undefined], &[&one], false);
        check(doc! { "a": { "$exists": false } }, false, &[&Owned::Null], &[&one], false);
        check(doc! { "$or": [{ "a": 1 }, { "a": { "$gt": 5 } }] }, true, &[&one, &nine], &[&five], true);
        check(doc! { "a": 1, "b": 1 }, false, &[&one], &[&five], false);
        check(doc! { "a": { "$gt": 5, "$lt": 1 } }, false, &[], &[&one, &five], true);
        check(doc! { "a": { "$elemMatch": { "$gt": 1, "$lt": 9 } } }, true, &[&five], &[&one, &nine], false);
        check(doc! { "a": true }, false, &[&Owned::Bool(true)], &[&Owned::Bool(false)], true);
        check(doc! { "a": { "$lt": true } }, false, &[&Owned::Bool(false)], &[&Owned::Bool(true)], true);
        let regex = |pattern: &str| Owned::Regex { pattern: pattern.into(), options: "".into() };
        check(
            doc! { "a": regex("^ab") },
            false,
            &[&text("ab"), &text("abz")],
            &[&text("ac"), &text("a")],
            true,
        );
        check(doc! { "a": regex("b") }, false, &[&text("ab"), &text("")], &[&one], false);
    }

    #[test]
    fn filters_without_bounds() {
        for query in [
            doc! {},
            doc! { "b": 1 },
            doc! { "a": { "$ne": 1 } },
            doc! { "$or": [{ "a": 1 }, { "b": 1 }] },
            doc! { "a": { "$gt": [1] } },
            doc! { "a": { "$gt": Value::MinKey } },
        ] {
            assert_eq!(filter(&query).bounds("a", false), None, "{query:?}");
        }
        let nested = filter(&doc! { "a": { "$elemMatch": { "b": 3 } } });
        assert!(nested.bounds("a.b", true).unwrap().are_points());
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1000))]
        #[test]
        fn matching_documents_have_a_key_within(
            doc in crate::arbitrary::document(),
            wanted in crate::arbitrary::value(),
            other in crate::arbitrary::value(),
            operator in proptest::sample::select(vec!["$eq", "$lt", "$lte", "$gt", "$gte"]),
        ) {
            let mut query = crate::DocBuilder::new();
            query.start_document("a").append(operator, &wanted).append("$lte", &other).end();
            let Ok(filter) = Filter::parse(query.finish().raw(), &FilterOptions::default()) else { return Ok(()) };
            for direction in [1, -1] {
                let pattern = KeyPattern::parse(doc! { "a": direction }.raw()).unwrap();
                let mut keys = KeyBuf::new();
                let multikey = pattern.keys(doc.raw(), &mut keys).unwrap();
                let Some(bounds) = filter.bounds("a", multikey) else { continue };
                let direction = pattern.fields()[0].direction;
                let ranges: Vec<_> = bounds.intervals().iter().filter_map(|i| i.range(direction)).collect();
                let within = keys.iter().any(|key| {
                    ranges.iter().any(|(from, to)| from.as_slice() <= key && key < to.as_slice())
                });
                let matches = filter.matches(doc.raw()).unwrap();
                proptest::prop_assert!(within || !matches, "{:?} {:?} {:?}", doc, filter, bounds);
                proptest::prop_assert!(matches || !within || !bounds.is_exact(), "{:?} {:?}", doc, filter);
            }
        }
    }
}
