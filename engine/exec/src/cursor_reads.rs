//! What cursors and statements read of the catalog, and whether it is still there after a pause.

use pinion_catalog::{Uuid, core_catalog};
use pinion_clock::Timestamp;
use pinion_service::cursors::CursorSource;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

/// A collection that a cursor reads, so that it is noticed when that is dropped or remade.
#[derive(Clone, Debug)]
pub(crate) struct Reads {
    /// Its name: that under a view, if the cursor is of one.
    pub ns: Namespace,
    pub uuid: Uuid,
    /// Indexes that are read, which may be dropped under it.
    pub indexes: Vec<String>,
}

impl CursorSource for Reads {
    fn ns(&self) -> &Namespace {
        &self.ns
    }

    fn check(&self, at: Option<Timestamp>) -> Result<()> {
        check_still_there(&self.ns, self.uuid, &self.indexes, at)
    }
}

/// Whether a read that did not hold its collection's gate for a while can continue. One of a
/// snapshot, `at`, can while the catalog of its time is kept.
///
/// # Errors
/// `QueryPlanKilled` when the collection or an index that is read is gone.
pub(crate) fn check_still_there(
    ns: &Namespace,
    uuid: Uuid,
    indexes: &[String],
    at: Option<Timestamp>,
) -> Result<()> {
    let killed = |what: String| Err(Error::new(ErrorCode::QUERY_PLAN_KILLED, what));
    let catalog = core_catalog();
    let then = at.and_then(|at| catalog.at(at));
    let catalog = then.unwrap_or_else(|| catalog.current());
    match catalog.by_uuid(uuid) {
        None => killed(format!("collection dropped. UUID {uuid}")),
        Some(collection) if collection.ns != *ns => killed(format!(
            "collection renamed from '{ns}' to '{}'",
            collection.ns
        )),
        Some(collection) => match indexes.iter().find(|name| collection.index(name).is_none()) {
            Some(name) => killed(format!("index '{name}' dropped")),
            None => Ok(()),
        },
    }
}
