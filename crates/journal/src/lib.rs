//! The append-only log: segments, checksums, group commit, sync policies, recovery.
