//! Whole queues in virtual time: nodes that die and come back, clocks that are wrong, a network that fails, listeners
//! that misbehave, for hours that take seconds.
//!
//! A run is a row of episodes: a storm in which anything may happen; calm, in which what the storm left is brought to
//! its end, and what is sent meanwhile must be exact; silence, after which every promise must have been kept and
//! nobody may have anything left to do.
//!
//! A run is told by its seed. `ROCKDOVE_SEED=… cargo test -p rockdove --test messaging simulation` runs one again,
//! `ROCKDOVE_TRACE=1` prints each step, `ROCKDOVE_HOURS` sets the length.

mod ledger;
mod node;
mod world;

use bson::doc;
use node::{NODES, Node};
use rockdove::Layout;
use rockdove::backend::{Backend, BackendErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use world::World;

const MINUTE: Duration = Duration::from_secs(60);
/// How often the server removes what is past its life.
const EXPIRY: Duration = MINUTE;
const STORM: Duration = Duration::from_secs(10 * 60);
/// After a storm, until messages must be exact: what the storm left needs its pauses.
const CLEARING: Duration = Duration::from_secs(150);
const CALM: Duration = Duration::from_secs(4 * 60);
const SILENCE: Duration = Duration::from_secs(3 * 60);

/// What a run was like.
#[derive(PartialEq, Eq, Debug)]
struct Summary {
    digest: (u64, u64),
    messages: u64,
    calls: u64,
    answers: u64,
}

/// Runs one simulation on a runtime of its own.
fn simulate(layout: Layout, seed: u64, hours: f64) -> Summary {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let length = Duration::from_secs_f64(hours * 3600.0);
    println!("layout {layout:?}, seed {seed}, {hours} hours");
    runtime.block_on(async {
        let world = World::new(layout, seed);
        let result = run(&world, length).await;
        if let Err(what) = result {
            panic!(
                "layout {layout:?}, seed {seed}, after {:?}: {what}",
                Duration::from_millis(world.elapsed_ms() as u64)
            );
        }
        let ledger = world.ledger.lock();
        Summary {
            digest: world.digest(),
            messages: ledger.total(),
            calls: ledger.calls,
            answers: ledger.answers,
        }
    })
}

/// Runs episodes until the time is over.
async fn run(world: &Arc<World>, length: Duration) -> Result<(), String> {
    let expiring = world.clone();
    let expiry = tokio::spawn(async move {
        loop {
            sleep(EXPIRY).await;
            expiring.fake.expire(expiring.now_ms());
        }
    });
    let mut nodes: Vec<_> = (0..NODES).map(|index| Node::new(world, index)).collect();
    let end = Instant::now() + length;
    let (mut last_ms, mut told) = (0, 0);
    while Instant::now() < end {
        let begin_ms = world.now_ms();
        storm(world, &mut nodes).await?;
        clear_up(world, &mut nodes).await;
        traffic(world, &mut nodes, CLEARING, false).await?;
        traffic(world, &mut nodes, CALM, true).await?;
        sleep(SILENCE).await;
        judge(world, &nodes).await?;
        purge(world, last_ms).await;
        last_ms = begin_ms;
        let hours = world.elapsed_ms() / 3_600_000;
        if hours >= told + 6 {
            told = hours;
            println!("{:?}: {hours} hours, {} messages", world.fake.layout, world.ledger.lock().total());
        }
    }
    expiry.abort();
    Ok(())
}

fn violations(world: &World) -> Result<(), String> {
    let ledger = world.ledger.lock();
    if ledger.violations.is_empty() { Ok(()) } else { Err(ledger.violations.join("\n")) }
}

/// Anything may happen.
async fn storm(world: &Arc<World>, nodes: &mut [Node]) -> Result<(), String> {
    let end = Instant::now() + STORM;
    let errors = world.chance(|chance| chance.below(15));
    {
        let mut weather = world.weather.lock();
        (weather.storm, weather.errors) = (true, errors);
    }
    for node in nodes.iter() {
        node.set_clock();
    }
    while Instant::now() < end {
        sleep(world.chance(|chance| chance.millis(3000))).await;
        violations(world)?;
        let (what, who) = world.chance(|chance| (chance.below(1000), chance.below(NODES as u64) as usize));
        let node = &mut nodes[who];
        match what {
            0..20 => node.kill(),
            20..30 => node.stop().await,
            30..130 if !node.is_up() => drop(node.start().await),
            130..140 => node.set_clock(),
            140..150 => node.pause(),
            150..180 => node.resume(),
            180..190 => {
                let lasts = world.chance(|chance| match chance.percent(30) {
                    true => chance.millis(120_000),
                    false => chance.millis(5000),
                });
                world.trace(format_args!("nobody reaches the server for {lasts:?}"));
                world.weather.lock().outage_until = Instant::now() + lasts;
                world.break_streams(BackendErrorKind::Transient);
            }
            190..200 => world.break_streams(BackendErrorKind::Transient),
            200..205 => {
                world.fake.lose_history();
                world.break_streams(BackendErrorKind::HistoryLost);
            }
            205..700 => node.send(false),
            _ => {}
        }
    }
    Ok(())
}

/// The weather turns, everybody comes back.
async fn clear_up(world: &Arc<World>, nodes: &mut [Node]) {
    {
        let mut weather = world.weather.lock();
        (weather.storm, weather.outage_until) = (false, Instant::now());
    }
    for node in nodes {
        if !node.is_up() {
            assert!(node.start().await, "nothing fails");
        }
        node.resume();
    }
}

/// Messages, and nothing that fails.
async fn traffic(world: &Arc<World>, nodes: &mut [Node], time: Duration, exact: bool) -> Result<(), String> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        sleep(world.chance(|chance| chance.millis(6000))).await;
        violations(world)?;
        let who = world.chance(|chance| chance.below(NODES as u64) as usize);
        nodes[who].send(exact);
    }
    Ok(())
}

/// Nothing has happened for a while: whatever is not done now never will be.
async fn judge(world: &World, nodes: &[Node]) -> Result<(), String> {
    let mut unfinished = Vec::new();
    for node in nodes {
        unfinished.extend(never_idle(node).await);
    }
    let mut ledger = world.ledger.lock();
    ledger.settle(NODES);
    for node in nodes {
        if node.is_sending() {
            ledger.violation(format!("a sender of node {} waits for ever", node.index));
        }
    }
    unfinished.into_iter().for_each(|what| ledger.violation(what));
    drop(ledger);
    violations(world)
}

/// What a node has not done. A look at a message that it takes for expired passes.
async fn never_idle(node: &Node) -> Option<String> {
    let mut last = None;
    for _ in 0..20 {
        last = Some(node.unfinished()?);
        sleep(Duration::from_millis(500)).await;
    }
    last
}

/// Removes what is settled and old, as an operator might.
async fn purge(world: &World, until_ms: i64) {
    let old: Vec<_> = world.ledger.lock().forget(until_ms).iter().map(u64::to_string).collect();
    for collection in world.fake.collections("").await.unwrap() {
        world.fake.delete(&collection, doc! {"value": {"$in": &old}}).await.unwrap();
    }
}

fn from_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// An episode for each of some seeds.
fn hours(layout: Layout, seeds: [u64; 2]) {
    let length = from_environment("ROCKDOVE_HOURS").unwrap_or(0.3);
    match from_environment("ROCKDOVE_SEED") {
        Some(seed) => println!("{:?}", simulate(layout, seed, length)),
        None => seeds.into_iter().for_each(|seed| println!("{:?}", simulate(layout, seed, length))),
    }
}

#[test]
fn hours_of_standard() {
    hours(Layout::Standard, [2, 3]);
}

#[test]
fn hours_of_multi_collection() {
    hours(Layout::MultiCollection, [4, 6]);
}

#[test]
fn hours_of_dual_channel() {
    hours(Layout::DualChannel, [7, 9]);
}

#[test]
fn a_seed_is_a_run() {
    let once = || simulate(Layout::DualChannel, 10, 0.3);
    assert_eq!(once(), once());
}

#[test]
#[ignore = "takes minutes: 72 hours of each layout"]
fn three_days() {
    let length = from_environment("ROCKDOVE_HOURS").unwrap_or(72.0);
    let seed = from_environment("ROCKDOVE_SEED").unwrap_or(72);
    std::thread::scope(|threads| {
        for layout in Layout::ALL {
            threads.spawn(move || println!("{layout:?}: {:?}", simulate(layout, seed, length)));
        }
    });
}
