//! Reading frames from a segment file: in memory where the file is mapped, or through a copied piece of it.
//!
//! A length is used only after the header that holds it has checked itself and the frame was found to end
//! before `limit`, so a damaged length neither reads nor allocates.

use std::ops::Range;
use std::sync::Arc;

use crate::codec::{Decoder, Key, Unreadable};
use crate::error::DiskError;
use crate::file::{LogFile, PIECE_BYTES};
use crate::frame::{Fault, Frame, HEADER_BYTES, HeaderBytes, stride};
use crate::map::Window;

/// What lies at an offset.
#[derive(Debug)]
pub(crate) enum Slot {
    /// A header of zeros, or no room for a header: nothing was written here.
    Empty,
    /// A header that checks itself, with its link.
    Frame(Frame, u32),
    /// Neither.
    Fault(Fault),
}

/// Looks at a segment file. Past the end of the file it shows zeros.
pub(crate) struct Scanner {
    file: LogFile,
    /// The file in memory: then nothing is copied.
    window: Option<Arc<Window>>,
    log_id: [u8; 16],
    salt: u64,
    buf: Vec<u8>,
    start: u64,
    decoder: Decoder,
}

impl Scanner {
    pub(crate) fn new(file: LogFile, log_id: [u8; 16], salt: u64) -> Self {
        Scanner { file, window: None, log_id, salt, buf: Vec::new(), start: 0, decoder: Decoder::default() }
    }

    /// As [`Scanner::new`], with the key of the log's payloads.
    pub(crate) fn with_key(self, key: Option<Key>) -> Self {
        Scanner { decoder: Decoder::new(key), ..self }
    }

    /// As [`Scanner::new`], reading in memory what that shows.
    pub(crate) fn with_window(self, window: Option<Arc<Window>>) -> Self {
        Scanner { window, ..self }
    }

    pub(crate) fn file(&self) -> &LogFile {
        &self.file
    }

    /// Where the frames end that can be read in memory, while more may come there.
    pub(crate) fn shown_end(&self) -> Option<u64> {
        self.window.as_ref().filter(|window| !window.is_complete()).map(|window| window.published())
    }

    /// Fills the buffer from `offset` on, with `want` bytes if there are so many. Never reads at or past `limit`:
    /// what lies there may still change.
    fn fill(&mut self, offset: u64, want: usize, limit: u64) -> Result<&[u8], DiskError> {
        let most = want.max(PIECE_BYTES);
        let len = usize::try_from(limit.saturating_sub(offset)).unwrap_or(most).min(most);
        if self.buf.capacity() > PIECE_BYTES && len <= PIECE_BYTES {
            // What one large entry needed is not kept.
            self.buf = Vec::new();
        }
        self.buf.clear();
        self.buf.resize(len, 0);
        self.start = offset;
        if let Err(e) = self.file.read(&mut self.buf, offset) {
            self.buf.clear();
            return Err(e);
        }
        Ok(&self.buf)
    }

    /// Some bytes at `offset`, at least one if `offset < limit`.
    pub(crate) fn piece(&mut self, offset: u64, limit: u64) -> Result<&[u8], DiskError> {
        self.bytes(offset, 1, limit)
    }

    /// At least `len` bytes from `offset`, as far as the file or `limit` goes.
    fn bytes(&mut self, offset: u64, len: usize, limit: u64) -> Result<&[u8], DiskError> {
        if self.window.as_ref().is_some_and(|window| window.is_lost()) {
            // The file says what is wrong with it.
            self.window = None;
        }
        let least = offset + len as u64;
        if let Some(window) = self.window.as_ref().filter(|window| window.shows(offset..least)) {
            let most = limit.min(window.published()).min(offset + PIECE_BYTES as u64).max(least);
            let window = self.window.as_ref();
            return Ok(window.and_then(|w| w.bytes(offset..most)).expect("a window shows what it showed"));
        }
        let held = offset
            .checked_sub(self.start)
            .and_then(|skip| usize::try_from(skip).ok())
            .filter(|skip| self.buf.len().checked_sub(*skip).is_some_and(|held| held >= len));
        match held {
            Some(skip) => Ok(&self.buf[skip..]),
            None => self.fill(offset, len, limit),
        }
    }

    /// What lies at `offset`. A frame that would end past `limit` is a fault.
    pub(crate) fn slot(&mut self, offset: u64, limit: u64) -> Result<Slot, DiskError> {
        if offset + HEADER_BYTES > limit {
            return Ok(Slot::Empty);
        }
        let salt = self.salt;
        let bytes = self.bytes(offset, HEADER_BYTES as usize, limit)?;
        let header: &HeaderBytes = bytes[..HEADER_BYTES as usize].try_into().expect("as long as a header");
        if header.iter().all(|b| *b == 0) {
            return Ok(Slot::Empty);
        }
        Ok(match Frame::decode(header, salt) {
            Ok((frame, _)) if stride(frame.payload_len.into()) > limit - offset => {
                Slot::Fault(Fault::Damaged("the frame is longer than its segment"))
            }
            Ok((frame, link)) => Slot::Frame(frame, link),
            Err(fault) => Slot::Fault(fault),
        })
    }

    /// True if the payload of the frame at `offset` is the one its header was made for.
    pub(crate) fn body_matches(&mut self, offset: u64, frame: &Frame, limit: u64) -> Result<bool, DiskError> {
        let mut digest = frame.body_digest(&self.log_id);
        let mut at = offset + HEADER_BYTES;
        let end = at + u64::from(frame.payload_len);
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let piece = self.piece(at, limit)?;
            let piece = &piece[..piece.len().min(want)];
            digest = digest.add(piece);
            at += piece.len() as u64;
        }
        Ok(digest.value() == frame.body_crc)
    }

    /// Where in the file the payload of the frame at `offset` is, which can be had from [`Scanner::shown`] then, or `None`
    /// if it is not the one its header was made for. The frame must have been found to end before `limit`.
    pub(crate) fn body(
        &mut self,
        offset: u64,
        frame: &Frame,
        limit: u64,
    ) -> Result<Option<Range<u64>>, DiskError> {
        let digest = frame.body_digest(&self.log_id);
        let len = frame.payload_len as usize;
        let at = offset + HEADER_BYTES;
        let body = &self.bytes(at, len, limit)?[..len];
        let is_whole = digest.add(body).value() == frame.body_crc;
        Ok(is_whole.then_some(at..at + len as u64))
    }

    /// Bytes of the file that were the last to be looked at.
    pub(crate) fn shown(&self, range: &Range<u64>) -> &[u8] {
        shown(self.window.as_deref(), &self.buf, self.start, range)
    }

    /// An error if what was shown may have been zeros in the place of a page that could not be had.
    pub(crate) fn check_shown(&self) -> Result<(), DiskError> {
        match &self.window {
            Some(window) if window.is_lost() => Err(self.file.error("read")(Window::loss())),
            _ => Ok(()),
        }
    }

    /// Decodes the payload at a place that [`Scanner::body`] found.
    pub(crate) fn decode(&mut self, body: &Range<u64>, frame: &Frame) -> Result<(), Unreadable> {
        let stored = shown(self.window.as_deref(), &self.buf, self.start, body);
        self.decoder.decode(stored, frame, &self.log_id)
    }

    /// The payload of a frame at the place that was looked at last, as it was appended.
    pub(crate) fn payload(&self, body: &Range<u64>, frame: &Frame) -> &[u8] {
        if frame.encoding.is_plain() { self.shown(body) } else { self.decoder.payload() }
    }

    /// Forgets what was read: the file may have changed.
    pub(crate) fn forget(&mut self) {
        self.buf.clear();
    }
}

/// Bytes of a file that a window or the buffer, which begins at `start`, has.
fn shown<'a>(window: Option<&'a Window>, buf: &'a [u8], start: u64, range: &Range<u64>) -> &'a [u8] {
    if let Some(bytes) = window.and_then(|window| window.bytes(range.clone())) {
        return bytes;
    }
    let skip = (range.start - start) as usize;
    &buf[skip..skip + (range.end - range.start) as usize]
}
