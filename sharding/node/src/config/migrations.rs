//! Whether chunks of a collection may move: `permitMigrations` of `config.collections`.

use pinion_bson::{Binary, RawDocumentBuf, rawdoc};
use pinion_sharding_protocol::config::{MigrationPermission, MigrationPermissionStep};
use pinion_sharding_protocol::ddl::DdlId;
use pinion_sharding_protocol::documents::ChunkDocument;
use pinion_wire::idl::Path;
use pinion_wire::{Error, ErrorCode, Result};

use super::changelog::note;
use super::collections::collection;
use super::shards::known_shards;
use crate::ddl::stored_on;
use crate::local::{LocalClient, wait_majority};
use crate::part::part;
use crate::replies;

/// Allows moves of chunks of a collection, or not. Called on core 0.
///
/// # Errors
/// `ConflictingOperationInProgress` for a message that is late; as of
/// [`MigrationPermission::decide`]; those of a write.
pub(super) async fn allow(permission: &MigrationPermission, from: &str) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    check_not_late(&client, permission).await?;
    let found = collection(&client, &permission.ns).await?;
    let of_collection = rawdoc! { "uuid": Binary::from(permission.uuid) };
    let newest = newest_chunk(&client, of_collection).await?;
    match permission.decide(found.as_ref(), newest.as_ref())? {
        // Another attempt may have written it, and not have come to its end.
        MigrationPermissionStep::Done => wait_majority().await,
        MigrationPermissionStep::Write(commands) => {
            client.run_together(&commands).await?;
            let details = rawdoc! { "permitMigrations": permission.allows };
            let ns = permission.ns.as_str();
            note(&client, from, "setPermitMigrations", ns, details).await;
            Ok(())
        }
    }
}

/// One definition after the other sends this: what a former one has sent may come behind it.
async fn check_not_late(client: &LocalClient, permission: &MigrationPermission) -> Result<()> {
    let reason = DdlId::parse(Path::root("reason"), &permission.reason)?;
    let shards = known_shards(client).await?;
    let found = stored_on(&shards, &reason, &permission.from).await?;
    let is_it = found.is_some_and(|found| {
        let allows = pinion_bson::get(&found.request, "allowMigrations");
        found.phase == permission.phase
            && allows.and_then(|allows| allows.as_bool()) == Some(permission.allows)
    });
    match is_it {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!(
                "a message of the phase {} of {reason} is late",
                permission.phase
            ),
        )),
    }
}

/// Of the chunks that a filter selects, the one with the highest version.
pub(super) async fn newest_chunk(
    client: &LocalClient,
    filter: RawDocumentBuf,
) -> Result<Option<ChunkDocument>> {
    let find = rawdoc! {
        "find": "chunks", "filter": filter, "sort": { "lastmod": -1 }, "limit": 1,
        "batchSize": 1, "singleBatch": true, "readConcern": { "level": "local" }, "$db": "config",
    };
    let found = replies::only_batch(client.run(&find).await?.body())?;
    let found = found.first().map(|found| ChunkDocument::parse(found));
    found.transpose()
}
