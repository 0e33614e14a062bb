//! `$facet`: several pipelines over the same documents, each result an array of one document.

use super::collect::later;
use super::parse::{Parser, Place, document};
use super::{Docs, Environment, Memory, Pipeline, Stage, collect, stream};
use crate::{DocBuilder, Error, Result, Value};
use std::sync::Arc;

#[derive(Debug)]
struct Facet(Vec<(String, Pipeline)>);

pub(super) fn parse(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let spec = document(spec, "$facet", 40169)?;
    let mut facets = Vec::new();
    for facet in spec {
        let name = facet.key();
        if name.is_empty() || name.starts_with('$') || name.contains('.') {
            return Err(Error::location(
                40169,
                format!("'{name}' is not a valid name for a field of $facet"),
            ));
        }
        let Value::Array(stages) = facet.value() else {
            let text = format!("arguments to $facet must be arrays, {name} is type {}", facet.kind().alias());
            return Err(Error::location(40170, text));
        };
        let pipeline = parser.nested(stages, parser.options, Place::Facet)?;
        if pipeline.stages.iter().any(|stage| stage.name == "$facet") {
            return Err(Error::location(40600, "$facet is not allowed to be used within a $facet stage"));
        }
        facets.push((name.to_string(), pipeline));
    }
    match facets.is_empty() {
        true => Err(Error::location(40169, "the $facet specification must be a non-empty object")),
        false => Ok(Arc::new(Facet(facets))),
    }
}

impl Stage for Facet {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let environment = environment.clone();
        Ok(later(move || {
            let docs = collect(input, "$facet", &environment)?;
            let mut memory = Memory::new("$facet", &environment);
            let mut result = DocBuilder::new();
            for (name, pipeline) in &self.0 {
                result.start_array(name);
                for doc in pipeline.run(stream(docs.clone()), &environment)? {
                    let doc = doc?;
                    memory.add(doc.bytes().len())?;
                    result.push(doc);
                }
                result.end();
            }
            Ok(vec![result.finish()])
        }))
    }
}
