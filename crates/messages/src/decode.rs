//! Reading a message, tolerantly: any numeric type, missing fields, nulls, the older `name` for `topic`.
//!
//! A document that is no message is an error for that document alone; the caller goes on with the next.

use crate::id::MessageId;
use crate::message::{CLASS_NAME, DEFAULT_PRIORITY, Message};
use bson::{Bson, Document};
use thiserror::Error;

/// The `class_name` of version 5 nodes; the same type.
const CLASS_NAME_V5: &str = "msg";
/// Field names of a queue whose Java application switched the snake_case translation off.
const CAMEL_CASE_FIELDS: [&str; 4] = ["inAnswerTo", "processedBy", "mapValue", "timingOut"];

/// Why a document is not a message.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// There is no usable `_id`.
    #[error("message without _id")]
    MissingId,
    /// Neither `topic` nor `name` is there.
    #[error("message without topic")]
    MissingTopic,
    /// A field holds a type that no node writes there.
    #[error("field `{field}` of a message holds a {found}")]
    WrongType {
        /// The field.
        field: &'static str,
        /// The BSON type found.
        found: &'static str,
    },
    /// The queue uses Java spelling (`processedBy`): another dialect, which Rockdove does not speak.
    #[error("the queue uses camelCase field names (`{0}`); only snake_case queues are supported")]
    CamelCase(&'static str),
}

impl Message {
    /// Reads a stored message.
    pub fn from_document(document: Document) -> Result<Self, DecodeError> {
        if let Some(field) = CAMEL_CASE_FIELDS.into_iter().find(|field| document.contains_key(field)) {
            return Err(DecodeError::CamelCase(field));
        }
        let mut message = Message::new("");
        let (mut topic, mut name) = (None, None);
        for (field, value) in document {
            match field.as_str() {
                "_id" => message.id = MessageId::from_bson(&value),
                "name" => name = text("name", value)?,
                "topic" => topic = text("topic", value)?,
                "class_name" => {
                    let class_name = text("class_name", value)?;
                    message.class_name =
                        class_name.filter(|class| class != CLASS_NAME && class != CLASS_NAME_V5);
                }
                "msg" => message.msg = text("msg", value)?,
                "value" => message.value = text("value", value)?,
                "map_value" => message.map_value = map("map_value", value)?,
                "additional" => message.additional = list("additional", value)?,
                "sender" => message.sender = text("sender", value)?.unwrap_or_default(),
                "sender_host" => message.sender_host = text("sender_host", value)?,
                "recipients" => message.recipients = texts("recipients", value)?,
                "in_answer_to" => message.in_answer_to = MessageId::from_bson(&value),
                "processed_by" => message.processed_by = texts("processed_by", value)?,
                "timestamp" => message.timestamp = number("timestamp", value)?.unwrap_or(0),
                "ttl" => message.ttl = number("ttl", value)?.unwrap_or(0).max(0),
                "delete_at" => message.delete_at = number("delete_at", value)?,
                "timing_out" => message.timing_out = flag("timing_out", value)?.unwrap_or(true),
                "delete_after_processing" => {
                    message.delete_after_processing =
                        flag("delete_after_processing", value)?.unwrap_or(false);
                }
                "delete_after_processing_time" => {
                    let time = small("delete_after_processing_time", value)?;
                    message.delete_after_processing_time = time.unwrap_or(0);
                }
                "priority" => message.priority = small("priority", value)?.unwrap_or(DEFAULT_PRIORITY),
                "exclusive" => message.exclusive = flag("exclusive", value)?.unwrap_or(false),
                _ => drop(message.extra.insert(field, value)),
            }
        }
        message.id.as_ref().ok_or(DecodeError::MissingId)?;
        message.topic = topic.or(name).ok_or(DecodeError::MissingTopic)?;
        Ok(message)
    }
}

/// What a poll reads of a message: enough to queue it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its id.
    pub id: MessageId,
    /// Smaller is earlier.
    pub priority: i32,
    /// Send time, ms since the epoch.
    pub timestamp: i64,
    /// The request it answers.
    pub in_answer_to: Option<MessageId>,
    /// Whether one node is to process it.
    pub exclusive: bool,
}

impl Head {
    /// Reads the head of a message. Fields of a wrong type count as absent: the whole message is judged when its
    /// turn comes. `None` without usable `_id`.
    pub fn from_document(document: Document) -> Option<Self> {
        let mut id = None;
        let (mut priority, mut timestamp, mut in_answer_to, mut exclusive) = (None, None, None, None);
        for (field, value) in document {
            match field.as_str() {
                "_id" => id = MessageId::from_bson(&value),
                "priority" => priority = small("priority", value).ok().flatten(),
                "timestamp" => timestamp = number("timestamp", value).ok().flatten(),
                "in_answer_to" => in_answer_to = MessageId::from_bson(&value),
                "exclusive" => exclusive = flag("exclusive", value).ok().flatten(),
                _ => {}
            }
        }
        Some(Self {
            id: id?,
            priority: priority.unwrap_or(DEFAULT_PRIORITY),
            timestamp: timestamp.unwrap_or(0),
            in_answer_to,
            exclusive: exclusive.unwrap_or(false),
        })
    }
}

/// A text field. Numbers and booleans are read as their text, as Java's mapper does.
fn text(field: &'static str, value: Bson) -> Result<Option<String>, DecodeError> {
    match value {
        Bson::Null | Bson::Undefined => Ok(None),
        Bson::String(text) | Bson::Symbol(text) => Ok(Some(text)),
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Boolean(_) => Ok(Some(value.to_string())),
        other => Err(wrong(field, &other)),
    }
}

/// An array of texts; a single text counts as an array of one.
fn texts(field: &'static str, value: Bson) -> Result<Vec<String>, DecodeError> {
    let values = match value {
        Bson::Null | Bson::Undefined => return Ok(Vec::new()),
        Bson::Array(values) => values,
        single => vec![single],
    };
    let text = |value| match value {
        Bson::String(text) => Ok(text),
        other => Err(wrong(field, &other)),
    };
    values.into_iter().filter(|value| *value != Bson::Null).map(text).collect()
}

fn map(field: &'static str, value: Bson) -> Result<Option<Document>, DecodeError> {
    match value {
        Bson::Null | Bson::Undefined => Ok(None),
        Bson::Document(map) => Ok(Some(map)),
        other => Err(wrong(field, &other)),
    }
}

fn list(field: &'static str, value: Bson) -> Result<Option<Vec<Bson>>, DecodeError> {
    match value {
        Bson::Null | Bson::Undefined => Ok(None),
        Bson::Array(list) => Ok(Some(list)),
        other => Err(wrong(field, &other)),
    }
}

/// Any numeric type or a date, as whole number (dates as ms since the epoch). Doubles are cut and saturate.
fn number(field: &'static str, value: Bson) -> Result<Option<i64>, DecodeError> {
    match value {
        Bson::Null | Bson::Undefined => Ok(None),
        Bson::Int32(value) => Ok(Some(value.into())),
        Bson::Int64(value) => Ok(Some(value)),
        Bson::Double(value) => Ok(Some(value as i64)),
        Bson::DateTime(value) => Ok(Some(value.timestamp_millis())),
        other => Err(wrong(field, &other)),
    }
}

fn small(field: &'static str, value: Bson) -> Result<Option<i32>, DecodeError> {
    let saturate = |value: i64| value.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    Ok(number(field, value)?.map(saturate))
}

fn flag(field: &'static str, value: Bson) -> Result<Option<bool>, DecodeError> {
    match value {
        Bson::Null | Bson::Undefined => Ok(None),
        Bson::Boolean(value) => Ok(Some(value)),
        Bson::Int32(value) => Ok(Some(value != 0)),
        Bson::Int64(value) => Ok(Some(value != 0)),
        other => Err(wrong(field, &other)),
    }
}

fn wrong(field: &'static str, found: &Bson) -> DecodeError {
    DecodeError::WrongType { field, found: type_name(found) }
}

fn type_name(value: &Bson) -> &'static str {
    match value {
        Bson::Double(_) => "double",
        Bson::String(_) => "string",
        Bson::Array(_) => "array",
        Bson::Document(_) => "document",
        Bson::Boolean(_) => "boolean",
        Bson::Int32(_) => "32-bit integer",
        Bson::Int64(_) => "64-bit integer",
        Bson::ObjectId(_) => "ObjectId",
        Bson::DateTime(_) => "date",
        Bson::Binary(_) => "binary",
        _ => "value of another type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{DateTime, doc, oid::ObjectId};

    #[test]
    fn the_oldest_form_is_read_with_defaults() {
        let id = ObjectId::new();
        let old = doc! {"_id": id, "name": "t", "msg": "m", "value": "v", "sender": "s", "timestamp": 5_i64,
        "ttl": 30, "priority": 3};
        let message = Message::from_document(old).unwrap();
        let mut expected = Message::new("t").msg("m").value("v").ttl_ms(30).priority(3).with_id(id.into());
        expected.sender = "s".into();
        expected.timestamp = 5;
        assert_eq!(message, expected);
    }

    #[test]
    fn nulls_are_absent_and_any_numeric_type_will_do() {
        let read = |extra: Document| {
            let mut document = doc! {"_id": "x", "topic": "t", "recipients": null, "processed_by": null,
            "in_answer_to": null, "exclusive": null, "map_value": null};
            document.extend(extra);
            Message::from_document(document).unwrap()
        };
        assert_eq!(read(doc! {}).priority, DEFAULT_PRIORITY);
        assert!(!read(doc! {}).exclusive && read(doc! {}).is_broadcast());
        assert_eq!(read(doc! {"priority": 7_i64}).priority, 7);
        assert_eq!(read(doc! {"priority": 7.9}).priority, 7);
        assert_eq!(read(doc! {"priority": i64::MAX}).priority, i32::MAX);
        assert_eq!(read(doc! {"timestamp": DateTime::from_millis(9)}).timestamp, 9);
        assert_eq!(read(doc! {"ttl": f64::NAN}).ttl, 0);
        assert!(read(doc! {"recipients": []}).is_broadcast());
        assert_eq!(read(doc! {"recipients": "one"}).recipients, ["one"]);
        assert_eq!(read(doc! {"value": 12}).value.as_deref(), Some("12"));
    }

    #[test]
    fn what_is_no_message_is_named() {
        let check =
            |document: Document, expected| assert_eq!(Message::from_document(document), Err(expected));
        check(doc! {"topic": "t"}, DecodeError::MissingId);
        check(doc! {"_id": null, "topic": "t"}, DecodeError::MissingId);
        check(doc! {"_id": 1}, DecodeError::MissingTopic);
        check(doc! {"_id": 1, "topic": "t", "processedBy": []}, DecodeError::CamelCase("processedBy"));
        let wrong = DecodeError::WrongType { field: "map_value", found: "array" };
        check(doc! {"_id": 1, "topic": "t", "map_value": []}, wrong);
    }

    #[test]
    fn heads_never_refuse_a_message_with_an_id() {
        let head =
            Head::from_document(doc! {"_id": "x", "priority": 3.0, "timestamp": DateTime::from_millis(4)});
        let id = MessageId::from_bson(&Bson::from("x")).unwrap();
        assert_eq!(head, Some(Head { id, priority: 3, timestamp: 4, in_answer_to: None, exclusive: false }));
        let odd = Head::from_document(doc! {"_id": 1, "priority": "high", "timestamp": []}).unwrap();
        assert_eq!((odd.priority, odd.timestamp), (DEFAULT_PRIORITY, 0));
        assert_eq!(Head::from_document(doc! {"priority": 1}), None);
    }

    #[test]
    fn unknown_fields_and_classes_are_kept() {
        let document = doc! {"_id": 1, "topic": "t", "class_name": "com.shop.Cmsg", "shop": {"id": 4_i64}};
        let message = Message::from_document(document).unwrap();
        assert_eq!(message.class_name.as_deref(), Some("com.shop.Cmsg"));
        let written = message.to_document();
        assert_eq!(written.get_document("shop").unwrap(), &doc! {"id": 4_i64});
        assert_eq!(written.get_str("class_name").unwrap(), "com.shop.Cmsg");
    }
}
