//! Logs larger than memory: opening one of many segments, and reading one from the disk beside who appends.

use super::limits::nanos;
use super::{Curve, Outcome, Plan, histogram};
use crate::report::Target;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rockdove_journal::{Cycle, CycleChoice, CycleLength, Journal, Options, Retention, SyncPolicy, Writer};
use rustix::fs::{Advice, fadvise};
use std::fs::{File, read_dir};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of each segment of the large log.
const SEGMENT_BYTES: u64 = 64 << 20;
const MINUTE_NS: u64 = 60_000_000_000;
/// What the replay reads.
const REPLAY_BYTES: usize = 512 << 20;
const REPLAY_ENTRY_BYTES: usize = 1024;
/// Entries a second beside the replay.
const RATE: u64 = 20_000;

fn options() -> Options {
    let cycle = CycleChoice::Exactly(Some(Cycle::utc(CycleLength::Minute)));
    let retention = Retention::default();
    Options { segment_bytes: SEGMENT_BYTES, sync: SyncPolicy::Never, cycle, retention, ..Options::default() }
}

fn open(dir: &Path, options: Options) -> Result<(Journal, Writer)> {
    let (journal, writer, _) = Journal::open(dir, options)?;
    Ok((journal, writer))
}

/// Opens a log of `plan.large` GiB: complete segments with an entry each, their files drawn out to full length with
/// holes. What opening reads of a segment is the same as if it were full.
pub fn opening(plan: &Plan, outcome: &mut Outcome, say: &impl Fn(&str)) -> Result<()> {
    if plan.large == 0 {
        return Ok(());
    }
    let segments = plan.large * (1 << 30) / SEGMENT_BYTES;
    let dir = tempfile::tempdir_in(&plan.dir)?;
    let (journal, mut writer) = open(dir.path(), options())?;
    // The first segment of a log is small, and stays as it is.
    for n in 0..=segments {
        // A minute each, so that each begins a segment.
        writer.append(&[b"one"], n * MINUTE_NS)?;
        if n % 100 == 99 {
            say(&format!("making a log of {} GiB: {} of {segments} segments", plan.large, n + 1));
        }
    }
    drop(journal);
    writer.close()?;
    let mut files = Vec::new();
    for entry in read_dir(dir.path())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "seg") {
            files.push(path);
        }
    }
    files.sort_unstable(); // by their first entries
    for path in files.iter().skip(1) {
        let file = File::options().write(true).open(path)?;
        file.set_len(SEGMENT_BYTES)?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    let size = format!("{} GiB", (files.len().saturating_sub(1) as u64 * SEGMENT_BYTES) >> 30);
    let mut measure = |name: &str, target| -> Result<Writer> {
        let started = Instant::now();
        let (_, writer) = open(dir.path(), options())?;
        let seconds = started.elapsed().as_secs_f64();
        outcome.report.add(format!("opening {size}, {name}"), seconds * 1e3, "ms", target);
        Ok(writer)
    };
    // As after a crash of the process: nothing says that it ended well.
    drop(measure("closed cleanly", Target::AtMost(1000.0))?);
    drop(measure("not closed", Target::None)?);
    Ok(())
}

/// Reads a log that is not in memory from its beginning, while another thread appends to it.
pub fn cold_replay(plan: &Plan, outcome: &mut Outcome) -> Result<()> {
    let dir = tempfile::tempdir_in(&plan.dir)?;
    let (journal, mut writer) = open(dir.path(), Options { sync: SyncPolicy::Never, ..Options::default() })?;
    let payload = [7; REPLAY_ENTRY_BYTES];
    let count = plan.entries.min(REPLAY_BYTES / REPLAY_ENTRY_BYTES);
    for _ in 0..count {
        writer.append(&[&payload], 0)?;
    }
    let last = journal.written();
    journal.request_sync();
    journal.wait_synced_blocking(last, Duration::from_secs(120))?;

    let alone = append_at_rate(&mut writer, &payload, |elapsed| elapsed >= Duration::from_secs(2))?;
    let bare = cold(dir.path())?;
    forget(dir.path())?;
    let done = AtomicBool::new(false);
    let (beside, replay) = std::thread::scope(|scope| -> Result<_> {
        let reader = scope.spawn(|| {
            let replay = replay(&journal, last);
            done.store(true, Ordering::Release);
            replay
        });
        let beside = append_at_rate(&mut writer, &payload, |_| done.load(Ordering::Acquire))?;
        Ok((beside, reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??))
    })?;
    let bytes = (count * REPLAY_ENTRY_BYTES) as f64;
    let report = &mut outcome.report;
    report.add("cold replay, 1 KiB entries", bytes / replay / 1e6, "MB/s", Target::None);
    report.add("cold replay / bare reading of the files", bytes / replay / bare, "x", Target::None);
    for (name, histogram) in [("alone", alone), ("beside a cold replay", beside)] {
        let curve = Curve::new("append", name, histogram);
        report.add(format!("append at {RATE}/s, {name}: p99.9"), curve.micros(99.9), "us", Target::None);
        outcome.curves.push(curve);
    }
    Ok(())
}

/// Seconds until the entry `last` was read.
fn replay(journal: &Journal, last: u64) -> Result<f64> {
    let started = Instant::now();
    let mut tailer = journal.tailer();
    while tailer.position() <= last {
        tailer.next_entry()?.context("an entry that was written")?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Latencies of appends from the times they are due at, until `ends` says so.
fn append_at_rate(
    writer: &mut Writer,
    payload: &[u8],
    ends: impl Fn(Duration) -> bool,
) -> Result<Histogram<u64>> {
    let (started, mut histogram) = (Instant::now(), histogram());
    for n in 0u64.. {
        let due = started + Duration::from_nanos(n * 1_000_000_000 / RATE);
        while Instant::now() < due {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        writer.append(&[payload], 0)?;
        histogram.saturating_record(nanos(due.elapsed()));
        if ends(started.elapsed()) {
            break;
        }
    }
    Ok(histogram)
}

/// Bytes a second that the segments are read with from the disk, without looking at them.
fn cold(dir: &Path) -> Result<f64> {
    forget(dir)?;
    let (started, mut bytes, mut sink) = (Instant::now(), 0, std::io::sink());
    for file in segment_files(dir)? {
        bytes += std::io::copy(&mut std::io::BufReader::with_capacity(256 << 10, file), &mut sink)?;
    }
    Ok(bytes as f64 / started.elapsed().as_secs_f64())
}

/// Has the system forget what it holds of the segments.
fn forget(dir: &Path) -> Result<()> {
    for file in segment_files(dir)? {
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

fn segment_files(dir: &Path) -> Result<Vec<File>> {
    let mut paths = Vec::new();
    for entry in read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "seg") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.into_iter().map(|path| Ok(File::open(path)?)).collect()
}
