//! The back end for any MongoDB-compatible server, through the official driver.
//!
//! Documents arrive as raw bytes and are checked before they are decoded: a deeply nested one would otherwise
//! overflow the stack. Every call has a hard time limit, because a frozen host never closes its connections.

use crate::backend::{
    Backend, BackendError, BackendErrorKind, BackendResult, Change, ChangeEvent, Claim, Claimed, Durability,
    Feed, Find, InsertFailure, Inserted, Scope, Updated, Watch, Wish, kind_of_code,
};
use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};
use mongodb::action::Action;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ResumeToken;
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::event::EventHandler;
use mongodb::event::sdam::SdamEvent;
use mongodb::options::{
    Acknowledgment, ClientOptions, IndexOptions, SelectionCriteria, ServerAddress, WriteConcern,
};
use mongodb::{Client, Collection, Database, IndexModel};
use parking_lot::Mutex;
use rockdove_engine::Level;
use rockdove_messages::{IndexDefinition, MessageId};
use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The database of addresses that name none.
pub const DEFAULT_DATABASE: &str = "rockdove";
/// The longest a call may take, server selection included.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(30);
/// How much longer than `max_await` a stream reply may take before the connection counts as dead.
const STREAM_GRACE: Duration = Duration::from_secs(10);
/// Most connections, unless the address says otherwise. Each stream occupies one, up to three in all.
const POOL_MAX: u32 = 50;
/// Pause before a server is tried again that has not answered for the first time.
const REACH_PAUSE: Duration = Duration::from_millis(100);
/// When servers are first asked why they cannot be used, and how often after that.
const ASK_FIRST: Duration = Duration::from_millis(500);
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long such a question may take.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// A server that has not even been refused for so long does not answer.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// How long no server may answer before the connection counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// How long closing may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
/// Events per stream reply.
const STREAM_BATCH: u32 = 100;
/// The wire version from which every server knows `bulkWrite` (MongoDB 8.0).
const BULK_WIRE_VERSION: i32 = 25;
/// A server that does not know the levels, or not the one it was asked for: `IDLUnknownField`, `InvalidOptions`.
const REFUSED_LEVEL: [i32; 2] = [40415, 72];

/// A database on a MongoDB-compatible server.
#[derive(Clone, Debug)]
pub struct DriverBackend {
    database: Database,
    /// What the address says; `None` = the application's handle.
    address: Option<Arc<ClientOptions>>,
    servers: Servers,
    knowledge: Arc<Mutex<Option<Knowledge>>>,
}

/// What the server knows beyond what every server does, as its `hello` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Knowledge {
    levels: Levels,
    /// `bulkWrite`: writes to several collections in one call.
    bulk: bool,
}

/// Acknowledgement levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Levels {
    /// Write concerns.
    Concerns,
    /// Rockdove's, without value at risk.
    WithoutRisk,
    /// All of Rockdove's.
    All,
}

/// The servers the driver knows.
#[derive(Clone, Debug, Default)]
struct Servers(Arc<watch::Sender<BTreeMap<String, Seen>>>);

/// What was heard of a server the last time.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Seen {
    /// Nothing so far.
    Not,
    /// It answered.
    Answering,
    /// It did not answer, and why.
    Failed(String),
}

impl Servers {
    fn note(&self, event: &SdamEvent) {
        match event {
            SdamEvent::ServerOpening(event) => self.0.send_modify(|servers| {
                servers.entry(event.address.to_string()).or_insert(Seen::Not);
            }),
            SdamEvent::ServerClosed(event) => self.0.send_modify(|servers| {
                servers.remove(&event.address.to_string());
            }),
            SdamEvent::ServerHeartbeatSucceeded(event) => self.hear(&event.server_address, Seen::Answering),
            SdamEvent::ServerHeartbeatFailed(event) => {
                self.hear(&event.server_address, Seen::Failed(text_of(&event.failure)));
            }
            _ => {}
        }
    }

    /// What was heard of a server, unless it was removed meanwhile.
    fn hear(&self, address: &ServerAddress, seen: Seen) {
        self.0.send_if_modified(|servers| {
            let known = servers.get_mut(&address.to_string());
            known.map(|known| *known = seen).is_some()
        });
    }
}

/// Who does not answer, and why; `None` if one does, or may yet. Those of whom nothing was heard so far may, unless
/// enough time has passed.
fn silence<'a>(servers: impl IntoIterator<Item = (&'a String, &'a Seen)>, enough: bool) -> Option<String> {
    let mut silent = Vec::new();
    for (address, seen) in servers {
        match seen {
            Seen::Failed(why) => silent.push(format!("{address} ({why})")),
            Seen::Not if enough => silent.push(address.clone()),
            Seen::Not | Seen::Answering => return None,
        }
    }
    (!silent.is_empty()).then(|| format!("no server answers at {}", silent.join(", ")))
}

/// Why nothing can be asked of the servers when enough time has passed.
fn obstacle(servers: &BTreeMap<String, Seen>) -> String {
    let otherwise = || {
        let text = if servers.is_empty() {
            "no server answers in time"
        } else {
            "servers answer, none is a primary yet"
        };
        text.to_owned()
    };
    silence(servers, true).unwrap_or_else(otherwise)
}

/// Why none of the servers that answer can be used as the address says, if that is so. `silence` says which of the
/// servers with these addresses do not answer.
fn contradiction(
    address: &ClientOptions,
    answers: &[(ServerAddress, Document)],
    silence: impl Fn(&[String]) -> Option<String>,
) -> Option<String> {
    let of_one = |(host, hello): &(ServerAddress, Document)| contradiction_of(address, host, hello, &silence);
    answers.iter().map(of_one).collect::<Option<Vec<_>>>()?.into_iter().next()
}

fn contradiction_of(
    address: &ClientOptions,
    host: &ServerAddress,
    hello: &Document,
    silence: impl Fn(&[String]) -> Option<String>,
) -> Option<String> {
    // A member that starts, or was removed, does not say of which set it is.
    let is_member = hello.get_bool("isreplicaset").unwrap_or(false);
    match (&address.repl_set_name, hello.get_str("setName").ok()) {
        (Some(asked), Some(set)) if asked != set => {
            return Some(format!(
                "the address asks for the replica set `{asked}`, and the server at {host} is of `{set}`: write \
                 replicaSet={set}, or leave it out"
            ));
        }
        (Some(asked), None) if !is_member => {
            return Some(format!(
                "the address asks for the replica set `{asked}`, and the server at {host} is of none: leave \
                 replicaSet out"
            ));
        }
        _ => {}
    }
    let named = ["hosts", "passives"].into_iter().filter_map(|field| hello.get_array(field).ok()).flatten();
    let named: Vec<_> = named.filter_map(|name| ServerAddress::parse(name.as_str()?).ok()).collect();
    if named.contains(host) || address.direct_connection == Some(true) {
        return None;
    }
    Some(format!(
        "{}, which the server at {host} names as its address: add directConnection=true to the address, or start the \
         server with `--advertise` and a name that is known here",
        silence(&named.iter().map(ServerAddress::to_string).collect::<Vec<_>>())?
    ))
}

impl DriverBackend {
    /// Prepares a connection; the first call opens it. The database is the one given, else the address's, else
    /// [`DEFAULT_DATABASE`].
    pub async fn connect(uri: &str, database: Option<&str>, app_name: &str) -> BackendResult<Self> {
        let mut options = ClientOptions::parse(uri).await.map_err(convert)?;
        options.app_name.get_or_insert_with(|| app_name.to_owned());
        options.server_selection_timeout.get_or_insert(CALL_LIMIT);
        options.connect_timeout.get_or_insert(Duration::from_secs(5));
        options.max_pool_size.get_or_insert(POOL_MAX);
        let name = database.or(options.default_database.as_deref()).unwrap_or(DEFAULT_DATABASE).to_owned();
        let address = Some(Arc::new(options.clone()));
        let servers = Servers::default();
        let noting = servers.clone();
        options.sdam_event_handler = Some(EventHandler::callback(move |event| noting.note(&event)));
        let client = Client::with_options(options).map_err(convert)?;
        Ok(Self { database: client.database(&name), address, servers, knowledge: Arc::default() })
    }

    /// Waits until a server can be used, for at most `limit`; while servers answer and none of them is a primary, as in an
    /// election, for half a minute at least. Then the error is [`Transient`](BackendErrorKind::Transient), and says who does
    /// not answer and why. What a server that was reached refuses is an error at once, and soon that all that answer cannot
    /// be used as the address says.
    pub async fn reach(&self, limit: Duration) -> BackendResult<()> {
        let ping = async {
            while let Err(error) = self.database.run_command(doc! { "ping": 1 }).await.map_err(convert) {
                if !error.is_transient() {
                    return Err(error);
                }
                tokio::time::sleep(REACH_PAUSE).await;
            }
            Ok(())
        };
        let late = async {
            tokio::time::sleep(limit).await;
            let answering = self.servers.0.borrow().values().any(|seen| *seen == Seen::Answering);
            if answering && limit < CALL_LIMIT {
                tracing::warn!("{}; waiting for one", obstacle(&self.servers.0.borrow()));
                tokio::time::sleep(CALL_LIMIT - limit).await;
            }
            BackendError::new(BackendErrorKind::Transient, obstacle(&self.servers.0.borrow()))
        };
        tokio::select! {
            reply = ping => reply,
            error = self.contradicted() => Err(error),
            error = late => Err(error),
        }
    }

    /// Returns when all servers of the address that answer cannot be used as it says, at two looks in succession: what a
    /// server says while it starts may not be so a moment later.
    async fn contradicted(&self) -> BackendError {
        let begin = tokio::time::Instant::now();
        let Some(address) = &self.address else { return std::future::pending().await };
        let (mut pause, mut before) = (ASK_FIRST, None);
        loop {
            tokio::time::sleep(std::mem::replace(&mut pause, ASK_AGAIN)).await;
            let ask = |host: &ServerAddress| {
                let host = host.clone();
                async move { Some((host.clone(), hello_of(address, &host).await?)) }
            };
            let answers = futures_util::future::join_all(address.hosts.iter().map(ask)).await;
            let answers: Vec<_> = answers.into_iter().flatten().collect();
            let enough = begin.elapsed() >= SILENT_AFTER;
            let found = contradiction(address, &answers, |named| {
                let servers = self.servers.0.borrow();
                silence(servers.iter().filter(|(address, _)| named.contains(address)), enough)
            });
            match found {
                Some(text) if before.as_ref() == Some(&text) => {
                    return BackendError::new(BackendErrorKind::Other, text);
                }
                found => before = found,
            }
        }
    }

    /// Uses a database handle of the application.
    pub fn new(database: Database) -> Self {
        Self { database, address: None, servers: Servers::default(), knowledge: Arc::default() }
    }

    fn collection(&self, name: &str) -> Collection<RawDocumentBuf> {
        self.database.collection(name)
    }

    /// Asks the server what it knows.
    async fn ask(&self) -> BackendResult<Knowledge> {
        let hello = self.database.run_command(doc! { "hello": 1 }).selection_criteria(primary());
        let hello = limited(hello.into_future()).await.map_err(LimitedError::into_backend)?;
        let levels = match hello.get_document("rockdove") {
            Ok(rockdove) if rockdove.get_i32("acks").is_ok_and(|version| version >= 1) => {
                if rockdove.get_bool("risk").unwrap_or(false) { Levels::All } else { Levels::WithoutRisk }
            }
            _ => Levels::Concerns,
        };
        let version = hello.get_i32("maxWireVersion").unwrap_or_default();
        let bulk = levels != Levels::Concerns || version >= BULK_WIRE_VERSION;
        let knowledge = Knowledge { levels, bulk };
        *self.knowledge.lock() = Some(knowledge);
        Ok(knowledge)
    }

    /// An insert at a level, by a server that knows so much.
    async fn insert_by(
        &self,
        levels: Levels,
        collection: &str,
        document: &Document,
        wish: Wish,
    ) -> BackendResult<Inserted> {
        match levels {
            Levels::All => self.insert_at(collection, document, wish).await,
            Levels::WithoutRisk if wish.level != Level::Risk => {
                self.insert_at(collection, document, wish).await
            }
            Levels::WithoutRisk if wish.or_stricter => {
                self.insert_at(collection, document, wish.without_risk()).await
            }
            Levels::Concerns if !wish.is_about_value() => {
                self.insert_concerned(collection, document, wish.level).await
            }
            Levels::Concerns if wish.or_stricter => {
                self.insert_concerned(collection, document, Level::QuorumSync).await
            }
            levels => {
                let why = match levels {
                    Levels::Concerns => "is no Rockdove and knows no value at risk",
                    _ => "has no risk policy (`rockdove serve --risk-cap`)",
                };
                let text = format!(
                    "the server {why}; allow a stricter level (`or_stricter`, `--or-stricter`) or ask for another"
                );
                Err(BackendError::new(BackendErrorKind::Unsupported, text))
            }
        }
    }

    /// An insert as Rockdove takes it: the command itself, because no driver's insert has the field. What a majority
    /// comes to is the server's own affair (`rockdove serve --majority`), so that it is asked for by that name as well.
    async fn insert_at(&self, collection: &str, document: &Document, wish: Wish) -> BackendResult<Inserted> {
        let mut asked = doc! { "ack": wish.level.name() };
        if let Some(value) = wish.value {
            asked.insert("value", i64::try_from(value).unwrap_or(i64::MAX));
        }
        let mut command = doc! { "insert": collection, "documents": [document], "rockdove": asked };
        if wish.level == Level::Replicated {
            command.insert("writeConcern", doc! { "w": "majority" });
        }
        let run = self.database.run_raw_command(encode(&command)?).selection_criteria(primary());
        let reply = limited(run.into_future()).await.map_err(|error| match error {
            LimitedError::Driver(error)
                if code_of(&error).is_some_and(|code| REFUSED_LEVEL.contains(&code)) =>
            {
                BackendError::new(BackendErrorKind::Unsupported, text_of(&error))
            }
            error => error.into_backend(),
        })?;
        let refused = reply.get_array("writeErrors").ok().and_then(|errors| errors.first()?.as_document());
        let refused = refused.map(|refused| {
            let kind = refused.get_i32("code").ok().and_then(kind_of_code).unwrap_or(BackendErrorKind::Other);
            BackendError::new(kind, refused.get_str("errmsg").unwrap_or("the insert was refused"))
        });
        // A duplicate may be this very message, which is then not acknowledged either.
        let is_there = refused.as_ref().is_none_or(|error| error.kind() == BackendErrorKind::DuplicateKey);
        if let (Ok(failed), true) = (reply.get_document("writeConcernError"), is_there) {
            let number = failed.get_i32("code").unwrap_or_default();
            let kind = kind_of_concern(number);
            return Err(BackendError::new(kind, failed.get_str("errmsg").unwrap_or("write concern error")));
        }
        let told = reply.get_document("rockdove").ok();
        let level = told.and_then(|told| told.get_str("ack").ok()?.parse().ok());
        let level: Level = level.ok_or_else(|| {
            BackendError::new(BackendErrorKind::Malformed, "the server does not say which level was reached")
        })?;
        let degraded = told.is_some_and(|told| told.get_bool("degraded").unwrap_or(true));
        Ok(Inserted { refused, level, degraded })
    }

    /// An insert with the write concern that promises as much as the level.
    async fn insert_concerned(
        &self,
        collection: &str,
        document: &Document,
        level: Level,
    ) -> BackendResult<Inserted> {
        let (concern, level) = concern_of(level);
        let collection = self.collection(collection);
        let action = collection.insert_one(encode(document)?).write_concern(concern);
        let refused = match limited(action.into_future()).await {
            Ok(_) => None,
            Err(LimitedError::Driver(error))
                if matches!(*error.kind, ErrorKind::Write(WriteFailure::WriteError(_))) =>
            {
                Some(convert(error))
            }
            Err(error) => return Err(error.into_backend()),
        };
        Ok(Inserted { refused, level, degraded: false })
    }
}

impl Backend for DriverBackend {
    fn insert<'a>(
        &'a self,
        collection: &'a str,
        documents: &'a [Document],
        durability: Durability,
    ) -> BoxFuture<'a, BackendResult<Vec<InsertFailure>>> {
        let concern = (durability == Durability::Majority).then(WriteConcern::majority);
        let collection = self.collection(collection);
        async move {
            let raw = documents.iter().map(encode).collect::<BackendResult<Vec<_>>>()?;
            let action =
                collection.insert_many(raw).ordered(false).optional(concern, |a, c| a.write_concern(c));
            match limited(action.into_future()).await {
                Ok(_) => Ok(Vec::new()),
                Err(LimitedError::Driver(error)) => insert_failures(error, documents.len()),
                Err(LimitedError::Late) => Err(BackendError::late()),
            }
        }
        .boxed()
    }

    fn insert_acked<'a>(
        &'a self,
        collection: &'a str,
        document: Document,
        wish: Wish,
    ) -> BoxFuture<'a, BackendResult<Inserted>> {
        async move {
            let known = *self.knowledge.lock();
            if let Some(known) = known {
                match self.insert_by(known.levels, collection, &document, wish).await {
                    // Nothing was done. The server may be another one than was asked, or know more since its restart.
                    Err(error) if error.kind() == BackendErrorKind::Unsupported => {}
                    result => return result,
                }
            }
            let known = self.ask().await?;
            self.insert_by(known.levels, collection, &document, wish).await
        }
        .boxed()
    }

    fn find<'a>(&'a self, collection: &'a str, find: Find) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        let collection = self.collection(collection);
        async move {
            let run = async move {
                let action = collection
                    .find(find.filter)
                    .limit(i64::try_from(find.limit).unwrap_or(i64::MAX))
                    .optional(find.sort, |a, sort| a.sort(sort))
                    .optional(find.projection, |a, projection| a.projection(projection))
                    .selection_criteria(primary());
                action.await?.try_collect::<Vec<RawDocumentBuf>>().await
            };
            limited(run).await.map_err(LimitedError::into_backend)?.iter().map(|raw| decode(raw)).collect()
        }
        .boxed()
    }

    fn count<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        let collection = self.collection(collection);
        async move {
            let action = collection.count_documents(filter).selection_criteria(primary());
            limited(action.into_future()).await.map_err(LimitedError::into_backend)
        }
        .boxed()
    }

    fn update_one<'a>(
        &'a self,
        collection: &'a str,
        filter: Document,
        update: Document,
        upsert: bool,
    ) -> BoxFuture<'a, BackendResult<Updated>> {
        let collection = self.collection(collection);
        async move {
            let action = collection.update_one(filter, update).upsert(upsert);
            let result = limited(action.into_future()).await.map_err(LimitedError::into_backend)?;
            Ok(Updated { matched: result.matched_count, modified: result.modified_count })
        }
        .boxed()
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, BackendResult<Claimed>> {
        async move {
            let known = *self.knowledge.lock();
            let known = match known {
                Some(known) => known,
                None => self.ask().await?,
            };
            if !known.bulk {
                let text = "the server cannot lock and mark in one call";
                return Err(BackendError::new(BackendErrorKind::Unsupported, text));
            }
            let Claim { locks, lock, collection, filter, update } = claim;
            let database = self.database.name();
            let mut command = doc! {
                "bulkWrite": 1,
                "ops": [
                    { "insert": 0, "document": lock },
                    { "update": 1, "filter": filter, "updateMods": update },
                ],
                "nsInfo": [
                    { "ns": format!("{database}.{locks}") },
                    { "ns": format!("{database}.{collection}") },
                ],
                "ordered": true,
            };
            if let Some(concern) = self.database.write_concern() {
                let concern = bson::serialize_to_bson(concern);
                let other = |error| BackendError::with_source(BackendErrorKind::Other, error);
                command.insert("writeConcern", concern.map_err(other)?);
            }
            let admin = self.database.client().database("admin");
            let run = admin.run_raw_command(encode(&command)?).selection_criteria(primary());
            match limited(run.into_future()).await.map_err(LimitedError::into_backend) {
                Ok(reply) => read_claim(&reply),
                Err(error) if error.is_transient() => Err(error),
                // It does not know the command after all, or does not let us use it.
                Err(error) => {
                    *self.knowledge.lock() = Some(Knowledge { bulk: false, ..known });
                    Err(BackendError::new(BackendErrorKind::Unsupported, error.to_string()))
                }
            }
        }
        .boxed()
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        let collection = self.collection(collection);
        async move {
            // One document by id is the common case, and the only kind of delete a driver may retry safely.
            let one = filter.contains_key("_id") && !matches!(filter.get("_id"), Some(Bson::Document(_)));
            let run = async move {
                let done = if one {
                    collection.delete_one(filter).await
                } else {
                    collection.delete_many(filter).await
                };
                done.map(|result| result.deleted_count)
            };
            limited(run).await.map_err(LimitedError::into_backend)
        }
        .boxed()
    }

    fn create_index<'a>(
        &'a self,
        collection: &'a str,
        index: &'a IndexDefinition,
    ) -> BoxFuture<'a, BackendResult<()>> {
        let collection = self.collection(collection);
        async move {
            let mut options = IndexOptions::default();
            options.name = Some(index.name.to_owned());
            options.expire_after = index.expire_after_seconds.map(|s| Duration::from_secs(s.into()));
            let model = IndexModel::builder().keys(index.keys.clone()).options(options).build();
            let action = collection.create_index(model);
            limited(action.into_future()).await.map_err(LimitedError::into_backend).map(drop)
        }
        .boxed()
    }

    fn indexes<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        async move {
            let run = async move {
                let command = doc! { "listIndexes": collection };
                self.database.run_cursor_command(command).await?.try_collect::<Vec<Document>>().await
            };
            match limited(run).await.map_err(LimitedError::into_backend) {
                Err(error) if error.kind() == BackendErrorKind::Missing => Ok(Vec::new()),
                result => result,
            }
        }
        .boxed()
    }

    fn watch<'a>(&'a self, scope: Scope<'a>, watch: Watch) -> BoxFuture<'a, BackendResult<Box<dyn Feed>>> {
        async move {
            let token = watch.resume_after.map(bson::deserialize_from_bson::<ResumeToken>).transpose();
            let token =
                token.map_err(|error| BackendError::with_source(BackendErrorKind::HistoryLost, error))?;
            let of_collection = match scope {
                Scope::Collection(name) => Some(self.database.collection::<Document>(name)),
                Scope::Database => None,
            };
            let action = of_collection.as_ref().map_or_else(|| self.database.watch(), Collection::watch);
            let action = action
                .pipeline(watch.pipeline)
                .resume_after(token)
                .max_await_time(watch.max_await)
                .batch_size(STREAM_BATCH)
                .selection_criteria(primary());
            let stream = limited(action.into_future()).await.map_err(LimitedError::into_backend)?;
            let feed = DriverFeed { stream: stream.with_type(), limit: watch.max_await + STREAM_GRACE };
            Ok(Box::new(feed) as Box<dyn Feed>)
        }
        .boxed()
    }

    fn collections<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, BackendResult<Vec<String>>> {
        async move {
            let action = self.database.list_collection_names();
            let mut names = limited(action.into_future()).await.map_err(LimitedError::into_backend)?;
            names.retain(|name| name.starts_with(prefix));
            Ok(names)
        }
        .boxed()
    }

    fn drop_collection<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<()>> {
        let collection = self.collection(collection);
        async move { limited(collection.drop().into_future()).await.map_err(LimitedError::into_backend) }
            .boxed()
    }

    fn describe(&self) -> Document {
        doc! { "backend": "mongodb driver", "database": self.database.name() }
    }

    fn lost(&self) -> BoxFuture<'_, BackendError> {
        async move {
            let mut servers = self.servers.0.subscribe();
            loop {
                // The sender lives in `self`, so waiting cannot fail.
                let _ = servers.wait_for(|servers| silence(servers, false).is_some()).await;
                let answer = servers.wait_for(|servers| silence(servers, false).is_none());
                let late = tokio::time::timeout(LOST_AFTER, answer).await.is_err();
                let silence = silence(&*self.servers.0.borrow(), false);
                if let Some(text) = silence.filter(|_| late) {
                    return BackendError::new(BackendErrorKind::Transient, text);
                }
            }
        }
        .boxed()
    }

    fn back(&self) -> BoxFuture<'_, ()> {
        async move {
            let mut servers = self.servers.0.subscribe();
            let _ = servers.wait_for(|servers| servers.values().any(|seen| *seen == Seen::Answering)).await;
        }
        .boxed()
    }

    /// Waits, for a while, until the driver has closed the cursors that were dropped; not for servers that do not answer.
    fn close(&self) -> BoxFuture<'_, ()> {
        let client = self.database.client().clone();
        async move {
            if silence(&*self.servers.0.borrow(), false).is_some() {
                return;
            }
            tokio::select! {
                _ = client.shutdown().into_future() => {}
                _ = self.lost() => {}
                () = tokio::time::sleep(CLOSE_LIMIT) => {}
            }
        }
        .boxed()
    }
}

/// What one server of an address says of itself, whatever the others are; `None` if it does not answer.
async fn hello_of(address: &ClientOptions, host: &ServerAddress) -> Option<Document> {
    let mut options = address.clone();
    options.hosts = vec![host.clone()];
    options.direct_connection = Some(true);
    options.repl_set_name = None;
    options.server_selection_timeout = Some(ASK_LIMIT);
    let client = Client::with_options(options).ok()?;
    let hello = async { client.database("admin").run_command(doc! { "hello": 1 }).await };
    let hello = tokio::time::timeout(ASK_LIMIT, hello).await.ok()?.ok();
    client.shutdown().immediate(true).await;
    hello
}

/// A change stream of the driver. The driver resumes it after network errors by itself.
struct DriverFeed {
    stream: ChangeStream<RawDocumentBuf>,
    limit: Duration,
}

impl Feed for DriverFeed {
    fn next(&mut self) -> BoxFuture<'_, BackendResult<Option<ChangeEvent>>> {
        async move {
            let reply = tokio::time::timeout(self.limit, self.stream.next_if_any()).await;
            let event = reply.map_err(|_| BackendError::late())?.map_err(convert)?;
            if event.is_none() && !self.stream.is_alive() {
                return Err(BackendError::new(BackendErrorKind::Transient, "the server closed the stream"));
            }
            Ok(event.map(|event| read_event(&event)))
        }
        .boxed()
    }

    fn resume_token(&self) -> Option<Bson> {
        self.stream.resume_token().and_then(|token| bson::serialize_to_bson(&token).ok())
    }
}

/// Reads an event without decoding more than it needs.
fn read_event(event: &RawDocument) -> ChangeEvent {
    let change = match event.get_str("operationType") {
        Ok("insert") => Change::Insert,
        Ok("update") => Change::Update,
        Ok("delete") => Change::Delete,
        Ok("lock_released") => Change::LockReleased,
        Ok("drop") => Change::Dropped,
        _ => Change::Other,
    };
    let namespace = event.get_document("ns").ok().and_then(|ns| ns.get_str("coll").ok());
    let collection = namespace.unwrap_or_default().to_owned();
    let key = event.get_document("documentKey").ok().and_then(|key| decode(key).ok());
    let id = key.and_then(|key| key.get("_id").and_then(MessageId::from_bson));
    let document = (change == Change::Insert).then(|| event.get_document("fullDocument").ok()).flatten();
    ChangeEvent { change, collection, id, document: document.and_then(|document| decode(document).ok()) }
}

/// Decodes a document after checking it.
fn decode(raw: &RawDocument) -> BackendResult<Document> {
    let malformed = |error: &dyn std::fmt::Display| {
        BackendError::new(BackendErrorKind::Malformed, format!("a stored document is not usable: {error}"))
    };
    rockdove_documents::check(raw.as_bytes()).map_err(|error| malformed(&error))?;
    Document::try_from(raw).map_err(|error| malformed(&error))
}

fn encode(document: &Document) -> BackendResult<RawDocumentBuf> {
    let other = |error| BackendError::with_source(BackendErrorKind::Other, error);
    RawDocumentBuf::from_bytes(document.to_vec().map_err(other)?).map_err(other)
}

/// The write concern that promises at least as much as a level, and the level that it comes to.
fn concern_of(level: Level) -> (WriteConcern, Level) {
    let mut concern = WriteConcern::majority();
    match level {
        Level::Async => {
            concern.w = Some(Acknowledgment::Nodes(1));
            (concern, Level::Async)
        }
        Level::Replicated | Level::ReplicatedOrSync => (concern, Level::Replicated),
        Level::Sync | Level::QuorumSync | Level::Risk => {
            concern.journal = Some(true);
            (concern, Level::QuorumSync)
        }
    }
}

fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(mongodb::options::ReadPreference::Primary)
}

enum LimitedError {
    Driver(Error),
    Late,
}

impl LimitedError {
    fn into_backend(self) -> BackendError {
        match self {
            Self::Driver(error) => convert(error),
            Self::Late => BackendError::late(),
        }
    }
}

async fn limited<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, LimitedError> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(result) => result.map_err(LimitedError::Driver),
        Err(_) => Err(LimitedError::Late),
    }
}

/// What a `bulkWrite` of a lock and a mark came to.
fn read_claim(reply: &Document) -> BackendResult<Claimed> {
    if let Ok(failed) = reply.get_document("writeConcernError")
        && let kind = kind_of_concern(failed.get_i32("code").unwrap_or_default())
        && kind == BackendErrorKind::Transient
    {
        return Err(BackendError::new(kind, failed.get_str("errmsg").unwrap_or("write concern error")));
    }
    let results = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    let result = |place: usize| results.as_ref().ok().and_then(|results| results.get(place)?.as_document());
    let Some(lock) = result(0) else {
        return Err(BackendError::new(BackendErrorKind::Malformed, "the server does not say what was done"));
    };
    match lock.get_i32("code").ok() {
        None => {
            let marked = result(1).is_some_and(|mark| mark.get_i32("n").is_ok_and(|count| count > 0));
            Ok(Claimed::Locked { marked })
        }
        Some(code) => match kind_of_code(code).unwrap_or(BackendErrorKind::Other) {
            BackendErrorKind::DuplicateKey => Ok(Claimed::Held),
            kind => Err(BackendError::new(kind, lock.get_str("errmsg").unwrap_or("the lock was refused"))),
        },
    }
}

/// Unordered inserts report each failed document; anything else failed as a whole. `count` documents were to be
/// inserted.
fn insert_failures(error: Error, count: usize) -> BackendResult<Vec<InsertFailure>> {
    let ErrorKind::InsertMany(many) = error.kind.as_ref() else { return Err(convert(error)) };
    let mut failures: Vec<_> = many.write_errors.iter().flatten().map(insert_failure).collect();
    if let Some(concern) = &many.write_concern_error {
        let whole = BackendError::new(kind_of_concern(concern.code), concern.message.clone());
        if whole.is_transient() || failures.is_empty() {
            return Err(whole);
        }
        // Those that were refused are not there, whatever became of the others.
        let refused: HashSet<_> = failures.iter().map(|failure| failure.index).collect();
        failures.extend((0..count).filter(|index| !refused.contains(index)).map(|index| {
            let error = BackendError::new(whole.kind(), concern.message.clone());
            InsertFailure { index, error }
        }));
    }
    if failures.is_empty() { Err(convert(error)) } else { Ok(failures) }
}

/// A write that took effect and was not acknowledged as asked for. An election may be over when it is tried again; a disk
/// that failed is not, nor is a copy that does not come there.
fn kind_of_concern(code: i32) -> BackendErrorKind {
    match kind_of_code(code) {
        Some(BackendErrorKind::Transient) => BackendErrorKind::Transient,
        _ => BackendErrorKind::NotAcknowledged,
    }
}

fn insert_failure(error: &mongodb::error::IndexedWriteError) -> InsertFailure {
    let kind = kind_of_code(error.code).unwrap_or(BackendErrorKind::Other);
    InsertFailure { index: error.index, error: BackendError::new(kind, error.message.clone()) }
}

fn convert(error: Error) -> BackendError {
    BackendError::new(kind_of(&error), text_of(&error))
}

/// What happened, in one line. The driver's own text of most errors is a dump of its structures.
fn text_of(error: &Error) -> String {
    let text = match error.kind.as_ref() {
        ErrorKind::Command(command) => command.message.clone(),
        ErrorKind::Write(WriteFailure::WriteError(write)) => write.message.clone(),
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => concern.message.clone(),
        ErrorKind::InsertMany(many) => {
            let of_concern = many.write_concern_error.as_ref().map(|concern| &concern.message);
            let first = || many.write_errors.iter().flatten().next().map(|write| &write.message);
            of_concern.or_else(first).cloned().unwrap_or_else(|| "an insert failed".to_owned())
        }
        ErrorKind::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            "connection refused".to_owned()
        }
        ErrorKind::Io(error) => error.to_string(),
        // The rest is the driver's whole view of all servers.
        ErrorKind::ServerSelection { message, .. } => {
            message.split(". Topology:").next().unwrap_or_default().to_owned()
        }
        kind => kind.to_string(),
    };
    text.lines().collect::<Vec<_>>().join(" ")
}

fn kind_of(error: &Error) -> BackendErrorKind {
    if let ErrorKind::Write(WriteFailure::WriteConcernError(concern)) = error.kind.as_ref() {
        return kind_of_concern(concern.code);
    }
    if let Some(kind) = code_of(error).and_then(kind_of_code) {
        return kind;
    }
    let retryable = ["RetryableWriteError", "RetryableError", "TransientTransactionError"]
        .into_iter()
        .any(|label| error.contains_label(label));
    match error.kind.as_ref() {
        _ if retryable => BackendErrorKind::Transient,
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } | ErrorKind::ServerSelection { .. } => {
            BackendErrorKind::Transient
        }
        ErrorKind::DnsResolve { .. } => BackendErrorKind::Transient,
        ErrorKind::MissingResumeToken => BackendErrorKind::HistoryLost,
        _ => BackendErrorKind::Other,
    }
}

fn code_of(error: &Error) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn events_are_read_as_far_as_needed() {
        let event = rawdoc! {"operationType": "insert", "ns": {"db": "d", "coll": "c"}, "documentKey": {"_id": 7},
        "fullDocument": {"_id": 7, "a": 1}};
        let read = read_event(&event);
        assert_eq!(read.collection, "c");
        assert_eq!((read.change, read.id), (Change::Insert, MessageId::from_bson(&Bson::from(7))));
        assert_eq!(read.document, Some(doc! {"_id": 7, "a": 1}));
        let pushed = read_event(&rawdoc! {"operationType": "lock_released", "lockCollection": "msg_lck"});
        assert_eq!((pushed.change, pushed.id), (Change::LockReleased, None));
        assert_eq!(read_event(&rawdoc! {"x": 1}).change, Change::Other);
    }

    #[test]
    fn concerns_promise_as_much_as_levels() {
        for level in Level::ALL {
            let (concern, reached) = concern_of(level);
            let journal = concern.journal == Some(true);
            let majority = concern.w == Some(Acknowledgment::Majority);
            assert_eq!(journal, level.stricter(Level::Risk) == level, "{level}");
            assert_eq!(majority, level != Level::Async, "{level}");
            assert_eq!(level.stricter(reached), reached, "{level} is not lowered");
        }
    }

    #[test]
    fn errors_are_one_line_and_no_dump() {
        let refused = Error::from(io::Error::from(io::ErrorKind::ConnectionRefused));
        assert_eq!(text_of(&refused), "connection refused");
        let other = Error::from(io::Error::other("two\nlines"));
        assert_eq!(text_of(&other), "two lines");
        assert_eq!(convert(other).kind(), BackendErrorKind::Transient);
    }

    #[tokio::test]
    async fn a_refused_connection_says_who_refuses() {
        // Nobody listens on a port that was free a moment ago.
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let uri = format!("mongodb://127.0.0.1:{port}/?directConnection=true");
        let backend = DriverBackend::connect(&uri, None, "test").await.unwrap();
        let error = backend.reach(Duration::from_millis(500)).await.unwrap_err();
        assert_eq!(error.to_string(), format!("no server answers at 127.0.0.1:{port} (connection refused)"));
        assert!(error.is_transient());
    }

    #[test]
    fn servers_are_silent_when_none_may_answer() {
        let check = |servers: &[(&str, Seen)], enough, expected: Option<&str>| {
            let servers: BTreeMap<_, _> =
                servers.iter().map(|(address, seen)| ((*address).to_owned(), seen.clone())).collect();
            assert_eq!(silence(&servers, enough).as_deref(), expected, "{servers:?}");
        };
        let failed = || Seen::Failed("refused".to_owned());
        check(&[], true, None);
        check(
            &[("a:1", failed()), ("b:2", failed())],
            false,
            Some("no server answers at a:1 (refused), b:2 (refused)"),
        );
        check(&[("a:1", failed()), ("b:2", Seen::Not)], false, None);
        check(
            &[("a:1", failed()), ("b:2", Seen::Not)],
            true,
            Some("no server answers at a:1 (refused), b:2"),
        );
        check(&[("a:1", failed()), ("b:2", Seen::Answering)], true, None);
    }

    #[test]
    fn servers_that_answer_without_a_primary_are_not_silent() {
        let servers =
            |all: &[Seen]| (0..).map(|n: usize| format!("a:{n}")).zip(all.iter().cloned()).collect();
        let failed = || Seen::Failed("refused".to_owned());
        assert_eq!(obstacle(&servers(&[failed(), Seen::Not])), "no server answers at a:0 (refused), a:1");
        assert_eq!(obstacle(&servers(&[failed(), Seen::Answering])), "servers answer, none is a primary yet");
        assert_eq!(obstacle(&servers(&[])), "no server answers in time");
    }

    #[test]
    fn a_server_that_was_removed_stays_so() {
        let servers = Servers::default();
        let address = ServerAddress::parse("a:1").unwrap();
        let event = || bson::deserialize_from_document(doc! { "address": "a:1" }).unwrap();
        let known = || servers.0.borrow().get("a:1").cloned();
        servers.hear(&address, Seen::Answering);
        assert_eq!(known(), None);
        servers.note(&SdamEvent::ServerOpening(event()));
        assert_eq!(known(), Some(Seen::Not));
        servers.hear(&address, Seen::Answering);
        assert_eq!(known(), Some(Seen::Answering));
        let event = bson::deserialize_from_document(doc! { "address": "a:1" }).unwrap();
        servers.note(&SdamEvent::ServerClosed(event));
        servers.hear(&address, Seen::Failed("refused".to_owned()));
        assert_eq!(known(), None);
    }

    /// Three servers of an address, each silent (`None`) or with its `hello`; parts of what is said.
    #[test]
    fn what_an_address_and_servers_say_is_compared() {
        let hosts = ["10.0.0.1", "[::1]:27017", "Bus3:2"].map(|host| ServerAddress::parse(host).unwrap());
        let check = |options: (Option<&str>, Option<bool>),
                     hellos: &[Option<Document>],
                     expected: &[&str]| {
            let mut address = ClientOptions::default();
            (address.repl_set_name, address.direct_connection) = (options.0.map(str::to_owned), options.1);
            let answers = hosts.iter().cloned().zip(hellos.iter().cloned());
            let answers: Vec<_> = answers.filter_map(|(host, hello)| Some((host, hello?))).collect();
            let silent = |named: &[String]| {
                let is_silent = named == ["bus1:27017"];
                is_silent.then(|| "no server answers at bus1:27017 (unknown host)".to_owned())
            };
            let text = contradiction(&address, &answers, silent);
            assert_eq!(text.is_some(), !expected.is_empty(), "{hellos:?}: {text:?}");
            for part in expected {
                assert!(text.as_ref().is_some_and(|text| text.contains(part)), "{part}: {text:?}");
            }
        };
        let of = |hosts: &[&str]| Some(doc! { "setName": "rs0", "hosts": hosts.to_vec() });
        let (named, here) = (of(&["BUS1"]), of(&["10.0.0.1:27017"]));
        let (none, starting) = (Some(doc! {}), Some(doc! { "isreplicaset": true }));
        let wrong = (Some("wrong"), None);
        let one = |hello: &Option<Document>| [hello.clone()];
        check((Some("rs0"), None), &one(&here), &[]);
        check((None, None), &one(&here), &[]);
        check((None, Some(true)), &one(&named), &[]);
        check((None, None), &one(&none), &[]);
        let of_rs0 = ["`wrong`", "10.0.0.1:27017 is of `rs0`", "replicaSet=rs0"];
        check(wrong, &one(&here), &of_rs0);
        check((Some("wrong"), Some(true)), &one(&here), &of_rs0);
        check(wrong, &one(&none), &["`wrong`", "of none"]);
        let by_name =
            ["at bus1:27017 (unknown host)", "10.0.0.1:27017 names", "directConnection=true", "--advertise"];
        for set in [None, Some("rs0")] {
            check((set, None), &one(&named), &by_name);
        }
        // Not initiated yet, or removed.
        check(wrong, &one(&starting), &[]);
        // Each that answers, and only those.
        check(wrong, &[here.clone(), None, none.clone()], &of_rs0);
        check(wrong, &[here.clone(), starting, none.clone()], &[]);
        let fits = Some(doc! { "setName": "wrong", "hosts": ["bus3:2"] });
        check(wrong, &[here.clone(), none, fits], &[]);
        // Names of one server may be written differently.
        check((None, None), &one(&of(&["10.0.0.1", "bus1"])), &[]);
        check((None, None), &[None, of(&["[0::1]"])], &[]);
        check((None, None), &[None, None, of(&["bUS3:2"])], &[]);
        let passive = Some(doc! { "setName": "rs0", "hosts": ["bus1"], "passives": ["10.0.0.1"] });
        check((None, None), &one(&passive), &[]);
        // Others that are named answer, or are not known to the driver.
        check((None, None), &one(&of(&["bus1", "bus2"])), &[]);
    }

    #[test]
    fn deep_documents_are_refused_not_decoded() {
        let mut deep = rawdoc! {};
        for _ in 0..5000 {
            deep = rawdoc! { "d": deep };
        }
        assert_eq!(decode(&deep).unwrap_err().kind(), BackendErrorKind::Malformed);
        let event = read_event(&rawdoc! {"operationType": "insert", "fullDocument": deep});
        assert!(event.document.is_none());
    }
}
