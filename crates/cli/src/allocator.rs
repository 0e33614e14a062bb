//! The allocator: many small allocations are made and freed on different threads, which the system's is slow at.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc 2: how many milliseconds freed pages are kept before the system gets them back. The binding names
/// only some of the options; the test below holds the number to the one with that default.
const PURGE_DELAY: c_int = 15;

/// Keeps freed pages for a second rather than for 10 ms.
///
/// A bus frees and needs again all the time, and a page that was given back has to be cleared when it returns: that was a
/// third of the processor time of an insert (`rockdove bench micro`).
pub fn keep_freed_pages() {
    set(PURGE_DELAY, 1000);
}

fn set(option: c_int, value: c_long) {
    // SAFETY: stores a number in a static of the allocator, whose readers take it as it is at that moment; a number
    // that is no option is refused there.
    unsafe { libmimalloc_sys::mi_option_set(option, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the options are the process's.
    #[test]
    fn the_option_is_the_purge_delay() {
        // SAFETY: reads a number.
        let get = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(get(), 10, "not the option with this default: the allocator's options have moved");
        keep_freed_pages();
        assert_eq!(get(), 1000);
    }
}
