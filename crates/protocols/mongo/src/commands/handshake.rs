//! What clients ask first: who the server is, and who they are.

use super::{Flow, LaterIn, Run, Spec};
use crate::dispatch::{Call, More, stopping};
use crate::errors::Result;
use crate::hello::{self, Awaiting, DOCUMENT_BYTES_MAX, Moment};
use crate::shared::now_ms;
use crate::topology::Role;
use rockdove_documents::DocBuilder;
use std::time::Duration;

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::later("hello", Spec::HANDSHAKE | Spec::OPEN | Spec::WAITS | Spec::API_V1, hello),
    Spec::later("isMaster", Spec::HANDSHAKE | Spec::OPEN | Spec::WAITS, hello).also(&["ismaster"]),
    Spec::now("ping", Spec::OPEN | Spec::API_V1, |_, _| Ok(())),
    Spec::now("buildInfo", Spec::OPEN, build_info).also(&["buildinfo"]),
    Spec::now("whatsmyuri", Spec::OPEN, whatsmyuri),
    Spec::now("connectionStatus", Spec::OPEN, connection_status),
    Spec::now("listCommands", 0, list_commands),
];

fn hello<'c>(call: &'c Call<'_>, reply: &'c mut DocBuilder) -> LaterIn<'c> {
    Box::pin(async move {
        let command = call.command();
        let awaiting = Awaiting::parse(command)?;
        if let Some(awaiting) = awaiting {
            wait_for_change(call, awaiting).await?;
        }
        let moment = Moment {
            operation_time: call.shared.operation_time(),
            now: now_ms(),
            connection_id: call.client.id,
        };
        let counter = call.shared.topology.state().counter;
        let legacy = call.name != "hello";
        hello::append(reply, &call.shared.identity, &call.shared.topology, moment, command, legacy);
        Ok(match awaiting {
            Some(_) => Flow::More(More { topology_counter: Some(counter) }),
            None => Flow::Done,
        })
    })
}

/// Waits until the topology is another than the client knows, or as long as it asked for.
async fn wait_for_change(call: &Call<'_>, awaiting: Awaiting) -> Result<()> {
    let topology = &call.shared.topology;
    let known = match call.previous {
        Some(More { topology_counter: Some(counter) }) => counter,
        _ if topology.is_ours(awaiting.process) => awaiting.counter,
        _ => return Ok(()), // known of another run: anything here is news
    };
    let mut state = topology.watch();
    let changed = state.wait_for(|state| state.counter != known);
    let wait = Duration::from_millis(awaiting.milliseconds as u64);
    match tokio::time::timeout(wait, changed).await {
        Ok(Ok(state)) if state.role == Role::Stopping => Err(stopping(call.shared)),
        _ => Ok(()), // changed, or time is over: the state now is the answer
    }
}

fn build_info(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let identity = &call.shared.identity;
    reply.append("version", identity.version_text()).append("gitVersion", "unknown");
    reply.start_array("modules").end();
    reply.append("allocator", "system").append("javascriptEngine", "none").append("sysInfo", "deprecated");
    reply.start_array("versionArray");
    for part in identity.version.into_iter().chain([0]) {
        reply.push(part);
    }
    reply.end();
    reply.start_document("openssl").end();
    reply.start_document("buildEnvironment");
    reply.append("distarch", std::env::consts::ARCH).append("target_arch", std::env::consts::ARCH);
    reply.append("target_os", std::env::consts::OS).end();
    reply.append("bits", 64).append("debug", cfg!(debug_assertions));
    reply.append("maxBsonObjectSize", DOCUMENT_BYTES_MAX as i32);
    reply.start_array("storageEngines").push("rockdove").end();
    reply.start_document("rockdove").append("version", env!("CARGO_PKG_VERSION")).end();
    Ok(())
}

fn whatsmyuri(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.append("you", call.client.peer.to_string());
    Ok(())
}

fn connection_status(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.start_document("authInfo");
    reply.start_array("authenticatedUsers").end().start_array("authenticatedUserRoles").end();
    if call.command().get("showPrivileges").is_some_and(|show| show.as_bool() == Some(true)) {
        reply.start_array("authenticatedUserPrivileges").end();
    }
    reply.end();
    Ok(())
}

fn list_commands(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.start_document("commands");
    for spec in super::all().filter(|spec| spec.exists(&call.shared.identity)) {
        reply.start_document(spec.name);
        reply.append("requiresAuth", !spec.has(Spec::OPEN)).append("adminOnly", spec.has(Spec::ADMIN));
        reply.append("secondaryOk", !spec.has(Spec::WRITE));
        reply.append("waits", matches!(spec.run, Run::Later(_))).end();
    }
    reply.end();
    Ok(())
}
