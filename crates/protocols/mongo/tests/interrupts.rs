//! Long work: it ends in time, when it is killed and when nobody waits for it, and holds up nobody else.

mod support;

use rockdove_documents::{Doc, DocBuilder, Value, doc};
use rockdove_engine::Namespace;
use rockdove_mongo::shared::{HEAVY_READS_MAX, Shared};
use std::sync::Arc;
use std::time::Duration;
use support::{Peer, cursor, number, server, until_waits};

/// How long work that was ended may take to notice.
const PATIENCE: Duration = Duration::from_secs(60);

/// An expression that is true after about a minute.
fn endless() -> Doc {
    let sum = |input: Doc, body: Doc| doc! { "$reduce": { "input": input, "initialValue": 0, "in": body } };
    let inner = sum(doc! { "$range": [0, 100_000] }, doc! { "$add": ["$$value", "$$this"] });
    doc! { "$gte": [sum(doc! { "$range": [0, 1000] }, doc! { "$add": ["$$value", inner] }), 0] }
}

async fn filled(shared: &Arc<Shared>) -> Peer {
    let mut peer = Peer::connect(shared);
    let mut insert = DocBuilder::new();
    insert.append("insert", "c").append("$db", "db").start_array("documents");
    for n in 0..20 {
        insert.push(doc! { "_id": n, "n": 0 });
    }
    insert.end();
    peer.good(&insert.finish()).await;
    peer
}

/// Commands that would take long.
fn long_commands() -> Vec<Doc> {
    let query = doc! { "$expr": endless() };
    let set = doc! { "p": [{ "$set": { "n": { "$cond": [endless(), 1, 2] } } }] };
    let pipeline = set.get("p").unwrap();
    vec![
        doc! { "find": "c", "filter": &query, "$db": "db" },
        doc! { "find": "c", "projection": { "x": endless() }, "$db": "db" },
        doc! { "count": "c", "query": &query, "$db": "db" },
        doc! { "distinct": "c", "key": "n", "query": &query, "$db": "db" },
        doc! { "aggregate": "c", "pipeline": [{ "$group": { "_id": endless() } }], "cursor": {}, "$db": "db" },
        doc! { "aggregate": "c", "pipeline": [{ "$match": &query }, { "$out": "d" }], "cursor": {}, "$db": "db" },
        doc! { "explain": { "find": "c", "filter": &query }, "$db": "db" },
        doc! { "update": "c", "$db": "db",
        "updates": [{ "q": &query, "u": { "$set": { "n": 1 } }, "multi": true }] },
        doc! { "update": "c", "$db": "db", "updates": [{ "q": { "_id": 1 }, "u": pipeline }] },
        doc! { "delete": "c", "$db": "db", "deletes": [{ "q": &query, "limit": 0 }] },
        doc! { "findAndModify": "c", "query": &query, "remove": true, "$db": "db" },
        doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": pipeline, "$db": "db" },
    ]
}

fn with(command: &Doc, name: &str, value: i32) -> Doc {
    let mut all = DocBuilder::new();
    all.append_all(command.raw()).append(name, value);
    all.finish()
}

/// Nothing was changed, and nothing is under way any more: the sequencer and all turns for long reads are free.
async fn is_untouched(shared: &Arc<Shared>, peer: &mut Peer) {
    peer.good(&doc! { "insert": "other", "$db": "db", "documents": [{}] }).await;
    assert_eq!(number(&peer.good(&doc! { "count": "c", "query": { "n": 0 }, "$db": "db" }).await, "n"), 20);
    let turns = shared.heavy_reads.acquire_many(HEAVY_READS_MAX as u32);
    assert!(tokio::time::timeout(PATIENCE, turns).await.is_ok(), "all turns come back");
}

#[tokio::test]
async fn whatever_takes_too_long_ends_and_has_done_nothing() {
    let shared = server();
    let mut peer = filled(&shared).await;
    for command in long_commands() {
        assert_eq!(peer.code(&with(&command, "maxTimeMS", 50)).await, 50, "{command:?}");
        is_untouched(&shared, &mut peer).await;
    }
}

#[tokio::test]
async fn whatever_is_killed_ends_and_others_go_on_meanwhile() {
    let shared = server();
    let mut peer = filled(&shared).await;
    for command in long_commands() {
        let mut other = Peer::connect(&shared);
        other.send(&command).await;
        until_waits(&shared, command.raw().iter().next().unwrap().key()).await;
        // The runtime of this test has one thread, which answers.
        peer.good(&doc! { "ping": 1, "$db": "admin" }).await;
        assert_eq!(cursor(&peer.good(&doc! { "find": "c", "$db": "db" }).await).1.len(), 20);
        let operations = peer.good(&doc! { "currentOp": 1, "$db": "admin" }).await;
        let is_it = |operation: &Doc| {
            let shown = operation.get("command").and_then(|shown| shown.as_document()?.iter().next());
            shown.is_some_and(|first| first.key() == command.raw().iter().next().unwrap().key())
        };
        let operations = operations.get("inprog").unwrap().as_array().unwrap();
        let mut operations = operations.values().map(|operation| operation.as_document().unwrap().to_doc());
        let operation = operations.find(is_it).expect("it is shown");
        peer.good(&doc! { "killOp": 1, "op": operation.get("opid"), "$db": "admin" }).await;
        let reply = other.receive().await.unwrap().doc;
        assert_eq!(number(&reply, "code"), 11601, "{command:?}");
        is_untouched(&shared, &mut peer).await;
    }
}

#[tokio::test]
async fn a_read_ends_with_its_client() {
    let shared = server();
    let mut peer = filled(&shared).await;
    let mut other = Peer::connect(&shared);
    other.send(&long_commands()[0]).await;
    until_waits(&shared, "find").await;
    assert_eq!(shared.heavy_reads.available_permits(), HEAVY_READS_MAX - 1);
    drop(other);
    is_untouched(&shared, &mut peer).await;
}

#[tokio::test]
async fn a_write_goes_on_without_its_client() {
    let shared = server();
    let mut peer = filled(&shared).await;
    let mut other = Peer::connect(&shared);
    let slow = doc! { "$gte": [{ "$sum": { "$range": [0, 50_000] } }, 0] };
    let updates = doc! { "u": [{ "q": { "$expr": slow }, "u": { "$set": { "n": 1 } }, "multi": true }] };
    other.send(&doc! { "update": "c", "$db": "db", "updates": updates.get("u") }).await;
    until_waits(&shared, "update").await;
    drop(other);
    let count = doc! { "count": "c", "query": { "n": 1 }, "$db": "db" };
    let all = async {
        while number(&peer.good(&count).await, "n") < 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, all).await.is_ok(), "the update ended with its client");
}

#[tokio::test]
async fn a_slow_change_stream_does_not_hold_up_who_writes() {
    let shared = server();
    let mut peer = filled(&shared).await;
    let mut watcher = Peer::connect(&shared);
    let pipeline = doc! { "p": [{ "$changeStream": {} }, { "$match": { "$expr": endless() } }] };
    let watch = doc! { "aggregate": "c", "pipeline": pipeline.get("p"), "cursor": {}, "$db": "db" };
    let (id, _) = cursor(&watcher.good(&watch).await);
    watcher.send(&doc! { "getMore": id, "collection": "c", "maxTimeMS": 60_000, "$db": "db" }).await;
    until_waits(&shared, "getMore").await;
    let quick = doc! { "aggregate": "c", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "db" };
    let (quick, _) = cursor(&peer.good(&quick).await);
    for n in 100..110 {
        peer.good(&doc! { "insert": "c", "documents": [{ "_id": n }], "$db": "db" }).await;
        let next = peer.good(&doc! { "getMore": quick, "collection": "c", "$db": "db" }).await;
        assert_eq!(cursor(&next).1.len(), 1);
    }
    peer.good(&doc! { "killCursors": "c", "cursors": [id], "$db": "db" }).await;
    let reply = watcher.receive().await.unwrap().doc;
    assert_eq!(reply.get("code"), Some(Value::Int32(237)));
}

#[tokio::test]
async fn a_let_ends_in_time() {
    let shared = server();
    let mut peer = filled(&shared).await;
    let find = doc! { "find": "c", "let": { "x": endless() }, "maxTimeMS": 50, "$db": "db" };
    assert_eq!(peer.code(&find).await, 50);
}

/// What `$out` has filled so far is in a collection of its own.
#[tokio::test]
async fn a_replacement_that_is_killed_leaves_nothing_behind() {
    let shared = server();
    let mut peer = filled(&shared).await;
    let begun = || {
        let state = shared.engine.snapshot();
        state.in_database("db").any(|collection| collection.info.ns.collection().starts_with("tmp.agg_out"))
    };
    let until = async |is_begun: bool| {
        let reached = async {
            while begun() != is_begun {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("a collection beside the target comes and goes");
    };
    let out = doc! { "aggregate": "c", "pipeline": [
        { "$set": { "a": { "$range": [0, 2000] } } }, { "$unwind": "$a" }, { "$unset": "_id" }, { "$out": "o" },
    ], "cursor": {}, "$db": "db" };
    let mut other = Peer::connect(&shared);
    other.send(&out).await;
    until(true).await;
    let operations = peer.good(&doc! { "currentOp": 1, "command.aggregate": "c", "$db": "admin" }).await;
    let operations = operations.get("inprog").unwrap().as_array().unwrap();
    let id = operations.values().find_map(|operation| {
        let operation = operation.as_document()?;
        operation.get("command")?.as_document()?.get("aggregate")?;
        operation.get("opid")?.as_integer()
    });
    peer.good(&doc! { "killOp": 1, "op": id, "$db": "admin" }).await;
    assert_eq!(number(&other.receive().await.unwrap().doc, "code"), 11601);
    until(false).await;
    assert!(shared.engine.snapshot().collection(&Namespace::new("db", "o").unwrap()).is_none());
}
