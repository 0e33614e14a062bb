//! Read and write concern: what a client asks for, as far as one node can grant it.

use crate::errors::{Failure, Result};
use rockdove_documents::{Error, RawDoc, Timestamp, Value, code};
use std::time::Duration;

/// When a write is to be acknowledged.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WriteConcern {
    /// Whether nothing is to be acknowledged (`w: 0`).
    pub unacknowledged: bool,
    /// Whether it must be on disk (`j: true`).
    pub journal: bool,
    /// What cannot be satisfied though the write itself can: reported beside the write's result.
    pub unsatisfiable: Option<Error>,
    /// How long to wait at most; `None` for as long as it takes.
    pub timeout: Option<Duration>,
}

impl WriteConcern {
    /// Reads a command's `writeConcern`; absent, it is `w: 1`.
    pub fn parse(command: RawDoc<'_>) -> Result<WriteConcern> {
        let concern = match command.get("writeConcern") {
            None | Some(Value::Null) => return Ok(WriteConcern::default()),
            Some(Value::Document(concern)) => concern,
            Some(other) => return Err(wrong_type("writeConcern", other, "object")),
        };
        let mut parsed = WriteConcern::default();
        for element in concern {
            match (element.key(), element.value()) {
                ("w", w) => parsed.acknowledged_by(w)?,
                ("j" | "fsync", Value::Null | Value::Undefined) => {}
                ("j" | "fsync", flag) => {
                    let number = flag.as_f64().map(|number| number != 0.0);
                    let journal = flag.as_bool().or(number).ok_or_else(|| wrong_type("j", flag, "bool"))?;
                    parsed.journal |= journal;
                }
                ("wtimeout" | "wtimeoutMS", timeout) => {
                    let milliseconds = timeout.as_integer().and_then(|timeout| u64::try_from(timeout).ok());
                    parsed.timeout = milliseconds.filter(|timeout| *timeout > 0).map(Duration::from_millis);
                }
                ("provenance" | "getLastError" | "wOpTime" | "wElectionId", _) => {}
                (unknown, _) => {
                    return Err(Failure::location(
                        40415,
                        format!("BSON field 'writeConcern.{unknown}' is an unknown field."),
                    ));
                }
            }
        }
        if parsed.unacknowledged && parsed.journal {
            return Err(Error::failed_to_parse("cannot use 'j' or 'fsync' with 'w: 0'").into());
        }
        Ok(parsed)
    }

    /// Reads `w`. The set has one member that counts, so a majority is one.
    fn acknowledged_by(&mut self, w: Value<'_>) -> Result<()> {
        match w {
            Value::String("majority") | Value::Null | Value::Undefined => {}
            Value::String(tag) => {
                let message =
                    format!("No write concern mode named '{tag}' found in replica set configuration");
                self.unsatisfiable = Some(Error::new(code::UNKNOWN_REPL_WRITE_CONCERN, message));
            }
            _ => match w.as_integer() {
                Some(0) => self.unacknowledged = true,
                Some(1) => {}
                Some(2..=50) => {
                    let message = "Not enough data-bearing nodes";
                    self.unsatisfiable = Some(Error::new(code::UNSATISFIABLE_WRITE_CONCERN, message));
                }
                Some(_) => {
                    let message = "w has to be a non-negative number and not greater than 50";
                    return Err(Error::failed_to_parse(message).into());
                }
                None => return Err(Error::failed_to_parse("w has to be a number, string, or object").into()),
            },
        }
        Ok(())
    }
}

/// How current and how lasting what is read must be.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ReadConcern {
    /// Wait until everything up to this time is visible.
    pub after: Option<Timestamp>,
    /// Read the state of one moment (`level: "snapshot"`), and which if it was given.
    pub snapshot: Option<Option<Timestamp>>,
}

impl ReadConcern {
    /// Reads a command's `readConcern`. All that one node shows is committed, so `local`, `majority` and
    /// `linearizable` are the same here.
    pub fn parse(command: RawDoc<'_>, can_snapshot: bool) -> Result<ReadConcern> {
        let concern = match command.get("readConcern") {
            None | Some(Value::Null) => return Ok(ReadConcern::default()),
            Some(Value::Document(concern)) => concern,
            Some(other) => return Err(wrong_type("readConcern", other, "object")),
        };
        let (mut parsed, mut at) = (ReadConcern::default(), None);
        for element in concern {
            match (element.key(), element.value()) {
                ("level", Value::String("local" | "available" | "majority" | "linearizable")) => {}
                ("level", Value::String("snapshot")) if can_snapshot => parsed.snapshot = Some(None),
                ("level", Value::String("snapshot")) => {
                    return Err(Failure::new(
                        code::INVALID_OPTIONS,
                        "This command does not support read concern level 'snapshot'",
                    ));
                }
                ("level", Value::String(level)) => {
                    return Err(Failure::new(
                        code::BAD_VALUE,
                        format!(
                            "Enumeration value '{level}' for field 'readConcern.level' is not a valid value."
                        ),
                    ));
                }
                ("level", Value::Null | Value::Undefined) => {}
                ("level", other) => return Err(wrong_type("readConcern.level", other, "string")),
                ("afterClusterTime", Value::Timestamp(after)) => parsed.after = Some(after),
                ("atClusterTime", Value::Timestamp(time)) => at = Some(time),
                ("afterClusterTime" | "atClusterTime", other) => {
                    return Err(wrong_type("readConcern.afterClusterTime", other, "timestamp"));
                }
                (
                    "provenance"
                    | "afterOpTime"
                    | "allowTransactionTableSnapshot"
                    | "waitLastStableRecoveryTimestamp",
                    _,
                ) => {}
                (unknown, _) => {
                    return Err(Failure::location(
                        40415,
                        format!("BSON field 'readConcern.{unknown}' is an unknown field."),
                    ));
                }
            }
        }
        match (&mut parsed.snapshot, at) {
            (Some(moment), at) => *moment = at,
            (None, Some(_)) => {
                return Err(Failure::new(
                    code::INVALID_OPTIONS,
                    "readConcern atClusterTime requires level 'snapshot'",
                ));
            }
            (None, None) => {}
        }
        Ok(parsed)
    }
}

fn wrong_type(field: &str, value: Value<'_>, expected: &str) -> Failure {
    let actual = value.kind().alias();
    Error::type_mismatch(format!(
        "BSON field '{field}' is the wrong type '{actual}', expected type '{expected}'"
    ))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::{Doc, doc};

    fn write(concern: Doc) -> Result<WriteConcern, i32> {
        let command = doc! { "insert": "c", "writeConcern": concern };
        WriteConcern::parse(command.raw()).map_err(|failure| failure.error.code.number)
    }

    fn read(concern: Doc) -> Result<ReadConcern, i32> {
        let command = doc! { "find": "c", "readConcern": concern };
        ReadConcern::parse(command.raw(), true).map_err(|failure| failure.error.code.number)
    }

    #[test]
    fn one_node_is_a_majority() {
        let plain = WriteConcern::default();
        for concern in
            [doc! {}, doc! { "w": 1 }, doc! { "w": "majority" }, doc! { "w": 1.0, "wtimeout": 0, "j": false }]
        {
            assert_eq!(write(concern), Ok(plain.clone()));
        }
        assert!(write(doc! { "w": "majority", "j": true }).unwrap().journal);
        assert!(write(doc! { "w": 0 }).unwrap().unacknowledged);
        assert_eq!(write(doc! { "wtimeout": 50 }).unwrap().timeout, Some(Duration::from_millis(50)));
    }

    #[test]
    fn what_cannot_be_satisfied_is_said() {
        let code = |concern| write(concern).unwrap().unsatisfiable.unwrap().code.number;
        assert_eq!(code(doc! { "w": 2 }), 100);
        assert_eq!(code(doc! { "w": "east" }), 79);
        for wrong in [doc! { "w": (-1) }, doc! { "w": 51 }, doc! { "w": true }, doc! { "w": 0, "j": true }] {
            assert_eq!(write(wrong), Err(9));
        }
        assert_eq!(write(doc! { "x": 1 }), Err(40415));
    }

    #[test]
    fn read_concern_levels_are_known() {
        let time = Timestamp { time: 5, increment: 1 };
        for level in ["local", "available", "majority", "linearizable"] {
            assert_eq!(read(doc! { "level": level }), Ok(ReadConcern::default()));
        }
        assert_eq!(read(doc! { "afterClusterTime": time }).unwrap().after, Some(time));
        assert_eq!(read(doc! { "level": "snapshot" }).unwrap().snapshot, Some(None));
        let at = doc! { "level": "snapshot", "atClusterTime": time };
        assert_eq!(read(at).unwrap().snapshot, Some(Some(time)));
        assert_eq!(read(doc! { "level": "best" }), Err(2));
        assert_eq!(read(doc! { "atClusterTime": time }), Err(72));
        assert_eq!(read(doc! { "afterClusterTime": 1 }), Err(14));
    }
}
