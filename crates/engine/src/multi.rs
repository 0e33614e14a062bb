//! Statements that may concern many documents: found aside, carried out in portions.
//!
//! ```text
//! snapshot ─► records that match (a thread aside) ─► portions ─► sequencer: match again, change ─► one result
//! ```
//!
//! Looking for documents and changing many of them would keep all other writers waiting. So the sequencer gets some
//! records at a time, and other requests come in between.
//!
//! Invariants
//! * Each document is changed at most once, and only if it matches when it is changed.
//! * Documents that come to match while the statement is under way may be left out.
//! * What is little work by its plan, and what matches nothing but may insert, is left to the sequencer as a whole.

use crate::collection::Collection;
use crate::command::{Ack, Outcome, Receipt, Statement, Write, WriteError, WriteReply};
use crate::effects::{CollectionNumber, RecordNumber};
use crate::engine::Engine;
use crate::plan::{self, Plan};
use crate::scan::Scan;
use crate::sequencer::{Request, is_interruption};
use crate::sighting::{Selection, Sighting};
use crate::state::State;
use rockdove_documents::interrupt::{Interrupt, during};
use rockdove_documents::{Error, Result, Timestamp, code};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Up to so many candidates are little work, if asking about each is.
pub const FEW_CANDIDATES: usize = 1000;
/// Records of one portion: some milliseconds of work.
const PORTION: usize = 500;
/// So many statements look for what they are about at one time; more wait for their turn.
pub const LOOKING_MAX: usize = 4;

/// Some documents of a statement that concerns many.
pub struct Portion {
    /// The statement.
    pub statement: Arc<Statement>,
    /// The collection that was looked through: another one of its name is another one.
    pub collection: CollectionNumber,
    /// The documents that matched then.
    pub records: Vec<RecordNumber>,
    /// The rest is as in the [`Write`].
    pub bypass_validation: bool,
    /// When the write is acknowledged.
    pub ack: Ack,
    /// Asked while documents are matched and changed.
    pub interrupt: Option<Interrupt>,
}

/// What was found.
struct Candidates {
    collection: CollectionNumber,
    records: Vec<RecordNumber>,
}

/// Carries out a statement that concerns many documents, with `ack` instead of the write's own. It comes back if the
/// sequencer shall do it: it is little work by now, or matches nothing, but may insert.
pub async fn write(
    engine: &Engine,
    turns: &Arc<Semaphore>,
    (write, ack): (&Write, Ack),
    statement: Statement,
) -> Result<Result<WriteReply, (Statement, Option<Box<Sighting>>)>> {
    let turn = turns.clone().acquire_owned().await.map_err(|error| internal(&error))?;
    let Some((collection, plan)) = planned(&engine.snapshot(), &statement) else {
        return Ok(Err((statement, None)));
    };
    let interrupt = write.interrupt.clone();
    let look = move || {
        let _turn = turn;
        let found = during(interrupt.as_ref(), || find(collection.clone(), plan, &statement));
        (statement, found.map(|found| (found, Sighting::none(&collection))))
    };
    let looked = tokio::task::spawn_blocking(look).await;
    let (statement, found) = looked.map_err(|error| internal(&error))?;
    let (found, none) = match found {
        Err(error) if is_interruption(&error) => return Err(error),
        Err(error) => return Ok(Err((Statement::Refused(error), None))),
        Ok(found) => found,
    };
    let inserts = matches!(&statement, Statement::Update(update) if update.upsert);
    if found.records.is_empty() && inserts {
        return Ok(Err((statement, Some(Box::new(none)))));
    }
    carry_out(engine, write, ack, Arc::new(statement), found).await.map(Ok)
}

/// Whether looking for a statement's documents, or changing them, is so much work that others would wait.
pub fn is_much(engine: &Engine, statement: &Statement) -> bool {
    statement.is_multi() && planned(&engine.snapshot(), statement).is_some()
}

/// How to look for a statement's documents, if that is much work.
fn planned(state: &State, statement: &Statement) -> Option<(Arc<Collection>, Plan)> {
    let Selection { ns, filter, hint, .. } = Selection::of(statement)?;
    let collection = state.collection(ns).filter(|there| there.info.view.is_none())?;
    let plan = plan::choose(collection, filter, None, hint).ok()?;
    let is_much = !filter.is_cheap() || plan.reads_more_than(collection, FEW_CANDIDATES);
    is_much.then(|| (collection.clone(), plan))
}

/// What matches a statement's filter.
fn find(collection: Arc<Collection>, plan: Plan, statement: &Statement) -> Result<Candidates> {
    let mut found = Candidates { collection: collection.info.number, records: Vec::new() };
    let Some(selection) = Selection::of(statement) else { return Ok(found) };
    for (record, doc) in Scan::new(collection, plan) {
        if selection.filter.matches(doc.raw())? {
            found.records.push(record);
        }
    }
    Ok(found)
}

/// The error of a search that did not come to its end.
pub fn internal(error: &dyn std::error::Error) -> Error {
    Error::new(code::INTERNAL_ERROR, format!("documents could not be looked for: {error}"))
}

async fn carry_out(
    engine: &Engine,
    write: &Write,
    ack: Ack,
    statement: Arc<Statement>,
    found: Candidates,
) -> Result<WriteReply> {
    let mut total = match &*statement {
        Statement::Delete(_) => Outcome::Deleted { count: 0 },
        _ => Outcome::Updated { matched: 0, modified: 0, upserted: None },
    };
    let mut at = engine.operation_time();
    let mut receipt = None::<Receipt>;
    let mut portions: Vec<_> = found.records.chunks(PORTION).collect();
    if portions.is_empty() {
        portions.push(&[]); // what was there before is to be as lasting as is asked: it may be from an earlier try
    }
    let last = portions.len() - 1;
    for (place, records) in portions.into_iter().enumerate() {
        // The value of the write as a whole is at risk until its last part is safe.
        let value = if place == last { ack.value } else { 0 };
        let ack = Ack { value, ..ack };
        let portion = Portion {
            statement: statement.clone(),
            collection: found.collection,
            records: records.to_vec(),
            bypass_validation: write.bypass_validation,
            ack,
            interrupt: write.interrupt.clone(),
        };
        let result = match engine.ask(|reply| Request::Portion(Box::new(portion), reply)).await? {
            Ok((result, then, more)) => {
                at = then;
                receipt = Some(receipt.map_or(more.clone(), |receipt| receipt.joined(more)));
                result
            }
            Err(error) => Err(error.into()),
        };
        match result {
            Ok(outcome) => add(&mut total, outcome),
            Err(failed) if is_interruption(&failed.error) => return Err(failed.error),
            Err(failed) => return Ok(reply(Err(failed), at, receipt)),
        }
    }
    Ok(reply(Ok(total), at, receipt))
}

fn reply(result: Result<Outcome, WriteError>, at: Timestamp, receipt: Option<Receipt>) -> WriteReply {
    WriteReply { results: vec![result], retried: Vec::new(), at, receipt: receipt.unwrap_or_default() }
}

fn add(total: &mut Outcome, part: Outcome) {
    match (total, part) {
        (Outcome::Deleted { count }, Outcome::Deleted { count: more }) => *count += more,
        (
            Outcome::Updated { matched, modified, .. },
            Outcome::Updated { matched: more, modified: changed, .. },
        ) => {
            *matched += more;
            *modified += changed;
        }
        _ => {}
    }
}
