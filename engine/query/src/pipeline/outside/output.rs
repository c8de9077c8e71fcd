//! `$out`

use pinion_bson::{RawBsonRef, RawDocumentBuf};
use pinion_wire::Result;

use crate::error::error;
use crate::pipeline::spec::{
    check_duplicates, missing_field, optional_text, unknown_field, wrong_type,
};
use crate::value::{elements, type_name};

/// The collection that takes the place of the one there is.
#[derive(Clone, Debug)]
pub struct OutputTo {
    /// None for the database of the command.
    pub db: Option<String>,
    pub collection: String,
    /// What the collection is to be, if it is to be a time series; as it was written.
    pub time_series: Option<RawDocumentBuf>,
}

impl OutputTo {
    pub(in crate::pipeline) fn parse(spec: RawBsonRef<'_>) -> Result<OutputTo> {
        let target = match spec {
            RawBsonRef::String(name) => OutputTo {
                db: None,
                collection: name.to_owned(),
                time_series: None,
            },
            RawBsonRef::Document(spec) => {
                let (mut db, mut collection, mut time_series) = (None, None, None);
                check_duplicates("$out", spec)?;
                for (name, value) in elements(spec) {
                    match name {
                        "db" => db = optional_text("$out.db", value)?,
                        "coll" => collection = optional_text("$out.coll", value)?,
                        "timeseries" => match value {
                            RawBsonRef::Document(spec) => time_series = Some(spec.to_owned()),
                            RawBsonRef::Null | RawBsonRef::Undefined => {}
                            other => return Err(wrong_type("$out.timeseries", other, "object")),
                        },
                        _ => return Err(unknown_field(&format!("$out.{name}"))),
                    }
                }
                OutputTo {
                    db: Some(db.ok_or_else(|| missing_field("$out.db"))?.to_owned()),
                    collection: collection
                        .ok_or_else(|| missing_field("$out.coll"))?
                        .to_owned(),
                    time_series,
                }
            }
            other => {
                return Err(error(
                    16990,
                    format!(
                        "$out only supports a string or object argument, but found {}",
                        type_name(other)
                    ),
                ));
            }
        };
        target.check()?;
        Ok(target)
    }

    fn check(&self) -> Result<()> {
        if let Some(db @ ("admin" | "config" | "local")) = self.db.as_deref() {
            return Err(error(
                31321,
                format!("Can't $out to internal database: {db}"),
            ));
        }
        if self.collection.is_empty() {
            return Err(error(
                73,
                "Invalid $out target namespace: collection names cannot be empty",
            ));
        }
        if self.collection.starts_with("system.") {
            return Err(error(
                17385,
                format!("Can't $out to special collection: {}", self.collection),
            ));
        }
        if self.collection.contains('$') {
            return Err(error(
                20,
                format!("invalid $out target: {}", self.collection),
            ));
        }
        if self.collection.contains('\0') || self.collection.starts_with('.') {
            return Err(error(
                73,
                format!("Invalid namespace specified: {}", self.collection),
            ));
        }
        Ok(())
    }
}
