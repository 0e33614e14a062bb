//! The change feed: recent events in order, and the streams that follow them.
//!
//! ```text
//! sequencer ─ publish ─► ring ─► dispatcher thread ─► one group a distinct pipeline ─► its streams
//! ```
//!
//! The dispatcher evaluates each distinct pipeline at most once per event, away from the sequencer, and wakes only
//! the streams of groups that matched (`groups.rs`). While few pipelines are followed, whoever publishes a few events
//! delivers them at once instead: that costs less than waking the dispatcher, and the streams hear of it sooner. A
//! stream that lags behind what its group remembers reads the ring itself, and so does the stream of a pipeline that
//! may take long: on a thread of its own, so that it holds up itself only.
//!
//! Invariants
//! * Every stream sees events in the log's order, each at most once; a position is a time in the log.
//! * A slow stream holds a position, not events. When its position falls out of the ring, it gets
//!   `ChangeStreamHistoryLost` and nobody else notices.
//! * Publishing never waits for a stream, nor does any stream for another one's pipeline.

use crate::event::{Event, Token, TokenKind, View};
use crate::groups::{CHUNK, EventPipeline, Found, Group, GroupKey, Groups, Scope};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::{Doc, Error, Result, Timestamp, code};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How many events are delivered in one go; streams open between two goes.
const DELIVERY_MAX: usize = 64;
/// Up to so many distinct pipelines, and so many undelivered events, are delivered by whoever publishes.
const DELIVER_AT_ONCE_MAX: usize = 4;
/// So many of the newest events are looked at before the others are searched.
const NEAR: usize = 8;
/// How long a stream of a pipeline that may take long evaluates before it delivers what it found.
const ASIDE_TIME: Duration = Duration::from_millis(50);
/// So many streams do so at one time; more wait for their turn.
const ASIDE_MAX: usize = 4;
/// Most events the ring keeps, whatever their size.
const RING_EVENTS_MAX: usize = 1_000_000;
/// The groups let go of what the ring has dropped once this part of its limit was dropped.
const FORGET_SHARE: usize = 16;

/// The feed.
pub struct Feed {
    shared: Arc<Shared>,
    dispatcher: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    ring: RwLock<Ring>,
    groups: Mutex<Groups>,
    /// Whether some group lost its last stream.
    abandoned: AtomicBool,
    /// Every group was given every event up to here.
    dispatched: AtomicU64,
    /// Bytes that the ring had dropped when the groups last let go of what it dropped. Moved like the mark.
    forgotten: AtomicU64,
    stopping: AtomicBool,
    /// Turns for streams that evaluate events themselves.
    aside: Arc<Semaphore>,
    wake: (Mutex<()>, Condvar),
    epoch: u32,
}

/// Recent events.
struct Ring {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    bytes_max: usize,
    /// Bytes of all events that were dropped.
    dropped: u64,
    /// Everything later than this is in the ring.
    complete_after: Timestamp,
    last: Timestamp,
}

/// What the ring holds, for status pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct FeedStats {
    /// Events in the ring.
    pub events: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Bytes allowed.
    pub bytes_max: usize,
    /// Distinct pipelines being followed.
    pub groups: usize,
    /// Streams may resume after this time.
    pub complete_after: Timestamp,
    /// Time of the newest event.
    pub last: Timestamp,
}

impl Feed {
    /// Starts the feed of a log whose last effect happened at `last`.
    pub fn start(epoch: u32, last: Timestamp, bytes_max: usize) -> std::io::Result<Feed> {
        let ring =
            Ring { events: VecDeque::new(), bytes: 0, bytes_max, dropped: 0, complete_after: last, last };
        let shared = Arc::new(Shared {
            ring: RwLock::new(ring),
            groups: Mutex::default(),
            abandoned: AtomicBool::new(false),
            dispatched: AtomicU64::new(last.bits()),
            forgotten: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            aside: Arc::new(Semaphore::new(ASIDE_MAX)),
            wake: (Mutex::new(()), Condvar::new()),
            epoch,
        });
        let worker = shared.clone();
        let thread = std::thread::Builder::new().name("feed".into()).spawn(move || worker.dispatch())?;
        Ok(Feed { shared, dispatcher: Mutex::new(Some(thread)) })
    }

    /// Takes in the events of a batch, which are in order and newer than all before.
    pub fn publish(&self, events: Vec<Arc<Event>>, upto: Timestamp) {
        let mut ring = self.shared.ring.write();
        ring.bytes += events.iter().map(|event| event.bytes()).sum::<usize>();
        ring.events.extend(events);
        ring.last = upto;
        ring.trim();
        drop(ring);
        if !self.shared.deliver_at_once() {
            self.shared.wake();
        }
    }

    /// Puts events from before the start of the feed in front: the log's recent history.
    pub fn preload(&self, events: Vec<Event>, complete_after: Timestamp) {
        let mut ring = self.shared.ring.write();
        for event in events.into_iter().rev() {
            ring.bytes += event.bytes();
            ring.events.push_front(Arc::new(event));
        }
        ring.complete_after = complete_after;
        ring.trim();
    }

    /// Opens a stream of what happens after `after`.
    pub fn follow(
        &self,
        scope: Scope,
        view: View,
        stages: bytes::Bytes,
        pipeline: Arc<dyn EventPipeline>,
        after: Timestamp,
    ) -> Result<ChangeStream> {
        self.shared.check_history(after)?;
        let group = self.shared.join(GroupKey { scope, view, stages }, pipeline);
        Ok(ChangeStream { shared: self.shared.clone(), group, position: after, owed: None, ended: false })
    }

    /// As [`Feed::follow`], after an event that its client has seen. If that event ended the stream, `invalidate` is
    /// what comes next. It is not known of an event that the history no longer holds.
    pub fn follow_event(
        &self,
        scope: Scope,
        view: View,
        stages: bytes::Bytes,
        pipeline: Arc<dyn EventPipeline>,
        seen: Timestamp,
    ) -> Result<ChangeStream> {
        let before = Timestamp::from_bits(seen.bits().saturating_sub(1));
        let event = self.shared.ring.read().after(before, 1).pop().filter(|event| event.at == seen);
        let owed = event.and_then(|event| scope.end_after(&event, self.shared.epoch));
        let mut stream = self.follow(scope, view, stages, pipeline, seen)?;
        stream.owed = owed;
        Ok(stream)
    }

    /// What the ring holds.
    pub fn stats(&self) -> FeedStats {
        let ring = self.shared.ring.read();
        FeedStats {
            events: ring.events.len(),
            bytes: ring.bytes,
            bytes_max: ring.bytes_max,
            groups: self.shared.groups().len(),
            complete_after: ring.complete_after,
            last: ring.last,
        }
    }

    /// Stops the dispatcher; streams then end with `ShutdownInProgress`.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.dispatcher.lock().take() {
            let _ = thread.join(); // a panic there was reported by the panic hook
        }
        let groups: Vec<_> = self.shared.groups.lock().iter().cloned().collect();
        groups.iter().for_each(|group| group.news.notify_waiters());
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Ring {
    /// Drops the oldest events until the limits hold; the newest one always stays.
    fn trim(&mut self) {
        while self.events.len() > 1 && (self.bytes > self.bytes_max || self.events.len() > RING_EVENTS_MAX) {
            if let Some(event) = self.events.pop_front() {
                let bytes = event.bytes();
                self.bytes -= bytes;
                self.dropped += bytes as u64;
                self.complete_after = event.at;
            }
        }
    }

    /// Up to `count_max` events after `after`.
    fn after(&self, after: Timestamp, count_max: usize) -> Vec<Arc<Event>> {
        // Who asks is mostly almost up to date.
        let newer = self.events.iter().rev().take(NEAR).take_while(|event| event.at > after).count();
        let start = match newer {
            NEAR => self.events.partition_point(|event| event.at <= after),
            _ => self.events.len() - newer,
        };
        self.events.range(start..).take(count_max).cloned().collect()
    }
}

impl Shared {
    fn wake(&self) {
        let _guard = self.wake.0.lock();
        self.wake.1.notify_one();
    }

    fn check_history(&self, after: Timestamp) -> Result<()> {
        let complete_after = self.ring.read().complete_after;
        if after < complete_after {
            let lost = "ChangeStreamHistoryLost: Resume of change stream was not possible, as the resume point may no longer be in the oplog.";
            return Err(Error::new(code::CHANGE_STREAM_HISTORY_LOST, lost));
        }
        Ok(())
    }

    /// The group for `key`, made if there is none.
    fn join(&self, key: GroupKey, pipeline: Arc<dyn EventPipeline>) -> Arc<Group> {
        let mut groups = self.groups();
        let complete_after = Timestamp::from_bits(self.dispatched.load(Ordering::Acquire));
        groups.join(key, pipeline, complete_after)
    }

    /// The groups that are followed.
    fn groups(&self) -> MutexGuard<'_, Groups> {
        let mut groups = self.groups.lock();
        if self.abandoned.swap(false, Ordering::AcqRel) {
            groups.sweep();
        }
        groups
    }

    /// The dispatcher's loop.
    fn dispatch(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            if self.deliver(&self.groups(), DELIVERY_MAX) {
                continue;
            }
            let mut guard = self.wake.0.lock();
            let dispatched = Timestamp::from_bits(self.dispatched.load(Ordering::Acquire));
            if self.ring.read().last <= dispatched && !self.stopping.load(Ordering::Acquire) {
                self.wake.1.wait_for(&mut guard, Duration::from_secs(1));
            }
        }
    }

    /// Delivers what was just published, if that is little work and nobody else is at it. Otherwise the dispatcher
    /// has to be woken.
    fn deliver_at_once(&self) -> bool {
        let Some(groups) = self.groups.try_lock() else { return false };
        if groups.len() > DELIVER_AT_ONCE_MAX {
            return false;
        }
        self.deliver(&groups, DELIVER_AT_ONCE_MAX);
        self.dispatched.load(Ordering::Acquire) >= self.ring.read().last.bits()
    }

    /// Gives the groups up to `count_max` events that they have not seen and moves the mark; whether there were any.
    /// Only who holds the groups moves the mark, so that no event is given twice.
    fn deliver(&self, groups: &Groups, count_max: usize) -> bool {
        let from = Timestamp::from_bits(self.dispatched.load(Ordering::Acquire));
        let forgotten = self.forgotten.load(Ordering::Relaxed);
        let (events, last, forget) = {
            let ring = self.ring.read();
            let is_much = ring.dropped - forgotten > (ring.bytes_max / FORGET_SHARE) as u64;
            (ring.after(from, count_max), ring.last, is_much.then_some((ring.complete_after, ring.dropped)))
        };
        if let Some((upto, dropped)) = forget {
            groups.iter().for_each(|group| group.forget(upto));
            self.forgotten.store(dropped, Ordering::Relaxed);
        }
        // Fewer than asked for are all there are: times without an event are behind us too.
        let upto = match events.last() {
            Some(newest) if events.len() == count_max => newest.at,
            _ => last,
        };
        if upto <= from {
            return false;
        }
        let mut news = Vec::new();
        events.iter().for_each(|event| groups.deliver(event, self.epoch, &mut news));
        self.dispatched.store(upto.bits(), Ordering::Release);
        news.sort_unstable_by_key(Arc::as_ptr);
        news.dedup_by(|a, b| Arc::ptr_eq(a, b));
        news.iter().for_each(|group| group.news.notify_waiters());
        true
    }
}

/// One client's change stream.
pub struct ChangeStream {
    shared: Arc<Shared>,
    group: Arc<Group>,
    /// Everything up to here was delivered or did not concern the stream.
    position: Timestamp,
    /// The event that ends the stream, if it is due before anything else.
    owed: Option<Doc>,
    ended: bool,
}

/// Some events of a stream.
#[derive(Debug, Default)]
pub struct Batch {
    /// The events' documents, in order.
    pub events: Vec<Doc>,
    /// Where to resume from after these.
    pub resume_token: Doc,
    /// Whether the stream is over (its last event is `invalidate`).
    pub ended: bool,
}

impl Drop for ChangeStream {
    fn drop(&mut self) {
        if self.group.leave() {
            self.shared.abandoned.store(true, Ordering::Release);
        }
    }
}

impl ChangeStream {
    /// The next events: at most `count_max` with at most `bytes_max` bytes (but at least one). Returns at once
    /// if there are some, otherwise when there are or when `wait` is over. Dropping the future loses nothing.
    pub async fn next(&mut self, count_max: usize, bytes_max: usize, wait: Duration) -> Result<Batch> {
        let deadline = Instant::now() + wait;
        loop {
            let group = self.group.clone();
            let mut news = std::pin::pin!(group.news.notified());
            news.as_mut().enable();
            let batch = self.take(count_max.max(1), bytes_max).await?;
            if !batch.events.is_empty() || batch.ended || Instant::now() >= deadline {
                return Ok(batch);
            }
            let _ = tokio::time::timeout_at(deadline.into(), news).await; // either way: look again
        }
    }

    /// What is there now.
    async fn take(&mut self, count_max: usize, bytes_max: usize) -> Result<Batch> {
        let (mut events, mut bytes) = (Vec::new(), 0);
        let mut token = None;
        if let Some(last) = self.owed.take() {
            token = last.get("_id").and_then(|id| id.as_document()).map(|id| id.to_doc());
            events.push(last);
            self.ended = true;
        }
        'more: while !self.ended && events.len() < count_max {
            if self.shared.stopping.load(Ordering::Acquire) {
                return Err(shutting_down());
            }
            let (found, seen_upto) = self.look().await?;
            let nothing = found.is_empty();
            for found in found {
                let size =
                    found.doc.as_ref().map_or(0, |doc| doc.as_ref().map_or(0, |doc| doc.bytes().len()));
                if events.len() >= count_max || (!events.is_empty() && bytes + size > bytes_max) {
                    break 'more;
                }
                match found.doc {
                    // What was gathered so far is delivered first; the failed event comes again and fails then.
                    Err(_) if !events.is_empty() => break 'more,
                    doc => {
                        if let Some(doc) = doc? {
                            check_id(&doc)?;
                            bytes += size;
                            token = doc.get("_id").and_then(|id| id.as_document()).map(|id| id.to_doc());
                            events.push(doc);
                        }
                    }
                }
                self.position = found.at;
                if let Some(last) = found.invalidate {
                    token = last.get("_id").and_then(|id| id.as_document()).map(|id| id.to_doc());
                    events.push(last);
                    self.ended = true;
                    break 'more;
                }
            }
            if seen_upto > self.position {
                self.position = seen_upto;
                token = None;
            } else if nothing {
                break;
            }
        }
        let resume_token = token.unwrap_or_else(|| self.high_water());
        Ok(Batch { events, resume_token, ended: self.ended })
    }

    /// What comes after the position, and up to where everything was looked at.
    async fn look(&self) -> Result<(Vec<Found>, Timestamp)> {
        let dispatched = Timestamp::from_bits(self.shared.dispatched.load(Ordering::Acquire));
        if let Some(found) = self.group.recall(self.position) {
            let upto = if found.len() < CHUNK { dispatched } else { self.position };
            // Events may have been remembered after the mark was read: they count, they are newer.
            let upto = found
                .last()
                .map_or(upto, |last| if found.len() < CHUNK { upto.max(last.at) } else { last.at });
            return Ok((found, upto));
        }
        self.shared.check_history(self.position)?;
        let events = self.shared.ring.read().after(self.position, CHUNK);
        let upto = events.last().map_or(self.position, |event| event.at);
        let (group, epoch) = (self.group.clone(), self.shared.epoch);
        if events.is_empty() || group.is_cheap() {
            let found = events.iter().filter_map(|event| group.evaluate(event, epoch)).collect();
            return Ok((found, upto));
        }
        let turn = self.shared.aside.clone().acquire_owned().await.map_err(|_| shutting_down())?;
        // Who waits for it may go away: then it ends as soon as it looks.
        let wanted = Arc::new(AtomicBool::new(true));
        let _until_dropped = StopWanting(wanted.clone());
        let interrupt = Interrupt::new(move || match wanted.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::new(code::INTERRUPTED, "operation was interrupted")),
        });
        let work = move || {
            let _turn = turn; // also if nobody waits for the result any more
            interrupt.during(|| group.evaluate_for(ASIDE_TIME, &events, epoch))
        };
        let evaluated = tokio::task::spawn_blocking(work).await;
        evaluated.map_err(|error| Error::new(code::INTERNAL_ERROR, format!("a pipeline failed: {error}")))
    }

    fn high_water(&self) -> Doc {
        Token { at: self.position, epoch: self.shared.epoch, kind: TokenKind::HighWater }.to_doc()
    }
}

/// Tells work that its result is not wanted any more.
struct StopWanting(Arc<AtomicBool>);

impl Drop for StopWanting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn shutting_down() -> Error {
    Error::new(code::SHUTDOWN_IN_PROGRESS, "The server is shutting down")
}

/// An event without its `_id` cannot be resumed from (MongoDB manual, change streams: modify output).
fn check_id(doc: &Doc) -> Result<()> {
    match doc.get("_id").and_then(|id| id.as_document()).and_then(|id| id.get("_data")) {
        Some(_) => Ok(()),
        None => {
            let message = "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. Modifying the _id field of an event makes it impossible to resume the stream from that point. Only transformations that retain the unmodified _id field are allowed.";
            Err(Error::new(code::CHANGE_STREAM_FATAL_ERROR, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Change, key_of};
    use crate::namespace::Namespace;
    use rockdove_documents::{Scanned, Value, doc};
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    struct Only(&'static str);

    impl EventPipeline for Only {
        fn apply(&self, event: &Scanned<'_>) -> Result<Option<Doc>> {
            let operation = event.get("operationType").and_then(|operation| operation.as_str());
            Ok((self.0.is_empty() || operation == Some(self.0)).then(|| event.doc().clone()))
        }

        fn is_cheap(&self) -> bool {
            true
        }
    }

    fn at(n: u64) -> Timestamp {
        Timestamp::from_bits(1000 + n)
    }

    fn insert(n: u64, ns: &str) -> Arc<Event> {
        let doc = doc! { "_id": n as i64 };
        Event::new(at(n), 0, Namespace::parse(ns).unwrap(), [0; 16], Change::Insert { doc }).into()
    }

    fn feed(bytes_max: usize) -> Feed {
        Feed::start(7, at(0), bytes_max).unwrap()
    }

    fn follow(feed: &Feed, scope: Scope, only: &'static str, after: u64) -> Result<ChangeStream> {
        feed.follow(
            scope,
            View::default(),
            bytes::Bytes::from_static(only.as_bytes()),
            Arc::new(Only(only)),
            at(after),
        )
    }

    async fn ids(stream: &mut ChangeStream, count: usize) -> Vec<i64> {
        let mut ids = Vec::new();
        while ids.len() < count {
            let batch = stream.next(3, 1 << 20, Duration::from_secs(5)).await.unwrap();
            assert!(!batch.events.is_empty(), "no event in 5 s after {ids:?}");
            for event in batch.events {
                let key =
                    event.get("documentKey").and_then(|key| key.as_document()).and_then(|key| key.get("_id"));
                ids.push(key.and_then(|id| id.as_integer()).unwrap_or(-1));
            }
        }
        ids
    }

    fn collection() -> Scope {
        Scope::Collection(Namespace::parse("a.b").unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn streams_see_their_scope_in_order_live_and_from_history() {
        let feed = feed(1 << 20);
        let mut live = follow(&feed, collection(), "", 0).unwrap();
        for n in 1..=40 {
            feed.publish(vec![insert(n, if n % 2 == 0 { "a.b" } else { "a.c" })], at(n));
        }
        let evens: Vec<i64> = (1..=20).map(|n| n * 2).collect();
        assert_eq!(ids(&mut live, 20).await, evens);
        let mut late = follow(&feed, collection(), "", 20).unwrap();
        assert_eq!(ids(&mut late, 10).await, evens[10..]);
        let mut database = follow(&feed, Scope::Database("a".into()), "insert", 0).unwrap();
        assert_eq!(ids(&mut database, 40).await, (1..=40).collect::<Vec<i64>>());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_quiet_stream_moves_its_resume_token_on() {
        let feed = feed(1 << 20);
        let mut quiet = follow(&feed, collection(), "delete", 0).unwrap();
        feed.publish(vec![insert(1, "a.b")], at(1));
        let mut token = Doc::empty();
        for _ in 0..100 {
            token = quiet.next(9, 99, Duration::from_millis(20)).await.unwrap().resume_token;
            if Token::parse(Value::Document(token.raw())).unwrap().at == at(1) {
                return;
            }
        }
        panic!("the token stayed at {token:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_slow_stream_loses_its_history_and_nobody_else_does() {
        let feed = feed(20 * insert(1, "a.b").bytes());
        let mut slow = follow(&feed, collection(), "", 0).unwrap();
        slow.group.leave();
        slow.group = feed.shared.join(
            GroupKey { scope: collection(), view: View::default(), stages: bytes::Bytes::from_static(b"x") },
            Arc::new(Only("")),
        );
        slow.group.matched.lock().complete_after = at(1_000_000);
        let mut quick = follow(&feed, collection(), "", 0).unwrap();
        for n in 1..=100 {
            feed.publish(vec![insert(n, "a.b")], at(n));
            assert_eq!(ids(&mut quick, 1).await, [n as i64]);
        }
        let lost = slow.next(9, 99, Duration::ZERO).await.unwrap_err();
        assert_eq!(lost.code.number, 286);
        assert!(follow(&feed, collection(), "", 50).is_err());
    }

    /// What the groups remember: events and bytes, as they are and as they are counted.
    fn remembered(feed: &Feed) -> (usize, usize) {
        let groups: Vec<_> = feed.shared.groups().iter().cloned().collect();
        groups.iter().map(|group| group.remembered()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }

    fn large(n: u64, bytes: usize) -> Arc<Event> {
        let doc = doc! { "_id": n as i64, "text": "x".repeat(bytes) };
        Event::new(at(n), 0, Namespace::parse("a.b").unwrap(), [0; 16], Change::Insert { doc }).into()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn groups_remember_no_more_bytes_than_they_may() {
        let feed = feed(1 << 30);
        let mut streams: Vec<_> =
            ["", "insert"].map(|only| follow(&feed, collection(), only, 0).unwrap()).into();
        for n in 1..=200 {
            feed.publish(vec![large(n, 100_000)], at(n));
        }
        for stream in &mut streams {
            // The streams see all of them: what their group has forgotten they read from the ring.
            assert_eq!(ids(stream, 200).await, (1..=200).collect::<Vec<i64>>());
        }
        let (events, bytes) = remembered(&feed);
        assert!(events > 2 && bytes <= 2 * (4 << 20), "{events} events, {bytes} bytes");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn groups_let_go_of_what_the_ring_has_dropped() {
        let feed = feed(500_000);
        let mut read = follow(&feed, collection(), "", 0).unwrap();
        let other = Scope::Collection(Namespace::parse("a.c").unwrap());
        let mut slow = follow(&feed, other, "", 0).unwrap();
        for n in 1..=20 {
            feed.publish(vec![large(n, 10_000)], at(n));
        }
        feed.publish(vec![insert(21, "a.c")], at(21));
        assert_eq!(ids(&mut read, 20).await, (1..=20).collect::<Vec<i64>>());
        assert_eq!(remembered(&feed).0, 21);
        // Nothing more concerns these groups, but the ring moves on.
        for n in 22..=2000 {
            feed.publish(vec![insert(n, "a.d")], at(n));
        }
        let mut last = follow(&feed, Scope::Cluster, "", 1999).unwrap();
        assert_eq!(ids(&mut last, 1).await, [2000]);
        assert!(feed.stats().complete_after > at(21));
        assert!(read.group.remembered().1 <= 64 << 10);
        // A little is kept for who has not read it yet.
        assert_eq!(ids(&mut slow, 1).await, [21]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_drop_ends_a_collection_stream_with_invalidate() {
        let feed = feed(1 << 20);
        let mut stream = follow(&feed, collection(), "", 0).unwrap();
        let drop = Event::new(at(2), 0, Namespace::parse("a.b").unwrap(), [0; 16], Change::Drop);
        feed.publish(vec![insert(1, "a.b"), drop.into()], at(2));
        let mut kinds = Vec::new();
        loop {
            let batch = stream.next(1, 1 << 20, Duration::from_secs(5)).await.unwrap();
            kinds.extend(
                batch.events.iter().map(|e| e.get("operationType").unwrap().as_str().unwrap().to_string()),
            );
            if batch.ended {
                break;
            }
        }
        assert_eq!(kinds, ["insert", "drop", "invalidate"]);
        assert_eq!(key_of(&doc! { "a": 1, "_id": 2 }), doc! { "_id": 2 });
    }

    /// Waits in every evaluation until it is let on.
    struct Slow(Mutex<std::sync::mpsc::Receiver<()>>);

    impl EventPipeline for Slow {
        fn apply(&self, event: &Scanned<'_>) -> Result<Option<Doc>> {
            let let_on = self.0.lock().recv_timeout(Duration::from_secs(30));
            let_on.map_err(|error| Error::bad_value(error.to_string()))?;
            Ok(Some(event.doc().clone()))
        }

        fn is_cheap(&self) -> bool {
            false
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_slow_pipeline_holds_up_its_own_stream_only() {
        let feed = feed(1 << 20);
        let (let_on, slow) = std::sync::mpsc::channel();
        let slow = Arc::new(Slow(Mutex::new(slow)));
        let stages = bytes::Bytes::from_static(b"slow");
        let mut slow = feed.follow(collection(), View::default(), stages, slow, at(0)).unwrap();
        let mut quick = follow(&feed, collection(), "", 0).unwrap();
        let mut cancelled = Box::pin(slow.next(9, 1 << 20, Duration::from_secs(30)));
        for n in 1..=3 {
            feed.publish(vec![insert(n, "a.b")], at(n)); // does not wait for the slow pipeline
            let waits = poll_fn(|context| Poll::Ready(cancelled.as_mut().poll(context).is_pending())).await;
            assert!(waits, "nothing was let on");
            assert_eq!(ids(&mut quick, 1).await, [n as i64]);
        }
        drop(cancelled);
        (0..10).for_each(|_| let_on.send(()).unwrap());
        assert_eq!(ids(&mut slow, 3).await, [1, 2, 3], "a cancelled wait loses nothing");
        drop(let_on);
        let turns =
            tokio::time::timeout(Duration::from_secs(5), feed.shared.aside.acquire_many(ASIDE_MAX as u32));
        assert!(turns.await.is_ok(), "turns come back");
    }

    #[tokio::test]
    async fn a_waiting_stream_is_told_of_the_shutdown() {
        let feed = feed(1 << 20);
        let mut stream = follow(&feed, collection(), "", 0).unwrap();
        let mut waiting = pin!(stream.next(1, 1, Duration::from_secs(30)));
        let waits = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await;
        assert!(waits, "there is no event");
        feed.stop();
        let ended = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap();
        assert_eq!(ended.unwrap_err().code.number, 91);
    }
}
