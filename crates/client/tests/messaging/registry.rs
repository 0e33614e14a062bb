//! The registry: who is there, who listens to what, and what a sender is told about it.

use crate::fake::{Fake, eventually, in_every_layout, in_time};
use rockdove::{Bus, Layout, Message, MessageId, RegistryCheck, SendError, Settings};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

/// A node with a registry that asks rarely by itself.
async fn with_registry(fake: &Fake, check: RegistryCheck) -> Bus {
    let settings = Settings {
        sender_id: Some("registry".into()),
        registry: true,
        registry_check_topics: check,
        registry_check_recipients: check,
        heartbeat_interval: Duration::from_millis(400),
        participant_timeout: Duration::from_millis(1500),
        ..fake.connect("template").await.settings().clone()
    };
    fake.bus_with(settings).connect().await.unwrap()
}

in_every_layout! {
    async fn nodes_and_topics_become_known_and_are_forgotten(fake) {
        let (a, b) = (with_registry(&fake, RegistryCheck::Ignore).await, fake.connect("b").await);
        let subscription = b.subscribe("orders", |_| async { Ok(()) }).await.unwrap();
        let knows = |topic: &str| a.known_nodes().iter().any(|node| node.id == "b" && node.topics.contains(topic));
        eventually("known", || knows("orders")).await;
        assert!(knows("morphium.status_info") && a.known_nodes().iter().all(|node| node.id != "registry"));
        subscription.cancel();
        eventually("the topic is forgotten", || !knows("orders")).await;
        in_time("shutdown", b.shutdown()).await;
        eventually("the node is forgotten", || a.known_nodes().iter().all(|node| node.id != "b")).await;
    }

    async fn nobody_answers_earlier_questions(fake) {
        let asked = fake.names().broadcast("morphium.status_info");
        // Of another node with the same id.
        let strange = MessageId::generate().to_bson();
        let question = bson::doc! {"_id": &strange, "topic": "morphium.status_info", "sender": "registry",
            "msg": "status_request", "value": "all", "recipients": null, "processed_by": []};
        fake.store(&asked, question);
        let a = with_registry(&fake, RegistryCheck::Ignore).await;
        let is_question = |one: &bson::Document| one.get_str("sender").is_ok_and(|sender| sender == "registry");
        let questions = || fake.all(&asked).iter().filter(|one| is_question(one)).count();
        // The next one is asked first: who is slow finds one at any time.
        let mut withdrawn = 0;
        eventually("it asks again and again", || {
            withdrawn = fake.calls("delete", &asked);
            let times = fake.calls("insert", &asked);
            assert!(withdrawn < times.max(1), "{withdrawn} of {times}");
            withdrawn > 2
        }).await;
        eventually("earlier ones are withdrawn", || questions() == 2).await;
        in_time("shutdown", a.shutdown()).await;
        let left: Vec<_> = fake.all(&asked).into_iter().filter(is_question).collect();
        assert!(matches!(&left[..], [one] if one.get("_id") == Some(&strange)), "{left:?}");
    }

    async fn what_nobody_would_receive_is_refused(fake) {
        let (a, b) = (with_registry(&fake, RegistryCheck::Throw).await, fake.connect("b").await);
        a.subscribe("own", |_| async { Ok(()) }).await.unwrap();
        in_time("ready", b.ready()).await;
        for topic in ["orders", "own"] {
            let refused = a.publish(Message::new(topic)).await;
            assert!(matches!(&refused, Err(SendError::NoListener(unheard)) if unheard == topic), "{refused:?}");
        }
        let refused = a.publish(Message::new("orders").to("nobody")).await;
        assert!(matches!(&refused, Err(SendError::NoRecipient(id)) if id == "nobody"), "{refused:?}");
        let bulk = a.send_many(vec![Message::new("orders"), Message::new("orders").to("b")]).await.unwrap_err();
        assert_eq!(bulk.failures.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0]);
        b.subscribe("orders", |_| async { Ok(()) }).await.unwrap();
        in_time("ready", b.ready()).await;
        tokio::time::sleep(Duration::from_millis(1100)).await; // a check that failed a moment ago is not repeated
        a.publish(Message::new("orders")).await.unwrap();
        a.publish_to_self(Message::new("own")).await.unwrap();
    }

    async fn a_warning_sends_nevertheless(fake) {
        let a = with_registry(&fake, RegistryCheck::Warn).await;
        a.publish(Message::new("t").value("sent")).await.unwrap();
        assert_eq!(fake.all(&fake.topic()).iter().filter(|message| message.get_str("value").is_ok_and(|value| value == "sent")).count(), 1);
    }

    async fn the_application_gets_its_status_answers_beside_the_registry(fake) {
        let (a, b) = (with_registry(&fake, RegistryCheck::Ignore).await, fake.connect("b").await);
        in_time("ready", b.ready()).await;
        let ask = Message::new("morphium.status_info").to("b");
        let answer = a.request_first(ask, SECONDS).await.unwrap();
        assert!(answer.map_value.unwrap().contains_key("message_listeners_by_name"));
    }
}
