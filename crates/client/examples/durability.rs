//! Durability chosen for each message: at once, on disk, or by what would be lost with it.
//!
//! `cargo run -p rockdove --example durability [URI]`; without an address, on an engine in the process that may have 1000
//! acknowledged and not on disk.

use rockdove::{Bus, Embedded, EmbeddedOptions, Level, Message, RiskPolicy, SendOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let store = match std::env::args().nth(1) {
        Some(_) => None,
        None => {
            let risk = Some(RiskPolicy { total: Some(1000), ..RiskPolicy::default() });
            Some(Embedded::open_with(EmbeddedOptions { risk, ..EmbeddedOptions::stored_in(dir.path()) })?)
        }
    };
    let builder = match (&store, std::env::args().nth(1)) {
        (Some(store), _) => store.bus(),
        (None, uri) => Bus::builder(uri.unwrap_or_default()),
    };
    let bus = builder.sender_id("cashier").send_only().connect().await?;

    // A price will be replaced by the next one: who has it in the log may go on.
    let sent =
        bus.publish_with(Message::new("price").value("12.50"), SendOptions::new().ack(Level::Async)).await?;
    println!("price: {}", sent.ack);

    // An order must survive a power cut.
    let sent =
        bus.publish_with(Message::new("order").value("4711"), SendOptions::new().ack(Level::Sync)).await?;
    println!("order: {}", sent.ack);

    // Payments wait for the disk only where too much would be lost with it. A server without a risk policy, or another
    // server than Rockdove, may take a stricter level.
    for cents in [300, 600, 250, 5000] {
        let options = SendOptions::new().value(cents).or_stricter();
        let sent = bus.publish_with(Message::new("payment").value(cents.to_string()), options).await?;
        println!(
            "payment of {cents}: {}{}",
            sent.ack,
            if sent.degraded { ", on this node only" } else { "" }
        );
    }
    bus.shutdown().await;
    if let Some(store) = store {
        store.close().await?;
    }
    Ok(())
}
