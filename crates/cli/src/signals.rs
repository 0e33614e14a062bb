//! Waiting for the user, or the system, to end the command.

use crate::exit::Exit;

/// The number of the signal of Ctrl-C.
pub const INTERRUPT: u8 = 2;
/// The number of the signal that asks a process to end.
pub const TERMINATE: u8 = 15;

/// Returns when the command is interrupted or terminated.
#[cfg(unix)]
pub async fn ended() -> std::io::Result<Exit> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| Exit::Signal(INTERRUPT)),
        _ = terminate.recv() => Ok(Exit::Signal(TERMINATE)),
    }
}

/// Returns when the command is interrupted.
#[cfg(not(unix))]
pub async fn ended() -> std::io::Result<Exit> {
    tokio::signal::ctrl_c().await.map(|()| Exit::Signal(INTERRUPT))
}
