//! `storageEngine` and `indexOptionDefaults` as `create` takes them.

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::check_storage_engine;
use pinion_wire::idl::{CommandReader, FieldReader};
use pinion_wire::{Error, ErrorCode, Result};

/// Reads a `storageEngine` document; an empty one is none.
pub(super) fn read(reader: &FieldReader<'_, '_>, field: &str) -> Result<Option<RawDocumentBuf>> {
    let Some(engines) = reader.opt_doc(field)?.filter(|engines| !engines.is_empty()) else {
        return Ok(None);
    };
    check_storage_engine(engines)?;
    refuse_configuration(engines)?;
    Ok(Some(engines.to_owned()))
}

/// All collections and indexes are stored alike: what asks for something else is not passed over.
pub(in crate::commands) fn refuse_configuration(engines: &RawDocument) -> Result<()> {
    let settings =
        pinion_bson::get(engines, "wiredTiger").and_then(|settings| settings.as_document());
    let text = settings.and_then(|settings| pinion_bson::get(settings, "configString"));
    match text {
        Some(RawBsonRef::String(text)) if !text.trim().is_empty() => Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "storageEngine.wiredTiger.configString '{text}' is not supported: this server has another storage engine, which stores all collections and indexes alike"
            ),
        )),
        _ => Ok(()),
    }
}

/// Reads the `storageEngine` of `indexOptionDefaults`.
pub(super) fn read_index_defaults(reader: &CommandReader<'_>) -> Result<Option<RawDocumentBuf>> {
    let Some(defaults) = reader.opt_object("indexOptionDefaults")? else {
        return Ok(None);
    };
    defaults.only(&["storageEngine"])?;
    read(&defaults, "storageEngine")
}
