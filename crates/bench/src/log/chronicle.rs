//! The log beside Chronicle Queue: the same sizes, rates and counts in turns, each through its usual API in a process.
//!
//! Chronicle runs in a program of its own (`tests/peers/chronicle`), which prints one line of JSON for each run. Both
//! append some entries before the clock starts: a JVM compiles what runs often, and the log leaves the segment that it made
//! at opening.

use super::limits::{self, nanos};
use super::{Outcome, histogram};
use crate::quantile::median;
use crate::report::{Report, Target};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use rockdove_journal::{Journal, Level, Options, SyncPolicy, Terms, WaitStrategy, Writer};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SIZES: [usize; 3] = [60, 256, 1024];
const ROUNDS: usize = 3;
/// Appends that are each followed by a sync are so much slower that fewer of them do.
const SYNCED_SHARE: usize = 500;
const SYNCED_RATE: u64 = 100;
const LONG: Duration = Duration::from_secs(60);

/// What is compared.
#[derive(Clone, Debug)]
pub struct ChroniclePlan {
    /// The program that drives Chronicle.
    pub program: PathBuf,
    /// Where both keep their files.
    pub dir: PathBuf,
    /// Entries of a throughput run; a fifth more before the clock starts.
    pub entries: usize,
    /// Entries a second of a latency run, which lasts about `time`.
    pub rate: u64,
    /// Time of a latency run.
    pub time: Duration,
}

/// One run: how much of what.
#[derive(Clone, Copy, Debug)]
struct Load {
    size: usize,
    count: usize,
    warm_up: usize,
    rate: u64,
    syncs: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Throughput {
    per_second: f64,
}

/// Nanoseconds from when an entry was due until a tailer had it.
#[derive(Clone, Deserialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p999: f64,
    #[serde(rename = "p99.99")]
    p9999: f64,
    max: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Latency {
        let at = |percentile| histogram.value_at_percentile(percentile) as f64;
        let max = histogram.max() as f64;
        Latency { p50: at(50.0), p90: at(90.0), p99: at(99.0), p999: at(99.9), p9999: at(99.99), max }
    }

    fn fields(&self) -> [(&'static str, f64); 6] {
        let Latency { p50, p90, p99, p999, p9999, max } = *self;
        [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999), ("p99.99", p9999), ("max", max)]
    }
}

/// Runs both in turns and holds the medians against each other. `say` is told what is under way.
pub fn beside_chronicle(plan: &ChroniclePlan, say: impl Fn(&str)) -> Result<Outcome> {
    let mut report = Report::default();
    let machine = limits::machine(&plan.dir);
    for syncs in [false, true] {
        for size in SIZES {
            let what = format!("{size} B, {}", if syncs { "a sync after each" } else { "no sync" });
            say(&format!("measuring throughput: {what}"));
            throughputs(plan, size, syncs, &what, &mut report)?;
            say(&format!("measuring latency: {what}"));
            latencies(plan, size, syncs, &what, &mut report)?;
        }
    }
    Ok(Outcome { report, curves: Vec::new(), machine })
}

fn throughputs(
    plan: &ChroniclePlan,
    size: usize,
    syncs: bool,
    what: &str,
    report: &mut Report,
) -> Result<()> {
    let count = if syncs { plan.entries / SYNCED_SHARE } else { plan.entries }.max(1);
    let load = Load { size, count, warm_up: count / 5, rate: 1, syncs };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(throughput(&plan.dir, load)?);
        theirs.push(chronicle::<Throughput>(plan, "throughput", load)?.per_second);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    report.add(format!("append {what}"), ours, "/s", Target::None);
    report.add(format!("append {what}: Chronicle"), theirs, "/s", Target::None);
    let goal = if syncs { Target::None } else { Target::AtLeast(1.0) };
    report.add(format!("append {what} / Chronicle"), ours / theirs, "x", goal);
    Ok(())
}

fn latencies(plan: &ChroniclePlan, size: usize, syncs: bool, what: &str, report: &mut Report) -> Result<()> {
    let rate = if syncs { plan.rate.min(SYNCED_RATE) } else { plan.rate };
    let count = ((rate as f64 * plan.time.as_secs_f64()) as usize).max(1);
    let load = Load { size, count, warm_up: count / 5, rate, syncs };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(latency(&plan.dir, load)?);
        theirs.push(chronicle::<Latency>(plan, "latency", load)?);
    }
    for (i, (percentile, _)) in ours[0].fields().into_iter().enumerate() {
        let at = |runs: &[Latency]| median(runs.iter().map(|run| run.fields()[i].1).collect());
        let (ours, theirs) = (at(&ours), at(&theirs));
        let name = format!("to tailer {what}, {rate}/s: {percentile}");
        report.add(name.clone(), ours / 1e3, "us", Target::None);
        report.add(format!("{name}: Chronicle"), theirs / 1e3, "us", Target::None);
        let goal = if percentile == "p50" && !syncs { Target::AtMost(1.0) } else { Target::None };
        report.add(format!("{name} / Chronicle"), ours / theirs, "x", goal);
    }
    Ok(())
}

/// One run of the program that drives Chronicle.
fn chronicle<T: for<'a> Deserialize<'a>>(plan: &ChroniclePlan, mode: &str, load: Load) -> Result<T> {
    let dir = tempfile::tempdir_in(&plan.dir)?;
    let numbers =
        [load.size as u64, load.count as u64, load.warm_up as u64, load.rate].map(|n| n.to_string());
    let output = Command::new(&plan.program)
        .arg(mode)
        .arg(dir.path())
        .args(numbers)
        .arg(load.syncs.to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", plan.program.display()))?;
    ensure!(output.status.success(), "{} {mode} ended with {}", plan.program.display(), output.status);
    let text = String::from_utf8(output.stdout)?;
    serde_json::from_str(text.trim()).with_context(|| format!("the program's answer: {text}"))
}

fn open(dir: &Path) -> Result<(Journal, Writer)> {
    let (journal, writer, _) = Journal::open(dir, Options { sync: SyncPolicy::Never, ..Options::default() })?;
    Ok((journal, writer))
}

fn append(writer: &mut Writer, payload: &mut [u8], stamp: u64, syncs: bool) -> Result<()> {
    payload[..8].copy_from_slice(&stamp.to_le_bytes());
    if syncs {
        let terms = Terms { time_ns: 0, value: 0, level: Level::Sync };
        writer.append_and_wait(&[payload], terms, LONG)?;
    } else {
        writer.append(&[payload], 0)?;
    }
    Ok(())
}

/// As fast as it goes: entries a second.
fn throughput(dir: &Path, load: Load) -> Result<f64> {
    let dir = tempfile::tempdir_in(dir)?;
    let (_journal, mut writer) = open(dir.path())?;
    let mut payload = vec![0; load.size];
    for _ in 0..load.warm_up {
        append(&mut writer, &mut payload, 0, load.syncs)?;
    }
    let started = Instant::now();
    for _ in 0..load.count {
        append(&mut writer, &mut payload, 0, load.syncs)?;
    }
    Ok(load.count as f64 / started.elapsed().as_secs_f64())
}

/// Entry *i* is due at the start plus *i* / rate, and its latency counts from then until a tailer that looks all the time
/// has it.
fn latency(dir: &Path, load: Load) -> Result<Latency> {
    let dir = tempfile::tempdir_in(dir)?;
    let (journal, mut writer) = open(dir.path())?;
    let mut tailer = journal.tailer().with_wait(WaitStrategy::SpinThenPark(LONG));
    let start = Instant::now();
    let reader = std::thread::spawn(move || -> Result<_> {
        let mut histogram = histogram();
        for i in 0..load.warm_up + load.count {
            let entry = tailer.next_within(LONG)?.context("an entry in time")?;
            let due = entry.payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            if i >= load.warm_up {
                histogram.saturating_record(nanos(start.elapsed()).saturating_sub(due));
            }
        }
        Ok(histogram)
    });
    let mut payload = vec![0; load.size];
    for i in 0..load.warm_up + load.count {
        let due = (i as f64 * 1e9 / load.rate as f64) as u64;
        while nanos(start.elapsed()) < due {
            // The tailer looks all the time, so there is no processor for this too where a sync needs one.
            match load.syncs {
                true => std::thread::sleep(Duration::from_nanos(due).saturating_sub(start.elapsed())),
                false => std::hint::spin_loop(),
            }
        }
        append(&mut writer, &mut payload, due, load.syncs)?;
    }
    let histogram = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    Ok(Latency::of(&histogram))
}
