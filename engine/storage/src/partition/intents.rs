//! Intents: keys that a unit holds between placing its writes and being resolved or withdrawn.
//!
//! A unit is *open* while a client's transaction still takes statements: readers pass its intents
//! by. It is *deciding* from right before its timestamp is allotted, which single statements are
//! from the beginning: a newest read that meets an intent which will change the key waits for the
//! unit. It is *prepared* at a timestamp while another decides: newest reads and snapshots from
//! that timestamp on wait, unless they ask for what is decided alone. A write that meets any intent
//! of another unit conflicts, whatever its state. No holder of intents waits for another's to
//! write, so there is no deadlock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;
use rustc_hash::FxHashMap;

use crate::types::{Direction, Key, KeyRange, Op, ReadAt, TreeId};

/// A unit of work with intents; unique among those alive on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u64);

/// What one key costs while it is held, beside its bytes.
const INTENT_OVERHEAD_BYTES: u64 = 320;

/// How far a unit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitState {
    Open,
    Deciding,
    Prepared(Timestamp),
}

impl UnitState {
    /// Whether a read waits until such a unit is decided before it says what a key is that the unit
    /// changes.
    fn blocks(self, at: ReadAt) -> bool {
        match (self, at) {
            (UnitState::Open, _) => false,
            (UnitState::Deciding, at) => at.snapshot().is_none(),
            (UnitState::Prepared(_), ReadAt::NewestDecided | ReadAt::DecidedAt(_)) => false,
            (UnitState::Prepared(prepared), at) => at.snapshot().is_none_or(|ts| prepared <= ts),
        }
    }
}

/// One held key.
#[derive(Debug)]
pub(crate) struct Intent {
    /// The unit that holds it.
    pub unit: UnitId,
    /// What will happen to it.
    pub op: Op,
    /// Length of the live value below the intent, for exact counts; none if there is none.
    pub before: Option<u64>,
    /// The partition's number of the write, for the unit's own reads.
    pub seq: u64,
}

impl Intent {
    /// Whether it changes its key.
    pub fn changes(&self) -> bool {
        self.op != Op::Check
    }
}

struct Unit {
    state: UnitState,
    keys: Vec<(TreeId, Key)>,
    bytes: u64,
    /// How many keys there were before the last statement, and what that replaced of them.
    keys_before: usize,
    replaced: Vec<(TreeId, Key, Op, u64)>,
    /// What decides it, once it is prepared.
    claimed_by: Option<UnitId>,
    decided: Notify,
}

/// Every intent of one partition.
#[derive(Default)]
pub(crate) struct Intents {
    trees: FxHashMap<TreeId, BTreeMap<Key, Intent>>,
    units: FxHashMap<UnitId, Unit>,
    bytes: u64,
    /// Bytes of the open units among them.
    open_bytes: u64,
    /// Units that are deciding.
    deciding: usize,
    prepared: BTreeSet<(Timestamp, UnitId)>,
}

impl Intents {
    /// Whether no unit holds anything, which is what hot paths ask first.
    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Number of keys that are held.
    pub(crate) fn len(&self) -> usize {
        self.units.values().map(|unit| unit.keys.len()).sum()
    }

    /// Accounted bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Those of open units.
    pub(crate) fn open_bytes(&self) -> u64 {
        self.open_bytes
    }

    /// Those of one unit.
    pub(crate) fn bytes_of(&self, unit: UnitId) -> u64 {
        self.units.get(&unit).map_or(0, |unit| unit.bytes)
    }

    /// How far a unit has come that holds something here.
    pub(crate) fn state_of(&self, unit: UnitId) -> Option<UnitState> {
        self.units.get(&unit).map(|unit| unit.state)
    }

    /// The open units.
    pub(crate) fn open_units(&self) -> Vec<UnitId> {
        let open = |(_, unit): &(&UnitId, &Unit)| unit.state == UnitState::Open;
        let mut units: Vec<UnitId> = self.units.iter().filter(open).map(|(&id, _)| id).collect();
        units.sort_unstable();
        units
    }

    /// Whether a read of the tree may meet an intent that it waits for, or that is its own:
    /// otherwise it need not look here.
    #[inline]
    pub(crate) fn concern(&self, tree: TreeId, at: ReadAt) -> bool {
        if self.is_empty() {
            return false;
        }
        let lowest = self.prepared.first().map(|&(ts, _)| ts);
        let concern = match at {
            ReadAt::Newest => self.deciding > 0 || lowest.is_some(),
            ReadAt::NewestDecided => self.deciding > 0,
            ReadAt::DecidedAt(_) => false,
            ReadAt::At(ts) => lowest.is_some_and(|lowest| lowest <= ts),
            ReadAt::In { at, unit } => {
                lowest.is_some_and(|lowest| lowest <= at) || self.units.contains_key(&unit)
            }
        };
        concern && self.trees.contains_key(&tree)
    }

    /// The intent on a key.
    pub(crate) fn get(&self, tree: TreeId, key: &[u8]) -> Option<&Intent> {
        self.trees.get(&tree)?.get(key)
    }

    /// What to wait for before reading `key`; none if no intent would change it for this read.
    pub(crate) fn blocks_read(&self, tree: TreeId, key: &[u8], at: ReadAt) -> Option<Notify> {
        let intent = self.get(tree, key)?;
        self.blocking(intent, at)
    }

    fn blocking(&self, intent: &Intent, at: ReadAt) -> Option<Notify> {
        let unit = &self.units[&intent.unit];
        let is_own = matches!(at, ReadAt::In { unit, .. } if unit == intent.unit);
        (intent.changes() && !is_own && unit.state.blocks(at)).then(|| unit.decided.clone())
    }

    /// What to wait for before reading on from `from` in `direction`, as far as `to` or, without
    /// that, to the end of the range: the first intent on the way that would change a key for this
    /// read.
    pub(crate) fn first_blocking(
        &self,
        tree: TreeId,
        (from, to): (Bound<&[u8]>, Option<&[u8]>),
        (range, direction): (&KeyRange, Direction),
        at: ReadAt,
    ) -> Option<Notify> {
        let keys = self.trees.get(&tree)?;
        let is_within = |key: &Key| match (to, direction) {
            (Some(to), Direction::Forward) => key.as_slice() <= to,
            (Some(to), Direction::Reverse) => key.as_slice() >= to,
            (None, _) => range.contains(key),
        };
        let mut on_the_way = walk(keys, from, direction).take_while(|(key, _)| is_within(key));
        on_the_way.find_map(|(_, intent)| self.blocking(intent, at))
    }

    /// The first key from `from` in `direction` that the unit changes, up to `to` or the end of the
    /// range, and what it does to it.
    pub(crate) fn next_own<'a>(
        &'a self,
        unit: UnitId,
        tree: TreeId,
        (from, to): (Bound<&'a [u8]>, Option<&'a [u8]>),
        (range, direction): (&'a KeyRange, Direction),
    ) -> Option<(&'a Key, &'a Intent)> {
        let keys = self.trees.get(&tree)?;
        let is_within = |key: &Key| match (to, direction) {
            (Some(to), Direction::Forward) => key.as_slice() <= to,
            (Some(to), Direction::Reverse) => key.as_slice() >= to,
            (None, _) => range.contains(key),
        };
        walk(keys, from, direction)
            .take_while(|(key, _)| is_within(key))
            .find(|(_, intent)| intent.unit == unit && intent.changes())
    }

    /// What the unit itself does to a key; none if it does not change it.
    pub(crate) fn own(&self, unit: UnitId, tree: TreeId, key: &[u8]) -> Option<&Intent> {
        let intent = self.get(tree, key)?;
        (intent.unit == unit && intent.changes()).then_some(intent)
    }

    /// The intents on keys that begin with `prefix`.
    pub(crate) fn with_prefix<'a>(
        &'a self,
        tree: TreeId,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = (&'a Key, &'a Intent)> {
        let range = (Bound::Included(prefix), Bound::Unbounded);
        let keys = self.trees.get(&tree).into_iter();
        keys.flat_map(move |keys| keys.range::<[u8], _>(range))
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// Records a statement's intents. Conflicts were checked before: a key held by another is a
    /// broken invariant. A unit that is there already is open, and stays so; what it does to a key
    /// is replaced, but for a mere check.
    pub(crate) fn place(
        &mut self,
        unit: UnitId,
        state: UnitState,
        intents: Vec<(TreeId, Key, Intent)>,
    ) {
        let holder = self.units.entry(unit).or_insert_with(|| Unit {
            state,
            keys: Vec::with_capacity(intents.len()),
            bytes: 0,
            keys_before: 0,
            replaced: Vec::new(),
            claimed_by: None,
            decided: Notify::new(),
        });
        let is_fresh = holder.keys.is_empty();
        assert!(
            is_fresh || (state == UnitState::Open && holder.state == state),
            "unit {} placed its intents twice on one partition",
            unit.0
        );
        holder.keys_before = holder.keys.len();
        holder.replaced = Vec::new();
        let before = holder.bytes;
        for (tree, key, intent) in intents {
            assert_eq!(intent.unit, unit);
            let keys = self.trees.entry(tree).or_default();
            if let Some(there) = keys.get_mut(&key) {
                assert!(
                    !is_fresh && there.unit == unit,
                    "an intent was placed over another"
                );
                if intent.changes() {
                    holder.bytes += value_cost(&intent.op);
                    holder.bytes -= value_cost(&there.op);
                    let op = std::mem::replace(&mut there.op, intent.op);
                    let seq = std::mem::replace(&mut there.seq, intent.seq);
                    holder.replaced.push((tree, key, op, seq));
                }
                continue;
            }
            holder.bytes += cost(&key, &intent.op);
            holder.keys.push((tree, key.clone()));
            keys.insert(key, intent);
        }
        let after = holder.bytes;
        self.bytes = self.bytes + after - before;
        if is_fresh {
            self.count(unit, state);
        }
        if state == UnitState::Open {
            self.open_bytes = self.open_bytes + after - before;
        }
    }

    /// Takes an open unit's last statement back. Whatever else became of the unit meanwhile,
    /// nothing is left of that statement.
    pub(crate) fn undo(&mut self, unit: UnitId) {
        let Some(holder) = self.units.get_mut(&unit) else {
            return;
        };
        assert!(
            holder.state == UnitState::Open,
            "a statement of a unit is taken back that was decided"
        );
        let before = holder.bytes;
        for (tree, key, op, seq) in std::mem::take(&mut holder.replaced).into_iter().rev() {
            let held = self
                .trees
                .get_mut(&tree)
                .and_then(|keys| keys.get_mut(&key));
            let intent = held.expect("a held key");
            holder.bytes += value_cost(&op);
            holder.bytes -= value_cost(&intent.op);
            intent.op = op;
            intent.seq = seq;
        }
        for (tree, key) in holder.keys.split_off(holder.keys_before) {
            let intent = remove(&mut self.trees, tree, &key);
            holder.bytes -= cost(&key, &intent.op);
        }
        let after = holder.bytes;
        self.bytes = self.bytes + after - before;
        self.open_bytes = self.open_bytes + after - before;
        if self.units[&unit].keys.is_empty() {
            self.take(unit);
        }
    }

    /// Brings a unit into another state.
    ///
    /// # Panics
    /// If the unit holds nothing here, or went back.
    pub(crate) fn advance(&mut self, unit: UnitId, state: UnitState) {
        let holder = self.units.get_mut(&unit);
        let holder = holder.unwrap_or_else(|| panic!("unit {} holds nothing", unit.0));
        let before = std::mem::replace(&mut holder.state, state);
        holder.replaced = Vec::new();
        let is_forward = matches!(
            (before, state),
            (UnitState::Open, UnitState::Deciding) | (UnitState::Deciding, UnitState::Prepared(_))
        );
        assert!(is_forward, "a unit went from {before:?} to {state:?}");
        if let UnitState::Prepared(_) = state {
            // A reader that does not wait for what is prepared has waited for it to be decided.
            holder.decided.notify_all();
        }
        self.uncount(unit, before);
        self.count(unit, state);
    }

    /// Takes a prepared unit for one that decides it; false if it is not there, or another has it.
    pub(crate) fn claim(&mut self, unit: UnitId, by: UnitId) -> bool {
        match self.units.get_mut(&unit) {
            Some(holder) if matches!(holder.state, UnitState::Prepared(_)) => {
                *holder.claimed_by.get_or_insert(by) == by
            }
            _ => false,
        }
    }

    /// Gives a unit back that was not decided after all.
    pub(crate) fn unclaim(&mut self, unit: UnitId, by: UnitId) {
        if let Some(holder) = self.units.get_mut(&unit) {
            holder.claimed_by.take_if(|claimed_by| *claimed_by == by);
        }
    }

    /// Takes a unit that is in `state` into account.
    fn count(&mut self, unit: UnitId, state: UnitState) {
        match state {
            UnitState::Open => {}
            UnitState::Deciding => self.deciding += 1,
            UnitState::Prepared(ts) => {
                self.prepared.insert((ts, unit));
            }
        }
    }

    fn uncount(&mut self, unit: UnitId, state: UnitState) {
        match state {
            UnitState::Open => self.open_bytes -= self.units.get(&unit).map_or(0, |u| u.bytes),
            UnitState::Deciding => self.deciding -= 1,
            UnitState::Prepared(ts) => {
                self.prepared.remove(&(ts, unit));
            }
        }
    }

    /// Removes a unit's intents and returns them; the caller applies or forgets them, then wakes
    /// the waiters.
    ///
    /// # Panics
    /// If the unit holds nothing here: it was decided twice, or never placed.
    pub(crate) fn take(&mut self, unit: UnitId) -> (Vec<(TreeId, Key, Intent)>, Notify) {
        let Some(state) = self.state_of(unit) else {
            panic!("unit {} was decided without intents", unit.0);
        };
        self.uncount(unit, state);
        let Unit {
            keys,
            decided,
            bytes,
            ..
        } = self.units.remove(&unit).expect("it was there just now");
        let (mut intents, mut freed) = (Vec::with_capacity(keys.len()), 0);
        for (tree, key) in keys {
            let intent = remove(&mut self.trees, tree, &key);
            assert_eq!(intent.unit, unit, "an intent changed its holder");
            freed += cost(&key, &intent.op);
            intents.push((tree, key, intent));
        }
        assert_eq!(freed, bytes, "a unit's bytes are those of its intents");
        self.bytes -= bytes;
        assert!(
            !self.units.is_empty()
                || (self.trees.is_empty()
                    && (self.bytes, self.open_bytes, self.deciding) == (0, 0, 0)
                    && self.prepared.is_empty()),
            "intents without a unit"
        );
        (intents, decided)
    }

    /// Wakes all that wait for a unit, to look again.
    pub(crate) fn wake_all(&self) {
        self.units
            .values()
            .for_each(|unit| unit.decided.notify_all());
    }
}

type Trees = FxHashMap<TreeId, BTreeMap<Key, Intent>>;

fn remove(trees: &mut Trees, tree: TreeId, key: &Key) -> Intent {
    let held = trees.get_mut(&tree).expect("the tree of a held key");
    let intent = held.remove(key).expect("a held key");
    if held.is_empty() {
        trees.remove(&tree);
    }
    intent
}

/// The held keys beyond `from` in `direction`.
fn walk<'a>(
    keys: &'a BTreeMap<Key, Intent>,
    from: Bound<&'a [u8]>,
    direction: Direction,
) -> Box<dyn Iterator<Item = (&'a Key, &'a Intent)> + 'a> {
    match direction {
        Direction::Forward => Box::new(keys.range::<[u8], _>((from, Bound::Unbounded))),
        Direction::Reverse => Box::new(keys.range::<[u8], _>((Bound::Unbounded, from)).rev()),
    }
}

fn value_cost(op: &Op) -> u64 {
    op.value_len().unwrap_or(0) as u64
}

/// What holding a key takes.
pub(crate) fn cost(key: &Key, op: &Op) -> u64 {
    INTENT_OVERHEAD_BYTES + 2 * key.len() as u64 + value_cost(op)
}
