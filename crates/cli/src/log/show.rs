//! `dump` and `tail`: entries on standard output.

use super::inspect::hex;
use super::range::{Range, human_size, show_time};
use super::{KeyFile, Place};
use crate::exit::Exit;
use bson::{Bson, Document, RawDocument};
use clap::{Args, ValueEnum};
use rockdove_journal::EntryRef;
use serde_json::{Value, json};
use std::io::{BufWriter, Write, stdout};
use std::time::Duration;

/// How long one look at the log waits; then it is looked whether the reader of our output is still there.
const LOOK: Duration = Duration::from_millis(250);

/// How payloads are shown.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Payload {
    /// What a bus has written as JSON, text where it is text, hexadecimal digits otherwise
    Auto,
    /// Hexadecimal digits
    Hex,
    /// Only its size
    Size,
}

/// How entries are shown.
#[derive(Args)]
struct Style {
    /// One JSON document for each entry
    #[arg(long)]
    json: bool,
    /// How to show payloads
    #[arg(long, value_enum, default_value_t = Payload::Auto)]
    payload: Payload,
}

/// Show entries
#[derive(Args)]
pub struct Dump {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    key: KeyFile,
    #[command(flatten)]
    range: Range,
    #[command(flatten)]
    style: Style,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// Begin with the last one
    #[arg(long)]
    reverse: bool,
}

impl Dump {
    pub fn run(self) -> anyhow::Result<Exit> {
        let view = self.key.view(&self.place)?;
        let mut out = BufWriter::new(stdout().lock());
        let mut tailer = match self.reverse {
            true => self.range.apply_reverse(view.tailer())?,
            false => self.range.apply(view.tailer())?,
        };
        let mut count = 0;
        while count < self.limit {
            let entry = if self.reverse { tailer.previous_entry()? } else { tailer.next_entry()? };
            let Some(entry) = entry.filter(|entry| self.range.contains(entry.index)) else { break };
            self.style.print(&mut out, &entry)?;
            count += 1;
        }
        out.flush()?;
        Ok(Exit::Done)
    }
}

/// Show the last entries, and with --follow what comes
#[derive(Args)]
pub struct Tail {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    key: KeyFile,
    /// How many
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    lines: u64,
    /// Go on with what comes, until interrupted
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    style: Style,
}

impl Tail {
    pub fn run(self) -> anyhow::Result<Exit> {
        let view = self.key.view(&self.place)?;
        let mut tailer = view.tailer();
        tailer.to_end()?;
        let mut count = 0;
        while count < self.lines && tailer.previous_entry()?.is_some() {
            count += 1;
        }
        let mut out = BufWriter::new(stdout().lock());
        loop {
            while let Some(entry) = tailer.next_entry()? {
                self.style.print(&mut out, &entry)?;
            }
            out.flush()?;
            if !self.follow {
                return Ok(Exit::Done);
            }
            tailer.wait(LOOK)?;
        }
    }
}

impl Style {
    fn print(&self, out: &mut impl Write, entry: &EntryRef<'_>) -> std::io::Result<()> {
        if self.json {
            return writeln!(out, "{}", self.as_json(entry));
        }
        let EntryRef { index, time_ns, value, level, payload, .. } = entry;
        write!(out, "{index}  {}", show_time(*time_ns))?;
        if *value > 0 {
            write!(out, "  value {value}")?;
        }
        if let Some(level) = level {
            write!(out, "  {level}")?;
        }
        match self.payload {
            Payload::Size => writeln!(out, "  {}", human_size(payload.len() as u64)),
            Payload::Hex => writeln!(out, "  {}", hex(payload)),
            Payload::Auto => {
                if let Some(text) = text_of(payload) {
                    writeln!(out, "  {text}")
                } else if let Some(effects) = effects_of(payload) {
                    writeln!(out, "  {effects}")
                } else {
                    writeln!(out, "  {}", hex(payload))
                }
            }
        }
    }

    fn as_json(&self, entry: &EntryRef<'_>) -> Value {
        let payload = entry.payload;
        let mut fields = about(entry);
        match self.payload {
            Payload::Auto => {
                let is_text = text_of(payload).is_some();
                match if is_text { None } else { effects_of(payload) } {
                    Some(effects) => fields["effects"] = effects,
                    None => put(&mut fields, payload),
                }
            }
            Payload::Hex => fields["hex"] = hex(payload).into(),
            Payload::Size => fields["bytes"] = payload.len().into(),
        }
        fields
    }
}

/// An entry with everything that `import` needs.
pub fn as_json(entry: &EntryRef<'_>) -> Value {
    let mut fields = about(entry);
    put(&mut fields, entry.payload);
    fields
}

/// All of an entry but its payload.
fn about(entry: &EntryRef<'_>) -> Value {
    let EntryRef { index, term, time_ns, value, level, .. } = entry;
    let mut fields = json!({ "index": index, "term": term, "timeNs": time_ns, "time": show_time(*time_ns), "value": value });
    if let Some(level) = level {
        fields["level"] = level.name().into();
    }
    fields
}

/// Adds a payload, whole.
fn put(fields: &mut Value, payload: &[u8]) {
    match std::str::from_utf8(payload) {
        Ok(text) => fields["text"] = text.into(),
        Err(_) => fields["hex"] = hex(payload).into(),
    }
}

/// What a bus did, if the payload is a batch of its effects.
fn effects_of(payload: &[u8]) -> Option<Value> {
    let effects = rockdove_engine::describe_batch(payload)?;
    let json = |effect: &Vec<u8>| {
        let effect = RawDocument::from_bytes(effect).and_then(Document::try_from).ok()?;
        Some(Bson::Document(effect).into_relaxed_extjson())
    };
    effects.iter().map(json).collect()
}

/// The payload if it is text that a terminal shows on one line.
fn text_of(payload: &[u8]) -> Option<&str> {
    std::str::from_utf8(payload).ok().filter(|text| !text.chars().any(char::is_control))
}
