//! `$unwind`: one document for each element of an array.

use super::parse::{Parser, only};
use super::{Docs, Environment, Stage};
use crate::expr::{check_path, with_path};
use crate::path::Path;
use crate::{Doc, Error, Owned, Result, Value};
use std::sync::Arc;

#[derive(Debug)]
struct Unwind {
    path: Path,
    /// Where the position goes.
    index_field: Option<Path>,
    /// Whether documents without elements stay.
    preserve: bool,
}

pub(super) fn parse(spec: Value<'_>, _: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let (path, index, preserve) = match spec {
        Value::String(path) => (path, None, false),
        Value::Document(doc) => {
            only(doc, "$unwind", &["path", "includeArrayIndex", "preserveNullAndEmptyArrays"])
                .map_err(|error| Error::location(28811, error.message))?;
            let Some(path) = doc.get("path") else {
                return Err(Error::location(28812, "no path specified to $unwind stage"));
            };
            let Value::String(path) = path else {
                let text =
                    format!("expected a string as the path for $unwind stage, got {}", path.kind().alias());
                return Err(Error::location(28808, text));
            };
            let index = match doc.get("includeArrayIndex") {
                None => None,
                Some(Value::String(name)) if !name.is_empty() => Some(name),
                Some(_) => {
                    let text =
                        "expected a non-empty string for the includeArrayIndex option to $unwind stage";
                    return Err(Error::location(28810, text));
                }
            };
            let preserve = match doc.get("preserveNullAndEmptyArrays") {
                None => false,
                Some(Value::Bool(preserve)) => preserve,
                Some(other) => {
                    let kind = other.kind().alias();
                    let text = format!(
                        "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got {kind}"
                    );
                    return Err(Error::location(28809, text));
                }
            };
            (path, index, preserve)
        }
        other => {
            let text = format!(
                "expected either a string or an object as specification for $unwind stage, got {}",
                other.kind().alias()
            );
            return Err(Error::location(15981, text));
        }
    };
    let Some(path) = path.strip_prefix('$') else {
        let text = format!("path option to $unwind stage should be prefixed with a '$': {path}");
        return Err(Error::location(28818, text));
    };
    if index.is_some_and(|index| index.starts_with('$')) {
        let text = "includeArrayIndex option to $unwind stage should not be prefixed with a '$'";
        return Err(Error::location(28822, text));
    }
    check_path(path)?;
    index.map_or(Ok(()), check_path)?;
    Ok(Arc::new(Unwind { path: Path::new(path), index_field: index.map(Path::new), preserve }))
}

impl Stage for Unwind {
    fn run(self: Arc<Self>, input: Docs, _: &Arc<Environment>) -> Result<Docs> {
        Ok(Box::new(input.flat_map(move |doc| match doc {
            Ok(doc) => self.unwind(doc),
            Err(error) => Box::new(std::iter::once(Err(error))),
        })))
    }
}

impl Unwind {
    fn unwind(self: &Arc<Self>, doc: Doc) -> Docs {
        match self.path.get(doc.raw()) {
            Some(Value::Array(array)) if !array.is_empty() => {
                let (unwind, array) = (self.clone(), doc.slice_of(array));
                let mut position = 0;
                let mut at = 4;
                Box::new(std::iter::from_fn(move || {
                    let (element, rest) = crate::doc::step(array.bytes().get(at..)?)?;
                    at = array.bytes().len() - rest.len();
                    position += 1;
                    Some(Ok(unwind.with(&doc, Some(element.value()), Some(position - 1))))
                }))
            }
            Some(Value::Array(_)) if self.preserve => {
                Box::new(std::iter::once(Ok(self.with(&doc, None, None))))
            }
            Some(Value::Array(_)) => Box::new(std::iter::empty()),
            Some(Value::Null | Value::Undefined) | None if !self.preserve => Box::new(std::iter::empty()),
            found => {
                let unwound = match self.index_field {
                    Some(_) => self.with(&doc, found, None),
                    None => doc,
                };
                Box::new(std::iter::once(Ok(unwound)))
            }
        }
    }

    /// The document with the element in place of the array, and its position.
    fn with(&self, doc: &Doc, value: Option<Value<'_>>, position: Option<i64>) -> Doc {
        let unwound = with_path(doc.raw(), &self.path, value);
        match &self.index_field {
            None => unwound,
            Some(field) => {
                let position = position.map_or(Owned::Null, Owned::Int64);
                with_path(unwound.raw(), field, Some(position.value()))
            }
        }
    }
}
