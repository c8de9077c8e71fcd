//! The ranges of keys that bounds of their fields leave.

use pinion_bson::RawBson;
use pinion_keystring::{Builder, Ordering};
use pinion_query::{IndexSpec, Interval, Intervals, Matcher, key_field_bounds};
use pinion_wire::Result;

use super::bytes::MIN_KEY;
use super::{KeyBytes, ShardKeyPattern};
use crate::chunk::ChunkRange;
use crate::limits::MAX_TARGETED_RANGES;

/// The keys of the documents that a filter matches.
#[derive(Clone, Debug, PartialEq)]
pub enum MatchedKeys {
    /// All that match have this one.
    One(KeyBytes),
    /// They lie in these ranges; nothing matches where there is none.
    Ranges(Vec<ChunkRange>),
    /// The filter says nothing of them.
    Any,
}

impl ShardKeyPattern {
    /// The keys of the documents that a filter matches.
    ///
    /// With another collation than the simple one strings that are equal have several keys, and
    /// several hashes, so that what compares with strings says nothing, and a hashed field has any
    /// value.
    ///
    /// # Errors
    /// The pattern has more fields than an index may have.
    pub fn matched_keys(&self, matcher: &Matcher) -> Result<MatchedKeys> {
        let is_simple = matcher.collation().is_none();
        let filter = matcher.filter();
        if (is_simple || !self.is_hashed())
            && let Some(key) = self.key_of_filter(filter, is_simple)
        {
            return Ok(MatchedKeys::One(key));
        }
        let index = IndexSpec::new("shard key", &self.to_bson())?;
        let alternatives = key_field_bounds(matcher, &index);
        if let [only] = &alternatives[..]
            && let Some(key) = self.single_key(only, is_simple)
        {
            return Ok(MatchedKeys::One(key));
        }
        let mut ranges = Vec::new();
        for bounds in &alternatives {
            match self.ranges(bounds, is_simple) {
                Some(found) => ranges.extend(found),
                None => return Ok(self.range_of_prefix(matcher, is_simple)),
            }
        }
        Ok(MatchedKeys::Ranges(ranges))
    }

    /// Where bounds say nothing: equalities with documents around the fields still may.
    fn range_of_prefix(&self, matcher: &Matcher, is_simple: bool) -> MatchedKeys {
        let may_name = is_simple || !self.is_hashed();
        let range = may_name.then(|| self.range_of_filter(matcher.filter(), is_simple));
        match range.flatten() {
            Some(range) => MatchedKeys::Ranges(vec![range]),
            None => MatchedKeys::Any,
        }
    }

    /// Bounds of a field as they count for the key.
    fn usable<'b>(
        &self,
        at: usize,
        bounds: &'b Intervals,
        is_simple: bool,
    ) -> Option<&'b Intervals> {
        let counts = is_simple || !self.fields[at].is_hashed;
        Some(bounds).filter(|bounds| counts && !bounds.is_all())
    }

    fn single_key(&self, bounds: &[Intervals], is_simple: bool) -> Option<KeyBytes> {
        let mut key = Builder::new(Ordering::ascending());
        for (at, bounds) in bounds.iter().enumerate() {
            let bounds = self.usable(at, bounds, is_simple)?;
            let [point] = &bounds.0[..] else { return None };
            if !point.is_point() {
                return None;
            }
            key.append(point.lower.as_raw_bson_ref());
        }
        Some(KeyBytes::built(&key))
    }

    /// The ranges of keys within these bounds of their fields; `None`: all keys. Leading fields
    /// that are bound to points multiply out; the first one that is not ends each range.
    fn ranges(&self, bounds: &[Intervals], is_simple: bool) -> Option<Vec<ChunkRange>> {
        let mut prefixes: Vec<Vec<&Interval>> = vec![Vec::new()];
        for (at, bounds) in bounds.iter().enumerate() {
            let Some(bounds) = self.usable(at, bounds, is_simple) else {
                break;
            };
            if prefixes.len().saturating_mul(bounds.0.len()) > MAX_TARGETED_RANGES {
                break;
            }
            let longer = prefixes.iter().flat_map(|prefix| {
                bounds.0.iter().map(|interval| {
                    let mut longer = prefix.clone();
                    longer.push(interval);
                    longer
                })
            });
            prefixes = longer.collect();
            if !bounds.points_only() {
                break;
            }
        }
        let ranges = prefixes.iter().map(|prefix| self.range(prefix));
        ranges.collect()
    }

    /// The keys whose leading fields lie in these intervals, all of them points but the last;
    /// `None` where there is no interval.
    fn range(&self, prefix: &[&Interval]) -> Option<ChunkRange> {
        let (last, points) = prefix.split_last()?;
        let bound = |value: &RawBson, is_behind: bool| {
            let mut key = Builder::new(Ordering::ascending());
            for point in points {
                key.append(point.lower.as_raw_bson_ref());
            }
            key.append(value.as_raw_bson_ref());
            let bound = KeyBytes::built(&key);
            match is_behind {
                true => bound.after(),
                // The least key that begins so.
                false => bound.followed_by(&vec![MIN_KEY; self.fields.len() - prefix.len()]),
            }
        };
        Some(ChunkRange {
            min: bound(&last.lower, !last.lower_inclusive),
            max: bound(&last.upper, last.upper_inclusive),
        })
    }
}
