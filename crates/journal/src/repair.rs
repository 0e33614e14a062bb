//! Making a recovered log durable: cutting the torn tail, writing anew what is not proven to be on disk, sealing.
//!
//! Order of a cut: the copy is durable before anything changes; then later segments lose their names, newest
//! first; then the tail is zeroed. An interruption leaves a log for which the same verdict is reached again.

use crate::error::{DiskError, OpenError};
use crate::file::{Folder, LogFile, PIECE_BYTES};
use crate::frame::stride;
use crate::recover::{Cut, Evidence, Found, Stop};
use crate::scan::Slot;
use crate::segment::{FRAMES_AT, Seal, TEMP_ENDING};
use crate::sync::write_seal;

/// Cuts everything from the stop on, if there is anything. `index` is the first that will be no more.
pub(crate) fn cut(
    folder: &Folder,
    found: &mut Vec<Found>,
    stop: &Stop,
    evidence: &[Evidence],
    index: u64,
) -> Result<Option<Cut>, OpenError> {
    let bytes = evidence.iter().map(|e| e.end - e.start).sum();
    let place = &found[stop.segment];
    let mut report = Cut {
        index,
        file: place.file.path(),
        offset: stop.offset,
        what: stop.what,
        bytes,
        lost: whole_range(evidence),
        kept_in: Vec::new(),
    };
    let tail = evidence.first().filter(|e| stop.keep && e.end > e.start);
    if let Some(tail) = tail {
        let name = free_name(folder, index)?;
        copy_aside(folder, &place.file, tail, &name)?;
        report.kept_in.push(folder.path(&name));
    }
    let first_gone = stop.segment + usize::from(stop.keep);
    for (i, segment) in found.drain(first_gone..).enumerate().rev() {
        let evidence = &evidence[i + usize::from(stop.keep)];
        if evidence.end > evidence.start {
            let name = free_name(folder, segment.base)?;
            folder.rename(&segment.name, &name)?;
            report.kept_in.push(folder.path(&name));
        } else {
            folder.remove(&segment.name)?;
        }
        folder.sync_names()?;
    }
    if let (Some(tail), Some(segment)) = (tail, found.last_mut()) {
        segment.file.write_zeros(tail.start, tail.end, PIECE_BYTES)?;
    }
    Ok((bytes > 0).then_some(report))
}

fn whole_range(evidence: &[Evidence]) -> Option<std::ops::RangeInclusive<u64>> {
    let whole = || evidence.iter().filter_map(|e| e.whole);
    Some(whole().map(|w| w.0).min()?..=whole().map(|w| w.1).max()?)
}

/// A name for cut bytes that is not in use.
pub(crate) fn free_name(folder: &Folder, index: u64) -> Result<String, DiskError> {
    let names = folder.names()?;
    let candidates = (0u64..).map(|i| format!("cut-{index:020}-{i}.lost"));
    Ok(candidates.into_iter().find(|n| !names.contains(n)).expect("fewer names than numbers"))
}

fn copy_aside(folder: &Folder, from: &LogFile, tail: &Evidence, name: &str) -> Result<(), DiskError> {
    let temp = format!("{name}{TEMP_ENDING}");
    let to = folder.create(&temp)?;
    copy(from, tail.start, tail.end, &to, 0)?;
    to.sync()?;
    folder.rename(&temp, name)?;
    folder.sync_names()
}

/// Copies the bytes `start..end` of a file to another or the same one.
fn copy(from: &LogFile, start: u64, end: u64, to: &LogFile, to_offset: u64) -> Result<(), DiskError> {
    let mut buf = vec![0; PIECE_BYTES];
    let mut at = start;
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let got = from.read(&mut buf[..want], at)?;
        if got == 0 {
            break;
        }
        to.write_bytes(&buf[..got], to_offset + (at - start))?;
        at += got as u64;
    }
    Ok(())
}

/// Makes all that is kept durable, and seals every segment but the last. `durable` is proven already.
pub(crate) fn settle(found: &mut [Found], durable: u64, log_id: [u8; 16]) -> Result<(), DiskError> {
    let last_position = found.len().saturating_sub(1);
    for (i, segment) in found.iter_mut().enumerate() {
        if segment.seal.is_some() {
            continue;
        }
        let start = first_after(segment, durable, log_id)?;
        copy(&segment.file, start, segment.end, &segment.file, start)?;
        segment.file.sync()?;
        if i < last_position {
            let last = segment.last;
            let seal = Seal {
                last: last.index,
                end: segment.end,
                term: last.term,
                time_ns: last.time_ns,
                link: last.link,
            };
            write_seal(&segment.file, &seal, segment.header.salt)?;
            segment.seal = Some(seal);
        }
    }
    Ok(())
}

/// Where the first frame after `durable` begins, the end of the frames if there is none.
fn first_after(segment: &Found, durable: u64, log_id: [u8; 16]) -> Result<u64, DiskError> {
    if segment.last.index <= durable {
        return Ok(segment.end);
    }
    let mut scanner = segment.scanner(log_id);
    let mut at = FRAMES_AT;
    while at < segment.end {
        match scanner.slot(at, segment.end)? {
            Slot::Frame(frame, _) if frame.index <= durable => at += stride(frame.payload_len.into()),
            _ => break,
        }
    }
    Ok(at)
}
