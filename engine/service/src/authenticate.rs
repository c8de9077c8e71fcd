//! `saslStart` and its relatives, by which clients authenticate as users, and members of the set as
//! such.

use pinion_auth::{Hash, MEMBER_DATABASE, MEMBER_USER, UserName};
use pinion_bson::{BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef, RawDocument};
use pinion_wire::idl::{FieldReader, Path, Types, missing_field, wrong_type};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::login::{
    self, About, Refused, StartRequest, Step, authentication_counts, conversations, forget_users,
    log_out, not_enabled, user_directory,
};
use crate::members::member_access;
use crate::parameters::parameters;

/// The number of a connection's conversation: it has one at a time.
const CONVERSATION: i32 = 1;

/// Which mechanism this is, of those that there are.
fn mechanism(name: &str) -> Result<Hash> {
    let known = [Hash::Sha1, Hash::Sha256];
    let found = known.into_iter().find(|hash| hash.mechanism() == name);
    found.ok_or_else(|| not_enabled(name))
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

/// The reply to a client that this node refuses. The reason is in the log alone, unless it is no
/// matter of who the client is.
fn refused(cmd: &Invocation, refused: Refused) -> Error {
    log_failure(cmd, &refused, false);
    match refused {
        Refused::Failed { .. } => {
            Error::new(ErrorCode::AUTHENTICATION_FAILED, "Authentication failed.")
        }
        Refused::Error(error) => error,
    }
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
    let step = login::start(&cmd.ctx.client, &request).await;
    let step = step.map_err(|why| refused(&cmd, why))?;
    Ok(answer(&cmd, &step))
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
    let step = login::continue_with(&cmd.ctx.client, payload);
    let step = step.map_err(|why| refused(&cmd, why))?;
    Ok(answer(&cmd, &step))
}

fn answer(cmd: &Invocation, step: &Step) -> Reply {
    let mut out = Reply::new();
    append(cmd, step, &mut out);
    out
}

/// Starts the authentication that a hello carries: appends the answer, or nothing where it fails:
/// the client then has to send `saslStart`, whose reply says what is wrong.
pub(crate) async fn append_speculative(
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
    match login::start(&cmd.ctx.client, &request).await {
        Ok(step) => {
            out.start_document("speculativeAuthenticate");
            append(cmd, &step, out);
            out.end();
        }
        Err(why) => log_failure(cmd, &why, true),
    }
    Ok(())
}

/// The mechanisms of a user, for a hello that asks for them. Of one that does not exist nothing is
/// said. `user` names one, as `Greeting::read` has checked.
///
/// # Errors
/// Users cannot be read now: the client would take it for another answer.
pub(crate) async fn append_mechanisms(user: RawBsonRef<'_>, out: &mut DocBuilder) -> Result<()> {
    authentication_counts().mechanisms_asked();
    let name = match user {
        RawBsonRef::String(name) => name
            .split_once('.')
            .map(|(db, user)| UserName::new(user, db)),
        RawBsonRef::Document(name) => {
            let text = |part| pinion_bson::get(name, part).and_then(|part| part.as_str());
            text("user")
                .zip(text("db"))
                .map(|(user, db)| UserName::new(user, db))
        }
        _ => None,
    };
    let Some(name) = name else { return Ok(()) };
    let mechanisms = mechanisms_of(&name).await?;
    if !mechanisms.is_empty() {
        out.start_array("saslSupportedMechs");
        for hash in mechanisms {
            out.push(hash.mechanism());
        }
        out.end();
    }
    Ok(())
}

async fn mechanisms_of(name: &UserName) -> Result<Vec<Hash>> {
    if (&*name.user, &*name.db) == (MEMBER_USER, MEMBER_DATABASE) {
        return Ok(match member_access() {
            Some(_) => vec![Hash::Sha256],
            None => Vec::new(),
        });
    }
    let Some(directory) = user_directory() else {
        return Ok(Vec::new());
    };
    let found = directory.find(name).await?;
    let enabled = parameters().borrow().mechanisms.enabled();
    let has = |hash: &Hash| {
        found
            .as_ref()
            .is_some_and(|user| user.credentials(*hash).is_some())
    };
    Ok(enabled.filter(has).collect())
}

/// Appends an answer, and logs that the client has authenticated if it has.
fn append(cmd: &Invocation, step: &Step, out: &mut DocBuilder) {
    if let Some(about) = &step.done {
        log_success(cmd, about);
    }
    let payload = RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes: step.payload.as_bytes(),
    };
    out.append("conversationId", CONVERSATION)
        .append("done", step.done.is_some())
        .append("payload", RawBsonRef::Binary(payload));
}

fn log_success(cmd: &Invocation, about: &About) {
    let client = &cmd.ctx.client;
    let message = match about.is_of_member() {
        true => "Successfully authenticated as a member of the set",
        false => "Successfully authenticated",
    };
    tracing::info!(
        target: "ACCESS", id = 5_286_306u64, ctx = format!("conn{}", client.connection_id),
        client = client.remote.map(tracing::field::display), isSpeculative = about.is_speculative,
        isClusterMember = about.is_of_member(), mechanism = about.mechanism.mechanism(),
        user = &*about.user.user, db = &*about.user.db, result = 0, "{message}"
    );
}

/// The log says what was wrong.
fn log_failure(cmd: &Invocation, refused: &Refused, is_speculative: bool) {
    let client = &cmd.ctx.client;
    let (about, why, code) = match refused {
        Refused::Failed { about, why } => {
            (about.as_ref(), &**why, ErrorCode::AUTHENTICATION_FAILED)
        }
        Refused::Error(error) => (None, &*error.message, error.code),
    };
    let user = about.map_or("", |about| &about.user.user);
    let db = about.map_or(cmd.db(), |about| &about.user.db);
    tracing::info!(
        target: "ACCESS", id = 5_286_307u64, ctx = format!("conn{}", client.connection_id),
        client = client.remote.map(tracing::field::display),
        isSpeculative = is_speculative || about.is_some_and(|about| about.is_speculative),
        isClusterMember = about.is_some_and(About::is_of_member),
        mechanism = about.map_or("", |about| about.mechanism.mechanism()), user, db,
        result = code.0, error = why, "Failed to authenticate"
    );
}

/// `authenticate`: by certificates, of which there are none.
pub async fn authenticate(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = reader
        .opt_str("mechanism")?
        .ok_or_else(|| missing_field(reader.path().field("mechanism")))?;
    Err(not_enabled(name))
}

/// `logout`: of the users of a database, one of which a connection is logged in as at most.
pub async fn logout(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["logout"]);
    reader.finish()?;
    log_out(&cmd.ctx.client, cmd.db());
    Ok(Reply::new())
}

/// `invalidateUserCache`: has users and roles be read again.
pub async fn invalidate_user_cache(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["invalidateUserCache"]);
    reader.finish()?;
    forget_users().await;
    Ok(Reply::new())
}
