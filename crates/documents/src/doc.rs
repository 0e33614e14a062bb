//! Documents as shared bytes, and the lazy walk over their elements.

use crate::check::{MAX_DEPTH, Malformed, check_within};
use crate::value::{Kind, Value, decode};
use bytes::Bytes;
use std::fmt;

/// The bytes of a document without fields.
const EMPTY: &[u8] = &[5, 0, 0, 0, 0];

/// A checked BSON document; cloning it shares the bytes.
#[derive(Clone)]
pub struct Doc(Bytes);

impl Doc {
    /// Checks `bytes` and makes them a document.
    pub fn new(bytes: Bytes) -> Result<Doc, Malformed> {
        Doc::new_within(bytes, MAX_DEPTH)
    }

    /// The same for what has documents inside, such as a command: it may nest up to so many levels.
    pub fn new_within(bytes: Bytes, levels_max: usize) -> Result<Doc, Malformed> {
        check_within(&bytes, levels_max)?;
        Ok(Doc(bytes))
    }

    /// Makes `bytes` a document without checking them: for bytes that were checked before, such as a part of
    /// a checked document or a record of our own log. Unchecked garbage reads as missing fields; it never panics.
    pub fn from_checked(bytes: Bytes) -> Doc {
        Doc(bytes)
    }

    /// The document without fields.
    pub fn empty() -> Doc {
        Doc(Bytes::from_static(EMPTY))
    }

    /// The view that reading functions take.
    pub fn raw(&self) -> RawDoc<'_> {
        RawDoc(&self.0)
    }

    /// The bytes, length word and terminator included.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// The bytes, length word and terminator included.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// The first field of this name.
    pub fn get(&self, name: &str) -> Option<Value<'_>> {
        self.raw().get(name)
    }

    /// A nested part of this document that shares its bytes.
    pub fn slice_of(&self, part: RawDoc<'_>) -> Doc {
        Doc(self.0.slice_ref(part.0))
    }

    /// A copy in a buffer of its own, so that it keeps no larger one alive.
    pub fn detached(&self) -> Doc {
        Doc(Bytes::copy_from_slice(&self.0))
    }
}

impl Default for Doc {
    fn default() -> Doc {
        Doc::empty()
    }
}

impl PartialEq for Doc {
    fn eq(&self, other: &Doc) -> bool {
        let is_shared = self.0.as_ptr() == other.0.as_ptr() && self.0.len() == other.0.len();
        is_shared || self.0 == other.0
    }
}

impl fmt::Debug for Doc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw().fmt(f)
    }
}

/// A borrowed document or array: the bytes from the length word to the terminator.
#[derive(Clone, Copy, PartialEq)]
pub struct RawDoc<'a>(&'a [u8]);

impl<'a> RawDoc<'a> {
    /// A view of bytes that were checked before (see [`Doc::from_checked`]).
    pub fn from_checked(bytes: &'a [u8]) -> RawDoc<'a> {
        RawDoc(bytes)
    }

    /// The document without fields.
    pub fn empty() -> RawDoc<'static> {
        RawDoc(EMPTY)
    }

    /// The bytes, length word and terminator included.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The elements in their order.
    pub fn iter(self) -> Iter<'a> {
        Iter { rest: self.0.get(4..self.0.len().saturating_sub(1)).unwrap_or_default() }
    }

    /// The first field of this name.
    pub fn get(self, name: &str) -> Option<Value<'a>> {
        self.element(name).map(|element| element.value())
    }

    /// The first element of this name.
    pub fn element(self, name: &str) -> Option<Element<'a>> {
        let mut rest = self.iter().rest;
        while let Some((element, after)) = step(rest) {
            if element.key == name.as_bytes() {
                return Some(element);
            }
            rest = after;
        }
        None
    }

    /// The values in their order (for arrays, whose names are their positions).
    pub fn values(self) -> impl Iterator<Item = Value<'a>> {
        self.iter().map(|element| element.value())
    }

    /// How many elements there are; walks the document.
    pub fn len(self) -> usize {
        self.iter().count()
    }

    /// Whether there is no element.
    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }

    /// A document of its own with a copy of the bytes.
    pub fn to_doc(self) -> Doc {
        Doc(Bytes::copy_from_slice(self.0))
    }
}

impl<'a> IntoIterator for RawDoc<'a> {
    type Item = Element<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Debug for RawDoc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|element| (element.key(), element.value()))).finish()
    }
}

/// One field: its name, its type and its undecoded value.
#[derive(Clone, Copy)]
pub struct Element<'a> {
    kind: u8,
    key: &'a [u8],
    raw: &'a [u8],
}

impl<'a> Element<'a> {
    /// The name. (Checked documents have UTF-8 names; anything else reads as the empty name.)
    pub fn key(&self) -> &'a str {
        std::str::from_utf8(self.key).unwrap_or_default()
    }

    /// The name's bytes: cheaper than [`Element::key`] where they are only compared.
    pub fn key_bytes(&self) -> &'a [u8] {
        self.key
    }

    /// The type byte of the BSON specification.
    pub fn kind_byte(&self) -> u8 {
        self.kind
    }

    /// The type.
    pub fn kind(&self) -> Kind {
        Kind::from_byte(self.kind)
    }

    /// The encoded value.
    pub fn raw_value(&self) -> &'a [u8] {
        self.raw
    }

    /// The value.
    pub fn value(&self) -> Value<'a> {
        decode(self.kind, self.raw)
    }
}

impl fmt::Debug for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {:?}", self.key(), self.value())
    }
}

/// The elements of a document, in order. Ends early on malformed bytes.
#[derive(Clone)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        let (element, rest) = step(self.rest)?;
        self.rest = rest;
        Some(element)
    }
}

/// The first element of a body and what follows it; `None` at the end or if the bytes are malformed.
#[inline(always)]
pub(crate) fn step(body: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (&kind, rest) = body.split_first()?;
    let end = find_zero(rest)?;
    let (key, value) = (&rest[..end], &rest[end + 1..]);
    let length = match LENGTHS.get(usize::from(kind)) {
        Some(&fixed) if fixed < WORD => usize::from(fixed),
        Some(&extra) if extra < SPECIAL => {
            let word = u32::from_le_bytes(*value.first_chunk::<4>()?);
            (word as usize).checked_add(usize::from(extra - WORD))?
        }
        _ => special_length(kind, value)?,
    };
    let (raw, rest) = value.split_at_checked(length)?;
    Some((Element { kind, key, raw }, rest))
}

/// The position of the first zero byte. Names are short, so that a few words are looked at before a search
/// that has a cost to start.
#[inline(always)]
fn find_zero(bytes: &[u8]) -> Option<usize> {
    if let Some(head) = bytes.first_chunk::<16>() {
        let bits = u128::from_le_bytes(*head);
        let first = zero_in(bits as u64);
        if first < 8 {
            return Some(first);
        }
        let second = zero_in((bits >> 64) as u64);
        if second < 8 {
            return Some(8 + second);
        }
    }
    memchr::memchr(0, bytes)
}

/// The position of the first zero byte of eight, 8 if there is none.
#[inline(always)]
fn zero_in(word: u64) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    (word.wrapping_sub(ONES) & !word & (ONES << 7)).trailing_zeros() as usize / 8
}

/// In [`LENGTHS`]: the value starts with its length, to which the rest of the number is added.
const WORD: u8 = 0x80;
/// In [`LENGTHS`]: neither fixed nor told by a length word, or an unknown type.
const SPECIAL: u8 = 0xFF;

/// How long values are, by type byte.
const LENGTHS: [u8; 0x14] = {
    let mut lengths = [SPECIAL; 0x14];
    lengths[0x01] = 8;
    lengths[0x02] = WORD + 4;
    lengths[0x03] = WORD;
    lengths[0x04] = WORD;
    lengths[0x05] = WORD + 5;
    lengths[0x06] = 0;
    lengths[0x07] = 12;
    lengths[0x08] = 1;
    lengths[0x09] = 8;
    lengths[0x0A] = 0;
    lengths[0x0C] = WORD + 16;
    lengths[0x0D] = WORD + 4;
    lengths[0x0E] = WORD + 4;
    lengths[0x0F] = WORD;
    lengths[0x10] = 4;
    lengths[0x11] = 8;
    lengths[0x12] = 8;
    lengths[0x13] = 16;
    lengths
};

/// How many bytes a value takes that does not say so itself.
fn special_length(kind: u8, value: &[u8]) -> Option<usize> {
    match kind {
        0x0B => {
            let pattern = memchr::memchr(0, value)? + 1;
            let options = memchr::memchr(0, &value[pattern..])? + 1;
            Some(pattern + options)
        }
        0x7F | 0xFF => Some(0),
        _ => None,
    }
}
