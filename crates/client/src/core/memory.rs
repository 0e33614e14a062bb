//! Bounded memories of message ids.

use rockdove_messages::MessageId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// The last ids of stream events; the oldest is forgotten first.
pub(super) struct Seen {
    capacity: usize,
    ids: HashSet<MessageId>,
    order: VecDeque<MessageId>,
}

impl Seen {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, ids: HashSet::new(), order: VecDeque::new() }
    }

    pub(super) fn contains(&self, id: &MessageId) -> bool {
        self.ids.contains(id)
    }

    pub(super) fn insert(&mut self, id: &MessageId) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        self.order.push_back(id.clone());
        if self.order.len() > self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    pub(super) fn forget(&mut self, id: &MessageId) {
        if self.ids.remove(id) {
            self.order.retain(|known| known != id);
        }
    }
}

/// Ids remembered for a while, at most `capacity` of them; the oldest is forgotten first.
pub(super) struct Recent {
    capacity: usize,
    life: Duration,
    ids: HashMap<MessageId, Instant>,
    order: VecDeque<(Instant, MessageId)>,
}

impl Recent {
    pub(super) fn new(capacity: usize, life: Duration) -> Self {
        Self { capacity, life, ids: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn insert(&mut self, id: &MessageId, now: Instant) {
        self.ids.insert(id.clone(), now);
        self.order.push_back((now, id.clone()));
        while self.order.len() > self.capacity {
            self.drop_oldest();
        }
    }

    pub(super) fn contains(&self, id: &MessageId, now: Instant) -> bool {
        self.ids.get(id).is_some_and(|at| now.saturating_duration_since(*at) < self.life)
    }

    pub(super) fn purge(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= self.life) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((at, id)) = self.order.pop_front()
            && self.ids.get(&id) == Some(&at)
        {
            self.ids.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> MessageId {
        bson::oid::ObjectId::from_bytes([n; 12]).into()
    }

    #[test]
    fn the_oldest_event_is_forgotten_first() {
        let mut seen = Seen::new(2);
        let known = |seen: &Seen| [1, 2, 3].map(|n| seen.contains(&id(n)));
        for n in [1, 2, 1] {
            seen.insert(&id(n));
        }
        assert_eq!(known(&seen), [true, true, false]);
        seen.insert(&id(3));
        assert_eq!(known(&seen), [false, true, true]);
        seen.forget(&id(2));
        assert_eq!(known(&seen), [false, false, true]);
    }

    #[test]
    fn memory_is_bounded_by_age_and_number() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut recent = Recent::new(2, second * 10);
        recent.insert(&id(1), start);
        assert!(recent.contains(&id(1), start + second * 9) && !recent.contains(&id(1), start + second * 10));
        recent.insert(&id(1), start + second * 5);
        recent.purge(start + second * 12);
        assert!(recent.contains(&id(1), start + second * 12), "seen again later");
        recent.insert(&id(2), start + second * 12);
        recent.insert(&id(3), start + second * 12);
        assert!(!recent.contains(&id(1), start + second * 12), "evicted");
        assert!(recent.contains(&id(2), start + second * 12) && recent.contains(&id(3), start + second * 12));
    }
}
