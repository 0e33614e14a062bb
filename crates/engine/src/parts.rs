//! A write in parts, where some of its statements may take long.
//!
//! Such a statement is looked for beside the sequencer ([`sighting`], [`multi`]); those between two of them stay
//! together. Others write in between, as they may within a statement that concerns many documents.
//!
//! Invariants
//! * Statements take effect in their order, and a repetition meets the numbers that they would have in one piece.
//! * The value of the whole is at risk until the last part is safe: each part has it.

use crate::command::{Statement, Write, WriteReply};
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
    let mut parts = Parts { engine, whole: write, reply: None };
    let mut together = Vec::new();
    for statement in statements {
        let state = engine.snapshot();
        let is_many =
            statement.is_multi() && parts.whole.retry.is_none() && multi::is_much(&state, &statement);
        let goes_on = if is_many {
            // It is about what is there after those before it.
            parts.send(std::mem::take(&mut together), None).await?
                && match multi::write(engine, turns, &parts.whole, statement).await? {
                    Ok(reply) => parts.add(reply),
                    Err(statement) => {
                        together.push(statement);
                        true
                    }
                }
        } else {
            let interrupt = parts.whole.interrupt.clone();
            let (statement, sighting) =
                sighting::look(&state, turns, statement, Statement::about_one, interrupt).await?;
            if sighting.is_some() {
                parts.send(std::mem::take(&mut together), None).await?
                    && parts.send(vec![statement], sighting).await?
            } else {
                together.push(statement);
                true
            }
        };
        if !goes_on {
            break;
        }
    }
    parts.send(together, None).await?;
    Ok(parts.reply.unwrap_or_else(|| WriteReply::none(engine.operation_time())))
}

struct Parts<'e> {
    engine: &'e Engine,
    /// The write without its statements.
    whole: Write,
    /// What became of those that were carried out.
    reply: Option<WriteReply>,
}

impl Parts<'_> {
    /// Has the sequencer carry out the next statements. Whether to go on after them: not if one failed that the others
    /// would have to wait for, nor if nothing is left after that.
    async fn send(&mut self, statements: Vec<Statement>, sighting: Option<Box<Sighting>>) -> Result<bool> {
        if statements.is_empty() {
            return Ok(true);
        }
        let done = self.reply.as_ref().map_or(0, |reply| reply.results.len());
        let retry = self.whole.retry.as_ref().map(|retry| retry.part(done, statements.len()));
        let Write { ordered, ack, bypass_validation, .. } = self.whole;
        let interrupt = self.whole.interrupt.clone();
        let part = Write { statements, ordered, retry, ack, bypass_validation, interrupt };
        let reply = self.engine.ask(|reply| Request::Write(Box::new(part), sighting, reply)).await??;
        Ok(self.add(reply))
    }

    /// Takes in what became of a part; whether to go on.
    fn add(&mut self, part: WriteReply) -> bool {
        let has_failed = part.results.iter().any(Result::is_err);
        self.reply = Some(match self.reply.take() {
            Some(before) => before.joined(part),
            None => part,
        });
        !(has_failed && self.whole.ordered)
    }
}
