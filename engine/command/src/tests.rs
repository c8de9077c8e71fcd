//! Every row against each rule that all commands are asked about. The lists are written by hand, so
//! that a change of a row has to be stated here too.

use std::collections::BTreeSet;

use pinion_wire::{
    AllowedOnSecondary, CommandClass, CommandNamespace, CommandRole, CommandSpec, ExplainedCommand,
    InTransaction, LogicalOp, ReadConcernSupport,
};

use super::*;

fn rows() -> impl Iterator<Item = &'static CommandSpec> {
    ROWS.into_iter().flatten()
}

/// Checks which commands answer a question with yes.
#[track_caller]
fn check(question: impl Fn(&CommandSpec) -> bool, expected: &[&str]) {
    let found: BTreeSet<&str> = rows()
        .filter(|row| question(row))
        .map(|row| row.name)
        .collect();
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    assert_eq!(found, expected);
}

#[test]
fn names_are_of_one_command() {
    let mut names = BTreeSet::new();
    for row in rows() {
        assert!(!row.help.is_empty(), "{}", row.name);
        for name in std::iter::once(&row.name).chain(row.aliases) {
            assert!(names.insert(*name), "{name}");
            assert_eq!(super::row(name).name, row.name);
            assert!(row.is_named(name));
        }
    }
    assert!(find_row("nothing").is_none());
    assert_eq!(rows().count(), 229);
}

#[test]
fn transactions() {
    let is = |expected| move |row: &CommandSpec| row.in_transaction == expected;
    check(
        |row| {
            let refused = [InTransaction::Never, InTransaction::Alternative];
            !refused.contains(&row.in_transaction)
        },
        &[
            "abortTransaction",
            "aggregate",
            "bulkWrite",
            "commitTransaction",
            "create",
            "createIndexes",
            "delete",
            "distinct",
            "find",
            "findAndModify",
            "getMore",
            "insert",
            "killCursors",
            "prepareTransaction",
            "update",
        ],
    );
    check(is(InTransaction::Alternative), &["count"]);
    check(is(InTransaction::Cursor), &["getMore"]);
    check(is(InTransaction::CloseCursor), &["killCursors"]);
    check(
        |row| row.in_transaction.is_of_cursors(),
        &["getMore", "killCursors"],
    );
    check(
        |row| row.in_transaction.ends(),
        &[
            "commitTransaction",
            "abortTransaction",
            "prepareTransaction",
        ],
    );
    check(is(InTransaction::Commit), &["commitTransaction"]);
    check(is(InTransaction::Abort), &["abortTransaction"]);
    check(
        |row| row.in_transaction.is_of_admin(),
        &[
            "abortTransaction",
            "bulkWrite",
            "commitTransaction",
            "prepareTransaction",
        ],
    );
}

#[test]
fn sessions() {
    check(
        |row| row.is_retryable,
        &["insert", "update", "delete", "findAndModify", "bulkWrite"],
    );
    check(
        |row| row.role == CommandRole::Kill,
        &[
            "killAllSessions",
            "killAllSessionsByPattern",
            "killCursors",
            "killOp",
            "killSessions",
        ],
    );
    for row in rows() {
        assert_eq!(
            row.role == CommandRole::Kill,
            row.name.starts_with("kill"),
            "{}",
            row.name
        );
    }
}

#[test]
fn what_a_connection_begins_with() {
    check(
        |row| row.before_login,
        &["hello", "isMaster", "saslStart", "saslContinue"],
    );
    check(|row| row.role == CommandRole::Hello, &["hello"]);
    check(|row| row.role == CommandRole::IsMaster, &["isMaster"]);
}

#[test]
fn what_runs_while_the_directory_is_opened_again() {
    check(
        |row| row.during_reopen,
        &[
            "hello",
            "isMaster",
            "replSetHeartbeat",
            "replSetUpdatePosition",
        ],
    );
}

#[test]
fn what_members_send_to_each_other() {
    check(
        |row| row.for_members,
        &[
            "_addShard",
            "_cloneCollectionOptionsFromPrimaryShard",
            "_configsvrAddShard",
            "_configsvrAddShardToZone",
            "_configsvrBalancerCollectionStatus",
            "_configsvrBalancerStart",
            "_configsvrBalancerStatus",
            "_configsvrBalancerStop",
            "_configsvrClearJumboFlag",
            "_configsvrCollMod",
            "_configsvrCommitChunkSplit",
            "_configsvrCommitChunksMerge",
            "_configsvrCommitCreateCollection",
            "_configsvrCommitDropCollection",
            "_configsvrCommitMergeAllChunksOnShard",
            "_configsvrCommitMovePrimary",
            "_configsvrCommitRefineCollectionShardKey",
            "_configsvrConfigureCollectionBalancing",
            "_configsvrCreateDatabase",
            "_configsvrDropDatabase",
            "_configsvrRemoveShardFromZone",
            "_configsvrRenameCollectionMetadata",
            "_configsvrSetAllowMigrations",
            "_configsvrSetClusterParameter",
            "_configsvrSetUserWriteBlockMode",
            "_configsvrUpdateZoneKeyRange",
            "_flushDatabaseCacheUpdates",
            "_flushRoutingTableCacheUpdates",
            "_replCatalogRows",
            "_replFreezeCheckpoint",
            "_replReadCheckpoint",
            "_replReleaseCheckpoint",
            "_shardsvrCheckMetadataConsistency",
            "_shardsvrCheckMetadataConsistencyParticipant",
            "_shardsvrCloneCatalogData",
            "_shardsvrCollMod",
            "_shardsvrCollModParticipant",
            "_shardsvrConvertToCapped",
            "_shardsvrCreateCollection",
            "_shardsvrCreateCollectionParticipant",
            "_shardsvrDropCollection",
            "_shardsvrDropCollectionParticipant",
            "_shardsvrDropDatabase",
            "_shardsvrDropDatabaseParticipant",
            "_shardsvrDropIndexes",
            "_shardsvrDropIndexesParticipant",
            "_shardsvrMergeAllChunksOnShard",
            "_shardsvrMergeChunks",
            "_shardsvrMovePrimary",
            "_shardsvrMovePrimaryAbort",
            "_shardsvrParticipantBlock",
            "_shardsvrRefineCollectionShardKey",
            "_shardsvrRenameCollection",
            "_shardsvrRenameCollectionParticipant",
            "_shardsvrSetAllowMigrations",
            "_shardsvrSetClusterParameter",
            "_shardsvrSetUserWriteBlockMode",
            "_shardsvrShardCollection",
            "internalRenameIfOptionsAndIndexesMatch",
            "prepareTransaction",
            "replSetGetRBID",
            "replSetHeartbeat",
            "replSetRequestVotes",
            "replSetUpdatePosition",
            "setShardVersion",
            "splitChunk",
            "voteAbortIndexBuild",
            "voteCommitIndexBuild",
        ],
    );
}

#[test]
fn namespaces() {
    check(
        |row| row.namespace == CommandNamespace::CollectionField,
        &["getMore"],
    );
    let writes = |row: &CommandSpec| row.supports_write_concern;
    // What these write may be in the collection of settings, wherever they are sent.
    check(
        |row| writes(row) && row.namespace.names_databases(),
        &["bulkWrite", "applyOps", "renameCollection"],
    );
}

#[test]
fn statistics() {
    let counted = ["aggregate", "count", "distinct", "findAndModify", "explain"];
    for row in rows() {
        let expected = row.class == CommandClass::Command || counted.contains(&row.name);
        assert_eq!(row.counts_as_command, expected, "{}", row.name);
        let op = match row.name {
            "find" => LogicalOp::Query,
            "insert" => LogicalOp::Insert,
            "update" => LogicalOp::Update,
            "delete" => LogicalOp::Remove,
            "getMore" => LogicalOp::GetMore,
            _ => LogicalOp::Command,
        };
        assert_eq!(row.op, op, "{}", row.name);
    }
    let in_top = |op| move |row: &CommandSpec| row.top == Some(op);
    check(in_top(LogicalOp::Query), &["find"]);
    check(in_top(LogicalOp::GetMore), &["getMore"]);
    check(in_top(LogicalOp::Insert), &["insert"]);
    check(in_top(LogicalOp::Update), &["findAndModify", "update"]);
    check(in_top(LogicalOp::Remove), &["delete"]);
    check(
        in_top(LogicalOp::Command),
        &[
            "aggregate",
            "collMod",
            "collStats",
            "compact",
            "count",
            "create",
            "createIndexes",
            "distinct",
            "drop",
            "dropIndexes",
            "listIndexes",
            "mapReduce",
            "planCacheClear",
            "planCacheClearFilters",
            "planCacheListFilters",
            "planCacheSetFilter",
            "reIndex",
            "removeQuerySettings",
            "setQuerySettings",
            "validate",
        ],
    );
}

#[test]
fn what_is_explained() {
    check(
        |row| row.explain.is_some(),
        &[
            "aggregate",
            "count",
            "delete",
            "distinct",
            "find",
            "findAndModify",
            "update",
        ],
    );
    for row in rows() {
        let Some(explained) = row.explain else {
            continue;
        };
        let name = match explained {
            ExplainedCommand::Aggregate => "aggregate",
            ExplainedCommand::Count => "count",
            ExplainedCommand::Delete => "delete",
            ExplainedCommand::Distinct => "distinct",
            ExplainedCommand::Find => "find",
            ExplainedCommand::FindAndModify => "findAndModify",
            ExplainedCommand::Update => "update",
        };
        assert_eq!(row.name, name);
    }
}

#[test]
fn what_is_treated_apart() {
    check(|row| row.role == CommandRole::Pipeline, &["aggregate"]);
    check(|row| row.role == CommandRole::GetMore, &["getMore"]);
    check(
        |row| row.role == CommandRole::FailPoint,
        &["configureFailPoint"],
    );
}

#[test]
fn concerns() {
    let takes = |support| move |row: &CommandSpec| row.read_concern == support;
    check(
        takes(ReadConcernSupport::All),
        &["aggregate", "distinct", "explain", "find", "getMore"],
    );
    check(takes(ReadConcernSupport::NoSnapshot), &["count"]);
    for row in rows() {
        let reads = row.class == CommandClass::Read;
        let takes = row.read_concern != ReadConcernSupport::Local;
        assert_eq!(reads, takes, "{}", row.name);
        assert!(
            !row.is_write() || row.supports_write_concern,
            "{}",
            row.name
        );
    }
    // These write nothing of their own, or nothing that another member has.
    check(
        |row| row.supports_write_concern && row.on_secondary != AllowedOnSecondary::Never,
        &["aggregate", "mapReduce"],
    );
}
