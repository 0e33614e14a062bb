//! Requests: messages whose sender waits for answers.

use crate::ack::{SendOptions, Sent};
use crate::bus::Bus;
use crate::error::RequestError;
use crate::waiters::Mailbox;
use futures_util::Stream;
use rockdove_messages::{Message, MessageId};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

impl Bus {
    /// Sends a request and waits for the first answer.
    ///
    /// Answers that come later go to a listener on their topic, if this node has one, else they expire.
    pub async fn request_first(&self, request: Message, timeout: Duration) -> Result<Message, RequestError> {
        let (mut mailbox, deadline, _) = self.open_request(request, 1, None, timeout).await?;
        match tokio::time::timeout_at(deadline, mailbox.next()).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(RequestError::ShuttingDown),
            Err(_) => Err(RequestError::Timeout),
        }
    }

    /// Sends a request and waits for `count` answers (0 = all that come in time). Returns what arrived when the time
    /// is over; that none did is no error.
    pub async fn request_all(
        &self,
        request: Message,
        count: usize,
        timeout: Duration,
    ) -> Result<Vec<Message>, RequestError> {
        let limit = if request.exclusive { 1 } else { count };
        let (mut mailbox, deadline, _) = self.open_request(request, limit, None, timeout).await?;
        let mut answers = Vec::new();
        while limit == 0 || answers.len() < limit {
            match tokio::time::timeout_at(deadline, mailbox.next()).await {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => return Err(RequestError::ShuttingDown),
                Err(_) => break,
            }
        }
        Ok(answers)
    }

    /// Sends a request and streams its answers until the time is over. An exclusive request has one answer.
    ///
    /// A reader that falls more than 1024 answers behind gets the rest when it catches up, as long as they live.
    pub async fn request_stream(&self, request: Message, timeout: Duration) -> Result<Answers, RequestError> {
        self.stream_answers(request, None, timeout).await
    }

    /// As [`request_stream`](Self::request_stream), sent at a level of acknowledgement or with a value at risk; what was
    /// reached is in [`Answers::sent`].
    pub async fn request_stream_with(
        &self,
        request: Message,
        options: SendOptions,
        timeout: Duration,
    ) -> Result<Answers, RequestError> {
        self.stream_answers(request, Some(options), timeout).await
    }

    async fn stream_answers(
        &self,
        request: Message,
        options: Option<SendOptions>,
        timeout: Duration,
    ) -> Result<Answers, RequestError> {
        let limit = usize::from(request.exclusive);
        let (mailbox, deadline, sent) = self.open_request(request, limit, options, timeout).await?;
        let left = if limit == 0 { None } else { Some(limit) };
        Ok(Answers { mailbox, left, over: Box::pin(tokio::time::sleep_until(deadline)), ended: false, sent })
    }

    /// Registers the caller, then sends: no answer can outrun its caller. The time runs from the call.
    async fn open_request(
        &self,
        mut request: Message,
        limit: usize,
        options: Option<SendOptions>,
        timeout: Duration,
    ) -> Result<(Mailbox, Instant, Option<Sent>), RequestError> {
        let node = self.node();
        if node.send_only {
            return Err(RequestError::SendOnly);
        }
        let now = Instant::now();
        let deadline = now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365));
        let id = request.id.get_or_insert_with(MessageId::generate).clone();
        let mailbox = node.waiters.register(&id, limit)?;
        let send = async {
            match options {
                Some(options) => node.send_with(request, options).await.map(Some),
                None => node.send(request).await.map(|_| None),
            }
        };
        match tokio::time::timeout_at(deadline, send).await {
            Ok(sent) => Ok((mailbox, deadline, sent?)),
            Err(_) => Err(RequestError::Timeout), // the server cannot be reached
        }
    }
}

/// The answers to one request, as they come. Ends when the time is over; yields
/// [`RequestError::ShuttingDown`] before it ends early.
pub struct Answers {
    mailbox: Mailbox,
    left: Option<usize>,
    over: Pin<Box<Sleep>>,
    ended: bool,
    sent: Option<Sent>,
}

impl Answers {
    /// How lasting the request was sent, if it was sent with options.
    pub fn sent(&self) -> Option<&Sent> {
        self.sent.as_ref()
    }

    /// The next answer; `None` when the time is over.
    pub async fn next(&mut self) -> Option<Result<Message, RequestError>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for Answers {
    type Item = Result<Message, RequestError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended || self.left == Some(0) {
            return Poll::Ready(None);
        }
        if let Poll::Ready(answer) = self.mailbox.poll_next(context) {
            self.left = self.left.map(|left| left - 1);
            self.ended = answer.is_none();
            return Poll::Ready(Some(answer.ok_or(RequestError::ShuttingDown)));
        }
        ready!(self.over.as_mut().poll(context));
        self.ended = true;
        Poll::Ready(None)
    }
}
