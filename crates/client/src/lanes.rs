//! The lanes of one bus: fixed ones by layout, and in the MultiCollection layout one per collection of listened
//! topics, made with the first listener and retired with the last.
//!
//! Invariants
//! * A lane is there before its topic is in any stream's filter, so that an established stream finds every lane it
//!   concerns.
//! * A retired lane is kept for a while with what it remembers: who listens again is not given again what the node
//!   has had. Its running calls are waited for at shutdown like all others.
//! * All lanes share the workers of the bus: a sequential bus runs one listener call at a time, not one per lane.

use crate::backend::ChangeEvent;
use crate::lane::{Lane, Reach};
use crate::node::Node;
use parking_lot::{Mutex, RwLock};
use rockdove_messages::Layout;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Retired lanes kept for their memory.
const RETIRED_MAX: usize = 100;

#[derive(Default)]
struct State {
    by_messages: BTreeMap<String, Arc<Lane>>,
    by_locks: BTreeMap<String, Arc<Lane>>,
    retired: VecDeque<Arc<Lane>>,
}

/// The lanes of one bus, by collection.
#[derive(Default)]
pub(crate) struct Lanes {
    state: RwLock<State>,
    /// Held while listeners and lanes change together.
    changing: Mutex<()>,
}

impl Lanes {
    /// Makes and starts the lanes that are there whatever is listened to.
    pub(crate) fn start(&self, node: &Arc<Node>) {
        let names = &node.names;
        if names.layout() != Layout::MultiCollection {
            self.add(Lane::new(node.clone(), names.base(), Some(names.locks("")), Reach::AllTopics));
        }
        if names.layout().has_directed_lane() {
            self.add(Lane::new(node.clone(), node.mailbox.clone(), None, Reach::AllTopics));
        }
    }

    /// Adds a listener with `add`, after the lane for its topic.
    pub(crate) fn register<T>(&self, node: &Arc<Node>, topic: &str, add: impl FnOnce() -> T) -> T {
        let _changing = self.changing.lock();
        if node.names.layout() == Layout::MultiCollection {
            self.ensure(node, topic);
        }
        add()
    }

    /// Removes a listener with `remove`, then the lanes nobody needs any more.
    pub(crate) fn unregister(&self, node: &Node, remove: impl FnOnce()) {
        let _changing = self.changing.lock();
        remove();
        self.retire_unused(node);
    }

    fn ensure(&self, node: &Arc<Node>, topic: &str) {
        let collection = node.names.broadcast(topic);
        if let Some(lane) = self.of_messages(&collection) {
            return lane.reach_also(topic);
        }
        let kept = {
            let mut state = self.state.write();
            let place = state.retired.iter().position(|lane| lane.collection() == collection);
            place.and_then(|place| state.retired.remove(place))
        };
        let lane = kept.unwrap_or_else(|| {
            let locks = Some(node.names.locks(topic));
            Lane::new(node.clone(), collection, locks, Reach::Topics(Mutex::default()))
        });
        lane.reach_also(topic);
        self.add(lane);
    }

    fn add(&self, lane: Arc<Lane>) {
        {
            let mut state = self.state.write();
            state.by_messages.insert(lane.collection().to_owned(), lane.clone());
            if let Some(locks) = lane.locks() {
                state.by_locks.insert(locks.to_owned(), lane.clone());
            }
        }
        lane.start();
    }

    fn retire_unused(&self, node: &Node) {
        let unused: Vec<_> = self
            .all()
            .into_iter()
            .filter(|lane| !lane.keep_topics(|topic| node.listeners.has(topic)))
            .collect();
        let mut state = self.state.write();
        for lane in unused {
            state.by_messages.remove(lane.collection());
            if let Some(locks) = lane.locks() {
                state.by_locks.remove(locks);
            }
            lane.stop();
            state.retired.push_back(lane);
        }
        // A lane at work is not forgotten: a shutdown waits for it.
        let mut excess = state.retired.len().saturating_sub(RETIRED_MAX);
        state.retired.retain(|lane| {
            let forget = excess > 0 && lane.is_idle();
            excess -= usize::from(forget);
            !forget
        });
    }

    /// The lane whose messages are in `collection`.
    pub(crate) fn of_messages(&self, collection: &str) -> Option<Arc<Lane>> {
        self.state.read().by_messages.get(collection).cloned()
    }

    /// Every lane that takes work.
    pub(crate) fn all(&self) -> Vec<Arc<Lane>> {
        self.state.read().by_messages.values().cloned().collect()
    }

    /// Every lane that may be at work, retired ones included.
    pub(crate) fn all_ever(&self) -> Vec<Arc<Lane>> {
        let state = self.state.read();
        state.by_messages.values().chain(&state.retired).cloned().collect()
    }

    /// Hands a stream event to the lane it concerns.
    pub(crate) fn route(&self, event: ChangeEvent) {
        if let Some(lane) = self.of_messages(&event.collection) {
            return lane.on_event(event);
        }
        let of_locks = self.state.read().by_locks.get(&event.collection).cloned();
        if let Some(lane) = of_locks {
            lane.on_lock_event(&event);
        }
    }

    /// Forgets every lane.
    pub(crate) fn clear(&self) {
        *self.state.write() = State::default();
    }
}

/// The listener calls a bus may run at a time, shared by its lanes. Lanes that find none free wait their turn.
pub(crate) struct Workers {
    state: Mutex<(usize, VecDeque<Arc<Lane>>)>,
}

impl Workers {
    pub(crate) fn new(count: usize) -> Self {
        Self { state: Mutex::new((count, VecDeque::new())) }
    }

    /// Takes a worker; false when there is none, and the lane is to be called when there is.
    pub(crate) fn take(&self, lane: &Arc<Lane>) -> bool {
        let (free, waiting) = &mut *self.state.lock();
        if *free > 0 {
            *free -= 1;
            return true;
        }
        if !waiting.iter().any(|other| Arc::ptr_eq(other, lane)) {
            waiting.push_back(lane.clone());
        }
        false
    }

    /// Gives a worker back.
    pub(crate) fn give_back(&self) {
        self.state.lock().0 += 1;
    }

    /// The lane whose turn it is, if a worker is free.
    pub(crate) fn next_turn(&self) -> Option<Arc<Lane>> {
        let (free, waiting) = &mut *self.state.lock();
        if *free > 0 { waiting.pop_front() } else { None }
    }

    /// Forgets who waits: the bus stops.
    pub(crate) fn clear(&self) {
        self.state.lock().1.clear();
    }
}
