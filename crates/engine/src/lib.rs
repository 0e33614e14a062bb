//! The engine: one sequencer, collections with snapshots, indexes, retry records and the change feed.
//!
//! ```text
//!  write, define ─► sequencer ─► effects ─► log ─► new state, visible at once ─► change feed, replies
//!  find, watch   ─► a snapshot, beside the sequencer
//! ```
//!
//! Start with [`Engine::open`]. Reads ([`Engine::find`], [`Engine::snapshot`]) run on the caller's thread and
//! never wait for a write; writes ([`Engine::write`], [`Engine::find_and_modify`], [`Engine::define`]) are
//! futures that end when their acknowledgement level is reached.
//!
//! Invariants
//! * The log decides: what it does not hold did not happen, what it holds is what a restart arrives at.
//! * Readers see committed states only, each whole.
//! * A document is stored, logged, delivered and returned as the same shared bytes.
//!
//! This crate never knows a protocol or a socket.
#![forbid(unsafe_code)]

#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod checkpoint;
#[cfg(not(fuzzing))]
mod checkpoint;
mod clock;
mod collection;
mod command;
mod definition;
#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod effects;
#[cfg(not(fuzzing))]
mod effects;
mod engine;
mod event;
mod feed;
mod find;
mod groups;
mod index;
mod keeper;
mod limits;
mod log;
mod multi;
mod namespace;
mod open;
mod parts;
mod plan;
mod prebuilt;
mod rarely;
mod risk;
mod scan;
mod sequencer;
mod sessions;
mod sighting;
mod state;
mod statement;
mod term;
mod tree;
mod trie;

pub use clock::Clock;
pub use collection::{Capped, Collection, CollectionInfo, View as ViewDefinition};
pub use command::*;
pub use effects::{copied_into_log, describe_batch};
pub use engine::{Engine, Options, StartAt};
pub use event::{BeforeChange, FullDocument, Token, TokenKind, View};
pub use feed::{Batch, ChangeStream, FeedStats};
pub use find::{Documents, Explained, Find, Query, count, explain, find_in};
pub use groups::{EventPipeline, Scope};
pub use index::{ID_INDEX, Index, IndexSpec};
pub use limits::Memory;
pub use namespace::{NAMESPACE_BYTES_MAX, Namespace, check_database};
pub use open::{OpenError, Report};
pub use rarely::Rarely;
pub use risk::{RiskField, RiskFieldError, RiskStatus, VALUE_MAX};
pub use rockdove_journal::{
    Cap, Cause, Exposure, Level, OpenError as JournalOpenError, RiskPolicy, Scope as RiskScope, SyncPolicy,
    UnknownLevel,
};
pub use state::State;
pub use statement::DOCUMENT_BYTES_MAX;
