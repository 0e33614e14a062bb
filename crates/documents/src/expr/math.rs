//! Arithmetic, bits and random numbers. Null gives null; the type of a result follows `arith`.

use super::args::{Args, any_nullish};
use super::table::{Operator, between, fixed, variadic};
use super::{Context, Val};
use crate::arith::{self, Number};
use crate::decimal::{Decimal, Rounding};
use crate::show::show;
use crate::{Error, Owned, Result, Value};

pub(super) const OPERATORS: &[Operator] = &[
    variadic("$add", add),
    fixed("$subtract", 2, subtract),
    variadic("$multiply", multiply),
    fixed("$divide", 2, divide),
    fixed("$mod", 2, modulo),
    fixed("$abs", 1, abs),
    fixed("$ceil", 1, |args, _| integral(args, "$ceil", f64::ceil, Rounding::Ceiling)),
    fixed("$floor", 1, |args, _| integral(args, "$floor", f64::floor, Rounding::Floor)),
    between("$round", 1, 2, |args, _| round(args, "$round", Rounding::HalfEven)),
    between("$trunc", 1, 2, |args, _| round(args, "$trunc", Rounding::Truncate)),
    fixed("$pow", 2, pow),
    fixed("$sqrt", 1, sqrt),
    fixed("$exp", 1, |args, _| real(args, "$exp", |_| true, "", f64::exp)),
    fixed("$ln", 1, |args, _| real(args, "$ln", |v| v > 0.0, "a positive number", f64::ln)),
    fixed("$log10", 1, |args, _| real(args, "$log10", |v| v > 0.0, "a positive number", f64::log10)),
    fixed("$log", 2, log),
    fixed("$sin", 1, |args, _| real(args, "$sin", f64::is_finite, FINITE, f64::sin)),
    fixed("$cos", 1, |args, _| real(args, "$cos", f64::is_finite, FINITE, f64::cos)),
    fixed("$tan", 1, |args, _| real(args, "$tan", f64::is_finite, FINITE, f64::tan)),
    fixed("$asin", 1, |args, _| real(args, "$asin", unit, "in [-1,1]", f64::asin)),
    fixed("$acos", 1, |args, _| real(args, "$acos", unit, "in [-1,1]", f64::acos)),
    fixed("$atan", 1, |args, _| real(args, "$atan", |_| true, "", f64::atan)),
    fixed("$atan2", 2, atan2),
    fixed("$sinh", 1, |args, _| real(args, "$sinh", |_| true, "", f64::sinh)),
    fixed("$cosh", 1, |args, _| real(args, "$cosh", |_| true, "", f64::cosh)),
    fixed("$tanh", 1, |args, _| real(args, "$tanh", |_| true, "", f64::tanh)),
    fixed("$asinh", 1, |args, _| real(args, "$asinh", |_| true, "", f64::asinh)),
    fixed("$acosh", 1, |args, _| real(args, "$acosh", |v| v >= 1.0, "in [1,inf]", f64::acosh)),
    fixed("$atanh", 1, |args, _| real(args, "$atanh", unit, "in [-1,1]", f64::atanh)),
    fixed("$degreesToRadians", 1, |args, _| real(args, "$degreesToRadians", |_| true, "", f64::to_radians)),
    fixed("$radiansToDegrees", 1, |args, _| real(args, "$radiansToDegrees", |_| true, "", f64::to_degrees)),
    variadic("$bitAnd", |args, _| bits(args, "$bitAnd", -1, |a, b| a & b)),
    variadic("$bitOr", |args, _| bits(args, "$bitOr", 0, |a, b| a | b)),
    variadic("$bitXor", |args, _| bits(args, "$bitXor", 0, |a, b| a ^ b)),
    fixed("$bitNot", 1, bit_not),
    between("$rand", 0, 1, |_, _| Ok(Val::from(rand::random::<f64>()))),
];

const FINITE: &str = "in (-inf,inf)";

fn unit(value: f64) -> bool {
    value.is_nan() || (-1.0..=1.0).contains(&value)
}

/// The number that an operand must be.
fn number(arg: &Val<'_>, message: impl FnOnce(&str) -> String) -> Result<Number> {
    Number::from_value(arg.value()).ok_or_else(|| Error::type_mismatch(message(arg.type_name())))
}

fn out(number: Number) -> Result<Val<'static>> {
    Ok(Val::Own(number.to_owned()))
}

fn add<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let mut sum = Number::Int(0);
    let mut date = None;
    let mut null = false;
    for arg in &args {
        match arg.value() {
            Value::DateTime(_) if date.is_some() => {
                return Err(Error::location(16612, "only one date allowed in an $add expression"));
            }
            Value::DateTime(millis) => date = Some(millis),
            _ if arg.is_nullish() => null = true,
            _ => {
                let addend =
                    number(arg, |kind| format!("$add only supports numeric or date types, not {kind}"))?;
                sum = arith::add(sum, addend);
            }
        }
    }
    match date {
        _ if null => Ok(Val::null()),
        Some(date) => shift_date(date, sum, 1),
        None => out(sum),
    }
}

/// The date some milliseconds later (or earlier, with sign -1).
fn shift_date(date: i64, by: Number, sign: i64) -> Result<Val<'static>> {
    let by = match by {
        Number::Double(by) => by.round_ties_even() as i64,
        Number::Decimal(by) => Number::Decimal(by.round(0, Rounding::HalfEven)).as_i64(),
        other => other.as_i64(),
    };
    let shifted = by.checked_mul(sign).and_then(|by| date.checked_add(by));
    match shifted {
        Some(millis) => Ok(Val::Own(Owned::DateTime(millis))),
        None => Err(Error::location(7_103_100, "date overflow")),
    }
}

fn subtract<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if any_nullish(&args) {
        return Ok(Val::null());
    }
    let (left, right) = (args[0].value(), args[1].value());
    let wrong = || {
        let kinds = (args[1].type_name(), args[0].type_name());
        Error::type_mismatch(format!("can't $subtract {} from {}", kinds.0, kinds.1))
    };
    match (left, right) {
        (Value::DateTime(a), Value::DateTime(b)) => match a.checked_sub(b) {
            Some(millis) => Ok(Val::from(millis)),
            None => Err(Error::location(7_103_101, "date overflow")),
        },
        (Value::DateTime(a), b) => shift_date(a, Number::from_value(b).ok_or_else(wrong)?, -1),
        (a, b) => {
            let a = Number::from_value(a).ok_or_else(wrong)?;
            out(arith::subtract(a, Number::from_value(b).ok_or_else(wrong)?))
        }
    }
}

fn multiply<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let mut product = Number::Int(1);
    for arg in args.iter().filter(|arg| !arg.is_nullish()) {
        let factor = number(arg, |kind| format!("$multiply only supports numeric types, not {kind}"))?;
        product = arith::multiply(product, factor);
    }
    if any_nullish(&args) { Ok(Val::null()) } else { out(product) }
}

fn divide<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let Some((a, b)) = pair(&args, "$divide")? else { return Ok(Val::null()) };
    if b.is_zero() {
        return Err(Error::bad_value("can't $divide by zero"));
    }
    match (a, b) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            out(Number::Decimal(a.as_decimal() / b.as_decimal()))
        }
        _ => Ok(Val::from(a.as_f64() / b.as_f64())),
    }
}

/// Two numbers, or `None` if one is null.
fn pair(args: &Args<'_>, name: &str) -> Result<Option<(Number, Number)>> {
    if any_nullish(args) {
        return Ok(None);
    }
    match (Number::from_value(args[0].value()), Number::from_value(args[1].value())) {
        (Some(a), Some(b)) => Ok(Some((a, b))),
        _ => Err(Error::type_mismatch(format!(
            "{name} only supports numeric types, not {} and {}",
            args[0].type_name(),
            args[1].type_name()
        ))),
    }
}

fn modulo<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let Some((a, b)) = pair(&args, "$mod")? else { return Ok(Val::null()) };
    if b.is_zero() {
        return Err(Error::location(16610, "can't $mod by zero"));
    }
    match (a, b) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            out(Number::Decimal(a.as_decimal() % b.as_decimal()))
        }
        (Number::Double(_), _) | (_, Number::Double(_)) => Ok(Val::from(a.as_f64() % b.as_f64())),
        (Number::Int(a), Number::Int(b)) => Ok(Val::from(a.wrapping_rem(b))),
        _ => Ok(Val::from(a.as_i64().wrapping_rem(b.as_i64()))),
    }
}

/// The only operand as a number, or `None` if it is null.
fn single(arg: &Val<'_>, name: &str) -> Result<Option<Number>> {
    if arg.is_nullish() {
        return Ok(None);
    }
    Number::from_value(arg.value()).map(Some).ok_or_else(|| {
        Error::location(28765, format!("{name} only supports numeric types, not {}", arg.type_name()))
    })
}

fn abs<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    match single(&args[0], "$abs")? {
        None => Ok(Val::null()),
        Some(Number::Int(v)) => match v.checked_abs() {
            Some(v) => Ok(Val::from(v)),
            None => Ok(Val::from(i64::from(v).abs())),
        },
        Some(Number::Long(v)) => v
            .checked_abs()
            .map(Val::from)
            .ok_or_else(|| Error::location(28680, "can't take $abs of long long min")),
        Some(Number::Double(v)) => Ok(Val::from(v.abs())),
        Some(Number::Decimal(v)) => out(Number::Decimal(v.abs())),
    }
}

fn integral<'v>(args: Args<'v>, name: &str, double: fn(f64) -> f64, decimal: Rounding) -> Result<Val<'v>> {
    match single(&args[0], name)? {
        None => Ok(Val::null()),
        Some(Number::Double(v)) => Ok(Val::from(double(v))),
        Some(Number::Decimal(v)) => out(Number::Decimal(v.round(0, decimal))),
        Some(whole) => out(whole),
    }
}

fn round<'v>(args: Args<'v>, name: &str, rounding: Rounding) -> Result<Val<'v>> {
    let Some(value) = single(&args[0], name)? else { return Ok(Val::null()) };
    let places = match args.get(1) {
        None => 0,
        Some(places) if places.is_nullish() => return Ok(Val::null()),
        Some(places) => match crate::number::to_integral(places.value()) {
            Some(places @ -20..=100) => places as i32,
            Some(_) => {
                let text = format!(
                    "cannot apply {name} with precision value {} value must be in [-20, 100]",
                    show(places.value())
                );
                return Err(Error::location(51083, text));
            }
            None => {
                let text = format!("precision argument to  {name} must be a integral value");
                return Err(Error::location(51082, text));
            }
        },
    };
    match value {
        Number::Double(v) if places == 0 && rounding == Rounding::HalfEven => {
            Ok(Val::from(v.round_ties_even()))
        }
        Number::Double(v) if places == 0 => Ok(Val::from(v.trunc())),
        Number::Double(v) if v.is_finite() => {
            // In decimal, so that 2.675 to two places does not depend on binary fractions.
            Ok(Val::from(Decimal::from_f64_precise(v).round(places, rounding).to_f64()))
        }
        Number::Decimal(v) => out(Number::Decimal(v.round(places, rounding))),
        whole if places >= 0 => out(whole),
        Number::Double(v) => Ok(Val::from(v)),
        whole => round_whole(whole, places, rounding),
    }
}

/// Rounds an int or long to tens, hundreds and so on; what does not fit an int becomes a long.
fn round_whole(value: Number, places: i32, rounding: Rounding) -> Result<Val<'static>> {
    let rounded = Decimal::from(value.as_i64()).round(places, rounding).to_i64();
    let Some(rounded) = rounded else {
        return Err(Error::location(51080, "invalid conversion from Decimal128 result to a 64-bit integer"));
    };
    match (value, i32::try_from(rounded)) {
        (Number::Int(_), Ok(int)) => Ok(Val::from(int)),
        _ => Ok(Val::from(rounded)),
    }
}

/// A function of real numbers. Decimals are refused where the result would not be exact to their digits.
fn real<'v>(
    args: Args<'v>,
    name: &str,
    domain: fn(f64) -> bool,
    must_be: &str,
    function: fn(f64) -> f64,
) -> Result<Val<'v>> {
    let Some(value) = single(&args[0], name)? else { return Ok(Val::null()) };
    refuse_decimal(value, name)?;
    let double = value.as_f64();
    if !double.is_nan() && !domain(double) {
        let number = match name {
            "$ln" => 28766,
            "$log10" => 28761,
            _ => 50989,
        };
        let text = format!("{name}'s argument must be {must_be}, but is {}", show(args[0].value()));
        return Err(Error::location(number, text));
    }
    Ok(Val::from(function(double)))
}

fn refuse_decimal(value: Number, name: &str) -> Result<()> {
    match value {
        Number::Decimal(_) => Err(Error::new(
            crate::code::COMMAND_NOT_SUPPORTED,
            format!("{name} of a decimal is not supported"),
        )),
        _ => Ok(()),
    }
}

fn sqrt<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let Some(value) = single(&args[0], "$sqrt")? else { return Ok(Val::null()) };
    refuse_decimal(value, "$sqrt")?;
    if value.as_f64() < 0.0 {
        return Err(Error::location(28714, "$sqrt's argument must be greater than or equal to 0"));
    }
    Ok(Val::from(value.as_f64().sqrt()))
}

fn log<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if any_nullish(&args) {
        return Ok(Val::null());
    }
    let part = |index: usize, number: i32, what: &str| {
        let arg = &args[index];
        let text = format!("$log's {what} must be numeric, not {}", arg.type_name());
        Number::from_value(arg.value()).ok_or_else(|| Error::location(number, text))
    };
    let (value, base) = (part(0, 28756, "argument")?, part(1, 28757, "base")?);
    refuse_decimal(value, "$log")?;
    refuse_decimal(base, "$log")?;
    if value.as_f64() <= 0.0 {
        let text = format!("$log's argument must be a positive number, but is {}", show(args[0].value()));
        return Err(Error::location(28758, text));
    }
    if base.as_f64() <= 0.0 || base.as_f64() == 1.0 {
        let text =
            format!("$log's base must be a positive number not equal to 1, but is {}", show(args[1].value()));
        return Err(Error::location(28759, text));
    }
    Ok(Val::from(value.as_f64().ln() / base.as_f64().ln()))
}

fn atan2<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let Some((a, b)) = pair(&args, "$atan2")? else { return Ok(Val::null()) };
    refuse_decimal(a, "$atan2")?;
    refuse_decimal(b, "$atan2")?;
    Ok(Val::from(a.as_f64().atan2(b.as_f64())))
}

fn pow<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if any_nullish(&args) {
        return Ok(Val::null());
    }
    let part = |index: usize, number: i32, what: &str| {
        let arg = &args[index];
        let text = format!("$pow's {what} must be numeric, not {}", arg.type_name());
        Number::from_value(arg.value()).ok_or_else(|| Error::location(number, text))
    };
    let (base, exponent) = (part(0, 28762, "base")?, part(1, 28763, "exponent")?);
    refuse_decimal(base, "$pow")?;
    refuse_decimal(exponent, "$pow")?;
    if base.is_zero() && exponent.as_f64() < 0.0 {
        return Err(Error::location(28764, "$pow cannot take a base of 0 and a negative exponent"));
    }
    let double = base.as_f64().powf(exponent.as_f64());
    match (base, exponent) {
        (Number::Double(_), _) | (_, Number::Double(_)) => Ok(Val::from(double)),
        _ => match whole_power(base.as_i64(), exponent.as_i64()) {
            None => Ok(Val::from(double)),
            Some(power) => match (base, exponent, i32::try_from(power)) {
                (Number::Int(_), Number::Int(_), Ok(int)) => Ok(Val::from(int)),
                _ => Ok(Val::from(power)),
            },
        },
    }
}

/// The power of integers, if it is one that a long can hold.
fn whole_power(base: i64, exponent: i64) -> Option<i64> {
    match (base, exponent) {
        (1, _) => Some(1),
        (-1, exponent) => Some(if exponent % 2 == 0 { 1 } else { -1 }),
        (0, 1..) => Some(0),
        _ => base.checked_pow(u32::try_from(exponent).ok()?),
    }
}

fn bits<'v>(args: Args<'v>, name: &str, neutral: i32, op: fn(i64, i64) -> i64) -> Result<Val<'v>> {
    let mut result = Number::Int(neutral);
    for arg in &args {
        if arg.is_nullish() {
            return Ok(Val::null());
        }
        let operand = whole(arg, name)?;
        result = match (result, operand) {
            (Number::Int(a), Number::Int(b)) => Number::Int(op(i64::from(a), i64::from(b)) as i32),
            (a, b) => Number::Long(op(a.as_i64(), b.as_i64())),
        };
    }
    out(result)
}

fn whole(arg: &Val<'_>, name: &str) -> Result<Number> {
    match Number::from_value(arg.value()) {
        Some(number @ (Number::Int(_) | Number::Long(_))) => Ok(number),
        _ => {
            let text = format!("{name} only supports int and long operands, not {}", arg.type_name());
            Err(Error::type_mismatch(text))
        }
    }
}

fn bit_not<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if args[0].is_nullish() {
        return Ok(Val::null());
    }
    match whole(&args[0], "$bitNot")? {
        Number::Int(v) => Ok(Val::from(!v)),
        other => Ok(Val::from(!other.as_i64())),
    }
}
