//! The back end without a server: the engine in this process.
//!
//! Every bus on one [`Embedded`] shares its queues, as if they were nodes of one server. Several processes cannot
//! share one directory.

use crate::backend::{
    Backend, BackendError, BackendErrorKind, BackendResult, Change, ChangeEvent, Claim, Claimed, Durability,
    Feed, Find, InsertFailure, Inserted, Scope, Updated, Watch, Wish, kind_of_code,
};
use crate::bus::{Bus, BusBuilder};
use crate::driver::DEFAULT_DATABASE;
use bson::{Bson, Document, doc};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use rockdove_documents::filter::{Alternatives, Filter, FilterOptions};
use rockdove_documents::projection::{Projection, ProjectionOptions};
use rockdove_documents::sort::Sort;
use rockdove_documents::update::{Update, UpdateOptions};
use rockdove_documents::{Doc, Error, Scanned, Value, code};
use rockdove_engine::{
    Ack, Acked, ChangeStream, Definition, DeleteStatement, Engine, EventPipeline, Level, Namespace,
    OpenError, Options, Outcome, StartAt, Statement, Token, UpdateStatement, View, Write, WriteReply,
};
use rockdove_messages::{IndexDefinition, MessageId};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Events taken from the engine at a time, and their bytes.
const BATCH_EVENTS: usize = 100;
const BATCH_BYTES: usize = 16 << 20;

/// The engine in this process. Clones are handles to the same one.
///
/// ```
/// use rockdove::{Embedded, Message};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Embedded::memory()?;
/// let bus = store.bus().sender_id("billing-1").connect().await?;
/// bus.publish(Message::new("orders.created").value("4711")).await?;
/// bus.shutdown().await;
/// store.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Embedded {
    engine: Engine,
    database: String,
}

impl Embedded {
    /// In memory only: what is not consumed is gone with the process.
    pub fn memory() -> Result<Self, OpenError> {
        Self::open_with(Options::memory())
    }

    /// Stored in a directory, which is made if it is not there. A send is acknowledged when it is in the log; it
    /// survives the death of the process.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, OpenError> {
        Self::open_with(Options::stored_in(dir))
    }

    /// With options of the engine.
    pub fn open_with(options: Options) -> Result<Self, OpenError> {
        Ok(Self::new(Engine::open(options)?))
    }

    /// On an engine that is open already, such as a server's own.
    pub fn new(engine: Engine) -> Self {
        Self { engine, database: DEFAULT_DATABASE.to_owned() }
    }

    /// The same engine, another database.
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = database.into();
        self
    }

    /// Prepares a bus on this engine.
    pub fn bus(&self) -> BusBuilder {
        Bus::with_backend(Arc::new(self.clone()))
    }

    /// Closes the log cleanly. Shut the buses down before.
    pub async fn close(&self) -> BackendResult<()> {
        self.engine.close().await.map_err(|text| BackendError::new(BackendErrorKind::Other, text))
    }

    fn namespace(&self, collection: &str) -> BackendResult<Namespace> {
        Namespace::new(&self.database, collection).map_err(convert)
    }

    /// Carries out statements, each whatever becomes of the others.
    async fn write(&self, statements: Vec<Statement>, ack: Ack) -> BackendResult<(WriteReply, Acked)> {
        self.write_as(statements, false, ack).await
    }

    async fn write_as(
        &self,
        statements: Vec<Statement>,
        ordered: bool,
        ack: Ack,
    ) -> BackendResult<(WriteReply, Acked)> {
        let write =
            Write { statements, ordered, retry: None, ack, bypass_validation: false, interrupt: None };
        let reply = self.engine.write(write).await.map_err(convert)?;
        let not_acked =
            |error: &Error| BackendError::new(BackendErrorKind::NotAcknowledged, error.to_string());
        let acked = *reply.receipt.acked.as_ref().map_err(not_acked)?;
        Ok((reply, acked))
    }

    /// Carries out one statement.
    async fn write_one(&self, statement: BackendResult<Statement>) -> BackendResult<Outcome> {
        let (reply, _) = self.write(vec![statement?], Ack::WRITTEN).await?;
        match reply.results.into_iter().next() {
            Some(Ok(outcome)) => Ok(outcome),
            Some(Err(error)) => Err(convert(error.error)),
            None => Err(BackendError::new(BackendErrorKind::Other, "the engine tried no statement")),
        }
    }

    fn insert_statement(&self, collection: &str, document: &Document) -> BackendResult<Statement> {
        Ok(Statement::Insert { ns: self.namespace(collection)?, doc: encode(document)? })
    }

    fn update_statement(
        &self,
        collection: &str,
        filter: &Document,
        update: &Document,
        upsert: bool,
    ) -> BackendResult<Statement> {
        let options = UpdateOptions::default();
        let update =
            Update::parse(Value::Document(encode(update)?.raw()), None, &options).map_err(convert)?;
        Ok(Statement::Update(Box::new(UpdateStatement {
            ns: self.namespace(collection)?,
            filter: parse(filter)?,
            update,
            multi: false,
            upsert,
            sort: None,
            hint: None,
        })))
    }

    fn query(&self, collection: &str, find: &Find) -> BackendResult<rockdove_engine::Find> {
        let mut query = rockdove_engine::Find::new(self.namespace(collection)?, parse(&find.filter)?);
        if let Some(sort) = &find.sort {
            query.sort = Some(Sort::parse(encode(sort)?.raw(), None).map_err(convert)?);
        }
        if let Some(projection) = &find.projection {
            let options = ProjectionOptions::default();
            query.projection = Some(Projection::parse(encode(projection)?.raw(), &options).map_err(convert)?);
        }
        query.limit = find.limit as u64;
        Ok(query)
    }

    fn find_now(&self, collection: &str, find: &Find) -> BackendResult<Vec<Document>> {
        let found = self.engine.find(self.query(collection, find)?).map_err(convert)?;
        found.map(|doc| decode(&doc.map_err(convert)?)).collect()
    }

    fn count_now(&self, collection: &str, filter: Document) -> BackendResult<u64> {
        let query = self.query(collection, &Find { filter, ..Find::default() })?;
        rockdove_engine::count(&self.engine.snapshot(), query).map_err(convert)
    }

    fn watch_now(&self, scope: Scope<'_>, watch: &Watch) -> BackendResult<Box<dyn Feed>> {
        let scope = match scope {
            Scope::Collection(name) => rockdove_engine::Scope::Collection(self.namespace(name)?),
            Scope::Database => rockdove_engine::Scope::Database(self.database.clone()),
        };
        let stages = encode(&doc! { "stages": watch.pipeline.clone() })?.into_bytes();
        let pipeline = Arc::new(Stages::parse(&watch.pipeline)?);
        let start = match &watch.resume_after {
            None => StartAt::Now,
            Some(token) => StartAt::After(read_token(token)?),
        };
        let stream = self.engine.watch(scope, View::default(), stages, pipeline, start).map_err(convert)?;
        let (wait, after) = (watch.max_await, self.engine.token_for_now());
        Ok(Box::new(EmbeddedFeed { stream, wait, events: VecDeque::new(), returned: None, after }))
    }
}

impl Backend for Embedded {
    fn insert<'a>(
        &'a self,
        collection: &'a str,
        documents: &'a [Document],
        _: Durability,
    ) -> BoxFuture<'a, BackendResult<Vec<InsertFailure>>> {
        async move {
            let statement = |document| self.insert_statement(collection, document);
            let statements = documents.iter().map(statement).collect::<BackendResult<Vec<_>>>()?;
            let (reply, _) = self.write(statements, Ack::WRITTEN).await?;
            let failed = reply.results.into_iter().enumerate().filter_map(|(index, result)| {
                result.err().map(|error| InsertFailure { index, error: convert(error.error) })
            });
            Ok(failed.collect())
        }
        .boxed()
    }

    fn insert_acked<'a>(
        &'a self,
        collection: &'a str,
        document: Document,
        mut wish: Wish,
    ) -> BoxFuture<'a, BackendResult<Inserted>> {
        async move {
            if wish.level == Level::Risk && self.engine.risk().is_none() {
                if !wish.or_stricter {
                    let text = "acknowledgement level `risk` needs an engine with a risk policy, or leave to take `sync`";
                    return Err(BackendError::new(BackendErrorKind::Unsupported, text));
                }
                wish = wish.without_risk();
            }
            let ack = Ack { value: wish.value.unwrap_or(0), ..Ack::at(wish.level) };
            let statement = self.insert_statement(collection, &document)?;
            let (reply, Acked { level, degraded }) = self.write(vec![statement], ack).await?;
            let refused = reply.results.into_iter().find_map(Result::err).map(|failed| convert(failed.error));
            Ok(Inserted { refused, level, degraded })
        }
        .boxed()
    }

    fn find<'a>(&'a self, collection: &'a str, find: Find) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        ready(self.find_now(collection, &find)).boxed()
    }

    fn count<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        ready(self.count_now(collection, filter)).boxed()
    }

    fn update_one<'a>(
        &'a self,
        collection: &'a str,
        filter: Document,
        update: Document,
        upsert: bool,
    ) -> BoxFuture<'a, BackendResult<Updated>> {
        let statement = self.update_statement(collection, &filter, &update, upsert);
        async move {
            match self.write_one(statement).await? {
                Outcome::Updated { matched, modified, .. } => Ok(Updated { matched, modified }),
                other => Err(unexpected(&other)),
            }
        }
        .boxed()
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, BackendResult<Claimed>> {
        async move {
            let lock = self.insert_statement(claim.locks, &claim.lock)?;
            let mark = self.update_statement(claim.collection, &claim.filter, &claim.update, false)?;
            let (reply, _) = self.write_as(vec![lock, mark], true, Ack::WRITTEN).await?;
            let mut results = reply.results.into_iter();
            match results.next() {
                Some(Err(failed)) if failed.error.code == code::DUPLICATE_KEY => return Ok(Claimed::Held),
                Some(Err(failed)) => return Err(convert(failed.error)),
                _ => {}
            }
            let marked = matches!(results.next(), Some(Ok(Outcome::Updated { matched: 1.., .. })));
            Ok(Claimed::Locked { marked })
        }
        .boxed()
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        async move {
            let (ns, filter) = (self.namespace(collection)?, parse(&filter)?);
            let delete = DeleteStatement { ns, filter, multi: true, hint: None };
            match self.write_one(Ok(Statement::Delete(Box::new(delete)))).await? {
                Outcome::Deleted { count } => Ok(count),
                other => Err(unexpected(&other)),
            }
        }
        .boxed()
    }

    fn create_index<'a>(
        &'a self,
        collection: &'a str,
        index: &'a IndexDefinition,
    ) -> BoxFuture<'a, BackendResult<()>> {
        async move {
            let specs = vec![encode(&index.to_document())?];
            let definition = Definition::CreateIndexes { ns: self.namespace(collection)?, specs };
            self.engine.define(definition, Ack::WRITTEN).await.map(drop).map_err(convert)
        }
        .boxed()
    }

    fn indexes<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        let read = || {
            let ns = self.namespace(collection)?;
            let snapshot = self.engine.snapshot();
            let indexes = snapshot.collection(&ns).map(|collection| collection.indexes()).unwrap_or_default();
            indexes.iter().map(|index| decode(&index.spec.doc)).collect()
        };
        ready(read()).boxed()
    }

    fn watch<'a>(&'a self, scope: Scope<'a>, watch: Watch) -> BoxFuture<'a, BackendResult<Box<dyn Feed>>> {
        ready(self.watch_now(scope, &watch)).boxed()
    }

    fn collections<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, BackendResult<Vec<String>>> {
        let snapshot = self.engine.snapshot();
        let names = snapshot.in_database(&self.database).map(|collection| collection.info.ns.collection());
        ready(Ok(names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect())).boxed()
    }

    fn drop_collection<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<()>> {
        async move {
            let drop = Definition::Drop { ns: self.namespace(collection)? };
            match self.engine.define(drop, Ack::WRITTEN).await {
                Err(error) if error.code != code::NAMESPACE_NOT_FOUND => Err(convert(error)),
                _ => Ok(()),
            }
        }
        .boxed()
    }

    fn describe(&self) -> Document {
        doc! { "backend": "embedded", "database": &self.database }
    }
}

/// One change stream of the engine.
struct EmbeddedFeed {
    stream: ChangeStream,
    wait: Duration,
    events: VecDeque<Doc>,
    /// The event that was returned last; `None` after an empty reply.
    returned: Option<Doc>,
    /// Where to resume after what was taken.
    after: Doc,
}

impl EmbeddedFeed {
    async fn take(&mut self) -> BackendResult<Option<ChangeEvent>> {
        if self.events.is_empty() {
            let batch = self.stream.next(BATCH_EVENTS, BATCH_BYTES, self.wait).await.map_err(convert)?;
            self.after = batch.resume_token;
            if batch.events.is_empty() && batch.ended {
                return Err(BackendError::new(BackendErrorKind::HistoryLost, "the collection was dropped"));
            }
            self.events.extend(batch.events);
        }
        self.returned = self.events.pop_front();
        Ok(self.returned.as_ref().map(read_event))
    }
}

impl Feed for EmbeddedFeed {
    fn next(&mut self) -> BoxFuture<'_, BackendResult<Option<ChangeEvent>>> {
        self.take().boxed()
    }

    fn resume_token(&self) -> Option<Bson> {
        let token = match self.returned.as_ref().and_then(|event| event.get("_id")) {
            Some(Value::Document(token)) => decode(&token.to_doc()),
            _ => decode(&self.after),
        };
        token.ok().map(Bson::Document)
    }
}

fn read_event(event: &Doc) -> ChangeEvent {
    let change = match event.get("operationType") {
        Some(Value::String("insert")) => Change::Insert,
        Some(Value::String("update")) => Change::Update,
        Some(Value::String("delete")) => Change::Delete,
        Some(Value::String("lock_released")) => Change::LockReleased,
        Some(Value::String("drop")) => Change::Dropped,
        _ => Change::Other,
    };
    let part = |name| match event.get(name) {
        Some(Value::Document(part)) => decode(&part.to_doc()).ok(),
        _ => None,
    };
    let collection = match event.get("ns") {
        Some(Value::Document(ns)) => match ns.get("coll") {
            Some(Value::String(name)) => name.to_owned(),
            _ => String::new(),
        },
        _ => String::new(),
    };
    let id = part("documentKey").and_then(|key| key.get("_id").and_then(MessageId::from_bson));
    let document = if change == Change::Insert { part("fullDocument") } else { None };
    ChangeEvent { change, collection, id, document }
}

/// The stages of our streams: matches, one after another.
struct Stages(Vec<Filter>);

impl Stages {
    fn parse(stages: &[Document]) -> BackendResult<Self> {
        let filter = |stage: &Document| match stage.get_document("$match") {
            Ok(filter) if stage.len() == 1 => parse(filter),
            _ => {
                let text = format!("an embedded stream takes $match stages only, not {stage}");
                Err(BackendError::new(BackendErrorKind::Other, text))
            }
        };
        stages.iter().map(filter).collect::<BackendResult<_>>().map(Self)
    }
}

impl EventPipeline for Stages {
    fn apply(&self, event: &Scanned<'_>) -> Result<Option<Doc>, Error> {
        for filter in &self.0 {
            if !filter.matches_scanned(event)? {
                return Ok(None);
            }
        }
        Ok(Some(event.doc().clone()))
    }

    fn needs(&self) -> Vec<Alternatives<'_>> {
        self.0.iter().flat_map(Filter::needs).collect()
    }

    fn is_cheap(&self) -> bool {
        self.0.iter().all(Filter::is_cheap)
    }
}

fn parse(filter: &Document) -> BackendResult<Filter> {
    Filter::parse(encode(filter)?.raw(), &FilterOptions::default()).map_err(convert)
}

fn read_token(token: &Bson) -> BackendResult<Token> {
    let lost = |text: String| BackendError::new(BackendErrorKind::HistoryLost, text);
    let document = token.as_document().ok_or_else(|| lost("the resume token is no document".to_owned()))?;
    Token::parse(Value::Document(encode(document)?.raw())).map_err(|error| lost(error.to_string()))
}

/// The engine takes checked documents only.
fn encode(document: &Document) -> BackendResult<Doc> {
    let bytes =
        document.to_vec().map_err(|error| BackendError::with_source(BackendErrorKind::Other, error))?;
    Doc::new(Bytes::from(bytes))
        .map_err(|error| BackendError::with_source(BackendErrorKind::Malformed, error))
}

/// The engine's documents are checked, their depth included.
fn decode(doc: &Doc) -> BackendResult<Document> {
    Document::from_reader(&doc.bytes()[..])
        .map_err(|error| BackendError::with_source(BackendErrorKind::Malformed, error))
}

/// A closed engine stays closed: that is no passing error.
fn convert(error: Error) -> BackendError {
    let kind = match error.code {
        code::SHUTDOWN_IN_PROGRESS => BackendErrorKind::Other,
        other => kind_of_code(other.number).unwrap_or(BackendErrorKind::Other),
    };
    BackendError::new(kind, error.to_string())
}

fn unexpected(outcome: &Outcome) -> BackendError {
    BackendError::new(BackendErrorKind::Other, format!("the engine did something else: {outcome:?}"))
}
