//! Types: asking for them and converting between them (MongoDB manual, "$convert").

use super::args::Args;
use super::format::{CONVERSION_FAILURE, iso, parse_iso};
use super::table::{Operator, fixed};
use super::{Val, is_true};
use crate::arith::Number;
use crate::decimal::{Decimal, Rounding};
use crate::show::show;
use crate::{Decimal128, Error, Kind, ObjectId, Owned, Result, Value};

pub(super) const OPERATORS: &[Operator] = &[
    fixed("$type", 1, |args, _| Ok(Val::from(args[0].type_name()))),
    fixed("$isNumber", 1, |args, _| Ok(Val::from(args[0].value().is_number()))),
    fixed("$toInt", 1, |args, _| to(args, Kind::Int32)),
    fixed("$toLong", 1, |args, _| to(args, Kind::Int64)),
    fixed("$toDouble", 1, |args, _| to(args, Kind::Double)),
    fixed("$toDecimal", 1, |args, _| to(args, Kind::Decimal128)),
    fixed("$toString", 1, |args, _| to(args, Kind::String)),
    fixed("$toBool", 1, |args, _| to(args, Kind::Bool)),
    fixed("$toDate", 1, |args, _| to(args, Kind::DateTime)),
    fixed("$toObjectId", 1, |args, _| to(args, Kind::ObjectId)),
];

fn to<'v>(args: Args<'v>, kind: Kind) -> Result<Val<'v>> {
    match args[0].is_nullish() {
        true => Ok(Val::null()),
        false => convert(args[0].value(), kind).map(Val::Own),
    }
}

/// The type that the `to` of `$convert` names.
pub(super) fn target(to: Value<'_>) -> Result<Kind> {
    const KINDS: [Kind; 21] = [
        Kind::Double,
        Kind::String,
        Kind::Document,
        Kind::Array,
        Kind::Binary,
        Kind::Undefined,
        Kind::ObjectId,
        Kind::Bool,
        Kind::DateTime,
        Kind::Null,
        Kind::Regex,
        Kind::DbPointer,
        Kind::Code,
        Kind::Symbol,
        Kind::CodeWithScope,
        Kind::Int32,
        Kind::Timestamp,
        Kind::Int64,
        Kind::Decimal128,
        Kind::MinKey,
        Kind::MaxKey,
    ];
    match to {
        Value::String(name) => match KINDS.iter().find(|kind| kind.alias() == name) {
            Some(kind) => Ok(*kind),
            None => Err(Error::bad_value(format!("Unknown type name: {name}"))),
        },
        Value::Document(_) => Err(Error::new(
            crate::code::COMMAND_NOT_SUPPORTED,
            "$convert's 'to' as a document with a subtype is not supported",
        )),
        other => match crate::number::to_integral(other) {
            Some(-1) => Ok(Kind::MinKey),
            Some(code @ (1..=19 | 127)) => Ok(Kind::from_byte(code as u8)),
            _ => Err(Error::failed_to_parse(format!(
                "In $convert, numeric value for 'to' does not correspond to a BSON type: {}",
                show(other)
            ))),
        },
    }
}

/// The value as another type.
pub(super) fn convert(value: Value<'_>, kind: Kind) -> Result<Owned> {
    match kind {
        _ if value.kind() == kind => convertible(value, kind),
        Kind::Bool => Ok(Owned::Bool(is_true(value))),
        Kind::Int32 => whole(value, kind)
            .and_then(|whole| i32::try_from(whole).map(Owned::Int32).map_err(|_| overflow(value))),
        Kind::Int64 => whole(value, kind).map(Owned::Int64),
        Kind::Double => double(value),
        Kind::Decimal128 => decimal(value),
        Kind::String => text(value).map(Owned::String),
        Kind::DateTime => date(value).map(Owned::DateTime),
        Kind::ObjectId => match value {
            Value::String(text) => ObjectId::parse(text).map(Owned::ObjectId).ok_or_else(|| {
                failure(format!("Failed to parse objectId '{text}' in $convert with no onError value"))
            }),
            _ => Err(unsupported(value, kind)),
        },
        _ => Err(unsupported(value, kind)),
    }
}

fn convertible(value: Value<'_>, kind: Kind) -> Result<Owned> {
    match kind {
        Kind::Bool
        | Kind::Int32
        | Kind::Int64
        | Kind::Double
        | Kind::Decimal128
        | Kind::String
        | Kind::DateTime
        | Kind::ObjectId => Ok(value.to_owned()),
        _ => Err(unsupported(value, kind)),
    }
}

fn failure(text: String) -> Error {
    Error::new(CONVERSION_FAILURE, text)
}

fn unsupported(value: Value<'_>, kind: Kind) -> Error {
    failure(format!(
        "Unsupported conversion from {} to {} in $convert with no onError value",
        value.kind().alias(),
        kind.alias()
    ))
}

fn overflow(value: Value<'_>) -> Error {
    failure(format!(
        "Conversion would overflow target type in $convert with no onError value: {}",
        show(value)
    ))
}

fn unparsable(text: &str, why: &str) -> Error {
    failure(format!("Failed to parse number '{text}' in $convert with no onError value: {why}"))
}

/// The value as a long; fractions are cut.
fn whole(value: Value<'_>, kind: Kind) -> Result<i64> {
    const END: f64 = 9_223_372_036_854_775_808.0; // 2^63
    match value {
        Value::Bool(v) => Ok(i64::from(v)),
        Value::Int32(v) => Ok(i64::from(v)),
        Value::Int64(v) => Ok(v),
        Value::Double(v) if v.is_nan() => Err(failure(
            "Attempt to convert NaN value to integer type in $convert with no onError value".into(),
        )),
        Value::Double(v) if v.is_infinite() => Err(failure(
            "Attempt to convert infinity value to integer type in $convert with no onError value".into(),
        )),
        Value::Double(v) if (-END..END).contains(&v.trunc()) => Ok(v as i64),
        Value::Double(_) => Err(overflow(value)),
        Value::Decimal128(v) => {
            v.decode().round(0, Rounding::Truncate).to_i64().ok_or_else(|| overflow(value))
        }
        Value::DateTime(v) if kind == Kind::Int64 => Ok(v),
        Value::String(text) => {
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(unparsable(text, "Did not consume whole string."));
            }
            text.parse().map_err(|_| unparsable(text, "Overflow"))
        }
        _ => Err(unsupported(value, kind)),
    }
}

fn double(value: Value<'_>) -> Result<Owned> {
    match value {
        Value::Bool(v) => Ok(Owned::Double(f64::from(u8::from(v)))),
        Value::DateTime(v) => Ok(Owned::Double(v as f64)),
        Value::Decimal128(v) => {
            let (decimal, double) = (v.decode(), v.to_f64());
            let infinite = matches!(decimal, Decimal::Infinity { .. });
            if double.is_infinite() && !infinite { Err(overflow(value)) } else { Ok(Owned::Double(double)) }
        }
        Value::String(text) => parse_double(text).map(Owned::Double),
        other => match Number::from_value(other) {
            Some(number) => Ok(Owned::Double(number.as_f64())),
            None => Err(unsupported(value, Kind::Double)),
        },
    }
}

fn parse_double(text: &str) -> Result<f64> {
    if text.starts_with(char::is_whitespace) {
        return Err(unparsable(text, "Leading whitespace"));
    }
    if text.contains(['x', 'X']) {
        return Err(unparsable(text, "Illegal hexadecimal input"));
    }
    text.parse().map_err(|_| unparsable(text, "Did not consume whole string."))
}

fn decimal(value: Value<'_>) -> Result<Owned> {
    match value {
        Value::Bool(v) => Ok(Owned::Decimal128(Decimal::from(i64::from(v)).encode())),
        Value::DateTime(v) => Ok(Owned::Decimal128(Decimal::from(v).encode())),
        Value::String(text) => Decimal128::parse(text)
            .map(Owned::Decimal128)
            .ok_or_else(|| unparsable(text, "Failed to parse string to decimal")),
        other => match Number::from_value(other) {
            Some(number) => Ok(Owned::Decimal128(number.as_decimal().encode())),
            None => Err(unsupported(value, Kind::Decimal128)),
        },
    }
}

fn date(value: Value<'_>) -> Result<i64> {
    match value {
        Value::Int64(v) => Ok(v),
        Value::Double(_) | Value::Decimal128(_) => whole(value, Kind::Int64),
        Value::String(text) => parse_iso(text, None),
        Value::ObjectId(_) | Value::Timestamp(_) => {
            super::dates::millis(value).map(|millis| millis.unwrap_or_default())
        }
        _ => Err(unsupported(value, Kind::DateTime)),
    }
}

fn text(value: Value<'_>) -> Result<String> {
    Ok(match value {
        Value::Bool(v) => v.to_string(),
        Value::Int32(v) => v.to_string(),
        Value::Int64(v) => v.to_string(),
        Value::Double(v) => double_text(v),
        Value::Decimal128(v) => v.decode().to_string(),
        Value::ObjectId(v) => v.to_string(),
        Value::String(v) | Value::Symbol(v) => v.to_string(),
        Value::DateTime(v) => iso(v)?,
        _ => return Err(unsupported(value, Kind::String)),
    })
}

/// A double as MongoDB prints it: the shortest digits that read back, without `.0`, and with an exponent
/// outside of 10^-5 to 10^15.
fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-5..1e15).contains(&magnitude) {
        return format!("{value}");
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let sign = if exponent.starts_with('-') { '-' } else { '+' };
            format!("{digits}e{sign}{:0>2}", exponent.trim_start_matches('-'))
        }
        None => text,
    }
}

/// The text that string operators make of a value: null is empty, numbers and dates are written out.
pub(crate) fn coerce_to_string(value: Value<'_>) -> Result<String> {
    match value {
        Value::Null | Value::Undefined => Ok(String::new()),
        Value::Double(_)
        | Value::Int32(_)
        | Value::Int64(_)
        | Value::Decimal128(_)
        | Value::String(_)
        | Value::Symbol(_)
        | Value::DateTime(_) => text(value),
        Value::Code(code) => Ok(code.to_string()),
        Value::Timestamp(timestamp) => iso(i64::from(timestamp.time) * 1000),
        other => {
            let text = format!("can't convert from BSON type {} to String", other.kind().alias());
            Err(Error::location(16007, text))
        }
    }
}
