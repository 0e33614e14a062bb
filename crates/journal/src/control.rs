//! The payload of a SYNCED frame. Format: `docs/format/segment.md`, "SYNCED".
//!
//! It is appended after a sync that a trigger or a fence asked for. That it can be read proves nothing about
//! itself; that it was written proves that everything up to [`Synced::upto`] was on disk before.

use crate::frame::{put, u64_at};
use crate::risk::Causes;

const UPTO: usize = 0;
const RELEASED: usize = UPTO + 8;
const CAUSES: usize = RELEASED + 16;
const PADDING: usize = CAUSES + 2;
/// Length of the payload.
pub(crate) const BYTES: usize = PADDING + 6;
const _: () = assert!(BYTES == 32);

/// A sync that was asked for has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synced {
    /// Everything up to this entry was on disk.
    pub upto: u64,
    /// Value of the entries that it made safe.
    pub released: u128,
    /// What had asked for it.
    pub causes: Causes,
}

impl Synced {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        put(&mut bytes, UPTO, &self.upto.to_le_bytes());
        put(&mut bytes, RELEASED, &self.released.to_le_bytes());
        put(&mut bytes, CAUSES, &self.causes.bits().to_le_bytes());
        bytes
    }

    /// The mark in a payload; later versions may append to it.
    pub(crate) fn decode(payload: &[u8]) -> Option<Synced> {
        let bytes: &[u8; BYTES] = payload.first_chunk()?;
        let released = bytes[RELEASED..CAUSES].try_into().expect("sixteen bytes");
        let causes = bytes[CAUSES..PADDING].try_into().expect("two bytes");
        Some(Synced {
            upto: u64_at(bytes, UPTO),
            released: u128::from_le_bytes(released),
            causes: Causes::of_bits(u16::from_le_bytes(causes)),
        })
    }

    /// One mark that says what two consecutive ones say.
    pub(crate) fn joined(self, earlier: Option<Synced>) -> Synced {
        let Some(earlier) = earlier else { return self };
        Synced {
            upto: self.upto.max(earlier.upto),
            released: self.released + earlier.released,
            causes: Causes::of_bits(self.causes.bits() | earlier.causes.bits()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::risk::Cause;

    #[test]
    fn marks_read_back() {
        let mut causes = Causes::default();
        causes.add(Cause::Single);
        causes.add(Cause::Fence);
        let mark = Synced { upto: 7, released: u128::from(u64::MAX) + 5, causes };
        assert_eq!(Synced::decode(&mark.encode()), Some(mark));
        assert_eq!(Synced::decode(&mark.encode()[1..]), None);
        assert_eq!(mark.causes.iter().collect::<Vec<_>>(), [Cause::Single, Cause::Fence]);
        let more = Synced { upto: 9, released: 1, causes: Causes::default() };
        assert_eq!(more.joined(Some(mark)), Synced { upto: 9, released: mark.released + 1, causes });
    }
}
