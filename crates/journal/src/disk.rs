//! What the log needs from the world below it: one folder of files, and a little of the machine.
//!
//! [`RealDisk`] is the file system. The `sim` feature adds a disk in memory that loses what was not synced.
//!
//! Durability, as the log relies on it: bytes are on disk once [`File::sync`] returned; a name made, moved or
//! removed is on disk once [`Disk::sync_names`] returned; before that any subset may be, in any order.

mod real;

use std::any::Any;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

pub use crate::frame::HeaderBytes;
pub use crate::map::Window;
pub use real::RealDisk;

/// Held for as long as the folder is locked; dropping it gives the folder free.
pub type FolderLock = Box<dyn Any + Send>;

/// One folder of files without subfolders, named by plain names.
pub trait Disk: Send + Sync {
    /// Makes a file that does not exist yet, for reading and writing.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens a file for reading only.
    fn open_read(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Gives a file another name in one step; a file that had that name is gone.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a name. Handles that are open stay good.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// All names, in no order.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Makes the names durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Locks this name against everybody else; [`io::ErrorKind::WouldBlock`] if it is locked. The file of this
    /// name is made if need be and stays.
    fn lock(&self, name: &str) -> io::Result<FolderLock>;
    /// Identifies this run of the machine: what was written but not synced is lost only if it changes.
    fn boot_id(&self) -> [u8; 16];
    /// A number that nobody can guess, different each time.
    fn entropy(&self) -> u64;
    /// The name as an operator would look for it.
    fn path(&self, name: &str) -> PathBuf;
}

/// An open file.
pub trait File: Send + Sync {
    /// Reads at an offset into `buf`; how much was read, 0 only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes the parts, one after the other, at an offset; how much was written.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Gives the file this length, with its space reserved; what is new reads as zeros.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Lets the file be written in memory, and be read there by this process: from `from` on, and after `published`
    /// (bytes from the file's beginning), up to which it is written already. `None` where a store could fail for lack of
    /// space, or would not be seen by everybody who reads the file: it is written by [`File::write_at`] then.
    fn map(&self, _from: u64, _published: u64) -> Option<Box<dyn Mapping>> {
        None
    }
    /// Takes the end of the file away.
    fn shorten(&self, len: u64) -> io::Result<()>;
    /// Makes the file's bytes and length durable.
    fn sync(&self) -> io::Result<()>;
    /// Whether it still has a name in the folder it was made in, or any other.
    fn has_name(&self) -> io::Result<bool>;
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// True if it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A file that is written in memory. There is one for a file at a time; what it has stored is in the file for all who
/// read it, and is made durable by [`File::sync`] like everything that is written.
pub trait Mapping: Send {
    /// Stores a frame at an offset, a multiple of eight at or after what is published and with room for the frame: its
    /// payload, its header, and last the header's first word, without which it is none. So whoever reads the file finds
    /// no frame or a whole one. An error means that the file is not what it was; nothing more can be written.
    fn store(&mut self, at: u64, header: &HeaderBytes, payload: &[&[u8]]) -> io::Result<()>;
    /// Lets readers in the process see what lies before `end`. That never changes any more.
    fn publish(&mut self, end: u64);
    /// What readers in the process read in; if there is none they read the file.
    fn window(&self) -> Option<Arc<Window>>;
}
