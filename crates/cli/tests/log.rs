//! `rockdove log` on logs that are whole, in use, torn and damaged.

use rockdove::{Embedded, EmbeddedOptions, Message};
use rockdove_journal::{Journal, Level, Options, SyncPolicy, Terms};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const SECOND: u64 = 1_000_000_000;
/// 2020-11-30T19:00:00Z.
const START: u64 = 1_606_762_800 * SECOND;
const COUNT: u64 = 200;

fn log(args: &[&str], dir: &Path) -> Output {
    let mut all = vec!["log", args[0], dir.to_str().unwrap()];
    all.extend(&args[1..]);
    Command::new(env!("CARGO_BIN_EXE_rockdove")).args(all).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn lines(args: &[&str], dir: &Path) -> Vec<String> {
    stdout(&log(args, dir)).lines().map(str::to_owned).collect()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// Indexes in the output of `dump --json`.
fn indexes(args: &[&str], dir: &Path) -> Vec<u64> {
    let entry = |line: &String| serde_json::from_str::<Value>(line).unwrap()["index"].as_u64().unwrap();
    lines(&[args, &["--json"]].concat(), dir).iter().map(entry).collect()
}

fn options() -> Options {
    Options { segment_bytes: 16 << 10, sync: SyncPolicy::Never, ..Options::default() }
}

/// An entry each second; every tenth is not text, every seventh has a value.
fn fill(dir: &Path) {
    let (_, mut writer, _) = Journal::open(dir, options()).unwrap();
    for index in 1..=COUNT {
        let payload = match index % 10 {
            0 => vec![0xff; 40],
            _ => format!("entry {index} {}", "x".repeat(300)).into_bytes(),
        };
        let value = if index % 7 == 0 { index } else { 0 };
        let terms = Terms { time_ns: START + index * SECOND, value, level: Level::Risk };
        writer.append_on(&[&payload], terms).unwrap();
    }
    writer.close().unwrap();
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut segments: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "seg")).collect();
    segments.sort();
    segments
}

fn flip(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn info_says_what_there_is() {
    let temp = tempfile::tempdir().unwrap();
    fill(temp.path());
    let text = stdout(&log(&["info", "--segments"], temp.path()));
    assert!(text.contains("entries    200, index 1 to 200"), "{text}");
    assert!(text.contains("2020-11-30T19:00:01Z to 2020-11-30T19:03:20Z"), "{text}");
    assert!(text.contains("closed cleanly") && text.contains(" KiB"), "{text}");
    assert_eq!(text.matches(".seg").count(), segments(temp.path()).len());
    let found = json(&log(&["info", "--json"], temp.path()));
    assert_eq!(
        (&found["entries"], &found["clean"], &found["lastIndex"]),
        (&200.into(), &true.into(), &200.into())
    );
    let value: u64 = (1..=COUNT).filter(|i| i % 7 == 0).sum();
    let values = found["segments"].as_array().unwrap().iter().map(|s| s["value"].as_str().unwrap());
    assert_eq!(values.map(|v| v.parse::<u64>().unwrap()).sum::<u64>(), value);
    // The data folder of a bus holds its log in a folder.
    let outer = tempfile::tempdir().unwrap();
    fill(&outer.path().join("log"));
    assert_eq!(json(&log(&["info", "--json"], outer.path()))["entries"], 200);
}

#[test]
fn dump_by_index_and_by_time_in_both_directions() {
    let temp = tempfile::tempdir().unwrap();
    fill(temp.path());
    let dir = temp.path();
    assert_eq!(indexes(&["dump"], dir), (1..=200).collect::<Vec<_>>());
    assert_eq!(indexes(&["dump", "--from-index", "50", "--to-index", "52"], dir), [50, 51, 52]);
    assert_eq!(indexes(&["dump", "--limit", "3"], dir), [1, 2, 3]);
    assert_eq!(indexes(&["dump", "--limit", "3", "--reverse"], dir), [200, 199, 198]);
    assert_eq!(indexes(&["dump", "--to-index", "5", "--from-index", "4", "--reverse"], dir), [5, 4]);
    let times = ["--since", "2020-11-30T19:01:00Z", "--until", "2020-11-30T19:01:03Z"];
    assert_eq!(indexes(&[&["dump"], &times[..]].concat(), dir), [60, 61, 62]);
    assert_eq!(indexes(&[&["dump", "--reverse"], &times[..]].concat(), dir), [62, 61, 60]);
    assert_eq!(indexes(&["dump", "--since", "2020-11-30T20:00:00Z"], dir).len(), 0);
    assert_eq!(indexes(&["dump", "--since", "1s", "--from-index", "190"], dir).len(), 0);
    let text = lines(&["dump", "--from-index", "7", "--limit", "1"], dir);
    assert!(text[0].starts_with("7  2020-11-30T19:00:07Z  value 7  risk  entry 7 xxx"), "{text:?}");
    let hex = lines(&["dump", "--from-index", "10", "--limit", "1"], dir);
    assert!(hex[0].ends_with(&"ff".repeat(40)), "{hex:?}");
    let size = lines(&["dump", "--from-index", "10", "--limit", "1", "--payload", "size"], dir);
    assert!(size[0].ends_with("40 B"), "{size:?}");
    let missing = log(&["dump", "--from-index", "999"], dir);
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no entry 999 yet, the next one is 201"));
}

#[test]
fn tail_follows_a_writer() {
    let temp = tempfile::tempdir().unwrap();
    fill(temp.path());
    assert_eq!(indexes(&["tail", "-n", "2"], temp.path()), [199, 200]);
    let (_journal, mut writer, _) = Journal::open(temp.path(), options()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_rockdove"))
        .args(["log", "tail", temp.path().to_str().unwrap(), "-n", "1", "--follow"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("200  "));
    for index in 201..=260 {
        writer.append(&[format!("new {index}").as_bytes()], START).unwrap();
        assert!(lines.next().unwrap().unwrap().ends_with(&format!("new {index}")));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn verify_and_repair() {
    let temp = tempfile::tempdir().unwrap();
    fill(temp.path());
    let dir = temp.path();
    let whole = log(&["verify"], dir);
    assert!(stdout(&whole).contains("whole: entries 1 to 200"), "{whole:?}");
    let second = &segments(dir)[1];
    flip(second, 8192 + 100);
    let damaged = log(&["verify"], dir);
    assert_eq!(damaged.status.code(), Some(5));
    let text = String::from_utf8(damaged.stdout).unwrap();
    for part in ["damaged: frame:", "at byte 8192", "means:", "to do:", "--accept-loss"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let found = json(&log(&["verify", "--json"], dir));
    let first_bad = found["findings"][0]["entries"]["first"].as_u64().unwrap();
    assert_eq!(found["lastIndex"], first_bad - 1);

    // In the last segment it also keeps the log from being opened.
    flip(segments(dir).last().unwrap(), 8192 + 100);
    let refused = log(&["repair"], dir);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is damaged at byte 8192"));
    let repaired = json(&log(&["repair", "--accept-loss", "--json"], dir));
    assert_eq!(
        (&repaired["lastIndex"], &repaired["lost"]["first"]),
        (&(first_bad - 1).into(), &first_bad.into())
    );
    for file in repaired["keptIn"].as_array().unwrap() {
        assert!(std::fs::metadata(file.as_str().unwrap()).unwrap().len() > 0);
    }
    let after = log(&["verify"], dir);
    assert_eq!(after.status.code(), Some(0), "{after:?}");
    assert_eq!(indexes(&["dump"], dir), (1..first_bad).collect::<Vec<_>>());
}

#[test]
fn verify_tells_a_torn_tail_from_damage() {
    let temp = tempfile::tempdir().unwrap();
    let (_, mut writer, _) = Journal::open(temp.path(), options()).unwrap();
    for _ in 0..5 {
        writer.append(&[&[1; 100]], 0).unwrap();
    }
    let in_use = log(&["repair"], temp.path());
    assert!(String::from_utf8_lossy(&in_use.stderr).contains("in use by another process"), "{in_use:?}");
    assert_eq!(log(&["verify"], temp.path()).status.code(), Some(0), "beside its writer");
    drop(writer);
    flip(&segments(temp.path())[0], 8192 + 4 * 176 + 90);
    let torn = log(&["verify"], temp.path());
    assert_eq!(torn.status.code(), Some(4), "{torn:?}");
    assert!(String::from_utf8_lossy(&torn.stdout).contains("unclean: torn-tail"));
}

#[test]
fn export_and_import_copy_everything_but_the_indexes() {
    let temp = tempfile::tempdir().unwrap();
    let (from, to, file) = (temp.path().join("a"), temp.path().join("b"), temp.path().join("a.jsonl"));
    fill(&from);
    stdout(&log(&["export", "--from-index", "5", "-o", file.to_str().unwrap()], &from));
    assert!(!log(&["export", "-o", file.to_str().unwrap()], &from).status.success(), "it exists");
    stdout(&log(&["import", file.to_str().unwrap()], &to));
    let entry = |line: &String| {
        let mut entry: Value = serde_json::from_str(line).unwrap();
        entry["index"].take();
        entry
    };
    let dump = |dir: &Path, from: &str| -> Vec<Value> {
        lines(&["dump", "--json", "--from-index", from], dir).iter().map(entry).collect()
    };
    assert_eq!(dump(&to, "1"), dump(&from, "5"));
    assert_eq!(dump(&to, "1").len(), 196);
    // From standard input, after what is there.
    let mut child = Command::new(env!("CARGO_BIN_EXE_rockdove"))
        .args(["log", "import", to.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{\"text\": \"hand made\"}\n\n{\"text\": 7}\n").unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(errors.contains("line 3 is no entry; 1 entries before it"), "{errors}");
    assert_eq!(indexes(&["dump", "--from-index", "197"], &to), [197]);
}

#[test]
fn prune_removes_whole_segments_and_keeps_what_is_unread() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    fill(dir);
    let count = segments(dir).len();
    assert!(!log(&["prune"], dir).status.success());
    let kept = json(&log(&["prune", "--keep", "1TiB", "--json"], dir));
    assert_eq!((&kept["segments"], &kept["firstIndex"]), (&0.into(), &1.into()));
    {
        let (journal, _writer, _) = Journal::open(dir, options()).unwrap();
        let mut reader = journal.named_tailer("slow").unwrap();
        for _ in 0..100 {
            reader.next_entry().unwrap().unwrap();
        }
        reader.commit().unwrap();
    }
    let pruned = json(&log(&["prune", "--keep", "0", "--json"], dir));
    let first = pruned["firstIndex"].as_u64().unwrap();
    assert!((70..=101).contains(&first), "{first}");
    assert_eq!(count - segments(dir).len(), pruned["segments"].as_u64().unwrap() as usize);
    let by_index = json(&log(&["prune", "--before-index", "150", "--unread", "--json"], dir));
    assert!((120..=150).contains(&by_index["firstIndex"].as_u64().unwrap()), "{by_index}");
    let text = stdout(&log(&["prune", "--age", "0s", "--unread"], dir));
    assert!(text.starts_with("removed "), "{text}");
    assert_eq!(indexes(&["tail", "-n", "1"], dir), [200]);
    let outer = tempfile::tempdir().unwrap();
    fill(&outer.path().join("log"));
    assert!(!log(&["prune", "--keep", "0"], outer.path()).status.success(), "the log of a bus");
}

#[test]
fn export_does_not_replace_a_file() {
    let temp = tempfile::tempdir().unwrap();
    fill(temp.path());
    let file = temp.path().join("entries.jsonl");
    let file = file.to_str().unwrap();
    stdout(&log(&["export", "-o", file], temp.path()));
    let written = std::fs::read_to_string(file).unwrap();
    assert_eq!(written.lines().count() as u64, COUNT);
    let refused = log(&["export", "-o", file], temp.path());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("there is a file") && !said.contains("os error"), "{said}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), written);
}

/// Its entries are the bus's own: anything else keeps it from starting.
#[test]
fn nothing_is_imported_into_the_log_of_a_bus() {
    let outer = tempfile::tempdir().unwrap();
    let inner = outer.path().join("log");
    fill(&inner);
    let lines_file = outer.path().join("lines");
    std::fs::write(&lines_file, "{\"text\": \"x\"}\n").unwrap();
    let before = indexes(&["dump"], &inner);
    let refused = log(&["import", lines_file.to_str().unwrap()], outer.path());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("the log of a bus"), "{said}");
    assert_eq!(indexes(&["dump"], &inner), before);
}

#[test]
fn a_folder_that_is_no_log_is_said_to_be_none() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("notes.txt");
    std::fs::write(&file, "x").unwrap();
    let missing = temp.path().join("nowhere");
    let out = temp.path().join("out");
    let none = "there is no log in";
    for (dir, expected) in
        [(temp.path(), none), (file.as_path(), none), (missing.as_path(), "there is no folder")]
    {
        for args in [
            &["info"][..],
            &["dump"],
            &["tail"],
            &["verify"],
            &["repair"],
            &["repair", "--accept-loss"],
            &["export", "-o", out.to_str().unwrap()],
            &["prune", "--keep", "0"],
        ] {
            let refused = log(args, dir);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!((refused.status.code(), said.lines().count()), (Some(1), 1), "{args:?}: {said}");
            assert!(said.contains(expected) && said.contains(dir.to_str().unwrap()), "{args:?}: {said}");
            assert!(expected != none || said.contains("*.seg"), "{said}");
        }
    }
    let left: Vec<_> =
        std::fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"], "nothing was made");
}

#[tokio::test]
async fn what_a_bus_has_written_is_shown_as_documents() {
    let temp = tempfile::tempdir().unwrap();
    let store = Embedded::open_with(EmbeddedOptions::stored_in(temp.path())).unwrap();
    let bus = store.bus().send_only().connect().await.unwrap();
    bus.publish(Message::new("orders").value("4711")).await.unwrap();
    bus.shutdown().await;
    store.close().await.unwrap();
    let dumped = lines(&["dump"], temp.path()).join("\n");
    assert!(dumped.contains("\"effect\":\"insert\"") && dumped.contains("\"value\":\"4711\""), "{dumped}");
    let entries: Vec<Value> = lines(&["dump", "--json"], temp.path())
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let effects = entries.iter().flat_map(|entry| entry["effects"].as_array().unwrap());
    let inserted: Vec<_> = effects.filter(|effect| effect["effect"] == "insert").collect();
    assert!(inserted.iter().any(|insert| insert["document"]["topic"] == "orders"), "{entries:?}");
    assert!(
        entries.iter().all(|entry| entry.get("hex").is_none() && entry.get("text").is_none()),
        "{entries:?}"
    );
    let hex = lines(&["dump", "--json", "--payload", "hex"], temp.path()).join("\n");
    assert!(hex.contains("\"hex\"") && !hex.contains("effects"), "{hex}");
    let exported = lines(&["export"], temp.path()).join("\n");
    assert!(exported.contains("\"hex\"") && !exported.contains("effects"), "import takes it");
}

#[test]
fn a_closed_pipe_ends_the_output_quietly() {
    let temp = tempfile::tempdir().unwrap();
    fill(temp.path());
    let (_journal, _writer, _) = Journal::open(temp.path(), options()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_rockdove"))
        .args(["log", "dump", temp.path().to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn an_encrypted_and_compressed_log() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, coded) = (dir.path().join("plain"), dir.path().join("coded"));
    fill(&plain);
    let (key, other, lines_file) =
        (dir.path().join("key"), dir.path().join("other"), dir.path().join("lines"));
    std::fs::write(&key, format!("{}\n", "0b".repeat(32))).unwrap();
    std::fs::write(&other, "0c".repeat(32)).unwrap();
    let (key, other, lines_file) =
        (key.to_str().unwrap(), other.to_str().unwrap(), lines_file.to_str().unwrap());
    stdout(&log(&["export", "-o", lines_file], &plain));
    stdout(&log(&["import", "--key-file", key, "--compress", lines_file], &coded));
    assert_eq!(lines(&["dump", "--key-file", key], &coded), lines(&["dump"], &plain));
    assert_eq!(lines(&["export", "--key-file", key], &coded), lines(&["export"], &plain));
    stdout(&log(&["verify"], &coded));
    for (arguments, problem) in [
        (&["dump"][..], "no key was given"),
        (&["tail"], "no key was given"),
        (&["dump", "--key-file", other], "another key"),
        (&["import", lines_file, "--key-file", other], "another key"),
        (&["import", lines_file], "no key was given"),
        (&["prune", "--keep", "1KiB"], "no key was given"),
        (&["dump", "--key-file", lines_file], "64 hexadecimal digits"),
        (&["dump", "--key-file", "/nowhere/key"], "cannot read"),
        (&["dump", "--key-file", "/dev/zero"], "64 hexadecimal digits"),
    ] {
        let refused = log(arguments, &coded);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains(problem) && text.lines().count() == 1, "{arguments:?}: {text}");
    }
    assert_eq!(lines(&["dump", "--key-file", key], &coded).len() as u64, COUNT, "nothing was added");
    // A pipe brings the key, and it is said that it is waited for.
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_rockdove"))
        .args(["log", "dump", "--key-file", pipe, coded.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("no key came from") && said.contains("waiting"), "{said}");
    let mut writer = std::fs::File::options().write(true).open(pipe).unwrap();
    writer.write_all("0b".repeat(32).as_bytes()).unwrap();
    writer.write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success()); // while the pipe is open
    drop(writer);
    std::thread::scope(|threads| {
        threads.spawn(|| std::fs::write(pipe, "0b".repeat(32)).unwrap());
        assert_eq!(lines(&["dump", "--key-file", pipe], &coded).len() as u64, COUNT);
    });
}
