//! The sessions with retryable writes whose home is this core, and who has them now.
//!
//! Source: sharding document, "The logical session catalog".

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use pinion_runtime::sync::Notify;
use pinion_runtime::{
    CoreId, Instant, Queue, call_on, core_count, core_id, on_all_cores, spawn, submit_to,
    try_core_local,
};
use pinion_wire::idl::Lsid;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::history::History;
use super::load::load;
use crate::interrupt::interruptible;
use crate::limits::{EVICTED_SESSIONS_LOOK, MAX_CATALOG_SESSIONS};
use crate::state::{NodeState, state};

/// One session at home.
struct Session {
    /// A write has it.
    is_out: Cell<bool>,
    /// A write has brought it back.
    freed: Notify,
    /// `None` if it must be read from the records, and while a write has it.
    history: RefCell<Option<History>>,
    last_used: Cell<Instant>,
}

/// The sessions of one core. What is not here is read from the records.
#[derive(Default)]
pub(crate) struct SessionCatalog {
    sessions: RefCell<BTreeMap<Lsid, Rc<Session>>>,
    /// Changes when what is known may be wrong, and what a write brings back with it.
    epoch: Cell<u64>,
    /// Where the look for a session that can go begins.
    hand: Cell<Option<Lsid>>,
}

impl SessionCatalog {
    /// The session, new if it is not known. Whoever holds it waits for it or has it.
    fn session(&self, lsid: &Lsid) -> Result<Rc<Session>> {
        if let Some(known) = self.sessions.borrow().get(lsid) {
            return Ok(known.clone());
        }
        if self.sessions.borrow().len() >= MAX_CATALOG_SESSIONS && !self.evict_one() {
            return Err(Error::new(
                ErrorCode::TOO_MANY_LOGICAL_SESSIONS,
                "cannot check out a session: too many have writes under way",
            ));
        }
        let session = Rc::new(Session {
            is_out: Cell::new(false),
            freed: Notify::new(),
            history: RefCell::default(),
            last_used: Cell::new(pinion_runtime::now()),
        });
        self.sessions.borrow_mut().insert(*lsid, session.clone());
        Ok(session)
    }

    /// Forgets one that nobody has or waits for, of a few.
    fn evict_one(&self) -> bool {
        let mut sessions = self.sessions.borrow_mut();
        let behind = self.hand.get().map_or(Bound::Unbounded, Bound::Excluded);
        let in_turn = sessions
            .range((behind, Bound::Unbounded))
            .chain(sessions.iter())
            .take(EVICTED_SESSIONS_LOOK);
        let mut last = None;
        let mut found = None;
        for (lsid, session) in in_turn {
            last = Some(*lsid);
            if is_idle(session) {
                found = Some(*lsid);
                break;
            }
        }
        self.hand.set(last);
        found.is_some_and(|lsid| sessions.remove(&lsid).is_some())
    }

    /// Forgets those that nobody used since `before`.
    pub(crate) fn reap(&self, before: Instant) {
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|_, session| !is_idle(session) || session.last_used.get() >= before);
    }

    fn check_in(&self, lsid: &Lsid, epoch: u64, history: Option<History>) {
        let sessions = self.sessions.borrow();
        let session = sessions
            .get(lsid)
            .expect("one that is out is not forgotten");
        assert!(
            session.is_out.replace(false),
            "one that is in was brought back"
        );
        let history = history.filter(|_| epoch == self.epoch.get());
        *session.history.borrow_mut() = history;
        session.last_used.set(pinion_runtime::now());
        session.freed.notify_all();
    }

    fn forget(&self) {
        self.epoch.set(self.epoch.get() + 1);
        for session in self.sessions.borrow().values() {
            *session.history.borrow_mut() = None;
        }
    }
}

fn is_idle(session: &Rc<Session>) -> bool {
    !session.is_out.get() && Rc::strong_count(session) == 1
}

/// The core at which a session is known.
fn home_of(lsid: &Lsid) -> CoreId {
    // Drivers make random names.
    let random = u64::from_le_bytes(lsid.id[..8].try_into().expect("8 bytes"));
    CoreId((random % core_count() as u64) as u16)
}

/// A session that this write has alone. It is brought back when this is dropped, as it was unless something may have been
/// written.
pub(super) struct CheckedOut {
    lsid: Lsid,
    home: CoreId,
    epoch: u64,
    /// `None` if what is known at home must be read again.
    history: Option<History>,
}

impl CheckedOut {
    pub(super) fn lsid(&self) -> &Lsid {
        &self.lsid
    }

    /// Takes over what is known, to bring it back with what was written.
    pub(super) fn take_history(&mut self) -> History {
        self.history.take().expect("it is taken once")
    }

    pub(super) fn put_back(&mut self, history: History) {
        self.history = Some(history);
    }
}

impl Drop for CheckedOut {
    fn drop(&mut self) {
        // What is left of a node that has ended needs nothing.
        if !pinion_runtime::is_core() {
            return;
        }
        let (lsid, epoch, history) = (self.lsid, self.epoch, self.history.take());
        let bring_back = move || {
            if let Some(state) = try_core_local::<NodeState>() {
                state.session_catalog.check_in(&lsid, epoch, history);
            }
        };
        match self.home == core_id() {
            true => bring_back(),
            false => drop(spawn(Queue::Foreground, call_on(self.home, bring_back))),
        }
    }
}

/// Waits until no other write has the session, and begins the command with this number in it.
///
/// # Errors
/// `TransactionTooOld`, `TooManyLogicalSessions`; the operation is interrupted; a record cannot be read.
pub(super) async fn check_out(ctx: &OpContext, lsid: Lsid, txn_number: i64) -> Result<CheckedOut> {
    let (home, ctx) = (home_of(&lsid), ctx.clone());
    submit_to(home, Queue::Foreground, move || async move {
        check_out_here(&ctx, lsid, txn_number).await
    })
    .await
}

async fn check_out_here(ctx: &OpContext, lsid: Lsid, txn_number: i64) -> Result<CheckedOut> {
    let state = state();
    let session = state.session_catalog.session(&lsid)?;
    loop {
        let freed = session.freed.notified();
        if !session.is_out.replace(true) {
            break;
        }
        interruptible(ctx, freed).await?;
    }
    let known = session.history.borrow_mut().take();
    let mut out = CheckedOut {
        lsid,
        home: core_id(),
        epoch: state.session_catalog.epoch.get(),
        history: known.filter(|known| known.suffices_for(txn_number)),
    };
    if out.history.is_none() {
        out.history = Some(load(&lsid).await?);
    }
    let history = out.history.as_mut().expect("it was read");
    history.begin(&lsid, txn_number)?;
    Ok(out)
}

/// Takes a session of which nothing need be known, if no write has it. It is unknown when it comes back.
pub(super) async fn check_out_idle(lsid: Lsid) -> Option<CheckedOut> {
    submit_to(home_of(&lsid), Queue::Background, move || async move {
        let catalog = &state().session_catalog;
        let session = catalog.session(&lsid).ok()?;
        if session.is_out.replace(true) {
            return None;
        }
        Some(CheckedOut {
            lsid,
            home: core_id(),
            epoch: catalog.epoch.get(),
            history: None,
        })
    })
    .await
}

/// Forgets what this node knows of retryable writes, as their records may have changed without it: it was rolled back, or
/// followed another member. Writes that are under way bring nothing back.
pub async fn forget_all() {
    on_all_cores(|_| async { state().session_catalog.forget() }).await;
}
