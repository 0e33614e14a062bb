//! A persisted queue inside a program: append, read, remember where one was.
//!
//! `cargo run -p rockdove-journal --example queue -- DIR`. Run it again: the reader goes on where it was.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rockdove_journal::{Journal, Level, Options, Seek, Terms, WaitStrategy};

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "./example-queue".into());
    let (journal, mut writer, recovery) = Journal::open(&dir, Options::default())?;
    println!("{} entries were there", recovery.last_index);

    // One entry, acknowledged when it is on disk.
    let terms = Terms { time_ns: now_ns(), value: 0, level: Level::Sync };
    let mut ticket = writer.append_on(&[b"order 1: ", b"two bolts"], terms)?;
    println!("acknowledged: {:?}", ticket.wait(Duration::from_secs(5))?);

    // One that is written where it will be stored from; nothing is appended if this fails.
    writer.build::<Box<dyn std::error::Error>>(terms, |entry| {
        use std::io::Write;
        write!(entry, "order {}: one nut", 2)?;
        Ok(())
    })?;

    // A reader with a name: its position is kept in the log's folder.
    let mut reader = journal.named_tailer("warehouse")?;
    while let Some(entry) = reader.next_entry()? {
        println!("{}: {}", entry.index, String::from_utf8_lossy(entry.payload));
    }
    reader.commit()?;

    // Another one on its own thread, which waits for what comes.
    let mut follower = journal.tailer().with_wait(WaitStrategy::SpinThenPark(Duration::from_micros(50)));
    follower.to_end()?;
    let following = std::thread::spawn(move || -> Result<Option<String>, rockdove_journal::ReadError> {
        let entry = follower.next_within(Duration::from_secs(5))?;
        Ok(entry.map(|entry| String::from_utf8_lossy(entry.payload).into_owned()))
    });
    writer.append_on(&[b"order 3: a washer"], Terms { time_ns: now_ns(), ..terms })?;
    println!("followed: {:?}", following.join().map_err(|_| "the follower panicked")??);

    // Backward from the end, and by time.
    let mut tailer = journal.tailer();
    tailer.to_end()?;
    println!("the last one: {:?}", tailer.previous_entry()?.map(|entry| entry.index));
    match tailer.move_to_time(terms.time_ns)? {
        Seek::At(index) => println!("this run began with {index}"),
        Seek::BeforeStart { first } => println!("it begins with {first}"),
        Seek::AfterEnd { next } => println!("nothing so late; {next} comes next"),
    }
    writer.close()?;
    Ok(())
}
