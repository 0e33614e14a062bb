//! `rockdove bench`: what things cost, as ratios.

mod bus;

use bus::BusBench;
use clap::{Args, Subcommand};
use rockdove_bench::{Report, compare, copies, engine, log, streams, wire};
use rockdove_server::{Config, Server, Storage};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  rockdove bench micro                       the engine, change streams and the wire; starts its own server
  rockdove bench micro --stored 100000       the same with fewer stored documents
  rockdove bench bus latency                 requests on the bus; see rockdove bench bus --help
  rockdove bench log --html log.html         what durability costs, with the limits of the machine
  rockdove bench compare --ours mongodb://127.0.0.1:27017/?replicaSet=rs0 --theirs mongodb://127.0.0.1:17017

Exit codes: 0 all targets reached, 1 it could not be measured, 4 a target was missed.";

/// Exit code when a target is missed.
const MISSED: u8 = 4;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// The engine alone, change streams, and the wire against a TCP echo
    Micro {
        /// Documents to store for the engine's figures
        #[arg(long, default_value_t = 1_000_000)]
        stored: u64,
        /// Exchanges for each figure of the wire
        #[arg(long, default_value_t = 5000)]
        exchanges: usize,
        /// Change streams that look on
        #[arg(long, default_value_t = 1000)]
        streams: usize,
    },
    /// The log: latency by durability at a fixed rate, throughput, group commit, opening
    Log {
        /// Folder on the disk to measure
        #[arg(long, default_value = ".")]
        dir: PathBuf,
        /// Messages a second; may be given more than once
        #[arg(long = "rate", default_values_t = [50_000])]
        rates: Vec<u64>,
        /// Bytes of a message
        #[arg(long, default_value_t = 1024)]
        size: usize,
        /// Seconds of each scenario
        #[arg(long, default_value_t = 30)]
        seconds: u64,
        /// Runs of each scenario; the first is not counted if there are more
        #[arg(long, default_value_t = 5)]
        runs: usize,
        /// Entries of each figure of the log alone
        #[arg(long, default_value_t = 1_000_000)]
        entries: usize,
        /// Write everything as JSON to this file
        #[arg(long)]
        json: Option<PathBuf>,
        /// Write a report with pictures to this file
        #[arg(long)]
        html: Option<PathBuf>,
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
        #[arg(long, default_value_t = 2000)]
        exchanges: usize,
    },
    /// Load on the bus through the library: latency, throughput, losses
    Bus(BusBench),
}

impl Bench {
    /// Runs the benchmark and prints its figures.
    pub fn run(self) -> ExitCode {
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&error.into()),
        };
        match runtime.block_on(self.measure()) {
            Ok(None) => ExitCode::SUCCESS,
            Ok(Some(report)) => {
                print!("{report}");
                let missed = report.figures().iter().any(|figure| figure.is_reached() == Some(false));
                if missed { ExitCode::from(MISSED) } else { ExitCode::SUCCESS }
            }
            Err(error) => fail(&error),
        }
    }

    /// Measures; the load on the bus prints its figures itself.
    async fn measure(self) -> anyhow::Result<Option<Report>> {
        match self.kind {
            Kind::Micro { stored, exchanges, streams: count } => {
                let mut report = Report::default();
                eprintln!("measuring the wire…");
                let listen = SocketAddr::from(([127, 0, 0, 1], 0));
                let server =
                    Server::start(Config { listen, storage: Storage::Memory, ..Config::default() }).await?;
                report.extend(wire::against_echo(server.address(), exchanges).await?);
                server.stop().await.map_err(anyhow::Error::msg)?;
                eprintln!("counting copies…");
                report.extend(copies::count().await?);
                eprintln!("measuring change streams…");
                report.extend(streams::none_matching(count, 2000).await?);
                eprintln!("measuring the engine…");
                report.extend(engine::inserts(stored).await?);
                Ok(Some(report))
            }
            Kind::Log { dir, rates, size, seconds, runs, entries, json, html } => {
                let time = Duration::from_secs(seconds);
                let plan = log::Plan { dir, rates, size, time, runs, entries };
                let outcome = log::run(&plan, |what| eprintln!("{what}…"))?;
                if let Some(path) = json {
                    std::fs::write(path, format!("{:#}\n", outcome.as_json()))?;
                }
                if let Some(path) = html {
                    std::fs::write(path, log::page(&outcome))?;
                }
                Ok(Some(outcome.report))
            }
            Kind::Compare { ours, theirs, exchanges } => {
                compare::servers(&ours, &theirs, exchanges).map(Some)
            }
            Kind::Bus(bench) => bench.run().await.map(|()| None),
        }
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("rockdove: {error:#}");
    ExitCode::FAILURE
}
