//! What a member sends to the primary: that it is ready to commit a build, or cannot make it.

use pinion_bson::rawdoc;
use pinion_catalog::BuildName;
use pinion_exec::topology::{ReplicaSet, SetView};
use pinion_service::node_info::node_info;
use pinion_wire::{Error, Result};

use crate::limits::MAX_ABORT_REASON_BYTES;

/// What the configuration calls this node.
pub(super) fn own_host(view: &SetView) -> String {
    let named = view.hello.get_str("me").ok().map(str::to_owned);
    named.unwrap_or_else(|| node_info().options.host.clone())
}

/// Reports to the primary that this member is ready. When this returns a majority has stored that.
///
/// # Errors
/// There is no primary, or it does not know the build, or a majority could not store the vote.
pub(super) async fn commit(set: &dyn ReplicaSet, build: &BuildName) -> Result<()> {
    let reply = set.run_on_primary(rawdoc! {
        "voteCommitIndexBuild": build.uuid.to_bson(),
        "hostAndPort": own_host(&set.view()),
        "writeConcern": { "w": "majority" },
        "$db": "admin",
    });
    let reply = reply.await?;
    match pinion_bson::get(&reply, "writeConcernError") {
        None => Ok(()),
        Some(_) => Err(Error::internal("a majority does not know the vote yet")),
    }
}

/// Reports to the primary that this member cannot make the build.
///
/// # Errors
/// There is no primary, or it does not know the build.
pub(super) async fn abort(set: &dyn ReplicaSet, build: &BuildName, why: &Error) -> Result<()> {
    let mut end = why.message.len().min(MAX_ABORT_REASON_BYTES);
    while !why.message.is_char_boundary(end) {
        end -= 1;
    }
    let sent = set.run_on_primary(rawdoc! {
        "voteAbortIndexBuild": build.uuid.to_bson(),
        "hostAndPort": own_host(&set.view()),
        "reason": &why.message[..end],
        "$db": "admin",
    });
    sent.await?;
    Ok(())
}
