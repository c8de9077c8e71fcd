//! The topology time: that of the last change of `config.shards` which a majority has.

use pinion_clock::Timestamp;
use pinion_exec::replica_set;
use pinion_runtime::sleep;
use pinion_storage::storage;
use pinion_wire::Result;

use super::shards::known_shards;
use crate::data::unless_closed;
use crate::limits::RETRY_PAUSE;
use crate::local::LocalClient;
use crate::part::part;

/// Has the clock follow what is stored now, once that is committed: one task does, and looks again
/// where it is called meanwhile. Called on core 0.
pub(crate) fn follow() {
    let part = part();
    part.core_0.topology_behind.set(true);
    if part.core_0.topology_followed.replace(true) {
        return;
    }
    part.core_0.begin(async {
        let core_0 = &crate::part::part().core_0;
        while core_0.topology_behind.replace(false) && !core_0.is_stopping() {
            // Where the data are opened again, what waited for the old ones begins again.
            let followed = unless_closed(follow_now()).await.and_then(|followed| followed);
            if let Err(error) = followed {
                tracing::info!(target: "SHARDING", id = 7_500_012u64, error = %error, "The topology time could not be read; it is tried again");
                core_0.topology_behind.set(true);
                sleep(RETRY_PAUSE).await;
            }
        }
        core_0.topology_followed.set(false);
    });
}

async fn follow_now() -> Result<()> {
    let Some(set) = replica_set() else {
        return Ok(());
    };
    let client = LocalClient::new()?;
    let shards = known_shards(&client).await?;
    let seen = storage().visible();
    let times = shards.iter().filter_map(|shard| shard.topology_time);
    let newest = times.max().unwrap_or(Timestamp::MIN);
    if newest > storage().vector_time().topology() {
        set.wait_committed(seen).await?;
        storage().tick_topology_to(newest);
    }
    Ok(())
}
