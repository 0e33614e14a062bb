//! The document that the benchmarks store: a message of about 500 bytes with the bus's index set.

use rockdove_documents::{Doc, DocBuilder, ObjectId, doc};
use rockdove_engine::{Ack, Statement, Write};

/// The indexes of a message collection in Morphium's Standard layout.
pub fn indexes() -> Vec<Doc> {
    vec![
        doc! { "key": { "sender": 1, "processed_by": 1, "in_answer_to": 1 }, "name": "sender_1_processed_by_1_in_answer_to_1" },
        doc! {
            "key": { "_id": 1, "sender": 1, "processed_by": 1, "topic": 1, "priority": 1, "timestamp": 1 },
            "name": "msgId_1_sender_1_processed_by_1_topic_1_priority_1_timestamp_1"
        },
        doc! { "key": { "_id": 1, "processed_by": 1, "topic": 1 }, "name": "msgId_1_processed_by_1_topic_1" },
        doc! { "key": { "processed_by": 1, "priority": 1, "timestamp": 1 }, "name": "processed_by_1_priority_1_timestamp_1" },
        doc! { "key": { "processed_by": 1 }, "name": "processed_by_1" },
        doc! { "key": { "ttl": 1 }, "name": "ttl_1" },
        doc! { "key": { "topic": 1 }, "name": "topic_1" },
        doc! { "key": { "timestamp": 1 }, "name": "timestamp_1" },
        doc! { "key": { "delete_at": 1 }, "name": "delete_at_1", "expireAfterSeconds": 0 },
    ]
}

/// A write without anything special, acknowledged by the log.
pub fn write(statements: Vec<Statement>) -> Write {
    Write {
        statements,
        ordered: true,
        retry: None,
        ack: Ack::WRITTEN,
        bypass_validation: false,
        interrupt: None,
    }
}

/// Message number `n`.
pub fn message(n: u64) -> Doc {
    let now = 1_800_000_000_000_i64 + n as i64;
    let mut out = DocBuilder::with_capacity(520);
    out.append("_id", ObjectId::from_parts((now / 1000) as u32, n));
    out.append("class_name", "de.caluga.morphium.messaging.Msg");
    out.append("topic", "orders.created").append("name", "orders.created");
    out.append("msg", "created").append("value", "x".repeat(96));
    out.start_document("map_value").append("total", 12.5).append("pos", 3).append("ref", 99i64).end();
    out.append("additional", None::<i32>).append("sender", "billing-1").append("sender_host", "host-a");
    out.append("recipients", None::<i32>)
        .append("in_answer_to", None::<i32>)
        .start_array("processed_by")
        .end();
    out.append("timestamp", now).append("ttl", 30_000i64).append_date("delete_at", now + 30_000);
    out.append("timing_out", true).append("delete_after_processing", false);
    out.append("delete_after_processing_time", 0).append("priority", 1000).append("exclusive", false);
    out.finish()
}
