//! `rockdove top`: what goes on in the queues, on a screen that is drawn again and again.
//!
//! The screen is the terminal's second one, so what was there before is there again at the end, whatever ends the
//! command. Nothing is drawn where there is no terminal: then each look is printed after the other.

use crate::connection::{Database, duration};
use crate::exit::{self, Exit};
use crate::signals;
use clap::Parser;
use console::Term;
use rockdove::backend::Backend;
use rockdove::top::{Limits, Monitor, Node, Queue, Sample, Topic};
use rockdove::{Layout, LookError};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  rockdove top                                   all queues of the database, every second
  rockdove top --uri mongodb://db1/shop --queue orders --interval 5s
  rockdove top --once --json                     one look, as a line of JSON

It reads only, and works on any MongoDB-compatible server; rates need change streams. Of each collection at most \
--documents messages that wait and as many of the newest are read, and where there are more it says so. While the \
server cannot be reached it shows the error instead, with --json as {\"error\": …}, and goes on; --once ends with it.

All queues are those with a collection of participants. Java nodes that ignore the implementation check \
(ImplementationCheck.IGNORE), and those older than Morphium 6.3.1, do not announce themselves: name their queue with \
--queue.

  WAITING   messages that nobody marked      EXCL      those of them that are exclusive
  SENT/s    messages sent per second         DONE/s    messages marked first, or removed, per second
  LAG       from sending to that, the mean   OLDEST    age of the oldest message that waits
  UNANSW    requests without an answer       UNTAKEN   answers that nobody took

Ages and the lag go by the clocks of this machine and of the senders. Ctrl-C ends it.";

/// The second screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Watch queues: what waits, rates, lag, nodes, locks
#[derive(Parser, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub struct Args {
    /// Only this queue [default: all of the database whose nodes announce themselves]
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The queue's layout: standard, multi-collection or dual-channel [default: found out]
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Layout>)]
    layout: Option<Layout>,
    /// Time between two looks
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval)]
    interval: Duration,
    /// Look once, with the rates of one interval, and end
    #[arg(long)]
    once: bool,
    /// Print each look as one line of JSON
    #[arg(long)]
    json: bool,
    /// Read at most this many messages of each kind of a collection
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    documents: u32,
    #[command(flatten)]
    database: Database,
}

/// Parses the time between two looks.
fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < Duration::from_millis(100) => {
            Err("a look takes its time; write 100ms or more".to_owned())
        }
        time => Ok(time),
    }
}

/// Gives the terminal back.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        let mut out = io::stdout().lock();
        out.write_all(ENTER.as_bytes())?;
        out.flush()?;
        Ok(Self)
    }

    /// Draws over what is there: no line flickers.
    fn draw(&self, text: &str) -> io::Result<()> {
        let (height, width) = Term::stdout().size();
        let (height, width) = (usize::from(height).max(2), usize::from(width));
        let lines: Vec<_> = text.lines().collect();
        let shown = if lines.len() > height { height - 1 } else { lines.len() };
        let mut screen = "\x1b[H".to_owned();
        for (place, line) in lines[..shown].iter().enumerate() {
            let line: String = line.chars().take(width).collect();
            let _ = write!(screen, "{}{line}\x1b[K", if place == 0 { "" } else { "\r\n" });
        }
        if shown < lines.len() {
            let _ = write!(screen, "\r\n… {} more lines\x1b[K", lines.len() - shown);
        }
        screen.push_str("\x1b[J");
        let mut out = io::stdout().lock();
        out.write_all(screen.as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = io::stdout().lock();
        // Nobody is there to be told that the terminal is gone.
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
    }
}

/// Runs the command.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let backend = Arc::new(args.database.backend().await?);
    let limits = Limits { documents: usize::try_from(args.documents)?, ..Limits::default() };
    let mut monitor = Monitor::new(backend.clone(), args.queue.clone(), args.layout, limits);
    let screen =
        if args.once || args.json || !Term::stdout().is_term() { None } else { Some(Screen::enter()?) };
    let result = tokio::select! {
        result = watch(&mut monitor, &args, screen.as_ref()) => result,
        ended = signals::ended() => ended.map_err(Into::into),
    };
    drop((screen, monitor));
    backend.close().await;
    result
}

async fn watch(monitor: &mut Monitor, args: &Args, screen: Option<&Screen>) -> anyhow::Result<Exit> {
    let mut ticks = tokio::time::interval(args.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    if args.once {
        ticks.tick().await;
        monitor.sample().await?;
    }
    loop {
        ticks.tick().await;
        let look = match monitor.sample().await {
            Err(error) if args.once || !error.is_transient() => return Err(error.into()),
            look => look,
        };
        let text = shown(&look, args.json);
        match screen {
            Some(screen) => screen.draw(&text)?,
            None => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
        }
        if args.once {
            return Ok(Exit::Done);
        }
    }
}

/// A look, or why there is none for now.
fn shown(look: &Result<Sample, LookError>, json: bool) -> String {
    match look {
        Ok(sample) if json => format!("{}\n", as_json(sample)),
        Ok(sample) => text(sample),
        Err(error) if json => format!("{}\n", json!({ "error": error.to_string() })),
        Err(error) => format!("cannot look: {}\n", printable(&error.to_string())),
    }
}

fn as_json(sample: &Sample) -> Value {
    let topic = |topic: &Topic| {
        json!({
            "topic": topic.name, "waiting": topic.waiting, "exclusive": topic.exclusive, "oldest_ms": topic.oldest_ms,
            "sent_per_s": topic.sent, "done_per_s": topic.done, "lag_ms": topic.lag_ms,
            "unanswered": topic.unanswered, "untaken": topic.untaken,
        })
    };
    let node = |node: &Node| {
        let one = &node.announced;
        json!({
            "id": one.id, "implementation": one.implementation.to_string(), "host": one.hostname, "alive": node.alive,
            "age_ms": sample.at_ms.saturating_sub(one.started_at), "seen_ms": sample.at_ms.saturating_sub(one.last_seen),
            "locks": node.locks,
        })
    };
    let queue = |queue: &Queue| {
        json!({
            "queue": queue.name,
            "layouts": queue.layouts.iter().map(|layout| layout.name()).collect::<Vec<_>>(),
            "topics": queue.topics.iter().map(topic).collect::<Vec<_>>(),
            "participants": queue.nodes.iter().map(node).collect::<Vec<_>>(),
            "locks": queue.locks,
            "notes": queue.notes,
        })
    };
    json!({ "at_ms": sample.at_ms, "queues": sample.queues.iter().map(queue).collect::<Vec<_>>() })
}

fn text(sample: &Sample) -> String {
    let mut out = String::new();
    if sample.queues.is_empty() {
        out.push_str("no queue in this database\n");
    }
    for (place, queue) in sample.queues.iter().enumerate() {
        if place > 0 {
            out.push('\n');
        }
        let layouts: Vec<_> = queue.layouts.iter().map(|layout| layout.name()).collect();
        let alive = queue.nodes.iter().filter(|node| node.alive).count();
        let waiting: u64 = queue.topics.iter().map(|topic| topic.waiting).sum();
        let layouts = if layouts.is_empty() { "layout unknown".to_owned() } else { layouts.join(", ") };
        let _ = writeln!(
            out,
            "queue {}: {layouts}; {alive} of {} nodes alive; {waiting} waiting; {} locks held",
            printable(&queue.name),
            queue.nodes.len(),
            queue.locks
        );
        topics(&mut out, &queue.topics);
        nodes(&mut out, &queue.nodes, sample.at_ms);
        for note in &queue.notes {
            let _ = writeln!(out, "  note: {}", printable(note));
        }
    }
    out
}

fn topics(out: &mut String, topics: &[Topic]) {
    if topics.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "  {:<30} {:>8} {:>6} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7}",
        "TOPIC", "WAITING", "EXCL", "SENT/s", "DONE/s", "LAG", "OLDEST", "UNANSW", "UNTAKEN"
    );
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
    for topic in topics {
        let _ = writeln!(
            out,
            "  {:<30} {:>8} {:>6} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7}",
            printable(&topic.name),
            topic.waiting,
            topic.exclusive,
            rate(topic.sent),
            rate(topic.done),
            topic.lag_ms.map_or_else(|| "-".to_owned(), age),
            topic.oldest_ms.map_or_else(|| "-".to_owned(), age),
            topic.unanswered,
            topic.untaken
        );
    }
}

fn nodes(out: &mut String, nodes: &[Node], now: i64) {
    if nodes.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "  {:<30} {:<26} {:<20} {:>8} {:>8} {:>6}",
        "NODE", "IMPLEMENTATION", "HOST", "AGE", "SEEN", "LOCKS"
    );
    for node in nodes {
        let one = &node.announced;
        let _ = writeln!(
            out,
            "  {:<30} {:<26} {:<20} {:>8} {:>8} {:>6}{}",
            printable(&one.id),
            printable(&one.implementation.to_string()),
            printable(&one.hostname),
            age(now.saturating_sub(one.started_at)),
            age(now.saturating_sub(one.last_seen)),
            node.locks,
            if node.alive { "" } else { "  gone?" }
        );
    }
}

/// Names come from outside: what could move the cursor or change colours is not printed.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A time in the largest unit that leaves two digits or more.
fn age(ms: i64) -> String {
    match ms {
        ..0 => format!("-{}", age(ms.saturating_neg())),
        0..10_000 => format!("{ms}ms"),
        10_000..600_000 => format!("{}s", ms / 1000),
        600_000..36_000_000 => format!("{}m", ms / 60_000),
        36_000_000..864_000_000 => format!("{}h", ms / 3_600_000),
        _ => format!("{}d", ms / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove::{Implementation, Participant};

    #[test]
    fn times_are_short() {
        let check = |ms, expected| assert_eq!(age(ms), expected);
        check(0, "0ms");
        check(9999, "9999ms");
        check(10_000, "10s");
        check(599_999, "599s");
        check(3_600_000, "60m");
        check(86_400_000, "24h");
        check(8_640_000_000, "100d");
        check(-12_000, "-12s");
        check(i64::MIN, "-106751991167d");
    }

    #[test]
    fn nodes_may_announce_any_time() {
        let node = |id: &str, time| Node {
            announced: Participant {
                id: id.to_owned(),
                implementation: Implementation::Unknown("Other".to_owned()),
                hostname: String::new(),
                started_at: time,
                last_seen: time,
            },
            alive: false,
            locks: 0,
        };
        let queue = Queue {
            name: "msg".to_owned(),
            layouts: Vec::new(),
            topics: Vec::new(),
            nodes: vec![node("early", i64::MIN), node("late", i64::MAX)],
            locks: 0,
            notes: Vec::new(),
        };
        let look = Ok(Sample { at_ms: 1_760_000_000_000, queues: vec![queue] });
        assert!(shown(&look, true).contains(&format!("\"age_ms\":{}", i64::MAX)));
        assert!(shown(&look, false).contains("106751991167d"));
    }

    #[test]
    fn names_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a?[2Jb?c");
    }
}
