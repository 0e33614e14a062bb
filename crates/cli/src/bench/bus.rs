//! `rockdove bench bus`: load on the bus, several targets in turns.

use crate::connection::duration;
use crate::exit;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use rockdove::Layout;
use rockdove_bench::bus::{self, Plan, Profile, Ramp, Record, Target};
use std::fs::File;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  rockdove bench bus latency --rate 100                    the engine in this process
  rockdove bench bus latency --uri 'ours=mongodb://127.0.0.1:27017/?replicaSet=rs0' --uri mongodb://127.0.0.1:17017
  rockdove bench bus ramp 50:25:20 --until 150 --layout dual-channel --json a.json --html a.html
  rockdove bench bus one-way --senders 4 --size 1024
  rockdove bench bus exclusive --receivers 3 --work 5ms
  rockdove bench bus-compare a.json b.json

Columns:
  achieved        messages a second that were answered, or delivered to all
  p50, p99, max   from when a message was to be sent until its answer or delivery; at a rate, a request without
                  answer counts with the time that was waited for it
  out, back       the way to the receiver, and of the answer; medians
  accepted        messages a second that the server took (without answers)
  lost, twice     deliveries or answers that did not come, or came again
  failed          sends that failed, with the first reason
  client CPU      of this process for each message, all nodes included; the back end's if that is embedded

A target that achieves less than 98 % of an offered rate could not keep up with it. Only steps of 5 seconds and more \
are judged: in a shorter one, what is on its way at the end weighs too much.

Servers get their messages in the database rockdove_bench, on a queue of its own for each run.";

/// Longest text of a message: with the other fields it has to fit into a document of 16 MiB.
const SIZE_MAX: i64 = 16_000_000;

/// Sending nodes of a ramp: as many as the published measurements of Morphium on PoppyDB had.
const RAMP_SENDERS: u16 = 15;

/// Arguments of `bench bus`.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::help(&[])))]
pub struct BusBench {
    #[command(subcommand)]
    load: Load,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Load {
    /// Requests at a rate that grows step by step
    Ramp {
        /// START:STEP:SECONDS: requests a second at first, how many more at each step, seconds of a step
        #[arg(default_value = "50:25:20")]
        ramp: Ramp,
        /// Seconds of all steps
        #[arg(long, default_value_t = 150.0, value_parser = seconds)]
        until: f64,
    },
    /// Requests at a fixed rate
    Latency {
        /// Requests a second
        #[arg(long, default_value_t = 100.0, value_parser = rate)]
        rate: f64,
        /// Seconds
        #[arg(long, default_value_t = 20.0, value_parser = seconds)]
        seconds: f64,
    },
    /// Requests at a fixed rate, each for one of the receivers: the same as `latency --exclusive`
    Exclusive {
        /// Requests a second
        #[arg(long, default_value_t = 100.0, value_parser = rate)]
        rate: f64,
        /// Seconds
        #[arg(long, default_value_t = 20.0, value_parser = seconds)]
        seconds: f64,
    },
    /// Messages without answers
    OneWay {
        /// Messages a second; without, each sender sends the next one as soon as the last is accepted
        #[arg(long, value_parser = rate)]
        rate: Option<f64>,
        /// Seconds
        #[arg(long, default_value_t = 10.0, value_parser = seconds)]
        seconds: f64,
    },
    /// Requests as fast as they are answered
    Max {
        /// Requests on their way at any time
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
        window: u16,
        /// Seconds
        #[arg(long, default_value_t = 10.0, value_parser = seconds)]
        seconds: f64,
    },
    /// Messages without answers, many in one call
    Bulk {
        /// Messages in one call
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
        batch: u16,
        /// Seconds
        #[arg(long, default_value_t = 10.0, value_parser = seconds)]
        seconds: f64,
    },
}

#[derive(Debug, Args)]
struct Options {
    /// What to measure, repeatable: [NAME=]mongodb://…, [NAME=]embedded (in memory) or [NAME=]embedded:DIRECTORY
    #[arg(long = "uri", value_name = "TARGET", default_value = "embedded", global = true)]
    targets: Vec<Target>,
    /// How the queue is spread over collections: standard, multi-collection, dual-channel
    #[arg(long, default_value = "standard", global = true)]
    layout: Layout,
    /// One receiver a message
    #[arg(long, global = true)]
    exclusive: bool,
    /// Poll instead of following change streams
    #[arg(long, global = true)]
    polling: bool,
    /// Bytes of a message's text
    #[arg(long, default_value_t = 256, global = true, value_parser = clap::value_parser!(u32).range(..=SIZE_MAX))]
    size: u32,
    /// Sending nodes [default: 15 for ramp, else 1]
    #[arg(long, global = true, value_parser = clap::value_parser!(u16).range(1..))]
    senders: Option<u16>,
    /// Receiving nodes; 0, for messages without answers, measures how they are accepted
    #[arg(long, default_value_t = 1, global = true)]
    receivers: u16,
    /// What a receiver works for each message
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration, global = true)]
    work: Duration,
    /// How long an answer may take
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, global = true)]
    timeout: Duration,
    /// Load before the measurement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, global = true)]
    warm_up: Duration,
    /// How often to measure; targets take turns
    #[arg(long, default_value_t = 1, global = true, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Put a relay before every target that adds the signature of `$clusterTime`, which PoppyDB leaves out
    #[arg(long, global = true)]
    relay: bool,
    /// File for the result, a JSON document a line
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// File for the result as a page
    #[arg(long, value_name = "FILE", global = true)]
    html: Option<PathBuf>,
}

impl BusBench {
    /// Carries out what was asked for and prints it.
    pub async fn run(self) -> Result<()> {
        let options = self.options;
        let targets: Vec<Target> = options
            .targets
            .iter()
            .cloned()
            .map(|target| Target { relayed: options.relay, ..target })
            .collect();
        let plan = options.plan(&self.load);
        if plan.receivers == 0 && plan.stages().iter().any(|stage| stage.answered) {
            bail!("requests need a receiver: --receivers 1");
        }
        let mut json = options.json.as_deref().map(create).transpose()?;
        let html = options.html.as_deref().map(create).transpose()?;
        let bar =
            ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {elapsed} {msg}")?);
        bar.enable_steady_tick(Duration::from_millis(200));
        let expected = bus::duration(&plan, targets.len());
        let records = bus::run(
            &plan,
            &targets,
            |step| bar.set_message(format!("of about {} s  {step}", expected.as_secs())),
            |record| {
                if let Record::Step(step) = record {
                    bar.suspend(|| println!("{}", line(step)));
                }
                match &mut json {
                    Some(file) => Ok(writeln!(file, "{}", serde_json::to_string(record)?)?),
                    None => Ok(()),
                }
            },
        )
        .await?;
        bar.finish_and_clear();
        for (target, knee) in bus::knees(&records) {
            if let Some(rate) = knee {
                println!("{target} could not keep up with {rate} messages/s");
            }
        }
        if let Some(mut file) = html {
            file.write_all(bus::html(&records).as_bytes())?;
        }
        Ok(())
    }
}

impl Load {
    fn profile(&self) -> Profile {
        match *self {
            Load::Ramp { ramp: Ramp { start, step, seconds }, until } => {
                Profile::Ramp { start, step, seconds, until }
            }
            Load::Latency { rate, seconds } | Load::Exclusive { rate, seconds } => {
                Profile::Latency { rate, seconds }
            }
            Load::OneWay { rate, seconds } => Profile::OneWay { rate, seconds },
            Load::Max { window, seconds } => Profile::Max { window: window.into(), seconds },
            Load::Bulk { batch, seconds } => Profile::Bulk { batch: batch.into(), seconds },
        }
    }
}

impl Options {
    fn plan(&self, load: &Load) -> Plan {
        let senders = if matches!(load, Load::Ramp { .. }) { RAMP_SENDERS } else { 1 };
        Plan {
            profile: load.profile(),
            layout: self.layout.implementation().into(),
            exclusive: self.exclusive || matches!(load, Load::Exclusive { .. }),
            polling: self.polling,
            payload_bytes: self.size as usize,
            senders: self.senders.unwrap_or(senders).into(),
            receivers: self.receivers.into(),
            work: self.work,
            timeout: self.timeout,
            warm_up: self.warm_up,
            rounds: self.rounds,
        }
    }
}

fn line(step: &bus::Step) -> String {
    let mut line = format!(
        "{}  {}: achieved {:.1}/s  p50 {:.0} us  p99 {:.0} us  max {:.0} us  out p50 {:.0} us",
        step.target,
        step.label,
        step.achieved,
        step.latency.p50,
        step.latency.p99,
        step.latency.max,
        step.outbound.p50
    );
    if let Some(back) = step.back {
        line += &format!("  back p50 {:.0} us", back.p50);
    } else {
        line += &format!("  accepted {:.0}/s", step.accepted);
    }
    line += &format!("  lost {}  twice {}  failed {}", step.lost, step.duplicates, step.failed);
    if let Some(error) = &step.first_error {
        line += &format!(" ({error})");
    }
    line += &format!("  client CPU {:.1} us", step.client_cpu_us);
    if let Some(backend) = step.backend_cpu_us {
        line += &format!(", of it back end {backend:.1} us");
    }
    line
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, &bus::SECONDS)
}

fn rate(text: &str) -> Result<f64, String> {
    within(text, &bus::RATES)
}

fn within(text: &str, range: &RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("a number from {} to {} is needed", range.start(), range.end()))
}
