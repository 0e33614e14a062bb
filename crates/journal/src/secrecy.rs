//! Whether a log is encrypted, and with which key.
//!
//! The state keeps what the key is known by. A state that was made anew from the segments knows only that entries are
//! encrypted ([`KeyCheck::Lost`]): then the newest of them tells whether a key is the log's. So a log that was encrypted
//! once is never opened without a key, and never goes on with another one.

use crate::codec::Key;
use crate::error::{DiskError, OpenError};
use crate::file::Folder;
use crate::frame::{ALIGN, Frame};
use crate::recover::{Found, load, segment_names};
use crate::scan::{Scanner, Slot};
use crate::segment::FRAMES_AT;
use crate::state::{self, KeyCheck, State, StateFile};

/// An error if a log cannot be opened for writing with this key, or without one. Changes nothing.
pub(crate) fn check_before_opening(folder: &Folder, key: Option<&Key>) -> Result<(), OpenError> {
    if !folder.names()?.iter().any(|name| name == state::NAME) {
        return Ok(());
    }
    let state = StateFile::open_read(folder)?;
    match (state.state().key_check, key) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(refusal(folder, "it is encrypted, and no key was given")),
        (Some(_), Some(key)) => check_key(folder, state.state(), key),
    }
}

/// An error if the log is encrypted, and not with this key.
pub(crate) fn check_key(folder: &Folder, state: &State, key: &Key) -> Result<(), OpenError> {
    let fits = match state.key_check {
        None => true,
        Some(KeyCheck::Tag(tag)) => tag == key.check(&state.log_id),
        Some(KeyCheck::Lost) => opens_the_newest(folder, state, key)?,
    };
    if fits { Ok(()) } else { Err(refusal(folder, "it is encrypted with another key")) }
}

fn refusal(folder: &Folder, what: &'static str) -> OpenError {
    OpenError::Key { folder: folder.path(""), what }
}

/// Whether any entry of the log is encrypted. What cannot be read is passed over.
pub(crate) fn has_encrypted(folder: &Folder, state: &State) -> Result<bool, OpenError> {
    let found = newest_first(folder, state, |found| {
        let mut any = false;
        encrypted(found, state, |_, _, _| {
            any = true;
            Ok(())
        })?;
        Ok(any.then_some(()))
    })?;
    Ok(found.is_some())
}

/// Whether a key opens the newest whole entry that is encrypted; true if there is none.
fn opens_the_newest(folder: &Folder, state: &State, key: &Key) -> Result<bool, OpenError> {
    let opens = newest_first(folder, state, |found| {
        let mut newest = None;
        encrypted(found, state, |scanner, at, frame| {
            if scanner.body_matches(at, frame, at + frame.stride())? {
                newest = Some((at, *frame));
            }
            Ok(())
        })?;
        let Some((at, frame)) = newest else { return Ok(None) };
        let mut scanner = found.scanner(state.log_id).with_key(Some(key.clone()));
        let body = scanner.body(at, &frame, at + frame.stride())?;
        Ok(body.map(|body| scanner.decode(&body, &frame).is_ok()))
    })?;
    Ok(opens.unwrap_or(true))
}

/// Looks at one segment after the other, the newest first, until there is an answer.
fn newest_first<T>(
    folder: &Folder,
    state: &State,
    look: impl Fn(&Found) -> Result<Option<T>, OpenError>,
) -> Result<Option<T>, OpenError> {
    for (base, name) in segment_names(&folder.names()?).iter().rev() {
        let answer = match load(folder.open_read(name)?, *base, name, state) {
            Ok(found) => look(&found)?,
            Err(OpenError::Damaged(_) | OpenError::Unsupported { .. }) => None,
            Err(error) => return Err(error),
        };
        if answer.is_some() {
            return Ok(answer);
        }
    }
    Ok(None)
}

/// Shows each frame of a segment that is encrypted and has a whole header, with its offset, also behind damage.
fn encrypted(
    found: &Found,
    state: &State,
    mut show: impl FnMut(&mut Scanner, u64, &Frame) -> Result<(), DiskError>,
) -> Result<(), DiskError> {
    let mut scanner = found.scanner(state.log_id);
    let end = found.seal.map_or(found.header.size, |seal| seal.end);
    let mut at = FRAMES_AT;
    while at < end {
        at += match scanner.slot(at, end)? {
            Slot::Frame(frame, _) => {
                if frame.encoding.encrypted {
                    show(&mut scanner, at, &frame)?;
                }
                frame.stride()
            }
            Slot::Empty | Slot::Fault(_) => ALIGN,
        };
    }
    Ok(())
}
