//! Failed commands as clients see them: numbers, names, labels, and the fields of the reply.

use crate::options::FieldError;
use rockdove_documents::{Code, Doc, DocBuilder, Error, Value, code};
use rockdove_engine::WriteError;
use std::borrow::Cow;

/// A command that is answered `ok: 0`, or by closing the connection.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Number, name and message.
    pub error: Error,
    /// The labels to send, where they are not those that follow from the number (fail points choose theirs).
    pub labels: Option<Vec<String>>,
    /// Further fields of the reply, such as `topologyVersion`.
    pub details: Option<Doc>,
    /// Close the connection and answer nothing.
    pub close: bool,
    /// A statement's failure makes its whole command wrong: nothing of it is carried out.
    pub is_whole: bool,
}

/// What command handlers return.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure with this code.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Error::new(code, message).into()
    }

    /// A failure that MongoDB knows by its number only.
    pub fn location(number: i32, message: impl Into<String>) -> Failure {
        Error::location(number, message).into()
    }

    /// The connection is to be closed without an answer.
    pub fn close() -> Failure {
        Failure { close: true, ..Failure::new(code::HOST_UNREACHABLE, "connection closed by request") }
    }

    /// The same failure, of the whole command.
    pub fn whole(self) -> Failure {
        Failure { is_whole: true, ..self }
    }

    /// The same failure with further fields in its reply.
    pub fn with_details(self, details: Doc) -> Failure {
        Failure { details: Some(details), ..self }
    }
}

/// The error about a field of a type that it cannot have.
pub fn wrong_type(field: &str, value: Value<'_>, expected: &str) -> Failure {
    let actual = value.kind().alias();
    Error::type_mismatch(format!(
        "BSON field '{field}' is the wrong type '{actual}', expected type '{expected}'"
    ))
    .into()
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, labels: None, details: None, close: false, is_whole: false }
    }
}

impl From<FieldError> for Failure {
    fn from(wrong: FieldError) -> Failure {
        Failure::from(wrong.0).whole()
    }
}

impl From<WriteError> for Failure {
    fn from(failed: WriteError) -> Failure {
        Failure { details: failed.details, ..failed.error.into() }
    }
}

/// What a command was doing, as far as it decides the labels of its errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Circumstances {
    /// It carried a transaction number outside a multi-document transaction.
    pub retryable_write: bool,
    /// It carried `autocommit: false`.
    pub in_transaction: bool,
    /// It is `commitTransaction` or `abortTransaction`.
    pub ends_transaction: bool,
    /// It opened or read a change stream.
    pub change_stream: bool,
}

/// After these errors the same write may be sent again (drivers' specification: retryable writes).
const RETRYABLE: [i32; 12] = [6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436];
/// After these errors of a transaction's statement the whole transaction may be tried again.
const TRANSIENT: [i32; 5] = [24, 112, 246, 251, 267];
/// After these errors a change stream may be resumed (drivers' specification: change streams).
const RESUMABLE: [i32; 17] =
    [6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436];

/// After these errors a change stream must not be resumed.
const NOT_RESUMABLE: [i32; 2] = [280, 286];

/// The labels that an error of this number carries.
pub fn labels(number: i32, circumstances: Circumstances) -> Vec<&'static str> {
    let mut labels = Vec::new();
    let retryable = RETRYABLE.contains(&number);
    let transient = match circumstances.ends_transaction {
        true => number == code::NO_SUCH_TRANSACTION.number,
        false => circumstances.in_transaction && (retryable || TRANSIENT.contains(&number)),
    };
    if transient {
        labels.push("TransientTransactionError");
    } else if retryable && (circumstances.retryable_write || circumstances.ends_transaction) {
        labels.push("RetryableWriteError");
    }
    if NOT_RESUMABLE.contains(&number) {
        labels.push("NonResumableChangeStreamError");
    } else if circumstances.change_stream && RESUMABLE.contains(&number) {
        labels.push("ResumableChangeStreamError");
    }
    labels
}

/// Appends the fields of a failed command's reply: `ok`, `errmsg`, `code`, `codeName`, labels and details.
pub fn append_failure(reply: &mut DocBuilder, failure: &Failure, circumstances: Circumstances) {
    reply.append("ok", 0.0).append("errmsg", &failure.error.message);
    reply.append("code", failure.error.code.number).append("codeName", failure.error.code_name());
    if let Some(details) = &failure.details {
        reply.append_all(details.raw());
    }
    let labels: Vec<Cow<'_, str>> = match &failure.labels {
        Some(labels) => labels.iter().map(|label| Cow::Borrowed(label.as_str())).collect(),
        None => labels(failure.error.code.number, circumstances).into_iter().map(Cow::Borrowed).collect(),
    };
    append_labels(reply, &labels);
}

/// Appends `errorLabels`, unless there is none.
pub fn append_labels(reply: &mut DocBuilder, labels: &[Cow<'_, str>]) {
    if labels.is_empty() {
        return;
    }
    reply.start_array("errorLabels");
    for label in labels {
        reply.push(label.as_ref());
    }
    reply.end();
}

/// One element of `writeErrors`: the statement's position, the error and what is known beside it.
pub fn push_write_error(reply: &mut DocBuilder, index: usize, error: &Error, details: Option<&Doc>) {
    reply.push_document();
    reply.append("index", index as i32).append("code", error.code.number);
    if let Some(details) = details {
        reply.append_all(details.raw());
    }
    reply.append("errmsg", &error.message).end();
}

/// The `writeConcernError` of a write that was carried out and not acknowledged as asked for.
pub fn append_write_concern_error(reply: &mut DocBuilder, error: &Error, timed_out: bool) {
    reply.start_document("writeConcernError");
    reply.append("code", error.code.number).append("codeName", error.code_name());
    reply.append("errmsg", &error.message);
    if timed_out {
        reply.start_document("errInfo").append("wtimeout", true).end();
    }
    reply.end();
}

/// The code of this number with its name, for numbers that clients choose (fail points).
pub fn code_of(number: i32) -> Code {
    const NAMES: [(i32, &str); 40] = [
        (1, "InternalError"),
        (2, "BadValue"),
        (6, "HostUnreachable"),
        (7, "HostNotFound"),
        (8, "UnknownError"),
        (9, "FailedToParse"),
        (11, "UserNotFound"),
        (13, "Unauthorized"),
        (18, "AuthenticationFailed"),
        (20, "IllegalOperation"),
        (24, "LockTimeout"),
        (26, "NamespaceNotFound"),
        (43, "CursorNotFound"),
        (50, "MaxTimeMSExpired"),
        (59, "CommandNotFound"),
        (63, "StaleShardVersion"),
        (64, "WriteConcernFailed"),
        (79, "UnknownReplWriteConcern"),
        (89, "NetworkTimeout"),
        (91, "ShutdownInProgress"),
        (100, "UnsatisfiableWriteConcern"),
        (112, "WriteConflict"),
        (133, "FailedToSatisfyReadPreference"),
        (136, "CappedPositionLost"),
        (150, "StaleEpoch"),
        (175, "QueryPlanKilled"),
        (189, "PrimarySteppedDown"),
        (222, "CloseChangeStream"),
        (234, "RetryChangeStream"),
        (237, "CursorKilled"),
        (246, "SnapshotUnavailable"),
        (251, "NoSuchTransaction"),
        (262, "ExceededTimeLimit"),
        (286, "ChangeStreamHistoryLost"),
        (391, "ReauthenticationRequired"),
        (9001, "SocketException"),
        (10107, "NotWritablePrimary"),
        (11600, "InterruptedAtShutdown"),
        (11601, "Interrupted"),
        (11602, "InterruptedDueToReplStateChange"),
    ];
    const LATE: [(i32, &str); 5] = [
        (462, "IngressRequestRateLimitExceeded"),
        (11000, "DuplicateKey"),
        (13388, "StaleConfig"),
        (13435, "NotPrimaryNoSecondaryOk"),
        (13436, "NotPrimaryOrSecondary"),
    ];
    let name = NAMES.iter().chain(&LATE).find(|(known, _)| *known == number).map_or("", |(_, name)| name);
    Code { number, name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::{Value, doc};

    #[test]
    fn labels_follow_from_number_and_circumstances() {
        let plain = Circumstances::default();
        let retryable = Circumstances { retryable_write: true, ..plain };
        let transaction = Circumstances { in_transaction: true, ..plain };
        let commit = Circumstances { ends_transaction: true, in_transaction: true, ..plain };
        let stream = Circumstances { change_stream: true, ..plain };
        for (number, circumstances, expected) in [
            (91, plain, &[][..]),
            (91, retryable, &["RetryableWriteError"]),
            (11000, retryable, &[]),
            (112, retryable, &[]),
            (112, transaction, &["TransientTransactionError"]),
            (91, transaction, &["TransientTransactionError"]),
            (11000, transaction, &[]),
            (251, commit, &["TransientTransactionError"]),
            (91, commit, &["RetryableWriteError"]),
            (189, stream, &["ResumableChangeStreamError"]),
            (43, stream, &[]),
            (286, stream, &["NonResumableChangeStreamError"]),
            (280, plain, &["NonResumableChangeStreamError"]),
        ] {
            assert_eq!(labels(number, circumstances), expected, "{number} {circumstances:?}");
        }
    }

    #[test]
    fn a_failure_has_all_its_fields() {
        let failure = Failure::new(code::SHUTDOWN_IN_PROGRESS, "stopping").with_details(doc! { "extra": 1 });
        let mut reply = DocBuilder::new();
        append_failure(&mut reply, &failure, Circumstances { retryable_write: true, ..Default::default() });
        let expected = doc! {
            "ok": 0.0, "errmsg": "stopping", "code": 91, "codeName": "ShutdownInProgress", "extra": 1,
            "errorLabels": ["RetryableWriteError"]
        };
        assert_eq!(reply.finish(), expected);
    }

    #[test]
    fn chosen_labels_replace_the_natural_ones() {
        let mut failure = Failure::new(code_of(91), "x");
        failure.labels = Some(vec![]);
        let mut reply = DocBuilder::new();
        append_failure(&mut reply, &failure, Circumstances { retryable_write: true, ..Default::default() });
        assert_eq!(reply.finish().get("errorLabels"), None);
    }

    #[test]
    fn numbers_have_names() {
        assert_eq!(code_of(91), code::SHUTDOWN_IN_PROGRESS);
        let mut reply = DocBuilder::new();
        append_failure(&mut reply, &Failure::from(Error::new(code_of(999), "")), Circumstances::default());
        assert_eq!(reply.finish().get("codeName"), Some(Value::String("Location999")));
    }
}
