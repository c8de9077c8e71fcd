//! Writes on sharded collections: which shards each statement goes to, and what their answers come
//! to together.

// A module uses those above it.

mod outcome;
mod statement;

mod found;
mod plan;

mod statements;

mod rounds;

mod batch;

mod explain;
mod find_and_modify;

pub(crate) use batch::{Batch, BatchKind};
pub(crate) use explain::explain;
pub(crate) use find_and_modify::find_and_modify;
pub(crate) use found::{OneDocument, Said, write_one};
pub(crate) use outcome::{
    append_numbers, first_error_of, is_stale, merged_concern_error, number_of, owner_would_change,
    statement_numbers,
};
pub(crate) use plan::{Plan, Rest, half_done};
pub(crate) use rounds::run;
pub(crate) use statement::{BULK, Form, Modify, is_of_id};
pub(crate) use statements::{Added, Statements, Unsharded};
