//! Regular expressions: `$regexMatch`, `$regexFind`, `$regexFindAll`.

use super::args::{Args, check_size, string};
use super::table::{Operator, named};
use super::{Context, Val};
use crate::filter::Pattern;
use crate::{DocBuilder, Error, Owned, Result, Value};

pub(super) const OPERATORS: &[Operator] = &[
    named("$regexMatch", NAMES, 2, regex_match),
    named("$regexFind", NAMES, 2, regex_find),
    named("$regexFindAll", NAMES, 2, regex_find_all),
];

const NAMES: &[&str] = &["input", "regex", "options"];

/// Input and compiled expression, or `None` if one of them is null.
fn prepare<'a>(args: &'a Args<'_>, name: &str) -> Result<Option<(&'a str, Pattern)>> {
    let options = match &args[2] {
        options if options.is_nullish() => "",
        options => string(options, 51106, |kind| {
            format!("{name} needs 'options' to be of type string, found: {kind}")
        })?,
    };
    let regex = match args[1].value() {
        Value::Null | Value::Undefined => None,
        Value::String(pattern) => Some(compile(pattern, options, name)?),
        Value::Regex { pattern, options: own } => {
            if !own.is_empty() && !options.is_empty() {
                let text =
                    format!("{name}: found regex option(s) specified in both 'regex' and 'option' fields");
                return Err(Error::location(51107, text));
            }
            Some(compile(pattern, if own.is_empty() { options } else { own }, name)?)
        }
        _ => {
            let text = format!("{name} needs 'regex' to be of type string or regex");
            return Err(Error::location(51105, text));
        }
    };
    if args[0].is_nullish() {
        return Ok(None);
    }
    let input = string(&args[0], 51104, |_| format!("{name} needs 'input' to be of type string"))?;
    Ok(regex.map(|regex| (input, regex)))
}

fn compile(pattern: &str, options: &str, name: &str) -> Result<Pattern> {
    Pattern::new(pattern, options)
        .map_err(|error| Error::location(51111, format!("Invalid Regex in {name}: {}", error.message)))
}

fn regex_match<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let Some((input, regex)) = prepare(&args, "$regexMatch")? else { return Ok(Val::from(false)) };
    Ok(Val::from(find_at(&regex, input, 0)?.is_some()))
}

/// A match: its bytes, and those of each group that took part.
type Found = Vec<Option<(usize, usize)>>;

/// The first match from a position on.
fn find_at(pattern: &Pattern, input: &str, at: usize) -> Result<Option<Found>> {
    let found = pattern.regex_for(input).captures_from_pos(input, at).map_err(|error| {
        Error::location(51156, format!("Error occurred while executing regular expression: {error}"))
    })?;
    Ok(found
        .map(|groups| groups.iter().map(|group| group.map(|group| (group.start(), group.end()))).collect()))
}

/// The document that describes a match; positions count characters.
fn describe(input: &str, found: &Found) -> Owned {
    let (start, end) = found.first().copied().flatten().unwrap_or_default();
    let mut doc = DocBuilder::new();
    doc.append("match", &input[start..end]);
    doc.append("idx", i32::try_from(input[..start].chars().count()).unwrap_or(i32::MAX));
    doc.start_array("captures");
    for group in &found[1..] {
        doc.push(group.map(|(start, end)| &input[start..end]));
    }
    Owned::Document(doc.finish())
}

fn regex_find<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let Some((input, regex)) = prepare(&args, "$regexFind")? else { return Ok(Val::null()) };
    Ok(find_at(&regex, input, 0)?.map_or(Val::null(), |found| Val::Own(describe(input, &found))))
}

fn regex_find_all<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let mut all = DocBuilder::new();
    if let Some((input, regex)) = prepare(&args, "$regexFindAll")? {
        let mut at = 0;
        while let Some(found) = find_at(&regex, input, at)? {
            all.push_value(describe(input, &found).value());
            check_size(all.size())?;
            let (start, end) = found.first().copied().flatten().unwrap_or_default();
            // An empty match must not be found again at the same place.
            at = if end > start { end } else { end + input[end..].chars().next().map_or(1, char::len_utf8) };
            if at > input.len() {
                break;
            }
        }
    }
    Ok(Val::Own(Owned::Array(all.finish())))
}
