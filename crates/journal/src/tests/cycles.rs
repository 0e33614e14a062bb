//! Roll cycles and retention.

use std::sync::mpsc;

use proptest::prelude::*;

use super::*;
use crate::segment::base_of;
use crate::{Cycle, CycleChoice, LogView, Released, Retention, Seek};

const SECOND: u64 = 1_000_000_000;
/// 2026-10-25T00:59:59Z: in Berlin a second before summer time ends.
const BEFORE_WINTER: u64 = 1_792_889_999 * SECOND;

fn open_cycle(disk: &SimDisk, cycle: &str) -> (Journal, Writer, Recovery) {
    let cycle = CycleChoice::Exactly(Some(cycle.parse().unwrap()));
    Journal::open_on(Arc::new(disk.clone()), Options { cycle, ..options() }).unwrap()
}

fn labels(disk: &SimDisk) -> Vec<String> {
    let names = disk.sorted_names().into_iter().filter(|n| base_of(n).is_some());
    names.map(|n| n.rsplit_once('_').map_or("", |(label, _)| label).into()).collect()
}

fn at(writer: &mut Writer, time_ns: u64) -> u64 {
    writer.append(&[b"entry"], time_ns).unwrap()
}

/// F17: the hour that comes twice has two segments of one name's label, in order; nothing is lost or repeated when
/// the clock goes back an hour or a day ahead.
#[test]
fn clocks_that_jump() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open_cycle(&disk, "hourly@Europe/Berlin");
    assert_eq!(labels(&disk), [""]);
    let hour = 3600 * SECOND;
    let times = [
        BEFORE_WINTER - hour,
        BEFORE_WINTER,
        BEFORE_WINTER + SECOND,
        BEFORE_WINTER + hour,
        // Set back: stored with the time before.
        BEFORE_WINTER - hour,
        BEFORE_WINTER + hour + SECOND,
        BEFORE_WINTER + 25 * hour,
    ];
    for time in times {
        at(&mut writer, time);
    }
    let expected = ["20261025-01", "20261025-02", "20261025-02", "20261025-03", "20261026-02"];
    assert_eq!(labels(&disk), expected);
    let stored: Vec<_> = journal.read_from(1).unwrap().map(|e| e.unwrap().time_ns).collect();
    let mut highest = 0;
    let expected: Vec<_> = times
        .iter()
        .map(|t| {
            highest = highest.max(*t);
            highest
        })
        .collect();
    assert_eq!(stored, expected);
    let mut tailer = journal.tailer();
    assert_eq!(tailer.move_to_time(BEFORE_WINTER + SECOND).unwrap(), Seek::At(3));
    drop(writer);
    let (journal, mut writer, recovery) = open_cycle(&disk, "hourly@Europe/Berlin");
    assert_eq!((recovery.last_index, recovery.cut), (7, None));
    // The cycle goes on where it was.
    at(&mut writer, BEFORE_WINTER + 25 * hour);
    assert_eq!(labels(&disk).len(), 5);
    assert_eq!(journal.read_from(1).unwrap().count(), 8);
}

#[test]
fn the_cycle_is_part_of_the_log() {
    let disk = SimDisk::new(1);
    drop(open_cycle(&disk, "daily"));
    let open_as = |choice| {
        Journal::open_on(Arc::new(disk.clone()), Options { cycle: choice, ..options() }).map(|o| o.0.cycle())
    };
    let hourly: Cycle = "hourly".parse().unwrap();
    let daily: Cycle = "daily@UTC".parse().unwrap();
    assert_eq!(open_as(CycleChoice::Stored).unwrap(), Some(daily.clone()));
    let refused = open_as(CycleChoice::Exactly(Some(hourly.clone()))).unwrap_err();
    assert!(matches!(refused, OpenError::Cycle { .. }));
    assert_eq!(refused.to_string(), "the log rolls daily@UTC, not hourly@UTC");
    assert!(matches!(open_as(CycleChoice::Exactly(None)), Err(OpenError::Cycle { .. })));
    assert_eq!(open_as(CycleChoice::ChangeTo(Some(hourly.clone()))).unwrap(), Some(hourly));
    assert_eq!(open_as(CycleChoice::ChangeTo(None)).unwrap(), None);
    assert_eq!(open_as(CycleChoice::Stored).unwrap(), None);
}

/// F25: cycles in which nothing happened leave nothing behind, and a reader finds what follows them.
#[test]
fn ten_thousand_empty_cycles() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open_cycle(&disk, "minutely");
    let view = LogView::open_on(Arc::new(disk.clone())).unwrap();
    let mut tailer = view.tailer();
    at(&mut writer, BEFORE_WINTER);
    assert_eq!(tailer.next_within(LONG).unwrap().unwrap().index, 1);
    at(&mut writer, BEFORE_WINTER + 10_000 * 60 * SECOND);
    assert_eq!(labels(&disk).len(), 2);
    assert_eq!(tailer.next_within(LONG).unwrap().unwrap().index, 2);
    writer.close().unwrap();
    let (journal_2, _writer, recovery) = open_cycle(&disk, "minutely");
    assert_eq!((recovery.clean, recovery.last_index), (true, 2));
    assert_eq!(journal_2.read_from(1).unwrap().count(), 2);
    drop(journal);
}

/// A cycle ends before its segment is full: the space goes back, and a segment for one large entry is possible.
#[test]
fn early_segments_give_their_space_back() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open_cycle(&disk, "minutely");
    for minute in 0..5 {
        at(&mut writer, BEFORE_WINTER + minute * 60 * SECOND);
    }
    // As the first entry of its cycle, in a segment of its own.
    writer.append(&[&[7; 50_000]], BEFORE_WINTER + 6 * 60 * SECOND).unwrap();
    until("trimmed", || journal.disk_bytes() < 5 * (12 << 10) + (16 << 10) + 60_000);
    for seed in 0..20 {
        let durable = journal.synced();
        let (after, _writer, recovery) = open_cycle(&disk.crash(seed), "minutely");
        assert!(recovery.last_index >= durable);
        assert!(after.read_from(1).unwrap().all(|e| e.is_ok()));
    }
    drop(writer);
    let (after, _writer, recovery) = open_cycle(&disk.kill(), "minutely");
    assert_eq!(recovery.last_index, 6);
    assert_eq!(after.read_from(1).unwrap().count(), 6);
}

/// A full disk at the border of two cycles: the entry is refused, and a later one still begins the new cycle.
#[test]
fn a_refused_entry_does_not_begin_a_cycle() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open_cycle(&disk, "daily");
    until("the spare is made", || disk.sorted_names().iter().any(|n| n == "spare.tmp"));
    at(&mut writer, BEFORE_WINTER);
    at(&mut writer, BEFORE_WINTER + 86_400 * SECOND);
    disk.limit_space(Some(1));
    // A spare may be left.
    let mut days = 2;
    while writer.append(&[b"entry"], BEFORE_WINTER + days * 86_400 * SECOND).is_ok() {
        days += 1;
        assert!(days < 9, "the disk never filled");
    }
    assert_eq!(labels(&disk).len() as u64, days);
    let again = writer.append(&[b"entry"], BEFORE_WINTER + days * 86_400 * SECOND);
    assert!(matches!(again, Err(crate::AppendError::NoSpace(_))));
    disk.limit_space(None);
    at(&mut writer, BEFORE_WINTER + days * 86_400 * SECOND);
    assert_eq!(labels(&disk).len() as u64, days + 1);
    assert_eq!(journal.read_from(1).unwrap().count() as u64, days + 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// I21: whatever the clock does and wherever the log is opened anew or loses power, each segment holds one
    /// cycle, nothing is passed over and nothing comes twice.
    #[test]
    fn segments_hold_one_cycle_each(
        steps in prop::collection::vec((-7_200i64..100_000, 0usize..3000, 0u8..20), 1..60),
        zone in 0usize..3, length in 0usize..3, seed: u64,
    ) {
        let zone = ["UTC", "Europe/Berlin", "Australia/Lord_Howe"][zone];
        let name = format!("{}@{zone}", ["minutely", "hourly", "daily"][length]);
        let cycle: Cycle = name.parse().unwrap();
        let mut disk = SimDisk::new(seed);
        let (mut journal, mut writer, _) = open_cycle(&disk, &name);
        let (mut clock, mut model, mut crashed) = (BEFORE_WINTER, Vec::new(), false);
        for (step, len, event) in steps {
            clock = clock.saturating_add_signed(step * SECOND as i64);
            let bytes = payload(model.len() as u64 + 1, len);
            writer.append(&[&bytes], clock).unwrap();
            model.push(bytes);
            if event == 0 {
                drop(writer);
                (journal, writer, _) = open_cycle(&disk, &name);
            } else if event == 1 {
                crashed = true;
                disk = disk.crash(seed);
                let recovery;
                (journal, writer, recovery) = open_cycle(&disk, &name);
                model.truncate(recovery.last_index as usize);
            }
        }
        let entries: Vec<_> = journal.read_from(1).unwrap().map(Result::unwrap).collect();
        prop_assert!(entries.iter().map(|e| e.payload.to_vec()).eq(model));
        for segment in journal.0.segments.read().iter().filter(|s| !s.is_empty()) {
            let own = &entries[segment.base as usize - 1..segment.last() as usize];
            let lap = cycle.at(own[0].time_ns);
            prop_assert!(own.iter().all(|e| e.time_ns < lap.end_ns));
            // A power loss may undo the renaming of the segment that was active.
            let name = segment.name();
            prop_assert!(name.starts_with(&lap.label) || crashed, "{} for {}", name, lap.label);
        }
    }
}

/// Segments of twelve entries each, a second apart, all sealed but the last.
fn filled(disk: &SimDisk) -> (Journal, Writer) {
    let (journal, mut writer, _) = open(disk);
    for index in 1..=100 {
        writer.append(&[&payload(index, 600)], index * SECOND).unwrap();
    }
    sync(&journal);
    until("sealed", || journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed()));
    (journal, writer)
}

#[test]
fn retention_by_age_and_size_tells_what_it_releases() {
    let disk = SimDisk::new(1);
    let (journal, _writer) = filled(&disk);
    let (tell, told) = mpsc::channel();
    let at_release = disk.clone();
    journal.on_released(move |released| {
        assert!(at_release.contents(released.file.to_str().unwrap()).is_some(), "it is still there");
        tell.send(released.clone()).unwrap();
    });
    let age = Retention { age: Some(Duration::from_secs(50)), ..Retention::default() };
    let first = journal.retain(&age, 100 * SECOND).unwrap();
    assert!((38..=50).contains(&first), "{first}");
    let bytes = Retention { bytes: Some(40 << 10), ..Retention::default() };
    let first = journal.retain(&bytes, 100 * SECOND).unwrap();
    assert!(first > 60 && journal.disk_bytes() <= 40 << 10, "{first}");
    let released: Vec<Released> = told.try_iter().collect();
    let mut next = 1;
    for segment in released {
        assert_eq!(*segment.entries.start(), next);
        next = segment.entries.end() + 1;
        assert!(disk.contents(segment.file.to_str().unwrap()).is_none());
    }
    assert_eq!(next, first);
}

/// F19, I15: a slow named reader holds back what it has not read; without that it gets an error that names the new
/// start, and the writer does not notice either.
#[test]
fn slow_readers_and_retention() {
    let disk = SimDisk::new(1);
    let (journal, mut writer) = filled(&disk);
    let mut slow = journal.named_tailer("slow").unwrap();
    let mut late = journal.tailer();
    for _ in 0..30 {
        slow.next_entry().unwrap().unwrap();
        late.next_entry().unwrap().unwrap();
    }
    slow.commit().unwrap();
    drop(slow);
    let all = Retention { bytes: Some(0), keep_unread: true, ..Retention::default() };
    let first = journal.retain(&all, 0).unwrap();
    assert!((20..=31).contains(&first), "{first}");
    let careless = Retention { keep_unread: false, ..all };
    let first = journal.retain(&careless, 0).unwrap();
    assert!((80..=100).contains(&first), "{first}");
    writer.append(&[b"x"], 0).unwrap();
    // What it has open it reads to its end.
    let mut last = 30;
    let gone = loop {
        match late.next_entry() {
            Ok(Some(entry)) => {
                assert_eq!(entry.index, last + 1);
                last = entry.index;
            }
            Ok(None) => panic!("it passed over what is gone"),
            Err(error) => break error,
        }
    };
    assert!(matches!(gone, ReadError::BeforeStart { first: f, .. } if f == first), "{gone}");
    let mut slow = journal.named_tailer("slow").unwrap();
    assert_eq!(slow.position(), 31);
    assert!(matches!(slow.next_entry(), Err(ReadError::BeforeStart { index: 31, .. })));
    slow.to_start();
    assert_eq!(slow.next_entry().unwrap().unwrap().index, first);
}

/// From the moment it is opened, and also after a power loss: a tailer may take its time with its first entries.
#[test]
fn a_named_reader_that_has_not_committed_yet_holds_back_too() {
    let disk = SimDisk::new(1);
    let (journal, _writer) = filled(&disk);
    let mut slow = journal.named_tailer("slow").unwrap();
    assert_eq!(slow.committed(), Some(1));
    slow.next_entry().unwrap().unwrap();
    let all = Retention { bytes: Some(0), keep_unread: true, ..Retention::default() };
    assert_eq!(journal.retain(&all, 0).unwrap(), 1);
    let (journal, _writer, _) = open(&disk.crash(1));
    assert_eq!(journal.retain(&all, 0).unwrap(), 1);
    slow.to_end().unwrap();
    slow.commit().unwrap();
}

#[test]
fn the_policy_of_a_log_works_by_itself() {
    let disk = SimDisk::new(1);
    let retention = Retention { bytes: Some(64 << 10), ..Retention::default() };
    let options = Options { retention, ..options() };
    let (journal, mut writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    append(&mut writer, 1..=400, 600);
    until("removed", || journal.disk_bytes() <= 80 << 10);
    writer.close().unwrap();
    assert!(journal.first_index() > 1);
    check(&journal, 400, 600);
}

/// Its segment stays until it is told once more.
#[test]
fn a_listener_that_panics_does_not_end_retention() {
    let disk = SimDisk::new(1);
    let retention = Retention { bytes: Some(64 << 10), ..Retention::default() };
    let options = Options { retention, ..options() };
    let (journal, mut writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    let calls = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = calls.clone();
    journal.on_released(move |released| {
        let call = counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        assert!(call > 0, "on purpose");
        assert!(call > 1 || *released.entries.start() == 1, "the same one again");
    });
    append(&mut writer, 1..=100, 600);
    until("called", || calls.load(std::sync::atomic::Ordering::SeqCst) > 0);
    append(&mut writer, 101..=400, 600);
    until("removed", || journal.disk_bytes() <= 80 << 10);
    writer.close().unwrap();
    check(&journal, 400, 600);
}

/// I15: what is not synced or not sealed is never removed.
#[test]
fn unsynced_segments_stay() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    let paused = disk.pause_syncs(".seg");
    append(&mut writer, 1..=60, 600);
    let all = Retention { bytes: Some(0), age: Some(Duration::ZERO), keep_unread: false };
    assert_eq!(journal.retain(&all, u64::MAX).unwrap(), 1);
    assert_eq!(journal.drop_before(u64::MAX).unwrap(), 1);
    drop(paused);
    check(&journal, 60, 600);
}

/// I15: a segment that is synced but has no seal yet stays too: the syncer is not done with it.
#[test]
fn unsealed_segments_stay() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let left = parking_lot::Mutex::new(left);
    // Called when the mark has moved, before the seals are written.
    journal.on_synced(move |_| {
        let _ = enter.send(());
        let _ = left.lock().recv();
    });
    append(&mut writer, 1..=30, 600);
    entered.recv_timeout(LONG).unwrap();
    let oldest = journal.0.segments.read()[0].clone();
    assert!(oldest.last() < 30 && oldest.last() <= journal.synced() && !oldest.is_sealed());
    assert_eq!(journal.drop_before(u64::MAX).unwrap(), 1);
    drop(leave);
    until("sealed", || journal.drop_before(20).unwrap() > 1);
    append(&mut writer, 31..=60, 600);
    sync(&journal);
    check(&journal, 60, 600);
}
