//! The commands: one file a family, and the one table that names them all.
//!
//! A handler reads its options from the [`Call`], and appends the fields of its reply; `ok` and the times are
//! added by the dispatcher. Handlers that never wait are plain functions; the others are futures.

use crate::codec::{Body, Request};
use crate::dispatch::{Call, More};
use crate::errors::Result;
use crate::shared::{Counters, Shared};
use crate::topology::Identity;
use foldhash::HashMap;
use rockdove_documents::{DocBuilder, RawDoc, Value};
use std::pin::Pin;
use std::sync::LazyLock;

pub mod aggregate;
pub mod bulk_write;
pub mod change_stream;
pub mod collections;
pub mod cursor;
pub mod explain;
pub mod find;
pub mod find_and_modify;
pub mod handshake;
pub mod indexes;
pub mod messaging;
pub mod query;
pub mod replication;
pub mod server;
pub mod sessions;
pub mod sink;
pub mod statistics;
pub mod tail;
pub mod testing;
pub mod users;
pub mod write;

/// Whether a request is done with its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// It is.
    Done,
    /// A client that takes several answers gets another.
    More(More),
}

/// A handler that may wait.
pub type LaterIn<'c> = Pin<Box<dyn Future<Output = Result<Flow>> + Send + 'c>>;

/// How a command is carried out.
#[derive(Clone, Copy)]
pub enum Run {
    /// At once.
    Now(for<'c> fn(&Call<'c>, &mut DocBuilder) -> Result<()>),
    /// By a future.
    Later(for<'c, 'a> fn(&'c Call<'a>, &'c mut DocBuilder) -> LaterIn<'c>),
}

/// One command.
pub struct Spec {
    /// Its name.
    pub name: &'static str,
    /// Older names of it.
    pub aliases: &'static [&'static str],
    flags: u32,
    /// How it is carried out.
    pub run: Run,
}

impl Spec {
    /// Needs a primary and has a write concern.
    pub const WRITE: u32 = 1;
    /// Obeys the read preference and has a read concern.
    pub const READ: u32 = 1 << 1;
    /// May carry a transaction number outside a transaction.
    pub const RETRYABLE: u32 = 1 << 2;
    /// May come as OP_QUERY.
    pub const HANDSHAKE: u32 = 1 << 3;
    /// Runs in `admin` only.
    pub const ADMIN: u32 = 1 << 4;
    /// Waits for news: ends when its client leaves, and reads `maxTimeMS` itself.
    pub const WAITS: u32 = 1 << 5;
    /// Belongs to the Stable API, version 1.
    pub const API_V1: u32 = 1 << 6;
    /// Allowed without authentication.
    pub const OPEN: u32 = 1 << 7;
    /// Knows the read concern `snapshot`.
    pub const SNAPSHOT: u32 = 1 << 8;
    /// Commits or aborts a transaction.
    pub const ENDS_TRANSACTION: u32 = 1 << 9;
    /// Exists in the PoppyDB personality only.
    pub const POPPYDB: u32 = 1 << 10;
    /// Exists only where test commands are allowed.
    pub const TEST: u32 = 1 << 11;

    /// Whether it exists on a server that presents itself so.
    pub fn exists(&self, identity: &Identity) -> bool {
        (identity.poppydb || !self.has(Spec::POPPYDB)) && (identity.test_commands || !self.has(Spec::TEST))
    }

    /// Whether it has this property.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// A command that is carried out at once.
    pub const fn now(
        name: &'static str,
        flags: u32,
        handler: for<'c> fn(&Call<'c>, &mut DocBuilder) -> Result<()>,
    ) -> Spec {
        Spec { name, aliases: &[], flags, run: Run::Now(handler) }
    }

    /// A command that may wait.
    pub const fn later(
        name: &'static str,
        flags: u32,
        handler: for<'c, 'a> fn(&'c Call<'a>, &'c mut DocBuilder) -> LaterIn<'c>,
    ) -> Spec {
        Spec { name, aliases: &[], flags, run: Run::Later(handler) }
    }

    /// The same command with older names.
    pub const fn also(self, aliases: &'static [&'static str]) -> Spec {
        Spec { aliases, ..self }
    }
}

/// All commands, by family.
static FAMILIES: [&[Spec]; 17] = [
    handshake::COMMANDS,
    sessions::COMMANDS,
    write::COMMANDS,
    bulk_write::COMMANDS,
    find_and_modify::COMMANDS,
    find::COMMANDS,
    cursor::COMMANDS,
    aggregate::COMMANDS,
    explain::COMMANDS,
    collections::COMMANDS,
    indexes::COMMANDS,
    statistics::COMMANDS,
    server::COMMANDS,
    replication::COMMANDS,
    testing::COMMANDS,
    messaging::COMMANDS,
    users::COMMANDS,
];

static BY_NAME: LazyLock<HashMap<&'static str, &'static Spec>> = LazyLock::new(|| {
    let names = |spec: &'static Spec| std::iter::once(spec.name).chain(spec.aliases.iter().copied());
    all().flat_map(|spec| names(spec).map(move |name| (name, spec))).collect()
});

/// All commands.
pub fn all() -> impl Iterator<Item = &'static Spec> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

/// The command of this name.
pub fn find(name: &str) -> Option<&'static Spec> {
    BY_NAME.get(name).copied()
}

/// Whether a request only reads or waits for news, so that it ends when its client leaves.
pub fn changes_nothing(request: &Request) -> bool {
    let Ok(body) = &request.body else { return false };
    let command = body.command.raw();
    let name = command.iter().next().map_or("", |first| first.key());
    find(name).is_some_and(|spec| spec.has(Spec::WAITS) || (spec.has(Spec::READ) && !writes_out(command)))
}

/// Whether a command has a write concern.
pub fn writes(spec: &Spec, command: RawDoc<'_>) -> bool {
    spec.has(Spec::WRITE) || (spec.name == "aggregate" && writes_out(command))
}

/// Whether a pipeline ends with a stage that writes.
fn writes_out(command: RawDoc<'_>) -> bool {
    let Some(Value::Array(pipeline)) = command.get("pipeline") else { return false };
    let last = pipeline.values().last().and_then(|stage| stage.as_document()?.iter().next());
    last.is_some_and(|last| matches!(last.key(), "$out" | "$merge"))
}

/// Whether a command opens a change stream, which decides the labels of its errors.
pub fn opens_change_stream(spec: &Spec, body: &Body) -> bool {
    spec.name == "aggregate" && change_stream::is_change_stream(body.command.raw())
}

/// Whether a command reads a change stream. Errors that come before its cursor is known are not about it.
pub fn reads_change_stream(spec: &Spec, body: &Body, shared: &Shared) -> bool {
    match body.command.get("getMore") {
        Some(Value::Int64(id)) if spec.name == "getMore" => {
            shared.cursors.binding(id).is_some_and(|binding| binding.change_stream)
        }
        _ => false,
    }
}

/// Counts a command for `serverStatus`.
pub fn count(spec: &Spec, counters: &Counters) {
    let counter = match spec.name {
        "insert" => &counters.insert,
        "find" => &counters.query,
        "update" | "findAndModify" => &counters.update,
        "delete" => &counters.delete,
        "getMore" => &counters.getmore,
        _ => &counters.command,
    };
    Counters::add(counter, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: usize = all().map(|spec| 1 + spec.aliases.len()).sum();
        assert_eq!(BY_NAME.len(), names);
        assert!(find("find").is_some_and(|spec| spec.has(Spec::READ)));
        assert!(find("Find").is_none());
        assert!(find("atlasVersion").is_none(), "shells ask for it and expect an unknown command");
    }
}
