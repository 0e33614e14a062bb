//! What the server knows about one connected client, and which operations run at the moment.

use foldhash::HashMap;
use parking_lot::Mutex;
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::{Doc, Error, RawDoc, Value, code};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::Notify;

/// One connection's client.
#[derive(Debug)]
pub struct Client {
    /// The connection's number, unique while the server runs.
    pub id: i32,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// The `client` document of its first `hello`.
    metadata: OnceLock<Doc>,
    running: Mutex<Option<Operation>>,
    /// The number of the operation that runs and is to go on, else 0. Work that an operation has left behind on
    /// another thread sees by it that it is over.
    current: Arc<AtomicI64>,
    /// Woken to end the operation that runs.
    interrupt: Notify,
}

/// A command being carried out.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its number, unique while the server runs.
    pub id: i64,
    /// The command document.
    pub command: Doc,
    /// `database.collection`, or the database alone.
    pub namespace: String,
    /// When it began.
    pub since: Instant,
}

impl Client {
    /// A client that has not introduced itself.
    pub fn new(id: i32, peer: SocketAddr) -> Client {
        let (metadata, running) = (OnceLock::new(), Mutex::new(None));
        Client { id, peer, metadata, running, current: Arc::default(), interrupt: Notify::new() }
    }

    /// Keeps what the client says about itself; only the first time counts.
    pub fn introduce(&self, metadata: RawDoc<'_>) {
        self.metadata.get_or_init(|| metadata.to_doc());
    }

    /// What the client said about itself.
    pub fn metadata(&self) -> Option<&Doc> {
        self.metadata.get()
    }

    /// The application's name, empty if the client gave none.
    pub fn app_name(&self) -> &str {
        let application = self.metadata.get().and_then(|metadata| metadata.get("application"));
        match application {
            Some(Value::Document(application)) => {
                application.get("name").and_then(|name| name.as_str()).unwrap_or_default()
            }
            _ => "",
        }
    }

    /// Notes the operation that runs from now on, until the guard is dropped.
    pub fn start(&self, operation: Operation) -> Running<'_> {
        self.current.store(operation.id, Ordering::Relaxed);
        *self.running.lock() = Some(operation);
        Running(self)
    }

    /// What work of an operation asks on whatever thread: it ends when the operation does, when that is killed, and
    /// at `deadline`.
    pub fn interrupt_of(&self, operation: i64, deadline: Option<Instant>) -> Interrupt {
        let current = self.current.clone();
        Interrupt::new(move || match deadline {
            _ if current.load(Ordering::Relaxed) != operation => {
                Err(Error::new(code::INTERRUPTED, "operation was interrupted"))
            }
            Some(deadline) if Instant::now() >= deadline => {
                Err(Error::new(code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit"))
            }
            _ => Ok(()),
        })
    }

    /// The operation that runs now.
    pub fn running(&self) -> Option<Operation> {
        self.running.lock().clone()
    }

    /// Comes back when the running operation shall end.
    pub async fn interrupted(&self) {
        self.interrupt.notified().await;
    }
}

/// An operation while it runs.
#[derive(Debug)]
pub struct Running<'c>(&'c Client);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.current.store(0, Ordering::Relaxed);
        *self.0.running.lock() = None;
    }
}

/// All connected clients, and how many there have been.
#[derive(Debug, Default)]
pub struct Clients {
    connected: Mutex<HashMap<i32, Arc<Client>>>,
    total: AtomicU64,
    operations: AtomicI64,
}

impl Clients {
    /// Takes in a new connection. It is forgotten when the guard is dropped.
    pub fn connect(&self, peer: SocketAddr) -> Connected<'_> {
        let number = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Arc::new(Client::new((number & 0x7fff_ffff) as i32, peer));
        self.connected.lock().insert(client.id, client.clone());
        Connected { clients: self, client }
    }

    /// How many are connected now.
    pub fn count(&self) -> usize {
        self.connected.lock().len()
    }

    /// How many have ever connected.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// The number for the next operation.
    pub fn next_operation(&self) -> i64 {
        self.operations.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The clients connected now, in no order.
    pub fn list(&self) -> Vec<Arc<Client>> {
        self.connected.lock().values().cloned().collect()
    }

    /// Asks an operation to end; whether it runs.
    pub fn interrupt(&self, operation: i64) -> bool {
        let runs = |client: &Arc<Client>| client.running.lock().as_ref().is_some_and(|op| op.id == operation);
        let client = self.connected.lock().values().find(|client| runs(client)).cloned();
        if let Some(client) = &client {
            // Only if it is still this one that runs.
            let _ = client.current.compare_exchange(operation, 0, Ordering::Relaxed, Ordering::Relaxed);
            client.interrupt.notify_waiters();
        }
        client.is_some()
    }
}

/// A client while it is connected.
#[derive(Debug)]
pub struct Connected<'c> {
    clients: &'c Clients,
    /// The client.
    pub client: Arc<Client>,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.clients.connected.lock().remove(&self.client.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::doc;

    #[test]
    fn clients_are_known_while_they_are_connected() {
        let clients = Clients::default();
        let peer = "127.0.0.1:1".parse().unwrap();
        let first = clients.connect(peer);
        let second = clients.connect(peer);
        assert_ne!(first.client.id, second.client.id);
        assert_eq!((clients.count(), clients.total()), (2, 2));
        drop(first);
        assert_eq!((clients.count(), clients.total()), (1, 2));
    }

    #[test]
    fn only_the_first_introduction_counts() {
        let client = Client::new(1, "127.0.0.1:1".parse().unwrap());
        assert_eq!(client.app_name(), "");
        client.introduce(doc! { "application": { "name": "orders" } }.raw());
        client.introduce(doc! { "application": { "name": "other" } }.raw());
        assert_eq!(client.app_name(), "orders");
    }
}
