//! A persistent ordered set of byte strings: the storage of an index.
//!
//! A B+tree whose nodes pack their keys into one buffer each: first what all keys of the node begin with,
//! then the rest of each key. Keys of an index that grow with time, or that share their leading values, take
//! few bytes that way, copying a node is one `memcpy`, and an entry costs its rest and four bytes more.
//! Cloning the tree shares everything; a change copies the nodes on its path that somebody else still shares.
//!
//! Invariants
//! * Keys are unique and ordered as bytes.
//! * No node but an empty root is empty; a node that grows above [`NODE_BYTES`] or [`NODE_KEYS`] is split.
//! * All keys of a node begin with its prefix; a key that does not would stand before or behind all of them.
//! * A bound between two nodes is above every key on its left and not above any key on its right.
//! * A snapshot (clone) never changes.

use std::cmp::Ordering;
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

/// A key in a node: its node's prefix and its rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key<'t> {
    prefix: &'t [u8],
    rest: &'t [u8],
}

/// Byte strings with a common beginning, one after another in one buffer.
#[derive(Default)]
struct Packed {
    /// The prefix, then the rests.
    bytes: Vec<u8>,
    prefix: usize,
    /// Where each rest ends in `bytes`.
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

/// A node that was split off: the bound between both and the right one.
type Split = (Vec<u8>, Node);

impl Key<'_> {
    /// Bytes of the key.
    #[allow(clippy::len_without_is_empty, reason = "a length in bytes; whether a key is empty nobody asks")]
    pub fn len(&self) -> usize {
        self.prefix.len() + self.rest.len()
    }

    /// Whether the key begins with these bytes.
    pub fn starts_with(&self, bytes: &[u8]) -> bool {
        match bytes.strip_prefix(self.prefix) {
            Some(more) => self.rest.starts_with(more),
            None => self.prefix.starts_with(bytes),
        }
    }

    /// The last `N` bytes, if there are so many.
    pub fn last_bytes<const N: usize>(&self) -> Option<[u8; N]> {
        if let Some(last) = self.rest.last_chunk() {
            return Some(*last);
        }
        let (mut last, more) = ([0; N], N - self.rest.len());
        last[..more].copy_from_slice(&self.prefix[self.prefix.len().checked_sub(more)?..]);
        last[more..].copy_from_slice(self.rest);
        Some(last)
    }

    fn to_vec(self) -> Vec<u8> {
        [self.prefix, self.rest].concat()
    }
}

impl Clone for Packed {
    /// A node is copied because something is about to be added to it: the copy has some room.
    fn clone(&self) -> Packed {
        let mut bytes = Vec::with_capacity(self.bytes.len() + self.bytes.len() / 8 + 32);
        bytes.extend_from_slice(&self.bytes);
        let mut ends = Vec::with_capacity(self.ends.len() + self.ends.len() / 8 + 4);
        ends.extend_from_slice(&self.ends);
        Packed { bytes, prefix: self.prefix, ends }
    }
}

impl Packed {
    /// One key alone.
    fn of(key: &[u8]) -> Packed {
        Packed { bytes: key.to_vec(), prefix: key.len(), ends: vec![key.len() as u32] }
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn prefix(&self) -> &[u8] {
        &self.bytes[..self.prefix]
    }

    /// Where the rest of a key starts.
    #[inline]
    fn start(&self, index: usize) -> usize {
        if index == 0 { self.prefix } else { self.ends[index - 1] as usize }
    }

    #[inline]
    fn rest(&self, index: usize) -> &[u8] {
        &self.bytes[self.start(index)..self.ends[index] as usize]
    }

    fn get(&self, index: usize) -> Key<'_> {
        Key { prefix: self.prefix(), rest: self.rest(index) }
    }

    /// The position of `key`, or where it would go.
    fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let Some(last) = self.len().checked_sub(1) else { return Err(0) };
        let Some(rest) = key.strip_prefix(self.prefix()) else {
            return Err(if key < self.prefix() { 0 } else { self.len() });
        };
        // Most keys grow: the end is looked at first.
        match self.rest(last).cmp(rest) {
            Ordering::Less => return Err(last + 1),
            Ordering::Equal => return Ok(last),
            Ordering::Greater => {}
        }
        let (mut low, mut high) = (0, last);
        while low < high {
            let middle = (low + high) / 2;
            match self.rest(middle).cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Adds `key` at its place, which is `index`. False if it does not share the prefix and the node would
    /// become too large without it: then `index` is one of the ends.
    #[must_use]
    fn insert(&mut self, index: usize, key: &[u8]) -> bool {
        if self.len() == 0 {
            *self = Packed::of(key);
            return true;
        }
        let common = common(self.prefix(), key);
        if common < self.prefix {
            let added = (self.len() * (self.prefix - common)).saturating_add(key.len() - common);
            if self.bytes.len().saturating_add(added) > NODE_BYTES {
                return false;
            }
            self.set_prefix(common);
        }
        let rest = &key[self.prefix..];
        let start = self.start(index);
        let old = self.bytes.len();
        if index == self.len() {
            self.bytes.extend_from_slice(rest);
            self.ends.push(self.bytes.len() as u32);
            return true;
        }
        self.bytes.resize(old + rest.len(), 0);
        self.bytes.copy_within(start..old, start + rest.len());
        self.bytes[start..start + rest.len()].copy_from_slice(rest);
        self.ends.insert(index, (start + rest.len()) as u32);
        self.ends[index + 1..].iter_mut().for_each(|end| *end += rest.len() as u32);
        true
    }

    fn remove(&mut self, index: usize) {
        let range = self.start(index)..self.ends[index] as usize;
        let length = range.len() as u32;
        self.bytes.drain(range);
        self.ends.remove(index);
        self.ends[index..].iter_mut().for_each(|end| *end -= length);
    }

    /// Bytes it would have with a prefix of this length.
    fn bytes_with_prefix(&self, prefix: usize) -> usize {
        prefix + self.len() * self.prefix + self.bytes.len() - self.prefix - self.len() * prefix
    }

    /// Packs the keys again with a prefix of this length, which all of them have.
    fn set_prefix(&mut self, length: usize) {
        let mut bytes = Vec::with_capacity(self.bytes_with_prefix(length) + 64);
        let mut ends = Vec::with_capacity(self.len() + 4);
        if self.len() > 0 {
            let key = self.get(0);
            bytes.extend(key.prefix.iter().chain(key.rest).take(length));
        }
        for index in 0..self.len() {
            let key = self.get(index);
            if length < self.prefix {
                bytes.extend_from_slice(&key.prefix[length..]);
                bytes.extend_from_slice(key.rest);
            } else {
                bytes.extend_from_slice(&key.rest[length - self.prefix..]);
            }
            ends.push(bytes.len() as u32);
        }
        *self = Packed { bytes, prefix: length, ends };
    }

    /// Makes the prefix as long as it can be, and the buffers as small.
    fn tighten(&mut self) {
        let more = match self.len() {
            0 => 0,
            1 => self.rest(0).len(),
            count => common(self.rest(0), self.rest(count - 1)),
        };
        if more > 0 {
            self.set_prefix(self.prefix + more);
        }
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Moves the keys from `index` on into a new node.
    fn split_off(&mut self, index: usize) -> Packed {
        let start = self.start(index);
        let mut bytes = Vec::with_capacity(self.prefix + self.bytes.len() - start);
        bytes.extend_from_slice(self.prefix());
        bytes.extend_from_slice(&self.bytes[start..]);
        let moved = (start - self.prefix) as u32;
        let mut right = Packed {
            bytes,
            prefix: self.prefix,
            ends: self.ends[index..].iter().map(|end| end - moved).collect(),
        };
        right.tighten();
        self.bytes.truncate(start);
        self.ends.truncate(index);
        self.tighten();
        right
    }

    /// The prefix that both would have together, and their bytes then.
    fn together(&self, other: &Packed) -> (usize, usize) {
        let prefix = common(self.prefix(), other.prefix());
        (prefix, self.bytes_with_prefix(prefix) + other.bytes_with_prefix(prefix) - prefix)
    }

    /// Appends the keys of `other`, which are above all here.
    fn extend(&mut self, other: &Packed) {
        if self.len() == 0 {
            *self = other.clone();
            return;
        }
        if other.len() == 0 {
            return;
        }
        let (prefix, _) = self.together(other);
        if prefix < self.prefix {
            self.set_prefix(prefix);
        }
        for index in 0..other.len() {
            let key = other.get(index);
            self.bytes.extend_from_slice(&key.prefix[prefix..]);
            self.bytes.extend_from_slice(key.rest);
            self.ends.push(self.bytes.len() as u32);
        }
    }
}

/// How many bytes both begin with.
#[inline]
fn common(a: &[u8], b: &[u8]) -> usize {
    if b.starts_with(a) {
        return a.len();
    }
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The shortest beginning of `right` that is above `left`, which is below `right`.
fn bound_between(left: Key<'_>, right: &[u8]) -> Vec<u8> {
    let left = left.to_vec();
    right[..(common(&left, right) + 1).min(right.len())].to_vec()
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

    /// Splits an overfull node. A node that grew at its end is split there, so that keys that only grow leave
    /// full nodes behind.
    fn split(&mut self, at_end: bool) -> Split {
        match self {
            Node::Leaf(keys) => {
                let mut right = keys.split_off(if at_end { keys.len() - 1 } else { keys.len() / 2 });
                if at_end {
                    // It goes on to grow as the left one did.
                    right.bytes.reserve_exact(keys.bytes.len());
                    right.ends.reserve_exact(keys.len());
                }
                let bound = bound_between(keys.get(keys.len() - 1), &right.get(0).to_vec());
                (bound, Node::Leaf(right))
            }
            Node::Inner { firsts, children } => {
                let middle = if at_end { firsts.len() - 1 } else { firsts.len() / 2 };
                let bound = firsts.get(middle).to_vec();
                let mut right = firsts.split_off(middle);
                right.remove(0);
                let children = children.split_off(middle + 1);
                (bound, Node::Inner { firsts: right, children })
            }
        }
    }

    /// Adds a key to a leaf; returns what had to be split off.
    fn add_key(&mut self, position: usize, key: &[u8]) -> Option<Split> {
        let Node::Leaf(keys) = self else { return None };
        let at_end = position == keys.len();
        if keys.insert(position, key) {
            return self.is_overfull().then(|| self.split(at_end));
        }
        // It does not share the prefix: it gets a node of its own, on one side or the other.
        let alone = Packed::of(key);
        if at_end {
            return Some((bound_between(keys.get(position - 1), key), Node::Leaf(alone)));
        }
        let right = std::mem::replace(keys, alone);
        Some((bound_between(keys.get(0), &right.get(0).to_vec()), Node::Leaf(right)))
    }

    /// Adds what was split off child `child`; returns what had to be split off here.
    fn add_child(&mut self, child: usize, (bound, right): Split) -> Option<Split> {
        let Node::Inner { firsts, children } = self else { return None };
        let at_end = child == firsts.len();
        if children.len() == children.capacity() {
            children.reserve_exact(children.len() / 4 + 4);
        }
        children.insert(child + 1, Arc::new(right));
        if firsts.insert(child, &bound) {
            return self.is_overfull().then(|| self.split(at_end));
        }
        // As with a key: the bound goes up, and one child stands alone.
        let children = children.split_off(child + 1);
        let firsts = if at_end { Packed::default() } else { std::mem::take(firsts) };
        Some((bound, Node::Inner { firsts, children }))
    }

    /// Appends `right`, which `bound` separates from this node; both are of one kind and [`joinable`].
    fn join(&mut self, bound: &[u8], right: &Node) {
        match (self, right) {
            (Node::Leaf(left), Node::Leaf(right)) => left.extend(right),
            (Node::Inner { firsts, children }, Node::Inner { firsts: more, children: others }) => {
                firsts.extend(&Packed::of(bound));
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

    /// Bytes of all keys together, each counted in full.
    pub fn key_bytes(&self) -> usize {
        self.bytes
    }

    /// Adds `key`; false if it was there.
    pub fn insert(&mut self, key: &[u8]) -> bool {
        let Some(split) = insert(&mut self.root, key) else { return false };
        self.count += 1;
        self.bytes += key.len();
        if let Some((bound, right)) = split {
            let children = vec![self.root.clone(), Arc::new(right)];
            self.root = Arc::new(Node::Inner { firsts: Packed::of(&bound), children });
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
    pub fn first_at_or_after(&self, from: &[u8]) -> Option<Key<'_>> {
        first(&self.root, from)
    }

    /// A cursor on the first key of at least `from`.
    pub fn seek(&self, from: &[u8]) -> Cursor {
        let mut cursor = Cursor { path: Vec::with_capacity(4), key: Vec::new() };
        cursor.descend(self.root.clone(), from);
        cursor
    }

    /// A cursor on the last key below `bound` (the last of all without a bound).
    pub fn seek_before(&self, bound: Option<&[u8]>) -> Cursor {
        let mut cursor = match bound {
            Some(bound) => self.seek(bound),
            None => {
                let mut cursor = Cursor { path: Vec::with_capacity(4), key: Vec::new() };
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
fn insert(node: &mut Arc<Node>, key: &[u8]) -> Option<Option<Split>> {
    if let Node::Leaf(keys) = &**node {
        let position = keys.search(key).err()?;
        return Some(Arc::make_mut(node).add_key(position, key));
    }
    let Node::Inner { firsts, children } = Arc::make_mut(node) else { return None };
    let child = child_for(firsts, key);
    match insert(&mut children[child], key)? {
        Some(split) => Some(Arc::make_mut(node).add_child(child, split)),
        None => Some(None),
    }
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
    } else if child + 1 < children.len() && joinable(firsts, children, child) {
        join(firsts, children, child);
    } else if child > 0 && joinable(firsts, children, child - 1) {
        join(firsts, children, child - 1);
    }
    true
}

/// Whether child `left` and the next one are small enough to be one node.
fn joinable(firsts: &Packed, children: &[Arc<Node>], left: usize) -> bool {
    let (one, other) = (&*children[left], &*children[left + 1]);
    let (left_keys, right_keys) = (one.keys(), other.keys());
    let bytes = match one {
        Node::Leaf(_) => left_keys.together(right_keys).1,
        // The bound between them becomes a key, which may have nothing in common with the others.
        Node::Inner { .. } => {
            left_keys.bytes_with_prefix(0) + right_keys.bytes_with_prefix(0) + firsts.get(left).len()
        }
    };
    bytes < JOIN_BYTES && left_keys.len() + right_keys.len() < JOIN_KEYS
}

fn join(firsts: &mut Packed, children: &mut Vec<Arc<Node>>, left: usize) {
    let right = children.remove(left + 1);
    Arc::make_mut(&mut children[left]).join(&firsts.get(left).to_vec(), &right);
    firsts.remove(left);
}

/// The child that holds `key`.
fn child_for(firsts: &Packed, key: &[u8]) -> usize {
    match firsts.search(key) {
        Ok(found) => found + 1,
        Err(position) => position,
    }
}

fn first<'n>(node: &'n Node, from: &[u8]) -> Option<Key<'n>> {
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
    /// The key here, unpacked.
    key: Vec<u8>,
}

impl Cursor {
    /// The key here; `None` past the ends.
    pub fn key(&self) -> Option<&[u8]> {
        (!self.path.is_empty()).then_some(&self.key)
    }

    /// Arrives at a position in a leaf.
    fn rest_on(&mut self, leaf: Arc<Node>, position: usize) {
        if let Node::Leaf(keys) = &*leaf {
            let key = keys.get(position);
            self.key.clear();
            self.key.extend_from_slice(key.prefix);
            self.key.extend_from_slice(key.rest);
        }
        self.path.push((leaf, position));
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
            match child {
                None => self.rest_on(node, position),
                Some(child) => {
                    self.path.push((node, position));
                    descend(self, child);
                }
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
                    let Some(last) = keys.len().checked_sub(1) else { return self.path.clear() };
                    let past = position > last;
                    self.rest_on(node.clone(), position.min(last));
                    if past {
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
                    return self.rest_on(node.clone(), last);
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
    use super::{Key, NODE_KEYS, Node, Tree};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::ops::Bound;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            (0u16..400).prop_map(|n| n.to_be_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..200),
            (0u16..400).prop_map(|n| [vec![9; 150], n.to_be_bytes().to_vec()].concat()),
            (0u8..40, 0u8..200).prop_map(|(c, n)| [vec![b'k'; usize::from(c)], vec![n]].concat()),
        ]
    }

    /// Checks the invariants below a node whose keys lie between two bounds.
    fn check(node: &Node, from: Option<&[u8]>, upto: Option<&[u8]>) {
        let packed = node.keys();
        let keys: Vec<_> = (0..packed.len()).map(|index| packed.get(index).to_vec()).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        assert!(keys.len() <= NODE_KEYS);
        if let Node::Inner { children, .. } = node {
            assert_eq!(children.len(), keys.len() + 1);
            for (index, child) in children.iter().enumerate() {
                assert!(!child.is_empty());
                let before = index.checked_sub(1).map(|index| &keys[index][..]);
                check(child, before.or(from), keys.get(index).map(Vec::as_slice).or(upto));
            }
        }
        let inside = |key: &[u8]| from.is_none_or(|from| from <= key) && upto.is_none_or(|upto| key < upto);
        assert!(keys.iter().all(|key| inside(key)));
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
        let first = tree.first_at_or_after(probe);
        assert_eq!(first.map(Key::to_vec), above().next());
        if let Some(key) = first {
            let whole = key.to_vec();
            assert_eq!(key.len(), whole.len());
            assert_eq!(key.last_bytes::<2>().as_ref(), whole.last_chunk());
            for length in 0..=whole.len() {
                assert!(key.starts_with(&whole[..length]));
            }
            assert_eq!(key.starts_with(probe), whole.starts_with(probe));
            assert!(!key.starts_with(&[&whole[..], &[0]].concat()));
        }
        check(&tree.root, None, None);
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
