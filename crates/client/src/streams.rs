//! Change streams: opened, read, and opened anew for ever while the bus runs; their events go to the lanes.
//!
//! Which streams a bus follows is what its layout says (`Source::of`). There are at most three, however many topics
//! are listened to: each occupies a connection.
//!
//! A stream whose filter holds the listened topics is opened anew beside the old one when they change, and the old
//! one is dropped only when the new one stands: at no time is there no stream. Every establishment asks the lanes
//! for a catch-up poll, because what was inserted before it raised no event.

use crate::backend::{Scope, Watch};
use crate::lane::Lane;
use crate::node::Node;
use bson::{Bson, Document};
use rockdove_messages::{Layout, pipeline};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

/// Pause before the first reopening; doubled up to [`REOPEN_LONGEST`] while it fails.
const REOPEN_FIRST: Duration = Duration::from_millis(100);
const REOPEN_LONGEST: Duration = Duration::from_secs(1);
/// How long the server may hold back a reply without events. Morphium: ten poll pauses, at least 2 s.
const MAX_AWAIT: Duration = Duration::from_millis(2500);
/// Registrations within this time share one reopening.
const TOPICS_SETTLE: Duration = Duration::from_millis(5);

/// What one stream follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The collection all nodes share.
    Shared,
    /// The locks of that collection.
    Locks,
    /// The collections and locks of every listened topic, over the whole database.
    Topics,
    /// This node's own collection of directed messages.
    Directed,
}

impl Source {
    /// The streams of a bus.
    pub(crate) fn of(layout: Layout) -> &'static [Self] {
        match layout {
            Layout::Standard => &[Self::Shared, Self::Locks],
            Layout::MultiCollection => &[Self::Topics, Self::Directed],
            Layout::DualChannel => &[Self::Shared, Self::Locks, Self::Directed],
        }
    }

    /// What the log calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Shared => "the stream of messages",
            Self::Locks => "the stream of locks",
            Self::Topics => "the stream of topics",
            Self::Directed => "the stream of directed messages",
        }
    }

    /// Whether the filter holds the listened topics.
    fn knows_topics(self) -> bool {
        matches!(self, Self::Shared | Self::Topics)
    }
}

/// Ends its task when dropped.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What to ask the server for, and whom the events concern.
struct Plan {
    /// `None` = the whole database.
    collection: Option<String>,
    pipeline: Vec<Document>,
    lanes: Vec<Arc<Lane>>,
}

/// One stream, kept open.
pub(crate) struct Stream {
    node: Arc<Node>,
    pub(crate) source: Source,
    /// The topics registered when the established stream was opened; `None` before there is one.
    standing: watch::Sender<Option<Arc<Vec<String>>>>,
    /// It is to be opened anew.
    pub(crate) restart: Notify,
}

impl Stream {
    pub(crate) fn new(node: Arc<Node>, source: Source) -> Self {
        Self { node, source, standing: watch::Sender::default(), restart: Notify::new() }
    }

    /// Returns once the stream stands and its filter knows every topic registered so far.
    pub(crate) async fn ready(&self) {
        let mut standing = self.standing.subscribe();
        let complete = |topics: &Option<Arc<Vec<String>>>| match topics {
            Some(topics) => !self.source.knows_topics() || *topics == self.node.listeners.topics(),
            None => false,
        };
        // The sender lives in `self`, so waiting cannot fail.
        let _ = standing.wait_for(complete).await;
    }

    /// Keeps the stream open, and its filter up to date.
    pub(crate) async fn supervise(self: Arc<Self>) {
        let mut changes = self.node.listeners.watch_topics();
        let mut current: Option<Running> = None;
        loop {
            let topics = changes.borrow_and_update().clone();
            let (established, stands) = oneshot::channel();
            let follow = self.clone().follow(self.plan(&topics), established);
            let mut next = Running(self.node.runtime.spawn(follow));
            tokio::select! {
                biased;
                Ok(()) = stands => self.standing.send_modify(|standing| *standing = Some(topics)),
                _ = &mut next.0 => {
                    tracing::error!(source = ?self.source, "the stream task ended; starting another");
                    tokio::time::sleep(REOPEN_LONGEST).await;
                    continue;
                }
            }
            let stream = current.insert(next); // drops, and so ends, the one before
            let changed = async {
                match self.source.knows_topics() {
                    true => changes.changed().await.is_ok(),
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = changed => tokio::time::sleep(TOPICS_SETTLE).await,
                () = self.restart.notified() => {}
                _ = &mut stream.0 => tracing::error!(source = ?self.source, "the stream task ended; starting another"),
            }
        }
    }

    fn plan(&self, topics: &[String]) -> Plan {
        let (node, names) = (&self.node, &self.node.names);
        let of = |collection: &str| node.lanes.of_messages(collection).into_iter().collect();
        match self.source {
            Source::Shared => Plan {
                collection: Some(names.base()),
                pipeline: pipeline::shared(&node.me, topics),
                lanes: of(&names.base()),
            },
            Source::Locks => Plan {
                collection: Some(names.locks("")),
                pipeline: pipeline::locks(),
                lanes: of(&names.base()),
            },
            Source::Directed => Plan {
                collection: Some(node.mailbox.clone()),
                pipeline: pipeline::directed(),
                lanes: of(&node.mailbox),
            },
            Source::Topics => {
                let distinct = |name: &dyn Fn(&str) -> String| -> Vec<String> {
                    topics.iter().map(|topic| name(topic)).collect::<BTreeSet<_>>().into_iter().collect()
                };
                let messages = distinct(&|topic| names.broadcast(topic));
                let locks = distinct(&|topic| names.locks(topic));
                Plan {
                    collection: None,
                    pipeline: pipeline::topics(&node.me, topics, &messages, &locks),
                    lanes: messages.iter().filter_map(|name| node.lanes.of_messages(name)).collect(),
                }
            }
        }
    }

    /// Reads one stream for ever, resuming where it broke off. After an error that does not pass by itself it begins anew:
    /// a position that was lost, or that this server does not take, would be refused for ever.
    async fn follow(self: Arc<Self>, plan: Plan, established: oneshot::Sender<()>) {
        let mut established = Some(established);
        let mut token: Option<Bson> = None;
        let mut pause = REOPEN_FIRST;
        let scope = plan.collection.as_deref().map_or(Scope::Database, Scope::Collection);
        loop {
            let max_await = MAX_AWAIT.max(self.node.settings.poll_pause * 10);
            let watch = Watch { pipeline: plan.pipeline.clone(), resume_after: token.clone(), max_await };
            let error = match self.node.backend.watch(scope, watch).await {
                Ok(mut feed) => {
                    self.node.troubles.end(&self.node.me, self.source.name());
                    plan.lanes.iter().for_each(|lane| lane.stream_established(self.source));
                    if let Some(established) = established.take() {
                        // The supervisor may have ended already.
                        let _ = established.send(());
                    }
                    let error = loop {
                        match feed.next().await {
                            Ok(Some(event)) => self.node.lanes.route(event),
                            Ok(None) => {}
                            Err(error) => break error,
                        }
                        pause = REOPEN_FIRST;
                    };
                    token = feed.resume_token().or(token);
                    error
                }
                Err(error) => error,
            };
            if !error.is_transient() {
                token = None; // the poll that follows every establishment finds what this misses
            }
            self.node.troubles.begin(&self.node.me, self.source.name(), &error);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(REOPEN_LONGEST);
            if self.source == Source::Directed {
                // Some nodes drop collections they take for orphans.
                self.node.forget_indexes(&self.node.mailbox);
                self.node.index_messages(&self.node.mailbox).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_few_whatever_the_layout() {
        for layout in Layout::ALL {
            let sources = Source::of(layout);
            assert!(sources.len() <= 3);
            assert_eq!(sources.contains(&Source::Directed), layout.has_directed_lane());
        }
    }
}
