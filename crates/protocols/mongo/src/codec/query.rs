//! OP_QUERY and OP_REPLY: the messages of old, which drivers still begin a connection with.
//!
//! ```text
//! OP_QUERY: flags i32 | "database.$cmd" NUL | skip i32 | count i32 | document | [document]
//! OP_REPLY: flags i32 | cursor i64 | from i32 | count i32 | document
//! ```
//!
//! Only the decoding is here; that nothing but the handshake may come this way is the dispatcher's rule.

use super::header::{Header, op_code};
use super::msg::take_document;
use super::{Body, FrameError};
use bytes::{Buf, Bytes};
use rockdove_documents::Value;

/// The reply flag of a server that can wait for data: the only one we set (others make clients stop).
const AWAIT_CAPABLE: i32 = 8;
/// The reply flag of a refused query.
const QUERY_FAILURE: i32 = 2;

/// Reads the query after the header.
pub(super) fn decode(mut payload: Bytes) -> Result<Body, FrameError> {
    let _flags = payload.try_get_i32_le().map_err(|_| FrameError::Truncated)?;
    let end = payload.iter().position(|byte| *byte == 0).ok_or(FrameError::Truncated)?;
    let namespace = payload.split_to(end);
    payload.advance(1);
    payload.try_get_u64_le().map_err(|_| FrameError::Truncated)?; // skip and count
    let query = take_document(&mut payload).map_err(|_| FrameError::Query)?;
    let namespace = std::str::from_utf8(&namespace).map_err(|_| FrameError::Query)?;
    let database = namespace.strip_suffix(".$cmd").ok_or(FrameError::Query)?;
    let command = match query.raw().iter().next().map(|first| (first.key(), first.value())) {
        Some(("$query" | "query", Value::Document(inner))) => query.slice_of(inner),
        _ => query,
    };
    Ok(Body { command, sequences: Vec::new(), database: Some(database.into()) })
}

/// Appends the reply of one document to `out`; `failed` marks it as the reason of a refusal.
pub fn encode_reply(out: &mut Vec<u8>, request_id: i32, response_to: i32, failed: bool, body: &[u8]) {
    let length = (Header::SIZE + 20 + body.len()) as i32;
    out.extend_from_slice(&Header { length, request_id, response_to, op_code: op_code::REPLY }.encode());
    out.extend_from_slice(&if failed { QUERY_FAILURE } else { AWAIT_CAPABLE }.to_le_bytes());
    out.extend_from_slice(&[0; 12]); // cursor 0, starting from 0
    out.extend_from_slice(&1i32.to_le_bytes());
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{decode_one, frame};
    use super::*;
    use rockdove_documents::{Doc, doc};

    fn query(namespace: &str, document: &Doc) -> Vec<u8> {
        let payload =
            [&[4, 0, 0, 0], namespace.as_bytes(), &[0], &[0; 4], &[0xff; 4], &document.bytes()[..]].concat();
        frame(op_code::QUERY, &payload)
    }

    #[test]
    fn the_handshake_is_read_wrapped_or_not() {
        for document in [doc! { "isMaster": 1 }, doc! { "$query": { "isMaster": 1 }, "$readPreference": {} }]
        {
            let body = decode_one(&query("admin.$cmd", &document)).unwrap().body.unwrap();
            assert_eq!(body.command, doc! { "isMaster": 1 });
            assert_eq!(body.database.as_deref(), Some("admin"));
        }
    }

    #[test]
    fn anything_else_ends_the_connection() {
        assert_eq!(decode_one(&query("db.people", &doc! {})).unwrap_err(), FrameError::Query);
        let whole = query("admin.$cmd", &doc! { "isMaster": 1 });
        for end in 16..whole.len() {
            let mut cut = whole[..end].to_vec();
            cut[..4].copy_from_slice(&(end as i32).to_le_bytes());
            assert!(decode_one(&cut).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn golden_reply() {
        let mut out = Vec::new();
        encode_reply(&mut out, 3, 2, false, doc! {}.bytes());
        #[rustfmt::skip]
        assert_eq!(out, [
            41, 0, 0, 0,  3, 0, 0, 0,  2, 0, 0, 0,  1, 0, 0, 0,
            8, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0,  1, 0, 0, 0,
            5, 0, 0, 0, 0,
        ]);
    }
}
