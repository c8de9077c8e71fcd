//! Time series, whose buckets are what is spread over shards: clients name fields of measurements,
//! keys and chunks those of buckets.
//!
//! Codes and messages are MongoDB's.

use std::borrow::Cow;

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_query::{Matcher, TimeSeries, Variables, bucket_filter, document_text};
use pinion_wire::{Error, ErrorCode, Result};

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
