//! One client's change stream: where it is in the feed, and what comes next.

use super::{Shared, shutting_down};
use crate::event::{Token, TokenKind};
use crate::groups::{CHUNK, Found, Group};
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::{Doc, Error, Result, Timestamp, code};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a stream of a pipeline that may take long evaluates before it delivers what it found.
pub(super) const ASIDE_TIME: Duration = Duration::from_millis(50);

/// One client's change stream.
pub struct ChangeStream {
    pub(super) shared: Arc<Shared>,
    pub(super) group: Arc<Group>,
    /// Everything up to here was delivered or did not concern the stream.
    pub(super) position: Timestamp,
    /// The event that ends the stream, if it is due before anything else.
    pub(super) owed: Option<Doc>,
    pub(super) ended: bool,
}

/// Some events of a stream.
#[derive(Debug, Default)]
pub struct Batch {
    /// The events' documents, in order.
    pub events: Vec<Doc>,
    /// Where to resume from after these.
    pub resume_token: Doc,
    /// Whether the stream is over (its last event is `invalidate`).
    pub ended: bool,
}

impl Drop for ChangeStream {
    fn drop(&mut self) {
        if self.group.leave() {
            self.shared.abandoned.store(true, Ordering::Release);
        }
    }
}

impl ChangeStream {
    /// The next events: at most `count_max` with at most `bytes_max` bytes (but at least one). Returns at once
    /// if there are some, otherwise when there are or when `wait` is over. Dropping the future loses nothing.
    pub async fn next(&mut self, count_max: usize, bytes_max: usize, wait: Duration) -> Result<Batch> {
        let deadline = Instant::now() + wait;
        loop {
            let group = self.group.clone();
            let mut news = std::pin::pin!(group.news.notified());
            news.as_mut().enable();
            let batch = self.take(count_max.max(1), bytes_max).await?;
            if !batch.events.is_empty() || batch.ended || Instant::now() >= deadline {
                return Ok(batch);
            }
            let _ = tokio::time::timeout_at(deadline.into(), news).await; // either way: look again
        }
    }

    /// What is there now.
    async fn take(&mut self, count_max: usize, bytes_max: usize) -> Result<Batch> {
        let (mut events, mut bytes) = (Vec::new(), 0);
        let mut token = None;
        // The stream's own moves with what is returned only: until then the future may be dropped.
        let mut position = self.position;
        if let Some(last) = self.owed.take() {
            token = last.get("_id").and_then(|id| id.as_document()).map(|id| id.to_doc());
            events.push(last);
            self.ended = true;
        }
        'more: while !self.ended && events.len() < count_max {
            if self.shared.stopping.load(Ordering::Acquire) {
                return Err(shutting_down());
            }
            let (found, seen_upto) = self.look(position).await?;
            let nothing = found.is_empty();
            for found in found {
                let size =
                    found.doc.as_ref().map_or(0, |doc| doc.as_ref().map_or(0, |doc| doc.bytes().len()));
                if events.len() >= count_max || (!events.is_empty() && bytes + size > bytes_max) {
                    break 'more;
                }
                match found.doc {
                    // What was gathered so far is delivered first; the failed event comes again and fails then.
                    Err(_) if !events.is_empty() => break 'more,
                    doc => {
                        if let Some(doc) = doc? {
                            check_id(&doc)?;
                            bytes += size;
                            token = doc.get("_id").and_then(|id| id.as_document()).map(|id| id.to_doc());
                            events.push(doc);
                        }
                    }
                }
                position = found.at;
                if let Some(last) = found.invalidate {
                    token = last.get("_id").and_then(|id| id.as_document()).map(|id| id.to_doc());
                    events.push(last);
                    self.ended = true;
                    break 'more;
                }
            }
            if seen_upto > position {
                position = seen_upto;
                token = None;
            } else if nothing {
                break;
            }
        }
        self.position = position;
        let resume_token = token.unwrap_or_else(|| self.high_water());
        Ok(Batch { events, resume_token, ended: self.ended })
    }

    /// What comes after a position, and up to where everything was looked at.
    async fn look(&self, position: Timestamp) -> Result<(Vec<Found>, Timestamp)> {
        let dispatched = Timestamp::from_bits(self.shared.dispatched.load(Ordering::Acquire));
        if let Some(found) = self.group.recall(position) {
            let upto = if found.len() < CHUNK { dispatched } else { position };
            // Events may have been remembered after the mark was read: they count, they are newer.
            let upto = found
                .last()
                .map_or(upto, |last| if found.len() < CHUNK { upto.max(last.at) } else { last.at });
            return Ok((found, upto));
        }
        self.shared.check_history(position)?;
        let events = self.shared.ring.read().after(position, CHUNK);
        let upto = events.last().map_or(position, |event| event.at);
        let (group, epoch) = (self.group.clone(), self.shared.epoch);
        if events.is_empty() || group.is_cheap() {
            let found = events.iter().filter_map(|event| group.evaluate(event, epoch)).collect();
            return Ok((found, upto));
        }
        let turn = self.shared.aside.clone().acquire_owned().await.map_err(|_| shutting_down())?;
        // Who waits for it may go away: then it ends as soon as it looks.
        let wanted = Arc::new(AtomicBool::new(true));
        let _until_dropped = StopWanting(wanted.clone());
        let interrupt = Interrupt::new(move || match wanted.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::new(code::INTERRUPTED, "operation was interrupted")),
        });
        let work = move || {
            let _turn = turn; // also if nobody waits for the result any more
            interrupt.during(|| group.evaluate_for(ASIDE_TIME, &events, epoch))
        };
        let evaluated = tokio::task::spawn_blocking(work).await;
        evaluated.map_err(|error| Error::new(code::INTERNAL_ERROR, format!("a pipeline failed: {error}")))
    }

    fn high_water(&self) -> Doc {
        Token { at: self.position, epoch: self.shared.epoch, kind: TokenKind::HighWater }.to_doc()
    }
}

/// Tells work that its result is not wanted any more.
struct StopWanting(Arc<AtomicBool>);

impl Drop for StopWanting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// An event without its `_id` cannot be resumed from (MongoDB manual, change streams: modify output).
fn check_id(doc: &Doc) -> Result<()> {
    match doc.get("_id").and_then(|id| id.as_document()).and_then(|id| id.get("_data")) {
        Some(_) => Ok(()),
        None => {
            let message = "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. Modifying the _id field of an event makes it impossible to resume the stream from that point. Only transformations that retain the unmodified _id field are allowed.";
            Err(Error::new(code::CHANGE_STREAM_FATAL_ERROR, message))
        }
    }
}
