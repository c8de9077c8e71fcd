//! `$densify`: documents for the numbers or dates that are missing in a sequence.

use std::sync::Arc;

use indexmap::IndexMap;
use pinion_bson::{DateTime, DocBuilder, Number, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_keystring::encode_id_in;
use pinion_wire::{Error, Result};
use rustc_hash::FxBuildHasher;

use super::Document;
use super::parse::push_sort;
use super::stage::{Stage, StageKind};
use super::step::{Given, Step, Taken};
use super::window::parse_unit;
use crate::error::{error, type_mismatch};
use crate::expression::{TimeUnit, Variables, check_field_path};
use crate::limits::{MAX_DENSIFIED_DOCUMENTS, MAX_DENSIFY_BYTES};
use crate::number::exact_i64;
use crate::text::value_text;
use crate::value::{elements, field, is_nullish, is_number, items, type_name};
use crate::work::{self, STEP, spend, spend_bytes};

/// The stage's parsed specification.
#[derive(Debug)]
pub(super) struct Densify {
    field: String,
    partition: Vec<String>,
    step: Number,
    unit: Option<TimeUnit>,
    bounds: Bounds,
    collation: Option<Arc<Collation>>,
}

#[derive(Clone, Copy, Debug)]
enum Bounds {
    /// From the least value of all documents to the greatest.
    Full,
    /// From the least value of each partition to its greatest.
    Partition,
    /// From the first up to but without the second.
    Explicit(Place, Place),
}

/// A value of the field: a number, or the milliseconds of a date.
#[derive(Clone, Copy, Debug)]
enum Place {
    Number(Number),
    Date(i64),
}

impl Place {
    fn compare(self, other: Place) -> std::cmp::Ordering {
        match (self, other) {
            (Place::Number(a), Place::Number(b)) => a.compare(b),
            (Place::Date(a), Place::Date(b)) => a.cmp(&b),
            (Place::Number(_), Place::Date(_)) => std::cmp::Ordering::Less,
            (Place::Date(_), Place::Number(_)) => std::cmp::Ordering::Greater,
        }
    }

    fn value(self) -> RawBson {
        match self {
            Place::Number(number) => number.to_raw_bson(),
            Place::Date(millis) => RawBson::DateTime(DateTime::from_millis(millis)),
        }
    }
}

fn wrong_bounds() -> Error {
    error(
        5_733_402,
        "the bounds in a range statement must be the string 'full', 'partition', or an ascending array \
         of two numbers or two dates",
    )
}

impl Densify {
    fn parse(spec: &RawDocument, variables: &Variables) -> Result<Densify> {
        let (mut path, mut partition, mut range) = (None, Vec::new(), None);
        for (name, value) in elements(spec) {
            match name {
                "field" => path = Some(string_field("$densify.field", value)?),
                "partitionByFields" => partition = parse_paths("$densify", value)?,
                "range" => {
                    let RawBsonRef::Document(spec) = value else {
                        return Err(wrong_type("$densify.range", value, "object"));
                    };
                    range = Some(spec);
                }
                other => return Err(unknown_field(&format!("$densify.{other}"))),
            }
        }
        let path = path.ok_or_else(|| missing_field("$densify.field"))?;
        check_field_path(path)?;
        let range = range.ok_or_else(|| missing_field("$densify.range"))?;
        let (step, unit, bounds) = parse_range(range)?;
        if matches!(bounds, Bounds::Partition) && partition.is_empty() {
            return Err(error(
                5_733_408,
                "One may not specify the bounds as 'partition' without specifying a non-empty array of \
                 partitionByFields. You may have meant to specify 'full' bounds.",
            ));
        }
        Ok(Densify {
            field: path.to_string(),
            partition,
            step,
            unit,
            bounds,
            collation: variables.collation.clone(),
        })
    }

    /// The value of the field; `None` where it is null or missing.
    fn place(&self, document: &RawDocument) -> Result<Option<Place>> {
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
    fn next(&self, place: Place) -> Result<Place> {
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
    fn partition_of(&self, document: &RawDocument) -> RawDocumentBuf {
        let mut out = Nested::default();
        for path in &self.partition {
            if let Some(value) = at_path(document, path) {
                out.set(path, value.into());
            }
        }
        out.document()
    }

    /// A document with a partition's fields and this value.
    fn made(&self, partition: &RawDocument, place: Place) -> RawDocumentBuf {
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

/// The value at a path that leads through documents alone.
fn at_path<'a>(document: &'a RawDocument, path: &str) -> Option<RawBsonRef<'a>> {
    let mut names = path.split('.');
    let mut value = field(document, names.next()?)?;
    for name in names {
        let RawBsonRef::Document(inner) = value else {
            return None;
        };
        value = field(inner, name)?;
    }
    Some(value)
}

/// A document that is made path by path.
#[derive(Default)]
struct Nested(IndexMap<String, Leaf, FxBuildHasher>);

enum Leaf {
    Value(RawBson),
    Inner(Nested),
}

impl Nested {
    fn set(&mut self, path: &str, value: RawBson) {
        match path.split_once('.') {
            None => {
                self.0.insert(path.to_string(), Leaf::Value(value));
            }
            Some((name, rest)) => {
                let inner = self
                    .0
                    .entry(name.to_string())
                    .or_insert_with(|| Leaf::Inner(Nested::default()));
                if let Leaf::Inner(inner) = inner {
                    inner.set(rest, value);
                }
            }
        }
    }

    fn document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        self.write(&mut out);
        out.finish()
    }

    fn write(&self, out: &mut DocBuilder) {
        for (name, leaf) in &self.0 {
            match leaf {
                Leaf::Value(value) => {
                    out.append(name, value.as_raw_bson_ref());
                }
                Leaf::Inner(inner) => {
                    out.start_document(name);
                    inner.write(out);
                    out.end();
                }
            }
        }
    }
}

pub(super) fn unknown_field(path: &str) -> Error {
    error(40415, format!("BSON field '{path}' is an unknown field."))
}

pub(super) fn missing_field(path: &str) -> Error {
    error(
        40414,
        format!("BSON field '{path}' is missing but a required field"),
    )
}

pub(super) fn wrong_type(path: &str, value: RawBsonRef<'_>, expected: &str) -> Error {
    type_mismatch(format!(
        "BSON field '{path}' is the wrong type '{}', expected type '{expected}'",
        type_name(value)
    ))
}

fn string_field<'a>(path: &str, value: RawBsonRef<'a>) -> Result<&'a str> {
    match value {
        RawBsonRef::String(text) => Ok(text),
        other => Err(wrong_type(path, other, "string")),
    }
}

/// The paths of `partitionByFields`.
pub(super) fn parse_paths(stage: &str, value: RawBsonRef<'_>) -> Result<Vec<String>> {
    let path = format!("{stage}.partitionByFields");
    let RawBsonRef::Array(array) = value else {
        return Err(wrong_type(&path, value, "array"));
    };
    let mut paths = Vec::new();
    for (at, item) in items(array).enumerate() {
        let name = string_field(&format!("{path}.{at}"), item)?;
        check_field_path(name)?;
        paths.push(name.to_string());
    }
    Ok(paths)
}

fn parse_range(range: &RawDocument) -> Result<(Number, Option<TimeUnit>, Bounds)> {
    let (mut step, mut bounds, mut unit) = (None, None, None);
    for (name, value) in elements(range) {
        match name {
            "step" => step = Some(value),
            "bounds" => bounds = Some(value),
            "unit" => unit = Some(string_field("$densify.range.unit", value).map(|_| value)?),
            other => return Err(unknown_field(&format!("$densify.range.{other}"))),
        }
    }
    let step = step.ok_or_else(|| missing_field("$densify.range.step"))?;
    let bounds = bounds.ok_or_else(|| missing_field("$densify.range.bounds"))?;
    let number = Number::from_value(step).filter(|step| {
        let is_positive = step.compare(Number::Int32(0)).is_gt();
        is_positive && step.is_finite()
    });
    let Some(number) = number else {
        return Err(error(
            5_733_401,
            "The step parameter in a range statement must be a strictly positive numeric value",
        ));
    };
    if unit.is_some() && exact_i64(step).is_none() {
        return Err(error(
            6_586_400,
            "The step parameter in a range statement must be a whole number when densifying a date range",
        ));
    }
    let unit = unit.map(parse_unit).transpose()?;
    let bounds = parse_bounds(bounds, unit)?;
    Ok((number, unit, bounds))
}

fn parse_bounds(bounds: RawBsonRef<'_>, unit: Option<TimeUnit>) -> Result<Bounds> {
    let pair = match bounds {
        RawBsonRef::String("full") => return Ok(Bounds::Full),
        RawBsonRef::String("partition") => return Ok(Bounds::Partition),
        RawBsonRef::String(_) => {
            return Err(error(
                5_946_802,
                "Bounds string must either be 'full' or 'partition'",
            ));
        }
        RawBsonRef::Array(array) => items(array).take(3).collect::<Vec<_>>(),
        _ => return Err(wrong_bounds()),
    };
    let [low, high] = pair[..] else {
        return Err(error(
            5_733_403,
            "A bounding array in a range statement must have exactly two elements",
        ));
    };
    let (low, high) = match (low, high) {
        (RawBsonRef::DateTime(low), RawBsonRef::DateTime(high)) => {
            if unit.is_none() {
                return Err(error(
                    5_733_501,
                    "A unit must be specified with date bounds",
                ));
            }
            (
                Place::Date(low.timestamp_millis()),
                Place::Date(high.timestamp_millis()),
            )
        }
        (low, high) if is_number(low) && is_number(high) => {
            if unit.is_some() {
                return Err(error(
                    5_733_409,
                    "Numeric bounds may not have a unit parameter",
                ));
            }
            match (Number::from_value(low), Number::from_value(high)) {
                (Some(low), Some(high)) => (Place::Number(low), Place::Number(high)),
                _ => return Err(wrong_bounds()),
            }
        }
        _ => return Err(wrong_bounds()),
    };
    if low.compare(high).is_gt() {
        return Err(wrong_bounds());
    }
    Ok(Bounds::Explicit(low, high))
}

/// Appends the stages that do the work: a sort, and the filling behind it.
pub(super) fn parse(
    spec: RawBsonRef<'_>,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(error(
            5_876_900,
            format!(
                "The $densify stage specification must be an object, found {}",
                value_text(spec)
            ),
        ));
    };
    let densify = Densify::parse(spec, variables)?;
    let mut order = DocBuilder::new();
    // Over the full range the partitions go side by side.
    if !matches!(densify.bounds, Bounds::Full) {
        for path in densify
            .partition
            .iter()
            .filter(|path| **path != densify.field)
        {
            order.append(path, 1);
        }
    }
    order.append(&densify.field, 1);
    push_sort(&order.finish(), variables, out)?;
    let kind = StageKind::Densify(Arc::new(densify));
    out.push(Stage::made("$_internalDensify", spec, kind));
    Ok(())
}

/// The stage at work. Documents come in the order of their partitions and values.
#[derive(Debug)]
pub(super) struct Densifying {
    stage: Arc<Densify>,
    /// The partitions that documents are made for, in the order in which they came up.
    partitions: IndexMap<Vec<u8>, Filled, FxBuildHasher>,
    bytes: usize,
    /// The document that was taken last, until it is given.
    next: Option<Next>,
    /// The least and the greatest value of all documents.
    least: Option<Place>,
    greatest: Option<Place>,
    made: usize,
    /// At the end: the partition that is being filled up.
    ending: Option<usize>,
}

/// A partition.
#[derive(Debug)]
struct Filled {
    fields: RawDocumentBuf,
    /// The next value of the sequence.
    next: Place,
}

#[derive(Debug)]
struct Next {
    document: Document,
    fields: RawDocumentBuf,
    key: Vec<u8>,
    /// `None` where the document has no value, and only passes.
    place: Option<Place>,
}

impl Densifying {
    pub(super) fn new(stage: Arc<Densify>) -> Densifying {
        Densifying {
            stage,
            partitions: IndexMap::default(),
            bytes: 0,
            next: None,
            least: None,
            greatest: None,
            made: 0,
            ending: None,
        }
    }

    /// Makes the document at a place.
    fn make(&mut self, fields: &RawDocument, place: Place) -> Result<Given> {
        if self.made >= MAX_DENSIFIED_DOCUMENTS {
            return Err(error(
                5_897_900,
                format!(
                    "Generated {} documents in $densify, which is over the limit of \
                     {MAX_DENSIFIED_DOCUMENTS}. Increase the 'internalQueryMaxAllowedDensifyDocs' \
                     parameter to allow more generated documents",
                    self.made + 1
                ),
            ));
        }
        self.made += 1;
        Ok(Given::Document(self.stage.made(fields, place).into()))
    }

    /// Where the sequence of a partition begins that comes up at this place.
    fn beginning(&self, place: Place) -> Place {
        match self.stage.bounds {
            Bounds::Full => self.least.unwrap_or(place),
            Bounds::Partition => place,
            Bounds::Explicit(low, _) => low,
        }
    }

    /// Adds the partition of the document that was taken, where it is new.
    fn add_partition(&mut self, key: &[u8], fields: &RawDocument, place: Place) -> Result<()> {
        if self.partitions.contains_key(key) {
            return Ok(());
        }
        self.bytes += 128 + key.len() + fields.as_bytes().len();
        if self.bytes > MAX_DENSIFY_BYTES {
            return Err(error(
                6_007_200,
                format!(
                    "$densify exceeded memory limit of {MAX_DENSIFY_BYTES} bytes for its partitions"
                ),
            ));
        }
        let next = self.beginning(place);
        self.partitions.insert(
            key.to_vec(),
            Filled {
                fields: fields.to_owned(),
                next,
            },
        );
        Ok(())
    }

    /// What comes before the document that was taken, or the document itself.
    fn before(&mut self, next: Next) -> Result<Given> {
        let Some(place) = next.place else {
            return Ok(Given::Document(next.document));
        };
        self.least.get_or_insert(place);
        self.greatest = Some(match self.greatest {
            Some(greatest) if greatest.compare(place).is_gt() => greatest,
            _ => place,
        });
        // Below a range nothing is made, and above it only up to its end.
        let limit = match self.stage.bounds {
            Bounds::Explicit(low, _) if place.compare(low).is_lt() => {
                self.add_partition(&next.key, &next.fields, place)?;
                return Ok(Given::Document(next.document));
            }
            Bounds::Explicit(_, high) if place.compare(high).is_gt() => high,
            _ => place,
        };
        self.add_partition(&next.key, &next.fields, place)?;
        let partition = self.partitions.get_mut(&next.key[..]);
        let partition = partition.expect("the partition was just added");
        let at = partition.next;
        match at.compare(limit) {
            std::cmp::Ordering::Less => {
                partition.next = self.stage.next(at)?;
                let fields = next.fields.clone();
                self.next = Some(next);
                self.make(&fields, at)
            }
            std::cmp::Ordering::Equal if at.compare(place).is_eq() => {
                partition.next = self.stage.next(at)?;
                Ok(Given::Document(next.document))
            }
            _ => Ok(Given::Document(next.document)),
        }
    }

    /// What is missing behind the last document of each partition.
    fn behind(&mut self) -> Result<Given> {
        let at = self.ending.unwrap_or_default();
        let Some((_, partition)) = self.partitions.get_index_mut(at) else {
            return Ok(Given::Nothing);
        };
        let place = partition.next;
        let is_missing = match (self.stage.bounds, self.greatest) {
            (Bounds::Explicit(_, high), _) => place.compare(high).is_lt(),
            (Bounds::Full, Some(greatest)) => place.compare(greatest).is_le(),
            _ => false,
        };
        if !is_missing {
            self.ending = Some(at + 1);
            return Ok(Given::Working);
        }
        partition.next = self.stage.next(place)?;
        let fields = partition.fields.clone();
        self.make(&fields, place)
    }
}

impl Step for Densifying {
    fn take(&mut self, document: &Document) -> Result<Taken> {
        spend_bytes(document.as_bytes().len())?;
        let place = self.stage.place(document)?;
        let fields = self.stage.partition_of(document);
        work::check()?;
        let collation = self.stage.collation.as_deref();
        let key = encode_id_in(collation, RawBsonRef::Document(&fields)).to_vec();
        self.next = Some(Next {
            document: document.clone(),
            fields,
            key,
            place,
        });
        Ok(Taken::Gives)
    }

    fn end(&mut self) -> Result<()> {
        self.ending = Some(0);
        // A range is filled even where there is no document.
        if let Bounds::Explicit(low, _) = self.stage.bounds
            && self.stage.partition.is_empty()
        {
            let nothing = RawDocumentBuf::new();
            let collation = self.stage.collation.as_deref();
            let key = encode_id_in(collation, RawBsonRef::Document(&nothing)).to_vec();
            self.add_partition(&key, &nothing, low)?;
        }
        Ok(())
    }

    fn give(&mut self) -> Result<Given> {
        spend(10 * STEP)?;
        match self.next.take() {
            Some(next) => self.before(next),
            None if self.ending.is_some() => self.behind(),
            None => Ok(Given::Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::window::tests::{check, check_error};
    use pinion_bson::{rawbson, rawdoc};

    fn numbers(numbers: &[i32]) -> Vec<RawDocumentBuf> {
        numbers
            .iter()
            .map(|x| rawdoc! { "_id": *x, "x": *x })
            .collect()
    }

    #[track_caller]
    fn check_sequence(range: RawBson, values: &[i32], expected: &[RawDocumentBuf]) {
        check(
            rawbson!([{ "$densify": { "field": "x", "range": range } }]),
            &numbers(values),
            expected,
        );
    }

    fn came(x: i32) -> RawDocumentBuf {
        rawdoc! { "_id": x, "x": x }
    }

    fn made(x: i32) -> RawDocumentBuf {
        rawdoc! { "x": x }
    }

    #[test]
    fn from_the_least_to_the_greatest() {
        let full = |step: i32| rawbson!({ "step": step, "bounds": "full" });
        check_sequence(full(1), &[1, 4], &[came(1), made(2), made(3), came(4)]);
        // What is not in the sequence does not move it.
        check_sequence(
            full(2),
            &[1, 4, 5, 8],
            &[came(1), made(3), came(4), came(5), made(7), came(8)],
        );
        check_sequence(full(1), &[], &[]);
        check(
            rawbson!([{ "$densify": { "field": "a.x", "range": { "step": 0.5, "bounds": "full" } } }]),
            &[
                rawdoc! { "a": { "x": 1 } },
                rawdoc! { "a": null },
                rawdoc! { "a": { "x": 2 } },
            ],
            &[
                rawdoc! { "a": null },
                rawdoc! { "a": { "x": 1 } },
                rawdoc! { "a": { "x": 1.5 } },
                rawdoc! { "a": { "x": 2 } },
            ],
        );
    }

    #[test]
    fn from_a_bound_to_another() {
        let range = |low: i32, high: i32| rawbson!({ "step": 2, "bounds": [low, high] });
        check_sequence(
            range(3, 8),
            &[1, 4, 5, 9],
            &[came(1), made(3), came(4), came(5), made(7), came(9)],
        );
        check_sequence(range(3, 8), &[], &[made(3), made(5), made(7)]);
        check_sequence(range(3, 6), &[9], &[made(3), made(5), came(9)]);
        check_sequence(range(3, 6), &[1], &[came(1), made(3), made(5)]);
    }

    #[test]
    fn dates() {
        let day = |day: i64| DateTime::from_millis(day * 86_400_000);
        check(
            rawbson!([{ "$densify": { "field": "t",
                "range": { "step": 1, "unit": "month", "bounds": [(day(0)), (day(60))] } } }]),
            &[rawdoc! { "t": (day(31)), "v": 1 }],
            &[
                rawdoc! { "t": (day(0)) },
                rawdoc! { "t": (day(31)), "v": 1 },
                rawdoc! { "t": (day(59)) },
            ],
        );
    }

    #[test]
    fn partitions() {
        let documents = [
            rawdoc! { "p": "a", "x": 1 },
            rawdoc! { "p": "b", "x": 2 },
            rawdoc! { "p": "a", "x": 3 },
            rawdoc! { "p": "b", "x": 5 },
        ];
        let stage = |bounds: RawBson| {
            rawbson!([{ "$densify": { "field": "x", "partitionByFields": ["p"],
                "range": { "step": 1, "bounds": bounds } } }])
        };
        let of = |p: &str, x: i32| rawdoc! { "p": p, "x": x };
        check(
            stage(rawbson!("partition")),
            &documents,
            &[
                of("a", 1),
                of("a", 2),
                of("a", 3),
                of("b", 2),
                of("b", 3),
                of("b", 4),
                of("b", 5),
            ],
        );
        check(
            stage(rawbson!("full")),
            &documents,
            &[
                of("a", 1),
                of("b", 1),
                of("b", 2),
                of("a", 2),
                of("a", 3),
                of("b", 3),
                of("b", 4),
                of("b", 5),
                of("a", 4),
                of("a", 5),
            ],
        );
        check(
            stage(rawbson!([2, 5])),
            &documents,
            &[
                of("a", 1),
                of("a", 2),
                of("a", 3),
                of("b", 2),
                of("b", 3),
                of("b", 4),
                of("b", 5),
                of("a", 4),
            ],
        );
    }

    #[test]
    fn errors() {
        let stage = |spec: RawBson| rawbson!([{ "$densify": spec }]);
        let range = |range: RawBson| stage(rawbson!({ "field": "x", "range": range }));
        let full = || rawbson!({ "step": 1, "bounds": "full" });
        let date = || DateTime::from_millis(0);
        check_error(stage(rawbson!(1)), &[], 5_876_900);
        check_error(stage(rawbson!({ "field": "x" })), &[], 40414);
        check_error(stage(rawbson!({ "range": (full()) })), &[], 40414);
        check_error(stage(rawbson!({ "field": 1, "range": (full()) })), &[], 14);
        check_error(
            stage(rawbson!({ "field": "x", "range": (full()), "y": 1 })),
            &[],
            40415,
        );
        for (spec, code) in [
            (rawbson!({ "bounds": "full" }), 40414),
            (rawbson!({ "step": 1 }), 40414),
            (rawbson!({ "step": 0, "bounds": "full" }), 5_733_401),
            (rawbson!({ "step": "1", "bounds": "full" }), 5_733_401),
            (
                rawbson!({ "step": 1.5, "bounds": "full", "unit": "day" }),
                6_586_400,
            ),
            (rawbson!({ "step": 1, "bounds": "full", "unit": "days" }), 9),
            (rawbson!({ "step": 1, "bounds": "all" }), 5_946_802),
            (rawbson!({ "step": 1, "bounds": "partition" }), 5_733_408),
            (rawbson!({ "step": 1, "bounds": [1] }), 5_733_403),
            (rawbson!({ "step": 1, "bounds": ["$$NOW", 1] }), 5_733_402),
            (rawbson!({ "step": 1, "bounds": [2, 1] }), 5_733_402),
            (
                rawbson!({ "step": 1, "bounds": [1, 2], "unit": "day" }),
                5_733_409,
            ),
            (
                rawbson!({ "step": 1, "bounds": [(date()), (date())] }),
                5_733_501,
            ),
        ] {
            check_error(range(spec), &[], code);
        }
        check_error(range(full()), &[rawdoc! { "x": "a" }], 5_733_201);
        check_error(
            range(rawbson!({ "step": 1, "bounds": "full", "unit": "day" })),
            &[rawdoc! { "x": 1 }],
            6_053_600,
        );
        check_error(
            range(rawbson!({ "step": 1, "bounds": [0, 1_000_000] })),
            &[],
            5_897_900,
        );
    }
}
