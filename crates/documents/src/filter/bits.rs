//! `$bitsAllSet`, `$bitsAllClear`, `$bitsAnySet`, `$bitsAnyClear`.

use crate::error::{Error, Result};
use crate::filter::types::shown;
use crate::number;
use crate::value::Value;

/// Highest bit position that a filter may name: bounds the memory of a mask (128 KiB), far above any binary
/// field that is tested bit by bit.
const POSITION_MAX: i64 = (1 << 20) - 1;

/// Which bits must be how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitTest {
    /// Every bit of the mask is 1.
    AllSet,
    /// Every bit of the mask is 0.
    AllClear,
    /// Some bit of the mask is 1.
    AnySet,
    /// Some bit of the mask is 0.
    AnyClear,
}

/// The bits that are looked at: bytes, least significant first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitMask(Vec<u8>);

impl BitMask {
    /// Reads a mask: a non-negative integer, binary data, or an array of positions.
    pub(crate) fn parse(operator: &str, value: Value<'_>) -> Result<BitMask> {
        match value {
            Value::Binary { bytes, .. } => Ok(BitMask(bytes.to_vec())),
            Value::Array(positions) => {
                let mut mask = BitMask(Vec::new());
                for position in positions.values() {
                    mask.set(parse_position(position)?);
                }
                Ok(mask)
            }
            value if value.is_number() => match number::to_integral(value) {
                Some(mask) if mask >= 0 => Ok(BitMask(mask.to_le_bytes().to_vec())),
                Some(_) => Err(Error::failed_to_parse(format!(
                    "Expected a non-negative number in: {operator}: {}",
                    shown(value)
                ))),
                None => {
                    Err(Error::failed_to_parse(format!("Expected an integer: {operator}: {}", shown(value))))
                }
            },
            value => Err(Error::bad_value(format!(
                "{operator} takes an Array, a number, or a BinData but received: {operator}: {}",
                shown(value)
            ))),
        }
    }

    fn set(&mut self, position: usize) {
        let byte = position / 8;
        if self.0.len() <= byte {
            self.0.resize(byte + 1, 0);
        }
        self.0[byte] |= 1 << (position % 8);
    }
}

impl BitTest {
    /// Whether a value, an integer or binary data, passes.
    pub(crate) fn holds(self, mask: &BitMask, value: Value<'_>) -> bool {
        match value {
            Value::Binary { bytes, .. } => self.holds_bytes(mask, bytes, 0),
            value if value.is_number() => match number::to_integral(value) {
                // Negative numbers go on with ones for ever.
                Some(number) => {
                    self.holds_bytes(mask, &number.to_le_bytes(), if number < 0 { 0xFF } else { 0 })
                }
                None => false,
            },
            _ => false,
        }
    }

    fn holds_bytes(self, mask: &BitMask, bytes: &[u8], beyond: u8) -> bool {
        let mut pairs =
            mask.0.iter().enumerate().map(|(n, mask)| (*mask, bytes.get(n).copied().unwrap_or(beyond)));
        match self {
            BitTest::AllSet => pairs.all(|(mask, byte)| byte & mask == mask),
            BitTest::AllClear => pairs.all(|(mask, byte)| byte & mask == 0),
            BitTest::AnySet => pairs.any(|(mask, byte)| byte & mask != 0),
            BitTest::AnyClear => pairs.any(|(mask, byte)| byte & mask != mask),
        }
    }
}

fn parse_position(value: Value<'_>) -> Result<usize> {
    match number::to_integral(value) {
        Some(position @ 0..=POSITION_MAX) => Ok(position as usize),
        Some(position) if position > POSITION_MAX => Err(Error::bad_value(format!(
            "bit positions cannot be above {POSITION_MAX}, but received: {position}"
        ))),
        _ => Err(Error::failed_to_parse(format!(
            "Failed to parse bit position. Expected a non-negative integer in: {}",
            shown(value)
        ))),
    }
}
