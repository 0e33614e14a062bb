//! Acknowledgement levels: what a writer waits for, as pure functions over watermarks.
//!
//! ```text
//!   leader     written ─────────► synced          follower     received ─────────► synced
//!                │                  │                             │                  │
//!   async ───────┘                  │          replicated ── majority, this term     │
//!   sync ───────────────────────────┘ + copies received    quorum-sync ── majority ──┘
//! ```
//!
//! Invariants
//! * An answer depends on nothing but its arguments; marks that grow never take an acknowledgement back.
//! * A receipt counts once for each node, and only if it was given in the leader's present term: an older one may
//!   be for an entry that has since been replaced.
//! * A level is never lowered silently: where the cluster is too small for it, [`Ack::level`] names what was
//!   reached and [`Ack::degraded`] is set; where a follower is merely away, the writer waits.
//!
//! Nothing here knows how followers are reached. A log without replication is [`Cluster::alone`].

use std::fmt;
use std::str::FromStr;

/// What has to have happened to an entry before its writer is told that it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Written on the leader: survives the end of the process.
    Async = 1,
    /// Synced on the leader and received by [`Cluster::sync_copies`] followers: survives a power loss.
    Sync = 2,
    /// Synced on a majority: survives a power loss everywhere and the loss of a minority of disks.
    QuorumSync = 3,
    /// Received by a majority, the leader being one: survives the failure of a minority.
    Replicated = 4,
    /// Received by a majority or synced on the leader, whichever comes first.
    ReplicatedOrSync = 5,
    /// As [`Level::Replicated`], but held until it is synced where the value at risk would pass what the log's
    /// [`RiskPolicy`](crate::RiskPolicy) allows.
    Risk = 6,
}

impl Level {
    /// All levels.
    pub const ALL: [Level; 6] = [
        Level::Async,
        Level::Sync,
        Level::QuorumSync,
        Level::Replicated,
        Level::ReplicatedOrSync,
        Level::Risk,
    ];

    /// The name used on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Async => "async",
            Level::Sync => "sync",
            Level::QuorumSync => "quorum-sync",
            Level::Replicated => "replicated",
            Level::ReplicatedOrSync => "replicated-or-sync",
            Level::Risk => "risk",
        }
    }

    /// The level that an entry has which several share: the stricter of the two, in the order `async`,
    /// `replicated-or-sync`, `replicated`, `risk`, `sync`, `quorum-sync`. It is what the entry's frame says; each part
    /// is acknowledged at its own level ([`Journal::ticket`](crate::Journal::ticket)).
    pub fn stricter(self, other: Level) -> Level {
        if other.strictness() > self.strictness() { other } else { self }
    }

    const fn strictness(self) -> u8 {
        match self {
            Level::Async => 0,
            Level::ReplicatedOrSync => 1,
            Level::Replicated => 2,
            Level::Risk => 3,
            Level::Sync => 4,
            Level::QuorumSync => 5,
        }
    }

    /// The number in a frame.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// The level with this number.
    pub(crate) fn of_code(code: u8) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.code() == code)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no acknowledgement level; there are async, sync, quorum-sync, replicated, replicated-or-sync, risk"
)]
pub struct UnknownLevel(pub String);

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        let named = Level::ALL.into_iter().find(|level| level.name() == text);
        named.ok_or_else(|| UnknownLevel(text.into()))
    }
}

/// How far the leader's own log has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Watermarks {
    /// Last entry that can be read.
    pub written: u64,
    /// Last entry that survives a power loss; at most `written`.
    pub synced: u64,
}

/// A follower as the leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Which node it is.
    pub node: u64,
    /// The term in which it gave these marks.
    pub term: u64,
    /// Last entry it has written.
    pub received: u64,
    /// Last entry it has synced.
    pub synced: u64,
    /// Whether it answers at present.
    pub reachable: bool,
}

/// The nodes that keep copies of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The leader's term; 0 without replication.
    pub term: u64,
    /// How many nodes vote, the leader among them.
    pub voters: usize,
    /// How many followers must have received an entry for [`Level::Sync`].
    pub sync_copies: usize,
    /// The voting followers.
    pub followers: Vec<Follower>,
}

impl Default for Cluster {
    fn default() -> Self {
        Cluster::alone()
    }
}

/// What a writer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The level that was reached, which is the one asked for or, where that one names alternatives or the
    /// cluster is too small, the one that held.
    pub level: Level,
    /// True if there are fewer copies than the level asked for speaks of.
    pub degraded: bool,
}

impl Cluster {
    /// One node without peers.
    pub fn alone() -> Self {
        Cluster { term: 0, voters: 1, sync_copies: 0, followers: Vec::new() }
    }

    /// How many nodes are a majority.
    pub fn majority(&self) -> usize {
        self.voters / 2 + 1
    }

    fn peers(&self) -> usize {
        self.voters.saturating_sub(1)
    }

    fn anybody_reachable(&self) -> bool {
        self.followers.iter().any(|f| f.reachable)
    }

    /// How many followers hold `index` by this mark, each node counted once.
    fn copies(&self, index: u64, mark: impl Fn(&Follower) -> u64) -> usize {
        let holds = |f: &&Follower| f.term == self.term && mark(f) >= index;
        let mut nodes: Vec<u64> = self.followers.iter().filter(holds).map(|f| f.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len().min(self.peers())
    }

    fn is_received_by_majority(&self, index: u64, marks: &Watermarks) -> bool {
        marks.written >= index && 1 + self.copies(index, |f| f.received) >= self.majority()
    }

    fn is_synced_on_majority(&self, index: u64, marks: &Watermarks) -> bool {
        let leader = usize::from(marks.synced >= index);
        leader + self.copies(index, |f| f.synced) >= self.majority()
    }

    /// The highest index that is synced on a majority, of those that the leader has written.
    pub fn quorum_synced(&self, marks: &Watermarks) -> u64 {
        let followers = self.followers.iter().filter(|f| f.term == self.term).map(|f| f.synced);
        let candidates = followers.chain([marks.synced]).map(|m| m.min(marks.written));
        candidates.filter(|index| self.is_synced_on_majority(*index, marks)).max().unwrap_or(0)
    }
}

/// The acknowledgement of an entry that the leader appended in `cluster.term`, or `None` as long as it has to wait.
///
/// For [`Level::Risk`] this is the answer as far as copies go; the cap on the value at risk is the log's matter.
pub fn acknowledge(level: Level, index: u64, marks: &Watermarks, cluster: &Cluster) -> Option<Ack> {
    let ack = |level, degraded| Some(Ack { index, term: cluster.term, level, degraded });
    let written = marks.written >= index;
    let synced = marks.synced >= index;
    match level {
        Level::Async if written => ack(Level::Async, false),
        Level::Sync if synced => {
            let copies = cluster.sync_copies.min(cluster.peers());
            let received = cluster.copies(index, |f| f.received) >= copies;
            received.then(|| ack(Level::Sync, copies < cluster.sync_copies)).flatten()
        }
        Level::QuorumSync if cluster.is_synced_on_majority(index, marks) => ack(Level::QuorumSync, false),
        Level::Replicated | Level::Risk if cluster.peers() == 0 => {
            written.then(|| ack(Level::Async, true)).flatten()
        }
        Level::Replicated | Level::Risk if cluster.is_received_by_majority(index, marks) => {
            ack(Level::Replicated, false)
        }
        Level::ReplicatedOrSync if cluster.peers() > 0 && cluster.is_received_by_majority(index, marks) => {
            ack(Level::Replicated, false)
        }
        Level::ReplicatedOrSync if synced => ack(Level::Sync, !cluster.anybody_reachable()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn follower(node: u64, received: u64, synced: u64) -> Follower {
        Follower { node, term: 3, received, synced, reachable: true }
    }

    fn three(followers: &[Follower]) -> Cluster {
        Cluster { term: 3, voters: 3, sync_copies: 1, followers: followers.into() }
    }

    fn answer(level: Level, written: u64, synced: u64, cluster: &Cluster) -> Option<(Level, bool)> {
        acknowledge(level, 10, &Watermarks { written, synced }, cluster).map(|a| {
            assert_eq!((a.index, a.term), (10, cluster.term));
            (a.level, a.degraded)
        })
    }

    #[test]
    fn names_read_back() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(Level::of_code(level.code()), Some(level));
        }
        assert!("Sync".parse::<Level>().is_err());
        assert_eq!((Level::of_code(0), Level::of_code(7)), (None, None));
    }

    #[test]
    fn the_stricter_of_two() {
        let order = [
            Level::Async,
            Level::ReplicatedOrSync,
            Level::Replicated,
            Level::Risk,
            Level::Sync,
            Level::QuorumSync,
        ];
        for (place, level) in order.into_iter().enumerate() {
            for (other_place, other) in order.into_iter().enumerate() {
                assert_eq!(level.stricter(other), order[place.max(other_place)]);
            }
        }
    }

    #[test]
    fn one_node_says_what_it_cannot_do() {
        let alone = Cluster::alone();
        for level in Level::ALL {
            assert_eq!(answer(level, 9, 9, &alone), None, "{level}");
        }
        let written = |level| answer(level, 10, 9, &alone);
        assert_eq!(written(Level::Async), Some((Level::Async, false)));
        assert_eq!(written(Level::Replicated), Some((Level::Async, true)));
        assert_eq!(written(Level::Risk), Some((Level::Async, true)));
        for level in [Level::Sync, Level::QuorumSync, Level::ReplicatedOrSync] {
            assert_eq!(written(level), None, "{level}");
        }
        let synced = |level| answer(level, 10, 10, &alone);
        assert_eq!(synced(Level::Sync), Some((Level::Sync, false)));
        assert_eq!(synced(Level::QuorumSync), Some((Level::QuorumSync, false)));
        assert_eq!(synced(Level::ReplicatedOrSync), Some((Level::Sync, true)));
        let wants_copies = Cluster { sync_copies: 1, ..alone };
        assert_eq!(answer(Level::Sync, 10, 10, &wants_copies), Some((Level::Sync, true)));
    }

    #[test]
    fn three_nodes() {
        let received = three(&[follower(1, 10, 4), follower(2, 0, 0)]);
        let behind = three(&[follower(1, 9, 9), follower(2, 9, 9)]);
        assert_eq!(answer(Level::Replicated, 10, 0, &received), Some((Level::Replicated, false)));
        assert_eq!(answer(Level::Risk, 10, 0, &received), Some((Level::Replicated, false)));
        assert_eq!(answer(Level::Replicated, 10, 10, &behind), None);
        assert_eq!(answer(Level::Sync, 10, 10, &received), Some((Level::Sync, false)));
        assert_eq!(answer(Level::Sync, 10, 9, &received), None);
        assert_eq!(answer(Level::Sync, 10, 10, &behind), None, "no follower has it");
        assert_eq!(answer(Level::QuorumSync, 10, 10, &received), None);
        let synced = three(&[follower(1, 10, 10), follower(2, 0, 0)]);
        assert_eq!(answer(Level::QuorumSync, 10, 10, &synced), Some((Level::QuorumSync, false)));
        let followers_only = three(&[follower(1, 10, 10), follower(2, 10, 10)]);
        assert_eq!(answer(Level::QuorumSync, 10, 9, &followers_only), Some((Level::QuorumSync, false)));
    }

    #[test]
    fn either_is_enough_for_replicated_or_sync() {
        let received = three(&[follower(1, 10, 4)]);
        let behind = three(&[follower(1, 9, 9)]);
        let mut away = behind.clone();
        away.followers[0].reachable = false;
        assert_eq!(answer(Level::ReplicatedOrSync, 10, 0, &received), Some((Level::Replicated, false)));
        assert_eq!(answer(Level::ReplicatedOrSync, 10, 10, &behind), Some((Level::Sync, false)));
        assert_eq!(answer(Level::ReplicatedOrSync, 10, 10, &away), Some((Level::Sync, true)));
        assert_eq!(answer(Level::ReplicatedOrSync, 10, 9, &away), None);
    }

    /// I11: receipts of another term do not count, nor does one node twice, nor the leader.
    #[test]
    fn receipts_count_once_and_in_this_term_only() {
        let five = |followers: &[Follower]| Cluster { voters: 5, ..three(followers) };
        let twice = five(&[follower(1, 10, 10), follower(1, 10, 10)]);
        assert_eq!(answer(Level::Replicated, 10, 10, &twice), None);
        assert_eq!(answer(Level::QuorumSync, 10, 10, &twice), None);
        let old = Follower { term: 2, ..follower(2, 10, 10) };
        assert_eq!(answer(Level::Replicated, 10, 10, &five(&[follower(1, 10, 10), old])), None);
        let both = five(&[follower(1, 10, 10), follower(2, 10, 10)]);
        assert_eq!(answer(Level::Replicated, 10, 10, &both), Some((Level::Replicated, false)));
        assert_eq!(answer(Level::QuorumSync, 10, 10, &both), Some((Level::QuorumSync, false)));
    }

    fn followers() -> impl Strategy<Value = Vec<Follower>> {
        let follower = (0u64..5, 2u64..4, 0u64..20, 0u64..20, any::<bool>()).prop_map(
            |(node, term, received, synced, reachable)| Follower {
                node,
                term,
                received,
                synced: synced.min(received),
                reachable,
            },
        );
        prop::collection::vec(follower, 0..6)
    }

    proptest! {
        /// Marks that grow never take an acknowledgement back.
        #[test]
        fn acknowledgements_are_monotone(
            followers in followers(), voters in 1usize..6, copies in 0usize..3,
            written in 0u64..20, synced in 0u64..20, index in 1u64..20, more in 0u64..5, which in 0usize..6,
        ) {
            let cluster = Cluster { term: 3, voters, sync_copies: copies, followers };
            let marks = Watermarks { written, synced: synced.min(written) };
            let mut later = cluster.clone();
            let mut later_marks = marks;
            match later.followers.get_mut(which) {
                Some(f) => { f.received += more; f.synced = (f.synced + more).min(f.received); }
                None => { later_marks.written += more; later_marks.synced = (marks.synced + more).min(later_marks.written); }
            }
            for level in Level::ALL {
                if acknowledge(level, index, &marks, &cluster).is_some() {
                    prop_assert!(acknowledge(level, index, &later_marks, &later).is_some(), "{}", level);
                }
            }
        }

        /// The majority's mark is the highest index that the rule for one index accepts.
        #[test]
        fn the_quorum_mark_agrees_with_the_rule(
            followers in followers(), voters in 1usize..6, written in 0u64..20, synced in 0u64..20,
        ) {
            let cluster = Cluster { term: 3, voters, sync_copies: 0, followers };
            let marks = Watermarks { written, synced: synced.min(written) };
            let accepted = |i: &u64| acknowledge(Level::QuorumSync, *i, &marks, &cluster).is_some();
            let naive = (1..=written).filter(accepted).max().unwrap_or(0);
            prop_assert_eq!(cluster.quorum_synced(&marks), naive);
        }
    }
}
