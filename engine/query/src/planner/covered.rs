//! Whether the entries of an index have all that a query gives, so that no document is fetched.

use super::{Access, IndexAccess, Plan, PlanRequest};
use crate::index::{IndexKind, IndexSpec};
use crate::value::elements;

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
        !kept.is_empty() && kept.iter().all(is_field) && has_shard_key(request, access, &kept)
    })
}

/// Whether the entries that an access reads say which documents are owned, beside these paths of
/// the index: they do where all documents are given.
fn has_shard_key(request: &PlanRequest<'_>, access: &IndexAccess, kept: &[String]) -> bool {
    let Some(key) = request.shard_key else {
        return true;
    };
    let index = &request.indexes[access.index];
    if access.expanded.is_some() || index.is_id() || !has_values(index) {
        return false;
    }
    let leads_through = |outer: &str, inner: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    elements(key).all(|(path, _)| {
        let is_field = index.paths().iter().any(|field| field.text() == path);
        let is_apart = |kept: &String| !leads_through(kept, path) && !leads_through(path, kept);
        is_field && kept.iter().all(is_apart)
    })
}

impl Plan {
    /// Whether the entries of all indexes that the plan scans say which documents are owned.
    pub fn has_shard_key(&self, request: &PlanRequest<'_>) -> bool {
        let has_key = |access: &IndexAccess| has_shard_key(request, access, &[]);
        match &self.access {
            Access::Index(access) => has_key(access),
            Access::Union(branches) => branches.iter().all(has_key),
            Access::Merge(sorted) => sorted.iter().all(|sorted| has_key(&sorted.scan)),
            Access::Nothing | Access::Id(_) | Access::Collection(_) | Access::Near(_) => false,
        }
    }
}
