//! Replacement documents: what they may hold, and how they take the place of an old document.

use crate::{Doc, DocBuilder, Error, RawDoc, Result, Timestamp, Value, code};

/// Checks a document that is to be stored whole: its `_id`, and no field at the top that starts with `$`.
pub(super) fn validate(doc: RawDoc<'_>) -> Result<()> {
    for element in doc {
        let name = element.key();
        if name == "_id" {
            check_id(element.value())?;
        }
        if name.starts_with('$') {
            return Err(Error::new(
                code::DOLLAR_PREFIXED_FIELD_NAME,
                format!(
                    "The dollar ($) prefixed field '{name}' in '{name}' is not allowed in the context of an \
                     update's replacement document. Consider using an aggregation pipeline with $replaceWith."
                ),
            ));
        }
    }
    Ok(())
}

/// Refuses what no `_id` can be (MongoDB manual, "The _id Field"): 53 (InvalidIdField) for an array, a regular
/// expression or undefined; 52 (DollarPrefixedFieldName) for a document with a field that starts with `$`.
pub fn check_id(id: Value<'_>) -> Result<()> {
    match id {
        Value::Array(_) | Value::Regex { .. } | Value::Undefined => Err(Error::new(
            code::INVALID_ID_FIELD,
            format!("The '_id' value cannot be of type {}", id.kind().alias()),
        )),
        Value::Document(doc) => match doc.iter().find(|element| element.key().starts_with('$')) {
            Some(field) => Err(Error::new(
                code::DOLLAR_PREFIXED_FIELD_NAME,
                format!(
                    "_id fields may not contain '$'-prefixed fields: {} is not valid for storage.",
                    field.key()
                ),
            )),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The replacement with `_id` first: its own, else the old document's. Empty timestamps at the top level get
/// the given time.
pub(super) fn with_id_of(old: RawDoc<'_>, replacement: RawDoc<'_>, now: Timestamp) -> Doc {
    let mut new = DocBuilder::with_capacity(replacement.bytes().len() + 24);
    if let Some(id) = replacement.element("_id").or_else(|| old.element("_id")) {
        new.append_element(id);
    }
    for element in replacement.iter().filter(|element| element.key_bytes() != b"_id") {
        match element.value() {
            Value::Timestamp(Timestamp { time: 0, increment: 0 }) => new.append(element.key(), now),
            _ => new.append_element(element),
        };
    }
    new.finish()
}
