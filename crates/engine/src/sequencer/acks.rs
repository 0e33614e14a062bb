//! Acknowledgement levels and value at risk through the sequencer, on a disk that is slow or fails.

use super::reply::WAITING_MANY;
use super::tests::on;
use super::*;
use crate::command::UpdateStatement;
use crate::log::JournalLog;
use crate::risk::VALUE_MAX;
use proptest::prelude::*;
use rockdove_documents::filter::Filter;
use rockdove_documents::update::Update;
use rockdove_documents::{DocBuilder, Value, doc};
use rockdove_journal::sim::SimDisk;
use rockdove_journal::{Cap, Journal, Options, RiskPolicy, SyncPolicy};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const CAP: u64 = 10;

struct Bench {
    disk: SimDisk,
    journal: Journal,
    sequencer: Sequencer,
}

fn bench(risk: Option<RiskPolicy>, fields: &[&str]) -> Bench {
    bench_on(SimDisk::new(1), risk, fields)
}

fn bench_on(disk: SimDisk, risk: Option<RiskPolicy>, fields: &[&str]) -> Bench {
    let options =
        Options { sync: SyncPolicy::Never, risk: risk.clone(), segment_bytes: 1 << 20, ..Options::default() };
    let (journal, writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    let waiters = Arc::new(Waiters::default());
    let released = waiters.clone();
    journal.on_synced(move |result| match result {
        Ok(_) => released.release(),
        Err(error) => released.fail(&error.to_string()),
    });
    let fields = fields.iter().map(|field| field.parse().unwrap()).collect();
    let valuation = Valuation { policy: risk, fields };
    let log = JournalLog { journal: journal.clone(), writer };
    Bench { disk, journal, sequencer: on(Box::new(log), waiters, valuation) }
}

fn capped() -> RiskPolicy {
    RiskPolicy { total: Some(CAP), ..RiskPolicy::default() }
}

fn ns(name: &str) -> Namespace {
    Namespace::new("db", name).unwrap()
}

type Answer = oneshot::Receiver<Result<WriteReply>>;

fn write(statement: Statement, ack: Ack, retry: Option<Retry>) -> (Request, Answer) {
    let (to, reply) = oneshot::channel();
    let statements = vec![statement];
    let write = Write { statements, ordered: true, retry, ack, bypass_validation: false, interrupt: None };
    (Request::Write(Box::new(write), None, to), reply)
}

fn insert(id: i64, ack: Ack) -> (Request, Answer) {
    write(Statement::Insert { ns: ns("c"), doc: doc! { "_id": id } }, ack, None)
}

fn valued(collection: &str, id: i64, value: i64) -> Statement {
    Statement::Insert { ns: ns(collection), doc: doc! { "_id": id, "v": value } }
}

fn worth(level: Level, value: u64) -> Ack {
    Ack { value, ..Ack::at(level) }
}

/// What an answer says, if it is there.
fn now(answer: &mut Answer) -> Option<Result<(Level, bool)>> {
    let reply = answer.try_recv().ok()?.expect("the write is carried out");
    Some(reply.receipt.acked.map(|acked| (acked.level, acked.degraded)))
}

fn soon(answer: &mut Answer) -> Result<(Level, bool)> {
    let started = Instant::now();
    loop {
        if let Some(told) = now(answer) {
            return told;
        }
        assert!(started.elapsed() < PATIENCE, "an answer in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Bench {
    fn carry_out<const N: usize>(&mut self, requests: [(Request, Answer); N]) -> [Answer; N] {
        let mut answers = Vec::new();
        let requests = requests.map(|(request, answer)| {
            answers.push(answer);
            request
        });
        self.sequencer.carry_out(requests);
        answers.try_into().expect("as many")
    }

    fn one(&mut self, request: (Request, Answer)) -> Answer {
        let [answer] = self.carry_out([request]);
        answer
    }

    /// Has everything synced that is written.
    fn settle(&mut self) {
        self.journal.request_sync();
        self.journal.wait_synced_blocking(self.journal.written(), PATIENCE).unwrap();
    }

    fn last_entry(&self) -> (u64, Option<Level>) {
        let entry = self.journal.read_from(self.journal.written()).unwrap().next().unwrap().unwrap();
        (entry.value, entry.level)
    }
}

#[test]
fn each_request_of_a_batch_is_answered_at_its_own_level() {
    let mut bench = bench(Some(capped()), &[]);
    let paused = bench.disk.pause_syncs(".seg");
    let levels = [
        worth(Level::Async, 0),
        worth(Level::Sync, 0),
        worth(Level::Replicated, 0),
        worth(Level::Risk, 3),
        worth(Level::QuorumSync, 2),
        worth(Level::ReplicatedOrSync, 0),
    ];
    let mut id = 0;
    let mut answers = bench.carry_out(levels.map(|ack| {
        id += 1;
        insert(id, ack)
    }));
    let at_once: Vec<_> = answers.iter_mut().map(|answer| now(answer).map(Result::unwrap)).collect();
    let (plain, degraded) = (Some((Level::Async, false)), Some((Level::Async, true)));
    assert_eq!(at_once, [plain, None, degraded, degraded, None, None]);
    assert_eq!(bench.last_entry(), (5, Some(Level::QuorumSync)), "the strictest, and the sum");
    assert_eq!(bench.journal.written(), 1, "one batch is one entry");
    drop(paused);
    assert_eq!(soon(&mut answers[1]), Ok((Level::Sync, false)));
    assert_eq!(soon(&mut answers[4]), Ok((Level::QuorumSync, false)));
    assert_eq!(soon(&mut answers[5]), Ok((Level::Sync, true)));
}

#[test]
fn an_entry_without_terms_stays_one() {
    let mut bench = bench(None, &[]);
    let mut answer = bench.one(insert(1, Ack::WRITTEN));
    assert_eq!(now(&mut answer), Some(Ok((Level::Async, false))));
    assert_eq!(bench.last_entry(), (0, None));
}

#[test]
fn risk_needs_a_policy_and_values_have_a_limit() {
    let mut without = bench(None, &[]);
    let refused = without.one(insert(1, worth(Level::Risk, 1))).try_recv().unwrap().unwrap_err();
    assert_eq!(refused.code, code::INVALID_OPTIONS);
    let mut large = without.one(insert(1, worth(Level::Sync, VALUE_MAX)));
    assert_eq!(soon(&mut large), Ok((Level::Sync, false)));
    let refused = without.one(insert(2, worth(Level::Sync, VALUE_MAX + 1))).try_recv().unwrap().unwrap_err();
    assert_eq!(refused.code, code::BAD_VALUE);
    assert_eq!(without.journal.written(), 1);
}

/// What would pass the cap is held, and what has a value cannot pass by asking for less.
#[test]
fn the_cap_holds_for_all_that_has_a_value() {
    for level in [Level::Async, Level::Replicated, Level::Risk, Level::ReplicatedOrSync] {
        let mut bench = bench(Some(capped()), &[]);
        let paused = bench.disk.pause_syncs(".seg");
        let mut small = bench.one(insert(1, worth(level, 6)));
        let mut large = bench.one(insert(2, worth(level, 5)));
        let mut nothing = bench.one(insert(3, worth(Level::Async, 0)));
        if level != Level::ReplicatedOrSync {
            assert_eq!(now(&mut small), Some(Ok((Level::Async, level != Level::Async))), "{level}");
        }
        assert_eq!(now(&mut large), None, "{level}");
        assert_eq!(now(&mut nothing), Some(Ok((Level::Async, false))));
        drop(paused);
        assert_eq!(soon(&mut large), Ok((Level::Sync, false)));
        assert!(bench.journal.exposure().acked_max <= CAP.into());
    }
    let mut soft = bench(Some(RiskPolicy { cap: Cap::Soft, ..capped() }), &[]);
    let _paused = soft.disk.pause_syncs(".seg");
    let mut beyond = soft.one(insert(1, worth(Level::Risk, 50)));
    assert_eq!(now(&mut beyond), Some(Ok((Level::Async, true))), "a soft cap holds nothing back");
}

#[test]
fn documents_have_their_value_in_a_field() {
    let mut bench = bench(Some(capped()), &["db.paid=v"]);
    let paused = bench.disk.pause_syncs(".seg");
    let mut answers = bench.carry_out([
        write(valued("paid", 1, 7), Ack::WRITTEN, None),
        write(valued("other", 1, 1000), Ack::WRITTEN, None),
        write(valued("paid", 2, 4), worth(Level::Async, 1), None),
    ]);
    assert_eq!(bench.last_entry(), (11, Some(Level::Risk)), "the larger of 1 and 4 counts");
    assert_eq!(now(&mut answers[0]), Some(Ok((Level::Async, false))));
    assert_eq!(now(&mut answers[1]), Some(Ok((Level::Async, false))));
    assert_eq!(now(&mut answers[2]), None, "7 and 4 are more than 10");
    drop(paused);
    assert_eq!(soon(&mut answers[2]), Ok((Level::Sync, false)));
    let set = |field: &str, value: i64, upsert, id: i64| {
        let fields = [(field, value)].iter().fold(DocBuilder::new(), |mut doc, (name, value)| {
            doc.append(name, *value);
            doc
        });
        let update = doc! { "$set": fields.finish() };
        let update = Update::parse(Value::Document(update.raw()), None, &Default::default()).unwrap();
        let filter = Filter::parse(doc! { "_id": id }.raw(), &Default::default()).unwrap();
        let (ns, multi, sort, hint) = (ns("paid"), false, None, None);
        Statement::Update(Box::new(UpdateStatement { ns, filter, update, multi, upsert, sort, hint }))
    };
    for (statement, value) in
        [(set("seen", 1, false, 1), 0), (set("v", 9, false, 1), 9), (set("v", 3, true, 9), 3)]
    {
        let mut answer = bench.one(write(statement, Ack::WRITTEN, None));
        soon(&mut answer).unwrap();
        assert_eq!(bench.last_entry().0, value);
    }
    for wrong in [valued("paid", 3, -1), set("v", -1, false, 1), set("v", -1, true, 10)] {
        let (request, mut answer) = write(wrong, Ack::WRITTEN, None);
        bench.sequencer.carry_out([request]);
        let reply = answer.try_recv().unwrap().unwrap();
        assert_eq!(reply.results[0].as_ref().unwrap_err().error.code, code::BAD_VALUE);
    }
    let renamed = Definition::Rename { from: ns("other"), to: ns("paid"), drop_target: true };
    let (to, mut reply) = oneshot::channel();
    let _paused = bench.disk.pause_syncs(".seg");
    bench.sequencer.carry_out([Request::Define(Box::new(renamed), None, Ack::WRITTEN, to)]);
    assert!(reply.try_recv().is_err(), "what was not counted under the former name waits for the disk");
}

/// The first try was perhaps never acknowledged: its value is not in the account.
#[test]
fn repetitions_of_what_has_a_value_wait_for_the_disk() {
    let mut bench = bench(Some(capped()), &["db.paid=v"]);
    let _paused = bench.disk.pause_syncs(".seg");
    let retry = || Some(Retry { session: b"s"[..].into(), number: 1, statements: vec![0] });
    drop(bench.one(write(valued("paid", 1, 3), Ack::WRITTEN, retry())));
    let mut again = bench.one(write(valued("paid", 1, 3), Ack::WRITTEN, retry()));
    assert_eq!(now(&mut again), None);
    let mut duplicate = bench.one(write(valued("paid", 1, 3), Ack::WRITTEN, None));
    assert_eq!(now(&mut duplicate), None);
    drop(bench.one(write(valued("paid", 2, 0), Ack::WRITTEN, None)));
    let mut worthless = bench.one(write(valued("paid", 2, 0), Ack::WRITTEN, None));
    assert!(
        now(&mut worthless).is_some(),
        "a lock in such a collection has no value, and its loser does not wait"
    );
    drop(bench.one(write(valued("free", 1, 3), Ack::WRITTEN, None)));
    let mut free = bench.one(write(valued("free", 1, 3), Ack::WRITTEN, None));
    assert!(now(&mut free).is_some(), "without a value there is nothing to count");
}

#[test]
fn a_deferred_write_says_what_is_owed() {
    let mut bench = bench(Some(capped()), &[]);
    let paused = bench.disk.pause_syncs(".seg");
    let deferred = |ack| Ack { deferred: true, ..ack };
    let mut plain = bench.one(insert(1, deferred(Ack::WRITTEN)));
    assert_eq!(plain.try_recv().unwrap().unwrap().receipt.owed, None);
    let mut synced = bench.one(insert(2, deferred(Ack::SYNCED)));
    let mut risky = bench.one(insert(3, deferred(worth(Level::Risk, 4))));
    let owed = |answer: &mut Answer| answer.try_recv().unwrap().unwrap().receipt.owed;
    let (synced, risky) = (owed(&mut synced), owed(&mut risky));
    assert_eq!(bench.journal.exposure().acked, 0, "not told yet");
    let mut settle = |owed: Option<Owed>| {
        assert!(owed.is_some());
        let (to, reply) = oneshot::channel();
        bench.sequencer.carry_out([Request::Settle(owed, to)]);
        reply
    };
    let (mut synced, mut risky) = (settle(synced), settle(risky));
    assert!(synced.try_recv().is_err());
    assert_eq!(risky.try_recv(), Ok(Ok(Acked { level: Level::Async, degraded: true })));
    assert_eq!(bench.journal.exposure().acked, 4);
    drop(paused);
    assert_eq!(synced.blocking_recv(), Ok(Ok(Acked { level: Level::Sync, degraded: false })));
}

/// F7 through the engine: carried out, and not acknowledged; later writes are refused.
#[test]
fn a_failed_disk_acknowledges_what_is_written_and_nothing_else() {
    let mut bench = bench(Some(capped()), &[]);
    bench.disk.fail_syncs(Some(ErrorKind::Other));
    // What is over the cap asks for the sync at once: it shall not fail before all were asked.
    let paused = bench.disk.pause_syncs(".seg");
    let mut answers = bench.carry_out([
        insert(1, Ack::WRITTEN),
        insert(2, Ack::SYNCED),
        insert(3, worth(Level::Risk, 10)),
        insert(4, worth(Level::Risk, 1)),
    ]);
    drop(paused);
    assert_eq!(soon(&mut answers[0]), Ok((Level::Async, false)));
    assert_eq!(soon(&mut answers[1]).unwrap_err().code, code::WRITE_CONCERN_FAILED);
    assert_eq!(soon(&mut answers[2]), Ok((Level::Async, true)), "within the cap");
    assert_eq!(soon(&mut answers[3]).unwrap_err().code, code::WRITE_CONCERN_FAILED);
    assert_eq!(bench.sequencer.published.load().collection(&ns("c")).unwrap().len(), 4);
    let refused = bench.one(insert(5, Ack::WRITTEN)).try_recv().unwrap().unwrap_err();
    assert_eq!(refused.code, code::INTERNAL_ERROR);
    assert_eq!(bench.sequencer.published.load().collection(&ns("c")).unwrap().len(), 4);
    let (to, mut settled) = oneshot::channel();
    bench.sequencer.carry_out([Request::Settle(None, to)]);
    assert_eq!(settled.try_recv().unwrap().unwrap_err().code, code::WRITE_CONCERN_FAILED);
    assert_eq!((bench.journal.synced(), bench.journal.exposure().acked), (0, 10));
}

#[test]
fn a_refused_batch_does_not_take_back_what_was_written_before() {
    let mut bench = bench_on(SimDisk::unmapped(1), None, &[]);
    let deferred = Ack { deferred: true, ..Ack::SYNCED };
    let mut early = bench.one(insert(1, deferred));
    let owed = early.try_recv().unwrap().unwrap().receipt.owed;
    bench.disk.fail_writes(Some(ErrorKind::StorageFull));
    let (late, mut refused) = insert(2, Ack::WRITTEN);
    let (to, settled) = oneshot::channel();
    bench.sequencer.carry_out([late, Request::Settle(owed, to)]);
    assert_eq!(refused.try_recv().unwrap().unwrap_err().code, code::OUT_OF_DISK_SPACE);
    assert_eq!(settled.blocking_recv(), Ok(Ok(Acked { level: Level::Sync, degraded: false })));
}

#[test]
fn callers_that_have_gone_are_forgotten() {
    let mut bench = bench(None, &[]);
    let _paused = bench.disk.pause_syncs(".seg");
    let mut stays = bench.one(insert(0, Ack::SYNCED));
    for id in 1..=3 * WAITING_MANY as i64 {
        drop(bench.one(insert(id, Ack::SYNCED)));
    }
    let waiting = bench.sequencer.waiters.count();
    assert!((1..=WAITING_MANY + 1).contains(&waiting), "{waiting}");
    drop(_paused);
    assert_eq!(soon(&mut stays), Ok((Level::Sync, false)));
}

#[derive(Clone, Debug)]
struct Step {
    level: Level,
    given: u64,
    field: i64,
    /// Ends the batch.
    ends: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let level = prop::sample::select(Level::ALL.to_vec());
    let step = (level, 0u64..8, -2i64..8, any::<bool>()).prop_map(|(level, given, field, ends)| Step {
        level,
        given,
        field,
        ends,
    });
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// I7 through the engine: while nothing becomes safe, what was acknowledged without a sync never has more value
    /// than the cap, whatever was asked for and however it was gathered in batches; when the disk goes on, all are
    /// answered, and when it fails, none of those that waited is.
    #[test]
    fn acknowledged_exposure_never_passes_the_cap(rounds in prop::collection::vec(steps(), 1..4), fails: bool) {
        let mut bench = bench(Some(RiskPolicy { single: Some(7), ..capped() }), &["db.paid=v"]);
        let (mut id, last) = (0, rounds.len() - 1);
        for (round, steps) in rounds.into_iter().enumerate() {
            bench.settle();
            let paused = bench.disk.pause_syncs(".seg");
            let (mut waiting, mut requests) = (Vec::new(), Vec::new());
            for step in steps {
                id += 1;
                let ack = worth(step.level, step.given);
                let (request, answer) = write(valued("paid", id, step.field), ack, None);
                let is_stored = step.field >= 0;
                let value = if is_stored { step.given.max(step.field as u64) } else { step.given };
                waiting.push((value, answer));
                requests.push(request);
                if step.ends {
                    bench.sequencer.carry_out(std::mem::take(&mut requests));
                }
            }
            bench.sequencer.carry_out(requests);
            let mut acked = 0;
            waiting.retain_mut(|(value, answer)| match now(answer) {
                Some(told) => {
                    // What wrote nothing waits for what was there before: that is on disk.
                    if told.unwrap().0 == Level::Async {
                        acked += *value;
                    }
                    false
                }
                None => true,
            });
            prop_assert!(acked <= CAP, "{acked}");
            prop_assert!(bench.journal.exposure().acked <= CAP.into());
            let fails = fails && round == last;
            if fails {
                bench.disk.fail_syncs(Some(ErrorKind::Other));
            }
            drop(paused);
            bench.journal.request_sync();
            for (_, answer) in &mut waiting {
                let told = soon(answer);
                prop_assert!(if fails { told.is_err() } else { told.is_ok() }, "{told:?}");
            }
            prop_assert!(bench.journal.exposure().acked_max <= CAP.into());
        }
    }
}
