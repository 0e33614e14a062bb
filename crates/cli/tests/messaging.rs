//! The messaging commands and the library against a running server, killed participants included.

use bson::doc;
use rockdove::backend::{Backend, Durability, Find};
use rockdove::{
    Bus, ConnectError, DriverBackend, Layout, Level, Message, MessageId, RequestError, SendError, SendOptions,
};
use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

/// No step waits longer than this.
const LIMIT: Duration = Duration::from_secs(60);

/// Ends its process, however the test ends.
struct Process(Child);

impl Process {
    /// As a power failure would: nothing is finished or said goodbye to.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Its exit code, when it has ended by itself.
    fn code(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Server {
    process: Process,
    port: u16,
    storage: Vec<String>,
    uri: String,
}

impl Server {
    fn start() -> Self {
        Self::start_with(vec!["--memory".to_owned()])
    }

    fn stored_in(dir: &Path) -> Self {
        Self::start_with(vec!["--data-dir".to_owned(), dir.display().to_string()])
    }

    fn start_with(storage: Vec<String>) -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let uri = format!("mongodb://127.0.0.1:{port}/shop?directConnection=true");
        Self { process: Self::spawn(port, &storage), port, storage, uri }
    }

    fn spawn(port: u16, storage: &[String]) -> Process {
        let child = rockdove()
            .args(["serve", "--listen", &format!("127.0.0.1:{port}")])
            .args(storage)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process(child);
        until("the server listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        process
    }

    /// The server dies, and another takes its place.
    fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = Self::spawn(self.port, &self.storage);
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = rockdove();
        command.args(args).env("ROCKDOVE_URI", &self.uri).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut child =
            Process(self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        child.code();
        let stdout = std::io::read_to_string(child.0.stdout.take().unwrap()).unwrap();
        let stderr = std::io::read_to_string(child.0.stderr.take().unwrap()).unwrap();
        Output { status: child.0.wait().unwrap(), stdout: stdout.into(), stderr: stderr.into() }
    }

    /// Starts a command; its output lines arrive in the channel.
    fn start_lines(&self, args: &[&str]) -> (Process, mpsc::Receiver<String>) {
        let mut child = self.command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        (Process(child), lines)
    }

    /// Starts a command; what it says on standard error arrives in the channel.
    fn start_saying(&self, args: &[&str]) -> (Process, mpsc::Receiver<String>) {
        let mut child = self.command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, said) = mpsc::channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        (Process(child), said)
    }

    /// The address of a server that is not there yet.
    fn later() -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let uri = format!("mongodb://127.0.0.1:{port}/shop?directConnection=true");
        let nothing = rockdove().arg("--version").stdout(Stdio::null()).spawn().unwrap();
        Self { process: Process(nothing), port, storage: vec!["--memory".to_owned()], uri }
    }

    async fn bus(&self, layout: Layout, id: &str) -> Bus {
        Bus::builder(&self.uri).layout(layout).sender_id(id).connect().await.unwrap()
    }
}

/// Stands before a server so that it looks like another's: its `hello` does not name the field `rockdove`.
async fn as_foreign(server: u16) -> u16 {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let Ok(mut server) = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else {
                return;
            };
            tokio::spawn(async move {
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.split(), server.split());
                let back = async {
                    // Whole messages, so that no name is taken apart.
                    while let Ok(length) = from_server.read_u32_le().await {
                        let mut message = vec![0; length as usize];
                        message[..4].copy_from_slice(&length.to_le_bytes());
                        from_server.read_exact(&mut message[4..]).await?;
                        let name = b"\x03rockdove\0";
                        if let Some(at) = message.windows(name.len()).position(|window| window == name) {
                            message[at + 1] = b'_';
                        }
                        to_client.write_all(&message).await?;
                    }
                    Ok::<_, std::io::Error>(())
                };
                tokio::select! {
                    _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
                    _ = back => {}
                }
            });
        }
    });
    port
}

/// Stands between a node and the server: passes bytes on, holds them back, or closes or resets every connection.
struct Proxy {
    port: u16,
    frozen: watch::Sender<bool>,
    /// Counts the cuts; whether the last one was a reset.
    cuts: watch::Sender<(u64, bool)>,
}

impl Proxy {
    async fn start(server: u16) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (frozen, cuts) = (watch::Sender::new(false), watch::Sender::new((0, false)));
        let (freezing, cutting) = (frozen.subscribe(), cuts.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (freezing, mut cutting) = (freezing.clone(), cutting.clone());
                cutting.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(server) = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await
                    else {
                        return;
                    };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    let (mut to_client, mut to_server) = (to_client, to_server);
                    tokio::select! {
                        () = pass_on(from_client, &mut to_server, freezing.clone()) => {}
                        () = pass_on(from_server, &mut to_client, freezing) => {}
                        _ = cutting.changed() => {}
                    }
                    if cutting.borrow().1 {
                        for end in [to_client, to_server] {
                            end.as_ref().set_zero_linger().unwrap();
                        }
                    }
                });
            }
        });
        Self { port, frozen, cuts }
    }

    async fn freeze(&self, time: Duration) {
        self.frozen.send_replace(true);
        tokio::time::sleep(time).await;
        self.frozen.send_replace(false);
    }

    fn cut(&self, reset: bool) {
        self.cuts.send_modify(|cuts| *cuts = (cuts.0 + 1, reset));
    }
}

async fn pass_on(mut from: OwnedReadHalf, to: &mut OwnedWriteHalf, mut frozen: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if frozen.wait_for(|frozen| !frozen).await.is_err() || to.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
    }
}

/// Defines each test once for every layout.
macro_rules! in_every_layout {
    ($(async fn $name:ident($layout:ident) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn run($layout: Layout) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn standard() {
                run(Layout::Standard).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn multi_collection() {
                run(Layout::MultiCollection).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn dual_channel() {
                run(Layout::DualChannel).await;
            }
        }
    )*};
}

/// A node behind the proxy that listens to "work", and the values it hears there.
async fn worker_behind(server: &Server, proxy: &Proxy, layout: Layout) -> (Bus, Arc<Mutex<Vec<String>>>) {
    let uri = server.uri.replace(&server.port.to_string(), &proxy.port.to_string());
    let worker = Bus::builder(uri).layout(layout).sender_id("worker").connect().await.unwrap();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = heard.clone();
    worker
        .subscribe("work", move |message| {
            noted.lock().unwrap().push(message.value.clone().unwrap_or_default());
            async { Ok(()) }
        })
        .await
        .unwrap();
    (worker, heard)
}

/// Sends work with different values, with this pause after each: exclusive, directed and broadcast in turns.
async fn send_work(sender: &Bus, count: usize, pause: Duration) {
    for n in 0..count {
        let message = Message::new("work").value(n.to_string()).exclusive(n % 3 == 0).never_expires();
        sender.publish(if n % 3 == 1 { message.to("worker") } else { message }).await.unwrap();
        tokio::time::sleep(pause).await;
    }
}

/// How many different values were heard, and how many at all.
fn values(heard: &Mutex<Vec<String>>) -> (usize, usize) {
    let mut values = heard.lock().unwrap().clone();
    let count = values.len();
    values.sort_unstable();
    values.dedup();
    (values.len(), count)
}

fn rockdove() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rockdove"))
}

/// Waits until somebody says what contains `what`.
fn hear(said: &mpsc::Receiver<String>, what: &str) {
    let mut other = Vec::new();
    loop {
        let line = said.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("never said: {what}; but {other:#?}"));
        if line.contains(what) {
            return;
        }
        other.push(line);
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn commands_send_print_ask_and_answer() {
    let server = Server::start();
    for layout in ["standard", "MultiCollectionMessaging", "dual-channel"] {
        // A queue of its own: one queue has one layout.
        commands_work(&server, &["--layout", layout, "--queue", &layout.to_lowercase()]);
    }
}

fn commands_work(server: &Server, more: &[&str]) {
    let run = |args: &[&str]| server.run(&[args, more].concat());
    let sent = run(&["pub", "t", "{\"n\": 1}", "--count", "2", "--msg", "hello", "--ttl", "5m"]);
    assert_eq!((sent.status.code(), text(&sent).lines().count()), (Some(0), 2));
    let heard = run(&["sub", "t", "--count", "2", "--timeout", "30s", "--json"]);
    assert_eq!(heard.status.code(), Some(0), "{}", String::from_utf8_lossy(&heard.stderr));
    for (line, id) in text(&heard).lines().zip(text(&sent).lines()) {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&message["_id"]["$oid"], &message["map_value"]["n"]), (&id.into(), &1.into()));
    }
    let exec = ["--exec", "sh", "-c", "echo $(($(cat) * 2))"];
    let (_replier, _) = server.start_lines(&[&["reply", "double"], more, &exec].concat());
    let answer = run(&["request", "double", "21", "--timeout", "30s", "--exclusive"]);
    assert_eq!((answer.status.code(), text(&answer).trim_end().rsplit('\t').next()), (Some(0), Some("42")));
}

#[test]
fn who_sends_where_nobody_of_its_layout_is_gets_told() {
    let server = Server::start();
    let (_sub, _) = server.start_lines(&["sub", "t", "--layout", "multi-collection", "--sender-id", "n1"]);
    let others = || String::from_utf8_lossy(&server.run(&["pub", "t", "x"]).stderr).into_owned();
    until("told", || {
        others().contains("a participant of another layout: messages get lost participant=\"n1\"")
    });
    let same = server.run(&["pub", "t", "x", "--layout", "multi-collection"]);
    assert_eq!((same.status.code(), String::from_utf8_lossy(&same.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn the_doctor_says_what_is_wrong() {
    let server = Server::start();
    let empty = server.run(&["doctor"]);
    assert_eq!(empty.status.code(), Some(3), "no queue is there");
    assert!(text(&empty).contains("there is no queue \"msg\""), "{}", text(&empty));
    for layout in Layout::ALL {
        let mode = ["--layout", layout.name(), "--queue", &format!("q-{}", layout.name())];
        let (_sub, lines) = server.start_lines(&[&["sub", "t", "--sender-id", "n1"], &mode[..]].concat());
        server.run(&[&["pub", "t", "heard"], &mode[..]].concat());
        lines.recv_timeout(LIMIT).unwrap();
        until("in order", || server.run(&[&["doctor"], &mode[2..]].concat()).status.code() == Some(0));
        server.run(&[&["pub", "t", "lost", "--to", "nobody"], &mode[..]].concat());
        let found = server.run(&[&["doctor", "--json", "--patience", "0s"], &mode[2..]].concat());
        let problem =
            text(&found).lines().any(|line| line.contains("\"Recipients\"") && line.contains("nobody (1)"));
        assert!(problem && found.status.code() == Some(4), "{}", text(&found));
    }
}

#[test]
fn top_shows_what_goes_on() {
    let server = Server::start();
    assert_eq!(text(&server.run(&["top", "--once"])), "no queue in this database\n");
    for layout in Layout::ALL {
        let queue = format!("q-{}", layout.name());
        let mode = ["--layout", layout.name(), "--queue", &queue];
        let (_sub, lines) = server.start_lines(&[&["sub", "t", "--sender-id", "n1"], &mode[..]].concat());
        server.run(&[&["pub", "t", "heard"], &mode[..]].concat());
        lines.recv_timeout(LIMIT).unwrap();
        server.run(
            &[&["pub", "other", "waits", "--count", "3", "--exclusive", "--ttl", "5m"], &mode[..]].concat(),
        );
        let look = server.run(&["top", "--once", "--json", "--queue", &queue, "--interval", "200ms"]);
        assert_eq!(look.status.code(), Some(0), "{look:?}");
        let sample: serde_json::Value = serde_json::from_str(&text(&look)).unwrap();
        let queues = sample["queues"].as_array().unwrap();
        let (shown, other) = (&queues[0], &queues[0]["topics"][0]);
        assert_eq!((queues.len(), &shown["queue"]), (1, &queue.as_str().into()));
        assert_eq!(shown["layouts"], serde_json::json!([layout.name()]));
        assert_eq!(
            (&other["topic"], &other["waiting"], &other["exclusive"]),
            (&"other".into(), &3.into(), &3.into())
        );
        assert!(other["sent_per_s"].is_f64() && other["oldest_ms"].is_i64(), "{sample}");
        let node = &shown["participants"][0];
        assert!(node["id"] == "n1" && node["alive"] == true && node["locks"] == 0, "{sample}");
        // Rates of what is sent while it looks.
        let (_top, looks) = server.start_lines(&["top", "--json", "--queue", &queue, "--interval", "100ms"]);
        looks.recv_timeout(LIMIT).unwrap();
        server.run(&[&["pub", "t", "again", "--count", "5"], &mode[..]].concat());
        let counted = |line: String| {
            let sample: serde_json::Value = serde_json::from_str(&line).unwrap();
            let topics = sample["queues"][0]["topics"].as_array().unwrap().clone();
            let t = topics.iter().find(|topic| topic["topic"] == "t").expect("t").clone();
            (
                t["sent_per_s"].as_f64() > Some(0.0),
                t["done_per_s"].as_f64() > Some(0.0) && t["lag_ms"].is_i64(),
            )
        };
        let (mut sent, mut done) = (false, false);
        while !(sent && done) {
            let (some_sent, some_done) = counted(looks.recv_timeout(LIMIT).unwrap());
            (sent, done) = (sent || some_sent, done || some_done);
        }
    }
    let all = text(&server.run(&["top", "--once", "--interval", "100ms"]));
    for layout in Layout::ALL {
        assert!(all.contains(&format!("queue q-{0}: {0}; ", layout.name())), "{all}");
    }
    assert!(all.contains("TOPIC") && all.contains("other "), "{all}");
    assert_eq!(server.run(&["top", "--once", "--interval", "1ms"]).status.code(), Some(2));
}

#[test]
fn top_goes_on_when_the_server_comes_back() {
    let mut server = Server::start();
    let uri = format!("{}&serverSelectionTimeoutMS=300", server.uri);
    let top = ["top", "--uri", &uri, "--interval", "100ms", "--queue", "msg"];
    let (_json, looks) = server.start_lines(&[&top[..], &["--json"]].concat());
    let (_text, lines) = server.start_lines(&top);
    let seen = |lines: &mpsc::Receiver<String>, what: &str| {
        while !lines.recv_timeout(LIMIT).expect("it ended").contains(what) {}
    };
    for _ in 0..2 {
        server.run(&["pub", "t", "x"]);
        seen(&looks, "\"queues\":[{");
        seen(&lines, "queue msg: ");
        server.process.kill();
        seen(&looks, "{\"error\":");
        seen(&lines, "cannot look: ");
        server.process = Server::spawn(server.port, &server.storage);
    }
    seen(&looks, "\"queues\":[{");
    seen(&lines, "queue msg: ");
}

#[test]
fn a_queue_changes_its_layout() {
    let server = Server::start();
    let new = ["--layout", "multi-collection"];
    let sent = server.run(&["pub", "t", "waits", "--exclusive", "--count", "20", "--ttl", "5m"]);
    let drained = server.run(&["migrate", "--to", "multi-collection", "--drain"]);
    let healthy = server.run(&["doctor"]);
    assert_eq!(healthy.status.code(), Some(0), "nothing is missing after a migration: {}", text(&healthy));
    assert_eq!((drained.status.code(), text(&drained).starts_with("20 moved")), (Some(0), true));
    // Passes that took long are told of.
    let told = String::from_utf8_lossy(&drained.stderr);
    assert!(told.lines().all(|line| line.contains("; old nodes: none; ")), "{drained:?}");
    let look = text(&server.run(&["top", "--once", "--queue", "msg", "--interval", "100ms"]));
    assert!(look.starts_with("queue msg: multi-collection; "), "what is empty is not in use: {look}");
    let heard =
        server.run(&[&["sub", "t", "--count", "20", "--timeout", "30s", "--json"], &new[..]].concat());
    assert_eq!(heard.status.code(), Some(0));
    let ids = text(&heard);
    assert!(text(&sent).lines().all(|id| ids.contains(id)));
    // A bridge is killed in mid-work, and another goes on.
    let (_sub, lines) = server.start_lines(&[&["sub", "t", "--sender-id", "new"], &new[..]].concat());
    until("the new node is there", || text(&server.run(&["doctor"])).contains("layout multi-collection"));
    let (mut bridge, _) = server.start_lines(&["migrate", "--to", "multi-collection"]);
    server.run(&["pub", "t", "1", "--exclusive", "--count", "10", "--ttl", "5m"]);
    let mut values: Vec<String> = (0..10).map(|_| lines.recv_timeout(LIMIT).unwrap()).collect();
    bridge.kill();
    server.run(&["pub", "t", "2", "--exclusive", "--count", "10", "--ttl", "5m"]);
    assert_eq!(
        server.run(&["migrate", "--to", "multi-collection"]).status.code(),
        Some(1),
        "its lock is left"
    );
    server.run(&["pub", "t", "3", "--to", "nobody"]);
    assert_eq!(server.run(&["migrate", "--to", "standard"]).status.code(), Some(2));
    assert_eq!(server.run(&["migrate", "--from", "dual-channel", "--to", "standard"]).status.code(), Some(2));
    std::thread::sleep(Duration::from_millis(500));
    values.extend(lines.try_iter());
    assert_eq!(values.len(), 10);
}

#[test]
fn silence_and_mistakes_have_their_codes() {
    let server = Server::start();
    assert_eq!(server.run(&["request", "nobody", "--timeout", "200ms"]).status.code(), Some(3));
    assert_eq!(server.run(&["sub", "nothing", "--count", "1", "--timeout", "200ms"]).status.code(), Some(3));
    assert_eq!(server.run(&["sub", "nothing", "--timeout", "200ms"]).status.code(), Some(0));
    assert_eq!(server.run(&["pub"]).status.code(), Some(2));
    assert_eq!(server.run(&["reply", "t"]).status.code(), Some(2));
    let payloads = ["{broken", "[1", "\"open", "{\"$oid\": \"68e7780000a1b2c3d4000001\"}"];
    for payload in payloads {
        for args in
            [&["pub", "t", payload][..], &["request", "t", payload], &["reply", "t", "--payload", payload]]
        {
            let refused = server.run(args);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!((refused.status.code(), said.lines().count()), (Some(2), 1), "{args:?}: {said}");
            assert!(said.contains("the payload "), "{said}");
        }
    }
    for wrong in [
        &["pub", ""][..],
        &["sub", ""],
        &["sub", "t", ""],
        &["request", ""],
        &["reply", "", "--text", "x"],
        &["pub", "t", "--to", ""],
        &["request", "t", "--to", ""],
        &["pub", "t", "--sender-id", ""],
        &["pub", "t", "--db", ""],
    ] {
        let refused = server.run(wrong);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(2) && said.contains("a value is required"),
            "{wrong:?}: {said}"
        );
    }
    for wrong in [
        &["sub", "t", "--timeout", "0s"][..],
        &["reply", "t", "--text", "x", "--timeout", "0s"],
        &["request", "t", "--timeout", "0s"],
        &["request", "t", "--exclusive", "--count", "2"],
        &["reply", "t", "--text", "x", "--payload", "y"],
        &["pub", "t", "[9223372036854775808]"],
    ] {
        assert_eq!(server.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    for wrong in [["--ttl", "0s"], ["--count", "0"]] {
        assert_eq!(server.run(&[&["pub", "t"], &wrong[..]].concat()).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(server.run(&["migrate", "--to", "dual-channel", "--drain"]).status.code(), Some(2));
}

#[test]
fn the_more_urgent_message_comes_first() {
    let server = Server::start();
    for (value, priority) in [("late", "2000"), ("default", ""), ("first", "-5")] {
        let given = ["--priority", priority];
        let given = if priority.is_empty() { &[][..] } else { &given };
        let sent = server.run(&[&["pub", "t", value, "--ttl", "5m"], given].concat());
        assert_eq!(sent.status.code(), Some(0), "{sent:?}");
    }
    let heard = text(&server.run(&["sub", "t", "--count", "3", "--timeout", "30s"]));
    let values: Vec<_> = heard.lines().filter_map(|line| line.split('\t').nth(2)).collect();
    assert_eq!(values, ["first", "default", "late"]);
}

/// Who started the server has read enough of its greeting.
#[test]
fn a_server_whose_greeting_nobody_reads_runs() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = rockdove()
        .args(["serve", "--memory", "--listen", &format!("127.0.0.1:{port}")])
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut process = Process(child);
    until("it listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    let uri = format!("mongodb://127.0.0.1:{port}/?directConnection=true");
    let sent = rockdove().args(["pub", "t", "x", "--uri", &uri]).output().unwrap();
    assert!(sent.status.success() && process.0.try_wait().unwrap().is_none(), "{sent:?}");
}

#[test]
fn a_queue_without_name_is_the_default_one() {
    let server = Server::start();
    assert_eq!(server.run(&["pub", "t", "x", "--queue", ""]).status.code(), Some(0));
    let heard = server.run(&["sub", "t", "--count", "1", "--timeout", "30s"]);
    assert!(text(&heard).ends_with("\tx\n"), "{heard:?}");
}

#[test]
fn senseless_settings_are_refused() {
    for wrong in [
        &["--memory-limit", "0"][..],
        &["--memory-warn", "95"],
        &["--memory-refuse", "101"],
        &["--history", "0"],
        &["--sync-interval", "0"],
        &["--listen", "somewhere"],
        &["--advertise", ""],
        &["--advertise", "bus1"],
        &["--set-name", ""],
        &["--majority", "quorum-sync"],
        &["--risk-cap", "1"],
    ] {
        let child =
            rockdove().arg("serve").arg("--memory").args(wrong).stderr(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(wrong[0]) || text.contains("--memory"), "{text}");
    }
}

#[test]
fn a_server_in_memory_makes_no_folder_and_room_for_its_connections() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("data");
    // A small soft limit, as many systems have one.
    let serve =
        format!("ulimit -Sn 64; exec {} serve --memory --listen 127.0.0.1:0", env!("CARGO_BIN_EXE_rockdove"));
    let mut server = Process(
        Command::new("sh")
            .args(["-c", &serve])
            .env("ROCKDOVE_DATA_DIR", &folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let greeting: Vec<_> = lines.take(4).collect();
    assert!(greeting[1].contains("memory only") && !folder.exists(), "{greeting:?}");
    assert!(greeting[3].contains("acks") && greeting[3].contains("no disk"), "{greeting:?}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.0.id())).unwrap();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    assert_ne!(soft.split_whitespace().next(), Some("64"), "{soft}");
}

/// `kill`, as a terminal or a supervisor sends it.
fn signal(process: &Process, name: &str) {
    let id = process.0.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
}

#[test]
fn who_leaves_does_not_wait_for_a_server_that_is_gone() {
    let mut server = Server::start();
    for layout in Layout::ALL {
        let queue = format!("q-{}", layout.name());
        let sub = ["sub", "t", "--layout", layout.name(), "--queue", &queue];
        let (mut sub, said) = server.start_saying(&sub);
        let is_there =
            || text(&server.run(&["top", "--once", "--queue", &queue])).contains("1 of 1 node alive");
        until("it is there", is_there);
        server.process.kill();
        hear(&said, "the connection broke off");
        signal(&sub, "INT");
        assert_eq!(sub.code(), Some(130));
        let said: Vec<_> = said.iter().collect();
        assert!(said.iter().any(|line| line.contains("no server answers")), "{said:?}");
        assert!(!said.iter().any(|line| line.contains("in time")), "it waited: {said:?}");
        server.process = Server::spawn(server.port, &server.storage);
    }
}

#[test]
fn a_second_signal_ends_a_command_at_once() {
    let server = Server::start();
    let (mut sub, said) = server.start_saying(&["sub", "t"]);
    until("it is there", || text(&server.run(&["top", "--once"])).contains("1 of 1 node alive"));
    signal(&server.process, "STOP");
    signal(&sub, "INT");
    hear(&said, "Ctrl-C again");
    signal(&sub, "TERM");
    assert_eq!(sub.code(), Some(143), "the second one's");
}

/// Ctrl-C as wrappers pass it on: the process has it already.
#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    let server = Server::start();
    let (sub, said) = server.start_saying(&["sub", "t"]);
    until("it is there", || text(&server.run(&["top", "--once"])).contains("1 of 1 node alive"));
    signal(&server.process, "STOP");
    for name in ["INT", "TERM", "INT"] {
        signal(&sub, name);
    }
    hear(&said, "Ctrl-C again");
}

/// It lives longer than that, for clocks that are ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_removed_when_its_wait_was_in_vain() {
    let server = Server::start();
    let stored = DriverBackend::connect(&server.uri, None, "test").await.unwrap();
    let lives = async || {
        let all = stored.find("msg", Find::default()).await.unwrap();
        all.iter().map(|message| message.get_i64("ttl").unwrap()).collect::<Vec<_>>()
    };
    server.run(&["pub", "t", "x"]);
    assert_eq!(server.run(&["request", "t", "x", "--timeout", "50ms"]).status.code(), Some(3));
    assert_eq!(lives().await, [30_000]);
    server.run(&["request", "t", "x", "--timeout", "50ms", "--ttl", "1h"]);
    assert_eq!(lives().await, [30_000, 3_600_000], "it was asked for");
    for (timeout, life) in [("20s", 30_000), ("1m", 60_000)] {
        let (mut request, _) = server.start_lines(&["request", "t", "x", "--timeout", timeout]);
        eventually("it is there", async || lives().await == [30_000, 3_600_000, life]).await;
        signal(&request, "INT");
        assert_eq!(request.code(), Some(130));
        assert_eq!(lives().await, [30_000, 3_600_000], "{timeout}");
    }
    let (mut request, answers) = server.start_lines(&["request", "q", "x", "--timeout", "60s"]);
    let _replier = server.start_lines(&["reply", "q", "--text", "yes"]);
    answers.recv_timeout(LIMIT).unwrap();
    assert_eq!(request.code(), Some(0));
    let there = stored.find("msg", Find::default()).await.unwrap();
    let is_request = |one: &bson::Document| {
        one.get_str("topic").is_ok_and(|topic| topic == "q") && one.get_object_id("in_answer_to").is_err()
    };
    assert!(there.iter().any(is_request), "others may read it yet: {there:?}");
}

#[test]
fn an_address_is_a_uri() {
    for uri in ["127.0.0.1:27017", "localhost", "mongo://me:secret@h", ""] {
        let told = rockdove().args(["pub", "t", "x", "--uri", uri]).output().unwrap();
        assert_eq!(told.status.code(), Some(2), "{uri}");
        let said = String::from_utf8_lossy(&told.stderr);
        assert!(said.contains("mongodb://HOST:PORT") && !said.contains("secret"), "{said}");
    }
}

#[test]
fn what_is_printed_has_three_columns() {
    let server = Server::start();
    server.run(&["pub", "t", "{\"n\": 1}", "--msg", "hello", "--sender-id", "a"]);
    let heard = server.run(&["sub", "t", "--count", "1", "--timeout", "30s"]);
    assert_eq!(text(&heard), "t\ta\thello {\"n\":1}\n");
}

#[test]
fn the_doctor_names_the_command_that_asks_the_nodes() {
    let server = Server::start();
    server.run(&[
        "pub",
        "t",
        "x",
        "--db",
        "shop2",
        "--queue",
        "q",
        "--layout",
        "multi-collection",
        "--ttl",
        "5m",
    ]);
    let found =
        server.run(&["doctor", "--db", "shop2", "--queue", "q", "--patience", "0s", "--uri", &server.uri]);
    let command = "`rockdove request morphium.status_info --count 0 --timeout 2s --db shop2 --queue q --layout \
                   multi-collection`";
    assert!(text(&found).contains(command), "{}", text(&found));
    let uri = format!("{}&appName=it", server.uri);
    let found = server.run(&["doctor", "--db", "shop2", "--queue", "q", "--patience", "0s", "--uri", &uri]);
    assert!(text(&found).contains(&format!(" --uri '{uri}' --db")), "{}", text(&found));
}

#[test]
fn a_rejected_request_is_no_answer() {
    let server = Server::start();
    let (_replier, _) = server.start_lines(&["reply", "t", "--exec", "false"]);
    let rejected = server.run(&["request", "t", "1", "--timeout", "30s"]);
    assert_eq!(rejected.status.code(), Some(6), "{rejected:?}");
    assert!(String::from_utf8_lossy(&rejected.stderr).contains("rejected the request"), "{rejected:?}");
}

#[test]
fn answers_can_be_key_values() {
    let server = Server::start();
    let (_replier, _) = server.start_lines(&["reply", "t", "--payload", "{\"left\": 7}"]);
    let answer = server.run(&["request", "t", "1", "--timeout", "30s", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&text(&answer)).unwrap();
    assert_eq!(answer["map_value"]["left"], 7);
}

#[test]
fn messages_that_never_expire() {
    let server = Server::start();
    server.run(&["pub", "t", "x", "--ttl", "never"]);
    let heard = server.run(&["sub", "t", "--count", "1", "--timeout", "30s", "--json"]);
    let heard: serde_json::Value = serde_json::from_str(&text(&heard)).unwrap();
    assert!(heard["timing_out"] == false && heard["delete_at"].is_null(), "{heard}");
}

/// A server that syncs only for what asks for it, with a cap of 10 on what is at risk.
fn capped(dir: &Path) -> Server {
    let dir = dir.display().to_string();
    let args = [
        "--data-dir",
        &dir,
        "--sync",
        "never",
        "--risk-cap",
        "10",
        "--risk-field",
        "shop.msg=map_value.amount",
    ];
    Server::start_with(args.map(str::to_owned).to_vec())
}

/// What `pub --json` says of the level, or its error.
fn sent(output: &Output) -> Result<(String, bool), String> {
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let sent: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    Ok((sent["ack"].as_str().unwrap().to_owned(), sent["degraded"].as_bool().unwrap()))
}

#[test]
fn levels_are_reached_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let server = capped(dir.path());
    let ack = |args: &[&str]| sent(&server.run(&[&["pub", "t", "--json"], args].concat()));
    let is = |level: &str, degraded| Ok((level.to_owned(), degraded));
    assert_eq!(ack(&["--ack", "async"]), is("async", false));
    assert_eq!(ack(&["--ack", "replicated"]), is("async", true));
    assert_eq!(ack(&["--ack", "sync"]), is("sync", false));
    assert_eq!(ack(&["--value", "4"]), is("async", true));
    assert_eq!(ack(&["--value", "40"]), is("sync", false));
    assert_eq!(
        ack(&["{\"amount\": 40}", "--ack", "async"]),
        is("sync", false),
        "the value is in the document"
    );
    let plain = server.run(&["pub", "t", "--ack", "sync"]);
    assert!(text(&plain).trim_end().ends_with("\tsync"), "{plain:?}");
    let little = server.run(&["pub", "t", "--value", "1"]);
    assert!(
        text(&little).trim_end().ends_with("\tasync (written, at risk until it is on disk)"),
        "{little:?}"
    );
    assert!(!text(&server.run(&["pub", "t"])).contains('\t'), "who does not ask gets the id alone");
    let (_replier, requests) = server.start_lines(&["reply", "q", "--text", "yes", "--ack", "sync"]);
    let answer = server.run(&["request", "q", "--value", "40", "--timeout", "30s"]);
    assert!(answer.status.success() && text(&answer).contains("yes"), "{answer:?}");
    assert!(String::from_utf8_lossy(&answer.stderr).contains("acknowledged: sync"), "{answer:?}");
    requests.recv_timeout(LIMIT).unwrap();
    for wrong in [&["--ack", "best"], &["--value", "-1"], &["--value", "1.5"]] {
        assert_eq!(server.run(&[&["pub", "t"][..], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_another_server_levels_become_write_concerns() {
    let mut server = Server::start();
    let port = as_foreign(server.port).await;
    server.uri = server.uri.replace(&server.port.to_string(), &port.to_string());
    let ack = |args: &[&str]| sent(&server.run(&[&["pub", "t", "--json"], args].concat()));
    let is = |level: &str| Ok((level.to_owned(), false));
    assert_eq!(ack(&["--ack", "async"]), is("async"));
    assert_eq!(ack(&["--ack", "sync"]), is("quorum-sync"));
    assert_eq!(ack(&["--ack", "replicated-or-sync"]), is("replicated"));
    for about_value in [&["--ack", "risk"][..], &["--value", "5"], &["--ack", "sync", "--value", "5"]] {
        assert!(ack(about_value).unwrap_err().contains("value at risk"), "{about_value:?}");
    }
    assert_eq!(ack(&["--value", "5", "--or-stricter"]), is("quorum-sync"));
    let bus = server.bus(Layout::Standard, "a").await;
    let refused = bus.publish_with(Message::new("t"), SendOptions::new().value(5)).await;
    assert!(matches!(refused, Err(SendError::Level(_))), "{refused:?}");
    bus.shutdown().await;
}

/// The kernel lives on, so this shows that nothing acknowledged stayed in the process, not that the disk has it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_as_synced_is_there_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = capped(dir.path());
    let acked: Arc<Mutex<HashSet<String>>> = Arc::default();
    let mut senders = Vec::new();
    for n in 0..4 {
        let bus = server.bus(Layout::Standard, &format!("sender-{n}")).await;
        let acked = acked.clone();
        senders.push(tokio::spawn(async move {
            for k in 0..100 {
                let options = match k % 3 {
                    0 => SendOptions::new().value(k),
                    _ => SendOptions::new().ack(Level::Sync),
                };
                let sent = bus.publish_with(Message::new("t").never_expires(), options).await.unwrap();
                assert!(sent.ack == Level::Sync || k % 3 == 0 && k <= 10, "{sent:?}");
                acked.lock().unwrap().insert(sent.id.to_string());
            }
            bus.shutdown().await;
        }));
    }
    let count = || acked.lock().unwrap().len();
    for step in [50, 200] {
        eventually("some acknowledged", async || count() >= step).await;
        server.kill_and_restart();
    }
    for sender in senders {
        sender.await.unwrap();
    }
    server.kill_and_restart();
    let stored = DriverBackend::connect(&server.uri, None, "test").await.unwrap();
    let found = stored.find("msg", Find::default()).await.unwrap();
    let kept: HashSet<String> = found
        .into_iter()
        .map(|message| Message::from_document(message).unwrap().id.unwrap().to_string())
        .collect();
    assert_eq!(count(), 400);
    assert!(acked.lock().unwrap().is_subset(&kept));
}

#[test]
fn no_server_is_said_and_has_its_code() {
    let nobody = Server::later();
    let commands = [
        &["pub", "t"][..],
        &["sub", "t", "--timeout", "3s"],
        &["request", "t", "--timeout", "3s"],
        &["reply", "t", "--text", "x"],
        &["doctor"],
        &["top"],
        &["migrate", "--to", "dual-channel"],
    ];
    std::thread::scope(|threads| {
        let check = |args: &[&str]| {
            let output = nobody.run(args);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let lines: Vec<_> = said.lines().collect();
            assert_eq!((output.status.code(), lines.len()), (Some(3), 2), "{args:?}: {said}");
            assert!(lines[0].contains("not connected yet; waiting"), "{said}");
            assert!(lines[1].contains("no server answers at 127.0.0.1:"), "{said}");
            assert!(lines[1].contains("(connection refused); start one with `rockdove serve`"), "{said}");
        };
        for args in commands {
            threads.spawn(move || check(args));
        }
    });
    for soon in ["300ms", "1200ms"] {
        let late = nobody.run(&["sub", "t", "--timeout", soon]);
        let said = String::from_utf8_lossy(&late.stderr).into_owned();
        assert_eq!((late.status.code(), said.lines().count()), (Some(3), 1), "{said}");
    }
}

#[test]
fn a_server_that_is_starting_is_waited_for() {
    let mut server = Server::later();
    let (mut sub, sub_says) = server.start_saying(&["sub", "t", "--count", "1", "--timeout", "60s"]);
    let (mut ask, ask_says) = server.start_saying(&["request", "q", "--timeout", "60s", "--ttl", "1m"]);
    hear(&sub_says, "not connected yet");
    hear(&ask_says, "not connected yet");
    server.process = Server::spawn(server.port, &server.storage);
    let (_replier, _) = server.start_lines(&["reply", "q", "--text", "yes"]);
    assert_eq!(server.run(&["pub", "t", "x", "--ttl", "1m"]).status.code(), Some(0));
    assert_eq!([sub.code(), ask.code()], [Some(0); 2]);
}

/// What the address asks for and what a server says of itself, when they do not fit.
#[tokio::test(flavor = "multi_thread")]
async fn why_a_server_that_answers_cannot_be_used_is_said() {
    let nobody = Server::later().port;
    let advertise = ["--memory", "--advertise", &format!("127.0.0.1:{nobody}")].map(str::to_owned);
    let (plain, elsewhere) = (Server::start(), Server::start_with(advertise.to_vec()));
    let wrong_set = |server: &Server| {
        vec![
            "`wrong`".to_owned(),
            format!("127.0.0.1:{} is of `rs0`", server.port),
            "replicaSet=rs0".to_owned(),
        ]
    };
    let named = vec![
        format!("no server answers at 127.0.0.1:{nobody} (connection refused)"),
        format!("127.0.0.1:{} names as its address", elsewhere.port),
        "directConnection=true".to_owned(),
        "--advertise".to_owned(),
    ];
    for (server, options, expected) in [
        (&plain, "?replicaSet=wrong", wrong_set(&plain)),
        (&plain, "?replicaSet=wrong&directConnection=true", wrong_set(&plain)),
        (&elsewhere, "", named.clone()),
        (&elsewhere, "?replicaSet=rs0", named),
        (&elsewhere, "?replicaSet=wrong", wrong_set(&elsewhere)),
    ] {
        let uri = format!("mongodb://127.0.0.1:{}/shop{options}", server.port);
        let fits = |said: &str| expected.iter().all(|part| said.contains(part));
        for args in [&["pub", "t"][..], &["sub", "t", "--timeout", "60s"], &["doctor"]] {
            let output = server.run(&[args, &["--uri", &uri]].concat());
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(1) && fits(&said), "{args:?} {options}: {said}");
        }
        let refused = Bus::connect(&uri).await.unwrap_err();
        assert!(matches!(&refused, ConnectError::Unreachable(error) if !error.is_transient()), "{refused:?}");
        assert!(fits(&refused.to_string()), "{options}: {refused}");
    }
}

#[test]
fn a_connection_that_is_lost_and_back_is_told() {
    // Stored: one in memory forgets what streams go on from, which would be told instead of the connection's end.
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::stored_in(dir.path());
    let (_sub, streaming) = server.start_saying(&["sub", "t", "--sender-id", "a"]);
    let (_poll, polling) = server.start_saying(&["sub", "t", "--sender-id", "b", "--polling"]);
    let is_there =
        |server: &Server| text(&server.run(&["top", "--once", "--queue", "msg", "--interval", "100ms"]));
    until("both are there", || is_there(&server).contains("2 of 2 nodes alive"));
    for _ in 0..2 {
        server.process.kill();
        for said in [&streaming, &polling] {
            hear(said, "the connection broke off");
        }
        server.process = Server::spawn(server.port, &server.storage);
        for said in [&streaming, &polling] {
            hear(said, "works again");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_not_there_is_said_and_not_made() {
    let server = Server::start();
    server.run(&["pub", "t", "x", "--to", "n1", "--queue", "shop_eu", "--layout", "multi-collection"]);
    let stored = DriverBackend::connect(&server.uri, None, "test").await.unwrap();
    let before = stored.collections("").await.unwrap();
    for more in [&["--drain"][..], &[]] {
        let migrate = ["migrate", "--queue", "shop", "--to", "multi-collection"];
        let refused = server.run(&[&migrate, more].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(3) && said.contains("there is no queue \"shop\""),
            "{refused:?}"
        );
    }
    let doctor = server.run(&["doctor", "--queue", "shop"]);
    assert!(
        doctor.status.code() == Some(3) && text(&doctor).contains("there is no queue \"shop\""),
        "{doctor:?}"
    );
    let look = server.run(&["top", "--once", "--queue", "shop", "--interval", "100ms"]);
    assert!(look.status.code() == Some(3) && text(&look).contains("there is no such queue"), "{look:?}");
    assert_eq!(stored.collections("").await.unwrap(), before);
}

#[test]
fn each_command_lists_the_codes_it_ends_with() {
    for (command, own) in [
        ("pub", &["3"][..]),
        ("sub", &["3"]),
        ("request", &["3", "6"]),
        ("reply", &["3"]),
        ("doctor", &["3", "4"]),
        ("top", &["3"]),
        ("migrate", &["3", "4"]),
        ("bench", &["4"]),
    ] {
        let help = text(&rockdove().args([command, "--help"]).output().unwrap());
        let codes = help.split("Exit codes:\n").nth(1).unwrap();
        let codes: Vec<_> = codes.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(codes, [&["0", "1", "2"][..], own, &["130"]].concat(), "{command}");
    }
}

in_every_layout! {
    async fn the_library_works_over_the_wire(layout) {
        let server = Server::start();
        let (a, b) = (server.bus(layout, "a").await, server.bus(layout, "b").await);
        let heard = Arc::new(AtomicUsize::new(0));
        let counted = heard.clone();
        b.subscribe("t", move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        })
        .await
        .unwrap();
        b.subscribe("q", |request| async move {
            Ok(request.derive_answer().map_value(doc! {"n": 1_i64, "dotted.key": "kept"}))
        })
        .await
        .unwrap();
        tokio::join!(a.ready(), b.ready());
        let bulk = (0..500).map(|n| Message::new("t").value(n.to_string()).exclusive(n % 2 == 0)).collect();
        a.send_many(bulk).await.unwrap();
        for exclusive in [false, true] {
            let answer = a.request_first(Message::new("q").exclusive(exclusive), LIMIT).await.unwrap();
            assert_eq!(answer.map_value, Some(doc! {"n": 1_i64, "dotted.key": "kept"}));
        }
        eventually("all heard", async || heard.load(Ordering::SeqCst) == 500).await;
        eventually("exclusive ones marked", async || b.pending().await.unwrap() <= 1).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(heard.load(Ordering::SeqCst), 500);
        b.shutdown().await;
        assert!(a.participants().await.unwrap().iter().all(|participant| participant.id != "b"));
        a.shutdown().await;
    }

    // A participant dies in mid-work and comes back under its id. No message is lost, none is processed twice; only the
    // one it had marked and not yet printed when it died may be missing: it is not tried again.
    async fn a_killed_participant_loses_and_repeats_nothing(layout) {
        const MESSAGES: usize = 200;
        let server = Server::start();
        let sender = server.bus(layout, "sender").await;
        let subscribe =
                |id| server.start_lines(&["sub", "work", "--layout", layout.name(), "--sender-id", id]);
        let (mut second, second_lines) = subscribe("second");
        let message = |n: usize| Message::new("work").value(n.to_string()).exclusive(true).never_expires();
        let feeding = tokio::spawn(async move {
            for n in 0..MESSAGES {
                sender.publish(message(n)).await.unwrap();
            }
            sender
        });
        let mut lines: Vec<String> = Vec::new();
        for _ in 0..20 {
            lines.push(second_lines.recv_timeout(LIMIT).unwrap());
        }
        second.kill();
        let (_first, first_lines) = subscribe("first");
        let (_again, again_lines) = subscribe("second");
        let sender = feeding.await.unwrap();
        // What counts as pending depends on what a node listens to; paused, it takes nothing.
        let observer = server.bus(layout, "observer").await;
        observer.pause("work");
        observer.subscribe("work", |_| async { Ok(()) }).await.unwrap();
        eventually("all marked", async || observer.pending().await.unwrap() == 0).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        for channel in [&first_lines, &second_lines, &again_lines] {
            lines.extend(channel.try_iter());
        }
        let distinct: HashSet<&String> = lines.iter().collect();
        assert_eq!(distinct.len(), lines.len(), "processed twice");
        assert!(lines.len() >= MESSAGES - 1, "{} of {MESSAGES}", lines.len());
        sender.shutdown().await;
    }

    // The server dies in mid-work and comes back with what it stored. Senders, listeners and callers only wait.
    async fn a_killed_server_loses_and_repeats_nothing(layout) {
        const MESSAGES: usize = 200;
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::stored_in(dir.path());
        let (sender, worker) = (server.bus(layout, "sender").await, server.bus(layout, "worker").await);
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = heard.clone();
        worker
            .subscribe("work", move |message| {
                noted.lock().unwrap().push(message.value.clone().unwrap_or_default());
                async { Ok(()) }
            })
            .await
            .unwrap();
        worker.subscribe("q", |request| async move { Ok(request.derive_answer()) }).await.unwrap();
        worker.ready().await;
        let feeding = tokio::spawn(async move {
            for n in 0..MESSAGES {
                let message = Message::new("work").value(n.to_string()).exclusive(n % 2 == 0).never_expires();
                sender.publish(message).await.unwrap();
            }
            sender
        });
        let count = || heard.lock().unwrap().len();
        for step in [50, 100] {
            eventually("some heard", async || count() >= step).await;
            server.kill_and_restart();
        }
        let sender = feeding.await.unwrap();
        eventually("all heard", async || count() >= MESSAGES).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(values(&heard), (MESSAGES, MESSAGES));
        sender.request_first(Message::new("q").exclusive(true), LIMIT).await.unwrap();
        sender.shutdown().await;
        worker.shutdown().await;
    }

    // Somebody drops what a node follows. It hears again at once, not with the next poll behind the streams.
    async fn dropped_collections_are_followed_again(layout) {
        const SOON: Duration = Duration::from_secs(5);
        let server = Server::start();
        let (sender, worker) = (server.bus(layout, "sender").await, server.bus(layout, "worker").await);
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = heard.clone();
        worker
            .subscribe("work", move |message| {
                noted.lock().unwrap().push(message.value.clone().unwrap_or_default());
                async { Ok(()) }
            })
            .await
            .unwrap();
        worker.ready().await;
        let is_heard_soon = async |value: &str| {
            let start = Instant::now();
            eventually("heard", async || heard.lock().unwrap().iter().any(|one| one == value)).await;
            assert!(start.elapsed() < SOON, "{value} after {:?}", start.elapsed());
        };
        let stored = DriverBackend::connect(&server.uri, None, "test").await.unwrap();
        let (topic, locks, directed) = match layout {
            Layout::Standard => ("msg", "msg_lck", "msg"),
            Layout::MultiCollection => ("msg_work", "msg_lck_work", "dm_worker"),
            Layout::DualChannel => ("msg", "msg_lck", "msg_dm_worker"),
        };
        for round in 0..2 {
            for collection in [topic, locks, directed] {
                stored.drop_collection(collection).await.unwrap();
            }
            let (to_all, to_one) = (format!("to all, {round}"), format!("to one, {round}"));
            sender.publish(Message::new("work").value(&to_all)).await.unwrap();
            sender.publish(Message::new("work").value(&to_one).to("worker")).await.unwrap();
            is_heard_soon(&to_all).await;
            is_heard_soon(&to_one).await;
        }
        // Another node holds the lock. The worker tries after one, three and seven seconds, or when it is released.
        let id = MessageId::generate();
        let lock = doc! {"_id": id.to_bson(), "lock_id": "another", "delete_at": bson::DateTime::MAX};
        stored.insert(locks, &[lock], Durability::Majority).await.unwrap();
        sender.publish(Message::new("work").with_id(id.clone()).value("locked").exclusive(true)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(3500)).await;
        assert_eq!(stored.delete(locks, doc! {"_id": id.to_bson()}).await.unwrap(), 1);
        let start = Instant::now();
        is_heard_soon("locked").await;
        assert!(start.elapsed() < Duration::from_millis(2500), "{:?}", start.elapsed());
        sender.shutdown().await;
        worker.shutdown().await;
    }

    // A node's connections are closed, reset and frozen while it works. It loses nothing, repeats nothing, and answers.
    async fn a_bad_network_loses_and_repeats_nothing(layout) {
        const MESSAGES: usize = 300;
        let server = Server::start();
        let proxy = Proxy::start(server.port).await;
        let sender = server.bus(layout, "sender").await;
        let (worker, heard) = worker_behind(&server, &proxy, layout).await;
        worker.subscribe("q", |request| async move { Ok(request.derive_answer()) }).await.unwrap();
        worker.ready().await;
        let send = send_work(&sender, MESSAGES, Duration::from_millis(3));
        let disturb = async {
            for reset in [false, true, false, true] {
                tokio::time::sleep(Duration::from_millis(150)).await;
                proxy.cut(reset);
                tokio::time::sleep(Duration::from_millis(50)).await;
                proxy.freeze(Duration::from_millis(100)).await;
            }
        };
        tokio::join!(send, disturb);
        let count = || heard.lock().unwrap().len();
        eventually("all heard", async || count() >= MESSAGES).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(values(&heard), (MESSAGES, MESSAGES));
        proxy.cut(true);
        sender.request_first(Message::new("q").exclusive(true), LIMIT).await.unwrap();
        sender.shutdown().await;
        worker.shutdown().await;
    }

    // The network stands still for longer than a caller waits: it is told in time, and afterwards all goes on.
    async fn a_frozen_network_holds_no_caller_up(layout) {
        const MESSAGES: usize = 30;
        let server = Server::start();
        let proxy = Proxy::start(server.port).await;
        let sender = server.bus(layout, "sender").await;
        sender.subscribe("q", |request| async move { Ok(request.derive_answer()) }).await.unwrap();
        let (worker, heard) = worker_behind(&server, &proxy, layout).await;
        sender.ready().await;
        worker.ready().await;
        let ask = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let start = Instant::now();
            let answer = worker.request_first(Message::new("q"), Duration::from_secs(2)).await;
            assert!(matches!(answer, Err(RequestError::Timeout)), "{answer:?}");
            let time = start.elapsed().as_secs_f64();
            assert!((1.9..4.0).contains(&time), "{time} s");
        };
        let send = send_work(&sender, MESSAGES, Duration::from_millis(50));
        tokio::join!(proxy.freeze(Duration::from_secs(6)), ask, send);
        let count = || heard.lock().unwrap().len();
        eventually("all heard", async || count() >= MESSAGES).await;
        worker.request_first(Message::new("q"), LIMIT).await.unwrap();
        let start = Instant::now();
        sender.publish(Message::new("work").value("announced").never_expires()).await.unwrap();
        eventually("heard by a stream", async || count() > MESSAGES).await;
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(values(&heard), (MESSAGES + 1, MESSAGES + 1));
        sender.shutdown().await;
        worker.shutdown().await;
    }
}
