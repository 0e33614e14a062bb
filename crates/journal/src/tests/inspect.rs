//! Each kind of damage is found, named and, where that is possible, repaired; what is given up is kept in files.

use super::*;
use crate::segment::{self, FRAMES_AT, SEAL_AT};
use crate::{Finding, Inspection, RepairOptions, RepairReport, Severity, inspect, repair};

const LEN: usize = 300;
const COUNT: u64 = 56;

fn look(disk: &SimDisk) -> Inspection {
    inspect(Arc::new(disk.clone()), |done, total| assert!(done <= total.max(done))).unwrap()
}

fn mend(disk: &SimDisk, accept_loss: bool) -> Result<RepairReport, OpenError> {
    repair(Arc::new(disk.clone()), RepairOptions { accept_loss })
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.sorted_names().into_iter().filter(|n| segment::base_of(n).is_some()).collect()
}

/// Three segments or more, all sealed but the last, everything on disk.
fn log() -> SimDisk {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=COUNT, LEN);
    sync(&journal);
    until("sealed", || journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed()));
    writer.close().unwrap();
    assert!(segments(&disk).len() >= 3);
    disk
}

fn change(disk: &SimDisk, name: &str, at: u64, to: impl Fn(u8) -> u8) {
    let mut bytes = disk.contents(name).unwrap();
    bytes[at as usize] = to(bytes[at as usize]);
    disk.put(name, &bytes);
}

fn frame_at(nth: u64) -> u64 {
    FRAMES_AT + nth * crate::frame::stride(LEN as u64 + 8)
}

/// The one finding that is more than a note.
fn only(found: &Inspection) -> &Finding {
    let bad: Vec<_> = found.findings.iter().filter(|f| f.severity > Severity::Note).collect();
    assert_eq!(bad.len(), 1, "{bad:?}");
    bad[0]
}

/// Repairs, accepting loss; the log is a prefix then, and what was taken out is kept.
fn give_up(disk: &SimDisk, last: u64) {
    let before = (segments(disk).len(), disk.sorted_names());
    assert!(matches!(mend(disk, false), Err(OpenError::Damaged(_))));
    assert_eq!(disk.sorted_names(), before.1, "nothing changes without --accept-loss");
    let report = mend(disk, true).unwrap();
    assert_eq!((report.last_index, report.lost.clone()), (last, Some(last + 1..=COUNT)));
    assert!(!report.kept_in.is_empty());
    for file in &report.kept_in {
        assert!(disk.contents(file.to_str().unwrap()).unwrap().iter().any(|b| *b != 0));
    }
    let again = mend(disk, true).unwrap();
    assert_eq!((again.last_index, again.lost, again.cut), (last, None, None));
    let (journal, mut writer, recovery) = open(disk);
    assert_eq!(recovery.cut, None);
    check(&journal, last, LEN);
    append(&mut writer, last + 1..=last + 30, LEN);
    check(&journal, last + 30, LEN);
    writer.close().unwrap();
    assert!(look(disk).severity() <= Some(Severity::Note));
}

#[test]
fn a_whole_log() {
    let disk = log();
    let found = look(&disk);
    assert_eq!(found.findings, []);
    assert_eq!((found.first_index, found.last_index, found.durable_upto), (1, COUNT, COUNT));
    assert!(found.clean && !found.in_use);
    assert_eq!(found.segments.iter().map(|s| s.entries).sum::<u64>(), COUNT);
    assert_eq!(found.segments.iter().map(|s| s.payload_bytes).sum::<u64>(), COUNT * (LEN as u64 + 8));
    assert_eq!(found.segments[0].times, Some((1, found.segments[0].last)));
    let before = disk.sorted_names();
    let report = mend(&disk, true).unwrap();
    assert_eq!((report.last_index, report.lost, report.cut), (COUNT, None, None));
    assert_eq!(disk.sorted_names().len(), before.len());
    check(&open(&disk).0, COUNT, LEN);
}

#[test]
fn a_damaged_entry_in_a_sealed_segment() {
    for at in [3, 24, 70] {
        let disk = log();
        let name = &segments(&disk)[1];
        let base = segment::base_of(name).unwrap();
        change(&disk, name, frame_at(2) + at, |b| b ^ 1);
        // Opening trusts seals; reading and looking do not.
        let found = look(&disk);
        let finding = only(&found);
        assert_eq!((finding.kind, finding.severity), ("frame", Severity::Damaged));
        assert_eq!((finding.offset, finding.entries.clone()), (frame_at(2), Some(base + 2..=base + 2)));
        assert_eq!(found.last_index, base + 1);
        let all: u64 = found.segments.iter().map(|s| s.entries).sum();
        assert_eq!(all, COUNT - 1, "what lies behind it is read");
        assert_eq!(mend(&disk, false).unwrap().last_index, COUNT, "it can be opened");
        let report = mend(&disk, true).unwrap();
        assert_eq!((report.last_index, report.lost), (base + 1, Some(base + 2..=COUNT)));
        check(&open(&disk).0, base + 1, LEN);
    }
}

#[test]
fn damage_in_the_last_segment() {
    let disk = log();
    let name = segments(&disk).pop().unwrap();
    let base = segment::base_of(&name).unwrap();
    change(&disk, &name, frame_at(1) + 70, |b| b ^ 1);
    assert_eq!(only(&look(&disk)).entries, Some(base + 1..=base + 1));
    give_up(&disk, base);
}

#[test]
fn zeros_where_entries_were() {
    let disk = log();
    let name = segments(&disk).pop().unwrap();
    let base = segment::base_of(&name).unwrap();
    let mut bytes = disk.contents(&name).unwrap();
    bytes[frame_at(1) as usize..frame_at(3) as usize].fill(0);
    disk.put(&name, &bytes);
    let found = look(&disk);
    assert_eq!(only(&found).entries, Some(base + 1..=base + 2));
    assert_eq!(only(&found).what, "there are zeros where a frame was");
    give_up(&disk, base);

    let disk = log();
    let mut bytes = disk.contents(&name).unwrap();
    bytes[frame_at(1) as usize..].fill(0);
    disk.put(&name, &bytes);
    let found = look(&disk);
    assert_eq!(
        (only(&found).kind, only(&found).entries.clone()),
        ("segment-missing", Some(base + 1..=COUNT))
    );
}

#[test]
fn a_segment_that_is_missing_or_cannot_be_read() {
    let disk = log();
    let names = segments(&disk);
    let bases: Vec<_> = names.iter().map(|n| segment::base_of(n).unwrap()).collect();
    disk.take(&names[1]);
    assert_eq!(only(&look(&disk)).kind, "segment-missing");
    assert_eq!(only(&look(&disk)).entries, Some(bases[1]..=bases[2] - 1));
    give_up(&disk, bases[1] - 1);

    for at in [0, 20, 40] {
        let disk = log();
        change(&disk, &names[1], at, |b| b ^ 1);
        let found = look(&disk);
        assert_eq!(only(&found).kind, "segment-header");
        assert_eq!(only(&found).entries, Some(bases[1]..=bases[2] - 1));
        give_up(&disk, bases[1] - 1);
    }
    let disk = log();
    change(&disk, &names[0], 0, |b| b ^ 1);
    give_up(&disk, 0);
}

#[test]
fn a_seal_that_is_not_whole_costs_nothing() {
    let disk = log();
    let name = &segments(&disk)[0];
    let shorter = disk.contents(name).unwrap().len();
    change(&disk, name, SEAL_AT + 9, |b| b ^ 1);
    if shorter == 16 << 10 {
        assert!(look(&disk).severity() <= Some(Severity::Note));
        check(&open(&disk).0, COUNT, LEN);
    }
}

#[test]
fn the_state_is_made_anew_from_the_segments() {
    for lost in [true, false] {
        let disk = log();
        if lost {
            disk.take("state")
        } else {
            disk.put("state", &[9; 8192])
        }
        assert_eq!(only(&look(&disk)).kind, "state-lost");
        assert!(try_open(&disk).is_err());
        let report = mend(&disk, false).unwrap();
        assert!(report.state_rebuilt);
        assert_eq!((report.last_index, report.lost), (COUNT, None));
        check(&open(&disk).0, COUNT, LEN);
    }
    let disk = log();
    change(&disk, "state", 30, |b| b ^ 1);
    let found = look(&disk);
    assert_eq!((found.findings.len(), found.findings[0].kind), (1, "state-copy"));
    assert!(mend(&SimDisk::new(1), true).is_err(), "there is no log");
}

#[test]
fn a_torn_tail_is_no_damage() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=5, LEN);
    sync(&journal);
    append(&mut writer, 6..=8, LEN);
    let found = look(&disk);
    assert!(found.in_use && found.severity().is_none());
    assert!(matches!(mend(&disk, true), Err(OpenError::Locked(_))));
    let disk = disk.kill();
    change(&disk, &segments(&disk)[0], frame_at(6) + 80, |b| b ^ 1);
    let found = look(&disk);
    assert_eq!((only(&found).kind, only(&found).severity), ("torn-tail", Severity::Unclean));
    assert_eq!((found.last_index, found.durable_upto), (6, 5));
    let report = mend(&disk, false).unwrap();
    assert_eq!((report.last_index, report.lost, report.kept_in.len()), (6, None, 1));
    check(&open(&disk).0, 6, LEN);
    let kinds: Vec<_> = look(&disk).findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, ["kept-bytes"]);
}

/// I12: a repair that is interrupted anywhere and run again ends with the same log.
#[test]
fn repair_can_be_interrupted_anywhere() {
    let damaged = log();
    let names = segments(&damaged);
    let base = segment::base_of(&names[1]).unwrap();
    change(&damaged, &names[1], frame_at(2) + 70, |b| b ^ 1);
    for stop in 0..60 {
        let disk = damaged.kill();
        disk.stop_after(stop);
        let whole = mend(&disk, true).is_ok();
        for found in [disk.kill(), disk.crash(stop)] {
            assert_eq!(mend(&found, true).unwrap().last_index, base + 1, "stopped after {stop}");
            check(&open(&found).0, base + 1, LEN);
        }
        if whole {
            return;
        }
    }
    panic!("the repair never ended");
}

/// I13: whatever bit is flipped, it is found, or makes no difference to what is read.
#[test]
fn every_flipped_bit_is_found() {
    let disk = log();
    for name in segments(&disk) {
        let bytes = disk.contents(&name).unwrap();
        let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
        let frames = (FRAMES_AT as usize..used).step_by(13);
        for (at, bit) in (0..64).step_by(3).chain(frames).zip((0..8).cycle()) {
            let damaged = disk.kill();
            change(&damaged, &name, at as u64, |b| b ^ 1 << bit);
            let found = look(&damaged);
            if found.severity().is_none() {
                check(&open(&damaged).0, COUNT, LEN);
            }
        }
    }
}
