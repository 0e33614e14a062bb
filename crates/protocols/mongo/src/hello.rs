//! The handshake: what `hello` (and `isMaster`, its older name) answers.

use crate::codec::{Compressor, MESSAGE_BYTES_ADVERTISED};
use crate::topology::{Identity, Role, State, Topology};
use rockdove_documents::{DocBuilder, ObjectId, RawDoc, Timestamp, Value};

/// Largest document a client may store.
pub const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most statements in one write command.
pub const WRITE_BATCH_MAX: usize = 100_000;
/// Longest wait of a `hello` for a change; a client that asks for more gets this.
pub const AWAIT_MILLISECONDS_MAX: i64 = 10 * 60 * 1000;

/// What the answer depends on besides the request.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The newest committed operation.
    pub operation_time: Timestamp,
    /// Milliseconds since 1970.
    pub now: i64,
    /// The number of the client's connection.
    pub connection_id: i32,
}

/// A request to be told of the next change instead of the state now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Awaiting {
    /// The run of a server and its counter that the client knows.
    pub process: ObjectId,
    /// See `process`.
    pub counter: i64,
    /// How long to wait at most.
    pub milliseconds: i64,
}

impl Awaiting {
    /// Reads `topologyVersion` and `maxAwaitTimeMS`; both or none must be there.
    pub fn parse(command: RawDoc<'_>) -> Result<Option<Awaiting>, rockdove_documents::Error> {
        use rockdove_documents::Error;
        let (version, wait) = (command.get("topologyVersion"), command.get("maxAwaitTimeMS"));
        let (version, wait) = match (version, wait) {
            (None, None) => return Ok(None),
            (Some(version), Some(wait)) => (version, wait),
            (Some(_), None) => {
                return Err(Error::location(
                    31368,
                    "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'",
                ));
            }
            (None, Some(_)) => {
                return Err(Error::location(
                    31368,
                    "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'",
                ));
            }
        };
        let milliseconds = wait
            .as_integer()
            .filter(|wait| *wait >= 0)
            .ok_or_else(|| Error::location(31372, "'maxAwaitTimeMS' must be a non-negative integer"))?;
        let fields = version.as_document().and_then(|version| {
            Some((
                version.get("processId")?,
                version.get("counter")?.as_integer().filter(|counter| *counter >= 0)?,
            ))
        });
        match fields {
            Some((Value::ObjectId(process), counter)) => Ok(Some(Awaiting {
                process,
                counter,
                milliseconds: milliseconds.min(AWAIT_MILLISECONDS_MAX),
            })),
            _ => Err(Error::location(31372, "'topologyVersion' must have a 'processId' and a 'counter'")),
        }
    }
}

/// Appends the answer's fields. `legacy` is whether the request was an `isMaster`.
pub fn append(
    reply: &mut DocBuilder,
    identity: &Identity,
    topology: &Topology,
    moment: Moment,
    command: RawDoc<'_>,
    legacy: bool,
) {
    let state = topology.state();
    if is_true(command.get("helloOk")) {
        reply.append("helloOk", true);
    }
    topology.append_version(reply);
    append_member(reply, identity, state, legacy);
    append_last_write(reply, state, moment.operation_time);
    reply.append("maxBsonObjectSize", DOCUMENT_BYTES_MAX as i32);
    reply.append("maxMessageSizeBytes", MESSAGE_BYTES_ADVERTISED as i32);
    reply.append("maxWriteBatchSize", WRITE_BATCH_MAX as i32);
    reply.append_date("localTime", moment.now);
    reply.append("logicalSessionTimeoutMinutes", 30).append("connectionId", moment.connection_id);
    reply.append("minWireVersion", 0).append("maxWireVersion", identity.max_wire_version);
    reply.append("readOnly", false);
    append_compression(reply, identity, command);
    append_rockdove(reply, identity);
    if identity.poppydb {
        append_poppydb(reply);
    }
}

fn append_member(reply: &mut DocBuilder, identity: &Identity, state: State, legacy: bool) {
    let primary = state.role == Role::Primary;
    reply.start_array("hosts").push(&identity.advertised).end();
    reply.append("setName", &identity.set_name).append("setVersion", 1);
    reply.append(if legacy { "ismaster" } else { "isWritablePrimary" }, primary);
    reply.append("secondary", state.role == Role::Secondary);
    if primary {
        reply.append("primary", &identity.advertised);
    }
    reply.append("me", &identity.advertised);
    if primary {
        reply.append("electionId", Topology::election_id(state.term));
    }
}

fn append_last_write(reply: &mut DocBuilder, state: State, time: Timestamp) {
    let date = i64::from(time.time) * 1000;
    reply.start_document("lastWrite");
    for (optime, name) in [("opTime", "lastWriteDate"), ("majorityOpTime", "majorityWriteDate")] {
        reply.start_document(optime).append("ts", time).append("t", state.term).end();
        reply.append_date(name, date);
    }
    reply.end();
}

/// The compressors that both sides know, in the client's order.
fn append_compression(reply: &mut DocBuilder, identity: &Identity, command: RawDoc<'_>) {
    let Some(Value::Array(wanted)) = command.get("compression") else { return };
    reply.start_array("compression");
    for name in wanted.values().filter_map(|name| name.as_str()).take(16) {
        if Compressor::from_name(name).is_some_and(|compressor| identity.compressors.contains(&compressor)) {
            reply.push(name);
        }
    }
    reply.end();
}

/// What our own clients look for: that writes take the field `rockdove`, in its first version, and whether a value can
/// be at risk.
fn append_rockdove(reply: &mut DocBuilder, identity: &Identity) {
    reply.start_document("rockdove").append("acks", 1).append("risk", identity.has_risk_policy).end();
}

/// What Morphium looks for to recognise PoppyDB, and what it may expect then.
fn append_poppydb(reply: &mut DocBuilder) {
    for name in ["poppyDB", "morphiumServer", "inMemoryBackend"] {
        reply.append(name, true);
    }
    reply.start_document("poppyCapabilities");
    reply.append("version", 1).append("retryableWrites", true).append("journal", true);
    reply.append("durability", "log").append("readConcern", "majority").append("transactions", "none");
    reply.append("textSearch", "none").end();
}

fn is_true(value: Option<Value<'_>>) -> bool {
    value.is_some_and(|value| value.as_bool().unwrap_or(value.as_f64().is_some_and(|number| number != 0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockdove_documents::{Doc, doc};

    fn answer(identity: &Identity, command: &Doc, legacy: bool) -> Doc {
        let topology = Topology::new(2);
        let moment =
            Moment { operation_time: Timestamp { time: 100, increment: 7 }, now: 100_500, connection_id: 9 };
        let mut reply = DocBuilder::new();
        append(&mut reply, identity, &topology, moment, command.raw(), legacy);
        reply.finish()
    }

    fn names(doc: &Doc) -> Vec<String> {
        doc.raw().iter().map(|element| element.key().to_string()).collect()
    }

    #[test]
    fn a_primary_has_all_fields() {
        let reply = answer(&Identity::default(), &doc! { "hello": 1 }, false);
        assert_eq!(
            names(&reply),
            "topologyVersion hosts setName setVersion isWritablePrimary secondary primary me electionId lastWrite \
             maxBsonObjectSize maxMessageSizeBytes maxWriteBatchSize localTime logicalSessionTimeoutMinutes \
             connectionId minWireVersion maxWireVersion readOnly rockdove"
                .split_whitespace()
                .collect::<Vec<_>>()
        );
        let hosts = doc! { "h": ["127.0.0.1:27017"] };
        assert_eq!(reply.get("hosts"), hosts.get("h"));
        assert_eq!(reply.get("me"), Some(Value::String("127.0.0.1:27017")));
        assert_eq!(reply.get("maxWireVersion"), Some(Value::Int32(21)));
        assert_eq!(reply.get("connectionId"), Some(Value::Int32(9)));
        let time = Timestamp { time: 100, increment: 7 };
        let optime = reply.get("lastWrite").unwrap().as_document().unwrap().get("opTime").unwrap();
        assert_eq!(optime.as_document().unwrap().to_doc(), doc! { "ts": time, "t": 2i64 });
    }

    #[test]
    fn the_older_name_gets_the_older_field() {
        let reply = answer(&Identity::default(), &doc! { "isMaster": 1, "helloOk": true }, true);
        assert_eq!(reply.get("ismaster"), Some(Value::Bool(true)));
        assert_eq!(reply.get("isWritablePrimary"), None);
        assert_eq!(reply.get("helloOk"), Some(Value::Bool(true)));
    }

    #[test]
    fn compression_is_what_both_know_in_the_clients_order() {
        let asked = doc! { "hello": 1, "compression": ["lz4", "zlib", "snappy", "noop"] };
        let reply = answer(&Identity::default(), &asked, false);
        let expected = doc! { "c": ["zlib", "snappy"] };
        assert_eq!(reply.get("compression"), expected.get("c"));
    }

    #[test]
    fn poppydb_shows_only_where_configured() {
        assert_eq!(answer(&Identity::default(), &doc! { "hello": 1 }, false).get("poppyDB"), None);
        let identity = Identity { poppydb: true, ..Identity::default() };
        assert_eq!(answer(&identity, &doc! { "hello": 1 }, false).get("poppyDB"), Some(Value::Bool(true)));
    }

    #[test]
    fn awaiting_needs_both_fields() {
        let process = ObjectId([1; 12]);
        let version = doc! { "processId": process, "counter": 3i64 };
        let parse = |command: Doc| Awaiting::parse(command.raw()).map_err(|error| error.code.number);
        assert_eq!(parse(doc! { "hello": 1 }), Ok(None));
        assert_eq!(
            parse(doc! { "hello": 1, "topologyVersion": &version, "maxAwaitTimeMS": 10 }),
            Ok(Some(Awaiting { process, counter: 3, milliseconds: 10 }))
        );
        assert_eq!(parse(doc! { "topologyVersion": &version }), Err(31368));
        assert_eq!(parse(doc! { "maxAwaitTimeMS": 10 }), Err(31368));
        assert_eq!(parse(doc! { "topologyVersion": {}, "maxAwaitTimeMS": 10 }), Err(31372));
        assert_eq!(parse(doc! { "topologyVersion": &version, "maxAwaitTimeMS": (-1) }), Err(31372));
    }
}
