//! A subscription as a stream: each message is taken, worked on, and settled.

use crate::bus::Bus;
use crate::error::SubscribeError;
use crate::listen::{Delivery, HandlerError, Reject, Reply, SubscribeOptions, Subscription};
use futures_util::Stream;
use rockdove_messages::Message;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};

impl Bus {
    /// Subscribes to a topic as a stream. At most `ahead` messages are taken ahead of the reader; each counts as
    /// in progress until it is settled, and occupies a worker meanwhile.
    pub async fn listen(&self, topic: impl Into<String>, ahead: usize) -> Result<Incoming, SubscribeError> {
        let (sender, receiver) = mpsc::channel(ahead.max(1));
        let handler = move |delivery| {
            let sender: mpsc::Sender<Incomer> = sender.clone();
            async move {
                let gone = || HandlerError::failed("the stream was dropped");
                let (settle, settled) = oneshot::channel();
                let incomer = Incomer { delivery, settle: Some(settle) };
                sender.send(incomer).await.map_err(|_| gone())?;
                settled.await.unwrap_or_else(|_| Err(gone()))
            }
        };
        let subscription = self.subscribe_with(topic, SubscribeOptions::new(), handler).await?;
        Ok(Incoming { receiver, subscription: Some(subscription) })
    }
}

/// The messages of a topic, as they come. Dropping it ends the subscription; what was not settled is given back.
#[derive(Debug)]
pub struct Incoming {
    receiver: mpsc::Receiver<Incomer>,
    subscription: Option<Subscription>,
}

impl Incoming {
    /// The next message; `None` when the bus stopped.
    pub async fn next(&mut self) -> Option<Incomer> {
        self.receiver.recv().await
    }
}

impl Stream for Incoming {
    type Item = Incomer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Incomer>> {
        self.receiver.poll_recv(context)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(subscription) = self.subscription.take() {
            subscription.cancel();
        }
    }
}

/// A message to settle: [`done`](Self::done), [`answer`](Self::answer) or [`reject`](Self::reject). Dropped
/// unsettled it counts as failed.
#[derive(Debug)]
pub struct Incomer {
    delivery: Delivery,
    settle: Option<oneshot::Sender<Result<Reply, HandlerError>>>,
}

impl Incomer {
    /// The message is processed.
    pub fn done(self) {
        self.settle(Ok(Reply::default()));
    }

    /// The message is processed, and this is the answer.
    pub fn answer(self, answer: Message) {
        self.settle(Ok(answer.into()));
    }

    /// The message is refused.
    pub fn reject(self, reject: Reject) {
        self.settle(Err(reject.into()));
    }

    /// The message, as a listener gets it.
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    fn settle(mut self, result: Result<Reply, HandlerError>) {
        if let Some(settle) = self.settle.take() {
            // The bus may have stopped: then nobody waits for the result, and the message was given back.
            let _ = settle.send(result);
        }
    }
}

impl Drop for Incomer {
    fn drop(&mut self) {
        if let Some(settle) = self.settle.take() {
            let _ = settle.send(Err(HandlerError::failed("the message was not settled")));
        }
    }
}

impl Deref for Incomer {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.delivery
    }
}
