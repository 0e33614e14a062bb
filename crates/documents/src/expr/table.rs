//! The operators by name. Operators that evaluate their arguments lazily or bind variables are in `control`.

use super::args::Args;
use super::{Context, Val};
use super::{arrays, compare, convert, dates, format, math, objects, regex, sets, strings, sums};
use crate::Result;

/// An operator whose arguments are evaluated first.
#[derive(Debug)]
pub(crate) struct Operator {
    pub name: &'static str,
    pub arguments: Arguments,
    pub run: Run,
}

/// The function of an operator.
pub(crate) type Run = for<'v, 'c> fn(Args<'v>, &'c Context<'v>) -> Result<Val<'v>>;

/// How an operator takes its arguments.
#[derive(Debug)]
pub(crate) enum Arguments {
    /// An array, or the only argument without one.
    List { least: usize, most: usize },
    /// A document with these fields, the first of which are required.
    Named { names: &'static [&'static str], required: usize },
    /// A document with these fields, the first being `date`, or only the date.
    DateOr { names: &'static [&'static str] },
}

/// An operator with a fixed number of arguments.
pub(super) const fn fixed(name: &'static str, count: usize, run: Run) -> Operator {
    Operator { name, arguments: Arguments::List { least: count, most: count }, run }
}

/// An operator with a varying number of arguments.
pub(super) const fn between(name: &'static str, least: usize, most: usize, run: Run) -> Operator {
    Operator { name, arguments: Arguments::List { least, most }, run }
}

/// An operator with any number of arguments.
pub(super) const fn variadic(name: &'static str, run: Run) -> Operator {
    between(name, 0, usize::MAX, run)
}

/// An operator with named arguments, of which the first `required` must be given.
pub(super) const fn named(
    name: &'static str,
    names: &'static [&'static str],
    required: usize,
    run: Run,
) -> Operator {
    Operator { name, arguments: Arguments::Named { names, required }, run }
}

/// An operator that takes a date, or a document with the date and a time zone.
pub(super) const fn date_part(name: &'static str, run: Run) -> Operator {
    Operator { name, arguments: Arguments::DateOr { names: &["date", "timezone"] }, run }
}

const TABLES: [&[Operator]; 11] = [
    math::OPERATORS,
    compare::OPERATORS,
    strings::OPERATORS,
    regex::OPERATORS,
    arrays::OPERATORS,
    sets::OPERATORS,
    objects::OPERATORS,
    convert::OPERATORS,
    dates::OPERATORS,
    format::OPERATORS,
    sums::OPERATORS,
];

/// Operators of MongoDB that this crate knows and does not carry out.
pub(super) const UNSUPPORTED: &[&str] = &[
    "$function",
    "$accumulator",
    "$meta",
    "$toHashedIndexKey",
    "$encStrStartsWith",
    "$median",
    "$percentile",
    "$toUUID",
];

/// The operator of this name.
pub(super) fn find(name: &str) -> Option<&'static Operator> {
    all().find(|operator| operator.name == name)
}

/// All operators of the tables.
pub(super) fn all() -> impl Iterator<Item = &'static Operator> {
    TABLES.iter().flat_map(|table| table.iter())
}
