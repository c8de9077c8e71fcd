//! What `hello` says and asks wherever it is answered: the handshake of a connection, the limits of
//! messages, the wait for another topology.

use pinion_bson::{DateTime, DocBuilder, ObjectId, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_runtime::Duration;
use pinion_wire::idl::{CommandReader, Types, wrong_type};
use pinion_wire::{ClientMetadata, Compressor, Error, ErrorCode, Invocation, Reply, Result};

use crate::authenticate::{append_mechanisms, append_speculative};
use crate::limits::SESSION_TIMEOUT;
use crate::node_info::{is_behind_v44, node_info};

/// With 25 a driver sends `bulkWrite`, and updates of one document with `sort`.
pub const MAX_WIRE_VERSION: i32 = 25;

/// That of MongoDB 4.4, whose config servers let a shard have no other.
const V44_WIRE_VERSION: i32 = 9;

/// What this process says to its clients.
fn max_wire_version() -> i32 {
    match is_behind_v44() {
        true => V44_WIRE_VERSION,
        false => MAX_WIRE_VERSION,
    }
}

/// What a client says of itself, and what it waits for.
pub struct Greeting {
    hello_ok: bool,
    /// Those that the client offers and this process has, in the client's order.
    compressors: Vec<Compressor>,
    /// Whether the client knows a topology, and the one of this process that it waits to change.
    knows_topology: bool,
    awaited: Option<Awaited>,
}

#[derive(Clone, Copy)]
struct Awaited {
    counter: i64,
    limit: Duration,
}

impl Greeting {
    /// Reads the command, and keeps with the connection what the client says of itself. The
    /// handshake is open for what newer drivers add: fields that mean nothing here are passed over,
    /// as MongoDB does.
    ///
    /// # Errors
    /// A field has a wrong type or value.
    pub fn read(cmd: &Invocation) -> Result<Greeting> {
        let reader = cmd.reader()?;
        let hello_ok = reader.opt_safe_bool("helloOk")?.unwrap_or(false);
        // What they say is of no consequence here: clients of a node are behind no load balancer,
        // and stay when it steps down.
        for flag in ["loadBalanced", "forShell", "hangUpOnStepDown"] {
            reader.opt_safe_bool(flag)?;
        }
        reader.opt_str("hostInfo")?;
        if let Some(user) = reader.value("saslSupportedMechs") {
            check_user_name(user)?;
        }
        if let Some(client) = reader.opt_doc("client")? {
            let metadata = ClientMetadata::parse(client)?;
            cmd.ctx.client.set_metadata(metadata)?;
        }
        if reader.opt_doc("internalClient")?.is_some() {
            cmd.ctx.client.set_says_internal();
        }
        let compressors = compressors(&reader)?;
        let limit_ms = reader.opt_non_negative("maxAwaitTimeMS")?;
        let version = reader.opt_doc("topologyVersion")?;
        Ok(Greeting {
            hello_ok,
            compressors,
            knows_topology: version.is_some(),
            awaited: awaited(version, limit_ms.map(|ms| ms as u64))?,
        })
    }

    /// How long the client waits for another topology than the one of this number, which is
    /// `current`; `None` if the answer is due now.
    ///
    /// # Errors
    /// The client knows a topology that this process does not have yet.
    pub fn wait_for_change(&self, current: i64) -> Result<Option<Duration>> {
        let Some(awaited) = self.awaited else {
            return Ok(None);
        };
        if awaited.counter > current {
            return Err(Error::new(
                ErrorCode(31382),
                "Received a topology version with counter greater than the server topology version counter",
            ));
        }
        if awaited.counter < 0 {
            return Err(Error::new(
                ErrorCode(31371),
                "topologyVersion must have a non-negative counter",
            ));
        }
        Ok((awaited.counter == current).then_some(awaited.limit))
    }

    /// Appends what stands before the topology.
    pub fn append_beginning(&self, out: &mut DocBuilder) {
        if self.hello_ok {
            out.append("helloOk", true);
        }
    }

    /// Appends what stands behind the topology, whose number is `counter`: limits, compressors,
    /// authentication. A client that streams hellos gets the next one without asking.
    ///
    /// # Errors
    /// `speculativeAuthenticate` has a wrong type; the user whose mechanisms the client asks for
    /// cannot be read now.
    pub async fn append_end(&self, cmd: &Invocation, counter: i64, out: &mut Reply) -> Result<()> {
        append_limits(cmd.ctx.client.connection_id, out);
        if !self.compressors.is_empty() {
            out.start_array("compression");
            for compressor in &self.compressors {
                out.push(compressor.name());
            }
            out.end();
        }
        let reader = cmd.reader()?;
        if let Some(user) = reader.value("saslSupportedMechs") {
            Box::pin(append_mechanisms(user, out)).await?;
        }
        if let Some(asked) = reader.opt_doc("speculativeAuthenticate")? {
            Box::pin(append_speculative(cmd, asked, out)).await?;
        }
        if cmd.exhaust_allowed && self.knows_topology {
            out.stream_next(next_await(cmd.body(), node_info().process_id, counter));
        }
        Ok(())
    }
}

fn awaited(version: Option<&RawDocument>, limit_ms: Option<u64>) -> Result<Option<Awaited>> {
    match (version, limit_ms) {
        (Some(version), Some(limit_ms)) => Ok(own_counter(version)?.map(|counter| Awaited {
            counter,
            limit: Duration::from_millis(limit_ms),
        })),
        (Some(_), None) => Err(Error::new(
            ErrorCode(31368),
            "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'",
        )),
        (None, Some(_)) => Err(Error::new(
            ErrorCode(31372),
            "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'",
        )),
        (None, None) => Ok(None),
    }
}

/// The number of the topology that the client knows; `None` if it is of another process.
fn own_counter(version: &RawDocument) -> Result<Option<i64>> {
    let malformed = || {
        Error::new(
            ErrorCode::BAD_VALUE,
            "topologyVersion must have a processId and a counter",
        )
    };
    let process = version
        .get_object_id("processId")
        .map_err(|_| malformed())?;
    let counter = version.get_i64("counter").map_err(|_| malformed())?;
    Ok((process == node_info().process_id).then_some(counter))
}

/// Appends `topologyVersion`.
pub fn append_topology_version(counter: i64, out: &mut DocBuilder) {
    out.start_document("topologyVersion")
        .append("processId", node_info().process_id)
        .append("counter", counter)
        .end();
}

fn append_limits(connection_id: i32, out: &mut DocBuilder) {
    out.append(
        "maxBsonObjectSize",
        pinion_bson::MAX_USER_DOCUMENT_BYTES as i32,
    )
    .append(
        "maxMessageSizeBytes",
        pinion_wire::limits::MAX_MESSAGE_BYTES as i32,
    )
    .append(
        "maxWriteBatchSize",
        pinion_wire::limits::MAX_WRITE_BATCH as i32,
    )
    .append(
        "localTime",
        RawBsonRef::DateTime(DateTime::from_millis(pinion_runtime::wall_ms())),
    )
    .append(
        "logicalSessionTimeoutMinutes",
        (SESSION_TIMEOUT.as_secs() / 60) as i32,
    )
    .append("connectionId", connection_id)
    .append("minWireVersion", 0i32)
    .append("maxWireVersion", max_wire_version())
    .append("readOnly", false);
}

/// Those that the client offers and this node has, in the client's order.
fn compressors(reader: &CommandReader<'_>) -> Result<Vec<Compressor>> {
    let mut known = Vec::new();
    let Some(offered) = reader.opt_array("compression")? else {
        return Ok(known);
    };
    let path = reader.path().field("compression");
    for (at, name) in pinion_bson::values(offered).enumerate() {
        let RawBsonRef::String(name) = name else {
            return Err(wrong_type(path.index(at), name, Types::STRING));
        };
        if let Some(compressor) = Compressor::from_name(name)
            && !known.contains(&compressor)
        {
            known.push(compressor);
        }
    }
    Ok(known)
}

/// Refuses what cannot name a user, of whom a driver asks the mechanisms before it authenticates.
/// Of users that are not there nothing is answered.
fn check_user_name(user: RawBsonRef<'_>) -> Result<()> {
    match user {
        RawBsonRef::String(name) if name.contains('.') => Ok(()),
        RawBsonRef::String(name) => Err(Error::bad_value(format!(
            "UserName must contain a '.' separated database.user pair, found '{name}'"
        ))),
        RawBsonRef::Document(name) => {
            let has = |part| matches!(pinion_bson::get(name, part), Some(RawBsonRef::String(_)));
            if has("user") && has("db") {
                return Ok(());
            }
            Err(Error::bad_value(
                "UserName must contain the string fields 'user' and 'db'",
            ))
        }
        other => Err(Error::type_mismatch(format!(
            "UserName must be either a string or an object, found {}",
            pinion_bson::type_name(other.element_type())
        ))),
    }
}

/// The body of the next hello of a stream: the same, with the topology version just sent.
fn next_await(body: &RawDocument, process: ObjectId, counter: i64) -> RawDocumentBuf {
    let mut next = DocBuilder::with_capacity(body.as_bytes().len());
    for elem in pinion_bson::raw_elements(body) {
        if elem.name == b"topologyVersion" {
            next.start_document("topologyVersion")
                .append("processId", process)
                .append("counter", counter)
                .end();
        } else {
            next.append_elem(&elem);
        }
    }
    next.finish()
}
