//! The sequence that `$densify` makes complete: its values, and the documents made for them.

use std::sync::Arc;

use pinion_bson::{DateTime, Number, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::nested::{Nested, at_path};
use super::parse::wrong_bounds;
use crate::error::error;
use crate::expression::TimeUnit;
use crate::value::is_nullish;

/// The stage's parsed specification.
#[derive(Debug)]
pub(in crate::pipeline) struct Densify {
    pub(super) field: String,
    pub(super) partition: Vec<String>,
    pub(super) step: Number,
    pub(super) unit: Option<TimeUnit>,
    pub(super) bounds: Bounds,
    pub(super) collation: Option<Arc<Collation>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Bounds {
    /// From the least value of all documents to the greatest.
    Full,
    /// From the least value of each partition to its greatest.
    Partition,
    /// From the first up to but without the second.
    Explicit(Place, Place),
}

/// A value of the field: a number, or the milliseconds of a date.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Number(Number),
    Date(i64),
}

impl Place {
    pub(super) fn compare(self, other: Place) -> std::cmp::Ordering {
        match (self, other) {
            (Place::Number(a), Place::Number(b)) => a.compare(b),
            (Place::Date(a), Place::Date(b)) => a.cmp(&b),
            (Place::Number(_), Place::Date(_)) => std::cmp::Ordering::Less,
            (Place::Date(_), Place::Number(_)) => std::cmp::Ordering::Greater,
        }
    }

    pub(super) fn value(self) -> RawBson {
        match self {
            Place::Number(number) => number.to_raw_bson(),
            Place::Date(millis) => RawBson::DateTime(DateTime::from_millis(millis)),
        }
    }
}

impl Densify {
    /// The value of the field; `None` where it is null or missing.
    pub(super) fn place(&self, document: &RawDocument) -> Result<Option<Place>> {
        let value = at_path(document, &self.field);
        match (value, self.unit) {
            (None, _) => Ok(None),
            (Some(value), _) if is_nullish(value) => Ok(None),
            (Some(RawBsonRef::DateTime(date)), Some(_)) => {
                Ok(Some(Place::Date(date.timestamp_millis())))
            }
            (Some(_), Some(_)) => Err(error(
                6_053_600,
                "Encountered non-date value in collection when step has a date unit.",
            )),
            (Some(value), None) => match Number::from_value(value) {
                Some(number) => Ok(Some(Place::Number(number))),
                None => Err(error(5_733_201, "Densify field type must be numeric")),
            },
        }
    }

    /// The place one step on.
    pub(super) fn next(&self, place: Place) -> Result<Place> {
        match (place, self.unit) {
            (Place::Date(millis), Some(unit)) => {
                let step = self.step.to_i64_saturating();
                let next = unit.after(millis, step);
                Ok(Place::Date(
                    next.ok_or_else(|| error(5_166_406, "dateAdd overflowed"))?,
                ))
            }
            (Place::Number(number), _) => Ok(Place::Number(number.add_widening(self.step))),
            (Place::Date(_), None) => Err(wrong_bounds()),
        }
    }

    /// The fields that a partition's documents have in common, as those of one document.
    pub(super) fn partition_of(&self, document: &RawDocument) -> RawDocumentBuf {
        let mut out = Nested::default();
        for path in &self.partition {
            if let Some(value) = at_path(document, path) {
                out.set(path, value.into());
            }
        }
        out.document()
    }

    /// A document with a partition's fields and this value.
    pub(super) fn made(&self, partition: &RawDocument, place: Place) -> RawDocumentBuf {
        let mut out = Nested::default();
        for path in &self.partition {
            if let Some(value) = at_path(partition, path) {
                out.set(path, value.into());
            }
        }
        out.set(&self.field, place.value());
        out.document()
    }
}
