//! The MongoDB wire protocol: a sans-I/O codec and command core, and a thin async shell.
#![forbid(unsafe_code)]

pub mod codec;
