//! The cache synchronizer between nodes, and with the messages of Java nodes.

use crate::fake::{Fake, Fault, eventually, in_every_layout, in_time};
use bson::{Document, doc};
use rockdove::backend::BackendErrorKind;
use rockdove::{Cache, CacheSync, Layout, Message, MessageId};
use std::convert::Infallible;
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

/// What a Java node sends.
fn news(topic: &str, type_name: &str, ids: Option<Vec<&str>>) -> Document {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    doc! {"_id": MessageId::generate().to_bson(), "topic": topic, "name": topic, "sender": "java-1", "msg": "store",
    "value": type_name, "additional": ids, "recipients": null, "processed_by": [], "timestamp": now, "ttl": 30_000_i64}
}

in_every_layout! {
    async fn who_changes_an_object_tells_the_others(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let (at_a, at_b) = (
            CacheSync::builder(&a).attach().await.unwrap(),
            CacheSync::builder(&b).attach().await.unwrap(),
        );
        in_time("ready", b.ready()).await;
        let (here, there) = (at_a.cache::<u32>("T", 10), at_b.cache::<u32>("T", 10));
        let other = at_b.cache::<u32>("U", 10);
        for id in ["1", "2"] {
            for cache in [&here, &there, &other] {
                cache.get_or_load(id, || async { Ok::<_, Infallible>(7) }).await.unwrap();
            }
        }
        here.changed(&["1"], "store").await.unwrap();
        assert_eq!((here.get("1"), here.get("2")), (None, Some(7)));
        eventually("forgotten there", || there.get("1").is_none()).await;
        assert_eq!((there.len(), other.len()), (1, 2));
        at_a.clear_type("T", "Update: SET").await.unwrap();
        eventually("the whole type", || there.is_empty()).await;
        assert_eq!(other.len(), 2);
        at_a.clear_all("manual").await.unwrap();
        eventually("everything", || other.is_empty()).await;
    }

    async fn news_of_java_nodes_are_understood(fake) {
        let b = fake.connect("b").await;
        let sync = CacheSync::builder(&b).attach().await.unwrap();
        in_time("ready", b.ready()).await;
        let cache = sync.cache::<u32>("com.shop.Customer", 10);
        let fill = || async {
            for id in ["68e7780000a1b2c3d4000001", "2"] {
                cache.get_or_load(id, || async { Ok::<_, Infallible>(7) }).await.unwrap();
            }
        };
        fill().await;
        let send = |topic: &str, news| fake.store(&fake.names().broadcast(topic), news);
        let ids = Some(vec!["68e7780000a1b2c3d4000001"]);
        send("cacheSyncRecord", news("cacheSyncRecord", "com.shop.Customer", ids));
        eventually("one", || cache.len() == 1).await;
        fill().await;
        send("cacheSyncType", news("cacheSyncType", "com.shop.Unknown", None));
        send("cacheSyncType", news("cacheSyncType", "com.shop.Customer", None));
        eventually("the type", || cache.is_empty()).await;
        fill().await;
        send("cacheSyncType", news("cacheSyncType", "ALL", None));
        eventually("all", || cache.is_empty()).await;
        sync.detach();
        assert!(b.status().listeners.iter().all(|(topic, _)| !topic.starts_with("cacheSync")));
    }

    async fn news_are_confirmed_and_vetoed_on_demand(fake) {
        let (a, b) = (fake.connect("a").await, fake.connect("b").await);
        let deaf = |news: &Message| news.value.as_deref() != Some("T");
        let sync = CacheSync::builder(&b).confirm().may_clear(deaf).attach().await.unwrap();
        in_time("ready", b.ready()).await;
        let (vetoed, cleared) = (sync.cache::<u32>("T", 10), sync.cache::<u32>("U", 10));
        for cache in [&vetoed, &cleared] {
            cache.get_or_load("1", || async { Ok::<_, Infallible>(7) }).await.unwrap();
        }
        for (type_name, text) in [("T", "vetoed"), ("U", "cache cleared"), ("V", "type not cached here")] {
            let news = Message::new("cacheSyncType").value(type_name);
            let answer = a.request_first(news, SECONDS).await.unwrap();
            assert_eq!((answer.topic.as_str(), answer.msg.as_deref()), ("clearCacheAnswer", Some(text)));
            assert_eq!(answer.value.as_deref(), Some("b"));
        }
        assert_eq!((vetoed.len(), cleared.len()), (1, 0));
        let silent = CacheSync::builder(&a).may_send(|_| false).attach().await.unwrap();
        silent.clear_all("kept to oneself").await.unwrap();
        assert_eq!(fake.messages().iter().filter(|m| m.get_str("value").is_ok_and(|v| v == "ALL")).count(), 0);
    }
}

#[tokio::test]
async fn all_caches_of_a_type_hear_the_news() {
    let fake = Fake::of(Layout::Standard);
    let (a, b) = (fake.connect("a").await, fake.connect("b").await);
    let (here, there) = (CacheSync::builder(&a), CacheSync::builder(&b).attach().await.unwrap());
    in_time("ready", b.ready()).await;
    let caches = [there.cache::<u32>("T", 10), there.cache::<u32>("T", 10)];
    for cache in &caches {
        cache.get_or_load("1", || async { Ok::<_, Infallible>(7) }).await.unwrap();
    }
    here.attach().await.unwrap().clear_type("T", "manual").await.unwrap();
    eventually("cleared", || caches.iter().all(Cache::is_empty)).await;
}

/// News live for half a minute: who could not hear them for that long knows nothing.
#[tokio::test(start_paused = true)]
async fn caches_are_cleared_after_a_long_outage() {
    for (outage, kept) in [(5, 1), (40, 0)] {
        let fake = Fake::of(Layout::Standard);
        let b = fake.connect("b").await;
        let sync = CacheSync::builder(&b).attach().await.unwrap();
        in_time("ready", b.ready()).await;
        let cache = sync.cache::<u32>("T", 10);
        cache.get_or_load("1", || async { Ok::<_, Infallible>(7) }).await.unwrap();
        let (call, collection, kind) = ("watch", fake.stream(), BackendErrorKind::Transient);
        for _ in 0..outage {
            fake.fail(Fault { call, collection: collection.clone(), kind, applied: false });
        }
        fake.break_streams(kind);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((fake.faults_left(), cache.len()), (0, kept), "{outage} s");
    }
}
