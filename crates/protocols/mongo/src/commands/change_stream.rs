//! Change streams: `aggregate` whose first stage is `$changeStream`.

use super::cursor::{self, Opening};
use super::messaging;
use super::query::Parsing;
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use crate::options::Fields;
use rockdove_documents::filter::Alternatives;
use rockdove_documents::pipeline::{Environment, Pipeline};
use rockdove_documents::{Doc, DocBuilder, Error, RawDoc, Scanned, Timestamp, Value, code};
use rockdove_engine::{
    BeforeChange, EventPipeline, FullDocument, Namespace, Scope, StartAt, Token, TokenKind, View,
};
use std::sync::Arc;

/// Whether a command is an `aggregate` that opens a change stream.
pub fn is_change_stream(command: RawDoc<'_>) -> bool {
    let Some(Value::Array(pipeline)) = command.get("pipeline") else { return false };
    let first = pipeline.values().next().and_then(|stage| stage.as_document());
    first.is_some_and(|stage| stage.element("$changeStream").is_some())
}

/// The stages behind `$changeStream`.
struct Stages {
    pipeline: Pipeline,
    environment: Environment,
}

impl EventPipeline for Stages {
    fn apply(&self, event: &Scanned<'_>) -> rockdove_documents::Result<Option<Doc>> {
        self.pipeline.apply(event, &self.environment)
    }

    fn needs(&self) -> Vec<Alternatives<'_>> {
        self.pipeline.needs()
    }

    fn is_cheap(&self) -> bool {
        self.pipeline.is_cheap()
    }
}

/// Opens a stream and answers with what has happened since it starts.
pub async fn open(
    call: &Call<'_>,
    fields: &Fields<'_>,
    pipeline: RawDoc<'_>,
    reply: &mut DocBuilder,
) -> Result<()> {
    let mut stages = pipeline.values();
    let first = stages.next().and_then(|stage| stage.as_document()).unwrap_or(RawDoc::empty());
    let spec = match first.get("$changeStream") {
        Some(Value::Document(spec)) => spec,
        _ => {
            let message = "$changeStream stage expects a document as argument";
            return Err(Failure::location(50808, message));
        }
    };
    check_options(spec)?;
    check_read_concern(call.command())?;
    let spec = Fields::new("$changeStream", spec)?;
    let scope = scope(call, &spec)?;
    let namespace = match &scope {
        Scope::Collection(ns) => ns.full().to_string(),
        _ => format!("{}.$cmd.aggregate", call.database),
    };
    let (key, pipeline) = rest(call, fields, stages)?;
    let start = start(call, &spec)?;
    let token = token_of(call, start);
    let stream = match &scope {
        Scope::Collection(ns) if call.shared.identity.poppydb && messaging::names_lock_releases(&key) => {
            let locks = messaging::LockReleases::new(call.shared, ns, Box::new(pipeline));
            let key = locks.key(&key);
            let scope = Scope::Database(ns.database().to_string());
            call.shared.engine.watch(scope, view(&spec)?, key, Arc::new(locks), start)?
        }
        _ => call.shared.engine.watch(scope.clone(), view(&spec)?, key, Arc::new(pipeline), start)?,
    };
    let opening = Opening::new(call, namespace).batch(cursor::batch_size(fields)?);
    cursor::open_changes(opening, Box::new(stream), token, reply).await
}

/// The parsed stages and the text that streams with equal evaluation share.
fn rest<'v>(
    call: &Call<'_>,
    fields: &Fields<'_>,
    stages: impl Iterator<Item = Value<'v>>,
) -> Result<(bytes::Bytes, Stages)> {
    let mut array = DocBuilder::new();
    stages.for_each(|stage| {
        array.push_value(stage);
    });
    let stages = array.finish();
    let parsing = Parsing::new(call, fields)?;
    let around = parsing.surroundings();
    let pipeline = Pipeline::parse_change_stream(stages.raw(), around)?;
    let parsed = Stages { pipeline, environment: around.environment() };
    let mut key = DocBuilder::new();
    key.append("stages", &stages).append("let", fields.document("let")?);
    key.append("collation", fields.document("collation")?);
    Ok((key.finish().into_bytes(), parsed))
}

/// What a change stream shows is committed: any other level would promise something else.
fn check_read_concern(command: RawDoc<'_>) -> Result<()> {
    match command.get("readConcern").and_then(|concern| concern.as_document()?.get("level")) {
        None | Some(Value::String("majority")) => Ok(()),
        Some(_) => {
            Err(Failure::new(code::INVALID_OPTIONS, "$changeStream requires read concern level 'majority'"))
        }
    }
}

fn check_options(spec: RawDoc<'_>) -> Result<()> {
    const KNOWN: [&str; 10] = [
        "fullDocument",
        "fullDocumentBeforeChange",
        "resumeAfter",
        "startAfter",
        "startAtOperationTime",
        "allChangesForCluster",
        "showExpandedEvents",
        "showSystemEvents",
        "showMigrationEvents",
        "allowToRunOnSystemNS",
    ];
    match spec.iter().find(|element| !KNOWN.contains(&element.key())) {
        Some(unknown) => Err(Failure::location(
            40415,
            format!("BSON field '$changeStream.{}' is an unknown field.", unknown.key()),
        )),
        None => Ok(()),
    }
}

fn scope(call: &Call<'_>, spec: &Fields<'_>) -> Result<Scope> {
    let cluster = spec.flag("allChangesForCluster")?;
    let invalid = |message: &str| Err(Failure::new(code::INVALID_NAMESPACE, message));
    match call.command().get("aggregate") {
        Some(Value::String(_)) | None if cluster => Err(Failure::new(
            code::INVALID_OPTIONS,
            "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and \
             with no collection name",
        )),
        Some(Value::String(collection)) => {
            let ns = Namespace::new(call.database, collection)?;
            if ns.is_internal() {
                return invalid(&format!("$changeStream may not be opened on the internal namespace {ns}"));
            }
            if let Some(collection) = call.shared.engine.snapshot().collection(&ns) {
                collection.info.refuse_view()?;
            }
            Ok(Scope::Collection(ns))
        }
        _ if cluster && call.database == "admin" => Ok(Scope::Cluster),
        _ if cluster => Err(Failure::new(
            code::INVALID_OPTIONS,
            "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database",
        )),
        _ if matches!(call.database, "admin" | "local" | "config") => {
            invalid(&format!("$changeStream may not be opened on the internal {} database", call.database))
        }
        _ => Ok(Scope::Database(call.database.to_string())),
    }
}

fn view(spec: &Fields<'_>) -> Result<View> {
    let unknown = |field: &str, value: &str| {
        Failure::new(
            code::BAD_VALUE,
            format!("Enumeration value '{value}' for field '$changeStream.{field}' is not a valid value."),
        )
    };
    let full_document = match spec.string("fullDocument")? {
        None | Some("default") => FullDocument::Default,
        Some("updateLookup") => FullDocument::UpdateLookup,
        Some("whenAvailable") => FullDocument::WhenAvailable,
        Some("required") => FullDocument::Required,
        Some(other) => return Err(unknown("fullDocument", other)),
    };
    let before_change = match spec.string("fullDocumentBeforeChange")? {
        None | Some("off") => BeforeChange::Off,
        Some("whenAvailable") => BeforeChange::WhenAvailable,
        Some("required") => BeforeChange::Required,
        Some(other) => return Err(unknown("fullDocumentBeforeChange", other)),
    };
    Ok(View { full_document, before_change, expanded: spec.flag("showExpandedEvents")? })
}

/// Where the stream starts; at most one option may say so.
fn start(call: &Call<'_>, spec: &Fields<'_>) -> Result<StartAt> {
    let (resume, after, time) =
        (spec.get("resumeAfter"), spec.get("startAfter"), spec.get("startAtOperationTime"));
    match (resume, after, time) {
        (None, None, None) => Ok(StartAt::Time(next(call.shared.operation_time()))),
        (Some(token), None, None) => {
            let token = Token::parse(token)?;
            if token.kind == TokenKind::Invalidate {
                return Err(Failure::new(
                    code::INVALID_RESUME_TOKEN,
                    "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate \
                     notification",
                ));
            }
            Ok(StartAt::After(token))
        }
        (None, Some(token), None) => Ok(StartAt::After(Token::parse(token)?)),
        (None, None, Some(Value::Timestamp(time))) => Ok(StartAt::Time(time)),
        (None, None, Some(other)) => Err(Error::type_mismatch(format!(
            "BSON field '$changeStream.startAtOperationTime' is the wrong type '{}', expected type 'timestamp'",
            other.kind().alias()
        ))
        .into()),
        (Some(_), Some(_), None) => Err(Failure::location(
            50674,
            "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage",
        )),
        _ => Err(Failure::location(40674, "Only one type of resume option is allowed, but multiple were found.")),
    }
}

fn next(time: Timestamp) -> Timestamp {
    Timestamp::from_bits(time.bits().saturating_add(1))
}

/// The token that resumes from where the stream starts.
fn token_of(call: &Call<'_>, start: StartAt) -> Doc {
    match start {
        StartAt::After(token) => token.to_doc(),
        StartAt::Time(time) => {
            let at = Timestamp::from_bits(time.bits().saturating_sub(1));
            Token { at, epoch: call.shared.engine.epoch(), kind: TokenKind::HighWater }.to_doc()
        }
        StartAt::Now => call.shared.engine.token_for_now(),
    }
}
