//! A client that costs next to nothing: one connection that speaks `OP_MSG`, one request at a time, on the thread
//! that calls it.
//!
//! What it measures is the server and the socket, not a driver or a runtime; and it asks no more of a peer than the
//! protocol.

use anyhow::{Context, Result, bail};
use rockdove_documents::{Doc, Value};
use rockdove_mongo::codec::{self, Flags, Header, MESSAGE_BYTES_MAX, MSG_HEAD_BYTES};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// No reply takes longer than this, unless something is wrong.
const LIMIT: Duration = Duration::from_secs(60);

/// A connection.
pub struct Raw {
    stream: TcpStream,
    reply: Vec<u8>,
    /// Whether it looks for replies all the time instead of sleeping until there is one.
    awake: bool,
}

impl Raw {
    /// Connects to `address`.
    pub fn connect(address: SocketAddr) -> Result<Raw> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Raw { stream, reply: Vec::new(), awake: false })
    }

    /// From now on looks for replies all the time: what it takes to wake a thread up is not measured then, and that can be
    /// longer than all else, and different from one exchange to the next.
    pub fn stay_awake(&mut self) -> Result<()> {
        self.awake = true;
        Ok(self.stream.set_nonblocking(true)?)
    }

    /// Sends a frame.
    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        let mut rest = frame;
        let begun = Instant::now();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) => self.look_again(error, begun).context("sending a request")?,
            }
        }
        Ok(())
    }

    /// Receives a frame and keeps it.
    pub fn receive(&mut self) -> Result<()> {
        self.reply.resize(Header::SIZE, 0);
        self.fill(0).context("waiting for a reply")?;
        self.reply.resize(frame_length(&self.reply)?, 0);
        self.fill(Header::SIZE).context("reading a reply")
    }

    /// Reads until the reply is full from `at` on.
    fn fill(&mut self, mut at: usize) -> Result<()> {
        let begun = Instant::now();
        while at < self.reply.len() {
            match self.stream.read(&mut self.reply[at..]) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => at += count,
                Err(error) => self.look_again(error, begun)?,
            }
        }
        Ok(())
    }

    /// Whether the failed call is to be repeated.
    fn look_again(&self, error: std::io::Error, begun: Instant) -> Result<()> {
        let is_early = self.awake && error.kind() == ErrorKind::WouldBlock && begun.elapsed() < LIMIT;
        if is_early || error.kind() == ErrorKind::Interrupted { Ok(()) } else { Err(error.into()) }
    }

    /// The length of the frame received last.
    pub fn length(&self) -> usize {
        self.reply.len()
    }

    /// The document of the frame received last.
    pub fn document(&self) -> Result<Doc> {
        let bytes = self.reply.get(MSG_HEAD_BYTES..).context("a reply without a document")?;
        let length = bytes.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
        let bytes = bytes.get(..length).context("a reply cut short")?;
        Ok(Doc::new(bytes.to_vec().into())?)
    }

    /// The same, of a command that must have succeeded.
    pub fn good(&self) -> Result<Doc> {
        let reply = self.document()?;
        if reply.get("ok").and_then(|ok| ok.as_f64()) != Some(1.0) || reply.get("writeErrors").is_some() {
            bail!("the server refuses: {reply:?}");
        }
        Ok(reply)
    }

    /// Carries out a command that must succeed.
    pub fn run(&mut self, command: &Doc) -> Result<Doc> {
        self.send(&frame(command))?;
        self.receive()?;
        self.good().with_context(|| format!("{command:?}"))
    }
}

/// The documents of a cursor's reply, and its number.
pub fn cursor(reply: &Doc) -> Result<(i64, Vec<Doc>)> {
    let cursor =
        reply.get("cursor").and_then(|cursor| cursor.as_document()).context("a reply without a cursor")?;
    let batch =
        cursor.get("firstBatch").or_else(|| cursor.get("nextBatch")).and_then(|batch| batch.as_array());
    let documents = batch.into_iter().flat_map(|batch| batch.values()).filter_map(|value| match value {
        Value::Document(document) => Some(document.to_doc()),
        _ => None,
    });
    let documents = documents.collect();
    Ok((cursor.get("id").and_then(|id| id.as_integer()).context("a cursor without a number")?, documents))
}

/// An `OP_MSG` frame with one document.
pub fn frame(command: &Doc) -> Vec<u8> {
    let mut out = Vec::new();
    codec::encode_msg(&mut out, 1, 0, Flags::NONE, command.bytes());
    out
}

/// The length of the frame that begins with these bytes, its header included.
pub fn frame_length(bytes: &[u8]) -> Result<usize> {
    let header = Header::decode(bytes).context("no header")?;
    let length = usize::try_from(header.length).ok();
    let length = length.filter(|length| (Header::SIZE..=MESSAGE_BYTES_MAX).contains(length));
    length.with_context(|| format!("a frame of {} bytes", header.length))
}

/// `HOST:PORT` of the first host of a MongoDB connection string, or of what is written in its place.
pub fn first_host(uri: &str) -> String {
    let hosts = uri.strip_prefix("mongodb://").unwrap_or(uri);
    let host = hosts.split(['/', ',', '?']).next().unwrap_or_default();
    if host.contains(':') { host.to_owned() } else { format!("{host}:27017") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_counts() {
        for (uri, host) in [
            ("mongodb://a:1,b:2/db?x=y", "a:1"),
            ("mongodb://a/?x=y", "a:27017"),
            ("a", "a:27017"),
            ("a:5", "a:5"),
        ] {
            assert_eq!(first_host(uri), host, "{uri}");
        }
    }

    #[test]
    fn a_frame_has_a_length_of_the_protocol() {
        let header = |length| Header { length, request_id: 1, response_to: 0, op_code: 0 }.encode();
        assert_eq!(frame_length(&header(16)).unwrap(), 16);
        for wrong in [-1, 0, 15, MESSAGE_BYTES_MAX as i32 + 1] {
            assert!(frame_length(&header(wrong)).is_err(), "{wrong}");
        }
        assert!(frame_length(&header(16)[..15]).is_err());
    }
}
