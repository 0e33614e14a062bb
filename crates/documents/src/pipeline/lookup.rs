//! `$lookup`: the matching documents of another collection, as an array.
//!
//! By equality, the other collection is asked through an index if it has one for the field; else it is read
//! once into a table by key. A sub-pipeline runs for each document, unless it depends on none.

use super::parse::{Parser, Place, document, namespace, only, text};
use super::{DOCUMENT_OVERHEAD, Docs, Environment, Memory, Options, Pipeline, Stage, stream, with_names};
use crate::expr::{Expr, check_path, with_path};
use crate::key::encode_key_with;
use crate::path::{Leaves, Path};
use crate::{Doc, DocBuilder, Error, Owned, RawDoc, Result, Value};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

#[derive(Debug)]
struct Lookup {
    db: Option<String>,
    /// Nothing if the pipeline makes its documents itself.
    from: Option<String>,
    output: Path,
    equality: Option<Equality>,
    variables: Vec<(String, Expr)>,
    pipeline: Pipeline,
    options: Options,
}

#[derive(Debug)]
struct Equality {
    local: Path,
    foreign: Path,
}

pub(super) fn parse(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let spec = document(spec, "$lookup", 40319)?;
    only(spec, "$lookup", &["from", "as", "localField", "foreignField", "let", "pipeline"])?;
    let output = text(spec.get("as"), "$lookup", "as")?;
    check_path(output)?;
    let equality = match (spec.get("localField"), spec.get("foreignField")) {
        (None, None) => None,
        (local, foreign) => {
            let (local, foreign) =
                (text(local, "$lookup", "localField")?, text(foreign, "$lookup", "foreignField")?);
            check_path(local)?;
            check_path(foreign)?;
            Some(Equality { local: Path::new(local), foreign: Path::new(foreign) })
        }
    };
    let variables = match spec.get("let") {
        None => Vec::new(),
        Some(Value::Document(variables)) => Expr::parse_let(variables, parser.options.variables.names())?,
        Some(_) => return Err(Error::failed_to_parse("$lookup argument 'let' must be an object")),
    };
    let inner = with_names(parser.options, variables.iter().map(|(name, _)| name.clone()));
    let pipeline = match spec.get("pipeline") {
        Some(Value::Array(stages)) => parser.nested(stages, &inner, Place::Nested)?,
        Some(_) => return Err(Error::type_mismatch("'pipeline' option must be specified as an array")),
        None if equality.is_none() => {
            let text =
                "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified";
            return Err(Error::failed_to_parse(text));
        }
        None if !variables.is_empty() => {
            return Err(Error::failed_to_parse("$lookup with a 'let' argument must also specify 'pipeline'"));
        }
        None => Pipeline::default(),
    };
    let (db, from) = match spec.get("from") {
        Some(from) => namespace(from).map(|(db, from)| (db, Some(from)))?,
        None if pipeline.is_self_sourced() => (None, None),
        None => return Err(Error::failed_to_parse("missing 'from' option to $lookup stage specification")),
    };
    let output = Path::new(output);
    Ok(Arc::new(Lookup { db, from, output, equality, variables, pipeline, options: parser.options.clone() }))
}

impl Stage for Lookup {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let mut join =
            Join { lookup: self, environment: environment.clone(), table: None, uncorrelated: None };
        Ok(Box::new(input.map(move |doc| join.join(&doc?))))
    }
}

/// A lookup that is under way.
struct Join {
    lookup: Arc<Lookup>,
    environment: Arc<Environment>,
    /// The other collection, if it is joined by equality without an index.
    table: Option<Table>,
    /// The results, if they are the same for every document.
    uncorrelated: Option<Vec<Doc>>,
}

impl Join {
    fn join(&mut self, doc: &Doc) -> Result<Doc> {
        let lookup = self.lookup.clone();
        if let Some(found) = &self.uncorrelated {
            return Ok(lookup.with(doc, found));
        }
        let candidates = self.candidates(doc)?;
        let found = match lookup.pipeline.is_empty() {
            true => candidates.collect::<Result<Vec<Doc>>>()?,
            false => {
                let context = self.environment.context(doc.raw());
                let mut values = Vec::new();
                for (_, expr) in &lookup.variables {
                    values.push(expr.eval(&context)?.into_owned());
                }
                let environment = self.environment.with_values(values);
                super::collect(lookup.pipeline.run(candidates, &environment)?, "$lookup", &environment)?
            }
        };
        let joined = lookup.with(doc, &found);
        if lookup.equality.is_none() && lookup.variables.is_empty() {
            self.uncorrelated = Some(found);
        }
        Ok(joined)
    }

    /// The documents of the other collection that belong to this one, before the pipeline.
    fn candidates(&mut self, doc: &Doc) -> Result<Docs> {
        let lookup = &self.lookup;
        let Some(from) = &lookup.from else { return Ok(Box::new(std::iter::empty())) };
        let tables = &self.environment.tables;
        let Some(equality) = &lookup.equality else { return tables.scan(lookup.db.as_deref(), from) };
        let wanted = local_values(doc.raw(), &equality.local);
        let query = in_query(equality.foreign.as_str(), &wanted);
        let filter = lookup.options.parse_filter(query.raw())?;
        let candidates = if tables.has_index(lookup.db.as_deref(), from, equality.foreign.as_str()) {
            tables.scan_matching(lookup.db.as_deref(), from, query.raw())?
        } else {
            if self.table.is_none() {
                let docs = tables.scan(lookup.db.as_deref(), from)?;
                let memory = Memory::new("$lookup", &self.environment);
                self.table = Some(Table::read(docs, &equality.foreign, &lookup.options, memory)?);
            }
            let found = self.table.as_ref().map(|table| table.find(&wanted, &lookup.options));
            stream(found.unwrap_or_default())
        };
        Ok(Box::new(candidates.filter_map(move |doc| match doc {
            Ok(doc) => match filter.matches(doc.raw()) {
                Ok(matched) => matched.then_some(Ok(doc)),
                Err(error) => Some(Err(error)),
            },
            Err(error) => Some(Err(error)),
        })))
    }
}

impl Lookup {
    fn with(&self, doc: &Doc, found: &[Doc]) -> Doc {
        let mut array = DocBuilder::new();
        for doc in found {
            array.push(doc);
        }
        let array = Owned::Array(array.finish());
        with_path(doc.raw(), &self.output, Some(array.value()))
    }
}

/// The values to look for: those at the path, the elements of an array one by one; null if there is none.
fn local_values<'d>(doc: RawDoc<'d>, path: &Path) -> Vec<Value<'d>> {
    let mut values = Vec::new();
    let _ = path.for_each_value(doc, Leaves::Whole, &mut |found| {
        match found.value {
            Some(Value::Array(array)) => values.extend(array.values()),
            found => values.extend(found),
        }
        ControlFlow::<()>::Continue(())
    });
    if values.is_empty() {
        values.push(Value::Null);
    }
    values
}

/// `{ path: { $in: values } }`, where regular expressions are values to be equal to.
fn in_query(path: &str, values: &[Value<'_>]) -> Doc {
    let mut query = DocBuilder::new();
    query.start_array("$or");
    query.push_document().start_document(path).start_array("$in");
    for value in values.iter().filter(|value| !matches!(value, Value::Regex { .. })) {
        query.push_value(*value);
    }
    query.end().end().end();
    for value in values.iter().filter(|value| matches!(value, Value::Regex { .. })) {
        query.push_document().start_document(path).append_value("$eq", *value).end().end();
    }
    query.finish()
}

/// A collection by the values of one field.
struct Table {
    docs: Vec<Doc>,
    places: HashMap<Vec<u8>, Vec<u32>>,
}

impl Table {
    fn read(docs: Docs, path: &Path, options: &Options, mut memory: Memory) -> Result<Table> {
        let mut table = Table { docs: Vec::new(), places: HashMap::new() };
        for doc in docs {
            let doc = doc?;
            memory.add(doc.bytes().len() + DOCUMENT_OVERHEAD)?;
            let place = table.docs.len() as u32;
            let mut keys = Vec::new();
            let _ = path.for_each_value(doc.raw(), Leaves::Elements, &mut |found| {
                keys.push(encoded(found.value.unwrap_or(Value::Null), options));
                ControlFlow::<()>::Continue(())
            });
            for key in keys {
                memory.add(key.len() + 32)?;
                let places = table.places.entry(key).or_default();
                if places.last() != Some(&place) {
                    places.push(place);
                }
            }
            table.docs.push(doc);
        }
        Ok(table)
    }

    /// The documents with one of the values, in natural order.
    fn find(&self, values: &[Value<'_>], options: &Options) -> Vec<Doc> {
        let mut places = BTreeSet::new();
        for value in values {
            places.extend(self.places.get(&encoded(*value, options)).into_iter().flatten().copied());
        }
        places.into_iter().filter_map(|place| self.docs.get(place as usize).cloned()).collect()
    }
}

fn encoded(value: Value<'_>, options: &Options) -> Vec<u8> {
    let mut key = Vec::new();
    // Undefined equals null in queries.
    let value = if matches!(value, Value::Undefined) { Value::Null } else { value };
    encode_key_with(value, options.collation.as_deref(), &mut key);
    key
}
