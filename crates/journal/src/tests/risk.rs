//! Acknowledgement levels and value at risk in the whole log, on a disk that is slow, fails or loses power.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use proptest::prelude::*;

use super::*;
use crate::{Ack, Cap, Cause, Cluster, Follower, Level, RiskPolicy, Scope, Terms, Ticket, WaitError};

fn open_with(disk: &SimDisk, risk: RiskPolicy) -> (Journal, Writer) {
    let options = Options { risk: Some(risk), ..options() };
    let (journal, writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    (journal, writer)
}

fn terms(level: Level, value: u64) -> Terms {
    Terms { time_ns: 0, value, level }
}

fn add(writer: &mut Writer, level: Level, value: u64) -> Ticket {
    writer.append_on(&[b"entry"], terms(level, value)).unwrap()
}

fn rounds(journal: &Journal) -> BTreeMap<&'static str, u64> {
    journal.syncs().into_iter().filter(|(_, n)| *n > 0).map(|(cause, n)| (cause.name(), n)).collect()
}

#[test]
fn each_level_on_one_node() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    let paused = disk.pause_syncs(".seg");
    let mut tickets: Vec<_> = Level::ALL.into_iter().map(|level| add(&mut writer, level, 3)).collect();
    let ack = |index, level, degraded| Some(Ack { index, term: 0, level, degraded });
    let now: Vec<_> = tickets.iter_mut().map(|t| t.poll().unwrap()).collect();
    let written = [ack(1, Level::Async, false), None, None, ack(4, Level::Async, true), None];
    assert_eq!(now, [&written[..], &[ack(6, Level::Async, true)]].concat());
    assert!(matches!(tickets[1].wait(Duration::from_millis(5)), Err(WaitError::Timeout { index: 2, .. })));
    drop(paused);
    // The levels asked for the sync themselves: the log's policy is never to sync.
    assert_eq!(tickets[1].wait(LONG).ok(), ack(2, Level::Sync, false));
    assert_eq!(tickets[2].wait(LONG).ok(), ack(3, Level::QuorumSync, false));
    assert_eq!(tickets[4].wait(LONG).ok(), ack(5, Level::Sync, true));
    let stored: Vec<_> = journal.read_from(1).unwrap().map(|e| e.unwrap().level.unwrap()).collect();
    assert_eq!(stored, Level::ALL);
}

#[test]
fn other_nodes_count_when_they_are_reported() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    let mut cluster = Cluster { term: 0, voters: 3, sync_copies: 1, followers: vec![] };
    journal.set_cluster(cluster.clone());
    let mut replicated = add(&mut writer, Level::Replicated, 0);
    let mut synced = add(&mut writer, Level::Sync, 0);
    journal.wait_synced_blocking(2, LONG).unwrap();
    assert_eq!((replicated.poll().unwrap(), synced.poll().unwrap()), (None, None));
    let waiter = std::thread::spawn(move || synced.wait(LONG).unwrap());
    cluster.followers = vec![Follower { node: 7, term: 0, received: 2, synced: 0, reachable: true }];
    journal.set_cluster(cluster);
    assert_eq!(replicated.poll().unwrap().unwrap().level, Level::Replicated);
    let ack = waiter.join().unwrap();
    assert_eq!((ack.level, ack.degraded), (Level::Sync, false));
}

/// Each part of an entry is acknowledged at its own level and counts with its own value.
#[test]
fn parts_of_an_entry_are_acknowledged_one_by_one() {
    let disk = SimDisk::new(1);
    let policy = RiskPolicy { total: Some(10), single: Some(8), ..RiskPolicy::default() };
    let (journal, mut writer) = open_with(&disk, policy);
    let paused = disk.pause_syncs(".seg");
    let index = writer.append_shared(&[b"entry"], terms(Level::Sync, 17), 7).unwrap();
    let mut parts = [(Level::Risk, 4), (Level::Risk, 7), (Level::Sync, 0), (Level::Risk, 6)]
        .map(|(level, value)| journal.ticket(index, level, value));
    let now: Vec<_> = parts.iter_mut().map(|part| part.poll().unwrap().is_some()).collect();
    assert_eq!(now, [true, false, false, true], "4 and 6 fill the cap");
    assert_eq!((journal.exposure().value, journal.exposure().acked), (17, 10));
    journal.request_sync();
    drop(paused);
    for part in &mut parts {
        part.wait(LONG).unwrap();
    }
    assert_eq!((journal.exposure().value, journal.exposure().acked_max), (0, 10));
    assert_eq!(parts[1].poll().unwrap().unwrap().level, Level::Sync);
    assert_eq!(
        rounds(&journal),
        [("request", 1), ("total", 1)].into(),
        "7 is below what a single one may be"
    );
    let stored = journal.read_from(1).unwrap().next().unwrap().unwrap();
    assert_eq!((stored.value, stored.level), (17, Some(Level::Sync)));
}

/// I5, I7, F7: nothing is acknowledged by a sync that failed, and nothing afterwards.
#[test]
fn a_failed_sync_acknowledges_nothing() {
    let disk = SimDisk::new(1);
    let (journal, mut writer) = open_with(&disk, RiskPolicy { total: Some(10), ..RiskPolicy::default() });
    let mut safe = add(&mut writer, Level::Risk, 9);
    assert!(safe.poll().unwrap().is_some());
    let mut early = add(&mut writer, Level::Async, 0);
    disk.fail_syncs(Some(ErrorKind::Other));
    let mut held = add(&mut writer, Level::Risk, 2);
    until("the log has failed", || matches!(journal.health(), crate::Health::Failed(_)));
    assert!(matches!(held.wait(LONG), Err(WaitError::Failed(_))));
    assert_eq!(early.poll().unwrap().unwrap().level, Level::Async, "it was written, and still is");
    disk.fail_syncs(None);
    assert!(matches!(held.wait(LONG), Err(WaitError::Failed(_))));
    assert_eq!((journal.synced(), journal.exposure().acked, journal.exposure().value), (0, 9, 11));
}

/// I8, F22: however many triggers come while a sync runs, one more follows.
#[test]
fn triggers_during_a_sync_lead_to_one_more() {
    let disk = SimDisk::new(1);
    let (journal, mut writer) = open_with(&disk, RiskPolicy { single: Some(5), ..RiskPolicy::default() });
    let before = disk.counts().syncs;
    let paused = disk.pause_syncs(".seg");
    let mut first = add(&mut writer, Level::Risk, 5);
    until("the sync has begun", || disk.counts().syncs == before + 1);
    let mut more: Vec<_> = (0..40).map(|_| add(&mut writer, Level::Risk, 5)).collect();
    let mut small = add(&mut writer, Level::Risk, 4);
    assert!(small.poll().unwrap().is_some(), "what is not over the threshold does not wait");
    assert!(first.poll().unwrap().is_none() && first.was_held());
    drop(paused);
    for ticket in &mut more {
        assert_eq!(ticket.wait(LONG).unwrap().level, Level::Sync);
    }
    assert_eq!(first.wait(LONG).unwrap().level, Level::Sync);
    assert_eq!(disk.counts().syncs, before + 2);
    assert_eq!(rounds(&journal), [("single", 2)].into());
}

#[test]
fn each_trigger_syncs_and_is_counted() {
    let millis = Duration::from_millis;
    let none = RiskPolicy::default;
    let cases = [
        (RiskPolicy { single: Some(5), ..none() }, vec![5], "single"),
        (RiskPolicy { total: Some(9), ..none() }, vec![4, 4, 4], "total"),
        (RiskPolicy { bytes: Some(200), ..none() }, vec![0, 0, 0], "bytes"),
        (RiskPolicy { count: Some(4), ..none() }, vec![0, 0, 0, 0], "count"),
        (RiskPolicy { age: Some(millis(10)), ..none() }, vec![0], "age"),
    ];
    for (policy, values, cause) in cases {
        let disk = SimDisk::new(1);
        let (journal, mut writer) = open_with(&disk, policy);
        for value in &values[..values.len() - 1] {
            add(&mut writer, Level::Async, *value);
        }
        if values.len() > 1 {
            std::thread::sleep(millis(15));
            assert_eq!(journal.synced(), 0, "{cause}: too early");
        }
        add(&mut writer, Level::Async, values[values.len() - 1]);
        journal.wait_synced_blocking(values.len() as u64, LONG).unwrap();
        until(cause, || rounds(&journal) == [(cause, 1)].into());
        assert_eq!((journal.exposure().value, journal.exposure().count), (0, 0));
    }
}

#[test]
fn a_soft_cap_syncs_but_holds_nothing() {
    let disk = SimDisk::new(1);
    let policy = RiskPolicy { total: Some(10), cap: Cap::Soft, ..RiskPolicy::default() };
    let (journal, mut writer) = open_with(&disk, policy);
    let paused = disk.pause_syncs(".seg");
    for _ in 0..5 {
        assert!(add(&mut writer, Level::Risk, 7).poll().unwrap().is_some());
    }
    assert_eq!((journal.exposure().acked, journal.exposure().held), (35, 0));
    drop(paused);
    journal.wait_synced_blocking(5, LONG).unwrap();
}

#[test]
fn the_quorum_scope_waits_for_a_majority() {
    let disk = SimDisk::new(1);
    let policy = RiskPolicy { total: Some(10), scope: Scope::Quorum, ..RiskPolicy::default() };
    let (journal, mut writer) = open_with(&disk, policy);
    let follower = |synced| Follower { node: 1, term: 0, received: 2, synced, reachable: true };
    let cluster = |synced| Cluster { term: 0, voters: 3, sync_copies: 1, followers: vec![follower(synced)] };
    journal.set_cluster(cluster(0));
    let mut first = add(&mut writer, Level::Risk, 8);
    assert_eq!(first.poll().unwrap().unwrap().level, Level::Replicated);
    let mut second = add(&mut writer, Level::Risk, 8);
    journal.request_sync();
    journal.wait_synced_blocking(2, LONG).unwrap();
    assert!(second.poll().unwrap().is_none(), "on one disk of three");
    assert_eq!(journal.exposure().acked, 8);
    journal.set_cluster(cluster(2));
    assert_eq!(second.wait(LONG).unwrap().level, Level::QuorumSync);
    assert_eq!(journal.exposure().acked, 0);
}

#[test]
fn marks_follow_the_syncs_that_were_asked_for() {
    let disk = SimDisk::new(1);
    let policy = RiskPolicy { single: Some(5), announce: true, ..RiskPolicy::default() };
    let (journal, mut writer) = open_with(&disk, policy);
    add(&mut writer, Level::Async, 1);
    journal.request_sync();
    journal.wait_synced_blocking(1, LONG).unwrap();
    assert_eq!(journal.written(), 1, "nobody asked for a mark");
    add(&mut writer, Level::Async, 3);
    add(&mut writer, Level::Async, 5);
    until("the mark is there", || journal.written() == 4);
    let mut tailer = journal.tailer();
    for index in 1..=3 {
        assert_eq!(tailer.next_entry().unwrap().unwrap().index, index);
        assert_eq!(tailer.last_mark(), None);
    }
    assert!(tailer.next_entry().unwrap().is_none());
    let mark = tailer.last_mark().unwrap();
    assert_eq!((mark.upto, mark.released), (3, 8));
    assert_eq!(mark.causes.iter().collect::<Vec<_>>(), [Cause::Single]);

    journal.fence();
    until("the fence's mark is there", || journal.written() == 5);
    assert!(tailer.next_entry().unwrap().is_none());
    assert!(tailer.last_mark().unwrap().causes.contains(Cause::Fence));
    assert_eq!(add(&mut writer, Level::Async, 0).index(), 6);
    assert_eq!(tailer.next_entry().unwrap().unwrap().index, 6);
    let back: Vec<_> = std::iter::from_fn(|| tailer.previous_entry().unwrap().map(|e| e.index)).collect();
    assert_eq!(back, [6, 3, 2, 1]);
    drop(writer);
    let (journal, _writer, recovery) = open(&disk.kill());
    assert_eq!(recovery.last_index, 6);
    assert_eq!(journal.read_from(1).unwrap().count(), 4);
}

#[test]
fn a_fence_after_everything_is_synced_has_its_mark() {
    let disk = SimDisk::new(1);
    let (journal, mut writer) = open_with(&disk, RiskPolicy { announce: true, ..RiskPolicy::default() });
    add(&mut writer, Level::Async, 1);
    sync(&journal);
    journal.fence();
    until("the mark is there", || journal.written() == 2);
    let mut tailer = journal.tailer();
    while tailer.next_entry().unwrap().is_some() {}
    assert_eq!(tailer.last_mark().map(|m| m.upto), Some(1));
}

/// The mark cannot be appended while an append waits for the disk; it comes afterwards.
#[test]
fn marks_and_waiting_appends_do_not_block_each_other() {
    let disk = SimDisk::new(1);
    let policy = RiskPolicy { single: Some(1), announce: true, ..RiskPolicy::default() };
    let (journal, mut writer) = open_with(&disk, policy);
    let paused = disk.pause_syncs(".seg");
    let appender = std::thread::spawn(move || {
        // Not so many that the last segment is full: a mark that finds no room in it is left out.
        for _ in 0..610 {
            writer.append_on(&[&[7; 600]], terms(Level::Async, 1)).unwrap();
        }
        writer
    });
    until("the appends stand still", || {
        let before = journal.written();
        std::thread::sleep(Duration::from_millis(30));
        before > 0 && before == journal.written()
    });
    drop(paused);
    let _writer = appender.join().unwrap();
    until("a mark is the last thing", || {
        let mut tailer = journal.tailer();
        while tailer.next_entry().unwrap().is_some() {}
        tailer.last_mark().is_some_and(|mark| mark.upto >= 610)
    });
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Append(Level, u64),
    Poll(usize),
    Pause,
    Resume,
    Fence,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u64..20).prop_map(|value| Step::Append(Level::Risk, value)),
        1 => (0u64..20).prop_map(|value| Step::Append(Level::Async, value)),
        8 => (0usize..8).prop_map(Step::Poll),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::Fence),
    ];
    prop::collection::vec(step, 1..150)
}

/// Sums the values that were acknowledged at level *risk* and are not durable.
fn acked_exposure(journal: &Journal, acked: &[(u64, u64)]) -> u64 {
    // Read after the acknowledgements: what is durable by now was at risk no longer than until now.
    let synced = journal.synced();
    acked.iter().filter(|(index, _)| *index > synced).map(|(_, value)| value).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// I7 and I1: whatever the disk does, the acknowledged exposure stays under the cap, and a power cut loses no
    /// more value than that, nor anything acknowledged as synced.
    #[test]
    fn a_power_cut_costs_no_more_than_the_cap(
        steps in steps(), cap in 1u64..60, single in 5u64..30, fails: bool, seed: u64,
    ) {
        let disk = SimDisk::new(seed);
        let policy =
            RiskPolicy { total: Some(cap), single: Some(single), announce: true, ..RiskPolicy::default() };
        let (journal, mut writer) = open_with(&disk, policy);
        let (mut waiting, mut acked, mut paused) = (Vec::<(Ticket, u64)>::new(), Vec::new(), None);
        let mut safe = Vec::new();
        for step in &steps {
            match step {
                Step::Append(level, value) => {
                    let Ok(ticket) = writer.append_on(&[b"x"], terms(*level, *value)) else { break };
                    if *level == Level::Risk {
                        waiting.push((ticket, *value));
                    }
                }
                Step::Poll(which) if *which < waiting.len() => match waiting[*which].0.poll() {
                    Ok(Some(ack)) => {
                        let (ticket, value) = waiting.swap_remove(*which);
                        acked.push((ticket.index(), value));
                        safe.extend((ack.level == Level::Sync).then_some(ticket.index()));
                    }
                    Ok(None) => {}
                    Err(_) => break,
                },
                Step::Poll(_) => {}
                Step::Pause => paused = Some(disk.pause_syncs(".seg")),
                Step::Resume => paused = None,
                Step::Fence => journal.fence(),
            }
            prop_assert!(acked_exposure(&journal, &acked) <= cap);
            prop_assert!(journal.exposure().acked_max <= cap.into());
        }
        if fails {
            disk.fail_syncs(Some(ErrorKind::Other));
        }
        let found = disk.crash(seed);
        drop(paused);
        let (after, _writer, recovery) = open(&found);
        let lost: u64 = acked.iter().filter(|(i, _)| *i > recovery.last_index).map(|(_, v)| v).sum();
        prop_assert!(lost <= cap, "{} of {} lost", lost, cap);
        prop_assert!(safe.iter().all(|index| *index <= recovery.last_index));
        prop_assert!(after.read_from(1).unwrap().all(|e| e.is_ok()));
    }

    /// With a disk that works every acknowledgement comes.
    #[test]
    fn nothing_is_held_for_ever(values in prop::collection::vec(0u64..20, 1..60), cap in 1u64..60) {
        let disk = SimDisk::new(1);
        let (journal, mut writer) =
            open_with(&disk, RiskPolicy { total: Some(cap), ..RiskPolicy::default() });
        let mut tickets: Vec<_> = values.iter().map(|v| add(&mut writer, Level::Risk, *v)).collect();
        for ticket in tickets.iter_mut().rev() {
            ticket.wait(LONG).unwrap();
        }
        prop_assert!(journal.exposure().acked_max <= cap.into());
    }
}

/// A mark of the log is unsynced until the interval is over; an entry that comes then must not become too old for it.
#[test]
fn an_entry_after_a_mark_is_synced_by_its_age() {
    let disk = SimDisk::new(1);
    let risk = RiskPolicy { age: Some(Duration::from_millis(5)), announce: true, ..RiskPolicy::default() };
    let options = Options {
        risk: Some(risk),
        sync: crate::SyncPolicy::Interval(Duration::from_secs(3600)),
        ..options()
    };
    let (journal, mut writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    for _ in 0..5 {
        let index = add(&mut writer, Level::Async, 0).index();
        journal.wait_synced_blocking(index, LONG).unwrap();
        until("the mark is appended", || journal.written() == index + 1);
        // The syncer goes to sleep with the mark.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// At the end of a segment there may be no room for it: it comes in the next one.
#[test]
fn no_mark_is_lost() {
    let disk = SimDisk::new(1);
    let (journal, mut writer) = open_with(&disk, RiskPolicy { announce: true, ..RiskPolicy::default() });
    add(&mut writer, Level::Async, 0);
    let room = journal.room();
    // One that leaves no room.
    writer.append(&[&vec![7; room as usize - 80]], 0).unwrap();
    assert!(journal.room() < 64);
    journal.fence();
    journal.wait_synced_blocking(2, LONG).unwrap();
    until("the mark was tried", || !journal.0.desk.is_announcing());
    drop(journal.0.core.lock());
    assert_eq!(journal.written(), 2);
    writer.append(&[b"in the next segment"], 0).unwrap();
    until("the mark is there", || journal.written() == 4);
    let mut tailer = journal.tailer();
    while tailer.next_entry().unwrap().is_some() {}
    assert_eq!(tailer.last_mark().map(|mark| mark.upto), Some(2));
}
