//! Documents, their fields and their size.

use super::args::{Args, check_size, part};
use super::path::with_field;
use super::table::{Operator, fixed, named, variadic};
use super::{Context, Val};
use crate::show::show;
use crate::{Doc, DocBuilder, Error, Owned, Result, Value};

pub(super) const OPERATORS: &[Operator] = &[
    variadic("$mergeObjects", merge),
    named("$setField", &["field", "input", "value"], 3, |args, _| set_field(args, "$setField")),
    named("$unsetField", &["field", "input"], 2, |args, _| set_field(args, "$unsetField")),
    fixed("$objectToArray", 1, to_array),
    fixed("$arrayToObject", 1, from_array),
    fixed("$bsonSize", 1, bson_size),
    fixed("$binarySize", 1, binary_size),
    named("$getField", &["field", "input"], 1, get_field),
];

fn merge<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let mut merged = Doc::empty();
    for arg in &args {
        // A single array stands for its elements.
        match arg.value() {
            Value::Array(items) if args.len() == 1 => {
                for item in items.values() {
                    merged = merge_into(merged, item)?;
                }
            }
            value => merged = merge_into(merged, value)?,
        }
    }
    Ok(Val::Own(Owned::Document(merged)))
}

/// The document with the fields of another, which replace its own of the same name.
pub(crate) fn merge_into(doc: Doc, value: Value<'_>) -> Result<Doc> {
    let other = match value {
        Value::Document(other) => other,
        Value::Null | Value::Undefined => return Ok(doc),
        other => {
            let text = format!(
                "$mergeObjects requires object inputs, but input {} is of type {}",
                show(other),
                other.kind().alias()
            );
            return Err(Error::location(40400, text));
        }
    };
    check_size(doc.bytes().len() + other.bytes().len())?;
    let mut merged = DocBuilder::with_capacity(doc.bytes().len() + other.bytes().len());
    for element in doc.raw() {
        match other.element(element.key()) {
            Some(newer) => merged.append_element(newer),
            None => merged.append_element(element),
        };
    }
    for element in other.iter().filter(|element| doc.get(element.key()).is_none()) {
        merged.append_element(element);
    }
    Ok(merged.finish())
}

/// The field name that an argument must be.
fn field_name<'a>(arg: &'a Val<'_>, name: &str) -> Result<&'a str> {
    match arg.value() {
        Value::String(field) if field.contains('\0') => {
            Err(Error::location(4_161_106, format!("{name} requires 'field' to hold no null byte")))
        }
        Value::String(field) => Ok(field),
        _ => Err(Error::location(
            5_654_602,
            format!("{name} requires 'field' to evaluate to type String, but got {}", arg.type_name()),
        )),
    }
}

fn get_field<'v>(mut args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let name = field_name(&args[0], "$getField")?.to_string();
    let input = std::mem::replace(&mut args[1], Val::Missing);
    if matches!(input.value(), Value::Null) {
        return Ok(Val::null());
    }
    Ok(part(input, |value| value.as_document()?.get(&name)))
}

fn set_field<'v>(args: Args<'v>, name: &str) -> Result<Val<'v>> {
    let field = field_name(&args[0], name)?;
    if args[1].is_nullish() {
        return Ok(Val::null());
    }
    let Value::Document(doc) = args[1].value() else {
        let text =
            format!("{name} requires 'input' to evaluate to type Object, but got {}", args[1].type_name());
        return Err(Error::location(4_161_105, text));
    };
    let value = args.get(2).and_then(Val::get);
    Ok(Val::Own(Owned::Document(with_field(doc, field, value).finish())))
}

fn to_array<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if args[0].is_nullish() {
        return Ok(Val::null());
    }
    let Value::Document(doc) = args[0].value() else {
        let text = format!("$objectToArray requires a document input, found: {}", args[0].type_name());
        return Err(Error::location(40390, text));
    };
    let mut pairs = DocBuilder::new();
    for element in doc {
        pairs.push_document().append("k", element.key()).append_renamed("v", element).end();
    }
    Ok(Val::Own(Owned::Array(pairs.finish())))
}

fn from_array<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if args[0].is_nullish() {
        return Ok(Val::null());
    }
    let Value::Array(items) = args[0].value() else {
        let text = format!("$arrayToObject requires an array input, found: {}", args[0].type_name());
        return Err(Error::location(40386, text));
    };
    let mut fields: Vec<(&str, Value<'_>)> = Vec::new();
    for item in items.values() {
        fields.push(pair(item)?);
    }
    // The last value of a name counts, at the place of the first.
    let mut last: std::collections::HashMap<&str, Value<'_>> = fields.iter().copied().collect();
    let mut doc = DocBuilder::new();
    for (name, _) in fields {
        if let Some(value) = last.remove(name) {
            doc.append_value(name, value);
        }
    }
    Ok(Val::Own(Owned::Document(doc.finish())))
}

/// Name and value out of `[name, value]` or `{k: name, v: value}`.
fn pair(item: Value<'_>) -> Result<(&str, Value<'_>)> {
    let (name, value) = match item {
        Value::Array(pair) => {
            let mut parts = pair.values();
            match (parts.next(), parts.next(), parts.next()) {
                (Some(name), Some(value), None) => (name, value),
                _ => {
                    return Err(Error::location(40397, "$arrayToObject requires an array of size 2 arrays"));
                }
            }
        }
        Value::Document(pair) if pair.len() != 2 => {
            let text = format!(
                "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of keys:{}",
                pair.len()
            );
            return Err(Error::location(40392, text));
        }
        Value::Document(pair) => match (pair.get("k"), pair.get("v")) {
            (Some(name), Some(value)) => (name, value),
            _ => {
                return Err(Error::location(
                    40393,
                    "$arrayToObject requires an object with keys 'k' and 'v'.",
                ));
            }
        },
        other => {
            let text = format!("Unrecognised input type format for $arrayToObject: {}", other.kind().alias());
            return Err(Error::location(40398, text));
        }
    };
    match name {
        Value::String(text) if text.contains('\0') => {
            Err(Error::location(4_940_400, "Key field cannot contain an embedded null byte"))
        }
        Value::String(name) => Ok((name, value)),
        other => {
            let text = format!(
                "$arrayToObject requires an array of key-value pairs, where the key must be of type string. \
                 Found key type: {}",
                other.kind().alias()
            );
            Err(Error::location(40395, text))
        }
    }
}

fn bson_size<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    match args[0].value() {
        _ if args[0].is_nullish() => Ok(Val::null()),
        Value::Document(doc) => Ok(Val::from(doc.bytes().len() as i32)),
        _ => {
            let text = format!("$bsonSize requires a document input, found: {}", args[0].type_name());
            Err(Error::location(31393, text))
        }
    }
}

fn binary_size<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    match args[0].value() {
        _ if args[0].is_nullish() => Ok(Val::null()),
        Value::String(text) => Ok(Val::from(text.len() as i32)),
        Value::Binary { bytes, .. } => Ok(Val::from(bytes.len() as i32)),
        _ => {
            let text =
                format!("$binarySize requires a string or BinData argument, found: {}", args[0].type_name());
            Err(Error::location(51276, text))
        }
    }
}
