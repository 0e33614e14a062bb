//! A write in parts, where some of its statements may take long.
//!
//! Such a statement is looked for beside the sequencer ([`sighting`], [`multi`]); those between two of them stay
//! together. Others write in between, as they may within a statement that concerns many documents.
//!
//! Invariants
//! * Statements take effect in their order, and a repetition meets the numbers that they would have in one piece.
//! * The whole is as lasting as it asks for when its last part is: what was written before is then, too. Only that part has the
//!   value given for the whole; what documents are worth counts with each.

use crate::command::{Ack, Statement, Write, WriteReply};
use crate::engine::Engine;
use crate::multi;
use crate::sequencer::Request;
use crate::sighting::{self, Sighting};
use rockdove_documents::Result;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Carries out a write, in as many parts as it takes.
///
/// # Errors
/// Those of [`Engine::write`].
pub async fn write(engine: &Engine, turns: &Arc<Semaphore>, mut write: Write) -> Result<WriteReply> {
    if let Some(retry) = &write.retry {
        retry.check_distinct()?;
    }
    let statements = std::mem::take(&mut write.statements);
    let left = statements.len();
    let reply = WriteReply::none(engine.operation_time());
    let mut parts = Parts { engine, turns, whole: write, left, together: vec![], is_settled: false, reply };
    for statement in statements {
        if !parts.take(statement).await? {
            break;
        }
    }
    parts.finish().await
}

struct Parts<'e> {
    engine: &'e Engine,
    turns: &'e Arc<Semaphore>,
    /// The write without its statements.
    whole: Write,
    /// How many statements are not carried out.
    left: usize,
    /// Those of them that wait to be carried out together.
    together: Vec<Statement>,
    /// Whether a part has asked for what the whole asks for.
    is_settled: bool,
    /// What became of those that were carried out.
    reply: WriteReply,
}

impl Parts<'_> {
    /// Takes the next statement; whether to go on.
    async fn take(&mut self, statement: Statement) -> Result<bool> {
        if self.whole.retry.is_none() && multi::is_much(self.engine, &statement) {
            // It is about what is there after those before it.
            return Ok(self.send_together().await? && self.take_multi(statement).await?);
        }
        self.take_one(statement).await
    }

    async fn take_one(&mut self, mut statement: Statement) -> Result<bool> {
        loop {
            let position = self.done() + self.together.len();
            let number = self.whole.retry.as_ref().map(|retry| (retry, retry.number_of(position)));
            let interrupt = self.whole.interrupt.clone();
            let looked = sighting::look(self.engine, self.turns, statement, number, interrupt).await?;
            statement = looked.subject;
            match looked.seen {
                Ok(None) => self.together.push(statement),
                Ok(sighting) => {
                    return Ok(self.send_together().await? && self.send(vec![statement], sighting).await?);
                }
                Err(_) if !self.together.is_empty() => {
                    // Those before it may mend that.
                    if !self.send_together().await? {
                        return Ok(false);
                    }
                    continue;
                }
                Err(error) => self.together.push(Statement::Refused(error)),
            }
            return Ok(true);
        }
    }

    async fn take_multi(&mut self, statement: Statement) -> Result<bool> {
        let ack = self.ack_of(1);
        match multi::write(self.engine, self.turns, (&self.whole, ack), statement).await? {
            Ok(reply) => {
                self.left -= 1;
                // One that failed may have ended before anything asked for that.
                self.is_settled &= reply.results.iter().all(Result::is_ok);
                Ok(self.add(reply))
            }
            Err((statement, sighting)) => self.send(vec![statement], sighting).await,
        }
    }

    /// What the next part asks for, if it has so many statements.
    fn ack_of(&mut self, statements: usize) -> Ack {
        self.is_settled = statements == self.left;
        let deferred = self.whole.ack.deferred;
        if self.is_settled { self.whole.ack } else { Ack { deferred, ..Ack::WRITTEN } }
    }

    fn done(&self) -> usize {
        self.reply.results.len()
    }

    async fn send_together(&mut self) -> Result<bool> {
        match std::mem::take(&mut self.together) {
            none if none.is_empty() => Ok(true),
            some => self.send(some, None).await,
        }
    }

    /// Has the sequencer carry out the next statements; whether to go on.
    async fn send(&mut self, statements: Vec<Statement>, sighting: Option<Box<Sighting>>) -> Result<bool> {
        let (count, ack) = (statements.len(), self.ack_of(statements.len()));
        let retry = self.whole.retry.as_ref().map(|retry| retry.part(self.done(), count));
        let Write { ordered, bypass_validation, .. } = self.whole;
        // What has been done is not undone by an interrupt.
        let interrupt = self.whole.interrupt.clone().filter(|_| count > 0);
        let part = Write { statements, ordered, retry, ack, bypass_validation, interrupt };
        let reply = self.engine.ask(|reply| Request::Write(Box::new(part), sighting, reply)).await??;
        self.left -= count;
        Ok(self.add(reply))
    }

    /// Takes in what became of a part; whether to go on.
    fn add(&mut self, part: WriteReply) -> bool {
        let has_failed = part.results.iter().any(Result::is_err);
        let before = std::mem::replace(&mut self.reply, WriteReply::none(part.at));
        self.reply = before.joined(part);
        !(has_failed && self.whole.ordered)
    }

    async fn finish(mut self) -> Result<WriteReply> {
        self.send_together().await?;
        if !self.is_settled {
            self.left = 0; // nothing more is carried out
            self.send(vec![], None).await?;
        }
        Ok(self.reply)
    }
}
