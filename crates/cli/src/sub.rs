//! `rockdove sub`: print messages as they come.

use crate::connection::Connection;
use crate::exit::{self, Exit};
use crate::follow::{Limits, follow};
use crate::output;
use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use rockdove::{Bus, BusBuilder, Incomer, Incoming};

const EXAMPLES: &str = "\
Examples:
  rockdove sub orders.created orders.cancelled
  rockdove sub orders.created --json | jq .map_value
  rockdove sub invoice.done --count 1 --timeout 30s

Output: topic TAB sender TAB payload, a line for each message; with --json the whole message. The payload is the text \
`msg`, the value and the key-values or list, those that there are, with spaces between. \
What a terminal would act on is escaped.

An exclusive message goes to one node: subscribing takes it away from others. \
A message counts as processed when its line is written.";

/// Print messages as they come, earlier ones first
#[derive(Parser, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::help(&["3    no server, or not --count messages within --timeout"])))]
pub struct Args {
    /// Topics to listen to
    #[arg(required = true, value_name = "TOPIC", value_parser = NonEmptyStringValueParser::new())]
    topics: Vec<String>,
    #[command(flatten)]
    limits: Limits,
    /// Print each message as one line of extended JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let bus = args.connection.connect(args.limits.timeout, BusBuilder::sequential).await?;
    let result = print(&bus, &args).await;
    bus.shutdown().await;
    result
}

async fn print(bus: &Bus, args: &Args) -> anyhow::Result<Exit> {
    let mut topics = args.topics.clone();
    topics.sort_unstable();
    topics.dedup();
    let mut streams = Vec::new();
    for topic in topics {
        streams.push(bus.listen(topic, 1).await?);
    }
    let each = async |message: Incomer| {
        output::print(&message, args.json)?;
        message.done();
        Ok(())
    };
    follow(&args.limits, async || next(&mut streams).await, each).await
}

/// The next message of any stream; the bus is sequential, so at most one is waiting.
async fn next(streams: &mut [Incoming]) -> Option<Incomer> {
    let nexts = streams.iter_mut().map(|stream| Box::pin(stream.next()));
    futures_util::future::select_all(nexts).await.0
}
