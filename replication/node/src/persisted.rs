//! What a member keeps in its `local` database: the configuration, its last vote, and whether its
//! data are complete.

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, rawdoc};
use pinion_catalog::Uuid;
use pinion_clock::Term;
use pinion_exec::{any_local, put_local, read_local, write_local};
use pinion_replication_protocol::config::Config;
use pinion_replication_protocol::decision::LastVote;
use pinion_runtime::wall_ms;
use pinion_storage::storage;
use pinion_wire::idl::{FieldReader, Path};
use pinion_wire::{Error, ErrorCode, Result};

use crate::idle::is_config_server;

/// The configuration lies under the name of the set, as in MongoDB.
const CONFIG: &str = "system.replset";
const ELECTION: &str = "replset.election";
const LAST_VOTE: &str = "lastVote";
/// The data of this node are those of its set: the first member's by definition, others' after
/// their initial sync.
const SYNCED: &str = "replset.initialSyncId";
const ROLLBACK_ID: &str = "system.rollback.id";
const ROLLBACK_ID_NAME: &str = "rollbackId";

/// The stored configuration of the set of this name.
///
/// # Errors
/// It cannot be read, or breaks a rule.
pub(crate) async fn config(set_name: &str) -> Result<Option<Config>> {
    let stored = read_local(CONFIG, set_name).await?;
    let config = stored
        .map(|document| Config::parse(&document))
        .transpose()?;
    if let Some(config) = &config {
        config.validate()?;
        config.check_role(is_config_server())?;
    }
    Ok(config)
}

pub(crate) async fn store_config(config: &Config) -> Result<()> {
    write_local(CONFIG, &config.id, &config.to_bson()).await
}

/// The last vote that this node gave.
///
/// # Errors
/// It cannot be read, or is no vote.
pub(crate) async fn last_vote() -> Result<Option<LastVote>> {
    let Some(document) = read_local(ELECTION, LAST_VOTE).await? else {
        return Ok(None);
    };
    let reader = FieldReader::object(Path::root(ELECTION), &document)?;
    let missing =
        |name: &str| Error::new(ErrorCode::NO_SUCH_KEY, format!("{ELECTION} has no {name}"));
    let term = reader.opt_i64("term")?.ok_or_else(|| missing("term"))?;
    let candidate = reader.opt_i64("candidateIndex")?;
    Ok(Some(LastVote {
        term: Term(term),
        candidate_index: candidate
            .and_then(|index| usize::try_from(index).ok())
            .ok_or_else(|| missing("candidateIndex"))?,
    }))
}

pub(crate) async fn store_vote(vote: LastVote) -> Result<()> {
    let document = rawdoc! {
        "_id": LAST_VOTE,
        "term": vote.term.0,
        "candidateIndex": vote.candidate_index as i64,
    };
    write_local(ELECTION, LAST_VOTE, &document).await
}

/// Whether the data of this node are those of its set.
pub(crate) async fn is_synced() -> Result<bool> {
    Ok(any_local(SYNCED).await?.is_some())
}

/// The document is as MongoDB has it: a member of MongoDB that copies this one knows it again by
/// it.
pub(crate) async fn store_synced() -> Result<()> {
    if is_synced().await? {
        return Ok(());
    }
    let mut id = [0; 16];
    pinion_runtime::random_stream("initial sync").fill_bytes(&mut id);
    let mut document = DocBuilder::new();
    document.append("_id", Uuid(id).to_bson()).append(
        "wallTime",
        RawBsonRef::DateTime(DateTime::from_millis(wall_ms())),
    );
    put_local(SYNCED, &document.finish()).await
}

pub(crate) async fn store_rollback_id(id: i32) -> Result<()> {
    let document = rawdoc! { "_id": ROLLBACK_ID_NAME, "rollbackId": id };
    write_local(ROLLBACK_ID, ROLLBACK_ID_NAME, &document).await
}

/// The rollback id of a member that starts. What was not durable when a process was killed is gone
/// as after a rollback, and a member that copies this node's data may have seen it: such an end
/// counts as one. One in order does not.
pub(crate) async fn rollback_id_at_start(is_member: bool) -> Result<i32> {
    let id = rollback_id().await?;
    if storage().was_closed() || !is_member {
        return Ok(id);
    }
    let id = id.wrapping_add(1);
    tracing::info!(target: "REPL", id = 501_401u64, rollbackId = id, "Incrementing the rollback ID after unclean shutdown");
    store_rollback_id(id).await?;
    Ok(id)
}

/// How often this member has rolled back; 1 before the first time, as in MongoDB.
async fn rollback_id() -> Result<i32> {
    let stored = read_local(ROLLBACK_ID, ROLLBACK_ID_NAME).await?;
    let id = stored.and_then(|document| document.get_i32("rollbackId").ok());
    Ok(id.unwrap_or(1))
}
