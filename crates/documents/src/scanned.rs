//! A document whose fields were found once, for asking many filters about it.
//!
//! A filter that walks the document pays for every field it passes. Where many filters look at one document, as
//! change streams do at an event, one walk notes the fields, those of nested documents included, and each
//! filter finds them by the hash of their path.
//!
//! Invariants
//! * A field found here is the one that [`RawDoc::get`] finds: of repeated names the first.
//! * At most [`FIELDS_MAX`] fields are noted, the upper levels first; what is not noted is looked up as ever.

use crate::doc::{Doc, RawDoc};
use crate::path::{Found, Leaves, Part, Path, hash_name, walk_value};
use crate::value::Value;
use std::ops::ControlFlow;

/// Most fields of a document that are noted.
const FIELDS_MAX: usize = 512;
/// Room for fields that is made at once.
const FIELDS_USUAL: usize = 40;
/// Fields of nested documents are noted down to this level (1 is the top).
const LEVELS_MAX: usize = 3;
/// Chains that fields are found in.
const CHAINS: usize = 128;
/// Ends a chain; stands for "no parent" too.
const NONE: u16 = u16::MAX;

/// A document and its fields.
#[derive(Debug)]
pub struct Scanned<'d> {
    doc: &'d Doc,
    fields: Vec<Field<'d>>,
    chains: [u16; CHAINS],
    /// Fields below this one of `fields` had all theirs noted.
    complete: usize,
    /// Whether all fields at the top are noted.
    whole_top: bool,
}

#[derive(Clone, Copy, Debug)]
struct Field<'d> {
    name: &'d [u8],
    value: Value<'d>,
    /// The hash of the path that leads here.
    hash: u64,
    parent: u16,
    /// The next field of the chain.
    next: u16,
    level: u8,
}

impl<'d> Scanned<'d> {
    /// Walks a document.
    pub fn new(doc: &'d Doc) -> Scanned<'d> {
        let mut scanned = Scanned {
            doc,
            fields: Vec::with_capacity(FIELDS_USUAL),
            chains: [NONE; CHAINS],
            complete: 0,
            whole_top: false,
        };
        scanned.whole_top = scanned.note(doc.raw(), NONE, 0, 0);
        while let Some(field) = scanned.fields.get(scanned.complete) {
            if let (Value::Document(nested), true) = (field.value, usize::from(field.level) < LEVELS_MAX) {
                let (hash, level) = (field.hash, field.level);
                if !scanned.note(nested, scanned.complete as u16, hash, level) {
                    break;
                }
            }
            scanned.complete += 1;
        }
        scanned
    }

    /// The document.
    pub fn doc(&self) -> &'d Doc {
        self.doc
    }

    /// The first top-level field of this name.
    pub fn get(&self, name: &str) -> Option<Value<'d>> {
        let hash = hash_name(0, name.as_bytes());
        match self.find(hash, |field| field.parent == NONE && field.name == name.as_bytes()) {
            Some(index) => Some(self.fields[index].value),
            None if self.whole_top => None,
            None => self.doc.get(name),
        }
    }

    /// Calls `visit` with what a path leads to, until it breaks: [`Path::for_each_value`].
    pub fn for_each_value<B>(
        &self,
        path: &Path,
        leaves: Leaves,
        visit: &mut impl FnMut(Found<'d>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let (value, rest) = self.start(path);
        walk_value(value, rest, leaves, None, visit)
    }

    /// The value after as many parts of a path as lead through documents, and the parts that are left. Without
    /// a value the path leads nowhere.
    #[inline]
    pub(crate) fn start<'p>(&self, path: &'p Path) -> (Option<Value<'d>>, &'p [Part]) {
        let parts = path.parts();
        // Nearly always the whole path is there.
        for length in (1..=parts.len().min(LEVELS_MAX)).rev() {
            let (known, rest) = parts.split_at(length);
            let Some(index) = self.find_path(known) else { continue };
            let value = self.fields[index].value;
            return match (value, rest) {
                (_, []) | (Value::Array(_), _) => (Some(value), rest),
                // The next field was not found; if it is not only not noted, it is not there.
                (Value::Document(_), _) if length == LEVELS_MAX || index >= self.complete => {
                    (Some(value), rest)
                }
                (_, [_, after @ ..]) => (None, after),
            };
        }
        match parts.split_first() {
            Some((first, rest)) if !self.whole_top => (self.doc.get(first.name()), rest),
            Some((_, rest)) => (None, rest),
            None => (None, parts),
        }
    }

    /// Notes the fields of a document; false once there are too many.
    fn note(&mut self, doc: RawDoc<'d>, parent: u16, hash: u64, level: u8) -> bool {
        for element in doc {
            let name = element.key_bytes();
            let hash = hash_name(hash, name);
            if self.find(hash, |field| field.parent == parent && field.name == name).is_some() {
                continue;
            }
            if self.fields.len() == FIELDS_MAX {
                return false;
            }
            let chain = chain(hash);
            let next = std::mem::replace(&mut self.chains[chain], self.fields.len() as u16);
            self.fields.push(Field { name, value: element.value(), hash, parent, next, level: level + 1 });
        }
        true
    }

    #[inline]
    fn find(&self, hash: u64, is_it: impl Fn(&Field<'d>) -> bool) -> Option<usize> {
        let mut at = self.chains[chain(hash)];
        loop {
            let field = self.fields.get(usize::from(at))?;
            if field.hash == hash && is_it(field) {
                return Some(usize::from(at));
            }
            at = field.next;
        }
    }

    #[inline]
    fn find_path(&self, parts: &[Part]) -> Option<usize> {
        let (last, parents) = parts.split_last()?;
        self.find(last.path_hash(), |field| {
            field.name == last.name().as_bytes() && self.is_below(field.parent, parents)
        })
    }

    /// Whether a parent lies at the end of these parts.
    #[inline]
    fn is_below(&self, parent: u16, parts: &[Part]) -> bool {
        match (self.fields.get(usize::from(parent)), parts.split_last()) {
            (None, None) => true,
            (Some(field), Some((last, parents))) => {
                field.name == last.name().as_bytes() && self.is_below(field.parent, parents)
            }
            _ => false,
        }
    }
}

fn chain(hash: u64) -> usize {
    (hash >> 57) as usize % CHAINS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::document;
    use crate::filter::{Filter, FilterOptions};
    use crate::{DocBuilder, Owned, doc};

    fn query(path: &str, condition: &Owned) -> Doc {
        let mut query = DocBuilder::new();
        query.append(path, condition);
        query.finish()
    }

    fn check(doc: &Doc, path: &str) {
        let scanned = Scanned::new(doc);
        let bytes = |value: Option<Value<'_>>| value.map(|value| doc! { "": (value.to_owned()) }); // NaN is not equal to itself
        assert_eq!(bytes(scanned.get(path)), bytes(doc.get(path)), "{path} in {doc:?}");
        let values = [Owned::Int32(1), Owned::Null, Owned::String("a".into())];
        let unequal = values.iter().map(|value| Owned::Document(doc! { "$ne": value }));
        let more = [doc! { "$size": 1 }, doc! { "$in": ["a", "b", 2] }, doc! { "$exists": true }];
        for condition in unequal.chain(values.clone()).chain(more.map(Owned::Document)) {
            let filter = Filter::parse(query(path, &condition).raw(), &FilterOptions::default()).unwrap();
            let expected = filter.matches(doc.raw());
            assert_eq!(filter.matches_scanned(&scanned), expected, "{path}: {condition:?} on {doc:?}");
        }
    }

    const PATHS: [&str; 9] = ["a", "b", "zz", "a.b", "a.b.c", "a.b.c.a", "a.0", "a.b.0.c", ""];

    #[test]
    fn deep_and_repeated_fields() {
        let mut out = DocBuilder::new();
        out.append("a", doc! { "b": { "c": { "a": 1, "b": { "c": 1 } } } }).append("a", 1).append("b", 2);
        out.append("b", doc! { "a": 1 }).append("", doc! { "": 1 });
        let doc = out.finish();
        PATHS.iter().chain(&["a.b.c.b.c", ".", "b.a"]).for_each(|path| check(&doc, path));
    }

    #[test]
    fn more_fields_than_are_noted() {
        let mut out = DocBuilder::new();
        out.append("a", doc! { "b": { "c": 1 }, "x": 1 });
        for n in 0..400 {
            out.append(&format!("f{n}"), doc! { "b": n, "c": 1 });
        }
        out.append("b", doc! { "c": [{ "a": 1 }] });
        let doc = out.finish();
        for path in
            ["a.b.c", "a.x", "f0.b", "f0.c", "f50.c", "f399.c", "f399.b", "f399.d", "f400", "b.c.a", "b.d"]
        {
            check(&doc, path);
        }
        let mut out = DocBuilder::new();
        for n in 0..600 {
            out.append(&format!("f{n}"), 1);
        }
        out.append("a", doc! { "b": 1 });
        let doc = out.finish();
        ["f0", "f511", "f512", "f599", "f600", "a.b", "a.c", "f599.a"]
            .iter()
            .for_each(|path| check(&doc, path));
    }

    proptest::proptest! {
        #[test]
        fn filters_match_as_on_the_document(doc in document()) {
            PATHS.iter().for_each(|path| check(&doc, path));
        }
    }
}
