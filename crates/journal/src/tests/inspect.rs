//! Each kind of damage is found, named and, where that is possible, repaired; what is given up is kept in files.

use proptest::prelude::*;

use super::*;
use crate::segment::{self, FRAMES_AT, SEAL_AT};
use crate::{
    CursorPosition, Finding, Inspection, RepairOptions, RepairReport, Seek, Severity, inspect, repair,
};

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

/// Otherwise its reader would pass over the entries that take the place of those that were given up.
#[test]
fn named_positions_go_back_with_the_end_of_the_log() {
    let disk = log();
    let (journal, writer, _) = open(&disk);
    for (name, position) in [("ahead", COUNT), ("behind", 2)] {
        let mut tailer = journal.named_tailer(name).unwrap();
        assert_eq!(tailer.move_to_index(position).unwrap(), Seek::At(position));
        tailer.commit().unwrap();
    }
    writer.close().unwrap();
    disk.put("cursor-unreadable.pos", &[1; 8192]);
    change(&disk, &segments(&disk)[0], frame_at(5) + 70, |b| b ^ 1);
    let report = mend(&disk, true).unwrap();
    assert_eq!(report.last_index, 5);
    assert_eq!(report.moved, [CursorPosition { name: "ahead".into(), next: COUNT }]);
    disk.take("cursor-unreadable.pos");
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 6..=COUNT + 9, LEN);
    let positions: Vec<_> = journal.cursors().unwrap().into_iter().map(|c| (c.name, c.next)).collect();
    assert_eq!(positions, [("ahead".to_owned(), 6), ("behind".to_owned(), 2)]);
    assert_eq!(journal.named_tailer("ahead").unwrap().next_entry().unwrap().unwrap().index, 6);
    writer.close().unwrap();
    assert_eq!(mend(&disk, true).unwrap().moved, []);
}

/// A writer that is open may remove segments between the listing of the names and the look at them.
#[test]
fn what_retention_removes_meanwhile_is_not_missing() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=COUNT, LEN);
    sync(&journal);
    until("sealed", || journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed()));
    assert!(segments(&disk).len() >= 3);
    let retain = |_, _| {
        journal.drop_before(COUNT).unwrap();
    };
    let found = inspect(Arc::new(disk.clone()), retain).unwrap();
    assert!(found.severity() <= Some(Severity::Note), "{:?}", found.findings);
    assert_eq!((found.first_index, found.last_index, found.in_use), (journal.first_index(), COUNT, true));
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

/// Such a segment is complete if the next one continues it, for opening and so for looking.
#[test]
fn bytes_after_the_last_entry_of_a_segment_without_a_seal() {
    let disk = log();
    let names = segments(&disk);
    let entries = segment::base_of(&names[1]).unwrap() - segment::base_of(&names[0]).unwrap();
    change(&disk, &names[0], SEAL_AT, |b| b ^ 1);
    change(&disk, &names[0], frame_at(entries), |_| 7);
    let found = look(&disk);
    assert_eq!((found.last_index, found.findings), (COUNT, vec![]));
    check(&open(&disk).0, COUNT, LEN);
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

/// Damage of any kind, several times over.
#[derive(Clone, Debug)]
enum Harm {
    Fill(usize, usize, u8),
    Noise(usize, usize, u64),
    Move(usize, usize, usize),
    Length(usize),
    Take,
    Swap(usize),
}

fn harm() -> impl Strategy<Value = (usize, Harm)> {
    let at = 0usize..17_000;
    let harm = prop_oneof![
        4 => (at.clone(), 1usize..600, any::<u8>()).prop_map(|(at, len, byte)| Harm::Fill(at, len, byte)),
        4 => (at.clone(), 1usize..600, any::<u64>()).prop_map(|(at, len, seed)| Harm::Noise(at, len, seed)),
        2 => (at.clone(), at.clone(), 1usize..900).prop_map(|(from, to, len)| Harm::Move(from, to, len)),
        1 => at.prop_map(Harm::Length),
        1 => Just(Harm::Take),
        1 => (0usize..9).prop_map(Harm::Swap),
    ];
    (0usize..9, harm)
}

fn do_harm(disk: &SimDisk, which: usize, harm: &Harm) {
    let names: Vec<_> = disk.sorted_names().into_iter().filter(|n| n != "lock").collect();
    let Some(name) = names.get(which % names.len().max(1)) else { return };
    let mut bytes = disk.contents(name).unwrap();
    let range = |at: usize, len: usize| at.min(bytes.len())..(at + len).min(bytes.len());
    match *harm {
        Harm::Fill(at, len, byte) => {
            let range = range(at, len);
            bytes[range].fill(byte);
        }
        Harm::Noise(at, len, mut seed) => {
            let range = range(at, len);
            for byte in &mut bytes[range] {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (seed >> 56) as u8;
            }
        }
        Harm::Move(from, to, len) => {
            let len = range(from, len).len().min(range(to, len).len());
            let (from, to) = (range(from, len).start, range(to, len).start);
            bytes.copy_within(from..from + len, to);
        }
        Harm::Length(len) => bytes.resize(len, 0),
        Harm::Take => return disk.take(name),
        Harm::Swap(other) => {
            let other = &names[other % names.len()];
            disk.put(name, &disk.contents(other).unwrap());
            return disk.put(other, &bytes);
        }
    }
    disk.put(name, &bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A fuzz of recovery: whatever is done to the files, nothing panics, nothing is read that was not appended, and
    /// a repair that succeeds leaves a prefix that can be opened and goes on.
    #[test]
    fn any_damage(harms in prop::collection::vec(harm(), 1..5)) {
        let disk = log();
        harms.iter().for_each(|(which, harm)| do_harm(&disk, *which, harm));
        let found = inspect(Arc::new(disk.clone()), |_, _| {});
        let entry = |e: &crate::Entry| assert!(e.payload[..] == payload(e.index, LEN), "entry {} is another", e.index);
        if let Ok((journal, _writer, _)) = try_open(&disk.kill()) {
            let first = journal.first_index();
            journal.read_from(first).unwrap().map_while(Result::ok).for_each(|e| entry(&e));
        }
        if let Ok(view) = crate::LogView::open_on(Arc::new(disk.kill())) {
            let mut tailer = view.tailer();
            while let Ok(Some(e)) = tailer.next_entry() {
                entry(&e.into());
            }
        }
        if let Ok(report) = mend(&disk, true) {
            let (journal, mut writer, recovery) = open(&disk);
            prop_assert_eq!(recovery.cut, None);
            let first = journal.first_index();
            let entries: Vec<_> = journal.read_from(first).unwrap().map(Result::unwrap).collect();
            entries.iter().for_each(entry);
            let last = entries.last().map_or(0, |e| e.index);
            prop_assert_eq!(last, report.last_index);
            // What the inspection said could be read is what is left.
            if let Ok(found) = found {
                prop_assert_eq!((found.last_index, found.first_index), (last, first));
            }
            let next = recovery.last_index + 1;
            append(&mut writer, next..=next + 5, LEN);
            prop_assert_eq!(journal.read_from(next).unwrap().count(), 6);
        }
    }
}
