//! Two servers with the same client, in turns: what a client of a bus does most, one connection each.
//!
//! The client is [`Raw`]: a driver's own work would hide what differs, and not every peer takes every driver.

use crate::bare::{Bare, Lengths};
use crate::message::message;
use crate::quantile::median;
use crate::raw::{Raw, cursor, first_host, frame};
use crate::report::{Report, Target};
use anyhow::{Context, Result, ensure};
use rockdove_documents::{Doc, DocBuilder, doc};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Exchanges before the measurement, on each server and round (a JVM needs some).
const WARM_UP: usize = 1500;
/// A round is shorter if it would take longer than this for the warm-up, and than this again for the measurement:
/// some peers need milliseconds for what others do in microseconds.
const ROUND_TIME_MAX: Duration = Duration::from_secs(4);
/// Rounds in which the servers take turns.
const ROUNDS: usize = 3;
const DATABASE: &str = "rockdove_bench";
const COLLECTION: &str = "compare";

/// One kind of exchange.
#[derive(Clone, Copy)]
enum Exchange {
    Insert,
    Find,
    Update,
    Event,
}

/// Measures `ours` against `theirs`; medians of the rounds' medians, as ratios, and what a server that does nothing would
/// reach. The client sleeps while it waits for a reply, as drivers do, or is `awake`.
pub fn servers(ours: &str, theirs: &str, exchanges: usize, awake: bool) -> Result<Report> {
    let (mut ours, mut theirs) =
        (Peer::connect(resolve(ours)?, awake)?, Peer::connect(resolve(theirs)?, awake)?);
    let mut report = Report::default();
    for (name, exchange, limit) in [
        ("insert", Exchange::Insert, 0.5),
        ("find by _id", Exchange::Find, 0.5),
        ("update by _id", Exchange::Update, 0.5),
        ("insert to change event", Exchange::Event, 1.0 / 3.0),
    ] {
        let (mut own, mut other, mut least) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            own.push(ours.median(exchange, exchanges)?);
            other.push(theirs.median(exchange, exchanges)?);
            let clients = match exchange {
                Exchange::Insert => 1,
                Exchange::Event => 2,
                Exchange::Find | Exchange::Update => 0, // what is found is no fixed reply
            };
            if clients > 0 {
                let bare = Bare::start(clients, ours.lengths)?;
                least.push(Peer::connect(bare.address(), awake)?.median(exchange, exchanges)?);
            }
        }
        let (own, other, least) = (median(own), median(other), median(least));
        report.add(format!("{name}: p50 ours"), own * 1e6, "us", Target::None);
        report.add(format!("{name}: p50 theirs"), other * 1e6, "us", Target::None);
        report.add(format!("{name}: p50 ours / theirs"), own / other, "x", Target::AtMost(limit));
        if least.is_finite() {
            report.add(
                format!("{name}: p50 of fixed replies (busy) / theirs"),
                least / other,
                "x",
                Target::None,
            );
            report.add(format!("{name}: p50 ours / fixed replies (busy)"), own / least, "x", Target::None);
        }
    }
    Ok(report)
}

/// A server, and what was done with it so far.
struct Peer {
    address: SocketAddr,
    awake: bool,
    connection: Raw,
    /// Documents inserted so far: the number of the next one.
    inserted: u64,
    /// Those of its last replies.
    lengths: Lengths,
}

impl Peer {
    fn connect(address: SocketAddr, awake: bool) -> Result<Peer> {
        let mut connection = greet(address, awake).with_context(|| format!("the server at {address}"))?;
        // A database that is not there may be an error, by the protocol; what must not stay is told by the inserts.
        connection.send(&frame(&doc! { "dropDatabase": 1, "$db": DATABASE }))?;
        connection.receive()?;
        Ok(Peer { address, awake, connection, inserted: 0, lengths: Lengths::default() })
    }

    fn next_document(&mut self) -> Doc {
        self.inserted += 1;
        message(self.inserted)
    }

    fn median(&mut self, exchange: Exchange, exchanges: usize) -> Result<f64> {
        let mut times = Vec::with_capacity(exchanges);
        let mut stream = match exchange {
            Exchange::Event => Some(Stream::open(self.address, self.awake)?),
            _ => None,
        };
        let begun = Instant::now();
        let mut warm = None;
        for n in 0.. {
            if warm.is_none() && (n >= WARM_UP || begun.elapsed() > ROUND_TIME_MAX) {
                warm = Some(Instant::now());
            }
            let enough = times.len() >= exchanges || warm.is_some_and(|warm| warm.elapsed() > ROUND_TIME_MAX);
            if enough && !times.is_empty() {
                break;
            }
            let document = self.next_document();
            let insert = insert(&document);
            let spent = match (exchange, &mut stream) {
                (Exchange::Event, Some(stream)) => {
                    stream.ask()?;
                    // So that the stream waits already, as it does when events come now and then.
                    self.connection.run(&doc! { "ping": 1, "$db": "admin" })?;
                    let started = Instant::now();
                    self.connection.send(&frame(&insert))?;
                    let spent = stream.answer(started)?;
                    self.connection.receive()?;
                    self.connection.good()?;
                    self.lengths =
                        Lengths { reply: self.connection.length(), event: stream.connection.length() };
                    spent
                }
                (Exchange::Insert, _) => {
                    let spent = self.timed(&insert)?.0;
                    self.lengths.reply = self.connection.length();
                    spent
                }
                (Exchange::Find, _) => {
                    self.connection.run(&insert)?;
                    let find = doc! {
                        "find": COLLECTION, "filter": { "_id": document.get("_id") }, "limit": 1,
                        "singleBatch": true, "$db": DATABASE,
                    };
                    let (spent, reply) = self.timed(&find)?;
                    // Not the whole document: not every peer keeps the order of fields.
                    let found = cursor(&reply)?.1;
                    let ids = found.iter().map(|found| found.get("_id"));
                    ensure!(ids.eq([document.get("_id")]), "another document was found: {reply:?}");
                    spent
                }
                (Exchange::Update, _) => {
                    self.connection.run(&insert)?;
                    let update = doc! {
                        "update": COLLECTION,
                        "updates": [{
                            "q": { "_id": document.get("_id") },
                            "u": { "$addToSet": { "processed_by": "me" } },
                        }],
                        "$db": DATABASE,
                    };
                    let (spent, reply) = self.timed(&update)?;
                    ensure!(reply.get("nModified").and_then(|n| n.as_integer()) == Some(1), "{reply:?}");
                    spent
                }
                (Exchange::Event, None) => unreachable!("opened above"),
            };
            if warm.is_some() {
                times.push(spent.as_secs_f64());
            }
        }
        Ok(median(times))
    }

    /// Carries out a command; from its first byte sent to the last of the reply received.
    fn timed(&mut self, command: &Doc) -> Result<(Duration, Doc)> {
        let frame = frame(command);
        let started = Instant::now();
        self.connection.send(&frame)?;
        self.connection.receive()?;
        let spent = started.elapsed();
        Ok((spent, self.connection.good()?))
    }
}

/// A change stream on a connection of its own.
struct Stream {
    connection: Raw,
    more: Vec<u8>,
}

impl Stream {
    fn open(address: SocketAddr, awake: bool) -> Result<Stream> {
        let mut connection = greet(address, awake)?;
        let watch = doc! {
            "aggregate": COLLECTION, "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": DATABASE,
        };
        let (id, _) = cursor(&connection.run(&watch)?)?;
        let more = doc! {
            "getMore": id, "collection": COLLECTION, "maxTimeMS": 10_000i64, "$db": DATABASE,
        };
        Ok(Stream { connection, more: frame(&more) })
    }

    /// Asks for the next events; the server answers when there are some.
    fn ask(&mut self) -> Result<()> {
        self.connection.send(&self.more)
    }

    /// Waits for them; the time from `started` to the last byte of them.
    fn answer(&mut self, started: Instant) -> Result<Duration> {
        loop {
            self.connection.receive()?;
            let spent = started.elapsed();
            if !cursor(&self.connection.good()?)?.1.is_empty() {
                return Ok(spent);
            }
            self.ask()?;
        }
    }
}

/// A connection after its handshake.
fn greet(address: SocketAddr, awake: bool) -> Result<Raw> {
    let mut connection = Raw::connect(address)?;
    if awake {
        connection.stay_awake()?;
    }
    connection.run(&doc! { "hello": 1, "$db": "admin" })?;
    Ok(connection)
}

fn insert(document: &Doc) -> Doc {
    let mut insert = DocBuilder::with_capacity(document.bytes().len() + 128);
    insert.append("insert", COLLECTION).append_docs("documents", [document]).append("$db", DATABASE);
    insert.finish()
}

fn resolve(uri: &str) -> Result<SocketAddr> {
    let host = first_host(uri);
    let mut found = host.to_socket_addrs().with_context(|| format!("the host of {uri}"))?;
    found.next().with_context(|| format!("{host} has no address"))
}
