//! Reading expressions: literals, field paths, variables, operators and their arguments.

use super::control;
use super::path::Base;
use super::table::{self, Arguments, Operator};
use super::{Expr, Node};
use crate::show::show;
use crate::{Error, MAX_DEPTH, RawDoc, Result, Value, code};
use std::sync::Arc;

/// The names of the surrounding variables, by place.
pub(crate) type Names = Arc<[String]>;

pub(super) struct Parser<'p> {
    outer: &'p Names,
    /// Variables bound by the expressions around, by slot.
    locals: Vec<String>,
    depth: usize,
}

impl<'p> Parser<'p> {
    pub(super) fn new(outer: &'p Names) -> Parser<'p> {
        Parser { outer, locals: Vec::new(), depth: 0 }
    }

    /// Any expression.
    pub(super) fn node(&mut self, spec: Value<'_>) -> Result<Node> {
        if self.depth > MAX_DEPTH {
            return Err(Error::new(code::OVERFLOW, "an expression is nested too deeply"));
        }
        self.depth += 1;
        let node = match spec {
            Value::String(text) if text.starts_with('$') => self.path(text),
            Value::Document(doc) => self.document(doc),
            Value::Array(array) => self.array(array),
            constant => Ok(Node::Constant(constant.to_owned())),
        };
        self.depth -= 1;
        node
    }

    fn array(&mut self, array: RawDoc<'_>) -> Result<Node> {
        let items = array.values().map(|item| self.node(item)).collect::<Result<Vec<Node>>>()?;
        match items.iter().all(|item| matches!(item, Node::Constant(_))) {
            true => Ok(Node::Constant(Value::Array(array).to_owned())),
            false => Ok(Node::Array(items)),
        }
    }

    /// An operator or a document of expressions.
    fn document(&mut self, doc: RawDoc<'_>) -> Result<Node> {
        if let Some(operator) = doc.iter().find(|element| element.key().starts_with('$')) {
            if doc.len() != 1 {
                return Err(Error::location(
                    15983,
                    format!(
                        "an expression specification must contain exactly one field, the name of the \
                         expression. Found {} fields in {}",
                        doc.len(),
                        show(Value::Document(doc))
                    ),
                ));
            }
            return self.operator(operator.key(), operator.value());
        }
        let mut fields = Vec::new();
        for element in doc {
            check_field_name(element.key())?;
            fields.push((element.key().to_string(), self.node(element.value())?));
        }
        match fields.iter().all(|(_, node)| matches!(node, Node::Constant(_))) {
            true => Ok(Node::Constant(Value::Document(doc).to_owned())),
            false => Ok(Node::Document(fields)),
        }
    }

    fn operator(&mut self, name: &str, spec: Value<'_>) -> Result<Node> {
        if let Some(node) = control::parse(self, name, spec)? {
            return Ok(node);
        }
        match table::find(name) {
            Some(operator) => self.call(operator, spec),
            None if table::UNSUPPORTED.contains(&name) => Err(Error::new(
                code::COMMAND_NOT_SUPPORTED,
                format!("The expression '{name}' is not supported by this server"),
            )),
            None => {
                Err(Error::new(code::INVALID_PIPELINE_OPERATOR, format!("Unrecognized expression '{name}'")))
            }
        }
    }

    fn call(&mut self, operator: &'static Operator, spec: Value<'_>) -> Result<Node> {
        let nodes = match operator.arguments {
            Arguments::List { least, most } => self.list(operator.name, spec, least, most)?,
            Arguments::Named { names, required } => self.named(operator.name, spec, names, required)?,
            Arguments::DateOr { names } => match spec {
                Value::Document(doc) if doc.get("date").is_some() => {
                    self.named(operator.name, spec, names, 1)?
                }
                spec => {
                    let mut nodes = self.list(operator.name, spec, 1, 1)?;
                    nodes.resize_with(names.len(), || Node::Absent);
                    nodes
                }
            },
        };
        Ok(Node::Call(operator, nodes))
    }

    /// Positional arguments: an array of them, or one without an array.
    pub(super) fn list(
        &mut self,
        name: &str,
        spec: Value<'_>,
        least: usize,
        most: usize,
    ) -> Result<Vec<Node>> {
        let nodes = match spec {
            Value::Array(items) => {
                items.values().map(|item| self.node(item)).collect::<Result<Vec<Node>>>()?
            }
            single => vec![self.node(single)?],
        };
        let given = nodes.len();
        if (least..=most).contains(&given) {
            return Ok(nodes);
        }
        Err(if least == most {
            Error::location(
                16020,
                format!("Expression {name} takes exactly {least} arguments. {given} were passed in."),
            )
        } else if most == usize::MAX {
            Error::location(
                16020,
                format!("Expression {name} takes at least {least} arguments. {given} were passed in."),
            )
        } else {
            Error::location(
                28667,
                format!(
                    "Expression {name} takes at least {least} arguments, and at most {most}, but {given} were \
                     passed in."
                ),
            )
        })
    }

    /// Named arguments in the order of `names`; the first `required` must be there.
    pub(super) fn named(
        &mut self,
        name: &str,
        spec: Value<'_>,
        names: &[&str],
        required: usize,
    ) -> Result<Vec<Node>> {
        let doc = named_document(name, spec)?;
        check_names(name, doc, names, required)?;
        names
            .iter()
            .map(|argument| doc.get(argument).map_or(Ok(Node::Absent), |value| self.node(value)))
            .collect()
    }

    /// Parses `body` where a variable of this name is bound; returns its slot too.
    pub(super) fn binding(&mut self, variables: &[&str], body: Value<'_>) -> Result<(usize, Node)> {
        let slot = self.locals.len();
        self.locals.extend(variables.iter().map(|name| name.to_string()));
        let node = self.node(body);
        self.locals.truncate(slot);
        Ok((slot, node?))
    }

    fn path(&self, text: &str) -> Result<Node> {
        if text == "$" {
            return Err(Error::location(16872, "'$' by itself is not a valid FieldPath"));
        }
        let Some(variable) = text.strip_prefix("$$") else {
            return Ok(Node::Path(Base::Current, path_parts(&text[1..])?));
        };
        let (name, rest) =
            variable.split_once('.').map_or((variable, None), |(name, rest)| (name, Some(rest)));
        let parts = rest.map_or(Ok(Box::default()), path_parts)?;
        Ok(Node::Path(self.variable(name)?, parts))
    }

    fn variable(&self, name: &str) -> Result<Base> {
        if let Some(slot) = self.locals.iter().rposition(|local| local == name) {
            return Ok(Base::Local(slot));
        }
        if let Some(index) = self.outer.iter().rposition(|outer| outer == name) {
            return Ok(Base::Outer(index));
        }
        match name {
            "ROOT" => Ok(Base::Root),
            "CURRENT" => Ok(Base::Current),
            "NOW" => Ok(Base::Now),
            "CLUSTER_TIME" => Ok(Base::ClusterTime),
            "REMOVE" => Ok(Base::Remove),
            "" => Err(Error::failed_to_parse("empty variable names are not allowed")),
            _ => Err(Error::location(17276, format!("Use of undefined variable: {name}"))),
        }
    }
}

impl Expr {
    /// Parses the variables of a `let`: names and their expressions.
    pub(crate) fn parse_let(spec: RawDoc<'_>, names: &Names) -> Result<Vec<(String, Expr)>> {
        let mut variables = Vec::new();
        for element in spec {
            check_variable(element.key())?;
            variables.push((element.key().to_string(), Expr::parse_with(element.value(), names)?));
        }
        Ok(variables)
    }
}

/// The document that holds an operator's named arguments.
pub(super) fn named_document<'s>(name: &str, spec: Value<'s>) -> Result<RawDoc<'s>> {
    spec.as_document().ok_or_else(|| {
        Error::failed_to_parse(format!(
            "{name} only supports an object as its argument, not {}",
            spec.kind().alias()
        ))
    })
}

/// Refuses unknown arguments and the lack of required ones.
pub(super) fn check_names(name: &str, doc: RawDoc<'_>, names: &[&str], required: usize) -> Result<()> {
    if let Some(unknown) = doc.iter().find(|element| !names.contains(&element.key())) {
        return Err(Error::failed_to_parse(format!("Unrecognized parameter to {name}: {}", unknown.key())));
    }
    match names[..required].iter().find(|argument| doc.get(argument).is_none()) {
        Some(missing) => Err(Error::failed_to_parse(format!("Missing '{missing}' parameter to {name}"))),
        None => Ok(()),
    }
}

/// The components of a path.
pub(crate) fn path_parts(path: &str) -> Result<Box<[Box<str>]>> {
    if path.ends_with('.') {
        return Err(Error::location(40353, "FieldPath must not end with a '.'."));
    }
    let parts: Box<[Box<str>]> = path.split('.').map(Box::from).collect();
    if parts.len() > MAX_DEPTH {
        return Err(Error::new(code::OVERFLOW, "FieldPath is too long"));
    }
    for part in &parts {
        if part.is_empty() {
            return Err(Error::location(15998, "FieldPath field names may not be empty strings."));
        }
        if part.starts_with('$') {
            return Err(Error::location(
                16410,
                format!(
                    "FieldPath field names may not start with '$'. Consider using $getField or $setField. '{part}'"
                ),
            ));
        }
        if part.contains('\0') {
            return Err(Error::location(16411, "FieldPath field names may not contain '\0'."));
        }
    }
    Ok(parts)
}

/// Refuses what is no path of fields.
pub(crate) fn check_path(path: &str) -> Result<()> {
    path_parts(path).map(drop)
}

/// Refuses field names of a computed document that paths could not name.
fn check_field_name(name: &str) -> Result<()> {
    if name.contains('.') {
        return Err(Error::location(
            16412,
            "FieldPath field names may not contain '.'. Consider using $getField or $setField.",
        ));
    }
    if name.is_empty() {
        return Err(Error::location(15998, "FieldPath field names may not be empty strings."));
    }
    Ok(())
}

/// Refuses names that no variable can have: they start with a lower-case letter (or another script's letter)
/// and go on with letters, digits and underscores.
pub(crate) fn check_variable(name: &str) -> Result<()> {
    let start = |c: char| c.is_ascii_lowercase() || !c.is_ascii();
    let valid = name.starts_with(start)
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii());
    if valid {
        return Ok(());
    }
    match name {
        "" => Err(Error::failed_to_parse("empty variable names are not allowed")),
        _ if name.starts_with(start) => {
            Err(Error::failed_to_parse(format!("'{name}' contains an invalid character for a variable name")))
        }
        _ => Err(Error::failed_to_parse(format!(
            "'{name}' starts with an invalid character for a user variable name"
        ))),
    }
}
