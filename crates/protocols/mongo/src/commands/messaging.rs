//! Commands that Morphium's messaging sends to PoppyDB: registrations, kept for its status only. Streams and
//! locks work by change events, so nothing depends on being registered.

use super::Spec;
use crate::dispatch::Call;
use crate::errors::Result;
use crate::options::Fields;
use parking_lot::Mutex;
use rockdove_documents::DocBuilder;
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
