//! The list of the sessions in use: a collection of this set, or, on a shard, one of the config
//! servers of its cluster, which the node's part in that cluster reads and writes.

use std::collections::BTreeSet;

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocumentBuf, rawdoc};
use pinion_catalog::{
    append_lsid, core_catalog, create_indexes, from_read_error, parse_index_spec, session_key,
};
use pinion_query::Matcher;
use pinion_runtime::{Queue, submit_to};
use pinion_service::interrupt::{interruptible, pause};
use pinion_service::limits::SESSION_TIMEOUT;
use pinion_storage::{PartitionId, ReadAt, storage};
use pinion_wire::idl::{Lsid, Namespace};
use pinion_wire::{OpContext, Result};

use crate::acquire::acquire_write;
use crate::parameters::parameters;
use crate::placement::{is_shard, listed_sessions, publish_sessions};
use crate::write::{Change, ModifyOutcome, ModifyStatement, run, upsert};

/// Where sessions are known to the whole set.
const SESSIONS: &str = "config.system.sessions";
const TTL_INDEX: &str = "lsidTTLIndex";

/// Makes the collection, where this set has the list.
///
/// # Errors
/// This node is no primary any more, or is stopped.
pub(super) async fn prepare(ctx: &OpContext) -> Result<()> {
    match is_shard() {
        true => Ok(()),
        false => ensure_collection(ctx, &Namespace::parse(SESSIONS)?).await,
    }
}

async fn ensure_collection(ctx: &OpContext, ns: &Namespace) -> Result<()> {
    let found = core_catalog().get(ns);
    if found.is_some_and(|found| found.index(TTL_INDEX).is_some()) {
        return Ok(());
    }
    let spec = rawdoc! {
        "key": { "lastUse": 1 }, "name": TTL_INDEX,
        "expireAfterSeconds": SESSION_TIMEOUT.as_secs() as i32,
    };
    let specs = vec![parse_index_spec(&spec, false)?];
    let limits = parameters().borrow().build_limits();
    create_indexes(ctx, ns.clone(), specs, limits, None).await?;
    Ok(())
}

/// Lists sessions as used, each with the time of its last use in milliseconds since 1970.
///
/// # Errors
/// This node is no primary any more, or is stopped; the config servers do not answer, or refuse.
pub(super) async fn note(ctx: &OpContext, used: &[(Lsid, i64)]) -> Result<()> {
    if let Some(published) = publish_sessions(used.to_vec(), Vec::new()) {
        return interruptible(ctx, published).await?;
    }
    let ns = Namespace::parse(SESSIONS)?;
    for (lsid, used_ms) in used {
        pause(ctx).await?;
        let date = RawBsonRef::DateTime(DateTime::from_millis(*used_ms));
        // On a config server a router may have listed a later use.
        let mut change = DocBuilder::new();
        change.start_document("$max").append("lastUse", date).end();
        upsert(ctx, ns.clone(), named(lsid), &change.finish()).await?;
    }
    Ok(())
}

/// Removes ended sessions from the list.
///
/// # Errors
/// As of [`note`].
pub(super) async fn forget(ctx: &OpContext, ended: &[Lsid]) -> Result<()> {
    if let Some(published) = publish_sessions(Vec::new(), ended.to_vec()) {
        return interruptible(ctx, published).await?;
    }
    let ns = Namespace::parse(SESSIONS)?;
    for lsid in ended {
        pause(ctx).await?;
        let filter = named(lsid);
        let statement = ModifyStatement::plain(Matcher::parse(&filter)?, filter, Change::Delete);
        let acquired = acquire_write(ctx, ns.clone(), None).await?;
        run(ctx, acquired, &statement, &mut ModifyOutcome::default()).await?;
    }
    Ok(())
}

/// Those of these sessions that are listed.
///
/// # Errors
/// The list cannot be read, or not all of it: nothing may be concluded of any session then.
pub(super) async fn listed(ctx: &OpContext, lsids: BTreeSet<Lsid>) -> Result<BTreeSet<Lsid>> {
    if let Some(asked) = listed_sessions(lsids.iter().copied().collect()) {
        return interruptible(ctx, asked).await?;
    }
    let mut listed = BTreeSet::new();
    for lsid in lsids {
        pause(ctx).await?;
        if is_listed_here(&lsid).await? {
            listed.insert(lsid);
        }
    }
    Ok(listed)
}

/// The filter that finds a session.
fn named(lsid: &Lsid) -> RawDocumentBuf {
    let mut filter = DocBuilder::new();
    append_lsid(&mut filter, "_id", lsid);
    filter.finish()
}

/// Whether the collection of this set has a session.
async fn is_listed_here(lsid: &Lsid) -> Result<bool> {
    let Some(sessions) = core_catalog().get(&Namespace::parse(SESSIONS)?) else {
        return Ok(false);
    };
    let (key, tree) = (session_key(lsid), sessions.tree());
    let partition: PartitionId = pinion_catalog::partition_of(&sessions, &key);
    submit_to(
        storage().owner(partition),
        Queue::Background,
        move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let read = owned.get(tree, &key, ReadAt::Newest).await;
            Ok(read.map_err(from_read_error)?.is_some())
        },
    )
    .await
}
