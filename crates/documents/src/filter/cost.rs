//! Which filters are sure to take little time, whatever the document: what may be asked on a thread that others
//! wait for.

use super::{Clause, Filter, Node, Pattern, Test};

/// A filter of more parts is not cheap, however simple they are.
const PARTS_MAX: usize = 256;

impl Filter {
    /// Whether asking it takes time in proportion to the document at most: comparisons, no expressions, no schema, no
    /// regular expressions that may backtrack.
    pub fn is_cheap(&self) -> bool {
        let mut parts = PARTS_MAX;
        node(&self.root, &mut parts)
    }
}

fn node(tree: &Node, parts: &mut usize) -> bool {
    let Some(left) = parts.checked_sub(1) else { return false };
    *parts = left;
    match tree {
        Node::True | Node::False | Node::SampleRate(_) => true,
        Node::And(nodes) | Node::Or(nodes) | Node::Nor(nodes) => nodes.iter().all(|tree| node(tree, parts)),
        Node::Not(tree) => node(tree, parts),
        Node::Field { test, .. } => is_cheap(test, parts),
        Node::Expr(_) | Node::JsonSchema(_) => false,
    }
}

fn is_cheap(test: &Test, parts: &mut usize) -> bool {
    match test {
        Test::Compare { .. }
        | Test::Exists
        | Test::Type(_)
        | Test::Size(_)
        | Test::Mod { .. }
        | Test::Bits(..) => true,
        Test::In(list) => list.patterns.len() < *parts && list.patterns.iter().all(Pattern::is_simple),
        Test::Regex(pattern) => pattern.is_simple(),
        Test::ElemMatch(tree) => node(tree, parts),
        Test::ElemMatchValue(clauses) => all(clauses, parts),
    }
}

fn all(clauses: &[Clause], parts: &mut usize) -> bool {
    clauses.iter().all(|clause| {
        let Some(left) = parts.checked_sub(1) else { return false };
        *parts = left;
        match clause {
            Clause::Is(test) => is_cheap(test, parts),
            Clause::Not(clauses) => all(clauses, parts),
        }
    })
}

impl Pattern {
    /// Whether it is text with a few wildcards: such a search never goes back.
    fn is_simple(&self) -> bool {
        let text = self.pattern().strip_prefix('^').unwrap_or(self.pattern());
        let is_plain = |char: char| char.is_ascii_alphanumeric() || " _-/:.,@#*".contains(char);
        self.options().is_empty() && text.replace("\\.", ".").chars().all(is_plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Surroundings;
    use crate::{Doc, DocBuilder, doc};

    fn is_cheap(query: Doc) -> bool {
        Surroundings::default().parse_filter(query.raw()).unwrap().is_cheap()
    }

    #[test]
    fn comparisons_are_cheap_and_what_computes_is_not() {
        for cheap in [
            doc! {},
            doc! { "a": 1, "b": { "$gt": 3, "$ne": 7 } },
            doc! { "$or": [{ "a": { "$in": ["x", "y", null] } }, { "b": { "$exists": false } }] },
            doc! { "a": { "$elemMatch": { "b": 1 } }, "c": { "$not": { "$elemMatch": { "$gt": 1 } } } },
            doc! { "a": { "$regex": "^orders\\.new.*" } },
        ] {
            assert!(is_cheap(cheap.clone()), "{cheap:?}");
        }
        for dear in [
            doc! { "$expr": { "$gt": ["$a", 1] } },
            doc! { "$or": [{ "a": 1 }, { "b": 2, "$expr": true }] },
            doc! { "$jsonSchema": { "required": ["a"] } },
            doc! { "a": { "$regex": "(a+)+(?=b)" } },
            doc! { "a": { "$not": { "$regex": "(a|b)\\1" } } },
            doc! { "a": { "$elemMatch": { "b": { "$regex": "(x+x+)+\\1" } } } },
        ] {
            assert!(!is_cheap(dear.clone()), "{dear:?}");
        }
    }

    #[test]
    fn many_comparisons_are_not_cheap() {
        let mut query = DocBuilder::new();
        for n in 0..PARTS_MAX {
            query.append(&format!("f{n}"), 1);
        }
        assert!(!is_cheap(query.finish()));
    }
}
