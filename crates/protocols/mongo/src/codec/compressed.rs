//! OP_COMPRESSED: another message whose bytes after the header are compressed.
//!
//! ```text
//! original opcode i32 | uncompressed size i32 (without header) | compressor u8 | bytes
//! ```
//!
//! The announced size is checked before anything is decompressed, must be met exactly, and decides about no
//! allocation beyond what the received bytes can possibly hold.

use super::header::{Header, op_code};
use super::{FrameError, MESSAGE_BYTES_MAX};
use bytes::{Buf, Bytes};
use std::io::Read;

/// A compression of messages, by the number that the protocol gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Compressor {
    /// Not compressed at all.
    Noop = 0,
    /// Snappy's raw format.
    Snappy = 1,
    /// Zlib.
    Zlib = 2,
    /// Zstandard.
    Zstd = 3,
}

/// Bytes that three bytes of snappy can stand for (its longest copy), and so its best ratio.
const SNAPPY_COPY_MAX: usize = 64;
/// Largest window a zstd stream may ask memory for, as a power of two.
const ZSTD_WINDOW_LOG_MAX: u32 = 25;
const ZSTD_LEVEL: i32 = 3;

impl Compressor {
    /// The compressor of this number.
    pub fn from_id(id: u8) -> Option<Compressor> {
        [Compressor::Noop, Compressor::Snappy, Compressor::Zlib, Compressor::Zstd]
            .get(usize::from(id))
            .copied()
    }

    /// The compressor that a client names so in its `hello`; `noop` is not offered.
    pub fn from_name(name: &str) -> Option<Compressor> {
        match name {
            "snappy" => Some(Compressor::Snappy),
            "zlib" => Some(Compressor::Zlib),
            "zstd" => Some(Compressor::Zstd),
            _ => None,
        }
    }

    fn decompress(self, bytes: &Bytes, size: usize) -> Result<Bytes, FrameError> {
        let plain = match self {
            Compressor::Noop => bytes.clone(),
            Compressor::Snappy => snappy(bytes, size)?,
            Compressor::Zlib => drain(flate2::read::ZlibDecoder::new(&bytes[..]), size)?,
            Compressor::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(&bytes[..])
                    .map_err(|_| FrameError::Decompression)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(|_| FrameError::Decompression)?;
                drain(decoder, size)?
            }
        };
        if plain.len() == size { Ok(plain) } else { Err(FrameError::CompressedSize(size as i64)) }
    }

    fn compress(self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Compressor::Noop => Ok(bytes.to_vec()),
            Compressor::Snappy => {
                snap::raw::Encoder::new().compress_vec(bytes).map_err(std::io::Error::other)
            }
            Compressor::Zlib => {
                let mut out = Vec::with_capacity(bytes.len() / 2 + 64);
                flate2::read::ZlibEncoder::new(bytes, flate2::Compression::fast()).read_to_end(&mut out)?;
                Ok(out)
            }
            Compressor::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL),
        }
    }
}

fn snappy(bytes: &[u8], size: usize) -> Result<Bytes, FrameError> {
    let possible = (bytes.len() / 3 + 1).saturating_mul(SNAPPY_COPY_MAX);
    if size > possible || snap::raw::decompress_len(bytes) != Ok(size) {
        return Err(FrameError::CompressedSize(size as i64));
    }
    let plain = snap::raw::Decoder::new().decompress_vec(bytes).map_err(|_| FrameError::Decompression)?;
    Ok(plain.into())
}

/// Reads at most one byte more than `size`, growing with what really comes.
fn drain(reader: impl Read, size: usize) -> Result<Bytes, FrameError> {
    let mut plain = Vec::new();
    reader.take(size as u64 + 1).read_to_end(&mut plain).map_err(|_| FrameError::Decompression)?;
    Ok(plain.into())
}

/// Undoes the compression: the header and payload of the message inside.
pub(super) fn decode(outer: Header, mut payload: Bytes) -> Result<(Header, Bytes, Compressor), FrameError> {
    let original = payload.try_get_i32_le().map_err(|_| FrameError::Truncated)?;
    let size = payload.try_get_i32_le().map_err(|_| FrameError::Truncated)?;
    let id = payload.try_get_u8().map_err(|_| FrameError::Truncated)?;
    if original == op_code::COMPRESSED {
        return Err(FrameError::OpCode(original));
    }
    let compressor = Compressor::from_id(id).ok_or(FrameError::Compressor(id))?;
    let size = usize::try_from(size)
        .ok()
        .filter(|size| *size <= MESSAGE_BYTES_MAX - Header::SIZE)
        .ok_or(FrameError::CompressedSize(i64::from(size)))?;
    let plain = compressor.decompress(&payload, size)?;
    let header = Header { length: (Header::SIZE + size) as i32, op_code: original, ..outer };
    Ok((header, plain, compressor))
}

/// Appends `message` (header included) to `out`, compressed.
pub fn encode(out: &mut Vec<u8>, message: &[u8], compressor: Compressor) -> std::io::Result<()> {
    let Some((header, payload)) = Header::decode(message).zip(message.get(Header::SIZE..)) else {
        return Err(std::io::Error::other("a message begins with its header"));
    };
    let compressed = compressor.compress(payload)?;
    let length = (Header::SIZE + 9 + compressed.len()) as i32;
    out.reserve(length as usize);
    out.extend_from_slice(&Header { length, op_code: op_code::COMPRESSED, ..header }.encode());
    out.extend_from_slice(&header.op_code.to_le_bytes());
    out.extend_from_slice(&(payload.len() as i32).to_le_bytes());
    out.push(compressor as u8);
    out.extend_from_slice(&compressed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{decode_one, frame};
    use super::super::{Flags, msg};
    use super::*;
    use rockdove_documents::{Doc, doc};

    const ALL: [Compressor; 4] = [Compressor::Noop, Compressor::Snappy, Compressor::Zlib, Compressor::Zstd];

    fn message(document: &Doc) -> Vec<u8> {
        let mut plain = Vec::new();
        msg::encode(&mut plain, 5, 0, Flags::NONE, document.bytes());
        plain
    }

    fn claim(size: i32, compressor: u8, bytes: &[u8]) -> Vec<u8> {
        let payload = [&op_code::MSG.to_le_bytes()[..], &size.to_le_bytes(), &[compressor], bytes].concat();
        frame(op_code::COMPRESSED, &payload)
    }

    #[test]
    fn every_compressor_round_trips() {
        let document = doc! { "insert": "c", "text": "abc ".repeat(10_000) };
        for compressor in ALL {
            let mut out = Vec::new();
            encode(&mut out, &message(&document), compressor).unwrap();
            let request = decode_one(&out).unwrap();
            assert_eq!(request.id, 5);
            assert_eq!(request.compressor, Some(compressor));
            assert_eq!(request.body.unwrap().command, document);
        }
    }

    #[test]
    fn golden_noop() {
        let mut out = Vec::new();
        encode(&mut out, &message(&doc! {}), Compressor::Noop).unwrap();
        #[rustfmt::skip]
        assert_eq!(out, [
            35, 0, 0, 0,  5, 0, 0, 0,  0, 0, 0, 0,  0xdc, 7, 0, 0,
            0xdd, 7, 0, 0,  10, 0, 0, 0,  0,
            0, 0, 0, 0,  0,  5, 0, 0, 0, 0,
        ]);
    }

    #[test]
    fn a_false_size_is_refused_before_any_work() {
        for compressor in ALL {
            let plain = &message(&doc! { "ping": 1 })[16..];
            let bytes = compressor.compress(plain).unwrap();
            let size = plain.len() as i32;
            assert!(decode_one(&claim(size, compressor as u8, &bytes)).is_ok());
            for wrong in [-1, 0, size - 1, size + 1, 40_000_000, i32::MAX] {
                assert_eq!(
                    decode_one(&claim(wrong, compressor as u8, &bytes)).unwrap_err(),
                    FrameError::CompressedSize(i64::from(wrong)),
                    "{compressor:?}"
                );
            }
        }
    }

    #[test]
    fn unknown_and_nested_compression_is_refused() {
        assert_eq!(decode_one(&claim(10, 4, &[0; 10])).unwrap_err(), FrameError::Compressor(4));
        let nested = [&op_code::COMPRESSED.to_le_bytes()[..], &10i32.to_le_bytes(), &[0], &[0; 10]].concat();
        assert_eq!(
            decode_one(&frame(op_code::COMPRESSED, &nested)).unwrap_err(),
            FrameError::OpCode(op_code::COMPRESSED)
        );
    }
}
