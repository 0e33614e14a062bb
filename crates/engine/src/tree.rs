//! A persistent ordered set of byte strings: the storage of an index.
//!
//! A B+tree whose nodes pack their keys into one buffer each, so that copying a node is one `memcpy` and an
//! entry costs its own bytes and four more. Cloning the tree shares everything; a change copies the nodes on
//! its path that somebody else still shares.
//!
//! Invariants
//! * Keys are unique and ordered as bytes.
//! * No node but an empty root is empty; a node above [`NODE_BYTES`] or [`NODE_KEYS`] is split.
//! * A snapshot (clone) never changes.

use std::sync::Arc;

/// A node with more bytes of keys than this is split (if it has two keys).
const NODE_BYTES: usize = 3072;
/// A node with more keys than this is split.
const NODE_KEYS: usize = 96;
/// Neighbours are joined when both together stay below a half of the limits.
const JOIN_BYTES: usize = NODE_BYTES / 2;
const JOIN_KEYS: usize = NODE_KEYS / 2;

/// The set.
#[derive(Clone)]
pub struct Tree {
    root: Arc<Node>,
    count: usize,
    bytes: usize,
}

/// Byte strings one after another in one buffer.
#[derive(Clone, Default)]
struct Packed {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

#[derive(Clone)]
enum Node {
    Leaf(Packed),
    /// `firsts[i]` bounds child `i + 1` from below and child `i` from above.
    Inner {
        firsts: Packed,
        children: Vec<Arc<Node>>,
    },
}

impl Packed {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.ends[index - 1] as usize }
    }

    fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.start(index)..self.ends[index] as usize]
    }

    /// The position of `key`, or where it would go.
    fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.get(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    fn insert(&mut self, index: usize, key: &[u8]) {
        let start = self.start(index);
        let old = self.bytes.len();
        self.bytes.resize(old + key.len(), 0);
        self.bytes.copy_within(start..old, start + key.len());
        self.bytes[start..start + key.len()].copy_from_slice(key);
        self.ends.insert(index, (start + key.len()) as u32);
        self.ends[index + 1..].iter_mut().for_each(|end| *end += key.len() as u32);
    }

    fn remove(&mut self, index: usize) {
        let range = self.start(index)..self.ends[index] as usize;
        let length = range.len() as u32;
        self.bytes.drain(range);
        self.ends.remove(index);
        self.ends[index..].iter_mut().for_each(|end| *end -= length);
    }

    /// Moves the keys from `index` on into a new buffer; both fit exactly.
    fn split_off(&mut self, index: usize) -> Packed {
        let start = self.start(index);
        let right = Packed {
            bytes: self.bytes[start..].to_vec(),
            ends: self.ends[index..].iter().map(|end| end - start as u32).collect(),
        };
        self.bytes.truncate(start);
        self.bytes.shrink_to_fit();
        self.ends.truncate(index);
        self.ends.shrink_to_fit();
        right
    }

    fn extend(&mut self, other: &Packed) {
        let base = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| end + base));
    }
}

impl Node {
    fn keys(&self) -> &Packed {
        match self {
            Node::Leaf(keys) => keys,
            Node::Inner { firsts, .. } => firsts,
        }
    }

    fn is_overfull(&self) -> bool {
        let keys = self.keys();
        (keys.bytes.len() > NODE_BYTES && keys.len() > 2) || keys.len() > NODE_KEYS
    }

    fn is_empty(&self) -> bool {
        match self {
            Node::Leaf(keys) => keys.len() == 0,
            Node::Inner { children, .. } => children.is_empty(),
        }
    }

    /// Splits an overfull node; returns the bound between both and the right one. A node that grew at its
    /// end is split there, so that keys that only grow leave full nodes behind.
    fn split(&mut self, at_end: bool) -> (Vec<u8>, Node) {
        match self {
            Node::Leaf(keys) => {
                let right = keys.split_off(if at_end { keys.len() - 1 } else { keys.len() / 2 });
                (right.get(0).to_vec(), Node::Leaf(right))
            }
            Node::Inner { firsts, children } => {
                let middle = if at_end { firsts.len() - 1 } else { firsts.len() / 2 };
                let mut right = firsts.split_off(middle);
                let bound = right.get(0).to_vec();
                right.remove(0);
                let children = children.split_off(middle + 1);
                (bound, Node::Inner { firsts: right, children })
            }
        }
    }

    /// Appends `right`, which `bound` separates from this node; both are of one kind.
    fn join(&mut self, bound: &[u8], right: &Node) {
        match (self, right) {
            (Node::Leaf(left), Node::Leaf(right)) => left.extend(right),
            (Node::Inner { firsts, children }, Node::Inner { firsts: more, children: others }) => {
                firsts.insert(firsts.len(), bound);
                firsts.extend(more);
                children.extend(others.iter().cloned());
            }
            _ => {}
        }
    }
}

impl Default for Tree {
    fn default() -> Tree {
        Tree { root: Arc::new(Node::Leaf(Packed::default())), count: 0, bytes: 0 }
    }
}

impl Tree {
    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Bytes of all keys together.
    pub fn key_bytes(&self) -> usize {
        self.bytes
    }

    /// Adds `key`; false if it was there.
    pub fn insert(&mut self, key: &[u8]) -> bool {
        let Some(split) = insert(&mut self.root, key) else { return false };
        self.count += 1;
        self.bytes += key.len();
        if let Some((bound, right)) = split {
            let mut firsts = Packed::default();
            firsts.insert(0, &bound);
            let children = vec![self.root.clone(), Arc::new(right)];
            self.root = Arc::new(Node::Inner { firsts, children });
        }
        true
    }

    /// Removes `key`; false if it was not there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        if !remove(&mut self.root, key) {
            return false;
        }
        self.count -= 1;
        self.bytes -= key.len();
        loop {
            let lower = match &*self.root {
                Node::Inner { children, .. } if children.len() == 1 => children[0].clone(),
                Node::Inner { children, .. } if children.is_empty() => {
                    Arc::new(Node::Leaf(Packed::default()))
                }
                _ => return true,
            };
            self.root = lower;
        }
    }

    /// The first key of at least `from`.
    pub fn first_at_or_after(&self, from: &[u8]) -> Option<&[u8]> {
        first(&self.root, from)
    }

    /// A cursor on the first key of at least `from`.
    pub fn seek(&self, from: &[u8]) -> Cursor {
        let mut cursor = Cursor { path: Vec::with_capacity(4) };
        cursor.descend(self.root.clone(), from);
        cursor
    }

    /// A cursor on the last key below `bound` (the last of all without a bound).
    pub fn seek_before(&self, bound: Option<&[u8]>) -> Cursor {
        let mut cursor = match bound {
            Some(bound) => self.seek(bound),
            None => {
                let mut cursor = Cursor { path: Vec::with_capacity(4) };
                cursor.descend_last(self.root.clone());
                return cursor;
            }
        };
        if cursor.path.is_empty() {
            cursor.descend_last(self.root.clone());
        } else {
            cursor.retreat();
        }
        cursor
    }
}

/// Inserts below `node`. `None`: the key was there. Otherwise the split that the parent has to take in.
#[allow(clippy::type_complexity, reason = "the split of one node, used only here")]
fn insert(node: &mut Arc<Node>, key: &[u8]) -> Option<Option<(Vec<u8>, Node)>> {
    let at_end;
    if let Node::Leaf(keys) = &**node {
        let position = keys.search(key).err()?;
        at_end = position == keys.len();
        if let Node::Leaf(keys) = Arc::make_mut(node) {
            keys.insert(position, key);
        }
    } else {
        let Node::Inner { firsts, children } = Arc::make_mut(node) else { return None };
        let child = child_for(firsts, key);
        at_end = child == children.len() - 1;
        if let Some((bound, right)) = insert(&mut children[child], key)? {
            firsts.insert(child, &bound);
            children.insert(child + 1, Arc::new(right));
        }
    }
    Some(node.is_overfull().then(|| Arc::make_mut(node).split(at_end)))
}

fn remove(node: &mut Arc<Node>, key: &[u8]) -> bool {
    if let Node::Leaf(keys) = &**node {
        let Ok(position) = keys.search(key) else { return false };
        if let Node::Leaf(keys) = Arc::make_mut(node) {
            keys.remove(position);
        }
        return true;
    }
    let Node::Inner { firsts, children } = Arc::make_mut(node) else { return false };
    let child = child_for(firsts, key);
    if !remove(&mut children[child], key) {
        return false;
    }
    if children[child].is_empty() {
        children.remove(child);
        if firsts.len() > 0 {
            firsts.remove(child.saturating_sub(1));
        }
    } else if child + 1 < children.len() && joinable(&children[child], &children[child + 1]) {
        join(firsts, children, child);
    } else if child > 0 && joinable(&children[child - 1], &children[child]) {
        join(firsts, children, child - 1);
    }
    true
}

fn joinable(left: &Node, right: &Node) -> bool {
    let (left, right) = (left.keys(), right.keys());
    left.bytes.len() + right.bytes.len() < JOIN_BYTES && left.len() + right.len() < JOIN_KEYS
}

fn join(firsts: &mut Packed, children: &mut Vec<Arc<Node>>, left: usize) {
    let right = children.remove(left + 1);
    Arc::make_mut(&mut children[left]).join(firsts.get(left), &right);
    firsts.remove(left);
}

/// The child that holds `key`.
fn child_for(firsts: &Packed, key: &[u8]) -> usize {
    match firsts.search(key) {
        Ok(found) => found + 1,
        Err(position) => position,
    }
}

fn first<'n>(node: &'n Node, from: &[u8]) -> Option<&'n [u8]> {
    match node {
        Node::Leaf(keys) => {
            let position = keys.search(from).unwrap_or_else(|position| position);
            (position < keys.len()).then(|| keys.get(position))
        }
        Node::Inner { firsts, children } => {
            let child = child_for(firsts, from);
            let found = first(&children[child], from);
            found.or_else(|| children.get(child + 1).and_then(|next| first(next, from)))
        }
    }
}

/// A position in a snapshot of the tree; moves both ways and keeps the snapshot alive.
#[derive(Clone, Default)]
pub struct Cursor {
    /// The nodes from the root to a leaf with the position in each; empty when past either end.
    path: Vec<(Arc<Node>, usize)>,
}

impl Cursor {
    /// The key here; `None` past the ends.
    pub fn key(&self) -> Option<&[u8]> {
        match self.path.last() {
            Some((node, position)) => match &**node {
                Node::Leaf(keys) => Some(keys.get(*position)),
                Node::Inner { .. } => None,
            },
            None => None,
        }
    }

    /// Moves to the next key.
    pub fn advance(&mut self) {
        self.step(
            |position, length| position.checked_add(1).filter(|next| *next < length),
            Cursor::descend_first,
        );
    }

    /// Moves to the key before.
    pub fn retreat(&mut self) {
        self.step(|position, _| position.checked_sub(1), Cursor::descend_last);
    }

    fn step(&mut self, next: impl Fn(usize, usize) -> Option<usize>, descend: fn(&mut Cursor, Arc<Node>)) {
        while let Some((node, position)) = self.path.pop() {
            let length = match &*node {
                Node::Leaf(keys) => keys.len(),
                Node::Inner { children, .. } => children.len(),
            };
            let Some(position) = next(position, length) else { continue };
            let child = match &*node {
                Node::Leaf(_) => None,
                Node::Inner { children, .. } => Some(children[position].clone()),
            };
            self.path.push((node, position));
            if let Some(child) = child {
                descend(self, child);
            }
            return;
        }
    }

    fn descend_first(&mut self, node: Arc<Node>) {
        self.descend(node, &[]);
    }

    fn descend(&mut self, mut node: Arc<Node>, from: &[u8]) {
        loop {
            match &*node {
                Node::Leaf(keys) => {
                    let position = keys.search(from).unwrap_or_else(|position| position);
                    let (past, length) = (position >= keys.len(), keys.len());
                    self.path.push((node.clone(), position.min(length.saturating_sub(1))));
                    if length == 0 {
                        self.path.clear();
                    } else if past {
                        self.advance();
                    }
                    return;
                }
                Node::Inner { firsts, children } => {
                    let child = child_for(firsts, from);
                    let next = children[child].clone();
                    self.path.push((node.clone(), child));
                    node = next;
                }
            }
        }
    }

    fn descend_last(&mut self, mut node: Arc<Node>) {
        loop {
            match &*node {
                Node::Leaf(keys) if keys.len() == 0 => return self.path.clear(),
                Node::Leaf(keys) => {
                    let last = keys.len() - 1;
                    self.path.push((node.clone(), last));
                    return;
                }
                Node::Inner { children, .. } => {
                    let last = children.len() - 1;
                    let next = children[last].clone();
                    self.path.push((node.clone(), last));
                    node = next;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tree;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::ops::Bound;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            (0u16..400).prop_map(|n| n.to_be_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..200),
            (0u16..400).prop_map(|n| [vec![9; 150], n.to_be_bytes().to_vec()].concat()),
        ]
    }

    fn forwards(tree: &Tree, from: &[u8]) -> Vec<Vec<u8>> {
        let mut cursor = tree.seek(from);
        std::iter::from_fn(|| {
            let key = cursor.key()?.to_vec();
            cursor.advance();
            Some(key)
        })
        .collect()
    }

    fn backwards(tree: &Tree, bound: Option<&[u8]>) -> Vec<Vec<u8>> {
        let mut cursor = tree.seek_before(bound);
        std::iter::from_fn(|| {
            let key = cursor.key()?.to_vec();
            cursor.retreat();
            Some(key)
        })
        .collect()
    }

    fn same(tree: &Tree, model: &BTreeSet<Vec<u8>>, probe: &[u8]) {
        let above = || model.range::<[u8], _>((Bound::Included(probe), Bound::Unbounded)).cloned();
        let below = || model.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(probe))).rev().cloned();
        assert_eq!(tree.len(), model.len());
        assert_eq!(tree.key_bytes(), model.iter().map(Vec::len).sum::<usize>());
        assert!(forwards(tree, &[]).into_iter().eq(model.iter().cloned()));
        assert!(forwards(tree, probe).into_iter().eq(above()));
        assert!(backwards(tree, None).into_iter().eq(model.iter().rev().cloned()));
        assert!(backwards(tree, Some(probe)).into_iter().eq(below()));
        assert_eq!(tree.first_at_or_after(probe).map(<[u8]>::to_vec), above().next());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn behaves_like_a_set_and_snapshots_stay(ops in prop::collection::vec((key(), 0u8..3), 1..1500), probe in key()) {
            let (mut tree, mut model, mut snapshots) = (Tree::default(), BTreeSet::new(), Vec::new());
            for (n, (key, op)) in ops.into_iter().enumerate() {
                if n % 300 == 0 {
                    snapshots.push((tree.clone(), model.clone()));
                }
                if op > 0 {
                    prop_assert_eq!(tree.insert(&key), model.insert(key));
                } else {
                    let key = model.range(key.clone()..).next().cloned().unwrap_or(key);
                    prop_assert_eq!(tree.remove(&key), model.remove(&key));
                }
            }
            snapshots.push((tree, model));
            for (tree, model) in &snapshots {
                same(tree, model, &probe);
            }
        }
    }

    #[test]
    fn emptied_in_any_order_it_is_empty_again() {
        let mut tree = Tree::default();
        let keys: Vec<_> = (0u32..5000).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
        keys.iter().for_each(|key| assert!(tree.insert(key)));
        keys.iter().rev().for_each(|key| assert!(tree.remove(key)));
        assert_eq!((tree.len(), tree.key_bytes(), tree.seek(&[]).key()), (0, 0, None));
        assert!(tree.insert(b"again"));
    }
}
