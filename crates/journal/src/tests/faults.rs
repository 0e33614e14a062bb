//! A disk that refuses, fails or hangs while the log runs.

use std::io::ErrorKind;
use std::sync::mpsc;

use super::*;
use crate::{AppendError, DropError, Health, WaitError};

#[test]
fn a_full_disk_when_a_segment_is_needed() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=1, 100);
    disk.limit_space(Some(40_000));
    let refused = loop {
        match writer.append(&[&payload(journal.written() + 1, 100)], 0) {
            Ok(index) => assert!(index < 1000, "the disk never filled"),
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, AppendError::NoSpace(_)), "{refused}");
    let last = journal.written();
    check_payloads(&journal, last);
    assert!(matches!(writer.append(&[&[0; 100_000]], 0), Err(AppendError::NoSpace(_))));
    assert!(matches!(journal.health(), Health::Good));
    sync(&journal);

    disk.limit_space(None);
    append(&mut writer, last + 1..=last + 100, 100);
    check_payloads(&journal, last + 100);
    assert!(!disk.sorted_names().iter().any(|n| n == "large.tmp"));
}

fn check_payloads(journal: &Journal, last: u64) {
    check(journal, last, 100);
}

#[test]
fn a_full_disk_in_the_middle_of_a_frame() {
    let disk = SimDisk::unmapped(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=3, 100);
    disk.fail_writes(Some(ErrorKind::StorageFull));
    for _ in 0..3 {
        assert!(matches!(writer.append(&[&[7; 900]], 0), Err(AppendError::NoSpace(_))));
        check(&journal, 3, 100);
    }
    disk.fail_writes(None);
    append(&mut writer, 4..=6, 100);
    check(&journal, 6, 100);
    let (after, _writer, recovery) = open(&disk.kill());
    assert_eq!(recovery.last_index, 6);
    check(&after, 6, 100);
}

#[test]
fn the_remains_of_a_refused_frame_are_a_torn_tail_at_most() {
    let disk = SimDisk::unmapped(1);
    let (_, mut writer, _) = open(&disk);
    append(&mut writer, 1..=3, 100);
    disk.fail_writes(Some(ErrorKind::StorageFull));
    // The machine stops between the refused write and the one that wipes its remains out.
    disk.stop_after(1);
    assert!(matches!(writer.append(&[&[7; 900]], 0), Err(AppendError::Failed(_))));
    let (journal, _writer, recovery) = open(&disk.kill());
    assert_eq!(recovery.cut.map(|c| c.index), Some(4));
    check(&journal, 3, 100);
}

#[test]
fn a_write_that_fails_otherwise_ends_the_log() {
    let disk = SimDisk::unmapped(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=3, 100);
    disk.fail_writes(Some(ErrorKind::Other));
    assert!(matches!(writer.append(&[b"x"], 0), Err(AppendError::Failed(_))));
    disk.fail_writes(None);
    assert!(matches!(writer.append(&[b"x"], 0), Err(AppendError::Failed(_))));
    assert!(matches!(journal.health(), Health::Failed(_)));
    assert!(matches!(journal.drop_before(2), Err(DropError::Disk(_))));
    check(&journal, 3, 100);
    assert!(writer.close().is_err());
    let (journal, _writer, recovery) = open(&disk);
    assert!(!recovery.clean);
    check(&journal, 3, 100);
}

#[test]
fn the_first_failed_sync_ends_the_log() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    let (tell, told) = mpsc::channel();
    journal.on_synced(move |outcome| drop(tell.send(outcome.clone())));
    append(&mut writer, 1..=3, 100);
    sync(&journal);
    assert_eq!(told.recv_timeout(LONG).unwrap().unwrap(), 3);
    append(&mut writer, 4..=5, 100);
    disk.fail_syncs(Some(ErrorKind::Other));
    journal.request_sync();
    assert!(matches!(journal.wait_synced_blocking(5, LONG), Err(WaitError::Failed(_))));
    let failure = told.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!((failure.action, failure.file.to_str()), ("sync", Some("00000000000000000001.seg")));

    disk.fail_syncs(None);
    let syncs = disk.counts().syncs;
    journal.request_sync();
    assert!(matches!(journal.wait_synced_blocking(5, LONG), Err(WaitError::Failed(_))));
    assert!(matches!(writer.append(&[b"x"], 0), Err(AppendError::Failed(_))));
    assert_eq!((journal.synced(), journal.written()), (3, 5));
    check(&journal, 5, 100);
    assert!(writer.close().is_err());
    assert_eq!(disk.counts().syncs, syncs, "nothing may be synced after a failure");
    assert!(told.try_recv().is_err(), "a failure is told once");
}

#[test]
fn callbacks_hear_once_of_a_failure_wherever_it_was_found() {
    type Fault = fn(&SimDisk, &Journal, &mut Writer);
    let in_an_append: Fault = |disk, _, writer| {
        disk.fail_writes(Some(ErrorKind::Other));
        assert!(matches!(writer.append(&[b"x"], 0), Err(AppendError::Failed(_))));
    };
    let in_a_drop: Fault = |disk, journal, _| {
        disk.fail_writes(Some(ErrorKind::Other));
        assert!(matches!(journal.drop_before(80), Err(DropError::Disk(_))));
    };
    let in_a_callback: Fault = |_, journal, writer| {
        journal.on_synced(|_| panic!("a bad callback, on purpose"));
        append(writer, 101..=101, 500);
        journal.request_sync();
    };
    for fault in [in_an_append, in_a_drop, in_a_callback] {
        let disk = SimDisk::unmapped(1);
        let (journal, mut writer, _) = open(&disk);
        append(&mut writer, 1..=100, 500);
        sync(&journal);
        until("sealed", || journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed()));
        let failures = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let told = failures.clone();
        journal.on_synced(move |outcome| told.lock().extend(outcome.as_ref().err().cloned()));
        fault(&disk, &journal, &mut writer);
        until("the failure is told", || !failures.lock().is_empty());
        assert!(writer.close().is_err());
        assert_eq!(failures.lock().len(), 1, "a failure is told once");
    }
}

#[test]
fn a_sync_covers_only_what_was_written_when_it_began() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    let (tell, told) = mpsc::channel();
    journal.on_synced(move |outcome| tell.send(*outcome.as_ref().unwrap()).unwrap());
    append(&mut writer, 1..=3, 100);
    let before = disk.counts().syncs;
    let paused = disk.pause_syncs(".seg");
    journal.request_sync();
    until("the sync has begun", || disk.counts().syncs > before);
    append(&mut writer, 4..=9, 100);
    for _ in 0..20 {
        journal.request_sync();
    }
    assert_eq!(journal.synced(), 0);
    drop(paused);
    journal.wait_synced_blocking(9, LONG).unwrap();
    assert_eq!([told.recv_timeout(LONG).unwrap(), told.recv_timeout(LONG).unwrap()], [3, 9]);
    assert_eq!(disk.counts().syncs, before + 2, "requests during a sync are served by one more");
}

#[test]
fn a_disk_that_hangs_slows_the_appends_and_bounds_what_is_unsynced() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    let paused = disk.pause_syncs(".seg");
    let appender = std::thread::spawn(move || {
        append(&mut writer, 1..=2000, 500);
        writer
    });
    let written = || journal.written();
    let mut seen = 0;
    until("the appends stand still", || {
        let before = written();
        std::thread::sleep(Duration::from_millis(30));
        before > 0 && before == written()
    });
    seen += written();
    assert!(seen < 2000);
    assert!(journal.0.segments.read().len() <= 17 + 1);
    check(&journal, seen, 500);
    let so_far = journal.syncing().expect("a sync is under way");
    until("it takes longer", || journal.syncing().is_some_and(|now| now > so_far));
    drop(paused);
    let _writer = appender.join().unwrap();
    check(&journal, 2000, 500);
    sync(&journal);
    until("the syncs have ended", || journal.syncing().is_none());
}

#[test]
fn nothing_is_synced_while_nothing_is_written() {
    let disk = SimDisk::new(1);
    let options = Options { sync: SyncPolicy::Interval(Duration::from_millis(1)), ..options() };
    let (journal, mut writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    append(&mut writer, 1..=1, 10);
    journal.wait_synced_blocking(1, LONG).unwrap();
    let before = disk.counts();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(disk.counts(), before);
}

#[test]
fn dropping_can_be_interrupted_anywhere() {
    let prepare = || {
        let disk = SimDisk::new(1);
        let (journal, mut writer, _) = open(&disk);
        append(&mut writer, 1..=100, 500);
        sync(&journal);
        until("sealed", || journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed()));
        (disk, journal, writer)
    };
    let (_, journal, _writer) = prepare();
    let dropped = journal.drop_before(80).unwrap();
    assert!(dropped > 60);
    for stop in 0..30 {
        let (disk, journal, writer) = prepare();
        disk.stop_after(stop);
        let whole = journal.drop_before(80).is_ok();
        drop(writer);
        for seed in 0..5 {
            let (after, _writer, recovery) = open(&disk.crash(seed));
            assert!(recovery.first_index == 1 || recovery.first_index == dropped);
            assert!(!whole || recovery.first_index == dropped);
            check(&after, 100, 500);
        }
    }
}

/// F20: somebody removes or shortens a segment under the running log. Every call succeeds, and all is lost: so the
/// next sync makes sure of the file, and the log stops with a reason.
#[test]
fn a_segment_that_is_taken_away_ends_the_log() {
    for (shortened, mapped) in [(false, false), (false, true), (true, false), (true, true)] {
        let disk = if mapped { SimDisk::new(1) } else { SimDisk::unmapped(1) };
        let (journal, mut writer, _) = open(&disk);
        append(&mut writer, 1..=3, 100);
        sync(&journal);
        let name = crate::segment::name(1);
        if shortened {
            let file = crate::disk::Disk::open(&disk, &name).unwrap();
            file.shorten(8192 + 100).unwrap();
        } else {
            disk.take(&name);
            append(&mut writer, 4..=4, 100);
        }
        // A write makes the file longer again; a store goes into the page and no further.
        append(&mut writer, journal.written() + 1..=journal.written() + 1, 100);
        if shortened && !mapped {
            let file = crate::disk::Disk::open(&disk, &name).unwrap();
            file.shorten(8192 + 100).unwrap();
        }
        journal.request_sync();
        let failure = journal.wait_synced_blocking(journal.written(), LONG).unwrap_err().to_string();
        let reason = if shortened { "it was shortened" } else { "it was removed" };
        assert!(failure.contains(reason), "{failure}");
        assert_eq!(journal.synced(), 3);
        assert!(matches!(writer.append(&[b"x"], 0), Err(AppendError::Failed(_))));
    }
}

/// F20: a store that meets no page. Nothing of it is published. `mapped.rs` has the same with a real file.
#[test]
fn a_store_into_a_page_that_is_gone_ends_the_log() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=3, 100);
    crate::disk::Disk::open(&disk, &crate::segment::name(1)).unwrap().shorten(8192).unwrap();
    let refused = writer.append(&[b"x"], 0).unwrap_err();
    assert!(matches!(&refused, AppendError::Failed(e) if e.action == "write"), "{refused}");
    assert!(refused.to_string().contains("it was shortened"), "{refused}");
    assert_eq!((journal.written(), journal.synced()), (3, 0));
    assert!(matches!(journal.health(), Health::Failed(_)));
    assert!(matches!(writer.append(&[b"x"], 0), Err(AppendError::Failed(_))));
}

/// F1: a process may be killed between any two stores of a frame. What was published is there, and what the frame
/// left is a torn tail at most.
#[test]
fn a_store_can_be_interrupted_anywhere() {
    let mut torn = 0;
    for stop in 0..40 {
        let disk = SimDisk::new(1);
        let (journal, mut writer, _) = open(&disk);
        append(&mut writer, 1..=2, 300);
        disk.stop_after(stop);
        while let Ok(index) = writer.append(&[&payload(journal.written() + 1, 300)], 0) {
            assert!(index < 20);
        }
        let written = journal.written();
        let (after, _writer, recovery) = open(&disk.kill());
        assert_eq!(recovery.last_index, written);
        torn += u32::from(recovery.cut.is_some_and(|cut| cut.index == written + 1 && cut.lost.is_none()));
        check(&after, written, 300);
    }
    assert!(torn > 20, "{torn}");
}

/// F9: no space for the state and for a named position; both work again when there is some.
#[test]
fn a_full_disk_for_state_and_positions() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=5, 100);
    sync(&journal);
    let mut tailer = journal.named_tailer("x").unwrap();
    tailer.next_entry().unwrap();
    tailer.commit_synced().unwrap();
    tailer.next_entry().unwrap();
    disk.fail_writes(Some(ErrorKind::StorageFull));
    assert!(matches!(tailer.commit(), Err(crate::CursorError::Disk(e)) if e.is_no_space()));
    disk.limit_space(Some(0));
    assert!(matches!(journal.named_tailer("new"), Err(crate::CursorError::Disk(e)) if e.is_no_space()));
    assert!(matches!(journal.health(), Health::Good));
    assert!(writer.close().is_err(), "the clean mark could not be written");
    drop(tailer);
    assert!(matches!(try_open(&disk), Err(OpenError::Disk(e)) if e.is_no_space()));
    disk.fail_writes(None);
    disk.limit_space(None);
    let (journal, _writer, recovery) = open(&disk);
    assert!(!recovery.clean);
    check(&journal, 5, 100);
    assert_eq!(journal.named_tailer("x").unwrap().position(), 2);
    journal.named_tailer("new").unwrap();
}

/// F10: the machine stops between any two steps of making a log and its segments, of naming them for their cycles,
/// sealing them and giving back what they did not need.
#[test]
fn making_files_can_be_interrupted_anywhere() {
    let minutely = crate::Cycle::utc(crate::CycleLength::Minute);
    let cycle = crate::CycleChoice::Exactly(Some(minutely));
    // Once all entries are durable the seals are still to come.
    let (mut whole, steps_of_seals) = (0, 30);
    for stop in 0.. {
        let disk = SimDisk::new(1);
        disk.stop_after(stop);
        let (mut written, mut durable) = (0, 0);
        let options = Options { cycle: cycle.clone(), ..options() };
        if let Ok((journal, mut writer, _)) = Journal::open_on(Arc::new(disk.clone()), options) {
            for index in 1..=30 {
                if writer.append(&[&payload(index, 600)], index / 7 * 60_000_000_000).is_err() {
                    break;
                }
                written = index;
            }
            journal.request_sync();
            let _ = journal.wait_synced_blocking(written, LONG);
            durable = journal.synced();
        }
        for seed in 0..4 {
            let found = disk.crash(seed);
            let (after, _writer, recovery) = open(&found);
            assert!((durable..=written).contains(&recovery.last_index), "stopped after {stop}");
            check(&after, recovery.last_index, 600);
            let mut bases: Vec<_> =
                found.sorted_names().iter().filter_map(|n| crate::segment::base_of(n)).collect();
            bases.dedup();
            assert_eq!(bases.len(), after.0.segments.read().len(), "no two segments of one base");
        }
        whole += u64::from(durable == 30);
        if whole > steps_of_seals {
            return;
        }
    }
}
