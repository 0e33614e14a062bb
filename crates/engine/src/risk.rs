//! What a write is worth: the value that its documents have in configured fields.
//!
//! A write counts with the value of each document that it inserts (also by an upsert), and of each document whose
//! value it changes, as it is afterwards. What it deletes counts nothing.

use crate::command::Ack;
use crate::namespace::Namespace;
use rockdove_documents::decimal::Rounding;
use rockdove_documents::path::Path;
use rockdove_documents::{Error, RawDoc, Result, Value, code};
use rockdove_journal::{Cause, Exposure, Level, RiskPolicy};
use std::fmt;
use std::str::FromStr;

/// Largest value of a write or a document, 2^53: the integers up to it are the same in JSON and as doubles.
pub const VALUE_MAX: u64 = 1 << 53;

/// Where the documents of some collections have their value.
///
/// As text: `NAMESPACE=PATH`, such as `shop.orders=total.amount`. In the namespace, `*` stands for any characters.
#[derive(Clone, Debug)]
pub struct RiskField {
    /// Parts of the namespace between the stars.
    pattern: Vec<String>,
    path: Path,
}

/// Why a text is no [`RiskField`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no field: write NAMESPACE=PATH, such as shop.orders=total.amount or 'shop.*=value'")]
pub struct RiskFieldError(String);

impl FromStr for RiskField {
    type Err = RiskFieldError;

    fn from_str(text: &str) -> Result<Self, RiskFieldError> {
        let wrong = || RiskFieldError(text.into());
        let (pattern, path) = text.split_once('=').ok_or_else(wrong)?;
        let names_collection = pattern.contains('*') || Namespace::parse(pattern).is_ok();
        if !names_collection || path.split('.').any(|name| name.is_empty() || name.starts_with('$')) {
            return Err(wrong());
        }
        Ok(RiskField { pattern: pattern.split('*').map(str::to_owned).collect(), path: Path::new(path) })
    }
}

impl fmt::Display for RiskField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern.join("*"), self.path)
    }
}

impl RiskField {
    fn covers(&self, ns: &Namespace) -> bool {
        let Some((first, rest)) = self.pattern.split_first() else { return false };
        let Some(mut left) = ns.full().strip_prefix(first.as_str()) else { return false };
        let Some((last, between)) = rest.split_last() else { return left.is_empty() };
        for part in between {
            match left.split_once(part.as_str()) {
                Some((_, after)) => left = after,
                None => return false,
            }
        }
        left.ends_with(last.as_str())
    }

    /// The value in a document: 0 without the field. A fraction counts as the next higher integer. What is no number,
    /// is negative or above [`VALUE_MAX`], or is not found for an array in its way, is an error.
    fn value(&self, doc: RawDoc<'_>) -> Result<u64> {
        let (mut at, parts) = (doc, self.path.parts());
        for (place, part) in parts.iter().enumerate() {
            match at.get(part.name()) {
                None | Some(Value::Null | Value::Undefined) => return Ok(0),
                Some(value) if place + 1 == parts.len() => {
                    return integer(value).ok_or_else(|| self.refuse("is not a number from 0 to 2^53"));
                }
                Some(Value::Document(inner)) => at = inner,
                Some(Value::Array(_)) => return Err(self.refuse("lies in an array")),
                Some(_) => return Ok(0),
            }
        }
        Ok(0)
    }

    fn refuse(&self, what: &str) -> Error {
        Error::bad_value(format!("the value at risk, field '{}', {what}", self.path))
    }
}

fn integer(value: Value<'_>) -> Option<u64> {
    let whole = match value {
        Value::Double(number) => Value::Double(number.ceil()).as_integer()?,
        Value::Decimal128(number) => number.decode().round(0, Rounding::Ceiling).to_i64()?,
        other => other.as_integer()?,
    };
    u64::try_from(whole).ok().filter(|value| *value <= VALUE_MAX)
}

/// What the sequencer knows of value at risk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Valuation {
    /// The log's policy, if it has one.
    pub policy: Option<RiskPolicy>,
    /// Where documents have a value; where several cover a collection, the first counts.
    pub fields: Vec<RiskField>,
}

impl Valuation {
    fn field(&self, ns: &Namespace) -> Option<&RiskField> {
        self.fields.iter().find(|field| field.covers(ns))
    }

    /// Fails if this cannot be asked for.
    pub fn check(&self, ack: Ack) -> Result<()> {
        if ack.value > VALUE_MAX {
            return Err(Error::bad_value(format!("the value {} is larger than 2^53", ack.value)));
        }
        if ack.level == Level::Risk && self.policy.is_none() {
            let message = "acknowledgement level 'risk' needs a risk policy, which this server does not have";
            return Err(Error::new(code::INVALID_OPTIONS, message));
        }
        Ok(())
    }

    /// Whether documents of the collection have a value.
    pub fn covers(&self, ns: &Namespace) -> bool {
        self.field(ns).is_some()
    }

    /// What is at risk with a new document.
    pub fn of_new(&self, ns: &Namespace, doc: RawDoc<'_>) -> Result<u64> {
        self.field(ns).map_or(Ok(0), |field| field.value(doc))
    }

    /// What is at risk with a changed document.
    pub fn of_changed(&self, ns: &Namespace, before: RawDoc<'_>, after: RawDoc<'_>) -> Result<u64> {
        let Some(field) = self.field(ns) else { return Ok(0) };
        let value = field.value(after)?;
        Ok(if field.value(before).ok() == Some(value) { 0 } else { value })
    }
}

/// How the log stands with value at risk ([`Engine::risk`](crate::Engine::risk)).
#[derive(Clone, Debug)]
pub struct RiskStatus {
    /// The policy in force.
    pub policy: RiskPolicy,
    /// Where documents have their value.
    pub fields: Vec<RiskField>,
    /// What is at risk now.
    pub exposure: Exposure,
    /// How many syncs succeeded, for each cause; one may have several.
    pub syncs: Vec<(Cause, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::{Decimal128, Doc, doc};

    fn field(text: &str) -> RiskField {
        text.parse().unwrap()
    }

    #[test]
    fn patterns_cover_namespaces() {
        let covers =
            |pattern: &str, ns: &str| field(&format!("{pattern}=v")).covers(&Namespace::parse(ns).unwrap());
        assert!(covers("shop.msg", "shop.msg") && !covers("shop.msg", "shop.msg2"));
        assert!(!covers("shop.msg", "my_shop.msg"));
        assert!(covers("shop.*", "shop.a.b") && !covers("shop.*", "shop2.a"));
        assert!(covers("*.orders", "a.orders") && !covers("*.orders", "a.orders2"));
        assert!(covers("*", "a.b") && covers("a*b*c", "a.bc") && covers("a*b*c", "a.xbyyc"));
        assert!(!covers("a*b*b", "a.b"), "one b is not two");
    }

    #[test]
    fn what_names_no_field_is_refused() {
        for wrong in ["", "shop.msg", "shop=v", "shop.msg=", "shop.msg=a..b", "shop.msg=$v", "=v", "shop.*="]
        {
            assert!(wrong.parse::<RiskField>().is_err(), "{wrong}");
        }
        assert_eq!(field("shop.mmsg_*=map_value.amount").to_string(), "shop.mmsg_*=map_value.amount");
    }

    #[test]
    fn values_are_integers_rounded_up() {
        let field = field("*=a.v");
        let value = |doc: Doc| field.value(doc.raw()).ok();
        let inner = |value: Value<'_>| doc! { "a": { "v": value } };
        let decimal = |text: &str| Value::Decimal128(Decimal128::parse(text).unwrap());
        let max = VALUE_MAX as i64;
        for (given, expected) in [
            (Value::Int32(7), Some(7)),
            (Value::Int64(max), Some(VALUE_MAX)),
            (Value::Int64(max + 1), None),
            (Value::Int32(-1), None),
            (Value::Double(12.0), Some(12)),
            (Value::Double(12.001), Some(13)),
            (Value::Double(-0.5), Some(0)),
            (Value::Double(-1.5), None),
            (Value::Double(f64::NAN), None),
            (Value::Double(f64::INFINITY), None),
            (Value::Double(1e300), None),
            (decimal("12.01"), Some(13)),
            (decimal("12"), Some(12)),
            (decimal("-3"), None),
            (decimal("NaN"), None),
            (decimal("1E+30"), None),
            (Value::String("5"), None),
            (Value::Bool(true), None),
            (Value::Null, Some(0)),
        ] {
            assert_eq!(value(inner(given)), expected, "{given:?}");
        }
        assert_eq!(value(doc! {}), Some(0));
        assert_eq!(value(doc! { "a": 5 }), Some(0));
        assert_eq!(value(doc! { "a": [{ "v": 5 }] }), None, "an array in the way is not passed over");
    }

    #[test]
    fn a_change_counts_if_the_value_changes() {
        let valuation = Valuation { policy: Some(RiskPolicy::default()), fields: vec![field("db.c=v")] };
        let ns = Namespace::parse("db.c").unwrap();
        let changed = |before: Doc, after: Doc| valuation.of_changed(&ns, before.raw(), after.raw());
        assert_eq!(changed(doc! { "v": 5 }, doc! { "v": 5, "seen": true }), Ok(0));
        assert_eq!(changed(doc! { "v": 5 }, doc! { "v": 4 }), Ok(4));
        assert_eq!(changed(doc! { "v": "?" }, doc! { "v": 4 }), Ok(4));
        assert!(changed(doc! { "v": 5 }, doc! { "v": "?" }).is_err());
        let other = Namespace::parse("db.d").unwrap();
        assert_eq!(valuation.of_new(&other, doc! { "v": "?" }.raw()), Ok(0));
    }
}
