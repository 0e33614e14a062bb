//! The `rockdove` command.
//!
//! Data goes to standard output, everything else to standard error. Exit codes are in [`Exit`].
#![forbid(unsafe_code)]

mod bench;
mod connection;
mod doctor;
mod exit;
mod log;
mod logging;
mod migrate;
mod output;
mod payload;
mod pub_;
mod reply;
mod request;
mod serve;
mod signals;
mod sub;

use clap::{Parser, Subcommand};
use exit::Exit;
use std::process::ExitCode;

/// Many small allocations are made and freed on different threads: the system's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A message bus that speaks MongoDB's wire protocol, and the tools to use it.
#[derive(Parser)]
#[command(name = "rockdove", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the bus
    Serve(serve::Serve),
    Pub(pub_::Args),
    Sub(sub::Args),
    Request(request::Args),
    Reply(reply::Args),
    Doctor(doctor::Args),
    Migrate(migrate::Args),
    Log(log::Log),
    /// Measure what things cost, as ratios
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let result = match command {
        Command::Serve(serve) => return serve.run(),
        Command::Bench(bench) => return bench.run(),
        Command::Log(args) => {
            logging::init("warn");
            log::run(args)
        }
        Command::Pub(args) => tool(pub_::run(args)),
        Command::Sub(args) => tool(sub::run(args)),
        Command::Request(args) => tool(request::run(args)),
        Command::Reply(args) => tool(reply::run(args)),
        Command::Doctor(args) => tool(doctor::run(args)),
        Command::Migrate(args) => tool(migrate::run(args)),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            let code = exit::code_of(&error);
            if code != ExitCode::SUCCESS {
                eprintln!("rockdove: {error:#}");
            }
            code
        }
    }
}

/// Runs one of the messaging tools, quietly: only warnings are logged.
fn tool(run: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    logging::init("warn");
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run)
}
