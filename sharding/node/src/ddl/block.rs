//! Gates that are kept closed for definitions that other shards coordinate:
//! `_shardsvrParticipantBlock`.

use pinion_bson::{DocBuilder, RawDocumentBuf, Uuid};
use pinion_sharding_protocol::ddl::{
    BlockType, CriticalSectionDocument, DDL_COORDINATORS, DdlDocument, DdlId, ParticipantBlock,
};
use pinion_sharding_protocol::documents::ShardDocument;
use pinion_sharding_protocol::{ConnectionString, ShardId};
use pinion_storage::storage;
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::facts;
use super::leadership::{Leadership, lead};
use super::participants::finish;
use super::sections;
use crate::config_servers::{bson_timestamp, run_on_set};
use crate::limits::REMOTE_COMMAND;
use crate::part::{on_core_0, part};
use crate::replies;
use crate::shard::membership;

/// `_shardsvrParticipantBlock: <collection>, blockType, reason, phase, from`.
pub(crate) async fn participant_block(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let ns = reader.sought(cmd.name(), cmd.db())?;
    let (asked, from) = ParticipantBlock::parse(ns, cmd.body())?;
    reader.ignore(ParticipantBlock::fields());
    reader.finish()?;
    on_core_0(&cmd.ctx, move || block(asked, from)).await?;
    finish(&cmd).await
}

async fn block(asked: ParticipantBlock, from: ShardId) -> Result<()> {
    let leadership = lead().await?;
    let work = async {
        let _turn = turn_of(&leadership, &asked.ns).await;
        check_phase(&asked.reason, &asked.phase, &from).await?;
        let namespace = asked.ns.to_string();
        match asked.block {
            BlockType::Unblock => sections::leave(&leadership, &namespace).await,
            kind => {
                let section = CriticalSectionDocument {
                    namespace,
                    reason: asked.reason,
                    blocks_reads: kind == BlockType::ReadsAndWrites,
                    coordinator: Some(from),
                    to: asked.to,
                    open: Vec::new(),
                };
                sections::enter(&leadership, &section).await
            }
        }
    };
    leadership.unless_over(work).await?
}

/// One message about a collection after the other.
pub(super) struct Turn<'a> {
    leadership: &'a Leadership,
    ns: Namespace,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.leadership.blocking.borrow_mut().remove(&self.ns);
        part().core_0.definitions.notify();
    }
}

pub(super) async fn turn_of<'a>(leadership: &'a Leadership, ns: &Namespace) -> Turn<'a> {
    let take = || {
        leadership
            .blocking
            .borrow_mut()
            .insert(ns.clone())
            .then_some(())
    };
    part().core_0.definitions.until(take).await;
    Turn {
        leadership,
        ns: ns.clone(),
    }
}

/// Asks the coordinator whether a definition is in the phase that a message is of.
///
/// # Errors
/// `ConflictingOperationInProgress` where it is not: the message is late. The coordinator's set
/// does not answer.
pub(super) async fn check_phase(reason: &DdlId, phase: &str, from: &ShardId) -> Result<()> {
    let found = stored(reason, from).await?;
    let stored = found.as_ref().map(|found| found.phase.as_str());
    match stored {
        Some(stored) if stored == phase => Ok(()),
        stored => Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!(
                "a message of the phase {phase} of {reason} is late: it is in {}",
                stored.unwrap_or("none")
            ),
        )),
    }
}

/// The same of one run of a definition, where a later one of other options may have reached that
/// phase.
///
/// # Errors
/// As of [`check_phase`].
pub(super) async fn check_run(
    reason: &DdlId,
    phase: &str,
    run: Uuid,
    from: &ShardId,
) -> Result<()> {
    let found = stored(reason, from).await?;
    match found.is_some_and(|found| is_of_run(&found, phase, run)) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("a message of the phase {phase} of a run of {reason} is late"),
        )),
    }
}

/// Whether a document is of this phase of this run.
pub(crate) fn is_of_run(found: &DdlDocument, phase: &str, run: Uuid) -> bool {
    let reader = FieldReader::object(Path::root("state"), &found.state);
    let stored = reader.and_then(|reader| reader.opt_uuid("run"));
    found.phase == phase && stored.ok().flatten() == Some(run.bytes())
}

/// The document of a definition on the shard that coordinates it.
pub(super) async fn stored(reason: &DdlId, from: &ShardId) -> Result<Option<DdlDocument>> {
    let shard = membership(&part())?;
    let known = facts::shards(&shard).await?;
    stored_on(&known, reason, from).await
}

/// The same by the shards of the cluster.
///
/// # Errors
/// `ShardNotFound`; the coordinator's set does not answer.
pub(crate) async fn stored_on(
    known: &[ShardDocument],
    reason: &DdlId,
    from: &ShardId,
) -> Result<Option<DdlDocument>> {
    let coordinator = known.iter().find(|known| known.id == *from);
    let coordinator = coordinator.ok_or_else(|| {
        let message = format!("Shard {from} not found");
        Error::new(ErrorCode::SHARD_NOT_FOUND, message)
    })?;
    let set = ConnectionString::parse(&coordinator.host)?;
    let reply = run_on_set(&set, &document_of(reason), REMOTE_COMMAND).await?;
    let found = replies::only_batch(&reply)?;
    let found = found.first().map(|found| DdlDocument::parse(found));
    found.transpose()
}

/// A read of its document: of a majority, and of no time before the message.
fn document_of(reason: &DdlId) -> RawDocumentBuf {
    let (db, collection) = DDL_COORDINATORS.split_once('.').expect("it has a database");
    let filter = pinion_bson::rawdoc! { "_id": reason.to_bson() };
    let mut out = DocBuilder::new();
    out.append("find", collection)
        .append("filter", &*filter)
        .append("limit", 1i32)
        .append("singleBatch", true);
    out.start_document("readConcern")
        .append("level", "majority")
        .append(
            "afterClusterTime",
            bson_timestamp(storage().vector_time().cluster()),
        )
        .end();
    out.append("$db", db);
    out.finish()
}
