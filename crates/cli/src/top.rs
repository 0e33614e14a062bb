//! `rockdove top`: what goes on in the queues, on a screen that is drawn again and again.
//!
//! The screen is the terminal's second one, so what was there before is there again at the end, whatever ends the
//! command. Nothing is drawn where there is no terminal: then each look is printed after the other.

use crate::connection::{Database, duration};
use crate::exit::{self, Exit};
use crate::signals;
use clap::Parser;
use console::{Alignment, Term, measure_text_width, pad_str, truncate_str};
use rockdove::backend::Backend;
use rockdove::doctor::counted;
use rockdove::top::{Limits, Monitor, Node, Queue, Sample, Topic};
use rockdove::{Layout, LookError};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::iter;
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
  SENT      messages sent per second         DONE      messages marked first, or removed, per second
  LAG       from sending to that, the mean   OLDEST    age of the oldest message that waits
  UNANSW    messages without an answer, on topics on which others got one
  UNTAKEN   answers that nobody took
  AGE       since the node started           SEEN      since its last sign of life
  LOCKS     exclusive messages it holds

Ages and the lag go by the clocks of this machine and of the senders. A queue that is not there is waited for. A screen \
shows at most 40 characters of a name and lines as wide as it is; what is cut ends with …. Ctrl-C ends it.";

/// The longest name that is shown whole on a screen: a UUID has 36 characters.
const NAME_MAX: usize = 40;

/// The second screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Watch queues: what waits, rates, lag, nodes, locks
#[derive(Parser, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::help(&["3    no server, or with --once no such queue"])))]
pub struct Args {
    /// Only this queue [default: all of the database whose nodes announce themselves]
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The queue's layout: standard, multi-collection or dual-channel [default: what its nodes announce, or collections show: a dual-channel queue without nodes looks like a standard one]
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

    fn draw(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(frame(text, size()).as_bytes())?;
        out.flush()
    }
}

/// What draws a text over what is there: no line flickers. After a line that is as wide as the screen the cursor is on its
/// last character, which erasing the rest of the line would take along.
fn frame(text: &str, (height, width): (usize, usize)) -> String {
    let mut lines: Vec<_> = text.lines().map(|line| truncate_str(line, width, "…")).collect();
    if lines.len() > height {
        let more = format!("… {} more lines", lines.len() - (height - 1));
        lines.truncate(height - 1);
        lines.push(truncate_str(&more, width, "…").into_owned().into());
    }
    let mut screen = "\x1b[H".to_owned();
    for (place, line) in lines.iter().enumerate() {
        let rest = if measure_text_width(line) < width { "\x1b[K" } else { "" };
        let end = if place + 1 < height { "\r\n" } else { "" };
        let _ = write!(screen, "{line}{rest}{end}");
    }
    if lines.len() < height {
        screen.push_str("\x1b[J");
    }
    screen
}

/// Lines and columns of the terminal, as it says; else as `LINES` and `COLUMNS` say. What nobody says has no limit.
fn size() -> (usize, usize) {
    let variable = |name| std::env::var(name).ok()?.parse::<usize>().ok().filter(|size| *size > 0);
    let (height, width) = match Term::stdout().size_checked() {
        Some((height, width)) => (Some(height.into()), Some(width.into())),
        None => (variable("LINES"), variable("COLUMNS")),
    };
    (height.unwrap_or(usize::MAX).max(2), width.unwrap_or(usize::MAX))
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
        let name_max = if screen.is_some() { NAME_MAX } else { usize::MAX };
        let text = shown(&look, args.json, name_max);
        match screen {
            Some(screen) => screen.draw(&text)?,
            None => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
        }
        if args.once {
            let is_there = |look: &Sample| look.queues.iter().all(|queue| queue.is_there);
            return Ok(if look.is_ok_and(|look| is_there(&look)) { Exit::Done } else { Exit::Absent });
        }
    }
}

/// A look, or why there is none for now; as text with at most so many characters of a name.
fn shown(look: &Result<Sample, LookError>, json: bool, name_max: usize) -> String {
    match look {
        Ok(sample) if json => format!("{}\n", as_json(sample)),
        Ok(sample) => text(sample, name_max),
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

fn text(sample: &Sample, name_max: usize) -> String {
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
            "queue {}: {layouts}; {alive} of {} alive; {} waiting; {} held",
            printable(&queue.name),
            counted(queue.nodes.len() as u64, "node"),
            counted(waiting, "message"),
            counted(queue.locks, "lock")
        );
        topics(&mut out, &queue.topics, name_max);
        nodes(&mut out, &queue.nodes, sample.at_ms, name_max);
        for note in &queue.notes {
            let _ = writeln!(out, "  note: {}", printable(note));
        }
    }
    out
}

/// A column of names, as wide as the longest, and at most `max` characters: longer ones are cut and end with `…`.
fn column(header: &str, names: impl Iterator<Item = String>, max: usize) -> Vec<String> {
    let cells: Vec<String> =
        iter::once(header.to_owned()).chain(names.map(|name| printable(&name))).collect();
    let widest = cells.iter().map(|cell| measure_text_width(cell)).max().unwrap_or_default();
    let width = widest.min(max);
    cells.iter().map(|cell| pad_str(cell, width, Alignment::Left, Some("…")).into_owned()).collect()
}

fn topics(out: &mut String, topics: &[Topic], name_max: usize) {
    if topics.is_empty() {
        return;
    }
    let names = column("TOPIC", topics.iter().map(|topic| topic.name.clone()), name_max);
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}/s"));
    let time = |ms: Option<i64>| ms.map_or_else(|| "-".to_owned(), age);
    let header = ["WAITING", "EXCL", "SENT", "DONE", "LAG", "OLDEST", "UNANSW", "UNTAKEN"].map(str::to_owned);
    let rows = topics.iter().map(|topic| {
        [
            topic.waiting.to_string(),
            topic.exclusive.to_string(),
            rate(topic.sent),
            rate(topic.done),
            time(topic.lag_ms),
            time(topic.oldest_ms),
            topic.unanswered.to_string(),
            topic.untaken.to_string(),
        ]
    });
    for (name, cells) in names.iter().zip(iter::once(header).chain(rows)) {
        let [waiting, exclusive, sent, done, lag, oldest, unanswered, untaken] = cells;
        let _ = writeln!(
            out,
            "  {name} {waiting:>8} {exclusive:>6} {sent:>10} {done:>10} {lag:>8} {oldest:>8} {unanswered:>7} {untaken:>7}"
        );
    }
}

fn nodes(out: &mut String, nodes: &[Node], now: i64, name_max: usize) {
    if nodes.is_empty() {
        return;
    }
    let announced = || nodes.iter().map(|node| &node.announced);
    let ids = column("NODE", announced().map(|one| one.id.clone()), name_max);
    let implementations =
        column("IMPLEMENTATION", announced().map(|one| one.implementation.to_string()), name_max);
    let hosts = column("HOST", announced().map(|one| one.hostname.clone()), name_max);
    let header = ["STATE", "AGE", "SEEN", "LOCKS"].map(str::to_owned);
    let rows = nodes.iter().map(|node| {
        [
            if node.alive { "alive" } else { "gone?" }.to_owned(),
            age(now.saturating_sub(node.announced.started_at)),
            age(now.saturating_sub(node.announced.last_seen)),
            node.locks.to_string(),
        ]
    });
    // What a narrow screen cuts is what matters least.
    let names = ids.iter().zip(implementations.iter().zip(&hosts));
    for ((id, (implementation, host)), cells) in names.zip(iter::once(header).chain(rows)) {
        let [state, age, seen, locks] = cells;
        let line = format!("  {id} {state:<5} {age:>8} {seen:>8} {locks:>6}  {implementation} {host}");
        let _ = writeln!(out, "{}", line.trim_end());
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
            is_there: true,
            name: "msg".to_owned(),
            layouts: Vec::new(),
            topics: Vec::new(),
            nodes: vec![node("early", i64::MIN), node("late", i64::MAX)],
            locks: 0,
            notes: Vec::new(),
        };
        let look = Ok(Sample { at_ms: 1_760_000_000_000, queues: vec![queue] });
        assert!(shown(&look, true, 40).contains(&format!("\"age_ms\":{}", i64::MAX)));
        assert!(shown(&look, false, 40).contains("106751991167d"));
    }

    #[test]
    fn columns_are_as_wide_as_their_names_and_end_somewhere() {
        let names =
            || ["a", "6f9619ff-8b86-d011-b42d-00c04fc964ff", &"x".repeat(50)].map(str::to_owned).into_iter();
        let cut = column("NODE", names(), NAME_MAX);
        assert!(cut.iter().all(|cell| measure_text_width(cell) == NAME_MAX), "{cut:?}");
        assert_eq!(cut[2].trim_end(), "6f9619ff-8b86-d011-b42d-00c04fc964ff");
        assert_eq!(cut[3], format!("{}…", "x".repeat(NAME_MAX - 1)));
        let whole = column("NODE", names(), usize::MAX);
        assert_eq!((whole[0].len(), &*whole[3]), (50, &*"x".repeat(50)));
        assert_eq!(column("NODE", ["a".to_owned()].into_iter(), NAME_MAX), ["NODE", "a   "]);
    }

    #[test]
    fn a_line_as_wide_as_the_screen_is_whole() {
        let check = |text, size, expected| assert_eq!(frame(text, size), expected, "{text:?} {size:?}");
        check("abc\nabcd\n", (3, 4), "\x1b[Habc\x1b[K\r\nabcd\r\n\x1b[J");
        check("abcde\nab", (2, 4), "\x1b[Habc…\r\nab\x1b[K");
        check("a\nb\nc\nd", (3, 14), "\x1b[Ha\x1b[K\r\nb\x1b[K\r\n… 2 more lines");
        check("a", (usize::MAX, usize::MAX), "\x1b[Ha\x1b[K\r\n\x1b[J");
        check("", (2, 4), "\x1b[H\x1b[J");
    }

    #[test]
    fn names_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a?[2Jb?c");
    }
}
