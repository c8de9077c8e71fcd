//! Transactions over shards.

mod router;

pub use router::{CommitPlan, ParticipantFields, Refusal, TransactionRouter};
