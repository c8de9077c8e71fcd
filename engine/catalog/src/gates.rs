//! Gates of namespaces: operations pass, DDL closes a gate on every core and waits until it is drained.
//!
//! A gate is entered on the core that coordinates an operation and held until the operation's last
//! effect, wherever that happens. So when every core has closed its gate of a namespace, nothing is in
//! flight there on the whole node.
//!
//! Before all of them stands the lock of `fsync {lock: true}`, which keeps every writer and every change of the catalog out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_runtime::sync::Notify;
use rustc_hash::FxHashMap;

use pinion_wire::idl::Namespace;

/// What a closed gate keeps out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GateMode {
    /// Everyone passes.
    Open,
    /// Readers pass, writers wait (an index build).
    NoWrites,
    /// Everyone waits (a drop).
    Closed,
}

/// What an operation wants to do behind the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GateAccess {
    Read,
    Write,
}

struct Gate {
    mode: Cell<GateMode>,
    readers: Cell<usize>,
    writers: Cell<usize>,
    changed: Notify,
}

impl Gate {
    fn admits(&self, access: GateAccess) -> bool {
        match access {
            GateAccess::Read => self.mode.get() < GateMode::Closed,
            GateAccess::Write => self.mode.get() < GateMode::NoWrites,
        }
    }

    fn is_drained(&self, mode: GateMode) -> bool {
        self.writers.get() == 0 && (mode < GateMode::Closed || self.readers.get() == 0)
    }

    fn is_idle(&self) -> bool {
        self.mode.get() == GateMode::Open && self.readers.get() == 0 && self.writers.get() == 0
    }
}

/// All gates of one core.
#[derive(Default)]
pub struct Gates {
    gates: RefCell<FxHashMap<Namespace, Rc<Gate>>>,
    /// Set on every core while the node is locked against writes, or about to be.
    locked: Cell<bool>,
    unlocked: Notify,
    /// Changes of the catalog that have begun; core 0 has them all.
    changes: Rc<Cell<usize>>,
}

/// Proof that a change of the catalog began while the node was not locked; it ends with this.
pub(crate) struct ChangePass {
    changes: Rc<Cell<usize>>,
}

impl Drop for ChangePass {
    fn drop(&mut self) {
        assert!(self.changes.get() > 0, "a pass was dropped twice");
        self.changes.set(self.changes.get() - 1);
    }
}

/// Proof that an operation is behind a gate; leaving is dropping it.
pub struct Pass {
    gate: Rc<Gate>,
    access: GateAccess,
}

impl Pass {
    fn through(gate: Rc<Gate>, access: GateAccess) -> Pass {
        let count = match access {
            GateAccess::Read => &gate.readers,
            GateAccess::Write => &gate.writers,
        };
        count.set(count.get() + 1);
        Pass { gate, access }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let count = match self.access {
            GateAccess::Read => &self.gate.readers,
            GateAccess::Write => &self.gate.writers,
        };
        assert!(count.get() > 0, "a pass was dropped twice");
        count.set(count.get() - 1);
        if self.gate.mode.get() != GateMode::Open {
            self.gate.changed.notify_all();
        }
    }
}

impl Gates {
    fn gate(&self, ns: &Namespace) -> Rc<Gate> {
        let mut gates = self.gates.borrow_mut();
        if let Some(gate) = gates.get(ns) {
            return gate.clone();
        }
        // Namespaces come and go; idle gates are swept when there are many, so the map stays as
        // large as the set of namespaces in use.
        if gates.len() >= 1024 && gates.len().is_power_of_two() {
            gates.retain(|_, gate| Rc::strong_count(gate) > 1 || !gate.is_idle());
        }
        let gate = Rc::new(Gate {
            mode: Cell::new(GateMode::Open),
            readers: Cell::new(0),
            writers: Cell::new(0),
            changed: Notify::new(),
        });
        gates.insert(ns.clone(), gate.clone());
        gate
    }

    /// True if an operation that begins now, and ends before anything else is run on this core, may pass.
    pub fn admits(&self, ns: &Namespace, access: GateAccess) -> bool {
        let gates = self.gates.borrow();
        !self.keeps_out(access) && gates.get(ns).is_none_or(|gate| gate.admits(access))
    }

    /// Whether the node's lock keeps this access out.
    fn keeps_out(&self, access: GateAccess) -> bool {
        access == GateAccess::Write && self.locked.get()
    }

    /// Waits until the gate admits this access and passes it. Who waits holds nothing that the lock, or a change of the
    /// catalog that began before it, would wait for.
    pub async fn enter(&self, ns: &Namespace, access: GateAccess) -> Pass {
        let gate = self.gate(ns);
        loop {
            if self.keeps_out(access) {
                self.unlocked.notified().await;
            } else if gate.admits(access) {
                return Pass::through(gate, access);
            } else {
                gate.changed.notified().await;
            }
        }
    }

    /// Passes the gate if it admits this access now.
    pub fn try_enter(&self, ns: &Namespace, access: GateAccess) -> Option<Pass> {
        let gate = self.gate(ns);
        let admitted = !self.keeps_out(access) && gate.admits(access);
        admitted.then(|| Pass::through(gate, access))
    }

    /// Closes the gate and waits until nobody whom the mode keeps out is behind it. There is one DDL at a time
    /// on the node, so a gate is never closed twice.
    pub async fn close(&self, ns: &Namespace, mode: GateMode) {
        let gate = self.gate(ns);
        assert!(
            gate.mode.get() == GateMode::Open,
            "the gate of {ns} is closed twice"
        );
        gate.mode.set(mode);
        while !gate.is_drained(mode) {
            gate.changed.notified().await;
        }
    }

    /// Opens the gate again.
    pub fn open(&self, ns: &Namespace) {
        let gate = self.gate(ns);
        gate.mode.set(GateMode::Open);
        gate.changed.notify_all();
    }

    /// Keeps writers and changes of the catalog out of this core from now on; those that are under way go on.
    pub fn lock(&self) {
        self.locked.set(true);
    }

    /// Lets them in again.
    pub fn unlock(&self) {
        self.locked.set(false);
        self.unlocked.notify_all();
    }

    /// Whether this core is locked. Who writes for long gives way then, where it can go on later.
    pub fn is_locked(&self) -> bool {
        self.locked.get()
    }

    /// Waits until this core is not locked.
    pub(crate) async fn until_unlocked(&self) {
        while self.locked.get() {
            self.unlocked.notified().await;
        }
    }

    /// Whether no writer is behind any gate of this core, and no change of the catalog under way. Once every core is locked
    /// and says so, nothing writes on the whole node.
    pub fn is_drained(&self) -> bool {
        let gates = self.gates.borrow();
        self.changes.get() == 0 && gates.values().all(|gate| gate.writers.get() == 0)
    }

    /// Begins a change of the catalog unless this core is locked.
    pub(crate) fn try_change(&self) -> Option<ChangePass> {
        if self.locked.get() {
            return None;
        }
        self.changes.set(self.changes.get() + 1);
        Some(ChangePass {
            changes: self.changes.clone(),
        })
    }
}
