//! The `rockdove` command.
//!
//! Data goes to standard output, everything else to standard error. Exit codes are in [`Exit`].
mod allocator;
mod bench;
mod connection;
mod doctor;
mod exit;
mod follow;
mod log;
mod logging;
mod migrate;
mod output;
mod payload;
mod pub_;
mod reply;
mod request;
mod risk;
mod serve;
mod signals;
mod sub;
mod top;

use anyhow::Context;
use clap::{Parser, Subcommand};
use exit::Exit;
use std::process::ExitCode;

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
    Top(top::Args),
    Migrate(migrate::Args),
    Log(log::Log),
    /// Measure what things cost, as ratios
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    allocator::keep_freed_pages();
    match run(Cli::parse().command) {
        Ok(exit) => exit.into(),
        Err(error) => {
            let code = exit::code_of(&error);
            if code != ExitCode::SUCCESS {
                eprintln!("rockdove: {}", exit::one_line(&error));
            }
            code
        }
    }
}

fn run(command: Command) -> anyhow::Result<Exit> {
    match &command {
        Command::Serve(serve) => logging::init(serve.log_filter())?,
        _ => logging::init_or("warn")?, // tools are quiet
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    match &command {
        Command::Serve(serve) => drop(runtime.worker_threads(serve.workers())),
        Command::Bench(bench) if bench.measures_the_server() => {
            runtime.worker_threads(serve::workers_default());
        }
        _ => {}
    }
    let runtime = runtime.enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(async {
        match command {
            Command::Log(args) => log::run(args),
            Command::Serve(serve) => serve.run().await,
            Command::Bench(bench) => bench.run().await,
            Command::Pub(args) => pub_::run(args).await,
            Command::Sub(args) => sub::run(args).await,
            Command::Request(args) => request::run(args).await,
            Command::Reply(args) => reply::run(args).await,
            Command::Doctor(args) => doctor::run(args).await,
            Command::Top(args) => top::run(args).await,
            Command::Migrate(args) => migrate::run(args).await,
        }
    })
}
