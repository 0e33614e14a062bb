//! Sets of BSON types, as `$type` and `$jsonSchema` name them.

use crate::error::{Error, Result};
use crate::number;
use crate::value::{Kind, Value};

/// Some of the BSON types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TypeSet(u32);

const NUMBERS: [Kind; 4] = [Kind::Double, Kind::Int32, Kind::Int64, Kind::Decimal128];

const KINDS: [Kind; 21] = [
    Kind::Double,
    Kind::String,
    Kind::Document,
    Kind::Array,
    Kind::Binary,
    Kind::Undefined,
    Kind::ObjectId,
    Kind::Bool,
    Kind::DateTime,
    Kind::Null,
    Kind::Regex,
    Kind::DbPointer,
    Kind::Code,
    Kind::Symbol,
    Kind::CodeWithScope,
    Kind::Int32,
    Kind::Timestamp,
    Kind::Int64,
    Kind::Decimal128,
    Kind::MinKey,
    Kind::MaxKey,
];

impl TypeSet {
    /// Adds a type.
    pub fn insert(&mut self, kind: Kind) {
        self.0 |= bit(kind);
    }

    /// Whether a type is in the set.
    pub fn contains(self, kind: Kind) -> bool {
        self.0 & bit(kind) != 0
    }

    /// Whether no type is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The types in the set.
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        KINDS.into_iter().filter(move |kind| self.contains(*kind))
    }

    /// Adds the type that an alias or `number` names; false if nothing is called so.
    pub(crate) fn insert_alias(&mut self, alias: &str) -> bool {
        if alias == "number" {
            NUMBERS.into_iter().for_each(|kind| self.insert(kind));
            return true;
        }
        let found = KINDS.into_iter().find(|kind| kind.alias() == alias);
        found.inspect(|kind| self.insert(*kind)).is_some()
    }

    /// Reads the argument of `$type`: a number, an alias, or an array of them.
    pub(crate) fn parse(value: Value<'_>) -> Result<TypeSet> {
        let mut set = TypeSet::default();
        match value {
            Value::Array(types) => types.values().try_for_each(|value| set.insert_value(value))?,
            value => set.insert_value(value)?,
        }
        if set.is_empty() {
            return Err(Error::failed_to_parse(" $type must match at least one type"));
        }
        Ok(set)
    }

    fn insert_value(&mut self, value: Value<'_>) -> Result<()> {
        if let Value::String(alias) = value {
            return match self.insert_alias(alias) {
                true => Ok(()),
                false => Err(Error::bad_value(format!("Unknown type name alias: {alias}"))),
            };
        }
        if !value.is_number() {
            return Err(Error::type_mismatch("type must be represented as a number or a string"));
        }
        let kind = match number::to_integral(value) {
            Some(-1) => Kind::MinKey,
            Some(127) => Kind::MaxKey,
            Some(code @ 1..=19) => Kind::from_byte(code as u8),
            Some(0) => {
                let message = "Invalid numerical type code: 0. Instead use {$exists:false}.";
                return Err(Error::bad_value(message));
            }
            _ => return Err(Error::bad_value(format!("Invalid numerical type code: {}", shown(value)))),
        };
        self.insert(kind);
        Ok(())
    }
}

fn bit(kind: Kind) -> u32 {
    match kind {
        Kind::MinKey => 1,
        Kind::MaxKey => 1 << 20,
        other => 1 << other as u8,
    }
}

/// A number as an error message shows it.
pub(crate) fn shown(value: Value<'_>) -> String {
    match value {
        Value::Double(v) => v.to_string(),
        Value::Int32(v) => v.to_string(),
        Value::Int64(v) => v.to_string(),
        Value::Decimal128(v) => v.to_string(),
        Value::String(v) => format!("\"{v}\""),
        Value::Bool(v) => v.to_string(),
        other => other.kind().alias().to_string(),
    }
}
