//! A process whose files may not become larger (`ulimit -f`): an entry that needs more space is refused, and the process lives.

use std::process::Command;

use rockdove_journal::{AppendError, Health, Journal, Options, SyncPolicy};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Set for the child only, because the limit concerns the whole process.
const FOLDER: &str = "ROCKDOVE_JOURNAL_TEST_LIMITED_FOLDER";

/// Does nothing unless the test below runs it.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let limit = Some(256 << 10);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let options = Options { segment_bytes: 64 << 10, sync: SyncPolicy::Never, ..Options::default() };
    let (journal, mut writer, _) = Journal::open(folder, options).unwrap();
    let refused = writer.append(&[&[7; 500_000]], 0).unwrap_err();
    assert!(matches!(refused, AppendError::NoSpace(_)), "{refused}");
    assert_eq!(writer.append(&[&[7; 100_000]], 0).unwrap(), 1);
    assert!(matches!(journal.health(), Health::Good));
    writer.close().unwrap();
    println!("\nsurvived");
}

#[test]
fn an_entry_beyond_the_limit_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(FOLDER, temp.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("survived"), "{output:?}");
}
