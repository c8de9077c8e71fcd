//! An ordered map of keys, from which only the lowest are ever taken: what the delta keeps of one
//! tree.
//!
//! Keys lie in *leaves*. A leaf keeps its entries in the order in which they came, so none is ever
//! moved to make room, and beside them, sorted, the *head* of each key: its four bytes behind what
//! all keys of the leaf begin with. A search asks a few lines of heads, and of the keys themselves
//! nearly always the one that it finds: each line that is in no cache of the processor costs a
//! search as much as hundreds of instructions.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::base::{common_prefix, fetch_lines, head_of};
use crate::types::{Direction, Key};

/// Most entries of a leaf.
const LEAF_ENTRIES: usize = 128;
/// Room is made for such a part of a leaf at a time, and for a few entries of a small one.
const GROWTH_STEPS: usize = 4;

/// Values by key, in leaves of up to `MOST` entries.
#[derive(Clone, Debug)]
pub(crate) struct KeyMap<V, const MOST: usize = LEAF_ENTRIES> {
    /// Each with a key at or below all of its own and above all of the leaf before it; that of the
    /// first is empty.
    leaves: BTreeMap<Key, Leaf<V, MOST>>,
    len: usize,
}

#[derive(Clone, Debug)]
struct Leaf<V, const MOST: usize> {
    /// How many bytes at least all keys have in common. Heads are of what comes behind them.
    prefix: usize,
    /// In the order of the keys.
    heads: Vec<u32>,
    /// For each head its entry.
    places: Vec<u8>,
    /// In the order in which they came.
    entries: Vec<(Key, V)>,
}

impl<V, const MOST: usize> Default for KeyMap<V, MOST> {
    fn default() -> Self {
        KeyMap {
            leaves: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<V, const MOST: usize> KeyMap<V, MOST> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        let (_, leaf) = self.leaf_of(key)?;
        let at = leaf.search(key).ok()?;
        Some(&leaf.entry(at).1)
    }

    /// Lets `there` change the value of a key and gives what it gives; a key that is not there gets
    /// the value of `absent`.
    pub(crate) fn change<T, R>(
        &mut self,
        key: &[u8],
        with: T,
        there: impl FnOnce(&mut V, T) -> R,
        absent: impl FnOnce(T) -> V,
    ) -> Option<R> {
        const { assert!(MOST >= 4 && MOST <= 1 << u8::BITS) };
        if self.leaves.is_empty() {
            self.leaves.insert(Key::new(), Leaf::new());
        }
        let up_to_key = (Bound::Unbounded, Bound::Included(key));
        let (_, leaf) = self
            .leaves
            .range_mut::<[u8], _>(up_to_key)
            .next_back()
            .expect("the first leaf begins below every key");
        match leaf.search(key) {
            Ok(at) => {
                let place = usize::from(leaf.places[at]);
                Some(there(&mut leaf.entries[place].1, with))
            }
            Err(at) => {
                self.len += 1;
                let entry = (Key::from_slice(key), absent(with));
                if let Some((lower, right)) = leaf.insert(at, entry) {
                    let replaced = self.leaves.insert(lower, right);
                    assert!(replaced.is_none(), "two leaves begin with one key");
                }
                None
            }
        }
    }

    /// All entries in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &V)> {
        self.leaves.values().flat_map(|leaf| leaf.from(0))
    }

    /// The entries from `key` on.
    pub(crate) fn range_from(&self, key: &[u8]) -> impl Iterator<Item = (&Key, &V)> {
        let first = self.leaf_of(key);
        let later = first.map(|(lower, _)| (Bound::Excluded(lower), Bound::Unbounded));
        let later = later
            .into_iter()
            .flat_map(|later| self.leaves.range::<Key, _>(later));
        let here = first.into_iter().flat_map(move |(_, leaf)| {
            let (Ok(at) | Err(at)) = leaf.search(key);
            leaf.from(at)
        });
        here.chain(later.flat_map(|(_, leaf)| leaf.from(0)))
    }

    /// The first entry beyond `from` in `direction`.
    pub(crate) fn next(&self, from: Bound<&[u8]>, direction: Direction) -> Option<(&Key, &V)> {
        let (key, included) = match from {
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
            Bound::Unbounded => {
                return match direction {
                    Direction::Forward => self.leaves.first_key_value()?.1.at(0),
                    Direction::Reverse => self.leaves.last_key_value()?.1.last(),
                };
            }
        };
        let (lower, leaf) = self.leaf_of(key)?;
        let found = leaf.search(key);
        let (Ok(at) | Err(at)) = found;
        match direction {
            Direction::Forward => leaf
                .at(at + usize::from(found.is_ok() && !included))
                .or_else(|| {
                    let later = (Bound::Excluded(lower), Bound::Unbounded);
                    self.leaves.range::<Key, _>(later).next()?.1.at(0)
                }),
            Direction::Reverse => {
                match (at + usize::from(found.is_ok() && included)).checked_sub(1) {
                    Some(at) => leaf.at(at),
                    None => self.leaves.range::<Key, _>(..lower).next_back()?.1.last(),
                }
            }
        }
    }

    /// Takes away the entries below `key`.
    pub(crate) fn take_below(&mut self, key: &[u8]) -> Self {
        let Some((lower, _)) = self.leaf_of(key) else {
            return Self::default();
        };
        let lower = lower.clone();
        let mut rest = self.leaves.split_off(&lower);
        let (_, mut leaf) = rest.pop_first().expect("the leaf that was just found");
        let (Ok(at) | Err(at)) = leaf.search(key);
        let right = leaf.split_off(at);
        let mut leaves = std::mem::replace(&mut self.leaves, rest);
        if at > 0 {
            leaves.insert(lower, leaf);
        }
        let first = if right.entries.is_empty() {
            self.leaves.pop_first().map(|(_, leaf)| leaf)
        } else {
            Some(right)
        };
        self.leaves.extend(first.map(|leaf| (Key::new(), leaf)));
        let len = leaves.values().map(|leaf| leaf.entries.len()).sum();
        self.len -= len;
        KeyMap { leaves, len }
    }

    /// All entries, in any order.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = (Key, V)> {
        self.leaves.into_values().flat_map(|leaf| leaf.entries)
    }

    /// The leaf that has the key if any has it, with where it begins.
    fn leaf_of(&self, key: &[u8]) -> Option<(&Key, &Leaf<V, MOST>)> {
        let up_to_key = (Bound::Unbounded, Bound::Included(key));
        self.leaves.range::<[u8], _>(up_to_key).next_back()
    }
}

impl<V, const MOST: usize> Leaf<V, MOST> {
    fn new() -> Self {
        Leaf {
            prefix: 0,
            heads: Vec::new(),
            places: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// One that has these entries, which are in order.
    fn of(entries: Vec<(Key, V)>) -> Self {
        let mut leaf = Leaf::new();
        leaf.entries = entries;
        leaf.places = (0..=u8::MAX).take(leaf.entries.len()).collect();
        if let (Some((first, _)), Some((last, _))) = (leaf.entries.first(), leaf.entries.last()) {
            leaf.prefix = common_prefix(first, last);
        }
        leaf.set_heads();
        leaf
    }

    fn set_heads(&mut self) {
        let keys = self
            .places
            .iter()
            .map(|&place| &self.entries[usize::from(place)].0);
        self.heads = keys.map(|key| head_of(&key[self.prefix..])).collect();
    }

    /// The entry at this position in the order.
    fn entry(&self, at: usize) -> &(Key, V) {
        &self.entries[usize::from(self.places[at])]
    }

    fn at(&self, at: usize) -> Option<(&Key, &V)> {
        let place = usize::from(*self.places.get(at)?);
        let (key, value) = &self.entries[place];
        Some((key, value))
    }

    fn last(&self) -> Option<(&Key, &V)> {
        self.at(self.places.len().checked_sub(1)?)
    }

    /// The entries from this position on, in order.
    fn from(&self, at: usize) -> impl Iterator<Item = (&Key, &V)> {
        self.places[at..].iter().map(|&place| {
            let (key, value) = &self.entries[usize::from(place)];
            (key, value)
        })
    }

    /// Which one in order the key is, or would be.
    fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let Some((any, _)) = self.entries.first() else {
            return Err(0);
        };
        // A search by halves would wait for one line after the other.
        fetch_lines(self.heads.as_ptr().addr(), size_of_val(&self.heads[..]));
        let (prefix, rest) = key.split_at(key.len().min(self.prefix));
        match prefix.cmp(&any[..self.prefix]) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.places.len()),
            Ordering::Equal => {}
        }
        let head = head_of(rest);
        let mut low = self.heads.partition_point(|&other| other < head);
        let mut high = match self.heads.get(low) {
            Some(&other) if other == head => {
                low + self.heads[low..].partition_point(|&other| other == head)
            }
            _ => return Err(low),
        };
        while low < high {
            let middle = low.midpoint(high);
            match self.entry(middle).0[self.prefix..].cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Adds an entry at this place in the order. Gives a leaf with the greater part of the
    /// keys, and where it begins, if there is no room for all.
    fn insert(&mut self, at: usize, entry: (Key, V)) -> Option<(Key, Self)> {
        if self.entries.len() < MOST {
            self.put(at, entry);
            return None;
        }
        // Keys that ascend leave full leaves behind them.
        let divide = if at == MOST { MOST } else { MOST / 2 };
        let mut right = self.split_off(divide);
        if at > divide || divide == MOST {
            right.put(at - divide, entry);
        } else {
            self.put(at, entry);
        }
        let (below, _) = self.last().expect("half of a leaf");
        let (first, _) = right.at(0).expect("the other half, or the new entry");
        let lower = Key::from_slice(&first[..common_prefix(below, first) + 1]);
        Some((lower, right))
    }

    fn put(&mut self, at: usize, entry: (Key, V)) {
        match self.entries.first() {
            // Alone it has all in common.
            None => self.prefix = entry.0.len(),
            Some((any, _)) if entry.0.starts_with(&any[..self.prefix]) => {}
            Some((any, _)) => {
                self.prefix = common_prefix(any, &entry.0);
                self.set_heads();
            }
        }
        let place = u8::try_from(self.entries.len()).expect("a leaf has as many places");
        if self.entries.len() == self.entries.capacity() {
            let as_many = self.entries.len().clamp(1, MOST / GROWTH_STEPS);
            self.entries.reserve_exact(as_many);
        }
        self.heads.insert(at, head_of(&entry.0[self.prefix..]));
        self.places.insert(at, place);
        self.entries.push(entry);
    }

    /// Takes away the entries from the position `divide` on.
    fn split_off(&mut self, divide: usize) -> Self {
        if divide == self.entries.len() {
            return Leaf::new();
        }
        let mut old: Vec<Option<(Key, V)>> = std::mem::take(&mut self.entries)
            .into_iter()
            .map(Some)
            .collect();
        let mut taken = |places: &[u8]| {
            let mut entries = Vec::with_capacity(places.len() + MOST / GROWTH_STEPS);
            entries.extend(places.iter().map(|&place| {
                let entry = old[usize::from(place)].take();
                entry.expect("each place is in the order once")
            }));
            entries
        };
        let left = taken(&self.places[..divide]);
        let right = taken(&self.places[divide..]);
        *self = Leaf::of(left);
        Leaf::of(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Model = BTreeMap<Vec<u8>, u32>;

    fn change<const MOST: usize>(
        map: &mut KeyMap<u32, MOST>,
        key: &[u8],
        value: u32,
    ) -> Option<u32> {
        map.change(key, value, std::mem::replace, |value| value)
    }

    /// Everything that can be asked about these keys.
    fn compare<const MOST: usize>(map: &KeyMap<u32, MOST>, model: &Model, probes: &[Vec<u8>]) {
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        let all = map.iter().map(|(key, value)| (key.as_slice(), *value));
        assert!(all.eq(model.iter().map(|(key, value)| (key.as_slice(), *value))));
        let entry =
            |found: Option<(&Vec<u8>, &u32)>| found.map(|(key, value)| (key.clone(), *value));
        for probe in probes {
            assert_eq!(map.get(probe), model.get(probe), "{probe:?}");
            let from = map
                .range_from(probe)
                .map(|(key, value)| (key.to_vec(), *value));
            let expected = model.range::<[u8], _>((Bound::Included(&probe[..]), Bound::Unbounded));
            assert!(
                from.eq(expected.map(|(key, value)| (key.clone(), *value))),
                "{probe:?}"
            );
            for from in [
                Bound::Included(&probe[..]),
                Bound::Excluded(&probe[..]),
                Bound::Unbounded,
            ] {
                let got = |direction| {
                    let next = map.next(from, direction);
                    next.map(|(key, value)| (key.to_vec(), *value))
                };
                let forward = model.range::<[u8], _>((from, Bound::Unbounded)).next();
                assert_eq!(got(Direction::Forward), entry(forward), "{from:?}");
                let reverse = model.range::<[u8], _>((Bound::Unbounded, from)).next_back();
                assert_eq!(got(Direction::Reverse), entry(reverse), "{from:?}");
            }
        }
    }

    /// What must hold of the leaves beside what they answer.
    fn check_leaves<const MOST: usize>(map: &KeyMap<u32, MOST>) {
        for (nth, (lower, leaf)) in map.leaves.iter().enumerate() {
            assert_eq!(lower.is_empty(), nth == 0);
            assert!((1..=MOST).contains(&leaf.entries.len()));
            assert!(leaf.entries.capacity() <= leaf.entries.len() + MOST);
            for (at, &head) in leaf.heads.iter().enumerate() {
                let (key, _) = leaf.entry(at);
                assert!(*key >= *lower && key.len() >= leaf.prefix);
                assert_eq!(head, head_of(&key[leaf.prefix..]));
            }
        }
    }

    fn check<const MOST: usize>(keys: &[Vec<u8>]) {
        let (mut map, mut model) = (KeyMap::<u32, MOST>::default(), Model::new());
        let mut probes: Vec<Vec<u8>> = keys.iter().take(60).cloned().collect();
        probes.extend([vec![], vec![0], vec![255; 40]]);
        // What lies right beside keys.
        for key in keys.iter().take(40) {
            probes.push([&key[..], &[0]].concat());
            probes.push(key[..key.len().saturating_sub(1)].to_vec());
        }
        for (value, key) in (0..).zip(keys) {
            assert_eq!(
                change(&mut map, key, value),
                model.insert(key.clone(), value),
                "{key:?}"
            );
            if value % 97 == 0 {
                compare(&map, &model, &probes);
            }
        }
        compare(&map, &model, &probes);
        check_leaves(&map);
        let mut entries: Vec<(Vec<u8>, u32)> = map
            .into_entries()
            .map(|(key, value)| (key.to_vec(), value))
            .collect();
        entries.sort_unstable();
        assert!(entries.into_iter().eq(model));
    }

    /// Numbers that look random.
    fn numbers(seed: u64) -> impl Iterator<Item = u64> {
        let step = |state: &u64| {
            let next = state.wrapping_mul(6_364_136_223_846_793_005);
            Some(next.wrapping_add(1_442_695_040_888_963_407))
        };
        std::iter::successors(Some(seed), step).map(|state| state >> 20)
    }

    #[test]
    fn it_answers_as_an_ordered_map_does() {
        // Few short keys of few bytes, which are each other's beginnings; long ones that differ
        // late; numbers up and down.
        let short = |number: u64| {
            let len = (number % 5) as usize;
            (0..len)
                .map(|at| (number >> (3 + 2 * at)) as u8 % 3)
                .collect::<Vec<u8>>()
        };
        let late = |number: u64| {
            let mut key = vec![7; 20 + (number % 3) as usize * 15];
            key.extend_from_slice(&(number % 500).to_be_bytes());
            key
        };
        let spread = |number: u64| number.to_be_bytes()[..1 + (number % 8) as usize].to_vec();
        for seed in 0..4 {
            for make in [&short as &dyn Fn(u64) -> Vec<u8>, &late, &spread] {
                let keys: Vec<Vec<u8>> = numbers(seed).take(700).map(make).collect();
                check::<4>(&keys);
                check::<16>(&keys);
                check::<LEAF_ENTRIES>(&keys);
            }
        }
        let ascending: Vec<Vec<u8>> = (0..900u32).map(|n| n.to_be_bytes().to_vec()).collect();
        let descending: Vec<Vec<u8>> = ascending.iter().rev().cloned().collect();
        for keys in [ascending, descending] {
            check::<4>(&keys);
            check::<LEAF_ENTRIES>(&keys);
        }
    }

    #[test]
    fn keys_that_ascend_fill_their_leaves() {
        let mut map = KeyMap::<u32>::default();
        for number in 0..10 * LEAF_ENTRIES as u32 {
            change(&mut map, &number.to_be_bytes(), number);
        }
        assert_eq!(map.leaves.len(), 10);
    }
}
