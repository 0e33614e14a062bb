//! The operators that change arrays: `$push`, `$addToSet`, `$pop`, `$pull`, `$pullAll`.

use super::op::Effect;
use super::run::Scope;
use crate::collation::Collation;
use crate::filter::ValueFilter;
use crate::interrupt::{steps_of, tick};
use crate::key::encode_key_with;
use crate::show::show;
use crate::{Doc, DocBuilder, Element, Error, Owned, RawDoc, Result, Value};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::HashSet;

/// `$push` with its modifiers.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    items: Vec<Owned>,
    /// Where the items go in; negative counts from the end.
    position: Option<i64>,
    /// How many elements stay: the first, or if negative the last.
    slice: Option<i64>,
    sort: Option<PushSort>,
}

/// The order that `$sort` gives an array.
#[derive(Clone, Debug)]
pub(crate) enum PushSort {
    Whole { descending: bool },
    Fields(Vec<(String, bool)>),
}

impl Push {
    /// The argument of `$push`: a value, or a document with `$each`.
    pub(crate) fn parse(value: Value<'_>) -> Result<Push> {
        let each = value.as_document().filter(|spec| spec.get("$each").is_some());
        let Some(spec) = each else {
            return Ok(Push { items: vec![value.to_owned()], position: None, slice: None, sort: None });
        };
        let mut push = Push { items: Vec::new(), position: None, slice: None, sort: None };
        for element in spec {
            let value = element.value();
            match element.key() {
                "$each" => push.items = parse_each(value)?,
                "$position" => push.position = Some(parse_integer("$position", value)?),
                "$slice" => push.slice = Some(parse_integer("$slice", value)?),
                "$sort" => push.sort = Some(PushSort::parse(value)?),
                other => return Err(Error::bad_value(format!("Unrecognized clause in $push: {other}"))),
            }
        }
        Ok(push)
    }

    pub(crate) fn items(&self) -> &[Owned] {
        &self.items
    }

    pub(crate) fn write(
        &self,
        scope: &Scope<'_>,
        name: &str,
        old: Option<Value<'_>>,
        out: &mut DocBuilder,
    ) -> Result<Effect> {
        let array = match old {
            None => RawDoc::empty(),
            Some(Value::Array(array)) => array,
            Some(other) => {
                return Err(Error::bad_value(format!(
                    "The field '{name}' must be an array but is of type {} in document {{{}}}",
                    other.kind().alias(),
                    scope.id()
                )));
            }
        };
        if self.position.is_none() && self.slice.is_none() && self.sort.is_none() {
            let items: SmallVec<[Value<'_>; 4]> = self.items.iter().map(Owned::value).collect();
            return Ok(append(&items, array, name, old.is_none(), out));
        }
        let values = self.arranged(array, scope);
        out.start_array(name);
        for value in &values {
            out.push_value(*value);
        }
        out.end();
        let count = array.len();
        let kept = count <= values.len() && array.values().zip(&values).all(|(a, b)| a == *b);
        Ok(if kept && count > 0 && values.len() > count { Effect::Appended(count) } else { Effect::Whole })
    }

    /// The array with the items put in, sorted and cut, in this order.
    fn arranged<'v>(&'v self, array: RawDoc<'v>, scope: &Scope<'_>) -> Vec<Value<'v>> {
        let mut values: Vec<Value<'v>> = array.values().collect();
        let count = values.len() as i64;
        let at = match self.position {
            None => count,
            Some(at) if at >= 0 => at.min(count),
            Some(at) => count.saturating_add(at).max(0),
        };
        values.splice(at as usize..at as usize, self.items.iter().map(Owned::value));
        if let Some(sort) = &self.sort {
            values.sort_by(|a, b| sort.compare(*a, *b, scope));
        }
        match self.slice {
            Some(keep) if keep >= 0 => values.truncate(usize::try_from(keep).unwrap_or(usize::MAX)),
            Some(keep) => {
                let keep = usize::try_from(keep.unsigned_abs()).unwrap_or(usize::MAX);
                values.drain(..values.len().saturating_sub(keep));
            }
            None => {}
        }
        values
    }
}

fn parse_each(value: Value<'_>) -> Result<Vec<Owned>> {
    let Value::Array(items) = value else {
        return Err(Error::bad_value(format!(
            "The argument to $each in $push must be an array but it was of type: {}",
            value.kind().alias()
        )));
    };
    Ok(items.values().map(|item| item.to_owned()).collect())
}

fn parse_integer(clause: &str, value: Value<'_>) -> Result<i64> {
    value.as_integer().ok_or_else(|| {
        let kind = value.kind().alias();
        Error::bad_value(format!(
            "The value for {clause} must be an integer value but was given type: {kind}"
        ))
    })
}

impl PushSort {
    fn parse(value: Value<'_>) -> Result<PushSort> {
        match value {
            Value::Document(spec) => {
                let mut fields = Vec::new();
                for element in spec {
                    let path = element.key();
                    if path.is_empty() || path.split('.').any(str::is_empty) {
                        return Err(Error::bad_value("The $sort field cannot be empty"));
                    }
                    fields.push((path.to_string(), descending(element.value())?));
                }
                if fields.is_empty() {
                    return Err(Error::bad_value(
                        "The $sort pattern is empty when it should be a set of fields.",
                    ));
                }
                Ok(PushSort::Fields(fields))
            }
            value if value.is_number() => Ok(PushSort::Whole { descending: descending(value)? }),
            _ => Err(Error::bad_value(
                "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields",
            )),
        }
    }

    fn compare(&self, a: Value<'_>, b: Value<'_>, scope: &Scope<'_>) -> Ordering {
        let directed = |order: Ordering, descending: bool| if descending { order.reverse() } else { order };
        match self {
            PushSort::Whole { descending } => directed(scope.compare(a, b), *descending),
            PushSort::Fields(fields) => fields
                .iter()
                .map(|(path, descending)| {
                    directed(scope.compare(field_of(a, path), field_of(b, path)), *descending)
                })
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal),
        }
    }
}

/// The field of an element to sort by; missing sorts as null.
fn field_of<'v>(value: Value<'v>, path: &str) -> Value<'v> {
    value.as_document().and_then(|doc| super::op::find(doc, path)).unwrap_or(Value::Null)
}

fn descending(value: Value<'_>) -> Result<bool> {
    match value.as_integer() {
        Some(1) => Ok(false),
        Some(-1) => Ok(true),
        _ => Err(Error::bad_value("The $sort element value must be either 1 or -1")),
    }
}

/// Writes the array with the items behind its elements, which are copied in one piece.
fn append(items: &[Value<'_>], array: RawDoc<'_>, name: &str, created: bool, out: &mut DocBuilder) -> Effect {
    let count = array.len();
    let bytes = array.bytes();
    out.start_array(name).push_run(bytes.get(4..bytes.len().saturating_sub(1)).unwrap_or_default(), count);
    for item in items {
        out.push_value(*item);
    }
    out.end();
    if created { Effect::Whole } else { Effect::Appended(count) }
}

/// The argument of `$addToSet`: a value, or `{ $each: [ … ] }`.
pub(crate) fn parse_add_to_set(value: Value<'_>) -> Result<Vec<Owned>> {
    let first = value.as_document().and_then(|spec| Some((spec, spec.iter().next()?)));
    match first {
        Some((spec, each)) if each.key() == "$each" => {
            let Value::Array(items) = each.value() else {
                return Err(Error::type_mismatch(format!(
                    "The argument to $each in $addToSet must be an array but it was of type {}",
                    each.kind().alias()
                )));
            };
            if spec.len() > 1 {
                return Err(Error::bad_value(format!(
                    "Found unexpected fields after $each in $addToSet: {}",
                    show(value)
                )));
            }
            Ok(items.values().map(|item| item.to_owned()).collect())
        }
        _ => Ok(vec![value.to_owned()]),
    }
}

pub(crate) fn add_to_set(
    items: &[Owned],
    scope: &Scope<'_>,
    name: &str,
    old: Option<Value<'_>>,
    out: &mut DocBuilder,
) -> Result<Effect> {
    let array = match old {
        None => RawDoc::empty(),
        Some(Value::Array(array)) => array,
        Some(other) => {
            return Err(Error::bad_value(format!(
                "Cannot apply $addToSet to non-array field. Field named '{name}' has non-array type {}",
                other.kind().alias()
            )));
        }
    };
    let mut new: SmallVec<[Value<'_>; 4]> = SmallVec::new();
    if items.len() <= FEW {
        for item in items.iter().map(Owned::value) {
            tick(1 + steps_of(Value::Array(array)))?;
            let known = new.iter().copied().chain(array.values()).any(|there| scope.equal(there, item));
            if !known {
                new.push(item);
            }
        }
    } else {
        let mut known = Known::of(array.values(), scope)?;
        for item in items.iter().map(Owned::value) {
            tick(1 + steps_of(item))?;
            if known.add(item) {
                new.push(item);
            }
        }
    }
    Ok(append(&new, array, name, old.is_none(), out))
}

/// So many items are compared with each element; more are looked up, or the time would grow with the square.
const FEW: usize = 8;

/// A set of values by their keys, which are equal exactly if the values are: numbers of all types, text by the
/// collation.
struct Known<'s> {
    collation: Option<&'s Collation>,
    keys: HashSet<Vec<u8>>,
    scratch: Vec<u8>,
}

impl<'s> Known<'s> {
    fn of<'v>(values: impl Iterator<Item = Value<'v>>, scope: &Scope<'s>) -> Result<Known<'s>> {
        let mut known = Known { collation: scope.collation, keys: HashSet::new(), scratch: Vec::new() };
        for value in values {
            tick(1 + steps_of(value))?;
            known.add(value);
        }
        Ok(known)
    }

    /// Adds a value; whether it was not there.
    fn add(&mut self, value: Value<'_>) -> bool {
        !self.has(value) && self.keys.insert(self.scratch.clone())
    }

    /// Whether a value is there; its key is left in `scratch`.
    fn has(&mut self, value: Value<'_>) -> bool {
        self.scratch.clear();
        encode_key_with(value, self.collation, &mut self.scratch);
        self.keys.contains(&self.scratch)
    }
}

pub(crate) fn pop(first: bool, name: &str, old: Value<'_>, out: &mut DocBuilder) -> Result<Effect> {
    let Value::Array(array) = old else {
        let kind = old.kind().alias();
        return Err(Error::type_mismatch(format!(
            "Path '{name}' contains an element of non-array type '{kind}'"
        )));
    };
    let dropped = if first { 0 } else { array.len().saturating_sub(1) };
    let mut position = 0;
    Ok(retain(array, name, out, |_| {
        position += 1;
        position - 1 != dropped
    }))
}

/// Writes the array without the elements that `keep` refuses.
fn retain(
    array: RawDoc<'_>,
    name: &str,
    out: &mut DocBuilder,
    mut keep: impl FnMut(&Element<'_>) -> bool,
) -> Effect {
    out.start_array(name);
    for element in array {
        if keep(&element) {
            out.push_element(element);
        }
    }
    out.end();
    Effect::Whole
}

/// A document with the element as its one field.
pub(crate) fn wrap(name: &str, element: &Element<'_>) -> Doc {
    let mut wrapped = DocBuilder::with_capacity(element.raw_value().len() + name.len() + 7);
    wrapped.append_renamed(name, *element);
    wrapped.finish()
}

pub(crate) fn pull(
    condition: &ValueFilter,
    name: &str,
    old: Value<'_>,
    out: &mut DocBuilder,
) -> Result<Effect> {
    let Value::Array(array) = old else {
        return Err(Error::bad_value("Cannot apply $pull to a non-array value"));
    };
    let mut failure = None;
    let effect = retain(array, name, out, |element| match condition.matches(element.value()) {
        Ok(matched) => !matched,
        Err(error) => {
            failure = Some(error);
            true
        }
    });
    failure.map_or(Ok(effect), Err)
}

/// The argument of `$pullAll`: an array.
pub(crate) fn parse_pull_all(value: Value<'_>) -> Result<Vec<Owned>> {
    match value {
        Value::Array(items) => Ok(items.values().map(|item| item.to_owned()).collect()),
        other => Err(Error::bad_value(format!(
            "$pullAll requires an array argument but was given a {}",
            other.kind().alias()
        ))),
    }
}

pub(crate) fn pull_all(
    items: &[Owned],
    scope: &Scope<'_>,
    name: &str,
    old: Value<'_>,
    out: &mut DocBuilder,
) -> Result<Effect> {
    let Value::Array(array) = old else {
        return Err(Error::bad_value("Cannot apply $pull to a non-array value"));
    };
    if items.len() <= FEW {
        return Ok(retain(array, name, out, |element| {
            !items.iter().any(|item| scope.equal(element.value(), item.value()))
        }));
    }
    let mut pulled = Known::of(items.iter().map(Owned::value), scope)?;
    tick(steps_of(old))?;
    Ok(retain(array, name, out, |element| !pulled.has(element.value())))
}
