//! Which messages are requests that nobody answered.
//!
//! Nothing in a message says that its sender waits for an answer. A topic on which a message was answered is one of requests;
//! the others on it are taken for requests as well. What is remembered is bounded: of more than [`ANSWERED_MAX`] answers the
//! newest count, and of more than [`TOPICS_MAX`] topics the first.

use rockdove_messages::{Message, MessageId};
use std::collections::{BTreeSet, HashSet, VecDeque};

/// Requests remembered whose answers were seen.
const ANSWERED_MAX: usize = 100_000;
/// Topics known to be answered.
const TOPICS_MAX: usize = 1000;

/// What is known of requests and answers.
#[derive(Default)]
pub(crate) struct Requests {
    answered: HashSet<MessageId>,
    by_age: VecDeque<MessageId>,
    topics: BTreeSet<String>,
}

impl Requests {
    /// Messages on this topic get answers.
    pub(crate) fn note_topic(&mut self, topic: &str) {
        if self.topics.len() < TOPICS_MAX && !self.topics.contains(topic) {
            self.topics.insert(topic.to_owned());
        }
    }

    /// The topic of an answer says nothing: it may be another than the request's.
    pub(crate) fn note_answer(&mut self, request: &MessageId) {
        if self.answered.insert(request.clone()) {
            self.by_age.push_back(request.clone());
            if self.by_age.len() > ANSWERED_MAX
                && let Some(oldest) = self.by_age.pop_front()
            {
                self.answered.remove(&oldest);
            }
        }
    }

    /// Learns from messages that are stored together, and tells which of them are requests without an answer.
    pub(crate) fn unanswered<'a>(&mut self, stored: &'a [Message]) -> Vec<&'a Message> {
        stored.iter().filter_map(|message| message.in_answer_to.as_ref()).for_each(|id| self.note_answer(id));
        let is_answered = |one: &Message| one.id.as_ref().is_none_or(|id| self.answered.contains(id));
        let (answered, open): (Vec<_>, Vec<_>) = stored.iter().partition(|one| is_answered(one));
        answered.iter().filter(|one| one.id.is_some()).for_each(|one| self.note_topic(&one.topic));
        open.into_iter().filter(|one| !one.is_answer() && self.topics.contains(&one.topic)).collect()
    }

    /// The topics known to be answered.
    #[cfg(test)]
    pub(crate) fn topics(&self) -> &BTreeSet<String> {
        &self.topics
    }
}
