//! The operations that are running on one core, for `currentOp` and `killOp`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_runtime::Duration;
use pinion_wire::idl::Lsid;
use pinion_wire::{CommandClass, ErrorCode, OpContext, Registry};

use crate::transactions::is_of_session;

/// A running operation.
pub(crate) struct RunningOp {
    /// The command document.
    pub command: Bytes,
    pub ctx: OpContext,
}

/// What `currentOp` shows of it.
#[derive(Clone, Debug)]
pub(crate) struct OpSnapshot {
    pub command: Bytes,
    pub ctx: OpContext,
    pub running: Duration,
}

/// The running operations of one core.
#[derive(Default)]
pub(crate) struct OpTable {
    ops: RefCell<BTreeMap<i32, Rc<RunningOp>>>,
}

/// Keeps an operation in the table; dropping it takes it out.
pub(crate) struct OpGuard {
    id: i32,
}

impl Drop for OpGuard {
    fn drop(&mut self) {
        if let Some(state) = crate::state::try_state() {
            state.ops.ops.borrow_mut().remove(&self.id);
        }
    }
}

impl OpTable {
    /// Lists an operation with its command, which shares the memory of the message.
    pub(crate) fn enter(&self, ctx: OpContext, command: Bytes) -> OpGuard {
        let id = ctx.op_id;
        let op = RunningOp { command, ctx };
        self.ops.borrow_mut().insert(id, Rc::new(op));
        OpGuard { id }
    }

    /// Interrupts an operation; false if it is not running here.
    pub(crate) fn kill(&self, id: i32) -> bool {
        match self.ops.borrow().get(&id) {
            Some(op) => {
                op.ctx.kill(ErrorCode::INTERRUPTED);
                true
            }
            None => false,
        }
    }

    pub(crate) fn kill_all(&self, code: ErrorCode) {
        for op in self.ops.borrow().values() {
            op.ctx.kill(code);
        }
    }

    pub(crate) fn kill_session(&self, lsid: &Lsid) {
        for op in self.ops.borrow().values() {
            // The command that ends the session runs in it too.
            let of = op.ctx.args.lsid.as_ref();
            if of.is_some_and(|of| is_of_session(of, lsid)) && !op.ctx.command.starts_with("kill") {
                op.ctx.kill(ErrorCode::INTERRUPTED);
            }
        }
    }

    /// Interrupts what writes, with this code: the node accepts no writes any more. An aggregation that writes meets that at
    /// its next write.
    pub(crate) fn kill_writers(&self, code: ErrorCode) {
        let registry = pinion_runtime::core_local::<Registry>();
        for op in self.ops.borrow().values() {
            let spec = registry.find(op.ctx.command).map(|command| command.spec);
            if spec
                .is_ok_and(|spec| spec.supports_write_concern && spec.class != CommandClass::Read)
            {
                op.ctx.kill(code);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.borrow().len()
    }

    pub(crate) fn snapshot(&self) -> Vec<OpSnapshot> {
        let now = pinion_runtime::now().as_nanos();
        self.ops
            .borrow()
            .values()
            .map(|op| OpSnapshot {
                command: op.command.clone(),
                ctx: op.ctx.clone(),
                running: Duration::from_nanos(now.saturating_sub(op.ctx.started_ns)),
            })
            .collect()
    }
}
