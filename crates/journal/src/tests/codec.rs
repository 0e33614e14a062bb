//! Logs whose payloads are compressed and encrypted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::file::Folder;
use crate::segment;
use crate::state::{KeyCheck, State, StateFile};
use crate::{
    AppendError, Codec, Compression, Key, Level, LogView, PAYLOAD_BYTES_MAX, RepairOptions, Terms, repair,
};

fn zstd() -> Codec {
    Codec { compression: Some(Compression::Zstd { level: 1 }), key: None }
}

fn secret(byte: u8) -> Codec {
    Codec { compression: None, key: Some(Key::new(&[byte; 32])) }
}

fn both(byte: u8) -> Codec {
    Codec { key: secret(byte).key, ..zstd() }
}

fn try_open_with(disk: &SimDisk, codec: Codec) -> Result<(Journal, Writer, Recovery), OpenError> {
    Journal::open_on(Arc::new(disk.clone()), Options { codec, ..options() })
}

fn open_with(disk: &SimDisk, codec: Codec) -> (Journal, Writer, Recovery) {
    try_open_with(disk, codec).unwrap()
}

/// Text that compresses well, and differs from entry to entry.
fn text(index: u64) -> Vec<u8> {
    format!("entry {index}: ").into_bytes().repeat(1 + (index % 40) as usize)
}

fn state(disk: &SimDisk) -> State {
    StateFile::open(&Folder::new(Arc::new(disk.clone()))).unwrap().state().clone()
}

fn view(disk: &SimDisk) -> LogView {
    LogView::open_on(Arc::new(disk.clone())).unwrap()
}

fn refuse(disk: &SimDisk, codec: Codec) {
    let refused = try_open_with(disk, codec).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Key { .. }), "{refused}");
}

fn terms() -> Terms {
    Terms { time_ns: 1, value: 5, level: Level::Async }
}

/// Appends the entries from `first` to `last` in each way there is.
fn append_texts(writer: &mut Writer, first: u64, last: u64) {
    for index in first..=last {
        let text = text(index);
        match index % 3 {
            0 => drop(writer.append(&[&text[..3], &text[3..]], 1).unwrap()),
            1 => drop(writer.append_all(&[&text], terms()).unwrap()),
            _ => drop(
                writer
                    .build(terms(), |payload| {
                        payload.extend(&text);
                        Ok::<_, AppendError>(())
                    })
                    .unwrap(),
            ),
        }
        assert_eq!(writer.journal().written(), index);
    }
}

fn check_texts(journal: &Journal, last: u64) {
    let (read, error) = read_all(journal);
    assert!(error.is_none(), "{error:?}");
    assert!(read == (1..=last).map(text).collect::<Vec<_>>(), "{} entries", read.len());
    let mut tailer = journal.tailer();
    tailer.to_end().unwrap();
    for index in (1..=last).rev() {
        assert_eq!(tailer.previous_entry().unwrap().unwrap().payload, text(index), "read backward");
    }
}

#[test]
fn what_is_read_is_what_was_appended() {
    for (name, codec, disk) in [
        ("compressed", zstd(), SimDisk::new(1)),
        ("encrypted", secret(1), SimDisk::new(1)),
        ("both", both(1), SimDisk::new(1)),
        ("both, written by calls", both(1), SimDisk::unmapped(1)),
    ] {
        println!("{name}");
        let (journal, mut writer, _) = open_with(&disk, codec.clone());
        append_texts(&mut writer, 1, 300);
        check_texts(&journal, 300);
        writer.close().unwrap();
        let (journal, mut writer, _) = open_with(&disk, codec.clone());
        append_texts(&mut writer, 301, 400);
        check_texts(&journal, 400);
        drop((journal, writer));
        let (journal, _writer, recovery) = open_with(&disk.kill(), codec);
        assert_eq!((recovery.last_index, recovery.cut.is_none()), (400, true));
        check_texts(&journal, 400);
    }
}

#[test]
fn a_batch_is_whole_or_says_how_far_it_came() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open_with(&disk, both(1));
    let texts: Vec<_> = (1..=100).map(text).collect();
    let texts: Vec<&[u8]> = texts.iter().map(|text| &text[..]).collect();
    assert_eq!(writer.append_all(&texts, terms()).unwrap(), 1..=100);
    check_texts(&journal, 100);
}

#[test]
fn a_log_becomes_smaller_and_says_nothing_of_its_content() {
    let used = |codec| {
        let disk = SimDisk::new(1);
        let (_, mut writer, _) = open_with(&disk, codec);
        for _ in 0..10 {
            writer.append(&[b"the same words again. ".repeat(20).as_slice()], 1).unwrap();
        }
        let bytes = disk.contents(&segment::name(1)).unwrap();
        let end = bytes.iter().rposition(|b| *b != 0).unwrap() - segment::FRAMES_AT as usize;
        (end, bytes.windows(5).any(|w| w == b"words"))
    };
    let (plain, shows) = used(Codec::default());
    assert!(shows);
    let (end, _) = used(zstd());
    assert!(end < plain / 2, "{end} of {plain} bytes");
    assert!(!used(secret(1)).1);
    let (end, shows) = used(both(1));
    assert!(end < plain / 2 && !shows);
}

#[test]
fn an_encrypted_log_needs_its_key() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    writer.append(&[b"before"], 1).unwrap();
    writer.close().unwrap();
    drop(journal);
    // From now on; what is there stays as it is.
    let (_, mut writer, _) = open_with(&disk, secret(1));
    writer.append(&[b"after"], 1).unwrap();
    writer.close().unwrap();
    for codec in [Codec::default(), zstd(), secret(2)] {
        refuse(&disk, codec);
    }
    // Another codec beside the key is a choice for what comes.
    let (journal, _writer, _) = open_with(&disk, both(1));
    assert_eq!(read_all(&journal).0, [&b"before"[..], b"after"]);

    let view = || view(&disk);
    assert!(view().is_encrypted());
    let mut tailer = view().tailer();
    assert_eq!(tailer.next_entry().unwrap().unwrap().payload, b"before");
    for _ in 0..2 {
        let refused = tailer.next_entry().map(drop).unwrap_err();
        assert!(matches!(refused, ReadError::Key { index: 2, .. }), "{refused}");
    }
    assert!(matches!(view().with_key(Key::new(&[2; 32])), Err(OpenError::Key { .. })));
    let mut tailer = view().with_key(Key::new(&[1; 32])).unwrap().tailer();
    tailer.to_end().unwrap();
    assert_eq!(tailer.previous_entry().unwrap().unwrap().payload, b"after");
}

#[test]
fn a_key_that_is_refused_changes_nothing() {
    let disk = SimDisk::new(1);
    let (_, mut writer, _) = open_with(&disk, secret(1));
    append_texts(&mut writer, 1, 30);
    // The next opening has things to do.
    let disk = disk.kill();
    let files = |disk: &SimDisk| {
        let names = disk.sorted_names().into_iter().filter(|name| name != "lock");
        names.map(|name| (disk.contents(&name), name)).collect::<Vec<_>>()
    };
    let before = files(&disk);
    for codec in [Codec::default(), secret(2)] {
        refuse(&disk, codec);
        assert!(files(&disk) == before, "something was changed");
    }
}

/// A panic in an append must not turn the encryption off.
#[test]
fn what_comes_after_a_panic_is_encrypted_too() {
    for disk in [SimDisk::new(1), SimDisk::unmapped(1)] {
        let (journal, mut writer, _) = open_with(&disk, secret(1));
        writer.append(&[b"first words"], 1).unwrap();
        disk.panic_once();
        assert!(catch_unwind(AssertUnwindSafe(|| writer.append(&[b"lost words"], 1))).is_err());
        writer.append(&[b"last words"], 1).unwrap();
        assert_eq!(read_all(&journal).0, [&b"first words"[..], b"last words"]);
        let bytes = disk.contents(&segment::name(1)).unwrap();
        assert!(!bytes.windows(5).any(|w| w == b"words"));
    }
}

/// A log whose state was lost is not taken for one that was never encrypted.
#[test]
fn a_repaired_log_needs_its_key() {
    for first in [Codec::default(), secret(1)] {
        let disk = SimDisk::new(1);
        let (_, mut writer, _) = open_with(&disk, first);
        append_texts(&mut writer, 1, 100);
        writer.close().unwrap();
        let (_, mut writer, _) = open_with(&disk, secret(1));
        append_texts(&mut writer, 101, 150);
        writer.close().unwrap();
        disk.take("state");
        let report = repair(Arc::new(disk.clone()), RepairOptions::default()).unwrap();
        assert!(report.state_rebuilt && report.last_index == 150);
        assert_eq!(state(&disk).key_check, Some(KeyCheck::Lost));
        for codec in [Codec::default(), zstd(), secret(2)] {
            refuse(&disk, codec);
        }
        assert!(view(&disk).is_encrypted());
        assert!(matches!(view(&disk).with_key(Key::new(&[2; 32])), Err(OpenError::Key { .. })));
        view(&disk).with_key(Key::new(&[1; 32])).unwrap();

        let (journal, writer, _) = open_with(&disk, secret(1));
        check_texts(&journal, 150);
        writer.close().unwrap();
        let log_id = state(&disk).log_id;
        let check = Key::new(&[1; 32]).check(&log_id);
        assert_eq!(state(&disk).key_check, Some(KeyCheck::Tag(check)), "it is known again");
    }
    let disk = SimDisk::new(1);
    let (_, mut writer, _) = open_with(&disk, zstd());
    append_texts(&mut writer, 1, 20);
    writer.close().unwrap();
    disk.take("state");
    repair(Arc::new(disk.clone()), RepairOptions::default()).unwrap();
    check_texts(&open(&disk).0, 20);
}

/// What a range of times leaves out need not be readable.
#[test]
fn entries_outside_of_a_range_are_not_decrypted() {
    let disk = SimDisk::new(1);
    for (codec, time) in [(Codec::default(), 5), (secret(1), 10)] {
        let (_, mut writer, _) = open_with(&disk, codec);
        writer.append(&[b"entry"], time).unwrap();
        writer.close().unwrap();
    }
    let mut tailer = view(&disk).tailer().with_times(..10);
    assert_eq!(tailer.next_entry().unwrap().map(|e| e.index), Some(1));
    assert_eq!(tailer.next_entry().unwrap(), None);
    tailer.to_end().unwrap();
    assert_eq!(tailer.previous_entry().unwrap().map(|e| e.index), Some(1));
    let mut tailer = view(&disk).tailer().with_times(11..);
    assert_eq!(tailer.next_entry().unwrap(), None);
}

#[test]
fn a_copied_entry_is_not_read() {
    let disk = SimDisk::new(1);
    let (_, mut writer, _) = open_with(&disk, secret(1));
    writer.append(&[b"pay 1"], 1).unwrap();
    writer.append(&[b"pay 2"], 1).unwrap();
    writer.close().unwrap();
    let name = segment::name(1);
    let mut bytes = disk.contents(&name).unwrap();
    // Who can write the files can make checksums fit, but not what the key protects.
    let stride = crate::frame::stride(5 + 40) as usize;
    let first = segment::FRAMES_AT as usize;
    let body = bytes[first + 64..first + 64 + 45].to_vec();
    bytes[first + stride + 64..first + stride + 64 + 45].copy_from_slice(&body);
    let log_id = state(&disk).log_id;
    let salt = crate::frame::u64_at(&bytes, 32);
    let header: [u8; 64] = bytes[first + stride..first + stride + 64].try_into().unwrap();
    let (frame, _) = crate::frame::Frame::decode(&header, salt).unwrap();
    let (header, _) = frame.with_payload(&log_id, &[&body]).encode(salt);
    bytes[first + stride..first + stride + 64].copy_from_slice(&header);
    disk.put(&name, &bytes);
    let view = view(&disk).with_key(Key::new(&[1; 32])).unwrap();
    let mut tailer = view.tailer();
    assert_eq!(tailer.next_entry().unwrap().unwrap().payload, b"pay 1");
    assert!(matches!(tailer.next_entry(), Err(ReadError::Key { index: 2, .. })));
}

#[test]
fn damage_is_damage_whatever_the_codec() {
    let disk = SimDisk::new(1);
    let (_, mut writer, _) = open_with(&disk, both(1));
    append_texts(&mut writer, 1, 20);
    writer.close().unwrap();
    let name = segment::name(1);
    let bytes = disk.contents(&name).unwrap();
    let mut found = 0;
    for at in (segment::FRAMES_AT as usize..bytes.len()).step_by(97) {
        let mut changed = bytes.clone();
        changed[at] ^= 4;
        disk.put(&name, &changed);
        let refused = match try_open_with(&disk.kill(), both(1)) {
            Ok((journal, _writer, _)) => read_all(&journal).1.map(|e| e.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(text) = refused {
            assert!(text.contains("damaged"), "{text}");
            found += 1;
        }
    }
    assert!(found > 10);
}

#[test]
fn what_encryption_adds_counts_too() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open_with(&disk, secret(1));
    let largest = vec![1; PAYLOAD_BYTES_MAX as usize];
    assert!(matches!(writer.append(&[&largest], 1), Err(AppendError::TooLarge { .. })));
    assert!(matches!(writer.append(&[&largest, b"1"], 1), Err(AppendError::TooLarge { .. })));
    writer.append(&[b"and goes on"], 1).unwrap();
    assert_eq!(journal.written(), 1);
}

#[test]
fn a_power_cut_costs_no_more_than_without_a_codec() {
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        let (journal, mut writer, _) = open_with(&disk, both(1));
        append_texts(&mut writer, 1, 60);
        sync(&journal);
        append_texts(&mut writer, 61, 120);
        let (journal, _writer, recovery) = open_with(&disk.crash(seed), both(1));
        assert!(recovery.last_index >= 60);
        check_texts(&journal, recovery.last_index);
    }
}
