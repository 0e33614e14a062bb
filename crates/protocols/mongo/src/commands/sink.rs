//! `$out` and `$merge`: results of a pipeline that go into a collection.
//!
//! `$out` fills a collection of its own beside the target and puts it in the target's place in one step. `$merge`
//! treats one result after the other: it reads the document that is there, combines both, and writes the outcome
//! only if that document is still the same; otherwise it looks again. What the write concern asks for is waited for
//! once, after the last write, for all of them.

use super::cursor::{in_place, off_thread};
use super::query::Parsing;
use crate::dispatch::Call;
use crate::errors::{Failure, Result};
use rockdove_documents::pipeline::{Environment, Merge, Sink, WhenMatched, WhenNotMatched};
use rockdove_documents::{Doc, DocBuilder, Error, Value, code, doc};
use rockdove_engine::{
    Ack, Definition, Engine, Find, Namespace, Outcome, Query, Receipt, Statement, UpdateStatement, Write,
    WriteError,
};

/// How often a document that others change meanwhile is looked at again.
const ATTEMPTS_MAX: usize = 100;
/// Documents of one insert into the collection that `$out` fills.
const BATCH: usize = 1000;

/// The collection that the results of a pipeline go into. Those that are the server's own are refused.
pub fn target(call: &Call<'_>, sink: &Sink) -> Result<Namespace> {
    let target = sink.target();
    let ns = Namespace::new(target.db.as_deref().unwrap_or(call.database), &target.collection)?;
    let (stage, special, internal) = match sink {
        Sink::Out(_) => ("$out", 17385, 31321),
        Sink::Merge(_) => ("$merge", 31319, 31320),
    };
    if ns.is_special() {
        let message = format!("Cannot {stage} to special collection: {}", ns.collection());
        return Err(Failure::location(special, message));
    }
    if ns.is_internal() {
        let message = format!("Cannot {stage} to internal database: {}", ns.database());
        return Err(Failure::location(internal, message));
    }
    Ok(ns)
}

/// Where results are written and how.
pub struct Writer<'c> {
    /// The command.
    call: &'c Call<'c>,
    /// Its collation, time and variables.
    parsing: &'c Parsing,
    /// What combining pipelines run in.
    environment: &'c Environment,
    /// What is owed for the writes so far.
    receipt: Receipt,
}

impl<'c> Writer<'c> {
    /// A writer that has written nothing yet.
    pub fn new(call: &'c Call<'c>, parsing: &'c Parsing, environment: &'c Environment) -> Writer<'c> {
        Writer { call, parsing, environment, receipt: Receipt::default() }
    }

    /// Writes the results of a pipeline into its [`target`]. Also where not all could be written, what was is as lasting as the write
    /// concern wants it.
    pub async fn write(&mut self, sink: &Sink, ns: &Namespace, results: Vec<Doc>) -> Result<()> {
        let done = self.write_all(sink, ns, results).await;
        self.call.settle(&self.receipt).await?;
        done
    }

    /// The writes are answered when they are in the log; [`write`](Self::write) waits for the rest.
    fn ack(&self) -> Ack {
        Ack { deferred: true, ..self.call.ack() }
    }

    /// Adds what one more write is owed.
    fn note(&mut self, receipt: Receipt) {
        self.receipt = std::mem::take(&mut self.receipt).joined(receipt);
    }

    async fn write_all(&mut self, sink: &Sink, ns: &Namespace, results: Vec<Doc>) -> Result<()> {
        let state = self.call.shared.engine.snapshot();
        if let Some(collection) = state.collection(ns) {
            collection.info.refuse_view()?;
            if collection.info.capped.is_some() && matches!(sink, Sink::Out(_)) {
                let message = format!("namespace '{ns}' is capped so it can't be used for $out");
                return Err(Failure::location(17152, message));
            }
        }
        match sink {
            Sink::Out(_) => self.replace(ns, results).await,
            Sink::Merge(merge) => self.merge(ns, merge, results).await,
        }
    }

    /// Puts the results in the place of the collection, which keeps its options and indexes.
    async fn replace(&mut self, ns: &Namespace, results: Vec<Doc>) -> Result<()> {
        let engine = &self.call.shared.engine;
        let filled = Namespace::new(ns.database(), &format!("{UNFINISHED}{}", uuid::Uuid::new_v4()))?;
        let (options, specs) = {
            let state = engine.snapshot();
            let target = state.collection(ns);
            let specs = target.map_or(&[][..], |target| target.indexes()).iter().skip(1);
            let specs: Vec<Doc> = specs.map(|index| index.spec.doc.clone()).collect();
            (target.map_or(Doc::empty(), |target| target.info.options.clone()), specs)
        };
        let mut unfinished = Unfinished { engine: engine.clone(), ns: Some(filled.clone()) };
        engine.define(Definition::Create { ns: filled.clone(), options }, Ack::WRITTEN).await?;
        self.fill(ns, &filled, specs, results).await?;
        unfinished.ns = None;
        Ok(())
    }

    async fn fill(
        &mut self,
        ns: &Namespace,
        filled: &Namespace,
        specs: Vec<Doc>,
        results: Vec<Doc>,
    ) -> Result<()> {
        let engine = &self.call.shared.engine;
        if !specs.is_empty() {
            engine.define(Definition::CreateIndexes { ns: filled.clone(), specs }, Ack::WRITTEN).await?;
        }
        let mut results = results.into_iter().peekable();
        while results.peek().is_some() {
            let batch = results.by_ref().take(BATCH);
            let statements = batch.map(|doc| Statement::Insert { ns: filled.clone(), doc }).collect();
            self.carry_out(statements).await?.map_err(Failure::from)?;
        }
        let rename = Definition::Rename { from: filled.clone(), to: ns.clone(), drop_target: true };
        let renamed = engine.define(rename, self.ack()).await?;
        self.note(renamed.receipt);
        Ok(())
    }

    /// Carries out statements up to the first that fails.
    async fn carry_out(&mut self, statements: Vec<Statement>) -> Result<Result<Vec<Outcome>, WriteError>> {
        let write = Write {
            statements,
            ordered: true,
            retry: None,
            ack: self.ack(),
            bypass_validation: false,
            interrupt: None,
        };
        let reply = self.call.shared.engine.write(write).await?;
        self.note(reply.receipt);
        Ok(reply.results.into_iter().collect())
    }

    async fn merge(&mut self, ns: &Namespace, merge: &Merge, results: Vec<Doc>) -> Result<()> {
        self.check_unique(ns, &merge.on)?;
        for result in results {
            self.merge_one(ns, merge, result).await?;
        }
        Ok(())
    }

    /// Other fields than `_id` must be the key of a unique index, or "the document that is there" means nothing.
    fn check_unique(&self, ns: &Namespace, on: &[String]) -> Result<()> {
        if on == ["_id"] {
            return Ok(());
        }
        let state = self.call.shared.engine.snapshot();
        let unique = |index: &rockdove_engine::Index| {
            let keys = index.spec.doc.get("key").and_then(|keys| keys.as_document());
            let keys: Vec<&str> = keys.into_iter().flatten().map(|element| element.key()).collect();
            index.spec.unique
                && index.spec.partial.is_none()
                && keys.len() == on.len()
                && on.iter().all(|field| keys.contains(&field.as_str()))
        };
        match state.collection(ns).is_some_and(|collection| collection.indexes().iter().any(unique)) {
            true => Ok(()),
            false => {
                Err(Failure::location(51183, "Cannot find index to verify that join fields will be unique"))
            }
        }
    }

    async fn merge_one(&mut self, ns: &Namespace, merge: &Merge, result: Doc) -> Result<()> {
        let Some(filter) = key_filter(&result, &merge.on)? else {
            return self.insert(ns, merge, result).await?.map_err(Failure::from);
        };
        for _ in 0..ATTEMPTS_MAX {
            let done = match self.existing(ns, &filter).await? {
                Some(old) => self.update(ns, merge, &old, &result).await?,
                None => match self.insert(ns, merge, result.clone()).await? {
                    Ok(()) => true,
                    // Somebody else may have inserted it meanwhile; if not, another unique index refuses it.
                    Err(error) => match self.existing(ns, &filter).await? {
                        Some(_) => false,
                        None => return Err(error.into()),
                    },
                },
            };
            if done {
                return Ok(());
            }
        }
        Err(Failure::new(code::WRITE_CONFLICT, format!("$merge: a document of {ns} is changed all the time")))
    }

    async fn existing(&self, ns: &Namespace, filter: &Doc) -> Result<Option<Doc>> {
        let find = Find { limit: 1, ..Find::new(ns.clone(), self.parsing.filter(filter.raw())?) };
        let query = Query::plan(&self.call.shared.engine.snapshot(), find)?;
        let heavy = super::find::is_heavy(&query);
        let read = move || Ok(query.documents()?.next().transpose()?);
        if heavy { off_thread(self.call.shared, &self.call.interrupt(), read).await } else { read() }
    }

    /// Combines a result with the document that is there; whether that is still the same.
    async fn update(&mut self, ns: &Namespace, merge: &Merge, old: &Doc, result: &Doc) -> Result<bool> {
        if matches!(merge.when_matched, WhenMatched::Fail) {
            // The unique index tells what is in the way, unless it has gone meanwhile.
            let statement = Statement::Insert { ns: ns.clone(), doc: result.clone() };
            return self.carry_out(vec![statement]).await?.map(|_| true).map_err(Failure::from);
        }
        let combine = || merge.combine(old.raw(), result.raw(), self.environment);
        let new = match &merge.when_matched {
            WhenMatched::Pipeline(_) => in_place(&self.call.interrupt(), combine)?,
            _ => combine()?,
        };
        let Some(new) = new.filter(|new| new != old) else { return Ok(true) };
        let id = old.get("_id").unwrap_or(Value::Null);
        let unchanged = doc! { "_id": { "$eq": id }, "$expr": { "$eq": ["$$ROOT", { "$literal": old }] } };
        let statement = UpdateStatement {
            ns: ns.clone(),
            filter: self.parsing.filter(unchanged.raw())?,
            update: self.parsing.update(Value::Document(new.raw()), None, None)?,
            multi: false,
            upsert: false,
            sort: None,
            hint: None,
        };
        let done =
            self.carry_out(vec![Statement::Update(Box::new(statement))]).await?.map_err(Failure::from)?;
        Ok(matches!(done.first(), Some(Outcome::Updated { matched: 1, .. })))
    }

    async fn insert(&mut self, ns: &Namespace, merge: &Merge, result: Doc) -> Result<Result<(), WriteError>> {
        match merge.when_not_matched {
            WhenNotMatched::Discard => Ok(Ok(())),
            WhenNotMatched::Fail => Err(Failure::location(
                13113,
                "$merge could not find a matching document in the target collection for at least one document in \
                 the source collection",
            )),
            WhenNotMatched::Insert => {
                let statement = Statement::Insert { ns: ns.clone(), doc: result };
                Ok(self.carry_out(vec![statement]).await?.map(drop))
            }
        }
    }
}

/// What the names of collections that `$out` fills begin with, in every database.
const UNFINISHED: &str = "tmp.agg_out.";

/// Removes what an `$out` has left that the end of an earlier run interrupted, as far as the disk lets it.
pub async fn remove_unfinished(engine: &Engine) {
    let is_left = |ns: &Namespace| {
        let id = ns.collection().strip_prefix(UNFINISHED);
        id.is_some_and(|id| uuid::Uuid::try_parse(id).is_ok())
    };
    let state = engine.snapshot();
    let names = state.collections().map(|collection| collection.info.ns.clone());
    for ns in names.filter(is_left) {
        match engine.define(Definition::Drop { ns: ns.clone() }, Ack::WRITTEN).await {
            Ok(_) => tracing::warn!(%ns, "removed: an $out was interrupted"),
            Err(error) => tracing::warn!(%ns, %error, "what an interrupted $out has left stays"),
        }
    }
}

/// A collection that `$out` fills. It goes if that is not finished, also where its command is ended in the middle.
struct Unfinished {
    engine: Engine,
    /// Its name, until it takes its target's place.
    ns: Option<Namespace>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(ns) = self.ns.take() else { return };
        let engine = self.engine.clone();
        tokio::spawn(async move {
            if let Err(error) = engine.define(Definition::Drop { ns: ns.clone() }, Ack::WRITTEN).await {
                tracing::warn!(%ns, %error, "a collection that $out did not finish stays");
            }
        });
    }
}

/// The filter that finds the document a result meets; `None` if the result has no `_id` yet.
fn key_filter(result: &Doc, on: &[String]) -> Result<Option<Doc>> {
    let mut filter = DocBuilder::new();
    for field in on {
        let value = rockdove_documents::path::Path::new(field).get(result.raw());
        match value {
            None if field == "_id" => return Ok(None),
            None | Some(Value::Null | Value::Undefined | Value::Array(_)) if field != "_id" => {
                let message = "$merge write error: 'on' field cannot be missing, null, undefined or an array";
                return Err(Error::location(51132, message).into());
            }
            value => {
                filter.start_document(field).append("$eq", value).end();
            }
        }
    }
    Ok(Some(filter.finish()))
}
