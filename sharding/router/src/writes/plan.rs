//! Where a statement goes, and what is left of it where some shards have executed it.

use std::collections::BTreeSet;
use std::sync::Arc;

use pinion_query::Variables;
use pinion_sharding_protocol::{ModifyStatement, RoutingTable, ShardId, ShardIdx, WritePlan};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::statement::Modify;

/// How a statement is executed.
pub(crate) enum Plan {
    /// It is sent to these shards, which are several if `Rest` has to be kept.
    Sent(BTreeSet<ShardId>),
    /// Its document has to be found first.
    Found,
}

/// What is left of a statement which some of its shards have executed.
pub(crate) struct Rest {
    /// By which they did so.
    table: Arc<RoutingTable>,
    left: BTreeSet<ShardIdx>,
    done: BTreeSet<ShardIdx>,
}

impl Rest {
    /// Of a statement that was sent by a table to some shards, of which some have refused it.
    /// `before`: what was left of it then. What other shards own was done or is not concerned;
    /// once a part was done, it counts as done.
    pub(crate) fn new(
        table: &Arc<RoutingTable>,
        sent: &BTreeSet<ShardId>,
        refused: &BTreeSet<ShardId>,
        before: Option<&Rest>,
    ) -> Rest {
        let left: BTreeSet<ShardIdx> = named(table, refused.iter());
        let done = match before {
            None => named(table, sent.difference(refused)),
            Some(_) => table
                .shards()
                .filter(|shard| !left.contains(shard))
                .collect(),
        };
        Rest {
            table: table.clone(),
            left,
            done,
        }
    }
}

fn named<'s>(
    table: &RoutingTable,
    shards: impl Iterator<Item = &'s ShardId>,
) -> BTreeSet<ShardIdx> {
    shards
        .filter_map(|shard| table.shard_of_name(shard))
        .collect()
}

/// The error of a statement of which a part was executed, and the rest cannot be without executing
/// that part again.
pub(crate) fn half_done(ns: &Namespace) -> Error {
    Error::new(
        ErrorCode::QUERY_PLAN_KILLED,
        format!(
            "chunks of {ns} were moved while a statement ran at several shards: some documents that it matches may not have been changed"
        ),
    )
}

/// Where a statement goes that changes documents.
///
/// # Errors
/// `ShardKeyNotFound`; the filter has a mistake.
pub(super) fn write_plan(
    table: &RoutingTable,
    modify: &Modify<'_>,
    vars: &Variables,
    may_broadcast: bool,
) -> Result<WritePlan> {
    let is_of_one = modify.update.is_some() && (!modify.is_multi || modify.is_upsert);
    if table.time_series.is_some() && is_of_one {
        // No series lets that happen, as any shard says.
        return table.owner(&table.key.min(), None).map(WritePlan::One);
    }
    let matcher = modify.matcher(vars, Some(table))?;
    table.target_modify(&ModifyStatement {
        matcher: &matcher,
        is_multi: modify.is_multi,
        is_upsert: modify.is_upsert,
        may_broadcast,
    })
}

impl Plan {
    fn sent(table: &RoutingTable, shards: &BTreeSet<ShardIdx>) -> Plan {
        let names = shards.iter().map(|shard| table.shard(*shard).clone());
        Plan::Sent(names.collect())
    }

    /// That of a document to be inserted.
    ///
    /// # Errors
    /// `ShardKeyNotFound`.
    pub(crate) fn of_insert(
        table: &RoutingTable,
        document: &pinion_bson::RawDocument,
    ) -> Result<Plan> {
        let owner = table.target_insert(document)?;
        Ok(Plan::sent(table, &BTreeSet::from([owner])))
    }

    /// That of a statement which changes documents.
    ///
    /// # Errors
    /// `ShardKeyNotFound`; the filter has a mistake.
    pub(crate) fn of_modify(
        table: &RoutingTable,
        modify: &Modify<'_>,
        vars: &Variables,
        may_broadcast: bool,
    ) -> Result<Plan> {
        let plan = write_plan(table, modify, vars, may_broadcast)?;
        Ok(match plan {
            WritePlan::One(shard) => Plan::sent(table, &BTreeSet::from([shard])),
            WritePlan::Each(found) | WritePlan::ById(found) => Plan::sent(table, &found),
            WritePlan::Found(_) => Plan::Found,
        })
    }

    /// That of what is left of a statement.
    ///
    /// # Errors
    /// `QueryPlanKilled` where no shards own that alone.
    pub(crate) fn of_rest(table: &RoutingTable, rest: &Rest) -> Result<Plan> {
        let left = table.shards_of_rest(&rest.table, &rest.left, &rest.done);
        let left = left.ok_or_else(|| half_done(&table.ns))?;
        Ok(Plan::sent(table, &left))
    }
}
