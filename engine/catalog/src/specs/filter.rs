//! Filters of partial indexes: which predicates they may have.

use pinion_bson::RawDocument;
use pinion_query::Matcher;
use pinion_wire::Result;

use super::cannot_create;

/// Checks the filter of a partial index.
///
/// # Errors
/// Those of the filter's language, and `CannotCreateIndex` for a predicate that no partial index
/// has.
pub(super) fn check(filter: &RawDocument) -> Result<()> {
    let matcher = Matcher::parse_nested(filter, None)?;
    match matcher.unsuitable_for_partial_index() {
        None => Ok(()),
        Some(predicate) => Err(cannot_create(format!(
            "Expression not supported in partial index: {predicate}"
        ))),
    }
}
