//! What all connections share.

use crate::busy_poll::BusyPoll;
use crate::client::Clients;
use crate::commands::cursor::Source;
use crate::cursors::Cursors;
use crate::failpoint::FailPoints;
use crate::session::{SessionId, Sessions};
use crate::snapshots::Snapshots;
use crate::topology::{Identity, Topology};
use rockdove_documents::{Doc, Timestamp};
use rockdove_engine::{Engine, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, Semaphore};

/// How often idle sessions and cursors are looked for.
const SWEEP: Duration = Duration::from_secs(30);
/// Most long reads at one time; more wait for their turn. More than there are processors, so that a few endless ones
/// do not keep those from their turn that are soon done.
pub const HEAVY_READS_MAX: usize = 16;

/// The state behind all connections of this protocol.
pub struct Shared {
    /// How the server presents itself.
    pub identity: Identity,
    /// Its role, which can change.
    pub topology: Topology,
    /// The documents and the log.
    pub engine: Engine,
    /// Sessions in use.
    pub sessions: Sessions,
    /// Open cursors.
    pub cursors: Cursors<Source>,
    /// States of moments that sessions may go on reading.
    pub snapshots: Snapshots<State>,
    /// Faults that tests asked for.
    pub fail_points: FailPoints,
    /// Connected clients.
    pub clients: Clients,
    /// What was counted since the start.
    pub counters: Counters,
    /// Arguments the server was started with, for `getCmdLineOpts`.
    pub arguments: Vec<String>,
    /// Woken by the `shutdown` command; the server's owner waits for it.
    pub shutdown_asked: Notify,
    /// When the server started.
    pub started: Instant,
    /// Messaging registrations of Morphium (PoppyDB personality).
    pub registrations: crate::commands::messaging::Registrations,
    /// How many long reads may run beside the connections at one time.
    pub heavy_reads: Arc<Semaphore>,
    /// Which connections may wait without sleeping.
    pub busy_poll: BusyPoll,
    reply_ids: AtomicI32,
}

/// Counters for `serverStatus`.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "each is the field of serverStatus that it fills")]
pub struct Counters {
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub requests: AtomicU64,
    pub insert: AtomicU64,
    pub query: AtomicU64,
    pub update: AtomicU64,
    pub delete: AtomicU64,
    pub getmore: AtomicU64,
    pub command: AtomicU64,
    pub failed: AtomicU64,
    pub connections_rejected: AtomicU64,
}

impl Counters {
    /// Adds `amount` to a counter.
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// A counter's value.
    pub fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// The state over an engine that was opened.
    pub fn new(
        identity: Identity,
        engine: Engine,
        busy_poll: BusyPoll,
        arguments: Vec<String>,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            topology: Topology::new(engine.first_term()),
            identity,
            engine,
            sessions: Sessions::default(),
            cursors: Cursors::default(),
            snapshots: Snapshots::default(),
            fail_points: FailPoints::default(),
            clients: Clients::default(),
            counters: Counters::default(),
            arguments,
            shutdown_asked: Notify::new(),
            started: Instant::now(),
            registrations: Default::default(),
            heavy_reads: Arc::new(Semaphore::new(HEAVY_READS_MAX)),
            busy_poll,
            reply_ids: AtomicI32::new(1000),
        })
    }

    /// The number for the next reply.
    pub fn next_reply_id(&self) -> i32 {
        self.reply_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The time of the newest committed operation.
    pub fn operation_time(&self) -> Timestamp {
        self.engine.operation_time()
    }

    /// Ends a session with all that belongs to it.
    pub fn end_session(&self, session: SessionId) {
        self.sessions.end(session);
        self.cursors.kill_where(|binding| binding.session == Some(session));
    }

    /// Gives up idle sessions and cursors, again and again, until the server stops.
    pub async fn sweep(self: Arc<Shared>) {
        let mut topology = self.topology.watch();
        loop {
            let stopping = topology.wait_for(|state| state.role == crate::topology::Role::Stopping);
            if tokio::time::timeout(SWEEP, stopping).await.is_ok() {
                return;
            }
            let now = Instant::now();
            for session in self.sessions.expire(now) {
                self.end_session(session);
            }
            self.snapshots.expire(now);
            let expired = self.cursors.expire(now);
            if expired > 0 {
                tracing::debug!(expired, "idle cursors were closed");
            }
        }
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A document that says how time stands: `$clusterTime` and `operationTime` of every reply.
pub fn append_times(reply: &mut rockdove_documents::DocBuilder, time: Timestamp) {
    const NO_HASH: [u8; 20] = [0; 20];
    reply.start_document("$clusterTime").append("clusterTime", time).start_document("signature");
    reply.append_value("hash", rockdove_documents::Value::Binary { subtype: 0, bytes: &NO_HASH });
    reply.append("keyId", 0i64).end().end();
    reply.append("operationTime", time);
}

/// A document of one field, for replies that carry an error's details.
pub fn details(fill: impl FnOnce(&mut rockdove_documents::DocBuilder)) -> Doc {
    let mut builder = rockdove_documents::DocBuilder::new();
    fill(&mut builder);
    builder.finish()
}
