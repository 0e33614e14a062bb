//! Participants: every node of a queue announces which layout it speaks, in a collection of its own.

use crate::layout::Layout;
use bson::{Bson, Document, doc};
use std::fmt;

/// The layout another participant announced, or a name we do not know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Implementation {
    /// One of the known layouts.
    Known(Layout),
    /// Anything else, as announced.
    Unknown(String),
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(layout) => f.write_str(layout.implementation()),
            Self::Unknown(name) => f.write_str(name),
        }
    }
}

/// One node of a queue, as it announces itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Participant {
    /// Its sender id.
    pub id: String,
    /// What it speaks. Nodes of different layouts do not hear each other.
    pub implementation: Implementation,
    /// Where it runs.
    pub hostname: String,
    /// When it started, ms since the epoch.
    pub started_at: i64,
    /// Its last heartbeat, ms since the epoch.
    pub last_seen: i64,
}

impl Participant {
    /// The document as stored. It carries no class name.
    pub fn to_document(&self) -> Document {
        doc! {
            "_id": &self.id,
            "implementation": self.implementation.to_string(),
            "hostname": &self.hostname,
            "started_at": self.started_at,
            "last_seen": self.last_seen,
        }
    }

    /// Reads an announcement; `None` when it has no text id.
    pub fn from_document(document: &Document) -> Option<Self> {
        let name = document.get_str("implementation").unwrap_or_default();
        Some(Self {
            id: document.get_str("_id").ok()?.to_owned(),
            implementation: Layout::from_implementation(name)
                .map_or_else(|| Implementation::Unknown(name.to_owned()), Implementation::Known),
            hostname: document.get_str("hostname").unwrap_or_default().to_owned(),
            started_at: millis(document, "started_at"),
            last_seen: millis(document, "last_seen"),
        })
    }

    /// Whether it gave a sign of life within `timeout_ms`.
    pub fn is_fresh(&self, now_ms: i64, timeout_ms: i64) -> bool {
        self.last_seen >= now_ms.saturating_sub(timeout_ms)
    }
}

fn millis(document: &Document, field: &str) -> i64 {
    match document.get(field) {
        Some(Bson::Int64(value)) => *value,
        Some(Bson::Int32(value)) => (*value).into(),
        Some(Bson::Double(value)) => *value as i64,
        Some(Bson::DateTime(value)) => value.timestamp_millis(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_golden() {
        let golden = doc! {"_id": "stock-7", "implementation": "StandardMessaging", "hostname": "host-b",
        "started_at": 1_759_999_990_000_i64, "last_seen": 1_760_000_020_000_i64};
        let participant = Participant::from_document(&golden).unwrap();
        assert_eq!(participant.implementation, Implementation::Known(Layout::Standard));
        assert_eq!(participant.to_document(), golden);
        assert!(participant.is_fresh(1_760_000_085_000, 65_000));
        assert!(!participant.is_fresh(1_760_000_085_001, 65_000));
    }

    #[test]
    fn foreign_announcements_are_read() {
        let odd = Participant::from_document(&doc! {"_id": "x", "implementation": "Other", "last_seen": 5})
            .unwrap();
        assert_eq!((odd.implementation, odd.last_seen), (Implementation::Unknown("Other".into()), 5));
        assert_eq!(Participant::from_document(&doc! {"_id": 5}), None);
    }
}
