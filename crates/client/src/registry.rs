//! What other nodes are there, and what they listen to: learnt by asking, kept in memory only.
//!
//! A broadcast on the status topic asks; each node's status answer names its topics. A question is withdrawn once the
//! next one is asked and the interval is over, and at the end: who comes to it later would answer in vain. Who has taken it
//! by then still answers, and what nobody hears stays until it expires. A node is active while it answered lately and
//! listens to something. A sender may have its messages checked against this knowledge; what it
//! does not know makes it ask at once.
//!
//! Answers and messages to oneself are not checked: whoever asked was there a moment ago, although a node without
//! status listener never shows up here.

use crate::backend::BackendResult;
use crate::bus::Bus;
use crate::clock;
use crate::error::SendError;
use crate::mailbox;
use crate::node::Node;
use crate::phase::Phase;
use bson::{Bson, doc};
use parking_lot::Mutex;
use rockdove_messages::status::{DISCOVERY_TEXT, DISCOVERY_VALUE, listened_topics};
use rockdove_messages::{Message, MessageId, RegistryCheck, SELF};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// Most participants known, and most topics of one; answers beyond are not noted.
const PARTICIPANTS_MAX: usize = 10_000;
const TOPICS_MAX: usize = 10_000;
/// A check that fails so soon after another waits no more: a bulk would wait for each of its messages.
const NO_NEWS: Duration = Duration::from_secs(1);
/// After the first news, a failed check waits this long for more.
const SETTLE: Duration = Duration::from_millis(250);

/// A question's life, and that of each answer to it.
const LIFE: Duration = Duration::from_secs(30);
/// Most questions remembered; what is forgotten expires.
const ASKED_MAX: usize = 1000;
/// How long withdrawing the last questions may take.
const RETIRE_LIMIT: Duration = Duration::from_secs(2);

/// A node as the registry knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownNode {
    /// Its sender id.
    pub id: String,
    /// The topics it listens to.
    pub topics: BTreeSet<String>,
    /// How long ago it answered.
    pub seen: Duration,
}

struct Entry {
    topics: BTreeSet<String>,
    seen: Instant,
}

/// A question that was asked lately.
struct Asked {
    id: MessageId,
    at: Instant,
    withdrawn: bool,
}

/// The knowledge of one bus.
pub(crate) struct Registry {
    timeout: Duration,
    nodes: Mutex<BTreeMap<String, Entry>>,
    /// The questions to which answers may still be there, oldest first.
    asked: Mutex<VecDeque<Asked>>,
    /// Counts the answers.
    news: watch::Sender<u64>,
    /// Somebody wants to know now.
    wanted: Notify,
    /// When somebody last waited for news in vain.
    in_vain: Mutex<Option<Instant>>,
}

impl Registry {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            nodes: Mutex::default(),
            asked: Mutex::default(),
            news: watch::Sender::default(),
            wanted: Notify::new(),
            in_vain: Mutex::default(),
        }
    }

    /// Notes a status answer. One without topics takes its node out.
    pub(crate) fn note(&self, answer: &Message) {
        let Some(topics) = answer.map_value.as_ref().and_then(listened_topics) else { return };
        {
            let mut nodes = self.nodes.lock();
            let topics: BTreeSet<_> = topics.into_iter().take(TOPICS_MAX).collect();
            if topics.is_empty() {
                nodes.remove(&answer.sender);
            } else if nodes.len() < PARTICIPANTS_MAX || nodes.contains_key(&answer.sender) {
                nodes.insert(answer.sender.clone(), Entry { topics, seen: clock::now() });
            }
        }
        self.news.send_modify(|count| *count += 1);
    }

    /// Remembers a question before it is asked, and forgets those that are no more, nor answers to them.
    fn remember(&self, id: MessageId) {
        let mut asked = self.asked.lock();
        asked.retain(|one| clock::since(one.at) < 2 * LIFE);
        if asked.len() >= ASKED_MAX {
            asked.pop_front();
        }
        asked.push_back(Asked { id, at: clock::now(), withdrawn: false });
    }

    /// The questions this node asked lately.
    pub(crate) fn asked(&self) -> Vec<Bson> {
        self.asked.lock().iter().map(|one| one.id.to_bson()).collect()
    }

    /// Forgets who did not answer for too long.
    fn prune(&self) {
        self.nodes.lock().retain(|_, entry| clock::since(entry.seen) < self.timeout);
    }

    /// The active nodes' ids.
    pub(crate) fn active(&self) -> Vec<String> {
        self.known().into_iter().map(|node| node.id).collect()
    }

    /// The active nodes.
    pub(crate) fn known(&self) -> Vec<KnownNode> {
        self.prune();
        let nodes = self.nodes.lock();
        let known = |(id, entry): (&String, &Entry)| KnownNode {
            id: id.clone(),
            topics: entry.topics.clone(),
            seen: clock::since(entry.seen),
        };
        nodes.iter().map(known).collect()
    }

    fn is_listened(&self, topic: &str) -> bool {
        let is_fresh = |entry: &&Entry| clock::since(entry.seen) < self.timeout;
        self.nodes.lock().values().filter(is_fresh).any(|entry| entry.topics.contains(topic))
    }

    fn is_active(&self, id: &str) -> bool {
        self.nodes.lock().get(id).is_some_and(|entry| clock::since(entry.seen) < self.timeout)
    }
}

/// Asks at once, then periodically and whenever somebody wants to know; sweeps up after nodes that are gone.
pub(crate) async fn discover(node: Arc<Node>) {
    let bus = Bus::of(node.clone());
    let interval = node.settings.heartbeat_interval;
    loop {
        let id = MessageId::generate();
        let ask = Message::new(node.settings.status_info_topic.clone())
            .with_id(id.clone())
            .msg(DISCOVERY_TEXT)
            .value(DISCOVERY_VALUE)
            .ttl(LIFE);
        let Some(leave) = node.unfinished().await else { return };
        node.registry.remember(id);
        // It goes where broadcasts go, which no send asks leave for.
        let asked = bus.request_stream(ask, interval).await;
        drop(leave);
        match asked {
            Ok(mut answers) => {
                // The answers are noted where they arrive; here they are only taken, until it is time to ask again.
                let take = async { while let Some(Ok(_)) = answers.next().await {} };
                let tidy = async {
                    if let Err(error) = withdraw(&node, interval).await {
                        tracing::debug!(node.me, %error, "earlier questions were not withdrawn");
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    biased;
                    () = take => {}
                    () = node.registry.wanted.notified() => {}
                    () = tidy => {}
                }
            }
            Err(error) => {
                tracing::warn!(node.me, %error, "the nodes of the queue were not asked; trying again");
                if !node.life.sleep_unless(Phase::Draining, interval.min(Duration::from_secs(1))).await {
                    return;
                }
            }
        }
        node.registry.prune();
        if node.settings.sweep_orphans
            && let Err(error) = mailbox::sweep(&node).await
        {
            tracing::warn!(node.me, %error, "collections of nodes that are gone were not swept up");
        }
    }
}

/// Withdraws what is left of the questions.
pub(crate) async fn retire(node: &Node) {
    if node.settings.registry
        && let Err(error) = node.leaving(RETIRE_LIMIT, withdraw(node, Duration::ZERO)).await
    {
        tracing::debug!(node.me, %error, "the last questions were not withdrawn; they expire");
    }
}

/// Removes the questions of this node that are `age` old; those of another one with its id stay.
pub(crate) async fn withdraw(node: &Node, age: Duration) -> BackendResult<()> {
    let is_due = |one: &Asked| !one.withdrawn && clock::since(one.at) >= age;
    let due: Vec<MessageId> = {
        let asked = node.registry.asked.lock();
        asked.iter().filter(|one| is_due(one)).map(|one| one.id.clone()).collect()
    };
    if due.is_empty() {
        return Ok(());
    }
    let ids: Vec<Bson> = due.iter().map(MessageId::to_bson).collect();
    let collection = node.names.broadcast(&node.settings.status_info_topic);
    node.backend.delete(&collection, doc! { "_id": { "$in": ids } }).await?;
    let mut asked = node.registry.asked.lock();
    for one in asked.iter_mut().filter(|one| due.contains(&one.id)) {
        one.withdrawn = true;
    }
    Ok(())
}

/// Says that a bus makes no checks although its settings ask for them: one that only sends hears no answers.
pub(crate) fn warn_if_unchecked(node: &Node) {
    let settings = &node.settings;
    let checks = [settings.registry_check_topics, settings.registry_check_recipients];
    if settings.registry && checks.iter().any(|check| *check != RegistryCheck::Ignore) {
        tracing::warn!(node.me, "a bus that only sends knows no other nodes; its messages are not checked");
    }
}

/// Checks that somebody would receive the message, as the settings say.
pub(crate) async fn check(node: &Node, message: &Message) -> Result<(), SendError> {
    let settings = &node.settings;
    let exempt = message.is_answer() || message.sender == SELF || message.topic == settings.status_info_topic;
    if !settings.registry || node.send_only || exempt {
        return Ok(());
    }
    if message.is_broadcast() {
        let is_known = || node.registry.is_listened(&message.topic);
        let refuse = || SendError::NoListener(message.topic.clone());
        return settle(node, settings.registry_check_topics, is_known, refuse).await;
    }
    for recipient in message.recipients.iter().filter(|id| **id != node.me) {
        let is_known = || node.registry.is_active(recipient);
        let refuse = || SendError::NoRecipient(recipient.clone());
        settle(node, settings.registry_check_recipients, is_known, refuse).await?;
    }
    Ok(())
}

async fn settle(
    node: &Node,
    check: RegistryCheck,
    is_known: impl Fn() -> bool,
    refuse: impl Fn() -> SendError,
) -> Result<(), SendError> {
    if check == RegistryCheck::Ignore || is_known() {
        return Ok(());
    }
    let just_asked = node.registry.in_vain.lock().is_some_and(|at| clock::since(at) < NO_NEWS);
    if !just_asked && waited_for(node, &is_known).await {
        return Ok(());
    }
    let refusal = refuse();
    if check == RegistryCheck::Throw {
        return Err(refusal);
    }
    tracing::warn!(node.me, "{refusal}; it is sent nevertheless");
    Ok(())
}

/// Asks, and waits until something is known or the news are over.
async fn waited_for(node: &Node, is_known: &impl Fn() -> bool) -> bool {
    let mut news = node.registry.news.subscribe();
    node.registry.wanted.notify_one();
    let mut deadline = tokio::time::Instant::now() + node.settings.heartbeat_interval;
    let mut first = true;
    // The sender of news lives in the registry, so only the time can end the wait.
    while let Ok(Ok(())) = tokio::time::timeout_at(deadline, news.changed()).await {
        if is_known() {
            return true;
        }
        if std::mem::take(&mut first) {
            deadline = deadline.min(tokio::time::Instant::now() + SETTLE);
        }
    }
    *node.registry.in_vain.lock() = Some(clock::now());
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_messages::status::{Level, Report, answer};

    fn status(sender: &str, topics: &[&str]) -> Message {
        let listeners = topics.iter().map(|topic| ((*topic).to_owned(), vec!["l".to_owned()])).collect();
        let map = answer(Level::Messaging, &Report { listeners, ..Report::default() });
        let mut message = Message::new("status").map_value(map);
        message.sender = sender.to_owned();
        message
    }

    #[test]
    fn nodes_are_known_by_their_last_answer() {
        let registry = Registry::new(Duration::from_secs(60));
        registry.note(&status("n1", &["a", "b"]));
        registry.note(&status("n2", &["c"]));
        assert!(registry.is_listened("a") && registry.is_active("n2") && !registry.is_listened("d"));
        registry.note(&status("n1", &["d"]));
        assert!(!registry.is_listened("a") && registry.is_listened("d"));
        registry.note(&status("n2", &[]));
        assert_eq!(registry.active(), ["n1"]);
        registry.note(&Message::new("status"));
        assert_eq!(*registry.news.borrow(), 4, "an answer of another level is no news");
    }

    #[test]
    fn silence_is_forgotten() {
        let registry = Registry::new(Duration::ZERO);
        registry.note(&status("n1", &["a"]));
        assert!(!registry.is_active("n1") && !registry.is_listened("a") && registry.known().is_empty());
    }
}
