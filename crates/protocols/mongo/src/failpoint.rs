//! Fail points: faults that a client asks for, so that drivers' tests can see how errors are handled.
//!
//! They exist only where the server was started with test commands allowed. `failCommand` decides per command
//! (drivers' specification: `failCommand`); a few others hit one place only. While none is set the cost is one
//! atomic load a command.

use crate::codec::Body;
use crate::errors::{Failure, Result, code_of};
use foldhash::HashMap;
use parking_lot::Mutex;
use rockdove_documents::{Doc, Error, RawDoc, Value, code};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Fail points that have an effect here.
const EFFECTIVE: [&str; 4] =
    ["failCommand", "failGetMoreAfterCursorCheckout", "onPrimaryTransactionalWrite", "maxTimeAlwaysTimeOut"];
/// Fail points whose place does not exist here: setting them changes nothing.
const WITHOUT_EFFECT: [&str; 7] = [
    "maxTimeNeverTimeOut",
    "disableStickyTransactionPoolSize",
    "sleepBeforeCommitTransaction",
    "rsSyncApplyStop",
    "stopReplProducer",
    "waitInHello",
    "disableReplSetStepDownInTests",
];
/// Longest `blockTimeMS`.
const BLOCK_MAX: Duration = Duration::from_secs(10 * 60);

/// When a fail point strikes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Always,
    /// This many times, then never.
    Times(i64),
    /// After this many chances, then always.
    Skip(i64),
    /// With this probability.
    Chance(f64),
}

#[derive(Debug)]
struct FailPoint {
    mode: Mode,
    data: Doc,
    /// How often it has struck.
    struck: i64,
}

/// What a command that was hit has to suffer, in this order.
#[derive(Clone, Debug, Default)]
pub struct Fault {
    /// Wait first.
    pub block: Option<Duration>,
    /// Close the connection, or fail, instead of carrying the command out.
    pub failure: Option<Failure>,
    /// Carry it out and add this error (and these labels).
    pub write_concern_error: Option<(Doc, Option<Vec<String>>)>,
}

/// Who sent a command: what `failCommand` may be limited to.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The command's name.
    pub command: &'a str,
    /// `database.collection`, where the command has one.
    pub namespace: &'a str,
    /// The application's name from the client's `hello`.
    pub app_name: &'a str,
}

/// All fail points that are set.
#[derive(Debug, Default)]
pub struct FailPoints {
    any: AtomicBool,
    points: Mutex<HashMap<String, FailPoint>>,
}

impl FailPoints {
    /// Carries out `configureFailPoint`; returns how often the point had struck before.
    pub fn configure(&self, command: RawDoc<'_>) -> Result<i64> {
        let name = command.get("configureFailPoint").and_then(|name| name.as_str());
        let name =
            name.ok_or_else(|| Error::type_mismatch("'configureFailPoint' must be a fail point's name"))?;
        if !EFFECTIVE.contains(&name) && !WITHOUT_EFFECT.contains(&name) {
            return Err(Failure::new(code::BAD_VALUE, format!("fail point '{name}' does not exist")));
        }
        let mode = parse_mode(command.get("mode"))?;
        let data = match command.get("data") {
            Some(Value::Document(data)) => data.to_doc(),
            None | Some(Value::Null) => Doc::empty(),
            Some(_) => return Err(Error::type_mismatch("'data' must be a document").into()),
        };
        let mut points = self.points.lock();
        let before = points.remove(name).map_or(0, |point| point.struck);
        if let Some(mode) = mode {
            points.insert(name.to_string(), FailPoint { mode, data, struck: 0 });
        }
        self.any.store(!points.is_empty(), Ordering::Release);
        Ok(before)
    }

    /// Whether any fail point is set.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// What `failCommand` does to a command.
    pub fn on_command(&self, target: Target<'_>) -> Option<Fault> {
        let data = self.strike("failCommand", |data| applies(data, target))?;
        let milliseconds = data.get("blockTimeMS").and_then(|value| value.as_integer()).unwrap_or(0);
        let block = is_true(data.get("blockConnection"))
            .then(|| Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0)).min(BLOCK_MAX));
        let labels = texts(data.get("errorLabels"));
        let failure = failure(data.raw(), "Failing command via 'failCommand' failpoint", labels.clone());
        let write_concern_error = match data.get("writeConcernError") {
            Some(Value::Document(error)) => {
                Some((data.slice_of(error), texts(error.get("errorLabels")).or(labels)))
            }
            _ => None,
        };
        Some(Fault { block, failure, write_concern_error })
    }

    /// What `failGetMoreAfterCursorCheckout` does to a `getMore` that has its cursor.
    pub fn on_get_more(&self) -> Option<Failure> {
        let data = self.strike("failGetMoreAfterCursorCheckout", |_| true)?;
        failure(data.raw(), "Hit the 'failGetMoreAfterCursorCheckout' failpoint", None)
    }

    /// Whether `maxTimeAlwaysTimeOut` makes a command with a time limit exceed it.
    pub fn on_time_limit(&self) -> bool {
        self.strike("maxTimeAlwaysTimeOut", |_| true).is_some()
    }

    /// What `onPrimaryTransactionalWrite` does before a write with a transaction number is carried out: closes the
    /// connection unless told not to.
    /// Each of the write's statements is a chance.
    pub fn before_retryable_write(&self, statements: usize) -> Option<Failure> {
        let point = "onPrimaryTransactionalWrite";
        if !self.any() {
            return None;
        }
        let fails = |data: &Doc| data.get("failBeforeCommitExceptionCode").is_some();
        let data = (0..statements).find_map(|_| self.strike(point, fails))?;
        let number = data.get("failBeforeCommitExceptionCode").and_then(|value| value.as_integer())?;
        if data.get("closeConnection").is_none_or(|close| is_true(Some(close))) {
            return Some(Failure::close());
        }
        Some(Failure::new(code_of(number as i32), format!("Hit the '{point}' failpoint")))
    }

    /// Whether `onPrimaryTransactionalWrite` closes the connection after such a write.
    pub fn after_retryable_write(&self) -> bool {
        self.strike("onPrimaryTransactionalWrite", |data| {
            data.get("failBeforeCommitExceptionCode").is_none()
                && data.get("closeConnection").is_none_or(|close| is_true(Some(close)))
        })
        .is_some()
    }

    /// The data of the point `name` if it strikes now.
    fn strike(&self, name: &str, applies: impl Fn(&Doc) -> bool) -> Option<Doc> {
        if !self.any() {
            return None;
        }
        let mut points = self.points.lock();
        let point = points.get_mut(name).filter(|point| applies(&point.data))?;
        let strikes = match &mut point.mode {
            Mode::Always => true,
            Mode::Times(left) if *left > 0 => {
                *left -= 1;
                true
            }
            Mode::Times(_) => false,
            Mode::Skip(left) if *left > 0 => {
                *left -= 1;
                false
            }
            Mode::Skip(_) => true,
            Mode::Chance(probability) => rand::random_bool(*probability),
        };
        point.struck += i64::from(strikes);
        strikes.then(|| point.data.clone())
    }
}

/// Whether `failCommand`'s data names this command, client and namespace.
fn applies(data: &Doc, target: Target<'_>) -> bool {
    let named = match data.get("failCommands") {
        Some(Value::Array(names)) => names.values().any(|name| name.as_str() == Some(target.command)),
        _ => false,
    };
    let matches = |field, actual| data.get(field).is_none_or(|wanted| wanted.as_str() == Some(actual));
    named
        && target.command != "configureFailPoint"
        && matches("appName", target.app_name)
        && matches("namespace", target.namespace)
}

fn failure(data: RawDoc<'_>, message: &str, labels: Option<Vec<String>>) -> Option<Failure> {
    if is_true(data.get("closeConnection")) {
        return Some(Failure::close());
    }
    let number = data.get("errorCode").and_then(|number| number.as_integer())?;
    let details = match data.get("errorExtraInfo") {
        Some(Value::Document(details)) => Some(details.to_doc()),
        _ => None,
    };
    Some(Failure { labels, details, ..Failure::new(code_of(number as i32), message) })
}

fn parse_mode(mode: Option<Value<'_>>) -> Result<Option<Mode>> {
    let bad = |message: &str| Err(Error::bad_value(message).into());
    match mode {
        Some(Value::String("off")) => Ok(None),
        Some(Value::String("alwaysOn")) => Ok(Some(Mode::Always)),
        Some(Value::Document(mode)) => {
            let Some(element) = mode.iter().next() else { return bad("'mode' must not be empty") };
            match (element.key(), element.value().as_integer(), element.value().as_f64()) {
                ("times", Some(times @ 0..), _) => Ok(Some(Mode::Times(times))),
                ("skip", Some(skip @ 0..), _) => Ok(Some(Mode::Skip(skip))),
                ("activationProbability", _, Some(chance)) if (0.0..=1.0).contains(&chance) => {
                    Ok(Some(Mode::Chance(chance)))
                }
                _ => bad("'mode' must be {times: n}, {skip: n} or {activationProbability: p}"),
            }
        }
        _ => bad("'mode' must be 'off', 'alwaysOn' or a document"),
    }
}

fn is_true(value: Option<Value<'_>>) -> bool {
    value.is_some_and(|value| value.as_bool().unwrap_or(value.as_f64().is_some_and(|number| number != 0.0)))
}

fn texts(value: Option<Value<'_>>) -> Option<Vec<String>> {
    Some(value?.as_array()?.values().filter_map(|text| text.as_str().map(str::to_string)).collect())
}

/// The namespace of a command, as far as its first field names a collection.
pub fn namespace(body: &Body, database: &str) -> String {
    match body.command.raw().iter().next().map(|first| first.value()) {
        Some(Value::String(collection)) => format!("{database}.{collection}"),
        _ => database.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::doc;

    const FIND: Target<'static> = Target { command: "find", namespace: "db.c", app_name: "app" };

    fn set(mode: Doc, data: Doc) -> FailPoints {
        let points = FailPoints::default();
        let mode = mode.get("m").unwrap();
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        assert_eq!(points.configure(command.raw()).unwrap(), 0);
        points
    }

    fn hits(points: &FailPoints, target: Target<'_>, times: usize) -> Vec<bool> {
        (0..times).map(|_| points.on_command(target).is_some()).collect()
    }

    #[test]
    fn modes_count_what_matches() {
        let data = doc! { "failCommands": ["find"], "errorCode": 91 };
        for (mode, expected) in [
            (doc! { "m": "alwaysOn" }, [true, true, true]),
            (doc! { "m": { "times": 2 } }, [true, true, false]),
            (doc! { "m": { "skip": 1i64 } }, [false, true, true]),
            (doc! { "m": { "activationProbability": 1.0 } }, [true, true, true]),
            (doc! { "m": { "activationProbability": 0.0 } }, [false, false, false]),
        ] {
            let points = set(mode.clone(), data.clone());
            assert!(points.on_command(Target { command: "insert", ..FIND }).is_none());
            assert_eq!(hits(&points, FIND, 3), expected, "{mode:?}");
            let off = doc! { "configureFailPoint": "failCommand", "mode": "off" };
            let struck = expected.iter().filter(|hit| **hit).count() as i64;
            assert_eq!(points.configure(off.raw()).unwrap(), struck);
            assert!(!points.any());
        }
    }

    #[test]
    fn clients_and_namespaces_narrow_it_down() {
        let always = doc! { "m": "alwaysOn" };
        let points = set(always.clone(), doc! { "failCommands": ["find"], "appName": "app" });
        assert!(points.on_command(FIND).is_some());
        assert!(points.on_command(Target { app_name: "", ..FIND }).is_none());
        let points = set(always, doc! { "failCommands": ["find"], "namespace": "db.c" });
        assert!(points.on_command(FIND).is_some());
        assert!(points.on_command(Target { namespace: "db.d", ..FIND }).is_none());
    }

    #[test]
    fn faults_say_what_to_suffer() {
        let always = doc! { "m": "alwaysOn" };
        let hit = |data: Doc| set(always.clone(), data).on_command(FIND).unwrap();
        let fault = hit(doc! { "failCommands": ["find"], "errorCode": 91, "errorLabels": ["x"] });
        let failure = fault.failure.unwrap();
        assert_eq!(
            (failure.error.code, failure.labels),
            (code::SHUTDOWN_IN_PROGRESS, Some(vec!["x".into()]))
        );
        assert!(fault.block.is_none() && fault.write_concern_error.is_none());
        let fault = hit(doc! { "failCommands": ["find"], "closeConnection": true, "errorCode": 1 });
        assert!(fault.failure.unwrap().close);
        let fault = hit(doc! { "failCommands": ["find"], "blockConnection": true, "blockTimeMS": 15 });
        assert_eq!(fault.block, Some(Duration::from_millis(15)));
        assert!(fault.failure.is_none());
        let error = doc! { "code": 91, "errorLabels": ["y"] };
        let fault = hit(doc! { "failCommands": ["find"], "writeConcernError": &error });
        assert_eq!(fault.write_concern_error.unwrap(), (error, Some(vec!["y".into()])));
    }

    #[test]
    fn nonsense_is_refused() {
        let points = FailPoints::default();
        for command in [
            doc! { "configureFailPoint": "failEverything", "mode": "alwaysOn" },
            doc! { "configureFailPoint": 1, "mode": "alwaysOn" },
            doc! { "configureFailPoint": "failCommand" },
            doc! { "configureFailPoint": "failCommand", "mode": "on" },
            doc! { "configureFailPoint": "failCommand", "mode": { "times": (-1) } },
            doc! { "configureFailPoint": "failCommand", "mode": { "activationProbability": 2.0 } },
            doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": 3 },
        ] {
            assert!(points.configure(command.raw()).is_err(), "{command:?}");
        }
        assert!(!points.any());
    }
}
