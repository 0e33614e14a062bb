//! Migrations: all at once, while nodes change over, and killed at each of their steps.

use crate::fake::{Fake, Fault, eventually, in_time};
use bson::doc;
use parking_lot::Mutex;
use rockdove::backend::{Backend, BackendErrorKind};
use rockdove::migrate::{MIGRATION_ID, MigrateError, Migration, Mode, Progress};
use rockdove::{Bus, ImplementationCheck, Layout, Message, MessageId, Settings};
use rockdove_messages::Names;
use std::sync::Arc;
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

type Log = Arc<Mutex<Vec<String>>>;

fn settings(layout: Layout, id: &str) -> Settings {
    Settings {
        layout,
        sender_id: Some(id.into()),
        poll_pause: Duration::from_millis(20),
        fallback_poll_interval: Duration::from_millis(200),
        shutdown_grace: Duration::from_millis(500),
        ..Settings::default()
    }
}

async fn node(fake: &Fake, layout: Layout, id: &str) -> Bus {
    fake.bus_with(settings(layout, id)).connect().await.unwrap()
}

/// A node that does not announce itself.
async fn silent(fake: &Fake, layout: Layout, id: &str) -> Bus {
    let implementation_check = ImplementationCheck::Ignore;
    let settings = Settings { implementation_check, ..settings(layout, id) };
    let bus = fake.bus_with(settings).connect().await.unwrap();
    in_time("ready", bus.ready()).await;
    bus
}

/// The migration was killed, and its lock has expired.
fn kill(fake: &Fake, migration: Migration) {
    drop(migration);
    let expired = bson::DateTime::from_millis(0);
    fake.change("msg_lck", doc! {"_id": MIGRATION_ID}, doc! {"$set": {"delete_at": expired}});
}

async fn noting(fake: &Fake, layout: Layout, id: &str, log: &Log) -> Bus {
    let bus = node(fake, layout, id).await;
    let log = log.clone();
    bus.subscribe("t", move |message| {
        log.lock().push(message.value.clone().unwrap_or_default());
        async { Ok(()) }
    })
    .await
    .unwrap();
    in_time("ready", bus.ready()).await;
    bus
}

async fn start(fake: &Fake, to: Layout, mode: Mode) -> Result<Migration, MigrateError> {
    Migration::start(Arc::new(fake.clone()), "", to, mode).await
}

/// Passes until it is done.
async fn finish(mut migration: Migration) -> Progress {
    let run = async {
        while !migration.pass().await.unwrap().done {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let progress = migration.progress().clone();
        migration.stop().await;
        progress
    };
    in_time("done", run).await
}

#[tokio::test(start_paused = true)]
async fn a_drain_moves_everything_that_waits() {
    let fake = Fake::default();
    let old = node(&fake, Layout::Standard, "sender").await;
    for n in 0..3 {
        old.publish(Message::new("t").value(format!("broadcast {n}"))).await.unwrap();
        old.publish(Message::new("t").value(format!("exclusive {n}")).exclusive(true)).await.unwrap();
        old.publish(Message::new("t").value(format!("directed {n}")).to("new").to("other")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let done = Message { processed_by: vec!["x".into()], ..Message::new("t").value("done").exclusive(true) };
    let done = old.publish(done).await.unwrap();
    let split = old.publish(Message::new("t").to("new").to("other").exclusive(true)).await.unwrap();
    let odd = old.publish(Message::new("t").to("__")).await.unwrap();
    fake.store("msg", doc! {"_id": "no message"});
    let refused = start(&fake, Layout::MultiCollection, Mode::Drain).await;
    assert!(matches!(&refused, Err(MigrateError::NodesRun(ids)) if ids == "sender"));
    old.shutdown().await;
    let progress = finish(start(&fake, Layout::MultiCollection, Mode::Drain).await.unwrap()).await;
    assert_eq!((progress.moved, progress.left, progress.waiting), (12, 3, 0));
    let mut rest: Vec<_> =
        fake.all("msg").iter().map(|message| message.get("_id").cloned().unwrap()).collect();
    rest.sort_by_key(ToString::to_string);
    let mut expected = vec![done.to_bson(), split.to_bson(), odd.to_bson(), "no message".into()];
    expected.sort_by_key(ToString::to_string);
    assert_eq!(rest, expected);
    assert!(fake.has_index("msg_t", "delete_at_1") && fake.has_index("dm_new", "delete_at_1"));
    let log = Log::default();
    let settings = Settings { multithreaded: false, ..settings(Layout::MultiCollection, "new") };
    let new = fake.bus_with(settings).connect().await.unwrap();
    let noted = log.clone();
    new.subscribe("t", move |message| {
        noted.lock().push(message.value.clone().unwrap());
        async { Ok(()) }
    })
    .await
    .unwrap();
    eventually("all arrive", || log.lock().len() == 9).await;
    for kind in ["broadcast", "exclusive", "directed"] {
        let of_kind: Vec<_> = log.lock().iter().filter(|value| value.starts_with(kind)).cloned().collect();
        assert_eq!(of_kind, [0, 1, 2].map(|n| format!("{kind} {n}")), "in order");
    }
    assert!(fake.locks().is_empty());
}

#[tokio::test]
async fn what_cannot_be_migrated_is_refused() {
    let fake = Fake::default();
    for (to, mode) in [(Layout::Standard, Mode::Bridge), (Layout::DualChannel, Mode::Drain)] {
        assert!(matches!(
            start(&fake, to, mode).await,
            Err(MigrateError::Target | MigrateError::NothingToDrain)
        ));
    }
    fake.store_empty("msg");
    let first = start(&fake, Layout::MultiCollection, Mode::Bridge).await.unwrap();
    assert!(matches!(start(&fake, Layout::MultiCollection, Mode::Bridge).await, Err(MigrateError::Running)));
    first.stop().await;
    let second = start(&fake, Layout::MultiCollection, Mode::Bridge).await.unwrap();
    second.stop().await;
}

#[tokio::test]
async fn a_queue_that_never_was_is_refused_and_nothing_is_made() {
    let fake = Fake::default();
    // Other queues whose names begin alike, what all queues share, and queues of the other layout only.
    let others = ["dm_n1", "mmsg_shop_eu", "mmsg_shop_eu_participants", "shop_eu_lck_t", "shop_eu_t"];
    for collection in others.iter().chain(&["multi_lck_t", "multi_t", "msg_lck_t", "msg_t"]) {
        fake.store_empty(collection);
    }
    let before = fake.collections("").await.unwrap();
    let ways = [
        (Layout::MultiCollection, Mode::Drain),
        (Layout::MultiCollection, Mode::Bridge),
        (Layout::DualChannel, Mode::Bridge),
    ];
    for (to, mode) in ways {
        for (queue, name) in [("", "msg"), ("shop", "shop"), ("multi", "multi"), ("dm", "dm")] {
            let refused = Migration::start(Arc::new(fake.clone()), queue, to, mode).await.err();
            assert!(matches!(&refused, Some(MigrateError::NoQueue(known)) if known == name), "{refused:?}");
        }
    }
    assert_eq!(fake.collections("").await.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn what_a_migration_of_another_queue_has_parked_stays_so() {
    let fake = Fake::default();
    fake.store_empty("mmsg_shop");
    let parked = |topic: &str| {
        let id = MessageId::generate();
        let message = doc! {"_id": id.to_bson(), "topic": topic, "sender": "x", "exclusive": true,
        "processed_by": [MIGRATION_ID], "recipients": null};
        (id, message)
    };
    let ((own, ours), (other, theirs)) = (parked("t"), parked("t"));
    let (dotted, also_ours) = parked("eu.t2");
    fake.store("shop_t", ours);
    fake.store("shop_eu_t", theirs);
    fake.store("shop_eu_t2", also_ours);
    let to = Layout::MultiCollection;
    Migration::start(Arc::new(fake.clone()), "shop", to, Mode::Drain).await.unwrap().stop().await;
    let is_parked = |id| !fake.message(id).processed_by.is_empty();
    assert_eq!([&own, &other, &dotted].map(is_parked), [false, true, false]);
}

/// Old senders, an old consumer and a new one; the old consumer changes over under its id, then the senders do.
#[tokio::test(start_paused = true)]
async fn a_bridge_carries_nodes_over_one_by_one() {
    let fake = Fake::default();
    let to = Layout::MultiCollection;
    let (at_old, at_new, at_changed) = (Log::default(), Log::default(), Log::default());
    let sender = node(&fake, Layout::Standard, "sender").await;
    let old = noting(&fake, Layout::Standard, "old", &at_old).await;
    let mut bridge = start(&fake, to, Mode::Bridge).await.unwrap();
    sender.publish(Message::new("t").value("early").exclusive(true)).await.unwrap();
    eventually("the old node has it", || at_old.lock().len() == 1).await;
    sender.publish(Message::new("u").value("unheard").exclusive(true)).await.unwrap();
    bridge.pass().await.unwrap();
    assert_eq!((bridge.progress().moved, bridge.progress().waiting), (0, 1), "nobody listens there yet");
    let new = noting(&fake, to, "new", &at_new).await;
    sender.publish(Message::new("t").value("both")).await.unwrap();
    let run = async {
        loop {
            bridge.pass().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let scenario = async {
        eventually("the broadcast is heard on both sides", || {
            at_old.lock().len() == 2 && *at_new.lock() == ["both"]
        })
        .await;
        let follow =
            || fake.all("msg_t").iter().any(|m| m.get_array("processed_by").unwrap().contains(&"old".into()));
        eventually("the old node's mark is copied", follow).await;
        old.shutdown().await;
        let changed = noting(&fake, to, "old", &at_changed).await;
        for n in 0..20 {
            sender.publish(Message::new("t").value(format!("x{n}")).exclusive(true)).await.unwrap();
        }
        sender.publish(Message::new("t").value("mine").to("old")).await.unwrap();
        eventually("all arrive", || at_changed.lock().len() + at_new.lock().len() == 1 + 20 + 1).await;
        assert!(
            at_changed.lock().contains(&"mine".to_owned()) && !at_changed.lock().contains(&"both".to_owned())
        );
        // A node that changed over answers one that has not.
        changed
            .subscribe("q", |request| async move { Ok(request.derive_answer().value("pong")) })
            .await
            .unwrap();
        in_time("ready", changed.ready()).await;
        let answer = sender.request_first(Message::new("q").exclusive(true), SECONDS).await.unwrap();
        assert_eq!(answer.value.as_deref(), Some("pong"));
        in_time("shutdown", async { tokio::join!(sender.shutdown(), changed.shutdown(), new.shutdown()) })
            .await;
    };
    tokio::select! {
        () = scenario => {}
        () = run => unreachable!(),
    }
    fake.change("msg", doc! {"topic": "u"}, doc! {"$set": {"processed_by": ["operator"]}});
    let progress = finish(bridge).await;
    assert!(progress.old_nodes.is_empty() && progress.returned == 1, "{progress:?}");
    let mut all: Vec<_> = [&at_old, &at_new, &at_changed].iter().flat_map(|log| log.lock().clone()).collect();
    all.sort_unstable();
    let mut expected: Vec<_> = (0..20).map(|n| format!("x{n}")).collect();
    expected.extend(["early", "mine", "both", "both"].map(str::to_owned));
    expected.sort_unstable();
    assert_eq!(all, expected, "the broadcast by two nodes, everything else by one, once");
}

#[tokio::test(start_paused = true)]
async fn answers_of_dual_channel_nodes_reach_standard_nodes_over_the_bridge() {
    let fake = Fake::default();
    let asker = node(&fake, Layout::Standard, "asker").await;
    let mut repliers = Vec::new();
    for id in ["r1", "r2", "r3"] {
        let replier = node(&fake, Layout::DualChannel, id).await;
        replier
            .subscribe("q", move |request| async move {
                Ok(request.derive_answer().value(format!("{id} {}", request.value.as_deref().unwrap())))
            })
            .await
            .unwrap();
        in_time("ready", replier.ready()).await;
        repliers.push(replier);
    }
    let mut bridge = start(&fake, Layout::DualChannel, Mode::Bridge).await.unwrap();
    let run = async {
        loop {
            bridge.pass().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let asks = async {
        for n in ["1", "2"] {
            // All that come within the time: none twice.
            let request = Message::new("q").value(n);
            let answers = asker.request_all(request, 0, SECONDS).await.unwrap();
            let mut values: Vec<_> = answers.into_iter().filter_map(|answer| answer.value).collect();
            values.sort_unstable();
            assert_eq!(values, ["r1", "r2", "r3"].map(|id| format!("{id} {n}")));
        }
    };
    tokio::select! {
        () = asks => {}
        () = run => unreachable!(),
    }
    bridge.stop().await;
}

/// Nodes are asked what they listen to; those that come later are not to answer a migration that is over.
#[tokio::test]
async fn a_bridge_leaves_no_questions_and_no_answers() {
    for to in [Layout::MultiCollection, Layout::DualChannel] {
        let fake = Fake::default();
        fake.store_empty("msg");
        let new = node(&fake, to, "new").await;
        in_time("ready", new.ready()).await;
        let names = Names::new(to, "").unwrap();
        let (asked, mailbox) =
            (names.broadcast("morphium.status_info"), names.directed(MIGRATION_ID).unwrap());
        let bridge = start(&fake, to, Mode::Bridge).await.unwrap();
        let by_it = |one: &bson::Document| one.get_str("sender").is_ok_and(|sender| sender == MIGRATION_ID);
        let questions = || fake.all(&asked).iter().filter(|one| by_it(one)).count();
        eventually("it asks", || questions() > 0).await;
        eventually("it is answered", || fake.calls("insert", &mailbox) > 0).await;
        let answer = |request: &bson::Bson| {
            doc! {"_id": MessageId::generate().to_bson(), "topic": "morphium.status_info", "sender": "new",
            "recipients": [MIGRATION_ID], "in_answer_to": request, "processed_by": []}
        };
        let question = fake.all(&asked).into_iter().find(by_it).unwrap();
        fake.store(&mailbox, answer(question.get("_id").unwrap()));
        // A migration of another queue asked, too.
        let other = answer(&MessageId::generate().to_bson());
        fake.store(&mailbox, other.clone());
        in_time("stopped", bridge.stop()).await;
        assert_eq!(questions(), 0, "{to:?}");
        assert_eq!(fake.all(&mailbox), [other], "{to:?}");
        // Who comes next is let in when nothing more is removed.
        let released = fake.last("delete", "msg_lck");
        assert!(released > fake.last("delete", &mailbox) && released > fake.last("delete", &asked), "{to:?}");
    }
}

/// A bridge to the DualChannel layout was killed: what it asked, and what it was told, is in the base collection, and no
/// message of the queue.
#[tokio::test(start_paused = true)]
async fn what_a_killed_migration_asked_is_not_moved() {
    let fake = Fake::default();
    let question = doc! {"_id": MessageId::generate().to_bson(), "topic": "morphium.status_info",
    "sender": MIGRATION_ID, "recipients": null, "processed_by": []};
    let answer = doc! {"_id": MessageId::generate().to_bson(), "topic": "morphium.status_info", "sender": "old",
    "recipients": [MIGRATION_ID], "in_answer_to": question.get("_id"), "processed_by": []};
    fake.store("msg", question);
    fake.store("msg", answer);
    for mode in [Mode::Bridge, Mode::Drain] {
        let mut migration = start(&fake, Layout::MultiCollection, mode).await.unwrap();
        let progress = migration.pass().await.unwrap();
        let Progress { moved, copied, waiting, left, .. } = progress;
        assert_eq!((*moved, *copied, *waiting, *left), (0, 0, 0, 0), "{mode:?}");
        migration.stop().await;
    }
}

/// Whatever step fails, with or without effect, the next run goes on: nothing is lost, no exclusive message is
/// processed twice.
#[tokio::test(start_paused = true)]
async fn a_killed_migration_goes_on() {
    let steps = [
        ("insert", "msg_lck"),
        ("update", "msg"),
        ("insert", "msg_t"),
        ("delete", "msg"),
        ("update", "msg_t"),
        ("delete", "msg_lck"),
        ("insert", "dm_new"),
        ("find", "msg"),
    ];
    for (call, collection) in steps {
        for applied in [true, false] {
            let fake = Fake::default();
            let log = Log::default();
            let sender = node(&fake, Layout::Standard, "sender").await;
            for n in 0..3 {
                let exclusive = Message::new("t").value(format!("x{n}")).exclusive(true);
                sender.publish(exclusive.delete_after_processing(Duration::ZERO)).await.unwrap();
                sender.publish(Message::new("t").value(format!("b{n}"))).await.unwrap();
                sender.publish(Message::new("t").value(format!("d{n}")).to("new")).await.unwrap();
            }
            sender.shutdown().await;
            let mut migration = start(&fake, Layout::MultiCollection, Mode::Drain).await.unwrap();
            let kind = BackendErrorKind::Other;
            fake.fail(Fault { call, collection: collection.to_owned(), kind, applied });
            assert!(migration.pass().await.is_err(), "{call} {collection}");
            kill(&fake, migration);
            let new = noting(&fake, Layout::MultiCollection, "new", &log).await;
            tokio::time::sleep(Duration::from_millis(50)).await; // it takes what is there
            let progress = finish(start(&fake, Layout::MultiCollection, Mode::Drain).await.unwrap()).await;
            assert_eq!(progress.left, 0);
            eventually("all arrive", || log.lock().len() >= 9).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut all = log.lock().clone();
            all.sort_unstable();
            let expected = ["b0", "b1", "b2", "d0", "d1", "d2", "x0", "x1", "x2"];
            assert_eq!(all, expected, "{call} {collection} {applied}");
            assert!(
                fake.all("msg").is_empty() && fake.locks().iter().all(|lock| lock.contains_key("processed"))
            );
            in_time("shutdown", new.shutdown()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_a_node_is_claiming_stays_with_it() {
    let fake = Fake::default();
    let id = MessageId::generate();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    fake.store(
        "msg",
        doc! {"_id": id.to_bson(), "topic": "t", "sender": "x", "exclusive": true, "processed_by": [],
        "recipients": null, "timestamp": now, "ttl": 60_000_i64},
    );
    fake.store("msg_lck", doc! {"_id": id.to_bson(), "lock_id": "java-1", "delete_at": null});
    let mut migration = start(&fake, Layout::MultiCollection, Mode::Drain).await.unwrap();
    let progress = migration.pass().await.unwrap();
    assert_eq!((progress.moved, progress.waiting, progress.done), (0, 1, false));
    fake.change("msg", doc! {"_id": id.to_bson()}, doc! {"$set": {"processed_by": ["java-1"]}});
    assert_eq!((finish(migration).await.moved, fake.all("msg_t").len()), (0, 0));
}

/// A broadcast was copied, the bridge ended, and a node heard the broadcast in the old layout before the next bridge.
#[tokio::test(start_paused = true)]
async fn what_was_heard_while_no_bridge_ran_is_not_heard_again() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum End {
        Stopped,
        Killed,
        KilledBeforeItsMark,
    }
    for (end, mode) in [
        (End::Stopped, Mode::Bridge),
        (End::Killed, Mode::Bridge),
        (End::KilledBeforeItsMark, Mode::Bridge),
        (End::Killed, Mode::Drain),
    ] {
        let fake = Fake::default();
        let (before, after) = (Log::default(), Log::default());
        let sender = node(&fake, Layout::Standard, "sender").await;
        sender.publish(Message::new("t").value("copied")).await.unwrap();
        let mut bridge = start(&fake, Layout::MultiCollection, Mode::Bridge).await.unwrap();
        if end == End::KilledBeforeItsMark {
            let (collection, kind) = ("msg".to_owned(), BackendErrorKind::Other);
            fake.fail(Fault { call: "update", collection, kind, applied: false });
        }
        assert_eq!(bridge.pass().await.is_err(), end == End::KilledBeforeItsMark);
        match end {
            End::Stopped => bridge.stop().await,
            _ => kill(&fake, bridge),
        }
        let old = noting(&fake, Layout::Standard, "n", &before).await;
        eventually("it is heard", || *before.lock() == ["copied"]).await;
        in_time("shutdown", async { tokio::join!(old.shutdown(), sender.shutdown()) }).await;
        let mut next = start(&fake, Layout::MultiCollection, mode).await.unwrap();
        next.pass().await.unwrap();
        let changed = noting(&fake, Layout::MultiCollection, "n", &after).await;
        let other = node(&fake, Layout::MultiCollection, "other").await;
        other.publish(Message::new("t").value("later")).await.unwrap();
        eventually("the later one is heard", || !after.lock().is_empty()).await;
        changed.poll_now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*after.lock(), ["later"], "{end:?} {mode:?}");
        next.stop().await;
        in_time("shutdown", async { tokio::join!(changed.shutdown(), other.shutdown()) }).await;
    }
}

/// In virtual time: moving what waits takes minutes.
#[tokio::test(start_paused = true)]
async fn a_long_pass_keeps_its_lock_follows_marks_and_asks_who_is_there() {
    let fake = Fake::default();
    let sender = node(&fake, Layout::Standard, "sender").await;
    let first = sender.publish(Message::new("t").value("first").priority(1)).await.unwrap();
    sender.send_many((0..30).map(|_| Message::new("t")).collect()).await.unwrap();
    in_time("shutdown", sender.shutdown()).await;
    let mut bridge = start(&fake, Layout::MultiCollection, Mode::Bridge).await.unwrap();
    fake.slow("insert", "msg_t", Duration::from_secs(10));
    let watch = async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        fake.change(
            "msg",
            doc! {"_id": first.to_bson()},
            doc! {"$set": {"processed_by": [MIGRATION_ID, "n"]}},
        );
        for _ in 0..8 {
            let (prolonged, asked) = (fake.calls("update", "msg_lck"), fake.calls("insert", "msg"));
            tokio::time::sleep(Duration::from_secs(25)).await;
            assert!(fake.calls("update", "msg_lck") > prolonged, "its lock lives for 60 s");
            assert!(fake.calls("insert", "msg") > asked, "questions expire");
            let copies = fake.all("msg_t");
            let copy = copies.iter().find(|one| one.get("_id") == Some(&first.to_bson())).unwrap();
            assert_eq!(copy.get_array("processed_by").unwrap(), &vec!["n".into()]);
        }
    };
    tokio::select! {
        passed = bridge.pass() => panic!("so soon? {passed:?}"),
        () = watch => {}
    }
    kill(&fake, bridge);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_do_not_announce_themselves_are_asked() {
    let fake = Fake::default();
    let old = silent(&fake, Layout::Standard, "old").await;
    let refused = start(&fake, Layout::MultiCollection, Mode::Drain).await;
    assert!(matches!(&refused, Err(MigrateError::NodesRun(ids)) if ids == "old"), "{:?}", refused.err());
    let of_migration = || {
        // What it heard is marked, and expires.
        let by_it = |one: &&bson::Document| {
            one.to_string().contains(MIGRATION_ID)
                && !one.get_array("processed_by").unwrap().contains(&MIGRATION_ID.into())
        };
        fake.messages().iter().filter(by_it).count() + fake.locks().len()
    };
    assert_eq!(of_migration(), 0, "nothing is left of it");
    for to in [Layout::MultiCollection, Layout::DualChannel] {
        let old = silent(&fake, Layout::Standard, "asker").await;
        let new = node(&fake, to, "new").await;
        new.subscribe("q", |request| async move { Ok(request.derive_answer().value("pong")) }).await.unwrap();
        in_time("ready", new.ready()).await;
        let mut bridge = start(&fake, to, Mode::Bridge).await.unwrap();
        let run = async {
            let mut known = 0;
            loop {
                let progress = bridge.pass().await.unwrap();
                assert!(!progress.done && progress.old_nodes.len() >= known, "{to:?} {progress:?}");
                known = progress.old_nodes.len();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let asks = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let answer = old.request_first(Message::new("q").exclusive(true), SECONDS).await.unwrap();
            assert_eq!(answer.value.as_deref(), Some("pong"), "{to:?}");
        };
        tokio::select! {
            () = asks => {}
            () = run => unreachable!(),
        }
        assert_eq!(bridge.progress().old_nodes, ["asker", "old"], "{to:?}");
        assert_eq!(bridge.progress().new_nodes, ["new"], "{to:?}");
        in_time("shutdown", async { tokio::join!(old.shutdown(), new.shutdown()) }).await;
        bridge.stop().await;
        assert_eq!(of_migration(), 0, "{to:?}");
    }
    let sender = node(&fake, Layout::Standard, "sender").await;
    sender.publish(Message::new("t").value("mine").to("old")).await.unwrap();
    in_time("shutdown", async { tokio::join!(old.shutdown(), sender.shutdown()) }).await;
    // It changes over, and is known there.
    let changed = silent(&fake, Layout::MultiCollection, "old").await;
    let bridge = start(&fake, Layout::MultiCollection, Mode::Bridge).await.unwrap();
    let progress = finish(bridge).await;
    assert!(progress.old_nodes.is_empty() && progress.new_nodes == ["old"], "{progress:?}");
    assert!(fake.all("dm_old").iter().any(|one| one.get_str("value").is_ok_and(|value| value == "mine")));
    in_time("shutdown", changed.shutdown()).await;
    let drain = start(&fake, Layout::MultiCollection, Mode::Drain).await.unwrap();
    assert_eq!(finish(drain).await.left, 0);
}

/// What is sent first, but is less urgent, is heard last; what is equally urgent, in the order it was sent.
#[tokio::test(start_paused = true)]
async fn priority_and_order_are_kept() {
    for mode in [Mode::Drain, Mode::Bridge] {
        let (fake, log) = (Fake::default(), Log::default());
        let sender = node(&fake, Layout::Standard, "sender").await;
        for n in 0..3 {
            for priority in [900, 1, 500] {
                let message =
                    |kind| Message::new("t").value(format!("{kind} {priority} {n}")).priority(priority);
                sender.publish(message("broadcast")).await.unwrap();
                sender.publish(message("exclusive").exclusive(true)).await.unwrap();
                sender.publish(message("directed").to("new")).await.unwrap();
                std::thread::sleep(Duration::from_millis(2)); // the wall clock is not paused
            }
        }
        sender.shutdown().await;
        let (to, noted) = (Layout::MultiCollection, log.clone());
        if mode == Mode::Drain {
            finish(start(&fake, to, mode).await.unwrap()).await;
        }
        let sequential = Settings { multithreaded: false, ..settings(to, "new") };
        let new = fake.bus_with(sequential).connect().await.unwrap();
        new.subscribe("t", move |message| {
            noted.lock().push(message.value.clone().unwrap());
            async { Ok(()) }
        })
        .await
        .unwrap();
        in_time("ready", new.ready()).await;
        if mode == Mode::Bridge {
            // It hears them as they come: the bridge's order is the one that counts.
            finish(start(&fake, to, mode).await.unwrap()).await;
        }
        eventually("all arrive", || log.lock().len() == 27).await;
        for kind in ["broadcast", "exclusive", "directed"] {
            let heard: Vec<_> = log.lock().iter().filter(|value| value.starts_with(kind)).cloned().collect();
            let of = |priority: i32| (0..3).map(move |n| format!("{kind} {priority} {n}"));
            let expected: Vec<_> = [1, 500, 900].into_iter().flat_map(of).collect();
            assert_eq!(heard, expected, "{mode:?}");
        }
        in_time("shutdown", new.shutdown()).await;
    }
}

/// Each call takes its time, and the bridge is killed in one after the other.
#[tokio::test(start_paused = true)]
async fn a_bridge_that_is_killed_at_work_goes_on() {
    let call = Duration::from_millis(10);
    for calls in 0.. {
        let (fake, log) = (Fake::default(), Log::default());
        let new = noting(&fake, Layout::MultiCollection, "new", &log).await;
        fake.store_empty("msg");
        let mut bridge = start(&fake, Layout::MultiCollection, Mode::Bridge).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await; // it learns what the node listens to
        let sender = node(&fake, Layout::Standard, "sender").await;
        for n in 0..2 {
            sender.publish(Message::new("t").value(format!("x{n}")).exclusive(true)).await.unwrap();
            sender.publish(Message::new("t").value(format!("b{n}"))).await.unwrap();
            sender.publish(Message::new("t").value(format!("d{n}")).to("new")).await.unwrap();
        }
        sender.shutdown().await;
        for (kind, collection) in ["insert", "update", "delete", "find"]
            .into_iter()
            .flat_map(|kind| ["msg", "msg_lck", "msg_t", "dm_new"].map(|collection| (kind, collection)))
        {
            fake.slow(kind, collection, call);
        }
        let time = call * calls + call / 2;
        let passed = tokio::time::timeout(time, bridge.pass()).await.is_ok();
        kill(&fake, bridge);
        let progress = finish(start(&fake, Layout::MultiCollection, Mode::Bridge).await.unwrap()).await;
        assert_eq!((progress.left, progress.waiting), (0, 0));
        eventually("all arrive", || log.lock().len() >= 6).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut all = log.lock().clone();
        all.sort_unstable();
        assert_eq!(all, ["b0", "b1", "d0", "d1", "x0", "x1"], "killed after {time:?}");
        in_time("shutdown", new.shutdown()).await;
        if passed {
            assert!(calls > 20, "it was killed at work");
            break;
        }
    }
}
