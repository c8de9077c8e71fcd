//! The sessions that clients named lately. On a standalone a session holds cursors and nothing
//! else.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_runtime::Instant;
use pinion_wire::idl::Lsid;
use pinion_wire::{Error, ErrorCode, Result};

use crate::limits::MAX_SESSIONS;

#[derive(Clone, Copy, Debug)]
struct Session {
    last_used: Instant,
}

/// The sessions that operations of one core named.
#[derive(Default)]
pub struct SessionTable {
    sessions: RefCell<BTreeMap<Lsid, Session>>,
}

/// The sessions that this core has seen.
pub fn session_table() -> Rc<SessionTable> {
    pinion_runtime::core_local()
}

impl SessionTable {
    /// Notes that a session is in use at this time of the monotonic clock. One of an internal
    /// transaction is its parent's.
    pub fn touch(&self, lsid: &Lsid, now_ns: u64) -> Result<()> {
        let (lsid, now) = (&lsid.parent(), Instant::from_nanos(now_ns));
        let mut sessions = self.sessions.borrow_mut();
        if let Some(session) = sessions.get_mut(lsid) {
            session.last_used = now;
            return Ok(());
        }
        if sessions.len() >= MAX_SESSIONS {
            return Err(Error::new(
                ErrorCode::TOO_MANY_LOGICAL_SESSIONS,
                "Unable to add session ID to the cache: too many logical sessions",
            ));
        }
        sessions.insert(*lsid, Session { last_used: now });
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.sessions.borrow().len()
    }

    pub fn remove(&self, lsid: &Lsid) {
        self.sessions.borrow_mut().remove(lsid);
    }

    /// Removes the sessions not used since `before` and returns them.
    pub fn reap(&self, before: Instant) -> Vec<Lsid> {
        let mut sessions = self.sessions.borrow_mut();
        let old: Vec<Lsid> = sessions
            .iter()
            .filter(|(_, s)| s.last_used < before)
            .map(|(id, _)| *id)
            .collect();
        for lsid in &old {
            sessions.remove(lsid);
        }
        old
    }

    fn uses(&self) -> Vec<(Lsid, Instant)> {
        self.sessions
            .borrow()
            .iter()
            .map(|(id, session)| (*id, session.last_used))
            .collect()
    }

    fn all(&self) -> Vec<Lsid> {
        self.sessions.borrow().keys().copied().collect()
    }
}

/// Every session that any core knows.
pub async fn known() -> Vec<Lsid> {
    let mut all: Vec<Lsid> = pinion_runtime::on_all_cores(|_| async { session_table().all() })
        .await
        .into_iter()
        .flatten()
        .collect();
    all.sort();
    all.dedup();
    all
}

/// Forgets sessions that this core has not seen for so long. Gives those that no other core knows
/// either: their cursors can go.
pub async fn reap_unused(before: Instant) -> Vec<Lsid> {
    let mut reaped = session_table().reap(before);
    if !reaped.is_empty() {
        let known = known().await;
        reaped.retain(|lsid| known.binary_search(lsid).is_err());
    }
    reaped
}

/// Every session that any core knows, with the time of its last use in milliseconds since 1970.
pub async fn last_uses() -> Vec<(Lsid, i64)> {
    let uses: Vec<(Lsid, Instant)> =
        pinion_runtime::on_all_cores(|_| async { session_table().uses() })
            .await
            .into_iter()
            .flatten()
            .collect();
    let mut latest: BTreeMap<Lsid, Instant> = BTreeMap::new();
    for (lsid, used) in uses {
        let known = latest.entry(lsid).or_insert(used);
        *known = (*known).max(used);
    }
    let (now, wall_ms) = (pinion_runtime::now(), pinion_runtime::wall_ms());
    latest
        .into_iter()
        .map(|(lsid, used)| {
            (
                lsid,
                wall_ms - now.saturating_since(used).as_millis() as i64,
            )
        })
        .collect()
}
