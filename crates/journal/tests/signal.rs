//! SIGBUS that was sent, and is no missing page: it does what it did before a log was opened, and the log's handler stays.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::time::Duration;

use rockdove_journal::{AppendError, Journal, Options, SyncPolicy};

/// Set for children only, because a signal concerns the whole process: who has the signal before the log.
const BEFORE: &str = "ROCKDOVE_JOURNAL_TEST_BEFORE";

fn run(before: &str) -> Output {
    let child = std::env::current_exe().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"ulimit -c 0; exec "$0" --exact child --nocapture"#]).arg(child);
    shell.env(BEFORE, before).output().unwrap()
}

/// Does nothing unless a test below runs it.
#[test]
#[expect(unsafe_code, reason = "there is no other way to choose a signal's handler")]
fn child() {
    let Ok(before) = std::env::var(BEFORE) else { return };
    let choose = |handler| {
        // SAFETY: neither of the two is code of ours.
        unsafe { libc::signal(libc::SIGBUS, handler) };
    };
    match &*before {
        "nobody" => choose(libc::SIG_DFL),
        "ignored" => choose(libc::SIG_IGN),
        _ => {}
    }
    let temp = tempfile::tempdir().unwrap();
    let options = Options { sync: SyncPolicy::Never, ..Options::default() };
    let (_journal, mut writer, _) = Journal::open(temp.path(), options).unwrap();
    writer.append(&[b"x"], 0).unwrap();
    for _ in 0..3 {
        // SAFETY: the signal is sent to this thread, before the call returns.
        assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
        std::thread::sleep(Duration::from_millis(1));
    }
    let segment = std::fs::read_dir(temp.path()).unwrap().map(|file| file.unwrap().path());
    let segment = segment.into_iter().find(|file| file.extension().is_some_and(|e| e == "seg")).unwrap();
    OpenOptions::new().write(true).open(segment).unwrap().set_len(0).unwrap();
    // Written by calls where files are not mapped.
    assert!(matches!(writer.append(&[b"x"], 0), Err(AppendError::Failed(_)) | Ok(_)));
    println!("\nsurvived");
}

#[test]
fn a_signal_that_was_sent_does_not_take_the_handler_away() {
    for before in ["ignored", "rust"] {
        let output = run(before);
        assert!(output.status.success(), "{before}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("survived"), "{before}: {output:?}");
    }
}

#[test]
fn a_signal_that_was_sent_ends_the_process_if_nobody_had_it() {
    let status = run("nobody").status;
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
}
