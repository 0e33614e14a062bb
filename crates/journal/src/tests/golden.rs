//! The stored formats, byte for byte. The files in `tests/golden` were written by the version of their name and
//! never change; zeros at their ends are left out. A new version adds files and goes on reading these.

use super::*;
use crate::cursor::Cursor;
use crate::file::Folder;
use crate::frame::stride;
use crate::segment::{self, FRAMES_AT};
use crate::{Cycle, CycleChoice, CycleLength, Level, RiskPolicy, Terms};

const STATE_1: &[u8] = include_bytes!("../../tests/golden/state-v1.bin");
const EMPTY_1: &[u8] = include_bytes!("../../tests/golden/segment-v1-empty.bin");
const THREE_1: &[u8] = include_bytes!("../../tests/golden/segment-v1-three.bin");
const SEALED_1: &[u8] = include_bytes!("../../tests/golden/segment-v1-sealed.bin");
const TORN_1: &[u8] = include_bytes!("../../tests/golden/segment-v1-torn.bin");

const STATE: &[u8] = include_bytes!("../../tests/golden/state-v2.bin");
const STATE_DAILY: &[u8] = include_bytes!("../../tests/golden/state-v2-daily.bin");
const STATE_KEY: &[u8] = include_bytes!("../../tests/golden/state-v3.bin");
const CODED: &[u8] = include_bytes!("../../tests/golden/segment-v2-coded.bin");
const EMPTY: &[u8] = include_bytes!("../../tests/golden/segment-v2-empty.bin");
const FOUR: &[u8] = include_bytes!("../../tests/golden/segment-v2-four.bin");
const SEALED: &[u8] = include_bytes!("../../tests/golden/segment-v2-sealed.bin");
const CURSOR: &[u8] = include_bytes!("../../tests/golden/cursor-v1.bin");
const NEWER: &[u8] = include_bytes!("../../tests/golden/segment-v3-newer.bin");

const SEGMENT_BYTES: usize = 16 << 10;

/// "one", the mark of its sync, an empty entry, and "three" at level *risk* with the value 7.
fn write_four(disk: &SimDisk) -> (Journal, Writer) {
    let risk = RiskPolicy { announce: true, ..RiskPolicy::default() };
    let options = Options { risk: Some(risk), ..options() };
    let (journal, mut writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    writer.append(&[b"one"], 1000).unwrap();
    journal.fence();
    until("the mark is there", || journal.written() == 2);
    writer.append(&[], 2000).unwrap();
    writer.append_on(&[b"th", b"ree"], Terms { time_ns: 1500, value: 7, level: Level::Risk }).unwrap();
    (journal, writer)
}

fn stored(disk: &SimDisk, name: &str) -> Vec<u8> {
    let mut bytes = disk.contents(name).unwrap();
    bytes.truncate(bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1));
    bytes
}

fn log_of(state: &[u8], segment: &[u8], segment_bytes: usize) -> SimDisk {
    let disk = SimDisk::new(0);
    for (name, bytes, len) in [("state", state, 8192), (&segment::name(1), segment, segment_bytes)] {
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

/// Compares with a file, or writes it where it was asked for: `ROCKDOVE_GOLDEN=write`, once for each version.
fn is_golden(name: &str, golden: &[u8], bytes: &[u8]) {
    if std::env::var_os("ROCKDOVE_GOLDEN").is_some_and(|v| v == "write") {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        return std::fs::write(path, bytes).unwrap();
    }
    assert!(bytes == golden, "{name}");
}

#[test]
fn written_as_ever() {
    let disk = SimDisk::new(7);
    let (_, writer, _) = open(&disk);
    is_golden("segment-v2-empty.bin", EMPTY, &stored(&disk, &segment::name(1)));
    is_golden("state-v2.bin", STATE, &stored(&disk, "state"));
    drop(writer);

    let disk = SimDisk::new(7);
    let (journal, mut writer) = write_four(&disk);
    let four = stored(&disk, &segment::name(1));
    is_golden("segment-v2-four.bin", FOUR, &four);
    let mut newer = four;
    newer[8] = 3;
    let crc = crate::checksum::Crc32c::new().add(&newer[..48]).value();
    newer[48..52].copy_from_slice(&crc.to_le_bytes());
    is_golden("segment-v3-newer.bin", NEWER, &newer);
    let folder = Folder::new(Arc::new(disk.clone()));
    let mut cursor = Cursor::open(folder, journal.0.log_id, "billing").unwrap();
    let mut tailer = journal.tailer();
    for _ in 0..2 {
        tailer.next_entry().unwrap().unwrap();
        cursor.store(tailer.position(), journal.synced()).unwrap();
    }
    is_golden("cursor-v1.bin", CURSOR, &stored(&disk, "cursor-billing.pos"));
    writer.append(&[&[4; 20_000]], 3000).unwrap();
    until("sealed", || journal.0.segments.read()[0].disk_bytes() < SEGMENT_BYTES as u64);
    is_golden("segment-v2-sealed.bin", SEALED, &stored(&disk, &segment::name(1)));
    drop(writer);

    let disk = SimDisk::new(7);
    let cycle = Cycle::new(CycleLength::Day, "Europe/Berlin").unwrap();
    let options = Options { cycle: CycleChoice::Exactly(Some(cycle)), ..options() };
    let _log = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    is_golden("state-v2-daily.bin", STATE_DAILY, &stored(&disk, "state"));
}

#[test]
fn read_as_ever() {
    let (journal, _writer, recovery) = open(&log_of(STATE, EMPTY, SEGMENT_BYTES));
    assert_eq!((recovery.last_index, texts(&journal), journal.cycle()), (0, vec![], None));
    for (segment, bytes) in [(FOUR, SEGMENT_BYTES), (SEALED, 12 << 10)] {
        let (journal, _writer, recovery) = open(&log_of(STATE, segment, bytes));
        assert!(!recovery.clean && recovery.cut.is_none());
        assert_eq!((recovery.last_index, texts(&journal)), (4, three()));
        let mut tailer = journal.tailer();
        let _ = tailer.move_to_index(4).unwrap();
        let entry = tailer.next_entry().unwrap().unwrap();
        assert_eq!((entry.value, entry.level), (7, Some(Level::Risk)));
    }
    let (journal, _writer, _) = open(&log_of(STATE_DAILY, EMPTY, SEGMENT_BYTES));
    assert_eq!(journal.cycle().unwrap().to_string(), "daily@Europe/Berlin");

    let disk = log_of(STATE, FOUR, SEGMENT_BYTES);
    let mut bytes = CURSOR.to_vec();
    bytes.resize(8192, 0);
    disk.put("cursor-billing.pos", &bytes);
    let (journal, _writer, _) = open(&disk);
    assert_eq!(journal.named_tailer("billing").unwrap().position(), 4);
}

#[test]
fn version_1_is_read_and_goes_on() {
    let (journal, _writer, recovery) = open(&log_of(STATE_1, EMPTY_1, SEGMENT_BYTES));
    assert_eq!((recovery.last_index, texts(&journal)), (0, vec![]));
    for segment in [THREE_1, SEALED_1] {
        let disk = log_of(STATE_1, segment, SEGMENT_BYTES);
        let (journal, mut writer, recovery) = open(&disk);
        assert!(!recovery.clean && recovery.cut.is_none());
        assert_eq!((texts(&journal), journal.cycle()), (three(), None));
        writer.append(&[b"four"], 3000).unwrap();
        writer.close().unwrap();
        assert_eq!(open(&disk).2.last_index, 4);
    }
    let (journal, _writer, recovery) = open(&log_of(STATE_1, TORN_1, SEGMENT_BYTES));
    assert_eq!(texts(&journal), three()[..2]);
    let cut = recovery.cut.unwrap();
    assert_eq!((cut.index, cut.offset, cut.bytes), (3, FRAMES_AT + stride(3) + stride(0), 66));
}

#[test]
fn what_a_newer_version_wrote_is_refused() {
    let Err(OpenError::Unsupported { file, what }) = try_open(&log_of(STATE, NEWER, SEGMENT_BYTES)) else {
        panic!("opened")
    };
    assert_eq!((file.to_str().unwrap(), &*what), ("00000000000000000001.seg", "segment version 3"));
}

/// Three entries: as it is, compressed, and compressed and encrypted with a key of bytes 0 to 31.
fn coded_texts() -> [Vec<u8>; 3] {
    [b"as it is".to_vec(), b"again and ".repeat(20), b"a secret, ".repeat(20)]
}

fn golden_key() -> crate::Key {
    crate::Key::new(&std::array::from_fn(|at| at as u8))
}

#[test]
fn payloads_of_each_codec_are_read_as_ever() {
    let disk = log_of(STATE_KEY, CODED, SEGMENT_BYTES);
    let view = crate::LogView::open_on(Arc::new(disk)).unwrap().with_key(golden_key()).unwrap();
    let mut tailer = view.tailer();
    for text in coded_texts() {
        assert_eq!(tailer.next_entry().unwrap().unwrap().payload, text);
    }
    assert!(tailer.next_entry().unwrap().is_none());
}
