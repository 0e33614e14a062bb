//! What a restart arrives at: the same documents, indexes, options, retry records and resume tokens.

mod support;

use rockdove_documents::{Doc, Value, doc};
use rockdove_engine::{
    Ack, Definition, Engine, IndexChoice, JournalOpenError, Namespace, OpenError, Options, Outcome, Retry,
    Token,
};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::*;

fn everything(engine: &Engine) -> Vec<String> {
    let state = engine.snapshot();
    let mut all = vec![format!("at {:?}", state.at())];
    for collection in state.collections() {
        all.push(format!("{} {:?} {:?}", collection.info.ns, collection.info.uuid, collection.info.options));
        all.extend(
            collection.indexes().iter().map(|index| format!("{:?} {}", index.spec.doc, index.tree.len())),
        );
        all.extend(collection.records().map(|(record, doc)| format!("{record} {:?}", doc.bytes())));
    }
    all
}

async fn fill(engine: &Engine, ns: &Namespace) {
    // Fields of one name twice are kept as they came (BSON allows for them, no driver makes them).
    let twice = b"\x1a\0\0\0\x10_id\0\xe7\x03\0\0\x10k\0\x01\0\0\0\x10k\0\x02\0\0\0\0";
    let mut twice = twice.to_vec();
    twice[0] = twice.len() as u8;
    insert(engine, ns, Doc::new(twice.into()).unwrap()).await.unwrap();
    let index = doc! { "key": { "b": -1, "a": 1 }, "name": "b_-1_a_1" };
    let ttl = doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": 3600 };
    define(engine, Definition::CreateIndexes { ns: ns.clone(), specs: vec![index, ttl] }).await.unwrap();
    for n in 0..200 {
        let doc = doc! { "_id": n, "z": 1, "a": n % 7, "b": [n, n + 1], "text": "x".repeat(200) };
        insert(engine, ns, doc).await.unwrap();
    }
    update(engine, ns, doc! { "a": 3 }, doc! { "$push": { "b": "more" }, "$unset": { "z": "" } }, true)
        .await
        .unwrap();
    update(engine, ns, doc! { "_id": 5 }, doc! { "only": "this" }, false).await.unwrap();
    delete(engine, ns, doc! { "a": 4 }, true).await.unwrap();
    let capped = doc! { "capped": true, "size": 100_000, "max": 3 };
    let log = Namespace::new("db", "log").unwrap();
    define(engine, Definition::Create { ns: log.clone(), options: capped }).await.unwrap();
    for n in 0..10 {
        insert(engine, &log, doc! { "_id": n }).await.unwrap();
    }
    let old = Namespace::new("db", "old").unwrap();
    insert(engine, &old, doc! { "_id": 1 }).await.unwrap();
    let new = Namespace::new("other", "new").unwrap();
    define(engine, Definition::Rename { from: old, to: new, drop_target: false }).await.unwrap();
    let gone = Namespace::new("db", "gone").unwrap();
    insert(engine, &gone, doc! { "_id": 1 }).await.unwrap();
    define(engine, Definition::Drop { ns: gone }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_is_the_same_after_a_clean_and_an_unclean_end() {
    for clean in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(Options::stored_in(dir.path())).await;
        fill(&engine, &ns()).await;
        let before = everything(&engine);
        assert!(before.len() > 150);
        // Without a clean end the next opening finds what a killed process leaves: the files as they are now.
        let copy = if clean { None } else { Some(copy_of(dir.path())) };
        engine.close().await.unwrap();
        let folder = copy.as_ref().map_or(dir.path(), |copy| copy.path());
        let engine = open(Options::stored_in(folder)).await;
        assert_eq!(everything(&engine), before, "clean: {clean}");
        insert(&engine, &ns(), doc! { "_id": "after" }).await.unwrap();
        engine.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_replace_history() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        segment_bytes: 1 << 20,
        checkpoint_bytes: 2 << 20,
        history_bytes: 1 << 20,
        ..Options::stored_in(dir.path())
    };
    let engine = open(options.clone()).await;
    fill(&engine, &ns()).await;
    let churn = Namespace::new("db", "churn").unwrap();
    let big = "x".repeat(10_000);
    for n in 0..2000 {
        insert(&engine, &churn, doc! { "_id": n, "big": &big }).await.unwrap();
        delete(&engine, &churn, doc! { "_id": n }, false).await.unwrap();
    }
    eventually("a checkpoint is written", || checkpoints(dir.path()) != [FIRST]).await;
    let before = everything(&engine);
    engine.close().await.unwrap();
    let engine = open(options).await;
    assert_eq!(everything(&engine), before);
    let written = 4000;
    assert!(engine.recovery().batches < written, "{:?}", engine.recovery());
    engine.close().await.unwrap();
}

/// The checkpoint that a new data folder begins with.
const FIRST: &str = "00000000000000000000.checkpoint";

fn checkpoints(dir: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".checkpoint")).collect()
}

/// Lets the keeper look at everything more than once: it looks four times a second.
async fn one_look() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// A data folder whose next checkpoint takes until the file behind the path is opened to be read: a pipe lies where it is
/// to be written.
fn next_checkpoint_waits(dir: &Path) -> PathBuf {
    let pipe = dir.join("checkpoint.tmp");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    pipe
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_holds_up_neither_expiry_nor_the_end_but_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        Options { segment_bytes: 1 << 20, checkpoint_bytes: 1 << 20, ..Options::stored_in(dir.path()) };
    let engine = open(options.clone()).await;
    let pipe = next_checkpoint_waits(dir.path());
    let over = Namespace::new("db", "over").unwrap();
    let ttl = doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": 0 };
    define(&engine, Definition::CreateIndexes { ns: over.clone(), specs: vec![ttl] }).await.unwrap();
    for n in 0..300 {
        insert(&engine, &ns(), doc! { "_id": n, "big": "x".repeat(10_000) }).await.unwrap();
    }
    one_look().await;
    insert(&engine, &over, doc! { "at": Value::DateTime(1) }).await.unwrap();
    eventually("the document is over", || find(&engine, &over, doc! {}).is_empty()).await;

    let closing = tokio::spawn({
        let engine = engine.clone();
        async move { engine.close().await }
    });
    one_look().await;
    let second = options.clone();
    let second = tokio::task::spawn_blocking(move || Engine::open(second).err()).await.unwrap();
    assert!(matches!(second, Some(OpenError::Journal(JournalOpenError::Locked { .. }))), "{second:?}");
    let read = tokio::task::spawn_blocking(move || {
        std::io::copy(&mut std::fs::File::open(pipe)?, &mut std::io::sink())
    });
    bounded(closing).await.unwrap().unwrap();
    bounded(read).await.unwrap().unwrap();
    assert_eq!(checkpoints(dir.path()), [FIRST], "into a pipe none can be written");
    let engine = open(options).await;
    assert_eq!(find(&engine, &ns(), doc! {}).len(), 300);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_is_no_reason_for_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        Options { segment_bytes: 1 << 20, checkpoint_bytes: 1 << 20, ..Options::stored_in(dir.path()) };
    for _ in 0..2 {
        let engine = open(options.clone()).await;
        one_look().await;
        assert_eq!(checkpoints(dir.path()), [FIRST]);
        engine.close().await.unwrap();
    }
    // But a long log is one, wherever it was written.
    let long = Options { checkpoint_bytes: u64::MAX, ..options.clone() };
    let engine = open(long).await;
    for n in 0..20 {
        insert(&engine, &ns(), doc! { "_id": n, "text": "x".repeat(100_000) }).await.unwrap();
    }
    one_look().await;
    assert_eq!(checkpoints(dir.path()), [FIRST]);
    engine.close().await.unwrap();
    let engine = open(options).await;
    eventually("a checkpoint is written", || checkpoints(dir.path()) != [FIRST]).await;
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_write_runs_once_even_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(Options::stored_in(dir.path())).await;
    let retry = Retry { session: bytes::Bytes::from_static(b"session-1"), number: 7, statements: vec![] };
    let inc = || statement_update(&ns(), doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } }, false, true);
    let first = write_retryable(&engine, vec![inc()], retry.clone()).await.unwrap();
    assert_eq!(first.retried, [0; 0]);
    let again = write_retryable(&engine, vec![inc()], retry.clone()).await.unwrap();
    assert_eq!((again.retried, &again.results), (vec![0], &first.results));
    engine.close().await.unwrap();
    let engine = open(Options::stored_in(dir.path())).await;
    let again = write_retryable(&engine, vec![inc()], retry.clone()).await.unwrap();
    assert_eq!((again.retried, &again.results), (vec![0], &first.results));
    assert_eq!(find(&engine, &ns(), doc! {}).len(), 1);
    assert_eq!(find(&engine, &ns(), doc! {})[0].get("n"), Some(Value::Int32(1)));
    let newer = write_retryable(&engine, vec![inc()], Retry { number: 8, ..retry.clone() }).await.unwrap();
    assert!(matches!(newer.results[0], Ok(Outcome::Updated { matched: 1, modified: 1, .. })));
    assert_eq!(write_retryable(&engine, vec![inc()], retry).await.unwrap_err().code.number, 225);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_token_is_good_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(Options::stored_in(dir.path())).await;
    insert(&engine, &ns(), doc! { "_id": 1 }).await.unwrap();
    let token = engine.token_for_now();
    insert(&engine, &ns(), doc! { "_id": 2 }).await.unwrap();
    update(&engine, &ns(), doc! { "_id": 2 }, doc! { "$set": { "a": 1 } }, false).await.unwrap();
    engine.close().await.unwrap();
    let engine = open(Options::stored_in(dir.path())).await;
    insert(&engine, &ns(), doc! { "_id": 3 }).await.unwrap();
    let token = Token::parse(Value::Document(token.raw())).unwrap();
    let mut stream = watch(&engine, rockdove_engine::StartAt::After(token)).unwrap();
    assert_eq!(operations(&mut stream, 3).await, ["insert", "update", "insert"]);
    let foreign = Token { epoch: token.epoch ^ 1, ..token };
    assert_eq!(watch(&engine, rockdove_engine::StartAt::After(foreign)).err().unwrap().code.number, 286);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_set_back_keeps_times_growing() {
    let dir = tempfile::tempdir().unwrap();
    let now = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(1_800_000_000_000));
    let clock = now.clone();
    let clock = rockdove_engine::Clock::new(move || clock.load(std::sync::atomic::Ordering::Relaxed));
    let engine = open(Options { clock, ..Options::stored_in(dir.path()) }).await;
    let mut last = engine.operation_time();
    for (n, step) in [0, 5_000, -3_600_000, 10, -86_400_000].into_iter().enumerate() {
        now.fetch_add(step, std::sync::atomic::Ordering::Relaxed);
        insert(&engine, &ns(), doc! { "_id": n as i32 }).await.unwrap();
        assert!(engine.operation_time() > last);
        last = engine.operation_time();
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_engine_on_the_same_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(Options::stored_in(dir.path())).await;
    let second = Engine::open(Options::stored_in(dir.path())).expect_err("the folder is in use");
    assert!(second.to_string().contains("in use"), "{second}");
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_wait_for_the_disk_are_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let engine =
        open(Options { sync: rockdove_engine::SyncPolicy::Never, ..Options::stored_in(dir.path()) }).await;
    let mut write = write_of(vec![statement_insert(&ns(), doc! { "_id": 1 })]);
    write.ack = Ack::SYNCED;
    bounded(engine.write(write)).await.unwrap();
    bounded(engine.sync()).await.unwrap();
    define(&engine, Definition::DropIndexes { ns: ns(), which: IndexChoice::All }).await.unwrap();
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_set_back_between_two_runs_keeps_terms_growing() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for day in [20_000, 20_001, 19_000, 0, 19_000, 20_002] {
        let clock = rockdove_engine::Clock::new(move || day * 86_400_000);
        let engine = open(Options { clock, ..Options::stored_in(dir.path()) }).await;
        assert!(engine.first_term() > last, "{} after {last} on day {day}", engine.first_term());
        last = engine.first_term();
        engine.close().await.unwrap();
    }
}
