//! What pipelines make of a few documents, by example.

use super::{Docs, Environment, Options, Pipeline, Sink, Tables, WhenMatched, WhenNotMatched};
use crate::expr::Variables;
use crate::{Doc, Owned, RawDoc, Result, Scanned, Timestamp, Value, array, doc};
use std::collections::HashMap;
use std::sync::Arc;

/// Collections of a test.
#[derive(Default)]
struct Collections(HashMap<String, Vec<Doc>>);

impl Tables for Collections {
    fn scan(&self, _: Option<&str>, collection: &str) -> Result<Docs> {
        Ok(super::stream(self.0.get(collection).cloned().unwrap_or_default()))
    }
}

/// The same collections, as if they had an index for everything.
struct Indexed(Collections);

impl Tables for Indexed {
    fn scan(&self, db: Option<&str>, collection: &str) -> Result<Docs> {
        self.0.scan(db, collection)
    }

    fn has_index(&self, _: Option<&str>, _: &str, _: &str) -> bool {
        true
    }
}

fn collections() -> Collections {
    let people = vec![
        doc! { "_id": 1, "name": "ann", "boss": null, "tags": ["a", "b"] },
        doc! { "_id": 2, "name": "bob", "boss": "ann", "tags": ["b"] },
        doc! { "_id": 3, "name": "cat", "boss": "bob" },
    ];
    Collections(HashMap::from([("people".to_string(), people)]))
}

fn environment() -> Environment {
    Environment::new(1_000, Timestamp { time: 1, increment: 1 }, Variables::default().values())
        .with_tables(Arc::new(collections()))
}

fn try_run_in(stages: &Owned, docs: &[Doc], environment: Environment) -> Result<Vec<Doc>> {
    let pipeline = Pipeline::parse(stages.value().as_array().unwrap(), &Options::default())?;
    pipeline.run(super::stream(docs.to_vec()), &Arc::new(environment))?.collect()
}

fn try_run(stages: &Owned, docs: &[Doc]) -> Result<Vec<Doc>> {
    try_run_in(stages, docs, environment())
}

fn check(stages: Owned, docs: &[Doc], expected: &[Doc]) {
    let results = try_run(&stages, docs).unwrap_or_else(|error| panic!("{stages:?}: {error}"));
    assert_eq!(results, expected, "{stages:?}");
}

fn check_fails(stages: Owned, code: i32) {
    let error = try_run(&stages, &numbers(3)).expect_err(&format!("{stages:?}"));
    assert_eq!(error.code.number, code, "{stages:?}: {error}");
}

fn numbers(count: i32) -> Vec<Doc> {
    (0..count).map(|n| doc! { "_id": n, "n": n, "even": n % 2 == 0 }).collect()
}

#[test]
fn streaming_stages() {
    let docs = numbers(5);
    check(array![{ "$match": { "n": { "$gte": 3 } } }], &docs, &docs[3..]);
    check(array![{ "$match": { "$expr": { "$eq": ["$n", { "$add": [1, 1] }] } } }], &docs, &docs[2..3]);
    check(array![{ "$skip": 1 }, { "$limit": 2.0 }], &docs, &docs[1..3]);
    check(array![{ "$count": "c" }], &docs, &[doc! { "c": 5 }]);
    check(array![{ "$count": "c" }], &[], &[]);
    check(array![{ "$sort": { "n": -1 } }, { "$limit": 2 }], &docs, &[docs[4].clone(), docs[3].clone()]);
    check(
        array![{ "$sort": { "even": 1, "n": -1 } }, { "$skip": 3 }],
        &docs,
        &[docs[2].clone(), docs[0].clone()],
    );
    assert_eq!(try_run(&array![{ "$sample": { "size": 3 } }], &docs).unwrap().len(), 3);
    assert_eq!(try_run(&array![{ "$sample": { "size": 9 } }], &docs).unwrap().len(), 5);
}

#[test]
fn limited_sorts_agree_with_full_ones() {
    let docs: Vec<Doc> = (0..1000).map(|n| doc! { "n": (n * 7919) % 1009 }).collect();
    let mut sorted = try_run(&array![{ "$sort": { "n": 1 } }], &docs).unwrap();
    sorted.truncate(5);
    check(array![{ "$sort": { "n": 1 } }, { "$limit": 5 }], &docs, &sorted);
}

#[test]
fn project() {
    let docs = [doc! { "_id": 1, "a": 1, "b": { "c": 2, "d": 3 }, "e": [{ "f": 1, "g": 2 }, 7] }];
    let project = |spec: Doc, expected: Doc| check(array![{ "$project": spec }], &docs, &[expected]);
    project(doc! { "a": 1 }, doc! { "_id": 1, "a": 1 });
    project(doc! { "_id": 0, "b.c": true }, doc! { "b": { "c": 2 } });
    project(doc! { "b": { "d": 1 }, "e.f": 1 }, doc! { "_id": 1, "b": { "d": 3 }, "e": [{ "f": 1 }] });
    project(doc! { "b": 0, "e": 0 }, doc! { "_id": 1, "a": 1 });
    project(doc! { "_id": 0, "e.f": 0, "b.d": 0 }, doc! { "a": 1, "b": { "c": 2 }, "e": [{ "g": 2 }, 7] });
    project(doc! { "x": "$b.c", "a": 1 }, doc! { "_id": 1, "a": 1, "x": 2 });
    project(doc! { "_id": "$a", "x": { "y": "$a" } }, doc! { "_id": 1, "x": { "y": 1 } });
    project(doc! { "e.n": "$a", "_id": 0 }, doc! { "e": [{ "n": 1 }, { "n": 1 }] });
    project(doc! { "x": "$nope", "y": { "$literal": 1 } }, doc! { "_id": 1, "y": 1 });
    project(doc! { "_id": 1 }, doc! { "_id": 1 });
    check_fails(array![{ "$project": { "a": 1, "b": 0 } }], 31254);
    check_fails(array![{ "$project": { "a": 0, "b": 1 } }], 31253);
    check_fails(array![{ "$project": { "a": 0, "b": "$x" } }], 31253);
    check_fails(array![{ "$project": {} }], 51272);
    check_fails(array![{ "$project": { "a": {} } }], 51270);
    check_fails(array![{ "$project": { "a": 1, "a.b": 1 } }], 31249);
    check_fails(array![{ "$project": { "a.b": 1, "a": 1 } }], 31250);
}

#[test]
fn add_fields_and_unset() {
    let docs = [doc! { "_id": 1, "a": 1, "b": { "c": 2 }, "e": [{ "f": 1 }, 7] }];
    let set = |spec: Doc, expected: Doc| {
        check(array![{ "$addFields": &spec }], &docs, std::slice::from_ref(&expected));
        check(array![{ "$set": spec }], &docs, &[expected]);
    };
    set(
        doc! { "x": { "$add": ["$a", 1] } },
        doc! { "_id": 1, "a": 1, "b": { "c": 2 }, "e": [{ "f": 1 }, 7], "x": 2 },
    );
    set(
        doc! { "a": "$b.c", "b.d": 5 },
        doc! { "_id": 1, "a": 2, "b": { "c": 2, "d": 5 }, "e": [{ "f": 1 }, 7] },
    );
    set(doc! { "a": "$nope", "e": "$$REMOVE" }, doc! { "_id": 1, "b": { "c": 2 } });
    set(
        doc! { "a": { "q": 1 }, "e.f": 2 },
        doc! { "_id": 1, "a": { "q": 1 }, "b": { "c": 2 }, "e": [{ "f": 2 }, { "f": 2 }] },
    );
    set(
        doc! { "p.q": "$a" },
        doc! { "_id": 1, "a": 1, "b": { "c": 2 }, "e": [{ "f": 1 }, 7], "p": { "q": 1 } },
    );
    check(array![{ "$unset": ["a", "b.c", "e.f"] }], &docs, &[doc! { "_id": 1, "b": {}, "e": [{}, 7] }]);
    check(array![{ "$unset": "e" }, { "$unset": "b" }], &docs, &[doc! { "_id": 1, "a": 1 }]);
    check(array![{ "$replaceRoot": { "newRoot": "$b" } }], &docs, &[doc! { "c": 2 }]);
    check(array![{ "$replaceWith": { "x": "$a" } }], &docs, &[doc! { "x": 1 }]);
    check_fails(array![{ "$replaceWith": "$nope" }], 40228);
    check_fails(array![{ "$addFields": {} }], 40177);
    check_fails(array![{ "$unset": [] }], 31119);
}

#[test]
fn group() {
    let docs = numbers(5);
    check(
        array![{ "$group": {
            "_id": "$even", "sum": { "$sum": "$n" }, "count": { "$count": {} }, "avg": { "$avg": "$n" },
            "min": { "$min": "$n" }, "max": { "$max": "$n" }, "first": { "$first": "$n" }, "last": { "$last": "$n" },
            "all": { "$push": "$n" }, "set": { "$addToSet": "$even" }
        } }],
        &docs,
        &[
            doc! { "_id": true, "sum": 6, "count": 3, "avg": 2.0, "min": 0, "max": 4, "first": 0, "last": 4, "all": [0, 2, 4], "set": [true] },
            doc! { "_id": false, "sum": 4, "count": 2, "avg": 2.0, "min": 1, "max": 3, "first": 1, "last": 3, "all": [1, 3], "set": [false] },
        ],
    );
    check(
        array![{ "$group": {
            "_id": null,
            "f": { "$firstN": { "n": 2, "input": "$n" } }, "l": { "$lastN": { "n": 2, "input": "$n" } },
            "min": { "$minN": { "n": 2, "input": "$n" } }, "max": { "$maxN": { "n": 2, "input": "$n" } },
            "top": { "$top": { "sortBy": { "n": -1 }, "output": "$n" } },
            "tops": { "$topN": { "n": 2, "sortBy": { "even": 1, "n": 1 }, "output": ["$n"] } },
            "bottom": { "$bottom": { "sortBy": { "n": -1 }, "output": "$n" } },
            "bottoms": { "$bottomN": { "n": 2, "sortBy": { "n": 1 }, "output": "$n" } },
            "dev": { "$stdDevPop": "$n" }, "merged": { "$mergeObjects": { "x": "$n" } }
        } }],
        &docs,
        &[doc! {
            "_id": null, "f": [0, 1], "l": [3, 4], "min": [0, 1], "max": [4, 3], "top": 4, "tops": [[1], [3]],
            "bottom": 0, "bottoms": [3, 4], "dev": 2f64.sqrt(), "merged": { "x": 4 }
        }],
    );
    let mixed = [doc! { "k": 1 }, doc! { "k": 1.0 }, doc! { "k": null }, doc! {}];
    check(
        array![{ "$group": { "_id": "$k", "n": { "$sum": 1 }, "all": { "$push": "$k" } } }],
        &mixed,
        &[doc! { "_id": 1, "n": 2, "all": [1, 1.0] }, doc! { "_id": null, "n": 2, "all": [null] }],
    );
    check(
        array![{ "$group": { "_id": { "e": "$even", "x": "$x" } } }],
        &docs[..1],
        &[doc! { "_id": { "e": true } }],
    );
    check(
        array![{ "$sortByCount": "$even" }],
        &docs,
        &[doc! { "_id": true, "count": 3 }, doc! { "_id": false, "count": 2 }],
    );
    check(
        array![{ "$group": { "_id": 1, "c": { "$sum": 1 } } }, { "$project": { "c": 1, "_id": 0 } }],
        &docs,
        &[doc! { "c": 5 }],
    );
    check_fails(array![{ "$group": { "a": { "$sum": 1 } } }], 15955);
    check_fails(array![{ "$group": { "_id": 1, "a": 1 } }], 40234);
    check_fails(array![{ "$group": { "_id": 1, "a": { "$nope": 1 } } }], 15952);
    check_fails(array![{ "$group": { "_id": 1, "a": { "$sum": 1, "$avg": 1 } } }], 40238);
    check_fails(array![{ "$group": { "_id": 1, "a.b": { "$sum": 1 } } }], 40235);
    check_fails(array![{ "$group": { "_id": 1, "a": { "$accumulator": {} } } }], 115);
}

#[test]
fn buckets() {
    let docs = numbers(6);
    check(
        array![{ "$bucket": { "groupBy": "$n", "boundaries": [0, 2, 4], "default": "other" } }],
        &docs,
        &[doc! { "_id": 0, "count": 2 }, doc! { "_id": 2, "count": 2 }, doc! { "_id": "other", "count": 2 }],
    );
    check_fails(array![{ "$bucket": { "groupBy": "$n", "boundaries": [0, 1] } }], 40066);
    check_fails(array![{ "$bucket": { "groupBy": "$n", "boundaries": [0] } }], 40192);
    check_fails(array![{ "$bucket": { "groupBy": "$n", "boundaries": [1, 0] } }], 40194);
    check_fails(array![{ "$bucket": { "groupBy": "$n", "boundaries": [1, "x"] } }], 40193);
    check(
        array![{ "$bucketAuto": { "groupBy": "$n", "buckets": 2, "output": { "s": { "$sum": "$n" } } } }],
        &docs,
        &[doc! { "_id": { "min": 0, "max": 3 }, "s": 3 }, doc! { "_id": { "min": 3, "max": 5 }, "s": 12 }],
    );
    check(array![{ "$bucketAuto": { "groupBy": "$n", "buckets": 2 } }], &[], &[]);
}

#[test]
fn unwind() {
    let docs = [
        doc! { "_id": 1, "a": [1, 2] },
        doc! { "_id": 2, "a": [] },
        doc! { "_id": 3 },
        doc! { "_id": 4, "a": null },
        doc! { "_id": 5, "a": "x" },
    ];
    check(
        array![{ "$unwind": "$a" }],
        &docs,
        &[doc! { "_id": 1, "a": 1 }, doc! { "_id": 1, "a": 2 }, doc! { "_id": 5, "a": "x" }],
    );
    check(
        array![{ "$unwind": { "path": "$a", "includeArrayIndex": "i", "preserveNullAndEmptyArrays": true } }],
        &docs,
        &[
            doc! { "_id": 1, "a": 1, "i": 0i64 },
            doc! { "_id": 1, "a": 2, "i": 1i64 },
            doc! { "_id": 2, "i": null },
            doc! { "_id": 3, "i": null },
            doc! { "_id": 4, "a": null, "i": null },
            doc! { "_id": 5, "a": "x", "i": null },
        ],
    );
    check(
        array![{ "$unwind": "$a.b" }],
        &[doc! { "a": { "b": [1, 2], "c": 3 } }],
        &[doc! { "a": { "b": 1, "c": 3 } }, doc! { "a": { "b": 2, "c": 3 } }],
    );
    check_fails(array![{ "$unwind": "a" }], 28818);
    check_fails(array![{ "$unwind": {} }], 28812);
    check_fails(array![{ "$unwind": 1 }], 15981);
}

#[test]
fn lookup_by_equality() {
    let docs = [doc! { "who": "ann" }, doc! { "who": ["bob", "cat"] }, doc! {}];
    let stages = array![
        { "$lookup": { "from": "people", "localField": "who", "foreignField": "boss", "as": "team.found" } },
        { "$project": { "found": "$team.found.name" } }
    ];
    let expected = [doc! { "found": ["bob"] }, doc! { "found": ["cat"] }, doc! { "found": ["ann"] }];
    check(stages.clone(), &docs, &expected);
    let indexed = environment().with_tables(Arc::new(Indexed(collections())));
    assert_eq!(try_run_in(&stages, &docs, indexed).unwrap(), expected);
    let by_tag = array![
        { "$lookup": { "from": "people", "localField": "t", "foreignField": "tags", "as": "p" } },
        { "$project": { "found": "$p._id", "_id": 0 } }
    ];
    check(by_tag, &[doc! { "t": "b" }, doc! { "t": "z" }], &[doc! { "found": [1, 2] }, doc! { "found": [] }]);
}

#[test]
fn lookup_by_pipeline() {
    let docs = [doc! { "_id": 1, "min": 2 }, doc! { "_id": 2, "min": 3 }];
    check(
        array![
            { "$lookup": {
                "from": "people", "let": { "least": "$min" }, "as": "p",
                "pipeline": [{ "$match": { "$expr": { "$gte": ["$_id", "$$least"] } } }, { "$project": { "x": "$$least" } }]
            } }
        ],
        &docs,
        &[
            doc! { "_id": 1, "min": 2, "p": [{ "_id": 2, "x": 2 }, { "_id": 3, "x": 2 }] },
            doc! { "_id": 2, "min": 3, "p": [{ "_id": 3, "x": 3 }] },
        ],
    );
    check(
        array![
            { "$lookup": {
                "from": "people", "localField": "_id", "foreignField": "_id", "as": "p",
                "pipeline": [{ "$project": { "name": 1, "_id": 0 } }]
            } },
            { "$unset": "min" }
        ],
        &docs,
        &[doc! { "_id": 1, "p": [{ "name": "ann" }] }, doc! { "_id": 2, "p": [{ "name": "bob" }] }],
    );
    check(
        array![{ "$lookup": { "as": "d", "pipeline": [{ "$documents": [{ "a": 1 }] }] } }, { "$unset": "min" }],
        &docs,
        &[doc! { "_id": 1, "d": [{ "a": 1 }] }, doc! { "_id": 2, "d": [{ "a": 1 }] }],
    );
    let nested = array![{ "$lookup": {
        "from": "people", "let": { "a": "$_id" }, "as": "p", "pipeline": [
            { "$match": { "_id": 1 } },
            { "$lookup": { "from": "people", "let": { "b": "$_id" }, "as": "q", "pipeline": [
                { "$match": { "$expr": { "$eq": ["$_id", { "$add": ["$$a", "$$b"] }] } } }, { "$project": { "_id": 1 } }
            ] } },
            { "$project": { "q": 1, "_id": 0 } }
        ]
    } }, { "$unset": "min" }];
    check(nested, &docs[..1], &[doc! { "_id": 1, "p": [{ "q": [{ "_id": 2 }] }] }]);
    check_fails(array![{ "$lookup": { "from": "people", "as": "x" } }], 9);
    check_fails(array![{ "$lookup": { "from": "people", "as": "x", "pipeline": [{ "$out": "y" }] } }], 51047);
}

#[test]
fn graph_lookup() {
    let graph = |more: Doc, expected: Owned| {
        let mut spec = crate::DocBuilder::new();
        spec.append_all(
            doc! { "from": "people", "startWith": "$who", "connectFromField": "boss", "connectToField": "name", "as": "up" }.raw(),
        );
        spec.append_all(more.raw());
        let stages = array![{ "$graphLookup": spec.finish() }];
        let results = try_run(&stages, &[doc! { "who": "cat" }]).unwrap();
        let reached = results[0].get("up").unwrap().as_array().unwrap();
        let shown = reached.values().map(|value| {
            let doc = value.as_document().unwrap();
            let depth = doc.get("d").map_or(Value::Null, |depth| depth);
            crate::expr::array_of([doc.get("name").unwrap(), depth])
        });
        let shown: Vec<Owned> = shown.collect();
        assert_eq!(crate::expr::array_of(shown.iter().map(Owned::value)), expected);
    };
    graph(doc! {}, array![["cat", null], ["bob", null], ["ann", null]]);
    graph(doc! { "depthField": "d", "maxDepth": 1 }, array![["cat", 0i64], ["bob", 1i64]]);
    graph(doc! { "restrictSearchWithMatch": { "name": { "$ne": "bob" } } }, array![["cat", null]]);
}

#[test]
fn facets_and_unions() {
    let docs = numbers(3);
    check(
        array![{ "$facet": { "a": [{ "$match": { "n": 1 } }, { "$project": { "n": 1, "_id": 0 } }], "b": [{ "$count": "c" }] } }],
        &docs,
        &[doc! { "a": [{ "n": 1 }], "b": [{ "c": 3 }] }],
    );
    check(
        array![{ "$unionWith": { "coll": "people", "pipeline": [{ "$match": { "_id": 2 } }] } }, { "$project": { "_id": 1 } }],
        &docs[..1],
        &[doc! { "_id": 0 }, doc! { "_id": 2 }],
    );
    assert_eq!(try_run(&array![{ "$unionWith": "people" }], &docs).unwrap().len(), 6);
    check(
        array![{ "$documents": [{ "a": 1 }, { "a": 2 }] }, { "$match": { "a": 2 } }],
        &docs,
        &[doc! { "a": 2 }],
    );
    check_fails(array![{ "$facet": { "a": [{ "$out": "x" }] } }], 40600);
    check_fails(array![{ "$facet": {} }], 40169);
}

#[test]
fn redact() {
    let docs =
        [doc! { "level": 1, "a": { "level": 5, "b": 1 }, "c": [{ "level": 1, "d": 2 }, { "level": 9 }, 3] }];
    check(
        array![{ "$redact": { "$cond": [{ "$gt": ["$level", 3] }, "$$PRUNE", "$$DESCEND"] } }],
        &docs,
        &[doc! { "level": 1, "c": [{ "level": 1, "d": 2 }, 3] }],
    );
    check(array![{ "$redact": "$$KEEP" }], &docs, &docs);
    check(array![{ "$redact": "$$PRUNE" }], &docs, &[]);
    check_fails(array![{ "$redact": "x" }], 17053);
}

#[test]
fn malformed_pipelines_are_refused() {
    check_fails(array![{ "$nope": 1 }], 40324);
    check_fails(array![{}], 40323);
    check_fails(array![{ "$skip": 1, "$limit": 1 }], 40323);
    check_fails(array![5], 14);
    check_fails(array![{ "$densify": {} }], 115);
    check_fails(array![{ "$limit": 0 }], 15958);
    check_fails(array![{ "$limit": -1 }], 5_107_201);
    check_fails(array![{ "$skip": 1.5 }], 5_107_200);
    check_fails(array![{ "$sort": {} }], 15976);
    check_fails(array![{ "$match": 1 }], 15959);
    check_fails(array![{ "$count": "$x" }], 40158);
    check_fails(array![{ "$out": "x" }, { "$skip": 1 }], 40601);
    check_fails(array![{ "$skip": 1 }, { "$collStats": {} }], 40602);
    check_fails(array![{ "$sample": { "size": -1 } }], 28747);
}

#[test]
fn memory_is_bounded() {
    let docs = numbers(100);
    for stages in [
        array![{ "$sort": { "n": 1 } }],
        array![{ "$group": { "_id": "$n" } }],
        array![{ "$group": { "_id": 1, "all": { "$push": "$$ROOT" } } }],
        array![{ "$facet": { "a": [] } }],
        array![{ "$bucketAuto": { "groupBy": "$n", "buckets": 2 } }],
    ] {
        let error = try_run_in(&stages, &docs, environment().with_memory_max(1_000)).unwrap_err();
        assert_eq!(error.code.number, 292, "{stages:?}");
    }
    let limited = array![{ "$sort": { "n": 1 } }, { "$limit": 1 }];
    let many = numbers(100_000);
    assert!(try_run_in(&limited, &many, environment().with_memory_max(100_000)).is_ok());
}

fn parsed(stages: Owned) -> Pipeline {
    Pipeline::parse(stages.value().as_array().unwrap(), &Options::default()).unwrap()
}

#[test]
fn planners_see_the_start() {
    let pipeline = parsed(array![
        { "$match": { "a": 1 } }, { "$sort": { "b": 1 } }, { "$skip": 2 }, { "$limit": 3 }, { "$match": { "c": 1 } }
    ]);
    let leading = pipeline.leading();
    assert_eq!(leading.filter, Some(doc! { "a": 1 }.raw()));
    assert_eq!(leading.sort, Some(doc! { "b": 1 }.raw()));
    assert_eq!((leading.skip, leading.limit, leading.stages), (2, Some(3), 4));
    assert_eq!(parsed(array![{ "$limit": 1 }, { "$skip": 1 }]).leading().stages, 1);
    assert_eq!(parsed(array![{ "$limit": 1 }, { "$sort": { "a": 1 } }]).leading().stages, 1);
    let reads = parsed(array![{ "$facet": { "a": [{ "$lookup": { "from": "x", "as": "y", "pipeline": [{ "$unionWith": "z" }] } }] } }]).reads();
    assert_eq!(reads, [(None, "x".to_string()), (None, "z".to_string())]);
}

#[test]
fn sources_and_sinks_are_told() {
    let pipeline = parsed(array![{ "$indexStats": {} }, { "$match": {} }]);
    assert_eq!(pipeline.source().map(|(name, _)| name), Some("$indexStats"));
    let pipeline = parsed(array![{ "$out": { "db": "d", "coll": "c" } }]);
    let target = pipeline.sink().unwrap().target();
    assert_eq!((target.db.as_deref(), &*target.collection), (Some("d"), "c"));
    let pipeline = parsed(
        array![{ "$merge": { "into": "c", "on": ["a", "b"], "whenMatched": "keepExisting", "whenNotMatched": "discard" } }],
    );
    let Some(Sink::Merge(merge)) = pipeline.sink() else { panic!() };
    assert_eq!(merge.on, ["a", "b"]);
    assert!(matches!(merge.when_matched, WhenMatched::KeepExisting));
    assert_eq!(merge.when_not_matched, WhenNotMatched::Discard);
}

#[test]
fn merges_combine() {
    let combined = |how: Value<'_>| {
        let pipeline = parsed(array![{ "$merge": { "into": "c", "whenMatched": how } }]);
        let Some(Sink::Merge(merge)) = pipeline.sink() else { panic!() };
        merge
            .combine(doc! { "_id": 1, "a": 1, "b": 2 }.raw(), doc! { "_id": 1, "b": 5 }.raw(), &environment())
            .unwrap()
    };
    assert_eq!(combined(Value::String("merge")), Some(doc! { "_id": 1, "a": 1, "b": 5 }));
    assert_eq!(combined(Value::String("replace")), Some(doc! { "_id": 1, "b": 5 }));
    assert_eq!(combined(Value::String("keepExisting")), None);
    let stages = array![{ "$set": { "b": { "$add": ["$b", "$$new.b"] } } }];
    assert_eq!(combined(stages.value()), Some(doc! { "_id": 1, "a": 1, "b": 7 }));
}

#[test]
fn change_stream_pipelines_make_one_event_of_one() {
    let parse = |stages: &Owned| {
        Pipeline::parse_change_stream(stages.value().as_array().unwrap(), &Options::default())
    };
    let environment = environment();
    let matching = parse(&array![{ "$match": { "operationType": { "$in": ["insert"] } } }]).unwrap();
    let event = doc! { "operationType": "insert", "fullDocument": { "a": 1 } };
    for same in [
        matching.apply_one(event.clone(), &environment).unwrap().unwrap(),
        matching.apply(&Scanned::new(&event), &environment).unwrap().unwrap(),
    ] {
        assert_eq!(same.bytes().as_ptr(), event.bytes().as_ptr());
    }
    let other = doc! { "operationType": "drop" };
    assert_eq!(matching.apply_one(other.clone(), &environment), Ok(None));
    assert_eq!(matching.apply(&Scanned::new(&other), &environment), Ok(None));
    assert_eq!(matching.needs().len(), 1);
    let shaped = parse(
        &array![{ "$match": {} }, { "$replaceRoot": { "newRoot": "$fullDocument" } }, { "$set": { "b": 2 } }],
    )
    .unwrap();
    let expected = Ok(Some(doc! { "a": 1, "b": 2 }));
    assert_eq!(shaped.apply(&Scanned::new(&event), &environment), expected);
    assert_eq!(shaped.apply_one(event, &environment), expected);
    for (stages, code) in [
        (array![{ "$group": { "_id": 1 } }], 20),
        (array![{ "$out": "x" }], 20),
        (array![{ "$nope": 1 }], 40324),
    ] {
        let error = parse(&stages).unwrap_err();
        assert_eq!(error.code.number, code, "{error}");
    }
    assert!(
        parse(&array![{ "$limit": 1 }])
            .unwrap_err()
            .message
            .contains("$limit is not permitted in a $changeStream pipeline")
    );
}

#[test]
fn errors_of_the_input_come_through() {
    let failing: Docs = Box::new(std::iter::once(Err(crate::Error::bad_value("x"))));
    let pipeline =
        parsed(array![{ "$skip": 5 }, { "$group": { "_id": 1 } }, { "$unwind": "$a" }, { "$count": "c" }]);
    let results: Result<Vec<Doc>> = pipeline.run(failing, &Arc::new(environment())).unwrap().collect();
    assert_eq!(results, Err(crate::Error::bad_value("x")));
    let none: RawDoc<'_> = RawDoc::empty();
    assert!(Pipeline::parse(none, &Options::default()).unwrap().is_empty());
}

/// Specifications with holes (`?`) for arbitrary values.
fn templates(a: &Owned, b: &Owned) -> Vec<Owned> {
    let (a, b) = (&doc! { "$literal": a }, b);
    vec![
        array![{ "$project": { "x": a, "a.b": 1 } }],
        array![{ "$project": { "a": b } }],
        array![{ "$addFields": { "a.b": a, "c": "$a.b.c" } }],
        array![{ "$unset": ["a.b", "b.a"] }],
        array![{ "$replaceWith": { "a": "$a", "b": a } }],
        array![{ "$group": { "_id": "$a", "s": { "$sum": "$b" }, "p": { "$push": "$b.a" }, "m": { "$max": a }, "t": { "$topN": { "n": 2, "sortBy": { "b": 1 }, "output": "$a" } } } }],
        array![{ "$group": { "_id": null, "d": { "$stdDevPop": "$a" }, "v": { "$avg": "$b" }, "n": { "$minN": { "n": a, "input": "$a" } } } }],
        array![{ "$unwind": { "path": "$a.b", "includeArrayIndex": "b.a", "preserveNullAndEmptyArrays": true } }],
        array![{ "$bucketAuto": { "groupBy": "$a", "buckets": 3 } }],
        array![{ "$bucket": { "groupBy": "$a", "boundaries": [b, 5], "default": b } }],
        array![{ "$sort": { "a": 1, "b.a": -1 } }, { "$limit": 2 }],
        array![{ "$lookup": { "from": "people", "localField": "a.b", "foreignField": "tags", "as": "a.c" } }],
        array![{ "$graphLookup": { "from": "people", "startWith": "$a", "connectFromField": "boss", "connectToField": "name", "as": "b" } }],
        array![{ "$redact": { "$cond": [{ "$eq": ["$a", a] }, "$$PRUNE", "$$DESCEND"] } }],
        array![{ "$sortByCount": "$a" }],
        array![{ "$documents": a }],
        array![{ "$facet": { "x": [{ "$sortByCount": "$a" }], "y": [{ "$skip": b }] } }],
    ]
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]

    #[test]
    fn any_stage_gives_sound_documents_or_an_error(
        docs in proptest::collection::vec(crate::arbitrary::document(), 0..4),
        a in crate::arbitrary::value(),
        b in crate::arbitrary::value(),
    ) {
        for stages in templates(&a, &b) {
            for doc in try_run(&stages, &docs).unwrap_or_default() {
                proptest::prop_assert_eq!(crate::check(doc.bytes()), Ok(()), "{:?} of {:?}", stages, docs);
            }
        }
    }
}

mod interrupted {
    //! Work that would take hours ends when it is asked to.
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::pipeline::stream;
    use crate::{Error, code};

    fn ends(stages: Doc) {
        let stages = stages.get("p").unwrap().as_array().unwrap().to_doc();
        let options = Options::default();
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let interrupt =
            Interrupt::new(move || match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 5 {
                true => Ok(()),
                false => Err(Error::new(code::INTERRUPTED, "enough")),
            });
        let result = interrupt.during(|| {
            let environment = Arc::new(options.environment());
            let input = stream(vec![doc! { "_id": 1, "text": "a".repeat(100_000) }]);
            Pipeline::parse(stages.raw(), &options)?.run(input, &environment)?.collect::<Result<Vec<Doc>>>()
        });
        assert_eq!(result.unwrap_err().code, code::INTERRUPTED, "{stages:?}");
    }

    #[test]
    fn expressions_and_stages_end() {
        let range = || doc! { "$range": [0, 100_000] };
        let sum = |input: Doc| doc! { "$reduce": { "input": input, "initialValue": 0, "in": { "$add": ["$$value", "$$this"] } } };
        let each = |body: Doc| doc! { "$map": { "input": range(), "in": body } };
        ends(doc! { "p": [{ "$project": { "x": each(sum(range())) } }] });
        ends(doc! { "p": [{ "$match": { "$expr": { "$gt": [each(sum(range())), 1] } } }] });
        ends(doc! { "p": [{ "$project": { "x": each(doc! { "$size": range() }) } }] });
        ends(
            doc! { "p": [{ "$project": { "x": { "$filter": { "input": range(), "cond": { "$in": [-1, range()] } } } } }] },
        );
        ends(doc! { "p": [{ "$project": { "x": { "$size": each(doc! { "$strLenCP": "$text" }) } } }] });
        ends(doc! { "p": [{ "$group": { "_id": null, "x": { "$sum": sum(each(sum(range()))) } } }] });
        ends(
            doc! { "p": [{ "$set": { "a": { "$range": [0, 3000] } } }, { "$set": { "b": "$a", "c": "$a" } },
            { "$unwind": "$a" }, { "$unwind": "$b" }, { "$unwind": "$c" }, { "$match": { "a": -1 } }] },
        );
        ends(doc! { "p": [{ "$set": { "a": { "$range": [0, 100_000] } } }, { "$unwind": "$a" },
        { "$facet": { "x": [{ "$project": { "y": sum(range()) } }] } }] });
    }
}
