//! Reading the query parts that many commands share: filters, updates, sorts, projections, hints, collations,
//! variables.

use super::cursor::in_place;
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use rockdove_documents::collation::Collation;
use rockdove_documents::expr::{Context, Expr, Surroundings, Variables};
use rockdove_documents::filter::Filter;
use rockdove_documents::key::encode_key_with;
use rockdove_documents::path::{Leaves, Path};
use rockdove_documents::projection::{Compute, Projection, ProjectionOptions};
use rockdove_documents::sort::Sort;
use rockdove_documents::update::{Update, UpdateOptions};
use rockdove_documents::{Doc, DocBuilder, Error, Owned, RawDoc, Scanned, Timestamp, Value, code};
use rockdove_engine::{
    ChangeStream, Collection, EventPipeline, Hint, Namespace, Scope, StartAt, State, View,
};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// The namespace whose collection is the value of the field `name`.
pub fn namespace(call: &Call<'_>, fields: &Fields<'_>, name: &str) -> Result<Namespace> {
    match fields.get(name) {
        Some(Value::String(collection)) => {
            let ns = Namespace::new(call.database, collection)?;
            refuse_other_collection(call, fields, &ns)?;
            Ok(ns)
        }
        Some(other) => Err(Failure::new(
            code::INVALID_NAMESPACE,
            format!("collection name has invalid type {}", other.kind().alias()),
        )),
        None => Err(Failure::new(code::INVALID_NAMESPACE, "collection name has invalid type null")),
    }
}

/// Refuses a command for a collection that had this name once, and is another one now (`collectionUUID`).
pub fn refuse_other_collection(call: &Call<'_>, fields: &Fields<'_>, ns: &Namespace) -> Result<()> {
    fields.get("collectionUUID").map_or(Ok(()), |uuid| check_uuid(call, ns, uuid))
}

/// Checks that a collection has this UUID. The error says which one of the database has it.
pub fn check_uuid(call: &Call<'_>, ns: &Namespace, uuid: Value<'_>) -> Result<()> {
    let Value::Binary { subtype: 4, bytes } = uuid else {
        return Err(Error::type_mismatch("BSON field 'collectionUUID' must be a UUID").into());
    };
    let state = call.shared.engine.snapshot();
    let actual = state.in_database(ns.database()).find(|collection| collection.info.uuid[..] == *bytes);
    let actual = actual.map(|collection| &collection.info.ns);
    if actual == Some(ns) {
        return Ok(());
    }
    let mut details = DocBuilder::new();
    details.append("db", ns.database()).append_value("collectionUUID", uuid);
    details.append("expectedCollection", ns.collection());
    details.append("actualCollection", actual.map(Namespace::collection));
    let message = format!("Collection UUID does not match that specified for {ns}");
    Err(Failure::new(code::COLLECTION_UUID_MISMATCH, message).with_details(details.finish()))
}

/// The state to read: the one of now, or that of the moment the session reads.
pub fn snapshot(call: &Call<'_>) -> Result<Arc<State>> {
    let (state, now) = (call.shared.engine.snapshot(), Instant::now());
    match call.read_concern.snapshot {
        None => Ok(state),
        Some(None) => {
            call.shared.snapshots.keep(state.at(), &state, now);
            Ok(state)
        }
        Some(Some(time)) if time == state.at() => Ok(state),
        Some(Some(time)) if time > state.at() => Err(Failure::new(
            code::INVALID_OPTIONS,
            "readConcern atClusterTime value must not be greater than the current clusterTime",
        )),
        Some(Some(time)) => call.shared.snapshots.get(time, now).ok_or_else(|| {
            Failure::new(
                rockdove_documents::Code { number: 239, name: "SnapshotTooOld" },
                "Read timestamp is older than the oldest available timestamp",
            )
        }),
    }
}

/// The field that tells which snapshot was read.
pub fn at_cluster_time(state: &State) -> Doc {
    let mut extra = DocBuilder::new();
    extra.append("atClusterTime", state.at());
    extra.finish()
}

/// Reads `hint`: an index's name or keys, or `$natural`.
pub fn hint(fields: &Fields<'_>) -> Result<Option<Hint>> {
    Ok(match fields.get("hint") {
        None => None,
        Some(Value::String("")) => None,
        Some(Value::String(name)) => Some(Hint::Name(name.to_string())),
        Some(Value::Document(keys)) if keys.is_empty() => None,
        Some(Value::Document(keys)) => {
            match keys.get("$natural").and_then(|direction| direction.as_integer()) {
                Some(direction) => Some(Hint::Natural { reverse: direction < 0 }),
                None => Some(Hint::Keys(keys.to_doc())),
            }
        }
        Some(_) => return Err(Error::failed_to_parse("Hint must be a string or an object").into()),
    })
}

/// The value of `collation`, if there is one that says something.
pub fn collation_document<'a>(fields: &Fields<'a>) -> Result<Option<RawDoc<'a>>> {
    Ok(fields.document("collation")?.filter(|collation| !collation.is_empty()))
}

/// What parsing a query depends on.
#[derive(Clone, Debug)]
pub struct Parsing {
    surroundings: Surroundings,
    /// Whether a collation was named, be it the simple one.
    collation_given: bool,
}

impl Parsing {
    /// With the command's collation and its `let`; the time is now.
    pub fn new(call: &Call<'_>, fields: &Fields<'_>) -> Result<Parsing> {
        Parsing::at(call).with_collation(fields)?.with_variables(call, fields)
    }

    /// The same, where a command without a collation has the collection's.
    pub fn on(call: &Call<'_>, fields: &Fields<'_>, ns: &Namespace) -> Result<Parsing> {
        Parsing::at(call).with_collation(fields)?.or_default_of(call, ns)?.with_variables(call, fields)
    }

    fn at(call: &Call<'_>) -> Parsing {
        let (now_ms, cluster_time) = (call.shared.engine.now_ms(), call.shared.operation_time());
        let surroundings = Surroundings { now_ms, cluster_time, ..Surroundings::default() };
        Parsing { surroundings, collation_given: false }
    }

    /// The same with the command's `let`, whose expressions compare by the collation.
    fn with_variables(mut self, call: &Call<'_>, fields: &Fields<'_>) -> Result<Parsing> {
        if let Some(variables) = fields.document("let")? {
            let parse = || self.surroundings.parse_variables(variables);
            self.surroundings.variables = in_place(&call.interrupt(), parse)?;
        }
        Ok(self)
    }

    /// The same with the collation that `fields` name.
    pub fn with_collation(&self, fields: &Fields<'_>) -> Result<Parsing> {
        let mut parsing = self.clone();
        if let Some(spec) = collation_document(fields)? {
            parsing.surroundings.collation = Collation::parse(spec)?;
            parsing.collation_given = true;
        }
        Ok(parsing)
    }

    /// The same with the collection's collation, unless one was named.
    pub fn or_default_of(mut self, call: &Call<'_>, ns: &Namespace) -> Result<Parsing> {
        if !self.collation_given {
            let state = call.shared.engine.snapshot();
            let options = state.collection(ns).map(|collection| &collection.info.options);
            if let Some(Value::Document(spec)) = options.and_then(|options| options.get("collation")) {
                self.surroundings.collation = Collation::parse(spec)?;
            }
        }
        Ok(self)
    }

    /// Time, collation and variables, as pipelines want them.
    pub fn surroundings(&self) -> &Surroundings {
        &self.surroundings
    }

    /// How text compares.
    pub fn collation(&self) -> Option<&Arc<Collation>> {
        self.surroundings.collation.as_ref()
    }

    /// A filter.
    pub fn filter(&self, query: RawDoc<'_>) -> Result<Filter> {
        Ok(self.surroundings.parse_filter(query)?)
    }

    /// An update. `constants` (`c` of an update statement) become variables too.
    pub fn update(
        &self,
        update: Value<'_>,
        array_filters: Option<RawDoc<'_>>,
        constants: Option<RawDoc<'_>>,
    ) -> Result<Update> {
        let variables = match constants {
            Some(constants) => self.with_constants(constants),
            None => self.surroundings.variables.clone(),
        };
        let options = UpdateOptions {
            now_ms: self.surroundings.now_ms,
            timestamp: self.surroundings.cluster_time,
            collation: self.surroundings.collation.clone(),
            variables,
        };
        Ok(Update::parse(update, array_filters, &options)?)
    }

    fn with_constants(&self, constants: RawDoc<'_>) -> Variables {
        let variables = &self.surroundings.variables;
        let outer = variables.names().iter().cloned().zip(variables.values().iter().cloned());
        let own: Vec<(String, Owned)> =
            constants.iter().map(|element| (element.key().to_string(), element.value().to_owned())).collect();
        let shadowed = |name: &String| own.iter().any(|(other, _)| other == name);
        let all: Vec<_> = outer.filter(|(name, _)| !shadowed(name)).collect();
        Variables::new(all.into_iter().chain(own))
    }

    /// A sort; none for none and for an empty one.
    pub fn sort(&self, sort: Option<RawDoc<'_>>) -> Result<Option<Sort>> {
        match sort.filter(|sort| !sort.is_empty()) {
            Some(sort) => Ok(Some(Sort::parse(sort, self.surroundings.collation.clone())?)),
            None => Ok(None),
        }
    }

    fn parse_projection(&self, projection: RawDoc<'_>) -> Result<Projection> {
        let around = &self.surroundings;
        let expr = |spec: Value<'_>| -> rockdove_documents::Result<Box<dyn Compute>> {
            Ok(Box::new(Computed { expr: Expr::parse(spec, &around.variables)?, around: around.clone() }))
        };
        let options =
            ProjectionOptions { collation: around.collation.clone(), expr: Some(&expr), stage: false };
        Ok(Projection::parse(projection, &options)?)
    }

    /// A projection; none for none and for an empty one.
    pub fn projection(&self, projection: Option<RawDoc<'_>>) -> Result<Option<Projection>> {
        match projection.filter(|projection| !projection.is_empty()) {
            Some(projection) => Ok(Some(self.parse_projection(projection)?)),
            None => Ok(None),
        }
    }
}

/// A computed field of a projection.
#[derive(Debug)]
struct Computed {
    expr: Expr,
    around: Surroundings,
}

impl Compute for Computed {
    fn compute(&self, doc: RawDoc<'_>) -> rockdove_documents::Result<Option<Owned>> {
        let around = &self.around;
        let context = Context::new(doc, around.now_ms, around.cluster_time, around.variables.values())
            .with_collation(around.collation.as_ref());
        let value = self.expr.eval(&context)?;
        Ok(value.get().is_some().then(|| value.into_owned()))
    }
}

/// Lets the insertion of matching documents through.
struct Inserts(Filter);

impl EventPipeline for Inserts {
    fn apply(&self, event: &Scanned<'_>) -> rockdove_documents::Result<Option<Doc>> {
        let matches = match (event.get("operationType"), event.get("fullDocument")) {
            (Some(Value::String("insert")), Some(Value::Document(doc))) => self.0.matches(doc)?,
            _ => false,
        };
        Ok(matches.then(|| event.doc().clone()))
    }

    fn is_cheap(&self) -> bool {
        self.0.is_cheap()
    }
}

/// Follows what is inserted into a collection after `state` and matches the command's filter, which `filter` is as
/// parsed for this collection.
pub fn watch_inserts(
    call: &Call<'_>,
    fields: &Fields<'_>,
    state: &State,
    collection: &Collection,
    filter: Filter,
) -> Result<ChangeStream> {
    // Streams with equal keys share their evaluation, so the key is all that the evaluation depends on: without a
    // collation of its own the filter has the collection's.
    let mut key = DocBuilder::new();
    key.append("tail", fields.document("filter")?)
        .append("let", fields.document("let")?)
        .append("collation", collation_document(fields)?)
        .append_value("default", collection.info.options.get("collation").unwrap_or(Value::Null));
    let after = Timestamp::from_bits(state.at().bits() + 1);
    Ok(call.shared.engine.watch(
        Scope::Collection(collection.info.ns.clone()),
        View::default(),
        key.finish().into_bytes(),
        Arc::new(Inserts(filter)),
        StartAt::Time(after),
    )?)
}

/// The distinct values at a path, arrays counting as their elements, in the order they were met.
pub fn distinct(
    documents: super::cursor::Documents,
    key: &str,
    parsing: &Parsing,
    bytes_max: usize,
) -> Result<Doc> {
    let path = Path::new(key);
    let (mut seen, mut values, mut scratch) = (HashSet::new(), DocBuilder::new(), Vec::new());
    for doc in documents {
        let doc = doc?;
        let mut add = |value: Value<'_>| {
            scratch.clear();
            encode_key_with(value, parsing.collation().map(|c| &**c), &mut scratch);
            if !seen.contains(&scratch) {
                seen.insert(scratch.clone());
                values.push_value(value);
            }
        };
        let _ = path.for_each_value::<()>(doc.raw(), Leaves::Whole, &mut |found| {
            match found.value {
                Some(Value::Array(array)) => array.values().for_each(&mut add),
                Some(value) => add(value),
                None => {}
            }
            ControlFlow::Continue(())
        });
        if values.size() > bytes_max {
            return Err(Failure::location(17217, "distinct too big, 16mb cap"));
        }
    }
    Ok(values.finish())
}
