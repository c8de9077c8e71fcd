//! Which sessions are in use: the cluster keeps what they left at shards for as long as they are.
//!
//! The router writes those that its clients used to `config.system.sessions`, which is on the
//! config servers, and removes those that were ended. What has expired there, by the index on
//! `lastUse`, is forgotten here, with its cursors.
//!
//! Source: sharding document, "The logical session cache".

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use pinion_bson::{DocBuilder, rawdoc};
use pinion_runtime::{
    CoreId, Queue, core_local, is_shutdown_requested, on_all_cores, sleep, spawn, submit_to,
    wall_ms,
};
use pinion_service::cursors::cursors;
use pinion_service::session_ids::at_home;
use pinion_service::session_table::{last_uses, session_table};
use pinion_wire::Result;
use pinion_wire::idl::Lsid;

use crate::config_reads::{find_all, run_at_config};
use crate::limits::{MAX_ENDED_SESSIONS, SESSION_BATCH, SESSION_REFRESH_PAUSE};
use crate::session_list::{SESSION_LIST, append_removals, append_uses, listed_filter, listed_in};
use crate::transactions::transactions;

/// One core's.
#[derive(Default)]
pub(crate) struct SessionRefresh {
    /// Those that clients of this core have ended since the last refresh.
    ended: RefCell<BTreeSet<Lsid>>,
    /// On core 0: up to when uses have been published, in milliseconds since 1970.
    published_ms: Cell<i64>,
}

fn session_refresh() -> Rc<SessionRefresh> {
    core_local()
}

/// A client is done with these sessions.
pub(crate) fn ended(list: &[Lsid]) {
    let refresh = session_refresh();
    let mut ended = refresh.ended.borrow_mut();
    let room = MAX_ENDED_SESSIONS.saturating_sub(ended.len());
    // Those for which there is no room expire.
    ended.extend(list.iter().take(room).map(at_home));
}

/// Keeps the list of sessions new while the process runs. Called once, on core 0.
pub fn keep_sessions() {
    spawn(Queue::Background, async {
        while !is_shutdown_requested() {
            sleep(SESSION_REFRESH_PAUSE).await;
            if let Err(error) = refresh().await {
                tracing::warn!(target: "CONTROL", id = 7_300_050u64, error = error.message, "The sessions in use could not be published");
            }
        }
    });
}

/// Publishes which sessions were used and which were ended since the last time, and forgets those
/// that have expired.
///
/// # Errors
/// The config servers do not answer.
pub(crate) async fn refresh() -> Result<()> {
    submit_to(CoreId(0), Queue::Background, || async {
        let from_ms = session_refresh().published_ms.get();
        let until_ms = wall_ms();
        let uses = last_uses().await;
        let used: Vec<(Lsid, i64)> = uses
            .iter()
            .filter(|(_, ms)| *ms >= from_ms)
            .copied()
            .collect();
        for batch in used.chunks(SESSION_BATCH) {
            publish(batch).await?;
        }
        let ended = on_all_cores(|_| async { session_refresh().ended.take() }).await;
        let ended: Vec<Lsid> = ended.into_iter().flatten().collect();
        for (done, batch) in ended.chunks(SESSION_BATCH).enumerate() {
            if let Err(error) = remove(batch).await {
                self::ended(&ended[done * SESSION_BATCH..]);
                return Err(error);
            }
        }
        session_refresh().published_ms.set(until_ms);
        let known: Vec<Lsid> = uses.into_iter().map(|(lsid, _)| lsid).collect();
        for batch in known.chunks(SESSION_BATCH) {
            forget_expired(batch).await?;
        }
        Ok(())
    })
    .await
}

fn append_majority(out: &mut DocBuilder) {
    out.start_document("writeConcern")
        .append("w", "majority")
        .end();
}

/// Writes when sessions were used last.
async fn publish(used: &[(Lsid, i64)]) -> Result<()> {
    let write = |out: &mut DocBuilder| {
        append_uses(out, used);
        append_majority(out);
    };
    run_at_config("config", write, None).await.map(drop)
}

async fn remove(ended: &[Lsid]) -> Result<()> {
    let write = |out: &mut DocBuilder| {
        append_removals(out, ended);
        append_majority(out);
    };
    run_at_config("config", write, None).await.map(drop)
}

/// Forgets those of these sessions that the list lacks: they have expired, or were ended through
/// another router.
async fn forget_expired(known: &[Lsid]) -> Result<()> {
    let in_order = Some(rawdoc! { "_id": 1 });
    let found = find_all(SESSION_LIST, listed_filter(known), in_order).await?;
    let listed = listed_in(&found)?;
    let expired: Vec<Lsid> = known
        .iter()
        .filter(|lsid| !listed.contains(&at_home(lsid)))
        .copied()
        .collect();
    if expired.is_empty() {
        return Ok(());
    }
    on_all_cores(move |_| {
        let expired = expired.clone();
        async move {
            for lsid in &expired {
                session_table().remove(lsid);
                cursors().kill_session(lsid);
                transactions().session_ended(lsid);
            }
        }
    })
    .await;
    Ok(())
}
