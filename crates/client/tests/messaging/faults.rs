//! What happens when the network, the server, other nodes or our own end come in between.

use crate::fake::{Fake, Fault, Warnings, eventually, in_every_layout, in_time};
use bson::doc;
use rockdove::backend::BackendErrorKind::{self, HistoryLost, NotAcknowledged, Other, Transient};
use rockdove::{
    ConnectError, HandlerError, Implementation, ImplementationCheck, Layout, Message, MessageId,
    RegistryCheck, RequestError, SendError, SendOptions, Settings, SubscribeError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

const SECONDS: Duration = Duration::from_secs(10);

fn fault(call: &'static str, collection: &str, applied: bool) -> Fault {
    Fault { call, collection: collection.to_owned(), kind: Transient, applied }
}

/// Listens to "t" without ever getting done; told when a call begins.
async fn hanging_listener(bus: &rockdove::Bus) -> Arc<Notify> {
    let started = Arc::new(Notify::new());
    let signal = started.clone();
    let listen = move |_| {
        signal.notify_one();
        std::future::pending::<Result<(), HandlerError>>()
    };
    bus.subscribe("t", listen).await.unwrap();
    started
}

/// A bus that counts what it gets on `t`.
async fn counting(fake: &Fake, id: &str) -> (rockdove::Bus, Arc<AtomicUsize>) {
    let (bus, count) = (fake.connect(id).await, Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    bus.subscribe("t", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    })
    .await
    .unwrap();
    in_time("ready", bus.ready()).await;
    (bus, count)
}

in_every_layout! {
    async fn a_send_that_took_effect_is_not_a_duplicate(fake) {
        let a = fake.connect("a").await;
        fake.fail(fault("insert", &fake.topic(), true));
        a.publish(Message::new("t")).await.unwrap();
        fake.fail(fault("insert", &fake.topic(), false));
        a.publish(Message::new("t")).await.unwrap();
        fake.fail(fault("insert", &fake.topic(), true));
        a.send_many(vec![Message::new("t"), Message::new("t")]).await.unwrap();
        assert_eq!((fake.messages().len(), fake.faults_left()), (4, 0));
    }

    async fn every_step_of_an_exclusive_message_survives_a_network_error(every) {
        let (topic, lock) = (&every.topic(), &every.lock());
        for (call, collection) in [
            ("insert", lock),
            ("update", topic),
            ("delete", lock),
            ("find", topic),
            ("find", lock),
            ("claim", topic),
        ] {
            for (kind, applied) in [(Transient, true), (Transient, false), (NotAcknowledged, true)] {
                if kind == NotAcknowledged && call == "find" {
                    continue; // only writes are acknowledged
                }
                let fake = every.another();
                if call == "claim" || call == "delete" {
                    fake.claim_at_once();
                }
                let a = fake.connect("a").await;
                let (_b, count) = counting(&fake, "b").await;
                fake.fail(Fault { kind, ..fault(call, collection, applied) });
                if call == "find" && collection == lock {
                    fake.fail(fault("insert", lock, true)); // leads to a look at the lock
                }
                let id = a.publish(Message::new("t").exclusive(true)).await.unwrap();
                eventually("marked", || fake.message(&id).processed_by == ["b"]).await;
                eventually("released", || fake.locks().is_empty()).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert_eq!(count.load(Ordering::SeqCst), 1, "{call} {collection} {kind:?} {applied}");
            }
        }
    }

    async fn a_copy_that_is_not_acknowledged_keeps_nobody_else_from_its_own(every) {
        for options in [None, Some(SendOptions::new())] {
            let fake = every.another();
            let a = fake.connect("a").await;
            let target = match fake.layout.has_directed_lane() {
                true => fake.names().directed("b").unwrap(),
                false => fake.topic(),
            };
            fake.fail(Fault { kind: NotAcknowledged, ..fault("insert", &target, true) });
            let message = Message::new("t").to("b").to("c").to("d");
            let error = match options {
                None => a.publish(message).await.unwrap_err(),
                Some(options) => a.publish_with(message, options).await.unwrap_err(),
            };
            assert!(matches!(error, SendError::NotAcknowledged(_)), "{error:?}");
            let copies = if fake.layout.has_directed_lane() { 3 } else { 1 };
            assert_eq!((fake.messages().len(), fake.faults_left()), (copies, 0));
        }
    }

    async fn a_processed_message_that_cannot_be_removed_is_removed_later(fake) {
        tokio::time::pause();
        let a = fake.connect("a").await;
        let (_b, count) = counting(&fake, "b").await;
        fake.fail(Fault { kind: Other, ..fault("delete", &fake.topic(), false) });
        let message = Message::new("t").exclusive(true).never_expires();
        let id = a.publish(message.delete_after_processing(Duration::ZERO)).await.unwrap();
        eventually("processed", || count.load(Ordering::SeqCst) == 1 && fake.faults_left() == 0).await;
        assert!(fake.raw(&id).is_some());
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(fake.raw(&id).is_none() && fake.locks().is_empty());
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    async fn an_outage_longer_than_a_call_is_tried_loses_no_exclusive_message(fake) {
        tokio::time::pause();
        let a = fake.connect("a").await;
        let (b, count) = (fake.connect("b").await, Arc::new(AtomicUsize::new(0)));
        let (counted, broken) = (count.clone(), fake.clone());
        let outage = move || (0..100).for_each(|_| broken.fail(fault("update", &broken.topic(), false)));
        let begins = outage.clone();
        b.subscribe("t", move |_| {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            if first {
                begins();
            }
            async move { if first { Err(HandlerError::failed("no server")) } else { Ok(()) } }
        })
        .await
        .unwrap();
        in_time("ready", b.ready()).await;
        // The listener fails, and the message cannot be given back for long.
        let first = a.publish(Message::new("t").exclusive(true).never_expires()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(180)).await;
        assert_eq!((count.load(Ordering::SeqCst), fake.message(&first).processed_by.len()), (2, 1));
        // The mark takes effect, and that is not known for long.
        fake.fail(fault("update", &fake.topic(), true));
        outage();
        a.publish(Message::new("t").exclusive(true).never_expires()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(180)).await;
        assert_eq!((count.load(Ordering::SeqCst), fake.faults_left(), fake.locks().len()), (3, 0, 0));
    }

    async fn a_send_repeated_after_its_message_was_processed_and_removed_has_no_effect(every) {
        tokio::time::pause();
        for (delay, directed, restarts, offset_ms) in [
            (0, false, false, 0),
            (0, true, false, 0),
            (0, false, true, 0),
            (0, true, true, 0),
            (1, false, true, -3_500_000),
            (1, true, true, -3_500_000),
            (0, false, false, 3_500_000),
            (300, true, false, -3_500_000),
        ] {
            let fake = every.another();
            let what = format!("{delay} s, directed {directed}, restarts {restarts}, {offset_ms} ms");
            let (begin, at) = (tokio::time::Instant::now(), 1_800_000_000_000);
            let true_ms = move || at + i64::try_from(begin.elapsed().as_millis()).unwrap();
            let (expiring, count) = (fake.clone(), Arc::new(AtomicUsize::new(0)));
            let expiry = tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    expiring.expire(true_ms());
                }
            });
            let settings = |id: &str| Settings {
                sender_id: Some(id.into()),
                layout: fake.layout,
                poll_pause: Duration::from_secs(1),
                ..Settings::default()
            };
            let a = fake.bus_with(settings("a")).wall_clock(true_ms).connect().await.unwrap();
            let listening = async || {
                let wrong_ms = move || true_ms() + offset_ms;
                let b = fake.bus_with(settings("b")).wall_clock(wrong_ms).connect().await.unwrap();
                let counted = count.clone();
                b.subscribe("t", move |_| {
                    counted.fetch_add(1, Ordering::SeqCst);
                    async { Ok(()) }
                })
                .await
                .unwrap();
                b.ready().await;
                b
            };
            let mut b = listening().await;
            let message = Message::new("t").exclusive(true).ttl(Duration::from_secs(7200));
            let message = message.delete_after_processing(Duration::from_secs(delay));
            let (message, target) = match directed {
                true => (message.to("b"), fake.names().directed("b").unwrap()),
                false => (message, fake.topic()),
            };
            fake.fail(fault("insert", &target, true));
            (0..10).for_each(|_| fake.fail(fault("insert", &target, false)));
            let sending = tokio::spawn(async move { a.publish(message).await.map(|id| (id, a)) });
            eventually("processed", || count.load(Ordering::SeqCst) == 1).await;
            if restarts {
                tokio::time::sleep(Duration::from_millis(100)).await;
                b.shutdown().await;
                b = listening().await;
            }
            let (id, _a) = sending.await.unwrap().expect("sent");
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert_eq!((count.load(Ordering::SeqCst), fake.faults_left()), (1, 0), "{what}");
            if !restarts {
                assert!(fake.raw(&id).is_none() && fake.locks().is_empty(), "{what}");
            }
            if restarts {
                tokio::time::sleep(Duration::from_secs(7200)).await;
            }
            assert!(fake.raw(&id).is_none() && fake.locks().is_empty(), "{what}: left to expire");
            assert_eq!(count.load(Ordering::SeqCst), 1, "{what}");
            b.shutdown().await;
            expiry.abort();
        }
    }

    async fn a_request_ends_in_its_time_although_it_cannot_be_sent(fake) {
        tokio::time::pause();
        let a = fake.connect("a").await;
        (0..100).for_each(|_| fake.fail(fault("insert", &fake.topic(), false)));
        let begin = tokio::time::Instant::now();
        let answer = a.request_first(Message::new("t"), SECONDS).await;
        assert!(matches!(answer, Err(RequestError::Timeout)));
        let late = begin.elapsed() - SECONDS;
        assert!(late <= Duration::from_millis(1), "{late:?}"); // a tick of the paused clock
    }

    async fn the_lock_of_another_node_is_respected_until_it_is_released(fake) {
        let a = fake.connect("a").await;
        let (_b, count) = counting(&fake, "b").await;
        let id = MessageId::generate();
        fake.store(&fake.lock(), doc! {"_id": id.to_bson(), "delete_at": null, "lock_id": "java-1"});
        a.publish(Message::new("t").exclusive(true).with_id(id.clone())).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(count.load(Ordering::SeqCst), 0);
        let backend: &dyn rockdove::backend::Backend = &fake;
        backend.delete(&fake.lock(), doc! {"_id": id.to_bson()}).await.unwrap();
        eventually("taken over", || count.load(Ordering::SeqCst) == 1).await;
    }

    async fn a_lock_left_by_an_earlier_life_is_ours(fake) {
        let a = fake.connect("a").await;
        let id = MessageId::generate();
        fake.store(&fake.lock(), doc! {"_id": id.to_bson(), "delete_at": null, "lock_id": "b"});
        a.publish(Message::new("t").exclusive(true).with_id(id.clone())).await.unwrap();
        let (_b, count) = counting(&fake, "b").await;
        eventually("continued", || count.load(Ordering::SeqCst) == 1).await;
        eventually("released", || fake.locks().is_empty()).await;
    }

    // A poll was read before the message was processed, and comes back after. Nothing of the message is to be done again,
    // whatever is left of it: nothing, the message with its mark, or the message that its sender has sent again.
    async fn a_poll_that_comes_late_repeats_nothing(every) {
        for (at_once, directed) in [(false, false), (false, true), (true, false), (true, true)] {
            for delete in [Some(Duration::ZERO), Some(Duration::from_secs(60)), None] {
                let fake = every.another();
                if at_once {
                    fake.claim_at_once();
                }
                let (a, id) = (fake.connect("a").await, MessageId::generate());
                let (b, count) = counting(&fake, "b").await;
                let mut message = Message::new("t").with_id(id.clone()).exclusive(true).never_expires();
                if let Some(delay) = delete {
                    message = message.delete_after_processing(delay);
                }
                let (message, collection) = match directed {
                    true => (message.to("b"), fake.names().directed("b").unwrap()),
                    false => (message, fake.topic()),
                };
                fake.hold_events();
                let late = fake.delay_find_of(&id);
                a.publish(message).await.unwrap();
                let sent = fake.raw(&id).unwrap();
                b.poll_now();
                eventually("the poll has found it", || fake.has_found()).await;
                fake.release_events();
                let case = format!("directed {directed}, delete {delete:?}, at once {at_once}");
                eventually(&case, || b.status().in_progress == 0 && count.load(Ordering::SeqCst) == 1).await;
                if fake.raw(&id).is_none() {
                    fake.store(&collection, sent);
                }
                let polls = fake.calls("find", &collection);
                late.notify_one();
                eventually("the lane polls again", || {
                    b.poll_now();
                    fake.calls("find", &collection) > polls + 1
                })
                .await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert_eq!(count.load(Ordering::SeqCst), 1, "{case}");
                in_time("shutdown", async { tokio::join!(a.shutdown(), b.shutdown()) }).await;
            }
        }
    }

    async fn a_message_marked_between_lock_and_mark_is_not_processed(fake) {
        let a = fake.connect("a").await;
        let (b, count) = counting(&fake, "b").await;
        b.pause("t");
        let id = a.publish(Message::new("t").exclusive(true)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        fake.change(&fake.topic(), doc! {"_id": id.to_bson()}, doc! {"$addToSet": {"processed_by": "java-1"}});
        b.resume("t");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(
            (count.load(Ordering::SeqCst), fake.message(&id).processed_by),
            (0, vec!["java-1".to_owned()])
        );
    }

    async fn a_parked_message_is_delivered_when_it_is_requeued(fake) {
        let a = fake.connect("a").await;
        let (_b, count) = counting(&fake, "b").await;
        let mut parked = Message::new("t").exclusive(true);
        parked.processed_by.push("parked".into());
        let id = a.publish(parked).await.unwrap();
        for round in 1..=3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(count.load(Ordering::SeqCst), round - 1);
            fake.change(&fake.topic(), doc! {"_id": id.to_bson()}, doc! {"$set": {"processed_by": []}});
            eventually("delivered", || count.load(Ordering::SeqCst) == round).await;
        }
    }

    async fn broken_streams_are_opened_anew(every) {
        for kind in [Transient, HistoryLost, BackendErrorKind::Other] {
            let fake = every.another();
            let a = fake.connect("a").await;
            let (_b, count) = counting(&fake, "b").await;
            fake.break_streams(kind);
            fake.fail(fault("watch", &fake.stream(), false));
            a.publish(Message::new("t")).await.unwrap();
            eventually("caught up", || count.load(Ordering::SeqCst) == 1).await;
            eventually("open again", || fake.calls("watch", &fake.stream()) >= 3).await;
        }
    }

    async fn a_token_that_is_refused_is_dropped(every) {
        for kind in [HistoryLost, Other] {
            let fake = every.another();
            fake.keep_history();
            let a = fake.connect("a").await;
            let (b, count) = counting(&fake, "b").await;
            in_time("ready", a.ready()).await;
            let streams = fake.open_streams();
            fake.refuse_tokens(kind);
            fake.break_streams(Transient);
            a.publish(Message::new("t")).await.unwrap();
            eventually("caught up", || count.load(Ordering::SeqCst) == 1).await;
            eventually("all of them stand", || fake.open_streams() == streams).await;
            in_time("shutdown", b.shutdown()).await;
        }
    }

    // That of locks announces no messages: no poll shows that it is silent.
    async fn silent_streams_are_noticed(fake) {
        let (_b, count) = counting(&fake, "b").await;
        let mailbox = fake.names().directed("b").unwrap();
        let watched = || (fake.calls("watch", &fake.stream()), fake.calls("watch", &mailbox));
        let opened = watched();
        fake.silence_streams();
        // The watchdog counts only what the stream had two seconds to announce.
        let sent = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
        tokio::time::sleep(Duration::from_millis(2200)).await;
        for (collection, recipients) in [(fake.topic(), None), (mailbox.clone(), Some(vec!["b"]))] {
            let id = MessageId::generate().to_bson();
            fake.store(&collection, doc! {"_id": id, "topic": "t", "sender": "x", "recipients": recipients,
                "processed_by": [], "timestamp": sent + 100});
        }
        eventually("polled", || count.load(Ordering::SeqCst) == 2).await;
        eventually("opened anew", || watched().0 > opened.0 && watched().1 > opened.1).await;
    }

    async fn a_failing_poll_is_repeated(fake) {
        let a = fake.connect("a").await;
        a.publish(Message::new("t")).await.unwrap();
        fake.fail(fault("find", &fake.topic(), false));
        let (_b, count) = counting(&fake, "b").await;
        eventually("delivered", || count.load(Ordering::SeqCst) == 1).await;
    }

    async fn shutdown_gives_interrupted_exclusive_messages_back(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let started = hanging_listener(&b).await;
        let id = a.publish(Message::new("t").exclusive(true)).await.unwrap();
        in_time("started", started.notified()).await;
        eventually("marked", || fake.message(&id).processed_by == ["b"]).await;
        in_time("shutdown", b.shutdown()).await;
        assert!(fake.message(&id).processed_by.is_empty() && fake.locks().is_empty());
        let (_c, count) = counting(&fake, "c").await;
        eventually("another node takes it", || count.load(Ordering::SeqCst) == 1).await;
    }

    async fn shutdown_lets_running_listeners_finish_and_answer(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let started = Arc::new(Notify::new());
        let signal = started.clone();
        b.subscribe("q", move |request| {
            signal.notify_one();
            async move {
                tokio::time::sleep(Duration::from_millis(150)).await;
                Ok(request.derive_answer().value("done"))
            }
        })
        .await
        .unwrap();
        in_time("ready", b.ready()).await;
        let stop = async {
            started.notified().await;
            tokio::join!(b.shutdown(), b.shutdown());
        };
        let (answer, ()) =
            in_time("both", async { tokio::join!(a.request_first(Message::new("q"), SECONDS), stop) }).await;
        assert_eq!(answer.unwrap().value.as_deref(), Some("done"));
        assert_eq!(fake.all("msg_participants").len(), 1, "withdrawn");
        assert_eq!(b.subscribe("t", |_| async { Ok(()) }).await.unwrap_err(), SubscribeError::ShuttingDown);
    }

    async fn a_shutdown_nobody_waits_for_goes_on(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let started = hanging_listener(&b).await;
        in_time("ready", b.ready()).await;
        a.publish(Message::new("t")).await.unwrap();
        in_time("started", started.notified()).await;
        assert!(tokio::time::timeout(Duration::from_millis(50), b.shutdown()).await.is_err());
        in_time("shutdown", b.shutdown()).await;
        assert_eq!(fake.all("msg_participants").len(), 1, "withdrawn");
    }

    async fn no_heartbeat_follows_the_withdrawal(fake) {
        let settings = Settings { heartbeat_interval: Duration::from_millis(20), ..fake.connect("a").await.settings().clone() };
        let b = fake.bus_with(Settings { sender_id: Some("b".into()), ..settings }).connect().await.unwrap();
        let arrives = fake.delay("update", "msg_participants");
        eventually("a heartbeat is under way", || fake.has_delayed()).await;
        let stop = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            arrives.notify_one();
        };
        in_time("shutdown", async { tokio::join!(b.shutdown(), stop) }).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let announced = fake.all("msg_participants");
        assert!(announced.iter().all(|one| one.get_str("_id").unwrap() != "b"), "{announced:?}");
    }

    async fn a_join_that_fails_leaves_no_announcement(fake) {
        fake.fail(Fault { kind: Other, ..fault("update", "msg_participants", true) });
        assert!(matches!(fake.bus("a").connect().await, Err(ConnectError::Backend(_))));
        assert!(fake.all("msg_participants").is_empty());
    }

    async fn shutdown_wakes_waiting_callers(fake) {
        let a = fake.connect("a").await;
        let wait_first = a.request_first(Message::new("q"), Duration::from_secs(60));
        let wait_all = a.request_all(Message::new("q"), 3, Duration::from_secs(60));
        let stop = async {
            eventually("both wait", || a.status().waiting_for_answers == 2).await;
            a.shutdown().await;
        };
        let (first, all, ()) = in_time("woken", async { tokio::join!(wait_first, wait_all, stop) }).await;
        assert!(matches!(first, Err(RequestError::ShuttingDown)));
        assert!(matches!(all, Err(RequestError::ShuttingDown)));
    }

    async fn participants_of_another_layout_are_noticed(fake) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
        let foreign = fake.foreign().implementation();
        let java = doc! {"_id": "java-1", "implementation": foreign, "hostname": "h",
        "started_at": now, "last_seen": now};
        fake.store("msg_participants", java);
        let check = ImplementationCheck::Throw;
        let strict = Settings { layout: fake.layout, implementation_check: check, ..Settings::default() };
        let refused = fake.bus_with(strict.clone()).connect().await;
        let Err(ConnectError::ImplementationMismatch { participant, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((participant.as_str(), fake.all("msg_participants").len()), ("java-1", 1));
        let a = fake.connect("a").await;
        let known = a.participants().await.unwrap();
        assert!(
            known
                .iter()
                .any(|p| p.id == "a" && p.implementation == Implementation::Known(fake.layout))
        );
        fake.change("msg_participants", doc! {"_id": "java-1"}, doc! {"$set": {"last_seen": now - 70_000}});
        let late = fake.bus_with(strict).connect().await.unwrap();
        in_time("shutdown", async { tokio::join!(late.shutdown(), a.shutdown()) }).await;
        assert_eq!(fake.all("msg_participants").len(), 1);
    }

    async fn who_checks_is_warned_once_of_each_participant_of_another_layout(fake) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
        let foreign = |id: &str| doc! {"_id": id, "implementation": fake.foreign().implementation(), "last_seen": now};
        let warnings = Warnings::listen();
        let settings = Settings {
            heartbeat_interval: Duration::from_millis(20),
            layout: fake.layout,
            sender_id: Some("a".into()),
            ..Settings::default()
        };
        fake.store("msg_participants", foreign("early"));
        let a = fake.bus_with(settings).connect().await.unwrap();
        assert_eq!(warnings.of("a participant of another layout"), 1);
        fake.store("msg_participants", foreign("late"));
        eventually("warned of the late one", || warnings.of("another layout: messages get lost participant=\"late\"") == 1).await;
        let beats = fake.calls("update", "msg_participants");
        eventually("more looks", || fake.calls("update", "msg_participants") > beats + 2).await;
        assert_eq!((warnings.of("\"early\""), warnings.of("\"late\"")), (1, 1));
        a.shutdown().await;
    }

    async fn a_bus_that_only_sends_checks_the_layout_too(fake) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
        let foreign = doc! {"_id": "java-1", "implementation": fake.foreign().implementation(), "last_seen": now};
        fake.store("msg_participants", foreign);
        let of = |implementation_check| {
            let checks = RegistryCheck::Warn;
            let settings = Settings { registry: true, registry_check_topics: checks, ..Settings::default() };
            let settings = Settings { implementation_check, layout: fake.layout, ..settings };
            fake.bus_with(settings).send_only().connect()
        };
        let warnings = Warnings::listen();
        let warned = |warnings: &Warnings| (warnings.of("another layout"), warnings.of("are not checked"));
        of(ImplementationCheck::Ignore).await.unwrap();
        assert_eq!(warned(&warnings), (0, 1));
        of(ImplementationCheck::Warn).await.unwrap();
        assert_eq!(warned(&warnings), (1, 2));
        let refused = of(ImplementationCheck::Throw).await;
        assert!(matches!(refused, Err(ConnectError::ImplementationMismatch { .. })), "{refused:?}");
        assert_eq!(fake.all("msg_participants").len(), 1, "it does not announce itself");
        // Its user may not read who is there.
        let fault = Fault { call: "find", collection: "msg_participants".into(), kind: BackendErrorKind::Other, applied: false };
        fake.fail(fault.clone());
        of(ImplementationCheck::Warn).await.unwrap();
        fake.fail(fault);
        let refused = of(ImplementationCheck::Throw).await;
        assert!(matches!(refused, Err(ConnectError::Backend(_))), "{refused:?}");
    }

    async fn heartbeats_refresh_and_prune(fake) {
        fake.store(
            "msg_participants",
            doc! {"_id": "dead", "implementation": "StandardMessaging", "last_seen": 5_i64},
        );
        let settings = Settings {
            heartbeat_interval: Duration::from_millis(30),
            participant_timeout: Duration::from_millis(100),
            sender_id: Some("a".into()),
            layout: fake.layout,
            ..Settings::default()
        };
        let a = fake.bus_with(settings).connect().await.unwrap();
        let seen = || {
            fake.all("msg_participants")
                .iter()
                .find_map(|p| p.get_i64("last_seen").ok().filter(|_| p.get_str("_id").is_ok_and(|id| id == "a")))
        };
        let first = seen().unwrap();
        eventually("refreshed", || seen().unwrap() > first).await;
        eventually("pruned", || fake.all("msg_participants").len() == 1).await;
        a.shutdown().await;
    }

    async fn passing_errors_at_the_start_are_survived(fake) {
        for (call, collection) in [
            ("find", "msg_participants"),
            ("update", "msg_participants"),
            ("index", &fake.topic()),
            ("watch", &fake.stream()),
            ("find", &fake.topic()),
        ] {
            fake.fail(fault(call, collection, false));
        }
        let (_a, _) = counting(&fake, "a").await;
        eventually("all faults met", || fake.faults_left() == 0).await;
    }

    async fn who_ignores_the_check_neither_announces_nor_looks(fake) {
        let settings = Settings {
            implementation_check: ImplementationCheck::Ignore,
            heartbeat_interval: Duration::from_millis(30),
            layout: fake.layout,
            ..Settings::default()
        };
        let a = fake.bus_with(settings).connect().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        a.shutdown().await;
        let mailbox = usize::from(fake.layout == Layout::DualChannel); // at the end: may another node share it?
        assert_eq!(fake.calls("update", "msg_participants") + fake.calls("delete", "msg_participants"), 0);
        assert_eq!(fake.calls("find", "msg_participants"), mailbox);
    }

    async fn a_late_joiner_of_another_layout_stops_nobody(fake) {
        let settings = Settings {
            implementation_check: ImplementationCheck::Throw,
            heartbeat_interval: Duration::from_millis(30),
            layout: fake.layout,
            sender_id: Some("a".into()),
            ..Settings::default()
        };
        let a = fake.bus_with(settings).connect().await.unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
        let joiner = doc! {"_id": "java-1", "implementation": fake.foreign().implementation(), "last_seen": now};
        fake.store("msg_participants", joiner);
        let beats = fake.calls("update", "msg_participants");
        eventually("goes on", || fake.calls("update", "msg_participants") > beats + 2).await;
        a.publish(Message::new("t")).await.unwrap();
        a.shutdown().await;
        assert_eq!(fake.all("msg_participants").len(), 1);
    }

    async fn a_participant_whose_clock_is_wrong_is_not_taken_for_dead(fake) {
        let hour_ago = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
            now as i64 - 3_600_000
        };
        let name = fake.layout.implementation();
        fake.store("msg_participants", doc! {"_id": "slow", "implementation": name, "last_seen": hour_ago()});
        fake.store_empty("msg_dm_slow");
        let settings = Settings {
            heartbeat_interval: Duration::from_millis(30),
            participant_timeout: Duration::from_millis(300),
            registry: true,
            layout: fake.layout,
            ..Settings::default()
        };
        let a = fake.bus_with(settings).connect().await.unwrap();
        for _ in 0..25 {
            tokio::time::sleep(Duration::from_millis(40)).await;
            let moved = fake.change("msg_participants", doc! {"_id": "slow"}, doc! {"$set": {"last_seen": hour_ago()}});
            assert_eq!(moved, 1, "still announced");
        }
        assert!(fake.has_collection("msg_dm_slow"));
        eventually("gone once it stands still", || fake.all("msg_participants").len() == 1).await;
        if fake.layout == Layout::DualChannel {
            eventually("its collection, too", || !fake.has_collection("msg_dm_slow")).await;
        }
        a.shutdown().await;
    }
}
