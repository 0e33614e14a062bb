//! Damage from outside: flipped bits, cut, swapped and missing files. Durable data is never cut and nothing that
//! was not appended is ever read; the error names the file.

use std::path::PathBuf;

use super::*;
use crate::Damage;
use crate::segment::{self, FRAMES_AT, SEAL_AT};

const LEN: usize = 300;
/// All that was synced before the crash; the entries after it were written only.
const DURABLE: u64 = 50;
const WRITTEN: u64 = 56;

/// A log of three segments or more that was not closed. Its last entries were not synced.
fn crashed() -> SimDisk {
    crashed_after(DURABLE)
}

/// The same with another durable mark, as far as sealed segments do not set it higher.
fn crashed_after(durable: u64) -> SimDisk {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=durable, LEN);
    sync(&journal);
    append(&mut writer, durable + 1..=WRITTEN, LEN);
    until("all but the active segment are sealed", || {
        journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed())
    });
    disk.kill()
}

fn closed() -> SimDisk {
    let disk = crashed();
    open(&disk).1.close().unwrap();
    disk
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.sorted_names().into_iter().filter(|n| segment::base_of(n).is_some()).collect()
}

fn damage_of(disk: &SimDisk) -> Damage {
    match try_open(disk) {
        Err(OpenError::Damaged(damage)) => damage,
        Err(other) => panic!("not damage: {other}"),
        Ok((_, _, recovery)) => panic!("opened: {recovery:?}"),
    }
}

/// Opens a damaged log. Either an error that names a file, or a log that yields entries as they were appended, all
/// durable ones among them unless a reading error says otherwise. True if the damage had any effect.
fn judge(disk: &SimDisk, durable: u64, what: &str) -> bool {
    let (journal, _writer, recovery) = match try_open(disk) {
        Ok(opened) => opened,
        Err(OpenError::Damaged(Damage { file, .. }) | OpenError::Unsupported { file, .. }) => {
            assert!(disk.contents(file.to_str().unwrap()).is_some(), "{what}: no file {file:?}");
            return true;
        }
        Err(other) => panic!("{what}: {other}"),
    };
    assert!(recovery.last_index >= durable, "{what}: cut to {}", recovery.last_index);
    assert!(recovery.last_index == WRITTEN || recovery.cut.is_some(), "{what}: cut silently");
    let (read, error) = read_all(&journal);
    for (bytes, index) in read.iter().zip(1..) {
        assert!(*bytes == payload(index, LEN), "{what}: entry {index} is another");
    }
    match &error {
        None => assert_eq!(read.len() as u64, recovery.last_index, "{what}"),
        Some(ReadError::Damaged(damage)) => assert_eq!(damage.index, read.len() as u64 + 1, "{what}"),
        Some(other) => panic!("{what}: {other}"),
    }
    error.is_some() || recovery.cut.is_some()
}

fn flips_are_found(disk: &SimDisk, durable: u64) {
    for name in segments(disk) {
        let bytes = disk.contents(&name).unwrap();
        let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
        let header = 0..64;
        let seal = SEAL_AT as usize..SEAL_AT as usize + 64;
        let frames = (FRAMES_AT as usize..used).step_by(7);
        for (at, bit) in header.chain(seal).chain(frames).zip((0..8).cycle()) {
            let damaged = disk.kill();
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            damaged.put(&name, &bytes);
            judge(&damaged, durable, &format!("{name} byte {at} bit {bit}"));
        }
    }
}

#[test]
fn flipped_bits_after_a_crash() {
    flips_are_found(&crashed(), DURABLE);
}

#[test]
fn flipped_bits_after_a_clean_close() {
    flips_are_found(&closed(), WRITTEN);
}

#[test]
fn flipped_bits_in_frames_have_an_effect() {
    let disk = crashed();
    for name in segments(&disk) {
        let bytes = disk.contents(&name).unwrap();
        let at = FRAMES_AT as usize;
        for at in (at..at + 64).chain([at + 100]) {
            let damaged = disk.kill();
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            damaged.put(&name, &bytes);
            assert!(judge(&damaged, DURABLE, &name), "{name} byte {at}");
        }
    }
}

#[test]
fn a_file_of_another_length_is_damage() {
    let disk = crashed();
    for name in segments(&disk) {
        let bytes = disk.contents(&name).unwrap();
        for len in (0..bytes.len()).step_by(61).chain([bytes.len() - 1, bytes.len() + 1]) {
            let damaged = disk.kill();
            let mut bytes = bytes.clone();
            bytes.resize(len, 0);
            damaged.put(&name, &bytes);
            assert_eq!(damage_of(&damaged).file, PathBuf::from(&name), "{len} bytes");
        }
    }
}

/// The unsynced tail is zero from any byte on.
#[test]
fn a_tail_that_ends_at_any_byte() {
    let disk = crashed_after(1);
    let name = segments(&disk).pop().unwrap();
    let bytes = disk.contents(&name).unwrap();
    let base = segment::base_of(&name).unwrap();
    let stride = crate::frame::stride(LEN as u64 + 8) as usize;
    let frame_end = |index: u64| FRAMES_AT as usize + (index - base) as usize * stride + 64 + 8 + LEN;
    let ends = (base..=WRITTEN).flat_map(|i| frame_end(i) - 1..=frame_end(i));
    for len in (FRAMES_AT as usize..frame_end(WRITTEN)).step_by(5).chain(ends) {
        let damaged = disk.kill();
        let mut bytes = bytes.clone();
        bytes[len..].fill(0);
        damaged.put(&name, &bytes);
        let (journal, _writer, recovery) = open(&damaged);
        let whole = (base..=WRITTEN).filter(|i| frame_end(*i) <= len).count() as u64;
        assert_eq!(recovery.last_index, base - 1 + whole, "{len} bytes");
        check(&journal, recovery.last_index, LEN);
    }
}

#[test]
fn damage_below_the_mark_names_file_offset_and_entry_and_changes_nothing() {
    let disk = crashed();
    let name = segments(&disk).pop().unwrap();
    let base = segment::base_of(&name).unwrap();
    assert!(base < DURABLE);
    let mut bytes = disk.contents(&name).unwrap();
    let second = FRAMES_AT + crate::frame::stride(LEN as u64 + 8);
    bytes[second as usize + 70] ^= 1;
    disk.put(&name, &bytes);
    let files = |disk: &SimDisk| -> Vec<_> {
        let names = disk.sorted_names().into_iter().filter(|n| !n.ends_with(".tmp"));
        names.map(|n| (disk.contents(&n), n)).collect()
    };
    let before = files(&disk);
    for _ in 0..2 {
        let damage = damage_of(&disk);
        assert_eq!((damage.file, damage.offset, damage.index), (PathBuf::from(&name), second, base + 1));
        assert!(files(&disk) == before, "opening changed a file");
    }
}

#[test]
fn a_torn_tail_is_cut_once_and_kept() {
    let disk = crashed();
    let name = segments(&disk).pop().unwrap();
    let mut bytes = disk.contents(&name).unwrap();
    let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
    let torn = bytes[used - 100..used].to_vec();
    bytes[used - 100..used].fill(0);
    disk.put(&name, &bytes);
    let (journal, writer, recovery) = open(&disk);
    let cut = recovery.cut.unwrap();
    assert_eq!((cut.index, cut.lost), (WRITTEN, None));
    let kept = disk.contents(cut.kept_in[0].to_str().unwrap()).unwrap();
    assert_eq!(kept.len() as u64, cut.bytes);
    assert_eq!(kept, bytes[cut.offset as usize..cut.offset as usize + kept.len()]);
    check(&journal, WRITTEN - 1, LEN);
    assert_ne!(torn, vec![0; 100]);
    drop(writer);
    let (journal, mut writer, recovery) = open(&disk);
    assert_eq!((recovery.last_index, recovery.cut), (WRITTEN - 1, None));
    append(&mut writer, WRITTEN..=WRITTEN, LEN);
    check(&journal, WRITTEN, LEN);
}

#[test]
fn a_hole_in_the_unsynced_tail_is_cut_and_what_it_cost_is_told() {
    let disk = crashed();
    let name = segments(&disk).pop().unwrap();
    let base = segment::base_of(&name).unwrap();
    let mut bytes = disk.contents(&name).unwrap();
    let hole = FRAMES_AT + (DURABLE + 1 - base) * crate::frame::stride(LEN as u64 + 8);
    bytes[hole as usize..hole as usize + 64].fill(0);
    disk.put(&name, &bytes);
    let (journal, _writer, recovery) = open(&disk);
    let cut = recovery.cut.unwrap();
    assert_eq!((cut.index, cut.lost, cut.offset), (DURABLE + 1, Some(DURABLE + 2..=WRITTEN), hole));
    check(&journal, DURABLE, LEN);
}

#[test]
fn missing_segments() {
    let disk = closed();
    let names = segments(&disk);
    assert!(names.len() >= 3, "{names:?}");
    for name in &names {
        let damaged = disk.kill();
        damaged.take(name);
        assert!(damage_of(&damaged).index > 0, "without {name}");
    }
    let damaged = disk.kill();
    names.iter().for_each(|n| damaged.take(n));
    assert_eq!(damage_of(&damaged).index, 1);
}

#[test]
fn swapped_and_foreign_segments() {
    let disk = closed();
    let names = segments(&disk);
    let damaged = disk.kill();
    damaged.put(&names[0], &disk.contents(&names[1]).unwrap());
    damaged.put(&names[1], &disk.contents(&names[0]).unwrap());
    damage_of(&damaged);

    let other = SimDisk::new(99);
    append(&mut open(&other).1, 1..=5, LEN);
    let damaged = disk.kill();
    damaged.put(&names[0], &other.contents(&segment::name(1)).unwrap());
    assert_eq!(damage_of(&damaged).what, "the segment belongs to another log");
}

#[test]
fn an_old_frame_after_the_end_is_never_revived() {
    let disk = crashed();
    let name = segments(&disk).pop().unwrap();
    let mut bytes = disk.contents(&name).unwrap();
    let frame = crate::frame::stride(LEN as u64 + 8) as usize;
    let used = (bytes.iter().rposition(|b| *b != 0).unwrap() + 1).next_multiple_of(16);
    bytes.copy_within(FRAMES_AT as usize..FRAMES_AT as usize + frame, used);
    disk.put(&name, &bytes);
    let (journal, _writer, recovery) = open(&disk);
    assert_eq!(recovery.last_index, WRITTEN);
    assert_eq!(recovery.cut.unwrap().lost, None);
    check(&journal, WRITTEN, LEN);
}

/// Two futures of one log in the same file: the later part of one does not fit the earlier part of the other,
/// although indexes, lengths and the file's salt agree.
#[test]
fn a_frame_of_another_future_is_not_glued_on() {
    let disk = SimDisk::new(1);
    let (_, mut writer, _) = open(&disk);
    append(&mut writer, 1..=2, LEN);
    let other = disk.kill();
    append(&mut writer, 3..=4, LEN);
    let (_, mut writer, _) = open(&other);
    writer.append(&[&vec![7; LEN + 8]], 3).unwrap();
    let name = segment::name(1);
    let mut bytes = other.contents(&name).unwrap();
    let fourth = FRAMES_AT as usize + 3 * crate::frame::stride(LEN as u64 + 8) as usize;
    bytes[fourth..].copy_from_slice(&disk.contents(&name).unwrap()[fourth..]);
    let glued = other.kill();
    glued.put(&name, &bytes);
    let (journal, _writer, recovery) = open(&glued);
    assert_eq!(recovery.last_index, 3);
    let cut = recovery.cut.unwrap();
    assert_eq!((cut.index, cut.what), (4, "the frame does not continue the chain"));
    assert_eq!(read_all(&journal).0[2], vec![7; LEN + 8]);
}

#[test]
fn the_state_survives_with_one_copy_and_is_never_taken_for_a_new_log() {
    let disk = closed();
    let bytes = disk.contents("state").unwrap();
    for copy in [0, 4096] {
        let damaged = disk.kill();
        let mut bytes = bytes.clone();
        bytes[copy + 20] ^= 1;
        damaged.put("state", &bytes);
        let (journal, _writer, _) = open(&damaged);
        check(&journal, WRITTEN, LEN);
    }
    let damaged = disk.kill();
    damaged.put("state", &[0; 8192]);
    assert_eq!(damage_of(&damaged).file, PathBuf::from("state"));
    damaged.take("state");
    assert_eq!(damage_of(&damaged).file, PathBuf::from("state"));
    segments(&damaged).iter().for_each(|n| damaged.take(n));
    assert!(open(&damaged).2.created);
}
