//! `prune`: forgetting old entries.

use super::range::{age, human_size, now_ns, size};
use super::{KeyFile, Place};
use crate::exit::{Exit, Failure};
use anyhow::bail;
use clap::Args;
use rockdove_journal::{Codec, Journal, Options, Retention, SyncPolicy};
use serde_json::json;
use std::io::{Write, stdout};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Remove old segments: those that are wholly before what is to be kept
///
/// Whole segments only, oldest first, never the last entry. Refused while a writer has the log open (a writer removes
/// them itself if its retention says so), and on a data folder of `rockdove serve`, whose log belongs to the bus.
#[derive(Args)]
pub struct Prune {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    key: KeyFile,
    /// Remove segments whose last entry is older
    #[arg(long, value_parser = age, value_name = "AGE")]
    age: Option<Duration>,
    /// Remove the oldest until the rest takes no more on disk
    #[arg(long, value_parser = size, value_name = "SIZE")]
    keep: Option<u64>,
    /// Remove segments whose entries all have lower indexes
    #[arg(long, value_name = "INDEX")]
    before_index: Option<u64>,
    /// Also remove what named readers have not read yet
    #[arg(long)]
    unread: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Prune {
    pub fn run(self) -> anyhow::Result<Exit> {
        if self.age.is_none() && self.keep.is_none() && self.before_index.is_none() {
            bail!(Failure::misused("say what to remove: --age, --keep or --before-index"));
        }
        let folder = self.place.existing()?;
        if self.place.is_of_a_bus(&folder)? {
            bail!("the log of a bus is shortened by the bus: its state depends on it");
        }
        let options = Options {
            sync: SyncPolicy::Never,
            codec: Codec { key: self.key.key()?, ..Codec::default() },
            ..Options::default()
        };
        let (journal, writer, _) = Journal::open(&folder, options)?;
        let released = Arc::new(Mutex::new(Vec::new()));
        let seen = released.clone();
        journal.on_released(move |segment| seen.lock().expect("nobody panics with it").push(segment.clone()));
        let policy = Retention { age: self.age, bytes: self.keep, keep_unread: !self.unread };
        journal.retain(&policy, now_ns())?;
        if let Some(index) = self.before_index {
            let unread = match self.unread {
                true => None,
                false => journal.cursors()?.iter().map(|cursor| cursor.next).min(),
            };
            journal.drop_before(index.min(unread.unwrap_or(u64::MAX)))?;
        }
        let (first, bytes) = (journal.first_index(), journal.disk_bytes());
        writer.close()?;
        let released = released.lock().expect("nobody panics with it");
        let freed: u64 = released.iter().map(|segment| segment.bytes).sum();
        let mut out = stdout().lock();
        if self.json {
            let value = json!({
                "segments": released.len(), "freedBytes": freed, "firstIndex": first, "diskBytes": bytes,
            });
            writeln!(out, "{value:#}")?;
        } else {
            let (count, freed, left) = (released.len(), human_size(freed), human_size(bytes));
            writeln!(
                out,
                "removed {count} segments, {freed}; the log begins with entry {first} and takes {left}"
            )?;
        }
        Ok(Exit::Done)
    }
}
