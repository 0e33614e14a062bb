//! Change stream stages: which events a node asks the server for.
//!
//! Besides inserts every message stream lets through the *requeue signature*: an update that left `processed_by`
//! empty. A normal mark shows as `processed_by.0` and is filtered out. `lock_released` exists on servers that push
//! it; elsewhere it is harmless.

use bson::{Document, doc};

/// The stages after `$changeStream` for a collection shared by all nodes: inserts of others that are for everybody
/// and relevant (a listened topic, under either field name, or an answer) or for `me`; requeues; lock releases.
///
/// An empty recipient list is read as a broadcast.
pub fn shared(me: &str, topics: &[String]) -> Vec<Document> {
    let broadcast = doc! {
        "$and": [
            { "$or": [ { "fullDocument.recipients": null }, { "fullDocument.recipients": { "$size": 0 } } ] },
            { "$or": [
                { "fullDocument.topic": { "$in": topics } },
                { "fullDocument.name": { "$in": topics } },
                { "fullDocument.in_answer_to": { "$ne": null } },
            ] },
        ],
    };
    vec![
        doc! { "$match": { "operationType": { "$in": ["insert", "lock_released", "update"] } } },
        doc! { "$match": { "$or": [
            { "operationType": "lock_released" },
            requeue(),
            {
                "operationType": "insert",
                "fullDocument.sender": { "$ne": me },
                "$or": [ broadcast, { "fullDocument.recipients": me } ],
            },
        ] } },
    ]
}

/// The stages for the own collection of directed messages: everything inserted, and requeues.
pub fn directed() -> Vec<Document> {
    vec![doc! { "$match": { "$or": [ { "operationType": "insert" }, requeue() ] } }]
}

/// The stages for a lock collection: releases.
pub fn locks() -> Vec<Document> {
    vec![doc! { "$match": { "operationType": "delete" } }]
}

fn requeue() -> Document {
    doc! { "operationType": "update", "updateDescription.updatedFields.processed_by": { "$size": 0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_pipeline_is_golden() {
        let topics = ["a".to_owned(), "b".to_owned()];
        let stages = shared("n1", &topics);
        let kinds = doc! {"$match": {"operationType": {"$in": ["insert", "lock_released", "update"]}}};
        assert_eq!(stages[0], kinds);
        let expected = doc! { "$match": { "$or": [
            { "operationType": "lock_released" },
            { "operationType": "update", "updateDescription.updatedFields.processed_by": { "$size": 0 } },
            { "operationType": "insert", "fullDocument.sender": { "$ne": "n1" }, "$or": [
                { "$and": [
                    { "$or": [ { "fullDocument.recipients": null }, { "fullDocument.recipients": { "$size": 0 } } ] },
                    { "$or": [
                        { "fullDocument.topic": { "$in": ["a", "b"] } },
                        { "fullDocument.name": { "$in": ["a", "b"] } },
                        { "fullDocument.in_answer_to": { "$ne": null } },
                    ] },
                ] },
                { "fullDocument.recipients": "n1" },
            ] },
        ] } };
        assert_eq!(stages[1], expected);
        assert_eq!(stages.len(), 2);
    }

    #[test]
    fn locks_report_deletes_only() {
        assert_eq!(locks(), [doc! {"$match": {"operationType": "delete"}}]);
        assert_eq!(directed().len(), 1);
    }
}
