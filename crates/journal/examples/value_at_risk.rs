//! Durability by value: small orders do not wait for the disk, large ones do, and what may be lost is capped.
//!
//! `cargo run -p rockdove-journal --example value_at_risk`

use std::time::Duration;

use rockdove_journal::{Journal, Level, Options, RiskPolicy, SyncPolicy, Terms};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let risk = RiskPolicy {
        single: Some(1_000),
        total: Some(5_000),
        age: Some(Duration::from_millis(100)),
        announce: true,
        ..RiskPolicy::default()
    };
    let options = Options { sync: SyncPolicy::Never, risk: Some(risk), ..Options::default() };
    let (journal, mut writer, _) = Journal::open(dir.path(), options)?;
    for value in [10, 700, 2_000, 900, 900, 900, 900, 900, 900] {
        let terms = Terms { time_ns: 0, value, level: Level::Risk };
        let mut ticket = writer.append_on(&[b"an order"], terms)?;
        let at_once = ticket.poll()?.is_some();
        let ack = ticket.wait(Duration::from_secs(5))?;
        let how = if at_once { "at once" } else { "after a sync" };
        println!(
            "{value:>5}: acknowledged {how} as {}; at risk now: {}",
            ack.level,
            journal.exposure().acked
        );
    }
    println!("never more than {} at risk", journal.exposure().acked_max);
    let syncs = journal.syncs().into_iter().filter(|(_, count)| *count > 0);
    println!("syncs by cause: {:?}", syncs.map(|(cause, count)| (cause.name(), count)).collect::<Vec<_>>());

    // A reader, here or in another process, learns from the log itself what is on disk.
    let mut tailer = journal.tailer();
    for _ in 0..100 {
        while tailer.next_within(Duration::from_millis(10))?.is_some() {}
        if tailer.last_mark().is_some() {
            break;
        }
    }
    println!("the newest mark in the log: {:?}", tailer.last_mark());
    writer.close()?;
    Ok(())
}
