//! `hello` and `isMaster`, as a standalone and as a member of a replica set answer them.

use pinion_bson::rawdoc;
use pinion_runtime::sleep;
use pinion_service::hello::{Greeting, append_topology_version};
use pinion_service::interrupt::interruptible;
use pinion_service::metrics::Gauge;
use pinion_service::node_info::{ClusterRole, node_info};
use pinion_service::ops::is_of_client;
use pinion_wire::{ClientInfo, Error, ErrorCode, Invocation, Reply, Result};

use super::status_member::append_member;
use crate::topology::{ReplicaSet, SetView, replica_set};

/// What a config server reports as `configsvr`: it is a member of a replica set.
const CONFIG_SERVER_MODE: i32 = 2;

/// `hello`.
pub(crate) async fn hello(cmd: Invocation) -> Result<Reply> {
    answer(&cmd, "isWritablePrimary").await
}

/// `isMaster` and `ismaster`.
pub(crate) async fn is_master(cmd: Invocation) -> Result<Reply> {
    answer(&cmd, "ismaster").await
}

async fn answer(cmd: &Invocation, role: &str) -> Result<Reply> {
    let greeting = Greeting::read(cmd)?;
    let set = replica_set();
    await_change(cmd, &greeting, set.as_deref()).await?;
    if let Some(set) = &set {
        check_stays(&set.view(), &cmd.ctx.client)?;
    }
    let mut out = Reply::new();
    greeting.append_beginning(&mut out);
    let counter = match &set {
        Some(set) => {
            let view = set.view();
            append_topology_version(view.counter, &mut out);
            append_member(&mut out, &view, &set.last_write(), role);
            view.counter
        }
        None => {
            out.append(role, true);
            append_topology_version(0, &mut out);
            0
        }
    };
    if node_info().cluster_role == ClusterRole::Config {
        out.append("configsvr", CONFIG_SERVER_MODE);
    }
    greeting.append_end(cmd, counter, &mut out).await?;
    Ok(out)
}

/// Sends clients of a node that is about to end to other members. Members still find it: it votes
/// for its successor.
///
/// # Errors
/// `ShutdownInProgress`, with the time that is left.
fn check_stays(view: &SetView, client: &ClientInfo) -> Result<()> {
    let Some(until_ms) = view.quiesces_until_ms.filter(|_| is_of_client(client)) else {
        return Ok(());
    };
    let now_ms = pinion_runtime::now().as_nanos() / 1_000_000;
    let left_ms = i64::try_from(until_ms.saturating_sub(now_ms)).unwrap_or(i64::MAX);
    let error = Error::new(
        ErrorCode::SHUTDOWN_IN_PROGRESS,
        "The server is in quiesce mode and will shut down",
    );
    Err(error.with_extra(rawdoc! { "remainingQuiesceTimeMillis": left_ms }))
}

/// Waits as long as the client allows for another topology than it knows. A standalone has no
/// other.
async fn await_change(
    cmd: &Invocation,
    greeting: &Greeting,
    set: Option<&dyn ReplicaSet>,
) -> Result<()> {
    let current = set.map_or(0, |set| set.view().counter);
    let Some(limit) = greeting.wait_for_change(current)? else {
        return Ok(());
    };
    let _waiting = Gauge::up(|counters| &counters.awaiting_topology);
    match set {
        None => interruptible(&cmd.ctx, sleep(limit)).await,
        Some(set) => {
            let changed = pinion_runtime::timeout(limit, set.wait_changed(current));
            interruptible(&cmd.ctx, changed).await.map(drop)
        }
    }
}
