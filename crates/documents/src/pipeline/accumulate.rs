//! Accumulators: values that grow with each document of a group (MongoDB manual, "$group: Accumulator
//! Operator").

use super::Memory;
use super::parse::{Parser, only};
use crate::collation::Collation;
use crate::compare::compare_with;
use crate::expr::{Context, Deviation, Expr, Sum, Val, array_of, count_of, merge_into};
use crate::key::encode_key_with;
use crate::sort::Sort;
use crate::{Doc, DocBuilder, Error, Owned, RawDoc, Result, Value, code};
use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// The accumulated fields of a stage.
#[derive(Debug)]
pub(super) struct Accumulators {
    fields: Vec<Field>,
    collation: Option<Arc<Collation>>,
}

#[derive(Debug)]
struct Field {
    name: String,
    kind: Kind,
    input: Expr,
}

#[derive(Debug)]
enum Kind {
    Sum,
    Average,
    Minimum,
    Maximum,
    First,
    Last,
    Push,
    AddToSet,
    Count,
    MergeObjects,
    DeviationPopulation,
    DeviationSample,
    /// `$firstN` and its like.
    Several {
        which: Which,
        count: Expr,
    },
    /// `$top`, `$bottom` and their `N` forms, which have a count.
    Ranked {
        sort: Sort,
        bottom: bool,
        count: Option<Expr>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    First,
    Last,
    Minimum,
    Maximum,
}

/// What one accumulator of one group holds.
#[derive(Debug)]
pub(super) enum State {
    Sum(Sum),
    Extreme(Option<Owned>),
    First(Option<Owned>),
    Last(Owned),
    Push(DocBuilder),
    Set(HashSet<Vec<u8>>, DocBuilder),
    Count(i64),
    Merged(Doc),
    Deviation(Deviation),
    Several(VecDeque<Owned>, usize),
    Ranked(VecDeque<(Vec<u8>, Owned)>, usize),
}

impl Accumulators {
    /// Reads the fields of a specification, `_id` excepted.
    pub(super) fn parse<'s>(
        fields: impl Iterator<Item = crate::Element<'s>>,
        parser: &Parser<'_>,
    ) -> Result<Accumulators> {
        let mut parsed = Vec::new();
        for element in fields {
            let name = element.key();
            if name.contains('.') {
                return Err(Error::location(40235, format!("The field name '{name}' cannot contain '.'")));
            }
            if name.starts_with('$') {
                return Err(Error::location(
                    40236,
                    format!("The field name '{name}' cannot be an operator name"),
                ));
            }
            let Value::Document(spec) = element.value() else {
                return Err(Error::location(
                    40234,
                    format!("The field '{name}' must be an accumulator object"),
                ));
            };
            let mut operators = spec.iter();
            let (Some(operator), None) = (operators.next(), operators.next()) else {
                return Err(Error::location(
                    40238,
                    format!("The field '{name}' must specify one accumulator"),
                ));
            };
            let (kind, input) = accumulator(operator.key(), operator.value(), parser)?;
            parsed.push(Field { name: name.to_string(), kind, input });
        }
        Ok(Accumulators { fields: parsed, collation: parser.options.collation.clone() })
    }

    /// The states of a group without documents.
    pub(super) fn start(&self, id: Value<'_>, context: &Context<'_>) -> Result<Vec<State>> {
        let id = id.as_document().unwrap_or(RawDoc::empty());
        let context = context.with_root(id);
        self.fields.iter().map(|field| field.start(&context)).collect()
    }

    /// Counts a document in.
    pub(super) fn add(&self, states: &mut [State], context: &Context<'_>, memory: &mut Memory) -> Result<()> {
        for (field, state) in self.fields.iter().zip(states) {
            state.add(field, context, self.collation.as_deref(), memory)?;
        }
        Ok(())
    }

    /// Appends the accumulated values.
    pub(super) fn finish(&self, states: Vec<State>, out: &mut DocBuilder) {
        for (field, state) in self.fields.iter().zip(states) {
            out.append(&field.name, state.finish(&field.kind));
        }
    }
}

fn accumulator(name: &str, spec: Value<'_>, parser: &Parser<'_>) -> Result<(Kind, Expr)> {
    let input = |spec: Value<'_>| Expr::parse_with(spec, parser.options.variables.names());
    let simple = match name {
        "$sum" => Kind::Sum,
        "$avg" => Kind::Average,
        "$min" => Kind::Minimum,
        "$max" => Kind::Maximum,
        "$first" => Kind::First,
        "$last" => Kind::Last,
        "$push" => Kind::Push,
        "$addToSet" => Kind::AddToSet,
        "$mergeObjects" => Kind::MergeObjects,
        "$stdDevPop" => Kind::DeviationPopulation,
        "$stdDevSamp" => Kind::DeviationSample,
        "$count" => {
            return match spec {
                Value::Document(empty) if empty.is_empty() => Ok((Kind::Count, Expr::constant(Owned::Null))),
                _ => Err(Error::type_mismatch("$count takes no arguments, i.e. $count:{}")),
            };
        }
        "$firstN" => return several(name, Which::First, spec, parser),
        "$lastN" => return several(name, Which::Last, spec, parser),
        "$minN" => return several(name, Which::Minimum, spec, parser),
        "$maxN" => return several(name, Which::Maximum, spec, parser),
        "$top" | "$topN" | "$bottom" | "$bottomN" => return ranked(name, spec, parser),
        "$accumulator" | "$median" | "$percentile" => {
            let text = format!("The accumulator '{name}' is not supported by this server");
            return Err(Error::new(code::COMMAND_NOT_SUPPORTED, text));
        }
        _ => return Err(Error::location(15952, format!("unknown group operator '{name}'"))),
    };
    if matches!(spec, Value::Array(_)) {
        return Err(Error::location(40237, format!("The {name} accumulator is a unary operator")));
    }
    Ok((simple, input(spec)?))
}

/// The arguments of an accumulator that takes a document of these names, all required.
fn arguments<'s, const N: usize>(name: &str, spec: Value<'s>, names: [&str; N]) -> Result<[Value<'s>; N]> {
    let Value::Document(doc) = spec else {
        let text = format!("specification must be an object; found {name}: {}", crate::show::show(spec));
        return Err(Error::location(5_788_001, text));
    };
    only(doc, name, &names)?;
    let mut values = [Value::Null; N];
    for (value, argument) in values.iter_mut().zip(names) {
        *value = doc
            .get(argument)
            .ok_or_else(|| Error::location(5_788_003, format!("Missing value for '{argument}' in {name}")))?;
    }
    Ok(values)
}

fn several(name: &str, which: Which, spec: Value<'_>, parser: &Parser<'_>) -> Result<(Kind, Expr)> {
    let names = parser.options.variables.names();
    let [count, input] = arguments(name, spec, ["n", "input"])?;
    let count = Expr::parse_with(count, names)?;
    Ok((Kind::Several { which, count }, Expr::parse_with(input, names)?))
}

fn ranked(name: &str, spec: Value<'_>, parser: &Parser<'_>) -> Result<(Kind, Expr)> {
    let names = parser.options.variables.names();
    let (count, sort, output) = if name.ends_with('N') {
        let [count, sort, output] = arguments(name, spec, ["n", "sortBy", "output"])?;
        (Some(Expr::parse_with(count, names)?), sort, output)
    } else {
        let [sort, output] = arguments(name, spec, ["sortBy", "output"])?;
        (None, sort, output)
    };
    let Value::Document(sort) = sort else {
        let text = format!("expected 'sortBy' to already be an object in the arguments to {name}");
        return Err(Error::location(5_788_604, text));
    };
    let sort = Sort::parse(sort, parser.options.collation.clone())?;
    let bottom = name.starts_with("$bottom");
    Ok((Kind::Ranked { sort, bottom, count }, Expr::parse_with(output, names)?))
}

impl Field {
    fn start(&self, group: &Context<'_>) -> Result<State> {
        let counted = |count: &Expr| count_of(count.eval(group)?.value());
        Ok(match &self.kind {
            Kind::Sum | Kind::Average => State::Sum(Sum::default()),
            Kind::Minimum | Kind::Maximum => State::Extreme(None),
            Kind::First => State::First(None),
            Kind::Last => State::Last(Owned::Null),
            Kind::Push => State::Push(DocBuilder::new()),
            Kind::AddToSet => State::Set(HashSet::new(), DocBuilder::new()),
            Kind::Count => State::Count(0),
            Kind::MergeObjects => State::Merged(Doc::empty()),
            Kind::DeviationPopulation | Kind::DeviationSample => State::Deviation(Deviation::default()),
            Kind::Several { count, .. } => State::Several(VecDeque::new(), counted(count)?),
            Kind::Ranked { count, .. } => {
                State::Ranked(VecDeque::new(), count.as_ref().map_or(Ok(1), counted)?)
            }
        })
    }
}

impl State {
    fn add(
        &mut self,
        field: &Field,
        context: &Context<'_>,
        collation: Option<&Collation>,
        memory: &mut Memory,
    ) -> Result<()> {
        if matches!(self, State::First(Some(_))) {
            return Ok(());
        }
        let value = field.input.eval(context)?;
        match self {
            State::Sum(sum) => sum.add(value.value()),
            State::Count(count) => *count += 1,
            State::Deviation(deviation) => deviation.add(value.value()),
            State::First(first) => {
                memory.add(size_of_value(value.value()))?;
                *first = Some(value.into_owned());
            }
            State::Last(last) => {
                memory.remove(size_of_value(last.value()));
                memory.add(size_of_value(value.value()))?;
                *last = value.into_owned();
            }
            State::Merged(doc) => {
                let merged = merge_into(doc.clone(), value.value())?;
                memory.remove(doc.bytes().len());
                memory.add(merged.bytes().len())?;
                *doc = merged;
            }
            State::Extreme(best) => {
                let wanted = match field.kind {
                    Kind::Minimum => Ordering::Less,
                    _ => Ordering::Greater,
                };
                let better = best
                    .as_ref()
                    .is_none_or(|best| compare_with(value.value(), best.value(), collation) == wanted);
                if !value.is_nullish() && better {
                    memory.remove(best.as_ref().map_or(0, |best| size_of_value(best.value())));
                    memory.add(size_of_value(value.value()))?;
                    *best = Some(value.into_owned());
                }
            }
            State::Push(array) => {
                if let Some(value) = value.get() {
                    push(array, value, memory)?;
                }
            }
            State::Set(keys, array) => {
                if let Some(value) = value.get() {
                    let mut key = Vec::new();
                    encode_key_with(value, collation, &mut key);
                    let size = key.len() + 32;
                    if keys.insert(key) {
                        memory.add(size)?;
                        push(array, value, memory)?;
                    }
                }
            }
            State::Several(values, count) => {
                if let Kind::Several { which, .. } = field.kind {
                    memory.add(32 + size_of_value(value.value()))?;
                    if let Some(gone) = add_several(values, *count, which, value, collation) {
                        memory.remove(32 + size_of_value(gone.value()));
                    }
                }
            }
            State::Ranked(ranked, count) => {
                if let Kind::Ranked { sort, bottom, .. } = &field.kind {
                    let key = sort.key(context.root)?;
                    memory.add(64 + key.len() + size_of_value(value.value()))?;
                    if let Some((key, gone)) = add_ranked(ranked, *count, *bottom, key, value.into_owned()) {
                        memory.remove(64 + key.len() + size_of_value(gone.value()));
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(self, kind: &Kind) -> Owned {
        match self {
            State::Sum(sum) => match kind {
                Kind::Average => sum.average(),
                _ => sum.sum(),
            },
            State::Extreme(value) | State::First(value) => value.unwrap_or(Owned::Null),
            State::Last(value) => value,
            State::Push(array) | State::Set(_, array) => Owned::Array(array.finish()),
            State::Count(count) => i32::try_from(count).map_or(Owned::Int64(count), Owned::Int32),
            State::Merged(doc) => Owned::Document(doc),
            State::Deviation(deviation) => match kind {
                Kind::DeviationPopulation => deviation.population(),
                _ => deviation.sample(),
            },
            State::Several(values, _) => array_of(values.iter().map(Owned::value)),
            State::Ranked(ranked, _) => match kind {
                Kind::Ranked { count: None, .. } => {
                    ranked.into_iter().next().map_or(Owned::Null, |(_, value)| value)
                }
                _ => array_of(ranked.iter().map(|(_, value)| value.value())),
            },
        }
    }
}

fn push(array: &mut DocBuilder, value: Value<'_>, memory: &mut Memory) -> Result<()> {
    let before = array.size();
    array.push_value(value);
    memory.add(array.size() - before)
}

/// About how many bytes a value takes.
fn size_of_value(value: Value<'_>) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Document(doc) | Value::Array(doc) => doc.bytes().len(),
        Value::Binary { bytes, .. } => bytes.len(),
        _ => 16,
    }
}

/// Adds a value; returns the one that has no room, which may be the same.
fn add_several(
    values: &mut VecDeque<Owned>,
    count: usize,
    which: Which,
    value: Val<'_>,
    collation: Option<&Collation>,
) -> Option<Owned> {
    let nullish = value.is_nullish();
    let value = value.into_owned();
    match which {
        Which::First => {
            if values.len() == count {
                return Some(value);
            }
            values.push_back(value);
            None
        }
        Which::Last => {
            values.push_back(value);
            if values.len() > count { values.pop_front() } else { None }
        }
        Which::Minimum | Which::Maximum if nullish => Some(value),
        Which::Minimum | Which::Maximum => {
            let at = values.partition_point(|there| {
                let order = compare_with(there.value(), value.value(), collation);
                if which == Which::Minimum { order.is_le() } else { order.is_ge() }
            });
            values.insert(at, value);
            if values.len() > count { values.pop_back() } else { None }
        }
    }
}

/// Keeps the first `count` by key, or the last; returns what has no room. Of equal keys the earlier document
/// comes first.
fn add_ranked(
    ranked: &mut VecDeque<(Vec<u8>, Owned)>,
    count: usize,
    bottom: bool,
    key: Vec<u8>,
    value: Owned,
) -> Option<(Vec<u8>, Owned)> {
    let at = ranked.partition_point(|(there, _)| *there <= key);
    ranked.insert(at, (key, value));
    match ranked.len() > count {
        false => None,
        true if bottom => ranked.pop_front(),
        true => ranked.pop_back(),
    }
}
