//! The best few of windows that move: `$minN`, `$maxN`, `$top`, `$bottom`, `$topN`, `$bottomN`.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef};
use pinion_collation::Collation;
use pinion_keystring::encode_id_in;
use pinion_wire::Result;

use super::{Element, Held, Window};
use crate::accumulator::{Kind, List};
use crate::value::{is_nullish, owned};

/// All values of the window in the order of their keys, those of equal keys as they came.
#[derive(Debug)]
pub(super) struct MovingRanks {
    kind: Kind,
    wanted: usize,
    collation: Option<Arc<Collation>>,
    entries: BTreeMap<(Vec<u8>, u64), RawBson>,
    added: u64,
    removed: u64,
    bytes: usize,
}

impl MovingRanks {
    pub(super) fn new(
        kind: &Kind,
        wanted: usize,
        collation: Option<Arc<Collation>>,
    ) -> MovingRanks {
        MovingRanks {
            kind: kind.clone(),
            wanted,
            collation,
            entries: BTreeMap::new(),
            added: 0,
            removed: 0,
            bytes: 0,
        }
    }

    /// The key of an element with its value, unless it counts for nothing.
    fn entry<'e>(&self, element: &'e Element) -> Option<(Vec<u8>, RawBsonRef<'e>)> {
        let value = element.value.as_ref().map(RawBson::as_raw_bson_ref);
        match self.kind {
            Kind::MinN | Kind::MaxN => {
                let value = value.filter(|v| !is_nullish(*v))?;
                Some((
                    encode_id_in(self.collation.as_deref(), value).to_vec(),
                    value,
                ))
            }
            _ => Some((element.key.clone(), value.unwrap_or(RawBsonRef::Null))),
        }
    }
}

fn entry_bytes(key: &[u8], value: RawBsonRef<'_>) -> usize {
    64 + key.len() + crate::value::bytes(value)
}

impl Held for MovingRanks {
    fn add(&mut self, element: &Element) -> Result<()> {
        if let Some((key, value)) = self.entry(element) {
            self.bytes += entry_bytes(&key, value);
            self.entries.insert((key, self.added), owned(value));
        }
        self.added += 1;
        Ok(())
    }

    fn remove(&mut self, element: &Element) {
        if let Some((key, value)) = self.entry(element) {
            self.bytes -= entry_bytes(&key, value);
            self.entries.remove(&(key, self.removed));
        }
        self.removed += 1;
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.removed = self.added;
        self.bytes = 0;
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        let mut values = self.entries.values().map(RawBson::as_raw_bson_ref);
        let bottom = self.entries.len().saturating_sub(self.wanted);
        Ok(match self.kind {
            Kind::Top => values.next().map_or(RawBson::Null, owned),
            Kind::Bottom => values.next_back().map_or(RawBson::Null, owned),
            Kind::MinN | Kind::TopN => List::of(values.take(self.wanted)),
            Kind::MaxN => List::of(values.rev().take(self.wanted)),
            _ => List::of(values.skip(bottom)),
        })
    }

    fn bytes(&self) -> usize {
        64 + self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{element, slide};
    use super::*;
    use pinion_bson::rawbson;

    #[track_caller]
    fn check(kind: Kind, expected: RawBson) {
        let values = [9, 2, 1, 2, 3].map(|v| element(RawBson::Int32(v)));
        let found = slide(Box::new(MovingRanks::new(&kind, 2, None)), 4, values);
        assert_eq!(found.last(), Some(&expected), "{kind:?}");
    }

    #[test]
    fn the_best_of_the_window() {
        check(Kind::MinN, rawbson!([1, 2]));
        check(Kind::MaxN, rawbson!([3, 2]));
        check(Kind::Top, rawbson!(1));
        check(Kind::Bottom, rawbson!(3));
        check(Kind::TopN, rawbson!([1, 2]));
        check(Kind::BottomN, rawbson!([2, 3]));
    }
}
