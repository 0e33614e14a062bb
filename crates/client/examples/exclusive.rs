//! Work is shared: each exclusive message is processed by one node, and tried again if that fails.
//!
//! `cargo run -p rockdove --example exclusive [URI]`

#[path = "common/mod.rs"]
mod common;

use rockdove::{HandlerError, Message, Reject};
use std::time::Duration;
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = common::Place::from_args()?;
    let office = place.bus("office").connect().await?;
    let (printed, mut printing) = mpsc::channel(16);
    let mut workers = Vec::new();
    for id in ["printer-1", "printer-2"] {
        let bus = place.bus(id).connect().await?;
        let printed = printed.clone();
        bus.subscribe("invoice.print", move |invoice| {
            let printed = printed.clone();
            async move {
                let number: u32 = invoice.value.as_deref().unwrap_or_default().parse()?;
                if id == "printer-1" && number.is_multiple_of(3) {
                    println!("{id} has no paper for {number}");
                    return Err::<(), HandlerError>(Reject::new("no paper").into());
                }
                println!("{id} printed {number}");
                Ok(printed.send(number).await?)
            }
        })
        .await?;
        bus.ready().await;
        workers.push(bus);
    }

    let invoice = |number: u32| {
        let message = Message::new("invoice.print").value(number.to_string()).exclusive(true);
        message.never_expires().delete_after_processing(Duration::ZERO)
    };
    office.send_many((1..=10).map(invoice).collect()).await?;

    for _ in 1..=10 {
        tokio::time::timeout(Duration::from_secs(30), printing.recv()).await?;
    }
    for bus in workers.iter().chain([&office]) {
        bus.shutdown().await;
    }
    Ok(())
}
