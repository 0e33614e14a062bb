//! The log alone: throughput by size, from append to tailer, group commit, opening.

use super::limits::{self, Limits, nanos};
use super::{Curve, Outcome, Plan, histogram};
use crate::quantile::median;
use crate::report::Target;
use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use rockdove_journal::{Appender, Journal, Level, Options, SyncPolicy, Terms, WaitStrategy, Writer};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

const SIZES: [usize; 6] = [60, 256, 1024, 4096, 65_536, 1 << 20];
/// Bytes that one figure of the throughput writes at most.
const BYTES_MAX: usize = 512 << 20;
const BATCH: usize = 100;
const WRITERS: usize = 8;
/// Entries per writer of the group commit: few enough for the first segment, which no other is made ready beside.
const COMMITS: usize = 200;
const TURNS: usize = 5;
const LONG: Duration = Duration::from_secs(60);

fn open(dir: &Path, sync: SyncPolicy) -> Result<(Journal, Writer)> {
    let (journal, writer, _) = Journal::open(dir, Options { sync, ..Options::default() })?;
    Ok((journal, writer))
}

fn terms(level: Level) -> Terms {
    Terms { time_ns: 0, value: 0, level }
}

/// Entries a second without syncs, one by one and in batches.
pub fn throughput(plan: &Plan, limits: &Limits, outcome: &mut Outcome) -> Result<()> {
    for size in SIZES {
        let dir = tempfile::tempdir_in(&plan.dir)?;
        let (_journal, mut writer) = open(dir.path(), SyncPolicy::Never)?;
        let count = plan.entries.min(BYTES_MAX / size).max(BATCH) / BATCH * BATCH;
        let payload = vec![7; size];
        let started = Instant::now();
        for _ in 0..count {
            writer.append(&[&payload], 0)?;
        }
        let single = count as f64 / started.elapsed().as_secs_f64();
        let batch = vec![&payload[..]; BATCH];
        let started = Instant::now();
        for _ in 0..count / BATCH {
            writer.append_all(&batch, terms(Level::Async))?;
        }
        let batched = count as f64 / started.elapsed().as_secs_f64();
        let floor = match size {
            256 => Target::AtLeast(1e6),
            1024 => Target::AtLeast(4e5),
            _ => Target::None,
        };
        outcome.report.add(format!("append {size} B, one by one"), single, "/s", floor);
        outcome.report.add(format!("append {size} B, batches of {BATCH}"), batched, "/s", floor);
        if size == plan.size {
            let name = format!("append {size} B, one by one / bare writes");
            outcome.report.add(name, single / limits.writes, "x", Target::None);
        }
        outcome.report.add(
            format!("append {size} B, bytes in batches"),
            batched * size as f64 / 1e6,
            "MB/s",
            Target::None,
        );
    }
    Ok(())
}

/// From before the append until a tailer on another thread has the entry.
pub fn to_tailer(plan: &Plan, outcome: &mut Outcome) -> Result<()> {
    let strategies = [
        ("parked", WaitStrategy::Park),
        ("spinning, then parked", WaitStrategy::SpinThenPark(Duration::from_millis(1))),
    ];
    for (name, strategy) in strategies {
        let dir = tempfile::tempdir_in(&plan.dir)?;
        let (journal, mut writer) = open(dir.path(), SyncPolicy::Never)?;
        let (start, count) = (Instant::now(), plan.entries.min(10_000));
        let mut tailer = journal.tailer().with_wait(strategy);
        let reader = std::thread::spawn(move || -> Result<_> {
            let mut histogram = histogram();
            for _ in 0..count {
                let entry = tailer.next_within(LONG)?.context("an entry in time")?;
                let sent = entry.payload.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
                histogram.saturating_record(nanos(start.elapsed()).saturating_sub(sent));
            }
            Ok(histogram)
        });
        for _ in 0..count {
            // One at a time, so that nothing waits for the reader.
            let due = Instant::now() + Duration::from_micros(100);
            let sent = nanos(start.elapsed()).to_le_bytes();
            writer.append(&[&sent, &vec![0; plan.size.saturating_sub(8)]], 0)?;
            while Instant::now() < due {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
        let histogram = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        let curve = Curve::new("append to tailer", name, histogram);
        outcome.report.add(format!("append to tailer, {name}: p50"), curve.micros(50.0), "us", Target::None);
        outcome.report.add(format!("append to tailer, {name}: p99"), curve.micros(99.0), "us", Target::None);
        outcome.curves.push(curve);
    }
    Ok(())
}

/// Eight writers that each wait for the disk after each entry: threads, in turns with threads that do nothing else, and
/// tasks of one thread, as the engine's callers are.
pub fn group_commit(plan: &Plan, limits: &Limits, outcome: &mut Outcome) -> Result<()> {
    let (mut ours, mut bare, mut batch) = ([0.0; TURNS], [0.0; TURNS], [0.0; TURNS]);
    let (mut tasks, mut of_tasks) = ([0.0; TURNS], [0.0; TURNS]);
    for turn in 0..TURNS {
        let dir = tempfile::tempdir_in(&plan.dir)?;
        bare[turn] = limits::group_commits(dir.path(), WRITERS, COMMITS, plan.size)?;
        (ours[turn], batch[turn]) = commits(&dir.path().join("threads"), plan.size, threads)?;
        (tasks[turn], of_tasks[turn]) = commits(&dir.path().join("tasks"), plan.size, tasks_of_one_thread)?;
    }
    let [ours, bare, batch] = [ours, bare, batch].map(|values| median(values.to_vec()));
    let [tasks, of_tasks] = [tasks, of_tasks].map(|values| median(values.to_vec()));
    let sync = limits.sync_one.value_at_percentile(50.0) as f64 / 1e9;
    let mut add = |name: String, value, unit, target| outcome.report.add(name, value, unit, target);
    add(format!("{WRITERS} writers, each waits for the disk"), ours, "/s", Target::None);
    add("entries of a sync".into(), batch, "", Target::None);
    add("group commit / (entries of a sync / bare fdatasync)".into(), ours * sync / batch, "x", Target::None);
    add("group commit / bare group commit".into(), ours / bare, "x", Target::AtLeast(0.9));
    let bound = WRITERS as f64 / sync;
    add("group commit / (writers / bare fdatasync)".into(), ours / bound, "x", Target::AtLeast(0.7));
    add("bare group commit / (writers / bare fdatasync)".into(), bare / bound, "x", Target::None);
    add(format!("{WRITERS} writers that are tasks of one thread"), tasks, "/s", Target::None);
    add("entries of a sync, tasks".into(), of_tasks, "", Target::None);
    add("group commit, tasks / (writers / bare fdatasync)".into(), tasks / bound, "x", Target::AtLeast(0.7));
    Ok(())
}

/// Commits a second by these writers, and entries of a sync.
fn commits(
    dir: &Path,
    size: usize,
    write: impl FnOnce(&Journal, &Writer, usize) -> Result<()>,
) -> Result<(f64, f64)> {
    let (journal, writer) = open(dir, SyncPolicy::Never)?;
    let started = Instant::now();
    write(&journal, &writer, size)?;
    let (count, took) = ((WRITERS * COMMITS) as f64, started.elapsed());
    let rounds = journal.syncs().iter().map(|(_, count)| *count).sum::<u64>().max(1);
    Ok((count / took.as_secs_f64(), count / rounds as f64))
}

fn threads(_: &Journal, writer: &Writer, size: usize) -> Result<()> {
    let threads: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (appender, payload) = (writer.appender(), vec![7; size]);
            std::thread::spawn(move || -> Result<()> {
                for _ in 0..COMMITS {
                    appender.append_and_wait(&[&payload], terms(Level::Sync), LONG)?;
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
    }
    Ok(())
}

fn tasks_of_one_thread(journal: &Journal, writer: &Writer, size: usize) -> Result<()> {
    let synced = Arc::new(Notify::new());
    let told = synced.clone();
    journal.on_synced(move |_| told.notify_waiters());
    let write = async |appender: Appender| -> Result<()> {
        let payload = vec![7; size];
        for _ in 0..COMMITS {
            let mut ticket = appender.append_on(&[&payload], terms(Level::Sync))?;
            loop {
                let mut next = pin!(synced.notified());
                next.as_mut().enable(); // before the look, so that no sync is missed
                if ticket.poll()?.is_some() {
                    break;
                }
                next.await;
            }
        }
        Ok(())
    };
    let appenders: Vec<_> = (0..WRITERS).map(|_| writer.appender()).collect();
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(try_join_all(appenders.into_iter().map(write)))
    };
    // A thread of its own: the caller's may drive a runtime already.
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    ended.map_err(|_| anyhow::anyhow!("a writer panicked"))?.map(drop)
}

/// Opening, after a clean close and after a killed process.
pub fn recovery(plan: &Plan, outcome: &mut Outcome) -> Result<()> {
    let payload = vec![7; 4096];
    let batch = vec![&payload[..]; BATCH];
    let most = (plan.entries * payload.len()) >> 20;
    let mut sizes = [64, 512].map(|megabytes: usize| megabytes.min(most).max(1)).to_vec();
    sizes.dedup();
    for megabytes in sizes {
        let dir = tempfile::tempdir_in(&plan.dir)?;
        let (journal, mut writer) = open(dir.path(), SyncPolicy::Never)?;
        for _ in 0..(megabytes << 20) / (BATCH * payload.len()) {
            writer.append_all(&batch, terms(Level::Async))?;
        }
        drop((journal, writer));
        let started = Instant::now();
        let (_journal, writer) = open(dir.path(), SyncPolicy::Never)?;
        let killed = started.elapsed();
        writer.close()?;
        let started = Instant::now();
        drop(open(dir.path(), SyncPolicy::Never)?);
        let clean = started.elapsed();
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        outcome.report.add(
            format!("opening {megabytes} MiB, closed cleanly"),
            millis(clean),
            "ms",
            Target::None,
        );
        outcome.report.add(
            format!("opening {megabytes} MiB, not closed"),
            millis(killed),
            "ms",
            Target::None,
        );
    }
    Ok(())
}
