//! `rockdove request`: ask, and print the answers.

use crate::connection::{Connection, Sending, timeout};
use crate::exit::{self, Exit, Failure};
use crate::{output, payload, signals};
use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use rockdove::{Bus, MessageId};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  rockdove request stock.wanted '{\"item\": \"bolt\"}'
  rockdove request morphium.status_info --count 0 --timeout 2s --json
  rockdove request invoice.wanted 4711 --exclusive --timeout 1m
  rockdove request payment 2500 --exclusive --ack sync    what was reached is said on standard error";

/// A request lives this long at least: by a receiver's clock it may be older than it is.
const LIFE_MIN: Duration = Duration::from_secs(30);

/// Send a request, and print the answers
#[derive(Parser, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{}\n\n{}", payload::HELP, exit::help(&["3    no server, or not --count answers within --timeout", "6    the request was rejected"])))]
pub struct Args {
    /// Topic of the request
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    topic: String,
    /// Payload: JSON or text; `-` reads standard input
    payload: Option<String>,
    #[command(flatten)]
    sending: Sending,
    /// End after this many answers; 0 = all that come within the time; an --exclusive request has one
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    count: usize,
    /// Wait this long for answers, 1ms or more; without --ttl a request that nobody answered is removed then
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = timeout)]
    timeout: Duration,
    /// Print each answer as one line of extended JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    if let Some(max) = args.sending.answers_max().filter(|max| args.count > *max) {
        let text = format!("--exclusive lets one node answer: --count {} cannot come, {max} can", args.count);
        return Err(Failure::misused(text).into());
    }
    let payload = payload::message(&args.topic, args.payload.as_deref())?.with_id(MessageId::generate());
    let message = args.sending.apply(payload, args.timeout.max(LIFE_MIN));
    let bus = args.connection.connect(Some(args.timeout), |bus| bus).await?;
    let mut answers = 0;
    let result = tokio::select! {
        result = ask(&bus, message.clone(), &args, &mut answers) => result,
        exit = signals::ended() => exit.map_err(Into::into),
    };
    if !args.sending.has_ttl() && answers == 0 {
        // Whoever came to it later would answer nobody. If it stays, it expires, as one does that was answered or
        // rejected: others may not have read it yet.
        let _ = bus.withdraw(&message).await;
    }
    bus.shutdown().await;
    result
}

/// Asks and prints the answers, and counts them.
async fn ask(bus: &Bus, message: rockdove::Message, args: &Args, count: &mut usize) -> anyhow::Result<Exit> {
    // With standing streams the answer is heard at once rather than polled.
    bus.ready().await;
    let mut answers = match args.sending.lasting.options() {
        None => bus.request_stream(message, args.timeout).await?,
        Some(options) => bus.request_stream_with(message, options, args.timeout).await?,
    };
    if let Some(sent) = answers.sent() {
        eprintln!("rockdove: request acknowledged: {}", args.sending.lasting.reached(sent));
    }
    let mut rejected = false;
    while args.count == 0 || *count < args.count {
        let Some(answer) = answers.next().await else { break };
        let answer = answer?;
        *count += 1;
        output::print(&answer, args.json)?;
        if answer.is_rejection() {
            eprintln!("rockdove: {} rejected the request", answer.sender);
            rejected = true;
        }
    }
    Ok(match () {
        () if rejected => Exit::Rejected,
        () if *count < args.count.max(1) => {
            eprintln!(
                "rockdove: the time is over; {} did not come (`rockdove top` shows who is there)",
                if *count == 0 { "an answer" } else { "more" }
            );
            Exit::Absent
        }
        () => Exit::Done,
    })
}
