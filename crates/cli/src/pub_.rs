//! `rockdove pub`: send messages.

use crate::connection::{Connection, Sending};
use crate::exit::{self, Exit};
use crate::payload;
use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use rockdove::{Bus, BusBuilder, Message, Sent};
use std::io::{self, Write};
use std::time::Duration;

/// How long a message lives unless it is said.
const LIFE: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  rockdove pub orders.created '{\"total\": 12.5}'
  rockdove pub invoice.wanted 4711 --exclusive --ttl 5m
  rockdove pub price.list '[1, 2]' --ttl never
  rockdove pub cache.clear --to node-7
  rockdove pub payment '{\"amount\": 2500}' --ack sync            waits for the disk
  rockdove pub payment '{\"amount\": 2500}' --value 2500          waits if too much is at risk (serve --risk-cap)
  date | rockdove pub clock -";

/// Send a message, and print its id; with --ack or --value also the level that was reached
#[derive(Parser, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{}\n\n{}", payload::HELP, exit::help(&["3    no server"])))]
pub struct Args {
    /// Topic of the message
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    topic: String,
    /// Payload: JSON or text; `-` reads standard input
    payload: Option<String>,
    #[command(flatten)]
    sending: Sending,
    /// Send this many messages
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Print the id as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let message = args.sending.apply(payload::message(&args.topic, args.payload.as_deref())?, LIFE);
    let bus = args.connection.connect(None, BusBuilder::send_only).await?;
    let sent = tokio::select! {
        sent = send(&bus, &message, &args) => sent.map(|()| Exit::Done),
        ended = crate::signals::ended() => Ok(ended?),
    };
    bus.shutdown().await;
    sent
}

async fn send(bus: &Bus, message: &Message, args: &Args) -> anyhow::Result<()> {
    for _ in 0..args.count {
        let (id, reached) = match args.sending.lasting.options() {
            None => (bus.publish(message.clone()).await?, None),
            Some(options) => {
                let sent = bus.publish_with(message.clone(), options).await?;
                (sent.id.clone(), Some(sent))
            }
        };
        let mut out = io::stdout().lock();
        match (reached, args.json) {
            (None, true) => writeln!(out, "{}", serde_json::json!({ "id": id.to_string() }))?,
            (None, false) => writeln!(out, "{id}")?,
            (Some(Sent { ack, degraded, .. }), true) => {
                let sent =
                    serde_json::json!({ "id": id.to_string(), "ack": ack.name(), "degraded": degraded });
                writeln!(out, "{sent}")?;
            }
            (Some(sent), false) => writeln!(out, "{id}\t{}", args.sending.lasting.reached(&sent))?,
        }
        out.flush()?;
    }
    Ok(())
}
