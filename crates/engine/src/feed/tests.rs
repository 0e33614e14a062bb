//! Streams that keep up, streams that do not, and what either costs the other.

use super::stream::ASIDE_TIME;
use super::*;
use crate::event::{Change, Token, key_of};
use crate::namespace::Namespace;
use rockdove_documents::{Doc, Scanned, Value, doc};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

struct Only(&'static str);

impl EventPipeline for Only {
    fn apply(&self, event: &Scanned<'_>) -> Result<Option<Doc>> {
        let operation = event.get("operationType").and_then(|operation| operation.as_str());
        Ok((self.0.is_empty() || operation == Some(self.0)).then(|| event.doc().clone()))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

fn at(n: u64) -> Timestamp {
    Timestamp::from_bits(1000 + n)
}

fn insert(n: u64, ns: &str) -> Arc<Event> {
    let doc = doc! { "_id": n as i64 };
    Event::new(at(n), 0, Namespace::parse(ns).unwrap(), [0; 16], Change::Insert { doc }).into()
}

fn feed(bytes_max: usize) -> Feed {
    Feed::start(7, at(0), bytes_max).unwrap()
}

fn follow(feed: &Feed, scope: Scope, only: &'static str, after: u64) -> Result<ChangeStream> {
    feed.follow(
        scope,
        View::default(),
        bytes::Bytes::from_static(only.as_bytes()),
        Arc::new(Only(only)),
        at(after),
    )
}

async fn ids(stream: &mut ChangeStream, count: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    while ids.len() < count {
        let batch = stream.next(3, 1 << 20, Duration::from_secs(5)).await.unwrap();
        assert!(!batch.events.is_empty(), "no event in 5 s after {ids:?}");
        for event in batch.events {
            let key =
                event.get("documentKey").and_then(|key| key.as_document()).and_then(|key| key.get("_id"));
            ids.push(key.and_then(|id| id.as_integer()).unwrap_or(-1));
        }
    }
    ids
}

fn collection() -> Scope {
    Scope::Collection(Namespace::parse("a.b").unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_see_their_scope_in_order_live_and_from_history() {
    let feed = feed(1 << 20);
    let mut live = follow(&feed, collection(), "", 0).unwrap();
    for n in 1..=40 {
        feed.publish(vec![insert(n, if n % 2 == 0 { "a.b" } else { "a.c" })], at(n));
    }
    let evens: Vec<i64> = (1..=20).map(|n| n * 2).collect();
    assert_eq!(ids(&mut live, 20).await, evens);
    let mut late = follow(&feed, collection(), "", 20).unwrap();
    assert_eq!(ids(&mut late, 10).await, evens[10..]);
    let mut database = follow(&feed, Scope::Database("a".into()), "insert", 0).unwrap();
    assert_eq!(ids(&mut database, 40).await, (1..=40).collect::<Vec<i64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_stream_moves_its_resume_token_on() {
    let feed = feed(1 << 20);
    let mut quiet = follow(&feed, collection(), "delete", 0).unwrap();
    feed.publish(vec![insert(1, "a.b")], at(1));
    let mut token = Doc::empty();
    for _ in 0..100 {
        token = quiet.next(9, 99, Duration::from_millis(20)).await.unwrap().resume_token;
        if Token::parse(Value::Document(token.raw())).unwrap().at == at(1) {
            return;
        }
    }
    panic!("the token stayed at {token:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_stream_loses_its_history_and_nobody_else_does() {
    let feed = feed(20 * insert(1, "a.b").bytes());
    let mut slow = follow(&feed, collection(), "", 0).unwrap();
    slow.group.leave();
    slow.group = feed.shared.join(
        GroupKey { scope: collection(), view: View::default(), stages: bytes::Bytes::from_static(b"x") },
        Arc::new(Only("")),
    );
    slow.group.matched.lock().complete_after = at(1_000_000);
    let mut quick = follow(&feed, collection(), "", 0).unwrap();
    for n in 1..=100 {
        feed.publish(vec![insert(n, "a.b")], at(n));
        assert_eq!(ids(&mut quick, 1).await, [n as i64]);
    }
    let lost = slow.next(9, 99, Duration::ZERO).await.unwrap_err();
    assert_eq!(lost.code.number, 286);
    assert!(follow(&feed, collection(), "", 50).is_err());
}

/// What the groups remember: events and bytes, as they are and as they are counted.
fn remembered(feed: &Feed) -> (usize, usize) {
    let groups: Vec<_> = feed.shared.groups().iter().cloned().collect();
    groups.iter().map(|group| group.remembered()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

fn large(n: u64, bytes: usize) -> Arc<Event> {
    let doc = doc! { "_id": n as i64, "text": "x".repeat(bytes) };
    Event::new(at(n), 0, Namespace::parse("a.b").unwrap(), [0; 16], Change::Insert { doc }).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_remember_no_more_bytes_than_they_may() {
    let feed = feed(1 << 30);
    let mut streams: Vec<_> = ["", "insert"].map(|only| follow(&feed, collection(), only, 0).unwrap()).into();
    for n in 1..=200 {
        feed.publish(vec![large(n, 100_000)], at(n));
    }
    for stream in &mut streams {
        // The streams see all of them: what their group has forgotten they read from the ring.
        assert_eq!(ids(stream, 200).await, (1..=200).collect::<Vec<i64>>());
    }
    let (events, bytes) = remembered(&feed);
    assert!(events > 2 && bytes <= 2 * (4 << 20), "{events} events, {bytes} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_let_go_of_what_the_ring_has_dropped() {
    let feed = feed(500_000);
    let mut read = follow(&feed, collection(), "", 0).unwrap();
    let other = Scope::Collection(Namespace::parse("a.c").unwrap());
    let mut slow = follow(&feed, other, "", 0).unwrap();
    for n in 1..=20 {
        feed.publish(vec![large(n, 10_000)], at(n));
    }
    feed.publish(vec![insert(21, "a.c")], at(21));
    assert_eq!(ids(&mut read, 20).await, (1..=20).collect::<Vec<i64>>());
    assert_eq!(remembered(&feed).0, 21);
    // Nothing more concerns these groups, but the ring moves on.
    for n in 22..=2000 {
        feed.publish(vec![insert(n, "a.d")], at(n));
    }
    let mut last = follow(&feed, Scope::Cluster, "", 1999).unwrap();
    assert_eq!(ids(&mut last, 1).await, [2000]);
    assert!(feed.stats().complete_after > at(21));
    assert!(read.group.remembered().1 <= 64 << 10);
    // A little is kept for who has not read it yet.
    assert_eq!(ids(&mut slow, 1).await, [21]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drop_ends_a_collection_stream_with_invalidate() {
    let feed = feed(1 << 20);
    let mut stream = follow(&feed, collection(), "", 0).unwrap();
    let drop = Event::new(at(2), 0, Namespace::parse("a.b").unwrap(), [0; 16], Change::Drop);
    feed.publish(vec![insert(1, "a.b"), drop.into()], at(2));
    let mut kinds = Vec::new();
    loop {
        let batch = stream.next(1, 1 << 20, Duration::from_secs(5)).await.unwrap();
        kinds.extend(
            batch.events.iter().map(|e| e.get("operationType").unwrap().as_str().unwrap().to_string()),
        );
        if batch.ended {
            break;
        }
    }
    assert_eq!(kinds, ["insert", "drop", "invalidate"]);
    assert_eq!(key_of(&doc! { "a": 1, "_id": 2 }), doc! { "_id": 2 });
}

/// Waits in every evaluation until it is let on.
struct Slow(Mutex<std::sync::mpsc::Receiver<()>>);

impl EventPipeline for Slow {
    fn apply(&self, event: &Scanned<'_>) -> Result<Option<Doc>> {
        let let_on = self.0.lock().recv_timeout(Duration::from_secs(30));
        let_on.map_err(|error| Error::bad_value(error.to_string()))?;
        Ok(Some(event.doc().clone()))
    }

    fn is_cheap(&self) -> bool {
        false
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_slow_pipeline_holds_up_its_own_stream_only() {
    let feed = feed(1 << 20);
    let (let_on, slow) = std::sync::mpsc::channel();
    let slow = Arc::new(Slow(Mutex::new(slow)));
    let stages = bytes::Bytes::from_static(b"slow");
    let mut slow = feed.follow(collection(), View::default(), stages, slow, at(0)).unwrap();
    let mut quick = follow(&feed, collection(), "", 0).unwrap();
    let mut cancelled = Box::pin(slow.next(9, 1 << 20, Duration::from_secs(30)));
    for n in 1..=3 {
        feed.publish(vec![insert(n, "a.b")], at(n)); // does not wait for the slow pipeline
        let waits = poll_fn(|context| Poll::Ready(cancelled.as_mut().poll(context).is_pending())).await;
        assert!(waits, "nothing was let on");
        assert_eq!(ids(&mut quick, 1).await, [n as i64]);
    }
    drop(cancelled);
    (0..10).for_each(|_| let_on.send(()).unwrap());
    assert_eq!(ids(&mut slow, 3).await, [1, 2, 3], "a cancelled wait loses nothing");
    drop(let_on);
    let turns =
        tokio::time::timeout(Duration::from_secs(5), feed.shared.aside.acquire_many(ASIDE_MAX as u32));
    assert!(turns.await.is_ok(), "turns come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cancelled_wait_had_found_comes_again() {
    let feed = feed(1 << 20);
    let (let_on, slow) = std::sync::mpsc::channel();
    let slow = Arc::new(Slow(Mutex::new(slow)));
    let stages = bytes::Bytes::from_static(b"slow");
    let mut slow = feed.follow(collection(), View::default(), stages, slow, at(0)).unwrap();
    feed.publish((1..=3).map(|n| insert(n, "a.b")).collect(), at(3));
    let meanwhile = async {
        let_on.send(()).unwrap();
        tokio::time::sleep(2 * ASIDE_TIME).await; // the second is the last of its turn
        let_on.send(()).unwrap();
        tokio::time::sleep(2 * ASIDE_TIME).await; // and the third is waited for
    };
    tokio::select! {
        batch = slow.next(9, 1 << 20, Duration::from_secs(30)) => panic!("{batch:?}"),
        () = meanwhile => {}
    }
    (0..10).for_each(|_| let_on.send(()).unwrap());
    assert_eq!(ids(&mut slow, 3).await, [1, 2, 3]);
}

#[tokio::test]
async fn a_waiting_stream_is_told_of_the_shutdown() {
    let feed = feed(1 << 20);
    let mut stream = follow(&feed, collection(), "", 0).unwrap();
    let mut waiting = pin!(stream.next(1, 1, Duration::from_secs(30)));
    let waits = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await;
    assert!(waits, "there is no event");
    feed.stop();
    let ended = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap();
    assert_eq!(ended.unwrap_err().code.number, 91);
}
