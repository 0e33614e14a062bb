//! Reading query documents.

use super::bits::{BitMask, BitTest};
use super::types::{TypeSet, shown};
use super::{Clause, FilterOptions, InList, Node, Op, Pattern, Schema, Test};
use crate::compare::compare_with;
use crate::doc::{Element, RawDoc};
use crate::error::{Error, Result, code};
use crate::number;
use crate::path::Path;
use crate::value::Value;
use std::sync::Arc;

/// Operators that are known and not supported.
const UNSUPPORTED: [&str; 14] = [
    "$where",
    "$text",
    "$near",
    "$nearSphere",
    "$geoNear",
    "$geoWithin",
    "$geoIntersects",
    "$within",
    "$maxDistance",
    "$minDistance",
    "$uniqueDocs",
    "$function",
    "$_internalSchemaCond",
    "$_internalExprEq",
];

/// Whether a document holds operators: its first name starts with `$`, and it is no DBRef.
pub(super) fn is_operators(doc: RawDoc<'_>) -> bool {
    let Some(first) = doc.iter().next() else { return false };
    let is_reference = || doc.element("$ref").is_some() && doc.element("$id").is_some();
    first.key_bytes().starts_with(b"$") && !is_reference()
}

pub(super) struct Parser<'o> {
    options: &'o FilterOptions<'o>,
}

impl<'o> Parser<'o> {
    pub(super) fn new(options: &'o FilterOptions<'o>) -> Parser<'o> {
        Parser { options }
    }

    /// A whole query document.
    pub(super) fn query(&self, query: RawDoc<'_>) -> Result<Node> {
        self.nested_query(query, true)
    }

    /// A query document; `top` unless it is inside `$elemMatch`.
    fn nested_query(&self, query: RawDoc<'_>, top: bool) -> Result<Node> {
        let mut nodes = Vec::new();
        for field in query {
            match field.key().strip_prefix('$') {
                Some(_) => nodes.extend(self.top_operator(field, top)?),
                None => self.field(field, &mut nodes)?,
            }
        }
        Ok(all_of(nodes))
    }

    fn top_operator(&self, field: Element<'_>, top: bool) -> Result<Option<Node>> {
        let value = field.value();
        Ok(Some(match field.key() {
            "$and" => all_of(self.branches("$and", value, top)?),
            "$or" => match self.branches("$or", value, top)? {
                mut nodes if nodes.len() == 1 => nodes.remove(0),
                nodes => Node::Or(nodes),
            },
            "$nor" => Node::Nor(self.branches("$nor", value, top)?),
            "$comment" => return Ok(None),
            "$expr" if !top => {
                return Err(Error::bad_value("$expr can only be applied to the top-level document"));
            }
            "$expr" => match self.options.expr {
                Some(parse) => Node::Expr(Arc::from(parse(value)?)),
                None => return Err(unsupported("$expr")),
            },
            "$jsonSchema" => match value {
                Value::Document(schema) => Node::JsonSchema(Box::new(Schema::parse(schema)?)),
                _ => return Err(Error::type_mismatch("$jsonSchema must be an object")),
            },
            "$sampleRate" => sample_rate(value)?,
            "$alwaysTrue" | "$alwaysFalse" => match (number::to_integral(value), field.key()) {
                (Some(1), "$alwaysTrue") => Node::True,
                (Some(1), _) => Node::False,
                (_, name) => {
                    return Err(Error::failed_to_parse(format!("{name} must be an integer value of 1")));
                }
            },
            name if UNSUPPORTED.contains(&name) => return Err(unsupported(name)),
            name => {
                return Err(Error::bad_value(format!(
                    "unknown top level operator: {name}. If you have a field name that starts with a '$' \
                     symbol, consider using $getField or $setField."
                )));
            }
        }))
    }

    fn branches(&self, name: &str, value: Value<'_>, top: bool) -> Result<Vec<Node>> {
        let Value::Array(branches) = value else {
            return Err(Error::bad_value(format!("{name} argument must be an array")));
        };
        if branches.is_empty() {
            return Err(Error::bad_value("$and/$or/$nor must be a nonempty array"));
        }
        let branch = |value| match value {
            Value::Document(query) => self.nested_query(query, top),
            _ => Err(Error::bad_value("$or/$and/$nor entries need to be full objects")),
        };
        branches.values().map(branch).collect()
    }

    fn field(&self, field: Element<'_>, nodes: &mut Vec<Node>) -> Result<()> {
        let path = Path::new(field.key());
        match field.value() {
            Value::Document(doc) if is_operators(doc) => {
                nodes.extend(self.operators(doc)?.into_iter().map(|clause| clause_node(&path, clause)));
            }
            value => nodes.push(Node::Field { path, test: self.equality(value)? }),
        }
        Ok(())
    }

    /// What a plain value asks for: equality, or a search if it is a regular expression.
    pub(super) fn equality(&self, value: Value<'_>) -> Result<Test> {
        match value {
            Value::Undefined => Err(Error::bad_value("cannot compare to undefined")),
            Value::Regex { pattern, options } => Ok(Test::Regex(Pattern::new(pattern, options)?)),
            value => Ok(Test::Compare { op: Op::Eq, value: value.to_owned() }),
        }
    }

    /// A document of operators on one value.
    pub(super) fn operators(&self, doc: RawDoc<'_>) -> Result<Vec<Clause>> {
        let mut clauses = Vec::new();
        for operator in doc {
            self.operator(operator, doc, &mut clauses)?;
        }
        Ok(clauses)
    }

    fn operator(&self, operator: Element<'_>, siblings: RawDoc<'_>, out: &mut Vec<Clause>) -> Result<()> {
        let (name, value) = (operator.key(), operator.value());
        let test = match name {
            "$eq" => comparison(name, Op::Eq, value)?,
            "$lt" => comparison(name, Op::Lt, value)?,
            "$lte" => comparison(name, Op::Lte, value)?,
            "$gt" => comparison(name, Op::Gt, value)?,
            "$gte" => comparison(name, Op::Gte, value)?,
            "$ne" => {
                out.push(Clause::Not(vec![Clause::Is(comparison(name, Op::Eq, value)?)]));
                return Ok(());
            }
            "$in" => Test::In(self.in_list(name, value)?),
            "$nin" => {
                out.push(Clause::Not(vec![Clause::Is(Test::In(self.in_list(name, value)?))]));
                return Ok(());
            }
            "$not" => {
                out.push(Clause::Not(self.negated(value)?));
                return Ok(());
            }
            "$exists" if truth(value) => Test::Exists,
            "$exists" => {
                out.push(Clause::Not(vec![Clause::Is(Test::Exists)]));
                return Ok(());
            }
            "$type" => Test::Type(TypeSet::parse(value)?),
            "$regex" => Test::Regex(regex(value, siblings.get("$options"))?),
            "$options" if siblings.element("$regex").is_some() => return Ok(()),
            "$options" => return Err(Error::bad_value("$options needs a $regex")),
            "$size" => Test::Size(size(value)?),
            "$mod" => modulo(value)?,
            "$bitsAllSet" => Test::Bits(BitTest::AllSet, BitMask::parse(name, value)?),
            "$bitsAllClear" => Test::Bits(BitTest::AllClear, BitMask::parse(name, value)?),
            "$bitsAnySet" => Test::Bits(BitTest::AnySet, BitMask::parse(name, value)?),
            "$bitsAnyClear" => Test::Bits(BitTest::AnyClear, BitMask::parse(name, value)?),
            "$elemMatch" => self.elem_match(value)?,
            "$all" => return self.all(value, out),
            "$comment" => return Ok(()),
            name if UNSUPPORTED.contains(&name) => return Err(unsupported(name)),
            name => return Err(Error::bad_value(format!("unknown operator: {name}"))),
        };
        out.push(Clause::Is(test));
        Ok(())
    }

    fn negated(&self, value: Value<'_>) -> Result<Vec<Clause>> {
        match value {
            Value::Regex { .. } => Ok(vec![Clause::Is(self.equality(value)?)]),
            Value::Document(doc) if doc.is_empty() => Err(Error::bad_value("$not cannot be empty")),
            Value::Document(doc) => self.operators(doc),
            _ => Err(Error::bad_value("$not needs a regex or a document")),
        }
    }

    fn in_list(&self, name: &str, value: Value<'_>) -> Result<InList> {
        let Value::Array(array) = value else {
            return Err(Error::bad_value(format!("{name} needs an array")));
        };
        let (mut values, mut patterns) = (Vec::new(), Vec::new());
        for value in array.values() {
            match value {
                Value::Document(doc) if is_operators(doc) => {
                    return Err(Error::bad_value(format!("cannot nest $ under {name}")));
                }
                Value::Undefined => {
                    return Err(Error::bad_value("InMatchExpression equality cannot be undefined"));
                }
                Value::Regex { pattern, options } => patterns.push(Pattern::new(pattern, options)?),
                value => values.push(value.to_owned()),
            }
        }
        let collation = self.options.collation.as_deref();
        values.sort_by(|a, b| compare_with(a.value(), b.value(), collation));
        values.dedup_by(|a, b| compare_with(a.value(), b.value(), collation).is_eq());
        let has_null = values.iter().any(|value| value.value() == Value::Null);
        Ok(InList { values, patterns, has_null })
    }

    fn elem_match(&self, value: Value<'_>) -> Result<Test> {
        let Value::Document(doc) = value else {
            return Err(Error::bad_value("$elemMatch needs an Object"));
        };
        let first = doc.iter().next().map_or("", |field| field.key());
        if is_operators(doc) && !matches!(first, "$and" | "$or" | "$nor" | "$expr" | "$jsonSchema" | "$where")
        {
            return Ok(Test::ElemMatchValue(self.operators(doc)?));
        }
        Ok(Test::ElemMatch(Box::new(self.nested_query(doc, false)?)))
    }

    fn all(&self, value: Value<'_>, out: &mut Vec<Clause>) -> Result<()> {
        let Value::Array(array) = value else { return Err(Error::bad_value("$all needs an array")) };
        let is_elem_match = |value: Value<'_>| {
            value
                .as_document()
                .and_then(|doc| doc.iter().next())
                .is_some_and(|field| field.key() == "$elemMatch")
        };
        let elem_match = array.values().next().is_some_and(is_elem_match);
        if array.is_empty() {
            // Nothing has all of nothing: an impossible choice.
            let nothing = InList { values: Vec::new(), patterns: Vec::new(), has_null: false };
            out.push(Clause::Is(Test::In(nothing)));
        }
        for value in array.values() {
            let test = match value {
                Value::Document(doc) if elem_match && is_elem_match(value) && doc.len() == 1 => {
                    self.elem_match(doc.values().next().unwrap_or(Value::Null))?
                }
                _ if elem_match => {
                    return Err(Error::bad_value("$all/$elemMatch has to be consistent"));
                }
                Value::Document(doc) if is_operators(doc) => {
                    return Err(Error::bad_value("no $ expressions in $all"));
                }
                value => self.equality(value)?,
            };
            out.push(Clause::Is(test));
        }
        Ok(())
    }
}

fn unsupported(name: &str) -> Error {
    Error::new(code::COMMAND_NOT_SUPPORTED, format!("{name} is not supported"))
}

fn all_of(mut nodes: Vec<Node>) -> Node {
    match nodes.len() {
        0 => Node::True,
        1 => nodes.remove(0),
        _ => Node::And(nodes),
    }
}

fn clause_node(path: &Path, clause: Clause) -> Node {
    match clause {
        Clause::Is(test) => Node::Field { path: path.clone(), test },
        Clause::Not(clauses) => {
            let nodes = clauses.into_iter().map(|clause| clause_node(path, clause)).collect();
            Node::Not(Box::new(all_of(nodes)))
        }
    }
}

fn comparison(name: &str, op: Op, value: Value<'_>) -> Result<Test> {
    match value {
        Value::Undefined => Err(Error::bad_value("cannot compare to undefined")),
        Value::Regex { .. } if name == "$ne" => Err(Error::bad_value("Can't have regex as arg to $ne.")),
        Value::Regex { .. } if op != Op::Eq => {
            Err(Error::bad_value(format!("Can't have RegEx as arg to predicate over field ({name}).")))
        }
        value => Ok(Test::Compare { op, value: value.to_owned() }),
    }
}

/// Whether a value counts as true.
fn truth(value: Value<'_>) -> bool {
    match value {
        Value::Bool(value) => value,
        Value::Null | Value::Undefined => false,
        value if value.is_number() => number::compare_numbers(value, Value::Int32(0)).is_ne(),
        _ => true,
    }
}

fn regex(pattern: Value<'_>, options: Option<Value<'_>>) -> Result<Pattern> {
    let options = match options {
        None => None,
        Some(Value::String(options)) => Some(options),
        Some(_) => return Err(Error::bad_value("$options has to be a string")),
    };
    match pattern {
        Value::String(pattern) => Pattern::new(pattern, options.unwrap_or_default()),
        Value::Regex { pattern, options: own } => match options {
            Some(_) if !own.is_empty() => {
                Err(Error::location(51075, "options set in both $regex and $options"))
            }
            Some(options) => Pattern::new(pattern, options),
            None => Pattern::new(pattern, own),
        },
        _ => Err(Error::bad_value("$regex has to be a string")),
    }
}

fn size(value: Value<'_>) -> Result<u64> {
    let fail = |what: &str| {
        Err(Error::bad_value(format!("Failed to parse $size. Expected {what} in: $size: {}", shown(value))))
    };
    if !value.is_number() {
        return fail("a number");
    }
    match number::to_integral(value) {
        None => fail("an integer"),
        Some(size) => u64::try_from(size).or_else(|_| fail("a non-negative number")),
    }
}

fn modulo(value: Value<'_>) -> Result<Test> {
    let fail = |what: &str| Err(Error::bad_value(format!("malformed mod, {what}")));
    let Value::Array(array) = value else { return fail("needs to be an array") };
    let parts: Vec<_> = array.values().take(3).collect();
    let (divisor, remainder) = match parts[..] {
        [] | [_] => return fail("not enough elements"),
        [divisor, remainder] => (divisor, remainder),
        _ => return fail("too many elements"),
    };
    if !divisor.is_number() {
        return fail("divisor not a number");
    }
    if !remainder.is_number() {
        return fail("remainder not a number");
    }
    match (number::to_i64(divisor), number::to_i64(remainder)) {
        (Some(0), _) => Err(Error::bad_value("divisor cannot be 0")),
        (Some(divisor), Some(remainder)) => Ok(Test::Mod { divisor, remainder }),
        (None, _) => fail(&format!("divisor value is invalid: {}", shown(divisor))),
        (_, None) => fail(&format!("remainder value is invalid: {}", shown(remainder))),
    }
}

fn sample_rate(value: Value<'_>) -> Result<Node> {
    if !value.is_number() {
        return Err(Error::bad_value("argument to $sampleRate must be a numeric type"));
    }
    let rate = match value {
        Value::Decimal128(rate) => rate.to_f64(),
        value => value.as_f64().unwrap_or(f64::NAN),
    };
    match rate {
        1.0 => Ok(Node::True),
        0.0 => Ok(Node::False),
        rate if (0.0..1.0).contains(&rate) => Ok(Node::SampleRate(rate)),
        _ => Err(Error::bad_value("numeric argument to $sampleRate must be in [0, 1]")),
    }
}
