//! `min` and `max` of a find: the part of a hinted index that is read, bounded by keys and not by
//! the filter.

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_keystring::{Builder, Discriminator};
use pinion_wire::Result;

use super::candidate::sort_direction;
use super::choose::{find_hinted, pattern_names, planner_error};
use super::{Access, Hint, IndexAccess, Intervals, KeyRange, Plan, PlanRequest};
use crate::collation::has_strings;
use crate::error::error;
use crate::index::IndexSpec;
use crate::sort::Direction;
use crate::value::elements;

/// Keys of an index: from `min` on, up to but not `max`.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyBounds {
    min: Option<RawDocumentBuf>,
    max: Option<RawDocumentBuf>,
}

impl KeyBounds {
    /// Whether there is a `min`.
    pub fn has_min(&self) -> bool {
        self.min.is_some()
    }

    /// Whether there is a `max`.
    pub fn has_max(&self) -> bool {
        self.max.is_some()
    }

    /// Reads the two options; `None` when neither names a field.
    pub fn parse(
        min: Option<&RawDocument>,
        max: Option<&RawDocument>,
    ) -> Result<Option<KeyBounds>> {
        let part = |document: Option<&RawDocument>| {
            document
                .filter(|document| !document.is_empty())
                .map(RawDocument::to_owned)
        };
        let (min, max) = (part(min), part(max));
        if let (Some(min), Some(max)) = (&min, &max)
            && !elements(min)
                .map(|(name, _)| name)
                .eq(elements(max).map(|(name, _)| name))
        {
            return Err(error(51176, "min and max must have the same field names"));
        }
        Ok((min.is_some() || max.is_some()).then_some(KeyBounds { min, max }))
    }
}

/// The plan of a find with these options.
pub(super) fn plan(request: &PlanRequest<'_>, wanted: &KeyBounds) -> Result<Plan> {
    let at = match request.hint {
        Some(Hint::Natural(_)) => {
            return Err(planner_error(
                request,
                291,
                "min and max are incompatible with $natural",
            ));
        }
        Some(hint) => find_hinted(request, hint)?,
        None => {
            return Err(planner_error(
                request,
                51173,
                "When using min()/max() a hint of which index to use must be provided",
            ));
        }
    };
    let index = &request.indexes[at];
    let key = |values: &Option<RawDocumentBuf>, open: Vec<u8>| match values {
        None => Ok(open),
        Some(values)
            if pattern_names(index).eq(elements(values).map(|(name, _)| name))
                && (index.collation.as_ref() == request.matcher.collation()
                    || !elements(values).any(|(_, value)| has_strings(value))) =>
        {
            Ok(before(index, values))
        }
        Some(_) => Err(planner_error(
            request,
            51174,
            "The index chosen is not compatible with min/max",
        )),
    };
    let range = KeyRange {
        lower: key(&wanted.min, Vec::new())?,
        upper: key(&wanted.max, vec![0xff])?,
    };
    if range.lower >= range.upper {
        return Err(planner_error(
            request,
            51175,
            "The value provided for min() does not come before the value provided for max() in the hinted index",
        ));
    }
    let bounds = vec![Intervals::all(); index.fields()];
    // A document with an array stands at its least key, which the bounds may have cut off.
    let direction = request
        .sort
        .filter(|_| !index.is_multikey())
        .and_then(|sort| sort_direction(index, &bounds, sort));
    Ok(Plan {
        access: Access::Index(IndexAccess {
            index: at,
            expanded: None,
            bounds,
            ranges: vec![range],
            decided_fields: 0,
            direction: direction.unwrap_or(Direction::Forward),
            multikey: index.is_multikey(),
            repeats: index.is_multikey(),
        }),
        sort_provided: direction.is_some(),
        filter_satisfied: request.matcher.is_empty(),
        covered: false,
    })
}

/// Where the entries with these values begin.
fn before(index: &IndexSpec, values: &RawDocument) -> Vec<u8> {
    let mut builder = Builder::new(index.ordering);
    for (component, (_, value)) in (0..).zip(elements(values)) {
        builder.append_as(value, index.strings(component));
    }
    builder.append_discriminator(Discriminator::ExclusiveBefore);
    builder.finish().bytes
}
