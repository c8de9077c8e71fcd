//! The least and the greatest values of buckets in the place of measurements of which nothing else
//! is asked.

use std::collections::VecDeque;

use pinion_bson::{DocBuilder, ElementType, RawBsonRef, RawDocument, RawDocumentBuf};

use super::SeriesForm;
use crate::value::field;

/// Of which fields the least values are asked, and of which the greatest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ends {
    pub least: Vec<String>,
    pub greatest: Vec<String>,
    /// Whether the buckets have them of strings too, which they compare in their own way.
    pub of_strings: bool,
}

impl Ends {
    /// Documents that have the same least and greatest values as the measurements of a bucket, and
    /// their meta value; `None` where the bucket does not show them.
    pub(super) fn of(
        &self,
        form: &SeriesForm,
        bucket: &RawDocument,
    ) -> Option<VecDeque<RawDocumentBuf>> {
        let Some(RawBsonRef::Document(control)) = field(bucket, "control") else {
            return None;
        };
        // One document stands for the source where nothing is asked of its measurements.
        let sides: &[(&str, &[String])] = match (self.least.is_empty(), self.greatest.is_empty()) {
            (false, false) => &[("min", &self.least), ("max", &self.greatest)],
            (_, true) => &[("min", &self.least)],
            (true, false) => &[("max", &self.greatest)],
        };
        let made = sides.iter().map(|(side, names)| {
            let Some(RawBsonRef::Document(ends)) = field(control, side) else {
                return None;
            };
            let mut out = DocBuilder::new();
            if let (Some(name), Some(meta)) = (&form.meta, field(bucket, "meta")) {
                out.append_raw(name, meta);
            }
            for name in *names {
                if let Some(value) = field(ends, name) {
                    if !self.is_exact(value) {
                        return None;
                    }
                    out.append_raw(name, value);
                }
            }
            Some(out.finish())
        });
        made.collect()
    }

    /// Whether such an end is that of the values. Documents and arrays have their ends place by
    /// place, and a null may hide other values, which count before it.
    fn is_exact(&self, value: RawBsonRef<'_>) -> bool {
        match value.element_type() {
            ElementType::Double
            | ElementType::Int32
            | ElementType::Int64
            | ElementType::Decimal128
            | ElementType::DateTime
            | ElementType::Boolean
            | ElementType::ObjectId
            | ElementType::Timestamp => true,
            ElementType::String => self.of_strings,
            _ => false,
        }
    }
}
