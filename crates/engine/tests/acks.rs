//! Levels of acknowledgement and value at risk, through the engine as protocols use it.

mod support;

use rockdove_documents::{code, doc};
use rockdove_engine::*;
use std::path::Path;
use support::*;

/// An engine that syncs only for what asks for it, with a cap of 10 on what is at risk.
fn capped(dir: &Path) -> Options {
    Options {
        sync: SyncPolicy::Never,
        risk: Some(RiskPolicy { total: Some(10), ..RiskPolicy::default() }),
        risk_fields: vec!["db.c=v".parse().unwrap()],
        ..Options::stored_in(dir)
    }
}

fn level(reply: &WriteReply) -> (Level, bool) {
    let acked = reply.receipt.acked.as_ref().unwrap();
    (acked.level, acked.degraded)
}

#[tokio::test]
async fn options_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let in_memory = Options { dir: None, ..capped(dir.path()) };
    assert!(matches!(Engine::open(in_memory), Err(OpenError::Options(_))));
    let without_policy = Options { risk: None, ..capped(dir.path()) };
    assert!(matches!(Engine::open(without_policy), Err(OpenError::Options(_))));
    let memory = open(Options::memory()).await;
    let write = Write { ack: Ack::SYNCED, ..write_of(vec![statement_insert(&ns(), doc! { "v": 1 })]) };
    assert_eq!(level(&bounded(memory.write(write)).await.unwrap()), (Level::Async, true));
    assert!(memory.risk().is_none() && memory.syncs().is_empty());
}

/// A statement that is carried out in portions is acknowledged when each of them is.
#[tokio::test]
async fn statements_in_portions_stay_within_the_cap() {
    const COUNT: i32 = 1800;
    let dir = tempfile::tempdir().unwrap();
    let engine = open(capped(dir.path())).await;
    let documents = (0..COUNT).map(|id| statement_insert(&ns(), doc! { "_id": id })).collect();
    let filled = bounded(engine.write(write_of(documents))).await.unwrap();
    assert_eq!(level(&filled), (Level::Async, false), "nothing has a value yet");
    let update = |set| write_of(vec![statement_update(&ns(), doc! {}, doc! { "$set": set }, true, false)]);
    let changed = bounded(engine.write(update(doc! { "v": 1 }))).await.unwrap();
    let expected = Outcome::Updated { matched: COUNT as u64, modified: COUNT as u64, upserted: None };
    assert_eq!(changed.results, [Ok(expected)]);
    assert_eq!(level(&changed), (Level::Sync, false), "500 a portion are more than 10");
    let risk = engine.risk().unwrap();
    let syncs =
        risk.syncs.iter().filter(|(cause, _)| *cause == Cause::Total).map(|(_, count)| count).sum::<u64>();
    assert!(risk.exposure.acked_max <= 10 && syncs >= 3, "{risk:?}");
    let seen = bounded(engine.write(update(doc! { "seen": true }))).await.unwrap();
    assert_eq!(level(&seen), (Level::Async, false), "the values are the same");

    let deferred = Ack { deferred: true, ..Ack::SYNCED };
    let write = Write { ack: deferred, ..update(doc! { "seen": false }) };
    let reply = bounded(engine.write(write)).await.unwrap();
    let owed = reply.receipt.owed.expect("the disk is still to be waited for");
    let settled = bounded(engine.settle(owed)).await.unwrap();
    assert_eq!(settled, Acked { level: Level::Sync, degraded: false });

    let valued = Ack { value: 40, ..Ack::at(Level::Risk) };
    let write = Write { ack: valued, ..update(doc! { "seen": 1 }) };
    let reply = bounded(engine.write(write)).await.unwrap();
    assert_eq!(
        level(&reply),
        (Level::Sync, false),
        "the value counts with the last portion, which is over the cap"
    );
    let too_much = Write { ack: Ack { value: VALUE_MAX + 1, ..valued }, ..update(doc! { "seen": 2 }) };
    assert_eq!(bounded(engine.write(too_much)).await.unwrap_err().code, code::BAD_VALUE);
    bounded(engine.close()).await.unwrap();
    let again = open(capped(dir.path())).await;
    assert_eq!(again.risk().unwrap().exposure.value, 0, "all that was found is on disk");
    bounded(again.close()).await.unwrap();
}

/// What was changed before, perhaps by an earlier try, is to be as lasting as is asked now.
#[tokio::test]
async fn statements_in_portions_wait_also_if_they_find_nothing_or_fail_midway() {
    const COUNT: i32 = 1800;
    let dir = tempfile::tempdir().unwrap();
    let engine = open(Options { sync: SyncPolicy::Never, ..Options::stored_in(dir.path()) }).await;
    let documents =
        (0..COUNT).map(|id| statement_insert(&ns(), doc! { "_id": id, "state": "new" })).collect();
    bounded(engine.write(write_of(documents))).await.unwrap();
    let finish = |ack| {
        let (new, done) = (doc! { "state": "new" }, doc! { "$set": { "state": "done" } });
        Write { ack, ..write_of(vec![statement_update(&ns(), new, done, true, false)]) }
    };
    assert_eq!(level(&bounded(engine.write(finish(Ack::WRITTEN))).await.unwrap()), (Level::Async, false));
    let again = bounded(engine.write(finish(Ack::SYNCED))).await.unwrap();
    assert_eq!(again.results, [Ok(Outcome::Updated { matched: 0, modified: 0, upserted: None })]);
    assert_eq!(level(&again), (Level::Sync, false));

    let unique = doc! { "key": { "k": 1 }, "name": "k_1", "unique": true, "sparse": true };
    let indexes = Definition::CreateIndexes { ns: ns(), specs: vec![unique] };
    bounded(engine.define(indexes, Ack::WRITTEN)).await.unwrap();
    let same = statement_update(&ns(), doc! {}, doc! { "$set": { "k": 1 } }, true, false);
    let failed = bounded(engine.write(Write { ack: Ack::SYNCED, ..write_of(vec![same]) })).await.unwrap();
    let error = failed.results[0].as_ref().unwrap_err();
    assert_eq!(error.error.code, code::DUPLICATE_KEY, "the second document");
    assert_eq!(level(&failed), (Level::Sync, false), "the first document is changed");
    bounded(engine.close()).await.unwrap();
}

/// Whether the first try's value was counted is not known when it is repeated.
#[tokio::test]
async fn a_repetition_with_a_value_is_acknowledged_when_all_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(capped(dir.path())).await;
    let insert = || Write {
        ack: Ack { value: 3, ..Ack::at(Level::Risk) },
        retry: Some(Retry { session: b"s"[..].into(), number: 1, statements: vec![] }),
        ..write_of(vec![statement_insert(&Namespace::new("db", "other").unwrap(), doc! { "_id": 1 })])
    };
    let first = bounded(engine.write(insert())).await.unwrap();
    assert_eq!((level(&first).0, first.retried.len()), (Level::Async, 0), "within the cap");
    let again = bounded(engine.write(insert())).await.unwrap();
    assert_eq!((level(&again), again.retried.len()), ((Level::Sync, false), 1));
    bounded(engine.close()).await.unwrap();
}
