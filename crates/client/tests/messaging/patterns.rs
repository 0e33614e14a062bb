//! The messaging patterns, on a database in memory.

use crate::fake::{Fake, eventually, in_every_layout, in_time};
use bson::{Bson, doc};
use futures_util::StreamExt;
use parking_lot::Mutex;
use rockdove::{
    DriverBackend, HandlerError, Layout, Message, MessageId, Reject, RequestError, Resolution, SendError,
    SubscribeError, SubscribeOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

type Log = Arc<Mutex<Vec<String>>>;

/// A listener that notes the `value` of each message.
fn note(log: &Log) -> impl Fn(rockdove::Delivery) -> std::future::Ready<Result<(), HandlerError>> + use<> {
    let log = log.clone();
    move |delivery| {
        log.lock().push(delivery.value.clone().unwrap_or_default());
        std::future::ready(Ok(()))
    }
}

in_every_layout! {
    async fn a_broadcast_reaches_every_other_node_once(fake) {
        let (a, b, c) = (fake.connect("a").await, fake.connect("b").await, fake.connect("c").await);
        let logs: Vec<Log> = (0..3).map(|_| Log::default()).collect();
        for (bus, log) in [&a, &b, &c].into_iter().zip(&logs) {
            bus.subscribe("t", note(log)).await.unwrap();
            in_time("ready", bus.ready()).await;
        }
        let id = a.publish(Message::new("t").value("1")).await.unwrap();
        eventually("both marked", || fake.message(&id).processed_by.len() == 2).await;
        tokio::time::sleep(Duration::from_millis(300)).await; // several polls
        assert!(logs[0].lock().is_empty(), "not to oneself");
        assert_eq!((logs[1].lock().len(), logs[2].lock().len()), (1, 1));
        let stored = fake.message(&id);
        assert_eq!((stored.sender.as_str(), stored.ttl), ("a", 30_000));
    }

    async fn earlier_messages_reach_a_later_listener_in_order(fake) {
        let a = fake.connect("a").await;
        for (value, priority) in [("3", 1000), ("4", 1000), ("1", 5), ("2", 5)] {
            a.publish(Message::new("t").value(value).priority(priority)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let b = fake.bus("b").sequential().connect().await.unwrap();
        let log = Log::default();
        b.subscribe("t", note(&log)).await.unwrap();
        eventually("all four", || log.lock().len() == 4).await;
        assert_eq!(*log.lock(), ["1", "2", "3", "4"]);
    }

    async fn an_exclusive_message_is_processed_by_one_node(fake) {
        let sender = fake.connect("sender").await;
        let (mut nodes, count) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
        for id in ["n1", "n2", "n3"] {
            let (bus, count) = (fake.connect(id).await, count.clone());
            bus.subscribe("t", move |_| {
                count.fetch_add(1, Ordering::SeqCst);
                std::future::ready(Ok(()))
            })
            .await
            .unwrap();
            in_time("ready", bus.ready()).await;
            nodes.push(bus);
        }
        let messages = (0..50).map(|n| Message::new("t").exclusive(true).value(n.to_string())).collect();
        let ids = sender.send_many(messages).await.unwrap();
        let marked = |id: &MessageId| fake.message(id).processed_by.len();
        eventually("all marked", || ids.iter().all(|id| marked(id) == 1)).await;
        eventually("all released", || fake.locks().is_empty()).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(count.load(Ordering::SeqCst), 50);
        assert!(ids.iter().all(|id| marked(id) == 1));
    }

    async fn a_directed_message_reaches_its_recipients_only(fake) {
        let (a, b, c) = (fake.connect("a").await, fake.connect("b").await, fake.connect("c").await);
        let (at_b, at_c) = (Log::default(), Log::default());
        b.subscribe("t", note(&at_b)).await.unwrap();
        c.subscribe("t", note(&at_c)).await.unwrap();
        a.publish(Message::new("t").value("b").to("b")).await.unwrap();
        a.publish(Message::new("t").value("all")).await.unwrap();
        eventually("both", || at_b.lock().len() == 2 && at_c.lock().len() == 1).await;
        assert_eq!(*at_c.lock(), ["all"]);
    }

    async fn requests_are_answered_once_and_marked(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        b.subscribe("q", |request| async move {
            Ok(request.derive_answer().value("pong").map_value(doc! {"n": 1_i64}))
        })
        .await
        .unwrap();
        in_time("ready", b.ready()).await;
        let answer = a.request_first(Message::new("q").value("ping"), SECONDS).await.unwrap();
        assert_eq!((answer.value.as_deref(), answer.sender.as_str()), (Some("pong"), "b"));
        assert_eq!(answer.map_value, Some(doc! {"n": 1_i64}));
        let id = answer.id.unwrap();
        eventually("the answer is marked", || fake.message(&id).processed_by == ["a"]).await;
    }

    async fn answers_of_many_nodes_are_collected(fake) {
        let a = fake.connect("a").await;
        let mut nodes = Vec::new();
        for id in ["n1", "n2", "n3"] {
            let bus = fake.connect(id).await;
            bus.subscribe("q", |request| async move { Ok(request.derive_answer()) }).await.unwrap();
            in_time("ready", bus.ready()).await;
            nodes.push(bus);
        }
        let two = a.request_all(Message::new("q"), 2, SECONDS).await.unwrap();
        assert_eq!(two.len(), 2);
        let all = a.request_all(Message::new("q"), 0, Duration::from_millis(500)).await.unwrap();
        let mut senders: Vec<_> = all.iter().map(|answer| answer.sender.as_str()).collect();
        senders.sort_unstable();
        assert_eq!(senders, ["n1", "n2", "n3"]);
        let stream = a.request_stream(Message::new("q"), Duration::from_millis(500)).await.unwrap();
        assert_eq!(in_time("stream", stream.collect::<Vec<_>>()).await.len(), 3);
        let exclusive = a.request_all(Message::new("q").exclusive(true), 3, SECONDS).await.unwrap();
        assert_eq!(exclusive.len(), 1, "one node answers an exclusive request");
    }

    async fn nobody_answers_in_time(fake) {
        let a = fake.connect("a").await;
        let request = a.request_first(Message::new("q"), Duration::from_millis(50)).await;
        assert!(matches!(request, Err(RequestError::Timeout)));
        assert!(a.request_all(Message::new("q"), 3, Duration::from_millis(50)).await.unwrap().is_empty());
        assert_eq!(a.status().waiting_for_answers, 0);
    }

    async fn a_late_answer_falls_through_to_a_listener(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let log = Log::default();
        a.subscribe("q", note(&log)).await.unwrap();
        b.subscribe("q", |request| async move {
            tokio::time::sleep(Duration::from_millis(150)).await;
            Ok(request.derive_answer().value("late"))
        })
        .await
        .unwrap();
        in_time("ready", b.ready()).await;
        let request = a.request_first(Message::new("q"), Duration::from_millis(50)).await;
        assert!(matches!(request, Err(RequestError::Timeout)));
        eventually("the listener has it", || *log.lock() == ["late"]).await;
    }

    async fn a_busy_node_still_gets_its_answers(fake) {
        let (a, b) = (fake.bus("a").sequential().connect().await.unwrap(), fake.connect("b").await);
        b.subscribe("stock", |request| async move { Ok(request.derive_answer().value("12")) }).await.unwrap();
        a.subscribe("order", |order| async move {
            let stock = order.bus().request_first(Message::new("stock"), SECONDS).await?;
            Ok(order.derive_answer().value(stock.value.unwrap_or_default()))
        })
        .await
        .unwrap();
        in_time("ready", a.ready()).await;
        in_time("ready", b.ready()).await;
        let answer = b.request_first(Message::new("order"), SECONDS).await.unwrap();
        assert_eq!(answer.value.as_deref(), Some("12"));
    }

    async fn a_failed_exclusive_message_is_tried_again_elsewhere(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = tries.clone();
        b.subscribe("t", move |_| {
            let nth = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                match nth {
                    0 => Err(HandlerError::failed("disk full")),
                    1 => panic!("out of luck"),
                    2 => Err(Reject::new("busy").into()),
                    _ => Ok(()),
                }
            }
        })
        .await
        .unwrap();
        let id =
            a.publish(Message::new("t").exclusive(true).delete_after_processing(Duration::ZERO)).await.unwrap();
        eventually("processed and removed", || fake.raw(&id).is_none()).await;
        assert_eq!(tries.load(Ordering::SeqCst), 4);
        eventually("kept", || fake.locks().len() == 1 && fake.locks()[0].contains_key("processed")).await;
    }

    async fn a_failed_broadcast_is_neither_marked_nor_repeated_nor_removed(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = tries.clone();
        b.subscribe("t", move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Err::<(), _>(HandlerError::failed("no")) }
        })
        .await
        .unwrap();
        let id = a.publish(Message::new("t").delete_after_processing(Duration::ZERO)).await.unwrap();
        eventually("tried", || tries.load(Ordering::SeqCst) == 1).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(tries.load(Ordering::SeqCst), 1);
        assert!(fake.message(&id).processed_by.is_empty());
    }

    async fn rejections_say_what_happens_next(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        b.subscribe("t", |_| async {
            Err::<(), _>(Reject::new("not mine").continue_processing().send_answer().into())
        })
        .await
        .unwrap();
        in_time("ready", b.ready()).await;
        let request = Message::new("t").with_id(MessageId::generate());
        let answer = a.request_first(request.clone(), SECONDS).await.unwrap();
        assert_eq!(answer.msg.as_deref(), Some("message rejected by listener"));
        assert_eq!(answer.value.as_deref(), Some("not mine"));
        eventually("this node is done", || fake.message(request.id.as_ref().unwrap()).processed_by == ["b"])
            .await;
    }

    async fn a_rejected_broadcast_is_offered_again_later(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = tries.clone();
        b.subscribe("t", move |_| {
            let nth = counted.fetch_add(1, Ordering::SeqCst);
            async move { if nth == 0 { Err(Reject::new("later").into()) } else { Ok(()) } }
        })
        .await
        .unwrap();
        let id = a.publish(Message::new("t")).await.unwrap();
        eventually("rejected", || tries.load(Ordering::SeqCst) == 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(tries.load(Ordering::SeqCst), 1, "not before the fallback interval");
        eventually("offered again", || fake.message(&id).processed_by == ["b"]).await;
    }

    async fn a_paused_topic_waits_but_answers_do_not(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let log = Log::default();
        b.subscribe("t", note(&log)).await.unwrap();
        a.subscribe("q", |request| async move { Ok(request.derive_answer()) }).await.unwrap();
        in_time("ready", a.ready()).await;
        in_time("ready", b.ready()).await;
        assert!(b.pause("t") && !b.pause("t") && b.pause("q"));
        a.publish(Message::new("t").value("1")).await.unwrap();
        b.request_first(Message::new("q"), SECONDS).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(log.lock().is_empty());
        assert!(b.resume("t").unwrap() >= Duration::from_millis(250));
        assert_eq!(b.resume("t"), None);
        eventually("delivered", || *log.lock() == ["1"]).await;
    }

    async fn polling_alone_serves_every_pattern(fake) {
        let (a, b) =
            (fake.bus("a").polling().connect().await.unwrap(), fake.bus("b").polling().connect().await.unwrap());
        b.subscribe("q", |request| async move { Ok(request.derive_answer().value("pong")) }).await.unwrap();
        in_time("ready", b.ready()).await;
        assert_eq!(a.request_first(Message::new("q"), SECONDS).await.unwrap().value.as_deref(), Some("pong"));
        let exclusive = Message::new("q").exclusive(true);
        assert_eq!(a.request_first(exclusive, SECONDS).await.unwrap().value.as_deref(), Some("pong"));
        assert_eq!(fake.all_calls("watch"), 0);
    }

    async fn more_messages_than_a_window_holds(fake) {
        let a = fake.connect("a").await;
        let burst = || (0..200).map(|n| Message::new("t").value(n.to_string())).collect();
        a.send_many(burst()).await.unwrap();
        let settings = rockdove::Settings { window_size: 10, workers_max: 4, ..a.settings().clone() };
        let b = fake.bus_with(settings).sender_id("b").connect().await.unwrap();
        let log = Log::default();
        b.subscribe("t", note(&log)).await.unwrap();
        eventually("backlog", || log.lock().len() == 200).await;
        in_time("ready", b.ready()).await;
        a.send_many(burst()).await.unwrap();
        eventually("burst", || log.lock().len() == 400).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(log.lock().len(), 400);
    }

    async fn a_message_to_oneself_and_its_answer_come_back(fake) {
        let a = fake.connect("a").await;
        let log = Log::default();
        let (noted, answers) = (log.clone(), log.clone());
        a.subscribe("t", move |message| {
            noted.lock().push(format!("request {}", message.value.clone().unwrap_or_default()));
            let mut answer = message.derive_answer();
            answer.topic = "answers".into();
            async move { Ok(answer) }
        })
        .await
        .unwrap();
        a.subscribe("answers", note(&answers)).await.unwrap();
        in_time("ready", a.ready()).await;
        a.publish_to_self(Message::new("t").value("x")).await.unwrap();
        eventually("both", || *log.lock() == ["request x", "x"]).await;
    }

    async fn marks_on_demand_come_before_the_listener(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let marked = Arc::new(Mutex::new(None));
        let (noted, stored) = (marked.clone(), fake.clone());
        b.subscribe_with("t", SubscribeOptions::new().mark_before_execution().one_at_a_time(), move |message| {
            *noted.lock() = Some(stored.message(message.id.as_ref().unwrap()).processed_by);
            async { Ok(()) }
        })
        .await
        .unwrap();
        a.publish(Message::new("t")).await.unwrap();
        eventually("called", || marked.lock().is_some()).await;
        assert_eq!(marked.lock().take().unwrap(), ["b"]);
    }

    async fn old_and_odd_messages_are_delivered_and_none_stops_the_others(fake) {
        let a = fake.connect("a").await;
        let log = Log::default();
        a.subscribe("t", note(&log)).await.unwrap();
        in_time("ready", a.ready()).await;
        let topic = fake.names().broadcast("t");
        let id = |n: u8| Bson::ObjectId(bson::oid::ObjectId::from_bytes([n; 12]));
        fake.store(&topic, doc! {"_id": id(1), "topic": "t", "map_value": [1], "sender": "x"});
        fake.store(&topic, doc! {"_id": id(2), "name": "t", "value": "old", "sender": "x", "processed_by": []});
        fake.store(&topic, doc! {"_id": "text", "topic": "t", "value": "text id", "sender": "x", "priority": 1.5});
        let null = doc! {"_id": id(3), "topic": "t", "value": "null", "sender": "x", "processed_by": null, "exclusive": true};
        fake.store(&topic, null);
        let empty = doc! {"_id": id(4), "topic": "t", "value": "empty", "sender": "x", "recipients": []};
        fake.store(&topic, empty);
        eventually("all four", || log.lock().len() == 4).await;
        let marks =
            |id| fake.raw(&MessageId::from_bson(&id).unwrap()).unwrap().get("processed_by").cloned();
        let mine = Some(Bson::from(vec!["a"]));
        eventually("all marked", || {
            [id(2), id(3), id(4), Bson::from("text")].into_iter().all(|id| marks(id) == mine)
        })
        .await;
    }

    async fn status_requests_are_answered(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        b.subscribe("orders.created", note(&Log::default())).await.unwrap();
        in_time("ready", b.ready()).await;
        let request = || Message::new("morphium.status_info").to("b");
        let answer = a.request_first(request(), SECONDS).await.unwrap().map_value.unwrap();
        let listeners = answer.get_document("message_listeners_by_name").unwrap();
        assert_eq!(listeners, &doc! {"morphium.status_info": ["status_info"], "orders.created": ["listener"]});
        let ping = a.request_first(request().value("PING"), SECONDS).await.unwrap();
        assert_eq!(ping.map_value, Some(doc! {}));
    }

    async fn auto_answer_never_answers_answers(fake) {
        let mut buses = Vec::new();
        for id in ["a", "b"] {
            let settings = rockdove::Settings {
                auto_answer: true,
                ..fake.bus(id).connect().await.unwrap().settings().clone()
            };
            let settings = rockdove::Settings { sender_id: Some(format!("{id}2")), ..settings };
            let bus = fake.bus_with(settings).connect().await.unwrap();
            bus.subscribe("t", note(&Log::default())).await.unwrap();
            in_time("ready", bus.ready()).await;
            buses.push(bus);
        }
        let answer = buses[0].request_first(Message::new("t"), SECONDS).await.unwrap();
        assert_eq!(answer.msg.as_deref(), Some("received"));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(fake.messages().len(), 2);
    }

    async fn incoming_messages_are_settled_by_the_reader(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let mut incoming = b.listen("q", 1).await.unwrap();
        in_time("ready", b.ready()).await;
        let serve = async {
            incoming.next().await.unwrap().reject(Reject::new("first time"));
            let request = in_time("again", incoming.next()).await.unwrap();
            let answer = request.derive_answer().value("second time");
            request.answer(answer);
        };
        let (answer, ()) = tokio::join!(a.request_first(Message::new("q").exclusive(true), SECONDS), serve);
        assert_eq!(answer.unwrap().value.as_deref(), Some("second time"));
        drop(incoming);
        assert!(!b.status().listeners.iter().any(|(topic, _)| topic == "q"));
    }

    async fn a_bus_that_only_sends_stays_small(fake) {
        let a = fake.bus("a").send_only().connect().await.unwrap();
        a.publish(Message::new("t")).await.unwrap();
        assert!(matches!(a.request_first(Message::new("t"), SECONDS).await, Err(RequestError::SendOnly)));
        assert_eq!(a.subscribe("t", note(&Log::default())).await.unwrap_err(), SubscribeError::SendOnly);
        assert_eq!(fake.all_calls("watch"), 0);
        assert!(fake.all("msg_participants").is_empty());
        assert!(
            fake.has_index(&fake.topic(), "delete_at_1"),
            "expiry must work for sender-only topics"
        );
        a.shutdown().await;
        assert!(matches!(a.publish(Message::new("t")).await, Err(SendError::ShuttingDown)));
    }

    async fn a_known_id_is_refused_and_bulk_failures_are_named(fake) {
        let a = fake.connect("a").await;
        let id = MessageId::generate();
        let message = Message::new("t").with_id(id.clone());
        a.publish(message.clone()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(matches!(a.publish(message.clone()).await, Err(SendError::Duplicate(twice)) if twice == id));
        let bulk = vec![Message::new("t"), message, Message::new(""), Message::new("t")];
        let error = a.send_many(bulk).await.unwrap_err();
        let mut places: Vec<_> = error.failures.iter().map(|(place, _)| *place).collect();
        places.sort_unstable();
        assert_eq!((places, error.total), (vec![1, 2], 4));
        assert_eq!(fake.messages().len(), 3);
    }

    async fn an_application_decides_about_rejections(fake) {
        let a = fake.connect("a").await;
        let log = Log::default();
        let noted = log.clone();
        let builder = fake.bus("b").on_rejection(move |message, reject| {
            noted.lock().push(format!("{} {}", message.value.clone().unwrap_or_default(), reject.reason()));
            let nth = noted.lock().len();
            async move {
                match nth {
                    1 => panic!("undecided"),
                    2 => Resolution::GiveBack,
                    _ => Resolution::Done,
                }
            }
        });
        let b = builder.connect().await.unwrap();
        b.subscribe("t", |_| async { Err::<(), _>(Reject::new("no").send_answer().into()) }).await.unwrap();
        in_time("ready", b.ready()).await;
        let exclusive = Message::new("t").value("x").exclusive(true).delete_after_processing(Duration::ZERO);
        let id = a.publish(exclusive).await.unwrap();
        eventually("done and removed", || fake.raw(&id).is_none()).await;
        let id = a.publish(Message::new("t").value("y")).await.unwrap();
        eventually("done", || fake.message(&id).processed_by == ["b"]).await;
        assert_eq!(*log.lock(), ["x no", "x no", "x no", "y no"]);
        assert!(fake.messages().iter().all(|message| message.get("in_answer_to") == Some(&Bson::Null)), "no answer");
    }

    async fn status_answers_of_every_level_hold_no_secret(fake) {
        let address = "mongodb://mallory:hush@localhost:1/shop?appName=quiet";
        let driver = DriverBackend::connect(address, None, "test").await.unwrap();
        fake.describe_as(&driver);
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        in_time("ready", b.ready()).await;
        for (level, keys) in [
            ("MESSAGING_ONLY", &["message_listeners_by_name", "messaging.window_size", "jvm.version"][..]),
            ("MORPHIUM_ONLY", &["morphium.config", "morphium.driver.connections", "jvm.version"]),
            ("ALL", &["message_listeners_by_name", "morphium.config"]),
            ("anything else", &["message_listeners_by_name"]),
        ] {
            let request = Message::new("morphium.status_info").to("b").value(level);
            let map = a.request_first(request, SECONDS).await.unwrap().map_value.unwrap();
            assert!(keys.iter().all(|key| map.contains_key(key)), "{level}: {map}");
            assert_eq!(map.contains_key("morphium.config"), level != "MESSAGING_ONLY" && level != "anything else");
            let text = map.to_string();
            assert_eq!(text.contains("mongodb driver"), map.contains_key("morphium.config"), "{text}");
            for secret in ["mongodb:", "mallory", "hush", "localhost", "quiet"] {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
        }
    }
}
