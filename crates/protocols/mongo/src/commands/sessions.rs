//! Logical sessions: begin, keep, end and kill them.

use super::Spec;
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::session::SessionId;
use rockdove_documents::{DocBuilder, Error, RawDoc, Value};
use std::time::Instant;

/// Most sessions named in one command (MongoDB sends at most 10 000).
const SESSIONS_NAMED_MAX: usize = 10_000;

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::now("startSession", 0, start),
    Spec::now("endSessions", Spec::API_V1, end),
    Spec::now("refreshSessions", Spec::API_V1, refresh),
    Spec::now("killSessions", 0, end),
    Spec::now("killAllSessions", 0, kill_all),
    Spec::now("killAllSessionsByPattern", 0, kill_by_pattern),
    Spec::now("commitTransaction", ENDS, no_transaction),
    Spec::now("abortTransaction", ENDS, no_transaction),
];

const ENDS: u32 = Spec::WRITE | Spec::RETRYABLE | Spec::ADMIN | Spec::ENDS_TRANSACTION | Spec::API_V1;

fn start(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let session = SessionId::random();
    call.shared.sessions.touch(session, Instant::now())?;
    session.append(reply, "id");
    reply.append("timeoutMinutes", 30);
    Ok(())
}

fn end(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    for session in named(call.command())? {
        call.shared.end_session(session);
    }
    Ok(())
}

fn refresh(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    let now = Instant::now();
    named(call.command())?.into_iter().try_for_each(|session| call.shared.sessions.touch(session, now))
}

/// Without users every session is everybody's, so naming users changes nothing.
fn kill_all(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    array(call.command())?;
    for session in call.shared.sessions.end_all() {
        call.shared.end_session(session);
    }
    Ok(())
}

fn kill_by_pattern(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let patterns: Vec<_> = array(call.command())?.values().collect();
    let named: Vec<_> = patterns
        .iter()
        .filter_map(|pattern| pattern.as_document().and_then(|pattern| pattern.get("lsid")?.as_document()))
        .map(SessionId::parse)
        .collect::<Result<_>>()?;
    if named.len() < patterns.len() || patterns.is_empty() {
        return kill_all(call, reply);
    }
    named.into_iter().for_each(|session| call.shared.end_session(session));
    Ok(())
}

/// Dispatching answers these before: there is no transaction to end.
fn no_transaction(_: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    Err(Failure::new(rockdove_documents::code::NO_SUCH_TRANSACTION, "no transaction is in progress"))
}

/// The array under the command's name.
fn array(command: RawDoc<'_>) -> Result<RawDoc<'_>> {
    match command.iter().next().map(|first| (first.key(), first.value())) {
        Some((_, Value::Array(array))) => Ok(array),
        Some((name, other)) => Err(Error::type_mismatch(format!(
            "BSON field '{name}' is the wrong type '{}', expected type 'array'",
            other.kind().alias()
        ))
        .into()),
        None => Ok(RawDoc::empty()),
    }
}

fn named(command: RawDoc<'_>) -> Result<Vec<SessionId>> {
    let mut sessions = Vec::new();
    for value in array(command)?.values().take(SESSIONS_NAMED_MAX) {
        let lsid =
            value.as_document().ok_or_else(|| Error::type_mismatch("a session id must be a document"))?;
        sessions.push(SessionId::parse(lsid)?);
    }
    Ok(sessions)
}
