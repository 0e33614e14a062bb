//! Field paths: `$a.b`, `$$variable.a.b`.
//!
//! A path through an array gives the array of what it finds in the documents among its elements; a number
//! in a path is a field name, never a position (MongoDB manual, "Field Paths").

use super::{Context, Val};
use crate::path::{Part, Path};
use crate::{Doc, DocBuilder, Owned, RawDoc, Value};

/// What a path starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// `$$CURRENT`, and all paths without a variable.
    Current,
    Root,
    Now,
    ClusterTime,
    Remove,
    /// A surrounding variable, by its place.
    Outer(usize),
    /// A variable that the expression binds, by its slot.
    Local(usize),
}

pub(super) fn eval<'v>(base: &Base, parts: &[Box<str>], context: &Context<'v>) -> Val<'v> {
    let start = match base {
        Base::Current => context.current,
        Base::Root => Value::Document(context.root),
        Base::Now => Value::DateTime(context.now_ms),
        Base::ClusterTime => Value::Timestamp(context.cluster_time),
        Base::Remove => return Val::Missing,
        Base::Outer(index) => match context.values.get(*index) {
            Some(value) => value.value(),
            None => return Val::Missing,
        },
        Base::Local(slot) => match context.locals.get(*slot).copied().flatten() {
            Some(value) => value,
            None => return Val::Missing,
        },
    };
    get_path(start, parts)
}

/// What a path finds in a value.
pub(crate) fn get_path<'v>(value: Value<'v>, parts: &[Box<str>]) -> Val<'v> {
    let Some((head, rest)) = parts.split_first() else { return Val::Ref(value) };
    match value {
        Value::Document(doc) => match doc.get(head) {
            Some(found) => get_path(found, rest),
            None => Val::Missing,
        },
        Value::Array(array) => {
            let mut found = DocBuilder::new();
            for item in array.values().filter(|item| matches!(item, Value::Document(_))) {
                if let Some(value) = get_path(item, parts).get() {
                    found.push_value(value);
                }
            }
            Val::Own(Owned::Array(found.finish()))
        }
        _ => Val::Missing,
    }
}

/// The document with one field set, or removed if there is no value; a new field comes last.
pub(crate) fn with_field(doc: RawDoc<'_>, name: &str, value: Option<Value<'_>>) -> DocBuilder {
    let mut changed = DocBuilder::with_capacity(doc.bytes().len() + 32);
    let mut done = false;
    for element in doc {
        if element.key_bytes() != name.as_bytes() {
            changed.append_element(element);
        } else if let (Some(value), false) = (value, done) {
            changed.append_value(name, value);
            done = true;
        }
    }
    if let (Some(value), false) = (value, done) {
        changed.append_value(name, value);
    }
    changed
}

/// The document with the value at a path set, or removed if there is none. What is no document on the way
/// is replaced by one, unless the value is removed.
pub(crate) fn with_path(doc: RawDoc<'_>, path: &Path, value: Option<Value<'_>>) -> Doc {
    set_parts(doc, path.parts(), value)
}

fn set_parts(doc: RawDoc<'_>, parts: &[Part], value: Option<Value<'_>>) -> Doc {
    let Some((head, rest)) = parts.split_first() else { return doc.to_doc() };
    if rest.is_empty() {
        return with_field(doc, head.name(), value).finish();
    }
    match (doc.get(head.name()), value) {
        (Some(Value::Document(nested)), _) => {
            let nested = set_parts(nested, rest, value);
            with_field(doc, head.name(), Some(Value::Document(nested.raw()))).finish()
        }
        (_, None) => doc.to_doc(),
        (_, Some(_)) => {
            let nested = set_parts(RawDoc::empty(), rest, value);
            with_field(doc, head.name(), Some(Value::Document(nested.raw()))).finish()
        }
    }
}
