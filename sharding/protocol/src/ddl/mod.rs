//! Definitions of a cluster: documents, locks, and one state machine for each operation over one
//! frame. The primary shard of a database drives them: what a machine asks for is performed, and
//! its outcome is the machine's next input.
//!
//! Source: sharding document, "Sharding DDL Coordinator".

mod action;
mod create_collection;
mod create_request;
mod documents;
mod drop_collection;
mod drop_database;
mod errors;
mod key_index;
mod locks;
mod machine;
mod operation;
#[cfg(test)]
mod tests;

pub use action::{
    Action, AskedShards, CollectionFacts, Facts, FreshIds, IndexFacts, LocalKind, Outcome,
};
pub use create_request::CreateCollectionRequest;
pub use documents::{
    CRITICAL_SECTIONS, CriticalSectionDocument, DDL_COORDINATORS, DdlDocument, DdlId, OperationKind,
};
pub use drop_collection::DropCollectionRequest;
pub use errors::{is_recoverable, is_refusal};
pub use locks::{DdlLocks, LockId, LockScope};
pub use machine::{DdlMachine, Effect, Input};
