//! Strings. Null gives null, except where MongoDB reads it as the empty string.

use super::args::{Args, any_nullish, array_of, check_size, int, string};
use super::convert::coerce_to_string;
use super::table::{Operator, between, fixed, named, variadic};
use super::{Context, Val};
use crate::show::show;
use crate::{Error, Result, Value};

pub(super) const OPERATORS: &[Operator] = &[
    variadic("$concat", concat),
    fixed("$toLower", 1, |args, _| Ok(Val::from(coerce_to_string(args[0].value())?.to_ascii_lowercase()))),
    fixed("$toUpper", 1, |args, _| Ok(Val::from(coerce_to_string(args[0].value())?.to_ascii_uppercase()))),
    fixed("$strLenBytes", 1, |args, _| length(args, "$strLenBytes", 34473, str::len)),
    fixed("$strLenCP", 1, |args, _| length(args, "$strLenCP", 34471, |text| text.chars().count())),
    fixed("$strcasecmp", 2, compare_ignoring_case),
    fixed("$substr", 3, substring_bytes),
    fixed("$substrBytes", 3, substring_bytes),
    fixed("$substrCP", 3, substring_characters),
    fixed("$split", 2, split),
    named("$trim", &["input", "chars"], 1, |args, _| trim(args, "$trim", true, true)),
    named("$ltrim", &["input", "chars"], 1, |args, _| trim(args, "$ltrim", true, false)),
    named("$rtrim", &["input", "chars"], 1, |args, _| trim(args, "$rtrim", false, true)),
    between("$indexOfBytes", 2, 4, index_of_bytes),
    between("$indexOfCP", 2, 4, index_of_characters),
    named("$replaceOne", &["input", "find", "replacement"], 3, |args, _| {
        replace(args, "$replaceOne", |input, find, new| input.replacen(find, new, 1))
    }),
    named("$replaceAll", &["input", "find", "replacement"], 3, |args, _| {
        replace(args, "$replaceAll", |input, find, new| input.replace(find, new))
    }),
];

fn concat<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let mut text = String::new();
    let mut null = false;
    for arg in &args {
        match arg.is_nullish() {
            true => null = true,
            false => text += string(arg, 16702, |kind| format!("$concat only supports strings, not {kind}"))?,
        }
        check_size(text.len())?;
    }
    Ok(if null { Val::null() } else { Val::from(text) })
}

fn length<'v>(args: Args<'v>, name: &str, number: i32, count: fn(&str) -> usize) -> Result<Val<'v>> {
    let text = string(&args[0], number, |kind| format!("{name} requires a string argument, found: {kind}"))?;
    Ok(size(count(text)))
}

/// A size or position as an int (documents are too small for more).
fn size(size: usize) -> Val<'static> {
    match i32::try_from(size) {
        Ok(int) => Val::from(int),
        Err(_) => Val::from(size as i64),
    }
}

fn compare_ignoring_case<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let [a, b] = [&args[0], &args[1]].map(|arg| coerce_to_string(arg.value()));
    Ok(Val::from(a?.to_ascii_uppercase().cmp(&b?.to_ascii_uppercase()) as i32))
}

fn substring_bytes<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let text = coerce_to_string(args[0].value())?;
    let number = |index: usize, number: i32, what: &str| {
        let text =
            format!("$substrBytes: {what} must be a numeric type (is BSON type {})", args[index].type_name());
        crate::number::to_i64(args[index].value()).ok_or_else(|| Error::location(number, text))
    };
    let start = number(1, 16034, "starting index")?;
    let count = number(2, 16035, "length")?;
    let Ok(start) = usize::try_from(start) else {
        let text = format!("$substrBytes: starting index must be non-negative (got: {start})");
        return Err(Error::location(50752, text));
    };
    // A negative length takes everything.
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if start >= text.len() {
        return Ok(Val::from(""));
    }
    let end = start.saturating_add(count).min(text.len());
    for (number, index, what) in [(28656, start, "starting"), (28657, end, "ending")] {
        if !text.is_char_boundary(index) {
            let text =
                format!("$substrBytes: Invalid range, {what} index is in the middle of a UTF-8 character.");
            return Err(Error::location(number, text));
        }
    }
    Ok(Val::from(&text[start..end]))
}

fn substring_characters<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let text = coerce_to_string(args[0].value())?;
    let start = int(&args[1], 34450, |kind| {
        format!(
            "$substrCP: starting index must be a numeric type that is representable as a 32-bit integral value (is BSON type {kind})"
        )
    })?;
    let count = int(&args[2], 34452, |kind| {
        format!(
            "$substrCP: length must be a numeric type that is representable as a 32-bit integral value (is BSON type {kind})"
        )
    })?;
    let Ok(start) = usize::try_from(start) else {
        return Err(Error::location(34455, "$substrCP: the starting index must be a non-negative integer."));
    };
    let Ok(count) = usize::try_from(count) else {
        return Err(Error::location(34454, "$substrCP: length must be a nonnegative integer."));
    };
    Ok(Val::from(text.chars().skip(start).take(count).collect::<String>()))
}

fn split<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if any_nullish(&args) {
        return Ok(Val::null());
    }
    let text = string(&args[0], 40085, |kind| {
        format!("$split requires an expression that evaluates to a string as a first argument, found: {kind}")
    })?;
    let separator = string(&args[1], 40086, |kind| {
        format!(
            "$split requires an expression that evaluates to a string as a second argument, found: {kind}"
        )
    })?;
    if separator.is_empty() {
        return Err(Error::location(40087, "$split requires a non-empty separator"));
    }
    Ok(Val::Own(array_of(text.split(separator).map(Value::String))))
}

/// What `$trim` removes without `chars` (MongoDB manual, "$trim: Whitespace Characters").
const WHITESPACE: [char; 20] = [
    '\0', ' ', '\t', '\n', '\u{b}', '\u{c}', '\r', '\u{a0}', '\u{1680}', '\u{2000}', '\u{2001}', '\u{2002}',
    '\u{2003}', '\u{2004}', '\u{2005}', '\u{2006}', '\u{2007}', '\u{2008}', '\u{2009}', '\u{200a}',
];

fn trim<'v>(args: Args<'v>, name: &str, left: bool, right: bool) -> Result<Val<'v>> {
    if args[0].is_nullish() {
        return Ok(Val::null());
    }
    let shown = |arg: &Val<'_>| format!("got {} (of type {}) instead.", show(arg.value()), arg.type_name());
    let input = string(&args[0], 50699, |_| {
        format!("{name} requires its input to be a string, {}", shown(&args[0]))
    })?;
    let chars: Vec<char> = match &args[1] {
        Val::Missing => WHITESPACE.to_vec(),
        chars if chars.is_nullish() => return Ok(Val::null()),
        chars => {
            let message = |_: &str| format!("{name} requires 'chars' to be a string, {}", shown(chars));
            string(chars, 50700, message)?.chars().collect()
        }
    };
    let mut text = input;
    if left {
        text = text.trim_start_matches(&chars[..]);
    }
    if right {
        text = text.trim_end_matches(&chars[..]);
    }
    Ok(Val::from(text))
}

/// Start and end of a search, each optional; `None` if the search cannot succeed.
fn range(args: &Args<'_>, name: &str, length: usize) -> Result<Option<(usize, usize)>> {
    let index = |index: usize, number: i32, what: &str| match args.get(index) {
        None => Ok(None),
        Some(arg) => {
            let value = int(arg, number, |kind| {
                format!("{name} requires an integral {what} index, found a value of type: {kind}")
            })?;
            usize::try_from(value).map(Some).map_err(|_| {
                Error::location(40097, format!("{name} requires a nonnegative {what} index, found: {value}"))
            })
        }
    };
    let start = index(2, 40096, "starting")?.unwrap_or(0);
    let end = index(3, 40096, "ending")?.unwrap_or(length).min(length);
    Ok((start <= length && start <= end).then_some((start, end)))
}

fn search<'a>(args: &'a Args<'_>, name: &str) -> Result<(&'a str, &'a str)> {
    let text = string(&args[0], 40091, |kind| {
        format!("{name} requires a string as the first argument, found: {kind}")
    })?;
    let token = string(&args[1], 40092, |kind| {
        format!("{name} requires a string as the second argument, found: {kind}")
    })?;
    Ok((text, token))
}

fn index_of_bytes<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if args[0].is_nullish() {
        return Ok(Val::null());
    }
    let (text, token) = search(&args, "$indexOfBytes")?;
    let Some((start, end)) = range(&args, "$indexOfBytes", text.len())? else { return Ok(Val::from(-1)) };
    let found = memchr::memmem::find(&text.as_bytes()[start..end], token.as_bytes());
    Ok(found.map_or(Val::from(-1), |index| size(start + index)))
}

fn index_of_characters<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if args[0].is_nullish() {
        return Ok(Val::null());
    }
    let (text, token) = search(&args, "$indexOfCP")?;
    let length = text.chars().count();
    let Some((start, end)) = range(&args, "$indexOfCP", length)? else { return Ok(Val::from(-1)) };
    let byte = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
    let part = &text[byte(start)..byte(end)];
    let found = part.find(token).map(|at| start + part[..at].chars().count());
    Ok(found.map_or(Val::from(-1), size))
}

fn replace<'v>(args: Args<'v>, name: &str, replaced: fn(&str, &str, &str) -> String) -> Result<Val<'v>> {
    for (arg, number, what) in
        [(&args[0], 51746, "input"), (&args[1], 51745, "find"), (&args[2], 51744, "replacement")]
    {
        if !arg.is_nullish() && arg.value().as_str().is_none() {
            let text = format!("{name} requires that '{what}' be a string, found: {}", show(arg.value()));
            return Err(Error::location(number, text));
        }
    }
    match (args[0].value(), args[1].value(), args[2].value()) {
        (Value::String(input), Value::String(find), Value::String(new)) => {
            // An empty text is found between all characters.
            let places = input.len().checked_div(find.len()).unwrap_or(input.len() + 1);
            check_size(input.len() + places.saturating_mul(new.len()))?;
            Ok(Val::from(replaced(input, find, new)))
        }
        _ => Ok(Val::null()),
    }
}
