//! How payloads are stored: as they are, compressed, encrypted, or both. Format: `docs/format/segment.md`, "Codec".
//!
//! Invariants
//! * Each frame says how its payload is stored. A log may change its codec; what is there stays readable.
//! * What is encrypted is bound to its log and its place there: an entry that was moved, or given another time, value or
//!   level, is not readable.
//! * A nonce is 24 random bytes of the operating system, asked for anew for each entry, so it never comes twice: also not
//!   where a cut frame is written anew, in a process that was forked, or in a machine that was set back to a snapshot. That
//!   takes 0.4 microseconds, a twentieth of what it takes to append an encrypted entry of 1 KiB.
//! * A stored length is checked before memory is taken for it.
//! * Payloads are stored as they are only if the codec says so: no failure or panic on the way leads there.
//!
//! Encryption is against those who can read the files. They learn lengths, indexes, times, values and levels, which are not
//! encrypted. Compression before encryption lets lengths tell of the content: do not choose both where others can put text
//! of theirs beside secrets.
//!
//! It is not against those who can write the files: the log as a whole is not authenticated. They cannot make a text of
//! their own that the key opens, but they can put entries there that are not encrypted, change terms and durable marks,
//! and remove entries from the end or the beginning. Checksums are no hindrance to them.

use std::fmt;
use std::io;
use std::str::FromStr;

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use rand::TryRng;
use rand::rngs::SysRng;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::compress_bound;

use crate::frame::{Frame, put, u32_at};
use crate::options::PAYLOAD_BYTES_MAX;

const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Before what is compressed: the length of the payload.
const LENGTH_BYTES: usize = 4;
/// Shorter payloads are not compressed.
const COMPRESSED_BYTES_MIN: usize = 64;
/// Buffers that a large payload left are not kept beyond this.
const KEPT_BYTES: usize = 512 << 10;

/// How the payloads of a log are stored from now on.
#[derive(Clone, Debug, Default)]
pub struct Codec {
    /// Compressed where it makes them shorter.
    pub compression: Option<Compression>,
    /// Encrypted with this key. A log that is encrypted once needs its key at every opening; what was appended
    /// before stays as it is.
    pub key: Option<Key>,
}

/// How payloads are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Zstandard (RFC 8878).
    Zstd {
        /// 1 is fast, 19 small; levels below 0 are faster still. From -131072 to 22.
        level: i32,
    },
}

/// The key of an encrypted log: 32 bytes for XChaCha20-Poly1305. Each copy is wiped from memory when it is dropped; traces
/// may stay where it was moved from, and what it was made from is its owner's to wipe.
#[derive(Clone)]
pub struct Key(XChaCha20Poly1305);

impl Key {
    /// A key of these bytes, which should be random.
    pub fn new(bytes: &[u8; 32]) -> Key {
        Key(XChaCha20Poly1305::new(bytes.into()))
    }

    /// What the log's state keeps to know its key again.
    pub(crate) fn check(&self, log_id: &[u8; 16]) -> [u8; TAG_BYTES] {
        let nonce = XNonce::default(); // an entry with this one is not opened
        let tag = self.0.encrypt_inout_detached(&nonce, log_id, (&mut [][..]).into());
        tag.expect("nothing is not too long").into()
    }
}

impl FromStr for Key {
    type Err = KeyError;

    /// 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Key, KeyError> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        let digits: [u8; 64] = digits.and_then(|digits| digits.try_into().ok()).ok_or(KeyError)?;
        Ok(Key::new(&std::array::from_fn(|at| digits[2 * at] << 4 | digits[2 * at + 1])))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// A text that is no key. The text is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 64 hexadecimal digits")]
pub struct KeyError;

/// How one payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Encoding {
    pub compressed: bool,
    pub encrypted: bool,
}

impl Encoding {
    pub(crate) fn code(self) -> u8 {
        u8::from(self.compressed) | u8::from(self.encrypted) << 4
    }

    pub(crate) fn of_code(code: u8) -> Option<Encoding> {
        let encoding = Encoding { compressed: code & 1 != 0, encrypted: code & 16 != 0 };
        (encoding.code() == code).then_some(encoding)
    }

    pub(crate) fn is_plain(self) -> bool {
        self == Encoding::default()
    }
}

/// What an encrypted payload is bound to.
fn place(frame: &Frame, log_id: &[u8; 16]) -> [u8; 43] {
    let mut bytes = [0; 43];
    put(&mut bytes, 0, log_id);
    put(&mut bytes, 16, &frame.index.to_le_bytes());
    put(&mut bytes, 24, &frame.time_ns.to_le_bytes());
    put(&mut bytes, 32, &frame.value.to_le_bytes());
    bytes[40] = frame.kind as u8;
    bytes[41] = frame.encoding.code();
    bytes[42] = frame.level.map_or(0, crate::Level::code);
    bytes
}

/// Makes what is stored of payloads.
pub(crate) struct Coder {
    compressor: Option<Compressor<'static>>,
    key: Option<Key>,
    encoding: Encoding,
    plain: Vec<u8>,
    stored: Vec<u8>,
}

impl Coder {
    pub(crate) fn new(codec: &Codec) -> io::Result<Coder> {
        let compressor = match codec.compression {
            None => None,
            Some(Compression::Zstd { level }) => Some(Compressor::new(level)?),
        };
        let (key, encoding) = (codec.key.clone(), Encoding::default());
        Ok(Coder { compressor, key, encoding, plain: Vec::new(), stored: Vec::new() })
    }

    /// True if payloads are stored as they are: then there is nothing to pack and to seal.
    pub(crate) fn is_plain(&self) -> bool {
        self.compressor.is_none() && self.key.is_none()
    }

    /// Takes in a payload; the number of bytes that will be stored. Fails if the system has no random bytes.
    pub(crate) fn pack(&mut self, parts: &[&[u8]]) -> io::Result<usize> {
        for buffer in [&mut self.plain, &mut self.stored] {
            buffer.clear();
            buffer.shrink_to(KEPT_BYTES);
        }
        self.encoding = Encoding { compressed: false, encrypted: self.key.is_some() };
        if self.encoding.encrypted {
            self.stored.resize(NONCE_BYTES, 0);
            SysRng.try_fill_bytes(&mut self.stored)?;
        }
        if !self.compress(parts) {
            parts.iter().for_each(|part| self.stored.extend_from_slice(part));
        }
        Ok(self.stored.len() + if self.encoding.encrypted { TAG_BYTES } else { 0 })
    }

    /// True if that made it shorter.
    fn compress(&mut self, parts: &[&[u8]]) -> bool {
        let Some(compressor) = &mut self.compressor else { return false };
        let length = parts.iter().map(|part| part.len()).sum();
        if length < COMPRESSED_BYTES_MIN {
            return false;
        }
        parts.iter().for_each(|part| self.plain.extend_from_slice(part));
        let head = self.stored.len();
        let start = head + LENGTH_BYTES;
        self.stored.resize(start + compress_bound(length), 0);
        let compressed = compressor.compress_to_buffer(&self.plain, &mut self.stored[start..]);
        match (compressed, u32::try_from(length)) {
            (Ok(compressed), Ok(plain)) if LENGTH_BYTES + compressed < length => {
                put(&mut self.stored, head, &plain.to_le_bytes());
                self.stored.truncate(start + compressed);
                self.encoding.compressed = true;
            }
            // Stored as it is, which is never wrong.
            _ => self.stored.truncate(head),
        }
        self.encoding.compressed
    }

    /// How the payload that was taken in is stored.
    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// What is stored of it, in the place that `frame` names. [`reuse`](Self::reuse) takes the memory back.
    pub(crate) fn seal(&mut self, frame: &Frame, log_id: &[u8; 16]) -> Vec<u8> {
        if let Some(key) = &self.key {
            let (nonce, body) = self.stored.split_at_mut(NONCE_BYTES);
            let nonce: &[u8; NONCE_BYTES] = (&*nonce).try_into().expect("split there");
            let tag = key.0.encrypt_inout_detached(nonce.into(), &place(frame, log_id), body.into());
            self.stored.extend_from_slice(&tag.expect("a payload's length is far below the cipher's limit"));
        }
        std::mem::take(&mut self.stored)
    }

    /// Takes memory for the next payload.
    pub(crate) fn reuse(&mut self, stored: Vec<u8>) {
        self.stored = stored;
    }
}

/// Why a payload that its frame's checksum found whole cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    NoKey,
    OtherKey,
    Damaged(&'static str),
}

/// Gives payloads back as they were appended.
#[derive(Default)]
pub(crate) struct Decoder {
    key: Option<Key>,
    decompressor: Option<Decompressor<'static>>,
    opened: Vec<u8>,
    plain: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new(key: Option<Key>) -> Decoder {
        Decoder { key, ..Decoder::default() }
    }

    /// Decodes what was stored for a frame; see [`payload`](Self::payload).
    pub(crate) fn decode(
        &mut self,
        stored: &[u8],
        frame: &Frame,
        log_id: &[u8; 16],
    ) -> Result<(), Unreadable> {
        for buffer in [&mut self.opened, &mut self.plain] {
            buffer.clear();
            buffer.shrink_to(KEPT_BYTES);
        }
        let key = self.key.as_ref();
        let body = match frame.encoding {
            Encoding { encrypted: true, compressed: false } => {
                return open(key, stored, frame, log_id, &mut self.plain);
            }
            Encoding { encrypted: true, compressed: true } => {
                open(key, stored, frame, log_id, &mut self.opened)?;
                &self.opened
            }
            Encoding { encrypted: false, compressed: true } => stored,
            Encoding { encrypted: false, compressed: false } => {
                self.plain.extend_from_slice(stored);
                return Ok(());
            }
        };
        const BAD: Unreadable = Unreadable::Damaged("the payload cannot be decompressed");
        let (length, compressed) = body.split_at_checked(LENGTH_BYTES).ok_or(BAD)?;
        let length = u32_at(length, 0);
        if u64::from(length) > PAYLOAD_BYTES_MAX {
            return Err(BAD);
        }
        self.plain.resize(length as usize, 0);
        if self.decompressor.is_none() {
            self.decompressor = Some(Decompressor::new().map_err(|_| BAD)?);
        }
        let decompressor = self.decompressor.as_mut().ok_or(BAD)?;
        match decompressor.decompress_to_buffer(compressed, &mut self.plain[..]) {
            Ok(made) if made == length as usize => Ok(()),
            _ => Err(BAD),
        }
    }

    /// The payload that was decoded last.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.plain
    }
}

/// Decrypts what was stored for a frame into an empty buffer.
fn open(
    key: Option<&Key>,
    stored: &[u8],
    frame: &Frame,
    log_id: &[u8; 16],
    to: &mut Vec<u8>,
) -> Result<(), Unreadable> {
    const SHORT: Unreadable = Unreadable::Damaged("the encrypted payload is too short");
    let key = key.ok_or(Unreadable::NoKey)?;
    let (nonce, sealed) = stored.split_first_chunk::<NONCE_BYTES>().ok_or(SHORT)?;
    let (sealed, tag) = sealed.split_last_chunk::<TAG_BYTES>().ok_or(SHORT)?;
    if *nonce == [0; NONCE_BYTES] {
        // The key's check has it; nothing that was appended does.
        return Err(Unreadable::Damaged("the nonce of the encrypted payload is zeros"));
    }
    to.extend_from_slice(sealed);
    let (tag, place) = (Tag::from(*tag), place(frame, log_id));
    let opened = key.0.decrypt_inout_detached(nonce.into(), &place, to.as_mut_slice().into(), &tag);
    opened.map_err(|_| Unreadable::OtherKey)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: [u8; 16] = [3; 16];

    fn key(byte: u8) -> Key {
        Key::new(&[byte; 32])
    }

    fn codecs() -> impl Strategy<Value = Codec> {
        (any::<bool>(), any::<bool>(), -5..=9).prop_map(|(compresses, encrypts, level)| Codec {
            compression: compresses.then_some(Compression::Zstd { level }),
            key: encrypts.then(|| key(1)),
        })
    }

    fn frame(encoding: Encoding) -> Frame {
        Frame {
            index: 7,
            time_ns: 8,
            value: 9,
            level: Some(crate::Level::Sync),
            encoding,
            ..Frame::default()
        }
    }

    /// What is stored of a payload, and the frame it is stored in.
    fn stored(codec: &Codec, parts: &[&[u8]]) -> Option<(Vec<u8>, Frame)> {
        let mut coder = Coder::new(codec).unwrap();
        if coder.is_plain() {
            return None;
        }
        let length = coder.pack(parts).unwrap();
        let frame = frame(coder.encoding());
        let stored = coder.seal(&frame, &LOG);
        assert_eq!(stored.len(), length, "known before it is encrypted");
        Some((stored, frame))
    }

    fn decoded(key: Option<Key>, stored: &[u8], frame: &Frame) -> Result<Vec<u8>, Unreadable> {
        let mut decoder = Decoder::new(key);
        decoder.decode(stored, frame, &LOG)?;
        Ok(decoder.payload().to_vec())
    }

    #[test]
    fn what_repeats_itself_becomes_short() {
        let codec = Codec { compression: Some(Compression::Zstd { level: 1 }), key: None };
        let (bytes, frame) = stored(&codec, &[&[7; 5000], &[7; 5000]]).unwrap();
        assert!(bytes.len() < 100 && frame.encoding.compressed);
        let (bytes, frame) = stored(&codec, &[b"short"]).unwrap();
        assert_eq!((&bytes[..], frame.encoding), (&b"short"[..], Encoding::default()));
    }

    #[test]
    fn only_the_key_opens_and_only_in_its_place() {
        let codec = Codec { compression: None, key: Some(key(1)) };
        let (bytes, frame) = stored(&codec, &[b"secret ", b"text"]).unwrap();
        assert!(!bytes.windows(6).any(|w| w == b"secret"));
        assert_eq!(decoded(Some(key(1)), &bytes, &frame), Ok(b"secret text".to_vec()));
        assert_eq!(decoded(None, &bytes, &frame), Err(Unreadable::NoKey));
        assert_eq!(decoded(Some(key(2)), &bytes, &frame), Err(Unreadable::OtherKey));
        for moved in [
            Frame { index: 6, ..frame },
            Frame { time_ns: 0, ..frame },
            Frame { value: 0, ..frame },
            Frame { level: None, ..frame },
            Frame { encoding: Encoding { compressed: true, encrypted: true }, ..frame },
        ] {
            assert_eq!(decoded(Some(key(1)), &bytes, &moved), Err(Unreadable::OtherKey), "{moved:?}");
        }
        let again = stored(&codec, &[b"secret ", b"text"]).unwrap().0;
        assert_ne!(bytes, again, "the same text never looks the same");
    }

    /// The tag of the key's check is in the state for all to read: it must not open an entry.
    #[test]
    fn a_nonce_of_zeros_is_not_opened() {
        let frame = frame(Encoding { compressed: false, encrypted: true });
        let key = key(1);
        let mut stored = vec![0; NONCE_BYTES];
        let tag =
            key.0.encrypt_inout_detached(&XNonce::default(), &place(&frame, &LOG), (&mut [][..]).into());
        stored.extend(tag.unwrap());
        let refused = decoded(Some(key), &stored, &frame);
        assert_eq!(refused, Err(Unreadable::Damaged("the nonce of the encrypted payload is zeros")));
    }

    #[test]
    fn a_key_is_known_again_and_not_shown() {
        assert_eq!(key(1).check(&LOG), key(1).check(&LOG));
        assert_ne!(key(1).check(&LOG), key(2).check(&LOG));
        assert_ne!(key(1).check(&LOG), key(1).check(&[4; 16]));
        assert_eq!(
            format!("{:?}", Codec { compression: None, key: Some(key(0x41)) }),
            "Codec { compression: None, key: Some(Key(…)) }"
        );
        let text = "0aF1".repeat(16);
        assert_eq!(
            text.parse::<Key>().unwrap().check(&LOG),
            Key::new(&std::array::from_fn(|at| [0x0a, 0xf1][at % 2])).check(&LOG)
        );
        for wrong in ["", "0a", &"g".repeat(64), &"0".repeat(65), &"é".repeat(32)] {
            assert_eq!(wrong.parse::<Key>().err(), Some(KeyError), "{wrong}");
        }
    }

    #[test]
    fn codes_are_what_the_format_says() {
        let codes = (0..=255).filter(|code| Encoding::of_code(*code).is_some()).collect::<Vec<u8>>();
        assert_eq!(codes, [0, 1, 16, 17]);
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(
            codec in codecs(),
            parts in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..400), 0..4),
        ) {
            let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
            if let Some((bytes, frame)) = stored(&codec, &parts) {
                prop_assert_eq!(frame.encoding.encrypted, codec.key.is_some());
                prop_assert_eq!(decoded(codec.key, &bytes, &frame), Ok(parts.concat()));
            }
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes: Vec<u8>, compressed: bool, encrypted: bool) {
            let frame = frame(Encoding { compressed, encrypted });
            let opened = decoded(Some(key(1)), &bytes, &frame);
            if encrypted {
                prop_assert!(opened.is_err());
            }
        }
    }
}
