use super::*;

const MS: Duration = Duration::from_millis(1);
const TIMING: Timing =
    Timing { pause: Duration::from_millis(250), fallback: Duration::from_secs(10), streams: true };

struct Lane {
    core: LaneCore,
    now: Instant,
}

impl Lane {
    fn new(window: usize, workers: usize) -> Self {
        let now = Instant::now();
        Self { core: LaneCore::new(Limits { window, queue: 2 * window, workers }, TIMING, now), now }
    }

    /// A lane whose catch-up poll is over.
    fn caught_up(window: usize, workers: usize) -> Self {
        let mut lane = Self::new(window, workers);
        lane.poll(vec![]);
        lane
    }

    fn poll(&mut self, found: Vec<Element>) -> Vec<MessageId> {
        let (skip, _) = self.core.begin_poll(self.now);
        self.core.end_poll(found, |_| true, self.now);
        skip
    }

    fn offer(&mut self, n: u8) -> Offer {
        self.core.offer(element(n, 1000), self.now)
    }

    fn finish(&mut self, n: u8, outcome: Outcome) {
        self.core.finish(&id(n), outcome, self.now);
    }

    fn wait(&self) -> Duration {
        self.core.poll_wait(self.now)
    }

    fn next(&mut self) -> Option<MessageId> {
        self.core.next().map(|element| element.id)
    }
}

fn id(n: u8) -> MessageId {
    bson::oid::ObjectId::from_bytes([n; 12]).into()
}

fn element(n: u8, priority: i32) -> Element {
    Element {
        id: id(n),
        priority,
        timestamp: n.into(),
        exclusive: false,
        snapshot: None,
        since: Instant::now(),
    }
}

#[test]
fn order_is_priority_then_age_then_id() {
    let mut lane = Lane::caught_up(10, 10);
    lane.poll(vec![element(3, 5), element(2, 5), element(1, 9)]);
    lane.core.offer(Element { timestamp: 2, ..element(4, 5) }, lane.now);
    let order: Vec<_> = std::iter::from_fn(|| lane.next()).collect();
    assert_eq!(order, [id(2), id(4), id(3), id(1)]);
}

#[test]
fn events_and_polls_never_duplicate() {
    let mut lane = Lane::caught_up(10, 1);
    assert_eq!((lane.offer(1), lane.offer(1)), (Offer::Queued, Offer::Known));
    assert_eq!(lane.poll(vec![element(1, 0)]), [id(1)]);
    assert_eq!(lane.next(), Some(id(1)));
    assert_eq!(lane.poll(vec![element(1, 0)]), [id(1)], "in progress");
    assert_eq!(lane.next(), None, "one worker");
    lane.finish(1, Outcome::Delivered);
    assert_eq!(lane.offer(1), Offer::Known, "resume overlap");
    lane.poll(vec![element(1, 0)]);
    assert_eq!(lane.next(), None, "remembered although unmarked");
    lane.now += MEMORY;
    lane.poll(vec![element(1, 0)]);
    assert_eq!(lane.next(), None, "still unmarked");
}

#[test]
fn a_full_queue_falls_back_to_polling() {
    let mut lane = Lane::caught_up(1, 1);
    assert_eq!((lane.offer(1), lane.offer(2), lane.offer(3)), (Offer::Queued, Offer::Queued, Offer::Full));
    lane.now += 100 * MS;
    assert_eq!(lane.wait(), TIMING.pause, "no room");
    for n in [1, 2] {
        assert_eq!(lane.next(), Some(id(n)));
        lane.finish(n, Outcome::Done);
    }
    assert_eq!(lane.wait(), Duration::ZERO, "room, and more waits");
    lane.poll(vec![element(3, 0)]);
    assert_eq!(lane.next(), Some(id(3)));
}

#[test]
fn one_poll_after_a_loss_fills_the_queue() {
    let now = Instant::now();
    let limits = Limits { window: 2, queue: 6, workers: 99 };
    let mut lane = Lane { core: LaneCore::new(limits, TIMING, now), now };
    lane.poll(vec![]);
    assert_eq!(lane.core.begin_poll(now).1, 2, "a window");
    lane.core.end_poll(vec![], |_| true, now);
    for n in 1..=7 {
        assert_eq!(lane.offer(n), if n < 7 { Offer::Queued } else { Offer::Full });
    }
    lane.now += TIMING.fallback;
    assert_eq!(lane.wait(), TIMING.pause, "full");
    (1..=4).for_each(|_| drop(lane.next()));
    assert_eq!(lane.wait(), Duration::ZERO, "the safety poll");
    lane.next();
    assert_eq!(lane.wait(), Duration::ZERO, "room, and more waits");
    assert_eq!(lane.core.begin_poll(lane.now).1, 5, "all that has room");
    let found = (10..15).map(|n| element(n, 0)).collect();
    lane.core.end_poll(found, |_| true, lane.now);
    assert_eq!(lane.core.depth().queued, 6);
    (1..=6).for_each(|_| drop(lane.next()));
    assert_eq!(lane.core.begin_poll(lane.now).1, 6, "the last one was full: there may be more");
    lane.core.end_poll(vec![], |_| true, lane.now);
    assert_eq!(lane.core.begin_poll(lane.now).1, 2);
}

#[test]
fn a_window_is_enough_where_nodes_compete() {
    let mut lane = Lane::caught_up(1, 9);
    for n in 1..=3 {
        lane.offer(n);
    }
    lane.next();
    lane.finish(1, Outcome::Lost);
    lane.next();
    assert_eq!(lane.core.begin_poll(lane.now).1, 1);
}

#[test]
fn documents_are_kept_for_the_first_only() {
    let now = Instant::now();
    let limits = Limits { window: 2, queue: 2 * SNAPSHOTS_MAX, workers: 1 };
    let mut core = LaneCore::new(limits, TIMING, now);
    for n in 0..=SNAPSHOTS_MAX as u32 {
        let id: MessageId = bson::oid::ObjectId::from_parts(n, [0; 5], [0; 3]).into();
        let snapshot = Some(Box::new(rockdove_messages::Message::new("t")));
        core.offer(Element { id, snapshot, timestamp: n.into(), ..element(0, 0) }, now);
    }
    let kept = core.queue.values().filter(|element| element.snapshot.is_some()).count();
    assert_eq!((core.queue.len(), kept), (SNAPSHOTS_MAX + 1, SNAPSHOTS_MAX));
}

#[test]
fn a_full_window_is_polled_again_as_soon_as_there_is_room() {
    let mut lane = Lane::caught_up(2, 5);
    lane.poll(vec![element(1, 0), element(2, 0)]);
    assert_eq!(lane.wait(), TIMING.pause);
    assert!(lane.next().is_some());
    assert!(lane.wait() <= 5 * MS);
    lane.poll(vec![]);
    assert_eq!(lane.wait(), TIMING.fallback);
}

#[test]
fn awaited_answers_need_no_worker() {
    let mut lane = Lane::caught_up(10, 1);
    lane.offer(1);
    lane.next();
    assert!(lane.core.begin_answer(&id(2), lane.now));
    assert!(!lane.core.begin_answer(&id(2), lane.now));
    lane.finish(2, Outcome::Delivered);
    assert!(!lane.core.begin_answer(&id(2), lane.now), "once");
    assert_eq!(lane.core.depth().running, 1);
}

#[test]
fn a_lost_claim_waits_for_its_release() {
    let mut lane = Lane::caught_up(10, 1);
    lane.core.lock_released(Some(&id(1)));
    lane.core.lock_released(None);
    assert_eq!(lane.wait(), TIMING.fallback, "nothing was lost here");
    lane.offer(1);
    lane.next();
    lane.finish(1, Outcome::Lost);
    assert_eq!(lane.poll(vec![]), [id(1)], "left out while waiting");
    lane.core.lock_released(Some(&id(1)));
    assert_eq!(lane.wait(), TIMING.pause, "gathered until the next tick");
    assert!(lane.poll(vec![element(1, 0)]).is_empty());
    assert_eq!(lane.next(), Some(id(1)));
    lane.core.lock_released(Some(&id(1)));
    lane.finish(1, Outcome::Lost);
    assert_eq!(lane.wait(), TIMING.pause, "released while we lost: no pause");
}

#[test]
fn what_another_node_had_leaves_the_queue() {
    let mut lane = Lane::caught_up(10, 1);
    let queued = lane.now;
    lane.now += 100 * MS;
    assert!(!lane.core.is_doubtful(queued, lane.now), "nobody competes");
    for n in [1, 2] {
        lane.offer(n);
    }
    lane.core.lock_released(Some(&id(1)));
    assert_eq!(lane.wait(), TIMING.pause - 100 * MS, "should it have been given back, a poll finds it");
    assert!(lane.core.is_doubtful(queued, lane.now) && !lane.core.is_doubtful(lane.now, lane.now));
    assert_eq!(lane.next(), Some(id(2)));
    lane.finish(2, Outcome::Processed);
    assert!(!lane.core.is_doubtful(queued, lane.now));
    lane.poll(vec![element(1, 0)]);
    assert_eq!(lane.next(), Some(id(1)));
    lane.finish(1, Outcome::Lost);
    assert!(lane.core.was_lost(&id(1)) && !lane.core.was_lost(&id(2)));
}

#[test]
fn a_release_without_id_wakes_every_lost_claim() {
    let mut lane = Lane::caught_up(10, 2);
    for n in [1, 2] {
        lane.offer(n);
        lane.next();
        lane.finish(n, Outcome::Lost);
    }
    lane.core.lock_released(None);
    assert!(lane.poll(vec![]).is_empty());
}

#[test]
fn own_failures_back_off_and_ignore_their_own_requeue() {
    let mut lane = Lane::caught_up(10, 1);
    for pause in [100, 200, 400] {
        lane.poll(vec![element(1, 0)]);
        assert_eq!(lane.next(), Some(id(1)));
        lane.finish(1, Outcome::Retry);
        lane.core.requeued(Some(&id(1)), lane.now);
        assert_eq!(lane.wait(), pause * MS);
        lane.now += pause * MS;
        assert_eq!(lane.wait(), Duration::ZERO, "due");
    }
}

#[test]
fn a_requeue_by_others_is_polled_at_once() {
    let mut lane = Lane::caught_up(10, 1);
    lane.now += 10 * MS;
    lane.core.requeued(Some(&id(1)), lane.now);
    assert_eq!(lane.wait(), Duration::ZERO);
    lane.poll(vec![element(1, 0)]);
    lane.next();
    lane.finish(1, Outcome::Delivered);
    lane.now += 10 * MS;
    lane.core.requeued(Some(&id(1)), lane.now);
    assert_ne!(lane.wait(), Duration::ZERO, "a broadcast we have had");
}

#[test]
fn processed_exclusive_messages_are_remembered_but_may_come_again() {
    let mut lane = Lane::caught_up(10, 1);
    lane.offer(1);
    lane.next();
    lane.finish(1, Outcome::Processed);
    assert!(lane.core.was_processed(&id(1), lane.now) && !lane.core.was_processed(&id(2), lane.now));
    assert_eq!(lane.offer(1), Offer::Known, "resume overlap");
    lane.now += 10 * MS;
    lane.core.requeued(Some(&id(1)), lane.now);
    assert_eq!(lane.wait(), Duration::ZERO);
    lane.poll(vec![element(1, 0)]);
    assert_eq!(lane.next(), Some(id(1)));
}

#[test]
fn an_exclusive_message_found_by_a_poll_is_not_taken_again_from_a_late_event() {
    let mut lane = Lane::caught_up(10, 1);
    lane.poll(vec![element(1, 0)]);
    assert_eq!(lane.next(), Some(id(1)));
    lane.finish(1, Outcome::Processed);
    assert_eq!(lane.offer(1), Offer::Known);
}

#[test]
fn failed_broadcasts_do_not_fill_the_window() {
    let mut lane = Lane::caught_up(10, 1);
    lane.offer(1);
    lane.next();
    lane.finish(1, Outcome::Failed);
    assert_eq!(lane.poll(vec![]), [id(1)]);
}

#[test]
fn a_failed_broadcast_is_not_offered_again_however_long_it_lives() {
    let mut lane = Lane::caught_up(10, 1);
    lane.offer(1);
    lane.next();
    lane.finish(1, Outcome::Failed);
    for _ in 0..3 {
        lane.now += MEMORY;
        assert_eq!(lane.wait(), Duration::ZERO, "looked at again, to be left out again");
        assert!(lane.poll(vec![element(1, 0)]).is_empty());
        assert!(lane.next().is_none());
        assert_eq!(lane.poll(vec![]), [id(1)]);
        lane.core.requeued(Some(&id(1)), lane.now);
        assert_ne!(lane.wait(), Duration::ZERO);
    }
}

#[test]
fn unlistened_messages_come_back_for_a_new_listener() {
    let mut lane = Lane::caught_up(10, 1);
    lane.offer(1);
    lane.next();
    lane.finish(1, Outcome::Unlistened);
    assert_eq!(lane.poll(vec![]), [id(1)]);
    lane.core.urge_poll();
    assert!(lane.poll(vec![element(1, 0)]).is_empty());
    assert_eq!(lane.next(), Some(id(1)));
}

#[test]
fn a_poll_names_a_bounded_number_of_ids_and_asks_for_more_instead() {
    let now = Instant::now();
    let limits = Limits { window: 10, queue: 3 * SKIP_MAX, workers: 1 };
    let mut core = LaneCore::new(limits, TIMING, now);
    let nth = |n: usize| -> MessageId {
        bson::oid::ObjectId::from_parts(u32::try_from(n).unwrap(), [0; 5], [0; 3]).into()
    };
    for n in 0..2 * SKIP_MAX {
        core.offer(Element { id: nth(n), timestamp: n as i64, ..element(0, 0) }, now);
    }
    core.next();
    let (skip, limit) = core.begin_poll(now);
    assert_eq!((skip.len(), limit), (SKIP_MAX, SKIP_MAX + 10));
    assert!((0..SKIP_MAX).all(|n| skip.contains(&nth(n))), "those that a poll would find first");
    // It finds what was not named, which is known, and after that what is new.
    let found = (SKIP_MAX..2 * SKIP_MAX + 10).map(|n| Element { id: nth(n), ..element(0, 0) }).collect();
    core.end_poll(found, |_| true, now);
    assert_eq!(core.depth().queued, 2 * SKIP_MAX + 9);
}

#[test]
fn who_loses_every_claim_looks_for_what_others_have_not_found() {
    for streams in [false, true] {
        let now = Instant::now();
        let timing = Timing { streams, ..TIMING };
        let core = LaneCore::new(Limits { window: 20, queue: 40, workers: 1 }, timing, now);
        let mut lane = Lane { core, now };
        let exclusive = |n: u8| Element { exclusive: true, ..element(n, 0) };
        lane.poll((1..=20).map(|n| if n == 20 { element(n, 0) } else { exclusive(n) }).collect());
        for n in 1..=8 {
            assert_eq!(lane.next(), Some(id(n)));
            lane.finish(n, if n % 2 == 0 { Outcome::Lost } else { Outcome::Taken });
        }
        if streams {
            assert_eq!(lane.next(), Some(id(9)), "a release would say so");
            continue;
        }
        assert_eq!(lane.next(), Some(id(20)), "a broadcast is nobody's to take");
        assert!(lane.wait() <= 5 * MS);
        let skipped = lane.poll((21..=40).map(exclusive).collect());
        assert!((9..=19).all(|n| skipped.contains(&id(n))));
        lane.finish(20, Outcome::Delivered);
        for n in 21..=27 {
            assert_eq!(lane.next(), Some(id(n)));
            lane.finish(n, Outcome::Lost);
        }
        assert_eq!(lane.next(), Some(id(28)));
        lane.finish(28, Outcome::Processed);
        assert_eq!(lane.next(), Some(id(29)));
        lane.finish(29, Outcome::Lost);
        assert_eq!(lane.next(), Some(id(30)), "one of ours in between");
        lane.now += LOST_FIRST;
        assert!(!lane.poll(vec![exclusive(9)]).contains(&id(9)), "looked at again");
    }
}

#[test]
fn polling_without_streams_keeps_its_period() {
    let now = Instant::now();
    let timing = Timing { streams: false, ..TIMING };
    let mut core = LaneCore::new(Limits { window: 10, queue: 20, workers: 1 }, timing, now);
    assert!(core.poll_wait(now) <= 5 * MS, "catch up first");
    core.begin_poll(now);
    core.end_poll(vec![], |_| true, now);
    assert_eq!(core.poll_wait(now), TIMING.pause);
    assert!(!core.is_stalled(now + TIMING.fallback * 10));
}

#[test]
fn a_silent_stream_with_backlog_is_stalled_once() {
    let mut lane = Lane::caught_up(10, 10);
    lane.now += TIMING.fallback * 2;
    assert!(!lane.core.is_stalled(lane.now), "idle is not stalled");
    lane.poll(vec![element(1, 0)]);
    assert!(lane.core.is_stalled(lane.now));
    assert!(!lane.core.is_stalled(lane.now), "one restart per span");
    lane.now += TIMING.fallback * 2;
    lane.poll(vec![element(2, 0)]);
    lane.core.event_arrived(lane.now);
    assert!(!lane.core.is_stalled(lane.now), "an event arrived");
}

#[test]
fn what_was_announced_without_room_is_no_sign_of_a_dead_stream() {
    let mut lane = Lane::caught_up(1, 2);
    assert_eq!((lane.offer(1), lane.offer(2), lane.offer(3)), (Offer::Queued, Offer::Queued, Offer::Full));
    while let Some(next) = lane.core.next() {
        lane.core.finish(&next.id, Outcome::Done, lane.now);
    }
    lane.now += TIMING.fallback * 2;
    lane.poll(vec![element(3, 0)]);
    assert!(!lane.core.is_stalled(lane.now));
    lane.next();
    lane.finish(3, Outcome::Done);
    lane.poll(vec![]);
    lane.poll(vec![element(4, 0)]);
    assert!(lane.core.is_stalled(lane.now), "the backlog is gone, and this one was not announced");
}

#[test]
fn finishing_what_is_not_in_progress_changes_nothing() {
    let mut lane = Lane::caught_up(10, 1);
    lane.finish(1, Outcome::Retry);
    assert!(lane.core.is_idle() && lane.poll(vec![]).is_empty());
}
