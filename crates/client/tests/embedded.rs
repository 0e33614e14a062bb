//! The library on the engine in this process.

use futures_util::future::join_all;
use parking_lot::Mutex;
use rockdove::{
    Bus, Delivery, Embedded, EmbeddedOptions, HandlerError, Layout, Level, Message, MessageId, Reject,
    RiskPolicy, SendError, SendOptions, SyncPolicy,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// No test waits longer than this.
const LIMIT: Duration = Duration::from_secs(20);

async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn connect(store: &Embedded, id: &str) -> Bus {
    connect_as(store, Layout::Standard, id).await
}

async fn connect_as(store: &Embedded, layout: Layout, id: &str) -> Bus {
    store.bus().layout(layout).sender_id(id).connect().await.unwrap()
}

/// A listener that counts its calls.
fn count(
    counter: &Arc<AtomicUsize>,
) -> impl Fn(Delivery) -> std::future::Ready<Result<(), HandlerError>> + use<> {
    let counter = counter.clone();
    move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(()))
    }
}

#[tokio::test]
async fn broadcasts_directed_messages_and_requests() {
    for layout in Layout::ALL {
        every_pattern(layout).await;
    }
}

async fn every_pattern(layout: Layout) {
    let store = Embedded::memory().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|id| connect_as(&store, layout, id));
    let (a, b, c) = tokio::join!(a, b, c);
    let (at_b, at_c) = (Arc::default(), Arc::default());
    b.subscribe("t", count(&at_b)).await.unwrap();
    c.subscribe("t", count(&at_c)).await.unwrap();
    c.subscribe("q", |request| async move { Ok(request.derive_answer().value("pong")) }).await.unwrap();
    join_all([&a, &b, &c].map(Bus::ready)).await;
    a.publish(Message::new("t")).await.unwrap();
    a.publish(Message::new("t").to("b")).await.unwrap();
    let answer = a.request_first(Message::new("q"), LIMIT).await.unwrap();
    assert_eq!(answer.value.as_deref(), Some("pong"));
    let answer = a.request_first(Message::new("q").exclusive(true), LIMIT).await.unwrap();
    assert_eq!(answer.value.as_deref(), Some("pong"));
    eventually("all heard", async || (at_b.load(Ordering::SeqCst), at_c.load(Ordering::SeqCst)) == (2, 1))
        .await;
    join_all([&a, &b, &c].map(Bus::shutdown)).await;
    store.close().await.unwrap();
    assert!(a.publish(Message::new("t")).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_messages_are_processed_once_whatever_fails() {
    for layout in Layout::ALL {
        exclusive_once(layout).await;
    }
}

async fn exclusive_once(layout: Layout) {
    let store = Embedded::memory().unwrap();
    let sender = connect_as(&store, layout, "sender").await;
    let done: Arc<Mutex<Vec<String>>> = Arc::default();
    let tries = Arc::new(AtomicUsize::new(0));
    let mut nodes = Vec::new();
    for id in ["n1", "n2", "n3"] {
        let (bus, done, tries) = (connect_as(&store, layout, id).await, done.clone(), tries.clone());
        bus.subscribe("t", move |message| {
            let nth = tries.fetch_add(1, Ordering::SeqCst);
            let done = done.clone();
            async move {
                match nth % 10 {
                    3 => return Err(HandlerError::failed("no luck")),
                    6 => return Err(Reject::new("not now").into()),
                    _ => tokio::time::sleep(Duration::from_millis(1)).await,
                }
                done.lock().push(message.value.clone().unwrap());
                Ok(())
            }
        })
        .await
        .unwrap();
        nodes.push(bus);
    }
    let all = 300;
    let message = |n| {
        Message::new("t")
            .value(format!("{n}"))
            .exclusive(true)
            .never_expires()
            .delete_after_processing(Duration::ZERO)
    };
    sender.send_many((0..all).map(message).collect()).await.unwrap();
    eventually("all done", async || done.lock().len() >= all).await;
    eventually("all removed", async || nodes[0].pending().await.unwrap() == 0).await;
    let mut values = done.lock().clone();
    values.sort_unstable();
    values.dedup();
    assert_eq!((values.len(), done.lock().len()), (all, all));
    join_all(nodes.iter().map(Bus::shutdown)).await;
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_waits_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path()).unwrap();
    let a = connect(&store, "a").await;
    a.publish(Message::new("t").value("kept").never_expires()).await.unwrap();
    a.shutdown().await;
    store.close().await.unwrap();
    drop((a, store));
    let store = Embedded::open(dir.path()).unwrap();
    let b = connect(&store, "b").await;
    let heard = Arc::default();
    b.subscribe("t", count(&heard)).await.unwrap();
    eventually("heard", async || heard.load(Ordering::SeqCst) == 1).await;
    b.shutdown().await;
    store.close().await.unwrap();
    drop((b, store));
    let store = Embedded::open(dir.path()).unwrap();
    let b = connect(&store, "b").await;
    b.subscribe("t", count(&heard)).await.unwrap();
    b.ready().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(heard.load(Ordering::SeqCst), 1, "its mark survived too");
    b.shutdown().await;
    store.close().await.unwrap();
}

#[tokio::test]
async fn two_queues_and_two_databases_do_not_meet() {
    let store = Embedded::memory().unwrap();
    let other = store.clone().database("other");
    let heard = Arc::default();
    let buses = [
        store.bus().queue("shop").sender_id("a").connect().await.unwrap(),
        other.bus().sender_id("b").connect().await.unwrap(),
    ];
    for bus in &buses {
        bus.subscribe("t", count(&heard)).await.unwrap();
        bus.ready().await;
    }
    let sender = connect(&store, "sender").await;
    sender.publish(Message::new("t")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(heard.load(Ordering::SeqCst), 0);
    let shop = store.bus().queue("shop").send_only().connect().await.unwrap();
    shop.publish(Message::new("t")).await.unwrap();
    eventually("heard", async || heard.load(Ordering::SeqCst) == 1).await;
}

/// Listeners come and go on several topics of one collection each while messages are sent: none is lost, none is
/// processed twice, whatever lanes are made and retired meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_that_come_and_go_lose_nothing() {
    for layout in Layout::ALL {
        let store = Embedded::memory().unwrap();
        let sender = connect_as(&store, layout, "sender").await;
        let done: Arc<Mutex<Vec<String>>> = Arc::default();
        let listen = |bus: Bus, topic: &'static str, done: Arc<Mutex<Vec<String>>>| async move {
            bus.subscribe(topic, move |message| {
                done.lock().push(message.value.clone().unwrap());
                std::future::ready(Ok(()))
            })
            .await
            .unwrap()
        };
        let nodes = [connect_as(&store, layout, "n1").await, connect_as(&store, layout, "n2").await];
        let topics = ["a", "b", "a.c", "a_c"];
        let (per_topic, rounds) = (50, 30);
        let send = async {
            for n in 0..per_topic {
                for topic in topics {
                    let message = Message::new(topic).value(format!("{topic} {n}")).exclusive(true);
                    sender.publish(message.never_expires()).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let churn = async {
            for round in 0..rounds {
                let mut listening = Vec::new();
                for (place, topic) in topics.iter().enumerate() {
                    let bus = &nodes[(round + place) % 2];
                    listening.push(listen(bus.clone(), topic, done.clone()).await);
                }
                tokio::time::sleep(Duration::from_millis(4)).await;
                listening.into_iter().for_each(rockdove::Subscription::cancel);
            }
            for (place, topic) in topics.iter().enumerate() {
                listen(nodes[place % 2].clone(), topic, done.clone()).await;
            }
        };
        tokio::join!(send, churn);
        let all = per_topic * topics.len();
        eventually("all processed", async || done.lock().len() >= all).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut values = done.lock().clone();
        values.sort_unstable();
        values.dedup();
        assert_eq!((values.len(), done.lock().len()), (all, all), "{layout:?}");
        join_all(nodes.iter().chain([&sender]).map(Bus::shutdown)).await;
        store.close().await.unwrap();
    }
}

/// A store that syncs only for what asks for it, with a cap of 10 on what is at risk.
fn capped(dir: &std::path::Path) -> Embedded {
    let options = EmbeddedOptions {
        sync: SyncPolicy::Never,
        risk: Some(RiskPolicy { total: Some(10), ..RiskPolicy::default() }),
        ..EmbeddedOptions::stored_in(dir)
    };
    Embedded::open_with(options).unwrap()
}

#[tokio::test]
async fn a_send_says_what_was_reached() {
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().unwrap();
        let store = capped(dir.path());
        let (a, b) = (connect_as(&store, layout, "a").await, connect_as(&store, layout, "b").await);
        let send = async |options| {
            let sent = a.publish_with(Message::new("t"), options).await.unwrap();
            (sent.ack, sent.degraded)
        };
        let options = SendOptions::new;
        assert_eq!(send(options()).await, (Level::Async, true), "a majority of one node");
        assert_eq!(send(options().ack(Level::Async)).await, (Level::Async, false));
        assert_eq!(send(options().ack(Level::Sync)).await, (Level::Sync, false));
        assert_eq!(send(options().value(10)).await, (Level::Async, true));
        assert_eq!(send(options().value(11)).await, (Level::Sync, false));
        let negative = a.publish_with(Message::new("t"), options().value(-1)).await;
        assert!(matches!(negative, Err(SendError::Value(-1))));
        let id = MessageId::generate();
        let fresh = || Message::new("t").with_id(id.clone());
        assert_eq!(a.publish_with(fresh(), options().ack(Level::Sync)).await.unwrap().id, id);
        let taken = b.publish_with(fresh(), options().ack(Level::Sync)).await;
        assert!(matches!(taken, Err(SendError::Duplicate(_))), "{taken:?}");

        b.subscribe("q", |question| async move { Ok(question.derive_answer().value("yes")) }).await.unwrap();
        b.ready().await;
        a.ready().await;
        let synced = options().ack(Level::Sync);
        let mut answers = a.request_stream_with(Message::new("q"), synced, LIMIT).await.unwrap();
        assert_eq!(answers.sent().map(|sent| sent.ack), Some(Level::Sync));
        let answer = answers.next().await.unwrap().unwrap();
        assert_eq!(answer.value.as_deref(), Some("yes"));
        let again = b.send_answer_with(&answer, answer.derive_answer(), synced).await.unwrap();
        assert_eq!(again.ack, Level::Sync);
        for bus in [a, b] {
            bus.shutdown().await;
        }
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn risk_without_a_policy_needs_leave_for_a_stricter_level() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path()).unwrap();
    let bus = connect(&store, "a").await;
    let refused = bus.publish_with(Message::new("t"), SendOptions::new().value(5)).await;
    assert!(matches!(refused, Err(SendError::Level(_))), "{refused:?}");
    assert_eq!(bus.pending().await.unwrap(), 0);
    let sent = bus.publish_with(Message::new("t"), SendOptions::new().value(5).or_stricter()).await.unwrap();
    assert_eq!((sent.ack, sent.degraded), (Level::Sync, false));
    bus.shutdown().await;
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_a_failed_disk_did_not_keep_is_not_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let store = capped(dir.path());
    let bus = store.bus().send_only().connect().await.unwrap();
    bus.publish(Message::new("t")).await.unwrap();
    for file in std::fs::read_dir(dir.path().join("log")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "seg") {
            std::fs::remove_file(path).unwrap(); // its sync finds that out
        }
    }
    let lost = bus.publish_with(Message::new("t"), SendOptions::new().ack(Level::Sync)).await;
    assert!(matches!(lost, Err(SendError::NotAcknowledged(_))), "{lost:?}");
    let refused = bus.publish_with(Message::new("t"), SendOptions::new().ack(Level::Async)).await;
    assert!(matches!(refused, Err(SendError::Backend(_))), "{refused:?}");
    bus.shutdown().await;
    assert!(store.close().await.is_err());
}

/// While memory is full nothing is sent, but what waits is still locked, processed once and removed, also by nodes that
/// come only now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_memory_is_drained() {
    for layout in Layout::ALL {
        let limit = 8 << 20;
        let options = EmbeddedOptions { memory_limit_bytes: limit, ..EmbeddedOptions::memory() };
        let store = Embedded::open_with(options).unwrap();
        let sender = connect_as(&store, layout, "sender").await;
        let message = |n: usize| {
            let text = format!("{n} {}", "x".repeat(100_000));
            let message = Message::new("t").value(text).exclusive(true).never_expires();
            message.delete_after_processing(Duration::ZERO)
        };
        let mut sent = 0;
        let refused = loop {
            match sender.publish(message(sent)).await {
                Ok(_) => sent += 1,
                Err(refused) => break refused,
            }
        };
        assert!(matches!(&refused, SendError::Backend(_)), "{refused}");
        assert!(refused.to_string().contains("new documents are refused from 90 %"), "{refused}");
        assert!(sent > 50, "{sent}");
        let done: Arc<Mutex<Vec<String>>> = Arc::default();
        let nodes = join_all(["n1", "n2"].map(|id| connect_as(&store, layout, id))).await;
        for bus in &nodes {
            let done = done.clone();
            let listen = bus.subscribe("t", move |message| {
                let value = message.value.clone().unwrap();
                done.lock().push(value[..value.find(' ').unwrap()].to_string());
                std::future::ready(Ok(()))
            });
            listen.await.unwrap();
        }
        eventually("all done", async || done.lock().len() >= sent).await;
        eventually("all removed", async || nodes[0].pending().await.unwrap() == 0).await;
        let mut values = done.lock().clone();
        values.sort_unstable();
        values.dedup();
        assert_eq!((values.len(), done.lock().len()), (sent, sent), "{layout:?}");
        sender.publish(message(sent)).await.unwrap();
        eventually("it goes on", async || done.lock().len() > sent).await;
        join_all(nodes.iter().chain([&sender]).map(Bus::shutdown)).await;
        store.close().await.unwrap();
    }
}
