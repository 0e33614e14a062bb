//! Errors, one type for each kind of call.

use crate::backend::BackendError;
use rockdove_messages::{DecodeError, MessageId, NameError, PrepareError, SettingsError};
use thiserror::Error;

/// Why a bus could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The queue or sender id cannot be mapped to collections.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The address cannot be used.
    #[error("cannot use the address: {0}")]
    Address(BackendError),
    /// No server answered (see [`BusBuilder::reach_within`](crate::BusBuilder::reach_within)), or those that do cannot be used
    /// as the address says, which is not transient. Says who, and why.
    #[error("{0}")]
    Unreachable(BackendError),
    /// Participants of another layout use this queue, and the implementation check is strict.
    #[error("participant `{participant}` runs {theirs} on this queue, this node runs {ours}")]
    ImplementationMismatch {
        /// The other node.
        participant: String,
        /// Its layout.
        theirs: String,
        /// Ours.
        ours: &'static str,
    },
    /// The server refused, or could not be reached in time.
    #[error("cannot start messaging: {0}")]
    Backend(BackendError),
}

/// Why a message was not sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message lacks something.
    #[error(transparent)]
    Message(#[from] PrepareError),
    /// A recipient cannot be mapped to a collection.
    #[error(transparent)]
    Name(#[from] NameError),
    /// As far as the registry knows, no other node listens to the topic.
    #[error("no other node listens to the topic `{0}`")]
    NoListener(String),
    /// As far as the registry knows, the recipient is not there.
    #[error("the recipient `{0}` is not there")]
    NoRecipient(String),
    /// The bus is shut down, or about to be.
    #[error("the bus is shutting down")]
    ShuttingDown,
    /// Another message has this id.
    #[error("a message with the id {0} exists")]
    Duplicate(MessageId),
    /// The message is larger than the server takes.
    #[error("the message is too large: {0}")]
    TooLarge(BackendError),
    /// The value at risk is negative or larger than 2^53.
    #[error("the value at risk must be from 0 to 2^53, not {0}")]
    Value(i64),
    /// The server does not know the level of acknowledgement that was asked for; nothing was sent.
    #[error("{0}")]
    Level(BackendError),
    /// The message was sent, but its level of acknowledgement cannot be reached: a restart of the server may lose it.
    #[error("the message was sent, but not acknowledged as asked for: {0}")]
    NotAcknowledged(BackendError),
    /// The server refused, or could not be reached in time. After a network error the message may have been sent.
    #[error("the message was not sent: {0}")]
    Backend(BackendError),
}

/// Some messages of a bulk were not sent; the others were.
#[derive(Debug, Error)]
#[error("{} of {total} messages were not sent{}", failures.len(), first(failures))]
pub struct SendManyError {
    /// The places of the messages that were not sent, and why; never empty.
    pub failures: Vec<(usize, SendError)>,
    /// How many messages the bulk had.
    pub total: usize,
}

fn first(failures: &[(usize, SendError)]) -> String {
    failures
        .first()
        .map_or_else(String::new, |(place, error)| format!("; the first is number {place}: {error}"))
}

/// Why a request has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request was not sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Nobody answered in time.
    #[error("no answer within the time limit")]
    Timeout,
    /// The bus was shut down while waiting.
    #[error("the bus was shut down while waiting for an answer")]
    ShuttingDown,
    /// As many requests as the settings allow are waiting already.
    #[error("too many requests are waiting for answers (limit {0})")]
    TooMany(usize),
    /// The bus only sends; it receives no answers.
    #[error("this bus only sends")]
    SendOnly,
}

/// Why a topic was not subscribed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The topic is empty.
    #[error("a subscription needs a topic")]
    MissingTopic,
    /// The bus is shut down, or about to be.
    #[error("the bus is shutting down")]
    ShuttingDown,
    /// The bus only sends; it receives nothing.
    #[error("this bus only sends")]
    SendOnly,
}

/// Why a queue could not be looked at: by [`top`](crate::top), by [`doctor`](crate::doctor).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LookError {
    /// The queue's name cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The server refused, or could not be reached in time.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl LookError {
    /// Whether a later look may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Backend(error) if error.is_transient())
    }
}

/// Why a message could not be read back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The server refused, or could not be reached in time.
    #[error(transparent)]
    Backend(#[from] BackendError),
}
