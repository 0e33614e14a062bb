//! The lines of a result file, and what can be said about two of them.

use super::plan::Plan;
use crate::quantile::median;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// A target follows as long as it achieves this share of what is offered.
const FOLLOWS: f64 = 0.98;
/// A step has to be this long for that to be judged: what is on its way at the end counts as not achieved.
const JUDGED_SECONDS: f64 = 5.0;
/// Percentiles of a curve.
const CURVE: [f64; 16] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 100.0];

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: what was measured.
    Run(Run),
    /// One step on one target.
    Step(Box<Step>),
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Version of the program that measured.
    pub version: String,
    /// Start, in seconds since 1970.
    pub started_s: u64,
    /// Cores of the machine that measured.
    pub cores: usize,
    /// The targets.
    pub targets: Vec<String>,
    /// The plan.
    pub plan: Plan,
}

/// A step on a target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Its target.
    pub target: String,
    /// The step.
    pub label: String,
    /// The round, from 1.
    pub round: u32,
    /// Messages a second that were meant to be sent, in an open loop.
    pub offered: Option<f64>,
    /// Messages a second that were answered, or delivered to everybody if there are no answers, before the step ended.
    pub achieved: f64,
    /// Messages a second that were accepted before the step ended.
    pub accepted: f64,
    /// Messages that were begun to be sent.
    pub sent: u64,
    /// Requests answered, or messages accepted.
    pub done: u64,
    /// Deliveries to receivers, each counted once.
    pub received: u64,
    /// Requests without an answer, or deliveries that did not come.
    pub lost: u64,
    /// Deliveries that came again.
    pub duplicates: u64,
    /// Deliveries of earlier steps.
    pub late: u64,
    /// Sends that failed.
    pub failed: u64,
    /// The first reason for that.
    pub first_error: Option<String>,
    /// From the moment meant for sending to the answer, or to the delivery. In an open loop a request without answer counts
    /// with the time that was waited for it.
    pub latency: Latency,
    /// To the delivery.
    pub outbound: Latency,
    /// From the delivery to the answer.
    pub back: Option<Latency>,
    /// Mean difference between the latencies of two messages in a row, in microseconds.
    pub jitter_us: f64,
    /// CPU time of this process for each message, in microseconds: all nodes, and the engine if it is embedded.
    pub client_cpu_us: f64,
    /// Of that the embedded back end's, with the engine's threads.
    #[serde(default)]
    pub backend_cpu_us: Option<f64>,
    /// Percentile and latency in microseconds.
    pub curve: Vec<(f64, f64)>,
    /// The step by seconds.
    pub seconds: Vec<Second>,
}

/// A distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 90 of 100 are below.
    pub p90: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
}

/// One second of a step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Second {
    /// Requests answered in it.
    pub count: u64,
    /// Their median latency, in microseconds.
    pub p50: f64,
    /// 99 of 100 were below, in microseconds.
    pub p99: f64,
}

impl Latency {
    /// The summary of a histogram of nanoseconds; zeros if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let at = |percentile: f64| histogram.value_at_percentile(percentile) as f64 / 1e3;
        let (p50, p90, p95, p99, p999) = (at(50.0), at(90.0), at(95.0), at(99.0), at(99.9));
        Latency { p50, p90, p95, p99, p999, max: histogram.max() as f64 / 1e3, mean: histogram.mean() / 1e3 }
    }

    /// The curve of a histogram of nanoseconds.
    pub fn curve(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
        CURVE.iter().map(|&p| (p, histogram.value_at_percentile(p) as f64 / 1e3)).collect()
    }
}

impl Second {
    /// The summary of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Second {
        let latency = Latency::of(histogram);
        Second { count: histogram.len(), p50: latency.p50, p99: latency.p99 }
    }
}

/// Reads a result file.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let records = lines.enumerate().map(|(n, line)| {
        serde_json::from_str(line).with_context(|| format!("{}: line {} is no result", path.display(), n + 1))
    });
    records.collect()
}

/// The steps of a result with the median over their rounds of what `figure` says, by target and step.
fn medians(records: &[Record], figure: impl Fn(&Step) -> f64) -> BTreeMap<(String, String), f64> {
    let mut all: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for step in steps(records) {
        all.entry((step.target.clone(), step.label.clone())).or_default().push(figure(step));
    }
    all.into_iter().map(|(key, values)| (key, median(values))).collect()
}

/// The steps among the lines.
pub fn steps(records: &[Record]) -> impl Iterator<Item = &Step> {
    records.iter().filter_map(|record| match record {
        Record::Step(step) => Some(&**step),
        Record::Run(_) => None,
    })
}

/// Where each target could not keep up any more: the first step that achieved less than 98 % of what was offered, in the
/// median of the rounds. `None` for a target that followed to the end. Runs with steps of less than 5 s are not judged.
pub fn knees(records: &[Record]) -> BTreeMap<String, Option<f64>> {
    let short = |record: &Record| match record {
        Record::Run(run) => run.plan.profile.step_seconds() < JUDGED_SECONDS,
        Record::Step(_) => false,
    };
    if records.iter().any(short) {
        return BTreeMap::new();
    }
    let share = medians(records, |step| step.offered.map_or(1.0, |offered| step.achieved / offered));
    let mut knees = BTreeMap::new();
    for step in steps(records) {
        let knee: &mut Option<f64> = knees.entry(step.target.clone()).or_default();
        let follows =
            share.get(&(step.target.clone(), step.label.clone())).is_none_or(|share| *share >= FOLLOWS);
        if let (Some(offered), false) = (step.offered, follows) {
            *knee = Some(knee.map_or(offered, |knee| knee.min(offered)));
        }
    }
    knees
}

/// Two results as a table: the second in relation to the first, by step. Steps are matched by their names; targets by
/// theirs, or if the names differ by their places.
pub fn compare(first: &[Record], second: &[Record]) -> String {
    let names = |records: &[Record]| -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for step in steps(records) {
            if !names.contains(&step.target) {
                names.push(step.target.clone());
            }
        }
        names
    };
    let (ours, theirs) = (names(first), names(second));
    let mut out = String::from(
        "| target | step | figure | first | second | second / first |\n|---|---|---|---|---|---|\n",
    );
    type Figure = (&'static str, fn(&Step) -> f64);
    const FIGURES: [Figure; 5] = [
        ("achieved /s", |step| step.achieved),
        ("p50 us", |step| step.latency.p50),
        ("p99 us", |step| step.latency.p99),
        ("lost", |step| step.lost as f64),
        ("client CPU us", |step| step.client_cpu_us),
    ];
    for (place, target) in ours.iter().enumerate() {
        let other = theirs.iter().find(|name| *name == target).or(theirs.get(place));
        let Some(other) = other else { continue };
        for (figure, of) in FIGURES {
            let (before, after) = (medians(first, of), medians(second, of));
            for ((name, label), before) in before.iter().filter(|((name, _), _)| name == target) {
                let Some(after) = after.get(&(other.clone(), label.clone())) else { continue };
                let ratio = if *before == 0.0 { "-".into() } else { format!("{:.2}", after / before) };
                let _ = writeln!(out, "| {name} | {label} | {figure} | {before:.1} | {after:.1} | {ratio} |"); // a String takes all
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(target: &str, offered: f64, achieved: f64, round: u32) -> Record {
        Record::Step(Box::new(Step {
            target: target.into(),
            label: format!("{offered}/s"),
            round,
            offered: Some(offered),
            achieved,
            accepted: achieved,
            sent: 1,
            done: 1,
            received: 1,
            lost: 0,
            duplicates: 0,
            late: 0,
            failed: 0,
            first_error: None,
            latency: Latency { p50: 100.0, ..Latency::default() },
            outbound: Latency::default(),
            back: None,
            jitter_us: 0.0,
            client_cpu_us: 1.0,
            backend_cpu_us: None,
            curve: Vec::new(),
            seconds: Vec::new(),
        }))
    }

    #[test]
    fn the_knee_is_the_first_step_that_most_rounds_did_not_follow() {
        let records = [
            step("a", 50.0, 50.0, 1),
            step("a", 75.0, 60.0, 1),
            step("a", 75.0, 75.0, 2),
            step("a", 75.0, 75.0, 3),
            step("a", 100.0, 90.0, 1),
            step("a", 125.0, 90.0, 1),
            step("b", 50.0, 49.9, 1),
        ];
        assert_eq!(knees(&records), BTreeMap::from([("a".into(), Some(100.0)), ("b".into(), None)]));
    }

    #[test]
    fn two_results_are_compared_by_step() {
        let table =
            compare(&[step("a", 50.0, 50.0, 1)], &[step("b", 50.0, 25.0, 1), step("b", 75.0, 25.0, 1)]);
        assert!(table.contains("| a | 50/s | achieved /s | 50.0 | 25.0 | 0.50 |"), "{table}");
        assert!(table.contains("| a | 50/s | lost | 0.0 | 0.0 | - |") && !table.contains("75/s"), "{table}");
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let line = serde_json::to_string(&step("a", 50.0, 50.0, 1)).unwrap();
        let read: Record = serde_json::from_str(&line).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), line);
    }
}
