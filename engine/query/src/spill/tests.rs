//! What is spilled comes out as what was held in memory: sorts, queues, and pipelines over random
//! documents.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBson, RawDocumentBuf, rawbson, rawdoc};

use super::*;
use crate::expression::Variables;
use crate::pipeline::Pipeline;
use crate::pipeline::tests::outputs_within;
use crate::work::Units;

/// A file in memory.
#[derive(Default)]
pub(crate) struct Disk {
    bytes: Vec<u8>,
    /// Runs that were written because memory was full, and all others.
    pub spills: usize,
    pub joins: usize,
}

impl Disk {
    pub(crate) fn perform(&mut self, request: DiskRequest) -> DiskReply {
        match request {
            DiskRequest::Write {
                block,
                records,
                spills,
                begins,
                ..
            } => {
                assert!(records > 0 && !block.is_empty());
                self.spills += usize::from(begins && spills);
                self.joins += usize::from(begins && !spills);
                let place = Place {
                    offset: self.bytes.len() as u64,
                    bytes: block.len() as u32,
                    checksum: 0,
                };
                self.bytes.extend_from_slice(&block);
                DiskReply::Written(place)
            }
            DiskRequest::Read(place) => {
                let at = place.offset as usize..place.offset as usize + place.bytes as usize;
                DiskReply::Read(Bytes::copy_from_slice(&self.bytes[at]))
            }
        }
    }
}

/// Random numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// All limits are this one.
fn memory(limit: usize) -> Memory {
    Memory {
        limits: MemoryLimits {
            sort: limit,
            group: limit,
            hash_agg: limit,
            bucket_auto: limit,
            window_fields: limit,
        },
        disk: true,
        ..Memory::default()
    }
}

impl Spilled for u64 {
    fn spilled_bytes(&self) -> usize {
        8
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> pinion_wire::Result<u64> {
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }
}

#[track_caller]
fn check_sort(limit: Option<usize>, bytes: usize, entries: usize, disk: &mut Disk) {
    let mut chance = Chance(bytes as u64);
    let room = memory(bytes).room(bytes);
    let mut sorter: DiskSorter<u64> = DiskSorter::new(Spiller::Sort, limit, room);
    let mut expected = Vec::new();
    for i in 0..entries as u64 {
        let key = vec![chance.below(200) as u8; chance.below(20) as usize];
        expected.push((key.clone(), i));
        if sorter.push(key, i, 8).expect("it may spill") {
            while let Some(request) = sorter.request().expect("no budget") {
                sorter.reply(disk.perform(request)).expect("sound");
            }
        }
    }
    sorter.end();
    expected.sort();
    expected.truncate(limit.unwrap_or(usize::MAX));
    let mut found = Vec::new();
    loop {
        match sorter.next_entry().expect("sound") {
            Next::Entry(key, value) => found.push((key.to_vec(), value)),
            Next::End => break,
            Next::Disk => {
                while let Some(request) = sorter.request().expect("no budget") {
                    sorter.reply(disk.perform(request)).expect("sound");
                }
            }
        }
    }
    assert!(found == expected, "{limit:?} {bytes}");
}

#[test]
fn sorts_of_any_memory_are_the_same() {
    let mut disk = Disk::default();
    for bytes in [1, 100, 3000, 20_000, 200_000] {
        for limit in [None, Some(7), Some(2000), Some(100_000)] {
            check_sort(limit, bytes, 5000, &mut disk);
        }
    }
    assert!(
        disk.spills > 100 && disk.joins > 10,
        "{} {}",
        disk.spills,
        disk.joins
    );
    let mut disk = Disk::default();
    check_sort(None, 1 << 30, 5000, &mut disk);
    check_sort(Some(10), 10_000, 5000, &mut disk);
    assert_eq!(disk.spills, 0, "what fits is not spilled");
}

#[test]
fn a_sort_that_may_not_spill_fails() {
    let memory = Memory {
        disk: false,
        ..memory(1000)
    };
    let mut sorter: DiskSorter<u64> = DiskSorter::new(Spiller::Sort, None, memory.room(1000));
    let failed = (0..1000).find_map(|i| sorter.push(vec![0; 8], i, 8).err());
    assert_eq!(failed.expect("it fails").code.0, 292);
}

#[test]
fn a_queue_gives_what_it_was_given() {
    let mut chance = Chance(7);
    let mut disk = Disk::default();
    let mut queue: DiskQueue<u64> = DiskQueue::new(Spiller::WindowFields, 1000);
    let (mut pushed, mut popped, mut most) = (0, 0, 0);
    while popped < 20_000 {
        let growing = pushed - popped < 3000 && pushed < 20_000;
        if pushed < 20_000 && chance.below(if growing { 4 } else { 8 }) > 0 {
            queue.push(pushed);
            pushed += 1;
            if queue.bytes() > 8000 && queue.spill() {
                while let Some(request) = queue.request().expect("no budget") {
                    queue.reply(disk.perform(request)).expect("sound");
                }
            }
            most = most.max(queue.bytes());
            continue;
        }
        match queue.first() {
            First::Entry(first) => {
                assert_eq!(*first, popped);
                queue.pop();
                popped += 1;
            }
            First::Nothing => assert_eq!(pushed, popped),
            First::Disk => {
                while let Some(request) = queue.request().expect("no budget") {
                    queue.reply(disk.perform(request)).expect("sound");
                }
            }
        }
    }
    assert!(disk.spills > 1 && most < 12_000, "{} {most}", disk.spills);
}

/// Documents with numbers of all types, equal ones among them, strings, arrays and missing fields.
fn documents(count: usize, chance: &mut Chance) -> Vec<RawDocumentBuf> {
    let value = |chance: &mut Chance| -> RawBson {
        match chance.below(7) {
            0 => RawBson::Int32(chance.below(9) as i32),
            1 => RawBson::Int64(chance.below(9) as i64),
            2 => RawBson::Double(chance.below(9) as f64),
            3 => RawBson::Double(chance.below(1 << 30) as f64 / 7.0),
            4 => RawBson::Decimal128("0.1".parse().expect("a decimal")),
            5 => RawBson::Null,
            _ => RawBson::String("x".repeat(chance.below(90) as usize)),
        }
    };
    let document = |at: usize| {
        let mut out = DocBuilder::new();
        out.append("_id", at as i32);
        out.append("n", chance.below(1000) as f64 / 3.0);
        for name in ["k", "v", "w"] {
            if chance.below(9) > 0 {
                out.append(name, value(chance).as_raw_bson_ref());
            }
        }
        out.start_array("l");
        for _ in 0..chance.below(3) {
            out.push(value(chance).as_raw_bson_ref());
        }
        out.end();
        out.start_document("o");
        out.append("a", chance.below(3) as i32);
        out.append("b", at as i32);
        out.end();
        out.finish()
    };
    (0..count).map(document).collect()
}

/// What stages make with little memory is, to the last byte, what they make with much.
#[track_caller]
fn check_pipeline(stages: RawBson) {
    check_with(stages, [20_000, 60_000, 150_000]);
}

/// The same with these limits.
#[track_caller]
fn check_with(stages: RawBson, limits: [usize; 3]) {
    let mut chance = Chance(28);
    let documents = documents(3000, &mut chance);
    let made = |limit: usize, budget: Units, disk: &mut Disk| {
        let RawBson::Array(stages) = &stages else {
            panic!("an array of stages");
        };
        let pipeline = Pipeline::parse(stages, &Variables::default()).expect("parses");
        outputs_within(pipeline, documents.clone(), budget, &memory(limit), disk)
            .unwrap_or_else(|e| panic!("{stages:?} with {limit}: {e:?}"))
            .0
    };
    let mut disk = Disk::default();
    let expected = made(1 << 30, Units::MAX, &mut disk);
    assert_eq!(disk.spills, 0);
    for (limit, budget) in limits.into_iter().zip([Units::MAX, 20_000, 4_000_000]) {
        let found = made(limit, budget, &mut disk);
        assert!(found == expected, "{stages:?} with {limit}");
    }
    assert!(disk.spills > 1, "{stages:?}: {} spills", disk.spills);
}

#[test]
fn pipelines_of_any_memory_make_the_same() {
    check_pipeline(rawbson!([{ "$sort": { "v": 1, "k": -1 } }]));
    check_pipeline(rawbson!([{ "$sort": { "w": -1 } }, { "$limit": 2500 }, { "$skip": 3 }]));
    check_pipeline(rawbson!([{ "$bucketAuto": { "groupBy": "$n", "buckets": 7,
        "output": { "n": { "$sum": 1 }, "s": { "$sum": "$v" }, "p": { "$push": "$_id" } } } }]));
    check_pipeline(rawbson!([{ "$facet": {
        "a": [{ "$sort": { "v": 1 } }, { "$project": { "v": 1 } }],
        "b": [{ "$group": { "_id": "$n", "n": { "$sum": "$n" } } }],
        "c": [{ "$limit": 3 }],
    } }]));
}

#[test]
fn groups_of_any_memory_are_the_same() {
    let fields = rawdoc! {
        "sum": { "$sum": "$v" }, "avg": { "$avg": "$n" }, "dev": { "$stdDevPop": "$n" },
        "min": { "$min": "$v" }, "max": { "$max": "$w" }, "first": { "$first": "$v" },
        "last": { "$last": "$w" }, "push": { "$push": "$v" }, "set": { "$addToSet": "$w" },
        "maxN": { "$maxN": { "n": 3, "input": "$v" } }, "minN": { "$minN": { "n": 3, "input": "$v" } },
        "firstN": { "$firstN": { "n": 3, "input": "$v" } }, "lastN": { "$lastN": { "n": 3, "input": "$v" } },
        "top": { "$topN": { "n": 3, "sortBy": { "o.a": 1 }, "output": "$_id" } },
        "bottom": { "$bottomN": { "n": 3, "sortBy": { "o.a": 1 }, "output": "$_id" } },
        "one": { "$bottom": { "sortBy": { "k": 1 }, "output": "$_id" } },
        "median": { "$median": { "input": "$n", "method": "approximate" } },
        "merged": { "$mergeObjects": "$o" }, "count": { "$count": {} },
        "union": { "$setUnion": "$l" }, "lists": { "$concatArrays": "$l" },
    };
    for id in [
        rawbson!("$k"),
        rawbson!({ "k": "$k", "o": "$o.a" }),
        rawbson!("$n"),
        RawBson::Null,
    ] {
        let mut group = DocBuilder::new();
        group.append("_id", id.as_raw_bson_ref());
        group.append_all(&fields);
        check_pipeline(rawbson!([{ "$group": (group.finish()) }]));
    }
}

#[test]
fn windows_of_any_memory_are_the_same() {
    let stages = rawbson!([
        { "$project": { "o": 1, "n": 1, "t": { "$range": [0, 40] } } },
        { "$setWindowFields": { "partitionBy": "$o.a", "sortBy": { "n": 1 },
            "output": { "all": { "$sum": 1 }, "s": { "$sum": "$n", "window": { "documents": [-3, 5] } } } } },
    ]);
    check_with(stages, [400_000, 440_000, 480_000]);
}
