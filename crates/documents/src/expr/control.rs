//! Operators that decide what they evaluate, or bind variables: conditions, `$let`, `$map`, `$filter`,
//! `$reduce`, and those whose arguments are not expressions.

use super::args::check_size;
use super::format::CONVERSION_FAILURE;
use super::parse::{Parser, check_names, check_variable, named_document};
use super::path::Base;
use super::{Context, Node, Val, convert, table};
use crate::interrupt::{steps_of, tick};
use crate::show::show;
use crate::sort::Sort;
use crate::{DocBuilder, Error, Owned, RawDoc, Result, Value, code};

/// How much longer it takes to sort values than to look at them.
const SORT_FACTOR: usize = 16;

/// An operator that evaluates its arguments itself.
#[derive(Clone, Debug)]
pub(crate) enum Control {
    And(Vec<Node>),
    Or(Vec<Node>),
    If {
        condition: Node,
        then: Node,
        otherwise: Node,
    },
    IfNull(Vec<Node>),
    Switch {
        branches: Vec<(Node, Node)>,
        default: Option<Node>,
    },
    Let {
        slot: usize,
        values: Vec<Node>,
        body: Node,
    },
    Map {
        slot: usize,
        input: Node,
        body: Node,
    },
    Filter {
        slot: usize,
        input: Node,
        condition: Node,
        limit: Node,
    },
    /// `value` is `$$value` in `slot`, the element `$$this` in the next.
    Reduce {
        slot: usize,
        input: Node,
        initial: Node,
        body: Node,
    },
    Convert {
        input: Node,
        to: Node,
        on_error: Option<Node>,
        on_null: Option<Node>,
    },
    SortArray {
        input: Node,
        order: ArrayOrder,
    },
    /// `on_error` takes the place of an `attempt` that fails to convert.
    Recover {
        attempt: Node,
        on_error: Option<Node>,
    },
    /// A random number decides, with this probability.
    SampleRate(f64),
}

/// How `$sortArray` orders.
#[derive(Clone, Debug)]
pub(crate) enum ArrayOrder {
    Whole { descending: bool },
    Fields(Sort),
}

/// Parses the operator if it is one of this module.
pub(super) fn parse(parser: &mut Parser<'_>, name: &str, spec: Value<'_>) -> Result<Option<Node>> {
    let control = match name {
        "$literal" | "$const" => return Ok(Some(Node::Constant(spec.to_owned()))),
        "$and" => Control::And(parser.list(name, spec, 0, usize::MAX)?),
        "$or" => Control::Or(parser.list(name, spec, 0, usize::MAX)?),
        "$cond" => condition(parser, spec)?,
        "$ifNull" => if_null(parser, spec)?,
        "$switch" => switch(parser, spec)?,
        "$let" => bind(parser, spec)?,
        "$map" => map(parser, spec)?,
        "$filter" => filter(parser, spec)?,
        "$reduce" => reduce(parser, spec)?,
        "$convert" => convert_to(parser, spec)?,
        "$sortArray" => sort_array(parser, spec)?,
        "$getField" => return get_field(parser, spec).map(Some),
        "$dateFromString" => date_from_string(parser, spec)?,
        "$sampleRate" => match spec.as_f64() {
            Some(rate) if (0.0..=1.0).contains(&rate) => Control::SampleRate(rate),
            _ => {
                let text = format!("$sampleRate must be a number between 0 and 1, not {}", show(spec));
                return Err(Error::bad_value(text));
            }
        },
        _ => return Ok(None),
    };
    Ok(Some(Node::Control(Box::new(control))))
}

fn condition(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    let nodes = match spec {
        Value::Document(doc) => {
            if let Some(other) = doc.iter().find(|field| !matches!(field.key(), "if" | "then" | "else")) {
                let text = format!("Unrecognized parameter to $cond: {}", other.key());
                return Err(Error::location(17083, text));
            }
            for (number, part) in [(17080, "if"), (17081, "then"), (17082, "else")] {
                if doc.get(part).is_none() {
                    return Err(Error::location(number, format!("Missing '{part}' parameter to $cond")));
                }
            }
            parser.named("$cond", spec, &["if", "then", "else"], 3)?
        }
        spec => parser.list("$cond", spec, 3, 3)?,
    };
    let [condition, then, otherwise] = exactly(nodes)?;
    Ok(Control::If { condition, then, otherwise })
}

/// The nodes, of which there are as many as were asked for.
fn exactly<const N: usize>(nodes: Vec<Node>) -> Result<[Node; N]> {
    let given = nodes.len();
    nodes
        .try_into()
        .map_err(|_| Error::location(16020, format!("takes exactly {N} arguments. {given} were passed in.")))
}

fn if_null(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    let nodes = parser.list("$ifNull", spec, 0, usize::MAX)?;
    match nodes.len() {
        0 | 1 => Err(Error::location(
            1_257_300,
            format!("$ifNull needs at least two arguments, had: {}", nodes.len()),
        )),
        _ => Ok(Control::IfNull(nodes)),
    }
}

fn switch(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    let Value::Document(doc) = spec else {
        let text = format!("$switch requires an object as an argument, found: {}", spec.kind().alias());
        return Err(Error::location(40060, text));
    };
    if let Some(other) = doc.iter().find(|field| !matches!(field.key(), "branches" | "default")) {
        return Err(Error::location(40067, format!("$switch found an unknown argument: {}", other.key())));
    }
    let Some(Value::Array(list)) = doc.get("branches") else {
        return Err(Error::location(40061, "$switch expected an array for 'branches'"));
    };
    let mut branches = Vec::new();
    for branch in list.values() {
        let Value::Document(branch) = branch else {
            let text =
                format!("$switch expected each branch to be an object, found: {}", branch.kind().alias());
            return Err(Error::location(40062, text));
        };
        let part = |name: &str, number: i32| {
            let text = format!("$switch requires each branch have a '{name}' expression");
            branch.get(name).ok_or_else(|| Error::location(number, text))
        };
        let (case, then) = (part("case", 40064)?, part("then", 40065)?);
        if let Some(other) = branch.iter().find(|field| !matches!(field.key(), "case" | "then")) {
            let text = format!("$switch found an unknown argument to a branch: {}", other.key());
            return Err(Error::location(40063, text));
        }
        branches.push((parser.node(case)?, parser.node(then)?));
    }
    if branches.is_empty() {
        return Err(Error::location(40068, "$switch requires at least one branch."));
    }
    let default = doc.get("default").map(|default| parser.node(default)).transpose()?;
    Ok(Control::Switch { branches, default })
}

fn bind(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    let doc = named_document("$let", spec)?;
    check_names("$let", doc, &["vars", "in"], 2)?;
    let Some(Value::Document(variables)) = doc.get("vars") else {
        return Err(Error::location(10065, "invalid parameter: expected an object (vars)"));
    };
    let mut names = Vec::new();
    let mut values = Vec::new();
    for variable in variables {
        check_variable(variable.key())?;
        names.push(variable.key());
        values.push(parser.node(variable.value())?);
    }
    let (slot, body) = parser.binding(&names, argument(doc, "in"))?;
    Ok(Control::Let { slot, values, body })
}

/// An argument that [`check_names`] found.
fn argument<'s>(doc: RawDoc<'s>, name: &str) -> Value<'s> {
    doc.get(name).unwrap_or(Value::Null)
}

/// The name that `as` gives to the element: `this` without it.
fn element_name<'s>(operator: &str, doc: RawDoc<'s>) -> Result<&'s str> {
    match doc.get("as") {
        None => Ok("this"),
        Some(Value::String(name)) => check_variable(name).map(|()| name),
        Some(other) => Err(Error::failed_to_parse(format!(
            "{operator}: 'as' must be a string, found: {}",
            other.kind().alias()
        ))),
    }
}

fn map(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    let doc = named_document("$map", spec)?;
    check_names("$map", doc, &["input", "in", "as"], 2)?;
    let input = parser.node(argument(doc, "input"))?;
    let (slot, body) = parser.binding(&[element_name("$map", doc)?], argument(doc, "in"))?;
    Ok(Control::Map { slot, input, body })
}

fn filter(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    let doc = named_document("$filter", spec)?;
    check_names("$filter", doc, &["input", "cond", "as", "limit"], 2)?;
    let input = parser.node(argument(doc, "input"))?;
    let (slot, condition) = parser.binding(&[element_name("$filter", doc)?], argument(doc, "cond"))?;
    let limit = doc.get("limit").map_or(Ok(Node::Absent), |limit| parser.node(limit))?;
    Ok(Control::Filter { slot, input, condition, limit })
}

fn reduce(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    let doc = named_document("$reduce", spec)?;
    check_names("$reduce", doc, &["input", "initialValue", "in"], 3)?;
    let input = parser.node(argument(doc, "input"))?;
    let initial = parser.node(argument(doc, "initialValue"))?;
    let (slot, body) = parser.binding(&["value", "this"], argument(doc, "in"))?;
    Ok(Control::Reduce { slot, input, initial, body })
}

fn convert_to(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    let doc = named_document("$convert", spec)?;
    check_names("$convert", doc, &["input", "to", "onError", "onNull"], 2)?;
    let input = parser.node(argument(doc, "input"))?;
    let to = parser.node(argument(doc, "to"))?;
    let on_error = doc.get("onError").map(|value| parser.node(value)).transpose()?;
    let on_null = doc.get("onNull").map(|value| parser.node(value)).transpose()?;
    Ok(Control::Convert { input, to, on_error, on_null })
}

/// `$getField` of a name only, or without `input`, means the document's field.
fn get_field(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Node> {
    let mut nodes = match spec {
        Value::Document(doc) if doc.get("field").is_some() => {
            parser.named("$getField", spec, &["field", "input"], 1)?
        }
        field => vec![parser.node(field)?, Node::Absent],
    };
    if let Some(input @ Node::Absent) = nodes.get_mut(1) {
        *input = Node::Path(Base::Current, Box::default());
    }
    call("$getField", nodes)
}

/// A call of an operator of the table.
fn call(name: &str, nodes: Vec<Node>) -> Result<Node> {
    match table::find(name) {
        Some(operator) => Ok(Node::Call(operator, nodes)),
        None => Err(Error::new(code::INVALID_PIPELINE_OPERATOR, format!("Unrecognized expression '{name}'"))),
    }
}

fn date_from_string(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    const NAMES: &[&str] = &["dateString", "format", "timezone", "onNull", "onError"];
    let mut nodes = parser.named("$dateFromString", spec, NAMES, 1)?;
    let on_error = match nodes.pop() {
        Some(Node::Absent) | None => None,
        on_error => on_error,
    };
    Ok(Control::Recover { attempt: call("$dateFromString", nodes)?, on_error })
}

fn sort_array(parser: &mut Parser<'_>, spec: Value<'_>) -> Result<Control> {
    let doc = named_document("$sortArray", spec)?;
    check_names("$sortArray", doc, &["input", "sortBy"], 2)?;
    let input = parser.node(argument(doc, "input"))?;
    let order = match argument(doc, "sortBy") {
        Value::Document(fields) => ArrayOrder::Fields(Sort::parse(fields, None)?),
        by => match by.as_integer() {
            Some(1) => ArrayOrder::Whole { descending: false },
            Some(-1) => ArrayOrder::Whole { descending: true },
            _ => {
                return Err(Error::location(
                    2_942_507,
                    "Invalid sort specification for $sortArray: use 1/-1 or {field: 1/-1}",
                ));
            }
        },
    };
    Ok(Control::SortArray { input, order })
}

impl Control {
    pub(super) fn eval<'v>(&'v self, context: &Context<'v>) -> Result<Val<'v>> {
        match self {
            Control::And(nodes) => holds(nodes, context, false),
            Control::Or(nodes) => holds(nodes, context, true),
            Control::If { condition, then, otherwise } => {
                if condition.eval(context)?.is_true() { then } else { otherwise }.eval(context)
            }
            Control::IfNull(nodes) => {
                let mut last = Val::Missing;
                for node in nodes {
                    last = node.eval(context)?;
                    if !last.is_nullish() {
                        break;
                    }
                }
                Ok(last)
            }
            Control::Switch { branches, default } => {
                for (case, then) in branches {
                    if case.eval(context)?.is_true() {
                        return then.eval(context);
                    }
                }
                match default {
                    Some(default) => default.eval(context),
                    None => Err(Error::location(
                        40066,
                        "$switch could not find a matching branch for an input, and no default was specified.",
                    )),
                }
            }
            Control::Let { slot, values, body } => eval_let(*slot, values, body, context),
            Control::Map { slot, input, body } => eval_map(*slot, input, body, context),
            Control::Filter { slot, input, condition, limit } => {
                eval_filter(*slot, input, condition, limit, context)
            }
            Control::Reduce { slot, input, initial, body } => {
                eval_reduce(*slot, input, initial, body, context)
            }
            Control::Convert { input, to, on_error, on_null } => {
                let (input, to) = (input.eval(context)?, to.eval(context)?);
                if input.is_nullish() {
                    return on_null.as_ref().map_or(Ok(Val::null()), |node| node.eval(context));
                }
                if to.is_nullish() {
                    return Ok(Val::null());
                }
                let target = convert::target(to.value())?;
                match (convert::convert(input.value(), target), on_error) {
                    (Ok(value), _) => Ok(Val::Own(value)),
                    (Err(_), Some(node)) => node.eval(context),
                    (Err(error), None) => Err(error),
                }
            }
            Control::Recover { attempt, on_error } => match (attempt.eval(context), on_error) {
                (Err(error), Some(node)) if error.code == CONVERSION_FAILURE => node.eval(context),
                (result, _) => result,
            },
            Control::SortArray { input, order } => eval_sort(input, order, context),
            Control::SampleRate(rate) => Ok(Val::from(rand::random::<f64>() < *rate)),
        }
    }
}

/// Whether any (`wanted`) or not all (`!wanted`) of the conditions decide; stops at the first that does.
fn holds<'v>(nodes: &'v [Node], context: &Context<'v>, wanted: bool) -> Result<Val<'v>> {
    for node in nodes {
        if node.eval(context)?.is_true() == wanted {
            return Ok(Val::from(wanted));
        }
    }
    Ok(Val::from(!wanted))
}

fn eval_let<'v>(slot: usize, values: &'v [Node], body: &'v Node, context: &Context<'v>) -> Result<Val<'v>> {
    let values = values.iter().map(|node| node.eval(context)).collect::<Result<Vec<Val<'v>>>>()?;
    let mut inner: Context<'_> = context.clone();
    for (index, value) in values.iter().enumerate() {
        inner = inner.bind(slot + index, value.get());
    }
    let value = body.eval(&inner)?;
    tick(1 + steps_of(value.value()))?;
    Ok(value.detach())
}

/// The array that an input must be, or `None` for null.
fn input_array<'a>(input: &'a Val<'_>, number: i32, operator: &str) -> Result<Option<RawDoc<'a>>> {
    match input.value() {
        Value::Array(array) => Ok(Some(array)),
        _ if input.is_nullish() => Ok(None),
        _ => {
            let text = format!("input to {operator} must be an array not {}", input.type_name());
            Err(Error::location(number, text))
        }
    }
}

fn eval_map<'v>(slot: usize, input: &'v Node, body: &'v Node, context: &Context<'v>) -> Result<Val<'v>> {
    let input = input.eval(context)?;
    let Some(array) = input_array(&input, 16883, "$map")? else { return Ok(Val::null()) };
    let mut mapped = DocBuilder::new();
    for item in array.values() {
        let inner = context.bind(slot, Some(item));
        let value = body.eval(&inner)?;
        tick(1 + steps_of(value.value()))?;
        mapped.push_value(value.get().unwrap_or(Value::Null));
        check_size(mapped.size())?;
    }
    Ok(Val::Own(Owned::Array(mapped.finish())))
}

fn eval_filter<'v>(
    slot: usize,
    input: &'v Node,
    condition: &'v Node,
    limit: &'v Node,
    context: &Context<'v>,
) -> Result<Val<'v>> {
    let input = input.eval(context)?;
    let limit = limit.eval(context)?;
    let Some(array) = input_array(&input, 28651, "$filter")? else { return Ok(Val::null()) };
    let most = match crate::number::to_integral(limit.value()) {
        _ if limit.is_nullish() => usize::MAX,
        Some(most) if most >= 1 => usize::try_from(most).unwrap_or(usize::MAX),
        _ => {
            let text = format!("$filter: limit must be a positive integer, found: {}", show(limit.value()));
            return Err(Error::location(327_391, text));
        }
    };
    let mut kept = DocBuilder::new();
    let mut count = 0;
    for item in array.values() {
        if count == most {
            break;
        }
        let inner = context.bind(slot, Some(item));
        tick(1)?;
        if condition.eval(&inner)?.is_true() {
            kept.push_value(item);
            count += 1;
        }
    }
    Ok(Val::Own(Owned::Array(kept.finish())))
}

fn eval_reduce<'v>(
    slot: usize,
    input: &'v Node,
    initial: &'v Node,
    body: &'v Node,
    context: &Context<'v>,
) -> Result<Val<'v>> {
    let input = input.eval(context)?;
    if input.is_nullish() {
        return Ok(Val::null());
    }
    let Value::Array(array) = input.value() else {
        let text = format!("$reduce requires that 'input' be an array, found: {}", show(input.value()));
        return Err(Error::location(40080, text));
    };
    let mut value = initial.eval(context)?.detach();
    for item in array.values() {
        let next = {
            let inner = context.bind(slot, value.get()).bind(slot + 1, Some(item));
            body.eval(&inner)?.detach()
        };
        tick(1 + steps_of(next.value()))?;
        value = next;
    }
    Ok(value)
}

fn eval_sort<'v>(input: &'v Node, order: &'v ArrayOrder, context: &Context<'v>) -> Result<Val<'v>> {
    let input = input.eval(context)?;
    let array = match input.value() {
        Value::Array(array) => array,
        _ if input.is_nullish() => return Ok(Val::null()),
        _ => {
            return Err(Error::location(
                2_942_504,
                format!(
                    "The input argument to $sortArray must be an array, but was of type: {}",
                    input.type_name()
                ),
            ));
        }
    };
    tick(SORT_FACTOR * steps_of(input.value()))?;
    let mut values: Vec<Value<'_>> = array.values().collect();
    match order {
        ArrayOrder::Whole { descending: false } => values.sort_by(|a, b| context.compare(*a, *b)),
        ArrayOrder::Whole { descending: true } => values.sort_by(|a, b| context.compare(*b, *a)),
        ArrayOrder::Fields(sort) => {
            let sort = sort.clone().collated(context.collation.cloned());
            // What is no document has none of its fields.
            let fields = |value: Value<'_>| sort.key(value.as_document().unwrap_or(RawDoc::empty()));
            let mut keyed = Vec::with_capacity(values.len());
            for value in values {
                keyed.push((fields(value)?, value));
            }
            keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
            values = keyed.into_iter().map(|(_, value)| value).collect();
        }
    }
    Ok(Val::Own(super::args::array_of(values)))
}
