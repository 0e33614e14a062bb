//! Dotted field paths, and the walk along them through documents and arrays.
//!
//! A path names a field of a field (`a.b`). Where an array lies on the way, the walk goes on in each of its
//! documents, and additionally, where the next part is a number, in the element at that position (MongoDB
//! manual, "Query on Embedded/Nested Documents", "Query an Array"). At the path's end an array counts as each
//! of its elements and as itself. A path that ends in nothing yields "missing", except below array elements
//! that are no documents: those yield nothing at all.

use crate::doc::RawDoc;
use crate::value::Value;
use std::fmt;
use std::ops::ControlFlow;

/// A path, split once.
#[derive(Clone, PartialEq, Eq)]
pub struct Path {
    text: Box<str>,
    parts: Box<[Part]>,
}

/// One name of a path.
#[derive(Clone, PartialEq, Eq)]
pub struct Part {
    name: Box<str>,
    index: Option<usize>,
    path_hash: u64,
}

/// What the walk found: a value or "missing", and where.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The value; `None` if the path leads to no field.
    pub value: Option<Value<'a>>,
    /// The position in the outermost array on the way, if there was one.
    pub position: Option<usize>,
}

/// What an array at the end of a path counts as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// Each of its elements, then itself.
    Elements,
    /// Only itself.
    Whole,
}

impl Part {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The array position that the name can also mean: decimal digits without leading zeros.
    pub fn index(&self) -> Option<usize> {
        self.index
    }

    /// The hash of the path from its beginning to this part: [`hash_name`] of one name after the other.
    pub(crate) fn path_hash(&self) -> u64 {
        self.path_hash
    }
}

impl Path {
    /// Splits a path at its dots. Empty parts are names like any other.
    pub fn new(text: &str) -> Path {
        let mut path_hash = 0;
        let parts = text.split('.').map(|name| {
            path_hash = hash_name(path_hash, name.as_bytes());
            Part { name: name.into(), index: array_index(name), path_hash }
        });
        Path { text: text.into(), parts: parts.collect() }
    }

    /// The path as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names between the dots; at least one.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Calls `visit` with what the path leads to, until it breaks.
    #[inline]
    pub fn for_each_value<'d, B>(
        &self,
        doc: RawDoc<'d>,
        leaves: Leaves,
        visit: &mut impl FnMut(Found<'d>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        walk(doc, &self.parts, leaves, None, visit)
    }

    /// The value that the path leads to through documents only; arrays on the way end the walk.
    pub fn get<'d>(&self, doc: RawDoc<'d>) -> Option<Value<'d>> {
        let (last, parents) = self.parts.split_last()?;
        let parent = parents.iter().try_fold(doc, |doc, part| doc.get(&part.name)?.as_document())?;
        parent.get(&last.name)
    }

    /// Whether this path is the other one or lies below it.
    pub fn starts_with(&self, other: &Path) -> bool {
        self.parts.starts_with(&other.parts)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<&str> for Path {
    fn from(text: &str) -> Path {
        Path::new(text)
    }
}

/// The hash of a path that goes on with `name`. It only finds candidates quickly: equal hashes prove nothing.
#[inline]
pub(crate) fn hash_name(path: u64, name: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 divided by the golden ratio, as is common
    let word = |bytes: &[u8]| match bytes.first_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    let ends = word(name) ^ word(&name[name.len().saturating_sub(8)..]).rotate_left(23);
    (path.rotate_left(29) ^ ends ^ name.len() as u64).wrapping_add(1).wrapping_mul(FACTOR)
}

/// The array position that a name means, if it is written like one.
pub fn array_index(name: &str) -> Option<usize> {
    let canonical = name == "0" || !name.starts_with('0');
    (canonical && !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| name.parse().ok())
        .flatten()
}

fn walk<'d, B>(
    doc: RawDoc<'d>,
    parts: &[Part],
    leaves: Leaves,
    position: Option<usize>,
    visit: &mut impl FnMut(Found<'d>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    match parts.split_first() {
        Some((part, rest)) => walk_value(doc.get(&part.name), rest, leaves, position, visit),
        None => ControlFlow::Continue(()),
    }
}

/// The walk from a value that was found at the start of a path: `rest` is what the path still names.
pub(crate) fn walk_value<'d, B>(
    mut value: Option<Value<'d>>,
    mut rest: &[Part],
    leaves: Leaves,
    position: Option<usize>,
    visit: &mut impl FnMut(Found<'d>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    loop {
        match (value, rest.split_first()) {
            (Some(Value::Array(array)), _) => return walk_array(array, rest, leaves, position, visit),
            (Some(Value::Document(nested)), Some((part, after))) => {
                value = nested.get(&part.name);
                rest = after;
            }
            (_, Some(_)) => return visit(Found { value: None, position }),
            (value, None) => return visit(Found { value, position }),
        }
    }
}

/// The walk in an array: `rest` is what the path still names.
fn walk_array<'d, B>(
    array: RawDoc<'d>,
    rest: &[Part],
    leaves: Leaves,
    position: Option<usize>,
    visit: &mut impl FnMut(Found<'d>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let Some((next, after)) = rest.split_first() else {
        if leaves == Leaves::Elements {
            for (index, value) in array.values().enumerate() {
                visit(Found { value: Some(value), position: position.or(Some(index)) })?;
            }
        }
        return visit(Found { value: Some(Value::Array(array)), position });
    };
    for (index, value) in array.values().enumerate() {
        let position = position.or(Some(index));
        if let Value::Document(nested) = value {
            walk(nested, rest, leaves, position, visit)?;
        }
        if next.index != Some(index) {
            continue;
        }
        match value {
            _ if after.is_empty() => visit(Found { value: Some(value), position })?,
            Value::Document(nested) => walk(nested, after, leaves, position, visit)?,
            Value::Array(nested) => walk_array(nested, after, leaves, position, visit)?,
            _ => {}
        }
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Doc, doc};

    /// What a path leads to, as text: `value@position`.
    fn found(doc: &Doc, path: &str, leaves: Leaves) -> String {
        let mut out = Vec::new();
        let _ = Path::new(path).for_each_value(doc.raw(), leaves, &mut |found: Found<'_>| {
            let value = found.value.map_or("missing".into(), |value| match value {
                Value::Int32(n) => n.to_string(),
                Value::Array(array) => format!("[{}]", array.len()),
                Value::Document(_) => "{}".into(),
                other => format!("{other:?}"),
            });
            out.push(found.position.map_or(value.clone(), |n| format!("{value}@{n}")));
            ControlFlow::<()>::Continue(())
        });
        out.join(" ")
    }

    #[test]
    fn walks() {
        let cases = [
            (doc! { "a": 1 }, "a", "1"),
            (doc! { "a": 1 }, "b", "missing"),
            (doc! { "a": 1 }, "a.b", "missing"),
            (doc! { "a": { "b": 2 } }, "a.b", "2"),
            (doc! { "a": [1, 2] }, "a", "1@0 2@1 [2]"),
            (doc! { "a": [] }, "a", "[0]"),
            (doc! { "a": [] }, "a.b", ""),
            (doc! { "a": [1, 2] }, "a.b", ""),
            (doc! { "a": [{ "b": 1 }, { "c": 2 }, 3] }, "a.b", "1@0 missing@1"),
            (doc! { "a": [{ "b": [5, 6] }] }, "a.b", "5@0 6@0 [2]@0"),
            (doc! { "a": [4, 5] }, "a.1", "5@1"),
            (doc! { "a": [4, 5] }, "a.01", ""),
            (doc! { "a": { "1": 9 } }, "a.1", "9"),
            (doc! { "a": [{ "0": 7 }] }, "a.0", "7@0 {}@0"),
            (doc! { "a": [{ "b": 7 }] }, "a.0.b", "missing@0 7@0"),
            (doc! { "a": [[1, 2]] }, "a", "[2]@0 [1]"),
            (doc! { "a": [[1, 2]] }, "a.0", "[2]@0"),
            (doc! { "a": [[1, 2]] }, "a.0.1", "2@0"),
            (doc! { "a": [[{ "b": 3 }]] }, "a.b", ""),
            (doc! { "a": [[{ "b": 3 }]] }, "a.0.b", "3@0"),
        ];
        for (doc, path, expected) in cases {
            assert_eq!(found(&doc, path, Leaves::Elements), expected, "{path} in {doc:?}");
        }
        assert_eq!(found(&doc! { "a": [1, 2] }, "a", Leaves::Whole), "[2]");
        assert_eq!(found(&doc! { "a": [{ "b": [1] }] }, "a.b", Leaves::Whole), "[1]@0");
    }

    #[test]
    fn positions_are_plain_decimal_numbers() {
        let cases = [
            ("0", Some(0)),
            ("10", Some(10)),
            ("01", None),
            ("-1", None),
            ("", None),
            ("+1", None),
            ("1e3", None),
        ];
        for (name, expected) in cases {
            assert_eq!(array_index(name), expected, "{name}");
        }
        assert_eq!(array_index("99999999999999999999999"), None);
    }
}
