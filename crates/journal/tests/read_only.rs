//! A log on a file system that is mounted read-only: readers never write.

mod mount;

use std::sync::Arc;

use mount::Mount;
use rockdove_journal::disk::RealDisk;
use rockdove_journal::{Journal, LogView, OpenError, Options, inspect};

#[test]
fn a_log_that_cannot_be_written_is_read_and_inspected() {
    let Some(mount) = Mount::new(16 << 20) else { return };
    let options = Options { segment_bytes: 64 << 10, ..Options::default() };
    let (_, mut writer, _) = Journal::open(mount.path(), options.clone()).unwrap();
    for _ in 0..100 {
        writer.append(&[&[7; 1000]], 0).unwrap();
    }
    writer.close().unwrap();
    mount.make_read_only();
    let found = inspect(Arc::new(RealDisk::existing(mount.path()).unwrap()), |_, _| {}).unwrap();
    assert_eq!((found.findings, found.last_index, found.in_use), (vec![], 100, false));
    let mut tailer = LogView::open(mount.path()).unwrap().tailer();
    assert_eq!(std::iter::from_fn(|| tailer.next_entry().unwrap().map(|entry| entry.index)).count(), 100);
    assert!(matches!(Journal::open(mount.path(), options), Err(OpenError::Disk(_))));
}
