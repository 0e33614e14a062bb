//! Sorting documents (MongoDB manual, "cursor.sort()").
//!
//! Sort keys are index keys: bytes whose order is the documents' order, so an index on the same fields holds
//! the documents in exactly this order. Of an array the least element counts in ascending and the greatest in
//! descending order; a missing field is null, an empty array is below it.
//!
//! Keys of unequal documents can be equal: sort stably, or add a tie-break of your own.

use crate::collation::Collation;
use crate::doc::{Element, RawDoc};
use crate::error::{Error, Result, code};
use crate::key::{Direction, KeyBuf, KeyField, KeyPattern};
use crate::number::to_integral;
use crate::path::Path;
use crate::value::Value;
use std::cmp::Ordering;
use std::sync::Arc;

/// An order of documents.
#[derive(Clone, PartialEq, Debug)]
pub struct Sort {
    pattern: KeyPattern,
    natural: Option<Direction>,
}

impl Sort {
    /// Reads a sort document. Directions are 1 and -1 of any numeric type; `$natural` stands alone.
    ///
    /// Errors: 15975 for any other direction, 16410, 15998, 40352 and 40353 for impossible paths,
    /// `BadValue` for a wrong `$natural`, `CommandNotSupported` for `$meta`.
    pub fn parse(sort: RawDoc<'_>, collation: Option<Arc<Collation>>) -> Result<Sort> {
        let mut fields = Vec::new();
        let mut natural = None;
        for field in sort {
            if field.key() == "$natural" {
                natural = Some(natural_direction(field)?);
            } else {
                fields.push(KeyField { path: field_path(field.key())?, direction: direction(field)? });
            }
        }
        if natural.is_some() && !fields.is_empty() {
            return Err(Error::bad_value("Cannot include '$natural' in compound sort"));
        }
        Ok(Sort { pattern: KeyPattern::from_fields(fields).collated(collation), natural })
    }

    /// The same order with text in that of a collation.
    pub(crate) fn collated(self, collation: Option<Arc<Collation>>) -> Sort {
        Sort { pattern: self.pattern.collated(collation), ..self }
    }

    /// The fields, in order.
    pub fn fields(&self) -> &[KeyField] {
        self.pattern.fields()
    }

    /// How text compares.
    pub fn collation(&self) -> Option<&Collation> {
        self.pattern.collation()
    }

    /// The order of the storage, forwards or backwards, if that is what was asked for.
    pub fn natural(&self) -> Option<Direction> {
        self.natural
    }

    /// Whether no order was asked for.
    pub fn is_empty(&self) -> bool {
        self.fields().is_empty() && self.natural.is_none()
    }

    /// The bytes that order a document. Error: arrays on two of the paths.
    pub fn key(&self, doc: RawDoc<'_>) -> Result<Vec<u8>> {
        let mut keys = KeyBuf::new();
        self.key_in(doc, &mut keys).map(<[u8]>::to_vec)
    }

    /// Like [`Sort::key`], in a buffer that is reused.
    pub fn key_in<'b>(&self, doc: RawDoc<'_>, keys: &'b mut KeyBuf) -> Result<&'b [u8]> {
        self.pattern.keys(doc, keys).map_err(|error| match error.code.number {
            171 => Error::bad_value("cannot sort with keys that are parallel arrays"),
            _ => error,
        })?;
        Ok(keys.iter().next().unwrap_or_default())
    }

    /// Orders two documents. For many documents make their keys once instead.
    pub fn compare(&self, a: RawDoc<'_>, b: RawDoc<'_>) -> Result<Ordering> {
        let (mut x, mut y) = (KeyBuf::new(), KeyBuf::new());
        Ok(self.key_in(a, &mut x)?.cmp(self.key_in(b, &mut y)?))
    }
}

/// A path in a specification whose names are field names. Errors as MongoDB's for impossible paths.
pub(crate) fn field_path(text: &str) -> Result<Path> {
    /// Deepest path (MongoDB refuses documents nested deeper than 200; ours at half of that).
    const PARTS_MAX: usize = crate::MAX_DEPTH;
    if text.is_empty() {
        return Err(Error::location(40352, "FieldPath cannot be constructed with empty string"));
    }
    if text.ends_with('.') {
        return Err(Error::location(40353, "FieldPath must not end with a '.'."));
    }
    let path = Path::new(text);
    if path.parts().len() > PARTS_MAX {
        return Err(Error::new(
            code::OVERFLOW,
            format!("FieldPath is too long, more than {PARTS_MAX} names"),
        ));
    }
    for part in path.parts() {
        if part.name().is_empty() {
            return Err(Error::location(15998, "FieldPath field names may not be empty strings."));
        }
        if part.name().starts_with('$') && !matches!(part.name(), "$id" | "$ref" | "$db") {
            let message =
                "FieldPath field names may not start with '$'. Consider using $getField or $setField.";
            return Err(Error::location(16410, message));
        }
    }
    Ok(path)
}

fn natural_direction(field: Element<'_>) -> Result<Direction> {
    match to_integral(field.value()) {
        Some(1) => Ok(Direction::Ascending),
        Some(-1) => Ok(Direction::Descending),
        _ => Err(Error::bad_value("$natural sort cannot be set to a value other than -1 or 1.")),
    }
}

fn direction(field: Element<'_>) -> Result<Direction> {
    match field.value() {
        Value::Document(meta) if meta.element("$meta").is_some() => {
            let name = meta.get("$meta").and_then(|value| value.as_str()).unwrap_or_default();
            Err(Error::new(
                code::COMMAND_NOT_SUPPORTED,
                format!("sorting by $meta '{name}' is not supported"),
            ))
        }
        value => match to_integral(value) {
            Some(1) => Ok(Direction::Ascending),
            Some(-1) => Ok(Direction::Descending),
            None if !value.is_number() => {
                Err(Error::location(15974, format!("Illegal key in $sort specification: {}", field.key())))
            }
            _ => {
                let message = "$sort key ordering must be 1 (for ascending) or -1 (for descending)";
                Err(Error::location(15975, message))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decimal128, Doc, Owned, doc};

    fn sort(spec: Doc) -> Sort {
        Sort::parse(spec.raw(), None).unwrap()
    }

    #[test]
    fn orders_documents() {
        use Ordering::{Equal, Greater, Less};
        let cases = [
            (doc! { "a": 1 }, doc! { "a": 1 }, doc! { "a": 2.5 }, Less),
            (doc! { "a": -1i64 }, doc! { "a": 1 }, doc! { "a": 2.5 }, Greater),
            (doc! { "a": -1.0 }, doc! {}, doc! { "a": 1 }, Greater),
            (doc! { "a": Decimal128::from(1) }, doc! {}, doc! { "a": 1 }, Less),
            (doc! { "a": 1 }, doc! {}, doc! { "a": null }, Equal),
            (doc! { "a": 1 }, doc! { "a": [] }, doc! { "a": null }, Less),
            (doc! { "a": 1 }, doc! { "a": [5, 1] }, doc! { "a": 2 }, Less),
            (doc! { "a": -1 }, doc! { "a": [5, 1] }, doc! { "a": 4 }, Less),
            (doc! { "a": 1, "b": -1 }, doc! { "a": 1, "b": 1 }, doc! { "a": 1, "b": 2 }, Greater),
            (doc! { "a.b": 1 }, doc! { "a": { "b": 1 } }, doc! { "a": [{ "b": 2 }, { "b": 3 }] }, Less),
            (doc! { "a": 1 }, doc! { "a": "x" }, doc! { "a": true }, Less),
            (doc! { "a": 1 }, doc! { "a": i64::MAX }, doc! { "a": 9223372036854775808.0 }, Less),
            (doc! {}, doc! { "a": 1 }, doc! { "a": 2 }, Equal),
        ];
        for (spec, a, b, expected) in cases {
            let sort = sort(spec.clone());
            assert_eq!(sort.compare(a.raw(), b.raw()), Ok(expected), "{spec:?}: {a:?}, {b:?}");
            assert_eq!(sort.compare(b.raw(), a.raw()), Ok(expected.reverse()));
            assert_eq!(sort.key(a.raw()).unwrap().cmp(&sort.key(b.raw()).unwrap()), expected);
        }
    }

    #[test]
    fn refuses_what_is_wrong() {
        let cases = [
            (doc! { "a": 2 }, 15975),
            (doc! { "a": 0 }, 15975),
            (doc! { "a": "x" }, 15974),
            (doc! { "a": { "$meta": "textScore" } }, 115),
            (doc! { "$natural": 2 }, 2),
            (doc! { "$natural": 1, "a": 1 }, 2),
            (doc! { "$a": 1 }, 16410),
            (doc! { "a..b": 1 }, 15998),
            (doc! { "a.": 1 }, 40353),
            (doc! { "": 1 }, 40352),
        ];
        for (spec, number) in cases {
            assert_eq!(Sort::parse(spec.raw(), None).unwrap_err().code.number, number, "{spec:?}");
        }
        let both = sort(doc! { "a": 1, "b": 1 });
        assert_eq!(both.key(doc! { "a": [1], "b": [1] }.raw()).unwrap_err().code.number, 2);
    }

    #[test]
    fn natural_order() {
        assert_eq!(sort(doc! { "$natural": -1.0 }).natural(), Some(Direction::Descending));
        assert!(!sort(doc! { "$natural": 1 }).is_empty());
        assert!(sort(doc! {}).is_empty());
    }

    #[cfg(feature = "collation")]
    #[test]
    fn text_in_a_language() {
        let collation = Collation::parse(doc! { "locale": "en" }.raw()).unwrap();
        let sort = Sort::parse(doc! { "a": -1 }.raw(), collation).unwrap();
        let (a, b) = (doc! { "a": Owned::String("a".into()) }, doc! { "a": "B" });
        assert_eq!(sort.compare(a.raw(), b.raw()), Ok(Ordering::Greater));
    }
}
