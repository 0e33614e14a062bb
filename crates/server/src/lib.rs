//! The Rockdove server: configuration, listeners, wiring, lifecycle.
