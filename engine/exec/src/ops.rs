//! The operations that are running on one core, for `currentOp` and `killOp`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_runtime::{Duration, Instant};
use pinion_wire::idl::Lsid;
use pinion_wire::{ClientInfo, ErrorCode, KillFlag, OpContext};

/// A running operation.
pub(crate) struct RunningOp {
    pub id: u32,
    pub name: &'static str,
    pub db: String,
    /// The collection the command names, if it names one.
    pub collection: Option<String>,
    /// The command document.
    pub command: Bytes,
    pub client: ClientInfo,
    pub session: Option<Lsid>,
    pub started: Instant,
    pub kill: KillFlag,
}

/// What `currentOp` shows of it.
#[derive(Clone, Debug)]
pub(crate) struct OpSnapshot {
    pub id: u32,
    pub name: &'static str,
    pub db: String,
    pub collection: Option<String>,
    pub command: Bytes,
    pub client: ClientInfo,
    pub session: Option<Lsid>,
    pub running: Duration,
    pub kill_pending: bool,
}

/// The running operations of one core.
#[derive(Default)]
pub(crate) struct OpTable {
    ops: RefCell<BTreeMap<u32, Rc<RunningOp>>>,
}

/// Keeps an operation in the table; dropping it takes it out.
pub(crate) struct OpGuard {
    id: u32,
}

impl Drop for OpGuard {
    fn drop(&mut self) {
        if let Some(state) = crate::state::try_state() {
            state.ops.ops.borrow_mut().remove(&self.id);
        }
    }
}

impl OpTable {
    pub(crate) fn enter(&self, name: &'static str, collection: Option<&str>, command: Bytes, ctx: &OpContext) -> OpGuard {
        let op = RunningOp {
            id: ctx.op_id,
            name,
            db: ctx.db.to_string(),
            collection: collection.map(str::to_owned),
            command,
            client: ctx.client.clone(),
            session: ctx.session.clone(),
            started: pinion_runtime::now(),
            kill: ctx.kill.clone(),
        };
        self.ops.borrow_mut().insert(op.id, Rc::new(op));
        OpGuard { id: ctx.op_id }
    }

    /// Interrupts an operation; false if it is not running here.
    pub(crate) fn kill(&self, id: u32) -> bool {
        match self.ops.borrow().get(&id) {
            Some(op) => {
                op.kill.kill(ErrorCode::INTERRUPTED);
                true
            }
            None => false,
        }
    }

    pub(crate) fn kill_session(&self, lsid: &Lsid) {
        for op in self.ops.borrow().values() {
            // The command that ends the session runs in it too.
            if op.session.as_ref() == Some(lsid) && !op.name.starts_with("kill") {
                op.kill.kill(ErrorCode::INTERRUPTED);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.borrow().len()
    }

    pub(crate) fn snapshot(&self) -> Vec<OpSnapshot> {
        let now = pinion_runtime::now();
        self.ops
            .borrow()
            .values()
            .map(|op| OpSnapshot {
                id: op.id,
                name: op.name,
                db: op.db.clone(),
                collection: op.collection.clone(),
                command: op.command.clone(),
                client: op.client.clone(),
                session: op.session.clone(),
                running: now.saturating_since(op.started),
                kill_pending: op.kill.reason().is_some(),
            })
            .collect()
    }
}
