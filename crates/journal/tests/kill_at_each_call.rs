//! A process that is killed before each of its disk calls in turn: what it reported is there afterwards, in order and whole.

use std::collections::HashMap;
use std::io::{self, IoSlice, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rockdove_journal::disk::{Disk, File, FolderLock, HeaderBytes, Mapping, RealDisk, Window};
use rockdove_journal::{Journal, Level, Options, SyncPolicy, Terms};
use rustix::process::{Signal, getpid, kill_process};

/// Set for the child only: the folder in which it appends, and the call before which it dies.
const FOLDER: &str = "ROCKDOVE_JOURNAL_TEST_CALLS_FOLDER";
const KILL_AT: &str = "ROCKDOVE_JOURNAL_TEST_KILL_AT";
const LONG: Duration = Duration::from_secs(30);
const ENTRIES: u64 = 8;

fn options() -> Options {
    Options { segment_bytes: 16 << 10, sync: SyncPolicy::Never, ..Options::default() }
}

fn payload(index: u64) -> Vec<u8> {
    (0..3000).map(|i| (i + index) as u8).collect()
}

/// Counts the calls that change something, and kills the process before one of them.
#[derive(Clone)]
struct Fate(Arc<AtomicU64>);

impl Fate {
    fn call(&self) {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 1 {
            kill_process(getpid(), Signal::KILL).unwrap();
            loop {
                std::thread::park();
            }
        }
    }
}

struct Fatal<T>(T, Fate);

impl Disk for Fatal<RealDisk> {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.1.call();
        Ok(Arc::new(Fatal(self.0.create(name)?, self.1.clone())))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(Fatal(self.0.open(name)?, self.1.clone())))
    }

    fn open_read(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.0.open_read(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.1.call();
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.1.call();
        self.0.remove(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.1.call();
        self.0.sync_names()
    }

    fn lock(&self, name: &str) -> io::Result<FolderLock> {
        self.1.call();
        self.0.lock(name)
    }

    fn boot_id(&self) -> [u8; 16] {
        self.0.boot_id()
    }

    fn entropy(&self) -> u64 {
        self.0.entropy()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }
}

impl File for Fatal<Arc<dyn File>> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.1.call();
        self.0.write_at(parts, offset)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.1.call();
        self.0.allocate(len)
    }

    fn map(&self, from: u64, published: u64) -> Option<Box<dyn Mapping>> {
        Some(Box::new(Fatal(self.0.map(from, published)?, self.1.clone())))
    }

    fn shorten(&self, len: u64) -> io::Result<()> {
        self.1.call();
        self.0.shorten(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.call();
        self.0.sync()
    }

    fn has_name(&self) -> io::Result<bool> {
        self.0.has_name()
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

impl Mapping for Fatal<Box<dyn Mapping>> {
    fn store(&mut self, at: u64, header: &HeaderBytes, payload: &[&[u8]]) -> io::Result<()> {
        self.1.call();
        self.0.store(at, header, payload)
    }

    fn publish(&mut self, end: u64) {
        self.0.publish(end);
    }

    fn window(&self) -> Option<Arc<Window>> {
        self.0.window()
    }
}

fn report(what: &str, value: u64) {
    let mut out = io::stdout();
    writeln!(out, "\n{what} {value}").unwrap();
    out.flush().unwrap();
}

/// Does nothing unless it is run by the test below. A new log that is dropped, recovered, shortened and closed.
#[test]
fn child() {
    let (Some(folder), Ok(at)) = (std::env::var_os(FOLDER), std::env::var(KILL_AT)) else { return };
    let fate = Fate(Arc::new(at.parse::<u64>().unwrap().into()));
    let disk: Arc<dyn Disk> = Arc::new(Fatal(RealDisk::new(Path::new(&folder)).unwrap(), fate));
    for run in 0..2 {
        let (journal, mut writer, _) = Journal::open_on(disk.clone(), options()).unwrap();
        for index in run * ENTRIES + 1..=(run + 1) * ENTRIES {
            let bytes = payload(index);
            if index % 2 == 0 {
                let terms = Terms { time_ns: 0, value: 0, level: Level::Sync };
                assert_eq!(writer.append_and_wait(&[&bytes], terms, LONG).unwrap().index, index);
            } else {
                assert_eq!(writer.append(&[&bytes], 0).unwrap(), index);
            }
            report("written", index);
        }
        if run == 1 {
            let deadline = Instant::now() + LONG;
            // The seals follow the mark.
            while journal.drop_before(ENTRIES).unwrap() == 1 {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(1));
            }
            report("first", journal.first_index());
            writer.close().unwrap();
            report("closed", 1);
        }
    }
}

#[test]
fn whatever_call_a_writer_does_not_come_to() {
    let calls = AtomicU64::new(1);
    // Most of the time they wait for the disk.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| while dies_at(calls.fetch_add(1, Ordering::SeqCst)) {});
        }
    });
    assert!(calls.into_inner() > 50);
}

/// Runs the child and looks at what it leaves; false if it has no call of this number.
fn dies_at(call: u64) -> bool {
    assert!(call < 1000, "it always dies");
    let temp = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(FOLDER, temp.path())
        .env(KILL_AT, call.to_string())
        .output()
        .unwrap();
    let dies = output.status.signal() == Some(Signal::KILL.as_raw());
    assert!(dies || output.status.success(), "call {call}: {output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let reported: HashMap<&str, u64> = said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(what, value)| Some((what, value.parse().ok()?)))
        .collect();
    let told = |what| reported.get(what).copied().unwrap_or(0);
    assert!(dies || told("closed") == 1, "{reported:?}");

    let (journal, writer, recovery) = Journal::open(temp.path(), options()).unwrap();
    assert!(recovery.last_index >= told("written"), "call {call}: {recovery:?} of {reported:?}");
    assert!(recovery.first_index >= told("first"), "call {call}: {recovery:?} of {reported:?}");
    assert!(recovery.clean || told("closed") == 0, "call {call}: {recovery:?}");
    let mut next = recovery.first_index;
    for entry in journal.read_from(next).unwrap() {
        let entry = entry.unwrap();
        assert_eq!((entry.index, &entry.payload[..]), (next, &payload(next)[..]), "call {call}");
        next += 1;
    }
    assert_eq!(next, recovery.last_index + 1, "call {call}");
    writer.close().unwrap();
    dies
}
