//! The sessions in use, as the config servers of this shard list them.
//!
//! Every router and every shard lists those that were used on it. One that is not listed has ended,
//! or has expired by the index on `lastUse`.
//!
//! Source: sharding document, "The logical session cache".

use std::collections::BTreeSet;

use pinion_bson::DocBuilder;
use pinion_sharding_router::session_list::{
    SESSION_LIST, append_removals, append_uses, listed_filter, listed_in,
};
use pinion_wire::Result;
use pinion_wire::idl::Lsid;

use crate::config_servers::{change_config, read_config_all};
use crate::part::Membership;
use crate::v44::check_own_cluster;

/// Lists sessions as used, each with the time of its last use in milliseconds since 1970, and
/// removes ended ones. A majority of the config servers has it when this returns.
///
/// # Errors
/// As of [`change_config`]; `CommandNotSupported` behind MongoDB 4.4.
pub(crate) async fn publish(
    shard: &Membership,
    used: &[(Lsid, i64)],
    ended: &[Lsid],
) -> Result<()> {
    check_own_cluster(SESSION_LIST)?;
    if !used.is_empty() {
        let mut command = DocBuilder::new();
        append_uses(&mut command, used);
        command.append("$db", "config");
        change_config(shard, command.finish()).await?;
    }
    if !ended.is_empty() {
        let mut command = DocBuilder::new();
        append_removals(&mut command, ended);
        command.append("$db", "config");
        change_config(shard, command.finish()).await?;
    }
    Ok(())
}

/// Those of these sessions that are listed. All that is found is read, whatever number of replies
/// that takes: a session that is left out would lose what it relies on.
///
/// # Errors
/// As of [`read_config_all`]; a document that was found names no session; `CommandNotSupported`
/// behind MongoDB 4.4, where the list is a sharded collection.
pub(crate) async fn listed(shard: &Membership, lsids: &[Lsid]) -> Result<BTreeSet<Lsid>> {
    check_own_cluster(SESSION_LIST)?;
    let found = read_config_all(shard, SESSION_LIST, &listed_filter(lsids), None).await?;
    listed_in(&found)
}
