//! Open cursors: what they are bound to, who reads them now, and when they are given up.
//!
//! ```text
//!          check_out              dropped
//! idle ──────────────► in use ──────────────► idle      (its `Lease` puts it back)
//!   │                    │ kill: the reader is woken, the cursor is gone when it lets go
//!   └── kill, expiry ──► gone ◄── finish
//! ```
//!
//! Invariants
//! * A cursor is read by one request at a time; a second one is refused, nothing is lost to it.
//! * Ids are random, positive, and never 0 (which tells clients that there is no cursor).
//! * A cursor is read in its namespace, and in the session that opened it if one did.
//!
//! What a cursor yields is the type parameter. Callers pass `now`; only a lease that is let go reads the clock, because
//! a read may have waited long.

use crate::errors::{Failure, Result};
use crate::session::SessionId;
use foldhash::HashMap;
use parking_lot::Mutex;
use rockdove_documents::{Code, code};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A cursor that is not read for this long is given up, unless it was opened with `noCursorTimeout`.
pub const CURSOR_IDLE: Duration = Duration::from_secs(10 * 60);
/// Most cursors at one time; opening more is refused.
pub const CURSORS_MAX: usize = 100_000;
/// What reading a cursor that is being read is refused with.
const IN_USE: Code = Code { number: 12051, name: "" };

/// Under which terms a cursor is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binding {
    /// `database.collection`.
    pub namespace: String,
    /// The session that opened it.
    pub session: Option<SessionId>,
    /// Whether idleness never ends it (a session's end still does).
    pub no_timeout: bool,
    /// Whether it reads a change stream, which decides the labels of its errors.
    pub change_stream: bool,
    /// Whether the command that opened it had a time limit, which its later batches have too.
    pub time_limited: bool,
}

#[derive(Debug)]
struct Slot<T> {
    binding: Binding,
    last_used: Instant,
    /// `None` while a request reads it.
    content: Option<T>,
    /// Set with a wake-up; the reader looks at it when it lets go.
    killed: bool,
    wake: Arc<Notify>,
}

/// All cursors, by id.
#[derive(Debug)]
pub struct Cursors<T> {
    slots: Mutex<HashMap<i64, Slot<T>>>,
}

impl<T> Default for Cursors<T> {
    fn default() -> Cursors<T> {
        Cursors { slots: Mutex::new(HashMap::default()) }
    }
}

impl<T> Cursors<T> {
    /// Keeps a cursor and returns its id.
    pub fn open(&self, binding: Binding, content: T, now: Instant) -> Result<i64> {
        let mut slots = self.slots.lock();
        if slots.len() >= CURSORS_MAX {
            return Err(Failure::new(
                code::EXCEEDED_MEMORY_LIMIT,
                format!("there are {CURSORS_MAX} open cursors already"),
            ));
        }
        let id = loop {
            let id = (rand::random::<u64>() >> 1) as i64;
            if id != 0 && !slots.contains_key(&id) {
                break id;
            }
        };
        let wake = Arc::new(Notify::new());
        slots.insert(id, Slot { binding, last_used: now, content: Some(content), killed: false, wake });
        Ok(id)
    }

    /// Takes a cursor to read it.
    pub fn check_out(&self, id: i64, namespace: &str, session: Option<SessionId>) -> Result<Lease<'_, T>> {
        let mut slots = self.slots.lock();
        let slot = slots.get_mut(&id).filter(|slot| !slot.killed).ok_or_else(|| not_found(id))?;
        if slot.binding.namespace != namespace {
            return Err(Failure::new(
                code::UNAUTHORIZED,
                format!(
                    "Requested getMore on namespace '{namespace}', but cursor belongs to a different \
                     namespace {}",
                    slot.binding.namespace
                ),
            ));
        }
        if slot.binding.session != session {
            return Err(wrong_session(id, slot.binding.session, session));
        }
        let content = slot
            .content
            .take()
            .ok_or_else(|| Failure::new(IN_USE, format!("cursor id {id} is already in use")))?;
        let wake = slot.wake.clone();
        Ok(Lease { cursors: self, id, content: Some(content), wake })
    }

    /// Ends a cursor; whether there was one in this namespace.
    pub fn kill(&self, id: i64, namespace: Option<&str>) -> bool {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(&id).filter(|slot| !slot.killed) else { return false };
        if namespace.is_some_and(|namespace| namespace != slot.binding.namespace) {
            return false;
        }
        if slot.content.is_none() {
            slot.killed = true;
            slot.wake.notify_one();
        } else {
            slots.remove(&id);
        }
        true
    }

    /// Ends the cursors whose terms satisfy `which`; how many there were.
    pub fn kill_where(&self, which: impl Fn(&Binding) -> bool) -> usize {
        let ids: Vec<i64> =
            self.slots.lock().iter().filter(|(_, slot)| which(&slot.binding)).map(|(id, _)| *id).collect();
        ids.into_iter().filter(|id| self.kill(*id, None)).count()
    }

    /// Gives up the cursors that were not read for [`CURSOR_IDLE`]; how many there were.
    pub fn expire(&self, now: Instant) -> usize {
        let mut slots = self.slots.lock();
        let before = slots.len();
        slots.retain(|_, slot| {
            slot.content.is_none()
                || slot.binding.no_timeout
                || now.saturating_duration_since(slot.last_used) < CURSOR_IDLE
        });
        before - slots.len()
    }

    /// Under which terms a cursor is kept.
    pub fn binding(&self, id: i64) -> Option<Binding> {
        self.slots.lock().get(&id).map(|slot| slot.binding.clone())
    }

    /// How many cursors are open.
    pub fn count(&self) -> usize {
        self.slots.lock().len()
    }

    /// Ids and terms of the cursors that nobody reads now.
    pub fn idle(&self) -> Vec<(i64, Binding)> {
        let slots = self.slots.lock();
        slots
            .iter()
            .filter(|(_, slot)| slot.content.is_some())
            .map(|(id, slot)| (*id, slot.binding.clone()))
            .collect()
    }
}

/// A cursor being read. Dropping it puts the cursor back, so that a cancelled read loses nothing.
#[derive(Debug)]
pub struct Lease<'c, T> {
    cursors: &'c Cursors<T>,
    id: i64,
    content: Option<T>,
    wake: Arc<Notify>,
}

impl<T> Lease<'_, T> {
    /// What the cursor yields.
    pub fn content(&mut self) -> &mut T {
        self.content.as_mut().expect("only `finish` and `drop` take the content")
    }

    /// Comes back when the cursor is killed.
    pub fn killed(&self) -> impl Future<Output = ()> + use<T> {
        let wake = self.wake.clone();
        async move { wake.notified().await }
    }

    /// The cursor has nothing more: it is closed.
    pub fn finish(mut self) {
        self.content = None;
        self.cursors.slots.lock().remove(&self.id);
    }
}

impl<T> Drop for Lease<'_, T> {
    fn drop(&mut self) {
        let Some(content) = self.content.take() else { return };
        let mut slots = self.cursors.slots.lock();
        if slots.get(&self.id).is_some_and(|slot| slot.killed) {
            slots.remove(&self.id);
        } else if let Some(slot) = slots.get_mut(&self.id) {
            slot.content = Some(content);
            slot.last_used = Instant::now();
        }
    }
}

fn not_found(id: i64) -> Failure {
    Failure::new(code::CURSOR_NOT_FOUND, format!("cursor id {id} not found"))
}

fn wrong_session(id: i64, opened: Option<SessionId>, asked: Option<SessionId>) -> Failure {
    let name = |session: Option<SessionId>| match session {
        Some(SessionId(bytes)) => uuid::Uuid::from_bytes(bytes).to_string(),
        None => "none".to_string(),
    };
    Failure::location(
        50737,
        format!("Cannot run getMore on cursor {id} of session {} in session {}", name(opened), name(asked)),
    )
}

/// How many documents and bytes go into one reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchLimit {
    documents: usize,
}

/// Most bytes of documents in one reply; a single larger document still goes alone.
pub const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Documents of a first batch whose size was not asked for.
const FIRST_BATCH: usize = 101;

impl BatchLimit {
    /// The limit of a first batch (MongoDB manual: cursor batches): 101 unless chosen; 0 means none yet.
    pub fn first(batch_size: Option<u64>) -> BatchLimit {
        BatchLimit { documents: batch_size.map_or(FIRST_BATCH, to_usize) }
    }

    /// The limit of a later batch: 0 and absent mean whatever fits.
    pub fn next(batch_size: Option<u64>) -> BatchLimit {
        BatchLimit { documents: batch_size.filter(|size| *size > 0).map_or(usize::MAX, to_usize) }
    }

    /// Whether a batch of `documents` and `bytes` may take a document of `size` bytes.
    pub fn admits(self, documents: usize, bytes: usize, size: usize) -> bool {
        documents < self.documents && (documents == 0 || bytes.saturating_add(size) <= BATCH_BYTES_MAX)
    }

    /// Whether a batch of `documents` is full by their number.
    pub fn is_full(self, documents: usize) -> bool {
        documents >= self.documents
    }

    /// Most documents.
    pub fn documents(self) -> usize {
        self.documents
    }
}

fn to_usize(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding() -> Binding {
        Binding {
            namespace: "db.c".into(),
            session: Some(SessionId([1; 16])),
            no_timeout: false,
            change_stream: false,
            time_limited: false,
        }
    }

    fn number<T>(result: Result<T>) -> i32 {
        result.map(drop).unwrap_err().error.code.number
    }

    #[test]
    fn a_cursor_is_read_by_one_and_put_back() {
        let cursors = Cursors::default();
        let session = binding().session;
        let id = cursors.open(binding(), vec![1, 2, 3], Instant::now()).unwrap();
        assert!(id > 0);
        {
            let mut lease = cursors.check_out(id, "db.c", session).unwrap();
            lease.content().pop();
            assert_eq!(number(cursors.check_out(id, "db.c", session)), 12051);
        }
        assert_eq!(cursors.check_out(id, "db.c", session).unwrap().content(), &[1, 2]);
        assert_eq!(number(cursors.check_out(id, "db.d", session)), 13);
        assert_eq!(number(cursors.check_out(id, "db.c", None)), 50737);
        cursors.check_out(id, "db.c", session).unwrap().finish();
        assert_eq!(number(cursors.check_out(id, "db.c", session)), 43);
    }

    #[tokio::test]
    async fn killing_wakes_the_reader() {
        let cursors = Cursors::default();
        let session = binding().session;
        let id = cursors.open(binding(), (), Instant::now()).unwrap();
        let lease = cursors.check_out(id, "db.c", session).unwrap();
        let killed = lease.killed();
        assert!(!cursors.kill(id, Some("db.other")));
        assert!(cursors.kill(id, Some("db.c")));
        assert!(!cursors.kill(id, None), "only once");
        tokio::time::timeout(Duration::from_secs(5), killed).await.expect("woken");
        drop(lease);
        assert_eq!(cursors.count(), 0);
    }

    #[test]
    fn idle_cursors_expire_unless_they_are_kept() {
        let (cursors, start) = (Cursors::default(), Instant::now());
        cursors.open(binding(), (), start).unwrap();
        cursors.open(Binding { no_timeout: true, ..binding() }, (), start).unwrap();
        assert_eq!(cursors.expire(start + CURSOR_IDLE / 2), 0);
        assert_eq!(cursors.expire(start + CURSOR_IDLE), 1);
        assert_eq!(cursors.kill_where(|binding| binding.session == Some(SessionId([1; 16]))), 1);
        assert_eq!(cursors.count(), 0);
    }

    #[test]
    fn batches_are_limited_by_number_and_bytes() {
        let first = BatchLimit::first(None);
        assert!(first.admits(100, 0, 10) && !first.admits(101, 0, 10));
        assert!(!BatchLimit::first(Some(0)).admits(0, 0, 10));
        assert!(BatchLimit::next(Some(0)).admits(5000, 0, 10));
        assert!(!BatchLimit::next(Some(2)).admits(2, 0, 10));
        let big = BATCH_BYTES_MAX + 1;
        assert!(first.admits(0, 0, big), "one document always fits");
        assert!(!first.admits(1, 10, BATCH_BYTES_MAX));
    }
}
