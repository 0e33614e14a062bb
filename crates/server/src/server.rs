//! A running server: its listener and its end.

use crate::config::{Config, Personality, Storage};
use rockdove_engine::{Engine, Level, OpenError, Rarely, Report};
use rockdove_mongo::busy_poll::BusyPoll;
use rockdove_mongo::commands::sink::remove_unfinished;
use rockdove_mongo::connection::serve_connection;
use rockdove_mongo::shared::{Counters, Shared};
use rockdove_mongo::topology::Identity;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::system::uname;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// Pause after the system refused to accept a connection (out of file descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Files the server needs besides its connections: segments, checkpoints, the runtime's own.
const OTHER_FILES: u64 = 256;

/// A limit of open files below this is worth a warning, whatever number of connections is allowed.
const FILES_FEW: u64 = 4096;

/// Why a server did not start; each says what to do.
#[derive(Debug, Error)]
pub enum StartError {
    /// The address is taken.
    #[error(
        "cannot listen on {0}: another program does already; stop it or choose another address with --listen"
    )]
    AddressTaken(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
    /// Another server uses the folder.
    #[error(
        "the data folder {0} is in use by another server; stop it or choose another folder with --data-dir"
    )]
    FolderInUse(PathBuf),
    /// The engine did not open.
    #[error("cannot open the data folder {0}: {1}")]
    Open(PathBuf, #[source] OpenError),
    /// The engine did not start.
    #[error("cannot start: {0}")]
    Engine(#[source] OpenError),
}

/// What the server's tasks are told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Phase {
    Running,
    /// No new connections.
    Stopping,
    /// Connections end where they are.
    Cut,
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    acceptor: JoinHandle<()>,
    connections: Arc<Semaphore>,
    connections_max: usize,
    drain: Duration,
}

impl Server {
    /// Opens the storage, listens and serves. The address is taken before the storage is touched.
    pub async fn start(config: Config) -> Result<Server, StartError> {
        let listener = listen(config.listen)?;
        let address = listener.local_addr().map_err(|error| StartError::Listen(config.listen, error))?;
        let options = config.engine();
        let opened = tokio::task::spawn_blocking(move || Engine::open(options)).await;
        let engine = match opened {
            Ok(opened) => opened.map_err(|error| explain(&config.storage, error))?,
            Err(panicked) => return Err(StartError::Engine(OpenError::Io(io::Error::other(panicked)))),
        };
        remove_unfinished(&engine).await;
        allow_files((config.connections_max as u64).saturating_add(OTHER_FILES));
        let busy_poll = BusyPoll::where_it_helps(config.busy_poll);
        let shared = Shared::new(identity(&config, address), engine, busy_poll, config.arguments.clone());
        tokio::spawn(shared.clone().sweep());
        let (phase, told) = watch::channel(Phase::Running);
        let connections = Arc::new(Semaphore::new(config.connections_max));
        let acceptor = tokio::spawn(accept(listener, shared.clone(), connections.clone(), told));
        let Config { connections_max, drain, .. } = config;
        Ok(Server { address, shared, phase, acceptor, connections, connections_max, drain })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Host and port that clients are told to use.
    pub fn advertised(&self) -> &str {
        &self.shared.identity.advertised
    }

    /// The connection string that reaches it.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?replicaSet={}", self.advertised(), self.shared.identity.set_name)
    }

    /// What opening the storage found.
    pub fn recovery(&self) -> Report {
        self.shared.engine.recovery().clone()
    }

    /// Returns when a client has sent `shutdown`.
    pub async fn shutdown_asked(&self) {
        self.shared.shutdown_asked.notified().await;
    }

    /// Stops: no new connections, clients get `ShutdownInProgress`, connections that do not end in time are cut, the
    /// log is closed cleanly. The address and the folder are free when it returns.
    pub async fn stop(mut self) -> Result<(), String> {
        self.phase.send_replace(Phase::Stopping);
        self.shared.topology.stop();
        self.acceptor.abort();
        let _ = (&mut self.acceptor).await; // its end closes the listener
        if tokio::time::timeout(self.drain, self.all_ended()).await.is_err() {
            tracing::warn!("some connections did not end in {:?} and are cut", self.drain);
            self.phase.send_replace(Phase::Cut);
            let _ = tokio::time::timeout(self.drain, self.all_ended()).await; // who computes just now ends a little later
        }
        self.shared.engine.close().await
    }

    async fn all_ended(&self) {
        let all = u32::try_from(self.connections_max).unwrap_or(u32::MAX);
        let _ = self.connections.acquire_many(all).await; // never closed
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    let bind = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        TcpListener::from_std(StdListener::from(socket))
    };
    bind().map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => StartError::AddressTaken(address),
        _ => StartError::Listen(address, error),
    })
}

/// Raises the soft limit of open files to what the connections need, as far as the hard limit lets it.
fn allow_files(wanted: u64) {
    let limit = getrlimit(Resource::Nofile);
    let (current, most) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    if current >= wanted {
        return;
    }
    let raised = wanted.min(most);
    let now = match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }) {
        Ok(()) => raised,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files could not be raised");
            current
        }
    };
    if now < wanted.min(FILES_FEW) {
        tracing::warn!(
            "only {now} files may be open, {wanted} are needed for all connections; raise the hard limit (ulimit -Hn)"
        );
    } else if now < wanted {
        tracing::debug!(
            now,
            wanted,
            "there are fewer files than connections may be open; few setups have so many"
        );
    }
}

fn explain(storage: &Storage, error: OpenError) -> StartError {
    match (storage, error) {
        (Storage::Folder(dir), OpenError::Journal(rockdove_engine::JournalOpenError::Locked { .. })) => {
            StartError::FolderInUse(dir.clone())
        }
        (Storage::Folder(dir), error) => StartError::Open(dir.clone(), error),
        (Storage::Memory, error) => StartError::Engine(error),
    }
}

fn identity(config: &Config, address: SocketAddr) -> Identity {
    Identity {
        set_name: config.set_name.clone(),
        advertised: config.advertise.clone().unwrap_or_else(|| reachable(address)),
        poppydb: config.personality == Personality::Poppydb,
        majority: if config.majority_on_disk { Level::QuorumSync } else { Level::Replicated },
        has_risk_policy: config.risk.is_some(),
        connections_max: config.connections_max,
        test_commands: config.test_commands,
        ..Identity::default()
    }
}

/// The address under which clients reach a server that listens on this one: drivers go where they are told, so it is never
/// the one that stands for all addresses of the machine.
fn reachable(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("{}:{}", uname().nodename().to_string_lossy(), address.port()),
        false => address.to_string(),
    }
}

/// Accepts connections until told to stop.
async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    connections: Arc<Semaphore>,
    mut told: watch::Receiver<Phase>,
) {
    let (crowded, failing) = (Rarely::default(), Rarely::default());
    loop {
        let accepted = tokio::select! {
            _ = told.wait_for(|phase| *phase >= Phase::Stopping) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => welcome(stream, peer, &shared, &connections, told.clone(), &crowded),
            Err(error) => {
                if failing.tell().is_some() {
                    tracing::warn!(%error, "connections cannot be accepted at present; they wait");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a connection in a task of its own, or closes it if there are too many.
fn welcome(
    stream: TcpStream,
    peer: SocketAddr,
    shared: &Arc<Shared>,
    connections: &Arc<Semaphore>,
    mut told: watch::Receiver<Phase>,
    crowded: &Rarely,
) {
    let Ok(permit) = connections.clone().try_acquire_owned() else {
        Counters::add(&shared.counters.connections_rejected, 1);
        if let Some(left_out) = crowded.tell() {
            tracing::warn!(%peer, left_out, "too many connections: one was closed; this is told once a minute");
        }
        return;
    };
    let shared = shared.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = serve_connection(stream, peer, shared) => {}
            _ = told.wait_for(|phase| *phase == Phase::Cut) => {}
        }
        drop(permit);
    });
}
