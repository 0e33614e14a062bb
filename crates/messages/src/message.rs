//! The message: its fields, and the builder methods a sender uses.

use crate::id::MessageId;
use bson::{Bson, Document};
use std::time::Duration;

/// The `class_name` Java nodes expect on a message. Written on every message of ours.
pub const CLASS_NAME: &str = "de.caluga.morphium.messaging.Msg";
/// The priority of a message that names none. Smaller values are delivered earlier.
pub const DEFAULT_PRIORITY: i32 = 1000;
/// The sender of a message that a node addressed to itself; no node may use it as its id.
pub const SELF: &str = "self";

/// One message, as sent and as received. Fields are public for reading; the methods of the same names build one.
///
/// ```
/// use rockdove_messages::Message;
/// let order = Message::new("orders.created").msg("created").exclusive(true).priority(100);
/// assert_eq!(order.topic, "orders.created");
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    /// `_id`; generated when the message is sent, unless set before.
    pub id: Option<MessageId>,
    /// The stored `class_name`, when it is not [`CLASS_NAME`]: an application subclass. Kept when re-sent.
    pub class_name: Option<String>,
    /// What the message is about; listeners register for exact topics.
    pub topic: String,
    /// Free text.
    pub msg: Option<String>,
    /// Free text.
    pub value: Option<String>,
    /// Key-value payload.
    pub map_value: Option<Document>,
    /// List payload.
    pub additional: Option<Vec<Bson>>,
    /// Id of the sending node; set when the message is sent.
    pub sender: String,
    /// Host name of the sending node; set when the message is sent.
    pub sender_host: Option<String>,
    /// Sender ids the message is for; empty is a broadcast (and stored as null).
    pub recipients: Vec<String>,
    /// The request this message answers.
    pub in_answer_to: Option<MessageId>,
    /// Nodes that are done with the message. Pre-filled only to park a message.
    pub processed_by: Vec<String>,
    /// Send time by the sender's clock, ms since the epoch; set when the message is sent.
    pub timestamp: i64,
    /// Lifetime in ms; 0 = the sender's default.
    pub ttl: i64,
    /// When the server removes it, ms since the epoch; derived from `ttl` at send unless set.
    pub delete_at: Option<i64>,
    /// Whether the message expires by itself.
    pub timing_out: bool,
    /// Whether the first consumer to finish removes the message.
    pub delete_after_processing: bool,
    /// Delay of that removal in ms; 0 = at once.
    pub delete_after_processing_time: i32,
    /// Smaller is earlier.
    pub priority: i32,
    /// Whether exactly one node may process it.
    pub exclusive: bool,
    /// Top-level fields we do not know, as they were read; written back unchanged.
    pub extra: Document,
}

impl Message {
    /// A broadcast on `topic` with every default.
    pub fn new(topic: impl Into<String>) -> Self {
        Self {
            id: None,
            class_name: None,
            topic: topic.into(),
            msg: None,
            value: None,
            map_value: None,
            additional: None,
            sender: String::new(),
            sender_host: None,
            recipients: Vec::new(),
            in_answer_to: None,
            processed_by: Vec::new(),
            timestamp: 0,
            ttl: 0,
            delete_at: None,
            timing_out: true,
            delete_after_processing: false,
            delete_after_processing_time: 0,
            priority: DEFAULT_PRIORITY,
            exclusive: false,
            extra: Document::new(),
        }
    }

    /// Sets the free text `msg`.
    pub fn msg(mut self, text: impl Into<String>) -> Self {
        self.msg = Some(text.into());
        self
    }

    /// Sets the free text `value`.
    pub fn value(mut self, text: impl Into<String>) -> Self {
        self.value = Some(text.into());
        self
    }

    /// Sets the key-value payload. Java consumers cast what they find: `i32` and `i64` stay different types.
    pub fn map_value(mut self, payload: Document) -> Self {
        self.map_value = Some(payload);
        self
    }

    /// Adds one entry to the key-value payload.
    pub fn entry(mut self, key: impl Into<String>, value: impl Into<Bson>) -> Self {
        self.map_value.get_or_insert_default().insert(key, value);
        self
    }

    /// Sets the list payload.
    pub fn additional(mut self, payload: Vec<Bson>) -> Self {
        self.additional = Some(payload);
        self
    }

    /// Adds a recipient: the message is for that node only. Repeat for several.
    pub fn to(mut self, sender_id: impl Into<String>) -> Self {
        self.recipients.push(sender_id.into());
        self
    }

    /// Asks that exactly one node processes the message.
    pub fn exclusive(mut self, exclusive: bool) -> Self {
        self.exclusive = exclusive;
        self
    }

    /// Sets the lifetime, to the millisecond. Zero = the sender's default.
    pub fn ttl(self, life: Duration) -> Self {
        self.ttl_ms(i64::try_from(life.as_millis()).unwrap_or(i64::MAX))
    }

    /// Sets the lifetime in ms. 0 = the sender's default.
    pub fn ttl_ms(mut self, ttl: i64) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the moment the server removes the message, in ms since the epoch.
    pub fn delete_at_ms(mut self, at: i64) -> Self {
        self.delete_at = Some(at);
        self
    }

    /// The message never expires; only processing (with [`delete_after_processing`](Self::delete_after_processing))
    /// or an operator removes it.
    pub fn never_expires(mut self) -> Self {
        self.timing_out = false;
        self
    }

    /// The first consumer to finish removes the message, `delay` later (zero = at once; at most 24 days).
    pub fn delete_after_processing(mut self, delay: Duration) -> Self {
        self.delete_after_processing = true;
        self.delete_after_processing_time = i32::try_from(delay.as_millis()).unwrap_or(i32::MAX);
        self
    }

    /// Sets the priority; smaller is earlier.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Presets the id; the default is a fresh one per send.
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Whether this is an answer to a request.
    pub fn is_answer(&self) -> bool {
        self.in_answer_to.is_some()
    }

    /// Whether the message is for everybody.
    pub fn is_broadcast(&self) -> bool {
        self.recipients.is_empty()
    }

    /// Whether `node` is among those the message is for.
    pub fn is_for(&self, node: &str) -> bool {
        self.is_broadcast() || self.recipients.iter().any(|recipient| recipient == node)
    }

    /// Whether `node` marked the message.
    pub fn is_processed_by(&self, node: &str) -> bool {
        self.processed_by.iter().any(|marked| marked == node)
    }

    /// Whether the message is past its life at `now_ms`. Receivers test `timestamp + ttl` and `delete_at`; the
    /// later of the two counts, so that an operator can extend a life by raising either.
    pub fn is_expired(&self, now_ms: i64) -> bool {
        if !self.timing_out {
            return false;
        }
        let by_ttl = (self.ttl > 0).then(|| self.timestamp.saturating_add(self.ttl));
        by_ttl.into_iter().chain(self.delete_at).max().is_some_and(|end| now_ms > end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_takes_the_later_of_ttl_and_delete_at() {
        let mut message = Message::new("t").ttl_ms(100);
        message.timestamp = 1000;
        let check = |message: &Message, now, expected| assert_eq!(message.is_expired(now), expected, "{now}");
        check(&message, 1100, false);
        check(&message, 1101, true);
        check(&message.clone().delete_at_ms(1500), 1101, false);
        check(&message.clone().delete_at_ms(1500), 1501, true);
        check(&message.clone().never_expires(), i64::MAX, false);
        check(&Message::new("t"), i64::MAX, false);
        check(&Message::new("t").ttl_ms(i64::MAX), i64::MAX, false);
    }

    #[test]
    fn addressing_is_by_exact_id() {
        assert!(Message::new("t").is_for("anybody"));
        let directed = Message::new("t").to("node-7").to("node-8");
        assert!(directed.is_for("node-7") && directed.is_for("node-8"));
        assert!(!directed.is_for("node-70") && !directed.is_for("Node-7"));
    }
}
