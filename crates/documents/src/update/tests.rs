//! What each operator makes of a document, by example.

use super::{Applied, Update, UpdateOptions, upsert_document};
use crate::diff::apply;
use crate::{Doc, ObjectId, Owned, Result, Timestamp, ToValue, array, doc};

fn options() -> UpdateOptions {
    UpdateOptions {
        now_ms: 1_000,
        timestamp: Timestamp { time: 7, increment: 3 },
        ..UpdateOptions::default()
    }
}

fn try_update(old: &Doc, update: impl ToValue, positional: Option<usize>) -> Result<Applied> {
    Update::parse(update.to_value(), None, &options())?.apply(old.raw(), positional, false)
}

/// Checks the result, that the description makes it out of the old document, and that no-ops are none.
fn check(old: Doc, update: Doc, expected: Doc) -> Applied {
    let applied = try_update(&old, &update, None).unwrap_or_else(|error| panic!("{update:?}: {error}"));
    assert_eq!(applied.doc, expected, "{update:?} on {old:?}");
    assert_eq!(applied.changed, old != expected, "{update:?} on {old:?}");
    assert_eq!(applied.description.is_some(), applied.changed, "{update:?}");
    if let Some(description) = &applied.description {
        assert_eq!(apply(old.raw(), description).unwrap(), expected, "{description:?}");
    }
    applied
}

fn check_fails(old: Doc, update: impl ToValue, code: i32, text: &str) {
    let shown = format!("{:?}", update.to_value());
    let error = try_update(&old, update, None).map(|applied| applied.doc).expect_err(&shown);
    assert_eq!(error.code.number, code, "{shown}: {error}");
    assert!(error.message.contains(text), "{shown}: {error}");
}

#[test]
fn set_and_unset() {
    check(doc! {}, doc! { "$set": { "b": 1, "a": 2 } }, doc! { "a": 2, "b": 1 });
    check(doc! {}, doc! { "$set": { "10": 1, "9": 2, "x": 3 } }, doc! { "9": 2, "10": 1, "x": 3 });
    check(doc! { "a": 1 }, doc! { "$set": { "a": 1 } }, doc! { "a": 1 });
    check(doc! { "a": 1 }, doc! { "$set": { "a": 1.0 } }, doc! { "a": 1.0 });
    check(doc! { "a": 0.0 }, doc! { "$set": { "a": -0.0 } }, doc! { "a": -0.0 });
    check(doc! { "a": f64::NAN }, doc! { "$set": { "b": 1 } }, doc! { "a": f64::NAN, "b": 1 });
    check(doc! {}, doc! { "$set": { "a.b.c": 1, "a.b.a": 2 } }, doc! { "a": { "b": { "a": 2, "c": 1 } } });
    check(doc! { "a": { "x": 1 } }, doc! { "$set": { "a.b": 1 } }, doc! { "a": { "x": 1, "b": 1 } });
    check(doc! { "a": [1, 2] }, doc! { "$set": { "a.1": 5 } }, doc! { "a": [1, 5] });
    check(doc! { "a": [1] }, doc! { "$set": { "a.3": 5 } }, doc! { "a": [1, null, null, 5] });
    check(doc! { "a": [{ "b": 1 }] }, doc! { "$set": { "a.0.b": 2 } }, doc! { "a": [{ "b": 2 }] });
    check(doc! { "a": 1, "b": 2 }, doc! { "$unset": { "a": "" } }, doc! { "b": 2 });
    check(doc! { "a": { "b": 1 } }, doc! { "$unset": { "a.b": 1 } }, doc! { "a": {} });
    check(doc! { "a": 1 }, doc! { "$unset": { "a.b.c": 1, "z.y": 1 } }, doc! { "a": 1 });
    check(doc! { "a": [1, 2, 3] }, doc! { "$unset": { "a.1": 1 } }, doc! { "a": [1, null, 3] });
    check(doc! { "a": 1 }, doc! { "$setOnInsert": { "b": 1, "a.x": 1 } }, doc! { "a": 1 });
    check(doc! { "_id": 1, "a": 1 }, doc! { "$set": { "_id": 1, "a": 2 } }, doc! { "_id": 1, "a": 2 });
    check(doc! { "_id": 1 }, doc! { "$set": { "_id": 1.0 } }, doc! { "_id": 1.0 });
    check(doc! { "a": 1 }, doc! { "$set": {} }, doc! { "a": 1 });
    check(doc! { "a": 1 }, doc! { "$set": { "a": { "$x": 1 } } }, doc! { "a": { "$x": 1 } });
}

#[test]
fn numbers() {
    check(doc! { "a": 1 }, doc! { "$inc": { "a": 2 } }, doc! { "a": 3 });
    check(doc! { "a": i32::MAX }, doc! { "$inc": { "a": 1 } }, doc! { "a": 1i64 << 31 });
    check(doc! { "a": 1i64 }, doc! { "$inc": { "a": 1 } }, doc! { "a": 2i64 });
    check(doc! { "a": 1 }, doc! { "$inc": { "a": 0.5 } }, doc! { "a": 1.5 });
    check(doc! { "a": 1 }, doc! { "$inc": { "a": 0 } }, doc! { "a": 1 });
    check(doc! {}, doc! { "$inc": { "a.b": 2i64 } }, doc! { "a": { "b": 2i64 } });
    check(doc! { "a": 3 }, doc! { "$mul": { "a": 4 } }, doc! { "a": 12 });
    check(doc! {}, doc! { "$mul": { "a": 4i64 } }, doc! { "a": 0i64 });
    check(doc! { "a": 3 }, doc! { "$min": { "a": 2 } }, doc! { "a": 2 });
    check(doc! { "a": 3 }, doc! { "$min": { "a": 4 } }, doc! { "a": 3 });
    check(doc! { "a": 3 }, doc! { "$max": { "a": "x" } }, doc! { "a": "x" });
    check(doc! {}, doc! { "$max": { "a": 1 }, "$min": { "b": 2 } }, doc! { "a": 1, "b": 2 });
    check(doc! { "a": 12 }, doc! { "$bit": { "a": { "and": 10, "or": 1 } } }, doc! { "a": 9 });
    check(doc! { "a": 1i64 }, doc! { "$bit": { "a": { "xor": 3 } } }, doc! { "a": 2i64 });
    check(doc! {}, doc! { "$bit": { "a": { "or": 5 } } }, doc! { "a": 5 });
}

#[test]
fn dates_and_renames() {
    check(
        doc! {},
        doc! { "$currentDate": { "a": true, "b": { "$type": "timestamp" } } },
        doc! { "a": Owned::DateTime(1_000), "b": Timestamp { time: 7, increment: 3 } },
    );
    check(doc! { "a": 1, "c": 3 }, doc! { "$rename": { "a": "b" } }, doc! { "c": 3, "b": 1 });
    check(doc! { "a": 1, "b": 2 }, doc! { "$rename": { "a": "b" } }, doc! { "b": 1 });
    check(doc! { "a": { "b": 1 } }, doc! { "$rename": { "a.b": "c.d" } }, doc! { "a": {}, "c": { "d": 1 } });
    check(doc! { "a": 1 }, doc! { "$rename": { "x": "c.d" } }, doc! { "a": 1 });
    check_fails(doc! { "a": [1], "_id": 1 }, doc! { "$rename": { "a.0": "b" } }, 2, "array element, 'a.0'");
    check_fails(doc! {}, doc! { "$rename": { "a": "a.b" } }, 2, "same path");
    check_fails(doc! {}, doc! { "$rename": { "a": "a" } }, 2, "must differ");
    check_fails(doc! { "a": 1 }, doc! { "$rename": { "a": "b\0c" } }, 2, "null byte");
}

#[test]
fn push() {
    check(doc! { "a": [1] }, doc! { "$push": { "a": 2 } }, doc! { "a": [1, 2] });
    check(doc! {}, doc! { "$push": { "a": [1] } }, doc! { "a": [[1]] });
    check(
        doc! { "a": [1, 2] },
        doc! { "$push": { "a": { "$each": [8, 9], "$position": 1 } } },
        doc! { "a": [1, 8, 9, 2] },
    );
    check(
        doc! { "a": [1, 2] },
        doc! { "$push": { "a": { "$each": [9], "$position": -1 } } },
        doc! { "a": [1, 9, 2] },
    );
    check(
        doc! { "a": [3, 1] },
        doc! { "$push": { "a": { "$each": [2], "$sort": 1 } } },
        doc! { "a": [1, 2, 3] },
    );
    check(
        doc! { "a": [3, 1] },
        doc! { "$push": { "a": { "$each": [2], "$sort": -1, "$slice": 2 } } },
        doc! { "a": [3, 2] },
    );
    check(
        doc! { "a": [3, 1] },
        doc! { "$push": { "a": { "$each": [2], "$slice": -2 } } },
        doc! { "a": [1, 2] },
    );
    check(doc! { "a": [3, 1] }, doc! { "$push": { "a": { "$each": [], "$slice": 0 } } }, doc! { "a": [] });
    check(doc! { "a": [1] }, doc! { "$push": { "a": { "$each": [] } } }, doc! { "a": [1] });
    check(
        doc! { "a": [{ "b": 2 }, { "b": 1 }] },
        doc! { "$push": { "a": { "$each": [], "$sort": { "b": 1 } } } },
        doc! { "a": [{ "b": 1 }, { "b": 2 }] },
    );
    check_fails(
        doc! { "_id": 1, "a": 1 },
        doc! { "$push": { "a": 1 } },
        2,
        "must be an array but is of type int in document {_id: 1}",
    );
    check_fails(doc! {}, doc! { "$push": { "a": { "$each": 1 } } }, 2, "must be an array");
    check_fails(
        doc! {},
        doc! { "$push": { "a": { "$each": [], "$x": 1 } } },
        2,
        "Unrecognized clause in $push: $x",
    );
}

#[test]
fn sets_and_pops() {
    check(doc! { "a": [1] }, doc! { "$addToSet": { "a": 2 } }, doc! { "a": [1, 2] });
    check(doc! { "a": [1] }, doc! { "$addToSet": { "a": 1.0 } }, doc! { "a": [1] });
    check(doc! {}, doc! { "$addToSet": { "a": { "$each": [1, 1, 2] } } }, doc! { "a": [1, 2] });
    check(doc! { "a": [1, 2, 3] }, doc! { "$pop": { "a": 1 } }, doc! { "a": [1, 2] });
    check(doc! { "a": [1, 2, 3] }, doc! { "$pop": { "a": -1 } }, doc! { "a": [2, 3] });
    check(doc! { "a": [] }, doc! { "$pop": { "a": 1, "b": 1 } }, doc! { "a": [] });
    check(doc! { "a": [1, 2, 1.0] }, doc! { "$pull": { "a": 1 } }, doc! { "a": [2] });
    check(doc! { "a": [1, 2, "x"] }, doc! { "$pullAll": { "a": ["x", 1] } }, doc! { "a": [2] });
    check_fails(
        doc! { "a": null },
        doc! { "$addToSet": { "a": 1 } },
        2,
        "Cannot apply $addToSet to non-array field. Field named 'a' has non-array type null",
    );
    check_fails(doc! { "a": 1 }, doc! { "$pull": { "a": 1 } }, 2, "non-array value");
    check_fails(doc! { "a": 1 }, doc! { "$pop": { "a": 1 } }, 14, "non-array type 'int'");
    check_fails(doc! {}, doc! { "$pop": { "a": 2 } }, 9, "$pop expects 1 or -1");
}

#[test]
fn pull_by_condition() {
    check(doc! { "a": [1, 5, 9] }, doc! { "$pull": { "a": { "$gt": 4 } } }, doc! { "a": [1] });
    check(
        doc! { "a": [{ "b": 1, "c": 2 }, { "b": 2 }, 7] },
        doc! { "$pull": { "a": { "b": 1 } } },
        doc! { "a": [{ "b": 2 }, 7] },
    );
    let regex = Owned::Regex { pattern: "^x".into(), options: String::new() };
    check(doc! { "a": ["x1", "y", 3] }, doc! { "$pull": { "a": &regex } }, doc! { "a": ["y", 3] });
    check(doc! { "a": [1, 2] }, doc! { "$pull": { "a": { "$in": [2, 3] } } }, doc! { "a": [1] });
}

#[test]
fn descriptions_tell_arrays_as_consumers_expect() {
    let updated =
        |old: Doc, update: Doc| try_update(&old, &update, None).unwrap().description.unwrap().updated_fields;
    assert_eq!(updated(doc! { "a": ["x"] }, doc! { "$pull": { "a": "x" } }), doc! { "a": [] });
    assert_eq!(updated(doc! { "a": ["x"] }, doc! { "$set": { "a": [] } }), doc! { "a": [] });
    assert_eq!(updated(doc! { "a": ["x"] }, doc! { "$addToSet": { "a": "y" } }), doc! { "a.1": "y" });
    assert_eq!(updated(doc! { "a": [] }, doc! { "$addToSet": { "a": "y" } }), doc! { "a.0": "y" });
    assert_eq!(updated(doc! {}, doc! { "$addToSet": { "a": "y" } }), doc! { "a": ["y"] });
    assert_eq!(
        updated(doc! { "a": {} }, doc! { "$set": { "a.b.c": 1, "a.b.d": 2 } }),
        doc! { "a.b": { "c": 1, "d": 2 } }
    );
    let applied = check(doc! { "a": 1, "b": 2 }, doc! { "$unset": { "a": 1 } }, doc! { "b": 2 });
    assert_eq!(applied.description.unwrap().removed_fields, ["a"]);
}

#[test]
fn positional() {
    let old = doc! { "a": [{ "b": 1 }, { "b": 2 }] };
    let at = |update: Doc| try_update(&old, &update, Some(1)).map(|applied| applied.doc);
    assert_eq!(at(doc! { "$set": { "a.$.b": 5 } }), Ok(doc! { "a": [{ "b": 1 }, { "b": 5 }] }));
    assert_eq!(at(doc! { "$set": { "a.$": 5 } }), Ok(doc! { "a": [{ "b": 1 }, 5] }));
    assert_eq!(
        at(doc! { "$set": { "a.$.c": 5, "a.1.d": 6 } }),
        Ok(doc! { "a": [{ "b": 1 }, { "b": 2, "c": 5, "d": 6 }] })
    );
    assert_eq!(at(doc! { "$set": { "a.$.c": 5, "a.1": 6 } }).unwrap_err().code.number, 40);
    check_fails(
        old.clone(),
        doc! { "$set": { "a.$.b": 5 } },
        2,
        "positional operator did not find the match",
    );
    check(old.clone(), doc! { "$inc": { "a.$[].b": 1 } }, doc! { "a": [{ "b": 2 }, { "b": 3 }] });
    check_fails(old.clone(), doc! { "$set": { "z.$[]": 1 } }, 2, "must exist in the document");
    check_fails(doc! { "a": 1 }, doc! { "$set": { "a.$[]": 1 } }, 2, "non-array element a: 1");
    check_fails(old, doc! { "$set": { "$.b": 1 } }, 2, "first position");
}

#[test]
fn array_filters() {
    let old = doc! { "a": [1, 5, 9], "b": [{ "x": 1, "y": [1, 2] }, { "x": 2, "y": [3] }] };
    let with = |update: Doc, filters: Owned| {
        let filters = filters.value().as_array();
        let update = Update::parse(update.to_value(), filters, &options())?;
        update.apply(old.raw(), None, false).map(|applied| applied.doc)
    };
    let changed = with(doc! { "$set": { "a.$[big]": 0 } }, array![{ "big": { "$gt": 4 } }]).unwrap();
    assert_eq!(changed.get("a").unwrap().to_owned(), array![1, 0, 0]);
    let changed = with(
        doc! { "$inc": { "b.$[one].y.$[]": 10, "b.$[two].x": 5 } },
        array![{ "one.x": 1 }, { "two.x": { "$gte": 1 } }],
    )
    .unwrap();
    assert_eq!(changed.get("b").unwrap().to_owned(), array![{ "x": 6, "y": [11, 12] }, { "x": 7, "y": [3] }]);
    let conflict = doc! { "$set": { "a.$[p]": 1, "a.$[q]": 2 } };
    let error = with(conflict, array![{ "p": 1 }, { "q": { "$lt": 3 } }]).unwrap_err();
    assert_eq!((error.code.number, &*error.message), (40, "Update created a conflict at 'a.0'"));
    for (update, filters, code) in [
        (doc! { "$set": { "a.$[p]": 1 } }, array![{ "q": 1 }], 2),
        (doc! { "$set": { "a": 1 } }, array![{ "q": 1 }], 9),
        (doc! { "$set": { "a.$[p]": 1 } }, array![{ "p": 1 }, { "p": 2 }], 9),
        (doc! { "$set": { "a.$[p]": 1 } }, array![{ "p": 1, "q": 2 }], 9),
        (doc! { "$set": { "a.$[p]": 1 } }, array![{}], 9),
        (doc! { "$set": { "a.$[p]": 1 } }, array![{ "P": 1 }], 2),
    ] {
        assert_eq!(with(update.clone(), filters).unwrap_err().code.number, code, "{update:?}");
    }
}

#[test]
fn errors() {
    check_fails(doc! {}, doc! { "$foo": { "a": 1 } }, 9, "Unknown modifier: $foo.");
    check_fails(doc! {}, doc! { "$set": { "a": 1 }, "b": 1 }, 9, "Unknown modifier: b.");
    check_fails(doc! {}, doc! { "b": 1, "$set": { "a": 1 } }, 52, "'$set'");
    check_fails(doc! {}, doc! { "$set": "x" }, 9, "Modifiers operate on fields but we found type string");
    check_fails(
        doc! {},
        doc! { "$set": { "a": 1 }, "$inc": { "a": 1 } },
        40,
        "Updating the path 'a' would create a conflict at 'a'",
    );
    check_fails(
        doc! {},
        doc! { "$set": { "a.b": 1, "a": 1 } },
        40,
        "Updating the path 'a' would create a conflict at 'a'",
    );
    check_fails(
        doc! {},
        doc! { "$set": { "a": 1, "a.b": 1 } },
        40,
        "Updating the path 'a.b' would create a conflict at 'a'",
    );
    check_fails(doc! {}, doc! { "$set": { "a.$[]": 1, "a.0": 1 } }, 40, "at 'a'");
    check_fails(
        doc! { "a": 1 },
        doc! { "$set": { "a.b": 1 } },
        28,
        "Cannot create field 'b' in element {a: 1}",
    );
    check_fails(
        doc! { "a": [1] },
        doc! { "$set": { "a.b": 1 } },
        28,
        "Cannot create field 'b' in element {a: [ 1 ]}",
    );
    check_fails(doc! { "a": [] }, doc! { "$set": { "a.9999999": 1 } }, 94, "backfill");
    check_fails(doc! {}, doc! { "$set": { "": 1 } }, 56, "empty update path");
    check_fails(doc! {}, doc! { "$set": { "a.": 1 } }, 56, "'a.' contains an empty field name");
    check_fails(doc! {}, doc! { "$set": { "a.$b": 1 } }, 52, "'$b' in 'a.$b'");
    check_fails(doc! { "_id": 1 }, doc! { "$set": { "_id": 2 } }, 66, "_id");
    check_fails(doc! { "_id": 1 }, doc! { "$unset": { "_id": 1 } }, 66, "_id");
    check_fails(doc! { "_id": 1 }, doc! { "_id": 2, "a": 1 }, 66, "_id");
    check_fails(doc! {}, doc! { "$set": { "_id": [] } }, 53, "cannot be of type array");
    check_fails(
        doc! { "_id": 1, "a": "x" },
        doc! { "$inc": { "a": 1 } },
        14,
        "Cannot apply $inc to a value of non-numeric type. {_id: 1} has the field 'a' of non-numeric type string",
    );
    check_fails(
        doc! {},
        doc! { "$inc": { "a": "x" } },
        14,
        "Cannot increment with non-numeric argument: {a: \"x\"}",
    );
    check_fails(doc! { "a": i64::MAX }, doc! { "$inc": { "a": 1 } }, 2, "Failed to apply $inc operations");
    check_fails(doc! { "a": 1.5 }, doc! { "$bit": { "a": { "or": 1 } } }, 2, "non-integer type double");
    check_fails(doc! {}, doc! { "$bit": { "a": { "nor": 1 } } }, 2, "not 'nor'");
    check_fails(doc! {}, doc! { "$currentDate": { "a": "x" } }, 2, "is not valid type for $currentDate");
    check_fails(doc! {}, 5, 9, "must be either an object or an array");
    let deep = (0..99).map(|_| "a").collect::<Vec<_>>().join(".");
    let update = |value: Doc| {
        let mut fields = crate::DocBuilder::new();
        fields.start_document("$set").append(&deep, value);
        fields.finish()
    };
    check_fails(doc! {}, update(doc! { "x": { "y": 1 } }), 15, "nesting depth");
    assert!(try_update(&doc! {}, update(doc! {}), None).is_ok());
}

/// Whatever an update does: what it makes has its levels and no more.
#[test]
fn no_result_nests_too_deep() {
    let nested = |levels: usize| (1..levels).fold(doc! {}, |inner, _| doc! { "a": inner });
    let path = |levels: usize| vec!["a"; levels].join(".");
    let upsert = |update: Doc, path: &str, value: Doc| {
        let update = Update::parse(update.to_value(), None, &options()).unwrap();
        upsert_document(&[(path.to_string(), value.to_value().to_owned())], &update, ObjectId([1; 12]))
    };
    for (levels, code) in [(100, None), (101, Some(15)), (119, Some(15))] {
        let code_of = |result: Result<Doc>| result.err().map(|error| error.code.number);
        let updated = |update: Doc| code_of(try_update(&doc! { "b": 1 }, update, None).map(|done| done.doc));
        assert_eq!(updated(nested(levels)), code, "a replacement of {levels}");
        assert_eq!(updated(doc! { "$set": { "a": nested(levels - 1) } }), code);
        assert_eq!(updated(doc! { "$push": { "a": nested(levels - 2) } }), code);
        let set = doc! { "$set": { "b": 1 } };
        assert_eq!(code_of(upsert(set.clone(), "a", nested(levels - 1))), code, "an equality of the query");
        assert_eq!(code_of(upsert(set, &path(60), nested(levels - 60))), code);
        assert_eq!(code_of(upsert(nested(levels), "b", doc! {})), code);
    }
}

#[test]
fn replacements() {
    let replaced = |old: Doc, new: Doc| try_update(&old, &new, None).unwrap();
    let applied = replaced(doc! { "_id": 1, "a": 1 }, doc! { "b": 2 });
    assert_eq!((applied.doc, applied.changed, applied.description), (doc! { "_id": 1, "b": 2 }, true, None));
    let applied = replaced(doc! { "_id": 1, "a": 1 }, doc! { "a": 1, "_id": 1 });
    assert_eq!((applied.doc, applied.changed), (doc! { "_id": 1, "a": 1 }, false));
    let empty = Timestamp::default();
    let applied = replaced(doc! { "_id": 1 }, doc! { "a": empty, "b": { "c": empty } });
    assert_eq!(applied.doc, doc! { "_id": 1, "a": Timestamp { time: 7, increment: 3 }, "b": { "c": empty } });
}

#[test]
fn upserts() {
    let id = ObjectId([7; 12]);
    let upsert = |equalities: &[(&str, Owned)], update: Doc| {
        let equalities: Vec<_> =
            equalities.iter().map(|(path, value)| (path.to_string(), value.clone())).collect();
        let update = Update::parse(update.to_value(), None, &options())?;
        upsert_document(&equalities, &update, id)
    };
    let (one, two) = (Owned::Int32(1), Owned::Int32(2));
    assert_eq!(
        upsert(
            &[("b.c", one.clone()), ("a", two.clone())],
            doc! { "$set": { "x": 1 }, "$setOnInsert": { "y": 2 } }
        ),
        Ok(doc! { "_id": id, "b": { "c": 1 }, "a": 2, "x": 1, "y": 2 })
    );
    assert_eq!(upsert(&[("_id", one.clone())], doc! { "$set": { "_id": 1 } }), Ok(doc! { "_id": 1 }));
    assert_eq!(upsert(&[], doc! { "$set": { "a": 1, "_id": 5 } }), Ok(doc! { "_id": 5, "a": 1 }));
    assert_eq!(
        upsert(&[("_id", one.clone()), ("a", two.clone())], doc! { "b": 1 }),
        Ok(doc! { "_id": 1, "b": 1 })
    );
    assert_eq!(upsert(&[("_id", one.clone())], doc! { "_id": 2 }).unwrap_err().code.number, 66);
    assert_eq!(
        upsert(&[("a", one.clone()), ("a.b", two)], doc! { "$set": { "x": 1 } }).unwrap_err().code.number,
        54
    );
    assert_eq!(upsert(&[("_id.x", one)], doc! { "$set": { "x": 1 } }).unwrap_err().code.number, 111);
}

#[test]
fn pipelines() {
    let old = doc! { "_id": 1, "a": 1, "b": "a long enough text to be worth a difference" };
    let update = |stages: Owned| try_update(&old, stages, None);
    let applied =
        update(array![{ "$set": { "a": { "$add": ["$a", 1] } } }, { "$set": { "c": "$$NOW" } }]).unwrap();
    assert_eq!(applied.description.unwrap().updated_fields, doc! { "a": 2, "c": Owned::DateTime(1_000) });
    let applied = update(array![{ "$unset": ["b"] }]).unwrap();
    assert_eq!(
        (applied.doc, applied.description.unwrap().removed_fields),
        (doc! { "_id": 1, "a": 1 }, vec!["b".to_string()])
    );
    let applied = update(array![{ "$replaceWith": { "x": "$a" } }]).unwrap();
    assert_eq!(applied.doc, doc! { "_id": 1, "x": 1 });
    assert!(!update(array![{ "$set": { "a": 1 } }]).unwrap().changed);
    assert_eq!(update(array![{ "$match": {} }]).unwrap_err().code.number, 72);
    assert_eq!(update(array![{ "$set": { "_id": 2 } }]).unwrap_err().code.number, 66);
    assert_eq!(update(array![{ "$replaceWith": 1 }]).unwrap_err().code.number, 40228);
}

const PATHS: [&str; 10] = ["a", "b", "a.b", "a.0", "a.1.b", "b.a.c", "a.$[]", "a.$", "_id", "b.3"];

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1000))]

    #[test]
    fn any_update_gives_a_sound_document_or_an_error(
        a in crate::arbitrary::value(),
        b in crate::arbitrary::value(),
        ops in proptest::collection::vec((0usize..15, 0usize..10, crate::arbitrary::value()), 1..4),
    ) {
        let old = doc! { "_id": 1, "a": a, "b": b };
        let mut update = crate::DocBuilder::new();
        for (op, path, value) in &ops {
            update.start_document(super::parse::OPERATORS[*op]).append(PATHS[*path], value).end();
        }
        let update = update.finish();
        if let Ok(applied) = try_update(&old, &update, Some(0)) {
            proptest::prop_assert_eq!(crate::check(applied.doc.bytes()), Ok(()), "{:?} on {:?}", update, old);
            proptest::prop_assert_eq!(applied.changed, applied.doc.bytes() != old.bytes());
            if let Some(description) = &applied.description {
                let again = apply(old.raw(), description).unwrap();
                proptest::prop_assert_eq!(again.bytes(), applied.doc.bytes(), "{:?} on {:?}: {:?}", update, old, description);
            }
        }
    }
}

mod large_sets {
    use super::{Doc, ToValue, doc, try_update};
    use crate::arbitrary::value as any_value;
    use crate::collation::Collation;
    use crate::compare::compare_with;
    use crate::update::{Update, UpdateOptions};
    use crate::{DocBuilder, Owned};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn array_of(values: &[Owned]) -> Owned {
        let mut array = DocBuilder::new();
        values.iter().for_each(|value| {
            array.push(value);
        });
        Owned::Array(array.finish())
    }

    fn values() -> impl Strategy<Value = Vec<Owned>> {
        let few = prop_oneof![
            (0i32..4).prop_map(Owned::Int32),
            (0i64..4).prop_map(Owned::Int64),
            (0i32..4).prop_map(|n| Owned::Double(f64::from(n))),
            "[aAbB]".prop_map(Owned::String),
        ];
        prop::collection::vec(prop_oneof![3 => few, 1 => any_value()], 0..30)
    }

    proptest! {
        #[test]
        fn sets_are_as_if_each_were_compared_with_each(
            there in values(),
            items in values(),
            text_by_letter in any::<bool>(),
        ) {
            let collation = doc! { "locale": "en", "strength": 1 };
            let collation: Option<Arc<Collation>> =
                if text_by_letter { Collation::parse(collation.raw()).unwrap() } else { None };
            let same = |a: &Owned, b: &Owned| compare_with(a.value(), b.value(), collation.as_deref()).is_eq();
            let apply = |update: Doc| {
                let options = UpdateOptions { collation: collation.clone(), ..UpdateOptions::default() };
                let old = doc! { "a": array_of(&there) };
                Update::parse(update.to_value(), None, &options).unwrap().apply(old.raw(), None, false).unwrap().doc
            };
            let mut united = there.clone();
            for item in &items {
                if !united.iter().any(|other| same(other, item)) {
                    united.push(item.clone());
                }
            }
            let added = apply(doc! { "$addToSet": { "a": { "$each": array_of(&items) } } });
            prop_assert_eq!(added, doc! { "a": array_of(&united) });
            let left: Vec<Owned> =
                there.iter().filter(|value| !items.iter().any(|item| same(item, value))).cloned().collect();
            prop_assert_eq!(apply(doc! { "$pullAll": { "a": array_of(&items) } }), doc! { "a": array_of(&left) });
        }
    }

    /// Comparing each with each would take hours.
    #[test]
    fn large_sets_take_no_time_that_grows_with_the_square() {
        let numbers = |from: i32| array_of(&(from..from + 200_000).map(Owned::Int32).collect::<Vec<_>>());
        let old = doc! { "a": numbers(0) };
        let added = try_update(&old, doc! { "$addToSet": { "a": { "$each": numbers(100_000) } } }, None);
        let length = |doc: &Doc| doc.get("a").unwrap().as_array().unwrap().len();
        assert_eq!(length(&added.unwrap().doc), 300_000);
        let pulled = try_update(&old, doc! { "$pullAll": { "a": numbers(100_000) } }, None);
        assert_eq!(length(&pulled.unwrap().doc), 100_000);
    }
}
