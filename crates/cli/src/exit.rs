//! Exit codes of all commands, documented in their help.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

/// The paragraph that ends the help of a command, with the codes that only some commands end with.
pub fn help(own: &[&str]) -> String {
    let own: String = own.iter().map(|line| format!("  {line}\n")).collect();
    format!(
        "Exit codes:\n  0    done\n  1    error\n  2    wrong usage\n{own}  130  interrupted (Ctrl-C); 143 terminated"
    )
}

/// An error with an exit code of its own.
#[derive(Debug)]
pub struct Failure {
    code: Exit,
    text: String,
}

impl Failure {
    /// What was to be there is not: a server, an answer in time, a queue. Says what.
    pub fn absent(text: impl Into<String>) -> Self {
        Self { code: Exit::Absent, text: text.into() }
    }

    /// The command was not used as it can be; how it could.
    pub fn misused(text: impl Into<String>) -> Self {
        Self { code: Exit::Misused, text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Failure {}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Everything was done.
    Done,
    /// Wrong usage; the argument parser ends with it by itself.
    Misused,
    /// What was waited for did not come in time, or is not there.
    Absent,
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
            Exit::Misused => Self::from(2),
            Exit::Absent => Self::from(3),
            Exit::Findings => Self::from(4),
            Exit::Damaged => Self::from(5),
            Exit::Rejected => Self::from(6),
            Exit::Signal(number) => Self::from(128 + number),
        }
    }
}

/// The code for an error: 0 when the reader of our output went away (`rockdove sub … | head`), a [`Failure`]'s own, else 1.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    let pipe = error.downcast_ref::<io::Error>().is_some_and(closed);
    if pipe {
        return ExitCode::SUCCESS;
    }
    error.downcast_ref::<Failure>().map_or(ExitCode::FAILURE, |failure| failure.code.into())
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
    fn failures_have_their_codes() {
        let check = |error: anyhow::Error, code: u8| {
            assert_eq!(format!("{:?}", code_of(&error)), format!("{:?}", ExitCode::from(code)), "{error}");
        };
        check(Failure::misused("so").into(), 2);
        check(anyhow::Error::from(Failure::absent("nobody")).context("asking"), 3);
        check(anyhow!("other"), 1);
        check(io::Error::from(io::ErrorKind::BrokenPipe).into(), 0);
    }

    #[test]
    fn nothing_is_said_twice() {
        let error = anyhow!("disk full").context("cannot write: disk full").context("stopped");
        assert_eq!(one_line(&error), "stopped: cannot write: disk full");
    }
}
