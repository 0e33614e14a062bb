//! Taking messages one after the other: what `sub` and `reply` have in common.

use crate::connection::timeout;
use crate::exit::Exit;
use crate::signals;
use clap::Args;
use rockdove::Incomer;
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;

/// When to end.
#[derive(Args, Clone, Debug)]
pub struct Limits {
    /// End after this many messages
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End when this time, 1ms or more, is over; with --count that is a failure
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    pub timeout: Option<Duration>,
}

/// Gives what `next` yields to `each`, until the limits are reached, there is nothing more, or a signal comes. The
/// time counts from now, and a message that is being worked on is not ended by it.
pub async fn follow(
    limits: &Limits,
    mut next: impl AsyncFnMut() -> Option<Incomer>,
    mut each: impl AsyncFnMut(Incomer) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let deadline = limits.timeout.map(|timeout| Instant::now() + timeout);
    let mut ended = pin!(signals::ended());
    let mut left = limits.count;
    while left != Some(0) {
        tokio::select! {
            message = next() => {
                let Some(message) = message else { return Ok(Exit::Done) };
                tokio::select! {
                    done = each(message) => done?,
                    exit = &mut ended => return Ok(exit?),
                }
                left = left.map(|left| left - 1);
            }
            () = until(deadline) => {
                let Some(left) = left else { return Ok(Exit::Done) };
                eprintln!("rockdove: the time is over; {left} did not come");
                return Ok(Exit::Absent);
            }
            exit = &mut ended => return Ok(exit?),
        }
    }
    Ok(Exit::Done)
}

/// Sleeps until the deadline; for ever without one.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
