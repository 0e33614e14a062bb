//! One frame's header: encoding, decoding, checksums. Format: `docs/format/segment.md`, "Frame".
//!
//! The header checks itself (`link`, over the whole header and the file's salt) before its lengths are used, and
//! names the link of the frame before it (`prev_link`), so that frames form a chain across segments. `body_crc`
//! covers what does not depend on this copy of the log: the logical fields and the payload.

use crate::ack::Level;
use crate::checksum::Crc32c;
use crate::codec::Encoding;

/// Length of a header in bytes.
pub(crate) const HEADER_BYTES: u64 = 64;
/// Frames begin at multiples of this.
pub(crate) const ALIGN: u64 = 16;
/// What a frame's payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An opaque payload: an entry.
    #[default]
    Data = 1,
    /// A mark of the log itself: what a sync made durable (`control.rs`). Takes an index; readers pass over it.
    Synced = 2,
}

impl Kind {
    fn of_code(code: u8) -> Option<Kind> {
        [Kind::Data, Kind::Synced].into_iter().find(|kind| *kind as u8 == code)
    }
}

const LEN: usize = 0;
const BODY_CRC: usize = LEN + 4;
const INDEX: usize = BODY_CRC + 4;
const TERM: usize = INDEX + 8;
const TIME: usize = TERM + 8;
const VALUE: usize = TIME + 8;
const KIND: usize = VALUE + 8;
const FLAGS: usize = KIND + 1;
const CODEC: usize = FLAGS + 1;
const ACK_CLASS: usize = CODEC + 1;
const PAYLOAD_LEN: usize = ACK_CLASS + 1;
const DURABLE: usize = PAYLOAD_LEN + 4;
const PREV_LINK: usize = DURABLE + 8;
const LINK: usize = PREV_LINK + 4;
const _: () = assert!(LINK + 4 == HEADER_BYTES as usize);

/// A frame's header as it is stored.
pub type HeaderBytes = [u8; HEADER_BYTES as usize];

/// What a frame says about its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Frame {
    /// Checksum over the logical fields and the payload.
    pub body_crc: u32,
    /// Position in the log, from 1.
    pub index: u64,
    /// Election term of the leader that appended it; 0 without replication.
    pub term: u64,
    /// Time in nanoseconds since 1970, never less than the frame before.
    pub time_ns: u64,
    /// Business value in risk units.
    pub value: u64,
    /// What the payload is.
    pub kind: Kind,
    /// How the payload is stored.
    pub encoding: Encoding,
    /// The level at which it was to be acknowledged, if the appender named one.
    pub level: Option<Level>,
    /// Length of the payload in bytes, as it is stored.
    pub payload_len: u32,
    /// The writer's `synced` mark when it appended the frame.
    pub durable_upto: u64,
    /// `link` of the frame before; 0 for the first of the log.
    pub prev_link: u32,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not what was written.
    Damaged(&'static str),
    /// Whole, but written by a version that knows more.
    Unsupported(&'static str),
}

impl Fault {
    pub(crate) fn what(self) -> &'static str {
        match self {
            Fault::Damaged(what) | Fault::Unsupported(what) => what,
        }
    }
}

/// Bytes from one frame's beginning to the next one's, for a payload of this length.
pub(crate) const fn stride(payload_len: u64) -> u64 {
    (HEADER_BYTES + payload_len).next_multiple_of(ALIGN)
}

impl Frame {
    /// Bytes from its beginning to the next frame's.
    pub(crate) fn stride(&self) -> u64 {
        stride(self.payload_len.into())
    }

    /// Sets `body_crc` for this payload.
    #[cfg(test)]
    pub(crate) fn with_payload(mut self, log_id: &[u8; 16], parts: &[&[u8]]) -> Self {
        self.body_crc = parts.iter().fold(self.body_digest(log_id), |crc, part| crc.add(part)).value();
        self
    }

    /// The checksum that becomes `body_crc` once the payload was added to it.
    pub(crate) fn body_digest(&self, log_id: &[u8; 16]) -> Crc32c {
        body_digest(&self.fields(), log_id)
    }

    /// The header's bytes for this payload, whose checksum it gets, and its link.
    pub(crate) fn encode_with(&self, log_id: &[u8; 16], parts: &[&[u8]], salt: u64) -> (HeaderBytes, u32) {
        let mut bytes = self.fields();
        let digest = body_digest(&bytes, log_id);
        let body_crc = parts.iter().fold(digest, |crc, part| crc.add(part)).value();
        put(&mut bytes, BODY_CRC, &body_crc.to_le_bytes());
        let link = link(&bytes, salt);
        put(&mut bytes, LINK, &link.to_le_bytes());
        (bytes, link)
    }

    /// The header's bytes, and its link.
    #[cfg(test)]
    pub(crate) fn encode(&self, salt: u64) -> (HeaderBytes, u32) {
        let mut bytes = self.fields();
        let link = link(&bytes, salt);
        put(&mut bytes, LINK, &link.to_le_bytes());
        (bytes, link)
    }

    fn fields(&self) -> HeaderBytes {
        let len = u32::try_from(HEADER_BYTES + u64::from(self.payload_len)).unwrap_or(u32::MAX);
        let mut bytes = [0; HEADER_BYTES as usize];
        put(&mut bytes, LEN, &len.to_le_bytes());
        put(&mut bytes, BODY_CRC, &self.body_crc.to_le_bytes());
        put(&mut bytes, INDEX, &self.index.to_le_bytes());
        put(&mut bytes, TERM, &self.term.to_le_bytes());
        put(&mut bytes, TIME, &self.time_ns.to_le_bytes());
        put(&mut bytes, VALUE, &self.value.to_le_bytes());
        bytes[KIND] = self.kind as u8;
        bytes[CODEC] = self.encoding.code();
        bytes[ACK_CLASS] = self.level.map_or(0, Level::code);
        put(&mut bytes, PAYLOAD_LEN, &self.payload_len.to_le_bytes());
        put(&mut bytes, DURABLE, &self.durable_upto.to_le_bytes());
        put(&mut bytes, PREV_LINK, &self.prev_link.to_le_bytes());
        bytes
    }

    /// Reads a header that must check itself; returns its link too. The payload is not looked at.
    pub(crate) fn decode(bytes: &HeaderBytes, salt: u64) -> Result<(Frame, u32), Fault> {
        let len = u32_at(bytes, LEN);
        if u64::from(len) < HEADER_BYTES {
            return Err(Fault::Damaged("the frame's length is below its header's"));
        }
        let link = u32_at(bytes, LINK);
        if link != self::link(bytes, salt) {
            return Err(Fault::Damaged("the frame header's checksum does not match"));
        }
        let kind = Kind::of_code(bytes[KIND]).ok_or(Fault::Unsupported("a kind of frame"))?;
        let level = Level::of_code(bytes[ACK_CLASS]);
        let encoding = Encoding::of_code(bytes[CODEC]).ok_or(Fault::Unsupported("a codec"))?;
        if bytes[FLAGS] != 0 || (level.is_none() && bytes[ACK_CLASS] != 0) {
            return Err(Fault::Unsupported("a frame's flags or level"));
        }
        let payload_len = u32_at(bytes, PAYLOAD_LEN);
        if u64::from(len) != HEADER_BYTES + u64::from(payload_len) {
            return Err(Fault::Unsupported("a frame with an extension"));
        }
        let frame = Frame {
            body_crc: u32_at(bytes, BODY_CRC),
            index: u64_at(bytes, INDEX),
            term: u64_at(bytes, TERM),
            time_ns: u64_at(bytes, TIME),
            value: u64_at(bytes, VALUE),
            kind,
            encoding,
            level,
            payload_len,
            durable_upto: u64_at(bytes, DURABLE),
            prev_link: u32_at(bytes, PREV_LINK),
        };
        Ok((frame, link))
    }
}

fn link(bytes: &HeaderBytes, salt: u64) -> u32 {
    let mut salted = [0; 8 + LINK];
    put(&mut salted, 0, &salt.to_le_bytes());
    put(&mut salted, 8, &bytes[..LINK]);
    Crc32c::new().add(&salted).value()
}

/// See [`Frame::body_digest`].
fn body_digest(fields: &HeaderBytes, log_id: &[u8; 16]) -> Crc32c {
    // In one piece: a checksum costs more by the call than by the byte at this length.
    let mut bytes = [0; 16 + (BODY_CRC - LEN) + (DURABLE - INDEX)];
    put(&mut bytes, 0, log_id);
    put(&mut bytes, 16, &fields[LEN..BODY_CRC]);
    put(&mut bytes, 16 + BODY_CRC - LEN, &fields[INDEX..DURABLE]);
    Crc32c::new().add(&bytes)
}

/// Writes a field of a record. The offsets are constants that fit the record.
pub(crate) fn put(record: &mut [u8], at: usize, field: &[u8]) {
    record[at..at + field.len()].copy_from_slice(field);
}

/// Reads a field of a record. The offsets are constants that fit the record.
pub(crate) fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"))
}

/// Reads a field of a record. The offsets are constants that fit the record.
pub(crate) fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> Frame {
        Frame { index: 7, time_ns: 9, payload_len: 5, durable_upto: 3, prev_link: 1, ..Frame::default() }
    }

    #[test]
    fn zeros_are_no_frame() {
        assert!(matches!(Frame::decode(&[0; 64], 0), Err(Fault::Damaged(_))));
    }

    #[test]
    fn another_salt_is_no_frame() {
        let (bytes, link) = frame().encode(1);
        assert_eq!(Frame::decode(&bytes, 1), Ok((frame(), link)));
        assert!(matches!(Frame::decode(&bytes, 2), Err(Fault::Damaged(_))));
    }

    #[test]
    fn what_a_newer_version_writes_is_told_from_damage() {
        for at in [KIND, FLAGS, CODEC, ACK_CLASS, PAYLOAD_LEN] {
            let (mut bytes, _) = frame().encode(1);
            bytes[at] += 99;
            let sum = link(&bytes, 1);
            put(&mut bytes, LINK, &sum.to_le_bytes());
            assert!(matches!(Frame::decode(&bytes, 1), Err(Fault::Unsupported(_))), "field at {at}");
        }
    }

    #[test]
    fn the_body_checksum_covers_log_fields_and_payload() {
        let crc = |frame: Frame, log: u8, parts: &[&[u8]]| frame.with_payload(&[log; 16], parts).body_crc;
        let whole = crc(frame(), 1, &[b"hello"]);
        assert_eq!(whole, crc(frame(), 1, &[b"he", b"", b"llo"]));
        assert_ne!(whole, crc(frame(), 2, &[b"hello"]));
        assert_ne!(whole, crc(frame(), 1, &[b"hellO"]));
        assert_ne!(whole, crc(Frame { value: 1, ..frame() }, 1, &[b"hello"]));
        // As it is stored.
        let (bytes, link) = frame().encode_with(&[1; 16], &[b"hel", b"lo"], 7);
        let sealed = Frame { body_crc: whole, ..frame() };
        assert_eq!(Frame::decode(&bytes, 7), Ok((sealed, link)));
        assert_eq!(sealed.encode(7), (bytes, link));
        // The local part may differ between copies of a log.
        assert_eq!(whole, crc(Frame { durable_upto: 4, prev_link: 9, ..frame() }, 1, &[b"hello"]));
    }

    proptest! {
        #[test]
        fn decode_reverses_encode(
            index: u64, term: u64, time_ns: u64, value: u64, payload_len in 0u32..=128 << 20,
            durable_upto: u64, prev_link: u32, body_crc: u32, salt: u64, level in 0u8..7, is_mark: bool,
            compressed: bool, encrypted: bool,
        ) {
            let encoding = Encoding { compressed, encrypted };
            let kind = if is_mark { Kind::Synced } else { Kind::Data };
            let level = Level::of_code(level);
            let frame =
                Frame { body_crc, index, term, time_ns, value, kind, encoding, level, payload_len, durable_upto, prev_link };
            let (bytes, link) = frame.encode(salt);
            prop_assert_eq!(Frame::decode(&bytes, salt), Ok((frame, link)));
        }

        #[test]
        fn a_flipped_bit_is_found(bit in 0usize..512, salt: u64) {
            let (mut bytes, _) = frame().encode(salt);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(matches!(Frame::decode(&bytes, salt), Err(Fault::Damaged(_))));
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::array::uniform32(any::<u16>()), salt: u64) {
            let mut header = [0; 64];
            for (to, from) in header.chunks_exact_mut(2).zip(bytes) {
                to.copy_from_slice(&from.to_le_bytes());
            }
            let _ = Frame::decode(&header, salt);
        }
    }
}
