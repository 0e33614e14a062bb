//! The lock document: whoever inserts it owns the exclusive message of the same `_id`.

use crate::id::MessageId;
use crate::layout::Layout;
use crate::message::Message;
use bson::{Bson, DateTime, Document, doc};

/// How long the lock of a message without expiry lives: 7 days, in ms.
pub const LOCK_MS_WITHOUT_EXPIRY: i64 = 7 * 24 * 60 * 60 * 1000;

/// A claim on an exclusive message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The id of the claimed message; the unique index on `_id` makes the claim exclusive.
    pub id: MessageId,
    /// When the server drops the claim of a node that vanished, ms since the epoch.
    pub delete_at: Option<i64>,
    /// Sender id of the claimer.
    pub lock_id: String,
    /// The message was processed and removed; the lock stays so that a sender that repeats it does not make it new. The
    /// `timestamp` of that message. Java nodes do not read locks: to them it is one like any other.
    pub processed: Option<i64>,
}

impl Lock {
    /// The document as stored. It carries no class name.
    pub fn to_document(&self) -> Document {
        let mut document = doc! { "_id": self.id.to_bson(), "delete_at": self.delete_at.map(DateTime::from_millis), "lock_id": &self.lock_id };
        if let Some(timestamp) = self.processed {
            document.insert("processed", timestamp);
        }
        document
    }

    /// Reads a lock; `None` when it has no id. A lock without owner belongs to nobody we know: `lock_id` is empty.
    pub fn from_document(document: &Document) -> Option<Self> {
        let id = MessageId::from_bson(document.get("_id")?)?;
        let delete_at = match document.get("delete_at") {
            Some(Bson::DateTime(at)) => Some(at.timestamp_millis()),
            _ => None,
        };
        let lock_id = document.get_str("lock_id").unwrap_or_default().to_owned();
        let processed = document.get_i64("processed").ok();
        Some(Self { id, delete_at, lock_id, processed })
    }
}

/// When the lock on `message` taken at `now_ms` is to vanish by itself.
///
/// The message's own expiry where the layout uses it (not [`Layout::MultiCollection`]), else twice its lifetime,
/// else [`LOCK_MS_WITHOUT_EXPIRY`].
pub fn lock_expiry(layout: Layout, message: &Message, now_ms: i64) -> i64 {
    if let (Some(at), false) = (message.delete_at, layout == Layout::MultiCollection) {
        return at;
    }
    let life = if message.timing_out && message.ttl > 0 {
        message.ttl.saturating_mul(2)
    } else {
        LOCK_MS_WITHOUT_EXPIRY
    };
    now_ms.saturating_add(life)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::oid::ObjectId;

    #[test]
    fn the_document_is_golden() {
        let id = ObjectId::parse_str("68e7780000a1b2c3d4000001").unwrap();
        let delete_at = Some(1_760_000_030_000);
        let lock = Lock { id: id.into(), delete_at, lock_id: "stock-7".into(), processed: None };
        let document = lock.to_document();
        let at = DateTime::from_millis(1_760_000_030_000);
        assert_eq!(document, doc! {"_id": id, "delete_at": at, "lock_id": "stock-7"});
        assert_eq!(Lock::from_document(&document), Some(lock.clone()));
        let kept = Lock { processed: Some(7), ..lock };
        assert_eq!(Lock::from_document(&kept.to_document()), Some(kept));
        assert_eq!(Lock::from_document(&doc! {"lock_id": "x"}), None);
    }

    #[test]
    fn expiry_by_layout_and_lifetime() {
        let check =
            |layout, message: Message, expected| assert_eq!(lock_expiry(layout, &message, 1000), expected);
        let timed = Message::new("t").ttl_ms(30).delete_at_ms(1030);
        check(Layout::Standard, timed.clone(), 1030);
        check(Layout::DualChannel, timed.clone(), 1030);
        check(Layout::MultiCollection, timed, 1060);
        check(Layout::Standard, Message::new("t").ttl_ms(30), 1060);
        check(Layout::Standard, Message::new("t").never_expires(), 1000 + LOCK_MS_WITHOUT_EXPIRY);
        check(Layout::Standard, Message::new("t").ttl_ms(i64::MAX), i64::MAX);
    }
}
