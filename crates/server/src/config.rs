//! How a server is configured; the defaults run a useful node.

use rockdove_engine::{Options, RiskField, RiskPolicy, SyncPolicy};
use rockdove_mongo::topology::CONNECTIONS_MAX;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The port that MongoDB's clients know.
const PORT: u16 = 27017;
/// What counts as full if nothing is configured and the machine's memory is unknown.
const MEMORY_FALLBACK_BYTES: u64 = 4 << 30;

/// Where the server keeps what it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In a folder, which is made if it is not there.
    Folder(PathBuf),
    /// In memory only: everything is gone when the server stops.
    Memory,
}

/// Whom the server presents itself as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Personality {
    /// A MongoDB server: Morphium behaves as against MongoDB.
    #[default]
    Mongodb,
    /// PoppyDB too: Morphium registers its queues and takes `lock_released` events.
    Poppydb,
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `host:port` as clients write it; `None` takes the address it listens on, or the machine's name if that stands for
    /// all its addresses.
    pub advertise: Option<String>,
    /// Where it stores.
    pub storage: Storage,
    /// When the log goes to disk without being asked.
    pub sync: SyncPolicy,
    /// Whether `w: "majority"` waits for the disk of a majority, as `j: true` does. Not with [`Storage::Memory`].
    pub majority_on_disk: bool,
    /// What the value of writes that are not on disk leads to; nothing if `None`. Not with [`Storage::Memory`].
    pub risk: Option<RiskPolicy>,
    /// Where documents have their value; the first that covers a collection counts. Needs a policy.
    pub risk_fields: Vec<RiskField>,
    /// Name of the replica set of which it is the one member.
    pub set_name: String,
    /// Whom it presents itself as.
    pub personality: Personality,
    /// Whether clients may set fail points. For tests only.
    pub test_commands: bool,
    /// Connections at one time.
    pub connections_max: usize,
    /// Stored bytes that count as full; `None` takes half of the machine's memory.
    pub memory_limit_bytes: Option<u64>,
    /// Warn from this percentage of the limit on.
    pub memory_warn_percent: u64,
    /// Refuse new documents from this percentage of the limit on.
    pub memory_refuse_percent: u64,
    /// Bytes of events that change streams can resume from.
    pub history_bytes: usize,
    /// How long a connection whose client is quick looks for the next request before it sleeps; zero is never.
    pub busy_poll: Duration,
    /// How long connections get to end by themselves when the server stops; then they are cut.
    pub drain: Duration,
    /// Arguments the program was started with, for `getCmdLineOpts`.
    pub arguments: Vec<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)),
            advertise: None,
            storage: Storage::Folder("rockdove-data".into()),
            sync: SyncPolicy::default(),
            majority_on_disk: false,
            risk: None,
            risk_fields: Vec::new(),
            set_name: "rs0".into(),
            personality: Personality::default(),
            test_commands: false,
            connections_max: CONNECTIONS_MAX,
            memory_limit_bytes: None,
            memory_warn_percent: 75,
            memory_refuse_percent: 90,
            history_bytes: 64 << 20,
            busy_poll: rockdove_mongo::busy_poll::WINDOW,
            drain: Duration::from_secs(5),
            arguments: Vec::new(),
        }
    }
}

impl Config {
    /// The engine's share of the configuration.
    pub(crate) fn engine(&self) -> Options {
        let mut options = match &self.storage {
            Storage::Folder(dir) => Options::stored_in(dir),
            Storage::Memory => Options::memory(),
        };
        options.sync = self.sync;
        options.risk = self.risk.clone();
        options.risk_fields = self.risk_fields.clone();
        options.memory_limit_bytes = self.memory_limit_bytes.unwrap_or_else(half_of_memory);
        options.memory_warn_percent = self.memory_warn_percent;
        options.memory_refuse_percent = self.memory_refuse_percent;
        options.history_bytes = self.history_bytes;
        options
    }
}

/// Half of the memory that the kernel says the machine has.
fn half_of_memory() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.map_or(MEMORY_FALLBACK_BYTES, |kib| kib * 1024 / 2)
}
