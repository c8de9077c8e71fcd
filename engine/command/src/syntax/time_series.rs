//! `timeseries`, of `create`, `collMod` and `$out`.

use pinion_bson::{DocBuilder, RawDocument};
use pinion_query::{Granularity, OutputTo, TimeSeries, TimeSeriesChange};
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, ErrorCode, Result};

/// The option as it is written.
pub struct TimeSeriesSpec {
    time_field: String,
    meta_field: Option<String>,
    buckets: TimeSeriesChange,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

/// The option as others than `create` have it: `root` is where it stands.
///
/// # Errors
/// As of `create`.
pub fn time_series_option(root: &str, spec: &RawDocument, ns: &Namespace) -> Result<TimeSeries> {
    let mut holder = DocBuilder::new();
    holder.append("timeseries", spec);
    let holder = holder.finish();
    let reader = FieldReader::object(Path::root(root), &holder)?;
    let written = TimeSeriesSpec::read(&reader)?;
    written.expect("it is there").resolve(ns)
}

/// What `$out` makes, if that is a time series, in a command on a database.
///
/// # Errors
/// As of `create`; the stage names no namespace.
pub fn out_series(stage: &OutputTo, db: &str) -> Result<Option<TimeSeries>> {
    let Some(spec) = &stage.time_series else {
        return Ok(None);
    };
    let ns = Namespace::new(stage.db.as_deref().unwrap_or(db), &stage.collection)?;
    time_series_option("$out", spec, &ns).map(Some)
}

/// What is said about buckets.
///
/// # Errors
/// A field of a wrong type or with a value that it cannot have.
pub fn time_series_change(series: &FieldReader<'_, '_>) -> Result<TimeSeriesChange> {
    let secs = |field: &str| -> Result<Option<i32>> {
        let secs = series.opt_between(field, 1, TimeSeries::MAX_SECS)?;
        Ok(secs.map(|secs| secs as i32))
    };
    Ok(TimeSeriesChange {
        granularity: series.opt_one_of("granularity", &Granularity::NAMES)?,
        rounding_secs: secs("bucketRoundingSeconds")?,
        max_span_secs: secs("bucketMaxSpanSeconds")?,
    })
}

fn field_name(series: &FieldReader<'_, '_>, field: &str, name: &str) -> Result<String> {
    if name.contains('\0') {
        return Err(Error::bad_value(format!(
            "BSON field '{}' cannot contain an embedded null byte",
            series.path().field(field)
        )));
    }
    Ok(name.to_owned())
}

impl TimeSeriesSpec {
    /// Reads the field `timeseries`, if it is there.
    ///
    /// # Errors
    /// A field in it that is unknown, missing, or of a wrong type.
    pub fn read(reader: &FieldReader<'_, '_>) -> Result<Option<TimeSeriesSpec>> {
        let Some(series) = reader.opt_object("timeseries")? else {
            return Ok(None);
        };
        series.only(&[
            "timeField",
            "metaField",
            "granularity",
            "bucketRoundingSeconds",
            "bucketMaxSpanSeconds",
        ])?;
        Ok(Some(TimeSeriesSpec {
            time_field: field_name(&series, "timeField", series.str("timeField")?)?,
            meta_field: match series.opt_str("metaField")? {
                Some(name) => Some(field_name(&series, "metaField", name)?),
                None => None,
            },
            buckets: time_series_change(&series)?,
        }))
    }

    /// The option with what follows from its fields, for a collection of this name.
    ///
    /// # Errors
    /// `InvalidOptions`.
    pub fn resolve(self, ns: &Namespace) -> Result<TimeSeries> {
        let top_level = |field: &str, name: &str| {
            if name.contains('.') {
                return Err(invalid(format!(
                    "{ns}: '{field}' must be a top-level field and not contain a '.'"
                )));
            }
            Ok(())
        };
        top_level("timeField", &self.time_field)?;
        if let Some(meta) = &self.meta_field {
            if meta == "_id" {
                return Err(invalid(format!("{ns}: 'metaField' cannot be \"_id\"")));
            }
            if *meta == self.time_field {
                return Err(invalid(format!(
                    "{ns}: 'metaField' cannot be the same as 'timeField'"
                )));
            }
            top_level("metaField", meta)?;
        }
        let (granularity, rounding_secs, max_span_secs) =
            self.buckets.resolve().map_err(invalid)?;
        Ok(TimeSeries {
            time_field: self.time_field,
            meta_field: self.meta_field,
            granularity,
            rounding_secs,
            max_span_secs,
        })
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    #[test]
    fn what_out_makes() {
        let out = |db: Option<&str>, spec: Option<RawDocumentBuf>| OutputTo {
            db: db.map(str::to_owned),
            collection: "c".to_owned(),
            time_series: spec,
        };
        let check = |stage: OutputTo, expected: Result<Option<RawDocumentBuf>, (i32, &str)>| {
            let found = out_series(&stage, "d");
            let found = found.map(|found| found.map(|series| series.to_document()));
            let found = found.map_err(|error| (error.code.0, error.message));
            let expected = expected.map_err(|(code, text)| (code, text.to_owned()));
            assert_eq!(found, expected, "{stage:?}");
        };
        check(out(None, None), Ok(None));
        let resolved = rawdoc! {
            "timeField": "t", "metaField": "m", "granularity": "seconds",
            "bucketMaxSpanSeconds": 3600,
        };
        let spec = rawdoc! { "timeField": "t", "metaField": "m" };
        check(out(Some("e"), Some(spec)), Ok(Some(resolved)));
        let missing = "BSON field '$out.timeseries.timeField' is missing but a required field";
        check(out(None, Some(rawdoc! {})), Err((40414, missing)));
        let dotted = "e.c: 'timeField' must be a top-level field and not contain a '.'";
        let spec = rawdoc! { "timeField": "a.b" };
        check(out(Some("e"), Some(spec)), Err((72, dotted)));
    }
}
