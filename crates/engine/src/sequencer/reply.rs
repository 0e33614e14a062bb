//! Answers, and those that wait until what they answer is as lasting as was asked.

use crate::command::{Acked, DefinitionReply, FindAndModifyReply, Outcome, Receipt, WriteError, WriteReply};
use crate::log::Claim;
use parking_lot::Mutex;
use rockdove_documents::{Error, Result, Timestamp, code};
use rockdove_journal::Level;
use tokio::sync::oneshot;

/// From so many replies that wait on, those are looked for whose caller has gone.
pub const WAITING_MANY: usize = 1024;

/// What a `findAndModify` comes to.
pub type Found = Result<FindAndModifyReply, WriteError>;

/// What a part of a statement comes to, the log's time after it, and how lasting it is, also if it failed midway.
pub type PortionDone = Result<(Result<Outcome, WriteError>, Timestamp, Receipt)>;

/// An answer that waits for its acknowledgement level.
pub enum Reply {
    Write(oneshot::Sender<Result<WriteReply>>, Result<WriteReply>),
    FindAndModify(oneshot::Sender<Found>, Found),
    Portion(oneshot::Sender<PortionDone>, PortionDone),
    Define(oneshot::Sender<Result<DefinitionReply>>, Result<DefinitionReply>),
    Settled(oneshot::Sender<Result<Acked>>),
    Expired(oneshot::Sender<usize>, usize),
}

/// Replies that wait for their acknowledgement level, until the log fails: then they and all later ones get the
/// failure. There is one for each caller that waits; of those that have gone, some more.
#[derive(Default)]
pub struct Waiters(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// In the order in which they came.
    replies: Vec<Pending>,
    /// How many there may be before those are looked for whose caller has gone.
    many: usize,
    failure: Option<Error>,
}

/// A reply that waits.
pub struct Pending {
    pub claim: Box<dyn Claim>,
    pub asked: Level,
    pub reply: Reply,
}

impl Pending {
    /// The answer to the claim, if there is one.
    pub fn poll(&mut self) -> Option<Result<Acked>> {
        match self.claim.poll() {
            Ok(acked) => acked.map(|acked| Ok(as_asked(acked, self.asked))),
            Err(reason) => Some(Err(not_durable(&reason))),
        }
    }
}

/// Who asked for no copies does not miss any, also if its level was raised.
pub fn as_asked(acked: Acked, asked: Level) -> Acked {
    Acked { degraded: acked.degraded && asked != Level::Async, ..acked }
}

/// What all are told that wait for a log that failed.
pub fn not_durable(reason: &str) -> Error {
    Error::new(code::WRITE_CONCERN_FAILED, format!("the log could not be made durable: {reason}"))
}

impl Reply {
    /// Sends the answer with its receipt. Nobody may be listening any more: that is fine.
    pub fn send(self, receipt: Receipt) {
        match self {
            Reply::Write(to, reply) => drop(to.send(reply.map(|reply| WriteReply { receipt, ..reply }))),
            Reply::FindAndModify(to, reply) => {
                drop(to.send(reply.map(|reply| FindAndModifyReply { receipt, ..reply })));
            }
            Reply::Portion(to, done) => {
                drop(to.send(done.map(|(result, at, _)| (result, at, receipt))));
            }
            Reply::Define(to, reply) => {
                drop(to.send(reply.map(|reply| DefinitionReply { receipt, ..reply })));
            }
            Reply::Settled(to) => drop(to.send(receipt.acked)),
            Reply::Expired(to, count) => drop(to.send(count)),
        }
    }

    /// Whether it is of a request that writes nothing, but waits for what was written before.
    pub fn only_waits(&self) -> bool {
        match self {
            Reply::Settled(_) => true,
            Reply::Write(_, done) => done.as_ref().is_ok_and(|done| done.results.is_empty()),
            _ => false,
        }
    }

    /// Sends the error that came instead: nothing of it was done in this batch.
    pub fn refuse(self, error: &Error) {
        match self {
            Reply::Write(to, _) => drop(to.send(Err(error.clone()))),
            Reply::FindAndModify(to, _) => drop(to.send(Err(error.clone().into()))),
            Reply::Portion(to, _) => drop(to.send(Err(error.clone()))),
            Reply::Define(to, _) => drop(to.send(Err(error.clone()))),
            Reply::Settled(to) => drop(to.send(Err(error.clone()))),
            Reply::Expired(to, _) => drop(to.send(0)),
        }
    }

    /// Whether its caller has gone.
    fn is_closed(&self) -> bool {
        match self {
            Reply::Write(to, _) => to.is_closed(),
            Reply::FindAndModify(to, _) => to.is_closed(),
            Reply::Portion(to, _) => to.is_closed(),
            Reply::Define(to, _) => to.is_closed(),
            Reply::Settled(to) => to.is_closed(),
            Reply::Expired(to, _) => to.is_closed(),
        }
    }
}

impl Waiters {
    /// Sends the replies whose level is reached by now.
    pub fn release(&self) {
        let mut ready = Vec::new();
        let mut waiting = self.0.lock();
        let replies = std::mem::take(&mut waiting.replies);
        for mut pending in replies {
            match pending.poll() {
                Some(acked) => ready.push((pending.reply, acked)),
                None => waiting.replies.push(pending),
            }
        }
        drop(waiting);
        ready.into_iter().for_each(|(reply, acked)| reply.send(Receipt { acked, owed: None }));
    }

    /// Fails all that wait and all that come later: the disk takes nothing any more.
    pub fn fail(&self, reason: &str) {
        let error = not_durable(reason);
        let mut waiting = self.0.lock();
        waiting.failure.get_or_insert_with(|| error.clone());
        let failed = std::mem::take(&mut waiting.replies);
        drop(waiting);
        failed.into_iter().for_each(|pending| {
            pending.reply.send(Receipt { acked: Err(error.clone()), owed: None });
        });
    }

    /// How many wait.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.lock().replies.len()
    }

    /// Leaves a reply here until its level is reached.
    pub fn push(&self, pending: Pending) {
        let mut waiting = self.0.lock();
        if let Some(error) = waiting.failure.clone() {
            drop(waiting);
            return pending.reply.send(Receipt { acked: Err(error), owed: None });
        }
        if waiting.replies.len() >= waiting.many.max(WAITING_MANY) {
            waiting.replies.retain(|pending| !pending.reply.is_closed());
            waiting.many = 2 * waiting.replies.len();
        }
        waiting.replies.push(pending);
    }
}
