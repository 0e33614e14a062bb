//! Two servers with the same driver, one connection each, measured in turns: what a client of a bus does most.

use crate::report::{Report, Target};
use anyhow::{Context, Result};
use bson::{Document, doc};
use futures_util::StreamExt;
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection};
use std::time::{Duration, Instant};

/// Exchanges before the measurement, on each server (a JVM needs some).
const WARM_UP: usize = 1500;
/// Rounds in which the servers take turns.
const ROUNDS: usize = 3;

/// The collection used on one server.
struct Peer {
    collection: Collection<Document>,
}

/// One kind of exchange.
#[derive(Clone, Copy)]
enum Exchange {
    Insert,
    Find,
    Update,
    Event,
}

/// Measures `ours` against `theirs`; medians of the rounds' medians, as ratios.
pub async fn servers(ours: &str, theirs: &str, exchanges: usize) -> Result<Report> {
    let (ours, theirs) = (Peer::connect(ours).await?, Peer::connect(theirs).await?);
    let mut report = Report::default();
    for (name, exchange, limit) in [
        ("insert", Exchange::Insert, 0.5),
        ("find by _id", Exchange::Find, 0.5),
        ("update by _id", Exchange::Update, 0.5),
        ("insert to change event", Exchange::Event, 1.0 / 3.0),
    ] {
        let (mut own, mut other) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            own.push(ours.median(exchange, exchanges).await?);
            other.push(theirs.median(exchange, exchanges).await?);
        }
        let (own, other) = (middle(own), middle(other));
        report.add(format!("{name}: p50 ours"), own * 1e6, "us", Target::None);
        report.add(format!("{name}: p50 theirs"), other * 1e6, "us", Target::None);
        report.add(format!("{name}: p50 ours / theirs"), own / other, "x", Target::AtMost(limit));
    }
    Ok(report)
}

impl Peer {
    async fn connect(uri: &str) -> Result<Peer> {
        let mut options = ClientOptions::parse(uri).await.with_context(|| format!("the URI {uri}"))?;
        options.max_pool_size = Some(4);
        // Retryable writes are off for both: not every peer carries them out once.
        options.retry_writes = Some(false);
        let collection = Client::with_options(options)?.database("bench").collection("compare");
        collection.drop().await.with_context(|| format!("the server at {uri}"))?;
        Ok(Peer { collection })
    }

    async fn median(&self, exchange: Exchange, exchanges: usize) -> Result<f64> {
        let mut times = Vec::with_capacity(exchanges);
        let mut events = match exchange {
            Exchange::Event => Some(self.collection.watch().await?),
            _ => None,
        };
        for n in 0..(WARM_UP + exchanges) as i64 {
            let id = bson::oid::ObjectId::new();
            let document = doc! { "_id": id, "topic": "orders.created", "value": "x".repeat(300), "n": n, "processed_by": [] };
            if !matches!(exchange, Exchange::Insert | Exchange::Event) {
                self.collection.insert_one(&document).await?;
            }
            let started = Instant::now();
            match exchange {
                Exchange::Insert => drop(self.collection.insert_one(document).await?),
                Exchange::Find => {
                    drop(self.collection.find_one(doc! { "_id": id }).await?.context("a document is gone")?)
                }
                Exchange::Update => {
                    let update = doc! { "$addToSet": { "processed_by": "me" } };
                    self.collection.update_one(doc! { "_id": id }, update).await?;
                }
                Exchange::Event => {
                    self.collection.insert_one(document).await?;
                    let events = events.as_mut().context("no stream")?;
                    let event = tokio::time::timeout(Duration::from_secs(30), events.next()).await;
                    event.context("no event in 30 s")?.context("the stream ended")??;
                }
            }
            if n >= WARM_UP as i64 {
                times.push(started.elapsed().as_secs_f64());
            }
        }
        Ok(middle(times))
    }
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
