//! The rules of a connection, whatever the commands: order, flags, compression, damage, waiting, the end.

mod support;

use rockdove_documents::{Owned, Value, doc};
use rockdove_mongo::codec::{Compressor, Flags, encode_compressed, encode_msg, op_code};
use rockdove_mongo::connection::{IDLE, WRITE_STALL};
use rockdove_mongo::shared::{Counters, Shared};
use std::time::Duration;
use support::{Peer, cursor, number, server, until_waits};
use tokio::io::AsyncWriteExt;

const MORE_TO_COME: u32 = 2;
const EXHAUST_ALLOWED: u32 = 1 << 16;

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(peer.send(&doc! { "ping": 1, "$db": "admin" }).await);
    }
    for id in ids {
        let reply = peer.receive().await.unwrap();
        assert_eq!(reply.header.response_to, id);
    }
}

/// How long it takes until the server has closed the only connection. The clock goes where the next timer is.
async fn time_to_close(shared: &Shared) -> Duration {
    let start = tokio::time::Instant::now();
    while shared.clients.count() > 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(start.elapsed() < Duration::from_secs(3600), "it stays open");
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_not_used_is_closed() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    peer.good(&doc! { "ping": 1, "$db": "admin" }).await;
    let took = time_to_close(&shared).await;
    assert!((IDLE..IDLE + Duration::from_secs(3)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_no_reply_is_left() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    for n in 0..8 {
        let doc = doc! { "_id": n, "text": "x".repeat(15_000) };
        peer.good(&doc! { "insert": "c", "documents": [doc], "$db": "db" }).await;
    }
    peer.send(&doc! { "find": "c", "$db": "db" }).await;
    let took = time_to_close(&shared).await;
    assert!((WRITE_STALL..WRITE_STALL + Duration::from_secs(3)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn replies_sent_before_a_wait_are_counted() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let watch = doc! { "aggregate": "c", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "db" };
    let (id, _) = cursor(&peer.good(&watch).await);
    let counted = || Counters::get(&shared.counters.bytes_out);
    let before = counted();
    // In one piece, so that the first reply is written when the second request waits.
    let mut bytes = Vec::new();
    encode_msg(&mut bytes, 50, 0, Flags::NONE, doc! { "ping": 1, "$db": "admin" }.bytes());
    let more = doc! { "getMore": id, "collection": "c", "maxTimeMS": 60_000, "$db": "db" };
    encode_msg(&mut bytes, 51, 0, Flags::NONE, more.bytes());
    peer.stream.write_all(&bytes).await.unwrap();
    let reply = peer.receive().await.unwrap();
    until_waits(&shared, "getMore").await;
    assert_eq!(reply.header.response_to, 50);
    assert_eq!(counted() - before, reply.header.length as u64);
}

#[tokio::test]
async fn an_unacknowledged_request_gets_no_reply() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let insert = doc! { "insert": "c", "$db": "db", "documents": [{ "_id": 1 }], "writeConcern": { "w": 0 } };
    peer.send_with(MORE_TO_COME, &insert).await;
    peer.send_with(MORE_TO_COME, &doc! { "nonsense": 1, "$db": "db" }).await;
    let reply = peer.good(&doc! { "count": "c", "$db": "db" }).await;
    assert_eq!(number(&reply, "n"), 1);
}

#[tokio::test]
async fn what_was_sent_before_leaving_is_carried_out() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    for n in 0..50 {
        let insert =
            doc! { "insert": "c", "$db": "db", "documents": [{ "_id": n }], "writeConcern": { "w": 0 } };
        peer.send_with(MORE_TO_COME, &insert).await;
    }
    drop(peer);
    let mut other = Peer::connect(&shared);
    for _ in 0..200 {
        if number(&other.good(&doc! { "count": "c", "$db": "db" }).await, "n") == 50 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not all inserts arrived");
}

#[tokio::test]
async fn a_damaged_document_is_answered_and_the_connection_goes_on() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let mut bytes = Vec::new();
    encode_msg(&mut bytes, 77, 0, Flags::NONE, doc! { "ping": 1, "$db": "admin" }.bytes());
    let end = bytes.len() - 1;
    bytes[end] = 9;
    peer.stream.write_all(&bytes).await.unwrap();
    let reply = peer.receive().await.unwrap();
    assert_eq!((reply.header.response_to, number(&reply.doc, "code")), (77, 22));
    peer.good(&doc! { "ping": 1, "$db": "admin" }).await;
}

#[tokio::test]
async fn bytes_of_another_protocol_close_the_connection() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    peer.stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(peer.receive().await.is_none());
    let mut peer = Peer::connect(&shared);
    let hello = [&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3], &[0x5a; 500][..]].concat();
    peer.stream.write_all(&hello).await.unwrap();
    assert!(peer.receive().await.is_none(), "TLS");
}

#[tokio::test]
async fn a_compressed_request_gets_a_compressed_reply() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    for compressor in [Compressor::Snappy, Compressor::Zlib, Compressor::Zstd, Compressor::Noop] {
        let (mut plain, mut bytes) = (Vec::new(), Vec::new());
        encode_msg(&mut plain, 5, 0, Flags::NONE, doc! { "ping": 1, "$db": "admin" }.bytes());
        encode_compressed(&mut bytes, &plain, compressor).unwrap();
        peer.stream.write_all(&bytes).await.unwrap();
        let reply = peer.receive().await.unwrap();
        assert_eq!((reply.header.op_code, reply.header.response_to), (op_code::COMPRESSED, 5));
    }
}

#[tokio::test]
async fn commands_need_a_name_and_a_database() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    assert_eq!(peer.code(&doc! { "atlasVersion": 1, "$db": "admin" }).await, 59);
    assert_eq!(peer.code(&doc! {}).await, 59);
    assert_eq!(peer.code(&doc! { "ping": 1 }).await, 40571);
    assert_eq!(peer.code(&doc! { "ping": 1, "$db": "a b" }).await, 73);
    assert_eq!(peer.code(&doc! { "listDatabases": 1, "$db": "test" }).await, 13);
    peer.good(&doc! { "listCollections": null, "$db": "test" }).await;
}

#[tokio::test]
async fn hello_waits_for_a_change_and_the_end_is_told() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let first = peer.good(&doc! { "hello": 1, "$db": "admin" }).await;
    let version = first.get("topologyVersion").unwrap().as_document().unwrap();
    let waiting = doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 60_000, "$db": "admin" };
    peer.send(&waiting).await;
    until_waits(&shared, "hello").await;
    shared.topology.step_down();
    let reply = peer.receive().await.unwrap().doc;
    assert_eq!(reply.get("secondary"), Some(Value::Bool(true)));
    let version = reply.get("topologyVersion").unwrap().as_document().unwrap();
    let waiting = doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 60_000, "$db": "admin" };
    peer.send(&waiting).await;
    until_waits(&shared, "hello").await;
    shared.topology.stop();
    let reply = peer.receive().await.unwrap().doc;
    assert_eq!(number(&reply, "code"), 91);
    assert!(reply.get("topologyVersion").is_some());
    assert!(peer.receive().await.is_none());
}

#[tokio::test]
async fn refusals_while_stopping_tell_drivers_to_try_again() {
    let shared = server();
    let (mut writer, mut reader, mut watcher) =
        (Peer::connect(&shared), Peer::connect(&shared), Peer::connect(&shared));
    let watch = doc! { "aggregate": "c", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "db" };
    let cursor = cursor(&watcher.good(&watch).await).0;
    for peer in [&mut writer, &mut reader] {
        peer.good(&doc! { "ping": 1, "$db": "db" }).await;
    }
    shared.topology.stop();
    let session = doc! { "id": Owned::Binary { subtype: 4, bytes: vec![1; 16].into() } };
    let insert = doc! {
        "insert": "c", "documents": [{}], "lsid": session, "txnNumber": 1i64, "$db": "db",
    };
    let more = doc! { "getMore": cursor, "collection": "c", "$db": "db" };
    for (peer, command, label) in [
        (&mut writer, insert, Some("RetryableWriteError")),
        (&mut reader, doc! { "find": "c", "$db": "db" }, None),
        (&mut watcher, more, Some("ResumableChangeStreamError")),
    ] {
        let reply = peer.run(&command).await;
        assert_eq!(number(&reply, "code"), 91);
        let labels = reply.get("errorLabels").and_then(|labels| labels.as_array()?.get("0"));
        assert_eq!(labels.and_then(|label| label.as_str()), label, "{command:?}");
    }
}

#[tokio::test]
async fn a_parked_stream_is_told_of_the_stop() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let watch = doc! { "aggregate": "c", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "db" };
    let cursor = cursor(&peer.good(&watch).await).0;
    peer.send(&doc! { "getMore": cursor, "collection": "c", "maxTimeMS": 60_000, "$db": "db" }).await;
    tokio::time::sleep(Duration::from_millis(50)).await; // either way it is told: parked, or on its way
    shared.topology.stop();
    let reply = peer.receive().await.expect("an answer").doc;
    assert_eq!(number(&reply, "code"), 91);
    let labels = reply.get("errorLabels").and_then(|labels| labels.as_array()?.get("0"));
    assert_eq!(labels.and_then(|label| label.as_str()), Some("ResumableChangeStreamError"));
    assert!(peer.receive().await.is_none());
}

#[tokio::test]
async fn an_exhaust_hello_is_answered_again_and_again() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let first = peer.good(&doc! { "hello": 1, "$db": "admin" }).await;
    let version = first.get("topologyVersion").unwrap().as_document().unwrap();
    let waiting = doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 50, "$db": "admin" };
    let mut response_to = peer.send_with(EXHAUST_ALLOWED, &waiting).await;
    for _ in 0..3 {
        let reply = peer.receive().await.unwrap();
        assert_eq!(reply.header.response_to, response_to);
        assert_eq!(reply.flags, MORE_TO_COME);
        response_to = reply.header.request_id;
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_waiting_loses_no_events() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let watch = doc! { "aggregate": "c", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "db" };
    let (id, _) = cursor(&peer.good(&watch).await);
    let more = doc! { "getMore": id, "collection": "c", "maxTimeMS": 60_000, "$db": "db" };
    peer.send(&more).await;
    until_waits(&shared, "getMore").await;
    drop(peer);
    let mut peer = Peer::connect(&shared);
    peer.good(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "db" }).await;
    for _ in 0..100 {
        let reply = peer.run(&more).await;
        if reply.get("ok") == Some(Value::Double(1.0)) {
            assert_eq!(cursor(&reply).1.len(), 1);
            return;
        }
        assert_eq!(number(&reply, "code"), 12051, "in use until the server noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the cursor was never released");
}

#[tokio::test]
async fn fail_points_close_delay_and_fail() {
    let shared = server();
    let mut peer = Peer::connect(&shared);
    let set = |data: rockdove_documents::Doc| {
        doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data, "$db": "admin" }
    };
    let ping = doc! { "ping": 1, "$db": "admin" };
    peer.good(&set(doc! { "failCommands": ["ping"], "errorCode": 10107 })).await;
    let reply = peer.run(&ping).await;
    assert_eq!(number(&reply, "code"), 10107);
    assert!(reply.get("topologyVersion").is_some(), "a change of roles is dated");
    peer.good(&set(doc! { "failCommands": ["ping"], "blockConnection": true, "blockTimeMS": 80 })).await;
    let before = std::time::Instant::now();
    peer.good(&ping).await;
    assert!(before.elapsed() >= Duration::from_millis(80));
    peer.good(&set(doc! { "failCommands": ["insert"], "writeConcernError": { "code": 91, "errmsg": "x" } }))
        .await;
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "db" };
    let reply = peer.good(&insert).await;
    assert_eq!(number(&reply, "n"), 1);
    let error = reply.get("writeConcernError").unwrap().as_document().unwrap();
    assert_eq!(error.to_doc(), doc! { "code": 91, "errmsg": "x" });
    let data = doc! { "failCommands": ["hello"], "appName": "a", "errorCode": 8 };
    peer.good(&set(data)).await;
    let hello = doc! { "hello": 1, "client": { "application": { "name": "a" } }, "$db": "admin" };
    assert_eq!(peer.code(&hello).await, 8, "the name that comes with it counts");
    peer.good(&set(doc! { "failCommands": ["ping"], "closeConnection": true })).await;
    peer.send(&ping).await;
    assert!(peer.receive().await.is_none());
}
