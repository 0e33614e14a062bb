//! Callers that wait for answers.
//!
//! Invariants
//! * A caller is registered before its request is sent, so no answer can outrun it.
//! * An answer is delivered at most once per answer id; for a request with a limit, at most that many.
//! * The number of waiting requests is bounded, and so is each caller's mailbox: an answer that finds it full is
//!   offered again later.

use crate::error::{RequestError, SendError};
use parking_lot::Mutex;
use rockdove_messages::{Message, MessageId};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Answers kept for a caller that named no limit and does not take them.
const MAILBOX: usize = 1024;

/// What became of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offered {
    /// The caller has it.
    Taken,
    /// The caller had it before.
    Repeated,
    /// The caller's mailbox is full.
    Full,
    /// Nobody waits for it.
    Nobody,
}

struct Entry {
    mailbox: mpsc::Sender<Message>,
    had: HashSet<MessageId>,
    limit: usize,
}

impl Entry {
    fn wants_more(&self) -> bool {
        self.had.len() < self.limit
    }
}

#[derive(Default)]
struct State {
    entries: BTreeMap<MessageId, Entry>,
    closed: bool,
    collected: u64,
}

/// All waiting callers of one bus.
pub(crate) struct Waiters {
    max: usize,
    state: Mutex<State>,
}

impl Waiters {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, state: Mutex::default() }
    }

    /// Starts waiting for at most `limit` answers to `request` (0 = any number).
    pub(crate) fn register(
        self: &Arc<Self>,
        request: &MessageId,
        limit: usize,
    ) -> Result<Mailbox, RequestError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(RequestError::ShuttingDown);
        }
        if state.entries.len() >= self.max {
            return Err(RequestError::TooMany(self.max));
        }
        if state.entries.contains_key(request) {
            return Err(SendError::Duplicate(request.clone()).into());
        }
        let limit = if limit == 0 { usize::MAX } else { limit };
        let (sender, receiver) = mpsc::channel(limit.min(MAILBOX));
        let entry = Entry { mailbox: sender, had: HashSet::new(), limit };
        state.entries.insert(request.clone(), entry);
        Ok(Mailbox { waiters: self.clone(), request: request.clone(), receiver })
    }

    /// Hands an answer to the caller that waits for it.
    pub(crate) fn offer(&self, answer: &Message) -> Offered {
        let (Some(request), Some(id)) = (&answer.in_answer_to, &answer.id) else { return Offered::Nobody };
        let mut state = self.state.lock();
        let Some(entry) = state.entries.get_mut(request) else { return Offered::Nobody };
        if entry.had.contains(id) {
            return Offered::Repeated;
        }
        if !entry.wants_more() {
            return Offered::Nobody;
        }
        match entry.mailbox.try_send(answer.clone()) {
            Ok(()) => {
                entry.had.insert(id.clone());
                state.collected += 1;
                Offered::Taken
            }
            Err(mpsc::error::TrySendError::Full(_)) => Offered::Full,
            Err(mpsc::error::TrySendError::Closed(_)) => Offered::Nobody,
        }
    }

    /// Whether a caller waits for (more) answers to `request`.
    pub(crate) fn awaits(&self, request: Option<&MessageId>) -> bool {
        let state = self.state.lock();
        request.and_then(|request| state.entries.get(request)).is_some_and(Entry::wants_more)
    }

    /// The requests that wait.
    pub(crate) fn requests(&self) -> Vec<MessageId> {
        let state = self.state.lock();
        state.entries.iter().filter(|(_, entry)| entry.wants_more()).map(|(id, _)| id.clone()).collect()
    }

    /// How many requests wait, and how many answers were collected so far.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.entries.len(), state.collected)
    }

    /// Wakes every caller: there will be no more answers.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.entries.clear();
    }
}

/// The answers to one request. Dropping it ends the wait.
pub(crate) struct Mailbox {
    waiters: Arc<Waiters>,
    request: MessageId,
    receiver: mpsc::Receiver<Message>,
}

impl Mailbox {
    /// The next answer; `None` when the bus stops.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        self.receiver.recv().await
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Message>> {
        self.receiver.poll_recv(context)
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.waiters.state.lock().entries.remove(&self.request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(request: &MessageId) -> Message {
        let mut answer = Message::new("t").with_id(MessageId::generate());
        answer.in_answer_to = Some(request.clone());
        answer
    }

    #[tokio::test]
    async fn answers_are_delivered_once_and_up_to_the_limit() {
        let waiters = Arc::new(Waiters::new(10));
        let request = MessageId::generate();
        let mut mailbox = waiters.register(&request, 2).unwrap();
        let (first, second, third) = (answer(&request), answer(&request), answer(&request));
        assert_eq!(waiters.offer(&first), Offered::Taken);
        assert_eq!(waiters.offer(&first), Offered::Repeated);
        assert_eq!(waiters.offer(&second), Offered::Taken);
        assert!(!waiters.awaits(Some(&request)));
        assert_eq!(waiters.offer(&third), Offered::Nobody);
        assert_eq!(mailbox.next().await, Some(first.clone()));
        assert_eq!(mailbox.next().await, Some(second));
        drop(mailbox);
        assert_eq!(waiters.offer(&first), Offered::Nobody);
        assert_eq!(waiters.counts(), (0, 2));
    }

    #[tokio::test]
    async fn a_full_mailbox_refuses_until_it_is_read() {
        let waiters = Arc::new(Waiters::new(10));
        let request = MessageId::generate();
        let mut mailbox = waiters.register(&request, 0).unwrap();
        for _ in 0..MAILBOX {
            assert_eq!(waiters.offer(&answer(&request)), Offered::Taken);
        }
        let late = answer(&request);
        assert_eq!(waiters.offer(&late), Offered::Full);
        mailbox.next().await.unwrap();
        assert_eq!(waiters.offer(&late), Offered::Taken);
    }

    #[tokio::test]
    async fn waiting_is_bounded_and_ends_with_the_bus() {
        let waiters = Arc::new(Waiters::new(1));
        let mut mailbox = waiters.register(&MessageId::generate(), 1).unwrap();
        assert!(matches!(waiters.register(&MessageId::generate(), 1), Err(RequestError::TooMany(1))));
        waiters.close();
        assert_eq!(mailbox.next().await, None);
        assert!(matches!(waiters.register(&MessageId::generate(), 1), Err(RequestError::ShuttingDown)));
    }
}
