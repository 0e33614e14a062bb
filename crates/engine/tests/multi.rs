//! Statements that look at many documents: what they are about is found aside, and what they do is done in parts.

mod support;

use rockdove_documents::expr::Surroundings;
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::{Doc, Error, Owned, Value, code, doc};
use rockdove_engine::{
    Ack, Definition, DeleteStatement, Engine, Find, FindAndModify, Hint, Modify, Options, Outcome, Retry,
    StartAt, Statement, Write,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
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

fn upserted(id: &str) -> Outcome {
    Outcome::Updated { matched: 0, modified: 0, upserted: Some(Owned::String(id.into())) }
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

/// An interrupt that lets work go on once others have written, and fails if they cannot.
#[derive(Default)]
struct Meanwhile {
    began: AtomicBool,
    written: AtomicBool,
}

impl Meanwhile {
    fn interrupt(self: &Arc<Meanwhile>) -> Option<Interrupt> {
        let meanwhile = self.clone();
        Some(Interrupt::new(move || {
            meanwhile.began.store(true, Ordering::Relaxed);
            let started = Instant::now();
            while !meanwhile.written.load(Ordering::Relaxed) {
                if started.elapsed() > Duration::from_secs(10) {
                    return Err(Error::new(code::INTERRUPTED, "others could not write"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        }))
    }

    async fn others_write(&self, engine: &Engine) {
        eventually("it is looked for", || self.began.load(Ordering::Relaxed)).await;
        insert(engine, &ns(), doc! { "other": 1 }).await.unwrap();
        self.written.store(true, Ordering::Relaxed);
    }
}

fn delete_one(query: Doc) -> Statement {
    Statement::Delete(Box::new(DeleteStatement { ns: ns(), filter: filter(query), multi: false, hint: None }))
}

#[tokio::test(flavor = "multi_thread")]
async fn others_write_while_one_document_is_looked_for() {
    let engine = filled().await;
    let last = |n: i32| doc! { "n": 3, "k": { "$lt": 1 }, "_id": { "$mod": [COUNT, COUNT - n] } };
    let set = || doc! { "$set": { "k": 1 } };
    let retry = Some(Retry { session: vec![1].into(), number: 1, statements: vec![] });
    let ways: [(Vec<Statement>, Option<Retry>, Vec<Outcome>); 5] = [
        (vec![statement_update(&ns(), last(1), set(), false, false)], retry, vec![updated(1, 1)]),
        (vec![delete_one(last(1))], None, vec![Outcome::Deleted { count: 0 }]),
        (
            vec![
                statement_insert(&ns(), doc! { "_id": "a" }),
                delete_one(last(5)),
                statement_update(&ns(), doc! { "k": 1 }, doc! { "$inc": { "k": 1 } }, true, false),
                statement_insert(&ns(), doc! { "_id": "b" }),
            ],
            None,
            vec![Outcome::Inserted, Outcome::Deleted { count: 1 }, updated(1, 1), Outcome::Inserted],
        ),
        (vec![statement_update(&ns(), doc! { "k": 2 }, set(), false, true)], None, vec![updated(1, 1)]),
        (
            vec![statement_update(
                &ns(),
                doc! { "n": 7 },
                doc! { "$setOnInsert": { "_id": "c" } },
                true,
                true,
            )],
            None,
            vec![upserted("c")],
        ),
    ];
    for (statements, retry, expected) in ways {
        let meanwhile = Arc::new(Meanwhile::default());
        let write = Write { retry, interrupt: meanwhile.interrupt(), ..write_of(statements) };
        let (done, ()) = tokio::join!(bounded(engine.write(write)), meanwhile.others_write(&engine));
        let results: Vec<_> = done.unwrap().results.into_iter().map(Result::unwrap).collect();
        assert_eq!(results, expected);
    }
    let meanwhile = Arc::new(Meanwhile::default());
    let take = FindAndModify {
        ns: ns(),
        filter: filter(last(9)),
        sort: None,
        action: Modify::Remove,
        projection: None,
        hint: None,
        retry: None,
        ack: Ack::WRITTEN,
        bypass_validation: false,
        interrupt: meanwhile.interrupt(),
    };
    let (taken, ()) = tokio::join!(bounded(engine.find_and_modify(take)), meanwhile.others_write(&engine));
    assert!(taken.unwrap().found);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_parts_is_one_to_its_caller() {
    let engine = filled().await;
    let ns = ns();
    let none = || doc! { "n": 9 };
    let set = |value: i32| doc! { "$set": { "n": value } };
    let statements = || {
        vec![
            statement_update(&ns, none(), set(8), false, false),
            statement_insert(&ns, doc! { "_id": "new", "n": 9 }),
            statement_update(&ns, none(), set(8), false, false),
            statement_insert(&ns, doc! { "_id": "new" }),
            delete_one(doc! { "n": 8 }),
        ]
    };
    let retry = Retry { session: vec![1].into(), number: 1, statements: vec![] };
    for _ in 0..2 {
        let reply = write_retryable(&engine, statements(), retry.clone()).await.unwrap();
        let results: Vec<_> = reply.results.into_iter().map(|one| one.ok()).collect();
        assert_eq!(results, [Some(updated(0, 0)), Some(Outcome::Inserted), Some(updated(1, 1)), None]);
        assert_eq!(find(&engine, &ns, doc! { "n": 8 }).len(), 1);
    }
    let unordered = Write { ordered: false, ..write_of(statements()) };
    let results = bounded(engine.write(unordered)).await.unwrap().results;
    let failed: Vec<_> = results.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false, true, false]);
    assert!(find(&engine, &ns, doc! { "n": 8 }).is_empty());
    let divide = doc! { "$divide": [1, { "$subtract": ["$_id", 3999] }] };
    let wrong = doc! { "$expr": { "$gt": [divide, 1] } };
    let wrong = || Surroundings::default().parse_filter(wrong.raw()).unwrap();
    let mut failing = statement_update(&ns, none(), set(8), false, false);
    if let Statement::Update(update) = &mut failing {
        update.filter = wrong();
    }
    let last = || statement_insert(&ns, doc! { "_id": "last" });
    let reply =
        bounded(engine.write(write_of(vec![delete_one(doc! { "_id": "new" }), failing, last()]))).await;
    let failed: Vec<_> = reply.unwrap().results.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true], "it fails in its place");
    let mut failing = statement_update(&ns, none(), set(8), false, false);
    if let Statement::Update(update) = &mut failing {
        update.filter = wrong();
    }
    let mended = delete_one(doc! { "_id": 3999 });
    let reply = bounded(engine.write(write_of(vec![mended, failing]))).await;
    let failed: Vec<_> = reply.unwrap().results.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, false], "what came before has mended that");
    let twice = Retry { statements: vec![1, 2, 3, 4, 1], number: 2, ..retry };
    assert_eq!(write_retryable(&engine, statements(), twice).await.unwrap_err().code.number, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_parts_is_as_lasting_as_it_asks_for() {
    let engine = filled().await;
    let plain = Write { ack: Ack::SYNCED, ..write_of(vec![statement_insert(&ns(), doc! { "_id": "a" })]) };
    let expected = bounded(engine.write(plain)).await.unwrap().receipt.acked;
    let long = || delete_one(doc! { "n": 9 });
    let many = || statement_update(&ns(), doc! { "n": 1 }, doc! { "$set": { "n": 1 } }, true, false);
    let wrong = || statement_update(&ns(), doc! { "n": 1 }, doc! { "$inc": { "_id": 1 } }, true, false);
    let twice = || statement_insert(&ns(), doc! { "_id": "a" });
    let ways = [
        vec![],
        vec![long()],
        vec![long(), long()],
        vec![long(), twice()],
        vec![long(), twice(), long()],
        vec![long(), many()],
        vec![long(), wrong()],
        vec![long(), wrong(), long()],
    ];
    for statements in ways {
        let write = Write { ack: Ack::SYNCED, ..write_of(statements) };
        assert_eq!(bounded(engine.write(write)).await.unwrap().receipt.acked, expected);
    }
    assert_ne!(expected, engine.write(write_of(vec![])).await.unwrap().receipt.acked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_is_known_before_anything_is_looked_for() {
    let engine = filled().await;
    let take = |interrupt| FindAndModify {
        ns: ns(),
        filter: filter(doc! { "n": 3, "k": { "$lt": 1 }, "_id": { "$mod": [COUNT, COUNT - 1] } }),
        sort: None,
        action: Modify::Remove,
        projection: None,
        hint: None,
        retry: Some(Retry { session: vec![1].into(), number: 1, statements: vec![] }),
        ack: Ack::WRITTEN,
        bypass_validation: false,
        interrupt,
    };
    assert!(bounded(engine.find_and_modify(take(None))).await.unwrap().found);
    // The sequencer asks once before it does anything.
    let asked = AtomicUsize::new(0);
    let once = Interrupt::new(move || match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(Error::new(code::INTERRUPTED, "it was looked for")),
    });
    let again = bounded(engine.find_and_modify(take(Some(once)))).await.unwrap();
    assert!(again.found && again.retried);
}
