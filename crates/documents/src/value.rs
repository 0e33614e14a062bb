//! Values: borrowed from a document ([`Value`]) or computed ([`Owned`]).

use crate::doc::{Doc, RawDoc};
use crate::types::{Decimal128, ObjectId, Timestamp};
use bytes::Bytes;

/// The type of a value, with the type byte of the BSON specification.
#[allow(missing_docs, reason = "each variant is its BSON name")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    Double = 0x01,
    String = 0x02,
    Document = 0x03,
    Array = 0x04,
    Binary = 0x05,
    Undefined = 0x06,
    ObjectId = 0x07,
    Bool = 0x08,
    DateTime = 0x09,
    Null = 0x0A,
    Regex = 0x0B,
    DbPointer = 0x0C,
    Code = 0x0D,
    Symbol = 0x0E,
    CodeWithScope = 0x0F,
    Int32 = 0x10,
    Timestamp = 0x11,
    Int64 = 0x12,
    Decimal128 = 0x13,
    MaxKey = 0x7F,
    MinKey = 0xFF,
}

impl Kind {
    /// The type with this type byte; unknown bytes (which checked documents do not have) are `Undefined`.
    pub fn from_byte(byte: u8) -> Kind {
        use Kind::*;
        const KINDS: [Kind; 19] = [
            Double,
            String,
            Document,
            Array,
            Binary,
            Undefined,
            ObjectId,
            Bool,
            DateTime,
            Null,
            Regex,
            DbPointer,
            Code,
            Symbol,
            CodeWithScope,
            Int32,
            Timestamp,
            Int64,
            Decimal128,
        ];
        match byte {
            0x7F => MaxKey,
            0xFF => MinKey,
            1..=19 => KINDS[usize::from(byte) - 1],
            _ => Undefined,
        }
    }

    /// The name that `$type` and error messages use (MongoDB manual, BSON types).
    pub fn alias(self) -> &'static str {
        match self {
            Kind::Double => "double",
            Kind::String => "string",
            Kind::Document => "object",
            Kind::Array => "array",
            Kind::Binary => "binData",
            Kind::Undefined => "undefined",
            Kind::ObjectId => "objectId",
            Kind::Bool => "bool",
            Kind::DateTime => "date",
            Kind::Null => "null",
            Kind::Regex => "regex",
            Kind::DbPointer => "dbPointer",
            Kind::Code => "javascript",
            Kind::Symbol => "symbol",
            Kind::CodeWithScope => "javascriptWithScope",
            Kind::Int32 => "int",
            Kind::Timestamp => "timestamp",
            Kind::Int64 => "long",
            Kind::Decimal128 => "decimal",
            Kind::MaxKey => "maxKey",
            Kind::MinKey => "minKey",
        }
    }
}

/// A value inside a document, borrowed. `==` compares representation (`1` and `1.0` differ); the comparison
/// that queries use is in the crate's `compare` module.
#[allow(missing_docs, reason = "each variant is its BSON name")]
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'a> {
    Double(f64),
    String(&'a str),
    Document(RawDoc<'a>),
    Array(RawDoc<'a>),
    Binary {
        subtype: u8,
        bytes: &'a [u8],
    },
    Undefined,
    ObjectId(ObjectId),
    Bool(bool),
    /// Milliseconds since 1970.
    DateTime(i64),
    Null,
    Regex {
        pattern: &'a str,
        options: &'a str,
    },
    DbPointer {
        namespace: &'a str,
        id: ObjectId,
    },
    Code(&'a str),
    Symbol(&'a str),
    CodeWithScope {
        code: &'a str,
        scope: RawDoc<'a>,
    },
    Int32(i32),
    Timestamp(Timestamp),
    Int64(i64),
    Decimal128(Decimal128),
    MinKey,
    MaxKey,
}

/// A computed value: the owned twin of [`Value`]. Documents and arrays stay encoded.
#[allow(missing_docs, reason = "each variant is its BSON name")]
#[derive(Clone, PartialEq, Debug)]
pub enum Owned {
    Double(f64),
    String(String),
    Document(Doc),
    /// Encoded like a document whose names are the positions.
    Array(Doc),
    Binary {
        subtype: u8,
        bytes: Bytes,
    },
    Undefined,
    ObjectId(ObjectId),
    Bool(bool),
    /// Milliseconds since 1970.
    DateTime(i64),
    Null,
    Regex {
        pattern: String,
        options: String,
    },
    DbPointer {
        namespace: String,
        id: ObjectId,
    },
    Code(String),
    Symbol(String),
    CodeWithScope {
        code: String,
        scope: Doc,
    },
    Int32(i32),
    Timestamp(Timestamp),
    Int64(i64),
    Decimal128(Decimal128),
    MinKey,
    MaxKey,
}

impl<'a> Value<'a> {
    /// The type.
    pub fn kind(&self) -> Kind {
        match self {
            Value::Double(_) => Kind::Double,
            Value::String(_) => Kind::String,
            Value::Document(_) => Kind::Document,
            Value::Array(_) => Kind::Array,
            Value::Binary { .. } => Kind::Binary,
            Value::Undefined => Kind::Undefined,
            Value::ObjectId(_) => Kind::ObjectId,
            Value::Bool(_) => Kind::Bool,
            Value::DateTime(_) => Kind::DateTime,
            Value::Null => Kind::Null,
            Value::Regex { .. } => Kind::Regex,
            Value::DbPointer { .. } => Kind::DbPointer,
            Value::Code(_) => Kind::Code,
            Value::Symbol(_) => Kind::Symbol,
            Value::CodeWithScope { .. } => Kind::CodeWithScope,
            Value::Int32(_) => Kind::Int32,
            Value::Timestamp(_) => Kind::Timestamp,
            Value::Int64(_) => Kind::Int64,
            Value::Decimal128(_) => Kind::Decimal128,
            Value::MinKey => Kind::MinKey,
            Value::MaxKey => Kind::MaxKey,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The document (not array).
    pub fn as_document(&self) -> Option<RawDoc<'a>> {
        match self {
            Value::Document(doc) => Some(*doc),
            _ => None,
        }
    }

    /// The array.
    pub fn as_array(&self) -> Option<RawDoc<'a>> {
        match self {
            Value::Array(array) => Some(*array),
            _ => None,
        }
    }

    /// The boolean (only a boolean).
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The integral value of an int32, int64 or a double that has one.
    pub fn as_integer(&self) -> Option<i64> {
        const LIMIT: f64 = 9_223_372_036_854_775_808.0; // 2^63
        match self {
            Value::Int32(value) => Some(i64::from(*value)),
            Value::Int64(value) => Some(*value),
            Value::Double(value) if value.fract() == 0.0 && *value >= -LIMIT && *value < LIMIT => {
                Some(*value as i64)
            }
            _ => None,
        }
    }

    /// The value of an int32, int64 or double as a double (an int64 may lose precision).
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Int32(value) => Some(f64::from(*value)),
            Value::Int64(value) => Some(*value as f64),
            Value::Double(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether it is a number of any of the four types.
    pub fn is_number(&self) -> bool {
        matches!(self, Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_))
    }

    /// A copy that borrows nothing.
    pub fn to_owned(&self) -> Owned {
        match *self {
            Value::Double(v) => Owned::Double(v),
            Value::String(v) => Owned::String(v.into()),
            Value::Document(v) => Owned::Document(v.to_doc()),
            Value::Array(v) => Owned::Array(v.to_doc()),
            Value::Binary { subtype, bytes } => {
                Owned::Binary { subtype, bytes: Bytes::copy_from_slice(bytes) }
            }
            Value::Undefined => Owned::Undefined,
            Value::ObjectId(v) => Owned::ObjectId(v),
            Value::Bool(v) => Owned::Bool(v),
            Value::DateTime(v) => Owned::DateTime(v),
            Value::Null => Owned::Null,
            Value::Regex { pattern, options } => {
                Owned::Regex { pattern: pattern.into(), options: options.into() }
            }
            Value::DbPointer { namespace, id } => Owned::DbPointer { namespace: namespace.into(), id },
            Value::Code(v) => Owned::Code(v.into()),
            Value::Symbol(v) => Owned::Symbol(v.into()),
            Value::CodeWithScope { code, scope } => {
                Owned::CodeWithScope { code: code.into(), scope: scope.to_doc() }
            }
            Value::Int32(v) => Owned::Int32(v),
            Value::Timestamp(v) => Owned::Timestamp(v),
            Value::Int64(v) => Owned::Int64(v),
            Value::Decimal128(v) => Owned::Decimal128(v),
            Value::MinKey => Owned::MinKey,
            Value::MaxKey => Owned::MaxKey,
        }
    }
}

impl Owned {
    /// The borrowed view, which all functions of this crate take.
    pub fn value(&self) -> Value<'_> {
        match self {
            Owned::Double(v) => Value::Double(*v),
            Owned::String(v) => Value::String(v),
            Owned::Document(v) => Value::Document(v.raw()),
            Owned::Array(v) => Value::Array(v.raw()),
            Owned::Binary { subtype, bytes } => Value::Binary { subtype: *subtype, bytes },
            Owned::Undefined => Value::Undefined,
            Owned::ObjectId(v) => Value::ObjectId(*v),
            Owned::Bool(v) => Value::Bool(*v),
            Owned::DateTime(v) => Value::DateTime(*v),
            Owned::Null => Value::Null,
            Owned::Regex { pattern, options } => Value::Regex { pattern, options },
            Owned::DbPointer { namespace, id } => Value::DbPointer { namespace, id: *id },
            Owned::Code(v) => Value::Code(v),
            Owned::Symbol(v) => Value::Symbol(v),
            Owned::CodeWithScope { code, scope } => Value::CodeWithScope { code, scope: scope.raw() },
            Owned::Int32(v) => Value::Int32(*v),
            Owned::Timestamp(v) => Value::Timestamp(*v),
            Owned::Int64(v) => Value::Int64(*v),
            Owned::Decimal128(v) => Value::Decimal128(*v),
            Owned::MinKey => Value::MinKey,
            Owned::MaxKey => Value::MaxKey,
        }
    }
}

/// What can stand as a field's value when a document is built.
pub trait ToValue {
    /// The value to encode.
    fn to_value(&self) -> Value<'_>;
}

macro_rules! to_value {
    ($($type:ty, $self:ident => $value:expr;)*) => {
        $(impl ToValue for $type {
            fn to_value(&self) -> Value<'_> {
                let $self = self;
                $value
            }
        })*
    };
}

to_value! {
    f64, v => Value::Double(*v);
    i32, v => Value::Int32(*v);
    i64, v => Value::Int64(*v);
    bool, v => Value::Bool(*v);
    str, v => Value::String(v);
    String, v => Value::String(v);
    ObjectId, v => Value::ObjectId(*v);
    Timestamp, v => Value::Timestamp(*v);
    Decimal128, v => Value::Decimal128(*v);
    Doc, v => Value::Document(v.raw());
    RawDoc<'_>, v => Value::Document(*v);
    Value<'_>, v => *v;
    Owned, v => v.value();
}

impl<T: ToValue + ?Sized> ToValue for &T {
    fn to_value(&self) -> Value<'_> {
        (**self).to_value()
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Null, ToValue::to_value)
    }
}

/// Decodes a value of this type byte; malformed bytes (which checked documents do not have) read as `Undefined`.
pub(crate) fn decode(kind: u8, raw: &[u8]) -> Value<'_> {
    try_decode(kind, raw).unwrap_or(Value::Undefined)
}

fn try_decode(kind: u8, raw: &[u8]) -> Option<Value<'_>> {
    Some(match Kind::from_byte(kind) {
        Kind::Double => Value::Double(f64::from_le_bytes(raw.try_into().ok()?)),
        Kind::String => Value::String(text(raw)?),
        Kind::Document => Value::Document(RawDoc::from_checked(raw)),
        Kind::Array => Value::Array(RawDoc::from_checked(raw)),
        Kind::Binary => Value::Binary { subtype: *raw.get(4)?, bytes: raw.get(5..)? },
        Kind::Undefined => Value::Undefined,
        Kind::ObjectId => Value::ObjectId(ObjectId(raw.try_into().ok()?)),
        Kind::Bool => Value::Bool(*raw.first()? != 0),
        Kind::DateTime => Value::DateTime(i64::from_le_bytes(raw.try_into().ok()?)),
        Kind::Null => Value::Null,
        Kind::Regex => {
            let mut parts = raw.split(|byte| *byte == 0);
            let pattern = std::str::from_utf8(parts.next()?).ok()?;
            Value::Regex { pattern, options: std::str::from_utf8(parts.next()?).ok()? }
        }
        Kind::DbPointer => {
            let (namespace, id) = raw.split_at_checked(raw.len().checked_sub(12)?)?;
            Value::DbPointer { namespace: text(namespace)?, id: ObjectId(id.try_into().ok()?) }
        }
        Kind::Code => Value::Code(text(raw)?),
        Kind::Symbol => Value::Symbol(text(raw)?),
        Kind::CodeWithScope => {
            let rest = raw.get(4..)?;
            let length = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize;
            let (code, scope) = rest.split_at_checked(length.checked_add(4)?)?;
            Value::CodeWithScope { code: text(code)?, scope: RawDoc::from_checked(scope) }
        }
        Kind::Int32 => Value::Int32(i32::from_le_bytes(raw.try_into().ok()?)),
        Kind::Timestamp => Value::Timestamp(Timestamp::from_bits(u64::from_le_bytes(raw.try_into().ok()?))),
        Kind::Int64 => Value::Int64(i64::from_le_bytes(raw.try_into().ok()?)),
        Kind::Decimal128 => Value::Decimal128(Decimal128(raw.try_into().ok()?)),
        Kind::MinKey => Value::MinKey,
        Kind::MaxKey => Value::MaxKey,
    })
}

/// The text of an encoded string: a length word, the text, a NUL.
fn text(raw: &[u8]) -> Option<&str> {
    std::str::from_utf8(raw.get(4..raw.len().checked_sub(1)?)?).ok()
}
