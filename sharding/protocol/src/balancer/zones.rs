//! The zones of a collection: ranges that belong to shards with a name.

use std::collections::BTreeMap;
use std::ops::Bound;

use pinion_query::document_text;
use pinion_wire::{Error, ErrorCode, Result};

use crate::chunk::ChunkRange;
use crate::documents::TagDocument;
use crate::key::{KeyBytes, ShardKeyPattern};

/// Ranges that do not overlap.
#[derive(Clone, Debug, Default)]
pub struct Zones {
    /// By their upper bounds.
    ranges: BTreeMap<KeyBytes, (KeyBytes, String)>,
}

/// The zone of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneOf<'z> {
    /// No key of it is in a zone: it may be anywhere.
    None,
    Zone(&'z str),
    /// A boundary is within it: it has to be split first.
    Crossing,
}

impl Zones {
    /// Those of a collection with this key. A bound may have the first fields of the key alone.
    ///
    /// # Errors
    /// `RangeOverlapConflict`; `BadValue` for bounds of another pattern or an empty range.
    pub fn new(tags: &[TagDocument], key: &ShardKeyPattern) -> Result<Zones> {
        let mut zones = Zones::default();
        for tag in tags {
            let range = ChunkRange {
                min: key.extended_bound(&tag.min)?,
                max: key.extended_bound(&tag.max)?,
            };
            if range.min >= range.max {
                return Err(Error::bad_value(format!(
                    "the range of zone {} from {} is empty",
                    tag.zone,
                    document_text(&tag.min)
                )));
            }
            if zones.overlapping(&range).next().is_some() {
                return Err(Error::new(
                    ErrorCode::RANGE_OVERLAP_CONFLICT,
                    format!(
                        "Zone range: [{}, {}) -->> {} is overlapping with existing",
                        document_text(&tag.min),
                        document_text(&tag.max),
                        tag.zone
                    ),
                ));
            }
            zones
                .ranges
                .insert(range.max, (range.min, tag.zone.clone()));
        }
        Ok(zones)
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bounds and names of the ranges that have keys of this one.
    fn overlapping<'z>(
        &'z self,
        range: &'z ChunkRange,
    ) -> impl Iterator<Item = (&'z KeyBytes, &'z KeyBytes, &'z str)> + 'z {
        self.ranges
            .range::<[u8], _>((Bound::Excluded(range.min.as_bytes()), Bound::Unbounded))
            .map(|(max, (min, zone))| (min, max, zone.as_str()))
            .take_while(|(min, ..)| **min < range.max)
    }

    pub fn zone_of(&self, chunk: &ChunkRange) -> ZoneOf<'_> {
        let behind = (Bound::Excluded(chunk.min.as_bytes()), Bound::Unbounded);
        match self.ranges.range::<[u8], _>(behind).next() {
            Some((max, (min, zone))) if *min <= chunk.min && chunk.max <= *max => {
                ZoneOf::Zone(zone)
            }
            Some((_, (min, _))) if *min < chunk.max => ZoneOf::Crossing,
            _ => ZoneOf::None,
        }
    }

    /// The boundaries within a chunk, in their order.
    pub fn boundaries_in(&self, chunk: &ChunkRange) -> Vec<KeyBytes> {
        let bounds = self.overlapping(chunk).flat_map(|(min, max, _)| [min, max]);
        let mut points: Vec<KeyBytes> = bounds
            .filter(|point| chunk.min < **point && **point < chunk.max)
            .cloned()
            .collect();
        points.dedup();
        points
    }
}
