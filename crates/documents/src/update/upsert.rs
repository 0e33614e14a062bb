//! The document that an upsert inserts when its query matches nothing.

use super::Update;
use crate::update::{ChildOrder, Fields, Op, Scope, run};
use crate::{Code, Doc, DocBuilder, Error, ObjectId, Owned, RawDoc, Result, check_depth};

const NOT_SINGLE_VALUE_FIELD: Code = Code { number: 54, name: "NotSingleValueField" };
const NOT_EXACT_VALUE_FIELD: Code = Code { number: 111, name: "NotExactValueField" };

/// The document to insert: the fields that the query fixes, changed by the update, with `_id` first
/// (`generated_id` if neither names one).
///
/// `equalities` are the paths that the query sets equal to a value. Errors: 54 if the query fixes a path
/// twice, 111 if it fixes only a part of `_id`, 66 if the update changes the `_id` that the query fixes.
pub fn upsert_document(
    equalities: &[(String, Owned)],
    update: &Update,
    generated_id: ObjectId,
) -> Result<Doc> {
    let whole = update.is_replacement();
    let mut fields = Fields::default();
    for (path, value) in equalities {
        if path.starts_with("_id.") {
            return Err(Error::new(
                NOT_EXACT_VALUE_FIELD,
                format!("field at '_id' must be exactly specified, field at sub-path '{path}' found"),
            ));
        }
        if !whole || path == "_id" {
            fields.insert(path, Op::Set(value.clone())).map_err(|_| twice(path))?;
        }
    }
    let scope = Scope {
        source: RawDoc::empty(),
        is_insert: true,
        positional: None,
        filters: &[],
        collation: None,
        order: ChildOrder::Given,
    };
    let seed = run(&fields, &scope)?.doc;
    let applied = update.apply(seed.raw(), None, true)?;
    if let Some(id) = applied.doc.get("_id") {
        super::replace::check_id(id)?;
    }
    check_depth(applied.doc.raw())?;
    Ok(id_first(applied.doc, generated_id))
}

fn twice(path: &str) -> Error {
    Error::new(
        NOT_SINGLE_VALUE_FIELD,
        format!("cannot infer query fields to set, path '{path}' is matched twice"),
    )
}

fn id_first(doc: Doc, generated: ObjectId) -> Doc {
    if doc.raw().iter().next().is_some_and(|first| first.key_bytes() == b"_id") {
        return doc;
    }
    let mut ordered = DocBuilder::with_capacity(doc.bytes().len() + 24);
    match doc.raw().element("_id") {
        Some(id) => ordered.append_element(id),
        None => ordered.append("_id", generated),
    };
    for element in doc.raw().iter().filter(|element| element.key_bytes() != b"_id") {
        ordered.append_element(element);
    }
    ordered.finish()
}
