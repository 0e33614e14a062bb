//! The check that outside bytes pass before anything reads them: one pass, no recursion, no allocation
//! that a length in the bytes could choose.

use crate::doc::{Element, RawDoc, step};
use crate::value::Value;
use crate::{Error, code};

/// Deepest nesting of a stored document, which itself is level 1.
pub const MAX_DEPTH: usize = 100;

/// The least that one more level takes: type byte and empty name of what is nested, its length and terminator.
const LEVEL_BYTES: usize = 7;

/// Why bytes are not a BSON document.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// A length, terminator or type byte is wrong.
    #[error("invalid BSON: a length, a terminator or a type byte is wrong")]
    Structure,
    /// A name or string is not UTF-8.
    #[error("invalid BSON: a string is not valid UTF-8")]
    Utf8,
    /// Nested deeper than so many levels.
    #[error("invalid BSON: documents nest deeper than {0} levels")]
    TooDeep(usize),
}

/// Checks that `bytes` are exactly one BSON document: every length and terminator, UTF-8 of names and
/// strings, known types, nesting of at most [`MAX_DEPTH`].
pub fn check(bytes: &[u8]) -> Result<(), Malformed> {
    check_within(bytes, MAX_DEPTH)
}

/// The same with nesting of at most so many levels: for what has documents inside.
pub(crate) fn check_within(bytes: &[u8], levels_max: usize) -> Result<(), Malformed> {
    let mut open = Vec::with_capacity(8); // the unread rest of each level
    open.push(body(bytes)?);
    while let Some(rest) = open.pop() {
        if rest.is_empty() {
            continue;
        }
        let (element, rest) = step(rest).ok_or(Malformed::Structure)?;
        open.push(rest);
        if let Some(nested) = check_element(&element)? {
            if open.len() >= levels_max {
                return Err(Malformed::TooDeep(levels_max));
            }
            open.push(nested);
        }
    }
    Ok(())
}

/// Refuses to store a document that nests deeper than [`MAX_DEPTH`].
pub fn check_depth(doc: RawDoc<'_>) -> crate::Result<()> {
    match nests_deeper(doc, MAX_DEPTH) {
        false => Ok(()),
        true => {
            let message = format!("Document exceeds maximum nesting depth of {MAX_DEPTH}");
            Err(Error::new(code::OVERFLOW, message))
        }
    }
}

/// Whether a document has more levels than this. Looks only into what has the bytes for them.
fn nests_deeper(doc: RawDoc<'_>, levels: usize) -> bool {
    let nested = |element: Element<'_>| match element.kind_byte() {
        0x03 | 0x04 | 0x0F => match element.value() {
            Value::Document(inner) | Value::Array(inner) | Value::CodeWithScope { scope: inner, .. } => {
                levels == 1 || nests_deeper(inner, levels - 1)
            }
            _ => false,
        },
        _ => false,
    };
    doc.bytes().len() > levels * LEVEL_BYTES && doc.iter().any(nested)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Doc, DocBuilder, Owned, doc};

    /// A document of so many levels, of arrays, documents and scopes, as short as can be or with more around.
    fn nested(levels: usize, padded: bool) -> Doc {
        let mut doc = Doc::empty();
        for level in 1..levels {
            let mut outer = DocBuilder::new();
            if padded && level > 5 {
                outer.append("before", "x".repeat(20)).append("other", doc! { "a": [1, { "b": 2 }] });
            }
            match level % 3 {
                0 => outer.append_value("", Value::Array(doc.raw())),
                1 => outer.append_value("", Value::Document(doc.raw())),
                _ => outer.append("", Owned::CodeWithScope { code: "".into(), scope: doc.clone() }),
            };
            doc = outer.finish();
        }
        doc
    }

    #[test]
    fn a_documents_own_levels_count() {
        for padded in [false, true] {
            for levels in [1, 5, MAX_DEPTH - 1, MAX_DEPTH] {
                assert_eq!(check_depth(nested(levels, padded).raw()), Ok(()), "{levels}");
            }
            for levels in [MAX_DEPTH + 1, 2 * MAX_DEPTH] {
                let refused = check_depth(nested(levels, padded).raw()).unwrap_err();
                assert_eq!(refused.code.number, 15, "{levels}");
            }
        }
        let mut arrays = Doc::empty();
        for _ in 0..MAX_DEPTH {
            let mut outer = DocBuilder::new();
            outer.append_value("", Value::Array(arrays.raw()));
            arrays = outer.finish();
        }
        assert_eq!(arrays.bytes().len(), 5 + MAX_DEPTH * LEVEL_BYTES);
        assert!(check_depth(arrays.raw()).is_err(), "as short as can be");
    }

    #[test]
    fn what_is_around_may_have_levels_of_its_own() {
        let bytes = |levels| nested(levels, false).into_bytes();
        assert!(Doc::new_within(bytes(120), 120).is_ok());
        assert_eq!(Doc::new_within(bytes(121), 120).unwrap_err(), Malformed::TooDeep(120));
        assert_eq!(Doc::new(bytes(101)).unwrap_err(), Malformed::TooDeep(MAX_DEPTH));
    }
}
