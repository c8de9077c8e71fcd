//! Dividing a pipeline that unpacks the buckets of a time series: what can be asked of the buckets
//! is asked of them, and they are unpacked only as far as the stages behind need them.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::fields::{FieldNames, add_expression, read_by};
use super::find_prefix::{FindPrefix, join_filters};
use super::geo_near::GeoNear;
use super::stage::{StageKind, limit_behind};
use super::{Pipeline, Stage};
use crate::expression::{MetaSet, Variables};
use crate::index::{IndexKind, IndexSpec};
use crate::limits::MAX_FIRST_MEASUREMENTS;
use crate::matcher::Matcher;
use crate::series::{BucketOrder, Ends, Gives, Horizon, SeriesForm, Unpack, bucket_filter};
use crate::sort::SortPattern;
use crate::value::{elements, first, items};

/// What a series' pipeline is divided into.
struct Unpacked {
    unpack: Unpack,
    /// What is asked of the buckets.
    buckets: RawDocumentBuf,
    /// What is asked of the measurements beside that.
    filters: Vec<Stage>,
    behind: Vec<Stage>,
    sort: Option<SortPattern>,
    limit: Option<i64>,
}

impl Pipeline {
    /// The parts where buckets are unpacked at the front.
    pub(super) fn behind_unpacking(
        self,
        unpack: Unpack,
        indexes: Option<&[IndexSpec]>,
        variables: &Variables,
    ) -> Result<FindPrefix> {
        if let Some(StageKind::GeoNear(stage)) = self.stages.get(1).map(|stage| &stage.kind) {
            let stage = stage.clone();
            return self.near_sources(unpack, &stage, variables);
        }
        let mut divided = self.without_bucket_filters(unpack, variables)?;
        let indexes = indexes.unwrap_or_default();
        if !divided.sorts_sources()? && !divided.takes_first(indexes)? && divided.filters.is_empty()
        {
            divided.takes_ends();
        }
        if divided.filters.is_empty() && divided.unpack.is_of_one_bucket() {
            // A bucket has a measurement at least.
            let limit = limit_behind(&divided.behind);
            divided.limit = limit.and_then(|limit| i64::try_from(limit).ok());
        }
        let left = divided.filters.iter().chain(&divided.behind);
        divided.unpack.include = read_by(left).map(Arc::new);
        divided.into_parts(variables)
    }

    /// The parts where the sources are wanted by their distances: the buckets are found in that
    /// order, and a stage still adds the distance of each measurement.
    fn near_sources(
        self,
        unpack: Unpack,
        stage: &GeoNear,
        variables: &Variables,
    ) -> Result<FindPrefix> {
        let alike = unpack.compares_by(variables.collation.as_ref());
        let divided = bucket_filter(&unpack.form, stage.query(), alike);
        let buckets = stage.bucket_filter(&unpack.form, &divided.buckets)?;
        let mut stages = self.stages.into_iter();
        let mut rest: Vec<Stage> = stages.next().into_iter().collect();
        let behind: Vec<Stage> = stages.collect();
        let limit = limit_behind(&behind[1..]).filter(|_| divided.measurements.is_none());
        if let Some(left) = divided.measurements {
            let matcher = Matcher::parse_with(&left, variables)?;
            rest.push(Stage::made("$match", &*left, StageKind::Match(matcher)));
        }
        rest.extend(behind);
        Ok(FindPrefix {
            matcher: Matcher::parse_query(&buckets, variables)?,
            sort: None,
            limit: limit.and_then(|limit| i64::try_from(limit).ok()),
            metadata: MetaSet::default(),
            rest: Pipeline { stages: rest },
        })
    }

    /// Takes the filters off the front, as far as they are those of buckets.
    fn without_bucket_filters(self, unpack: Unpack, variables: &Variables) -> Result<Unpacked> {
        let mut stages = self.stages.into_iter().skip(1).peekable();
        let (mut buckets, mut filters) = (Vec::new(), Vec::new());
        while let Some(StageKind::Match(matcher)) = stages.peek().map(|stage| &stage.kind) {
            let alike = unpack.collates_like(matcher);
            let divided = bucket_filter(&unpack.form, matcher.filter(), alike);
            buckets.push(divided.buckets);
            let stage = stages.next();
            match divided.measurements {
                None => {}
                Some(left) if stage.as_ref().is_some_and(|stage| is_filter(stage, &left)) => {
                    filters.extend(stage);
                }
                Some(left) => {
                    let matcher = Matcher::parse_with(&left, variables)?;
                    filters.push(Stage::made("$match", &*left, StageKind::Match(matcher)));
                }
            }
        }
        Ok(Unpacked {
            unpack,
            buckets: join_filters(&buckets),
            filters,
            behind: stages.collect(),
            sort: None,
            limit: None,
        })
    }
}

fn is_filter(stage: &Stage, filter: &RawDocument) -> bool {
    matches!(&stage.kind, StageKind::Match(matcher) if *matcher.filter() == *filter)
}

impl Unpacked {
    /// Sorts the buckets where the measurements are sorted by their sources alone.
    fn sorts_sources(&mut self) -> Result<bool> {
        let Some(StageKind::Sort(pattern)) = self.behind.first().map(|stage| &stage.kind) else {
            return Ok(false);
        };
        let mut buckets = DocBuilder::new();
        for (path, direction) in elements(pattern.source()) {
            let Some(path) = self.unpack.form.meta_path(path) else {
                return Ok(false);
            };
            buckets.append_raw(&path, direction);
        }
        let sort = SortPattern::parse(&buckets.finish())?;
        self.sort = Some(sort.with_collation(pattern.collation().cloned()));
        self.behind.remove(0);
        Ok(true)
    }

    /// Reads the buckets in an order in which the first measurements by time are found soon, where
    /// a limited number of them is wanted.
    fn takes_first(&mut self, indexes: &[IndexSpec]) -> Result<bool> {
        let Some(StageKind::Sort(pattern)) = self.behind.first().map(|stage| &stage.kind) else {
            return Ok(false);
        };
        let mut fields = pattern.fields();
        let (Some((path, latest)), None) = (fields.next(), fields.next()) else {
            return Ok(false);
        };
        let most = limit_behind(&self.behind[1..]).filter(|most| *most <= MAX_FIRST_MEASUREMENTS);
        let Some(most) = most.filter(|_| path.text() == self.unpack.form.time) else {
            return Ok(false);
        };
        let form = &self.unpack.form;
        let order = order_of_index(form, indexes, &self.buckets).unwrap_or(BucketOrder::Id);
        let path = match order {
            BucketOrder::Id => "_id".to_owned(),
            BucketOrder::Least => format!("control.min.{}", form.time),
            BucketOrder::Greatest => format!("control.max.{}", form.time),
        };
        let mut sort = DocBuilder::new();
        sort.append(&path, if latest { -1 } else { 1 });
        self.sort = Some(SortPattern::parse(&sort.finish())?);
        let mut horizon = Horizon::new(order, latest, most);
        let matchers = self.filters.iter().filter_map(|stage| match &stage.kind {
            StageKind::Match(matcher) => Some(matcher.clone()),
            _ => None,
        });
        horizon.filters = matchers.collect();
        self.unpack.gives = Gives::First(Box::new(horizon));
        Ok(true)
    }

    /// Takes the least and the greatest values from the buckets where a group of sources asks for
    /// nothing else.
    fn takes_ends(&mut self) {
        let Some(stage) = self.behind.first() else {
            return;
        };
        let (StageKind::Group(group), Some(("$group", RawBsonRef::Document(spec)))) =
            (&stage.kind, first(&stage.source))
        else {
            return;
        };
        if let Some(mut ends) = ends_of(&self.unpack.form, spec) {
            ends.of_strings = self.unpack.compares_by(group.collation.as_ref());
            self.unpack.gives = Gives::Ends(Arc::new(ends));
        }
    }

    fn into_parts(self, variables: &Variables) -> Result<FindPrefix> {
        let spec = self.unpack.to_document();
        let unpack = Stage::made(
            "$_internalUnpackBucket",
            &*spec,
            StageKind::Unpack(self.unpack),
        );
        let stages = [unpack].into_iter().chain(self.filters);
        Ok(FindPrefix {
            matcher: Matcher::parse_with(&self.buckets, variables)?,
            sort: self.sort,
            limit: self.limit,
            metadata: MetaSet::default(),
            rest: Pipeline {
                stages: stages.chain(self.behind).collect(),
            },
        })
    }
}

/// The ends that a group is about, where that is all, and its groups are of whole sources.
fn ends_of(form: &SeriesForm, group: &RawDocument) -> Option<Ends> {
    let is_of_source = |name: &str| form.meta.as_deref() == Some(name);
    let mut ends = Ends::default();
    for (name, value) in elements(group) {
        if name == "_id" {
            let mut names = FieldNames::new();
            add_expression(value, &mut names)?;
            names.iter().all(|name| is_of_source(name)).then_some(())?;
            continue;
        }
        let RawBsonRef::Document(accumulator) = value else {
            return None;
        };
        let (operator, RawBsonRef::String(operand)) = first(accumulator)? else {
            return None;
        };
        let field = operand.strip_prefix('$')?;
        if field.is_empty() || field.contains(['.', '$']) {
            return None;
        }
        match operator {
            "$min" | "$max" if is_of_source(field) => {}
            // A bucket begins before its first measurement.
            "$min" if field != form.time => ends.least.push(field.to_owned()),
            "$max" => ends.greatest.push(field.to_owned()),
            _ => return None,
        }
    }
    Some(ends)
}

/// How an index gives the buckets of a filter by their times, if one does.
fn order_of_index(
    form: &SeriesForm,
    indexes: &[IndexSpec],
    filter: &RawDocument,
) -> Option<BucketOrder> {
    let usable = indexes.iter().filter(|index| {
        index.ready && !index.hidden && index.kind == IndexKind::Btree && index.filter.is_none()
    });
    let (least, greatest) = (
        format!("control.min.{}", form.time),
        format!("control.max.{}", form.time),
    );
    usable
        .filter(|index| index.multikey.is_none())
        .find_map(|index| {
            let mut fields = elements(&index.key).map(|(name, _)| name);
            let ordered = fields.find(|name| !is_equal_in(filter, name))?;
            match ordered {
                name if name == least => Some(BucketOrder::Least),
                name if name == greatest => Some(BucketOrder::Greatest),
                _ => None,
            }
        })
}

/// Whether a filter asks for one value at a path.
fn is_equal_in(filter: &RawDocument, path: &str) -> bool {
    elements(filter).any(|(name, value)| match (name, value) {
        ("$and", RawBsonRef::Array(parts)) => items(parts)
            .any(|part| matches!(part, RawBsonRef::Document(part) if is_equal_in(part, path))),
        (name, RawBsonRef::Document(operators)) if name == path => {
            first(operators).is_none_or(|(name, _)| name == "$eq" || !name.starts_with('$'))
        }
        (_, RawBsonRef::RegularExpression(_)) => false,
        (name, _) => name == path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::tests::outputs;
    use crate::series::{Packing, bucket_id, pack};
    use crate::work::Units;
    use pinion_bson::{DateTime, ObjectId, RawBson, rawbson, rawdoc};

    const SPAN_SECS: i32 = 3600;

    fn form() -> SeriesForm {
        SeriesForm {
            time: "t".into(),
            meta: Some("m".into()),
            max_span_secs: SPAN_SECS,
        }
    }

    /// Measurements of three sources in twenty minutes each of several hours, some before 1970.
    fn measurements() -> Vec<RawDocumentBuf> {
        let measurement = |n: i64| {
            let hour = n * 7 % 9 - 2;
            let secs = hour * i64::from(SPAN_SECS) + n * 31 % 1200;
            let value: RawBson = match n % 11 {
                0 => RawBson::Null,
                1 => rawbson!("text"),
                _ => rawbson!(n * 13 % 101),
            };
            rawdoc! { "t": DateTime::from_millis(secs * 1000 + n), "m": { "s": n % 3 }, "_id": n, "v": value, "w": n * 17 % 53 }
        };
        (0..200).map(measurement).collect()
    }

    fn buckets() -> Vec<RawDocumentBuf> {
        let mut sources: std::collections::BTreeMap<(i64, i64), Vec<RawDocumentBuf>> =
            Default::default();
        for measurement in measurements() {
            let secs = measurement
                .get_datetime("t")
                .expect("a time")
                .timestamp_millis()
                .div_euclid(1000);
            let hour = secs.div_euclid(i64::from(SPAN_SECS));
            let number = measurement.get_i64("_id").expect("a number");
            sources
                .entry((hour, number % 3))
                .or_default()
                .push(measurement);
        }
        let bucket = |((hour, source), all): ((i64, i64), Vec<RawDocumentBuf>)| {
            let start_ms = hour * i64::from(SPAN_SECS) * 1000;
            let meta = rawbson!({ "s": source });
            let unique = ObjectId::from_bytes([source as u8; 12]);
            let into = Packing::New {
                id: bucket_id(start_ms, unique),
                start_ms,
                meta: Some(&meta),
            };
            let all: Vec<&RawDocument> = all.iter().map(|document| &**document).collect();
            pack(&form(), None, into, &all).expect("it packs").bucket
        };
        sources.into_iter().map(bucket).collect()
    }

    fn parsed(stages: &[RawDocumentBuf]) -> Pipeline {
        let mut array = pinion_bson::RawArrayBuf::new();
        stages.iter().for_each(|stage| array.push(stage.clone()));
        Pipeline::parse(&array, &Variables::default()).expect("it parses")
    }

    /// What a read of the buckets gives that does what the parts ask of it.
    fn read(parts: &FindPrefix) -> Vec<RawDocumentBuf> {
        let mut found: Vec<_> = buckets()
            .into_iter()
            .filter(|bucket| parts.matcher.matches(&**bucket).expect("it matches or not"))
            .collect();
        if let Some(sort) = &parts.sort {
            found.sort_by_key(|bucket| sort.sort_key(&**bucket).expect("it has a key"));
        }
        found.truncate(parts.limit.map_or(usize::MAX, |limit| limit as usize));
        found
    }

    /// Divides the stages over buckets, and checks that they give what they give of the
    /// measurements.
    #[track_caller]
    fn check(stages: RawBson, indexes: &[RawDocumentBuf]) -> FindPrefix {
        let RawBson::Array(stages) = &stages else {
            panic!("an array of stages");
        };
        let stages: Vec<RawDocumentBuf> = pinion_bson::values(stages)
            .map(|stage| stage.as_document().expect("a stage").to_owned())
            .collect();
        let plain = outputs(parsed(&stages), measurements(), Units::MAX).expect("it runs");
        let unpack = rawdoc! { "$_internalUnpackBucket": { "timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": SPAN_SECS } };
        let mut pipeline = parsed(&[&[unpack], &stages[..]].concat());
        pipeline.locate(&[], None, "d.c").expect("it is a series");
        let indexes: Vec<IndexSpec> = (indexes.iter())
            .map(|index| IndexSpec::parse(index).expect("an index"))
            .collect();
        let divided = pipeline.find_prefix(Some(&indexes), &Variables::default());
        let parts = divided.expect("it divides");
        let found = outputs(parts.rest.clone(), read(&parts), Units::MAX).expect("it runs");
        let sorted = |mut all: Vec<RawDocumentBuf>| {
            all.sort_by_key(|document| document.as_bytes().to_vec());
            all
        };
        assert_eq!(sorted(found.0), sorted(plain.0), "{stages:?}");
        parts
    }

    fn unpack_of(parts: &FindPrefix) -> &Unpack {
        match &parts.rest.stages[0].kind {
            StageKind::Unpack(unpack) => unpack,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_first(
        stages: RawBson,
        indexes: &[RawDocumentBuf],
        expected: BucketOrder,
        sort: RawDocumentBuf,
    ) {
        let parts = check(stages, indexes);
        let Gives::First(horizon) = &unpack_of(&parts).gives else {
            panic!("the first are wanted");
        };
        assert_eq!(horizon.order, expected);
        assert_eq!(parts.sort.expect("they are sorted").source(), &*sort);
    }

    #[test]
    fn the_first_by_time_are_found_in_the_first_buckets() {
        let by_id = |direction: i32| rawdoc! { "_id": direction };
        for most in [1, 3, 40, 199, 1000] {
            let latest = rawbson!([{ "$sort": { "t": -1 } }, { "$limit": most }]);
            check_first(latest, &[], BucketOrder::Id, by_id(-1));
            let earliest = rawbson!([{ "$sort": { "t": 1 } }, { "$skip": 2 }, { "$limit": most }]);
            check_first(earliest, &[], BucketOrder::Id, by_id(1));
            let filtered = rawbson!([{ "$match": { "w": { "$gt": 40 } } }, { "$sort": { "t": -1 } }, { "$limit": most }]);
            check_first(filtered, &[], BucketOrder::Id, by_id(-1));
            let index = rawdoc! { "v": 2, "name": "n", "key": { "meta": 1, "control.min.t": 1, "control.max.t": 1 } };
            let of_source = rawbson!([{ "$match": { "m": { "s": 1_i64 } } }, { "$sort": { "t": 1 } }, { "$limit": most }]);
            let by_least = rawdoc! { "control.min.t": 1 };
            check_first(of_source, &[index], BucketOrder::Least, by_least);
            let index = rawdoc! { "v": 2, "name": "n", "key": { "control.max.t": -1, "control.min.t": -1 } };
            let latest = rawbson!([{ "$sort": { "t": -1 } }, { "$limit": most }]);
            let by_greatest = rawdoc! { "control.max.t": -1 };
            check_first(latest, &[index], BucketOrder::Greatest, by_greatest);
        }
    }

    #[test]
    fn buckets_are_not_unpacked_for_their_ends() {
        let ends = |stages| match &unpack_of(&check(stages, &[])).gives {
            Gives::Ends(ends) => Some((ends.least.len(), ends.greatest.len())),
            _ => None,
        };
        let group = |fields: RawDocumentBuf| rawbson!([{ "$group": fields }]);
        assert_eq!(ends(group(rawdoc! { "_id": "$m.s" })), Some((0, 0)));
        assert_eq!(
            ends(group(
                rawdoc! { "_id": "$m.s", "a": { "$min": "$w" }, "b": { "$max": "$v" }, "c": { "$max": "$t" } }
            )),
            Some((1, 2))
        );
        assert_eq!(
            ends(group(rawdoc! { "_id": null, "a": { "$min": "$v" } })),
            Some((1, 0))
        );
        assert_eq!(
            ends(group(rawdoc! { "_id": "$m", "a": { "$min": "$t" } })),
            None
        );
        assert_eq!(
            ends(group(rawdoc! { "_id": "$w", "a": { "$min": "$v" } })),
            None
        );
        assert_eq!(
            ends(group(
                rawdoc! { "_id": "$m", "a": { "$sum": 1 }, "b": { "$max": "$v" } }
            )),
            None
        );
        assert_eq!(
            ends(
                rawbson!([{ "$match": { "w": 3 } }, { "$group": { "_id": "$m", "b": { "$max": "$v" } } }])
            ),
            None
        );
        assert_eq!(
            ends(
                rawbson!([{ "$match": { "m.s": 1 } }, { "$group": { "_id": "$m", "b": { "$max": "$v" } } }])
            ),
            Some((0, 1))
        );
    }

    #[test]
    fn buckets_are_sorted_and_limited_in_place_of_measurements() {
        let parts = check(rawbson!([{ "$sort": { "m.s": -1, "m": 1 } }]), &[]);
        let sort = parts.sort.expect("they are sorted");
        assert_eq!(sort.source(), &*rawdoc! { "meta.s": -1, "meta": 1 });
        let parts = check(
            rawbson!([{ "$limit": 500 }, { "$project": { "w": 1 } }]),
            &[],
        );
        assert_eq!(parts.limit, Some(500));
        let parts = check(rawbson!([{ "$match": { "w": 3 } }, { "$limit": 500 }]), &[]);
        assert_eq!(parts.limit, None);
        let parts = check(rawbson!([{ "$sort": { "m.s": -1, "w": 1 } }]), &[]);
        assert!(parts.sort.is_none());
    }

    #[test]
    fn only_what_is_read_is_unpacked() {
        let include = |stages| unpack_of(&check(stages, &[])).to_document();
        let names = |stages| pinion_bson::get(&include(stages), "include").map(RawBson::from);
        assert_eq!(names(rawbson!([{ "$count": "n" }])), Some(rawbson!([])));
        assert_eq!(
            names(rawbson!([{ "$group": { "_id": "$m", "n": { "$sum": "$w" } } }])),
            Some(rawbson!(["m", "w"]))
        );
        assert_eq!(
            names(
                rawbson!([{ "$match": { "v": { "$gt": 5 } } }, { "$project": { "t": 1, "_id": 0 } }])
            ),
            Some(rawbson!(["t", "v"]))
        );
        assert_eq!(names(rawbson!([{ "$addFields": { "x": "$v" } }])), None);
    }
}
