//! Participants that die at each step of each flow, over the wire.
//!
//! A participant is a command of its own behind a proxy that reads the protocol. The proxy kills the process (-9) when
//! it makes its n-th write, before the server gets it or before the participant gets the reply; n grows until the
//! participant is done without being killed. Afterwards it comes back under its id, and what was promised must hold:
//!
//! * a broadcast reaches every living listener once, and one that died before its mark once more;
//! * an exclusive message is processed once; if its listener's node died after the mark, not again;
//! * an answer that was stored arrives, and nobody waits beyond the time.

use bson::{Document, doc};
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use rockdove::backend::{Backend, Find};
use rockdove::{Bus, DriverBackend, Layout, Message, MessageId, RequestError};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// No step waits longer than this.
const LIMIT: Duration = Duration::from_secs(60);
/// A participant that has written nothing for so long, after it did what it is there for, is done.
const QUIET: Duration = Duration::from_millis(400);
/// How long callers wait that get no answer.
const SHORT: Duration = Duration::from_secs(4);

/// Ends its process, however the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Server {
    _process: Process,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let listen = format!("127.0.0.1:{port}");
        let mut serve = Command::new(env!("CARGO_BIN_EXE_rockdove"));
        serve.args(["serve", "--memory", "--listen", &listen]).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process(serve.spawn().unwrap());
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(start.elapsed() < LIMIT, "the server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { _process: process, port }
    }
}

/// A database of its own for each step: in one layout all queues share the collections of directed messages.
fn uri(port: u16, database: &str) -> String {
    format!("mongodb://127.0.0.1:{port}/{database}?directConnection=true")
}

async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// When a participant dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    /// The server does not get the n-th write.
    Before(usize),
    /// The server got it, and the participant does not learn that.
    After(usize),
    Never,
}

/// A write on its way to the server.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Write {
    command: String,
    collection: String,
}

/// The command and the collection of a request, if it writes documents.
fn write_of(frame: &[u8]) -> Option<Write> {
    const OP_MSG: i32 = 2013;
    let opcode = i32::from_le_bytes(frame[12..16].try_into().unwrap());
    if opcode != OP_MSG || frame[20] != 0 {
        return None;
    }
    let size = u32::from_le_bytes(frame[21..25].try_into().unwrap()) as usize;
    let body = Document::from_reader(&frame[21..21 + size]).unwrap();
    let (command, collection) = body.iter().next()?;
    let writes = ["insert", "update", "delete"].contains(&command.as_str());
    writes.then(|| Write { command: command.clone(), collection: collection.as_str().unwrap().to_owned() })
}

/// The participant's process, and what came of it.
#[derive(Default)]
struct State {
    process: Option<Process>,
    writes: usize,
    /// When it last wrote or printed.
    last_sign: Option<Instant>,
    killed_at: Option<Write>,
    lines: Vec<String>,
    /// There is nothing more to read of what it printed.
    read: bool,
}

/// A participant, and the proxy it talks through.
struct Participant {
    state: Arc<Mutex<State>>,
}

impl Participant {
    /// Starts a command that dies as ordered.
    async fn start(server: u16, database: &str, args: Vec<String>, when: When) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = uri(listener.local_addr().unwrap().port(), database);
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else {
                    return;
                };
                let state = shared.clone();
                tokio::spawn(async move {
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    let awaited = Arc::new(Mutex::new(None));
                    tokio::select! {
                        () = requests(from_client, to_server, &state, when, &awaited) => {}
                        () = replies(from_server, to_client, &state, &awaited) => {}
                    }
                });
            }
        });
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_rockdove"));
        child.args(args).env("ROCKDOVE_URI", address).stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = child.into_std().stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        state.lock().unwrap().process = Some(Process(child));
        let reading = state.clone();
        let output = tokio::process::ChildStdout::from_std(output).unwrap();
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let mut state = reading.lock().unwrap();
                state.lines.push(line);
                state.last_sign = Some(Instant::now());
            }
            reading.lock().unwrap().read = true;
        });
        Self { state }
    }

    fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }

    /// Whether its process is gone, and all that it printed is here.
    fn has_ended(&self) -> bool {
        self.look(|state| state.read)
    }

    /// Waits until it was killed, or has printed so many lines and rests; where it was killed.
    async fn done(&self, lines: usize) -> Option<Write> {
        eventually("killed or done", async || {
            let rests = |at: Instant| at.elapsed() > QUIET;
            self.look(|state| {
                state.read || (state.lines.len() >= lines && state.last_sign.is_some_and(rests))
            })
        })
        .await;
        self.look(|state| state.killed_at.clone())
    }

    /// How often it printed a line that ends so.
    fn printed(&self, end: &str) -> usize {
        self.look(|state| state.lines.iter().filter(|line| line.ends_with(end)).count())
    }
}

async fn frame(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut head = [0; 16];
    from.read_exact(&mut head).await.ok()?;
    let length = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
    let mut frame = head.to_vec();
    frame.resize(length, 0);
    from.read_exact(&mut frame[16..]).await.ok()?;
    Some(frame)
}

/// The end of the process; what it has printed arrives all the same.
fn kill(state: &Mutex<State>, write: Write) {
    let mut state = state.lock().unwrap();
    let process = state.process.take().expect("it makes requests");
    drop(process); // kills, and waits for the end
    state.killed_at = Some(write);
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &Mutex<State>,
    when: When,
    awaited: &Mutex<Option<(i32, Write)>>,
) {
    while let Some(frame) = frame(&mut from).await {
        if let Some(write) = write_of(&frame) {
            let count = {
                let mut state = state.lock().unwrap();
                state.writes += 1;
                state.last_sign = Some(Instant::now());
                state.writes
            };
            if when == When::Before(count) {
                return kill(state, write);
            }
            if when == When::After(count) {
                let id = i32::from_le_bytes(frame[4..8].try_into().unwrap());
                *awaited.lock().unwrap() = Some((id, write));
            }
        }
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &Mutex<State>,
    awaited: &Mutex<Option<(i32, Write)>>,
) {
    while let Some(frame) = frame(&mut from).await {
        let answers = i32::from_le_bytes(frame[8..12].try_into().unwrap());
        let last = awaited.lock().unwrap().take_if(|(id, _)| *id == answers);
        if let Some((_, write)) = last {
            return kill(state, write);
        }
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// One flow in one layout, in a queue of its own for each step.
#[derive(Clone)]
struct Case {
    server: u16,
    layout: Layout,
    queue: String,
    when: When,
}

impl Case {
    /// Where messages on `t` are.
    fn topic(&self) -> String {
        match self.layout {
            Layout::MultiCollection => format!("{}_t", self.queue),
            Layout::Standard | Layout::DualChannel => format!("mmsg_{}", self.queue),
        }
    }

    /// Where messages for a node are.
    fn directed(&self, node: &str) -> String {
        match self.layout {
            Layout::Standard => self.topic(),
            Layout::MultiCollection => format!("dm_{node}"),
            Layout::DualChannel => format!("{}_dm_{node}", self.topic()),
        }
    }

    fn args(&self, args: &[&str]) -> Vec<String> {
        let more = ["--layout", self.layout.name(), "--queue", &self.queue];
        args.iter().chain(&more).map(|text| (*text).to_owned()).collect()
    }

    async fn bus(&self, id: &str) -> Bus {
        let bus = Bus::builder(uri(self.server, &self.queue)).queue(&*self.queue).layout(self.layout);
        bus.sender_id(id).connect().await.unwrap()
    }

    /// A bus that counts what it hears on `t`.
    async fn listener(&self, id: &str) -> (Bus, Arc<AtomicUsize>) {
        let (bus, count) = (self.bus(id).await, Arc::new(AtomicUsize::new(0)));
        let counted = count.clone();
        bus.subscribe("t", move |message| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok(message.derive_answer()) }
        })
        .await
        .unwrap();
        bus.ready().await;
        (bus, count)
    }

    async fn participant(&self, args: &[&str]) -> Participant {
        Participant::start(self.server, &self.queue, self.args(args), self.when).await
    }

    /// The participant again, without a fault.
    async fn again(&self, args: &[&str]) -> Participant {
        Participant::start(self.server, &self.queue, self.args(args), When::Never).await
    }

    async fn find(&self, collection: &str, filter: Document) -> Vec<Document> {
        let backend = DriverBackend::connect(&uri(self.server, &self.queue), None, "test").await.unwrap();
        let found = backend.find(collection, Find { filter, ..Find::default() }).await.unwrap();
        backend.close().await;
        found
    }

    /// Whether `n` has marked the message; `None` when it is not stored.
    async fn is_marked(&self, collection: &str, id: &MessageId) -> Option<bool> {
        let found = self.find(collection, doc! {"_id": id.to_bson()}).await;
        let message = Message::from_document(found.into_iter().next()?).unwrap();
        Some(message.is_processed_by("n"))
    }
}

/// Runs a flow with a participant that dies later and later, until it is done before that.
async fn at_each_step(server: u16, layout: Layout, flow: String, run: impl AsyncFn(Case) -> Option<Write>) {
    let mut steps = 0;
    for step in 1..40 {
        let mut killed = false;
        for when in [When::Before(step), When::After(step)] {
            let queue =
                format!("{flow}_{step}_{}", if when == When::Before(step) { "before" } else { "after" });
            let case = Case { server, layout, queue, when };
            let at = run(case).await;
            println!("{layout:?} {flow} {when:?}: {at:?}");
            killed |= at.is_some();
        }
        if !killed {
            assert!(steps > 0, "{layout:?} {flow}: it writes something");
            return;
        }
        steps = step;
    }
    panic!("{layout:?} {flow}: it never ends");
}

/// How a message is sent to the listener that dies.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    exclusive: bool,
    directed: bool,
    removed: bool,
}

const KINDS: [Kind; 5] = [
    Kind { name: "broadcast", exclusive: false, directed: false, removed: false },
    Kind { name: "exclusive", exclusive: true, directed: false, removed: false },
    Kind { name: "removed", exclusive: true, directed: false, removed: true },
    Kind { name: "directed", exclusive: false, directed: true, removed: false },
    Kind { name: "directed_exclusive", exclusive: true, directed: true, removed: true },
];

/// `n` listens, and dies while it takes a message; another node listens to broadcasts, too.
async fn listener_dies(case: Case, kind: Kind) -> Option<Write> {
    const SUB: [&str; 4] = ["sub", "t", "--sender-id", "n"];
    let what = format!("{} {:?} {:?}", kind.name, case.layout, case.when);
    let participant = case.participant(&SUB).await;
    let sender = case.bus("sender").await;
    let shares = !kind.exclusive && !kind.directed;
    let other = if shares { Some(case.listener("other").await) } else { None };
    // What announces it is its first write; if it died there, its second life takes the message.
    let announced = async || {
        let all = sender.participants().await.unwrap();
        all.iter().any(|one| one.id == "n") || participant.look(|state| state.killed_at.is_some())
    };
    eventually("announced", announced).await;
    let message = |value: &str| {
        let message = Message::new("t").value(value).exclusive(kind.exclusive).never_expires();
        let message = if kind.removed { message.delete_after_processing(Duration::ZERO) } else { message };
        if kind.directed { message.to("n") } else { message }
    };
    let id = sender.publish(message("first")).await.unwrap();
    let killed = participant.done(1).await;
    let before = participant.printed("first");
    let collection = if kind.directed { case.directed("n") } else { case.topic() };
    let marked = case.is_marked(&collection, &id).await;
    let expected = match (before, marked) {
        (0, Some(true)) => {
            let at = killed.clone().expect("it died in between");
            let mark = kind.exclusive && matches!(case.when, When::After(_)) && at.command == "update";
            assert!(mark && at.collection == collection, "{what}: {at:?}");
            0
        }
        (0, _) => 1,
        (1, Some(false)) => {
            if kind.exclusive {
                panic!("{what}: heard before the mark")
            } else {
                2
            }
        }
        (1, _) => 1,
        more => panic!("{what}: {more:?}"),
    };
    drop(participant.look(|state| state.process.take()));
    let again = case.again(&SUB).await;
    let total = || before + again.printed("first");
    eventually(&format!("{what}: processed"), async || total() >= expected).await;
    sender.publish(message("last")).await.unwrap();
    eventually(&format!("{what}: goes on"), async || again.printed("last") == 1).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!((total(), again.printed("last")), (expected, 1), "{what}, killed at {killed:?}");
    if let Some((bus, heard)) = other {
        eventually(&format!("{what}: the other heard"), async || heard.load(Ordering::SeqCst) == 2).await;
        bus.shutdown().await;
    }
    sender.shutdown().await;
    killed
}

/// `n` answers requests, and dies meanwhile. Its caller gets the answer, or its time is over.
async fn answerer_dies(case: Case, exclusive: bool) -> Option<Write> {
    const REPLY: [&str; 6] = ["reply", "t", "--text", "pong", "--sender-id", "n"];
    let what = format!("exclusive {exclusive} {:?} {:?}", case.layout, case.when);
    let participant = case.participant(&REPLY).await;
    let caller = case.bus("caller").await;
    let announced = async || {
        let all = caller.participants().await.unwrap();
        all.iter().any(|one| one.id == "n") || participant.look(|state| state.killed_at.is_some())
    };
    eventually("announced", announced).await;
    let id = MessageId::generate();
    let request = Message::new("t").exclusive(exclusive).never_expires().with_id(id.clone());
    let asking = tokio::spawn(async move {
        // Who cannot get an answer does not wait longer than it wants.
        let answer = tokio::time::timeout(LIMIT, caller.request_first(request, SHORT)).await;
        (answer.expect("in its time"), caller)
    });
    let killed = participant.done(1).await;
    let answers = case.find(&case.directed("caller"), doc! {"in_answer_to": id.to_bson()}).await;
    let is_marked = case.is_marked(&case.topic(), &id).await;
    drop(participant.look(|state| state.process.take()));
    let again = case.again(&REPLY).await;
    let (answer, caller) = asking.await.unwrap();
    if answers.is_empty() && is_marked == Some(true) {
        assert!(exclusive && killed.is_some(), "{what}: marked without an answer");
        assert!(matches!(answer, Err(RequestError::Timeout)), "{what}: {answer:?}");
    } else if !answers.is_empty() {
        assert_eq!(answer.as_ref().ok().and_then(|answer| answer.value.as_deref()), Some("pong"), "{what}");
    } else {
        // Its second life answers; if that takes longer than the caller waits, somebody else's time is over.
        let stored = async || {
            let filter = doc! {"in_answer_to": id.to_bson()};
            !case.find(&case.directed("caller"), filter).await.is_empty()
        };
        eventually(&format!("{what}: answered after all"), stored).await;
    }
    caller.request_first(Message::new("t").exclusive(exclusive), LIMIT).await.unwrap();
    drop(again);
    caller.shutdown().await;
    killed
}

/// `n` sends, and dies meanwhile. What was stored is heard by all; what was not, by nobody.
async fn sender_dies(case: Case, exclusive: bool, asks: bool) -> Option<Write> {
    let what = format!("exclusive {exclusive}, asks {asks} {:?} {:?}", case.layout, case.when);
    let ((one, heard_one), (two, heard_two)) = (case.listener("one").await, case.listener("two").await);
    let mut args = vec![if asks { "request" } else { "pub" }, "t", "x", "--sender-id", "n"];
    args.extend(exclusive.then_some("--exclusive"));
    if asks {
        args.extend(["--timeout", "30s"]);
    }
    let participant = case.participant(&args).await;
    let killed = {
        eventually("it ends", async || participant.has_ended()).await;
        participant.look(|state| state.killed_at.clone())
    };
    let stored = case.find(&case.topic(), doc! {"sender": "n", "in_answer_to": null}).await.len();
    assert!(killed.is_some() || stored == 1, "{what}: sent");
    let heard = || heard_one.load(Ordering::SeqCst) + heard_two.load(Ordering::SeqCst);
    let expected = |sent: usize| if exclusive { sent } else { 2 * sent };
    eventually(&format!("{what}: heard"), async || heard() == expected(stored)).await;
    let again = case.again(&args).await;
    eventually(&format!("{what}: sends again"), async || again.has_ended()).await;
    eventually(&format!("{what}: heard again"), async || heard() == expected(stored + 1)).await;
    if asks {
        eventually(&format!("{what}: answered"), async || !again.look(|state| state.lines.is_empty())).await;
    }
    tokio::time::sleep(QUIET).await;
    assert_eq!(heard(), expected(stored + 1), "{what}");
    tokio::join!(one.shutdown(), two.shutdown());
    killed
}

/// `n` dies in its listener, which hangs: a broadcast is tried again, an exclusive message is not.
async fn hanging_listener_dies(case: Case, exclusive: bool) {
    let what = format!("exclusive {exclusive} {:?}", case.layout);
    let hangs = ["reply", "t", "--sender-id", "n", "--exec", "sleep", "10"];
    let args =
        [&case.args(&hangs[..4])[..], &hangs[4..].iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()];
    let participant = Participant::start(case.server, &case.queue, args.concat(), When::Never).await;
    let sender = case.bus("sender").await;
    let message = |value: &str| Message::new("t").value(value).exclusive(exclusive).never_expires();
    sender.publish(message("first")).await.unwrap();
    eventually(&format!("{what}: hangs"), async || participant.printed("first") == 1).await;
    drop(participant.look(|state| state.process.take()));
    let again = case.again(&["sub", "t", "--sender-id", "n"]).await;
    sender.publish(message("last")).await.unwrap();
    eventually(&format!("{what}: goes on"), async || again.printed("last") == 1).await;
    if !exclusive {
        eventually(&format!("{what}: again"), async || again.printed("first") == 1).await;
    }
    tokio::time::sleep(QUIET).await;
    assert_eq!(again.printed("first"), usize::from(!exclusive), "{what}");
    sender.shutdown().await;
}

/// All flows of a layout, side by side.
async fn all_flows(layout: Layout) {
    let server = Server::start();
    let port = server.port;
    let mut flows: Vec<LocalBoxFuture<'_, ()>> = Vec::new();
    for kind in KINDS {
        let run = async move |case| listener_dies(case, kind).await;
        flows.push(at_each_step(port, layout, kind.name.to_owned(), run).boxed_local());
    }
    for exclusive in [false, true] {
        let run = async move |case| answerer_dies(case, exclusive).await;
        flows.push(at_each_step(port, layout, format!("answer_{exclusive}"), run).boxed_local());
        for asks in [false, true] {
            let run = async move |case| sender_dies(case, exclusive, asks).await;
            flows.push(at_each_step(port, layout, format!("send_{exclusive}_{asks}"), run).boxed_local());
        }
        let case = Case { server: port, layout, queue: format!("hang_{exclusive}"), when: When::Never };
        flows.push(hanging_listener_dies(case, exclusive).boxed_local());
    }
    join_all(flows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_each_step_of_standard() {
    all_flows(Layout::Standard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_each_step_of_multi_collection() {
    all_flows(Layout::MultiCollection).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_each_step_of_dual_channel() {
    all_flows(Layout::DualChannel).await;
}
