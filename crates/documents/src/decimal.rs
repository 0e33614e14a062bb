//! Decimal128 (IEEE 754-2008, 34 decimal digits, BID encoding) as numbers: parts, text, arithmetic.
//!
//! Invariants
//! * A finite number is `coefficient * 10^exponent` with a coefficient below `10^34`.
//! * Every result is the exact one rounded once, half to even; what is too large becomes infinite, what is
//!   too small becomes zero.
//!
//! Nothing here panics or allocates, except the conversion to text.

use crate::types::Decimal128;
use crate::wide::Wide;
use std::cmp::Ordering;
use std::fmt::{self, Write};
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

/// Digits of the coefficient.
const DIGITS: u32 = 34;
/// One more than the largest coefficient.
const LIMIT: u128 = 10u128.pow(DIGITS);
/// Smallest and largest exponent of the coefficient's last digit.
const EXPONENT_MIN: i32 = -6176;
const EXPONENT_MAX: i32 = 6111;

/// The number that a [`Decimal128`] stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decimal {
    /// `±coefficient * 10^exponent`; zeros keep sign and exponent.
    Finite {
        /// Whether the sign is minus.
        negative: bool,
        /// Below `10^34`.
        coefficient: u128,
        /// Of the coefficient's last digit.
        exponent: i32,
    },
    /// Positive or negative infinity.
    Infinity {
        /// Whether the sign is minus.
        negative: bool,
    },
    /// Not a number.
    NaN,
}

/// How a number that falls between two representable ones is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// To the nearest, ties to the even digit.
    HalfEven,
    /// Towards zero.
    Truncate,
    /// Towards negative infinity.
    Floor,
    /// Towards positive infinity.
    Ceiling,
}

impl Decimal128 {
    /// The number these bytes stand for. Coefficients too large to be canonical are zero (IEEE 754-2008 3.5.2).
    pub fn decode(self) -> Decimal {
        let bits = u128::from_le_bytes(self.0);
        let negative = bits >> 127 == 1;
        let top = (bits >> 122) as u32 & 0x1F;
        match top {
            0x1F => Decimal::NaN,
            0x1E => Decimal::Infinity { negative },
            _ if top >> 3 == 3 => {
                let exponent = ((bits >> 111) as i32 & 0x3FFF) + EXPONENT_MIN;
                Decimal::Finite { negative, coefficient: 0, exponent }
            }
            _ => {
                let exponent = ((bits >> 113) as i32 & 0x3FFF) + EXPONENT_MIN;
                let coefficient = bits & ((1 << 113) - 1);
                let coefficient = if coefficient < LIMIT { coefficient } else { 0 };
                Decimal::Finite { negative, coefficient, exponent }
            }
        }
    }

    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        self.decode().to_f64()
    }

    /// The number written as text, such as `-1.5`, `2E+3`, `Infinity`, `NaN`; what has more than 34 digits is
    /// rounded. `None` if it is anything else.
    pub fn parse(text: &str) -> Option<Decimal128> {
        Decimal::parse(text).map(Decimal::encode)
    }
}

impl From<i64> for Decimal128 {
    fn from(value: i64) -> Decimal128 {
        Decimal::from(value).encode()
    }
}

impl fmt::Display for Decimal128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.decode().fmt(f)
    }
}

impl From<i64> for Decimal {
    fn from(value: i64) -> Decimal {
        let coefficient = u128::from(value.unsigned_abs());
        Decimal::Finite { negative: value < 0, coefficient, exponent: 0 }
    }
}

impl Decimal {
    /// Positive zero.
    pub const ZERO: Decimal = Decimal::Finite { negative: false, coefficient: 0, exponent: 0 };

    /// The encoding.
    pub fn encode(self) -> Decimal128 {
        let bits = match self {
            Decimal::NaN => 0x1F << 122,
            Decimal::Infinity { negative } => sign_bit(negative) | 0x1E << 122,
            Decimal::Finite { negative, coefficient, exponent } => {
                // Finite numbers made by this module hold the invariants; others are brought to them here.
                match finish(negative, Wide::from(coefficient), exponent, false) {
                    Decimal::Finite { coefficient, exponent, .. } => {
                        sign_bit(negative) | ((exponent - EXPONENT_MIN) as u128) << 113 | coefficient
                    }
                    special => return special.encode(),
                }
            }
        };
        Decimal128(bits.to_le_bytes())
    }

    /// A double as MongoDB converts it in expressions: rounded to, and padded to, 15 digits.
    pub fn from_f64(value: f64) -> Decimal {
        Decimal::from_f64_digits(value, 15)
    }

    /// A double as it compares with decimals: rounded to 34 digits.
    pub fn from_f64_precise(value: f64) -> Decimal {
        Decimal::from_f64_digits(value, 34)
    }

    fn from_f64_digits(value: f64, digits: usize) -> Decimal {
        if value.is_nan() {
            return Decimal::NaN;
        }
        if value.is_infinite() {
            return Decimal::Infinity { negative: value < 0.0 };
        }
        if value == 0.0 {
            return Decimal::Finite { negative: value.is_sign_negative(), coefficient: 0, exponent: 0 };
        }
        let mut text = Text::<64>::default();
        let _ = write!(text, "{value:.*e}", digits - 1);
        Decimal::parse(text.as_str()).unwrap_or(Decimal::NaN)
    }

    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        match self {
            Decimal::NaN => f64::NAN,
            Decimal::Infinity { negative: false } => f64::INFINITY,
            Decimal::Infinity { negative: true } => f64::NEG_INFINITY,
            Decimal::Finite { negative, coefficient, exponent } => {
                let mut text = Text::<64>::default();
                let _ = write!(text, "{coefficient}e{exponent}");
                let magnitude = text.as_str().parse().unwrap_or(f64::NAN);
                if negative { -magnitude } else { magnitude }
            }
        }
    }

    /// The integral part, if an int64 can hold it.
    pub fn to_i64(self) -> Option<i64> {
        match self.round(0, Rounding::Truncate) {
            Decimal::Finite { coefficient: 0, .. } => Some(0),
            Decimal::Finite { negative, coefficient, exponent: exponent @ 0..=18 } => {
                let magnitude = i128::try_from(coefficient.checked_mul(power(exponent as u32))?).ok()?;
                i64::try_from(if negative { -magnitude } else { magnitude }).ok()
            }
            _ => None,
        }
    }

    /// Whether it is zero, of either sign.
    pub fn is_zero(self) -> bool {
        matches!(self, Decimal::Finite { coefficient: 0, .. })
    }

    /// Whether it is NaN.
    pub fn is_nan(self) -> bool {
        self == Decimal::NaN
    }

    /// Whether the sign is minus (also of zero and infinity).
    pub fn is_negative(self) -> bool {
        matches!(self, Decimal::Finite { negative: true, .. } | Decimal::Infinity { negative: true })
    }

    /// Whether it is finite and has no fraction.
    pub fn is_integral(self) -> bool {
        matches!(self, Decimal::Finite { .. })
            && self.round(0, Rounding::Truncate).compare(self) == Ordering::Equal
    }

    /// Order by value: NaN first, zeros of both signs and all exponents equal.
    pub fn compare(self, other: Decimal) -> Ordering {
        let (a, b) = (self.rank(), other.rank());
        if a != b || a.abs() != 1 {
            return a.cmp(&b);
        }
        let order = self.magnitude().cmp(&other.magnitude());
        if a < 0 { order.reverse() } else { order }
    }

    /// NaN -3, infinities ±2, finite numbers ±1, zero 0.
    fn rank(self) -> i8 {
        match self {
            Decimal::NaN => -3,
            Decimal::Infinity { negative } => {
                if negative {
                    -2
                } else {
                    2
                }
            }
            Decimal::Finite { coefficient: 0, .. } => 0,
            Decimal::Finite { negative, .. } => {
                if negative {
                    -1
                } else {
                    1
                }
            }
        }
    }

    /// The absolute value as (exponent, coefficient) with a 34-digit coefficient, which orders by value.
    /// Zero and special numbers have the least.
    pub(crate) fn magnitude(self) -> (i32, u128) {
        match self {
            Decimal::Finite { coefficient, exponent, .. } if coefficient > 0 => {
                let shift = DIGITS - digits(coefficient);
                (exponent - shift as i32, coefficient * power(shift))
            }
            _ => (i32::MIN, 0),
        }
    }

    /// The absolute value.
    pub fn abs(self) -> Decimal {
        if self.is_negative() { -self } else { self }
    }

    /// The number with at most `places` digits after the point (before it, if negative).
    pub fn round(self, places: i32, rounding: Rounding) -> Decimal {
        let Decimal::Finite { negative, coefficient, exponent } = self else { return self };
        let drop = places.saturating_neg().saturating_sub(exponent);
        if drop <= 0 {
            return self;
        }
        let (kept, rest, half) = if drop > DIGITS as i32 {
            (0, coefficient, u128::MAX)
        } else {
            let unit = power(drop as u32);
            (coefficient / unit, coefficient % unit, unit / 2)
        };
        let up = match rounding {
            Rounding::HalfEven => rest > half || (rest == half && kept % 2 == 1),
            Rounding::Truncate => false,
            Rounding::Floor => negative && rest > 0,
            Rounding::Ceiling => !negative && rest > 0,
        };
        let exponent = exponent.saturating_add(drop);
        finish(negative, Wide::from(kept + u128::from(up)), exponent, false)
    }

    fn parse(text: &str) -> Option<Decimal> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        match rest.to_ascii_lowercase().as_str() {
            "infinity" | "inf" => return Some(Decimal::Infinity { negative }),
            "nan" => return Some(Decimal::NaN),
            _ => {}
        }
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
            None => (rest, 0),
        };
        parse_mantissa(negative, mantissa, exponent)
    }
}

impl Neg for Decimal {
    type Output = Decimal;

    /// The negated number.
    fn neg(self) -> Decimal {
        match self {
            Decimal::NaN => Decimal::NaN,
            Decimal::Infinity { negative } => Decimal::Infinity { negative: !negative },
            Decimal::Finite { negative, coefficient, exponent } => {
                Decimal::Finite { negative: !negative, coefficient, exponent }
            }
        }
    }
}

impl Add for Decimal {
    type Output = Decimal;

    /// The sum.
    fn add(self, other: Decimal) -> Decimal {
        use Decimal::{Finite, Infinity, NaN};
        match (self, other) {
            (NaN, _) | (_, NaN) => NaN,
            (Infinity { negative: a }, Infinity { negative: b }) if a != b => NaN,
            (Infinity { .. }, _) => self,
            (_, Infinity { .. }) => other,
            (
                Finite { negative: n, coefficient: c, exponent: e },
                Finite { negative: m, coefficient: d, exponent: f },
            ) => {
                if e >= f {
                    add_aligned((n, c, e), (m, d, f))
                } else {
                    add_aligned((m, d, f), (n, c, e))
                }
            }
        }
    }
}

impl Sub for Decimal {
    type Output = Decimal;

    /// The difference.
    fn sub(self, other: Decimal) -> Decimal {
        self + -other
    }
}

impl Mul for Decimal {
    type Output = Decimal;

    /// The product.
    fn mul(self, other: Decimal) -> Decimal {
        use Decimal::{Finite, Infinity, NaN};
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (NaN, _) | (_, NaN) => NaN,
            (Infinity { .. }, x) | (x, Infinity { .. }) if x.is_zero() => NaN,
            (Infinity { .. }, _) | (_, Infinity { .. }) => Infinity { negative },
            (Finite { coefficient: c, exponent: e, .. }, Finite { coefficient: d, exponent: f, .. }) => {
                finish(negative, Wide::product(c, d), e + f, false)
            }
        }
    }
}

impl Div for Decimal {
    type Output = Decimal;

    /// The quotient; a nonzero number by zero is infinite, zero by zero is NaN.
    fn div(self, other: Decimal) -> Decimal {
        use Decimal::{Finite, Infinity, NaN};
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (NaN, _) | (_, NaN) | (Infinity { .. }, Infinity { .. }) => NaN,
            (Infinity { .. }, _) => Infinity { negative },
            (_, Infinity { .. }) => Finite { negative, coefficient: 0, exponent: EXPONENT_MIN },
            (Finite { coefficient: c, exponent: e, .. }, Finite { coefficient: d, exponent: f, .. }) => {
                match (c, d) {
                    (0, 0) => NaN,
                    (_, 0) => Infinity { negative },
                    _ => quotient(negative, c, d, e - f),
                }
            }
        }
    }
}

impl Rem for Decimal {
    type Output = Decimal;

    /// The remainder of the division truncated towards zero; it has the dividend's sign.
    fn rem(self, other: Decimal) -> Decimal {
        use Decimal::{Finite, Infinity, NaN};
        match (self, other) {
            (NaN | Infinity { .. }, _) | (_, NaN) => NaN,
            (_, Infinity { .. }) => self,
            (_, Finite { coefficient: 0, .. }) => NaN,
            (
                Finite { negative, coefficient: c, exponent: e },
                Finite { coefficient: d, exponent: f, .. },
            ) => {
                if e >= f {
                    // c * 10^(e - f) modulo d, digit by digit so that nothing overflows.
                    let rest = (0..e - f).fold(c % d, |rest, _| rest * 10 % d);
                    Finite { negative, coefficient: rest, exponent: f }
                } else {
                    let shift = (f - e) as u32;
                    let scaled = (shift <= 38).then(|| d.checked_mul(power(shift))).flatten();
                    // A divisor too large to scale is larger than the dividend.
                    let rest = scaled.map_or(c, |divisor| c % divisor);
                    Finite { negative, coefficient: rest, exponent: e }
                }
            }
        }
    }
}

impl fmt::Display for Decimal {
    /// The text form of the General Decimal Arithmetic specification ("to-scientific-string").
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minus = if self.is_negative() { "-" } else { "" };
        let (coefficient, exponent) = match *self {
            Decimal::NaN => return f.write_str("NaN"),
            Decimal::Infinity { .. } => return write!(f, "{minus}Infinity"),
            Decimal::Finite { coefficient, exponent, .. } => (coefficient.to_string(), exponent),
        };
        let leading = exponent + coefficient.len() as i32 - 1; // exponent of the first digit
        if exponent > 0 || leading < -6 {
            let (first, rest) = coefficient.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            return write!(f, "{minus}{first}{point}{rest}E{leading:+}");
        }
        if exponent == 0 {
            return write!(f, "{minus}{coefficient}");
        }
        if leading >= 0 {
            let (whole, fraction) = coefficient.split_at(leading as usize + 1);
            write!(f, "{minus}{whole}.{fraction}")
        } else {
            write!(f, "{minus}0.{:0>width$}", coefficient, width = -exponent as usize)
        }
    }
}

fn sign_bit(negative: bool) -> u128 {
    u128::from(negative) << 127
}

/// `10^n` for `n <= 38`.
fn power(n: u32) -> u128 {
    10u128.pow(n)
}

/// How many decimal digits a number has (zero has one).
fn digits(number: u128) -> u32 {
    number.checked_ilog10().map_or(1, |log| log + 1)
}

/// An exponent as text; absurdly large ones saturate.
fn parse_exponent(text: &str) -> Option<i32> {
    let (negative, number) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let magnitude = number.parse().unwrap_or(1_000_000).min(1_000_000);
    Some(if negative { -magnitude } else { magnitude })
}

/// Digits with at most one point. Digits beyond what 128 bits hold count only towards rounding.
fn parse_mantissa(negative: bool, text: &str, exponent: i32) -> Option<Decimal> {
    let (mut coefficient, mut exponent, mut sticky) = (0u128, i64::from(exponent), false);
    let (mut seen, mut point) = (false, false);
    for byte in text.bytes() {
        match byte {
            b'.' if !point => point = true,
            b'0'..=b'9' => {
                seen = true;
                let digit = u128::from(byte - b'0');
                if coefficient < LIMIT * 100 {
                    coefficient = coefficient * 10 + digit;
                    exponent -= i64::from(point);
                } else {
                    sticky |= digit > 0;
                    exponent += i64::from(!point);
                }
            }
            _ => return None,
        }
    }
    let exponent = exponent.clamp(-10_000_000, 10_000_000) as i32;
    seen.then(|| finish(negative, Wide::from(coefficient), exponent, sticky))
}

/// Brings a number of any size into range: rounds to 34 digits half to even (`sticky`: a little more than the
/// coefficient says), moves the exponent into its range.
fn finish(negative: bool, mut number: Wide, mut exponent: i32, mut sticky: bool) -> Decimal {
    let mut excess = number.digits().saturating_sub(DIGITS) as i32;
    excess = excess.max(EXPONENT_MIN.saturating_sub(exponent).clamp(0, 80));
    if excess > 0 {
        // Drop all but one digit, remember whether they mattered, then decide by the last one.
        for _ in 1..excess {
            sticky |= number.divide_small(10) > 0;
        }
        let last = number.divide_small(10);
        exponent = exponent.saturating_add(excess);
        let odd = number.is_odd();
        if last > 5 || (last == 5 && (sticky || odd)) {
            number.add_small(1);
        }
        if number.digits() > DIGITS {
            number.divide_small(10);
            exponent = exponent.saturating_add(1);
        }
    }
    let mut coefficient = number.low();
    if coefficient == 0 {
        exponent = exponent.clamp(EXPONENT_MIN, EXPONENT_MAX);
    }
    while exponent > EXPONENT_MAX && coefficient < LIMIT / 10 {
        coefficient *= 10;
        exponent -= 1;
    }
    if exponent > EXPONENT_MAX {
        return Decimal::Infinity { negative };
    }
    Decimal::Finite { negative, coefficient, exponent: exponent.max(EXPONENT_MIN) }
}

/// A sign, a coefficient and an exponent.
type Parts = (bool, u128, i32);

/// The sum of two finite numbers, the first with the larger exponent.
fn add_aligned((n, mut c, mut e): Parts, (m, mut d, mut f): Parts) -> Decimal {
    if d == 0 && c == 0 {
        return Decimal::Finite { negative: n && m, coefficient: 0, exponent: f };
    }
    if c == 0 {
        return Decimal::Finite { negative: m, coefficient: d, exponent: f };
    }
    let room = (DIGITS - digits(c)).min((e - f) as u32);
    c *= power(room);
    e -= room as i32;
    if d == 0 {
        return Decimal::Finite { negative: n, coefficient: c, exponent: e };
    }
    if e - f > DIGITS as i32 + 2 {
        // The second is below a hundredth of the first's last digit: only its sign matters for rounding.
        (d, f) = (1, e - 3);
    }
    let mut a = Wide::from(c);
    for _ in 0..e - f {
        a.multiply_small(10);
    }
    let b = Wide::from(d);
    if n == m {
        return finish(n, a.plus(b), f, false);
    }
    match a.cmp(&b) {
        Ordering::Equal => Decimal::Finite { negative: false, coefficient: 0, exponent: f },
        Ordering::Greater => finish(n, a.minus(b), f, false),
        Ordering::Less => finish(m, b.minus(a), f, false),
    }
}

/// The quotient of two coefficients (`d` is not zero), with the exponent it has if it is integral.
fn quotient(negative: bool, c: u128, d: u128, mut exponent: i32) -> Decimal {
    let (mut number, mut rest) = (c / d, c % d);
    while rest > 0 && number < LIMIT * 10 {
        rest *= 10;
        number = number * 10 + rest / d;
        rest %= d;
        exponent -= 1;
    }
    finish(negative, Wide::from(number), exponent, rest > 0)
}

/// Text of at most `N` bytes on the stack.
struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Text<N> {
        Text { bytes: [0; N], length: 0 }
    }
}

impl<const N: usize> Text<N> {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal128::parse(text).unwrap_or_else(|| panic!("{text}")).decode()
    }

    #[test]
    fn text_survives_and_agrees_with_the_reference_decoder() {
        let cases = [
            "0",
            "-0",
            "1",
            "-1.5",
            "0.001234",
            "1E+3",
            "1.2345E-7",
            "0E-6176",
            "9.999999999999999999999999999999999E+6144",
            "1E-6176",
            "Infinity",
            "-Infinity",
            "NaN",
            "0.000001",
            "1.000E+10",
            "1234567890123456789012345678901234",
        ];
        for text in cases {
            let bits = Decimal128::parse(text).unwrap();
            assert_eq!(bits.to_string(), text);
            assert_eq!(bson::Decimal128::from_bytes(bits.0).to_string(), text);
            if let Ok(theirs) = text.parse::<bson::Decimal128>() {
                assert_eq!(bits.0, theirs.bytes(), "{text}");
            }
            assert_eq!(bits.decode().encode(), bits);
        }
        for text in ["", "-", ".", "1e", "e5", "1.2.3", "abc", "1e5x", "--1", " 1"] {
            assert_eq!(Decimal128::parse(text), None, "{text}");
        }
        let long = decimal("0.12345678901234567890123456789012345678901234567890");
        assert_eq!(long.to_string(), "0.1234567890123456789012345678901235");
        assert_eq!(decimal("1E+99999"), Decimal::Infinity { negative: false });
        assert!(decimal("1E-99999").is_zero());
        assert_eq!(decimal("1E+6112").to_string(), "1.0E+6112");
    }

    #[test]
    fn arithmetic() {
        type Operation = fn(Decimal, Decimal) -> Decimal;
        let cases: [(&str, Operation, &str, &str); 24] = [
            ("1", Decimal::add, "2", "3"),
            ("1.10", Decimal::add, "2", "3.10"),
            ("1", Decimal::sub, "1", "0"),
            ("0.1", Decimal::sub, "0.3", "-0.2"),
            ("1E+40", Decimal::add, "1", "1.000000000000000000000000000000000E+40"),
            ("1E+40", Decimal::sub, "1E-40", "1.000000000000000000000000000000000E+40"),
            (
                "9999999999999999999999999999999999",
                Decimal::add,
                "1",
                "1.000000000000000000000000000000000E+34",
            ),
            (
                "9999999999999999999999999999999999",
                Decimal::add,
                "0.5",
                "1.000000000000000000000000000000000E+34",
            ),
            (
                "1000000000000000000000000000000000",
                Decimal::sub,
                "1E-20",
                "1000000000000000000000000000000000",
            ),
            ("Infinity", Decimal::sub, "Infinity", "NaN"),
            ("1.5", Decimal::mul, "1.5", "2.25"),
            ("-3", Decimal::mul, "0", "-0"),
            (
                "9999999999999999999999999999999999",
                Decimal::mul,
                "9999999999999999999999999999999999",
                "9.999999999999999999999999999999998E+67",
            ),
            ("1E+6000", Decimal::mul, "1E+6000", "Infinity"),
            ("1E-6000", Decimal::mul, "1E-6000", "0E-6176"),
            ("0", Decimal::mul, "Infinity", "NaN"),
            ("1", Decimal::div, "3", "0.3333333333333333333333333333333333"),
            ("2", Decimal::div, "3", "0.6666666666666666666666666666666667"),
            ("6", Decimal::div, "2", "3"),
            ("1", Decimal::div, "8", "0.125"),
            ("1", Decimal::div, "0", "Infinity"),
            ("0", Decimal::div, "0", "NaN"),
            ("7.5", Decimal::rem, "2", "1.5"),
            ("-1E+30", Decimal::rem, "7", "-1"),
        ];
        for (a, operate, b, expected) in cases {
            assert_eq!(operate(decimal(a), decimal(b)).to_string(), expected, "{a} and {b}");
        }
    }

    #[test]
    fn rounding() {
        let cases = [
            ("2.5", 0, Rounding::HalfEven, "2"),
            ("3.5", 0, Rounding::HalfEven, "4"),
            ("-2.7", 0, Rounding::Truncate, "-2"),
            ("-2.1", 0, Rounding::Floor, "-3"),
            ("2.1", 0, Rounding::Ceiling, "3"),
            ("1.2345", 2, Rounding::HalfEven, "1.23"),
            ("1250", -2, Rounding::HalfEven, "1.2E+3"),
            ("5E-50", 0, Rounding::HalfEven, "0"),
            ("5E-50", 0, Rounding::Ceiling, "1"),
        ];
        for (number, places, rounding, expected) in cases {
            assert_eq!(decimal(number).round(places, rounding).to_string(), expected, "{number} {places}");
        }
    }

    #[test]
    fn doubles_and_integers() {
        assert_eq!(Decimal::from_f64(0.1).to_string(), "0.100000000000000");
        assert_eq!(Decimal::from_f64(-2.5).to_string(), "-2.50000000000000");
        assert_eq!(Decimal::from_f64_precise(0.1).to_string(), "0.1000000000000000055511151231257827");
        assert_eq!(Decimal::from_f64(f64::MIN_POSITIVE).to_f64(), 2.22507385850720e-308);
        assert_eq!(decimal("-1.25").to_f64(), -1.25);
        assert_eq!(decimal("1E+400").to_f64(), f64::INFINITY);
        assert_eq!(decimal("-9223372036854775808.9").to_i64(), Some(i64::MIN));
        assert_eq!(decimal("9223372036854775808").to_i64(), None);
        assert_eq!(decimal("12E+2").to_i64(), Some(1200));
        assert!(decimal("1.50E+2").is_integral() && !decimal("1.5").is_integral());
    }

    proptest::proptest! {
        #[test]
        fn integers_add_multiply_and_compare_as_integers(a in -1_000_000_000_000i64..1_000_000_000_000, b: i32) {
            let (x, y, b) = (Decimal::from(a), Decimal::from(i64::from(b)), i64::from(b));
            proptest::prop_assert_eq!((x + y).to_i64(), Some(a + b));
            proptest::prop_assert_eq!((x - y).to_i64(), Some(a - b));
            let product = i128::from(a) * i128::from(b);
            proptest::prop_assert_eq!((x * y).abs().to_string(), product.abs().to_string());
            proptest::prop_assert_eq!((x * y).is_negative(), (a < 0) != (b < 0));
            proptest::prop_assert_eq!(x.compare(y), a.cmp(&b));
            if b != 0 {
                proptest::prop_assert_eq!((x % y).to_i64(), Some(a % b));
            }
        }

        #[test]
        fn any_bits_decode_and_encode_to_the_same_number(bits: u128) {
            let number = Decimal128(bits.to_le_bytes()).decode();
            proptest::prop_assert_eq!(number.encode().decode(), number);
            proptest::prop_assert_eq!(Decimal::parse(&number.to_string()), Some(number));
        }

        #[test]
        fn doubles_survive_34_digits(bits: u64) {
            let value = f64::from_bits(bits);
            let back = Decimal::from_f64_precise(value).to_f64();
            proptest::prop_assert!(back == value || value.is_nan() && back.is_nan());
        }
    }
}
