//! What is still stored while memory or disk is short.

use super::tests::on;
use super::*;
use crate::command::{DeleteStatement, UpdateStatement};
use crate::log::{JournalLog, MemoryLog};
use rockdove_documents::filter::Filter;
use rockdove_documents::update::Update;
use rockdove_documents::{Value, doc};
use rockdove_journal::sim::SimDisk;
use rockdove_journal::{Journal, Options, SyncPolicy};
use std::time::{Duration, Instant};

const LIMIT: u64 = 4 << 20;
const LARGE: usize = 64 << 10;
const MEMORY: Option<i32> = Some(146);
const DISK: Option<i32> = Some(14031);

fn ns(name: &str) -> Namespace {
    Namespace::new("db", name).unwrap()
}

/// A sequencer in memory only, with so much of it.
fn within(limit_bytes: u64) -> Sequencer {
    let mut sequencer = on(Box::new(MemoryLog::default()), Arc::default(), Valuation::default());
    sequencer.memory = Arc::new(Memory::new(limit_bytes, 75, 90));
    sequencer.state.tell_tiny(sequencer.memory.counts_as_tiny());
    sequencer
}

/// The code of the error, if it failed.
fn write(sequencer: &mut Sequencer, statement: Statement) -> Option<i32> {
    let (to, mut reply) = oneshot::channel();
    let (statements, ack) = (vec![statement], Ack::WRITTEN);
    let write =
        Write { statements, ordered: true, retry: None, ack, bypass_validation: false, interrupt: None };
    sequencer.carry_out([Request::Write(Box::new(write), None, to)]);
    let result = reply.try_recv().unwrap().and_then(|reply| Ok(reply.results[0].clone()?));
    result.err().map(|error| error.code.number)
}

fn define(sequencer: &mut Sequencer, definition: Definition) -> Option<i32> {
    let (to, mut reply) = oneshot::channel();
    sequencer.carry_out([Request::Define(Box::new(definition), None, Ack::WRITTEN, to)]);
    reply.try_recv().unwrap().err().map(|error| error.code.number)
}

fn insert(name: &str, id: i32, bytes: usize) -> Statement {
    Statement::Insert { ns: ns(name), doc: doc! { "_id": id, "x": "x".repeat(bytes) } }
}

fn update(name: &str, query: Doc, upsert: bool) -> Statement {
    change(name, query, doc! { "$set": { "by": "me" } }, upsert)
}

fn change(name: &str, query: Doc, update: Doc, upsert: bool) -> Statement {
    let update = Update::parse(Value::Document(update.raw()), None, &Default::default()).unwrap();
    let filter = Filter::parse(query.raw(), &Default::default()).unwrap();
    let (ns, sort, hint) = (ns(name), None, None);
    Statement::Update(Box::new(UpdateStatement { ns, filter, update, multi: false, upsert, sort, hint }))
}

fn delete(name: &str, query: Doc) -> Statement {
    let filter = Filter::parse(query.raw(), &Default::default()).unwrap();
    Statement::Delete(Box::new(DeleteStatement { ns: ns(name), filter, multi: true, hint: None }))
}

fn index(name: &str) -> Definition {
    Definition::CreateIndexes { ns: ns(name), specs: vec![doc! { "key": { "x": 1 }, "name": "x_1" }] }
}

/// Inserts until it is refused with `code`; how many documents went in.
fn fill(sequencer: &mut Sequencer, name: &str, bytes: usize, code: Option<i32>) -> i32 {
    for id in 0..100_000 {
        match write(sequencer, insert(name, id, bytes)) {
            None => {}
            refused => {
                assert_eq!(refused, code);
                return id;
            }
        }
    }
    panic!("it never filled");
}

/// What a queue needs to drain, and a node to come in.
fn is_drained(sequencer: &mut Sequencer) {
    assert_eq!(write(sequencer, insert("locks", 1, 100)), None, "a lock");
    assert_eq!(define(sequencer, index("locks")), None);
    assert_eq!(write(sequencer, update("queue", doc! { "_id": 1 }, false)), None, "a mark");
    assert_eq!(write(sequencer, delete("locks", doc! { "_id": 1 })), None);
    let create = Definition::Create { ns: ns("nodes"), options: doc! {} };
    assert_eq!(define(sequencer, create), None);
    assert_eq!(write(sequencer, update("nodes", doc! { "_id": 1 }, true)), None, "a node");
}

#[test]
fn a_full_memory_takes_small_documents_up_to_the_last_mark() {
    let mut sequencer = within(LIMIT);
    fill(&mut sequencer, "queue", LARGE, MEMORY);
    is_drained(&mut sequencer);
    assert_eq!(write(&mut sequencer, insert("queue", -1, 1)), MEMORY, "into what is large");
    assert_eq!(write(&mut sequencer, update("queue", doc! { "_id": (-1) }, true)), MEMORY);
    assert_eq!(write(&mut sequencer, insert("nodes", -1, 5000)), MEMORY, "what is large");
    assert_eq!(define(&mut sequencer, index("queue")), MEMORY);
    let small = fill(&mut sequencer, "other", 1000, MEMORY) as u64;
    assert!((10..=LIMIT / 256 / 1000 + 1).contains(&small), "{small}: no small collection any more");
    let many = (0..).take_while(|n| fill(&mut sequencer, &format!("c{n}"), 1000, MEMORY) > 0).count();
    assert!(many > 5);
    let stored = sequencer.stored_bytes() * 100 / LIMIT;
    assert!(
        (95..=100).contains(&stored),
        "{stored}: many small ones pass the last mark by what is for tiny ones"
    );
    let create = Definition::Create { ns: ns("late"), options: doc! {} };
    assert_eq!(define(&mut sequencer, create), MEMORY);
    assert_eq!(define(&mut sequencer, index("nodes")), MEMORY);
    assert_eq!(define(&mut sequencer, index("locks")), None, "it is there");
    assert_eq!(write(&mut sequencer, update("queue", doc! { "_id": 2 }, false)), None);
    assert_eq!(write(&mut sequencer, delete("queue", doc! {})), None);
    assert_eq!(write(&mut sequencer, insert("queue", 1, LARGE)), None);
}

/// The bytes of tiny collections, counted anew.
fn tiny_bytes(sequencer: &Sequencer) -> u64 {
    let mut state = sequencer.state.clone();
    state.tell_tiny(sequencer.memory.counts_as_tiny());
    state.tiny_bytes()
}

#[test]
fn locks_and_nodes_come_in_however_much_marks_have_added() {
    let mut sequencer = within(LIMIT);
    let count = fill(&mut sequencer, "queue", 500, MEMORY);
    let mark = doc! { "$set": { "processed_by": ["a".repeat(200)] } };
    for id in 0..count {
        assert_eq!(write(&mut sequencer, change("queue", doc! { "_id": id }, mark.clone(), false)), None);
    }
    assert!(sequencer.stored_bytes() * 100 / LIMIT > 110);
    is_drained(&mut sequencer);
    assert_eq!(sequencer.state.tiny_bytes(), tiny_bytes(&sequencer));
    let many = (0..).take_while(|n| fill(&mut sequencer, &format!("c{n}"), 1000, MEMORY) > 0).count();
    assert!(many > 5);
    assert_eq!(sequencer.state.tiny_bytes() * 100 / LIMIT, 5, "tiny ones have their part and no more");
    assert_eq!(write(&mut sequencer, delete("queue", doc! {})), None);
    assert_eq!(sequencer.state.tiny_bytes(), tiny_bytes(&sequencer));
    for collection in sequencer.state.clone().collections() {
        let drop = Definition::Drop { ns: collection.info.ns.clone() };
        assert_eq!(define(&mut sequencer, drop), None);
    }
    assert_eq!((sequencer.state.tiny_bytes(), sequencer.stored_bytes()), (0, 0));
}

#[test]
fn large_changes_are_refused_where_new_documents_are() {
    let mut sequencer = within(LIMIT);
    let one = || doc! { "_id": 1 };
    let set = |bytes: usize| change("queue", one(), doc! { "$set": { "x": "y".repeat(bytes) } }, false);
    let modify = |bytes: usize| Definition::Modify {
        ns: ns("queue"),
        changes: doc! { "validator": { "z": { "$ne": "z".repeat(bytes) } } },
    };
    fill(&mut sequencer, "queue", LARGE, MEMORY);
    assert_eq!(write(&mut sequencer, set(LARGE + 4000)), None);
    assert_eq!(write(&mut sequencer, set(LARGE + 9000)), MEMORY);
    assert_eq!(define(&mut sequencer, modify(5000)), MEMORY);
    let both = doc! { "index": { "name": "_id_", "hidden": true }, "validator": { "z": "z".repeat(5000) } };
    assert_eq!(define(&mut sequencer, Definition::Modify { ns: ns("queue"), changes: both }), MEMORY);
    let hidden =
        |sequencer: &Sequencer| sequencer.state.collection(&ns("queue")).unwrap().indexes()[0].spec.hidden;
    assert!(!hidden(&sequencer), "all or nothing");
    assert_eq!(define(&mut sequencer, modify(10)), None);
    assert_eq!(write(&mut sequencer, set(LARGE / 2)), None, "it gives something back");
    let stored = sequencer.stored_bytes();
    sequencer.memory = Arc::new(Memory::new(stored / 2, 75, 90));
    assert_eq!(write(&mut sequencer, set(LARGE / 2 + 1)), MEMORY, "nothing grows for ever");
    assert_eq!(write(&mut sequencer, set(LARGE / 2 - 1)), None);
}

#[test]
fn collections_without_documents_do_not_pass_the_last_mark() {
    let options = doc! { "validator": { "x": "x".repeat(3000) } };
    for options in [doc! {}, options] {
        let mut sequencer = within(LIMIT / 4);
        let create = |n: usize| Definition::Create { ns: ns(&format!("c{n}")), options: options.clone() };
        let refused = (0..10_000).find_map(|n| define(&mut sequencer, create(n)));
        assert_eq!((refused, sequencer.stored_bytes() * 100 / (LIMIT / 4)), (MEMORY, 95));
        for collection in sequencer.state.clone().collections() {
            assert_eq!(define(&mut sequencer, Definition::Drop { ns: collection.info.ns.clone() }), None);
        }
        assert_eq!(sequencer.stored_bytes(), 0);
    }
}

#[test]
fn a_short_disk_takes_small_documents_while_it_has_more_than_half_of_what_was_left() {
    let disk = SimDisk::new(1);
    let options = Options { sync: SyncPolicy::Never, segment_bytes: 1 << 20, ..Options::default() };
    let (journal, writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    disk.limit_space(Some(3 << 19)); // no second segment
    let log = JournalLog { journal: journal.clone(), writer };
    let mut sequencer = on(Box::new(log), Arc::default(), Valuation::default());
    let started = Instant::now();
    for id in 0.. {
        let refused = write(&mut sequencer, insert("queue", id, LARGE));
        if journal.room() < 7 << 16 {
            while !journal.is_short_of_space() {
                assert!(started.elapsed() < Duration::from_secs(30));
                std::thread::yield_now(); // the thread that makes segments finds it out
            }
        }
        if refused.is_some() {
            assert_eq!(refused, DISK);
            break;
        }
    }
    let room = journal.room();
    assert!(room > 200 << 10, "{room}");
    is_drained(&mut sequencer);
    assert_eq!(write(&mut sequencer, insert("nodes", -1, 5000)), DISK, "what is large");
    let set =
        |bytes: usize| change("queue", doc! { "_id": 1 }, doc! { "$set": { "x": "y".repeat(bytes) } }, false);
    assert_eq!(write(&mut sequencer, set(5000)), DISK, "it would shrink, but not in the log");
    assert_eq!(write(&mut sequencer, set(4000)), None);
    assert!(fill(&mut sequencer, "other", 1000, DISK) > 50);
    let left = journal.room();
    assert!(left < room / 2 + (16 << 10) && left > room / 2 - (8 << 10), "{left} of {room}");
    let create = |n: i32| Definition::Create { ns: ns(&format!("late{n}")), options: doc! {} };
    let refused = (0..20).find_map(|n| define(&mut sequencer, create(n)));
    assert_eq!(refused, DISK, "too little was left for many");
    for id in 0..20 {
        assert_eq!(write(&mut sequencer, update("queue", doc! { "_id": id }, false)), None);
    }
    for name in ["queue", "other"] {
        assert_eq!(write(&mut sequencer, delete(name, doc! {})), None);
    }
    disk.limit_space(None);
    journal.retry_space();
    while journal.is_short_of_space() {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    assert_eq!(write(&mut sequencer, insert("queue", 1, LARGE)), None);
}
