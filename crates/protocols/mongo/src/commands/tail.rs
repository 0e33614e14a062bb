//! Tailable cursors: a capped collection's documents in the order of insertion, and then those that are added.
//!
//! The position is the number of the last record that was looked at. When that record has gone, documents may
//! have been missed, so the cursor ends with `CappedPositionLost` (MongoDB manual: tailable cursors). A change
//! stream of the same filter only tells when to look again.

use super::cursor::in_place;
use super::query::{self, Parsing};
use crate::cursors::BatchLimit;
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use rockdove_documents::filter::Filter;
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::projection::Projection;
use rockdove_documents::{Code, Doc, Error, RawDoc, code};
use rockdove_engine::{ChangeStream, Collection, Engine, Namespace, State};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Wake-ups taken together.
const WAKES_MAX: usize = 1024;
const PLAN_KILLED: Code = Code { number: 175, name: "QueryPlanKilled" };

/// A tailable cursor.
pub struct Tail {
    engine: Engine,
    ns: Namespace,
    /// The collection's lasting name: another one of the same name is not read on.
    uuid: [u8; 16],
    filter: Filter,
    projection: Option<Projection>,
    /// The last record that was looked at; 0 for none.
    position: u64,
    skip: u64,
    /// How many more documents are wanted, if that was limited.
    left: Option<u64>,
    awaits: bool,
    news: ChangeStream,
}

impl Tail {
    /// A cursor over a capped collection, from its first document on.
    ///
    /// # Errors
    /// 2 (BadValue) if the collection is not capped or a sort is asked for.
    pub fn open(
        call: &Call<'_>,
        fields: &Fields<'_>,
        state: &State,
        collection: &Collection,
    ) -> Result<Tail> {
        let bad = |message: &str| Failure::new(code::BAD_VALUE, format!("error processing query: {message}"));
        if collection.info.capped.is_none() {
            return Err(bad("tailable cursor requested on non capped collection"));
        }
        let natural =
            fields.document("sort")?.is_none_or(|sort| sort.is_empty() || sort.get("$natural").is_some());
        if !natural {
            return Err(bad("cannot use tailable option with a sort other than {$natural: 1}"));
        }
        let ns = collection.info.ns.clone();
        let parsing = Parsing::on(call, fields, &ns)?;
        let limit = fields.count("limit")?.unwrap_or(0);
        let filter = parsing.filter(fields.document("filter")?.unwrap_or(RawDoc::empty()))?;
        Ok(Tail {
            engine: call.shared.engine.clone(),
            uuid: collection.info.uuid,
            news: query::watch_inserts(call, fields, state, collection, filter.clone())?,
            filter,
            projection: parsing.projection(fields.document("projection")?)?,
            position: 0,
            skip: fields.count("skip")?.unwrap_or(0),
            left: (limit > 0).then_some(limit),
            awaits: fields.flag("awaitData")?,
            ns,
        })
    }

    /// Whether reading waits for more.
    pub fn awaits(&self) -> bool {
        self.awaits
    }

    /// Whether nothing can follow `batch`: a cursor that has found nothing at all has no position to go on from.
    pub fn is_over(&self, batch: &[Doc]) -> bool {
        self.left == Some(0) || (self.position == 0 && batch.is_empty())
    }

    /// What is there now. What may take long takes the thread from the runtime for that time.
    pub fn present(&mut self, limit: BatchLimit, interrupt: &Interrupt) -> Result<Vec<Doc>> {
        let is_cheap = self.filter.is_cheap() && self.projection.as_ref().is_none_or(Projection::is_cheap);
        if is_cheap { self.read_on(limit) } else { in_place(interrupt, || self.read_on(limit)) }
    }

    fn read_on(&mut self, limit: BatchLimit) -> Result<Vec<Doc>> {
        let state = self.engine.snapshot();
        let collection = self.collection(&state)?;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while self.left != Some(0) && !limit.is_full(batch.len()) {
            let Some((record, doc)) = collection.at_or_after(self.position + 1) else { break };
            let mut element = None;
            if self.filter.matches_positional(doc.raw(), &mut element)? {
                let found = match &self.projection {
                    Some(projection) => projection.apply(doc, element)?,
                    None => doc.clone(),
                };
                if !limit.admits(batch.len(), bytes, found.bytes().len()) {
                    break;
                }
                if self.skip > 0 {
                    self.skip -= 1;
                } else {
                    bytes += found.bytes().len();
                    self.left = self.left.map(|left| left - 1);
                    batch.push(found);
                }
            }
            self.position = record;
        }
        Ok(batch)
    }

    /// What is there now or comes within `wait`.
    pub async fn read(
        &mut self,
        limit: BatchLimit,
        wait: Duration,
        interrupt: &Interrupt,
    ) -> Result<Vec<Doc>> {
        let deadline = Instant::now() + wait;
        loop {
            let batch = self.present(limit, interrupt)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if !batch.is_empty() || !self.awaits || left.is_zero() || self.left == Some(0) {
                return Ok(batch);
            }
            self.news.next(WAKES_MAX, usize::MAX, left).await.map_err(position_lost)?;
        }
    }

    fn collection(&self, state: &State) -> Result<Arc<Collection>> {
        let found = state.collection(&self.ns).filter(|collection| collection.info.uuid == self.uuid);
        let collection = found.ok_or_else(|| {
            Failure::new(PLAN_KILLED, format!("collection dropped. UUID of {} is no longer known", self.ns))
        })?;
        if self.position > 0 && collection.get(self.position).is_none() {
            return Err(overwritten());
        }
        Ok(collection.clone())
    }
}

fn overwritten() -> Failure {
    Failure::new(
        code::CAPPED_POSITION_LOST,
        "CollectionScan died due to position in capped collection being deleted",
    )
}

/// What is lost history to a change stream is a lost position here.
fn position_lost(error: Error) -> Failure {
    if error.code == code::CHANGE_STREAM_HISTORY_LOST { overwritten() } else { error.into() }
}
