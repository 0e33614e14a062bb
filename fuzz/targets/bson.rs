//! Any bytes as a document: refused, or everything that reads it gets along with it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rockdove_documents::{Doc, RawDoc, Value, compare, diff, show};

fn walk(doc: RawDoc<'_>) {
    for element in doc.iter() {
        let _ = element.key();
        if let Value::Document(inner) | Value::Array(inner) = element.value() {
            walk(inner);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(doc) = Doc::new(data.to_vec().into()) else { return };
    walk(doc.raw());
    let _ = show(Value::Document(doc.raw()));
    assert_eq!(
        compare::compare(Value::Document(doc.raw()), Value::Document(doc.raw())),
        std::cmp::Ordering::Equal
    );
    assert!(diff::diff(doc.raw(), doc.raw()).is_none_or(|changes| changes.is_empty()));
    let copy: Doc = {
        let mut out = rockdove_documents::DocBuilder::new();
        doc.raw().iter().for_each(|element| {
            out.append_element(element);
        });
        out.finish()
    };
    assert_eq!(copy.bytes(), doc.bytes());
});
