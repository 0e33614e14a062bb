//! Starting and stopping: what an operator meets first.

use rockdove_server::{Config, Server, StartError, Storage};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

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
