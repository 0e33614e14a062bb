//! `rockdove reply`: answer requests with a text, or with what a command prints.

use crate::connection::{Connection, Lasting};
use crate::exit::{self, Exit};
use crate::follow::{Limits, follow};
use crate::{output, payload};
use anyhow::Context;
use bson::Bson;
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Parser};
use rockdove::{Bus, BusBuilder, Incomer, Message, Reject, SendError};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

const EXAMPLES: &str = "\
Examples:
  rockdove reply ping --text pong
  rockdove reply stock.wanted --payload '{\"left\": 7}'
  rockdove reply stock.wanted --exec ./stock.sh
  rockdove reply echo --exec cat
  rockdove reply invoice.wanted --text ok --count 1 --timeout 1m
  rockdove reply payment --text booked --ack sync

--text answers with that text as it is, --payload with key-values, a list or a text, as `pub` sends them.

The command of --exec gets the payload on standard input (JSON for key-value and list payloads) and the request's \
topic, sender and id in ROCKDOVE_TOPIC, ROCKDOVE_SENDER and ROCKDOVE_ID. What it prints is the answer's text. \
If it fails, the request is rejected and its sender told so. Requests are answered one after the other and printed.";

/// Answer requests
#[derive(Parser, Debug)]
#[command(
    override_usage = "rockdove reply [OPTIONS] <TOPIC> <--text <TEXT>|--payload <PAYLOAD>|--exec <COMMAND>...>"
)]
#[command(group(ArgGroup::new("answer").required(true).args(["text", "payload", "exec"])))]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::help(&["3    no server, or not --count requests within --timeout"])))]
pub struct Args {
    /// Topic of the requests
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    topic: String,
    /// Answer with this text
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Answer with this payload: JSON or text
    #[arg(long)]
    payload: Option<String>,
    /// The command that prints the answer, and its arguments; takes the rest of the line
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true)]
    exec: Vec<String>,
    #[command(flatten)]
    lasting: Lasting,
    #[command(flatten)]
    limits: Limits,
    /// Print each request as one line of extended JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    if let Some(payload) = &args.payload {
        payload::apply(Message::new(""), payload)?; // a mistake is told before anything is answered
    }
    let bus = args.connection.connect(args.limits.timeout, BusBuilder::sequential).await?;
    let result = serve(&bus, &args).await;
    bus.shutdown().await;
    result
}

async fn serve(bus: &Bus, args: &Args) -> anyhow::Result<Exit> {
    let mut requests = bus.listen(args.topic.clone(), 1).await?;
    follow(&args.limits, async || requests.next().await, async |request| answer(bus, request, args).await)
        .await
}

async fn answer(bus: &Bus, request: Incomer, args: &Args) -> anyhow::Result<()> {
    output::print(&request, args.json)?;
    let answer = request.derive_answer();
    let answer = match (&args.text, &args.payload) {
        (Some(text), _) => Ok(answer.value(text.clone())),
        (None, Some(payload)) => payload::apply(Message { value: None, ..answer }, payload),
        (None, None) => execute(&args.exec, &request).await.map(|text| answer.value(text)),
    };
    match answer {
        Ok(answer) => match args.lasting.options() {
            None => {
                request.answer(answer);
            }
            Some(options) => {
                // What fails is an error of the command; the request is given back, unless its answer is there.
                let sent = bus.send_answer_with(&request, answer, options).await;
                if matches!(sent, Ok(_) | Err(SendError::NotAcknowledged(_))) {
                    request.done();
                }
                let sent = sent?;
                eprintln!("rockdove: answer acknowledged: {}", args.lasting.reached(&sent));
            }
        },
        Err(error) => {
            eprintln!("rockdove: {}", exit::one_line(&error));
            request.reject(Reject::new(error.to_string()).continue_processing().send_answer());
        }
    }
    Ok(())
}

/// Runs the command on one request; what it prints, without the last line break.
async fn execute(command: &[String], request: &Message) -> anyhow::Result<String> {
    let (program, arguments) = command.split_first().context("--exec needs a command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .env("ROCKDOVE_TOPIC", &request.topic)
        .env("ROCKDOVE_SENDER", &request.sender)
        .env("ROCKDOVE_ID", request.id.as_ref().map(ToString::to_string).unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run `{program}`"))?;
    let mut stdin = child.stdin.take().context("the command has no standard input")?;
    let input = payload_text(request);
    let feed = async move {
        // A command that does not read its input is no failure; its exit status tells.
        let _ = stdin.write_all(input.as_bytes()).await;
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    let output = output.with_context(|| format!("cannot run `{program}`"))?;
    anyhow::ensure!(output.status.success(), "`{program}` failed: {}", output.status);
    let text = String::from_utf8(output.stdout).with_context(|| format!("`{program}` did not print text"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// The payload as a command reads it.
fn payload_text(request: &Message) -> String {
    let json = |value: Bson| value.into_relaxed_extjson().to_string();
    if let Some(map) = &request.map_value {
        json(Bson::Document(map.clone()))
    } else if let Some(list) = &request.additional {
        json(Bson::Array(list.clone()))
    } else {
        request.value.clone().or_else(|| request.msg.clone()).unwrap_or_default()
    }
}
