//! Read and write concern, and the levels of acknowledgement beside them: what a client asks for, as far as one node
//! can grant it.

use crate::errors::{Failure, Result, wrong_type};
use rockdove_documents::{Error, RawDoc, Timestamp, Value, code};
use rockdove_engine::{Level, UnknownLevel, VALUE_MAX};
use std::time::Duration;

/// When a write is to be acknowledged.
#[derive(Clone, PartialEq, Debug)]
pub struct WriteConcern {
    /// Whether nothing is to be acknowledged (`w: 0`).
    pub unacknowledged: bool,
    /// The level that it comes to: `w: 1` is [`Level::Async`], `w: "majority"` [`Level::Replicated`], with `j: true`
    /// they are [`Level::Sync`] and [`Level::QuorumSync`].
    pub level: Level,
    /// What cannot be satisfied though the write itself can: reported beside the write's result.
    pub unsatisfiable: Option<Error>,
    /// How long to wait at most; `None` for as long as it takes.
    pub timeout: Option<Duration>,
}

impl Default for WriteConcern {
    fn default() -> WriteConcern {
        WriteConcern { unacknowledged: false, level: Level::Async, unsatisfiable: None, timeout: None }
    }
}

impl WriteConcern {
    /// Reads a command's `writeConcern`; absent, it is `w: 1`.
    pub fn parse(command: RawDoc<'_>) -> Result<WriteConcern> {
        let concern = match command.get("writeConcern") {
            None | Some(Value::Null) => return Ok(WriteConcern::default()),
            Some(Value::Document(concern)) => concern,
            Some(other) => return Err(wrong_type("writeConcern", other, "object")),
        };
        let (mut parsed, mut journal) = (WriteConcern::default(), false);
        for element in concern {
            match (element.key(), element.value()) {
                ("w", w) => parsed.acknowledged_by(w)?,
                ("j" | "fsync", Value::Null | Value::Undefined) => {}
                ("j" | "fsync", flag) => {
                    let number = flag.as_f64().map(|number| number != 0.0);
                    journal |= flag.as_bool().or(number).ok_or_else(|| wrong_type("j", flag, "bool"))?;
                }
                ("wtimeout" | "wtimeoutMS", Value::Null | Value::Undefined) => {}
                ("wtimeout" | "wtimeoutMS", timeout) => {
                    let number = timeout.as_integer().or(timeout.as_f64().map(|number| number as i64));
                    let number = number.ok_or_else(|| wrong_type("wtimeout", timeout, "long"))?;
                    let milliseconds = u64::try_from(number).ok().filter(|milliseconds| *milliseconds > 0);
                    parsed.timeout = milliseconds.map(Duration::from_millis);
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
        if parsed.unacknowledged && journal {
            return Err(Error::failed_to_parse("cannot use 'j' or 'fsync' with 'w: 0'").into());
        }
        if journal {
            let is_majority = parsed.level == Level::Replicated;
            parsed.level = if is_majority { Level::QuorumSync } else { Level::Sync };
        }
        Ok(parsed)
    }

    /// The same where a majority means this level: never less than what it was.
    pub fn with_majority(self, majority: Level) -> WriteConcern {
        match self.level {
            Level::Replicated => WriteConcern { level: majority.stricter(self.level), ..self },
            _ => self,
        }
    }

    /// Reads `w`. The set has one member that counts, so a majority is one.
    fn acknowledged_by(&mut self, w: Value<'_>) -> Result<()> {
        match w {
            Value::String("majority") => self.level = Level::Replicated,
            Value::Null | Value::Undefined => {}
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

/// What the field `rockdove` of a write asks for beside its write concern (`docs/acknowledgement.md`). Who sends it gets a
/// field of that name in the reply, which says what was reached.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Asked {
    /// The level of acknowledgement.
    pub level: Option<Level>,
    /// What would be lost with the write.
    pub value: Option<u64>,
}

impl Asked {
    /// The field's name.
    pub const FIELD: &str = "rockdove";

    /// Reads a command's field, if it has one.
    pub fn parse(command: RawDoc<'_>) -> Result<Option<Asked>> {
        let fields = match command.get(Asked::FIELD) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Document(fields)) => fields,
            Some(other) => return Err(wrong_type(Asked::FIELD, other, "object")),
        };
        let mut asked = Asked::default();
        for element in fields {
            match (element.key(), element.value()) {
                ("ack", Value::String(name)) => {
                    let unknown = |error: UnknownLevel| Error::bad_value(error.to_string());
                    asked.level = Some(name.parse().map_err(unknown)?);
                }
                ("ack", other) => return Err(wrong_type("rockdove.ack", other, "string")),
                ("value", value) => {
                    let value = value.as_integer().and_then(|value| u64::try_from(value).ok());
                    let value = value.filter(|value| *value <= VALUE_MAX);
                    asked.value = Some(value.ok_or_else(|| {
                        Error::bad_value("'rockdove.value' must be an integer from 0 to 2^53")
                    })?);
                }
                (unknown, _) => {
                    let message = format!("BSON field 'rockdove.{unknown}' is an unknown field.");
                    return Err(Failure::location(40415, message));
                }
            }
        }
        Ok(Some(asked))
    }

    /// The level it comes to with a write concern: the stricter of the two. A value without a level is at risk.
    pub fn with(self, concern: &WriteConcern) -> Result<Level> {
        if concern.unacknowledged {
            return Err(Error::failed_to_parse("cannot use 'rockdove' with 'w: 0'").into());
        }
        let without = if self.value.is_some() { Level::Risk } else { Level::Async };
        Ok(self.level.unwrap_or(without).stricter(concern.level))
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
        for concern in [doc! {}, doc! { "w": 1 }, doc! { "w": 1.0, "wtimeout": 0, "j": false }] {
            assert_eq!(write(concern), Ok(plain.clone()));
        }
        let level = |concern| write(concern).unwrap().level;
        assert_eq!(level(doc! { "w": "majority" }), Level::Replicated);
        assert_eq!(level(doc! { "w": "majority", "j": true }), Level::QuorumSync);
        assert_eq!(level(doc! { "j": true }), Level::Sync);
        let stricter = |concern| write(concern).unwrap().with_majority(Level::QuorumSync).level;
        assert_eq!(stricter(doc! { "w": "majority" }), Level::QuorumSync);
        assert_eq!(stricter(doc! { "w": 1 }), Level::Async);
        let lower = write(doc! { "w": "majority" }).unwrap().with_majority(Level::Async);
        assert_eq!(lower.level, Level::Replicated);
        assert_eq!(level(doc! { "j": 1, "w": 1 }), Level::Sync);
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
    fn levels_are_asked_for_beside_the_concern() {
        let asked = |asked: Doc, concern: Doc| -> Result<(Level, Option<u64>), i32> {
            let command = doc! { "insert": "c", "rockdove": asked, "writeConcern": concern };
            let number = |failure: Failure| failure.error.code.number;
            let asked = Asked::parse(command.raw()).map_err(number)?.expect("the field is there");
            let concern = WriteConcern::parse(command.raw()).map_err(number)?;
            Ok((asked.with(&concern).map_err(number)?, asked.value))
        };
        assert_eq!(asked(doc! {}, doc! {}), Ok((Level::Async, None)));
        assert_eq!(asked(doc! { "ack": "sync" }, doc! { "w": "majority" }), Ok((Level::Sync, None)));
        assert_eq!(asked(doc! { "ack": "async" }, doc! { "j": true }), Ok((Level::Sync, None)));
        assert_eq!(asked(doc! { "value": 5 }, doc! { "w": "majority" }), Ok((Level::Risk, Some(5))));
        assert_eq!(asked(doc! { "value": 5.0, "ack": "async" }, doc! {}), Ok((Level::Async, Some(5))));
        assert_eq!(asked(doc! { "value": (1i64 << 53) }, doc! {}), Ok((Level::Risk, Some(1 << 53))));
        for wrong in [
            doc! { "value": (-1) },
            doc! { "value": 1.5 },
            doc! { "value": ((1i64 << 53) + 1) },
            doc! { "value": "5" },
            doc! { "ack": "Sync" },
        ] {
            assert_eq!(asked(wrong, doc! {}), Err(2));
        }
        assert_eq!(asked(doc! { "ack": 1 }, doc! {}), Err(14));
        assert_eq!(asked(doc! { "level": "sync" }, doc! {}), Err(40415));
        assert_eq!(asked(doc! { "ack": "sync" }, doc! { "w": 0 }), Err(9));
        assert_eq!(Asked::parse(doc! { "insert": "c" }.raw()).unwrap(), None);
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
