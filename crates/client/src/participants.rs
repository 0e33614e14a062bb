//! The announcement of a node, and the check that all nodes of a queue speak its layout.
//!
//! Nodes of different layouts do not hear each other, so a mismatch could not be told over messages; hence the
//! collection of its own. It is read from the primary, so that a node announced a moment ago is seen.

use crate::backend::{BackendResult, Find};
use crate::error::ConnectError;
use crate::node::{CALL_RETRIES, Node, millis, now_ms};
use crate::phase::Phase;
use bson::doc;
use rockdove_messages::{Implementation, ImplementationCheck, Participant, filter};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// A participant without sign of life for this many timeouts is removed from the list.
const PRUNE_TIMEOUTS: i64 = 3;
/// How long withdrawing may take at shutdown.
const WITHDRAW_LIMIT: Duration = Duration::from_secs(2);

/// Announces the node, checks the others, and keeps doing both.
pub(crate) async fn join(node: &Arc<Node>) -> Result<(), ConnectError> {
    if node.settings.implementation_check == ImplementationCheck::Ignore {
        return Ok(());
    }
    let started_at = now_ms();
    let announced = node.retry(CALL_RETRIES, || async {
        warn_about_twin(node, &list(node).await?);
        announce(node, started_at).await?;
        list(node).await
    });
    let others = announced.await.map_err(ConnectError::Backend)?;
    let mut known = HashSet::new();
    for other in mismatched(node, &others) {
        if node.settings.implementation_check == ImplementationCheck::Throw {
            withdraw(node).await;
            return Err(ConnectError::ImplementationMismatch {
                participant: other.id.clone(),
                theirs: other.implementation.to_string(),
                ours: node.names.layout().implementation(),
            });
        }
        warn(node, other);
        known.insert(other.id.clone());
    }
    let beating = node.clone();
    node.spawn_loop("participant heartbeat", move || beat(beating.clone(), started_at, known.clone()));
    Ok(())
}

/// Takes the announcement back.
pub(crate) async fn withdraw(node: &Node) {
    if node.settings.implementation_check == ImplementationCheck::Ignore {
        return;
    }
    let names = node.names.participants();
    let delete = node.backend.delete(&names, doc! { "_id": &node.me });
    match tokio::time::timeout(WITHDRAW_LIMIT, delete).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(node.me, %error, "the announcement was not withdrawn; it ages out"),
        Err(_) => tracing::warn!(node.me, "the announcement was not withdrawn in time; it ages out"),
    }
}

async fn beat(node: Arc<Node>, started_at: i64, mut known: HashSet<String>) {
    while node.life.sleep_unless(Phase::Stopped, node.settings.heartbeat_interval).await {
        let round = async {
            announce(&node, started_at).await?;
            prune(&node).await?;
            list(&node).await
        };
        match round.await {
            Ok(others) => {
                for other in mismatched(&node, &others) {
                    if known.insert(other.id.clone()) {
                        warn(&node, other);
                    }
                }
            }
            Err(error) => tracing::warn!(node.me, %error, "the participant heartbeat failed; trying again"),
        }
    }
}

/// Updates the own document; inserts it when it is not there (a node whose clock stood still was pruned).
async fn announce(node: &Node, started_at: i64) -> BackendResult<()> {
    let participant = Participant {
        id: node.me.clone(),
        implementation: Implementation::Known(node.names.layout()),
        hostname: node.host.clone(),
        started_at,
        last_seen: now_ms(),
    };
    let update = doc! { "$set": participant.to_document() };
    node.backend
        .update_one(&node.names.participants(), doc! { "_id": &node.me }, update, true)
        .await
        .map(drop)
}

/// The participants a queue knows, fresh or not.
pub(crate) async fn list(node: &Node) -> BackendResult<Vec<Participant>> {
    let found = node.backend.find(&node.names.participants(), Find::default()).await?;
    Ok(found.iter().filter_map(Participant::from_document).collect())
}

async fn prune(node: &Node) -> BackendResult<()> {
    let life = millis(node.settings.participant_timeout).saturating_mul(PRUNE_TIMEOUTS);
    let stale = filter::stale_participants(now_ms().saturating_sub(life));
    node.backend.delete(&node.names.participants(), stale).await.map(drop)
}

fn mismatched<'a>(node: &'a Node, all: &'a [Participant]) -> impl Iterator<Item = &'a Participant> {
    let ours = Implementation::Known(node.names.layout());
    let (now, timeout) = (now_ms(), millis(node.settings.participant_timeout));
    all.iter().filter(move |other| {
        other.id != node.me && other.is_fresh(now, timeout) && other.implementation != ours
    })
}

fn warn(node: &Node, other: &Participant) {
    let theirs = other.implementation.to_string();
    let ours = node.names.layout().implementation();
    tracing::warn!(
        participant = other.id,
        theirs,
        ours,
        "a participant of another layout: messages get lost"
    );
}

/// Two nodes with one id overwrite each other's announcement and take each other's messages for their own.
fn warn_about_twin(node: &Node, all: &[Participant]) {
    let timeout = millis(node.settings.participant_timeout);
    let twin = all.iter().find(|other| other.id == node.me && other.is_fresh(now_ms(), timeout));
    if let Some(twin) = twin {
        tracing::warn!(
            node.me,
            twin.hostname,
            twin.started_at,
            "the sender id is in use, or its last user did not stop cleanly"
        );
    }
}
