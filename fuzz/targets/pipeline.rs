//! An aggregation over a few documents: an error, or well-formed documents.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use rockdove_documents::expr::Variables;
use rockdove_documents::pipeline::{Environment, Options, Pipeline};
use rockdove_documents::{Doc, Timestamp, Value, check};
use rockdove_fuzz::{PLAIN, Words, array, document};
use std::sync::Arc;

const WORDS: Words = Words {
    outer: &[
        "$match",
        "$project",
        "$set",
        "$addFields",
        "$unset",
        "$sort",
        "$skip",
        "$limit",
        "$count",
        "$group",
        "$unwind",
        "$replaceRoot",
        "$replaceWith",
        "$facet",
        "$sample",
        "$sortByCount",
        "$bucket",
        "$bucketAuto",
        "$redact",
        "$densify",
        "$fill",
        "$setWindowFields",
        "$unionWith",
        "$lookup",
    ],
    operators: &[
        "_id",
        "path",
        "newRoot",
        "input",
        "in",
        "as",
        "cond",
        "vars",
        "if",
        "then",
        "else",
        "branches",
        "default",
        "includeArrayIndex",
        "preserveNullAndEmptyArrays",
        "groupBy",
        "boundaries",
        "output",
        "buckets",
        "size",
        "date",
        "format",
        "timezone",
        "unit",
        "amount",
        "chars",
        "find",
        "replacement",
        "regex",
        "onNull",
        "to",
        "$sum",
        "$avg",
        "$min",
        "$max",
        "$push",
        "$first",
        "$last",
        "$addToSet",
        "$stdDevPop",
        "$mergeObjects",
        "$add",
        "$subtract",
        "$multiply",
        "$divide",
        "$mod",
        "$pow",
        "$round",
        "$cond",
        "$ifNull",
        "$switch",
        "$map",
        "$filter",
        "$reduce",
        "$let",
        "$concat",
        "$substrCP",
        "$substrBytes",
        "$split",
        "$trim",
        "$toUpper",
        "$indexOfCP",
        "$strLenCP",
        "$replaceAll",
        "$regexMatch",
        "$arrayElemAt",
        "$concatArrays",
        "$range",
        "$slice",
        "$zip",
        "$sortArray",
        "$objectToArray",
        "$arrayToObject",
        "$getField",
        "$setField",
        "$dateToString",
        "$dateFromString",
        "$dateAdd",
        "$dateTrunc",
        "$dateDiff",
        "$convert",
        "$toInt",
        "$toString",
        "$type",
        "$setUnion",
        "$eq",
        "$cmp",
        "$and",
        "$not",
        "$in",
        "$literal",
    ],
    strings: &[
        "",
        "a",
        "b",
        "$a",
        "$$ROOT",
        "%Y-%m-%d",
        "day",
        "2020-01-01",
        "int",
        "string",
        "Europe/Vienna",
    ],
};

fn run(data: &[u8]) -> arbitrary::Result<()> {
    let mut input = Unstructured::new(data);
    let mut docs: Vec<Doc> = Vec::new();
    for _ in 0..input.int_in_range(0..=3)? {
        docs.push(document(&mut input, PLAIN)?);
    }
    let stages = array(&mut input, WORDS)?;
    let Some(Value::Array(stages)) = stages.get("a") else { return Ok(()) };
    let Ok(pipeline) = Pipeline::parse(stages, &Options::default()) else { return Ok(()) };
    let environment =
        Environment::new(1_000, Timestamp { time: 1, increment: 1 }, Variables::default().values())
            .with_memory_max(1 << 20);
    let Ok(results) = pipeline.run(Box::new(docs.into_iter().map(Ok)), &Arc::new(environment)) else {
        return Ok(());
    };
    for result in results.take(1_000) {
        match result {
            Ok(doc) => check(doc.bytes()).expect("a pipeline makes well-formed documents"),
            Err(_) => break,
        }
    }
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let _ = run(data); // too few bytes for a document
});
