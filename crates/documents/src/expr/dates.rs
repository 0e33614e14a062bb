//! Dates: their parts, arithmetic in calendar units, timestamps.

use super::args::Args;
use super::calendar::{
    Civil, DAY, HOUR, MINUTE, SECOND, Zone, days_in_month, days_of, days_of_iso_week, out_of_range,
};
use super::table::{Operator, date_part, fixed, named};
use super::{Context, Val};
use crate::show::show;
use crate::{DocBuilder, Error, Owned, Result, Value};

pub(super) const OPERATORS: &[Operator] = &[
    date_part("$year", |args, _| part(args, |at| at.date().0)),
    date_part("$month", |args, _| part(args, |at| at.date().1)),
    date_part("$dayOfMonth", |args, _| part(args, |at| at.date().2)),
    date_part("$hour", |args, _| part(args, Civil::hour)),
    date_part("$minute", |args, _| part(args, Civil::minute)),
    date_part("$second", |args, _| part(args, Civil::second)),
    date_part("$millisecond", |args, _| part(args, Civil::millisecond)),
    date_part("$dayOfYear", |args, _| part(args, Civil::day_of_year)),
    date_part("$dayOfWeek", |args, _| part(args, |at| at.weekday() + 1)),
    date_part("$week", |args, _| part(args, Civil::week)),
    date_part("$isoDayOfWeek", |args, _| part(args, Civil::iso_weekday)),
    date_part("$isoWeek", |args, _| part(args, |at| at.iso_week().1)),
    date_part("$isoWeekYear", iso_week_year),
    named("$dateAdd", &["startDate", "unit", "amount", "timezone"], 3, |args, _| shift(args, "$dateAdd", 1)),
    named("$dateSubtract", &["startDate", "unit", "amount", "timezone"], 3, |args, _| {
        shift(args, "$dateSubtract", -1)
    }),
    named("$dateDiff", &["startDate", "endDate", "unit", "timezone", "startOfWeek"], 3, difference),
    named("$dateTrunc", &["date", "unit", "binSize", "timezone", "startOfWeek"], 2, truncate),
    named("$dateToParts", &["date", "timezone", "iso8601"], 1, to_parts),
    named("$dateFromParts", PARTS, 0, from_parts),
    fixed("$tsSecond", 1, |args, _| timestamp(args, "$tsSecond", |ts| ts.time)),
    fixed("$tsIncrement", 1, |args, _| timestamp(args, "$tsIncrement", |ts| ts.increment)),
];

/// The moment of a date, timestamp or object id, or `None` for null.
pub(super) fn millis(value: Value<'_>) -> Result<Option<i64>> {
    match value {
        Value::Null | Value::Undefined => Ok(None),
        Value::DateTime(millis) => Ok(Some(millis)),
        Value::Timestamp(timestamp) => Ok(Some(i64::from(timestamp.time) * SECOND)),
        Value::ObjectId(id) => Ok(Some(i64::from(id.seconds()) * SECOND)),
        other => {
            let text = format!("can't convert from BSON type {} to Date", other.kind().alias());
            Err(Error::location(16006, text))
        }
    }
}

/// Date and zone of an operator, or `None` if one is null.
fn local(date: &Val<'_>, zone: &Val<'_>) -> Result<Option<Civil>> {
    let zone = Zone::from_value(zone.get())?;
    Ok(millis(date.value())?.and_then(|millis| zone.map(|zone| zone.civil(millis))))
}

fn part<'v>(args: Args<'v>, part: fn(Civil) -> i64) -> Result<Val<'v>> {
    match local(&args[0], &args[1])? {
        Some(at) => Ok(int(part(at))),
        None => Ok(Val::null()),
    }
}

fn iso_week_year<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    Ok(local(&args[0], &args[1])?.map_or(Val::null(), |at| Val::from(at.iso_week().0)))
}

fn int(value: i64) -> Val<'static> {
    i32::try_from(value).map_or_else(|_| Val::from(value), Val::from)
}

/// A unit of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    /// So many months.
    Months(i64),
    /// So many days.
    Days(i64),
    /// So many milliseconds.
    Millis(i64),
}

const WEEK: Unit = Unit::Days(7);

fn unit(arg: &Val<'_>, name: &str) -> Result<Option<Unit>> {
    if arg.is_nullish() {
        return Ok(None);
    }
    let Value::String(text) = arg.value() else {
        let text = format!("{name} requires 'unit' to be a string, but got {}", arg.type_name());
        return Err(Error::location(5_439_013, text));
    };
    match text {
        "year" => Ok(Some(Unit::Months(12))),
        "quarter" => Ok(Some(Unit::Months(3))),
        "month" => Ok(Some(Unit::Months(1))),
        "week" => Ok(Some(WEEK)),
        "day" => Ok(Some(Unit::Days(1))),
        "hour" => Ok(Some(Unit::Millis(HOUR))),
        "minute" => Ok(Some(Unit::Millis(MINUTE))),
        "second" => Ok(Some(Unit::Millis(SECOND))),
        "millisecond" => Ok(Some(Unit::Millis(1))),
        other => Err(Error::failed_to_parse(format!("unknown time unit value: {other}"))),
    }
}

/// The day on which weeks start; Sunday is 0 and the default.
fn start_of_week(arg: &Val<'_>, name: &str) -> Result<Option<i64>> {
    const DAYS: [&str; 7] = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];
    if matches!(arg, Val::Missing) {
        return Ok(Some(0));
    }
    if arg.is_nullish() {
        return Ok(None);
    }
    let Value::String(text) = arg.value() else {
        let text = format!("{name} requires 'startOfWeek' to be a string, but got {}", arg.type_name());
        return Err(Error::location(5_439_015, text));
    };
    let lower = text.to_ascii_lowercase();
    let day = DAYS.iter().position(|day| *day == lower || day[..3] == lower);
    day.map(|day| Some(day as i64)).ok_or_else(|| {
        Error::location(
            5_439_016,
            format!("{name} parameter 'startOfWeek' value cannot be recognized as a day of a week: {text}"),
        )
    })
}

fn shift<'v>(args: Args<'v>, name: &str, sign: i64) -> Result<Val<'v>> {
    let (Some(unit), Some(zone)) = (unit(&args[1], name)?, Zone::from_value(args[3].get())?) else {
        return Ok(Val::null());
    };
    if args[0].is_nullish() || args[2].is_nullish() {
        return Ok(Val::null());
    }
    let start = millis(args[0].value()).ok().flatten().ok_or_else(|| {
        Error::location(5_166_403, format!("{name} requires startDate to be convertible to a date"))
    })?;
    let amount = crate::number::to_integral(args[2].value()).and_then(|amount| amount.checked_mul(sign));
    let Some(amount) = amount else {
        let text = format!("{name} expects integer amount of time units");
        return Err(Error::location(5_166_405, text));
    };
    Ok(Val::Own(Owned::DateTime(shifted(start, unit, amount, &zone)?)))
}

fn shifted(start: i64, unit: Unit, amount: i64, zone: &Zone) -> Result<i64> {
    /// More days or months than the range of dates has would overflow.
    const LIMIT: i64 = 1 << 40;
    let scaled = |size: i64| amount.checked_mul(size).ok_or_else(out_of_range);
    let bounded =
        |size: i64| scaled(size).and_then(|by| if by.abs() < LIMIT { Ok(by) } else { Err(out_of_range()) });
    match unit {
        Unit::Millis(size) => start.checked_add(scaled(size)?).ok_or_else(out_of_range),
        Unit::Days(size) => {
            let civil = zone.civil(start);
            zone.moment(Civil { days: civil.days + bounded(size)?, ..civil })
        }
        Unit::Months(size) => {
            let civil = zone.civil(start);
            let (year, month, day) = civil.date();
            let month = month + bounded(size)?;
            // The last day of a shorter month stands for the days it lacks.
            let day = day.min(days_in_month(year, month));
            zone.moment(Civil { days: days_of(year, month, day), ..civil })
        }
    }
}

fn difference<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let unit = unit(&args[2], "$dateDiff")?;
    let zone = Zone::from_value(args[3].get())?;
    let week_start = if unit == Some(WEEK) { start_of_week(&args[4], "$dateDiff")? } else { Some(0) };
    let moments = (millis(args[0].value())?, millis(args[1].value())?);
    let (Some(unit), Some(zone), Some(week_start), (Some(start), Some(end))) =
        (unit, zone, week_start, moments)
    else {
        return Ok(Val::null());
    };
    let (from, to) = (zone.civil(start), zone.civil(end));
    let months = |at: Civil| at.date().0 * 12 + at.date().1 - 1;
    let crossed = match unit {
        Unit::Months(size) => months(to).div_euclid(size) - months(from).div_euclid(size),
        Unit::Days(1) => to.days - from.days,
        Unit::Days(size) => {
            let week = |at: Civil| (at.days + 4 - week_start).div_euclid(size);
            week(to) - week(from)
        }
        Unit::Millis(size) => {
            let offset = zone.offset(start);
            let index = |millis: i64| millis.saturating_add(offset).div_euclid(size);
            index(end).checked_sub(index(start)).ok_or_else(out_of_range)?
        }
    };
    Ok(Val::from(crossed))
}

fn truncate<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let unit = unit(&args[1], "$dateTrunc")?;
    let zone = Zone::from_value(args[3].get())?;
    let week_start = if unit == Some(WEEK) { start_of_week(&args[4], "$dateTrunc")? } else { Some(0) };
    let bin = match &args[2] {
        Val::Missing => Some(1),
        arg if arg.is_nullish() => None,
        arg => match crate::number::to_integral(arg.value()) {
            Some(bin) if (1..=100_000_000_000).contains(&bin) => Some(bin),
            _ => {
                let text = format!(
                    "$dateTrunc requires 'binSize' to be a 64-bit integer greater than 0, but got {}",
                    show(arg.value())
                );
                return Err(Error::location(5_439_018, text));
            }
        },
    };
    let moment = millis(args[0].value())?;
    let (Some(unit), Some(zone), Some(week_start), Some(bin), Some(millis)) =
        (unit, zone, week_start, bin, moment)
    else {
        return Ok(Val::null());
    };
    Ok(Val::Own(Owned::DateTime(truncated(millis, unit, bin, week_start, &zone)?)))
}

/// The start of the bin that holds a moment; bins are counted from the start of the year 2000.
fn truncated(millis: i64, unit: Unit, bin: i64, week_start: i64, zone: &Zone) -> Result<i64> {
    let civil = zone.civil(millis);
    let reference = days_of(2000, 1, 1);
    match unit {
        Unit::Months(size) => {
            let size = size.checked_mul(bin).ok_or_else(out_of_range)?;
            let (year, month, _) = civil.date();
            let months = ((year - 2000) * 12 + month - 1).div_euclid(size) * size;
            zone.moment(Civil { days: days_of(2000, 1 + months, 1), millis: 0 })
        }
        Unit::Days(size) => {
            let first = match size {
                7 => reference + (week_start - Civil { days: reference, millis: 0 }.weekday()).rem_euclid(7),
                _ => reference,
            };
            let size = size.checked_mul(bin).ok_or_else(out_of_range)?;
            let days = first + (civil.days - first).div_euclid(size) * size;
            zone.moment(Civil { days, millis: 0 })
        }
        Unit::Millis(size) => {
            let size = size.checked_mul(bin).ok_or_else(out_of_range)?;
            let start = zone.moment(Civil { days: reference, millis: 0 })?;
            let since = millis.checked_sub(start).ok_or_else(out_of_range)?;
            since
                .div_euclid(size)
                .checked_mul(size)
                .and_then(|bins| bins.checked_add(start))
                .ok_or_else(out_of_range)
        }
    }
}

fn to_parts<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let iso = match args[2].value() {
        _ if matches!(args[2], Val::Missing) => false,
        Value::Bool(iso) => iso,
        Value::Null | Value::Undefined => return Ok(Val::null()),
        other => {
            let text = format!("iso8601 must evaluate to a bool, found {}", other.kind().alias());
            return Err(Error::location(40521, text));
        }
    };
    let Some(at) = local(&args[0], &args[1])? else { return Ok(Val::null()) };
    let mut doc = DocBuilder::new();
    let mut append = |name: &str, value: i64| {
        doc.append_value(name, int(value).value());
    };
    if iso {
        let (year, week) = at.iso_week();
        append("isoWeekYear", year);
        append("isoWeek", week);
        append("isoDayOfWeek", at.iso_weekday());
    } else {
        let (year, month, day) = at.date();
        append("year", year);
        append("month", month);
        append("day", day);
    }
    append("hour", at.hour());
    append("minute", at.minute());
    append("second", at.second());
    append("millisecond", at.millisecond());
    Ok(Val::Own(Owned::Document(doc.finish())))
}

const PARTS: &[&str] = &[
    "year",
    "month",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
    "timezone",
    "isoWeekYear",
    "isoWeek",
    "isoDayOfWeek",
];

fn from_parts<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let given = |index: usize| !matches!(args[index], Val::Missing);
    if !given(0) && !given(8) {
        // Not given, or a field that is missing: then the result is null.
        return Ok(Val::null());
    }
    if given(0) && (8..11).any(given) || given(8) && (0..3).any(given) {
        let text = "$dateFromParts does not allow mixing natural dates with ISO dates";
        return Err(Error::location(40489, text));
    }
    let part = |index: usize, otherwise: i64| -> Result<Option<i64>> {
        let arg = &args[index];
        if matches!(arg, Val::Missing) {
            return Ok(Some(otherwise));
        }
        if arg.is_nullish() {
            return Ok(None);
        }
        let value = crate::number::to_integral(arg.value()).ok_or_else(|| {
            let shown = show(arg.value());
            Error::location(
                40515,
                format!(
                    "'{}' must evaluate to an integer, found {} with value :{shown}",
                    PARTS[index],
                    arg.type_name()
                ),
            )
        })?;
        let (least, most) = if matches!(index, 0 | 8) { (1, 9999) } else { (-32_768, 32_767) };
        // Seconds and milliseconds may be of any size.
        let free = matches!(index, 5 | 6) && value.abs() < 1 << 50;
        if free || (least..=most).contains(&value) {
            return Ok(Some(value));
        }
        let text = format!(
            "'{}' must evaluate to a value in the range [{least}, {most}]; value {value} is not in range",
            PARTS[index]
        );
        Err(Error::location(if matches!(index, 0 | 8) { 40523 } else { 31034 }, text))
    };
    let zone = Zone::from_value(args[7].get())?;
    let date = if given(0) {
        (part(0, 1970)?, part(1, 1)?, part(2, 1)?)
    } else {
        (part(8, 1970)?, part(9, 1)?, part(10, 1)?)
    };
    let time = (part(3, 0)?, part(4, 0)?, part(5, 0)?, part(6, 0)?);
    let (
        (Some(year), Some(month), Some(day)),
        (Some(hour), Some(minute), Some(second), Some(milli)),
        Some(zone),
    ) = (date, time, zone)
    else {
        return Ok(Val::null());
    };
    let days = if given(0) { days_of(year, month, day) } else { days_of_iso_week(year, month, day) };
    let millis =
        hour * HOUR + minute * MINUTE + milli + second.checked_mul(SECOND).ok_or_else(out_of_range)?;
    let civil = Civil { days: days + millis.div_euclid(DAY), millis: millis.rem_euclid(DAY) };
    Ok(Val::Own(Owned::DateTime(zone.moment(civil)?)))
}

fn timestamp<'v>(args: Args<'v>, name: &str, part: fn(crate::Timestamp) -> u32) -> Result<Val<'v>> {
    match args[0].value() {
        _ if args[0].is_nullish() => Ok(Val::null()),
        Value::Timestamp(timestamp) => Ok(Val::from(i64::from(part(timestamp)))),
        _ => {
            let text = format!("{name} requires a timestamp argument, found: {}", args[0].type_name());
            Err(Error::location(5_687_301, text))
        }
    }
}
