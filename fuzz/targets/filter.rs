//! A filter, a sort and a projection with a document: an error or an answer.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use rockdove_documents::filter::{Filter, FilterOptions};
use rockdove_documents::path::Path;
use rockdove_documents::projection::{Projection, ProjectionOptions};
use rockdove_documents::sort::Sort;
use rockdove_documents::{Doc, DocBuilder, Scanned, Value};
use rockdove_fuzz::{PLAIN, Words, document};

const WORDS: Words = Words {
    outer: &[],
    operators: &[
        "$eq",
        "$ne",
        "$gt",
        "$gte",
        "$lt",
        "$lte",
        "$in",
        "$nin",
        "$and",
        "$or",
        "$nor",
        "$not",
        "$exists",
        "$type",
        "$regex",
        "$options",
        "$mod",
        "$size",
        "$all",
        "$elemMatch",
        "$expr",
        "$jsonSchema",
        "$bitsAllSet",
        "$bitsAnyClear",
        "$comment",
        "$slice",
        "$meta",
        "$alwaysTrue",
        "$add",
        "$cond",
        "properties",
        "required",
        "bsonType",
        "minimum",
    ],
    strings: &["", "a", "string", "number", "object", "array", "^a", "i", "int"],
};

/// Whether a document has a value at a path, as [`rockdove_documents::filter::Alternatives`] mean it: what says so is
/// a filter of this one equality.
fn has(doc: &Doc, path: &Path, value: Value<'_>) -> bool {
    let mut equal = DocBuilder::new();
    equal.start_document(path.as_str()).append("$eq", value).end();
    let filter = Filter::parse(equal.finish().raw(), &FilterOptions::default()).expect("an equality");
    filter.matches(doc.raw()) == Ok(true)
}

fn run(data: &[u8]) -> arbitrary::Result<()> {
    let mut input = Unstructured::new(data);
    let doc = document(&mut input, PLAIN)?;
    let query = document(&mut input, WORDS)?;
    if let Ok(filter) = Filter::parse(query.raw(), &FilterOptions::default()) {
        let plain = filter.matches(doc.raw());
        let mut position = None;
        let positional = filter.matches_positional(doc.raw(), &mut position);
        assert_eq!(plain.clone().ok(), positional.ok());
        let scanned = Scanned::new(&doc);
        assert_eq!(filter.matches_scanned(&scanned).ok(), plain.clone().ok(), "{query:?} {doc:?}");
        if plain == Ok(true) {
            for list in filter.needs() {
                assert!(
                    list.iter().any(|(path, value)| has(&doc, path, *value)),
                    "{query:?} {list:?} {doc:?}"
                );
            }
        }
    }
    let projection = document(&mut input, WORDS)?;
    if let Ok(projection) = Projection::parse(projection.raw(), &ProjectionOptions::default()) {
        let _ = projection.apply(&doc, None);
    }
    let sort = document(&mut input, WORDS)?;
    if let Ok(sort) = Sort::parse(sort.raw(), None) {
        let _ = sort.key(doc.raw());
    }
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let _ = run(data); // too few bytes for a document
});
