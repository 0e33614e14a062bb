//! From a request to its answer: the checks that every command passes, in their order, and the reply's envelope.
//!
//! 1. the request could be read; 2. the command exists; 3. its database is named; 4. the API version;
//! 5. session and transaction number; 6. the server is not stopping; 7. fail points; 8. the server's role;
//! 9. read and write concern; 10. the command itself, within `maxTimeMS` and until it is killed.

use crate::client::{Client, Operation};
use crate::codec::{Body, Request};
use crate::commands::{self, Flow, Run, Spec};
use crate::concern::{Asked, ReadConcern, WriteConcern};
use crate::errors::{self, Circumstances, Failure, Result, wrong_type};
use crate::failpoint::{self, Fault, Target};
use crate::session::SessionFields;
use crate::shared::{Counters, Shared, append_times};
use crate::topology::Role;
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::{Doc, DocBuilder, Error, RawDoc, Value, code};
use rockdove_engine::{Ack, Acked, Level, Receipt};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Room for a usual reply.
const REPLY_BYTES: usize = 512;

/// What is to be sent back.
#[derive(Debug)]
pub enum Answer {
    /// A document.
    Reply {
        /// Its bytes.
        body: Vec<u8>,
        /// Whether it says that the command failed.
        failed: bool,
        /// If a client that takes several answers shall get another: what the next one goes on from.
        more: Option<More>,
    },
    /// Nothing: the client does not wait any more.
    Nothing,
    /// Nothing: the connection is to be closed.
    Close,
}

/// Where the next answer to the same request goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct More {
    /// The counter of `topologyVersion` that the client was told.
    pub topology_counter: Option<i64>,
}

/// A command on its way through its handler.
pub struct Call<'a> {
    /// What all connections share.
    pub shared: &'a Arc<Shared>,
    /// Who asks.
    pub client: &'a Client,
    /// The command and the documents beside it.
    pub body: &'a Body,
    /// Its database.
    pub database: &'a str,
    /// The name it was called by.
    pub name: &'a str,
    /// Session and transaction number.
    pub session: SessionFields,
    /// When its write is acknowledged.
    pub write_concern: WriteConcern,
    /// What it asks for beside that.
    asked: Option<Asked>,
    /// Both together.
    level: Level,
    /// How current its read is.
    pub read_concern: ReadConcern,
    /// When it must be done.
    pub deadline: Option<Instant>,
    /// Its number, as `currentOp` shows it.
    operation: i64,
    /// If an answer was given before: where to go on.
    pub previous: Option<More>,
    /// Whether the client takes several answers.
    pub exhaust: bool,
    /// How lasting its write is, once that is known.
    lasting: OnceLock<Lasting>,
}

/// How lasting a write is that was carried out.
#[derive(Debug)]
enum Lasting {
    /// It was acknowledged.
    Acked(Acked),
    /// The log has failed.
    Failed(Error),
    /// The `wtimeout` was over before.
    TimedOut,
}

impl<'a> Call<'a> {
    /// When the engine acknowledges its write. With a `wtimeout` the wait comes afterwards ([`Call::settle`]), so that
    /// what was done is known when the time is over.
    pub fn ack(&self) -> Ack {
        let value = self.asked.and_then(|asked| asked.value).unwrap_or(0);
        Ack { level: self.level, value, deferred: self.write_concern.timeout.is_some() }
    }

    /// Notes how lasting its write is, for the reply; waits for what is still owed, within `wtimeout`.
    pub async fn settle(&self, receipt: &Receipt) -> Result<()> {
        let acked = match (receipt.owed, self.write_concern.timeout) {
            (None, _) => receipt.acked.clone(),
            (Some(owed), None) => self.shared.engine.settle(owed).await,
            (Some(owed), Some(limit)) => {
                match tokio::time::timeout(limit, self.shared.engine.settle(owed)).await {
                    Ok(acked) => acked,
                    Err(_) => {
                        self.note(Lasting::TimedOut);
                        return Ok(());
                    }
                }
            }
        };
        match acked {
            Ok(acked) => self.note(Lasting::Acked(acked)),
            Err(error) if error.code == code::WRITE_CONCERN_FAILED => self.note(Lasting::Failed(error)),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The first to be noted is that of the command's one write.
    fn note(&self, lasting: Lasting) {
        let _ = self.lasting.set(lasting); // a command has one write
    }

    /// What long work for it asks, on whatever thread.
    pub fn interrupt(&self) -> Interrupt {
        self.client.interrupt_of(self.operation, self.deadline)
    }

    /// The command document.
    pub fn command(&self) -> RawDoc<'a> {
        self.body.command.raw()
    }
}

/// The error of a command that took longer than it may.
pub fn time_is_over() -> Failure {
    Failure::new(code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit")
}

/// Carries out a request's command and makes its reply.
pub async fn dispatch(
    shared: &Arc<Shared>,
    client: &Client,
    request: &Request,
    previous: Option<More>,
) -> Answer {
    let mut circumstances = Circumstances::default();
    let outcome = match &request.body {
        Ok(body) => run(shared, client, request, body, previous, &mut circumstances).await,
        Err(error) => Err(error.clone().into()),
    };
    if let (Err(failure), true) = (&outcome, request.flags.more_to_come()) {
        tracing::debug!(client = client.id, error = %failure.error, "an unacknowledged command failed");
    }
    match outcome {
        Ok((reply, more)) => Answer::Reply { body: seal(shared, reply), failed: false, more },
        Err(Failure { close: true, .. }) => Answer::Close,
        Err(failure) => {
            Counters::add(&shared.counters.failed, 1);
            let mut reply = DocBuilder::with_capacity(REPLY_BYTES);
            if request.is_query {
                reply.append("$err", &failure.error.message);
            }
            errors::append_failure(&mut reply, &failure, circumstances);
            if let Some(error) = unsatisfiable(request) {
                errors::append_write_concern_error(&mut reply, &error, false);
            }
            append_topology(shared, &mut reply, failure.error.code.number);
            append_times(&mut reply, shared.operation_time());
            Answer::Reply { body: reply.into_vec(), failed: true, more: None }
        }
    }
}

/// What of a write's concern no server state can satisfy: told beside whatever else went wrong.
fn unsatisfiable(request: &Request) -> Option<Error> {
    let command = request.body.as_ref().ok()?.command.raw();
    let spec = commands::find(command.iter().next()?.key())?;
    commands::writes(spec, command).then(|| WriteConcern::parse(command).ok()?.unsatisfiable)?
}

/// Errors about the server's role say since which change of it they hold, so that clients can tell old news.
fn append_topology(shared: &Shared, reply: &mut DocBuilder, number: i32) {
    const ABOUT_THE_ROLE: [i32; 6] = [189, 10058, 10107, 11602, 13435, 13436];
    if ABOUT_THE_ROLE.contains(&number) {
        shared.topology.append_version(reply);
    }
}

/// Adds the fields that end every good reply.
fn seal(shared: &Shared, mut reply: DocBuilder) -> Vec<u8> {
    reply.append("ok", 1.0);
    append_times(&mut reply, shared.operation_time());
    reply.into_vec()
}

async fn run(
    shared: &Arc<Shared>,
    client: &Client,
    request: &Request,
    body: &Body,
    previous: Option<More>,
    circumstances: &mut Circumstances,
) -> Result<(DocBuilder, Option<More>)> {
    let command = body.command.raw();
    let name = command.iter().next().map_or("", |first| first.key());
    let spec = commands::find(name)
        .filter(|spec| spec.exists(&shared.identity))
        .ok_or_else(|| Failure::new(code::COMMAND_NOT_FOUND, format!("no such command: '{name}'")))?;
    if request.is_query && !spec.has(Spec::HANDSHAKE) {
        let message =
            format!("Unsupported OP_QUERY command: {name}. The client driver may require an upgrade.");
        return Err(Failure::location(5_739_101, message));
    }
    let database = database(body, spec)?;
    check_api_version(command, spec)?;
    let session = SessionFields::parse(command, name, spec.has(Spec::RETRYABLE))?;
    *circumstances = Circumstances {
        retryable_write: session.transaction_number.is_some() && !session.in_transaction,
        in_transaction: session.in_transaction,
        ends_transaction: spec.has(Spec::ENDS_TRANSACTION),
        change_stream: commands::opens_change_stream(spec, body),
    };
    if shared.topology.state().role == Role::Stopping {
        // After the circumstances, because the labels are what makes drivers try again.
        circumstances.change_stream |= commands::reads_change_stream(spec, body, shared);
        return Err(stopping(shared));
    }
    if let Some(id) = session.session {
        shared.sessions.touch(id, Instant::now())?;
    }
    if let (true, Some(Value::Document(metadata))) = (spec.has(Spec::HANDSHAKE), command.get("client")) {
        client.introduce(metadata); // before fail points, which may ask for the application's name
    }
    let fault = fail(shared, client, spec, body, database).await?;
    circumstances.change_stream |= commands::reads_change_stream(spec, body, shared);
    check_role(shared, spec, command)?;
    check_transaction(&session, spec)?;
    let write_concern = concern(commands::writes(spec, command), || WriteConcern::parse(command))?;
    let write_concern = write_concern.with_majority(shared.identity.majority);
    let asked = asked(spec, command)?;
    let level = asked.map_or(Ok(write_concern.level), |asked| asked.with(&write_concern))?;
    let call = Call {
        shared,
        client,
        body,
        database,
        name,
        session,
        write_concern,
        asked,
        level,
        read_concern: concern(spec.has(Spec::READ | Spec::WRITE), || {
            ReadConcern::parse(command, spec.has(Spec::SNAPSHOT))
        })?,
        deadline: deadline(command, spec)?,
        operation: shared.clients.next_operation(),
        previous,
        exhaust: request.flags.exhaust_allowed(),
        lasting: OnceLock::new(),
    };
    check_cluster_time(&call)?;
    if max_time(command)?.is_some() && shared.fail_points.on_time_limit() {
        return Err(time_is_over());
    }
    let mut reply = DocBuilder::with_capacity(REPLY_BYTES);
    let more = perform(&call, spec, &mut reply).await?;
    append_acked(&mut reply, &call);
    append_write_concern(&mut reply, &call, fault, *circumstances);
    Ok((reply, more))
}

/// What a write asks for beside its concern. Other commands do not know the field.
fn asked(spec: &Spec, command: RawDoc<'_>) -> Result<Option<Asked>> {
    if spec.has(Spec::WRITE) {
        return Asked::parse(command);
    }
    match command.get(Asked::FIELD) {
        None => Ok(None),
        Some(_) => {
            let message = format!("BSON field '{}.{}' is an unknown field.", spec.name, Asked::FIELD);
            Err(Failure::location(40415, message))
        }
    }
}

fn concern<T: Default>(applies: bool, parse: impl FnOnce() -> Result<T>) -> Result<T> {
    if applies { parse() } else { Ok(T::default()) }
}

/// Runs the handler; what waits can be ended by time and by `killOp`.
async fn perform(call: &Call<'_>, spec: &Spec, reply: &mut DocBuilder) -> Result<Option<More>> {
    commands::count(spec, &call.shared.counters);
    let id = call.operation;
    let namespace = failpoint::namespace(call.body, call.database);
    let command = call.body.command.clone();
    let _running = call.client.start(Operation { id, command, namespace, since: Instant::now() });
    let result = match spec.run {
        Run::Now(handler) => handler(call, reply).map(|()| Flow::Done),
        Run::Later(handler) => {
            let late = async {
                match call.deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            // Who waits for news hears that there will be none, before the connection is cut.
            let stops = async {
                let mut topology = call.shared.topology.watch();
                let _ = topology.wait_for(|state| state.role == Role::Stopping).await; // the sender lives in `shared`
            };
            tokio::select! {
                biased;
                result = handler(call, reply) => result,
                () = call.client.interrupted() => {
                    Err(Failure::new(code::INTERRUPTED, "operation was interrupted"))
                }
                () = late => Err(time_is_over()),
                () = stops, if spec.has(Spec::WAITS) => Err(stopping(call.shared)),
            }
        }
    };
    Ok(match result? {
        Flow::Done => None,
        Flow::More(more) => Some(more),
    })
}

fn database<'b>(body: &'b Body, spec: &Spec) -> Result<&'b str> {
    let database = match body.command.raw().get("$db") {
        Some(Value::String(database)) => database,
        Some(other) => {
            let actual = other.kind().alias();
            let message = format!("BSON field '$db' is the wrong type '{actual}', expected type 'string'");
            return Err(Failure::new(code::TYPE_MISMATCH, message));
        }
        None => body
            .database
            .as_deref()
            .ok_or_else(|| Failure::location(40571, "OP_MSG requests require a $db argument"))?,
    };
    if database == "$external" {
        return Ok(database);
    }
    rockdove_engine::check_database(database)?;
    if spec.has(Spec::ADMIN) && database != "admin" {
        let message = format!("{} may only be run against the admin database.", spec.name);
        return Err(Failure::new(code::UNAUTHORIZED, message));
    }
    Ok(database)
}

/// The answer to every command while the server stops.
pub fn stopping(shared: &Shared) -> Failure {
    let mut details = DocBuilder::new();
    shared.topology.append_version(&mut details);
    Failure::new(code::SHUTDOWN_IN_PROGRESS, "The server is shutting down").with_details(details.finish())
}

/// Checks `apiVersion`, `apiStrict` and `apiDeprecationErrors` (MongoDB manual: Stable API).
fn check_api_version(command: RawDoc<'_>, spec: &Spec) -> Result<()> {
    use rockdove_documents::Code;
    let version = command.get("apiVersion");
    let strict = command.get("apiStrict");
    for name in ["apiStrict", "apiDeprecationErrors"] {
        match command.get(name) {
            None | Some(Value::Bool(_)) => {}
            Some(other) => return Err(wrong_type(name, other, "bool")),
        }
    }
    match version {
        None if strict.is_some() || command.get("apiDeprecationErrors").is_some() => Err(Failure::new(
            code::FAILED_TO_PARSE,
            "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion",
        )),
        None => Ok(()),
        Some(Value::String("1")) if strict == Some(Value::Bool(true)) && !spec.has(Spec::API_V1) => {
            let message =
                format!("Provided apiStrict:true, but the command {} is not in API Version 1", spec.name);
            Err(Failure::new(Code { number: 323, name: "APIStrictError" }, message))
        }
        Some(Value::String("1")) => Ok(()),
        Some(Value::String(_)) => {
            Err(Failure::new(Code { number: 322, name: "APIVersionError" }, "API version must be \"1\""))
        }
        Some(other) => Err(wrong_type("apiVersion", other, "string")),
    }
}

/// Lets `failCommand` strike: waits, fails, or leaves the rest of the fault for later.
async fn fail(
    shared: &Shared,
    client: &Client,
    spec: &Spec,
    body: &Body,
    database: &str,
) -> Result<Option<Fault>> {
    if !shared.fail_points.any() {
        return Ok(None);
    }
    let namespace = failpoint::namespace(body, database);
    let called = body.command.raw().iter().next().map_or("", |first| first.key());
    let struck =
        [spec.name, called].into_iter().take(if spec.name == called { 1 } else { 2 }).find_map(|name| {
            let target = Target { command: name, namespace: &namespace, app_name: client.app_name() };
            shared.fail_points.on_command(target)
        });
    let Some(fault) = struck else { return Ok(None) };
    if let Some(block) = fault.block {
        tokio::time::sleep(block).await;
    }
    match fault.failure {
        Some(failure) => Err(failure),
        None => Ok(Some(fault)),
    }
}

fn check_role(shared: &Shared, spec: &Spec, command: RawDoc<'_>) -> Result<()> {
    use rockdove_documents::Code;
    if shared.topology.state().role == Role::Primary {
        return Ok(());
    }
    if spec.has(Spec::WRITE) {
        return Err(Failure::new(code::NOT_WRITABLE_PRIMARY, "not primary"));
    }
    let mode = command.get("$readPreference").and_then(|preference| preference.as_document()?.get("mode"));
    if spec.has(Spec::READ) && matches!(mode, None | Some(Value::String("primary"))) {
        let code = Code { number: 13435, name: "NotPrimaryNoSecondaryOk" };
        return Err(Failure::new(code, "not primary and secondaryOk=false"));
    }
    Ok(())
}

/// Multi-document transactions are not there: their statements are refused, never run outside of one.
fn check_transaction(session: &SessionFields, spec: &Spec) -> Result<()> {
    if spec.has(Spec::ENDS_TRANSACTION) {
        return Err(Failure::new(
            code::NO_SUCH_TRANSACTION,
            "Given transaction number does not match any in-progress transactions.",
        ));
    }
    if session.in_transaction {
        return Err(Failure::new(
            code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Multi-document transactions are not supported by this server",
        ));
    }
    Ok(())
}

/// The moment a command must be done by; commands that wait for news read `maxTimeMS` themselves.
fn deadline(command: RawDoc<'_>, spec: &Spec) -> Result<Option<Instant>> {
    if spec.has(Spec::WAITS) {
        return Ok(None);
    }
    let milliseconds = max_time(command)?;
    Ok(milliseconds.map(|milliseconds| Instant::now() + Duration::from_millis(milliseconds)))
}

/// Reads `maxTimeMS`; 0 means no limit.
pub fn max_time(command: RawDoc<'_>) -> Result<Option<u64>> {
    let Some(value) = command.get("maxTimeMS").filter(|value| *value != Value::Null) else { return Ok(None) };
    let integer = match value.as_integer() {
        Some(integer) => integer,
        None if value.is_number() => {
            return Err(Failure::new(code::BAD_VALUE, "'maxTimeMS' must have an integral value"));
        }
        None => {
            let actual = value.kind().alias();
            let message = format!(
                "BSON field 'maxTimeMS' is the wrong type '{actual}', expected types '[long, int, decimal, double]'"
            );
            return Err(Failure::new(code::TYPE_MISMATCH, message));
        }
    };
    match u64::try_from(integer) {
        Ok(milliseconds) if milliseconds <= i32::MAX as u64 => Ok(Some(milliseconds).filter(|ms| *ms > 0)),
        _ => Err(Failure::new(code::BAD_VALUE, format!("{integer} value for maxTimeMS is out of range"))),
    }
}

/// `afterClusterTime` names a time that was given out; on the one node that is always visible already.
fn check_cluster_time(call: &Call<'_>) -> Result<()> {
    match call.read_concern.after {
        Some(after) if after > call.shared.operation_time() => Err(Failure::new(
            code::INVALID_OPTIONS,
            "readConcern afterClusterTime value must not be greater than the current clusterTime",
        )),
        _ => Ok(()),
    }
}

fn append_write_concern(
    reply: &mut DocBuilder,
    call: &Call<'_>,
    fault: Option<Fault>,
    circumstances: Circumstances,
) {
    if let Some((error, labels)) = fault.and_then(|fault| fault.write_concern_error) {
        append_chosen_error(reply, &error, labels, circumstances);
        let number = error.get("code").and_then(|number| number.as_integer()).unwrap_or(0);
        append_topology(call.shared, reply, number as i32);
    } else if let Some(Lasting::TimedOut) = call.lasting.get() {
        let error = Error::new(code::WRITE_CONCERN_FAILED, "waiting for the disk timed out");
        errors::append_write_concern_error(reply, &error, true);
    } else if let Some(Lasting::Failed(error)) = call.lasting.get() {
        errors::append_write_concern_error(reply, error, false);
    } else if let Some(error) = &call.write_concern.unsatisfiable {
        errors::append_write_concern_error(reply, error, false);
    }
}

/// Says what was reached, to who asked for a level.
fn append_acked(reply: &mut DocBuilder, call: &Call<'_>) {
    if let (Some(_), Some(Lasting::Acked(acked))) = (call.asked, call.lasting.get()) {
        reply.start_document(Asked::FIELD);
        reply.append("ack", acked.level.name()).append("degraded", acked.degraded).end();
    }
}

/// The write concern error that a fail point chose, as it was given.
fn append_chosen_error(
    reply: &mut DocBuilder,
    error: &Doc,
    labels: Option<Vec<String>>,
    circumstances: Circumstances,
) {
    let number = error.get("code").and_then(|number| number.as_integer()).unwrap_or(0) as i32;
    reply.start_document("writeConcernError");
    for element in error.raw().iter().filter(|element| element.key() != "errorLabels") {
        reply.append_element(element);
    }
    reply.end();
    let labels: Vec<Cow<'_, str>> = match labels {
        Some(labels) => labels.into_iter().map(Cow::Owned).collect(),
        None => errors::labels(number, circumstances).into_iter().map(Cow::Borrowed).collect(),
    };
    errors::append_labels(reply, &labels);
}
