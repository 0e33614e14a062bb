//! What `top` says of a queue whose messages are known.

use crate::fake::{Fake, eventually, in_every_layout, in_time};
use bson::{Document, doc};
use rockdove::backend::Backend;
use rockdove::backend::BackendErrorKind::{self, HistoryLost, Transient};
use rockdove::migrate::MIGRATION_ID;
use rockdove::top::{Limits, Monitor, Queue};
use rockdove::{Layout, Message, MessageId, RequestError};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn monitor(fake: &Fake, limits: Limits) -> Monitor {
    Monitor::new(Arc::new(fake.clone()), None, None, limits)
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// A message that waits, sent now.
fn waiting(topic: &str, more: Document) -> Document {
    let mut message = doc! {"_id": MessageId::generate().to_bson(), "topic": topic, "sender": "x", "recipients": null,
    "processed_by": [], "timestamp": now_ms()};
    message.extend(more);
    message
}

/// A node that is there.
fn announce(fake: &Fake, queue: &str, id: &str, layout: Layout) {
    let node = doc! {"_id": id, "implementation": layout.implementation(), "last_seen": now_ms()};
    fake.store(&format!("{queue}_participants"), node);
}

/// The stream's events are read by a task of their own.
async fn told() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn look(monitor: &mut Monitor) -> Queue {
    let mut queues = in_time("a look", monitor.sample()).await.unwrap().queues;
    assert_eq!(queues.len(), 1, "{queues:?}");
    queues.remove(0)
}

in_every_layout! {
    async fn what_waits_is_held_and_goes_by_is_told(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        b.subscribe("t", |_| async { Ok(()) }).await.unwrap();
        b.subscribe("q", |request| async move {
            match request.value.is_some() {
                true => Ok(request.derive_answer()),
                false => std::future::pending().await,
            }
        })
        .await
        .unwrap();
        in_time("ready", b.ready()).await;
        a.request_first(Message::new("q").value("x"), Duration::from_secs(10)).await.unwrap();
        let mut monitor = monitor(&fake, Limits::default());
        let first = look(&mut monitor).await;
        assert_eq!((first.name.as_str(), &*first.layouts, &*first.notes), ("msg", &[fake.layout][..], &[][..]));
        let rates = first.topics.iter().all(|topic| topic.sent.is_none() && topic.lag_ms.is_none());
        assert!(rates && first.nodes.iter().all(|node| node.alive && node.locks == 0), "{first:?}");
        // Three are heard, two wait, one holds a lock in a listener that hangs, and gets no answer.
        for _ in 0..3 {
            a.publish(Message::new("t")).await.unwrap();
        }
        let heard = |one: &Document| one.get_str("topic").unwrap() == "t" && !one.get_array("processed_by").unwrap().is_empty();
        eventually("heard", || fake.messages().iter().filter(|one| heard(one)).count() == 3).await;
        b.pause("t");
        a.publish(Message::new("t").exclusive(true)).await.unwrap();
        a.publish(Message::new("t")).await.unwrap();
        let late = a.request_first(Message::new("q").exclusive(true), Duration::from_millis(200)).await;
        assert!(matches!(late, Err(RequestError::Timeout)));
        let mut second = look(&mut monitor).await;
        if fake.layout != Layout::Standard {
            second = look(&mut monitor).await; // the lanes of answers and topics may have been new
        }
        let topic = |name: &str| second.topics.iter().find(|topic| topic.name == name).unwrap().clone();
        let t = topic("t");
        assert_eq!((t.waiting, t.exclusive, t.unanswered, t.untaken), (2, 1, 0, 0), "{t:?}");
        assert!(t.oldest_ms.is_some() && t.sent.is_some() && t.done.is_some(), "{t:?}");
        assert_eq!((topic("q").unanswered, second.locks), (1, 1), "{second:?}");
        let locks: Vec<_> = second.nodes.iter().map(|node| (node.announced.id.as_str(), node.locks)).collect();
        assert_eq!(locks, [("a", 0), ("b", 1)]);
    }

    async fn rates_are_counted_exactly(fake) {
        tokio::time::pause();
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        b.subscribe("t", |_| async { Ok(()) }).await.unwrap();
        in_time("ready", b.ready()).await;
        let first = a.publish(Message::new("t")).await.unwrap();
        eventually("marked", || fake.message(&first).processed_by == ["b"]).await;
        let mut monitor = monitor(&fake, Limits::default());
        let (mut sent, mut done) = (0.0, 0.0);
        look(&mut monitor).await;
        let mut before = tokio::time::Instant::now();
        for round in 0..4 {
            if round < 3 {
                for exclusive in [false, true] {
                    let message = Message::new("t").exclusive(exclusive);
                    let message = message.delete_after_processing(Duration::ZERO);
                    a.publish(message).await.unwrap();
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            let queue = look(&mut monitor).await;
            let topic = queue.topics.iter().find(|topic| topic.name == "t").unwrap();
            let seconds = before.elapsed().as_secs_f64();
            before = tokio::time::Instant::now();
            sent += topic.sent.unwrap() * seconds;
            done += topic.done.unwrap() * seconds;
            assert!(queue.notes.is_empty(), "{queue:?}");
        }
        assert_eq!((sent.round(), done.round()), (6.0, 6.0));
    }

    async fn a_big_queue_is_read_in_part_and_that_is_said(fake) {
        let a = fake.connect("a").await;
        a.send_many((0..10).map(|n| Message::new("t").value(n.to_string())).collect()).await.unwrap();
        let mut monitor = monitor(&fake, Limits { documents: 4, ..Limits::default() });
        let queue = look(&mut monitor).await;
        let note = format!("4 messages or more wait in {}; the others are not read", fake.topic());
        assert!(queue.notes.contains(&note), "{:?}", queue.notes);
        assert_eq!(queue.topics[0].waiting, 4);
        let mut monitor = Monitor::new(Arc::new(fake.clone()), None, None, Limits { collections: 0, ..Limits::default() });
        let queue = look(&mut monitor).await;
        assert!(queue.notes.iter().any(|note| note.starts_with("0 of ")), "{:?}", queue.notes);
    }

    async fn each_mark_of_a_message_that_was_given_back_counts(fake) {
        let a = fake.connect("a").await;
        let id = a.publish(Message::new("t")).await.unwrap();
        let mut monitor = monitor(&fake, Limits::default());
        look(&mut monitor).await;
        let set = |marks: &[&str]| {
            let update = doc! {"$set": {"processed_by": marks.to_vec()}};
            assert_eq!(fake.change(&fake.topic(), doc! {"_id": id.to_bson()}, update), 1);
        };
        for _ in 0..3 {
            set(&["b"]);
            told().await;
            let queue = look(&mut monitor).await;
            assert!(queue.topics[0].done > Some(0.0), "{queue:?}");
            set(&[]);
            told().await;
            let queue = look(&mut monitor).await;
            assert!(queue.topics[0].done == Some(0.0) && queue.topics[0].waiting == 1, "{queue:?}");
        }
    }

    async fn a_request_is_known_by_its_own_topic(fake) {
        let _a = fake.connect("a").await;
        let request = MessageId::generate().to_bson();
        let answer = doc! {"in_answer_to": request.clone(), "recipients": ["a"]};
        fake.store(&fake.topic(), waiting("q", doc! {"_id": request, "processed_by": ["b"]}));
        fake.store(&fake.names().directed("a").unwrap(), waiting("told", answer));
        for topic in ["q", "told"] {
            fake.store(&fake.topic(), waiting(topic, doc! {}));
        }
        let queue = look(&mut monitor(&fake, Limits::default())).await;
        let unanswered: Vec<_> = queue.topics.iter().map(|topic| (topic.name.as_str(), topic.unanswered)).collect();
        assert_eq!(unanswered, [("q", 1), ("told", 0)]);
    }

    async fn a_queue_that_is_not_there_is_waited_for(fake) {
        let shared = fake.connect("n1").await;
        shared.publish(Message::new("x").to("n1")).await.unwrap();
        let before = fake.collections("").await.unwrap();
        for layout in [None, Some(fake.layout)] {
            let backend = Arc::new(fake.clone());
            let mut monitor = Monitor::new(backend, Some("shop".to_owned()), layout, Limits::default());
            let queue = look(&mut monitor).await;
            assert!(queue.notes[0].starts_with("there is no such queue"), "{queue:?}");
            assert!(queue.layouts.is_empty() && queue.topics.is_empty() && queue.notes.len() == 1, "{queue:?}");
            assert_eq!(fake.collections("").await.unwrap(), before);
            let bus = fake.bus("a").queue("shop").connect().await.unwrap();
            bus.publish(Message::new("t")).await.unwrap();
            let queue = look(&mut monitor).await;
            assert!(queue.layouts == [fake.layout] && queue.topics[0].waiting == 1, "{queue:?}");
            bus.shutdown().await;
            for collection in fake.collections("").await.unwrap() {
                if !before.contains(&collection) {
                    fake.drop_collection(&collection).await.unwrap();
                }
            }
        }
    }

    async fn an_error_that_passes_is_known_as_one(fake) {
        let a = fake.connect("a").await;
        a.publish(Message::new("t")).await.unwrap();
        let mut monitor = monitor(&fake, Limits::default());
        look(&mut monitor).await;
        for (kind, passes) in [(Transient, true), (BackendErrorKind::Other, false)] {
            fake.fail(crate::fake::Fault { call: "find", collection: fake.topic(), kind, applied: false });
            assert_eq!(monitor.sample().await.unwrap_err().is_transient(), passes);
            assert_eq!(look(&mut monitor).await.topics[0].waiting, 1);
        }
    }

    async fn without_streams_it_looks_all_the_same(fake) {
        let a = fake.connect("a").await;
        a.publish(Message::new("t")).await.unwrap();
        let mut monitor = monitor(&fake, Limits::default());
        for kind in [BackendErrorKind::Other, Transient, HistoryLost] {
            fake.fail(crate::fake::Fault { call: "watch", collection: String::new(), kind, applied: false });
        }
        let queue = look(&mut monitor).await;
        assert!(queue.notes.iter().any(|note| note.starts_with("no rates")), "{:?}", queue.notes);
        look(&mut monitor).await;
        look(&mut monitor).await;
        for kind in [Transient, HistoryLost] {
            look(&mut monitor).await;
            fake.break_streams(kind);
            told().await;
            let queue = look(&mut monitor).await;
            assert!(queue.notes.iter().any(|note| note.contains("broke")), "{:?}", queue.notes);
            assert!(queue.topics[0].sent.is_none() && queue.topics[0].waiting == 1, "{queue:?}");
        }
        fake.store("mmsg_other_participants", doc! {"_id": "x", "implementation": "Other", "last_seen": 5_i64});
        let queues = monitor.sample().await.unwrap().queues;
        let names: Vec<_> = queues.iter().map(|queue| (queue.name.as_str(), queue.nodes.len())).collect();
        assert_eq!(names, [("msg", 1), ("other", 1)]);
    }
}

#[tokio::test]
async fn what_is_no_lock_of_a_message_is_not_held() {
    let fake = Fake::of(Layout::Standard);
    announce(&fake, "mmsg_shop", "n1", Layout::Standard);
    fake.store("mmsg_shop_lck", doc! {"_id": MIGRATION_ID, "lock_id": "a run"});
    fake.store("mmsg_shop_lck", doc! {"_id": MessageId::generate().to_bson(), "lock_id": "n1"});
    fake.store("mmsg_shop_lck", waiting("of the queue shop_lck", doc! {}));
    let shop = look(&mut monitor(&fake, Limits::default())).await;
    assert_eq!((shop.locks, shop.nodes[0].locks, shop.topics.len()), (1, 1, 0), "{shop:?}");
}

#[tokio::test]
async fn layouts_that_share_locks_count_them_once() {
    let fake = Fake::of(Layout::Standard);
    for layout in [Layout::Standard, Layout::DualChannel] {
        announce(&fake, "msg", layout.name(), layout);
    }
    fake.store_empty("msg");
    for collection in ["msg_lck", "msg_lck_t"] {
        fake.store(collection, doc! {"_id": MessageId::generate().to_bson(), "lock_id": "standard"});
    }
    let queue = look(&mut monitor(&fake, Limits::default())).await;
    assert_eq!((queue.layouts.len(), queue.locks), (2, 1), "{queue:?}");
    assert_eq!(queue.nodes.iter().map(|node| node.locks).collect::<Vec<_>>(), [0, 1]);
    announce(&fake, "msg", "multi", Layout::MultiCollection);
    assert_eq!(look(&mut monitor(&fake, Limits::default())).await.locks, 2);
    let queue = look(&mut monitor(&fake, Limits { collections: 1, ..Limits::default() })).await;
    assert!(queue.notes.contains(&"1 of 2 collections of locks are read".to_owned()), "{:?}", queue.notes);
    assert_eq!(queue.locks, 1);
}

#[tokio::test]
async fn what_may_be_of_other_queues_is_said() {
    let fake = Fake::of(Layout::MultiCollection);
    let notes = async |queue: &str, layout| {
        let mut monitor =
            Monitor::new(Arc::new(fake.clone()), Some(queue.to_owned()), Some(layout), Limits::default());
        look(&mut monitor).await.notes
    };
    announce(&fake, "mmsg_shop", "a", Layout::MultiCollection);
    assert!(notes("shop", Layout::MultiCollection).await.is_empty());
    announce(&fake, "mmsg_shop_eu", "b", Layout::MultiCollection);
    announce(&fake, "msg", "c", Layout::MultiCollection);
    let directed = |queues: &str| format!("directed messages and answers may be of other queues: {queues}");
    let topics =
        "what the collections of other queues begin with counts as theirs unless its locks are of this one: shop_eu"
            .to_owned();
    assert_eq!(notes("shop", Layout::MultiCollection).await, [directed("msg, shop_eu"), topics]);
    assert_eq!(notes("shop_eu", Layout::MultiCollection).await, [directed("msg, shop")]);
    assert_eq!(notes("msg", Layout::MultiCollection).await, [directed("shop, shop_eu")]);
    assert!(notes("shop", Layout::Standard).await.is_empty());
}
