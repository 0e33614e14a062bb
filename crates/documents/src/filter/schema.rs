//! `$jsonSchema`: JSON Schema draft 4 with `bsonType` (MongoDB manual, "$jsonSchema").
//!
//! A keyword constrains only values of the types it is about. Unknown keywords are refused. Not supported,
//! and refused: `$ref`, `$schema`, `default`, `definitions`, `format`, `id` (as in MongoDB), encryption.

use super::regex::Pattern;
use super::types::{TypeSet, shown};
use crate::compare::{compare, equal};
use crate::doc::{Element, RawDoc};
use crate::error::{Error, Result};
use crate::number::{self, compare_numbers, to_decimal};
use crate::value::{Kind, Owned, Value};
use std::cmp::Ordering;

/// A parsed schema.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    types: Option<TypeSet>,
    choices: Option<Vec<Owned>>,
    minimum: Option<Owned>,
    maximum: Option<Owned>,
    exclusive_minimum: bool,
    exclusive_maximum: bool,
    multiple_of: Option<Owned>,
    length: Span,
    pattern: Option<Pattern>,
    items: Option<Items>,
    additional_items: Additional,
    item_count: Span,
    unique_items: bool,
    required: Vec<String>,
    properties: Vec<(String, Schema)>,
    pattern_properties: Vec<(Pattern, Schema)>,
    additional_properties: Additional,
    property_count: Span,
    dependencies: Vec<(String, Dependency)>,
    all_of: Vec<Schema>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Box<Schema>>,
}

/// A range of counts, both ends included.
#[derive(Clone, Copy, Debug)]
struct Span {
    least: u64,
    most: u64,
}

impl Default for Span {
    fn default() -> Span {
        Span { least: 0, most: u64::MAX }
    }
}

impl Span {
    fn contains(self, count: usize) -> bool {
        (self.least..=self.most).contains(&(count as u64))
    }
}

#[derive(Clone, Debug)]
enum Items {
    Each(Box<Schema>),
    Tuple(Vec<Schema>),
}

/// What holds for items or properties that nothing else names.
#[derive(Clone, Debug, Default)]
enum Additional {
    #[default]
    Allowed,
    Forbidden,
    Like(Box<Schema>),
}

#[derive(Clone, Debug)]
enum Dependency {
    Properties(Vec<String>),
    Schema(Box<Schema>),
}

impl Schema {
    /// Reads a schema. Errors: `FailedToParse` for unknown keywords and wrong values, `TypeMismatch`.
    pub fn parse(schema: RawDoc<'_>) -> Result<Schema> {
        let mut out = Schema::default();
        for keyword in schema {
            out.keyword(keyword)?;
        }
        if schema.element("type").is_some() && schema.element("bsonType").is_some() {
            return fail("Cannot specify both $jsonSchema keywords 'type' and 'bsonType'".into());
        }
        for (exclusive, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
            if schema.element(exclusive).is_some() && schema.element(bound).is_none() {
                let message =
                    format!("$jsonSchema keyword '{bound}' must be a present if {exclusive} is present");
                return fail(message);
            }
        }
        Ok(out)
    }

    fn keyword(&mut self, keyword: Element<'_>) -> Result<()> {
        let value = keyword.value();
        match keyword.key() {
            "type" => self.types = Some(json_types(value)?),
            "bsonType" => self.types = Some(bson_types(value)?),
            "enum" => self.choices = Some(array(keyword)?.values().map(|value| value.to_owned()).collect()),
            "minimum" => self.minimum = Some(number_of(keyword)?),
            "maximum" => self.maximum = Some(number_of(keyword)?),
            "exclusiveMinimum" => self.exclusive_minimum = boolean(keyword)?,
            "exclusiveMaximum" => self.exclusive_maximum = boolean(keyword)?,
            "multipleOf" => self.multiple_of = Some(positive(keyword)?),
            "minLength" => self.length.least = count(keyword)?,
            "maxLength" => self.length.most = count(keyword)?,
            "pattern" => self.pattern = Some(Pattern::new(text(keyword)?, "")?),
            "items" => {
                self.items = Some(match value {
                    Value::Array(_) => Items::Tuple(schemas(keyword)?),
                    _ => Items::Each(Box::new(schema(keyword)?)),
                });
            }
            "additionalItems" => self.additional_items = additional(keyword)?,
            "minItems" => self.item_count.least = count(keyword)?,
            "maxItems" => self.item_count.most = count(keyword)?,
            "uniqueItems" => self.unique_items = boolean(keyword)?,
            "required" => self.required = names(keyword)?,
            "properties" => {
                self.properties = fields(keyword)?
                    .map(|field| Ok((field.key().into(), schema(field)?)))
                    .collect::<Result<_>>()?;
            }
            "patternProperties" => {
                self.pattern_properties = fields(keyword)?
                    .map(|field| Ok((Pattern::new(field.key(), "")?, schema(field)?)))
                    .collect::<Result<_>>()?;
            }
            "additionalProperties" => self.additional_properties = additional(keyword)?,
            "minProperties" => self.property_count.least = count(keyword)?,
            "maxProperties" => self.property_count.most = count(keyword)?,
            "dependencies" => {
                let dependency = |field: Element<'_>| {
                    Ok((
                        field.key().into(),
                        match field.value() {
                            Value::Array(_) => Dependency::Properties(names(field)?),
                            _ => Dependency::Schema(Box::new(schema(field)?)),
                        },
                    ))
                };
                self.dependencies = fields(keyword)?.map(dependency).collect::<Result<_>>()?;
            }
            "allOf" => self.all_of = some_schemas(keyword)?,
            "anyOf" => self.any_of = some_schemas(keyword)?,
            "oneOf" => self.one_of = some_schemas(keyword)?,
            "not" => self.not = Some(Box::new(schema(keyword)?)),
            "title" | "description" => drop(text(keyword)?),
            name @ ("$ref" | "$schema" | "default" | "definitions" | "format" | "id") => {
                return fail(format!("$jsonSchema keyword '{name}' is not currently supported"));
            }
            name => return fail(format!("Unknown $jsonSchema keyword: {name}")),
        }
        Ok(())
    }

    /// Whether a value conforms. Error: a regular expression gave up.
    pub fn matches(&self, value: Value<'_>) -> Result<bool> {
        let fits = self.types.is_none_or(|types| types.contains(value.kind()))
            && self.choices.as_ref().is_none_or(|all| all.iter().any(|one| equal(one.value(), value)))
            && match value {
                Value::String(text) => {
                    self.length.contains(text.chars().count())
                        && self.pattern.as_ref().map_or(Ok(true), |pattern| pattern.is_match(text))?
                }
                Value::Array(items) => self.items_match(items)?,
                Value::Document(doc) => self.properties_match(doc)?,
                value => !value.is_number() || self.number_matches(value),
            };
        Ok(fits && self.combinations_match(value)?)
    }

    fn number_matches(&self, value: Value<'_>) -> bool {
        let within = |bound: &Option<Owned>, outside: Ordering, exclusive: bool| {
            bound.as_ref().is_none_or(|bound| match compare_numbers(value, bound.value()) {
                Ordering::Equal => !exclusive,
                order => order != outside,
            })
        };
        within(&self.minimum, Ordering::Less, self.exclusive_minimum)
            && within(&self.maximum, Ordering::Greater, self.exclusive_maximum)
            && self.multiple_of.as_ref().is_none_or(|unit| {
                match (to_decimal(value), to_decimal(unit.value())) {
                    (Some(value), Some(unit)) => (value % unit).is_zero(),
                    _ => false,
                }
            })
    }

    fn items_match(&self, items: RawDoc<'_>) -> Result<bool> {
        if !self.item_count.contains(items.len()) || (self.unique_items && !all_distinct(items)) {
            return Ok(false);
        }
        for (index, value) in items.values().enumerate() {
            let fits = match &self.items {
                None => true,
                Some(Items::Each(schema)) => schema.matches(value)?,
                Some(Items::Tuple(schemas)) => match schemas.get(index) {
                    Some(schema) => schema.matches(value)?,
                    None => self.additional_items.matches(value)?,
                },
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn properties_match(&self, doc: RawDoc<'_>) -> Result<bool> {
        if !self.property_count.contains(doc.len())
            || !self.required.iter().all(|name| doc.element(name).is_some())
        {
            return Ok(false);
        }
        for field in doc {
            if !self.property_matches(field)? {
                return Ok(false);
            }
        }
        for (name, dependency) in &self.dependencies {
            let holds = doc.element(name).is_none()
                || match dependency {
                    Dependency::Properties(names) => names.iter().all(|name| doc.element(name).is_some()),
                    Dependency::Schema(schema) => schema.matches(Value::Document(doc))?,
                };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn property_matches(&self, field: Element<'_>) -> Result<bool> {
        let (name, value) = (field.key(), field.value());
        let mut named = false;
        for (_, schema) in self.properties.iter().filter(|(property, _)| property == name) {
            named = true;
            if !schema.matches(value)? {
                return Ok(false);
            }
        }
        for (pattern, schema) in &self.pattern_properties {
            if pattern.is_match(name)? {
                named = true;
                if !schema.matches(value)? {
                    return Ok(false);
                }
            }
        }
        if named { Ok(true) } else { self.additional_properties.matches(value) }
    }

    fn combinations_match(&self, value: Value<'_>) -> Result<bool> {
        for schema in &self.all_of {
            if !schema.matches(value)? {
                return Ok(false);
            }
        }
        if !self.any_of.is_empty() && count_matches(&self.any_of, value)? == 0 {
            return Ok(false);
        }
        if !self.one_of.is_empty() && count_matches(&self.one_of, value)? != 1 {
            return Ok(false);
        }
        match &self.not {
            Some(schema) => Ok(!schema.matches(value)?),
            None => Ok(true),
        }
    }
}

impl Additional {
    fn matches(&self, value: Value<'_>) -> Result<bool> {
        match self {
            Additional::Allowed => Ok(true),
            Additional::Forbidden => Ok(false),
            Additional::Like(schema) => schema.matches(value),
        }
    }
}

fn count_matches(schemas: &[Schema], value: Value<'_>) -> Result<usize> {
    schemas.iter().try_fold(0, |count, schema| Ok(count + usize::from(schema.matches(value)?)))
}

fn all_distinct(items: RawDoc<'_>) -> bool {
    let mut values: Vec<_> = items.values().collect();
    values.sort_by(|a, b| compare(*a, *b));
    values.windows(2).all(|pair| !equal(pair[0], pair[1]))
}

fn fail<T>(message: String) -> Result<T> {
    Err(Error::failed_to_parse(message))
}

fn wrong_type<T>(keyword: Element<'_>, expected: &str) -> Result<T> {
    Err(Error::type_mismatch(format!("$jsonSchema keyword '{}' must be {expected}", keyword.key())))
}

fn schema(keyword: Element<'_>) -> Result<Schema> {
    match keyword.value() {
        Value::Document(schema) => Schema::parse(schema),
        _ => wrong_type(keyword, "an object"),
    }
}

fn schemas(keyword: Element<'_>) -> Result<Vec<Schema>> {
    array(keyword)?
        .values()
        .map(|value| match value {
            Value::Document(schema) => Schema::parse(schema),
            _ => wrong_type(keyword, "an array of objects"),
        })
        .collect()
}

fn some_schemas(keyword: Element<'_>) -> Result<Vec<Schema>> {
    match schemas(keyword)? {
        schemas if schemas.is_empty() => Err(Error::bad_value(format!(
            "$jsonSchema keyword '{}' must be a non-empty array",
            keyword.key()
        ))),
        schemas => Ok(schemas),
    }
}

fn additional(keyword: Element<'_>) -> Result<Additional> {
    match keyword.value() {
        Value::Bool(true) => Ok(Additional::Allowed),
        Value::Bool(false) => Ok(Additional::Forbidden),
        Value::Document(schema) => Ok(Additional::Like(Box::new(Schema::parse(schema)?))),
        _ => wrong_type(keyword, "either an object or a boolean"),
    }
}

fn array(keyword: Element<'_>) -> Result<RawDoc<'_>> {
    keyword.value().as_array().map_or_else(|| wrong_type(keyword, "an array"), Ok)
}

fn fields(keyword: Element<'_>) -> Result<crate::Iter<'_>> {
    keyword.value().as_document().map_or_else(|| wrong_type(keyword, "an object"), |doc| Ok(doc.iter()))
}

fn text(keyword: Element<'_>) -> Result<&str> {
    keyword.value().as_str().map_or_else(|| wrong_type(keyword, "a string"), Ok)
}

fn boolean(keyword: Element<'_>) -> Result<bool> {
    keyword.value().as_bool().map_or_else(|| wrong_type(keyword, "a boolean"), Ok)
}

fn number_of(keyword: Element<'_>) -> Result<Owned> {
    match keyword.value() {
        value if value.is_number() => Ok(value.to_owned()),
        _ => wrong_type(keyword, "a number"),
    }
}

fn positive(keyword: Element<'_>) -> Result<Owned> {
    let number = number_of(keyword)?;
    if compare_numbers(number.value(), Value::Int32(0)).is_gt() && !number::is_nan(number.value()) {
        return Ok(number);
    }
    fail(format!("$jsonSchema keyword '{}' must have a positive value", keyword.key()))
}

fn count(keyword: Element<'_>) -> Result<u64> {
    let value = keyword.value();
    if !value.is_number() {
        return wrong_type(keyword, "a number");
    }
    let count = number::to_integral(value).and_then(|count| u64::try_from(count).ok());
    count.map_or_else(
        || {
            let (name, shown) = (keyword.key(), shown(value));
            fail(format!("Expected a non-negative integer in: {name}: {shown}"))
        },
        Ok,
    )
}

fn names(keyword: Element<'_>) -> Result<Vec<String>> {
    let names = array(keyword)?;
    if names.is_empty() {
        return fail(format!("$jsonSchema keyword '{}' cannot be an empty array", keyword.key()));
    }
    let name = |value: Value<'_>| match value {
        Value::String(name) => Ok(name.to_string()),
        _ => wrong_type(keyword, "an array of strings"),
    };
    let names = names.values().map(name).collect::<Result<Vec<_>>>()?;
    let repeated = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name));
    match repeated {
        Some((_, name)) => fail(format!(
            "$jsonSchema keyword '{}' array cannot contain duplicate value: {name}",
            keyword.key()
        )),
        None => Ok(names),
    }
}

/// Adds every type that the argument, a name or an array of names, mentions.
fn types(keyword: &str, value: Value<'_>, mut add: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let mismatch = || {
        Error::type_mismatch(format!(
            "$jsonSchema keyword '{keyword}' must be either a string or an array of strings"
        ))
    };
    match value {
        Value::String(name) => add(name),
        Value::Array(names) if !names.is_empty() => {
            names.values().try_for_each(|name| add(name.as_str().ok_or_else(mismatch)?))
        }
        Value::Array(_) => fail(format!("$jsonSchema keyword '{keyword}' must name at least one type")),
        _ => Err(mismatch()),
    }
}

fn bson_types(value: Value<'_>) -> Result<TypeSet> {
    let mut set = TypeSet::default();
    types("bsonType", value, |name| match set.insert_alias(name) {
        true => Ok(()),
        false => Err(Error::bad_value(format!("Unknown type name alias: {name}"))),
    })?;
    Ok(set)
}

fn json_types(value: Value<'_>) -> Result<TypeSet> {
    let mut set = TypeSet::default();
    types("type", value, |name| {
        match name {
            "array" => set.insert(Kind::Array),
            "boolean" => set.insert(Kind::Bool),
            "null" => set.insert(Kind::Null),
            "object" => set.insert(Kind::Document),
            "string" => set.insert(Kind::String),
            "number" => drop(set.insert_alias("number")),
            "integer" => {
                return fail("$jsonSchema type 'integer' is not currently supported.".into());
            }
            other => return Err(Error::bad_value(format!("Unknown type name alias: {other}"))),
        }
        Ok(())
    })?;
    Ok(set)
}
