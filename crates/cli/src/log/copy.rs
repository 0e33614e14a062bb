//! `export` and `import`: entries as lines of JSON.

use super::range::Range;
use super::show::as_json;
use super::{KeyFile, Place};
use crate::exit::Exit;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rockdove_journal::{Codec, Compression, Journal, Level, Options, SyncPolicy, Terms};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write, stdin, stdout};
use std::path::{Path, PathBuf};

/// Write entries as lines of JSON, to standard output or a file
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    key: KeyFile,
    #[command(flatten)]
    range: Range,
    /// The file, which must not exist, and is on disk when the command has ended; standard output if it is left out
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Export {
    pub fn run(self) -> anyhow::Result<Exit> {
        let view = self.key.view(&self.place)?;
        let mut tailer = self.range.apply(view.tailer())?;
        let file = self.output.as_deref().map(new_file).transpose()?;
        let mut out: Box<dyn Write> = match &file {
            Some(file) => Box::new(BufWriter::new(file)),
            None => Box::new(BufWriter::new(stdout().lock())),
        };
        let total = tailer.limit().saturating_sub(tailer.position() - 1);
        let bar = ProgressBar::new(total).with_style(style()?);
        let mut count = 0u64;
        while let Some(entry) = tailer.next_entry()?.filter(|entry| self.range.contains(entry.index)) {
            writeln!(out, "{}", as_json(&entry))?;
            count += 1;
            bar.inc(1);
        }
        out.flush()?;
        drop(out);
        if let Some(file) = file {
            file.sync_all()?;
        }
        bar.finish_and_clear();
        eprintln!("{}", entries(count));
        Ok(Exit::Done)
    }
}

/// Append entries from lines of JSON, as export writes them
///
/// Entries get new indexes after those that are there; times, values and levels stay as they are, except that times
/// never go back. The folder is made if there is none; with a key what is appended is encrypted. Everything is on disk when the command has ended.
/// Refused while a writer has the log open, and on a data folder of `rockdove serve`, whose log belongs to the bus.
#[derive(Args)]
pub struct Import {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    key: KeyFile,
    /// Compress payloads, with a level of Zstandard: 1 is fast and is meant without a level, 19 is small
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(i32).range(1..=19))]
    compress: Option<i32>,
    /// The file; standard input if it is left out
    #[arg(value_name = "FILE")]
    input: Option<PathBuf>,
}

impl Import {
    pub fn run(self) -> anyhow::Result<Exit> {
        let input: Box<dyn BufRead> = match &self.input {
            Some(path) => {
                let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
                Box::new(BufReader::new(file))
            }
            None => Box::new(stdin().lock()),
        };
        let folder = self.place.folder()?;
        if self.place.is_of_a_bus(&folder)? {
            bail!("into the log of a bus only the bus writes: its state is made from it");
        }
        // Synced once, at the end.
        let compression = self.compress.map(|level| Compression::Zstd { level });
        let codec = Codec { compression, key: self.key.key()? };
        let options = Options { sync: SyncPolicy::Never, codec, ..Options::default() };
        let (_, mut writer, _) = Journal::open(folder, options)?;
        let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template("{human_pos} entries")?);
        let mut count = 0u64;
        for (line, number) in input.lines().zip(1u64..) {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            let entry = Entry::parse(&line).with_context(|| {
                format!("line {number} is no entry; {count} entries before it were imported")
            })?;
            match entry.level {
                Some(level) => {
                    let terms = Terms { time_ns: entry.time_ns, value: entry.value, level };
                    drop(writer.append_on(&[&entry.payload], terms)?);
                }
                None if entry.value == 0 => drop(writer.append(&[&entry.payload], entry.time_ns)?),
                None => bail!("line {number}: an entry with a value needs a level"),
            }
            count += 1;
            bar.inc(1);
        }
        writer.close()?;
        bar.finish_and_clear();
        eprintln!("{}", entries(count));
        Ok(Exit::Done)
    }
}

/// Makes a file that does not exist yet.
fn new_file(path: &Path) -> anyhow::Result<File> {
    File::create_new(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow!("there is a file {} already", path.display()),
        _ => anyhow!("cannot make {}: {error}", path.display()),
    })
}

/// A number of entries, in words.
fn entries(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") }
}

fn style() -> anyhow::Result<ProgressStyle> {
    Ok(ProgressStyle::with_template("{bar:30} {human_pos} of {human_len} entries, {eta} left")?)
}

/// One line.
#[derive(Debug, PartialEq)]
struct Entry {
    time_ns: u64,
    value: u64,
    level: Option<Level>,
    payload: Vec<u8>,
}

impl Entry {
    fn parse(line: &str) -> anyhow::Result<Entry> {
        let fields: Value = serde_json::from_str(line)?;
        let number = |name: &str| match fields.get(name) {
            None => Ok(0),
            Some(value) => value.as_u64().with_context(|| format!("{name} is no whole number")),
        };
        let level = match fields.get("level").map(|l| l.as_str().context("level is no text")) {
            None => None,
            Some(name) => Some(name?.parse()?),
        };
        let payload =
            match (fields.get("text").and_then(Value::as_str), fields.get("hex").and_then(Value::as_str)) {
                (Some(text), None) => text.as_bytes().to_vec(),
                (None, Some(digits)) => {
                    unhex(digits).context("hex has other characters than hexadecimal digits")?
                }
                _ => bail!("there must be text or hex, and only one of them"),
            };
        Ok(Entry { time_ns: number("timeNs")?, value: number("value")?, level, payload })
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let entry = Entry::parse(r#"{"timeNs": 5, "value": 7, "level": "risk", "hex": "00ff"}"#).unwrap();
        assert_eq!(entry, Entry { time_ns: 5, value: 7, level: Some(Level::Risk), payload: vec![0, 255] });
        assert_eq!(Entry::parse(r#"{"text": "hé"}"#).unwrap().payload, "hé".as_bytes());
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"text": "a", "hex": "00"}"#,
            r#"{"hex": "0"}"#,
            r#"{"hex": "é0"}"#,
            r#"{"text": "a", "timeNs": -1}"#,
            r#"{"text": "a", "value": 1.5}"#,
            r#"{"text": "a", "level": "best"}"#,
        ] {
            assert!(Entry::parse(bad).is_err(), "{bad}");
        }
    }
}
