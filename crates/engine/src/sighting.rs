//! The one document that a statement is about, looked for beside the sequencer.
//!
//! ```text
//! snapshot ─► the first that match (a thread aside) ─► what has changed since ─► … ─► sequencer: the rest of that
//! ```
//!
//! Without an index that may take as long as there are documents, and all other writers would wait.
//!
//! Invariants
//! * What a sighting leads to is a document that the sequencer might have found itself, in the order asked for. Where it
//!   cannot tell, the sequencer looks: when others have taken all that was kept, when asking about what has changed fails,
//!   and for statements about many when more match than are kept.
//! * A sighting is of one collection: another one of its name is another one.
//! * What is found among the first few candidates is no reason to go aside.

use crate::collection::Collection;
use crate::command::{FindAndModify, Hint, Retry, Statement};
use crate::effects::{CollectionNumber, RecordNumber};
use crate::engine::Engine;
use crate::multi::{FEW_CANDIDATES, internal};
use crate::namespace::Namespace;
use crate::plan::{self, Access, Plan};
use crate::scan::Scan;
use crate::sequencer::{Request, is_interruption};
use crate::trie::Trie;
use rockdove_documents::filter::Filter;
use rockdove_documents::interrupt::{Interrupt, during};
use rockdove_documents::sort::Sort;
use rockdove_documents::{Doc, RawDoc, Result};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A document that is found among so many candidates is found soon.
const SOON: usize = 20;
/// So many documents that match are kept: others may take the first ones meanwhile.
const KEPT_MAX: usize = 16;
/// After the first one so many more candidates are asked about, for others to keep.
const MORE_MAX: usize = 1000;
/// So many changed documents are left to the sequencer.
const REST_MAX: usize = 500;
/// How often what has changed meanwhile is caught up with, or all is looked for anew.
const ROUNDS_MAX: usize = 10;

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

impl Selection<'_> {
    /// That of a statement, which may be about many documents.
    pub fn of(statement: &Statement) -> Option<Selection<'_>> {
        let (ns, filter, sort, hint) = match statement {
            Statement::Update(update) => (&update.ns, &update.filter, &update.sort, &update.hint),
            Statement::Delete(delete) => (&delete.ns, &delete.filter, &None, &delete.hint),
            Statement::Insert { .. } | Statement::Refused(_) => return None,
        };
        Some(Selection { ns, filter, sort: sort.as_ref(), hint: hint.as_ref() })
    }
}

/// What may be about one document.
pub trait Selects {
    /// Which one, if it is about one that is there.
    fn selection(&self) -> Option<Selection<'_>>;
}

impl Selects for Statement {
    fn selection(&self) -> Option<Selection<'_>> {
        if self.is_multi() { None } else { Selection::of(self) }
    }
}

impl Selects for FindAndModify {
    fn selection(&self) -> Option<Selection<'_>> {
        let FindAndModify { ns, filter, sort, hint, .. } = self;
        Some(Selection { ns, filter, sort: sort.as_ref(), hint: hint.as_ref() })
    }
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
    /// The newest come first where the order asked for does not tell.
    newest_first: bool,
    /// The first ones in their order.
    firsts: Vec<(Rank, Hit)>,
    /// What comes later than this was not kept; `None` if all was.
    upto: Option<Rank>,
}

/// Where a document stands in the order asked for.
type Rank = (Vec<u8>, u64);

/// What looking for `subject`'s document led to.
pub struct Looked<T> {
    /// What it was looked for.
    pub subject: T,
    /// What was seen, if it was much work; an error if asking about a document fails.
    pub seen: Result<Option<Box<Sighting>>>,
}

/// Looks for the document that `subject` is about, if that is much work and `retry` does not say that it is done: the
/// statement with this number.
///
/// # Errors
/// What the interrupt answers; 91 if the engine closes.
pub async fn look<T: Selects + Send + 'static>(
    engine: &Engine,
    turns: &Arc<Semaphore>,
    subject: T,
    retry: Option<(&Retry, i32)>,
    interrupt: Option<Interrupt>,
) -> Result<Looked<T>> {
    if !is_much(engine, &subject) || is_done(engine, retry).await? {
        return Ok(Looked { subject, seen: Ok(None) });
    }
    let turn = turns.clone().acquire_owned().await.map_err(|error| internal(&error))?;
    let engine = engine.clone();
    let work = move || {
        let _turn = turn;
        let look = || subject.selection().map_or(Ok(None), |one| see(&engine, one));
        match during(interrupt.as_ref(), look) {
            Err(error) if is_interruption(&error) => Err(error),
            seen => Ok(Looked { subject, seen: seen.map(|seen| seen.map(Box::new)) }),
        }
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| internal(&error))?
}

/// Whether it would be much work to look.
fn is_much(engine: &Engine, subject: &impl Selects) -> bool {
    let Some(Selection { ns, filter, sort, hint }) = subject.selection() else { return false };
    let state = engine.snapshot();
    let Some(collection) = state.collection(ns).filter(|there| there.info.view.is_none()) else {
        return false;
    };
    if filter.is_cheap() && collection.len() <= FEW_CANDIDATES {
        return false;
    }
    let Ok(plan) = plan::choose(collection, filter, sort, hint) else { return false };
    if hint.is_some() && reads_a_part(collection, &plan) {
        return false;
    }
    let found_soon = || {
        let mut candidates = Scan::new(collection.clone(), plan.clone()).take(SOON);
        is_in_order(&plan, sort) && candidates.any(|(_, doc)| filter.matches(doc.raw()) == Ok(true))
    };
    !filter.is_cheap() || (plan.reads_more_than(collection, FEW_CANDIDATES) && !found_soon())
}

/// Whether an index is read that does not have all documents: what has changed may not be in it.
fn reads_a_part(collection: &Collection, plan: &Plan) -> bool {
    let Access::Index { index, .. } = &plan.access else { return false };
    let spec = &collection.indexes()[*index].spec;
    spec.sparse || spec.partial.is_some()
}

/// Whether the first candidate that matches is the one.
fn is_in_order(plan: &Plan, sort: Option<&Sort>) -> bool {
    plan.sorted || sort.is_none()
}

/// Whether a retryable statement is a repetition.
pub async fn is_done(engine: &Engine, retry: Option<(&Retry, i32)>) -> Result<bool> {
    let Some((retry, number)) = retry else { return Ok(false) };
    let retry = Box::new(retry.clone());
    engine.ask(|to| Request::IsDone(retry, number, to)).await
}

/// Looks through the newest snapshot and catches up until little has changed since, or others are always quicker: the
/// sequencer has the rest then. `None` if the collection has gone.
fn see(engine: &Engine, selection: Selection<'_>) -> Result<Option<Sighting>> {
    let mut seen: Option<Sighting> = None;
    for _ in 0..ROUNDS_MAX {
        let state = engine.snapshot();
        let Some(collection) = state.collection(selection.ns) else { return Ok(None) };
        let rest = match &mut seen {
            Some(seen) => seen.catch_up(collection, selection)?,
            None => None,
        };
        match rest {
            Some(rest) if rest <= REST_MAX => return Ok(seen),
            Some(_) => {}
            None => seen = Some(Sighting::new(collection, selection)?),
        }
    }
    Ok(seen)
}

impl Sighting {
    /// That nothing matches in this collection.
    pub fn none(collection: &Collection) -> Sighting {
        let (number, records) = (collection.info.number, collection.trie().clone());
        Sighting { collection: number, records, newest_first: false, firsts: vec![], upto: None }
    }

    fn new(collection: &Arc<Collection>, selection: Selection<'_>) -> Result<Sighting> {
        let Selection { filter, sort, hint, .. } = selection;
        let plan = plan::choose(collection, filter, sort, hint)?;
        let in_order = is_in_order(&plan, sort);
        let newest_first = plan.access == Access::Natural { reverse: true };
        let mut seen = Sighting { newest_first, ..Sighting::none(collection) };
        let mut more = MORE_MAX;
        for (record, doc) in Scan::new(collection.clone(), plan) {
            let is_more = in_order && !seen.firsts.is_empty();
            if is_more && (more == 0 || seen.firsts.len() == KEPT_MAX) {
                seen.end_here();
                break;
            }
            more -= usize::from(is_more);
            let mut positional = None;
            match filter.matches_positional(doc.raw(), &mut positional) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(error) if is_more && !is_interruption(&error) => {
                    seen.end_here(); // the sequencer would not have come here
                    break;
                }
                Err(error) => return Err(error),
            }
            seen.add(sort, Hit { record, doc, positional })?;
            if seen.firsts.len() == 2 * KEPT_MAX {
                seen.keep_first();
            }
        }
        seen.keep_first();
        Ok(seen)
    }

    /// Takes in what has changed; how many documents did. `None` if it is of no more use.
    fn catch_up(&mut self, collection: &Collection, selection: Selection<'_>) -> Result<Option<usize>> {
        if collection.info.number != self.collection {
            return Ok(None);
        }
        let mut changed = Vec::new();
        collection.trie().changes(&self.records, &mut |record, before, after| {
            if before != after {
                changed.push((record, after.cloned())); // in the order of the records
            }
        });
        let is_changed = |record| changed.binary_search_by_key(&record, |(record, _)| *record).is_ok();
        self.firsts.retain(|(_, hit)| !is_changed(hit.record));
        if self.firsts.is_empty() && self.upto.is_some() {
            return Ok(None);
        }
        let count = changed.len();
        for (record, doc) in changed.into_iter().filter_map(|(record, doc)| Some((record, doc?))) {
            let mut positional = None;
            let matches = selection.filter.matches_positional(doc.raw(), &mut positional);
            let hit = Hit { record, doc, positional };
            match matches.and_then(|matches| if matches { self.add(selection.sort, hit) } else { Ok(()) }) {
                Ok(()) => {}
                Err(error) if is_interruption(&error) => return Err(error),
                Err(_) => return Ok(None), // a scan may end before it comes here
            }
            if self.firsts.len() == 2 * KEPT_MAX {
                self.keep_first();
            }
        }
        self.keep_first();
        self.records = collection.trie().clone();
        Ok(Some(count))
    }

    /// What matches now in the order asked for: the first document, or all of them. `None` if that is not known.
    pub fn recall(
        mut self,
        collection: &Collection,
        selection: Selection<'_>,
        one: bool,
    ) -> Result<Option<Vec<Hit>>> {
        if self.catch_up(collection, selection)?.is_none() || !(one || self.upto.is_none()) {
            return Ok(None);
        }
        let hits = self.firsts.into_iter().map(|(_, hit)| hit);
        Ok(Some(hits.take(if one { 1 } else { usize::MAX }).collect()))
    }

    fn add(&mut self, sort: Option<&Sort>, hit: Hit) -> Result<()> {
        let rank = rank(sort, self.newest_first, hit.record, hit.doc.raw())?;
        if self.upto.as_ref().is_none_or(|upto| rank <= *upto) {
            self.firsts.push((rank, hit));
        }
        Ok(())
    }

    /// Keeps the first ones, in their order.
    fn keep_first(&mut self) {
        self.firsts.sort_by(|a, b| a.0.cmp(&b.0));
        if self.firsts.len() > KEPT_MAX {
            self.firsts.truncate(KEPT_MAX);
            self.end_here();
        }
    }

    /// Nothing is known of what comes after those that are kept.
    fn end_here(&mut self) {
        self.upto = self.firsts.iter().map(|(rank, _)| rank.clone()).max();
    }
}

fn rank(sort: Option<&Sort>, newest_first: bool, record: RecordNumber, doc: RawDoc<'_>) -> Result<Rank> {
    let key = match sort.filter(|sort| sort.natural().is_none()) {
        Some(sort) => sort.key(doc)?,
        None => vec![],
    };
    Ok((key, if newest_first { u64::MAX - record } else { record }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::{CollectionInfo, Scratch};
    use crate::index::IndexSpec;
    use crate::scan;
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

    /// What the sequencer finds: the first that matches in a scan, or the first of all in the order asked for.
    fn scanned(collection: &Arc<Collection>, selection: Selection<'_>) -> Option<(u64, Option<usize>, i64)> {
        let Selection { filter, sort, hint, .. } = selection;
        let scan = scan::start(collection, filter, sort, hint).unwrap();
        let in_order = scan.in_order() || sort.is_none();
        let matching = scan.filter_map(|(record, doc)| {
            let mut positional = None;
            let matches = filter.matches_positional(doc.raw(), &mut positional).unwrap();
            let rank = doc.get("rank").and_then(|rank| rank.as_integer()).unwrap();
            matches.then_some((record, positional, rank))
        });
        match in_order {
            true => matching.into_iter().next(),
            false => matching.min_by_key(|(_, _, rank)| -rank),
        }
    }

    fn changes(count: usize) -> impl Strategy<Value = Vec<(u64, Option<i32>)>> {
        prop::collection::vec((1u64..150, prop::option::of(0..30)), 0..count)
    }

    proptest! {
        #[test]
        fn what_is_recalled_is_what_the_sequencer_finds(
            before in changes(300),
            after in prop::collection::vec(changes(40), 1..5),
            order in 0..4,
            way in 0..4,
            has_index: bool,
        ) {
            let mut collection = collection(1);
            if has_index {
                let spec = Arc::new(IndexSpec::parse(doc! { "key": { "rank": 1 }, "name": "r" }.raw()).unwrap());
                Arc::make_mut(&mut collection).create_index(spec, &mut Scratch::default()).ok().unwrap();
            }
            before.into_iter().for_each(|one| change(&mut collection, one));
            let filter = Filter::parse(doc! { "kind": 1, "of": 1 }.raw(), &Default::default()).unwrap();
            let sorts = [None, Some(doc! { "rank": -1 }), Some(doc! { "$natural": -1 }), Some(doc! { "$natural": 1 })];
            let sort = sorts[order as usize].as_ref().map(|sort| Sort::parse(sort.raw(), None).unwrap());
            let natural = |reverse| Some(Hint::Natural { reverse });
            let ways = [None, natural(false), natural(true), has_index.then(|| Hint::Name("r".into()))];
            let hint = ways[way as usize].as_ref();
            let ns = collection.info.ns.clone();
            let selection = Selection { ns: &ns, filter: &filter, sort: sort.as_ref(), hint };
            let mut seen = Sighting::new(&collection, selection).unwrap();
            let (last, rounds) = after.split_last().unwrap();
            for round in rounds {
                round.iter().for_each(|one| change(&mut collection, *one));
                if seen.catch_up(&collection, selection).unwrap().is_none() {
                    seen = Sighting::new(&collection, selection).unwrap();
                }
            }
            last.iter().for_each(|one| change(&mut collection, *one));
            let left = seen.firsts.iter().any(|(_, hit)| last.iter().all(|(record, _)| *record != hit.record));
            let is_complete = seen.upto.is_none();
            let Some(hits) = seen.recall(&collection, selection, true).unwrap() else {
                prop_assert!(!left && !is_complete, "it could be told");
                return Ok(());
            };
            let rank = |hit: &Hit| hit.doc.get("rank").and_then(|rank| rank.as_integer()).unwrap();
            let found = hits.first().map(|hit| (hit.record, hit.positional, rank(hit)));
            let expected = scanned(&collection, selection);
            match (order, way) {
                (1, _) => prop_assert_eq!(found.map(|found| found.2), expected.map(|found| found.2)),
                (0, 3) if has_index => prop_assert_eq!(found.is_some(), expected.is_some()),
                _ => prop_assert_eq!(found, expected),
            }
        }
    }

    #[test]
    fn another_collection_of_the_name_is_unknown() {
        let (mut one, other) = (collection(1), collection(2));
        change(&mut one, (1, Some(1)));
        let filter = Filter::all();
        let selection = Selection { ns: &one.info.ns.clone(), filter: &filter, sort: None, hint: None };
        let seen = || Sighting::new(&one, selection).unwrap();
        assert_eq!(seen().recall(&one, selection, true).unwrap().map(|hits| hits.len()), Some(1));
        assert!(seen().recall(&other, selection, true).unwrap().is_none());
    }

    #[test]
    fn what_has_changed_may_not_be_in_a_part_of_the_documents() {
        let mut there = collection(1);
        let specs = [
            (doc! { "key": { "a": 1 }, "name": "all" }, false),
            (doc! { "key": { "b": 1 }, "name": "sparse", "sparse": true }, true),
            (doc! { "key": { "c": 1 }, "name": "partial", "partialFilterExpression": { "c": 1 } }, true),
        ];
        for (spec, is_part) in specs {
            let spec = Arc::new(IndexSpec::parse(spec.raw()).unwrap());
            let hint = Hint::Name(spec.name.clone());
            Arc::make_mut(&mut there).create_index(spec, &mut Scratch::default()).ok().unwrap();
            let plan = plan::choose(&there, &Filter::all(), None, Some(&hint)).unwrap();
            assert_eq!(reads_a_part(&there, &plan), is_part, "{hint:?}");
        }
    }

    #[test]
    fn what_nobody_would_have_asked_about_is_no_error() {
        let mut there = collection(1);
        for record in 1..10 {
            change(&mut there, (record, Some(1)));
        }
        let expr = doc! { "$expr": { "$gt": [{ "$divide": [1, "$rank"] }, 0] } };
        let filter = rockdove_documents::expr::Surroundings::default().parse_filter(expr.raw()).unwrap();
        let selection = Selection { ns: &there.info.ns.clone(), filter: &filter, sort: None, hint: None };
        let seen = Sighting::new(&there, selection).unwrap();
        change(&mut there, (20, Some(0)));
        assert!(seen.recall(&there, selection, true).unwrap().is_none(), "it is to be looked for anew");
        let seen = Sighting::new(&there, selection).unwrap();
        assert_eq!(seen.recall(&there, selection, true).unwrap().map(|hits| hits[0].record), Some(1));
        change(&mut there, (1, Some(0)));
        assert!(Sighting::new(&there, selection).is_err(), "it comes first");
    }
}
