//! `_shardsvrCheckMetadataConsistency`, by which a router asks the primary shard of a database.

use pinion_runtime::Instant;
use pinion_sharding_protocol::DatabaseVersion;
use pinion_sharding_protocol::ddl::LockScope;
use pinion_wire::idl::SentDatabaseVersion;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::look::{Scope, inconsistencies};
use crate::ddl;
use crate::limits::REPORTED_INCONSISTENCIES_BYTES;
use crate::part::{Part, on_core_0, part};
use crate::shard::{check_database, is_behind, membership, refresh};

/// `_shardsvrCheckMetadataConsistency: <collection> or 1, checkIndexes?` -> `inconsistencies`.
pub(crate) async fn check_metadata_consistency(cmd: Invocation) -> Result<Reply> {
    let shard = membership(&part())?;
    let reader = cmd.reader()?;
    let scope = Scope::read(&reader, cmd.name(), cmd.db())?;
    let checks_indexes = reader.opt_safe_bool("checkIndexes")?.unwrap_or(false);
    reader.finish()?;
    let routing = cmd.ctx.args.routing.as_ref();
    let Some(version) = routing.and_then(|routing| routing.database_version) else {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Expected the request to have a database version",
        ));
    };
    let version = DatabaseVersion::from_sent(version);
    let deadline = cmd.ctx.deadline_ns.map(Instant::from_nanos);
    let db = cmd.db().to_owned();
    let lock = match &scope.collection {
        None => LockScope::Database(db.clone()),
        Some(ns) => LockScope::Collection {
            db: db.clone(),
            ns: ns.as_str().to_owned(),
        },
    };
    let found = on_core_0(&cmd.ctx, move || async move {
        know_version(&db, &version.to_sent()).await?;
        let work = inconsistencies(&shard, &scope, checks_indexes);
        ddl::locked(&db, lock, version, deadline, work).await
    })
    .await?;
    let mut bytes = 0;
    let mut out = Reply::new();
    out.start_array("inconsistencies");
    for document in found.documents() {
        bytes += document.as_bytes().len();
        if bytes > REPORTED_INCONSISTENCIES_BYTES {
            break;
        }
        tracing::warn!(target: "SHARDING", id = 7_514_800u64, inconsistency = ?document, "Detected sharding metadata inconsistency");
        out.push(&**document);
    }
    out.end();
    Ok(out)
}

/// Learns the version of a database, where a request has another one that may be newer.
async fn know_version(db: &str, sent: &SentDatabaseVersion) -> Result<()> {
    let is_enough =
        |part: &Part| check_database(part, db, sent).is_ok() || !is_behind(part, db, sent);
    match is_enough(&part()) {
        true => Ok(()),
        false => refresh(db, is_enough).await,
    }
}
