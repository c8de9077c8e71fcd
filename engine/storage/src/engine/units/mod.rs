//! Units of several statements: the transactions of clients.
//!
//! In reading order: `snapshots` keeps readable what a unit sees, `open_unit` places its
//! statements, `outcome` ends it, `prepared` keeps it until another node decides, and
//! `transactions` keeps the log that it needs.

mod open_unit;
mod outcome;
mod prepared;
mod snapshots;
mod transactions;

pub use open_unit::OpenUnit;
pub(super) use open_unit::Units;
pub use prepared::PreparedUnit;
pub use snapshots::SnapshotHold;
