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
    /// Readers pass, writers wait (the beginning and the end of an index build).
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
    waiting_readers: Cell<usize>,
    waiting_writers: Cell<usize>,
    changed: Notify,
}

/// Who is behind a gate, and who waits in front of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateUse {
    pub ns: Namespace,
    pub mode: GateMode,
    pub readers: usize,
    pub writers: usize,
    pub waiting_readers: usize,
    pub waiting_writers: usize,
}

/// How often the gates of a core were passed, closed, and found closed, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounts {
    pub reads: u64,
    pub writes: u64,
    /// Closed against writers.
    pub closed_to_writers: u64,
    /// Closed against everyone.
    pub closed: u64,
    pub read_waits: u64,
    pub write_waits: u64,
    pub read_wait_us: u64,
    pub write_wait_us: u64,
}

impl std::ops::AddAssign for GateCounts {
    fn add_assign(&mut self, other: GateCounts) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.closed_to_writers += other.closed_to_writers;
        self.closed += other.closed;
        self.read_waits += other.read_waits;
        self.write_waits += other.write_waits;
        self.read_wait_us += other.read_wait_us;
        self.write_wait_us += other.write_wait_us;
    }
}

/// One that waits in front of a gate, until it is dropped.
struct Waiting<'a>(&'a Cell<usize>);

impl Waiting<'_> {
    fn at(gate: &Gate, access: GateAccess) -> Waiting<'_> {
        let count = match access {
            GateAccess::Read => &gate.waiting_readers,
            GateAccess::Write => &gate.waiting_writers,
        };
        count.set(count.get() + 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
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
        self.mode.get() == GateMode::Open
            && [
                &self.readers,
                &self.writers,
                &self.waiting_readers,
                &self.waiting_writers,
            ]
            .iter()
            .all(|count| count.get() == 0)
    }
}

/// All gates of one core.
#[derive(Default)]
pub struct Gates {
    gates: RefCell<FxHashMap<Namespace, Rc<Gate>>>,
    /// Set on every core while the node is locked against writes, or about to be.
    locked: Cell<bool>,
    unlocked: Notify,
    /// Changes of the catalog that have begun, which core 0 has, and steps of the applier.
    changes: Rc<Cell<usize>>,
    /// Nothing is changed any more but by the log: whoever waits behind a closed gate for those who passed it before goes away.
    gives_up: Cell<bool>,
    counts: Cell<GateCounts>,
}

/// Proof that a change of the catalog, or a step of the applier, began while the node was not locked; it ends with this.
pub struct ChangePass {
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
            waiting_readers: Cell::new(0),
            waiting_writers: Cell::new(0),
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
        if self.keeps_out(access) || !gate.admits(access) {
            self.wait(&gate, access).await;
        }
        self.pass(gate, access)
    }

    /// Waits until the gate admits this access.
    async fn wait(&self, gate: &Gate, access: GateAccess) {
        let _waiting = Waiting::at(gate, access);
        let began = pinion_runtime::now();
        loop {
            if self.keeps_out(access) {
                self.unlocked.notified().await;
            } else if gate.admits(access) {
                break;
            } else {
                gate.changed.notified().await;
            }
        }
        let us = began.elapsed().as_micros() as u64;
        self.count(|counts| match access {
            GateAccess::Read => {
                counts.read_waits += 1;
                counts.read_wait_us += us;
            }
            GateAccess::Write => {
                counts.write_waits += 1;
                counts.write_wait_us += us;
            }
        });
    }

    fn pass(&self, gate: Rc<Gate>, access: GateAccess) -> Pass {
        self.count(|counts| match access {
            GateAccess::Read => counts.reads += 1,
            GateAccess::Write => counts.writes += 1,
        });
        Pass::through(gate, access)
    }

    fn count(&self, change: impl FnOnce(&mut GateCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// How often this core's gates were passed, closed, and found closed.
    pub fn counts(&self) -> GateCounts {
        self.counts.get()
    }

    /// The gates of this core that somebody is behind, waits for, or has closed.
    pub fn in_use(&self) -> Vec<GateUse> {
        let gates = self.gates.borrow();
        let used = gates.iter().filter(|(_, gate)| !gate.is_idle());
        used.map(|(ns, gate)| GateUse {
            ns: ns.clone(),
            mode: gate.mode.get(),
            readers: gate.readers.get(),
            writers: gate.writers.get(),
            waiting_readers: gate.waiting_readers.get(),
            waiting_writers: gate.waiting_writers.get(),
        })
        .collect()
    }

    /// Passes the gate if it admits this access now.
    pub fn try_enter(&self, ns: &Namespace, access: GateAccess) -> Option<Pass> {
        let gate = self.gate(ns);
        let admitted = !self.keeps_out(access) && gate.admits(access);
        admitted.then(|| self.pass(gate, access))
    }

    /// Closes the gate and waits until nobody whom the mode keeps out is behind it. There is one DDL at a time
    /// on a namespace, so a gate is never closed twice. False if that is given up: the gate is to be opened again.
    #[must_use]
    pub async fn close(&self, ns: &Namespace, mode: GateMode) -> bool {
        let gate = self.gate(ns);
        assert!(
            gate.mode.get() == GateMode::Open,
            "the gate of {ns} is closed twice"
        );
        gate.mode.set(mode);
        self.count(|counts| match mode {
            GateMode::Closed => counts.closed += 1,
            _ => counts.closed_to_writers += 1,
        });
        while !self.gives_up.get() {
            if gate.is_drained(mode) {
                return true;
            }
            gate.changed.notified().await;
        }
        false
    }

    /// Has changes of the catalog that have not begun behind their gates be given up, or lets them in again.
    pub fn give_up_changes(&self, gives_up: bool) {
        self.gives_up.set(gives_up);
        for gate in self.gates.borrow().values() {
            gate.changed.notify_all();
        }
    }

    /// Whether some gate of this core is closed: a change of the catalog is under way, or waits for those behind it.
    pub fn some_is_closed(&self) -> bool {
        let gates = self.gates.borrow();
        gates.values().any(|gate| gate.mode.get() != GateMode::Open)
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

    /// Begins a change of the catalog, or a step of the applier, once this core is not locked.
    pub async fn begin_change(&self) -> ChangePass {
        loop {
            if let Some(pass) = self.try_change() {
                return pass;
            }
            self.until_unlocked().await;
        }
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
