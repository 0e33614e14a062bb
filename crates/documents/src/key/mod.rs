//! Index keys: bytes that order like the values they stand for.

mod encode;
mod pattern;
mod set;

pub use encode::{Class, END, encode_key, encode_key_with, hash_value, invert};
pub use pattern::{Direction, KeyBuf, KeyField, KeyPattern};
pub use set::{KeySet, Row, RowBuf};
