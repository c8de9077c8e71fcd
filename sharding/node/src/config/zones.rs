//! Zones: changes of `tags` in `config.shards`, and of `config.tags`.

use pinion_bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};
use pinion_service::generate::new_object_id;
use pinion_sharding_protocol::ShardKeyPattern;
use pinion_sharding_protocol::config::{ZoneKeyRange, check_zone_addition, check_zone_removal};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, Result};

use super::collections::{TAGS, collection, tags_of};
use super::shards::known_shards;
use crate::limits::MAX_ZONE_RANGES;
use crate::local::{LocalClient, wait_majority};
use crate::part::part;

/// Puts a shard into a zone. Called on core 0.
///
/// # Errors
/// `ShardNotFound`; those of a write.
pub(super) async fn add_shard(shard: &str, zone: &str) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    check_zone_addition(shard, &known_shards(&client).await?)?;
    let update = rawdoc! { "$addToSet": { "tags": zone } };
    client.write(&shard_update(shard, update)).await
}

/// Takes a shard out of a zone. Called on core 0.
///
/// # Errors
/// `ShardNotFound`, `ZoneStillInUse`; those of a write.
pub(super) async fn remove_shard(shard: &str, zone: &str) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let shards = known_shards(&client).await?;
    let ranges = client.find(TAGS, &rawdoc! { "tag": zone }, 1).await?;
    match check_zone_removal(shard, zone, &shards, !ranges.is_empty())? {
        true => {
            let update = rawdoc! { "$pull": { "tags": zone } };
            client.write(&shard_update(shard, update)).await
        }
        // Another attempt may have done it, and not have come to its end.
        false => wait_majority().await,
    }
}

fn shard_update(shard: &str, update: RawDocumentBuf) -> RawDocumentBuf {
    rawdoc! {
        "update": "shards", "updates": [{ "q": { "_id": shard }, "u": update }], "$db": "config",
    }
}

/// Puts a range of keys into a zone; without one, takes the range out of whatever zone it is in.
/// Called on core 0.
///
/// # Errors
/// As of [`ZoneKeyRange`]; `BadValue` where the namespace has the most ranges already; those of a
/// write.
pub(super) async fn update_range(
    ns: &Namespace,
    min: &RawDocument,
    max: &RawDocument,
    zone: Option<&str>,
) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let collection = collection(&client, ns).await?;
    let key = collection.map(|collection| ShardKeyPattern::parse(&collection.key));
    let key = key.transpose()?;
    let range = ZoneKeyRange::new(ns, key.as_ref(), min, max)?;
    let Some(zone) = zone else {
        let delete = rawdoc! {
            "delete": "tags", "$db": "config",
            "deletes": [{
                "q": { "ns": ns.as_str(), "min": range.min, "max": range.max }, "limit": 1,
            }],
        };
        return client.write(&delete).await;
    };
    let shards = known_shards(&client).await?;
    let tags = tags_of(&client, ns).await?;
    let id = RawBson::ObjectId(new_object_id());
    let Some(tag) = range.assigned(zone, &shards, &tags, id)? else {
        return wait_majority().await;
    };
    if tags.len() as i32 >= MAX_ZONE_RANGES - 1 {
        return Err(Error::bad_value(format!(
            "{ns} has {} ranges of zones, which is the most that a collection has",
            tags.len()
        )));
    }
    let insert = rawdoc! { "insert": "tags", "documents": [tag.to_bson()], "$db": "config" };
    client.write(&insert).await
}
