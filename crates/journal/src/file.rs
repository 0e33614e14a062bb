//! The folder and its files with their names in every error, and whole reads and writes.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, File, FolderLock, Mapping};
use crate::error::DiskError;

/// Zeros and copies go in pieces of this size.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// What the folder itself is called in errors.
const FOLDER: &str = "";

fn error(action: &'static str, file: PathBuf) -> impl FnOnce(io::Error) -> DiskError {
    move |cause| DiskError { action, file, cause: Arc::new(cause) }
}

/// The log's folder.
#[derive(Clone)]
pub(crate) struct Folder(Arc<dyn Disk>);

impl Folder {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Folder(disk)
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.0
    }

    pub(crate) fn disk_handle(&self) -> Arc<dyn Disk> {
        self.0.clone()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    pub(crate) fn create(&self, name: &str) -> Result<LogFile, DiskError> {
        let file = self.0.create(name).map_err(error("create", self.path(name)))?;
        Ok(LogFile { file, path: self.path(name).into() })
    }

    pub(crate) fn open(&self, name: &str) -> Result<LogFile, DiskError> {
        let file = self.0.open(name).map_err(error("open", self.path(name)))?;
        Ok(LogFile { file, path: self.path(name).into() })
    }

    pub(crate) fn open_read(&self, name: &str) -> Result<LogFile, DiskError> {
        let file = self.0.open_read(name).map_err(error("open", self.path(name)))?;
        Ok(LogFile { file, path: self.path(name).into() })
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.0.rename(from, to).map_err(error("rename", self.path(from)))
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.0.remove(name).map_err(error("remove", self.path(name)))
    }

    pub(crate) fn names(&self) -> Result<Vec<String>, DiskError> {
        self.0.names().map_err(error("list", self.path(FOLDER)))
    }

    pub(crate) fn sync_names(&self) -> Result<(), DiskError> {
        self.0.sync_names().map_err(error("sync the names in", self.path(FOLDER)))
    }

    /// A file that takes a handle only while it is used.
    pub(crate) fn reopened(&self, name: &str) -> LogFile {
        let file = Arc::new(Reopened { disk: self.0.clone(), name: name.into() });
        LogFile { file, path: self.path(name).into() }
    }

    /// The lock of this name, or `None` if somebody else has it.
    pub(crate) fn lock(&self, name: &str) -> Result<Option<FolderLock>, DiskError> {
        match self.0.lock(name) {
            Ok(lock) => Ok(Some(lock)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(error("lock", self.path(name))(e)),
        }
    }
}

/// A file that is opened for each call: there may be more segments than a process may have open files.
struct Reopened {
    disk: Arc<dyn Disk>,
    name: String,
}

impl File for Reopened {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.open_read(&self.name)?.read_at(buf, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.disk.open(&self.name)?.write_at(parts, offset)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.disk.open(&self.name)?.allocate(len)
    }

    fn shorten(&self, len: u64) -> io::Result<()> {
        self.disk.open(&self.name)?.shorten(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.open(&self.name)?.sync()
    }

    fn has_name(&self) -> io::Result<bool> {
        self.disk.open_read(&self.name)?.has_name()
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.open_read(&self.name)?.len()
    }
}

/// An open file of the log.
#[derive(Clone)]
pub(crate) struct LogFile {
    file: Arc<dyn File>,
    path: Arc<Path>,
}

impl LogFile {
    /// Makes the error of an action on this file, a verb.
    pub(crate) fn error(&self, action: &'static str) -> impl FnOnce(io::Error) -> DiskError {
        error(action, self.path.to_path_buf())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    /// The same file, known by the name it has got.
    pub(crate) fn renamed(self, path: PathBuf) -> Self {
        LogFile { path: path.into(), ..self }
    }

    pub(crate) fn len(&self) -> Result<u64, DiskError> {
        self.file.len().map_err(self.error("measure"))
    }

    /// Fills `buf` as far as the file goes; how much that was.
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.error("read")(e)),
            }
        }
        Ok(done)
    }

    /// Writes all parts, one after the other. After an error any part of them may have been written.
    pub(crate) fn write(&self, mut parts: &mut [IoSlice<'_>], mut offset: u64) -> Result<(), DiskError> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.file.write_at(parts, offset) {
                Ok(0) => return Err(self.error("write")(io::ErrorKind::WriteZero.into())),
                Ok(n) => {
                    IoSlice::advance_slices(&mut parts, n);
                    offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.error("write")(e)),
            }
        }
        Ok(())
    }

    pub(crate) fn write_bytes(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        self.write(&mut [IoSlice::new(bytes)], offset)
    }

    /// Writes zeros, up to the next multiple of `piece_bytes` with each call.
    pub(crate) fn write_zeros(&self, mut from: u64, to: u64, piece_bytes: usize) -> Result<(), DiskError> {
        let zeros = vec![0; piece_bytes];
        while from < to {
            let upto = to.min((from + 1).next_multiple_of(piece_bytes as u64));
            let piece = (upto - from) as usize;
            self.write_bytes(&zeros[..piece], from)?;
            from += piece as u64;
        }
        Ok(())
    }

    pub(crate) fn allocate(&self, len: u64) -> Result<(), DiskError> {
        self.file.allocate(len).map_err(self.error("reserve space for"))
    }

    /// The file in memory, where that can be: readable from `from` on, up to `published` for now.
    pub(crate) fn map(&self, from: u64, published: u64) -> Option<Box<dyn Mapping>> {
        self.file.map(from, published)
    }

    pub(crate) fn shorten(&self, len: u64) -> Result<(), DiskError> {
        self.file.shorten(len).map_err(self.error("shorten"))
    }

    pub(crate) fn sync(&self) -> Result<(), DiskError> {
        self.file.sync().map_err(self.error("sync"))
    }

    /// An error if somebody has removed the file, or taken its end away: what is written to it is lost then, although
    /// every call succeeds.
    pub(crate) fn check(&self, len: u64) -> Result<(), DiskError> {
        let find = || self.error("find");
        let lost = |what: &str| find()(io::Error::new(io::ErrorKind::NotFound, what));
        if !self.file.has_name().map_err(find())? {
            return Err(lost("it was removed while the log is open"));
        }
        match self.file.len().map_err(find())? < len {
            true => Err(lost("it was shortened while the log is open")),
            false => Ok(()),
        }
    }
}
