//! A small file system that fills up, really. Where none can be mounted the simulated disk has the same cases.

mod mount;

use mount::Mount;
use rockdove_journal::{AppendError, Health, Journal, Options, SyncPolicy};

#[test]
fn a_full_file_system_is_an_error_and_passes() {
    let Some(mount) = Mount::new(1 << 20) else { return };
    let options = Options { segment_bytes: 64 << 10, sync: SyncPolicy::Never, ..Options::default() };
    let (journal, mut writer, _) = Journal::open(mount.path(), options.clone()).unwrap();
    let refused = loop {
        match writer.append(&[&[7; 1000]], 0) {
            Ok(index) => assert!(index < 2000, "it never filled"),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::NoSpace(_)), "{refused}");
    let last = journal.written();
    assert!(journal.is_short_of_space());
    assert!(last > 500, "{last}");
    assert!(matches!(writer.append(&[&[7; 200_000]], 0), Err(AppendError::NoSpace(_))));
    assert!(matches!(journal.health(), Health::Good));
    assert_eq!(
        journal.read_from(1).unwrap().filter(|e| e.as_ref().unwrap().payload[..] == [7; 1000]).count() as u64,
        last
    );
    journal.request_sync();
    journal.wait_synced_blocking(last, std::time::Duration::from_secs(30)).unwrap();
    // The seals follow the mark.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while journal.drop_before(last / 2).unwrap() == 1 {
        assert!(std::time::Instant::now() < deadline);
    }
    assert_eq!(writer.append(&[&[7; 1000]], 0).unwrap(), last + 1);
    assert!(!journal.is_short_of_space());
    writer.close().unwrap();
    let (journal, writer, recovery) = Journal::open(mount.path(), options).unwrap();
    assert_eq!((recovery.last_index, recovery.cut), (last + 1, None));
    drop((journal, writer, mount));
}
