//! What the messaging library needs of a database, and nothing more.
//!
//! An implementation checks documents from outside before it decodes them, bounds every call in time, and sorts
//! its errors into [`BackendErrorKind`]: the library retries what is transient and nothing else.

use bson::{Bson, Document};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rockdove_engine::Level;
use rockdove_messages::MessageId;
use std::error::Error;
use std::fmt;
use std::time::Duration;

pub use rockdove_messages::IndexDefinition;

/// The result of a back end call.
pub type BackendResult<T> = Result<T, BackendError>;

/// How a failed call is to be handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The network, an election, a step-down: the same call may succeed later, and may have taken effect.
    Transient,
    /// A document with this `_id` exists.
    DuplicateKey,
    /// The position a stream was to resume from is no longer there: start anew and catch up.
    HistoryLost,
    /// The document is larger than the server takes.
    TooLarge,
    /// An index with that key or name exists in another form.
    IndexConflict,
    /// The collection is not there.
    Missing,
    /// It cannot do that, such as to acknowledge at the level that was asked for; nothing was done.
    Unsupported,
    /// It was done, but not acknowledged as asked for, and will not be.
    NotAcknowledged,
    /// The answer holds a document that is not valid, or nests too deep.
    Malformed,
    /// Anything else: refused, unsupported, misconfigured.
    Other,
}

/// A failed back end call.
#[derive(Debug)]
pub struct BackendError {
    kind: BackendErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl BackendError {
    /// An error without a deeper cause.
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error with its cause.
    pub fn with_source(kind: BackendErrorKind, source: impl Error + Send + Sync + 'static) -> Self {
        Self { kind, message: source.to_string(), source: Some(Box::new(source)) }
    }

    /// No reply came within the time of the call.
    pub(crate) fn late() -> Self {
        Self::new(BackendErrorKind::Transient, "the server did not reply in time")
    }

    /// How to handle it.
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        self.kind == BackendErrorKind::Transient
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().and_then(Error::source)
    }
}

/// When an insert counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// A majority of the replica set has it (write concern `majority`, no journal asked).
    Majority,
    /// Whatever the server does by default: no write concern is sent.
    ServerDefault,
}

pub use crate::ack::Wish;

/// What became of an insert at a level.
#[derive(Debug)]
pub struct Inserted {
    /// Why the document was not inserted, if it was not.
    pub refused: Option<BackendError>,
    /// The level that was reached, by it and by what was there before.
    pub level: Level,
    /// Whether there are fewer copies than were asked for.
    pub degraded: bool,
}

/// A lock to insert and, if there was none with its id, a document of another collection to update.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// Where the locks are.
    pub locks: &'a str,
    /// The lock.
    pub lock: Document,
    /// Where the document is.
    pub collection: &'a str,
    /// Which one.
    pub filter: Document,
    /// What to do with it.
    pub update: Document,
}

/// What [`Backend::claim`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimed {
    /// The lock was inserted.
    Locked {
        /// Whether a document matched, and was updated.
        marked: bool,
    },
    /// There is a lock already; nothing was done.
    Held,
}

/// One document of a bulk insert that was not inserted.
#[derive(Debug)]
pub struct InsertFailure {
    /// Its place in the list.
    pub index: usize,
    /// Why.
    pub error: BackendError,
}

/// What to look for, always on the primary.
#[derive(Clone, Debug, Default)]
pub struct Find {
    /// The filter.
    pub filter: Document,
    /// The order; `None` = any.
    pub sort: Option<Document>,
    /// The fields; `None` = all.
    pub projection: Option<Document>,
    /// The most documents; 0 = all.
    pub limit: usize,
}

/// What an update did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Updated {
    /// Documents that matched the filter.
    pub matched: u64,
    /// Documents that changed.
    pub modified: u64,
}

/// What a change stream covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope<'a> {
    /// One collection.
    Collection(&'a str),
    /// Every collection of the database.
    Database,
}

/// A change stream to open.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The stages after `$changeStream`.
    pub pipeline: Vec<Document>,
    /// Where to resume; `None` = from now.
    pub resume_after: Option<Bson>,
    /// How long the server may hold a reply back while there are no events.
    pub max_await: Duration,
}

/// What happened to a document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It is new.
    Insert,
    /// It was updated.
    Update,
    /// It was deleted.
    Delete,
    /// A lock was released; which one is unknown. Only some servers push this.
    LockReleased,
    /// The collection was dropped.
    Dropped,
    /// Anything else.
    Other,
}

/// One event of a change stream.
#[derive(Clone, Debug)]
pub struct ChangeEvent {
    /// What happened.
    pub change: Change,
    /// In which collection.
    pub collection: String,
    /// To which document.
    pub id: Option<MessageId>,
    /// The new document, for inserts; `None` when it is not valid.
    pub document: Option<Document>,
}

/// An open change stream.
pub trait Feed: Send {
    /// The next event; `None` after an empty reply (nothing happened within `max_await`). An error ends the
    /// stream: it is to be opened anew.
    fn next(&mut self) -> BoxFuture<'_, BackendResult<Option<ChangeEvent>>>;

    /// Where to resume after what was returned so far.
    fn resume_token(&self) -> Option<Bson>;
}

/// A database that can carry a message queue.
pub trait Backend: Send + Sync + 'static {
    /// Inserts documents, independently of each other; the failures, by place. An error means that none may be
    /// assumed inserted.
    fn insert<'a>(
        &'a self,
        collection: &'a str,
        documents: &'a [Document],
        durability: Durability,
    ) -> BoxFuture<'a, BackendResult<Vec<InsertFailure>>>;

    /// Inserts one document and waits for a level of acknowledgement. The error is
    /// [`Unsupported`](BackendErrorKind::Unsupported) where that is not known, as it is by default.
    fn insert_acked<'a>(
        &'a self,
        collection: &'a str,
        document: Document,
        wish: Wish,
    ) -> BoxFuture<'a, BackendResult<Inserted>> {
        let _ = (collection, document);
        let text = format!("this back end does not know acknowledgement level `{}`", wish.level);
        let error = BackendError::new(BackendErrorKind::Unsupported, text);
        futures_util::future::ready(Err(error)).boxed()
    }

    /// Reads documents.
    fn find<'a>(&'a self, collection: &'a str, find: Find) -> BoxFuture<'a, BackendResult<Vec<Document>>>;

    /// Counts documents.
    fn count<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>>;

    /// Updates one document.
    fn update_one<'a>(
        &'a self,
        collection: &'a str,
        filter: Document,
        update: Document,
        upsert: bool,
    ) -> BoxFuture<'a, BackendResult<Updated>>;

    /// Locks and updates in one call. The error is [`Unsupported`](BackendErrorKind::Unsupported) where that is not possible, as it is by default;
    /// nothing was done then.
    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, BackendResult<Claimed>> {
        let _ = claim;
        let text = "this back end cannot lock and mark in one call";
        futures_util::future::ready(Err(BackendError::new(BackendErrorKind::Unsupported, text))).boxed()
    }

    /// Deletes every matching document; how many.
    fn delete<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>>;

    /// Creates one index unless it is there.
    fn create_index<'a>(
        &'a self,
        collection: &'a str,
        index: &'a IndexDefinition,
    ) -> BoxFuture<'a, BackendResult<()>>;

    /// The indexes of a collection, as `listIndexes` shows them; none when it is not there.
    fn indexes<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<Vec<Document>>>;

    /// Opens a change stream; when this returns, events from now on will be delivered.
    fn watch<'a>(&'a self, scope: Scope<'a>, watch: Watch) -> BoxFuture<'a, BackendResult<Box<dyn Feed>>>;

    /// The names of the collections that begin with `prefix`.
    fn collections<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, BackendResult<Vec<String>>>;

    /// Drops a collection with all it holds. One that is not there is no error.
    fn drop_collection<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<()>>;

    /// What there is to say about the connection, for status answers. No secrets.
    fn describe(&self) -> Document;

    /// Returns when no server has answered for a moment, with why; never where that is not noticed, as by default.
    fn lost(&self) -> BoxFuture<'_, BackendError> {
        futures_util::future::pending().boxed()
    }

    /// Returns when a server answers, after [`lost`](Self::lost) did.
    fn back(&self) -> BoxFuture<'_, ()> {
        futures_util::future::ready(()).boxed()
    }

    /// Gives up connections. A bus calls this at its end if it opened the back end itself; nothing follows.
    fn close(&self) -> BoxFuture<'_, ()> {
        futures_util::future::ready(()).boxed()
    }
}

/// Server errors that mean "not now": elections, step-downs, shutdowns, unreachable hosts.
const TRANSIENT_CODES: [i32; 14] = [6, 7, 50, 63, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436];
/// `ChangeStreamHistoryLost`, `ChangeStreamFatalError`, `InvalidResumeToken` (of another server, or of a stream that
/// ended with its collection), `CappedPositionLost`.
const HISTORY_LOST_CODES: [i32; 4] = [286, 280, 260, 136];
/// `IndexOptionsConflict`, `IndexKeySpecsConflict`.
const INDEX_CONFLICT_CODES: [i32; 2] = [85, 86];
/// `BSONObjectTooLarge`, and the older code for the same.
const TOO_LARGE_CODES: [i32; 2] = [10334, 17419];
const DUPLICATE_KEY: i32 = 11000;
const NAMESPACE_NOT_FOUND: i32 = 26;

/// How to handle a server's error code; `None` for codes that say nothing about it.
pub(crate) fn kind_of_code(code: i32) -> Option<BackendErrorKind> {
    Some(match code {
        DUPLICATE_KEY => BackendErrorKind::DuplicateKey,
        NAMESPACE_NOT_FOUND => BackendErrorKind::Missing,
        code if TRANSIENT_CODES.contains(&code) => BackendErrorKind::Transient,
        code if HISTORY_LOST_CODES.contains(&code) => BackendErrorKind::HistoryLost,
        code if INDEX_CONFLICT_CODES.contains(&code) => BackendErrorKind::IndexConflict,
        code if TOO_LARGE_CODES.contains(&code) => BackendErrorKind::TooLarge,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted() {
        let check = |code, expected| assert_eq!(kind_of_code(code), expected, "{code}");
        check(11000, Some(BackendErrorKind::DuplicateKey));
        check(10107, Some(BackendErrorKind::Transient));
        check(286, Some(BackendErrorKind::HistoryLost));
        check(260, Some(BackendErrorKind::HistoryLost));
        check(85, Some(BackendErrorKind::IndexConflict));
        check(10334, Some(BackendErrorKind::TooLarge));
        check(13, None);
    }
}
