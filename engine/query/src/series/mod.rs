//! Time series: measurements packed into buckets and unpacked again, and filters of measurements as
//! filters of buckets.
//!
//! A bucket is a document of MongoDB's first version of the format:
//! `{_id, control: {version: 1, min, max}, meta, data}`, where `data` has a document for each field
//! of its measurements, with a value under each measurement's number.

mod check;
mod ends;
mod extremes;
mod filter;
mod horizon;
mod names;
mod options;
mod pack;
mod unpack;

#[cfg(test)]
mod tests;

use pinion_bson::RawBsonRef;
use pinion_wire::Result;

use crate::error::error;
use crate::value::{elements, type_name};

pub use check::{BucketState, check_bucket};
pub(crate) use ends::Ends;
pub use filter::{BucketFilter, bucket_filter, index_filter, is_about_meta, meta_filter};
pub(crate) use horizon::{BucketOrder, Horizon};
pub use names::{BUCKETS_PREFIX, buckets_of, series_of};
pub use options::{Granularity, TimeSeries, TimeSeriesChange};
pub use pack::{Packed, Packing, bucket_id, measurement_count, normal_meta, pack, time_of};
pub use unpack::measurements;
pub(crate) use unpack::{Gives, Unpack, Unpacking};

/// What a series says about the form of its measurements and buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesForm {
    pub time: String,
    pub meta: Option<String>,
    pub max_span_secs: i32,
}

impl SeriesForm {
    /// The specification of `$_internalUnpackBucket`.
    pub(crate) fn parse(spec: RawBsonRef<'_>) -> Result<SeriesForm> {
        let RawBsonRef::Document(spec) = spec else {
            return Err(error(
                5_346_500,
                format!(
                    "$_internalUnpackBucket specification must be an object, got: {}",
                    type_name(spec)
                ),
            ));
        };
        let (mut time, mut meta, mut span) = (None, None, None);
        for (name, value) in elements(spec) {
            match (name, value) {
                ("timeField", RawBsonRef::String(name)) => time = Some(name.to_owned()),
                ("timeField", other) => {
                    return Err(error(
                        5_346_504,
                        format!(
                            "timeField field must be a string, got: {}",
                            type_name(other)
                        ),
                    ));
                }
                ("metaField", RawBsonRef::String(name)) => meta = Some(name.to_owned()),
                ("metaField", other) => {
                    return Err(error(
                        5_346_505,
                        format!(
                            "metaField field must be a string, got: {}",
                            type_name(other)
                        ),
                    ));
                }
                ("bucketMaxSpanSeconds" | "bucketRoundingSeconds", value) => {
                    let secs = crate::number::exact_i64(value).filter(|secs| *secs > 0);
                    let Some(secs) = secs.and_then(|secs| i32::try_from(secs).ok()) else {
                        return Err(error(
                            5_510_600,
                            format!("{name} field must be an integer, got: {}", type_name(value)),
                        ));
                    };
                    if name == "bucketMaxSpanSeconds" {
                        span = Some(secs);
                    }
                }
                ("exclude", RawBsonRef::Array(names)) if names.is_empty() => {}
                (name, _) => {
                    return Err(error(
                        5_346_506,
                        format!("unrecognized parameter to $_internalUnpackBucket: {name}"),
                    ));
                }
            }
        }
        let missing = |code, name: &str| {
            error(
                code,
                format!("The $_internalUnpackBucket stage requires a {name} parameter"),
            )
        };
        Ok(SeriesForm {
            time: time.ok_or_else(|| missing(5_346_508, "timeField"))?,
            meta,
            max_span_secs: span.ok_or_else(|| missing(5_510_601, "bucketMaxSpanSeconds"))?,
        })
    }

    /// What a path into the meta value of a bucket is in a measurement; `None` for other paths.
    pub(crate) fn measured_path(&self, path: &str) -> Option<String> {
        let (meta, rest) = (self.meta.as_deref()?, path.strip_prefix("meta")?);
        (rest.is_empty() || rest.starts_with('.')).then(|| format!("{meta}{rest}"))
    }

    /// What a path into the meta field is in a bucket; `None` for other paths.
    pub fn meta_path(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix(self.meta.as_deref()?)?;
        (rest.is_empty() || rest.starts_with('.')).then(|| format!("meta{rest}"))
    }
}
