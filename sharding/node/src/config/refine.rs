//! Shard keys that become finer: changes of `config.collections`, `config.chunks` and `config.tags`
//! in one transaction.

use pinion_bson::rawdoc;
use pinion_sharding_protocol::config::{KeyRefinement, KeyRefinementStep};
use pinion_wire::Result;

use super::changelog::note;
use super::collections::{CHUNKS, collection};
use crate::local::{LocalClient, wait_majority};
use crate::part::part;

/// Gives a collection a finer shard key, unless an earlier attempt has. Called on core 0.
///
/// # Errors
/// As of [`KeyRefinement::decide`]; those of a write.
pub(super) async fn refine(refinement: &KeyRefinement, from: &str) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let found = collection(&client, &refinement.ns).await?;
    let unexpected = client
        .find(CHUNKS, &refinement.unexpected_chunks(), 1)
        .await?;
    match refinement.decide(found.as_ref(), !unexpected.is_empty())? {
        // Another attempt may have written it, and not have come to its end.
        KeyRefinementStep::Done => wait_majority().await,
        KeyRefinementStep::Write(commands) => {
            let ns = refinement.ns.as_str();
            let details = rawdoc! {
                "oldKey": found.map(|found| found.key).unwrap_or_default(),
                "newKey": refinement.key.to_bson(),
                "oldEpoch": refinement.was.epoch, "newEpoch": refinement.of.epoch,
            };
            let start = "refineCollectionShardKey.start";
            note(&client, from, start, ns, details.clone()).await;
            client.run_together(&commands).await?;
            let end = "refineCollectionShardKey.end";
            note(&client, from, end, ns, details).await;
            Ok(())
        }
    }
}
