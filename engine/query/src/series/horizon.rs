//! How far buckets have to be unpacked for the first n measurements by time.
//!
//! The buckets come in an order that shows how early, or late, all measurements of the next ones
//! can be at best. Once as many as are wanted are known that are as good as that, no further bucket
//! is examined.

use std::collections::BinaryHeap;

use pinion_bson::{DateTime, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::SeriesForm;
use crate::matcher::Matcher;
use crate::value::field;

/// By what the buckets are sorted, in the direction of the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketOrder {
    /// Their `_id`, which has the second in which they begin.
    Id,
    /// The time at which they begin.
    Least,
    /// The last time in them.
    Greatest,
}

/// What is wanted, and what has been found.
#[derive(Clone, Debug)]
pub(crate) struct Horizon {
    pub order: BucketOrder,
    /// Whether the latest come first.
    pub latest: bool,
    pub most: usize,
    /// What measurements have to match.
    pub filters: Vec<Matcher>,
    /// The best so far, the worst of them on top.
    best: BinaryHeap<i64>,
}

impl Horizon {
    pub(crate) fn new(order: BucketOrder, latest: bool, most: usize) -> Horizon {
        Horizon {
            order,
            latest,
            most,
            filters: Vec::new(),
            best: BinaryHeap::new(),
        }
    }

    /// Times as numbers of which the smaller is the better one.
    fn rank(&self, time_ms: i64) -> i64 {
        match self.latest {
            true => !time_ms,
            false => time_ms,
        }
    }

    /// Whether nothing of this rank or above is wanted any more.
    fn is_out(&self, rank: i64) -> bool {
        let worst = self.best.peek().filter(|_| self.best.len() >= self.most);
        worst.is_some_and(|worst| rank >= *worst)
    }

    /// Whether neither this bucket nor one that follows has anything that is wanted.
    pub(super) fn ends_before(&self, form: &SeriesForm, bucket: &RawDocument) -> bool {
        let span_ms = i64::from(form.max_span_secs) * 1000;
        let best_ms = match (self.order, self.latest) {
            (BucketOrder::Id, latest) => begin_by_id(bucket, latest).map(|begin_ms| match latest {
                true => begin_ms.saturating_add(span_ms),
                false => begin_ms,
            }),
            (BucketOrder::Least, true) => {
                time_in(form, bucket, "min").map(|ms| ms.saturating_add(span_ms))
            }
            (BucketOrder::Least, false) => time_in(form, bucket, "min"),
            (BucketOrder::Greatest, true) => time_in(form, bucket, "max"),
            (BucketOrder::Greatest, false) => {
                time_in(form, bucket, "max").map(|ms| ms.saturating_sub(span_ms))
            }
        };
        best_ms.is_some_and(|ms| self.is_out(self.rank(ms)))
    }

    /// Whether this bucket has nothing that is wanted.
    pub(super) fn hides(&self, form: &SeriesForm, bucket: &RawDocument) -> bool {
        let side = if self.latest { "max" } else { "min" };
        time_in(form, bucket, side).is_some_and(|ms| self.is_out(self.rank(ms)))
    }

    pub(super) fn wants(&self, time: DateTime, measurement: &RawDocument) -> Result<bool> {
        if self.is_out(self.rank(time.timestamp_millis())) {
            return Ok(false);
        }
        for filter in &self.filters {
            if !filter.matches(measurement)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes account of a measurement that was wanted.
    pub(super) fn gives(&mut self, time: DateTime) {
        self.best.push(self.rank(time.timestamp_millis()));
        if self.best.len() > self.most {
            self.best.pop();
        }
    }
}

/// The time at which a bucket begins by its `_id`, to the end of that second for the latest. Times
/// that an ObjectId cannot hold are at its ends.
fn begin_by_id(bucket: &RawDocument, latest: bool) -> Option<i64> {
    let Some(RawBsonRef::ObjectId(id)) = field(bucket, "_id") else {
        return None;
    };
    let [a, b, c, d, ..] = id.bytes();
    let secs = u32::from_be_bytes([a, b, c, d]);
    Some(match (secs, latest) {
        (u32::MAX, true) => i64::MAX,
        (0, false) => i64::MIN,
        (secs, true) => i64::from(secs) * 1000 + 999,
        (secs, false) => i64::from(secs) * 1000,
    })
}

fn time_in(form: &SeriesForm, bucket: &RawDocument, side: &str) -> Option<i64> {
    let Some(RawBsonRef::Document(control)) = field(bucket, "control") else {
        return None;
    };
    let Some(RawBsonRef::Document(ends)) = field(control, side) else {
        return None;
    };
    match field(ends, &form.time) {
        Some(RawBsonRef::DateTime(time)) => Some(time.timestamp_millis()),
        _ => None,
    }
}
