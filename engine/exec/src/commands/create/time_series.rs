//! What may stand beside `timeseries` in `create`.

use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Namespace};

use super::invalid;

const COMPANIONS: [&str; 6] = [
    "create",
    "timeseries",
    "collation",
    "expireAfterSeconds",
    "indexOptionDefaults",
    "storageEngine",
];

/// Refuses what a time series cannot have.
pub(super) fn check_companions(reader: &FieldReader<'_, '_>, ns: &Namespace) -> Result<()> {
    let other = reader
        .iter()
        .map(|(name, _)| name)
        .find(|name| !COMPANIONS.contains(name) && !pinion_wire::idl::is_generic_argument(name));
    match other {
        Some(other) => Err(invalid(format!(
            "{ns}: timeseries is not allowed with '{other}'"
        ))),
        None => Ok(()),
    }
}
