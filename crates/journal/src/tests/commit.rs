//! Who appends and waits for the disk carries out the sync: for all who wait meanwhile, and with the same care.

use std::io::ErrorKind;
use std::thread::JoinHandle;

use super::*;
use crate::{Ack, Appender, CommitError, Health, Level, Terms, WaitError};

const TERMS: Terms = Terms { time_ns: 0, value: 0, level: Level::Sync };

fn commit(appender: &Appender, payload: &[u8]) -> Result<Ack, CommitError> {
    appender.append_and_wait(&[payload], TERMS, LONG)
}

fn start(writer: &Writer) -> JoinHandle<Result<Ack, CommitError>> {
    let appender = writer.appender();
    std::thread::spawn(move || commit(&appender, b"entry"))
}

/// A log whose active segment has its name on disk, so that who waits may carry out a round.
fn open_named(disk: &SimDisk) -> (Journal, Writer) {
    let (journal, mut writer, _) = open(disk);
    writer.append(&[b"first"], 0).unwrap();
    sync(&journal);
    (journal, writer)
}

/// Starts one who waits and is held up by the disk, and then others; all are appended when this returns.
fn start_behind(disk: &SimDisk, writer: &Writer, others: u64) -> Vec<JoinHandle<Result<Ack, CommitError>>> {
    let (journal, before) = (writer.journal(), disk.counts().syncs);
    let mut threads = vec![start(writer)];
    until("the first is in its sync", || disk.counts().syncs == before + 1);
    threads.extend((0..others).map(|_| start(writer)));
    let all = journal.synced() + 1 + others;
    until("all are appended", || journal.written() == all);
    threads
}

#[test]
fn those_who_wait_meanwhile_share_the_next_sync() {
    let disk = SimDisk::new(1);
    let (journal, writer) = open_named(&disk);
    let before = disk.counts().syncs;
    let paused = disk.pause_syncs(".seg");
    let threads = start_behind(&disk, &writer, 7);
    drop(paused);
    let mut acks: Vec<_> = threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect();
    acks.sort_by_key(|ack| ack.index);
    let expected: Vec<_> =
        (2..=9).map(|index| Ack { index, term: 0, level: Level::Sync, degraded: false }).collect();
    assert_eq!(acks, expected);
    assert_eq!((journal.synced(), disk.counts().syncs - before), (9, 2));
}

/// I1, over completed segments, with a power cut after any acknowledgement.
#[test]
fn what_was_acknowledged_is_on_disk() {
    for disk in [SimDisk::new(1), SimDisk::unmapped(1)] {
        let (journal, writer, _) = open(&disk);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (appender, disk, journal) = (writer.appender(), &disk, &journal);
                scope.spawn(move || {
                    for i in 0..60 {
                        let index = commit(&appender, &[thread as u8; 700]).unwrap().index;
                        assert!(journal.synced() >= index);
                        if i % 20 == thread {
                            let (after, _writer, _) = open(&disk.crash(i));
                            assert!(after.written() >= index, "{index} of {}", after.written());
                        }
                    }
                });
            }
        });
        assert_eq!(journal.synced(), 240);
        writer.close().unwrap();
    }
}

/// I5, F7: a failed sync acknowledges nothing, to nobody, and is not tried again.
#[test]
fn a_failed_sync_ends_the_log_for_all_who_wait() {
    let disk = SimDisk::new(1);
    let (journal, mut writer) = open_named(&disk);
    let paused = disk.pause_syncs(".seg");
    let threads = start_behind(&disk, &writer, 3);
    disk.fail_syncs(Some(ErrorKind::Other));
    let syncs = disk.counts().syncs;
    drop(paused);
    for thread in threads {
        let refused = thread.join().unwrap();
        let failed = matches!(refused, Err(CommitError::Wait { error: WaitError::Failed(_), .. }));
        assert!(failed, "{refused:?}");
    }
    disk.fail_syncs(None);
    assert!(matches!(writer.append_and_wait(&[b"x"], TERMS, LONG), Err(CommitError::Append(_))));
    assert_eq!((journal.synced(), disk.counts().syncs), (1, syncs));
}

#[test]
fn a_panic_in_a_sync_ends_the_log() {
    let disk = SimDisk::new(1);
    let (journal, writer) = open_named(&disk);
    let paused = disk.pause_syncs(".seg");
    let threads = start_behind(&disk, &writer, 2);
    // The first is past it.
    disk.panic_once();
    drop(paused);
    let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
    assert!(matches!(ends[0], Ok(Ok(_))));
    assert_eq!(ends.iter().filter(|end| end.is_err()).count(), 1, "one of them carried out the second sync");
    let failed =
        |end: &&Result<_, _>| matches!(end, Ok(Err(CommitError::Wait { error: WaitError::Failed(_), .. })));
    assert_eq!(ends.iter().filter(failed).count(), 1);
    assert!(matches!(journal.health(), Health::Failed(_)));
    assert_eq!(journal.synced(), 2);
}

/// By the log's own thread: who waits may hold what the callback needs.
#[test]
fn who_is_to_be_told_of_each_sync_is_told() {
    let disk = SimDisk::new(1);
    let (journal, mut writer) = open_named(&disk);
    let (tell, told) = std::sync::mpsc::channel();
    journal.on_synced(move |outcome| {
        let thread = std::thread::current().name().map(str::to_owned);
        tell.send((outcome.as_ref().copied().ok(), thread)).unwrap_or_default();
    });
    for index in 2..10 {
        assert_eq!(writer.append_and_wait(&[b"x"], TERMS, LONG).unwrap().index, index);
        loop {
            let (upto, thread) = told.recv_timeout(LONG).unwrap();
            assert_eq!(thread.as_deref(), Some("journal-sync"));
            if upto == Some(index) {
                break;
            }
        }
    }
}

#[test]
fn waiting_ends_in_time_and_with_the_log() {
    let disk = SimDisk::new(1);
    let (journal, writer) = open_named(&disk);
    let paused = disk.pause_syncs(".seg");
    let mut threads = start_behind(&disk, &writer, 1);
    let late = writer.appender().append_and_wait(&[b"x"], TERMS, Duration::from_millis(5));
    assert!(matches!(late, Err(CommitError::Wait { index: 4, error: WaitError::Timeout { synced: 1, .. } })));
    let second = threads.pop().unwrap();
    drop(writer);
    let ended = second.join().unwrap();
    assert!(matches!(ended, Err(CommitError::Wait { index: 3, error: WaitError::Closed })), "{ended:?}");
    drop(paused);
    threads.pop().unwrap().join().unwrap().unwrap();
    assert_eq!(journal.synced(), 2);
}

/// Those whom a long sync woke are not waited for in proportion to it.
#[test]
fn a_slow_sync_does_not_delay_the_next() {
    let disk = SimDisk::new(1);
    let (_journal, writer) = open_named(&disk);
    let delay = || {
        let paused = disk.pause_syncs(".seg");
        let threads = start_behind(&disk, &writer, 2);
        std::thread::sleep(Duration::from_secs(2));
        let released = Instant::now();
        drop(paused);
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
        released.elapsed()
    };
    // Other programs may have the processor once.
    assert!((0..4).any(|_| delay() < Duration::from_millis(250)));
}

/// A clean close covers what others append until then, also while one of them carries out a sync.
#[test]
fn closing_waits_for_the_sync_that_is_under_way() {
    let disk = SimDisk::new(1);
    let (_journal, writer) = open_named(&disk);
    let paused = disk.pause_syncs(".seg");
    let threads = start_behind(&disk, &writer, 3);
    let syncs = disk.counts().syncs;
    let closing = std::thread::spawn(move || writer.close());
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(disk.counts().syncs, syncs, "no other sync begins");
    drop(paused);
    closing.join().unwrap().unwrap();
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
    let (journal, _writer, recovery) = open(&disk.crash(7));
    assert_eq!(journal.written(), 5);
    assert!(recovery.clean, "{recovery:?}");
}

/// Who appends may hold the core until the syncer has made room: both must come to an end, the appender first.
#[test]
fn closing_waits_for_an_append_that_waits_for_the_disk() {
    for close in [|writer: Writer| writer.close().unwrap(), |writer: Writer| drop(writer)] {
        let disk = SimDisk::new(1);
        let (journal, writer) = open_named(&disk);
        let paused = disk.pause_syncs(".seg");
        let appender = writer.appender();
        let (tell, told) = std::sync::mpsc::channel();
        let tell_closed = tell.clone();
        std::thread::spawn(move || {
            let terms = Terms { level: Level::Async, ..TERMS };
            while appender.append_on(&[&[7; 10_000]], terms).is_ok() {}
            tell.send("the appender").unwrap();
        });
        until("too many segments wait for their sync", || {
            journal.0.segments.read().len() > crate::sync::UNSYNCED_SEGMENTS_MAX
        });
        std::thread::spawn(move || {
            close(writer);
            tell_closed.send("the writer").unwrap();
        });
        std::thread::sleep(Duration::from_millis(50));
        drop(paused);
        let mut ended: Vec<_> = (0..2).map(|_| told.recv_timeout(LONG).expect("both end")).collect();
        ended.sort_unstable();
        assert_eq!(ended, ["the appender", "the writer"]);
    }
}

/// Segments that end early are shortened when they are sealed: by nobody who waits, and not beside another round.
#[test]
fn segments_that_are_completed_meanwhile_are_left_to_the_syncer() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let (journal, writer, _) = open(&disk);
        std::thread::scope(|scope| {
            for thread in 0..6u8 {
                let appender = writer.appender();
                // Two of them fill most of a segment, so that pages are left of it.
                scope.spawn(move || {
                    for _ in 0..40 {
                        commit(&appender, &[thread; 6000]).unwrap();
                    }
                });
            }
        });
        assert_eq!(journal.synced(), 240);
        writer.close().unwrap();
    }
}

/// Also where the policy is never to sync: the level asks for it.
#[test]
fn who_gives_up_has_asked_for_the_sync() {
    let disk = SimDisk::new(1);
    let (journal, writer) = open_named(&disk);
    let paused = disk.pause_syncs(".seg");
    let threads = start_behind(&disk, &writer, 0);
    let late = writer.appender().append_and_wait(&[b"x"], TERMS, Duration::from_millis(5));
    assert!(
        matches!(late, Err(CommitError::Wait { index: 3, error: WaitError::Timeout { .. } })),
        "{late:?}"
    );
    drop(paused);
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
    journal.wait_synced_blocking(3, LONG).unwrap();
}
