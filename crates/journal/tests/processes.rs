//! One process writes, others read: on the real file system, with real processes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rockdove_journal::{
    CursorError, Journal, Level, LogView, OpenError, Options, RiskPolicy, SyncPolicy, Terms, WaitStrategy,
};

/// Set for children only: the folder, and what to do there.
const FOLDER: &str = "ROCKDOVE_JOURNAL_TEST_FOLDER";
const PART: &str = "ROCKDOVE_JOURNAL_TEST_PART";
const LONG: Duration = Duration::from_secs(30);
const COUNT: u64 = 3000;

fn options() -> Options {
    let risk = RiskPolicy { single: Some(1), announce: true, ..RiskPolicy::default() };
    Options { segment_bytes: 32 << 10, sync: SyncPolicy::Never, risk: Some(risk), ..Options::default() }
}

fn payload(number: u64) -> Vec<u8> {
    (0..number % 400).map(|i| (i + number) as u8).chain(number.to_le_bytes()).collect()
}

fn number_of(payload: &[u8]) -> u64 {
    let number = u64::from_le_bytes(payload[payload.len() - 8..].try_into().unwrap());
    assert_eq!(payload, self::payload(number));
    number
}

fn start(folder: &Path, part: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(FOLDER, folder)
        .env(PART, part)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The first line of a child's that has this prefix; the rest of it.
fn line(child: &mut Child, prefix: &str) -> String {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines
        .map_while(Result::ok)
        .find_map(|l| l.strip_prefix(prefix).map(str::to_owned))
        .expect("the child ended")
}

fn say(text: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "\n{text}").unwrap();
    out.flush().unwrap();
}

/// Does nothing unless a test below runs it.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    match std::env::var(PART).unwrap().as_str() {
        "write" => {
            let (_journal, mut writer, _) = Journal::open(folder, options()).unwrap();
            say("open");
            for number in 1..=COUNT {
                let value = u64::from(number % 500 == 0);
                let terms = Terms { time_ns: number, value, level: Level::Async };
                writer.append_on(&[&payload(number)], terms).unwrap();
                if number % 64 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            // Until the test ends it, or has gone.
            let _ = std::io::stdin().read_line(&mut String::new());
        }
        "read" => {
            let view = LogView::open(folder).unwrap();
            let mut tailer = view.named_tailer("reader").unwrap();
            let mut seen = 0;
            while let Some(entry) = tailer.next_within(LONG).unwrap() {
                seen += 1;
                let number = number_of(entry.payload);
                if number == COUNT {
                    break;
                }
            }
            tailer.commit().unwrap();
            say(&format!("read {seen}"));
        }
        other => panic!("no part {other}"),
    }
}

#[test]
fn a_reader_in_another_process_sees_all_entries_while_they_are_written() {
    let temp = tempfile::tempdir().unwrap();
    let mut writer = start(temp.path(), "write");
    line(&mut writer, "open");
    let mut reader = start(temp.path(), "read");
    // And one here.
    let view = LogView::open(temp.path()).unwrap();
    let mut tailer = view.tailer().with_wait(WaitStrategy::SpinThenPark(Duration::from_micros(200)));
    for number in 1..=COUNT {
        let entry = tailer.next_within(LONG).unwrap().expect("in time");
        assert_eq!(number_of(entry.payload), number);
    }
    // The writer's synced mark is known from the marks in the log.
    let deadline = Instant::now() + LONG;
    while tailer.last_mark().is_none_or(|mark| mark.upto < COUNT) {
        assert!(tailer.next_within(Duration::from_millis(5)).unwrap().is_none());
        assert!(Instant::now() < deadline, "the last entry asked for a sync");
    }
    assert!(view.watermarks().unwrap().synced >= COUNT);
    assert_eq!(line(&mut reader, "read "), COUNT.to_string());
    assert!(reader.wait().unwrap().success());
    assert!(view.cursors().unwrap()[0].next > COUNT);
    assert!(matches!(Journal::open(temp.path(), options()), Err(OpenError::Locked(_))));
    writer.kill().unwrap();
    writer.wait().unwrap();

    // F18: the kernel has given the lock free.
    let (journal, _writer, recovery) = Journal::open(temp.path(), options()).unwrap();
    assert!(recovery.same_boot && recovery.cut.is_none());
    let numbers = journal.read_from(1).unwrap().map(|e| number_of(&e.unwrap().payload));
    assert!(numbers.eq(1..=COUNT));
}

#[test]
fn a_named_position_has_one_reader_in_all_processes() {
    let temp = tempfile::tempdir().unwrap();
    let (journal, mut writer, _) = Journal::open(temp.path(), options()).unwrap();
    writer.append(&[&payload(COUNT)], 0).unwrap();
    let view = LogView::open(temp.path()).unwrap();
    let held = journal.named_tailer("reader").unwrap();
    assert!(matches!(view.named_tailer("reader"), Err(CursorError::InUse(_))));
    assert!(matches!(view.named_tailer("reader"), Err(CursorError::InUse(_))), "refusals leave no lock");
    drop(held);
    let mut reader = start(temp.path(), "read");
    assert_eq!(line(&mut reader, "read "), "1");
    reader.wait().unwrap();
    assert_eq!(view.named_tailer("reader").unwrap().position(), 2);
}

#[test]
fn a_view_of_what_is_no_log() {
    let temp = tempfile::tempdir().unwrap();
    assert!(matches!(LogView::open(temp.path()), Err(OpenError::Disk(_))));
    assert!(matches!(LogView::open(temp.path().join("nothing")), Err(OpenError::Disk(_))));
    assert!(!temp.path().join("nothing").exists());
}
