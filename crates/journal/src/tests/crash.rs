//! Power cuts: whatever subset of unsynced sectors and names survives, the log opens, holds a prefix of what was
//! written, and all of what was reported as synced.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Sync,
    /// Drop what is this many thousandths of the log old.
    Drop(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0usize..3000).prop_map(Step::Append),
        1 => (8000usize..40_000).prop_map(Step::Append),
        2 => Just(Step::Sync),
        1 => (0u64..1000).prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..60)
}

/// A disk whose files are stored to, or one whose files are written to.
fn disk(seed: u64, mapped: bool) -> SimDisk {
    if mapped { SimDisk::new(seed) } else { SimDisk::unmapped(seed) }
}

/// Runs the steps as far as the machine does. What may be gone and what must be there: `(durable, written)`, and
/// the payloads from entry 1 on.
fn run(disk: &SimDisk, steps: &[Step]) -> (u64, u64, Vec<Vec<u8>>) {
    let mut model = Vec::new();
    let Ok((journal, mut writer, _)) = try_open(disk) else { return (0, 0, model) };
    let mut durable = 0;
    for step in steps {
        match step {
            Step::Append(len) => {
                let bytes = payload(model.len() as u64 + 1, *len);
                if writer.append(&[&bytes], 0).is_err() {
                    break;
                }
                model.push(bytes);
            }
            Step::Sync => {
                journal.request_sync();
                if journal.wait_synced_blocking(journal.written(), LONG).is_err() {
                    break;
                }
            }
            Step::Drop(thousandths) => {
                let _ = journal.drop_before(journal.written() * thousandths / 1000);
            }
        }
        durable = journal.synced();
    }
    (durable, model.len() as u64, model)
}

/// Opens what a crash left and compares it with what was written; the last index.
fn verify(disk: &SimDisk, durable: u64, written: u64, model: &[Vec<u8>]) -> u64 {
    let (journal, _writer, recovery) = open(disk);
    let last = recovery.last_index;
    assert!((durable..=written).contains(&last), "{durable} <= {last} <= {written}");
    assert_eq!((journal.written(), journal.synced()), (last, last));
    let (read, error) = read_all(&journal);
    assert!(error.is_none(), "{error:?}");
    let first = journal.first_index();
    assert!(first <= durable.max(1));
    assert!(read[..] == model[first as usize - 1..last as usize]);
    if let Some(cut) = recovery.cut {
        assert_eq!(cut.index, last + 1);
        assert!(cut.bytes > 0 && !cut.kept_in.is_empty());
        for file in cut.kept_in {
            assert!(disk.contents(file.to_str().unwrap()).is_some());
        }
    }
    last
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn a_prefix_survives_a_power_cut(steps in steps(), seed: u64, mapped: bool) {
        let disk = disk(seed, mapped);
        let (durable, written, model) = run(&disk, &steps);
        let found = disk.crash(seed);
        let last = verify(&found, durable, written, &model);
        // What was found is durable now: another power cut changes nothing.
        for seed in 0..3 {
            prop_assert_eq!(verify(&found.crash(seed), last, last, &model), last);
        }
    }

    #[test]
    fn recovery_can_be_interrupted(steps in steps(), seed: u64, stop in 0u64..40, mapped: bool) {
        let disk = disk(seed, mapped);
        let (durable, written, model) = run(&disk, &steps);
        let found = disk.crash(seed);
        let interrupted = found.kill();
        interrupted.stop_after(stop);
        drop(try_open(&interrupted));
        let last = verify(&found, durable, written, &model);
        prop_assert_eq!(verify(&interrupted.kill(), durable, written, &model), last);
        prop_assert_eq!(verify(&interrupted.crash(seed), durable, written, &model), last);
        // After a killed process what is found may be in the cache only, and the power may go while it is recovered.
        let cached = disk.kill();
        cached.stop_after(stop);
        drop(try_open(&cached));
        verify(&cached.crash(seed), durable, written, &model);
    }

    #[test]
    fn the_machine_may_stop_anywhere(steps in steps(), seed: u64, stop in 0u64..300, mapped: bool) {
        let disk = disk(seed, mapped);
        disk.stop_after(stop);
        let (durable, written, model) = run(&disk, &steps);
        verify(&disk.crash(seed), durable, written, &model);
    }
}

#[test]
fn a_killed_process_loses_nothing_it_wrote() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=100, 500);
    let found = disk.kill();
    let (after, _writer, recovery) = open(&found);
    assert!(recovery.same_boot && !recovery.clean && recovery.cut.is_none());
    check(&after, 100, 500);
    check(&journal, 100, 500);
}

#[test]
fn a_power_cut_is_told_from_a_killed_process() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=3, 10);
    sync(&journal);
    assert!(!open(&disk.kill()).2.power_lost());
    assert!(open(&disk.crash(1)).2.power_lost());
    writer.close().unwrap();
    assert!(!open(&disk.crash(1)).2.power_lost());
}

/// Syncs run beside the appends: the mark read before the power cut must hold at every moment.
#[test]
fn the_mark_holds_at_every_moment() {
    let disk = SimDisk::new(1);
    let options = Options { sync: SyncPolicy::EachBatch, ..options() };
    let (journal, mut writer, _) = Journal::open_on(Arc::new(disk.clone()), options).unwrap();
    let model: Vec<_> = (1..=150).map(|i| payload(i, 700)).collect();
    for (seed, bytes) in (0..).zip(&model) {
        writer.append(&[bytes], 0).unwrap();
        let durable = journal.synced();
        let found = disk.crash(seed);
        verify(&found, durable, journal.written(), &model);
    }
}

/// After a failed sync the kernel shows pages that are not on disk. Opening again must not trust them.
#[test]
fn pages_that_a_failed_sync_left_are_written_again() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=3, 100);
    sync(&journal);
    append(&mut writer, 4..=6, 100);
    disk.fail_syncs(Some(std::io::ErrorKind::Other));
    journal.request_sync();
    assert!(journal.wait_synced_blocking(6, LONG).is_err());
    drop(writer);

    let again = disk.kill();
    let (journal, _writer, recovery) = open(&again);
    assert_eq!((recovery.last_index, journal.synced()), (6, 6));
    for seed in 0..20 {
        let (after, _writer, _) = open(&again.crash(seed));
        check(&after, 6, 100);
    }
}

/// Entries of a new segment are not durable before those of the one before it, which may be lost.
#[test]
fn a_gap_between_segments_is_never_exposed() {
    let disk = SimDisk::new(1);
    let (journal, mut writer, _) = open(&disk);
    append(&mut writer, 1..=2, 500);
    sync(&journal);
    let paused = disk.pause_syncs(".seg");
    append(&mut writer, 3..=40, 500);
    assert!(journal.0.segments.read().len() >= 3);
    assert_eq!(journal.synced(), 2);
    let model: Vec<_> = (1..=40).map(|i| payload(i, 500)).collect();
    let mut lost = 0;
    for seed in 0..200 {
        let found = disk.crash(seed);
        verify(&found, 2, 40, &model);
        lost += u32::from(open(&found.kill()).2.last_index < 40);
    }
    assert!(lost > 150, "the disk must have lost something: {lost}");
    drop(paused);
    sync(&journal);
    verify(&disk.crash(1), 40, 40, &model);
}
