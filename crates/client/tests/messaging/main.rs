//! The messaging library on a database in memory that can fail on demand.

mod cache;
mod doctor;
mod fake;
mod faults;
mod layouts;
mod matching;
mod migrate;
mod patterns;
mod registry;
mod simulation;
mod top;
