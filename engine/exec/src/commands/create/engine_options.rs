//! `storageEngine` and `indexOptionDefaults` as `create` takes them.

use pinion_bson::RawDocumentBuf;
use pinion_catalog::check_storage_engine;
use pinion_wire::Result;
use pinion_wire::idl::{CommandReader, FieldReader};

/// Reads a `storageEngine` document; an empty one is none.
pub(super) fn read(reader: &FieldReader<'_, '_>, field: &str) -> Result<Option<RawDocumentBuf>> {
    let Some(engines) = reader.opt_doc(field)?.filter(|engines| !engines.is_empty()) else {
        return Ok(None);
    };
    check_storage_engine(engines)?;
    Ok(Some(engines.to_owned()))
}

/// Reads the `storageEngine` of `indexOptionDefaults`.
pub(super) fn read_index_defaults(reader: &CommandReader<'_>) -> Result<Option<RawDocumentBuf>> {
    let Some(defaults) = reader.opt_object("indexOptionDefaults")? else {
        return Ok(None);
    };
    defaults.only(&["storageEngine"])?;
    read(&defaults, "storageEngine")
}
