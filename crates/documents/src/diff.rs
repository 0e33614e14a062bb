//! What an update changed, field by field: made for change events and for the log, applied by followers.
//!
//! Invariants
//! * `apply(old, diff(old, new))` is `new`, field order included; a change that fields cannot tell (a new
//!   order, names with dots) has no description.
//! * Paths are dotted; positions of arrays are components too.
//! * Appended elements are told one by one (`a.3`), a cut array by its new length, and an array that became
//!   empty as a whole (`a: []`), because consumers match on it.

use crate::path::array_index;
use crate::update::{ChildOrder, Fields, Op, Scope, run};
use crate::{Doc, DocBuilder, Element, Error, RawDoc, Result, Value};

/// The changes of a document, as MongoDB's change events tell them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct UpdateDescription {
    /// New values by path.
    pub updated_fields: Doc,
    /// Paths that are gone.
    pub removed_fields: Vec<String>,
    /// Arrays that were cut, with their new length.
    pub truncated_arrays: Vec<(String, i32)>,
}

impl UpdateDescription {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.updated_fields.raw().is_empty()
            && self.removed_fields.is_empty()
            && self.truncated_arrays.is_empty()
    }

    /// The document of a change event: `updatedFields`, `removedFields`, `truncatedArrays`.
    pub fn to_doc(&self) -> Doc {
        let mut doc = DocBuilder::with_capacity(self.updated_fields.bytes().len() + 80);
        doc.append("updatedFields", &self.updated_fields);
        doc.start_array("removedFields");
        for path in &self.removed_fields {
            doc.push(path.as_str());
        }
        doc.end();
        doc.start_array("truncatedArrays");
        for (path, size) in &self.truncated_arrays {
            doc.push_document().append("field", path.as_str()).append("newSize", *size).end();
        }
        doc.finish()
    }

    /// Reads what [`UpdateDescription::to_doc`] wrote.
    ///
    /// # Errors
    /// `FailedToParse` if a field is missing or has another type.
    pub fn from_doc(doc: RawDoc<'_>) -> Result<UpdateDescription> {
        let wrong = |field: &str| Error::failed_to_parse(format!("update description: bad field '{field}'"));
        let updated = doc.get("updatedFields").and_then(|value| value.as_document());
        let removed = doc.get("removedFields").and_then(|value| value.as_array());
        let truncated = doc.get("truncatedArrays").and_then(|value| value.as_array());
        let removed = removed.ok_or_else(|| wrong("removedFields"))?.values();
        let truncated = truncated.ok_or_else(|| wrong("truncatedArrays"))?.values();
        Ok(UpdateDescription {
            updated_fields: updated.ok_or_else(|| wrong("updatedFields"))?.to_doc(),
            removed_fields: removed
                .map(|path| path.as_str().map(String::from).ok_or_else(|| wrong("removedFields")))
                .collect::<Result<_>>()?,
            truncated_arrays: truncated
                .map(|entry| truncated_array(entry).ok_or_else(|| wrong("truncatedArrays")))
                .collect::<Result<_>>()?,
        })
    }
}

fn truncated_array(entry: Value<'_>) -> Option<(String, i32)> {
    let entry = entry.as_document()?;
    let size = i32::try_from(entry.get("newSize")?.as_integer()?).ok()?;
    Some((entry.get("field")?.as_str()?.to_string(), size))
}

/// The paths of a change event's update description that can be read in two ways, with their parts (MongoDB manual,
/// update event: `disambiguatedPaths`): a number may be the name of a field or a position in an array. A part is a
/// string or, for a position, an integer. `after` is the document after the update.
pub fn disambiguated(description: RawDoc<'_>, after: RawDoc<'_>) -> Doc {
    let list = |field: &str, of: fn(Value<'_>) -> Option<&str>| -> Vec<&str> {
        let list = description.get(field).and_then(|list| list.as_array());
        list.into_iter().flat_map(|list| list.values()).filter_map(of).collect()
    };
    let updated = description.get("updatedFields").and_then(|fields| fields.as_document());
    let updated = updated.into_iter().flatten().map(|element| element.key());
    let removed = list("removedFields", |path| path.as_str());
    let truncated = list("truncatedArrays", |entry| entry.as_document()?.get("field")?.as_str());
    let mut out = DocBuilder::new();
    for path in updated.chain(removed).chain(truncated) {
        let parts = parts(path, after);
        let is_ambiguous = |part: &Part<'_>| matches!(part, Part::Name(name) if array_index(name).is_some());
        if !parts.iter().any(is_ambiguous) {
            continue;
        }
        out.start_array(path);
        for part in parts {
            match part {
                Part::Name(name) => out.push(name),
                Part::Position(position) => out.push(position),
            };
        }
        out.end();
    }
    out.finish()
}

/// A part of a path.
enum Part<'p> {
    Name(&'p str),
    Position(i32),
}

/// The parts of a path as the document has them. The last may be gone.
fn parts<'p>(path: &'p str, doc: RawDoc<'_>) -> Vec<Part<'p>> {
    let mut at = Some(Value::Document(doc));
    let mut parts = Vec::new();
    for name in path.split('.') {
        let position = array_index(name).and_then(|position| i32::try_from(position).ok());
        parts.push(match (at, position) {
            (Some(Value::Array(_)), Some(position)) => Part::Position(position),
            _ => Part::Name(name),
        });
        at = match at {
            Some(Value::Document(inner) | Value::Array(inner)) => inner.get(name),
            _ => None,
        };
    }
    parts
}

/// What makes `new` out of `old`, or `None` if fields cannot tell it: then the whole document must be told.
pub fn diff(old: RawDoc<'_>, new: RawDoc<'_>) -> Option<UpdateDescription> {
    let mut changes = Changes::default();
    changes.documents(old, new)?;
    let mut updated = DocBuilder::new();
    for (path, element) in &changes.updated {
        updated.append_renamed(path, *element);
    }
    Some(UpdateDescription {
        updated_fields: updated.finish(),
        removed_fields: changes.removed,
        truncated_arrays: changes.truncated,
    })
}

/// The document that the described changes make out of `old`.
///
/// # Errors
/// Those of an update whose paths conflict or lead through a scalar; a description of this very document
/// has none.
pub fn apply(old: RawDoc<'_>, description: &UpdateDescription) -> Result<Doc> {
    let mut fields = Fields::default();
    for (path, size) in &description.truncated_arrays {
        fields.truncate_at(path, usize::try_from(*size).unwrap_or(0))?;
    }
    for path in &description.removed_fields {
        fields.insert(path, Op::Unset)?;
    }
    for element in description.updated_fields.raw() {
        fields.insert(element.key(), Op::Set(element.value().to_owned()))?;
    }
    let scope = Scope {
        source: old,
        is_insert: false,
        positional: None,
        filters: &[],
        collation: None,
        order: ChildOrder::Given,
    };
    Ok(run(&fields, &scope)?.doc)
}

#[derive(Default)]
struct Changes<'a> {
    updated: Vec<(String, Element<'a>)>,
    removed: Vec<String>,
    truncated: Vec<(String, i32)>,
    /// The path of the container in work, with a dot at its end unless it is the document.
    path: String,
}

/// How many changes there were at some point, to go back there.
type Mark = (usize, usize, usize);

impl<'a> Changes<'a> {
    /// Compares two documents; `None` if their order or names cannot be told.
    fn documents(&mut self, old: RawDoc<'a>, new: RawDoc<'a>) -> Option<()> {
        let old_names = names(old)?;
        let new_names = names(new)?;
        let mut new_fields = new.iter().peekable();
        for element in old {
            match new_fields.peek() {
                Some(next) if next.key_bytes() == element.key_bytes() => {
                    self.element(element, *next);
                    new_fields.next();
                }
                // The order would change if the field came again further on.
                _ if new_names.binary_search(&element.key_bytes()).is_ok() => return None,
                _ => self.removed.push(format!("{}{}", self.path, element.key())),
            }
        }
        for element in new_fields {
            if old_names.binary_search(&element.key_bytes()).is_ok() {
                return None;
            }
            self.set(element);
        }
        Some(())
    }

    /// Compares two values of one name.
    fn element(&mut self, old: Element<'a>, new: Element<'a>) {
        if old.kind_byte() == new.kind_byte() && old.raw_value() == new.raw_value() {
            return;
        }
        let mark = self.mark();
        let outer = self.path.len();
        self.path.push_str(new.key());
        self.path.push('.');
        let told = match (old.value(), new.value()) {
            (Value::Document(old), Value::Document(new)) => self.documents(old, new),
            (Value::Array(old), Value::Array(new)) if !new.is_empty() => self.arrays(old, new),
            _ => None,
        };
        self.path.truncate(outer);
        if told.is_none() || self.size_since(mark) > new.raw_value().len() {
            self.updated.truncate(mark.0);
            self.removed.truncate(mark.1);
            self.truncated.truncate(mark.2);
            self.set(new);
        }
    }

    fn arrays(&mut self, old: RawDoc<'a>, new: RawDoc<'a>) -> Option<()> {
        let mut old_items = old.iter();
        for (position, item) in new.iter().enumerate() {
            if item.key().parse() != Ok(position) {
                return None; // positions that are not what they should be cannot be told
            }
            match old_items.next() {
                Some(before) if before.key_bytes() == item.key_bytes() => self.element(before, item),
                Some(_) => return None,
                None => self.set(item),
            }
        }
        if old_items.next().is_some() {
            self.truncated.push((self.path.trim_end_matches('.').to_string(), new.len() as i32));
        }
        Some(())
    }

    fn set(&mut self, element: Element<'a>) {
        self.updated.push((format!("{}{}", self.path, element.key()), element));
    }

    fn mark(&self) -> Mark {
        (self.updated.len(), self.removed.len(), self.truncated.len())
    }

    /// About how many bytes the changes since then take.
    fn size_since(&self, mark: Mark) -> usize {
        let updated =
            self.updated[mark.0..].iter().map(|(path, element)| path.len() + element.raw_value().len());
        let removed = self.removed[mark.1..].iter().map(String::len);
        updated.chain(removed).sum()
    }
}

/// The names of the fields, sorted, or `None` if paths cannot name them all: dots, dollars, empty and double
/// names.
fn names(doc: RawDoc<'_>) -> Option<Vec<&[u8]>> {
    let mut names: Vec<&[u8]> = doc.iter().map(|element| element.key_bytes()).collect();
    names.sort_unstable();
    let plain = |name: &&[u8]| !name.is_empty() && name[0] != b'$' && !name.contains(&b'.');
    let distinct = names.windows(2).all(|pair| pair[0] != pair[1]);
    (distinct && names.iter().all(plain)).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{array, doc};
    use proptest::prelude::*;

    #[test]
    fn numbers_that_name_fields_are_told_apart_from_positions() {
        let after = doc! { "a": { "1": 2 }, "b": [{ "1": 3 }, [5]], "c": { "7": [1] } };
        let description = doc! {
            "updatedFields": { "a.1": 2, "b.0.1": 3, "b.1.0": 5, "c": 1 },
            "removedFields": ["a.9", "x"],
            "truncatedArrays": [{ "field": "c.7", "newSize": 1 }],
        };
        let parts = disambiguated(description.raw(), after.raw());
        let expected = doc! {
            "a.1": ["a", "1"], "b.0.1": ["b", 0, "1"], "a.9": ["a", "9"], "c.7": ["c", "7"],
        };
        assert_eq!(parts, expected);
    }

    fn check(old: Doc, new: Doc, expected: Option<Doc>) {
        let description = diff(old.raw(), new.raw());
        assert_eq!(description.as_ref().map(UpdateDescription::to_doc), expected, "{old:?} to {new:?}");
        if let Some(description) = description {
            assert_eq!(apply(old.raw(), &description), Ok(new));
            let read = UpdateDescription::from_doc(description.to_doc().raw());
            assert_eq!(read, Ok(description));
        }
    }

    fn told(updated: Doc, removed: Owned, truncated: Owned) -> Option<Doc> {
        Some(doc! { "updatedFields": updated, "removedFields": removed, "truncatedArrays": truncated })
    }

    use crate::Owned;

    #[test]
    fn changes_are_told_by_fields() {
        let (none, long) = (array![], "x".repeat(50));
        check(
            doc! { "a": 1 },
            doc! { "a": 2, "b": 3 },
            told(doc! { "a": 2, "b": 3 }, none.clone(), none.clone()),
        );
        check(doc! { "a": 1, "b": 2 }, doc! { "b": 2 }, told(doc! {}, array!["a"], none.clone()));
        check(
            doc! { "a": { "b": 1, "c": &long } },
            doc! { "a": { "b": 2, "c": &long } },
            told(doc! { "a.b": 2 }, none.clone(), none.clone()),
        );
        check(
            doc! { "a": [1, &long] },
            doc! { "a": [1, &long, 3] },
            told(doc! { "a.2": 3 }, none.clone(), none.clone()),
        );
        check(
            doc! { "a": [&long, 2, 3] },
            doc! { "a": [&long] },
            told(doc! {}, none.clone(), array![{ "field": "a", "newSize": 1 }]),
        );
        check(doc! { "a": [1] }, doc! { "a": [] }, told(doc! { "a": [] }, none.clone(), none.clone()));
        check(
            doc! { "a": { "b": 1 } },
            doc! { "a": { "c": 1 } },
            told(doc! { "a.c": 1 }, array!["a.b"], none),
        );
    }

    #[test]
    fn what_fields_cannot_tell_is_told_whole() {
        check(doc! { "a": 1, "b": 2 }, doc! { "b": 2, "a": 1 }, None);
        check(doc! { "a": 1 }, doc! { "b": 2, "a": 1 }, None);
        check(doc! { "a.b": 1 }, doc! { "a.b": 2 }, None);
        let whole = told(doc! { "a": { "c": 1, "b": 2 } }, array![], array![]);
        check(doc! { "a": { "b": 1, "c": 1 } }, doc! { "a": { "c": 1, "b": 2 } }, whole);
    }

    #[test]
    fn damaged_descriptions_are_refused() {
        assert!(UpdateDescription::from_doc(doc! { "updatedFields": {} }.raw()).is_err());
        let odd = doc! { "updatedFields": {}, "removedFields": [1], "truncatedArrays": [] };
        assert!(UpdateDescription::from_doc(odd.raw()).is_err());
    }

    fn value() -> impl Strategy<Value = Owned> {
        let leaf = prop_oneof![
            (0i32..3).prop_map(Owned::Int32),
            Just(Owned::Null),
            "[a-c]{0,12}".prop_map(Owned::String)
        ];
        leaf.prop_recursive(4, 24, 5, |inner| {
            prop_oneof![
                fields(inner.clone()).prop_map(Owned::Document),
                prop::collection::vec(inner, 0..5)
                    .prop_map(|items| crate::expr::array_of(items.iter().map(Owned::value))),
            ]
        })
    }

    fn fields(value: impl Strategy<Value = Owned>) -> impl Strategy<Value = Doc> {
        prop::collection::vec(("[a-e1]", value), 0..5).prop_map(|fields| {
            let mut doc = DocBuilder::new();
            for (index, (name, value)) in fields.iter().enumerate() {
                if !fields[..index].iter().any(|(before, _)| before == name) {
                    doc.append(name, value);
                }
            }
            doc.finish()
        })
    }

    proptest! {
        #[test]
        fn applying_a_diff_gives_the_new_document(old in fields(value()), new in fields(value())) {
            if let Some(description) = diff(old.raw(), new.raw()) {
                prop_assert_eq!(apply(old.raw(), &description).unwrap(), new, "{:?}", description);
            }
        }
    }
}
