//! The walk over branches each of which has the order of a sort: their entries merged by it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pinion_merge::PartCounters;
use pinion_query::SortedField;
use pinion_storage::Key;
use pinion_wire::Result;
use rustc_hash::FxHashSet;

use super::access::RangeAccess;
use super::branch_walk::{BranchWalk, WalkHit};
use super::fetch::damaged;
use super::scan::ScanContext;

/// The branches with the next entry of each.
pub(super) struct SortedWalk {
    walks: Vec<BranchWalk>,
    /// Empty before the first step.
    heads: BinaryHeap<Reverse<Head>>,
    is_open: bool,
    /// No entry is in two branches.
    is_disjoint: bool,
    /// What the fields of the sort are in the entry given last, and the documents given with them:
    /// one of several branches comes from all of them there, in no order beside others that are
    /// equal.
    values: Vec<u8>,
    alike: FxHashSet<Key>,
}

struct Head(WalkHit);

impl SortedWalk {
    pub(super) fn new(branches: usize, is_disjoint: bool) -> SortedWalk {
        SortedWalk {
            walks: (0..branches).map(BranchWalk::new).collect(),
            heads: BinaryHeap::new(),
            is_open: false,
            is_disjoint,
            values: Vec::new(),
            alike: FxHashSet::default(),
        }
    }

    /// The next entry of all branches that names a document not given before.
    pub(super) async fn next(
        &mut self,
        place: ScanContext<'_>,
        seen: &mut Option<FxHashSet<Key>>,
        counters: &mut PartCounters,
    ) -> Result<Option<WalkHit>> {
        if !self.is_open {
            for turn in 0..self.walks.len() {
                self.step(turn, place, seen, counters).await?;
            }
            self.is_open = true;
        }
        while let Some(Reverse(Head(named))) = self.heads.pop() {
            if let Err(error) = self.step(named.turn, place, seen, counters).await {
                self.heads.push(Reverse(Head(named)));
                return Err(error);
            }
            if self.is_new(&named) {
                return Ok(Some(named));
            }
            counters.dups_dropped += 1;
        }
        Ok(None)
    }

    /// Adds the heads to the entries that were given by the walk and are walked again, as those
    /// are.
    pub(super) fn take_back(&mut self, walked: &mut Vec<WalkHit>) {
        for named in walked.iter() {
            self.alike.remove(&named.id);
        }
        self.is_open = false;
        let heads = std::mem::take(&mut self.heads);
        walked.extend(heads.into_iter().map(|Reverse(Head(named))| named));
    }

    /// The walk of one branch.
    pub(super) fn branch(&mut self, turn: usize) -> &mut BranchWalk {
        &mut self.walks[turn]
    }

    pub(super) fn branches(&mut self) -> impl Iterator<Item = &mut BranchWalk> {
        self.walks.iter_mut()
    }

    fn is_new(&mut self, named: &WalkHit) -> bool {
        if self.is_disjoint {
            return true;
        }
        let (values, _) = named.order.split_at(named.order.len() - named.id.len());
        if self.values != values {
            self.alike.clear();
            self.values.clear();
            self.values.extend_from_slice(values);
        }
        self.alike.insert(named.id.clone())
    }

    /// Moves to the next entry of a branch.
    async fn step(
        &mut self,
        turn: usize,
        place: ScanContext<'_>,
        seen: &mut Option<FxHashSet<Key>>,
        counters: &mut PartCounters,
    ) -> Result<()> {
        let next = self.walks[turn].next(place, seen, counters).await?;
        (self.heads).extend(next.map(|named| Reverse(Head(named))));
        Ok(())
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Head) -> std::cmp::Ordering {
        let place = |head: &Head| head.0.turn;
        (self.0.order.cmp(&other.0.order)).then_with(|| place(self).cmp(&place(other)))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

/// Follows the last field: above a zero byte, with which a longer string continues, and below the
/// highest byte, with which an inverted or escaped one continues.
const END: u8 = 4;

/// The fields of the sort of an entry in ascending order, whatever the index and the direction of
/// the scan, and the document.
pub(super) fn sorted_order(
    branch: &RangeAccess,
    fields: &[SortedField],
    key: &[u8],
    id: &[u8],
) -> Result<Key> {
    let index = branch.index.as_ref().expect("it is a scan of an index");
    let mut order = Key::new();
    for field in fields {
        let end_of = |components| {
            pinion_keystring::prefix_len(key, components, index.spec.ordering)
                .map_err(|_| damaged(branch))
        };
        let bytes = &key[end_of(field.place)?..end_of(field.place + 1)?];
        match field.reversed {
            true => bytes.iter().for_each(|byte| order.push(!byte)),
            false => order.extend_from_slice(bytes),
        }
    }
    order.push(END);
    order.extend_from_slice(id);
    Ok(order)
}
