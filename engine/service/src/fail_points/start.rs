//! Fail points that are set as the node starts: `--setParameter failpoint.<name>=<JSON>`.

use pinion_bson::{Bson, Document, RawDocumentBuf};
use pinion_wire::{Error, Result};
use serde_json::Value;

use super::{Configuration, FailPoint};
use crate::fail_points::fail_points;

/// Sets a fail point on this core; every core does, before it serves clients.
///
/// # Errors
/// There is none of this name, or the text is no JSON that configures one.
pub fn set_at_start(name: &str, text: &str) -> Result<()> {
    let point = FailPoint::named(name)?;
    let value: Value =
        serde_json::from_str(text).map_err(|error| Error::failed_to_parse(error.to_string()))?;
    let Bson::Document(given) = bson_of(value)? else {
        return Err(Error::type_mismatch("a fail point is set by an object"));
    };
    let given = RawDocumentBuf::try_from(&given)
        .map_err(|error| Error::failed_to_parse(error.to_string()))?;
    let configuration = Configuration::parse(&given)?;
    fail_points().set_at_start(point, configuration);
    Ok(())
}

fn bson_of(value: Value) -> Result<Bson> {
    Ok(match value {
        Value::Null => Bson::Null,
        Value::Bool(flag) => Bson::Boolean(flag),
        Value::String(text) => Bson::String(text),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => i32::try_from(whole).map_or(Bson::Int64(whole), Bson::Int32),
            (None, Some(number)) => Bson::Double(number),
            (None, None) => return Err(Error::failed_to_parse("a number is too large")),
        },
        Value::Array(values) => {
            Bson::Array(values.into_iter().map(bson_of).collect::<Result<_>>()?)
        }
        Value::Object(fields) => {
            let mut document = Document::new();
            for (name, value) in fields {
                document.insert(name, bson_of(value)?);
            }
            Bson::Document(document)
        }
    })
}
