//! Values as text for error messages, in the notation of the MongoDB shell.

use crate::{RawDoc, Value};
use std::fmt::Write;

/// Longest text of a value in a message, in bytes; the rest is cut.
const SHOWN_MAX: usize = 150;

/// A value as error messages show it, cut after [`SHOWN_MAX`] bytes.
pub fn show(value: Value<'_>) -> String {
    let mut text = String::new();
    write_value(&mut text, value);
    cut(text)
}

/// A field as error messages show it: `name: value`.
pub(crate) fn show_field(name: &str, value: Value<'_>) -> String {
    format!("{name}: {}", show(value))
}

fn cut(mut text: String) -> String {
    if text.len() > SHOWN_MAX {
        let end = (0..=SHOWN_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

fn write_value(text: &mut String, value: Value<'_>) {
    if text.len() > SHOWN_MAX {
        return;
    }
    let _ = match value {
        Value::Double(v) => write!(text, "{}", show_double(v)),
        Value::String(v) | Value::Symbol(v) => write!(text, "{v:?}"),
        Value::Document(v) => return write_document(text, v),
        Value::Array(v) => return write_array(text, v),
        Value::Binary { subtype, bytes } => write!(text, "BinData({subtype}, {} bytes)", bytes.len()),
        Value::Undefined => write!(text, "undefined"),
        Value::ObjectId(v) => write!(text, "ObjectId('{v}')"),
        Value::Bool(v) => write!(text, "{v}"),
        Value::DateTime(v) => write!(text, "new Date({v})"),
        Value::Null => write!(text, "null"),
        Value::Regex { pattern, options } => write!(text, "/{pattern}/{options}"),
        Value::DbPointer { namespace, id } => write!(text, "DBRef('{namespace}', {id})"),
        Value::Code(v) => write!(text, "{v}"),
        Value::CodeWithScope { code, .. } => write!(text, "CodeWScope({code})"),
        Value::Int32(v) => write!(text, "{v}"),
        Value::Timestamp(v) => write!(text, "Timestamp({}, {})", v.time, v.increment),
        Value::Int64(v) => write!(text, "{v}"),
        Value::Decimal128(v) => write!(text, "{}", v.decode()),
        Value::MinKey => write!(text, "MinKey"),
        Value::MaxKey => write!(text, "MaxKey"),
    };
}

/// A double that always looks like one: `1.0`, not `1`.
fn show_double(value: f64) -> String {
    match value {
        v if v.is_nan() => "nan".into(),
        v if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.into(),
        v => format!("{v:?}"),
    }
}

fn write_document(text: &mut String, doc: RawDoc<'_>) {
    if doc.is_empty() {
        return text.push_str("{}");
    }
    text.push_str("{ ");
    for (index, element) in doc.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        text.push_str(element.key());
        text.push_str(": ");
        write_value(text, element.value());
    }
    text.push_str(" }");
}

fn write_array(text: &mut String, array: RawDoc<'_>) {
    text.push_str("[ ");
    for (index, value) in array.values().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        write_value(text, value);
        if text.len() > SHOWN_MAX {
            return;
        }
    }
    text.push_str(" ]");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doc;

    #[test]
    fn values_look_like_the_shell_writes_them() {
        let doc = doc! { "_id": 1, "a": { "b": [1.0, "x", null] }, "c": {} };
        assert_eq!(show(Value::Document(doc.raw())), r#"{ _id: 1, a: { b: [ 1.0, "x", null ] }, c: {} }"#);
        assert_eq!(show_field("d", Value::DateTime(5)), "d: new Date(5)");
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let text = show(Value::String(&"ä".repeat(1000)));
        assert!(text.len() < 200 && text.ends_with("..."), "{text}");
    }
}
