//! Which crate may depend on which: the picture in `ARCHITECTURE.md`, kept true.

use std::collections::BTreeSet;
use std::path::Path;

/// Each crate of ours and those of ours that it may use outside of its tests.
const ALLOWED: [(&str, &[&str]); 9] = [
    ("journal", &[]),
    ("documents", &[]),
    ("messages", &[]),
    ("engine", &["rockdove-documents", "rockdove-journal"]),
    ("protocols/mongo", &["rockdove-documents", "rockdove-engine"]),
    ("client", &["rockdove-documents", "rockdove-engine", "rockdove-messages"]),
    ("server", &["rockdove-engine", "rockdove-mongo"]),
    ("bench", &["rockdove", "rockdove-documents", "rockdove-engine", "rockdove-journal", "rockdove-mongo"]),
    (
        "cli",
        &[
            "rockdove",
            "rockdove-bench",
            "rockdove-documents",
            "rockdove-engine",
            "rockdove-journal",
            "rockdove-messages",
            "rockdove-server",
        ],
    ),
];

#[test]
fn crates_depend_downwards_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (name, allowed) in ALLOWED {
        let manifest = std::fs::read_to_string(root.join(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        let ours: BTreeSet<&str> = dependencies
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|name| *name == "rockdove" || name.starts_with("rockdove-"))
            .collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert!(ours.is_subset(&allowed), "{name} depends on {:?}", ours.difference(&allowed));
    }
}

#[test]
fn no_crate_is_left_out() {
    let root =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml")).unwrap();
    let members = root.split("members = [").nth(1).unwrap().split(']').next().unwrap();
    let members: BTreeSet<&str> =
        members.split('"').filter_map(|part| part.strip_prefix("crates/")).collect();
    assert_eq!(members, ALLOWED.iter().map(|(name, _)| *name).collect());
}
