//! Deciding intents: keys that a unit holds between placing its writes and being resolved or withdrawn.
//!
//! A newest read that meets an intent which will change the key waits for the unit; a write that meets any intent of
//! another unit conflicts. Nobody who holds intents waits for another's, so there is no deadlock.

use std::collections::BTreeMap;
use std::ops::Bound;

use pinion_runtime::sync::Notify;
use rustc_hash::FxHashMap;

use crate::types::{Direction, Key, Op, TreeId};

/// A unit of work with intents; unique among those alive on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u64);

/// What one key costs while it is held, beside its bytes.
const INTENT_OVERHEAD_BYTES: u64 = 320;

/// One held key.
#[derive(Debug)]
pub(crate) struct Intent {
    /// Who holds it.
    pub unit: UnitId,
    /// What will happen to it.
    pub op: Op,
    /// Length of the live value below the intent, for exact counts; none if there is none.
    pub before: Option<u64>,
}

struct Unit {
    keys: Vec<(TreeId, Key)>,
    decided: Notify,
}

/// Every intent of one partition.
#[derive(Default)]
pub(crate) struct Intents {
    trees: FxHashMap<TreeId, BTreeMap<Key, Intent>>,
    units: FxHashMap<UnitId, Unit>,
    bytes: u64,
}

impl Intents {
    /// Whether nobody holds anything, which is what hot paths ask first.
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

    /// The intent on a key.
    pub(crate) fn get(&self, tree: TreeId, key: &[u8]) -> Option<&Intent> {
        self.trees.get(&tree)?.get(key)
    }

    /// What to wait for before reading `key` at newest; none if no intent would change it.
    pub(crate) fn blocks_read(&self, tree: TreeId, key: &[u8]) -> Option<Notify> {
        if self.is_empty() {
            return None;
        }
        let intent = self.get(tree, key)?;
        (intent.op != Op::Check).then(|| self.units[&intent.unit].decided.clone())
    }

    /// The first intent that would change a key, from `from` in `direction`, and what to wait for.
    pub(crate) fn first_blocking(
        &self,
        tree: TreeId,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Option<(&Key, Notify)> {
        if self.is_empty() {
            return None;
        }
        let keys = self.trees.get(&tree)?;
        let blocking = |(_, intent): &(&Key, &Intent)| intent.op != Op::Check;
        let (key, intent) = match direction {
            Direction::Forward => keys
                .range::<[u8], _>((from, Bound::Unbounded))
                .find(blocking),
            Direction::Reverse => keys
                .range::<[u8], _>((Bound::Unbounded, from))
                .rev()
                .find(blocking),
        }?;
        Some((key, self.units[&intent.unit].decided.clone()))
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

    /// Records a unit's intents. Conflicts were checked before: a key held by another is a broken invariant.
    pub(crate) fn place(&mut self, unit: UnitId, intents: Vec<(TreeId, Key, Intent)>) {
        let mut keys = Vec::with_capacity(intents.len());
        for (tree, key, intent) in intents {
            assert_eq!(intent.unit, unit);
            self.bytes += cost(&key, &intent.op);
            keys.push((tree, key.clone()));
            let replaced = self.trees.entry(tree).or_default().insert(key, intent);
            assert!(replaced.is_none(), "an intent was placed over another");
        }
        let fresh = self.units.insert(
            unit,
            Unit {
                keys,
                decided: Notify::new(),
            },
        );
        assert!(
            fresh.is_none(),
            "unit {} placed its intents twice on one partition",
            unit.0
        );
    }

    /// Removes a unit's intents and returns them; the caller applies or forgets them, then wakes the waiters.
    ///
    /// # Panics
    /// If the unit holds nothing here: it was decided twice, or never placed.
    pub(crate) fn take(&mut self, unit: UnitId) -> (Vec<(TreeId, Key, Intent)>, Notify) {
        let Some(Unit { keys, decided }) = self.units.remove(&unit) else {
            panic!("unit {} was decided without intents", unit.0);
        };
        let mut intents = Vec::with_capacity(keys.len());
        for (tree, key) in keys {
            let held = self.trees.get_mut(&tree).expect("the tree of a held key");
            let intent = held.remove(&key).expect("a held key");
            assert_eq!(intent.unit, unit, "an intent changed its holder");
            if held.is_empty() {
                self.trees.remove(&tree);
            }
            self.bytes -= cost(&key, &intent.op);
            intents.push((tree, key, intent));
        }
        assert!(
            !self.units.is_empty() || (self.trees.is_empty() && self.bytes == 0),
            "intents without a unit"
        );
        (intents, decided)
    }
}

fn cost(key: &Key, op: &Op) -> u64 {
    let value = op.value_len().unwrap_or(0);
    INTENT_OVERHEAD_BYTES + 2 * key.len() as u64 + value as u64
}
