//! Sending: prepare, insert, and settle what a network error left open.
//!
//! A send is a plain insert with write concern `majority`, or at the level that was asked for, repeated after passing
//! failures. A duplicate id is an error to the caller, unless the stored document is the very one this call wrote on an
//! earlier try. The level that the last try reached holds for that one too: who answers it waits for all before it.

use crate::ack::{SendOptions, Sent};
use crate::backend::{BackendError, BackendErrorKind, Durability, Find, Inserted, Wish};
use crate::error::{SendError, SendManyError};
use crate::node::Node;
use crate::phase::Phase;
use crate::registry;
use bson::Document;
use rockdove_engine::Level;
use rockdove_messages::{Message, MessageId, SELF, Sending, filter, prepare};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a send is retried.
pub(crate) const SEND_RETRIES: Duration = Duration::from_secs(30);
/// Messages per bulk insert.
const BULK_MAX: usize = 1000;

impl Node {
    /// Sends one message.
    pub(crate) async fn send(&self, message: Message) -> Result<MessageId, SendError> {
        let message = self.prepare(message)?;
        registry::check(self, &message).await?;
        let document = message.to_document();
        let mut unacknowledged = Unacknowledged::default();
        for target in self.targets(&message)? {
            unacknowledged.sort_out(self.insert(&target, &document).await)?;
            self.index_messages(&target).await; // afterwards: no answer waits for it
        }
        unacknowledged.result()?;
        Ok(message.id.expect("prepare() sets the id"))
    }

    /// Sends one message at a level.
    pub(crate) async fn send_with(&self, message: Message, options: SendOptions) -> Result<Sent, SendError> {
        let wish = options.wish()?;
        let message = self.prepare(message)?;
        registry::check(self, &message).await?;
        let document = message.to_document();
        let mut weakest: Option<(Level, bool)> = None;
        let mut unacknowledged = Unacknowledged::default();
        for target in self.targets(&message)? {
            let inserted = self.insert_acked(&target, &document, wish).await;
            let Some((level, degraded)) = unacknowledged.sort_out(inserted)? else { continue };
            weakest = Some(weakest.map_or((level, degraded), |(before, was_degraded)| {
                let weaker = if before.stricter(level) == level { before } else { level };
                (weaker, degraded || was_degraded)
            }));
            self.index_messages(&target).await;
        }
        unacknowledged.result()?;
        let (ack, degraded) = weakest.unwrap_or((Level::Async, true));
        Ok(Sent { id: message.id.expect("prepare() sets the id"), ack, degraded })
    }

    /// Sends many messages, one insert per collection and thousand.
    pub(crate) async fn send_many(&self, messages: Vec<Message>) -> Result<Vec<MessageId>, SendManyError> {
        let total = messages.len();
        let (mut ids, mut failures) = (Vec::with_capacity(total), Vec::new());
        // What goes where, and its place in the list.
        let mut by_target: BTreeMap<String, (Vec<Document>, Vec<usize>)> = BTreeMap::new();
        for (place, message) in messages.into_iter().enumerate() {
            let prepared = match self.prepare(message) {
                Ok(message) => registry::check(self, &message).await.map(|()| message),
                Err(error) => Err(error),
            };
            match prepared.and_then(|message| Ok((self.targets(&message)?, message))) {
                Ok((targets, message)) => {
                    let document = message.to_document();
                    let copies = std::iter::repeat_n(document, targets.len());
                    for (target, document) in targets.into_iter().zip(copies) {
                        let (documents, places) = by_target.entry(target).or_default();
                        documents.push(document);
                        places.push(place);
                    }
                    ids.extend(message.id);
                }
                Err(error) => failures.push((place, error)),
            }
        }
        for (target, (documents, places)) in by_target {
            for (documents, places) in documents.chunks(BULK_MAX).zip(places.chunks(BULK_MAX)) {
                self.insert_bulk(&target, documents, places, &mut failures).await;
            }
            self.index_messages(&target).await;
        }
        if failures.is_empty() { Ok(ids) } else { Err(SendManyError { failures, total }) }
    }

    /// Sends an answer to `request`. The answer to a message this node sent to itself stays here.
    pub(crate) async fn send_answer(
        &self,
        request: &Message,
        answer: Message,
    ) -> Result<MessageId, SendError> {
        self.send(self.addressed(request, answer)).await
    }

    /// The answer to `request` as it is sent.
    pub(crate) fn addressed(&self, request: &Message, answer: Message) -> Message {
        let mut answer = answer.answering(request);
        if answer.sender == SELF && !answer.recipients.contains(&self.me) {
            answer.recipients.push(self.me.clone());
        }
        answer
    }

    /// Fills in what a sender owes. `self` as sender passes: it is how a node writes to itself.
    pub(crate) fn prepare(&self, message: Message) -> Result<Message, SendError> {
        if self.life.phase() >= Phase::Interrupting {
            return Err(SendError::ShuttingDown);
        }
        let default_ttl_ms = self.settings.default_ttl_ms();
        let sending = Sending { sender: &self.me, host: &self.host, now_ms: self.now_ms(), default_ttl_ms };
        Ok(prepare(message, &sending)?)
    }

    async fn insert(&self, target: &str, document: &Document) -> Result<(), SendError> {
        let call = || self.backend.insert(target, std::slice::from_ref(document), Durability::Majority);
        let failures = self.retry(SEND_RETRIES, call).await.map_err(send_error)?;
        match failures.into_iter().next() {
            Some(failure) => self.settle(target, document, failure.error).await,
            None => Ok(()),
        }
    }

    async fn insert_acked(
        &self,
        target: &str,
        document: &Document,
        wish: Wish,
    ) -> Result<(Level, bool), SendError> {
        let call = || self.backend.insert_acked(target, document.clone(), wish);
        let Inserted { refused, level, degraded } =
            self.retry(SEND_RETRIES, call).await.map_err(send_error)?;
        if let Some(error) = refused {
            self.settle(target, document, error).await?;
        }
        Ok((level, degraded))
    }

    async fn insert_bulk(
        &self,
        target: &str,
        documents: &[Document],
        places: &[usize],
        failures: &mut Vec<(usize, SendError)>,
    ) {
        let call = || self.backend.insert(target, documents, Durability::Majority);
        match self.retry(SEND_RETRIES, call).await {
            Ok(refused) => {
                for failure in refused {
                    let at = failure.index;
                    let (Some(document), Some(place)) = (documents.get(at), places.get(at)) else { continue };
                    if let Err(error) = self.settle(target, document, failure.error).await {
                        failures.push((*place, error));
                    }
                }
            }
            Err(error) => {
                let message = error.to_string();
                let again = || send_error(BackendError::new(error.kind(), message.clone()));
                failures.extend(places.iter().map(|place| (*place, again())));
            }
        }
    }

    /// A refused insert: a duplicate whose stored document is ours was written by an earlier try.
    async fn settle(&self, target: &str, document: &Document, error: BackendError) -> Result<(), SendError> {
        if error.kind() != BackendErrorKind::DuplicateKey {
            return Err(send_error(error));
        }
        let id = document.get("_id").and_then(MessageId::from_bson).expect("prepare() sets the id");
        let find = || Find { filter: filter::by_id(&id), limit: 1, ..Find::default() };
        let stored =
            self.retry(SEND_RETRIES, || self.backend.find(target, find())).await.map_err(send_error)?;
        let same = |field| stored.first().is_some_and(|stored| stored.get(field) == document.get(field));
        let ours = ["sender", "timestamp", "topic", "sender_host"].into_iter().all(same);
        if ours { Ok(()) } else { Err(SendError::Duplicate(id)) }
    }
}

/// A copy that was stored and not acknowledged keeps no other recipient from getting its own: the error comes at the end.
#[derive(Default)]
struct Unacknowledged(Option<SendError>);

impl Unacknowledged {
    fn sort_out<T>(&mut self, result: Result<T, SendError>) -> Result<Option<T>, SendError> {
        match result {
            Err(error @ SendError::NotAcknowledged(_)) => {
                self.0.get_or_insert(error);
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    fn result(self) -> Result<(), SendError> {
        self.0.map_or(Ok(()), Err)
    }
}

fn send_error(error: BackendError) -> SendError {
    match error.kind() {
        BackendErrorKind::TooLarge => SendError::TooLarge(error),
        BackendErrorKind::Unsupported => SendError::Level(error),
        BackendErrorKind::NotAcknowledged => SendError::NotAcknowledged(error),
        _ => SendError::Backend(error),
    }
}
