//! A relay before a server whose replies lack what the Rust driver insists on.
//!
//! PoppyDB 6.3.6 sends `$clusterTime` without `signature`, and the driver (3.9) takes such a reply for none. The relay
//! adds the empty signature that servers without access control send. Everything else passes as it is. Where it is
//! used it stands before every target, so that its cost is the same for all.

use crate::raw::{first_host, frame_length};
use anyhow::{Result, ensure};
use rockdove_documents::{Doc, DocBuilder, Owned};
use rockdove_mongo::codec::{self, Flags, Header, MSG_HEAD_BYTES, op_code};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A running relay; ends when dropped.
pub struct Relay {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Relay {
    /// Stands before the first host of a connection string.
    pub async fn start(uri: &str) -> Result<Relay> {
        ensure!(uri.starts_with("mongodb://"), "a relay needs a mongodb:// address");
        let host = first_host(uri);
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
        let mut frame = vec![0; Header::SIZE];
        from.read_exact(&mut frame).await?;
        frame.resize(frame_length(&frame)?, 0);
        from.read_exact(&mut frame[Header::SIZE..]).await?;
        to.write_all(&signed(&frame).unwrap_or(frame)).await?;
    }
}

/// The reply with its cluster time signed; `None` if there is nothing to add.
fn signed(frame: &[u8]) -> Option<Vec<u8>> {
    let header = Header::decode(frame).filter(|header| header.op_code == op_code::MSG)?;
    let body = Doc::new(frame.get(MSG_HEAD_BYTES..)?.to_vec().into()).ok()?;
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
    let mut reply = Vec::with_capacity(MSG_HEAD_BYTES + body.len());
    codec::encode_msg(&mut reply, header.request_id, header.response_to, Flags::NONE, &body);
    // The flags: the answers to an exhaust request say that more come.
    reply[Header::SIZE..MSG_HEAD_BYTES].copy_from_slice(&frame[Header::SIZE..MSG_HEAD_BYTES]);
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
        let mut bare = frame(&doc! { "ok": 1.0, "$clusterTime": { "clusterTime": time }, "z": 1 });
        bare[Header::SIZE] = 2; // more to come
        let reply = signed(&bare).unwrap();
        assert_eq!(reply[Header::SIZE..MSG_HEAD_BYTES], bare[Header::SIZE..MSG_HEAD_BYTES]);
        assert_eq!(u32::from_le_bytes(reply[..4].try_into().unwrap()) as usize, reply.len());
        let body = Doc::new(reply[MSG_HEAD_BYTES..].to_vec().into()).unwrap();
        assert!(body.raw().iter().map(|element| element.key()).eq(["ok", "$clusterTime", "z"]));
        let Some(Value::Document(time)) = body.get("$clusterTime") else { panic!("{body:?}") };
        assert!(time.get("clusterTime").is_some() && time.get("signature").is_some());
        assert_eq!(signed(&reply), None);
        assert_eq!(signed(&frame(&doc! { "ok": 1.0 })), None);
        assert_eq!(signed(&bare[..20]), None);
    }
}
