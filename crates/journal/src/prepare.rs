//! Making segment files: under a temporary name, with all space reserved and the header synced, so that giving
//! one its name is all that is left to do when the active segment is full.
//!
//! One spare of the usual size is made ahead by a thread of its own once the active segment is half full. Its
//! space is written with zeros: syncs then need not change the file system's own records, and appends in memory find
//! every page of it in the cache. The first segment of a log is made when the log is, in the same way and smaller, so that
//! this takes no time to speak of. A segment for one large entry is made when it is needed, its space only reserved.
//!
//! What is synced before a file gets its name is its space and its header: reserved space reads as zeros whether or not
//! zeros were written. Those are synced once the spare has lain for a while. Appends that use up a segment sooner
//! would wait for that, and write over the zeros before the disk has them.
//!
//! The pages are not put into the page table ahead (`MADV_POPULATE_WRITE`): that marks all of them as changed, so that
//! the next sync writes the whole segment once more, and each sync undoes it for what it has written. Instead the zeros
//! are written in pieces of [`FOLIO_BYTES`]: the kernel keeps what one call wrote together, and the first store into
//! a piece maps all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::disk::Mapping;
use crate::error::DiskError;
use crate::file::{Folder, LogFile};
use crate::segment::{FRAMES_AT, Header, TEMP_ENDING};

/// Zeros are written in pieces of this size. With larger ones fewer stores meet a page that is not mapped, but a sync
/// after a small store has to write a whole piece: at 64 KiB it takes half as long again as after a write of the same bytes,
/// at 1 MiB several times as long. Entries that ask for a sync are therefore written by a call.
const FOLIO_BYTES: usize = 64 << 10;

/// What a segment file is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The first segment of a log.
    First,
    /// The one after the active one.
    Spare,
    /// One entry that no other segment has room for: written in a few calls, so it need not be in memory.
    Large,
}

impl Role {
    /// The file's name until it gets its own. Files of different roles may be made at the same time.
    fn temp_name(self) -> String {
        let name = match self {
            Role::First => "first",
            Role::Spare => "spare",
            Role::Large => "large",
        };
        format!("{name}{TEMP_ENDING}")
    }
}

/// Most bytes of the first segment of a log.
const FIRST_BYTES_MAX: u64 = 4 << 20;

/// How long a spare lies before its zeros are synced.
const ZEROS_SYNC_AFTER: Duration = Duration::from_millis(100);

/// A segment file that has no name yet.
pub(crate) struct Spare {
    temp_name: String,
    header: Header,
    file: LogFile,
    mapping: Option<Box<dyn Mapping>>,
}

/// A segment file that has its name, and is in memory if that can be.
pub(crate) struct Ready {
    pub header: Header,
    pub file: LogFile,
    pub mapping: Option<Box<dyn Mapping>>,
}

impl Spare {
    /// Makes a segment file of that size; the first one of a log may be smaller.
    pub(crate) fn make(folder: &Folder, role: Role, log_id: [u8; 16], size: u64) -> Result<Self, DiskError> {
        let usual = size;
        let size = if role == Role::First { size.min(FIRST_BYTES_MAX) } else { size };
        let temp_name = role.temp_name();
        let file = folder.create(&temp_name)?;
        let header = Header { log_id, salt: folder.disk().entropy(), size };
        let mut spare = Spare { temp_name, header, file, mapping: None };
        match spare.write(role, usual) {
            Ok(()) => Ok(spare),
            Err(e) => {
                spare.discard(folder)?;
                Err(e)
            }
        }
    }

    /// `usual`: bytes of the segments that follow.
    fn write(&mut self, role: Role, usual: u64) -> Result<(), DiskError> {
        self.file.allocate(usual)?; // for a shorter one, too: a disk without space for the next is found out now
        if self.header.size < usual {
            self.file.shorten(self.header.size)?;
        }
        self.file.write_bytes(&self.header.encode(), 0)?;
        self.file.sync()?;
        if role != Role::Large {
            self.file.write_zeros(FRAMES_AT, self.header.size, FOLIO_BYTES)?;
            self.mapping = self.file.map(FRAMES_AT, FRAMES_AT);
        }
        Ok(())
    }

    /// Gives the file its name; a file that had it is gone. The name is not yet durable.
    pub(crate) fn activate(self, folder: &Folder, name: &str) -> Result<Ready, DiskError> {
        if let Err(e) = folder.rename(&self.temp_name, name) {
            self.discard(folder)?;
            return Err(e);
        }
        let Spare { header, file, mapping, .. } = self;
        Ok(Ready { header, file: file.renamed(folder.path(name)), mapping })
    }

    /// Removes the file.
    pub(crate) fn discard(self, folder: &Folder) -> Result<(), DiskError> {
        folder.remove(&self.temp_name)
    }
}

/// The thread that makes the spare.
pub(crate) struct Preparer {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
    is_short: Arc<AtomicBool>,
}

#[derive(Default)]
struct Desk {
    state: Mutex<DeskState>,
    changed: Condvar,
}

#[derive(Default)]
struct DeskState {
    /// Asked for and not yet answered.
    wanted: bool,
    made: Option<Result<Spare, DiskError>>,
    stop: bool,
}

impl Preparer {
    /// Starts the thread; `size` is the usual size of a segment.
    pub(crate) fn start(folder: Folder, log_id: [u8; 16], size: u64) -> std::io::Result<Self> {
        let desk = Arc::new(Desk::default());
        let is_short = Arc::new(AtomicBool::new(false));
        let (shared, short) = (desk.clone(), is_short.clone());
        let thread = std::thread::Builder::new()
            .name("journal-prepare".into())
            .spawn(move || shared.run(&folder, log_id, size, &short))?;
        Ok(Preparer { desk, thread: Some(thread), is_short })
    }

    /// True while the last spare asked for found no space.
    pub(crate) fn is_short(&self) -> Arc<AtomicBool> {
        self.is_short.clone()
    }

    /// Asks for the spare unless it is there or under way. Never waits.
    pub(crate) fn want(&self) {
        let mut state = self.desk.state.lock();
        if !state.wanted && !matches!(state.made, Some(Ok(_))) {
            (state.wanted, state.made) = (true, None);
            self.desk.changed.notify_all();
        }
    }

    /// Takes the spare, waiting until it is made. After an error it is tried again.
    pub(crate) fn take(&self) -> Result<Spare, DiskError> {
        self.want();
        let mut state = self.desk.state.lock();
        loop {
            match state.made.take() {
                Some(made) => {
                    self.desk.changed.notify_all();
                    return made;
                }
                None => self.desk.changed.wait(&mut state),
            }
        }
    }

    /// Ends the thread and removes a spare that was not used.
    pub(crate) fn stop(&mut self, folder: &Folder) -> Result<(), DiskError> {
        self.end();
        match self.desk.state.lock().made.take() {
            Some(Ok(spare)) => spare.discard(folder),
            Some(Err(_)) | None => Ok(()),
        }
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.desk.state.lock().stop = true;
        self.desk.changed.notify_all();
        if thread.join().is_err() {
            tracing::error!("the thread that prepares segments panicked");
        }
    }
}

/// Where the log could not be opened. A spare that was made stays until the next opening.
impl Drop for Preparer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Desk {
    fn run(&self, folder: &Folder, log_id: [u8; 16], size: u64, is_short: &AtomicBool) {
        while self.wait_for_order() {
            let made = Spare::make(folder, Role::Spare, log_id, size);
            is_short.store(made.as_ref().is_err_and(DiskError::is_no_space), Ordering::Release);
            if let Err(e) = &made {
                tracing::warn!(error = %e, "no spare segment");
            }
            // A handle of its own, before the file gets another name: an error of this sync must not be missing from the
            // syncs of what is appended, and the kernel tells it once for each time that the file was opened.
            let zeros = made.as_ref().ok().and_then(|spare| folder.open(&spare.temp_name).ok());
            {
                let mut state = self.state.lock();
                state.wanted = false;
                state.made = Some(made);
                self.changed.notify_all();
            }
            if let Some(zeros) = zeros.filter(|_| self.stays(ZEROS_SYNC_AFTER))
                && let Err(error) = zeros.sync()
            {
                tracing::warn!(%error, "a spare segment cannot be synced");
            }
        }
    }

    /// True if the spare is still there after this time, and the thread has nothing else to do.
    fn stays(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let deadline = Instant::now() + time;
        while matches!(state.made, Some(Ok(_))) && !state.stop {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return matches!(state.made, Some(Ok(_))) && !state.stop;
            }
        }
        false
    }

    fn wait_for_order(&self) -> bool {
        let mut state = self.state.lock();
        while !state.wanted && !state.stop {
            self.changed.wait(&mut state);
        }
        !state.stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    #[test]
    fn the_thread_ends_with_its_owner() {
        let preparer = Preparer::start(Folder::new(Arc::new(SimDisk::new(1))), [1; 16], 16 << 10).unwrap();
        preparer.want();
        let desk = Arc::downgrade(&preparer.desk);
        drop(preparer);
        assert!(desk.upgrade().is_none());
    }
}
