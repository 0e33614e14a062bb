//! Candidates for a query: which records to look at, in which order.
//!
//! The filter is always checked again on each candidate, so a plan may be too wide but never too narrow.
//!
//! Invariants
//! * A scan reads one snapshot of one collection and yields no record twice.
//! * Without an index it yields records in insertion order.

use crate::collection::Collection;
use crate::command::Hint;
use crate::effects::RecordNumber;
use crate::index::record_of;
use crate::plan::{self, Access, Interval, Plan};
use crate::tree::Cursor;
use rockdove_documents::filter::Filter;
use rockdove_documents::sort::Sort;
use rockdove_documents::{Doc, Result};
use std::collections::HashSet;
use std::sync::Arc;

/// Records of one collection, one after another.
pub struct Scan {
    collection: Arc<Collection>,
    state: Progress,
    sorted: bool,
    /// Index entries looked at.
    keys_examined: u64,
    /// Documents looked at.
    docs_examined: u64,
}

enum Progress {
    /// All records; the next one to look for, if any.
    Natural { next: Option<RecordNumber>, reverse: bool },
    /// Intervals of an index.
    Index {
        index: usize,
        intervals: std::vec::IntoIter<Interval>,
        current: Option<(Cursor, Interval)>,
        reverse: bool,
        /// Records that were yielded, if the index may hold a record more than once.
        seen: Option<HashSet<RecordNumber, foldhash::fast::RandomState>>,
    },
}

/// Plans and starts the scan for a query.
pub fn start(
    collection: &Arc<Collection>,
    filter: &Filter,
    sort: Option<&Sort>,
    hint: Option<&Hint>,
) -> Result<Scan> {
    Ok(Scan::new(collection.clone(), plan::choose(collection, filter, sort, hint)?))
}

impl Scan {
    /// Starts a planned scan.
    pub fn new(collection: Arc<Collection>, plan: Plan) -> Scan {
        let state = match plan.access {
            Access::Natural { reverse } => {
                Progress::Natural { next: Some(if reverse { RecordNumber::MAX } else { 0 }), reverse }
            }
            Access::Index { index, mut intervals, reverse } => {
                let multikey = collection.indexes()[index].multikey;
                if reverse {
                    intervals.reverse();
                }
                let seen = multikey.then(HashSet::default);
                Progress::Index { index, intervals: intervals.into_iter(), current: None, reverse, seen }
            }
        };
        Scan { collection, state, sorted: plan.sorted, keys_examined: 0, docs_examined: 0 }
    }

    /// Whether records come in the order of the sort that was asked for.
    pub fn in_order(&self) -> bool {
        self.sorted
    }

    /// Index entries and documents looked at so far.
    pub fn examined(&self) -> (u64, u64) {
        (self.keys_examined, self.docs_examined)
    }

    fn next_natural(&mut self) -> Option<(RecordNumber, Doc)> {
        let Progress::Natural { next, reverse } = &mut self.state else { return None };
        let found = if *reverse {
            self.collection.at_or_before((*next)?)
        } else {
            self.collection.at_or_after((*next)?)
        };
        let (record, doc) = found?;
        *next = if *reverse { record.checked_sub(1) } else { record.checked_add(1) };
        self.docs_examined += 1;
        Some((record, doc.clone()))
    }

    fn next_indexed(&mut self) -> Option<(RecordNumber, Doc)> {
        let Progress::Index { index, intervals, current, reverse, seen } = &mut self.state else {
            return None;
        };
        let tree = &self.collection.indexes().get(*index)?.tree;
        loop {
            let Some((cursor, interval)) = current else {
                let interval = intervals.next()?;
                let cursor = if *reverse { interval.end(tree) } else { tree.seek(&interval.low) };
                *current = Some((cursor, interval));
                continue;
            };
            let Some(entry) = cursor.key().filter(|entry| interval.contains(entry)) else {
                *current = None;
                continue;
            };
            let record = record_of(entry);
            self.keys_examined += 1;
            if *reverse {
                cursor.retreat();
            } else {
                cursor.advance();
            }
            if seen.as_mut().is_some_and(|seen| !seen.insert(record)) {
                continue;
            }
            if let Some(doc) = self.collection.get(record) {
                self.docs_examined += 1;
                return Some((record, doc.clone()));
            }
        }
    }
}

impl Iterator for Scan {
    type Item = (RecordNumber, Doc);

    fn next(&mut self) -> Option<(RecordNumber, Doc)> {
        match self.state {
            Progress::Natural { .. } => self.next_natural(),
            Progress::Index { .. } => self.next_indexed(),
        }
    }
}
