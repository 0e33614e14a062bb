//! The Rockdove messaging API: topics, broadcast, exclusive, directed, request/reply.
//!
//! ```no_run
//! use rockdove::{Bus, Message};
//! use std::time::Duration;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let bus = Bus::builder("mongodb://localhost/shop").sender_id("shop-1").connect().await?;
//! bus.subscribe("stock.wanted", |request| async move {
//!     let article = request.value.as_deref().unwrap_or("?");
//!     Ok(request.derive_answer().value(format!("3 pieces of {article}")))
//! })
//! .await?;
//! bus.ready().await;
//! let answer = bus.request_first(Message::new("stock.wanted").value("4711"), Duration::from_secs(5)).await?;
//! println!("{:?}", answer.value);
//! bus.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! The library speaks Morphium's messaging protocol, so Rust and Java nodes share a queue: on Rockdove, or on any
//! MongoDB-compatible server with change streams (or without, by polling).
//!
//! What a node may rely on
//! * Broadcast: every running node with a listener gets a message once, as long as the message lives.
//! * Exclusive: one node processes it. It is claimed and marked before the listener runs; a listener that fails
//!   gives it back; a node that dies while its listener runs does not (at most once from then on).
//! * Answers: each reaches the caller that waits for it once, before anything else is written.
//! * Order: priority, then age, per node and collection, when the bus is [`sequential`](BusBuilder::sequential); otherwise none.
//!
//! A queue has one of three layouts ([`Layout`]), which all its nodes use; the guarantees are the same in each. In the
//! MultiCollection and DualChannel layouts a directed message is one copy per recipient, so each recipient of an
//! exclusive one processes it.
//!
//! Limits: 10 000 messages queued per lane (then polls take over), 100 listener calls at a
//! time, 10 000 waiting requests, 1024 unread answers per request; see [`Settings`].
#![forbid(unsafe_code)]

mod ack;
pub mod backend;
mod bus;
mod cache;
mod clock;
mod core;
pub mod doctor;
mod driver;
mod embedded;
mod error;
mod incoming;
mod lane;
mod lanes;
mod listen;
mod mailbox;
pub mod migrate;
mod node;
mod participants;
mod phase;
mod queue;
mod registry;
mod request;
mod requests;
mod send;
mod status;
mod streams;
pub mod top;
mod trouble;
mod waiters;

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub use ack::{SendOptions, Sent};
pub use bson;
pub use bus::{Bus, BusBuilder};
pub use cache::{Cache, CacheSync, CacheSyncBuilder, CacheTarget, Clearing};
pub use driver::{DEFAULT_DATABASE, DriverBackend};
pub use embedded::Embedded;
pub use error::{ConnectError, LookError, ReadError, RequestError, SendError, SendManyError, SubscribeError};
pub use incoming::{Incomer, Incoming};
pub use listen::{Delivery, HandlerError, Reject, Reply, Resolution, SubscribeOptions, Subscription};
pub use registry::KnownNode;
pub use request::Answers;
pub use rockdove_engine::{
    Level, Options as EmbeddedOptions, RiskField, RiskPolicy, SyncPolicy, UnknownLevel,
};
pub use rockdove_messages::{
    DecodeError, Implementation, ImplementationCheck, Layout, Message, MessageId, NameError, Participant,
    PrepareError, RegistryCheck, Settings, SettingsError, UnknownLayout, status::Report,
};
