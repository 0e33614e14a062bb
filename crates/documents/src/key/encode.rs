//! The order-preserving encoding of values.
//!
//! ```text
//! class byte | payload
//! numbers     8 bytes, big-endian: (double bits or integer) << 1 | more; then, if more, 17 bytes of decimal.
//!             Below 2^53 the nearest double towards zero, below 2^63 the integral part, above again the
//!             double. Negative numbers: all payload bits inverted.
//! text        bytes, 00 written as 00 FF, then 00 00
//! binary      length (1 byte, or FF and 4 bytes), subtype, bytes
//! documents   per field: class of the type, name, 00, value; then 00
//! arrays      per element: value; then 00
//! dates       8 bytes, sign bit flipped;   timestamps 8 bytes;   object ids 12 bytes
//! ```
//!
//! Invariants
//! * `encode(a) < encode(b)` bytewise exactly if `a < b`; equal values of different types have equal bytes.
//! * No encoding is the beginning of another one, so keys of several values concatenate, and all bytes may
//!   be inverted for descending order.
//! * No encoding, inverted or not, starts with `00` or `FF`: `FF` behind a value is above all that follows it.
//!
//! The encoding lives in memory only; no file holds it.

use crate::collation::Collation;
use crate::compare::type_order;
use crate::decimal::Decimal;
use crate::doc::RawDoc;
use crate::value::{Kind, Value, decode};
use std::hash::Hasher;

/// A byte above every first byte of an encoding: `value FF` bounds all keys that begin with the value.
pub const END: u8 = 0xFF;

const NAN: u8 = 0x20;
const NEGATIVE_HUGE: u8 = 0x21;
const NEGATIVE_LARGE: u8 = 0x22;
const NEGATIVE: u8 = 0x23;
const POSITIVE: u8 = 0x24;
const POSITIVE_LARGE: u8 = 0x25;
const POSITIVE_HUGE: u8 = 0x26;

/// 2^53: below it every integer is a double.
const EXACT_END: f64 = 9_007_199_254_740_992.0;
/// 2^63.
const LARGE_END: f64 = 9_223_372_036_854_775_808.0;

/// The class bytes of a type: those that its encodings start with lie strictly between the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// Below every encoding of the type and above, or equal to, every encoding of lesser types.
    pub below: u8,
    /// Above every encoding of the type and below every encoding of greater types.
    pub above: u8,
}

impl Class {
    /// The class of a type. That of numbers leaves out NaN, which no range of numbers holds.
    pub fn of(kind: Kind) -> Class {
        match first_byte(kind) {
            NAN => Class { below: NAN, above: POSITIVE_HUGE + 1 },
            first => Class { below: first - 1, above: first + 2 },
        }
    }
}

/// The first byte of a type's encodings; numbers and booleans have several, from this one on.
fn first_byte(kind: Kind) -> u8 {
    match type_order(kind) {
        order @ 1..=3 => order * 8, // MinKey, undefined, null
        4 => NAN,                   // to POSITIVE_HUGE
        17 => 0xF0,                 // MaxKey
        order => 0x30 + (order - 5) * 8,
    }
}

/// Where encoded bytes go.
trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

struct HashSink<'h, H>(&'h mut H);

impl<H: Hasher> Sink for HashSink<'_, H> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }
}

/// Appends the encoding of a value.
#[inline]
pub fn encode_key(value: Value<'_>, out: &mut Vec<u8>) {
    encode(value, None, out);
}

/// Appends the encoding of a value, its text in the order of a collation.
pub fn encode_key_with(value: Value<'_>, collation: Option<&Collation>, out: &mut Vec<u8>) {
    encode(value, collation, out);
}

/// Appends the encoding of an element's value, given as its type byte and bytes.
#[inline]
pub(super) fn encode_raw(kind: u8, raw: &[u8], out: &mut Vec<u8>) {
    // Text orders by its bytes, so that it need not be read as text.
    match raw.get(4..raw.len().wrapping_sub(1)) {
        Some(bytes) if kind == Kind::String as u8 => {
            out.push(first_byte(Kind::String));
            text(bytes, out);
        }
        _ => encode(decode(kind, raw), None, out),
    }
}

/// Turns ascending into descending encodings and back.
pub fn invert(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

/// Feeds a value to a hasher so that values which compare equal hash equal.
pub fn hash_value(value: Value<'_>, collation: Option<&Collation>, hasher: &mut impl Hasher) {
    encode(value, collation, &mut HashSink(hasher));
}

fn encode(value: Value<'_>, collation: Option<&Collation>, out: &mut impl Sink) {
    let first = first_byte(value.kind());
    match value {
        Value::MinKey | Value::Undefined | Value::Null | Value::MaxKey => out.put(&[first]),
        Value::Int32(v) => integer(i64::from(v), out),
        Value::Int64(v) => integer(v, out),
        Value::Double(v) => double(v, out),
        Value::Decimal128(v) => decimal(v.decode(), out),
        Value::String(v) | Value::Symbol(v) => {
            out.put(&[first]);
            match collation {
                None => text(v.as_bytes(), out),
                Some(collation) => {
                    let mut key = Vec::with_capacity(v.len() * 2);
                    collation.sort_key(v, &mut key);
                    text(&key, out);
                }
            }
        }
        Value::Code(v) => {
            out.put(&[first]);
            text(v.as_bytes(), out);
        }
        Value::Document(v) => {
            out.put(&[first]);
            document(v, collation, out);
        }
        Value::Array(v) => {
            out.put(&[first]);
            v.values().for_each(|value| encode(value, collation, out));
            out.put(&[0]);
        }
        Value::Binary { subtype, bytes } => {
            out.put(&[first]);
            length(bytes.len(), out);
            out.put(&[subtype]);
            out.put(bytes);
        }
        Value::ObjectId(v) => {
            let mut bytes = [first; 13];
            bytes[1..].copy_from_slice(&v.0);
            out.put(&bytes);
        }
        Value::Bool(v) => out.put(&[first + u8::from(v)]),
        Value::DateTime(v) => word(first, (v as u64) ^ (1 << 63), out),
        Value::Timestamp(v) => word(first, v.bits(), out),
        Value::Regex { pattern, options } => {
            out.put(&[first]);
            text(pattern.as_bytes(), out);
            text(options.as_bytes(), out);
        }
        Value::DbPointer { namespace, id } => {
            out.put(&[first]);
            length(namespace.len(), out);
            out.put(namespace.as_bytes());
            out.put(&id.0);
        }
        Value::CodeWithScope { code, scope } => {
            out.put(&[first]);
            text(code.as_bytes(), out);
            document(scope, collation, out);
        }
    }
}

fn document(doc: RawDoc<'_>, collation: Option<&Collation>, out: &mut impl Sink) {
    for element in doc {
        out.put(&[first_byte(element.kind())]);
        out.put(element.key_bytes());
        out.put(&[0]);
        encode(element.value(), collation, out);
    }
    out.put(&[0]);
}

fn text(mut bytes: &[u8], out: &mut impl Sink) {
    while let Some(zero) = memchr::memchr(0, bytes) {
        out.put(&bytes[..zero]);
        out.put(&[0, 0xFF]);
        bytes = &bytes[zero + 1..];
    }
    out.put(bytes);
    out.put(&[0, 0]);
}

fn length(length: usize, out: &mut impl Sink) {
    match u8::try_from(length) {
        Ok(short) if short < 0xFF => out.put(&[short]),
        _ => {
            out.put(&[0xFF]);
            out.put(&(length as u32).to_be_bytes());
        }
    }
}

/// A first byte and eight more.
#[inline]
fn word(first: u8, payload: u64, out: &mut impl Sink) {
    let mut bytes = [first; 9];
    bytes[1..].copy_from_slice(&payload.to_be_bytes());
    out.put(&bytes);
}

#[inline]
fn integer(number: i64, out: &mut impl Sink) {
    let magnitude = number.unsigned_abs();
    if magnitude < EXACT_END as u64 {
        small(number < 0, magnitude as f64, out);
    } else if magnitude < LARGE_END as u64 {
        large(number < 0, magnitude, out);
    } else {
        huge(number < 0, magnitude as f64, out);
    }
}

fn double(number: f64, out: &mut impl Sink) {
    let (negative, magnitude) = (number < 0.0, number.abs());
    if number.is_nan() {
        out.put(&[NAN]);
    } else if magnitude < EXACT_END {
        small(negative, magnitude, out);
    } else if magnitude < LARGE_END {
        large(negative, magnitude as u64, out);
    } else {
        huge(negative, magnitude, out);
    }
}

fn small(negative: bool, magnitude: f64, out: &mut impl Sink) {
    let bits = magnitude.to_bits() << 1;
    if negative { word(NEGATIVE, !bits, out) } else { word(POSITIVE, bits, out) }
}

fn large(negative: bool, magnitude: u64, out: &mut impl Sink) {
    let bits = magnitude << 1;
    if negative { word(NEGATIVE_LARGE, !bits, out) } else { word(POSITIVE_LARGE, bits, out) }
}

fn huge(negative: bool, magnitude: f64, out: &mut impl Sink) {
    let bits = magnitude.to_bits() << 1;
    if negative { word(NEGATIVE_HUGE, !bits, out) } else { word(POSITIVE_HUGE, bits, out) }
}

fn decimal(number: Decimal, out: &mut impl Sink) {
    let negative = number.is_negative();
    let magnitude = number.abs();
    match number {
        Decimal::NaN => return out.put(&[NAN]),
        Decimal::Infinity { .. } => return huge(negative, f64::INFINITY, out),
        Decimal::Finite { coefficient: 0, .. } => return small(false, 0.0, out),
        Decimal::Finite { .. } => {}
    }
    let floor = double_below(magnitude);
    let (class, whole, exact) = if floor < EXACT_END {
        ([NEGATIVE, POSITIVE], floor.to_bits(), Decimal::from_f64_precise(floor))
    } else if floor < LARGE_END {
        // Below 2^63 the integral part fits.
        let whole = magnitude.to_i64().unwrap_or_default();
        ([NEGATIVE_LARGE, POSITIVE_LARGE], whole as u64, Decimal::from(whole))
    } else {
        ([NEGATIVE_HUGE, POSITIVE_HUGE], floor.to_bits(), Decimal::from_f64_precise(floor))
    };
    let more = exact.compare(magnitude).is_ne();
    let bits = whole << 1 | u64::from(more);
    word(class[usize::from(!negative)], if negative { !bits } else { bits }, out);
    if more {
        let mut tail = decimal_tail(magnitude);
        if negative {
            invert(&mut tail);
        }
        out.put(&tail);
    }
}

/// The largest double that compares as not above a positive decimal.
fn double_below(magnitude: Decimal) -> f64 {
    let nearest = magnitude.to_f64();
    if Decimal::from_f64_precise(nearest).compare(magnitude).is_gt() { nearest.next_down() } else { nearest }
}

/// A positive decimal as 2 bytes of exponent and 15 bytes of a 34-digit coefficient, which order by value.
fn decimal_tail(magnitude: Decimal) -> [u8; 17] {
    let (exponent, coefficient) = magnitude.magnitude();
    let mut tail = [0; 17];
    tail[..2].copy_from_slice(&((exponent + 0x4000) as u16).to_be_bytes());
    tail[2..].copy_from_slice(&coefficient.to_be_bytes()[1..]);
    tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::value;
    use crate::compare::compare;
    use crate::{Decimal128, ObjectId, Owned};

    fn encoded(value: &Owned) -> Vec<u8> {
        let mut out = Vec::new();
        encode_key(value.value(), &mut out);
        out
    }

    #[test]
    fn keys_are_short() {
        let cases = [
            (Owned::Int32(5), 9),
            (Owned::Int64(i64::MAX), 9),
            (Owned::Double(0.1), 9),
            (Owned::DateTime(1), 9),
            (Owned::ObjectId(ObjectId([9; 12])), 13),
            (Owned::Bool(true), 1),
            (Owned::Null, 1),
            (Owned::String("abc".into()), 6),
        ];
        for (value, size) in cases {
            assert_eq!(encoded(&value).len(), size, "{value:?}");
        }
    }

    #[test]
    fn classes_enclose_their_types() {
        for value in crate::compare::tests::ladder().into_iter().flatten() {
            let (class, key) = (Class::of(value.value().kind()), encoded(&value));
            let inside = key[0] > class.below && key[0] < class.above;
            assert_eq!(inside, !crate::number::is_nan(value.value()), "{value:?}");
        }
    }

    #[test]
    fn equal_numbers_hash_equal() {
        use std::hash::{DefaultHasher, Hasher};
        let hash = |value: Value<'_>| {
            let mut hasher = DefaultHasher::new();
            hash_value(value, None, &mut hasher);
            hasher.finish()
        };
        let one = hash(Value::Int32(1));
        assert_eq!(hash(Value::Double(1.0)), one);
        assert_eq!(hash(Value::Decimal128(Decimal128::parse("1.00").unwrap())), one);
        assert_ne!(hash(Value::Int32(2)), one);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1500))]
        #[test]
        fn bytes_order_like_values(a in value(), b in value()) {
            let expected = compare(a.value(), b.value());
            let (x, y) = (encoded(&a), encoded(&b));
            proptest::prop_assert_eq!(x.cmp(&y), expected, "{:?} {:?}", &a, &b);
            proptest::prop_assert_eq!(x.starts_with(&y), expected.is_eq());
            let (mut p, mut q) = (x, y);
            invert(&mut p);
            invert(&mut q);
            proptest::prop_assert_eq!(p.cmp(&q), expected.reverse());
        }

        #[test]
        fn decimals_order_among_doubles(bits: u64, step in -2i32..3) {
            // A decimal within a few units of the 34th digit of a double.
            let double = f64::from_bits(bits);
            proptest::prop_assume!(double.is_finite());
            let near = match Decimal::from_f64_precise(double) {
                Decimal::Finite { negative, coefficient, exponent } => Decimal::Finite {
                    negative,
                    coefficient: coefficient.saturating_add_signed(i128::from(step)),
                    exponent,
                },
                other => other,
            };
            let (a, b) = (Owned::Double(double), Owned::Decimal128(near.encode()));
            proptest::prop_assert_eq!(encoded(&a).cmp(&encoded(&b)), compare(a.value(), b.value()));
        }
    }
}
