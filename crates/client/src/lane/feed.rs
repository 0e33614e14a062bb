//! Change streams: opened, read, and opened anew for ever while the bus runs.
//!
//! A message stream's filter holds the listened topics. When they change, a new stream is opened beside the old
//! one, and the old one is dropped only when the new one stands: at no time is there no stream. Every
//! establishment asks for a catch-up poll, because what was inserted before it raised no event.

use super::Lane;
use crate::backend::{BackendErrorKind, ChangeEvent, Watch};
use crate::node::now_ms;
use bson::{Bson, Document};
use rockdove_messages::pipeline;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Pause before the first reopening; doubled up to [`REOPEN_LONGEST`] while it fails.
const REOPEN_FIRST: Duration = Duration::from_millis(100);
const REOPEN_LONGEST: Duration = Duration::from_secs(1);
/// How long the server may hold back a reply without events. Morphium: ten poll pauses, at least 2 s.
const MAX_AWAIT: Duration = Duration::from_millis(2500);
/// Registrations within this time share one reopening.
const TOPICS_SETTLE: Duration = Duration::from_millis(5);

/// Ends its task when dropped.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Lane {
    /// Keeps one message stream whose filter knows every listened topic.
    pub(super) async fn supervise_messages(self: Arc<Self>) {
        let mut changes = self.node.listeners.watch_topics();
        let mut current: Option<Running> = None;
        loop {
            let topics = changes.borrow_and_update().clone();
            let (established, stands) = oneshot::channel();
            let pipeline = pipeline::shared(&self.node.me, &topics);
            let follow = self.clone().follow_messages(pipeline, established);
            let mut next = Running(self.node.runtime.spawn(follow));
            tokio::select! {
                Ok(()) = stands => self.standing.send_modify(|standing| standing.topics = Some(topics)),
                _ = &mut next.0 => {
                    tracing::error!(self.collection, "the stream task ended; starting another");
                    tokio::time::sleep(REOPEN_LONGEST).await;
                    continue;
                }
            }
            let stream = current.insert(next); // drops, and so ends, the one before
            tokio::select! {
                _ = changes.changed() => tokio::time::sleep(TOPICS_SETTLE).await,
                () = self.restart.notified() => {}
                _ = &mut stream.0 => tracing::error!(self.collection, "the stream task ended; starting another"),
            }
        }
    }

    async fn follow_messages(self: Arc<Self>, pipeline: Vec<Document>, established: oneshot::Sender<()>) {
        let mut established = Some(established);
        let on_open = || {
            self.established_ms.store(now_ms(), Ordering::Relaxed);
            self.core.lock().stream_established(Instant::now());
            self.wake.notify_one();
            if let Some(established) = established.take() {
                // The supervisor may have ended already.
                let _ = established.send(());
            }
        };
        self.follow(&self.collection, pipeline, on_open, |event| self.on_event(event)).await;
    }

    /// Follows the releases of locks.
    pub(super) async fn follow_locks(self: Arc<Self>) {
        let on_open = || {
            self.standing.send_modify(|standing| standing.locks = true);
            self.core.lock().lock_released(None);
            self.wake.notify_one();
        };
        self.follow(&self.locks, pipeline::locks(), on_open, |event| self.on_lock_event(&event)).await;
    }

    /// Reads one stream for ever, resuming where it broke off. A position that is lost is dropped.
    async fn follow(
        &self,
        collection: &str,
        pipeline: Vec<Document>,
        mut on_open: impl FnMut() + Send,
        mut on_event: impl FnMut(ChangeEvent) + Send,
    ) {
        let mut token: Option<Bson> = None;
        let mut pause = REOPEN_FIRST;
        loop {
            let max_await = MAX_AWAIT.max(self.node.settings.poll_pause * 10);
            let watch = Watch { pipeline: pipeline.clone(), resume_after: token.clone(), max_await };
            let error = match self.node.backend.watch(collection, watch).await {
                Ok(mut feed) => {
                    on_open();
                    let error = loop {
                        match feed.next().await {
                            Ok(reply) => reply.into_iter().for_each(&mut on_event),
                            Err(error) => break error,
                        }
                        pause = REOPEN_FIRST;
                    };
                    token = feed.resume_token().or(token);
                    error
                }
                Err(error) => error,
            };
            if error.kind() == BackendErrorKind::HistoryLost {
                token = None;
            }
            tracing::warn!(collection, %error, "a stream broke off; opening it anew");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(REOPEN_LONGEST);
        }
    }
}
