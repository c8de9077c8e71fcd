//! `$bucketAuto`: a sort by a value, cut into buckets of about as many documents.

use std::sync::Arc;

use pinion_bson::{DocBuilder, Number, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_keystring::encode_id_in;
use pinion_wire::Result;

use super::Document;
use super::document::split_document;
use super::granularity::Granularity;
use super::group::parse_field;
use super::step::{Accepted, OnDisk, Produced, Step};
use crate::accumulator::{Accumulation, Accumulator, Input};
use crate::collation::compare_owned;
use crate::error::{bad_value, error};
use crate::expression::{Expression, MetaSet, Value, Variables};
use crate::number::exact_i64;
use crate::spill::{DiskReply, DiskSorter, Memory, Next, Spilled, Spiller};
use crate::text::value_text;
use crate::value::{elements, first, is_nan, is_number, type_name};
use crate::work::{self, spend_bytes};

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub(super) struct BucketAuto {
    group_by: Expression,
    buckets: usize,
    fields: Vec<(String, Accumulation)>,
    granularity: Option<Granularity>,
    collation: Option<Arc<Collation>>,
}

impl BucketAuto {
    pub(super) fn parse(spec: RawBsonRef<'_>, variables: &Variables) -> Result<BucketAuto> {
        let RawBsonRef::Document(spec) = spec else {
            return Err(error(
                40240,
                format!(
                    "The argument to $bucketAuto must be an object, but found type: {}.",
                    type_name(spec)
                ),
            ));
        };
        let (mut group_by, mut buckets, mut fields, mut granularity) = (None, None, None, None);
        for (name, value) in elements(spec) {
            match name {
                "groupBy" => group_by = Some(parse_group_by(value, variables)?),
                "buckets" => buckets = Some(parse_buckets(value)?),
                "output" => fields = Some(parse_output(value, variables)?),
                "granularity" => granularity = Some(parse_granularity(value)?),
                other => {
                    return Err(error(
                        40245,
                        format!("Unrecognized option to $bucketAuto: {other}."),
                    ));
                }
            }
        }
        let (Some(group_by), Some(buckets)) = (group_by, buckets) else {
            return Err(error(
                40246,
                "$bucketAuto requires 'groupBy' and 'buckets' to be specified.",
            ));
        };
        let fields = match fields {
            Some(fields) => fields,
            None => {
                let count = Accumulation::plain(
                    crate::accumulator::Kind::Count,
                    RawBsonRef::Null,
                    variables,
                )?;
                vec![("count".to_string(), count)]
            }
        };
        Ok(BucketAuto {
            group_by,
            buckets,
            fields,
            granularity,
            collation: variables.collation.clone(),
        })
    }

    /// What is read beside the documents.
    pub(super) fn reads(&self) -> MetaSet {
        let fields = self.fields.iter().map(|(_, field)| field.reads());
        fields.fold(self.group_by.reads(), MetaSet::union)
    }

    /// The value that a document is sorted by.
    fn key<'a>(&'a self, document: &'a Document) -> Result<Value<'a>> {
        let key = self.group_by.evaluate(document)?;
        if self.granularity.is_none() {
            return Ok(key);
        }
        let value = key.or_null();
        let wrong = |code, what: String| {
            error(
                code,
                format!("$bucketAuto can specify a 'granularity' with {what}"),
            )
        };
        let Some(number) = Number::from_value(value) else {
            return Err(wrong(
                40258,
                format!(
                    "numeric boundaries only, but found a value with type: {}",
                    key.type_name()
                ),
            ));
        };
        if is_nan(value) {
            return Err(wrong(
                40259,
                "numeric boundaries only, but found a NaN".into(),
            ));
        }
        if number.is_negative() && !number.is_zero() {
            return Err(wrong(
                40260,
                "non-negative numbers only, but found a negative number".into(),
            ));
        }
        Ok(key)
    }

    fn round(&self, value: &RawBson, round: fn(Granularity, Number) -> Number) -> RawBson {
        let number = Number::from_value(value.as_raw_bson_ref());
        match (self.granularity, number) {
            (Some(granularity), Some(number)) => round(granularity, number).to_raw_bson(),
            _ => value.clone(),
        }
    }
}

fn parse_group_by(value: RawBsonRef<'_>, variables: &Variables) -> Result<Expression> {
    let allowed = match value {
        RawBsonRef::String(text) => text.starts_with('$'),
        RawBsonRef::Document(document) => {
            first(document).is_some_and(|(name, _)| name.starts_with('$'))
        }
        _ => false,
    };
    if !allowed {
        return Err(error(
            40239,
            format!(
                "The $bucketAuto 'groupBy' field must be defined as a $-prefixed path or an \
                 expression object, but found: {}.",
                value_text(value)
            ),
        ));
    }
    Expression::parse(value, variables)
}

fn parse_buckets(value: RawBsonRef<'_>) -> Result<usize> {
    if !is_number(value) {
        return Err(error(
            40241,
            format!(
                "The $bucketAuto 'buckets' field must be a numeric value, but found type: {}.",
                type_name(value)
            ),
        ));
    }
    let number = exact_i64(value).filter(|n| i32::try_from(*n).is_ok());
    let Some(number) = number else {
        return Err(error(
            40242,
            format!(
                "The $bucketAuto 'buckets' field must be representable as a 32-bit integer, but \
                 found {}.",
                value_text(value)
            ),
        ));
    };
    match usize::try_from(number) {
        Ok(buckets) if buckets > 0 => Ok(buckets),
        _ => Err(error(
            40243,
            format!("The $bucketAuto 'buckets' field must be greater than 0, but found: {number}."),
        )),
    }
}

fn parse_output(
    value: RawBsonRef<'_>,
    variables: &Variables,
) -> Result<Vec<(String, Accumulation)>> {
    let RawBsonRef::Document(output) = value else {
        return Err(error(
            40244,
            format!(
                "The $bucketAuto 'output' field must be an object, but found type: {}.",
                type_name(value)
            ),
        ));
    };
    elements(output)
        .map(|(name, value)| Ok((name.to_string(), parse_field(name, value, variables)?)))
        .collect()
}

fn parse_granularity(value: RawBsonRef<'_>) -> Result<Granularity> {
    let RawBsonRef::String(name) = value else {
        return Err(error(
            40261,
            format!(
                "The $bucketAuto 'granularity' field must be a string, but found type: {}.",
                type_name(value)
            ),
        ));
    };
    Granularity::find(name)
        .ok_or_else(|| error(40257, format!("Unknown rounding granularity '{name}'")))
}

/// A document with the value that it is sorted by.
#[derive(Debug)]
struct Entry {
    value: RawBson,
    document: Document,
}

impl Spilled for Entry {
    fn spilled_bytes(&self) -> usize {
        self.document.spilled_bytes() + crate::value::bytes(self.value.as_raw_bson_ref())
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut spilled = DocBuilder::new();
        spilled.append("value", self.value.as_raw_bson_ref());
        out.extend_from_slice(spilled.finish().as_bytes());
        self.document.write(out);
    }

    fn read(bytes: &[u8]) -> Result<Entry> {
        let unreadable = || bad_value("an entry that was spilled has a form that is not known");
        let (value, document) = split_document(bytes)?;
        let value = RawDocument::from_bytes(value).map_err(|_| unreadable())?;
        let (_, value) = first(value).ok_or_else(unreadable)?;
        Ok(Entry {
            value: value.into(),
            document: Document::read(document)?,
        })
    }
}

/// The stage at work.
#[derive(Debug)]
pub(super) struct Bucketing {
    stage: BucketAuto,
    arrived: u64,
    sorter: DiskSorter<Entry>,
    /// The buckets on their way out, after the end.
    giving: Option<Giving>,
}

/// The buckets on their way out.
#[derive(Debug)]
struct Giving {
    /// The document that comes next.
    next: Option<Entry>,
    /// How many documents a bucket takes, of those that sort apart.
    size: u64,
    /// The buckets so far, with the one that takes documents.
    count: usize,
    bucket: Option<Bucket>,
    /// Where the last bucket ended.
    end: Option<RawBson>,
}

#[derive(Debug)]
struct Bucket {
    min: RawBson,
    max: RawBson,
    accumulators: Vec<Accumulator>,
    documents: u64,
    /// The maximum rounded up, once there are enough documents.
    boundary: Option<RawBson>,
}

impl Bucketing {
    pub(super) fn new(stage: BucketAuto, memory: &Memory) -> Bucketing {
        let room = memory.room(memory.limits.bucket_auto);
        Bucketing {
            stage,
            arrived: 0,
            sorter: DiskSorter::new(Spiller::BucketAuto, None, room),
            giving: None,
        }
    }
}

impl Step for Bucketing {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        spend_bytes(document.as_bytes().len())?;
        let value = self.stage.key(document)?;
        spend_bytes(value.bytes())?;
        work::check()?;
        let mut key = encode_id_in(self.stage.collation.as_deref(), value.or_null()).to_vec();
        // Documents of equal values stay in the order in which they came.
        key.extend_from_slice(&self.arrived.to_be_bytes());
        self.arrived += 1;
        let bytes = value.bytes() + document.as_bytes().len();
        let entry = Entry {
            value: value.into_owned().unwrap_or(RawBson::Null),
            document: document.clone(),
        };
        Ok(match self.sorter.push(key, entry, bytes)? {
            true => Accepted::Spills,
            false => Accepted::Kept,
        })
    }

    fn end(&mut self) -> Result<()> {
        self.sorter.end();
        let share = self.arrived as f64 / self.stage.buckets as f64;
        self.giving = Some(Giving {
            next: None,
            size: (share.round() as u64).max(1),
            count: 0,
            bucket: None,
            end: None,
        });
        Ok(())
    }

    fn give(&mut self) -> Result<Produced> {
        let Some(giving) = &mut self.giving else {
            return Ok(Produced::Nothing);
        };
        if giving.next.is_none() {
            match self.sorter.next_entry()? {
                Next::Entry(_, entry) => giving.next = Some(entry),
                Next::Disk => return Ok(Produced::Disk),
                Next::End => {}
            }
        }
        giving.advance(&self.stage)
    }

    fn disk(&mut self) -> Result<OnDisk> {
        self.sorter.request().map(OnDisk::from)
    }

    fn reply(&mut self, reply: DiskReply) -> Result<()> {
        self.sorter.reply(reply)
    }
}

impl Giving {
    /// Puts the next document into its bucket, or gives a bucket that is full.
    fn advance(&mut self, stage: &BucketAuto) -> Result<Produced> {
        let Some(bucket) = &mut self.bucket else {
            let Some(Entry { value, .. }) = &self.next else {
                return Ok(Produced::Nothing);
            };
            let started =
                |(_, accumulation): &(String, Accumulation)| accumulation.start(RawBsonRef::Null);
            let accumulators = stage.fields.iter().map(started).collect::<Result<_>>()?;
            // With a granularity a bucket begins where the one before it ended.
            let min = match (&self.end, stage.granularity) {
                (Some(end), Some(_)) => end.clone(),
                (_, _) => stage.round(value, Granularity::round_down),
            };
            self.count += 1;
            self.bucket = Some(Bucket {
                min,
                max: value.clone(),
                accumulators,
                documents: 0,
                boundary: None,
            });
            return Ok(Produced::Working);
        };
        if let Some(Entry { value, document }) = &self.next
            && bucket.takes(value, self.size, self.count >= stage.buckets, stage)
        {
            bucket.add(value, document, stage)?;
            self.next = None;
            return Ok(Produced::Working);
        }
        let bytes = bucket.accumulators.iter().map(Accumulator::bytes).sum();
        spend_bytes(bytes)?;
        let next = self.next.as_ref().map(|entry| &entry.value);
        let max = bucket.end(next, stage);
        let document = bucket.document(&max, stage);
        self.end = Some(max);
        self.bucket = None;
        Ok(Produced::Document(document.into()))
    }
}

impl Bucket {
    /// Whether the next document belongs into this bucket.
    fn takes(&mut self, value: &RawBson, size: u64, is_last: bool, stage: &BucketAuto) -> bool {
        if is_last || self.documents < size {
            return true;
        }
        let collation = stage.collation.as_deref();
        if stage.granularity.is_none() {
            return compare_owned(collation, &self.max, value).is_eq();
        }
        let boundary = self
            .boundary
            .get_or_insert_with(|| stage.round(&self.max, Granularity::round_up));
        compare_owned(collation, boundary, value).is_gt()
    }

    fn add(&mut self, value: &RawBson, document: &Document, stage: &BucketAuto) -> Result<()> {
        // All that may be refused for its work comes before anything changes.
        spend_bytes(document.as_bytes().len())?;
        let mut inputs: Vec<Input<'_>> = Vec::with_capacity(stage.fields.len());
        for (_, accumulation) in &stage.fields {
            let input = accumulation.input(document)?;
            spend_bytes(input.value.bytes())?;
            inputs.push(input);
        }
        work::check()?;
        for (accumulator, input) in self.accumulators.iter_mut().zip(inputs) {
            accumulator.add_ranked(input.value.as_ref(), &input.key)?;
        }
        self.documents += 1;
        self.max = value.clone();
        Ok(())
    }

    /// Where the bucket ends: where the next begins, or at a round number.
    fn end(&self, next: Option<&RawBson>, stage: &BucketAuto) -> RawBson {
        if stage.granularity.is_none() {
            return next.unwrap_or(&self.max).clone();
        }
        let boundary = match &self.boundary {
            Some(boundary) => boundary.clone(),
            None => stage.round(&self.max, Granularity::round_up),
        };
        let is_zero = Number::from_value(boundary.as_raw_bson_ref()).is_some_and(Number::is_zero);
        match next {
            // Zero rounds to itself, and the bucket would not hold it.
            Some(next) if is_zero => stage.round(next, Granularity::round_down),
            _ => boundary,
        }
    }

    fn document(&self, max: &RawBson, stage: &BucketAuto) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.start_document("_id");
        out.append("min", self.min.as_raw_bson_ref());
        out.append("max", max.as_raw_bson_ref());
        out.end();
        for (accumulator, (name, _)) in self.accumulators.iter().zip(&stage.fields) {
            out.append(name, accumulator.finish().as_raw_bson_ref());
        }
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::window::tests::{check, check_error};
    use pinion_bson::{rawbson, rawdoc};

    fn numbers(numbers: &[i32]) -> Vec<RawDocumentBuf> {
        numbers.iter().map(|x| rawdoc! { "x": *x }).collect()
    }

    #[track_caller]
    fn check_buckets(spec: RawBson, values: &[i32], expected: &[RawDocumentBuf]) {
        check(
            rawbson!([{ "$bucketAuto": spec }]),
            &numbers(values),
            expected,
        );
    }

    #[test]
    fn buckets_of_about_as_many() {
        let spec = |buckets: i32| rawbson!({ "groupBy": "$x", "buckets": buckets });
        let bucket =
            |min: i32, max: i32, n: i32| rawdoc! { "_id": { "min": min, "max": max }, "count": n };
        check_buckets(
            spec(2),
            &[35, 5, 25, 15],
            &[bucket(5, 25, 2), bucket(25, 35, 2)],
        );
        check_buckets(
            spec(3),
            &[1, 2, 3, 4, 5, 6, 7],
            &[bucket(1, 3, 2), bucket(3, 5, 2), bucket(5, 7, 3)],
        );
        check_buckets(spec(9), &[1, 2], &[bucket(1, 2, 1), bucket(2, 2, 1)]);
        // Equal values are not torn apart.
        check_buckets(spec(2), &[1, 1, 1, 2], &[bucket(1, 2, 3), bucket(2, 2, 1)]);
        check_buckets(spec(1), &[], &[]);
        check(
            rawbson!([{ "$bucketAuto": { "groupBy": "$y", "buckets": 2,
                "output": { "all": { "$push": "$x" }, "best": { "$top": { "sortBy": { "x": -1 }, "output": "$x" } } } } }]),
            &numbers(&[3, 1, 2]),
            &[rawdoc! { "_id": { "min": null, "max": null }, "all": [3, 1, 2], "best": 3 }],
        );
    }

    #[test]
    fn boundaries_of_a_granularity() {
        let spec = |buckets: i32, name: &str| rawbson!({ "groupBy": "$x", "buckets": buckets, "granularity": name });
        let bucket =
            |min: f64, max: f64, n: i32| rawdoc! { "_id": { "min": min, "max": max }, "count": n };
        check_buckets(
            spec(3, "R5"),
            &[1, 10, 100, 1000],
            &[
                bucket(0.63, 1.6, 1),
                bucket(1.6, 16.0, 1),
                bucket(16.0, 1600.0, 2),
            ],
        );
        check_buckets(
            spec(10, "R5"),
            &[1, 2],
            &[bucket(0.63, 1.6, 1), bucket(1.6, 2.5, 1)],
        );
        check_buckets(
            spec(2, "1-2-5"),
            &[0, 7],
            &[
                rawdoc! { "_id": { "min": 0, "max": 5.0 }, "count": 1 },
                bucket(5.0, 10.0, 1),
            ],
        );
    }

    #[test]
    fn errors() {
        let stage = |spec: RawBson| rawbson!([{ "$bucketAuto": spec }]);
        for (spec, code) in [
            (rawbson!(1), 40240),
            (rawbson!({}), 40246),
            (rawbson!({ "groupBy": "$x" }), 40246),
            (rawbson!({ "groupBy": "x", "buckets": 1 }), 40239),
            (rawbson!({ "groupBy": "$x", "buckets": "1" }), 40241),
            (rawbson!({ "groupBy": "$x", "buckets": 1.5 }), 40242),
            (rawbson!({ "groupBy": "$x", "buckets": 0 }), 40243),
            (
                rawbson!({ "groupBy": "$x", "buckets": 1, "output": 1 }),
                40244,
            ),
            (rawbson!({ "groupBy": "$x", "buckets": 1, "x": 1 }), 40245),
            (
                rawbson!({ "groupBy": "$x", "buckets": 1, "granularity": 5 }),
                40261,
            ),
            (
                rawbson!({ "groupBy": "$x", "buckets": 1, "granularity": "R6" }),
                40257,
            ),
        ] {
            check_error(stage(spec), &[], code);
        }
        let rounded = || stage(rawbson!({ "groupBy": "$x", "buckets": 1, "granularity": "R5" }));
        check_error(rounded(), &[rawdoc! { "x": "a" }], 40258);
        check_error(rounded(), &[rawdoc! { "x": f64::NAN }], 40259);
        check_error(rounded(), &[rawdoc! { "x": -1 }], 40260);
    }
}
