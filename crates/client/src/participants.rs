//! The announcement of a node, and the check that all nodes of a queue speak its layout.
//!
//! Nodes of different layouts do not hear each other, so a mismatch could not be told over messages; hence the
//! collection of its own. It is read from the primary, so that a node announced a moment ago is seen.
//!
//! Heartbeats carry their node's clock, which may be wrong, as may ours. Before a participant is taken for dead, its
//! heartbeat must also have stood still while we looked on.

use crate::backend::{BackendError, BackendResult, Find};
use crate::clock;
use crate::error::ConnectError;
use crate::node::{CALL_RETRIES, Node, millis};
use crate::phase::Phase;
use bson::doc;
use rockdove_messages::{Implementation, ImplementationCheck, Participant};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A participant without sign of life for this many timeouts is gone.
const GONE_TIMEOUTS: i64 = 3;
/// How long withdrawing may take at shutdown.
const WITHDRAW_LIMIT: Duration = Duration::from_secs(2);

/// What the log calls it.
const ANNOUNCEMENT: &str = "the announcement";

/// Announces the node, checks the others, and keeps doing both.
pub(crate) async fn join(node: &Arc<Node>) -> Result<(), ConnectError> {
    if node.settings.implementation_check == ImplementationCheck::Ignore {
        return Ok(());
    }
    let started_at = node.now_ms();
    let announced = node.retry(CALL_RETRIES, || async {
        warn_about_twin(node, &list(node).await?);
        announce(node, started_at).await?;
        list(node).await
    });
    let known = announced.await.map_err(ConnectError::Backend).and_then(|others| judge(node, &others));
    let known = match known {
        Ok(known) => known,
        Err(error) => {
            withdraw(node).await; // it may be announced, whatever failed
            return Err(error);
        }
    };
    let beating = node.clone();
    node.spawn_loop("participant heartbeat", move || beat(beating.clone(), started_at, known.clone()));
    Ok(())
}

/// Checks the others, for a bus that only sends: it does not announce itself, and looks once. Its user need not be
/// allowed to, unless the check is to hold.
pub(crate) async fn look(node: &Node) -> Result<(), ConnectError> {
    if node.settings.implementation_check == ImplementationCheck::Ignore {
        return Ok(());
    }
    let is_strict = node.settings.implementation_check == ImplementationCheck::Throw;
    match node.retry(CALL_RETRIES, || list(node)).await {
        Ok(others) => judge(node, &others).map(drop),
        Err(error) if is_strict || error.is_transient() => Err(ConnectError::Backend(error)),
        Err(error) => {
            tracing::warn!(node.me, %error, "whether the other nodes have the same layout was not checked");
            Ok(())
        }
    }
}

/// Refuses, or warns of, participants of another layout; their ids.
fn judge(node: &Node, others: &[Participant]) -> Result<HashSet<String>, ConnectError> {
    let mut known = HashSet::new();
    for other in mismatched(node, others) {
        if node.settings.implementation_check == ImplementationCheck::Throw {
            return Err(ConnectError::ImplementationMismatch {
                participant: other.id.clone(),
                theirs: other.implementation.to_string(),
                ours: node.names.layout().implementation(),
            });
        }
        warn(node, other);
        known.insert(other.id.clone());
    }
    Ok(known)
}

/// Takes the announcement back.
pub(crate) async fn withdraw(node: &Node) {
    if node.settings.implementation_check == ImplementationCheck::Ignore {
        return;
    }
    let names = node.names.participants();
    let delete = node.backend.delete(&names, doc! { "_id": &node.me });
    if let Err(error) = node.leaving(WITHDRAW_LIMIT, delete).await {
        tracing::warn!(node.me, %error, "the announcement was not withdrawn; it ages out");
    }
}

async fn beat(node: Arc<Node>, started_at: i64, mut known: HashSet<String>) {
    let mut twin = false;
    while node.life.sleep_unless(Phase::Interrupting, node.settings.heartbeat_interval).await {
        let Some(_leave) = node.unfinished().await else { return };
        let round = async {
            let all = list(&node).await?;
            announce(&node, started_at).await?;
            prune(&node, &all).await?;
            Ok::<_, BackendError>(all)
        };
        match round.await {
            Ok(others) => {
                node.troubles.end(&node.me, ANNOUNCEMENT);
                let overwritten = others.iter().find(|one| one.id == node.me && one.started_at != started_at);
                if let (Some(other), false) = (overwritten, twin) {
                    twin = true;
                    tracing::error!(
                        node.me,
                        other.hostname,
                        "another running node has this sender id: each takes the other's messages for its own"
                    );
                }
                for other in mismatched(&node, &others) {
                    if known.insert(other.id.clone()) {
                        warn(&node, other);
                    }
                }
            }
            Err(error) => node.troubles.begin(&node.me, ANNOUNCEMENT, &error),
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
        last_seen: node.now_ms(),
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
    let all: Vec<_> = found.iter().filter_map(Participant::from_document).collect();
    node.heartbeats.lock().note(&all, clock::now());
    Ok(all)
}

/// The heartbeats last seen, and since when they have stood still, by our own clock.
#[derive(Default)]
pub(crate) struct Heartbeats {
    seen: HashMap<String, (i64, Instant)>,
}

impl Heartbeats {
    fn note(&mut self, all: &[Participant], now: Instant) {
        let mut seen = HashMap::with_capacity(all.len());
        for one in all {
            let since = match self.seen.get(&one.id) {
                Some((last, since)) if *last == one.last_seen => *since,
                _ => now,
            };
            seen.insert(one.id.clone(), (one.last_seen, since));
        }
        self.seen = seen;
    }

    /// Whether the participant's heartbeat has stood still for so long.
    fn stood_still(&self, id: &str, time: Duration, now: Instant) -> bool {
        self.seen.get(id).is_none_or(|(_, since)| now.saturating_duration_since(*since) >= time)
    }
}

/// Whether a participant is surely gone: by its clock for three timeouts, and seen standing still for one.
pub(crate) fn is_gone(node: &Node, one: &Participant) -> bool {
    let timeout = node.settings.participant_timeout;
    !one.is_fresh(node.now_ms(), millis(timeout).saturating_mul(GONE_TIMEOUTS))
        && node.heartbeats.lock().stood_still(&one.id, timeout, clock::now())
}

/// Removes the announcements of those that are gone, unless they come back at this moment.
async fn prune(node: &Node, all: &[Participant]) -> BackendResult<()> {
    for gone in all.iter().filter(|one| one.id != node.me && is_gone(node, one)) {
        let filter = doc! { "_id": &gone.id, "last_seen": gone.last_seen };
        node.backend.delete(&node.names.participants(), filter).await?;
    }
    Ok(())
}

fn mismatched<'a>(node: &'a Node, all: &'a [Participant]) -> impl Iterator<Item = &'a Participant> {
    let ours = Implementation::Known(node.names.layout());
    let (now, timeout) = (node.now_ms(), millis(node.settings.participant_timeout));
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
    let twin = all.iter().find(|other| other.id == node.me && other.is_fresh(node.now_ms(), timeout));
    if let Some(twin) = twin {
        tracing::warn!(
            node.me,
            twin.hostname,
            twin.started_at,
            "the sender id is in use, or its last user did not stop cleanly"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_that_moves_is_alive_whatever_it_says() {
        let one = |last_seen| Participant {
            id: "n".into(),
            implementation: Implementation::Unknown(String::new()),
            hostname: String::new(),
            started_at: 0,
            last_seen,
        };
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut heartbeats = Heartbeats::default();
        let stands =
            |heartbeats: &Heartbeats, after| heartbeats.stood_still("n", second * 10, start + second * after);
        assert!(stands(&heartbeats, 0), "not announced at all");
        heartbeats.note(&[one(5)], start);
        assert!(!stands(&heartbeats, 9) && stands(&heartbeats, 10));
        heartbeats.note(&[one(5)], start + second * 9);
        assert!(stands(&heartbeats, 10));
        heartbeats.note(&[one(6)], start + second * 10);
        assert!(!stands(&heartbeats, 19));
        heartbeats.note(&[], start + second * 11);
        assert!(stands(&heartbeats, 11));
    }
}
