//! `setIndexCommitQuorum`, and the votes of members about builds of indexes:
//! `voteCommitIndexBuild`, `voteAbortIndexBuild`.

use std::sync::Arc;

use pinion_bson::RawBsonRef;
use pinion_catalog::{BuildName, Collection, Uuid, abort_build, core_catalog};
use pinion_exec::commands::acknowledge;
use pinion_exec::topology::{CommitQuorum, check_from_member, set_view};
use pinion_wire::idl::{Namespace, Types, missing_field, wrong_type};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::builds::{keep_vote, look_again, read, set_quorum};

/// `voteCommitIndexBuild`: a member is ready.
pub(crate) async fn vote_commit(cmd: Invocation) -> Result<Reply> {
    let (build, host) = vote_of(&cmd, "voteCommitIndexBuild", &[])?;
    let mut out = Reply::new();
    // No member is waited for, so nothing is kept.
    if read(build.uuid).await?.quorum.is_disabled() {
        return Ok(out);
    }
    let mut ts = keep_vote(&build, &host).await?;
    look_again().await;
    if ts.is_none() {
        // Known before, and perhaps not to a majority yet.
        ts = Some(pinion_storage::storage().last_allotted());
    }
    acknowledge(&cmd.ctx, ts, &mut out).await?;
    Ok(out)
}

/// `voteAbortIndexBuild`: a member cannot make the build.
pub(crate) async fn vote_abort(cmd: Invocation) -> Result<Reply> {
    let (build, host) = vote_of(&cmd, "voteAbortIndexBuild", &["reason"])?;
    let reason = pinion_bson::get(cmd.body(), "reason");
    let reason = reason.and_then(|reason| reason.as_str()).unwrap_or("");
    let why = format!("'voteAbortIndexBuild' received from '{host}': {reason}");
    match abort_build(build.uuid, why).await {
        true => Ok(Reply::new()),
        false => Err(no_build(build.uuid)),
    }
}

/// The build and the member that a vote is of. `texts` are optional arguments, which are strings.
fn vote_of(cmd: &Invocation, name: &str, texts: &[&str]) -> Result<(BuildName, String)> {
    let reader = cmd.reader()?;
    let uuid = reader.opt_uuid(name)?;
    let uuid = uuid.ok_or_else(|| missing_field(reader.path().field(name)))?;
    let host = reader.str("hostAndPort")?.to_owned();
    for text in texts {
        reader.opt_str(text)?;
    }
    reader.finish()?;
    check_from_member(cmd)?;
    let uuid = Uuid(uuid);
    let catalog = core_catalog().current();
    let mut collections = catalog.collections();
    let found = collections.find(|found| found.builds().contains(&uuid));
    let found = found.ok_or_else(|| no_build(uuid))?;
    Ok((named(found, uuid), host))
}

fn no_build(uuid: Uuid) -> Error {
    Error::new(
        ErrorCode::NO_SUCH_KEY,
        format!("No index build with UUID: {uuid}"),
    )
}

fn named(collection: &Arc<Collection>, uuid: Uuid) -> BuildName {
    let of_build = |index: &&Arc<pinion_catalog::Index>| {
        index
            .building
            .is_some_and(|building| building.build == uuid)
    };
    let indexes = collection.indexes.iter().filter(of_build);
    BuildName {
        uuid,
        collection: collection.uuid,
        indexes: indexes.map(|index| index.name().to_owned()).collect(),
    }
}

/// `setIndexCommitQuorum`: another quorum for a build under way.
pub(crate) async fn set_commit_quorum(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.namespace("setIndexCommitQuorum", cmd.db())?;
    let mut names = Vec::new();
    for name in pinion_bson::values(reader.array("indexNames")?) {
        match name {
            RawBsonRef::String(name) => names.push(name.to_owned()),
            other => {
                let path = reader.path().field("indexNames");
                return Err(wrong_type(path.index(names.len()), other, Types::STRING));
            }
        }
    }
    let asked = reader.value("commitQuorum");
    let asked = asked.ok_or_else(|| missing_field(reader.path().field("commitQuorum")))?;
    let quorum = CommitQuorum::parse(asked)?;
    reader.finish()?;
    let Some(view) = set_view() else {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "This command can only be run on replica sets",
        ));
    };
    if names.is_empty() {
        return Err(Error::new(
            ErrorCode::INDEX_NOT_FOUND,
            format!(
                "Cannot set a new commit quorum on an index build in collection '{ns}' without providing any indexes."
            ),
        ));
    }
    let build = build_of(&ns, &names)?;
    quorum.check(&view)?;
    let current = read(build.uuid).await?.quorum;
    if current.is_disabled() || quorum.is_disabled() {
        return Err(Error::bad_value(format!(
            "Commit quorum value can be changed only for index builds with commit quorum enabled, nss: '{ns}' first index name: '{}' currentCommitQuorum: {} providedCommitQuorum: {}",
            names[0],
            shown(&current),
            shown(&quorum)
        )));
    }
    let ts = set_quorum(&build, &quorum).await?;
    look_again().await;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, ts, &mut out).await?;
    Ok(out)
}

/// The build of exactly these indexes.
fn build_of(ns: &Namespace, names: &[String]) -> Result<BuildName> {
    let Some(collection) = core_catalog().get(ns) else {
        return Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("Collection '{ns}' was not found."),
        ));
    };
    let builds = collection.builds().into_iter();
    let mut builds = builds.map(|uuid| named(&collection, uuid));
    builds.find(|build| build.indexes == names).ok_or_else(|| {
        Error::new(
            ErrorCode::INDEX_NOT_FOUND,
            format!(
                "Cannot find an index build on collection '{ns}' with the provided index names"
            ),
        )
    })
}

fn shown(quorum: &CommitQuorum) -> String {
    let mut out = pinion_bson::DocBuilder::new();
    quorum.append("commitQuorum", &mut out);
    pinion_query::document_text(&out.finish())
}
