//! The MongoDB wire protocol: a sans-I/O codec and command core, and a thin async shell.
//!
//! ```text
//! bytes ─► codec ─► dispatch (session, fail points, concerns) ─► commands ─► engine
//! bytes ◄─ codec ◄─ reply envelope ◄──────────────────────────── documents ◄─┘
//! ```
//!
//! A server makes one [`shared::Shared`] over an engine, spawns [`shared::Shared::sweep`], and gives every
//! accepted socket to [`connection::serve_connection`]. To stop, it calls [`topology::Topology::stop`]: clients
//! are told (error 91) and disconnected.
//!
//! Invariants
//! * A request is answered, or its connection is closed; never silence.
//! * What is not supported is an error that names it.
//! * One connection's requests are carried out in order; connections wait for each other only in the engine.
//!
//! This crate never stores a document and never decides about durability: that is the engine's part.
#![forbid(unsafe_code)]

pub mod busy_poll;
pub mod client;
pub mod codec;
pub mod commands;
pub mod concern;
pub mod connection;
pub mod cursors;
pub mod dispatch;
pub mod errors;
pub mod failpoint;
pub mod hello;
pub mod options;
pub mod session;
pub mod shared;
pub mod snapshots;
pub mod topology;
