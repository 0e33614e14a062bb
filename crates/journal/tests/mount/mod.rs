//! A small file system in memory, mounted for a test. That needs a right which ordinary users do not have.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// If this is set, and not empty, a test that cannot mount fails. Otherwise it says that it checked nothing, and passes.
const MUST_MOUNT: &str = "ROCKDOVE_MUST_MOUNT";

/// Unmounted when it goes.
pub struct Mount(TempDir);

impl Mount {
    /// Mounts a file system of this size in bytes; `None` where that is not allowed.
    pub fn new(size: u64) -> Option<Mount> {
        let dir = tempfile::tempdir().unwrap();
        if run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], dir.path()) {
            return Some(Mount(dir));
        }
        let must = std::env::var_os(MUST_MOUNT).is_some_and(|value| !value.is_empty());
        assert!(!must, "no right to mount a file system, and {MUST_MOUNT} is set");
        eprintln!("not checked: no right to mount a file system");
        None
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// From now on nothing in it can be changed.
    #[allow(dead_code, reason = "not every test that mounts needs it")]
    pub fn make_read_only(&self) {
        assert!(run("mount", &["-o", "remount,ro"], self.path()));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &["-l"], self.path());
    }
}

fn run(command: &str, arguments: &[&str], dir: &Path) -> bool {
    Command::new(command).args(arguments).arg(dir).output().is_ok_and(|output| output.status.success())
}
