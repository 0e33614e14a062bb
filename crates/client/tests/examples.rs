//! Every example runs to its end, on an engine in its process. `cargo test -p rockdove` builds them; with `--test examples`
//! alone it takes `--examples`, too.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// No example runs longer than this.
const LIMIT: Duration = Duration::from_secs(60);

/// Ends its process, however the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn examples_run_to_their_end() {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).expect("the folder of the profile").join("examples");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut count = 0;
    for source in sources.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        if source.extension() == Some(OsStr::new("rs")) {
            runs(&built.join(source.file_stem().unwrap()));
            count += 1;
        }
    }
    assert!(count > 0);
}

fn runs(example: &Path) {
    let started = Command::new(example).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut process = Process(started.unwrap_or_else(|error| panic!("{}: {error}", example.display())));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = process.0.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < LIMIT, "{} does not end", example.display());
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{}: {status}", example.display());
}
