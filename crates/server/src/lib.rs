//! The Rockdove server: configuration, listener, wiring, lifecycle.
//!
//! ```text
//! Server::start ─► engine (opens, recovers) ─► listener ─► one task a connection (rockdove-mongo)
//! Server::stop  ─► clients are told ─► connections end ─► engine closes its log
//! ```
//!
//! Holds no logic that could live in a part.
#![forbid(unsafe_code)]

mod config;
mod server;

pub use config::{Config, Personality, Storage};
pub use rockdove_engine::{Cap, RiskField, RiskPolicy, SyncPolicy, VALUE_MAX};
pub use server::{Server, StartError};
