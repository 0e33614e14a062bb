//! Payloads on the command line: JSON where it looks like JSON, text otherwise.

use crate::exit::Failure;
use anyhow::Context;
use bson::Bson;
use rockdove::Message;
use serde_json::Value;
use std::fmt::Display;
use std::io::Read;

/// How payloads are read, for the help.
pub const HELP: &str = "\
Payload:
  {...}   JSON object: the key-value payload (extended JSON keeps types: {\"$numberLong\": \"1\"})
  [...]   JSON array: the list payload
  other   text: `value`; a JSON string may be used to quote it
  -       read the payload from standard input";

/// Largest payload read from standard input: what a document may hold.
const STDIN_MAX: u64 = 16 * 1024 * 1024;

/// A message on `topic` with this payload.
pub fn message(topic: &str, payload: Option<&str>) -> anyhow::Result<Message> {
    let message = Message::new(topic);
    match payload {
        None => Ok(message),
        Some("-") => apply(message, &read_stdin()?),
        Some(text) => apply(message, text),
    }
}

/// Puts a payload into a message. What begins like JSON must be JSON: a typing error is not sent as text.
pub fn apply(message: Message, text: &str) -> anyhow::Result<Message> {
    if !text.trim_start().starts_with(['{', '[', '"']) {
        return Ok(message.value(text));
    }
    let wrong = |what: &str, why: &dyn Display| Failure::misused(format!("the payload {what}: {why}"));
    let json: Value = serde_json::from_str(text).map_err(|error| {
        wrong("begins like JSON but is not (text that does is written as a JSON string: '\"…\"')", &error)
    })?;
    if let Value::String(text) = json {
        return Ok(message.value(text));
    }
    if let Some(number) = too_big(text) {
        let advice = "write it as text, or as {\"$numberDecimal\": \"…\"}";
        return Err(Failure::misused(format!(
            "the payload has an integer of more than 64 bits, {number}; {advice}"
        ))
        .into());
    }
    match Bson::try_from(json).map_err(|error| wrong("is no valid extended JSON", &error))? {
        Bson::Document(map) => Ok(message.map_value(map)),
        Bson::Array(list) => Ok(message.additional(list)),
        other => Err(wrong("is a single value; wrap it in an object", &other).into()),
    }
}

/// The first integer in a JSON text that 64 bits do not hold: it would be read as the nearest floating-point number.
fn too_big(json: &str) -> Option<&str> {
    let (mut at, mut in_string) = (0, false);
    while let Some(byte) = json.as_bytes().get(at) {
        match byte {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => {
                let end = json[at..].find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'));
                let number = &json[at..end.map_or(json.len(), |end| at + end)];
                if !number.contains(['.', 'e', 'E']) && number.parse::<i64>().is_err() {
                    return Some(number);
                }
                at += number.len() - 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

fn read_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().take(STDIN_MAX + 1).read_to_string(&mut text).context("cannot read the payload")?;
    if text.len() as u64 > STDIN_MAX {
        return Err(Failure::misused("the payload on standard input is larger than 16 MB").into());
    }
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{bson, doc};

    #[test]
    fn payloads_go_where_they_belong() {
        let check = |text, expected: Message| assert_eq!(message("t", Some(text)).unwrap(), expected);
        let empty = || Message::new("t");
        check("hello", empty().value("hello"));
        check("12", empty().value("12"));
        check("\"quoted\"", empty().value("quoted"));
        check("{\"a\": 1, \"b\": 5000000000}", empty().map_value(doc! {"a": 1_i32, "b": 5_000_000_000_i64}));
        check("{\"a\": {\"$numberLong\": \"1\"}}", empty().map_value(doc! {"a": 1_i64}));
        check(" [1, \"x\"]", empty().additional(vec![bson!(1), bson!("x")]));
        assert_eq!(message("t", None).unwrap(), empty());
    }

    #[test]
    fn an_integer_stays_what_it_is_or_is_refused() {
        let check = |json, expected| assert_eq!(too_big(json), expected, "{json}");
        for fits in
            ["9223372036854775807", "-9223372036854775808", "[1e30, 2.5, -0]", "1.8446744073709551616E19"]
        {
            check(fits, None);
        }
        check("{\"18446744073709551616\": \"\\\"18446744073709551616\"}", None);
        check("{\"ä\": [1, 9223372036854775808 ]}", Some("9223372036854775808"));
        check("[\"\\\\\", -9223372036854775809]", Some("-9223372036854775809"));
        assert!(message("t", Some("[18446744073709551616]")).is_err());
    }

    #[test]
    fn broken_json_is_refused() {
        for text in ["{\"a\": ", "[1", "\"open", "{\"$oid\": \"68e7780000a1b2c3d4000001\"}"] {
            assert!(message("t", Some(text)).is_err(), "{text}");
        }
    }
}
