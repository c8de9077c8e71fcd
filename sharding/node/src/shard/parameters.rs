//! `_shardsvrSetClusterParameter`: a shard gets a cluster parameter, or the query settings, from
//! the config servers.

use pinion_bson::RawBsonRef;
use pinion_exec::cluster_parameter_store::store;
use pinion_exec::commands::acknowledge;
use pinion_service::cluster_parameters::{known, parse};
use pinion_service::query_settings::STORED_AS;
use pinion_sharding_protocol::config::{SettingsChange, parameter};
use pinion_storage::storage;
use pinion_wire::{Invocation, Reply, Result};

use super::commands::of_shard;
use super::databases::membership;
use crate::part::on_core_0;
use crate::user_writes::context;

/// `_shardsvrSetClusterParameter: {<name>: <value>}, clusterParameterTime`. A value that is not
/// newer than the stored one changes nothing.
pub(crate) async fn set_cluster_parameter(cmd: Invocation) -> Result<Reply> {
    membership(&*of_shard()?)?;
    let reader = cmd.reader()?;
    let change = parameter(&reader, cmd.name())?;
    reader.finish()?;
    let SettingsChange::Parameter { name, time, value } = change else {
        unreachable!("a parameter was read");
    };
    if name != STORED_AS {
        parse(known(&name)?, RawBsonRef::Document(&value))?;
    }
    on_core_0(&cmd.ctx, move || store(context(), name, value, Some(time))).await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}
