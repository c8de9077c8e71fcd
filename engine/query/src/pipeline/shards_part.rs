//! What a shard runs of a pipeline that a mongos of MongoDB 4.4 merges: groups leave in the form
//! that is put together there, and documents with what orders them, and what else is known of them,
//! in fields that mongos takes off again.

use pinion_bson::DocBuilder;
use pinion_wire::{ErrorCode, Result};

use super::step::{Accepted, Step};
use super::{Document, Pipeline, Stage, StageKind};
use crate::error::error;
use crate::expression::{MetaKind, MetaSet};
use crate::work::spend_bytes;

/// Bytes of a field's type, its name and its terminator.
const FIELD_BYTES: usize = 16;

impl Pipeline {
    /// The same pipeline as the part that a shard has of one, whose end a mongos of MongoDB 4.4
    /// runs over what all shards give. What writes its documents has nothing to give.
    ///
    /// # Errors
    /// `CommandNotSupported` for an accumulator that mongos cannot merge, and for a `$geoNear` that
    /// does not say in which field it gives distances, without which there is no order to merge by.
    pub fn as_shards_part(mut self) -> Result<Pipeline> {
        for at in (0..self.stages.len()).rev() {
            let order = match &mut self.stages[at].kind {
                StageKind::Group(group) => {
                    group.give_mergeable()?;
                    continue;
                }
                StageKind::Sample(sample) => {
                    sample.gives_numbers = true;
                    continue;
                }
                StageKind::Sort(pattern) => pattern.clone(),
                StageKind::GeoNear(near) => near.order()?.ok_or_else(no_distances)?,
                _ => continue,
            };
            let order = order.with_comparison_keys();
            let behind = self.behind_order(at);
            match self.stages.get_mut(behind).map(|stage| &mut stage.kind) {
                // A later stage reads them here already.
                Some(StageKind::SortKeys(keys)) => *keys = order,
                _ => self.insert_sort_keys(at, order),
            }
        }
        let shown = self.shown_to_mongos();
        if self.output().is_none() && !shown.is_empty() {
            let stage = Stage::unnamed(StageKind::Showing(shown));
            self.stages.push(stage);
        }
        Ok(self)
    }

    /// What is known of the documents that come out, as far as mongos takes it.
    fn shown_to_mongos(&self) -> MetaSet {
        let given = self.gives().iter();
        let mut shown = MetaSet::of(given.filter(|kind| kind.field_of_v44().is_some()));
        let shows_points =
            |stage: &Stage| matches!(&stage.kind, StageKind::GeoNear(near) if near.shows_points());
        if !self.stages.iter().any(shows_points) {
            shown.remove(MetaKind::GeoNearPoint);
        }
        shown
    }
}

fn no_distances() -> pinion_wire::Error {
    error(
        ErrorCode::COMMAND_NOT_SUPPORTED.0,
        "what a $geoNear without a 'distanceField' gives cannot be merged by MongoDB 4.4",
    )
}

/// Shows what is known of documents in fields of theirs.
#[derive(Debug)]
pub(super) struct Shown(pub MetaSet);

impl Step for Shown {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        let metadata = document.metadata();
        let bytes = document.as_bytes().len() + metadata.bytes();
        spend_bytes(bytes)?;
        let mut out = DocBuilder::with_capacity(bytes + FIELD_BYTES);
        out.append_all(document);
        for kind in self.0.iter() {
            let known = metadata.value(kind);
            if let (Some(field), Some(value)) = (kind.field_of_v44(), known.as_ref()) {
                out.append_raw(field, value);
            }
        }
        Ok(Accepted::Made(out.finish().into()))
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocumentBuf, rawbson, rawdoc};

    use super::*;
    use crate::expression::Variables;
    use crate::pipeline::tests::{outputs, outputs_within};
    use crate::spill::tests::Disk;
    use crate::spill::{Memory, MemoryLimits};
    use crate::work::Units;

    fn array(stages: RawBson) -> RawArrayBuf {
        let RawBson::Array(stages) = stages else {
            panic!("an array of stages");
        };
        stages
    }

    fn part_of(stages: &RawArrayBuf) -> Result<Pipeline> {
        Pipeline::parse(stages, &Variables::default())?.as_shards_part()
    }

    fn documents() -> Vec<RawDocumentBuf> {
        (1..=4)
            .map(|n| rawdoc! { "_id": n, "a": 10 - n, "k": n % 2, "l": [n, 7] })
            .collect()
    }

    /// Checks what comes out, and that it does not depend on what the read in front of the stages
    /// does of them.
    #[track_caller]
    fn check(stages: RawBson, expected: &[RawDocumentBuf]) {
        let part = part_of(&array(stages)).expect("it parses");
        let is_written = |source: &pinion_bson::RawDocument| !source.is_empty();
        assert!(
            part.sources().all(is_written),
            "explain shows what is written"
        );
        let found = outputs(part.clone(), documents(), Units::MAX).expect("it runs");
        assert_eq!(found.0, expected);
        let split = part.split(None, &Variables::default()).expect("it splits");
        if split.sort.is_none() && split.limit.is_none() && split.matcher.is_empty() {
            let found = outputs(split.into_whole(), documents(), Units::MAX).expect("it runs");
            assert_eq!(found.0, expected);
        }
    }

    #[test]
    fn documents_come_with_what_orders_them() {
        check(
            rawbson!([{ "$sort": { "a": 1 } }, { "$limit": 2 }, { "$project": { "k": 1 } }]),
            &[
                rawdoc! { "_id": 4, "k": 0, "$sortKey": [6] },
                rawdoc! { "_id": 3, "k": 1, "$sortKey": [7] },
            ],
        );
        check(
            rawbson!([{ "$project": { "l": 1 } }, { "$sort": { "l": -1, "x": 1 } }, { "$limit": 1 }]),
            &[rawdoc! { "_id": 1, "l": [1, 7], "$sortKey": [7, null] }],
        );
        // The last order counts, and what is grouped has none.
        check(
            rawbson!([{ "$sort": { "a": 1 } }, { "$limit": 1 }, { "$sort": { "_id": 1 } }]),
            &[rawdoc! { "_id": 4, "a": 6, "k": 0, "l": [4, 7], "$sortKey": [4] }],
        );
        check(
            rawbson!([{ "$sort": { "a": 1 } }, { "$group": { "_id": null, "f": { "$first": "$_id" } } }]),
            &[rawdoc! { "_id": null, "f": 4 }],
        );
        check(
            rawbson!([{ "$match": { "_id": { "$lt": 2 } } }, { "$project": { "k": 1 } }]),
            &[rawdoc! { "_id": 1, "k": 1 }],
        );
        check(
            rawbson!([{ "$sort": { "a": -1 } }, { "$project": { "_id": 1, "key": { "$meta": "sortKey" } } }, { "$limit": 1 }]),
            &[rawdoc! { "_id": 1, "key": [9], "$sortKey": [9] }],
        );
    }

    #[test]
    fn what_writes_shows_nothing() {
        let part = part_of(&array(rawbson!([{ "$sort": { "a": 1 } }, { "$out": "c" }])));
        let part = part.expect("it parses");
        assert!(part.output().is_some(), "it stays the last");
    }

    #[test]
    fn samples_come_with_their_numbers() {
        let part = part_of(&array(rawbson!([{ "$sample": { "size": 3 } }])));
        let part = part.expect("it parses");
        let found = outputs(part, documents(), Units::MAX).expect("it runs").0;
        assert_eq!(found.len(), 3);
        let numbers: Vec<f64> = found
            .iter()
            .map(|document| document.get_f64("$randVal").expect("a number"))
            .collect();
        assert!(numbers.is_sorted_by(|a, b| a >= b), "{numbers:?}");
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        for (document, number) in found.iter().zip(numbers) {
            let key = document.get_array("$sortKey").expect("a key");
            let values: Vec<RawBsonRef<'_>> = pinion_bson::values(key).collect();
            assert_eq!(values, [RawBsonRef::Double(number)]);
        }
    }

    #[test]
    fn distances_order_what_a_geo_near_gives() {
        let near = |distance: RawDocumentBuf| {
            let mut spec = pinion_bson::DocBuilder::new();
            spec.append_all(&rawdoc! { "near": [0, 0], "key": "p" });
            spec.append_all(&distance);
            let mut stages = RawArrayBuf::new();
            stages.push(rawdoc! { "$geoNear": spec.finish() });
            stages
        };
        let stages = near(rawdoc! { "distanceField": "far.off", "distanceMultiplier": 2 });
        let part = part_of(&stages).expect("it parses");
        let split = part.split(None, &Variables::default()).expect("it splits");
        let points = vec![rawdoc! { "_id": 1, "p": [3, 4] }];
        let found = outputs(split.into_whole(), points, Units::MAX).expect("it runs");
        assert_eq!(
            found.0,
            [
                rawdoc! { "_id": 1, "p": [3, 4], "far": { "off": 10.0 }, "$dis": 5.0, "$sortKey": [10.0] }
            ]
        );
        let refused = part_of(&near(rawdoc! {})).expect_err("there is no order");
        assert_eq!(refused.code, ErrorCode::COMMAND_NOT_SUPPORTED);
    }

    #[test]
    fn groups_leave_in_the_form_that_is_merged() {
        let group = || {
            rawbson!([{ "$group": { "_id": "$k", "n": { "$sum": 1 }, "s": { "$sum": "$a" },
            "m": { "$avg": "$a" }, "d": { "$stdDevPop": "$a" }, "all": { "$push": "$_id" } } }])
        };
        let expected = |k: i32, s: i32, ids: [i32; 2]| {
            let mean = f64::from(s) / 2.0;
            rawdoc! { "_id": k, "n": 2, "s": s,
            "m": { "subTotal": (f64::from(s)), "count": 2_i64, "subTotalError": 0.0 },
            "d": { "m2": 2.0, "mean": mean, "count": 2_i64 }, "all": [(ids[0]), (ids[1])] }
        };
        check(group(), &[expected(0, 14, [2, 4]), expected(1, 16, [1, 3])]);
        let refused = rawbson!([{ "$group": { "_id": null, "f": { "$firstN": { "n": 2, "input": "$a" } } } }]);
        let refused = part_of(&array(refused)).expect_err("mongos does not know it");
        assert_eq!(refused.code, ErrorCode::COMMAND_NOT_SUPPORTED);
    }

    #[test]
    fn groups_that_were_on_disk_have_that_form_too() {
        let stages = array(
            rawbson!([{ "$group": { "_id": "$k", "m": { "$avg": "$n" }, "d": { "$stdDevSamp": "$n" },
        "s": { "$sum": "$n" }, "all": { "$push": "$t" } } }]),
        );
        let documents = || -> Vec<RawDocumentBuf> {
            let document = |n: i32| rawdoc! { "_id": n, "k": n % 7, "n": (f64::from(n) / 3.0), "t": "x".repeat(100) };
            (0..500).map(document).collect()
        };
        let part = || part_of(&stages).expect("it parses");
        let held = outputs(part(), documents(), Units::MAX).expect("it runs");
        let memory = Memory {
            limits: MemoryLimits {
                group: 5000,
                hash_agg: 5000,
                ..MemoryLimits::default()
            },
            disk: true,
            ..Memory::default()
        };
        let mut disk = Disk::default();
        let spilled = outputs_within(part(), documents(), Units::MAX, &memory, &mut disk);
        assert_eq!(spilled.expect("it runs").0, held.0);
        assert!(disk.spills > 1, "groups were on disk");
        assert_eq!(held.0.len(), 7);
        assert!(
            held.0[0]
                .get_document("m")
                .is_ok_and(|m| m.get_f64("subTotal").is_ok())
        );
    }
}
