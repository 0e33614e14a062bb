//! Aggregation expressions: parsed once, evaluated for each document.
//!
//! ```text
//! { $add: ["$a", 1] } ── parse ──► Expr ── eval(Context) ──► Val (borrowed where it can be)
//! ```
//!
//! Invariants
//! * Field paths and variables give views of the document or the variable: nothing is copied to be looked at.
//! * Evaluation is a function of the expression and its [`Context`], `$rand` and `$sampleRate` excepted.
//! * Whatever the values, evaluation ends in a value or an error, never in a panic.
//! * Whatever repeats itself counts its steps ([`crate::interrupt`]), so that a long evaluation can be ended.
//!
//! To add an operator, add its line to the table of its module (`table.rs` lists them) and its function.

mod args;
mod arrays;
mod calendar;
mod compare;
mod control;
mod convert;
mod dates;
mod format;
mod math;
mod objects;
mod parse;
mod path;
mod regex;
mod sets;
mod strings;
mod sums;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use args::array_of;
pub(crate) use arrays::count_of;
pub(crate) use objects::merge_into;
pub(crate) use parse::{Names, check_path};
pub(crate) use path::{Base, with_path};
pub(crate) use sums::{Deviation, Sum};

use crate::collation::Collation;
use crate::compare::compare_with;
use crate::filter::{ExprPredicate, Filter, FilterOptions};
use crate::interrupt::{BYTES_PER_STEP, steps_of, tick};
use crate::{DocBuilder, Owned, RawDoc, Result, Timestamp, Value};
use std::cmp::Ordering;
use std::sync::Arc;

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expr(Node);

/// Names and values of variables that surround an expression: a command's or a stage's `let`.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    names: Arc<[String]>,
    values: Arc<[Owned]>,
}

impl Variables {
    /// Variables with these values.
    pub fn new(variables: impl IntoIterator<Item = (String, Owned)>) -> Variables {
        let (names, values): (Vec<String>, Vec<Owned>) = variables.into_iter().unzip();
        Variables { names: names.into(), values: values.into() }
    }

    /// The names, in the order of the values.
    pub fn names(&self) -> &Arc<[String]> {
        &self.names
    }

    /// The values, in the order of the names.
    pub fn values(&self) -> &Arc<[Owned]> {
        &self.values
    }
}

/// What filters and expressions are parsed with.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `$$NOW`, in milliseconds since 1970.
    pub now_ms: i64,
    /// `$$CLUSTER_TIME`.
    pub cluster_time: Timestamp,
    /// How strings compare.
    pub collation: Option<Arc<Collation>>,
    /// The variables of a `let`.
    pub variables: Variables,
}

impl Surroundings {
    /// The variables of a command's `let`: each field is an expression without a document, and without the variables
    /// that are here already.
    ///
    /// # Errors
    /// Those of the expressions; `FailedToParse` for a name that no variable can have.
    pub fn parse_variables(&self, spec: RawDoc<'_>) -> Result<Variables> {
        let none = Variables::default();
        let context = Context::new(RawDoc::empty(), self.now_ms, self.cluster_time, &[])
            .with_collation(self.collation.as_ref());
        let mut variables = Vec::new();
        for element in spec {
            parse::check_variable(element.key())?;
            let expr = Expr::parse(element.value(), &none)?;
            let value = expr.eval(&context)?.into_owned();
            variables.push((element.key().to_string(), value));
        }
        Ok(Variables::new(variables))
    }

    /// Parses a filter whose `$expr` may use the variables.
    ///
    /// # Errors
    /// Those of [`Filter::parse`] and [`Expr::parse`].
    pub fn parse_filter(&self, query: RawDoc<'_>) -> Result<Filter> {
        self.with_filter_options(|options| Filter::parse(query, options))
    }

    /// Calls a parser of filters with options that make `$expr` mean the expressions of this module.
    pub(crate) fn with_filter_options<T>(
        &self,
        parse: impl FnOnce(&FilterOptions<'_>) -> Result<T>,
    ) -> Result<T> {
        let expr = |spec: Value<'_>| -> Result<Box<dyn ExprPredicate>> {
            let expr = Expr::parse(spec, &self.variables)?;
            let values = self.variables.values.clone();
            let (now_ms, cluster_time, collation) = (self.now_ms, self.cluster_time, self.collation.clone());
            Ok(Box::new(Predicate { expr, now_ms, cluster_time, collation, values }))
        };
        parse(&FilterOptions { collation: self.collation.clone(), expr: Some(&expr) })
    }
}

/// `$expr` in a filter.
#[derive(Debug)]
struct Predicate {
    expr: Expr,
    now_ms: i64,
    cluster_time: Timestamp,
    collation: Option<Arc<Collation>>,
    values: Arc<[Owned]>,
}

impl ExprPredicate for Predicate {
    fn holds(&self, doc: RawDoc<'_>) -> Result<bool> {
        let context = Context::new(doc, self.now_ms, self.cluster_time, &self.values)
            .with_collation(self.collation.as_ref());
        Ok(self.expr.eval(&context)?.is_true())
    }
}

/// What an expression is evaluated against.
#[derive(Clone, Debug)]
pub struct Context<'c> {
    /// `$$ROOT`.
    pub(crate) root: RawDoc<'c>,
    /// `$$CURRENT`, to which field paths refer.
    pub(crate) current: Value<'c>,
    pub(crate) now_ms: i64,
    pub(crate) cluster_time: Timestamp,
    /// How strings compare.
    pub(crate) collation: Option<&'c Arc<Collation>>,
    /// Values of the surrounding [`Variables`].
    pub(crate) values: &'c [Owned],
    /// Values of the variables that the expression binds, by slot; `None` is missing.
    pub(crate) locals: Vec<Option<Value<'c>>>,
}

impl<'c> Context<'c> {
    /// A context for one document. `values` are those of the [`Variables`] that the expression was parsed with.
    pub fn new(root: RawDoc<'c>, now_ms: i64, cluster_time: Timestamp, values: &'c [Owned]) -> Context<'c> {
        let current = Value::Document(root);
        Context { root, current, now_ms, cluster_time, collation: None, values, locals: Vec::new() }
    }

    /// This context where strings compare by `collation`.
    pub fn with_collation(self, collation: Option<&'c Arc<Collation>>) -> Context<'c> {
        Context { collation, ..self }
    }

    /// Orders two values as the command's collation does.
    pub(crate) fn compare(&self, a: Value<'_>, b: Value<'_>) -> Ordering {
        compare_with(a, b, self.collation.map(Arc::as_ref))
    }

    /// The context for another document.
    pub fn with_root<'d>(&self, root: RawDoc<'d>) -> Context<'d>
    where
        'c: 'd,
    {
        Context { root, current: Value::Document(root), locals: Vec::new(), ..self.clone() }
    }

    /// This context with another `$$CURRENT`.
    pub(crate) fn with_current<'d>(&self, current: Value<'d>) -> Context<'d>
    where
        'c: 'd,
    {
        Context { current, ..self.clone() }
    }

    /// This context with a variable bound.
    pub(crate) fn bind<'d>(&self, slot: usize, value: Option<Value<'d>>) -> Context<'d>
    where
        'c: 'd,
    {
        let mut inner: Context<'d> = self.clone();
        inner.locals.resize(slot.max(inner.locals.len()), None);
        match inner.locals.get_mut(slot) {
            Some(local) => *local = value,
            None => inner.locals.push(value),
        }
        inner
    }
}

/// The value of an expression.
#[derive(Clone, Debug)]
pub enum Val<'v> {
    /// No value: a missing field.
    Missing,
    /// A view of the document, a variable or a constant.
    Ref(Value<'v>),
    /// A computed value.
    Own(Owned),
}

impl<'v> Val<'v> {
    /// The value; missing looks like `undefined`, which sorts and compares the same.
    pub fn value(&self) -> Value<'_> {
        match self {
            Val::Missing => Value::Undefined,
            Val::Ref(value) => *value,
            Val::Own(value) => value.value(),
        }
    }

    /// The value, unless it is missing.
    pub fn get(&self) -> Option<Value<'_>> {
        match self {
            Val::Missing => None,
            other => Some(other.value()),
        }
    }

    /// The value as a copy of its own; missing becomes null.
    pub fn into_owned(self) -> Owned {
        match self {
            Val::Missing => Owned::Null,
            Val::Ref(value) => value.to_owned(),
            Val::Own(value) => value,
        }
    }

    /// The value with all it borrows copied.
    pub(crate) fn detach(self) -> Val<'static> {
        match self {
            Val::Missing => Val::Missing,
            other => Val::Own(other.into_owned()),
        }
    }

    /// Whether it is missing, null or undefined.
    pub fn is_nullish(&self) -> bool {
        matches!(self.value(), Value::Null | Value::Undefined)
    }

    /// Whether it counts as true: everything but false, zero, null, undefined and missing.
    pub fn is_true(&self) -> bool {
        is_true(self.value())
    }

    /// The name of its type for messages and `$type`.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Val::Missing => "missing",
            other => other.value().kind().alias(),
        }
    }

    pub(crate) fn null() -> Val<'static> {
        Val::Own(Owned::Null)
    }
}

/// Whether a value counts as true: everything but false, zero, null and undefined.
pub(crate) fn is_true(value: Value<'_>) -> bool {
    match value {
        Value::Bool(value) => value,
        Value::Null | Value::Undefined => false,
        Value::Int32(value) => value != 0,
        Value::Int64(value) => value != 0,
        Value::Double(value) => value != 0.0,
        Value::Decimal128(value) => !value.decode().is_zero(),
        _ => true,
    }
}

impl From<Owned> for Val<'_> {
    fn from(value: Owned) -> Self {
        Val::Own(value)
    }
}

impl<'v> From<Value<'v>> for Val<'v> {
    fn from(value: Value<'v>) -> Self {
        Val::Ref(value)
    }
}

macro_rules! val_from {
    ($($from:ty => $variant:ident),*) => {
        $(impl From<$from> for Val<'_> {
            fn from(value: $from) -> Self {
                Val::Own(Owned::$variant(value.into()))
            }
        })*
    };
}

val_from!(bool => Bool, i32 => Int32, i64 => Int64, f64 => Double, String => String, &str => String);

/// The parts of an expression.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Constant(Owned),
    /// An argument that is not given.
    Absent,
    Path(Base, Box<[Box<str>]>),
    Document(Vec<(String, Node)>),
    Array(Vec<Node>),
    Call(&'static table::Operator, Vec<Node>),
    Control(Box<control::Control>),
}

impl Expr {
    /// Parses an expression that may use these variables.
    ///
    /// # Errors
    /// 168 for an operator that does not exist, 17276 for an unknown variable, and the operators' own.
    pub fn parse(spec: Value<'_>, variables: &Variables) -> Result<Expr> {
        Expr::parse_with(spec, &variables.names)
    }

    pub(crate) fn parse_with(spec: Value<'_>, names: &Names) -> Result<Expr> {
        parse::Parser::new(names).node(spec).map(Expr)
    }

    /// An expression that is this value.
    pub fn constant(value: Owned) -> Expr {
        Expr(Node::Constant(value))
    }

    /// The value, if it is the same for every document.
    pub fn as_constant(&self) -> Option<&Owned> {
        match &self.0 {
            Node::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// The value for a context.
    pub fn eval<'v>(&'v self, context: &Context<'v>) -> Result<Val<'v>> {
        self.0.eval(context)
    }
}

impl Node {
    pub(crate) fn eval<'v>(&'v self, context: &Context<'v>) -> Result<Val<'v>> {
        match self {
            Node::Constant(value) => Ok(Val::Ref(value.value())),
            Node::Absent => Ok(Val::Missing),
            Node::Path(base, parts) => {
                let value = path::eval(base, parts, context);
                if let Val::Own(made) = &value {
                    tick(steps_of(made.value()))?;
                }
                Ok(value)
            }
            Node::Document(fields) => {
                let mut doc = DocBuilder::new();
                for (name, node) in fields {
                    if let Some(value) = node.eval(context)?.get() {
                        doc.append_value(name, value);
                        args::check_size(doc.size())?;
                    }
                }
                tick(doc.size() / BYTES_PER_STEP)?;
                Ok(Val::Own(Owned::Document(doc.finish())))
            }
            Node::Array(items) => {
                let mut array = DocBuilder::new();
                for node in items {
                    array.push_value(node.eval(context)?.get().unwrap_or(Value::Null));
                    args::check_size(array.size())?;
                }
                tick(array.size() / BYTES_PER_STEP)?;
                Ok(Val::Own(Owned::Array(array.finish())))
            }
            Node::Call(operator, nodes) => {
                let mut args = args::Args::new();
                let mut steps = 1;
                for node in nodes {
                    let arg = node.eval(context)?;
                    steps += steps_of(arg.value());
                    args.push(arg);
                }
                tick(steps)?;
                let value = (operator.run)(args, context)?;
                tick(steps_of(value.value()))?;
                Ok(value)
            }
            Node::Control(control) => control.eval(context),
        }
    }
}
