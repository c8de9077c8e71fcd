//! `timeseries`, of `create` and `collMod`.

use pinion_bson::{DocBuilder, RawDocument};
use pinion_query::{Granularity, TimeSeries, TimeSeriesChange};
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, Result};

use super::invalid;

/// The option as it is written.
pub(super) struct Written {
    time_field: String,
    meta_field: Option<String>,
    buckets: TimeSeriesChange,
}

/// What may stand beside it in `create`.
const COMPANIONS: [&str; 6] = [
    "create",
    "timeseries",
    "collation",
    "expireAfterSeconds",
    "indexOptionDefaults",
    "storageEngine",
];

pub(super) fn read(reader: &FieldReader<'_, '_>) -> Result<Option<Written>> {
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
    Ok(Some(Written {
        time_field: field_name(&series, "timeField", series.str("timeField")?)?,
        meta_field: match series.opt_str("metaField")? {
            Some(name) => Some(field_name(&series, "metaField", name)?),
            None => None,
        },
        buckets: change(&series)?,
    }))
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
    let written = read(&reader)?;
    written.expect("it is there").resolve(ns)
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

/// What is said about buckets.
pub(in crate::commands) fn change(series: &FieldReader<'_, '_>) -> Result<TimeSeriesChange> {
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

/// Refuses what a time series cannot have.
pub(super) fn check_companions(reader: &FieldReader<'_, '_>, ns: &Namespace) -> Result<()> {
    let other = reader
        .iter()
        .map(|(name, _)| name)
        .find(|name| !COMPANIONS.contains(name) && !pinion_wire::idl::is_generic_argument(name));
    match other {
        Some(other) => Err(invalid(format!(
            "{ns}: timeseries is not allowed with '{other}'"
        ))),
        None => Ok(()),
    }
}

impl Written {
    pub(super) fn resolve(self, ns: &Namespace) -> Result<TimeSeries> {
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
