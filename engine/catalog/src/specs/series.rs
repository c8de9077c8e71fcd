//! Indexes of time series: of measurements, as they are requested, and of buckets, as they are
//! made.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::{SeriesForm, TimeSeries, index_filter, is_about_meta};
use pinion_wire::idl::f64_lossy;
use pinion_wire::{Error, ErrorCode, Result};

use super::{cannot_create, flag, key_of, part};
use crate::text::{render, render_value};

/// Under this name the index of a series has the specification that it was asked for with, where
/// that does not follow from its own.
pub(super) const ORIGINAL: &str = "originalSpec";

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

/// The specification of the index on the buckets, for one on the measurements in its stored form.
///
/// # Errors
/// `InvalidOptions` and `CannotCreateIndex` for what series do not have.
pub(crate) fn to_buckets(series: &TimeSeries, listed: &RawDocument) -> Result<RawDocumentBuf> {
    let form = series.form();
    let key = key_of(listed);
    for option in ["unique", "prepareUnique"] {
        if flag(listed, option) {
            return Err(invalid(format!(
                "Index option '{option}' is not supported on time-series collections"
            )));
        }
    }
    let is_on_sources = || {
        pinion_bson::elements(key)
            .all(|(name, _)| name == form.time || form.meta_path(name).is_some())
    };
    if flag(listed, "sparse") && !is_on_sources() {
        return Err(invalid(
            "Sparse indexes on measurements are not supported on time-series collections",
        ));
    }
    let mut out = DocBuilder::new();
    for (name, value) in pinion_bson::elements(listed) {
        match (name, value) {
            ("key", _) => {
                out.append("key", &*bucket_key(&form, key)?);
            }
            ("expireAfterSeconds", value) => {
                check_expiry(series, &form, key, listed)?;
                out.append_raw(name, value);
            }
            ("partialFilterExpression", RawBsonRef::Document(filter)) => {
                let Some(filter) = index_filter(&form, filter) else {
                    return Err(invalid(format!(
                        "Unsupported partialFilterExpression on a time-series collection: {}",
                        render(filter)
                    )));
                };
                out.append(name, &*filter).append(ORIGINAL, listed);
            }
            _ => {
                out.append_raw(name, value);
            }
        }
    }
    Ok(out.finish())
}

/// Only measurements of some sources, by their meta fields, may expire before the others.
fn check_expiry(
    series: &TimeSeries,
    form: &SeriesForm,
    key: &RawDocument,
    listed: &RawDocument,
) -> Result<()> {
    let mut fields = pinion_bson::elements(key).map(|(name, _)| name);
    let is_on_time = fields.next() == Some(&series.time_field) && fields.next().is_none();
    let of_sources = match part(listed, "partialFilterExpression") {
        Some(RawBsonRef::Document(filter)) => is_about_meta(form, filter),
        _ => false,
    };
    match is_on_time && of_sources {
        true => Ok(()),
        false => Err(invalid(
            "TTL indexes are not supported on time-series collections but on the time field with a partialFilterExpression on the metaField",
        )),
    }
}

/// The key of the index on the buckets of a series for the key of one on its measurements.
///
/// # Errors
/// For kinds of indexes that buckets cannot have.
pub fn series_index_key(series: &TimeSeries, key: &RawDocument) -> Result<RawDocumentBuf> {
    bucket_key(&series.form(), key)
}

/// The key on the buckets for one on the measurements.
///
/// # Errors
/// For kinds of indexes that buckets cannot have.
pub(crate) fn bucket_key(form: &SeriesForm, key: &RawDocument) -> Result<RawDocumentBuf> {
    let mut out = DocBuilder::new();
    for (name, value) in pinion_bson::elements(key) {
        if name == "$**" || name.ends_with(".$**") && form.meta_path(name).is_none() {
            return Err(Error::new(
                ErrorCode(7_246_201),
                "Wildcard indexes are not supported on time-series collections but on the metaField",
            ));
        }
        match (form.meta_path(name), value) {
            (_, RawBsonRef::String("text")) => {
                return Err(invalid(
                    "Text indexes are not supported on time-series collections",
                ));
            }
            (Some(path), value) => {
                out.append_raw(&path, value);
            }
            (None, RawBsonRef::String("2dsphere")) => {
                return Err(Error::new(
                    ErrorCode::NOT_IMPLEMENTED,
                    "2dsphere indexes on measurements of time-series collections are not supported by this server",
                ));
            }
            (None, RawBsonRef::String(_)) => {
                let what = match name == form.time {
                    true => "the time field must be ascending or descending (numbers only)",
                    false => {
                        "measurement fields must be ascending or descending (numbers only) or '2dsphere'"
                    }
                };
                return Err(cannot_create(format!(
                    "Invalid index spec for time-series collection: {}. Indexes on {what}: {}",
                    render(key),
                    render_value(value)
                )));
            }
            (None, value) => {
                let (min, max) = (format!("control.min.{name}"), format!("control.max.{name}"));
                let descends = f64_lossy(value).is_some_and(|number| number < 0.0);
                let [first, second] = if descends { [max, min] } else { [min, max] };
                out.append_raw(&first, value).append_raw(&second, value);
            }
        }
    }
    Ok(out.finish())
}

/// The index as clients of the series see it; `None` for one that only the buckets have.
pub fn to_series(series: &TimeSeries, listed: &RawDocument) -> Option<RawDocumentBuf> {
    if let Some(RawBsonRef::Document(original)) = part(listed, ORIGINAL) {
        return Some(original.to_owned());
    }
    let key = series_key(series, key_of(listed))?;
    let mut out = DocBuilder::new();
    for (name, value) in pinion_bson::elements(listed) {
        match name {
            "key" => out.append(name, &*key),
            _ => out.append_raw(name, value),
        };
    }
    Some(out.finish())
}

fn series_key(series: &TimeSeries, key: &RawDocument) -> Option<RawDocumentBuf> {
    let mut out = DocBuilder::new();
    let mut fields = pinion_bson::elements(key).peekable();
    while let Some((name, value)) = fields.next() {
        if let Some(meta) = &series.meta_field
            && let Some(rest) = name.strip_prefix("meta")
            && (rest.is_empty() || rest.starts_with('.'))
        {
            out.append_raw(&format!("{meta}{rest}"), value);
            continue;
        }
        let (end, other) = match name.starts_with("control.min.") {
            true => ("control.min.", "control.max."),
            false => ("control.max.", "control.min."),
        };
        let field = name.strip_prefix(end)?;
        let (next, _) = fields.next()?;
        (next.strip_prefix(other)? == field).then_some(())?;
        out.append_raw(field, value);
    }
    Some(out.finish())
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

    #[track_caller]
    fn check(key: RawDocumentBuf, expected: std::result::Result<RawDocumentBuf, i32>) {
        let listed = rawdoc! { "v": 2, "key": key, "name": "n" };
        let made = to_buckets(&series(), &listed);
        let found = made.as_ref().map(|made| key_of(made).to_owned());
        assert_eq!(found.map_err(|error| error.code.0), expected);
        if let Ok(made) = made {
            assert_eq!(to_series(&series(), &made), Some(listed));
        }
    }

    #[test]
    fn keys_of_measurements_and_buckets() {
        check(rawdoc! { "m": 1 }, Ok(rawdoc! { "meta": 1 }));
        check(rawdoc! { "m.x": -1 }, Ok(rawdoc! { "meta.x": -1 }));
        check(
            rawdoc! { "m": 1, "t": -1 },
            Ok(rawdoc! { "meta": 1, "control.max.t": -1, "control.min.t": -1 }),
        );
        check(
            rawdoc! { "x.y": 1 },
            Ok(rawdoc! { "control.min.x.y": 1, "control.max.x.y": 1 }),
        );
        check(rawdoc! { "m": "hashed" }, Ok(rawdoc! { "meta": "hashed" }));
        check(rawdoc! { "t": "hashed" }, Err(67));
        check(rawdoc! { "x": "hashed" }, Err(67));
        check(rawdoc! { "x": "2d" }, Err(67));
        check(rawdoc! { "x": "text" }, Err(72));
        check(rawdoc! { "$**": 1 }, Err(7_246_201));
    }

    #[track_caller]
    fn check_options(options: RawDocumentBuf, expected: std::result::Result<(), i32>) {
        let mut listed = DocBuilder::new();
        listed.append_all(&rawdoc! { "v": 2, "name": "n", "key": { "t": 1 } });
        listed.append_all(&options);
        let listed = listed.finish();
        let made = to_buckets(&series(), &listed);
        let back = made.map(|made| to_series(&series(), &made));
        let expected = expected.map(|()| Some(listed));
        assert_eq!(back.map_err(|error| error.code.0), expected);
    }

    #[test]
    fn options_of_indexes() {
        check_options(rawdoc! { "hidden": true }, Ok(()));
        check_options(rawdoc! { "unique": true }, Err(72));
        check_options(rawdoc! { "sparse": true }, Ok(()));
        check_options(rawdoc! { "expireAfterSeconds": 1 }, Err(72));
        let of = |filter: RawDocumentBuf| {
            rawdoc! { "expireAfterSeconds": 1, "partialFilterExpression": filter }
        };
        check_options(of(rawdoc! { "m": 1 }), Ok(()));
        check_options(of(rawdoc! { "x": 1 }), Err(72));
        check_options(
            rawdoc! { "partialFilterExpression": { "x": { "$gt": 1 } } },
            Ok(()),
        );
    }
}
