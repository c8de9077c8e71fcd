//! Sessions of a replica set: those that are in use are listed in `config.system.sessions`, from
//! which they expire, and what the writes of those that are gone left behind is removed. A task of
//! core 0 does both, on the primary. A plain set, and that of the config servers, has a list of its
//! own; the primary of a shard publishes to that of the config servers, and asks there.
//!
//! Source: sharding document, "The logical session cache".

mod list;
mod removal;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pinion_runtime::{
    CoreId, Duration, JoinHandle, LocalBoxFuture, Queue, now, on_all_cores, spawn, submit_to,
    timeout_at, wall_ms,
};
use pinion_service::interrupt::pause;
use pinion_service::limits::SESSION_TIMEOUT;
use pinion_service::node_info::is_behind_v44;
use pinion_service::parameters::parameter_changes;
use pinion_service::session_table::last_uses;
use pinion_storage::{Key, PartitionId};
use pinion_wire::idl::Lsid;
use pinion_wire::{ErrorCode, OpContext, Result};

pub use self::removal::{is_removal, removals, removals_here};
use self::removal::{remove, unused_since};
use crate::limits::{MAX_ENDED_SESSIONS, SESSION_BATCH};
use crate::parameters::replication_parameters;
use crate::placement::is_shard;
use crate::statements::load;
use crate::topology::{is_member, is_writable};

/// The task, and what it is to do. That of core 0 is the node's.
#[derive(Default)]
pub struct SessionRefresh {
    stopping: Cell<bool>,
    /// What it does now.
    running: RefCell<Option<OpContext>>,
    task: RefCell<Option<JoinHandle<()>>>,
    published: Cell<Published>,
    /// The sessions that clients of this core have ended since.
    ended: RefCell<BTreeSet<Lsid>>,
    /// Where the search for expired records continues in partitions of this core; behind the end it
    /// starts again.
    pub(super) hands: RefCell<BTreeMap<PartitionId, Key>>,
}

/// Which uses of sessions have been published.
#[derive(Clone, Copy, Default)]
struct Published {
    /// Those up to this time, in milliseconds since 1970.
    until_ms: i64,
    /// The list that has them is that of a cluster.
    in_cluster: bool,
}

impl Published {
    /// From when on uses are to be published: all of them, where another list has the earlier ones.
    fn next_from(self, in_cluster: bool) -> i64 {
        match self.in_cluster == in_cluster {
            true => self.until_ms,
            false => 0,
        }
    }
}

/// This core's part of the refresh of sessions.
pub(crate) fn session_refresh() -> Rc<SessionRefresh> {
    pinion_runtime::core_local()
}

impl SessionRefresh {
    /// Notes sessions that clients have ended. Those that are too many expire.
    pub(crate) fn ended(&self, lsids: &[Lsid]) {
        let mut ended = self.ended.borrow_mut();
        let room = MAX_ENDED_SESSIONS.saturating_sub(ended.len());
        ended.extend(lsids.iter().take(room));
    }
}

/// Begins. Called on core 0.
pub fn start() {
    let task = spawn(Queue::Background, keep());
    *session_refresh().task.borrow_mut() = Some(task);
}

/// Ends the task; when this returns it writes nothing any more. Called on core 0.
pub async fn stop() {
    let refresh = &session_refresh();
    refresh.stopping.set(true);
    if let Some(running) = &*refresh.running.borrow() {
        running.kill(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
    }
    parameter_changes().0.notify_all();
    let task = refresh.task.borrow_mut().take();
    if let Some(task) = task {
        // One that was dropped has ended too.
        let _ = task.await;
    }
}

/// Waits as long as the parameter says, however often it is set meanwhile.
async fn rest() {
    let began = now();
    loop {
        let changes = parameter_changes();
        let changed = changes.0.notified();
        let ms = replication_parameters().session_refresh_ms.unsigned_abs();
        let due = began + Duration::from_millis(ms.into());
        if session_refresh().stopping.get() || now() >= due {
            return;
        }
        // Either way the time that is left is computed again.
        let _ = timeout_at(due, changed).await;
    }
}

async fn keep() {
    let refresh = &session_refresh();
    loop {
        rest().await;
        if refresh.stopping.get() {
            return;
        }
        let done = async {
            publish().await.map_err(|error| ("refresh", error))?;
            // What has not been published would count as over.
            reap().await.map_err(|error| ("reap", error))
        };
        if let Err((what, error)) = done.await
            && !refresh.stopping.get()
        {
            tracing::warn!(
                target: "CONTROL",
                id = 20_711u64,
                ctx = "LogicalSessionCacheRefresh",
                what,
                error = error.message.as_str(),
                "Failed to refresh sessions, will try again at the next refresh interval"
            );
        }
    }
}

/// Whether this node publishes sessions, and removes what they left behind. In a cluster of MongoDB
/// 4.4 the list is a sharded collection, of which a shard has a part at most. So it does not know
/// which sessions are over, and removes nothing.
fn keeps_sessions() -> bool {
    is_member() && is_writable() && !(is_shard() && is_behind_v44())
}

/// Runs work of the node's own that can be stopped, on core 0.
async fn on_core_0<Fut: Future<Output = Result<()>> + 'static>(
    work: impl FnOnce(OpContext) -> Fut + Send + 'static,
) -> Result<()> {
    submit_to(CoreId(0), Queue::Background, move || async move {
        if !keeps_sessions() || session_refresh().stopping.get() {
            return Ok(());
        }
        let ctx = OpContext::internal(
            0,
            pinion_command::row("refreshSessions"),
            "config",
            now().as_nanos(),
        );
        *session_refresh().running.borrow_mut() = Some(ctx.clone());
        let done = work(ctx).await;
        *session_refresh().running.borrow_mut() = None;
        done
    })
    .await
}

/// Publishes to the set, or to the cluster, which sessions are in use, and which were ended.
///
/// # Errors
/// This node is no primary any more, or is stopped; config servers that are needed do not answer.
pub(crate) async fn publish() -> Result<()> {
    on_core_0(|ctx| async move { publish_with(&ctx).await }).await
}

async fn publish_with(ctx: &OpContext) -> Result<()> {
    let refresh = &session_refresh();
    list::prepare(ctx).await?;
    let in_cluster = is_shard();
    let (from_ms, until_ms) = (refresh.published.get().next_from(in_cluster), wall_ms());
    let mut used = last_uses().await;
    used.retain(|(_, used_ms)| *used_ms >= from_ms);
    for batch in used.chunks(SESSION_BATCH) {
        list::note(ctx, batch).await?;
    }
    let ended = on_all_cores(|_| async { state_ended() }).await;
    let ended: Vec<Lsid> = ended.into_iter().flatten().collect();
    for (done, batch) in ended.chunks(SESSION_BATCH).enumerate() {
        if let Err(error) = list::forget(ctx, batch).await {
            refresh.ended(&ended[done * SESSION_BATCH..]);
            return Err(error);
        }
    }
    refresh.published.set(Published {
        until_ms,
        in_cluster,
    });
    Ok(())
}

fn state_ended() -> BTreeSet<Lsid> {
    session_refresh().ended.take()
}

/// Removes what sessions have left behind that have not written for long and are not in use.
///
/// # Errors
/// This node is no primary any more, or is stopped; config servers that are needed do not answer.
pub(crate) async fn reap() -> Result<()> {
    on_core_0(|ctx| async move { reap_with(&ctx).await }).await
}

fn reap_with(ctx: &OpContext) -> LocalBoxFuture<'_, Result<()>> {
    Box::pin(async move {
        if session_refresh().published.get().in_cluster != is_shard() {
            // The list may lack sessions that are in use here.
            return Ok(());
        }
        let before_ms = wall_ms() - SESSION_TIMEOUT.as_millis() as i64;
        // The children of a session come one behind the other.
        let mut parent = None;
        let unused = unused_since(ctx, before_ms).await?;
        for batch in unused.chunks(SESSION_BATCH) {
            let parents: BTreeSet<Lsid> = batch.iter().map(Lsid::parent).collect();
            let listed = list::listed(ctx, parents).await?;
            for lsid in batch {
                pause(ctx).await?;
                let is_over = !listed.contains(&lsid.parent());
                if is_over || is_superseded(lsid, &mut parent).await? {
                    remove(ctx, lsid, before_ms).await?;
                }
            }
        }
        Ok(())
    })
}

/// Whether a session executed a retryable write of its parent, which has gone on since. `known` is
/// the parent that was asked last, and its number then: what is over stays so.
async fn is_superseded(lsid: &Lsid, known: &mut Option<(Lsid, i64)>) -> Result<bool> {
    let Some(number) = lsid.retryable_number() else {
        return Ok(false);
    };
    let parent = lsid.parent();
    let latest = match known {
        Some((known, latest)) if *known == parent => *latest,
        _ => load(&parent).await?.active().number,
    };
    *known = Some((parent, latest));
    Ok(latest > number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_list_is_given_all_uses() {
        let published = Published {
            until_ms: 5,
            in_cluster: false,
        };
        assert_eq!(Published::default().next_from(false), 0);
        assert_eq!(published.next_from(false), 5);
        // The set has become a shard.
        assert_eq!(published.next_from(true), 0);
    }
}
