//! Which fields an index is made of, and the keys that a document has in it.
//!
//! A document has one key unless an array lies on one of the paths; then it has one for each element
//! ("multikey"). A missing field is null, an empty array is undefined (MongoDB manual, "Multikey Indexes").
//!
//! Without arrays, making a key allocates nothing once the [`KeyBuf`] has grown.

use super::encode::{encode_key_with, hash_value, invert};
use crate::collation::Collation;
use crate::doc::{Element, RawDoc};
use crate::error::{Code, Error, Result, code};
use crate::number;
use crate::path::{Part, Path};
use crate::value::Value;
use smallvec::SmallVec;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

/// Most fields of one index (MongoDB manual, "MongoDB Limits and Thresholds").
const FIELDS_MAX: usize = 32;

/// Elements of an array up to which the other fields are looked up again for each.
const SHORT_ARRAY: usize = 4;

/// Two arrays of one document would make a key for each pair of elements.
const PARALLEL_ARRAYS: Code = Code { number: 171, name: "CannotIndexParallelArrays" };

/// How a field takes part in an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// By value.
    Ascending,
    /// By value, backwards.
    Descending,
    /// By a 64-bit hash of the value: for equality only.
    Hashed,
}

/// One field of an index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyField {
    /// The path of the field.
    pub path: Path,
    /// How it takes part.
    pub direction: Direction,
}

impl KeyField {
    /// Appends what the key of a document with this value has at this field.
    pub fn encode(&self, value: Value<'_>, collation: Option<&Collation>, out: &mut Vec<u8>) {
        match self.direction {
            Direction::Ascending => encode_key_with(value, collation, out),
            Direction::Descending => {
                let start = out.len();
                encode_key_with(value, collation, out);
                invert(&mut out[start..]);
            }
            Direction::Hashed => {
                let mut hasher = DefaultHasher::new();
                hash_value(value, collation, &mut hasher);
                encode_key_with(Value::Int64(hasher.finish() as i64), None, out);
            }
        }
    }
}

/// The fields of an index, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyPattern {
    fields: Vec<KeyField>,
    sparse: bool,
    collation: Option<Arc<Collation>>,
}

/// The keys of one document: distinct, in ascending order. Reuse it: it keeps its buffers.
#[derive(Debug, Default)]
pub struct KeyBuf {
    bytes: Vec<u8>,
    spans: Vec<(usize, usize)>,
}

impl KeyBuf {
    /// An empty buffer.
    pub fn new() -> KeyBuf {
        KeyBuf::default()
    }

    /// The keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.spans.iter().map(|(start, end)| &self.bytes[*start..*end])
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.spans.sort_unstable_by(|a, b| bytes[a.0..a.1].cmp(&bytes[b.0..b.1]));
        self.spans.dedup_by(|a, b| bytes[a.0..a.1] == bytes[b.0..b.1]);
    }
}

/// How far the walk along one field's path has come.
#[derive(Clone, Copy)]
enum Slot<'d> {
    /// At its end.
    Value(Value<'d>),
    /// At its end: there is nothing.
    Missing,
    /// So many parts are behind; `element` is what the next part, a number, picks from the array just passed.
    Open { behind: usize, element: Option<Value<'d>> },
}

type Slots<'d> = SmallVec<[Slot<'d>; 8]>;

impl KeyPattern {
    /// Reads an index's `key` document. Errors are `CannotCreateIndex` and name what is not possible.
    pub fn parse(key: RawDoc<'_>) -> Result<KeyPattern> {
        let refuse = |message: String| Err(Error::new(code::CANNOT_CREATE_INDEX, message));
        let fields = key.iter().map(parse_field).collect::<Result<Vec<_>>>()?;
        let hashed = fields.iter().filter(|field| field.direction == Direction::Hashed).count();
        match fields.len() {
            0 => refuse("Index keys cannot be empty.".into()),
            count if count > FIELDS_MAX => Err(Error::location(13103, "too many compound keys")),
            _ if hashed > 1 => Err(Error::location(
                31303,
                format!("A maximum of one index field is allowed to be hashed but found {hashed}"),
            )),
            _ => Ok(KeyPattern::from_fields(fields)),
        }
    }

    /// A pattern of these fields.
    pub fn from_fields(fields: Vec<KeyField>) -> KeyPattern {
        KeyPattern { fields, sparse: false, collation: None }
    }

    /// The same pattern for a sparse index: documents that have none of the fields have no key.
    pub fn sparse(mut self, sparse: bool) -> KeyPattern {
        self.sparse = sparse;
        self
    }

    /// The same pattern with text in the order of a collation.
    pub fn collated(mut self, collation: Option<Arc<Collation>>) -> KeyPattern {
        self.collation = collation;
        self
    }

    /// Whether documents that have none of the fields have no key.
    pub fn is_sparse(&self) -> bool {
        self.sparse
    }

    pub(super) fn shared_collation(&self) -> &Option<Arc<Collation>> {
        &self.collation
    }

    /// The collation of text.
    pub fn collation(&self) -> Option<&Collation> {
        self.collation.as_deref()
    }

    /// The fields, in order.
    pub fn fields(&self) -> &[KeyField] {
        &self.fields
    }

    /// Fills `out` with the keys of a document; says whether an array was expanded ("multikey").
    ///
    /// Errors: two arrays on different paths (171), a number that is both a position and a field name in one
    /// array (16746), an array at a hashed field (16766). `out` is then empty.
    pub fn keys(&self, doc: RawDoc<'_>, out: &mut KeyBuf) -> Result<bool> {
        out.clear();
        let multikey = match self.simple_keys(doc, out) {
            Some(multikey) => multikey,
            None => {
                out.clear();
                let open = Slot::Open { behind: 0, element: None };
                let slots = self.fields.iter().map(|_| open).collect();
                self.expand(doc, slots, out).inspect_err(|_| out.clear())?
            }
        };
        if multikey {
            out.sort();
        }
        Ok(multikey)
    }

    /// Makes the keys of a document with no array on the paths, or with one short array at the end of one
    /// path, without keeping track of anything; false if the document is not so simple.
    fn simple_keys<'d>(&self, doc: RawDoc<'d>, out: &mut KeyBuf) -> Option<bool> {
        let array = match self.simple_key(doc, None, out)? {
            None => return Some(false),
            Some(array) => array,
        };
        out.clear();
        if array.1.iter().nth(SHORT_ARRAY).is_some() {
            return None;
        }
        if array.1.is_empty() {
            self.simple_key(doc, Some((array.0, Value::Undefined)), out)?;
        }
        for value in array.1.values() {
            self.simple_key(doc, Some((array.0, value)), out)?;
        }
        Some(true)
    }

    /// Appends a key, taking the value of one field from `element` if given. If there is an array at the end
    /// of one other path, returns that field's position and the array instead; `None` if there are more.
    fn simple_key<'d>(
        &self,
        doc: RawDoc<'d>,
        element: Option<(usize, Value<'d>)>,
        out: &mut KeyBuf,
    ) -> Option<Option<(usize, RawDoc<'d>)>> {
        let (start, mut missing, mut array) = (out.bytes.len(), 0, None);
        for (index, field) in self.fields.iter().enumerate() {
            let value = match element {
                Some((chosen, value)) if chosen == index => Some(value),
                _ => match simple_value(doc, field.path.parts())? {
                    Some(Value::Array(_)) if array.is_some() || field.direction == Direction::Hashed => {
                        return None;
                    }
                    Some(Value::Array(found)) => {
                        array = Some((index, found));
                        continue;
                    }
                    value => value,
                },
            };
            missing += usize::from(value.is_none());
            field.encode(value.unwrap_or(Value::Null), self.collation(), &mut out.bytes);
        }
        if array.is_none() && (!self.sparse || missing < self.fields.len()) {
            out.spans.push((start, out.bytes.len()));
        }
        Some(array)
    }

    /// Continues all open slots in `doc` up to the first array, then in each of its elements.
    fn expand<'d>(&self, doc: RawDoc<'d>, mut slots: Slots<'d>, out: &mut KeyBuf) -> Result<bool> {
        let mut array: Option<(&Part, RawDoc<'d>)> = None;
        for (slot, field) in slots.iter_mut().zip(&self.fields) {
            let Slot::Open { behind, element } = *slot else { continue };
            let parts = field.path.parts();
            let (next, found) = advance(doc, parts, behind, element)?;
            *slot = next;
            let Some((reached, found)) = found else { continue };
            if field.direction == Direction::Hashed {
                return Err(Error::location(
                    16766,
                    format!(
                        "hashed indexes do not currently support array values. Found array at path: {}",
                        field.path
                    ),
                ));
            }
            let name = &parts[reached - 1];
            match array {
                Some((other, first)) if !std::ptr::eq(first.bytes(), found.bytes()) => {
                    let message =
                        format!("cannot index parallel arrays [{}] [{}]", name.name(), other.name());
                    return Err(Error::new(PARALLEL_ARRAYS, message));
                }
                _ => array = Some((name, found)),
            }
        }
        let Some((_, array)) = array else {
            self.emit(&slots, out);
            return Ok(false);
        };
        for (slot, field) in slots.iter_mut().zip(&self.fields) {
            if let Slot::Open { behind, element } = slot {
                let index = field.path.parts().get(*behind).and_then(Part::index);
                *element = index.and_then(|index| array.values().nth(index));
            }
        }
        if array.is_empty() {
            self.expand_element(Value::Undefined, &slots, out)?;
        }
        for value in array.values() {
            self.expand_element(value, &slots, out)?;
        }
        Ok(true)
    }

    /// One element of the array that the open slots have reached.
    fn expand_element<'d>(&self, value: Value<'d>, slots: &Slots<'d>, out: &mut KeyBuf) -> Result<()> {
        let slots = slots.iter().zip(&self.fields).map(|(slot, field)| match *slot {
            Slot::Open { behind, .. } if behind == field.path.parts().len() => Slot::Value(value),
            other => other,
        });
        let nested = value.as_document().unwrap_or(RawDoc::empty());
        self.expand(nested, slots.collect(), out).map(drop)
    }

    fn emit(&self, slots: &Slots<'_>, out: &mut KeyBuf) {
        if self.sparse && slots.iter().all(|slot| matches!(slot, Slot::Missing)) {
            return;
        }
        let start = out.bytes.len();
        for (slot, field) in slots.iter().zip(&self.fields) {
            let value = if let Slot::Value(value) = slot { *value } else { Value::Null };
            field.encode(value, self.collation(), &mut out.bytes);
        }
        out.spans.push((start, out.bytes.len()));
    }
}

/// The value at the end of a path that leads through documents only; `None` if an array lies before its end.
fn simple_value<'d>(doc: RawDoc<'d>, parts: &[Part]) -> Option<Option<Value<'d>>> {
    let (first, rest) = parts.split_first()?;
    rest.iter().try_fold(doc.get(first.name()), |value, part| match value {
        Some(Value::Document(nested)) => Some(nested.get(part.name())),
        Some(Value::Array(_)) => None,
        _ => Some(None),
    })
}

/// Follows a path from the part after `behind` on: to its end, or to an array on the way (returned with the number of parts
/// that led to it, at least one).
fn advance<'d>(
    doc: RawDoc<'d>,
    parts: &[Part],
    behind: usize,
    element: Option<Value<'d>>,
) -> Result<(Slot<'d>, Option<(usize, RawDoc<'d>)>)> {
    let name = parts[behind].name();
    let value = match (doc.get(name), element) {
        (Some(_), Some(_)) => {
            return Err(Error::location(
                16746,
                format!(
                    "Ambiguous field name found in array (do not use numeric field names in embedded \
                     elements in an array), field: '{name}'"
                ),
            ));
        }
        (found, None) => found,
        // An array picked by its position is a value as a whole where the path ends.
        (None, Some(value)) if behind + 1 == parts.len() => return Ok((Slot::Value(value), None)),
        (None, picked) => picked,
    };
    let mut next = value;
    for behind in behind + 1.. {
        match next {
            Some(Value::Array(array)) => {
                return Ok((Slot::Open { behind, element: None }, Some((behind, array))));
            }
            Some(value) if behind == parts.len() => return Ok((Slot::Value(value), None)),
            Some(Value::Document(nested)) => next = nested.get(parts[behind].name()),
            _ => break,
        }
    }
    Ok((Slot::Missing, None))
}

fn parse_field(element: Element<'_>) -> Result<KeyField> {
    let refuse = |message: String| Err(Error::new(code::CANNOT_CREATE_INDEX, message));
    let name = element.key();
    if name.split('.').any(str::is_empty) {
        return refuse("Index keys cannot contain an empty field.".into());
    }
    if name.split('.').any(|part| part == "$**") {
        return refuse(format!("wildcard indexes are not supported: '{name}'"));
    }
    if let Some(part) = name.split('.').find(|part| part.starts_with('$'))
        && !matches!(part, "$id" | "$ref" | "$db")
    {
        return refuse("Index key contains an illegal field name: field name starts with '$'.".into());
    }
    let direction = match element.value() {
        Value::String("hashed") => Direction::Hashed,
        Value::String("") => {
            return refuse("Values in the index key pattern cannot be an empty string.".into());
        }
        Value::String(kind @ ("text" | "2d" | "2dsphere" | "geoHaystack" | "columnstore" | "wildcard")) => {
            return refuse(format!("indexes of type '{kind}' are not supported"));
        }
        Value::String(kind) => return refuse(format!("Unknown index plugin '{kind}'")),
        value if value.is_number() => return parse_direction(name, value),
        value => {
            return refuse(format!(
                "Values in v:2 index key pattern cannot be of type {}. Only numbers > 0, numbers < 0, and \
                 strings are allowed.",
                value.kind().alias()
            ));
        }
    };
    Ok(KeyField { path: Path::new(name), direction })
}

fn parse_direction(name: &str, value: Value<'_>) -> Result<KeyField> {
    let refuse = |message: &str| Err(Error::new(code::CANNOT_CREATE_INDEX, message));
    if number::is_nan(value) {
        return refuse("Values in the index key pattern cannot be NaN.");
    }
    let direction = match number::compare_numbers(value, Value::Int32(0)) {
        std::cmp::Ordering::Greater => Direction::Ascending,
        std::cmp::Ordering::Less => Direction::Descending,
        std::cmp::Ordering::Equal => return refuse("Values in the index key pattern cannot be 0."),
    };
    Ok(KeyField { path: Path::new(name), direction })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::document;
    use crate::{Doc, Owned, array, doc};

    fn pattern(key: Doc) -> KeyPattern {
        KeyPattern::parse(key.raw()).unwrap()
    }

    fn encoded(fields: &[KeyField], values: &[Owned]) -> Vec<u8> {
        let mut out = Vec::new();
        fields.iter().zip(values).for_each(|(field, value)| field.encode(value.value(), None, &mut out));
        out
    }

    /// Checks that a document has exactly the keys made of these values.
    fn check(key: Doc, doc: Doc, expected: &[&[Owned]]) {
        let pattern = pattern(key.clone());
        let mut out = KeyBuf::new();
        pattern.keys(doc.raw(), &mut out).unwrap();
        let mut expected: Vec<_> = expected.iter().map(|values| encoded(&pattern.fields, values)).collect();
        expected.sort();
        assert!(out.iter().eq(expected.iter().map(Vec::as_slice)), "{key:?} of {doc:?}");
    }

    #[test]
    fn keys_of_documents() {
        use Owned::{Int32 as I, Null, Undefined};
        check(doc! { "a": 1 }, doc! { "a": 5 }, &[&[I(5)]]);
        check(doc! { "a": 1 }, doc! {}, &[&[Null]]);
        check(doc! { "a.b": 1 }, doc! { "a": 3 }, &[&[Null]]);
        check(doc! { "a": 1, "b": -1 }, doc! { "b": 2, "a": 1 }, &[&[I(1), I(2)]]);
        check(doc! { "a": 1 }, doc! { "a": [2, 1, 2] }, &[&[I(1)], &[I(2)]]);
        check(doc! { "a": 1 }, doc! { "a": [] }, &[&[Undefined]]);
        check(doc! { "a.b": 1 }, doc! { "a": [] }, &[&[Null]]);
        check(doc! { "a": 1 }, doc! { "a": [[1, 2]] }, &[&[array![1, 2]]]);
        check(
            doc! { "a.b": 1 },
            doc! { "a": [{ "b": 1 }, { "b": [2, 3] }, 4] },
            &[&[I(1)], &[I(2)], &[I(3)], &[Null]],
        );
        check(
            doc! { "a.b": 1, "a.c": 1 },
            doc! { "a": [{ "b": 1, "c": 2 }, { "b": 3 }] },
            &[&[I(1), I(2)], &[I(3), Null]],
        );
        check(doc! { "a": 1, "x": 1 }, doc! { "a": [1, 2], "x": 7 }, &[&[I(1), I(7)], &[I(2), I(7)]]);
        check(
            doc! { "a": 1, "a.b": 1 },
            doc! { "a": [{ "b": 1 }] },
            &[&[Owned::Document(doc! { "b": 1 }), I(1)]],
        );
        check(doc! { "a.1": 1 }, doc! { "a": [5, 6] }, &[&[I(6)]]);
        check(doc! { "a.0": 1 }, doc! { "a": [[1]] }, &[&[array![1]]]);
        check(doc! { "a.0.b": 1 }, doc! { "a": [{ "b": 4 }, { "b": 5 }] }, &[&[I(4)]]);
        check(doc! { "a.0.b": 1 }, doc! { "a": [[{ "b": 4 }]] }, &[&[I(4)]]);
        check(doc! { "a": "hashed", "b": 1 }, doc! { "a": 4, "b": 5 }, &[&[I(4), I(5)]]);
    }

    #[test]
    fn sparse_indexes_leave_documents_out() {
        let sparse = pattern(doc! { "a": 1, "b": 1 }).sparse(true);
        let mut out = KeyBuf::new();
        for (doc, count) in [(doc! { "c": 1 }, 0), (doc! { "b": null }, 1), (doc! { "a": [] }, 1)] {
            sparse.keys(doc.raw(), &mut out).unwrap();
            assert_eq!(out.len(), count, "{doc:?}");
        }
    }

    #[test]
    fn documents_without_keys() {
        let mut out = KeyBuf::new();
        let mut fail = |key: Doc, doc: Doc| pattern(key).keys(doc.raw(), &mut out).unwrap_err().code.number;
        assert_eq!(fail(doc! { "a": 1, "b": 1 }, doc! { "a": [1], "b": [2] }), 171);
        assert_eq!(fail(doc! { "a.b": 1, "a.c": 1 }, doc! { "a": [{ "b": [1], "c": [2] }] }), 171);
        assert_eq!(fail(doc! { "a": "hashed" }, doc! { "a": [1] }), 16766);
        assert_eq!(fail(doc! { "a.0": 1 }, doc! { "a": [{ "0": 1 }] }), 16746);
    }

    #[test]
    fn patterns_that_are_refused() {
        let cases = [
            (doc! {}, 67),
            (doc! { "a": 0 }, 67),
            (doc! { "a": f64::NAN }, 67),
            (doc! { "a": true }, 67),
            (doc! { "a": "text" }, 67),
            (doc! { "a": "2dsphere" }, 67),
            (doc! { "a": "nonsense" }, 67),
            (doc! { "$**": 1 }, 67),
            (doc! { "a.$**": 1 }, 67),
            (doc! { "$a": 1 }, 67),
            (doc! { "a..b": 1 }, 67),
            (doc! { "": 1 }, 67),
            (doc! { "a": "hashed", "b": "hashed" }, 31303),
        ];
        for (key, number) in cases {
            assert_eq!(KeyPattern::parse(key.raw()).unwrap_err().code.number, number, "{key:?}");
        }
        assert_eq!(pattern(doc! { "a": -2.5 }).fields[0].direction, Direction::Descending);
    }

    proptest::proptest! {
        #[test]
        fn any_document_has_sorted_distinct_keys(doc in document()) {
            let pattern = pattern(doc! { "a": 1, "b.c": -1 });
            let mut out = KeyBuf::new();
            let first = pattern.keys(doc.raw(), &mut out);
            proptest::prop_assert!(out.iter().is_sorted_by(|a, b| a < b));
            proptest::prop_assert_eq!(first.is_ok(), !out.is_empty());
        }
    }
}
