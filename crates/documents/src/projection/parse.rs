//! Reading projection documents.

use super::{Compute, Kind, Node, Projection, ProjectionOptions, Rule, Slice};
use crate::build::DocBuilder;
use crate::doc::RawDoc;
use crate::error::{Error, Result, code};
use crate::filter::{Filter, FilterOptions};
use crate::number::{compare_numbers, to_i64};
use crate::path::Path;
use crate::sort::field_path;
use crate::value::{Owned, Value};
use std::sync::Arc;

/// A value that does not depend on the document.
#[derive(Debug)]
struct Literal(Owned);

impl Compute for Literal {
    fn compute(&self, _: RawDoc<'_>) -> Result<Option<Owned>> {
        Ok(Some(self.0.clone()))
    }
}

impl Projection {
    /// The projection that returns documents as they are.
    pub fn identity() -> Projection {
        Projection { kind: Kind::Identity, root: Node::default(), positional: None }
    }

    /// Reads a projection document.
    ///
    /// Errors, with MongoDB's numbers: 31253 and 31254 for a mix of inclusion and exclusion, 31249 and 31250
    /// for paths that collide, 31276, 31394 and 31395 for a misplaced `$`, and those of paths and expressions.
    pub fn parse(projection: RawDoc<'_>, options: &ProjectionOptions<'_>) -> Result<Projection> {
        let mut parser = Parser { options, leaves: Vec::new(), positional: None };
        parser.fields("", projection)?;
        if parser.leaves.is_empty() {
            return Ok(Projection::identity());
        }
        let kind = parser.kind()?;
        let mut root = Node::default();
        for (path, rule) in parser.leaves {
            let is_default_id =
                path.as_str() == "_id" && matches!((&rule, kind), (Rule::Include, Kind::Exclusion));
            if !is_default_id {
                root.insert(&path, rule)?;
            }
        }
        if kind == Kind::Inclusion && root.rule(b"_id").is_none() {
            root.rules.push(("_id".into(), Rule::Include));
        }
        Ok(Projection { kind, root, positional: parser.positional })
    }
}

impl Node {
    fn insert(&mut self, path: &Path, rule: Rule) -> Result<()> {
        let mut node = self;
        let (last, parents) = path.parts().split_last().expect("a path has a part");
        for (depth, part) in parents.iter().enumerate() {
            let index = node.rules.iter().position(|(name, _)| **name == *part.name()).unwrap_or_else(|| {
                node.rules.push((part.name().into(), Rule::Nested(Node::default())));
                node.rules.len() - 1
            });
            match &mut node.rules[index].1 {
                Rule::Nested(nested) => node = nested,
                _ => {
                    let rest: Vec<_> = path.parts()[depth + 1..].iter().map(|part| part.name()).collect();
                    let message = format!("Path collision at {path} remaining portion {}", rest.join("."));
                    return Err(Error::location(31249, message));
                }
            }
        }
        if node.rule(last.name().as_bytes()).is_some() {
            return Err(Error::location(31250, format!("Path collision at {path}")));
        }
        node.rules.push((last.name().into(), rule));
        Ok(())
    }
}

struct Parser<'o> {
    options: &'o ProjectionOptions<'o>,
    leaves: Vec<(Path, Rule)>,
    positional: Option<Path>,
}

impl Parser<'_> {
    /// The fields of the projection or of a document nested in it, below `prefix`.
    fn fields(&mut self, prefix: &str, fields: RawDoc<'_>) -> Result<()> {
        for field in fields {
            let name = field.key();
            let path = if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") };
            self.field(&path, field.value())?;
        }
        Ok(())
    }

    fn field(&mut self, path: &str, value: Value<'_>) -> Result<()> {
        if !self.options.stage && (path == "$" || path.ends_with(".$") || path.contains(".$.")) {
            return self.positional(path, value);
        }
        match value {
            Value::Bool(include) => self.leaf(path, if include { Rule::Include } else { Rule::Exclude }),
            value if value.is_number() => {
                let include = compare_numbers(value, Value::Int32(0)).is_ne();
                self.leaf(path, if include { Rule::Include } else { Rule::Exclude })
            }
            Value::Document(nested) if nested.is_empty() => Err(Error::location(
                51270,
                format!("An empty sub-projection is not a valid value. Found empty object at path {path}"),
            )),
            Value::Document(nested) => match nested.iter().next() {
                Some(first) if first.key().starts_with('$') => {
                    let rule = self.operator(path, first.key(), first.value(), value)?;
                    self.leaf(path, rule)
                }
                _ => self.fields(path, nested),
            },
            value => {
                let rule = self.compute(value)?;
                self.leaf(path, rule)
            }
        }
    }

    fn leaf(&mut self, path: &str, rule: Rule) -> Result<()> {
        self.leaves.push((field_path(path)?, rule));
        Ok(())
    }

    fn positional(&mut self, path: &str, value: Value<'_>) -> Result<()> {
        let Some(array) = path.strip_suffix(".$").filter(|array| !array.contains(".$")) else {
            let message = format!("positional projection is only allowed at the end of the path: '{path}'");
            return Err(Error::location(31394, message));
        };
        match value {
            Value::Bool(true) => {}
            value if value.is_number() && compare_numbers(value, Value::Int32(0)).is_ne() => {}
            Value::Bool(false) | Value::Int32(_) | Value::Int64(_) | Value::Double(_) => {
                return Err(Error::location(31395, "positional projection cannot be used with exclusion"));
            }
            _ => {
                let message = "positional projection cannot be used with a literal or an expression";
                return Err(Error::location(31271, message));
            }
        }
        if self.positional.is_some() {
            let message = "Cannot specify more than one positional projection per query.";
            return Err(Error::location(31276, message));
        }
        self.positional = Some(field_path(array)?);
        self.leaf(array, Rule::Include)
    }

    fn operator(&mut self, path: &str, name: &str, argument: Value<'_>, whole: Value<'_>) -> Result<Rule> {
        match (name, argument) {
            ("$meta", _) => Err(Error::new(code::COMMAND_NOT_SUPPORTED, "$meta is not supported")),
            ("$slice", argument) if !self.options.stage && argument.is_number() => {
                let count = integer(argument);
                let size = count.unsigned_abs();
                Ok(Rule::Slice(if count < 0 { Slice::Last(size) } else { Slice::First(size) }))
            }
            ("$slice", Value::Array(parts))
                if !self.options.stage && parts.values().all(|v| v.is_number()) =>
            {
                slice(parts)
            }
            ("$slice", argument) if !self.options.stage && argument.as_array().is_none() => {
                Err(Error::location(31273, "$slice only supports numbers and [skip, limit] arrays"))
            }
            ("$elemMatch", argument) if !self.options.stage => self.elem_match(path, argument),
            _ => self.compute(whole),
        }
    }

    fn elem_match(&self, path: &str, argument: Value<'_>) -> Result<Rule> {
        if path.contains('.') {
            return Err(Error::location(31275, "Cannot use $elemMatch projection on a nested field"));
        }
        if argument.as_document().is_none() {
            let kind = argument.kind().alias();
            let message = format!("elemMatch: Invalid argument, object required, but got {kind}");
            return Err(Error::location(31274, message));
        }
        let mut query = DocBuilder::new();
        query.start_document(path).append("$elemMatch", argument).end();
        let options = FilterOptions { collation: self.options.collation.clone(), expr: None };
        Ok(Rule::ElemMatch(Box::new(Filter::parse(query.finish().raw(), &options)?)))
    }

    fn compute(&self, value: Value<'_>) -> Result<Rule> {
        let compute: Box<dyn Compute> = match (self.options.expr, value) {
            (Some(parse), value) => parse(value)?,
            (None, Value::Document(_) | Value::Array(_)) => return Err(no_expressions()),
            (None, Value::String(text)) if text.starts_with('$') => return Err(no_expressions()),
            (None, literal) => Box::new(Literal(literal.to_owned())),
        };
        Ok(Rule::Compute(Arc::from(compute)))
    }

    /// Whether the rules include or exclude; an error if they do both.
    fn kind(&self) -> Result<Kind> {
        let mut kind = None;
        for (path, rule) in self.leaves.iter().filter(|(path, _)| path.as_str() != "_id") {
            let (own, number) = match rule {
                Rule::Slice(_) => continue,
                Rule::Exclude => (Kind::Exclusion, 31254),
                Rule::Compute(_) | Rule::ElemMatch(_) => (Kind::Inclusion, 31252),
                Rule::Include | Rule::Nested(_) => (Kind::Inclusion, 31253),
            };
            if *kind.get_or_insert(own) != own {
                return Err(Error::location(
                    number,
                    match number {
                        31252 => "Cannot use expression other than $meta in exclusion projection".to_string(),
                        31253 => format!("Cannot do inclusion on field {path} in exclusion projection"),
                        _ => format!("Cannot do exclusion on field {path} in inclusion projection"),
                    },
                ));
            }
        }
        let id = self.leaves.iter().find(|(path, _)| path.as_str() == "_id").map(|(_, rule)| rule);
        match (kind, id) {
            (Some(Kind::Exclusion), Some(Rule::Compute(_) | Rule::ElemMatch(_))) => {
                Err(Error::location(31252, "Cannot use expression other than $meta in exclusion projection"))
            }
            (Some(kind), _) => Ok(kind),
            (None, Some(Rule::Include)) if self.leaves.len() > 1 => Ok(Kind::Exclusion),
            (None, Some(Rule::Include | Rule::Compute(_) | Rule::ElemMatch(_))) => Ok(Kind::Inclusion),
            (None, _) => Ok(Kind::Exclusion),
        }
    }
}

fn no_expressions() -> Error {
    Error::new(code::COMMAND_NOT_SUPPORTED, "expressions are not supported in this projection")
}

/// The integral part of a number; what an int64 cannot hold is as good as its end.
fn integer(value: Value<'_>) -> i64 {
    to_i64(value)
        .unwrap_or_else(|| if compare_numbers(value, Value::Int32(0)).is_lt() { i64::MIN } else { i64::MAX })
}

/// `$slice: [skip, limit]`.
fn slice(parts: RawDoc<'_>) -> Result<Rule> {
    let parts: Vec<_> = parts.values().take(3).map(integer).collect();
    let [skip, limit] = parts[..] else {
        return Err(Error::location(31273, "$slice only supports numbers and [skip, limit] arrays"));
    };
    match u64::try_from(limit) {
        Ok(limit @ 1..) if skip < 0 => Ok(Rule::Slice(Slice::Before(skip.unsigned_abs(), limit))),
        Ok(limit @ 1..) => Ok(Rule::Slice(Slice::After(skip.unsigned_abs(), limit))),
        _ => Err(Error::location(31272, "$slice limit must be positive")),
    }
}
