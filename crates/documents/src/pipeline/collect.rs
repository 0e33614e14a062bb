//! Stages that need all documents: `$sort` and `$sample`.

use super::parse::{Parser, document};
use super::stages::single_argument;
use super::{DOCUMENT_OVERHEAD, Docs, Environment, Memory, Stage, stream};
use crate::sort::Sort;
use crate::{Doc, Error, Result, Value};
use rand::RngExt;
use std::sync::Arc;

#[derive(Debug)]
struct SortStage {
    sort: Sort,
    /// How many of the first documents are wanted: a `$limit` follows.
    limit: usize,
}

pub(super) fn parse_sort(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let Value::Document(spec) = spec else {
        return Err(Error::location(15973, "the $sort key specification must be an object"));
    };
    if spec.is_empty() {
        return Err(Error::location(15976, "$sort stage must have at least one sort key"));
    }
    let sort = Sort::parse(spec, parser.options.collation.clone())?;
    if sort.natural().is_some() {
        return Err(Error::bad_value("$natural sort is not supported in a $sort stage"));
    }
    let limit = match parser.following {
        Some(("$limit", limit)) => {
            crate::number::to_integral(limit).and_then(|limit| usize::try_from(limit).ok())
        }
        _ => None,
    };
    Ok(Arc::new(SortStage { sort, limit: limit.unwrap_or(usize::MAX) }))
}

impl Stage for SortStage {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let environment = environment.clone();
        Ok(later(move || self.sorted(input, &environment)))
    }
}

impl SortStage {
    fn sorted(&self, input: Docs, environment: &Environment) -> Result<Vec<Doc>> {
        let mut memory = Memory::new("$sort", environment);
        let mut keyed: Vec<(Vec<u8>, Doc)> = Vec::new();
        let size = |(key, doc): &(Vec<u8>, Doc)| key.len() + doc.bytes().len() + DOCUMENT_OVERHEAD;
        for doc in input {
            let doc = doc?;
            let entry = (self.sort.key(doc.raw())?, doc);
            memory.add(size(&entry))?;
            keyed.push(entry);
            // Dropping what is beyond the limit now and then keeps the rest small.
            if keyed.len() / 2 > self.limit.max(64) {
                keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
                keyed.drain(self.limit..).for_each(|entry| memory.remove(size(&entry)));
            }
        }
        keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
        keyed.truncate(self.limit);
        Ok(keyed.into_iter().map(|(_, doc)| doc).collect())
    }
}

/// A stream that is computed when it is first asked for a document.
pub(super) fn later(compute: impl FnOnce() -> Result<Vec<Doc>> + Send + 'static) -> Docs {
    let mut compute = Some(compute);
    let mut docs: Docs = Box::new(std::iter::empty());
    Box::new(std::iter::from_fn(move || {
        if let Some(compute) = compute.take() {
            match compute() {
                Ok(computed) => docs = stream(computed),
                Err(error) => return Some(Err(error)),
            }
        }
        docs.next()
    }))
}

#[derive(Debug)]
struct Sample(usize);

pub(super) fn parse_sample(spec: Value<'_>, _: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    document(spec, "$sample", 28745)?;
    let size = single_argument(spec, "$sample", "size", 28749)?;
    if !size.is_number() {
        return Err(Error::location(28746, "size argument to $sample must be a number"));
    }
    match crate::number::to_integral(size).and_then(|size| usize::try_from(size).ok()) {
        Some(size) if size > 0 => Ok(Arc::new(Sample(size))),
        _ => Err(Error::location(28747, "size argument to $sample must be a positive integer")),
    }
}

impl Stage for Sample {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let environment = environment.clone();
        Ok(later(move || {
            // A reservoir: after n documents each of them is in it with the probability size / n.
            let mut memory = Memory::new("$sample", &environment);
            let mut random = rand::rng();
            let mut chosen: Vec<Doc> = Vec::new();
            for (index, doc) in input.enumerate() {
                let doc = doc?;
                let size = doc.bytes().len() + DOCUMENT_OVERHEAD;
                if chosen.len() < self.0 {
                    memory.add(size)?;
                    chosen.push(doc);
                    continue;
                }
                let at = random.random_range(0..=index);
                if let Some(place) = chosen.get_mut(at) {
                    memory.remove(place.bytes().len() + DOCUMENT_OVERHEAD);
                    memory.add(size)?;
                    *place = doc;
                }
            }
            for last in (1..chosen.len()).rev() {
                chosen.swap(last, random.random_range(0..=last));
            }
            Ok(chosen)
        }))
    }
}
