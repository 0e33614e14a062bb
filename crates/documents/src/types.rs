//! The BSON scalar types that Rust has no equivalent for.

use std::fmt;

/// A 12-byte document id: seconds since 1970 (big-endian), a random part, a counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub [u8; 12]);

impl ObjectId {
    /// A new id for the given time; the other eight bytes are the caller's random and counter bits.
    pub fn from_parts(seconds: u32, unique: u64) -> ObjectId {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&seconds.to_be_bytes());
        bytes[4..].copy_from_slice(&unique.to_be_bytes());
        ObjectId(bytes)
    }

    /// The id written as 24 hexadecimal digits, or `None` if `text` is anything else.
    pub fn parse(text: &str) -> Option<ObjectId> {
        let digits = text.as_bytes();
        if digits.len() != 24 {
            return None;
        }
        let mut bytes = [0; 12];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let high = (pair[0] as char).to_digit(16)?;
            let low = (pair[1] as char).to_digit(16)?;
            *byte = (high * 16 + low) as u8;
        }
        Some(ObjectId(bytes))
    }

    /// Seconds since 1970 at which the id was made.
    pub fn seconds(&self) -> u32 {
        u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId({self})")
    }
}

/// A BSON timestamp: seconds since 1970 and an ordinal within the second. Orders by time, then ordinal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub time: u32,
    /// Ordinal within the second.
    pub increment: u32,
}

impl Timestamp {
    /// The timestamp whose 64-bit form (seconds in the high half) is `bits`.
    pub fn from_bits(bits: u64) -> Timestamp {
        Timestamp { time: (bits >> 32) as u32, increment: bits as u32 }
    }

    /// The 64-bit form: seconds in the high half, ordinal in the low half. Orders like the timestamp.
    pub fn bits(self) -> u64 {
        (u64::from(self.time) << 32) | u64::from(self.increment)
    }
}

/// The 16 bytes of an IEEE 754-2008 decimal128 (BID encoding, little-endian), as BSON stores it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Decimal128(pub [u8; 16]);
