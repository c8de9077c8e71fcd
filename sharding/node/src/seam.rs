//! What the executor sees of the node's part in its cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_exec::Waiting;
use pinion_exec::placement::{
    ClusterNode, FeatureVersionPhase, Ownership, WrittenDocuments, WrittenEntries,
};
use pinion_runtime::{CoreId, Queue, submit_to};
use pinion_sharding_protocol::has_fixed_placement;
use pinion_storage::storage;
use pinion_wire::Result;
use pinion_wire::idl::{Lsid, Namespace, SentDatabaseVersion, SentShardVersion};

use crate::config::{
    begin_catalog, begin_settings, follow_topology, raise_shards, spread_parameter,
};
use crate::config_servers::read_config;
use crate::data::unless_closed;
use crate::ddl;
use crate::limits::MAX_KEYS;
use crate::part::{Part, part};
use crate::{sessions, shard};

/// Has the node use documents that are being applied, once they can be read.
async fn use_documents(written: WrittenDocuments) {
    let applied = async { storage().wait_visible(storage().last_allotted()).await };
    if !matches!(unless_closed(applied).await, Ok(Ok(()))) {
        // Storage has failed, and the node stops; or the data are opened again, or this node leads
        // now, and all is read then.
        return;
    }
    if part().is_config_server() {
        return follow_topology();
    }
    if written.identity {
        shard::reload().await;
    }
    shard::forget_cached(&written.databases).await;
    shard::settle(&written.collections).await;
}

/// This core's part, as a [`ClusterNode`].
pub(crate) struct Seam;

impl ClusterNode for Seam {
    fn is_shard(&self) -> bool {
        part().membership().is_some()
    }

    fn check_database(&self, db: &str, sent: &SentDatabaseVersion) -> Result<()> {
        let part = part();
        match ddl::are_resumed(&part) || has_fixed_placement(db) {
            true => shard::check_database(&part, db, sent),
            false => Err(ddl::not_resumed_database(db, sent)),
        }
    }

    fn check_collection(&self, ns: &Namespace, sent: &SentShardVersion) -> Result<()> {
        let part = part();
        match ddl::are_resumed(&part) || has_fixed_placement(ns.db()) {
            true => shard::check_collection(&part, ns, sent),
            false => Err(ddl::not_resumed_collection(&part, ns, sent)),
        }
    }

    fn ownership(
        &self,
        ns: &Namespace,
        sent: Option<&SentShardVersion>,
        at: Option<Timestamp>,
    ) -> Option<Arc<dyn Ownership>> {
        shard::ownership(&part(), ns, sent, at)
    }

    fn check_unsharded(&self, ns: &Namespace) -> Result<()> {
        shard::check_unsharded(&part(), ns)
    }

    fn refresh_collection(&self, ns: &Namespace, sent: &SentShardVersion) -> Waiting<Result<()>> {
        let (ns, sent) = (ns.clone(), *sent);
        Box::pin(async move {
            ddl::resumed().await;
            if !shard::is_collection_behind(&part(), &ns, &sent) {
                return Ok(());
            }
            submit_to(CoreId(0), Queue::Foreground, move || async move {
                let is_enough = |part: &Part| {
                    shard::check_collection(part, &ns, &sent).is_ok()
                        || !shard::is_collection_behind(part, &ns, &sent)
                };
                shard::refresh_collection(&ns, is_enough).await
            })
            .await
        })
    }

    fn refresh_database(&self, db: &str, sent: &SentDatabaseVersion) -> Waiting<Result<()>> {
        let (db, sent) = (db.to_owned(), *sent);
        Box::pin(async move {
            ddl::resumed().await;
            if !shard::is_behind(&part(), &db, &sent) {
                return Ok(());
            }
            submit_to(CoreId(0), Queue::Foreground, move || async move {
                let is_enough = |part: &Part| {
                    shard::check_database(part, &db, &sent).is_ok()
                        || !shard::is_behind(part, &db, &sent)
                };
                shard::refresh(&db, is_enough).await
            })
            .await
        })
    }

    fn indexes_settle(&self, ns: &Namespace) -> Waiting<()> {
        let ns = ns.clone();
        Box::pin(submit_to(
            CoreId(0),
            Queue::Foreground,
            move || async move { ddl::until_indexes_are_dropped(&ns).await },
        ))
    }

    fn time_keys(&self) -> Option<Waiting<Result<Vec<RawDocumentBuf>>>> {
        let shard = part().membership()?;
        Some(Box::pin(async move {
            let filter = rawdoc! { "purpose": "HMAC" };
            read_config(&shard, ("admin", "system.keys"), &filter, MAX_KEYS).await
        }))
    }

    fn listed_sessions(&self, lsids: Vec<Lsid>) -> Option<Waiting<Result<BTreeSet<Lsid>>>> {
        let shard = part().membership()?;
        Some(Box::pin(async move {
            unless_closed(sessions::listed(&shard, &lsids)).await?
        }))
    }

    fn publish_sessions(
        &self,
        used: Vec<(Lsid, i64)>,
        ended: Vec<Lsid>,
    ) -> Option<Waiting<Result<()>>> {
        let shard = part().membership()?;
        Some(Box::pin(async move {
            unless_closed(sessions::publish(&shard, &used, &ended)).await?
        }))
    }

    fn documents_applied(&self, written: WrittenDocuments) -> Waiting<()> {
        Box::pin(submit_to(
            CoreId(0),
            Queue::Background,
            move || async move {
                let part = part();
                if part.is_config_server() {
                    if written.shards {
                        part.core_0.begin(use_documents(written));
                    }
                    return;
                }
                // Before it can be read: what waits for that finds the entry stale.
                shard::distrust(&written.collections).await;
                shard::forget_cached(&written.databases).await;
                let entries = [&written.databases, &written.collections];
                let has_entries = entries.iter().any(|of| **of != WrittenEntries::None);
                if written.identity || has_entries {
                    part.core_0.begin(use_documents(written));
                }
            },
        ))
    }

    fn became_primary(&self) -> Waiting<()> {
        Box::pin(async {
            if part().is_config_server() {
                begin_catalog();
                begin_settings();
            } else {
                // It may have been copied from another member, rather than applied.
                shard::reload().await;
                shard::begin_as_primary().await;
                shard::begin_collections_as_primary().await;
                ddl::begin_as_primary();
            }
        })
    }

    fn stopped_leading(&self) -> Waiting<()> {
        Box::pin(ddl::stop_leading())
    }

    fn raise_shards(&self, phase: FeatureVersionPhase) -> Waiting<Result<()>> {
        Box::pin(raise_shards(phase))
    }

    fn spread_parameter(&self, id: &str) -> Waiting<Result<()>> {
        let is_authoritative = part().is_config_server();
        let id = id.to_owned();
        Box::pin(async move {
            match is_authoritative {
                true => spread_parameter(id).await,
                false => Ok(()),
            }
        })
    }

    fn data_close(&self) {
        part().core_0.waits_end.notify_all();
    }
}
