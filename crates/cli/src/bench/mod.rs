//! `rockdove bench`: what things cost, as ratios.

mod bus;

use crate::exit::{self, Exit};
use bus::BusBench;
use clap::{Args, Subcommand};
use rockdove_bench::bus as bench_bus;
use rockdove_bench::{Report, compare, copies, engine, log, streams, wire};
use rockdove_server::{Config, Server, Storage};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Exchanges whose times are kept.
const EXCHANGES_MAX: i64 = 10_000_000;

const EXAMPLES: &str = "\
Examples:
  rockdove bench micro                       the engine, change streams and the wire; starts its own server
  rockdove bench micro --stored 100000       the same with fewer stored documents
  rockdove bench bus latency                 requests on the bus; see rockdove bench bus --help
  rockdove bench bus-compare a.json b.json   two results of bench bus, step by step
  rockdove bench log --html log.html         what durability costs, with the limits of the machine
  rockdove bench log --chronicle tests/peers/chronicle/run --rate 10000 --seconds 5
  rockdove bench compare --ours 'mongodb://127.0.0.1:27017/?replicaSet=rs0' --theirs mongodb://127.0.0.1:17017";

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::help(&["4    a target was missed"])))]
pub struct Bench {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// The engine alone, change streams, and the wire against a TCP echo
    Micro {
        /// Documents to store for the engine's figures
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
        stored: u64,
        /// Exchanges for each figure of the wire
        #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=EXCHANGES_MAX))]
        exchanges: u32,
        /// Change streams that look on
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        streams: u32,
    },
    /// The log: latency by durability at a fixed rate, throughput, group commit, opening
    Log {
        /// Folder on the disk to measure
        #[arg(long, default_value = ".")]
        dir: PathBuf,
        /// Messages a second; may be given more than once
        #[arg(long = "rate", default_values_t = [50_000], value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        rates: Vec<u64>,
        /// Bytes of a message
        #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..=256 << 10))]
        size: u32,
        /// Seconds of each scenario
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: u64,
        /// Runs of each scenario; the first is not counted if there are more
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
        runs: u32,
        /// Entries of each figure of the log alone
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
        entries: u32,
        /// Size of the log of which only the opening is measured, in GiB of files with holes; 0: leave it out
        #[arg(long, value_name = "GIB", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=1024))]
        large: u64,
        /// Write everything as JSON to this file
        #[arg(long)]
        json: Option<PathBuf>,
        /// Write a report with pictures to this file
        #[arg(long)]
        html: Option<PathBuf>,
        /// Only compare with Chronicle Queue, in turns with this program: tests/peers/chronicle/run
        #[arg(long, conflicts_with_all = ["html", "runs", "size", "large"])]
        chronicle: Option<PathBuf>,
    },
    /// Two servers with the same bare client, in turns
    Compare {
        /// URI of the server to judge
        #[arg(long)]
        ours: String,
        /// URI of the server to judge it by
        #[arg(long)]
        theirs: String,
        /// Exchanges for each figure and round
        #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=EXCHANGES_MAX))]
        exchanges: u32,
        /// The client never sleeps while it waits: leaves out the time to wake it up, of both servers
        #[arg(long)]
        awake: bool,
    },
    /// Load on the bus through the library: latency, throughput, losses
    Bus(BusBench),
    /// Compare two results of `bench bus`, step by step
    BusCompare {
        /// The result to start from
        first: PathBuf,
        /// The result to hold against it
        second: PathBuf,
    },
}

impl Bench {
    /// Whether a server runs in this process, and should have the threads that it has by itself.
    pub fn measures_the_server(&self) -> bool {
        matches!(self.kind, Kind::Micro { .. })
    }

    /// Runs the benchmark and prints its figures.
    pub async fn run(self) -> anyhow::Result<Exit> {
        let report = match self.kind {
            Kind::Micro { stored, exchanges, streams } => micro(stored, exchanges, streams).await?,
            Kind::Log { dir, rates, size, seconds, runs, entries, large, json, html, chronicle } => {
                let (size, runs, entries) = (size as usize, runs as usize, entries as usize);
                let time = Duration::from_secs(seconds);
                let say = |what: &str| eprintln!("{what}…");
                let outcome = match chronicle {
                    Some(program) => {
                        let rate = rates.iter().min().copied().unwrap_or(1);
                        let plan = log::ChroniclePlan { program, dir, entries, rate, time };
                        log::beside_chronicle(&plan, say)?
                    }
                    None => log::run(&log::Plan { dir, rates, size, time, runs, entries, large }, say)?,
                };
                if let Some(path) = json {
                    std::fs::write(path, format!("{:#}\n", outcome.as_json()))?;
                }
                if let Some(path) = html {
                    std::fs::write(path, log::page(&outcome))?;
                }
                outcome.report
            }
            Kind::Compare { ours, theirs, exchanges, awake } => {
                compare::servers(&ours, &theirs, exchanges as usize, awake)?
            }
            Kind::Bus(bench) => return bench.run().await.map(|()| Exit::Done),
            Kind::BusCompare { first, second } => {
                print!("{}", bench_bus::compare(&bench_bus::read(&first)?, &bench_bus::read(&second)?));
                return Ok(Exit::Done);
            }
        };
        print!("{report}");
        let missed = report.figures().iter().any(|figure| figure.is_reached() == Some(false));
        Ok(if missed { Exit::Findings } else { Exit::Done })
    }
}

async fn micro(stored: u64, exchanges: u32, count: u32) -> anyhow::Result<Report> {
    let mut report = Report::default();
    eprintln!("measuring the wire…");
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(Config { listen, storage: Storage::Memory, ..Config::default() }).await?;
    report.extend(wire::against_echo(server.address(), exchanges as usize).await?);
    server.stop().await.map_err(anyhow::Error::msg)?;
    eprintln!("counting copies…");
    report.extend(copies::count().await?);
    eprintln!("measuring change streams…");
    report.extend(streams::none_matching(count as usize, 2000).await?);
    eprintln!("measuring the engine…");
    report.extend(engine::inserts(stored).await?);
    Ok(report)
}
