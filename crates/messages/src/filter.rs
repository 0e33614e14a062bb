//! Queries and updates on message, lock and participant collections, as plain documents.

use crate::id::MessageId;
use bson::{Bson, DateTime, Document, doc};

/// What one poll looks for. Lists are bounded by the caller; they become `$in`/`$nin` lists.
#[derive(Clone, Debug, Default)]
pub struct Poll<'a> {
    /// Own sender id.
    pub me: &'a str,
    /// Topics with a listener.
    pub topics: &'a [String],
    /// Paused topics.
    pub paused: &'a [String],
    /// Ids not to return: queued, in progress, or waiting for their next try.
    pub skip: &'a [MessageId],
    /// Requests of ours that wait for answers.
    pub awaited: &'a [MessageId],
}

impl Poll<'_> {
    /// The filter for a collection shared by all nodes (Standard, and the main lane of DualChannel).
    ///
    /// Answers are taken only when somebody waits for them or listens to their topic; otherwise unclaimed answers
    /// would fill the window until they expire. An empty recipient list is read as a broadcast. Awaited answers
    /// are found even on a paused topic.
    pub fn shared(&self) -> Document {
        let wanted = bson::bson!({ "$in": self.topics });
        let relevant = doc! { "$or": [ { "topic": wanted.clone() }, { "name": wanted } ] };
        let mut listened = vec![relevant];
        if !self.paused.is_empty() {
            listened.push(doc! { "topic": { "$nin": self.paused }, "name": { "$nin": self.paused } });
        }
        let awaited: Vec<Bson> = self.awaited.iter().map(MessageId::to_bson).collect();
        let mut clauses = vec![
            doc! { "sender": { "$ne": self.me } },
            doc! { "recipients": { "$in": [Bson::Null, Bson::from(self.me), Bson::Array(vec![])] } },
            doc! { "$or": [ { "$and": listened }, { "in_answer_to": { "$in": awaited } } ] },
            doc! { "$or": [
                { "exclusive": true, "processed_by.0": { "$exists": false } },
                { "exclusive": { "$ne": true }, "processed_by": { "$ne": self.me } },
            ] },
        ];
        if !self.skip.is_empty() {
            let skip: Vec<Bson> = self.skip.iter().map(MessageId::to_bson).collect();
            clauses.insert(0, doc! { "_id": { "$nin": skip } });
        }
        doc! { "$and": clauses }
    }
}

/// The order messages are delivered in: priority, then age.
pub fn poll_sort() -> Document {
    doc! { "priority": 1, "timestamp": 1 }
}

/// What a poll reads of each message: enough to queue it.
pub fn poll_projection() -> Document {
    doc! { "_id": 1, "priority": 1, "timestamp": 1, "in_answer_to": 1, "exclusive": 1 }
}

/// One document by id.
pub fn by_id(id: &MessageId) -> Document {
    doc! { "_id": id.to_bson() }
}

/// A message that nobody marked. As the filter of a mark it makes claiming one atomic step.
pub fn unmarked(id: &MessageId) -> Document {
    doc! { "_id": id.to_bson(), "processed_by.0": { "$exists": false } }
}

/// Marks a message: `node` is done with it.
pub fn mark(node: &str) -> Document {
    doc! { "$addToSet": { "processed_by": node } }
}

/// Takes a mark back. When it was the only one, this wakes every node (see [`crate::pipeline`]).
pub fn unmark(node: &str) -> Document {
    doc! { "$pull": { "processed_by": node } }
}

/// Messages whose mark list is null, where [`mark`] fails; the guard makes the repair safe against races.
pub fn null_marks(id: &MessageId) -> Document {
    doc! { "_id": id.to_bson(), "processed_by": null }
}

/// Replaces a null mark list by one that holds `node`. Only with the filter [`null_marks`].
pub fn repair_marks(node: &str) -> Document {
    doc! { "$set": { "processed_by": [node] } }
}

/// Moves the removal of a message to `at_ms`.
pub fn expire_at(at_ms: i64) -> Document {
    doc! { "$set": { "delete_at": DateTime::from_millis(at_ms) } }
}

/// The lock on `id`, if `owner` holds it.
pub fn own_lock(id: &MessageId, owner: &str) -> Document {
    doc! { "_id": id.to_bson(), "lock_id": owner }
}

/// Those of `locks` that `owner` holds.
pub fn own_locks(locks: &[MessageId], owner: &str) -> Document {
    doc! { "_id": any_of(locks), "lock_id": owner }
}

/// Makes a lock stay until `at_ms` although its message, sent at `timestamp`, is processed and removed.
pub fn keep_lock(timestamp: i64, at_ms: i64) -> Document {
    doc! { "$set": { "processed": timestamp, "delete_at": DateTime::from_millis(at_ms) } }
}

/// Those of `ids` that nobody marked.
pub fn unmarked_of(ids: &[MessageId]) -> Document {
    doc! { "_id": any_of(ids), "processed_by.0": { "$exists": false } }
}

/// An unmarked message, if it is the one that was sent at `timestamp`.
pub fn unmarked_since(id: &MessageId, timestamp: i64) -> Document {
    doc! { "_id": id.to_bson(), "processed_by.0": { "$exists": false }, "timestamp": timestamp }
}

/// Those of `ids` that `node` marked.
pub fn marked_of(ids: &[MessageId], node: &str) -> Document {
    doc! { "_id": any_of(ids), "processed_by": node }
}

fn any_of(ids: &[MessageId]) -> Document {
    doc! { "$in": ids.iter().map(MessageId::to_bson).collect::<Vec<_>>() }
}

/// Messages that nobody marked yet and `me` did not send: the backlog.
pub fn pending(me: &str) -> Document {
    doc! { "sender": { "$ne": me }, "processed_by.0": { "$exists": false } }
}

/// What `node` still needs in its own collection: messages that it has not marked, and exclusive ones that stay for a
/// while after they were processed.
pub fn needed(node: &str) -> Document {
    doc! { "$or": [
        { "processed_by": { "$ne": node } },
        { "exclusive": true, "delete_after_processing": true },
    ] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_poll_filter_is_golden() {
        let (awaited, busy) = (MessageId::generate(), MessageId::generate());
        let topics = ["a".to_owned(), "b".to_owned()];
        let poll = Poll {
            me: "n1",
            topics: &topics,
            paused: &["b".to_owned()],
            skip: std::slice::from_ref(&busy),
            awaited: std::slice::from_ref(&awaited),
        };
        let expected = doc! { "$and": [
            { "_id": { "$nin": [busy.to_bson()] } },
            { "sender": { "$ne": "n1" } },
            { "recipients": { "$in": [null, "n1", []] } },
            { "$or": [
                { "$and": [
                    { "$or": [ { "topic": { "$in": ["a", "b"] } }, { "name": { "$in": ["a", "b"] } } ] },
                    { "topic": { "$nin": ["b"] }, "name": { "$nin": ["b"] } },
                ] },
                { "in_answer_to": { "$in": [awaited.to_bson()] } },
            ] },
            { "$or": [
                { "exclusive": true, "processed_by.0": { "$exists": false } },
                { "exclusive": { "$ne": true }, "processed_by": { "$ne": "n1" } },
            ] },
        ] };
        assert_eq!(poll.shared(), expected);
    }

    #[test]
    fn without_pause_and_skip_no_empty_clause_remains() {
        let filter = Poll { me: "n1", ..Poll::default() }.shared();
        assert_eq!(filter.get_array("$and").unwrap().len(), 4);
        assert!(!filter.to_string().contains("$nin"));
    }

    #[test]
    fn marks_use_add_to_set_only() {
        let id = MessageId::generate();
        assert_eq!(mark("n1"), doc! {"$addToSet": {"processed_by": "n1"}});
        assert_eq!(unmark("n1"), doc! {"$pull": {"processed_by": "n1"}});
        assert_eq!(null_marks(&id).get("processed_by"), Some(&Bson::Null));
        assert_eq!(repair_marks("n1"), doc! {"$set": {"processed_by": ["n1"]}});
        assert_eq!(own_lock(&id, "n1").get_str("lock_id").unwrap(), "n1");
    }
}
