//! What change streams show of events from before a restart: the same as without one, or an honest refusal.

mod support;

use rockdove_documents::{Doc, Result, Value, doc};
use rockdove_engine::{
    BeforeChange, ChangeStream, Definition, Engine, FullDocument, Namespace, Options, Scope, StartAt, Token,
    View,
};
use std::path::Path;
use std::time::{Duration, Instant};
use support::*;

/// Small enough that a checkpoint comes soon, and nothing of the log goes with it.
fn options(dir: &Path) -> Options {
    Options { segment_bytes: 64 << 10, checkpoint_bytes: 64 << 10, ..Options::stored_in(dir) }
}

fn checkpoint(dir: &Path) -> String {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".checkpoint")).max().unwrap()
}

/// Writes until a checkpoint contains everything that was written before.
async fn checkpointed(engine: &Engine, dir: &Path) {
    let filler = Namespace::new("filler", "f").unwrap();
    if find(engine, &filler, doc! {}).is_empty() {
        insert(engine, &filler, doc! { "_id": 0 }).await.unwrap();
    }
    // Two of them: the first may have been under way already.
    for _ in 0..2 {
        let (before, started) = (checkpoint(dir), Instant::now());
        while checkpoint(dir) == before {
            assert!(started.elapsed() < Duration::from_secs(30), "no checkpoint is written");
            let text = doc! { "text": "x".repeat(30_000), "at": engine.operation_time() };
            update(engine, &filler, doc! { "_id": 0 }, text, false).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Writes until the log has lost its beginning.
async fn trimmed(engine: &Engine, dir: &Path) {
    let first = log_begins(dir);
    while log_begins(dir) == first {
        checkpointed(engine, dir).await;
    }
}

fn lookup() -> View {
    View { full_document: FullDocument::UpdateLookup, ..View::default() }
}

fn follow(engine: &Engine, scope: Scope, token: &Doc) -> Result<ChangeStream> {
    let token = Token::parse(Value::Document(token.raw())).unwrap();
    watch_in(engine, scope, lookup(), StartAt::After(token))
}

/// All there is now, each event as one line.
async fn shown(mut stream: ChangeStream) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let batch = bounded(stream.next(1000, 16 << 20, Duration::ZERO)).await.unwrap();
        if batch.events.is_empty() {
            return all;
        }
        all.extend(batch.events.iter().map(|event| {
            let text = |name: &str| event.get(name).map(|value| format!("{value:?}")).unwrap_or_default();
            [
                text("operationType"),
                text("ns"),
                text("documentKey"),
                text("fullDocument"),
                text("fullDocumentBeforeChange"),
                text("to"),
            ]
            .join(" ")
        }));
        if batch.ended {
            return all;
        }
    }
}

/// The engine after a restart.
async fn restarted(engine: Engine, dir: &Path) -> Engine {
    engine.close().await.unwrap();
    open(options(dir)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_show_their_documents_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(options(dir.path())).await;
    insert(&engine, &ns(), doc! { "_id": 0 }).await.unwrap();
    let token = engine.token_for_now();
    insert(&engine, &ns(), doc! { "_id": 1, "n": 0 }).await.unwrap();
    for n in 1..4 {
        update(&engine, &ns(), doc! { "_id": 1 }, doc! { "$set": { "n": n } }, false).await.unwrap();
    }
    update(&engine, &ns(), doc! { "_id": 1 }, doc! { "replaced": true }, false).await.unwrap();
    update(&engine, &ns(), doc! { "_id": 1 }, doc! { "$set": { "n": 9 } }, false).await.unwrap();
    delete(&engine, &ns(), doc! { "_id": 1 }, false).await.unwrap();
    insert(&engine, &ns(), doc! { "_id": 1, "n": 10 }).await.unwrap();
    let before = shown(follow(&engine, Scope::Collection(ns()), &token).unwrap()).await;
    assert_eq!(before.len(), 8);
    checkpointed(&engine, dir.path()).await;
    let engine = restarted(engine, dir.path()).await;
    assert_eq!(shown(follow(&engine, Scope::Collection(ns()), &token).unwrap()).await, before);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(options(dir.path())).await;
    let images = |enabled: bool| doc! { "changeStreamPreAndPostImages": { "enabled": enabled } };
    define(&engine, Definition::Create { ns: ns(), options: images(true) }).await.unwrap();
    let token = Token::parse(Value::Document(engine.token_for_now().raw())).unwrap();
    insert(&engine, &ns(), doc! { "_id": 1, "n": 0 }).await.unwrap();
    for n in 1..4 {
        update(&engine, &ns(), doc! { "_id": 1 }, doc! { "$set": { "n": n } }, false).await.unwrap();
    }
    delete(&engine, &ns(), doc! { "_id": 1 }, false).await.unwrap();
    // What was kept stays kept, whatever the collection does later.
    define(&engine, Definition::Modify { ns: ns(), changes: images(false) }).await.unwrap();
    let views = [FullDocument::WhenAvailable, FullDocument::Required].map(|full_document| View {
        full_document,
        before_change: BeforeChange::WhenAvailable,
        expanded: false,
    });
    let streams = |engine: &Engine| {
        views.map(|view| watch_in(engine, Scope::Collection(ns()), view, StartAt::After(token)).unwrap())
    };
    let mut before = Vec::new();
    for stream in streams(&engine) {
        before.push(shown(stream).await);
    }
    assert!(before.iter().all(|events| events.len() == 5));
    checkpointed(&engine, dir.path()).await;
    let engine = restarted(engine, dir.path()).await;
    for (stream, before) in streams(&engine).into_iter().zip(before) {
        assert_eq!(shown(stream).await, before);
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_from_before_the_first_write_is_good_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(options(dir.path())).await;
    let token = engine.token_for_now();
    insert(&engine, &ns(), doc! { "_id": 1 }).await.unwrap();
    let before = shown(follow(&engine, Scope::Cluster, &token).unwrap()).await;
    let engine = restarted(engine, dir.path()).await;
    assert_eq!(shown(follow(&engine, Scope::Cluster, &token).unwrap()).await, before);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_whose_document_is_older_than_the_log_shows_a_later_version() {
    let dir = tempfile::tempdir().unwrap();
    let small = Options { history_bytes: 8 << 10, ..options(dir.path()) };
    let engine = open(small).await;
    for id in [1, 2] {
        insert(&engine, &ns(), doc! { "_id": id, "n": 0 }).await.unwrap();
    }
    // So much that the log lets its beginning go, and the insertions with it.
    trimmed(&engine, dir.path()).await;
    let token = engine.token_for_now();
    for id in [1, 2] {
        update(&engine, &ns(), doc! { "_id": id }, doc! { "$set": { "n": 1 } }, false).await.unwrap();
        update(&engine, &ns(), doc! { "_id": id }, doc! { "$set": { "m": 2 } }, false).await.unwrap();
    }
    delete(&engine, &ns(), doc! { "_id": 2 }, false).await.unwrap();
    checkpointed(&engine, dir.path()).await;
    let engine = restarted(engine, dir.path()).await;
    let shown = shown(follow(&engine, Scope::Collection(ns()), &token).unwrap()).await;
    let later = format!("{:?}", Value::Document(doc! { "_id": 1, "n": 1, "m": 2 }.raw()));
    assert_eq!(shown.len(), 5);
    assert!(shown[..2].iter().all(|event| event.contains(&later)), "{shown:?}");
    let gone = format!(" {:?} ", Value::Null);
    assert!(shown[2..4].iter().all(|event| event.contains(&gone)), "{shown:?}");
    engine.close().await.unwrap();
}

/// The first segment of the log.
fn log_begins(dir: &Path) -> String {
    let names = std::fs::read_dir(dir.join("log")).unwrap().map(|e| e.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter(|name| name.starts_with(|first: char| first.is_ascii_digit())).min().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_keep_the_names_of_their_time() {
    let dir = tempfile::tempdir().unwrap();
    let small = Options { history_bytes: 32 << 10, ..options(dir.path()) };
    let mut engine = open(small.clone()).await;
    let name = |name: &str| Namespace::new("db", name).unwrap();
    let (mut before, mut id) = (Vec::new(), 0);
    insert(&engine, &name("d"), doc! { "_id": id }).await.unwrap();
    let mut token = engine.token_for_now();
    // In the second round the log no longer says how its collections were made.
    for round in 0..2 {
        for (from, to, drop_target) in
            [("a", "b", false), ("c", "a", false), ("b", "c", false), ("a", "c", true)]
        {
            for collection in [from, "d"] {
                id += 1;
                insert(&engine, &name(collection), doc! { "_id": id }).await.unwrap();
            }
            let rename = Definition::Rename { from: name(from), to: name(to), drop_target };
            define(&engine, rename).await.unwrap();
            id += 1;
            insert(&engine, &name(to), doc! { "_id": id }).await.unwrap();
        }
        before = shown(follow(&engine, Scope::Database("db".into()), &token).unwrap()).await;
        let of_a = shown(follow(&engine, Scope::Collection(name("a")), &token).unwrap()).await;
        checkpointed(&engine, dir.path()).await;
        engine = restarted(engine, dir.path()).await;
        let after = shown(follow(&engine, Scope::Database("db".into()), &token).unwrap()).await;
        assert_eq!(after, before, "round {round}");
        let after = shown(follow(&engine, Scope::Collection(name("a")), &token).unwrap()).await;
        assert_eq!(after, of_a, "round {round}");
        engine.close().await.unwrap();
        engine = open(small.clone()).await;
        define(&engine, Definition::Rename { from: name("c"), to: name("a"), drop_target: false })
            .await
            .unwrap();
        trimmed(&engine, dir.path()).await;
        engine = restarted(engine, dir.path()).await;
        token = engine.token_for_now();
    }
    assert!(before.len() > 12);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_history_has_no_silent_gap() {
    for is_old in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let small = Options { history_bytes: 8 << 10, ..options(dir.path()) };
        let engine = open(small).await;
        let gone = Namespace::new("db", "gone").unwrap();
        define(&engine, Definition::Create { ns: gone.clone(), options: Doc::empty() }).await.unwrap();
        if is_old {
            trimmed(&engine, dir.path()).await;
        }
        let token = engine.token_for_now();
        insert(&engine, &gone, doc! { "_id": 1 }).await.unwrap();
        define(&engine, Definition::Drop { ns: gone.clone() }).await.unwrap();
        insert(&engine, &ns(), doc! { "_id": 2 }).await.unwrap();
        let before = shown(follow(&engine, Scope::Database("db".into()), &token).unwrap()).await;
        assert_eq!(before.len(), 3);
        let later = engine.token_for_now();
        checkpointed(&engine, dir.path()).await;
        let engine = restarted(engine, dir.path()).await;
        match follow(&engine, Scope::Database("db".into()), &token) {
            Ok(stream) => assert_eq!((shown(stream).await, is_old), (before, false)),
            // Nobody knows the collection's name any more.
            Err(refused) => assert_eq!((refused.code.number, is_old), (286, true), "{refused}"),
        }
        assert!(follow(&engine, Scope::Database("db".into()), &later).is_ok());
        engine.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumed_after_its_last_event_still_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = open(options(dir.path())).await;
    let (database, to) = (Scope::Database("db".into()), Namespace::new("db", "to").unwrap());
    for (round, definition) in [
        Definition::Drop { ns: ns() },
        Definition::Rename { from: ns(), to, drop_target: true },
        Definition::DropDatabase { database: "db".into() },
    ]
    .into_iter()
    .enumerate()
    {
        let is_database = round == 2;
        let scope = if is_database { database.clone() } else { Scope::Collection(ns()) };
        insert(&engine, &ns(), doc! { "_id": 1 }).await.unwrap();
        let token = engine.token_for_now();
        define(&engine, definition).await.unwrap();
        insert(&engine, &ns(), doc! { "_id": 2 }).await.unwrap();
        for restart in [false, true] {
            if restart {
                engine = restarted(engine, dir.path()).await;
            }
            let mut stream = follow(&engine, scope.clone(), &token).unwrap();
            let batch = bounded(stream.next(1000, 16 << 20, Duration::ZERO)).await.unwrap();
            assert!(batch.ended);
            let last = batch.events.len() - 2;
            let (last, invalidate) = (&batch.events[last], &batch.events[last + 1]);
            let seen = last.get("_id").and_then(|id| id.as_document()).unwrap().to_doc();
            let mut resumed = follow(&engine, scope.clone(), &seen).unwrap();
            let batch = bounded(resumed.next(1000, 16 << 20, Duration::ZERO)).await.unwrap();
            assert_eq!((batch.events.len(), batch.ended), (1, true), "round {round}");
            assert_eq!(batch.events[0].bytes(), invalidate.bytes());
            // What follows more than what is gone goes on, and so does who starts after the end.
            let cluster = shown(follow(&engine, Scope::Cluster, &seen).unwrap()).await;
            assert!(cluster[0].contains("insert") && !cluster[0].contains("invalidate"), "{cluster:?}");
            let end = invalidate.get("_id").and_then(|id| id.as_document()).unwrap().to_doc();
            let again = shown(follow(&engine, scope.clone(), &end).unwrap()).await;
            assert!(again.len() == 1 && again[0].contains("insert"), "{again:?}");
        }
        define(&engine, Definition::DropDatabase { database: "db".into() }).await.unwrap();
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_ends_before_the_checkpoint_is_no_loss() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(options(dir.path())).await;
    insert(&engine, &ns(), doc! { "_id": 1 }).await.unwrap();
    let token = engine.token_for_now();
    // What a power cut leaves of a log that was not synced: its beginning.
    let log = copy_of(dir.path());
    insert(&engine, &ns(), doc! { "_id": 2 }).await.unwrap();
    checkpointed(&engine, dir.path()).await;
    engine.close().await.unwrap();
    std::fs::remove_dir_all(dir.path().join("log")).unwrap();
    std::fs::rename(log.path().join("log"), dir.path().join("log")).unwrap();
    let mut later = None;
    for n in 3..6 {
        let engine = open(options(dir.path())).await;
        assert_eq!(find(&engine, &ns(), doc! {}).len(), n - 1, "run {n}");
        let refused = follow(&engine, Scope::Cluster, &token).err().expect("the log has a gap after it");
        assert_eq!(refused.code.number, 286);
        let since = later.get_or_insert(engine.token_for_now());
        insert(&engine, &ns(), doc! { "_id": n as i32 }).await.unwrap();
        let shown = shown(follow(&engine, Scope::Collection(ns()), since).unwrap()).await;
        assert_eq!(shown.len(), n - 2);
        if n == 4 {
            checkpointed(&engine, dir.path()).await;
        }
        engine.close().await.unwrap();
    }
    // Without any log something else is wrong.
    std::fs::remove_dir_all(dir.path().join("log")).unwrap();
    let missing = Engine::open(options(dir.path())).expect_err("the log is missing");
    assert!(missing.to_string().contains("missing"), "{missing}");
}
