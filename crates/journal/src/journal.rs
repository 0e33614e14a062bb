//! The handle that everybody but the writer uses.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::disk::{Disk, RealDisk};
use crate::error::{DiskError, DropError, OpenError, ReadError, WaitError};
use crate::file::Folder;
use crate::options::Options;
use crate::reader::Reader;
use crate::recover::Recovery;
use crate::segment::Segment;
use crate::state::StateFile;
use crate::sync::Desk;
use crate::writer::Writer;

/// Called after each sync with the new durable mark, and once with the failure that ended the log.
type Callback = Arc<dyn Fn(&Result<u64, DiskError>) + Send + Sync>;

/// What the writer, the syncer and the handles share.
///
/// Lock order: `state_file`, then `segments`, then the desk's.
pub(crate) struct Shared {
    pub folder: Folder,
    pub log_id: [u8; 16],
    pub desk: Desk,
    /// Ordered by base; the last one is active. Never empty.
    pub segments: RwLock<Vec<Arc<Segment>>>,
    pub state_file: Mutex<StateFile>,
    pub callbacks: Mutex<Vec<Callback>>,
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
        let (first, next) = (self.first_index(), self.written() + 1);
        if index < first {
            return Err(ReadError::BeforeStart { index, first });
        }
        if index > next {
            return Err(ReadError::AfterEnd { index, next });
        }
        Ok(Reader::new(self.clone(), index))
    }

    /// Has everything that is written now synced as soon as possible; does not wait.
    pub fn request_sync(&self) {
        self.0.desk.request();
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
    }

    /// Whether appends can succeed. A full disk is no failure: appends say so and recover.
    pub fn health(&self) -> Health {
        match self.0.desk.failure() {
            Some(failure) => Health::Failed(failure),
            None if self.0.desk.is_closed() => Health::Closed,
            None => Health::Good,
        }
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
        for segment in gone {
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
        self.0.segments.read().iter().map(|s| s.size).sum()
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.0.folder
    }

    pub(crate) fn log_id(&self) -> [u8; 16] {
        self.0.log_id
    }

    /// The segment in which this written entry lies, unless it was dropped.
    pub(crate) fn segment_with(&self, index: u64) -> Option<Arc<Segment>> {
        let segments = self.0.segments.read();
        let after = segments.partition_point(|s| s.base <= index);
        segments.get(after.checked_sub(1)?).cloned()
    }
}
