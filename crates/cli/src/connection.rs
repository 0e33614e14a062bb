//! The options that say where a messaging command connects, and how it sends.

use clap::Args;
use rockdove::{Bus, BusBuilder, DriverBackend, Layout, Message};
use std::time::Duration;

/// The address used when none is given: the local server, whatever its replica set calls itself.
const DEFAULT_URI: &str = "mongodb://127.0.0.1:27017/?directConnection=true";

/// Which queue, and where it is.
#[derive(Args, Clone, Debug)]
pub struct Queue {
    /// Address of the server; its path names the database
    #[arg(long, env = "ROCKDOVE_URI", default_value = DEFAULT_URI, value_name = "URI", hide_env_values = true)]
    uri: String,
    /// Database, instead of the one in the address [default there: rockdove]
    #[arg(long, value_name = "NAME")]
    db: Option<String>,
    /// Queue
    #[arg(long = "queue", default_value = "msg", value_name = "NAME")]
    pub name: String,
}

impl Queue {
    /// The database itself, without a bus.
    pub async fn backend(&self) -> anyhow::Result<DriverBackend> {
        Ok(DriverBackend::connect(&self.uri, self.db.as_deref(), "rockdove").await?)
    }
}

/// How a node takes part in a queue.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    #[command(flatten)]
    queue: Queue,
    /// How the queue is spread over collections: standard, multi-collection or dual-channel, or Morphium's name for it
    #[arg(long, default_value = "standard", value_name = "NAME", value_parser = str::parse::<Layout>)]
    layout: Layout,
    /// Id of this node; a random one unless given
    #[arg(long, value_name = "ID")]
    sender_id: Option<String>,
    /// Poll instead of following change streams
    #[arg(long)]
    polling: bool,
}

impl Connection {
    /// A bus for these options.
    pub fn bus(&self) -> BusBuilder {
        let mut bus = Bus::builder(self.queue.uri.clone()).queue(self.queue.name.clone()).layout(self.layout);
        if let Some(database) = &self.queue.db {
            bus = bus.database(database.clone());
        }
        if let Some(id) = &self.sender_id {
            bus = bus.sender_id(id.clone());
        }
        if self.polling { bus.polling() } else { bus }
    }
}

/// How to send.
#[derive(Args, Clone, Debug)]
pub struct Sending {
    /// Let exactly one node process the message
    #[arg(long)]
    exclusive: bool,
    /// Send to this node only; repeat for several
    #[arg(long, value_name = "ID")]
    to: Vec<String>,
    /// Lifetime of the message, such as 500ms, 30s, 5m [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    ttl: Option<Duration>,
    /// Priority; smaller is earlier
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", allow_negative_numbers = true)]
    priority: i32,
    /// The free text `msg` of the message
    #[arg(long, value_name = "TEXT")]
    msg: Option<String>,
}

impl Sending {
    /// Applies the options to a message.
    pub fn apply(&self, message: Message) -> Message {
        let mut message = message.exclusive(self.exclusive).priority(self.priority);
        message.recipients.clone_from(&self.to);
        message.msg.clone_from(&self.msg);
        match self.ttl {
            Some(ttl) => message.ttl(ttl),
            None => message,
        }
    }
}

/// Parses a time: a whole number and `ms`, `s`, `m` or `h`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("`{text}` is no time; write 500ms, 30s, 5m or 2h");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let scale = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(scale).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_a_number_and_a_unit() {
        let check =
            |text, ms: Option<u64>| assert_eq!(duration(text).ok(), ms.map(Duration::from_millis), "{text}");
        check("500ms", Some(500));
        check("30s", Some(30_000));
        check("30", Some(30_000));
        check("5m", Some(300_000));
        check("2h", Some(7_200_000));
        for wrong in ["", "s", "-1s", "1.5s", "1 s", "1d", "99999999999999999999s", "9999999999999999h"] {
            check(wrong, None);
        }
    }
}
