//! Exit codes of all commands, documented in their help.

use std::io;
use std::process::ExitCode;

/// The paragraph that ends the help of the commands.
pub const HELP: &str = "\
Exit codes:
  0    done
  1    error
  2    wrong usage
  3    no answer, or no message, within --timeout
  4    doctor: something is not as it should be; migrate: something was left where it is; bench: a target was missed
  130  interrupted (Ctrl-C); 143 terminated";

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Everything was done.
    Done,
    /// The time was over before what was waited for came.
    TimedOut,
    /// Something is not as it should be.
    Findings,
    /// `log verify`: what was on disk is damaged.
    Damaged,
    /// A signal ended it; its number.
    Signal(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::SUCCESS,
            Exit::TimedOut => Self::from(3),
            Exit::Findings => Self::from(4),
            Exit::Damaged => Self::from(5),
            Exit::Signal(number) => Self::from(128 + number),
        }
    }
}

/// The code for an error: 0 when the reader of our output went away (`rockdove sub … | head`), else 1.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    let pipe = error.downcast_ref::<io::Error>().is_some_and(closed);
    if pipe { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
