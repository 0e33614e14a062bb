//! The stages that reshape one document: `$project`, `$addFields`, `$unset`, `$replaceRoot`.
//!
//! A specification is a tree by field name. Inclusion keeps the document's order and puts computed fields
//! behind; exclusion and `$addFields` change fields where they are. Where an array lies on the way, each of
//! its documents is reshaped (MongoDB manual, "$project", "$addFields").

use super::parse::{Parser, document};
use super::stages::single_argument;
use super::{Docs, Environment, Map, Stage, run_map};
use crate::expr::{Context, Expr, Names, check_path};
use crate::show::show;
use crate::{Doc, DocBuilder, Element, Error, Owned, RawDoc, Result, Value};
use std::sync::Arc;

/// What happens to one field.
#[derive(Clone, Debug)]
enum Shape {
    Include,
    Exclude,
    Compute(Expr),
    Nested(Fields),
}

/// What happens to the fields of a document, in the order of the specification.
#[derive(Clone, Debug, Default)]
struct Fields(Vec<(String, Shape)>);

/// How fields that are not named fare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// They are left out.
    Include,
    /// They stay.
    Keep,
}

#[derive(Debug)]
struct Reshape {
    fields: Fields,
    mode: Mode,
}

impl Fields {
    fn get(&self, name: &[u8]) -> Option<&Shape> {
        self.0.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, shape)| shape)
    }

    /// Puts a shape at a dotted path.
    fn insert(&mut self, path: &str, shape: Shape) -> Result<()> {
        let (head, rest) = path.split_once('.').map_or((path, None), |(head, rest)| (head, Some(rest)));
        let at = self.0.iter().position(|(name, _)| name == head);
        match (rest, at) {
            (None, None) => self.0.push((head.to_string(), shape)),
            (None, Some(_)) => return Err(Error::location(31250, format!("Path collision at {path}"))),
            (Some(rest), None) => {
                let mut nested = Fields::default();
                nested.insert(rest, shape)?;
                self.0.push((head.to_string(), Shape::Nested(nested)));
            }
            (Some(rest), Some(at)) => match &mut self.0[at].1 {
                Shape::Nested(nested) => nested.insert(rest, shape)?,
                _ => {
                    let text = format!("Path collision at {path} remaining portion {rest}");
                    return Err(Error::location(31249, text));
                }
            },
        }
        Ok(())
    }

    /// Whether any field is computed.
    fn computes(&self) -> bool {
        self.0.iter().any(|(_, shape)| match shape {
            Shape::Compute(_) => true,
            Shape::Nested(fields) => fields.computes(),
            _ => false,
        })
    }

    /// The reshaped document.
    fn apply(&self, doc: RawDoc<'_>, mode: Mode, context: &Context<'_>) -> Result<DocBuilder> {
        let mut out = DocBuilder::with_capacity(doc.bytes().len() + 64);
        let mut written = vec![false; self.0.len()];
        for element in doc {
            let at = self.0.iter().position(|(name, _)| name.as_bytes() == element.key_bytes());
            match (at.map(|at| (at, &self.0[at].1)), mode) {
                (None, Mode::Keep) | (Some((_, Shape::Include)), _) => {
                    out.append_element(element);
                }
                (None, Mode::Include) | (Some((_, Shape::Exclude)), _) => {}
                (Some((at, Shape::Compute(expr))), Mode::Keep) => {
                    if !std::mem::replace(&mut written[at], true) {
                        append_computed(&mut out, element.key(), expr, context)?;
                    }
                }
                // Computed fields of an inclusion come behind the others.
                (Some((_, Shape::Compute(_))), Mode::Include) => {}
                (Some((at, Shape::Nested(fields))), _) => {
                    written[at] = true;
                    fields.apply_element(element, mode, context, &mut out)?;
                }
            }
        }
        for ((name, shape), _) in self.0.iter().zip(&written).filter(|(_, written)| !**written) {
            match shape {
                Shape::Compute(expr) => append_computed(&mut out, name, expr, context)?,
                Shape::Nested(fields) if fields.computes() => {
                    out.append(name, fields.apply(RawDoc::empty(), mode, context)?.finish());
                }
                _ => {}
            }
        }
        Ok(out)
    }

    /// Writes an element whose parts are reshaped.
    fn apply_element(
        &self,
        element: Element<'_>,
        mode: Mode,
        context: &Context<'_>,
        out: &mut DocBuilder,
    ) -> Result<()> {
        match self.apply_value(element.value(), mode, context)? {
            Reshaped::As(value) => out.append(element.key(), value),
            Reshaped::Same => out.append_element(element),
            Reshaped::Gone => out,
        };
        Ok(())
    }

    fn apply_value(&self, value: Value<'_>, mode: Mode, context: &Context<'_>) -> Result<Reshaped> {
        match value {
            Value::Document(doc) => {
                Ok(Reshaped::As(Owned::Document(self.apply(doc, mode, context)?.finish())))
            }
            Value::Array(array) => {
                let mut items = DocBuilder::new();
                for item in array {
                    match self.apply_value(item.value(), mode, context)? {
                        Reshaped::As(value) => items.push(value),
                        Reshaped::Same => items.push_element(item),
                        Reshaped::Gone => &mut items,
                    };
                }
                Ok(Reshaped::As(Owned::Array(items.finish())))
            }
            _ if self.computes() => {
                let computed = self.apply(RawDoc::empty(), mode, context)?;
                Ok(Reshaped::As(Owned::Document(computed.finish())))
            }
            _ if mode == Mode::Include => Ok(Reshaped::Gone),
            _ => Ok(Reshaped::Same),
        }
    }
}

/// What became of a value.
enum Reshaped {
    As(Owned),
    Same,
    Gone,
}

fn append_computed(out: &mut DocBuilder, name: &str, expr: &Expr, context: &Context<'_>) -> Result<()> {
    if let Some(value) = expr.eval(context)?.get() {
        out.append_value(name, value);
    }
    Ok(())
}

impl Stage for Reshape {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        Ok(run_map(self, input, environment))
    }

    fn as_map(&self) -> Option<&dyn Map> {
        Some(self)
    }
}

impl Map for Reshape {
    fn map(&self, doc: Doc, environment: &Environment) -> Result<Option<Doc>> {
        let context = environment.context(doc.raw());
        Ok(Some(self.fields.apply(doc.raw(), self.mode, &context)?.finish()))
    }
}

/// Whether the document, which is no operator, holds nested specifications.
fn is_operator(doc: RawDoc<'_>) -> bool {
    doc.iter().next().is_some_and(|first| first.key().starts_with('$'))
}

pub(super) fn parse_add_fields(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let spec = document(spec, "$addFields", 40272)?;
    let mut fields = Fields::default();
    add_fields(&mut fields, "", spec, parser.options.variables.names())?;
    if fields.0.is_empty() {
        return Err(Error::location(
            40177,
            "Invalid $addFields :: caused by :: specification must have at least one field",
        ));
    }
    Ok(Arc::new(Reshape { fields, mode: Mode::Keep }))
}

fn add_fields(fields: &mut Fields, prefix: &str, spec: RawDoc<'_>, names: &Names) -> Result<()> {
    for element in spec {
        let path = format!("{prefix}{}", element.key());
        check_path(&path)?;
        match element.value() {
            Value::Document(nested) if !nested.is_empty() && !is_operator(nested) => {
                add_fields(fields, &format!("{path}."), nested, names)?;
            }
            value => fields.insert(&path, Shape::Compute(Expr::parse_with(value, names)?))?,
        }
    }
    Ok(())
}

pub(super) fn parse_unset(spec: Value<'_>, _: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let paths: Vec<Value<'_>> = match spec {
        Value::String(_) => vec![spec],
        Value::Array(paths) => paths.values().collect(),
        _ => return Err(Error::location(31002, "$unset specification must be a string or an array")),
    };
    if paths.is_empty() {
        return Err(Error::location(
            31119,
            "$unset specification must be a string or an array with at least one field",
        ));
    }
    let mut fields = Fields::default();
    for path in paths {
        let Value::String(path) = path else {
            return Err(Error::location(
                31120,
                "$unset specification must be a string or an array containing only string values",
            ));
        };
        check_path(path)?;
        fields.insert(path, Shape::Exclude)?;
    }
    Ok(Arc::new(Reshape { fields, mode: Mode::Keep }))
}

pub(super) fn parse_project(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let Value::Document(spec) = spec else {
        return Err(Error::location(15969, "$project specification must be an object"));
    };
    let mut project =
        Project { names: parser.options.variables.names(), fields: Fields::default(), mode: None, id: None };
    project.read("", spec)?;
    Ok(Arc::new(project.finish()?))
}

/// A `$project` while it is read.
struct Project<'p> {
    names: &'p Names,
    fields: Fields,
    /// Known once a field other than `_id` tells.
    mode: Option<Mode>,
    /// Whether `_id` is included, if the specification says so.
    id: Option<bool>,
}

impl Project<'_> {
    fn read(&mut self, prefix: &str, spec: RawDoc<'_>) -> Result<()> {
        for element in spec {
            let path = format!("{prefix}{}", element.key());
            check_path(&path)?;
            match element.value() {
                Value::Document(nested) if nested.is_empty() => {
                    let text = format!(
                        "An empty sub-projection is not a valid value. Found empty object at path '{path}'"
                    );
                    return Err(Error::location(51270, text));
                }
                Value::Document(nested) if !is_operator(nested) => self.read(&format!("{path}."), nested)?,
                value => self.field(&path, value)?,
            }
        }
        Ok(())
    }

    fn field(&mut self, path: &str, value: Value<'_>) -> Result<()> {
        let wanted = match value {
            Value::Bool(wanted) => Some(wanted),
            number if number.is_number() => Some(crate::expr::is_true(number)),
            _ => None,
        };
        if let ("_id", Some(wanted)) = (path, wanted) {
            self.id = Some(wanted);
            return Ok(());
        }
        let (mode, shape) = match wanted {
            Some(true) => (Mode::Include, Shape::Include),
            Some(false) => (Mode::Keep, Shape::Exclude),
            None => (Mode::Include, Shape::Compute(Expr::parse_with(value, self.names)?)),
        };
        match self.mode {
            Some(known) if known != mode => {
                let (number, this, that) = match mode {
                    Mode::Include => (31253, "inclusion", "exclusion"),
                    Mode::Keep => (31254, "exclusion", "inclusion"),
                };
                let text = format!(
                    "Invalid $project :: caused by :: Cannot do {this} on field {path} in {that} projection"
                );
                return Err(Error::location(number, text));
            }
            _ => self.mode = Some(mode),
        }
        self.fields.insert(path, shape)
    }

    fn finish(mut self) -> Result<Reshape> {
        let mode = match (self.mode, self.id) {
            (Some(mode), _) => mode,
            (None, Some(true)) => Mode::Include,
            (None, Some(false)) => Mode::Keep,
            (None, None) => {
                let text =
                    "Invalid $project :: caused by :: projection specification must have at least one field";
                return Err(Error::location(51272, text));
            }
        };
        let named = self.fields.get(b"_id").is_some();
        match (mode, self.id) {
            (Mode::Include, Some(true) | None) if !named => self.fields.insert("_id", Shape::Include)?,
            (Mode::Keep, Some(false)) => self.fields.insert("_id", Shape::Exclude)?,
            (_, Some(_)) if named => return Err(Error::location(31250, "Path collision at _id")),
            _ => {}
        }
        Ok(Reshape { fields: self.fields, mode })
    }
}

/// `$replaceRoot`: the document becomes the value of an expression.
#[derive(Debug)]
struct ReplaceRoot(Expr);

pub(super) fn parse_replace_root(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let root = single_argument(spec, "$replaceRoot", "newRoot", 40229)?;
    parse_replace_with(root, parser)
}

pub(super) fn parse_replace_with(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    Ok(Arc::new(ReplaceRoot(Expr::parse_with(spec, parser.options.variables.names())?)))
}

impl Stage for ReplaceRoot {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        Ok(run_map(self, input, environment))
    }

    fn as_map(&self) -> Option<&dyn Map> {
        Some(self)
    }
}

impl Map for ReplaceRoot {
    fn map(&self, doc: Doc, environment: &Environment) -> Result<Option<Doc>> {
        let value = self.0.eval(&environment.context(doc.raw()))?;
        match value.value() {
            Value::Document(root) => Ok(Some(root.to_doc())),
            other => {
                let shown = if value.get().is_none() { "MISSING".into() } else { show(other) };
                let text = format!(
                    "'newRoot' expression must evaluate to an object, but resulting value was: {shown}. Type of \
                     resulting value: '{}'. Input document: {}",
                    value.type_name(),
                    show(Value::Document(doc.raw()))
                );
                Err(Error::location(40228, text))
            }
        }
    }
}
