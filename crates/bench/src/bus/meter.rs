//! How much of the processor time is the embedded back end's: the engine and its threads, and the conversion of documents
//! between it and the library.

use crate::engine::thread_cpu_time;
use bson::{Bson, Document};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rockdove::backend::*;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Processor time of the calls of a back end, on the threads of those who call.
#[derive(Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// What was spent so far: in calls, and by the threads that are not the runtime's.
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed)) + other_threads()
    }

    fn measure<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = thread_cpu_time();
        let result = work();
        let spent = thread_cpu_time().saturating_sub(before).as_nanos();
        self.0.fetch_add(u64::try_from(spent).unwrap_or(u64::MAX), Ordering::Relaxed);
        result
    }

    /// A call: what it does at once, and whenever it is polled.
    fn call<'a, T: 'a>(&'a self, begin: impl FnOnce() -> BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        let mut call = self.measure(begin);
        poll_fn(move |context| self.measure(|| call.as_mut().poll(context))).boxed()
    }
}

/// Processor time of the threads of this process that are neither the main one nor the runtime's.
fn other_threads() -> Duration {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default(); // a thread may just have ended
    let main = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let others = threads.flatten().map(|thread| thread.path()).filter(|thread| {
        let name = read(thread.join("comm"));
        name != main && !name.starts_with("tokio")
    });
    let nanos = |thread: std::path::PathBuf| -> u64 {
        read(thread.join("schedstat")).split_whitespace().next().and_then(|on| on.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(others.map(nanos).sum())
}

/// A back end whose calls are measured.
pub struct Metered {
    inner: Arc<dyn Backend>,
    meter: Arc<Meter>,
}

impl Metered {
    /// Measures the calls of `inner`.
    pub fn new(inner: Arc<dyn Backend>, meter: Arc<Meter>) -> Metered {
        Metered { inner, meter }
    }
}

impl Backend for Metered {
    fn insert<'a>(
        &'a self,
        collection: &'a str,
        documents: &'a [Document],
        durability: Durability,
    ) -> BoxFuture<'a, BackendResult<Vec<InsertFailure>>> {
        self.meter.call(|| self.inner.insert(collection, documents, durability))
    }

    fn insert_acked<'a>(
        &'a self,
        collection: &'a str,
        document: Document,
        wish: Wish,
    ) -> BoxFuture<'a, BackendResult<Inserted>> {
        self.meter.call(|| self.inner.insert_acked(collection, document, wish))
    }

    fn find<'a>(&'a self, collection: &'a str, find: Find) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        self.meter.call(|| self.inner.find(collection, find))
    }

    fn count<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        self.meter.call(|| self.inner.count(collection, filter))
    }

    fn update_one<'a>(
        &'a self,
        collection: &'a str,
        filter: Document,
        update: Document,
        upsert: bool,
    ) -> BoxFuture<'a, BackendResult<Updated>> {
        self.meter.call(|| self.inner.update_one(collection, filter, update, upsert))
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, BackendResult<Claimed>> {
        self.meter.call(|| self.inner.claim(claim))
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: Document) -> BoxFuture<'a, BackendResult<u64>> {
        self.meter.call(|| self.inner.delete(collection, filter))
    }

    fn create_index<'a>(
        &'a self,
        collection: &'a str,
        index: &'a IndexDefinition,
    ) -> BoxFuture<'a, BackendResult<()>> {
        self.meter.call(|| self.inner.create_index(collection, index))
    }

    fn indexes<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<Vec<Document>>> {
        self.meter.call(|| self.inner.indexes(collection))
    }

    fn watch<'a>(&'a self, scope: Scope<'a>, watch: Watch) -> BoxFuture<'a, BackendResult<Box<dyn Feed>>> {
        let opened = self.meter.call(move || self.inner.watch(scope, watch));
        let meter = self.meter.clone();
        opened.map(|inner| inner.map(|inner| Box::new(MeteredFeed { inner, meter }) as Box<dyn Feed>)).boxed()
    }

    fn collections<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, BackendResult<Vec<String>>> {
        self.meter.call(|| self.inner.collections(prefix))
    }

    fn drop_collection<'a>(&'a self, collection: &'a str) -> BoxFuture<'a, BackendResult<()>> {
        self.meter.call(|| self.inner.drop_collection(collection))
    }

    fn describe(&self) -> Document {
        self.inner.describe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

struct MeteredFeed {
    inner: Box<dyn Feed>,
    meter: Arc<Meter>,
}

impl Feed for MeteredFeed {
    fn next(&mut self) -> BoxFuture<'_, BackendResult<Option<ChangeEvent>>> {
        self.meter.call(|| self.inner.next())
    }

    fn resume_token(&self) -> Option<Bson> {
        self.inner.resume_token()
    }
}
