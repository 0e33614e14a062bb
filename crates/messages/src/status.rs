//! The built-in status question: a node asks, every node answers what it is and does.
//!
//! Keys keep Java's spelling and nesting. A node that is no Java virtual machine reports what it has: keys about
//! heaps and garbage do not appear, memory and threads are those of the process when known.

use bson::{Document, doc};

/// `msg` of the status request by which a registry discovers nodes.
pub const DISCOVERY_TEXT: &str = "status_request";
/// `value` of that request.
pub const DISCOVERY_VALUE: &str = "all";

/// The topics that a status answer names; `None` when it names none because it is of another level.
pub fn listened_topics(map_value: &Document) -> Option<Vec<String>> {
    let listeners = map_value.get_document("message_listeners_by_name").ok()?;
    Some(listeners.keys().cloned().collect())
}

/// How much a status request asks for: the exact text in its `value`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Only that the node is there.
    Ping,
    /// Listeners, queue depths, settings. Also what any unknown text means.
    Messaging,
    /// The connection to the server.
    Driver,
    /// Both.
    All,
}

impl Level {
    /// The level named by the `value` of a request.
    pub fn from_value(value: Option<&str>) -> Self {
        match value {
            Some("PING") => Self::Ping,
            Some("MORPHIUM_ONLY") => Self::Driver,
            Some("ALL") => Self::All,
            _ => Self::Messaging,
        }
    }
}

/// What a node knows about itself.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Topics with a listener, and how the listeners are called.
    pub listeners: Vec<(String, Vec<String>)>,
    /// Whether change streams are in use.
    pub change_stream: bool,
    /// Whether listeners run side by side.
    pub multithreaded: bool,
    /// Messages one poll takes.
    pub window_size: i32,
    /// Poll pause in ms.
    pub pause_ms: i32,
    /// Age of the request on arrival in ms, by two clocks.
    pub received_after_ms: i64,
    /// Requests waiting for answers.
    pub waiting_for_answers: i32,
    /// Answers collected for them so far.
    pub answers_collected: i32,
    /// Messages being processed.
    pub in_progress: i32,
    /// Messages queued.
    pub queued: i32,
    /// Listener calls allowed at a time, running now, and ended so far.
    pub workers: (i64, i64, i64),
    /// Name and version of the program that answers.
    pub program: String,
    /// What the back end says about the server connection.
    pub driver: Document,
    /// The settings in force, none of them secret.
    pub settings: Document,
    /// The process: resident and largest memory in bytes, and threads; `None` where the system does not tell.
    pub process: Option<(i64, i64, i32)>,
}

/// The `map_value` of the answer to a status request.
pub fn answer(level: Level, report: &Report) -> Document {
    if level == Level::Ping {
        return Document::new();
    }
    let mut map = doc! { "jvm.version": &report.program };
    if let Some((memory, largest, threads)) = report.process {
        map.extend(doc! {
            "jvm.total_mem": memory,
            "jvm.max_mem": largest,
            "jvm.threads.active": threads,
        });
    }
    if matches!(level, Level::Messaging | Level::All) {
        map.extend(messaging(report));
    }
    if matches!(level, Level::Driver | Level::All) {
        map.insert("morphium.config", report.settings.clone());
        map.insert("morphium.driver.connections", report.driver.clone());
    }
    map
}

fn messaging(report: &Report) -> Document {
    let listeners: Document =
        report.listeners.iter().map(|(topic, names)| (topic.clone(), names.clone().into())).collect();
    let mut map = doc! { "message_listeners_by_name": listeners };
    if report.multithreaded {
        let (max, active, completed) = report.workers;
        map.insert(
            "messaging_threadpoolstats",
            doc! {
                "messaging.threadpool.maximum_pool_size": max,
                "messaging.threadpool.active_count": active,
                "messaging.threadpool.completed_task_count": completed,
                "messaging.threadpool.task_count": completed + active,
            },
        );
    }
    map.extend(doc! {
        "messaging.changestream": report.change_stream,
        "messaging.multithreadded": report.multithreaded,
        "messaging.window_size": report.window_size,
        "messaging.pause": report.pause_ms,
        "messaging.time_till_recieved": report.received_after_ms,
        "messaging.waiting_for_answers": report.waiting_for_answers,
        "messaging.waiting_for_answers_total": report.answers_collected,
        "messaging.in_progress": report.in_progress,
        "messaging.processing": report.queued,
    });
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_matched_exactly() {
        let check = |value, expected| assert_eq!(Level::from_value(value), expected);
        check(Some("PING"), Level::Ping);
        check(Some("ALL"), Level::All);
        check(Some("all"), Level::Messaging);
        check(Some("MORPHIUM_ONLY"), Level::Driver);
        check(None, Level::Messaging);
    }

    #[test]
    fn answers_hold_what_their_level_asks_for() {
        let listeners = vec![("orders.created".to_owned(), vec!["listener".to_owned()])];
        let report = Report { listeners, multithreaded: true, ..Report::default() };
        assert_eq!(answer(Level::Ping, &report), doc! {});
        let messaging = answer(Level::Messaging, &report);
        let names = messaging.get_document("message_listeners_by_name").unwrap();
        assert_eq!(names, &doc! {"orders.created": ["listener"]});
        assert!(messaging.contains_key("messaging_threadpoolstats"));
        assert!(!messaging.contains_key("morphium.driver.connections"));
        let driver = answer(Level::Driver, &report);
        assert!(driver.contains_key("morphium.driver.connections") && driver.len() == 3);
        assert_eq!(answer(Level::All, &report).len(), messaging.len() + 2);
        let report = Report { process: Some((5, 7, 3)), ..report };
        assert_eq!(answer(Level::Driver, &report).get("jvm.threads.active"), Some(&bson::Bson::Int32(3)));
        assert_eq!(answer(Level::Ping, &report), doc! {});
    }
}
