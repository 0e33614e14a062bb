//! Messages on standard output.

use bson::Bson;
use rockdove::Message;
use std::io::{self, Write};

/// Writes one message as a line and flushes it: as extended JSON, or as topic, sender and payload with tabs between; a payload
/// of several parts has spaces between them.
pub fn print(message: &Message, json: bool) -> io::Result<()> {
    let line = if json { as_json(message) } else { as_text(message) };
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn as_json(message: &Message) -> String {
    Bson::Document(message.to_document()).into_relaxed_extjson().to_string()
}

fn as_text(message: &Message) -> String {
    let json = |value: Bson| value.into_relaxed_extjson().to_string();
    let parts = [
        message.msg.clone(),
        message.value.clone(),
        message.map_value.clone().map(|map| json(Bson::Document(map))),
        message.additional.clone().map(|list| json(Bson::Array(list))),
    ];
    let payload: Vec<String> = parts.into_iter().flatten().map(|part| one_line(&part)).collect();
    format!("{}\t{}\t{}", one_line(&message.topic), one_line(&message.sender), payload.join(" "))
}

/// Control characters would break the line, or the terminal.
fn one_line(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn lines_stay_lines() {
        let mut message = Message::new("t").msg("two\nlines").value("\u{1b}[2J").map_value(doc! {"n": 1_i64});
        message.sender = "a".into();
        assert_eq!(as_text(&message), "t\ta\ttwo\\nlines \\u{1b}[2J {\"n\":1}");
        assert!(as_json(&message).contains("\"msg\":\"two\\nlines\""));
        assert!(!as_json(&message).contains('\n'));
    }
}
