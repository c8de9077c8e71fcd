//! The definitions of a node while it accepts writes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use pinion_bson::RawDocumentBuf;
use pinion_exec::own_collections::is_node_database;
use pinion_exec::topology::is_writable;
use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, Queue, submit_to};
use pinion_sharding_protocol::ddl::{DdlId, DdlLocks};
use pinion_sharding_protocol::{
    DatabaseVersion, ShardVersion, StaleDatabaseInfo, StaleInfo, StaleReason,
};
use pinion_wire::idl::{Namespace, SentDatabaseVersion, SentShardVersion};
use pinion_wire::{Error, ErrorCode, Result, interruption};

use super::cloning::Clones;
use super::sections::Section;
use crate::part::{Part, form, part};
use crate::shard::membership;

/// Those of core 0, which alone has them.
#[derive(Default)]
pub(crate) struct Definitions {
    current: RefCell<Option<Rc<Leadership>>>,
    /// Notified with each change of what is waited for here.
    changed: Notify,
}

/// From the time that the node accepts writes to the time that it does no longer, or starts
/// again: what is kept of definitions is dropped with it, and their documents stay.
#[derive(Default)]
pub(super) struct Leadership {
    pub(super) locks: RefCell<DdlLocks>,
    pub(super) running: RefCell<BTreeMap<DdlId, Rc<Running>>>,
    pub(super) sections: RefCell<BTreeMap<String, Section>>,
    /// Collections of which a message of another shard's definition is worked on.
    pub(super) blocking: RefCell<BTreeSet<Namespace>>,
    /// Databases that are copied from other shards.
    pub(super) clones: Clones,
    pub(super) is_resumed: Cell<bool>,
    is_over: Cell<bool>,
}

/// A definition, for all that wait for its outcome.
pub(super) struct Running {
    pub(super) request: RawDocumentBuf,
    pub(super) database_version: DatabaseVersion,
    pub(super) outcome: RefCell<Option<Result<RawDocumentBuf>>>,
}

fn no_primary() -> Error {
    Error::new(ErrorCode::NOT_WRITABLE_PRIMARY, "node is not primary")
}

impl Definitions {
    /// # Errors
    /// `NotWritablePrimary`.
    pub(super) fn current(&self) -> Result<Rc<Leadership>> {
        self.current.borrow().clone().ok_or_else(no_primary)
    }

    /// Starts another leadership, or ends the one that there is.
    pub(super) fn replace(&self, next: Option<Rc<Leadership>>) {
        let before = self.current.replace(next);
        if let Some(before) = before {
            before.is_over.set(true);
            // The guards open the gates.
            drop(before.sections.take());
        }
        self.changed.notify_all();
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until something has been decided, by which `look` gives it.
    pub(super) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }
}

impl Leadership {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.get() || part().core_0.is_stopping()
    }

    /// Whether a definition runs that is of no database of the nodes.
    pub(super) fn runs_for_users(&self) -> bool {
        let running = self.running.borrow();
        running.keys().any(|id| !is_node_database(id.db()))
    }

    /// Does something unless the leadership ends meanwhile.
    ///
    /// # Errors
    /// `InterruptedDueToReplStateChange`.
    pub(super) async fn unless_over<F: Future>(&self, work: F) -> Result<F::Output> {
        let part = part();
        let definitions = &part.core_0.definitions;
        let mut ended = pin!(definitions.until(|| self.is_over().then_some(())));
        let mut work = pin!(work);
        poll_fn(|cx| {
            if ended.as_mut().poll(cx).is_ready() {
                let code = ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE;
                return Poll::Ready(Err(interruption(code)));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }
}

/// This primary, once the gates of the one before are closed here. Called on core 0.
///
/// # Errors
/// `NotWritablePrimary`.
pub(super) async fn lead() -> Result<Rc<Leadership>> {
    let part = part();
    let definitions = &part.core_0.definitions;
    let leadership = definitions.current()?;
    let is_resumed = || leadership.is_resumed.get().then_some(());
    leadership
        .unless_over(definitions.until(is_resumed))
        .await?;
    Ok(leadership)
}

/// Whether the gates that an earlier primary kept closed are closed here: a primary goes by no
/// version before.
pub(crate) fn are_resumed(part: &Part) -> bool {
    part.definitions_resumed.get() || !is_writable() || pinion_exec::replica_set().is_none()
}

/// What requests with versions fail with until then: what is wanted is not known.
pub(crate) fn not_resumed_database(db: &str, sent: &SentDatabaseVersion) -> Error {
    let stale = StaleDatabaseInfo {
        db: db.to_owned(),
        received: DatabaseVersion::from_sent(*sent),
        wanted: None,
    };
    stale.error(form())
}

/// The same of a collection.
pub(crate) fn not_resumed_collection(
    part: &Part,
    ns: &Namespace,
    sent: &SentShardVersion,
) -> Error {
    let shard = match membership(part) {
        Ok(shard) => shard.shard().clone(),
        Err(error) => return error,
    };
    let stale = StaleInfo {
        ns: ns.clone(),
        received: ShardVersion::from_sent(*sent),
        wanted: None,
        shard,
    };
    stale.error(StaleReason::Unknown, form())
}

/// Waits until they are, or the node is no primary.
pub(crate) async fn resumed() {
    submit_to(CoreId(0), Queue::Foreground, || async {
        let part = part();
        let look = || (are_resumed(&part) || part.core_0.is_stopping()).then_some(());
        part.core_0.definitions.until(look).await;
    })
    .await;
}
