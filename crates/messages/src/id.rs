//! The identity of a message: an ObjectId, or whatever a foreign program used instead.

use bson::{Bson, Document, doc, oid::ObjectId};
use std::fmt;

/// The `_id` of a message. We write ObjectIds only; a foreign id of any other type is kept as its BSON bytes,
/// so that it can be compared, marked and deleted like every other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MessageId {
    /// The regular form.
    Object(ObjectId),
    /// A value of another type: the bytes of the document `{_id: value}`.
    Foreign(Box<[u8]>),
}

impl MessageId {
    /// A fresh ObjectId.
    pub fn generate() -> Self {
        Self::Object(ObjectId::new())
    }

    /// The id as it stands in a document.
    pub fn to_bson(&self) -> Bson {
        match self {
            Self::Object(id) => Bson::ObjectId(*id),
            Self::Foreign(bytes) => Document::from_reader(&bytes[..])
                .ok()
                .and_then(|mut document| document.remove("_id"))
                .unwrap_or(Bson::Null),
        }
    }

    /// Reads an id. `None` for null, undefined, and for a value that cannot be encoded.
    pub fn from_bson(value: &Bson) -> Option<Self> {
        match value {
            Bson::ObjectId(id) => Some(Self::Object(*id)),
            Bson::Null | Bson::Undefined => None,
            other => doc! { "_id": other.clone() }.to_vec().ok().map(|b| Self::Foreign(b.into())),
        }
    }
}

impl From<ObjectId> for MessageId {
    fn from(id: ObjectId) -> Self {
        Self::Object(id)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(id) => write!(f, "{id}"),
            Self::Foreign(_) => write!(f, "{}", self.to_bson()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_any_type_survive() {
        let nested = doc! {"a": 1, "b": [1, 2]};
        for value in [Bson::from("order-1"), Bson::from(7_i64), Bson::from(1.5), Bson::from(nested)] {
            let id = MessageId::from_bson(&value).unwrap();
            assert!(matches!(id, MessageId::Foreign(_)));
            assert_eq!(id.to_bson(), value);
            assert_eq!(MessageId::from_bson(&value), Some(id));
        }
        assert_eq!(MessageId::from_bson(&Bson::Null), None);
        let id = ObjectId::new();
        assert_eq!(MessageId::from_bson(&Bson::ObjectId(id)), Some(MessageId::Object(id)));
        assert_ne!(MessageId::from_bson(&Bson::from(7)), MessageId::from_bson(&Bson::from(7_i64)));
    }
}
