//! A log whose files were changed anywhere: opening and reading give what was appended, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rockdove_journal::sim::SimDisk;
use rockdove_journal::{Journal, Options, SEGMENT_BYTES_MIN, SyncPolicy};
use std::sync::{Arc, OnceLock};

const ENTRIES: u64 = 60;

fn options() -> Options {
    Options { segment_bytes: SEGMENT_BYTES_MIN, sync: SyncPolicy::Never, ..Options::default() }
}

fn payload(index: u64) -> Vec<u8> {
    (0..600).map(|n| (index as usize * 7 + n) as u8).collect()
}

/// The files of a log of a few segments, as a kill leaves them.
fn files() -> &'static [(String, Vec<u8>)] {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let disk = SimDisk::new(1);
        let (journal, mut writer, _) =
            Journal::open_on(Arc::new(disk.clone()), options()).expect("an empty disk opens");
        for index in 1..=ENTRIES {
            let payload = payload(index);
            writer.append(&[&payload], 0).expect("there is space");
        }
        drop(journal);
        let killed = disk.kill();
        let names = killed.sorted_names().into_iter();
        names.filter_map(|name| killed.contents(&name).map(|bytes| (name, bytes))).collect()
    })
}

fuzz_target!(|data: &[u8]| {
    let disk = SimDisk::new(1);
    let mut files = files().to_vec();
    for edit in data.chunks_exact(4) {
        let chosen = usize::from(edit[0]) % files.len();
        let bytes = &mut files[chosen].1;
        let at = usize::from(u16::from_le_bytes([edit[1], edit[2]]));
        match bytes.get_mut(at) {
            Some(byte) => *byte ^= edit[3],
            None => bytes.truncate(at % (bytes.len() + 1)),
        }
    }
    for (name, bytes) in &files {
        disk.put(name, bytes);
    }
    let Ok((journal, writer, _)) = Journal::open_on(Arc::new(disk), options()) else { return };
    if let Ok(reader) = journal.read_from(journal.first_index()) {
        for entry in reader {
            let Ok(entry) = entry else { break };
            assert_eq!(entry.payload[..], payload(entry.index), "entry {}", entry.index);
        }
    }
    drop(writer);
});
