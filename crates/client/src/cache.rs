//! Caches of several nodes, kept in step over messages: who changes an object tells the others to forget it.
//!
//! The messages are those of Morphium's cache synchronizer, so Java and Rust nodes tell each other: broadcasts on
//! two topics, with the type's name in `value` and, for single objects, their ids as text in `additional`. Names of
//! types are whatever the nodes agree on; Java uses class names.
//!
//! A cache never shows what it was told to forget: what a load read before the news and brings after it is not kept.
//! After an outage so long that news may have expired unheard, it forgets all.

use crate::bus::Bus;
use crate::error::{SendError, SubscribeError};
use crate::listen::{Delivery, HandlerError, SubscribeOptions, Subscription};
use crate::trouble::LONG;
use bson::Bson;
use parking_lot::{Mutex, RwLock};
use rockdove_messages::Message;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The topic of news about a whole type.
const TYPE_TOPIC: &str = "cacheSyncType";
/// The topic of news about single objects.
const RECORD_TOPIC: &str = "cacheSyncRecord";
/// The topic of confirmations, and their name.
const CONFIRMED_TOPIC: &str = "clearCacheAnswer";
/// `value` of the news that concern every type.
const ALL: &str = "ALL";
/// How long the news live.
const TTL: Duration = Duration::from_secs(30);
/// An outage may have begun so long before it was noticed: a host that is silent is given so much time.
const UNNOTICED: Duration = Duration::from_secs(16);
// In one that does not count as long no news expired unheard.
const _: () = assert!(LONG.as_secs() + UNNOTICED.as_secs() <= TTL.as_secs());

/// What a cache is to forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clearing<'a> {
    /// All it holds.
    All,
    /// The objects with these ids, as text (ObjectIds as 24 hexadecimal digits).
    Ids(&'a [String]),
}

/// Something that caches objects of one type.
pub trait CacheTarget: Send + Sync {
    /// Forgets objects.
    fn clear(&self, what: Clearing<'_>);
}

type Veto = Box<dyn Fn(&Message) -> bool + Send + Sync>;

struct Inner {
    bus: Bus,
    /// By type. Those that are gone go with the next registration.
    targets: RwLock<HashMap<String, Vec<Weak<dyn CacheTarget>>>>,
    confirm: bool,
    may_send: Option<Veto>,
    may_clear: Option<Veto>,
}

/// The cache synchronizer of one bus.
///
/// ```no_run
/// # async fn run(bus: rockdove::Bus) -> Result<(), Box<dyn std::error::Error>> {
/// use rockdove::CacheSync;
/// let sync = CacheSync::builder(&bus).attach().await?;
/// let customers = sync.cache::<String>("shop.Customer", 1000);
/// let name = customers.get_or_load("4711", || async { Ok::<_, std::io::Error>("Ada".to_owned()) }).await?;
/// customers.changed(&["4711"], "store").await?; // after writing it: here and everywhere else
/// # Ok(()) }
/// ```
pub struct CacheSync {
    inner: Arc<Inner>,
    subscriptions: Vec<Subscription>,
    /// Clears the caches after long outages.
    clearing: AbortHandle,
}

/// A cache synchronizer in the making.
pub struct CacheSyncBuilder {
    inner: Inner,
}

impl CacheSyncBuilder {
    /// Answers each news with what was done, to its sender. Off.
    pub fn confirm(mut self) -> Self {
        self.inner.confirm = true;
        self
    }

    /// Asks before news are sent; false = they are not. The own caches are cleared in any case.
    pub fn may_send(mut self, ask: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        self.inner.may_send = Some(Box::new(ask));
        self
    }

    /// Asks before news of others are heeded; false = they are not.
    pub fn may_clear(mut self, ask: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        self.inner.may_clear = Some(Box::new(ask));
        self
    }

    /// Begins to listen. The bus needs to be [`ready`](Bus::ready) before the news of others are heard at once.
    pub async fn attach(self) -> Result<CacheSync, SubscribeError> {
        let inner = Arc::new(self.inner);
        let mut subscriptions = Vec::new();
        for topic in [TYPE_TOPIC, RECORD_TOPIC] {
            let listening = inner.clone();
            let options = SubscribeOptions::new().name("cache_sync");
            let hear = move |news| {
                let answer = listening.hear(&news);
                std::future::ready(Ok::<_, HandlerError>(answer))
            };
            subscriptions.push(inner.bus.subscribe_with(topic, options, hear).await?);
        }
        let node = inner.bus.node();
        let clear = clear_after_outages(Arc::downgrade(&inner), node.troubles.long_ones());
        let clearing = node.runtime.spawn(clear).abort_handle();
        Ok(CacheSync { inner, subscriptions, clearing })
    }
}

impl CacheSync {
    /// Prepares the synchronizer of a bus.
    pub fn builder(bus: &Bus) -> CacheSyncBuilder {
        let inner = Inner {
            bus: bus.clone(),
            targets: RwLock::default(),
            confirm: false,
            may_send: None,
            may_clear: None,
        };
        CacheSyncBuilder { inner }
    }

    /// A cache of at most `capacity` objects of the named type. It hears the news as long as it lives.
    pub fn cache<V: Clone + Send + Sync + 'static>(&self, type_name: &str, capacity: usize) -> Cache<V> {
        let store = Arc::new(Store { capacity, state: Mutex::default() });
        let target: Arc<dyn CacheTarget> = store.clone();
        self.register(type_name, &target);
        Cache { type_name: type_name.to_owned(), store, sync: self.inner.clone() }
    }

    /// Lets an application's own cache hear the news about a type, as long as it lives.
    pub fn register(&self, type_name: &str, target: &Arc<dyn CacheTarget>) {
        let mut targets = self.inner.targets.write();
        targets.retain(|_, of_type| {
            of_type.retain(|target| target.strong_count() > 0);
            !of_type.is_empty()
        });
        targets.entry(type_name.to_owned()).or_default().push(Arc::downgrade(target));
    }

    /// Clears a type, here and on every other node.
    pub async fn clear_type(&self, type_name: &str, reason: &str) -> Result<(), SendError> {
        self.inner.tell(TYPE_TOPIC, type_name, None, reason).await
    }

    /// Clears every cache, here and on every other node.
    pub async fn clear_all(&self, reason: &str) -> Result<(), SendError> {
        self.inner.tell(TYPE_TOPIC, ALL, None, reason).await
    }

    /// Makes every node forget single objects; ids are text (ObjectIds as 24 hexadecimal digits).
    pub async fn clear_records(
        &self,
        type_name: &str,
        ids: &[impl AsRef<str>],
        reason: &str,
    ) -> Result<(), SendError> {
        let ids = ids.iter().map(|id| id.as_ref().to_owned()).collect();
        self.inner.tell(RECORD_TOPIC, type_name, Some(ids), reason).await
    }

    /// Stops listening. Caches go on for this node alone.
    pub fn detach(self) {
        self.clearing.abort();
        self.subscriptions.into_iter().for_each(Subscription::cancel);
    }
}

impl Inner {
    /// Clears here, then tells the others.
    async fn tell(
        &self,
        topic: &str,
        type_name: &str,
        ids: Option<Vec<String>>,
        reason: &str,
    ) -> Result<(), SendError> {
        self.clear(type_name, ids.as_deref());
        let mut news = Message::new(topic).value(type_name).msg(reason).ttl(TTL);
        if let Some(ids) = ids {
            news = news.additional(ids.into_iter().map(Bson::String).collect());
        }
        if self.may_send.as_ref().is_some_and(|may| !may(&news)) {
            return Ok(());
        }
        self.bus.publish(news).await.map(drop)
    }

    /// Heeds the news of another node; the confirmation, if one is to be sent.
    fn hear(&self, news: &Delivery) -> Option<Message> {
        if news.is_answer() {
            return None;
        }
        let type_name = news.value.as_deref().unwrap_or_default();
        let text = |id: &Bson| match id {
            Bson::String(text) => Some(text.clone()),
            Bson::ObjectId(id) => Some(id.to_hex()),
            Bson::Int32(number) => Some(number.to_string()),
            Bson::Int64(number) => Some(number.to_string()),
            _ => None,
        };
        let ids: Option<Vec<String>> = match news.topic.as_str() {
            RECORD_TOPIC => Some(news.additional.iter().flatten().filter_map(text).collect()),
            _ => None,
        };
        let done = if self.may_clear.as_ref().is_some_and(|may| !may(news)) {
            "vetoed"
        } else if self.clear(type_name, ids.as_deref()) {
            "cache cleared"
        } else {
            "type not cached here"
        };
        tracing::debug!(type_name, done, reason = news.msg, "news about a cache");
        let mut answer = self.confirm.then(|| news.derive_answer().msg(done).value(self.bus.sender_id()))?;
        answer.topic = CONFIRMED_TOPIC.to_owned();
        Some(answer)
    }

    /// False when no cache here holds the type.
    fn clear(&self, type_name: &str, ids: Option<&[String]>) -> bool {
        let targets: Vec<_> = {
            let all = self.targets.read();
            let meant = all.iter().filter(|(name, _)| type_name == ALL || *name == type_name);
            meant.flat_map(|(_, of_type)| of_type).filter_map(Weak::upgrade).collect()
        };
        let what = ids.map_or(Clearing::All, Clearing::Ids);
        targets.iter().for_each(|target| target.clear(what));
        !targets.is_empty()
    }
}

/// Runs until the synchronizer or its bus is gone.
async fn clear_after_outages(inner: Weak<Inner>, mut long: watch::Receiver<u64>) {
    while long.changed().await.is_ok() {
        let Some(inner) = inner.upgrade() else { return };
        tracing::info!("caches are cleared: news may have been missed in an outage");
        inner.clear(ALL, None);
    }
}

struct State<V> {
    entries: HashMap<String, V>,
    /// In order of arrival; the oldest makes room. May hold ids that are gone.
    order: VecDeque<String>,
    /// Counts what was cleared, so that a load that began before is not kept.
    clearings: u64,
}

impl<V> Default for State<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), clearings: 0 }
    }
}

struct Store<V> {
    capacity: usize,
    state: Mutex<State<V>>,
}

impl<V: Send> CacheTarget for Store<V> {
    fn clear(&self, what: Clearing<'_>) {
        let mut state = self.state.lock();
        state.clearings += 1;
        match what {
            Clearing::All => {
                state.entries.clear();
                state.order.clear();
            }
            Clearing::Ids(ids) => {
                for id in ids {
                    state.entries.remove(id);
                }
                let State { entries, order, .. } = &mut *state;
                order.retain(|id| entries.contains_key(id));
            }
        }
    }
}

impl<V> Store<V> {
    fn keep(&self, id: &str, value: V, clearings: u64) {
        let mut state = self.state.lock();
        if state.clearings != clearings || self.capacity == 0 {
            return;
        }
        if state.entries.insert(id.to_owned(), value).is_none() {
            state.order.push_back(id.to_owned());
        }
        while state.entries.len() > self.capacity {
            let Some(oldest) = state.order.pop_front() else { return };
            state.entries.remove(&oldest);
        }
    }
}

/// A bounded cache of objects of one type, by id. Clones share it.
#[derive(Clone)]
pub struct Cache<V> {
    type_name: String,
    store: Arc<Store<V>>,
    sync: Arc<Inner>,
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// The object, if it is cached.
    pub fn get(&self, id: &str) -> Option<V> {
        self.store.state.lock().entries.get(id).cloned()
    }

    /// The object: from the cache, else as `load` brings it. Two callers may load the same object at a time.
    pub async fn get_or_load<F, E>(&self, id: &str, load: impl FnOnce() -> F) -> Result<V, E>
    where
        F: Future<Output = Result<V, E>>,
    {
        let clearings = {
            let state = self.store.state.lock();
            if let Some(value) = state.entries.get(id) {
                return Ok(value.clone());
            }
            state.clearings
        };
        let value = load().await?;
        self.store.keep(id, value.clone(), clearings);
        Ok(value)
    }

    /// Objects were changed or removed in the database: every node forgets them.
    pub async fn changed(&self, ids: &[impl AsRef<str>], reason: &str) -> Result<(), SendError> {
        let ids = ids.iter().map(|id| id.as_ref().to_owned()).collect();
        self.sync.tell(RECORD_TOPIC, &self.type_name, Some(ids), reason).await
    }

    /// How many objects it holds.
    pub fn len(&self) -> usize {
        self.store.state.lock().entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(store: &Store<u32>) -> Vec<String> {
        let mut keys: Vec<_> = store.state.lock().entries.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn the_oldest_makes_room() {
        let store = Store { capacity: 2, state: Mutex::default() };
        for id in ["1", "2", "1", "3"] {
            store.keep(id, 0, 0);
        }
        assert_eq!(keys(&store), ["2", "3"]);
        store.clear(Clearing::Ids(&["2".to_owned(), "9".to_owned()]));
        assert_eq!(keys(&store), ["3"]);
        for id in ["4", "5"] {
            store.keep(id, 0, 1);
        }
        assert_eq!(keys(&store), ["4", "5"]);
        assert_eq!(store.state.lock().order.len(), 2);
    }

    #[test]
    fn what_was_loaded_before_a_clearing_is_not_kept() {
        let store = Store { capacity: 2, state: Mutex::default() };
        store.clear(Clearing::All);
        store.keep("1", 0, 0);
        assert!(keys(&store).is_empty());
        store.keep("1", 0, 1);
        assert_eq!(keys(&store), ["1"]);
    }
}
