//! The wire format: bytes in, requests out; replies in, bytes out. No I/O.
//!
//! | message | from | part |
//! | --- | --- | --- |
//! | OP_MSG | client, server | every command and its reply (`msg`) |
//! | OP_QUERY, OP_REPLY | client; server | the first handshake of older drivers (`query`) |
//! | OP_COMPRESSED | client, server | any of these, compressed (`compressed`) |
//!
//! Invariants
//! * Nothing is read beyond the length in a message's header, whatever follows it.
//! * The buffer grows with received bytes only, never by an announced length.
//! * Damage that leaves the message's borders sure is answered; any other closes the connection. Never silence.
//! * Documents of a request are checked, and share the received bytes.

mod compressed;
mod header;
mod msg;
mod query;

pub use compressed::{Compressor, encode as encode_compressed};
pub use header::{Header, op_code};
pub use msg::{Flags, HEAD_BYTES as MSG_HEAD_BYTES, encode as encode_msg, encode_head as encode_msg_head};
pub use query::encode_reply;

use bytes::{Bytes, BytesMut};
use rockdove_documents::{Doc, Error};
use thiserror::Error as ThisError;

/// The `maxMessageSizeBytes` that clients are told.
pub const MESSAGE_BYTES_ADVERTISED: usize = 48_000_000;
/// Longest message accepted: what clients are told, and 16 KiB for what they wrap around it.
pub const MESSAGE_BYTES_MAX: usize = MESSAGE_BYTES_ADVERTISED + 16 * 1024;
/// Least room made for a read.
const READ_BYTES: usize = 16 * 1024;

/// Why a connection cannot go on: its bytes can no longer be told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ThisError)]
pub enum FrameError {
    /// The client begins a TLS connection.
    #[error(
        "a client speaks TLS; this server speaks plain MongoDB messages only: let it connect without TLS"
    )]
    Tls,
    /// Shorter than a header, or longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message announces {0} bytes")]
    Length(i32),
    /// A kind of message that is not spoken here.
    #[error("unknown opcode {0}")]
    OpCode(i32),
    /// A flag that must be understood and is not.
    #[error("unknown OP_MSG flags {0:#x}")]
    UnknownFlags(u32),
    /// The CRC-32C at the end of an OP_MSG is wrong.
    #[error("an OP_MSG's checksum does not match")]
    Checksum,
    /// A message ends before its fixed fields do.
    #[error("a message is too short for its kind")]
    Truncated,
    /// An OP_QUERY that is no command.
    #[error("an OP_QUERY is no command")]
    Query,
    /// A compressor that does not exist.
    #[error("unknown compressor {0}")]
    Compressor(u8),
    /// An announced uncompressed size that is not allowed or not met.
    #[error("a compressed message announces {0} bytes, which is not what it holds")]
    CompressedSize(i64),
    /// Compressed bytes that do not decompress.
    #[error("a compressed message cannot be decompressed")]
    Decompression,
}

/// Documents sent beside the command, as the array of one of its fields.
#[derive(Clone, PartialEq, Debug)]
pub struct Sequence {
    /// The field.
    pub field: Box<str>,
    /// Its elements.
    pub documents: Vec<Doc>,
}

/// A command as it was received.
#[derive(Clone, PartialEq, Debug)]
pub struct Body {
    /// The command document; its first field names the command.
    pub command: Doc,
    /// Fields sent beside it; none of them is also in `command`.
    pub sequences: Vec<Sequence>,
    /// The database, where the message names it outside the command (OP_QUERY).
    pub database: Option<Box<str>>,
}

/// A request and how it is to be answered.
#[derive(Debug)]
pub struct Request {
    /// What the answer's `responseTo` must be.
    pub id: i32,
    /// The flags of an OP_MSG.
    pub flags: Flags,
    /// Whether it is an OP_QUERY, to be answered by an OP_REPLY.
    pub is_query: bool,
    /// How the request was compressed; its answer may be so too.
    pub compressor: Option<Compressor>,
    /// The command, or why it cannot be read (which is the answer then).
    pub body: Result<Body, Error>,
}

/// Cuts received bytes into requests.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// A decoder without bytes.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// The buffer to read into, with room to read: as much as there is already, at most what the message
    /// under way lacks, and never less than 16 KiB.
    pub fn room(&mut self) -> &mut BytesMut {
        let missing = Header::decode(&self.buffer).map_or(0, |header| {
            usize::try_from(header.length).unwrap_or(0).saturating_sub(self.buffer.len())
        });
        let step = missing.min(self.buffer.len()).max(READ_BYTES);
        self.buffer.reserve(step);
        &mut self.buffer
    }

    /// Bytes received and not yet cut.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The next request, if it is there completely. After an error the decoder is of no more use.
    pub fn next_request(&mut self) -> Result<Option<Request>, FrameError> {
        let Some(header) = Header::decode(&self.buffer) else { return Ok(None) };
        let length = usize::try_from(header.length)
            .ok()
            .filter(|length| (Header::SIZE..=MESSAGE_BYTES_MAX).contains(length))
            .ok_or_else(|| self.refusal(FrameError::Length(header.length)))?;
        if !matches!(header.op_code, op_code::MSG | op_code::QUERY | op_code::COMPRESSED) {
            return Err(self.refusal(FrameError::OpCode(header.op_code)));
        }
        if self.buffer.len() < length {
            return Ok(None);
        }
        let mut message = self.buffer.split_to(length).freeze();
        request(header, message.split_off(Header::SIZE)).map(Some)
    }

    /// What is wrong with bytes that are no message: `error`, if it is not known better. A client hello of TLS is a
    /// handshake record (22) of a version 3.x with a message of kind 1 (RFC 8446, 5.1 and 4).
    fn refusal(&self, error: FrameError) -> FrameError {
        match self.buffer[..] {
            [22, 3, _, _, _, 1, ..] => FrameError::Tls,
            _ => error,
        }
    }
}

fn request(header: Header, payload: Bytes) -> Result<Request, FrameError> {
    let (header, payload, compressor) = match header.op_code {
        op_code::COMPRESSED => {
            let (header, payload, compressor) = compressed::decode(header, payload)?;
            (header, payload, Some(compressor))
        }
        _ => (header, payload, None),
    };
    let (flags, is_query, body) = match header.op_code {
        op_code::MSG => {
            let (flags, body) = msg::decode(header, payload)?;
            (flags, false, body)
        }
        op_code::QUERY => (Flags::NONE, true, Ok(query::decode(payload)?)),
        other => return Err(FrameError::OpCode(other)),
    };
    Ok(Request { id: header.request_id, flags, is_query, compressor, body })
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::*;

    pub fn frame(op_code: i32, payload: &[u8]) -> Vec<u8> {
        let length = (Header::SIZE + payload.len()) as i32;
        let header = Header { length, request_id: 5, response_to: 0, op_code };
        [&header.encode()[..], payload].concat()
    }

    pub fn section(document: &Doc) -> Vec<u8> {
        [&[0], &document.bytes()[..]].concat()
    }

    pub fn sequence(field: &str, documents: &[Doc]) -> Vec<u8> {
        let documents: Vec<u8> = documents.iter().flat_map(|doc| doc.bytes().to_vec()).collect();
        let size = (4 + field.len() + 1 + documents.len()) as i32;
        [&[1], &size.to_le_bytes()[..], field.as_bytes(), &[0], &documents].concat()
    }

    pub fn decode_one(bytes: &[u8]) -> Result<Request, FrameError> {
        let mut decoder = Decoder::new();
        decoder.room().extend_from_slice(bytes);
        decoder.next_request().map(|request| request.expect("a whole message was given"))
    }
}

#[cfg(test)]
mod tests {
    use super::test_support::*;
    use super::*;
    use proptest::prelude::*;
    use rockdove_documents::doc;

    fn ping(id: i32) -> Vec<u8> {
        let mut out = Vec::new();
        encode_msg(&mut out, id, 0, Flags::NONE, doc! { "ping": 1, "$db": "admin" }.bytes());
        out
    }

    #[test]
    fn requests_are_cut_at_their_lengths_however_they_arrive() {
        let stream: Vec<u8> = (0..50).flat_map(ping).collect();
        for step in [1, 7, 51, 1000, stream.len()] {
            let (mut decoder, mut ids) = (Decoder::new(), Vec::new());
            for part in stream.chunks(step) {
                decoder.room().extend_from_slice(part);
                while let Some(request) = decoder.next_request().unwrap() {
                    ids.push(request.id);
                }
            }
            assert_eq!(ids, Vec::from_iter(0..50), "in steps of {step}");
            assert_eq!(decoder.buffered(), 0);
        }
    }

    #[test]
    fn lengths_out_of_bounds_are_refused_at_once() {
        for length in [i32::MIN, -1, 0, 15, MESSAGE_BYTES_MAX as i32 + 1, i32::MAX] {
            let header = Header { length, request_id: 1, response_to: 0, op_code: op_code::MSG };
            let mut decoder = Decoder::new();
            decoder.room().extend_from_slice(&header.encode());
            assert_eq!(decoder.next_request().unwrap_err(), FrameError::Length(length));
        }
    }

    #[test]
    fn a_client_hello_of_tls_is_named() {
        // The lengths of the record are large and small ones of a message.
        for (high, low) in [(2, 0), (0, 200), (1, 255), (16, 0), (255, 255)] {
            let hello = [&[22, 3, 1, high, low, 1, 0, 1, 252, 3, 3], &[0x5a; 40][..]].concat();
            for cut in [Header::SIZE, hello.len()] {
                assert_eq!(decode_one(&hello[..cut]).unwrap_err(), FrameError::Tls);
            }
        }
        let other = [&[22, 3, 1, 2, 0, 2][..], &[0x5a; 40]].concat();
        assert_eq!(decode_one(&other).unwrap_err(), FrameError::OpCode(0x5a5a_5a5a));
    }

    #[test]
    fn an_announced_length_allocates_nothing() {
        let header =
            Header { length: MESSAGE_BYTES_MAX as i32, request_id: 1, response_to: 0, op_code: op_code::MSG };
        let mut decoder = Decoder::new();
        decoder.room().extend_from_slice(&header.encode());
        assert!(decoder.next_request().unwrap().is_none());
        assert!(decoder.room().capacity() < 4 * READ_BYTES);
    }

    #[test]
    fn opcodes_that_are_not_spoken_are_refused() {
        for op in [0, 1, 2001, 2002, 2005, 2006, 2007, 2010, 2011, -1] {
            assert_eq!(decode_one(&frame(op, &[0; 40])).unwrap_err(), FrameError::OpCode(op));
        }
    }

    fn whole_message() -> impl Strategy<Value = Vec<u8>> {
        let documents =
            vec![doc! { "_id": 1, "text": "a" }, doc! { "_id": 2, "list": [1, 2, { "x": null }] }];
        let parts = [
            &[0u8; 4][..],
            &section(&doc! { "insert": "c", "$db": "test", "ordered": true }),
            &sequence("documents", &documents),
        ]
        .concat();
        let plain = frame(op_code::MSG, &parts);
        prop::sample::select(vec![None, Some(0u8), Some(1), Some(2), Some(3)]).prop_map(move |compressor| {
            let Some(compressor) = compressor.and_then(Compressor::from_id) else { return plain.clone() };
            let mut out = Vec::new();
            encode_compressed(&mut out, &plain, compressor).expect("compresses");
            out
        })
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), op in 2000i32..2020) {
            let mut decoder = Decoder::new();
            decoder.room().extend_from_slice(&bytes);
            let _ = decoder.next_request();
            let _ = decode_one(&frame(op, &bytes));
        }

        #[test]
        fn mutated_messages_never_panic(
            message in whole_message(),
            changes in prop::collection::vec((16usize..400, any::<u8>()), 1..4),
        ) {
            let mut bytes = message;
            for (at, byte) in changes {
                let at = 16 + at % (bytes.len() - 16);
                bytes[at] = byte;
            }
            if let Ok(request) = decode_one(&bytes) {
                let text = format!("{request:?}");
                prop_assert!(!text.is_empty());
            }
        }
    }
}
