//! Tests of the whole log on the simulated disk, named for what goes wrong.

mod codec;
mod commit;
mod crash;
mod cycles;
mod damage;
mod faults;
mod golden;
mod inspect;
mod risk;
mod tail;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sim::SimDisk;
use crate::{Journal, OpenError, Options, ReadError, Recovery, SyncPolicy, Writer};

/// Longest wait for something that must happen.
const LONG: Duration = Duration::from_secs(30);

/// Small segments, and syncs only when a test asks for them or a segment is complete.
fn options() -> Options {
    Options { segment_bytes: 16 << 10, sync: SyncPolicy::Never, ..Options::default() }
}

fn try_open(disk: &SimDisk) -> Result<(Journal, Writer, Recovery), OpenError> {
    Journal::open_on(Arc::new(disk.clone()), options())
}

fn open(disk: &SimDisk) -> (Journal, Writer, Recovery) {
    try_open(disk).unwrap()
}

/// The payload of an entry: its index and then bytes that differ from entry to entry.
fn payload(index: u64, len: usize) -> Vec<u8> {
    let mut bytes = index.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|i| (i as u64 * 7 + index * 13 + 1) as u8));
    bytes
}

/// Appends the entries with these indexes, all with payloads of the same length.
fn append(writer: &mut Writer, indexes: std::ops::RangeInclusive<u64>, len: usize) {
    for index in indexes {
        let bytes = payload(index, len);
        let (head, tail) = bytes.split_at(len / 2);
        assert_eq!(writer.append(&[head, tail], index).unwrap(), index);
    }
}

/// The log holds the entries from its first to `last`, each as [`append`] made it.
fn check(journal: &Journal, last: u64, len: usize) {
    let (read, error) = read_all(journal);
    assert!(error.is_none(), "{error:?}");
    let expected: Vec<_> = (journal.first_index()..=last).map(|i| payload(i, len)).collect();
    assert!(read == expected, "{} entries instead of {}", read.len(), expected.len());
}

fn sync(journal: &Journal) {
    // A mark may be appended meanwhile, which nobody asks to be synced.
    let upto = journal.written();
    journal.request_sync();
    journal.wait_synced_blocking(upto, LONG).unwrap();
}

fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads the log to its end or its first bad entry.
fn read_all(journal: &Journal) -> (Vec<Vec<u8>>, Option<ReadError>) {
    let mut payloads = Vec::new();
    for (entry, index) in journal.read_from(journal.first_index()).unwrap().zip(journal.first_index()..) {
        match entry {
            Ok(entry) => {
                assert_eq!(entry.index, index);
                payloads.push(entry.payload.to_vec());
            }
            Err(e) => return (payloads, Some(e)),
        }
    }
    (payloads, None)
}
