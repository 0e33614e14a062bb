//! A document from a queue, whoever wrote it: a message or an error for that one document.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use rockdove_fuzz::{Words, document};
use rockdove_messages::{Head, Lock, Message, Participant};

const WORDS: Words = Words {
    outer: &[
        "_id",
        "msgId",
        "class_name",
        "topic",
        "name",
        "msg",
        "value",
        "map_value",
        "additional",
        "sender",
        "sender_host",
        "recipients",
        "recipient",
        "in_answer_to",
        "processed_by",
        "timestamp",
        "ttl",
        "delete_at",
        "timing_out",
        "delete_after_processing",
        "delete_after_processing_time",
        "priority",
        "exclusive",
        "locked_by",
        "lock_id",
        "version",
        "host",
        "implementation",
    ],
    operators: &["class_name", "__value", "$date"],
    strings: &["", "a", "ALL", "de.caluga.morphium.messaging.Msg", "self"],
};

fn run(data: &[u8]) -> arbitrary::Result<()> {
    let doc = document(&mut Unstructured::new(data), WORDS)?;
    let Ok(read) = bson::Document::from_reader(&doc.bytes()[..]) else { return Ok(()) };
    let _ = Head::from_document(read.clone());
    let _ = Lock::from_document(&read);
    let _ = Participant::from_document(&read);
    if let Ok(message) = Message::from_document(read) {
        let again = Message::from_document(message.to_document()).expect("what is written can be read");
        // As text: two NaN are not equal.
        assert_eq!(format!("{:?}", again.to_document()), format!("{:?}", message.to_document()));
    }
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let _ = run(data); // too few bytes for a document
});
