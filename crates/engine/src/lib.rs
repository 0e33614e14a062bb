//! The sequencer and the state: collections, indexes, sessions, change feed.
