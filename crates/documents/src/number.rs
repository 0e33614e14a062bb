//! Numbers of four types as one: comparison by value.

use crate::decimal::Decimal;
use crate::value::Value;
use std::cmp::Ordering;

/// 2^63, the first double above every int64.
const INT64_END: f64 = 9_223_372_036_854_775_808.0;

/// Orders two numbers by value, exactly; NaN is equal to itself and below all others. A double compares
/// with a decimal as its nearest 34-digit decimal. Values that are no numbers are equal here.
pub fn compare_numbers(a: Value<'_>, b: Value<'_>) -> Ordering {
    use Value::{Decimal128, Double, Int32, Int64};
    match (a, b) {
        (Int32(a), Int32(b)) => a.cmp(&b),
        (Int32(a), Int64(b)) => i64::from(a).cmp(&b),
        (Int64(a), Int32(b)) => a.cmp(&i64::from(b)),
        (Int64(a), Int64(b)) => a.cmp(&b),
        (Double(a), Double(b)) => compare_doubles(a, b),
        (Int32(a), Double(b)) => compare_doubles(f64::from(a), b),
        (Double(a), Int32(b)) => compare_doubles(a, f64::from(b)),
        (Int64(a), Double(b)) => compare_i64_f64(a, b),
        (Double(a), Int64(b)) => compare_i64_f64(b, a).reverse(),
        (Decimal128(_), _) | (_, Decimal128(_)) => match (to_decimal(a), to_decimal(b)) {
            (Some(a), Some(b)) => a.compare(b),
            _ => Ordering::Equal,
        },
        _ => Ordering::Equal,
    }
}

/// A number as a decimal, doubles rounded to 34 digits; `None` for what is no number.
pub fn to_decimal(value: Value<'_>) -> Option<Decimal> {
    match value {
        Value::Int32(v) => Some(Decimal::from(i64::from(v))),
        Value::Int64(v) => Some(Decimal::from(v)),
        Value::Double(v) => Some(Decimal::from_f64_precise(v)),
        Value::Decimal128(v) => Some(v.decode()),
        _ => None,
    }
}

/// Whether a value is a NaN, double or decimal.
pub fn is_nan(value: Value<'_>) -> bool {
    match value {
        Value::Double(v) => v.is_nan(),
        Value::Decimal128(v) => v.decode().is_nan(),
        _ => false,
    }
}

/// The integral part of a number, if an int64 can hold it; NaN and infinities have none.
pub fn to_i64(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Int32(v) => Some(i64::from(v)),
        Value::Int64(v) => Some(v),
        Value::Double(v) if (-INT64_END..INT64_END).contains(&v) => Some(v as i64),
        Value::Decimal128(v) => v.decode().to_i64(),
        _ => None,
    }
}

/// The integral value of a number that has one and an int64 can hold; `None` for fractions and others.
pub fn to_integral(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Decimal128(v) => v.decode().is_integral().then(|| v.decode().to_i64()).flatten(),
        other => other.as_integer(),
    }
}

fn compare_doubles(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

fn compare_i64_f64(a: i64, b: f64) -> Ordering {
    if b.is_nan() || b < -INT64_END {
        return Ordering::Greater;
    }
    if b >= INT64_END {
        return Ordering::Less;
    }
    let whole = b.trunc();
    a.cmp(&(whole as i64)).then_with(|| compare_doubles(whole, b))
}
