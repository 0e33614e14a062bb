//! BSON documents as pure data: reading, building, comparing, matching, updating, aggregating.
//!
//! A document is a checked, shared slice of bytes ([`Doc`]); everything else is a view of it ([`RawDoc`],
//! [`Value`]) or a value computed from it ([`Owned`]). Nothing is decoded into a tree.
//!
//! Invariants
//! * A [`Doc`] made from outside bytes has passed [`check()`]: lengths, terminators, UTF-8 and nesting hold.
//! * Reading a view never panics and never allocates, whatever the bytes.
//! * Field order, duplicate names and every BSON type survive untouched.
//!
//! This crate never does I/O, never reads a clock (time is an argument) and knows no collection.
#![forbid(unsafe_code)]

mod build;
mod check;
mod doc;
mod error;
mod scanned;
mod types;
mod value;

pub use build::DocBuilder;
pub use check::{MAX_DEPTH, Malformed, check, check_depth};
pub use doc::{Doc, Element, Iter, RawDoc};
pub use error::{Code, Error, Result, code};
pub use scanned::Scanned;
pub use show::show;
pub use types::{Decimal128, ObjectId, Timestamp};
pub use value::{Kind, Owned, ToValue, Value};

#[cfg(test)]
mod arbitrary;
mod wide;

pub mod collation;
pub mod compare;
pub mod decimal;
pub mod filter;
pub mod interrupt;
pub mod key;
pub mod number;
pub mod path;
pub mod projection;
pub mod sort;

mod arith;
mod show;

pub mod diff;
pub mod expr;
pub mod pipeline;
pub mod update;
