//! The handle that everybody but the writer uses.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::ack::{Cluster, Level, Watermarks};
use crate::codec::Key;
use crate::cursor::{self, CursorError, CursorPosition};
use crate::cycle::Cycle;
use crate::disk::{Disk, RealDisk};
use crate::error::{DiskError, DropError, OpenError, ReadError, WaitError};
use crate::file::Folder;
use crate::keeper::Bell;
use crate::options::Options;
use crate::reader::Reader;
use crate::recover::Recovery;
use crate::retention::{self, Released, Retention};
use crate::risk::{Cause, Exposure};
use crate::scan::Scanner;
use crate::segment::Segment;
use crate::state::StateFile;
use crate::sync::{Asked, Desk};
use crate::tail::{NamedTailer, Seek, Source, Tailer, Visibility};
use crate::writer::{Core, Ticket, Writer};

/// Called after each sync with the new durable mark, and once with the failure that ended the log.
type Callback = Arc<dyn Fn(&Result<u64, DiskError>) + Send + Sync>;

/// Called with a segment that is about to be removed.
type ReleaseListener = Arc<dyn Fn(&Released) + Send + Sync>;

/// Name of the file that carries the writer's lock.
pub(crate) const LOCK: &str = "lock";

/// What the writer, the syncer and the handles share.
///
/// Lock order: `core`, `state_file`, then `segments`, then the desk's.
pub(crate) struct Shared {
    pub folder: Folder,
    pub log_id: [u8; 16],
    /// What payloads are decrypted with.
    pub key: Option<Key>,
    pub desk: Desk,
    /// Ordered by base; the last one is active. Never empty.
    pub segments: RwLock<Vec<Arc<Segment>>>,
    pub state_file: Mutex<StateFile>,
    pub callbacks: Mutex<Vec<Callback>>,
    pub release_listeners: Mutex<Vec<ReleaseListener>>,
    /// `None` once the writer is gone.
    pub core: Mutex<Option<Core>>,
    /// Who is called when a segment was sealed.
    pub keeper: Mutex<Option<Arc<Bell>>>,
    /// Whether there was no space for the next segment.
    pub is_short: Arc<AtomicBool>,
}

impl Shared {
    /// A segment was sealed.
    pub(crate) fn sealed(&self) {
        if let Some(bell) = &*self.keeper.lock() {
            bell.ring();
        }
    }
}

/// A cheap handle on an open log: marks, readers, retention. Stays readable after the writer is gone.
#[derive(Clone)]
pub struct Journal(pub(crate) Arc<Shared>);

/// Whether the log still takes entries.
#[derive(Clone, Debug)]
pub enum Health {
    /// It does.
    Good,
    /// A write or sync failed; it must be opened anew. What is written stays readable.
    Failed(DiskError),
    /// The writer was closed or dropped.
    Closed,
}

impl Journal {
    /// Opens the log in a folder, making it if there is none, and recovers what is there.
    ///
    /// Reads the unsealed segments whole: usually one or two. Everything found is durable when this returns.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<(Journal, Writer, Recovery), OpenError> {
        let dir = dir.as_ref();
        let disk = RealDisk::new(dir).map_err(|e| DiskError {
            action: "open the folder",
            file: dir.to_owned(),
            cause: Arc::new(e),
        })?;
        Journal::open_on(Arc::new(disk), options)
    }

    /// As [`Journal::open`], on any disk.
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<(Journal, Writer, Recovery), OpenError> {
        crate::writer::open(Folder::new(disk), options)
    }

    /// Index of the last entry that can be read; 0 if there is none.
    pub fn written(&self) -> u64 {
        self.0.desk.written()
    }

    /// Index of the last entry that survives a power loss, as do all before it; 0 if there is none.
    pub fn synced(&self) -> u64 {
        self.0.desk.synced()
    }

    /// Index of the first entry that can be read, or the next to be written if there is none.
    pub fn first_index(&self) -> u64 {
        self.0.segments.read().first().map_or(1, |s| s.base)
    }

    /// Reads from an entry on, which may be the next one to be written.
    pub fn read_from(&self, index: u64) -> Result<Reader, ReadError> {
        let mut tailer = self.tailer();
        match tailer.move_to_index(index)? {
            Seek::At(_) => Ok(Reader(tailer)),
            Seek::BeforeStart { first } => Err(ReadError::BeforeStart { index, first }),
            Seek::AfterEnd { next } => Err(ReadError::AfterEnd { index, next }),
        }
    }

    /// Reads from the beginning, in either direction, as its caller likes.
    pub fn tailer(&self) -> Tailer {
        Tailer::new(self.0.clone())
    }

    /// A tailer whose position is kept under this name: it goes on where the last one of the name committed.
    pub fn named_tailer(&self, name: &str) -> Result<NamedTailer, CursorError> {
        NamedTailer::open(self.tailer(), self.0.folder.clone(), self.0.log_id, name)
    }

    /// The named positions, in the order of their names.
    pub fn cursors(&self) -> Result<Vec<CursorPosition>, CursorError> {
        cursor::list(&self.0.folder, self.0.log_id)
    }

    /// Forgets a named position; false if there is none. Refused while a tailer of the name is open.
    pub fn remove_cursor(&self, name: &str) -> Result<bool, CursorError> {
        cursor::remove(&self.0.folder, name)
    }

    /// Has everything that is written now synced as soon as possible; does not wait.
    pub fn request_sync(&self) {
        self.0.desk.request(Cause::Request);
    }

    /// As [`Journal::request_sync`]; a SYNCED entry follows if the log's risk policy has them announced.
    pub fn fence(&self) {
        self.0.desk.request(Cause::Fence);
    }

    /// How far the log has come.
    pub fn watermarks(&self) -> Watermarks {
        self.0.desk.watermarks()
    }

    /// Takes the marks of the nodes that keep copies, on which acknowledgements depend. Without a call the log
    /// counts as [`Cluster::alone`].
    pub fn set_cluster(&self, cluster: Cluster) {
        self.0.desk.set_cluster(cluster);
    }

    /// A ticket for a part of an entry that several share ([`Writer::append_shared`]). `value` is the part's share of
    /// the entry's value: a part that is given two tickets counts twice as acknowledged. It asks for no sync:
    /// [`Journal::request_sync`] does.
    pub fn ticket(&self, index: u64, level: Level, value: u64) -> Ticket {
        Ticket::of_part(&self.0, Asked { level, index, value })
    }

    /// How much is at risk; nothing if the log has no risk policy.
    pub fn exposure(&self) -> Exposure {
        self.0.desk.exposure()
    }

    /// How many syncs succeeded since the log was opened, for each cause; one sync may have several.
    pub fn syncs(&self) -> Vec<(Cause, u64)> {
        self.0.desk.rounds()
    }

    /// How long the sync that is under way has taken so far; `None` while there is none. A disk that hangs shows here:
    /// nothing is given up then, and what waits for the disk waits.
    pub fn syncing(&self) -> Option<Duration> {
        self.0.desk.syncing()
    }

    /// When segments roll besides when they are full.
    pub fn cycle(&self) -> Option<Cycle> {
        self.0.state_file.lock().state().cycle.clone()
    }

    /// Registers a function that is called before a segment's file is removed, by the thread that removes it. It may
    /// copy or link the file; nothing else is removed meanwhile. It must not drop segments itself.
    /// If it panics the segment stays, and is told again the next time; the next opening of the log removes it.
    pub fn on_released(&self, listener: impl Fn(&Released) + Send + Sync + 'static) {
        self.0.release_listeners.lock().push(Arc::new(listener));
    }

    /// Removes the segments that a policy lets go; the new first index. `now_ns`: nanoseconds since 1970, for ages.
    pub fn retain(&self, policy: &Retention, now_ns: u64) -> Result<u64, DropError> {
        let slowest = match policy.keep_unread {
            true => cursor::list(&self.0.folder, self.0.log_id)?.iter().map(|c| c.next).min(),
            false => None,
        };
        let candidates: Vec<_> = self.0.segments.read().iter().map(|s| s.candidate()).collect();
        match retention::count_to_drop(policy, &candidates, slowest, now_ns).checked_sub(1) {
            Some(last) => self.drop_before(candidates[last].last + 1),
            None => Ok(self.first_index()),
        }
    }

    /// Blocks the thread until `synced` has reached `index`. Does not ask for a sync.
    pub fn wait_synced_blocking(&self, index: u64, timeout: Duration) -> Result<(), WaitError> {
        self.0.desk.wait(index, timeout)
    }

    /// Registers a function that the syncer's thread calls after each sync with the new durable mark, and with
    /// the failure when one ends the log. It must not block: nothing is synced meanwhile. It lives as long as
    /// the log, and should not hold a [`Journal`], which would keep both alive.
    pub fn on_synced(&self, callback: impl Fn(&Result<u64, DiskError>) + Send + Sync + 'static) {
        self.0.callbacks.lock().push(Arc::new(callback));
        self.0.desk.has_callbacks();
    }

    /// Whether appends can succeed. A full disk is no failure: appends say so and recover.
    pub fn health(&self) -> Health {
        match self.0.desk.failure() {
            Some(failure) => Health::Failed(failure),
            None if self.0.desk.is_closed() => Health::Closed,
            None => Health::Good,
        }
    }

    /// True if there was no space on the disk for the next segment when that was last made ready. What is left of the
    /// active one, up to half of it, still takes entries: who asks can leave it to those that make space.
    pub fn is_short_of_space(&self) -> bool {
        self.0.is_short.load(Ordering::Acquire)
    }

    /// Bytes that the active segment still has for entries.
    pub fn room(&self) -> u64 {
        self.0.segments.read().last().map_or(0, |segment| segment.room())
    }

    /// Has the next segment made ready once more if there was no space for it; does not wait.
    pub fn retry_space(&self) {
        if self.is_short_of_space()
            && let Some(core) = self.0.core.lock().as_mut()
        {
            core.want_spare();
        }
    }

    /// Bytes on disk of the segments that [`Journal::drop_before`] would remove.
    pub fn bytes_before(&self, index: u64) -> u64 {
        self.droppable(index.min(self.synced())).0.iter().map(|segment| segment.disk_bytes()).sum()
    }

    /// Forgets entries below `index`: removes the sealed segments that lie wholly below it, oldest first.
    ///
    /// Entries at or above `index`, the last entry and unsynced ones always stay; up to a segment more may stay.
    /// Readers inside a removed segment read it to its end and then get [`ReadError::BeforeStart`].
    /// Returns the new first index.
    pub fn drop_before(&self, index: u64) -> Result<u64, DropError> {
        let mut state_file = self.0.state_file.lock();
        if let Some(failure) = self.0.desk.failure() {
            return Err(failure.into());
        }
        if self.0.desk.is_closed() {
            return Err(DropError::Closed);
        }
        let synced = self.synced();
        let (gone, first) = self.droppable(index.min(synced));
        if gone.is_empty() {
            return Ok(first);
        }
        // First the promise, then the deed: what an interruption leaves is removed at the next opening.
        state_file
            .update(|s| (s.first, s.durable_upto) = (first, synced))
            .map_err(|e| self.0.desk.fail(e))?;
        let listeners = self.0.release_listeners.lock().clone();
        for segment in gone {
            let released = Released {
                file: self.0.folder.path(&segment.name()),
                entries: segment.base..=segment.last(),
                bytes: segment.disk_bytes(),
            };
            listeners.iter().for_each(|listener| listener(&released));
            self.0.segments.write().retain(|s| !Arc::ptr_eq(s, &segment));
            self.0.folder.remove(&segment.name())?;
            self.0.folder.sync_names().map_err(|e| self.0.desk.fail(e))?;
        }
        Ok(first)
    }

    /// The sealed segments wholly below `index`, oldest first, and the base of the one after them.
    fn droppable(&self, index: u64) -> (Vec<Arc<Segment>>, u64) {
        let segments = self.0.segments.read();
        let count = segments.iter().take_while(|s| s.is_sealed() && s.last() < index).count();
        let count = count.min(segments.len().saturating_sub(1));
        (segments[..count].to_vec(), segments.get(count).map_or(1, |s| s.base))
    }

    /// Bytes that the log's segments take on the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.0.segments.read().iter().map(|s| s.disk_bytes()).sum()
    }
}

impl Source for Shared {
    fn refresh(&self) -> Result<(), ReadError> {
        Ok(())
    }

    fn watermarks(&self) -> Watermarks {
        self.desk.watermarks()
    }

    fn segments(&self) -> &RwLock<Vec<Arc<Segment>>> {
        &self.segments
    }

    fn scanner(&self, segment: &Segment) -> Result<Scanner, DiskError> {
        let file = self.folder.open_read(&segment.name())?;
        Ok(Scanner::new(file, self.log_id, segment.salt)
            .with_window(segment.window())
            .with_key(self.key.clone()))
    }

    fn wait(&self, index: u64, visibility: Visibility, deadline: Instant) -> bool {
        match visibility {
            Visibility::Written => self.desk.wait_written(index, deadline),
            Visibility::Synced => {
                let timeout = deadline.saturating_duration_since(Instant::now());
                self.desk.wait(index + 1, timeout).is_ok()
            }
        }
    }

    fn is_ended(&self, visibility: Visibility) -> bool {
        self.desk.is_closed() || visibility == Visibility::Synced && self.desk.failure().is_some()
    }
}
