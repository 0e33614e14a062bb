//! The order of values: MongoDB manual, "Comparison/Sort Order".
//!
//! MinKey < undefined < null < numbers < strings and symbols < documents < arrays < binary < object ids <
//! booleans < dates < timestamps < regular expressions < DB pointers < code < code with scope < MaxKey.
//! Numbers compare by value whatever their type, exactly; NaN is below all of them. Documents compare field
//! by field: type, then name, then value. Binary data compares by length, subtype, bytes.
//!
//! It is a total order of all values, with and without a collation. This module never allocates.

use crate::collation::Collation;
use crate::doc::{Iter, RawDoc};
use crate::number::compare_numbers;
use crate::value::{Kind, Value};
use std::cmp::Ordering;

/// Orders two values.
pub fn compare(a: Value<'_>, b: Value<'_>) -> Ordering {
    compare_by(a, b, &|a, b| a.as_bytes().cmp(b.as_bytes()))
}

/// Orders two values, text by a collation.
pub fn compare_with(a: Value<'_>, b: Value<'_>, collation: Option<&Collation>) -> Ordering {
    match collation {
        None => compare(a, b),
        Some(collation) => compare_by(a, b, &|a, b| collation.compare(a, b)),
    }
}

/// Whether two values are the same to a query: `1`, `1.0` and the int64 `1` are; `{a: 1, b: 1}` and
/// `{b: 1, a: 1}` are not.
pub fn equal(a: Value<'_>, b: Value<'_>) -> bool {
    compare(a, b) == Ordering::Equal
}

/// The rank of a type in the order of values; types of one rank compare by value.
pub fn type_order(kind: Kind) -> u8 {
    match kind {
        Kind::MinKey => 1,
        Kind::Undefined => 2,
        Kind::Null => 3,
        Kind::Double | Kind::Int32 | Kind::Int64 | Kind::Decimal128 => 4,
        Kind::String | Kind::Symbol => 5,
        Kind::Document => 6,
        Kind::Array => 7,
        Kind::Binary => 8,
        Kind::ObjectId => 9,
        Kind::Bool => 10,
        Kind::DateTime => 11,
        Kind::Timestamp => 12,
        Kind::Regex => 13,
        Kind::DbPointer => 14,
        Kind::Code => 15,
        Kind::CodeWithScope => 16,
        Kind::MaxKey => 17,
    }
}

/// Orders two values, strings and symbols (nested ones too, but not field names) as `strings` says.
fn compare_by(a: Value<'_>, b: Value<'_>, strings: &dyn Fn(&str, &str) -> Ordering) -> Ordering {
    use Value::*;
    match (a, b) {
        (String(a) | Symbol(a), String(b) | Symbol(b)) => strings(a, b),
        (Document(a), Document(b)) => compare_documents(a, b, strings),
        (Array(a), Array(b)) => compare_arrays(a, b, strings),
        (Binary { subtype: s, bytes: a }, Binary { subtype: t, bytes: b }) => {
            a.len().cmp(&b.len()).then(s.cmp(&t)).then_with(|| a.cmp(b))
        }
        (ObjectId(a), ObjectId(b)) => a.cmp(&b),
        (Bool(a), Bool(b)) => a.cmp(&b),
        (DateTime(a), DateTime(b)) => a.cmp(&b),
        (Timestamp(a), Timestamp(b)) => a.cmp(&b),
        (Regex { pattern: a, options: o }, Regex { pattern: b, options: p }) => {
            a.as_bytes().cmp(b.as_bytes()).then_with(|| o.as_bytes().cmp(p.as_bytes()))
        }
        (DbPointer { namespace: a, id: i }, DbPointer { namespace: b, id: j }) => {
            a.len().cmp(&b.len()).then_with(|| a.as_bytes().cmp(b.as_bytes())).then(i.cmp(&j))
        }
        (Code(a), Code(b)) => a.as_bytes().cmp(b.as_bytes()),
        (CodeWithScope { code: a, scope: s }, CodeWithScope { code: b, scope: t }) => {
            a.as_bytes().cmp(b.as_bytes()).then_with(|| compare_documents(s, t, strings))
        }
        _ => type_order(a.kind()).cmp(&type_order(b.kind())).then_with(|| compare_numbers(a, b)),
    }
}

fn compare_documents(a: RawDoc<'_>, b: RawDoc<'_>, strings: &dyn Fn(&str, &str) -> Ordering) -> Ordering {
    pairwise(a.iter(), b.iter(), |x, y| {
        type_order(x.kind())
            .cmp(&type_order(y.kind()))
            .then_with(|| x.key_bytes().cmp(y.key_bytes()))
            .then_with(|| compare_by(x.value(), y.value(), strings))
    })
}

fn compare_arrays(a: RawDoc<'_>, b: RawDoc<'_>, strings: &dyn Fn(&str, &str) -> Ordering) -> Ordering {
    pairwise(a.iter(), b.iter(), |x, y| compare_by(x.value(), y.value(), strings))
}

/// Orders by the first unequal pair; a part of the other is less.
fn pairwise<'a>(
    mut a: Iter<'a>,
    mut b: Iter<'a>,
    order: impl Fn(crate::Element<'a>, crate::Element<'a>) -> Ordering,
) -> Ordering {
    loop {
        match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) => match order(x, y) {
                Ordering::Equal => {}
                unequal => return unequal,
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Decimal128, ObjectId, Owned, Timestamp, array, doc};

    /// Values in strictly ascending order; the inner ones are equal.
    pub(crate) fn ladder() -> Vec<Vec<Owned>> {
        let decimal = |text| Owned::Decimal128(Decimal128::parse(text).unwrap());
        let binary = |subtype, bytes: &'static [u8]| Owned::Binary { subtype, bytes: bytes.into() };
        vec![
            vec![Owned::MinKey],
            vec![Owned::Undefined],
            vec![Owned::Null],
            vec![Owned::Double(f64::NAN), decimal("NaN")],
            vec![Owned::Double(f64::NEG_INFINITY), decimal("-Infinity")],
            vec![decimal("-1E+400")],
            vec![Owned::Double(-1e300)],
            vec![Owned::Int64(i64::MIN), Owned::Double(-9_223_372_036_854_775_808.0)],
            vec![Owned::Int64(i64::MIN + 1)],
            vec![Owned::Double(-1.5), decimal("-1.50")],
            vec![decimal("-1E-400")],
            vec![Owned::Int32(0), Owned::Double(-0.0), Owned::Int64(0), decimal("-0E+5")],
            vec![decimal("1E-400")],
            vec![decimal("0.1")],
            vec![Owned::Double(0.1)],
            vec![Owned::Int32(1), Owned::Int64(1), Owned::Double(1.0), decimal("1.000"), decimal("0.1E1")],
            vec![Owned::Int64(9_007_199_254_740_992), Owned::Double(9_007_199_254_740_992.0)],
            vec![Owned::Int64(9_007_199_254_740_993), decimal("9007199254740993")],
            vec![decimal("9007199254740993.5")],
            vec![Owned::Int64(i64::MAX)],
            vec![Owned::Double(9_223_372_036_854_775_808.0)],
            vec![Owned::Double(f64::INFINITY), decimal("Infinity")],
            vec![Owned::String("".into())],
            vec![Owned::String("a".into()), Owned::Symbol("a".into())],
            vec![Owned::String("a\0".into())],
            vec![Owned::String("b".into())],
            vec![Owned::Document(doc! {})],
            vec![Owned::Document(doc! { "a": 1 }), Owned::Document(doc! { "a": 1.0 })],
            vec![Owned::Document(doc! { "a": 1, "b": 1 })],
            vec![Owned::Document(doc! { "b": 1 })],
            vec![Owned::Document(doc! { "a": "x" })],
            vec![array![]],
            vec![array![1]],
            vec![array![1, 2]],
            vec![array![2]],
            vec![binary(0, b"z")],
            vec![binary(5, b"a")],
            vec![binary(0, b"aa")],
            vec![Owned::ObjectId(ObjectId([0; 12]))],
            vec![Owned::ObjectId(ObjectId([1; 12]))],
            vec![Owned::Bool(false)],
            vec![Owned::Bool(true)],
            vec![Owned::DateTime(-1)],
            vec![Owned::DateTime(1)],
            vec![Owned::Timestamp(Timestamp { time: 1, increment: 9 })],
            vec![Owned::Timestamp(Timestamp { time: 0xFFFF_FFFF, increment: 0 })],
            vec![Owned::Regex { pattern: "a".into(), options: "".into() }],
            vec![Owned::Regex { pattern: "a".into(), options: "i".into() }],
            vec![Owned::DbPointer { namespace: "z".into(), id: ObjectId([0; 12]) }],
            vec![Owned::DbPointer { namespace: "aa".into(), id: ObjectId([0; 12]) }],
            vec![Owned::Code("f".into())],
            vec![Owned::CodeWithScope { code: "f".into(), scope: doc! {} }],
            vec![Owned::CodeWithScope { code: "f".into(), scope: doc! { "a": 1 } }],
            vec![Owned::MaxKey],
        ]
    }

    #[test]
    fn the_ladder_is_in_order() {
        let rungs = ladder();
        let flat: Vec<_> =
            rungs.iter().enumerate().flat_map(|(n, r)| r.iter().map(move |v| (n, v))).collect();
        for (n, a) in &flat {
            for (m, b) in &flat {
                assert_eq!(compare(a.value(), b.value()), n.cmp(m), "{a:?} and {b:?}");
            }
        }
    }

    #[test]
    fn field_order_counts() {
        assert!(!equal(doc! { "a": 1, "b": 2 }.raw().into(), doc! { "b": 2, "a": 1 }.raw().into()));
        assert!(equal(doc! { "a": 1 }.raw().into(), doc! { "a": 1i64 }.raw().into()));
    }

    impl<'a> From<RawDoc<'a>> for Value<'a> {
        fn from(doc: RawDoc<'a>) -> Value<'a> {
            Value::Document(doc)
        }
    }
}
