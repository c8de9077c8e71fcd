//! `count` on a sharded collection: each shard counts what it owns.

use pinion_bson::RawBsonRef;
use pinion_query::Variables;
use pinion_sharding_protocol::{RoutingTable, Targets};
use pinion_wire::idl::{CommandReader, i64_exact};
use pinion_wire::{Error, Invocation, Reply, Result};

use super::find::checked_sum;
use super::options::{CollationOption, namespace, parse_filter, shards_of};
use crate::gather::{ShardCall, ask_shards};
use crate::placement::table_of;
use crate::request::{Request, Versions};

/// `count`; `None` where the collection is not sharded.
///
/// # Errors
/// Those of the command at its shards, and of the way there.
pub(crate) async fn count(cmd: &Invocation) -> Result<Option<Reply>> {
    let ns = namespace(cmd, "count")?;
    if table_of(&ns, Targets::Unknown).await?.is_none() {
        return Ok(None);
    }
    let reader = CommandReader::new("count", cmd.body())?;
    let query = reader.opt_doc("query")?;
    let skip = reader.opt_non_negative("skip")?.unwrap_or(0);
    let limit = reader
        .opt_whole_number("limit")?
        .filter(|limit| *limit != 0);
    let limit = match limit {
        Some(i64::MIN) => {
            return Err(Error::bad_value("limit value for count cannot be min long"));
        }
        limit => limit.map(i64::abs),
    };
    let wanted = limit.map(|limit| checked_sum(limit, skip)).transpose()?;
    let collation = CollationOption::read(&reader)?;
    let target = |table: &RoutingTable| {
        let vars = collation.variables(&Variables::default(), Some(table))?;
        shards_of(cmd, table, &*parse_filter(query, &vars)?)
    };
    let make = |call: &ShardCall<'_>| {
        let versions = Versions::of_shard(call.version);
        Request::with(cmd, cmd.db(), versions, |out| {
            if skip > 0 {
                out.append("skip", 0i32);
            }
            if let Some(wanted) = wanted {
                out.append("limit", wanted);
            }
        })
    };
    let Some(gathered) = ask_shards(cmd, &ns, target, make).await? else {
        return Ok(None);
    };
    let (_, answers) = gathered.all()?;
    let mut out = Reply::new();
    let mut total: i64 = 0;
    out.start_document("shards");
    for answer in &answers {
        let count = pinion_bson::get(answer.body(), "n").and_then(i64_exact);
        let count = count.ok_or_else(|| Error::internal("a shard's count has no number"))?;
        out.append(&answer.shard, number(count));
        total += count;
    }
    out.end();
    let total = (total - skip).max(0);
    let total = limit.map_or(total, |limit| total.min(limit));
    out.append("n", number(total));
    Ok(Some(out))
}

/// A count as MongoDB shows it: of 32 bits where that suffices.
fn number(count: i64) -> RawBsonRef<'static> {
    i32::try_from(count).map_or(RawBsonRef::Int64(count), RawBsonRef::Int32)
}
