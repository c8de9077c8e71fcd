//! The collations of what a pipeline reads.

use std::sync::Arc;

use pinion_bson::RawArray;
use pinion_catalog::{core_catalog, for_each_source};
use pinion_collation::Collation;
use pinion_wire::Result;
use pinion_wire::idl::Namespace;

use crate::acquire::check_view;

/// Refuses a pipeline that reads views with another collation than theirs. Views that are read
/// through those are examined when they are.
pub(super) fn check_sources(
    db: &str,
    stages: &RawArray,
    collation: Option<&Arc<Collation>>,
) -> Result<()> {
    let catalog = core_catalog().current();
    let mut sources = Vec::new();
    for_each_source(stages, &mut |name| sources.push(name));
    for source in sources {
        let Ok(ns) = Namespace::new(db, source) else {
            continue;
        };
        if let Some(view) = catalog.resolve_view(&ns)? {
            check_view(&ns, &view, collation)?;
        }
    }
    Ok(())
}
