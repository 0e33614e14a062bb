//! `rockdove migrate`: take a queue from the Standard layout to another one.

use crate::connection::Queue;
use crate::exit::{self, Exit, Failure};
use crate::signals;
use clap::Parser;
use rockdove::Layout;
use rockdove::doctor::counted;
use rockdove::migrate::{MigrateError, Migration, Mode, Progress};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two passes.
const PAUSE: Duration = Duration::from_millis(100);
/// A pass of a drain that takes longer is told of: what a quick one did is in the last line.
const LONG: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  rockdove migrate --to multi-collection --queue orders            # bridge, while nodes change over
  rockdove migrate --to multi-collection --queue orders --drain    # all at once, with no node running
  rockdove migrate --to dual-channel                               # bridge for answers

The bridge runs until no node of the old layout is left and nothing waits; change the nodes over meanwhile, consumers \
first, each under its old sender id and two seconds or more after it was stopped, so that its marks are there before it \
is. To multi-collection broadcasts of old nodes reach new ones, but those of new nodes do not reach old ones: change \
nodes that send broadcasts over last. An exclusive message follows once a node of the new layout listens to its topic; \
a directed one follows its recipient. Nodes that do not announce themselves (before Morphium 6.3.1, or with the \
implementation check off) are asked on the topic morphium.status_info: one that does not answer within three seconds is \
not seen. While no bridge runs, change no node over: it would hear again what it heard since.

The drain is for multi-collection, and refuses to run while nodes of the old layout announce themselves or answer. Ctrl-C stops either; the same \
command goes on with it, also after a crash. What is not safe to move stays and is counted: documents that are no \
messages, exclusive messages for several recipients, and recipients whose id has no collection.";

/// Take a queue to another layout
#[derive(Parser, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::help(&["3    no server, or no such queue", "4    something was left where it is"])))]
pub struct Args {
    /// The layout the queue has; only standard can be left
    #[arg(long, default_value = "standard", value_name = "NAME", value_parser = standard)]
    from: Layout,
    /// The layout it is to have: multi-collection or dual-channel
    #[arg(long, value_name = "NAME", value_parser = other)]
    to: Layout,
    /// Move everything at once, while no node runs
    #[arg(long)]
    drain: bool,
    #[command(flatten)]
    queue: Queue,
}

fn standard(name: &str) -> Result<Layout, String> {
    match name.parse() {
        Ok(Layout::Standard) => Ok(Layout::Standard),
        Ok(_) => Err("only a queue of the layout standard can be migrated".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn other(name: &str) -> Result<Layout, String> {
    match name.parse() {
        Ok(Layout::Standard) => Err("a queue can be migrated to multi-collection or dual-channel".to_owned()),
        layout => layout.map_err(|error| error.to_string()),
    }
}

/// Runs the command.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    debug_assert_eq!(args.from, Layout::Standard);
    if args.drain && args.to == Layout::DualChannel {
        return Err(Failure::misused(MigrateError::NothingToDrain.to_string()).into());
    }
    let backend = Arc::new(args.queue.backend().await?);
    let mode = if args.drain { Mode::Drain } else { Mode::Bridge };
    let started = Migration::start(backend, &args.queue.name, args.to, mode).await;
    let mut migration = started.map_err(|error| match error {
        MigrateError::NoQueue(_) => Failure::absent(error.to_string()).into(),
        error => anyhow::Error::from(error),
    })?;
    let result = tokio::select! {
        result = passes(&mut migration, args.to, mode) => result,
        exit = signals::ended() => exit.map_err(Into::into),
    };
    let progress = migration.progress().clone();
    migration.stop().await;
    println!("{}", summary(&progress));
    result
}

async fn passes(migration: &mut Migration, to: Layout, mode: Mode) -> anyhow::Result<Exit> {
    let mut shown = String::new();
    loop {
        let began = Instant::now();
        let progress = migration.pass().await?.clone();
        let line = format!("{}; {}", summary(&progress), nodes(&progress, to));
        let is_news = mode == Mode::Bridge || progress.waiting > 0 || began.elapsed() >= LONG;
        if line != shown && is_news {
            eprintln!("{line}");
            shown = line;
        }
        if progress.done {
            return Ok(if progress.left > 0 { Exit::Findings } else { Exit::Done });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn summary(progress: &Progress) -> String {
    let Progress { moved, copied, returned, waiting, left, .. } = progress;
    let copied = counted(*copied, "broadcast");
    format!("{moved} moved, {copied} copied, {returned} given back, {waiting} waiting, {left} left")
}

fn nodes(progress: &Progress, to: Layout) -> String {
    let list = |nodes: &[String]| if nodes.is_empty() { "none".to_owned() } else { nodes.join(", ") };
    let both = !progress.old_nodes.is_empty() && !progress.new_nodes.is_empty();
    let broadcasts = if both && to == Layout::MultiCollection {
        "; broadcasts of new nodes do not reach old ones"
    } else {
        ""
    };
    format!("old nodes: {}; new nodes: {}{broadcasts}", list(&progress.old_nodes), list(&progress.new_nodes))
}
