//! What the machine can do at best, without our code.

use super::{Curve, Outcome, Plan, histogram};
use crate::report::Target;
use anyhow::Result;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_getres};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const ROUNDS: usize = 200;
const EXCHANGES: usize = 5_000;
const IDLE: Duration = Duration::from_millis(500);
/// Size of the file that is synced: written once before, as a log's segments are.
const FILE_BYTES: usize = 64 << 20;

/// The limits of the machine.
pub struct Limits {
    /// A message's bytes written over themselves, and `fdatasync`.
    pub sync_one: Histogram<u64>,
    /// The bytes of 100 ms at the lowest rate, and `fdatasync`.
    pub sync_interval: Histogram<u64>,
    /// One exchange of 64 bytes over loopback.
    pub exchange: Histogram<u64>,
    /// Gaps that a loop sees which only reads the clock.
    pub jitter: Histogram<u64>,
    /// Bytes a second that one thread copies in pieces of a message's size.
    pub copy: f64,
    /// Writes a second of one message's size to a file in the page cache.
    pub writes: f64,
}

/// What the machine is, and where the files of a folder lie, for the reader of a report.
pub fn machine(dir: &Path) -> Vec<(&'static str, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map_or("", |m| m.1);
    vec![
        ("processors", std::thread::available_parallelism().map_or(0, |n| n.get()).to_string()),
        ("model", model.to_owned()),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("timer interrupts a second", timer_hz().to_string()),
        ("load", read("/proc/loadavg")),
        ("files", mount_of(dir, &read("/proc/self/mountinfo")).unwrap_or_default()),
    ]
}

/// The kernel moves its coarse clocks with its timer interrupt.
fn timer_hz() -> i64 {
    1_000_000_000 / clock_getres(ClockId::MonotonicCoarse).tv_nsec.max(1)
}

/// The file system that a folder lies in, what it lies on, and the disk's name where it has one. `mounts` is as in
/// proc_pid_mountinfo(5).
fn mount_of(dir: &Path, mounts: &str) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mut innermost: Option<(&str, &str, &str)> = None;
    for line in mounts.lines() {
        let (place, kind) = line.split_once(" - ")?;
        let (device, root) = (place.split(' ').nth(2)?, place.split(' ').nth(4)?);
        // Of two in one place the later one hides the earlier.
        if dir.starts_with(root) && innermost.is_none_or(|before| root.len() >= before.1.len()) {
            innermost = Some((device, root, kind));
        }
    }
    let (device, _, kind) = innermost?;
    let (file_system, source) = kind.split_once(' ')?;
    let block = Path::new("/sys/dev/block").join(device);
    let model = ["device/model", "../device/model"]
        .iter()
        .find_map(|model| Some(format!(", {}", std::fs::read_to_string(block.join(model)).ok()?.trim())));
    let source = source.split(' ').next()?;
    Some(format!("{file_system} on {source}{}", model.unwrap_or_default()))
}

/// Measures them.
pub fn measure(plan: &Plan) -> Result<Limits> {
    let dir = tempfile::tempdir_in(&plan.dir)?;
    let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("sync"))?;
    file.write_all_at(&vec![0; FILE_BYTES], 0)?;
    file.sync_all()?;
    let lowest = plan.rates.iter().min().copied().unwrap_or(50_000);
    let interval = (lowest as usize / 10 * plan.size).clamp(1, FILE_BYTES / 2);
    let payload = vec![7; plan.size];
    Ok(Limits {
        sync_one: syncs(&file, plan.size)?,
        sync_interval: syncs(&file, interval)?,
        exchange: exchanges()?,
        jitter: jitter(),
        copy: copies(&payload),
        writes: writes(&file, &payload)?,
    })
}

fn syncs(file: &File, bytes: usize) -> Result<Histogram<u64>> {
    let (data, mut histogram) = (vec![7; bytes], histogram());
    let rounds = if bytes > 1 << 20 { ROUNDS / 10 } else { ROUNDS };
    for round in 0..rounds {
        let at = (round * bytes) % (FILE_BYTES - bytes);
        file.write_all_at(&data, at as u64)?;
        let started = Instant::now();
        file.sync_data()?;
        histogram.saturating_record(nanos(started.elapsed()));
    }
    Ok(histogram)
}

/// Commits a second of threads that share syncs and have nothing else to do: each writes its bytes under a lock, and who
/// finds no sync under way carries out the next one, once those whom the last one served are waiting again.
pub fn group_commits(dir: &Path, threads: usize, commits: usize, bytes: usize) -> Result<f64> {
    #[derive(Default)]
    struct Desk {
        written: usize,
        synced: usize,
        is_syncing: bool,
        waiting: usize,
        served: usize,
        took: Duration,
    }
    let file = File::options().write(true).create_new(true).open(dir.join("group"))?;
    file.write_all_at(&vec![0; threads * commits * bytes], 0)?;
    file.sync_all()?;
    let (desk, moved, data) = (Mutex::new(Desk::default()), Condvar::new(), vec![7; bytes]);
    let lock = || desk.lock().unwrap_or_else(PoisonError::into_inner);
    let commit = || -> Result<()> {
        let mut state = lock();
        file.write_all_at(&data, (state.written * bytes) as u64)?;
        state.written += 1;
        let own = state.written;
        while state.synced < own {
            if state.is_syncing {
                state.waiting += 1;
                let seen = state.synced;
                while state.synced == seen {
                    state = moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                continue;
            }
            state.is_syncing = true;
            let (patience, begun) = (state.took / 4, Instant::now());
            while state.waiting < state.served && begun.elapsed() < patience {
                drop(state);
                std::thread::yield_now();
                state = lock();
            }
            let (upto, begun) = (state.written, Instant::now());
            drop(state);
            file.sync_data()?;
            state = lock();
            (state.synced, state.is_syncing, state.took) = (upto, false, begun.elapsed());
            state.served = std::mem::take(&mut state.waiting);
            moved.notify_all();
        }
        Ok(())
    };
    let started = Instant::now();
    std::thread::scope(|scope| {
        let run = || (0..commits).try_for_each(|_| commit());
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        all.into_iter().try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?)
    })?;
    Ok((threads * commits) as f64 / started.elapsed().as_secs_f64())
}

fn exchanges() -> Result<Histogram<u64>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while far.read_exact(&mut bytes).and_then(|()| far.write_all(&bytes)).is_ok() {}
    });
    let (mut histogram, mut bytes) = (histogram(), [0; 64]);
    for _ in 0..EXCHANGES {
        let started = Instant::now();
        near.write_all(&bytes)?;
        near.read_exact(&mut bytes)?;
        histogram.saturating_record(nanos(started.elapsed()));
    }
    drop(near);
    echo.join().map_err(|_| anyhow::anyhow!("the echo panicked"))?;
    Ok(histogram)
}

fn jitter() -> Histogram<u64> {
    let (mut histogram, started) = (histogram(), Instant::now());
    let mut last = started;
    while started.elapsed() < IDLE {
        let now = Instant::now();
        histogram.saturating_record(nanos(now - last));
        last = now;
    }
    histogram
}

fn copies(payload: &[u8]) -> f64 {
    let mut target = vec![0u8; 16 << 20];
    let pieces = target.len() / payload.len().max(1);
    let started = Instant::now();
    let mut copied = 0;
    while started.elapsed() < Duration::from_millis(200) {
        for piece in 0..pieces {
            target[piece * payload.len()..][..payload.len()].copy_from_slice(payload);
        }
        copied += pieces * payload.len();
        std::hint::black_box(&target);
    }
    copied as f64 / started.elapsed().as_secs_f64()
}

fn writes(file: &File, payload: &[u8]) -> Result<f64> {
    let places = FILE_BYTES / payload.len().max(1);
    let started = Instant::now();
    let mut count = 0;
    while started.elapsed() < Duration::from_millis(300) {
        file.write_all_at(payload, ((count % places) * payload.len()) as u64)?;
        count += 1;
    }
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// A time as the histograms hold it.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Limits {
    /// Adds them to the report.
    pub fn report(&self, outcome: &mut Outcome) {
        let group = "limits of the machine";
        for (name, histogram) in [
            ("bare fdatasync of one message", &self.sync_one),
            ("bare fdatasync of 100 ms", &self.sync_interval),
            ("loopback exchange", &self.exchange),
            ("pauses of an idle loop", &self.jitter),
        ] {
            let curve = Curve::new(group, name, histogram.clone());
            outcome.report.add(format!("{name}: p50"), curve.micros(50.0), "us", Target::None);
            outcome.report.add(format!("{name}: p99.9"), curve.micros(99.9), "us", Target::None);
            outcome.report.add(format!("{name}: worst"), curve.max_micros(), "us", Target::None);
            outcome.curves.push(curve);
        }
        outcome.report.add("bare memcpy of a message's size", self.copy / 1e6, "MB/s", Target::None);
        outcome.report.add("bare write of a message's size", self.writes, "/s", Target::None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = "22 27 0:21 / /proc rw - proc proc rw\n27 1 253:0 / / rw,relatime shared:1 - ext4 /dev/none rw\n\
                      30 27 0:99 / /tmp rw - tmpfs tmpfs rw,size=1m";
        assert_eq!(mount_of(Path::new("/tmp"), mounts).unwrap(), "tmpfs on tmpfs");
        assert!(mount_of(Path::new("/"), mounts).unwrap().starts_with("ext4 on /dev/none"));
        assert!(timer_hz() > 0);
    }
}
