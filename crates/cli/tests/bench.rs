//! `rockdove bench`: that it measures, writes, compares and refuses; never how fast.

use std::path::Path;
use std::process::{Command, Output};

fn rockdove(arguments: &[&str]) -> Output {
    let output =
        Command::new(env!("CARGO_BIN_EXE_rockdove")).args(arguments).output().expect("rockdove starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn records(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).expect("a result");
    text.lines().map(|line| serde_json::from_str(line).expect("a document a line")).collect()
}

#[test]
fn two_targets_are_measured_in_turns_written_and_compared() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str| dir.path().join(name).to_str().expect("a name").to_owned();
    let (json, html) = (file("a.json"), file("a.html"));
    let stored = format!("b=embedded:{}", file("data"));
    rockdove(&[
        "bench",
        "bus",
        "latency",
        "--rate",
        "50",
        "--seconds",
        "0.5",
        "--warm-up",
        "100ms",
        "--rounds",
        "2",
        "--uri",
        "a=embedded",
        "--uri",
        &stored,
        "--json",
        &json,
        "--html",
        &html,
    ]);
    let lines = records(Path::new(&json));
    assert_eq!(lines[0]["record"], "run");
    let order: Vec<_> =
        lines[1..].iter().map(|step| (step["target"].as_str().unwrap(), step["round"].as_u64())).collect();
    assert_eq!(order, [("a", Some(1)), ("b", Some(1)), ("a", Some(2)), ("b", Some(2))]);
    for step in &lines[1..] {
        assert_eq!(
            (step["sent"].as_u64(), step["done"].as_u64(), step["lost"].as_u64()),
            (Some(25), Some(25), Some(0))
        );
        assert_eq!((step["received"].as_u64(), step["duplicates"].as_u64()), (Some(25), Some(0)));
        let latency = |leg: &str| step[leg]["p50"].as_f64().unwrap();
        assert!(latency("latency") >= latency("outbound").max(latency("back")));
    }
    let page = std::fs::read_to_string(&html).expect("a page");
    assert!(page.contains("<svg") && page.contains("</html>"));
    let table = rockdove(&["bench", "bus-compare", &json, &json]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("| b | 50/s | lost | 0.0 | 0.0 | - |"));
}

#[test]
fn exclusive_messages_are_taken_once_in_every_layout() {
    for layout in ["standard", "multi-collection", "dual-channel"] {
        let dir = tempfile::tempdir().expect("a folder");
        let json = dir.path().join("a.json");
        rockdove(&[
            "bench",
            "bus",
            "one-way",
            "--rate",
            "100",
            "--seconds",
            "0.5",
            "--warm-up",
            "100ms",
            "--exclusive",
            "--receivers",
            "3",
            "--layout",
            layout,
            "--json",
            json.to_str().expect("a name"),
        ]);
        let step = &records(&json)[1];
        assert_eq!((step["sent"].as_u64(), step["received"].as_u64()), (Some(50), Some(50)), "{layout}");
        assert_eq!((step["lost"].as_u64(), step["duplicates"].as_u64()), (Some(0), Some(0)), "{layout}");
    }
}

/// The steps of a short run on the engine in this process.
fn steps(profile: &[&str]) -> Vec<serde_json::Value> {
    let dir = tempfile::tempdir().expect("a folder");
    let json = dir.path().join("a.json");
    let rest = ["--warm-up", "100ms", "--json", json.to_str().expect("a name")];
    rockdove(&[&["bench", "bus"], profile, &rest].concat());
    records(&json).split_off(1)
}

#[test]
fn each_profile_measures_what_it_is_asked_for() {
    let number = |step: &serde_json::Value, field: &str| step[field].as_u64().expect("a number");
    let ramp = steps(&["ramp", "20:20:0.5", "--until", "1", "--senders", "2"]);
    let labels: Vec<_> = ramp.iter().map(|step| step["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["20/s", "40/s"]);
    assert_eq!(ramp.iter().map(|step| number(step, "done")).collect::<Vec<_>>(), [10, 20]);
    let max = steps(&["max", "--window", "4", "--seconds", "0.5"]);
    assert!(number(&max[0], "done") > 0 && number(&max[0], "lost") == 0, "{max:?}");
    let worked =
        steps(&["exclusive", "--work", "20ms", "--receivers", "2", "--rate", "40", "--seconds", "0.5"]);
    assert_eq!((number(&worked[0], "done"), number(&worked[0], "received")), (20, 20));
    assert!(
        worked[0]["back"]["p50"].as_f64() >= Some(20_000.0),
        "an answer comes after the work: {worked:?}"
    );
    let polled = steps(&["latency", "--polling", "--rate", "20", "--seconds", "0.5"]);
    assert_eq!((number(&polled[0], "done"), number(&polled[0], "lost")), (10, 0));
}

#[test]
fn numbers_that_cannot_be_measured_are_wrong_usage() {
    for arguments in [
        &["bus", "ramp", "--until", "inf"][..],
        &["bus", "ramp", "1:1:1e30"],
        &["bus", "latency", "--seconds", "1e30"],
        &["bus", "latency", "--seconds", "0"],
        &["bus", "one-way", "--rate", "NaN"],
        &["bus", "max", "--size", "4000000000"],
        &["micro", "--stored", "0"],
        &["micro", "--exchanges", "0"],
        &["micro", "--streams", "0"],
        &["log", "--rate", "0"],
        &["log", "--size", "0"],
        &["log", "--runs", "0"],
        &["compare", "--ours", "a", "--theirs", "b", "--exchanges", "0"],
    ] {
        let command = Command::new(env!("CARGO_BIN_EXE_rockdove")).arg("bench").args(arguments).output();
        let output = command.expect("rockdove starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
    }
}

#[test]
fn a_wrong_log_filter_is_told_by_every_command() {
    for arguments in
        [&["serve", "--memory", "--listen", "127.0.0.1:0"][..], &["bench", "bus-compare", "a", "b"]]
    {
        let command = Command::new(env!("CARGO_BIN_EXE_rockdove"))
            .args(arguments)
            .env("ROCKDOVE_LOG", "rockdove=loud")
            .output();
        let output = command.expect("rockdove starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        assert!(told.contains("ROCKDOVE_LOG") && told.contains("rockdove=loud"), "{told}");
    }
}

#[test]
fn without_receivers_the_accepted_messages_count() {
    let dir = tempfile::tempdir().expect("a folder");
    let json = dir.path().join("a.json");
    rockdove(&[
        "bench",
        "bus",
        "bulk",
        "--batch",
        "10",
        "--seconds",
        "0.3",
        "--warm-up",
        "100ms",
        "--receivers",
        "0",
        "--json",
        json.to_str().expect("a name"),
    ]);
    let step = &records(&json)[1];
    assert!(step["achieved"].as_f64() > Some(0.0) && step["lost"].as_u64() == Some(0), "{step}");
    assert_eq!(step["sent"], step["done"]);
}
