//! Load profiles, micro benchmarks and their reports.
