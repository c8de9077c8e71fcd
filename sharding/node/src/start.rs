//! The beginning and the end of a node's part in its cluster.

use std::rc::Rc;

use pinion_exec::cluster_time::ConfigServerTerm;
use pinion_exec::placement::set_cluster_node;
use pinion_runtime::{CoreId, LocalBoxFuture, core_id, on_all_cores};
use pinion_server::{Introduction, PoolLimits};
use pinion_service::hello::MAX_WIRE_VERSION;
use pinion_service::node_info::{ClusterRole, is_behind_v44, node_info};
use pinion_sharding_protocol::Form;
use pinion_sharding_router::{HostsOptions, install_hosts};
use pinion_wire::Result;

use crate::limits::{IDLE_CONNECTIONS, KNOWN_HOSTS, MAX_CONNECTIONS};
use crate::part::{Part, any_part};
use crate::planted::PlantedFault;
use crate::seam::Seam;
use crate::{config, shard, times};

fn hosts_options() -> HostsOptions {
    HostsOptions {
        introduction: Introduction {
            name: "NetworkInterfacePinion",
            version: env!("CARGO_PKG_VERSION"),
            max_wire_version: MAX_WIRE_VERSION,
        },
        auth: node_info().options.member_auth.clone(),
        limits: PoolLimits {
            connections: MAX_CONNECTIONS,
            idle: IDLE_CONNECTIONS,
            hosts: KNOWN_HOSTS,
            ..PoolLimits::default()
        },
        server_selection_timeout: pinion_sharding_router::limits::SERVER_SELECTION_TIMEOUT,
    }
}

/// Makes every core part of a shard or a config server, where the node was started as one, before
/// it serves clients. Called on core 0 of an open node.
///
/// # Errors
/// What a shard has kept of its cluster cannot be read, or is not of use.
pub fn start(planted_fault: PlantedFault) -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        assert!(core_id() == CoreId(0), "a node is started on core 0");
        let role = node_info().cluster_role;
        if role == ClusterRole::None {
            return Ok(());
        }
        on_all_cores(move |_| async move {
            let form = match is_behind_v44() {
                true => Form::Mongo44,
                false => Form::Own,
            };
            if form == Form::Mongo44 {
                pinion_runtime::set_core_local(Rc::new(ConfigServerTerm::default()));
            }
            let part = Part::new(role, planted_fault).of_form(form);
            pinion_runtime::set_core_local(Rc::new(part));
            install_hosts(hosts_options());
        })
        .await;
        on_all_cores(move |_| async move {
            set_cluster_node(Rc::new(Seam));
            if role == ClusterRole::Shard {
                shard::observe();
            }
        })
        .await;
        if role == ClusterRole::Config {
            config::follow_topology();
            return Ok(());
        }
        times::restore().await?;
        shard::load().await?;
        shard::list_collections().await?;
        if any_part().is_some_and(|part| part.membership().is_none()) {
            tracing::warn!(target: "SHARDING", id = 22_074u64, "Started with --shardsvr, but no shardIdentity document was found on disk. This most likely means this server has not yet been added to a sharded cluster");
        }
        Ok(())
    })
}

/// Ends what the node's part does by itself; when this returns it writes nothing any more. Called
/// on core 0.
pub fn stop() -> LocalBoxFuture<'static, ()> {
    Box::pin(async {
        if let Some(part) = any_part() {
            part.core_0.stop().await;
        }
    })
}
