//! Retryable writes: what the latest transaction number of each session has done, so that a repetition
//! returns the first result instead of doing it again (MongoDB manual, "Retryable Writes").
//!
//! Invariants
//! * A statement that was carried out is known until its session's next transaction number, or until the
//!   session was silent for [`IDLE_MS_MAX`].
//! * Everything here comes from the log and can be written into it again.

use crate::command::{Outcome, Retry};
use bytes::Bytes;
use rockdove_documents::{Doc, DocBuilder, Error, Owned, RawDoc, Result, Value, code};
use std::collections::HashMap;

/// Sessions silent for longer are forgotten: logical sessions last 30 minutes.
pub const IDLE_MS_MAX: i64 = 30 * 60 * 1000;

/// The retry records of all sessions.
#[derive(Clone, Default)]
pub struct Sessions {
    records: HashMap<Bytes, Record>,
}

#[derive(Clone)]
struct Record {
    number: i64,
    last_used_ms: i64,
    done: Vec<Done>,
}

/// What some consecutive statements did.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Number of the first statement.
    pub first: i32,
    /// How many statements have this result.
    pub count: i32,
    /// The result.
    pub result: Stored,
}

/// A result to return again.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// Of an insert, update or delete.
    Outcome(Outcome),
    /// Of a find-and-modify.
    Found {
        /// The returned document.
        value: Option<Doc>,
        /// Whether a document was found.
        found: bool,
        /// `_id` of an upserted document.
        upserted: Option<Owned>,
    },
}

impl Sessions {
    /// What the statement did, if it was carried out. Fails if the session has moved on.
    pub fn recall(&self, retry: &Retry, statement: i32) -> Result<Option<Stored>> {
        let Some(record) = self.records.get(&retry.session) else { return Ok(None) };
        if retry.number < record.number {
            let message = format!(
                "Retryable write with txnNumber {} is prohibited on this session because a newer retryable write with txnNumber {} has already started on this session.",
                retry.number, record.number
            );
            return Err(Error::new(code::TRANSACTION_TOO_OLD, message));
        }
        if retry.number > record.number {
            return Ok(None);
        }
        let done = record.done.iter().find(|done| (done.first..done.first + done.count).contains(&statement));
        Ok(done.map(|done| done.result.clone()))
    }

    /// Takes in a record from the log.
    pub fn apply(&mut self, record: RawDoc<'_>) -> Result<()> {
        let malformed = || Error::new(code::INTERNAL_ERROR, "the log holds a malformed retry record");
        let Some(Value::Binary { bytes: session, .. }) = record.get("lsid") else { return Err(malformed()) };
        let number = record.get("txn").and_then(|n| n.as_integer()).ok_or_else(malformed)?;
        let last_used_ms = record.get("ms").and_then(|n| n.as_integer()).unwrap_or_default();
        let done = record.get("done").and_then(|done| done.as_array()).ok_or_else(malformed)?;
        let done: Option<Vec<Done>> = done.values().map(|done| Done::decode(done.as_document()?)).collect();
        let session = Bytes::copy_from_slice(session);
        self.learn(session, number, last_used_ms, done.ok_or_else(malformed)?);
        Ok(())
    }

    fn learn(&mut self, session: Bytes, number: i64, now_ms: i64, done: Vec<Done>) {
        let record =
            self.records.entry(session).or_insert(Record { number, last_used_ms: now_ms, done: vec![] });
        if number > record.number {
            record.number = number;
            record.done.clear();
        }
        record.last_used_ms = now_ms;
        record.done.extend(done);
    }

    /// Forgets sessions that were silent for too long.
    pub fn expire(&mut self, now_ms: i64) {
        self.records.retain(|_, record| now_ms - record.last_used_ms < IDLE_MS_MAX);
    }

    /// All records, as the log would have them.
    pub fn records(&self) -> impl Iterator<Item = Doc> {
        self.records.iter().map(|(session, r)| describe(session, r.number, r.last_used_ms, &r.done))
    }
}

/// A retry record for the log.
pub fn describe(session: &Bytes, number: i64, now_ms: i64, done: &[Done]) -> Doc {
    let mut out = DocBuilder::with_capacity(128);
    out.append_value("lsid", Value::Binary { subtype: 0, bytes: session });
    out.append("txn", number).append("ms", now_ms).start_array("done");
    done.iter().for_each(|done| done.encode(&mut out));
    out.finish()
}

/// Adds a result, joining it with the one before where statements of a batch did the same.
pub fn push(done: &mut Vec<Done>, statement: i32, result: Stored) {
    match done.last_mut() {
        Some(last) if last.result == result && last.first + last.count == statement => last.count += 1,
        _ => done.push(Done { first: statement, count: 1, result }),
    }
}

fn append_if(out: &mut DocBuilder, name: &str, value: Option<impl rockdove_documents::ToValue>) {
    if let Some(value) = value {
        out.append(name, value);
    }
}

impl Done {
    fn encode(&self, out: &mut DocBuilder) {
        out.push_document().append("s", self.first).append("c", self.count);
        match &self.result {
            Stored::Outcome(Outcome::Inserted) => {
                out.append("k", "i");
            }
            Stored::Outcome(Outcome::Deleted { count }) => {
                out.append("k", "d").append("n", *count as i64);
            }
            Stored::Outcome(Outcome::Updated { matched, modified, upserted }) => {
                out.append("k", "u").append("n", *matched as i64).append("m", *modified as i64);
                append_if(out, "u", upserted.as_ref());
            }
            Stored::Found { value, found, upserted } => {
                out.append("k", "f").append("n", i64::from(*found));
                append_if(out, "v", value.as_ref());
                append_if(out, "u", upserted.as_ref());
            }
        }
        out.end();
    }

    fn decode(doc: RawDoc<'_>) -> Option<Done> {
        let number = |field: &str| doc.get(field).and_then(|value| value.as_integer());
        let count = |field: &str| number(field).and_then(|n| u64::try_from(n).ok()).unwrap_or_default();
        let upserted = doc.get("u").map(|id| id.to_owned());
        let result = match doc.get("k")?.as_str()? {
            "i" => Stored::Outcome(Outcome::Inserted),
            "d" => Stored::Outcome(Outcome::Deleted { count: count("n") }),
            "u" => Stored::Outcome(Outcome::Updated { matched: count("n"), modified: count("m"), upserted }),
            "f" => {
                let value = doc.get("v").and_then(|v| v.as_document()).map(|v| v.to_doc());
                Stored::Found { value, found: count("n") != 0, upserted }
            }
            _ => return None,
        };
        let (first, count) = (i32::try_from(number("s")?).ok()?, i32::try_from(number("c")?).ok()?);
        Some(Done { first, count: count.clamp(0, i32::MAX - first.max(0)), result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::doc;

    fn retry(number: i64) -> Retry {
        Retry { session: Bytes::from_static(b"s"), number, statements: vec![] }
    }

    #[test]
    fn a_repetition_gets_the_first_result_even_after_a_restart() {
        let updated = Outcome::Updated { matched: 2, modified: 1, upserted: Some(Owned::Int32(7)) };
        let found = Stored::Found { value: Some(doc! { "a": 1 }), found: true, upserted: None };
        let mut done = vec![];
        for statement in 0..3 {
            push(&mut done, statement, Stored::Outcome(Outcome::Inserted));
        }
        push(&mut done, 3, Stored::Outcome(updated.clone()));
        push(&mut done, 4, found.clone());
        assert_eq!(done.len(), 3);
        let mut sessions = Sessions::default();
        sessions.apply(describe(&retry(5).session, 5, 100, &done).raw()).unwrap();
        let mut again = Sessions::default();
        sessions.records().for_each(|record| again.apply(record.raw()).unwrap());
        for sessions in [sessions, again] {
            assert_eq!(sessions.recall(&retry(5), 2), Ok(Some(Stored::Outcome(Outcome::Inserted))));
            assert_eq!(sessions.recall(&retry(5), 3), Ok(Some(Stored::Outcome(updated.clone()))));
            assert_eq!(sessions.recall(&retry(5), 4), Ok(Some(found.clone())));
            assert_eq!(sessions.recall(&retry(5), 5), Ok(None));
            assert_eq!(sessions.recall(&retry(6), 0), Ok(None));
            assert_eq!(sessions.recall(&retry(4), 0).unwrap_err().code.number, 225);
        }
    }

    #[test]
    fn silent_sessions_are_forgotten() {
        let mut sessions = Sessions::default();
        sessions.apply(describe(&retry(5).session, 5, 100, &[]).raw()).unwrap();
        sessions.expire(100 + IDLE_MS_MAX - 1);
        assert_eq!(sessions.records().count(), 1);
        sessions.expire(100 + IDLE_MS_MAX);
        assert_eq!(sessions.records().count(), 0);
    }
}
