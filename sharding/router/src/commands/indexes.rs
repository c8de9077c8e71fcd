//! Indexes, plans and validators of collections: what is done to a sharded one is done at every
//! shard that has it.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_query::document_text;
use pinion_sharding_protocol::{RoutingTable, TargetedShards, Targets};
use pinion_wire::idl::{Namespace, i64_exact, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::reads::{check_uuid, is_named, routed, with_cursor};
use super::shard_replies::{all_or_first_error, raw_and_one};
use crate::cursor::{CursorKind, first_reply};
use crate::dispatch::{Answer, WhenAbsent, named_collection};
use crate::gather::{Gathered, ShardCall, ask_shards, define_at_owners, owners_of};
use crate::hosts::Retry;
use crate::placement::table_of;
use crate::reply::{append_passed_on, passed_on};
use crate::request::{Request, Versions};

fn whole_request(cmd: &Invocation, call: &ShardCall<'_>) -> Request {
    Request::of(cmd, cmd.db(), Versions::of_shard(call.version))
}

/// The same at every shard that has the collection.
async fn define(
    cmd: &Invocation,
    retry: Retry,
    check_table: impl Fn(&RoutingTable) -> Result<()>,
    choose: impl Fn(&Answer) -> bool,
) -> Result<Option<Reply>> {
    let Some(ns) = named_collection(cmd, cmd.db()) else {
        return Ok(None);
    };
    let make = |call: &ShardCall<'_>| whole_request(cmd, call);
    match define_at_owners(cmd, &ns, retry, check_table, make).await? {
        Some(gathered) => raw_and_one(&gathered.outcomes, choose).map(Some),
        None => Ok(None),
    }
}

fn any_table(_: &RoutingTable) -> Result<()> {
    Ok(())
}

/// `createIndexes`.
pub(super) async fn create_indexes(cmd: Invocation) -> Result<Reply> {
    let check_table = |table: &RoutingTable| check_unique(cmd.body(), table);
    // One shard may have had some of them from before.
    let has_made = |answer: &Answer| {
        let count = |name| pinion_bson::get(answer.body(), name).and_then(i64_exact);
        count("numIndexesBefore") != count("numIndexesAfter")
    };
    let sharded = async || define(&cmd, Retry::Idempotent, check_table, has_made).await;
    let unsharded = |answer: &Answer| Ok(passed_on(answer.body()));
    routed(&cmd, WhenAbsent::Make, sharded, unsharded).await
}

/// Refuses unique indexes whose keys could be on two shards.
fn check_unique(body: &RawDocument, table: &RoutingTable) -> Result<()> {
    let Some(RawBsonRef::Array(specs)) = pinion_bson::get(body, "indexes") else {
        return Ok(());
    };
    for spec in pinion_bson::values(specs).filter_map(|spec| spec.as_document()) {
        if !pinion_bson::get(spec, "unique").is_some_and(truthy) {
            continue;
        }
        let Some(RawBsonRef::Document(key)) = pinion_bson::get(spec, "key") else {
            continue;
        };
        if !table.key.is_unique_index_possible(key) {
            return Err(Error::new(
                ErrorCode::CANNOT_CREATE_INDEX,
                format!(
                    "cannot create index with 'unique' option over {} with shard key pattern {}",
                    document_text(key),
                    document_text(&table.key.to_bson())
                ),
            ));
        }
    }
    Ok(())
}

/// `dropIndexes`. A shard that may have run it is not asked twice: it would not find the index.
pub(super) async fn drop_indexes(cmd: Invocation) -> Result<Reply> {
    let sharded = async || define(&cmd, Retry::Never, any_table, |_| true).await;
    routed(&cmd, WhenAbsent::Answer, sharded, |answer| {
        Ok(passed_on(answer.body()))
    })
    .await
}

/// `collMod` and `setIndexCommitQuorum`, which may be run twice.
pub(super) async fn modify(cmd: Invocation) -> Result<Reply> {
    check_uuid(&cmd).await?;
    let sharded = async || define(&cmd, Retry::Idempotent, any_table, |_| true).await;
    routed(&cmd, WhenAbsent::Answer, sharded, |answer| {
        Ok(passed_on(answer.body()))
    })
    .await
}

/// `listIndexes`: of the shard that owns the lowest key.
pub(super) async fn list_indexes(cmd: Invocation) -> Result<Reply> {
    if !is_named(&cmd) {
        return with_cursor(cmd).await;
    }
    let owner_of_least = |table: &RoutingTable| {
        Ok(TargetedShards {
            shards: [table.owner(&table.key.min(), None)?].into(),
            key: None,
        })
    };
    let sharded = async || {
        let Some(gathered) = of_owners(&cmd, owner_of_least).await? else {
            return Ok(None);
        };
        let (_, answers) = gathered.all()?;
        first_reply(&cmd, &answers[0], CursorKind::default()).map(Some)
    };
    let unsharded = |answer: &Answer| first_reply(&cmd, answer, CursorKind::default());
    routed(&cmd, WhenAbsent::Answer, sharded, unsharded).await
}

async fn of_owners(
    cmd: &Invocation,
    target: impl Fn(&RoutingTable) -> Result<TargetedShards>,
) -> Result<Option<Gathered>> {
    let Some(ns) = named_collection(cmd, cmd.db()) else {
        return Ok(None);
    };
    if !is_sharded(&ns).await? {
        return Ok(None);
    }
    ask_shards(cmd, &ns, target, |call| whole_request(cmd, call)).await
}

async fn is_sharded(ns: &Namespace) -> Result<bool> {
    Ok(table_of(ns, Targets::Unknown).await?.is_some())
}

/// `planCacheClear`.
pub(super) async fn clear_plans(cmd: Invocation) -> Result<Reply> {
    let sharded = async || {
        let Some(gathered) = of_owners(&cmd, owners_of).await? else {
            return Ok(None);
        };
        raw_and_one(&gathered.outcomes, |_| true).map(Some)
    };
    routed(&cmd, WhenAbsent::Answer, sharded, |answer| {
        Ok(passed_on(answer.body()))
    })
    .await
}

/// `planCacheSetFilter`, `planCacheClearFilters`, `planCacheListFilters`: the reply of the first
/// shard, and that of each under its name.
pub(super) async fn index_filters(cmd: Invocation) -> Result<Reply> {
    let sharded = async || {
        let Some(gathered) = of_owners(&cmd, owners_of).await? else {
            return Ok(None);
        };
        let answers = all_or_first_error(&gathered.outcomes)?;
        let mut out = Reply::new();
        if let Some(first) = answers.first() {
            append_passed_on(&mut out, first.body(), |_| true);
        }
        for answer in &answers {
            out.start_document(&answer.shard);
            append_passed_on(&mut out, answer.body(), |_| true);
            out.append("ok", 1.0).end();
        }
        Ok(Some(out))
    };
    routed(&cmd, WhenAbsent::Answer, sharded, |answer| {
        Ok(passed_on(answer.body()))
    })
    .await
}
