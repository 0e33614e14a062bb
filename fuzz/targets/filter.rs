//! A filter, a sort and a projection with a document: an error or an answer.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use rockdove_documents::filter::{Filter, FilterOptions};
use rockdove_documents::projection::{Projection, ProjectionOptions};
use rockdove_documents::sort::Sort;
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

fn run(data: &[u8]) -> arbitrary::Result<()> {
    let mut input = Unstructured::new(data);
    let doc = document(&mut input, PLAIN)?;
    let query = document(&mut input, WORDS)?;
    if let Ok(filter) = Filter::parse(query.raw(), &FilterOptions::default()) {
        let plain = filter.matches(doc.raw());
        let mut position = None;
        let positional = filter.matches_positional(doc.raw(), &mut position);
        assert_eq!(plain.ok(), positional.ok());
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
