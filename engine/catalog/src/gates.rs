//! Gates of namespaces: operations pass, DDL closes a gate on every core and waits until it is
//! drained.
//!
//! A gate is entered on the core that coordinates an operation and held until the operation's last
//! effect, wherever that happens. So when every core has closed its gate of a namespace, nothing is
//! in flight there on the whole node.
//!
//! A gate may have several holders: a change of the catalog, and the critical section that the
//! change is a part of. It keeps out what the strongest of them does. The gates of a database are
//! those of all namespaces in it: its holder is a holder of each gate that there is, and of each
//! that comes. So an operation looks at one gate, and at nothing more while it is there.
//!
//! Before all of them stands the lock of `fsync {lock: true}`, which keeps every writer and every
//! change of the catalog out.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use pinion_runtime::sync::Notify;
use rustc_hash::FxHashMap;

use pinion_wire::idl::Namespace;

use crate::tally::{Acquisitions, CountedWait, Tally};

/// What a closed gate keeps out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GateMode {
    /// Every access passes.
    Open,
    /// Readers pass, writers wait (the beginning and the end of an index build).
    NoWrites,
    /// Short reads pass. Accesses that stay wait, as a change waits for those that stayed before
    /// it.
    NoStaying,
    /// Every access waits (a drop).
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

/// What is gated together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GateOf {
    Namespace(Namespace),
    /// All namespaces of a database, be they there or not, but for those that stay open.
    Database(HeldDatabase),
}

impl GateOf {
    pub(crate) fn name(&self) -> &str {
        match self {
            GateOf::Namespace(ns) => ns.as_str(),
            GateOf::Database(of) => &of.db,
        }
    }
}

/// A database that is gated as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldDatabase {
    db: String,
    /// Namespaces that are not, ascending.
    open: Arc<[Namespace]>,
}

impl HeldDatabase {
    pub fn new(db: String, mut open: Vec<Namespace>) -> HeldDatabase {
        open.sort();
        HeldDatabase {
            db,
            open: open.into(),
        }
    }

    fn has(&self, ns: &Namespace) -> bool {
        ns.db() == self.db && self.open.binary_search(ns).is_err()
    }
}

/// What a holder of a database keeps out of it.
struct DatabaseHolder {
    of: HeldDatabase,
    holder: Holder,
    mode: GateMode,
}

/// The number of a critical section, which no other of the process has.
pub type HoldId = NonZeroU64;

/// What has closed a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A change of the catalog.
    Ddl(u64),
    /// A migration, or a change that several shards make together. It may last longer than the task
    /// that began it.
    CriticalSection(HoldId),
}

/// What keeps an operation in front of a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClosedBy {
    Ddl,
    /// Also where a change of the catalog is made within it.
    CriticalSection,
}

/// Why a gate that is closed was not waited for any longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotDrained {
    /// Nothing is changed any more but by the log.
    GaveUp,
    /// Its holder has opened it.
    Opened,
}

/// The holders of a gate, and what each keeps out; none is listed that keeps out nothing.
#[derive(Clone, Default)]
struct Holders(Vec<(Holder, GateMode)>);

impl Holders {
    fn set(&mut self, holder: Holder, mode: GateMode) {
        self.0.retain(|(other, _)| *other != holder);
        if mode != GateMode::Open {
            self.0.push((holder, mode));
        }
    }

    fn mode_of(&self, holder: Holder) -> GateMode {
        let found = self.0.iter().find(|(other, _)| *other == holder);
        found.map_or(GateMode::Open, |(_, mode)| *mode)
    }

    fn strongest(&self) -> GateMode {
        let modes = self.0.iter().map(|(_, mode)| *mode);
        modes.max().unwrap_or(GateMode::Open)
    }

    /// What keeps this access out.
    fn keeping_out(&self, access: GateAccess) -> Option<ClosedBy> {
        let mut keeping = self.0.iter().filter(|(_, mode)| !mode.admits(access));
        let first = keeping.next()?;
        let is_section =
            |(holder, _): &(Holder, GateMode)| matches!(holder, Holder::CriticalSection(_));
        Some(match is_section(first) || keeping.any(is_section) {
            true => ClosedBy::CriticalSection,
            false => ClosedBy::Ddl,
        })
    }
}

impl GateMode {
    fn admits(self, access: GateAccess) -> bool {
        match access {
            GateAccess::Read => self < GateMode::Closed,
            GateAccess::ReadAndStay => self < GateMode::NoStaying,
            GateAccess::Write => self < GateMode::NoWrites,
        }
    }
}

struct Gate {
    holders: RefCell<Holders>,
    /// The strongest of the holders'.
    mode: Cell<GateMode>,
    /// All readers, and those of them that stay.
    readers: Cell<usize>,
    staying: Cell<usize>,
    writers: Cell<usize>,
    waiting_readers: Cell<usize>,
    waiting_writers: Cell<usize>,
    changed: Notify,
}

/// The operations behind a gate, and those that wait in front of it.
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
    /// Closed against every access.
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
            // A gate is closed against accesses that stay before it is closed against all.
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
    fn new(holders: Holders) -> Gate {
        Gate {
            mode: Cell::new(holders.strongest()),
            holders: RefCell::new(holders),
            readers: Cell::new(0),
            staying: Cell::new(0),
            writers: Cell::new(0),
            waiting_readers: Cell::new(0),
            waiting_writers: Cell::new(0),
            changed: Notify::new(),
        }
    }

    fn admits(&self, access: GateAccess) -> bool {
        self.mode.get().admits(access)
    }

    fn set(&self, holder: Holder, mode: GateMode) {
        let mut holders = self.holders.borrow_mut();
        holders.set(holder, mode);
        self.mode.set(holders.strongest());
        drop(holders);
        self.changed.notify_all();
    }

    /// Whether no operation that a mode keeps out is behind the gate.
    fn is_drained(&self, mode: GateMode) -> bool {
        self.writers.get() == 0
            && (mode < GateMode::NoStaying || self.staying.get() == 0)
            && (mode < GateMode::Closed || self.readers.get() == 0)
    }

    /// The counts of the operations that came for this access, and have not left.
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
    /// The databases that are held.
    databases: RefCell<Vec<DatabaseHolder>>,
    /// Whether there is any.
    holds_databases: Cell<bool>,
    /// Set on every core while the node is locked against writes, or about to be.
    locked: Cell<bool>,
    unlocked: Notify,
    /// Changes of the catalog that have started (on core 0 only), and steps of the applier.
    changes: Rc<Cell<usize>>,
    /// Only the log changes anything from here on: a change that waits behind a closed gate for
    /// operations that passed it before gives up.
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

/// Proof that a change of the catalog, or a step of the applier, began while the node was not
/// locked; it ends with this.
pub struct DdlGuard {
    changes: Rc<Cell<usize>>,
}

impl Drop for DdlGuard {
    fn drop(&mut self) {
        assert!(self.changes.get() > 0, "a DDL guard was dropped twice");
        self.changes.set(self.changes.get() - 1);
    }
}

/// Proof that an operation is behind a gate; leaving is dropping it.
pub struct AccessGuard {
    gate: Rc<Gate>,
    access: GateAccess,
}

impl AccessGuard {
    fn through(gate: Rc<Gate>, access: GateAccess) -> AccessGuard {
        for count in gate.behind(access) {
            count.set(count.get() + 1);
        }
        AccessGuard { gate, access }
    }
}

impl Drop for AccessGuard {
    fn drop(&mut self) {
        for count in self.gate.behind(self.access) {
            assert!(count.get() > 0, "an access guard was dropped twice");
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
        let gate = Rc::new(Gate::new(self.holders_of(ns)));
        gates.insert(ns.clone(), gate.clone());
        gate
    }

    /// What holds a namespace as a part of its database.
    fn holders_of(&self, ns: &Namespace) -> Holders {
        let mut holders = Holders::default();
        if self.holds_databases.get() {
            let databases = self.databases.borrow();
            for held in databases.iter().filter(|held| held.of.has(ns)) {
                holders.set(held.holder, held.mode);
            }
        }
        holders
    }

    /// True if an operation that begins now, and ends before anything else is run on this core, may
    /// pass.
    pub fn admits(&self, ns: &Namespace, access: GateAccess) -> bool {
        let gates = self.gates.borrow();
        !self.keeps_out(access)
            && match gates.get(ns) {
                Some(gate) => gate.admits(access),
                None if self.holds_databases.get() => {
                    self.holders_of(ns).strongest().admits(access)
                }
                None => true,
            }
    }

    /// What keeps this access in front of the gate; `None` if nothing does, or the node's lock
    /// alone.
    pub fn closed_by(&self, ns: &Namespace, access: GateAccess) -> Option<ClosedBy> {
        match self.gates.borrow().get(ns) {
            Some(gate) => gate.holders.borrow().keeping_out(access),
            None => self.holders_of(ns).keeping_out(access),
        }
    }

    /// Whether the node's lock keeps this access out.
    fn keeps_out(&self, access: GateAccess) -> bool {
        access == GateAccess::Write && self.locked.get()
    }

    /// Waits until the gate admits this access and passes it. A waiting operation holds nothing
    /// that the lock, or a change of the catalog that began before it, would wait for.
    pub async fn enter(&self, ns: &Namespace, access: GateAccess) -> AccessGuard {
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

    fn pass(&self, gate: Rc<Gate>, access: GateAccess) -> AccessGuard {
        self.tallies.of_access(access).acquired();
        if access == GateAccess::Write {
            self.tallies.node_writes.acquired();
        }
        AccessGuard::through(gate, access)
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

    /// The gates of this core that some operation is behind, waits for, or has closed.
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
    pub fn try_enter(&self, ns: &Namespace, access: GateAccess) -> Option<AccessGuard> {
        let gate = self.gate(ns);
        let admitted = !self.keeps_out(access) && gate.admits(access);
        admitted.then(|| self.pass(gate, access))
    }

    /// Sets what the holder keeps out; with `Open` it holds the gate no longer.
    pub fn set(&self, of: &GateOf, holder: Holder, mode: GateMode) {
        match of {
            // A gate that was never used is open.
            GateOf::Namespace(ns) if mode == GateMode::Open => {
                let gate = self.gates.borrow().get(ns).cloned();
                gate.inspect(|gate| gate.set(holder, mode));
            }
            GateOf::Namespace(ns) => self.gate(ns).set(holder, mode),
            GateOf::Database(of) => self.set_database(of, holder, mode),
        }
    }

    fn set_database(&self, of: &HeldDatabase, holder: Holder, mode: GateMode) {
        let mut databases = self.databases.borrow_mut();
        databases.retain(|held| held.holder != holder || held.of.db != of.db);
        if mode != GateMode::Open {
            databases.push(DatabaseHolder {
                of: of.clone(),
                holder,
                mode,
            });
        }
        self.holds_databases.set(!databases.is_empty());
        for gate in self.gates_of(of) {
            gate.set(holder, mode);
        }
    }

    fn gates_of(&self, of: &HeldDatabase) -> Vec<Rc<Gate>> {
        let gates = self.gates.borrow();
        let of_database = gates.iter().filter(|(ns, _)| of.has(ns));
        of_database.map(|(_, gate)| gate.clone()).collect()
    }

    /// What the holder keeps out.
    fn mode_of(&self, of: &GateOf, holder: Holder) -> GateMode {
        match of {
            GateOf::Namespace(ns) => {
                let gates = self.gates.borrow();
                let gate = gates.get(ns);
                gate.map_or(GateMode::Open, |gate| gate.holders.borrow().mode_of(holder))
            }
            GateOf::Database(of) => {
                let databases = self.databases.borrow();
                let is_this = |held: &&DatabaseHolder| held.holder == holder && held.of == *of;
                let found = databases.iter().find(is_this);
                found.map_or(GateMode::Open, |held| held.mode)
            }
        }
    }

    /// A gate with an operation behind it that the mode keeps out.
    fn undrained(&self, of: &GateOf, mode: GateMode) -> Option<Rc<Gate>> {
        let gates = match of {
            GateOf::Namespace(ns) => vec![self.gate(ns)],
            GateOf::Database(of) => self.gates_of(of),
        };
        gates.into_iter().find(|gate| !gate.is_drained(mode))
    }

    /// Closes a gate for its holder and waits until no operation that the mode keeps out is behind
    /// it. A holder may close it further.
    ///
    /// # Errors
    /// It is given up, or was set open meanwhile. Unless it was, the holder is to set it open, or
    /// to what it was before.
    pub async fn close(
        &self,
        of: &GateOf,
        holder: Holder,
        mode: GateMode,
    ) -> Result<(), NotDrained> {
        assert!(mode != GateMode::Open, "an open gate is not waited for");
        self.set(of, holder, mode);
        let tally = self.tallies.of_mode(mode);
        let mut waits = None;
        loop {
            if self.gives_up.get() {
                return Err(NotDrained::GaveUp);
            }
            if self.mode_of(of, holder) == GateMode::Open {
                return Err(NotDrained::Opened);
            }
            let Some(gate) = self.undrained(of, mode) else {
                if mode != GateMode::NoStaying {
                    tally.acquired();
                }
                return Ok(());
            };
            waits.get_or_insert_with(|| tally.begin_wait());
            gate.changed.notified().await;
        }
    }

    /// The same for an operation, which is listed while it waits.
    pub(crate) async fn close_for(
        &self,
        op_id: i32,
        of: &GateOf,
        holder: Holder,
        mode: GateMode,
    ) -> Result<(), NotDrained> {
        let _closing = Listed::new(&self.closing, op_id, mode);
        self.close(of, holder, mode).await
    }

    /// The operations that close a gate of this core and wait for those behind it.
    pub fn closing(&self) -> Vec<(i32, GateMode)> {
        self.closing.borrow().clone()
    }

    /// Makes changes of the catalog give up that have not started behind their gates, or admits
    /// changes again.
    pub fn give_up_changes(&self, gives_up: bool) {
        self.gives_up.set(gives_up);
        for gate in self.gates.borrow().values() {
            gate.changed.notify_all();
        }
    }

    /// Whether changes of the catalog are given up.
    pub(crate) fn gives_up(&self) -> bool {
        self.gives_up.get()
    }

    /// Whether some gate of this core is closed: a change of the catalog is under way, or waits for
    /// those behind it.
    pub fn some_is_closed(&self) -> bool {
        let gates = self.gates.borrow();
        gates.values().any(|gate| gate.mode.get() != GateMode::Open)
    }

    /// Keeps writers and changes of the catalog out of this core from now on; those in progress
    /// continue.
    pub fn lock(&self) {
        self.locked.set(true);
    }

    /// Counts that the node is locked: no operation writes any more.
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

    /// Whether this core is locked. A long write gives way then, where it can continue later.
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

    /// The operations that are to change the catalog and wait on this core until the node is
    /// unlocked.
    pub fn locked_out(&self) -> Vec<i32> {
        let locked_out = self.locked_out.borrow();
        locked_out.iter().map(|(op_id, ())| *op_id).collect()
    }

    /// Whether no writer is behind any gate of this core, and no change of the catalog under way.
    /// Once every core is locked and says so, nothing writes on the whole node.
    pub fn is_drained(&self) -> bool {
        let gates = self.gates.borrow();
        self.changes.get() == 0 && gates.values().all(|gate| gate.writers.get() == 0)
    }

    /// Whether no writer is behind the gate of a namespace of such a database, and no change of the
    /// catalog under way on this core.
    pub fn is_drained_of(&self, is_meant: impl Fn(&str) -> bool) -> bool {
        let gates = self.gates.borrow();
        let mut meant = gates.iter().filter(|(ns, _)| is_meant(ns.db()));
        self.changes.get() == 0 && meant.all(|(_, gate)| gate.writers.get() == 0)
    }

    /// Begins a change of the catalog, or a step of the applier, once this core is not locked.
    pub async fn begin_change(&self) -> DdlGuard {
        loop {
            if let Some(pass) = self.try_change() {
                return pass;
            }
            self.until_unlocked().await;
        }
    }

    /// Begins a change of the catalog unless this core is locked.
    pub(crate) fn try_change(&self) -> Option<DdlGuard> {
        if self.locked.get() {
            return None;
        }
        self.tallies.node_writes.acquired();
        self.changes.set(self.changes.get() + 1);
        Some(DdlGuard {
            changes: self.changes.clone(),
        })
    }
}
