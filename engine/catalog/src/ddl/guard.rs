//! What an operation is about to define, and the checks that may refuse it before anything is
//! locked or written.
//!
//! Every definition of a client passes the coordinator, and the coordinator asks the guard: no
//! command can leave it out. What members apply out of the log does not come this way.

use std::rc::Rc;

use pinion_bson::RawDocumentBuf;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::options::CollectionOptions;

/// What an operation is about to define.
#[derive(Clone, Debug)]
pub enum Definition {
    Create {
        ns: Namespace,
        options: Box<CollectionOptions>,
    },
    Drop(Namespace),
    DropDatabase(String),
    Rename {
        from: Namespace,
        to: Namespace,
    },
    Modify(Namespace),
    CreateIndexes(Namespace),
    DropIndexes(Namespace),
    Reindex(Namespace),
    CloneAsCapped {
        from: Namespace,
        to: Namespace,
    },
    ConvertToCapped(Namespace),
    /// The part of a write that was admitted already.
    OfWrite,
}

/// Decides which definitions the node admits.
pub trait DefinitionGuard {
    /// # Errors
    /// The definition is refused; nothing has been changed.
    fn admit(&self, ctx: &OpContext, definition: &Definition) -> Result<()>;

    /// Asked again of each namespace once it is locked, and once its gate is closed, before
    /// anything is changed.
    ///
    /// # Errors
    /// What the operation goes by has changed while that was waited for.
    fn admit_behind_gate(&self, ctx: &OpContext, ns: &Namespace) -> Result<()>;

    /// The shard key of a collection that is locked, as its operation goes by it; `None` of one
    /// that is not sharded.
    fn shard_key(&self, ctx: &OpContext, ns: &Namespace) -> Option<RawDocumentBuf>;
}

struct Registered(Rc<dyn DefinitionGuard>);

/// Has the definitions of this core's operations admitted by a guard. Called once on each core,
/// before it serves clients.
pub fn set_definition_guard(guard: Rc<dyn DefinitionGuard>) {
    pinion_runtime::set_core_local(Rc::new(Registered(guard)));
}

/// # Errors
/// The guard refuses the definition.
pub(super) fn admit(ctx: &OpContext, definition: &Definition) -> Result<()> {
    match pinion_runtime::try_core_local::<Registered>() {
        Some(registered) => registered.0.admit(ctx, definition),
        None => Ok(()),
    }
}

/// The shard key of a collection whose lock is held.
pub(super) fn shard_key(ctx: &OpContext, ns: &Namespace) -> Option<RawDocumentBuf> {
    let registered = pinion_runtime::try_core_local::<Registered>()?;
    registered.0.shard_key(ctx, ns)
}

/// # Errors
/// The guard refuses the operation on one of these namespaces.
pub(super) fn admit_behind_gates(ctx: &OpContext, namespaces: &[Namespace]) -> Result<()> {
    match pinion_runtime::try_core_local::<Registered>() {
        Some(registered) => namespaces
            .iter()
            .try_for_each(|ns| registered.0.admit_behind_gate(ctx, ns)),
        None => Ok(()),
    }
}
