//! Arithmetic on numbers of four types, with MongoDB's rule for the type of a result.
//!
//! The result has the wider of the operands' types (int < long < double < decimal). An int that overflows
//! becomes a long; a long that overflows is an error in updates and a double in expressions.

use crate::decimal::Decimal;
use crate::number::to_decimal;
use crate::{Owned, Value};

/// A number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Number {
    Int(i32),
    Long(i64),
    Double(f64),
    Decimal(Decimal),
}

impl Number {
    /// The number that a value is, or `None` for other types.
    pub(crate) fn from_value(value: Value<'_>) -> Option<Number> {
        match value {
            Value::Int32(v) => Some(Number::Int(v)),
            Value::Int64(v) => Some(Number::Long(v)),
            Value::Double(v) => Some(Number::Double(v)),
            Value::Decimal128(v) => Some(Number::Decimal(v.decode())),
            _ => None,
        }
    }

    /// The number as a value.
    pub(crate) fn to_owned(self) -> Owned {
        match self {
            Number::Int(v) => Owned::Int32(v),
            Number::Long(v) => Owned::Int64(v),
            Number::Double(v) => Owned::Double(v),
            Number::Decimal(v) => Owned::Decimal128(v.encode()),
        }
    }

    /// Zero of the same type.
    pub(crate) fn zero(self) -> Number {
        match self {
            Number::Int(_) => Number::Int(0),
            Number::Long(_) => Number::Long(0),
            Number::Double(_) => Number::Double(0.0),
            Number::Decimal(_) => Number::Decimal(Decimal::from(0i64)),
        }
    }

    /// The number as a double; longs and decimals may lose precision.
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Number::Int(v) => f64::from(v),
            Number::Long(v) => v as f64,
            Number::Double(v) => v,
            Number::Decimal(v) => v.to_f64(),
        }
    }

    /// The number as a decimal, doubles rounded to 15 digits as MongoDB converts them.
    pub(crate) fn as_decimal(self) -> Decimal {
        match self {
            Number::Decimal(v) => v,
            Number::Double(v) => Decimal::from_f64(v),
            other => to_decimal(other.to_owned().value()).unwrap_or(Decimal::NaN),
        }
    }

    /// The number as a long, cut and saturated (exact for ints and longs).
    pub(crate) fn as_i64(self) -> i64 {
        match self {
            Number::Int(v) => i64::from(v),
            Number::Long(v) => v,
            Number::Double(v) => v as i64,
            Number::Decimal(v) => v.to_i64().unwrap_or(if v.is_negative() { i64::MIN } else { i64::MAX }),
        }
    }

    /// The number as a long, if it is integral and fits.
    pub(crate) fn to_i64_exact(self) -> Option<i64> {
        crate::number::to_integral(self.to_owned().value())
    }

    /// Whether it is zero of any type.
    pub(crate) fn is_zero(self) -> bool {
        match self {
            Number::Int(v) => v == 0,
            Number::Long(v) => v == 0,
            Number::Double(v) => v == 0.0,
            Number::Decimal(v) => v.is_zero(),
        }
    }
}

/// One operation on every pair of types.
struct Operation {
    ints: fn(i32, i32) -> Option<i32>,
    longs: fn(i64, i64) -> Option<i64>,
    doubles: fn(f64, f64) -> f64,
    decimals: fn(Decimal, Decimal) -> Decimal,
}

impl Operation {
    /// The result, or `None` if a long would overflow.
    fn exact(&self, a: Number, b: Number) -> Option<Number> {
        match (a, b) {
            (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
                Some(Number::Decimal((self.decimals)(a.as_decimal(), b.as_decimal())))
            }
            (Number::Double(_), _) | (_, Number::Double(_)) => {
                Some(Number::Double((self.doubles)(a.as_f64(), b.as_f64())))
            }
            (Number::Int(x), Number::Int(y)) => match (self.ints)(x, y) {
                Some(int) => Some(Number::Int(int)),
                None => (self.longs)(i64::from(x), i64::from(y)).map(Number::Long),
            },
            _ => (self.longs)(a.as_i64(), b.as_i64()).map(Number::Long),
        }
    }

    fn widened(&self, a: Number, b: Number) -> Number {
        self.exact(a, b).unwrap_or_else(|| Number::Double((self.doubles)(a.as_f64(), b.as_f64())))
    }
}

const ADD: Operation = Operation {
    ints: i32::checked_add,
    longs: i64::checked_add,
    doubles: |a, b| a + b,
    decimals: |a, b| a + b,
};
const SUBTRACT: Operation = Operation {
    ints: i32::checked_sub,
    longs: i64::checked_sub,
    doubles: |a, b| a - b,
    decimals: |a, b| a - b,
};
const MULTIPLY: Operation = Operation {
    ints: i32::checked_mul,
    longs: i64::checked_mul,
    doubles: |a, b| a * b,
    decimals: |a, b| a * b,
};

/// The sum, or `None` if a long would overflow.
pub(crate) fn add_exact(a: Number, b: Number) -> Option<Number> {
    ADD.exact(a, b)
}

/// The product, or `None` if a long would overflow.
pub(crate) fn multiply_exact(a: Number, b: Number) -> Option<Number> {
    MULTIPLY.exact(a, b)
}

/// The sum; a long that overflows becomes a double.
pub(crate) fn add(a: Number, b: Number) -> Number {
    ADD.widened(a, b)
}

/// The difference; a long that overflows becomes a double.
pub(crate) fn subtract(a: Number, b: Number) -> Number {
    SUBTRACT.widened(a, b)
}

/// The product; a long that overflows becomes a double.
pub(crate) fn multiply(a: Number, b: Number) -> Number {
    MULTIPLY.widened(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_wider_type_and_overflow_widens() {
        use Number::*;
        let cases: &[(Number, Number, Number)] = &[
            (Int(1), Int(2), Int(3)),
            (Int(i32::MAX), Int(1), Long(1 << 31)),
            (Int(1), Long(2), Long(3)),
            (Long(1), Double(0.5), Double(1.5)),
            (Long(i64::MAX), Int(1), Double(9_223_372_036_854_775_808.0)),
        ];
        for (a, b, sum) in cases {
            assert_eq!(add(*a, *b), *sum, "{a:?} + {b:?}");
        }
        assert_eq!(add_exact(Long(i64::MAX), Int(1)), None);
        assert_eq!(multiply(Int(i32::MAX), Int(2)), Long(i64::from(i32::MAX) * 2));
        assert_eq!(subtract(Int(i32::MIN), Int(1)), Long(i64::from(i32::MIN) - 1));
    }
}
