//! The planner: which index, if any, and which parts of it.
//!
//! An index is usable if every matching document is in it. Of the usable ones the best ranked wins: first those
//! whose leading fields are fixed by the filter, then those that give the order that was asked for. Plans are
//! supersets: the filter is asked about each candidate.

use crate::collection::Collection;
use crate::command::Hint;
use crate::index::{Index, IndexSpec};
use crate::tree::{Cursor, Tree};
use rockdove_documents::filter::{Filter, Node, Test};
use rockdove_documents::key::{Direction, END, encode_key};
use rockdove_documents::sort::Sort;
use rockdove_documents::{Doc, Error, Result, Value};

/// Most parts of an index that a plan reads; a longer `$in` on a later field is left to the filter.
const INTERVALS_MAX: usize = 1000;

/// How to read a collection for a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Where the candidates come from.
    pub access: Access,
    /// Whether they come in the order of the sort.
    pub sorted: bool,
}

impl Plan {
    /// Whether there are more than `candidates_max` candidates; counts no more of them.
    pub fn reads_more_than(&self, collection: &Collection, candidates_max: usize) -> bool {
        if collection.len() <= candidates_max {
            return false;
        }
        let Access::Index { index, intervals, .. } = &self.access else { return true };
        let tree = &collection.indexes()[*index].tree;
        let mut left = candidates_max;
        for interval in intervals {
            let mut cursor = tree.seek(&interval.low);
            while cursor.key().is_some_and(|entry| interval.contains(entry)) {
                if left == 0 {
                    return true;
                }
                left -= 1;
                cursor.advance();
            }
        }
        false
    }
}

/// Where candidates come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Access {
    /// All records.
    Natural {
        /// Newest first.
        reverse: bool,
    },
    /// Parts of an index.
    Index {
        /// Its position among the collection's indexes.
        index: usize,
        /// Its parts, ascending and apart.
        intervals: Vec<Interval>,
        /// From the end to the beginning.
        reverse: bool,
    },
}

/// A part of an index: entries from `low` on and below `high`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// Bytes that no entry is below.
    pub low: Vec<u8>,
    /// Bytes that all entries are below.
    pub high: Vec<u8>,
}

impl Interval {
    /// Everything that begins with `prefix`.
    fn below(prefix: &[u8]) -> Interval {
        Interval { low: prefix.to_vec(), high: [prefix, &[END]].concat() }
    }

    /// Whether an entry lies in it.
    pub fn contains(&self, entry: &[u8]) -> bool {
        entry >= &self.low[..] && entry < &self.high[..]
    }

    /// A cursor on the last entry below its end.
    pub fn end(&self, tree: &Tree) -> Cursor {
        tree.seek_before(Some(&self.high))
    }
}

/// What an index can do for a query. Better ones compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    /// One key of a unique index.
    is_key: bool,
    /// Leading fields with fixed values.
    fixed: usize,
    /// The field after them has a range.
    ranged: bool,
    /// The order is the one asked for.
    sorted: bool,
}

/// Chooses the plan for a query.
pub fn choose(
    collection: &Collection,
    filter: &Filter,
    sort: Option<&Sort>,
    hint: Option<&Hint>,
) -> Result<Plan> {
    let sort = sort.filter(|sort| !sort.is_empty());
    if let Some(direction) = sort.and_then(Sort::natural) {
        return Ok(natural(direction == Direction::Descending, true));
    }
    match hint {
        Some(Hint::Natural { reverse }) => return Ok(natural(*reverse, false)),
        Some(hint) => {
            let position = hinted(collection, hint)?;
            let index = &collection.indexes()[position];
            // By another collation the values that match may be anywhere in it.
            let all = Filter::all();
            let filter = if has_same_collation(index, filter) { filter } else { &all };
            return Ok(with_index(index, position, filter, sort).0);
        }
        None => {}
    }
    let usable = collection.indexes().iter().enumerate().filter(|(_, index)| is_usable(index, filter));
    let plans = usable.map(|(position, index)| with_index(index, position, filter, sort));
    // Of equally ranked ones the first built wins.
    let best = plans.reduce(|best, other| if other.1 > best.1 { other } else { best });
    Ok(match best {
        Some((plan, rank)) if rank.fixed > 0 || rank.ranged || rank.sorted => plan,
        _ => natural(false, sort.is_none()),
    })
}

fn natural(reverse: bool, sorted: bool) -> Plan {
    Plan { access: Access::Natural { reverse }, sorted }
}

fn hinted(collection: &Collection, hint: &Hint) -> Result<usize> {
    let fits = |index: &Index| match hint {
        Hint::Name(name) => index.spec.name == *name,
        Hint::Keys(keys) => index.spec.has_keys(keys.raw()),
        Hint::Natural { .. } => false,
    };
    let found = collection.indexes().iter().position(|index| !index.spec.hidden && fits(index));
    found.ok_or_else(|| Error::bad_value("error processing query: planner returned error: hint provided does not correspond to an existing index"))
}

/// Whether every document that matches the filter is in the index.
fn is_usable(index: &Index, filter: &Filter) -> bool {
    let spec = &index.spec;
    let complete = match &spec.partial {
        Some(partial) => implies(filter, partial.root()),
        None => {
            !spec.sparse
                || spec.key.fields().iter().any(|field| excludes_missing(filter, field.path.as_str()))
        }
    };
    !spec.hidden && has_same_collation(index, filter) && complete
}

/// Whether an index has its text in the order in which the filter compares it.
fn has_same_collation(index: &Index, filter: &Filter) -> bool {
    index.spec.key.collation() == filter.collation().map(|collation| &**collation)
}

/// Whether no document without the field matches.
fn excludes_missing(filter: &Filter, path: &str) -> bool {
    let mut null = Vec::new();
    encode_key(Value::Null, &mut null);
    let Some(bounds) = filter.bounds(path, true) else { return false };
    let ranges = bounds.intervals().iter().filter_map(|interval| interval.range(Direction::Ascending));
    !ranges.into_iter().any(|(low, high)| null >= low && null < high)
}

/// Whether everything that matches the filter matches a partial index's condition, as far as ranges tell.
fn implies(filter: &Filter, condition: &Node) -> bool {
    match condition {
        Node::True => true,
        Node::And(nodes) => nodes.iter().all(|node| implies(filter, node)),
        Node::Field { path, test: Test::Exists } => excludes_missing(filter, path.as_str()),
        Node::Field { path, .. } => {
            let path = path.as_str();
            let Some(own) = filter.bounds(path, true) else { return false };
            let Some(needed) = condition.bounds(path, true, None).filter(|needed| needed.is_exact()) else {
                return false;
            };
            let ascending =
                |interval: &rockdove_documents::filter::Interval| interval.range(Direction::Ascending);
            let needed: Vec<_> = needed.intervals().iter().filter_map(ascending).collect();
            let mut own = own.intervals().iter().filter_map(ascending);
            own.all(|(low, high)| needed.iter().any(|(from, upto)| low >= *from && high <= *upto))
        }
        _ => false,
    }
}

/// The plan that reads this index, and how good it is.
fn with_index(index: &Index, position: usize, filter: &Filter, sort: Option<&Sort>) -> (Plan, Rank) {
    let fields = index.spec.key.fields();
    let mut prefixes: Vec<Vec<u8>> = vec![Vec::new()];
    let (mut fixed, mut intervals, mut single) = (0, None, true);
    for (depth, field) in fields.iter().enumerate() {
        let path = field.path.as_str();
        // In an array of documents two conditions may be met by different elements, but a key is one element's.
        if index.multikey
            && depth > 0
            && fields[..depth].iter().any(|earlier| same_array(earlier.path.as_str(), path))
        {
            break;
        }
        if field.direction == Direction::Hashed {
            let equal = filter.equalities().into_iter().find(|(own, _)| *own == path);
            let Some((_, value)) = equal else { break };
            prefixes.iter_mut().for_each(|prefix| field.encode(value, index.spec.key.collation(), prefix));
            fixed += 1;
            continue;
        }
        let Some(bounds) = filter.bounds(path, index.multikey) else { break };
        let ranges: Vec<_> =
            bounds.intervals().iter().filter_map(|interval| interval.range(field.direction)).collect();
        if prefixes.len() * ranges.len() > INTERVALS_MAX {
            break;
        }
        if bounds.are_points() {
            let points = ranges.iter().map(|(low, _)| low);
            prefixes = points
                .flat_map(|point| prefixes.iter().map(move |prefix| [&prefix[..], point].concat()))
                .collect();
            fixed += 1;
            single &= ranges.len() == 1;
        } else {
            let join = |(low, high): &(Vec<u8>, Vec<u8>)| {
                let whole = |prefix: &Vec<u8>| Interval {
                    low: [&prefix[..], low].concat(),
                    high: [&prefix[..], high].concat(),
                };
                prefixes.iter().map(whole).collect::<Vec<_>>()
            };
            intervals = Some(ranges.iter().flat_map(join).collect::<Vec<_>>());
            break;
        }
    }
    let ranged = intervals.is_some();
    let mut intervals =
        intervals.unwrap_or_else(|| prefixes.iter().map(|prefix| Interval::below(prefix)).collect());
    intervals.sort();
    let order = sort.and_then(|sort| order(index, fixed, single, sort));
    let is_key = index.spec.unique && single && fixed == fields.len();
    let rank = Rank { is_key, fixed, ranged, sorted: order.is_some() };
    let reverse = order.unwrap_or(false);
    let sorted = sort.is_none() || order.is_some();
    (Plan { access: Access::Index { index: position, intervals, reverse }, sorted }, rank)
}

/// Whether two paths begin with the same field, so that they may lie in one array.
fn same_array(a: &str, b: &str) -> bool {
    a.split('.').next() == b.split('.').next()
}

/// Whether reading the index gives the order asked for: `Some(true)` if backwards.
fn order(index: &Index, fixed: usize, single: bool, sort: &Sort) -> Option<bool> {
    let fields = index.spec.key.fields();
    if index.multikey || sort.collation() != index.spec.key.collation() {
        return None;
    }
    // Fields with one value change no order. With several values the first field has to be the one sorted by.
    let constant = if single { fixed } else { 0 };
    if !single && fixed > 1 {
        return None;
    }
    let is_constant = |path: &str| fields[..constant].iter().any(|field| field.path.as_str() == path);
    let mut wanted = sort.fields().iter().filter(|field| !is_constant(field.path.as_str()));
    let mut given = fields[constant..].iter();
    let mut reverse = None;
    loop {
        let Some(want) = wanted.next() else { return Some(reverse.unwrap_or(false)) };
        let have =
            given.next().filter(|have| have.path == want.path && have.direction != Direction::Hashed)?;
        let backwards = have.direction != want.direction;
        if *reverse.get_or_insert(backwards) != backwards {
            return None;
        }
    }
}

/// A plan in words, for `explain`.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The index, if one is read: its name, its keys and whether it is multikey.
    pub index: Option<(String, Doc, bool)>,
    /// From the end to the beginning.
    pub reverse: bool,
    /// How many parts of the index are read.
    pub intervals: usize,
    /// Whether the results are sorted after reading.
    pub sorts: bool,
}

/// Describes a plan; `asks_order` says whether the query has a sort.
pub fn describe(collection: &Collection, plan: &Plan, asks_order: bool) -> Description {
    let sorts = asks_order && !plan.sorted;
    match &plan.access {
        Access::Natural { reverse } => Description { index: None, reverse: *reverse, intervals: 0, sorts },
        Access::Index { index, intervals, reverse } => {
            let index = &collection.indexes()[*index];
            let spec: &IndexSpec = &index.spec;
            let index = Some((spec.name.clone(), spec.key_doc().to_doc(), index.multikey));
            Description { index, reverse: *reverse, intervals: intervals.len(), sorts }
        }
    }
}
