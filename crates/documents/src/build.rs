//! Building documents field by field, straight into their encoding.

use crate::doc::{Doc, Element, RawDoc};
use crate::value::{ToValue, Value};
use bytes::Bytes;

/// Writes a document (or array) into one buffer.
///
/// Nested documents and arrays are opened with `start_*` and closed with [`DocBuilder::end`]; arrays are
/// filled with `push*`, which number their elements.
#[derive(Debug)]
pub struct DocBuilder {
    bytes: Vec<u8>,
    /// Where each open level starts, and how many elements were pushed into it.
    open: Vec<(usize, usize)>,
}

impl Default for DocBuilder {
    fn default() -> DocBuilder {
        DocBuilder::new()
    }
}

impl DocBuilder {
    /// An empty document.
    pub fn new() -> DocBuilder {
        DocBuilder::with_capacity(128)
    }

    /// An empty document with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> DocBuilder {
        let mut bytes = Vec::with_capacity(capacity.max(5));
        bytes.extend_from_slice(&[0; 4]);
        DocBuilder { bytes, open: vec![(0, 0)] }
    }

    /// Adds a field.
    pub fn append(&mut self, name: &str, value: impl ToValue) -> &mut DocBuilder {
        self.append_value(name, value.to_value())
    }

    /// Adds a date field, in milliseconds since 1970.
    pub fn append_date(&mut self, name: &str, millis: i64) -> &mut DocBuilder {
        self.append_value(name, Value::DateTime(millis))
    }

    /// Adds a field.
    pub fn append_value(&mut self, name: &str, value: Value<'_>) -> &mut DocBuilder {
        self.header(value.kind() as u8, name.as_bytes());
        self.encode(value);
        self
    }

    /// Copies a field of another document as it is.
    pub fn append_element(&mut self, element: Element<'_>) -> &mut DocBuilder {
        self.header(element.kind_byte(), element.key_bytes());
        self.bytes.extend_from_slice(element.raw_value());
        self
    }

    /// Copies a field's value as it is under another name.
    pub fn append_renamed(&mut self, name: &str, element: Element<'_>) -> &mut DocBuilder {
        self.header(element.kind_byte(), name.as_bytes());
        self.bytes.extend_from_slice(element.raw_value());
        self
    }

    /// Copies all fields of another document.
    pub fn append_all(&mut self, doc: RawDoc<'_>) -> &mut DocBuilder {
        let bytes = doc.bytes();
        self.bytes.extend_from_slice(bytes.get(4..bytes.len().saturating_sub(1)).unwrap_or_default());
        self
    }

    /// Copies encoded elements (a run of a document's body) as they are.
    pub(crate) fn append_run(&mut self, elements: &[u8]) -> &mut DocBuilder {
        self.bytes.extend_from_slice(elements);
        self
    }

    /// Copies `count` encoded elements to the start of the open array; later pushes go on from there.
    pub(crate) fn push_run(&mut self, elements: &[u8], count: usize) -> &mut DocBuilder {
        if let Some((_, pushed)) = self.open.last_mut() {
            *pushed += count;
        }
        self.append_run(elements)
    }

    /// Copies a value as it is as the next element of the open array.
    pub(crate) fn push_element(&mut self, element: Element<'_>) -> &mut DocBuilder {
        self.push_header(element.kind_byte());
        self.append_run(element.raw_value())
    }

    /// The bytes written so far; the lengths of open levels are not in them yet.
    pub(crate) fn written(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds an array of documents, whose bytes are copied once.
    pub fn append_docs<'d>(
        &mut self,
        name: &str,
        docs: impl IntoIterator<Item = &'d Doc>,
    ) -> &mut DocBuilder {
        self.start_array(name);
        for doc in docs {
            self.push(doc);
        }
        self.end()
    }

    /// Adds an element to the open array.
    pub fn push(&mut self, value: impl ToValue) -> &mut DocBuilder {
        self.push_value(value.to_value())
    }

    /// Adds an element to the open array.
    pub fn push_value(&mut self, value: Value<'_>) -> &mut DocBuilder {
        self.push_header(value.kind() as u8);
        self.encode(value);
        self
    }

    /// Opens a nested document.
    pub fn start_document(&mut self, name: &str) -> &mut DocBuilder {
        self.header(0x03, name.as_bytes());
        self.start()
    }

    /// Opens a nested array.
    pub fn start_array(&mut self, name: &str) -> &mut DocBuilder {
        self.header(0x04, name.as_bytes());
        self.start()
    }

    /// Opens a document as the next element of the open array.
    pub fn push_document(&mut self) -> &mut DocBuilder {
        self.push_header(0x03);
        self.start()
    }

    /// Opens an array as the next element of the open array.
    pub fn push_array(&mut self) -> &mut DocBuilder {
        self.push_header(0x04);
        self.start()
    }

    /// Closes the innermost open document or array.
    pub fn end(&mut self) -> &mut DocBuilder {
        if let Some((start, _)) = self.open.pop() {
            self.bytes.push(0);
            let length = (self.bytes.len() - start) as u32;
            self.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
        }
        self
    }

    /// Bytes written so far.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Closes whatever is open and returns the document.
    pub fn finish(self) -> Doc {
        Doc::from_checked(Bytes::from(self.into_vec()))
    }

    /// Closes whatever is open and returns the document's bytes.
    pub fn into_vec(mut self) -> Vec<u8> {
        while !self.open.is_empty() {
            self.end();
        }
        self.bytes
    }

    fn start(&mut self) -> &mut DocBuilder {
        self.open.push((self.bytes.len(), 0));
        self.bytes.extend_from_slice(&[0; 4]);
        self
    }

    fn header(&mut self, kind: u8, name: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
    }

    fn push_header(&mut self, kind: u8) {
        let position = self.open.last_mut().map_or(0, |(_, count)| {
            *count += 1;
            *count - 1
        });
        self.bytes.push(kind);
        push_decimal(&mut self.bytes, position);
        self.bytes.push(0);
    }

    fn string(&mut self, text: &str) {
        self.bytes.extend_from_slice(&(text.len() as u32 + 1).to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
    }

    fn encode(&mut self, value: Value<'_>) {
        match value {
            Value::Double(v) => self.bytes.extend_from_slice(&v.to_le_bytes()),
            Value::String(v) | Value::Code(v) | Value::Symbol(v) => self.string(v),
            Value::Document(v) | Value::Array(v) => self.bytes.extend_from_slice(v.bytes()),
            Value::Binary { subtype, bytes } => {
                self.bytes.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                self.bytes.push(subtype);
                self.bytes.extend_from_slice(bytes);
            }
            Value::Undefined | Value::Null | Value::MinKey | Value::MaxKey => {}
            Value::ObjectId(v) => self.bytes.extend_from_slice(&v.0),
            Value::Bool(v) => self.bytes.push(u8::from(v)),
            Value::DateTime(v) | Value::Int64(v) => self.bytes.extend_from_slice(&v.to_le_bytes()),
            Value::Regex { pattern, options } => {
                for part in [pattern, options] {
                    self.bytes.extend_from_slice(part.as_bytes());
                    self.bytes.push(0);
                }
            }
            Value::DbPointer { namespace, id } => {
                self.string(namespace);
                self.bytes.extend_from_slice(&id.0);
            }
            Value::CodeWithScope { code, scope } => {
                let length = 4 + 4 + code.len() + 1 + scope.bytes().len();
                self.bytes.extend_from_slice(&(length as u32).to_le_bytes());
                self.string(code);
                self.bytes.extend_from_slice(scope.bytes());
            }
            Value::Int32(v) => self.bytes.extend_from_slice(&v.to_le_bytes()),
            Value::Timestamp(v) => self.bytes.extend_from_slice(&v.bits().to_le_bytes()),
            Value::Decimal128(v) => self.bytes.extend_from_slice(&v.0),
        }
    }
}

/// Writes the digits of an array position.
fn push_decimal(bytes: &mut Vec<u8>, position: usize) {
    if position >= 10 {
        push_decimal(bytes, position / 10);
    }
    bytes.push(b'0' + (position % 10) as u8);
}

/// Builds a [`Doc`](crate::Doc): `doc! { "a": 1, "b": { "c": [1, "x", { "d": value }] } }`.
/// Values are anything that implements [`ToValue`](crate::ToValue).
#[macro_export]
macro_rules! doc {
    ($($body:tt)*) => {{
        #[allow(unused_mut)]
        let mut builder = $crate::DocBuilder::new();
        $crate::doc_fields!(builder; $($body)*);
        builder.finish()
    }};
}

/// Builds an [`Owned::Array`](crate::Owned): `array![1, "x", { "d": 2 }]`.
#[macro_export]
macro_rules! array {
    ($($body:tt)*) => {{
        #[allow(unused_mut)]
        let mut builder = $crate::DocBuilder::new();
        $crate::doc_items!(builder; $($body)*);
        $crate::Owned::Array(builder.finish())
    }};
}

#[doc(hidden)]
#[macro_export]
macro_rules! doc_fields {
    ($b:ident;) => {};
    ($b:ident; $key:literal : { $($inner:tt)* } $(, $($rest:tt)*)?) => {
        $b.start_document($key);
        $crate::doc_fields!($b; $($inner)*);
        $b.end();
        $($crate::doc_fields!($b; $($rest)*);)?
    };
    ($b:ident; $key:literal : [ $($inner:tt)* ] $(, $($rest:tt)*)?) => {
        $b.start_array($key);
        $crate::doc_items!($b; $($inner)*);
        $b.end();
        $($crate::doc_fields!($b; $($rest)*);)?
    };
    ($b:ident; $key:literal : null $(, $($rest:tt)*)?) => {
        $b.append_value($key, $crate::Value::Null);
        $($crate::doc_fields!($b; $($rest)*);)?
    };
    ($b:ident; $key:literal : $value:expr $(, $($rest:tt)*)?) => {
        $b.append($key, $value);
        $($crate::doc_fields!($b; $($rest)*);)?
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! doc_items {
    ($b:ident;) => {};
    ($b:ident; { $($inner:tt)* } $(, $($rest:tt)*)?) => {
        $b.push_document();
        $crate::doc_fields!($b; $($inner)*);
        $b.end();
        $($crate::doc_items!($b; $($rest)*);)?
    };
    ($b:ident; [ $($inner:tt)* ] $(, $($rest:tt)*)?) => {
        $b.push_array();
        $crate::doc_items!($b; $($inner)*);
        $b.end();
        $($crate::doc_items!($b; $($rest)*);)?
    };
    ($b:ident; null $(, $($rest:tt)*)?) => {
        $b.push_value($crate::Value::Null);
        $($crate::doc_items!($b; $($rest)*);)?
    };
    ($b:ident; $value:expr $(, $($rest:tt)*)?) => {
        $b.push($value);
        $($crate::doc_items!($b; $($rest)*);)?
    };
}

#[cfg(test)]
mod tests {
    use crate::{Doc, Malformed, Owned, Value, check};
    use bytes::Bytes;

    #[test]
    fn builds_what_the_reference_encoder_builds() {
        let ours = doc! { "a": 1, "b": { "c": ["x", 2.5, { "d": true }], "e": null }, "f": 7i64, "g": [] };
        let theirs =
            bson::doc! { "a": 1, "b": { "c": ["x", 2.5, { "d": true }], "e": null }, "f": 7i64, "g": [] };
        assert_eq!(ours.bytes()[..], theirs.to_vec().unwrap());
        assert_eq!(check(ours.bytes()), Ok(()));
    }

    #[test]
    fn array_positions_have_all_their_digits() {
        let mut builder = crate::DocBuilder::new();
        builder.start_array("n");
        for n in 0..1234 {
            builder.push(n);
        }
        let doc = builder.finish();
        let array = doc.get("n").unwrap().as_array().unwrap();
        assert!(
            array
                .iter()
                .enumerate()
                .all(|(n, e)| e.key() == n.to_string() && e.value() == Value::Int32(n as i32))
        );
    }

    #[test]
    fn every_kind_survives_a_round_trip() {
        let owned = [
            Owned::Regex { pattern: "a.b".into(), options: "imx".into() },
            Owned::Binary { subtype: 9, bytes: Bytes::from_static(b"xyz") },
            Owned::CodeWithScope { code: "f()".into(), scope: doc! { "x": 1 } },
            Owned::DbPointer { namespace: "a.b".into(), id: crate::ObjectId([7; 12]) },
            Owned::Symbol("s".into()),
            Owned::Undefined,
            Owned::MinKey,
            Owned::MaxKey,
            Owned::Decimal128(crate::Decimal128([3; 16])),
            Owned::Timestamp(crate::Timestamp { time: 9, increment: 4 }),
        ];
        for value in owned {
            let doc = doc! { "v": &value };
            assert_eq!(check(doc.bytes()), Ok(()), "{value:?}");
            assert_eq!(doc.get("v").unwrap().to_owned(), value);
        }
    }

    #[test]
    fn nesting_stops_at_the_limit() {
        let nested = |levels: usize| {
            let mut builder = crate::DocBuilder::new();
            for _ in 1..levels {
                builder.start_document("a");
            }
            builder.into_vec()
        };
        assert_eq!(check(&nested(crate::MAX_DEPTH)), Ok(()));
        assert_eq!(check(&nested(crate::MAX_DEPTH + 1)), Err(Malformed::TooDeep(crate::MAX_DEPTH)));
        assert_eq!(check(&nested(100_000)), Err(Malformed::TooDeep(crate::MAX_DEPTH)));
    }

    proptest::proptest! {
        #[test]
        fn damaged_bytes_never_panic(flip in 0usize..80, byte: u8, cut in 0usize..80) {
            let doc = doc! { "a": "text", "b": { "c": [1, 2.0, null] }, "d": true, "e": 5i64 };
            let mut bytes = doc.bytes().to_vec();
            let flip = flip % bytes.len();
            bytes[flip] = byte;
            bytes.truncate(bytes.len() - cut % 8);
            let checked = check(&bytes);
            let read = format!("{:?}", Doc::from_checked(Bytes::from(bytes.clone())));
            proptest::prop_assert!(!read.is_empty());
            if checked.is_ok() {
                proptest::prop_assert!(Doc::new(Bytes::from(bytes)).is_ok());
            }
        }
    }
}
