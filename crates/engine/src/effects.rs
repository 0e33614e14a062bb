//! Effects: what a batch of commands did, as the log keeps it.
//!
//! The format is described in `docs/format/effects.md`. An effect is physical: applying it needs no clock, no
//! randomness and no evaluation, so a restart and a follower arrive at the same state.
//!
//! Invariants
//! * Document bytes go into the log as they are; nothing is encoded twice.
//! * Every effect has a time of its own: the batch's first time plus its position. Times only grow.
//! * Decoding checks every length against what is there and never panics.

use bytes::Bytes;
use rockdove_documents::{Doc, DocBuilder, MAX_DEPTH, Timestamp, Value};
use thiserror::Error;

/// Version of the batch format.
const VERSION: u8 = 1;
/// Bytes before the first effect.
const HEADER_BYTES: usize = 1 + 8 + 8;
/// Set in the flags byte when the document as it was before follows.
const HAS_BEFORE: u8 = 1;

/// Deepest nesting of what the log and checkpoints keep: it has documents inside, or what a command had, which are held to
/// less when they come in.
pub const LEVELS_MAX: usize = 2 * MAX_DEPTH;

/// Number of a collection; never used twice.
pub type CollectionNumber = u32;
/// Number of a record within its collection; only grows.
pub type RecordNumber = u64;

/// One lasting change.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// A collection came into being: `{ns, uuid, options}`.
    Create { collection: CollectionNumber, info: Doc },
    /// A collection was dropped.
    Drop { collection: CollectionNumber },
    /// A collection got another name: `{from, to}`, and `dropTarget` with the UUID of the one that was dropped for it.
    Rename { collection: CollectionNumber, names: Doc },
    /// A collection's options changed to these.
    Modify { collection: CollectionNumber, options: Doc },
    /// A database was dropped (its collections were dropped by effects of their own): `{db}`.
    DropDatabase { name: Doc },
    /// An index was built, from this specification; one of the same name is replaced.
    CreateIndex { collection: CollectionNumber, spec: Doc },
    /// An index was dropped: `{name}`.
    DropIndex { collection: CollectionNumber, name: Doc },
    /// A document was inserted.
    Insert { collection: CollectionNumber, record: RecordNumber, doc: Doc },
    /// A document was replaced as a whole.
    Replace { collection: CollectionNumber, record: RecordNumber, doc: Doc, before: Option<Doc> },
    /// Fields of a document changed: `key` is its `{_id}`, `description` what a change stream reports.
    Patch {
        collection: CollectionNumber,
        record: RecordNumber,
        key: Doc,
        description: Doc,
        before: Option<Doc>,
    },
    /// A document was removed: `key` is its `{_id}`.
    Remove { collection: CollectionNumber, record: RecordNumber, key: Doc, before: Option<Doc> },
    /// Retryable statements were carried out: `sessions::describe` says how it is written.
    Retryable { statement: Doc },
}

/// Why a batch of the log cannot be read.
#[derive(Debug, Error, PartialEq)]
pub enum DecodeError {
    /// Written by a newer version.
    #[error("the log holds a batch of format version {0}, this program knows version {VERSION}")]
    Version(u8),
    /// The bytes end early or hold an unknown effect.
    #[error("a batch of the log is malformed at byte {0}")]
    Malformed(usize),
}

/// Builds one batch: small fields in a buffer, documents by reference.
#[derive(Debug)]
pub struct BatchEncoder {
    scratch: Vec<u8>,
    /// Documents, each with the length of the scratch before it.
    docs: Vec<(usize, Bytes)>,
    doc_bytes: usize,
    effects: u64,
    first: Timestamp,
}

impl BatchEncoder {
    /// A batch whose first effect happens at `first`; `wall_ms` is the clock's time for people.
    pub fn new(first: Timestamp, wall_ms: i64) -> BatchEncoder {
        let mut scratch = Vec::with_capacity(256);
        scratch.push(VERSION);
        scratch.extend_from_slice(&first.bits().to_le_bytes());
        scratch.extend_from_slice(&wall_ms.to_le_bytes());
        BatchEncoder { scratch, docs: Vec::new(), doc_bytes: 0, effects: 0, first }
    }

    /// The time of the next effect.
    pub fn next_at(&self) -> Timestamp {
        Timestamp::from_bits(self.first.bits() + self.effects)
    }

    /// Adds an effect and returns its time.
    pub fn push(&mut self, effect: &Effect) -> Timestamp {
        let at = self.next_at();
        self.effects += 1;
        match effect {
            Effect::Create { collection, info } => self.small(1, *collection, info),
            Effect::Drop { collection } => self.head(2, None, *collection),
            Effect::Rename { collection, names } => self.small(3, *collection, names),
            Effect::Modify { collection, options } => self.small(4, *collection, options),
            Effect::DropDatabase { name } => self.small(5, 0, name),
            Effect::CreateIndex { collection, spec } => self.small(6, *collection, spec),
            Effect::DropIndex { collection, name } => self.small(7, *collection, name),
            Effect::Insert { collection, record, doc } => {
                self.record_head(8, *collection, *record, None);
                self.doc(doc);
            }
            Effect::Replace { collection, record, doc, before } => {
                self.record_head(9, *collection, *record, before.as_ref());
                self.doc(doc);
                self.before(before);
            }
            Effect::Patch { collection, record, key, description, before } => {
                self.record_head(10, *collection, *record, before.as_ref());
                self.doc(key);
                self.doc(description);
                self.before(before);
            }
            Effect::Remove { collection, record, key, before } => {
                self.record_head(11, *collection, *record, before.as_ref());
                self.doc(key);
                self.before(before);
            }
            Effect::Retryable { statement } => self.small(12, 0, statement),
        }
        at
    }

    /// How many effects it holds.
    pub fn len(&self) -> u64 {
        self.effects
    }

    /// Bytes of the whole batch.
    pub fn size(&self) -> usize {
        self.scratch.len() + self.doc_bytes
    }

    /// The batch as the slices to append, in order.
    pub fn parts(&self) -> Vec<&[u8]> {
        let mut parts = Vec::with_capacity(2 * self.docs.len() + 1);
        let mut from = 0;
        for (upto, doc) in &self.docs {
            parts.push(&self.scratch[from..*upto]);
            parts.push(&doc[..]);
            from = *upto;
        }
        parts.push(&self.scratch[from..]);
        parts.retain(|part| !part.is_empty());
        parts
    }

    fn head(&mut self, tag: u8, before: Option<&Doc>, collection: CollectionNumber) {
        self.scratch.push(tag);
        self.scratch.push(if before.is_some() { HAS_BEFORE } else { 0 });
        self.scratch.extend_from_slice(&collection.to_le_bytes());
    }

    fn record_head(
        &mut self,
        tag: u8,
        collection: CollectionNumber,
        record: RecordNumber,
        before: Option<&Doc>,
    ) {
        self.head(tag, before, collection);
        self.scratch.extend_from_slice(&record.to_le_bytes());
    }

    fn small(&mut self, tag: u8, collection: CollectionNumber, doc: &Doc) {
        self.head(tag, None, collection);
        self.doc(doc);
    }

    fn before(&mut self, before: &Option<Doc>) {
        if let Some(before) = before {
            self.doc(before);
        }
    }

    /// Small documents are copied (cheaper than one more slice), large ones go by reference.
    fn doc(&mut self, doc: &Doc) {
        if doc.bytes().len() <= 128 {
            self.scratch.extend_from_slice(doc.bytes());
        } else {
            self.doc_bytes += doc.bytes().len();
            self.docs.push((self.scratch.len(), doc.bytes().clone()));
        }
    }
}

/// How many of a document's bytes are copied when its insertion is made ready for the log; the others go there from
/// where they are. For benchmarks.
pub fn copied_into_log(doc: &Doc) -> usize {
    let mut encoder = BatchEncoder::new(Timestamp::default(), 0);
    encoder.push(&Effect::Insert { collection: 1, record: 1, doc: doc.clone() });
    let parts = encoder.parts();
    let shared = parts.iter().filter(|part| doc.bytes().as_ptr_range().contains(&part.as_ptr()));
    doc.bytes().len() - shared.map(|part| part.len()).sum::<usize>()
}

/// What a payload of the log says for people: each effect of the batch as a document, in BSON. `None` if it is no whole
/// batch of a version that this program knows: another program's log may hold anything.
pub fn describe_batch(payload: &[u8]) -> Option<Vec<Vec<u8>>> {
    let decoder = BatchDecoder::new(Bytes::copy_from_slice(payload)).ok()?;
    let effects = decoder.map(|effect| effect.ok()?.1.describe()).collect::<Option<Vec<_>>>()?;
    (!effects.is_empty()).then_some(effects)
}

impl Effect {
    /// Name, collection, record, and documents under the names that `docs/format/effects.md` has for them. `None` if one
    /// of them is no valid document.
    fn describe(&self) -> Option<Vec<u8>> {
        type Parts<'a> = &'a [(&'static str, Option<&'a Doc>)];
        let describe = |name: &str, collection: Option<&u32>, record: Option<&u64>, parts: Parts<'_>| {
            let mut out = DocBuilder::new();
            out.append("effect", name);
            if let Some(collection) = collection {
                out.append("collection", i64::from(*collection));
            }
            if let Some(record) = record {
                out.append("record", i64::try_from(*record).ok()?);
            }
            for (part, doc) in parts.iter().filter_map(|(part, doc)| Some((part, (*doc)?))) {
                let doc = Doc::new_within(doc.bytes().clone(), LEVELS_MAX).ok()?;
                out.append_value(part, Value::Document(doc.raw()));
            }
            Some(out.into_vec())
        };
        match self {
            Effect::Create { collection, info } => {
                describe("create", Some(collection), None, &[("info", Some(info))])
            }
            Effect::Drop { collection } => describe("drop", Some(collection), None, &[]),
            Effect::Rename { collection, names } => {
                describe("rename", Some(collection), None, &[("names", Some(names))])
            }
            Effect::Modify { collection, options } => {
                describe("modify", Some(collection), None, &[("options", Some(options))])
            }
            Effect::DropDatabase { name } => describe("dropDatabase", None, None, &[("name", Some(name))]),
            Effect::CreateIndex { collection, spec } => {
                describe("createIndex", Some(collection), None, &[("spec", Some(spec))])
            }
            Effect::DropIndex { collection, name } => {
                describe("dropIndex", Some(collection), None, &[("name", Some(name))])
            }
            Effect::Insert { collection, record, doc } => {
                describe("insert", Some(collection), Some(record), &[("document", Some(doc))])
            }
            Effect::Replace { collection, record, doc, before } => describe(
                "replace",
                Some(collection),
                Some(record),
                &[("document", Some(doc)), ("before", before.as_ref())],
            ),
            Effect::Patch { collection, record, key, description, before } => describe(
                "patch",
                Some(collection),
                Some(record),
                &[("key", Some(key)), ("description", Some(description)), ("before", before.as_ref())],
            ),
            Effect::Remove { collection, record, key, before } => describe(
                "remove",
                Some(collection),
                Some(record),
                &[("key", Some(key)), ("before", before.as_ref())],
            ),
            Effect::Retryable { statement } => {
                describe("retryable", None, None, &[("statement", Some(statement))])
            }
        }
    }
}

/// A batch read from the log: its effects in order, each with its time.
#[derive(Debug)]
pub struct BatchDecoder {
    payload: Bytes,
    at: usize,
    next: Timestamp,
    /// Milliseconds since 1970 at which the batch was written.
    pub wall_ms: i64,
}

impl BatchDecoder {
    /// Reads the header of a batch.
    pub fn new(payload: Bytes) -> Result<BatchDecoder, DecodeError> {
        let version = *payload.first().ok_or(DecodeError::Malformed(0))?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let mut decoder = BatchDecoder { payload, at: 1, next: Timestamp::default(), wall_ms: 0 };
        decoder.next = Timestamp::from_bits(u64::from_le_bytes(decoder.fixed()?));
        decoder.wall_ms = i64::from_le_bytes(decoder.fixed()?);
        debug_assert_eq!(decoder.at, HEADER_BYTES);
        Ok(decoder)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let bytes = self.payload.get(self.at..self.at + N).and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or(DecodeError::Malformed(self.at))?;
        self.at += N;
        Ok(bytes)
    }

    fn doc(&mut self) -> Result<Doc, DecodeError> {
        let start = self.at;
        let length = u32::from_le_bytes(self.fixed()?) as usize;
        let end = start.checked_add(length).filter(|end| length >= 5 && *end <= self.payload.len());
        let end = end.ok_or(DecodeError::Malformed(start))?;
        self.at = end;
        Ok(Doc::from_checked(self.payload.slice(start..end)))
    }

    fn effect(&mut self) -> Result<Effect, DecodeError> {
        let start = self.at;
        let [tag, flags] = self.fixed()?;
        let collection = u32::from_le_bytes(self.fixed()?);
        let has_before = flags & HAS_BEFORE != 0;
        Ok(match tag {
            1 => Effect::Create { collection, info: self.doc()? },
            2 => Effect::Drop { collection },
            3 => Effect::Rename { collection, names: self.doc()? },
            4 => Effect::Modify { collection, options: self.doc()? },
            5 => Effect::DropDatabase { name: self.doc()? },
            6 => Effect::CreateIndex { collection, spec: self.doc()? },
            7 => Effect::DropIndex { collection, name: self.doc()? },
            8 => Effect::Insert { collection, record: self.record()?, doc: self.doc()? },
            9 => {
                let (record, doc) = (self.record()?, self.doc()?);
                Effect::Replace { collection, record, doc, before: self.before(has_before)? }
            }
            10 => {
                let (record, key, description) = (self.record()?, self.doc()?, self.doc()?);
                Effect::Patch { collection, record, key, description, before: self.before(has_before)? }
            }
            11 => {
                let (record, key) = (self.record()?, self.doc()?);
                Effect::Remove { collection, record, key, before: self.before(has_before)? }
            }
            12 => Effect::Retryable { statement: self.doc()? },
            _ => return Err(DecodeError::Malformed(start)),
        })
    }

    fn record(&mut self) -> Result<RecordNumber, DecodeError> {
        Ok(u64::from_le_bytes(self.fixed()?))
    }

    fn before(&mut self, present: bool) -> Result<Option<Doc>, DecodeError> {
        present.then(|| self.doc()).transpose()
    }
}

impl Iterator for BatchDecoder {
    type Item = Result<(Timestamp, Effect), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.payload.len() {
            return None;
        }
        let at = self.next;
        self.next = Timestamp::from_bits(at.bits().wrapping_add(1));
        let effect = self.effect();
        if effect.is_err() {
            self.at = self.payload.len();
        }
        Some(effect.map(|effect| (at, effect)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rockdove_documents::doc;

    fn sample() -> Vec<Effect> {
        let (key, big) = (doc! { "_id": 7 }, doc! { "_id": 7, "text": "x".repeat(300) });
        vec![
            Effect::Create { collection: 1, info: doc! { "ns": "a.b" } },
            Effect::CreateIndex { collection: 1, spec: doc! { "name": "a_1" } },
            Effect::Insert { collection: 1, record: 9, doc: big.clone() },
            Effect::Replace { collection: 1, record: 9, doc: key.clone(), before: Some(big.clone()) },
            Effect::Patch { collection: 1, record: 9, key: key.clone(), description: doc! {}, before: None },
            Effect::Remove { collection: 1, record: 9, key: key.clone(), before: Some(big) },
            Effect::Retryable { statement: doc! { "stmt": 0 } },
            Effect::Rename { collection: 1, names: doc! { "from": "a.b", "to": "a.c" } },
            Effect::Modify { collection: 1, options: doc! {} },
            Effect::DropIndex { collection: 1, name: doc! { "name": "a_1" } },
            Effect::Drop { collection: 1 },
            Effect::DropDatabase { name: doc! { "db": "a" } },
        ]
    }

    fn encoded(effects: &[Effect]) -> Vec<u8> {
        let mut encoder = BatchEncoder::new(Timestamp { time: 5, increment: 1 }, 1234);
        for effect in effects {
            encoder.push(effect);
        }
        let bytes = encoder.parts().concat();
        assert_eq!(bytes.len(), encoder.size());
        bytes
    }

    #[test]
    fn effects_survive_a_round_trip_with_growing_times() {
        let decoder = BatchDecoder::new(encoded(&sample()).into()).unwrap();
        assert_eq!(decoder.wall_ms, 1234);
        let (times, effects): (Vec<_>, Vec<_>) = decoder.map(Result::unwrap).unzip();
        assert_eq!(effects, sample());
        assert!(times.windows(2).all(|pair| pair[1].bits() == pair[0].bits() + 1));
    }

    #[test]
    fn every_effect_can_be_described() {
        let described = describe_batch(&encoded(&sample())).unwrap();
        let name = |effect: &Vec<u8>| {
            let effect = Doc::new(Bytes::copy_from_slice(effect)).unwrap();
            effect.get("effect").and_then(|name| name.as_str().map(str::to_owned)).unwrap()
        };
        let names: Vec<_> = described.iter().map(name).collect();
        assert_eq!(
            names.join(" "),
            "create createIndex insert replace patch remove retryable rename modify dropIndex drop dropDatabase"
        );
        let insert = Doc::new(Bytes::copy_from_slice(&described[2])).unwrap();
        let expected = doc! {
            "effect": "insert", "collection": 1_i64, "record": 9_i64,
            "document": doc! { "_id": 7, "text": "x".repeat(300) },
        };
        assert_eq!(insert, expected);
    }

    #[test]
    fn what_nests_as_deep_as_a_checkpoint_may_is_described() {
        let nested = |levels: usize| (1..levels).fold(doc! {}, |inner, _| doc! { "a": inner });
        let described = |statement| describe_batch(&encoded(&[Effect::Retryable { statement }]));
        assert!(described(nested(MAX_DEPTH + 1)).is_some() && described(nested(LEVELS_MAX)).is_some());
        assert_eq!(described(nested(LEVELS_MAX + 1)), None);
    }

    #[test]
    fn what_is_no_batch_is_not_described() {
        let batch = encoded(&sample());
        assert_eq!(describe_batch(&batch[..HEADER_BYTES]), None, "no effect");
        assert_eq!(describe_batch(&batch[..batch.len() - 1]), None);
        let mut damaged = encoded(&[Effect::Insert { collection: 1, record: 1, doc: doc! { "a": true } }]);
        *damaged.last_mut().unwrap() = 1; // a document ends with zero
        assert_eq!(describe_batch(&damaged), None);
        for other in [&b""[..], b"\x01", b"text", &[9; 40]] {
            assert_eq!(describe_batch(other), None);
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        assert_eq!(BatchDecoder::new(Bytes::from_static(&[9; 40])).unwrap_err(), DecodeError::Version(9));
    }

    proptest! {
        #[test]
        fn damaged_batches_never_panic(at in 0usize..900, byte: u8, cut in 0usize..900) {
            let mut bytes = encoded(&sample());
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Ok(decoder) = BatchDecoder::new(bytes.into()) {
                let _ = decoder.count();
            }
        }
    }
}
