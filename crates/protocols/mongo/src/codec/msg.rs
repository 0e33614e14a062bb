//! OP_MSG: a command document, and documents that belong to one of its fields sent beside it.
//!
//! ```text
//! flags u32 | section… | [crc32c u32]
//! section 0: one document, the command
//! section 1: size i32 (itself included) | field name, NUL | documents…
//! ```
//!
//! Exactly one section 0, any number of sections 1, in any order (MongoDB manual: wire protocol, OP_MSG).
//! Documents are checked once and stay where they were received.

use super::header::{Header, op_code};
use super::{Body, FrameError, Sequence};
use bytes::{Buf, Bytes};
use crc_fast::{CrcAlgorithm, Digest};
use rockdove_documents::{Doc, Error, MAX_DEPTH, code};

/// Deepest nesting of a document in a message: that of a stored one, and what a command puts around it.
const LEVELS_MAX: usize = MAX_DEPTH + 20;

/// The flag word of an OP_MSG.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u32);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// Another message follows without being asked for; in a request: no answer is wanted.
    pub const MORE_TO_COME: Flags = Flags(1 << 1);
    const CHECKSUM_PRESENT: u32 = 1;
    const EXHAUST_ALLOWED: u32 = 1 << 16;
    /// Flags of the lower half must be understood; these are.
    const UNDERSTOOD: u32 = Flags::CHECKSUM_PRESENT | Flags::MORE_TO_COME.0;

    /// Whether the sender sends more without waiting: in a request, that it wants no answer.
    pub fn more_to_come(self) -> bool {
        self.0 & Flags::MORE_TO_COME.0 != 0
    }

    /// Whether the client takes several answers to this one request.
    pub fn exhaust_allowed(self) -> bool {
        self.0 & Flags::EXHAUST_ALLOWED != 0
    }

    fn has_checksum(self) -> bool {
        self.0 & Flags::CHECKSUM_PRESENT != 0
    }
}

/// Reads flags and sections of the message under `header` (whose length covers `payload`). The outer error
/// closes the connection; the inner one is answered.
pub(super) fn decode(header: Header, mut payload: Bytes) -> Result<(Flags, Result<Body, Error>), FrameError> {
    let flags = Flags(payload.try_get_u32_le().map_err(|_| FrameError::Truncated)?);
    if flags.0 & 0xffff & !Flags::UNDERSTOOD != 0 {
        return Err(FrameError::UnknownFlags(flags.0));
    }
    if flags.has_checksum() {
        let end = payload.len().checked_sub(4).ok_or(FrameError::Truncated)?;
        let announced = payload.split_off(end).get_u32_le();
        if announced != checksum(header, flags, &payload) {
            return Err(FrameError::Checksum);
        }
    }
    Ok((flags, sections(payload)))
}

/// CRC-32C over the message without the checksum itself.
fn checksum(header: Header, flags: Flags, sections: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&header.encode());
    digest.update(&flags.0.to_le_bytes());
    digest.update(sections);
    digest.finalize() as u32
}

fn sections(mut rest: Bytes) -> Result<Body, Error> {
    let mut command = None;
    let mut sequences: Vec<Sequence> = Vec::new();
    while rest.has_remaining() {
        match rest.get_u8() {
            0 if command.is_some() => {
                return Err(Error::location(40430, "Multiple body sections in message"));
            }
            0 => command = Some(take_document(&mut rest)?),
            1 => {
                let sequence = take_sequence(&mut rest)?;
                if sequences.iter().any(|other| other.field == sequence.field) {
                    return Err(Error::location(
                        40431,
                        format!("Duplicate document sequence: {}", sequence.field),
                    ));
                }
                sequences.push(sequence);
            }
            other => return Err(Error::location(40432, format!("Unknown section kind {other}"))),
        }
    }
    let command = command.ok_or_else(|| Error::location(40587, "OP_MSG messages must have a body"))?;
    match sequences.iter().find(|sequence| command.raw().element(&sequence.field).is_some()) {
        Some(twice) => Err(Error::location(
            40433,
            format!("Duplicate field between body and document sequence {}", twice.field),
        )),
        None => Ok(Body { command, sequences, database: None }),
    }
}

fn take_sequence(rest: &mut Bytes) -> Result<Sequence, Error> {
    let size = rest.try_get_u32_le().map_err(|_| invalid("a document sequence has no size"))? as usize;
    let size = size.checked_sub(4).filter(|size| *size <= rest.len());
    let mut section = rest.split_to(size.ok_or_else(|| invalid("a document sequence has a wrong size"))?);
    let end = section.iter().position(|byte| *byte == 0);
    let name = section.split_to(end.ok_or_else(|| invalid("a document sequence has no name"))?);
    section.advance(1);
    let field = std::str::from_utf8(&name).map_err(|_| invalid("a document sequence's name is not UTF-8"))?;
    let mut documents = Vec::new();
    while section.has_remaining() {
        documents.push(take_document(&mut section)?);
    }
    Ok(Sequence { field: field.into(), documents })
}

/// Splits the document off that begins `rest`.
pub(super) fn take_document(rest: &mut Bytes) -> Result<Doc, Error> {
    let length = rest.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
    let length = length.filter(|length| *length <= rest.len());
    let bytes = rest.split_to(length.ok_or_else(|| invalid("a document is longer than its message"))?);
    Doc::new_within(bytes, LEVELS_MAX).map_err(|error| Error::new(code::INVALID_BSON, error.to_string()))
}

fn invalid(message: &str) -> Error {
    Error::new(code::INVALID_BSON, message)
}

/// Bytes before the document of a message that [`encode`] makes: header, flags, kind of the section.
pub const HEAD_BYTES: usize = Header::SIZE + 4 + 1;

/// Appends a message of one document to `out`.
pub fn encode(out: &mut Vec<u8>, request_id: i32, response_to: i32, flags: Flags, body: &[u8]) {
    out.reserve(HEAD_BYTES + body.len());
    encode_head(out, request_id, response_to, flags, body.len());
    out.extend_from_slice(body);
}

/// Appends all that comes before the document of such a message, which has `body_bytes` bytes.
pub fn encode_head(out: &mut Vec<u8>, request_id: i32, response_to: i32, flags: Flags, body_bytes: usize) {
    let length = (HEAD_BYTES + body_bytes) as i32;
    out.extend_from_slice(&Header { length, request_id, response_to, op_code: op_code::MSG }.encode());
    out.extend_from_slice(&flags.0.to_le_bytes());
    out.push(0);
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{decode_one, frame, section, sequence};
    use super::*;
    use rockdove_documents::doc;

    fn msg(flags: u32, sections: &[Vec<u8>]) -> Vec<u8> {
        frame(op_code::MSG, &[&flags.to_le_bytes()[..], &sections.concat()].concat())
    }

    fn with_checksum(mut message: Vec<u8>) -> Vec<u8> {
        let length = message.len() as i32 + 4;
        message[..4].copy_from_slice(&length.to_le_bytes());
        let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &message) as u32;
        message.extend_from_slice(&crc.to_le_bytes());
        message
    }

    #[test]
    fn golden_ping() {
        #[rustfmt::skip]
        let bytes = [
            0x33, 0, 0, 0,  9, 0, 0, 0,  0, 0, 0, 0,  0xdd, 7, 0, 0, // header
            0, 0, 0, 0,  0, // flags, section 0
            0x1e, 0, 0, 0,  0x10, b'p', b'i', b'n', b'g', 0, 1, 0, 0, 0,
            0x02, b'$', b'd', b'b', 0, 6, 0, 0, 0, b'a', b'd', b'm', b'i', b'n', 0,  0,
        ];
        let request = decode_one(&bytes).unwrap();
        assert_eq!(request.id, 9);
        assert_eq!(request.body.unwrap().command, doc! { "ping": 1, "$db": "admin" });
        let mut encoded = Vec::new();
        encode(&mut encoded, 9, 0, Flags::NONE, doc! { "ping": 1, "$db": "admin" }.bytes());
        assert_eq!(encoded, bytes);
    }

    #[test]
    fn sections_come_in_any_order_and_share_the_bytes() {
        let docs = [doc! { "_id": 1 }, doc! { "_id": 2 }];
        let command = section(&doc! { "insert": "c" });
        for order in [[0, 1], [1, 0]] {
            let parts = [command.clone(), sequence("documents", &docs)];
            let request = decode_one(&msg(0, &order.map(|n: usize| parts[n].clone()))).unwrap();
            let body = request.body.unwrap();
            assert_eq!(body.command, doc! { "insert": "c" });
            assert_eq!(body.sequences[0].field.as_ref(), "documents");
            assert_eq!(body.sequences[0].documents, docs);
        }
    }

    #[test]
    fn what_is_wrong_inside_is_answered() {
        let command = section(&doc! { "insert": "c" });
        let documents = sequence("documents", &[doc! {}]);
        let mut broken = command.clone();
        *broken.last_mut().unwrap() = 1;
        for (sections, number) in [
            (vec![], 40587),
            (vec![command.clone(), command.clone()], 40430),
            (vec![command.clone(), documents.clone(), documents.clone()], 40431),
            (vec![command.clone(), vec![2, 5, 0, 0, 0, 0]], 40432),
            (vec![section(&doc! { "documents": 1 }), documents.clone()], 40433),
            (vec![broken], 22),
            (vec![command.clone(), vec![1, 3, 0, 0, 0]], 22),
            (vec![command.clone(), vec![1, 0xff, 0xff, 0xff, 0x7f, b'a', 0]], 22),
            (vec![command.clone(), vec![1, 6, 0, 0, 0, b'a', b'b']], 22),
            (vec![vec![0, 0xff, 0xff, 0xff, 0xff]], 22),
        ] {
            let request = decode_one(&msg(0, &sections)).unwrap();
            assert_eq!(request.body.unwrap_err().code.number, number, "{sections:?}");
        }
    }

    #[test]
    fn flags_are_understood_or_end_the_connection() {
        let command = [section(&doc! { "ping": 1 })];
        assert!(decode_one(&msg(2, &command)).unwrap().flags.more_to_come());
        assert!(decode_one(&msg(1 << 16, &command)).unwrap().flags.exhaust_allowed());
        assert!(decode_one(&msg(1 << 17, &command)).is_ok(), "upper flags are optional");
        for bit in 2..16 {
            assert_eq!(decode_one(&msg(1 << bit, &command)).unwrap_err(), FrameError::UnknownFlags(1 << bit));
        }
    }

    #[test]
    fn a_checksum_is_verified() {
        let good = with_checksum(msg(1, &[section(&doc! { "ping": 1 })]));
        assert_eq!(decode_one(&good).unwrap().body.unwrap().command, doc! { "ping": 1 });
        for at in 20..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(decode_one(&bad).unwrap_err(), FrameError::Checksum, "byte {at}");
        }
    }
}
