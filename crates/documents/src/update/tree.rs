//! The tree of an update's paths: which part of a document each operator changes.
//!
//! Invariants
//! * No path is a prefix of another: two operators never change the same place.
//! * Fields that are missing come into being in the order of [`ChildOrder`], whatever the update's own order
//!   (MongoDB manual, "Update Operators").
//! * A container is addressed either by names and positions or by array filters, never by both.

use super::op::Op;
use super::run::Scope;
use crate::path::array_index;
use crate::{Error, MAX_DEPTH, Result, code};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What happens to one field or element.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// An operator changes it.
    Leaf(Op),
    /// Operators change parts of it.
    Fields(Fields),
    /// Operators change those of its elements that a filter selects; `$[]` is the empty name.
    Elements(Vec<(String, Node)>),
}

/// Changes inside a document or array, by field name or position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    /// The parts that change. The name `$` is the positional operator.
    pub children: BTreeMap<Box<str>, Child>,
    /// How many elements an array keeps (only in descriptions of an update).
    pub truncate: Option<usize>,
}

/// A named part of a container.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    /// The name as an array position, if it is one.
    pub position: Option<usize>,
    /// How many children came before it.
    pub ordinal: usize,
    pub node: Node,
}

/// The order in which missing fields come into being.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChildOrder {
    /// As MongoDB processes the fields of an update: positions as numbers, then names as text.
    Sorted,
    /// As they were inserted.
    Given,
}

impl ChildOrder {
    /// Compares two children by when they come into being.
    pub(crate) fn compare(self, a: (&str, &Child), b: (&str, &Child)) -> Ordering {
        match (self, a.1.position, b.1.position) {
            (ChildOrder::Given, _, _) => a.1.ordinal.cmp(&b.1.ordinal),
            (_, Some(a), Some(b)) => a.cmp(&b),
            (_, Some(_), None) => Ordering::Less,
            (_, None, Some(_)) => Ordering::Greater,
            _ => a.0.cmp(b.0),
        }
    }
}

impl Fields {
    /// Adds an operator at a path; the path must not meet one that is there.
    pub(crate) fn insert(&mut self, path: &str, op: Op) -> Result<()> {
        let parts = split(path)?;
        self.place(&parts, 0, op).map_err(|depth| {
            let at = parts[..=depth].join(".");
            let text = format!("Updating the path '{path}' would create a conflict at '{at}'");
            Error::new(code::CONFLICTING_UPDATE_OPERATORS, text)
        })
    }

    /// Cuts the array at a path; other changes inside it may follow.
    pub(crate) fn truncate_at(&mut self, path: &str, size: usize) -> Result<()> {
        let mut fields = self;
        for part in split(path)? {
            if !fields.children.contains_key(part) {
                fields.add_new(part, Node::Fields(Fields::default()));
            }
            match fields.children.get_mut(part).map(|child| &mut child.node) {
                Some(Node::Fields(inner)) => fields = inner,
                _ => {
                    let text = format!("Updating the path '{path}' would create a conflict at '{part}'");
                    return Err(Error::new(code::CONFLICTING_UPDATE_OPERATORS, text));
                }
            }
        }
        fields.truncate = Some(size);
        Ok(())
    }

    fn add_new(&mut self, name: &str, node: Node) {
        let child = Child { position: array_index(name), ordinal: self.children.len(), node };
        self.children.insert(name.into(), child);
    }

    /// Places `op` at the component `depth` and those after it; a conflict is told by its depth.
    fn place(&mut self, parts: &[&str], depth: usize, op: Op) -> Result<(), usize> {
        match self.children.get_mut(parts[depth]) {
            Some(child) => child.node.place(parts, depth + 1, op),
            None => {
                self.add_new(parts[depth], Node::branch(parts, depth, op));
                Ok(())
            }
        }
    }

    /// The changes with the positional operator replaced by the position it stands for.
    pub(crate) fn resolve_positional(&self, position: usize, at: &str) -> Result<Fields> {
        let mut resolved = Fields { children: BTreeMap::new(), truncate: self.truncate };
        for (name, child) in &self.children {
            let name = if &**name == "$" { &position.to_string() } else { &**name };
            resolved.merge_child(name, &child.node, at)?;
        }
        Ok(resolved)
    }

    fn merge_child(&mut self, name: &str, node: &Node, at: &str) -> Result<()> {
        match self.children.get_mut(name) {
            Some(child) => child.node = child.node.merge(node, &format!("{at}.{name}"))?,
            None => self.add_new(name, node.clone()),
        }
        Ok(())
    }
}

/// A path's components, as many as documents may nest.
fn split(path: &str) -> Result<SmallVec<[&str; 4]>> {
    let parts: SmallVec<[&str; 4]> = path.split('.').collect();
    if parts.len() > MAX_DEPTH {
        let text = format!("An update path is nested deeper than {MAX_DEPTH} levels");
        return Err(Error::new(code::OVERFLOW, text));
    }
    Ok(parts)
}

impl Node {
    /// The node of the component `depth`, with everything below it.
    fn branch(parts: &[&str], depth: usize, op: Op) -> Node {
        let Some(next) = parts.get(depth + 1) else { return Node::Leaf(op) };
        let below = Node::branch(parts, depth + 1, op);
        match filter_name(next) {
            Some(id) => Node::Elements(vec![(id.to_string(), below)]),
            None => {
                let mut fields = Fields::default();
                fields.add_new(next, below);
                Node::Fields(fields)
            }
        }
    }

    /// Places `op` below this node, from the component `depth` on.
    fn place(&mut self, parts: &[&str], depth: usize, op: Op) -> Result<(), usize> {
        let next = parts.get(depth).ok_or(depth - 1)?;
        match (self, filter_name(next)) {
            (Node::Fields(fields), None) => fields.place(parts, depth, op),
            (Node::Elements(elements), Some(id)) => match elements.iter_mut().find(|(name, _)| name == id) {
                Some((_, node)) => node.place(parts, depth + 1, op),
                None => {
                    elements.push((id.to_string(), Node::branch(parts, depth, op)));
                    Ok(())
                }
            },
            _ => Err(depth - 1),
        }
    }

    /// The changes of both nodes together, for an element that several filters select.
    pub(crate) fn merge(&self, other: &Node, at: &str) -> Result<Node> {
        match (self, other) {
            (Node::Fields(a), Node::Fields(b)) => {
                let mut merged = a.clone();
                for (name, child) in &b.children {
                    merged.merge_child(name, &child.node, at)?;
                }
                Ok(Node::Fields(merged))
            }
            (Node::Elements(a), Node::Elements(b)) => {
                let mut merged = a.clone();
                for (id, node) in b {
                    match merged.iter_mut().find(|(name, _)| name == id) {
                        Some((_, old)) => *old = old.merge(node, at)?,
                        None => merged.push((id.clone(), node.clone())),
                    }
                }
                Ok(Node::Elements(merged))
            }
            _ => {
                let text = format!("Update created a conflict at '{at}'");
                Err(Error::new(code::CONFLICTING_UPDATE_OPERATORS, text))
            }
        }
    }

    /// Whether it brings a missing field into being.
    pub(crate) fn creates(&self, scope: &Scope<'_>) -> bool {
        match self {
            Node::Leaf(op) => op.creates(scope),
            Node::Fields(fields) => fields.children.values().any(|child| child.node.creates(scope)),
            Node::Elements(_) => true,
        }
    }

    /// Whether it may meet a value that has no such field without an error.
    pub(crate) fn allows_dead_end(&self, scope: &Scope<'_>) -> bool {
        match self {
            Node::Leaf(op) => op.allows_dead_end(scope),
            Node::Fields(fields) => fields.children.values().all(|child| child.node.allows_dead_end(scope)),
            Node::Elements(_) => false,
        }
    }
}

/// The name between the brackets of `$[name]`.
pub(crate) fn filter_name(part: &str) -> Option<&str> {
    part.strip_prefix("$[")?.strip_suffix(']')
}
