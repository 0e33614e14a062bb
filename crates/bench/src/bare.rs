//! The least that a server could do: fixed replies to the exchanges of [`compare`](crate::compare), on a thread that looks
//! for requests all the time. What a client measures with it is the client, the sockets and the machine.

use crate::raw::{frame, frame_length};
use anyhow::Result;
use rockdove_documents::{Doc, doc};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const NUMBER: i64 = 1;

/// How long its frames are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lengths {
    /// A reply to an insert.
    pub reply: usize,
    /// A batch with one event.
    pub event: usize,
}

/// A server that runs until it is dropped.
pub struct Bare {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Bare {
    /// Starts it on a free port, for so many clients.
    pub fn start(clients: usize, lengths: Lengths) -> Result<Bare> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let (address, stop) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("bare".into())
            .spawn(move || serve(&listener, clients, lengths, &stopped))?;
        Ok(Bare { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // What went wrong there the client has met.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    /// It has asked for events.
    waits: bool,
}

/// A frame of so many bytes.
fn padded(bytes: usize, with: impl Fn(&str) -> Doc) -> Vec<u8> {
    let least = frame(&with("")).len();
    frame(&with(&"x".repeat(bytes.saturating_sub(least))))
}

fn serve(listener: &TcpListener, clients_max: usize, lengths: Lengths, stop: &AtomicBool) -> Result<()> {
    let reply = padded(lengths.reply, |pad| doc! { "n": 1, "ok": 1.0, "pad": pad });
    let cursor = frame(&doc! { "cursor": { "id": NUMBER, "firstBatch": [] }, "ok": 1.0 });
    let batch = |pad: &str| doc! { "cursor": { "id": NUMBER, "nextBatch": [{ "pad": pad }] }, "ok": 1.0 };
    let event = padded(lengths.event, batch);
    let mut clients: Vec<Client> = Vec::new();
    let mut part = vec![0; 16 << 10];
    while !stop.load(Ordering::Relaxed) {
        if clients.len() < clients_max
            && let Ok((stream, _)) = listener.accept()
        {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            clients.push(Client { stream, received: Vec::new(), waits: false });
        }
        let (mut wrote, mut gone) = (None, None);
        for (place, client) in clients.iter_mut().enumerate() {
            match client.stream.read(&mut part) {
                Ok(0) => gone = Some(place),
                Ok(count) => client.received.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            }
            while client.received.len() >= 16 && client.received.len() >= frame_length(&client.received)? {
                let rest = client.received.split_off(frame_length(&client.received)?);
                let request = std::mem::replace(&mut client.received, rest);
                // The name of the command follows the heads of message and document and its type.
                match &request[26..] {
                    name if name.starts_with(b"getMore\0") => client.waits = true,
                    name if name.starts_with(b"aggregate\0") => client.stream.write_all(&cursor)?,
                    name if name.starts_with(b"insert\0") => wrote = Some(place),
                    _ => client.stream.write_all(&reply)?,
                }
            }
        }
        if let Some(writer) = wrote {
            // What is waited for first.
            for client in clients.iter_mut().filter(|client| client.waits) {
                client.stream.write_all(&event)?;
                client.waits = false;
            }
            clients[writer].stream.write_all(&reply)?;
        }
        gone.map(|place| clients.remove(place));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{Raw, cursor};

    #[test]
    fn it_replies_as_a_server_would() {
        let lengths = Lengths { reply: 170, event: 1073 };
        let bare = Bare::start(2, lengths).unwrap();
        let (mut writer, mut stream) =
            (Raw::connect(bare.address()).unwrap(), Raw::connect(bare.address()).unwrap());
        writer.run(&doc! { "hello": 1 }).unwrap();
        let opened = stream.run(&doc! { "aggregate": "c", "cursor": {} }).unwrap();
        assert_eq!(cursor(&opened).unwrap(), (NUMBER, vec![]));
        for _ in 0..3 {
            stream.send(&frame(&doc! { "getMore": NUMBER, "collection": "c" })).unwrap();
            writer.run(&doc! { "ping": 1 }).unwrap();
            let reply = writer.run(&doc! { "insert": "c" }).unwrap();
            assert_eq!(frame(&reply).len(), lengths.reply);
            stream.receive().unwrap();
            let event = stream.good().unwrap();
            assert_eq!((cursor(&event).unwrap().1.len(), frame(&event).len()), (1, lengths.event));
        }
    }
}
