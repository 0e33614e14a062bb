//! Waiting for the user, or the system, to end the command.

use crate::exit::Exit;
use std::time::Duration;

/// The number of the signal of Ctrl-C.
pub const INTERRUPT: u8 = 2;
/// The number of the signal that asks a process to end.
pub const TERMINATE: u8 = 15;

/// After this time it is said that the command is still at work, and how to leave at once.
const SAID_AFTER: Duration = Duration::from_millis(500);

/// Returns when the command is interrupted or terminated. The next signal after the hint ends the process at once. What comes
/// before it is the same one again: terminals, shells and wrappers each send theirs.
pub async fn ended() -> std::io::Result<Exit> {
    let exit = asked().await?;
    tokio::spawn(leave_at_next());
    Ok(exit)
}

/// Says, after a while, that the command is still at work, and ends the process with the next signal.
async fn leave_at_next() {
    tokio::time::sleep(SAID_AFTER).await;
    let say = async {
        eprintln!("rockdove: still leaving; Ctrl-C again ends at once");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased; // who is told is listened to
        next = asked() => {
            let code = match next {
                Ok(Exit::Signal(number)) => 128 + i32::from(number),
                _ => 1,
            };
            std::process::exit(code);
        }
        () = say => {}
    }
}

/// Returns when the command is asked to end, once for each signal.
#[cfg(unix)]
pub async fn asked() -> std::io::Result<Exit> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| Exit::Signal(INTERRUPT)),
        _ = terminate.recv() => Ok(Exit::Signal(TERMINATE)),
    }
}

/// Returns when the command is asked to end, once for each signal.
#[cfg(not(unix))]
pub async fn asked() -> std::io::Result<Exit> {
    tokio::signal::ctrl_c().await.map(|()| Exit::Signal(INTERRUPT))
}
