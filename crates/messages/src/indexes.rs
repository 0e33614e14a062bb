//! The indexes of message and lock collections, with the names Java nodes use.
//!
//! Names matter: a second index with the same key under another name is an error (code 85) on MongoDB.

use bson::{Bson, Document, doc};

/// One index to create.
#[derive(Clone, PartialEq, Debug)]
pub struct IndexDefinition {
    /// Its name.
    pub name: &'static str,
    /// Its key, in order.
    pub keys: Document,
    /// Documents expire this many seconds after the date in the key; `None` = no TTL index.
    pub expire_after_seconds: Option<u32>,
}

impl IndexDefinition {
    fn plain(name: &'static str, keys: Document) -> Self {
        Self { name, keys, expire_after_seconds: None }
    }

    fn expiry() -> Self {
        Self { expire_after_seconds: Some(0), ..Self::plain("delete_at_1", doc! {"delete_at": 1}) }
    }

    /// Whether an index that exists, as `listIndexes` shows it, does the same under whatever name: the same key, the
    /// same expiry, and nothing that leaves documents out or refuses them.
    pub fn is_served_by(&self, existing: &Document) -> bool {
        let number = |value: &Bson| match value {
            Bson::Int32(value) => Some(f64::from(*value)),
            Bson::Int64(value) => Some(*value as f64),
            Bson::Double(value) => Some(*value),
            _ => None,
        };
        let keys = |keys: &Document| -> Vec<(String, Option<f64>)> {
            keys.iter().map(|(field, order)| (field.clone(), number(order))).collect()
        };
        let expiry = existing.get("expireAfterSeconds").and_then(number);
        existing.get_document("key").is_ok_and(|key| keys(key) == keys(&self.keys))
            && expiry == self.expire_after_seconds.map(f64::from)
            && !["unique", "sparse", "hidden"].iter().any(|option| existing.get_bool(option).unwrap_or(false))
            && !["partialFilterExpression", "collation"].iter().any(|option| existing.contains_key(option))
    }

    /// The entry of a `createIndexes` command.
    pub fn to_document(&self) -> Document {
        let mut document = doc! { "key": self.keys.clone(), "name": self.name };
        if let Some(seconds) = self.expire_after_seconds {
            document.insert("expireAfterSeconds", i64::from(seconds));
        }
        document
    }
}

/// The indexes of every collection that holds messages.
pub fn message_indexes() -> Vec<IndexDefinition> {
    let plain = IndexDefinition::plain;
    vec![
        plain(
            "sender_1_processed_by_1_in_answer_to_1",
            doc! {"sender": 1, "processed_by": 1, "in_answer_to": 1},
        ),
        plain(
            "msgId_1_sender_1_processed_by_1_topic_1_priority_1_timestamp_1",
            doc! {"_id": 1, "sender": 1, "processed_by": 1, "topic": 1, "priority": 1, "timestamp": 1},
        ),
        plain("msgId_1_processed_by_1_topic_1", doc! {"_id": 1, "processed_by": 1, "topic": 1}),
        plain(
            "processed_by_1_priority_1_timestamp_1",
            doc! {"processed_by": 1, "priority": 1, "timestamp": 1},
        ),
        plain("processed_by_1", doc! {"processed_by": 1}),
        plain("ttl_1", doc! {"ttl": 1}),
        plain("topic_1", doc! {"topic": 1}),
        plain("timestamp_1", doc! {"timestamp": 1}),
        IndexDefinition::expiry(),
    ]
}

/// The indexes of every lock collection.
pub fn lock_indexes() -> Vec<IndexDefinition> {
    vec![IndexDefinition::expiry(), IndexDefinition::plain("lock_id_1", doc! {"lock_id": 1})]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_keys_but_keep_the_java_spelling_of_the_id() {
        for index in message_indexes().iter().chain(&lock_indexes()) {
            let derived: Vec<_> = index
                .keys
                .keys()
                .map(|key| format!("{}_1", if key == "_id" { "msgId" } else { key }))
                .collect();
            assert_eq!(index.name, derived.join("_"));
        }
        assert_eq!(message_indexes().len(), 9);
    }

    #[test]
    fn an_index_under_another_name_may_serve() {
        let expiry = IndexDefinition::expiry();
        let check = |existing: Document, expected| assert_eq!(expiry.is_served_by(&existing), expected);
        check(doc! {"key": {"delete_at": 1.0}, "name": "ttl", "expireAfterSeconds": 0_i64}, true);
        check(doc! {"key": {"delete_at": 1}, "name": "delete_at_1"}, false);
        check(doc! {"key": {"delete_at": -1}, "expireAfterSeconds": 0}, false);
        check(doc! {"key": {"delete_at": 1}, "expireAfterSeconds": 0, "sparse": true}, false);
        check(doc! {"key": {"delete_at": 1, "ttl": 1}, "expireAfterSeconds": 0}, false);
        check(doc! {"name": "odd"}, false);
    }

    #[test]
    fn only_delete_at_expires() {
        for index in message_indexes().iter().chain(&lock_indexes()) {
            assert_eq!(index.expire_after_seconds, (index.name == "delete_at_1").then_some(0));
        }
        let expected = doc! {"key": {"delete_at": 1}, "name": "delete_at_1", "expireAfterSeconds": 0_i64};
        assert_eq!(IndexDefinition::expiry().to_document(), expected);
    }
}
