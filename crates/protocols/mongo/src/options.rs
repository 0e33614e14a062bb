//! Reading a command's options: one walk over the document, typed getters, MongoDB's error texts.
//!
//! Queries and writes refuse fields that they do not know ([`Fields::only`]), as MongoDB does: a misspelt option
//! would change what is done. Other commands pass them over: clients send them (Morphium adds `coll`, `includeClient`
//! and empty values). `null` counts as absent.

use rockdove_documents::{Element, Error, Kind, RawDoc, Value};

/// Most fields of a command or statement; real ones have a dozen.
const FIELDS_MAX: usize = 200;

/// Fields that every command has (MongoDB's generic arguments): session, API version, concerns, gossip.
const GENERIC: [&str; 33] = [
    "$db",
    "lsid",
    "$clusterTime",
    "$readPreference",
    "txnNumber",
    "writeConcern",
    "rockdove", // ours: what a write asks for beside its write concern
    "readConcern",
    "comment",
    "maxTimeMS",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
    "stmtId",
    "stmtIds",
    "autocommit",
    "startTransaction",
    "coordinator",
    "txnRetryCounter",
    "maxTimeMSOpOnly",
    "help",
    "rawData",
    "databaseVersion",
    "shardVersion",
    "allowImplicitCollectionCreation",
    "mayBypassWriteBlocking",
    "$audit",
    "$client",
    "$configTime",
    "$topologyTime",
    "$oplogQueryData",
    "$queryOptions",
    "$replData",
];

/// A field that is missing or of the wrong form. It makes the whole command wrong, also where it is a statement's.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError(pub Error);

/// What reading a field returns.
pub type Result<T, E = FieldError> = std::result::Result<T, E>;

impl From<FieldError> for Error {
    fn from(wrong: FieldError) -> Error {
        wrong.0
    }
}

/// The fields of a command or of one of its parts.
#[derive(Debug)]
pub struct Fields<'a> {
    /// What errors call the document: `find`, `update.updates`.
    path: &'a str,
    elements: Vec<Element<'a>>,
}

impl<'a> Fields<'a> {
    /// Walks over `doc`, which errors call `path`.
    pub fn new(path: &'a str, doc: RawDoc<'a>) -> Result<Fields<'a>> {
        let mut elements = Vec::with_capacity(12);
        for element in doc {
            if elements.len() == FIELDS_MAX {
                let message = format!("'{path}' has more than {FIELDS_MAX} fields");
                return Err(FieldError(Error::failed_to_parse(message)));
            }
            elements.push(element);
        }
        Ok(Fields { path, elements })
    }

    /// The value of a field that is there and not null.
    pub fn get(&self, name: &str) -> Option<Value<'a>> {
        let element = self.elements.iter().find(|element| element.key_bytes() == name.as_bytes())?;
        Some(element.value()).filter(|value| !matches!(value, Value::Null | Value::Undefined))
    }

    /// The value of a field that must be there.
    pub fn required(&self, name: &str) -> Result<Value<'a>> {
        self.get(name).ok_or_else(|| self.missing(name))
    }

    /// The error about a field that must be there.
    pub fn missing(&self, name: &str) -> FieldError {
        let message = format!("BSON field '{}.{name}' is missing but a required field", self.path);
        FieldError(Error::location(40414, message))
    }

    /// Refuses a command with fields other than `known`, its first, and those that every command has.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        let is_known = |key: &str| known.contains(&key) || GENERIC.contains(&key);
        self.refuse(self.elements.iter().skip(1).find(|element| !is_known(element.key())))
    }

    /// Refuses a part of a command with fields other than `known`.
    pub fn only_these(&self, known: &[&str]) -> Result<()> {
        self.refuse(self.elements.iter().find(|element| !known.contains(&element.key())))
    }

    fn refuse(&self, unknown: Option<&Element<'_>>) -> Result<()> {
        unknown.map_or(Ok(()), |element| Err(FieldError(self.unknown(element.key()))))
    }

    /// The error about a field that is not known.
    pub fn unknown(&self, name: &str) -> Error {
        Error::location(40415, format!("BSON field '{}.{name}' is an unknown field.", self.path))
    }

    /// A boolean; numbers count as whether they are not zero.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>> {
        self.get(name)
            .map(|value| match value {
                Value::Bool(value) => Ok(value),
                _ if value.is_number() => Ok(value.as_f64() != Some(0.0)),
                _ => Err(self.wrong_type(name, value, "types '[bool, long, int, decimal, double]'")),
            })
            .transpose()
    }

    /// A boolean that is false where absent.
    pub fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.boolean(name)?.unwrap_or(false))
    }

    /// A number of any type with an integral value.
    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        self.get(name)
            .map(|value| match value.as_integer() {
                Some(integer) => Ok(integer),
                None if matches!(value, Value::Double(v) if v.is_finite()) => {
                    let message = format!("BSON field '{}.{name}' must have an integral value", self.path);
                    Err(FieldError(Error::bad_value(message)))
                }
                None => Err(self.wrong_type(name, value, "types '[long, int, decimal, double]'")),
            })
            .transpose()
    }

    /// An integral number that is not negative.
    pub fn count(&self, name: &str) -> Result<Option<u64>> {
        self.integer(name)?
            .map(|integer| {
                u64::try_from(integer).map_err(|_| {
                    let message = format!("BSON field '{name}' value must be >= 0, actual value '{integer}'");
                    FieldError(Error::location(51024, message))
                })
            })
            .transpose()
    }

    /// A document.
    pub fn document(&self, name: &str) -> Result<Option<RawDoc<'a>>> {
        self.typed(name, Value::as_document, Kind::Document)
    }

    /// An array.
    pub fn array(&self, name: &str) -> Result<Option<RawDoc<'a>>> {
        self.typed(name, Value::as_array, Kind::Array)
    }

    /// A string.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, Value::as_str, Kind::String)
    }

    /// A document that must be there.
    pub fn required_document(&self, name: &str) -> Result<RawDoc<'a>> {
        self.document(name)?.ok_or_else(|| self.missing(name))
    }

    /// An array that must be there.
    pub fn required_array(&self, name: &str) -> Result<RawDoc<'a>> {
        self.array(name)?.ok_or_else(|| self.missing(name))
    }

    /// A string that must be there.
    pub fn required_string(&self, name: &str) -> Result<&'a str> {
        self.string(name)?.ok_or_else(|| self.missing(name))
    }

    fn typed<T>(&self, name: &str, read: impl Fn(&Value<'a>) -> Option<T>, kind: Kind) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.wrong_type(name, value, &format!("type '{}'", kind.alias()))),
        }
    }

    fn wrong_type(&self, name: &str, value: Value<'_>, expected: &str) -> FieldError {
        FieldError(Error::type_mismatch(format!(
            "BSON field '{}.{name}' is the wrong type '{}', expected {expected}",
            self.path,
            value.kind().alias()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::doc;

    #[test]
    fn numbers_of_any_type_are_integers_if_integral() {
        let doc = doc! { "a": 1, "b": 2i64, "c": 3.0, "d": 1.5, "e": "x", "f": null, "g": true };
        let fields = Fields::new("find", doc.raw()).unwrap();
        assert_eq!(fields.integer("a"), Ok(Some(1)));
        assert_eq!(fields.integer("b"), Ok(Some(2)));
        assert_eq!(fields.integer("c"), Ok(Some(3)));
        assert_eq!(fields.integer("d").unwrap_err().0.code.number, 2);
        assert_eq!(
            fields.integer("e").unwrap_err().0.message,
            "BSON field 'find.e' is the wrong type 'string', expected types '[long, int, decimal, double]'"
        );
        assert_eq!(fields.integer("f"), Ok(None));
        assert_eq!(fields.integer("g").unwrap_err().0.code.number, 14);
        assert_eq!(fields.integer("nothing"), Ok(None));
    }

    #[test]
    fn wrong_types_name_field_and_types() {
        let doc = doc! { "filter": 1, "flag": 1, "text": {}, "negative": (-1) };
        let fields = Fields::new("find", doc.raw()).unwrap();
        assert_eq!(
            fields.document("filter").unwrap_err().0.message,
            "BSON field 'find.filter' is the wrong type 'int', expected type 'object'"
        );
        assert_eq!(fields.flag("flag"), Ok(true));
        assert_eq!(fields.flag("filter"), Ok(true));
        assert_eq!(fields.flag("text").unwrap_err().0.code.number, 14);
        assert_eq!(fields.string("text").unwrap_err().0.code.number, 14);
        assert_eq!(fields.count("negative").unwrap_err().0.code.number, 51024);
        assert_eq!(
            fields.required_array("documents").unwrap_err().0.message,
            "BSON field 'find.documents' is missing but a required field"
        );
    }

    #[test]
    fn unknown_fields_are_refused() {
        let doc = doc! { "find": "c", "filter": {}, "lsid": {}, "$db": "d", "comment": "x" };
        let fields = Fields::new("find", doc.raw()).unwrap();
        assert_eq!(fields.only(&["filter"]), Ok(()));
        assert_eq!(fields.only(&[]).unwrap_err().0.message, "BSON field 'find.filter' is an unknown field.");
        assert_eq!(fields.only_these(&["find", "filter"]).unwrap_err().0.code.number, 40415);
    }

    #[test]
    fn fields_are_bounded() {
        let mut builder = rockdove_documents::DocBuilder::new();
        for n in 0..=FIELDS_MAX {
            builder.append(&n.to_string(), 1);
        }
        assert_eq!(Fields::new("find", builder.finish().raw()).unwrap_err().0.code.number, 9);
    }
}
