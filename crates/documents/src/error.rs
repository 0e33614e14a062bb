//! Errors as a MongoDB client sees them: a number, its name and a message.

use std::fmt;

/// An error number and its name, as the MongoDB manual lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// The `code` field of a reply.
    pub number: i32,
    /// The `codeName` field of a reply.
    pub name: &'static str,
}

/// A command, statement or expression that cannot be carried out, with the reason for its user.
#[derive(Clone, PartialEq, Debug)]
pub struct Error {
    /// What kind of error it is.
    pub code: Code,
    /// What is wrong, naming the operator, field or value.
    pub message: String,
}

/// What fallible functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into() }
    }

    /// A `BadValue` (2) error.
    pub fn bad_value(message: impl Into<String>) -> Error {
        Error::new(code::BAD_VALUE, message)
    }

    /// A `TypeMismatch` (14) error.
    pub fn type_mismatch(message: impl Into<String>) -> Error {
        Error::new(code::TYPE_MISMATCH, message)
    }

    /// A `FailedToParse` (9) error.
    pub fn failed_to_parse(message: impl Into<String>) -> Error {
        Error::new(code::FAILED_TO_PARSE, message)
    }

    /// An error whose code has no name of its own: MongoDB calls it `Location` and the number.
    pub fn location(number: i32, message: impl Into<String>) -> Error {
        Error::new(Code { number, name: "" }, message)
    }

    /// The `codeName` of a reply; numbered locations spell out their number.
    pub fn code_name(&self) -> String {
        match self.code.name {
            "" => format!("Location{}", self.code.number),
            name => name.to_string(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.code_name(), self.code.number, self.message)
    }
}

impl std::error::Error for Error {}

/// The codes in use, by MongoDB's numbers and names.
#[allow(missing_docs, reason = "each constant is its MongoDB name")]
pub mod code {
    use super::Code;

    macro_rules! codes {
        ($($constant:ident = $number:literal $name:literal;)*) => {
            $(pub const $constant: Code = Code { number: $number, name: $name };)*
        };
    }

    codes! {
        INTERNAL_ERROR = 1 "InternalError";
        BAD_VALUE = 2 "BadValue";
        HOST_UNREACHABLE = 6 "HostUnreachable";
        HOST_NOT_FOUND = 7 "HostNotFound";
        UNKNOWN_ERROR = 8 "UnknownError";
        FAILED_TO_PARSE = 9 "FailedToParse";
        USER_NOT_FOUND = 11 "UserNotFound";
        UNAUTHORIZED = 13 "Unauthorized";
        TYPE_MISMATCH = 14 "TypeMismatch";
        OVERFLOW = 15 "Overflow";
        INVALID_LENGTH = 16 "InvalidLength";
        PROTOCOL_ERROR = 17 "ProtocolError";
        AUTHENTICATION_FAILED = 18 "AuthenticationFailed";
        ILLEGAL_OPERATION = 20 "IllegalOperation";
        INVALID_BSON = 22 "InvalidBSON";
        ALREADY_INITIALIZED = 23 "AlreadyInitialized";
        NAMESPACE_NOT_FOUND = 26 "NamespaceNotFound";
        INDEX_NOT_FOUND = 27 "IndexNotFound";
        PATH_NOT_VIABLE = 28 "PathNotViable";
        CONFLICTING_UPDATE_OPERATORS = 40 "ConflictingUpdateOperators";
        CURSOR_NOT_FOUND = 43 "CursorNotFound";
        NO_MATCHING_DOCUMENT = 47 "NoMatchingDocument";
        NAMESPACE_EXISTS = 48 "NamespaceExists";
        MAX_TIME_MS_EXPIRED = 50 "MaxTimeMSExpired";
        DOLLAR_PREFIXED_FIELD_NAME = 52 "DollarPrefixedFieldName";
        INVALID_ID_FIELD = 53 "InvalidIdField";
        EMPTY_FIELD_NAME = 56 "EmptyFieldName";
        DOTTED_FIELD_NAME = 57 "DottedFieldName";
        COMMAND_NOT_FOUND = 59 "CommandNotFound";
        WRITE_CONCERN_FAILED = 64 "WriteConcernFailed";
        IMMUTABLE_FIELD = 66 "ImmutableField";
        CANNOT_CREATE_INDEX = 67 "CannotCreateIndex";
        INDEX_ALREADY_EXISTS = 68 "IndexAlreadyExists";
        INVALID_OPTIONS = 72 "InvalidOptions";
        INVALID_NAMESPACE = 73 "InvalidNamespace";
        NO_REPLICATION_ENABLED = 76 "NoReplicationEnabled";
        UNKNOWN_REPL_WRITE_CONCERN = 79 "UnknownReplWriteConcern";
        INDEX_OPTIONS_CONFLICT = 85 "IndexOptionsConflict";
        INDEX_KEY_SPECS_CONFLICT = 86 "IndexKeySpecsConflict";
        NETWORK_TIMEOUT = 89 "NetworkTimeout";
        SHUTDOWN_IN_PROGRESS = 91 "ShutdownInProgress";
        OPERATION_FAILED = 96 "OperationFailed";
        UNSATISFIABLE_WRITE_CONCERN = 100 "UnsatisfiableWriteConcern";
        WRITE_CONFLICT = 112 "WriteConflict";
        COMMAND_NOT_SUPPORTED = 115 "CommandNotSupported";
        DOCUMENT_VALIDATION_FAILURE = 121 "DocumentValidationFailure";
        CAPPED_POSITION_LOST = 136 "CappedPositionLost";
        EXCEEDED_MEMORY_LIMIT = 146 "ExceededMemoryLimit";
        COMMAND_NOT_SUPPORTED_ON_VIEW = 166 "CommandNotSupportedOnView";
        INVALID_PIPELINE_OPERATOR = 168 "InvalidPipelineOperator";
        PRIMARY_STEPPED_DOWN = 189 "PrimarySteppedDown";
        INVALID_RESUME_TOKEN = 260 "InvalidResumeToken";
        CLOSE_CHANGE_STREAM = 222 "CloseChangeStream";
        TRANSACTION_TOO_OLD = 225 "TransactionTooOld";
        CURSOR_KILLED = 237 "CursorKilled";
        NOT_IMPLEMENTED = 238 "NotImplemented";
        NO_SUCH_TRANSACTION = 251 "NoSuchTransaction";
        TRANSACTION_COMMITTED = 256 "TransactionCommitted";
        EXCEEDED_TIME_LIMIT = 262 "ExceededTimeLimit";
        OPERATION_NOT_SUPPORTED_IN_TRANSACTION = 263 "OperationNotSupportedInTransaction";
        CHANGE_STREAM_FATAL_ERROR = 280 "ChangeStreamFatalError";
        CHANGE_STREAM_HISTORY_LOST = 286 "ChangeStreamHistoryLost";
        NO_QUERY_EXECUTION_PLANS = 291 "NoQueryExecutionPlans";
        COLLECTION_UUID_MISMATCH = 361 "CollectionUUIDMismatch";
        OUT_OF_DISK_SPACE = 14031 "OutOfDiskSpace";
        NOT_WRITABLE_PRIMARY = 10107 "NotWritablePrimary";
        BSON_OBJECT_TOO_LARGE = 10334 "BSONObjectTooLarge";
        DUPLICATE_KEY = 11000 "DuplicateKey";
        INTERRUPTED_AT_SHUTDOWN = 11600 "InterruptedAtShutdown";
        INTERRUPTED = 11601 "Interrupted";
    }
}
