//! A client that costs next to nothing: one connection that speaks `OP_MSG`, one request at a time, on the thread
//! that calls it.
//!
//! What it measures is the server and the socket, not a driver or a runtime; and it asks no more of a peer than the
//! protocol.

use anyhow::{Context, Result, bail, ensure};
use rockdove_documents::{Doc, Value};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No reply takes longer than this, unless something is wrong.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest message of the protocol.
const MESSAGE_BYTES_MAX: usize = 48_000_000 + 16 * 1024;
/// Length, request, response, kind.
const HEADER_BYTES: usize = 16;
/// The number of `OP_MSG`.
const OP_MSG: u32 = 2013;

/// A connection.
pub struct Raw {
    stream: TcpStream,
    reply: Vec<u8>,
}

impl Raw {
    /// Connects to `address`.
    pub fn connect(address: SocketAddr) -> Result<Raw> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Raw { stream, reply: Vec::new() })
    }

    /// Sends a frame.
    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        self.stream.write_all(frame).context("sending a request")
    }

    /// Receives a frame and keeps it.
    pub fn receive(&mut self) -> Result<()> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head).context("waiting for a reply")?;
        let length = u32::from_le_bytes(head) as usize;
        ensure!((HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&length), "a frame of {length} bytes");
        self.reply.resize(length - head.len(), 0);
        self.stream.read_exact(&mut self.reply).context("reading a reply")
    }

    /// The document of the frame received last.
    pub fn document(&self) -> Result<Doc> {
        const BODY: usize = HEADER_BYTES - 4 + 4 + 1; // the length was read before; flags; kind of section
        let bytes = self.reply.get(BODY..).context("a reply without a document")?;
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
    let length = HEADER_BYTES + 4 + 1 + command.bytes().len();
    let mut out = Vec::with_capacity(length);
    for word in [length as u32, 1, 0, OP_MSG, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.push(0);
    out.extend_from_slice(command.bytes());
    out
}
