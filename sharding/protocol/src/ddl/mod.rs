//! Definitions of a cluster: documents, locks, and one state machine for each operation over one
//! frame. The primary shard of a database drives them: what a machine asks for is performed, and
//! its outcome is the machine's next input.
//!
//! Source: sharding document, "Sharding DDL Coordinator".

mod action;
mod block;
mod bucket_change;
mod change_at_owners;
mod change_request;
mod create_collection;
mod create_request;
mod documents;
mod drop_collection;
mod drop_database;
mod errors;
mod key_index;
mod locks;
mod machine;
mod move_primary;
mod operation;
mod refine_request;
mod refine_shard_key;
mod rename_collection;
mod rename_part;
mod rename_request;
mod set_allow_migrations;
#[cfg(test)]
mod tests;

pub use action::{
    Action, AskedShards, CollectionFacts, DatabaseFacts, Facts, FreshIds, IndexFacts, LocalKind,
    NewCollection, Outcome, ShardReply,
};
pub use block::{BlockType, ParticipantBlock};
pub use change_request::{OwnerChange, ParticipantChange, named_indexes, replies_in};
pub use create_request::{
    CreateCollectionRequest, check_length, check_namespace, check_no_buckets,
};
pub use documents::{
    CRITICAL_SECTIONS, CriticalSectionDocument, DDL_COORDINATORS, DdlDocument, DdlId, OperationKind,
};
pub use drop_collection::DropCollectionRequest;
pub use errors::{is_recoverable, is_refusal};
pub use locks::{DdlLocks, LockId, LockScope};
pub use machine::{DdlMachine, Effect, Input};
pub use move_primary::{MoveMessage, MovePrimaryRequest};
pub use refine_request::{IndexCheck, RefineRequest, check_indexes};
pub use rename_collection::UNSHARDED;
pub use rename_part::RenamePart;
pub use rename_request::RenameRequest;
pub use set_allow_migrations::AllowMigrationsRequest;
