//! Sessions of a replica set: those that are in use are listed in `config.system.sessions`, from
//! which they expire, and what the writes of those that are gone left behind is removed. A task of
//! core 0 does both, on the primary.
//!
//! Source: sharding document, "The logical session cache".

mod removal;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocumentBuf, rawdoc};
use pinion_catalog::{
    append_lsid, core_catalog, create_indexes, from_read_error, parse_index_spec, session_key,
};
use pinion_query::Matcher;
use pinion_runtime::{
    CoreId, Duration, JoinHandle, LocalBoxFuture, Queue, now, on_all_cores, spawn, submit_to,
    timeout_at, wall_ms,
};
use pinion_service::interrupt::pause;
use pinion_service::limits::SESSION_TIMEOUT;
use pinion_service::parameters::parameter_changes;
use pinion_service::session_table::last_uses;
use pinion_storage::{Key, PartitionId, ReadAt, storage};
use pinion_wire::idl::{Lsid, Namespace};
use pinion_wire::{ErrorCode, OpContext, Result};

pub use self::removal::{is_removal, removals, removals_here};
use self::removal::{remove, unused_since};
use crate::acquire::acquire_write;
use crate::limits::MAX_ENDED_SESSIONS;
use crate::parameters::{parameters, replication_parameters};
use crate::placement::is_shard;
use crate::statements::load;
use crate::topology::{is_member, is_writable};
use crate::write::{Change, ModifyOutcome, ModifyStatement, run, upsert};

/// Where sessions are known to the whole set.
const SESSIONS: &str = "config.system.sessions";
const TTL_INDEX: &str = "lsidTTLIndex";

/// The task, and what it is to do. That of core 0 is the node's.
#[derive(Default)]
pub struct SessionRefresh {
    stopping: Cell<bool>,
    /// What it does now.
    running: RefCell<Option<OpContext>>,
    task: RefCell<Option<JoinHandle<()>>>,
    /// Uses up to this time are published, in milliseconds since 1970.
    published_ms: Cell<i64>,
    /// The sessions that clients of this core have ended since.
    ended: RefCell<BTreeSet<Lsid>>,
    /// Where the search for expired records continues in partitions of this core; behind the end it
    /// starts again.
    pub(super) hands: RefCell<BTreeMap<PartitionId, Key>>,
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
        for (what, result) in [("refresh", publish().await), ("reap", reap().await)] {
            if let Err(error) = result
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
}

/// Whether this node keeps the sessions of a set. Those of a cluster are its config servers': a
/// shard neither lists them nor knows which are over, so it keeps what their writes left behind.
fn is_primary() -> bool {
    is_member() && is_writable() && !is_shard()
}

/// Runs work of the node's own that can be stopped, on core 0.
async fn on_core_0<Fut: Future<Output = Result<()>> + 'static>(
    work: impl FnOnce(OpContext) -> Fut + Send + 'static,
) -> Result<()> {
    submit_to(CoreId(0), Queue::Background, move || async move {
        if !is_primary() || session_refresh().stopping.get() {
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

/// Publishes to the set which sessions are in use, and which were ended.
///
/// # Errors
/// This node is no primary any more, or is stopped.
pub(crate) async fn publish() -> Result<()> {
    on_core_0(|ctx| async move { publish_with(&ctx).await }).await
}

async fn publish_with(ctx: &OpContext) -> Result<()> {
    let ns = Namespace::parse(SESSIONS)?;
    ensure_collection(ctx, &ns).await?;
    let from_ms = session_refresh().published_ms.get();
    let until_ms = wall_ms();
    for (lsid, used_ms) in last_uses().await {
        if used_ms < from_ms {
            continue;
        }
        pause(ctx).await?;
        let mut document = document(&lsid);
        let date = DateTime::from_millis(used_ms);
        document.append("lastUse", RawBsonRef::DateTime(date));
        upsert(ctx, ns.clone(), named(&lsid), &document.finish()).await?;
    }
    let ended = on_all_cores(|_| async { state_ended() }).await;
    for lsid in ended.into_iter().flatten() {
        pause(ctx).await?;
        forget(ctx, ns.clone(), &lsid).await?;
    }
    session_refresh().published_ms.set(until_ms);
    Ok(())
}

fn state_ended() -> BTreeSet<Lsid> {
    session_refresh().ended.take()
}

fn document(lsid: &Lsid) -> DocBuilder {
    let mut document = DocBuilder::new();
    append_lsid(&mut document, "_id", lsid);
    document
}

/// The filter that finds a session.
fn named(lsid: &Lsid) -> RawDocumentBuf {
    document(lsid).finish()
}

async fn ensure_collection(ctx: &OpContext, ns: &Namespace) -> Result<()> {
    let found = core_catalog().get(ns);
    if found.is_some_and(|found| found.index(TTL_INDEX).is_some()) {
        return Ok(());
    }
    let spec = rawdoc! {
        "key": { "lastUse": 1 }, "name": TTL_INDEX,
        "expireAfterSeconds": SESSION_TIMEOUT.as_secs() as i32,
    };
    let specs = vec![parse_index_spec(&spec, false)?];
    let limits = parameters().borrow().build_limits();
    create_indexes(ctx, ns.clone(), specs, limits, None).await?;
    Ok(())
}

async fn forget(ctx: &OpContext, ns: Namespace, lsid: &Lsid) -> Result<()> {
    let filter = named(lsid);
    let statement = ModifyStatement::plain(Matcher::parse(&filter)?, filter, Change::Delete);
    let acquired = acquire_write(ctx, ns, None).await?;
    run(ctx, acquired, &statement, &mut ModifyOutcome::default()).await
}

/// Removes what sessions have left behind that have not written for long and are not in use.
///
/// # Errors
/// This node is no primary any more, or is stopped.
pub(crate) async fn reap() -> Result<()> {
    on_core_0(|ctx| async move { reap_with(&ctx).await }).await
}

fn reap_with(ctx: &OpContext) -> LocalBoxFuture<'_, Result<()>> {
    Box::pin(async move {
        let before_ms = wall_ms() - SESSION_TIMEOUT.as_millis() as i64;
        // The children of a session come one behind the other.
        let mut parent = None;
        for lsid in unused_since(ctx, before_ms).await? {
            pause(ctx).await?;
            if !is_in_use(&lsid.parent()).await? || is_superseded(&lsid, &mut parent).await? {
                remove(ctx, &lsid, before_ms).await?;
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

/// Whether the set knows a session as one in use.
async fn is_in_use(lsid: &Lsid) -> Result<bool> {
    let Some(sessions) = core_catalog().get(&Namespace::parse(SESSIONS)?) else {
        return Ok(false);
    };
    let (key, tree) = (session_key(lsid), sessions.tree());
    let partition: PartitionId = pinion_catalog::partition_of(&sessions, &key);
    submit_to(
        storage().owner(partition),
        Queue::Background,
        move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let read = owned.get(tree, &key, ReadAt::Newest).await;
            Ok(read.map_err(from_read_error)?.is_some())
        },
    )
    .await
}
