//! Change events: what one effect looks like to a change stream.
//!
//! Field names, order and meaning follow the MongoDB manual, "Change Events". An event keeps shared slices of
//! the documents involved; its own document is put together once per set of options and then shared.

use crate::namespace::Namespace;
use rockdove_documents::diff::disambiguated;
use rockdove_documents::{Doc, DocBuilder, Error, Result, Timestamp, Value, code};
use std::fmt::Write;
use std::sync::OnceLock;

/// 16 bytes that name a collection for ever, whatever it is called.
pub type Uuid = [u8; 16];

/// Binary subtype of a UUID.
const UUID_SUBTYPE: u8 = 4;

/// What happened.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the operation types of the MongoDB manual")]
pub enum Change {
    Insert {
        doc: Doc,
    },
    Replace {
        doc: Doc,
    },
    /// `key` is `{_id}`; `after` the document after the update (unknown when read from the log).
    Update {
        key: Doc,
        description: Doc,
        after: Option<Doc>,
    },
    Delete {
        key: Doc,
    },
    Create {
        options: Doc,
    },
    Modify {
        options: Doc,
    },
    CreateIndex {
        spec: Doc,
    },
    DropIndex {
        spec: Doc,
    },
    Drop,
    /// `dropped` is the collection that had the new name before.
    Rename {
        to: Namespace,
        dropped: Option<Uuid>,
    },
    /// The namespace's collection part is empty of meaning here.
    DropDatabase,
}

/// One change of one namespace.
#[derive(Debug)]
pub struct Event {
    /// When it happened in the log; unique.
    pub at: Timestamp,
    /// When it happened for people: milliseconds since 1970.
    pub wall_ms: i64,
    /// Where.
    pub ns: Namespace,
    /// The collection's lasting name.
    pub uuid: Uuid,
    /// What.
    pub change: Change,
    /// The document before the change, if the collection keeps images.
    pub before: Option<Doc>,
    /// Whether the collection keeps images (`changeStreamPreAndPostImages`).
    pub keeps_images: bool,
    /// The event's document as [`PLAIN`] has it, once somebody asked for it.
    plain: OnceLock<Doc>,
    /// For updates, the same as [`WITH_LOOKUP`] has it; for other changes there is no difference.
    with_lookup: OnceLock<Doc>,
}

/// `fullDocument` of `$changeStream`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[allow(missing_docs, reason = "the values of the MongoDB manual")]
pub enum FullDocument {
    #[default]
    Default,
    UpdateLookup,
    WhenAvailable,
    Required,
}

/// `fullDocumentBeforeChange` of `$changeStream`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[allow(missing_docs, reason = "the values of the MongoDB manual")]
pub enum BeforeChange {
    #[default]
    Off,
    WhenAvailable,
    Required,
}

/// What a change stream wants to see of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct View {
    /// Documents after updates.
    pub full_document: FullDocument,
    /// Documents before changes.
    pub before_change: BeforeChange,
    /// `showExpandedEvents`: also creations, index builds and their like.
    pub expanded: bool,
}

/// What streams ask for by default.
const PLAIN: View =
    View { full_document: FullDocument::Default, before_change: BeforeChange::Off, expanded: false };
/// What streams ask for that want to see documents after updates.
const WITH_LOOKUP: View = View { full_document: FullDocument::UpdateLookup, ..PLAIN };

/// What an event's document takes at most, apart from names and the documents in it.
const FRAME_BYTES: usize = 384;

impl Event {
    /// An event whose document is made when first asked for.
    pub fn new(at: Timestamp, wall_ms: i64, ns: Namespace, uuid: Uuid, change: Change) -> Event {
        let (plain, with_lookup) = (OnceLock::new(), OnceLock::new());
        Event { at, wall_ms, ns, uuid, change, before: None, keeps_images: false, plain, with_lookup }
    }

    /// Bytes it may come to keep in memory: itself, its documents, and what it shows of them once streams have
    /// asked. The same at all times, so that what was counted can be taken off again.
    pub fn bytes(&self) -> usize {
        let own = match &self.change {
            Change::Insert { doc } | Change::Replace { doc } => doc.bytes().len(),
            Change::Update { key, description, after } => {
                key.bytes().len() + description.bytes().len() + size(after) + self.shown_bytes(&WITH_LOOKUP)
            }
            Change::Delete { key } => key.bytes().len(),
            Change::Create { options: doc }
            | Change::Modify { options: doc }
            | Change::CreateIndex { spec: doc }
            | Change::DropIndex { spec: doc } => doc.bytes().len(),
            Change::Drop | Change::Rename { .. } | Change::DropDatabase => 0,
        };
        size_of::<Event>() + own + size(&self.before) + self.shown_bytes(&PLAIN)
    }

    /// Bytes that the event's document takes at most.
    fn shown_bytes(&self, view: &View) -> usize {
        let change = match &self.change {
            Change::Insert { doc } | Change::Replace { doc } => doc.bytes().len() + id_bytes(doc),
            Change::Update { key, description, after } => {
                let after = if view.full_document == FullDocument::Default { 0 } else { size(after) };
                key.bytes().len() + description.bytes().len() + after
            }
            Change::Delete { key } => key.bytes().len(),
            Change::Create { options: doc }
            | Change::Modify { options: doc }
            | Change::CreateIndex { spec: doc }
            | Change::DropIndex { spec: doc } => {
                if view.expanded {
                    doc.bytes().len()
                } else {
                    0
                }
            }
            Change::Rename { to, .. } => 2 * to.full().len(),
            Change::Drop | Change::DropDatabase => 0,
        };
        let before = if view.before_change == BeforeChange::Off { 0 } else { size(&self.before) };
        FRAME_BYTES + self.ns.full().len() + change + before
    }

    /// Whether a stream with this view hears of it at all.
    pub fn is_visible(&self, view: &View) -> bool {
        use Change::*;
        view.expanded
            || !matches!(self.change, Create { .. } | Modify { .. } | CreateIndex { .. } | DropIndex { .. })
    }

    /// The event's document. Fails where a required image is missing.
    pub fn document(&self, view: &View, epoch: u32) -> Result<Doc> {
        let shared = match (view, &self.change) {
            (&WITH_LOOKUP, Change::Update { .. }) => &self.with_lookup,
            (&PLAIN | &WITH_LOOKUP, _) => &self.plain,
            _ => return self.build(view, epoch),
        };
        if let Some(doc) = shared.get() {
            return Ok(doc.clone());
        }
        let doc = self.build(view, epoch)?;
        Ok(shared.get_or_init(|| doc).clone())
    }

    fn build(&self, view: &View, epoch: u32) -> Result<Doc> {
        let mut out = DocBuilder::with_capacity(self.shown_bytes(view));
        out.append("_id", Token::event(self.at, epoch).to_doc());
        out.append("operationType", self.operation());
        out.append("clusterTime", self.at);
        if view.expanded {
            out.append_value("collectionUUID", Value::Binary { subtype: UUID_SUBTYPE, bytes: &self.uuid });
        }
        out.append_date("wallTime", self.wall_ms);
        self.full_document(view, &mut out)?;
        self.namespace(&mut out);
        if let Some(key) = self.document_key() {
            out.append("documentKey", key);
        }
        self.description(view, &mut out);
        self.before_change(view, &mut out)?;
        Ok(out.finish())
    }

    fn operation(&self) -> &'static str {
        match self.change {
            Change::Insert { .. } => "insert",
            Change::Replace { .. } => "replace",
            Change::Update { .. } => "update",
            Change::Delete { .. } => "delete",
            Change::Create { .. } => "create",
            Change::Modify { .. } => "modify",
            Change::CreateIndex { .. } => "createIndexes",
            Change::DropIndex { .. } => "dropIndexes",
            Change::Drop => "drop",
            Change::Rename { .. } => "rename",
            Change::DropDatabase => "dropDatabase",
        }
    }

    fn namespace(&self, out: &mut DocBuilder) {
        out.start_document("ns").append("db", self.ns.database());
        if self.change != Change::DropDatabase {
            out.append("coll", self.ns.collection());
        }
        out.end();
        if let Change::Rename { to, .. } = &self.change {
            out.start_document("to").append("db", to.database()).append("coll", to.collection()).end();
        }
    }

    /// `{_id}` of the document concerned.
    fn document_key(&self) -> Option<Doc> {
        match &self.change {
            Change::Insert { doc } | Change::Replace { doc } => Some(key_of(doc)),
            Change::Update { key, .. } | Change::Delete { key } => Some(key.clone()),
            _ => None,
        }
    }

    fn full_document(&self, view: &View, out: &mut DocBuilder) -> Result<()> {
        let after = match &self.change {
            Change::Insert { doc } | Change::Replace { doc } => Some(doc),
            Change::Update { after, .. } => match view.full_document {
                FullDocument::Default => return Ok(()),
                FullDocument::UpdateLookup => after.as_ref(),
                FullDocument::WhenAvailable => after.as_ref().filter(|_| self.keeps_images),
                FullDocument::Required => match after.as_ref().filter(|_| self.keeps_images) {
                    None => return Err(missing_image("post", &self.ns)),
                    found => found,
                },
            },
            _ => return Ok(()),
        };
        out.append("fullDocument", after);
        Ok(())
    }

    fn before_change(&self, view: &View, out: &mut DocBuilder) -> Result<()> {
        let has_before =
            matches!(self.change, Change::Replace { .. } | Change::Update { .. } | Change::Delete { .. });
        match (view.before_change, &self.before) {
            (BeforeChange::Off, _) => {}
            _ if !has_before => {}
            (BeforeChange::Required, None) => return Err(missing_image("pre", &self.ns)),
            (_, before) => {
                out.append("fullDocumentBeforeChange", before.as_ref());
            }
        }
        Ok(())
    }

    fn description(&self, view: &View, out: &mut DocBuilder) {
        match &self.change {
            Change::Update { description, after: Some(after), .. } if view.expanded => {
                out.start_document("updateDescription").append_all(description.raw());
                let paths = disambiguated(description.raw(), after.raw());
                if !paths.raw().is_empty() {
                    out.append("disambiguatedPaths", paths);
                }
                out.end();
            }
            Change::Update { description, .. } => {
                out.append("updateDescription", description);
            }
            Change::Create { options } | Change::Modify { options } if view.expanded => {
                out.append("operationDescription", options);
            }
            Change::CreateIndex { spec } | Change::DropIndex { spec } if view.expanded => {
                out.start_document("operationDescription").start_array("indexes").push(spec).end().end();
            }
            Change::Rename { to, dropped } if view.expanded => {
                out.start_document("operationDescription").start_document("to");
                out.append("db", to.database()).append("coll", to.collection()).end();
                if let Some(dropped) = dropped {
                    out.append_value("dropTarget", Value::Binary { subtype: UUID_SUBTYPE, bytes: dropped });
                }
                out.end();
            }
            _ => {}
        }
    }
}

/// The `{_id}` of a document.
pub fn key_of(doc: &Doc) -> Doc {
    let mut key = DocBuilder::with_capacity(32);
    if let Some(id) = doc.raw().element("_id") {
        key.append_element(id);
    }
    key.finish()
}

fn size(doc: &Option<Doc>) -> usize {
    doc.as_ref().map_or(0, |doc| doc.bytes().len())
}

/// Bytes of a document's `_id`.
fn id_bytes(doc: &Doc) -> usize {
    doc.raw().element("_id").map_or(0, |id| id.raw_value().len())
}

/// The event that ends a stream whose collection or database is gone.
pub fn invalidate(at: Timestamp, wall_ms: i64, epoch: u32) -> Doc {
    let mut out = DocBuilder::new();
    out.append("_id", Token { at, epoch, kind: TokenKind::Invalidate }.to_doc());
    out.append("operationType", "invalidate").append("clusterTime", at).append_date("wallTime", wall_ms);
    out.finish()
}

fn missing_image(which: &str, ns: &Namespace) -> Error {
    let message = format!(
        "Change stream was configured to require a {which}-image of every event, but none is kept for {ns}; enable changeStreamPreAndPostImages on the collection"
    );
    Error::new(code::NO_MATCHING_DOCUMENT, message)
}

/// What a resume token stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenKind {
    /// An event.
    Event,
    /// Everything up to a time: the `postBatchResumeToken` of a quiet stream.
    HighWater,
    /// The `invalidate` event after a drop or rename.
    Invalidate,
}

/// A resume token: a place in the log.
///
/// As a document it is `{_data: "…"}`: 26 hexadecimal digits of the time (16), the log's epoch (8) and the
/// kind (2), so that tokens sort by time as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// The event it names, or the time up to which everything was seen.
    pub at: Timestamp,
    /// The log it belongs to.
    pub epoch: u32,
    /// What it stands for.
    pub kind: TokenKind,
}

impl Token {
    /// The token of an event.
    pub fn event(at: Timestamp, epoch: u32) -> Token {
        Token { at, epoch, kind: TokenKind::Event }
    }

    /// The document that clients keep.
    pub fn to_doc(self) -> Doc {
        let kind = match self.kind {
            TokenKind::HighWater => 0u8,
            TokenKind::Event => 1,
            TokenKind::Invalidate => 2,
        };
        let mut data = String::with_capacity(26);
        let _ = write!(data, "{:016X}{:08X}{kind:02X}", self.at.bits(), self.epoch); // a String takes everything
        let mut doc = DocBuilder::with_capacity(48);
        doc.append("_data", data);
        doc.finish()
    }

    /// Reads a client's token; `InvalidResumeToken` (260) if it is not one of ours.
    pub fn parse(value: Value<'_>) -> Result<Token> {
        let data = value.as_document().and_then(|doc| doc.get("_data")).and_then(|data| data.as_str());
        let parsed = data.filter(|data| data.len() == 26 && data.is_ascii()).and_then(|data| {
            let kind = match &data[24..] {
                "00" => TokenKind::HighWater,
                "01" => TokenKind::Event,
                "02" => TokenKind::Invalidate,
                _ => return None,
            };
            let at = Timestamp::from_bits(u64::from_str_radix(&data[..16], 16).ok()?);
            Some(Token { at, epoch: u32::from_str_radix(&data[16..24], 16).ok()?, kind })
        });
        parsed.ok_or_else(|| {
            Error::new(code::INVALID_RESUME_TOKEN, "the resume token is not one that this server gave out")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::doc;

    fn event(change: Change) -> Event {
        Event::new(Timestamp { time: 9, increment: 2 }, 77, Namespace::parse("a.b").unwrap(), [3; 16], change)
    }

    #[test]
    fn tokens_survive_and_sort_by_time() {
        for kind in [TokenKind::Event, TokenKind::HighWater, TokenKind::Invalidate] {
            let token = Token { at: Timestamp { time: 0x6543_2100, increment: 7 }, epoch: 0xdead_beef, kind };
            assert_eq!(Token::parse(Value::Document(token.to_doc().raw())), Ok(token));
        }
        for bad in [
            doc! { "_data": "xyz" },
            doc! {},
            doc! { "_data": "Z".repeat(26) },
            doc! { "_data": "é".repeat(13) },
        ] {
            assert_eq!(Token::parse(Value::Document(bad.raw())).unwrap_err().code.number, 260);
        }
        let earlier = Token::event(Timestamp { time: 1, increment: u32::MAX }, 9).to_doc();
        let later = Token::event(Timestamp { time: 2, increment: 0 }, 1).to_doc();
        assert!(earlier.get("_data").unwrap().as_str() < later.get("_data").unwrap().as_str());
    }

    #[test]
    fn an_update_shows_what_was_asked_for() {
        let after = doc! { "_id": 1, "a": 2 };
        let description = doc! { "updatedFields": { "a": 2 } };
        let mut update =
            event(Change::Update { key: doc! { "_id": 1 }, description, after: Some(after.clone()) });
        let plain = update.document(&View::default(), 1).unwrap();
        assert_eq!(plain.get("fullDocument"), None);
        assert_eq!(plain.get("documentKey"), Some(Value::Document(doc! { "_id": 1 }.raw())));
        let lookup = View { full_document: FullDocument::UpdateLookup, ..View::default() };
        assert_eq!(
            update.document(&lookup, 1).unwrap().get("fullDocument"),
            Some(Value::Document(after.raw()))
        );
        let required = View { full_document: FullDocument::Required, ..View::default() };
        assert_eq!(update.document(&required, 1).unwrap_err().code.number, 47);
        update.keeps_images = true;
        assert!(update.document(&required, 1).is_ok());
    }

    #[test]
    fn a_deletion_carries_no_document() {
        let delete = event(Change::Delete { key: doc! { "_id": 1 } }).document(&View::default(), 1).unwrap();
        let names: Vec<_> = delete.raw().iter().map(|element| element.key()).collect();
        assert_eq!(names, ["_id", "operationType", "clusterTime", "wallTime", "ns", "documentKey"]);
    }

    #[test]
    fn an_event_never_keeps_more_than_it_counts_for() {
        let doc = doc! { "_id": "x".repeat(3000), "text": "y".repeat(5000) };
        let (key, description) = (key_of(&doc), doc! { "updatedFields": { "text": "z".repeat(5000) } });
        let to = Namespace::new(&"d".repeat(60), &"c".repeat(190)).unwrap();
        let changes = [
            Change::Insert { doc: doc.clone() },
            Change::Replace { doc: doc.clone() },
            Change::Update { key: key.clone(), description, after: Some(doc.clone()) },
            Change::Delete { key },
            Change::Create { options: doc.clone() },
            Change::Modify { options: doc.clone() },
            Change::CreateIndex { spec: doc.clone() },
            Change::DropIndex { spec: doc.clone() },
            Change::Drop,
            Change::Rename { to: to.clone(), dropped: None },
            Change::DropDatabase,
        ];
        for change in changes {
            let mut event = Event::new(Timestamp::from_bits(u64::MAX), i64::MAX, to.clone(), [9; 16], change);
            event.before = Some(doc.clone());
            event.keeps_images = true;
            let counted = event.bytes();
            for full_document in [FullDocument::Default, FullDocument::UpdateLookup, FullDocument::Required] {
                for before_change in [BeforeChange::Off, BeforeChange::WhenAvailable] {
                    for expanded in [false, true] {
                        let view = View { full_document, before_change, expanded };
                        let size = event.document(&view, u32::MAX).unwrap().bytes().len();
                        assert!(size <= event.shown_bytes(&view), "{:?} in {view:?}: {size}", event.change);
                    }
                }
            }
            let shown = [&event.plain, &event.with_lookup].into_iter().filter_map(OnceLock::get);
            let shown: usize = shown.map(|doc| doc.bytes().len()).sum();
            assert!(shown > 0 && shown + size(&event.before) + size_of::<Event>() <= counted);
            if let Change::Insert { doc } | Change::Replace { doc } = &event.change {
                assert!(shown + doc.bytes().len() + size(&event.before) <= counted);
                assert!(event.with_lookup.get().is_none());
            }
            assert_eq!(event.bytes(), counted, "what was counted must be what is taken off");
        }
    }
}
