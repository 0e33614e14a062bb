//! What durability costs: the log behind a loopback connection under a fixed rate, and alone.
//!
//! Every figure is measured in the same run as what limits it: a bare `fdatasync`, a bare copy in memory, one
//! exchange over loopback, and the longest pauses of a loop that only reads the clock.
//!
//! The load is open: message *i* is due at the start plus *i* / rate, and its latency counts from then, however late it was
//! sent. The schedule never moves.

mod append;
mod chronicle;
mod html;
mod large;
mod limits;
mod scenario;

use crate::report::{Report, Target};
use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

pub use chronicle::{ChroniclePlan, beside_chronicle};
pub use html::page;

/// The percentiles of every distribution.
const PERCENTILES: [f64; 9] = [50.0, 90.0, 99.0, 99.7, 99.9, 99.97, 99.99, 99.997, 99.999];

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the logs are made: on the disk to be measured.
    pub dir: PathBuf,
    /// Messages a second, one scenario set for each.
    pub rates: Vec<u64>,
    /// Bytes of a message.
    pub size: usize,
    /// How long each scenario runs.
    pub time: Duration,
    /// Runs of each scenario; the first is not counted if there are more.
    pub runs: usize,
    /// Entries of each figure of the log alone.
    pub entries: usize,
    /// Size of the log of which only the opening is measured, in GiB; 0: none.
    pub large: u64,
}

/// A distribution of latencies, in nanoseconds.
#[derive(Clone)]
pub struct Curve {
    /// Which.
    pub name: String,
    /// Where it is drawn: curves of one group share a picture.
    pub group: String,
    histogram: Histogram<u64>,
}

impl Curve {
    fn new(group: impl Into<String>, name: impl Into<String>, histogram: Histogram<u64>) -> Curve {
        Curve { name: name.into(), group: group.into(), histogram }
    }

    /// Latency in microseconds at a percentile.
    fn micros(&self, percentile: f64) -> f64 {
        self.histogram.value_at_percentile(percentile) as f64 / 1e3
    }

    fn max_micros(&self) -> f64 {
        self.histogram.max() as f64 / 1e3
    }

    fn as_json(&self) -> Value {
        let at = PERCENTILES.map(|p| (format!("p{p}"), self.micros(p).into()));
        let mut fields: serde_json::Map<String, Value> = at.into_iter().collect();
        fields.insert("max".into(), self.max_micros().into());
        fields.insert("count".into(), self.histogram.len().into());
        json!({ "group": self.group, "name": self.name, "microseconds": fields })
    }
}

/// Longest latency that is told apart from longer ones.
const LATENCY_MAX: Duration = Duration::from_secs(120);

/// An empty histogram of nanoseconds.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, limits::nanos(LATENCY_MAX), 3).expect("the bounds and digits are allowed")
}

/// Everything a run found.
pub struct Outcome {
    /// The figures.
    pub report: Report,
    /// The distributions.
    pub curves: Vec<Curve>,
    /// What the machine is.
    pub machine: Vec<(&'static str, String)>,
}

impl Outcome {
    /// All of it, for programs.
    pub fn as_json(&self) -> Value {
        let figure = |f: &crate::Figure| {
            let target = match f.target {
                Target::AtLeast(target) => json!({ "atLeast": target }),
                Target::AtMost(target) => json!({ "atMost": target }),
                Target::None => Value::Null,
            };
            json!({ "name": f.name, "value": f.value, "unit": f.unit, "target": target, "reached": f.is_reached() })
        };
        let machine: serde_json::Map<String, Value> =
            self.machine.iter().map(|(name, value)| ((*name).into(), value.clone().into())).collect();
        json!({
            "machine": machine,
            "figures": self.report.figures().iter().map(figure).collect::<Vec<_>>(),
            "curves": self.curves.iter().map(Curve::as_json).collect::<Vec<_>>(),
        })
    }
}

/// Measures everything. `say` is told what is under way.
pub fn run(plan: &Plan, say: impl Fn(&str)) -> Result<Outcome> {
    let mut outcome =
        Outcome { report: Report::default(), curves: Vec::new(), machine: limits::machine(&plan.dir) };
    say("measuring the machine");
    let limits = limits::measure(plan)?;
    limits.report(&mut outcome);
    say("measuring the log alone");
    append::throughput(plan, &limits, &mut outcome)?;
    append::to_tailer(plan, &mut outcome)?;
    append::group_commit(plan, &limits, &mut outcome)?;
    append::recovery(plan, &mut outcome)?;
    large::opening(plan, &mut outcome, &say)?;
    say("measuring a cold replay");
    large::cold_replay(plan, &mut outcome)?;
    for rate in &plan.rates {
        say(&format!("measuring scenarios at {rate} messages/s"));
        scenario::at_rate(plan, *rate, &limits, &mut outcome)?;
    }
    Ok(outcome)
}
