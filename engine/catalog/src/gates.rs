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

use crate::tally::{Acquisitions, CountedWait, Tally};

/// What a closed gate keeps out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GateMode {
    /// Everyone passes.
    Open,
    /// Readers pass, writers wait (the beginning and the end of an index build).
    NoWrites,
    /// Short reads pass. Accesses that stay wait, as a change waits for those that stayed before it.
    NoStaying,
    /// Everyone waits (a drop).
    Closed,
}

/// What an operation wants to do behind the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GateAccess {
    Read,
    /// Of a transaction, which stays behind the gate until it ends.
    ReadAndStay,
    Write,
}

struct Gate {
    mode: Cell<GateMode>,
    /// All readers, and those of them that stay.
    readers: Cell<usize>,
    staying: Cell<usize>,
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

/// How often the gates of a core were passed and closed, and waited for, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounts {
    pub reads: Acquisitions,
    pub writes: Acquisitions,
    /// Closed against writers.
    pub closed_to_writers: Acquisitions,
    /// Closed against everyone.
    pub closed: Acquisitions,
    /// Writers, changes of the catalog and steps of the applier that passed the node's lock.
    pub node_writes: Acquisitions,
    /// The node locked.
    pub node_locks: Acquisitions,
}

impl std::ops::AddAssign for GateCounts {
    fn add_assign(&mut self, other: GateCounts) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.closed_to_writers += other.closed_to_writers;
        self.closed += other.closed;
        self.node_writes += other.node_writes;
        self.node_locks += other.node_locks;
    }
}

/// What [`GateCounts`] is read off.
#[derive(Default)]
struct Tallies {
    reads: Tally,
    writes: Tally,
    closed_to_writers: Tally,
    closed: Tally,
    node_writes: Tally,
    node_locks: Tally,
}

impl Tallies {
    fn of_access(&self, access: GateAccess) -> &Tally {
        match access {
            GateAccess::Read | GateAccess::ReadAndStay => &self.reads,
            GateAccess::Write => &self.writes,
        }
    }

    fn of_mode(&self, mode: GateMode) -> &Tally {
        match mode {
            GateMode::Open | GateMode::NoWrites => &self.closed_to_writers,
            // A gate is closed against accesses that stay before it is closed against everyone.
            GateMode::NoStaying | GateMode::Closed => &self.closed,
        }
    }
}

/// One that waits in front of a gate, until it is dropped.
struct Waiting<'a>(&'a Cell<usize>);

impl Waiting<'_> {
    fn at(gate: &Gate, access: GateAccess) -> Waiting<'_> {
        let count = match access {
            GateAccess::Read | GateAccess::ReadAndStay => &gate.waiting_readers,
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
            GateAccess::ReadAndStay => self.mode.get() < GateMode::NoStaying,
            GateAccess::Write => self.mode.get() < GateMode::NoWrites,
        }
    }

    /// Whether nobody whom a mode keeps out is behind the gate.
    fn is_drained(&self, mode: GateMode) -> bool {
        self.writers.get() == 0
            && (mode < GateMode::NoStaying || self.staying.get() == 0)
            && (mode < GateMode::Closed || self.readers.get() == 0)
    }

    /// Who came for this access, and has not left.
    fn behind(&self, access: GateAccess) -> impl Iterator<Item = &Cell<usize>> {
        let (first, second) = match access {
            GateAccess::Read => (&self.readers, None),
            GateAccess::ReadAndStay => (&self.readers, Some(&self.staying)),
            GateAccess::Write => (&self.writers, None),
        };
        std::iter::once(first).chain(second)
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
    tallies: Tallies,
    /// The operations that close a gate and wait for those behind it.
    closing: RefCell<Vec<(i32, GateMode)>>,
    /// The operations that are to change the catalog and wait until the node is unlocked.
    locked_out: RefCell<Vec<(i32, ())>>,
}

/// An operation that waits, with what it waits for, until this is dropped.
struct Listed<'a, T> {
    list: &'a RefCell<Vec<(i32, T)>>,
    op_id: i32,
}

impl<'a, T> Listed<'a, T> {
    fn new(list: &'a RefCell<Vec<(i32, T)>>, op_id: i32, what: T) -> Listed<'a, T> {
        list.borrow_mut().push((op_id, what));
        Listed { list, op_id }
    }
}

impl<T> Drop for Listed<'_, T> {
    fn drop(&mut self) {
        let mut list = self.list.borrow_mut();
        let place = list.iter().position(|(op_id, _)| *op_id == self.op_id);
        list.swap_remove(place.expect("an operation that waits is listed"));
    }
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
        for count in gate.behind(access) {
            count.set(count.get() + 1);
        }
        Pass { gate, access }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        for count in self.gate.behind(self.access) {
            assert!(count.get() > 0, "a pass was dropped twice");
            count.set(count.get() - 1);
        }
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
            staying: Cell::new(0),
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
        loop {
            if self.keeps_out(access) {
                self.until_unlocked().await;
            } else if gate.admits(access) {
                break;
            } else {
                self.until_admitted(gate, access).await;
            }
        }
    }

    /// Waits until the gate admits this access, or the node's lock keeps it out.
    async fn until_admitted(&self, gate: &Gate, access: GateAccess) {
        let _counted = self.tallies.of_access(access).begin_wait();
        while !self.keeps_out(access) && !gate.admits(access) {
            gate.changed.notified().await;
        }
    }

    fn pass(&self, gate: Rc<Gate>, access: GateAccess) -> Pass {
        self.tallies.of_access(access).acquired();
        if access == GateAccess::Write {
            self.tallies.node_writes.acquired();
        }
        Pass::through(gate, access)
    }

    /// How often this core's gates and its part of the node's lock were acquired, and waited for.
    pub fn counts(&self) -> GateCounts {
        let tallies = &self.tallies;
        GateCounts {
            reads: tallies.reads.get(),
            writes: tallies.writes.get(),
            closed_to_writers: tallies.closed_to_writers.get(),
            closed: tallies.closed.get(),
            node_writes: tallies.node_writes.get(),
            node_locks: tallies.node_locks.get(),
        }
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
    /// on a namespace, so a gate is never closed twice, but for one that is closed further.
    /// False if that is given up: the gate is to be opened again.
    #[must_use]
    pub async fn close(&self, ns: &Namespace, mode: GateMode) -> bool {
        let gate = self.gate(ns);
        let before = gate.mode.replace(mode);
        assert!(
            before == GateMode::Open || (before, mode) == (GateMode::NoStaying, GateMode::Closed),
            "the gate of {ns} is closed twice"
        );
        let tally = self.tallies.of_mode(mode);
        let mut waits = None;
        while !self.gives_up.get() {
            if gate.is_drained(mode) {
                if mode != GateMode::NoStaying {
                    tally.acquired();
                }
                return true;
            }
            waits.get_or_insert_with(|| tally.begin_wait());
            gate.changed.notified().await;
        }
        false
    }

    /// The same for an operation, which is listed while it waits.
    pub(crate) async fn close_for(&self, op_id: i32, ns: &Namespace, mode: GateMode) -> bool {
        let _closing = Listed::new(&self.closing, op_id, mode);
        self.close(ns, mode).await
    }

    /// The operations that close a gate of this core and wait for those behind it.
    pub fn closing(&self) -> Vec<(i32, GateMode)> {
        self.closing.borrow().clone()
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

    /// Counts that the node is locked: nobody writes any more.
    pub fn lock_acquired(&self) {
        self.tallies.node_locks.acquired();
    }

    /// Counts that the node's lock waits for writers, until this is dropped.
    pub fn lock_waits(&self) -> CountedWait<'_> {
        self.tallies.node_locks.begin_wait()
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
        if !self.locked.get() {
            return;
        }
        let _counted = self.tallies.node_writes.begin_wait();
        while self.locked.get() {
            self.unlocked.notified().await;
        }
    }

    /// The same for an operation, which is listed while it waits.
    pub(crate) async fn until_unlocked_for(&self, op_id: i32) {
        if self.locked.get() {
            let _locked_out = Listed::new(&self.locked_out, op_id, ());
            self.until_unlocked().await;
        }
    }

    /// The operations that are to change the catalog and wait on this core until the node is unlocked.
    pub fn locked_out(&self) -> Vec<i32> {
        let locked_out = self.locked_out.borrow();
        locked_out.iter().map(|(op_id, ())| *op_id).collect()
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
        self.tallies.node_writes.acquired();
        self.changes.set(self.changes.get() + 1);
        Some(ChangePass {
            changes: self.changes.clone(),
        })
    }
}
