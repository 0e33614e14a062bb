//! The planner against reading everything: an index may make a query quicker, never different.

mod support;

use proptest::prelude::*;
use rockdove_documents::collation::Collation;
use rockdove_documents::filter::{Filter, FilterOptions};
use rockdove_documents::sort::Sort;
use rockdove_documents::{Doc, DocBuilder, Owned, array, doc};
use rockdove_engine::{Definition, Engine, Find, Hint, Namespace, Options, Query, explain};
use std::collections::HashSet;
use support::*;

fn value() -> impl Strategy<Value = Owned> {
    prop_oneof![
        (0i32..4).prop_map(Owned::Int32),
        (0i32..4).prop_map(|n| Owned::Double(f64::from(n))),
        Just(Owned::Null),
        (0i64..3).prop_map(Owned::DateTime),
        prop_oneof![Just("x"), Just("y")].prop_map(|text| Owned::String(text.into())),
        (0i32..4, 0i32..4).prop_map(|(a, b)| array![a, b]),
        (0i32..3, 0i32..3).prop_map(|(a, b)| array![{ "k": a, "l": b }, { "k": b, "l": a }]),
        Just(array![]),
        (0i32..3).prop_map(|n| Owned::Document(doc! { "k": n, "l": 1 })),
        (0i32..3).prop_map(|n| array![doc! { "k": n }, doc! { "l": n }]),
    ]
}

fn document() -> impl Strategy<Value = Doc> {
    let fields = prop::collection::vec((prop_oneof![Just("a"), Just("b"), Just("c")], value()), 0..4);
    fields.prop_map(|fields| {
        let mut doc = DocBuilder::new();
        let mut names = Vec::new();
        let arrays = |value: &Owned| matches!(value, Owned::Array(_));
        let mut has_array = false;
        for (name, value) in fields {
            // One array at most: two on the paths of a compound index are refused.
            if names.contains(&name) || (has_array && arrays(&value)) {
                continue;
            }
            has_array |= arrays(&value);
            names.push(name);
            doc.append(name, &value);
        }
        doc.finish()
    })
}

fn condition() -> impl Strategy<Value = Doc> {
    let name = prop_oneof![Just("a"), Just("b"), Just("c"), Just("a.k"), Just("a.l"), Just("b.k")];
    let one = (name, value(), 0..9).prop_map(|(name, value, kind)| {
        let mut out = DocBuilder::new();
        match kind {
            0 | 1 => out.append(name, &value),
            2 => out.append(name, doc! { "$gt": &value }),
            3 => out.append(name, doc! { "$lte": &value }),
            4 => out.append(name, doc! { "$in": [&value, 1, null] }),
            5 => out.append(name, doc! { "$ne": &value }),
            6 => out.append(name, doc! { "$gte": 1, "$lt": 3 }),
            7 => out.append(name, doc! { "$exists": true }),
            _ => out.append(name, doc! { "$elemMatch": { "$gte": 1, "$lt": 3 } }),
        };
        out.finish()
    });
    prop::collection::vec(one, 0..3).prop_map(|all| match all.len() {
        0 => doc! {},
        1 => all[0].clone(),
        n if n % 2 == 0 => doc! { "$and": [&all[0], &all[1]] },
        _ => doc! { "$or": [&all[0], &all[1], &all[2]] },
    })
}

fn sorting() -> impl Strategy<Value = Doc> {
    prop_oneof![
        Just(doc! {}),
        Just(doc! { "b": 1 }),
        Just(doc! { "b": -1, "c": 1 }),
        Just(doc! { "a": 1, "b": -1 }),
        Just(doc! { "c": 1, "b": 1 }),
    ]
}

async fn filled(docs: &[Doc]) -> Engine {
    let engine = open(Options::memory()).await;
    let specs = vec![
        doc! { "key": { "a": 1, "b": -1 }, "name": "ab" },
        doc! { "key": { "b": 1, "c": -1 }, "name": "bc" },
        doc! { "key": { "c": 1 }, "name": "sparse", "sparse": true },
        doc! { "key": { "b": 1 }, "name": "partial", "partialFilterExpression": { "b": { "$gte": 1 } } },
        doc! { "key": { "a.k": 1, "a.l": 1 }, "name": "akal" },
        doc! { "key": { "c": "hashed" }, "name": "hashed", "hidden": false },
        doc! { "key": { "b.k": 1 }, "name": "sparse elements", "sparse": true },
    ];
    for spec in specs {
        let _ = define(&engine, Definition::CreateIndexes { ns: ns(), specs: vec![spec] }).await;
    }
    for doc in docs {
        let _ = insert(&engine, &ns(), doc.clone()).await; // a document that an index refuses stays out
    }
    engine
}

fn run(engine: &Engine, query: &Doc, sort: &Doc, hint: Option<Hint>) -> Vec<Doc> {
    let sort = (!sort.raw().is_empty()).then(|| Sort::parse(sort.raw(), None).unwrap());
    let find = Find { sort, hint, ..Find::new(ns(), filter(query.clone())) };
    engine.find(find).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The sort keys of documents: what has to be equal where ties may come in any order.
fn keys(docs: &[Doc], sort: &Doc) -> Vec<Vec<u8>> {
    let sort = Sort::parse(sort.raw(), None).unwrap();
    docs.iter().map(|doc| sort.key(doc.raw()).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn an_index_changes_no_result(
        docs in prop::collection::vec(document(), 0..40),
        queries in prop::collection::vec((condition(), sorting()), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let engine = filled(&docs).await;
            for (query, sort) in &queries {
                let chosen = run(&engine, query, sort, None);
                let all = run(&engine, query, sort, Some(Hint::Natural { reverse: false }));
                let sorted = |docs: &[Doc]| {
                    let mut bytes: Vec<_> = docs.iter().map(|doc| doc.bytes().to_vec()).collect();
                    bytes.sort();
                    bytes
                };
                assert_eq!(sorted(&chosen), sorted(&all), "{query:?} {sort:?}");
                assert_eq!(keys(&chosen, sort), keys(&all, sort), "{query:?} {sort:?}");
                for name in ["ab", "bc", "akal"] {
                    let hinted = run(&engine, query, sort, Some(Hint::Name(name.into())));
                    assert_eq!(sorted(&hinted), sorted(&all), "{query:?} {sort:?} by {name}");
                    assert_eq!(keys(&hinted, sort), keys(&all, sort), "{query:?} {sort:?} by {name}");
                }
            }
            engine.close().await.unwrap();
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_names_the_index() {
    let engine = open(Options::memory()).await;
    let specs = vec![
        doc! { "key": { "t": 1, "p": 1 }, "name": "t_1_p_1" },
        doc! { "key": { "u": 1 }, "name": "u_1", "unique": true },
    ];
    define(&engine, Definition::CreateIndexes { ns: ns(), specs }).await.unwrap();
    for n in 0..100 {
        insert(&engine, &ns(), doc! { "_id": n, "t": n % 4, "p": n, "u": n }).await.unwrap();
    }
    let plan = |query: Doc, sort: Doc| {
        let sort = (!sort.raw().is_empty()).then(|| Sort::parse(sort.raw(), None).unwrap());
        let find = Find { sort, ..Find::new(ns(), filter(query)) };
        let explained = explain(&engine.snapshot(), &find, true).unwrap().unwrap();
        let index = explained.plan.index.map(|(name, ..)| name);
        (index.unwrap_or_default(), explained.plan.sorts, explained.docs_examined)
    };
    assert_eq!(plan(doc! {}, doc! {}), ("".into(), false, 100));
    assert_eq!(plan(doc! { "_id": 5 }, doc! {}), ("_id_".into(), false, 1));
    assert_eq!(plan(doc! { "t": 1 }, doc! { "p": -1 }), ("t_1_p_1".into(), false, 25));
    assert_eq!(plan(doc! { "t": 1, "u": 5 }, doc! { "p": 1 }), ("u_1".into(), true, 1));
    assert_eq!(
        plan(doc! { "t": { "$in": [0, 2] }, "p": { "$lt": 8 } }, doc! {}),
        ("t_1_p_1".into(), false, 4)
    );
    assert_eq!(plan(doc! { "u": { "$gt": 89 } }, doc! { "u": -1 }), ("u_1".into(), false, 10));
    assert_eq!(plan(doc! { "other": 1 }, doc! { "u": 1 }), ("u_1".into(), false, 100));
    let bad = Find { hint: Some(Hint::Name("none".into())), ..Find::new(ns(), filter(doc! {})) };
    assert_eq!(engine.find(bad).err().unwrap().code.number, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_knows_how_much_it_looks_at() {
    let engine = Engine::open(Options::memory()).unwrap();
    let specs =
        vec![doc! { "key": { "n": 1 }, "name": "n_1" }, doc! { "key": { "tags": 1 }, "name": "tags_1" }];
    define(&engine, Definition::CreateIndexes { ns: ns(), specs }).await.unwrap();
    for n in 0..100 {
        insert(&engine, &ns(), doc! { "_id": n, "n": n, "tags": [n, n + 1, n + 2], "m": n }).await.unwrap();
    }
    let state = engine.snapshot();
    let queries = [
        doc! {},
        doc! { "m": 1 },
        doc! { "_id": 5 },
        doc! { "n": { "$gte": 0 } },
        doc! { "n": { "$lt": 30 } },
        doc! { "n": { "$in": [1, 5, 700] } },
        doc! { "tags": { "$gt": 90 } },
    ];
    for query in queries {
        let find = || Find::new(ns(), filter(query.clone()));
        let keys = explain(&state, &find(), true).unwrap().unwrap();
        let looked_at = keys.keys_examined.max(keys.docs_examined) as usize;
        for (limit, more) in
            [(looked_at.saturating_sub(1), looked_at > 0), (looked_at, false), (99, looked_at > 99)]
        {
            let planned = Query::plan(&state, find()).unwrap();
            assert_eq!(planned.looks_at_more_than(limit), more, "{query:?} and {limit}");
        }
        let planned = Query::plan(&state, find()).unwrap();
        assert_eq!(planned.clone().count().unwrap(), planned.documents().unwrap().count() as u64);
    }
    let nowhere = Find::new(Namespace::new("db", "nowhere").unwrap(), filter(doc! {}));
    assert!(!Query::plan(&state, nowhere).unwrap().looks_at_more_than(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_to_an_index_of_another_collation_changes_no_result() {
    let engine = open(Options::memory()).await;
    let by_letter = doc! { "locale": "en", "strength": 2 };
    let specs = vec![
        doc! { "key": { "a": 1 }, "name": "plain" },
        doc! { "key": { "a": 1, "b": -1 }, "name": "by letter", "collation": &by_letter },
        doc! { "key": { "a": "hashed" }, "name": "hashed" },
        doc! { "key": { "a": 1, "c": 1 }, "name": "hidden", "hidden": true },
    ];
    define(&engine, Definition::CreateIndexes { ns: ns(), specs }).await.unwrap();
    for (n, text) in ["abc", "ABC", "b", "Abd"].into_iter().enumerate() {
        insert(&engine, &ns(), doc! { "_id": n as i32, "a": text, "b": n as i32 }).await.unwrap();
    }
    let queries =
        [doc! { "a": "abc" }, doc! { "a": { "$in": ["aBC", 1] } }, doc! { "a": { "$gte": "abd" }, "b": 3 }];
    for collation in [None, Collation::parse(by_letter.raw()).unwrap()] {
        for query in &queries {
            for sort in [doc! {}, doc! { "a": 1 }, doc! { "b": -1 }] {
                let ids = |hint: Hint| {
                    let options = FilterOptions { collation: collation.clone(), ..FilterOptions::default() };
                    let filter = Filter::parse(query.raw(), &options).unwrap();
                    let sort =
                        (!sort.raw().is_empty()).then(|| Sort::parse(sort.raw(), collation.clone()).unwrap());
                    let find = Find { sort, hint: Some(hint), ..Find::new(ns(), filter) };
                    let docs = engine.find(find).unwrap();
                    docs.map(|doc| doc.unwrap().get("_id").unwrap().as_integer().unwrap())
                        .collect::<HashSet<_>>()
                };
                let all = ids(Hint::Natural { reverse: false });
                for name in ["plain", "by letter", "hashed"] {
                    assert_eq!(
                        ids(Hint::Name(name.into())),
                        all,
                        "{query:?} {sort:?} {collation:?} by {name}"
                    );
                }
            }
        }
    }
    let hidden = Find { hint: Some(Hint::Name("hidden".into())), ..Find::new(ns(), filter(doc! {})) };
    assert_eq!(engine.find(hidden).err().unwrap().code.number, 2);
}
