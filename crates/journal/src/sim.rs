//! A disk in memory that forgets what was not synced: for tests of the log and of what is built on it.
//!
//! ```text
//!  write ──► cache ──sync──► disk          crash(seed): for each unsynced sector any of its versions,
//!  name change ──sync_names──► disk                     for each unsynced name change done or not done
//! ```
//!
//! It models the weakest disk that the log claims to survive: sectors of 512 bytes are written whole, in any
//! order, and any version a sector had since its last sync may be what is found. A failed sync marks the pages
//! clean without having written them, as Linux does. Space is what was allocated.
//!
//! A store through a [`Mapping`] is several changes of the cache, between which the machine may stop, other threads go
//! on and a sync may see what is there: the payload in two pieces, the header, and its first word.
//!
//! All calls are safe to make from any thread; the same calls and seeds give the same disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::disk::{Disk, File, FolderLock, HeaderBytes, Mapping, Window};

const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// The disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk(Arc<Machine>);

struct Machine {
    world: Mutex<World>,
    /// Wakes syncs that were paused.
    resumed: Condvar,
}

#[derive(Clone, Default)]
struct World {
    boot: u64,
    entropy: u64,
    locked: BTreeSet<String>,
    files: Vec<Content>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    name_changes: Vec<NameChange>,
    /// Files are written by calls only.
    unmapped: bool,
    faults: Faults,
    counts: Counts,
}

#[derive(Clone, Default)]
struct Content {
    cache: Vec<u8>,
    disk: Vec<u8>,
    /// Versions of each sector since the last sync.
    unsynced: BTreeMap<usize, Vec<[u8; SECTOR]>>,
}

#[derive(Clone)]
enum NameChange {
    Set(String, usize),
    Remove(String),
}

#[derive(Clone, Default)]
struct Faults {
    space: Option<u64>,
    writes: Option<ErrorKind>,
    syncs: Option<ErrorKind>,
    paused_ending: Option<String>,
    stop_after: Option<u64>,
    panics: bool,
}

/// How often the disk was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that change anything, and syncs.
    pub changes: u64,
    /// Syncs of files that were begun.
    pub syncs: u64,
}

impl SimDisk {
    /// An empty disk. Disks with the same seed give the same "random" numbers.
    pub fn new(seed: u64) -> Self {
        SimDisk::of(World { entropy: seed, boot: 1, ..World::default() })
    }

    /// As [`SimDisk::new`], with files that can be written by calls only.
    pub fn unmapped(seed: u64) -> Self {
        SimDisk::of(World { entropy: seed, boot: 1, unmapped: true, ..World::default() })
    }

    fn of(world: World) -> Self {
        SimDisk(Arc::new(Machine { world: Mutex::new(world), resumed: Condvar::new() }))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.world.lock()
    }

    /// The disk as it would be found now after a power loss: another disk, unlocked, without faults.
    pub fn crash(&self, seed: u64) -> SimDisk {
        let mut world = self.world().clone();
        let mut rng = Rng(seed);
        for file in &mut world.files {
            file.lose(&mut rng);
        }
        let mut names = std::mem::take(&mut world.durable_names);
        for change in world.name_changes.drain(..).filter(|_| rng.coin()) {
            change.apply(&mut names);
        }
        let boot = world.boot + 1;
        SimDisk::of(World { durable_names: names.clone(), names, boot, ..world.restarted() })
    }

    /// The disk as a new process would find it now if this one ended.
    pub fn kill(&self) -> SimDisk {
        SimDisk::of(self.world().clone().restarted())
    }

    /// Limits the space that files may have allocated together, in bytes.
    pub fn limit_space(&self, bytes: Option<u64>) {
        self.world().faults.space = bytes;
    }

    /// Lets each write from now on write half and fail with this error.
    pub fn fail_writes(&self, error: Option<ErrorKind>) {
        self.world().faults.writes = error;
    }

    /// Lets each sync from now on fail with this error, its pages being taken for clean.
    pub fn fail_syncs(&self, error: Option<ErrorKind>) {
        self.world().faults.syncs = error;
    }

    /// The next change panics, as a bug in whoever makes it would.
    pub fn panic_once(&self) {
        self.world().faults.panics = true;
    }

    /// Lets syncs of the files whose names have this ending wait until the answer is dropped.
    pub fn pause_syncs(&self, ending: &str) -> PausedSyncs {
        self.world().faults.paused_ending = Some(ending.into());
        PausedSyncs(self.clone())
    }

    /// Lets every call fail, and change nothing, once this many more changes were made.
    pub fn stop_after(&self, changes: u64) {
        let mut world = self.world();
        world.faults.stop_after = Some(world.counts.changes + changes);
    }

    /// How often it was called so far.
    pub fn counts(&self) -> Counts {
        self.world().counts
    }

    /// A file's bytes as a process would read them; `None` if there is no such file.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.world();
        world.names.get(name).map(|id| world.files[*id].cache.clone())
    }

    /// Replaces a file's bytes, cached and on disk, or makes it: damage from outside.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut world = self.world();
        let id = world.files.len();
        world.files.push(Content { cache: bytes.into(), disk: bytes.into(), unsynced: BTreeMap::new() });
        world.names.insert(name.into(), id);
        world.durable_names.insert(name.into(), id);
    }

    /// Takes a file away, durably: damage from outside.
    pub fn take(&self, name: &str) {
        let mut world = self.world();
        world.names.remove(name);
        world.durable_names.remove(name);
        world.name_changes.retain(|c| !matches!(c, NameChange::Set(n, _) if n == name));
    }

    /// The names, sorted.
    pub fn sorted_names(&self) -> Vec<String> {
        self.world().names.keys().cloned().collect()
    }
}

/// Syncs wait for as long as this lives.
#[must_use]
pub struct PausedSyncs(SimDisk);

impl Drop for PausedSyncs {
    fn drop(&mut self) {
        self.0.world().faults.paused_ending = None;
        self.0.0.resumed.notify_all();
    }
}

impl World {
    /// Counts a change; an error if the machine has stopped.
    fn change(&mut self) -> io::Result<()> {
        self.running()?;
        self.counts.changes += 1;
        assert!(!std::mem::take(&mut self.faults.panics), "a panic on purpose");
        Ok(())
    }

    fn running(&self) -> io::Result<()> {
        match self.faults.stop_after {
            Some(limit) if self.counts.changes >= limit => {
                Err(io::Error::other("the simulated machine stopped"))
            }
            _ => Ok(()),
        }
    }

    fn restarted(self) -> World {
        World { locked: BTreeSet::new(), faults: Faults::default(), ..self }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.running()?;
        self.names.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.name_changes.push(change);
    }

    fn is_paused(&self, id: usize) -> bool {
        let Some(ending) = &self.faults.paused_ending else { return false };
        self.names.iter().any(|(name, other)| *other == id && name.ends_with(ending))
    }

    fn space_used(&self) -> u64 {
        self.names.values().map(|id| self.files[*id].cache.len() as u64).sum()
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            NameChange::Set(name, id) => {
                // A rename is one step: the old name goes when the new one comes.
                names.retain(|_, other| other != id);
                names.insert(name.clone(), *id);
            }
            NameChange::Remove(name) => drop(names.remove(name)),
        }
    }
}

impl Content {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.cache.len() < end {
            self.cache.resize(end, 0);
        }
        self.cache[offset..end].copy_from_slice(bytes);
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            let version = self.sector(sector);
            self.unsynced.entry(sector).or_default().push(version);
        }
    }

    fn sector(&self, sector: usize) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        let held = &self.cache[sector * SECTOR..self.cache.len().min((sector + 1) * SECTOR)];
        bytes[..held.len()].copy_from_slice(held);
        bytes
    }

    fn sync(&mut self) {
        self.disk.resize(self.cache.len(), 0);
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            if let Some(version) = versions.last() {
                self.put_sector(sector, version);
            }
        }
    }

    fn put_sector(&mut self, sector: usize, version: &[u8; SECTOR]) {
        let at = sector * SECTOR;
        let end = self.disk.len().min(at + SECTOR);
        if at < end {
            self.disk[at..end].copy_from_slice(&version[..end - at]);
        }
    }

    /// Becomes what a power loss leaves.
    fn lose(&mut self, rng: &mut Rng) {
        if rng.coin() {
            self.disk.resize(self.cache.len(), 0);
        }
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            // The newest version as often as none at all; sometimes one between.
            let version = match rng.below(4) {
                0 | 1 => versions.last(),
                2 => None,
                _ => versions.get(rng.below(versions.len())),
            };
            if let Some(version) = version {
                self.put_sector(sector, version);
            }
        }
        self.cache = self.disk.clone();
    }
}

struct SimFile {
    disk: SimDisk,
    id: usize,
    writable: bool,
}

impl SimDisk {
    fn handle(&self, id: usize, writable: bool) -> Arc<dyn File> {
        Arc::new(SimFile { disk: self.clone(), id, writable })
    }
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut world = self.world();
        if world.names.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        world.change()?;
        let id = world.files.len();
        world.files.push(Content::default());
        world.change_name(NameChange::Set(name.into(), id));
        Ok(self.handle(id, true))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.handle(self.world().find(name)?, true))
    }

    fn open_read(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.handle(self.world().find(name)?, false))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        let id = world.find(from)?;
        world.change()?;
        world.change_name(NameChange::Set(to.into(), id));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world();
        world.find(name)?;
        world.change()?;
        world.change_name(NameChange::Remove(name.into()));
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let world = self.world();
        world.running()?;
        Ok(world.names.keys().cloned().collect())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut world = self.world();
        world.change()?;
        world.name_changes.clear();
        if let Some(error) = world.faults.syncs {
            return Err(error.into());
        }
        world.durable_names = world.names.clone();
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<FolderLock> {
        let mut world = self.world();
        if !world.locked.insert(name.into()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        if !world.names.contains_key(name) {
            let id = world.files.len();
            world.files.push(Content::default());
            world.names.insert(name.into(), id);
            world.durable_names.insert(name.into(), id);
        }
        drop(world);
        Ok(Box::new(SimLock(self.clone(), name.into())))
    }

    fn boot_id(&self) -> [u8; 16] {
        u128::from(self.world().boot).to_le_bytes()
    }

    fn entropy(&self) -> u64 {
        let mut world = self.world();
        world.entropy += 1;
        Rng(world.entropy).next()
    }

    fn path(&self, name: &str) -> PathBuf {
        name.into()
    }
}

struct SimLock(SimDisk, String);

impl Drop for SimLock {
    fn drop(&mut self) {
        self.0.world().locked.remove(&self.1);
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let world = self.disk.world();
        world.running()?;
        let cache = &world.files[self.id].cache;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(cache.len());
        let len = buf.len().min(cache.len() - start);
        buf[..len].copy_from_slice(&cache[start..start + len]);
        Ok(len)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        if !self.writable {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let mut bytes = parts.iter().flat_map(|p| p.iter().copied()).collect::<Vec<u8>>();
        let offset = usize::try_from(offset).map_err(|_| ErrorKind::FileTooLarge)?;
        let mut world = self.disk.world();
        world.change()?;
        let error = world.faults.writes;
        if error.is_some() {
            bytes.truncate(bytes.len() / 2);
        }
        world.files[self.id].write(&bytes, offset);
        error.map_or(Ok(bytes.len()), |e| Err(e.into()))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.change()?;
        let held = world.files[self.id].cache.len() as u64;
        let used = world.space_used() - held + len.max(held);
        if world.faults.space.is_some_and(|limit| used > limit) {
            return Err(ErrorKind::StorageFull.into());
        }
        let len = usize::try_from(len.max(held)).map_err(|_| ErrorKind::FileTooLarge)?;
        world.files[self.id].cache.resize(len, 0);
        Ok(())
    }

    fn map(&self, _from: u64, published: u64) -> Option<Box<dyn Mapping>> {
        let world = self.disk.world();
        (!world.unmapped && self.writable).then(|| {
            let rng = Rng(world.entropy);
            Box::new(SimMapping { disk: self.disk.clone(), id: self.id, published, rng }) as Box<dyn Mapping>
        })
    }

    fn shorten(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.change()?;
        let len = usize::try_from(len).map_err(|_| ErrorKind::FileTooLarge)?;
        let file = &mut world.files[self.id];
        file.cache.truncate(len);
        file.unsynced.retain(|sector, _| sector * SECTOR < len);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        world.change()?;
        world.counts.syncs += 1;
        // What is written while the call runs need not be covered by it.
        let covered = world.files[self.id].clone();
        while world.is_paused(self.id) {
            self.disk.0.resumed.wait(&mut world);
        }
        world.running()?;
        let error = world.faults.syncs;
        let file = &mut world.files[self.id];
        if let Some(error) = error {
            file.unsynced.clear();
            return Err(error.into());
        }
        file.finish_sync(covered);
        Ok(())
    }

    fn has_name(&self) -> io::Result<bool> {
        let world = self.disk.world();
        world.running()?;
        Ok(world.names.values().any(|id| *id == self.id))
    }

    fn len(&self) -> io::Result<u64> {
        let world = self.disk.world();
        world.running()?;
        Ok(world.files[self.id].cache.len() as u64)
    }
}

struct SimMapping {
    disk: SimDisk,
    id: usize,
    published: u64,
    /// Where payloads are taken apart.
    rng: Rng,
}

impl SimMapping {
    fn put(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let at = usize::try_from(at).map_err(|_| ErrorKind::FileTooLarge)?;
        let mut world = self.disk.world();
        world.change()?;
        let file = &mut world.files[self.id];
        let (end, len) = (at + bytes.len(), file.cache.len());
        if end > len.next_multiple_of(PAGE) {
            return Err(io::Error::other("it was shortened while the log is open"));
        }
        // What is stored in the page behind the end of the file is lost.
        file.write(&bytes[..len.min(end).saturating_sub(at)], at.min(len));
        Ok(())
    }
}

impl Mapping for SimMapping {
    fn store(&mut self, at: u64, header: &HeaderBytes, payload: &[&[u8]]) -> io::Result<()> {
        assert!(at >= self.published, "what is published does not change");
        let payload = payload.concat();
        let (first, second) = payload.split_at(self.rng.below(payload.len() + 1));
        let (word, rest) = header.split_at(8);
        let body = at + header.len() as u64;
        self.put(first, body)?;
        self.put(second, body + first.len() as u64)?;
        self.put(rest, at + 8)?;
        self.put(word, at)
    }

    fn publish(&mut self, end: u64) {
        assert!(end >= self.published, "what is published stays so");
        self.published = end;
    }

    fn window(&self) -> Option<Arc<Window>> {
        None
    }
}

impl Content {
    /// Makes durable what a sync that began when the file was `covered` has to make durable.
    fn finish_sync(&mut self, mut covered: Content) {
        for (sector, versions) in &covered.unsynced {
            if let Some(now) = self.unsynced.get_mut(sector) {
                now.drain(..versions.len().min(now.len()));
            }
        }
        self.unsynced.retain(|_, versions| !versions.is_empty());
        covered.sync();
        self.disk = covered.disk;
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a small generator whose whole state is the seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &Arc<dyn File>, bytes: &[u8], offset: u64) {
        assert_eq!(file.write_at(&[IoSlice::new(bytes)], offset).unwrap(), bytes.len());
    }

    #[test]
    fn what_was_synced_stays_and_the_rest_may() {
        let disk = SimDisk::new(1);
        let file = disk.create("f").unwrap();
        write(&file, &[1; 4 * SECTOR], 0);
        file.sync().unwrap();
        disk.sync_names().unwrap();
        write(&file, &[2; 2 * SECTOR], 0);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let found = disk.crash(seed).contents("f").unwrap();
            assert_eq!(found[2 * SECTOR..], [1; 2 * SECTOR]);
            seen.insert((found[0], found[SECTOR]));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(1, 1), (1, 2), (2, 1), (2, 2)]);
        assert_eq!(disk.kill().contents("f").unwrap()[..SECTOR], [2; SECTOR]);
    }

    #[test]
    fn names_may_be_lost_until_they_are_synced() {
        let disk = SimDisk::new(1);
        disk.create("a").unwrap();
        let found = |disk: &SimDisk| (0..50).map(|s| disk.crash(s).sorted_names()).collect::<Vec<_>>();
        assert!(found(&disk).contains(&vec![]) && found(&disk).contains(&vec!["a".into()]));
        disk.sync_names().unwrap();
        disk.rename("a", "b").unwrap();
        for names in found(&disk) {
            assert!(names == ["a"] || names == ["b"], "{names:?}");
        }
    }

    #[test]
    fn a_failed_sync_takes_pages_for_clean() {
        let disk = SimDisk::new(1);
        let file = disk.create("f").unwrap();
        file.sync().unwrap();
        disk.sync_names().unwrap();
        write(&file, &[7; SECTOR], 0);
        disk.fail_syncs(Some(ErrorKind::Other));
        assert!(file.sync().is_err());
        disk.fail_syncs(None);
        file.sync().unwrap();
        assert_eq!(disk.contents("f").unwrap(), [7; SECTOR]);
        for seed in 0..20 {
            assert!(disk.crash(seed).contents("f").unwrap().iter().all(|b| *b == 0));
        }
    }
}
