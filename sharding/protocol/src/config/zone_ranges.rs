//! The ranges of zones, before a collection is sharded by a key that they have to be of.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_query::document_text;
use pinion_wire::{Error, ErrorCode, Result};

use super::initial_split::Zone;
use crate::chunk::ChunkRange;
use crate::key::ShardKeyPattern;

/// A range of a zone, read under a shard key.
#[derive(Clone, Debug)]
pub(super) struct ZoneRange<'z> {
    pub(super) zone: &'z Zone,
    pub(super) range: ChunkRange,
}

/// The ranges in the order of their keys.
///
/// # Errors
/// `InvalidOptions` where a range is not of this key; `BadValue` for an empty one;
/// `RangeOverlapConflict`.
pub(super) fn zone_ranges<'z>(
    key: &ShardKeyPattern,
    zones: &'z [Zone],
) -> Result<Vec<ZoneRange<'z>>> {
    let mut ranges = Vec::with_capacity(zones.len());
    for zone in zones {
        check_zone_key(key, &zone.min, &zone.max)?;
        let range = ChunkRange {
            min: key.bound(&zone.min)?,
            max: key.bound(&zone.max)?,
        };
        if range.min >= range.max {
            return Err(Error::bad_value(format!(
                "the range of zone {} from {} is empty",
                zone.name,
                document_text(&zone.min)
            )));
        }
        ranges.push(ZoneRange { zone, range });
    }
    ranges.sort_by(|one, other| one.range.min.cmp(&other.range.min));
    for pair in ranges.windows(2) {
        if pair[0].range.overlaps(&pair[1].range) {
            let text = |zone: &Zone| shown(&zone.min, &zone.max, &zone.name);
            return Err(overlap(&text(pair[1].zone), &text(pair[0].zone)));
        }
    }
    Ok(ranges)
}

/// A range as messages have it.
pub(super) fn shown(min: &RawDocument, max: &RawDocument, zone: &str) -> String {
    let (min, max) = (document_text(min), document_text(max));
    format!("{min} -->> {max}  on  {zone}")
}

pub(super) fn overlap(one: &str, other: &str) -> Error {
    Error::new(
        ErrorCode::RANGE_OVERLAP_CONFLICT,
        format!("Zone range: {one} is overlapping with existing: {other}"),
    )
}

/// The values that a hashed field of a bound may have.
pub(super) fn is_hash(value: RawBsonRef<'_>) -> bool {
    matches!(
        value,
        RawBsonRef::Int64(_) | RawBsonRef::MinKey | RawBsonRef::MaxKey
    )
}

/// Checks that a collection with such a zone can be sharded by a key.
///
/// # Errors
/// `InvalidOptions`.
pub(super) fn check_zone_key(
    key: &ShardKeyPattern,
    min: &RawDocument,
    max: &RawDocument,
) -> Result<()> {
    let (shown_min, shown_max) = (document_text(min), document_text(max));
    let shown_key = || document_text(&key.to_bson());
    let refused = |message: String| Err(Error::new(ErrorCode::INVALID_OPTIONS, message));
    let names = |bound| pinion_bson::elements(bound).map(|(name, _)| name);
    if !names(min).eq(names(max)) {
        return refused(format!(
            "the min and max of the existing zone {shown_min} -->> {shown_max} have non-matching \
             keys"
        ));
    }
    if !names(min).eq(key.paths()) {
        return refused(format!(
            "the proposed shard key {} does not match with the shard key of the existing zone \
             {shown_min} -->> {shown_max}",
            shown_key()
        ));
    }
    let hashed = |bound| {
        let at = key.hashed_at()?;
        pinion_bson::elements(bound).nth(at).map(|(_, value)| value)
    };
    match [min, max].into_iter().filter_map(hashed).all(is_hash) {
        true => Ok(()),
        false => refused(format!(
            "cannot do hash sharding with the proposed key {} because there exists a zone \
             {shown_min} -->> {shown_max} whose boundaries are not of type NumberLong, MinKey or \
             MaxKey",
            shown_key()
        )),
    }
}
