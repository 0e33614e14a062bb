//! Who is there, and what they do: every node answers the built-in status question.
//!
//! `cargo run -p rockdove --example status [URI]`

#[path = "common/mod.rs"]
mod common;

use rockdove::Message;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = common::Place::from_args()?;
    let node = place.bus("billing-1").connect().await?;
    node.subscribe("orders.created", |_| async { Ok(()) }).await?;
    let operator = place.bus("operator").connect().await?;
    node.ready().await;
    operator.ready().await;

    let question = Message::new(&operator.settings().status_info_topic);
    for answer in operator.request_all(question, 0, Duration::from_secs(1)).await? {
        let status = answer.map_value.unwrap_or_default();
        let listeners = status.get_document("message_listeners_by_name").cloned().unwrap_or_default();
        let topics: Vec<_> = listeners.keys().map(String::as_str).collect();
        let host = answer.sender_host.as_deref().unwrap_or("an unknown host");
        println!("{} on {host} listens to {}", answer.sender, topics.join(", "));
    }
    for participant in operator.participants().await? {
        println!(
            "announced: {} ({}) on {}",
            participant.id, participant.implementation, participant.hostname
        );
    }
    node.shutdown().await;
    operator.shutdown().await;
    Ok(())
}
