//! A test alone in its process, because it takes the process most of its file handles away.

use rockdove_journal::{Journal, LogView, Options};

/// Opening must not need a file handle for each segment.
#[test]
fn a_log_of_more_segments_than_file_handles() {
    let temp = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 16 << 10, ..Options::default() };
    let (_journal, mut writer, _) = Journal::open(temp.path(), options.clone()).unwrap();
    let segments = 1500;
    for _ in 0..segments {
        writer.append(&[&[1; 8000]], 0).unwrap();
    }
    writer.close().unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(200), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let opened =
        Journal::open(temp.path(), options).map(|(journal, ..)| journal.read_from(1).unwrap().count());
    let viewed = LogView::open(temp.path()).map(|view| view.first_index());
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    assert_eq!(opened.unwrap(), segments);
    assert_eq!(viewed.unwrap(), 1);
}
