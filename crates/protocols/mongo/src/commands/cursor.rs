//! Batches: the first one of every command that answers with a cursor, `getMore`, `killCursors`.
//!
//! A batch is written into the reply as it is read: documents are copied once, from where they are stored.

use super::{Flow, Spec};
use crate::codec::MESSAGE_BYTES_MAX;
use crate::cursors::{BATCH_BYTES_MAX, BatchLimit, Binding, Lease};
use crate::dispatch::{Call, More, max_time, time_is_over};
use crate::errors::{Failure, Result};
use crate::options::Fields;
use crate::shared::Shared;
use rockdove_documents::interrupt::Interrupt;
use rockdove_documents::{Doc, DocBuilder, Error, Value, code};
use rockdove_engine::{Batch, ChangeStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};

/// The commands of this family.
pub const COMMANDS: &[Spec] = &[
    Spec::later("getMore", Spec::WAITS | Spec::API_V1, |call, reply| Box::pin(get_more(call, reply))),
    Spec::now("killCursors", Spec::API_V1, kill),
];

/// Most bytes of a result that is computed (MongoDB manual, limits: BSON document size).
const RESULT_BYTES_MAX: usize = 16 << 20;
/// Most bytes of an event, which may hold a document twice and what changed: what fits a message.
const EVENT_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (64 << 10);
/// How long a `getMore` waits for news if it does not say (MongoDB manual: getMore).
const AWAIT_DEFAULT: Duration = Duration::from_secs(1);
/// Longest wait for news.
const AWAIT_MAX: Duration = Duration::from_secs(60 * 60);

/// What a cursor reads documents from.
pub type Documents = Box<dyn Iterator<Item = rockdove_documents::Result<Doc>> + Send>;

/// What a cursor yields.
pub enum Source {
    /// Documents that are there, one after another.
    Documents(Reader),
    /// Changes, for as long as the client asks.
    Changes(Box<ChangeStream>),
    /// A capped collection's documents, then those that are added.
    Tail(Box<super::tail::Tail>),
    /// Was lost when its reader was cancelled in the middle of a step.
    Gone,
}

/// Documents and what is known of their end.
pub struct Reader {
    documents: Documents,
    /// Read, but did not fit into the last batch.
    held: Option<Doc>,
    /// How many more there can be, if that was limited.
    left: Option<u64>,
    /// Whether reading a batch may take long.
    heavy: bool,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Documents(_) => "Documents",
            Source::Changes(_) => "Changes",
            Source::Tail(_) => "Tail",
            Source::Gone => "Gone",
        })
    }
}

impl Source {
    /// A cursor over documents that are all there.
    pub fn ready(documents: Vec<Doc>) -> Source {
        Source::Documents(Reader::new(Box::new(documents.into_iter().map(Ok)), None, false))
    }
}

impl Reader {
    /// A reader of `documents`, of which there are at most `left`; `heavy` if reading may take long.
    pub fn new(documents: Documents, left: Option<u64>, heavy: bool) -> Reader {
        Reader { documents, held: None, left, heavy }
    }

    /// Reads a batch; whether the documents are at their end.
    fn read(&mut self, limit: BatchLimit) -> Result<(Vec<Doc>, bool)> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            if self.left == Some(0) {
                return Ok((batch, true));
            }
            if limit.is_full(batch.len()) {
                return Ok((batch, false));
            }
            let doc = match self.held.take().map(Ok).or_else(|| self.documents.next()) {
                Some(doc) => doc?,
                None => return Ok((batch, true)),
            };
            check_size(&doc, RESULT_BYTES_MAX)?;
            if !limit.admits(batch.len(), bytes, doc.bytes().len()) {
                self.held = Some(doc);
                return Ok((batch, false));
            }
            bytes += doc.bytes().len();
            self.left = self.left.map(|left| left - 1);
            batch.push(doc);
        }
    }
}

/// Refuses a result that drivers would not take: stages and expressions may make large documents of small ones.
fn check_size(doc: &Doc, bytes_max: usize) -> Result<()> {
    let size = doc.bytes().len();
    if size <= bytes_max {
        return Ok(());
    }
    let message = format!("a result of {size} bytes is larger than the {bytes_max} bytes that it may have");
    Err(Failure::new(code::BSON_OBJECT_TOO_LARGE, message))
}

/// How a cursor is opened.
pub struct Opening {
    shared: Arc<Shared>,
    interrupt: Interrupt,
    binding: Binding,
    batch_size: Option<u64>,
    /// Whether the cursor ends with its first batch whatever is left.
    single: bool,
    /// Further fields of `cursor`.
    extra: Option<Doc>,
}

impl Opening {
    /// A cursor of the call's session in this namespace.
    pub fn new(call: &Call<'_>, namespace: String) -> Opening {
        let binding = Binding {
            namespace,
            session: call.session.session,
            no_timeout: false,
            change_stream: false,
            time_limited: call.deadline.is_some(),
        };
        let (shared, interrupt) = (call.shared.clone(), call.interrupt());
        Opening { shared, interrupt, binding, batch_size: None, single: false, extra: None }
    }

    /// The size of the first batch.
    pub fn batch(self, batch_size: Option<u64>) -> Opening {
        Opening { batch_size, ..self }
    }

    /// End with the first batch.
    pub fn single(self, single: bool) -> Opening {
        Opening { single, ..self }
    }

    /// Never give up for idleness.
    pub fn no_timeout(mut self, no_timeout: bool) -> Opening {
        self.binding.no_timeout = no_timeout;
        self
    }

    /// Further fields of `cursor`.
    pub fn extra(self, extra: Doc) -> Opening {
        Opening { extra: Some(extra), ..self }
    }

    /// Keeps what is left of a source; returns the cursor's id, 0 if nothing is.
    fn keep(&self, source: Source, ended: bool) -> Result<i64> {
        if ended || self.single {
            return Ok(0);
        }
        self.shared.cursors.open(self.binding.clone(), source, Instant::now())
    }
}

/// Reads `cursor.batchSize`.
pub fn batch_size(fields: &Fields<'_>) -> Result<Option<u64>> {
    match fields.document("cursor")? {
        Some(cursor) => Ok(Fields::new("cursor", cursor)?.count("batchSize")?),
        None => Ok(None),
    }
}

/// Answers with the first batch of documents that are quickly read.
pub fn open(opening: Opening, source: Source, reply: &mut DocBuilder) -> Result<()> {
    let Source::Documents(mut reader) = source else {
        return Err(Failure::new(code::INTERNAL_ERROR, "this cursor has to wait"));
    };
    let (batch, ended) = reader.read(BatchLimit::first(opening.batch_size))?;
    append_first(&opening, reply, &batch, Source::Documents(reader), ended)
}

/// Makes a cursor and answers with its first batch; where that may take long, off the connection's thread.
pub async fn open_with(
    opening: Opening,
    heavy: bool,
    make: impl FnOnce() -> Result<Reader> + Send + 'static,
    reply: &mut DocBuilder,
) -> Result<()> {
    let limit = BatchLimit::first(opening.batch_size);
    let work = move || {
        let mut reader = make()?;
        let (batch, ended) = reader.read(limit)?;
        Ok((reader, batch, ended))
    };
    let (reader, batch, ended) = match heavy {
        true => off_thread(&opening.shared, &opening.interrupt, work).await?,
        false => work()?,
    };
    append_first(&opening, reply, &batch, Source::Documents(reader), ended)
}

/// Runs long work where it holds up nobody, until it is interrupted; only a few such works run at a time.
pub async fn off_thread<T: Send + 'static>(
    shared: &Shared,
    interrupt: &Interrupt,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let permit = shared.heavy_reads.clone().acquire_owned().await;
    let permit =
        permit.map_err(|_| Failure::new(code::SHUTDOWN_IN_PROGRESS, "The server is shutting down"))?;
    let interrupt = interrupt.clone();
    let work = move || {
        let _permit = permit; // also if nobody waits for the work any more
        interrupt.during(work)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Failure::new(code::INTERNAL_ERROR, format!("a read failed: {error}"))),
    }
}

/// Does what may take long where it stands; the runtime goes on meanwhile with another thread, if it has several.
pub fn in_place<T>(interrupt: &Interrupt, work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(|| interrupt.during(work)),
        _ => interrupt.during(work),
    }
}

fn append_first(
    opening: &Opening,
    reply: &mut DocBuilder,
    batch: &[Doc],
    source: Source,
    ended: bool,
) -> Result<()> {
    let id = opening.keep(source, ended)?;
    append(reply, "firstBatch", batch, opening.extra.as_ref(), id, &opening.binding.namespace);
    Ok(())
}

fn append(reply: &mut DocBuilder, name: &str, batch: &[Doc], extra: Option<&Doc>, id: i64, namespace: &str) {
    reply.start_document("cursor").append_docs(name, batch);
    if let Some(extra) = extra {
        reply.append_all(extra.raw());
    }
    reply.append("id", id).append("ns", namespace).end();
}

/// Answers with the first batch of a change stream: what has happened since the point it starts from, whose
/// token is `start`.
pub async fn open_changes(
    mut opening: Opening,
    mut stream: Box<ChangeStream>,
    start: Doc,
    reply: &mut DocBuilder,
) -> Result<()> {
    opening.binding.change_stream = true;
    let limit = BatchLimit::first(opening.batch_size).documents();
    let batch = match limit {
        0 => None,
        _ => Some(stream.next(limit, BATCH_BYTES_MAX, Duration::ZERO).await?),
    };
    let (events, token, ended) = match batch {
        Some(Batch { events, resume_token, ended }) => (events, resume_token, ended),
        None => (Vec::new(), start, false),
    };
    events.iter().try_for_each(|event| check_size(event, EVENT_BYTES_MAX))?;
    let id = opening.keep(Source::Changes(stream), ended)?;
    append(reply, "firstBatch", &events, Some(&resume(&token)), id, &opening.binding.namespace);
    Ok(())
}

/// Answers with the first batch of a tailable cursor.
pub fn open_tail(opening: Opening, mut tail: Box<super::tail::Tail>, reply: &mut DocBuilder) -> Result<()> {
    let batch = tail.present(BatchLimit::first(opening.batch_size), &opening.interrupt)?;
    let ended = tail.is_over(&batch);
    append_first(&opening, reply, &batch, Source::Tail(tail), ended)
}

fn resume(token: &Doc) -> Doc {
    let mut extra = DocBuilder::with_capacity(96);
    extra.append("postBatchResumeToken", token);
    extra.finish()
}

/// A later batch of a cursor.
struct Next {
    batch: Vec<Doc>,
    extra: Option<Doc>,
    ended: bool,
}

async fn get_more(call: &Call<'_>, reply: &mut DocBuilder) -> Result<Flow> {
    let fields = Fields::new("getMore", call.command())?;
    let others = ["term", "lastKnownCommittedOpTime", "includeQueryStatsMetrics"];
    fields.only(&[&["collection", "batchSize"], &others[..]].concat())?;
    let id = match fields.required("getMore")? {
        Value::Int64(id) => id,
        other => {
            let actual = other.kind().alias();
            let message =
                format!("BSON field 'getMore.getMore' is the wrong type '{actual}', expected type 'long'");
            return Err(Error::type_mismatch(message).into());
        }
    };
    let namespace = format!("{}.{}", call.database, fields.required_string("collection")?);
    let limit = BatchLimit::next(fields.count("batchSize")?);
    let max_time = max_time(call.command())?.map(Duration::from_millis);
    let mut lease = call.shared.cursors.check_out(id, &namespace, call.session.session)?;
    if let Some(failure) = call.shared.fail_points.on_get_more() {
        return Err(failure);
    }
    let limited = call.shared.fail_points.any()
        && call.shared.cursors.binding(id).is_some_and(|binding| binding.time_limited);
    if limited && call.shared.fail_points.on_time_limit() {
        return Err(time_is_over());
    }
    let killed = lease.killed();
    let more = tokio::select! {
        biased;
        more = read(call, &mut lease, limit, max_time) => more,
        () = killed => {
            return Err(Failure::new(code::CURSOR_KILLED, format!("cursor {id} was killed")));
        }
    };
    let more = match more {
        Ok(more) => more,
        Err(failure) => {
            if ends_cursor(&failure) {
                lease.finish();
            }
            return Err(failure);
        }
    };
    let id = if more.ended { 0 } else { id };
    append(reply, "nextBatch", &more.batch, more.extra.as_ref(), id, &namespace);
    if more.ended {
        lease.finish();
        return Ok(Flow::Done);
    }
    Ok(Flow::More(More::default()))
}

/// A request that was wrong leaves the cursor as it is; a cursor that cannot go on is closed.
fn ends_cursor(failure: &Failure) -> bool {
    failure.error.code != code::BAD_VALUE
}

async fn read(
    call: &Call<'_>,
    lease: &mut Lease<'_, Source>,
    limit: BatchLimit,
    max_time: Option<Duration>,
) -> Result<Next> {
    let wait = max_time.unwrap_or(AWAIT_DEFAULT).min(AWAIT_MAX);
    match lease.content() {
        Source::Documents(_) if max_time.is_some() => Err(no_max_time()),
        Source::Documents(reader) if reader.heavy => read_heavy(call, lease.content(), limit).await,
        Source::Documents(reader) => {
            let (batch, ended) = reader.read(limit)?;
            Ok(Next { batch, extra: None, ended })
        }
        Source::Changes(stream) => {
            let Batch { events, resume_token, ended } =
                stream.next(limit.documents(), BATCH_BYTES_MAX, wait).await?;
            events.iter().try_for_each(|event| check_size(event, EVENT_BYTES_MAX))?;
            Ok(Next { batch: events, extra: Some(resume(&resume_token)), ended })
        }
        Source::Tail(tail) if !tail.awaits() && max_time.is_some() => Err(no_max_time()),
        Source::Tail(tail) => {
            let batch = tail.read(limit, wait, &call.interrupt()).await?;
            Ok(Next { ended: tail.is_over(&batch), batch, extra: None })
        }
        Source::Gone => {
            Err(Failure::new(code::CURSOR_NOT_FOUND, "the cursor was lost when its reader was cancelled"))
        }
    }
}

fn no_max_time() -> Failure {
    Failure::new(code::BAD_VALUE, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
}

/// Reads off the connection's thread. If the request is cancelled meanwhile, the cursor is gone.
async fn read_heavy(call: &Call<'_>, content: &mut Source, limit: BatchLimit) -> Result<Next> {
    let Source::Documents(mut reader) = std::mem::replace(content, Source::Gone) else {
        return Err(Failure::new(code::INTERNAL_ERROR, "only readers are heavy"));
    };
    let work = move || {
        let (batch, ended) = reader.read(limit)?;
        Ok((reader, batch, ended))
    };
    let (reader, batch, ended) = off_thread(call.shared, &call.interrupt(), work).await?;
    *content = Source::Documents(reader);
    Ok(Next { batch, extra: None, ended })
}

fn kill(call: &Call<'_>, reply: &mut DocBuilder) -> Result<()> {
    let fields = Fields::new("killCursors", call.command())?;
    fields.only(&["cursors"])?;
    let namespace = format!("{}.{}", call.database, fields.required_string("killCursors")?);
    let ids: Option<Vec<i64>> =
        fields.required_array("cursors")?.values().map(|id| id.as_integer()).collect();
    let ids =
        ids.ok_or_else(|| Error::type_mismatch("BSON field 'killCursors.cursors' must hold numbers"))?;
    let (killed, unknown): (Vec<i64>, Vec<i64>) =
        ids.into_iter().partition(|id| call.shared.cursors.kill(*id, Some(&namespace)));
    for (name, ids) in [
        ("cursorsKilled", killed),
        ("cursorsNotFound", unknown),
        ("cursorsAlive", Vec::new()),
        ("cursorsUnknown", Vec::new()),
    ] {
        reply.start_array(name);
        for id in ids {
            reply.push(id);
        }
        reply.end();
    }
    Ok(())
}
