//! Dates as text: `$dateToString`, `$dateFromString`, and the ISO form that conversions use.

use super::args::Args;
use super::calendar::{
    Civil, DAY, HOUR, MINUTE, SECOND, Zone, days_in_month, days_of, days_of_iso_week, parse_offset,
};
use super::dates::millis;
use super::table::{Operator, named};
use super::{Context, Val};
use crate::{Code, Error, Owned, Result, Value};
use std::fmt::Write;

pub(super) const OPERATORS: &[Operator] = &[
    named("$dateToString", &["date", "format", "timezone", "onNull"], 1, to_text),
    named("$dateFromString", &["dateString", "format", "timezone", "onNull"], 1, from_text),
];

pub(super) const CONVERSION_FAILURE: Code = Code { number: 241, name: "ConversionFailure" };

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A date as conversions to strings write it; only the years 0 to 9999 can be written.
pub(super) fn iso(millis: i64) -> Result<String> {
    let mut text = String::new();
    write_date(&mut text, "%Y-%m-%dT%H:%M:%S.%LZ", millis, &Zone::utc())?;
    Ok(text)
}

fn to_text<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let format = match args[1].value() {
        _ if matches!(args[1], Val::Missing) => None,
        Value::Null | Value::Undefined => return Ok(Val::null()),
        Value::String(format) => Some(format),
        other => {
            let text =
                format!("$dateToString requires that 'format' be a string, found: {}", other.kind().alias());
            return Err(Error::location(18533, text));
        }
    };
    let Some(zone) = Zone::from_value(args[2].get())? else { return Ok(Val::null()) };
    let Some(millis) = millis(args[0].value())? else {
        return Ok(match &args[3] {
            Val::Missing => Val::null(),
            on_null => on_null.clone(),
        });
    };
    let default = if zone.is_utc() { "%Y-%m-%dT%H:%M:%S.%LZ" } else { "%Y-%m-%dT%H:%M:%S.%L" };
    let mut text = String::new();
    write_date(&mut text, format.unwrap_or(default), millis, &zone)?;
    Ok(Val::from(text))
}

fn write_date(text: &mut String, format: &str, millis: i64, zone: &Zone) -> Result<()> {
    let at = zone.civil(millis);
    let (year, month, day) = at.date();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let specifier = letters.next();
        let _ = match specifier {
            Some('%') => write!(text, "%"),
            Some('Y' | 'G') => {
                let year = if specifier == Some('Y') { year } else { at.iso_week().0 };
                if !(0..=9999).contains(&year) {
                    let message =
                        format!("$dateToString is only defined on year 0-9999, tried to use year {year}");
                    return Err(Error::location(18537, message));
                }
                write!(text, "{year:04}")
            }
            Some('m') => write!(text, "{month:02}"),
            Some('d') => write!(text, "{day:02}"),
            Some('b') => write!(text, "{}", &MONTHS[month as usize - 1][..3]),
            Some('B') => write!(text, "{}", MONTHS[month as usize - 1]),
            Some('H') => write!(text, "{:02}", at.hour()),
            Some('M') => write!(text, "{:02}", at.minute()),
            Some('S') => write!(text, "{:02}", at.second()),
            Some('L') => write!(text, "{:03}", at.millisecond()),
            Some('j') => write!(text, "{:03}", at.day_of_year()),
            Some('w') => write!(text, "{}", at.weekday() + 1),
            Some('u') => write!(text, "{}", at.iso_weekday()),
            Some('U') => write!(text, "{:02}", at.week()),
            Some('V') => write!(text, "{:02}", at.iso_week().1),
            Some('z') => {
                let minutes = zone.offset(millis) / MINUTE;
                let sign = if minutes < 0 { '-' } else { '+' };
                write!(text, "{sign}{:02}{:02}", minutes.abs() / 60, minutes.abs() % 60)
            }
            Some('Z') => write!(text, "{}", zone.offset(millis) / MINUTE),
            Some(other) => {
                let message = format!("Invalid format character '%{other}' in format string");
                return Err(Error::location(18536, message));
            }
            None => return Err(Error::location(18535, "Unmatched '%' at end of format string")),
        };
    }
    Ok(())
}

fn from_text<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let zone = Zone::from_value(args[2].get())?;
    if args[0].is_nullish() {
        return Ok(match &args[3] {
            Val::Missing => Val::null(),
            on_null => on_null.clone(),
        });
    }
    let Value::String(text) = args[0].value() else {
        let text =
            format!("$dateFromString requires that 'dateString' be a string, found: {}", args[0].type_name());
        return Err(Error::new(CONVERSION_FAILURE, text));
    };
    let Some(zone) = zone else { return Ok(Val::null()) };
    // A zone in the text and one beside it would contradict each other.
    let given = args[2].get().map(|_| &zone);
    let millis = match args[1].value() {
        _ if matches!(args[1], Val::Missing) => parse_iso(text, given)?,
        Value::Null | Value::Undefined => return Ok(Val::null()),
        Value::String(format) => parse_format(text, format, given)?,
        other => {
            let text = format!(
                "$dateFromString requires that 'format' be a string, found: {}",
                other.kind().alias()
            );
            return Err(Error::location(40684, text));
        }
    };
    Ok(Val::Own(Owned::DateTime(millis)))
}

fn malformed(text: &str, reason: &str) -> Error {
    Error::new(CONVERSION_FAILURE, format!("Error parsing date string '{text}'; {reason}"))
}

/// What a text tells about a moment.
#[derive(Default)]
struct Fields {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    iso: (Option<i64>, Option<i64>, Option<i64>),
    day_of_year: Option<i64>,
    millis: i64,
    offset: Option<i64>,
}

impl Fields {
    fn moment(&self, text: &str, zone: Option<&Zone>) -> Result<i64> {
        let days = match (self.iso, self.year) {
            ((Some(year), week, day), _) => days_of_iso_week(year, week.unwrap_or(1), day.unwrap_or(1)),
            (_, Some(year)) => match self.day_of_year {
                Some(day) => days_of(year, 1, day),
                None => {
                    let (month, day) = (self.month.unwrap_or(1), self.day.unwrap_or(1));
                    if !(1..=12).contains(&month) || !(1..=days_in_month(year, month)).contains(&day) {
                        return Err(malformed(text, "The parsed date was invalid"));
                    }
                    days_of(year, month, day)
                }
            },
            _ => return Err(malformed(text, "an incomplete date/time string has been found")),
        };
        let civil = Civil { days, millis: self.millis };
        match (self.offset, zone) {
            (Some(_), Some(_)) => Err(malformed(
                text,
                "you cannot pass in a date/time string with time zone information together with a timezone argument",
            )),
            (Some(offset), None) => Ok(days * DAY + self.millis - offset),
            (None, Some(zone)) => zone.moment(civil),
            (None, None) => Ok(days * DAY + self.millis),
        }
    }
}

/// Reads a date in ISO 8601 form: a date, perhaps a time after `T` or a blank, perhaps an offset or a zone.
pub(super) fn parse_iso(text: &str, zone: Option<&Zone>) -> Result<i64> {
    let mut reader = Reader { text, rest: text.trim() };
    let mut fields = Fields { year: Some(reader.digits(4, 4)?), ..Fields::default() };
    let dashed = reader.eat("-") || reader.eat("/");
    fields.month = Some(reader.digits(if dashed { 1 } else { 2 }, 2)?);
    if (reader.eat("-") || reader.eat("/")) || !dashed {
        fields.day = Some(reader.digits(if dashed { 1 } else { 2 }, 2)?);
    }
    if reader.eat("T") || reader.eat("t") || reader.rest.starts_with(' ') {
        reader.rest = reader.rest.trim_start();
        if reader.rest.starts_with(|c: char| c.is_ascii_digit()) {
            fields.millis = reader.time()?;
        }
    }
    reader.rest = reader.rest.trim();
    if reader.rest.is_empty() {
        return fields.moment(text, zone);
    }
    let named = Zone::parse(&reader.rest.replace('z', "Z"))
        .map_err(|_| malformed(text, "the text after the date is not understood"))?;
    let local = fields.moment(text, None)?;
    fields.offset = Some(local - named.moment(Civil::from_local(local))?);
    fields.moment(text, zone)
}

/// Reads a text piece by piece.
struct Reader<'t> {
    text: &'t str,
    rest: &'t str,
}

impl Reader<'_> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A number of at least and at most so many digits.
    fn digits(&mut self, least: usize, most: usize) -> Result<i64> {
        let count = self.rest.bytes().take(most).take_while(u8::is_ascii_digit).count();
        let number = self.rest.get(..count).and_then(|digits| digits.parse().ok());
        match number {
            Some(number) if count >= least => {
                self.rest = &self.rest[count..];
                Ok(number)
            }
            _ => Err(malformed(self.text, "a number was expected")),
        }
    }

    /// A number of at most so many digits within limits.
    fn within(&mut self, most: usize, limits: std::ops::RangeInclusive<i64>) -> Result<i64> {
        let number = self.digits(1, most)?;
        match limits.contains(&number) {
            true => Ok(number),
            false => Err(malformed(self.text, "a number is out of its range")),
        }
    }

    /// Hours, perhaps minutes, seconds and a fraction; milliseconds since midnight.
    fn time(&mut self) -> Result<i64> {
        let mut millis = self.within(2, 0..=23)? * HOUR;
        let colon = self.eat(":");
        if !colon && !self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(millis);
        }
        millis += self.within(2, 0..=59)? * MINUTE;
        if self.eat(":") || (!colon && self.rest.starts_with(|c: char| c.is_ascii_digit())) {
            millis += self.within(2, 0..=59)? * SECOND;
            if self.eat(".") || self.eat(",") {
                millis += self.fraction()?;
            }
        }
        Ok(millis)
    }

    /// The digits after a decimal point, as milliseconds; more than three are cut.
    fn fraction(&mut self) -> Result<i64> {
        let count = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 {
            return Err(malformed(self.text, "a number was expected"));
        }
        let (digits, rest) = self.rest.split_at(count);
        self.rest = rest;
        let millis = digits.bytes().chain(std::iter::repeat(b'0')).take(3);
        Ok(millis.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
    }

    fn month_name(&mut self, short: bool) -> Result<i64> {
        for (index, name) in MONTHS.iter().enumerate() {
            let name = if short { &name[..3] } else { name };
            if self.rest.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name)) {
                self.rest = &self.rest[name.len()..];
                return Ok(index as i64 + 1);
            }
        }
        Err(malformed(self.text, "the name of a month was expected"))
    }

    /// `+hhmm`, `+hh:mm`, `+hh` or `Z`; milliseconds.
    fn offset(&mut self) -> Result<i64> {
        if self.eat("Z") {
            return Ok(0);
        }
        for length in [6, 5, 3] {
            if let Some(seconds) = self.rest.get(..length).and_then(parse_offset) {
                self.rest = &self.rest[length..];
                return Ok(i64::from(seconds) * SECOND);
            }
        }
        Err(malformed(self.text, "an offset was expected"))
    }
}

/// Reads a date that has exactly this format.
fn parse_format(text: &str, format: &str, zone: Option<&Zone>) -> Result<i64> {
    let mut reader = Reader { text, rest: text };
    let mut fields = Fields::default();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            if !reader.eat(letter.encode_utf8(&mut [0; 4])) {
                return Err(malformed(text, &format!("'{letter}' was expected")));
            }
            continue;
        }
        match letters.next() {
            Some('%') if reader.eat("%") => {}
            Some('%') => return Err(malformed(text, "'%' was expected")),
            Some('Y') => fields.year = Some(reader.digits(4, 4)?),
            Some('m') => fields.month = Some(reader.within(2, 1..=12)?),
            Some('b') => fields.month = Some(reader.month_name(true)?),
            Some('B') => fields.month = Some(reader.month_name(false)?),
            Some('d') => fields.day = Some(reader.within(2, 1..=31)?),
            Some('H') => fields.millis += reader.within(2, 0..=23)? * HOUR,
            Some('M') => fields.millis += reader.within(2, 0..=59)? * MINUTE,
            Some('S') => fields.millis += reader.within(2, 0..=59)? * SECOND,
            Some('L') => fields.millis += reader.digits(1, 3)?,
            Some('j') => fields.day_of_year = Some(reader.within(3, 1..=366)?),
            Some('G') => fields.iso.0 = Some(reader.digits(4, 4)?),
            Some('V') => fields.iso.1 = Some(reader.within(2, 1..=53)?),
            Some('u') => fields.iso.2 = Some(reader.within(1, 1..=7)?),
            Some('z') => fields.offset = Some(reader.offset()?),
            Some('Z') => {
                let sign = if reader.eat("-") { -1 } else { 1 };
                reader.eat("+");
                fields.offset = Some(sign * reader.within(4, 0..=1439)? * MINUTE);
            }
            Some(other) => {
                return Err(Error::location(
                    18536,
                    format!("Invalid format character '%{other}' in format string"),
                ));
            }
            None => return Err(Error::location(18535, "Unmatched '%' at end of format string")),
        }
    }
    match reader.rest {
        "" => fields.moment(text, zone),
        _ => Err(malformed(text, "the text goes on after the format")),
    }
}
