//! The delta: every change since the base, in memory, ordered by key, with several versions of each
//! key.
//!
//! A version may arrive in any timestamp order. A lookup takes the newest version at or below the
//! timestamp it reads at, by the time of its commit or, where nothing prepared is waited for, by
//! that of the entry that names it; a key without such a version is looked up in the layer
//! below. Bytes are accounted as they come and go.
//!
//! A version that no snapshot can see any more is dropped when its key is written again, so a key
//! that is changed often costs what its readers need and not what its writers did.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use pinion_clock::Timestamp;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::key_map::KeyMap;
use crate::types::{Direction, Key, ReadAt, TreeId};

/// What one key costs beside its bytes: key, chain, its head, and the share of a leaf's free room.
const KEY_OVERHEAD_BYTES: u64 = 160;
/// What one version costs beside its value: itself, and the buffer's own allocation.
const VERSION_OVERHEAD_BYTES: u64 = 96;

/// One version of one key.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// When it was committed. `Timestamp::MIN` for an unreplicated write, which is visible at any
    /// timestamp.
    pub ts: Timestamp,
    /// The timestamp of the entry that records it: above `ts` for what was prepared and committed
    /// in the past, else the same. A key is held until that entry is there, so the versions of a
    /// key have one order by either.
    pub decided: Timestamp,
    /// The partition's number of the write; identifies the version.
    pub seq: u64,
    /// The value; none for a deletion.
    pub value: Option<Bytes>,
}

impl Version {
    fn bytes(&self) -> u64 {
        VERSION_OVERHEAD_BYTES + self.value.as_ref().map_or(0, |value| value.len() as u64)
    }
}

/// What readers of a partition may still ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needed<'a> {
    /// Snapshots at or above it may be opened at any time. Nothing that an entry at or below it
    /// records arrives later.
    pub horizon: Timestamp,
    /// Snapshots that are kept readable whatever the horizon.
    pub pins: &'a BTreeMap<Timestamp, u32>,
}

impl Needed<'_> {
    /// Whether some snapshot sees a version whose successor is `next`. One that does not wait for
    /// what is prepared sees it for as long as the successor was not decided.
    fn sees(&self, version: &Version, next: &Version) -> bool {
        next.decided > self.horizon || (self.pins.range(version.ts..next.decided)).next().is_some()
    }
}

/// The versions of one key, oldest first: appending the newest, which is the common case, moves
/// nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain(SmallVec<[Version; 1]>);

impl Chain {
    /// The newest version.
    pub(crate) fn newest(&self) -> &Version {
        self.0
            .last()
            .expect("a chain in the delta has at least one version")
    }

    /// The version that a read at `at` sees.
    pub(crate) fn visible(&self, at: ReadAt) -> Option<&Version> {
        match at {
            ReadAt::Newest | ReadAt::NewestDecided => Some(self.newest()),
            ReadAt::At(ts) | ReadAt::In { at: ts, .. } => self.last(|version| version.ts <= ts),
            ReadAt::DecidedAt(ts) => self.decided_by(ts),
        }
    }

    /// The last version that `is_seen`, as those before it are.
    fn last(&self, is_seen: impl Fn(&Version) -> bool) -> Option<&Version> {
        let newest = self.newest();
        if is_seen(newest) {
            return Some(newest);
        }
        let seen = self.0.partition_point(is_seen);
        seen.checked_sub(1).map(|index| &self.0[index])
    }

    /// Every version.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Version> {
        self.0.iter().rev()
    }

    /// The newest version that the log up to `ts` records.
    pub(crate) fn decided_by(&self, ts: Timestamp) -> Option<&Version> {
        self.last(|version| version.decided <= ts)
    }

    /// The versions that the log beyond `ts` records, oldest first.
    pub(crate) fn decided_above(&self, ts: Timestamp) -> &[Version] {
        &self.0[self.0.partition_point(|version| version.decided <= ts)..]
    }

    /// Drops the versions that no reader needs; returns their bytes. The newest always stays.
    fn prune(&mut self, needed: &Needed<'_>) -> u64 {
        // Pinned versions stay for long; a chain of many is looked through only each time it has
        // doubled.
        if self.0.len() < 2
            || self.0[1].decided > needed.horizon
            || (!needed.pins.is_empty() && !self.0.len().is_power_of_two())
        {
            return 0;
        }
        let (mut kept, mut freed) = (0, 0);
        for index in 0..self.0.len() {
            let successor = self.0.get(index + 1);
            if successor.is_none_or(|next| needed.sees(&self.0[index], next)) {
                self.0.swap(kept, index);
                kept += 1;
            } else {
                freed += self.0[index].bytes();
            }
        }
        self.0.truncate(kept);
        if self.0.capacity() > 4 * kept.max(4) {
            self.0.shrink_to_fit();
        }
        freed
    }

    /// What the key takes with all its versions.
    pub(crate) fn bytes(&self, key: &Key) -> u64 {
        let versions: u64 = self.0.iter().map(Version::bytes).sum();
        KEY_OVERHEAD_BYTES + key.len() as u64 + versions
    }

    /// Adds a version; one of the same timestamp is replaced. Returns the bytes added and removed.
    fn insert(&mut self, version: Version) -> (u64, u64) {
        let added = version.bytes();
        let above = match self.0.last() {
            Some(newest) if newest.ts < version.ts => self.0.len(),
            _ => self.0.partition_point(|other| other.ts <= version.ts),
        };
        if above > 0 && self.0[above - 1].ts == version.ts {
            let removed = self.0[above - 1].bytes();
            self.0[above - 1] = version;
            return (added, removed);
        }
        self.0.insert(above, version);
        (added, 0)
    }
}

/// What the newest version of a key in one layer amounts to: its timestamp, and its value's length
/// unless it is a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    pub ts: Timestamp,
    pub len: Option<u64>,
}

impl Newest {
    pub(crate) fn of(version: &Version) -> Newest {
        Newest {
            ts: version.ts,
            len: version.value.as_ref().map(|value| value.len() as u64),
        }
    }
}

/// The changed keys of one tree.
#[derive(Debug, Default)]
pub(crate) struct TreeDelta {
    keys: KeyMap<Chain>,
    bytes: u64,
}

impl TreeDelta {
    /// The versions of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Chain> {
        self.keys.get(key)
    }

    /// Whether no key is changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The number of changed keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The changed keys in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Chain)> {
        self.keys.iter()
    }

    /// The changed keys from `key` on.
    pub(crate) fn range_from(&self, key: &[u8]) -> impl Iterator<Item = (&Key, &Chain)> {
        self.keys.range_from(key)
    }

    /// The first changed key beyond `from` in `direction`.
    pub(crate) fn next(&self, from: Bound<&[u8]>, direction: Direction) -> Option<(&Key, &Chain)> {
        self.keys.next(from, direction)
    }

    /// Accounted bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives up the map, so that it can be dropped a piece at a time.
    pub(crate) fn into_keys(self) -> KeyMap<Chain> {
        self.keys
    }

    fn insert(
        &mut self,
        key: &[u8],
        version: Version,
        needed: &Needed<'_>,
    ) -> (u64, u64, Option<Newest>, Timestamp) {
        let added_alone = KEY_OVERHEAD_BYTES + key.len() as u64 + version.bytes();
        let newest_alone = version.ts;
        let there = |chain: &mut Chain, version| {
            let before = Newest::of(chain.newest());
            let (added, replaced) = chain.insert(version);
            let pruned = chain.prune(needed);
            (added, replaced + pruned, Some(before), chain.newest().ts)
        };
        let absent = |version| Chain(SmallVec::from_buf([version]));
        let (added, removed, before, newest) = self
            .keys
            .change(key, version, there, absent)
            .unwrap_or((added_alone, 0, None, newest_alone));
        self.bytes = self.bytes + added - removed;
        (added, removed, before, newest)
    }
}

/// The changes of every tree of one partition.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    trees: FxHashMap<TreeId, TreeDelta>,
    bytes: u64,
    /// Grows with every change of what readers find here.
    edits: u64,
}

impl Delta {
    /// The changes of one tree.
    pub(crate) fn tree(&self, tree: TreeId) -> Option<&TreeDelta> {
        self.trees.get(&tree)
    }

    /// The version of `key` that a read at `at` sees in this layer.
    pub(crate) fn visible(&self, tree: TreeId, key: &[u8], at: ReadAt) -> Option<&Version> {
        self.trees.get(&tree)?.get(key)?.visible(at)
    }

    /// Adds a version, and drops those of its key that no reader needs. Returns what this layer
    /// said of the key before, and the timestamp of its newest version now.
    pub(crate) fn insert(
        &mut self,
        tree: TreeId,
        key: &[u8],
        version: Version,
        needed: &Needed<'_>,
    ) -> (Option<Newest>, Timestamp) {
        let (added, removed, before, newest) = self
            .trees
            .entry(tree)
            .or_default()
            .insert(key, version, needed);
        self.bytes = self.bytes + added - removed;
        self.edits += 1;
        (before, newest)
    }

    /// Adds a version that was here before, unless another one of its timestamp has come meanwhile.
    /// Returns the bytes added.
    pub(crate) fn restore(
        &mut self,
        tree: TreeId,
        key: &[u8],
        version: Version,
        needed: &Needed<'_>,
    ) -> u64 {
        let there = self.visible(tree, key, ReadAt::At(version.ts));
        if there.is_some_and(|there| there.ts == version.ts) {
            return 0;
        }
        let before = self.bytes;
        self.insert(tree, key, version, needed);
        self.bytes.saturating_sub(before)
    }

    /// As long as it stays the same, a partition's deltas hold what they held.
    pub(crate) fn edits(&self) -> u64 {
        self.edits
    }

    /// Says that another delta of the partition has changed.
    pub(crate) fn note_edit(&mut self) {
        self.edits += 1;
    }

    /// Empties this and returns what was here.
    pub(crate) fn take(&mut self) -> Delta {
        let next = Delta {
            edits: self.edits + 1,
            ..Delta::default()
        };
        std::mem::replace(self, next)
    }

    /// The changed trees in order.
    pub(crate) fn tree_ids(&self) -> Vec<TreeId> {
        let mut ids: Vec<TreeId> = self.trees.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Takes one tree's changes out.
    pub(crate) fn remove_tree(&mut self, tree: TreeId) -> Option<TreeDelta> {
        let removed = self.trees.remove(&tree)?;
        self.bytes -= removed.bytes;
        self.edits += 1;
        Some(removed)
    }

    /// Takes the changes of a tree's keys below `key` out. The caller knows what they take, since
    /// it has been through them: `bytes`.
    pub(crate) fn take_below(&mut self, tree: TreeId, key: &[u8], bytes: u64) -> KeyMap<Chain> {
        let Some(delta) = self.trees.get_mut(&tree) else {
            return KeyMap::default();
        };
        delta.bytes -= bytes;
        self.bytes -= bytes;
        self.edits += 1;
        delta.keys.take_below(key)
    }

    /// Accounted bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives up the maps, so that they can be dropped a piece at a time.
    pub(crate) fn into_trees(self) -> impl Iterator<Item = TreeDelta> {
        self.trees.into_values()
    }
}

/// The version that wins where two layers hold the key: the later timestamp, and of equal ones the
/// upper layer's.
pub(crate) fn newer<'a>(
    upper: Option<&'a Version>,
    lower: Option<&'a Version>,
) -> Option<&'a Version> {
    match (upper, lower) {
        (Some(upper), Some(lower)) if lower.ts > upper.ts => Some(lower),
        (Some(upper), _) => Some(upper),
        (None, lower) => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything is needed.
    const ALL: Needed<'static> = Needed {
        horizon: Timestamp::MIN,
        pins: &BTreeMap::new(),
    };

    fn version(ts: u64, value: &str) -> Version {
        Version {
            ts: Timestamp::from_u64(ts),
            decided: Timestamp::from_u64(ts),
            seq: ts,
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
        }
    }

    #[test]
    fn a_chain_answers_in_timestamp_order_whatever_the_order_of_arrival() {
        for order in [[1u64, 5, 9], [9, 5, 1], [5, 9, 1], [5, 1, 9]] {
            let mut delta = Delta::default();
            for ts in order {
                delta.insert(TreeId(7), b"k", version(ts, &ts.to_string()), &ALL);
            }
            let read = |at| delta.visible(TreeId(7), b"k", at).map(|v| v.ts.as_u64());
            for (ts, expected) in [
                (0, None),
                (1, Some(1)),
                (4, Some(1)),
                (5, Some(5)),
                (8, Some(5)),
                (9, Some(9)),
                (99, Some(9)),
            ] {
                assert_eq!(
                    read(ReadAt::At(Timestamp::from_u64(ts))),
                    expected,
                    "{order:?} at {ts}"
                );
            }
            assert_eq!(read(ReadAt::Newest), Some(9));
        }
    }

    #[test]
    fn what_was_committed_late_is_there_for_who_waits_and_once_it_was_decided_for_all() {
        let check = |needed: &Needed<'_>, at: ReadAt, expected: Option<u64>| {
            let mut delta = Delta::default();
            let late = Version {
                decided: Timestamp::from_u64(12),
                ..version(7, "late")
            };
            for version in [version(5, "old"), late, version(14, "new")] {
                delta.insert(TreeId(1), b"k", version, needed);
            }
            let seen = delta.visible(TreeId(1), b"k", at);
            assert_eq!(seen.map(|seen| seen.ts.as_u64()), expected, "{at:?}");
        };
        let ts = Timestamp::from_u64;
        let pins = BTreeMap::from([(ts(9), 1)]);
        let pinned = Needed {
            horizon: ts(8),
            pins: &pins,
        };
        for needed in [ALL, pinned] {
            check(&needed, ReadAt::DecidedAt(ts(9)), Some(5));
            check(&needed, ReadAt::At(ts(9)), Some(7));
            check(&needed, ReadAt::DecidedAt(ts(12)), Some(7));
            check(&needed, ReadAt::At(ts(13)), Some(7));
            check(&needed, ReadAt::DecidedAt(ts(14)), Some(14));
            check(&needed, ReadAt::NewestDecided, Some(14));
        }
        check(&ALL, ReadAt::DecidedAt(ts(4)), None);
    }

    #[test]
    fn bytes_return_to_zero_when_trees_leave() {
        let mut delta = Delta::default();
        for ts in 1..50u64 {
            delta.insert(
                TreeId(ts % 3),
                &[(ts % 7) as u8],
                version(ts / 2, "some value"),
                &ALL,
            );
        }
        assert!(delta.bytes() > 0);
        let sum: u64 = delta
            .tree_ids()
            .iter()
            .map(|&id| delta.tree(id).unwrap().bytes())
            .sum();
        assert_eq!(sum, delta.bytes());
        for id in delta.tree_ids() {
            delta.remove_tree(id);
        }
        assert_eq!(delta.bytes(), 0);
        assert!(delta.tree_ids().is_empty());
    }

    #[test]
    fn what_is_taken_out_by_keys_is_what_it_was_counted_as() {
        let mut delta = Delta::default();
        for ts in 1..2000u64 {
            let key = format!("key {}", ts * 7919 % 500);
            delta.insert(TreeId(1), key.as_bytes(), version(ts, &"v".repeat(9)), &ALL);
        }
        let mut left = 500;
        for end in ["k", "key 17", "key 17", "key 300", "key 4999", "z"] {
            let below = |delta: &Delta| -> (usize, u64) {
                let keys = delta.tree(TreeId(1)).unwrap().iter();
                let below = keys.filter(|(key, _)| key.as_slice() < end.as_bytes());
                below.fold((0, 0), |(keys, bytes), (key, chain)| {
                    (keys + 1, bytes + chain.bytes(key))
                })
            };
            let (keys, bytes) = below(&delta);
            let taken = delta.take_below(TreeId(1), end.as_bytes(), bytes);
            left -= keys;
            assert_eq!((taken.len(), below(&delta)), (keys, (0, 0)), "below {end}");
            assert_eq!(delta.tree(TreeId(1)).unwrap().len(), left);
        }
        assert_eq!((left, delta.bytes()), (0, 0));
    }

    #[test]
    fn an_equal_timestamp_replaces() {
        let mut delta = Delta::default();
        delta.insert(TreeId(1), b"k", version(0, "a"), &ALL);
        let before = delta.bytes();
        delta.insert(TreeId(1), b"k", version(0, "b"), &ALL);
        assert_eq!(delta.bytes(), before);
        assert_eq!(
            delta
                .visible(TreeId(1), b"k", ReadAt::Newest)
                .unwrap()
                .value
                .as_deref(),
            Some(&b"b"[..])
        );
    }

    #[test]
    fn only_versions_that_a_snapshot_may_see_stay() {
        // Versions 1..=8 of a key, with a horizon and pins: those that stay.
        let check = |horizon: u64, pins: &[u64], expected: &[u64]| {
            let pins = pins
                .iter()
                .map(|&pin| (Timestamp::from_u64(pin), 1))
                .collect();
            let needed = Needed {
                horizon: Timestamp::from_u64(horizon),
                pins: &pins,
            };
            let mut delta = Delta::default();
            for ts in 1..=8 {
                delta.insert(TreeId(1), b"k", version(ts, "some value"), &needed);
            }
            let chain = delta.tree(TreeId(1)).unwrap().get(b"k").unwrap();
            let kept: Vec<u64> = chain.0.iter().map(|version| version.ts.as_u64()).collect();
            assert_eq!(kept, expected, "horizon {horizon}, pins {pins:?}");
            let bytes: u64 = chain.0.iter().map(Version::bytes).sum();
            assert_eq!(delta.bytes(), KEY_OVERHEAD_BYTES + 1 + bytes);
        };
        check(0, &[], &[1, 2, 3, 4, 5, 6, 7, 8]);
        check(5, &[], &[5, 6, 7, 8]);
        check(6, &[2, 3], &[2, 3, 6, 7, 8]);
        check(8, &[], &[8]);
        // With pins a chain is looked through only when it has doubled.
        check(9, &[4], &[4, 7, 8]);
        check(9, &[9], &[8]);
        check(u64::MAX, &[1], &[1, 8]);
    }

    #[test]
    fn iteration_in_both_directions() {
        let mut delta = Delta::default();
        for key in ["b", "d", "f"] {
            delta.insert(TreeId(1), key.as_bytes(), version(1, key), &ALL);
        }
        let tree = delta.tree(TreeId(1)).unwrap();
        let check = |from: Bound<&[u8]>, direction, expected: Option<&str>| {
            let got = tree.next(from, direction).map(|(key, _)| key.as_slice());
            assert_eq!(got, expected.map(str::as_bytes));
        };
        check(Bound::Unbounded, Direction::Forward, Some("b"));
        check(Bound::Included(b"b"), Direction::Forward, Some("b"));
        check(Bound::Excluded(b"b"), Direction::Forward, Some("d"));
        check(Bound::Excluded(b"f"), Direction::Forward, None);
        check(Bound::Unbounded, Direction::Reverse, Some("f"));
        check(Bound::Excluded(b"d"), Direction::Reverse, Some("b"));
        check(Bound::Included(b"d"), Direction::Reverse, Some("d"));
        check(Bound::Included(b"a"), Direction::Reverse, None);
    }
}
