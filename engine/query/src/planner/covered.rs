//! Whether the entries of an index have all that a query gives, so that no document is fetched.

use super::{IndexAccess, PlanRequest};
use crate::index::{IndexKind, IndexSpec};

/// Whether the values of an index's fields can be read from its entries, as they are stored.
pub(super) fn has_values(index: &IndexSpec) -> bool {
    index.kind == IndexKind::Btree && !index.is_multikey() && index.collation.is_none()
}

/// Whether the projection keeps nothing but fields of the index.
pub(super) fn is_covered(request: &PlanRequest<'_>, access: &IndexAccess) -> bool {
    let index = &request.indexes[access.index];
    if request.return_key || access.expanded.is_some() || index.is_id() || !has_values(index) {
        return false;
    }
    let kept = request
        .projection
        .and_then(|projection| projection.kept_paths());
    kept.is_some_and(|kept| {
        let is_field = |path: &String| index.paths().iter().any(|field| field.text() == path);
        !kept.is_empty() && kept.iter().all(is_field)
    })
}
