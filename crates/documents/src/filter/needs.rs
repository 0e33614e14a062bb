//! What a document must have to match, as far as equalities tell: how filters that cannot match are found without
//! asking them.

use super::{Filter, Node, Op, Test};
use crate::path::Path;
use crate::value::{Kind, Value};

/// Longest list of alternatives that is told.
const ALTERNATIVES_MAX: usize = 256;

/// Equalities one of which every matching document has: a value at the path, or an array there with it, is
/// equal; null stands for undefined and missing too.
pub type Alternatives<'f> = Vec<(&'f Path, Value<'f>)>;

/// Lists of alternatives; a document that matches has one equality of each.
pub(super) fn needs(filter: &Filter) -> Vec<Alternatives<'_>> {
    let mut lists = Vec::new();
    // A collation makes other values equal.
    if filter.collation.is_none() {
        collect(&filter.root, &mut lists);
    }
    lists
}

fn collect<'f>(node: &'f Node, lists: &mut Vec<Alternatives<'f>>) {
    match node {
        Node::And(nodes) => nodes.iter().for_each(|node| collect(node, lists)),
        Node::Or(nodes) => lists.extend(any_of(nodes)),
        Node::Field { path, test: Test::Compare { op: Op::Eq, value } } => {
            lists.push(vec![(path, value.value())]);
        }
        Node::Field { path, test: Test::In(list) }
            if list.patterns.is_empty() && list.values.len() <= ALTERNATIVES_MAX =>
        {
            lists.push(list.values.iter().map(|value| (path, value.value())).collect());
        }
        _ => {}
    }
}

/// One list of each branch, put together; none if a branch tells nothing.
fn any_of(nodes: &[Node]) -> Option<Alternatives<'_>> {
    let mut all = Vec::new();
    for node in nodes {
        let mut lists = Vec::new();
        collect(node, &mut lists);
        // Most documents lack something: null says little.
        let tells =
            |list: &Alternatives<'_>| (list.iter().any(|(_, value)| value.kind() == Kind::Null), list.len());
        all.extend(lists.into_iter().min_by_key(tells)?);
    }
    (all.len() <= ALTERNATIVES_MAX).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::Alternatives;
    use crate::arbitrary::{document, value};
    use crate::compare::compare;
    use crate::filter::{Filter, FilterOptions};
    use crate::path::{Found, Leaves};
    use crate::{Doc, Owned, RawDoc, Value, doc};
    use std::ops::ControlFlow;

    fn filter(query: &Doc) -> Filter {
        Filter::parse(query.raw(), &FilterOptions::default()).unwrap()
    }

    #[track_caller]
    fn check(query: Doc, expected: &str) {
        let filter = filter(&query);
        let shown = filter.needs().into_iter().map(|list| {
            let list = list.into_iter().map(|(path, value)| format!("{path}={}", crate::show(value)));
            list.collect::<Vec<_>>().join("|")
        });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn needs_of_filters() {
        check(doc! {}, "");
        check(doc! { "a": 1, "b": { "$gt": 2 }, "c": { "$ne": 3 } }, "a=1");
        check(doc! { "a": { "$in": [1, 2] }, "b.c": 3 }, "a=1|a=2 b.c=3");
        check(doc! { "$or": [{ "a": null, "b": 1 }, { "c": { "$in": [1, 2] } }] }, "b=1|c=1|c=2");
        check(doc! { "$or": [{ "a": 1 }, { "b": { "$gt": 1 } }] }, "");
        check(doc! { "$nor": [{ "a": 1 }] }, "");
        check(doc! { "a": { "$in": [] } }, "");
        check(doc! { "a": { "$elemMatch": { "b": 1 } } }, "");
    }

    /// Whether a document has an equality, in the words of the type.
    fn has(doc: RawDoc<'_>, path: &crate::path::Path, wanted: Value<'_>) -> bool {
        let visit = &mut |found: Found<'_>| {
            let value = match found.value {
                None | Some(Value::Undefined) => Value::Null,
                Some(value) => value,
            };
            if compare(value, wanted).is_eq() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        path.for_each_value(doc, Leaves::Elements, visit).is_break()
    }

    proptest::proptest! {
        #[test]
        fn what_matches_has_what_is_needed(doc in document(), a in value(), b in value(), c in value()) {
            let usable = |value: &&Owned| !matches!(value, Owned::Undefined | Owned::Regex { .. } | Owned::Document(_));
            let mut values: Vec<Owned> = [&a, &b, &c].into_iter().filter(usable).cloned().collect();
            values.extend(doc.raw().values().map(|value| value.to_owned()).filter(|value| usable(&value)));
            values.push(Owned::Null);
            for one in &values {
                for other in &values {
                    let queries = [
                        doc! { "a": one, "b": other },
                        doc! { "$or": [{ "a": one, "c": other }, { "a.b": { "$in": [one, other] } }] },
                        doc! { "a": { "$eq": one }, "$and": [{ "$or": [{ "b": other }, { "c": null }] }] },
                    ];
                    for query in queries {
                        let filter = filter(&query);
                        if filter.matches(doc.raw()) == Ok(true) {
                            let met = |list: &Alternatives<'_>| list.iter().any(|(path, value)| has(doc.raw(), path, *value));
                            proptest::prop_assert!(filter.needs().iter().all(met), "{:?} on {:?}", query, doc);
                        }
                    }
                }
            }
        }
    }
}
