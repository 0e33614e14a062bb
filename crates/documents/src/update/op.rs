//! The update operators: what each makes of one field.
//!
//! An operator writes the field's new form straight into the new document; that nothing changed is noticed
//! by comparing the written bytes with the old ones.

use super::array::{Push, add_to_set, pop, pull, pull_all};
use super::run::Scope;
use crate::arith::{self, Number};
use crate::filter::ValueFilter;
use crate::show::{show, show_field};
use crate::{DocBuilder, Error, Owned, RawDoc, Result, Timestamp, Value, code};
use std::cmp::Ordering;
use std::sync::Arc;

/// An operator with its argument.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Set(Owned),
    SetOnInsert(Owned),
    Unset,
    Inc(Number),
    Mul(Number),
    Min(Owned),
    Max(Owned),
    /// Takes the value of the field at this path.
    RenameFrom(Arc<str>),
    /// The field whose value another one takes.
    RenameSource,
    Push(Arc<Push>),
    AddToSet(Arc<[Owned]>),
    /// Removes the first element, or the last.
    Pop {
        first: bool,
    },
    Pull(Arc<ValueFilter>),
    PullAll(Arc<[Owned]>),
    Bit(Arc<[(BitOp, Number)]>),
}

/// The operations of `$bit`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BitOp {
    And,
    Or,
    Xor,
}

/// What an operator did to a field, for the description of the update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// The field is not there any more.
    Removed,
    /// The field is written as a whole (perhaps as it was).
    Whole,
    /// An array is written, whose first so many elements are as they were.
    Appended(usize),
    /// Nothing is written: the field was missing and stays so.
    Nothing,
}

impl Op {
    /// Whether it brings a missing field into being.
    pub(crate) fn creates(&self, scope: &Scope<'_>) -> bool {
        !matches!(self, Op::Unset | Op::RenameSource | Op::Pop { .. } | Op::Pull(_) | Op::PullAll(_))
            && !self.is_idle(scope)
    }

    /// Whether a path through a scalar is nothing to do rather than an error.
    pub(crate) fn allows_dead_end(&self, scope: &Scope<'_>) -> bool {
        !self.creates(scope)
    }

    /// Whether it has nothing to do for this document, wherever its path leads.
    fn is_idle(&self, scope: &Scope<'_>) -> bool {
        match self {
            Op::SetOnInsert(_) => !scope.is_insert,
            Op::RenameFrom(path) => find(scope.source, path).is_none(),
            _ => false,
        }
    }

    /// Writes the field `name`, which was `old`, into `out`.
    pub(crate) fn write(
        &self,
        scope: &Scope<'_>,
        name: &str,
        old: Option<Value<'_>>,
        out: &mut DocBuilder,
    ) -> Result<Effect> {
        let value = match (self, old) {
            (Op::Set(value), _) => value.value(),
            (Op::SetOnInsert(value), _) if scope.is_insert => value.value(),
            (Op::Unset | Op::RenameSource, _) => return Ok(Effect::Removed),
            (Op::RenameFrom(path), old) => match (find(scope.source, path), old) {
                (Some(value), _) | (None, Some(value)) => value,
                (None, None) => return Ok(Effect::Nothing),
            },
            (Op::Push(push), old) => return push.write(scope, name, old, out),
            (Op::AddToSet(items), old) => return add_to_set(items, scope, name, old, out),
            (Op::Inc(by), old) => {
                out.append(name, increment(*by, scope, name, old)?);
                return Ok(Effect::Whole);
            }
            (Op::Mul(by), old) => {
                out.append(name, multiply(*by, scope, name, old)?);
                return Ok(Effect::Whole);
            }
            (Op::Bit(steps), old) => {
                out.append(name, bits(steps, scope, name, old)?);
                return Ok(Effect::Whole);
            }
            (Op::Min(value), Some(old)) => pick(value.value(), old, Ordering::Less, scope),
            (Op::Max(value), Some(old)) => pick(value.value(), old, Ordering::Greater, scope),
            (Op::Min(value) | Op::Max(value), None) => value.value(),
            (_, None) => return Ok(Effect::Nothing),
            (Op::Pop { first }, Some(old)) => return pop(*first, name, old, out),
            (Op::Pull(condition), Some(old)) => return pull(condition, name, old, out),
            (Op::PullAll(items), Some(old)) => return pull_all(items, scope, name, old, out),
            (Op::SetOnInsert(_), Some(old)) => old,
        };
        out.append_value(name, value);
        Ok(Effect::Whole)
    }
}

/// The new value if it orders as wanted against the old one.
fn pick<'v>(new: Value<'v>, old: Value<'v>, wanted: Ordering, scope: &Scope<'_>) -> Value<'v> {
    if scope.compare(new, old) == wanted { new } else { old }
}

/// The value at a dotted path that leads through documents only.
pub(crate) fn find<'d>(doc: RawDoc<'d>, path: &str) -> Option<Value<'d>> {
    let (head, rest) = path.split_once('.').map_or((path, None), |(head, rest)| (head, Some(rest)));
    let value = doc.get(head)?;
    match rest {
        None => Some(value),
        Some(rest) => find(value.as_document()?, rest),
    }
}

fn increment(by: Number, scope: &Scope<'_>, name: &str, old: Option<Value<'_>>) -> Result<Owned> {
    let Some(old) = old else { return Ok(by.to_owned()) };
    let base = operand("$inc", scope, name, old)?;
    arith::add_exact(base, by).map(Number::to_owned).ok_or_else(|| overflow("$inc", old, scope))
}

fn multiply(by: Number, scope: &Scope<'_>, name: &str, old: Option<Value<'_>>) -> Result<Owned> {
    let Some(old) = old else { return Ok(by.zero().to_owned()) };
    let base = operand("$mul", scope, name, old)?;
    arith::multiply_exact(base, by).map(Number::to_owned).ok_or_else(|| overflow("$mul", old, scope))
}

fn operand(op: &str, scope: &Scope<'_>, name: &str, old: Value<'_>) -> Result<Number> {
    Number::from_value(old).ok_or_else(|| {
        Error::type_mismatch(format!(
            "Cannot apply {op} to a value of non-numeric type. {{{}}} has the field '{name}' of non-numeric type {}",
            scope.id(),
            old.kind().alias()
        ))
    })
}

fn overflow(op: &str, old: Value<'_>, scope: &Scope<'_>) -> Error {
    Error::bad_value(format!(
        "Failed to apply {op} operations to current value ((NumberLong){}) for document {{{}}}",
        show(old),
        scope.id()
    ))
}

fn bits(steps: &[(BitOp, Number)], scope: &Scope<'_>, name: &str, old: Option<Value<'_>>) -> Result<Owned> {
    let start = match old.map(|old| (old, Number::from_value(old))) {
        None => Number::Int(0),
        Some((_, Some(number @ (Number::Int(_) | Number::Long(_))))) => number,
        Some((old, _)) => {
            return Err(Error::bad_value(format!(
                "Cannot apply $bit to a value of non-integral type. {{{}}} has the field {name} of non-integer type {}",
                scope.id(),
                old.kind().alias()
            )));
        }
    };
    let result = steps.iter().fold(start, |value, (op, mask)| match (value, *mask) {
        (Number::Int(a), Number::Int(b)) => Number::Int(apply_bits(*op, i64::from(a), i64::from(b)) as i32),
        (a, b) => Number::Long(apply_bits(*op, a.as_i64(), b.as_i64())),
    });
    Ok(result.to_owned())
}

fn apply_bits(op: BitOp, a: i64, b: i64) -> i64 {
    match op {
        BitOp::And => a & b,
        BitOp::Or => a | b,
        BitOp::Xor => a ^ b,
    }
}

/// The argument of `$inc` or `$mul`.
pub(crate) fn parse_number(op: &str, path: &str, value: Value<'_>) -> Result<Number> {
    let verb = if op == "$inc" { "increment" } else { "multiply" };
    Number::from_value(value).ok_or_else(|| {
        let shown = show_field(path, value);
        Error::type_mismatch(format!("Cannot {verb} with non-numeric argument: {{{shown}}}"))
    })
}

/// The argument of `$bit`: one or more of `and`, `or`, `xor`.
pub(crate) fn parse_bits(value: Value<'_>) -> Result<Op> {
    let Value::Document(spec) = value else {
        return Err(Error::bad_value(format!(
            "The $bit modifier is not compatible with a {}. You must pass in an embedded document: \
             {{$bit: {{field: {{and/or/xor: #}}}}}}",
            value.kind().alias()
        )));
    };
    let mut steps = Vec::new();
    for element in spec {
        let op = match element.key() {
            "and" => BitOp::And,
            "or" => BitOp::Or,
            "xor" => BitOp::Xor,
            other => {
                return Err(Error::bad_value(format!(
                    "The $bit modifier only supports 'and', 'or', and 'xor', not '{other}' which is an unknown \
                     operator: {{{}}}",
                    show_field(other, element.value())
                )));
            }
        };
        match Number::from_value(element.value()) {
            Some(mask @ (Number::Int(_) | Number::Long(_))) => steps.push((op, mask)),
            _ => {
                return Err(Error::bad_value(format!(
                    "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not supported here: {{{}}}",
                    element.kind().alias(),
                    show_field(element.key(), element.value())
                )));
            }
        }
    }
    if steps.is_empty() {
        let text = "You must pass in at least one bitwise operation. The format is: \
                    {$bit: {field: {and/or/xor: #}}";
        return Err(Error::bad_value(text));
    }
    Ok(Op::Bit(steps.into()))
}

/// The argument of `$pop`: 1 or -1.
pub(crate) fn parse_pop(path: &str, value: Value<'_>) -> Result<Op> {
    let number = match value {
        Value::Decimal128(_) => Number::from_value(value).and_then(|number| number.to_i64_exact()),
        other => other.as_integer(),
    };
    match number {
        Some(1) => Ok(Op::Pop { first: false }),
        Some(-1) => Ok(Op::Pop { first: true }),
        _ if value.is_number() => {
            Err(Error::failed_to_parse(format!("$pop expects 1 or -1, found: {}", show(value))))
        }
        _ => Err(Error::failed_to_parse(format!("Expected a number in: {}", show_field(path, value)))),
    }
}

/// The argument of `$currentDate`, as the value to set.
pub(crate) fn parse_current_date(value: Value<'_>, now_ms: i64, timestamp: Timestamp) -> Result<Op> {
    let kind = match value {
        Value::Bool(_) => "date",
        Value::Document(spec) => {
            if let Some(other) = spec.iter().find(|element| element.key() != "$type") {
                let text = format!("Unrecognized $currentDate option: {}", other.key());
                return Err(Error::bad_value(text));
            }
            spec.get("$type").and_then(|kind| kind.as_str()).unwrap_or_default()
        }
        other => {
            return Err(Error::bad_value(format!(
                "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type expression \
                 ({{$type: 'timestamp/date'}}).",
                other.kind().alias()
            )));
        }
    };
    match kind {
        "date" => Ok(Op::Set(Owned::DateTime(now_ms))),
        "timestamp" => Ok(Op::Set(Owned::Timestamp(timestamp))),
        _ => Err(Error::new(
            code::BAD_VALUE,
            "The '$type' string field is required to be 'date' or 'timestamp': \
             {$currentDate: {field : {$type: 'date'}}}",
        )),
    }
}
