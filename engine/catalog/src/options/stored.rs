//! Options as documents: as `listCollections` shows them, which is how a row holds them too.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::TimeSeries;

use super::{
    Capped, Clustered, CollectionOptions, ValidationAction, ValidationLevel, ViewDefinition,
    name_of,
};

/// Stored options that cannot be understood, with the reason.
#[derive(Debug)]
pub struct BadOptions(pub String);

/// A number as MongoDB's `appendNumber` writes it: an int where it fits.
fn append_number(out: &mut DocBuilder, name: &str, number: i64) {
    match i32::try_from(number) {
        Ok(number) => out.append(name, number),
        Err(_) => out.append(name, number),
    };
}

impl CollectionOptions {
    /// The options in MongoDB's order, as they are listed and stored.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        if let Some(capped) = &self.capped {
            out.append("capped", true);
            append_number(&mut out, "size", capped.size_bytes);
            if let Some(max) = capped.max_documents {
                append_number(&mut out, "max", max);
            }
        }
        if self.temporary {
            out.append("temp", true);
        }
        if self.pre_and_post_images {
            out.start_document("changeStreamPreAndPostImages")
                .append("enabled", true)
                .end();
        }
        if let Some(engine) = &self.storage_engine {
            out.append("storageEngine", &**engine);
        }
        if let Some(engine) = &self.index_storage_engine {
            out.start_document("indexOptionDefaults")
                .append("storageEngine", &**engine)
                .end();
        }
        if let Some(validator) = &self.validator {
            out.append("validator", &**validator);
        }
        if let Some(level) = self.validation_level {
            out.append("validationLevel", name_of(&ValidationLevel::NAMES, level));
        }
        if let Some(action) = self.validation_action {
            out.append(
                "validationAction",
                name_of(&ValidationAction::NAMES, action),
            );
        }
        // Of these a view has its definition and its collation alone.
        if let Some(view) = &self.view {
            out.append("viewOn", view.on.as_str())
                .append_raw("pipeline", RawBsonRef::Array(&view.pipeline));
        }
        if let Some(collation) = &self.collation {
            out.append("collation", &**collation);
        }
        if let Some(clustered) = &self.clustered {
            out.append_raw("clusteredIndex", clustered.to_bson().as_raw_bson_ref());
        }
        if let Some(secs) = self.expire_after_secs {
            out.append("expireAfterSeconds", secs);
        }
        if let Some(series) = &self.time_series {
            out.append("timeseries", &*series.to_document());
        }
        out.finish()
    }

    /// Reads options that `to_document` wrote.
    ///
    /// # Errors
    /// When they are damaged.
    pub fn from_document(stored: &RawDocument) -> Result<CollectionOptions, BadOptions> {
        let mut options = CollectionOptions::default();
        let (mut size, mut max) = (None, None);
        for (name, value) in pinion_bson::elements(stored) {
            match (name, value) {
                ("capped", RawBsonRef::Boolean(_)) => {}
                ("size", value) => size = pinion_wire::idl::i64_exact(value),
                ("max", value) => max = pinion_wire::idl::i64_exact(value),
                ("temp", RawBsonRef::Boolean(temporary)) => options.temporary = temporary,
                ("changeStreamPreAndPostImages", RawBsonRef::Document(images)) => {
                    options.pre_and_post_images = images.get_bool("enabled").unwrap_or(false);
                }
                ("storageEngine", RawBsonRef::Document(engine)) => {
                    options.storage_engine = Some(engine.to_owned());
                }
                ("indexOptionDefaults", RawBsonRef::Document(defaults)) => {
                    let engine = defaults.get_document("storageEngine").ok();
                    options.index_storage_engine = engine.map(RawDocument::to_owned);
                }
                ("validator", RawBsonRef::Document(validator)) => {
                    options.validator = Some(validator.to_owned());
                }
                ("validationLevel", RawBsonRef::String(level)) => {
                    options.validation_level = Some(named(&ValidationLevel::NAMES, level)?);
                }
                ("validationAction", RawBsonRef::String(action)) => {
                    options.validation_action = Some(named(&ValidationAction::NAMES, action)?);
                }
                ("collation", RawBsonRef::Document(collation)) => {
                    options.collation = Some(collation.to_owned());
                }
                ("viewOn", RawBsonRef::String(on)) => {
                    let pipeline = stored.get_array("pipeline");
                    options.view = Some(ViewDefinition {
                        on: on.to_owned(),
                        pipeline: pipeline
                            .map_err(|_| BadOptions("a view has no pipeline".into()))?
                            .to_owned(),
                    });
                }
                ("pipeline", RawBsonRef::Array(_)) => {}
                ("timeseries", RawBsonRef::Document(series)) => {
                    options.time_series = Some(
                        TimeSeries::from_document(series)
                            .map_err(|field| BadOptions(format!("timeseries: no {field}")))?,
                    );
                }
                ("clusteredIndex", RawBsonRef::Boolean(true)) => {
                    options.clustered = Some(Clustered::Legacy);
                }
                ("clusteredIndex", RawBsonRef::Document(clustered)) => {
                    let name = clustered.get_str("name");
                    let name = name.map_err(|_| BadOptions("clusteredIndex has no name".into()))?;
                    options.clustered = Some(Clustered::Named { name: name.into() });
                }
                ("expireAfterSeconds", RawBsonRef::Int64(secs)) => {
                    options.expire_after_secs = Some(secs);
                }
                (name, _) => {
                    return Err(BadOptions(format!("the option {name} is not understood")));
                }
            }
        }
        options.capped = size.map(|size_bytes| Capped {
            size_bytes,
            max_documents: max,
        });
        Ok(options)
    }
}

fn named<T: Copy>(names: &[(&str, T)], name: &str) -> Result<T, BadOptions> {
    let found = names.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| BadOptions(format!("the value {name} is not known")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    /// What is listed reads back as what it was made from, and is listed the same again.
    #[track_caller]
    fn check(listed: RawDocumentBuf) {
        let options = CollectionOptions::from_document(&listed).expect("options");
        let again = options.to_document();
        assert_eq!(again, listed);
        let read = CollectionOptions::from_document(&again).expect("options");
        assert_eq!(read, options);
    }

    #[test]
    fn options_come_back() {
        check(rawdoc! {});
        check(rawdoc! { "capped": true, "size": 4096, "max": 5 });
        check(rawdoc! { "capped": true, "size": 1i64 << 40 });
        check(rawdoc! { "temp": true });
        check(rawdoc! { "changeStreamPreAndPostImages": { "enabled": true } });
        check(rawdoc! {
            "storageEngine": { "wiredTiger": { "configString": "" } },
            "indexOptionDefaults": { "storageEngine": { "wiredTiger": {} } },
        });
        check(rawdoc! {
            "validator": { "a": 1 },
            "validationLevel": "moderate",
            "validationAction": "errorAndLog",
            "collation": { "locale": "en" },
        });
        check(
            rawdoc! { "viewOn": "c", "pipeline": [{ "$match": {} }], "collation": { "locale": "en" } },
        );
        check(rawdoc! {
            "viewOn": "system.buckets.c",
            "pipeline": [],
            "expireAfterSeconds": 5i64,
            "timeseries": { "timeField": "t", "metaField": "m", "granularity": "hours", "bucketMaxSpanSeconds": 2_592_000 },
        });
        check(rawdoc! {
            "clusteredIndex": { "v": 2, "key": { "_id": 1 }, "name": "n", "unique": true },
            "expireAfterSeconds": 5i64,
        });
        check(rawdoc! { "clusteredIndex": true });
    }

    #[test]
    fn damage_is_reported() {
        let check = |stored: RawDocumentBuf| {
            assert!(
                CollectionOptions::from_document(&stored).is_err(),
                "{stored:?}"
            );
        };
        check(rawdoc! { "unheard": 1 });
        check(rawdoc! { "validationLevel": "sometimes" });
        check(rawdoc! { "viewOn": "c" });
        check(rawdoc! { "timeseries": {} });
    }
}
