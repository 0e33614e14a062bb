//! A simulated node: an application with listeners and senders on a bus of the library.

use super::ledger::{End, Kind, Ledger, Sent};
use super::world::{Connection, Life, World};
use bson::oid::ObjectId;
use rockdove::{
    Bus, Delivery, HandlerError, Layout, Message, MessageId, Reject, Reply, RequestError, Settings,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub const NODES: usize = 4;
/// Topics of broadcasts, of exclusive messages, and of requests.
const TOPICS: [&str; 3] = ["news", "work", "questions"];
/// Long enough to outlive any disagreement of clocks.
const LASTING: Duration = Duration::from_secs(3 * 3600);
/// A clock is wrong by less than this, ms.
const CLOCK_ERROR_MS: u64 = 3_600_000;

pub fn name(node: usize) -> String {
    format!("n{node}")
}

/// One node; it may be dead.
pub struct Node {
    pub index: usize,
    world: Arc<World>,
    life: Arc<Life>,
    bus: Option<Bus>,
    offset_ms: Arc<AtomicI64>,
    tasks: Vec<AbortHandle>,
}

impl Node {
    pub fn new(world: &Arc<World>, index: usize) -> Self {
        let offset_ms = Arc::new(AtomicI64::new(0));
        Self {
            index,
            world: world.clone(),
            life: Life::new(index, 0),
            bus: None,
            offset_ms,
            tasks: Vec::new(),
        }
    }

    pub fn is_up(&self) -> bool {
        self.bus.is_some()
    }

    fn settings(&self) -> Settings {
        let polls_only = self.index == 3;
        Settings {
            layout: self.world.fake.layout,
            sender_id: Some(name(self.index)),
            poll_pause: Duration::from_secs(if polls_only { 5 } else { 1 }),
            use_change_stream: !polls_only,
            multithreaded: self.index != 2,
            registry: self.index < 2,
            ..Settings::default()
        }
    }

    /// Begins a new life. False when the server could not be reached.
    pub async fn start(&mut self) -> bool {
        let life = Life::new(self.index, self.life.number + 1);
        let connection =
            Connection { world: self.world.clone(), life: life.clone(), offset_ms: self.offset_ms.clone() };
        let clock = connection.clock();
        let builder = Bus::with_backend(Arc::new(connection)).settings(self.settings()).wall_clock(clock);
        let Ok(bus) = builder.connect().await else { return false };
        self.world.trace(format_args!("{} starts life {}", self.index, life.number));
        for topic in TOPICS {
            let app = App { world: self.world.clone(), life: life.clone() };
            let handler = move |delivery| app.clone().listen(delivery);
            bus.subscribe(topic, handler).await.unwrap();
        }
        (self.life, self.bus) = (life, Some(bus));
        true
    }

    /// Dies without a goodbye: from now on nothing of this life has an effect.
    pub fn kill(&mut self) {
        let Some(bus) = self.bus.take() else { return };
        self.world.trace(format_args!("{} is killed", self.index));
        self.end_life();
        tokio::spawn(async move { bus.shutdown().await }); // frees what it holds; the world hears nothing of it
    }

    /// Stops in good order.
    pub async fn stop(&mut self) {
        let Some(bus) = self.bus.take() else { return };
        self.world.trace(format_args!("{} stops", self.index));
        bus.shutdown().await;
        self.end_life();
    }

    fn end_life(&mut self) {
        let mut marked = BTreeSet::new();
        for document in self.world.fake.messages() {
            let message = Message::from_document(document).unwrap();
            if message.exclusive && message.is_processed_by(&name(self.index)) {
                marked.extend(Ledger::number_of(&message));
            }
        }
        let now = self.world.now_ms();
        self.world.ledger.lock().node_died(self.index, self.life.number, &marked, now);
        self.life.end();
        self.tasks.drain(..).for_each(|task| task.abort());
    }

    /// Sets the node's clock, right or wrong.
    pub fn set_clock(&self) {
        let offset = self.world.chance(|chance| match chance.percent(40) {
            true => 0,
            false => chance.below(2 * CLOCK_ERROR_MS) as i64 - CLOCK_ERROR_MS as i64,
        });
        self.world.trace(format_args!("{} has its clock off by {offset}", self.index));
        self.offset_ms.store(offset, Ordering::Relaxed);
    }

    pub fn pause(&self) {
        if let Some(bus) = &self.bus {
            bus.pause("work");
        }
    }

    pub fn resume(&self) {
        if let Some(bus) = &self.bus {
            bus.resume("work");
        }
    }

    /// Sends something. `calm`: nothing fails until everything is settled.
    pub fn send(&mut self, calm: bool) {
        let Some(bus) = self.bus.clone() else { return };
        let app = App { world: self.world.clone(), life: self.life.clone() };
        let task = tokio::spawn(async move { app.send(&bus, calm).await });
        self.tasks.retain(|task| !task.is_finished());
        self.tasks.push(task.abort_handle());
    }

    /// Whether senders are at work.
    pub fn is_sending(&self) -> bool {
        self.tasks.iter().any(|task| !task.is_finished())
    }

    /// What the node has not done, although it should have.
    pub fn unfinished(&self) -> Option<String> {
        let status = self.bus.as_ref()?.status();
        // The registry's own question always waits.
        let waiting = status.waiting_for_answers - i32::from(self.settings().registry);
        let rest = (waiting, status.in_progress, status.queued);
        (rest != (0, 0, 0)).then(|| format!("node {} (waiting, in progress, queued): {rest:?}", self.index))
    }
}

/// What the listeners and senders of one life know.
#[derive(Clone)]
struct App {
    world: Arc<World>,
    life: Arc<Life>,
}

/// Notes how a listener call ended; a call that is dropped was cancelled.
struct Call {
    app: App,
    number: u64,
    ended: bool,
}

impl Call {
    fn end(&mut self, end: End) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let (world, life) = (&self.app.world, &self.app.life);
        world.trace(format_args!("{} ends {} {end:?}", life.node, self.number));
        let now = world.now_ms();
        world.ledger.lock().end(self.number, life.node, life.number, end, now);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(End::Cancelled);
    }
}

impl App {
    async fn listen(self, delivery: Delivery) -> Result<Reply, HandlerError> {
        if self.life.is_over() {
            return Err(HandlerError::failed("dead"));
        }
        if delivery.is_answer() {
            return Ok(Reply::default()); // too late for its caller
        }
        let number = Ledger::number_of(&delivery).expect("a message of ours");
        let (world, life) = (&self.world, &self.life);
        world.trace(format_args!("{} begins {number}", life.node));
        world.ledger.lock().begin(number, life.node, life.number, world.now_ms());
        let stormy = world.is_stormy();
        let (time, end) = world.chance(|chance| {
            if !stormy {
                return (chance.millis(100), End::Processed);
            }
            let time = match chance.below(100) {
                0..2 => chance.millis(60_000),
                2..30 => chance.millis(1000),
                _ => Duration::ZERO,
            };
            let end = match chance.below(100) {
                0..8 => End::Failed,
                8..12 => End::Rejected,
                12..14 if !delivery.exclusive => End::Declined,
                _ => End::Processed,
            };
            (time, end)
        });
        let mut call = Call { app: self.clone(), number, ended: false };
        if !time.is_zero() {
            tokio::select! {
                biased;
                () = life.ended() => return Err(HandlerError::failed("dead")),
                () = tokio::time::sleep(time) => {}
            }
        }
        call.end(end);
        match end {
            End::Failed if number.is_multiple_of(2) => {
                std::panic::resume_unwind(Box::new("a listener panics"))
            }
            End::Failed => Err(HandlerError::failed("a listener fails")),
            End::Rejected => Err(Reject::new("busy").into()),
            End::Declined => Err(Reject::new("not mine").continue_processing().into()),
            _ if delivery.topic == "questions" => Ok(delivery.derive_answer().into()),
            _ => Ok(Reply::default()),
        }
    }

    /// Sends one message of a random kind.
    async fn send(&self, bus: &Bus, calm: bool) {
        let world = &self.world;
        let (me, layout) = (self.life.node, world.fake.layout);
        let (exclusive, addressed, asks, lasting, choice, other) = world.chance(|chance| {
            let asks = chance.percent(30);
            (
                chance.percent(50),
                chance.percent(40),
                asks,
                calm || chance.percent(90),
                chance.below(100),
                chance.below(3),
            )
        });
        let mut recipients = Vec::new();
        if addressed {
            recipients.push((me + 1 + other as usize) % NODES);
            if choice < 20 && !asks {
                recipients.push((recipients[0] + 1) % NODES);
                recipients.retain(|node| *node != me);
            }
        }
        let topic = TOPICS[if asks { 2 } else { usize::from(exclusive) }];
        let kind = if exclusive { Kind::Exclusive } else { Kind::Broadcast };
        let at_ms = world.now_ms();
        let entry = Sent {
            kind,
            sender: me,
            recipients: recipients.clone(),
            at_ms,
            sent: None,
            lasting,
            calm,
            excused: false,
            runs: Vec::new(),
        };
        let number = world.ledger.lock().enter(entry);
        world.trace(format_args!("{me} sends {number} on {topic}, exclusive {exclusive}, to {recipients:?}"));
        let mut id = [0; 12];
        id[4..].copy_from_slice(&number.to_be_bytes());
        let mut message = Message::new(topic)
            .with_id(MessageId::from(ObjectId::from_bytes(id)))
            .value(number.to_string())
            .exclusive(exclusive)
            .priority(400 + (choice % 3) as i32);
        if lasting {
            message = message.ttl(LASTING);
        }
        if choice >= 80 && (exclusive || (addressed && layout != Layout::Standard)) {
            message = message.delete_after_processing(Duration::from_secs(choice % 2 * 90));
        }
        for recipient in &recipients {
            message = message.to(name(*recipient));
        }
        let sent = match asks {
            false => bus.publish(message).await.is_ok(),
            true => self.ask(bus, message, number, calm, choice).await,
        };
        if let Some(entry) = world.ledger.lock().messages.get_mut(&number) {
            entry.sent = Some(sent);
        }
        world.trace(format_args!("{me} has sent {number}: {sent}"));
    }

    /// Asks and waits; whether the question was sent for sure.
    async fn ask(&self, bus: &Bus, message: Message, number: u64, calm: bool, choice: u64) -> bool {
        let begin = Instant::now();
        let limit = Duration::from_secs(if calm { 60 } else { 1 + choice % 40 });
        let lone = message.exclusive || !message.recipients.is_empty();
        let wanted = if lone { 1 } else { NODES - 1 };
        let answers = match choice % 2 {
            0 => bus.request_first(message, limit).await.map(|answer| vec![answer]),
            _ => bus.request_all(message, wanted, limit).await,
        };
        let late = begin.elapsed().saturating_sub(limit);
        let mut ledger = self.world.ledger.lock();
        if late > Duration::from_millis(1) {
            ledger.violation(format!("the sender of {number} waited {late:?} longer than it wanted"));
        }
        match answers {
            Ok(answers) => {
                let from: BTreeSet<_> = answers.iter().map(|answer| &answer.sender).collect();
                ledger.answers += answers.len() as u64;
                let right = answers.iter().all(|answer| Ledger::number_of(answer) == Some(number));
                if !right || (calm && from.len() < answers.len()) {
                    ledger.violation(format!("{number} has wrong answers: {answers:?}"));
                }
                let missing = if choice.is_multiple_of(2) { 1 } else { wanted };
                if calm && answers.len() < missing {
                    ledger.violation(format!("{number} has {} answers of {missing}", answers.len()));
                }
                true
            }
            Err(error) => {
                if calm {
                    ledger.violation(format!("{number} has no answer: {error}"));
                }
                !matches!(error, RequestError::Send(_) | RequestError::Timeout)
            }
        }
    }
}
