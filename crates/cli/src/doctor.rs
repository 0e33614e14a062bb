//! `rockdove doctor`: what is wrong with a queue, in words.

use crate::connection::{Queue, duration};
use crate::exit::{self, Exit};
use clap::Parser;
use rockdove::Layout;
use rockdove::doctor::{Check, Examination, Finding, Limits, Severity, counted, examine};
use serde_json::json;
use std::io::{self, Write};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  rockdove doctor --uri mongodb://db1/shop
  rockdove doctor --queue orders --patience 5m --json

It reads only, and works on any MongoDB-compatible server. It looks for topics whose messages pile up, recipients that \
are not there, answers nobody took, requests processed without an answer, locks held in vain, missing indexes, expired documents that stay, nodes of \
different layouts, and change streams that cannot be opened. Without --layout it finds out which one is in use.";

/// Examine a queue, and say what is wrong with it
#[derive(Parser, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::help(&["3    no server, or no such queue", "4    something is not as it should be"])))]
pub struct Args {
    /// A message that waits longer than this counts as stuck; one that lives no longer is never found
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = duration)]
    patience: Duration,
    /// Read at most this many documents of each collection, oldest first
    #[arg(long, default_value_t = 10_000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    documents: u32,
    /// Print each finding as one line of JSON
    #[arg(long)]
    json: bool,
    /// The queue's layout: standard, multi-collection or dual-channel [default: what its nodes announce, or collections show: a dual-channel queue without nodes looks like a standard one]
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Layout>)]
    layout: Option<Layout>,
    #[command(flatten)]
    queue: Queue,
}

/// Runs the command.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let limits =
        Limits { patience: args.patience, documents: usize::try_from(args.documents)?, ..Limits::default() };
    let backend = args.queue.backend().await?;
    let found = examine(&backend, &args.queue.name, args.layout, limits).await?;
    print(&found, &args)?;
    if found.findings.iter().any(|finding| finding.check == Check::Existence) {
        return Ok(Exit::Absent);
    }
    Ok(if found.worst() >= Some(Severity::Warning) { Exit::Findings } else { Exit::Done })
}

/// What to do, with the command that asks the nodes of this very queue where that helps.
fn advice(finding: &Finding, found: &Examination, args: &Args) -> String {
    if (finding.severity, finding.check) != (Severity::Problem, Check::PilingTopics) {
        return finding.advice.to_owned();
    }
    let options = args.queue.options();
    let ask = |layout: &Layout| {
        let layout = match layout {
            Layout::Standard => String::new(),
            other => format!(" --layout {}", other.name()),
        };
        format!("`rockdove request morphium.status_info --count 0 --timeout 2s{options}{layout}`")
    };
    let asks: Vec<_> = found.layouts.iter().map(ask).collect();
    format!("{}: {}", finding.advice, asks.join(", "))
}

fn print(found: &Examination, args: &Args) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for finding in &found.findings {
        let advice = advice(finding, found, args);
        if args.json {
            let line = json!({
                "severity": format!("{:?}", finding.severity).to_lowercase(),
                "check": format!("{:?}", finding.check),
                "text": finding.text,
                "advice": advice,
            });
            writeln!(out, "{line}")?;
        } else {
            let severity = match finding.severity {
                Severity::Problem => "PROBLEM",
                Severity::Warning => "warning",
                Severity::Note => "note",
            };
            writeln!(out, "{severity}: {}\n    {}", finding.text, advice)?;
        }
    }
    if !args.json {
        let layouts: Vec<_> = found.layouts.iter().map(|layout| layout.name()).collect();
        let layouts = if layouts.is_empty() { "none".to_owned() } else { layouts.join(", ") };
        let (findings, collections) = (found.findings.len() as u64, found.collections.len() as u64);
        let (findings, collections) = (counted(findings, "finding"), counted(collections, "collection"));
        writeln!(out, "{findings}; layout {layouts}; {collections} looked at")?;
    }
    out.flush()
}
