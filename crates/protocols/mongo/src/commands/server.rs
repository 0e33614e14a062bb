//! The server itself: parameters, status, log, operations, its end.

use super::{Flow, LaterIn, Spec};
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::shared::{Counters, now_ms};
use rockdove_documents::{Doc, DocBuilder, Error, RawDoc, Value, code};

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::now("serverStatus", 0, server_status),
    Spec::now("getCmdLineOpts", Spec::ADMIN | Spec::OPEN, command_line),
    Spec::now("getParameter", Spec::ADMIN, get_parameter),
    Spec::now("setParameter", Spec::ADMIN, set_parameter),
    Spec::now("getLog", Spec::ADMIN, get_log),
    Spec::now("hostInfo", 0, host_info),
    Spec::now("currentOp", Spec::ADMIN, current_op),
    Spec::now("killOp", Spec::ADMIN, kill_op),
    Spec::now("getDefaultRWConcern", Spec::ADMIN, default_concern),
    Spec::now("profile", 0, profile),
    Spec::now("top", Spec::ADMIN, top),
    Spec::now("features", 0, features),
    Spec::later("fsync", Spec::ADMIN, fsync),
    Spec::now("shutdown", Spec::ADMIN, shutdown),
];

fn server_status(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let shared = call.shared;
    let uptime = shared.started.elapsed();
    reply.append("host", &shared.identity.advertised).append("version", shared.identity.version_text());
    reply.append("process", "mongod").append("pid", i64::from(std::process::id()));
    reply.append("uptime", uptime.as_secs_f64()).append("uptimeMillis", uptime.as_millis() as i64);
    reply.append("uptimeEstimate", uptime.as_secs() as i64).append_date("localTime", now_ms());
    append_asserts(reply, &shared.counters);
    reply.start_document("connections");
    let (current, max) = (shared.clients.count(), shared.identity.connections_max);
    reply.append("current", current as i32).append("available", max.saturating_sub(current) as i32);
    reply.append("totalCreated", shared.clients.total() as i64);
    reply.append("rejected", Counters::get(&shared.counters.connections_rejected) as i64).end();
    append_traffic(reply, &shared.counters);
    append_cursors(reply, call);
    super::replication::append_status(reply, call);
    super::statistics::append_engine(reply, call);
    Ok(())
}

fn append_asserts(reply: &mut DocBuilder, counters: &Counters) {
    reply.start_document("asserts").append("regular", 0).append("warning", 0).append("msg", 0);
    reply.append("user", Counters::get(&counters.failed) as i64).append("rollovers", 0).end();
}

fn append_traffic(reply: &mut DocBuilder, counters: &Counters) {
    reply.start_document("network");
    reply.append("bytesIn", Counters::get(&counters.bytes_in) as i64);
    reply.append("bytesOut", Counters::get(&counters.bytes_out) as i64);
    reply.append("numRequests", Counters::get(&counters.requests) as i64).end();
    reply.start_document("opcounters");
    for (name, counter) in [
        ("insert", &counters.insert),
        ("query", &counters.query),
        ("update", &counters.update),
        ("delete", &counters.delete),
        ("getmore", &counters.getmore),
        ("command", &counters.command),
    ] {
        reply.append(name, Counters::get(counter) as i64);
    }
    reply.end();
}

fn append_cursors(reply: &mut DocBuilder, call: &Call<'_>) {
    let shared = call.shared;
    let idle = shared.cursors.idle();
    let (total, lasting) =
        (shared.cursors.count(), idle.iter().filter(|(_, binding)| binding.no_timeout).count());
    reply.start_document("metrics").start_document("cursor").start_document("open");
    reply.append("total", total as i64).append("noTimeout", lasting as i64);
    reply.append("pinned", (total - idle.len().min(total)) as i64).end().end().end();
    reply.start_document("logicalSessionRecordCache");
    reply.append("activeSessionsCount", shared.sessions.count() as i32).end();
}

fn command_line(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.start_array("argv");
    for argument in &call.shared.arguments {
        reply.push(argument);
    }
    reply.end();
    reply.start_document("parsed").start_document("replication");
    reply.append("replSet", &call.shared.identity.set_name).end();
    if call.shared.identity.test_commands {
        reply.start_document("setParameter").append("enableTestCommands", "1").end();
    }
    reply.end();
    Ok(())
}

/// The parameters that can be asked for.
fn parameters(call: &Call<'_>) -> Doc {
    let identity = &call.shared.identity;
    let mut all = DocBuilder::new();
    all.start_array("authenticationMechanisms").end();
    all.append("cursorTimeoutMillis", crate::cursors::CURSOR_IDLE.as_millis() as i64);
    all.append("enableTestCommands", identity.test_commands);
    let [major, minor, _] = identity.version;
    all.start_document("featureCompatibilityVersion").append("version", format!("{major}.{minor}")).end();
    all.append("localLogicalSessionTimeoutMinutes", 30).append("logLevel", 0);
    all.append("maxSessions", crate::session::SESSIONS_MAX as i32).append("notablescan", false);
    all.append("quiet", false).append("requireApiVersion", false);
    all.append("transactionLifetimeLimitSeconds", 60);
    all.finish()
}

fn get_parameter(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let (all, before) = (parameters(call), reply.size());
    let every = match call.command().get("getParameter") {
        Some(Value::String("*")) => true,
        Some(Value::Document(options)) => options.get("allParameters") == Some(Value::Bool(true)),
        _ => false,
    };
    for parameter in all.raw() {
        if every || call.command().element(parameter.key()).is_some() {
            reply.append_element(parameter);
        }
    }
    if reply.size() == before {
        return Err(Failure::new(code::INVALID_OPTIONS, "no option found to get"));
    }
    Ok(())
}

/// Parameters are fixed here: setting one to the value that it has is all that can be granted.
fn set_parameter(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let all = parameters(call);
    let asked: Vec<_> = options(call.command()).collect();
    let Some((name, value)) = asked.first().copied() else {
        return Err(Failure::new(
            code::INVALID_OPTIONS,
            "no option found to set, use help:true to see options",
        ));
    };
    let Some(current) = all.get(name) else {
        let message =
            format!("attempted to set unrecognized parameter [{name}], use help:true to see options ");
        return Err(Failure::new(code::INVALID_OPTIONS, message));
    };
    if rockdove_documents::compare::compare(current, value).is_ne() {
        let message = format!("not allowed to change [{name}] at runtime");
        return Err(Failure::new(code::ILLEGAL_OPERATION, message));
    }
    reply.append_value("was", current);
    Ok(())
}

/// A command's own fields: all but the first and those that every command may have.
fn options(command: RawDoc<'_>) -> impl Iterator<Item = (&str, Value<'_>)> {
    const GENERIC: [&str; 7] =
        ["lsid", "comment", "maxTimeMS", "writeConcern", "apiVersion", "apiStrict", "apiDeprecationErrors"];
    let fields = command.iter().skip(1).map(|element| (element.key(), element.value()));
    fields.filter(|(name, _)| !name.starts_with('$') && !GENERIC.contains(name))
}

fn get_log(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    match call.command().get("getLog") {
        Some(Value::String("*")) => {
            reply.start_array("names").push("global").push("startupWarnings").end();
        }
        // No line is kept: logs are on standard error. Clients such as mongosh ask at every start.
        Some(Value::String("global" | "startupWarnings")) => {
            reply.append("totalLinesWritten", 0).start_array("log").end();
        }
        Some(Value::String(name)) => {
            return Err(Failure::new(code::OPERATION_FAILED, format!("no RecentEntries named: {name}")));
        }
        _ => return Err(Error::type_mismatch("Argument to getLog must be of type String").into()),
    }
    Ok(())
}

fn host_info(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    reply.start_document("system").append_date("currentTime", now_ms());
    reply.append("hostname", &call.shared.identity.advertised).append("cpuAddrSize", 64);
    reply.append("numCores", cores as i32).append("cpuArch", std::env::consts::ARCH).end();
    reply.start_document("os").append("type", std::env::consts::OS).append("name", "").end();
    reply.start_document("extra").end();
    Ok(())
}

fn current_op(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.start_array("inprog");
    for operation in operations(call) {
        reply.push(operation);
    }
    reply.end();
    Ok(())
}

/// What runs at the moment, a document an operation (also `$currentOp`).
pub fn operations(call: &Call<'_>) -> Vec<Doc> {
    let clients = call.shared.clients.list();
    let running = clients.iter().filter_map(|client| Some((client, client.running()?)));
    running
        .map(|(client, operation)| {
            let mut doc = DocBuilder::new();
            let elapsed = operation.since.elapsed();
            let name = operation.command.raw().iter().next().map_or("", |first| first.key());
            let op = if name == "getMore" { "getmore" } else { "command" };
            doc.append("type", "op").append("host", &call.shared.identity.advertised);
            doc.append("desc", format!("conn{}", client.id)).append("connectionId", client.id);
            doc.append("client", client.peer.to_string()).append("appName", client.app_name());
            doc.append("active", true).append("opid", operation.id).append("op", op);
            doc.append("ns", &operation.namespace).append("secs_running", elapsed.as_secs() as i64);
            doc.append("microsecs_running", elapsed.as_micros() as i64);
            doc.append("command", visible(&operation.command)).append("waitingForLock", false);
            doc.finish()
        })
        .collect()
}

/// The command without what must not be seen (credentials) and without bulk.
fn visible(command: &Doc) -> Doc {
    const SECRET: [&str; 6] =
        ["payload", "pwd", "password", "key", "digestPassword", "speculativeAuthenticate"];
    const SHOWN_BYTES_MAX: usize = 1024;
    let mut shown = DocBuilder::new();
    for element in command.raw() {
        if SECRET.contains(&element.key()) {
            shown.append(element.key(), "###");
        } else if element.raw_value().len() <= SHOWN_BYTES_MAX {
            shown.append_element(element);
        } else {
            shown.append(element.key(), format!("({} bytes)", element.raw_value().len()));
        }
    }
    shown.finish()
}

fn kill_op(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let operation = call.command().get("op").and_then(|op| op.as_integer());
    let operation =
        operation.ok_or_else(|| Error::type_mismatch("Did not provide a numeric \"op\" field"))?;
    call.shared.clients.interrupt(operation);
    reply.append("info", "attempting to kill op");
    Ok(())
}

fn default_concern(_: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.start_document("defaultReadConcern").append("level", "local").end();
    reply.start_document("defaultWriteConcern").append("w", 1).append("wtimeout", 0).end();
    reply.append("defaultWriteConcernSource", "implicit").append("defaultReadConcernSource", "implicit");
    reply.append_date("localUpdateWallClockTime", now_ms());
    Ok(())
}

/// There is no profiler: its level is 0 and stays so.
fn profile(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    match call.command().get("profile").and_then(|level| level.as_integer()) {
        Some(-1 | 0) => {
            reply.append("was", 0).append("slowms", 100).append("sampleRate", 1.0);
            Ok(())
        }
        Some(1 | 2) => Err(Failure::new(code::COMMAND_NOT_SUPPORTED, "the profiler is not supported")),
        _ => Err(Error::bad_value("'profile' must be -1, 0, 1 or 2").into()),
    }
}

/// Zeros would be a wrong answer.
fn top(_: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    let message = "'top' is not supported: what is read and written is not counted by collection; 'collStats' has sizes, \
                   'serverStatus' counts commands";
    Err(Failure::new(code::COMMAND_NOT_SUPPORTED, message))
}

fn features(_: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.append("js", false).start_document("oidMachine").end();
    Ok(())
}

fn fsync<'c>(call: &'c Call<'_>, reply: &'c mut DocBuilder) -> LaterIn<'c> {
    Box::pin(async move {
        if call.command().get("lock").is_some_and(|lock| lock.as_bool() == Some(true)) {
            return Err(Failure::new(code::COMMAND_NOT_SUPPORTED, "'fsync' with 'lock' is not supported"));
        }
        call.shared.engine.sync().await?;
        reply.append("numFiles", 1);
        Ok(Flow::Done)
    })
}

/// The server's owner is told; clients see their connections close, as the manual promises.
fn shutdown(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    call.shared.shutdown_asked.notify_one();
    call.shared.topology.stop();
    Err(Failure::close())
}
