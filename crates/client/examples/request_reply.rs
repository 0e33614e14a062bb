//! Questions and answers: the first one, all of them, or as they come.
//!
//! `cargo run -p rockdove --example request_reply [URI]`

#[path = "common/mod.rs"]
mod common;

use rockdove::Message;
use rockdove::bson::doc;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = common::Place::from_args()?;
    let shop = place.bus("shop").connect().await?;
    let mut depots = Vec::new();
    for (id, pieces) in [("depot-north", 3_i32), ("depot-south", 8)] {
        let bus = place.bus(id).connect().await?;
        bus.subscribe("stock.wanted", move |question| async move {
            Ok(question.derive_answer().map_value(doc! { "pieces": pieces }))
        })
        .await?;
        bus.ready().await;
        depots.push(bus);
    }
    shop.ready().await;
    let question = || Message::new("stock.wanted").value("article 12");
    let pieces = |answer: &Message| {
        answer.map_value.as_ref().and_then(|map| map.get_i32("pieces").ok()).unwrap_or_default()
    };

    let first = shop.request_first(question(), Duration::from_secs(10)).await?;
    println!("first: {} has {} pieces", first.sender, pieces(&first));

    for answer in shop.request_all(question(), depots.len(), Duration::from_secs(10)).await? {
        println!("all:   {} has {} pieces", answer.sender, pieces(&answer));
    }

    let mut answers = shop.request_stream(question(), Duration::from_millis(500)).await?;
    while let Some(answer) = answers.next().await {
        let answer = answer?;
        println!("as it comes: {} has {} pieces", answer.sender, pieces(&answer));
    }
    for bus in depots.iter().chain([&shop]) {
        bus.shutdown().await;
    }
    Ok(())
}
