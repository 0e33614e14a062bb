//! `$graphLookup`: documents of another collection that are reachable over references between them.

use super::parse::{Parser, document, namespace, only, text};
use super::stages::has_expressions;
use super::{DOCUMENT_OVERHEAD, Docs, Environment, Memory, Options, Stage};
use crate::expr::{Expr, check_path, with_path};
use crate::key::encode_key_with;
use crate::path::{Leaves, Path};
use crate::{Doc, DocBuilder, Error, Owned, RawDoc, Result, Value};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

#[derive(Debug)]
struct Graph {
    db: Option<String>,
    from: String,
    start: Expr,
    connect_from: Path,
    connect_to: Path,
    output: Path,
    depth_max: u64,
    depth_field: Option<Path>,
    restrict: Doc,
    options: Options,
}

pub(super) fn parse(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    const NAMES: [&str; 8] = [
        "from",
        "startWith",
        "connectFromField",
        "connectToField",
        "as",
        "maxDepth",
        "depthField",
        "restrictSearchWithMatch",
    ];
    let spec = document(spec, "$graphLookup", 40327)?;
    only(spec, "$graphLookup", &NAMES).map_err(|error| Error::location(40104, error.message))?;
    let path = |name: &str| {
        let path = text(spec.get(name), "$graphLookup", name)?;
        check_path(path)?;
        Ok::<Path, Error>(Path::new(path))
    };
    let (Some(from), Some(start)) = (spec.get("from"), spec.get("startWith")) else {
        return Err(Error::location(40105, "$graphLookup requires 'from' and 'startWith' to be specified"));
    };
    let depth_max = match spec.get("maxDepth") {
        None => u64::MAX,
        Some(depth) => match crate::number::to_integral(depth).and_then(|depth| u64::try_from(depth).ok()) {
            Some(depth) => depth,
            None => return Err(Error::location(40101, "maxDepth requires a nonnegative argument")),
        },
    };
    let restrict = match spec.get("restrictSearchWithMatch") {
        None => Doc::empty(),
        Some(Value::Document(query)) => {
            parser.options.parse_filter(query)?;
            query.to_doc()
        }
        Some(_) => return Err(Error::location(40185, "restrictSearchWithMatch must be an object")),
    };
    let (db, from) = namespace(from)?;
    Ok(Arc::new(Graph {
        db,
        from,
        start: Expr::parse_with(start, parser.options.variables.names())?,
        connect_from: path("connectFromField")?,
        connect_to: path("connectToField")?,
        output: path("as")?,
        depth_max,
        depth_field: spec.get("depthField").map(|_| path("depthField")).transpose()?,
        restrict,
        options: parser.options.clone(),
    }))
}

impl Stage for Graph {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let environment = environment.clone();
        let mut nodes: Option<Arc<Nodes>> = None;
        Ok(Box::new(input.map(move |doc| {
            let doc = doc?;
            let nodes = match &nodes {
                Some(nodes) => nodes.clone(),
                None => nodes.insert(Arc::new(self.read(&environment)?)).clone(),
            };
            self.search(&doc, &nodes, &environment)
        })))
    }
}

/// The other collection, by the values that references point to.
struct Nodes {
    docs: Vec<Doc>,
    places: HashMap<Vec<u8>, Vec<usize>>,
}

impl Graph {
    fn read(&self, environment: &Environment) -> Result<Nodes> {
        let filter = environment.bind(&self.options).parse_filter(self.restrict.raw())?;
        let restrict =
            if has_expressions(self.restrict.raw()) { RawDoc::empty() } else { self.restrict.raw() };
        let mut memory = Memory::new("$graphLookup", environment);
        let mut nodes = Nodes { docs: Vec::new(), places: HashMap::new() };
        for doc in environment.tables.scan_matching(self.db.as_deref(), &self.from, restrict)? {
            let doc = doc?;
            if !filter.matches(doc.raw())? {
                continue;
            }
            memory.add(doc.bytes().len() + DOCUMENT_OVERHEAD)?;
            for key in self.keys(doc.raw(), &self.connect_to) {
                memory.add(key.len() + 32)?;
                nodes.places.entry(key).or_default().push(nodes.docs.len());
            }
            nodes.docs.push(doc);
        }
        Ok(nodes)
    }

    /// The values at a path, those of arrays one by one.
    fn keys(&self, doc: RawDoc<'_>, path: &Path) -> HashSet<Vec<u8>> {
        let mut keys = HashSet::new();
        let _ = path.for_each_value(doc, Leaves::Elements, &mut |found| {
            if let Some(value) = found.value {
                keys.insert(self.key(value));
            }
            ControlFlow::<()>::Continue(())
        });
        keys
    }

    fn key(&self, value: Value<'_>) -> Vec<u8> {
        let mut key = Vec::new();
        encode_key_with(value, self.options.collation.as_deref(), &mut key);
        key
    }

    /// Searches in breadth from one document.
    fn search(&self, doc: &Doc, nodes: &Nodes, environment: &Environment) -> Result<Doc> {
        let start = self.start.eval(&environment.context(doc.raw()))?;
        let mut frontier: HashSet<Vec<u8>> = match start.value() {
            Value::Array(values) => values.values().map(|value| self.key(value)).collect(),
            value => HashSet::from([self.key(value)]),
        };
        let mut followed: HashSet<Vec<u8>> = HashSet::new();
        let mut found: HashMap<usize, u64> = HashMap::new();
        let mut order = Vec::new();
        let mut depth = 0;
        while !frontier.is_empty() && depth <= self.depth_max {
            let mut reached: Vec<usize> =
                frontier.iter().filter_map(|key| nodes.places.get(key)).flatten().copied().collect();
            reached.sort_unstable();
            followed.extend(frontier.drain());
            for place in reached {
                if found.contains_key(&place) {
                    continue;
                }
                found.insert(place, depth);
                order.push(place);
                let next = self.keys(nodes.docs[place].raw(), &self.connect_from);
                frontier.extend(next.into_iter().filter(|key| !followed.contains(key)));
            }
            depth += 1;
        }
        let mut array = DocBuilder::new();
        for place in order {
            let node = nodes.docs[place].raw();
            match &self.depth_field {
                None => array.push(node),
                Some(field) => {
                    let depth = Owned::Int64(found.get(&place).map_or(0, |depth| *depth as i64));
                    array.push(with_path(node, field, Some(depth.value())))
                }
            };
        }
        let array = Owned::Array(array.finish());
        Ok(with_path(doc.raw(), &self.output, Some(array.value())))
    }
}
