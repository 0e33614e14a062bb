//! How many entries a second one writer appends, one by one and in batches.
//!
//! `cargo run --release -p rockdove-journal --example throughput -- [SIZE]`

use std::time::Instant;

use rockdove_journal::{AppendError, Journal, Level, Options, SyncPolicy, Terms};

const COUNT: u64 = 500_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let size = std::env::args().nth(1).map_or(Ok(256), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let options = Options { sync: SyncPolicy::Never, ..Options::default() };
    let (journal, mut writer, _) = Journal::open(dir.path(), options)?;
    let payload = vec![7; size];
    let terms = Terms { time_ns: 0, value: 0, level: Level::Async };

    let started = Instant::now();
    for _ in 0..COUNT {
        writer.append(&[&payload], 0)?;
    }
    report("copied, one by one", started);

    let started = Instant::now();
    for _ in 0..COUNT {
        writer.build::<AppendError>(terms, |entry| {
            entry.extend(&payload);
            Ok(())
        })?;
    }
    report("built in place, one by one", started);

    let batch = vec![&payload[..]; 100];
    let started = Instant::now();
    for _ in 0..COUNT / 100 {
        writer.append_all(&batch, terms)?;
    }
    report("in batches of 100", started);

    let started = Instant::now();
    let mut tailer = journal.tailer();
    let mut count = 0;
    while tailer.next_entry()?.is_some() {
        count += 1;
    }
    assert_eq!(count, 3 * COUNT);
    println!("{:28} {:>10.0} entries/s", "read", count as f64 / started.elapsed().as_secs_f64());
    writer.close()?;
    Ok(())
}

fn report(what: &str, started: Instant) {
    println!("{what:28} {:>10.0} entries/s", COUNT as f64 / started.elapsed().as_secs_f64());
}
