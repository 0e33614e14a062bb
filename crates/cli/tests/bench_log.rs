//! `rockdove bench log`, as short as it goes: that it measures all it names and writes both reports.

use serde_json::Value;
use std::process::Command;

#[test]
fn a_short_run_writes_figures_curves_and_a_page() {
    let temp = tempfile::tempdir().unwrap();
    let (json, html) = (temp.path().join("log.json"), temp.path().join("log.html"));
    let output = Command::new(env!("CARGO_BIN_EXE_rockdove"))
        .args(["bench", "log", "--dir", temp.path().to_str().unwrap(), "--rate", "1000", "--size", "256"])
        .args(["--seconds", "1", "--runs", "2", "--entries", "1000", "--large", "1"])
        .args(["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()])
        .output()
        .unwrap();
    // 4: measured, and a target was missed, which on a busy machine means nothing.
    assert!(matches!(output.status.code(), Some(0 | 4)), "{output:?}");
    let found: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let curves = found["curves"].as_array().unwrap();
    let curve = |name: &str| {
        let group = |c: &&Value| c["group"] == "256 B at 1000/s" && c["name"] == name;
        &curves.iter().find(group).unwrap_or_else(|| panic!("no curve {name}"))["microseconds"]
    };
    // The second of two runs counts: a second of messages, ten of them large.
    for name in ["P", "S"] {
        assert!(curve(name)["count"].as_u64().unwrap() >= 990, "{name}");
    }
    assert_eq!(
        curve("T")["count"].as_u64().unwrap() + curve("T, large ones")["count"].as_u64().unwrap(),
        1000
    );
    assert_eq!(curve("T, large ones")["count"], 10);
    for name in ["P", "A", "S", "T"] {
        let micros = curve(name);
        assert!(micros["p50"].as_f64().unwrap() > 0.0);
        assert!(micros["max"].as_f64() >= micros["p99.9"].as_f64());
    }
    // A message goes over two connections and to the disk: no machine does that in ten microseconds.
    assert!(curve("S")["p50"].as_f64().unwrap() > 10.0);
    let names: Vec<&str> =
        found["figures"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    for part in [
        "bare fdatasync",
        "bare memcpy",
        "loopback exchange",
        "idle loop",
        "group commit",
        "opening",
        "to tailer",
    ] {
        assert!(names.iter().any(|name| name.contains(part)), "{part}");
    }
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.matches("<svg").count() >= 4 && page.contains("<polyline") && !page.contains("http"));
}
