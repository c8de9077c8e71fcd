//! Time series, whose buckets are what is spread over shards: clients name fields of measurements,
//! keys and chunks those of buckets.
//!
//! Codes and messages are MongoDB's.

use std::borrow::Cow;

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_query::{
    Granularity, Matcher, TimeSeries, TimeSeriesChange, Variables, bucket_filter, document_text,
};
use pinion_wire::idl::{FieldReader, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

/// What is said of the series of a collection of buckets.
pub(crate) const SERIES_FIELDS: &str = "timeseriesFields";

/// The series that a field describes.
///
/// # Errors
/// It is no document, or one of a series without a time field or a span.
pub(crate) fn series_in(reader: &FieldReader<'_, '_>, name: &str) -> Result<Option<TimeSeries>> {
    let Some(fields) = reader.opt_doc(name)? else {
        return Ok(None);
    };
    let path = reader.path().field(name);
    let series = TimeSeries::from_document(fields);
    series
        .map(Some)
        .map_err(|missing| missing_field(path.field(missing)))
}

/// What a `collMod` says about buckets; `None` where it says nothing.
///
/// # Errors
/// Those of a series that is not sharded: an unknown field, and a value that none can have.
pub(crate) fn bucket_change(command: &RawDocument) -> Result<Option<TimeSeriesChange>> {
    let reader = FieldReader::object(Path::root("collMod"), command)?;
    let Some(series) = reader.opt_object("timeseries")? else {
        return Ok(None);
    };
    series.only(&[
        "granularity",
        "bucketRoundingSeconds",
        "bucketMaxSpanSeconds",
    ])?;
    let secs = |field: &str| -> Result<Option<i32>> {
        let secs = series.opt_between(field, 1, TimeSeries::MAX_SECS)?;
        Ok(secs.map(|secs| secs as i32))
    };
    Ok(Some(TimeSeriesChange {
        granularity: series.opt_one_of("granularity", &Granularity::NAMES)?,
        rounding_secs: secs("bucketRoundingSeconds")?,
        max_span_secs: secs("bucketMaxSpanSeconds")?,
    }))
}

/// The change by which the buckets of a series become those of this one.
pub fn change_to(series: &TimeSeries) -> TimeSeriesChange {
    TimeSeriesChange {
        granularity: series.granularity,
        rounding_secs: series.rounding_secs,
        // That of a granularity follows from it.
        max_span_secs: series.granularity.is_none().then_some(series.max_span_secs),
    }
}

/// The shard key of the buckets of a series for one of its measurements: fields of the meta field,
/// and the time at the end.
///
/// # Errors
/// Another field, or the time before another one.
pub fn bucket_shard_key(series: &TimeSeries, key: &RawDocument) -> Result<RawDocumentBuf> {
    let form = series.form();
    let mut out = DocBuilder::new();
    let mut fields = pinion_bson::elements(key).peekable();
    while let Some((name, value)) = fields.next() {
        if name != form.time {
            let path = form.meta_path(name).ok_or_else(not_of_series)?;
            out.append_raw(&path, value);
            continue;
        }
        if fields.peek().is_some() {
            return Err(Error::new(
                ErrorCode(5_914_000),
                format!(
                    "the time field '{}' can be only at the end of the shard key pattern",
                    form.time
                ),
            ));
        }
        if value.as_str().is_some() {
            return Err(Error::bad_value(format!(
                "Invalid shard key spec for time-series collection: {}. Indexes on the time field must be ascending or descending (numbers only)",
                document_text(key)
            )));
        }
        out.append_raw(&format!("control.min.{name}"), value);
    }
    Ok(out.finish())
}

fn not_of_series() -> Error {
    Error::new(
        ErrorCode(5_914_001),
        "only the time field or meta field can be part of shard key pattern",
    )
}

/// The filter of what is stored: of a series that of its buckets, which may match where one of
/// their measurements does.
///
/// # Errors
/// None: a filter of buckets is made of what was parsed before.
pub(crate) fn stored_filter<'m>(
    series: Option<&TimeSeries>,
    matcher: &'m Matcher,
) -> Result<Cow<'m, Matcher>> {
    let Some(series) = series else {
        return Ok(Cow::Borrowed(matcher));
    };
    let variables = Variables {
        collation: matcher.collation().cloned(),
        ..Variables::default()
    };
    // By what their buckets say of strings no key is found: it has none of them.
    let divided = bucket_filter(&series.form(), matcher.filter(), false);
    Matcher::parse_with(&divided.buckets, &variables).map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;
    use pinion_query::Granularity;

    use super::*;

    fn series() -> TimeSeries {
        TimeSeries {
            time_field: "t".into(),
            meta_field: Some("m".into()),
            granularity: Some(Granularity::Seconds),
            rounding_secs: None,
            max_span_secs: 3600,
        }
    }

    #[test]
    fn changes_of_buckets() {
        let check = |command: RawDocumentBuf, expected: i32| {
            let found = bucket_change(&command);
            assert_eq!(found.map_or_else(|error| error.code.0, |_| 0), expected);
        };
        let of = |series: RawDocumentBuf| rawdoc! { "collMod": "c", "timeseries": series };
        assert_eq!(bucket_change(&rawdoc! { "collMod": "c" }).ok(), Some(None));
        check(of(rawdoc! {}), 0);
        check(of(rawdoc! { "granularity": "days" }), 2);
        check(of(rawdoc! { "timeField": "t" }), 40_415);
        check(of(rawdoc! { "bucketMaxSpanSeconds": 0 }), 2);
        check(of(rawdoc! { "bucketRoundingSeconds": i32::MAX }), 2);
        check(rawdoc! { "collMod": "c", "timeseries": 1 }, 14);
        for changed in [
            rawdoc! { "granularity": "hours" },
            rawdoc! { "bucketMaxSpanSeconds": 7200, "bucketRoundingSeconds": 7200 },
        ] {
            let asked = bucket_change(&of(changed)).expect("readable").expect("one");
            let changed = series().changed(asked).expect("longer").expect("others");
            let again = series().changed(change_to(&changed));
            assert_eq!(again, Ok(Some(changed)));
        }
    }

    #[test]
    fn keys() {
        let check = |key: RawDocumentBuf, expected: std::result::Result<RawDocumentBuf, i32>| {
            let found = bucket_shard_key(&series(), &key).map_err(|error| error.code.0);
            assert_eq!(found, expected);
        };
        check(rawdoc! { "m": 1 }, Ok(rawdoc! { "meta": 1 }));
        check(
            rawdoc! { "m.a": "hashed", "t": 1 },
            Ok(rawdoc! { "meta.a": "hashed", "control.min.t": 1 }),
        );
        check(rawdoc! { "t": 1, "m": 1 }, Err(5_914_000));
        check(rawdoc! { "a": 1 }, Err(5_914_001));
        check(rawdoc! { "ma": 1 }, Err(5_914_001));
        check(rawdoc! { "t": "hashed" }, Err(2));
    }
}
