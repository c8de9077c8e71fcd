//! Whether a bucket is what its measurements make of it: the check that `validate` makes.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::SeriesForm;
use super::extremes::{Extremes, Side};
use super::unpack::measurements;
use crate::collation::compare;
use crate::value::{elements, field, items};
use crate::work;

/// What is to be said of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketState {
    Sound,
    /// Its columns are compressed, which this node cannot read.
    Compressed,
    /// What is wrong with it.
    Unsound(String),
}

fn unsound(what: impl Into<String>) -> Result<BucketState> {
    Ok(BucketState::Unsound(what.into()))
}

/// Compares a bucket with its measurements: its `_id` and its beginning, the numbers of its
/// columns, its least and greatest values.
///
/// # Errors
/// The work exceeds a budget.
pub fn check_bucket(
    form: &SeriesForm,
    collation: Option<&Collation>,
    bucket: &RawDocument,
) -> Result<BucketState> {
    work::spend_bytes(bucket.as_bytes().len())?;
    let Some(RawBsonRef::ObjectId(id)) = field(bucket, "_id") else {
        return unsound("The '_id' of the bucket is not an ObjectId");
    };
    let Some(RawBsonRef::Document(control)) = field(bucket, "control") else {
        return unsound("The bucket has no 'control' document");
    };
    match field(control, "version").and_then(crate::number::exact_i64) {
        Some(1) => {}
        Some(2 | 3) => return Ok(BucketState::Compressed),
        _ => return unsound("Invalid value for 'control.version'. Expected 1, 2, or 3"),
    }
    let (Some(RawBsonRef::Document(least)), Some(RawBsonRef::Document(greatest))) =
        (field(control, "min"), field(control, "max"))
    else {
        return unsound("The bucket has no 'control.min' or no 'control.max' document");
    };
    let Some(RawBsonRef::DateTime(start)) = field(least, &form.time) else {
        return unsound(format!("'control.min.{}' is not a date", form.time));
    };
    let start_ms = start.timestamp_millis();
    let secs = start_ms.div_euclid(1000).clamp(0, i64::from(u32::MAX));
    let bytes = id.bytes();
    if i64::from(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])) != secs {
        return unsound(
            "Mismatch between the embedded timestamp in the time-series bucket '_id' field and the timestamp in 'control.min' field.",
        );
    }
    let Some(RawBsonRef::Document(data)) = field(bucket, "data") else {
        return unsound("The bucket has no 'data' document");
    };
    if let Some(what) = check_columns(form, data)? {
        return unsound(what);
    }
    check_extremes(form, collation, bucket, (start_ms, least, greatest))
}

/// Whether each column has its values under ascending numbers of measurements.
fn check_columns(form: &SeriesForm, data: &RawDocument) -> Result<Option<String>> {
    let Some(RawBsonRef::Document(times)) = field(data, &form.time) else {
        return Ok(Some(format!("The bucket has no column '{}'", form.time)));
    };
    let count = elements(times).count();
    for (name, column) in elements(data) {
        let RawBsonRef::Document(column) = column else {
            return Ok(Some(format!("The column '{name}' is not a document")));
        };
        let mut least = 0;
        for (number, value) in elements(column) {
            work::spend(work::ITEM)?;
            let parsed = number.parse::<usize>().ok();
            let parsed = parsed.filter(|parsed| *parsed >= least && *parsed < count);
            let Some(parsed) = parsed.filter(|parsed| parsed.to_string() == number) else {
                return Ok(Some(format!(
                    "The index '{number}' in time-series bucket data field '{name}' is not in-order or out of range"
                )));
            };
            if name == form.time && !matches!(value, RawBsonRef::DateTime(_)) {
                return Ok(Some(format!(
                    "The time of measurement {number} is not a date"
                )));
            }
            least = parsed + 1;
        }
    }
    Ok(None)
}

fn check_extremes(
    form: &SeriesForm,
    collation: Option<&Collation>,
    bucket: &RawDocument,
    (start_ms, least, greatest): (i64, &RawDocument, &RawDocument),
) -> Result<BucketState> {
    let all = match measurements(form, bucket) {
        Ok(all) => all,
        Err(error) => {
            work::check()?;
            return unsound(error.message);
        }
    };
    let (mut lowest, mut highest) = (Extremes::default(), Extremes::default());
    for measurement in &all {
        work::spend_bytes(2 * measurement.as_bytes().len())?;
        let is_meta = |name: &str| form.meta.as_deref() == Some(name);
        let fields = elements(measurement).filter(|(name, _)| !is_meta(name));
        for (hint, (name, value)) in fields.enumerate() {
            if name == form.time
                && let RawBsonRef::DateTime(time) = value
                && time.timestamp_millis() < start_ms
            {
                return unsound(format!(
                    "A measurement is of a time before 'control.min.{name}'"
                ));
            }
            if name != form.time {
                lowest.add(name, value, Side::Least, collation, hint);
            }
            highest.add(name, value, Side::Greatest, collation, hint);
        }
    }
    for (side, kept, stored) in [("min", lowest, least), ("max", highest, greatest)] {
        let mut out = pinion_bson::DocBuilder::new();
        // The least time is the bucket's beginning, which may be earlier than all measurements.
        if side == "min"
            && let Some(start) = field(stored, &form.time)
        {
            out.append_raw(&form.time, start);
        }
        kept.append_all(&mut out);
        if !same_fields(&out.finish(), stored, collation) {
            return unsound(format!(
                "Mismatch between time-series control and observed min or max: 'control.{side}' is not that of the measurements"
            ));
        }
    }
    Ok(BucketState::Sound)
}

/// Whether two documents have the same fields, in whatever order.
fn same_fields(a: &RawDocument, b: &RawDocument, collation: Option<&Collation>) -> bool {
    let same = |(name, value)| {
        let other = field(b, name);
        other.is_some_and(|other| same_value(value, other, collation))
    };
    elements(a).count() == elements(b).count() && elements(a).all(same)
}

fn same_value(a: RawBsonRef<'_>, b: RawBsonRef<'_>, collation: Option<&Collation>) -> bool {
    match (a, b) {
        (RawBsonRef::Document(a), RawBsonRef::Document(b)) => same_fields(a, b, collation),
        (RawBsonRef::Array(a), RawBsonRef::Array(b)) => {
            let mut pairs = items(a).zip(items(b));
            items(a).count() == items(b).count() && pairs.all(|(a, b)| same_value(a, b, collation))
        }
        (a, b) => compare(collation, a, b).is_eq(),
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{DateTime, ObjectId, RawDocumentBuf, rawdoc};

    use super::*;
    use crate::series::{Packing, bucket_id, pack};

    const START_MS: i64 = 1_700_000_040_000;

    fn form() -> SeriesForm {
        SeriesForm {
            time: "t".into(),
            meta: Some("m".into()),
            max_span_secs: 3600,
        }
    }

    fn bucket() -> RawDocumentBuf {
        let at = |ms| DateTime::from_millis(START_MS + ms);
        let measurements = [
            rawdoc! { "t": at(5), "m": 1, "a": 3, "d": { "x": 1, "y": [1, 9] } },
            rawdoc! { "t": at(900), "m": 1, "a": "text", "d": { "y": [2, 3], "z": 5 } },
            rawdoc! { "t": at(7), "m": 1, "b": 2.5 },
        ];
        let measurements: Vec<&RawDocument> = measurements.iter().map(|one| &**one).collect();
        let into = Packing::New {
            id: bucket_id(START_MS, ObjectId::from_bytes([7; 12])),
            start_ms: START_MS,
            meta: None,
        };
        let packed = pack(&form(), None, into, &measurements).expect("measurements");
        packed.bucket
    }

    /// The bucket with another value at a path, or without one.
    fn changed(path: &str, value: Option<pinion_bson::RawBson>) -> RawDocumentBuf {
        let mut whole = pinion_bson::Document::try_from(&*bucket()).expect("a document");
        let names: Vec<&str> = path.split('.').collect();
        let (last, above) = names.split_last().expect("a path");
        let mut at = &mut whole;
        for name in above {
            at = at.get_document_mut(name).expect("a document");
        }
        match value {
            Some(value) => {
                let value = pinion_bson::Bson::try_from(value).expect("a value");
                at.insert(*last, value);
            }
            None => {
                at.remove(last);
            }
        }
        RawDocumentBuf::try_from(&whole).expect("a document")
    }

    #[test]
    fn a_bucket_is_what_its_measurements_make_of_it() {
        let check = |bucket: &RawDocument, expected: &str| {
            let state = check_bucket(&form(), None, bucket).expect("no budget");
            let said = match &state {
                BucketState::Sound => "sound",
                BucketState::Compressed => "compressed",
                BucketState::Unsound(what) => what,
            };
            assert!(said.contains(expected), "{said} is not {expected}");
        };
        check(&bucket(), "sound");
        let of = |path: &str, value: pinion_bson::RawBson| changed(path, Some(value));
        check(&of("control.min.a", 2.into()), "control.min");
        check(&of("control.max.d.z", 6.into()), "control.max");
        check(&of("control.max.extra", 6.into()), "control.max");
        check(&changed("control.min.b", None), "control.min");
        check(&of("control.version", 2.into()), "compressed");
        check(&of("control.version", 9.into()), "control.version");
        check(&of("_id", ObjectId::from_bytes([0; 12]).into()), "'_id'");
        check(&of("data.t.1", 5.into()), "not a date");
        check(&of("data.a.3", 5.into()), "out of range");
        check(&changed("data.t", None), "no column 't'");
        let early = pinion_bson::RawBson::DateTime(DateTime::from_millis(START_MS - 1));
        check(&of("data.t.1", early), "before");
    }
}
