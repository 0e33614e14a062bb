//! Levels of acknowledgement and value at risk, over the wire.

mod support;

use rockdove_documents::{Doc, DocBuilder, Owned, Value, doc};
use rockdove_engine::{Engine, Level, Options, RiskPolicy, SyncPolicy};
use rockdove_mongo::busy_poll::{self, BusyPoll};
use rockdove_mongo::shared::Shared;
use rockdove_mongo::topology::Identity;
use std::path::Path;
use std::sync::Arc;
use support::{Peer, number, server};

/// A server that syncs only for what asks for it, with a cap of 10 on what is at risk.
async fn capped(dir: &Path) -> Arc<Shared> {
    let options = Options {
        sync: SyncPolicy::Never,
        risk: Some(RiskPolicy { total: Some(10), ..RiskPolicy::default() }),
        risk_fields: vec!["db.paid*=amount".parse().unwrap()],
        ..Options::stored_in(dir)
    };
    let engine = tokio::task::spawn_blocking(|| Engine::open(options)).await.unwrap().unwrap();
    Shared::new(
        Identity { has_risk_policy: true, ..Identity::default() },
        engine,
        BusyPoll::new(busy_poll::WINDOW),
        vec![],
    )
}

/// What is written from now on is lost, which its sync finds out.
fn lose_log(dir: &Path) {
    for file in std::fs::read_dir(dir.join("log")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "seg") {
            std::fs::remove_file(path).unwrap();
        }
    }
}

fn insert(collection: &str, id: i32, asked: Option<Doc>) -> Doc {
    let mut command = DocBuilder::new();
    command.append("insert", collection).append("$db", "db");
    command.start_array("documents").push(doc! { "_id": id, "amount": 4 }).end();
    if let Some(asked) = asked {
        command.append("rockdove", asked);
    }
    command.finish()
}

fn reached(reply: &Doc) -> Option<(String, bool)> {
    let told = reply.get("rockdove")?.as_document()?;
    Some((told.get("ack")?.as_str()?.to_owned(), told.get("degraded")?.as_bool()?))
}

fn part<'d>(doc: &'d Doc, path: &[&str]) -> Option<Value<'d>> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(doc.get(first)?, |value, name| value.as_document()?.get(name))
}

#[tokio::test]
async fn who_asks_for_a_level_is_told_what_was_reached() {
    let dir = tempfile::tempdir().unwrap();
    let shared = capped(dir.path()).await;
    let mut peer = Peer::connect(&shared);
    let hello = peer.good(&doc! { "hello": 1, "$db": "admin" }).await;
    assert_eq!(
        hello.get("rockdove").unwrap().as_document().unwrap().to_doc(),
        doc! { "acks": 1, "risk": true }
    );
    let cases = [
        (doc! {}, "async", false),
        (doc! { "ack": "async" }, "async", false),
        (doc! { "ack": "sync" }, "sync", false),
        (doc! { "ack": "quorum-sync" }, "quorum-sync", false),
        (doc! { "ack": "replicated" }, "async", true),
        (doc! { "ack": "replicated-or-sync" }, "sync", true),
        (doc! { "ack": "risk", "value": 5 }, "async", true),
        (doc! { "value": 100 }, "sync", false),
        (doc! { "ack": "async", "value": 100 }, "sync", false),
    ];
    for (id, (asked, level, degraded)) in (0..).zip(cases) {
        let reply = peer.good(&insert("c", id, Some(asked))).await;
        assert_eq!((number(&reply, "n"), reached(&reply)), (1, Some((level.to_owned(), degraded))), "{id}");
    }
    let plain = peer.good(&insert("c", 100, None)).await;
    assert_eq!((number(&plain, "n"), plain.get("rockdove")), (1, None), "who does not ask gets no field");
    let update = |more: Doc| {
        let mut command = DocBuilder::new();
        command.append_all(doc! { "$db": "db", "rockdove": { "ack": "sync" } }.raw());
        let mut all = DocBuilder::new();
        all.append_all(more.raw()).append_all(command.finish().raw());
        all.finish()
    };
    for command in [
        doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "x": 1 } }, "multi": true }] },
        doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": { "$set": { "x": 2 } } },
        doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] },
        doc! { "createIndexes": "c", "indexes": [{ "key": { "x": 1 }, "name": "x" }] },
        doc! { "create": "d" },
    ] {
        let reply = peer.good(&update(command)).await;
        assert_eq!(reached(&reply), Some(("sync".to_owned(), false)), "{reply:?}");
    }
    shared.engine.close().await.unwrap();
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let shared = capped(dir.path()).await;
    let mut peer = Peer::connect(&shared);
    assert_eq!(peer.code(&insert("c", 1, Some(doc! { "ack": "best" }))).await, 2);
    assert_eq!(peer.code(&insert("c", 1, Some(doc! { "value": (-1) }))).await, 2);
    assert_eq!(peer.code(&insert("c", 1, Some(doc! { "level": "sync" }))).await, 40415);
    assert_eq!(peer.code(&doc! { "find": "c", "rockdove": {}, "$db": "db" }).await, 40415);
    assert_eq!(peer.code(&doc! { "ping": 1, "rockdove": {}, "$db": "db" }).await, 40415);
    shared.engine.close().await.unwrap();
    // In memory there is no policy, and nothing is more than written.
    let memory = server();
    let mut peer = Peer::connect(&memory);
    assert_eq!(peer.code(&insert("c", 1, Some(doc! { "ack": "risk" }))).await, 72);
    let reply = peer.good(&insert("c", 1, Some(doc! { "ack": "sync", "value": 3 }))).await;
    assert_eq!(reached(&reply), Some(("async".to_owned(), true)));
    let hello = peer.good(&doc! { "hello": 1, "$db": "admin" }).await;
    assert_eq!(part(&hello, &["rockdove", "risk"]), Some(Value::Bool(false)));
}

#[tokio::test]
async fn an_unmodified_client_stays_within_the_cap() {
    let dir = tempfile::tempdir().unwrap();
    let shared = capped(dir.path()).await;
    let mut peer = Peer::connect(&shared);
    for id in 0..20 {
        assert_eq!(number(&peer.good(&insert("paid.orders", id, None)).await, "n"), 1);
    }
    let status = peer.good(&doc! { "serverStatus": 1, "$db": "admin" }).await;
    let risk = |path: &[&str]| {
        let path = [&["rockdove"], path].concat();
        part(&status, &path).and_then(|value| value.as_integer()).unwrap_or_else(|| panic!("no {path:?}"))
    };
    assert!((1..=10).contains(&risk(&["risk", "exposure", "ackedMax"])));
    assert!(risk(&["risk", "exposure", "value"]) <= 12);
    assert!(risk(&["syncs", "total"]) >= 6, "80 in all, and 10 may be at risk");
    assert_eq!(risk(&["risk", "policy", "cap"]), 10);
    let wrong = doc! { "insert": "paid", "documents": [{ "_id": 1, "amount": "?" }, { "_id": 2 }], "ordered": false,
    "$db": "db" };
    let reply = peer.good(&wrong).await;
    assert_eq!((number(&reply, "n"), reply.get("writeErrors").is_some()), (1, true));
    // With a time limit the answer waits just as long.
    let limited = doc! { "insert": "paid", "documents": [{ "_id": 3, "amount": 11 }],
    "writeConcern": { "w": 1, "wtimeout": 10_000 }, "rockdove": {}, "$db": "db" };
    assert_eq!(reached(&peer.good(&limited).await), Some(("sync".to_owned(), false)));
    shared.engine.close().await.unwrap();
}

/// The write is carried out, and the error says that it is not lasting; no label has a driver send it again.
#[tokio::test]
async fn a_log_that_has_failed_says_so_without_labels() {
    let dir = tempfile::tempdir().unwrap();
    let shared = capped(dir.path()).await;
    let mut peer = Peer::connect(&shared);
    peer.good(&insert("c", 1, None)).await;
    lose_log(dir.path());
    let retryable = |id: i32, number: i64, concern: Doc| {
        let session = doc! { "id": (Owned::Binary { subtype: 4, bytes: vec![7; 16].into() }) };
        doc! { "insert": "c", "documents": [{ "_id": id }], "$db": "db", "lsid": session, "txnNumber": number,
        "writeConcern": concern }
    };
    let reply = peer.good(&retryable(2, 1, doc! { "w": "majority", "j": true })).await;
    let code = |reply: &Doc| part(reply, &["writeConcernError", "code"]).and_then(|code| code.as_integer());
    assert_eq!((number(&reply, "n"), code(&reply)), (1, Some(64)));
    assert_eq!(reply.get("errorLabels"), None);
    assert_eq!(part(&reply, &["writeConcernError", "errInfo"]), None, "no time was over");
    let limited = retryable(2, 1, doc! { "j": true, "wtimeout": 10_000 });
    assert_eq!(code(&peer.good(&limited).await), Some(64), "also when it is repeated");
    peer.send(&retryable(3, 2, doc! {})).await;
    let refused = peer.receive().await.unwrap().doc;
    assert_eq!((number(&refused, "code"), refused.get("errorLabels")), (1, None));
    assert_eq!(number(&peer.good(&doc! { "count": "c", "$db": "db" }).await, "n"), 2, "reads go on");
}

/// A pipeline's results are there, and the error says that they are not lasting, however many writes it took.
#[tokio::test]
async fn results_of_a_pipeline_that_are_not_lasting() {
    for stage in [doc! { "$out": "o" }, doc! { "$merge": { "into": "o" } }] {
        let dir = tempfile::tempdir().unwrap();
        let shared = capped(dir.path()).await;
        let mut peer = Peer::connect(&shared);
        peer.good(&doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }], "$db": "db" }).await;
        let write = |concern: Doc| {
            doc! { "aggregate": "c", "pipeline": [(stage.clone())], "cursor": {}, "writeConcern": concern, "$db": "db" }
        };
        for concern in [doc! { "j": true }, doc! { "w": "majority", "j": true, "wtimeout": 10_000 }] {
            assert_eq!(peer.good(&write(concern)).await.get("writeConcernError"), None);
        }
        let code =
            |reply: &Doc| part(reply, &["writeConcernError", "code"]).and_then(|code| code.as_integer());
        assert_eq!(code(&peer.good(&write(doc! { "w": 2 })).await), Some(100));
        assert_eq!(peer.code(&write(doc! { "w": "majority", "x": 1 })).await, 40415);
        peer.good(&doc! { "delete": "o", "deletes": [{ "q": {}, "limit": 0 }], "$db": "db" }).await;
        lose_log(dir.path());
        let reply = peer.good(&write(doc! { "j": true })).await;
        assert_eq!(code(&reply), Some(64), "{stage:?}: {reply:?}");
        assert_eq!(number(&peer.good(&doc! { "count": "o", "$db": "db" }).await, "n"), 2, "{stage:?}");
    }
}

#[tokio::test]
async fn a_majority_can_mean_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { sync: SyncPolicy::Never, ..Options::stored_in(dir.path()) };
    let engine = tokio::task::spawn_blocking(|| Engine::open(options)).await.unwrap().unwrap();
    let shared = Shared::new(
        Identity { majority: Level::QuorumSync, ..Identity::default() },
        engine,
        BusyPoll::new(busy_poll::WINDOW),
        vec![],
    );
    let mut peer = Peer::connect(&shared);
    let mut level = async |concern: Doc| {
        let insert =
            doc! { "insert": "c", "documents": [{}], "writeConcern": concern, "rockdove": {}, "$db": "db" };
        reached(&peer.good(&insert).await).unwrap().0
    };
    assert_eq!(level(doc! { "w": "majority" }).await, "quorum-sync");
    assert_eq!(level(doc! { "w": 1 }).await, "async");
    let config = peer.good(&doc! { "replSetGetConfig": 1, "$db": "admin" }).await;
    assert_eq!(part(&config, &["config", "writeConcernMajorityJournalDefault"]), Some(Value::Bool(true)));
    shared.engine.close().await.unwrap();
}
