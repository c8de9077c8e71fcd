//! Time series as the catalog has them: a view in front, and the collection of buckets behind it.

use pinion_bson::{DocBuilder, RawArrayBuf, RawDocumentBuf, rawdoc};
use pinion_query::TimeSeries;
use pinion_wire::idl::Namespace;

use crate::options::{Clustered, CollectionOptions, ViewDefinition};

/// The options of the view of a series that is asked for with these.
pub(crate) fn view_options(buckets: &Namespace, asked: &CollectionOptions) -> CollectionOptions {
    let series = asked.time_series.as_ref().expect("asked for a series");
    CollectionOptions {
        view: Some(ViewDefinition {
            on: buckets.collection().to_owned(),
            pipeline: unpacking(series),
        }),
        ..asked.clone()
    }
}

/// The options of the collection of buckets of a series that is asked for with these.
pub(crate) fn buckets_options(asked: &CollectionOptions) -> CollectionOptions {
    let series = asked.time_series.as_ref().expect("asked for a series");
    CollectionOptions {
        validator: Some(validator(&series.time_field)),
        clustered: Some(Clustered::Legacy),
        view: None,
        ..asked.clone()
    }
}

/// The pipeline that makes measurements out of buckets.
pub(crate) fn unpacking(series: &TimeSeries) -> RawArrayBuf {
    let mut spec = DocBuilder::new();
    spec.append("timeField", series.time_field.as_str());
    if let Some(meta) = &series.meta_field {
        spec.append("metaField", meta.as_str());
    }
    spec.append("bucketMaxSpanSeconds", series.max_span_secs);
    if let Some(rounding) = series.rounding_secs {
        spec.append("bucketRoundingSeconds", rounding);
    }
    let mut pipeline = RawArrayBuf::new();
    pipeline.push(rawdoc! { "$_internalUnpackBucket": spec.finish() });
    pipeline
}

/// What every bucket must be, as MongoDB has it.
fn validator(time_field: &str) -> RawDocumentBuf {
    let end = || {
        let mut times = DocBuilder::new();
        times.append(time_field, &*rawdoc! { "bsonType": "date" });
        rawdoc! { "bsonType": "object", "required": [time_field], "properties": times.finish() }
    };
    rawdoc! {
        "$jsonSchema": {
            "bsonType": "object",
            "required": ["_id", "control", "data"],
            "properties": {
                "_id": { "bsonType": "objectId" },
                "control": {
                    "bsonType": "object",
                    "required": ["version", "min", "max"],
                    "properties": {
                        "version": { "bsonType": "number" },
                        "min": end(),
                        "max": end(),
                        "closed": { "bsonType": "bool" },
                        "count": { "bsonType": "number", "minimum": 1 },
                    },
                    "additionalProperties": false,
                },
                "data": { "bsonType": "object" },
                "meta": {},
            },
            "additionalProperties": false,
        },
    }
}

/// The index by which the buckets of one source are found by their times. MongoDB makes it with a
/// series that has a meta field.
pub(crate) fn default_index(series: &TimeSeries) -> Option<RawDocumentBuf> {
    let (meta, time) = (series.meta_field.as_ref()?, &series.time_field);
    let mut key = DocBuilder::new();
    key.append("meta", 1)
        .append(&format!("control.min.{time}"), 1)
        .append(&format!("control.max.{time}"), 1);
    Some(rawdoc! { "v": 2, "key": key.finish(), "name": format!("{meta}_1_{time}_1") })
}

#[cfg(test)]
mod tests {
    use pinion_query::Granularity;

    use super::*;

    #[test]
    fn a_series_is_a_view_on_buckets() {
        let asked = CollectionOptions {
            time_series: Some(TimeSeries {
                time_field: "t".into(),
                meta_field: Some("m".into()),
                granularity: Some(Granularity::Seconds),
                rounding_secs: None,
                max_span_secs: 3600,
            }),
            ..CollectionOptions::default()
        };
        let buckets = Namespace::parse("d.system.buckets.c").unwrap();
        let view = view_options(&buckets, &asked).to_document();
        let unpack = rawdoc! { "timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 3600 };
        let series = rawdoc! {
            "timeField": "t", "metaField": "m", "granularity": "seconds", "bucketMaxSpanSeconds": 3600
        };
        let expected = rawdoc! {
            "viewOn": "system.buckets.c",
            "pipeline": [{ "$_internalUnpackBucket": unpack }],
            "timeseries": series,
        };
        assert_eq!(view, expected);
        let options = buckets_options(&asked);
        assert_eq!(options.clustered, Some(Clustered::Legacy));
        assert!(options.view.is_none() && options.validator.is_some());
    }
}
