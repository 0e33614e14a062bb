//! Micro benchmarks: what the engine and the server cost, as ratios against a limit or a peer in the same run.
//!
//! Every figure is printed with what it is compared to; absolute times of a shared machine mean little.
#![forbid(unsafe_code)]

pub mod compare;
pub mod engine;
pub mod log;
pub mod report;
pub mod streams;
pub mod wire;

mod message;

pub use report::{Figure, Report};
