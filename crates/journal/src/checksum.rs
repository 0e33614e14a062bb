//! CRC-32C (Castagnoli, the iSCSI polynomial) over bytes that lie in several places.

use crc_fast::{CrcAlgorithm, Digest};

/// A checksum under way.
#[derive(Clone)]
pub(crate) struct Crc32c(Digest);

impl Crc32c {
    pub(crate) fn new() -> Self {
        Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    pub(crate) fn add(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }

    pub(crate) fn value(self) -> u32 {
        u32::try_from(self.0.finalize()).expect("a CRC-32 has 32 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_value_and_parts() {
        // RFC 3720, appendix B.4: 32 bytes of zeros; and the usual check string.
        assert_eq!(Crc32c::new().add(&[0; 32]).value(), 0x8a91_36aa);
        assert_eq!(Crc32c::new().add(b"123456789").value(), 0xe306_9283);
        assert_eq!(Crc32c::new().add(b"1234").add(b"").add(b"56789").value(), 0xe306_9283);
    }
}
