//! Index keys: bytes that order like the values they stand for.

mod encode;
mod pattern;

pub use encode::{Class, END, encode_key, encode_key_descending, encode_key_with, hash_value, invert};
pub use pattern::{Direction, Fields, KeyBuf, KeyField, KeyPattern};
