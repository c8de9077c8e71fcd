//! Scans that are merged by a sort: each of them has its order, and together they have all
//! documents.

use super::candidate::{Query, bounded, sort_direction};
use super::interval::Intervals;
use super::{IndexAccess, PlanRequest};
use crate::index::IndexSpec;
use crate::limits::MAX_EXPLODED_SCANS;
use crate::sort::SortPattern;

/// A scan whose entries come in the order of the sort.
#[derive(Clone, Debug)]
pub struct SortedAccess {
    pub scan: IndexAccess,
    /// Which branch of the `$or` it is of; `None` where it is of the whole filter.
    pub branch: Option<usize>,
    /// Where the fields of the sort stand in the keys of the index.
    pub order: Vec<SortedField>,
}

/// A field of a sort in the keys of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortedField {
    pub place: u32,
    /// The keys have the field in the other direction than the sort.
    pub reversed: bool,
}

/// The scans with what they are merged by; `None` where the keys of one of them do not have it.
pub(super) fn by_sort(
    request: &PlanRequest<'_>,
    sort: &SortPattern,
    branch: Option<usize>,
    scans: &[IndexAccess],
) -> Option<Vec<SortedAccess>> {
    let sorted = scans.iter().map(|scan| {
        Some(SortedAccess {
            scan: scan.clone(),
            branch,
            order: order_in(scan.spec(request.indexes), sort)?,
        })
    });
    sorted.collect()
}

/// Where the fields of a sort stand in the keys of an index.
fn order_in(index: &IndexSpec, sort: &SortPattern) -> Option<Vec<SortedField>> {
    // The entries of the index on `_id` may be the documents themselves, and those of a wildcard
    // index have components that are no fields.
    if index.is_id() || index.components() != index.paths().len() {
        return None;
    }
    let field = |(path, descending)| {
        let place = index.paths().iter().position(|field| field == path)? as u32;
        Some(SortedField {
            place,
            reversed: index.ordering.is_descending(place) != descending,
        })
    };
    sort.fields().map(field).collect()
}

/// The scans of the single values that leading fields are bound to, where these have the order of
/// the sort although a scan of all the values has not: as many fields as it takes.
pub(super) fn exploded(
    at: usize,
    index: &IndexSpec,
    query: &Query<'_>,
    bounds: &[Intervals],
) -> Option<Vec<IndexAccess>> {
    let sort = query.sort?;
    let points = bounds.iter().take_while(|field| field.points_only());
    let mut count = 1usize;
    for (fields, field) in (1..).zip(points) {
        count = count.saturating_mul(field.0.len());
        if count > MAX_EXPLODED_SCANS {
            return None;
        }
        // Where nothing can match there is no scan, and one of a single value is there already.
        if count < 2 {
            continue;
        }
        let alike = [&singles(&bounds[..fields])[0], &bounds[fields..]].concat();
        if sort_direction(index, &alike, sort).is_some() {
            let scan = |single: Vec<Intervals>| {
                let bounds = [&single, &bounds[fields..]].concat();
                bounded(at, index, query, bounds).access
            };
            return Some(singles(&bounds[..fields]).into_iter().map(scan).collect());
        }
    }
    None
}

/// All combinations of the points of fields.
fn singles(fields: &[Intervals]) -> Vec<Vec<Intervals>> {
    let mut combinations = vec![Vec::new()];
    for field in fields {
        let with = |combination: &Vec<Intervals>| {
            let with = |point: &super::Interval| {
                let mut longer = combination.clone();
                longer.push(Intervals(vec![point.clone()]));
                longer
            };
            field.0.iter().map(with).collect::<Vec<_>>()
        };
        combinations = combinations.iter().flat_map(with).collect();
    }
    combinations
}
