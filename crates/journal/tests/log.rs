//! The log as its users see it, on the real file system.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rockdove_journal::{
    AppendError, Health, Journal, OpenError, Options, PAYLOAD_BYTES_MAX, ReadError, Recovery, SyncPolicy,
    WaitError, Writer,
};

const LONG: Duration = Duration::from_secs(20);

fn small() -> Options {
    Options { segment_bytes: 16 << 10, sync: SyncPolicy::EachBatch, ..Options::default() }
}

fn open(dir: &Path, options: Options) -> (Journal, Writer, Recovery) {
    Journal::open(dir, options).unwrap()
}

fn payload(index: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (index as usize * 31 + i) as u8).collect()
}

fn append_all(writer: &mut Writer, indexes: std::ops::RangeInclusive<u64>, len: usize) {
    for index in indexes {
        assert_eq!(writer.append(&[&payload(index, len)], index * 10).unwrap(), index);
    }
}

fn check_all(journal: &Journal, indexes: std::ops::RangeInclusive<u64>, len: usize) {
    let read: Vec<_> = journal.read_from(*indexes.start()).unwrap().map(Result::unwrap).collect();
    assert_eq!(read.iter().map(|e| e.index).collect::<Vec<_>>(), indexes.collect::<Vec<_>>());
    for entry in read {
        assert_eq!(entry.payload, payload(entry.index, len), "entry {}", entry.index);
        assert_eq!(entry.time_ns, entry.index * 10);
    }
}

#[test]
fn what_is_appended_is_read_and_survives_a_clean_close() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, recovery) = open(temp.path(), small());
    assert!(recovery.created && recovery.cut.is_none());
    assert_eq!((journal.first_index(), journal.written(), journal.synced()), (1, 0, 0));
    append_all(&mut writer, 1..=500, 100);
    check_all(&journal, 1..=500, 100);
    check_all(&journal, 377..=500, 100);
    writer.close().unwrap();
    assert_eq!(journal.synced(), 500);
    assert!(matches!(journal.health(), Health::Closed));
    check_all(&journal, 1..=500, 100);

    let (journal, mut writer, recovery) = open(temp.path(), small());
    assert_eq!(
        recovery,
        Recovery { created: false, clean: true, same_boot: true, first_index: 1, last_index: 500, cut: None }
    );
    assert_eq!((journal.first_index(), journal.written(), journal.synced()), (1, 500, 500));
    append_all(&mut writer, 501..=510, 100);
    check_all(&journal, 1..=510, 100);
}

#[test]
fn a_dropped_writer_loses_nothing_while_the_machine_runs() {
    let temp = tempfile::tempdir().unwrap();
    let options = Options { sync: SyncPolicy::Never, ..small() };
    let (_, mut writer, _) = open(temp.path(), options.clone());
    append_all(&mut writer, 1..=300, 200);
    drop(writer);
    let (journal, _writer, recovery) = open(temp.path(), options);
    assert!(!recovery.clean && recovery.same_boot && !recovery.power_lost());
    assert_eq!((recovery.last_index, recovery.cut), (300, None));
    check_all(&journal, 1..=300, 200);
}

#[test]
fn payloads_of_all_sizes() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    let frames = (16 << 10) - 8192;
    let sizes = [0, 1, 15, 16, 17, 4096, frames - 64, frames - 63, 300_000, 5, 1 << 20, frames - 65, 0];
    let mut expected = Vec::new();
    for (size, index) in sizes.into_iter().zip(1..) {
        let bytes = payload(index, size);
        let (head, tail) = bytes.split_at(size / 3);
        assert_eq!(writer.append(&[head, b"", tail], 0).unwrap(), index);
        expected.push(bytes);
    }
    let read = |journal: &Journal| -> Vec<Vec<u8>> {
        journal.read_from(1).unwrap().map(|e| e.unwrap().payload.to_vec()).collect()
    };
    assert!(read(&journal) == expected);
    drop(writer);
    let (journal, _writer, recovery) = open(temp.path(), small());
    assert_eq!(recovery.cut, None);
    assert!(read(&journal) == expected);
}

#[test]
fn a_large_entry_as_the_very_first() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    append_all(&mut writer, 1..=3, 100_000);
    check_all(&journal, 1..=3, 100_000);
    assert!(journal.disk_bytes() > 300_000);
    drop(writer);
    let (journal, _writer, _) = open(temp.path(), small());
    check_all(&journal, 1..=3, 100_000);
}

#[test]
fn too_large_is_refused_before_anything_is_written() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    let half = vec![0; PAYLOAD_BYTES_MAX as usize / 2];
    let refused = writer.append(&[&half, &half, b"x"], 0);
    assert!(
        matches!(refused, Err(AppendError::TooLarge { bytes, .. }) if bytes == PAYLOAD_BYTES_MAX + 1),
        "{refused:?}"
    );
    assert_eq!(journal.written(), 0);
    append_all(&mut writer, 1..=1, 10);
    check_all(&journal, 1..=1, 10);
}

#[test]
fn time_never_goes_back() {
    let temp = tempfile::tempdir().unwrap();
    let times = |journal: &Journal| -> Vec<u64> {
        journal.read_from(1).unwrap().map(|e| e.unwrap().time_ns).collect()
    };
    let (journal, mut writer, _) = open(temp.path(), small());
    for time in [5, 3, 9] {
        writer.append(&[b"x"], time).unwrap();
    }
    assert_eq!(times(&journal), [5, 5, 9]);
    writer.close().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    writer.append(&[b"x"], 1).unwrap();
    assert_eq!(times(&journal), [5, 5, 9, 9]);
}

#[test]
fn one_writer_at_a_time() {
    let temp = tempfile::tempdir().unwrap();
    let (_journal, writer, _) = open(temp.path(), small());
    let second = Journal::open(temp.path(), small());
    assert!(matches!(second, Err(OpenError::Locked(dir)) if dir.starts_with(temp.path())));
    writer.close().unwrap();
    open(temp.path(), small());
}

#[test]
fn options_are_checked() {
    let temp = tempfile::tempdir().unwrap();
    for segment_bytes in [0, 4096, (16 << 10) + 1, 2 << 30] {
        let opened = Journal::open(temp.path(), Options { segment_bytes, ..small() });
        assert!(matches!(opened, Err(OpenError::Options(_))), "{segment_bytes}");
    }
}

#[test]
fn readers_follow_the_writer() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    let (count, threads) = (5_000, 2);
    let readers: Vec<_> = (0..threads)
        .map(|_| {
            let mut reader = journal.read_from(1).unwrap();
            std::thread::spawn(move || {
                let deadline = std::time::Instant::now() + LONG;
                while reader.position() <= count {
                    match reader.next() {
                        Some(entry) => {
                            let entry = entry.unwrap();
                            assert_eq!(entry.payload, payload(entry.index, 50));
                        }
                        None => std::thread::yield_now(),
                    }
                    assert!(std::time::Instant::now() < deadline, "at {}", reader.position());
                }
            })
        })
        .collect();
    append_all(&mut writer, 1..=count, 50);
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn reading_outside_the_log_is_an_error() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    append_all(&mut writer, 1..=2, 10);
    assert!(matches!(journal.read_from(0), Err(ReadError::BeforeStart { index: 0, first: 1 })));
    assert!(matches!(journal.read_from(4), Err(ReadError::AfterEnd { index: 4, next: 3 })));
    let mut at_end = journal.read_from(3).unwrap();
    assert!(at_end.next().is_none());
    append_all(&mut writer, 3..=3, 10);
    assert_eq!(at_end.next().unwrap().unwrap().index, 3);
    assert!(at_end.next().is_none());
}

#[test]
fn dropping_frees_whole_segments_only() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    append_all(&mut writer, 1..=1000, 100);
    journal.request_sync();
    journal.wait_synced_blocking(1000, LONG).unwrap();
    let before = journal.disk_bytes();
    let mut late = journal.read_from(1).unwrap();
    late.next().unwrap().unwrap();
    // The seal follows the mark.
    let deadline = std::time::Instant::now() + LONG;
    let mut first = journal.drop_before(500).unwrap();
    while first < 450 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
        first = journal.drop_before(500).unwrap();
    }
    assert!((450..=500).contains(&first), "{first}");
    assert_eq!(journal.first_index(), first);
    assert!(journal.disk_bytes() < before);
    check_all(&journal, first..=1000, 100);
    assert!(matches!(journal.read_from(first - 1), Err(ReadError::BeforeStart { .. })));
    let end = late.find_map(Result::err);
    assert!(matches!(end, Some(ReadError::BeforeStart { first: f, .. }) if f == first), "{end:?}");

    // The last entry stays, whatever is asked for.
    let first = journal.drop_before(u64::MAX).unwrap();
    assert!(first <= 1000);
    check_all(&journal, first..=1000, 100);
    writer.close().unwrap();
    let (journal, mut writer, recovery) = open(temp.path(), small());
    assert_eq!((recovery.first_index, recovery.last_index), (first, 1000));
    append_all(&mut writer, 1001..=1100, 100);
    check_all(&journal, first..=1100, 100);
}

#[test]
fn each_batch_syncs_without_being_asked() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    for index in 1..=20 {
        append_all(&mut writer, index..=index, 10);
        journal.wait_synced_blocking(index, LONG).unwrap();
    }
}

#[test]
fn the_interval_syncs_without_being_asked() {
    let temp = tempfile::tempdir().unwrap();
    let options = Options { sync: SyncPolicy::Interval(Duration::from_millis(5)), ..small() };
    let (journal, mut writer, _) = open(temp.path(), options);
    let (tell, told) = mpsc::channel();
    journal.on_synced(move |mark| tell.send(*mark.as_ref().unwrap()).unwrap());
    for index in 1..=5 {
        append_all(&mut writer, index..=index, 10);
        journal.wait_synced_blocking(index, LONG).unwrap();
        assert_eq!(told.recv_timeout(LONG).unwrap(), index);
    }
    // Nothing is unsynced, so nothing happens.
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
}

#[test]
fn never_syncs_only_when_asked() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), Options { sync: SyncPolicy::Never, ..small() });
    append_all(&mut writer, 1..=5, 10);
    let waited = journal.wait_synced_blocking(1, Duration::from_millis(30));
    assert!(matches!(waited, Err(WaitError::Timeout { index: 1, synced: 0 })), "{waited:?}");
    journal.request_sync();
    journal.wait_synced_blocking(5, LONG).unwrap();
    append_all(&mut writer, 6..=6, 10);
    drop(writer);
    assert!(matches!(journal.wait_synced_blocking(6, LONG), Err(WaitError::Closed)));
}

#[test]
fn callbacks_see_a_mark_that_only_grows() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    let last = Arc::new(AtomicU64::new(0));
    let seen = last.clone();
    journal.on_synced(move |mark| {
        let mark = *mark.as_ref().unwrap();
        assert!(seen.fetch_max(mark, Ordering::SeqCst) <= mark);
    });
    append_all(&mut writer, 1..=2000, 20);
    journal.wait_synced_blocking(2000, LONG).unwrap();
    writer.close().unwrap();
    assert_eq!(last.load(Ordering::SeqCst), 2000);
}

#[test]
fn a_callback_that_panics_ends_the_log() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = open(temp.path(), small());
    journal.on_synced(|_| panic!("a bad callback, on purpose"));
    append_all(&mut writer, 1..=1, 20);
    assert!(matches!(journal.wait_synced_blocking(2, LONG), Err(WaitError::Failed(_))));
    assert!(matches!(writer.append(&[b"x"], 0), Err(AppendError::Failed(_))));
    assert!(matches!(journal.health(), Health::Failed(_)));
    check_all(&journal, 1..=1, 20);
    assert!(writer.close().is_err());
}

#[test]
fn stray_temporary_files_are_removed() {
    let temp = tempfile::tempdir().unwrap();
    let (_, mut writer, _) = open(temp.path(), small());
    append_all(&mut writer, 1..=3, 10);
    drop(writer);
    std::fs::write(temp.path().join("spare.tmp"), b"half").unwrap();
    std::fs::write(temp.path().join("notes.txt"), b"not ours").unwrap();
    let (journal, _writer, _) = open(temp.path(), small());
    check_all(&journal, 1..=3, 10);
    assert!(!temp.path().join("spare.tmp").exists());
    assert!(temp.path().join("notes.txt").exists());
}
