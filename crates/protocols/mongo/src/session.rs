//! Logical sessions: which there are, when they were last used, and what may be asked in their name.
//!
//! A session comes into being by being used and ends by `endSessions`, by being killed, or after thirty
//! minutes without use. What a retried write did lives with the documents (it must survive a restart);
//! here is only the registry. Never reads a clock: callers pass `now`.

use crate::errors::{Failure, Result, wrong_type};
use foldhash::HashMap;
use parking_lot::Mutex;
use rockdove_documents::{Code, DocBuilder, RawDoc, Value, code};
use std::time::{Duration, Instant};

/// A session without use for this long is over (`logicalSessionTimeoutMinutes`).
pub const SESSION_IDLE: Duration = Duration::from_secs(30 * 60);
/// Most sessions at one time (MongoDB's `maxSessions`).
pub const SESSIONS_MAX: usize = 1_000_000;
/// What more sessions are refused with.
const TOO_MANY: Code = Code { number: 261, name: "TooManyLogicalSessions" };

/// A session's UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// A new random id.
    pub fn random() -> SessionId {
        SessionId(*uuid::Uuid::new_v4().as_bytes())
    }

    /// Reads `{ id: UUID }`, the value of `lsid`.
    pub fn parse(lsid: RawDoc<'_>) -> Result<SessionId> {
        match lsid.get("id") {
            Some(Value::Binary { subtype: 4, bytes }) => bytes
                .try_into()
                .map(SessionId)
                .map_err(|_| Failure::new(code::BAD_VALUE, "a session id has 16 bytes")),
            Some(other) => Err(Failure::new(
                code::TYPE_MISMATCH,
                format!(
                    "BSON field 'lsid.id' is the wrong type '{}', expected type 'binData' with subtype UUID",
                    other.kind().alias()
                ),
            )),
            None => Err(Failure::location(40414, "BSON field 'lsid.id' is missing but a required field")),
        }
    }

    /// Appends the id as `{ id: UUID }`.
    pub fn append(self, reply: &mut DocBuilder, name: &str) {
        reply.start_document(name);
        reply.append_value("id", Value::Binary { subtype: 4, bytes: &self.0 }).end();
    }
}

/// What of a command concerns its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionFields {
    /// `lsid`.
    pub session: Option<SessionId>,
    /// `txnNumber`: of a transaction, or of a write that may be sent again.
    pub transaction_number: Option<i64>,
    /// `autocommit: false`: a statement of a multi-document transaction.
    pub in_transaction: bool,
    /// `startTransaction: true`: its first statement.
    pub starts_transaction: bool,
}

impl SessionFields {
    /// Reads and checks the fields; `retryable` says whether the command may carry a transaction number
    /// outside a transaction.
    pub fn parse(command: RawDoc<'_>, name: &str, retryable: bool) -> Result<SessionFields> {
        let mut fields = SessionFields::default();
        for element in command {
            let (key, value) = (element.key_bytes(), element.value());
            let wrong = |expected| Err(wrong_type(element.key(), value, expected));
            match (key, value) {
                (_, Value::Null | Value::Undefined) => {}
                (b"lsid", Value::Document(lsid)) => fields.session = Some(SessionId::parse(lsid)?),
                (b"lsid", _) => return wrong("object"),
                (b"txnNumber", value) => match value.as_integer() {
                    Some(number) => fields.transaction_number = Some(number),
                    None => return wrong("long"),
                },
                (b"autocommit", Value::Bool(value)) => fields.in_transaction = !value,
                (b"startTransaction", Value::Bool(value)) => fields.starts_transaction = value,
                (b"autocommit" | b"startTransaction", _) => return wrong("bool"),
                _ => {}
            }
        }
        fields.check(name, retryable)?;
        Ok(fields)
    }

    fn check(&self, name: &str, retryable: bool) -> Result<()> {
        let Some(number) = self.transaction_number else {
            return match self.in_transaction || self.starts_transaction {
                true => Err(Failure::new(
                    code::INVALID_OPTIONS,
                    "'autocommit' and 'startTransaction' require a transaction number ('txnNumber')",
                )),
                false => Ok(()),
            };
        };
        if self.session.is_none() {
            return Err(Failure::new(
                code::INVALID_OPTIONS,
                "Transaction number requires a session ID to also be specified",
            ));
        }
        if number < 0 {
            return Err(Failure::new(code::INVALID_OPTIONS, "Transaction number cannot be negative"));
        }
        if self.starts_transaction && !self.in_transaction {
            return Err(Failure::new(
                code::INVALID_OPTIONS,
                "'startTransaction' requires 'autocommit: false'",
            ));
        }
        if !retryable && !self.in_transaction {
            return Err(Failure::location(
                50768,
                format!(
                    "txnNumber may only be provided for multi-document transactions and retryable write \
                     commands. autocommit:false was not provided, and {name} is not a retryable write command."
                ),
            ));
        }
        Ok(())
    }
}

/// All sessions, by id.
#[derive(Debug, Default)]
pub struct Sessions {
    used: Mutex<HashMap<SessionId, Instant>>,
}

impl Sessions {
    /// Marks a session as used, and begins it if it is new.
    pub fn touch(&self, session: SessionId, now: Instant) -> Result<()> {
        let mut used = self.used.lock();
        if let Some(last) = used.get_mut(&session) {
            *last = now;
            return Ok(());
        }
        if used.len() >= SESSIONS_MAX {
            return Err(Failure::new(TOO_MANY, format!("there are {SESSIONS_MAX} sessions already")));
        }
        used.insert(session, now);
        Ok(())
    }

    /// Ends a session; whether there was one.
    pub fn end(&self, session: SessionId) -> bool {
        self.used.lock().remove(&session).is_some()
    }

    /// Ends all sessions and returns them.
    pub fn end_all(&self) -> Vec<SessionId> {
        self.used.lock().drain().map(|(session, _)| session).collect()
    }

    /// Ends the sessions that were not used for [`SESSION_IDLE`] and returns them.
    pub fn expire(&self, now: Instant) -> Vec<SessionId> {
        self.used
            .lock()
            .extract_if(|_, last| now.saturating_duration_since(*last) >= SESSION_IDLE)
            .map(|(session, _)| session)
            .collect()
    }

    /// The sessions there are, in no order.
    pub fn list(&self) -> Vec<SessionId> {
        self.used.lock().keys().copied().collect()
    }

    /// How many sessions there are.
    pub fn count(&self) -> usize {
        self.used.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::{Doc, Owned, doc};

    fn uuid(byte: u8) -> Owned {
        Owned::Binary { subtype: 4, bytes: vec![byte; 16].into() }
    }

    fn parse(command: Doc, retryable: bool) -> Result<SessionFields, i32> {
        SessionFields::parse(command.raw(), "insert", retryable).map_err(|failure| failure.error.code.number)
    }

    #[test]
    fn session_fields_are_checked_together() {
        let lsid = doc! { "id": uuid(1) };
        let session = Some(SessionId([1; 16]));
        assert_eq!(parse(doc! { "insert": "c" }, true), Ok(SessionFields::default()));
        assert_eq!(
            parse(doc! { "insert": "c", "lsid": &lsid, "txnNumber": 3i64 }, true),
            Ok(SessionFields { session, transaction_number: Some(3), ..Default::default() })
        );
        for (command, retryable, number) in [
            (doc! { "insert": "c", "txnNumber": 3i64 }, true, 72),
            (doc! { "insert": "c", "lsid": &lsid, "txnNumber": (-1i64) }, true, 72),
            (doc! { "insert": "c", "lsid": &lsid, "txnNumber": 1i64 }, false, 50768),
            (doc! { "insert": "c", "lsid": &lsid, "txnNumber": 1i64, "startTransaction": true }, true, 72),
            (doc! { "insert": "c", "lsid": &lsid, "autocommit": false }, true, 72),
            (doc! { "insert": "c", "lsid": {} }, true, 40414),
            (doc! { "insert": "c", "lsid": { "id": 1 } }, true, 14),
        ] {
            assert_eq!(parse(command.clone(), retryable), Err(number), "{command:?}");
        }
        let transaction =
            doc! { "find": "c", "lsid": lsid, "txnNumber": 1, "startTransaction": true, "autocommit": false };
        assert!(parse(transaction, false).unwrap().starts_transaction);
    }

    #[test]
    fn sessions_end_after_half_an_hour_without_use() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        sessions.touch(SessionId([1; 16]), start).unwrap();
        sessions.touch(SessionId([2; 16]), start).unwrap();
        sessions.touch(SessionId([2; 16]), start + SESSION_IDLE / 2).unwrap();
        assert_eq!(sessions.expire(start + SESSION_IDLE), [SessionId([1; 16])]);
        assert_eq!(sessions.count(), 1);
        assert!(sessions.end(SessionId([2; 16])));
        assert!(!sessions.end(SessionId([2; 16])));
    }
}
