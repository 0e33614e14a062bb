//! A paused topic waits. What has waited comes in order of priority, the smallest first, when one call runs at a time.
//!
//! `cargo run -p rockdove --example pause [URI]`

#[path = "common/mod.rs"]
mod common;

use rockdove::Message;
use std::time::Duration;
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = common::Place::from_args()?;
    let sender = place.bus("reception").connect().await?;
    let desk = place.bus("desk").sequential().connect().await?;
    let (served, mut serving) = mpsc::channel(8);
    desk.pause("visitor");
    desk.subscribe("visitor", move |visitor| {
        let served = served.clone();
        async move { Ok(served.send(visitor.value.clone().unwrap_or_default()).await?) }
    })
    .await?;
    desk.ready().await;

    for (priority, name) in [(1000, "a tourist"), (500, "a customer"), (10, "the fire brigade")] {
        let visitor = Message::new("visitor").value(name).priority(priority).ttl(Duration::from_secs(60));
        sender.publish(visitor).await?;
    }
    desk.resume("visitor");

    for _ in 0..3 {
        let name = tokio::time::timeout(Duration::from_secs(10), serving.recv()).await?;
        println!("the desk serves {}", name.unwrap_or_default());
    }
    desk.shutdown().await;
    sender.shutdown().await;
    Ok(())
}
