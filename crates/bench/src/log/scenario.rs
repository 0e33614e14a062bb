//! A client sends messages at a fixed rate over one loopback connection; the server appends them and acknowledges.
//!
//! ```text
//!  sender ──TCP──► server: append ──► acknowledged at once (A, T's small ones)
//!                      └────────────► acker: once it is on disk (S, T's large ones)
//!  receiver ◄──────TCP─────────────────┘
//! ```
//!
//! | id | acknowledged |
//! |---|---|
//! | P | not at all: the clock stops when the send call has returned; same run as A |
//! | A | when it is written |
//! | S | when it is on disk |
//! | T | at level *risk*: one in so many messages has a value over the threshold and waits for the disk, ten a second |
//!
//! There is one node, so no scenario has a replica's acknowledgement in it.

use super::limits::{Limits, nanos};
use super::{Curve, Outcome, Plan, histogram};
use crate::report::Target;
use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use rockdove_journal::{Journal, Level, Options, RiskPolicy, SyncPolicy, Terms, Ticket, Writer};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Value of the messages that wait for the disk, and the threshold.
const LARGE: u64 = 1_000_000;
/// Large messages a second.
const LARGE_RATE: u64 = 10;
/// Messages that may wait for the disk. When it is full the server stops reading.
const WAITING_MAX: usize = 1 << 20;
/// Most bytes of one send or receive.
const PIECE: usize = 256 << 10;
const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    Async,
    Sync,
    ByValue,
}

/// What one run of a scenario found.
struct Run {
    /// From due to sent, to acknowledged, and to acknowledged for large messages.
    sent: Histogram<u64>,
    acked: Histogram<u64>,
    large: Histogram<u64>,
    /// From sent to acknowledged: what a closed loop would have seen.
    uncorrected: Histogram<u64>,
    /// Acknowledged messages for each that was due.
    achieved: f64,
    /// Messages under way at the end of the schedule.
    backlog: u64,
}

/// Runs A, S and T at one rate and holds them against each other.
pub fn at_rate(plan: &Plan, rate: u64, limits: &Limits, outcome: &mut Outcome) -> Result<()> {
    let group = format!("{} B at {rate}/s", plan.size);
    let mut p50 = [0.0; 3];
    let mut p999 = [0.0; 3];
    let mut p90_sync = 0.0;
    for (i, (id, flush)) in
        [("A", Flush::Async), ("S", Flush::Sync), ("T", Flush::ByValue)].into_iter().enumerate()
    {
        let mut all: Option<Run> = None;
        for number in 0..plan.runs {
            let run = one(plan, rate, flush)?;
            outcome.report.add(
                format!("{group} {id}, run {number}: achieved"),
                run.achieved * 100.0,
                "%",
                Target::None,
            );
            match &mut all {
                Some(all) if number > 1 => all.add(&run)?,
                _ => all = Some(run),
            }
        }
        let run = all.context("at least one run")?;
        outcome.report.add(
            format!("{group} {id}: achieved"),
            run.achieved * 100.0,
            "%",
            Target::AtLeast(99.9),
        );
        outcome.report.add(
            format!("{group} {id}: under way at the end"),
            run.backlog as f64,
            "",
            Target::None,
        );
        let acked = Curve::new(&group, id, run.acked);
        (p50[i], p999[i]) = (acked.micros(50.0), acked.micros(99.9));
        if flush == Flush::Sync {
            p90_sync = acked.micros(90.0);
        }
        outcome.report.add(format!("{group} {id}: p50"), acked.micros(50.0), "us", Target::None);
        outcome.report.add(format!("{group} {id}: p99.9"), acked.micros(99.9), "us", Target::None);
        outcome.curves.push(acked);
        outcome.curves.push(Curve::new(format!("{group}, from sent (not corrected)"), id, run.uncorrected));
        if flush == Flush::Async {
            outcome.curves.push(Curve::new(&group, "P", run.sent));
        }
        if flush == Flush::ByValue {
            let large = Curve::new(&group, "T, large ones", run.large);
            outcome.report.add(format!("{group} T, large ones: p50"), large.micros(50.0), "us", Target::None);
            outcome.curves.push(large);
        }
    }
    let [async_, _, by_value] = p50;
    outcome.report.add(format!("{group}: p50 T / A"), by_value / async_, "x", Target::AtMost(2.0));
    outcome.report.add(
        format!("{group}: p99.9 T, small ones / A"),
        p999[2] / p999[0],
        "x",
        Target::AtMost(2.0),
    );
    let bare = limits.sync_interval.value_at_percentile(90.0) as f64 / 1e3;
    outcome.report.add(
        format!("{group}: p90 S / bare fdatasync of 100 ms"),
        p90_sync / bare,
        "x",
        Target::AtMost(3.0),
    );
    Ok(())
}

impl Run {
    fn add(&mut self, other: &Run) -> Result<()> {
        self.sent.add(&other.sent)?;
        self.acked.add(&other.acked)?;
        self.large.add(&other.large)?;
        self.uncorrected.add(&other.uncorrected)?;
        self.achieved = self.achieved.min(other.achieved);
        self.backlog = self.backlog.max(other.backlog);
        Ok(())
    }
}

fn one(plan: &Plan, rate: u64, flush: Flush) -> Result<Run> {
    let dir = tempfile::tempdir_in(&plan.dir)?;
    let risk = (flush == Flush::ByValue).then(|| RiskPolicy { single: Some(LARGE), ..RiskPolicy::default() });
    let options = Options { sync: SyncPolicy::Never, risk, ..Options::default() };
    let (_journal, writer, _) = Journal::open(dir.path(), options)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    client.set_read_timeout(Some(LONG))?;
    let size = plan.size.max(16);
    let serving = std::thread::spawn(move || serve(server, writer, size, flush));
    let count = (rate as f64 * plan.time.as_secs_f64()) as u64;
    let result = drive(client, count, rate, size);
    let served = serving.join().map_err(|_| anyhow::anyhow!("the server panicked"))?;
    let run = result?;
    served?;
    Ok(run)
}

fn is_large(id: u64, rate: u64) -> bool {
    id.is_multiple_of((rate / LARGE_RATE).max(1))
}

/// Sends the messages when they are due and takes the acknowledgements.
fn drive(client: TcpStream, count: u64, rate: u64, size: usize) -> Result<Run> {
    let start = Instant::now() + Duration::from_millis(50);
    let due = move |id: u64| {
        start + Duration::from_nanos((u128::from(id) * 1_000_000_000 / u128::from(rate)) as u64)
    };
    // Pairs of first id and time of sending, for the uncorrected figures.
    let sends = Arc::new(Mutex::new(Vec::<(u64, Instant)>::new()));
    let acks = client.try_clone()?;
    let seen = sends.clone();
    let receiver = std::thread::spawn(move || receive(acks, count, rate, due, &seen));
    let sent = send(&client, count, size, rate, due, &sends);
    if sent.is_err() {
        client.shutdown(Shutdown::Both)?;
    } else {
        client.shutdown(Shutdown::Write)?;
    }
    let received = receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))?;
    Ok(Run { sent: sent?, ..received? })
}

fn send(
    mut client: &TcpStream,
    count: u64,
    size: usize,
    rate: u64,
    due: impl Fn(u64) -> Instant,
    sends: &Mutex<Vec<(u64, Instant)>>,
) -> Result<Histogram<u64>> {
    let (mut histogram, mut bytes, mut next) = (histogram(), Vec::with_capacity(PIECE), 0);
    while next < count {
        let now = Instant::now();
        if now < due(next) {
            std::thread::sleep(due(next) - now);
            continue;
        }
        let first = next;
        bytes.clear();
        while next < count && due(next) <= now && bytes.len() + size <= PIECE {
            let at = bytes.len();
            bytes.extend_from_slice(&next.to_le_bytes());
            let value = if is_large(next, rate) { LARGE } else { 1 };
            bytes.extend_from_slice(&value.to_le_bytes());
            bytes.resize(at + size, 7);
            next += 1;
        }
        sends.lock().expect("no panic with it").push((first, now));
        client.write_all(&bytes)?;
        let done = Instant::now();
        (first..next)
            .for_each(|id| histogram.saturating_record(nanos(done.saturating_duration_since(due(id)))));
    }
    Ok(histogram)
}

/// Takes ranges of acknowledged ids: first and last, eight bytes each.
fn receive(
    mut acks: TcpStream,
    count: u64,
    rate: u64,
    due: impl Fn(u64) -> Instant,
    sends: &Mutex<Vec<(u64, Instant)>>,
) -> Result<Run> {
    let mut run = Run {
        sent: histogram(),
        acked: histogram(),
        large: histogram(),
        uncorrected: histogram(),
        achieved: 0.0,
        backlog: 0,
    };
    let (mut acked, mut in_time, mut bytes) = (0, 0, [0; 16]);
    let end = due(count);
    while acked < count {
        acks.read_exact(&mut bytes).context("an acknowledgement")?;
        let now = Instant::now();
        let [first, last] =
            [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")));
        let sends = sends.lock().expect("no panic with it");
        let mut send = sends.partition_point(|(id, _)| *id <= first).saturating_sub(1);
        for id in first..=last {
            while sends.get(send + 1).is_some_and(|(next, _)| *next <= id) {
                send += 1;
            }
            let latency = nanos(now.saturating_duration_since(due(id)));
            if is_large(id, rate) { &mut run.large } else { &mut run.acked }.saturating_record(latency);
            let since = sends.get(send).map_or(now, |(_, at)| *at);
            run.uncorrected.saturating_record(nanos(now.saturating_duration_since(since)));
        }
        acked += last - first + 1;
        if now <= end + Duration::from_millis(100) {
            in_time = acked;
        }
    }
    // What came within 100 ms after the last was due has kept up with the rate.
    (run.achieved, run.backlog) = (in_time as f64 / count as f64, count - in_time);
    Ok(run)
}

/// What waits for the disk: the ids, and what says when.
enum Waiting {
    Upto(u64, u64, u64),
    Ticket(u64, Ticket),
}

/// Appends what comes and acknowledges it.
fn serve(stream: TcpStream, mut writer: Writer, size: usize, flush: Flush) -> Result<()> {
    let out = Arc::new(Mutex::new(stream.try_clone()?));
    let (queue, waiting) = sync_channel(WAITING_MAX);
    let journal = writer.journal();
    let acker = {
        let (journal, out) = (journal.clone(), out.clone());
        std::thread::spawn(move || acknowledge(&journal, &waiting, &out))
    };
    let read = read_all(stream, &mut writer, size, flush, &queue, &out);
    drop(queue);
    let acked = acker.join().map_err(|_| anyhow::anyhow!("the acker panicked"))?;
    read?;
    acked?;
    writer.close()?;
    Ok(())
}

fn read_all(
    mut stream: TcpStream,
    writer: &mut Writer,
    size: usize,
    flush: Flush,
    queue: &SyncSender<Waiting>,
    out: &Mutex<TcpStream>,
) -> Result<()> {
    let (mut bytes, mut held) = (vec![0; PIECE.max(2 * size)], 0);
    loop {
        let got = match stream.read(&mut bytes[held..]) {
            Ok(0) if held == 0 => return Ok(()),
            Ok(0) => bail!("the client ended within a message"),
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        held += got;
        let whole = held / size;
        let messages: Vec<&[u8]> = bytes[..whole * size].chunks_exact(size).collect();
        take(&messages, writer, flush, queue, out)?;
        bytes.copy_within(whole * size..held, 0);
        held -= whole * size;
    }
}

fn field(message: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(message[at..at + 8].try_into().expect("a message has sixteen bytes"))
}

fn take(
    messages: &[&[u8]],
    writer: &mut Writer,
    flush: Flush,
    queue: &SyncSender<Waiting>,
    out: &Mutex<TcpStream>,
) -> Result<()> {
    let level = if flush == Flush::ByValue { Level::Risk } else { Level::Async };
    // Runs of messages that are treated alike are appended together.
    for alike in messages.chunk_by(|_, b| flush != Flush::ByValue || field(b, 8) < LARGE) {
        let (large, small) = match flush == Flush::ByValue && field(alike[0], 8) >= LARGE {
            true => (Some(alike[0]), &alike[1..]),
            false => (None, alike),
        };
        if let Some(message) = large {
            let terms = Terms { time_ns: 0, value: LARGE, level };
            let ticket = writer.append_on(&[message], terms)?;
            queue.send(Waiting::Ticket(field(message, 0), ticket))?;
        }
        let (Some(first), Some(last)) = (small.first(), small.last()) else { continue };
        let appended = writer.append_all(small, Terms { time_ns: 0, value: 1, level })?;
        let (first, last) = (field(first, 0), field(last, 0));
        if flush == Flush::Sync {
            writer.journal().request_sync();
            queue.send(Waiting::Upto(first, last, *appended.end()))?;
        } else {
            tell(out, first, last)?;
        }
    }
    Ok(())
}

fn tell(out: &Mutex<TcpStream>, first: u64, last: u64) -> Result<()> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&last.to_le_bytes());
    Ok(out.lock().expect("no panic with it").write_all(&bytes)?)
}

fn acknowledge(journal: &Journal, waiting: &Receiver<Waiting>, out: &Mutex<TcpStream>) -> Result<()> {
    for next in waiting {
        match next {
            Waiting::Upto(first, last, index) => {
                journal.wait_synced_blocking(index, LONG)?;
                tell(out, first, last)?;
            }
            Waiting::Ticket(id, mut ticket) => {
                ticket.wait(LONG)?;
                tell(out, id, id)?;
            }
        }
    }
    Ok(())
}
