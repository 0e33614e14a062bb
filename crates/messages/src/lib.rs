//! The message document of the bus, its queue layouts and settings: pure types and naming rules, shared by
//! everything that speaks Morphium's messaging protocol.
//!
//! * [`Message`], [`Lock`], [`Participant`]: the three document types, read tolerantly and written exactly.
//! * [`Layout`], [`Names`]: which collection holds what.
//! * [`IndexDefinition`]: the indexes those collections need, names included.
//! * [`Settings`]: every knob with its default.
//! * [`filter`], [`pipeline`]: queries, updates and change stream stages as plain documents.
//! * [`status`]: the built-in status question and its answer.
//!
//! Invariants
//! * What is written here is readable by a Java node: 21 fields, their BSON types, `name` equal to `topic`.
//! * What a Java node (or an older one) wrote is readable here; what is not readable is an error for that one
//!   document, never a panic.
//!
//! This crate does no I/O and reads no clock: times are arguments, in milliseconds since the Unix epoch.
#![forbid(unsafe_code)]

mod answer;
mod decode;
mod encode;
pub mod filter;
mod id;
mod indexes;
mod layout;
mod lock;
mod message;
mod participant;
pub mod pipeline;
mod prepare;
mod settings;
pub mod status;

pub use answer::{ANSWER_PRIORITY_STEP, AUTO_ANSWER_TEXT, REJECTED_TEXT};
pub use decode::{DecodeError, Head};
pub use id::MessageId;
pub use indexes::{IndexDefinition, lock_indexes, message_indexes};
pub use layout::{Layout, NameError, Names, UnknownLayout, camel, clean};
pub use lock::{LOCK_MS_WITHOUT_EXPIRY, Lock, lock_expiry};
pub use message::{CLASS_NAME, DEFAULT_PRIORITY, Message, SELF};
pub use participant::{Implementation, Participant};
pub use prepare::{PrepareError, Sending, prepare};
pub use settings::{ImplementationCheck, RegistryCheck, Settings, SettingsError};
