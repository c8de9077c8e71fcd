//! The few that an accumulator keeps: the first or last as they come, or the best by a key.

use std::collections::{BTreeMap, VecDeque};

use pinion_bson::{RawBson, RawBsonRef};

use super::list::List;
use crate::value::owned;

/// The first or the last few values.
#[derive(Clone, Debug)]
pub(crate) struct Few {
    wanted: usize,
    last: bool,
    values: VecDeque<RawBson>,
    bytes: usize,
}

impl Few {
    pub(crate) fn new(wanted: usize, last: bool) -> Few {
        Few {
            wanted,
            last,
            values: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(crate) fn add(&mut self, value: RawBsonRef<'_>) {
        if self.values.len() >= self.wanted {
            if !self.last {
                return;
            }
            if let Some(gone) = self.values.pop_front() {
                self.bytes -= super::state::size(&gone);
            }
        }
        let value = owned(value);
        self.bytes += super::state::size(&value);
        self.values.push_back(value);
    }

    pub(crate) fn array(&self) -> RawBson {
        List::of(self.values.iter().map(RawBson::as_raw_bson_ref))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Which end of the order is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Top,
    Bottom,
}

/// The best few values by the order of their keys. Of equal keys those that came first are kept.
#[derive(Clone, Debug)]
pub(crate) struct Ranked {
    wanted: usize,
    side: Side,
    entries: BTreeMap<(Vec<u8>, u64), RawBson>,
    arrived: u64,
    bytes: usize,
}

impl Ranked {
    pub(crate) fn new(wanted: usize, side: Side) -> Ranked {
        Ranked {
            wanted,
            side,
            entries: BTreeMap::new(),
            arrived: 0,
            bytes: 0,
        }
    }

    pub(crate) fn side(&self) -> Side {
        self.side
    }

    pub(crate) fn add(&mut self, key: &[u8], value: RawBsonRef<'_>) {
        if self.entries.len() >= self.wanted {
            let worst = match self.side {
                Side::Top => self.entries.last_entry(),
                Side::Bottom => self.entries.first_entry(),
            };
            let Some(worst) = worst else {
                return;
            };
            let better = match self.side {
                Side::Top => key < &worst.key().0[..],
                Side::Bottom => key > &worst.key().0[..],
            };
            if !better {
                return;
            }
            let ((key, _), value) = worst.remove_entry();
            self.bytes -= entry_bytes(&key, &value);
        }
        let (key, value) = (key.to_vec(), owned(value));
        self.bytes += entry_bytes(&key, &value);
        self.entries.insert((key, self.arrived), value);
        self.arrived += 1;
    }

    /// Keys and values in order.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = (&[u8], RawBsonRef<'_>)> {
        self.entries
            .iter()
            .map(|((key, _), value)| (&key[..], value.as_raw_bson_ref()))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn entry_bytes(key: &[u8], value: &RawBson) -> usize {
    // The tree's own share beside what it holds.
    48 + key.len() + super::state::size(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(side: Side, wanted: usize, keys: &[u8], expected: &[i32]) {
        let mut ranked = Ranked::new(wanted, side);
        for (at, key) in keys.iter().enumerate() {
            ranked.add(&[*key], RawBsonRef::Int32(at as i32));
        }
        let kept: Vec<i32> = ranked
            .entries()
            .filter_map(|(_, value)| value.as_i32())
            .collect();
        assert_eq!(kept, expected, "{side:?} {wanted} {keys:?}");
    }

    #[test]
    fn of_equal_keys_the_first_are_kept() {
        check(Side::Top, 2, &[3, 1, 2, 1, 1], &[1, 3]);
        check(Side::Bottom, 2, &[3, 1, 2, 3, 3], &[0, 3]);
        check(Side::Top, 9, &[2, 1], &[1, 0]);
        check(Side::Bottom, 1, &[1, 1], &[0]);
    }
}
