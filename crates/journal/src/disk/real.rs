//! A folder of the file system.

use std::fs;
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::TryRng;
use rand::rngs::SysRng;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Statx, StatxFlags};
use rustix::io::Errno;

use super::{Disk, File, FolderLock, Mapping};

/// Most parts in one vectored write (`IOV_MAX` on Linux).
const PARTS_MAX: usize = 1024;
/// Zeros are written in pieces of this size where space cannot be reserved otherwise.
const ZERO_PIECE: usize = 256 << 10;

/// How long a held lock is waited for. A process that starts another holds its locks twice until the other has
/// replaced its program, so a lock that was just given back can seem held for a moment.
const LOCK_WAIT: Duration = Duration::from_millis(300);
const LOCK_STEP: Duration = Duration::from_millis(10);

/// A folder of the file system. Made if it does not exist.
pub struct RealDisk {
    dir: PathBuf,
    /// Open for syncing the names in it.
    handle: fs::File,
}

impl RealDisk {
    /// Opens a folder, making it and its parents where they do not exist. Its name and theirs are on disk then, also if
    /// somebody has made it a moment ago.
    pub fn new(dir: &Path) -> io::Result<Self> {
        make_dir(dir)?;
        RealDisk::existing(dir)
    }

    /// Opens a folder that exists.
    pub fn existing(dir: &Path) -> io::Result<Self> {
        crate::map::refuse_beyond_file_limit();
        Ok(RealDisk { dir: dir.to_owned(), handle: fs::File::open(dir)? })
    }
}

/// Makes a folder, and before it its parent if need be, and syncs its name there.
fn make_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Ok(()) => sync_name(dir),
        Err(e) if e.kind() == ErrorKind::AlreadyExists && dir.is_dir() => match sync_name(dir) {
            // In a folder that may not be read or written it was not made just now.
            Err(e) if CANNOT_SYNC.contains(&e.kind()) => Ok(()),
            synced => synced,
        },
        Err(e) if e.kind() == ErrorKind::NotFound => {
            make_dir(dir.parent().ok_or(e)?)?;
            fs::create_dir(dir)?;
            sync_name(dir)
        }
        Err(e) => Err(e),
    }
}

const CANNOT_SYNC: [ErrorKind; 4] = [
    ErrorKind::PermissionDenied,
    ErrorKind::ReadOnlyFilesystem,
    ErrorKind::InvalidInput,
    ErrorKind::Unsupported,
];

/// Makes a folder's name durable.
fn sync_name(dir: &Path) -> io::Result<()> {
    match dir.parent() {
        Some(parent) if parent.as_os_str().is_empty() => fs::File::open(".")?.sync_all(),
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open_read(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(RealFile(fs::File::open(self.path(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        // A name that is not UTF-8 is none of ours.
        fs::read_dir(&self.dir)?
            .map(|entry| Ok(entry?.file_name().into_string().ok()))
            .filter_map(Result::transpose)
            .collect()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<FolderLock> {
        let file = open_lock(&self.path(name))?;
        let until = Instant::now() + LOCK_WAIT;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_STEP),
                locked => {
                    locked?;
                    return Ok(Box::new(file));
                }
            }
        }
    }

    fn boot_id(&self) -> [u8; 16] {
        // Where the kernel gives none, every start counts as one after a power loss: the safe side.
        boot_id_of_kernel().unwrap_or_else(rand::random)
    }

    fn entropy(&self) -> u64 {
        // From the system each time: what a process has in its memory is the same after a fork, or when its machine was
        // set back to a snapshot.
        SysRng.try_next_u64().unwrap_or_else(|error| {
            tracing::warn!(%error, "the system has no random bytes");
            rand::random()
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Who may only read can ask for the lock too: the kernel does not mind how the file was opened.
fn open_lock(path: &Path) -> io::Result<fs::File> {
    match fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path) {
        Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            fs::File::open(path).or(Err(e))
        }
        opened => opened,
    }
}

/// The kernel's boot id (random(4): a UUID, made anew at each boot).
fn boot_id_of_kernel() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    Some(u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?.to_be_bytes())
}

struct RealFile(fs::File);

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(&self.0, &parts[..parts.len().min(PARTS_MAX)], offset)?)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(&self.0, self.len()?, len),
            Err(e) => Err(e.into()),
        }
    }

    fn map(&self, from: u64, published: u64) -> Option<Box<dyn Mapping>> {
        match map(&self.0, from, published) {
            Ok(mapping) => mapping,
            Err(error) => {
                tracing::debug!(%error, "a file is written by calls, because it cannot be mapped");
                None
            }
        }
    }

    fn shorten(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn has_name(&self) -> io::Result<bool> {
        Ok(ask(&self.0, StatxFlags::NLINK)?.stx_nlink > 0)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(ask(&self.0, StatxFlags::SIZE)?.stx_size)
    }
}

/// Asks for one property of a file. Who asks for its times too, as `metadata` does, has the kernel give each later write a
/// time of its own, which makes the next sync take a third longer (multigrain timestamps, Linux 6.13).
fn ask(file: &fs::File, what: StatxFlags) -> io::Result<Statx> {
    Ok(rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, what)?)
}

/// File systems on which a store in memory needs no space that the file does not have already, and everybody sees it:
/// ext4 and tmpfs. ext2 and ext3 have ext4's number, but cannot reserve space, and so are never mapped. Those that write
/// elsewhere instead of over what there is (Btrfs, ZFS, F2FS), those of other machines and those made of others are not
/// among them; nor is XFS, where a file may share its blocks with a copy that was made of it at any time.
const STORES_IN_PLACE: [rustix::fs::FsWord; 2] = [0xef53, 0x0102_1994];

fn map(file: &fs::File, from: u64, published: u64) -> io::Result<Option<Box<dyn Mapping>>> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    if !STORES_IN_PLACE.contains(&kind) {
        return Ok(None);
    }
    let len = file.metadata()?.len();
    // Also of a file that was made before, and may have been copied with holes since.
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len)?;
    let writer = crate::map::map(file, len, from, published)?;
    Ok(writer.map(|writer| Box::new(writer) as Box<dyn Mapping>))
}

/// Reserves space on a file system that cannot do it in one call.
fn write_zeros(file: &fs::File, mut from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; ZERO_PIECE];
    while from < to {
        let piece = usize::try_from(to - from).unwrap_or(ZERO_PIECE).min(ZERO_PIECE);
        file.write_all_at(&zeros[..piece], from)?;
        from += piece as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_its_folder_and_locks_it_once() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        let first = RealDisk::new(&dir).unwrap();
        let second = RealDisk::new(&dir).unwrap();
        let lock = first.lock("lock").unwrap();
        assert_eq!(second.lock("lock").map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(lock);
        second.lock("lock").unwrap();
    }

    #[test]
    fn more_parts_than_one_write_takes() {
        let temp = tempfile::tempdir().unwrap();
        let file = RealDisk::new(temp.path()).unwrap().create("f").unwrap();
        let parts: Vec<_> = (0..3000).map(|_| IoSlice::new(b"ab")).collect();
        assert_eq!(file.write_at(&parts, 0).unwrap(), 2 * PARTS_MAX);
        file.allocate(10_000).unwrap();
        assert_eq!(file.len().unwrap(), 10_000);
    }

    #[test]
    fn the_boot_id_stays() {
        assert!(boot_id_of_kernel().is_some());
        assert_eq!(boot_id_of_kernel(), boot_id_of_kernel());
    }
}
