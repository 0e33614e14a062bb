//! What was sent, what became of it, and what must never be.

use rockdove::{Layout, Message};
use std::collections::{BTreeMap, BTreeSet};

/// What kind of promise a message carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Broadcast,
    Exclusive,
}

/// How a listener call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The message is processed.
    Processed,
    /// The listener refused it for this node, for good.
    Declined,
    /// The listener refused it for now.
    Rejected,
    /// The listener failed or panicked.
    Failed,
    /// The call was cancelled.
    Cancelled,
    /// The node died meanwhile.
    Died,
}

/// One listener call.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub node: usize,
    pub life: u64,
    /// When it began; for the report of a violation.
    pub _begin_ms: i64,
    pub end: Option<(i64, End)>,
}

/// One message.
#[derive(Clone, Debug)]
pub struct Sent {
    pub kind: Kind,
    pub sender: usize,
    pub recipients: Vec<usize>,
    pub at_ms: i64,
    /// `None` while it is being sent, and for ever if its sender died then.
    pub sent: Option<bool>,
    /// It lives long enough to be delivered whatever the clocks say.
    pub lasting: bool,
    /// It was sent when nothing failed.
    pub calm: bool,
    /// A node died while it held the message.
    pub excused: bool,
    pub runs: Vec<Run>,
}

impl Sent {
    fn is_for(&self, node: usize) -> bool {
        node != self.sender && (self.recipients.is_empty() || self.recipients.contains(&node))
    }
}

/// All messages of a simulation that are not settled for long.
pub struct Ledger {
    layout: Layout,
    pub messages: BTreeMap<u64, Sent>,
    next: u64,
    /// What went wrong.
    pub violations: Vec<String>,
    /// Listener calls so far, and requests answered.
    pub calls: u64,
    pub answers: u64,
}

impl Ledger {
    pub fn new(layout: Layout) -> Self {
        Self { layout, messages: BTreeMap::new(), next: 1, violations: Vec::new(), calls: 0, answers: 0 }
    }

    /// How many messages were sent so far.
    pub fn total(&self) -> u64 {
        self.next - 1
    }

    pub fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    /// Enters a message; its number.
    pub fn enter(&mut self, sent: Sent) -> u64 {
        let number = self.next;
        self.next += 1;
        self.messages.insert(number, sent);
        number
    }

    pub fn number_of(message: &Message) -> Option<u64> {
        message.value.as_ref()?.parse().ok()
    }

    /// Whose runs may be only one: the node's own where each recipient has a copy, everybody's otherwise.
    fn is_rival(&self, sent: &Sent, one: usize, other: usize) -> bool {
        one == other || self.layout == Layout::Standard || sent.recipients.is_empty()
    }

    /// A listener is called.
    pub fn begin(&mut self, number: u64, node: usize, life: u64, now_ms: i64) {
        self.calls += 1;
        let Some(sent) = self.messages.get(&number) else {
            return self
                .violations
                .push(format!("message {number} was settled long ago; node {node} is given it"));
        };
        let mut wrong = Vec::new();
        if !sent.is_for(node) {
            wrong.push("is not for this node");
        }
        for run in &sent.runs {
            let again = match sent.kind {
                Kind::Exclusive if !self.is_rival(sent, run.node, node) => continue,
                Kind::Exclusive => match run.end {
                    None => Some("is exclusive and in progress"),
                    Some((_, End::Processed | End::Died)) => Some("is exclusive and processed"),
                    Some(_) => None,
                },
                Kind::Broadcast if (run.node, run.life) != (node, life) => continue,
                Kind::Broadcast => match run.end {
                    None => Some("is in progress here"),
                    Some((_, End::Rejected | End::Cancelled)) => None,
                    Some(_) => Some("has been here"),
                },
            };
            wrong.extend(again);
        }
        for what in wrong {
            self.violations
                .push(format!("message {number} {what}; node {node} life {life} is given it: {sent:?}"));
        }
        let run = Run { node, life, _begin_ms: now_ms, end: None };
        self.messages.get_mut(&number).unwrap().runs.push(run);
    }

    /// A listener call ended. The first end counts.
    pub fn end(&mut self, number: u64, node: usize, life: u64, end: End, now_ms: i64) {
        let runs = self.messages.get_mut(&number).into_iter().flat_map(|sent| &mut sent.runs);
        for run in runs.filter(|run| (run.node, run.life, run.end.is_none()) == (node, life, true)) {
            run.end = Some((now_ms, end));
        }
    }

    /// A node died, or its process ended although it held messages. `marked`: exclusive messages with its mark.
    pub fn node_died(&mut self, node: usize, life: u64, marked: &BTreeSet<u64>, now_ms: i64) {
        for (number, sent) in &mut self.messages {
            for run in sent
                .runs
                .iter_mut()
                .filter(|run| (run.node, run.life, run.end.is_none()) == (node, life, true))
            {
                run.end = Some((now_ms, End::Died));
            }
            let had = |run: &Run| matches!(run.end, Some((_, End::Processed | End::Died)));
            if marked.contains(number) && !sent.runs.iter().any(|run| run.node == node && had(run)) {
                sent.excused = true;
            }
        }
    }

    /// All is calm and nobody has anything to do: every promise must be kept.
    pub fn settle(&mut self, nodes: usize) {
        let mut wrong = Vec::new();
        for (number, sent) in &self.messages {
            let mut say = |text: String| wrong.push(format!("message {number} {text}: {sent:?}"));
            if sent.runs.iter().any(|run| run.end.is_none()) {
                say("is in progress for ever".into());
            }
            if sent.sent != Some(true) || !sent.lasting {
                continue;
            }
            let had = |run: &&Run| {
                matches!(run.end, Some((_, End::Processed | End::Declined)))
                    || (run.end.is_some_and(|(_, end)| end == End::Failed) && sent.kind == Kind::Broadcast)
                    || (run.end.is_some_and(|(_, end)| end == End::Died) && sent.kind == Kind::Exclusive)
            };
            if sent.kind == Kind::Exclusive && (self.layout == Layout::Standard || sent.recipients.is_empty())
            {
                let effects = sent.runs.iter().filter(had).count();
                if effects == 0 && !sent.excused {
                    say("is exclusive and nobody processed it".into());
                }
                if sent.calm && sent.runs.len() > 1 {
                    say("was given back although nothing failed".into());
                }
                continue;
            }
            for node in (0..nodes).filter(|node| sent.is_for(*node)) {
                let runs: Vec<_> = sent.runs.iter().filter(|run| run.node == node).collect();
                if !runs.iter().any(|run| had(&run)) && !(sent.excused && sent.kind == Kind::Exclusive) {
                    say(format!("did not reach node {node}"));
                }
                if sent.calm && runs.len() > 1 {
                    say(format!("reached node {node} {} times although nothing failed", runs.len()));
                }
            }
        }
        self.violations.extend(wrong);
    }

    /// Forgets messages from before `until_ms`; their numbers.
    pub fn forget(&mut self, until_ms: i64) -> BTreeSet<u64> {
        let old: BTreeSet<u64> = self
            .messages
            .iter()
            .filter(|(_, sent)| sent.at_ms < until_ms)
            .map(|(number, _)| *number)
            .collect();
        self.messages.retain(|number, _| !old.contains(number));
        old
    }
}
