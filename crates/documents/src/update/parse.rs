//! Reading an update: which kind it is, its operators and their paths.

use super::array::{Push, parse_add_to_set, parse_pull_all};
use super::op::{Op, parse_bits, parse_current_date, parse_number, parse_pop};
use super::run::ArrayFilter;
use super::tree::filter_name;
use super::{Kind, Operators, Update, UpdateOptions, replace};
use crate::expr::Surroundings;
use crate::filter::{FilterOptions, ValueFilter};
use crate::pipeline::Pipeline;
use crate::show::show;
use crate::{Error, Owned, RawDoc, Result, Value, code};
use std::sync::Arc;

/// Whether a condition that may take long is anywhere in a text.
fn asks_much(text: Value<'_>) -> bool {
    match text {
        Value::Regex { .. } => true,
        Value::Document(inner) | Value::Array(inner) => inner.iter().any(|element| {
            matches!(element.key(), "$expr" | "$jsonSchema" | "$regex") || asks_much(element.value())
        }),
        _ => false,
    }
}

impl Update {
    /// Parses the `u` of an update statement: a replacement, operators, or (an array) a pipeline.
    /// `array_filters` is the statement's array of filters for `$[name]`.
    pub fn parse(
        update: Value<'_>,
        array_filters: Option<RawDoc<'_>>,
        options: &UpdateOptions,
    ) -> Result<Update> {
        let array_filters = array_filters.filter(|filters| !filters.is_empty());
        let bytes = update.as_document().or(update.as_array()).map_or(0, |text| text.bytes().len());
        let mut filters = Vec::new();
        let kind = match update {
            Value::Document(doc) if is_operators(doc) => {
                filters = parse_filters(array_filters.unwrap_or(RawDoc::empty()), options)?;
                Kind::Operators(Parser { options, filters: &filters, used: Vec::new() }.operators(doc)?)
            }
            Value::Document(_) if array_filters.is_some() => {
                return Err(Error::failed_to_parse(
                    "arrayFilters may not be specified for replacement updates",
                ));
            }
            Value::Document(doc) => {
                replace::validate(doc)?;
                Kind::Replacement(doc.to_doc())
            }
            Value::Array(_) if array_filters.is_some() => {
                return Err(Error::failed_to_parse(
                    "arrayFilters may not be specified for pipeline-style updates",
                ));
            }
            Value::Array(stages) => Kind::Pipeline(Pipeline::parse_update(stages, options)?),
            other => {
                return Err(Error::failed_to_parse(format!(
                    "Update argument must be either an object or an array, not {}",
                    other.kind().alias()
                )));
            }
        };
        Ok(Update {
            kind,
            asks_much: asks_much(update) || array_filters.is_some_and(|all| asks_much(Value::Array(all))),
            filters,
            bytes,
            collation: options.collation.clone(),
            now_ms: options.now_ms,
            timestamp: options.timestamp,
            variables: options.variables.clone(),
        })
    }
}

fn is_operators(doc: RawDoc<'_>) -> bool {
    doc.iter().next().is_some_and(|first| first.key_bytes().first() == Some(&b'$'))
}

/// Reads `arrayFilters`: each is a query whose fields all start with one name.
fn parse_filters(array: RawDoc<'_>, options: &UpdateOptions) -> Result<Vec<ArrayFilter>> {
    let mut filters: Vec<ArrayFilter> = Vec::new();
    for value in array.values() {
        let Value::Document(query) = value else {
            return Err(Error::type_mismatch(format!(
                "arrayFilters must be an array of objects, not of {}",
                value.kind().alias()
            )));
        };
        let mut name = None;
        top_level_name(query, &mut name)?;
        let Some(name) = name else {
            return Err(Error::failed_to_parse(
                "Cannot use an expression without a top-level field name in arrayFilters",
            ));
        };
        let valid = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !valid {
            return Err(Error::bad_value(format!(
                "Error parsing array filter :: caused by :: The top-level field name must be an alphanumeric \
                 string beginning with a lowercase letter, found '{name}'"
            )));
        }
        if filters.iter().any(|filter| filter.name == name) {
            return Err(Error::failed_to_parse(format!(
                "Found multiple array filters with the same top-level field name {name}"
            )));
        }
        let filter = surroundings(options).parse_filter(query)?;
        filters.push(ArrayFilter { name: name.to_string(), filter });
    }
    Ok(filters)
}

/// Finds the one name that all fields of an array filter start with.
fn top_level_name<'q>(query: RawDoc<'q>, name: &mut Option<&'q str>) -> Result<()> {
    for element in query {
        match (element.key(), element.value()) {
            ("$and" | "$or" | "$nor", Value::Array(parts)) => {
                for part in parts.values().filter_map(|part| part.as_document()) {
                    top_level_name(part, name)?;
                }
            }
            (operator, _) if operator.starts_with('$') => {}
            (path, _) => {
                let head = path.split('.').next().unwrap_or_default();
                match *name {
                    Some(known) if known != head => {
                        return Err(Error::failed_to_parse(format!(
                            "Error parsing array filter :: caused by :: Expected a single top-level field \
                             name, found '{known}' and '{head}'"
                        )));
                    }
                    _ => *name = Some(head),
                }
            }
        }
    }
    Ok(())
}

/// What filters and expressions of an update are parsed with.
fn surroundings(options: &UpdateOptions) -> Surroundings {
    Surroundings {
        now_ms: options.now_ms,
        cluster_time: options.timestamp,
        collation: options.collation.clone(),
        variables: options.variables.clone(),
    }
}

struct Parser<'p> {
    options: &'p UpdateOptions,
    filters: &'p [ArrayFilter],
    /// Names of the array filters that a path uses.
    used: Vec<String>,
}

impl Parser<'_> {
    fn operators(mut self, doc: RawDoc<'_>) -> Result<Operators> {
        let mut operators = Operators::default();
        for element in doc {
            let name = element.key();
            if !OPERATORS.contains(&name) {
                return Err(Error::failed_to_parse(format!(
                    "Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update \
                     specified as an array"
                )));
            }
            let Value::Document(fields) = element.value() else {
                return Err(Error::failed_to_parse(format!(
                    "Modifiers operate on fields but we found type {} instead. For example: \
                     {{$mod: {{<field>: ...}}}} not {{{name}: {}}}",
                    element.kind().alias(),
                    show(element.value())
                )));
            };
            for field in fields {
                self.operator(&mut operators, name, field.key(), field.value())?;
            }
        }
        match self.filters.iter().find(|filter| !self.used.contains(&filter.name)) {
            Some(unused) => Err(Error::failed_to_parse(format!(
                "The array filter for identifier '{}' was not used in the update {}",
                unused.name,
                show(Value::Document(doc))
            ))),
            None => Ok(operators),
        }
    }

    /// Adds one operator on one path.
    fn operator(
        &mut self,
        operators: &mut Operators,
        name: &str,
        path: &str,
        value: Value<'_>,
    ) -> Result<()> {
        self.check_path(path)?;
        if name == "$rename" {
            return self.rename(operators, path, value);
        }
        let op = self.op(name, path, value)?;
        let levels = path.bytes().filter(|byte| *byte == b'.').count() + 1;
        operators.may_deepen |= levels + depth_of(&op) >= crate::MAX_DEPTH;
        if path == "_id" {
            check_id(&op)?;
        }
        operators.fields.insert(path, op)
    }

    fn op(&self, name: &str, path: &str, value: Value<'_>) -> Result<Op> {
        Ok(match name {
            "$set" => Op::Set(value.to_owned()),
            "$setOnInsert" => Op::SetOnInsert(value.to_owned()),
            "$unset" => Op::Unset,
            "$inc" => Op::Inc(parse_number(name, path, value)?),
            "$mul" => Op::Mul(parse_number(name, path, value)?),
            "$min" => Op::Min(value.to_owned()),
            "$max" => Op::Max(value.to_owned()),
            "$currentDate" => parse_current_date(value, self.options.now_ms, self.options.timestamp)?,
            "$push" => Op::Push(Arc::new(Push::parse(value)?)),
            "$addToSet" => Op::AddToSet(parse_add_to_set(value)?.into()),
            "$pop" => parse_pop(path, value)?,
            "$pull" => {
                let parse = |options: &FilterOptions<'_>| ValueFilter::parse(value, options);
                Op::Pull(Arc::new(surroundings(self.options).with_filter_options(parse)?))
            }
            "$pullAll" => Op::PullAll(parse_pull_all(value)?.into()),
            _ => parse_bits(value)?,
        })
    }

    fn rename(&mut self, operators: &mut Operators, from: &str, to: Value<'_>) -> Result<()> {
        let Value::String(to) = to else {
            return Err(Error::bad_value(format!(
                "The 'to' field for $rename must be a string: {from}: {}",
                show(to)
            )));
        };
        self.check_path(to)?;
        for (which, path) in [("source", from), ("destination", to)] {
            if path.split('.').any(|part| part == "$" || filter_name(part).is_some()) {
                return Err(Error::bad_value(format!(
                    "The {which} field for $rename may not be dynamic: {path}"
                )));
            }
        }
        if from == to {
            return Err(Error::bad_value(format!(
                "The source and target field for $rename must differ: {from}: \"{to}\""
            )));
        }
        let nested =
            |outer: &str, inner: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
        if nested(from, to) || nested(to, from) {
            return Err(Error::bad_value(format!(
                "The source and target field for $rename must not be on the same path: {from}: \"{to}\""
            )));
        }
        operators.may_deepen = true;
        operators.renames.push((from.to_string(), to.to_string()));
        operators.fields.insert(from, Op::RenameSource)?;
        operators.fields.insert(to, Op::RenameFrom(from.into()))
    }

    /// Checks a path's components and notes the array filters it uses.
    fn check_path(&mut self, path: &str) -> Result<()> {
        if path.is_empty() {
            return Err(Error::new(code::EMPTY_FIELD_NAME, "An empty update path is not valid."));
        }
        // The new name of `$rename` is a value, which unlike a field's name can hold anything.
        if path.contains('\0') {
            return Err(Error::bad_value("An update path cannot contain a null byte."));
        }
        for (index, part) in path.split('.').enumerate() {
            if part.is_empty() {
                return Err(Error::new(
                    code::EMPTY_FIELD_NAME,
                    format!("The update path '{path}' contains an empty field name, which is not allowed."),
                ));
            }
            if !part.starts_with('$') {
                continue;
            }
            let name = filter_name(part);
            if part != "$" && name.is_none() {
                return Err(Error::new(
                    code::DOLLAR_PREFIXED_FIELD_NAME,
                    format!("The dollar ($) prefixed field '{part}' in '{path}' is not valid for storage."),
                ));
            }
            if index == 0 {
                return Err(Error::bad_value(format!(
                    "Cannot have positional (i.e. '$') element in the first position in path '{path}'"
                )));
            }
            if let Some(name) = name.filter(|name| !name.is_empty()) {
                if !self.filters.iter().any(|filter| filter.name == name) {
                    return Err(Error::bad_value(format!(
                        "No array filter found for identifier '{name}' in path '{path}'"
                    )));
                }
                self.used.push(name.to_string());
            }
        }
        Ok(())
    }
}

pub(super) const OPERATORS: [&str; 15] = [
    "$set",
    "$addToSet",
    "$unset",
    "$pull",
    "$push",
    "$inc",
    "$setOnInsert",
    "$currentDate",
    "$max",
    "$min",
    "$mul",
    "$pop",
    "$pullAll",
    "$rename",
    "$bit",
];

/// Refuses a new `_id` that no document may have.
fn check_id(op: &Op) -> Result<()> {
    match op {
        Op::Set(value) | Op::SetOnInsert(value) => replace::check_id(value.value()),
        _ => Ok(()),
    }
}

/// How deep an operator's argument nests below its path.
fn depth_of(op: &Op) -> usize {
    let below = |items: &[Owned]| 1 + items.iter().map(|item| depth(item.value())).max().unwrap_or(0);
    match op {
        Op::Set(value) | Op::SetOnInsert(value) | Op::Min(value) | Op::Max(value) => depth(value.value()),
        Op::AddToSet(items) => below(items),
        Op::Push(push) => below(push.items()),
        _ => 0,
    }
}

fn depth(value: Value<'_>) -> usize {
    match value {
        Value::Document(doc) | Value::Array(doc) => 1 + doc.values().map(depth).max().unwrap_or(0),
        Value::CodeWithScope { scope, .. } => 1 + scope.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
