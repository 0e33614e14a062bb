//! The bus: one messaging node, and the handle an application holds.

use crate::ack::{SendOptions, Sent};
use crate::backend::{Backend, BackendResult};
use crate::clock::{self, WallClock};
use crate::driver::{CALL_LIMIT, DriverBackend};
use crate::error::{ConnectError, ReadError, SendError, SendManyError, SubscribeError};
use crate::listen::{
    Delivery, HandlerError, Reject, RejectionHandler, Reply, Resolution, SubscribeOptions, Subscription,
};
use crate::mailbox;
use crate::node::Node;
use crate::participants;
use crate::phase::Phase;
use crate::registry::{self, KnownNode};
use crate::status;
use futures_util::FutureExt;
use rockdove_messages::status::Report;
use rockdove_messages::{Layout, Message, MessageId, Names, Participant, SELF, Settings, filter};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How long a shutdown waits for interrupted listeners to give their messages back.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(5);
/// How long withdrawing a message may take.
const WITHDRAW_LIMIT: Duration = Duration::from_secs(2);
/// The name by which the connections are known to the server.
const APP_NAME: &str = "rockdove";

/// A messaging node. Clones are handles to the same node; it runs until [`shutdown`](Self::shutdown).
///
/// ```no_run
/// use rockdove::{Bus, HandlerError, Message};
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = Bus::connect("mongodb://localhost/shop").await?;
/// bus.subscribe("orders.created", |order| async move {
///     println!("{:?} from {}", order.value, order.sender);
///     Ok(())
/// })
/// .await?;
/// bus.publish(Message::new("orders.created").value("4711")).await?;
/// bus.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Bus {
    node: Arc<Node>,
}

impl Bus {
    /// Opens the default queue on a MongoDB-compatible server. The database is the one in the address, else
    /// [`DEFAULT_DATABASE`](crate::DEFAULT_DATABASE).
    pub async fn connect(uri: &str) -> Result<Self, ConnectError> {
        Self::builder(uri).connect().await
    }

    /// Prepares a bus on a MongoDB-compatible server.
    pub fn builder(uri: impl Into<String>) -> BusBuilder {
        BusBuilder::new(Target::Uri(uri.into()))
    }

    /// Prepares a bus on a back end of the application's choice.
    pub fn with_backend(backend: Arc<dyn Backend>) -> BusBuilder {
        BusBuilder::new(Target::Backend(backend))
    }

    pub(crate) fn of(node: Arc<Node>) -> Self {
        Self { node }
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The node's id.
    pub fn sender_id(&self) -> &str {
        &self.node.me
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.node.settings
    }

    /// Sends a message; returns its id when the server has it safely.
    pub async fn publish(&self, message: Message) -> Result<MessageId, SendError> {
        self.node.send(message).await
    }

    /// Sends a message at a level of acknowledgement, or with a value at risk; what was reached.
    pub async fn publish_with(&self, message: Message, options: SendOptions) -> Result<Sent, SendError> {
        self.node.send_with(message, options).await
    }

    /// Sends many messages, in bulks of a thousand. Those that could not be sent are named in the error; the others
    /// were sent.
    pub async fn send_many(&self, messages: Vec<Message>) -> Result<Vec<MessageId>, SendManyError> {
        self.node.send_many(messages).await
    }

    /// Sends a message to this node itself, by way of the queue. Its sender is `self` (as Morphium has it), and its answer
    /// comes back here.
    pub async fn publish_to_self(&self, mut message: Message) -> Result<MessageId, SendError> {
        message.sender = SELF.to_owned();
        message.recipients = vec![self.node.me.clone()];
        self.node.send(message).await
    }

    /// Sends an answer to a request received earlier.
    pub async fn send_answer(&self, request: &Message, answer: Message) -> Result<MessageId, SendError> {
        self.node.send_answer(request, answer).await
    }

    /// As [`send_answer`](Self::send_answer), at a level of acknowledgement or with a value at risk.
    pub async fn send_answer_with(
        &self,
        request: &Message,
        answer: Message,
        options: SendOptions,
    ) -> Result<Sent, SendError> {
        self.node.send_with(self.node.addressed(request, answer), options).await
    }

    /// Sends many answers to one request.
    pub async fn send_answers(
        &self,
        request: &Message,
        answers: Vec<Message>,
    ) -> Result<Vec<MessageId>, SendManyError> {
        let addressed = answers.into_iter().map(|answer| self.node.addressed(request, answer));
        self.node.send_many(addressed.collect()).await
    }

    /// Calls `handler` for every message on `topic`, messages that wait already included.
    ///
    /// The handler returns `Ok` with nothing or an answer; an error (`?` will do) means the message was not
    /// processed: an exclusive one is given back and tried again, a broadcast is not offered to this node again. A
    /// [`Reject`](crate::Reject) says more. A topic may have several listeners; all are called, in order.
    pub async fn subscribe<H, F, R>(
        &self,
        topic: impl Into<String>,
        handler: H,
    ) -> Result<Subscription, SubscribeError>
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Into<Reply>,
    {
        self.subscribe_with(topic, SubscribeOptions::new(), handler).await
    }

    /// Like [`subscribe`](Self::subscribe), with options.
    pub async fn subscribe_with<H, F, R>(
        &self,
        topic: impl Into<String>,
        options: SubscribeOptions,
        handler: H,
    ) -> Result<Subscription, SubscribeError>
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Into<Reply>,
    {
        let topic = topic.into();
        if topic.is_empty() {
            return Err(SubscribeError::MissingTopic);
        }
        if self.node.send_only {
            return Err(SubscribeError::SendOnly);
        }
        if !self.node.life.is_running() {
            return Err(SubscribeError::ShuttingDown);
        }
        let (node, listeners) = (&self.node, &self.node.listeners);
        let id = node.lanes.register(node, &topic, || listeners.add(topic.clone(), options, handler));
        self.urge_polls();
        Ok(Subscription { id, topic, node: self.node.clone() })
    }

    /// Stops delivering messages on `topic` to this node until [`resume`](Self::resume). They stay pending; callers
    /// that wait for answers are not affected. False when it was paused already.
    pub fn pause(&self, topic: impl Into<String>) -> bool {
        let mut paused = self.node.paused.lock();
        let mut fresh = false;
        paused.entry(topic.into()).or_insert_with(|| {
            fresh = true;
            clock::now()
        });
        fresh
    }

    /// Delivers messages on `topic` again, beginning with those that waited. How long it was paused; `None` if it was
    /// not.
    pub fn resume(&self, topic: &str) -> Option<Duration> {
        let since = self.node.paused.lock().remove(topic)?;
        self.urge_polls();
        Some(clock::since(since))
    }

    /// The paused topics.
    pub fn paused(&self) -> Vec<String> {
        self.node.paused.lock().keys().cloned().collect()
    }

    /// Returns once every message of the topics subscribed so far is heard at once: all streams stand. Without
    /// streams, once the first poll is done.
    pub async fn ready(&self) {
        if !self.node.settings.use_change_stream {
            for lane in self.node.lanes.all() {
                lane.polled().await;
            }
        }
        let streams = self.node.streams.read().clone();
        for stream in streams {
            stream.ready().await;
        }
    }

    /// Polls now, rather than when it is due.
    pub fn poll_now(&self) {
        self.urge_polls();
    }

    /// Messages of others that nobody has marked. In the layouts with several collections: those on listened topics
    /// and those for this node.
    pub async fn pending(&self) -> Result<u64, ReadError> {
        let node = &self.node;
        let mut collections: Vec<_> =
            node.lanes.all().iter().map(|lane| lane.collection().to_owned()).collect();
        if collections.is_empty() && node.names.layout() != Layout::MultiCollection {
            collections.push(node.names.base());
        }
        let mut count = 0;
        for collection in collections {
            count += node.backend.count(&collection, filter::pending(&node.me)).await?;
        }
        Ok(count)
    }

    /// Deletes a message, whoever it is for. False when it was gone.
    pub async fn remove(&self, message: &Message) -> Result<bool, ReadError> {
        Ok(self.delete(message).await?)
    }

    /// As [`remove`](Self::remove), for programs that are about to end: it fails after two seconds, and at once when no
    /// server answers.
    pub async fn withdraw(&self, message: &Message) -> Result<bool, ReadError> {
        Ok(self.node.leaving(WITHDRAW_LIMIT, self.delete(message)).await?)
    }

    async fn delete(&self, message: &Message) -> BackendResult<bool> {
        let Some(id) = &message.id else { return Ok(false) };
        let mut deleted = 0;
        for target in self.node.targets(message).unwrap_or_default() {
            deleted += self.node.backend.delete(&target, filter::by_id(id)).await?;
        }
        Ok(deleted > 0)
    }

    /// The nodes announced on this queue.
    pub async fn participants(&self) -> Result<Vec<Participant>, ReadError> {
        Ok(participants::list(&self.node).await?)
    }

    /// The other nodes that listen to something, as the registry knows them; empty when it is off
    /// ([`Settings::registry`]).
    pub fn known_nodes(&self) -> Vec<KnownNode> {
        self.node.registry.known()
    }

    /// What this node is and does: listeners, queue depths, settings.
    pub fn status(&self) -> Report {
        status::report(&self.node)
    }

    /// Stops the node: takes no new messages, lets running listeners end (interrupting them after
    /// [`Settings::shutdown_grace`], whereupon their exclusive messages are given back), closes the streams, wakes
    /// every caller that waits, and withdraws the announcement. Safe to call twice.
    ///
    /// While listeners end they may still send and receive answers. It goes on when the caller no longer waits for it.
    pub async fn shutdown(&self) {
        let node = &self.node;
        if node.life.advance(Phase::Draining) {
            let stopping = Stopping(node.clone());
            node.runtime.spawn(async move { stopping.run().await });
        }
        node.life.reached(Phase::Stopped).await;
    }

    fn urge_polls(&self) {
        for lane in self.node.lanes.all() {
            lane.urge_poll();
        }
    }
}

/// A bus on its way to the end. It counts as stopped however that comes about.
struct Stopping(Arc<Node>);

impl Stopping {
    async fn run(self) {
        let node = &self.0;
        let lanes = node.lanes.all_ever();
        let drain = || futures_util::future::join_all(lanes.iter().map(|lane| lane.drain()));
        if tokio::time::timeout(node.settings.shutdown_grace, drain()).await.is_err() {
            tracing::warn!(node.me, "listeners are still running; interrupting them");
            node.life.advance(Phase::Interrupting);
            if tokio::time::timeout(INTERRUPT_LIMIT, drain()).await.is_err() {
                tracing::error!(node.me, "messages in progress were not given back in time");
            }
        }
        node.life.advance(Phase::Interrupting);
        node.end_loops().await;
        node.waiters.close();
        if !node.send_only {
            registry::retire(node).await;
            mailbox::retire(node).await;
            participants::withdraw(node).await;
        }
        node.listeners.clear();
        node.lanes.clear();
        node.workers.clear();
        node.streams.write().clear();
        if node.owns_backend {
            node.backend.close().await;
        }
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.life.advance(Phase::Stopped);
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").field("sender_id", &self.node.me).finish_non_exhaustive()
    }
}

enum Target {
    Uri(String),
    Backend(Arc<dyn Backend>),
}

/// A bus in the making.
pub struct BusBuilder {
    target: Target,
    database: Option<String>,
    settings: Settings,
    send_only: bool,
    reach: Duration,
    rejection: Option<Box<RejectionHandler>>,
    clock: Option<Box<WallClock>>,
}

impl BusBuilder {
    fn new(target: Target) -> Self {
        Self {
            target,
            database: None,
            settings: Settings::default(),
            send_only: false,
            reach: CALL_LIMIT,
            rejection: None,
            clock: None,
        }
    }

    /// The queue; the default is `msg`.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.settings.queue = queue.into();
        self
    }

    /// The node's id; the default is a random UUID. With the same id after a restart the node goes on where it
    /// stopped. No two running nodes of a queue may share one.
    pub fn sender_id(mut self, id: impl Into<String>) -> Self {
        self.settings.sender_id = Some(id.into());
        self
    }

    /// How the queue is spread over collections; the default is [`Layout::Standard`]. All nodes of a queue use one.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.settings.layout = layout;
        self
    }

    /// The database, instead of the one in the address.
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = Some(database.into());
        self
    }

    /// All settings at once; queue and sender id included.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// One listener call at a time, in order of priority and age.
    pub fn sequential(mut self) -> Self {
        self.settings.multithreaded = false;
        self
    }

    /// Polls instead of following change streams.
    pub fn polling(mut self) -> Self {
        self.settings.use_change_stream = false;
        self
    }

    /// A bus that only sends: it opens no stream, polls nothing, and does not announce itself. It looks once for
    /// participants of another layout ([`Settings::implementation_check`]), and makes no registry checks.
    pub fn send_only(mut self) -> Self {
        self.send_only = true;
        self
    }

    /// Connecting fails when no server has answered within `limit`, instead of half a minute: for programs that somebody
    /// waits for. While servers answer and none is a primary, half a minute is waited at least. It concerns addresses, not
    /// back ends of the application's choice.
    pub fn reach_within(mut self, limit: Duration) -> Self {
        self.reach = limit;
        self
    }

    /// Decides about every message a listener of this bus rejects, in place of the default: no answer is sent, and
    /// the flags of the [`Reject`] count only if the handler heeds them. Should it panic, the message is given back.
    pub fn on_rejection<H, F>(mut self, handler: H) -> Self
    where
        H: Fn(Delivery, Reject) -> F + Send + Sync + 'static,
        F: Future<Output = Resolution> + Send + 'static,
    {
        self.rejection = Some(Box::new(move |delivery, reject| handler(delivery, reject).boxed()));
        self
    }

    /// The node's wall clock, ms since the epoch, in place of the system's: for simulations, and where a better one is
    /// known.
    pub fn wall_clock(mut self, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.clock = Some(Box::new(clock));
        self
    }

    /// Opens the bus, also one that only sends, when a server can be used. One that cannot be reached is an error after
    /// half a minute (see [`reach_within`](Self::reach_within)), one that cannot be used as the address says after a few
    /// seconds.
    pub async fn connect(self) -> Result<Bus, ConnectError> {
        let settings = self.settings;
        settings.validate()?;
        let names = Names::new(settings.layout, &settings.queue)?;
        let me = settings.sender_id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        let (backend, owns_backend): (Arc<dyn Backend>, _) = match self.target {
            Target::Backend(backend) => (backend, false),
            Target::Uri(uri) => {
                let driver = DriverBackend::connect(&uri, self.database.as_deref(), APP_NAME).await;
                let driver = driver.map_err(ConnectError::Address)?;
                driver.reach(self.reach).await.map_err(ConnectError::Unreachable)?;
                (Arc::new(driver), true)
            }
        };
        let mut node = Node::new(backend, settings, names, me, (self.send_only, owns_backend))?;
        node.rejection = self.rejection;
        if let Some(clock) = self.clock {
            node.clock = clock;
        }
        let node = Arc::new(node);
        if node.send_only {
            participants::look(&node).await?;
            registry::warn_if_unchecked(&node);
        } else {
            start(&node).await?;
        }
        Ok(Bus { node })
    }
}

async fn start(node: &Arc<Node>) -> Result<(), ConnectError> {
    participants::join(node).await?;
    if node.settings.status_info {
        status::register(node);
    }
    mailbox::warn_about_id(node);
    node.start();
    Ok(())
}
