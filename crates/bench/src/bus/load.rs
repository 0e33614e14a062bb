//! The nodes of one target and the load they carry.

use super::pace;
use super::plan::{Drive, Plan, Stage};
use super::result::{Latency, Second, Step};
use super::target::{Reached, Target};
use crate::engine::cpu_time;
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use rockdove::{Bus, Delivery, HandlerError, Message, Reply};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const TOPIC: &str = "bench.load";
/// Messages on their way at any time in an open loop; what is due beyond that counts as failed.
const OUTSTANDING_MAX: usize = 8_000;
/// After the last message of a step, deliveries are waited for until none came for this long.
const SILENCE: Duration = Duration::from_secs(3);
/// Load of the warm-up, in messages a second.
const WARM_UP_RATE: f64 = 200.0;
/// Longest latency that the histograms hold.
const LATENCY_MAX: Duration = Duration::from_secs(600);

/// A target with its nodes, ready for load.
pub struct Station {
    name: String,
    reached: Reached,
    senders: Vec<Bus>,
    receivers: Vec<Bus>,
    inbox: Arc<Inbox>,
}

/// What the receivers know.
struct Inbox {
    /// Times in messages count from here.
    base: Instant,
    work: Duration,
    exclusive: bool,
    /// The running step; deliveries of earlier ones are late and not counted.
    step: AtomicU64,
    tally: Mutex<Tally>,
}

/// The deliveries of a step.
struct Tally {
    outbound: Histogram<u64>,
    /// By message, and by receiver if each gets it.
    seen: HashSet<(usize, u64)>,
    duplicates: u64,
    late: u64,
    in_time: u64,
    ends: Instant,
}

/// What the senders know.
struct Samples {
    started: Instant,
    duration: Duration,
    total: Histogram<u64>,
    back: Histogram<u64>,
    seconds: Vec<Histogram<u64>>,
    sent: u64,
    /// Answered requests; accepted messages where there are no answers.
    done: u64,
    in_time: u64,
    failed: u64,
    first_error: Option<String>,
    last: Option<Duration>,
    jitter: Duration,
}

/// What a message says about itself, in its text.
struct Note {
    step: u64,
    number: u64,
    /// When it was meant to be sent.
    at: Duration,
    answered: bool,
}

/// The load of one step.
#[derive(Clone)]
struct Load {
    plan: Arc<Plan>,
    stage: Stage,
    step: u64,
    base: Instant,
    senders: Arc<[Bus]>,
    payload: Arc<str>,
    samples: Arc<Mutex<Samples>>,
    next: Arc<AtomicU64>,
}

impl Station {
    /// Connects the nodes of a plan, on a queue of their own, and waits until they hear.
    pub async fn open(plan: &Plan, target: &Target) -> Result<Station> {
        let inbox = Arc::new(Inbox {
            base: Instant::now(),
            work: plan.work,
            exclusive: plan.exclusive,
            step: AtomicU64::new(0),
            tally: Mutex::new(Tally::new(Instant::now())?),
        });
        let reached = target.reach().await.with_context(|| target.name.clone())?;
        let queue = format!("bench{:08x}", rand::random::<u32>());
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for receiver in 0..plan.receivers {
            let bus = reached.node(plan, &queue).await.with_context(|| target.name.clone())?;
            let inbox = inbox.clone();
            bus.subscribe(TOPIC, move |request| inbox.clone().take(receiver, request)).await?;
            receivers.push(bus);
        }
        for _ in 0..plan.senders {
            senders.push(reached.node(plan, &queue).await.with_context(|| target.name.clone())?);
        }
        for bus in receivers.iter().chain(&senders) {
            bus.ready().await;
        }
        Ok(Station { name: target.name.clone(), reached, senders, receivers, inbox })
    }

    /// The target's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Load that is not counted.
    pub async fn warm_up(&self, plan: &Plan) -> Result<()> {
        if plan.warm_up.is_zero() {
            return Ok(());
        }
        let stage = Stage {
            label: "warm-up".into(),
            drive: Drive::Rate(WARM_UP_RATE),
            answered: plan.receivers > 0,
            duration: plan.warm_up,
        };
        let step = self.measure(plan, &stage, 0).await?;
        ensure!(step.done > 0, "{}: the warm-up failed: {:?}", self.name, step.first_error);
        Ok(())
    }

    /// Carries out one step.
    pub async fn measure(&self, plan: &Plan, stage: &Stage, round: u32) -> Result<Step> {
        let load = self.load(plan, stage)?;
        let (cpu, backend) = (cpu_time(), self.reached.backend_cpu());
        match stage.drive {
            Drive::Rate(rate) => load.open_loop(rate).await?,
            Drive::Window(window) => load.closed_loop(window).await?,
            Drive::Batch(batch) => load.batches(batch).await?,
        }
        if !stage.answered {
            let sent = load.samples.lock().done;
            self.settle(sent * plan.deliveries()).await;
        }
        let cpu = cpu_time().saturating_sub(cpu);
        let backend = self.reached.backend_cpu().zip(backend).map(|(now, before)| now.saturating_sub(before));
        Ok(self.result(plan, stage, round, &load.samples.lock(), (cpu, backend)))
    }

    /// The load of a step that begins now.
    fn load(&self, plan: &Plan, stage: &Stage) -> Result<Load> {
        let started = Instant::now();
        *self.inbox.tally.lock() = Tally::new(started + stage.duration)?;
        Ok(Load {
            plan: Arc::new(plan.clone()),
            stage: stage.clone(),
            step: self.inbox.step.fetch_add(1, Ordering::Relaxed) + 1,
            base: self.inbox.base,
            senders: self.senders.clone().into(),
            payload: "x".repeat(plan.payload_bytes).into(),
            samples: Arc::new(Mutex::new(Samples::new(started, stage.duration)?)),
            next: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Waits for deliveries that are still on their way.
    async fn settle(&self, expected: u64) {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            let now = self.inbox.tally.lock().seen.len() as u64;
            if now >= expected || (now == seen && since.elapsed() > SILENCE) {
                return;
            }
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn result(
        &self,
        plan: &Plan,
        stage: &Stage,
        round: u32,
        samples: &Samples,
        (cpu, backend_cpu): (Duration, Option<Duration>),
    ) -> Step {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / samples.done.max(1) as f64;
        let tally = self.inbox.tally.lock();
        let deliveries = plan.deliveries();
        let received = tally.seen.len() as u64;
        let (in_time, lost) = match stage.answered {
            true => (samples.in_time as f64, samples.sent - samples.done),
            false if deliveries == 0 => (samples.in_time as f64, samples.sent - samples.done),
            false => (
                tally.in_time as f64 / deliveries as f64,
                (samples.sent * deliveries).saturating_sub(received),
            ),
        };
        let total = if stage.answered { &samples.total } else { &tally.outbound };
        Step {
            target: self.name.clone(),
            label: stage.label.clone(),
            round,
            offered: match stage.drive {
                Drive::Rate(rate) => Some(rate),
                _ => None,
            },
            achieved: in_time / stage.duration.as_secs_f64(),
            accepted: samples.in_time as f64 / stage.duration.as_secs_f64(),
            sent: samples.sent,
            done: samples.done,
            received,
            lost,
            duplicates: tally.duplicates,
            late: tally.late,
            failed: samples.failed,
            first_error: samples.first_error.clone(),
            latency: Latency::of(total),
            outbound: Latency::of(&tally.outbound),
            back: stage.answered.then(|| Latency::of(&samples.back)),
            jitter_us: samples.jitter.as_secs_f64() * 1e6 / (samples.done.max(2) - 1) as f64,
            client_cpu_us: each(cpu),
            backend_cpu_us: backend_cpu.map(each),
            curve: Latency::curve(total),
            seconds: samples.seconds.iter().map(Second::of).collect(),
        }
    }

    /// Ends the nodes.
    pub async fn close(self) {
        for bus in self.senders.iter().chain(&self.receivers) {
            bus.shutdown().await;
        }
        self.reached.close().await;
    }
}

impl Load {
    async fn open_loop(&self, rate: f64) -> Result<()> {
        let (runtime, load) = (tokio::runtime::Handle::current(), self.clone());
        let free = Arc::new(Semaphore::new(OUTSTANDING_MAX));
        let permits = free.clone();
        tokio::task::spawn_blocking(move || {
            pace::keep(rate, load.stage.duration, |n, at| match permits.clone().try_acquire_owned() {
                Ok(permit) => {
                    let load = load.clone();
                    runtime.spawn(async move {
                        load.one(n, at).await;
                        drop(permit);
                    });
                }
                Err(_) => load.fail(at, format!("more than {OUTSTANDING_MAX} on their way")),
            })
        })
        .await?;
        // Each ends within the time limit of a request; a send within that of its retries.
        let _all = free.acquire_many(OUTSTANDING_MAX as u32).await?;
        Ok(())
    }

    async fn closed_loop(&self, window: usize) -> Result<()> {
        let mut tasks = JoinSet::new();
        let ends = Instant::now() + self.stage.duration;
        for _ in 0..window {
            let load = self.clone();
            tasks.spawn(async move {
                while Instant::now() < ends {
                    let n = load.next.fetch_add(1, Ordering::Relaxed);
                    load.one(n, Instant::now()).await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    async fn batches(&self, batch: usize) -> Result<()> {
        let mut tasks = JoinSet::new();
        let ends = Instant::now() + self.stage.duration;
        for sender in 0..self.senders.len() {
            let load = self.clone();
            tasks.spawn(async move {
                while Instant::now() < ends {
                    let first = load.next.fetch_add(batch as u64, Ordering::Relaxed);
                    let at = Instant::now();
                    let messages = (first..first + batch as u64).map(|n| load.message(n, at)).collect();
                    let sent = load.senders[sender].send_many(messages).await;
                    let mut samples = load.samples.lock();
                    samples.sent += batch as u64;
                    match sent {
                        Ok(ids) => samples.accept(ids.len() as u64),
                        Err(error) => samples.fail(error.to_string()),
                    }
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    fn message(&self, number: u64, at: Instant) -> Message {
        let at = at.saturating_duration_since(self.base);
        let note = Note { step: self.step, number, at, answered: self.stage.answered };
        Message::new(TOPIC).msg(note.to_text()).value(&*self.payload).exclusive(self.plan.exclusive)
    }

    /// Sends one message and, if it is a request, waits for its answer.
    async fn one(&self, number: u64, at: Instant) {
        let bus = &self.senders[number as usize % self.senders.len()];
        let message = self.message(number, at);
        self.samples.lock().sent += 1;
        if !self.stage.answered {
            let sent = bus.publish(message).await;
            let mut samples = self.samples.lock();
            return match sent {
                Ok(_) => samples.accept(1),
                Err(error) => samples.fail(error.to_string()),
            };
        }
        let answer = bus.request_first(message, self.plan.timeout).await;
        let now = Instant::now();
        match answer {
            Ok(answer) => {
                let mut samples = self.samples.lock();
                let arrived =
                    answer.msg.as_deref().and_then(|text| text.parse().ok()).map(Duration::from_nanos);
                let arrived = arrived.map(|arrived| self.base + arrived);
                samples.answered(now, now.saturating_duration_since(at), arrived);
            }
            Err(error) => self.fail(at, error.to_string()),
        }
    }

    /// What was to be sent at `at` had no success. A request counts with the time that was waited for its answer, its time
    /// limit at least: the latencies of an overloaded server would be of those that came through. In a closed loop
    /// the next ones waited, too, so that they are of those anyway.
    fn fail(&self, at: Instant, error: String) {
        let waited = at.elapsed().max(self.plan.timeout);
        let mut samples = self.samples.lock();
        samples.fail(error);
        if self.stage.answered && matches!(self.stage.drive, Drive::Rate(_)) {
            record(&mut samples.total, waited);
        }
    }
}

impl Samples {
    fn new(started: Instant, duration: Duration) -> Result<Samples> {
        Ok(Samples {
            started,
            duration,
            total: histogram(3)?,
            back: histogram(3)?,
            seconds: Vec::new(),
            sent: 0,
            done: 0,
            in_time: 0,
            failed: 0,
            first_error: None,
            last: None,
            jitter: Duration::ZERO,
        })
    }

    fn answered(&mut self, now: Instant, latency: Duration, arrived: Option<Instant>) {
        self.accept(1);
        record(&mut self.total, latency);
        if let Some(arrived) = arrived {
            record(&mut self.back, now.saturating_duration_since(arrived));
        }
        let second = now.saturating_duration_since(self.started).as_secs() as usize;
        while self.seconds.len() <= second.min(3600) {
            let Ok(empty) = histogram(2) else { return };
            self.seconds.push(empty);
        }
        record(&mut self.seconds[second.min(3600)], latency);
        self.jitter += self.last.map_or(Duration::ZERO, |last| last.abs_diff(latency));
        self.last = Some(latency);
    }

    fn accept(&mut self, count: u64) {
        self.done += count;
        if self.started.elapsed() <= self.duration {
            self.in_time += count;
        }
    }

    fn fail(&mut self, error: String) {
        self.failed += 1;
        self.first_error.get_or_insert(error);
    }
}

impl Tally {
    fn new(ends: Instant) -> Result<Tally> {
        Ok(Tally { outbound: histogram(3)?, seen: HashSet::new(), duplicates: 0, late: 0, in_time: 0, ends })
    }
}

impl Inbox {
    async fn take(self: Arc<Inbox>, receiver: usize, request: Delivery) -> Result<Reply, HandlerError> {
        let now = Instant::now();
        let note = request.msg.as_deref().and_then(Note::from_text);
        let note = note.ok_or_else(|| HandlerError::failed("not a message of this load"))?;
        let arrived = now.saturating_duration_since(self.base);
        {
            let mut tally = self.tally.lock();
            if note.step != self.step.load(Ordering::Relaxed) {
                tally.late += 1;
            } else if tally.seen.insert((if self.exclusive { 0 } else { receiver }, note.number)) {
                record(&mut tally.outbound, arrived.saturating_sub(note.at));
                tally.in_time += u64::from(now <= tally.ends);
            } else {
                tally.duplicates += 1;
            }
        }
        if !self.work.is_zero() {
            tokio::time::sleep(self.work).await;
        }
        let answer = note.answered.then(|| request.derive_answer().msg(arrived.as_nanos().to_string()));
        Ok(answer.into())
    }
}

impl Note {
    fn to_text(&self) -> String {
        format!("{} {} {} {}", self.step, self.number, self.at.as_nanos(), u8::from(self.answered))
    }

    fn from_text(text: &str) -> Option<Note> {
        let mut parts = text.split(' ').map(str::parse);
        let mut next = || parts.next()?.ok();
        let (step, number, at) = (next()?, next()?, Duration::from_nanos(next()?));
        Some(Note { step, number, at, answered: next()? == 1u64 })
    }
}

fn histogram(digits: u8) -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LATENCY_MAX.as_nanos() as u64, digits)?)
}

fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
}

#[cfg(test)]
mod tests {
    use super::super::plan::Profile;
    use super::*;

    /// The latencies in ms of a request that was meant to be sent `late_ms` ago, in a step driven so, whose receiver works
    /// for `work_ms` and whose sender waits for `timeout_ms`; and how many were answered.
    async fn latencies(drive: Drive, late_ms: u64, (work_ms, timeout_ms): (u64, u64)) -> (f64, f64, u64) {
        let plan = Plan {
            profile: Profile::Latency { rate: 1.0, seconds: 1.0 },
            layout: "StandardMessaging".into(),
            exclusive: false,
            polling: false,
            payload_bytes: 10,
            senders: 1,
            receivers: 1,
            work: Duration::from_millis(work_ms),
            timeout: Duration::from_millis(timeout_ms),
            warm_up: Duration::ZERO,
            rounds: 1,
        };
        let stage = Stage { label: String::new(), drive, answered: true, duration: Duration::from_secs(1) };
        let station = Station::open(&plan, &"embedded".parse().unwrap()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(late_ms)).await; // times in messages count from the opening
        let load = station.load(&plan, &stage).unwrap();
        load.one(0, Instant::now() - Duration::from_millis(late_ms)).await;
        let step = station.result(&plan, &stage, 1, &load.samples.lock(), (Duration::ZERO, None));
        station.close().await;
        (step.latency.p50 / 1e3, step.outbound.p50 / 1e3, step.done)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_late_answer_counts_from_the_time_that_was_meant() {
        let (latency, outbound, done) = latencies(Drive::Rate(1.0), 300, (0, 10_000)).await;
        assert!(latency >= 299.0 && outbound >= 299.0 && done == 1, "{latency} {outbound}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_without_answer_counts_with_its_time_limit_in_an_open_loop() {
        let (latency, _, done) = latencies(Drive::Rate(1.0), 0, (600, 200)).await;
        assert!(latency >= 199.0 && done == 0, "{latency}");
        assert_eq!(latencies(Drive::Window(1), 0, (600, 200)).await.0, 0.0);
    }
}
