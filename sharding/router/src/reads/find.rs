//! `find` on a sharded collection: each shard finds, sorts and projects; what they give is merged,
//! and skipped and limited here.

use std::cell::Cell;

use pinion_bson::{DocBuilder, RawDocument, rawdoc};
use pinion_merge::MergeSpec;
use pinion_query::{SortPattern, Variables, parse_collation};
use pinion_sharding_protocol::{RoutingTable, TargetedShards, Targets};
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Category, Error, ErrorCode, Invocation, Reply, Result};

use super::options::{
    CollationOption, at_snapshot, namespace, parse_filter, shards_of, unsupported,
};
use super::part::{DISTANCE, PartForm, SORT_KEY};
use super::stream::{FIRST_BATCH, FirstBatch, ShardsStream, first_batch, merged, step_size};
use super::variables::{definitions, reads_time, variables};
use crate::cursor::{CursorKind, first_reply};
use crate::dispatch::Answer;
use crate::gather::{Gathered, ShardCall, ask_shards_within};
use crate::limits::PARTIAL_REPLY_TIME;
use crate::placement::table_of;
use crate::request::{Request, Versions};

/// What a router looks at in a `find`.
pub(super) struct Find<'d> {
    filter: Option<&'d RawDocument>,
    sort: Option<&'d RawDocument>,
    projection: Option<&'d RawDocument>,
    skip: usize,
    limit: Option<usize>,
    /// What a shard has to give at most, of which some may be skipped.
    wanted: Option<i64>,
    batch_size: Option<usize>,
    pub(super) is_single_batch: bool,
    /// Documents come by their distance; known once the filter is.
    is_near: Cell<bool>,
    allows_partial: bool,
    returns_keys: bool,
    pub(super) lets: Option<&'d RawDocument>,
    collation: CollationOption<'d>,
}

impl<'d> Find<'d> {
    pub(super) fn read(body: &'d RawDocument) -> Result<Find<'d>> {
        let reader = CommandReader::new("find", body)?;
        let skip = reader.opt_non_negative("skip")?.unwrap_or(0);
        let limit = reader.opt_non_negative("limit")?.filter(|limit| *limit > 0);
        let wanted = limit.map(|limit| checked_sum(limit, skip)).transpose()?;
        let batch_size = reader.opt_non_negative("batchSize")?;
        Ok(Find {
            filter: reader.opt_owned_doc("filter")?,
            sort: reader
                .opt_owned_doc("sort")?
                .filter(|sort| !sort.is_empty()),
            projection: reader.opt_owned_doc("projection")?,
            skip: skip as usize,
            limit: limit.map(|limit| limit as usize),
            wanted,
            batch_size: batch_size.map(|size| size as usize),
            is_single_batch: reader.opt_flag("singleBatch")?.unwrap_or(false),
            is_near: Cell::new(false),
            allows_partial: reader.opt_flag("allowPartialResults")?.unwrap_or(false),
            returns_keys: reader.opt_flag("returnKey")?.unwrap_or(false),
            lets: reader.opt_doc("let")?,
            collation: CollationOption::read(&reader)?,
        })
    }

    /// The order in which the documents of several shards are merged; `None` for none.
    pub(super) fn order(&self, table: &RoutingTable) -> Result<Option<SortPattern>> {
        let Some(sort) = self.sort else {
            return Ok(None);
        };
        let sort = SortPattern::parse_find(sort)?;
        let collation = match self.collation.spec(Some(table)) {
            Some(spec) => parse_collation(spec)?,
            None => None,
        };
        Ok(Some(sort.with_collation(collation)).filter(|sort| sort.natural().is_none()))
    }

    /// The shards that the filter goes to.
    pub(super) fn target(
        &self,
        cmd: &Invocation,
        table: &RoutingTable,
        vars: &Variables,
    ) -> Result<TargetedShards> {
        let vars = self.collation.variables(vars, Some(table))?;
        let matcher = parse_filter(self.filter, &vars)?;
        self.is_near.set(matcher.is_near() && self.sort.is_none());
        let targeted = shards_of(cmd, table, &matcher)?;
        self.order(table)?;
        if targeted.shards.len() > 1 && self.is_near.get() && self.returns_keys {
            return Err(unsupported(cmd, &table.ns, "returnKey with $near"));
        }
        Ok(targeted)
    }

    /// The request for one of the shards.
    fn request(&self, cmd: &Invocation, call: &ShardCall<'_>, vars: &Variables) -> Request {
        let versions = Versions::of_shard(call.version);
        if call.shards == 1 {
            return Request::of(cmd, cmd.db(), versions);
        }
        Request::with(cmd, cmd.db(), versions, |out| {
            self.append_part(out, call.table);
            if reads_time(cmd.body().as_bytes()) {
                out.append("let", &*definitions(vars));
            }
        })
    }

    /// The command as shards get it: where some may be passed over, they are given up a while
    /// before the time of the operation is over.
    fn sending(&self, cmd: &Invocation) -> Invocation {
        let mut sending = cmd.clone();
        let now = pinion_runtime::now().as_nanos();
        if self.allows_partial
            && let Some(left) = cmd.ctx.remaining_ns(now)
        {
            let reserve = (left / 4).min(PARTIAL_REPLY_TIME.as_nanos() as u64);
            sending.ctx = sending.ctx.with_deadline(Some(now + left - reserve));
        }
        sending
    }

    /// The fields that differ from the client's in the command for one shard of several.
    pub(super) fn append_part(&self, out: &mut DocBuilder, table: &RoutingTable) {
        if self.skip > 0 {
            out.append("skip", 0i32);
        }
        if let Some(wanted) = self.wanted {
            out.append("limit", wanted);
        }
        if self.is_single_batch {
            out.append("singleBatch", false);
        }
        let first = self.batch_size.filter(|size| *size > 0);
        let first = first.unwrap_or(FIRST_BATCH).saturating_add(self.skip);
        out.append("batchSize", step_size(first));
        let (field, key) = match self.order(table) {
            Ok(Some(_)) => (SORT_KEY, "sortKey"),
            _ if self.is_near.get() => (DISTANCE, "geoNearDistance"),
            _ => return,
        };
        out.start_document("projection");
        if let Some(projection) = self.projection {
            out.append_all(projection);
        }
        out.append(field, &*rawdoc! { "$meta": key }).end();
    }
}

/// The sum of limit and skip.
///
/// # Errors
/// `Overflow`.
pub(super) fn checked_sum(limit: i64, skip: i64) -> Result<i64> {
    limit.checked_add(skip).ok_or_else(|| {
        Error::new(
            ErrorCode::OVERFLOW,
            format!(
                "sum of limit and skip cannot be represented as a 64-bit integer, limit: {limit}, \
                 skip: {skip}"
            ),
        )
    })
}

/// What a `find` is.
pub(crate) enum FindOf {
    /// Of an unsharded collection.
    Unsharded,
    /// Of a time series whose buckets are sharded, where it is a pipeline.
    Series,
    Sharded(Reply),
}

/// `find`.
///
/// # Errors
/// Those of the command at its shards, and of the way there.
pub(crate) async fn find(cmd: &Invocation, kind: CursorKind) -> Result<FindOf> {
    let ns = namespace(cmd, "find")?;
    let Some(table) = table_of(&ns, Targets::Unknown).await? else {
        return Ok(FindOf::Unsharded);
    };
    if table.time_series.is_some() {
        return Ok(FindOf::Series);
    }
    at_snapshot(cmd, async |cmd| find_at(cmd, &ns, kind).await).await
}

/// A `find` whose snapshot, if it asks for one, has a time.
async fn find_at(cmd: &Invocation, ns: &Namespace, kind: CursorKind) -> Result<FindOf> {
    let find = Find::read(cmd.body())?;
    let vars = variables(find.lets)?;
    let target = |table: &RoutingTable| find.target(cmd, table, &vars);
    let sending = find.sending(cmd);
    let make = |call: &ShardCall<'_>| find.request(cmd, call, &vars);
    let Some(gathered) = ask_shards_within((cmd, &sending), ns, target, make).await? else {
        return Ok(FindOf::Unsharded);
    };
    if gathered.outcomes.len() == 1 && !find.allows_partial {
        let (_, answers) = gathered.all()?;
        return first_reply(cmd, &answers[0], kind).map(FindOf::Sharded);
    }
    let reply = reply(cmd, ns, &find, gathered, kind);
    reply.await.map(FindOf::Sharded)
}

async fn reply(
    cmd: &Invocation,
    ns: &Namespace,
    find: &Find<'_>,
    mut gathered: Gathered,
    kind: CursorKind,
) -> Result<Reply> {
    let shards = gathered.outcomes.len();
    if find.allows_partial {
        gathered
            .outcomes
            .retain(|(_, outcome)| !is_out_of_reach(outcome));
    }
    let is_partial = gathered.outcomes.len() < shards;
    let (table, answers) = gathered.all()?;
    if shards == 1 && !is_partial {
        return first_reply(cmd, &answers[0], kind);
    }
    let form = match find.order(&table)? {
        Some(sort) => PartForm::Keyed(sort),
        None if find.is_near.get() => PartForm::Near,
        None => PartForm::Plain,
    };
    let spec = MergeSpec {
        skip: find.skip,
        limit: find.limit,
        ends_are_known: true,
        ..MergeSpec::default()
    };
    let merged = merged(&cmd.ctx, &answers, &form, spec).await?;
    let wanted = FirstBatch {
        ns,
        kind,
        batch_size: find.batch_size,
        is_single: find.is_single_batch,
        is_partial,
    };
    first_batch(cmd, Box::new(ShardsStream(merged)), wanted).await
}

/// Whether a shard could not be asked, which `allowPartialResults` passes over.
fn is_out_of_reach(outcome: &Result<Answer>) -> bool {
    outcome.as_ref().is_err_and(|error| {
        error.is(Category::NETWORK)
            || matches!(
                error.code,
                ErrorCode::FAILED_TO_SATISFY_READ_PREFERENCE
                    | ErrorCode::MAX_TIME_MS_EXPIRED
                    | ErrorCode::SHARD_NOT_FOUND
            )
    })
}
