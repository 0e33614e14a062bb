//! Value at risk: when the value of what is not yet safe asks for a sync, and whose acknowledgement waits for it.
//!
//! ```text
//!   appended ──► [open bucket]                      exposure = value of all buckets
//!   sync begins (upto W) ──► [.. W] [open bucket]   acked exposure = the acknowledged part of it
//!   safe = W ──► [open bucket]                      what was up to W is at risk no more
//! ```
//!
//! Invariants
//! * With a hard cap the acknowledged exposure never passes it, whatever the disk does: an acknowledgement that
//!   would is held until what stands in its way, or the entry itself, is safe.
//! * Exposure falls only when a sync has returned successfully, by what was written when that sync began.
//! * At most [`BUCKETS_MAX`] numbers are kept, however many entries are unsafe: buckets beyond are joined, which
//!   releases their value later, never earlier.
//!
//! Nothing here does I/O, reads a clock or knows an entry's bytes.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// Most sync rounds that are told apart while none of them is safe.
const BUCKETS_MAX: usize = 64;

/// When the value of unsafe entries leads to a sync, and what may be acknowledged meanwhile.
///
/// Values are integers in units of the publisher's choice. Each trigger is off where it is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RiskPolicy {
    /// An entry of this value or more is synced at once and, at [`Level::Risk`](crate::Level::Risk), acknowledged
    /// only when it is safe.
    pub single: Option<u64>,
    /// Largest value that may be unsafe. An entry that takes the sum over it is followed by a sync; what else it
    /// means is the matter of `cap`.
    pub total: Option<u64>,
    /// Longest time that an entry may be unsafe before a sync begins.
    pub age: Option<Duration>,
    /// Unsafe bytes, headers included, from which on a sync follows.
    pub bytes: Option<u64>,
    /// Unsafe entries from which on a sync follows.
    pub count: Option<u64>,
    /// What `total` bounds.
    pub cap: Cap,
    /// What makes an entry safe.
    pub scope: Scope,
    /// Append a SYNCED entry after each sync that a trigger asked for, so that readers can wait for it.
    pub announce: bool,
}

/// What [`RiskPolicy::total`] does to acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Cap {
    /// Holds back those that would take the acknowledged exposure over it.
    #[default]
    Hard,
    /// Nothing: the sync is asked for, the acknowledgement given at once.
    Soft,
}

/// What makes an entry safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scope {
    /// A sync on this node.
    #[default]
    Local,
    /// A sync on a majority of the nodes.
    Quorum,
}

/// What asked for a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// One entry's value ([`RiskPolicy::single`]).
    Single,
    /// The sum of values ([`RiskPolicy::total`]).
    Total,
    /// The oldest unsafe entry's age ([`RiskPolicy::age`]).
    Age,
    /// The unsafe bytes ([`RiskPolicy::bytes`]).
    Bytes,
    /// The number of unsafe entries ([`RiskPolicy::count`]).
    Count,
    /// [`Journal::fence`](crate::Journal::fence).
    Fence,
    /// A completed segment.
    Seal,
    /// The log's [`SyncPolicy`](crate::SyncPolicy).
    Policy,
    /// [`Journal::request_sync`](crate::Journal::request_sync) or an entry's level.
    Request,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 9] = [
        Cause::Single,
        Cause::Total,
        Cause::Age,
        Cause::Bytes,
        Cause::Count,
        Cause::Fence,
        Cause::Seal,
        Cause::Policy,
        Cause::Request,
    ];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Single => "single",
            Cause::Total => "total",
            Cause::Age => "age",
            Cause::Bytes => "bytes",
            Cause::Count => "count",
            Cause::Fence => "fence",
            Cause::Seal => "seal",
            Cause::Policy => "policy",
            Cause::Request => "request",
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Several causes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Causes(u16);

impl Causes {
    /// The causes of the risk policy and the explicit fence, after which a SYNCED entry follows.
    const ANNOUNCED: u16 = Cause::Single.bit()
        | Cause::Total.bit()
        | Cause::Age.bit()
        | Cause::Bytes.bit()
        | Cause::Count.bit()
        | Cause::Fence.bit();

    /// Whether it is one of them.
    pub fn contains(self, cause: Cause) -> bool {
        self.0 & cause.bit() != 0
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = Cause> {
        Cause::ALL.into_iter().filter(move |cause| self.contains(*cause))
    }

    pub(crate) fn add(&mut self, cause: Cause) {
        self.0 |= cause.bit();
    }

    pub(crate) fn join(&mut self, other: Causes) {
        self.0 |= other.0;
    }

    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    /// Causes that a newer version may know are left out.
    pub(crate) fn of_bits(bits: u16) -> Self {
        Causes(bits & ((1 << Cause::ALL.len()) - 1))
    }

    pub(crate) fn are_announced(self) -> bool {
        self.0 & Causes::ANNOUNCED != 0
    }
}

impl From<Cause> for Causes {
    fn from(cause: Cause) -> Self {
        Causes(cause.bit())
    }
}

impl fmt::Debug for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// How much is at risk. All of it falls only when a sync has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Exposure {
    /// Value of the entries that are not safe.
    pub value: u128,
    /// Value of those among them that were acknowledged at [`Level::Risk`](crate::Level::Risk).
    pub acked: u128,
    /// The highest `acked` since the log was opened.
    pub acked_max: u128,
    /// Bytes of the entries that are not safe.
    pub bytes: u64,
    /// How many they are.
    pub count: u64,
    /// Since when the oldest of them waits.
    pub oldest: Option<Instant>,
    /// How often an acknowledgement was held back.
    pub held: u64,
}

/// Entries up to the mark at which a sync began.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Last index; nothing larger while it is open.
    upto: u64,
    value: u128,
    acked: u128,
    bytes: u64,
    count: u64,
    oldest: Option<Instant>,
}

impl Bucket {
    const OPEN: Bucket = Bucket { upto: u64::MAX, value: 0, acked: 0, bytes: 0, count: 0, oldest: None };

    fn join(&mut self, other: Bucket) {
        self.upto = other.upto;
        self.value += other.value;
        self.acked += other.acked;
        self.bytes += other.bytes;
        self.count += other.count;
        self.oldest = self.oldest.or(other.oldest);
    }
}

/// What an entry is for the account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub value: u64,
    /// The largest of the values that it is made up of.
    pub largest: u64,
    /// Header and padding included.
    pub bytes: u64,
}

/// The account of what is unsafe.
#[derive(Debug)]
pub(crate) struct Ledger {
    policy: RiskPolicy,
    /// Oldest first; the last one is open.
    buckets: VecDeque<Bucket>,
    /// The sum of the buckets.
    sum: Exposure,
    safe: u64,
}

impl Ledger {
    /// An account for a log whose entries up to `last` are all safe.
    pub(crate) fn new(policy: RiskPolicy, last: u64) -> Self {
        Ledger { policy, buckets: [Bucket::OPEN].into(), sum: Exposure::default(), safe: last }
    }

    pub(crate) fn exposure(&self) -> Exposure {
        Exposure { oldest: self.oldest(), ..self.sum }
    }

    fn oldest(&self) -> Option<Instant> {
        self.buckets.iter().find_map(|b| b.oldest)
    }

    /// Takes up an entry at the moment it is published; which sync it asks for, if any.
    pub(crate) fn appended(&mut self, entry: Weight, now: Instant) -> Option<Cause> {
        let Weight { value, largest, bytes } = entry;
        let open = self.buckets.back_mut().expect("the open bucket");
        open.oldest.get_or_insert(now);
        (open.value, open.bytes, open.count) =
            (open.value + u128::from(value), open.bytes + bytes, open.count + 1);
        let sum = &mut self.sum;
        (sum.value, sum.bytes, sum.count) = (sum.value + u128::from(value), sum.bytes + bytes, sum.count + 1);
        let policy = &self.policy;
        let reached = |limit: Option<u64>, now: u64| limit.is_some_and(|limit| now >= limit);
        if reached(policy.single, largest) {
            Some(Cause::Single)
        } else if value > 0 && policy.total.is_some_and(|total| sum.value > total.into()) {
            Some(Cause::Total)
        } else if reached(policy.bytes, sum.bytes) {
            Some(Cause::Bytes)
        } else if reached(policy.count, sum.count) {
            Some(Cause::Count)
        } else {
            None
        }
    }

    /// When the oldest unsafe entry will be too old, unless a sync that covers it has already begun.
    pub(crate) fn due(&self) -> Option<Instant> {
        let open = self.buckets.back()?;
        open.oldest?.checked_add(self.policy.age?)
    }

    /// A sync begins that covers everything up to `written`, which is all that was taken up.
    pub(crate) fn sync_began(&mut self, written: u64) {
        let open = self.buckets.back_mut().expect("the open bucket");
        if open.count == 0 {
            return;
        }
        open.upto = written;
        if self.buckets.len() >= BUCKETS_MAX {
            let last = self.buckets.pop_back().expect("a full list");
            self.buckets.back_mut().expect("a full list").join(last);
        }
        self.buckets.push_back(Bucket::OPEN);
    }

    /// Everything up to `safe` is safe; the value that was released by it.
    pub(crate) fn now_safe(&mut self, safe: u64) -> u128 {
        self.safe = self.safe.max(safe);
        let before = self.sum.value;
        while let Some(bucket) = self.buckets.front().copied().filter(|b| b.upto <= self.safe) {
            self.buckets.pop_front();
            self.sum.value -= bucket.value;
            self.sum.acked -= bucket.acked;
            self.sum.bytes -= bucket.bytes;
            self.sum.count -= bucket.count;
        }
        before - self.sum.value
    }

    /// Whether an entry of this value that is not safe may be acknowledged now; if so it counts as acknowledged.
    pub(crate) fn admit(&mut self, index: u64, value: u64) -> bool {
        if self.policy.single.is_some_and(|single| value >= single) {
            return false;
        }
        let acked = self.sum.acked + u128::from(value);
        if self.policy.cap == Cap::Hard && self.policy.total.is_some_and(|total| acked > total.into()) {
            return false;
        }
        if let Some(bucket) = self.buckets.iter_mut().find(|b| index <= b.upto) {
            bucket.acked += u128::from(value);
            self.sum.acked = acked;
            self.sum.acked_max = self.sum.acked_max.max(acked);
        }
        true
    }

    /// Counts an acknowledgement that was held back.
    pub(crate) fn count_held(&mut self) {
        self.sum.held += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn weight(value: u64, bytes: u64) -> Weight {
        Weight { value, largest: value, bytes }
    }

    fn ledger(policy: RiskPolicy) -> Ledger {
        Ledger::new(policy, 0)
    }

    #[test]
    fn each_trigger_names_itself() {
        let now = Instant::now();
        let policy = RiskPolicy {
            single: Some(100),
            total: Some(250),
            bytes: Some(1000),
            count: Some(5),
            ..RiskPolicy::default()
        };
        let mut values = ledger(policy.clone());
        assert_eq!(values.appended(weight(99, 1), now), None);
        assert_eq!(values.appended(weight(100, 1), now), Some(Cause::Single));
        assert_eq!(values.appended(weight(51, 1), now), None, "exactly the cap");
        assert_eq!(values.appended(weight(1, 1), now), Some(Cause::Total));
        let shared = Weight { value: 120, largest: 60, bytes: 1 };
        assert_eq!(ledger(policy.clone()).appended(shared, now), None, "no part of it is as large");
        assert_eq!(values.appended(weight(0, 1), now), Some(Cause::Count));
        assert_eq!(ledger(policy.clone()).appended(weight(0, 1000), now), Some(Cause::Bytes));
        assert_eq!(ledger(policy).appended(weight(u64::MAX, 1), now), Some(Cause::Single));
    }

    /// F21: 0, X exactly, X + 1, the largest number, many small ones.
    #[test]
    fn edges_of_the_cap() {
        let now = Instant::now();
        let policy = RiskPolicy { total: Some(10), ..RiskPolicy::default() };
        let admit = |values: &[u64]| -> Vec<bool> {
            let mut ledger = ledger(policy.clone());
            let one = |(value, index): (&u64, u64)| {
                ledger.appended(weight(*value, 64), now);
                ledger.admit(index, *value)
            };
            values.iter().zip(1..).map(one).collect()
        };
        assert_eq!(admit(&[0, 10, 0, 1]), [true, true, true, false]);
        assert_eq!(admit(&[11, 10]), [false, true]);
        assert_eq!(admit(&[u64::MAX, u64::MAX]), [false, false]);
        let mut sums = ledger(RiskPolicy { cap: Cap::Soft, ..policy });
        for index in 1..=3 {
            sums.appended(weight(u64::MAX, 64), now);
            assert!(sums.admit(index, u64::MAX));
        }
        assert_eq!(sums.exposure().acked, 3 * u128::from(u64::MAX));
    }

    #[test]
    fn the_age_is_that_of_the_oldest_entry_without_a_sync_on_its_way() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut ledger = ledger(RiskPolicy { age: Some(Duration::from_millis(10)), ..RiskPolicy::default() });
        assert_eq!(ledger.due(), None);
        ledger.appended(weight(0, 1), at(0));
        ledger.appended(weight(0, 1), at(5));
        assert_eq!(ledger.due(), Some(at(10)));
        ledger.sync_began(2);
        assert_eq!(ledger.due(), None);
        ledger.appended(weight(0, 1), at(7));
        assert_eq!(ledger.due(), Some(at(17)));
        assert_eq!(ledger.exposure().oldest, Some(at(0)));
        ledger.now_safe(2);
        assert_eq!((ledger.due(), ledger.exposure().oldest), (Some(at(17)), Some(at(7))));
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Append(u64),
        /// Tries to acknowledge this one of the entries that are not acknowledged.
        Ack(usize),
        SyncBegins,
        /// The oldest sync under way returns.
        SyncReturns,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            6 => (0u64..30).prop_map(Event::Append),
            8 => (0usize..10).prop_map(Event::Ack),
            2 => Just(Event::SyncBegins),
            1 => Just(Event::SyncReturns),
        ];
        prop::collection::vec(event, 0..400)
    }

    proptest! {
        /// I7, against a model that remembers every entry: exact sums while few syncs are under way, never less
        /// than the truth, and never an acknowledged sum over the cap.
        #[test]
        fn the_acknowledged_exposure_never_passes_the_cap(events in events(), cap in 1u64..100, single in 1u64..40) {
            let policy = RiskPolicy { total: Some(cap), single: Some(single), ..RiskPolicy::default() };
            let mut ledger = ledger(policy);
            let now = Instant::now();
            let (mut entries, mut syncs, mut safe) = (Vec::new(), VecDeque::new(), 0u64);
            for event in events {
                match event {
                    Event::Append(value) => {
                        ledger.appended(weight(value, 64), now);
                        entries.push((value, false));
                    }
                    Event::Ack(which) => {
                        let waiting = (0..entries.len()).filter(|i| *i as u64 >= safe && !entries[*i].1).nth(which);
                        if let Some(i) = waiting {
                            entries[i].1 = ledger.admit(i as u64 + 1, entries[i].0);
                            prop_assert!(!entries[i].1 || entries[i].0 < single);
                        }
                    }
                    Event::SyncBegins => {
                        ledger.sync_began(entries.len() as u64);
                        syncs.push_back(entries.len() as u64);
                    }
                    Event::SyncReturns => if let Some(upto) = syncs.pop_front() {
                        ledger.now_safe(upto);
                        safe = upto;
                    }
                }
                let unsafe_ones = &entries[safe as usize..];
                let value: u64 = unsafe_ones.iter().map(|e| e.0).sum();
                let acked: u64 = unsafe_ones.iter().filter(|e| e.1).map(|e| e.0).sum();
                let exposure = ledger.exposure();
                prop_assert!(acked <= cap);
                prop_assert!(exposure.acked <= u128::from(cap) && exposure.acked_max <= u128::from(cap));
                prop_assert!(exposure.value >= value.into() && exposure.acked >= acked.into());
                if syncs.len() < BUCKETS_MAX - 1 {
                    prop_assert_eq!((exposure.value, exposure.acked), (value.into(), acked.into()));
                }
                prop_assert!(ledger.buckets.len() <= BUCKETS_MAX);
            }
            ledger.sync_began(entries.len() as u64);
            ledger.now_safe(entries.len() as u64);
            prop_assert_eq!(ledger.exposure().value, 0);
        }
    }
}
