//! Logs on standard error, filtered by `ROCKDOVE_LOG` (for example `info`, or `rockdove=debug,warn`).

use std::io;
use tracing_subscriber::EnvFilter;

/// The variable that holds the filter.
const VARIABLE: &str = "ROCKDOVE_LOG";

/// Starts logging; without the variable, at `default`.
pub fn init(default: &str) {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}
