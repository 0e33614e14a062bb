//! What all parts of a bus share: identity, settings, back end, listeners, waiting callers.

use crate::backend::{Backend, BackendError, BackendErrorKind, BackendResult};
use crate::clock::{self, WallClock};
use crate::lanes::{Lanes, Workers};
use crate::listen::{Listeners, RejectionHandler};
use crate::participants::Heartbeats;
use crate::phase::{Life, Phase};
use crate::registry::{self, Registry};
use crate::streams::{Source, Stream};
use crate::trouble::Troubles;
use crate::waiters::Waiters;
use futures_util::FutureExt;
use parking_lot::Mutex;
use rockdove_messages::{
    IndexDefinition, Layout, Message, NameError, Names, Settings, lock_indexes, message_indexes,
};
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::task::{AbortHandle, JoinHandle};

/// First pause between two tries of a failed call; doubled up to [`RETRY_LONGEST`].
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// How long marks, releases and reads are retried.
pub(crate) const CALL_RETRIES: Duration = Duration::from_secs(30);
/// How long calls are retried on which it hangs whether a message is lost: as long as the bus runs.
pub(crate) const WHILE_RUNNING: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How long requests may take that are under way when the bus stops.
const FINISH_LIMIT: Duration = Duration::from_secs(2);
/// What the log calls it.
const CONNECTION: &str = "the connection";
/// Pause before a loop that panicked is started again.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// How long a collection's indexes are known to be there. Somebody may drop the collection, and the next send makes
/// it anew without any.
const INDEXED_MEMORY: Duration = Duration::from_secs(5 * 60);
/// Most collections remembered so; more are asked about again.
const INDEXED_MAX: usize = 10_000;

/// The shared state of one bus.
pub(crate) struct Node {
    pub backend: Arc<dyn Backend>,
    pub settings: Settings,
    pub names: Names,
    /// Own sender id.
    pub me: String,
    pub host: String,
    pub send_only: bool,
    /// The bus opened the back end, and closes it.
    pub owns_backend: bool,
    pub life: Life,
    pub listeners: Listeners,
    pub registry: Registry,
    pub heartbeats: Mutex<Heartbeats>,
    /// The application's way with rejections.
    pub rejection: Option<Box<RejectionHandler>>,
    /// This node's wall clock.
    pub clock: Box<WallClock>,
    pub waiters: Arc<Waiters>,
    /// Paused topics, and since when.
    pub paused: Mutex<HashMap<String, Instant>>,
    /// Own collection of directed messages; the base collection where the layout has none.
    pub mailbox: String,
    pub lanes: Lanes,
    pub workers: Workers,
    pub streams: parking_lot::RwLock<Vec<Arc<Stream>>>,
    pub troubles: Troubles,
    pub runtime: Handle,
    /// Background loops, aborted at the end.
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Held while a request is under way that must not reach the server after the last ones of this bus.
    unfinished: RwLock<()>,
    /// Collections whose indexes were created, and when.
    indexed: Mutex<HashMap<String, Instant>>,
}

impl Node {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        settings: Settings,
        names: Names,
        me: String,
        (send_only, owns_backend): (bool, bool),
    ) -> Result<Self, NameError> {
        Ok(Self {
            waiters: Arc::new(Waiters::new(settings.requests_max)),
            mailbox: names.directed(&me)?,
            workers: Workers::new(settings.workers()),
            registry: Registry::new(settings.participant_timeout),
            heartbeats: Mutex::default(),
            rejection: None,
            clock: Box::new(clock::system_ms),
            backend,
            settings,
            names,
            me,
            host: host_name(),
            send_only,
            owns_backend,
            life: Life::new(),
            listeners: Listeners::default(),
            paused: Mutex::default(),
            lanes: Lanes::default(),
            streams: parking_lot::RwLock::default(),
            troubles: Troubles::default(),
            runtime: Handle::current(),
            tasks: Mutex::default(),
            unfinished: RwLock::default(),
            indexed: Mutex::default(),
        })
    }

    /// Starts lanes and streams.
    pub(crate) fn start(self: &Arc<Self>) {
        let node = self.clone();
        self.spawn_loop("connection", move || watch_connection(node.clone()));
        self.lanes.start(self);
        if self.settings.registry {
            let node = self.clone();
            self.spawn_loop("registry", move || registry::discover(node.clone()));
        }
        if !self.settings.use_change_stream {
            return;
        }
        for source in Source::of(self.names.layout()) {
            let stream = Arc::new(Stream::new(self.clone(), *source));
            self.streams.write().push(stream.clone());
            self.spawn_loop("stream", move || stream.clone().supervise());
        }
    }

    /// The stream that should announce what is inserted into `collection` looks dead.
    pub(crate) fn restart_stream(&self, collection: &str) {
        let directed = self.names.layout().has_directed_lane() && collection == self.mailbox;
        let concerned = |source| match source {
            Source::Directed => directed,
            Source::Shared | Source::Topics => !directed,
            Source::Locks => false,
        };
        for stream in self.streams.read().iter().filter(|stream| concerned(stream.source)) {
            stream.restart.notify_one();
        }
    }

    /// A listener call ended; the lanes whose turn it is go on. One that has nothing left to do passes its turn on.
    pub(crate) fn give_worker_back(&self) {
        self.workers.give_back();
        while let Some(lane) = self.workers.next_turn() {
            lane.resume();
        }
    }

    /// Runs a background loop until the bus stops; starts it again, loudly, should it panic.
    pub(crate) fn spawn_loop<F>(
        self: &Arc<Self>,
        name: &'static str,
        start: impl Fn() -> F + Send + 'static,
    ) -> AbortHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let node = self.clone();
        let task = self.runtime.spawn(async move {
            while AssertUnwindSafe(start()).catch_unwind().await.is_err() {
                tracing::error!(node.me, "the {name} loop panicked; it is started again");
                tokio::time::sleep(PANIC_PAUSE).await;
            }
        });
        let abort = task.abort_handle();
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
        abort
    }

    /// Leave to make requests that must not reach the server after the last ones of this bus, such as an announcement
    /// after its withdrawal. `None` once the bus is about to make those; it waits for what has leave. Who has leave does not
    /// ask for it again: the bus may be waiting in between.
    pub(crate) async fn unfinished(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let leave = self.unfinished.read().await;
        (self.life.phase() < Phase::Interrupting).then_some(leave)
    }

    /// Ends the background loops, those last whose requests are under way.
    pub(crate) async fn end_loops(&self) {
        let finished = async {
            drop(self.unfinished.write().await);
            Ok(())
        };
        if let Err(error) = self.leaving(FINISH_LIMIT, finished).await {
            tracing::debug!(self.me, %error, "requests are still under way; they are left to themselves");
        }
        let tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.iter().for_each(JoinHandle::abort);
        futures_util::future::join_all(tasks).await;
    }

    /// Repeats a call that fails for a passing reason, for at most `limit`, until the bus stops.
    pub(crate) async fn retry<T, F>(&self, limit: Duration, mut call: impl FnMut() -> F) -> BackendResult<T>
    where
        F: Future<Output = BackendResult<T>>,
    {
        let deadline = clock::now() + limit;
        let mut pause = RETRY_FIRST;
        loop {
            let error = match call().await {
                Err(error) if error.is_transient() && clock::now() + pause < deadline => error,
                result => return result,
            };
            tracing::debug!(node = self.me, %error, "a call failed for now; trying again");
            if !self.life.sleep_unless(Phase::Stopped, pause).await {
                return Err(error);
            }
            pause = (pause * 2).min(RETRY_LONGEST);
        }
    }

    /// A call of a node that stops: it ends after `limit`, and as soon as no server answers.
    pub(crate) async fn leaving<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = BackendResult<T>>,
    ) -> BackendResult<T> {
        let lost = async {
            if self.troubles.is_in(CONNECTION) {
                return BackendError::new(BackendErrorKind::Transient, "no server answers");
            }
            self.backend.lost().await
        };
        tokio::select! {
            biased;
            result = call => result,
            error = lost => {
                self.troubles.add(CONNECTION); // the next call need not find out
                Err(error)
            }
            () = tokio::time::sleep(limit) => Err(BackendError::late()),
        }
    }

    /// This node's wall clock, ms since the epoch. It may be wrong.
    pub(crate) fn now_ms(&self) -> i64 {
        (self.clock)()
    }

    pub(crate) fn is_paused(&self, topic: &str) -> bool {
        self.paused.lock().contains_key(topic)
    }

    /// Creates the indexes of a message collection, once.
    pub(crate) async fn index_messages(&self, collection: &str) {
        self.index(collection, message_indexes()).await;
    }

    /// Creates the indexes of a lock collection, once.
    pub(crate) async fn index_locks(&self, collection: &str) {
        self.index(collection, lock_indexes()).await;
    }

    /// A failure is reported, not fatal: messages flow without indexes, only slower, and without expiry.
    /// After a passing failure the next use of the collection tries again.
    async fn index(&self, collection: &str, indexes: Vec<IndexDefinition>) {
        let is_known = |at: &Instant| clock::since(*at) < INDEXED_MEMORY;
        if self.indexed.lock().get(collection).is_some_and(is_known) {
            return;
        }
        let is_dropped = self.names.layout() == Layout::DualChannel && collection == self.mailbox;
        let leave = if is_dropped { self.unfinished().await } else { None };
        if is_dropped && leave.is_none() {
            return; // it would be made anew
        }
        // Asking first costs one call; creating what is there would cost one for each index.
        let existing = self.backend.indexes(collection).await.unwrap_or_default();
        let is_missing = |index: &&IndexDefinition| !existing.iter().any(|one| index.is_served_by(one));
        let missing: Vec<_> = indexes.iter().filter(is_missing).collect();
        let calls = missing.iter().map(|index| self.backend.create_index(collection, index));
        let mut complete = true;
        for (result, index) in futures_util::future::join_all(calls).await.into_iter().zip(&missing) {
            let Err(error) = result else { continue };
            complete &= !error.is_transient();
            if error.kind() != BackendErrorKind::IndexConflict || !self.is_served(collection, index).await {
                tracing::warn!(collection, index = index.name, %error, "index not created");
            }
        }
        if complete {
            let mut indexed = self.indexed.lock();
            if indexed.len() >= INDEXED_MAX {
                indexed.retain(|_, at| clock::since(*at) < INDEXED_MEMORY);
            }
            if indexed.len() >= INDEXED_MAX {
                indexed.clear();
            }
            indexed.insert(collection.to_owned(), clock::now());
        }
    }

    /// Whether another index, made meanwhile, does what this one is to do; Java nodes of some versions name theirs
    /// differently.
    async fn is_served(&self, collection: &str, index: &IndexDefinition) -> bool {
        let existing = self.backend.indexes(collection).await;
        existing.is_ok_and(|all| all.iter().any(|existing| index.is_served_by(existing)))
    }

    /// Forgets that a collection's indexes are there: it may have been dropped.
    pub(crate) fn forget_indexes(&self, collection: &str) {
        self.indexed.lock().remove(collection);
    }

    /// The collections a message is stored in: one for a broadcast, one per recipient where the layout says so.
    pub(crate) fn targets(&self, message: &Message) -> Result<Vec<String>, NameError> {
        if message.is_broadcast() {
            return Ok(vec![self.names.broadcast(&message.topic)]);
        }
        let mut targets =
            message.recipients.iter().map(|id| self.names.directed(id)).collect::<Result<Vec<_>, _>>()?;
        targets.sort_unstable();
        targets.dedup();
        Ok(targets)
    }
}

/// Tells when the connection is lost and when it is back: calls and streams may try for long before they fail.
async fn watch_connection(node: Arc<Node>) {
    loop {
        let error = node.backend.lost().await;
        node.troubles.begin(&node.me, CONNECTION, &error);
        node.backend.back().await;
        node.troubles.end(&node.me, CONNECTION);
    }
}

/// A duration in ms, as documents hold it.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The environment's `HOSTNAME`, else the kernel's host name.
fn host_name() -> String {
    let kernel = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    std::env::var("HOSTNAME")
        .ok()
        .filter(|name| !name.is_empty())
        .or_else(|| kernel().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()))
        .unwrap_or_else(|| "unknown host".to_owned())
}
