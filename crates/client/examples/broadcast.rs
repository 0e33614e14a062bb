//! Every node that listens hears a broadcast.
//!
//! `cargo run -p rockdove --example broadcast [URI]`

#[path = "common/mod.rs"]
mod common;

use rockdove::Message;
use std::time::Duration;
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = common::Place::from_args()?;
    let shop = place.bus("shop").connect().await?;
    let (heard, mut hearing) = mpsc::channel(8);
    let mut listeners = Vec::new();
    for id in ["billing", "stock"] {
        let bus = place.bus(id).connect().await?;
        let heard = heard.clone();
        bus.subscribe("orders.created", move |order| {
            println!("{id} heard of order {} from {}", order.value.as_deref().unwrap_or("?"), order.sender);
            let heard = heard.clone();
            async move { Ok(heard.send(id).await?) }
        })
        .await?;
        bus.ready().await;
        listeners.push(bus);
    }

    shop.publish(Message::new("orders.created").value("4711").ttl(Duration::from_secs(60))).await?;

    for _ in &listeners {
        tokio::time::timeout(Duration::from_secs(10), hearing.recv()).await?;
    }
    for bus in listeners.iter().chain([&shop]) {
        bus.shutdown().await;
    }
    Ok(())
}
