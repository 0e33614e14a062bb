//! The one document that a statement is about, looked for beside the sequencer.
//!
//! ```text
//! snapshot ─► the first that match (a thread aside) ─► sequencer: what has changed since ─► the first of all
//! ```
//!
//! Without an index that may take as long as there are documents, and all other writers would wait.
//!
//! Invariants
//! * What a sighting leads to is what the sequencer would have found itself. Where it cannot tell, the sequencer looks.
//! * A sighting is of one collection: another one of its name is another one.

use crate::collection::Collection;
use crate::command::Hint;
use crate::effects::{CollectionNumber, RecordNumber};
use crate::multi::FEW_CANDIDATES;
use crate::namespace::Namespace;
use crate::plan::{self, Plan};
use crate::scan::Scan;
use crate::sequencer::is_interruption;
use crate::state::State;
use crate::trie::Trie;
use rockdove_documents::filter::Filter;
use rockdove_documents::interrupt::{Interrupt, during};
use rockdove_documents::key::Direction;
use rockdove_documents::sort::Sort;
use rockdove_documents::{Doc, Error, RawDoc, Result, code};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A document that is found among so many candidates is found soon.
const SOON: usize = 20;
/// So many documents that match are kept: others may take the first ones meanwhile.
const KEPT_MAX: usize = 16;
/// After the first one so many more candidates are asked about, for others to keep.
const MORE_MAX: usize = 1000;

/// Which document a statement is about.
#[derive(Clone, Copy)]
pub struct Selection<'s> {
    /// Where.
    pub ns: &'s Namespace,
    /// What matches.
    pub filter: &'s Filter,
    /// Which is the first.
    pub sort: Option<&'s Sort>,
    /// Which index to use.
    pub hint: Option<&'s Hint>,
}

/// A document that a statement found.
pub struct Hit {
    /// Its number.
    pub record: RecordNumber,
    /// What it is.
    pub doc: Doc,
    /// Position of the array element that the filter matched, for the positional `$`.
    pub positional: Option<usize>,
}

/// The first documents that matched in a snapshot.
pub struct Sighting {
    collection: CollectionNumber,
    /// What was looked through.
    records: Trie<Doc>,
    /// The first ones in their order, with the positions of array elements that the filter matched.
    firsts: Vec<(RecordNumber, Option<usize>)>,
    /// No others matched.
    is_complete: bool,
}

/// What a sighting leads to.
pub enum Recalled {
    /// The first document that matches now, if any does.
    Found(Option<Hit>),
    /// All that was kept has changed: it is to be looked for anew.
    Unknown,
}

/// Looks for the document that `subject` is about, if that is much work; the subject comes back.
///
/// # Errors
/// What the interrupt answers. Other errors are left to the sequencer to find.
pub async fn look<T: Send + 'static>(
    state: &State,
    turns: &Arc<Semaphore>,
    subject: T,
    about: fn(&T) -> Option<Selection<'_>>,
    interrupt: Option<Interrupt>,
) -> Result<(T, Option<Box<Sighting>>)> {
    let Some((collection, plan)) = about(&subject).and_then(|one| is_much(state, one)) else {
        return Ok((subject, None));
    };
    let turn = turns.clone().acquire_owned().await.map_err(|error| internal(&error))?;
    let work = move || {
        let _turn = turn;
        let look = || about(&subject).map(|one| Sighting::look(&collection, plan, one)).transpose();
        match during(interrupt.as_ref(), look) {
            Ok(seen) => Ok((subject, seen.map(Box::new))),
            Err(error) if is_interruption(&error) => Err(error),
            Err(_) => Ok((subject, None)),
        }
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| internal(&error))?
}

fn internal(error: &dyn std::error::Error) -> Error {
    Error::new(code::INTERNAL_ERROR, format!("a document could not be looked for: {error}"))
}

/// Where and how to look, if that is much work.
fn is_much(state: &State, selection: Selection<'_>) -> Option<(Arc<Collection>, Plan)> {
    let Selection { ns, filter, sort, hint } = selection;
    let collection = state.collection(ns).filter(|there| there.info.view.is_none())?;
    if filter.is_cheap() && collection.len() <= FEW_CANDIDATES {
        return None;
    }
    let plan = plan::choose(collection, filter, sort, hint).ok()?;
    let found_soon = || {
        let mut candidates = Scan::new(collection.clone(), plan.clone()).take(SOON);
        plan.sorted && candidates.any(|(_, doc)| filter.matches(doc.raw()) == Ok(true))
    };
    if filter.is_cheap() && (found_soon() || !plan.reads_more_than(collection, FEW_CANDIDATES)) {
        return None;
    }
    Some((collection.clone(), plan))
}

impl Sighting {
    fn look(collection: &Arc<Collection>, plan: Plan, selection: Selection<'_>) -> Result<Sighting> {
        let Selection { filter, sort, .. } = selection;
        let in_order = plan.sorted;
        let mut firsts = Vec::new();
        let (mut is_complete, mut more) = (true, MORE_MAX);
        for (record, doc) in Scan::new(collection.clone(), plan) {
            if in_order && !firsts.is_empty() {
                if more == 0 || firsts.len() == KEPT_MAX {
                    is_complete = false;
                    break;
                }
                more -= 1;
            }
            let mut positional = None;
            if !filter.matches_positional(doc.raw(), &mut positional)? {
                continue;
            }
            let rank = if in_order { Rank::default() } else { rank(sort, record, doc.raw())? };
            firsts.push((rank, record, positional));
            if firsts.len() == 2 * KEPT_MAX {
                is_complete &= !keep_first(&mut firsts);
            }
        }
        is_complete &= !keep_first(&mut firsts);
        let firsts = firsts.into_iter().map(|(_, record, positional)| (record, positional)).collect();
        let (collection, records) = (collection.info.number, collection.trie().clone());
        Ok(Sighting { collection, records, firsts, is_complete })
    }

    /// The first document of `collection` that matches now.
    pub fn recall(&self, collection: &Collection, selection: Selection<'_>) -> Result<Recalled> {
        let Selection { filter, sort, .. } = selection;
        if collection.info.number != self.collection {
            return Ok(Recalled::Unknown);
        }
        let mut changed = HashMap::new();
        collection.trie().changes(&self.records, &mut |record, before, after| {
            if before.map(Doc::bytes) != after.map(Doc::bytes) {
                changed.insert(record, after.cloned());
            }
        });
        let unchanged = self.firsts.iter().find(|(record, _)| !changed.contains_key(record));
        if unchanged.is_none() && !self.is_complete {
            return Ok(Recalled::Unknown);
        }
        let mut best = match unchanged.and_then(|one| Some((*one, collection.get(one.0)?.clone()))) {
            Some(((record, positional), doc)) => {
                Some((rank(sort, record, doc.raw())?, Hit { record, doc, positional }))
            }
            None => None,
        };
        for (record, doc) in changed.into_iter().filter_map(|(record, doc)| Some((record, doc?))) {
            let mut positional = None;
            if filter.matches_positional(doc.raw(), &mut positional)? {
                let rank = rank(sort, record, doc.raw())?;
                if best.as_ref().is_none_or(|(first, _)| rank < *first) {
                    best = Some((rank, Hit { record, doc, positional }));
                }
            }
        }
        Ok(Recalled::Found(best.map(|(_, hit)| hit)))
    }
}

/// Where a document stands in the order asked for.
type Rank = (Vec<u8>, u64);

fn rank(sort: Option<&Sort>, record: RecordNumber, doc: RawDoc<'_>) -> Result<Rank> {
    Ok(match sort.map(|sort| (sort, sort.natural())) {
        Some((_, Some(Direction::Descending))) => (vec![], u64::MAX - record),
        None | Some((_, Some(_))) => (vec![], record),
        Some((sort, None)) => (sort.key(doc)?, record),
    })
}

/// Keeps the first ones, in their order; whether others had to go.
fn keep_first<T>(firsts: &mut Vec<(Rank, RecordNumber, T)>) -> bool {
    firsts.sort_by(|a, b| a.0.cmp(&b.0)); // stable: what has no rank is in order
    let too_many = firsts.len() > KEPT_MAX;
    firsts.truncate(KEPT_MAX);
    too_many
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::{CollectionInfo, Scratch};
    use proptest::prelude::*;
    use rockdove_documents::doc;

    fn collection(number: CollectionNumber) -> Arc<Collection> {
        let ns = Namespace::new("db", "c").unwrap();
        Arc::new(Collection::new(CollectionInfo::new(number, ns, [0; 16], Doc::empty()).unwrap()))
    }

    /// Inserts, replaces or removes a document.
    fn change(collection: &mut Arc<Collection>, (record, value): (u64, Option<i32>)) {
        let (collection, scratch) = (Arc::make_mut(collection), &mut Scratch::default());
        let doc = |n: i32| doc! { "_id": record as i32, "kind": n % 3, "of": [9, n % 3], "rank": n };
        match (value, collection.get(record).is_some()) {
            (Some(n), true) => collection.replace(record, doc(n), scratch).unwrap(),
            (Some(n), false) => collection.insert(record, doc(n), scratch).unwrap(),
            (None, _) => drop(collection.remove(record, scratch)),
        }
    }

    /// The record and position that a scan finds first, by the order that sightings keep.
    fn scanned(collection: &Arc<Collection>, selection: Selection<'_>) -> Option<(u64, Option<usize>)> {
        let first = |(record, doc): (u64, &Doc)| {
            let mut positional = None;
            let matches = selection.filter.matches_positional(doc.raw(), &mut positional).unwrap();
            matches.then(|| (rank(selection.sort, record, doc.raw()).unwrap(), (record, positional)))
        };
        let all = collection.records().filter_map(first);
        all.min().map(|(_, found)| found)
    }

    fn changes(count: usize) -> impl Strategy<Value = Vec<(u64, Option<i32>)>> {
        prop::collection::vec((1u64..150, prop::option::of(0..30)), 0..count)
    }

    proptest! {
        #[test]
        fn what_is_recalled_is_what_a_scan_finds(before in changes(300), after in changes(60), order in 0..4) {
            let mut collection = collection(1);
            before.into_iter().for_each(|one| change(&mut collection, one));
            let filter = Filter::parse(doc! { "kind": 1, "of": 1 }.raw(), &Default::default()).unwrap();
            let sort = [None, Some(doc! { "rank": -1 }), Some(doc! { "$natural": -1 }), Some(doc! { "$natural": 1 })];
            let sort = sort[order as usize].as_ref().map(|sort| Sort::parse(sort.raw(), None).unwrap());
            let selection =
                Selection { ns: &collection.info.ns.clone(), filter: &filter, sort: sort.as_ref(), hint: None };
            let plan = plan::choose(&collection, &filter, sort.as_ref(), None).unwrap();
            let sighting = Sighting::look(&collection, plan, selection).unwrap();
            let some_left = sighting.firsts.iter().any(|(record, _)| after.iter().all(|(other, _)| record != other));
            after.into_iter().for_each(|one| change(&mut collection, one));
            match sighting.recall(&collection, selection).unwrap() {
                Recalled::Found(hit) => {
                    let found = hit.map(|hit| (hit.record, hit.positional));
                    prop_assert_eq!(found, scanned(&collection, selection));
                }
                Recalled::Unknown => prop_assert!(!some_left && !sighting.is_complete),
            }
        }
    }

    #[test]
    fn another_collection_of_the_name_is_unknown() {
        let (mut one, other) = (collection(1), collection(2));
        change(&mut one, (1, Some(1)));
        let filter = Filter::all();
        let selection = Selection { ns: &one.info.ns.clone(), filter: &filter, sort: None, hint: None };
        let plan = plan::choose(&one, &filter, None, None).unwrap();
        let sighting = Sighting::look(&one, plan, selection).unwrap();
        assert!(matches!(sighting.recall(&one, selection), Ok(Recalled::Found(Some(_)))));
        assert!(matches!(sighting.recall(&other, selection), Ok(Recalled::Unknown)));
    }
}
