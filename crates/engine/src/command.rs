//! What protocols ask of the engine, and what they get back.

use crate::namespace::Namespace;
use crate::risk::Valuation;
use bytes::Bytes;
use rockdove_documents::filter::Filter;
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::projection::Projection;
use rockdove_documents::sort::Sort;
use rockdove_documents::update::Update;
use rockdove_documents::{Doc, Error, Owned, Result, Timestamp};
use rockdove_journal::Level;

/// When a write is acknowledged, and what would be lost with it.
///
/// What it asks for is never lowered, but can be raised: where the log has a risk policy, a write with a value that
/// asks for no sync is acknowledged at [`Level::Risk`], so that the cap holds for all that has a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// The level. In memory-only mode all are [`Level::Async`], and the others come degraded. [`Level::Risk`] is
    /// refused where the log has no risk policy.
    pub level: Level,
    /// Value of the write as a whole, at most [`VALUE_MAX`](crate::VALUE_MAX). If its documents have more in
    /// configured fields ([`RiskField`](crate::RiskField)), that counts.
    pub value: u64,
    /// Answer when the write is in the log, and say in [`Receipt::owed`] what is still to be waited for: for callers
    /// whose patience ends.
    pub deferred: bool,
}

impl Ack {
    /// When it is in the log: survives the death of the process, not of the machine.
    pub const WRITTEN: Ack = Ack::at(Level::Async);
    /// When it is on disk.
    pub const SYNCED: Ack = Ack::at(Level::Sync);

    /// At this level, without a value.
    pub const fn at(level: Level) -> Ack {
        Ack { level, value: 0, deferred: false }
    }
}

impl Default for Ack {
    fn default() -> Ack {
        Ack::WRITTEN
    }
}

/// What was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acked {
    /// The level that holds: the one asked for or, where that one names alternatives or asks for more nodes than there
    /// are, what stands for it.
    pub level: Level,
    /// True if there are fewer copies than the level asked for speaks of.
    pub degraded: bool,
}

/// What is still to be waited for ([`Engine::settle`](crate::Engine::settle)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owed {
    pub(crate) index: u64,
    pub(crate) level: Level,
    pub(crate) asked: Level,
    pub(crate) value: u64,
}

/// How lasting a write is that was carried out.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// What was reached. An error if the log failed after the write was carried out: it can be seen, and may be gone
    /// after a restart.
    pub acked: Result<Acked>,
    /// With [`Ack::deferred`]: what was asked for beyond that.
    pub owed: Option<Owed>,
}

impl Default for Receipt {
    /// Written, and no more asked for.
    fn default() -> Receipt {
        Receipt { acked: Ok(Acked { level: Level::Async, degraded: false }), owed: None }
    }
}

impl Receipt {
    /// The receipt for two parts of one write, the other of which came later. What that one has reached holds for all
    /// that is before it in the log; what failed before has failed.
    pub fn joined(self, later: Receipt) -> Receipt {
        let owed = match (self.owed, later.owed) {
            (Some(owed), Some(then)) => Some(Owed {
                index: owed.index.max(then.index),
                level: owed.level.stricter(then.level),
                asked: then.asked,
                value: owed.value.saturating_add(then.value),
            }),
            (owed, then) => then.or(owed),
        };
        Receipt { acked: self.acked.and(later.acked), owed }
    }
}

/// The session and number of a retryable write: carried out once, however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The logical session's id.
    pub session: Bytes,
    /// The transaction number.
    pub number: i64,
    /// The number of each statement; empty means 0, 1, 2…
    pub statements: Vec<i32>,
}

impl Retry {
    /// The number of the statement at `position`.
    pub(crate) fn number_of(&self, position: usize) -> i32 {
        let counted = || i32::try_from(position).unwrap_or(i32::MAX);
        self.statements.get(position).copied().unwrap_or_else(counted)
    }

    /// The same for `count` statements from this position on.
    pub(crate) fn part(&self, first: usize, count: usize) -> Retry {
        let statements = (first..first + count).map(|position| self.number_of(position)).collect();
        Retry { session: self.session.clone(), number: self.number, statements }
    }

    /// Fails if two statements have the same number.
    pub(crate) fn check_distinct(&self) -> Result<()> {
        if !self.statements.is_sorted_by(|a, b| a < b) {
            let mut numbers = self.statements.clone();
            numbers.sort_unstable();
            if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(Error::bad_value("two statements of a retryable write have the same number"));
            }
        }
        Ok(())
    }
}

/// Some statements to carry out in their order. Each change of a document is atomic, a statement that changes many
/// is not: what is visible and lasting of it grows while it is carried out.
#[derive(Debug)]
pub struct Write {
    /// The statements.
    pub statements: Vec<Statement>,
    /// Stop at the first that fails.
    pub ordered: bool,
    /// Carried out once, if given.
    pub retry: Option<Retry>,
    /// When to acknowledge.
    pub ack: Ack,
    /// Skip the collections' validators.
    pub bypass_validation: bool,
    /// Asked while documents are looked for and changed: an error ends the whole write with it. What it has done by
    /// then stays.
    pub interrupt: Option<Interrupt>,
}

/// One statement.
#[derive(Debug)]
pub enum Statement {
    /// Insert a document.
    Insert {
        /// Where.
        ns: Namespace,
        /// What; gets an `_id` if it has none.
        doc: Doc,
    },
    /// Update documents.
    Update(Box<UpdateStatement>),
    /// Delete documents.
    Delete(Box<DeleteStatement>),
    /// One that was found to be wrong before: fails in its place among the others.
    Refused(Error),
}

impl Statement {
    /// Whether it may store a document that has a value.
    pub(crate) fn may_have_value(&self, valuation: &Valuation) -> bool {
        match self {
            Statement::Insert { ns, doc } => valuation.of_new(ns, doc.raw()) != Ok(0),
            Statement::Update(update) => valuation.covers(&update.ns),
            Statement::Delete(_) | Statement::Refused(_) => false,
        }
    }

    /// Whether it may concern many documents.
    pub(crate) fn is_multi(&self) -> bool {
        match self {
            Statement::Insert { .. } | Statement::Refused(_) => false,
            Statement::Update(update) => update.multi,
            Statement::Delete(delete) => delete.multi,
        }
    }
}

/// An update statement.
#[derive(Debug)]
pub struct UpdateStatement {
    /// Where.
    pub ns: Namespace,
    /// Which documents.
    pub filter: Filter,
    /// How they change.
    pub update: Update,
    /// All that match, instead of the first.
    pub multi: bool,
    /// Insert a document if none matches.
    pub upsert: bool,
    /// Which is the first.
    pub sort: Option<Sort>,
    /// Which index to use.
    pub hint: Option<Hint>,
}

/// A delete statement.
#[derive(Debug)]
pub struct DeleteStatement {
    /// Where.
    pub ns: Namespace,
    /// Which documents.
    pub filter: Filter,
    /// All that match, instead of the first.
    pub multi: bool,
    /// Which index to use.
    pub hint: Option<Hint>,
}

/// The index a query shall use.
#[derive(Clone, Debug, PartialEq)]
pub enum Hint {
    /// By its name.
    Name(String),
    /// By its keys.
    Keys(Doc),
    /// None: read all records, in insertion order (`1`) or the other way (`-1`).
    Natural {
        /// Newest first.
        reverse: bool,
    },
}

/// What a statement did.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// One document was inserted.
    Inserted,
    /// Documents were updated.
    Updated {
        /// How many matched.
        matched: u64,
        /// How many changed.
        modified: u64,
        /// `_id` of the document that was inserted because none matched.
        upserted: Option<Owned>,
    },
    /// Documents were deleted.
    Deleted {
        /// How many.
        count: u64,
    },
}

/// What became of a [`Write`].
#[derive(Clone, Debug)]
pub struct WriteReply {
    /// One result per statement that was tried, in order.
    pub results: Vec<Result<Outcome, WriteError>>,
    /// Numbers of statements that had been carried out before.
    pub retried: Vec<i32>,
    /// The log's time after it.
    pub at: Timestamp,
    /// How lasting it is.
    pub receipt: Receipt,
}

impl WriteReply {
    /// For no statements.
    pub(crate) fn none(at: Timestamp) -> WriteReply {
        WriteReply { results: vec![], retried: vec![], at, receipt: Receipt::default() }
    }

    /// The reply for two parts of one write, the other of which came later.
    pub(crate) fn joined(mut self, later: WriteReply) -> WriteReply {
        self.results.extend(later.results);
        self.retried.extend(later.retried);
        WriteReply { at: later.at, receipt: self.receipt.joined(later.receipt), ..self }
    }
}

/// Why a statement failed.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteError {
    /// The error.
    pub error: Error,
    /// Further fields of the `writeErrors` entry (`keyPattern`, `keyValue`, `errInfo`).
    pub details: Option<Doc>,
}

impl From<Error> for WriteError {
    fn from(error: Error) -> WriteError {
        WriteError { error, details: None }
    }
}

impl From<WriteError> for Error {
    /// The error alone.
    fn from(failed: WriteError) -> Error {
        failed.error
    }
}

/// Change or remove one document and return it.
#[derive(Debug)]
pub struct FindAndModify {
    /// Where.
    pub ns: Namespace,
    /// Which document.
    pub filter: Filter,
    /// Which is the first.
    pub sort: Option<Sort>,
    /// What to do with it.
    pub action: Modify,
    /// Which of its fields to return.
    pub projection: Option<Projection>,
    /// Which index to use.
    pub hint: Option<Hint>,
    /// Carried out once, if given.
    pub retry: Option<Retry>,
    /// When to acknowledge.
    pub ack: Ack,
    /// Skip the collection's validator.
    pub bypass_validation: bool,
    /// Asked while the document is looked for and changed: an error ends the command with it, before it did anything.
    pub interrupt: Option<Interrupt>,
}

/// What [`FindAndModify`] does.
#[derive(Debug)]
pub enum Modify {
    /// Remove the document.
    Remove,
    /// Update it.
    Update {
        /// How.
        update: Box<Update>,
        /// Insert a document if none matches.
        upsert: bool,
        /// Return the document after the update instead of before.
        return_new: bool,
    },
}

/// What became of a [`FindAndModify`].
#[derive(Clone, Debug)]
pub struct FindAndModifyReply {
    /// The document, if there was one to return.
    pub value: Option<Doc>,
    /// Whether a document was found.
    pub found: bool,
    /// `_id` of the document that was inserted because none matched.
    pub upserted: Option<Owned>,
    /// Whether it had been carried out before.
    pub retried: bool,
    /// The log's time after it.
    pub at: Timestamp,
    /// How lasting it is.
    pub receipt: Receipt,
}

/// Changes to what collections and indexes there are.
#[derive(Clone, Debug)]
pub enum Definition {
    /// `create`.
    Create {
        /// Its name.
        ns: Namespace,
        /// Its options, as the command has them.
        options: Doc,
    },
    /// `collMod`: the changed options and, under `index`, a changed index.
    Modify {
        /// Its name.
        ns: Namespace,
        /// The command's fields.
        changes: Doc,
    },
    /// `drop`.
    Drop {
        /// Its name.
        ns: Namespace,
    },
    /// `dropDatabase`.
    DropDatabase {
        /// Its name.
        database: String,
    },
    /// `renameCollection`.
    Rename {
        /// Its name.
        from: Namespace,
        /// Its new name.
        to: Namespace,
        /// Drop the collection that has that name.
        drop_target: bool,
    },
    /// `createIndexes`.
    CreateIndexes {
        /// The collection, which is made if it is not there.
        ns: Namespace,
        /// The specifications.
        specs: Vec<Doc>,
    },
    /// `dropIndexes`.
    DropIndexes {
        /// The collection.
        ns: Namespace,
        /// Which.
        which: IndexChoice,
    },
}

/// Which indexes to drop.
#[derive(Clone, Debug)]
pub enum IndexChoice {
    /// All but `_id_`.
    All,
    /// Those of these names.
    Names(Vec<String>),
    /// The one with these keys.
    Keys(Doc),
}

/// What became of a [`Definition`].
#[derive(Clone, Debug, Default)]
pub struct DefinitionReply {
    /// Whether anything changed.
    pub changed: bool,
    /// Number of indexes before.
    pub indexes_before: i32,
    /// Number of indexes after.
    pub indexes_after: i32,
    /// Whether `createIndexes` made the collection.
    pub created_collection: bool,
    /// For `collMod` of an index: what changed, as the reply shows it.
    pub details: Doc,
    /// The log's time after it.
    pub at: Timestamp,
    /// How lasting it is.
    pub receipt: Receipt,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_part_has_not_reached_the_whole_has_not() {
        let reached = |level| Receipt { acked: Ok(Acked { level, degraded: false }), owed: None };
        let failed = Receipt { acked: Err(Error::bad_value("no disk")), owed: None };
        assert_eq!(reached(Level::Async).joined(reached(Level::Sync)).acked, reached(Level::Sync).acked);
        assert_eq!(failed.clone().joined(reached(Level::Async)).acked, failed.acked);
        assert_eq!(reached(Level::Sync).joined(failed.clone()).acked, failed.acked);
    }
}
