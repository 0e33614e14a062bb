//! Tailers against a model that holds all entries: seeking, both directions, ranges, marks in between.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use proptest::prelude::*;

use super::*;
use crate::disk::{Disk, File, FolderLock, RealDisk};
use crate::error::DiskError;
use crate::journal::Shared;
use crate::scan::Scanner;
use crate::segment::Segment;
use crate::tail::Source;
use crate::{
    CursorError, Level, LogView, RiskPolicy, Seek, Tailer, Terms, Visibility, WaitStrategy, Watermarks,
};

#[derive(Clone, Debug)]
enum Step {
    Next,
    Previous,
    Start,
    End,
    Index(u64),
    Time(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Next),
        6 => Just(Step::Previous),
        1 => Just(Step::Start),
        1 => Just(Step::End),
        2 => (0u64..130).prop_map(Step::Index),
        2 => (0u64..300).prop_map(Step::Time),
    ];
    prop::collection::vec(step, 1..80)
}

/// What a log may hold: an entry that is this much later than the one before and this long, or a mark.
fn contents() -> impl Strategy<Value = Vec<Option<(u64, usize)>>> {
    let entry =
        (prop_oneof![3 => 0u64..1, 2 => 1u64..10], prop_oneof![9 => 0usize..600, 1 => 3000usize..20_000]);
    prop::collection::vec(prop::option::weighted(0.9, entry), 0..100)
}

/// Index, time and length of each entry.
type Model = Vec<(u64, u64, usize)>;

fn make(disk: Arc<dyn Disk>, contents: &[Option<(u64, usize)>]) -> (Journal, Writer, Model) {
    let risk = RiskPolicy { announce: true, ..RiskPolicy::default() };
    let options = Options { risk: Some(risk), ..options() };
    let (journal, mut writer, _) = Journal::open_on(disk, options).unwrap();
    let (mut model, mut time) = (Vec::new(), 0);
    for item in contents {
        match item {
            Some((step, len)) => {
                time += step;
                let index = writer.append(&[&payload(time, *len)], time).unwrap();
                model.push((index, time, *len));
            }
            // A mark has no room at the very end of a segment.
            None if journal.written() > journal.synced() => {
                let upto = journal.written();
                journal.fence();
                journal.wait_synced_blocking(upto, LONG).unwrap();
                marks_are_in(&journal);
            }
            None => {}
        }
    }
    marks_are_in(&journal);
    (journal, writer, model)
}

/// Waits until no mark is about to be appended. One without room comes a moment after the next segment.
fn marks_are_in(journal: &Journal) {
    until("no mark is pending", || !journal.0.desk.is_announcing());
    // It is taken before it is appended, under this lock.
    drop(journal.0.core.lock());
}

/// Runs the steps on a tailer and on the model.
fn follow(mut tailer: Tailer, model: &Model, first: u64, next: u64, steps: &[Step]) {
    let mut position = first;
    let check = |entry: Option<crate::EntryRef<'_>>, expected: Option<&(u64, u64, usize)>| {
        let expected_bytes = expected.map(|(index, time, len)| (*index, *time, payload(*time, *len)));
        let entry = entry.map(|e| (e.index, e.time_ns, e.payload.to_vec()));
        assert!(entry == expected_bytes, "{:?} instead of {expected:?}", entry.map(|e| (e.0, e.1)));
    };
    for step in steps {
        match step {
            Step::Next => {
                let expected = model.iter().find(|e| e.0 >= position);
                check(tailer.next_entry().unwrap(), expected);
                position = expected.map_or(next, |e| e.0 + 1);
            }
            Step::Previous => {
                let expected = model.iter().rev().find(|e| e.0 < position && e.0 >= first);
                check(tailer.previous_entry().unwrap(), expected);
                position = expected.map_or(first, |e| e.0);
            }
            Step::Start => {
                tailer.to_start();
                position = first;
            }
            Step::End => {
                tailer.to_end().unwrap();
                position = next;
            }
            Step::Index(index) => {
                let expected = match *index {
                    index if index < first => Seek::BeforeStart { first },
                    index if index > next => Seek::AfterEnd { next },
                    index => Seek::At(index),
                };
                assert_eq!(tailer.move_to_index(*index).unwrap(), expected);
                position = if expected == Seek::At(*index) { *index } else { position };
            }
            Step::Time(time) => {
                // A mark has the time of the entry before it: the first of a time is an entry, except at the start.
                let found = model.iter().find(|e| e.1 >= *time && e.0 >= first).map(|e| e.0);
                let seek = tailer.move_to_time(*time).unwrap();
                match (seek, found) {
                    (Seek::At(at), Some(index)) => {
                        assert!(at == index || (at == first && index > at), "{at} for {index}");
                        position = at;
                    }
                    // A mark of that time may be all there is after a drop.
                    (Seek::At(at), None) => position = at,
                    (seek, found) => assert_eq!((seek, found), (Seek::AfterEnd { next }, None)),
                }
            }
        }
        assert_eq!(tailer.position(), position, "after {step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    /// I18, also on what remains of a log after a drop and after opening it again; I14: all that a search learns is
    /// in memory, so each tailer begins without it.
    #[test]
    fn tailers_agree_with_a_scan(contents in contents(), steps in steps(), drop_at in 0u64..100, reopen: bool, ends_empty: bool) {
        let disk = SimDisk::new(3);
        let (mut journal, mut writer, model) = make(Arc::new(disk.clone()), &contents);
        if reopen {
            drop(writer);
            (journal, writer, _) = open(&disk);
        }
        if ends_empty {
            roll(&journal);
        }
        let next = journal.written() + 1;
        follow(journal.tailer(), &model, 1, next, &steps);
        sync(&journal);
        until("sealed", || journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed()));
        let first = journal.drop_before(drop_at).unwrap();
        let next = journal.written() + 1;
        follow(journal.tailer(), &model, first, next, &steps);
        let view = LogView::open_on(Arc::new(disk.clone())).unwrap();
        follow(view.tailer(), &model, first, next, &steps);
        drop(writer);
    }

    #[test]
    fn ranges_show_what_lies_in_them(contents in contents(), start in 0u64..200, len in 0u64..100) {
        let disk = SimDisk::new(3);
        let (journal, _writer, model) = make(Arc::new(disk.clone()), &contents);
        let range = start..start + len;
        let expected: Vec<_> = model.iter().filter(|e| range.contains(&e.1)).map(|e| e.0).collect();
        let mut tailer = journal.tailer().with_times(range.clone());
        let mut forward = Vec::new();
        while let Some(entry) = tailer.next_entry().unwrap() {
            forward.push(entry.index);
        }
        prop_assert_eq!(&forward, &expected);
        // From behind the range.
        let mut tailer = journal.tailer().with_times(range);
        tailer.to_end().unwrap();
        let mut backward = Vec::new();
        while let Some(entry) = tailer.previous_entry().unwrap() {
            backward.insert(0, entry.index);
        }
        prop_assert_eq!(&backward, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// I18 and I20 on real files: tailers that read in memory, beside a view that reads by calls.
    #[test]
    fn tailers_in_memory_agree_with_a_scan(contents in contents(), steps in steps(), reopen: bool) {
        let temp = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(temp.path()).unwrap());
        let (mut journal, mut writer, model) = make(disk.clone(), &contents);
        if reopen {
            drop(writer);
            (journal, writer, _) = Journal::open_on(disk, options()).unwrap();
        }
        let next = journal.written() + 1;
        follow(journal.tailer(), &model, 1, next, &steps);
        follow(LogView::open(temp.path()).unwrap().tailer(), &model, 1, next, &steps);
        drop(writer);
        follow(journal.tailer(), &model, 1, next, &steps);
    }
}

/// Goes on to a new segment, which stays empty.
fn roll(journal: &Journal) {
    journal.0.core.lock().as_mut().unwrap().roll(&journal.0, 64, None).unwrap();
    marks_are_in(journal);
}

#[test]
fn a_time_is_found_before_an_empty_segment() {
    for count in [1, 30, 60, 100] {
        let disk = SimDisk::new(1);
        let (journal, mut writer, _) = open(&disk);
        for index in 1..=count {
            writer.append(&[&payload(index, 600)], index * 10).unwrap();
        }
        roll(&journal);
        let view = LogView::open_on(Arc::new(disk.clone())).unwrap();
        for mut tailer in [journal.tailer(), view.tailer()] {
            for index in 1..=count {
                assert_eq!(tailer.move_to_time(index * 10).unwrap(), Seek::At(index), "of {count}");
            }
            assert_eq!(tailer.move_to_time(count * 10 + 1).unwrap(), Seek::AfterEnd { next: count + 1 });
        }
    }
}

/// A log that drops what it may when a segment is opened for the first time.
struct Dropping {
    log: Arc<Shared>,
    opened: AtomicU64,
}

impl Source for Dropping {
    fn refresh(&self) -> Result<(), ReadError> {
        Ok(())
    }

    fn watermarks(&self) -> Watermarks {
        self.log.watermarks()
    }

    fn segments(&self) -> &RwLock<Vec<Arc<Segment>>> {
        self.log.segments()
    }

    fn scanner(&self, segment: &Segment) -> Result<Scanner, DiskError> {
        if self.opened.fetch_add(1, Ordering::SeqCst) == 0 {
            Journal(self.log.clone()).drop_before(u64::MAX).unwrap();
        }
        self.log.scanner(segment)
    }

    fn wait(&self, index: u64, visibility: Visibility, deadline: Instant) -> bool {
        self.log.wait(index, visibility, deadline)
    }

    fn is_ended(&self, visibility: Visibility) -> bool {
        self.log.is_ended(visibility)
    }
}

#[test]
fn a_time_is_looked_for_in_what_retention_leaves() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=100, 600);
    sync(&journal);
    until("sealed", || journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed()));
    let mut tailer = Tailer::new(Arc::new(Dropping { log: journal.0.clone(), opened: 0.into() }));
    let seek = tailer.move_to_time(5).unwrap();
    assert!(journal.first_index() > 5);
    assert_eq!(seek, Seek::At(journal.first_index()));
}

/// Nothing is synced any more, so who sees only what is on disk has reached the end.
#[test]
fn waiting_for_the_disk_ends_with_a_failure() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=1, 10);
    disk.fail_syncs(Some(std::io::ErrorKind::Other));
    journal.request_sync();
    until("failed", || journal.0.desk.failure().is_some());
    let source = Arc::new(Late { log: journal.0.clone(), looks: 0.into() });
    let mut tailer = Tailer::new(source.clone()).with_visibility(Visibility::Synced);
    assert!(!tailer.wait(Duration::from_secs(1)).unwrap());
    assert!(tailer.next_within(Duration::from_secs(1)).unwrap().is_none());
    let looks = source.looks.load(Ordering::SeqCst);
    assert!(looks < 20, "{looks} looks");
}

/// A log whose marks are as they were before the last appends for the first looks at them.
struct Late {
    log: Arc<Shared>,
    looks: AtomicU64,
}

impl Source for Late {
    fn refresh(&self) -> Result<(), ReadError> {
        Ok(())
    }

    fn watermarks(&self) -> Watermarks {
        match self.looks.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Watermarks::default(),
            _ => self.log.watermarks(),
        }
    }

    fn segments(&self) -> &RwLock<Vec<Arc<Segment>>> {
        self.log.segments()
    }

    fn scanner(&self, segment: &Segment) -> Result<Scanner, DiskError> {
        self.log.scanner(segment)
    }

    fn wait(&self, index: u64, visibility: Visibility, deadline: Instant) -> bool {
        self.log.wait(index, visibility, deadline)
    }

    fn is_ended(&self, visibility: Visibility) -> bool {
        self.log.is_ended(visibility)
    }
}

/// An entry that comes after a tailer looked for it and before it waits is not taken for the end of the range.
#[test]
fn an_entry_that_comes_before_the_wait_is_found() {
    let (journal, mut writer, _) = open(&SimDisk::new(1));
    append(&mut writer, 1..=1, 100);
    let mut tailer = Tailer::new(Arc::new(Late { log: journal.0.clone(), looks: 0.into() }));
    assert_eq!(tailer.next_within(LONG).unwrap().map(|entry| entry.index), Some(1));
}

/// What a view knows to be on disk comes with the next entry, and with a clean end.
#[test]
fn a_view_sees_the_last_synced_entry_once_the_log_is_closed() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=2, 10);
    let view = LogView::open_on(Arc::new(disk.clone())).unwrap();
    let mut tailer = view.tailer().with_visibility(Visibility::Synced);
    sync(&journal);
    assert!(tailer.next_within(Duration::from_millis(5)).unwrap().is_none());
    writer.close().unwrap();
    for index in 1..=2 {
        assert_eq!(tailer.next_within(LONG).unwrap().map(|entry| entry.index), Some(index));
    }
}

/// A disk on which something happens when the names are asked for, for the first time.
struct Hooked {
    disk: SimDisk,
    at_names: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Disk for Hooked {
    fn names(&self) -> std::io::Result<Vec<String>> {
        if let Some(hook) = self.at_names.lock().take() {
            hook();
        }
        self.disk.names()
    }

    fn create(&self, name: &str) -> std::io::Result<Arc<dyn File>> {
        self.disk.create(name)
    }

    fn open(&self, name: &str) -> std::io::Result<Arc<dyn File>> {
        self.disk.open(name)
    }

    fn open_read(&self, name: &str) -> std::io::Result<Arc<dyn File>> {
        self.disk.open_read(name)
    }

    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_names(&self) -> std::io::Result<()> {
        self.disk.sync_names()
    }

    fn lock(&self, name: &str) -> std::io::Result<FolderLock> {
        self.disk.lock(name)
    }

    fn boot_id(&self) -> [u8; 16] {
        self.disk.boot_id()
    }

    fn entropy(&self) -> u64 {
        self.disk.entropy()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.disk.path(name)
    }
}

/// Retention that begins between a view's look at the state and its look at the names.
#[test]
fn a_view_opens_beside_the_first_retention() {
    for drop_before in [20, 60, u64::MAX] {
        let disk = SimDisk::new(1);
        let (journal, mut writer, _) = open(&disk);
        append(&mut writer, 1..=100, 600);
        sync(&journal);
        until("sealed", || journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed()));
        let dropping = journal.clone();
        let hook = Box::new(move || {
            dropping.drop_before(drop_before).unwrap();
        });
        let view = LogView::open_on(Arc::new(Hooked { disk, at_names: Mutex::new(Some(hook)) })).unwrap();
        let first = journal.first_index();
        assert!(first > 1);
        assert_eq!(view.first_index(), first);
        let mut tailer = view.tailer();
        for index in first..=100 {
            assert_eq!(tailer.next_entry().unwrap().map(|entry| entry.index), Some(index));
        }
    }
}

/// Nobody looks through the view while its last segment, and what came after it, is written and removed.
#[test]
fn a_view_that_retention_has_passed_goes_on_where_the_log_begins() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=3, 600);
    let view = LogView::open_on(Arc::new(disk.clone())).unwrap();
    let mut tailer = view.tailer();
    for index in 1..=2 {
        assert_eq!(tailer.next_entry().unwrap().map(|entry| entry.index), Some(index));
    }
    append(&mut writer, 4..=100, 600);
    sync(&journal);
    until("sealed", || journal.0.segments.read().iter().rev().skip(1).all(|s| s.is_sealed()));
    let first = journal.drop_before(u64::MAX).unwrap();
    assert!(first > 30);
    // What it has open it reads to its end.
    let mut last = 2;
    let gone = loop {
        match tailer.next_within(LONG) {
            Ok(entry) => last = entry.unwrap().index,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(gone, ReadError::BeforeStart { index, first: f } if index == last + 1 && f == first),
        "{gone}"
    );
    assert_eq!(view.first_index(), first);
    tailer.to_start();
    for index in first..=100 {
        assert_eq!(tailer.next_entry().unwrap().map(|entry| entry.index), Some(index));
    }
    assert_eq!(view.watermarks().unwrap().written, 100);
}

#[test]
fn a_failed_reading_does_not_move() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=2, 10);
    let mut tailer = journal.tailer();
    let refuse = |_: crate::EntryRef<'_>| Err::<(), _>(ReadError::AfterEnd { index: 0, next: 0 });
    assert!(tailer.read(refuse).is_err());
    assert_eq!(tailer.position(), 1);
    assert_eq!(tailer.read(|e| Ok::<_, ReadError>(e.index)).unwrap(), Some(1));
    assert_eq!(tailer.read(|e| Ok::<_, ReadError>(e.index)).unwrap(), Some(2));
    assert_eq!(tailer.read(|e| Ok::<_, ReadError>(e.index)).unwrap(), None);
}

/// I19: a tailer at a level never shows what is above that level's mark.
#[test]
fn synced_tailers_wait_for_the_disk() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=2, 10);
    sync(&journal);
    append(&mut writer, 3..=4, 10);
    let mut tailer = journal.tailer().with_visibility(Visibility::Synced);
    let mut seen =
        || std::iter::from_fn(|| tailer.next_entry().unwrap().map(|e| e.index)).collect::<Vec<_>>();
    assert_eq!((seen(), seen()), (vec![1, 2], vec![]));
    sync(&journal);
    assert_eq!(seen(), [3, 4]);
    append(&mut writer, 5..=5, 10);
    let mut tailer = journal.tailer().with_visibility(Visibility::Synced);
    assert_eq!(tailer.move_to_index(6).unwrap(), Seek::AfterEnd { next: 5 });
    tailer.to_end().unwrap();
    assert_eq!(tailer.position(), 5);
    let waiter = std::thread::spawn(move || tailer.next_within(LONG).unwrap().map(|e| e.index));
    sync(&journal);
    assert_eq!(waiter.join().unwrap(), Some(5));
}

#[test]
fn waiting_ends_with_an_entry_the_time_or_the_log() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    for strategy in [WaitStrategy::Park, WaitStrategy::SpinThenPark(Duration::from_millis(1))] {
        let mut tailer = journal.tailer().with_wait(strategy);
        tailer.to_end().unwrap();
        let position = tailer.position();
        assert!(!tailer.wait(Duration::from_millis(3)).unwrap());
        assert!(tailer.next_within(Duration::ZERO).unwrap().is_none());
        let waiter = std::thread::spawn(move || {
            let index = tailer.next_within(LONG).unwrap().map(|e| e.index);
            (index, tailer)
        });
        append(&mut writer, position..=position, 10);
        let (index, mut tailer) = waiter.join().unwrap();
        assert_eq!(index, Some(position));
        assert!(!tailer.wait(Duration::from_millis(1)).unwrap());
    }
    let mut tailer = journal.tailer();
    tailer.to_end().unwrap();
    let waiter = std::thread::spawn(move || tailer.wait(LONG).unwrap());
    drop(writer);
    assert!(!waiter.join().unwrap(), "the log was closed");
}

/// I22: it goes on at most after the last entry that was read, and at least where it was committed.
#[test]
fn named_positions_survive_what_the_entries_survive() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=4, 10);
    sync(&journal);
    append(&mut writer, 5..=8, 10);
    let mut tailer = journal.named_tailer("billing").unwrap();
    assert_eq!((tailer.position(), tailer.committed()), (1, Some(1)));
    assert!(matches!(journal.named_tailer("billing"), Err(CursorError::InUse(_))));
    for _ in 0..6 {
        tailer.next_entry().unwrap().unwrap();
    }
    tailer.commit_synced().unwrap();
    tailer.next_entry().unwrap().unwrap();
    drop(tailer);
    assert_eq!(journal.named_tailer("billing").unwrap().position(), 7, "read, but not committed");

    let (killed, _writer, _) = open(&disk.kill());
    assert_eq!(killed.named_tailer("billing").unwrap().position(), 7);
    // Entries 5 and 6 may be lost, and others take their indexes.
    for seed in 0..10 {
        let (lost, _writer, _) = open(&disk.crash(seed));
        assert_eq!(lost.named_tailer("billing").unwrap().position(), 5);
    }
    sync(&journal);
    let mut tailer = journal.named_tailer("billing").unwrap();
    tailer.commit_synced().unwrap();
    for seed in 0..10 {
        let (lost, _writer, _) = open(&disk.crash(seed));
        assert_eq!(lost.named_tailer("billing").unwrap().position(), 7);
    }
    drop(tailer);
    assert_eq!(journal.cursors().unwrap()[0].next, 7);
    assert!(journal.remove_cursor("billing").unwrap());
    assert!(!journal.remove_cursor("billing").unwrap());
    assert_eq!(journal.cursors().unwrap(), []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// I22 for every crash: between the last synced position and what was read.
    #[test]
    fn named_positions_after_a_power_cut(actions in prop::collection::vec(0u8..5, 1..60), seed: u64) {
        let disk = SimDisk::new(seed);
        let (journal, mut writer, _) = open(&disk);
        let mut tailer = journal.named_tailer("x").unwrap();
        let (mut kept, mut read) = (1, 1);
        for action in actions {
            match action {
                0 => append(&mut writer, journal.written() + 1..=journal.written() + 1, 40),
                1 => read = read.max(tailer.next_entry().unwrap().map_or(read, |e| e.index + 1)),
                2 => tailer.commit().unwrap(),
                3 => {
                    tailer.commit_synced().unwrap();
                    kept = tailer.committed().unwrap().min(journal.synced() + 1);
                }
                _ => sync(&journal),
            }
        }
        let (after, _writer, recovery) = open(&disk.crash(seed));
        let position = after.named_tailer("x").unwrap().position();
        prop_assert!((kept..=read).contains(&position), "{} <= {} <= {}", kept, position, read);
        prop_assert!(position <= recovery.last_index + 1);
    }
}

#[test]
fn damaged_and_foreign_positions_are_told_from_new_ones() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=4, 10);
    let mut tailer = journal.named_tailer("a.b-c_9").unwrap();
    for _ in 0..2 {
        tailer.next_entry().unwrap();
        tailer.commit().unwrap();
    }
    drop(tailer);
    let name = "cursor-a.b-c_9.pos";
    let bytes = disk.contents(name).unwrap();
    for (copy, position) in [(0, 2), (4096, 3)] {
        let mut bytes = bytes.clone();
        bytes[copy + 60] ^= 1;
        disk.put(name, &bytes);
        assert_eq!(journal.named_tailer("a.b-c_9").unwrap().position(), position);
    }
    let mut both = bytes.clone();
    (both[60], both[4096 + 60]) = (9, 9);
    disk.put(name, &both);
    assert!(matches!(journal.named_tailer("a.b-c_9"), Err(CursorError::Damaged(_))));
    for name in ["", "a/b", "ä", &"x".repeat(65)] {
        assert!(matches!(journal.named_tailer(name), Err(CursorError::Name(_))), "{name}");
    }
    let other = SimDisk::new(99);
    let (elsewhere, _writer, _) = open(&other);
    other.put(name, &bytes);
    assert!(matches!(elsewhere.named_tailer("a.b-c_9"), Err(CursorError::Damaged(_))));
    disk.put(name, &[0; 8192]);
    assert_eq!(journal.named_tailer("a.b-c_9").unwrap().position(), 1);
}

#[test]
fn batches_and_built_entries_are_what_was_given() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    let terms = |time_ns| Terms { time_ns, value: 2, level: Level::Async };
    let lens = [0, 1, 700, 5000, 100, 300_000, 20_000, 16, 8000, 8100, 3];
    let payloads: Vec<_> = lens.iter().zip(1..).map(|(len, i)| payload(i, *len)).collect();
    let slices: Vec<&[u8]> = payloads.iter().map(|p| &p[..]).collect();
    let indexes = writer.append_all(&slices, terms(5)).unwrap();
    assert_eq!(indexes, 1..=lens.len() as u64);
    let refused = vec![0; crate::PAYLOAD_BYTES_MAX as usize + 1];
    let error = writer.append_all(&[b"a", b"b", &refused, b"c"], terms(6)).unwrap_err();
    assert_eq!(error.appended, 2);
    let built = writer.build::<crate::AppendError>(terms(7), |payload| {
        payload.extend(b"hello ");
        std::io::Write::write_all(payload, b"World").unwrap();
        payload.bytes()[6] = b'w';
        Ok(())
    });
    assert_eq!(built.unwrap().index(), 14);
    let refused = writer.build::<crate::AppendError>(terms(8), |payload| {
        payload.extend(b"half");
        Err(crate::AppendError::Closed)
    });
    assert!(refused.is_err());
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = writer.build::<crate::AppendError>(terms(8), |payload| {
            payload.extend(b"half");
            panic!("on purpose")
        });
    }));
    assert!(panics.is_err());
    assert_eq!(writer.append_all(&[], terms(9)).unwrap().count(), 0);
    writer.append(&[b"last"], 10).unwrap();

    let read = |journal: &Journal| -> Vec<(u64, Vec<u8>)> {
        journal.read_from(1).unwrap().map(Result::unwrap).map(|e| (e.time_ns, e.payload.to_vec())).collect()
    };
    let mut expected: Vec<_> = payloads.into_iter().map(|p| (5, p)).collect();
    expected.extend([
        (6, b"a".to_vec()),
        (6, b"b".to_vec()),
        (7, b"hello world".to_vec()),
        (10, b"last".to_vec()),
    ]);
    assert!(read(&journal) == expected);
    let (after, _writer, recovery) = open(&disk.kill());
    assert_eq!(recovery.cut, None);
    assert!(read(&after) == expected);
}

#[test]
fn many_threads_append() {
    let disk = SimDisk::new(1);
    let (journal, writer, _) = open(&disk);
    let threads: Vec<_> = (0..4u8)
        .map(|thread| {
            let appender = writer.appender();
            std::thread::spawn(move || {
                for i in 0..200u8 {
                    let terms = Terms { time_ns: 0, value: 0, level: Level::Sync };
                    let mut ticket = appender.append_on(&[&[thread, i]], terms).unwrap();
                    assert!(ticket.wait(LONG).is_ok());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let appender = writer.appender();
    writer.close().unwrap();
    let refused = appender.append_on(&[b"x"], Terms { time_ns: 0, value: 0, level: Level::Async });
    assert!(matches!(refused.map(|t| t.index()), Err(crate::AppendError::Closed)));
    let mut next = [0; 4];
    for entry in journal.read_from(1).unwrap() {
        let entry = entry.unwrap();
        let (thread, i) = (usize::from(entry.payload[0]), entry.payload[1]);
        assert_eq!(i, next[thread]);
        next[thread] += 1;
    }
    assert_eq!(next, [200; 4]);
}

/// Segments so large that a search begins in their middle, with many entries of one time.
#[test]
fn searches_in_large_segments() {
    let disk = SimDisk::new(1);
    let options = Options { segment_bytes: 1 << 20, ..options() };
    let (journal, mut writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    let (count, same) = (600, 70);
    for index in 1..=count {
        writer.append(&[&payload(index, 1000)], index / same).unwrap();
    }
    let mut learnt = journal.tailer();
    for index in (1..=count).rev().step_by(41).chain((1..=count).step_by(17)) {
        // The first time the segment is searched, and when all is known of it.
        let mut tailer = journal.tailer();
        for tailer in [&mut tailer, &mut learnt] {
            assert_eq!(tailer.move_to_index(index).unwrap(), Seek::At(index));
            assert_eq!(tailer.next_entry().unwrap().unwrap().payload, payload(index, 1000));
            assert_eq!(tailer.previous_entry().unwrap().unwrap().index, index);
        }
    }
    for time in 0..=count / same {
        let first = (time * same).max(1);
        assert_eq!(learnt.move_to_time(time).unwrap(), Seek::At(first));
        assert_eq!(learnt.next_entry().unwrap().unwrap().index, first);
    }
    let _ = learnt.move_to_index(count + 1).unwrap();
    for index in (1..=count).rev() {
        assert_eq!(learnt.previous_entry().unwrap().unwrap().index, index);
    }
}
