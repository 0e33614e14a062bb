//! Every knob of a messaging node, with its default.

use crate::layout::Layout;
use crate::message::SELF;
use bson::{Document, doc};
use std::time::Duration;
use thiserror::Error;

/// What to do about participants that speak another layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ImplementationCheck {
    /// Neither announce nor check.
    Ignore,
    /// Announce; log a mismatch.
    #[default]
    Warn,
    /// Announce; refuse to start on a mismatch. Later joiners are only logged.
    Throw,
}

/// What to do about a message that, as far as the registry knows, nobody would receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RegistryCheck {
    /// Send it; do not look.
    #[default]
    Ignore,
    /// Send it, and log that nobody would receive it.
    Warn,
    /// Refuse to send it.
    Throw,
}

/// The settings of one node. Times are durations; defaults are those of Morphium unless said otherwise.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// How the queue is spread over collections.
    pub layout: Layout,
    /// Name of the queue; empty or `msg` is the default queue.
    pub queue: String,
    /// The node's id; `None` = a random UUID. The same id after a restart continues where the node stopped.
    pub sender_id: Option<String>,
    /// Period of the housekeeping tick, and of polling when streams are off. 250 ms.
    pub poll_pause: Duration,
    /// Safety poll behind the streams. Keep it below a third of the shortest lifetime. 10 s.
    pub fallback_poll_interval: Duration,
    /// Most messages one poll takes. 100.
    pub window_size: usize,
    /// Most messages queued in a lane; the rest waits for a poll. At least a window. 10 000 (ours; Morphium queues two
    /// windows, but a poll can cost a look at every message, so it is better to need few).
    pub queue_max: usize,
    /// Whether listeners run side by side; false = strictly one after the other, in order.
    pub multithreaded: bool,
    /// Most listener calls at a time when multithreaded. 100.
    pub workers_max: usize,
    /// Change streams, or polling only.
    pub use_change_stream: bool,
    /// Lifetime of messages that expire but name no lifetime. 30 s.
    pub default_ttl: Duration,
    /// Answer what a listener left unanswered with the text `received`. Off.
    pub auto_answer: bool,
    /// Whether the built-in status listener answers. On.
    pub status_info: bool,
    /// Its topic.
    pub status_info_topic: String,
    /// What to do about participants that speak another layout.
    pub implementation_check: ImplementationCheck,
    /// Period of the participant heartbeat and of the registry's discovery, and the longest a failed registry check
    /// waits for news. 30 s.
    pub heartbeat_interval: Duration,
    /// A participant without sign of life for this long is gone. 65 s.
    pub participant_timeout: Duration,
    /// Whether to know, by asking, which nodes are there and what they listen to. Off.
    pub registry: bool,
    /// With the registry: what to do about broadcasts on topics that no other node listens to.
    pub registry_check_topics: RegistryCheck,
    /// With the registry: what to do about recipients that are not there.
    pub registry_check_recipients: RegistryCheck,
    /// With the registry, in the DualChannel layout: drop the empty collections of nodes that are gone. On.
    pub sweep_orphans: bool,
    /// Most requests waiting for answers at a time. 10 000 (ours: bounds the poll's list of awaited answers).
    pub requests_max: usize,
    /// How long a shutdown waits for running listeners before it interrupts them. 10 s (ours).
    pub shutdown_grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            layout: Layout::Standard,
            queue: String::new(),
            sender_id: None,
            poll_pause: Duration::from_millis(250),
            fallback_poll_interval: Duration::from_secs(10),
            window_size: 100,
            queue_max: 10_000,
            multithreaded: true,
            workers_max: 100,
            use_change_stream: true,
            default_ttl: Duration::from_secs(30),
            auto_answer: false,
            status_info: true,
            status_info_topic: "morphium.status_info".to_owned(),
            implementation_check: ImplementationCheck::Warn,
            heartbeat_interval: Duration::from_secs(30),
            participant_timeout: Duration::from_secs(65),
            registry: false,
            registry_check_topics: RegistryCheck::Ignore,
            registry_check_recipients: RegistryCheck::Ignore,
            sweep_orphans: true,
            requests_max: 10_000,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

/// A setting that cannot work.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("setting `{name}`: {problem}")]
pub struct SettingsError {
    /// The setting.
    pub name: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Settings {
    /// Checks what has limits. Periods of less than a millisecond would spin.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let check = |ok: bool, name, problem| if ok { Ok(()) } else { Err(SettingsError { name, problem }) };
        let tick = Duration::from_millis(1);
        check((1..=10_000).contains(&self.window_size), "window_size", "must be within 1 and 10000")?;
        check((1..=1_000_000).contains(&self.queue_max), "queue_max", "must be within 1 and 1000000")?;
        check((1..=100_000).contains(&self.workers_max), "workers_max", "must be within 1 and 100000")?;
        check((1..=100_000).contains(&self.requests_max), "requests_max", "must be within 1 and 100000")?;
        check(self.poll_pause >= tick, "poll_pause", "must be at least 1 ms")?;
        check(self.fallback_poll_interval >= tick, "fallback_poll_interval", "must be at least 1 ms")?;
        check(self.heartbeat_interval >= tick, "heartbeat_interval", "must be at least 1 ms")?;
        let ttl = self.default_ttl;
        check(ttl >= tick && millis(ttl) < i64::MAX, "default_ttl", "must be at least 1 ms")?;
        check(!self.status_info_topic.is_empty(), "status_info_topic", "must not be empty")?;
        let id = self.sender_id.as_deref();
        check(id != Some(""), "sender_id", "must not be empty")?;
        check(id != Some(SELF), "sender_id", "`self` is reserved")
    }

    /// Listener calls at a time: [`workers_max`](Self::workers_max), or one.
    pub fn workers(&self) -> usize {
        if self.multithreaded { self.workers_max } else { 1 }
    }

    /// What status answers say about the settings, under Morphium's names. None of them is secret.
    pub fn to_document(&self) -> Document {
        doc! {
            "messagingImplementation": self.layout.implementation(),
            "messageQueueName": if self.queue.is_empty() { "msg" } else { &self.queue },
            "messagingPollPause": millis(self.poll_pause),
            "messagingFallbackPollInterval": millis(self.fallback_poll_interval),
            "messagingWindowSize": i64::try_from(self.window_size).unwrap_or(i64::MAX),
            "messagingMultithreadded": self.multithreaded,
            "threadPoolMessagingMaxSize": i64::try_from(self.workers_max).unwrap_or(i64::MAX),
            "useChangeStream": self.use_change_stream,
            "messagingDefaultTtl": millis(self.default_ttl),
            "autoAnswer": self.auto_answer,
            "messagingStatusInfoListenerEnabled": self.status_info,
            "messagingStatusInfoListenerName": &self.status_info_topic,
            "messagingImplementationCheck": format!("{:?}", self.implementation_check).to_uppercase(),
            "messagingRegistryEnabled": self.registry,
            "messagingRegistryCheckTopics": format!("{:?}", self.registry_check_topics).to_uppercase(),
            "messagingRegistryCheckRecipients": format!("{:?}", self.registry_check_recipients).to_uppercase(),
            "messagingRegistryUpdateInterval": millis(self.heartbeat_interval),
            "messagingRegistryParticipantTimeout": millis(self.participant_timeout),
            "messagingDmCleanupOrphansOnStartup": self.sweep_orphans,
        }
    }

    /// [`default_ttl`](Self::default_ttl) in ms.
    pub fn default_ttl_ms(&self) -> i64 {
        millis(self.default_ttl)
    }
}

/// A duration in ms, as the documents hold it.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_limits_are_named() {
        assert_eq!(Settings::default().validate(), Ok(()));
        let check = |change: fn(&mut Settings), name| {
            let mut settings = Settings::default();
            change(&mut settings);
            assert_eq!(settings.validate().unwrap_err().name, name);
        };
        check(|s| s.window_size = 0, "window_size");
        check(|s| s.workers_max = 0, "workers_max");
        check(|s| s.poll_pause = Duration::ZERO, "poll_pause");
        check(|s| s.default_ttl = Duration::MAX, "default_ttl");
        check(|s| s.sender_id = Some("self".into()), "sender_id");
        check(|s| s.sender_id = Some(String::new()), "sender_id");
        check(|s| s.status_info_topic.clear(), "status_info_topic");
    }
}
