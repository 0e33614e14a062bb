//! The sequencer and the state: collections, indexes, sessions, change feed.
#![forbid(unsafe_code)]

mod tree;
mod trie;
