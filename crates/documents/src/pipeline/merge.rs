//! Where results go: `$out` and `$merge`. They are parsed here and carried out by the caller.

use super::parse::{document, namespace, only};
use super::{Environment, Options, Pipeline, with_names};
use crate::expr::{Expr, check_path, merge_into};
use crate::{Doc, Error, Owned, RawDoc, Result, Value};

/// A collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Its database, if it is not that of the command.
    pub db: Option<String>,
    /// Its name.
    pub collection: String,
}

/// Where the results of a pipeline go.
#[derive(Debug)]
pub enum Sink {
    /// They replace the collection.
    Out(Target),
    /// They are merged into it one by one.
    Merge(Merge),
}

/// A `$merge`.
#[derive(Debug)]
pub struct Merge {
    /// Into which collection.
    pub into: Target,
    /// Which fields tell the same document; `_id` unless said otherwise.
    pub on: Vec<String>,
    /// What happens to a document that is there.
    pub when_matched: WhenMatched,
    /// What happens if there is none.
    pub when_not_matched: WhenNotMatched,
    variables: Vec<(String, Expr)>,
}

/// What `$merge` does with a document that is there.
#[derive(Debug)]
pub enum WhenMatched {
    /// The result takes its place.
    Replace,
    /// It stays.
    KeepExisting,
    /// It gets the result's fields.
    Merge,
    /// The command fails.
    Fail,
    /// A pipeline changes it, to which the result is `$$new`.
    Pipeline(Pipeline),
}

/// What `$merge` does with a result that matches no document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenNotMatched {
    /// It is inserted.
    Insert,
    /// It is dropped.
    Discard,
    /// The command fails.
    Fail,
}

impl Sink {
    pub(super) fn parse(name: &str, spec: Value<'_>, options: &Options) -> Result<Sink> {
        match (name, spec) {
            ("$out", Value::String(_) | Value::Document(_)) => {
                let (db, collection) = namespace(spec)?;
                Ok(Sink::Out(Target { db, collection }))
            }
            ("$out", other) => Err(Error::location(
                16990,
                format!("$out only supports a string or object argument, but found {}", other.kind().alias()),
            )),
            _ => Merge::parse(spec, options).map(Sink::Merge),
        }
    }

    /// The collection that changes.
    pub fn target(&self) -> &Target {
        match self {
            Sink::Out(target) => target,
            Sink::Merge(merge) => &merge.into,
        }
    }
}

impl Merge {
    fn parse(spec: Value<'_>, options: &Options) -> Result<Merge> {
        if let Value::String(collection) = spec {
            return Ok(Merge {
                into: Target { db: None, collection: collection.to_string() },
                on: vec!["_id".into()],
                when_matched: WhenMatched::Merge,
                when_not_matched: WhenNotMatched::Insert,
                variables: Vec::new(),
            });
        }
        let spec = document(spec, "$merge", 51182)?;
        only(spec, "$merge", &["into", "on", "let", "whenMatched", "whenNotMatched"])?;
        let Some(into) = spec.get("into") else {
            return Err(Error::location(51178, "$merge requires 'into' to be specified"));
        };
        let (db, collection) = namespace(into)?;
        let mut variables = match spec.get("let") {
            None => Vec::new(),
            Some(Value::Document(variables)) => Expr::parse_let(variables, options.variables.names())?,
            Some(_) => return Err(Error::type_mismatch("$merge 'let' must be an object")),
        };
        let matched = spec.get("whenMatched");
        if !variables.is_empty() && !matches!(matched, Some(Value::Array(_))) {
            let text = "Cannot use 'let' variables with 'whenMatched' other than a pipeline";
            return Err(Error::location(51199, text));
        }
        if !variables.iter().any(|(name, _)| name == "new") {
            let root = Expr::parse_with(Value::String("$$ROOT"), options.variables.names())?;
            variables.push(("new".into(), root));
        }
        let inner = with_names(options, variables.iter().map(|(name, _)| name.clone()));
        Ok(Merge {
            into: Target { db, collection },
            on: on_fields(spec.get("on"))?,
            when_matched: when_matched(matched, &inner)?,
            when_not_matched: when_not_matched(spec.get("whenNotMatched"))?,
            variables,
        })
    }

    /// What becomes of a document that is there when a result meets it; `None` if it stays as it is.
    ///
    /// # Errors
    /// Those of a pipeline; for `Fail` there is nothing to combine, and it stays as it is.
    pub fn combine(
        &self,
        existing: RawDoc<'_>,
        new: RawDoc<'_>,
        environment: &Environment,
    ) -> Result<Option<Doc>> {
        match &self.when_matched {
            WhenMatched::Replace => {
                let mut replaced = crate::DocBuilder::with_capacity(new.bytes().len() + 24);
                if let Some(id) = existing.element("_id").filter(|_| new.get("_id").is_none()) {
                    replaced.append_element(id);
                }
                replaced.append_all(new);
                Ok(Some(replaced.finish()))
            }
            WhenMatched::KeepExisting | WhenMatched::Fail => Ok(None),
            WhenMatched::Merge => merge_into(existing.to_doc(), Value::Document(new)).map(Some),
            WhenMatched::Pipeline(pipeline) => {
                let context = environment.context(new);
                let mut values: Vec<Owned> = Vec::new();
                for (_, expr) in &self.variables {
                    values.push(expr.eval(&context)?.into_owned());
                }
                let environment = environment.with_values(values);
                pipeline.apply_one(existing.to_doc(), &environment)
            }
        }
    }
}

fn on_fields(on: Option<Value<'_>>) -> Result<Vec<String>> {
    let wrong = || Error::location(51186, "$merge 'on' field must be either a string or an array of strings");
    let fields: Vec<String> = match on {
        None => vec!["_id".into()],
        Some(Value::String(field)) => vec![field.to_string()],
        Some(Value::Array(fields)) => {
            let names = fields.values().map(|field| field.as_str().map(String::from));
            names.collect::<Option<Vec<String>>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    fields.iter().try_for_each(|field| check_path(field))?;
    match fields.is_empty() {
        true => Err(Error::location(
            51187,
            "If explicitly specifying $merge 'on', must include at least one field",
        )),
        false => Ok(fields),
    }
}

fn when_matched(spec: Option<Value<'_>>, options: &Options) -> Result<WhenMatched> {
    const ALLOWED: [&str; 6] = ["$set", "$addFields", "$unset", "$project", "$replaceRoot", "$replaceWith"];
    match spec {
        None | Some(Value::String("merge")) => Ok(WhenMatched::Merge),
        Some(Value::String("replace")) => Ok(WhenMatched::Replace),
        Some(Value::String("keepExisting")) => Ok(WhenMatched::KeepExisting),
        Some(Value::String("fail")) => Ok(WhenMatched::Fail),
        Some(Value::Array(stages)) => {
            super::parse::restrict(stages, &ALLOWED, |name| {
                let text = format!("{name} is not allowed to be used within an update");
                Error::new(crate::code::INVALID_OPTIONS, text)
            })?;
            Pipeline::parse(stages, options).map(WhenMatched::Pipeline)
        }
        Some(other) => Err(Error::bad_value(format!(
            "Enumeration value for 'whenMatched' is not valid: {}",
            crate::show::show(other)
        ))),
    }
}

fn when_not_matched(spec: Option<Value<'_>>) -> Result<WhenNotMatched> {
    match spec {
        None | Some(Value::String("insert")) => Ok(WhenNotMatched::Insert),
        Some(Value::String("discard")) => Ok(WhenNotMatched::Discard),
        Some(Value::String("fail")) => Ok(WhenNotMatched::Fail),
        Some(other) => Err(Error::bad_value(format!(
            "Enumeration value for 'whenNotMatched' is not valid: {}",
            crate::show::show(other)
        ))),
    }
}
