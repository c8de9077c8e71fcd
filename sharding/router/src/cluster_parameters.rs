//! The cluster parameters as a router has them: the config servers keep them, and it reads them
//! every 30 seconds, and behind each change that it passes on.

use pinion_bson::rawdoc;
use pinion_runtime::{Queue, is_shutdown_requested, on_all_cores, sleep, spawn};
use pinion_service::cluster_parameters::{ClusterParameters, cluster_parameters, read_stored};
use pinion_wire::{CommandClass, CommandRole, Invocation, Result};

use crate::config_reads::find_all;
use crate::limits::{PARAMETERS_RELOAD_PAUSE, SHARDS_RETRY_PAUSE};

const STORED: &str = "config.clusterParameters";

/// Reads them again, for all cores.
///
/// # Errors
/// The config servers do not answer.
pub(crate) async fn reload() -> Result<()> {
    let found = find_all(STORED, rawdoc! {}, None).await?;
    let mut parameters = ClusterParameters::default();
    // The query settings, which lie beside them, concern shards alone.
    for (name, set) in found.iter().filter_map(|found| read_stored(found)) {
        parameters.set(name, set);
    }
    on_all_cores(move |_| {
        let parameters = parameters.clone();
        async move { *cluster_parameters().borrow_mut() = parameters }
    })
    .await;
    Ok(())
}

/// Keeps them new while the process runs. Called once, on core 0.
pub(crate) fn keep_parameters() {
    spawn(Queue::Background, async {
        while !is_shutdown_requested() {
            let pause = match reload().await {
                Ok(()) => PARAMETERS_RELOAD_PAUSE,
                Err(error) => {
                    tracing::debug!(target: "SHARDING", id = 7_300_061u64, error = error.message, "The cluster parameters could not be read");
                    SHARDS_RETRY_PAUSE
                }
            };
            sleep(pause).await;
        }
    });
}

/// Reads whose commands name no time have that of the cluster parameter, here and at the shards.
/// What a `getMore` has left is kept by its cursor.
pub(crate) fn give_default_time(cmd: &mut Invocation) {
    let spec = cmd.command.spec;
    let is_read = spec.class == CommandClass::Read && spec.role != CommandRole::GetMore;
    let ctx = &mut cmd.ctx;
    if !is_read || ctx.deadline_ns.is_some() || ctx.args.max_time_ms.is_some() {
        return;
    }
    let given = cluster_parameters().borrow().default_max_time_ms();
    ctx.deadline_ns = given.map(|ms| ctx.started_ns + ms * 1_000_000);
}
