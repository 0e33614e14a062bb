//! Retryable writes: what the latest transaction number of each session has done, so that a repetition
//! returns the first result instead of doing it again (MongoDB manual, "Retryable Writes").
//!
//! Invariants
//! * A statement that was carried out is known until its session's next transaction number, until the session was
//!   silent for [`IDLE_MS_MAX`], or until it is among the longest silent ones and all records together take too
//!   much memory ([`Sessions::shed`]).
//! * Each statement is in one result only.
//! * Everything here comes from the log and can be written into it again.

use crate::command::{Outcome, Retry};
use bytes::Bytes;
use rockdove_documents::{Doc, DocBuilder, Error, Owned, RawDoc, Result, Value, code};
use std::collections::HashMap;

/// Sessions silent for longer are forgotten: logical sessions last 30 minutes.
pub const IDLE_MS_MAX: i64 = 30 * 60 * 1000;
/// Most statements under one transaction number: a command has up to 100,000, and may come twice.
pub const STATEMENTS_MAX: usize = 200_000;
/// What a record takes besides its results, roughly: itself, its session's id and its place in the map.
const RECORD_BYTES: usize = size_of::<Record>() + 96;

/// The retry records of all sessions.
#[derive(Clone, Default)]
pub struct Sessions {
    records: HashMap<Bytes, Record>,
    /// Bytes of all records.
    bytes: u64,
}

#[derive(Clone)]
struct Record {
    number: i64,
    last_used_ms: i64,
    /// In the order of their statements.
    done: Vec<Done>,
    bytes: usize,
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
        let after = record.done.partition_point(|done| done.first <= statement);
        let done = after.checked_sub(1).map(|at| &record.done[at]);
        Ok(done.filter(|done| i64::from(statement) < done.end()).map(|done| done.result.clone()))
    }

    /// How many results are known of this transaction number.
    pub fn count(&self, retry: &Retry) -> usize {
        let record = self.records.get(&retry.session).filter(|record| record.number == retry.number);
        record.map_or(0, |record| record.done.len())
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
        let learned = Record::new(number, last_used_ms, done.ok_or_else(malformed)?, record.bytes().len());
        self.learn(session, learned);
        Ok(())
    }

    /// Notes what statements of a session did. `logged_bytes`: what the log has of it.
    pub fn note(&mut self, retry: &Retry, now_ms: i64, done: Vec<Done>, logged_bytes: usize) {
        self.learn(retry.session.clone(), Record::new(retry.number, now_ms, done, logged_bytes));
    }

    /// Takes in all that `other` knows, which is newer.
    pub fn absorb(&mut self, other: Sessions) {
        other.records.into_iter().for_each(|(session, record)| self.learn(session, record));
    }

    fn learn(&mut self, session: Bytes, new: Record) {
        let is_next = |old: &Record| new.number > old.number;
        match self.records.get_mut(&session) {
            Some(old) if !is_next(old) => {
                let grown = new.bytes - RECORD_BYTES;
                old.last_used_ms = new.last_used_ms;
                old.bytes += grown;
                old.add(new.done);
                self.bytes += grown as u64;
            }
            _ => {
                self.bytes += new.bytes as u64;
                let old = self.records.insert(session, new);
                self.bytes -= old.map_or(0, |old| old.bytes as u64);
            }
        }
    }

    /// Forgets sessions that were silent for too long.
    pub fn expire(&mut self, now_ms: i64) {
        self.retain(|record| now_ms - record.last_used_ms < IDLE_MS_MAX);
    }

    /// If the records take more than `bytes_max`, forgets the longest silent ones until they take an eighth less:
    /// a repetition mostly comes at once, and storing new messages matters more than one that comes late.
    pub fn shed(&mut self, bytes_max: u64) {
        if self.bytes <= bytes_max {
            return;
        }
        let mut ages: Vec<_> = self.records.values().map(|r| (r.last_used_ms, r.bytes as u64)).collect();
        ages.sort_unstable();
        let (mut left, target) = (self.bytes, bytes_max - bytes_max / 8);
        let mut upto_ms = i64::MIN;
        for (last_used_ms, bytes) in ages {
            if left <= target {
                break;
            }
            (left, upto_ms) = (left - bytes, last_used_ms);
        }
        let before = self.records.len();
        self.retain(|record| record.last_used_ms > upto_ms);
        let forgotten = before - self.records.len();
        tracing::warn!(bytes_max, forgotten, "retry records take too much memory: the oldest are forgotten");
    }

    fn retain(&mut self, stays: impl Fn(&Record) -> bool) {
        let bytes = &mut self.bytes;
        self.records.retain(|_, record| {
            let stays = stays(record);
            *bytes -= if stays { 0 } else { record.bytes as u64 };
            stays
        });
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All records, as the log would have them.
    pub fn records(&self) -> impl Iterator<Item = Doc> {
        self.records.iter().map(|(session, r)| describe(session, r.number, r.last_used_ms, &r.done))
    }
}

impl Record {
    fn new(number: i64, last_used_ms: i64, mut done: Vec<Done>, logged_bytes: usize) -> Record {
        let bytes = RECORD_BYTES + logged_bytes + done.len() * size_of::<Done>();
        done.sort_by_key(|done| done.first); // mostly they are in order
        Record { number, last_used_ms, done, bytes }
    }

    /// Adds results, which are in order.
    fn add(&mut self, done: Vec<Done>) {
        let in_order = match (self.done.last(), done.first()) {
            (Some(last), Some(first)) => last.first < first.first,
            _ => true,
        };
        self.done.extend(done);
        if !in_order {
            self.done.sort_by_key(|done| done.first);
        }
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
        Some(last) if last.result == result && last.end() == i64::from(statement) => last.count += 1,
        _ => done.push(Done { first: statement, count: 1, result }),
    }
}

fn append_if(out: &mut DocBuilder, name: &str, value: Option<impl rockdove_documents::ToValue>) {
    if let Some(value) = value {
        out.append(name, value);
    }
}

impl Done {
    /// The number after that of the last statement.
    fn end(&self) -> i64 {
        i64::from(self.first) + i64::from(self.count)
    }

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
        Some(Done { first, count: count.max(0), result })
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

    fn one(statement: i32) -> Vec<Done> {
        let mut done = vec![];
        push(&mut done, statement, Stored::Outcome(Outcome::Deleted { count: statement as u64 }));
        done
    }

    #[test]
    fn silent_sessions_are_forgotten() {
        let mut sessions = Sessions::default();
        sessions.note(&retry(5), 100, one(1), 99);
        assert!(sessions.bytes() > 99);
        sessions.expire(100 + IDLE_MS_MAX - 1);
        assert_eq!(sessions.records().count(), 1);
        sessions.expire(100 + IDLE_MS_MAX);
        assert_eq!((sessions.records().count(), sessions.bytes()), (0, 0));
    }

    #[test]
    fn statements_of_any_numbers_in_any_order_are_found() {
        let mut sessions = Sessions::default();
        let numbers = [7, -3, i32::MAX, 0, 1, i32::MIN, i32::MAX - 1, -4];
        let (mut done, inserted) = (vec![], Stored::Outcome(Outcome::Inserted));
        numbers.iter().for_each(|number| push(&mut done, *number, inserted.clone()));
        let later = done.split_off(4);
        sessions.note(&retry(5), 1, done, 0);
        sessions.note(&retry(5), 2, later, 0);
        let mut again = Sessions::default();
        sessions.records().for_each(|record| again.apply(record.raw()).unwrap());
        for sessions in [sessions, again] {
            assert_eq!(sessions.count(&retry(5)), numbers.len() - 1, "0 and 1 are one result");
            for known in numbers {
                assert_eq!(sessions.recall(&retry(5), known), Ok(Some(inserted.clone())), "{known}");
            }
            for unknown in [2, 6, 8, -2, -5, i32::MAX - 2, i32::MIN + 1] {
                assert_eq!(sessions.recall(&retry(5), unknown), Ok(None), "{unknown}");
            }
        }
    }

    #[test]
    fn bytes_are_those_of_what_is_known() {
        let mut sessions = Sessions::default();
        sessions.note(&retry(5), 1, one(1), 1000);
        let first = sessions.bytes();
        sessions.note(&retry(5), 2, one(2), 500);
        assert_eq!(sessions.bytes(), first + 500 + size_of::<Done>() as u64);
        let mut newer = Sessions::default();
        newer.note(&retry(6), 3, one(1), 1000);
        sessions.absorb(newer);
        assert_eq!((sessions.bytes(), sessions.count(&retry(6)), sessions.count(&retry(5))), (first, 1, 0));
    }

    #[test]
    fn too_many_records_lose_the_longest_silent_ones() {
        let mut sessions = Sessions::default();
        let retry =
            |n: u32| Retry { session: n.to_le_bytes().to_vec().into(), number: 1, statements: vec![] };
        (0..1000).for_each(|n| sessions.note(&retry(n), i64::from(n), one(1), 10_000));
        let all = sessions.bytes();
        sessions.shed(all);
        assert_eq!(sessions.bytes(), all);
        sessions.shed(all / 2);
        assert!(sessions.bytes() <= all / 2 && sessions.bytes() > all / 3);
        assert_eq!(sessions.recall(&retry(0), 1), Ok(None));
        assert!(sessions.recall(&retry(999), 1).unwrap().is_some());
    }
}
