//! A process that was forked has the memory of the one it comes from, as a machine that is set back to a snapshot has: what
//! has to be different each time must not come from memory alone. A test alone in its process.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use rockdove_journal::{Codec, Journal, Key, Options, SyncPolicy};

/// Nonce of the first entry, and log id and salt of the segment, of a new log.
fn drawn(folder: &Path) -> ([u8; 24], [u8; 24]) {
    let codec = Codec { key: Some(Key::new(&[1; 32])), ..Codec::default() };
    let options = Options { codec, sync: SyncPolicy::Never, ..Options::default() };
    let (_, mut writer, _) = Journal::open(folder, options).unwrap();
    writer.append(&[b"the same text"], 0).unwrap();
    writer.close().unwrap();
    found(folder)
}

fn found(folder: &Path) -> ([u8; 24], [u8; 24]) {
    let bytes = fs::read(folder.join("00000000000000000001.seg")).unwrap();
    let at = |at: usize| bytes[at..at + 24].try_into().unwrap();
    (at(8192 + 64), at(16))
}

#[test]
#[expect(unsafe_code, reason = "there is no other way to fork")]
fn a_forked_process_draws_other_numbers() {
    let temp = tempfile::tempdir().unwrap();
    let before = drawn(&temp.path().join("before"));
    let child = temp.path().join("child");
    // SAFETY: no other thread of ours runs; the one that waits for this test holds no lock.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let is_made = catch_unwind(|| drawn(&child)).is_ok();
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(!is_made)) };
    }
    let parent = drawn(&temp.path().join("parent"));
    let mut status = -1;
    // SAFETY: `status` lives through the call.
    assert_eq!(unsafe { libc::waitpid(process, &mut status, 0) }, process);
    assert_eq!(status, 0);
    let child = found(&child);
    for (one, other) in [(before, parent), (before, child), (parent, child)] {
        assert_ne!(one.0, other.0, "a nonce came twice");
        assert_ne!(one.1, other.1, "a log came twice");
    }
}
