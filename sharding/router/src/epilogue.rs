//! What a router puts behind every reply: `$clusterTime` and `operationTime`, and the version of
//! its topology where clients are to go elsewhere.

use pinion_bson::DocBuilder;
use pinion_service::hello::append_topology_version;
use pinion_wire::idl::append_cluster_time;
use pinion_wire::{Category, ErrorCode, OpContext, ReplyEpilogue};

use crate::clock::bson_time;
use crate::cluster::Cluster;
use crate::hello::topology;
use crate::keys;

/// One core's.
pub struct RouterEpilogue;

impl ReplyEpilogue for RouterEpilogue {
    fn append(&self, ctx: Option<&OpContext>, failure: Option<ErrorCode>, reply: &mut DocBuilder) {
        let topology = topology();
        if topology.is_quiescing() && failure.is_some_and(|code| code.is(Category::SHUTDOWN)) {
            append_topology_version(topology.counter(), reply);
        }
        let time = Cluster::here().clock.time().cluster();
        // Before any node of the cluster was heard of there is no time.
        if time.is_null() {
            return;
        }
        let Some(signed) = keys::signed(ctx, time) else {
            return;
        };
        append_cluster_time(reply, &signed);
        // That of what the shards did; where no shard took part, no client waits for less.
        let done = ctx.and_then(OpContext::written_at).unwrap_or(time);
        reply.append("operationTime", bson_time(done.min(time)));
    }
}
