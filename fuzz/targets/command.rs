//! Commands to a server with nothing in it: each is answered, none ends the server.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use rockdove_documents::{Doc, DocBuilder};
use rockdove_engine::{Engine, Options};
use rockdove_fuzz::{Words, document};
use rockdove_mongo::busy_poll::BusyPoll;
use rockdove_mongo::codec::{self, Flags};
use rockdove_mongo::connection::serve;
use rockdove_mongo::shared::Shared;
use rockdove_mongo::topology::Identity;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const NAMES: &[&str] = &[
    "insert",
    "update",
    "delete",
    "find",
    "aggregate",
    "findAndModify",
    "getMore",
    "killCursors",
    "count",
    "distinct",
    "bulkWrite",
    "create",
    "collMod",
    "drop",
    "dropDatabase",
    "createIndexes",
    "dropIndexes",
    "listIndexes",
    "listCollections",
    "listDatabases",
    "renameCollection",
    "explain",
    "hello",
    "collStats",
    "dbStats",
    "validate",
    "currentOp",
    "killOp",
    "getParameter",
    "setParameter",
    "endSessions",
    "killSessions",
    "replSetGetStatus",
    "replSetStepDown",
    "serverStatus",
    "getLog",
    "features",
];

const WORDS: Words = Words {
    outer: &[
        "documents",
        "updates",
        "deletes",
        "filter",
        "query",
        "pipeline",
        "cursor",
        "batchSize",
        "limit",
        "skip",
        "sort",
        "projection",
        "hint",
        "collation",
        "let",
        "lsid",
        "txnNumber",
        "stmtId",
        "writeConcern",
        "readConcern",
        "maxTimeMS",
        "ordered",
        "update",
        "remove",
        "new",
        "upsert",
        "fields",
        "arrayFilters",
        "key",
        "indexes",
        "index",
        "capped",
        "size",
        "max",
        "viewOn",
        "validator",
        "ops",
        "nsInfo",
        "comment",
        "singleBatch",
        "tailable",
        "awaitData",
        "autocommit",
        "startTransaction",
        "collection",
        "cursors",
        "to",
        "nameOnly",
        "changeStreamPreAndPostImages",
        "expireAfterSeconds",
        "verbosity",
        "topologyVersion",
    ],
    operators: &[
        "q",
        "u",
        "multi",
        "upsert",
        "limit",
        "key",
        "name",
        "unique",
        "sparse",
        "partialFilterExpression",
        "expireAfterSeconds",
        "$set",
        "$inc",
        "$push",
        "$each",
        "$gt",
        "$in",
        "$match",
        "$group",
        "$sort",
        "$changeStream",
        "fullDocument",
        "resumeAfter",
        "startAtOperationTime",
        "_data",
        "$lookup",
        "from",
        "$out",
        "$merge",
        "into",
        "locale",
        "id",
        "w",
        "j",
        "level",
        "insert",
        "document",
        "ns",
        "filter",
        "updateMods",
    ],
    strings: &["c", "d", "db", "db.c", "majority", "local", "snapshot", "en", "a_1", "updateLookup", "*"],
};

/// An answer takes no longer, unless the command waits for something by design.
const LIMIT: Duration = Duration::from_millis(100);

fn command(input: &mut Unstructured<'_>) -> arbitrary::Result<Doc> {
    let name = input.choose(NAMES)?;
    let options = document(input, WORDS)?;
    let mut out = DocBuilder::new();
    if input.ratio(1, 8)? {
        out.append(name, 1);
    } else {
        out.append(name, *input.choose(&["c", "d", "db.c", "$cmd", ""])?);
    }
    out.append_all(options.raw());
    out.append("$db", if input.ratio(1, 6)? { "admin" } else { "db" });
    Ok(out.finish())
}

async fn exchange(stream: &mut DuplexStream, command: &Doc) -> Option<()> {
    let mut frame = Vec::new();
    codec::encode_msg(&mut frame, 1, 0, Flags::NONE, command.bytes());
    stream.write_all(&frame).await.ok()?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.ok()?;
    let mut rest = vec![0; u32::from_le_bytes(head) as usize - 4];
    stream.read_exact(&mut rest).await.ok()?;
    Doc::new(rest.split_off(17).into()).expect("replies are well formed");
    Some(())
}

fn run(data: &[u8]) -> arbitrary::Result<()> {
    let mut input = Unstructured::new(data);
    let mut commands = Vec::new();
    for _ in 0..input.int_in_range(1..=4)? {
        commands.push(command(&mut input)?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let engine = Engine::open(Options::memory()).expect("memory opens");
        let shared = Shared::new(Identity::default(), engine, BusyPoll::new(Duration::ZERO), Vec::new());
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let connection =
            tokio::spawn(serve(theirs, "127.0.0.1:9".parse().expect("an address"), shared.clone()));
        for command in &commands {
            if !matches!(tokio::time::timeout(LIMIT, exchange(&mut ours, command)).await, Ok(Some(()))) {
                break; // it waits, or the connection was closed
            }
        }
        drop(ours);
        if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(10), connection).await {
            assert!(!error.is_panic(), "{commands:?}");
        }
        shared.engine.close().await.expect("memory closes");
    });
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let _ = run(data); // too few bytes for a command
});
