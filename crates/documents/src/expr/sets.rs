//! Arrays as sets: order and repetition do not count. Results are in the order of values.

use super::args::{Args, array, array_of, check_size};
use super::table::{Operator, between, fixed, variadic};
use super::{Context, Val, is_true};
use crate::{Error, Result, Value};

pub(super) const OPERATORS: &[Operator] = &[
    variadic("$setUnion", union),
    variadic("$setIntersection", intersection),
    fixed("$setDifference", 2, difference),
    between("$setEquals", 2, usize::MAX, equals),
    fixed("$setIsSubset", 2, is_subset),
    fixed("$anyElementTrue", 1, |args, _| elements_true(args, "$anyElementTrue", 17041, true)),
    fixed("$allElementsTrue", 1, |args, _| elements_true(args, "$allElementsTrue", 17040, false)),
];

/// The elements, sorted, each once.
fn set<'a>(
    arg: &'a Val<'_>,
    context: &Context<'_>,
    number: i32,
    message: impl FnOnce(&str) -> String,
) -> Result<Vec<Value<'a>>> {
    let mut values: Vec<Value<'a>> = array(arg, number, message)?.values().collect();
    normalize(&mut values, context);
    Ok(values)
}

fn normalize(values: &mut Vec<Value<'_>>, context: &Context<'_>) {
    values.sort_by(|a, b| context.compare(*a, *b));
    values.dedup_by(|a, b| context.compare(*a, *b).is_eq());
}

fn has(set: &[Value<'_>], value: Value<'_>, context: &Context<'_>) -> bool {
    set.binary_search_by(|member| context.compare(*member, value)).is_ok()
}

fn all_arrays<'a>(name: &'a str) -> impl Fn(&str) -> String + 'a {
    move |kind| format!("All operands of {name} must be arrays. One argument is of type: {kind}")
}

fn union<'v>(args: Args<'v>, context: &Context<'v>) -> Result<Val<'v>> {
    let mut all = Vec::new();
    let mut size = 0;
    for arg in &args {
        if arg.is_nullish() {
            return Ok(Val::null());
        }
        let items = array(arg, 17043, all_arrays("$setUnion"))?;
        size += items.bytes().len();
        check_size(size)?;
        all.extend(items.values());
    }
    normalize(&mut all, context);
    Ok(Val::Own(array_of(all)))
}

fn intersection<'v>(args: Args<'v>, context: &Context<'v>) -> Result<Val<'v>> {
    let mut common: Option<Vec<Value<'_>>> = None;
    for arg in &args {
        if arg.is_nullish() {
            return Ok(Val::null());
        }
        let other = set(arg, context, 17047, all_arrays("$setIntersection"))?;
        common = Some(match common {
            None => other,
            Some(common) => common.into_iter().filter(|value| has(&other, *value, context)).collect(),
        });
    }
    Ok(Val::Own(array_of(common.unwrap_or_default())))
}

fn difference<'v>(args: Args<'v>, context: &Context<'v>) -> Result<Val<'v>> {
    if args.iter().any(Val::is_nullish) {
        return Ok(Val::null());
    }
    let both = |which: &'static str| {
        move |kind: &str| {
            format!("both operands of $setDifference must be arrays. {which} argument is of type: {kind}")
        }
    };
    let left = array(&args[0], 17048, both("First"))?;
    let right = set(&args[1], context, 17049, both("Second"))?;
    // What stays keeps the order of the first array.
    let mut seen: Vec<Value<'_>> = Vec::new();
    let mut kept = Vec::new();
    for value in left.values().filter(|value| !has(&right, *value, context)) {
        if let Err(at) = seen.binary_search_by(|member| context.compare(*member, value)) {
            seen.insert(at, value);
            kept.push(value);
        }
    }
    Ok(Val::Own(array_of(kept)))
}

fn equals<'v>(args: Args<'v>, context: &Context<'v>) -> Result<Val<'v>> {
    let mut sets = Vec::new();
    for arg in &args {
        sets.push(set(arg, context, 17044, all_arrays("$setEquals"))?);
    }
    let same = sets.windows(2).all(|pair| {
        pair[0].len() == pair[1].len()
            && pair[0].iter().zip(&pair[1]).all(|(a, b)| context.compare(*a, *b).is_eq())
    });
    Ok(Val::from(same))
}

fn is_subset<'v>(args: Args<'v>, context: &Context<'v>) -> Result<Val<'v>> {
    let both = |which: &'static str| {
        move |kind: &str| {
            format!("both operands of $setIsSubset must be arrays. {which} argument is of type: {kind}")
        }
    };
    let left = array(&args[0], 17046, both("First"))?;
    let right = set(&args[1], context, 17042, both("Second"))?;
    Ok(Val::from(left.values().all(|value| has(&right, value, context))))
}

fn elements_true<'v>(args: Args<'v>, name: &str, number: i32, wanted: bool) -> Result<Val<'v>> {
    let Value::Array(items) = args[0].value() else {
        let text = format!("{name}'s argument must be an array, but is {}", args[0].type_name());
        return Err(Error::location(number, text));
    };
    let decided = items.values().any(|value| is_true(value) == wanted);
    Ok(Val::from(decided == wanted))
}
