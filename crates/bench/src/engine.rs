//! The engine alone, in process: what an insert costs, in time and memory, and how that changes with size.

use crate::message::{indexes, message};
use crate::report::{Report, Target};
use anyhow::{Result, ensure};
use rockdove_engine::{Ack, Definition, Engine, Namespace, Options, Statement, SyncPolicy, Write};
use std::time::{Duration, Instant};

/// Documents in one write.
const BATCH: u64 = 100;
/// Writes that are under way at one time.
const IN_FLIGHT: usize = 4;

/// Measures inserts of messages with the journal on and no sync, up to `count` stored documents.
pub async fn inserts(count: u64) -> Result<Report> {
    let dir = tempfile::tempdir()?;
    let options = Options { sync: SyncPolicy::Never, ..Options::stored_in(dir.path()) };
    let engine = tokio::task::spawn_blocking(move || Engine::open(options)).await??;
    let ns = Namespace::new("bench", "msg")?;
    let specs = indexes();
    engine.define(Definition::CreateIndexes { ns: ns.clone(), specs }, Ack::Written).await?;
    let mut report = Report::default();
    insert(&engine, &ns, 0, 1000).await?;
    let small = insert(&engine, &ns, 1000, 20_000.min(count)).await?;
    let (started, cpu) = (Instant::now(), cpu_time()?);
    insert(&engine, &ns, 20_000.min(count), count.saturating_sub(20_000)).await?;
    let (took, cpu) = (started.elapsed(), cpu_time()?.saturating_sub(cpu));
    let late = insert(&engine, &ns, count, count + 20_000).await?;
    let inserted = count.saturating_sub(40_000) as f64;
    report.add(
        "engine: inserts a second (500 B message, 10 indexes, journal)",
        inserted / took.as_secs_f64(),
        "1/s",
        Target::AtLeast(200_000.0),
    );
    report.add(
        "engine: processor time used while doing so",
        cpu.as_secs_f64() / took.as_secs_f64(),
        "cores",
        Target::None,
    );
    report.add(
        "engine: cost of an insert at the end / at 20,000 stored",
        late / small,
        "x",
        Target::AtMost(1.2),
    );
    memory(&engine, &ns, &mut report)?;
    engine.close().await.map_err(anyhow::Error::msg)?;
    Ok(report)
}

/// Inserts messages `from..upto`; returns seconds for each.
async fn insert(engine: &Engine, ns: &Namespace, from: u64, upto: u64) -> Result<f64> {
    let started = Instant::now();
    let mut under_way = std::collections::VecDeque::new();
    let mut next = from;
    while next < upto || !under_way.is_empty() {
        if next < upto && under_way.len() < IN_FLIGHT {
            let end = (next + BATCH).min(upto);
            let statements =
                (next..end).map(|n| Statement::Insert { ns: ns.clone(), doc: message(n) }).collect();
            let write =
                Write { statements, ordered: true, retry: None, ack: Ack::Written, bypass_validation: false };
            let engine = engine.clone();
            under_way.push_back(tokio::spawn(async move { engine.write(write).await }));
            next = end;
            continue;
        }
        if let Some(oldest) = under_way.pop_front() {
            let reply = oldest.await??;
            ensure!(reply.results.iter().all(Result::is_ok), "an insert failed: {:?}", reply.results);
        }
    }
    Ok(started.elapsed().as_secs_f64() / upto.saturating_sub(from).max(1) as f64)
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

/// Processor time of this process so far.
pub fn cpu_time() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 10)) // the kernel reports in hundredths of a second
}

/// Memory of this process that is in use.
pub fn resident_bytes() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split_whitespace().nth(1).unwrap_or("0").parse()?;
    Ok(pages * 4096)
}
