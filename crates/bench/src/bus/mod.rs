//! Load on the bus through the `rockdove` crate: several targets measured in turns in one run.
//!
//! ```text
//!  plan ─► steps ─► for each step, for each target: load ─► result line (JSON) ─► table, HTML, comparison
//! ```
//!
//! Invariants
//! * Open loop: a message has the moment at which it was meant to be sent, and its latency counts from there; a slow
//!   server delays no later message, and none of its delays is left out: what is not answered counts with the time that
//!   was waited for it.
//! * Every message is numbered: what is lost or comes twice is counted, not guessed.
//! * All targets get the same client, the same steps and the same turns.

mod load;
mod meter;
mod pace;
mod plan;
mod relay;
mod report;
mod result;
mod target;

pub use plan::{Plan, Profile, RATES, Ramp, RampError, SECONDS};
pub use report::html;
pub use result::{Latency, Record, Run, Step, compare, knees, read};
pub use target::{Target, TargetError};

use anyhow::Result;
use load::Station;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Carries out a plan. `done` is told each line of the result as soon as it is there, beginning with the run's own;
/// `progress` is told which step runs where.
pub async fn run(
    plan: &Plan,
    targets: &[Target],
    mut progress: impl FnMut(&str),
    mut done: impl FnMut(&Record) -> Result<()>,
) -> Result<Vec<Record>> {
    let mut records = vec![Record::Run(describe(plan, targets))];
    done(&records[0])?;
    let mut stations = Vec::new();
    for target in targets {
        progress(&format!("{}: connecting", target.name));
        stations.push(Station::open(plan, target).await?);
    }
    for station in &stations {
        progress(&format!("{}: warming up", station.name()));
        station.warm_up(plan).await?;
    }
    for round in 1..=plan.rounds {
        for stage in plan.stages() {
            for station in &stations {
                progress(&format!("{}: {} ({round}/{})", station.name(), stage.label, plan.rounds));
                let step = station.measure(plan, &stage, round).await?;
                let record = Record::Step(Box::new(step));
                done(&record)?;
                records.push(record);
            }
        }
    }
    for station in stations {
        station.close().await;
    }
    Ok(records)
}

/// How long a plan takes on this many targets, roughly.
pub fn duration(plan: &Plan, targets: usize) -> Duration {
    let once: Duration = plan.stages().iter().map(|stage| stage.duration).sum();
    let targets = u32::try_from(targets).unwrap_or(u32::MAX);
    once.saturating_mul(plan.rounds).saturating_add(plan.warm_up).saturating_mul(targets)
}

fn describe(plan: &Plan, targets: &[Target]) -> Run {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Run {
        version: env!("CARGO_PKG_VERSION").into(),
        started_s: started.as_secs(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        targets: targets.iter().map(|target| target.name.clone()).collect(),
        plan: plan.clone(),
    }
}
