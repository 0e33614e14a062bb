//! What happens to a message between the caller's hands and the insert: identity, defaults, expiry.

use crate::id::MessageId;
use crate::message::{Message, SELF};
use thiserror::Error;

/// Who sends, and when.
#[derive(Clone, Copy, Debug)]
pub struct Sending<'a> {
    /// The sending node's id.
    pub sender: &'a str,
    /// The sending node's host name.
    pub host: &'a str,
    /// The sender's clock, ms since the epoch.
    pub now_ms: i64,
    /// Lifetime of messages that expire but name no lifetime, ms.
    pub default_ttl_ms: i64,
}

/// Why a message cannot be sent.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The topic is empty.
    #[error("a message needs a topic")]
    MissingTopic,
    /// The sending node has no id.
    #[error("a message needs a sender")]
    MissingSender,
    /// A negative lifetime.
    #[error("a message cannot live for {0} ms")]
    NegativeTtl(i64),
}

/// Fills in what the sender owes: id, sender, host, lifetime, `delete_at`, timestamp.
///
/// `delete_at` is derived from the lifetime unless the caller set it. Without expiry both are cleared. A message
/// to oneself keeps the sender [`SELF`].
pub fn prepare(mut message: Message, sending: &Sending<'_>) -> Result<Message, PrepareError> {
    if message.topic.is_empty() {
        return Err(PrepareError::MissingTopic);
    }
    if sending.sender.is_empty() {
        return Err(PrepareError::MissingSender);
    }
    if message.ttl < 0 {
        return Err(PrepareError::NegativeTtl(message.ttl));
    }
    if message.sender != SELF {
        message.sender = sending.sender.to_owned();
    }
    message.sender_host = Some(sending.host.to_owned());
    message.id.get_or_insert_with(MessageId::generate);
    message.timestamp = sending.now_ms;
    if message.timing_out {
        if message.ttl == 0 {
            message.ttl = sending.default_ttl_ms;
        }
        message.delete_at.get_or_insert(sending.now_ms.saturating_add(message.ttl));
    } else {
        message.ttl = 0;
        message.delete_at = None;
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDING: Sending<'_> =
        Sending { sender: "billing-1", host: "host-a", now_ms: 1_760_000_000_000, default_ttl_ms: 30_000 };

    #[test]
    fn defaults_follow_the_lifetime() {
        let check = |message: Message, ttl, delete_at| {
            let sent = prepare(message, &SENDING).unwrap();
            assert_eq!((sent.ttl, sent.delete_at), (ttl, delete_at));
            assert_eq!((sent.sender.as_str(), sent.timestamp), ("billing-1", SENDING.now_ms));
            assert!(sent.id.is_some());
        };
        check(Message::new("t"), 30_000, Some(1_760_000_030_000));
        check(Message::new("t").ttl_ms(5), 5, Some(1_760_000_000_005));
        check(Message::new("t").ttl_ms(5).delete_at_ms(77), 5, Some(77));
        check(Message::new("t").ttl_ms(5).never_expires().delete_at_ms(77), 0, None);
        check(Message::new("t").ttl_ms(i64::MAX), i64::MAX, Some(i64::MAX));
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        assert_eq!(prepare(Message::new(""), &SENDING), Err(PrepareError::MissingTopic));
        assert_eq!(prepare(Message::new("t").ttl_ms(-1), &SENDING), Err(PrepareError::NegativeTtl(-1)));
        let nobody = Sending { sender: "", ..SENDING };
        assert_eq!(prepare(Message::new("t"), &nobody), Err(PrepareError::MissingSender));
    }

    #[test]
    fn a_message_to_oneself_keeps_its_sender() {
        let mut message = Message::new("t").to("billing-1");
        message.sender = SELF.into();
        assert_eq!(prepare(message, &SENDING).unwrap().sender, SELF);
    }
}
