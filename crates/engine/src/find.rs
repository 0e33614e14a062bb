//! Reading: a query over a snapshot, evaluated lazily. Each candidate counts as a step that an interrupt can end.

use crate::collection::Collection;
use crate::command::Hint;
use crate::engine::Engine;
use crate::namespace::Namespace;
use crate::plan::{self, Plan};
use crate::scan::Scan;
use crate::state::State;
use rockdove_documents::filter::Filter;
use rockdove_documents::projection::Projection;
use rockdove_documents::sort::Sort;
use rockdove_documents::{Doc, Error, Result};
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Documents that a sort without an index may hold, in bytes (MongoDB manual, limits: 100 MiB).
const SORT_BYTES_MAX: usize = 100 << 20;

/// A query.
#[derive(Clone, Debug)]
pub struct Find {
    /// Where.
    pub ns: Namespace,
    /// Which documents.
    pub filter: Filter,
    /// In which order.
    pub sort: Option<Sort>,
    /// Which of their fields.
    pub projection: Option<Projection>,
    /// How many to leave out at the beginning.
    pub skip: u64,
    /// How many at most; 0 means all.
    pub limit: u64,
    /// Which index to use.
    pub hint: Option<Hint>,
}

impl Find {
    /// All documents of a collection that match `filter`.
    pub fn new(ns: Namespace, filter: Filter) -> Find {
        Find { ns, filter, sort: None, projection: None, skip: 0, limit: 0, hint: None }
    }
}

/// The documents of a query, one after another, as they were when it began.
pub struct Documents {
    source: Source,
    filter: Filter,
    projection: Option<Projection>,
    skip: u64,
    left: Option<u64>,
}

enum Source {
    /// Candidates still to be checked.
    Scan(Scan),
    /// Matching documents in order, with the position of the array element that matched.
    Sorted(std::vec::IntoIter<(Doc, Option<usize>)>),
    Nothing,
}

impl Engine {
    /// Starts a query on what is visible now. Sorting without an index reads all matching documents here.
    pub fn find(&self, find: Find) -> Result<Documents> {
        find_in(&self.snapshot(), find)
    }
}

/// Starts a query on a snapshot.
pub fn find_in(state: &State, find: Find) -> Result<Documents> {
    Query::plan(state, find)?.documents()
}

/// A query on a snapshot with its plan, not yet carried out.
#[derive(Clone)]
pub struct Query {
    find: Find,
    /// The collection as it is read, and how; `None` if there is no such collection.
    planned: Option<(Arc<Collection>, Plan)>,
}

impl Query {
    /// Plans a query.
    ///
    /// # Errors
    /// 2 (BadValue) for a hint to an index that is not there.
    pub fn plan(state: &State, find: Find) -> Result<Query> {
        let planned = match state.collection(&find.ns) {
            None => None,
            Some(collection) => {
                let plan = plan::choose(collection, &find.filter, find.sort.as_ref(), find.hint.as_ref())?;
                Some((collection.clone(), plan))
            }
        };
        Ok(Query { find, planned })
    }

    /// Whether asking about a document is little work: nothing is computed that may take long.
    pub fn is_cheap(&self) -> bool {
        self.find.filter.is_cheap() && self.find.projection.as_ref().is_none_or(Projection::is_cheap)
    }

    /// Whether carrying it out may look at more than `candidates_max` documents. Counts that many index entries at
    /// most.
    pub fn looks_at_more_than(&self, candidates_max: usize) -> bool {
        self.planned
            .as_ref()
            .is_some_and(|(collection, plan)| plan.reads_more_than(collection, candidates_max))
    }

    /// Starts it. Sorting without an index reads all matching documents here.
    pub fn documents(self) -> Result<Documents> {
        let Find { ns: _, filter, sort, projection, skip, limit, hint: _ } = self.find;
        let left = (limit > 0).then_some(limit);
        let mut documents = Documents { source: Source::Nothing, filter, projection, skip, left };
        let Some((collection, plan)) = self.planned else { return Ok(documents) };
        let scan = Scan::new(collection, plan);
        documents.source = match sort {
            Some(sort) if !scan.in_order() => {
                let keep = limit.checked_add(skip).filter(|_| limit > 0);
                Source::Sorted(documents.sorted(scan, &sort, keep)?.into_iter())
            }
            _ => Source::Scan(scan),
        };
        Ok(documents)
    }

    /// How many documents match, without building them.
    pub fn count(mut self) -> Result<u64> {
        if self.find.filter.is_all() {
            let whole = self.planned.map_or(0, |(collection, _)| collection.len() as u64);
            let rest = whole.saturating_sub(self.find.skip);
            return Ok(if self.find.limit > 0 { rest.min(self.find.limit) } else { rest });
        }
        (self.find.sort, self.find.projection) = (None, None);
        self.documents()?.try_fold(0, |count, doc| doc.map(|_| count + 1))
    }
}

/// A document with its sort key; ties keep the order of the scan.
struct Ranked {
    key: Vec<u8>,
    position: u64,
    doc: Doc,
    positional: Option<usize>,
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> std::cmp::Ordering {
        (&self.key, self.position).cmp(&(&other.key, other.position))
    }
}

impl Documents {
    /// All matching documents of `scan` in order, or the first `keep` of them.
    fn sorted(&mut self, scan: Scan, sort: &Sort, keep: Option<u64>) -> Result<Vec<(Doc, Option<usize>)>> {
        let keep = keep.and_then(|keep| usize::try_from(keep).ok());
        let mut best: BinaryHeap<Ranked> = BinaryHeap::new();
        let mut bytes = 0;
        for (position, (_, doc)) in scan.enumerate() {
            let Some(positional) = self.check(&doc)? else { continue };
            bytes += doc.bytes().len();
            best.push(Ranked { key: sort.key(doc.raw())?, position: position as u64, doc, positional });
            if keep.is_some_and(|keep| best.len() > keep) {
                bytes -= best.pop().map_or(0, |ranked| ranked.doc.bytes().len());
            }
            if bytes > SORT_BYTES_MAX {
                let message = format!(
                    "Sort exceeded memory limit of {SORT_BYTES_MAX} bytes; create an index for the sort order or add a limit"
                );
                return Err(Error::new(
                    rockdove_documents::Code {
                        number: 292,
                        name: "QueryExceededMemoryLimitNoDiskUseAllowed",
                    },
                    message,
                ));
            }
        }
        Ok(best.into_sorted_vec().into_iter().map(|ranked| (ranked.doc, ranked.positional)).collect())
    }

    /// Whether a candidate matches; with the position of the array element that did.
    fn check(&mut self, doc: &Doc) -> Result<Option<Option<usize>>> {
        let mut positional = None;
        Ok(self.filter.matches_positional(doc.raw(), &mut positional)?.then_some(positional))
    }

    fn next_match(&mut self) -> Result<Option<(Doc, Option<usize>)>> {
        loop {
            let doc = match &mut self.source {
                Source::Nothing => return Ok(None),
                Source::Sorted(sorted) => return Ok(sorted.next()),
                Source::Scan(scan) => match scan.next() {
                    Some((_, doc)) => doc,
                    None => return Ok(None),
                },
            };
            if let Some(positional) = self.check(&doc)? {
                return Ok(Some((doc, positional)));
            }
        }
    }

    fn next_document(&mut self) -> Result<Option<Doc>> {
        while self.skip > 0 {
            self.skip -= 1;
            if self.next_match()?.is_none() {
                return Ok(None);
            }
        }
        match &mut self.left {
            Some(0) => return Ok(None),
            Some(left) => *left -= 1,
            None => {}
        }
        let Some((doc, positional)) = self.next_match()? else { return Ok(None) };
        match &self.projection {
            Some(projection) => projection.apply(&doc, positional).map(Some),
            None => Ok(Some(doc)),
        }
    }
}

impl Iterator for Documents {
    type Item = Result<Doc>;

    fn next(&mut self) -> Option<Result<Doc>> {
        let next = self.next_document().transpose();
        if matches!(next, None | Some(Err(_))) {
            self.source = Source::Nothing;
        }
        next
    }
}

/// How many documents match, without building them.
pub fn count(state: &State, find: Find) -> Result<u64> {
    Query::plan(state, find)?.count()
}

/// What `explain` says of a query: the plan and what carrying it out looked at.
pub struct Explained {
    /// The plan in words: `COLLSCAN`, `IXSCAN`…
    pub plan: plan::Description,
    /// Documents found.
    pub returned: u64,
    /// Index entries looked at.
    pub keys_examined: u64,
    /// Documents looked at.
    pub docs_examined: u64,
}

/// Plans a query and, if `run`, carries it out for its figures.
pub fn explain(state: &State, find: &Find, run: bool) -> Result<Option<Explained>> {
    let Some(collection) = state.collection(&find.ns) else { return Ok(None) };
    let chosen = plan::choose(collection, &find.filter, find.sort.as_ref(), find.hint.as_ref())?;
    let plan = plan::describe(collection, &chosen, find.sort.is_some());
    let mut explained = Explained { plan, returned: 0, keys_examined: 0, docs_examined: 0 };
    if run {
        let mut scan = Scan::new(collection.clone(), chosen);
        for (_, doc) in scan.by_ref() {
            explained.returned += u64::from(find.filter.matches(doc.raw())?);
        }
        (explained.keys_examined, explained.docs_examined) = scan.examined();
        let after_skip = explained.returned.saturating_sub(find.skip);
        explained.returned = if find.limit > 0 { after_skip.min(find.limit) } else { after_skip };
    }
    Ok(Some(explained))
}
