//! How lasting a send is to be, and how lasting it was.

use crate::error::SendError;
use rockdove_engine::{Level, VALUE_MAX};
use rockdove_messages::MessageId;

/// When a message counts as sent, and what would be lost with it.
///
/// The levels and the value are Rockdove's. On another server a level becomes the write concern that promises as much,
/// and what has none there, [`Level::Risk`] or a value, is [refused](SendError::Level), unless
/// [`or_stricter`](Self::or_stricter) lets the disks of a majority stand for it.
///
/// ```
/// use rockdove::{Level, SendOptions};
/// let order = SendOptions::new().ack(Level::Sync);
/// let payment = SendOptions::new().value(2_500); // at risk, within what the server's cap allows
/// # let _ = (order, payment);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendOptions {
    ack: Option<Level>,
    value: Option<i64>,
    or_stricter: bool,
}

impl SendOptions {
    /// As without options: a majority has the message.
    pub fn new() -> Self {
        Self::default()
    }

    /// When the message counts as sent.
    pub fn ack(mut self, level: Level) -> Self {
        self.ack = Some(level);
        self
    }

    /// What would be lost with the message, in units of the installation's choice, from 0 to 2^53. Without a level it is
    /// sent at [`Level::Risk`]. In a layout that copies a message for each recipient, each copy counts.
    pub fn value(mut self, value: i64) -> Self {
        self.value = Some(value);
        self
    }

    /// Takes the nearest stricter level where the server does not know the one that is asked for.
    pub fn or_stricter(mut self) -> Self {
        self.or_stricter = true;
        self
    }

    /// What a back end is asked.
    pub(crate) fn wish(&self) -> Result<Wish, SendError> {
        let checked = |value: i64| u64::try_from(value).ok().filter(|value| *value <= VALUE_MAX);
        let value = self.value.map(|value| checked(value).ok_or(SendError::Value(value))).transpose()?;
        let without = if value.is_some() { Level::Risk } else { Level::Replicated };
        Ok(Wish { level: self.ack.unwrap_or(without), value, or_stricter: self.or_stricter })
    }
}

/// A message that was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Its id.
    pub id: MessageId,
    /// The level that was reached: the one asked for or, where that one names alternatives or asks for more nodes than
    /// there are, what stands for it. On another server it is what the write concern promises.
    pub ack: Level,
    /// True if there are fewer copies than the level asked for speaks of; as far as the server tells.
    pub degraded: bool,
}

/// When an insert counts as done, in a [`Backend`](crate::backend::Backend)'s terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// The level.
    pub level: Level,
    /// What would be lost with the document; at most 2^53.
    pub value: Option<u64>,
    /// Whether the nearest stricter level will do.
    pub or_stricter: bool,
}

impl Wish {
    /// Whether it speaks of value at risk, which has no counterpart in a write concern.
    pub(crate) fn is_about_value(&self) -> bool {
        self.level == Level::Risk || self.value.is_some()
    }

    /// The wish where nothing is at risk, because all waits for the disk.
    pub(crate) fn without_risk(self) -> Self {
        Self { level: self.level.stricter(Level::Sync), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_a_wish() {
        let wish = |options: SendOptions| options.wish().map(|wish| (wish.level, wish.value)).ok();
        assert_eq!(wish(SendOptions::new()), Some((Level::Replicated, None)));
        assert_eq!(wish(SendOptions::new().value(5)), Some((Level::Risk, Some(5))));
        assert_eq!(wish(SendOptions::new().value(0).ack(Level::Sync)), Some((Level::Sync, Some(0))));
        assert_eq!(wish(SendOptions::new().value(-1)), None);
        assert_eq!(wish(SendOptions::new().value((1 << 53) + 1)), None);
    }
}
