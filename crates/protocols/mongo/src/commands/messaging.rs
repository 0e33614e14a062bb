//! What Morphium's messaging expects of PoppyDB: registrations, and `lock_released` events.
//!
//! A node that believes to talk to PoppyDB does not watch the lock collections itself: its stream on a queue's
//! main collection asks for `lock_released`. Such a stream follows the whole database here, and the deletion of a
//! lock becomes that event. A queue's lock collection is known by its name, so that nothing depends on being
//! registered; a registered one counts too.

use super::Spec;
use crate::dispatch::Call;
use crate::errors::Result;
use crate::options::Fields;
use crate::shared::Shared;
use parking_lot::Mutex;
use rockdove_documents::{Doc, DocBuilder, Scanned, Value};
use rockdove_engine::{EventPipeline, Namespace};
use std::collections::{BTreeMap, BTreeSet};

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::now("registerMessagingCollection", Spec::POPPYDB, register),
    Spec::now("unregisterMessagingSubscriber", Spec::POPPYDB, unregister),
    Spec::now("getMessagingStats", Spec::POPPYDB, stats),
];

/// Most collections and, for each, most subscribers that are remembered; more are served all the same.
const REMEMBERED_MAX: usize = 10_000;

/// Who said to take part in which queue.
#[derive(Debug, Default)]
pub struct Registrations {
    queues: Mutex<BTreeMap<String, Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    lock_collection: String,
    subscribers: BTreeSet<String>,
}

fn register(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let fields = Fields::new("registerMessagingCollection", call.command())?;
    let collection = fields.required_string("registerMessagingCollection")?;
    let lock_collection = fields.string("lockCollection")?.unwrap_or_default();
    let sender = fields.string("senderId")?.unwrap_or_default();
    let mut queues = call.shared.registrations.queues.lock();
    let name = format!("{}.{collection}", call.database);
    let mut subscribers = 0;
    if queues.len() < REMEMBERED_MAX || queues.contains_key(&name) {
        let queue = queues.entry(name).or_default();
        queue.lock_collection = lock_collection.to_string();
        if !sender.is_empty() && queue.subscribers.len() < REMEMBERED_MAX {
            queue.subscribers.insert(sender.to_string());
        }
        subscribers = queue.subscribers.len();
    }
    reply.append("registered", true).append("collection", collection);
    reply.append("lockCollection", lock_collection).append("subscriberCount", subscribers as i32);
    reply.start_array("optimizations").push("fastChangeStream").push("serverSideFiltering").end();
    Ok(())
}

fn unregister(call: &Call<'_>, _: &mut DocBuilder) -> Result<()> {
    let fields = Fields::new("unregisterMessagingSubscriber", call.command())?;
    let named = fields.string("unregisterMessagingSubscriber").ok().flatten();
    let collection = match named.or(fields.string("collection")?) {
        Some(collection) => collection,
        None => return Err(fields.missing("collection").into()),
    };
    let sender = fields.string("senderId")?.unwrap_or_default();
    let mut queues = call.shared.registrations.queues.lock();
    let name = format!("{}.{collection}", call.database);
    if let Some(queue) = queues.get_mut(&name) {
        queue.subscribers.remove(sender);
        if queue.subscribers.is_empty() {
            queues.remove(&name);
        }
    }
    Ok(())
}

fn stats(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    reply.start_array("registrations");
    for (name, queue) in call.shared.registrations.queues.lock().iter() {
        reply.push_document().append("collection", name).append("lockCollection", &queue.lock_collection);
        reply.append("subscriberCount", queue.subscribers.len() as i32).end();
    }
    reply.end();
    Ok(())
}

/// Whether a stream's stages (or any bytes) name the event.
pub fn names_lock_releases(stages: &[u8]) -> bool {
    let name = b"lock_released";
    stages.windows(name.len()).any(|part| part == name)
}

/// A stream of one collection that also hears of released locks.
pub struct LockReleases {
    main: Namespace,
    /// The lock collection that was registered for it.
    registered: String,
    stages: Box<dyn EventPipeline>,
}

impl LockReleases {
    /// The stream of `main` through `stages`.
    pub fn new(shared: &Shared, main: &Namespace, stages: Box<dyn EventPipeline>) -> LockReleases {
        let queues = shared.registrations.queues.lock();
        let registered = queues.get(main.full()).map_or(String::new(), |queue| queue.lock_collection.clone());
        LockReleases { main: main.clone(), registered, stages }
    }

    /// What tells its evaluation from that of other streams of the database.
    pub fn key(&self, stages: &[u8]) -> bytes::Bytes {
        [self.main.full().as_bytes(), &[0], self.registered.as_bytes(), &[0], stages].concat().into()
    }

    /// Whether a collection holds the locks of the main one (Morphium's naming: `<main>_lck`, and
    /// `<queue>_lck_<topic>` for `<queue>_<topic>`).
    fn is_lock_collection(&self, name: &str) -> bool {
        let main = self.main.collection();
        name == self.registered
            || name.strip_suffix("_lck") == Some(main)
            || name.split_once("_lck_").is_some_and(|(queue, topic)| {
                main.strip_prefix(queue).and_then(|rest| rest.strip_prefix('_')) == Some(topic)
            })
    }

    /// The deletion of a lock as the event of its release.
    fn released(&self, event: &Doc, lock_collection: &str) -> Doc {
        let mut out = DocBuilder::with_capacity(event.bytes().len() + 64);
        for element in event.raw() {
            match element.key() {
                "operationType" => {
                    out.append("operationType", "lock_released");
                }
                "ns" => {
                    out.start_document("ns").append("db", self.main.database());
                    out.append("coll", self.main.collection()).end();
                }
                _ => {
                    out.append_element(element);
                }
            }
        }
        out.append("lockCollection", lock_collection);
        out.finish()
    }
}

impl EventPipeline for LockReleases {
    fn apply(&self, event: &Scanned<'_>) -> rockdove_documents::Result<Option<Doc>> {
        let Some(Value::Document(ns)) = event.get("ns") else { return Ok(None) };
        match (ns.get("coll"), event.get("operationType")) {
            (Some(Value::String(name)), _) if name == self.main.collection() => self.stages.apply(event),
            (Some(Value::String(name)), Some(Value::String("delete"))) if self.is_lock_collection(name) => {
                self.stages.apply(&Scanned::new(&self.released(event.doc(), name)))
            }
            _ => Ok(None),
        }
    }

    fn is_cheap(&self) -> bool {
        self.stages.is_cheap()
    }
}
