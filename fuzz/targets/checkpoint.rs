//! A checkpoint that was changed anywhere, with or without the checksum that belongs to it: a state or an error.
#![no_main]

use crc_fast::{CrcAlgorithm, checksum};
use libfuzzer_sys::fuzz_target;
use rockdove_documents::{Owned, Timestamp, check, doc};
use rockdove_engine::checkpoint;
use std::path::Path;
use std::sync::OnceLock;

/// Bytes of the checksum at the end.
const CHECKSUM: usize = 4;

/// A whole checkpoint as docs/format/checkpoint.md has it: two collections with indexes, a view, a retry record.
fn whole() -> &'static [u8] {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let mut out = b"RDOVECP1".to_vec();
        let info = |ns: &str, options| {
            let uuid = Owned::Binary { subtype: 4, bytes: vec![7; 16].into() };
            doc! { "ns": ns, "uuid": uuid, "options": options }
        };
        let at = Timestamp { time: 5, increment: 1 };
        let dropped = doc! { "number": 1, "info": info("a.x", doc! {}), "at": at };
        let header = doc! { "index": 7, "epoch": 9, "at": at, "nextCollection": 9, "dropped": [dropped] };
        out.extend_from_slice(header.bytes());
        let mut record = |kind: u8, number: u64, document: rockdove_documents::Doc| {
            out.push(kind);
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(document.bytes());
        };
        let unique = doc! { "v": 2, "key": { "a": 1, "b": (-1) }, "name": "ab", "unique": true };
        let ttl = doc! { "v": 2, "key": { "t": 1 }, "name": "t", "expireAfterSeconds": 5 };
        let options = doc! { "capped": true, "size": 4096, "validator": { "a": { "$gte": 0 } } };
        record(1, 2, doc! { "info": info("a.b", options), "nextRecord": 9, "indexes": [unique, ttl] });
        for n in 1..4i32 {
            record(2, n as u64, doc! { "_id": n, "a": [n, "x"], "b": { "c": n }, "t": Owned::DateTime(5) });
        }
        let view = doc! { "viewOn": "b", "pipeline": [{ "$match": { "a": 1 } }] };
        record(1, 3, doc! { "info": info("a.v", view), "nextRecord": 1, "indexes": [] });
        record(1, 4, doc! { "info": info("b.c", doc! {}), "nextRecord": 2, "indexes": [] });
        record(2, 1, doc! { "_id": "x" });
        let session = Owned::Binary { subtype: 0, bytes: vec![1; 32].into() };
        let done = doc! { "s": 0, "c": 2, "k": "i" };
        record(3, 0, doc! { "lsid": session, "txn": 5i64, "ms": 77i64, "done": [done] });
        out.push(0);
        out.extend_from_slice(&[0; CHECKSUM]);
        sign(&mut out);
        let read = checkpoint::read(&out[..], Path::new("whole"));
        assert_eq!(read.map(|loaded| loaded.state.collections().count()).expect("it is whole"), 3);
        out
    })
}

fn sign(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(CHECKSUM) {
        let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bytes[..end]) as u32;
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((how, edits)) = data.split_first() else { return };
    let mut bytes = whole().to_vec();
    for edit in edits.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        match bytes.get_mut(at) {
            Some(byte) => *byte ^= edit[2],
            None => bytes.truncate(at % (bytes.len() + 1)),
        }
    }
    if how % 2 == 0 {
        sign(&mut bytes);
    }
    let Ok(loaded) = checkpoint::read(&bytes[..], Path::new("changed")) else { return };
    for collection in loaded.state.collections() {
        for (record, document) in collection.records() {
            assert!(check(document.bytes()).is_ok());
            assert!(record < collection.next_record());
        }
    }
});
