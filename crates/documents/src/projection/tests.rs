use super::*;
use crate::error::Error;
use crate::{Doc, array, doc};

/// The expression `"$name"` and literals.
#[derive(Debug)]
struct Simple(Owned);

impl Compute for Simple {
    fn compute(&self, doc: RawDoc<'_>) -> Result<Option<Owned>> {
        Ok(match self.0.value() {
            Value::String(text) if text.starts_with('$') => doc.get(&text[1..]).map(|value| value.to_owned()),
            Value::String("fail") => return Err(Error::bad_value("no")),
            value => Some(value.to_owned()),
        })
    }
}

fn parse(projection: &Doc) -> Result<Projection> {
    let expr = |value: Value<'_>| Ok(Box::new(Simple(value.to_owned())) as Box<dyn Compute>);
    Projection::parse(projection.raw(), &ProjectionOptions { expr: Some(&expr), ..Default::default() })
}

#[track_caller]
fn check(projection: Doc, doc: Doc, expected: Doc) {
    let parsed = parse(&projection).unwrap_or_else(|error| panic!("{projection:?}: {error}"));
    let projected = parsed.apply(&doc, None).unwrap();
    assert_eq!(projected, expected, "{projection:?} on {doc:?}");
    assert_eq!(crate::check(projected.bytes()), Ok(()));
}

#[test]
fn inclusion() {
    let doc =
        || doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 }, "e": [{ "f": 5, "g": 6 }, 7, [{ "f": 8 }]] };
    check(doc! { "b": 1, "a": 1 }, doc(), doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 } });
    check(doc! { "a": true, "_id": 0 }, doc(), doc! { "a": 2 });
    check(doc! { "_id": 1 }, doc(), doc! { "_id": 1 });
    check(doc! { "b.d": 1.0, "_id": false }, doc(), doc! { "b": { "d": 4 } });
    check(doc! { "b": { "d": 1 }, "_id": 0 }, doc(), doc! { "b": { "d": 4 } });
    check(doc! { "b": { "x.y": 1 }, "_id": 0 }, doc(), doc! { "b": {} });
    check(doc! { "a.x": 1, "_id": 0 }, doc(), doc! {});
    check(doc! { "e.f": 1, "_id": 0 }, doc(), doc! { "e": [{ "f": 5 }, [{ "f": 8 }]] });
    check(doc! { "missing": 1 }, doc(), doc! { "_id": 1 });
    check(doc! { "_id.x": 1 }, doc! { "_id": { "x": 1, "y": 2 }, "a": 1 }, doc! { "_id": { "x": 1 } });
}

#[test]
fn exclusion() {
    let doc = || doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 }, "e": [{ "f": 5, "g": 6 }, 7] };
    check(doc! { "b": 0, "e": 0 }, doc(), doc! { "_id": 1, "a": 2 });
    check(doc! { "_id": 0, "e": 0, "b": 0 }, doc(), doc! { "a": 2 });
    check(doc! { "b.c": 0, "e": 0, "_id": 1 }, doc(), doc! { "_id": 1, "a": 2, "b": { "d": 4 } });
    check(doc! { "e.f": false, "b": 0 }, doc(), doc! { "_id": 1, "a": 2, "e": [{ "g": 6 }, 7] });
    check(doc! { "a.x": 0, "b": 0, "e": 0 }, doc(), doc! { "_id": 1, "a": 2 });
}

#[test]
fn slices() {
    let doc = || doc! { "_id": 1, "a": [1, 2, 3, 4], "b": 5 };
    check(doc! { "a": { "$slice": 2 } }, doc(), doc! { "_id": 1, "a": [1, 2], "b": 5 });
    check(doc! { "a": { "$slice": -1 } }, doc(), doc! { "_id": 1, "a": [4], "b": 5 });
    check(doc! { "a": { "$slice": [1, 2] } }, doc(), doc! { "_id": 1, "a": [2, 3], "b": 5 });
    check(doc! { "a": { "$slice": [-3, 2] } }, doc(), doc! { "_id": 1, "a": [2, 3], "b": 5 });
    check(doc! { "a": { "$slice": [-9, 2] } }, doc(), doc! { "_id": 1, "a": [1, 2], "b": 5 });
    check(doc! { "a": { "$slice": [9, 2] }, "_id": 0 }, doc(), doc! { "a": [], "b": 5 });
    check(doc! { "a": { "$slice": 1 }, "_id": 1 }, doc(), doc! { "_id": 1, "a": [1], "b": 5 });
    check(doc! { "a": { "$slice": 1 }, "missing": 1 }, doc(), doc! { "_id": 1, "a": [1] });
    check(doc! { "b": { "$slice": 1 } }, doc! { "b": 5 }, doc! { "b": 5 });
    check(doc! { "x.a": { "$slice": 1 } }, doc! { "x": [{ "a": [1, 2] }] }, doc! { "x": [{ "a": [1] }] });
}

#[test]
fn matching_elements() {
    let doc = || doc! { "_id": 1, "a": [{ "b": 1 }, { "b": 2 }, { "b": 2, "c": 1 }], "n": [1, 5, 9], "z": 0 };
    check(
        doc! { "a": { "$elemMatch": { "b": 2 } }, "z": 1 },
        doc(),
        doc! { "_id": 1, "z": 0, "a": [{ "b": 2 }] },
    );
    check(doc! { "n": { "$elemMatch": { "$gt": 4 } } }, doc(), doc! { "_id": 1, "n": [5] });
    check(doc! { "n": { "$elemMatch": { "$gt": 40 } } }, doc(), doc! { "_id": 1 });
    check(doc! { "z": { "$elemMatch": { "$gt": 40 } } }, doc(), doc! { "_id": 1 });
}

#[test]
fn positional() {
    let doc = doc! { "_id": 1, "a": [{ "b": 1 }, { "b": 2 }], "x": { "y": [4, 5] } };
    let apply = |projection: Doc, position| parse(&projection).unwrap().apply(&doc, position);
    assert_eq!(apply(doc! { "a.$": 1 }, Some(1)), Ok(doc! { "_id": 1, "a": [{ "b": 2 }] }));
    assert_eq!(apply(doc! { "x.y.$": 1, "_id": 0 }, Some(0)), Ok(doc! { "x": { "y": [4] } }));
    assert_eq!(apply(doc! { "a.b.$": 1, "_id": 0 }, Some(1)), Ok(doc! { "a": [{ "b": 2 }] }));
    assert_eq!(apply(doc! { "a.$": 1 }, None).unwrap_err().code.number, 51246);
    assert_eq!(apply(doc! { "a.$": 1 }, Some(7)).unwrap_err().code.number, 51246);
}

#[test]
fn computed_fields() {
    let doc = || doc! { "_id": 1, "a": 2, "b": { "c": 3 }, "e": [{ "f": 5 }, 7] };
    check(doc! { "x": "$a", "a": 1 }, doc(), doc! { "_id": 1, "a": 2, "x": 2 });
    check(doc! { "x": "text", "_id": 0 }, doc(), doc! { "x": "text" });
    check(doc! { "x": "$missing" }, doc(), doc! { "_id": 1 });
    check(doc! { "a": "$_id", "_id": 0 }, doc(), doc! { "a": 1 });
    check(doc! { "b.x": "$a", "_id": 0 }, doc(), doc! { "b": { "x": 2 } });
    check(doc! { "b": { "c": 1, "x": "$a" }, "_id": 0 }, doc(), doc! { "b": { "c": 3, "x": 2 } });
    check(doc! { "n.m": "$a", "_id": 0 }, doc(), doc! { "n": { "m": 2 } });
    check(doc! { "e.x": "y", "_id": 0 }, doc(), doc! { "e": [{ "x": "y" }, { "x": "y" }] });
    check(doc! { "a": { "$slice": ["$e", 1] } }, doc(), doc! { "_id": 1, "a": { "$slice": ["$e", 1] } });
    assert!(parse(&doc! { "x": "fail" }).unwrap().apply(&doc(), None).is_err());
    let none = ProjectionOptions::default();
    let literal = Projection::parse(doc! { "x": "y" }.raw(), &none).unwrap();
    assert_eq!(literal.apply(&doc(), None), Ok(doc! { "_id": 1, "x": "y" }));
    assert_eq!(Projection::parse(doc! { "x": "$y" }.raw(), &none).unwrap_err().code.number, 115);
    let stage = ProjectionOptions { stage: true, ..ProjectionOptions::default() };
    assert_eq!(Projection::parse(doc! { "x.$": 1 }.raw(), &stage).unwrap_err().code.number, 16410);
}

#[test]
fn the_empty_projection_shares_the_document() {
    let doc = doc! { "a": 1 };
    let same = parse(&doc! {}).unwrap().apply(&doc, None).unwrap();
    assert_eq!(same.bytes().as_ptr(), doc.bytes().as_ptr());
}

#[test]
fn refused_projections() {
    let cases = [
        (doc! { "a": 1, "b": 0 }, 31254),
        (doc! { "a": 0, "b": 1 }, 31253),
        (doc! { "a": 0, "b": "$x" }, 31252),
        (doc! { "a": 0, "_id": "$x" }, 31252),
        (doc! { "a": 1, "a.b": 1 }, 31249),
        (doc! { "a.b": 1, "a": 1 }, 31250),
        (doc! { "a": 1, "a": 1 }, 31250),
        (doc! { "a": {} }, 51270),
        (doc! { "a.$": 1, "b.$": 1 }, 31276),
        (doc! { "a.$": 0 }, 31395),
        (doc! { "a.$": "x" }, 31271),
        (doc! { "a.$.b": 1 }, 31394),
        (doc! { "a": { "$meta": "textScore" } }, 115),
        (doc! { "a.b": { "$elemMatch": {} } }, 31275),
        (doc! { "a": { "$elemMatch": 1 } }, 31274),
        (doc! { "a": { "$slice": "x" } }, 31273),
        (doc! { "a": { "$slice": [1] } }, 31273),
        (doc! { "a": { "$slice": [1, 0] } }, 31272),
        (doc! { "$a": 1 }, 16410),
        (doc! { "a..b": 1 }, 15998),
        (doc! { "a.": 1 }, 40353),
        (doc! { "": 1 }, 40352),
    ];
    for (projection, number) in cases {
        let error = parse(&projection).expect_err(&format!("{projection:?}"));
        assert_eq!(error.code.number, number, "{projection:?}: {error}");
    }
    assert_eq!(parse(&doc! { "a": array![1] }).map(|p| p.kind), Ok(Kind::Inclusion));
}

proptest::proptest! {
    #[test]
    fn inclusion_and_exclusion_complement_each_other(doc in crate::arbitrary::document()) {
        let names = |projection: &Doc| -> Vec<String> {
            let out = parse(projection).unwrap().apply(&doc, None).unwrap();
            out.raw().iter().map(|element| element.key().to_string()).collect()
        };
        let mut all = names(&doc! { "a": 1, "_id": 0 });
        all.extend(names(&doc! { "a": 0, "_id": 0 }));
        all.sort();
        let expected: Vec<_> = doc.raw().iter().map(|element| element.key().to_string()).collect();
        proptest::prop_assert_eq!(all, expected);
    }
}
