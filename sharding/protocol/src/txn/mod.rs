//! Transactions over shards.

mod router;
mod tracking;

pub use router::{CommitPlan, ParticipantFields, Refusal, TransactionRouter};
pub use tracking::{CommitType, Tracking};
