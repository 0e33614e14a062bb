//! The keys of one document in all indexes of a collection, made together.
//!
//! ```text
//! document ── one walk ──► slots (top-level fields) ──► parts (encoded values) ──► rows (keys of each index)
//! ```
//!
//! Each value is encoded once, however many indexes have it. A document with arrays in the middle of a path, or
//! on two paths of one index, takes the longer way of [`KeyPattern::keys`] for that index.
//!
//! Invariant: a row holds exactly the keys that [`KeyPattern::keys`] makes.

use super::encode::{encode_raw, invert};
use super::pattern::{Direction, KeyBuf, KeyField, KeyPattern};
use crate::collation::Collation;
use crate::doc::RawDoc;
use crate::error::Result;
use crate::path::Part as Name;
use crate::value::{Value, decode};
use smallvec::SmallVec;
use std::sync::Arc;

/// Places of the table that finds a field's name.
const PLACES: usize = 64;
/// Marks a place, or the end of its chain, without a name.
const NONE: u16 = u16::MAX;
/// Parts up to this size are copied in one step, whatever their size.
const SHORT: usize = 16;

/// The key patterns of all indexes of a collection, prepared for making a document's keys together.
#[derive(Debug)]
pub struct KeySet {
    patterns: Vec<KeyPattern>,
    names: Names,
    parts: Vec<Part>,
    /// For each pattern its parts, in order.
    rows: Vec<Vec<usize>>,
}

/// The top-level names that some pattern starts with, each with the number of its slot.
#[derive(Debug)]
struct Names {
    names: Vec<(Box<[u8]>, u16)>,
    /// For each hash of a name, the first name that has it; the names go on from there.
    places: [u16; PLACES],
}

/// What several patterns can have in common: one path, encoded in one way.
#[derive(Debug)]
struct Part {
    slot: usize,
    field: KeyField,
    collation: Option<Arc<Collation>>,
}

/// A value as it is encoded in its document: type byte and bytes.
type Raw<'d> = (u8, &'d [u8]);

/// What a document has at a part.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// Encoded values: spans `from..upto`; several, or one in an array, if `array`.
    Values { from: usize, upto: usize, array: bool },
    /// No field: the span of null.
    Missing { at: usize },
    /// An array before the path's end, or one that cannot be indexed.
    Complex,
}

/// The keys of one document in several indexes. Reuse it: it keeps its buffers.
#[derive(Debug, Default)]
pub struct RowBuf {
    parts: Vec<u8>,
    spans: Vec<(usize, usize)>,
    found: Vec<Found>,
    bytes: Vec<u8>,
    keys: Vec<(usize, usize)>,
    /// For each row where its keys end in `keys`, and whether an array was expanded.
    rows: Vec<(usize, bool)>,
    suffix: usize,
    long_way: KeyBuf,
}

/// The keys of one document in one index: distinct, in ascending order.
#[derive(Clone, Copy, Debug)]
pub struct Row<'r> {
    bytes: &'r [u8],
    keys: &'r [(usize, usize)],
    suffix: usize,
    /// Whether an array was expanded.
    pub multikey: bool,
}

impl<'r> Row<'r> {
    /// The keys, each followed by the suffix.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &'r [u8]> {
        let bytes = self.bytes;
        self.keys.iter().map(move |(start, end)| &bytes[*start..*end])
    }

    /// The keys without the suffix.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &'r [u8]> {
        let suffix = self.suffix;
        self.entries().map(move |entry| &entry[..entry.len() - suffix])
    }
}

impl RowBuf {
    /// The keys in index `index`; none if there is no such row.
    pub fn row(&self, index: usize) -> Row<'_> {
        let from = index.checked_sub(1).and_then(|before| self.rows.get(before)).map_or(0, |row| row.0);
        let (upto, multikey) = self.rows.get(index).copied().unwrap_or((from, false));
        Row { bytes: &self.bytes, keys: &self.keys[from..upto], suffix: self.suffix, multikey }
    }

    /// How many rows were made.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row was made.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn clear(&mut self) {
        self.parts.clear();
        self.spans.clear();
        self.found.clear();
        self.bytes.clear();
        self.keys.clear();
        self.rows.clear();
    }

    /// Appends an encoded value of a part.
    fn encode(&mut self, part: &Part, kind: u8, raw: &[u8]) {
        let start = self.parts.len();
        match (part.field.direction, &part.collation) {
            (Direction::Ascending, None) => encode_raw(kind, raw, &mut self.parts),
            (Direction::Descending, None) => {
                encode_raw(kind, raw, &mut self.parts);
                invert(&mut self.parts[start..]);
            }
            (_, collation) => part.field.encode(decode(kind, raw), collation.as_deref(), &mut self.parts),
        }
        self.spans.push((start, self.parts.len()));
    }

    /// Appends a span of the parts to the key in work.
    #[inline]
    fn put(&mut self, span: usize) {
        let (start, end) = self.spans[span];
        match self.parts[start..].first_chunk::<SHORT>() {
            // A copy of a fixed length is an instruction or two.
            Some(short) if end - start <= SHORT => {
                let length = self.bytes.len() + end - start;
                self.bytes.extend_from_slice(short);
                self.bytes.truncate(length);
            }
            _ => self.bytes.extend_from_slice(&self.parts[start..end]),
        }
    }
}

impl Names {
    fn new(names: Vec<&[u8]>) -> Names {
        let mut numbered: Vec<(Box<[u8]>, u16)> =
            names.iter().zip(0..).map(|(name, slot)| (Box::from(*name), slot)).collect();
        numbered.sort_by_key(|(name, _)| hash(name));
        let mut places = [NONE; PLACES];
        for (index, (name, _)) in numbered.iter().enumerate().rev() {
            places[hash(name)] = index as u16;
        }
        Names { names: numbered, places }
    }

    #[inline]
    fn slot(&self, name: &[u8]) -> Option<usize> {
        let hash = hash(name);
        let first = self.places[hash];
        if first == NONE {
            return None;
        }
        let same_hash =
            self.names[usize::from(first)..].iter().take_while(|(other, _)| self::hash(other) == hash);
        same_hash.into_iter().find(|(other, _)| **other == *name).map(|(_, slot)| usize::from(*slot))
    }
}

#[inline]
fn hash(name: &[u8]) -> usize {
    let ends =
        name.first().zip(name.last()).map_or(0, |(first, last)| usize::from(*first) * 5 + usize::from(*last));
    (ends + name.len() * 11) % PLACES
}

impl KeySet {
    /// Prepares patterns; their order is that of the rows.
    pub fn new<'p>(patterns: impl IntoIterator<Item = &'p KeyPattern>) -> KeySet {
        let patterns: Vec<KeyPattern> = patterns.into_iter().cloned().collect();
        let mut names: Vec<&[u8]> = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let mut rows = Vec::new();
        for pattern in &patterns {
            let collation = pattern.shared_collation();
            let row = pattern.fields().iter().map(|field| {
                let same = |part: &Part| part.field == *field && part.collation == *collation;
                if let Some(known) = parts.iter().position(same) {
                    return known;
                }
                let name = field.path.parts().first().map_or(&[][..], |name| name.name().as_bytes());
                let slot = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                parts.push(Part { slot, field: field.clone(), collation: collation.clone() });
                parts.len() - 1
            });
            rows.push(row.collect());
        }
        let names = Names::new(names);
        KeySet { patterns, names, parts, rows }
    }

    /// Makes the keys of a document in each index that `wants` it, each key followed by `suffix`. An index that
    /// does not want the document gets a row without keys.
    ///
    /// Errors are those of [`KeyPattern::keys`]; the rows before the one concerned are then there.
    pub fn keys(
        &self,
        doc: RawDoc<'_>,
        suffix: &[u8],
        mut wants: impl FnMut(usize) -> bool,
        out: &mut RowBuf,
    ) -> Result<()> {
        out.clear();
        out.suffix = suffix.len();
        self.encode_parts(doc, out);
        for (index, (row, pattern)) in self.rows.iter().zip(&self.patterns).enumerate() {
            let multikey = match wants(index) {
                true => row_keys(row, pattern, doc, suffix, out)?,
                false => false,
            };
            out.rows.push((out.keys.len(), multikey));
        }
        Ok(())
    }

    /// Finds the fields that some pattern starts with, and encodes what all parts need.
    fn encode_parts(&self, doc: RawDoc<'_>, out: &mut RowBuf) {
        let mut left = self.names.names.len();
        let mut slots: SmallVec<[Option<Raw<'_>>; 16]> = SmallVec::from_elem(None, left);
        for element in doc {
            if left == 0 {
                break;
            }
            if let Some(slot) = self.names.slot(element.key_bytes())
                && slots[slot].is_none()
            {
                slots[slot] = Some((element.kind_byte(), element.raw_value()));
                left -= 1;
            }
        }
        for part in &self.parts {
            let found = match follow(slots[part.slot], &part.field.path.parts()[1..]) {
                None => Found::Complex,
                Some(None) => {
                    let at = out.spans.len();
                    out.encode(part, NULL, &[]);
                    Found::Missing { at }
                }
                Some(Some((ARRAY, _))) if part.field.direction == Direction::Hashed => Found::Complex,
                Some(Some((ARRAY, raw))) => {
                    let from = out.spans.len();
                    for element in RawDoc::from_checked(raw) {
                        out.encode(part, element.kind_byte(), element.raw_value());
                    }
                    if out.spans.len() == from {
                        out.encode(part, UNDEFINED, &[]);
                    }
                    Found::Values { from, upto: out.spans.len(), array: true }
                }
                Some(Some((kind, raw))) => {
                    let from = out.spans.len();
                    out.encode(part, kind, raw);
                    Found::Values { from, upto: from + 1, array: false }
                }
            };
            out.found.push(found);
        }
        out.parts.extend_from_slice(&[0; SHORT]); // so that the last part can be copied in one step too
    }
}

const ARRAY: u8 = 0x04;
const UNDEFINED: u8 = 0x06;
const NULL: u8 = 0x0A;

/// What lies at the end of the rest of a path; `None` if an array lies before its end.
fn follow<'d>(start: Option<Raw<'d>>, rest: &[Name]) -> Option<Option<Raw<'d>>> {
    rest.iter().try_fold(start, |found, name| match found.map(|(kind, raw)| decode(kind, raw)) {
        Some(Value::Document(nested)) => {
            Some(nested.element(name.name()).map(|element| (element.kind_byte(), element.raw_value())))
        }
        Some(Value::Array(_)) => None,
        _ => Some(None),
    })
}

/// Adds the keys of one row; says whether an array was expanded.
fn row_keys(
    row: &[usize],
    pattern: &KeyPattern,
    doc: RawDoc<'_>,
    suffix: &[u8],
    out: &mut RowBuf,
) -> Result<bool> {
    let (mut missing, mut array) = (0, None);
    for (position, part) in row.iter().enumerate() {
        match out.found[*part] {
            Found::Values { array: false, .. } => {}
            Found::Values { from, upto, array: true } if array.is_none() => {
                array = Some((position, from..upto));
            }
            Found::Missing { .. } => missing += 1,
            Found::Values { .. } | Found::Complex => return long_way(pattern, doc, suffix, out),
        }
    }
    if pattern.is_sparse() && missing == row.len() {
        return Ok(false);
    }
    let multikey = array.is_some();
    let (expanded, elements) = array.unwrap_or((usize::MAX, 0..1));
    let first = out.keys.len();
    for element in elements {
        let start = out.bytes.len();
        for (position, part) in row.iter().enumerate() {
            match out.found[*part] {
                _ if position == expanded => out.put(element),
                Found::Values { from: at, .. } | Found::Missing { at } => out.put(at),
                Found::Complex => {}
            }
        }
        out.bytes.extend_from_slice(suffix);
        out.keys.push((start, out.bytes.len()));
    }
    if out.keys.len() > first + 1 {
        let bytes = &out.bytes;
        out.keys[first..].sort_unstable_by(|a, b| bytes[a.0..a.1].cmp(&bytes[b.0..b.1]));
        let mut kept = first + 1;
        for next in first + 1..out.keys.len() {
            let (last, key) = (out.keys[kept - 1], out.keys[next]);
            if bytes[last.0..last.1] != bytes[key.0..key.1] {
                out.keys[kept] = key;
                kept += 1;
            }
        }
        out.keys.truncate(kept);
    }
    Ok(multikey)
}

fn long_way(pattern: &KeyPattern, doc: RawDoc<'_>, suffix: &[u8], out: &mut RowBuf) -> Result<bool> {
    let multikey = pattern.keys(doc, &mut out.long_way)?;
    for key in out.long_way.iter() {
        let start = out.bytes.len();
        out.bytes.extend_from_slice(key);
        out.bytes.extend_from_slice(suffix);
        out.keys.push((start, out.bytes.len()));
    }
    Ok(multikey)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::document;
    use crate::{Doc, doc};

    fn patterns() -> Vec<KeyPattern> {
        let collation = || Collation::parse(doc! { "locale": "en", "strength": 1 }.raw()).unwrap();
        let keys = [
            doc! { "a": 1 },
            doc! { "a": -1 },
            doc! { "b": 1, "a": 1 },
            doc! { "a": 1, "b": -1, "c": 1 },
            doc! { "a.b": 1, "c": 1 },
            doc! { "a.b": 1, "a.c": -1 },
            doc! { "b": "hashed", "c": 1 },
            doc! { "a.0": 1 },
            doc! { "zz": 1 },
            doc! { "a": 1, "a.b": 1 },
        ];
        let plain: Vec<_> = keys.iter().map(|key| KeyPattern::parse(key.raw()).unwrap()).collect();
        let sparse = plain.iter().map(|pattern| pattern.clone().sparse(true));
        let collated = plain.iter().map(|pattern| pattern.clone().collated(collation()));
        plain.iter().cloned().chain(sparse).chain(collated).collect()
    }

    /// Checks a set of all patterns against each pattern alone.
    fn check(doc: &Doc, wanted: impl Fn(usize) -> bool) {
        let (patterns, suffix) = (patterns(), [7, 8]);
        let (mut rows, mut alone) = (RowBuf::default(), KeyBuf::new());
        // One after the other, so that an error in one hides no other.
        for (index, pattern) in patterns.iter().enumerate() {
            let expected = pattern.keys(doc.raw(), &mut alone);
            let made =
                KeySet::new(&patterns).keys(doc.raw(), &suffix, |i| i == index && wanted(i), &mut rows);
            if !wanted(index) {
                assert_eq!((made, rows.row(index).keys().len()), (Ok(()), 0));
                continue;
            }
            assert_eq!(made, expected.clone().map(drop), "{pattern:?} of {doc:?}");
            let Ok(multikey) = expected else {
                assert_eq!(rows.len(), index);
                continue;
            };
            let row = rows.row(index);
            assert_eq!(row.multikey, multikey);
            assert!(row.keys().eq(alone.iter()), "{pattern:?} of {doc:?}");
            assert!(row.entries().eq(alone.iter().map(|key| [key, &suffix].concat())));
        }
    }

    #[test]
    fn repeated_fields_and_strings_of_any_length() {
        let mut repeated = crate::DocBuilder::new();
        repeated.append("a", 1).append("a", 2).append("b", "x".repeat(40)).append("b", 3);
        check(&repeated.finish(), |_| true);
        for length in 0..40 {
            check(&doc! { "a": "y".repeat(length), "c": [1, "z".repeat(length), 1] }, |_| true);
        }
    }

    #[test]
    fn all_rows_together() {
        let (patterns, doc) = (patterns(), doc! { "a": 5, "b": "x", "c": [3, 1, 3] });
        let (mut rows, mut alone) = (RowBuf::default(), KeyBuf::new());
        let set = KeySet::new(&patterns);
        for _ in 0..2 {
            set.keys(doc.raw(), &[], |_| true, &mut rows).unwrap();
            assert_eq!(rows.len(), patterns.len());
            for (index, pattern) in patterns.iter().enumerate() {
                pattern.keys(doc.raw(), &mut alone).unwrap();
                assert!(rows.row(index).keys().eq(alone.iter()), "{pattern:?}");
            }
        }
        assert_eq!(rows.row(patterns.len()).keys().len(), 0);
    }

    proptest::proptest! {
        #[test]
        fn rows_are_the_keys_of_each_pattern(doc in document(), unwanted in 0usize..30) {
            check(&doc, |index| index != unwanted);
        }
    }
}
