//! `rockdove serve`: start the bus and run it until it is told to stop.

use crate::exit::Exit;
use crate::risk::Risk;
use crate::{logging, signals};
use anyhow::anyhow;
use clap::{Args, ValueEnum};
use rockdove_server::SyncPolicy;
use rockdove_server::{Config, Personality, Server, Storage};
use std::fmt;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  rockdove serve                                    on 127.0.0.1:27017, stored in ./rockdove-data
  rockdove serve --memory                           nothing is kept when it stops
  rockdove serve --listen 0.0.0.0:27017 --advertise bus1.example.com:27017
  rockdove serve --data-dir /var/lib/rockdove --sync always
  rockdove serve --risk-cap 100000 --risk-field 'shop.mmsg_*=map_value.amount'
                                                    never more than 100000 acknowledged and not on disk
  rockdove serve --sync never --risk-single 5000 --risk-age 100
                                                    5000 and more wait for the disk, the rest is there in 100 ms

Exit codes:
  0    stopped cleanly
  1    could not start, or did not stop cleanly
  2    wrong arguments";

/// Largest number of MiB whose bytes can be counted.
const MIB_MAX: u64 = u64::MAX >> 20;
/// Largest history, in MiB: a tebibyte.
const HISTORY_MIB_MAX: u32 = 1 << 20;

/// Parses an address to listen on: `ADDR:PORT`, `localhost:PORT`, or a port on 127.0.0.1.
fn address(text: &str) -> Result<SocketAddr, String> {
    let host_and_port = text.replacen("localhost:", "127.0.0.1:", 1);
    let port = || text.parse().ok().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    host_and_port.parse().ok().or_else(port).ok_or_else(|| {
        "an address and a port are needed: 127.0.0.1:27017, 0.0.0.0:27017, [::]:27017, localhost:27017 or 27017".to_owned()
    })
}

/// Parses the address that clients are told: a host and a port, which may be a name that is not known here.
fn advertised(text: &str) -> Result<String, String> {
    let odd = |host: &str| {
        let is_v6 = host.starts_with('[') && host.ends_with(']');
        host.is_empty()
            || host.contains(|c: char| c.is_whitespace() || "/,@".contains(c) || c == ':' && !is_v6)
    };
    match text.rsplit_once(':') {
        Some((host, port)) if !odd(host) && port.parse::<u16>().is_ok_and(|port| port > 0) => {
            match text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified()) {
                true => {
                    Err("no client can connect to all addresses of a machine: name one of them".to_owned())
                }
                false => Ok(text.to_owned()),
            }
        }
        _ => {
            Err("a host and a port are needed: bus1.example.com:27017, 10.0.0.7:27017 or [::1]:27017"
                .to_owned())
        }
    }
}

/// Parses the name of a replica set: what can be written after `replicaSet=` in an address as it is.
fn set_name(text: &str) -> Result<String, String> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || "/,&?#%@".contains(c);
    match text.is_empty() || text.contains(odd) {
        true => Err("a name without spaces and without /,&?#%@ is needed, such as rs0".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:27017", env = "ROCKDOVE_LISTEN", value_parser = address)]
    listen: SocketAddr,
    /// Host and port that clients are told to use: drivers go there, whatever address they were given (default: the address
    /// it listens on; the machine's name if that is 0.0.0.0 or [::])
    #[arg(long, value_name = "HOST:PORT", value_parser = advertised)]
    advertise: Option<String>,
    /// Folder to store in
    #[arg(long, value_name = "DIR", default_value = "rockdove-data", env = "ROCKDOVE_DATA_DIR")]
    data_dir: PathBuf,
    /// Keep everything in memory: no disk, nothing left after the stop; --data-dir does not count then
    #[arg(long)]
    memory: bool,
    /// When writes go to disk without being asked (a client that asks with j:true always waits for the disk)
    #[arg(long, value_enum, default_value_t = Sync::Interval)]
    sync: Sync,
    /// With --sync interval: how long a write may wait for the disk, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    sync_interval: u64,
    /// What w:"majority" asks for without j:true; Morphium's messages and this program's are sent so
    #[arg(long, value_enum, default_value_t = Majority::Replicated)]
    majority: Majority,
    /// Name of the replica set that it presents itself as
    #[arg(long, value_name = "NAME", default_value = "rs0", value_parser = set_name)]
    set_name: String,
    /// Whom it presents itself as to Morphium
    #[arg(long, value_enum, default_value_t = As::Mongodb)]
    personality: As,
    /// Stored bytes that count as full, in MiB (default: half of the machine's memory)
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=MIB_MAX))]
    memory_limit: Option<u64>,
    /// Warn from this percentage of the memory limit on
    #[arg(long, value_name = "PERCENT", default_value_t = 75, value_parser = clap::value_parser!(u64).range(1..=100))]
    memory_warn: u64,
    /// Refuse new documents from this percentage of the memory limit on; small ones in small collections, such as locks,
    /// from halfway between it and the limit on
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=100))]
    memory_refuse: u64,
    /// Change history that streams can resume from, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(HISTORY_MIB_MAX)))]
    history: u32,
    /// Threads that serve connections (default: half of the processors; the log, change streams and long reads have
    /// threads of their own). One answers soonest, more answer more at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// With one worker: how long it looks for a client's next request before it sleeps, in microseconds, if the one
    /// before came that soon. Quicker answers for some processor time; 0: never
    #[arg(long, value_name = "US", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    busy_poll: u64,
    /// Let clients set fail points (for driver tests only: any client can then break the service)
    #[arg(long)]
    test_commands: bool,
    /// What to log: error, warn, info, debug, trace, or a filter like rockdove_mongo=debug
    #[arg(long, value_name = "FILTER", default_value = "info", env = logging::VARIABLE)]
    log: String,
    #[command(flatten)]
    risk: Risk,
}

/// `--sync`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sync {
    /// Only when a client asks for it
    Never,
    /// After at most --sync-interval milliseconds
    Interval,
    /// After every batch of writes
    Always,
}

/// `--majority`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Majority {
    /// That a majority has received it; on one node: that it is written
    Replicated,
    /// That it is on the disks of a majority; on one node: on this one's
    QuorumSync,
}

/// `--personality`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum As {
    /// A MongoDB server
    Mongodb,
    /// PoppyDB: Morphium registers its queues and takes lock_released events
    Poppydb,
}

/// Threads that serve connections if nobody says how many.
pub fn workers_default() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).max(1)
}

impl Serve {
    /// Threads that serve connections.
    pub fn workers(&self) -> usize {
        self.workers.map_or_else(workers_default, usize::from)
    }

    /// What to log.
    pub fn log_filter(&self) -> &str {
        &self.log
    }

    /// Runs the server until it is interrupted, terminated, or a client sends `shutdown`.
    pub async fn run(self) -> anyhow::Result<Exit> {
        if let Some(fault) = self.fault() {
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{fault}\n")).exit();
        }
        let config = self.config();
        let storage = config.storage.clone();
        // The error's text has its causes in it.
        let server = Server::start(config).await.map_err(|error| anyhow!("{error}"))?;
        self.greet(&server, &storage);
        let reason = wait(&server).await;
        eprintln!("rockdove: stopping ({reason})");
        server.stop().await.map_err(|reason| anyhow!("did not stop cleanly: {reason}"))?;
        match storage {
            Storage::Memory => eprintln!("rockdove: stopped, nothing is kept"),
            Storage::Folder(_) => eprintln!("rockdove: stopped, the log is closed"),
        }
        Ok(Exit::Done)
    }

    /// What is wrong with the options together, if anything.
    fn fault(&self) -> Option<String> {
        let (warn, refuse) = (self.memory_warn, self.memory_refuse);
        if warn > refuse {
            return Some(format!(
                "--memory-warn {warn} is above --memory-refuse {refuse}: the warning would come too late"
            ));
        }
        if self.memory && self.majority == Majority::QuorumSync {
            return Some("--majority quorum-sync waits for the disk: with --memory there is none".into());
        }
        self.risk.fault(self.memory).map(str::to_owned)
    }

    fn config(&self) -> Config {
        Config {
            listen: self.listen,
            advertise: self.advertise.clone(),
            storage: if self.memory { Storage::Memory } else { Storage::Folder(self.data_dir.clone()) },
            sync: match self.sync {
                Sync::Never => SyncPolicy::Never,
                Sync::Interval => SyncPolicy::Interval(Duration::from_millis(self.sync_interval)),
                Sync::Always => SyncPolicy::EachBatch,
            },
            majority_on_disk: self.majority == Majority::QuorumSync,
            risk: self.risk.policy(),
            risk_fields: self.risk.fields().to_vec(),
            set_name: self.set_name.clone(),
            personality: match self.personality {
                As::Mongodb => Personality::Mongodb,
                As::Poppydb => Personality::Poppydb,
            },
            test_commands: self.test_commands,
            memory_limit_bytes: self.memory_limit.map(|mib| mib << 20),
            memory_warn_percent: self.memory_warn,
            memory_refuse_percent: self.memory_refuse,
            history_bytes: (self.history as usize) << 20,
            busy_poll: Duration::from_micros(self.busy_poll),
            arguments: std::env::args().collect(),
            ..Config::default()
        }
    }

    /// Says where it listens, where it stores and how to try it.
    fn greet(&self, server: &Server, storage: &Storage) {
        // Who started it may have read enough (`rockdove serve | head -1`).
        let mut out = io::stdout().lock();
        let mut line = |text: fmt::Arguments<'_>| drop(writeln!(out, "{text}"));
        let uri = server.uri();
        line(format_args!("rockdove {} listens on {}", env!("CARGO_PKG_VERSION"), server.address()));
        match storage {
            Storage::Folder(dir) => line(format_args!("  stores in  {}{}", dir.display(), recovered(server))),
            Storage::Memory => {
                line(format_args!("  stores in  memory only: everything is gone when it stops"))
            }
        }
        line(format_args!("  connect    {uri}"));
        if self.advertise.is_none() && server.address().ip().is_unspecified() {
            line(format_args!(
                "             clients have to know this machine as {}; else start it",
                server.advertised()
            ));
            line(format_args!("             with --advertise HOST:PORT"));
        }
        let majority = match (storage, self.majority) {
            (Storage::Memory, _) => {
                "w: majority and j: true mean written in memory, there is no disk to wait for"
            }
            (_, Majority::Replicated) => {
                "\"replicated\" (w: majority) means written here; j: true waits for the disk"
            }
            (_, Majority::QuorumSync) => "w: majority and j: true wait for the disk",
        };
        line(format_args!("  acks       one node: {majority}"));
        if let Some(policy) = self.risk.describe() {
            line(format_args!("  risk       {policy}"));
        }
        line(format_args!("  try it     rockdove sub orders.created --uri '{uri}'"));
        line(format_args!("             rockdove pub orders.created '{{\"total\": 12.5}}' --uri '{uri}'"));
    }
}

/// What recovery found, in words.
fn recovered(server: &Server) -> String {
    let report = server.recovery();
    let Some(journal) = report.journal else { return String::new() };
    let took = report.took.as_millis();
    match (&journal.cut, journal.created) {
        (_, true) => " (new)".into(),
        (None, _) => {
            format!(" (log entries up to {}, {} replayed, {took} ms)", journal.last_index, report.batches)
        }
        (Some(cut), _) => {
            format!(" (log entries up to {}; an unfinished tail was cut: {cut:?})", journal.last_index)
        }
    }
}

/// Waits for a reason to stop.
async fn wait(server: &Server) -> &'static str {
    tokio::select! {
        asked = signals::asked() => match asked {
            Ok(Exit::Signal(signals::TERMINATE)) => "terminate",
            Ok(_) => "interrupt",
            Err(_) => "signals cannot be received",
        },
        () = server.shutdown_asked() => "a client sent shutdown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_tell_clients_and_names_of_sets() {
        for right in ["bus1.example.com:27017", "bus1:1", "10.0.0.7:65535", "[::1]:27017"] {
            assert_eq!(advertised(right).as_deref(), Ok(right));
        }
        for wrong in [
            "0.0.0.0:1",
            "[::]:1",
            "",
            ":",
            ":27017",
            "bus1",
            "bus1:",
            "bus1:0",
            "bus1:70000",
            "bus1:x",
            "a b:1",
            "a,b:1",
            "::1:1",
        ] {
            assert!(advertised(wrong).is_err(), "{wrong}");
        }
        assert!(set_name("rs0").is_ok() && set_name("my-set_1").is_ok());
        assert!(["", " ", "a b", "a/b", "a&b"].into_iter().all(|wrong| set_name(wrong).is_err()));
    }

    #[test]
    fn addresses_to_listen_on() {
        let check = |text, expected: &str| assert_eq!(address(text), Ok(expected.parse().unwrap()), "{text}");
        check("0.0.0.0:1", "0.0.0.0:1");
        check("[::1]:27017", "[::1]:27017");
        check("localhost:2", "127.0.0.1:2");
        check("27018", "127.0.0.1:27018");
        for wrong in ["", "localhost", "127.0.0.1", "db1:27017", "70000"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
