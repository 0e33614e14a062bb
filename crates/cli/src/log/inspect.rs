//! `info`, `verify` and `repair`.

use super::Place;
use super::range::{human_size, show_time};
use crate::exit::Exit;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rockdove_journal::{Finding, Inspection, RepairOptions, SegmentReport, Severity, inspect, repair};
use serde_json::{Value, json};
use std::io::{Write, stdout};
use std::ops::RangeInclusive;

/// Say what a log holds: entries, segments, times, sizes, named positions
#[derive(Args)]
pub struct Info {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List the segments
    #[arg(long)]
    segments: bool,
}

impl Info {
    pub fn run(self) -> anyhow::Result<Exit> {
        let found = look(&self.place)?;
        let mut out = stdout().lock();
        if self.json {
            writeln!(out, "{:#}", as_json(&found))?;
            return Ok(Exit::Done);
        }
        let bytes: u64 = found.segments.iter().map(|s| s.disk_bytes).sum();
        let payload: u64 = found.segments.iter().map(|s| s.payload_bytes).sum();
        let entries: u64 = found.segments.iter().map(|s| s.entries).sum();
        let value: u128 = found.segments.iter().map(|s| s.value).sum();
        writeln!(out, "log        {}", hex(&found.log_id))?;
        writeln!(out, "folder     {}", self.place.folder()?.display())?;
        let state = if found.in_use {
            "open in another process"
        } else if found.clean {
            "closed cleanly"
        } else {
            "not closed cleanly"
        };
        writeln!(out, "state      {state}")?;
        writeln!(out, "rolls      {}", found.cycle.as_deref().unwrap_or("by size only"))?;
        writeln!(out, "entries    {entries}, index {} to {}", found.first_index, found.last_index)?;
        writeln!(out, "on disk    up to {} for certain: a sync of it was noted", found.durable_upto)?;
        let times = found.segments.iter().filter_map(|s| s.times);
        if let Some((first, last)) = times.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) {
            writeln!(out, "times      {} to {}", show_time(first), show_time(last))?;
        }
        writeln!(out, "payload    {}, on disk {}", human_size(payload), human_size(bytes))?;
        if value > 0 {
            writeln!(out, "value      {value}")?;
        }
        writeln!(out, "segments   {}", found.segments.len())?;
        for segment in found.segments.iter().filter(|_| self.segments) {
            let sealed = if segment.sealed { "sealed" } else { "open" };
            let (entries, size) = (segment.entries, human_size(segment.disk_bytes));
            writeln!(out, "           {}  {entries} entries, {size}, {sealed}", segment.name)?;
        }
        for cursor in &found.cursors {
            writeln!(out, "position   {} goes on at {}", cursor.name, cursor.next)?;
        }
        for finding in found.findings.iter().filter(|f| f.severity > Severity::Note) {
            writeln!(out, "{}", as_text(finding))?;
        }
        Ok(Exit::Done)
    }
}

/// Read the whole log and say what is damaged, what that means and what can be done
#[derive(Args)]
pub struct Verify {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub fn run(self) -> anyhow::Result<Exit> {
        let found = look(&self.place)?;
        let mut out = stdout().lock();
        if self.json {
            writeln!(out, "{:#}", as_json(&found))?;
        } else {
            for finding in &found.findings {
                writeln!(out, "{}", as_text(finding))?;
            }
            let verdict = match found.severity() {
                None | Some(Severity::Note) => "whole",
                Some(Severity::Unclean) => "not closed cleanly; opening it will deal with that",
                Some(Severity::Damaged) => "damaged",
            };
            let (first, last) = (found.first_index, found.last_index);
            writeln!(out, "{verdict}: entries {first} to {last} can be read without a break")?;
        }
        Ok(match found.severity() {
            None | Some(Severity::Note) => Exit::Done,
            Some(Severity::Unclean) => Exit::Findings,
            Some(Severity::Damaged) => Exit::Damaged,
        })
    }
}

/// Make a log that cannot be opened openable again
///
/// Does what opening does, and makes a lost state file anew. Entries that were durable are given up only with
/// --accept-loss: then the log ends before the first damaged one, and everything from there on is put aside in files
/// of the folder (*.lost). Nothing is ever deleted. Nobody may have the log open: stop the server first.
#[derive(Args)]
pub struct Repair {
    #[command(flatten)]
    place: Place,
    /// End the log before the first damaged entry, giving up durable ones
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Repair {
    pub fn run(self) -> anyhow::Result<Exit> {
        let report = repair(self.place.disk()?, RepairOptions { accept_loss: self.accept_loss })?;
        let kept: Vec<_> = report.kept_in.iter().map(|path| path.display().to_string()).collect();
        let mut out = stdout().lock();
        if self.json {
            let value = json!({
                "stateRebuilt": report.state_rebuilt,
                "lastIndex": report.last_index,
                "lost": report.lost.as_ref().map(range_json),
                "keptIn": kept,
                "movedPositions": report.moved.iter().map(|cursor| &cursor.name).collect::<Vec<_>>(),
            });
            writeln!(out, "{value:#}")?;
            return Ok(Exit::Done);
        }
        if report.state_rebuilt {
            writeln!(out, "the state was made anew from the segments")?;
        }
        match &report.lost {
            Some(lost) => writeln!(out, "given up: entries {} to {}", lost.start(), lost.end())?,
            None => writeln!(out, "nothing that was durable is lost")?,
        }
        for file in kept {
            writeln!(out, "kept: {file}")?;
        }
        for cursor in &report.moved {
            writeln!(out, "position {} went back from {} to the end", cursor.name, cursor.next)?;
        }
        writeln!(out, "the log ends with entry {} and can be opened", report.last_index)?;
        Ok(Exit::Done)
    }
}

fn look(place: &Place) -> anyhow::Result<Inspection> {
    let style = ProgressStyle::with_template("{bar:30} {binary_bytes} of {binary_total_bytes}, {eta} left")?;
    let bar = ProgressBar::new(0).with_style(style);
    let found = inspect(place.disk()?, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    Ok(found)
}

fn as_text(finding: &Finding) -> String {
    let Finding { severity, kind, file, offset, entries, what, meaning, remedy } = finding;
    let entries = match entries {
        Some(entries) if entries.start() == entries.end() => format!(", entry {}", entries.start()),
        Some(entries) => format!(", entries {} to {}", entries.start(), entries.end()),
        None => String::new(),
    };
    format!(
        "{}: {kind}: {} at byte {offset}{entries}: {what}\n  means: {meaning}\n  to do: {remedy}",
        severity.name(),
        file.display()
    )
}

fn range_json(range: &RangeInclusive<u64>) -> Value {
    json!({ "first": range.start(), "last": range.end() })
}

fn as_json(found: &Inspection) -> Value {
    let segment = |s: &SegmentReport| {
        json!({
            "name": s.name, "base": s.base, "last": s.last, "entries": s.entries, "payloadBytes": s.payload_bytes,
            "value": s.value.to_string(), "firstTime": s.times.map(|t| show_time(t.0)),
            "lastTime": s.times.map(|t| show_time(t.1)), "diskBytes": s.disk_bytes, "sealed": s.sealed,
        })
    };
    let finding = |f: &Finding| {
        json!({
            "severity": f.severity.name(), "kind": f.kind, "file": f.file.display().to_string(), "offset": f.offset,
            "entries": f.entries.as_ref().map(range_json), "what": f.what, "meaning": f.meaning, "remedy": f.remedy,
        })
    };
    let cursors = found.cursors.iter().map(|c| json!({ "name": c.name, "next": c.next }));
    json!({
        "logId": hex(&found.log_id),
        "cycle": found.cycle,
        "inUse": found.in_use,
        "clean": found.clean,
        "firstIndex": found.first_index,
        "lastIndex": found.last_index,
        "durableUpto": found.durable_upto,
        "entries": found.segments.iter().map(|s| s.entries).sum::<u64>(),
        "segments": found.segments.iter().map(segment).collect::<Vec<_>>(),
        "positions": cursors.collect::<Vec<_>>(),
        "findings": found.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
