//! Indexes, plans and validators of collections: what is done to a sharded one is done at every
//! shard that has it, by this router or by the primary shard of its database.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_query::document_text;
use pinion_sharding_protocol::ddl::replies_in;
use pinion_sharding_protocol::{RoutingTable, TargetedShards, Targets};
use pinion_wire::idl::{Namespace, i64_exact, is_generic_argument, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::reads::{check_uuid, is_named, routed, with_cursor};
use super::shard_replies::{all_or_first_error, raw_and_one};
use super::sharding::append_majority;
use crate::cursor::{CursorKind, first_reply};
use crate::dispatch::{Answer, WhenAbsent, at_coordinator, named_collection};
use crate::gather::{Gathered, ShardCall, ask_shards, define_at_owners, owners_of};
use crate::hosts::Retry;
use crate::limits::MAX_CONFIRMATIONS;
use crate::placement::{flush_collection, table_of};
use crate::reply::{append_passed_on, passed_on};
use crate::request::{Request, Versions};

fn whole_request(cmd: &Invocation, call: &ShardCall<'_>) -> Request {
    // What is made at the primary shard is copied to the next one, or refused there.
    let versions = Versions {
        database: call.database,
        ..Versions::of_shard(call.version)
    };
    Request::of(cmd, cmd.db(), versions)
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
///
/// It is confirmed: what one shard has made may have been dropped there, and on the others before
/// they made it. So all are asked again until none has anything to make.
pub(super) async fn create_indexes(cmd: Invocation) -> Result<Reply> {
    let sharded = async || create_at_owners(&cmd).await;
    let unsharded = |answer: &Answer| Ok(passed_on(answer.body()));
    routed(&cmd, WhenAbsent::Make, sharded, unsharded).await
}

async fn create_at_owners(cmd: &Invocation) -> Result<Option<Reply>> {
    let Some(ns) = named_collection(cmd, cmd.db()) else {
        return Ok(None);
    };
    let check_table = |table: &RoutingTable| check_unique(cmd.body(), table);
    let make = |call: &ShardCall<'_>| whole_request(cmd, call);
    let mut reply = None;
    for _ in 0..MAX_CONFIRMATIONS {
        let retry = Retry::Idempotent;
        let Some(gathered) = define_at_owners(cmd, &ns, retry, check_table, make).await? else {
            // If it was there a moment ago, it was dropped with its indexes.
            break;
        };
        let answers = all_or_first_error(&gathered.outcomes)?;
        let is_made = answers.len() > 1 && answers.iter().any(|answer| has_made(answer));
        if reply.is_none() {
            // One shard may have had some of them from before.
            reply = Some(raw_and_one(&gathered.outcomes, has_made)?);
        }
        if !is_made {
            break;
        }
    }
    Ok(reply)
}

fn has_made(answer: &Answer) -> bool {
    let count = |name| pinion_bson::get(answer.body(), name).and_then(i64_exact);
    count("numIndexesBefore") != count("numIndexesAfter")
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

/// `dropIndexes`: the primary shard of the database has all shards drop those of a sharded
/// collection.
pub(super) async fn drop_indexes(cmd: Invocation) -> Result<Reply> {
    coordinated(cmd, "_shardsvrDropIndexes").await
}

/// `collMod`: the same.
pub(super) async fn coll_mod(cmd: Invocation) -> Result<Reply> {
    check_uuid(&cmd).await?;
    coordinated(cmd, "_shardsvrCollMod").await
}

async fn coordinated(cmd: Invocation, name: &'static str) -> Result<Reply> {
    let sharded = async || change_sharded(&cmd, name).await;
    routed(&cmd, WhenAbsent::Answer, sharded, |answer| {
        Ok(passed_on(answer.body()))
    })
    .await
}

/// Has the primary shard change a sharded collection; `None` where it is not sharded.
async fn change_sharded(cmd: &Invocation, name: &str) -> Result<Option<Reply>> {
    let Some(ns) = named_collection(cmd, cmd.db()) else {
        return Ok(None);
    };
    if !is_sharded(&ns).await? {
        return Ok(None);
    }
    let changed = at_coordinator(cmd, ns.db(), WhenAbsent::Answer, |versions| {
        match versions.database {
            Some(_) => Request::own(ns.db(), versions, |out| {
                out.append(name, ns.collection());
                for field in pinion_bson::raw_elements(cmd.body()).skip(1) {
                    let is_of_sender =
                        std::str::from_utf8(field.name).is_ok_and(is_generic_argument);
                    if !is_of_sender {
                        out.append_elem(&field);
                    }
                }
                append_majority(out, cmd);
            }),
            // Another router has dropped the database meanwhile.
            None => Request::of(cmd, ns.db(), versions),
        }
    })
    .await;
    let mut outcomes = match changed {
        Ok(answer) => match replies_in(answer.body())? {
            Some(outcomes) => outcomes,
            None => return Ok(Some(passed_on(answer.body()))),
        },
        // The table of this router was older than that.
        Err(error) if error.code == ErrorCode::NAMESPACE_NOT_SHARDED => {
            flush_collection(&ns).await;
            return Ok(None);
        }
        Err(error) => {
            let replies = error.extra.as_ref().map(|extra| replies_in(extra));
            match replies.transpose()?.flatten() {
                Some(outcomes) => outcomes,
                None => return Err(error),
            }
        }
    };
    outcomes.sort_by(|(one, _), (other, _)| one.cmp(other));
    raw_and_one(&outcomes, |_| true).map(Some)
}

/// `setIndexCommitQuorum`, which may be run twice.
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
