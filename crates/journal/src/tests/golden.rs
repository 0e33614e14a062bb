//! The stored formats, byte for byte. The files in `tests/golden` were written by the version of their name and
//! never change; zeros at their ends are left out. A new version adds files and goes on reading these.

use super::*;
use crate::frame::stride;
use crate::segment::{self, FRAMES_AT};

const STATE: &[u8] = include_bytes!("../../tests/golden/state-v1.bin");
const EMPTY: &[u8] = include_bytes!("../../tests/golden/segment-v1-empty.bin");
const THREE: &[u8] = include_bytes!("../../tests/golden/segment-v1-three.bin");
const SEALED: &[u8] = include_bytes!("../../tests/golden/segment-v1-sealed.bin");
const TORN: &[u8] = include_bytes!("../../tests/golden/segment-v1-torn.bin");
const NEWER: &[u8] = include_bytes!("../../tests/golden/segment-v2-newer.bin");

/// The log of which the files are: "one", an empty entry and "three" in two parts, the first of them synced.
fn write_three(disk: &SimDisk) -> (Journal, Writer) {
    let (journal, mut writer, _) = open(disk);
    writer.append(&[b"one"], 1000).unwrap();
    sync(&journal);
    writer.append(&[], 2000).unwrap();
    writer.append(&[b"th", b"ree"], 1500).unwrap();
    (journal, writer)
}

fn stored(disk: &SimDisk, name: &str) -> Vec<u8> {
    let mut bytes = disk.contents(name).unwrap();
    bytes.truncate(bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1));
    bytes
}

fn log_of(segment: &[u8]) -> SimDisk {
    let disk = SimDisk::new(0);
    for (name, bytes, len) in [("state", STATE, 8192), (&segment::name(1), segment, 16 << 10)] {
        let mut bytes = bytes.to_vec();
        bytes.resize(len, 0);
        disk.put(name, &bytes);
    }
    disk
}

fn texts(journal: &Journal) -> Vec<(u64, String)> {
    let entries = journal.read_from(1).unwrap().map(Result::unwrap);
    entries.map(|e| (e.time_ns, String::from_utf8(e.payload.to_vec()).unwrap())).collect()
}

fn three() -> Vec<(u64, String)> {
    vec![(1000, "one".into()), (2000, String::new()), (2000, "three".into())]
}

#[test]
fn written_as_ever() {
    let disk = SimDisk::new(7);
    let (_, writer, _) = open(&disk);
    assert_eq!(stored(&disk, &segment::name(1)), EMPTY);
    assert_eq!(stored(&disk, "state"), STATE);
    drop(writer);

    let disk = SimDisk::new(7);
    let (journal, mut writer) = write_three(&disk);
    assert_eq!(stored(&disk, &segment::name(1)), THREE);
    writer.append(&[&[4; 20_000]], 3000).unwrap();
    until("sealed", || journal.0.segments.read()[0].is_sealed());
    assert_eq!(stored(&disk, &segment::name(1)), SEALED);
}

#[test]
fn read_as_ever() {
    let (journal, _writer, recovery) = open(&log_of(EMPTY));
    assert_eq!((recovery.last_index, texts(&journal)), (0, vec![]));
    for segment in [THREE, SEALED] {
        let (journal, _writer, recovery) = open(&log_of(segment));
        assert!(!recovery.clean && recovery.cut.is_none());
        assert_eq!(texts(&journal), three());
    }
    let (journal, _writer, recovery) = open(&log_of(TORN));
    assert_eq!(texts(&journal), three()[..2]);
    let cut = recovery.cut.unwrap();
    assert_eq!((cut.index, cut.offset, cut.bytes), (3, FRAMES_AT + stride(3) + stride(0), 66));
}

#[test]
fn what_a_newer_version_wrote_is_refused() {
    let Err(OpenError::Unsupported { file, what }) = try_open(&log_of(NEWER)) else { panic!("opened") };
    assert_eq!((file.to_str().unwrap(), &*what), ("00000000000000000001.seg", "segment version 2"));
}
