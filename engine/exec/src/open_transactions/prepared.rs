//! The prepared transactions that a core knows.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use pinion_clock::{OpTime, Term};
use pinion_runtime::sync::Notify;
use pinion_storage::PreparedUnit;
use pinion_wire::idl::{Lsid, Namespace, ReadConcern};

use super::shown::OpenShown;
use crate::statements::TransactionStamp;

/// A transaction without an outcome.
#[derive(Clone, Debug)]
pub struct PreparedTransaction {
    pub lsid: Lsid,
    pub number: i64,
    pub unit: PreparedUnit,
    /// That of the entry it was prepared by.
    pub at: OpTime,
    /// The collections that it has written to.
    pub namespaces: Arc<[Namespace]>,
    pub shown: OpenShown,
}

impl PreparedTransaction {
    /// One that another member has prepared, or this one before it was started.
    pub fn restored(
        stamp: TransactionStamp,
        unit: PreparedUnit,
        term: Term,
        namespaces: Arc<[Namespace]>,
    ) -> PreparedTransaction {
        let (at, now) = (unit.prepare_timestamp(), pinion_runtime::now());
        PreparedTransaction {
            lsid: stamp.lsid,
            number: stamp.txn_number,
            at: OpTime::new(at, term),
            namespaces,
            shown: OpenShown {
                lsid: stamp.lsid,
                number: stamp.txn_number,
                read_concern: ReadConcern::default(),
                at,
                started: now,
                started_wall_ms: pinion_runtime::wall_ms(),
                active: pinion_runtime::Duration::ZERO,
                expires: None,
                prepared: Some(now),
            },
            unit,
        }
    }

    pub(crate) fn stamp(&self) -> TransactionStamp {
        TransactionStamp {
            lsid: self.lsid,
            txn_number: self.number,
        }
    }
}

/// The prepared transactions of the sessions whose home one core is.
#[derive(Default)]
pub(crate) struct PreparedTable {
    waiting: RefCell<BTreeMap<Lsid, (PreparedTransaction, Notify)>>,
}

impl PreparedTable {
    pub(crate) fn insert(&self, transaction: PreparedTransaction) {
        let (lsid, ended) = (transaction.lsid, Notify::new());
        let before = self.waiting.borrow_mut().insert(lsid, (transaction, ended));
        assert!(
            before.is_none(),
            "a session has one prepared transaction at a time"
        );
    }

    /// The one of a session.
    pub(crate) fn of(&self, lsid: &Lsid) -> Option<PreparedTransaction> {
        let waiting = self.waiting.borrow();
        waiting
            .get(lsid)
            .map(|(transaction, _)| transaction.clone())
    }

    /// Signals the outcome of the one of a session.
    pub(crate) fn ended(&self, lsid: &Lsid) -> Option<Notify> {
        let waiting = self.waiting.borrow();
        waiting.get(lsid).map(|(_, ended)| ended.clone())
    }

    /// Those that execute retryable writes of a session, with the numbers of these.
    pub(crate) fn children(&self, parent: &Lsid) -> Vec<(i64, Lsid)> {
        let waiting = self.waiting.borrow();
        let behind = (Bound::Excluded(*parent), Bound::Unbounded);
        let children = waiting.range(behind).map(|(lsid, _)| lsid);
        children
            .take_while(|lsid| lsid.parent() == *parent)
            .filter_map(|lsid| Some((lsid.retryable_number()?, *lsid)))
            .collect()
    }

    pub(crate) fn remove(&self, lsid: &Lsid) {
        let removed = self.waiting.borrow_mut().remove(lsid);
        if let Some((_, ended)) = removed {
            ended.notify_all();
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<PreparedTransaction> {
        let waiting = self.waiting.borrow();
        waiting.values().map(|(known, _)| known.clone()).collect()
    }

    /// Forgets them: their units are gone with the storage that they were of.
    pub(crate) fn clear(&self) {
        let forgotten = std::mem::take(&mut *self.waiting.borrow_mut());
        for (_, ended) in forgotten.into_values() {
            ended.notify_all();
        }
    }
}
