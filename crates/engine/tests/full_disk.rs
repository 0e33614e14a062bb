//! A small disk that fills up, really.

#[path = "../../journal/tests/mount/mod.rs"]
mod mount;
mod support;

use mount::Mount;

use rockdove_documents::{Value, doc};
use rockdove_engine::{Engine, Namespace, Options};
use std::path::Path;
use support::*;

/// Inserts documents from `first` on until one is refused; the number of that one.
async fn fill(engine: &Engine, first: i32, bytes: usize) -> i32 {
    for n in first.. {
        match insert(engine, &ns(), doc! { "_id": n, "text": "x".repeat(bytes) }).await {
            Ok(_) => assert!(n < first + 20_000, "it never filled"),
            Err(refused) => {
                assert_eq!(refused.code.number, 14031, "{refused}");
                return n;
            }
        }
    }
    unreachable!("the numbers do not end")
}

/// A queue that needs a small document of its own for each that it lets go.
async fn drains_by_locks(engine: &Engine) {
    let locks = Namespace::new("db", "locks").unwrap();
    for n in 0..20 {
        insert(engine, &locks, doc! { "_id": n, "lock_id": "me" }).await.unwrap();
        delete(engine, &locks, doc! { "_id": n }, false).await.unwrap();
    }
    assert!(find(engine, &locks, doc! {}).is_empty());
}

/// Every document can be deleted, and then the disk takes new ones.
async fn drain(engine: &Engine, next: i32) {
    for doc in find(engine, &ns(), doc! {}) {
        let id = doc.get("_id").and_then(|id| id.as_integer()).unwrap();
        delete(engine, &ns(), doc! { "_id": id }, false)
            .await
            .unwrap_or_else(|error| panic!("{id}: {error}"));
    }
    let again = doc! { "_id": next, "text": "x".repeat(50_000) };
    let started = std::time::Instant::now();
    while let Err(refused) = insert(engine, &ns(), again.clone()).await {
        assert_eq!(refused.code.number, 14031, "{refused}");
        assert!(started.elapsed() < std::time::Duration::from_secs(30), "it does not recover: {refused}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    delete(engine, &ns(), doc! { "_id": next }, false).await.unwrap();
}

fn has_temporary(dir: &Path) -> bool {
    dir.join("checkpoint.tmp").exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_can_be_drained_and_takes_documents_again() {
    let Some(mount) = Mount::new(8 << 20) else { return };
    let dir = mount.path();
    let options = Options {
        segment_bytes: 1 << 20,
        checkpoint_bytes: 1 << 20,
        history_bytes: 2 << 20,
        ..Options::stored_in(dir)
    };
    let mut engine = open(options.clone()).await;
    let mut next = 0;
    for (round, bytes) in [50_000, 500, 200_000].into_iter().enumerate() {
        let (first, refused) = (next, fill(&engine, next, bytes).await);
        next = refused + 1;
        // The marks that consumers set go on, and what was refused once stays refused or not, but nothing is lost.
        let marked = update(&engine, &ns(), doc! {}, doc! { "$set": { "done": true } }, false).await.unwrap();
        assert!(matches!(marked, rockdove_engine::Outcome::Updated { matched: 1, .. }));
        if bytes > 4096 {
            drains_by_locks(&engine).await;
        }
        if round % 2 == 1 {
            engine.close().await.unwrap();
            engine = open(options.clone()).await;
            assert!(!has_temporary(dir), "opening leaves nothing of a failed checkpoint");
        }
        assert_eq!(find(&engine, &ns(), doc! {}).len() as i32, refused - first);
        drain(&engine, next).await;
        next += 1;
        assert!(find(&engine, &ns(), doc! {}).is_empty());
    }
    insert(&engine, &ns(), doc! { "_id": "last" }).await.unwrap();
    engine.close().await.unwrap();
    let engine = open(options).await;
    assert_eq!(find(&engine, &ns(), doc! {})[0].get("_id"), Some(Value::String("last")));
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_interrupted_checkpoint_left_is_gone_after_opening() {
    let dir = tempfile::tempdir().unwrap();
    open(Options::stored_in(dir.path())).await.close().await.unwrap();
    std::fs::write(dir.path().join("checkpoint.tmp"), "half").unwrap();
    let engine = open(Options::stored_in(dir.path())).await;
    assert!(!has_temporary(dir.path()));
    engine.close().await.unwrap();
}
