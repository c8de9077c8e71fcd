//! `distinct` on a sharded collection: each value that any shard has, once.

use std::collections::BTreeMap;

use pinion_bson::{MAX_USER_DOCUMENT_BYTES, RawBsonRef};
use pinion_query::{Variables, parse_collation};
use pinion_sharding_protocol::{RoutingTable, Targets};
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::options::{CollationOption, at_snapshot, namespace, parse_filter, shards_of};
use crate::clock::bson_time;
use crate::gather::{ShardCall, ask_shards};
use crate::placement::table_of;
use crate::reply::passed_on;
use crate::request::{Request, Versions};

/// `distinct`; `None` where the collection is not sharded.
///
/// # Errors
/// Those of the command at its shards, and of the way there; the values are too large together.
pub(crate) async fn distinct(cmd: &Invocation) -> Result<Option<Reply>> {
    let ns = namespace(cmd, "distinct")?;
    if table_of(&ns, Targets::Unknown).await?.is_none() {
        return Ok(None);
    }
    at_snapshot(cmd, async |cmd| distinct_at(cmd, &ns).await).await
}

/// A `distinct` whose snapshot, if it asks for one, has a time.
async fn distinct_at(cmd: &Invocation, ns: &Namespace) -> Result<Option<Reply>> {
    let reader = CommandReader::new("distinct", cmd.body())?;
    // Null stands for none here; what is neither the shards refuse.
    let query = reader.value("query").and_then(|query| query.as_document());
    let collation = CollationOption::read(&reader)?;
    let target = |table: &RoutingTable| {
        let vars = collation.variables(&Variables::default(), Some(table))?;
        shards_of(cmd, table, &*parse_filter(query, &vars)?)
    };
    let make = |call: &ShardCall<'_>| Request::of(cmd, cmd.db(), Versions::of_shard(call.version));
    let Some(gathered) = ask_shards(cmd, ns, target, make).await? else {
        return Ok(None);
    };
    let (table, answers) = gathered.all()?;
    if let [only] = &answers[..] {
        return Ok(Some(passed_on(only.body())));
    }
    let collation = match collation.spec(Some(&table)) {
        Some(spec) => parse_collation(spec)?,
        None => None,
    };
    let mut found: BTreeMap<Vec<u8>, RawBsonRef<'_>> = BTreeMap::new();
    for answer in &answers {
        let Some(RawBsonRef::Array(values)) = pinion_bson::get(answer.body(), "values") else {
            return Err(Error::internal("a shard's distinct has no values"));
        };
        for value in pinion_bson::values(values) {
            let key = pinion_keystring::encode_id_in(collation.as_deref(), value).to_vec();
            found.entry(key).or_insert(value);
        }
    }
    let mut out = Reply::new();
    out.start_array("values");
    for value in found.values() {
        out.push(*value);
    }
    out.end();
    if let Some(at) = cmd.ctx.read_concern.at_cluster_time {
        out.append("atClusterTime", bson_time(at));
    }
    match out.len() > MAX_USER_DOCUMENT_BYTES {
        true => Err(Error::new(ErrorCode(17217), "distinct too big, 16mb cap")),
        false => Ok(Some(out)),
    }
}
