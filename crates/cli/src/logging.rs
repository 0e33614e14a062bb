//! Logs on standard error, filtered by `ROCKDOVE_LOG` (for example `info`, or `rockdove=debug,warn`).

use anyhow::{Context, anyhow};
use std::env::{self, VarError};
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// The variable that holds the filter.
pub const VARIABLE: &str = "ROCKDOVE_LOG";

/// Starts logging with this filter.
pub fn init(filter: &str) -> anyhow::Result<()> {
    // The error's text has its causes in it.
    let parsed = EnvFilter::builder().parse(filter);
    let filter =
        parsed.map_err(|error| anyhow!("the log filter {filter:?} of --log or {VARIABLE}: {error}"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none())
        .with_target(false)
        .init();
    Ok(())
}

/// The same with the variable's filter, or without the variable with `default`.
pub fn init_or(default: &str) -> anyhow::Result<()> {
    match env::var(VARIABLE) {
        Ok(filter) => init(&filter),
        Err(VarError::NotPresent) => init(default),
        Err(error @ VarError::NotUnicode(_)) => Err(error).context(VARIABLE),
    }
}
