//! Which entries: by index and by time; and how times and sizes are read and written.

use anyhow::{Context, bail};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use rockdove_journal::{Seek, Tailer};
use std::time::Duration;

/// Which entries to take.
#[derive(Args, Clone, Default)]
pub struct Range {
    /// First index
    #[arg(long, value_name = "INDEX")]
    from_index: Option<u64>,
    /// Last index
    #[arg(long, value_name = "INDEX")]
    to_index: Option<u64>,
    /// Entries of this time or later
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<u64>,
    /// Entries before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<u64>,
}

impl Range {
    /// Moves a tailer to the first entry of the range and has it show none outside of the range's times.
    pub fn apply(&self, mut tailer: Tailer) -> anyhow::Result<Tailer> {
        tailer = tailer.with_times(self.since.unwrap_or(0)..self.until.unwrap_or(u64::MAX));
        if let Some(since) = self.since {
            match tailer.move_to_time(since)? {
                Seek::At(_) => {}
                Seek::BeforeStart { .. } => tailer.to_start(),
                Seek::AfterEnd { .. } => tailer.to_end()?,
            }
        }
        match self.from_index {
            Some(from) if from > tailer.position() => match tailer.move_to_index(from)? {
                Seek::At(_) => {}
                Seek::BeforeStart { first } => bail!("entry {from} is gone, the log begins with {first}"),
                Seek::AfterEnd { next } => bail!("there is no entry {from} yet, the next one is {next}"),
            },
            Some(from) if from < tailer.position() && self.since.is_none() => {
                bail!("entry {from} is gone, the log begins with {}", tailer.position())
            }
            _ => {}
        }
        Ok(tailer)
    }

    /// Moves a tailer behind the last entry of the range, to read backward.
    pub fn apply_reverse(&self, tailer: Tailer) -> anyhow::Result<Tailer> {
        let mut tailer = tailer.with_times(self.since.unwrap_or(0)..self.until.unwrap_or(u64::MAX));
        tailer.to_end()?;
        if let Some(until) = self.until {
            // Where nothing is so late it stays at the end.
            let _ = tailer.move_to_time(until)?;
        }
        let after = self.to_index.map(|to| to.saturating_add(1));
        if let Some(after) = after.filter(|after| *after < tailer.position()) {
            let _ = tailer.move_to_index(after)?;
        }
        Ok(tailer)
    }

    /// Whether an index lies in the range's indexes.
    pub fn contains(&self, index: u64) -> bool {
        index >= self.from_index.unwrap_or(0) && index <= self.to_index.unwrap_or(u64::MAX)
    }
}

/// Reads a time, or an age before now; nanoseconds since 1970.
pub fn time(text: &str) -> anyhow::Result<u64> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return u64::try_from(time.as_nanosecond()).context("times begin in 1970");
    }
    let age = age(text).context("use a time like 2026-11-30T19:00:00Z, or an age like 15m")?;
    Ok(u64::try_from(age.as_nanos()).map_or(0, |age| now_ns().saturating_sub(age)))
}

/// Reads a length of time like `90s`, `15m`, `12h` or `7d`.
pub fn age(text: &str) -> anyhow::Result<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit = match &text[digits..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => bail!("{text:?} is no length of time: use 90s, 15m, 12h or 7d"),
    };
    let number: u64 = text[..digits].parse().with_context(|| format!("{text:?} is no length of time"))?;
    Ok(Duration::from_secs(number.checked_mul(unit).context("that is too long")?))
}

/// Reads a size like `512`, `64KiB`, `10MB`, `1.5GiB`.
pub fn size(text: &str) -> anyhow::Result<u64> {
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let unit: f64 = match text[digits..].trim_start() {
        "" | "B" => 1.0,
        "K" | "KiB" => 1024.0,
        "M" | "MiB" => 1024.0 * 1024.0,
        "G" | "GiB" => 1024.0 * 1024.0 * 1024.0,
        "T" | "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "KB" | "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        other => bail!("{other:?} is no unit of size: use KiB, MiB, GiB, TiB, KB, MB, GB or TB"),
    };
    let number: f64 = text[..digits].parse().with_context(|| format!("{text:?} is no size"))?;
    Ok((number * unit) as u64)
}

/// A size for people.
pub fn human_size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// A time for people and programs.
pub fn show_time(time_ns: u64) -> String {
    Timestamp::from_nanosecond(time_ns.into()).map_or_else(|_| time_ns.to_string(), |time| time.to_string())
}

/// Now, in nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let now = Timestamp::now().duration_since(Timestamp::UNIX_EPOCH).max(SignedDuration::ZERO);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        assert_eq!(size("512").unwrap(), 512);
        assert_eq!(size("64KiB").unwrap(), 65_536);
        assert_eq!(size("1.5 GiB").unwrap(), 3 << 29);
        assert_eq!(size("10MB").unwrap(), 10_000_000);
        assert!(size("10XB").is_err() && size("").is_err() && size("1.2.3K").is_err());
        assert_eq!(age("15m").unwrap(), Duration::from_secs(900));
        assert_eq!(age("7d").unwrap(), Duration::from_secs(604_800));
        assert!(age("7w").is_err() && age("d").is_err() && age("99999999999999999999s").is_err());
        assert_eq!(time("1970-01-01T00:00:01Z").unwrap(), 1_000_000_000);
        assert!(time("1969-12-31T23:59:59Z").is_err() && time("yesterday").is_err());
        assert!(time("1h").unwrap() < now_ns() - 3_599_000_000_000);
        assert_eq!(show_time(1_500_000_000), "1970-01-01T00:00:01.5Z");
    }
}
