//! The append-only log: segments, checksums, group commit, sync policies, recovery.
//!
//! ```text
//!  Writer::append ──pwrite──► active segment ──► written ──► Reader (any number, any thread)
//!        │ full                     │
//!        └──► next segment     syncer thread: fdatasync, oldest file first ──► synced
//! ```
//!
//! A log is a folder. It has one [`Writer`], any number of cheap [`Journal`] handles and any number of
//! [`Reader`]s. An entry is one append: an opaque payload under an index that grows by one, beginning at 1.
//! Index 0 means "none".
//!
//! Invariants
//! * `synced <= written`; both only grow. `synced` moves only after a sync that began after the entry was
//!   written has returned without error, and never past an entry whose predecessors are not on disk.
//! * What is read is what was appended: each frame carries checksums bound to the log, to the file and to the
//!   frame before it. A frame that fails them is an error with the file's name and the offset, never data.
//! * Opening cuts only what was never reported as synced, keeps a copy of what it cut, and says so in
//!   [`Recovery`]. Damage below the durable mark is an error and changes nothing on disk.
//! * The first failed sync ends the log: no later append or sync succeeds until it is opened anew.
//! * One process at a time: the folder is locked by the kernel for as long as the writer lives.
//!
//! The journal never interprets a payload, never decides what may be forgotten (callers say so with
//! [`Journal::drop_before`]) and never reads a clock for an entry's time.
//!
//! The files are described in `docs/format/segment.md` and `docs/format/journal-state.md`.
#![forbid(unsafe_code)]

mod ack;
mod checksum;
mod control;
mod cursor;
mod cycle;
pub mod disk;
mod error;
mod file;
mod frame;
mod inspect;
mod journal;
mod keeper;
mod options;
mod prepare;
mod reader;
mod recover;
mod repair;
mod retention;
mod risk;
mod scan;
mod seek;
mod segment;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod state;
mod sync;
mod tail;
#[cfg(test)]
mod tests;
mod view;
mod writer;

pub use ack::{Ack, Cluster, Follower, Level, UnknownLevel, Watermarks, acknowledge};
pub use control::Synced;
pub use cursor::{CURSOR_NAME_BYTES_MAX, CursorError, CursorPosition};
pub use cycle::{Cycle, CycleError, CycleLength};
pub use error::{AppendError, CloseError, Damage, DiskError, DropError, OpenError, ReadError, WaitError};
pub use inspect::{
    Finding, Inspection, RepairOptions, RepairReport, SegmentReport, Severity, inspect, repair,
};
pub use journal::{Health, Journal};
pub use options::{
    CycleChoice, Options, PAYLOAD_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SyncPolicy,
};
pub use reader::{Entry, Reader};
pub use recover::{Cut, Recovery};
pub use retention::{Released, Retention};
pub use risk::{Cap, Cause, Causes, Exposure, RiskPolicy, Scope};
pub use tail::{EntryRef, NamedTailer, Seek, Tailer, Visibility, WaitStrategy};
pub use view::LogView;
pub use writer::{Appender, BatchError, Payload, Terms, Ticket, Writer};
