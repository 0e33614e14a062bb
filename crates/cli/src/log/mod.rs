//! `rockdove log`: looking at a log on disk, checking, repairing, copying and shortening it.
//!
//! None of these commands needs a server. Those that only read work beside a running writer; those that change
//! something are refused then.

mod copy;
mod inspect;
mod prune;
mod range;
mod show;

use crate::exit::Exit;
use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use rockdove_journal::disk::{Disk, RealDisk};
use rockdove_journal::{Key, LogView};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  rockdove log info ./rockdove-data                     what there is
  rockdove log dump ./orders --since 15m --limit 20     entries of the last quarter of an hour
  rockdove log tail ./orders -n 5 --follow              the last five, and what comes
  rockdove log verify ./orders                          reads everything; exit code 5 if something is damaged
  rockdove log repair ./orders --accept-loss            makes a damaged log openable again
  rockdove log export ./orders > orders.jsonl
  rockdove log prune ./orders --keep 10GiB --age 30d    not in a data folder: its log belongs to the bus
  rockdove log dump ./secrets --key-file ./key          a log that is encrypted

DIR is a log's folder, or a data folder of `rockdove serve`.
Times are like 2026-11-30T19:00:00Z, or ages like 90s, 15m, 12h, 7d.

Exit codes:
  0    done; for verify: whole
  1    error
  2    wrong usage
  4    verify: not closed cleanly; opening the log will deal with it
  5    verify: damaged
  130  interrupted";

/// Look at a log on disk, check, repair, copy and shorten it
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Log {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Info(inspect::Info),
    Dump(show::Dump),
    Tail(show::Tail),
    Verify(inspect::Verify),
    Repair(inspect::Repair),
    Export(copy::Export),
    Import(copy::Import),
    Prune(prune::Prune),
}

/// Runs the command.
pub fn run(log: Log) -> anyhow::Result<Exit> {
    match log.command {
        Command::Info(info) => info.run(),
        Command::Dump(dump) => dump.run(),
        Command::Tail(tail) => tail.run(),
        Command::Verify(verify) => verify.run(),
        Command::Repair(repair) => repair.run(),
        Command::Export(export) => export.run(),
        Command::Import(import) => import.run(),
        Command::Prune(prune) => prune.run(),
    }
}

/// Where a log lies.
#[derive(Args)]
struct Place {
    /// The log's folder, or a data folder of `rockdove serve`
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// More than a key is not read.
const KEY_FILE_BYTES_MAX: u64 = 1024;
/// What a pipe brings must have come by then: somebody may have to type a password first.
const KEY_FILE_WAIT: Duration = Duration::from_secs(60);
/// After this time it is said that a key is waited for.
const KEY_FILE_SAID_AFTER: Duration = Duration::from_secs(1);

/// The key of an encrypted log.
#[derive(Args)]
struct KeyFile {
    /// File with the key of an encrypted log, or a pipe that brings it: a line of 64 hexadecimal digits
    #[arg(long, value_name = "FILE", env = "ROCKDOVE_KEY_FILE")]
    key_file: Option<PathBuf>,
}

impl KeyFile {
    fn key(&self) -> anyhow::Result<Option<Key>> {
        let Some(path) = &self.key_file else { return Ok(None) };
        let text = read_key(path.clone(), KEY_FILE_WAIT)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let key = text.trim_end().parse().with_context(|| path.display().to_string())?;
        Ok(Some(key))
    }

    /// The log for reading.
    fn view(&self, place: &Place) -> anyhow::Result<LogView> {
        let view = LogView::open(place.existing()?)?;
        Ok(match self.key()? {
            Some(key) => view.with_key(key)?,
            None => view,
        })
    }
}

/// Reads the first line, on a thread of its own: a pipe without a writer can be waited for without end.
fn read_key(path: PathBuf, wait: Duration) -> io::Result<String> {
    let (sender, line) = mpsc::channel();
    let said = format!("rockdove: no key came from {} yet; waiting", path.display());
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = File::open(path)
            .and_then(|file| BufReader::new(file.take(KEY_FILE_BYTES_MAX)).read_line(&mut line));
        // Nobody hears it who has given up waiting.
        let _ = sender.send(read.map(|_| line));
    });
    let soon = KEY_FILE_SAID_AFTER.min(wait);
    let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("no key came within {wait:?}")));
    line.recv_timeout(soon).unwrap_or_else(|_| {
        eprintln!("{said}");
        line.recv_timeout(wait - soon).unwrap_or_else(late)
    })
}

impl Place {
    /// The log's own folder, also where there is no log yet.
    fn folder(&self) -> io::Result<PathBuf> {
        let inner = self.dir.join("log");
        Ok(if has_log(&inner)? && !has_log(&self.dir)? { inner } else { self.dir.clone() })
    }

    /// Whether its own folder is the log of a bus, named by the bus's data folder or directly: checkpoints lie beside it.
    fn is_of_a_bus(&self, folder: &Path) -> io::Result<bool> {
        if folder != self.dir {
            return Ok(true);
        }
        let folder = std::path::absolute(folder)?;
        let Some(around) = folder.parent().filter(|_| folder.ends_with("log")) else { return Ok(false) };
        let is_checkpoint =
            |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|end| end == "checkpoint");
        Ok(std::fs::read_dir(around)?.filter_map(Result::ok).any(is_checkpoint))
    }

    /// The log's own folder, in which there is one.
    fn existing(&self) -> anyhow::Result<PathBuf> {
        let dir = self.dir.display();
        let found = std::fs::metadata(&self.dir).and_then(|_| self.folder());
        let folder = found.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => anyhow!("there is no folder {dir}"),
            _ => anyhow!("cannot open the folder {dir}: {error}"),
        })?;
        anyhow::ensure!(
            has_log(&folder)?,
            "there is no log in {dir}: the folder of a log has files *.seg and a file `state`, a data folder of \
             `rockdove serve` has them in its folder `log`"
        );
        Ok(folder)
    }

    fn disk(&self) -> anyhow::Result<Arc<dyn Disk>> {
        let folder = self.existing()?;
        let disk = RealDisk::existing(&folder)
            .map_err(|error| anyhow!("cannot open the folder {}: {error}", folder.display()))?;
        Ok(Arc::new(disk))
    }
}

/// Whether there are files of a log, whole or not.
fn has_log(dir: &Path) -> io::Result<bool> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        if name == "state" || Path::new(&name).extension().is_some_and(|extension| extension == "seg") {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Command;

    #[test]
    fn a_key_is_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let late = read_key(path.clone(), Duration::ZERO).unwrap_err();
        assert_eq!(late.to_string(), "no key came within 0ns");
        std::fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let read = std::thread::scope(|threads| {
            let reader = threads.spawn(|| read_key(path.clone(), KEY_FILE_WAIT).unwrap());
            let mut pipe = File::options().write(true).open(&path).unwrap();
            pipe.write_all(b"0b0c\n").unwrap();
            reader.join().unwrap() // while the pipe is open
        });
        assert_eq!(read, "0b0c\n");
        std::fs::write(dir.path().join("file"), "0b0c").unwrap();
        assert_eq!(read_key(dir.path().join("file"), KEY_FILE_WAIT).unwrap(), "0b0c");
    }
}
