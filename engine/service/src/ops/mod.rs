//! The operations that are running on one core, for `currentOp` and `killOp`.

mod progress;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_runtime::Duration;
use pinion_wire::idl::{Lsid, Namespace};
use pinion_wire::{ClientInfo, CommandClass, CommandRole, ErrorCode, GateKind, OpContext};

pub use self::progress::Progress;

use crate::metrics::metrics;
use crate::session_ids::is_of_session;

/// Whether it is a client that sends operations, and no other node, nor this one itself.
pub fn is_of_client(client: &ClientInfo) -> bool {
    !client.is_trusted() && !client.says_internal()
}

/// How many operations of clients run on all cores that have an end of their own: reads that wait
/// for data have none.
pub async fn client_operations() -> usize {
    let running = pinion_runtime::on_all_cores(|_| async {
        let waiting = metrics().counters.awaiting_data.get() as usize;
        ops().of_clients().saturating_sub(waiting)
    });
    running.await.into_iter().sum()
}

/// A running operation.
pub(crate) struct RunningOp {
    /// The command document.
    pub command: Bytes,
    pub ctx: OpContext,
}

/// What `currentOp` shows of it.
#[derive(Clone, Debug)]
pub struct OpSnapshot {
    pub command: Bytes,
    pub ctx: OpContext,
    pub running: Duration,
    /// Of a validation.
    pub progress: Option<Arc<Progress>>,
}

/// The running operations of one core.
#[derive(Default)]
pub struct OpTable {
    busy: RefCell<BTreeSet<&'static str>>,
    ops: RefCell<BTreeMap<i32, Rc<RunningOp>>>,
    /// What commands have left behind that were answered already, under the numbers of these.
    background: RefCell<BTreeMap<i32, Rc<RunningOp>>>,
    /// The operations that wait in front of a gate of this core, listed or not.
    waiting: RefCell<BTreeMap<i32, (GateKind, Namespace)>>,
    /// How far validations have come.
    progress: RefCell<BTreeMap<i32, Arc<Progress>>>,
}

/// An operation that waits in front of a gate, until this is dropped.
pub struct WaitsForGate {
    id: i32,
}

impl Drop for WaitsForGate {
    fn drop(&mut self) {
        if let Some(table) = pinion_runtime::try_core_local::<OpTable>() {
            table.waiting.borrow_mut().remove(&self.id);
        }
    }
}

/// Shows how far an operation has come; dropping it ends that.
pub struct ProgressGuard {
    id: i32,
}

impl Drop for ProgressGuard {
    fn drop(&mut self) {
        if let Some(table) = pinion_runtime::try_core_local::<OpTable>() {
            table.progress.borrow_mut().remove(&self.id);
        }
    }
}

/// Keeps an operation in the table; dropping it takes it out.
pub struct OpGuard {
    id: i32,
}

impl Drop for OpGuard {
    fn drop(&mut self) {
        if let Some(table) = pinion_runtime::try_core_local::<OpTable>() {
            table.ops.borrow_mut().remove(&self.id);
        }
    }
}

/// Keeps what a command has left behind in the table; dropping it takes it out.
pub struct BackgroundGuard {
    id: i32,
}

impl Drop for BackgroundGuard {
    fn drop(&mut self) {
        if let Some(table) = pinion_runtime::try_core_local::<OpTable>() {
            table.background.borrow_mut().remove(&self.id);
        }
    }
}

/// This core's running operations.
pub fn ops() -> Rc<OpTable> {
    pinion_runtime::core_local()
}

impl OpTable {
    /// A task of the node's own does something, or waits for its next turn.
    pub fn set_busy(&self, task: &'static str, is_busy: bool) {
        let mut busy = self.busy.borrow_mut();
        match is_busy {
            true => busy.insert(task),
            false => busy.remove(task),
        };
    }

    /// The node's own tasks that do something now.
    pub fn busy_tasks(&self) -> BTreeSet<&'static str> {
        self.busy.borrow().clone()
    }

    /// Lists the operation that a command leaves behind: it has the command's number, and ends at
    /// its own end or by `killOp`.
    pub fn enter_background(&self, ctx: OpContext, command: Bytes) -> BackgroundGuard {
        let id = ctx.op_id;
        let op = RunningOp { command, ctx };
        self.background.borrow_mut().insert(id, Rc::new(op));
        BackgroundGuard { id }
    }

    /// Lists an operation with its command, which shares the memory of the message.
    pub fn enter(&self, ctx: OpContext, command: Bytes) -> OpGuard {
        let id = ctx.op_id;
        let op = RunningOp { command, ctx };
        self.ops.borrow_mut().insert(id, Rc::new(op));
        OpGuard { id }
    }

    /// An operation waits in front of a gate until what this gives is dropped.
    pub fn wait_for_gate(&self, ctx: &OpContext, kind: GateKind, ns: &Namespace) -> WaitsForGate {
        let id = ctx.op_id;
        self.waiting.borrow_mut().insert(id, (kind, ns.clone()));
        WaitsForGate { id }
    }

    /// The operations that wait in front of a gate of this core.
    pub fn waiting(&self) -> Vec<(i32, GateKind, Namespace)> {
        let waiting = self.waiting.borrow();
        let all = waiting.iter();
        all.map(|(id, (kind, ns))| (*id, *kind, ns.clone()))
            .collect()
    }

    /// Shows how far an operation of this core has come.
    pub fn show_progress(&self, id: i32, progress: Arc<Progress>) -> ProgressGuard {
        self.progress.borrow_mut().insert(id, progress);
        ProgressGuard { id }
    }

    /// Interrupts an operation; false if it is not running here.
    pub fn kill(&self, id: i32) -> bool {
        let found = [&self.ops, &self.background].map(|ops| {
            let ops = ops.borrow();
            let op = ops.get(&id);
            op.is_some_and(|op| {
                op.ctx.kill(ErrorCode::INTERRUPTED);
                true
            })
        });
        found.contains(&true)
    }

    /// Interrupts all operations, with this code.
    pub fn kill_all(&self, code: ErrorCode) {
        for op in self.ops.borrow().values() {
            op.ctx.kill(code);
        }
    }

    /// Interrupts the operations of a session and of its children, but for the one that ends it.
    pub fn kill_session(&self, lsid: &Lsid) {
        for op in self.ops.borrow().values() {
            // The command that ends the session runs in it too.
            let of = op.ctx.args.lsid.as_ref();
            let ends_it = op.ctx.command.role == CommandRole::Kill;
            if of.is_some_and(|of| is_of_session(of, lsid)) && !ends_it {
                op.ctx.kill(ErrorCode::INTERRUPTED);
            }
        }
    }

    /// Interrupts what writes, with this code: the node accepts no writes any more. An aggregation
    /// that writes meets that at its next write. Gives how many there are.
    pub fn kill_writers(&self, code: ErrorCode) -> u64 {
        let mut killed = 0;
        for op in self.ops.borrow().values() {
            let spec = op.ctx.command;
            if spec.supports_write_concern && spec.class != CommandClass::Read {
                op.ctx.kill(code);
                killed += 1;
            }
        }
        killed
    }

    fn of_clients(&self) -> usize {
        let ops = self.ops.borrow();
        ops.values()
            .filter(|op| is_of_client(&op.ctx.client))
            .count()
    }

    /// How many operations run.
    pub fn count(&self) -> usize {
        self.ops.borrow().len()
    }

    /// What `currentOp` shows of all operations.
    pub fn snapshot(&self) -> Vec<OpSnapshot> {
        let now = pinion_runtime::now().as_nanos();
        let (ops, background) = (self.ops.borrow(), self.background.borrow());
        ops.values()
            .chain(background.values())
            .map(|op| OpSnapshot {
                command: op.command.clone(),
                ctx: op.ctx.clone(),
                running: Duration::from_nanos(now.saturating_sub(op.ctx.started_ns)),
                progress: self.progress.borrow().get(&op.ctx.op_id).cloned(),
            })
            .collect()
    }
}
