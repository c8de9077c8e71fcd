//! Bounds of an index's fields as ranges of its keys.

use pinion_keystring::{Builder, Discriminator};

use super::interval::{Interval, Intervals};
use crate::index::IndexSpec;
use crate::limits::MAX_INTERVALS_PER_FIELD;

/// The keys from `lower` up to but not `upper`, by bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub lower: Vec<u8>,
    pub upper: Vec<u8>,
}

/// The ranges in ascending order. The leading fields that are bounded by points multiply out; the
/// first field that is not ends each range, and what is known of later fields is left to the
/// filter. Also gives how many fields the ranges decide.
pub(super) fn key_ranges(index: &IndexSpec, bounds: &[Intervals]) -> (Vec<KeyRange>, usize) {
    if bounds.iter().any(Intervals::is_empty) {
        return (Vec::new(), bounds.len());
    }
    let mut decided = 0;
    let mut prefixes: Vec<Vec<&Interval>> = vec![Vec::new()];
    for (component, intervals) in bounds.iter().enumerate() {
        let descending = index.ordering.is_descending(component as u32);
        if prefixes.len().saturating_mul(intervals.0.len()) > MAX_INTERVALS_PER_FIELD
            || intervals.is_all()
        {
            break;
        }
        let mut ordered: Vec<&Interval> = intervals.0.iter().collect();
        if descending {
            ordered.reverse();
        }
        let extend = |prefix: &Vec<_>, interval| {
            let mut longer = prefix.clone();
            longer.push(interval);
            longer
        };
        prefixes = prefixes
            .iter()
            .flat_map(|prefix| {
                ordered
                    .iter()
                    .map(|i| extend(prefix, *i))
                    .collect::<Vec<_>>()
            })
            .collect();
        decided = component + 1;
        if !intervals.points_only() {
            break;
        }
    }
    let ranges = prefixes.iter().map(|prefix| key_range(index, prefix));
    (ranges.collect(), decided)
}

/// The keys whose leading fields lie in these intervals, all of them points but the last.
fn key_range(index: &IndexSpec, prefix: &[&Interval]) -> KeyRange {
    let mut builder = Builder::new(index.ordering);
    let Some((last, points)) = prefix.split_last() else {
        return KeyRange {
            lower: Vec::new(),
            upper: vec![0xff],
        };
    };
    let descending = index.ordering.is_descending(points.len() as u32);
    let (first, first_inclusive, end, end_inclusive) = if descending {
        (
            &last.upper,
            last.upper_inclusive,
            &last.lower,
            last.lower_inclusive,
        )
    } else {
        (
            &last.lower,
            last.lower_inclusive,
            &last.upper,
            last.upper_inclusive,
        )
    };
    let mut bound = |value: &pinion_bson::RawBson, after: bool| {
        for (component, point) in (0..).zip(points) {
            let strings = index.bound_strings(component);
            builder.append_as(point.lower.as_raw_bson_ref(), strings);
        }
        let strings = index.bound_strings(points.len() as u32);
        builder.append_as(value.as_raw_bson_ref(), strings);
        builder.append_discriminator(if after {
            Discriminator::ExclusiveAfter
        } else {
            Discriminator::ExclusiveBefore
        });
        builder.finish().bytes
    };
    #[cfg(feature = "planted")]
    let end_inclusive = end_inclusive
        && (last.is_point()
            || !pinion_bson::planted::is_planted(pinion_bson::planted::Planted::IndexBound));
    KeyRange {
        lower: bound(first, !first_inclusive),
        upper: bound(end, end_inclusive),
    }
}
