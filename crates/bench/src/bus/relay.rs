//! A relay before a server whose replies lack what the Rust driver insists on.
//!
//! PoppyDB 6.3.6 sends `$clusterTime` without `signature`, and the driver (3.9) takes such a reply for none. The relay
//! adds the empty signature that servers without access control send. Everything else passes as it is. Where it is
//! used it stands before every target, so that its cost is the same for all.

use anyhow::{Context, Result, ensure};
use rockdove_documents::{Doc, DocBuilder, Owned};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The longest message of the protocol.
const MESSAGE_BYTES_MAX: usize = 48_000_000 + 16 * 1024;
/// Header, flags, kind of section.
const BODY: usize = 16 + 4 + 1;
/// The number of `OP_MSG`.
const OP_MSG: u32 = 2013;

/// A running relay; ends when dropped.
pub struct Relay {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Relay {
    /// Stands before the first host of a connection string.
    pub async fn start(uri: &str) -> Result<Relay> {
        let hosts = uri.strip_prefix("mongodb://").context("a relay needs a mongodb:// address")?;
        let host = hosts.split(['/', ',', '?']).next().unwrap_or_default();
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:27017") };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let host = host.clone();
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(&host).await {
                        join(client, server).await;
                    }
                });
            }
        });
        Ok(Relay { address, task })
    }

    /// The connection string of the relay; the members that the server names are not followed.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true", self.address)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes bytes both ways until one side ends.
async fn join(client: TcpStream, server: TcpStream) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true)); // slower without, not wrong
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        _ = replies(from_server, to_client) => {}
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Result<()> {
    loop {
        let mut head = [0; 4];
        from.read_exact(&mut head).await?;
        let length = u32::from_le_bytes(head) as usize;
        ensure!((16..=MESSAGE_BYTES_MAX).contains(&length), "a frame of {length} bytes");
        let mut frame = vec![0; length];
        frame[..4].copy_from_slice(&head);
        from.read_exact(&mut frame[4..]).await?;
        to.write_all(&signed(&frame).unwrap_or(frame)).await?;
    }
}

/// The reply with its cluster time signed; `None` if there is nothing to add.
fn signed(frame: &[u8]) -> Option<Vec<u8>> {
    let op_code = u32::from_le_bytes(frame.get(12..16)?.try_into().ok()?);
    let body = Doc::new(frame.get(BODY..)?.to_vec().into()).ok().filter(|_| op_code == OP_MSG)?;
    let time = body.get("$clusterTime")?.as_document().filter(|time| time.get("signature").is_none())?;
    let mut out = DocBuilder::with_capacity(body.bytes().len() + 64);
    for element in body.raw() {
        if element.key() != "$clusterTime" {
            out.append_element(element);
            continue;
        }
        out.start_document("$clusterTime").append_all(time);
        out.start_document("signature");
        out.append("hash", Owned::Binary { subtype: 0, bytes: vec![0; 20].into() }).append("keyId", 0i64);
        out.end().end();
    }
    let body = out.into_vec();
    let mut reply = frame[..BODY].to_vec();
    reply.extend_from_slice(&body);
    let length = reply.len() as u32;
    reply[..4].copy_from_slice(&length.to_le_bytes());
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::frame;
    use rockdove_documents::{Timestamp, Value, doc};

    #[test]
    fn a_signature_is_added_where_it_is_missing_only() {
        let time = Timestamp { time: 1, increment: 2 };
        let bare = frame(&doc! { "ok": 1.0, "$clusterTime": { "clusterTime": time }, "z": 1 });
        let reply = signed(&bare).unwrap();
        assert_eq!(u32::from_le_bytes(reply[..4].try_into().unwrap()) as usize, reply.len());
        let body = Doc::new(reply[BODY..].to_vec().into()).unwrap();
        assert!(body.raw().iter().map(|element| element.key()).eq(["ok", "$clusterTime", "z"]));
        let Some(Value::Document(time)) = body.get("$clusterTime") else { panic!("{body:?}") };
        assert!(time.get("clusterTime").is_some() && time.get("signature").is_some());
        assert_eq!(signed(&reply), None);
        assert_eq!(signed(&frame(&doc! { "ok": 1.0 })), None);
        assert_eq!(signed(&bare[..20]), None);
    }
}
