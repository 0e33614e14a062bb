//! Two nodes cache the same objects; who changes one tells the other.
//!
//! `cargo run -p rockdove --example cache [URI]`

#[path = "common/mod.rs"]
mod common;

use rockdove::CacheSync;
use std::convert::Infallible;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = common::Place::from_args()?;
    let (reader, writer) = (place.bus("reader").connect().await?, place.bus("writer").connect().await?);
    let (at_reader, at_writer) =
        (CacheSync::builder(&reader).attach().await?, CacheSync::builder(&writer).attach().await?);
    reader.ready().await;
    let names = at_reader.cache::<String>("shop.Customer", 100);
    let read = |name: &'static str| move || async move { Ok::<_, Infallible>(name.to_owned()) };
    println!("first:   {}", names.get_or_load("4711", read("Ada")).await?);
    println!("cached:  {}", names.get_or_load("4711", read("not read")).await?);
    at_writer.clear_records("shop.Customer", &["4711"], "store").await?;
    while names.get("4711").is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    println!("changed: {}", names.get_or_load("4711", read("Ada Lovelace")).await?);
    reader.shutdown().await;
    writer.shutdown().await;
    Ok(())
}
