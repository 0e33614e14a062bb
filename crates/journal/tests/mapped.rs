//! Segments in memory, on the real file system: what readers see, and what happens when a file is taken away.
//!
//! The folder of these tests must be on a file system whose files are mapped (`disk/real.rs`); elsewhere they check the
//! same of a log that is written by calls.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rockdove_journal::{
    AppendError, CommitError, Cycle, CycleChoice, CycleLength, Health, Journal, Level, LogView, Options,
    ReadError, Seek, SyncPolicy, Terms, WaitError,
};

const LONG: Duration = Duration::from_secs(30);

fn options() -> Options {
    Options { segment_bytes: 256 << 10, sync: SyncPolicy::Never, ..Options::default() }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "seg"));
    files.sort();
    files
}

fn shorten(file: &Path, len: u64) {
    OpenOptions::new().write(true).open(file).unwrap().set_len(len).unwrap();
}

fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// F20: not a signal that ends the process, but an error that ends the log.
#[test]
fn a_file_that_is_shortened_ends_the_log_and_not_the_process() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = Journal::open(temp.path(), options()).unwrap();
    let mut tailer = journal.tailer();
    for _ in 0..100 {
        writer.append(&[&[7; 200]], 0).unwrap();
    }
    assert_eq!(tailer.next_entry().unwrap().unwrap().payload, [7; 200]);
    shorten(&segments(temp.path())[0], 0);
    let failure = match writer.append(&[&[7; 200]], 0) {
        Err(AppendError::Failed(error)) => error.to_string(),
        // Written by calls: the next sync finds it out.
        Ok(index) => {
            shorten(&segments(temp.path())[0], 0);
            journal.request_sync();
            match journal.wait_synced_blocking(index, LONG) {
                Err(WaitError::Failed(error)) => error.to_string(),
                other => panic!("{other:?}"),
            }
        }
        Err(other) => panic!("{other}"),
    };
    assert!(failure.contains("shortened") && failure.contains(".seg"), "{failure}");
    assert_eq!(journal.synced(), 0);
    assert!(matches!(journal.health(), Health::Failed(_)));
    assert!(matches!(writer.append(&[b"x"], 0), Err(AppendError::Failed(_))));
    while let Ok(Some(entry)) = tailer.next_entry() {
        assert_eq!(entry.payload, [7; 200], "what is read is what was appended");
    }
    assert!(tailer.next_entry().is_err());
}

/// F20: also where the entry is written by a call, which makes the file longer again.
#[test]
fn a_file_that_is_shortened_is_found_out_by_who_waits() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = Journal::open(temp.path(), options()).unwrap();
    let terms = Terms { time_ns: 0, value: 0, level: Level::Sync };
    writer.append_and_wait(&[&[7; 9000]], terms, LONG).unwrap();
    shorten(&segments(temp.path())[0], 8192);
    match writer.append_and_wait(&[&[7; 200]], terms, LONG) {
        Err(CommitError::Wait { index: 2, error: WaitError::Failed(error) }) => {
            assert!(error.to_string().contains("shortened"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(journal.synced(), 1);
}

/// Segments that end early are shortened when they are sealed, and not beside a sync that looks whether they are whole.
#[test]
fn those_who_wait_roll_segments() {
    let temp = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 64 << 10, ..options() };
    let (journal, writer, _) = Journal::open(temp.path(), options).unwrap();
    let terms = Terms { time_ns: 0, value: 0, level: Level::Sync };
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let appender = writer.appender();
            scope.spawn(move || {
                for _ in 0..150 {
                    appender.append_and_wait(&[&[thread; 6000]], terms, LONG).unwrap();
                }
            });
        }
    });
    assert_eq!(journal.synced(), 1200);
    writer.close().unwrap();
}

/// A reader beside the writer, reading the file by calls, never finds half an entry.
#[test]
fn who_reads_the_file_finds_whole_entries() {
    let temp = tempfile::tempdir().unwrap();
    let (_journal, mut writer, _) = Journal::open(temp.path(), options()).unwrap();
    let count = 30_000;
    let view = LogView::open(temp.path()).unwrap();
    let reader = std::thread::spawn(move || {
        let mut tailer = view.tailer();
        for index in 1..=count {
            let entry = tailer.next_within(LONG).unwrap().unwrap();
            assert_eq!(entry.index, index);
            assert!(entry.payload.iter().all(|b| *b == index as u8), "entry {index}");
            assert_eq!(entry.payload.len() as u64, index % 900);
        }
    });
    for index in 1..=count {
        let bytes = vec![index as u8; (index % 900) as usize];
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        writer.append(&[head, tail], 0).unwrap();
    }
    reader.join().unwrap();
}

/// I20: what was checked before the page was lost is not given out.
#[test]
fn a_page_that_is_lost_while_it_is_read_is_an_error() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = Journal::open(temp.path(), options()).unwrap();
    for _ in 0..3 {
        writer.append(&[&[7; 200]], 0).unwrap();
    }
    let file = segments(temp.path())[0].clone();
    let mut tailer = journal.tailer();
    let read = tailer.read(|entry| {
        shorten(&file, 0);
        Ok::<_, ReadError>(entry.payload.to_vec())
    });
    match read {
        Err(ReadError::Disk(error)) => {
            assert!(error.to_string().contains("shortened"), "{error}");
            assert_eq!(tailer.position(), 1);
        }
        // Read by calls.
        Ok(Some(bytes)) => assert_eq!(bytes, [7; 200]),
        other => panic!("{other:?}"),
    }
    assert!(tailer.next_entry().is_err());
}

/// A segment that was completed early gives its space back also while it is read in memory: behind the entries.
#[test]
fn a_segment_that_is_read_is_shortened_behind_its_entries() {
    let temp = tempfile::tempdir().unwrap();
    let cycle = CycleChoice::Exactly(Some(Cycle::utc(CycleLength::Minute)));
    let (journal, mut writer, _) = Journal::open(temp.path(), Options { cycle, ..options() }).unwrap();
    let minute = 60_000_000_000;
    writer.append(&[&[1; 9000]], minute).unwrap();
    writer.append(&[&[2; 9000]], minute).unwrap();
    let first = segments(temp.path())[0].clone();
    let is_mapped = || fs::read_to_string("/proc/self/maps").unwrap().contains(first.to_str().unwrap());
    let mut behind = journal.tailer();
    assert_eq!(behind.next_entry().unwrap().unwrap().payload, [1; 9000]);
    let mut tailer = journal.tailer();
    tailer.next_entry().unwrap().unwrap();
    let was_mapped = is_mapped();
    let read = tailer.read(|entry| {
        writer.append(&[b"x"], 2 * minute).unwrap();
        journal.request_sync();
        journal.wait_synced_blocking(3, LONG).unwrap();
        until("it is shortened", || fs::metadata(&first).unwrap().len() < 256 << 10);
        assert_eq!(is_mapped(), was_mapped);
        Ok::<_, ReadError>(entry.payload == [2; 9000])
    });
    assert_eq!(read.unwrap(), Some(true));
    for tailer in [&mut tailer, &mut behind] {
        assert_eq!(tailer.move_to_index(2).unwrap(), Seek::At(2));
        assert_eq!(tailer.next_entry().unwrap().unwrap().payload, [2; 9000]);
        assert_eq!(tailer.next_entry().unwrap().unwrap().payload, b"x");
    }
    until("nobody has it in memory", || !is_mapped());
    assert_eq!(journal.read_from(1).unwrap().count(), 3);
    writer.close().unwrap();
}
