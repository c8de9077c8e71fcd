//! Multi-document transactions: statements of one session that take place together or not at all.
//!
//! A transaction is *open* from its first statement to its commit or its abort. Its writes are
//! intents in storage (an open unit), its reads are of one snapshot and of these. It waits at its
//! session's home between statements, and a statement takes it along with the session (`run`). One
//! that is *prepared* takes none, and waits for its outcome (`prepared`). What it holds of other
//! operations, the snapshot of each partition and the gates that it has passed, lies with the cores
//! (`held`), until it ends.
//!
//! Source: replication document, "Transactions".

mod abort;
mod commit;
mod prepared;
mod refusals;
mod run;
mod shown;

pub use abort::{abort_all, abort_sessions, start};
pub(crate) use commit::{abort, commit};
pub use prepared::hold_prepared;
pub use prepared::{
    abort_prepared, all_prepared, commit_prepared, find, forget, give_up_prepared, prepare,
    register, yield_gates,
};
pub(crate) use refusals::{check_command, commit_timestamp};
pub(crate) use run::run;
pub(crate) use shown::{idle, open_counts, running};
