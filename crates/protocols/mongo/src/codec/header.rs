//! The sixteen bytes in front of every message.

/// A message header: four little-endian 32-bit integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bytes of the whole message, header included.
    pub length: i32,
    /// The sender's number of this message.
    pub request_id: i32,
    /// The number of the message that this one answers; 0 in requests.
    pub response_to: i32,
    /// What follows the header.
    pub op_code: i32,
}

impl Header {
    /// Bytes of an encoded header.
    pub const SIZE: usize = 16;

    /// Reads a header; `None` if there are fewer than [`Header::SIZE`] bytes.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes: &[u8; Header::SIZE] = bytes.first_chunk()?;
        let word = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Header { length: word(0), request_id: word(4), response_to: word(8), op_code: word(12) })
    }

    /// The encoded header.
    pub fn encode(self) -> [u8; Header::SIZE] {
        let mut bytes = [0; Header::SIZE];
        for (place, word) in
            bytes.chunks_exact_mut(4).zip([self.length, self.request_id, self.response_to, self.op_code])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Kinds of messages by their number (MongoDB manual: wire protocol, opcodes).
pub mod op_code {
    /// Answer to [`QUERY`].
    pub const REPLY: i32 = 1;
    /// The query of old: accepted for the first handshake only.
    pub const QUERY: i32 = 2004;
    /// A compressed message of another kind.
    pub const COMPRESSED: i32 = 2012;
    /// Everything else.
    pub const MSG: i32 = 2013;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let header = Header { length: 0x21, request_id: 7, response_to: -1, op_code: op_code::MSG };
        let bytes = [0x21, 0, 0, 0, 7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xdd, 0x07, 0, 0];
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(&bytes), Some(header));
        assert_eq!(Header::decode(&bytes[..15]), None);
    }
}
