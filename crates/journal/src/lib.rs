//! The append-only log, useful alone as a persisted queue: segments, checksums, group commit, acknowledgement levels,
//! value at risk, tailers, named positions, roll cycles, retention, recovery, inspection and repair.
//!
//! ```text
//!  Writer, Appender ──write──► active segment ──► written ──► Tailer, Reader (any number, any thread)
//!        │ full, or its cycle is over │                       LogView, for other processes
//!        └──► next segment        syncer: fdatasync, oldest file first ──► synced ──► Ticket: acknowledged
//! ```
//!
//! A log is a folder. It has one [`Writer`], any number of cheap [`Journal`] handles, [`Appender`]s, [`Tailer`]s and,
//! in other processes, [`LogView`]s. An entry is one append: an opaque payload under an index that grows, beginning at
//! 1, with a time that never goes back, a value and a level. Index 0 means "none".
//!
//! ```
//! use std::time::Duration;
//! use rockdove_journal::{Journal, Level, Options, Terms};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let (journal, mut writer, _recovery) = Journal::open(dir.path(), Options::default())?;
//! let terms = Terms { time_ns: 1_796_065_200_000_000_000, value: 0, level: Level::Sync };
//! let mut ticket = writer.append_on(&[b"hello ", b"world"], terms)?;
//! assert_eq!(ticket.wait(Duration::from_secs(10))?.level, Level::Sync);
//!
//! let mut reader = journal.named_tailer("example")?;
//! assert_eq!(reader.next_entry()?.map(|entry| entry.payload.to_vec()), Some(b"hello world".to_vec()));
//! reader.commit()?;
//! writer.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! The examples `queue`, `value_at_risk` and `other_process` show more of it.
//!
//! Invariants
//! * `synced <= written`; both only grow. `synced` moves only after a sync that began after the entry was
//!   written has returned without error, and never past an entry whose predecessors are not on disk.
//! * What is read is what was appended: each frame carries checksums bound to the log, to the file and to the
//!   frame before it. A frame that fails them is an error with the file's name and the offset, never data. What is
//!   borrowed while somebody takes the file away has an exception: [`EntryRef::payload`].
//! * An acknowledgement says what was reached, and follows from the marks alone ([`acknowledge`]). With a hard cap the
//!   value of what was acknowledged at [`Level::Risk`] and is not safe never passes it.
//! * Opening cuts only what was never reported as synced, keeps a copy of what it cut, and says so in
//!   [`Recovery`]. Damage below the durable mark is an error and changes nothing on disk.
//! * The first failed sync ends the log: no later append or sync succeeds until it is opened anew.
//! * One writer at a time over all processes: the folder is locked by the kernel for as long as it lives. Readers
//!   need no lock and never make it wait.
//!
//! The log never interprets a payload, never reads a clock for an entry's time, and forgets only what its
//! [`Retention`] or its callers ([`Journal::drop_before`]) say.
//!
//! Where the file system lets it, the segment that is written is mapped, all of its blocks allocated before: an append is
//! a store in memory, and readers in the process read there. A full disk is an error of the append that needs the next
//! segment, never a signal. A mapped page that is gone, because somebody shortened the file or the disk cannot be read,
//! would be one: it is turned into an error too, and ends the log. For that the first log that is opened installs a handler
//! of SIGBUS; faults elsewhere it passes on to the one that was there before. SIGXFSZ, the signal of a process whose files may
//! not become larger, is ignored unless somebody has it: the append is refused as on a full disk.
//!
//! The files are described in `docs/format/segment.md`, `journal-state.md` and `journal-cursor.md`; which test holds
//! which rule in `docs/log-proof.md`.
#![deny(unsafe_code)]

mod ack;
mod checksum;
mod codec;
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
mod map;
mod options;
mod prepare;
mod reader;
mod recover;
mod repair;
mod retention;
mod risk;
mod scan;
mod secrecy;
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
pub use codec::{Codec, Compression, Key, KeyError};
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
pub use writer::{Appender, BatchError, CommitError, Payload, Terms, Ticket, Writer};
