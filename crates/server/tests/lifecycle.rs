//! Starting and stopping: what an operator meets first.

use rockdove_documents::{Doc, Value, doc};
use rockdove_mongo::codec::{Flags, Header, MSG_HEAD_BYTES, encode_msg};
use rockdove_server::{Config, Server, StartError, Storage};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn config(storage: Storage) -> Config {
    Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), storage, ..Config::default() }
}

fn folder(dir: &Path) -> Storage {
    Storage::Folder(dir.join("data"))
}

async fn stop(server: Server) {
    tokio::time::timeout(Duration::from_secs(20), server.stop())
        .await
        .expect("the server stops in time")
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_named() {
    let first = Server::start(config(Storage::Memory)).await.unwrap();
    let listen = first.address();
    let second =
        Server::start(Config { listen, ..config(Storage::Memory) }).await.err().expect("the port is taken");
    assert!(matches!(second, StartError::AddressTaken(address) if address == listen));
    assert!(second.to_string().contains("--listen"), "{second}");
    stop(first).await;
}

/// The only worker is busy: what is told to end does not do so at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_port_is_free_after_the_stop() {
    let first = Server::start(config(Storage::Memory)).await.unwrap();
    let listen = first.address();
    let (begun, begins) = tokio::sync::oneshot::channel();
    tokio::spawn(async {
        begun.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    });
    begins.await.unwrap();
    stop(first).await;
    let again = Server::start(Config { listen, ..config(Storage::Memory) }).await.unwrap();
    stop(again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_in_use_is_named_and_free_again_after_the_stop() {
    let dir = tempfile::tempdir().unwrap();
    let first = Server::start(config(folder(dir.path()))).await.unwrap();
    let second = Server::start(config(folder(dir.path()))).await.err().expect("the folder is in use");
    assert!(matches!(second, StartError::FolderInUse(_)), "{second}");
    assert!(second.to_string().contains("--data-dir"), "{second}");
    stop(first).await;
    let again = Server::start(config(folder(dir.path()))).await.unwrap();
    assert!(again.recovery().journal.expect("there is a journal").clean);
    stop(again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let refused =
        Server::start(config(Storage::Folder(file.join("data")))).await.err().expect("there is a file");
    assert!(refused.to_string().contains("file/data"), "{refused}");
}

async fn send(stream: &mut TcpStream, command: &Doc) {
    let mut bytes = Vec::new();
    encode_msg(&mut bytes, 1, 0, Flags::NONE, command.bytes());
    stream.write_all(&bytes).await.unwrap();
}

async fn receive(stream: &mut TcpStream) -> Doc {
    let mut head = [0; MSG_HEAD_BYTES];
    stream.read_exact(&mut head).await.unwrap();
    let length = Header::decode(&head).unwrap().length as usize;
    let mut body = vec![0; length - head.len()];
    stream.read_exact(&mut body).await.unwrap();
    Doc::new(body.into()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_does_not_end_is_cut() {
    let drain = Duration::from_millis(50);
    let server =
        Server::start(Config { test_commands: true, drain, ..config(Storage::Memory) }).await.unwrap();
    let (mut busy, mut other) = (
        TcpStream::connect(server.address()).await.unwrap(),
        TcpStream::connect(server.address()).await.unwrap(),
    );
    let block = doc! {
        "configureFailPoint": "failCommand", "mode": "alwaysOn", "$db": "admin",
        "data": { "failCommands": ["ping"], "blockConnection": true, "blockTimeMS": 120_000 },
    };
    send(&mut other, &block).await;
    receive(&mut other).await;
    send(&mut busy, &doc! { "ping": 1, "$db": "admin" }).await;
    // Each setting tells how often the one before has struck.
    let blocked = async {
        loop {
            send(&mut other, &block).await;
            if receive(&mut other).await.get("count").and_then(|count| count.as_integer()) == Some(1) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), blocked).await.expect("the ping is blocked");
    stop(server).await;
    let end = tokio::time::timeout(Duration::from_secs(20), busy.read(&mut [0; 1])).await;
    assert!(matches!(end.expect("the connection is cut"), Ok(0) | Err(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_interrupted_out_has_left_goes_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let left = "tmp.agg_out.1fb4be1c-9a3f-4b8e-8d5b-8a1c2ab16f0f";
    let names = ["mine", "tmp.agg_out.mine", left];
    for is_first in [true, false] {
        let server = Server::start(config(folder(dir.path()))).await.unwrap();
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        for name in names.into_iter().filter(|_| is_first) {
            send(&mut stream, &doc! { "create": name, "$db": "db" }).await;
            receive(&mut stream).await;
        }
        send(&mut stream, &doc! { "listCollections": 1, "nameOnly": true, "$db": "db" }).await;
        let listed = format!("{:?}", receive(&mut stream).await);
        for name in names {
            assert_eq!(listed.contains(name), is_first || name != left, "{listed}");
        }
        drop(stream);
        stop(server).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_connections_are_closed_and_counted() {
    let server = Server::start(Config { connections_max: 1, ..config(Storage::Memory) }).await.unwrap();
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    send(&mut stream, &doc! { "ping": 1, "$db": "admin" }).await;
    receive(&mut stream).await;
    let mut second = TcpStream::connect(server.address()).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(20), second.read(&mut [0; 1])).await;
    assert!(matches!(end.expect("it is closed"), Ok(0) | Err(_)));
    send(&mut stream, &doc! { "serverStatus": 1, "$db": "admin" }).await;
    let status = receive(&mut stream).await;
    let connections = status.get("connections").and_then(|found| found.as_document()).unwrap();
    let count = |name| connections.get(name).and_then(|count| count.as_integer());
    assert_eq!((count("current"), count("available"), count("rejected")), (Some(1), Some(0), Some(1)));
    drop(stream);
    stop(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_never_sent_to_an_address_that_stands_for_all() {
    let has_v6 = std::net::TcpListener::bind("[::]:0").is_ok();
    for listen in [Some("0.0.0.0:0"), has_v6.then_some("[::]:0")].into_iter().flatten() {
        let listen = listen.parse::<SocketAddr>().unwrap();
        let server = Server::start(Config { listen, ..config(Storage::Memory) }).await.unwrap();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.address().port())).await.unwrap();
        send(&mut stream, &doc! { "hello": 1, "$db": "admin" }).await;
        let hello = receive(&mut stream).await;
        let Some(Value::String(me)) = hello.get("me") else { panic!("{hello:?}") };
        assert!(me.ends_with(&format!(":{}", server.address().port())), "{me}");
        assert!(!me.starts_with("0.0.0.0:") && !me.starts_with("[::]:"), "{me}");
        drop(stream);
        stop(server).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_election_id_grows_with_each_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut last: Option<Vec<u8>> = None;
    for _ in 0..3 {
        let server = Server::start(config(folder(dir.path()))).await.unwrap();
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        send(&mut stream, &doc! { "hello": 1, "$db": "admin" }).await;
        let hello = receive(&mut stream).await;
        let Some(Value::ObjectId(id)) = hello.get("electionId") else { panic!("{hello:?}") };
        assert!(last.is_none_or(|last| last[..] < id.0[..]));
        last = Some(id.0.to_vec());
        drop(stream);
        stop(server).await;
    }
}
