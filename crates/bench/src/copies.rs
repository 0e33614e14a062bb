//! How often the bytes of a message are copied on their way through the server.
//!
//! Counted by where the bytes lie: the addresses that the server reads into and writes from, and those of the
//! documents that it hands out. A copy that changes no address does not exist, and one that is made on the way
//! shows where the bytes end up. What the operating system copies at a socket or a file is not counted.

use crate::raw::{frame, frame_length};
use crate::report::{Report, Target};
use anyhow::{Context as _, Result, ensure};
use rockdove_documents::{Doc, DocBuilder, RawDoc, Scanned, Value, doc};
use rockdove_engine::{
    ChangeStream, Engine, EventPipeline, Namespace, Options, Scope, StartAt, View, copied_into_log,
};
use rockdove_mongo::busy_poll::BusyPoll;
use rockdove_mongo::codec;
use rockdove_mongo::connection::serve;
use rockdove_mongo::shared::Shared;
use rockdove_mongo::topology::Identity;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

/// Longest wait for anything the server does.
const LIMIT: Duration = Duration::from_secs(10);

/// Counts the copies of a usual message and of a large one.
pub async fn count() -> Result<Report> {
    let mut report = Report::default();
    for (name, bytes, moves) in [("500 B", 440, 0.0), ("200 KB", 200_000, 2.0)] {
        let counted =
            tokio::time::timeout(LIMIT, count_one(bytes)).await.context("the server does not answer")??;
        let small = f64::from(u8::from(bytes < 1000));
        // Small messages are copied where that is cheaper than to keep their buffer or to write twice.
        let figures = [
            ("socket to store", counted.store, moves + small),
            ("store to log", counted.log, 0.0),
            ("store to event, all streams together", counted.event, 1.0),
            ("store to reply", counted.reply, 1.0 + small),
            ("event to reply", counted.event_reply, 1.0 + small),
        ];
        for (step, copies, limit) in figures {
            report.add(format!("copies of a {name} message: {step}"), copies, "x", Target::AtMost(limit));
        }
    }
    Ok(report)
}

/// Copied bytes in relation to the message's.
struct Copies {
    store: f64,
    log: f64,
    event: f64,
    reply: f64,
    event_reply: f64,
}

/// Lets everything through.
struct All;

impl EventPipeline for All {
    fn apply(&self, event: &Scanned<'_>) -> rockdove_documents::Result<Option<Doc>> {
        Ok(Some(event.doc().clone()))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

async fn count_one(payload: usize) -> Result<Copies> {
    let engine = Engine::open(Options::memory())?;
    let shared = Shared::new(Identity::default(), engine.clone(), BusyPoll::new(Duration::ZERO), vec![]);
    let mut client = Client::connect(shared);
    let message = doc! { "_id": 1, "value": "x".repeat(payload) };
    let ns = Namespace::new("bench", "copies")?;
    client.ask(&doc! { "create": "copies", "$db": "bench" }).await?;
    let mut streams = [watch(&engine, &ns, b"one")?, watch(&engine, &ns, b"other")?];
    let cursor = open_cursor(&mut client).await?;

    let mut insert = DocBuilder::new();
    insert.append("insert", "copies").append_docs("documents", std::slice::from_ref(&message));
    insert.append("$db", "bench");
    let reads = client.ask(&insert.finish()).await?.reads;
    let state = engine.snapshot();
    let stored =
        state.collection(&ns).and_then(|collection| collection.get(1)).context("it was not stored")?;
    let store = reads.copied(&message, address(stored.bytes()));
    let log = copied_into_log(stored);

    let [one, other] = &mut streams;
    let (one, other) = (next(one).await?, next(other).await?);
    let inner =
        one.get("fullDocument").and_then(|doc| doc.as_document()).context("no document in the event")?;
    let event = if lies_in(inner.bytes(), stored.bytes()) { 0 } else { inner.bytes().len() }
        + if lies_in(other.bytes(), one.bytes()) { 0 } else { other.bytes().len() };

    let found = client.ask(&doc! { "find": "copies", "$db": "bench" }).await?;
    let reply = found.writes.copied_for_reply(&message);
    let get_more = doc! { "getMore": cursor, "collection": "copies", "maxTimeMS": 5000, "$db": "bench" };
    let more = client.ask(&get_more).await?;
    ensure!(more.reply.bytes().len() > payload, "the event did not come: {:?}", more.reply);
    let event_reply = more.writes.copied_for_reply(&message);
    engine.close().await.map_err(anyhow::Error::msg)?;
    let part = |bytes: usize| bytes as f64 / message.bytes().len() as f64;
    Ok(Copies {
        store: part(store),
        log: part(log),
        event: part(event),
        reply: part(reply),
        event_reply: part(event_reply),
    })
}

fn watch(engine: &Engine, ns: &Namespace, stages: &'static [u8]) -> Result<ChangeStream> {
    let (scope, stages) = (Scope::Collection(ns.clone()), bytes::Bytes::from_static(stages));
    Ok(engine.watch(scope, View::default(), stages, Arc::new(All), StartAt::Now)?)
}

async fn next(stream: &mut ChangeStream) -> Result<Doc> {
    let events = stream.next(1, 1 << 20, LIMIT).await?.events;
    events.into_iter().next().context("the event did not come")
}

async fn open_cursor(client: &mut Client) -> Result<i64> {
    let mut command = DocBuilder::new();
    command.append("aggregate", "copies").start_array("pipeline").push(doc! { "$changeStream": {} }).end();
    command.append("cursor", RawDoc::empty()).append("$db", "bench");
    let reply = client.ask(&command.finish()).await?.reply;
    let id = reply.get("cursor").and_then(|cursor| cursor.as_document()).and_then(|cursor| cursor.get("id"));
    id.and_then(|id| id.as_integer()).context("no cursor")
}

fn address(bytes: &[u8]) -> usize {
    bytes.as_ptr() as usize
}

fn lies_in(part: &[u8], whole: &[u8]) -> bool {
    whole.as_ptr_range().contains(&part.as_ptr())
}

/// Pieces of memory, in the order in which the server used them: address and length.
#[derive(Debug, Default)]
struct Pieces(Vec<(usize, usize)>);

impl Pieces {
    /// For pieces that were read into: how many bytes of `message`, which is the end of what was read but for the
    /// last field, were moved until they lay at `stored`.
    fn copied(&self, message: &Doc, stored: usize) -> usize {
        let all: usize = self.0.iter().map(|piece| piece.1).sum();
        let length = message.bytes().len();
        // Behind the message: the array's end, the field `$db`, the command's end.
        let end = all - 1 - (1 + "$db".len() + 1 + 4 + "bench".len() + 1) - 1;
        let start = end - length;
        let (mut offset, mut copied, mut base) = (0, 0, None);
        for (address, count) in &self.0 {
            // Where the first byte of all lies if the buffer is still the same.
            let now = address.wrapping_sub(offset);
            if base.replace(now).is_some_and(|before| before != now) {
                copied += offset.min(end).saturating_sub(start);
            }
            offset += count;
        }
        copied + if base.map(|base| base.wrapping_add(start)) == Some(stored) { 0 } else { length }
    }

    /// How many buffers there were: pieces that follow each other in memory are one.
    fn buffers(&self) -> usize {
        let follow = self.0.windows(2).filter(|pair| pair[0].0 + pair[0].1 == pair[1].0).count();
        self.0.len() - follow
    }

    /// For the pieces that a reply with `message` was written from: it is put together from its documents once;
    /// where its head is in the same buffer, it was copied behind it.
    fn copied_for_reply(&self, message: &Doc) -> usize {
        let times = if self.buffers() == 1 { 2 } else { 1 };
        times * message.bytes().len()
    }
}

/// What the server used for one exchange.
struct Exchange {
    reply: Doc,
    reads: Pieces,
    writes: Pieces,
}

/// What was read into and what was written from.
type Noted = Mutex<(Pieces, Pieces)>;

fn lock(noted: &Noted) -> MutexGuard<'_, (Pieces, Pieces)> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server's side of a connection; notes which memory it uses.
struct Tap {
    stream: DuplexStream,
    pieces: Arc<Noted>,
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let new = &buffer.filled()[before..];
        if !new.is_empty() {
            lock(&self.pieces).0.0.push((address(new), new.len()));
        }
        result
    }
}

impl AsyncWrite for Tap {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Held until it is noted, because the client sees the bytes at once.
        let pieces = self.pieces.clone();
        let mut pieces = lock(&pieces);
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &result {
            pieces.1.0.push((address(bytes), *count));
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A client that sends one message at a time.
struct Client {
    stream: DuplexStream,
    pieces: Arc<Noted>,
}

impl Client {
    fn connect(shared: Arc<Shared>) -> Client {
        let (stream, theirs) = tokio::io::duplex(64 << 10);
        let pieces = Arc::<Noted>::default();
        let tap = Tap { stream: theirs, pieces: pieces.clone() };
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        tokio::spawn(async move { serve(tap, peer, shared).await });
        Client { stream, pieces }
    }

    async fn ask(&mut self, command: &Doc) -> Result<Exchange> {
        self.stream.write_all(&frame(command)).await?;
        let mut head = [0; codec::MSG_HEAD_BYTES];
        self.stream.read_exact(&mut head).await?;
        let mut body = vec![0; frame_length(&head)?.checked_sub(head.len()).context("a short reply")?];
        self.stream.read_exact(&mut body).await?;
        let reply = Doc::new(body.into())?;
        ensure!(reply.get("ok") == Some(Value::Double(1.0)), "{reply:?}");
        let pieces = std::mem::take(&mut *lock(&self.pieces));
        Ok(Exchange { reply, reads: pieces.0, writes: pieces.1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_bytes_are_counted() {
        let message = doc! { "_id": 1 };
        let (length, behind) = (message.bytes().len(), 17);
        let reads = |pieces: &[(usize, usize)]| Pieces(pieces.to_vec());
        let whole = reads(&[(1000, 10 + length + behind)]);
        assert_eq!(whole.copied(&message, 1010), 0);
        assert_eq!(whole.copied(&message, 5000), length);
        let same = reads(&[(1000, 14), (1014, length + behind - 4)]);
        assert_eq!(same.copied(&message, 1010), 0);
        let moved = reads(&[(1000, 14), (2014, 6), (3020, length + behind - 10)]);
        assert_eq!(moved.copied(&message, 3010), 4 + 10);
        assert_eq!(reads(&[(1, 2), (3, 4), (9, 1)]).buffers(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_is_copied_no_more_than_intended() {
        let report = count().await.unwrap();
        assert!(report.figures().iter().all(|figure| figure.is_reached() == Some(true)), "\n{report}");
    }
}
