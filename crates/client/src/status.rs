//! The built-in status listener: answers what this node is and does.

use crate::listen::{Delivery, HandlerError, SubscribeOptions};
use crate::node::Node;
use rockdove_messages::Message;
use rockdove_messages::status::{Level, Report, answer};
use std::sync::Arc;
use std::time::Duration;

/// How the listener is called in status answers.
const NAME: &str = "status_info";

/// Registers the listener. It is marked before execution and never answers an answer.
pub(crate) fn register(node: &Arc<Node>) {
    let options = SubscribeOptions::new().name(NAME).mark_before_execution();
    let topic = &node.settings.status_info_topic;
    node.lanes.register(node, topic, || node.listeners.add(topic.clone(), options, reply));
}

async fn reply(delivery: Delivery) -> Result<Option<Message>, HandlerError> {
    if delivery.is_answer() {
        delivery.bus().node().registry.note(&delivery); // a late answer to the registry's question
        return Ok(None);
    }
    let level = Level::from_value(delivery.value.as_deref());
    let received_after_ms = delivery.bus().node().now_ms().saturating_sub(delivery.timestamp);
    let report = Report { received_after_ms, ..report(delivery.bus().node()) };
    Ok(Some(delivery.derive_answer().map_value(answer(level, &report))))
}

/// What the node knows about itself.
pub(crate) fn report(node: &Arc<Node>) -> Report {
    let settings = &node.settings;
    let (waiting, collected) = node.waiters.counts();
    let depths: Vec<_> = node.lanes.all_ever().iter().map(|lane| lane.depth()).collect();
    let sum = |count: fn(&crate::core::Depth) -> usize| small(depths.iter().map(count).sum::<usize>());
    let completed = depths.iter().map(|depth| depth.completed).sum::<u64>();
    Report {
        listeners: node.listeners.names(),
        change_stream: settings.use_change_stream,
        multithreaded: settings.multithreaded,
        window_size: small(settings.window_size),
        pause_ms: pause(settings.poll_pause),
        received_after_ms: 0,
        waiting_for_answers: small(waiting),
        answers_collected: i32::try_from(collected).unwrap_or(i32::MAX),
        in_progress: sum(|depth| depth.in_progress),
        queued: sum(|depth| depth.queued),
        workers: (
            i64::from(small(settings.workers())),
            i64::from(sum(|depth| depth.running)),
            i64::try_from(completed).unwrap_or(i64::MAX),
        ),
        program: concat!("rockdove ", env!("CARGO_PKG_VERSION")).to_owned(),
        driver: node.backend.describe(),
        settings: settings.to_document(),
        process: process(),
    }
}

/// Resident and largest memory in bytes, and threads, where the system tells (Linux).
fn process() -> Option<(i64, i64, i32)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let number = |name: &str| -> Option<i64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let bytes = |name| Some(number(name)?.saturating_mul(1024));
    Some((bytes("VmRSS")?, bytes("VmHWM")?, i32::try_from(number("Threads")?).ok()?))
}

fn small(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn pause(pause: Duration) -> i32 {
    i32::try_from(pause.as_millis()).unwrap_or(i32::MAX)
}
