//! Listeners: what an application registers for a topic, and what it is given and gives back.

use crate::bus::Bus;
use crate::error::SendError;
use crate::node::Node;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use rockdove_messages::{Message, MessageId};
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// One message, delivered to a listener. Reads like the [`Message`] it holds.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub(crate) message: Arc<Message>,
    pub(crate) bus: Bus,
}

impl Delivery {
    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The message, to keep.
    pub fn into_message(self) -> Message {
        Arc::unwrap_or_clone(self.message)
    }

    /// The bus it came from.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Sends an answer now: any time, any number. The requester is added to its recipients.
    pub async fn answer(&self, answer: Message) -> Result<MessageId, SendError> {
        self.bus.node().send_answer(&self.message, answer).await
    }
}

impl Deref for Delivery {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

/// What a listener gives back for a processed message. Made from `()`, a [`Message`], an `Option` or a `Vec` of them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reply {
    pub(crate) answers: Vec<Message>,
}

impl From<()> for Reply {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<Message> for Reply {
    fn from(answer: Message) -> Self {
        Self { answers: vec![answer] }
    }
}

impl From<Option<Message>> for Reply {
    fn from(answer: Option<Message>) -> Self {
        Self { answers: answer.into_iter().collect() }
    }
}

impl From<Vec<Message>> for Reply {
    fn from(answers: Vec<Message>) -> Self {
        Self { answers }
    }
}

/// A listener's refusal of a message.
///
/// An exclusive message is given back: others try it at once, this node after a growing pause. A broadcast is
/// offered to this node again later, unless [`continue_processing`](Self::continue_processing) says it is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    pub(crate) reason: String,
    pub(crate) continue_processing: bool,
    pub(crate) send_answer: bool,
}

impl Reject {
    /// Refuses for a reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), continue_processing: false, send_answer: false }
    }

    /// The reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// This node is done with the message; other nodes go on with it.
    pub fn continue_processing(mut self) -> Self {
        self.continue_processing = true;
        self
    }

    /// Tells the sender why.
    pub fn send_answer(mut self) -> Self {
        self.send_answer = true;
        self
    }
}

/// What becomes of a rejected message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// It is offered again: an exclusive one to all nodes, a broadcast to this node later.
    GiveBack,
    /// This node is done with it.
    Done,
}

/// What an application does about rejections, instead of what [`Reject`] says.
pub(crate) type RejectionHandler = dyn Fn(Delivery, Reject) -> BoxFuture<'static, Resolution> + Send + Sync;

/// Why a listener did not process a message: any error (`?` makes one), or a [`Reject`].
#[derive(Debug)]
pub enum HandlerError {
    /// It failed.
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// It refused.
    Rejected(Reject),
}

impl From<Reject> for HandlerError {
    fn from(reject: Reject) -> Self {
        Self::Rejected(reject)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::Failed(Box::new(error))
    }
}

impl HandlerError {
    /// A failure described by text.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into().into())
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "failed: {error}"),
            Self::Rejected(reject) => write!(f, "rejected: {}", reject.reason),
        }
    }
}

/// How a listener is called.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SubscribeOptions {
    pub(crate) name: Option<String>,
    pub(crate) mark_before_execution: bool,
    pub(crate) one_at_a_time: bool,
}

impl SubscribeOptions {
    /// The defaults: marked after the call, calls side by side.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name shown in status answers.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Marks a message before the listener runs: at most once, even should the process die meanwhile. Exclusive
    /// messages are always marked before.
    pub fn mark_before_execution(mut self) -> Self {
        self.mark_before_execution = true;
        self
    }

    /// Never runs two calls of this listener at a time. For strict order make the whole bus sequential.
    pub fn one_at_a_time(mut self) -> Self {
        self.one_at_a_time = true;
        self
    }
}

pub(crate) type Outcome = Result<Reply, HandlerError>;
type Call = dyn Fn(Delivery) -> BoxFuture<'static, Outcome> + Send + Sync;

/// One registered listener.
pub(crate) struct Listener {
    id: u64,
    topic: String,
    pub(crate) options: SubscribeOptions,
    turn: tokio::sync::Mutex<()>,
    call: Box<Call>,
}

impl Listener {
    /// Calls the listener, in its turn.
    pub(crate) async fn call(&self, delivery: Delivery) -> Outcome {
        let _turn = if self.options.one_at_a_time { Some(self.turn.lock().await) } else { None };
        (self.call)(delivery).await
    }
}

/// The listeners of one bus, in order of registration. `topics` changes whenever the set of topics does.
pub(crate) struct Listeners {
    list: RwLock<Vec<Arc<Listener>>>,
    topics: watch::Sender<Arc<Vec<String>>>,
    next_id: AtomicU64,
}

impl Default for Listeners {
    fn default() -> Self {
        Self {
            list: RwLock::default(),
            topics: watch::Sender::new(Arc::default()),
            next_id: AtomicU64::new(1),
        }
    }
}

impl Listeners {
    pub(crate) fn add<H, F, R>(&self, topic: String, options: SubscribeOptions, handler: H) -> u64
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Into<Reply>,
    {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let call = move |delivery| handler(delivery).map(|result| result.map(Into::into)).boxed();
        let listener =
            Listener { id, topic, options, turn: tokio::sync::Mutex::new(()), call: Box::new(call) };
        let mut list = self.list.write();
        list.push(Arc::new(listener));
        self.publish_topics(&list);
        id
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut list = self.list.write();
        list.retain(|listener| listener.id != id);
        self.publish_topics(&list);
    }

    pub(crate) fn clear(&self) {
        let mut list = self.list.write();
        list.clear();
        self.publish_topics(&list);
    }

    pub(crate) fn on(&self, topic: &str) -> Vec<Arc<Listener>> {
        self.list.read().iter().filter(|listener| listener.topic == topic).cloned().collect()
    }

    pub(crate) fn has(&self, topic: &str) -> bool {
        self.topics.borrow().binary_search_by(|known| known.as_str().cmp(topic)).is_ok()
    }

    /// The topics with a listener, sorted.
    pub(crate) fn topics(&self) -> Arc<Vec<String>> {
        self.topics.borrow().clone()
    }

    pub(crate) fn watch_topics(&self) -> watch::Receiver<Arc<Vec<String>>> {
        self.topics.subscribe()
    }

    /// Topics, and the names of their listeners.
    pub(crate) fn names(&self) -> Vec<(String, Vec<String>)> {
        let name =
            |listener: &Arc<Listener>| listener.options.name.clone().unwrap_or_else(|| "listener".into());
        let names = |topic: &String| self.on(topic).iter().map(name).collect();
        self.topics().iter().map(|topic| (topic.clone(), names(topic))).collect()
    }

    /// Called with the list locked, so that topics change in the order of registrations.
    fn publish_topics(&self, list: &[Arc<Listener>]) {
        let mut topics: Vec<String> = list.iter().map(|listener| listener.topic.clone()).collect();
        topics.sort_unstable();
        topics.dedup();
        self.topics.send_if_modified(|current| {
            let changed = **current != topics;
            if changed {
                *current = Arc::new(topics);
            }
            changed
        });
    }
}

/// A registered listener. Dropping it changes nothing; [`cancel`](Self::cancel) ends the subscription.
pub struct Subscription {
    pub(crate) id: u64,
    pub(crate) topic: String,
    pub(crate) node: Arc<Node>,
}

impl Subscription {
    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Removes the listener. Calls that run go on; what waits for it stays pending for other listeners.
    pub fn cancel(self) {
        let node = &self.node;
        node.lanes.unregister(node, || node.listeners.remove(self.id));
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("topic", &self.topic).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ignore(_: Delivery) -> Result<(), HandlerError> {
        Ok(())
    }

    #[test]
    fn topics_follow_the_registrations() {
        let listeners = Listeners::default();
        let mut changes = listeners.watch_topics();
        let first = listeners.add("b".into(), SubscribeOptions::new(), ignore);
        listeners.add("a".into(), SubscribeOptions::new().name("mail"), ignore);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        let third = listeners.add("b".into(), SubscribeOptions::new(), ignore);
        listeners.remove(first);
        assert!(!changes.has_changed().unwrap(), "same topics");
        assert_eq!(
            listeners.names(),
            [("a".into(), vec!["mail".into()]), ("b".into(), vec!["listener".into()])]
        );
        listeners.remove(first);
        assert!(listeners.has("b"), "removed by identity");
        listeners.remove(third);
        assert!(!listeners.has("b") && listeners.has("a"));
    }

    #[test]
    fn errors_and_refusals_become_handler_errors() {
        let failed: HandlerError = std::io::Error::other("disk").into();
        assert_eq!(failed.to_string(), "failed: disk");
        let rejected: HandlerError = Reject::new("busy").send_answer().into();
        assert_eq!(rejected.to_string(), "rejected: busy");
        assert_eq!(Reply::from(Some(Message::new("t"))).answers.len(), 1);
        assert_eq!(Reply::from(()).answers.len(), 0);
    }
}
