//! Each check of the doctor, on a queue that is well but for one thing.

use crate::fake::{Fake, Fault, eventually, in_every_layout, in_time};
use bson::{Bson, DateTime, Document, doc};
use rockdove::backend::{Backend, BackendErrorKind};
use rockdove::doctor::{Check, Examination, Finding, Limits, Severity, examine};
use rockdove::migrate::MIGRATION_ID;
use rockdove::{Layout, Message, MessageId};
use rockdove_messages::Names;
use std::collections::BTreeSet;
use std::time::Duration;

fn now_ms() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64
}

/// A message that was sent a minute ago and has an hour to live.
fn old(more: Document) -> Document {
    let at = now_ms() - 60_000;
    let mut message = doc! {"_id": MessageId::generate().to_bson(), "topic": "t", "sender": "x", "recipients": null,
    "processed_by": [], "timestamp": at, "ttl": 3_600_000_i64, "delete_at": DateTime::from_millis(at + 3_600_000)};
    message.extend(more);
    message
}

async fn findings(fake: &Fake) -> Vec<(Severity, Check, String)> {
    let found = examine(fake, "", None, Limits::default()).await.unwrap();
    assert_eq!(found.layouts, [fake.layout]);
    found.findings.into_iter().map(|finding| (finding.severity, finding.check, finding.text)).collect()
}

/// A queue with one node `n1`, in order.
async fn healthy(fake: &Fake) -> rockdove::Bus {
    let bus = fake.connect("n1").await;
    bus.subscribe("t", |_| async { Ok(()) }).await.unwrap();
    in_time("ready", bus.ready()).await;
    for collection in [fake.topic(), fake.names().directed("n1").unwrap(), fake.lock()] {
        eventually("indexed", || fake.has_index(&collection, "delete_at_1")).await;
    }
    bus.pause("t");
    bus
}

in_every_layout! {
    async fn a_queue_in_order_has_no_findings(fake) {
        let bus = healthy(&fake).await;
        bus.publish(Message::new("t")).await.unwrap();
        fake.store(&fake.topic(), old(doc! {"processed_by": ["n1"]}));
        assert_eq!(findings(&fake).await, []);
    }

    async fn each_fault_is_found(fake) {
        let gone = now_ms() - 600_000;
        let locked = |until: Bson, owner: &str| doc! {"_id": MessageId::generate().to_bson(), "lock_id": owner, "delete_at": until};
        let later = Bson::DateTime(DateTime::from_millis(now_ms() + 60_000));
        let overdue = Bson::DateTime(DateTime::from_millis(gone));
        let (topic, lock, nobody) = (fake.topic(), fake.lock(), fake.names().directed("nobody").unwrap());
        let foreign = doc! {"_id": "java-1", "implementation": fake.foreign().implementation(), "last_seen": now_ms()};
        for (check, severity, text, collection, document) in [
            (Check::PilingTopics, Severity::Problem, "topic t: 1 message waits", &topic, old(doc! {})),
            (Check::PilingTopics, Severity::Problem, "1 of them exclusive", &topic, old(doc! {"exclusive": true})),
            (Check::Recipients, Severity::Problem, "nobody (1)", &nobody, old(doc! {"recipients": ["nobody"]})),
            (Check::Answers, Severity::Warning, "1 answer that", &nobody,
                old(doc! {"recipients": ["nobody"], "in_answer_to": MessageId::generate().to_bson()})),
            (Check::Expiry, Severity::Problem, "1 message that should have expired", &topic,
                old(doc! {"timestamp": gone, "delete_at": overdue.clone()})),
            (Check::Documents, Severity::Problem, "camelCase", &topic, old(doc! {"processedBy": []})),
            (Check::Documents, Severity::Problem, "no ObjectId", &topic, old(doc! {"_id": "text", "processed_by": ["n1"]})),
            (Check::Locks, Severity::Problem, "1 lock that should have expired", &lock, locked(overdue, "n1")),
            (Check::Locks, Severity::Warning, "1 lock without expiry", &lock, locked(Bson::Null, "n1")),
            (Check::Locks, Severity::Warning, "not there: ghost (1)", &lock, locked(later, "ghost")),
            (Check::Participants, Severity::Note, "without sign of life: dead", &"msg_participants".to_owned(),
                doc! {"_id": "dead", "implementation": fake.layout.implementation(), "last_seen": gone}),
        ] {
            let fake = fake.another();
            let bus = healthy(&fake).await;
            if fake.layout != Layout::Standard {
                for index in fake.specs("msg_dm_n1").into_iter().chain(fake.specs("dm_n1")) {
                    fake.store_index(&nobody, index);
                }
            }
            fake.store(collection, document);
            let found = findings(&fake).await;
            assert!(
                matches!(&found[..], [(severe, by, said)] if (*severe, *by) == (severity, check) && said.contains(text)),
                "{text}: {found:?}"
            );
            bus.shutdown().await;
        }
        let bus = healthy(&fake).await;
        fake.store("msg_participants", foreign);
        let found = examine(&fake, "", None, Limits::default()).await.unwrap();
        assert!(found.findings[0].text.starts_with("nodes of different layouts"), "{found:?}");
        assert_eq!((found.worst(), found.layouts.len()), (Some(Severity::Problem), 2));
        bus.shutdown().await;
    }

    async fn a_request_that_was_processed_and_not_answered_is_found(fake) {
        let _bus = healthy(&fake).await;
        let mailbox = fake.names().directed("n1").unwrap();
        let answered = MessageId::generate().to_bson();
        let at = now_ms();
        let answer = doc! {"topic": "told", "recipients": ["n1"], "in_answer_to": answered.clone(), "processed_by": ["n1"],
        "timestamp": at - 59_000};
        let sent = |age: i64| doc! {"topic": "q", "processed_by": ["n2"], "timestamp": at - age};
        fake.store(&fake.names().broadcast("q"), old(doc! {"_id": answered, "topic": "q", "processed_by": ["n2"]}));
        // Before the oldest answer, within the patience, of a topic that is not answered, and answers.
        for (topic, more) in [("q", sent(60_000)), ("q", sent(0)), ("t", doc! {"processed_by": ["n2"]})] {
            fake.store(&fake.names().broadcast(topic), old(more));
        }
        for collection in [fake.names().broadcast("q"), mailbox.clone()] {
            for index in fake.specs(&fake.topic()) {
                if !fake.has_index(&collection, index.get_str("name").unwrap()) {
                    fake.store_index(&collection, index);
                }
            }
        }
        let open = async |limits| {
            let found = examine(&fake, "", None, limits).await.unwrap();
            let told = found.findings.into_iter().filter(|one| one.check == Check::Requests);
            told.map(|one| (one.severity, one.text)).collect::<Vec<_>>()
        };
        assert_eq!(open(Limits::default()).await, [], "nobody was answered yet");
        fake.store(&mailbox, old(answer));
        assert_eq!(open(Limits::default()).await, []);
        fake.store(&fake.names().broadcast("q"), old(sent(30_000)));
        let directed = doc! {"recipients": ["n1"], "exclusive": true};
        fake.store(&mailbox, old(directed.into_iter().chain(sent(40_000)).collect()));
        let told = "topic q: 2 messages were processed and got no answer, as others did".to_owned();
        assert_eq!(findings(&fake).await, [(Severity::Warning, Check::Requests, told.clone())]);
        // Of many messages the oldest show what piles up, the newest what was not answered.
        for n in 0..10 {
            fake.store(&fake.names().broadcast("q"), old(sent(3_000_000 + n)));
            fake.store(&fake.topic(), old(doc! {"topic": "t", "processed_by": ["n2"], "timestamp": at - 3_000_000 - n}));
        }
        if fake.layout == Layout::MultiCollection {
            fake.store(&fake.topic(), old(sent(20_000))); // of another queue
        }
        assert_eq!(open(Limits { documents: 9, ..Limits::default() }).await, [(Severity::Warning, told)]);
    }

    async fn times_may_be_anything(fake) {
        let _bus = healthy(&fake).await;
        let end = || Bson::DateTime(DateTime::MAX);
        fake.store(&fake.topic(), old(doc! {"timestamp": i64::MIN, "delete_at": end(), "processed_by": ["n1"]}));
        fake.store(&fake.lock(), doc! {"_id": MessageId::generate().to_bson(), "lock_id": "n1", "delete_at": end()});
        assert_eq!(findings(&fake).await, []);
    }

    async fn missing_indexes_and_streams_are_found(fake) {
        let _bus = healthy(&fake).await;
        let stream = Fault { call: "watch", collection: fake.stream(), kind: BackendErrorKind::Other, applied: false };
        fake.fail(stream);
        fake.drop_index(&fake.topic(), "delete_at_1");
        fake.drop_index(&fake.topic(), "topic_1");
        let found = findings(&fake).await;
        let of = |check| found.iter().find(|(_, by, _)| *by == check).unwrap_or_else(|| panic!("{found:?}"));
        assert_eq!(of(Check::ChangeStreams).0, Severity::Problem);
        assert!(of(Check::Indexes).2.ends_with("lacks the indexes topic_1, delete_at_1"), "{found:?}");
    }

    async fn a_queue_without_nodes_is_known_by_its_collections(fake) {
        let a = fake.bus("a").send_only().connect().await.unwrap();
        a.publish(Message::new("t")).await.unwrap();
        a.publish(Message::new("t").to("n2")).await.unwrap();
        let found = findings(&fake).await;
        assert!(matches!(&found[..], [(Severity::Note, Check::Participants, _)]), "nothing waits yet: {found:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
        let patient = Limits { patience: Duration::ZERO, ..Limits::default() };
        let found = examine(&fake, "", Some(fake.layout), patient).await.unwrap();
        assert_eq!(found.findings.iter().filter(|finding| finding.severity == Severity::Problem).count(), 2, "{found:?}");
        let nobody = found.findings.iter().find(|finding| finding.check == Check::Participants);
        assert_eq!(nobody.map(|finding| finding.severity), Some(Severity::Warning), "{found:?}");
    }

    async fn a_queue_that_is_not_there_is_told_and_not_made(fake) {
        let a = fake.connect("a").await; // the queue `msg`, and what all queues share
        a.publish(Message::new("t").to("a")).await.unwrap();
        let before = fake.collections("").await.unwrap();
        for layout in [None, Some(fake.layout)] {
            let never = examine(&fake, "misspelt", layout, Limits::default()).await.unwrap();
            let [finding] = &never.findings[..] else { panic!("{never:?}") };
            assert!(finding.text.starts_with("there is no queue \"misspelt\""), "{never:?}");
            assert!(never.layouts.is_empty() && never.collections.is_empty(), "{never:?}");
        }
        assert_eq!(fake.collections("").await.unwrap(), before);
    }

    async fn queues_whose_names_begin_alike_are_told_apart(fake) {
        let names = |queue| Names::new(fake.layout, queue).unwrap();
        for (queue, announced) in [("shop", true), ("shop_eu", true), ("shop_dm_x", true), ("shop_us", false)] {
            let names = names(queue);
            fake.store(&names.broadcast("t"), old(doc! {}));
            let lock = doc! {"_id": MessageId::generate().to_bson(), "lock_id": queue};
            fake.store(&names.locks("t"), lock);
            if announced {
                let node = doc! {"_id": queue, "implementation": fake.layout.implementation(), "last_seen": now_ms()};
                fake.store(&names.participants(), node);
            }
            if fake.layout == Layout::DualChannel {
                fake.store_empty(&names.directed("n").unwrap());
            }
        }
        for layout in [None, Some(fake.layout)] {
            let found = examine(&fake, "shop", layout, Limits::default()).await.unwrap();
            let shop = names("shop");
            let mut expected = vec![shop.broadcast("t"), shop.locks("t")];
            if fake.layout == Layout::DualChannel {
                expected.insert(1, shop.directed("n").unwrap());
            }
            assert_eq!(found.collections, expected);
            let piles = found.findings.iter().filter(|finding| finding.check == Check::PilingTopics);
            assert_eq!(piles.count(), 1, "{found:?}");
            assert!(!found.findings.iter().any(|finding| finding.check == Check::Documents), "{found:?}");
            let notes = found.findings.iter().filter(|finding| finding.text.ends_with("of this one: shop_dm_x, shop_eu"));
            assert_eq!(notes.count(), usize::from(fake.layout == Layout::MultiCollection), "{found:?}");
        }
    }
}

/// What the checks of locks and documents said.
fn told_of_documents(found: &Examination) -> Vec<(Severity, String)> {
    let of_documents =
        |finding: &&Finding| matches!(finding.check, Check::Locks | Check::Documents | Check::Indexes);
    found.findings.iter().filter(of_documents).map(|one| (one.severity, one.text.clone())).collect()
}

#[tokio::test]
async fn a_migration_is_no_dead_node() {
    for layout in [Layout::Standard, Layout::DualChannel] {
        let fake = Fake::of(layout);
        let _bus = healthy(&fake).await;
        let guard = |until: i64| doc! {"_id": MIGRATION_ID, "lock_id": "a run", "delete_at": DateTime::from_millis(until)};
        let claim = doc! {"_id": MessageId::generate().to_bson(), "lock_id": MIGRATION_ID,
        "delete_at": DateTime::from_millis(now_ms() + 60_000)};
        fake.store(&fake.lock(), guard(now_ms() + 60_000));
        fake.store(&fake.lock(), claim);
        let told = told_of_documents(&examine(&fake, "", None, Limits::default()).await.unwrap());
        assert!(
            matches!(&told[..], [(Severity::Note, text)] if text.contains("migration of the queue")),
            "{told:?}"
        );
        // It was killed.
        fake.change(&fake.lock(), doc! {"_id": MIGRATION_ID}, doc! {"$set": guard(now_ms() - 1)});
        let told = told_of_documents(&examine(&fake, "", None, Limits::default()).await.unwrap());
        assert!(
            matches!(&told[..], [(Severity::Warning, text)] if text.contains("1 lock of a migration")),
            "{told:?}"
        );
    }
}

/// Messages of a topic called like locks; with and without locks of its own, and beside a topic whose locks have that name.
#[tokio::test]
async fn messages_on_a_topic_called_like_locks_are_no_locks() {
    let shop = Names::new(Layout::MultiCollection, "shop").unwrap();
    let lock = |owner: &str| doc! {"_id": MessageId::generate().to_bson(), "lock_id": owner};
    for (topics, locked) in [(&["lck.eu"][..], false), (&["lck.eu"], true), (&["lck.eu", "eu"], true)] {
        let fake = Fake::of(Layout::MultiCollection);
        let node = doc! {"_id": "n", "implementation": fake.layout.implementation(), "last_seen": now_ms()};
        fake.store(&shop.participants(), node);
        for topic in topics {
            fake.store(&shop.broadcast(topic), old(doc! {"topic": *topic}));
            if locked {
                fake.store(&shop.locks(topic), lock("n"));
            }
        }
        let found = examine(&fake, "shop", None, Limits::default()).await.unwrap();
        let piles = found.findings.iter().filter(|one| one.check == Check::PilingTopics);
        let piles: BTreeSet<_> =
            piles.filter_map(|one| Some(one.text.split_once(" in ")?.0.to_owned())).collect();
        let expected: BTreeSet<_> =
            topics.iter().map(|topic| format!("topic {topic}: 1 message waits")).collect();
        assert_eq!(piles, expected, "{found:?}");
        let told = told_of_documents(&found);
        assert!(
            !told.iter().any(|(_, text)| text.contains("not there") || text.contains("no message")),
            "{told:?}"
        );
    }
}

/// Locks have no timestamp, and would come before all messages.
#[tokio::test]
async fn many_locks_hide_no_messages() {
    let fake = Fake::of(Layout::MultiCollection);
    let shop = Names::new(Layout::MultiCollection, "shop").unwrap();
    let node = doc! {"_id": "n", "implementation": fake.layout.implementation(), "last_seen": now_ms()};
    fake.store(&shop.participants(), node);
    fake.store(&shop.broadcast("eu"), old(doc! {"topic": "eu"}));
    fake.store(&shop.broadcast("lck.eu"), old(doc! {"topic": "lck.eu"}));
    fake.store_empty(&shop.locks("lck.eu"));
    for _ in 0..5 {
        fake.store(&shop.locks("eu"), doc! {"_id": MessageId::generate().to_bson(), "lock_id": "n"});
    }
    let found = examine(&fake, "shop", None, Limits { documents: 3, ..Limits::default() }).await.unwrap();
    let told = |text: &str| found.findings.iter().any(|one| one.text.starts_with(text));
    assert!(told("topic eu: 1 message") && told("topic lck.eu: 1 message"), "{found:?}");
    assert!(told("shop_lck_eu holds 3 documents or more"), "{found:?}");
}

/// What nothing is in may be of messages or of locks by its name, and has the indexes of either.
#[tokio::test]
async fn an_empty_collection_called_like_locks_may_have_the_indexes_of_either() {
    let shop = Names::new(Layout::MultiCollection, "shop").unwrap();
    let template = Fake::of(Layout::Standard);
    let bus = healthy(&template).await;
    let sets = [template.specs("msg"), template.specs("msg_lck"), Vec::new()];
    for (specs, is_well) in
        sets.iter().map(|specs| (specs.clone(), true)).chain([(sets[0][..1].to_vec(), false)])
    {
        let fake = Fake::of(Layout::MultiCollection);
        let node = doc! {"_id": "n", "implementation": fake.layout.implementation(), "last_seen": now_ms()};
        fake.store(&shop.participants(), node);
        fake.store_empty(&shop.broadcast("lck.eu"));
        for spec in specs {
            fake.store_index(&shop.broadcast("lck.eu"), spec);
        }
        let found = examine(&fake, "shop", None, Limits::default()).await.unwrap();
        let told = told_of_documents(&found);
        assert_eq!(told.is_empty(), is_well, "{told:?}");
    }
    bus.shutdown().await;
}

/// The locks of the queue `shop`, and the messages of a queue `shop_lck`, are in one collection; so are what is directed to
/// `x` and the messages of a queue `shop_dm_x`.
#[tokio::test]
async fn what_is_of_a_queue_whose_name_looks_like_a_collection_is_left_alone() {
    for (layout, announced) in [
        (Layout::Standard, true),
        (Layout::Standard, false),
        (Layout::DualChannel, true),
        (Layout::DualChannel, false),
        // Who is not announced is not there, for all that share the locks of `lck.t` and `t`.
        (Layout::MultiCollection, true),
    ] {
        let names = |queue| Names::new(layout, queue).unwrap();
        for other in ["shop_lck", "shop_dm_x"] {
            let fake = Fake::of(layout);
            for queue in ["shop", other] {
                if announced || queue == "shop" {
                    let node =
                        doc! {"_id": queue, "implementation": layout.implementation(), "last_seen": now_ms()};
                    fake.store(&names(queue).participants(), node);
                }
                fake.store(&names(queue).broadcast("t"), old(doc! {}));
                let lock = doc! {"_id": MessageId::generate().to_bson(), "lock_id": queue};
                fake.store(&names(queue).locks("t"), lock);
            }
            for (queue, stranger) in [("shop", other), (other, "shop")] {
                let found = examine(&fake, queue, Some(layout), Limits::default()).await.unwrap();
                let piles = found.findings.iter().filter(|one| one.check == Check::PilingTopics);
                assert_eq!(piles.count(), 1, "{layout:?} {other} {queue}: {found:?}");
                let is_wrong = |text: &str| {
                    text.contains(&format!("not there: {stranger} (")) || text.contains("no message")
                };
                let told = told_of_documents(&found);
                assert!(!told.iter().any(|(_, text)| is_wrong(text)), "{layout:?} {other} {queue}: {told:?}");
            }
        }
    }
}

#[tokio::test]
async fn what_layouts_share_is_told_once() {
    let fake = Fake::of(Layout::Standard);
    let _bus = healthy(&fake).await;
    let other = Layout::DualChannel.implementation();
    fake.store("msg_participants", doc! {"_id": "n2", "implementation": other, "last_seen": now_ms()});
    fake.store("msg", old(doc! {}));
    fake.store("msg_lck", doc! {"_id": MessageId::generate().to_bson(), "lock_id": "n1"});
    let found = examine(&fake, "", None, Limits::default()).await.unwrap();
    let told: Vec<_> = found.findings.iter().map(|finding| finding.check).collect();
    assert_eq!(
        (found.layouts.len(), told),
        (2, vec![Check::Participants, Check::PilingTopics, Check::Locks])
    );
    assert_eq!(found.collections, ["msg", "msg_lck"]);
}
