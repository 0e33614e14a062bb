//! Statements that concern many documents: they are found aside and carried out in portions.

mod support;

use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::{Doc, Error, Owned, Value, code, doc};
use rockdove_engine::{Ack, Definition, Engine, Find, Hint, Options, Outcome, StartAt, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::*;

const COUNT: i32 = 4000;

async fn filled() -> Engine {
    let engine = open(Options::memory()).await;
    let docs = (0..COUNT).map(|n| statement_insert(&ns(), doc! { "_id": n, "n": n % 4, "k": 0 }));
    bounded(engine.write(write_of(docs.collect()))).await.unwrap();
    engine
}

fn updated(matched: u64, modified: u64) -> Outcome {
    Outcome::Updated { matched, modified, upserted: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_documents_are_changed_once_each() {
    let engine = filled().await;
    let inc = || doc! { "$inc": { "k": 1 } };
    assert_eq!(update(&engine, &ns(), doc! { "n": 1 }, inc(), true).await, Ok(updated(1000, 1000)));
    assert_eq!(
        update(&engine, &ns(), doc! {}, doc! { "$set": { "n": 1 } }, true).await,
        Ok(updated(4000, 3000))
    );
    assert_eq!(update(&engine, &ns(), doc! { "n": 9 }, inc(), true).await, Ok(updated(0, 0)));
    let upsert = statement_update(&ns(), doc! { "n": 9 }, inc(), true, true);
    let reply = engine.write(write_of(vec![upsert])).await.unwrap();
    assert!(matches!(
        reply.results[0],
        Ok(Outcome::Updated { matched: 0, upserted: Some(Owned::ObjectId(_)), .. })
    ));
    assert_eq!(find(&engine, &ns(), doc! { "k": 1 }).len(), 1001);
    assert_eq!(delete(&engine, &ns(), doc! { "k": 0 }, true).await, Ok(Outcome::Deleted { count: 3000 }));
    assert_eq!(delete(&engine, &ns(), doc! { "nothing": 1 }, true).await, Ok(Outcome::Deleted { count: 0 }));
    assert_eq!(find(&engine, &ns(), doc! {}).len(), 1001);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_match_any_more_is_left_alone() {
    let engine = filled().await;
    let claim = async |value: i32| {
        update(&engine, &ns(), doc! { "k": 0 }, doc! { "$set": { "k": value } }, true).await
    };
    let (a, b) = tokio::join!(claim(1), claim(2));
    let count = |outcome| match outcome {
        Ok(Outcome::Updated { matched, modified, .. }) if matched == modified => matched as usize,
        other => panic!("{other:?}"),
    };
    let (a, b) = (count(a), count(b));
    assert_eq!(a + b, COUNT as usize, "each document was claimed once");
    assert_eq!(find(&engine, &ns(), doc! { "k": 1 }).len(), a);
    assert_eq!(find(&engine, &ns(), doc! { "k": 2 }).len(), b);
}

#[tokio::test(flavor = "multi_thread")]
async fn others_write_in_between() {
    let engine = filled().await;
    let mut stream = watch(&engine, StartAt::Now).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let inserts = {
        let (engine, done) = (engine.clone(), done.clone());
        tokio::spawn(async move {
            let mut inserted = 0;
            while !done.load(Ordering::Relaxed) {
                inserted += 1;
                insert(&engine, &ns(), doc! { "_id": format!("new {inserted}"), "k": 7 }).await.unwrap();
            }
            inserted
        })
    };
    let query = doc! { "k": 0, "n": { "$gte": 0 } };
    let outcome = update(&engine, &ns(), query, doc! { "$set": { "k": 1 } }, true).await;
    done.store(true, Ordering::Relaxed);
    assert_eq!(outcome, Ok(updated(4000, 4000)));
    let all = COUNT as usize + bounded(inserts).await.unwrap();
    let kinds = operations(&mut stream, all).await;
    let first = kinds.iter().position(|kind| kind == "update").unwrap();
    let last = kinds.iter().rposition(|kind| kind == "update").unwrap();
    assert!(kinds[first..last].iter().any(|kind| kind == "insert"), "no insert in between");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_it_between_documents() {
    let engine = filled().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let interrupt = Interrupt::new(move || match counter.fetch_add(1, Ordering::Relaxed) < 6 {
        true => Ok(()),
        false => Err(Error::new(code::INTERRUPTED, "enough")),
    });
    let all = statement_update(&ns(), doc! {}, doc! { "$set": { "k": 1 } }, true, false);
    let write = Write { interrupt: Some(interrupt), ..write_of(vec![all]) };
    assert_eq!(engine.write(write).await.unwrap_err().code, code::INTERRUPTED);
    let changed: Vec<Doc> = find(&engine, &ns(), doc! { "k": 1 });
    assert!(!changed.is_empty() && changed.len() < COUNT as usize, "{} are changed", changed.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn others_write_while_indexes_are_built() {
    let engine = filled().await;
    for n in (COUNT..10 * COUNT).step_by(COUNT as usize) {
        let docs =
            (n..n + COUNT).map(|n| statement_insert(&ns(), doc! { "_id": n, "n": n % 4, "k": [n, 1] }));
        bounded(engine.write(write_of(docs.collect()))).await.unwrap();
    }
    let (done, began) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let others = {
        let (engine, done, began) = (engine.clone(), done.clone(), began.clone());
        tokio::spawn(async move {
            let mut written = 0;
            while !done.load(Ordering::Relaxed) {
                let id = doc! { "_id": (written * 7 % COUNT) };
                update(&engine, &ns(), id.clone(), doc! { "$inc": { "k": 1 } }, false).await.unwrap();
                delete(&engine, &ns(), doc! { "_id": (COUNT + written) }, false).await.unwrap();
                insert(&engine, &ns(), doc! { "_id": format!("new {written}"), "k": 7 }).await.unwrap();
                written += 1;
                began.store(true, Ordering::Relaxed);
            }
            written
        })
    };
    eventually("others write", || began.load(Ordering::Relaxed)).await;
    let before = engine.snapshot().collection(&ns()).unwrap().next_record();
    let keys = [doc! { "k": 1 }, doc! { "n": 1, "k": -1 }];
    let specs = keys.iter().map(|keys| doc! { "key": keys }).collect();
    let define = engine.define(Definition::CreateIndexes { ns: ns(), specs }, Ack::WRITTEN);
    assert_eq!(bounded(define).await.unwrap().indexes_after, 3);
    let during = engine.snapshot().collection(&ns()).unwrap().next_record() - before;
    done.store(true, Ordering::Relaxed);
    assert!(bounded(others).await.unwrap() > 0 && during > 5, "{during} inserted meanwhile");
    let state = engine.snapshot();
    let collection = state.collection(&ns()).unwrap();
    for (keys, index) in keys.iter().zip(&collection.indexes()[1..]) {
        let find = |hint| {
            let all = Find { hint: Some(hint), ..Find::new(ns(), filter(doc! {})) };
            let mut ids: Vec<String> =
                engine.find(all).unwrap().map(|doc| format!("{:?}", doc.unwrap().get("_id"))).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(find(Hint::Keys(keys.clone())), find(Hint::Natural { reverse: false }));
        let entries: usize = collection
            .records()
            .map(|(_, doc)| match doc.get("k") {
                Some(Value::Array(array)) => array.len(),
                _ => 1,
            })
            .sum();
        assert_eq!(index.tree.len(), entries, "no entry of what has gone");
    }
}
