//! `clusteredIndex`: the order of a collection by its `_id`, declared.

use pinion_bson::{RawBsonRef, rawdoc};
use pinion_catalog::Clustered;
use pinion_wire::idl::{FieldReader, Types};
use pinion_wire::{Error, ErrorCode, Result};

use super::safe_bool;

/// The option as it is written.
pub(super) enum Written {
    /// The old form, which only the node itself may use.
    Flag(bool),
    Spec {
        version: i32,
        is_id: bool,
        is_unique: bool,
        name: String,
    },
}

/// The version of all indexes.
const VERSION: i32 = 2;

/// The types that the option may have.
const TYPES: Types = Types::Many(&["bool", "decimal", "double", "int", "long", "object"]);

pub(super) fn read(reader: &FieldReader<'_, '_>) -> Result<Option<Written>> {
    let value = match reader.value("clusteredIndex") {
        None => return Ok(None),
        Some(RawBsonRef::Document(_)) => None,
        Some(other) => Some(other),
    };
    if let Some(value) = value {
        return match safe_bool(value) {
            Some(flag) => Ok(Some(Written::Flag(flag))),
            None => Err(reader.wrong_type("clusteredIndex", value, TYPES)),
        };
    }
    let spec = reader.opt_object("clusteredIndex")?;
    let spec = spec.expect("it is a document");
    spec.only(&["v", "key", "name", "unique"])?;
    let version = spec.opt_i32("v")?.unwrap_or(VERSION);
    let key = spec.doc("key")?;
    let name = spec.opt_str("name")?.unwrap_or("_id_").to_owned();
    let Some(is_unique) = spec.opt_safe_bool("unique")? else {
        return Err(pinion_wire::idl::missing_field(spec.path().field("unique")));
    };
    let by_id = rawdoc! { "_id": 1 };
    Ok(Some(Written::Spec {
        version,
        is_id: pinion_bson::compare_documents(key, &by_id) == std::cmp::Ordering::Equal,
        is_unique,
        name,
    }))
}

impl Written {
    /// Refuses what a collection in the order of its `_id` cannot be beside.
    pub(super) fn check_companions(
        &self,
        size: Option<i64>,
        max: Option<i64>,
        is_capped: bool,
        is_view: bool,
    ) -> Result<()> {
        let refused = |code, what: &str| Err(Error::new(ErrorCode(code), what.to_owned()));
        if is_view {
            return refused(
                6026500,
                "The 'clusteredIndex' option is not supported with views",
            );
        }
        if size.is_some() {
            return refused(
                6049200,
                "'size' field for capped collections is not allowed on clustered collections. Did you mean 'capped: true' with 'expireAfterSeconds'?",
            );
        }
        if max.is_some() {
            return refused(
                6049204,
                "'max' field for capped collections is not allowed on clustered collections. Did you mean 'capped: true' with 'expireAfterSeconds'?",
            );
        }
        if is_capped {
            return refused(
                6127800,
                "Clustered capped collection only available with 'enableTestCommands' server parameter",
            );
        }
        Ok(())
    }

    pub(super) fn resolve(self) -> Result<Option<Clustered>> {
        match self {
            Written::Flag(false) => Ok(None),
            Written::Flag(true) => Err(Error::new(
                ErrorCode(5979703),
                "The 'clusteredIndex' legacy format {clusteredIndex: <bool>} is only supported for specific internal collections and the 'clusteredIndex' option must be an object",
            )),
            Written::Spec { is_id: false, .. } => Err(Error::new(
                ErrorCode::INVALID_INDEX_SPECIFICATION_OPTION,
                "The 'clusteredIndex' option is only supported for key: {_id: 1}",
            )),
            Written::Spec { version, .. } if version != VERSION => Err(Error::new(
                ErrorCode(5979704),
                format!(
                    "The only valid version for a clustered index is {VERSION}, but got {version}"
                ),
            )),
            Written::Spec {
                is_unique: false, ..
            } => Err(Error::new(
                ErrorCode(5979700),
                "The 'clusteredIndex' option requires unique: true to be specified",
            )),
            Written::Spec { name, .. } => Ok(Some(Clustered::Named { name })),
        }
    }
}
