//! Benchmarks: what the engine, the server and the bus cost, as ratios against a limit or a peer in the same run.
//!
//! Every figure is printed with what it is compared to; absolute times of a shared machine mean little.
#![forbid(unsafe_code)]

pub mod bus;
pub mod chart;
pub mod compare;
pub mod copies;
pub mod engine;
pub mod log;
pub mod raw;
pub mod report;
pub mod streams;
pub mod wire;

mod bare;
mod message;
mod quantile;

pub use report::{Figure, Report};
