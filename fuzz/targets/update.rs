//! An update of a document: an error, or a well-formed document, and the description says what changed.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use rockdove_documents::diff::UpdateDescription;
use rockdove_documents::update::{Update, UpdateOptions};
use rockdove_documents::{ToValue, Value, check, diff};
use rockdove_fuzz::{PLAIN, Words, array, document};

const WORDS: Words = Words {
    outer: &[
        "$set",
        "$unset",
        "$inc",
        "$mul",
        "$min",
        "$max",
        "$rename",
        "$setOnInsert",
        "$currentDate",
        "$addToSet",
        "$pop",
        "$pull",
        "$push",
        "$pullAll",
        "$bit",
        "$replaceWith",
        "$project",
    ],
    operators: &[
        "$each",
        "$position",
        "$slice",
        "$sort",
        "$and",
        "$or",
        "$xor",
        "$type",
        "$gt",
        "$in",
        "a.$",
        "a.$[]",
        "a.$[x]",
        "a.$[x].b",
        "$elemMatch",
        "$add",
        "$concat",
        "$literal",
    ],
    strings: &["", "a", "b", "date", "timestamp", "c.d"],
};

fn run(data: &[u8]) -> arbitrary::Result<()> {
    let mut input = Unstructured::new(data);
    let old = document(&mut input, PLAIN)?;
    let single = document(&mut input, WORDS)?;
    let stages = array(&mut input, WORDS)?;
    let filters = array(&mut input, Words { outer: &["x", "x.b", "y"], ..WORDS })?;
    let update = match stages.get("a") {
        Some(Value::Array(stages)) if !stages.is_empty() => Value::Array(stages),
        _ => single.to_value(),
    };
    let filters = filters.get("a").and_then(|filters| filters.as_array());
    let Ok(update) = Update::parse(update, filters, &UpdateOptions::default()) else { return Ok(()) };
    for is_insert in [false, true] {
        if let Ok(applied) = update.apply(old.raw(), Some(0), is_insert) {
            let sound = check(applied.doc.bytes());
            assert!(sound.is_ok(), "{sound:?}: {old:?} by {single:?} or {stages:?}");
            if let Some(changes) = &applied.description {
                let read = UpdateDescription::from_doc(changes.to_doc().raw()).expect("as the log has it");
                let again = diff::apply(old.raw(), &read).expect("a description can be carried out");
                assert_eq!(again, applied.doc, "{old:?} {changes:?}");
            }
        }
    }
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let _ = run(data); // too few bytes for a document
});
