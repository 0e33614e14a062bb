//! Answers: messages that point back at a request.

use crate::message::{Message, SELF};

/// How much earlier an answer is delivered than its request: its priority is smaller by this much.
pub const ANSWER_PRIORITY_STEP: i32 = 10;
/// `msg` of the answer that a node gives when its listener gave none and auto-answer is on.
pub const AUTO_ANSWER_TEXT: &str = "received";
/// `msg` of the answer to a rejected message; `value` holds the reason.
pub const REJECTED_TEXT: &str = "message rejected by listener";

impl Message {
    /// An answer to this request: same topic, texts and lifetime, addressed to its sender, a little earlier.
    /// The payloads (`map_value`, `additional`) are not copied.
    pub fn derive_answer(&self) -> Self {
        let mut answer = Self::new(self.topic.clone());
        answer.msg = self.msg.clone();
        answer.value = self.value.clone();
        answer.ttl = self.ttl;
        answer.timing_out = self.timing_out;
        answer.delete_after_processing = self.delete_after_processing;
        answer.delete_after_processing_time = self.delete_after_processing_time;
        answer.priority = self.priority.saturating_sub(ANSWER_PRIORITY_STEP);
        answer.answering(self)
    }

    /// Turns any message into an answer to `request`: points back at it, adds its sender to the recipients and
    /// asks for a fresh id. The answer to a message that a node sent to itself stays with that node: it keeps
    /// the [`SELF`] convention, and the caller adds its own id as recipient.
    pub fn answering(mut self, request: &Self) -> Self {
        self.id = None;
        self.in_answer_to = request.id.clone();
        if request.sender == SELF {
            self.sender = SELF.to_owned();
        } else if !self.recipients.contains(&request.sender) {
            self.recipients.push(request.sender.clone());
        }
        self
    }

    /// The answer that says why a message was rejected.
    pub fn derive_rejection(&self, reason: &str) -> Self {
        let mut answer = self.derive_answer();
        answer.msg = Some(REJECTED_TEXT.to_owned());
        answer.value = Some(reason.to_owned());
        answer
    }

    /// Whether this is the answer to a rejected message; its `value` holds the reason.
    pub fn is_rejection(&self) -> bool {
        self.is_answer() && self.msg.as_deref() == Some(REJECTED_TEXT)
    }

    /// The answer given when a listener gave none. Never derived for an answer: two such nodes would answer
    /// each other for ever.
    pub fn derive_auto_answer(&self) -> Option<Self> {
        let mut answer = self.derive_answer();
        answer.msg = Some(AUTO_ANSWER_TEXT.to_owned());
        answer.value = Some(String::new());
        (!self.is_answer()).then_some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MessageId;
    use bson::doc;

    fn request() -> Message {
        let mut request = Message::new("orders").msg("m").value("v").map_value(doc! {"a": 1}).exclusive(true);
        request.id = Some(MessageId::generate());
        request.sender = "billing-1".into();
        request
    }

    #[test]
    fn an_answer_copies_texts_but_no_payload() {
        let request = request();
        let answer = request.derive_answer();
        assert_eq!((answer.in_answer_to, answer.id), (request.id, None));
        assert_eq!((answer.recipients, answer.priority), (vec!["billing-1".to_owned()], 990));
        assert_eq!((answer.msg.as_deref(), answer.value.as_deref()), (Some("m"), Some("v")));
        assert_eq!((answer.map_value, answer.exclusive), (None, false));
    }

    #[test]
    fn recipients_are_added_once_and_priorities_do_not_wrap() {
        let request = request().priority(i32::MIN);
        assert_eq!(request.derive_answer().priority, i32::MIN);
        let answer = Message::new("x").to("audit").to("billing-1").answering(&request);
        assert_eq!(answer.recipients, ["audit", "billing-1"]);
    }

    #[test]
    fn answers_are_not_answered_automatically() {
        let request = request();
        assert_eq!(request.derive_auto_answer().unwrap().msg.as_deref(), Some(AUTO_ANSWER_TEXT));
        assert_eq!(request.derive_answer().derive_auto_answer(), None);
        assert_eq!(request.derive_rejection("full").value.as_deref(), Some("full"));
    }
}
