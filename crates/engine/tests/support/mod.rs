//! What the engine's tests share.
#![allow(dead_code, reason = "each test program uses a part")]

use rockdove_documents::filter::{Filter, FilterOptions};
use rockdove_documents::update::{Update, UpdateOptions};
use rockdove_documents::{Doc, Result, Scanned, Value};
use rockdove_engine::*;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time that a single step of a test may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn ns() -> Namespace {
    Namespace::new("db", "c").unwrap()
}

pub async fn open(options: Options) -> Engine {
    tokio::task::spawn_blocking(move || Engine::open(options)).await.unwrap().unwrap()
}

pub async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("a step took too long")
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn filter(query: Doc) -> Filter {
    Filter::parse(query.raw(), &FilterOptions::default()).unwrap()
}

pub fn parsed_update(update: Doc) -> Update {
    Update::parse(Value::Document(update.raw()), None, &UpdateOptions::default()).unwrap()
}

pub fn write_of(statements: Vec<Statement>) -> Write {
    Write {
        statements,
        ordered: true,
        retry: None,
        ack: Ack::WRITTEN,
        bypass_validation: false,
        interrupt: None,
    }
}

pub fn statement_insert(ns: &Namespace, doc: Doc) -> Statement {
    Statement::Insert { ns: ns.clone(), doc }
}

pub fn statement_update(ns: &Namespace, query: Doc, update: Doc, multi: bool, upsert: bool) -> Statement {
    let (filter, update) = (filter(query), parsed_update(update));
    Statement::Update(Box::new(UpdateStatement {
        ns: ns.clone(),
        filter,
        update,
        multi,
        upsert,
        sort: None,
        hint: None,
    }))
}

async fn one(engine: &Engine, statement: Statement) -> Result<Outcome> {
    let reply = bounded(engine.write(write_of(vec![statement]))).await?;
    reply.results.into_iter().next().expect("one statement has one result").map_err(|error| error.error)
}

pub async fn insert(engine: &Engine, ns: &Namespace, doc: Doc) -> Result<Outcome> {
    one(engine, statement_insert(ns, doc)).await
}

pub async fn update(
    engine: &Engine,
    ns: &Namespace,
    query: Doc,
    update: Doc,
    multi: bool,
) -> Result<Outcome> {
    one(engine, statement_update(ns, query, update, multi, false)).await
}

pub async fn delete(engine: &Engine, ns: &Namespace, query: Doc, multi: bool) -> Result<Outcome> {
    let delete = DeleteStatement { ns: ns.clone(), filter: filter(query), multi, hint: None };
    one(engine, Statement::Delete(Box::new(delete))).await
}

pub async fn write_retryable(
    engine: &Engine,
    statements: Vec<Statement>,
    retry: Retry,
) -> Result<WriteReply> {
    bounded(engine.write(Write { retry: Some(retry), ..write_of(statements) })).await
}

pub async fn define(engine: &Engine, definition: Definition) -> Result<DefinitionReply> {
    bounded(engine.define(definition, Ack::WRITTEN)).await
}

pub fn find(engine: &Engine, ns: &Namespace, query: Doc) -> Vec<Doc> {
    engine.find(Find::new(ns.clone(), filter(query))).unwrap().collect::<Result<_>>().unwrap()
}

/// Lets everything through.
struct All;

impl EventPipeline for All {
    fn apply(&self, event: &Scanned<'_>) -> Result<Option<Doc>> {
        Ok(Some(event.doc().clone()))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

pub fn watch(engine: &Engine, start: StartAt) -> Result<ChangeStream> {
    engine.watch(Scope::Collection(ns()), View::default(), bytes::Bytes::new(), Arc::new(All), start)
}

pub fn watch_in(engine: &Engine, scope: Scope, view: View, start: StartAt) -> Result<ChangeStream> {
    engine.watch(scope, view, bytes::Bytes::new(), Arc::new(All), start)
}

pub async fn operations(stream: &mut ChangeStream, count: usize) -> Vec<String> {
    let mut operations = Vec::new();
    while operations.len() < count {
        let batch = bounded(stream.next(100, 1 << 20, PATIENCE)).await.unwrap();
        let kinds =
            batch.events.iter().map(|e| e.get("operationType").unwrap().as_str().unwrap().to_string());
        operations.extend(kinds);
    }
    operations
}

/// A copy of a data folder as it is now.
pub fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_into(dir, copy.path());
    copy
}

fn copy_into(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_into(&entry.path(), &target);
        } else {
            // A spare segment may be made or renamed meanwhile; what was written is never in one.
            match std::fs::copy(entry.path(), target) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                copied => assert!(copied.is_ok(), "{copied:?}"),
            }
        }
    }
}
