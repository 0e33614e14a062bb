//! What a node does with one message: the rules in their order, free of I/O.

use rockdove_messages::Message;

/// What the judge needs to know about this node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// Own sender id.
    pub me: &'a str,
    /// Whether a listener for the message's topic is registered.
    pub listened: bool,
    /// Whether a caller of ours waits for this answer.
    pub awaited: bool,
    /// Whether the topic is paused.
    pub paused: bool,
    /// Local clock, ms since the epoch.
    pub now_ms: i64,
}

/// The decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing to do here, and why.
    Drop(Drop),
    /// Hand it to the caller that waits.
    Answer,
    /// Call the listeners.
    Deliver,
    /// Claim it, then call the listeners.
    Claim,
}

/// Why a message is not processed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drop {
    /// We sent it.
    Own,
    /// It is exclusive and another node had it.
    Taken,
    /// We marked it.
    Marked,
    /// It is for others.
    NotForUs,
    /// Nobody listens to its topic here. It gets no mark: a later listener must still see it.
    Unlistened,
    /// It is past its life. Its removal is left to the server: our clock may be wrong.
    Expired,
    /// Its topic is paused.
    Paused,
}

/// Applies the rules.
pub(crate) fn judge(message: &Message, view: View<'_>) -> Verdict {
    let refusal = if message.sender == view.me {
        Some(Drop::Own)
    } else if message.exclusive && !message.processed_by.is_empty() {
        Some(Drop::Taken)
    } else if message.is_processed_by(view.me) {
        Some(Drop::Marked)
    } else if !message.is_for(view.me) {
        Some(Drop::NotForUs)
    } else if message.is_answer() && view.awaited {
        return Verdict::Answer;
    } else if !view.listened {
        Some(Drop::Unlistened)
    } else if message.is_expired(view.now_ms) {
        Some(Drop::Expired)
    } else if view.paused {
        Some(Drop::Paused)
    } else {
        None
    };
    match refusal {
        Some(reason) => Verdict::Drop(reason),
        None if message.exclusive => Verdict::Claim,
        None => Verdict::Deliver,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_messages::MessageId;

    const VIEW: View<'_> = View { me: "n1", listened: true, awaited: false, paused: false, now_ms: 1000 };

    fn message() -> Message {
        let mut message = Message::new("t").ttl_ms(100);
        message.sender = "other".into();
        message.timestamp = 950;
        message
    }

    #[test]
    fn rules_in_their_order() {
        let check = |change: fn(&mut Message), view, expected| {
            let mut message = message();
            change(&mut message);
            assert_eq!(judge(&message, view), expected);
        };
        let dropped = Verdict::Drop;
        check(|_| {}, VIEW, Verdict::Deliver);
        check(|m| m.exclusive = true, VIEW, Verdict::Claim);
        check(|m| m.sender = "n1".into(), VIEW, dropped(Drop::Own));
        check(|m| m.processed_by = vec!["n1".into()], VIEW, dropped(Drop::Marked));
        check(|m| m.processed_by = vec!["n2".into()], VIEW, Verdict::Deliver);
        check(|m| (m.exclusive, m.processed_by) = (true, vec!["n2".into()]), VIEW, dropped(Drop::Taken));
        check(|m| m.recipients = vec!["n2".into()], VIEW, dropped(Drop::NotForUs));
        check(|m| m.recipients = vec!["n2".into(), "n1".into()], VIEW, Verdict::Deliver);
        check(|_| {}, View { listened: false, ..VIEW }, dropped(Drop::Unlistened));
        check(|_| {}, View { now_ms: 1051, ..VIEW }, dropped(Drop::Expired));
        check(|_| {}, View { paused: true, ..VIEW }, dropped(Drop::Paused));
    }

    #[test]
    fn awaited_answers_pass_pauses_expiry_and_missing_listeners() {
        let mut answer = message();
        answer.in_answer_to = Some(MessageId::generate());
        let waiting = View { listened: false, awaited: true, paused: true, now_ms: i64::MAX, ..VIEW };
        assert_eq!(judge(&answer, waiting), Verdict::Answer);
        assert_eq!(judge(&answer, VIEW), Verdict::Deliver, "unclaimed answers fall through to listeners");
        answer.recipients = vec!["n2".into()];
        assert_eq!(judge(&answer, waiting), Verdict::Drop(Drop::NotForUs));
    }
}
