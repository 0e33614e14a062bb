//! Carrying out an update: one walk over the old document writes the new one.
//!
//! Runs of fields that no operator touches are copied in one piece. What changes is noted while it is
//! written, as places in the new bytes, so that describing the update copies nothing else.

use super::array::wrap;
use super::op::{Effect, Op};
use super::tree::{Child, ChildOrder, Fields, Node};
use crate::collation::Collation;
use crate::diff::UpdateDescription;
use crate::doc::step;
use crate::filter::Filter;
use crate::show::{show, show_field};
use crate::{Code, Doc, DocBuilder, Element, Error, RawDoc, Result, Value, code};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cmp::Ordering;

/// Most nulls that setting an element beyond an array's end puts before it (MongoDB's limit).
const PADDING_MAX: usize = 1_500_000;

const CANNOT_BACKFILL_ARRAY: Code = Code { number: 94, name: "CannotBackfillArray" };

/// A named filter for `$[name]`.
#[derive(Debug)]
pub(crate) struct ArrayFilter {
    pub name: String,
    pub filter: Filter,
}

/// What operators may look at.
pub(crate) struct Scope<'a> {
    /// The document before the update.
    pub source: RawDoc<'a>,
    /// Whether the document is about to be inserted.
    pub is_insert: bool,
    /// What `$` stands for.
    pub positional: Option<usize>,
    pub filters: &'a [ArrayFilter],
    pub collation: Option<&'a Collation>,
    /// The order in which missing fields come into being.
    pub order: ChildOrder,
}

impl Scope<'_> {
    pub(crate) fn compare(&self, a: Value<'_>, b: Value<'_>) -> Ordering {
        crate::compare::compare_with(a, b, self.collation)
    }

    pub(crate) fn equal(&self, a: Value<'_>, b: Value<'_>) -> bool {
        self.compare(a, b).is_eq()
    }

    /// The document's `_id` for messages.
    pub(crate) fn id(&self) -> String {
        match self.source.get("_id") {
            Some(id) => show_field("_id", id),
            None => "no id".into(),
        }
    }
}

/// What an update did.
pub(crate) struct Outcome {
    pub doc: Doc,
    pub changed: bool,
    pub description: UpdateDescription,
}

/// Applies the changes to the scope's document.
pub(crate) fn run(fields: &Fields, scope: &Scope<'_>) -> Result<Outcome> {
    let mut run = Run {
        scope,
        out: DocBuilder::with_capacity(scope.source.bytes().len() + 128),
        path: String::new(),
        quiet: 0,
        written: SmallVec::new(),
        removed: Vec::new(),
        truncated: Vec::new(),
    };
    run.fields(fields, scope.source, false)?;
    Ok(run.finish())
}

struct Run<'a> {
    scope: &'a Scope<'a>,
    out: DocBuilder,
    /// Path of the open container, with a dot at its end unless it is the document.
    path: String,
    /// Above zero inside a new container, which is noted as a whole.
    quiet: u32,
    /// Changed fields: their path and where they start in `out`.
    written: SmallVec<[(String, usize); 4]>,
    removed: Vec<String>,
    truncated: Vec<(String, i32)>,
}

impl<'a> Run<'a> {
    /// Writes the body of a container with its changes.
    fn fields(&mut self, fields: &Fields, doc: RawDoc<'_>, array: bool) -> Result<()> {
        let fields = self.resolved(fields)?;
        let body = body(doc);
        let mut seen: SmallVec<[bool; 24]> = SmallVec::from_elem(false, fields.children.len());
        let mut left = fields.children.len();
        let (mut copied, mut at, mut count) = (0, 0, 0);
        while let Some((element, rest)) = step(&body[at..]) {
            if fields.truncate.is_some_and(|limit| count >= limit) {
                break;
            }
            let end = body.len() - rest.len();
            let child = if array { at_position(&fields, count) } else { named(&fields, &element) };
            if let Some(child) = child.filter(|child| !seen[child.ordinal]) {
                seen[child.ordinal] = true;
                left -= 1;
                self.out.append_run(&body[copied..at]);
                self.visit(&child.node, element, &body[at..end], array)?;
                copied = end;
            }
            at = end;
            count += 1;
            if left == 0 && fields.truncate.is_none() {
                at = body.len(); // the rest stays as it is
                break;
            }
        }
        self.out.append_run(&body[copied..at]);
        if at < body.len() {
            self.truncated.push((self.container_path(), count as i32));
        }
        if left > 0 {
            self.add_missing(&fields, &seen, array.then_some(count), doc)?;
        }
        Ok(())
    }

    /// Brings the children that the container lacks into being; an array has `count` elements so far.
    fn add_missing(
        &mut self,
        fields: &Fields,
        seen: &[bool],
        mut count: Option<usize>,
        parent: RawDoc<'_>,
    ) -> Result<()> {
        let missing = fields.children.iter().filter(|(_, child)| !seen[child.ordinal]);
        let mut missing: SmallVec<[(&str, &Child); 8]> =
            missing.map(|(name, child)| (&**name, child)).collect();
        missing.sort_by(|a, b| self.scope.order.compare(*a, *b));
        for (name, child) in missing {
            if child.node.creates(self.scope) {
                count = self.add(name, child, count, parent)?;
            }
        }
        Ok(())
    }

    /// The changes with `$` replaced by the position that the query found.
    fn resolved<'f>(&self, fields: &'f Fields) -> Result<Cow<'f, Fields>> {
        if !fields.children.contains_key("$") {
            return Ok(Cow::Borrowed(fields));
        }
        let Some(position) = self.scope.positional else {
            let text = "The positional operator did not find the match needed from the query.";
            return Err(Error::bad_value(text));
        };
        fields.resolve_positional(position, &self.container_path()).map(Cow::Owned)
    }

    /// Writes an element that has changes; `bytes` is its encoding.
    fn visit(&mut self, node: &Node, element: Element<'_>, bytes: &[u8], in_array: bool) -> Result<()> {
        match (node, element.value()) {
            (Node::Leaf(op), value) => self.leaf(op, element.key(), value, bytes, in_array),
            (Node::Fields(fields), Value::Document(doc)) => {
                self.out.start_document(element.key());
                self.inside(element.key(), |run| run.fields(fields, doc, false))
            }
            (Node::Fields(fields), Value::Array(array)) => {
                self.out.start_array(element.key());
                self.inside(element.key(), |run| run.fields(fields, array, true))
            }
            (Node::Fields(_), _) if node.allows_dead_end(self.scope) => {
                self.out.append_run(bytes);
                Ok(())
            }
            (Node::Fields(fields), value) => Err(dead_end(fields, element.key(), value)),
            (Node::Elements(elements), Value::Array(array)) => {
                self.out.start_array(element.key());
                self.inside(element.key(), |run| run.elements(elements, array))
            }
            (Node::Elements(_), value) => Err(Error::bad_value(format!(
                "Cannot apply array updates to non-array element {}",
                show_field(element.key(), value)
            ))),
        }
    }

    /// Runs `write` with the path of the container that was just opened, and closes it.
    fn inside(&mut self, name: &str, write: impl FnOnce(&mut Run<'a>) -> Result<()>) -> Result<()> {
        let outer = self.path.len();
        self.path.push_str(name);
        self.path.push('.');
        write(self)?;
        self.path.truncate(outer);
        self.out.end();
        Ok(())
    }

    /// Writes the elements of an array with the changes of the filters that select them.
    fn elements(&mut self, elements: &[(String, Node)], array: RawDoc<'_>) -> Result<()> {
        let body = body(array);
        let mut at = 0;
        while let Some((element, rest)) = step(&body[at..]) {
            let bytes = &body[at..body.len() - rest.len()];
            at += bytes.len();
            let mut selected: Option<Cow<'_, Node>> = None;
            for (name, node) in elements {
                if self.selects(name, &element)? {
                    selected = Some(match selected {
                        None => Cow::Borrowed(node),
                        Some(other) => {
                            let at = format!("{}{}", self.path, element.key());
                            Cow::Owned(other.merge(node, &at)?)
                        }
                    });
                }
            }
            match selected {
                Some(node) => self.visit(&node, element, bytes, true)?,
                None => {
                    self.out.append_run(bytes);
                }
            }
        }
        Ok(())
    }

    /// Whether the filter of this name selects an element.
    fn selects(&self, name: &str, element: &Element<'_>) -> Result<bool> {
        match self.scope.filters.iter().find(|filter| filter.name == name) {
            Some(filter) => filter.filter.matches(wrap(name, element).raw()),
            None => Ok(name.is_empty()),
        }
    }

    /// Applies an operator to a field that is there.
    fn leaf(&mut self, op: &Op, name: &str, old: Value<'_>, bytes: &[u8], in_array: bool) -> Result<()> {
        let start = self.out.size();
        match op.write(self.scope, name, Some(old), &mut self.out)? {
            Effect::Nothing => {
                self.out.append_run(bytes);
            }
            Effect::Removed if in_array => {
                self.out.append_value(name, Value::Null);
                self.note_if_changed(name, start, bytes);
            }
            Effect::Removed => self.removed.push(format!("{}{name}", self.path)),
            Effect::Whole => self.note_if_changed(name, start, bytes),
            Effect::Appended(count) => self.note_appended(name, start, count),
        }
        Ok(())
    }

    fn note_if_changed(&mut self, name: &str, start: usize, old: &[u8]) {
        if self.out.written()[start..] != *old {
            self.note(name, start);
        }
    }

    /// Notes a changed field, unless it is part of a new one.
    fn note(&mut self, name: &str, start: usize) {
        if self.quiet == 0 {
            self.written.push((format!("{}{name}", self.path), start));
        }
    }

    /// Notes the elements of the array at `start` after its first `count`.
    fn note_appended(&mut self, name: &str, start: usize, count: usize) {
        let bytes = &self.out.written()[start..];
        let Some((array, _)) = step(bytes) else { return };
        let mut at = bytes.len() - array.raw_value().len() + 4;
        let mut position = 0;
        while let Some((_, rest)) = step(&bytes[at..]) {
            if position >= count {
                self.written.push((format!("{}{name}.{position}", self.path), start + at));
            }
            at = bytes.len() - rest.len();
            position += 1;
        }
    }

    /// Brings a missing child into being. In an array of `count` elements, returns how many there are then.
    fn add(
        &mut self,
        name: &str,
        child: &Child,
        count: Option<usize>,
        parent: RawDoc<'_>,
    ) -> Result<Option<usize>> {
        let mut after = None;
        if let Some(count) = count {
            let Some(position) = child.position else {
                let array = self.path.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
                return Err(cannot_create(name, array, Value::Array(parent)));
            };
            if position.saturating_sub(count) > PADDING_MAX {
                let text = format!("can't backfill array to larger than {PADDING_MAX} elements");
                return Err(Error::new(CANNOT_BACKFILL_ARRAY, text));
            }
            for missing in count..position {
                self.out.append_value(&missing.to_string(), Value::Null);
            }
            after = Some(position.saturating_add(1));
        }
        let start = self.out.size();
        self.create(&child.node, name)?;
        self.note(name, start);
        Ok(after)
    }

    fn create(&mut self, node: &Node, name: &str) -> Result<()> {
        match node {
            Node::Leaf(op) => op.write(self.scope, name, None, &mut self.out).map(drop),
            Node::Fields(fields) => {
                self.out.start_document(name);
                self.quiet += 1;
                let done = self.inside(name, |run| run.fields(fields, RawDoc::empty(), false));
                self.quiet -= 1;
                done
            }
            Node::Elements(_) => Err(Error::bad_value(format!(
                "The path '{}{name}' must exist in the document in order to apply array updates.",
                self.path
            ))),
        }
    }

    fn container_path(&self) -> String {
        self.path.trim_end_matches('.').to_string()
    }

    fn finish(self) -> Outcome {
        let changed = !(self.written.is_empty() && self.removed.is_empty() && self.truncated.is_empty());
        let doc = self.out.finish();
        let mut updated = DocBuilder::with_capacity(if changed { 64 } else { 0 });
        for (path, start) in &self.written {
            // A place that was written holds an element.
            if let Some((element, _)) = doc.bytes().get(*start..).and_then(step) {
                updated.append_renamed(path, element);
            }
        }
        let description = UpdateDescription {
            updated_fields: updated.finish(),
            removed_fields: self.removed,
            truncated_arrays: self.truncated,
        };
        Outcome { doc, changed, description }
    }
}

/// The elements of a document as bytes.
fn body(doc: RawDoc<'_>) -> &[u8] {
    let bytes = doc.bytes();
    bytes.get(4..bytes.len().saturating_sub(1)).unwrap_or_default()
}

/// The changes of a document's field.
fn named<'f>(fields: &'f Fields, element: &Element<'_>) -> Option<&'f Child> {
    match fields.children.first_key_value() {
        // Most updates change one field.
        Some((name, child)) if fields.children.len() == 1 => {
            (name.as_bytes() == element.key_bytes()).then_some(child)
        }
        _ => fields.children.get(element.key()),
    }
}

/// The changes of an array's element.
fn at_position(fields: &Fields, position: usize) -> Option<&Child> {
    const FEW: usize = 4;
    if fields.children.len() <= FEW {
        return fields.children.values().find(|child| child.position == Some(position));
    }
    fields.children.get(position.to_string().as_str())
}

fn dead_end(fields: &Fields, name: &str, value: Value<'_>) -> Error {
    let missing = fields.children.keys().next().map_or("", |name| name);
    cannot_create(missing, name, value)
}

fn cannot_create(missing: &str, name: &str, value: Value<'_>) -> Error {
    let shown = format!("{name}: {}", show(value));
    Error::new(code::PATH_NOT_VIABLE, format!("Cannot create field '{missing}' in element {{{shown}}}"))
}
