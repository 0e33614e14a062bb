//! A client that speaks raw messages, and a server over an engine in memory, joined by a pipe in memory.
#![allow(dead_code, reason = "each test file uses its part")]

use rockdove_documents::{Doc, Value};
use rockdove_engine::{Engine, Options};
use rockdove_mongo::busy_poll::{self, BusyPoll};
use rockdove_mongo::client::Client;
use rockdove_mongo::codec::{self, Flags, Header};
use rockdove_mongo::connection::serve;
use rockdove_mongo::shared::Shared;
use rockdove_mongo::topology::Identity;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// No answer takes longer than this, unless something is wrong.
const LIMIT: Duration = Duration::from_secs(10);

pub fn server() -> Arc<Shared> {
    server_as(Identity { test_commands: true, ..Identity::default() })
}

pub fn server_as(identity: Identity) -> Arc<Shared> {
    let engine = Engine::open(Options::memory()).expect("memory opens");
    Shared::new(identity, engine, BusyPoll::new(busy_poll::WINDOW), vec!["test".into()])
}

/// Comes back once a client's command waits. The tests' runtime has one thread: who is seen running has let go of it.
pub async fn until_waits(shared: &Shared, command: &str) {
    let runs = |client: &Client| {
        let operation = client.running();
        operation.is_some_and(|running| running.command.raw().iter().next().unwrap().key() == command)
    };
    let seen = async {
        while !shared.clients.list().iter().any(|client| runs(client)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, seen).await.unwrap_or_else(|_| panic!("{command} never waits"));
}

/// A message from the server.
#[derive(Debug)]
pub struct Message {
    pub header: Header,
    pub flags: u32,
    pub doc: Doc,
}

pub struct Peer {
    pub stream: DuplexStream,
    next_id: i32,
}

impl Peer {
    pub fn connect(shared: &Arc<Shared>) -> Peer {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(serve(theirs, "127.0.0.1:9".parse().expect("an address"), shared.clone()));
        Peer { stream: ours, next_id: 1 }
    }

    /// Sends a command with these OP_MSG flags; returns the message's number.
    pub async fn send_with(&mut self, flags: u32, command: &Doc) -> i32 {
        let mut bytes = Vec::new();
        codec::encode_msg(&mut bytes, self.next_id, 0, Flags::NONE, command.bytes());
        bytes[16..20].copy_from_slice(&flags.to_le_bytes());
        self.stream.write_all(&bytes).await.expect("the server reads");
        self.next_id += 1;
        self.next_id - 1
    }

    pub async fn send(&mut self, command: &Doc) -> i32 {
        self.send_with(0, command).await
    }

    /// The next message; `None` if the server closed the connection.
    pub async fn receive(&mut self) -> Option<Message> {
        tokio::time::timeout(LIMIT, self.read()).await.expect("an answer in time")
    }

    async fn read(&mut self) -> Option<Message> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).await.ok()?;
        let header = Header::decode(&head)?;
        let mut rest = vec![0; header.length as usize - 16];
        self.stream.read_exact(&mut rest).await.ok()?;
        let (flags, body) = match header.op_code {
            codec::op_code::MSG => (u32::from_le_bytes(rest[..4].try_into().ok()?), rest.split_off(5)),
            codec::op_code::REPLY => (u32::from_le_bytes(rest[..4].try_into().ok()?), rest.split_off(20)),
            _ => (0, rest),
        };
        let doc = match header.op_code {
            codec::op_code::COMPRESSED => Doc::empty(),
            _ => Doc::new_within(body.into(), 120).expect("replies are well formed"),
        };
        Some(Message { header, flags, doc })
    }

    /// Sends a command and returns its reply.
    pub async fn run(&mut self, command: &Doc) -> Doc {
        let id = self.send(command).await;
        let message = self.receive().await.expect("the connection stays");
        assert_eq!(message.header.response_to, id);
        message.doc
    }

    /// The same for a command that must succeed.
    pub async fn good(&mut self, command: &Doc) -> Doc {
        let reply = self.run(command).await;
        assert_eq!(reply.get("ok"), Some(Value::Double(1.0)), "{command:?}: {reply:?}");
        reply
    }

    /// The error code of a command that must fail.
    pub async fn code(&mut self, command: &Doc) -> i32 {
        let reply = self.run(command).await;
        assert_eq!(reply.get("ok"), Some(Value::Double(0.0)), "{command:?}: {reply:?}");
        number(&reply, "code") as i32
    }
}

pub fn number(doc: &Doc, field: &str) -> i64 {
    doc.get(field)
        .and_then(|value| value.as_integer())
        .unwrap_or_else(|| panic!("no number {field} in {doc:?}"))
}

/// The id and the documents of a reply with a cursor.
pub fn cursor(reply: &Doc) -> (i64, Vec<Doc>) {
    let cursor = reply.get("cursor").and_then(|cursor| cursor.as_document()).expect("a cursor");
    let batch = cursor.get("firstBatch").or(cursor.get("nextBatch")).and_then(|batch| batch.as_array());
    let docs = batch.expect("a batch").values().map(|doc| doc.as_document().expect("a document").to_doc());
    (cursor.get("id").and_then(|id| id.as_integer()).expect("an id"), docs.collect())
}
