//! Writing a message: all 21 fields, nulls included, with the BSON types Java nodes expect.

use crate::id::MessageId;
use crate::message::{CLASS_NAME, Message};
use bson::{Bson, DateTime, Document};

impl Message {
    /// The document as stored. `topic` is repeated in `name` for nodes of version 5; an empty recipient list is
    /// null; unknown fields follow. A message without id is written without `_id`.
    pub fn to_document(&self) -> Document {
        let mut document = Document::new();
        if let Some(id) = &self.id {
            document.insert("_id", id.to_bson());
        }
        document.insert("class_name", self.class_name.as_deref().unwrap_or(CLASS_NAME));
        document.insert("topic", &self.topic);
        document.insert("name", &self.topic);
        document.insert("msg", self.msg.clone());
        document.insert("value", self.value.clone());
        document.insert("map_value", self.map_value.clone());
        document.insert("additional", self.additional.clone());
        document.insert("sender", &self.sender);
        document.insert("sender_host", self.sender_host.clone());
        document.insert("recipients", recipients(&self.recipients));
        document.insert("in_answer_to", self.in_answer_to.as_ref().map_or(Bson::Null, MessageId::to_bson));
        document.insert("processed_by", self.processed_by.clone());
        document.insert("timestamp", self.timestamp);
        document.insert("ttl", self.ttl);
        document.insert("delete_at", self.delete_at.map(DateTime::from_millis));
        document.insert("timing_out", self.timing_out);
        document.insert("delete_after_processing", self.delete_after_processing);
        document.insert("delete_after_processing_time", self.delete_after_processing_time);
        document.insert("priority", self.priority);
        document.insert("exclusive", self.exclusive);
        for (key, value) in &self.extra {
            if !document.contains_key(key) {
                document.insert(key.clone(), value.clone());
            }
        }
        document
    }
}

/// Java's standard layout takes only null for a broadcast: an empty array would reach nobody.
fn recipients(ids: &[String]) -> Bson {
    if ids.is_empty() { Bson::Null } else { Bson::from(ids.to_vec()) }
}
