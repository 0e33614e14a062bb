//! What the engine does with writes, indexes, expiry and memory.

mod support;

use rockdove_documents::projection::{Compute, Projection, ProjectionOptions};
use rockdove_documents::{DocBuilder, Owned, RawDoc, Value, array, doc};
use rockdove_engine::{
    Ack, Definition, FindAndModify, Modify, Namespace, Options, Outcome, Retry, StartAt, Write,
};
use std::time::Duration;
use support::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_made_and_comes_first() {
    let engine = open(Options::memory()).await;
    insert(&engine, &ns(), doc! { "a": 1 }).await.unwrap();
    insert(&engine, &ns(), doc! { "b": 1, "_id": 7 }).await.unwrap();
    let docs = find(&engine, &ns(), doc! {});
    assert!(matches!(docs[0].get("_id"), Some(Value::ObjectId(_))));
    assert_eq!(docs[1], doc! { "_id": 7, "b": 1 });
    assert_eq!(insert(&engine, &ns(), doc! { "_id": [1] }).await.unwrap_err().code.number, 53);
    let big = doc! { "_id": 1, "x": "y".repeat(17 << 20) };
    assert_eq!(insert(&engine, &ns(), big).await.unwrap_err().code.number, 10334);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unacceptable_document_stops_only_what_comes_after_it_in_order() {
    for (ordered, stored) in [(true, 1), (false, 3)] {
        let engine = open(Options::memory()).await;
        let docs = || {
            let ids = [Owned::Int32(1), array![1], Owned::Int32(2), array![2], Owned::Int32(3)];
            ids.into_iter().map(|id| statement_insert(&ns(), doc! { "_id": id })).collect()
        };
        let retry = Retry { session: b"s"[..].into(), number: 1, statements: vec![] };
        let write = || Write { ordered, retry: Some(retry.clone()), ..write_of(docs()) };
        let before = engine.operation_time();
        let reply = engine.write(write()).await.unwrap();
        let good = |reply: &rockdove_engine::WriteReply| {
            reply.results.iter().map(|result| result.is_ok()).collect::<Vec<_>>()
        };
        let expected = [true, false, true, false, true];
        assert_eq!(good(&reply), if ordered { &expected[..2] } else { &expected[..] });
        assert_eq!(find(&engine, &ns(), doc! {}).len(), stored);
        // All of it is one batch, and comes once: the collection, the documents, the record.
        assert_eq!(reply.at, engine.operation_time());
        let again = engine.write(write()).await.unwrap();
        assert_eq!((good(&again), again.at), (good(&reply), reply.at));
        assert_eq!(again.retried, if ordered { vec![0] } else { vec![0, 2, 4] });
        assert!(before < reply.at);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_key_names_its_index_whatever_the_document_says() {
    let engine = open(Options::memory()).await;
    let of = |field: &str, value: Value<'_>| {
        let mut doc = DocBuilder::new();
        doc.append_value(field, value);
        doc.finish()
    };
    let unique = |name: &str, field| doc! { "key": of(field, Value::Int32(1)), "name": name, "unique": true };
    // Names and texts that look like parts of the message.
    let decoy = "a index: b_1 dup key";
    let specs = vec![unique("b_1", "b"), unique(decoy, "a"), unique("c_1", "c")];
    define(&engine, Definition::CreateIndexes { ns: ns(), specs }).await.unwrap();
    let text = "index: b_1 dup key";
    insert(&engine, &ns(), doc! { "_id": 1, "a": text, "b": 1, "c": text }).await.unwrap();
    for (field, value) in [("a", Value::String(text)), ("b", Value::Int32(1)), ("c", Value::String(text))] {
        let mut doc = DocBuilder::new();
        doc.append("_id", 2);
        for other in ["a", "b", "c"] {
            doc.append(other, if other == field { value } else { Value::Double(0.5) });
        }
        let doc = doc.finish();
        let insert = statement_insert(&ns(), doc.clone());
        let update = statement_update(&ns(), doc! { "_id": 2 }, doc, false, true);
        let mut write = write_of(vec![insert, update]);
        write.ordered = false;
        let reply = engine.write(write).await.unwrap();
        for result in &reply.results {
            let failed = result.as_ref().unwrap_err();
            let details = failed.details.as_ref().expect("a duplicate key says which");
            assert_eq!(details.get("keyPattern"), Some(Value::Document(of(field, Value::Int32(1)).raw())));
            assert_eq!(details.get("keyValue"), Some(Value::Document(of(field, value).raw())));
        }
        assert_eq!(reply.results.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unique_indexes_hold_across_number_types_and_array_elements() {
    let engine = open(Options::memory()).await;
    let unique = doc! { "key": { "a": 1 }, "name": "a_1", "unique": true };
    define(&engine, Definition::CreateIndexes { ns: ns(), specs: vec![unique] }).await.unwrap();
    insert(&engine, &ns(), doc! { "_id": 1, "a": [1, 2] }).await.unwrap();
    for clash in [doc! { "_id": 2, "a": 2.0 }, doc! { "_id": 2, "a": [5, 1i64] }, doc! { "_id": 1.0, "a": 9 }]
    {
        assert_eq!(insert(&engine, &ns(), clash).await.unwrap_err().code.number, 11000);
    }
    insert(&engine, &ns(), doc! { "_id": 3 }).await.unwrap();
    assert_eq!(insert(&engine, &ns(), doc! { "_id": 4, "a": null }).await.unwrap_err().code.number, 11000);
    let moved = update(&engine, &ns(), doc! { "_id": 3 }, doc! { "$set": { "a": 1 } }, false).await;
    assert_eq!(moved.unwrap_err().code.number, 11000);
    delete(&engine, &ns(), doc! { "_id": 1 }, false).await.unwrap();
    update(&engine, &ns(), doc! { "_id": 3 }, doc! { "$set": { "a": 1 } }, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_counts_what_matched_and_what_changed() {
    let engine = open(Options::memory()).await;
    for n in 0..4 {
        insert(&engine, &ns(), doc! { "_id": n, "a": n % 2 }).await.unwrap();
    }
    let outcome = update(&engine, &ns(), doc! {}, doc! { "$set": { "a": 1 } }, true).await.unwrap();
    assert_eq!(outcome, Outcome::Updated { matched: 4, modified: 2, upserted: None });
    let upsert =
        statement_update(&ns(), doc! { "_id": 9, "k": "v" }, doc! { "$set": { "a": 5 } }, false, true);
    let reply = engine.write(write_of(vec![upsert])).await.unwrap();
    let expected = Outcome::Updated { matched: 0, modified: 0, upserted: Some(Owned::Int32(9)) };
    assert_eq!(reply.results, [Ok(expected)]);
    assert_eq!(find(&engine, &ns(), doc! { "_id": 9 }), [doc! { "_id": 9, "k": "v", "a": 5 }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_changes_nothing_makes_no_event() {
    let engine = open(Options::memory()).await;
    insert(&engine, &ns(), doc! { "_id": 1, "p": ["me"] }).await.unwrap();
    let mut stream = watch(&engine, StartAt::Now).unwrap();
    update(&engine, &ns(), doc! { "_id": 1 }, doc! { "$addToSet": { "p": "me" } }, false).await.unwrap();
    update(&engine, &ns(), doc! { "_id": 1 }, doc! { "$set": { "p": [] } }, false).await.unwrap();
    let batch = bounded(stream.next(10, 1 << 20, Duration::from_secs(10))).await.unwrap();
    assert_eq!(batch.events.len(), 1);
    let description = batch.events[0].get("updateDescription").unwrap().as_document().unwrap();
    assert_eq!(description.get("updatedFields"), Some(Value::Document(doc! { "p": [] }.raw())));
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_documents_go_on_time_with_an_event() {
    let engine = open(Options::memory()).await;
    let ttl = doc! { "key": { "delete_at": 1 }, "name": "delete_at_1", "expireAfterSeconds": 0 };
    define(&engine, Definition::CreateIndexes { ns: ns(), specs: vec![ttl] }).await.unwrap();
    let at = |ms| Owned::DateTime(engine.now_ms() + ms);
    insert(&engine, &ns(), doc! { "_id": "soon", "delete_at": at(300) }).await.unwrap();
    insert(&engine, &ns(), doc! { "_id": "later", "delete_at": at(60_000) }).await.unwrap();
    insert(&engine, &ns(), doc! { "_id": "never", "delete_at": 5 }).await.unwrap();
    let mut stream = watch(&engine, StartAt::Now).unwrap();
    assert_eq!(operations(&mut stream, 1).await, ["delete"]);
    let left: Vec<_> =
        find(&engine, &ns(), doc! {}).iter().map(|doc| doc.get("_id").unwrap().to_owned()).collect();
    assert_eq!(left, [Owned::String("later".into()), Owned::String("never".into())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_memory_refuses_new_documents_and_lets_old_ones_go() {
    let engine = open(Options { memory_limit_bytes: 100_000, ..Options::memory() }).await;
    let ttl = doc! { "key": { "delete_at": 1 }, "name": "delete_at_1", "expireAfterSeconds": 0 };
    define(&engine, Definition::CreateIndexes { ns: ns(), specs: vec![ttl] }).await.unwrap();
    insert(&engine, &ns(), doc! { "_id": "over", "delete_at": Owned::DateTime(engine.now_ms() + 1000) })
        .await
        .unwrap();
    let mut stored = 0;
    let refused = loop {
        match insert(&engine, &ns(), doc! { "_id": stored, "x": "y".repeat(1000) }).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refused.code.number, stored > 50), (146, true));
    update(&engine, &ns(), doc! { "_id": 1 }, doc! { "$addToSet": { "processed_by": "me" } }, false)
        .await
        .unwrap();
    eventually("what is over goes", || find(&engine, &ns(), doc! { "_id": "over" }).is_empty()).await;
    delete(&engine, &ns(), doc! {}, true).await.unwrap();
    insert(&engine, &ns(), doc! { "_id": 1 }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_records_count_as_memory_and_give_way() {
    let limit = 8_000_000;
    let engine = open(Options { memory_limit_bytes: limit, ..Options::memory() }).await;
    let text = "y".repeat(20_000);
    for n in 0..200u32 {
        // Each puts a document in and takes it out again, which the session's record keeps.
        insert(&engine, &ns(), doc! { "_id": n as i32, "text": &text }).await.unwrap();
        let retry = Retry { session: n.to_le_bytes().to_vec().into(), number: 1, statements: vec![] };
        let take = || FindAndModify {
            ns: ns(),
            filter: filter(doc! { "_id": n as i32 }),
            sort: None,
            action: Modify::Remove,
            projection: None,
            hint: None,
            retry: Some(retry.clone()),
            ack: Default::default(),
            bypass_validation: false,
            interrupt: None,
        };
        for retried in [false, true] {
            let taken = bounded(engine.find_and_modify(take())).await.unwrap();
            assert_eq!((taken.found, taken.retried), (true, retried));
        }
        if n == 0 {
            assert!(engine.memory().used_bytes() > 20_000, "{}", engine.memory().used_bytes());
        }
    }
    let collection = engine.snapshot().bytes();
    assert!(collection < 2000, "{collection}: no document is left");
    let used = engine.memory().used_bytes();
    assert!(used <= limit / 8 + collection, "{used}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_number_is_for_one_command() {
    let engine = open(Options::memory()).await;
    let retry = |statements: Vec<i32>| Retry { session: b"s"[..].into(), number: 1, statements };
    let insert = |id: i32| statement_insert(&ns(), doc! { "_id": id });
    let twice = write_retryable(&engine, vec![insert(1), insert(2)], retry(vec![4, 4])).await;
    assert_eq!(twice.unwrap_err().code.number, 2);
    let done = write_retryable(&engine, vec![insert(1), insert(2)], retry(vec![5, 4])).await.unwrap();
    assert!(done.retried.is_empty() && done.results.iter().all(|result| result.is_ok()));
    let take = FindAndModify {
        ns: ns(),
        filter: filter(doc! {}),
        sort: None,
        action: Modify::Remove,
        projection: None,
        hint: None,
        retry: Some(retry(vec![5])),
        ack: Default::default(),
        bypass_validation: false,
        interrupt: None,
    };
    assert_eq!(bounded(engine.find_and_modify(take)).await.unwrap_err().error.code.number, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_finders_takes_each_document() {
    let engine = open(Options::memory()).await;
    for n in 0..100 {
        insert(&engine, &ns(), doc! { "_id": n, "state": "new" }).await.unwrap();
    }
    let takers = (0..8).map(|taker| {
        let engine = engine.clone();
        tokio::spawn(async move {
            let mut taken = 0;
            loop {
                let update = parsed_update(doc! { "$set": { "state": "taken", "by": taker } });
                let action = Modify::Update { update: Box::new(update), upsert: false, return_new: true };
                let command = FindAndModify {
                    ns: ns(),
                    filter: filter(doc! { "state": "new" }),
                    sort: None,
                    action,
                    projection: None,
                    hint: None,
                    retry: None,
                    ack: Default::default(),
                    bypass_validation: false,
                    interrupt: None,
                };
                match bounded(engine.find_and_modify(command)).await.unwrap().value {
                    Some(doc) => assert_eq!(doc.get("by"), Some(Value::Int32(taker))),
                    None => return taken,
                }
                taken += 1;
            }
        })
    });
    let mut all = 0;
    for taker in takers.collect::<Vec<_>>() {
        all += taker.await.unwrap();
    }
    assert_eq!(all, 100);
}

/// Fails on every document.
#[derive(Debug)]
struct Fails;

impl Compute for Fails {
    fn compute(&self, _doc: RawDoc<'_>) -> rockdove_documents::Result<Option<Owned>> {
        Err(rockdove_documents::Error::bad_value("can't $divide by zero"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_answer_fails_changes_nothing() {
    let engine = open(Options::memory()).await;
    insert(&engine, &ns(), doc! { "_id": 1, "n": 1 }).await.unwrap();
    let before = engine.operation_time();
    let update = |upsert, return_new| Modify::Update {
        update: Box::new(parsed_update(doc! { "$inc": { "n": 1 } })),
        upsert,
        return_new,
    };
    let commands =
        [(1, Modify::Remove), (1, update(false, false)), (1, update(false, true)), (2, update(true, true))];
    for (id, action) in commands {
        let parse = |_: Value<'_>| Ok(Box::new(Fails) as Box<dyn Compute>);
        let options = ProjectionOptions { collation: None, expr: Some(&parse), stage: false };
        let projection = Projection::parse(doc! { "x": { "$divide": [1, 0] } }.raw(), &options).unwrap();
        let command = FindAndModify {
            ns: ns(),
            filter: filter(doc! { "_id": id }),
            sort: None,
            action,
            projection: Some(projection),
            hint: None,
            retry: None,
            ack: Default::default(),
            bypass_validation: false,
            interrupt: None,
        };
        assert_eq!(bounded(engine.find_and_modify(command)).await.unwrap_err().error.code.number, 2);
        assert_eq!(find(&engine, &ns(), doc! {}), [doc! { "_id": 1, "n": 1 }]);
        assert_eq!(engine.operation_time(), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn index_conflicts_have_mongodbs_codes() {
    let engine = open(Options::memory()).await;
    let create = |spec| define(&engine, Definition::CreateIndexes { ns: ns(), specs: vec![spec] });
    let first = create(doc! { "key": { "a": 1 }, "name": "a_1" }).await.unwrap();
    assert_eq!((first.indexes_before, first.indexes_after, first.created_collection), (1, 2, true));
    let again = create(doc! { "key": { "a": 1.0 }, "name": "a_1" }).await.unwrap();
    assert_eq!((again.indexes_before, again.indexes_after, again.changed), (2, 2, false));
    assert_eq!(create(doc! { "key": { "a": 1 }, "name": "other" }).await.unwrap_err().code.number, 85);
    assert_eq!(create(doc! { "key": { "b": 1 }, "name": "a_1" }).await.unwrap_err().code.number, 86);
    assert_eq!(
        create(doc! { "key": { "a": 1 }, "name": "a_1", "expireAfterSeconds": 5 })
            .await
            .unwrap_err()
            .code
            .number,
        85
    );
    insert(&engine, &ns(), doc! { "u": 1 }).await.unwrap();
    insert(&engine, &ns(), doc! { "u": 1 }).await.unwrap();
    let specs = vec![
        doc! { "key": { "v": 1 }, "name": "v_1" },
        doc! { "key": { "u": 1 }, "name": "u_1", "unique": true },
    ];
    let refused = define(&engine, Definition::CreateIndexes { ns: ns(), specs }).await.unwrap_err();
    assert_eq!(refused.code.number, 11000);
    assert_eq!(engine.snapshot().collection(&ns()).unwrap().indexes().len(), 2);
    insert(&engine, &ns(), doc! { "u": 1 }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_keep_their_snapshot() {
    let engine = open(Options::memory()).await;
    for n in 0..50 {
        insert(&engine, &ns(), doc! { "_id": n }).await.unwrap();
    }
    let mut reading = engine.find(rockdove_engine::Find::new(ns(), filter(doc! {}))).unwrap();
    assert!(reading.next().is_some());
    delete(&engine, &ns(), doc! {}, true).await.unwrap();
    define(&engine, Definition::Drop { ns: ns() }).await.unwrap();
    assert_eq!(reading.count(), 49);
    assert!(find(&engine, &Namespace::new("db", "c").unwrap(), doc! {}).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_timestamps_get_the_time_of_their_insertion() {
    let engine = open(Options::memory()).await;
    let empty = rockdove_documents::Timestamp::default;
    let mut last = engine.operation_time();
    for n in 0..3 {
        let set = rockdove_documents::Timestamp { time: 0, increment: 1 };
        let new = doc! { "_id": n, "at": empty(), "other": "x", "set": set, "in": { "at": empty() }, "too": empty() };
        insert(&engine, &ns(), new).await.unwrap();
        let stored = find(&engine, &ns(), doc! { "_id": n }).remove(0);
        let Some(Value::Timestamp(at)) = stored.get("at") else { panic!("{stored:?}") };
        assert!(last < at && at <= engine.operation_time(), "{last:?} {at:?}");
        assert_eq!(
            stored,
            doc! { "_id": n, "at": at, "other": "x", "set": set, "in": { "at": empty() }, "too": at }
        );
        last = at;
    }
    insert(&engine, &ns(), doc! { "_id": empty() }).await.unwrap();
    assert_eq!(find(&engine, &ns(), doc! { "_id": empty() }).len(), 1);
    engine.close().await.unwrap();
}

/// Reading must not write.
#[tokio::test]
async fn a_view_that_writes_is_refused() {
    let engine = open(Options::memory()).await;
    let define = |definition| bounded(engine.define(definition, Ack::WRITTEN));
    for (name, pipeline) in
        [("a", doc! { "p": [{ "$out": "b" }] }), ("b", doc! { "p": [{ "$match": {} }, { "$merge": "b" }] })]
    {
        let view = || Namespace::new("db", name).unwrap();
        let mut options = DocBuilder::new();
        options.append("viewOn", "c").append("pipeline", pipeline.get("p"));
        let options = options.finish();
        let refused = define(Definition::Create { ns: view(), options: options.clone() }).await.unwrap_err();
        assert_eq!(refused.code.number, 167);
        define(Definition::Create { ns: view(), options: doc! { "viewOn": "c" } }).await.unwrap();
        let refused = define(Definition::Modify { ns: view(), changes: options }).await.unwrap_err();
        assert_eq!(refused.code.number, 167);
    }
}
