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
    vec![
        doc! { "$match": { "operationType": { "$in": ["insert", "lock_released", "update"] } } },
        doc! { "$match": { "$or": [ { "operationType": "lock_released" }, requeue(), arrival(me, topics) ] } },
    ]
}

/// The stages of one database-wide stream over the collections of many topics: as in [`shared`] for the message
/// collections `messages`, and the releases of the lock collections `locks`.
pub fn topics(me: &str, topics: &[String], messages: &[String], locks: &[String]) -> Vec<Document> {
    let of_messages = doc! {
        "ns.coll": { "$in": messages },
        "$or": [ { "operationType": "lock_released" }, requeue(), arrival(me, topics) ],
    };
    let of_locks = doc! { "ns.coll": { "$in": locks }, "operationType": "delete" };
    let all: Vec<&String> = messages.iter().chain(locks).collect();
    let kinds = ["insert", "lock_released", "update", "delete"];
    vec![
        doc! { "$match": { "ns.coll": { "$in": all }, "operationType": { "$in": &kinds[..] } } },
        doc! { "$match": { "$or": [ of_messages, of_locks ] } },
    ]
}

/// A new message of another node, for everybody and relevant, or for `me`.
fn arrival(me: &str, topics: &[String]) -> Document {
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
    doc! {
        "operationType": "insert",
        "fullDocument.sender": { "$ne": me },
        "$or": [ broadcast, { "fullDocument.recipients": me } ],
    }
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

    #[test]
    fn a_stream_over_many_topics_knows_messages_from_locks() {
        let stages = topics("n1", &["a".to_owned()], &["q_a".to_owned()], &["q_lck_a".to_owned()]);
        let first = stages[0].get_document("$match").unwrap();
        assert_eq!(first.get_document("ns.coll").unwrap(), &doc! {"$in": ["q_a", "q_lck_a"]});
        let rules = stages[1].get_document("$match").unwrap().get_array("$or").unwrap();
        let part = |place: usize| rules[place].as_document().unwrap();
        assert_eq!(part(1), &doc! {"ns.coll": {"$in": ["q_lck_a"]}, "operationType": "delete"});
        assert_eq!(part(0).get_document("ns.coll").unwrap(), &doc! {"$in": ["q_a"]});
        let arrivals = &shared("n1", &["a".to_owned()])[1];
        assert_eq!(part(0).get("$or"), arrivals.get_document("$match").unwrap().get("$or"));
    }
}
