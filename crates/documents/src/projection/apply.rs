//! Applying a projection to documents.

use super::{Kind, Node, Projection, Rule, Slice};
use crate::build::DocBuilder;
use crate::doc::{Doc, Element, RawDoc};
use crate::error::{Error, Result};
use crate::path::Part;
use crate::value::Value;

impl Projection {
    /// The projected document. `position` is that of the array element which the query matched
    /// ([`Filter::matches_positional`](crate::filter::Filter::matches_positional)).
    ///
    /// Errors: those of expressions; 51246 if a positional `$` has no element.
    pub fn apply(&self, doc: &Doc, position: Option<usize>) -> Result<Doc> {
        if self.is_identity() {
            return Ok(doc.clone());
        }
        let walk = Walk { root: doc.raw(), kind: self.kind };
        let mut out = DocBuilder::with_capacity(doc.bytes().len());
        walk.fields(&self.root, doc.raw(), &mut out)?;
        let projected = out.finish();
        match &self.positional {
            None => Ok(projected),
            Some(path) => {
                let mut out = DocBuilder::with_capacity(projected.bytes().len());
                pick(projected.raw(), path.parts(), position, &mut out)?;
                Ok(out.finish())
            }
        }
    }
}

struct Walk<'d> {
    root: RawDoc<'d>,
    kind: Kind,
}

/// Where a value goes: under a name, or behind the last element of an array.
#[derive(Clone, Copy)]
enum Place<'n> {
    Field(&'n str),
    Next,
}

impl Place<'_> {
    fn value(self, value: Value<'_>, out: &mut DocBuilder) {
        match self {
            Place::Field(name) => out.append_value(name, value),
            Place::Next => out.push_value(value),
        };
    }

    fn document(self, out: &mut DocBuilder) {
        match self {
            Place::Field(name) => out.start_document(name),
            Place::Next => out.push_document(),
        };
    }

    fn array(self, out: &mut DocBuilder) {
        match self {
            Place::Field(name) => out.start_array(name),
            Place::Next => out.push_array(),
        };
    }
}

impl<'d> Walk<'d> {
    /// The fields of one level, in the document's order, then the computed ones in the projection's.
    fn fields(&self, node: &Node, doc: RawDoc<'d>, out: &mut DocBuilder) -> Result<()> {
        for element in doc {
            match node.rule(element.key_bytes()) {
                Some(Rule::Include) => copy(element, out),
                None if self.kind == Kind::Exclusion => copy(element, out),
                Some(Rule::Nested(nested)) => self.nested(nested, element, out)?,
                Some(Rule::Slice(slice)) => slice_element(*slice, element, out),
                None | Some(Rule::Exclude | Rule::Compute(_) | Rule::ElemMatch(_)) => {}
            }
        }
        for (name, rule) in &node.rules {
            match rule {
                Rule::Nested(nested) if nested.computes() && doc.element(name).is_none() => {
                    self.create(nested, Place::Field(name), out)?;
                }
                rule => self.computed(name, rule, doc, out)?,
            }
        }
        Ok(())
    }

    fn computed(&self, name: &str, rule: &Rule, doc: RawDoc<'d>, out: &mut DocBuilder) -> Result<()> {
        match rule {
            Rule::Compute(compute) => {
                if let Some(value) = compute.compute(self.root)? {
                    out.append(name, value);
                }
            }
            Rule::ElemMatch(filter) => {
                let mut position = None;
                if filter.matches_positional(doc, &mut position)?
                    && let (Some(position), Some(Value::Array(array))) = (position, doc.get(name))
                    && let Some(value) = array.values().nth(position)
                {
                    out.start_array(name).push_value(value).end();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A document for computed fields where there was none.
    fn create(&self, node: &Node, place: Place<'_>, out: &mut DocBuilder) -> Result<()> {
        place.document(out);
        self.fields(node, RawDoc::empty(), out)?;
        out.end();
        Ok(())
    }

    fn nested(&self, node: &Node, element: Element<'d>, out: &mut DocBuilder) -> Result<()> {
        self.nested_value(node, element.value(), Place::Field(element.key()), out)
    }

    /// A value that has rules below it: documents take them, arrays in each of their elements.
    fn nested_value(
        &self,
        node: &Node,
        value: Value<'d>,
        place: Place<'_>,
        out: &mut DocBuilder,
    ) -> Result<()> {
        match value {
            Value::Document(doc) => {
                place.document(out);
                self.fields(node, doc, out)?;
                out.end();
            }
            Value::Array(array) => {
                place.array(out);
                for value in array.values() {
                    self.nested_value(node, value, Place::Next, out)?;
                }
                out.end();
            }
            _ if node.computes() => self.create(node, place, out)?,
            value if self.kind == Kind::Exclusion => place.value(value, out),
            _ => {}
        }
        Ok(())
    }
}

fn slice_element(slice: Slice, element: Element<'_>, out: &mut DocBuilder) {
    let Value::Array(array) = element.value() else {
        return copy(element, out);
    };
    let length = array.len() as u64;
    let (skip, limit) = match slice {
        Slice::First(count) => (0, count),
        Slice::Last(count) => (length.saturating_sub(count), count),
        Slice::After(skip, limit) => (skip, limit),
        Slice::Before(back, limit) => (length.saturating_sub(back), limit),
    };
    // Positions beyond the address space are beyond the array too.
    let as_size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    out.start_array(element.key());
    for value in array.values().skip(as_size(skip)).take(as_size(limit)) {
        out.push_value(value);
    }
    out.end();
}

/// Copies a document; of the first array on the path only the element at `position` stays.
fn pick(doc: RawDoc<'_>, parts: &[Part], position: Option<usize>, out: &mut DocBuilder) -> Result<()> {
    let Some((part, rest)) = parts.split_first() else {
        out.append_all(doc);
        return Ok(());
    };
    for element in doc {
        match element.value() {
            _ if element.key() != part.name() => copy(element, out),
            Value::Array(array) => {
                let chosen = position.and_then(|position| array.values().nth(position));
                let chosen = chosen.ok_or_else(|| {
                    Error::location(
                        51246,
                        "Executor error during find command :: caused by :: positional operator '.$' couldn't \
                         find a matching element in the array",
                    )
                })?;
                out.start_array(element.key()).push_value(chosen).end();
            }
            Value::Document(nested) => {
                out.start_document(element.key());
                pick(nested, rest, position, out)?;
                out.end();
            }
            _ => copy(element, out),
        }
    }
    Ok(())
}

fn copy(element: Element<'_>, out: &mut DocBuilder) {
    out.append_element(element);
}
