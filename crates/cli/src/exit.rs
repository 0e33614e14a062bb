//! Exit codes of all commands, documented in their help.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

/// The paragraph that ends the help of the commands.
pub const HELP: &str = "\
Exit codes:
  0    done
  1    error
  2    wrong usage
  3    no server, no answer or no message within --timeout
  4    doctor: something is not as it should be
       migrate: something was left where it is
       bench: a target was missed
  6    request: it was rejected
  130  interrupted (Ctrl-C); 143 terminated";

/// A time limit was over, the user's or that for reaching a server; says what did not come.
#[derive(Debug)]
pub struct Late(pub String);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Late {}

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
    /// `request`: who was asked rejected it.
    Rejected,
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
            Exit::Rejected => Self::from(6),
            Exit::Signal(number) => Self::from(128 + number),
        }
    }
}

/// The code for an error: 0 when the reader of our output went away (`rockdove sub … | head`), 3 when a time limit was
/// over, else 1.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    let pipe = error.downcast_ref::<io::Error>().is_some_and(closed);
    if pipe {
        ExitCode::SUCCESS
    } else if error.is::<Late>() {
        Exit::TimedOut.into()
    } else {
        ExitCode::FAILURE
    }
}

/// An error and its causes in one line. Many errors have their cause's text in their own: it is not said twice.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for text in error.chain().map(ToString::to_string).filter(|text| !text.is_empty()) {
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn nothing_is_said_twice() {
        let error = anyhow!("disk full").context("cannot write: disk full").context("stopped");
        assert_eq!(one_line(&error), "stopped: cannot write: disk full");
    }
}
