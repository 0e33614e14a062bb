//! What is particular to a layout: its collections, their life, and who else may use them.

use crate::fake::{Fake, Fault, eventually, in_time};
use bson::{Document, doc};
use parking_lot::Mutex;
use rockdove::backend::{Backend, BackendErrorKind};
use rockdove::{ConnectError, Layout, Message, MessageId, Settings};
use rockdove_messages::Names;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

const SECONDS: Duration = Duration::from_secs(10);

fn dual() -> Fake {
    Fake::of(Layout::DualChannel)
}

fn multi() -> Fake {
    Fake::of(Layout::MultiCollection)
}

fn now_ms() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64
}

/// A message to `b` as another node would store it.
fn to_b(topic: &str) -> Document {
    doc! {"_id": MessageId::generate().to_bson(), "topic": topic, "sender": "x", "recipients": ["b"],
    "processed_by": [], "timestamp": now_ms(), "ttl": 60_000_i64}
}

#[tokio::test]
async fn messages_and_locks_are_where_java_nodes_look() {
    for (layout, topic, lock, directed) in [
        (Layout::Standard, "msg", "msg_lck", "msg"),
        (Layout::MultiCollection, "msg_shop_orders", "msg_lck_shop_orders", "dm_nodeOne"),
        (Layout::DualChannel, "msg", "msg_lck", "msg_dm_nodeOne"),
    ] {
        let fake = Fake::of(layout);
        let a = fake.connect("a").await;
        a.publish(Message::new("shop.orders")).await.unwrap();
        a.publish(Message::new("shop.orders").to("Node_One")).await.unwrap();
        let expected = if topic == directed { 2 } else { 1 };
        assert_eq!((fake.all(topic).len(), fake.all(directed).len()), (expected, expected), "{layout:?}");
        let (held, seen) = (fake.clone(), Arc::new(AtomicUsize::new(0)));
        let noted = seen.clone();
        let b = fake.connect("b").await;
        b.subscribe("shop.orders", move |message| {
            if message.exclusive {
                noted.store(held.all(lock).len(), Ordering::SeqCst);
            }
            async { Ok(()) }
        })
        .await
        .unwrap();
        a.publish(Message::new("shop.orders").exclusive(true)).await.unwrap();
        eventually("locked while the listener runs", || seen.load(Ordering::SeqCst) == 1).await;
        assert!(fake.has_index(topic, "delete_at_1") && fake.has_index(directed, "delete_at_1"));
        assert!(fake.has_index(lock, "delete_at_1"));
    }
}

#[tokio::test]
async fn every_recipient_of_an_exclusive_message_has_a_copy_where_it_has_a_collection() {
    for (layout, copies) in [(Layout::Standard, 1), (Layout::MultiCollection, 2), (Layout::DualChannel, 2)] {
        let fake = Fake::of(layout);
        let a = fake.connect("a").await;
        let (heard, mut buses) = (Arc::new(AtomicUsize::new(0)), Vec::new());
        for id in ["b", "c"] {
            let (bus, heard) = (fake.connect(id).await, heard.clone());
            bus.subscribe("t", move |_| {
                heard.fetch_add(1, Ordering::SeqCst);
                async { Ok(()) }
            })
            .await
            .unwrap();
            in_time("ready", bus.ready()).await;
            buses.push(bus);
        }
        a.publish(Message::new("t").to("b").to("c").exclusive(true)).await.unwrap();
        eventually("heard", || heard.load(Ordering::SeqCst) == copies).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(heard.load(Ordering::SeqCst), copies, "{layout:?}");
    }
}

#[tokio::test]
async fn topics_that_share_a_collection_are_kept_apart() {
    let fake = multi();
    let (a, b) = (fake.connect("a").await, fake.connect("b").await);
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = |name: &'static str| {
        let log = log.clone();
        move |_| {
            log.lock().push(name.to_owned());
            async { Ok(()) }
        }
    };
    let first = b.subscribe("x.y", note("x.y")).await.unwrap();
    in_time("ready", b.ready()).await;
    a.publish(Message::new("x_y")).await.unwrap();
    a.publish(Message::new("x.y")).await.unwrap();
    eventually("one", || *log.lock() == ["x.y"]).await;
    let _second = b.subscribe("x_y", note("x_y")).await.unwrap();
    eventually("the earlier one of the other topic", || *log.lock() == ["x.y", "x_y"]).await;
    first.cancel();
    in_time("ready", b.ready()).await;
    a.publish(Message::new("x.y")).await.unwrap();
    a.publish(Message::new("x_y")).await.unwrap();
    eventually("another", || log.lock().len() == 3).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(*log.lock(), ["x.y", "x_y", "x_y"]);
}

#[tokio::test]
async fn who_listens_again_is_not_given_again_what_it_had() {
    let fake = multi();
    let (a, b) = (fake.connect("a").await, fake.connect("b").await);
    let count = Arc::new(AtomicUsize::new(0));
    let listen = || {
        let count = count.clone();
        b.subscribe("t", move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Err::<(), _>(rockdove::HandlerError::failed("no")) }
        })
    };
    let first = listen().await.unwrap();
    in_time("ready", b.ready()).await;
    a.publish(Message::new("t")).await.unwrap();
    eventually("failed", || count.load(Ordering::SeqCst) == 1).await;
    first.cancel();
    let _again = listen().await.unwrap();
    in_time("ready", b.ready()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    a.publish(Message::new("t")).await.unwrap();
    eventually("the next one", || count.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn streams_do_not_grow_with_topics() {
    let fake = multi();
    let b = fake.connect("b").await;
    for topic in 0..50 {
        b.subscribe(format!("t{topic}"), |_| async { Ok(()) }).await.unwrap();
    }
    in_time("ready", b.ready()).await;
    eventually("old streams closed", || fake.open_streams() == 2).await;
}

#[tokio::test]
async fn one_call_at_a_time_over_all_lanes() {
    let fake = multi();
    let (a, b) = (fake.connect("a").await, fake.bus("b").sequential().connect().await.unwrap());
    let (running, most, done) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for topic in ["t1", "t2", "t3"] {
        let (running, most, done) = (running.clone(), most.clone(), done.clone());
        b.subscribe(topic, move |_| {
            let (running, most, done) = (running.clone(), most.clone(), done.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        })
        .await
        .unwrap();
    }
    in_time("ready", b.ready()).await;
    for _ in 0..10 {
        for topic in ["t1", "t2", "t3"] {
            a.publish(Message::new(topic)).await.unwrap();
            a.publish(Message::new(topic).to("b")).await.unwrap();
        }
    }
    eventually("all", || done.load(Ordering::SeqCst) == 60).await;
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// A lane whose turn it is may have nothing left to do. The next one must not wait for a poll.
#[tokio::test]
async fn a_turn_that_is_not_taken_goes_to_the_next_lane() {
    let fake = multi();
    let long = Duration::from_secs(600);
    let settings = Settings { fallback_poll_interval: long, multithreaded: false, ..Settings::default() };
    let settings = Settings { sender_id: Some("b".into()), layout: fake.layout, ..settings };
    let (a, b) = (fake.connect("a").await, fake.bus_with(settings).connect().await.unwrap());
    let (release, log): (Arc<Notify>, Arc<Mutex<Vec<String>>>) = Default::default();
    let mut listening = Vec::new();
    for topic in ["busy", "given up", "waits"] {
        let (release, log) = (release.clone(), log.clone());
        let listen = move |_| {
            let (release, log) = (release.clone(), log.clone());
            async move {
                log.lock().push(topic.to_owned());
                if topic == "busy" {
                    release.notified().await;
                }
                Ok(())
            }
        };
        listening.push(b.subscribe(topic, listen).await.unwrap());
    }
    in_time("ready", b.ready()).await;
    a.publish(Message::new("busy")).await.unwrap();
    eventually("busy", || log.lock().len() == 1).await;
    for (topic, queued) in [("given up", 1), ("waits", 2)] {
        a.publish(Message::new(topic)).await.unwrap();
        eventually("queued", || b.status().queued == queued).await;
    }
    let polls = fake.calls("find", "msg_waits");
    listening.remove(1).cancel();
    eventually("the stream without it stands", || fake.calls("find", "msg_waits") > polls).await;
    assert_eq!(b.status().queued, 1);
    release.notify_one();
    eventually("its turn", || *log.lock() == ["busy", "waits"]).await;
    in_time("shutdown", b.shutdown()).await;
}

#[tokio::test]
async fn ids_that_java_cannot_map_are_refused() {
    for id in ["_a", "a__b"] {
        for fake in [multi(), dual()] {
            assert!(matches!(fake.bus(id).connect().await, Err(ConnectError::Name(_))), "{id}");
        }
        let standard = Fake::of(Layout::Standard);
        standard.connect(id).await.shutdown().await;
    }
}

#[tokio::test]
async fn a_mailbox_is_made_at_the_start_and_dropped_at_the_end() {
    let fake = dual();
    let (a, b) = (fake.connect("a").await, fake.connect("b").await);
    eventually("indexed", || fake.has_index("msg_dm_b", "delete_at_1")).await;
    b.subscribe("t", |_| async { Ok(()) }).await.unwrap();
    let id = a.publish(Message::new("t").to("b")).await.unwrap();
    eventually("read", || fake.message(&id).processed_by == ["b"]).await;
    in_time("shutdown", b.shutdown()).await;
    assert!(!fake.has_collection("msg_dm_b"));
    assert!(fake.has_collection("msg_dm_a"), "another node's");
}

/// An index that is made after the drop would make the mailbox anew.
#[tokio::test]
async fn no_index_is_made_in_a_mailbox_that_was_dropped() {
    let fake = dual();
    let arrives = fake.delay("index", "msg_dm_b");
    let b = fake.connect("b").await;
    eventually("an index is being made", || fake.has_delayed()).await;
    let stop = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        arrives.notify_one();
    };
    in_time("shutdown", async { tokio::join!(b.shutdown(), stop) }).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!fake.has_collection("msg_dm_b"));
}

/// Java nodes may take an empty mailbox for an orphan's. Without streams nobody hears of it.
#[tokio::test(start_paused = true)]
async fn a_mailbox_that_is_dropped_gets_its_indexes_again() {
    for streams in [true, false] {
        let fake = dual();
        fake.keep_history();
        let settings = Settings { layout: fake.layout, use_change_stream: streams, ..Settings::default() };
        let b = fake.bus_with(Settings { sender_id: Some("b".into()), ..settings }).connect().await.unwrap();
        in_time("ready", b.ready()).await;
        fake.drop_collection("msg_dm_b").await.unwrap();
        fake.break_streams(BackendErrorKind::HistoryLost);
        tokio::time::sleep(Duration::from_secs(6 * 60)).await;
        assert!(fake.has_index("msg_dm_b", "delete_at_1"), "streams {streams}");
        in_time("shutdown", b.shutdown()).await;
    }
}

#[tokio::test]
async fn a_mailbox_with_unread_messages_stays() {
    let fake = dual();
    let b = fake.connect("b").await;
    eventually("indexed", || fake.has_index("msg_dm_b", "delete_at_1")).await;
    fake.store("msg_dm_b", to_b("t"));
    in_time("shutdown", b.shutdown()).await;
    assert_eq!(fake.all("msg_dm_b").len(), 1);
    let b = fake.connect("b").await;
    b.subscribe("t", |_| async { Ok(()) }).await.unwrap();
    eventually("read in its next life", || {
        fake.all("msg_dm_b")[0].get_array("processed_by").unwrap().len() == 1
    })
    .await;
    in_time("shutdown", b.shutdown()).await;
    assert!(!fake.has_collection("msg_dm_b"));
}

#[tokio::test]
async fn what_arrives_while_a_mailbox_is_dropped_is_put_back() {
    let fake = dual();
    let b = fake.connect("b").await;
    eventually("indexed", || fake.has_index("msg_dm_b", "delete_at_1")).await;
    let late = to_b("t");
    fake.store_before_drop(late.clone());
    in_time("shutdown", b.shutdown()).await;
    assert_eq!((fake.calls("drop", "msg_dm_b"), fake.all("msg_dm_b")), (1, vec![late]));
}

#[tokio::test(start_paused = true)]
async fn what_arrives_while_a_mailbox_is_dropped_is_put_back_whatever_fails() {
    let fault = |call, applied| {
        let collection = "msg_dm_b".to_owned();
        Fault { call, collection, kind: BackendErrorKind::Transient, applied }
    };
    for faults in [
        vec![fault("drop", true)],
        vec![fault("drop", false)],
        vec![fault("insert", false)],
        vec![fault("drop", true), fault("insert", true), fault("insert", false)],
    ] {
        let fake = dual();
        let b = fake.connect("b").await;
        eventually("indexed", || fake.has_index("msg_dm_b", "delete_at_1")).await;
        let late = to_b("t");
        fake.store_before_drop(late.clone());
        faults.iter().for_each(|fault| fake.fail(fault.clone()));
        in_time("shutdown", b.shutdown()).await;
        // A drop that failed has not met the message either.
        let expected = if faults[0].call == "drop" && !faults[0].applied { vec![] } else { vec![late] };
        assert_eq!((fake.calls("drop", "msg_dm_b"), fake.all("msg_dm_b")), (1, expected));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_removed_meanwhile_is_not_put_back() {
    for (applied, stays) in [(false, false), (false, true), (true, false)] {
        let fake = dual();
        let b = fake.connect("b").await;
        eventually("indexed", || fake.has_index("msg_dm_b", "delete_at_1")).await;
        let (collection, kind) = ("msg_dm_b".to_owned(), BackendErrorKind::Transient);
        fake.fail(Fault { call: "drop", collection, kind, applied });
        let late = to_b("t");
        if applied {
            fake.remove_before_drop(late.clone());
        }
        let stopping = tokio::spawn(async move { b.shutdown().await });
        eventually("dropping", || fake.calls("drop", "msg_dm_b") == 1).await;
        if !applied {
            // The mailbox is in use again: its node reads, and is done with, what comes.
            fake.store("msg_dm_b", late.clone());
            if !stays {
                let id = doc! { "_id": late.get("_id") };
                assert_eq!(fake.delete("msg_dm_b", id).await.unwrap(), 1);
            }
        }
        in_time("shutdown", stopping).await.unwrap();
        assert_eq!(fake.all("msg_dm_b").len(), usize::from(stays), "applied {applied}, stays {stays}");
    }
}

#[tokio::test]
async fn a_mailbox_shared_with_a_similar_id_stays() {
    let fake = dual();
    let (a, twin) = (fake.connect("a_b").await, fake.connect("A_B").await);
    eventually("made", || fake.has_collection("msg_dm_aB")).await;
    in_time("shutdown", a.shutdown()).await;
    assert_eq!(fake.calls("drop", "msg_dm_aB"), 0);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    twin.subscribe("t", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    })
    .await
    .unwrap();
    let c = fake.connect("c").await;
    c.publish(Message::new("t").to("a_b")).await.unwrap();
    let id = c.publish(Message::new("t").to("A_B")).await.unwrap();
    eventually("its own only", || fake.message(&id).processed_by == ["A_B"]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

/// Orphans are dropped; what holds a message, or may belong to somebody, is not.
#[tokio::test]
async fn the_sweep_drops_orphans_only() {
    let fake = dual();
    let participant = |id: &str, last_seen: i64| doc! {"_id": id, "implementation": "DualChannelMessaging", "last_seen": last_seen};
    fake.store("msg_participants", participant("Java1", now_ms() - 100_000));
    for empty in ["msg_dm_gone", "msg_dm_java1"] {
        fake.store_empty(empty);
    }
    fake.store("msg_dm_full", to_b("t"));
    let other = fake.connect("Other_Node").await;
    let settings = Settings { registry: true, ..fake.connect("x").await.settings().clone() };
    let settings = Settings { sender_id: Some("a".into()), ..settings };
    let settings = Settings { heartbeat_interval: Duration::from_millis(50), ..settings };
    let a = fake.bus_with(settings.clone()).connect().await.unwrap();
    eventually("swept", || !fake.has_collection("msg_dm_gone")).await;
    tokio::time::sleep(Duration::from_millis(200)).await; // more sweeps
    for kept in ["msg_dm_full", "msg_dm_java1", "msg_dm_otherNode", "msg_dm_a"] {
        assert!(fake.has_collection(kept), "{kept}");
    }
    in_time("shutdown", async { tokio::join!(a.shutdown(), other.shutdown()) }).await;
    let off = Settings { sweep_orphans: false, ..settings };
    fake.store_empty("msg_dm_empty");
    let a = fake.bus_with(off).connect().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(fake.has_collection("msg_dm_empty"));
    a.shutdown().await;
}

/// A node that has had the time to sweep up several times.
async fn after_rounds(fake: &Fake, queue: &str) -> rockdove::Bus {
    let settings = fake.connect("template").await.settings().clone();
    let settings = Settings { queue: queue.into(), sender_id: Some("a".into()), registry: true, ..settings };
    let settings = Settings { heartbeat_interval: Duration::from_millis(50), ..settings };
    let a = fake.bus_with(settings).connect().await.unwrap();
    let questions = a.settings().status_info_topic.clone();
    let asked = Names::new(fake.layout, queue).unwrap().broadcast(&questions);
    eventually("it asked often", || fake.calls("insert", &asked) > 4).await;
    a
}

/// All queues of a database share these collections, and a node knows the nodes of its own queue only.
#[tokio::test]
async fn the_mailboxes_of_other_queues_are_not_swept_up_in_multi_collection() {
    let fake = multi();
    fake.store_empty("dm_another");
    let a = after_rounds(&fake, "shop").await;
    assert!(fake.has_collection("dm_another"));
    in_time("shutdown", a.shutdown()).await;
}

/// A queue whose name looks like a mailbox of another one keeps all its collections.
#[tokio::test]
async fn a_queue_is_not_taken_for_an_orphan() {
    let fake = dual();
    let of_queue = ["mmsg_shop_dm_x", "mmsg_shop_dm_x_lck", "mmsg_shop_dm_x_participants"];
    for empty in of_queue.into_iter().chain(["mmsg_shop_dm_x_dm_y", "mmsg_shop_dm_gone"]) {
        fake.store_empty(empty);
    }
    let a = after_rounds(&fake, "shop").await;
    eventually("swept", || !fake.has_collection("mmsg_shop_dm_gone")).await;
    for kept in of_queue.into_iter().chain(["mmsg_shop_dm_x_dm_y"]) {
        assert!(fake.has_collection(kept), "{kept}");
    }
    in_time("shutdown", a.shutdown()).await;
}

/// A Standard node's request reaches a DualChannel node, and the answers of Standard nodes reach it.
#[tokio::test]
async fn a_dual_channel_node_hears_standard_nodes() {
    let fake = dual();
    let standard = Settings { layout: Layout::Standard, ..fake.connect("x").await.settings().clone() };
    let standard = Settings { sender_id: Some("std".into()), ..standard };
    let (d, s) = (fake.connect("d").await, fake.bus_with(standard).connect().await.unwrap());
    for bus in [&d, &s] {
        bus.subscribe("q", |request| async move { Ok(request.derive_answer()) }).await.unwrap();
        in_time("ready", bus.ready()).await;
    }
    // Java's Standard nodes write answers where broadcasts are; so does ours.
    let answer = d.request_first(Message::new("q").exclusive(false), SECONDS).await.unwrap();
    assert_eq!(answer.sender, "std");
    let heard = s.publish(Message::new("q").to("d")).await.unwrap();
    eventually("directed to it by a Standard node", || fake.message(&heard).processed_by == ["d"]).await;
}

#[tokio::test]
async fn an_index_under_another_name_is_no_fault() {
    let fake = Fake::of(Layout::Standard);
    fake.store_index("msg", doc! {"key": {"delete_at": 1}, "name": "ttl_index", "expireAfterSeconds": 0});
    let a = fake.connect("a").await;
    eventually("the others are made", || fake.has_index("msg", "timestamp_1")).await;
    a.publish(Message::new("t")).await.unwrap();
    assert!(!fake.has_index("msg", "delete_at_1"));
}

/// Somebody drops the base collection, which is the node's own, too.
#[tokio::test(start_paused = true)]
async fn the_base_collection_gets_its_indexes_again() {
    let fake = Fake::of(Layout::Standard);
    let bus = fake.connect("a").await;
    in_time("ready", bus.ready()).await;
    fake.drop_collection("msg").await.unwrap();
    tokio::time::sleep(Duration::from_secs(301)).await;
    bus.publish(Message::new("t")).await.unwrap();
    assert!(fake.has_index("msg", "delete_at_1"));
    bus.shutdown().await;
}
