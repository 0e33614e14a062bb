//! Arrays.

use super::args::{Args, any_nullish, array, array_of, check_size, int, part};
use super::table::{Operator, between, fixed, named, variadic};
use super::{Context, Val};
use crate::show::show;
use crate::{DocBuilder, Error, Owned, RawDoc, Result, Value};
use std::cmp::Ordering;

pub(super) const OPERATORS: &[Operator] = &[
    fixed("$arrayElemAt", 2, element_at),
    fixed("$first", 1, |args, _| edge(args, "$first", |array| array.values().next())),
    fixed("$last", 1, |args, _| edge(args, "$last", |array| array.values().last())),
    variadic("$concatArrays", concat),
    fixed("$in", 2, contains),
    between("$indexOfArray", 2, 4, index_of),
    fixed("$isArray", 1, |args, _| Ok(Val::from(args[0].value().as_array().is_some()))),
    between("$range", 2, 3, range),
    fixed("$reverseArray", 1, reverse),
    fixed("$size", 1, size),
    between("$slice", 2, 3, slice),
    named("$zip", &["inputs", "useLongestLength", "defaults"], 1, zip),
    named("$firstN", COUNTED, 2, |args, _| counted(args, "$firstN", |values, n| values.truncate(n))),
    named("$lastN", COUNTED, 2, |args, _| {
        counted(args, "$lastN", |values, n| drop(values.drain(..values.len().saturating_sub(n))))
    }),
    named("$minN", COUNTED, 2, |args, context| {
        counted(args, "$minN", |values, n| extremes(values, n, context, |order| order))
    }),
    named("$maxN", COUNTED, 2, |args, context| {
        counted(args, "$maxN", |values, n| extremes(values, n, context, Ordering::reverse))
    }),
];

const COUNTED: &[&str] = &["n", "input"];

fn element_at<'v>(mut args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if any_nullish(&args) {
        return Ok(Val::null());
    }
    array(&args[0], 28689, |kind| format!("$arrayElemAt's first argument must be an array, but is {kind}"))?;
    if !args[1].value().is_number() {
        let kind = args[1].type_name();
        let text = format!("$arrayElemAt's second argument must be a numeric value, but is {kind}");
        return Err(Error::location(28690, text));
    }
    let index = int(&args[1], 28691, |_| {
        "$arrayElemAt's second argument must be representable as a 32-bit integer".to_string()
    })?;
    Ok(part(std::mem::replace(&mut args[0], Val::Missing), |value| {
        let array = value.as_array()?;
        match usize::try_from(index) {
            Ok(index) => array.values().nth(index),
            Err(_) => {
                let back = index.unsigned_abs() as usize;
                array.values().nth(array.len().checked_sub(back)?)
            }
        }
    }))
}

fn edge<'v>(
    mut args: Args<'v>,
    name: &str,
    find: for<'p> fn(RawDoc<'p>) -> Option<Value<'p>>,
) -> Result<Val<'v>> {
    if args[0].is_nullish() {
        return Ok(Val::null());
    }
    array(&args[0], 28689, |kind| format!("{name}'s argument must be an array, but is {kind}"))?;
    let taken = std::mem::replace(&mut args[0], Val::Missing);
    Ok(part(taken, |value| value.as_array().and_then(find)))
}

fn concat<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let mut all = DocBuilder::new();
    for arg in &args {
        if arg.is_nullish() {
            return Ok(Val::null());
        }
        let items = array(arg, 28664, |kind| format!("$concatArrays only supports arrays, not {kind}"))?;
        for item in items {
            all.push_element(item);
        }
        check_size(all.size())?;
    }
    Ok(Val::Own(Owned::Array(all.finish())))
}

fn contains<'v>(args: Args<'v>, context: &Context<'v>) -> Result<Val<'v>> {
    let items =
        array(&args[1], 40081, |kind| format!("$in requires an array as a second argument, found: {kind}"))?;
    Ok(Val::from(items.values().any(|item| context.compare(item, args[0].value()).is_eq())))
}

fn index_of<'v>(args: Args<'v>, context: &Context<'v>) -> Result<Val<'v>> {
    if args[0].is_nullish() {
        return Ok(Val::null());
    }
    let items = array(&args[0], 40090, |kind| {
        format!("$indexOfArray requires an array as a first argument, found: {kind}")
    })?;
    let bound = |index: usize, what: &str, otherwise: usize| match args.get(index) {
        None => Ok(otherwise),
        Some(arg) => {
            let value = int(arg, 40096, |kind| {
                format!("$indexOfArray requires an integral {what} index, found a value of type: {kind}")
            })?;
            usize::try_from(value).map_err(|_| {
                Error::location(
                    40097,
                    format!("$indexOfArray requires a nonnegative {what} index, found: {value}"),
                )
            })
        }
    };
    let start = bound(2, "starting", 0)?;
    let end = bound(3, "ending", usize::MAX)?;
    let wanted = args[1].value();
    let mut candidates = items.values().enumerate().take(end).skip(start);
    let found = candidates.find(|(_, item)| context.compare(*item, wanted).is_eq());
    Ok(Val::from(found.map_or(-1, |(index, _)| index as i32)))
}

/// Most numbers that `$range` makes: 64 MB of them (MongoDB's limit on its memory is 100 MB).
const RANGE_MAX: i64 = 4_000_000;

fn range<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let value = |index: usize, numbers: (i32, i32), what: &str| {
        if !args[index].value().is_number() {
            let kind = args[index].type_name();
            let text = format!("$range requires a numeric {what} value, found value of type: {kind}");
            return Err(Error::location(numbers.0, text));
        }
        int(&args[index], numbers.1, |_| {
            format!("$range requires a {what} value that can be represented as a 32-bit integer")
        })
    };
    let start = i64::from(value(0, (34443, 34444), "starting")?);
    let end = i64::from(value(1, (34445, 34446), "ending")?);
    let step = if args.len() == 3 { i64::from(value(2, (34447, 34448), "step")?) } else { 1 };
    if step == 0 {
        return Err(Error::location(34449, "$range requires a non-zero step value"));
    }
    if (end - start) / step > RANGE_MAX {
        let text = format!("$range would make an array of more than {RANGE_MAX} numbers");
        return Err(Error::new(crate::code::EXCEEDED_MEMORY_LIMIT, text));
    }
    let mut numbers = DocBuilder::new();
    let mut at = start;
    while (step > 0 && at < end) || (step < 0 && at > end) {
        numbers.push(at as i32);
        at += step;
    }
    Ok(Val::Own(Owned::Array(numbers.finish())))
}

fn reverse<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if args[0].is_nullish() {
        return Ok(Val::null());
    }
    let items = array(&args[0], 34435, |kind| {
        format!("The argument to $reverseArray must be an array, but was of type: {kind}")
    })?;
    let mut values: Vec<Value<'_>> = items.values().collect();
    values.reverse();
    Ok(Val::Own(array_of(values)))
}

fn size<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let items = array(&args[0], 17124, |kind| {
        format!("The argument to $size must be an array, but was of type: {kind}")
    })?;
    Ok(Val::from(items.len() as i32))
}

fn slice<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    if any_nullish(&args) {
        return Ok(Val::null());
    }
    let items = array(&args[0], 28724, |kind| {
        format!("First argument to $slice must be an array, but is of type: {kind}")
    })?;
    let number = |index: usize, number: i32, which: &str| {
        int(&args[index], number, |kind| {
            format!("{which} argument to $slice must be a 32-bit integer, but is of type: {kind}")
        })
    };
    let length = items.len() as i64;
    let first = i64::from(number(1, 28725, "Second")?);
    let (start, count) = match args.len() {
        2 if first >= 0 => (0, first),
        2 => ((length + first).max(0), -first),
        _ => {
            let count = i64::from(number(2, 28727, "Third")?);
            if count <= 0 {
                let text = format!("Third argument to $slice must be positive: {count}");
                return Err(Error::location(28729, text));
            }
            (if first >= 0 { first.min(length) } else { (length + first).max(0) }, count)
        }
    };
    Ok(Val::Own(array_of(items.values().skip(start as usize).take(count as usize))))
}

fn zip<'v>(args: Args<'v>, _: &Context<'v>) -> Result<Val<'v>> {
    let longest = match args[1].value() {
        _ if matches!(args[1], Val::Missing) => false,
        Value::Bool(longest) => longest,
        other => {
            let text = format!("useLongestLength must be a bool, found {}", other.kind().alias());
            return Err(Error::location(34463, text));
        }
    };
    let defaults: Vec<Value<'_>> = match args[2].value() {
        _ if matches!(args[2], Val::Missing) => Vec::new(),
        Value::Array(defaults) => defaults.values().collect(),
        other => {
            let text = format!("defaults must be an array of expressions, found {}", other.kind().alias());
            return Err(Error::location(34462, text));
        }
    };
    let inputs =
        array(&args[0], 34461, |kind| format!("inputs must be an array of expressions, found {kind}"))?;
    if inputs.is_empty() {
        return Err(Error::location(34465, "$zip requires at least one input array"));
    }
    if !defaults.is_empty() && !longest {
        return Err(Error::location(34466, "cannot specify defaults unless useLongestLength is true"));
    }
    if !defaults.is_empty() && defaults.len() != inputs.len() {
        return Err(Error::location(34467, "defaults and inputs must have the same length"));
    }
    let mut columns: Vec<Vec<Value<'_>>> = Vec::new();
    for input in inputs.values() {
        match input {
            Value::Null | Value::Undefined => return Ok(Val::null()),
            Value::Array(items) => columns.push(items.values().collect()),
            other => {
                let text = format!("$zip found a non-array expression in input: {}", show(other));
                return Err(Error::location(34468, text));
            }
        }
    }
    let lengths = columns.iter().map(Vec::len);
    let rows = if longest { lengths.max() } else { lengths.min() }.unwrap_or(0);
    let mut zipped = DocBuilder::new();
    for row in 0..rows {
        zipped.push_array();
        for (index, column) in columns.iter().enumerate() {
            let default = defaults.get(index).copied().unwrap_or(Value::Null);
            zipped.push_value(column.get(row).copied().unwrap_or(default));
        }
        zipped.end();
        check_size(zipped.size())?;
    }
    Ok(Val::Own(Owned::Array(zipped.finish())))
}

fn counted<'v>(
    args: Args<'v>,
    name: &str,
    choose: impl FnOnce(&mut Vec<Value<'_>>, usize),
) -> Result<Val<'v>> {
    let items =
        array(&args[1], 5_788_200, |kind| format!("Input must be an array, but {name} found {kind}"))?;
    let count = count_of(args[0].value())?;
    let mut values: Vec<Value<'_>> = items.values().collect();
    choose(&mut values, count);
    Ok(Val::Own(array_of(values)))
}

/// The `n` of `$firstN` and its like: a positive integer.
pub(crate) fn count_of(value: Value<'_>) -> Result<usize> {
    if !value.is_number() {
        let text = format!("Value for 'n' must be of integral type, but found {}", show(value));
        return Err(Error::location(5_787_902, text));
    }
    match crate::number::to_integral(value) {
        Some(count @ 1..) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
        Some(_) => {
            Err(Error::location(5_787_908, format!("'n' must be greater than 0, found {}", show(value))))
        }
        None => {
            let text = format!("Value for 'n' must be of integral type, but found {}", show(value));
            Err(Error::location(5_787_903, text))
        }
    }
}

/// The `count` smallest (in the directed order), sorted, nulls left out.
fn extremes(
    values: &mut Vec<Value<'_>>,
    count: usize,
    context: &Context<'_>,
    direct: fn(Ordering) -> Ordering,
) {
    values.retain(|value| !matches!(value, Value::Null | Value::Undefined));
    values.sort_by(|a, b| direct(context.compare(*a, *b)));
    values.truncate(count);
}
