//! Messages against golden documents, and properties that hold for any message.

use bson::{Bson, DateTime, Document, doc, oid::ObjectId};
use proptest::prelude::*;
use rockdove_messages::{Message, MessageId, Sending, prepare};
use std::time::Duration;

const SENT_AT: i64 = 1_760_000_000_000;

fn golden_broadcast() -> Document {
    doc! {
        "_id": ObjectId::parse_str("68e7780000a1b2c3d4000001").unwrap(),
        "class_name": "de.caluga.morphium.messaging.Msg",
        "topic": "orders.created", "name": "orders.created", "msg": "created", "value": "4711",
        "map_value": { "total": 12.5, "pos": 3_i32, "ref": 99_i64 }, "additional": null,
        "sender": "billing-1", "sender_host": "host-a", "recipients": null, "in_answer_to": null, "processed_by": [],
        "timestamp": SENT_AT, "ttl": 30_000_i64, "delete_at": DateTime::from_millis(SENT_AT + 30_000),
        "timing_out": true, "delete_after_processing": false, "delete_after_processing_time": 0_i32,
        "priority": 1000_i32, "exclusive": false,
    }
}

fn sending(sender: &str, now_ms: i64) -> Sending<'_> {
    Sending { sender, host: "host-a", now_ms, default_ttl_ms: 30_000 }
}

#[test]
fn a_fresh_broadcast_is_golden() {
    let id = ObjectId::parse_str("68e7780000a1b2c3d4000001").unwrap();
    let message = Message::new("orders.created")
        .msg("created")
        .value("4711")
        .map_value(doc! {"total": 12.5, "pos": 3_i32, "ref": 99_i64})
        .with_id(id.into());
    let sent = prepare(message, &sending("billing-1", SENT_AT)).unwrap();
    assert_eq!(sent.to_document(), golden_broadcast());
    assert_eq!(Message::from_document(golden_broadcast()).unwrap(), sent);
}

#[test]
fn its_answer_is_golden() {
    let request = Message::from_document(golden_broadcast()).unwrap();
    let answer = prepare(request.derive_answer(), &sending("stock-7", SENT_AT + 40)).unwrap();
    let id = answer.id.clone().unwrap();
    let mut expected = golden_broadcast();
    expected.extend(doc! {
        "_id": id.to_bson(), "in_answer_to": request.id.unwrap().to_bson(), "recipients": ["billing-1"],
        "sender": "stock-7", "priority": 990_i32, "map_value": null, "timestamp": SENT_AT + 40,
        "delete_at": DateTime::from_millis(SENT_AT + 30_040),
    });
    assert_eq!(answer.to_document(), expected);
}

#[test]
fn a_message_that_must_survive_is_golden() {
    let message = Message::new("t").exclusive(true).never_expires().delete_after_processing(Duration::ZERO);
    let document = prepare(message, &sending("a", SENT_AT)).unwrap().to_document();
    let expected = [
        ("exclusive", Bson::from(true)),
        ("timing_out", Bson::from(false)),
        ("ttl", Bson::from(0_i64)),
        ("delete_at", Bson::Null),
        ("delete_after_processing", Bson::from(true)),
    ];
    for (field, value) in expected {
        assert_eq!(document.get(field), Some(&value), "{field}");
    }
    assert_eq!(document.len(), 21);
}

fn any_bson() -> impl Strategy<Value = Bson> {
    let leaf = prop_oneof![
        Just(Bson::Null),
        any::<bool>().prop_map(Bson::from),
        any::<i32>().prop_map(Bson::from),
        any::<i64>().prop_map(Bson::from),
        (-1e9..1e9f64).prop_map(Bson::from),
        ".{0,8}".prop_map(Bson::from),
        any::<i64>().prop_map(|ms| Bson::DateTime(DateTime::from_millis(ms))),
        any::<[u8; 12]>().prop_map(|bytes| Bson::ObjectId(ObjectId::from_bytes(bytes))),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Bson::from),
            prop::collection::vec(("[a-z.]{1,6}", inner), 0..4)
                .prop_map(|entries| Bson::Document(entries.into_iter().collect())),
        ]
    })
}

prop_compose! {
    fn any_message()(
        topic in "[a-z.]{1,12}",
        texts in prop::collection::vec(prop::option::of(".{0,12}"), 3),
        payload in prop::option::of(prop::collection::vec(("[a-z.]{1,6}", any_bson()), 0..4)),
        list in prop::option::of(prop::collection::vec(any_bson(), 0..4)),
        names in prop::collection::vec(prop::collection::vec("[a-z0-9-]{1,8}", 0..3), 2),
        ids in (any::<[u8; 12]>(), prop::option::of(any::<[u8; 12]>())),
        numbers in (any::<i64>(), 0..i64::MAX, prop::option::of(any::<i64>()), any::<i32>(), any::<i32>()),
        flags in any::<[bool; 3]>(),
    ) -> Message {
        let mut message = Message::new(topic);
        message.id = Some(ObjectId::from_bytes(ids.0).into());
        message.in_answer_to = ids.1.map(|id| MessageId::Object(ObjectId::from_bytes(id)));
        [message.msg, message.value, message.sender_host] = texts.try_into().unwrap();
        message.map_value = payload.map(|entries| entries.into_iter().collect());
        message.additional = list;
        [message.recipients, message.processed_by] = names.try_into().unwrap();
        (message.timestamp, message.ttl, message.delete_at, message.priority, _) = numbers;
        message.delete_after_processing_time = numbers.4;
        [message.timing_out, message.delete_after_processing, message.exclusive] = flags;
        message
    }
}

/// Documents that look a little like messages: known field names with any value.
fn any_document() -> impl Strategy<Value = Document> {
    let fields: Vec<String> = golden_broadcast().keys().cloned().collect();
    prop::collection::vec((prop::sample::select(fields), any_bson()), 0..22)
        .prop_map(|entries| entries.into_iter().collect())
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(message in any_message()) {
        let document = message.to_document();
        prop_assert_eq!(document.len(), 21);
        prop_assert_eq!(document.get("name"), document.get("topic"));
        prop_assert_eq!(Message::from_document(document).unwrap(), message);
    }

    #[test]
    fn any_document_is_read_or_refused_and_reading_is_stable(document in any_document()) {
        if let Ok(message) = Message::from_document(document) {
            prop_assert_eq!(Message::from_document(message.to_document()).unwrap(), message);
        }
    }

    #[test]
    fn prepared_messages_have_what_java_needs(message in any_message(), now in 0..i64::MAX / 2) {
        let sent = prepare(message, &sending("n1", now)).unwrap();
        prop_assert_eq!(sent.timing_out, sent.delete_at.is_some());
        prop_assert_eq!(sent.timing_out, sent.ttl > 0);
        prop_assert_eq!(sent.timestamp, now);
    }
}
