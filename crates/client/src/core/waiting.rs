//! Messages that are not to be tried before a certain moment. Polls leave them out until then.

use bson::oid::ObjectId;
use rockdove_messages::MessageId;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How long an entry that became due keeps its count of tries.
const MEMORY: Duration = Duration::from_secs(10 * 60);

/// Why a message waits: decides what wakes it early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// It failed or was rejected here. A requeue does not wake it: it is most likely our own.
    Own,
    /// Another node holds its lock. A release wakes it.
    Lost,
    /// Nobody listens. A new listener wakes it.
    Unlistened,
    /// A broadcast this instance has had, although it carries no mark. Nothing wakes it.
    Had,
    /// Nothing but a requeue by others wakes it.
    Parked,
}

struct Entry {
    until: Instant,
    tries: u32,
    reason: Reason,
}

/// The waiting messages, at most `capacity`; the one due first makes room (it only comes back sooner).
pub(super) struct Waiting {
    capacity: usize,
    entries: HashMap<MessageId, Entry>,
    by_time: BTreeSet<(Instant, MessageId)>,
}

impl Waiting {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, entries: HashMap::new(), by_time: BTreeSet::new() }
    }

    /// Waits `first`, doubled with each try so far, at most `longest`.
    pub(super) fn back_off(
        &mut self,
        id: &MessageId,
        reason: Reason,
        first: Duration,
        longest: Duration,
        now: Instant,
    ) {
        let tries =
            self.entries.get(id).filter(|entry| entry.reason == reason).map_or(0, |entry| entry.tries);
        let pause = first.saturating_mul(1_u32.checked_shl(tries).unwrap_or(u32::MAX)).min(longest);
        self.insert(id, Entry { until: now + pause, tries: tries.saturating_add(1).min(31), reason });
    }

    /// Waits until a moment.
    pub(super) fn park(&mut self, id: &MessageId, reason: Reason, until: Instant) {
        self.insert(id, Entry { until, tries: 0, reason });
    }

    fn insert(&mut self, id: &MessageId, entry: Entry) {
        self.remove(id);
        self.by_time.insert((entry.until, id.clone()));
        self.entries.insert(id.clone(), entry);
        if self.entries.len() > self.capacity
            && let Some((_, soonest)) = self.by_time.pop_first()
        {
            self.entries.remove(&soonest);
        }
    }

    pub(super) fn remove(&mut self, id: &MessageId) {
        if let Some(entry) = self.entries.remove(id) {
            self.by_time.remove(&(entry.until, id.clone()));
        }
    }

    /// Removes all that wait for one reason; whether there were any.
    pub(super) fn remove_all(&mut self, reason: Reason) -> bool {
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.reason != reason);
        self.by_time.retain(|(_, id)| self.entries.contains_key(id));
        self.entries.len() < before
    }

    /// Forgets entries that became due long ago.
    pub(super) fn purge(&mut self, now: Instant) {
        while let Some((until, id)) = self.by_time.first()
            && *until + MEMORY < now
        {
            let id = id.clone();
            self.remove(&id);
        }
    }

    /// Why `id` is listed, due or not.
    pub(super) fn reason(&self, id: &MessageId) -> Option<Reason> {
        self.entries.get(id).map(|entry| entry.reason)
    }

    pub(super) fn is_listed(&self, id: &MessageId) -> bool {
        self.entries.contains_key(id)
    }

    pub(super) fn is_waiting(&self, id: &MessageId, now: Instant) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.until > now)
    }

    pub(super) fn not_due(&self, now: Instant) -> impl Iterator<Item = &MessageId> {
        self.by_time.iter().rev().take_while(move |(until, _)| *until > now).map(|(_, id)| id)
    }

    /// The first moment after `since` at which one becomes due.
    pub(super) fn next_due(&self, since: Instant) -> Option<Instant> {
        let least_id = MessageId::Object(ObjectId::from_bytes([0; 12]));
        let later = (since + Duration::from_nanos(1), least_id)..;
        self.by_time.range(later).next().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn id(n: u8) -> MessageId {
        bson::oid::ObjectId::from_bytes([n; 12]).into()
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let (mut waiting, start) = (Waiting::new(8), Instant::now());
        for pause in [100, 200, 400, 500, 500] {
            waiting.back_off(&id(1), Reason::Own, 100 * MS, 500 * MS, start);
            assert!(waiting.is_waiting(&id(1), start + (pause - 1) * MS));
            assert!(!waiting.is_waiting(&id(1), start + pause * MS));
        }
        waiting.back_off(&id(1), Reason::Lost, 100 * MS, 500 * MS, start);
        assert!(!waiting.is_waiting(&id(1), start + 100 * MS), "another reason starts anew");
        for _ in 0..100 {
            waiting.back_off(&id(1), Reason::Own, 100 * MS, Duration::MAX / 4, start);
        }
    }

    #[test]
    fn due_times_are_found_in_order() {
        let (mut waiting, start) = (Waiting::new(8), Instant::now());
        waiting.park(&id(1), Reason::Parked, start + 30 * MS);
        waiting.park(&id(2), Reason::Lost, start + 10 * MS);
        assert_eq!(waiting.next_due(start), Some(start + 10 * MS));
        assert_eq!(waiting.next_due(start + 10 * MS), Some(start + 30 * MS));
        assert_eq!(waiting.not_due(start + 20 * MS).collect::<Vec<_>>(), [&id(1)]);
        assert!(waiting.remove_all(Reason::Lost) && !waiting.remove_all(Reason::Lost));
        assert_eq!(waiting.next_due(start), Some(start + 30 * MS));
        waiting.purge(start + MEMORY + 31 * MS);
        assert!(!waiting.is_listed(&id(1)));
    }

    #[test]
    fn the_soonest_makes_room() {
        let (mut waiting, start) = (Waiting::new(2), Instant::now());
        for n in 1..=3 {
            waiting.park(&id(n), Reason::Parked, start + u32::from(n) * MS);
        }
        assert!(!waiting.is_listed(&id(1)) && waiting.is_listed(&id(2)) && waiting.is_listed(&id(3)));
    }
}
