//! The equalities in a filter, which an upsert seeds its document with.

use super::{Node, Op, Test};
use crate::value::Value;

/// Every path that must equal one value: conditions at the top, in `$and`, in the only branch of an `$or`;
/// equality, `$in` of one value, `$all` of one value.
pub(super) fn equalities(root: &Node) -> Vec<(&str, Value<'_>)> {
    let mut out = Vec::new();
    collect(root, &mut out);
    out
}

fn collect<'f>(node: &'f Node, out: &mut Vec<(&'f str, Value<'f>)>) {
    match node {
        Node::And(nodes) => nodes.iter().for_each(|node| collect(node, out)),
        Node::Or(nodes) if nodes.len() == 1 => collect(&nodes[0], out),
        Node::Field { path, test: Test::Compare { op: Op::Eq, value } } => {
            out.push((path.as_str(), value.value()));
        }
        Node::Field { path, test: Test::In(list) } if list.patterns.is_empty() => {
            if let [value] = &list.values[..] {
                out.push((path.as_str(), value.value()));
            }
        }
        _ => {}
    }
}
