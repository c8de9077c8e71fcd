//! `saslStart` and its relatives, by which members of the set authenticate. There are no users, so
//! no client does.

use pinion_auth::Hash;
use pinion_bson::{BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef, RawDocument};
use pinion_wire::idl::{FieldReader, Path, Types, missing_field, wrong_type};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::members::{
    self, MEMBER_DATABASE, StartRequest, authentication_counts, conversations, member_access,
};

/// The number of a connection's conversation: it has one at a time.
const CONVERSATION: i32 = 1;

/// Which mechanism this is, of those that there are.
fn mechanism(name: &str) -> Result<Hash> {
    let known = [Hash::Sha1, Hash::Sha256];
    let found = known.into_iter().find(|hash| hash.mechanism() == name);
    found.ok_or_else(|| {
        Error::new(
            ErrorCode::MECHANISM_UNAVAILABLE,
            format!("Received authentication for mechanism {name} which is not enabled"),
        )
    })
}

/// A payload, which is text as bytes or as a string. What is no text is nothing that a mechanism
/// here could read.
fn payload<'m>(path: Path<'_>, value: Option<RawBsonRef<'m>>) -> Result<&'m str> {
    match value {
        Some(RawBsonRef::String(text)) => Ok(text),
        Some(RawBsonRef::Binary(binary)) => Ok(std::str::from_utf8(binary.bytes).unwrap_or("")),
        Some(other) => Err(wrong_type(path, other, Types::BIN_DATA)),
        None => Err(missing_field(path)),
    }
}

/// The reply to a client that this node refuses, whatever the reason; only the log has that.
fn refused(cmd: &Invocation, why: &str) -> Error {
    log_failure(cmd, why, false);
    Error::new(ErrorCode::AUTHENTICATION_FAILED, "Authentication failed.")
}

fn skips_empty(options: Option<&RawDocument>) -> bool {
    let skips = options.and_then(|options| pinion_bson::get(options, "skipEmptyExchange"));
    skips.is_some_and(pinion_wire::idl::truthy)
}

/// `saslStart`: begins a conversation.
pub async fn sasl_start(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = reader
        .opt_str("mechanism")?
        .ok_or_else(|| missing_field(reader.path().field("mechanism")))?;
    let payload = payload(reader.path().field("payload"), reader.value("payload"))?;
    let options = reader.opt_doc("options")?;
    reader.ignore(&["saslStart", "autoAuthorize", "speculative", "db"]);
    reader.finish()?;
    let request = StartRequest {
        mechanism: mechanism(name)?,
        database: cmd.db(),
        payload,
        skips_empty: skips_empty(options),
        is_speculative: false,
    };
    let step = members::start(&cmd.ctx.client, &request);
    let step = step.map_err(|why| refused(&cmd, &why))?;
    Ok(answer(&step.payload, step.is_done))
}

/// `saslContinue`: continues it.
pub async fn sasl_continue(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let payload = payload(reader.path().field("payload"), reader.value("payload"))?;
    let conversation = reader.opt_i32("conversationId")?;
    reader.ignore(&["saslContinue"]);
    reader.finish()?;
    let conversation =
        conversation.ok_or_else(|| missing_field(reader.path().field("conversationId")))?;
    let protocol = |what: &str| Err(Error::new(ErrorCode::PROTOCOL_ERROR, what));
    if !conversations().is_under_way(&cmd.ctx.client) {
        return protocol("No SASL session state found");
    }
    if conversation != CONVERSATION {
        return protocol("sasl: Mismatched conversation id");
    }
    let step = members::continue_with(&cmd.ctx.client, payload);
    let step = step.map_err(|why| refused(&cmd, &why))?;
    if step.is_done {
        tracing::info!(target: "ACCESS", id = 5_286_306u64, ctx = format!("conn{}", cmd.ctx.client.connection_id), client = cmd.ctx.client.remote.map(tracing::field::display), "Successfully authenticated as a member of the set");
    }
    Ok(answer(&step.payload, step.is_done))
}

fn answer(payload: &str, is_done: bool) -> Reply {
    let mut out = Reply::new();
    append(payload, is_done, &mut out);
    out
}

/// Starts the authentication that a hello carries: appends the answer, or nothing where it fails:
/// the client then has to send `saslStart`, whose reply says what is wrong.
pub(crate) fn append_speculative(
    cmd: &Invocation,
    asked: &RawDocument,
    out: &mut DocBuilder,
) -> Result<()> {
    let reader = FieldReader::object(Path::root("speculativeAuthenticate"), asked)?;
    let (Ok(Some(name)), Ok(Some(database))) = (reader.opt_str("mechanism"), reader.opt_str("db"))
    else {
        return Ok(());
    };
    let payload = payload(reader.path().field("payload"), reader.value("payload"));
    let (Ok(payload), Ok(mechanism)) = (payload, mechanism(name)) else {
        return Ok(());
    };
    let request = StartRequest {
        mechanism,
        database,
        payload,
        skips_empty: skips_empty(reader.opt_doc("options").ok().flatten()),
        is_speculative: true,
    };
    match members::start(&cmd.ctx.client, &request) {
        Ok(step) => {
            out.start_document("speculativeAuthenticate");
            append(&step.payload, step.is_done, out);
            out.end();
        }
        Err(why) => log_failure(cmd, &why, true),
    }
    Ok(())
}

/// The mechanisms of a user, for a hello that asks for them: members have one, and there are no
/// other users.
pub(crate) fn append_mechanisms(user: RawBsonRef<'_>, out: &mut DocBuilder) {
    authentication_counts().mechanisms_asked();
    let is_member = match user {
        RawBsonRef::String(name) => name
            .split_once('.')
            .is_some_and(|(db, user)| (db, user) == (MEMBER_DATABASE, members::MEMBER_USER)),
        RawBsonRef::Document(name) => {
            let text = |part| pinion_bson::get(name, part).and_then(|part| part.as_str());
            (text("db"), text("user")) == (Some(MEMBER_DATABASE), Some(members::MEMBER_USER))
        }
        _ => false,
    };
    if is_member && member_access().is_some() {
        out.start_array("saslSupportedMechs")
            .push(Hash::Sha256.mechanism())
            .end();
    }
}

fn append(payload: &str, is_done: bool, out: &mut DocBuilder) {
    let payload = RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes: payload.as_bytes(),
    };
    out.append("conversationId", CONVERSATION)
        .append("done", is_done)
        .append("payload", RawBsonRef::Binary(payload));
}

/// The log says what was wrong.
fn log_failure(cmd: &Invocation, why: &str, is_speculative: bool) {
    tracing::info!(target: "ACCESS", id = 5_286_307u64, ctx = format!("conn{}", cmd.ctx.client.connection_id), client = cmd.ctx.client.remote.map(tracing::field::display), isSpeculative = is_speculative, db = cmd.db(), error = why, "Failed to authenticate");
}

/// `authenticate`: by certificates, of which there are none.
pub async fn authenticate(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = reader
        .opt_str("mechanism")?
        .ok_or_else(|| missing_field(reader.path().field("mechanism")))?;
    Err(Error::new(
        ErrorCode::MECHANISM_UNAVAILABLE,
        format!("Received authentication for mechanism {name} which is not enabled"),
    ))
}

/// `logout`: of the database that members authenticate on.
pub async fn logout(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["logout"]);
    reader.finish()?;
    if cmd.db() == MEMBER_DATABASE {
        cmd.ctx.client.set_member(false);
    }
    Ok(Reply::new())
}
