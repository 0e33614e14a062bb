//! The MongoDB wire protocol: a sans-I/O codec and command core, and a thin async shell.
#![forbid(unsafe_code)]

pub mod client;
pub mod codec;
pub mod concern;
pub mod cursors;
pub mod errors;
pub mod failpoint;
pub mod hello;
pub mod options;
pub mod session;
pub mod topology;
