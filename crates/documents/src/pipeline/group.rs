//! `$group` and what is built on it: `$sortByCount`, and the grouping of `$bucket`.

use super::accumulate::{Accumulators, State};
use super::collect::{later, parse_sort};
use super::parse::{Parser, document};
use super::{Docs, Environment, Memory, Stage};
use crate::collation::Collation;
use crate::compare::compare;
use crate::expr::{Context, Expr};
use crate::key::encode_key_with;
use crate::show::show;
use crate::{Doc, DocBuilder, Error, Owned, Result, Value, doc};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Group {
    pub key: Key,
    pub accumulators: Accumulators,
    pub collation: Option<Arc<Collation>>,
    /// Whether groups come in the order of their ids; else they come as they were met.
    pub sorted: bool,
    pub stage: &'static str,
}

/// What documents are grouped by.
#[derive(Debug)]
pub(super) enum Key {
    Value(Expr),
    /// The boundary at or below the value.
    Bucket {
        value: Expr,
        boundaries: Vec<Owned>,
        default: Option<Owned>,
    },
}

pub(super) fn parse(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let Value::Document(spec) = spec else {
        return Err(Error::location(15947, "a group's fields must be specified in an object"));
    };
    let Some(id) = spec.get("_id") else {
        return Err(Error::location(15955, "a group specification must include an _id"));
    };
    let fields = spec.iter().filter(|element| element.key() != "_id");
    Ok(Arc::new(Group {
        key: Key::Value(Expr::parse_with(id, parser.options.variables.names())?),
        accumulators: Accumulators::parse(fields, parser)?,
        collation: parser.options.collation.clone(),
        sorted: false,
        stage: "$group",
    }))
}

impl Key {
    fn of(&self, context: &Context<'_>) -> Result<Owned> {
        match self {
            Key::Value(expr) => Ok(expr.eval(context)?.into_owned()),
            Key::Bucket { value, boundaries, default } => {
                let value = value.eval(context)?;
                let above = boundaries.partition_point(|bound| compare(bound.value(), value.value()).is_le());
                if above > 0 && above < boundaries.len() {
                    return Ok(boundaries[above - 1].clone());
                }
                default.clone().ok_or_else(|| {
                    Error::location(
                        40066,
                        format!(
                            "$bucket found a value outside of its boundaries and no default was specified: {}",
                            show(value.value())
                        ),
                    )
                })
            }
        }
    }
}

impl Stage for Group {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        let environment = environment.clone();
        Ok(later(move || self.group(input, &environment)))
    }
}

impl Group {
    fn group(&self, input: Docs, environment: &Environment) -> Result<Vec<Doc>> {
        let mut memory = Memory::new(self.stage, environment);
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut groups: Vec<(Owned, Vec<State>)> = Vec::new();
        let mut key = Vec::new();
        for doc in input {
            let doc = doc?;
            let context = environment.context(doc.raw());
            let id = self.key.of(&context)?;
            key.clear();
            encode_key_with(id.value(), self.collation.as_deref(), &mut key);
            let place = match places.get(&key) {
                Some(place) => *place,
                None => {
                    memory.add(2 * key.len() + 128)?;
                    let states = self.accumulators.start(id.value(), &context)?;
                    groups.push((id, states));
                    places.insert(key.clone(), groups.len() - 1);
                    groups.len() - 1
                }
            };
            self.accumulators.add(&mut groups[place].1, &context, &mut memory)?;
        }
        if self.sorted {
            groups.sort_by(|(a, _), (b, _)| compare(a.value(), b.value()));
        }
        Ok(groups.into_iter().map(|(id, states)| self.document(&id, states)).collect())
    }

    fn document(&self, id: &Owned, states: Vec<State>) -> Doc {
        let mut out = DocBuilder::new();
        out.append("_id", id);
        self.accumulators.finish(states, &mut out);
        out.finish()
    }
}

/// Stages that follow each other as one.
#[derive(Debug)]
struct Chain(Vec<Arc<dyn Stage>>);

impl Stage for Chain {
    fn run(self: Arc<Self>, input: Docs, environment: &Arc<Environment>) -> Result<Docs> {
        self.0.iter().try_fold(input, |docs, stage| stage.clone().run(docs, environment))
    }
}

pub(super) fn parse_sort_by_count(spec: Value<'_>, parser: &Parser<'_>) -> Result<Arc<dyn Stage>> {
    let is_expression = match spec {
        Value::Document(doc) => doc.iter().next().is_some_and(|first| first.key().starts_with('$')),
        Value::String(text) => text.starts_with('$'),
        _ => false,
    };
    if !is_expression {
        let text = format!(
            "the sortByCount field must be specified as a $-prefixed path or an expression, but found {}",
            show(spec)
        );
        return Err(Error::location(40148, text));
    }
    let group = doc! { "_id": spec, "count": { "$sum": 1 } };
    let sort = doc! { "count": -1 };
    Ok(Arc::new(Chain(vec![
        parse(Value::Document(group.raw()), parser)?,
        parse_sort(Value::Document(sort.raw()), parser)?, // a `$limit` after both limits the sort
    ])))
}

/// The accumulators of a stage's `output`: a count without it.
pub(super) fn output(spec: Option<Value<'_>>, stage: &str, parser: &Parser<'_>) -> Result<Accumulators> {
    match spec {
        None => Accumulators::parse(doc! { "count": { "$sum": 1 } }.raw().iter(), parser),
        Some(output) => {
            Accumulators::parse(document(output, &format!("{stage} 'output'"), 40196)?.iter(), parser)
        }
    }
}
