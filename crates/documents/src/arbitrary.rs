//! Random values for property tests, with the numbers and nestings where mistakes hide.

use crate::{Decimal128, Doc, DocBuilder, ObjectId, Owned, Timestamp};
use proptest::prelude::*;

const EDGES: [f64; 12] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    2.5,
    9_007_199_254_740_992.0,
    -9_007_199_254_740_992.0,
    9_223_372_036_854_775_808.0,
    -9_223_372_036_854_775_808.0,
    f64::NAN,
    f64::INFINITY,
];

/// A number of any type.
pub(crate) fn number() -> impl Strategy<Value = Owned> {
    prop_oneof![
        (-3i32..4).prop_map(Owned::Int32),
        any::<i32>().prop_map(Owned::Int32),
        (-3i64..4).prop_map(Owned::Int64),
        any::<i64>().prop_map(Owned::Int64),
        (-3i64..4).prop_map(|n| Owned::Int64(n + (1 << 53))),
        (-3i64..4).prop_map(|n| Owned::Int64(i64::MAX.saturating_add(n))),
        proptest::sample::select(&EDGES[..]).prop_map(Owned::Double),
        any::<f64>().prop_map(Owned::Double),
        (-8i32..9).prop_map(|n| Owned::Double(f64::from(n) / 2.0)),
        any::<u128>().prop_map(|bits| Owned::Decimal128(Decimal128(bits.to_le_bytes()))),
        (any::<i64>(), -20i32..20).prop_map(|(n, e)| decimal(&format!("{n}E{e}"))),
        (-40i32..40, -2i32..3).prop_map(|(n, e)| decimal(&format!("{n}E{e}"))),
    ]
}

/// A decimal from its text.
pub(crate) fn decimal(text: &str) -> Owned {
    Owned::Decimal128(Decimal128::parse(text).expect("a decimal number"))
}

fn scalar() -> impl Strategy<Value = Owned> {
    prop_oneof![
        4 => number(),
        2 => "[ab\0é]{0,3}".prop_map(Owned::String),
        1 => "[ab\0]{0,2}".prop_map(Owned::Symbol),
        1 => (0u8..2, "[ab\0]{0,2}").prop_map(|(subtype, s)| Owned::Binary { subtype, bytes: s.into_bytes().into() }),
        1 => (0usize..400).prop_map(|n| Owned::Binary { subtype: 0, bytes: vec![1; n].into() }),
        1 => any::<[u8; 12]>().prop_map(|id| Owned::ObjectId(ObjectId(id))),
        1 => any::<bool>().prop_map(Owned::Bool),
        1 => any::<i64>().prop_map(Owned::DateTime),
        1 => any::<u64>().prop_map(|n| Owned::Timestamp(Timestamp::from_bits(n))),
        1 => ("[ab]{0,2}", "[im]?").prop_map(|(pattern, options)| Owned::Regex { pattern, options }),
        1 => "[ab]{0,2}".prop_map(|namespace| Owned::DbPointer { namespace, id: ObjectId([1; 12]) }),
        1 => "[ab\0]{0,2}".prop_map(Owned::Code),
        1 => proptest::sample::select(vec![Owned::MinKey, Owned::Undefined, Owned::Null, Owned::MaxKey]),
    ]
}

/// A value of any type.
pub(crate) fn value() -> impl Strategy<Value = Owned> + Clone {
    scalar().prop_recursive(2, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(|values| array_of(&values)),
            fields(inner.clone()).prop_map(Owned::Document),
            ("[ab]{0,1}", fields(inner)).prop_map(|(code, scope)| Owned::CodeWithScope { code, scope }),
        ]
    })
}

/// A document of up to three fields named `a`, `b`, `c` (each at most once).
pub(crate) fn document() -> impl Strategy<Value = Doc> {
    fields(value())
}

fn fields(inner: impl Strategy<Value = Owned> + Clone) -> impl Strategy<Value = Doc> {
    proptest::collection::btree_map("[abc]", inner, 0..3).prop_map(|map| {
        let mut builder = DocBuilder::new();
        for (name, value) in &map {
            builder.append(name, value);
        }
        builder.finish()
    })
}

fn array_of(values: &[Owned]) -> Owned {
    let mut builder = DocBuilder::new();
    for value in values {
        builder.push(value);
    }
    Owned::Array(builder.finish())
}
