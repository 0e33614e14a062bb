//! Comparison and negation.

use super::args::Args;
use super::table::{Operator, fixed};
use super::{Context, Val};
use crate::Result;
use std::cmp::Ordering;

pub(super) const OPERATORS: &[Operator] = &[
    fixed("$cmp", 2, |args, context| Ok(Val::from(order(&args, context) as i32))),
    fixed("$eq", 2, |args, context| is(args, context, Ordering::is_eq)),
    fixed("$ne", 2, |args, context| is(args, context, Ordering::is_ne)),
    fixed("$gt", 2, |args, context| is(args, context, Ordering::is_gt)),
    fixed("$gte", 2, |args, context| is(args, context, Ordering::is_ge)),
    fixed("$lt", 2, |args, context| is(args, context, Ordering::is_lt)),
    fixed("$lte", 2, |args, context| is(args, context, Ordering::is_le)),
    fixed("$not", 1, |args, _| Ok(Val::from(!args[0].is_true()))),
];

/// Compares in the order of all values, without type bracketing.
fn order(args: &Args<'_>, context: &Context<'_>) -> Ordering {
    context.compare(args[0].value(), args[1].value())
}

fn is<'v>(args: Args<'v>, context: &Context<'v>, wanted: fn(Ordering) -> bool) -> Result<Val<'v>> {
    Ok(Val::from(wanted(order(&args, context))))
}
