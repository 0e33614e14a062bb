//! A persistent map from ever-growing numbers to values: record numbers to documents, collection numbers to
//! collections.
//!
//! A radix tree of 32-way nodes that hold only the slots in use. Cloning the map shares everything; a change
//! copies the nodes on its path that somebody else still shares.
//!
//! Invariants
//! * A node is never empty, except the root of an empty map.
//! * A snapshot (clone) never changes.

use std::sync::Arc;

const BITS: u32 = 5;
const MASK: u64 = (1 << BITS) - 1;

/// The map.
#[derive(Clone)]
pub struct Trie<T> {
    root: Arc<Node<T>>,
    /// Levels below the root; keys at or above `32^(height + 1)` need a higher root.
    height: u32,
    count: usize,
}

#[derive(Clone)]
struct Node<T> {
    used: u32,
    slots: Slots<T>,
}

#[derive(Clone)]
enum Slots<T> {
    Inner(Vec<Arc<Node<T>>>),
    Leaf(Vec<T>),
}

impl<T> Default for Trie<T> {
    fn default() -> Trie<T> {
        Trie { root: Arc::new(Node { used: 0, slots: Slots::Leaf(Vec::new()) }), height: 0, count: 0 }
    }
}

impl<T> Node<T> {
    /// Where the slot is in the compact vector, and whether it is in use.
    fn position(&self, slot: u32) -> (usize, bool) {
        let bit = 1u32 << slot;
        ((self.used & (bit - 1)).count_ones() as usize, self.used & bit != 0)
    }

    fn value(&self, slot: u32) -> Option<&T> {
        match (&self.slots, self.position(slot)) {
            (Slots::Leaf(values), (position, true)) => values.get(position),
            _ => None,
        }
    }

    fn child(&self, slot: u32) -> Option<&Arc<Node<T>>> {
        match (&self.slots, self.position(slot)) {
            (Slots::Inner(children), (position, true)) => children.get(position),
            _ => None,
        }
    }
}

fn slot(key: u64, height: u32) -> u32 {
    ((key >> (BITS * height)) & MASK) as u32
}

fn fits(key: u64, height: u32) -> bool {
    BITS * (height + 1) >= u64::BITS || key >> (BITS * (height + 1)) == 0
}

impl<T: Clone> Trie<T> {
    /// How many values there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The value at `key`.
    pub fn get(&self, key: u64) -> Option<&T> {
        if !fits(key, self.height) {
            return None;
        }
        let mut node = &*self.root;
        for height in (0..=self.height).rev() {
            let (position, used) = node.position(slot(key, height));
            match &node.slots {
                _ if !used => return None,
                Slots::Inner(children) => node = &children[position],
                Slots::Leaf(values) => return Some(&values[position]),
            }
        }
        None
    }

    /// Puts `value` at `key` and returns what was there.
    pub fn insert(&mut self, key: u64, value: T) -> Option<T> {
        while !fits(key, self.height) {
            self.raise();
        }
        let old = insert(Arc::make_mut(&mut self.root), self.height, key, value);
        self.count += usize::from(old.is_none());
        old
    }

    /// Removes and returns the value at `key`.
    pub fn remove(&mut self, key: u64) -> Option<T> {
        self.get(key)?;
        let old = remove(Arc::make_mut(&mut self.root), self.height, key);
        self.count -= usize::from(old.is_some());
        old
    }

    /// The value at `key` for changing in place (copied first if a snapshot shares it).
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.get(key)?;
        let mut node = Arc::make_mut(&mut self.root);
        for height in (0..=self.height).rev() {
            let (position, _) = node.position(slot(key, height));
            match &mut node.slots {
                Slots::Inner(children) => node = Arc::make_mut(&mut children[position]),
                Slots::Leaf(values) => return values.get_mut(position),
            }
        }
        None
    }

    /// The first entry with a key of at least `from`.
    pub fn at_or_after(&self, from: u64) -> Option<(u64, &T)> {
        if !fits(from, self.height) {
            return None;
        }
        after(&self.root, self.height, from, 0)
    }

    /// The last entry with a key of at most `upto`.
    pub fn at_or_before(&self, upto: u64) -> Option<(u64, &T)> {
        let upto = if fits(upto, self.height) { upto } else { (1u64 << (BITS * (self.height + 1))) - 1 };
        before(&self.root, self.height, upto, 0)
    }

    /// All entries in key order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let (key, value) = self.at_or_after(next?)?;
            next = key.checked_add(1);
            Some((key, value))
        })
    }

    /// Shows `found` each key whose value may not be the one of `before`, with both values. What both share is passed over:
    /// the work is in proportion to what was changed between them.
    pub fn changes(&self, before: &Trie<T>, found: &mut impl FnMut(u64, Option<&T>, Option<&T>)) {
        let (mut before, mut after) = (before.clone(), self.clone());
        while before.height < after.height {
            before.raise();
        }
        while after.height < before.height {
            after.raise();
        }
        changes(Some(&before.root), Some(&after.root), after.height, 0, found);
    }

    /// Adds a level above the root.
    fn raise(&mut self) {
        let empty = self.root.used == 0;
        let (used, children) = if empty { (0, vec![]) } else { (1, vec![self.root.clone()]) };
        self.root = Arc::new(Node { used, slots: Slots::Inner(children) });
        self.height += 1;
    }
}

fn insert<T: Clone>(node: &mut Node<T>, height: u32, key: u64, value: T) -> Option<T> {
    let slot = slot(key, height);
    let (position, used) = node.position(slot);
    node.used |= 1 << slot;
    match &mut node.slots {
        Slots::Leaf(values) if used => Some(std::mem::replace(&mut values[position], value)),
        Slots::Leaf(values) => {
            values.insert(position, value);
            None
        }
        Slots::Inner(children) => {
            if !used {
                let slots =
                    if height == 1 { Slots::Leaf(Vec::with_capacity(4)) } else { Slots::Inner(Vec::new()) };
                children.insert(position, Arc::new(Node { used: 0, slots }));
            }
            insert(Arc::make_mut(&mut children[position]), height - 1, key, value)
        }
    }
}

fn remove<T: Clone>(node: &mut Node<T>, height: u32, key: u64) -> Option<T> {
    let slot = slot(key, height);
    let (position, used) = node.position(slot);
    if !used {
        return None;
    }
    let (old, gone) = match &mut node.slots {
        Slots::Leaf(values) => (Some(values.remove(position)), true),
        Slots::Inner(children) => {
            let child = Arc::make_mut(&mut children[position]);
            let old = remove(child, height - 1, key);
            let gone = child.used == 0;
            if gone {
                children.remove(position);
            }
            (old, gone)
        }
    };
    if gone {
        node.used &= !(1 << slot);
    }
    old
}

/// The keys below two nodes of one place whose values may differ.
fn changes<T>(
    before: Option<&Arc<Node<T>>>,
    after: Option<&Arc<Node<T>>>,
    height: u32,
    prefix: u64,
    found: &mut impl FnMut(u64, Option<&T>, Option<&T>),
) {
    if let (Some(before), Some(after)) = (before, after)
        && Arc::ptr_eq(before, after)
    {
        return;
    }
    let mut used = before.map_or(0, |node| node.used) | after.map_or(0, |node| node.used);
    while used != 0 {
        let slot = used.trailing_zeros();
        used &= used - 1;
        let prefix = (prefix << BITS) | u64::from(slot);
        if height == 0 {
            found(prefix, before.and_then(|node| node.value(slot)), after.and_then(|node| node.value(slot)));
        } else {
            let (before, after) =
                (before.and_then(|node| node.child(slot)), after.and_then(|node| node.child(slot)));
            changes(before, after, height - 1, prefix, found);
        }
    }
}

/// The first entry at or after `from` below `node`, whose keys start with `prefix`.
fn after<T>(node: &Node<T>, height: u32, from: u64, prefix: u64) -> Option<(u64, &T)> {
    let first = slot(from, height);
    let mut candidates = node.used & (u32::MAX << first);
    while candidates != 0 {
        let slot = candidates.trailing_zeros();
        candidates &= candidates - 1;
        let (position, _) = node.position(slot);
        let prefix = (prefix << BITS) | u64::from(slot);
        match &node.slots {
            Slots::Leaf(values) => return Some((prefix, &values[position])),
            Slots::Inner(children) => {
                let from = if slot == first { from } else { 0 };
                if let found @ Some(_) = after(&children[position], height - 1, from, prefix) {
                    return found;
                }
            }
        }
    }
    None
}

/// The last entry at or before `upto` below `node`, whose keys start with `prefix`.
fn before<T>(node: &Node<T>, height: u32, upto: u64, prefix: u64) -> Option<(u64, &T)> {
    let last = slot(upto, height);
    let mut candidates = node.used & (u32::MAX >> (31 - last));
    while candidates != 0 {
        let slot = 31 - candidates.leading_zeros();
        candidates &= !(1 << slot);
        let (position, _) = node.position(slot);
        let prefix = (prefix << BITS) | u64::from(slot);
        match &node.slots {
            Slots::Leaf(values) => return Some((prefix, &values[position])),
            Slots::Inner(children) => {
                let upto = if slot == last { upto } else { u64::MAX };
                if let found @ Some(_) = before(&children[position], height - 1, upto, prefix) {
                    return found;
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::Trie;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn keys() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..200, 0u64..100_000, (0u64..1 << 40)]
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_and_snapshots_stay(ops in prop::collection::vec((keys(), any::<bool>()), 1..300), probe in keys()) {
            let mut trie = Trie::default();
            let mut model = BTreeMap::new();
            let mut snapshots = Vec::new();
            for (n, (key, put)) in ops.into_iter().enumerate() {
                if n % 50 == 0 {
                    snapshots.push((trie.clone(), model.clone()));
                }
                if put {
                    prop_assert_eq!(trie.insert(key, n), model.insert(key, n));
                } else {
                    prop_assert_eq!(trie.remove(key), model.remove(&key));
                }
            }
            snapshots.push((trie, model));
            for ((before, was), (after, is)) in snapshots.iter().zip(&snapshots[1..]) {
                for ((before, was), (after, is)) in [((before, was), (after, is)), ((after, is), (before, was))] {
                    let mut made = was.clone();
                    after.changes(before, &mut |key, old, new| {
                        assert_eq!((old, new), (was.get(&key), is.get(&key)));
                        match new {
                            Some(new) => drop(made.insert(key, *new)),
                            None => drop(made.remove(&key)),
                        }
                    });
                    prop_assert_eq!(&made, is);
                }
            }
            for (trie, model) in snapshots {
                prop_assert_eq!(trie.len(), model.len());
                prop_assert!(trie.iter().map(|(k, v)| (k, *v)).eq(model.iter().map(|(k, v)| (*k, *v))));
                prop_assert_eq!(trie.at_or_after(probe), model.range(probe..).next().map(|(k, v)| (*k, v)));
                prop_assert_eq!(trie.at_or_before(probe), model.range(..=probe).next_back().map(|(k, v)| (*k, v)));
                prop_assert_eq!(trie.get(probe), model.get(&probe));
            }
        }
    }

    #[test]
    fn only_what_was_changed_is_looked_at() {
        let mut trie = Trie::default();
        for key in 0..100_000 {
            trie.insert(key, 0);
        }
        let before = trie.clone();
        trie.insert(70_000, 1);
        trie.insert(1 << 30, 1);
        let mut looked = 0;
        trie.changes(&before, &mut |_, _, _| looked += 1);
        assert_eq!(looked, 32 + 1);
        trie.changes(&trie.clone(), &mut |_, _, _| panic!("nothing was changed"));
    }
}
