//! A message for one node, by its id, read as a stream.
//!
//! `cargo run -p rockdove --example directed [URI]`

#[path = "common/mod.rs"]
mod common;

use rockdove::Message;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = common::Place::from_args()?;
    let control = place.bus("control").connect().await?;
    let node = place.bus("node-7").connect().await?;
    let mut commands = node.listen("cache.clear", 1).await?;
    node.ready().await;

    control.publish(Message::new("cache.clear").value("articles").to("node-7")).await?;

    let command = tokio::time::timeout(Duration::from_secs(10), commands.next()).await?;
    let command = command.ok_or("the bus stopped")?;
    println!("node-7 clears {}", command.value.as_deref().unwrap_or("everything"));
    command.done();
    node.shutdown().await;
    control.shutdown().await;
    Ok(())
}
