//! Totals and extremes over several values: `$sum`, `$avg`, `$min`, `$max`, standard deviations.
//! `$group` uses the same sums.

use super::args::Args;
use super::table::{Operator, variadic};
use super::{Context, Val};
use crate::arith::Number;
use crate::decimal::Decimal;
use crate::{Owned, Result, Value};
use std::cmp::Ordering;

pub(super) const OPERATORS: &[Operator] = &[
    variadic("$sum", |args, _| Ok(Val::Own(total(&args).sum()))),
    variadic("$avg", |args, _| Ok(Val::Own(total(&args).average()))),
    variadic("$min", |args, context| extreme(args, context, Ordering::Less)),
    variadic("$max", |args, context| extreme(args, context, Ordering::Greater)),
    variadic("$stdDevPop", |args, _| Ok(Val::Own(deviation(&args).population()))),
    variadic("$stdDevSamp", |args, _| Ok(Val::Own(deviation(&args).sample()))),
];

/// The operands; a single array stands for its elements.
fn operands<'a>(args: &'a [Val<'_>]) -> Vec<Value<'a>> {
    match args {
        [only] => match only.value() {
            Value::Array(array) => array.values().collect(),
            other => vec![other],
        },
        several => several.iter().map(Val::value).collect(),
    }
}

fn total(args: &[Val<'_>]) -> Sum {
    let mut sum = Sum::default();
    operands(args).into_iter().for_each(|value| sum.add(value));
    sum
}

fn deviation(args: &[Val<'_>]) -> Deviation {
    let mut deviation = Deviation::default();
    operands(args).into_iter().for_each(|value| deviation.add(value));
    deviation
}

fn extreme<'v>(args: Args<'v>, context: &Context<'v>, wanted: Ordering) -> Result<Val<'v>> {
    let mut best: Option<Value<'_>> = None;
    let values = operands(&args);
    for value in values.into_iter().filter(|value| !matches!(value, Value::Null | Value::Undefined)) {
        if best.is_none_or(|best| context.compare(value, best) == wanted) {
            best = Some(value);
        }
    }
    Ok(Val::Own(best.map_or(Owned::Null, |value| value.to_owned())))
}

/// A sum of numbers; other values do not count. Doubles are added with the rounding error kept apart, so
/// that the order of addends hardly matters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    count: i64,
    /// Ints and longs: cannot overflow for fewer than 2^63 addends.
    whole: i128,
    double: f64,
    /// What `double` lost to rounding.
    lost: f64,
    decimal: Option<Decimal>,
    has_long: bool,
    has_double: bool,
}

impl Sum {
    pub(crate) fn add(&mut self, value: Value<'_>) {
        let Some(number) = Number::from_value(value) else { return };
        self.count += 1;
        match number {
            Number::Int(v) => self.whole += i128::from(v),
            Number::Long(v) => {
                self.whole += i128::from(v);
                self.has_long = true;
            }
            Number::Double(v) => {
                self.has_double = true;
                self.add_double(v);
            }
            Number::Decimal(v) => self.decimal = Some(self.decimal.map_or(v, |sum| sum + v)),
        }
    }

    /// Neumaier's compensated addition.
    fn add_double(&mut self, value: f64) {
        let sum = self.double + value;
        if sum.is_finite() {
            let (large, small) =
                if self.double.abs() >= value.abs() { (self.double, value) } else { (value, self.double) };
            self.lost += (large - sum) + small;
        }
        self.double = sum;
    }

    fn doubles(&self) -> f64 {
        let mut all = self.clone();
        all.add_double(self.whole as f64);
        if all.double.is_finite() { all.double + all.lost } else { all.double }
    }

    fn decimals(&self, decimal: Decimal) -> Decimal {
        let whole = match i64::try_from(self.whole) {
            Ok(whole) => Decimal::from(whole),
            Err(_) => Decimal::from_f64_precise(self.whole as f64),
        };
        let doubles =
            if self.has_double { Decimal::from_f64(self.double + self.lost) } else { Decimal::from(0i64) };
        decimal + whole + doubles
    }

    /// The sum: an int if all were ints and it fits, a long, a double, a decimal.
    pub(crate) fn sum(&self) -> Owned {
        if let Some(decimal) = self.decimal {
            return Owned::Decimal128(self.decimals(decimal).encode());
        }
        if self.has_double {
            return Owned::Double(self.doubles());
        }
        match (self.has_long, i32::try_from(self.whole), i64::try_from(self.whole)) {
            (false, Ok(int), _) => Owned::Int32(int),
            (_, _, Ok(long)) => Owned::Int64(long),
            _ => Owned::Double(self.whole as f64),
        }
    }

    /// The average, or null if there was no number.
    pub(crate) fn average(&self) -> Owned {
        match (self.count, self.decimal) {
            (0, _) => Owned::Null,
            (count, Some(decimal)) => {
                Owned::Decimal128((self.decimals(decimal) / Decimal::from(count)).encode())
            }
            (count, None) => Owned::Double(self.doubles() / count as f64),
        }
    }
}

/// A standard deviation, computed in one pass (Welford).
#[derive(Clone, Debug, Default)]
pub(crate) struct Deviation {
    count: i64,
    mean: f64,
    squares: f64,
}

impl Deviation {
    pub(crate) fn add(&mut self, value: Value<'_>) {
        let Some(number) = Number::from_value(value) else { return };
        self.count += 1;
        let delta = number.as_f64() - self.mean;
        if delta != 0.0 {
            self.mean += delta / self.count as f64;
            self.squares += delta * (number.as_f64() - self.mean);
        }
    }

    /// Of the whole population; null without numbers.
    pub(crate) fn population(&self) -> Owned {
        match self.count {
            0 => Owned::Null,
            count => Owned::Double((self.squares / count as f64).sqrt()),
        }
    }

    /// Of a sample; null with fewer than two numbers.
    pub(crate) fn sample(&self) -> Owned {
        match self.count {
            0 | 1 => Owned::Null,
            count => Owned::Double((self.squares / (count - 1) as f64).sqrt()),
        }
    }
}
