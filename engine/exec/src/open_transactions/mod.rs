//! Transactions that are open: what one keeps between its statements, what a statement of it reads
//! and writes, and what it holds on each core.

mod held;
mod open;
mod prepared;
mod refusals;
mod running;
mod shown;

pub use held::{
    Transactions, forget_cursors, release_everywhere, release_held_everywhere, transactions,
};
pub use open::{CatalogUse, OPERATION_OVERHEAD_BYTES, OpenTransaction, TransactionMemory};
pub use prepared::PreparedTransaction;
pub(crate) use refusals::{check_written, lost, no_measurements, not_empty, not_made};
pub(crate) use running::{InUnit, Running, changing, ends_command, fail, of};
pub(crate) use shown::OpenShown;
