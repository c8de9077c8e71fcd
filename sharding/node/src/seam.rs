//! What the executor sees of the node's part in its cluster.

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_exec::Waiting;
use pinion_exec::placement::{ClusterNode, WrittenDatabases, WrittenDocuments};
use pinion_runtime::{CoreId, Queue, submit_to};
use pinion_storage::storage;
use pinion_wire::Result;
use pinion_wire::idl::{Namespace, SentDatabaseVersion, SentShardVersion};

use crate::config::{begin_catalog, follow_topology};
use crate::config_servers::read_config;
use crate::data::unless_closed;
use crate::limits::MAX_KEYS;
use crate::part::part;
use crate::shard;

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
}

/// This core's part, as a [`ClusterNode`].
pub(crate) struct Seam;

impl ClusterNode for Seam {
    fn is_shard(&self) -> bool {
        part().membership().is_some()
    }

    fn check_database(&self, db: &str, sent: &SentDatabaseVersion) -> Result<()> {
        shard::check_database(&part(), db, sent)
    }

    fn check_collection(&self, ns: &Namespace, sent: &SentShardVersion) -> Result<()> {
        shard::check_collection(&part(), ns, sent)
    }

    fn refresh_database(&self, db: &str, sent: &SentDatabaseVersion) -> Waiting<Result<()>> {
        let (db, sent) = (db.to_owned(), *sent);
        Box::pin(async move {
            if !shard::is_behind(&part(), &db, &sent) {
                return Ok(());
            }
            submit_to(CoreId(0), Queue::Foreground, move || async move {
                let is_enough = |part: &crate::part::Part| {
                    shard::check_database(part, &db, &sent).is_ok()
                        || !shard::is_behind(part, &db, &sent)
                };
                shard::refresh(&db, is_enough).await
            })
            .await
        })
    }

    fn time_keys(&self) -> Option<Waiting<Result<Vec<RawDocumentBuf>>>> {
        let shard = part().membership()?;
        Some(Box::pin(async move {
            let filter = rawdoc! { "purpose": "HMAC" };
            read_config(&shard, ("admin", "system.keys"), &filter, MAX_KEYS).await
        }))
    }

    fn documents_applied(&self, written: WrittenDocuments) -> Waiting<()> {
        Box::pin(submit_to(
            CoreId(0),
            Queue::Background,
            move || async move {
                let part = part();
                let is_of_config = part.is_config_server() && written.shards;
                let has_databases = written.databases != WrittenDatabases::None;
                let is_of_shard = !part.is_config_server() && (written.identity || has_databases);
                if is_of_config || is_of_shard {
                    part.core_0.begin(use_documents(written));
                }
            },
        ))
    }

    fn became_primary(&self) -> Waiting<()> {
        Box::pin(async {
            if part().is_config_server() {
                begin_catalog();
            } else {
                // It may have been copied from another member, rather than applied.
                shard::reload().await;
                shard::begin_as_primary().await;
            }
        })
    }

    fn data_close(&self) {
        part().core_0.waits_end.notify_all();
    }
}
