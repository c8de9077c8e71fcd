//! The handlers of commands of members and of their log.

use pinion_exec::commands::attach;
use pinion_wire::Registry;

use crate::{apply_ops, index_builds, oplog_note};

/// Attaches them. Called on each core for its own registry.
pub fn register_commands(r: &mut Registry) {
    attach(r, "setIndexCommitQuorum", index_builds::set_commit_quorum);
    attach(r, "voteCommitIndexBuild", index_builds::vote_commit);
    attach(r, "voteAbortIndexBuild", index_builds::vote_abort);
    attach(r, "_replCatalogRows", crate::cloning::catalog_rows);
    attach(r, "applyOps", apply_ops::apply_ops);
    attach(r, "appendOplogNote", oplog_note::append_oplog_note);
}
