//! Reading a log that another process writes.
//!
//! `cargo run -p rockdove-journal --example other_process -- write DIR` in one terminal,
//! `… -- read DIR` in another, also before the first has begun to write, and more than once.

use std::time::Duration;

use rockdove_journal::{Cycle, CycleChoice, CycleLength, Journal, LogView, OpenError, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", dir] => write(dir),
        ["read", dir] => read(dir),
        _ => Err("say `write DIR` or `read DIR`".into()),
    }
}

fn write(dir: &str) -> Result<(), Box<dyn std::error::Error>> {
    // A new segment each minute, named for it.
    let cycle = CycleChoice::Exactly(Some(Cycle::utc(CycleLength::Minute)));
    let opened = Journal::open(dir, Options { segment_bytes: 1 << 20, cycle, ..Options::default() });
    let (_journal, mut writer, _) = match opened {
        Err(OpenError::Locked(_)) => return Err("another process writes this log".into()),
        opened => opened?,
    };
    for number in 1..=100 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        writer.append(&[format!("tick {number}").as_bytes()], now.as_nanos() as u64)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    writer.close()?;
    Ok(())
}

fn read(dir: &str) -> Result<(), Box<dyn std::error::Error>> {
    let view = LogView::open(dir)?;
    let mut tailer = view.tailer();
    while let Some(entry) = tailer.next_within(Duration::from_secs(2))? {
        println!("{} {}", entry.index, String::from_utf8_lossy(entry.payload));
    }
    Ok(())
}
