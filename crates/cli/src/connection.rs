//! The options that say where a messaging command connects, and how it sends.

use crate::exit::Failure;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use rockdove::backend::BackendError;
use rockdove::{Bus, BusBuilder, ConnectError, DriverBackend, Layout, Level, Message, SendOptions, Sent};
use rockdove_server::VALUE_MAX;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

/// The address used when none is given: the local server, whatever its replica set calls itself.
const DEFAULT_URI: &str = "mongodb://127.0.0.1:27017/?directConnection=true";

/// The variable that names another.
const URI_VARIABLE: &str = "ROCKDOVE_URI";

/// The queue used when none is named.
const DEFAULT_QUEUE: &str = "msg";

/// How long a server may take to answer the first time, unless the command has a time limit: it may be starting. One that
/// answers and is no primary yet may take longer.
const REACH_LIMIT: Duration = Duration::from_secs(5);

/// After this time it is said that the connection is waited for.
const SAID_AFTER: Duration = Duration::from_secs(1);

/// How much longer than its time limit opening a bus may take.
const LATE_GRACE: Duration = Duration::from_millis(200);

/// Where the queues are.
#[derive(Args, Clone, Debug)]
pub struct Database {
    /// Address of the server; its path names the database
    #[arg(long, env = URI_VARIABLE, default_value = DEFAULT_URI, value_name = "URI", hide_env_values = true)]
    uri: String,
    /// Database, instead of the one in the address [default there: rockdove]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    db: Option<String>,
}

/// Which queue, and where it is.
#[derive(Args, Clone, Debug)]
pub struct Queue {
    #[command(flatten)]
    database: Database,
    /// Queue
    #[arg(long = "queue", default_value = DEFAULT_QUEUE, value_name = "NAME", value_parser = queue)]
    pub name: String,
}

/// The name of a queue; an empty one is the default's.
fn queue(name: &str) -> Result<String, Infallible> {
    Ok(if name.is_empty() { DEFAULT_QUEUE } else { name }.to_owned())
}

/// An address without the passwords and tokens in it.
fn without_secrets(uri: &str) -> String {
    let (address, options) = uri.split_once('?').unwrap_or((uri, ""));
    let mut shown = without_password(address);
    for (place, option) in options.split('&').filter(|option| !option.is_empty()).enumerate() {
        shown.push(if place == 0 { '?' } else { '&' });
        let is_secret = ["password", "token"].iter().any(|word| option.to_ascii_lowercase().contains(word));
        match option.split_once('=') {
            Some((name, _)) if is_secret => shown.extend([name, "=***"]),
            _ => shown.push_str(option),
        }
    }
    shown
}

/// An address without options, and without the password in it.
fn without_password(uri: &str) -> String {
    let begin = uri.find("://").map_or(0, |at| at + 3);
    let end = uri[begin..].find('/').map_or(uri.len(), |at| begin + at);
    let secret = uri[begin..end].rfind('@').and_then(|at| Some((uri[begin..begin + at].find(':')?, at)));
    match secret {
        Some((colon, at)) => format!("{}:***{}", &uri[..begin + colon], &uri[begin + at..]),
        None => uri.to_owned(),
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// What to do when no server answers, or none is a primary.
const HINT: &str = "; start one with `rockdove serve`, or name another with --uri";

/// No server, or one that refuses.
fn unreachable(error: BackendError) -> anyhow::Error {
    if error.is_transient() { Failure::absent(format!("{error}{HINT}")).into() } else { error.into() }
}

/// Waits for a connection for about `limit`, and says so if that takes long and may take longer.
async fn reached<T>(limit: Duration, reach: impl Future<Output = T>) -> T {
    if limit < 2 * SAID_AFTER {
        return reach.await;
    }
    let mut reach = pin!(reach);
    tokio::select! {
        done = &mut reach => done,
        () = tokio::time::sleep(SAID_AFTER) => {
            eprintln!("rockdove: not connected yet; waiting");
            reach.await
        }
    }
}

impl Queue {
    /// The options by which another command finds the queue, as a shell takes them; empty when it finds it without. What
    /// the environment says, it says to that command, too. Secrets are not shown.
    pub fn options(&self) -> String {
        let Database { uri, db } = &self.database;
        let known = std::env::var(URI_VARIABLE).unwrap_or_else(|_| DEFAULT_URI.to_owned());
        let uri = (*uri != known).then(|| without_secrets(uri));
        let name = (self.name != DEFAULT_QUEUE).then(|| self.name.clone());
        let given = [("--uri", uri), ("--db", db.clone()), ("--queue", name)];
        given
            .into_iter()
            .filter_map(|(option, value)| Some(format!(" {option} {}", quoted(&value?))))
            .collect()
    }

    /// The database itself, without a bus.
    pub async fn backend(&self) -> anyhow::Result<DriverBackend> {
        self.database.backend().await
    }
}

impl Database {
    /// The address; what it says beyond its scheme is for the driver to judge. It may hold a password, and is not shown.
    fn address(&self) -> Result<&str, Failure> {
        let is_uri = ["mongodb://", "mongodb+srv://"].iter().any(|scheme| self.uri.starts_with(scheme));
        if is_uri {
            Ok(&self.uri)
        } else {
            Err(Failure::misused("an address is written mongodb://HOST:PORT"))
        }
    }

    /// The database itself, without a bus.
    pub async fn backend(&self) -> anyhow::Result<DriverBackend> {
        let backend = DriverBackend::connect(self.address()?, self.db.as_deref(), "rockdove").await?;
        reached(REACH_LIMIT, backend.reach(REACH_LIMIT)).await.map_err(unreachable)?;
        Ok(backend)
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
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    sender_id: Option<String>,
    /// Poll instead of following change streams
    #[arg(long)]
    polling: bool,
}

impl Connection {
    fn bus(&self) -> Result<BusBuilder, Failure> {
        let mut bus =
            Bus::builder(self.queue.database.address()?).queue(self.queue.name.clone()).layout(self.layout);
        if let Some(database) = &self.queue.database.db {
            bus = bus.database(database.clone());
        }
        if let Some(id) = &self.sender_id {
            bus = bus.sender_id(id.clone());
        }
        Ok(if self.polling { bus.polling() } else { bus })
    }

    /// Opens the bus, as `with` completes it; the error has the code of what is absent when no server could be used in time,
    /// which is `limit` if there is one.
    pub async fn connect(
        &self,
        limit: Option<Duration>,
        with: impl FnOnce(BusBuilder) -> BusBuilder,
    ) -> anyhow::Result<Bus> {
        let reach = limit.unwrap_or(REACH_LIMIT);
        let bus = reached(reach, with(self.bus()?).reach_within(reach).connect());
        let opened = match limit {
            // A little more, so that who does not answer is said with why.
            Some(limit) => tokio::time::timeout(limit + LATE_GRACE, bus)
                .await
                .map_err(|_| Failure::absent("not connected within --timeout"))?,
            None => bus.await,
        };
        opened.map_err(|error| match error {
            ConnectError::Unreachable(error) => unreachable(error),
            error => error.into(),
        })
    }
}

/// How lasting a send is to be.
#[derive(Args, Clone, Debug)]
pub struct Lasting {
    /// When it counts as sent: async, sync, quorum-sync, replicated, replicated-or-sync or risk; what was reached is
    /// printed
    #[arg(long, value_name = "LEVEL", value_parser = str::parse::<Level>)]
    ack: Option<Level>,
    /// What would be lost with the message, an integer; without --ack it is sent at level risk
    #[arg(long, value_name = "INTEGER", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..=VALUE_MAX as i64))]
    value: Option<i64>,
    /// Take the nearest stricter level if the server does not know the one that is asked for
    #[arg(long)]
    or_stricter: bool,
}

impl Lasting {
    /// What was reached, in words. Of what is worth little the level risk asks for no more than that it is written: if that
    /// is what was reached, no copies are missing.
    pub fn reached(&self, sent: &Sent) -> String {
        let is_risk = self.ack == Some(Level::Risk) || self.ack.is_none() && self.value.is_some();
        let note = match (sent.degraded, is_risk && sent.ack == Level::Async) {
            (false, _) => "",
            (true, true) => " (written, at risk until it is on disk)",
            (true, false) => " (degraded: fewer copies than asked for)",
        };
        format!("{}{note}", sent.ack)
    }

    /// The options of a send, if any was given.
    pub fn options(&self) -> Option<SendOptions> {
        if self.ack.is_none() && self.value.is_none() && !self.or_stricter {
            return None;
        }
        let mut options = SendOptions::new();
        if let Some(level) = self.ack {
            options = options.ack(level);
        }
        if let Some(value) = self.value {
            options = options.value(value);
        }
        Some(if self.or_stricter { options.or_stricter() } else { options })
    }
}

/// How to send.
#[derive(Args, Clone, Debug)]
pub struct Sending {
    /// How lasting.
    #[command(flatten)]
    pub lasting: Lasting,
    /// Let exactly one node process the message
    #[arg(long)]
    exclusive: bool,
    /// Send to this node only; repeat for several
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    to: Vec<String>,
    /// Lifetime of the message, such as 500ms, 30s, 5m, or never; a bare number is seconds [default: 30s, a request at least as long as its --timeout, and one that nobody answered is removed then]
    #[arg(long, value_name = "TIME", value_parser = lifetime)]
    ttl: Option<Lifetime>,
    /// Priority; smaller is earlier
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", allow_negative_numbers = true)]
    priority: i32,
    /// The free text `msg` of the message
    #[arg(long, value_name = "TEXT")]
    msg: Option<String>,
}

impl Sending {
    /// How many answers a request may have, if there is a limit.
    pub fn answers_max(&self) -> Option<usize> {
        self.exclusive.then_some(1)
    }

    /// Whether a lifetime is asked for.
    pub fn has_ttl(&self) -> bool {
        self.ttl.is_some()
    }

    /// Applies the options to a message, which lives for `ttl` unless they say otherwise.
    pub fn apply(&self, message: Message, ttl: Duration) -> Message {
        let mut message = message.exclusive(self.exclusive).priority(self.priority);
        message.recipients.clone_from(&self.to);
        message.msg.clone_from(&self.msg);
        match self.ttl.unwrap_or(Lifetime::Of(ttl)) {
            Lifetime::Of(ttl) => message.ttl(ttl),
            Lifetime::Never => message.never_expires(),
        }
    }
}

/// How long a message lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// This long.
    Of(Duration),
    /// Until it is processed and removed.
    Never,
}

/// Parses a lifetime: a time that is not zero, or `never`.
fn lifetime(text: &str) -> Result<Lifetime, String> {
    match text {
        "never" => Ok(Lifetime::Never),
        _ if duration(text)?.is_zero() => {
            Err("a message lives for some time; write 30s, or never".to_owned())
        }
        _ => duration(text).map(Lifetime::Of),
    }
}

/// Parses how long to wait: a time that is not zero.
pub fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("nothing comes in no time; write 500ms, or 30s".to_owned()),
        time => Ok(time),
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
    fn a_lifetime_is_never_nothing() {
        assert_eq!(lifetime("5m"), Ok(Lifetime::Of(Duration::from_secs(300))));
        assert_eq!(lifetime("never"), Ok(Lifetime::Never));
        assert!(timeout("0s").is_err() && timeout("1ms").is_ok());
        assert!(lifetime("0s").is_err() && lifetime("0").is_err() && lifetime("").is_err());
    }

    #[test]
    fn what_another_command_is_told_fits_a_shell_and_has_no_password() {
        let check = |uri, expected| assert_eq!(without_secrets(uri), expected);
        check("mongodb://a:27017/shop?x=y@z:1", "mongodb://a:27017/shop?x=y@z:1");
        check("mongodb://a?x=1&tls=true", "mongodb://a?x=1&tls=true");
        check(
            "mongodb://me:secret@a/?tls=true&tlsCertificateKeyFilePassword=s=c&x=1",
            "mongodb://me:***@a/?tls=true&tlsCertificateKeyFilePassword=***&x=1",
        );
        check(
            "mongodb://a/?authMechanismProperties=AWS_SESSION_TOKEN:s",
            "mongodb://a/?authMechanismProperties=***",
        );
        check("mongodb://me@a,b/shop", "mongodb://me@a,b/shop");
        check("mongodb://me:se:cr@a:1,b:2/shop", "mongodb://me:***@a:1,b:2/shop");
        check("mongodb://me:secret@a", "mongodb://me:***@a");
        assert_eq!(
            ["a-b", "a b", "it's", "x?y&z", ""].map(quoted),
            ["a-b", "'a b'", "'it'\\''s'", "'x?y&z'", "''"]
        );
    }

    #[test]
    fn what_is_at_risk_is_what_is_only_written() {
        let check = |ack, value, (reached, degraded), expected: &str| {
            let lasting = Lasting { ack, value, or_stricter: false };
            let sent = |id| Sent { id, ack: reached, degraded };
            assert_eq!(lasting.reached(&sent(rockdove::MessageId::generate())), expected);
        };
        let (written, fewer) =
            (" (written, at risk until it is on disk)", " (degraded: fewer copies than asked for)");
        check(None, Some(5), (Level::Async, true), &format!("async{written}"));
        check(Some(Level::Risk), None, (Level::Async, true), &format!("async{written}"));
        check(Some(Level::Risk), Some(5), (Level::Sync, true), &format!("sync{fewer}"));
        check(Some(Level::Replicated), Some(5), (Level::Async, true), &format!("async{fewer}"));
        check(None, Some(50), (Level::Sync, false), "sync");
    }

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
