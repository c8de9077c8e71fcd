//! The commands of members and of their log.

use pinion_exec::commands::register;
use pinion_wire::{AllowedOnSecondary, CommandSpec, Registry};

use crate::{apply_ops, index_builds, oplog_note};

/// Registers them. Called on each core for its own registry.
pub fn register_commands(r: &mut Registry) {
    let spec = CommandSpec::new;
    register(
        r,
        spec("setIndexCommitQuorum")
            .write_concern()
            .help("change which members a build of indexes waits for"),
        None,
        index_builds::set_commit_quorum,
    );
    register(
        r,
        spec("voteCommitIndexBuild")
            .write_concern()
            .admin_only()
            .for_members()
            .help("sent by other members"),
        None,
        index_builds::vote_commit,
    );
    register(
        r,
        spec("voteAbortIndexBuild")
            .admin_only()
            .for_members()
            .help("sent by other members"),
        None,
        index_builds::vote_abort,
    );
    register(
        r,
        spec("_replCatalogRows")
            .admin_only()
            .for_members()
            .on_secondary(AllowedOnSecondary::Always)
            .help("the catalog, for a member that copies this one"),
        None,
        crate::cloning::catalog_rows,
    );
    register(
        r,
        spec("applyOps")
            .write()
            .help("apply operations as the oplog has them"),
        None,
        apply_ops::apply_ops,
    );
    register(
        r,
        spec("appendOplogNote")
            .admin_only()
            .write_concern()
            .help("write a note into the oplog"),
        None,
        oplog_note::append_oplog_note,
    );
}
