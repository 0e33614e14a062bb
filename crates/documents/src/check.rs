//! The check that outside bytes pass before anything reads them: one pass, no recursion, no allocation
//! that a length in the bytes could choose.

use crate::doc::{Element, step};
use thiserror::Error;

/// Deepest nesting accepted: the document itself is level 1.
pub const MAX_DEPTH: usize = 100;

/// Why bytes are not a BSON document.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// A length, terminator or type byte is wrong.
    #[error("invalid BSON: a length, a terminator or a type byte is wrong")]
    Structure,
    /// A name or string is not UTF-8.
    #[error("invalid BSON: a string is not valid UTF-8")]
    Utf8,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("invalid BSON: documents nest deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// Checks that `bytes` are exactly one BSON document: every length and terminator, UTF-8 of names and
/// strings, known types, nesting of at most [`MAX_DEPTH`].
pub fn check(bytes: &[u8]) -> Result<(), Malformed> {
    let mut open = Vec::with_capacity(8); // the unread rest of each level
    open.push(body(bytes)?);
    while let Some(rest) = open.pop() {
        if rest.is_empty() {
            continue;
        }
        let (element, rest) = step(rest).ok_or(Malformed::Structure)?;
        open.push(rest);
        if let Some(nested) = check_element(&element)? {
            if open.len() >= MAX_DEPTH {
                return Err(Malformed::TooDeep);
            }
            open.push(nested);
        }
    }
    Ok(())
}

/// The elements of a document: its bytes without length and terminator.
fn body(bytes: &[u8]) -> Result<&[u8], Malformed> {
    match bytes {
        [a, b, c, d, elements @ .., 0] if u32::from_le_bytes([*a, *b, *c, *d]) as usize == bytes.len() => {
            Ok(elements)
        }
        _ => Err(Malformed::Structure),
    }
}

/// Checks one element; returns the body of the document nested in it, if it has one.
fn check_element<'a>(element: &Element<'a>) -> Result<Option<&'a [u8]>, Malformed> {
    utf8(element.key_bytes())?;
    let raw = element.raw_value();
    match element.kind_byte() {
        0x03 | 0x04 => return body(raw).map(Some),
        0x02 | 0x0D | 0x0E => string(raw)?,
        0x08 if raw[0] > 1 => return Err(Malformed::Structure),
        0x0B => raw.split(|byte| *byte == 0).try_for_each(utf8)?,
        0x0C => string(&raw[..raw.len() - 12])?,
        0x05 if raw[4] == 2 => check_old_binary(raw)?,
        0x0F => return check_code_with_scope(raw).map(Some),
        _ => {}
    }
    Ok(None)
}

/// A length-prefixed, NUL-terminated UTF-8 string that fills `raw`.
fn string(raw: &[u8]) -> Result<(), Malformed> {
    match raw {
        [_, _, _, _, text @ .., 0] => utf8(text),
        _ => Err(Malformed::Structure),
    }
}

/// Binary subtype 2 repeats its length inside (BSON specification).
fn check_old_binary(raw: &[u8]) -> Result<(), Malformed> {
    match &raw[5..] {
        [a, b, c, d, bytes @ ..] if i32::from_le_bytes([*a, *b, *c, *d]) as usize == bytes.len() => Ok(()),
        _ => Err(Malformed::Structure),
    }
}

/// Checks length and code of a code-with-scope value and returns the body of its scope.
fn check_code_with_scope(raw: &[u8]) -> Result<&[u8], Malformed> {
    let rest = raw.get(4..).ok_or(Malformed::Structure)?;
    let length = rest.get(..4).ok_or(Malformed::Structure)?;
    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
    let end = length.checked_add(4).ok_or(Malformed::Structure)?;
    string(rest.get(..end).ok_or(Malformed::Structure)?)?;
    body(&rest[end..])
}

fn utf8(bytes: &[u8]) -> Result<(), Malformed> {
    std::str::from_utf8(bytes).map(drop).map_err(|_| Malformed::Utf8)
}
