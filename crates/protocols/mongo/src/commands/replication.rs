//! The replica set of one: its status, its configuration, and stepping down.

use super::Spec;
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::hello::{self, Moment};
use crate::shared::now_ms;
use crate::topology::Role;
use rockdove_documents::{DocBuilder, Error, RawDoc, Timestamp, code};
use rockdove_engine::Level;
use std::time::Duration;

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::now("replSetGetStatus", Spec::ADMIN, status),
    Spec::now("replSetGetConfig", Spec::ADMIN, configuration),
    Spec::now("replSetStepDown", Spec::ADMIN, step_down),
    Spec::now("replSetStepUp", Spec::ADMIN, step_up),
    Spec::now("replSetFreeze", Spec::ADMIN, freeze),
    Spec::now("replSetInitiate", Spec::ADMIN, initiate),
    Spec::now("replSetReconfig", Spec::ADMIN, reconfigure),
];

/// Longest time without a primary that can be asked for: one day.
const STEP_DOWN_SECONDS_MAX: i64 = 24 * 60 * 60;

fn status(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let (shared, state) = (call.shared, call.shared.topology.state());
    let (number, text) = match state.role {
        Role::Primary => (1, "PRIMARY"),
        Role::Secondary | Role::Stopping => (2, "SECONDARY"),
    };
    let time = shared.operation_time();
    reply.append("set", &shared.identity.set_name).append_date("date", now_ms());
    reply.append("myState", number).append("term", state.term);
    reply.append("syncSourceHost", "").append("syncSourceId", -1);
    reply.append("heartbeatIntervalMillis", 2000i64);
    reply.append("majorityVoteCount", 1).append("writeMajorityCount", 1);
    reply.append("votingMembersCount", 1).append("writableVotingMembersCount", 1);
    reply.start_document("optimes");
    for name in ["lastCommittedOpTime", "readConcernMajorityOpTime", "appliedOpTime", "durableOpTime"] {
        append_optime(reply, name, time, state.term);
    }
    reply.end();
    reply.start_array("members").push_document();
    reply.append("_id", 0).append("name", &shared.identity.advertised).append("health", 1.0);
    reply.append("state", number).append("stateStr", text);
    reply.append("uptime", shared.started.elapsed().as_secs() as i64);
    append_optime(reply, "optime", time, state.term);
    reply.append_date("optimeDate", i64::from(time.time) * 1000);
    reply.append("syncSourceHost", "").append("syncSourceId", -1).append("infoMessage", "");
    reply.append("configVersion", 1).append("configTerm", state.term).append("self", true);
    reply.append("lastHeartbeatMessage", "").end().end();
    Ok(())
}

fn append_optime(reply: &mut DocBuilder, name: &str, time: Timestamp, term: i64) {
    reply.start_document(name).append("ts", time).append("t", term).end();
}

fn configuration(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let identity = &call.shared.identity;
    reply.start_document("config");
    reply.append("_id", &identity.set_name).append("version", 1);
    reply.append("term", call.shared.topology.state().term).append("protocolVersion", 1i64);
    reply.append("writeConcernMajorityJournalDefault", identity.majority == Level::QuorumSync);
    reply.start_array("members").push_document();
    reply.append("_id", 0).append("host", &identity.advertised).append("arbiterOnly", false);
    reply.append("buildIndexes", true).append("hidden", false).append("priority", 1.0);
    reply.start_document("tags").end().append("secondaryDelaySecs", 0i64).append("votes", 1).end().end();
    reply.start_document("settings").append("chainingAllowed", true);
    reply.append("heartbeatIntervalMillis", 2000).append("heartbeatTimeoutSecs", 10);
    reply.append("electionTimeoutMillis", 10_000).end().end();
    Ok(())
}

/// Without another member nobody can take over: granted with `force` only, and for the time asked for.
fn step_down(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    let command = call.command();
    let seconds = match seconds(command, "replSetStepDown")? {
        0 => 60,
        seconds @ 1..=STEP_DOWN_SECONDS_MAX => seconds,
        _ => return Err(Error::bad_value("stepdown period must be between 0 and 86400 seconds").into()),
    };
    if call.shared.topology.state().role != Role::Primary {
        return Err(Failure::new(code::NOT_WRITABLE_PRIMARY, "not primary so can't step down"));
    }
    let force = command
        .get("force")
        .is_some_and(|force| force.as_bool().unwrap_or(force.as_f64().is_some_and(|number| number != 0.0)));
    if !force {
        return Err(Failure::new(
            code::EXCEEDED_TIME_LIMIT,
            "No electable secondaries caught up: this set has one member. Please use the 'force' option to step \
             down anyway",
        ));
    }
    call.shared.topology.step_down();
    let (shared, stepped_down) = (call.shared.clone(), call.shared.topology.state());
    let mut states = shared.topology.watch();
    tokio::spawn(async move {
        // Another change, such as the next step down, has its own time.
        let changed = states.wait_for(|state| *state != stepped_down);
        if tokio::time::timeout(Duration::from_secs(seconds as u64), changed).await.is_err() {
            shared.topology.step_up();
        }
    });
    Ok(())
}

fn step_up(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    call.shared.topology.step_up();
    Ok(())
}

/// Thawing (0 seconds) lets the only member stand for election, which it wins at once.
fn freeze(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let seconds = seconds(call.command(), "replSetFreeze")?;
    if call.shared.topology.state().role == Role::Primary {
        return Err(Failure::location(
            95,
            "cannot freeze node when primary or running for election. state: Primary",
        ));
    }
    if seconds == 0 {
        call.shared.topology.step_up();
        reply.append("info", "unfreezing");
        return Ok(());
    }
    Err(Failure::new(code::COMMAND_NOT_SUPPORTED, "freezing the only member is not supported"))
}

fn initiate(_: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    Err(Failure::new(code::ALREADY_INITIALIZED, "already initialized"))
}

fn reconfigure(_: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    Err(Failure::new(
        code::COMMAND_NOT_SUPPORTED,
        "the set's members are fixed by the server's configuration",
    ))
}

fn seconds(command: RawDoc<'_>, name: &str) -> Result<i64> {
    let seconds = command.get(name).and_then(|seconds| seconds.as_integer()).filter(|seconds| *seconds >= 0);
    seconds.ok_or_else(|| Error::bad_value(format!("'{name}' must be a number of seconds")).into())
}

/// The `repl` section of `serverStatus`.
pub fn append_status(reply: &mut DocBuilder, call: &Call<'_>) {
    let shared = call.shared;
    let moment =
        Moment { operation_time: shared.operation_time(), now: now_ms(), connection_id: call.client.id };
    let mut all = DocBuilder::new();
    hello::append(&mut all, &shared.identity, &shared.topology, moment, RawDoc::empty(), false);
    let all = all.finish();
    const SHOWN: [&str; 10] = [
        "topologyVersion",
        "hosts",
        "setName",
        "setVersion",
        "isWritablePrimary",
        "secondary",
        "primary",
        "me",
        "electionId",
        "lastWrite",
    ];
    reply.start_document("repl");
    for element in all.raw().iter().filter(|element| SHOWN.contains(&element.key())) {
        reply.append_element(element);
    }
    reply.end();
}
