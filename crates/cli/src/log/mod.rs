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
use anyhow::Context;
use clap::{Args, Subcommand};
use rockdove_journal::disk::{Disk, RealDisk};
use rockdove_journal::{Key, LogView};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  rockdove log info ./rockdove-data                     what there is
  rockdove log dump ./orders --since 15m --limit 20     entries of the last quarter of an hour
  rockdove log tail ./orders -n 5 --follow              the last five, and what comes
  rockdove log verify ./orders                          reads everything; exit code 5 if something is damaged
  rockdove log repair ./orders --accept-loss            makes a damaged log openable again
  rockdove log export ./orders > orders.jsonl
  rockdove log prune ./orders --keep 10GiB --age 30d
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

/// The key of an encrypted log.
/// More than a key is not read.
const KEY_FILE_BYTES_MAX: u64 = 1024;

#[derive(Args)]
struct KeyFile {
    /// File with the key of an encrypted log: 64 hexadecimal digits
    #[arg(long, value_name = "FILE", env = "ROCKDOVE_KEY_FILE")]
    key_file: Option<PathBuf>,
}

impl KeyFile {
    fn key(&self) -> anyhow::Result<Option<Key>> {
        let Some(path) = &self.key_file else { return Ok(None) };
        let mut text = String::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text));
        read.with_context(|| format!("cannot read {}", path.display()))?;
        let key = text.trim_end().parse().with_context(|| path.display().to_string())?;
        Ok(Some(key))
    }

    /// The log for reading.
    fn view(&self, place: &Place) -> anyhow::Result<LogView> {
        let view = LogView::open(place.folder())?;
        Ok(match self.key()? {
            Some(key) => view.with_key(key)?,
            None => view,
        })
    }
}

impl Place {
    /// The log's own folder.
    fn folder(&self) -> PathBuf {
        let inner = self.dir.join("log");
        if has_log(&inner) && !has_log(&self.dir) { inner } else { self.dir.clone() }
    }

    fn disk(&self) -> anyhow::Result<Arc<dyn Disk>> {
        let folder = self.folder();
        let disk = RealDisk::existing(&folder)
            .map_err(|error| anyhow::anyhow!("cannot open the folder {}: {error}", folder.display()))?;
        Ok(Arc::new(disk))
    }
}

/// Whether there are files of a log, whole or not.
fn has_log(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.flatten().any(|e| e.file_name() == "state" || e.path().extension().is_some_and(|x| x == "seg"))
}
