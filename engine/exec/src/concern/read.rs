//! Read concerns on a member: what a command reads, and the waits in front of it and behind it.

use pinion_bson::rawdoc;
use pinion_catalog::from_fatal;
use pinion_clock::{OpTime, Timestamp};
use pinion_runtime::{CoreId, Queue, submit_to, timeout};
use pinion_service::interrupt::interruptible;
use pinion_service::metrics::Gauge;
use pinion_service::transaction_checks::check_level;
use pinion_storage::storage;
use pinion_wire::idl::{ReadConcern, ReadConcernLevel};
use pinion_wire::{Error, ErrorCode, Invocation, MemberState, OpContext, Result};

use super::check_stages;
use crate::concern::default_concerns;
use crate::limits::NOOP_PATIENCE;
use crate::topology::{ReplicaSet, SetView, replica_set};

/// Refuses what no member reads, and what this one cannot read now.
pub(super) fn check(cmd: &Invocation, concern: &ReadConcern, view: &SetView) -> Result<()> {
    let invalid = |message: &str| Err(Error::new(ErrorCode::INVALID_OPTIONS, message));
    let level = concern.level.unwrap_or(ReadConcernLevel::Local);
    if concern.after_cluster_time.is_some() {
        if concern.after_op_time.is_some() {
            return invalid("Can not specify both afterClusterTime and afterOpTime");
        }
        // The one would wait for what the other promises not to wait for; a linearizable read is
        // causally consistent anyway.
        if matches!(
            level,
            ReadConcernLevel::Available | ReadConcernLevel::Linearizable
        ) {
            return invalid(
                "afterClusterTime field can be set only if level is equal to majority, local, or snapshot",
            );
        }
    }
    if concern.after_op_time.is_some() && level == ReadConcernLevel::Snapshot {
        return invalid("afterOpTime field cannot be set if level is equal to snapshot");
    }
    check_stages(cmd, concern)?;
    let waits = concern.after_cluster_time.is_some() || concern.at_cluster_time.is_some();
    if waits && matches!(view.state, MemberState::Startup | MemberState::Startup2) {
        return Err(Error::new(
            ErrorCode::NOT_PRIMARY_OR_SECONDARY,
            format!(
                "cannot wait for a cluster time in state {}",
                view.state.name()
            ),
        ));
    }
    if level == ReadConcernLevel::Linearizable {
        if concern.after_op_time.is_some() {
            return Err(Error::failed_to_parse(
                "afterOpTime not compatible with linearizable read concern",
            ));
        }
        if !view.writable {
            return Err(Error::new(
                ErrorCode::NOT_WRITABLE_PRIMARY,
                "cannot satisfy linearizable read concern on non-primary node",
            ));
        }
    }
    Ok(())
}

/// Completes the read concern of a command: by the default, and the time of a snapshot. Returns
/// once that can be read here.
///
/// # Errors
/// `InvalidOptions` for a cluster time that is yet to come, `SnapshotUnavailable` while nothing is
/// known to be committed; the operation is interrupted; storage has failed.
pub(super) async fn prepare(cmd: &mut Invocation) -> Result<()> {
    let Some(set) = replica_set() else {
        return Ok(());
    };
    let mut concern = cmd.ctx.read_concern;
    if concern.is_empty() && takes_default(cmd) {
        concern.level = default_concerns().get().await.read;
    }
    if concern.is_empty() {
        return Ok(());
    }
    let committed = matches!(
        concern.level,
        Some(ReadConcernLevel::Majority | ReadConcernLevel::Snapshot)
    );
    wait_until_there(&cmd.ctx, &*set, &concern, committed).await?;
    if concern.level == Some(ReadConcernLevel::Majority) && set.commit_point().is_null() {
        // A node that has just started learns soon what the others hold.
        let any = Timestamp::MIN.next();
        interruptible(&cmd.ctx, set.wait_committed(any)).await??;
    }
    if concern.level == Some(ReadConcernLevel::Snapshot) && concern.at_cluster_time.is_none() {
        let committed = set.commit_point();
        if committed.is_null() {
            return Err(Error::new(
                ErrorCode::SNAPSHOT_UNAVAILABLE,
                "No committed OpTime for snapshot read",
            ));
        }
        concern.at_cluster_time = Some(committed.ts.min(storage().visible()));
    }
    cmd.ctx.read_concern = concern;
    Ok(())
}

/// Completes the read concern of a transaction, that of its first statement, and returns once what
/// it reads is there. What else it reads need not be committed: it is when the transaction's commit
/// is.
///
/// # Errors
/// `InvalidOptions`; the operation is interrupted; storage has failed.
pub(crate) async fn prepare_transaction(cmd: &Invocation) -> Result<ReadConcern> {
    let mut concern = cmd.ctx.args.read_concern.unwrap_or_default();
    if concern.is_empty() {
        concern.level = default_concerns().get().await.read;
    }
    check_level(concern.level)?;
    if let Some(set) = replica_set() {
        let committed = concern.at_cluster_time.is_some();
        wait_until_there(&cmd.ctx, &*set, &concern, committed).await?;
    }
    Ok(concern)
}

/// Whether the default read concern is that of a command that names none.
fn takes_default(cmd: &Invocation) -> bool {
    super::has_read_concern(cmd.command.spec)
        && cmd.ctx.args.autocommit.is_none()
        && !cmd.ctx.client.is_internal()
}

async fn wait_until_there(
    ctx: &OpContext,
    set: &dyn ReplicaSet,
    concern: &ReadConcern,
    committed: bool,
) -> Result<()> {
    if let Some(OpTime { ts, .. }) = concern.after_op_time {
        return wait_for(ctx, set, ts, committed).await;
    }
    let named = concern
        .after_cluster_time
        .map(|time| ("afterClusterTime", time));
    let named = named.or(concern.at_cluster_time.map(|time| ("atClusterTime", time)));
    let Some((field, time)) = named else {
        return Ok(());
    };
    let current = storage().cluster_time();
    if time > current {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "readConcern {field} value must not be greater than the current clusterTime. Requested clusterTime: \
                 {time}; current clusterTime: {current}"
            ),
        ));
    }
    // No other write will reach that time: it was received, and is not of a write of this set.
    if storage().last_allotted() < time {
        let written = match set.view().writable {
            true => interruptible(ctx, set.write_noop("waiting for clusterTime")).await?,
            false => interruptible(ctx, note_at_primary(time)).await?,
        };
        if let Err(error) = written {
            tracing::info!(target: "REPL", id = 20_990u64, error = %error, "Failed noop write");
        }
    }
    wait_for(ctx, set, time, committed).await
}

/// Has the primary write an entry that changes nothing, unless what it has written reaches the time
/// soon.
async fn note_at_primary(time: Timestamp) -> Result<Timestamp> {
    if timeout(NOOP_PATIENCE, storage().wait_visible(time))
        .await
        .is_ok()
    {
        return Ok(time);
    }
    let asked = submit_to(CoreId(0), Queue::Foreground, move || async move {
        let limit = pinion_bson::Timestamp {
            time: time.secs(),
            increment: time.inc(),
        };
        let note = rawdoc! {
            "appendOplogNote": 1, "maxClusterTime": limit,
            "data": { "noop write for afterClusterTime read concern": 1 }, "$db": "admin",
        };
        let set = replica_set().expect("asked of a member alone");
        set.run_on_primary(note).await
    });
    match asked.await {
        // It has written something else.
        Err(error) if error.code != ErrorCode::STALE_CLUSTER_TIME => Err(error),
        _ => Ok(time),
    }
}

/// Waits until everything up to `ts` can be read here and, if the read concern requires it, is
/// committed.
async fn wait_for(
    ctx: &OpContext,
    set: &dyn ReplicaSet,
    ts: Timestamp,
    committed: bool,
) -> Result<()> {
    let _waiting = Gauge::up(|counters| &counters.waiting_for_op_time);
    interruptible(ctx, storage().wait_visible(ts))
        .await?
        .map_err(from_fatal)?;
    if committed && set.commit_point().ts < ts {
        interruptible(ctx, set.wait_committed(ts)).await??;
    }
    Ok(())
}

/// Returns once it is certain that a linearizable read was made on the only primary: a write behind
/// it is committed.
///
/// # Errors
/// `NotWritablePrimary` when the node is no primary any more; the operation is interrupted.
pub(crate) async fn confirm(ctx: &OpContext, concern: &ReadConcern) -> Result<()> {
    if concern.level != Some(ReadConcernLevel::Linearizable) {
        return Ok(());
    }
    let set = replica_set().expect("asked of a member alone");
    if !set.view().writable {
        return Err(Error::new(
            ErrorCode::NOT_WRITABLE_PRIMARY,
            "No longer primary when waiting for linearizable read concern",
        ));
    }
    let ts = interruptible(ctx, set.write_noop("linearizable read")).await??;
    interruptible(ctx, set.wait_committed(ts)).await?
}
