//! The bytes of a segment file in memory. The only unsafe code of the crate.
//!
//! ```text
//!   0        from                    published                         len
//!   │ no bytes │ any number of readers: │ one writer: stores, and nobody  │
//!   │ are shown│ shared, never change   │ looks                           │
//! ```
//!
//! Invariants
//! * There is one [`WindowWriter`] for a [`Window`]; it stores only at or after `published`, which only grows.
//! * A `Window` shows bytes only between `from` and `published`. A reader that has loaded `published` (acquire) sees all
//!   that was stored before it was moved (release).
//! * Nobody changes the file between `from` and `published` while it is mapped. The log itself shortens it behind
//!   `published` only, when it is sealed. A tailer's window may outlive the writer and its lock: whoever opens the log then
//!   writes what is published anew as it is, and otherwise behind it. Only a repair that gives up damaged entries changes
//!   more, and whoever else writes to the file.
//!
//! A page that the kernel cannot give (somebody else has shortened the file, the disk cannot be read, or a store needs space
//! and there is none) is a signal, SIGBUS. It is made an error: the handler puts a page of zeros in the place and marks the
//! window as lost, so the store goes on, is then refused and ends the log. A reader finds zeros: no checksum accepts them,
//! and what was checked before is refused if the window is lost once it has been read ([`Window::is_lost`]). Only bytes that
//! a reader keeps borrowed beyond that can become zeros while it looks at them, which Rust does not allow for: who reads
//! files that others may shorten copies the bytes (`Tailer::read`). Where the fault is not in a window whoever handled the
//! signal before handles it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::disk::Mapping;
use crate::frame::HeaderBytes;

/// Most windows of a process. Beyond it files are written and read by calls.
const WINDOWS_MAX: usize = 256;

/// What of a file was published, in memory.
pub struct Window {
    start: NonNull<u8>,
    len: u64,
    from: u64,
    published: AtomicU64,
    /// There is no writer any more.
    complete: AtomicBool,
    watch: Watch,
    /// Gives the memory back when the window goes; after `watch`, whose addresses are no longer its own then.
    _memory: Memory,
}

enum Memory {
    File(#[expect(dead_code, reason = "held until the window goes")] MmapRaw),
    #[cfg(test)]
    Heap(#[expect(dead_code, reason = "held until the window goes")] tests::Heap),
}

// SAFETY: the pointer is to memory that the window owns and that no thread is tied to. `bytes` gives access only to what
// does not change any more, `WindowWriter` to the rest only through `&mut`.
unsafe impl Send for Window {}
// SAFETY: as above; `published` orders the writer's stores before the readers' loads.
unsafe impl Sync for Window {}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({} of {} bytes)", self.published.load(Ordering::Relaxed), self.len)
    }
}

/// Maps a file of `len` bytes, all of them on allocated blocks. What lies between `from` and `published` can be read,
/// what comes after is written through the answer. `None` if the process has too many windows.
pub(crate) fn map(file: &File, len: u64, from: u64, published: u64) -> io::Result<Option<WindowWriter>> {
    let size = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let raw = MmapOptions::new().len(size).map_raw(file)?;
    let start = NonNull::new(raw.as_mut_ptr()).ok_or(io::ErrorKind::InvalidInput)?;
    let Some(watch) = Watch::start(start.as_ptr() as usize, size)? else { return Ok(None) };
    Ok(Some(WindowWriter::new(start, len, from, published, watch, Memory::File(raw))))
}

impl Window {
    /// True if these bytes of the file can be shown. Once they can they always can.
    pub(crate) fn shows(&self, range: Range<u64>) -> bool {
        self.from <= range.start && range.start <= range.end && range.end <= self.published()
    }

    /// Bytes of the file; `None` unless all of them can be shown.
    pub(crate) fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        if !self.shows(range.clone()) {
            return None;
        }
        // SAFETY: the range lies in the mapping, because `published` never passes `len`. Its bytes are initialised, as a
        // file's are, and nobody writes to them any more: the writer stores at or after `published` only, and the module's
        // third invariant is about everybody else. Where that is broken from outside a page may become zeros, but it stays
        // readable: no pointer or length is ever taken from these bytes, and `is_lost` tells. The slice cannot outlive the
        // window, which owns the mapping.
        Some(unsafe {
            let first = self.start.as_ptr().add(range.start as usize);
            std::slice::from_raw_parts(first, (range.end - range.start) as usize)
        })
    }

    /// Where the bytes end that are shown.
    pub(crate) fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// True once nobody writes to it any more, so that no more will be shown.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// True once a page of the file could not be had. It does not become good again.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.watch.is_lost()
    }

    /// The error of a window that is lost.
    pub(crate) fn loss() -> io::Error {
        io::Error::other(
            "it was shortened while the log is open, or the disk cannot read it, or there is no space for it",
        )
    }
}

/// Writes what is not published yet. There is one for a window.
pub(crate) struct WindowWriter {
    window: Arc<Window>,
    /// Where the published bytes end: only the writer moves it, so it need not be loaded.
    published: u64,
}

impl WindowWriter {
    fn new(
        start: NonNull<u8>,
        len: u64,
        from: u64,
        published: u64,
        watch: Watch,
        memory: Memory,
    ) -> WindowWriter {
        assert!(from <= published && published <= len, "a window of {len} bytes from {from} to {published}");
        let (shown, complete) = (published.into(), false.into());
        let window = Window { start, len, from, published: shown, complete, watch, _memory: memory };
        WindowWriter { window: Arc::new(window), published }
    }
}

impl Drop for WindowWriter {
    fn drop(&mut self) {
        self.window.complete.store(true, Ordering::Release);
    }
}

impl Mapping for WindowWriter {
    #[inline]
    fn store(&mut self, at: u64, header: &HeaderBytes, payload: &[&[u8]]) -> io::Result<()> {
        let len = payload.iter().fold(header.len() as u64, |sum, part| sum + part.len() as u64);
        let room = self.window.len - self.published;
        let fits = at.checked_sub(self.published).is_some_and(|skip| skip <= room && len <= room - skip);
        assert!(fits && at.is_multiple_of(8), "a frame of {len} bytes at {at} of {}", self.window.len);
        let (word, rest) = header.split_first_chunk::<8>().expect("a header is longer than a word");
        // SAFETY: the frame lies in the mapping and after what is published, as was checked just now. Nobody else accesses
        // these bytes: there is one writer, used through `&mut`, and windows show what is published only. The parts are
        // borrowed, so they are no part of what is written to. The first word is aligned: mappings begin at a page, and
        // `at` is a multiple of eight.
        unsafe {
            let first = self.window.start.as_ptr().add(at as usize);
            let mut to = first.add(header.len());
            for part in payload {
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
            std::ptr::copy_nonoverlapping(rest.as_ptr(), first.add(word.len()), rest.len());
            AtomicU64::from_ptr(first.cast()).store(u64::from_ne_bytes(*word), Ordering::Release);
        }
        match self.window.is_lost() {
            true => Err(Window::loss()),
            false => Ok(()),
        }
    }

    #[inline]
    fn publish(&mut self, end: u64) {
        assert!((self.published..=self.window.len).contains(&end), "published: {} to {end}", self.published);
        self.published = end;
        self.window.published.store(end, Ordering::Release);
    }

    fn window(&self) -> Option<Arc<Window>> {
        Some(self.window.clone())
    }
}

/// Addresses whose faults are told.
struct Watch(usize);

/// A place in the table that the signal handler reads. A place that is free has no end.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
    taken: AtomicBool,
    lost: AtomicBool,
}

static PLACES: [Place; WINDOWS_MAX] = [const {
    Place {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        taken: AtomicBool::new(false),
        lost: AtomicBool::new(false),
    }
}; WINDOWS_MAX];

impl Watch {
    /// Watches addresses; `None` if so many are watched already.
    fn start(start: usize, len: usize) -> io::Result<Option<Watch>> {
        signal::install()?;
        let free = |place: &Place| !place.taken.swap(true, Ordering::AcqRel);
        let Some(which) = PLACES.iter().position(free) else { return Ok(None) };
        let place = &PLACES[which];
        place.lost.store(false, Ordering::SeqCst);
        place.start.store(start, Ordering::SeqCst);
        place.end.store(start + len, Ordering::SeqCst);
        Ok(Some(Watch(which)))
    }

    #[inline]
    fn is_lost(&self) -> bool {
        PLACES[self.0].lost.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        PLACES[self.0].end.store(0, Ordering::SeqCst);
        PLACES[self.0].taken.store(false, Ordering::Release);
    }
}

pub(crate) use signal::refuse_beyond_file_limit;

#[cfg(not(miri))]
mod signal {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Once, OnceLock};

    use super::PLACES;

    /// Who handled the signal before.
    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
    static PAGE: AtomicUsize = AtomicUsize::new(0);

    /// Installs the handler, once for the process.
    pub(super) fn install() -> io::Result<()> {
        static DONE: parking_lot::Mutex<bool> = parking_lot::Mutex::new(false);
        let mut done = DONE.lock();
        if *done {
            return Ok(());
        }
        // SAFETY: a question without conditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE.store(usize::try_from(page).map_err(|_| io::Error::last_os_error())?, Ordering::Relaxed);
        // SAFETY: the structures are plain data, for which zeros are a value, and live through the calls. The handler has
        // the type that SA_SIGINFO asks for, and calls only what may be called while a signal is handled.
        unsafe {
            let mut previous: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut previous) != 0 {
                return Err(io::Error::last_os_error());
            }
            let ours = ours(PREVIOUS.get_or_init(|| previous));
            if libc::sigaction(libc::SIGBUS, &ours, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        *done = true;
        Ok(())
    }

    /// Has a write beyond the process's limit of a file's size (`ulimit -f`) be an error, and not the end of the process,
    /// unless somebody has the signal already.
    pub(crate) fn refuse_beyond_file_limit() {
        static DONE: Once = Once::new();
        // SAFETY: the structure is plain data, for which zeros are a value, and lives through the call. To ignore a signal
        // no code of ours is called.
        DONE.call_once(|| unsafe {
            let mut present: libc::sigaction = std::mem::zeroed();
            let is_known = libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &mut present) == 0;
            if is_known && present.sa_sigaction == libc::SIG_DFL {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            }
        });
    }

    /// What is installed, in the place of `previous`.
    fn ours(previous: &libc::sigaction) -> libc::sigaction {
        // SAFETY: the structure is plain data, for which zeros are a value.
        let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
        ours.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        ours.sa_mask = previous.sa_mask;
        ours
    }

    extern "C" fn handle(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid `info`; faults, and only they, have a positive code and an address.
        let fault = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
        if !fault.is_some_and(replace_page) {
            pass_on(number, info, context, fault.is_some());
        }
    }

    /// Puts zeros where a window's page is missing. False if the address is in no window.
    fn replace_page(at: usize) -> bool {
        let mut found = false;
        for place in &PLACES {
            let end = place.end.load(Ordering::SeqCst);
            let start = place.start.load(Ordering::SeqCst);
            // A place that changes meanwhile is none with this address: a window with it is in use, so it stays.
            if (start..end).contains(&at) && end == place.end.load(Ordering::SeqCst) {
                place.lost.store(true, Ordering::SeqCst);
                found = true;
            }
        }
        if !found {
            return false;
        }
        let page = PAGE.load(Ordering::Relaxed);
        // SAFETY: the page belongs to a window's mapping, which is in use and so stays. Nothing can be read in it, so
        // nobody misses what it had; replacing it in one call is what mmap does with MAP_FIXED. It is a bare system call,
        // so it may be made while a signal is handled.
        let put = unsafe {
            libc::mmap(
                (at / page * page) as *mut libc::c_void,
                page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        put != libc::MAP_FAILED
    }

    /// Has the signal handled as it was before. One that was sent, and is no fault, may be ignored and must not change
    /// who handles the next one.
    fn pass_on(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, is_fault: bool) {
        let Some(previous) = PREVIOUS.get() else { return };
        // SAFETY: `previous` is what the system had; the type of its handler follows from its flags. Where there was none
        // the default comes back, which ends the process: the instruction that failed is carried out again, or the signal
        // that was sent comes once more as soon as this handler has returned.
        unsafe {
            match previous.sa_sigaction {
                libc::SIG_IGN if !is_fault => {}
                libc::SIG_DFL | libc::SIG_IGN => {
                    let mut default: libc::sigaction = std::mem::zeroed();
                    default.sa_sigaction = libc::SIG_DFL;
                    libc::sigaction(number, &default, std::ptr::null_mut());
                    if !is_fault {
                        libc::raise(number);
                    }
                }
                handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                    std::mem::transmute::<usize, Handler>(handler)(number, info, context);
                }
                handler => std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(number),
            }
            if !is_fault && previous.sa_sigaction > libc::SIG_IGN {
                // Rust's own handler takes every signal for a fault, and gives the place up.
                libc::sigaction(number, &ours(previous), std::ptr::null_mut());
            }
        }
    }
}

#[cfg(miri)]
mod signal {
    pub(super) fn install() -> std::io::Result<()> {
        Ok(())
    }

    pub(crate) fn refuse_beyond_file_limit() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 1 << 12;

    pub(super) struct Heap(*mut [AtomicU64]);

    impl Drop for Heap {
        fn drop(&mut self) {
            // SAFETY: made by `Box::into_raw`, and given back once.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }

    /// A window on memory without a file: what Miri can follow.
    fn on_heap(from: u64, published: u64) -> WindowWriter {
        let memory = Box::into_raw((0..LEN / 8).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>());
        let start = NonNull::new(memory.cast()).unwrap();
        let watch = Watch::start(start.as_ptr() as usize, LEN as usize).unwrap().unwrap();
        WindowWriter::new(start, LEN, from, published, watch, Memory::Heap(Heap(memory)))
    }

    fn header(len: u8) -> HeaderBytes {
        let mut header = [len; 64];
        header[0] = 1;
        header
    }

    #[test]
    fn only_what_is_published_is_shown() {
        let mut writer = on_heap(64, 128);
        let window = writer.window().unwrap();
        writer.store(128, &header(9), &[b"ab", b"", b"cde"]).unwrap();
        for range in [0..8, 63..65, 64..129, 128..192, 129..129, LEN..LEN + 1, u64::MAX - 1..u64::MAX] {
            assert_eq!(window.bytes(range.clone()), None, "{range:?}");
        }
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = 120..70;
        assert_eq!(window.bytes(reversed), None);
        assert_eq!(window.bytes(64..128), Some(&[0; 64][..]));
        writer.publish(208);
        assert_eq!(window.bytes(128..192), Some(&header(9)[..]));
        assert_eq!(window.bytes(192..208), Some(&b"abcde\0\0\0\0\0\0\0\0\0\0\0"[..]));
        drop(writer);
        assert_eq!(window.bytes(192..194), Some(&b"ab"[..]), "a window outlives its writer");
    }

    #[test]
    fn frames_that_do_not_fit_are_refused() {
        let refused = |at: u64, len: usize| {
            let mut writer = on_heap(0, 128);
            std::panic::catch_unwind(move || writer.store(at, &header(1), &[&vec![1; len]])).is_err()
        };
        assert!(!refused(128, LEN as usize - 192) && !refused(LEN - 64, 0));
        assert!(refused(120, 0), "before what is published");
        assert!(refused(129, 0), "not aligned");
        assert!(refused(128, LEN as usize - 191) && refused(LEN - 56, 0) && refused(u64::MAX - 7, 0));
        for end in [127, LEN + 1] {
            let mut writer = on_heap(0, 128);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| writer.publish(end))).is_err());
        }
    }

    /// Readers that look all the time find whole frames only.
    #[test]
    fn one_writes_and_others_read() {
        let mut writer = on_heap(0, 0);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let window = writer.window().unwrap();
                std::thread::spawn(move || {
                    let mut at = 0;
                    while at < LEN {
                        let Some(frame) = window.bytes(at..at + 128) else {
                            std::thread::yield_now();
                            continue;
                        };
                        let number = (at / 128) as u8;
                        assert_eq!(frame[..64], header(number));
                        assert_eq!(frame[64..], [number; 64]);
                        at += 128;
                    }
                })
            })
            .collect();
        for at in (0..LEN).step_by(128) {
            let number = (at / 128) as u8;
            writer.store(at, &header(number), &[&[number; 30], &[number; 34]]).unwrap();
            writer.publish(at + 128);
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }

    #[test]
    fn places_are_used_again() {
        for _ in 0..2 * WINDOWS_MAX {
            assert!(!on_heap(0, 0).window.is_lost());
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn a_file_that_is_shortened_is_an_error() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN).unwrap();
        let mut writer = map(&file, LEN, 0, 0).unwrap().unwrap();
        let mut other = map(&file, LEN, 0, 0).unwrap().unwrap();
        writer.store(0, &header(1), &[b"abc"]).unwrap();
        writer.publish(80);
        let mut seen = [0; 67];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!((seen[..64].to_vec(), &seen[64..]), (header(1).to_vec(), &b"abc"[..]));
        file.set_len(0).unwrap();
        assert!(writer.store(80, &header(1), &[b"abc"]).is_err());
        assert!(writer.store(80, &header(1), &[b"abc"]).is_err(), "it stays lost");
        assert!(writer.window.is_lost() && !other.window.is_lost());
        assert!(other.store(2048, &header(1), &[]).is_err());
    }
}
