//! What simulated nodes live in: virtual time, seeded chance, and a database behind a network with weather.

use super::ledger::Ledger;
use crate::fake::Fake;
use bson::{Bson, Document};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use rockdove::Layout;
use rockdove::backend::*;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The date at which every simulation begins.
const BEGINNING_MS: i64 = 1_800_000_000_000;
/// The environment variable that prints every step of a run.
const TRACE: &str = "ROCKDOVE_TRACE";

/// Seeded chance (SplitMix64): the same numbers on every machine and with every version of every library.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    pub fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}

/// How the network is.
#[derive(Clone, Copy)]
pub struct Weather {
    /// Whether anything may fail.
    pub storm: bool,
    /// Share of calls that fail, half of them after they took effect.
    pub errors: u64,
    /// Nobody reaches the server until then.
    pub outage_until: Instant,
}

/// How one call goes.
struct Fate {
    before: Duration,
    after: Duration,
    fails_before: bool,
    fails_after: bool,
}

/// Everything the nodes of one simulation share.
pub struct World {
    pub fake: Fake,
    pub ledger: Mutex<Ledger>,
    pub weather: Mutex<Weather>,
    /// How all open streams were broken last, and how often; a `watch` would wake them in random order.
    breaks: Mutex<(u64, BackendErrorKind)>,
    broken: Notify,
    start: Instant,
    chance: Mutex<Chance>,
    digest: Mutex<(u64, u64)>,
    traced: bool,
}

impl World {
    pub fn new(layout: Layout, seed: u64) -> Arc<Self> {
        let fake = Fake::of(layout);
        fake.claim_at_once();
        fake.keep_history();
        let now = Instant::now();
        Arc::new(Self {
            fake,
            ledger: Mutex::new(Ledger::new(layout)),
            weather: Mutex::new(Weather { storm: false, errors: 0, outage_until: now }),
            breaks: Mutex::new((0, BackendErrorKind::Transient)),
            broken: Notify::new(),
            start: now,
            chance: Mutex::new(Chance::new(seed)),
            digest: Mutex::new((0xCBF2_9CE4_8422_2325, 0)),
            traced: std::env::var_os(TRACE).is_some(),
        })
    }

    /// The true time, ms since the epoch.
    pub fn now_ms(&self) -> i64 {
        BEGINNING_MS + self.elapsed_ms()
    }

    /// Since the beginning.
    pub fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap()
    }

    /// Asks chance.
    pub fn chance<T>(&self, ask: impl FnOnce(&mut Chance) -> T) -> T {
        ask(&mut self.chance.lock())
    }

    pub fn is_stormy(&self) -> bool {
        self.weather.lock().storm
    }

    /// Notes a step: two runs that took the same steps at the same times have the same digest.
    pub fn trace(&self, step: fmt::Arguments<'_>) {
        let line = format!("{:>12} {step}", self.elapsed_ms());
        if self.traced {
            eprintln!("{line}");
        }
        let mut digest = self.digest.lock();
        for byte in line.bytes() {
            digest.0 = (digest.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        digest.1 += 1;
    }

    /// The digest of all steps, and their number.
    pub fn digest(&self) -> (u64, u64) {
        *self.digest.lock()
    }

    fn fate(&self) -> Fate {
        let weather = *self.weather.lock();
        self.chance(|chance| {
            if !weather.storm {
                return Fate {
                    before: chance.millis(3),
                    after: chance.millis(3),
                    fails_before: false,
                    fails_after: false,
                };
            }
            let mut delay = || match chance.below(100) {
                0 => chance.millis(20_000),
                1..10 => chance.millis(500),
                _ => chance.millis(5),
            };
            let (before, after) = (delay(), delay());
            let fails = chance.percent(weather.errors);
            let applied = chance.percent(50);
            Fate { before, after, fails_before: fails && !applied, fails_after: fails && applied }
        })
    }

    /// Ends every open stream with an error.
    pub fn break_streams(&self, kind: BackendErrorKind) {
        {
            let mut breaks = self.breaks.lock();
            *breaks = (breaks.0 + 1, kind);
        }
        self.broken.notify_waiters();
    }

    /// Returns once streams broke more than `times`.
    async fn broke(&self, times: u64) -> BackendErrorKind {
        loop {
            let broken = self.broken.notified();
            tokio::pin!(broken);
            broken.as_mut().enable();
            let (count, kind) = *self.breaks.lock();
            if count > times {
                return kind;
            }
            broken.await;
        }
    }

    fn is_out(&self) -> bool {
        Instant::now() < self.weather.lock().outage_until
    }
}

/// One life of a node: when it is over, nothing the node does has any effect.
pub struct Life {
    pub node: usize,
    pub number: u64,
    over: AtomicBool,
    ended: Notify,
}

impl Life {
    pub fn new(node: usize, number: u64) -> Arc<Self> {
        Arc::new(Self { node, number, over: AtomicBool::new(false), ended: Notify::new() })
    }

    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.ended.notify_waiters();
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub async fn ended(&self) {
        let ended = self.ended.notified();
        tokio::pin!(ended);
        ended.as_mut().enable();
        if !self.is_over() {
            ended.await;
        }
    }
}

fn dead() -> BackendError {
    BackendError::new(BackendErrorKind::Other, "this node is dead")
}

fn unreachable() -> BackendError {
    BackendError::new(BackendErrorKind::Transient, "unreachable")
}

/// The database as one node sees it in one life.
pub struct Connection {
    pub world: Arc<World>,
    pub life: Arc<Life>,
    pub offset_ms: Arc<AtomicI64>,
}

impl Connection {
    /// The node's clock.
    pub fn clock(&self) -> impl Fn() -> i64 + Send + Sync + use<> {
        let (world, offset) = (self.world.clone(), self.offset_ms.clone());
        move || world.now_ms() + offset.load(Ordering::Relaxed)
    }

    async fn pause(&self, pause: Duration) -> BackendResult<()> {
        if !pause.is_zero() && !self.life.is_over() {
            tokio::select! {
                biased;
                () = self.life.ended() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        if self.life.is_over() { Err(dead()) } else { Ok(()) }
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        collection: &'a str,
        run: impl FnOnce(&'a Fake) -> BoxFuture<'a, BackendResult<T>> + Send + 'a,
    ) -> BoxFuture<'a, BackendResult<T>> {
        async move {
            let (world, node) = (&self.world, self.life.node);
            let fate = world.fate();
            self.pause(fate.before).await?;
            if fate.fails_before || world.is_out() {
                world.trace(format_args!("{node} {name} {collection}: lost"));
                self.pause(Duration::from_millis(10)).await?;
                return Err(unreachable());
            }
            world.trace(format_args!("{node} {name} {collection}"));
            let result = run(&world.fake).await;
            self.pause(fate.after).await?;
            if fate.fails_after || world.is_out() {
                world.trace(format_args!("{node} {name} {collection}: reply lost"));
                return Err(unreachable());
            }
            result
        }
        .boxed()
    }
}

impl Backend for Connection {
    fn insert<'a>(
        &'a self,
        collection: &'a str,
        documents: &'a [Document],
        durability: Durability,
    ) -> BoxFuture<'a, BackendResult<Vec<InsertFailure>>> {
        self.call("insert", collection, move |fake| fake.insert(collection, documents, durability))
    }

    fn find<'a>(&'a self, collection: &'a str, find: Find) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        self.call("find", collection, move |fake| fake.find(collection, find))
    }

    fn count<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        self.call("count", collection, move |fake| fake.count(collection, filter))
    }

    fn update_one<'a>(
        &'a self,
        collection: &'a str,
        filter: Document,
        update: Document,
        upsert: bool,
    ) -> BoxFuture<'a, BackendResult<Updated>> {
        self.call("update", collection, move |fake| fake.update_one(collection, filter, update, upsert))
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, BackendResult<Claimed>> {
        if self.life.node == 0 {
            // One node has a back end that cannot.
            return ready(Err(BackendError::new(BackendErrorKind::Unsupported, "step by step"))).boxed();
        }
        self.call("claim", claim.collection, move |fake| fake.claim(claim))
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        self.call("delete", collection, move |fake| fake.delete(collection, filter))
    }

    fn create_index<'a>(
        &'a self,
        collection: &'a str,
        index: &'a IndexDefinition,
    ) -> BoxFuture<'a, BackendResult<()>> {
        self.call("index", collection, move |fake| fake.create_index(collection, index))
    }

    fn indexes<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        self.call("indexes", collection, move |fake| fake.indexes(collection))
    }

    fn watch<'a>(&'a self, scope: Scope<'a>, watch: Watch) -> BoxFuture<'a, BackendResult<Box<dyn Feed>>> {
        async move {
            let resumed = watch.resume_after.clone();
            let opened = self.call("watch", "", move |fake| fake.watch(scope, watch)).await?;
            let breaks = self.world.breaks.lock().0;
            let connection = Self {
                world: self.world.clone(),
                life: self.life.clone(),
                offset_ms: self.offset_ms.clone(),
            };
            let token = opened.resume_token().or(resumed);
            Ok(Box::new(Line { connection, inner: opened, breaks, token, silent: false }) as Box<dyn Feed>)
        }
        .boxed()
    }

    fn collections<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, BackendResult<Vec<String>>> {
        self.call("collections", prefix, move |fake| fake.collections(prefix))
    }

    fn drop_collection<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<()>> {
        self.call("drop", collection, move |fake| fake.drop_collection(collection))
    }

    fn describe(&self) -> Document {
        Document::new()
    }
}

/// A change stream over the network: late, broken, or silent.
struct Line {
    connection: Connection,
    inner: Box<dyn Feed>,
    /// How often streams had been broken when it was opened.
    breaks: u64,
    /// After what was returned.
    token: Option<Bson>,
    /// It stays open and brings nothing any more.
    silent: bool,
}

impl Line {
    async fn receive(&mut self) -> BackendResult<Option<ChangeEvent>> {
        loop {
            if self.silent {
                std::future::pending::<()>().await;
            }
            let world = self.connection.world.clone();
            let event = self.inner.next().await?;
            let stormy = world.is_stormy();
            let (pause, fate) = world.chance(|chance| match stormy {
                false => (chance.millis(2), 1000),
                true if chance.percent(2) => (chance.millis(10_000), chance.below(1000)),
                true => (chance.millis(5), chance.below(1000)),
            });
            tokio::time::sleep(pause).await;
            match fate {
                0..5 => return Err(unreachable()),
                5..7 => return Err(BackendError::new(BackendErrorKind::HistoryLost, "lost")),
                7..9 => self.silent = true,
                _ => {
                    self.token = self.inner.resume_token();
                    return Ok(event);
                }
            }
        }
    }
}

impl Feed for Line {
    fn next(&mut self) -> BoxFuture<'_, BackendResult<Option<ChangeEvent>>> {
        async move {
            let (life, world, breaks) =
                (self.connection.life.clone(), self.connection.world.clone(), self.breaks);
            let node = life.node;
            tokio::select! {
                biased;
                () = life.ended() => Err(dead()),
                kind = world.broke(breaks) => Err(BackendError::new(kind, "the stream broke")),
                event = self.receive() => {
                    if let Ok(Some(event)) = &event {
                        world.trace(format_args!("{node} event {:?} {}", event.change, event.collection));
                    }
                    event
                }
            }
        }
        .boxed()
    }

    fn resume_token(&self) -> Option<Bson> {
        self.token.clone()
    }
}
