//! `rockdove sub`: print messages as they come.

use crate::connection::{Connection, duration};
use crate::exit::{self, Exit};
use crate::{output, signals};
use clap::Parser;
use rockdove::{Bus, Incoming};
use std::time::Duration;
use tokio::time::Instant;

const EXAMPLES: &str = "\
Examples:
  rockdove sub orders.created orders.cancelled
  rockdove sub orders.created --json | jq .map_value
  rockdove sub invoice.done --count 1 --timeout 30s

An exclusive message goes to one node: subscribing takes it away from others. A message counts as processed
when its line is written.";

/// Print messages as they come, earlier ones first
#[derive(Parser, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub struct Args {
    /// Topics to listen to
    #[arg(required = true, value_name = "TOPIC")]
    topics: Vec<String>,
    /// End after this many messages
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End when this time is over; with --count that is a failure
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Print each message as one line of extended JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let bus = args.connection.bus().sequential().connect().await?;
    let result = follow(&bus, &args).await;
    bus.shutdown().await;
    result
}

async fn follow(bus: &Bus, args: &Args) -> anyhow::Result<Exit> {
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut topics = args.topics.clone();
    topics.sort_unstable();
    topics.dedup();
    let mut streams = Vec::new();
    for topic in topics {
        streams.push(bus.listen(topic, 1).await?);
    }
    let mut ended = std::pin::pin!(signals::ended());
    let mut left = args.count;
    while left != Some(0) {
        tokio::select! {
            message = next(&mut streams) => {
                let Some(message) = message else { return Ok(Exit::Done) };
                output::print(&message, args.json)?;
                message.done();
                left = left.map(|left| left - 1);
            }
            () = until(deadline) => return Ok(if left.is_some() { Exit::TimedOut } else { Exit::Done }),
            exit = &mut ended => return Ok(exit?),
        }
    }
    Ok(Exit::Done)
}

/// The next message of any stream; the bus is sequential, so at most one is waiting.
async fn next(streams: &mut [Incoming]) -> Option<rockdove::Incomer> {
    let nexts = streams.iter_mut().map(|stream| Box::pin(stream.next()));
    futures_util::future::select_all(nexts).await.0
}

/// Sleeps until the deadline; for ever without one.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
