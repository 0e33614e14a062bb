//! A process that is killed while it appends: everything it reported as written is there afterwards.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rockdove_journal::{Journal, OpenError, Options, SyncPolicy};

/// Set for the child only: the folder in which it appends.
const FOLDER: &str = "ROCKDOVE_JOURNAL_TEST_FOLDER";
const LONG: Duration = Duration::from_secs(30);

fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        sync: SyncPolicy::Interval(Duration::from_millis(2)),
        ..Options::default()
    }
}

fn payload(index: u64) -> Vec<u8> {
    (0..index % 900).map(|i| (i + index) as u8).collect()
}

/// Does nothing unless it is run by the test below, which kills it.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let (journal, mut writer, _) = Journal::open(folder, options()).unwrap();
    let end = Instant::now() + LONG;
    let mut out = std::io::stdout();
    while Instant::now() < end {
        let index = journal.written() + 1;
        let bytes = payload(index);
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        assert_eq!(writer.append(&[head, tail], 0).unwrap(), index);
        writeln!(out, "\nwritten {index}").unwrap();
        out.flush().unwrap();
    }
}

/// Starts the child and lets it report what it has written.
fn start(folder: &std::path::Path) -> (Child, mpsc::Receiver<u64>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let written = lines.map_while(Result::ok).filter_map(|l| l.strip_prefix("written ")?.parse().ok());
        for index in written {
            // The test may have ended.
            if tell.send(index).is_err() {
                break;
            }
        }
    });
    (child, told)
}

#[test]
fn killed_writers_lose_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 0..8 {
        let (mut child, told) = start(temp.path());
        assert_eq!(told.recv_timeout(LONG).unwrap(), last + 1);
        assert!(matches!(Journal::open(temp.path(), options()), Err(OpenError::Locked(_))));
        std::thread::sleep(Duration::from_millis(7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let reported = told.iter().last().unwrap_or(last + 1);

        let (journal, writer, recovery) = Journal::open(temp.path(), options()).unwrap();
        assert!(recovery.same_boot && !recovery.clean);
        assert!(recovery.last_index >= reported, "{} of {reported}", recovery.last_index);
        last = recovery.last_index;
        let mut count = 0;
        for entry in journal.read_from(1).unwrap() {
            let entry = entry.unwrap();
            count += 1;
            assert_eq!((entry.index, &entry.payload[..]), (count, &payload(count)[..]));
        }
        assert_eq!(count, last);
        // Sometimes the next writer finds a clean log, sometimes one that was dropped.
        if round % 2 == 0 { writer.close().unwrap() } else { drop(writer) }
    }
}
