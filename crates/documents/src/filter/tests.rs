use super::*;
use crate::error::Error;
use crate::{Decimal128, Doc, ObjectId, Timestamp, array, doc};

fn parse(query: &Doc) -> Result<Filter> {
    Filter::parse(query.raw(), &FilterOptions::default())
}

#[track_caller]
fn check(query: Doc, doc: Doc, expected: bool) {
    let filter = parse(&query).unwrap_or_else(|error| panic!("{query:?}: {error}"));
    assert_eq!(filter.matches(doc.raw()), Ok(expected), "{query:?} on {doc:?}");
}

#[track_caller]
fn check_all(query: Doc, docs: &[(Doc, bool)]) {
    docs.iter().for_each(|(doc, expected)| check(query.clone(), doc.clone(), *expected));
}

fn regex(pattern: &str, options: &str) -> Owned {
    Owned::Regex { pattern: pattern.into(), options: options.into() }
}

#[test]
fn equality() {
    check_all(
        doc! { "a": 1 },
        &[
            (doc! { "a": 1 }, true),
            (doc! { "a": 1i64 }, true),
            (doc! { "a": 1.0 }, true),
            (doc! { "a": Decimal128::from(1) }, true),
            (doc! { "a": "1" }, false),
            (doc! { "a": [3, 1] }, true),
            (doc! { "a": [[1]] }, false),
            (doc! {}, false),
        ],
    );
    check_all(
        doc! { "a": { "b": 1, "c": 2 } },
        &[
            (doc! { "a": { "b": 1.0, "c": 2 } }, true),
            (doc! { "a": { "c": 2, "b": 1 } }, false),
            (doc! { "a": { "b": 1, "c": 2, "d": 3 } }, false),
            (doc! { "a": [{ "b": 1, "c": 2 }] }, true),
        ],
    );
    check_all(
        doc! { "a": [1, 2] },
        &[
            (doc! { "a": [1, 2] }, true),
            (doc! { "a": [2, 1] }, false),
            (doc! { "a": [[1, 2], 3] }, true),
            (doc! { "a": [1, 2, 3] }, false),
        ],
    );
    check_all(
        doc! { "a": [] },
        &[(doc! { "a": [] }, true), (doc! { "a": [[]] }, true), (doc! { "a": [1] }, false), (doc! {}, false)],
    );
    check_all(doc! { "a": {} }, &[(doc! { "a": {} }, true), (doc! { "a": { "b": 1 } }, false)]);
    check_all(
        doc! { "a.b": 5 },
        &[
            (doc! { "a": { "b": 5 } }, true),
            (doc! { "a": [{ "b": 4 }, { "b": 5 }] }, true),
            (doc! { "a": [{ "b": [5] }] }, true),
            (doc! { "a": 5 }, false),
        ],
    );
    check(doc! { "a.1": 5 }, doc! { "a": [4, 5] }, true);
    check(doc! { "a": { "$eq": regex("x", "") } }, doc! { "a": "x" }, false);
    check(doc! { "a": { "$eq": regex("x", "") } }, doc! { "a": regex("x", "") }, true);
    check(doc! { "a": { "$ref": "c", "$id": 1 } }, doc! { "a": { "$ref": "c", "$id": 1 } }, true);
    check(doc! { "a": f64::NAN }, doc! { "a": f64::NAN }, true);
}

#[test]
fn null_is_missing_or_undefined() {
    check_all(
        doc! { "a": null },
        &[
            (doc! { "a": null }, true),
            (doc! {}, true),
            (doc! { "a": Value::Undefined }, true),
            (doc! { "a": [null] }, true),
            (doc! { "a": [] }, false),
            (doc! { "a": 0 }, false),
        ],
    );
    check_all(
        doc! { "a.b": null },
        &[
            (doc! { "a": 4 }, true),
            (doc! { "a": {} }, true),
            (doc! { "a": [] }, false),
            (doc! { "a": [1, 2] }, false),
            (doc! { "a": [{ "b": 1 }, {}] }, true),
            (doc! { "a": [{ "b": 1 }] }, false),
        ],
    );
    check(doc! { "a": { "$ne": null } }, doc! {}, false);
    check(doc! { "a": { "$gte": null } }, doc! {}, true);
    check(doc! { "a": { "$gt": null } }, doc! {}, false);
    check(doc! { "a": { "$in": [null, 3] } }, doc! {}, true);
    check(doc! { "a": { "$nin": [null] } }, doc! {}, false);
    check(doc! { "a": { "$in": [null] } }, doc! { "a": Value::Undefined }, true);
}

#[test]
fn ranges_stay_within_a_type() {
    check_all(
        doc! { "a": { "$gt": 5 } },
        &[
            (doc! { "a": 6 }, true),
            (doc! { "a": 5.5 }, true),
            (doc! { "a": 5 }, false),
            (doc! { "a": "9" }, false),
            (doc! { "a": [1, 9] }, true),
            (doc! { "a": f64::NAN }, false),
            (doc! {}, false),
        ],
    );
    check(doc! { "a": { "$gt": 9007199254740992i64 } }, doc! { "a": 9007199254740993i64 }, true);
    check(doc! { "a": { "$lt": 5 } }, doc! { "a": f64::NAN }, false);
    check(doc! { "a": { "$lte": f64::NAN } }, doc! { "a": f64::NAN }, true);
    check(doc! { "a": { "$gte": "b" } }, doc! { "a": "c" }, true);
    check(doc! { "a": { "$gt": 1, "$lt": 5 } }, doc! { "a": [0, 9] }, true);
    check(doc! { "a": { "$gt": [1] } }, doc! { "a": [2] }, true);
    check(doc! { "a": { "$lt": Value::MaxKey } }, doc! {}, true);
    check(doc! { "a": { "$gt": Value::MinKey } }, doc! { "a": 1 }, true);
    check(
        doc! { "a": { "$gt": Timestamp { time: 1, increment: 0 } } },
        doc! { "a": Timestamp { time: 1, increment: 1 } },
        true,
    );
    check(doc! { "a": { "$lt": true } }, doc! { "a": false }, true);
    check(doc! { "a": { "$gt": { "b": 1 } } }, doc! { "a": { "b": 2 } }, true);
}

#[test]
fn negations() {
    check_all(
        doc! { "a": { "$ne": 1 } },
        &[
            (doc! { "a": 2 }, true),
            (doc! {}, true),
            (doc! { "a": [1, 2] }, false),
            (doc! { "a": 1.0 }, false),
        ],
    );
    check_all(
        doc! { "a": { "$not": { "$gt": 1, "$lt": 5 } } },
        &[(doc! { "a": 3 }, false), (doc! { "a": 7 }, true), (doc! {}, true)],
    );
    check(doc! { "a": { "$not": regex("^x", "") } }, doc! { "a": "y" }, true);
    check(doc! { "a": { "$not": { "$not": { "$eq": 1 } } } }, doc! { "a": 1 }, true);
    check(doc! { "$nor": [{ "a": 1 }, { "b": 2 }] }, doc! { "a": 2, "b": 2 }, false);
    check(doc! { "$nor": [{ "a": 1 }, { "b": 2 }] }, doc! {}, true);
}

#[test]
fn combinations() {
    check(doc! {}, doc! { "x": 1 }, true);
    check(doc! { "$or": [{ "a": 1 }, { "b": 1 }], "c": 1 }, doc! { "b": 1, "c": 1 }, true);
    check(doc! { "$or": [{ "a": 1 }, { "b": 1 }], "c": 1 }, doc! { "b": 1, "c": 2 }, false);
    check(doc! { "$and": [{ "a": 1 }, { "a": 2 }] }, doc! { "a": [1, 2] }, true);
    check(doc! { "$comment": "x", "a": 1 }, doc! { "a": 1 }, true);
    check(doc! { "$alwaysTrue": 1 }, doc! {}, true);
    check(doc! { "$alwaysFalse": 1 }, doc! {}, false);
    check(doc! { "$sampleRate": 1.0 }, doc! {}, true);
    check(doc! { "$sampleRate": 0 }, doc! {}, false);
}

#[test]
fn choices() {
    let many = doc! { "a": { "$in": [1, 2i64, 3.0, "x", null, true, regex("^y", ""), [7]] } };
    check_all(
        many,
        &[
            (doc! { "a": 2.0 }, true),
            (doc! { "a": "x" }, true),
            (doc! { "a": "yes" }, true),
            (doc! { "a": "no" }, false),
            (doc! { "a": [7] }, true),
            (doc! { "a": 7 }, false),
            (doc! { "a": ["no", 3] }, true),
            (doc! {}, true),
            (doc! { "a": false }, false),
        ],
    );
    check(doc! { "a": { "$in": [] } }, doc! { "a": 1 }, false);
    check(doc! { "a": { "$nin": [] } }, doc! {}, true);
    check(doc! { "a": { "$nin": [regex("^x", "")] } }, doc! { "a": "xy" }, false);
}

#[test]
fn types_and_existence() {
    check_all(
        doc! { "a": { "$exists": true } },
        &[(doc! { "a": null }, true), (doc! { "a": [] }, true), (doc! { "A": 1 }, false)],
    );
    check(doc! { "a": { "$exists": 0 } }, doc! {}, true);
    check(doc! { "a.b": { "$exists": false } }, doc! { "a": [] }, true);
    check_all(
        doc! { "a": { "$type": "number" } },
        &[
            (doc! { "a": 1 }, true),
            (doc! { "a": 1.5 }, true),
            (doc! { "a": ["x", 1] }, true),
            (doc! { "a": "x" }, false),
            (doc! {}, false),
        ],
    );
    check(doc! { "a": { "$type": [2, "bool"] } }, doc! { "a": true }, true);
    check(doc! { "a": { "$type": "array" } }, doc! { "a": [1] }, true);
    check(doc! { "a": { "$type": -1 } }, doc! { "a": Value::MinKey }, true);
    check(doc! { "a": { "$type": 7.0 } }, doc! { "a": ObjectId([0; 12]) }, true);
}

#[test]
fn regular_expressions() {
    check(doc! { "a": regex("^B", "i") }, doc! { "a": "bcd" }, true);
    check(doc! { "a": { "$regex": "^b", "$options": "i" } }, doc! { "a": ["x", "Bcd"] }, true);
    check(doc! { "a": { "$options": "i", "$regex": "^b" } }, doc! { "a": "B" }, true);
    check(doc! { "a": { "$regex": regex("b", ""), "$options": "i" } }, doc! { "a": "B" }, true);
    check(doc! { "a": regex("b", "i") }, doc! { "a": regex("b", "i") }, true);
    check(doc! { "a": regex("b", "i") }, doc! { "a": regex("b", "") }, false);
    check(doc! { "a": regex("1", "") }, doc! { "a": 1 }, false);
    check(doc! { "a": regex("s", "") }, doc! { "a": Value::Symbol("s") }, true);
}

#[test]
fn arrays() {
    check(doc! { "a": { "$size": 2 } }, doc! { "a": [1, 2] }, true);
    check(doc! { "a": { "$size": 2.0 } }, doc! { "a": [[1, 2]] }, false);
    check(doc! { "a": { "$size": 0 } }, doc! {}, false);
    check_all(
        doc! { "a": { "$all": [1, 2] } },
        &[(doc! { "a": [2, 1, 3] }, true), (doc! { "a": [1] }, false), (doc! { "a": 1 }, false)],
    );
    check(doc! { "a": { "$all": [1] } }, doc! { "a": 1 }, true);
    check(doc! { "a": { "$all": [] } }, doc! { "a": [] }, false);
    check(doc! { "a": { "$all": [[1, 2]] } }, doc! { "a": [1, 2] }, true);
    check(doc! { "a": { "$all": [regex("^x", ""), "b"] } }, doc! { "a": ["xy", "b"] }, true);
    check(
        doc! { "a": { "$all": [{ "$elemMatch": { "b": 1 } }, { "$elemMatch": { "b": 2 } }] } },
        doc! { "a": [{ "b": 1 }, { "b": 2 }] },
        true,
    );
    check_all(
        doc! { "a": { "$elemMatch": { "$gt": 1, "$lt": 5 } } },
        &[
            (doc! { "a": [0, 9] }, false),
            (doc! { "a": [0, 3] }, true),
            (doc! { "a": 3 }, false),
            (doc! { "a": [[3]] }, false),
        ],
    );
    check_all(
        doc! { "a": { "$elemMatch": { "b": 1, "c": { "$gt": 2 } } } },
        &[
            (doc! { "a": [{ "b": 1, "c": 1 }, { "b": 2, "c": 3 }] }, false),
            (doc! { "a": [{ "b": 1, "c": 3 }] }, true),
            (doc! { "a": { "b": 1, "c": 3 } }, false),
        ],
    );
    check(
        doc! { "a": { "$elemMatch": { "$or": [{ "b": 1 }, { "b": 2 }] } } },
        doc! { "a": [{ "b": 2 }] },
        true,
    );
    check(doc! { "a": { "$elemMatch": { "0": 5 } } }, doc! { "a": [[5]] }, true);
    check(doc! { "a": { "$elemMatch": { "$not": { "$gt": 3 } } } }, doc! { "a": [4, 2] }, true);
    check(doc! { "a": { "$elemMatch": { "$elemMatch": { "$eq": 1 } } } }, doc! { "a": [[1]] }, true);
    check(doc! { "a.b": { "$elemMatch": { "c": 1 } } }, doc! { "a": [{ "b": [{ "c": 1 }] }] }, true);
    check(doc! { "a": { "$elemMatch": {} } }, doc! { "a": [1, {}] }, true);
}

#[test]
fn numbers() {
    check_all(
        doc! { "a": { "$mod": [4, 1] } },
        &[
            (doc! { "a": 5 }, true),
            (doc! { "a": 5.9 }, true),
            (doc! { "a": Decimal128::from(9) }, true),
            (doc! { "a": -3 }, false),
            (doc! { "a": "5" }, false),
            (doc! { "a": f64::INFINITY }, false),
        ],
    );
    check(doc! { "a": { "$mod": [4, -3] } }, doc! { "a": -3 }, true);
    check(doc! { "a": { "$mod": [-1, 0] } }, doc! { "a": i64::MIN }, true);
    check(doc! { "a": { "$bitsAllSet": [0, 2] } }, doc! { "a": 5 }, true);
    check(doc! { "a": { "$bitsAllSet": 6 } }, doc! { "a": 5 }, false);
    check(doc! { "a": { "$bitsAnySet": 6 } }, doc! { "a": 5.0 }, true);
    check(doc! { "a": { "$bitsAllClear": [1, 200] } }, doc! { "a": 5 }, true);
    check(doc! { "a": { "$bitsAnyClear": 7 } }, doc! { "a": 5 }, true);
    check(doc! { "a": { "$bitsAllSet": [200] } }, doc! { "a": -1 }, true);
    check(doc! { "a": { "$bitsAllSet": 1 } }, doc! { "a": 1.5 }, false);
    let bytes = Owned::Binary { subtype: 0, bytes: vec![0, 1].into() };
    check(doc! { "a": { "$bitsAllSet": [8] } }, doc! { "a": &bytes }, true);
    check(doc! { "a": { "$bitsAllSet": &bytes } }, doc! { "a": 256 }, true);
}

#[test]
fn schemas() {
    let schema = doc! { "$jsonSchema": {
        "bsonType": "object",
        "required": ["name"],
        "properties": {
            "name": { "bsonType": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-zé]+$" },
            "age": { "bsonType": ["int", "long"], "minimum": 0, "maximum": 150, "exclusiveMaximum": true },
            "tags": { "type": "array", "items": { "enum": ["a", "b"] }, "minItems": 1, "uniqueItems": true },
            "_id": {},
            "n": { "multipleOf": 0.5 }
        },
        "additionalProperties": false
    } };
    check_all(
        schema,
        &[
            (doc! { "name": "anna", "age": 3 }, true),
            (doc! { "age": 3 }, false),
            (doc! { "name": "a" }, false),
            (doc! { "name": "éé" }, true),
            (doc! { "name": "annas" }, false),
            (doc! { "name": "ANN" }, false),
            (doc! { "name": "ann", "age": 150 }, false),
            (doc! { "name": "ann", "age": 1.5 }, false),
            (doc! { "name": "ann", "tags": ["a"] }, true),
            (doc! { "name": "ann", "tags": ["a", "a"] }, false),
            (doc! { "name": "ann", "tags": ["c"] }, false),
            (doc! { "name": "ann", "tags": [] }, false),
            (doc! { "name": "ann", "other": 1 }, false),
            (doc! { "name": "ann", "n": 2.5 }, true),
            (doc! { "name": "ann", "n": 2.4 }, false),
        ],
    );
    let logic = doc! { "$jsonSchema": {
        "oneOf": [{ "required": ["a"] }, { "required": ["b"] }],
        "not": { "properties": { "c": { "enum": [1] } }, "required": ["c"] },
        "dependencies": { "d": ["e"] }
    } };
    check_all(
        logic,
        &[
            (doc! { "a": 1 }, true),
            (doc! { "a": 1, "b": 1 }, false),
            (doc! { "a": 1, "c": 1.0 }, false),
            (doc! { "a": 1, "d": 1 }, false),
            (doc! { "a": 1, "d": 1, "e": 1 }, true),
        ],
    );
    check(doc! { "$nor": [{ "$jsonSchema": { "required": ["a"] } }] }, doc! {}, true);
    for (schema, number) in [
        (doc! { "nonsense": 1 }, 9),
        (doc! { "required": [] }, 9),
        (doc! { "properties": 1 }, 14),
        (doc! { "bsonType": "nonsense" }, 2),
        (doc! { "type": "integer" }, 9),
        (doc! { "minLength": -1 }, 9),
        (doc! { "exclusiveMinimum": true }, 9),
        (doc! { "$ref": "x" }, 9),
    ] {
        assert_eq!(parse(&doc! { "$jsonSchema": &schema }).unwrap_err().code.number, number, "{schema:?}");
    }
}

#[test]
fn refused_queries() {
    let cases = [
        (doc! { "a": { "$nonsense": 1 } }, 2, "unknown operator: $nonsense"),
        (doc! { "a": { "$gt": 1, "b": 1 } }, 2, "unknown operator: b"),
        (doc! { "$nonsense": 1 }, 2, "unknown top level operator: $nonsense. If"),
        (doc! { "$and": [] }, 2, "$and/$or/$nor must be a nonempty array"),
        (doc! { "$or": 1 }, 2, "$or argument must be an array"),
        (doc! { "$nor": [1] }, 2, "$or/$and/$nor entries need to be full objects"),
        (doc! { "a": { "$in": 1 } }, 2, "$in needs an array"),
        (doc! { "a": { "$nin": 1 } }, 2, "$nin needs an array"),
        (doc! { "a": { "$in": [{ "$gt": 1 }] } }, 2, "cannot nest $ under $in"),
        (doc! { "a": { "$not": 1 } }, 2, "$not needs a regex or a document"),
        (doc! { "a": { "$not": {} } }, 2, "$not cannot be empty"),
        (doc! { "a": { "$size": 1.5 } }, 2, "Failed to parse $size. Expected an integer in: $size: 1.5"),
        (doc! { "a": { "$size": -1 } }, 2, "Failed to parse $size. Expected a non-negative number"),
        (doc! { "a": { "$size": "x" } }, 2, "Failed to parse $size. Expected a number in: $size: \"x\""),
        (doc! { "a": { "$mod": [0, 1] } }, 2, "divisor cannot be 0"),
        (doc! { "a": { "$mod": [1] } }, 2, "malformed mod, not enough elements"),
        (doc! { "a": { "$mod": [1, 2, 3] } }, 2, "malformed mod, too many elements"),
        (doc! { "a": { "$mod": 1 } }, 2, "malformed mod, needs to be an array"),
        (doc! { "a": { "$type": "nonsense" } }, 2, "Unknown type name alias: nonsense"),
        (doc! { "a": { "$type": 99 } }, 2, "Invalid numerical type code: 99"),
        (doc! { "a": { "$type": [] } }, 9, " $type must match at least one type"),
        (doc! { "a": { "$type": true } }, 14, "type must be represented as a number or a string"),
        (doc! { "a": { "$regex": 1 } }, 2, "$regex has to be a string"),
        (doc! { "a": { "$options": "i" } }, 2, "$options needs a $regex"),
        (doc! { "a": { "$regex": "(" } }, 51091, "Regular expression is invalid"),
        (doc! { "a": { "$regex": "a", "$options": "q" } }, 51108, "invalid flag in regex options: q"),
        (doc! { "a": { "$elemMatch": 1 } }, 2, "$elemMatch needs an Object"),
        (doc! { "a": { "$all": 1 } }, 2, "$all needs an array"),
        (doc! { "a": { "$all": [{ "$gt": 1 }] } }, 2, "no $ expressions in $all"),
        (doc! { "a": { "$all": [{ "$elemMatch": {} }, 1] } }, 2, "$all/$elemMatch has to be consistent"),
        (doc! { "a": { "$ne": regex("a", "") } }, 2, "Can't have regex as arg to $ne."),
        (doc! { "a": { "$gt": regex("a", "") } }, 2, "Can't have RegEx as arg to predicate"),
        (doc! { "a": { "$gt": Value::Undefined } }, 2, "cannot compare to undefined"),
        (doc! { "a": { "$bitsAllSet": -1 } }, 9, "Expected a non-negative number"),
        (doc! { "a": { "$bitsAllSet": "x" } }, 2, "$bitsAllSet takes an Array, a number, or a BinData"),
        (doc! { "a": { "$bitsAllSet": [1i64 << 40] } }, 2, "bit positions cannot be above"),
        (doc! { "$where": "true" }, 115, "$where is not supported"),
        (doc! { "$text": { "$search": "x" } }, 115, "$text is not supported"),
        (doc! { "a": { "$near": [1, 2] } }, 115, "$near is not supported"),
        (doc! { "a": { "$geoWithin": {} } }, 115, "$geoWithin is not supported"),
        (doc! { "$expr": true }, 115, "$expr is not supported"),
        (doc! { "a": { "$elemMatch": { "$expr": true } } }, 2, "$expr can only be applied to the top-level"),
        (doc! { "$sampleRate": 2 }, 2, "numeric argument to $sampleRate must be in [0, 1]"),
    ];
    for (query, number, message) in cases {
        let error = parse(&query).expect_err(&format!("{query:?}"));
        assert_eq!(error.code.number, number, "{query:?}: {error}");
        assert!(error.message.starts_with(message), "{query:?}: {error}");
    }
}

#[test]
fn positions_of_matching_elements() {
    let cases = [
        (doc! { "a": 5 }, doc! { "a": [4, 5] }, Some(1)),
        (doc! { "a.b": 5 }, doc! { "a": [{ "b": 1 }, { "b": [4, 5] }] }, Some(1)),
        (doc! { "a": { "$elemMatch": { "b": 2 } } }, doc! { "a": [{ "b": 1 }, { "b": 2 }] }, Some(1)),
        (doc! { "a": { "$elemMatch": { "$gt": 4 } } }, doc! { "a": [1, 2, 5] }, Some(2)),
        (doc! { "x": 1, "a": { "$gte": 2 } }, doc! { "x": 1, "a": [1, 2] }, Some(1)),
        (doc! { "a": 5 }, doc! { "a": 5 }, None),
        (doc! { "a": { "$ne": 5 } }, doc! { "a": [1] }, None),
        (doc! { "$or": [{ "z": 1 }, { "a": 2 }] }, doc! { "a": [1, 2] }, Some(1)),
    ];
    for (query, doc, expected) in cases {
        let mut position = Some(99);
        assert_eq!(parse(&query).unwrap().matches_positional(doc.raw(), &mut position), Ok(true));
        assert_eq!(position, expected, "{query:?} on {doc:?}");
    }
}

#[test]
fn equalities_for_upserts() {
    let query = doc! {
        "a": 1, "b.c": { "$eq": "x" }, "d": { "$in": [2] }, "e": { "$in": [1, 2] }, "f": { "$all": [3] },
        "$and": [{ "g": 4 }, { "h": { "$gt": 1 } }], "$or": [{ "i": 5 }], "j": regex("x", ""), "k": null
    };
    let filter = parse(&query).unwrap();
    let names: Vec<_> = filter.equalities().iter().map(|(path, _)| *path).collect();
    assert_eq!(names, ["a", "b.c", "d", "f", "g", "i", "k"]);
    assert!(parse(&doc! { "$or": [{ "a": 1 }, { "b": 1 }] }).unwrap().equalities().is_empty());
}

#[test]
fn expressions_are_somebody_elses() {
    #[derive(Debug)]
    struct Fails;
    impl ExprPredicate for Fails {
        fn holds(&self, _: RawDoc<'_>) -> Result<bool> {
            Err(Error::bad_value("no"))
        }
    }
    let parse = |_: Value<'_>| Ok(Box::new(Fails) as Box<dyn ExprPredicate>);
    let options = FilterOptions { expr: Some(&parse), ..FilterOptions::default() };
    let filter = |query: Doc| Filter::parse(query.raw(), &options).unwrap();
    assert!(filter(doc! { "$nor": [{ "$expr": 1 }] }).matches(RawDoc::empty()).is_err());
    assert_eq!(filter(doc! { "a": 1, "$expr": 1 }).matches(RawDoc::empty()), Ok(false));
}

#[test]
fn conditions_on_values() {
    let cases = [
        (Owned::Int32(1), Owned::Double(1.0), true),
        (Owned::Document(doc! { "$gte": 6 }), Owned::Int32(7), true),
        (Owned::Document(doc! { "$gte": 6 }), array![1, 8], true),
        (Owned::Document(doc! { "$in": ["a", "b"] }), Owned::String("b".into()), true),
        (Owned::Document(doc! { "b": 1 }), Owned::Document(doc! { "a": 2, "b": 1 }), true),
        (Owned::Document(doc! { "b": 1 }), Owned::Int32(1), false),
        (Owned::Document(doc! { "$not": { "$gt": 3 } }), array![1, 8], false),
        (regex("^x", ""), Owned::String("xy".into()), true),
        (array![1], array![1], true),
        (Owned::Null, Owned::Null, true),
    ];
    for (condition, value, expected) in cases {
        let filter = ValueFilter::parse(condition.value(), &FilterOptions::default()).unwrap();
        assert_eq!(filter.matches(value.value()), Ok(expected), "{condition:?} on {value:?}");
    }
}

#[cfg(feature = "collation")]
#[test]
fn collations() {
    let collation = Collation::parse(doc! { "locale": "en", "strength": 1 }.raw()).unwrap();
    let options = FilterOptions { collation, ..FilterOptions::default() };
    for (query, expected) in [
        (doc! { "a": "ETE" }, true),
        (doc! { "a": { "$in": ["x", "ETE"] } }, true),
        (doc! { "a": { "$gt": "ETE" } }, false),
        (doc! { "a": { "$ne": "ete" } }, false),
        (doc! { "b": { "c": "ÉTÉ" } }, true),
        (doc! { "a": regex("ETE", "") }, false),
    ] {
        let filter = Filter::parse(query.raw(), &options).unwrap();
        assert_eq!(filter.matches(doc! { "a": "été", "b": { "c": "ete" } }.raw()), Ok(expected), "{query:?}");
    }
}

mod properties {
    use super::*;
    use crate::arbitrary::{document, value};
    use crate::compare::{equal, type_order};
    use proptest::prelude::*;

    /// Equality with a top-level field, as the manual words it.
    fn naive_equal(doc: &Doc, name: &str, wanted: Value<'_>) -> bool {
        let same = |value: Value<'_>| {
            let null = |value| matches!(value, Value::Null | Value::Undefined);
            equal(value, wanted) || (null(value) && null(wanted))
        };
        match doc.get(name) {
            None => wanted == Value::Null,
            Some(Value::Array(array)) => array.values().any(same) || same(Value::Array(array)),
            Some(value) => same(value),
        }
    }

    proptest! {
        #[test]
        fn equality_and_its_negation(doc in document(), wanted in value()) {
            prop_assume!(!matches!(wanted, Owned::Undefined | Owned::Regex { .. }));
            let ask = |operator: &str, wanted: &Owned| {
                let mut query = crate::DocBuilder::new();
                query.start_document("a").append(operator, wanted).end();
                parse(&query.finish()).unwrap().matches(doc.raw()).unwrap()
            };
            let expected = naive_equal(&doc, "a", wanted.value());
            prop_assert_eq!(ask("$eq", &wanted), expected);
            prop_assert_eq!(ask("$ne", &wanted), !expected);
            let mut list = crate::DocBuilder::new();
            list.push(&wanted).push("nobody has this").push(1234567);
            prop_assert_eq!(ask("$in", &Owned::Array(list.finish())), expected);
            if let Some(value) = doc.get("a").filter(|value| value.as_array().is_none()) {
                let comparable = type_order(value.kind()) == type_order(wanted.value().kind());
                let less = ask("$lt", &wanted);
                prop_assert!(!less || comparable || wanted == Owned::MaxKey);
                prop_assert_eq!(ask("$lte", &wanted), less || expected);
                prop_assert_eq!(ask("$gte", &wanted), ask("$gt", &wanted) || expected);
            }
        }

        #[test]
        fn any_document_is_a_query_or_refused(query in document(), doc in document()) {
            if let Ok(filter) = parse(&query) {
                let mut position = None;
                prop_assert_eq!(filter.matches_positional(doc.raw(), &mut position), filter.matches(doc.raw()));
            }
        }
    }
}
