//! The engine alone, in process: what an insert costs, in time and memory, and how that changes with size.

use crate::message::{indexes, message, write};
use crate::quantile::quantile;
use crate::report::{Report, Target};
use anyhow::{Result, ensure};
use memmap2::MmapMut;
use rockdove_engine::{Ack, Definition, Engine, Namespace, Options, Statement, SyncPolicy};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Messages that are made before they are inserted.
const CHUNK: u64 = 20_000;
/// Documents in one write.
const BATCH: u64 = 100;
/// Writes that are under way at one time.
const IN_FLIGHT: usize = 4;

/// More than a stored message, its part of the log and of a checkpoint take.
const BYTES_PER_MESSAGE: u64 = 8 << 10;
const PAGE_BYTES: usize = 4096;

/// Has memory in hand for so many messages, as a machine has that has run for a while: what a virtual machine uses for the
/// first time its host has to find and clear, which is no cost of the engine. At most half of what is free is touched.
fn touch_memory(messages: u64) -> Result<()> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let free = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let free: u64 = free.unwrap_or("0").parse()?;
    let bytes = messages.saturating_mul(BYTES_PER_MESSAGE).min(free * 1024 / 2);
    let mut memory = MmapMut::map_anon(usize::try_from(bytes)?.max(PAGE_BYTES))?;
    memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
    Ok(())
}

/// Measures inserts of messages with the journal on and no sync, up to `count` stored documents.
///
/// The rate is inserts for a second of processor time of the whole process (all threads, the system's share
/// included, making the messages excluded): what one core does, however busy the machine is.
pub async fn inserts(count: u64) -> Result<Report> {
    ensure!(count > 0, "nothing to measure");
    tokio::task::spawn_blocking(move || touch_memory(count)).await??;
    let dir = tempfile::tempdir()?;
    let options = Options { sync: SyncPolicy::Never, ..Options::stored_in(dir.path()) };
    let engine = tokio::task::spawn_blocking(move || Engine::open(options)).await??;
    let ns = Namespace::new("bench", "msg")?;
    let specs = indexes();
    engine.define(Definition::CreateIndexes { ns: ns.clone(), specs }, Ack::WRITTEN).await?;
    let mut chunks = Vec::new();
    for from in (0..count).step_by(CHUNK as usize) {
        chunks.push(insert(&engine, &ns, from, from + CHUNK).await?);
    }
    let mut report = Report::default();
    let cpu: f64 = chunks.iter().sum();
    let rate = (chunks.len() as u64 * CHUNK) as f64 / cpu;
    report.add(
        "engine: inserts for a core second (500 B message, 10 indexes)",
        rate,
        "1/s",
        Target::AtLeast(200_000.0),
    );
    // What seven in eight chunks of a quarter of the run exceed: a checkpoint, which the rate above includes, slows
    // down all chunks beside it, up to half a quarter, the later the more and the rarer.
    let quarter = (chunks.len() / 4).max(1);
    let low = |chunks: &[f64]| quantile(chunks.to_vec(), 0.125);
    let (early, late) = (low(&chunks[..quarter]), low(&chunks[chunks.len() - quarter..]));
    report.add(
        "engine: cost of an insert at the end / at the beginning",
        late / early,
        "x",
        Target::AtMost(1.2),
    );
    memory(&engine, &ns, &mut report)?;
    engine.close().await.map_err(anyhow::Error::msg)?;
    Ok(report)
}

/// Inserts messages `from..upto`; returns the processor seconds it took.
async fn insert(engine: &Engine, ns: &Namespace, from: u64, upto: u64) -> Result<f64> {
    let batch = |start: u64| -> Vec<_> {
        (start..(start + BATCH).min(upto))
            .map(|n| Statement::Insert { ns: ns.clone(), doc: message(n) })
            .collect()
    };
    let mut batches: std::collections::VecDeque<_> =
        (from..upto).step_by(BATCH as usize).map(batch).collect();
    let before = cpu_time();
    let mut under_way = std::collections::VecDeque::new();
    loop {
        if under_way.len() < IN_FLIGHT
            && let Some(statements) = batches.pop_front()
        {
            let write = write(statements);
            let engine = engine.clone();
            under_way.push_back(tokio::spawn(async move { engine.write(write).await }));
            continue;
        }
        let Some(oldest) = under_way.pop_front() else { break };
        let reply = oldest.await??;
        ensure!(reply.results.iter().all(Result::is_ok), "an insert failed: {:?}", reply.results);
    }
    Ok(cpu_time().saturating_sub(before).as_secs_f64())
}

/// Compares the memory in use with what is stored.
fn memory(engine: &Engine, ns: &Namespace, report: &mut Report) -> Result<()> {
    let state = engine.snapshot();
    let Some(collection) = state.collection(ns) else { return Ok(()) };
    let entries: usize = collection.indexes().iter().map(|index| index.tree.len()).sum();
    let allowed = 1.3 * collection.bytes() as f64 + 80.0 * entries as f64;
    let used = resident_bytes()? as f64;
    report.add(
        "engine: resident memory / (1.3 x BSON size + 80 B x index entry)",
        used / allowed,
        "x",
        Target::AtMost(1.0),
    );
    report.add("engine: documents stored", collection.len() as f64, "", Target::None);
    Ok(())
}

/// Processor time of this process so far, all threads, the system's share included.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The same of the calling thread.
pub fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Memory of this process that is in use.
pub fn resident_bytes() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split_whitespace().nth(1).unwrap_or("0").parse()?;
    Ok(pages * 4096)
}
