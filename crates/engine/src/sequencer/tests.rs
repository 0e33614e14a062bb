//! The sequencer on a disk that can be full, or worse.

use super::*;
use crate::command::{DeleteStatement, UpdateStatement};
use crate::effects::BatchDecoder;
use crate::log::Claim;
use parking_lot::Mutex;
use rockdove_documents::filter::Filter;
use rockdove_documents::update::Update;
use rockdove_documents::{Value, doc};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// A log on a disk that can be full, or worse.
#[derive(Clone)]
struct SmallDisk {
    /// How many batches fit.
    room: Arc<AtomicUsize>,
    panics: Arc<AtomicBool>,
    appended: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl SmallDisk {
    fn new() -> SmallDisk {
        let room = Arc::new(AtomicUsize::new(usize::MAX));
        SmallDisk { room, panics: Arc::default(), appended: Arc::default() }
    }

    /// The state that the batches lead to.
    fn replayed(&self) -> State {
        let (mut state, mut scratch) = (State::default(), Scratch::default());
        for batch in self.appended.lock().iter() {
            let decoder = BatchDecoder::new(batch.clone().into()).unwrap();
            let wall_ms = decoder.wall_ms;
            for effect in decoder {
                let (at, effect) = effect.unwrap();
                state.apply(at, wall_ms, &effect, None, &mut scratch).unwrap();
            }
        }
        state
    }

    /// Sizes of the batches from this one on.
    fn sizes(&self, from: usize) -> Vec<usize> {
        self.appended.lock()[from..].iter().map(Vec::len).collect()
    }
}

impl CommitLog for SmallDisk {
    fn append(&mut self, parts: &[&[u8]], _time_ns: u64, _worth: Worth) -> Result<u64, CommitError> {
        let mut appended = self.appended.lock();
        if appended.len() >= self.room.load(Ordering::Relaxed) {
            return Err(CommitError::NoSpace("no room".into()));
        }
        assert!(!self.panics.load(Ordering::Relaxed), "a panic in the middle of a batch");
        appended.push(parts.concat());
        Ok(appended.len() as u64)
    }

    fn claim(&self, _index: u64, level: Level, _value: u64) -> Box<dyn Claim> {
        Box::new(crate::log::InMemory(level))
    }

    fn request_sync(&self) {}

    fn room(&self) -> u64 {
        let batches = self.room.load(Ordering::Relaxed).saturating_sub(self.appended.lock().len());
        batches.saturating_mul(BATCH_BYTES_MAX) as u64
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

struct Running {
    requests: mpsc::Sender<Request>,
    desk: Arc<Desk>,
    waiters: Arc<Waiters>,
    published: Arc<ArcSwap<State>>,
    feed: Arc<Feed>,
}

/// A sequencer without a thread.
fn sequencer(log: SmallDisk) -> Sequencer {
    on(Box::new(log), Arc::default(), Valuation::default())
}

pub(super) fn on(log: Box<dyn CommitLog>, waiters: Arc<Waiters>, valuation: Valuation) -> Sequencer {
    Sequencer::new(Start {
        state: State::default(),
        sessions: Sessions::default(),
        log,
        index: 0,
        marks: VecDeque::new(),
        published: Arc::default(),
        feed: Arc::new(Feed::start(1, Timestamp::default(), 1 << 20).unwrap()),
        clock: Clock::system(),
        waiters,
        memory: Arc::new(Memory::new(1 << 30, 75, 90)),
        disk: Arc::default(),
        valuation,
    })
}

fn start(log: SmallDisk) -> Running {
    let sequencer = sequencer(log);
    let (published, feed) = (sequencer.published.clone(), sequencer.feed.clone());
    let waiters = sequencer.waiters.clone();
    let (requests, inbox) = mpsc::channel(16);
    let desk = Arc::new(Desk::new(sequencer));
    let works = desk.clone();
    std::thread::spawn(move || works.run(inbox));
    Running { requests, desk, waiters, published, feed }
}

fn ns() -> Namespace {
    Namespace::new("db", "c").unwrap()
}

type WriteAnswer = oneshot::Receiver<Result<WriteReply>>;

fn request(statement: Statement, retry: Option<Retry>, ack: Ack) -> (Request, WriteAnswer) {
    let (to, reply) = oneshot::channel();
    let statements = vec![statement];
    let write = Write { statements, ordered: true, retry, ack, bypass_validation: false, interrupt: None };
    (Request::Write(Box::new(write), None, to), reply)
}

/// The answer; none if the request was dropped.
async fn answer(reply: WriteAnswer) -> Option<Result<WriteReply>> {
    tokio::time::timeout(Duration::from_secs(10), reply).await.expect("an answer in time").ok()
}

async fn write(running: &Running, statement: Statement, retry: Option<Retry>) -> Result<WriteReply> {
    let (request, reply) = request(statement, retry, Ack::WRITTEN);
    running.requests.send(request).await.expect("the sequencer runs");
    answer(reply).await.expect("the sequencer answers")
}

fn insert(id: i32) -> Statement {
    Statement::Insert { ns: ns(), doc: doc! { "_id": id } }
}

#[test]
fn who_asks_never_waits_for_the_disk() {
    let disk = SmallDisk::new();
    let desk = Desk::new(sequencer(disk.clone()));
    let ask = |id| desk.try_now(request(insert(id), None, Ack::WRITTEN).0);
    assert!(ask(1).is_none());
    disk.room.store(1, Ordering::Relaxed);
    assert!(ask(2).is_some(), "the next batch needs a segment that is not there yet");
    assert_eq!(disk.appended.lock().len(), 1);
    disk.room.store(2, Ordering::Relaxed);
    assert!(ask(2).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_and_forgets_them_until_there_is_room() {
    let disk = SmallDisk::new();
    let running = start(disk.clone());
    write(&running, insert(1), None).await.unwrap();
    let (before, at) = (running.published.load_full(), running.feed.stats().last);
    disk.room.store(0, Ordering::Relaxed);
    let retry = Retry { session: bytes::Bytes::from_static(b"s"), number: 1, statements: vec![] };
    for refused in
        [write(&running, insert(2), Some(retry.clone())).await, write(&running, insert(3), None).await]
    {
        assert_eq!(refused.unwrap_err().code, code::OUT_OF_DISK_SPACE);
    }
    assert_eq!(running.published.load().at(), before.at());
    assert_eq!(running.published.load().collection(&ns()).unwrap().len(), 1);
    assert_eq!(running.feed.stats().last, at);
    disk.room.store(usize::MAX, Ordering::Relaxed);
    let again = write(&running, insert(2), Some(retry)).await.unwrap();
    assert_eq!((again.retried.len(), again.results), (0, vec![Ok(Outcome::Inserted)]));
    let delete = DeleteStatement { ns: ns(), filter: Filter::all(), multi: true, hint: None };
    let deleted = write(&running, Statement::Delete(Box::new(delete)), None).await.unwrap();
    assert_eq!(deleted.results, [Ok(Outcome::Deleted { count: 2 })]);
    assert_eq!(disk.appended.lock().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_document_goes_into_the_log_as_it_is() {
    let disk = SmallDisk::new();
    let running = start(disk.clone());
    let doc = doc! { "_id": 1, "text": "x".repeat(5000) };
    write(&running, Statement::Insert { ns: ns(), doc: doc.clone() }, None).await.unwrap();
    let stored = running.published.load().collection(&ns()).unwrap().get(1).unwrap().clone();
    // The very same bytes, not a copy of them.
    assert_eq!(stored.bytes().as_ptr(), doc.bytes().as_ptr());
    let logged = disk.appended.lock()[0].clone();
    assert!(logged.windows(doc.bytes().len()).any(|window| window == &doc.bytes()[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_ends_the_sequencer_on_whatever_thread_it_was() {
    for on_its_thread in [true, false] {
        let disk = SmallDisk::new();
        let running = start(disk.clone());
        write(&running, insert(1), None).await.unwrap();
        let before = running.published.load_full();
        disk.panics.store(true, Ordering::Relaxed);
        let (panics, reply) = request(insert(2), None, Ack::WRITTEN);
        if on_its_thread {
            running.requests.send(panics).await.expect("the sequencer runs");
        } else {
            let desk = running.desk.clone();
            let here = move || {
                let mut left = Some(panics);
                while let Some(request) = left {
                    left = desk.try_now(request); // its thread may still be on its way from the desk
                }
            };
            assert!(std::thread::spawn(here).join().is_err());
        }
        assert!(answer(reply).await.is_none());
        // What was half done is not seen, also when the log would take it again.
        disk.panics.store(false, Ordering::Relaxed);
        let (now, _) = request(insert(3), None, Ack::WRITTEN);
        let refused = running.desk.try_now(now).expect("nobody is at the desk");
        let (queued, reply) = request(insert(4), None, Ack::WRITTEN);
        if running.requests.send(queued).await.is_ok() {
            assert!(answer(reply).await.is_none());
        }
        drop(refused);
        running.requests.closed().await;
        assert!(running.desk.close().is_err());
        assert_eq!(disk.appended.lock().len(), 1);
        assert_eq!(running.published.load().at(), before.at());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_failed_disk_is_told_whenever_it_comes() {
    let running = start(SmallDisk::new());
    let synced = Arc::new(AtomicUsize::new(0));
    struct At(usize, Arc<AtomicUsize>);
    impl Claim for At {
        fn poll(&mut self) -> Result<Option<Acked>, String> {
            let is_synced = self.1.load(Ordering::Relaxed) >= self.0;
            Ok(is_synced.then_some(Acked { level: Level::Sync, degraded: false }))
        }
    }
    let wait = |index| {
        let (to, reply) = oneshot::channel();
        let claim = Box::new(At(index, synced.clone()));
        running.waiters.push(Pending { claim, asked: Level::Sync, reply: Reply::Settled(to) });
        reply
    };
    let (early, beyond) = (wait(1), wait(2));
    synced.store(1, Ordering::Relaxed);
    running.waiters.release();
    assert_eq!(early.await, Ok(Ok(Acked { level: Level::Sync, degraded: false })));
    running.waiters.fail("broken");
    for reply in [beyond, wait(2), wait(3)] {
        let told = tokio::time::timeout(Duration::from_secs(10), reply).await.expect("told in time");
        assert_eq!(told.unwrap().unwrap_err().code, code::WRITE_CONCERN_FAILED);
    }
}

const LARGE: usize = 1 << 20;
const COUNT: i32 = 12;

/// A collection that keeps images, with large documents.
fn large_documents(sequencer: &mut Sequencer) {
    let options = doc! { "changeStreamPreAndPostImages": { "enabled": true } };
    let (to, _) = oneshot::channel();
    let create = Definition::Create { ns: ns(), options };
    sequencer.carry_out([Request::Define(Box::new(create), None, Ack::WRITTEN, to)]);
    let index = doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": 0 };
    let (to, _) = oneshot::channel();
    let indexes = Definition::CreateIndexes { ns: ns(), specs: vec![index] };
    sequencer.carry_out([Request::Define(Box::new(indexes), None, Ack::WRITTEN, to)]);
    for id in 0..COUNT {
        let doc = doc! { "_id": id, "n": 0, "at": Value::DateTime(1), "text": "x".repeat(LARGE) };
        assert!(
            carried_out(sequencer, request(Statement::Insert { ns: ns(), doc }, None, Ack::WRITTEN)).is_ok()
        );
    }
}

fn carried_out(
    sequencer: &mut Sequencer,
    (request, mut reply): (Request, WriteAnswer),
) -> Result<WriteReply> {
    sequencer.carry_out([request]);
    reply.try_recv().expect("a request that is carried out is answered")
}

fn increment(query: Doc, multi: bool) -> Statement {
    let update = doc! { "$inc": { "n": 1 } };
    let update = Update::parse(Value::Document(update.raw()), None, &Default::default()).unwrap();
    let filter = Filter::parse(query.raw(), &Default::default()).unwrap();
    let (sort, hint) = (None, None);
    let ns = ns();
    Statement::Update(Box::new(UpdateStatement { ns, filter, update, multi, upsert: false, sort, hint }))
}

fn one_by_one() -> Vec<Statement> {
    (0..COUNT).map(|id| increment(doc! { "_id": id }, false)).collect()
}

/// `n` of each document, in order.
fn counts(state: &State) -> Vec<i64> {
    let collection = state.collection(&ns()).unwrap();
    collection.records().map(|(_, doc)| doc.get("n").unwrap().as_integer().unwrap()).collect()
}

fn write_request(statements: Vec<Statement>, retry: Option<Retry>) -> (Request, WriteAnswer) {
    let (to, reply) = oneshot::channel();
    let write = Write {
        statements,
        ordered: false,
        retry,
        ack: Ack::WRITTEN,
        bypass_validation: false,
        interrupt: None,
    };
    (Request::Write(Box::new(write), None, to), reply)
}

#[test]
fn a_large_write_goes_into_the_log_in_parts() {
    let delete = || {
        let delete = DeleteStatement { ns: ns(), filter: Filter::all(), multi: true, hint: None };
        vec![Statement::Delete(Box::new(delete))]
    };
    for statements in [vec![increment(doc! {}, true)], one_by_one(), delete(), vec![]] {
        let disk = SmallDisk::new();
        let mut sequencer = sequencer(disk.clone());
        large_documents(&mut sequencer);
        let before = disk.appended.lock().len();
        if statements.is_empty() {
            let (reply, mut count) = oneshot::channel();
            let collection = sequencer.state.collection(&ns()).unwrap().info.number;
            sequencer.carry_out([Request::Expire { collection, index: "at_1".into(), upto_ms: 2, reply }]);
            assert_eq!(count.try_recv(), Ok(COUNT as usize));
        } else {
            let reply = carried_out(&mut sequencer, write_request(statements, None)).unwrap();
            assert!(reply.results.iter().all(|result| result.is_ok()));
        }
        let sizes = disk.sizes(before);
        assert!(
            sizes.len() >= 3 && sizes.iter().all(|size| *size < BATCH_BYTES_MAX + 2 * LARGE),
            "{sizes:?}"
        );
        let counts_now = counts(&disk.replayed());
        assert_eq!(counts_now, counts(&sequencer.published.load()));
        assert!(counts_now.is_empty() || counts_now == [1; COUNT as usize]);
    }
}

#[test]
fn a_large_write_that_is_refused_midway_fails_alone_and_is_not_done_twice() {
    let retry = Retry { session: bytes::Bytes::from_static(b"s"), number: 1, statements: vec![] };
    for (statements, retry) in [(vec![increment(doc! {}, true)], None), (one_by_one(), Some(retry))] {
        let disk = SmallDisk::new();
        let mut sequencer = sequencer(disk.clone());
        large_documents(&mut sequencer);
        disk.room.store(disk.appended.lock().len() + 1, Ordering::Relaxed);
        let (before, mut first) = request(insert(100), None, Ack::WRITTEN);
        let (large, mut refused) = write_request(statements, retry.clone());
        let (after, mut last) = request(insert(101), None, Ack::WRITTEN);
        sequencer.carry_out([before, large, after]);
        assert!(first.try_recv().unwrap().is_ok());
        assert_eq!(refused.try_recv().unwrap().unwrap_err().code, code::OUT_OF_DISK_SPACE);
        assert_eq!(last.try_recv().unwrap().unwrap_err().code, code::OUT_OF_DISK_SPACE);
        let (published, replayed) = (sequencer.published.load_full(), disk.replayed());
        let done = |state: &State| {
            let collection = state.collection(&ns()).unwrap();
            collection.records().map(|(_, doc)| doc.get("n").and_then(|n| n.as_integer())).collect::<Vec<_>>()
        };
        assert_eq!(done(&published), done(&replayed));
        let some = done(&published).iter().filter(|n| **n == Some(1)).count();
        assert!(some > 0 && some < COUNT as usize, "{some}");
        disk.room.store(usize::MAX, Ordering::Relaxed);
        if retry.is_some() {
            let again = carried_out(&mut sequencer, write_request(one_by_one(), retry)).unwrap();
            assert_eq!(again.retried.len(), some);
            let all = done(&sequencer.published.load());
            assert_eq!(all.iter().filter(|n| **n == Some(1)).count(), COUNT as usize);
        }
    }
}

#[test]
fn statements_of_one_transaction_number_are_limited() {
    let mut sequencer = sequencer(SmallDisk::new());
    let retry = |first| Retry { session: b"s"[..].into(), number: 1, statements: vec![first] };
    let done = |first| Done { first, count: 1, result: Stored::Outcome(Outcome::Inserted) };
    let known = (1..STATEMENTS_MAX as i32).map(done).collect();
    sequencer.sessions.note(&retry(0), sequencer.clock.now_ms(), known, 0);
    let last = carried_out(&mut sequencer, request(insert(1), Some(retry(0)), Ack::WRITTEN));
    assert_eq!(last.unwrap().results, [Ok(Outcome::Inserted)]);
    let beyond = carried_out(&mut sequencer, request(insert(2), Some(retry(-1)), Ack::WRITTEN));
    assert_eq!(beyond.unwrap_err().code, code::BAD_VALUE);
    assert_eq!(sequencer.state.collection(&ns()).unwrap().len(), 1);
}

#[test]
fn an_expiry_that_is_refused_midway_is_taken_up_again() {
    let disk = SmallDisk::new();
    let mut sequencer = sequencer(disk.clone());
    large_documents(&mut sequencer);
    let collection = sequencer.state.collection(&ns()).unwrap().info.number;
    let expire = |sequencer: &mut Sequencer| {
        let (reply, mut count) = oneshot::channel();
        sequencer.carry_out([Request::Expire { collection, index: "at_1".into(), upto_ms: 2, reply }]);
        count.try_recv().unwrap()
    };
    disk.room.store(disk.appended.lock().len() + 1, Ordering::Relaxed);
    assert_eq!(expire(&mut sequencer), 0);
    let left = counts(&sequencer.published.load()).len();
    assert_eq!(left, counts(&disk.replayed()).len());
    assert!(left > 0 && left < COUNT as usize);
    disk.room.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(expire(&mut sequencer), left);
    assert!(counts(&disk.replayed()).is_empty());
}
