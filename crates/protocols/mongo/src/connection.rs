//! The async shell of one connection: bytes from the socket to the decoder, replies back.
//!
//! Invariants
//! * Requests are carried out one after the other, in their order; so are their replies.
//! * While a request waits (for data, for a change of topology, for the disk) the socket is still read, so that
//!   a client that leaves is noticed; what it has sent by then is still carried out, but a waiting read ends.
//! * Received bytes that wait are bounded by one message; replies that wait are bounded by one reply and
//!   [`OUT_BYTES`]. A client that does not read blocks only itself, and is closed after [`WRITE_STALL`].

use crate::busy_poll::Pace;
use crate::client::Client;
use crate::codec::{self, Decoder, Flags, FrameError, MESSAGE_BYTES_MAX, Request};
use crate::commands;
use crate::dispatch::{Answer, More, dispatch};
use crate::shared::{Counters, Shared};
use crate::topology::{Role, State};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// A connection on which nothing is sent or waited for is closed after this.
pub const IDLE: Duration = Duration::from_secs(300);
/// A connection whose client takes no byte of a reply for this long is closed.
pub const WRITE_STALL: Duration = Duration::from_secs(60);
/// While the server stops, how long a quiet connection stays to be told so.
const STOPPING_GRACE: Duration = Duration::from_millis(300);
/// Replies are gathered up to this size while further requests are there already.
const OUT_BYTES: usize = 256 * 1024;
/// From this size on a reply's document is written from where it was built, without a copy.
const DIRECT_BYTES: usize = 64 * 1024;

/// Why a connection ended.
#[derive(Debug, Error)]
pub enum Ended {
    /// The client closed it, or the network did.
    #[error("closed by the client: {0}")]
    Io(#[from] std::io::Error),
    /// The client sent what is not the protocol.
    #[error("not understood: {0}")]
    Frame(#[from] FrameError),
    /// Nothing was sent for too long.
    #[error("idle for {} s", IDLE.as_secs())]
    Idle,
    /// The client did not take its replies.
    #[error("no reply taken for {} s", WRITE_STALL.as_secs())]
    Stalled,
    /// A fail point or the server's end asked for it.
    #[error("closed by the server")]
    Closed,
}

/// Serves a TCP connection until it ends. Stops when the server does (see `Topology::stop`).
pub async fn serve_connection(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY could not be set");
    }
    serve(stream, peer, shared).await;
}

/// Serves any byte stream, such as TLS over TCP, until it ends.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, peer: SocketAddr, shared: Arc<Shared>) {
    let connected = shared.clients.connect(peer);
    let id = connected.client.id;
    tracing::debug!(id, %peer, "connected");
    let (decoder, out) = (Decoder::new(), Vec::with_capacity(4096));
    let topology = shared.topology.watch();
    let mut connection = Connection {
        stream,
        decoder,
        out,
        at_end: false,
        shared: &shared,
        topology,
        client: &connected.client,
        pace: Pace::default(),
    };
    match connection.run().await {
        Ok(()) => tracing::debug!(id, "disconnected"),
        Err(Ended::Frame(reason @ FrameError::Tls)) => tracing::warn!(id, %peer, "{reason}"),
        Err(reason @ Ended::Frame(_)) => tracing::info!(id, %peer, %reason, "connection closed"),
        Err(reason) => tracing::debug!(id, %reason, "connection closed"),
    }
}

struct Connection<'s, S> {
    stream: S,
    decoder: Decoder,
    /// Encoded replies, not yet written.
    out: Vec<u8>,
    /// Whether the client will send nothing more.
    at_end: bool,
    shared: &'s Arc<Shared>,
    /// Tells when the server stops.
    topology: watch::Receiver<State>,
    client: &'s Client,
    pace: Pace,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<'_, S> {
    async fn run(&mut self) -> Result<(), Ended> {
        loop {
            match self.decoder.next_request() {
                Ok(Some(request)) => {
                    self.answer(&request).await?;
                    if self.out.len() >= OUT_BYTES {
                        self.flush().await?;
                    }
                }
                Ok(None) => {
                    self.flush().await?;
                    if self.at_end {
                        return Ok(());
                    }
                    self.receive().await?;
                }
                Err(error) => {
                    self.flush().await?;
                    return Err(error.into());
                }
            }
        }
    }

    /// Reads what comes, as long as the server runs.
    async fn receive(&mut self) -> Result<(), Ended> {
        let busy_poll = &self.shared.busy_poll;
        if let Some(received) = self.pace.look(busy_poll, &mut self.stream, self.decoder.room()).await {
            self.note_received(received?);
            return Ok(());
        }
        let stopping = async {
            let _ = self.topology.wait_for(|state| state.role == Role::Stopping).await; // the sender lives in `shared`
            tokio::time::sleep(STOPPING_GRACE).await;
        };
        let received = tokio::select! {
            biased;
            received = timeout(IDLE, self.stream.read_buf(self.decoder.room())) => received,
            () = stopping => return Err(Ended::Closed),
        };
        self.pace.woke(busy_poll, Instant::now());
        self.note_received(received.map_err(|_| Ended::Idle)??);
        Ok(())
    }

    fn note_received(&mut self, count: usize) {
        self.at_end |= count == 0;
        Counters::add(&self.shared.counters.bytes_in, count as u64);
    }

    /// Carries a request out and puts its replies into `out`.
    async fn answer(&mut self, request: &Request) -> Result<(), Ended> {
        Counters::add(&self.shared.counters.requests, 1);
        let (mut response_to, mut previous) = (request.id, None);
        loop {
            let (body, failed, more) = match self.carry_out(request, previous.take()).await? {
                Answer::Reply { body, failed, more } => (body, failed, more),
                Answer::Nothing => return Ok(()),
                Answer::Close => {
                    self.flush().await?;
                    return Err(Ended::Closed);
                }
            };
            let more = more.filter(|_| request.flags.exhaust_allowed() && !self.at_end);
            if !request.flags.more_to_come() {
                response_to = self.put(request, response_to, body, failed, more.is_some()).await?;
            }
            if self.shared.topology.state().role == Role::Stopping {
                self.flush().await?;
                return Err(Ended::Closed);
            }
            match more {
                Some(state) => previous = Some(state),
                None => return Ok(()),
            }
            self.flush().await?;
        }
    }

    /// Runs a request's command; reads the socket while the command waits.
    async fn carry_out(&mut self, request: &Request, previous: Option<More>) -> Result<Answer, Ended> {
        let mut work = pin!(dispatch(self.shared, self.client, request, previous));
        if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
            return Ok(answer);
        }
        self.flush().await?;
        let gives_up = commands::changes_nothing(request);
        loop {
            let may_read = !self.at_end && self.decoder.buffered() < MESSAGE_BYTES_MAX;
            tokio::select! {
                biased;
                answer = &mut work => return Ok(answer),
                received = self.stream.read_buf(self.decoder.room()), if may_read => {
                    self.note_received(received.unwrap_or(0)); // a broken socket is one that ended
                    if self.at_end && gives_up {
                        return Ok(Answer::Nothing);
                    }
                }
            }
        }
    }

    /// Encodes a reply; returns its number.
    async fn put(
        &mut self,
        request: &Request,
        response_to: i32,
        body: Vec<u8>,
        failed: bool,
        more: bool,
    ) -> Result<i32, Ended> {
        let id = self.shared.next_reply_id();
        let flags = if more { Flags::MORE_TO_COME } else { Flags::NONE };
        if request.is_query {
            codec::encode_reply(&mut self.out, id, response_to, failed, &body);
        } else if let Some(compressor) = request.compressor {
            let mut plain = Vec::new();
            codec::encode_msg(&mut plain, id, response_to, flags, &body);
            codec::encode_compressed(&mut self.out, &plain, compressor)?;
        } else if body.len() >= DIRECT_BYTES {
            codec::encode_msg_head(&mut self.out, id, response_to, flags, body.len());
            self.flush().await?;
            write_all(&mut self.stream, &body).await?;
            Counters::add(&self.shared.counters.bytes_out, body.len() as u64);
        } else {
            codec::encode_msg(&mut self.out, id, response_to, flags, &body);
        }
        Ok(id)
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        if self.out.is_empty() {
            return Ok(());
        }
        write_all(&mut self.stream, &self.out).await?;
        Counters::add(&self.shared.counters.bytes_out, self.out.len() as u64);
        self.out.clear();
        self.out.shrink_to(OUT_BYTES);
        Ok(())
    }
}

/// Writes everything; every step must get on within [`WRITE_STALL`].
async fn write_all<S: AsyncWrite + Unpin>(stream: &mut S, mut bytes: &[u8]) -> Result<(), Ended> {
    while !bytes.is_empty() {
        let written = timeout(WRITE_STALL, stream.write(bytes)).await.map_err(|_| Ended::Stalled)??;
        if written == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into());
        }
        bytes = &bytes[written..];
    }
    timeout(WRITE_STALL, stream.flush()).await.map_err(|_| Ended::Stalled)??;
    Ok(())
}
