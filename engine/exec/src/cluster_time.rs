//! Cluster time on a member of a replica set: what requests and replies say of it.
//!
//! The sequencer allots timestamps above every cluster time that the node's vector clock has heard
//! of. Where members have a key file clients can only hand on what a member has signed; where they
//! have none every client is trusted and, as in MongoDB without authentication, a member signs with
//! zeros. Members are always trusted.
//!
//! Nodes of a sharded cluster send each other the config and the topology time too, as they are:
//! they are taken from, and sent to, trusted connections of nodes alone, never clients. Source:
//! sharding document, "The vector clock and causal consistency".

use std::cell::Cell;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_clock::{AdvanceError, Gossip, SignedTime, Timestamp, VectorTime};
use pinion_service::hello::append_topology_version;
use pinion_service::members::requires_members;
use pinion_service::node_info::{ClusterRole, node_info};
use pinion_storage::storage;
use pinion_wire::idl::{ReadConcernLevel, append_cluster_time};
use pinion_wire::{Category, Error, ErrorCode, OpContext, ReplyEpilogue, Result};

use crate::parameters::parameters;
use crate::time_keys;
use crate::topology::{ReplicaSet, is_member, replica_set};

/// Takes in the cluster time that a request gives. A standalone passes over it. Where it was signed
/// with a key that this node does not know it is returned, for [`learn_signed`].
///
/// # Errors
/// `TimeProofMismatch` for one that no member has signed, `ClusterTimeFailsRateLimiter` for a time
/// too far ahead of the wall clock, 40482 for one that no write could follow.
pub(crate) fn learn(ctx: &OpContext) -> Result<Option<SignedTime>> {
    if !is_member() {
        return Ok(None);
    }
    if let Some(gossip) = gossip_of_node(ctx) {
        return take_in(gossip).map(|()| None);
    }
    let Some(claimed) = ctx.args.cluster_time else {
        return Ok(None);
    };
    if claimed.time <= storage().cluster_time() {
        return Ok(None);
    }
    if !ctx.client.is_trusted() && requires_members() && !time_keys::is_genuine(&claimed)? {
        // No client is kept from examining a member that does not know the set's time.
        let is_passed_over = ctx.command.before_login;
        return Ok((!is_passed_over).then_some(claimed));
    }
    take_in(of_cluster(&claimed)).map(|()| None)
}

/// All times that another node of the cluster sends. `None` where it sends none but the cluster
/// time, and where the sender or this node is no node of a cluster.
fn gossip_of_node(ctx: &OpContext) -> Option<Gossip> {
    let routing = ctx.args.routing.as_deref()?;
    if routing.config_time.is_none() && routing.topology_time.is_none() || !exchanges_all(ctx) {
        return None;
    }
    let time = |sent: Option<pinion_bson::Timestamp>| {
        sent.map(|sent| Timestamp::new(sent.time, sent.increment))
    };
    let config = time(routing.config_time);
    let cluster = ctx.args.cluster_time.map(|signed| signed.time);
    let cluster = match routing.config_term {
        None => cluster,
        // MongoDB 4.4's routers look at their two clocks one after the other.
        Some(term) => {
            if let Some(state) = pinion_runtime::try_core_local::<ConfigServerTerm>() {
                state.0.set(state.0.get().max(term));
            }
            cluster.max(config)
        }
    };
    Some(Gossip {
        cluster,
        config,
        topology: time(routing.topology_time),
    })
}

/// The newest term of the config servers that a request has named, on a shard behind MongoDB 4.4.
#[derive(Default)]
pub struct ConfigServerTerm(Cell<i64>);

/// What a shard behind MongoDB 4.4 puts behind its replies to other nodes of the cluster: how much
/// of the config servers it has read.
fn append_config_server_state(config: Timestamp, term: i64, reply: &mut DocBuilder) {
    if config.is_null() {
        return;
    }
    reply.start_document("$configServerState");
    reply.start_document("opTime");
    reply.append("ts", bson_time(config)).append("t", term);
    reply.end().end();
}

/// Whether this node and the sender are nodes of a sharded cluster, and the sender has proved to be
/// one where it has to.
fn exchanges_all(ctx: &OpContext) -> bool {
    node_info().cluster_role != ClusterRole::None
        && ctx.client.says_internal()
        && (ctx.client.is_trusted() || !requires_members())
}

/// Takes in a cluster time whose key this node did not know.
///
/// # Errors
/// `KeyNotFound` if it does not come to know it, and those of [`learn`].
pub(crate) async fn learn_signed(ctx: &OpContext, claimed: &SignedTime) -> Result<()> {
    time_keys::wait_genuine(ctx, claimed).await?;
    take_in(of_cluster(claimed))
}

fn of_cluster(claimed: &SignedTime) -> Gossip {
    Gossip {
        cluster: Some(claimed.time),
        ..Gossip::default()
    }
}

/// Takes in what another node of the cluster has answered, or what was kept of it.
///
/// # Errors
/// Those of a cluster time in a request; a config time above the cluster time, or a topology time
/// above the config time.
pub fn take_in(gossip: Gossip) -> Result<()> {
    let now_secs = (pinion_runtime::wall_ms() / 1000) as u32;
    let max_drift_secs = parameters().borrow().max_clock_drift_secs;
    let learned = storage().learn_times(gossip, now_secs, max_drift_secs);
    learned.map_err(refused)
}

fn refused(error: AdvanceError) -> Error {
    let code = match error {
        AdvanceError::TooFarAhead { .. } => ErrorCode::CLUSTER_TIME_FAILS_RATE_LIMITER,
        AdvanceError::BeyondMaximum { .. } | AdvanceError::OutOfOrder { .. } => ErrorCode(40482),
    };
    Error::new(code, error.to_string())
}

/// What a member puts behind every reply: `topologyVersion` where the client has to look for
/// another member, `$clusterTime` and `operationTime`.
pub(crate) struct MemberEpilogue;

impl ReplyEpilogue for MemberEpilogue {
    fn append(&self, ctx: Option<&OpContext>, failure: Option<ErrorCode>, reply: &mut DocBuilder) {
        let Some(set) = replica_set() else {
            return;
        };
        // A driver ignores a topology version that it has seen before. A shutdown error carries a
        // version only when the node really shuts down: a fail point's error must have the driver
        // clear its connections, although `hello` reports nothing new.
        let goes_away =
            pinion_runtime::is_shutdown_requested() || set.view().quiesces_until_ms.is_some();
        let moves_clients = match goes_away {
            true => Category::NOT_PRIMARY.and(Category::SHUTDOWN),
            false => Category::NOT_PRIMARY,
        };
        if failure.is_some_and(|code| code.is(moves_clients)) {
            append_topology_version(set.view().counter, reply);
        }
        // The operation's time first: it is not above the cluster time that is read after it.
        let operation_time = operation_time(&*set, ctx);
        // A client could not ask for what is after no time at all.
        if operation_time.is_null() {
            return;
        }
        // Without a key to sign it with the time is not sent: no client could use it.
        let time = storage().vector_time();
        let Some(signed) = time_keys::signed(ctx, time.cluster()) else {
            return;
        };
        append_cluster_time(reply, &signed);
        if ctx.is_some_and(exchanges_all) {
            match pinion_runtime::try_core_local::<ConfigServerTerm>() {
                None => append_node_times(&time, reply),
                Some(term) => append_config_server_state(time.config(), term.0.get(), reply),
            }
        }
        reply.append("operationTime", bson_time(operation_time));
    }
}

/// What a node sends beside the cluster time to other nodes of its cluster, once it knows it.
pub fn append_node_times(time: &VectorTime, out: &mut DocBuilder) {
    for (name, time) in [
        ("$configTime", time.config()),
        ("$topologyTime", time.topology()),
    ] {
        if !time.is_null() {
            out.append(name, bson_time(time));
        }
    }
}

/// The time of what the operation wrote, or of the newest state that it could read.
fn operation_time(set: &dyn ReplicaSet, ctx: Option<&OpContext>) -> Timestamp {
    if let Some(written) = ctx.and_then(OpContext::written_at) {
        return written;
    }
    let level = ctx.and_then(|ctx| ctx.read_concern.level);
    match level {
        Some(ReadConcernLevel::Majority) => set.commit_point().ts.min(storage().cluster_time()),
        _ => storage().visible(),
    }
}

/// A timestamp as a BSON value.
pub fn bson_time(ts: Timestamp) -> RawBsonRef<'static> {
    RawBsonRef::Timestamp(pinion_bson::Timestamp {
        time: ts.secs(),
        increment: ts.inc(),
    })
}
